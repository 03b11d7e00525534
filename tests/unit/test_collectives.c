/*
 * Every collective, over ranks as threads: world sizes 1..9, nodes of several shapes, shared memory, TCP and both, counts that are
 * zero, tiny, prime and large, in place and not, many in flight; and what every rank is told when one disagrees, stays away or goes.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "common/clock.h"
#include "libcomm/bootstrap.h"
#include "libcomm/comm.h"

#define MAX_RANKS 9
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define FEWER 1 /* worlds and less memory for each: test_matrix has every algorithm in other worlds as well */
#else
#define FEWER 0
#endif


struct job;
typedef void body(struct job *job, uint32_t rank, struct comm *comm);

struct job {
	uint32_t size;
	struct bootstrap *bootstraps[MAX_RANKS];
	struct comm_options options;
	body *body;
	pthread_barrier_t all; /* outside the library */
	void *context;
	char texts[MAX_RANKS][1024];
};

struct thread {
	struct job *job;
	uint32_t rank;
};

static void *rank_main(void *argument)
{
	struct thread *thread = argument;
	struct job *job = thread->job;
	struct comm *comm = NULL;
	REQUIRE(comm_create_over(job->bootstraps[thread->rank], &job->options, &comm) == ST_OK);
	REQUIRE(comm_rank(comm) == thread->rank && comm_size(comm) == job->size);
	job->body(job, thread->rank, comm);
	comm_free(comm);
	return NULL;
}

static void run_job(struct job *job, uint32_t size, const char *const *nodes, unsigned transports, body *work)
{
	pthread_t threads[MAX_RANKS];
	struct thread arguments[MAX_RANKS];
	if (!job->options.slots)
		REQUIRE(comm_options_init(&job->options) == ST_OK);
	job->options.transports = transports;
	job->size = size;
	job->body = work;
	REQUIRE(bootstrap_threads(size, nodes, job->bootstraps) == ST_OK || (fprintf(stderr, "%s\n", st_message()), 0));
	REQUIRE(!pthread_barrier_init(&job->all, NULL, size));
	for (uint32_t r = 0; r < size; r++) {
		arguments[r] = (struct thread){job, r};
		REQUIRE(!pthread_create(&threads[r], NULL, rank_main, &arguments[r]));
	}
	for (uint32_t r = 0; r < size; r++)
		REQUIRE(!pthread_join(threads[r], NULL));
	for (uint32_t r = 0; r < size; r++)
		job->bootstraps[r]->finish(job->bootstraps[r]);
	pthread_barrier_destroy(&job->all);
}

/* Whole numbers, so that sums are exact in any order. */
static float value(uint32_t rank, size_t i)
{
	return (float)((i * 7 + rank * 13) % 1009) - 300.0f;
}

static float sum_of(uint32_t size, size_t i)
{
	float sum = 0;
	for (uint32_t r = 0; r < size; r++)
		sum += value(r, i);
	return sum;
}

static void finish(struct comm *comm, struct comm_request *request)
{
	if (comm_wait(comm, &request) != ST_OK) {
		fprintf(stderr, "rank %u: %s\n", comm_rank(comm), st_message());
		exit(1);
	}
	REQUIRE(!request);
}

static float *fresh(size_t count)
{
	float *buffer = malloc(count * sizeof *buffer + 64);
	REQUIRE(buffer);
	for (size_t i = 0; i < count; i++)
		buffer[i] = -77777.0f;
	return buffer;
}

#define SAME(got, expected, what)                                                                                                         \
	do {                                                                                                                              \
		if ((got) != (expected)) {                                                                                                \
			fprintf(stderr, "rank %u of %u: %s of %zu, element %zu: %f, expected %f\n", rank, size, what, count, i,           \
				(double)(got), (double)(expected));                                                                       \
			exit(1);                                                                                                          \
		}                                                                                                                         \
	} while (0)

static void all_collectives(struct job *job, uint32_t rank, struct comm *comm, size_t count)
{
	uint32_t size = job->size;
	struct comm_request *request;
	float *input = fresh(count * size), *output = fresh(count * size);
	for (size_t i = 0; i < count * size; i++)
		input[i] = value(rank, i);

	REQUIRE(comm_allreduce(comm, input, output, count, COMM_F32, COMM_SUM, &request) == ST_OK);
	finish(comm, request);
	for (size_t i = 0; i < count; i++)
		SAME(output[i], sum_of(size, i), "allreduce");
	for (size_t i = 0; i < count; i++)
		SAME(input[i], value(rank, i), "input of allreduce");

	REQUIRE(comm_reduce_scatter(comm, input, output, count, COMM_F32, COMM_SUM, &request) == ST_OK);
	finish(comm, request);
	for (size_t i = 0; i < count; i++)
		SAME(output[i], sum_of(size, rank * count + i), "reduce_scatter");

	REQUIRE(comm_all_gather(comm, input, output, count, COMM_F32, &request) == ST_OK);
	finish(comm, request);
	for (size_t i = 0; i < count * size; i++)
		SAME(output[i], value((uint32_t)(i / count), i % count), "all_gather");

	for (uint32_t root = 0; root < size; root += size > 4 ? 3 : 1) {
		for (size_t i = 0; i < count; i++)
			output[i] = rank == root ? value(root, i) : -1.0f;
		REQUIRE(comm_broadcast(comm, output, count, COMM_F32, root, &request) == ST_OK);
		finish(comm, request);
		for (size_t i = 0; i < count; i++)
			SAME(output[i], value(root, i), "broadcast");
	}

	/* In place. */
	REQUIRE(comm_allreduce(comm, input, input, count, COMM_F32, COMM_SUM, &request) == ST_OK);
	finish(comm, request);
	for (size_t i = 0; i < count; i++)
		SAME(input[i], sum_of(size, i), "allreduce in place");

	for (size_t i = 0; i < count * size; i++)
		input[i] = value(rank, i);
	REQUIRE(comm_reduce_scatter(comm, input, input + rank * count, count, COMM_F32, COMM_SUM, &request) == ST_OK);
	finish(comm, request);
	for (size_t i = 0; i < count; i++)
		SAME(input[rank * count + i], sum_of(size, rank * count + i), "reduce_scatter in place");

	for (size_t i = 0; i < count; i++)
		output[rank * count + i] = value(rank, i);
	REQUIRE(comm_all_gather(comm, output + rank * count, output, count, COMM_F32, &request) == ST_OK);
	finish(comm, request);
	for (size_t i = 0; i < count * size; i++)
		SAME(output[i], value((uint32_t)(i / count), i % count), "all_gather in place");

	/* Bytes. */
	unsigned char *bytes = (unsigned char *)output;
	for (size_t i = 0; i < count; i++)
		bytes[i] = rank == size - 1 ? (unsigned char)(i * 11) : 0;
	REQUIRE(comm_broadcast(comm, bytes, count, COMM_U8, size - 1, &request) == ST_OK);
	finish(comm, request);
	for (size_t i = 0; i < count; i++)
		SAME(bytes[i], (unsigned char)(i * 11), "broadcast of bytes");

	REQUIRE(comm_barrier(comm, &request) == ST_OK);
	finish(comm, request);
	free(input);
	free(output);
}

static void small_counts(struct job *job, uint32_t rank, struct comm *comm)
{
	static const size_t counts[] = {0, 1, 2, 3, 7, 13, 127, 1009, 8191, 40009};
	for (size_t n = 0; n < sizeof counts / sizeof *counts; n++)
		all_collectives(job, rank, comm, counts[n]);
	struct comm_counters counters;
	comm_counters_read(comm, &counters);
	if (job->size > 1) {
		bool shm = job->options.transports & COMM_TRANSPORT_SHM && comm_local_size(comm) == job->size;
		bool tcp = !(job->options.transports & COMM_TRANSPORT_SHM) || comm_local_size(comm) == 1;
		REQUIRE(!shm || (counters.shm_puts && counters.shm_bytes && !counters.tcp_puts));
		REQUIRE(!tcp || (counters.tcp_puts && counters.tcp_bytes && !counters.shm_puts));
		/* A rank may leave all adding to others, but not all ranks can. */
		uint64_t reduced[MAX_RANKS], sum = 0;
		REQUIRE(comm_collect(comm, &counters.reduced_bytes, sizeof *reduced, reduced) == ST_OK);
		for (uint32_t r = 0; r < job->size; r++)
			sum += reduced[r];
		REQUIRE(sum > 0);
	}
}

static void large_counts(struct job *job, uint32_t rank, struct comm *comm)
{
	all_collectives(job, rank, comm, 1000003);
}

static void every_world(void)
{
	static const char *const alternating[] = {"a", "b", "a", "b", "a", "b", "a", "b", "a"};
	static const char *const uneven[] = {"a", "a", "a", "a", "a", "a", "b", "c", "c"};
	static const char *const apart[] = {"a", "b", "c", "d", "e", "f", "g", "h", "i"};
	static const unsigned masks[] = {COMM_TRANSPORT_SHM | COMM_TRANSPORT_TCP, COMM_TRANSPORT_TCP};
	const char *const *shapes[] = {NULL, alternating, uneven, apart};
	for (uint32_t size = 1; size <= MAX_RANKS; size++)
		for (size_t shape = 0; shape < 4; shape++)
			for (size_t mask = 0; mask < 2; mask++) {
				if (mask && shape == 3)
					continue;
				struct job job = {0};
				REQUIRE(comm_options_init(&job.options) == ST_OK);
				/* Small chunks: many rounds in little data. */
				if ((size + shape) % 2) {
					job.options.chunk_bytes = 1024;
					job.options.slots = 2 + size % 3;
				} else {
					job.options.lanes = 1; /* slots of full length for lanes that nothing runs in take time to make */
					if (FEWER)
						job.options.chunk_bytes = 16384;
				}
				run_job(&job, size, shapes[shape], masks[mask], small_counts);
			}
	/* Each algorithm by name, over shared memory, TCP, and both. */
	for (int algorithm = COMM_ALGORITHM_AUTO + 1; algorithm < COMM_ALGORITHMS; algorithm++)
		for (uint32_t size = 1; size <= MAX_RANKS; size++)
			for (size_t shape = 0; shape < 3; shape++) {
				struct job job = {0};
				if (FEWER && size != 2 && size != 3 && size != 5 && size != 8)
					continue;
				REQUIRE(comm_options_init(&job.options) == ST_OK);
				job.options.algorithm = (enum comm_algorithm)algorithm;
				if (FEWER)
					job.options.chunk_bytes = 16384;
				if ((size + shape) % 2) {
					job.options.chunk_bytes = 2048;
					job.options.slots = 2 + size % 3;
				} else {
					job.options.lanes = 1; /* slots of full length for lanes that nothing runs in take time to make */
				}
				run_job(&job, size, shapes[shape], masks[shape == 0 ? size % 2 : 0], small_counts);
			}
	static const uint32_t sizes[] = {2, 3, 5};
	for (size_t i = 0; i < 3; i++)
		for (size_t mask = 0; mask < 2; mask++) {
			struct job job = {0};
			run_job(&job, sizes[i], NULL, masks[mask], large_counts);
		}
	struct job mixed = {0};
	run_job(&mixed, 4, uneven + 4, masks[0], large_counts);
}

#define IN_FLIGHT 100
static void many_in_flight(struct job *job, uint32_t rank, struct comm *comm)
{
	uint32_t size = job->size;
	static const size_t counts[] = {1, 5000, 0, 77, 20011};
	struct comm_request *requests[IN_FLIGHT];
	float *buffers[IN_FLIGHT];
	for (int round = 0; round < 3; round++) {
		for (int k = 0; k < IN_FLIGHT; k++) {
			size_t count = counts[k % 5] + (size_t)(k / 5);
			buffers[k] = fresh(count);
			for (size_t i = 0; i < count; i++)
				buffers[k][i] = value(rank, i + (size_t)k);
			REQUIRE(comm_allreduce(comm, buffers[k], buffers[k], count, COMM_F32, COMM_SUM, &requests[k]) == ST_OK);
		}
		/* Tested, progressed and waited for, in another order than issued. */
		while (comm_test(comm, &requests[IN_FLIGHT / 2]) == ST_PENDING)
			REQUIRE(comm_progress(comm) == ST_OK);
		REQUIRE(!requests[IN_FLIGHT / 2]);
		for (int k = IN_FLIGHT - 1; k >= 0; k--) {
			size_t count = counts[k % 5] + (size_t)(k / 5);
			if (requests[k])
				finish(comm, requests[k]);
			for (size_t i = 0; i < count; i++)
				SAME(buffers[k][i], sum_of(size, i + (size_t)k), "allreduce in flight");
			free(buffers[k]);
		}
	}
}

static void bad_calls(struct job *job, uint32_t rank, struct comm *comm)
{
	float x[64] = {0};
	struct comm_request *request = NULL;
	REQUIRE(comm_allreduce(comm, x, x, 4, COMM_F32, (enum comm_op)4, &request) == ST_ERR_USAGE);
	REQUIRE(strstr(st_message(), "no operation 4 (have sum, avg, min, max)"));
	REQUIRE(comm_allreduce(comm, x, x + 1, 4, COMM_F32, COMM_SUM, &request) == ST_ERR_USAGE);
	REQUIRE(comm_allreduce(comm, NULL, x, 4, COMM_F32, COMM_SUM, &request) == ST_ERR_USAGE);
	REQUIRE(comm_allreduce(comm, x, x, SIZE_MAX / 4, COMM_F32, COMM_SUM, &request) == ST_ERR_USAGE);
	REQUIRE(comm_broadcast(comm, x, 4, COMM_F32, job->size, &request) == ST_ERR_USAGE);
	REQUIRE(comm_broadcast(comm, x, 4, (enum comm_type)9, 0, &request) == ST_ERR_USAGE);
	REQUIRE(strstr(st_message(), "no type 9 (have u8, f32"));
	REQUIRE(comm_broadcast(comm, (char *)x + 1, 4, COMM_F32, 0, &request) == ST_ERR_USAGE);
	REQUIRE(!request);
	/* They did no harm. */
	all_collectives(job, rank, comm, 10);
	float *memory;
	REQUIRE(comm_memory_alloc(comm, 100000, (void **)&memory) == ST_OK && (uintptr_t)memory % 4096 == 0);
	for (int i = 0; i < 25000; i++)
		memory[i] = 1;
	REQUIRE(comm_allreduce(comm, memory, memory, 25000, COMM_F32, COMM_SUM, &request) == ST_OK);
	finish(comm, request);
	REQUIRE(memory[24999] == (float)job->size);
	comm_memory_free(comm, memory);
	uint32_t mine = rank + 1, all[MAX_RANKS];
	REQUIRE(comm_collect(comm, &mine, sizeof mine, all) == ST_OK);
	for (uint32_t r = 0; r < job->size; r++)
		REQUIRE(all[r] == r + 1);
	REQUIRE(comm_decide(comm, &mine, sizeof mine) == ST_OK && mine == 1);
}

/* The same bits on every run and every rank, whatever the transport. */
static void bits(struct job *job, uint32_t rank, struct comm *comm)
{
	size_t count = 10007;
	float *buffer = fresh(count), **results = job->context;
	for (size_t i = 0; i < count; i++)
		buffer[i] = 1.0f / (float)(1 + (i * 31 + rank * 977) % 5003);
	struct comm_request *request;
	REQUIRE(comm_allreduce(comm, buffer, buffer, count, COMM_F32, COMM_SUM, &request) == ST_OK);
	finish(comm, request);
	results[rank] = buffer;
}

static void same_bits_of(enum comm_algorithm algorithm, size_t one_chunk, size_t other_chunk, unsigned other_transport)
{
	float *a[MAX_RANKS], *b[MAX_RANKS];
	struct job one = {.context = a}, other = {.context = b};
	REQUIRE(comm_options_init(&one.options) == ST_OK && comm_options_init(&other.options) == ST_OK);
	one.options.algorithm = other.options.algorithm = algorithm;
	one.options.chunk_bytes = one_chunk;
	other.options.chunk_bytes = other_chunk;
	run_job(&one, 5, NULL, COMM_TRANSPORT_SHM, bits);
	run_job(&other, 5, NULL, other_transport, bits);
	for (int r = 0; r < 5; r++)
		REQUIRE(!memcmp(a[r], a[0], 10007 * sizeof(float)) && !memcmp(b[r], a[0], 10007 * sizeof(float)));
	for (int r = 0; r < 5; r++) {
		free(a[r]);
		free(b[r]);
	}
}

static void same_bits(void)
{
	same_bits_of(COMM_ALGORITHM_RING, 131072, 512, COMM_TRANSPORT_TCP);
	/* In one round and in two. */
	same_bits_of(COMM_ALGORITHM_DIRECT, 1 << 20, 512, COMM_TRANSPORT_SHM);
}

static void keep_text(struct job *job, uint32_t rank, enum st_status status)
{
	snprintf(job->texts[rank], sizeof job->texts[rank], "%s: %s", st_status_name(status), st_message());
}

/* One rank passes another count, at first in a place where the lengths alone would not show it. */
static void disagree(struct job *job, uint32_t rank, struct comm *comm)
{
	float buffer[4000] = {0};
	struct comm_request *request;
	all_collectives(job, rank, comm, 11);
	size_t count = rank == 1 ? 1001 : 1000;
	REQUIRE(comm_allreduce(comm, buffer, buffer, count, COMM_F32, COMM_SUM, &request) == ST_OK);
	enum st_status status = comm_wait(comm, &request);
	REQUIRE(status == ST_ERR_MISMATCH || status == ST_ERR_ABORTED);
	REQUIRE(!request);
	keep_text(job, rank, status);
	/* Everything after it fails at once, with the same verdict. */
	int64_t began = st_now_ns();
	REQUIRE(comm_barrier(comm, &request) == ST_ERR_ABORTED || comm_wait(comm, &request) == ST_ERR_ABORTED);
	REQUIRE(strstr(st_message(), "1001") && comm_progress(comm) == ST_ERR_ABORTED);
	REQUIRE(st_now_ns() - began < 2 * ST_NS_PER_S);
	pthread_barrier_wait(&job->all);
}

static void different_collectives(struct job *job, uint32_t rank, struct comm *comm)
{
	float buffer[1000] = {0};
	struct comm_request *request;
	if (rank == 0)
		REQUIRE(comm_allreduce(comm, buffer, buffer, 100, COMM_F32, COMM_SUM, &request) == ST_OK);
	else
		REQUIRE(comm_broadcast(comm, buffer, 100, COMM_F32, 0, &request) == ST_OK);
	enum st_status status = comm_wait(comm, &request);
	REQUIRE(status == ST_ERR_MISMATCH || status == ST_ERR_ABORTED);
	keep_text(job, rank, status);
	pthread_barrier_wait(&job->all);
}

static void stay_away(struct job *job, uint32_t rank, struct comm *comm)
{
	float x = 1;
	struct comm_request *request;
	REQUIRE(comm_barrier(comm, &request) == ST_OK);
	finish(comm, request);
	if (rank != 2) {
		REQUIRE(comm_allreduce(comm, &x, &x, 1, COMM_F32, COMM_SUM, &request) == ST_OK);
		enum st_status status = comm_wait(comm, &request);
		REQUIRE(status == ST_ERR_ABORTED);
		keep_text(job, rank, status);
	}
	pthread_barrier_wait(&job->all);
}

static void leave(struct job *job, uint32_t rank, struct comm *comm)
{
	float *buffer = fresh(300000);
	struct comm_request *request;
	all_collectives(job, rank, comm, 500);
	if (rank != 1) {
		REQUIRE(comm_allreduce(comm, buffer, buffer, 300000, COMM_F32, COMM_SUM, &request) == ST_OK);
		enum st_status status = comm_wait(comm, &request);
		REQUIRE(status == ST_ERR_ABORTED);
		keep_text(job, rank, status);
	}
	free(buffer);
}

static void quit(struct job *job, uint32_t rank, struct comm *comm)
{
	float x = 1;
	struct comm_request *request;
	pthread_barrier_wait(&job->all); /* all have joined */
	if (rank == 2)
		comm_abort(comm, "the loss is not a number");
	else {
		enum st_status status = comm_allreduce(comm, &x, &x, 1, COMM_F32, COMM_SUM, &request);
		if (status == ST_OK)
			status = comm_wait(comm, &request);
		REQUIRE(status == ST_ERR_ABORTED);
		keep_text(job, rank, status);
	}
	pthread_barrier_wait(&job->all);
}

/* Abandons requests: whoever still waits is told, nobody hangs, nothing leaks. */
static void abandon(struct job *job, uint32_t rank, struct comm *comm)
{
	(void)rank;
	float x[100] = {0};
	struct comm_request *requests[5];
	for (int i = 0; i < 5; i++)
		REQUIRE(comm_allreduce(comm, x, x, 100, COMM_F32, COMM_SUM, &requests[i]) == ST_OK);
	pthread_barrier_wait(&job->all);
}

static void all_say(const struct job *job, uint32_t skip, const char *what)
{
	for (uint32_t r = 0; r < job->size; r++)
		if (r != skip && !strstr(job->texts[r], what)) {
			fprintf(stderr, "rank %u says '%s', expected '%s' in it\n", r, job->texts[r], what);
			exit(1);
		}
}

static void failures_are_told(void)
{
	static const unsigned masks[] = {COMM_TRANSPORT_SHM, COMM_TRANSPORT_TCP};
	static const char *const names[] = {"n0", "n0", "n0", "n0"};
	for (size_t mask = 0; mask < 2; mask++) {
		struct job job = {0};
		run_job(&job, 2, names, masks[mask], disagree);
		all_say(&job, 99, "1000 f32");
		all_say(&job, 99, "1001 f32");
		all_say(&job, 99, "rank 0");
		all_say(&job, 99, "rank 1");
		run_job(&job, 4, names, masks[mask], disagree);
		all_say(&job, 99, "1000 f32");
		all_say(&job, 99, "1001 f32");
		all_say(&job, 99, "rank 1");

		struct job other = {0};
		run_job(&other, 2, names, masks[mask], different_collectives);
		all_say(&other, 99, "allreduce 1 of 100 f32");
		all_say(&other, 99, "broadcast 1 of 100 f32 from rank 0");

		struct job away = {0};
		REQUIRE(comm_options_init(&away.options) == ST_OK);
		away.options.arrival_timeout_ms = 700;
		run_job(&away, 4, names, masks[mask], stay_away);
		all_say(&away, 2, "rank 2");
		all_say(&away, 2, "n0");
		all_say(&away, 2, "allreduce 2 of 1 f32");
		all_say(&away, 2, "did not enter");

		struct job gone = {0};
		int64_t began = st_now_ns();
		run_job(&gone, 4, names, masks[mask], leave);
		all_say(&gone, 1, "rank 1");
		REQUIRE(st_now_ns() - began < 60 * ST_NS_PER_S);

		struct job quitter = {0};
		run_job(&quitter, 4, names, masks[mask], quit);
		all_say(&quitter, 2, "rank 2");
		all_say(&quitter, 2, "the loss is not a number");

		struct job abandoned = {0};
		run_job(&abandoned, 3, names, masks[mask], abandon);
	}
}

static void *create_in_vain(void *argument)
{
	struct thread *thread = argument;
	struct comm *comm = NULL;
	enum st_status status = comm_create_over(thread->job->bootstraps[thread->rank], &thread->job->options, &comm);
	REQUIRE(status != ST_OK && !comm);
	keep_text(thread->job, thread->rank, status);
	return NULL;
}

static void shared_memory_alone_is_not_enough_for_two_nodes(void)
{
	static const char *const nodes[] = {"left", "left", "right"};
	struct job job = {.size = 3};
	pthread_t threads[3];
	struct thread arguments[3];
	REQUIRE(comm_options_init(&job.options) == ST_OK);
	job.options.transports = COMM_TRANSPORT_SHM;
	REQUIRE(bootstrap_threads(3, nodes, job.bootstraps) == ST_OK);
	for (uint32_t r = 0; r < 3; r++) {
		arguments[r] = (struct thread){&job, r};
		REQUIRE(!pthread_create(&threads[r], NULL, create_in_vain, &arguments[r]));
	}
	for (uint32_t r = 0; r < 3; r++)
		REQUIRE(!pthread_join(threads[r], NULL));
	for (uint32_t r = 0; r < 3; r++)
		job.bootstraps[r]->finish(job.bootstraps[r]);
	all_say(&job, 99, "the transports allowed are shm only, and the job spans 2 nodes (left, right)");
}

static void options_are_checked(void)
{
	static const struct {
		const char *name, *value;
	} bad[] = {{"SYNCTRAIN_ALGORITHM", "nccl"},      {"SYNCTRAIN_TRANSPORT", "verbs"}, {"SYNCTRAIN_TRANSPORT", "shm+"},
		   {"SYNCTRAIN_TIMEOUT_MS", "-1"},       {"SYNCTRAIN_TIMEOUT_MS", "1x"},   {"SYNCTRAIN_ARRIVAL_TIMEOUT_MS", "0"},
		   {"SYNCTRAIN_CHUNK_BYTES", "1000000000000000000000"}, {"SYNCTRAIN_ACCUMULATE", "f16"},
		   {"SYNCTRAIN_LANES", "0"},             {"SYNCTRAIN_LANES", "5"},         {"SYNCTRAIN_FUSION_BYTES", "-1"},
		   {"SYNCTRAIN_PROGRESS", "yes"}};
	struct comm_options options;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		setenv(bad[i].name, bad[i].value, 1);
		REQUIRE(comm_options_init(&options) == ST_ERR_CONFIG);
		REQUIRE(strstr(st_message(), bad[i].name) && strstr(st_message(), "'"));
		unsetenv(bad[i].name);
	}
	setenv("SYNCTRAIN_TRANSPORT", "tcp+shm", 1);
	setenv("SYNCTRAIN_CHUNK_BYTES", "4096", 1);
	REQUIRE(comm_options_init(&options) == ST_OK && options.transports == 3 && options.chunk_bytes == 4096);
	REQUIRE(options.accumulate == COMM_ACCUMULATE_F32 && options.lanes == 2 && options.fusion_bytes && !options.progress_thread);
	setenv("SYNCTRAIN_LANES", "4", 1);
	setenv("SYNCTRAIN_FUSION_BYTES", "0", 1);
	setenv("SYNCTRAIN_PROGRESS", "thread", 1);
	REQUIRE(comm_options_init(&options) == ST_OK && options.lanes == 4 && !options.fusion_bytes && options.progress_thread);
	setenv("SYNCTRAIN_PROGRESS", "caller", 1);
	REQUIRE(comm_options_init(&options) == ST_OK && !options.progress_thread);
	unsetenv("SYNCTRAIN_LANES");
	unsetenv("SYNCTRAIN_FUSION_BYTES");
	unsetenv("SYNCTRAIN_PROGRESS");
	setenv("SYNCTRAIN_ACCUMULATE", "wire", 1);
	REQUIRE(comm_options_init(&options) == ST_OK && options.accumulate == COMM_ACCUMULATE_WIRE);
	unsetenv("SYNCTRAIN_ACCUMULATE");
	setenv("SYNCTRAIN_TRANSPORT", "tcp", 1);
	REQUIRE(comm_options_init(&options) == ST_OK && options.transports == COMM_TRANSPORT_TCP);
	unsetenv("SYNCTRAIN_TRANSPORT");
	unsetenv("SYNCTRAIN_CHUNK_BYTES");
}

static void step(const char *what, int64_t *since)
{
	int64_t now = st_now_ns();
	printf("%-24s %6.2f s\n", what, (double)(now - *since) / 1e9);
	fflush(stdout);
	*since = now;
}

int main(void)
{
	int64_t since = st_now_ns();
	options_are_checked();
	shared_memory_alone_is_not_enough_for_two_nodes();
	every_world();
	step("every world", &since);
	static const unsigned masks[] = {COMM_TRANSPORT_SHM, COMM_TRANSPORT_TCP};
	for (size_t mask = 0; mask < 2; mask++)
		for (uint32_t size = 1; size <= 4; size++) {
			struct job job = {0};
			run_job(&job, size, NULL, masks[mask], many_in_flight);
			run_job(&job, size, NULL, masks[mask], bad_calls);
		}
	step("in flight", &since);
	same_bits();
	step("same bits", &since);
	failures_are_told();
	step("failures", &since);
	return 0;
}
