#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bootstrap.h"
#include "common/clock.h"
#include "common/digest.h"

/* Where the ranks of one launch meet. Freed by the last rank that finishes. */
struct meeting {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	uint32_t size, arrived, present; /* present: ranks that have not finished */
	size_t bytes;                    /* of a record; set by the first to arrive */
	uint8_t *records;
	bool *has_arrived, *has_left;
};

struct thread_rank {
	struct bootstrap public; /* first: finish() and exchange() get a pointer to it */
	struct meeting *meeting;
};

static uint32_t first_missing(const struct meeting *meeting)
{
	for (uint32_t r = 0; r < meeting->size; r++)
		if (!meeting->has_arrived[r])
			return r;
	return meeting->size;
}

/* Waits for the others. Called with the lock held. */
static enum st_status wait_for_all(struct meeting *meeting, int64_t timeout_ms)
{
	struct st_deadline deadline = st_deadline_in_ms(timeout_ms);

	while (meeting->arrived < meeting->size) {
		for (uint32_t r = 0; r < meeting->size; r++)
			if (meeting->has_left[r] && !meeting->has_arrived[r])
				return st_fail(ST_ERR_UNAVAILABLE, "rank %u left before the first exchange", r);
		int sleep_ms = st_deadline_poll_ms(&deadline);
		if (sleep_ms == 0)
			return st_fail(ST_ERR_TIMEOUT, "rank %u did not come to the first exchange within %lld ms", first_missing(meeting),
				       (long long)timeout_ms);
		struct timespec until;
		clock_gettime(CLOCK_MONOTONIC, &until);
		until.tv_nsec += sleep_ms * ST_NS_PER_MS;
		until.tv_sec += until.tv_nsec / ST_NS_PER_S;
		until.tv_nsec %= ST_NS_PER_S;
		pthread_cond_timedwait(&meeting->changed, &meeting->lock, &until);
	}
	return ST_OK;
}

static enum st_status exchange(struct bootstrap *bootstrap, const void *mine, size_t bytes, int64_t timeout_ms, void *all)
{
	struct meeting *meeting = ((struct thread_rank *)bootstrap)->meeting;
	enum st_status status = ST_OK;

	pthread_mutex_lock(&meeting->lock);
	if (!meeting->records) {
		meeting->records = calloc(meeting->size, bytes ? bytes : 1);
		meeting->bytes = bytes;
	}
	if (!meeting->records)
		status = st_fail(ST_ERR_NOMEM, "no memory for %u records of %zu bytes", meeting->size, bytes);
	else if (meeting->has_arrived[bootstrap->rank])
		status = st_fail(ST_ERR_USAGE, "rank %u exchanges a second time", bootstrap->rank);
	else if (meeting->bytes != bytes)
		status = st_fail(ST_ERR_MISMATCH, "rank %u exchanges %zu bytes, another rank %zu", bootstrap->rank, bytes, meeting->bytes);
	if (status == ST_OK) {
		memcpy(meeting->records + bootstrap->rank * bytes, mine, bytes);
		meeting->has_arrived[bootstrap->rank] = true;
		meeting->arrived++;
		pthread_cond_broadcast(&meeting->changed);
		status = wait_for_all(meeting, timeout_ms);
	}
	if (status == ST_OK)
		memcpy(all, meeting->records, meeting->size * bytes);
	pthread_mutex_unlock(&meeting->lock);
	return status;
}

static void free_meeting(struct meeting *meeting)
{
	if (meeting->records)
		st_wipe(meeting->records, meeting->size * meeting->bytes); /* rank 0's record holds the job's secret */
	free(meeting->records);
	free(meeting->has_arrived);
	free(meeting->has_left);
	pthread_cond_destroy(&meeting->changed);
	pthread_mutex_destroy(&meeting->lock);
	free(meeting);
}

static void finish(struct bootstrap *bootstrap)
{
	struct meeting *meeting = ((struct thread_rank *)bootstrap)->meeting;

	pthread_mutex_lock(&meeting->lock);
	meeting->has_left[bootstrap->rank] = true;
	bool last = --meeting->present == 0;
	pthread_cond_broadcast(&meeting->changed);
	pthread_mutex_unlock(&meeting->lock);
	if (last)
		free_meeting(meeting);
	free(bootstrap);
}

enum st_status bootstrap_threads(uint32_t size, const char *const *nodes, struct bootstrap **bootstraps)
{
	struct meeting *meeting = calloc(1, sizeof *meeting);
	pthread_condattr_t attributes;
	char job[BOOTSTRAP_JOB_BYTES], suffix[17];
	uint8_t random[8];
	enum st_status status;

	if (size == 0) {
		free(meeting);
		return st_fail(ST_ERR_USAGE, "seen 0 ranks, expected at least 1");
	}
	if (!meeting)
		return st_fail(ST_ERR_NOMEM, "no memory for the bootstrap");
	pthread_mutex_init(&meeting->lock, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&meeting->changed, &attributes);
	pthread_condattr_destroy(&attributes);
	meeting->size = meeting->present = size;
	meeting->has_arrived = calloc(size, sizeof *meeting->has_arrived);
	meeting->has_left = calloc(size, sizeof *meeting->has_left);
	memset(bootstraps, 0, size * sizeof *bootstraps);
	status = st_random_bytes(random, sizeof random);
	if (status != ST_OK)
		goto free_all;
	if (!meeting->has_arrived || !meeting->has_left) {
		status = st_fail(ST_ERR_NOMEM, "no memory for the bootstrap");
		goto free_all;
	}
	st_hex(random, sizeof random, suffix);
	snprintf(job, sizeof job, "threads.%s", suffix);
	for (uint32_t r = 0; r < size; r++) {
		struct thread_rank *rank = calloc(1, sizeof *rank);
		if (!rank) {
			status = st_fail(ST_ERR_NOMEM, "no memory for the bootstrap");
			goto free_all;
		}
		rank->public.rank = r;
		rank->public.size = size;
		rank->public.exchange = exchange;
		rank->public.finish = finish;
		rank->meeting = meeting;
		snprintf(rank->public.node, sizeof rank->public.node, "%s", nodes ? nodes[r] : "local");
		strcpy(rank->public.job, job);
		bootstraps[r] = &rank->public;
	}
	return ST_OK;

free_all:
	for (uint32_t r = 0; r < size; r++) {
		free(bootstraps[r]);
		bootstraps[r] = NULL;
	}
	free_meeting(meeting);
	return status;
}
