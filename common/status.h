/*
 * Status codes and the one message that goes with a failure.
 *
 * Every fallible function of synctrain returns enum st_status. The first detector of a failure calls st_fail(),
 * which stores one line (who, what, seen, expected) in a thread-local buffer and returns the status; callers pass
 * the status up unchanged and add no second line.  The program's top level prints st_message() once.
 */
#ifndef SYNCTRAIN_COMMON_STATUS_H
#define SYNCTRAIN_COMMON_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif
/* Part of libcomm's interface: see comm.h. */
#pragma GCC visibility push(default)

enum st_status {
	ST_OK = 0,
	ST_PENDING,         /* not an error: a non-blocking operation has not finished */
	ST_ERR_USAGE,       /* command line or API misuse */
	ST_ERR_CONFIG,      /* a configuration file or key */
	ST_ERR_DATA,        /* an input file is malformed, truncated, or fails its checksum */
	ST_ERR_NOINPUT,     /* an input file or directory does not exist */
	ST_ERR_NOMEM,       /* memory, descriptors or disk space ran out */
	ST_ERR_SYSTEM,      /* an operating system call failed */
	ST_ERR_UNAVAILABLE, /* a service, device or library is not there */
	ST_ERR_PERMISSION,  /* refused by ownership, mode or authentication */
	ST_ERR_TIMEOUT,     /* a deadline passed */
	ST_ERR_ABORTED,     /* another rank failed; the message names it */
	ST_ERR_PROTOCOL,    /* a peer sent bytes that no correct peer sends */
	ST_ERR_MISMATCH,    /* ranks disagree on what they are doing */
	ST_ERR_DIVERGED,    /* replicas differ, or a non-finite value appeared */
	ST_ERR_INTERRUPTED, /* stopped by signal or time limit after saving state: try again */
	ST_ERR_INTERNAL,    /* a bug in synctrain */
	ST_STATUS_COUNT
};

/* Stores the message of a failure (printf-style, one line, no newline) for this thread and returns STATUS. */
enum st_status st_fail(enum st_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* As st_fail(ST_ERR_SYSTEM or a closer status chosen from errno), with ": strerror(errno)" appended. */
enum st_status st_fail_errno(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* As st_fail_errno for an input that the user named and that can't be opened: ST_ERR_NOINPUT when it does not exist. */
enum st_status st_fail_input(const char *path, const char *what);

/* The message of this thread's last failure; never NULL; valid until the thread's next st_fail. */
const char *st_message(void);

/* Copies a message from another thread into this one (a helper thread failed, the caller reports). */
enum st_status st_fail_copy(enum st_status status, const char *message);

/* Short constant name of a status, e.g. "timeout"; never NULL, also for values that are no status. */
const char *st_status_name(enum st_status status);

/* The sysexits.h code for a status: 64 usage, 65 data, 66 no such input, 69 unavailable, 70 internal, 71 system, 75 try again,
 * 76 protocol, 77 permission, 78 configuration; 0 for ST_OK; 1 for a failure of the job itself (aborted, diverged, mismatch). */
int st_exit_code(enum st_status status);

/* Returns the status of EXPR from the calling function when it is not ST_OK. */
#define ST_TRY(expr)                                     \
	do {                                             \
		enum st_status st_try_status_ = (expr);  \
		if (st_try_status_ != ST_OK)             \
			return st_try_status_;           \
	} while (0)

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
