/* CHECK for tests: prints what failed and where, and goes on; such programs end with `return check_result();`.  REQUIRE ends at once. */
#ifndef SYNCTRAIN_TESTS_CHECK_H
#define SYNCTRAIN_TESTS_CHECK_H

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/status.h"

static atomic_int check_failures __attribute__((unused));
static atomic_int check_count __attribute__((unused));

#define CHECK(condition, ...)                                                                   \
	do {                                                                                    \
		atomic_fetch_add_explicit(&check_count, 1, memory_order_relaxed);               \
		if (!(condition)) {                                                             \
			atomic_fetch_add_explicit(&check_failures, 1, memory_order_relaxed);    \
			fprintf(stderr, "%s:%d: failed: %s: ", __FILE__, __LINE__, #condition); \
			fprintf(stderr, " " __VA_ARGS__);                                       \
			fputc('\n', stderr);                                                    \
		}                                                                               \
	} while (0)

#define CHECK_OK(expression)                                                                                       \
	do {                                                                                                       \
		enum st_status check_status_ = (expression);                                                       \
		CHECK(check_status_ == ST_OK, "%s: %s", st_status_name(check_status_), st_message());              \
	} while (0)

/* As CHECK, and ends the program: where nothing that follows would make sense. */
#define REQUIRE(condition)                                                                                           \
	do {                                                                                                         \
		if (!(condition)) {                                                                                  \
			fprintf(stderr, "%s:%d: failed: %s (%s)\n", __FILE__, __LINE__, #condition, st_message());    \
			exit(1);                                                                                     \
		}                                                                                                    \
	} while (0)

/* EXPRESSION fails with STATUS and its message holds TEXT. */
#define CHECK_FAILS(expression, status, text)                                                                                  \
	do {                                                                                                                   \
		enum st_status check_status_ = (expression);                                                                   \
		CHECK(check_status_ == (status), "seen %s, expected %s", st_status_name(check_status_), st_status_name(status)); \
		CHECK(strstr(st_message(), (text)), "message '%s' lacks '%s'", st_message(), (text));                          \
	} while (0)

/* A test that is run by hand leaves no flight recorders in /tmp; tests/run says where they go. */
__attribute__((constructor)) static void check_recorders_off(void)
{
	setenv("SYNCTRAIN_RECORDER", "off", 0);
}

static inline int check_result(void)
{
	printf("%d checks, %d failed\n", atomic_load(&check_count), atomic_load(&check_failures));
	return atomic_load(&check_failures) || !atomic_load(&check_count);
}

#endif
