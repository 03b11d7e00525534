/* Builds step record files of any content, sound or not, and whole runs with known stragglers. */
#ifndef SYNCTRAIN_TESTS_RECORD_FILES_H
#define SYNCTRAIN_TESTS_RECORD_FILES_H

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trainer/records_format.h"

struct image {
	uint8_t *data;
	size_t bytes;
};

static inline void image_free(struct image *image)
{
	free(image->data);
	*image = (struct image){0};
}

/* Appends a sealed block. */
static inline void image_block(struct image *image, enum records_kind kind, uint64_t launch, const void *payload, size_t bytes)
{
	struct records_block *block = malloc(sizeof *block + bytes);

	image->data = realloc(image->data, image->bytes + sizeof *block + bytes);
	if (!block || !image->data)
		abort();
	if (bytes)
		memcpy(block + 1, payload, bytes);
	train_records_seal(block, kind, launch, bytes);
	memcpy(image->data + image->bytes, block, sizeof *block + bytes);
	image->bytes += sizeof *block + bytes;
	free(block);
}

/* runs: the host table, may be NULL when run_count is 0. */
static inline void image_session(struct image *image, uint64_t launch, int64_t wall_ns, const char *job, uint32_t ranks,
				 const struct train_hosts *runs, uint32_t run_count)
{
	size_t bytes = sizeof(struct records_session) + run_count * sizeof *runs;
	uint8_t *payload = calloc(1, bytes);
	struct records_session session = {.wall_ns = wall_ns, .record_bytes = TRAIN_RECORD_BYTES, .ranks = ranks, .host_runs = run_count};

	if (!payload)
		abort();
	snprintf(session.job, sizeof session.job, "%s", job);
	strcpy(session.node, "node");
	memcpy(payload, &session, sizeof session);
	if (run_count)
		memcpy(payload + sizeof session, runs, run_count * sizeof *runs);
	image_block(image, RECORDS_SESSION, launch, payload, bytes);
	free(payload);
}

__attribute__((format(printf, 2, 3))) static inline void image_save(const struct image *image, const char *format, ...)
{
	char path[512];
	va_list args;

	va_start(args, format);
	vsnprintf(path, sizeof path, format, args);
	va_end(args);
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (fd < 0 || (image->bytes && write(fd, image->data, image->bytes) != (ssize_t)image->bytes))
		abort();
	close(fd);
}

/* A record whose phases add up: busy is split 1 : 3 : 6 over data, forward, backward, the rest of the step is wait. */
static inline struct train_record record_of(uint64_t step, uint32_t rank, int64_t busy_ns, int64_t step_ns)
{
	struct train_record record = {
		.step = step,
		.rank = rank,
		.start_wall_ns = 1700000000000000000 + (int64_t)step * 20000000,
		.step_ns = step_ns,
		.cpu_ns = busy_ns,
		.tokens = 1000,
		.reduced_bytes = 4096,
		.loss = 10.0 / (1.0 + (double)step),
	};
	record.phase_ns[TRAIN_PHASE_DATA] = busy_ns / 10;
	record.phase_ns[TRAIN_PHASE_FORWARD] = busy_ns / 10 * 3;
	record.phase_ns[TRAIN_PHASE_BACKWARD] = busy_ns - busy_ns / 10 * 4;
	record.phase_ns[TRAIN_PHASE_WAIT] = step_ns - busy_ns;
	return record;
}

/* busy_ns of a rank in a step; 0: no record. */
typedef int64_t busy_of(uint64_t step, uint32_t rank);

/* A run of `ranks` ranks, `per_host` on each of node1, node2, ..., as its writers would have left it: one file per node. */
static inline void save_run(const char *directory, uint64_t launch, const char *job, uint32_t ranks, uint32_t per_host, uint64_t first_step,
			    uint64_t steps, busy_of *busy)
{
	struct image image = {0};

	mkdir(directory, 0755);
	for (uint32_t first = 0; first < ranks; first += per_host) {
		uint32_t last = first + per_host < ranks ? first + per_host : ranks;
		struct train_hosts runs = {.first = first, .count = last - first};
		struct train_record *records = calloc((size_t)steps * per_host, sizeof *records);
		size_t n = 0;

		if (!records)
			abort();
		snprintf(runs.host, sizeof runs.host, "node%u", first / per_host + 1);
		image_session(&image, launch, (int64_t)launch * 1000000000, job, ranks, &runs, 1);
		for (uint64_t step = first_step; step < first_step + steps; step++) {
			int64_t longest = 0;
			for (uint32_t r = 0; r < ranks; r++)
				longest = busy(step, r) > longest ? busy(step, r) : longest;
			for (uint32_t r = first; r < last; r++)
				if (busy(step, r))
					records[n++] = record_of(step, r, busy(step, r), longest + longest / 10);
		}
		for (size_t at = 0; at < n; at += 100)
			image_block(&image, RECORDS_STEPS, launch, records + at, (n - at < 100 ? n - at : 100) * sizeof *records);
		image_save(&image, "%s/steps-%s-%s.rec", directory, job, runs.host);
		image_free(&image);
		free(records);
	}
}

/* A small deterministic noise in [0, limit). */
static inline int64_t noise(uint64_t step, uint32_t rank, int64_t limit)
{
	uint64_t x = (step * 1000003 + rank + 1) * 0x9e3779b97f4a7c15u;

	x ^= x >> 29;
	x *= 0xbf58476d1ce4e5b9u;
	x ^= x >> 32;
	return (int64_t)(x % (uint64_t)limit);
}

#endif
