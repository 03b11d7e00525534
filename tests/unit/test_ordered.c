/*
 * Ordered sums over ranks as threads: the bits of a plain sum in the tree, whatever the number of ranks, their nodes, the algorithm, transport, chunks,
 * slots, lanes, and however the range is cut into calls; what is refused; and that an all-reduce of the same numbers has other bits.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "libcomm/bootstrap.h"
#include "libcomm/comm.h"

#define MAX_RANKS 8
#define MAX_COUNT 5003
#define MAX_TOTAL 37

struct job;
typedef void body(struct job *job, uint32_t rank, struct comm *comm);

struct job {
	uint32_t size;
	struct bootstrap *bootstraps[MAX_RANKS];
	struct comm_options options;
	body *body;
	const uint32_t *totals; /* 0 ends them */
	char texts[MAX_RANKS][1024];
	enum st_status statuses[MAX_RANKS];
	bool differs;
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
	REQUIRE(comm_create_over(job->bootstraps[thread->rank], &job->options, &comm) == ST_OK || (fprintf(stderr, "%s\n", st_message()), 0));
	job->body(job, thread->rank, comm);
	comm_free(comm);
	return NULL;
}

static void run_job(struct job *job, uint32_t size, const char *const *nodes, body *work)
{
	pthread_t threads[MAX_RANKS];
	struct thread arguments[MAX_RANKS];
	job->size = size;
	job->body = work;
	REQUIRE(bootstrap_threads(size, nodes, job->bootstraps) == ST_OK || (fprintf(stderr, "%s\n", st_message()), 0));
	for (uint32_t r = 0; r < size; r++) {
		arguments[r] = (struct thread){job, r};
		REQUIRE(!pthread_create(&threads[r], NULL, rank_main, &arguments[r]));
	}
	for (uint32_t r = 0; r < size; r++)
		REQUIRE(!pthread_join(threads[r], NULL));
	for (uint32_t r = 0; r < size; r++)
		job->bootstraps[r]->finish(job->bootstraps[r]);
}

/* ---- the truth ------------------------------------------------------------------------------------------------------------------------ */

/* Numbers of very different sizes and both signs: in another order their sums round differently. */
static double value(uint32_t leaf, size_t i)
{
	uint64_t x = (leaf + 1) * UINT64_C(0x9e3779b97f4a7c15) ^ (i + 1) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	x ^= x >> 31;
	double scale = (double)(1u << (x & 15));
	return ((double)(x >> 20) / 17592186044416.0 - 0.5) * scale;
}

/* From the top: a node of 2^k leaves from `first` on is the sum of its halves. */
static float tree_f32(uint32_t total, uint32_t first, uint32_t size, size_t i)
{
	if (size == 1)
		return (float)value(first, i);
	uint32_t middle = first + size / 2;
	float left = tree_f32(total, first, size / 2, i);
	return middle < total ? left + tree_f32(total, middle, size / 2, i) : left;
}

static double tree_f64(uint32_t total, uint32_t first, uint32_t size, size_t i)
{
	if (size == 1)
		return value(first, i);
	uint32_t middle = first + size / 2;
	double left = tree_f64(total, first, size / 2, i);
	return middle < total ? left + tree_f64(total, middle, size / 2, i) : left;
}

struct truth {
	float f32[2][MAX_COUNT]; /* [COMM_SUM, COMM_AVG] */
	double f64[2][MAX_COUNT];
};
static struct truth *truths[MAX_TOTAL + 1]; /* by number of leaves */

static void find_truth(uint32_t total)
{
	uint32_t size = 1;
	if (truths[total])
		return;
	while (size < total)
		size *= 2;
	struct truth *truth = truths[total] = malloc(sizeof *truth);
	REQUIRE(truth);
	for (size_t i = 0; i < MAX_COUNT; i++) {
		truth->f32[COMM_SUM][i] = tree_f32(total, 0, size, i);
		truth->f32[COMM_AVG][i] = truth->f32[COMM_SUM][i] / (float)total;
		truth->f64[COMM_SUM][i] = tree_f64(total, 0, size, i);
		truth->f64[COMM_AVG][i] = truth->f64[COMM_SUM][i] / total;
	}
}

static const void *truth_of(uint32_t total, enum comm_type type, enum comm_op op)
{
	return type == COMM_F32 ? (const void *)truths[total]->f32[op] : truths[total]->f64[op];
}

/* ---- a rank's part -------------------------------------------------------------------------------------------------------------------- */

/* What a program does with its leaves: see comm.h. */
static void fill_roots(const struct comm_leaves *leaves, void *layers, size_t stride, size_t count, enum comm_type type)
{
	float *f = layers;
	double *d = layers;
	unsigned layer = 0, sums, most = 0;
	for (uint32_t leaf = leaves->first; leaf < leaves->end; leaf++) {
		layer = comm_leaf_place(leaves, leaf, &sums);
		most = layer + 1 > most ? layer + 1 : most;
		for (size_t i = 0; i < count; i++)
			if (type == COMM_F32)
				f[layer * stride + i] = (float)value(leaf, i);
			else
				d[layer * stride + i] = value(leaf, i);
		for (; sums; sums--, layer--)
			for (size_t i = 0; i < count; i++)
				if (type == COMM_F32)
					f[(layer - 1) * stride + i] += f[layer * stride + i];
				else
					d[(layer - 1) * stride + i] += d[layer * stride + i];
	}
	REQUIRE(leaves->roots == (leaves->first < leaves->end ? layer + 1 : 0) && most == leaves->held);
}

static void must(enum st_status status, const struct comm *comm)
{
	if (status == ST_OK)
		return;
	fprintf(stderr, "rank %u: %s\n", comm_rank(comm), st_message());
	exit(1);
}

static void same_bits(const struct job *job, uint32_t rank, const struct comm_leaves *leaves, const void *output, size_t count, enum comm_type type,
		      enum comm_op op)
{
	const size_t bytes = comm_type_bytes(type);
	const char *expected = truth_of(leaves->total, type, op);
	for (size_t i = 0; i < count; i++)
		if (memcmp((const char *)output + i * bytes, expected + i * bytes, bytes)) {
			fprintf(stderr, "rank %u of %u, %u leaves, %s, %s of %zu: element %zu differs\n", rank, job->size, leaves->total, comm_type_name(type),
				comm_op_name(op), count, i);
			exit(1);
		}
}

static void one_sum(const struct job *job, struct comm *comm, const struct comm_leaves *leaves, size_t count, enum comm_type type, enum comm_op op,
		    bool in_place)
{
	const size_t bytes = comm_type_bytes(type), stride = count + 3;
	char *layers = malloc((leaves->held + 1) * stride * bytes), *output = in_place && leaves->roots ? layers : malloc(count * bytes + 1);
	char *copy = malloc((leaves->held + 1) * stride * bytes);
	struct comm_request *request;
	REQUIRE(layers && output && copy);
	memset(layers, 0, (leaves->held + 1) * stride * bytes);
	fill_roots(leaves, layers, stride, count, type);
	memcpy(copy, layers, leaves->roots * stride * bytes);
	must(comm_allreduce_ordered(comm, leaves, leaves->roots ? layers : NULL, stride, output, count, type, op, &request), comm);
	must(comm_wait(comm, &request), comm);
	same_bits(job, comm_rank(comm), leaves, output, count, type, op);
	for (unsigned k = output == layers; k < leaves->roots; k++)
		REQUIRE(!memcmp(copy + k * stride * bytes, layers + k * stride * bytes, count * bytes));
	if (output != layers)
		free(output);
	free(layers);
	free(copy);
}

/* Buckets: the range in pieces, all in flight, some in a group with priority, others' operations between them. */
static void in_pieces(const struct job *job, struct comm *comm, const struct comm_leaves *leaves, size_t count, unsigned cut)
{
	float *layers = calloc((leaves->held + 1) * count, sizeof *layers), *output = malloc(count * sizeof *output), ones[100];
	struct comm_request *requests[64], *others[64];
	size_t pieces = 0, at = 0;
	REQUIRE(layers && output);
	fill_roots(leaves, layers, count, count, COMM_F32);
	while (at < count) {
		size_t length = 1 + (at * 7 + cut * 131) % (count / 12 + 1);
		if (length > count - at)
			length = count - at;
		const bool grouped = (pieces + cut) % 3 == 0;
		if (grouped)
			must(comm_group_begin(comm, 1 + cut), comm);
		for (size_t i = 0; i < 100; i++)
			ones[i] = 1;
		must(comm_allreduce_ordered(comm, leaves, layers + at, count, output + at, length, COMM_F32, COMM_SUM, &requests[pieces]), comm);
		if (grouped)
			must(comm_group_end(comm), comm);
		at += length;
		REQUIRE(++pieces < 64);
	}
	must(comm_allreduce(comm, ones, ones, 100, COMM_F32, COMM_SUM, &others[0]), comm);
	while (pieces--)
		must(comm_wait(comm, &requests[pieces]), comm);
	must(comm_wait(comm, &others[0]), comm);
	REQUIRE(ones[99] == (float)job->size);
	same_bits(job, comm_rank(comm), leaves, output, count, COMM_F32, COMM_SUM);
	free(layers);
	free(output);
}

static void sums(struct job *job, uint32_t rank, struct comm *comm)
{
	static const size_t counts[] = {0, 1, 64, 1000, MAX_COUNT};
	struct comm_leaves leaves;
	uint32_t next = 0;
	for (const uint32_t *total = job->totals; *total; total++) {
		must(comm_leaves_open(comm, *total, &leaves), comm);
		REQUIRE(leaves.total == *total && leaves.end <= *total && leaves.first == (uint64_t)*total * rank / job->size);
		for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
			one_sum(job, comm, &leaves, counts[c], (*total + c) % 3 ? COMM_F32 : COMM_F64, (*total + c) % 4 ? COMM_SUM : COMM_AVG,
				(next++ + rank) % 2); /* that is each rank's own affair */
		in_pieces(job, comm, &leaves, MAX_COUNT, *total % 5);
	}
	/* What was opened stays open, and opening it again does nothing. */
	must(comm_leaves_open(comm, job->totals[0], &leaves), comm);
	one_sum(job, comm, &leaves, 777, COMM_F32, COMM_SUM, true);
}

static void every_world(void)
{
	static const uint32_t sizes[] = {1, 2, 3, 4, 5, 7, 8};
	static const char *const alternating[] = {"a", "b", "a", "b", "a", "b", "a", "b"};
	static const char *const uneven[] = {"a", "a", "a", "b", "c", "c", "c", "c"};
	static const char *const *const shapes[] = {NULL, NULL, alternating, uneven};
	static const uint32_t some[] = {1, 5, 8, 13, MAX_TOTAL, 0};
	static uint32_t all[MAX_TOTAL + 1];
	const char *set = getenv("LONG");
	const bool everything = set && *set;
	unsigned turn = 0;
	for (uint32_t total = 1; total <= MAX_TOTAL; total++) {
		all[total - 1] = total;
		if (everything)
			find_truth(total);
	}
	for (size_t i = 0; some[i]; i++)
		find_truth(some[i]);
	for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
		for (unsigned world = 0; world < 4; world++)
			for (int algorithm = 0; algorithm < COMM_ALGORITHMS; algorithm++)
				for (unsigned k = 0; k < 3; k++) {
					static const size_t chunks[] = {256, 1024, 131072};
					turn++;
					/* Which of them go together changes from one to the next. */
					if (!everything && ((unsigned)algorithm + k + world + s) % 11)
						continue;
					struct job job = {.totals = everything ? all : some};
					REQUIRE(comm_options_init(&job.options) == ST_OK);
					job.options.algorithm = (enum comm_algorithm)algorithm;
					job.options.transports = world == 1 ? COMM_TRANSPORT_TCP : COMM_TRANSPORT_TCP | COMM_TRANSPORT_SHM;
					job.options.chunk_bytes = chunks[k];
					job.options.slots = 2 + turn % 3;
					job.options.lanes = 1 + turn % 3;
					job.options.progress_thread = turn % 5 == 0;
					run_job(&job, sizes[s], shapes[world], sums);
				}
}

/* ---- the control: without the tree the bits do depend on the ranks -------------------------------------------------------------------- */

static void plain(struct job *job, uint32_t rank, struct comm *comm)
{
	const uint32_t total = 8;
	float *sum = calloc(MAX_COUNT, sizeof *sum);
	struct comm_request *request;
	REQUIRE(sum);
	for (uint32_t leaf = total * rank / job->size; leaf < total * (rank + 1) / job->size; leaf++)
		for (size_t i = 0; i < MAX_COUNT; i++)
			sum[i] += (float)value(leaf, i);
	must(comm_allreduce(comm, sum, sum, MAX_COUNT, COMM_F32, COMM_SUM, &request), comm);
	must(comm_wait(comm, &request), comm);
	if (rank == 0)
		job->differs = memcmp(sum, truths[total]->f32[COMM_SUM], MAX_COUNT * sizeof *sum) != 0;
	free(sum);
}

static void a_ring_has_other_bits(void)
{
	for (uint32_t size = 1; size <= MAX_RANKS; size++) {
		struct job job = {0};
		REQUIRE(comm_options_init(&job.options) == ST_OK);
		job.options.algorithm = COMM_ALGORITHM_RING;
		run_job(&job, size, NULL, plain);
		REQUIRE(job.differs);
	}
}

/* ---- what is refused ------------------------------------------------------------------------------------------------------------------ */

static void bad_calls(struct job *job, uint32_t rank, struct comm *comm)
{
	float buffer[64] = {0}, output[16];
	struct comm_leaves leaves, wrong;
	struct comm_request *request = NULL;
	(void)job;
	REQUIRE(comm_leaves_open(comm, 0, &leaves) == ST_ERR_USAGE && strstr(st_message(), "0 leaves, expected 1 to 16777216"));
	REQUIRE(comm_leaves_open(comm, COMM_MAX_LEAVES + 1, &leaves) == ST_ERR_USAGE);
	must(comm_leaves_open(comm, 5, &leaves), comm); /* 1, 2 and 2 */
	const unsigned roots = leaves.roots;
	REQUIRE(roots == (rank ? 2 : 1));
	REQUIRE(comm_allreduce_ordered(comm, &leaves, buffer, 16, output, 16, COMM_F16, COMM_SUM, &request) == ST_ERR_USAGE);
	REQUIRE(strstr(st_message(), "type f16, expected f32 or f64"));
	REQUIRE(comm_allreduce_ordered(comm, &leaves, buffer, 16, output, 16, COMM_F32, COMM_MAX, &request) == ST_ERR_USAGE);
	REQUIRE(strstr(st_message(), "operation max, expected sum or avg"));
	if (roots > 1)
		REQUIRE(comm_allreduce_ordered(comm, &leaves, buffer, 15, output, 16, COMM_F32, COMM_SUM, &request) == ST_ERR_USAGE);
	REQUIRE(comm_allreduce_ordered(comm, &leaves, buffer, 16, NULL, 16, COMM_F32, COMM_SUM, &request) == ST_ERR_USAGE);
	REQUIRE(comm_allreduce_ordered(comm, &leaves, NULL, 16, output, 16, COMM_F32, COMM_SUM, &request) == ST_ERR_USAGE);
	REQUIRE(comm_allreduce_ordered(comm, &leaves, buffer, 16, buffer + 1, 16, COMM_F32, COMM_SUM, &request) == ST_ERR_USAGE);
	REQUIRE(strstr(st_message(), "overlap"));
	REQUIRE(comm_allreduce_ordered(comm, &leaves, buffer, SIZE_MAX / 4, output, SIZE_MAX / 4, COMM_F32, COMM_SUM, &request) == ST_ERR_USAGE);
	REQUIRE(comm_allreduce_ordered(comm, &leaves, (char *)buffer + 1, 16, output, 8, COMM_F32, COMM_SUM, &request) == ST_ERR_USAGE);
	wrong = leaves;
	wrong.end++;
	REQUIRE(comm_allreduce_ordered(comm, &wrong, buffer, 16, output, 16, COMM_F32, COMM_SUM, &request) == ST_ERR_USAGE);
	char expected[64];
	snprintf(expected, sizeof expected, "rank %u brings leaves %u to %u of 5", rank, leaves.first, leaves.end + 1);
	REQUIRE(strstr(st_message(), expected));
	wrong = leaves;
	wrong.roots++;
	REQUIRE(comm_allreduce_ordered(comm, &wrong, buffer, 16, output, 16, COMM_F32, COMM_SUM, &request) == ST_ERR_USAGE);
	wrong.total = 6;
	REQUIRE(comm_allreduce_ordered(comm, &wrong, buffer, 16, output, 16, COMM_F32, COMM_SUM, &request) == ST_ERR_USAGE);
	REQUIRE(strstr(st_message(), "6 leaves, for which comm_leaves_open was not called") && !request);

	/* Ranks that disagree all hear of it, and can agree afterwards. */
	REQUIRE(comm_leaves_open(comm, rank == 2 ? 7 : 6, &leaves) == ST_ERR_MISMATCH);
	REQUIRE(strstr(st_message(), "rank 0 on ") && strstr(st_message(), " has 6 in all, rank 2 on ") && strstr(st_message(), " has 7"));
	must(comm_leaves_open(comm, 8, &leaves), comm);
	one_sum(job, comm, &leaves, 100, COMM_F32, COMM_SUM, false);
}

/* All have opened both, and then one takes the other. */
static void disagree(struct job *job, uint32_t rank, struct comm *comm)
{
	float buffer[300] = {0}, output[100];
	struct comm_leaves five, eight;
	struct comm_request *request;
	must(comm_leaves_open(comm, 5, &five), comm);
	must(comm_leaves_open(comm, 8, &eight), comm);
	must(comm_allreduce_ordered(comm, rank == 1 ? &five : &eight, buffer, 100, output, 100, COMM_F32, COMM_SUM, &request), comm);
	job->statuses[rank] = comm_wait(comm, &request);
	snprintf(job->texts[rank], sizeof job->texts[rank], "%s", st_message());
	/* Whoever has left would be the culprit of those who have not yet heard. */
	while (comm_progress(comm) == ST_OK)
		;
}

static void disagreement_is_told(void)
{
	for (unsigned transport = 0; transport < 2; transport++) {
		struct job job = {0};
		REQUIRE(comm_options_init(&job.options) == ST_OK);
		job.options.transports = transport ? COMM_TRANSPORT_TCP : COMM_TRANSPORT_SHM;
		run_job(&job, 3, NULL, disagree);
		for (uint32_t r = 0; r < 3; r++) {
			if ((job.statuses[r] != ST_ERR_MISMATCH && job.statuses[r] != ST_ERR_ABORTED) || !strstr(job.texts[r], "in 5 leaves, sum") ||
			    !strstr(job.texts[r], "in 8 leaves, sum")) {
				fprintf(stderr, "rank %u: %d: %s\n", r, job.statuses[r], job.texts[r]);
				exit(1);
			}
		}
	}
}

static void what_is_refused(void)
{
	struct job job = {0};
	REQUIRE(comm_options_init(&job.options) == ST_OK);
	run_job(&job, 3, NULL, bad_calls);
}

int main(void)
{
	every_world();
	a_ring_has_other_bits();
	what_is_refused();
	disagreement_is_told();
	for (size_t i = 0; i <= MAX_TOTAL; i++)
		free(truths[i]);
	return 0;
}
