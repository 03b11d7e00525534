/*
 * Fuzz targets: what others can write is read with whatever bytes, and nothing but a refusal may come of it.
 *
 * A target is one file fuzz_NAME.c with the two functions below.  It runs in two ways:
 *   make fuzz T=NAME SECONDS=600    libFuzzer (clang) searches, guided by coverage
 *   build/tests/test_fuzz_NAME      the seeds, and some thousand mutations of them drawn with a fixed seed: part of `make check` (replay.c)
 */
#ifndef SYNCTRAIN_TESTS_FUZZ_H
#define SYNCTRAIN_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/status.h"

#define FUZZ_MOST_BYTES 16384

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Writes the number I of the inputs to start from, none longer than FUZZ_MOST_BYTES; returns its length, 0 when there is none. */
size_t fuzz_seed(unsigned i, uint8_t *data);

/* Mutations drawn by replay.c; a target may have a number of its own. */
extern unsigned fuzz_runs;

/* What must hold whatever the input. */
#define FUZZ_REQUIRE(condition)                                                                                  \
	do {                                                                                                     \
		if (!(condition)) {                                                                              \
			fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, st_message());       \
			abort();                                                                                 \
		}                                                                                                \
	} while (0)

/* Takes an input apart from its front; zeros once it is used up. */
struct fuzz_input {
	const uint8_t *data;
	size_t left;
};

static inline size_t fuzz_take(struct fuzz_input *input, void *where, size_t bytes)
{
	size_t n = bytes < input->left ? bytes : input->left;

	memset(where, 0, bytes);
	if (n)
		memcpy(where, input->data, n);
	input->data += n;
	input->left -= n;
	return n;
}

static inline uint8_t fuzz_u8(struct fuzz_input *input)
{
	uint8_t value;

	fuzz_take(input, &value, sizeof value);
	return value;
}

static inline uint16_t fuzz_u16(struct fuzz_input *input)
{
	uint16_t value;

	fuzz_take(input, &value, sizeof value);
	return value;
}

static inline uint64_t fuzz_u64(struct fuzz_input *input)
{
	uint64_t value;

	fuzz_take(input, &value, sizeof value);
	return value;
}

/* A file with these contents, for functions that want a path; the same path each time. */
static inline const char *fuzz_file(const void *data, size_t bytes)
{
	static char path[32];
	static int fd = -1;

	if (fd < 0) {
		fd = memfd_create("fuzz", MFD_CLOEXEC);
		FUZZ_REQUIRE(fd >= 0);
		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	}
	FUZZ_REQUIRE(!ftruncate(fd, 0) && (!bytes || pwrite(fd, data, bytes, 0) == (ssize_t)bytes));
	return path;
}

/* A message is one line of printable text, whatever it quotes. */
static inline void fuzz_check_message(void)
{
	for (const char *p = st_message(); *p; p++)
		FUZZ_REQUIRE((unsigned char)*p >= ' ' && *p != 0x7f);
}

#endif
