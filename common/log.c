#include "log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char speaker_prefix[160];
static atomic_int threshold = -1;

/* -1: set, and none of the levels. */
static int level_from_environment(void)
{
	static const char *const names[] = {"error", "warn", "info", "debug"};
	const char *value = getenv("SYNCTRAIN_LOG");

	if (!value || !*value)
		return ST_LOG_WARN;
	for (int i = 0; i < 4; i++)
		if (!strcmp(value, names[i]))
			return i;
	return -1;
}

enum st_status st_log_check(void)
{
	if (level_from_environment() >= 0)
		return ST_OK;
	return st_fail(ST_ERR_CONFIG, "SYNCTRAIN_LOG: '%.64s', expected error, warn, info or debug", getenv("SYNCTRAIN_LOG"));
}

void st_log_set_speaker(const char *speaker)
{
	if (speaker && *speaker)
		snprintf(speaker_prefix, sizeof speaker_prefix, "%s: ", speaker);
	else
		speaker_prefix[0] = 0;
}

void st_log_set_level(enum st_log_level level)
{
	atomic_store_explicit(&threshold, (int)level, memory_order_relaxed);
}

void st_log(enum st_log_level level, const char *format, ...)
{
	char line[1536];
	int limit = atomic_load_explicit(&threshold, memory_order_relaxed), used, text;
	va_list args;

	if (limit < 0) {
		limit = level_from_environment();
		atomic_store_explicit(&threshold, limit < 0 ? ST_LOG_WARN : limit, memory_order_relaxed);
		/* In a program that has not looked at its start (st_log_check). */
		if (limit < 0)
			st_log(ST_LOG_WARN, "SYNCTRAIN_LOG: '%.64s', expected error, warn, info or debug: taken as warn", getenv("SYNCTRAIN_LOG"));
		limit = limit < 0 ? ST_LOG_WARN : limit;
	}
	if ((int)level > limit)
		return;
	used = snprintf(line, sizeof line, "synctrain: %s%s", speaker_prefix, level == ST_LOG_WARN ? "warning: " : "");
	va_start(args, format);
	text = vsnprintf(line + used, sizeof line - (size_t)used - 1, format, args);
	va_end(args);
	if (text < 0)
		return;
	for (char *p = line + used; *p; p++)
		if ((unsigned char)*p < ' ' || *p == 0x7f)
			*p = '?';
	size_t length = strlen(line);
	line[length++] = '\n';
	/* A log line that can't be written has nowhere to be reported. */
	if (write(STDERR_FILENO, line, length) < 0)
		return;
}
