/*
 * Shards of given sizes: reduce_scatter_v and all_gather_v over ranks as threads, by every algorithm's name, in shapes that real partitions
 * have and in some that none should; the plan cache tells them apart; ranks that disagree are told so.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "libcomm/bootstrap.h"
#include "libcomm/comm.h"
#include "libcomm/number16.h"

#define MAX_RANKS 15

struct job;
typedef void body(struct job *job, uint32_t rank, struct comm *comm);

struct job {
	uint32_t size;
	struct bootstrap *bootstraps[MAX_RANKS];
	struct comm_options options;
	body *body;
	char texts[MAX_RANKS][1024];
};

struct thread {
	struct job *job;
	uint32_t rank;
};

static void *rank_main(void *argument)
{
	struct thread *thread = argument;
	struct comm *comm = NULL;
	REQUIRE(comm_create_over(thread->job->bootstraps[thread->rank], &thread->job->options, &comm) == ST_OK);
	thread->job->body(thread->job, thread->rank, comm);
	comm_free(comm);
	return NULL;
}

static void run_job(struct job *job, uint32_t size, const char *const *nodes, body *work)
{
	pthread_t threads[MAX_RANKS];
	struct thread arguments[MAX_RANKS];
	job->size = size;
	job->body = work;
	REQUIRE(bootstrap_threads(size, nodes, job->bootstraps) == ST_OK);
	for (uint32_t r = 0; r < size; r++) {
		arguments[r] = (struct thread){job, r};
		REQUIRE(!pthread_create(&threads[r], NULL, rank_main, &arguments[r]));
	}
	for (uint32_t r = 0; r < size; r++)
		REQUIRE(!pthread_join(threads[r], NULL));
	for (uint32_t r = 0; r < size; r++)
		job->bootstraps[r]->finish(job->bootstraps[r]);
}

static void finish(struct comm *comm, struct comm_request *request)
{
	if (comm_wait(comm, &request) != ST_OK) {
		fprintf(stderr, "rank %" PRIu32 ": %s\n", comm_rank(comm), st_message());
		exit(1);
	}
}

static float value(uint32_t rank, size_t i)
{
	return (float)((i * 7 + rank * 13) % 1009) - 300.0f;
}

#define EVERYWHERE(what, got, expected)                                                                                                         \
	do {                                                                                                                                    \
		if ((got) != (expected)) {                                                                                                      \
			fprintf(stderr, "rank %" PRIu32 " of %" PRIu32 ": %s, element %zu: %f, expected %f\n", rank, size, what, i, (double)(got), \
				(double)(expected));                                                                                            \
			exit(1);                                                                                                                \
		}                                                                                                                               \
	} while (0)

static void scatter_and_gather(struct comm *comm, uint32_t rank, uint32_t size, const size_t *counts)
{
	struct comm_request *request;
	size_t total = 0, before = 0, own = counts[rank], i;
	for (uint32_t r = 0; r < size; r++) {
		before += r < rank ? counts[r] : 0;
		total += counts[r];
	}
	float *whole = malloc(total * sizeof *whole + 64), *shard = malloc(own * sizeof *shard + 64);
	REQUIRE(whole && shard);

	for (int in_place = 0; in_place < 2; in_place++) {
		float *result = in_place ? whole + before : shard;
		for (i = 0; i < total; i++)
			whole[i] = value(rank, i);
		for (i = 0; i < own; i++)
			shard[i] = -7e7f;
		REQUIRE(comm_reduce_scatter_v(comm, whole, result, counts, COMM_F32, COMM_SUM, &request) == ST_OK);
		finish(comm, request);
		for (i = 0; i < own; i++) {
			float sum = 0;
			for (uint32_t r = 0; r < size; r++)
				sum += value(r, before + i);
			EVERYWHERE("reduce_scatter_v", result[i], sum);
		}

		float *mine = in_place ? whole + before : shard;
		for (i = 0; i < total; i++)
			whole[i] = -7e7f;
		for (i = 0; i < own; i++)
			mine[i] = value(rank, i);
		REQUIRE(comm_all_gather_v(comm, mine, whole, counts, COMM_F32, &request) == ST_OK);
		finish(comm, request);
		i = 0;
		for (uint32_t r = 0; r < size; r++)
			for (size_t k = 0; k < counts[r]; k++, i++)
				EVERYWHERE("all_gather_v", whole[i], value(r, k));
	}

	/* Partial sums wider than the elements. */
	uint16_t *half = (uint16_t *)whole;
	for (i = 0; i < total; i++)
		half[i] = bf16_from_f32((float)((i + rank) % 3));
	REQUIRE(comm_reduce_scatter_v(comm, half, half + before, counts, COMM_BF16, COMM_SUM, &request) == ST_OK);
	finish(comm, request);
	for (i = 0; i < own; i++) {
		float sum = 0;
		for (uint32_t r = 0; r < size; r++)
			sum += (float)((before + i + r) % 3);
		EVERYWHERE("reduce_scatter_v of bf16", f32_from_bf16(half[before + i]), sum);
	}
	free(whole);
	free(shard);
}

static void every_shape(struct job *job, uint32_t rank, struct comm *comm)
{
	const uint32_t size = job->size;
	size_t counts[MAX_RANKS];
	for (unsigned shape = 0; shape < 9; shape++) {
		for (uint32_t r = 0; r < size; r++) {
			const size_t shards[] = {
				0,                                 /* nothing at all */
				r == size / 2 ? 5000 : 0,          /* one has all */
				r == 0 ? 1 : 0,
				(size_t)r * 37,                    /* a staircase, rank 0 empty */
				(size - r) * (size_t)701,
				1000 + (r < 3),                    /* a remainder */
				r % 2 ? 0 : 900,                   /* every other one empty */
				17,                                /* all alike: the plain collective */
				r == size - 1 ? 40000 : 1 + r % 3, /* many chunks beside crumbs */
			};
			counts[r] = shards[shape];
		}
		scatter_and_gather(comm, rank, size, counts);
	}
	/* The same total, longest shard and own shard, other shards elsewhere: another plan, and the first one is still there. */
	for (int turn = 0; turn < 4 && size >= 3; turn++) {
		for (uint32_t r = 0; r < size; r++)
			counts[r] = 50;
		counts[turn % 2 ? 1 : 2] = 90;
		counts[turn % 2 ? 2 : 1] = 10;
		scatter_and_gather(comm, rank, size, counts);
	}
}

static void bad_calls(struct job *job, uint32_t rank, struct comm *comm)
{
	struct comm_request *request = NULL;
	float x[64] = {0};
	size_t counts[MAX_RANKS];
	(void)rank;
	for (uint32_t r = 0; r < job->size; r++)
		counts[r] = r;
	CHECK_FAILS(comm_all_gather_v(comm, x, x + 8, NULL, COMM_F32, &request), ST_ERR_USAGE, "no counts");
	CHECK_FAILS(comm_all_gather_v(comm, x, NULL, counts, COMM_F32, &request), ST_ERR_USAGE, "no buffer");
	CHECK_FAILS(comm_reduce_scatter_v(comm, NULL, x, counts, COMM_F32, COMM_SUM, &request), ST_ERR_USAGE, "no buffer");
	counts[0] = SIZE_MAX / 8;
	CHECK_FAILS(comm_reduce_scatter_v(comm, x, x, counts, COMM_F32, COMM_SUM, &request), ST_ERR_USAGE, "more than memory can hold");
	counts[0] = SIZE_MAX / 16;
	counts[1] = SIZE_MAX - 5;
	CHECK_FAILS(comm_all_gather_v(comm, x, x, counts, COMM_U8, &request), ST_ERR_USAGE, "more than memory can hold");
	CHECK(!request);
}

static void disagree(struct job *job, uint32_t rank, struct comm *comm)
{
	struct comm_request *request;
	float input[400] = {0}, output[400];
	/* Totals and the lengths that rank 0 and 1 exchange are the same. */
	size_t counts[3] = {100, 100, 100};
	counts[0] += 50;
	counts[rank == 2 ? 2 : 1] -= 50;
	REQUIRE(comm_reduce_scatter_v(comm, input, output, counts, COMM_F32, COMM_SUM, &request) == ST_OK);
	enum st_status status = comm_wait(comm, &request);
	REQUIRE(status == ST_ERR_MISMATCH || status == ST_ERR_ABORTED);
	snprintf(job->texts[rank], sizeof job->texts[rank], "%s", st_message());
}

static void ranks_that_disagree_are_told(unsigned transports)
{
	struct job job = {0};
	REQUIRE(comm_options_init(&job.options) == ST_OK);
	job.options.transports = transports;
	run_job(&job, 3, NULL, disagree);
	for (uint32_t r = 0; r < 3; r++)
		CHECK(strstr(job.texts[r], "disagree about the sizes of the shards") && strstr(job.texts[r], "300 f32 in shards ") &&
			      strstr(job.texts[r], "rank 2"),
		      "rank %" PRIu32 ": '%s'", r, job.texts[r]);
}

int main(void)
{
	static const char *const seven_and_eight[] = {"a", "a", "a", "a", "a", "a", "a", "b", "b", "b", "b", "b", "b", "b", "b"};
	static const char *const scattered[] = {"a", "b", "a", "c", "b", "a", "c"};
	static const struct {
		uint32_t size;
		const char *const *nodes;
		unsigned transports;
	} worlds[] = {{1, NULL, 3}, {2, NULL, 1}, {2, NULL, 2}, {3, NULL, 1}, {5, NULL, 2}, {7, scattered, 3}, {15, seven_and_eight, 3}};
	for (int algorithm = 0; algorithm < COMM_ALGORITHMS; algorithm++)
		for (size_t w = 0; w < sizeof worlds / sizeof *worlds; w++) {
			struct job job = {0};
			if (worlds[w].size == 15 && algorithm != COMM_ALGORITHM_AUTO && algorithm != COMM_ALGORITHM_HIERARCHICAL)
				continue;
			REQUIRE(comm_options_init(&job.options) == ST_OK);
			job.options.algorithm = (enum comm_algorithm)algorithm;
			job.options.transports = worlds[w].transports;
			if (w % 2) {
				job.options.chunk_bytes = 1024;
				job.options.slots = 2;
			}
			run_job(&job, worlds[w].size, worlds[w].nodes, every_shape);
		}
	struct job job = {0};
	REQUIRE(comm_options_init(&job.options) == ST_OK);
	run_job(&job, 2, NULL, bad_calls);
	ranks_that_disagree_are_told(COMM_TRANSPORT_SHM);
	ranks_that_disagree_are_told(COMM_TRANSPORT_TCP);
	return check_result();
}
