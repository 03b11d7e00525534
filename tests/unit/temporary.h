/* A directory of a test's own under /tmp, gone at its end, and small files in it. */
#ifndef SYNCTRAIN_TESTS_TEMPORARY_H
#define SYNCTRAIN_TESTS_TEMPORARY_H

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

static char temporary_directory[64];

static inline int temporary_remove_one(const char *path, const struct stat *info, int kind, struct FTW *ftw)
{
	(void)info;
	(void)kind;
	(void)ftw;
	return remove(path);
}

static inline void temporary_remove(void)
{
	if (*temporary_directory)
		nftw(temporary_directory, temporary_remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static inline const char *temporary_make(void)
{
	strcpy(temporary_directory, "/tmp/synctrain-test-XXXXXX");
	if (!mkdtemp(temporary_directory)) {
		perror("mkdtemp");
		exit(1);
	}
	atexit(temporary_remove);
	return temporary_directory;
}

/* Path of NAME in the directory; valid until eight calls later. */
static inline const char *temporary_path(const char *name)
{
	static char paths[8][256];
	static unsigned next;
	char *path = paths[next++ % 8];

	snprintf(path, sizeof paths[0], "%s/%s", temporary_directory, name);
	return path;
}

static inline const char *temporary_file(const char *name, const void *data, size_t bytes)
{
	const char *path = temporary_path(name);
	FILE *file = fopen(path, "w");

	CHECK(file && fwrite(data, 1, bytes, file) == bytes && fclose(file) == 0, "%s", path);
	return path;
}

#endif
