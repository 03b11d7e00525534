#include "status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sysexits.h>

static _Thread_local char message[1024];

static const struct {
	const char *name;
	int exit_code;
} statuses[ST_STATUS_COUNT] = {
	[ST_OK] = {"ok", 0},
	[ST_PENDING] = {"pending", EX_SOFTWARE},
	[ST_ERR_USAGE] = {"usage", EX_USAGE},
	[ST_ERR_CONFIG] = {"configuration", EX_CONFIG},
	[ST_ERR_DATA] = {"data", EX_DATAERR},
	[ST_ERR_NOINPUT] = {"no such input", EX_NOINPUT},
	[ST_ERR_NOMEM] = {"out of resources", EX_OSERR},
	[ST_ERR_SYSTEM] = {"system", EX_OSERR},
	[ST_ERR_UNAVAILABLE] = {"unavailable", EX_UNAVAILABLE},
	[ST_ERR_PERMISSION] = {"permission", EX_NOPERM},
	[ST_ERR_TIMEOUT] = {"timeout", EX_TEMPFAIL},
	[ST_ERR_ABORTED] = {"aborted", 1},
	[ST_ERR_PROTOCOL] = {"protocol", EX_PROTOCOL},
	[ST_ERR_MISMATCH] = {"mismatch", 1},
	[ST_ERR_DIVERGED] = {"diverged", 1},
	[ST_ERR_INTERRUPTED] = {"interrupted", EX_TEMPFAIL},
	[ST_ERR_INTERNAL] = {"internal", EX_SOFTWARE},
};

enum st_status st_fail(enum st_status status, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(message, sizeof message, format, args);
	va_end(args);
	/* One line, whatever it quotes: no control character reaches a terminal. */
	for (char *p = message; *p; p++)
		if ((unsigned char)*p < ' ' || *p == 0x7f)
			*p = '?';
	return status;
}

static enum st_status status_of_errno(int error)
{
	switch (error) {
	case ENOMEM:
	case ENOSPC:
	case EMFILE:
	case ENFILE:
	case EDQUOT:
		return ST_ERR_NOMEM;
	case EACCES:
	case EPERM:
		return ST_ERR_PERMISSION;
	case ETIMEDOUT:
		return ST_ERR_TIMEOUT;
	case ENOENT:
	case ECONNREFUSED:
	case EHOSTUNREACH:
	case ENETUNREACH:
		return ST_ERR_UNAVAILABLE;
	default:
		return ST_ERR_SYSTEM;
	}
}

enum st_status st_fail_errno(const char *format, ...)
{
	int error = errno;
	char text[768];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	return st_fail(status_of_errno(error), "%s: %s", text, strerror(error));
}

enum st_status st_fail_input(const char *path, const char *what)
{
	int missing = errno == ENOENT || errno == ENOTDIR;
	enum st_status status = st_fail_errno("%s: %s", path, what);

	return missing ? ST_ERR_NOINPUT : status;
}

enum st_status st_fail_copy(enum st_status status, const char *text)
{
	if (text != message)
		snprintf(message, sizeof message, "%s", text);
	return status;
}

const char *st_message(void)
{
	return message[0] ? message : "no message was recorded";
}

const char *st_status_name(enum st_status status)
{
	return (unsigned)status < ST_STATUS_COUNT ? statuses[status].name : "unknown status";
}

int st_exit_code(enum st_status status)
{
	return (unsigned)status < ST_STATUS_COUNT ? statuses[status].exit_code : EX_SOFTWARE;
}
