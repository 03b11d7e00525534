/*
 * Ranks as threads of one process: buckets, votes, agreements and the comparison of replicas, and a whole training run.
 * The sanitizers see all of it.
 */
#include "temporary.h"

#include <math.h>
#include <pthread.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/command.h"
#include "libcomm/bootstrap.h"
#include "libcomm/comm.h"
#include "trainer/agree.h"
#include "trainer/ddp.h"
#include "trainer/loop.h"
#include "trainer/replica.h"
#include "trainer/run.h"
#include "trainer/vote.h"

#define MOST_RANKS 8

typedef void rank_main(struct comm *comm);

struct rank {
	pthread_t thread;
	struct bootstrap *bootstrap;
	rank_main *main;
};

static void *start(void *context)
{
	struct rank *rank = context;
	struct comm_options options;
	struct comm *comm;

	CHECK_OK(comm_options_init(&options));
	enum st_status status = comm_create_over(rank->bootstrap, &options, &comm);
	CHECK(status == ST_OK, "%s", st_message());
	if (status == ST_OK) {
		rank->main(comm);
		comm_free(comm);
	}
	return NULL;
}

static void with_ranks(uint32_t size, rank_main *main)
{
	struct rank ranks[MOST_RANKS];
	struct bootstrap *bootstraps[MOST_RANKS];
	static const char *const nodes[MOST_RANKS] = {"node1", "node2", "node1", "node2", "node1", "node2", "node1", "node2"};

	CHECK_OK(bootstrap_threads(size, nodes, bootstraps));
	for (uint32_t i = 0; i < size; i++) {
		ranks[i] = (struct rank){.bootstrap = bootstraps[i], .main = main};
		CHECK(pthread_create(&ranks[i].thread, NULL, start, &ranks[i]) == 0);
	}
	for (uint32_t i = 0; i < size; i++)
		pthread_join(ranks[i].thread, NULL);
	for (uint32_t i = 0; i < size; i++)
		bootstraps[i]->finish(bootstraps[i]);
}

/* Cut from the end, without gaps, none too large, the first smaller, all but the lowest bound on cache lines. */
static void buckets_are_cut_well(struct comm *comm)
{
	const size_t counts[] = {1, 15, 16, 17, 255, 256, 257, 1000, 4096, 100003}, sizes[] = {1024, 4096, 1 << 20};
	static float gradients[100003];

	for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
		for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
			struct train_buckets *buckets;
			size_t end = counts[c], offset, count;
			CHECK_OK(train_buckets_create(comm, gradients, counts[c], sizes[s], NULL, &buckets));
			for (size_t i = 0; i < train_buckets_count(buckets); i++) {
				train_buckets_range(buckets, i, &offset, &count);
				CHECK(count && offset + count == end && offset % 16 == 0 && count * sizeof(float) <= sizes[s],
				      "%zu elements, bucket %zu: %zu + %zu", counts[c], i, offset, count);
				CHECK(i || count <= sizes[s] / 16 + 15, "the first of %zu has %zu", counts[c], count);
				end = offset;
			}
			CHECK(end == 0);
			train_buckets_free(buckets);
		}
}

/* Whatever ranges the model reports, each element is summed once, and not before it is complete. */
static void buckets_sum(struct comm *comm)
{
	const size_t count = 5003, steps[] = {5003, 1, 100, 1700};
	const uint32_t rank = comm_rank(comm), size = comm_size(comm);
	struct train_buckets *buckets;
	float *gradients;
	void *memory;

	CHECK_OK(comm_memory_alloc(comm, count * sizeof(float), &memory));
	gradients = memory;
	CHECK_OK(train_buckets_create(comm, gradients, count, 4096, NULL, &buckets));
	for (size_t s = 0; s < sizeof steps / sizeof *steps; s++) {
		for (size_t i = 0; i < count; i++)
			gradients[i] = NAN; /* not yet computed */
		train_buckets_begin(buckets);
		for (size_t end = count; end;) {
			size_t begin = end > steps[s] ? end - steps[s] : 0;
			for (size_t i = begin; i < end; i++)
				gradients[i] = (float)(i % 100 * (rank + 1));
			train_buckets_completed(buckets, begin, end - begin);
			end = begin;
		}
		CHECK_OK(train_buckets_finish(buckets));
		CHECK(train_buckets_not_finite(buckets) == SIZE_MAX);
		size_t wrong = 0;
		for (size_t i = 0; i < count; i++)
			wrong += gradients[i] != (float)(i % 100 * (size * (size + 1) / 2));
		CHECK(!wrong, "rank %u, ranges of %zu: %zu wrong", rank, steps[s], wrong);
	}

	/* Who made a gradient that is not finite is known after the sum, when all have it. */
	for (size_t i = 0; i < count; i++)
		gradients[i] = 3e38f; /* finite, though its square and its sum are not, as f32 */
	if (rank == size - 1)
		gradients[1234] = INFINITY;
	train_buckets_begin(buckets);
	train_buckets_completed(buckets, 0, count);
	CHECK_OK(train_buckets_finish(buckets));
	CHECK(train_buckets_not_finite(buckets) == (rank == size - 1 ? 1234 : SIZE_MAX), "rank %u: %zu", rank,
	      train_buckets_not_finite(buckets));
	train_buckets_free(buckets);
	comm_memory_free(comm, memory);
}

/* With leaves: the bits of one tree over all micro-batches, whoever had which, and however backward cuts its ranges. */
#define LEAVES 7
static float leaf_value(uint32_t leaf, size_t i)
{
	return (float)(i * 7919 % 1009 + 1) / (float)(leaf * 13 + 3) * (float)(1u << (i + leaf * 5) % 20);
}

static void leaves_are_summed(struct comm *comm)
{
	enum { COUNT = 5003 };
	const size_t steps[] = {5003, 100, 1700};
	struct comm_leaves leaves;
	struct train_buckets *buckets;
	void *memory;

	CHECK_OK(comm_leaves_open(comm, LEAVES, &leaves));
	CHECK_OK(comm_memory_alloc(comm, leaves.held * train_buckets_stride(COUNT) * sizeof(float), &memory));
	CHECK_OK(train_buckets_create(comm, memory, COUNT, 4096, &leaves, &buckets));
	for (size_t s = 0; s < sizeof steps / sizeof *steps; s++) {
		const bool infinite = s == 2 && comm_rank(comm) == comm_size(comm) - 1;
		memset(memory, 0, COUNT * sizeof(float)); /* the others are cleared by the buckets, of what the step before has left */
		for (uint64_t index = 0; index < leaves.end - leaves.first; index++) {
			float *gradients = train_buckets_leaf(buckets, index);
			const bool last = index + 1 == leaves.end - leaves.first;
			if (last)
				train_buckets_begin(buckets);
			for (size_t end = COUNT; end;) {
				size_t begin = end > steps[s] ? end - steps[s] : 0;
				for (size_t i = begin; i < end; i++)
					gradients[i] += i == 1234 && infinite && !index ? INFINITY : leaf_value(leaves.first + (uint32_t)index, i);
				if (last)
					train_buckets_completed(buckets, begin, end - begin);
				end = begin;
			}
			if (!last)
				train_buckets_add_leaf(buckets, index);
		}
		CHECK_OK(train_buckets_finish(buckets));
		CHECK(train_buckets_not_finite(buckets) == (infinite ? 1234 : SIZE_MAX));
		size_t wrong = 0;
		for (size_t i = 0; i < COUNT; i++) {
			const float l[LEAVES] = {leaf_value(0, i), leaf_value(1, i), leaf_value(2, i), leaf_value(3, i), leaf_value(4, i), leaf_value(5, i),
						 leaf_value(6, i)};
			const float expected = ((l[0] + l[1]) + (l[2] + l[3])) + ((l[4] + l[5]) + l[6]);
			wrong += memcmp((float *)memory + i, &expected, sizeof expected) != 0;
		}
		CHECK(wrong == (s == 2), "rank %u of %u, ranges of %zu: %zu wrong", comm_rank(comm), comm_size(comm), steps[s], wrong);
	}
	train_buckets_free(buckets);
	comm_memory_free(comm, memory);
}

/* Communication does not wait for the end of backward: what is complete is summed while the rest is still being computed. */
static void buckets_start_early(struct comm *comm)
{
	const size_t count = 4096;
	struct train_buckets *buckets;
	struct comm_counters before, now;
	void *memory;
	size_t started = 0, offset, size;

	CHECK_OK(comm_memory_alloc(comm, count * sizeof(float), &memory));
	memset(memory, 0, count * sizeof(float));
	CHECK_OK(train_buckets_create(comm, memory, count, 1024, NULL, &buckets));
	for (size_t i = 0; i < train_buckets_count(buckets); i++) {
		train_buckets_range(buckets, i, &offset, &size);
		started += offset >= count / 2;
	}
	comm_counters_read(comm, &before);
	train_buckets_begin(buckets);
	train_buckets_completed(buckets, count / 2, count / 2);
	const int64_t end = st_now_ns() + 20 * ST_NS_PER_S;
	do {
		train_buckets_completed(buckets, count / 2, 0); /* the next layers: nothing new is complete */
		comm_counters_read(comm, &now);
	} while (now.operations - before.operations < started && st_now_ns() < end);
	CHECK(started >= 8 && now.operations - before.operations == started, "%llu of %zu buckets before the end of backward",
	      (unsigned long long)(now.operations - before.operations), started);
	train_buckets_completed(buckets, 0, count / 2);
	CHECK_OK(train_buckets_finish(buckets));
	train_buckets_free(buckets);
	comm_memory_free(comm, memory);
}

/* The mean is summed over micro-batches in their order, so that its bits don't depend on how ranks shared them. */
static double expected_mean;

static void votes_are_counted(struct comm *comm)
{
	const uint32_t rank = comm_rank(comm), size = comm_size(comm);
	const size_t mine = 8 / size;
	struct train_ballot *ballot;
	struct train_tally tally;
	double losses[8];

	CHECK_OK(train_ballot_create(comm, mine * size, &ballot));
	for (size_t i = 0; i < mine; i++)
		losses[i] = 1.0 / (3.0 + (double)(rank * mine + i));
	struct train_vote vote = {.elapsed_ns = 1000 + rank};
	CHECK_OK(train_ballot_vote(ballot, &vote, losses, &tally));
	CHECK(tally.loss == expected_mean && tally.not_finite_rank == UINT32_MAX && !tally.stop && tally.longest_elapsed_ns == 999 + size);
	if (rank == size / 2) {
		vote.not_finite = 77;
		vote.stop = 15;
	}
	if (rank == size - 1)
		losses[0] = NAN;
	CHECK_OK(train_ballot_vote(ballot, &vote, losses, &tally));
	CHECK(tally.not_finite_rank == size / 2 && tally.not_finite == 77 && tally.stop == 15 && tally.stop_rank == size / 2);
	CHECK(isnan(tally.loss));
	train_ballot_free(ballot);
}

static void verdicts_are_shared(struct comm *comm)
{
	const uint32_t rank = comm_rank(comm), size = comm_size(comm);
	bool agreed = false;
	uint64_t digest = 1;

	CHECK_OK(train_agree(comm, ST_OK, &agreed));
	CHECK(!agreed);
	enum st_status mine = rank == 1 ? st_fail(ST_ERR_DATA, "no such tensor") : ST_OK;
	CHECK_FAILS(train_agree(comm, mine, &agreed), ST_ERR_DATA, "rank 1 on node2: no such tensor");
	CHECK(agreed);
	agreed = false;
	mine = st_fail(ST_ERR_CONFIG, "c.json: steps: seen 0");
	CHECK_FAILS(train_agree(comm, mine, &agreed), ST_ERR_CONFIG, "c.json: steps: seen 0");
	CHECK(agreed && !strstr(st_message(), "rank"), "%s", st_message());
	agreed = false;
	mine = rank == 0 ? st_fail(ST_ERR_NOMEM, "disk full") : ST_OK;
	CHECK_FAILS(train_agree_with_first(comm, mine, &agreed), ST_ERR_NOMEM, "disk full");
	CHECK(agreed);
	CHECK_OK(train_agree_same(comm, &digest, sizeof digest, "configuration", &agreed));
	digest += rank == size - 1;
	CHECK_FAILS(train_agree_same(comm, &digest, sizeof digest, "configuration", &agreed), ST_ERR_MISMATCH, "has another configuration than rank 0");
}

/* 3,000 tensors: more than one exchange of hashes. */
#define TENSORS 3000
static struct train_tensor tensors[TENSORS];

static void replicas_are_compared(struct comm *comm)
{
	const uint32_t rank = comm_rank(comm), size = comm_size(comm);
	float *parameters = calloc(TENSORS, sizeof *parameters), *m = calloc(TENSORS, sizeof *m);
	struct train_buffers buffers = {.tensors = tensors, .tensor_count = TENSORS, .elements = TENSORS, .parameters = parameters,
					.state_count = 1, .state_names = {"m"}, .states = {m}};
	char hash[33], text[200];

	CHECK_OK(train_replicas_compare(comm, &buffers, 10, hash));
	CHECK(strlen(hash) == 32);
	if (rank == size - 1)
		m[2222] = -0.0f; /* equal to its peers' as a number, not as bits */
	snprintf(text, sizeof text, "replicas differ at step 40: rank %u on %s differs in optimizer.m.t.2222", size - 1, (size - 1) % 2 ? "node2" : "node1");
	CHECK_FAILS(train_replicas_compare(comm, &buffers, 40, hash), ST_ERR_DIVERGED, size > 2 ? text : "no majority of the 2 replicas");
	for (size_t i = 0; i < TENSORS; i++)
		parameters[i] = (float)rank;
	CHECK_FAILS(train_replicas_compare(comm, &buffers, 50, hash), ST_ERR_DIVERGED, "no majority of the ");
	CHECK(strstr(st_message(), "differ in t.0, t.1, t.2 and ") && strlen(st_message()) < 600, "%s", st_message());
	free(parameters);
	free(m);
}

/* A whole run: data, model, buckets, optimizer, checkpoints; rank 0's losses go to a log file. */
static size_t runs;
static bool reproducible;

static void train_tiny(struct comm *comm)
{
	struct train_config config;
	char data[300], log[300], checkpoints[300], batch[] = "batch.global=8", micro[] = "batch.micro=1", layers[] = "model.layers=1";
	char heads[] = "model.heads=2", channels[] = "model.channels=8", context[] = "model.context=8", vocabulary[] = "model.vocabulary=256";
	char steps[] = "steps=6", every[] = "checkpoint.every=3", evaluate[] = "eval.every=3", quiet[] = "log.every=1000", bucket[] = "bucket_bytes=4096";
	char threads[] = "threads=1", bits[] = "reproducible=true", *assignments[] = {data, log, checkpoints, batch, micro, layers, heads, channels, context, vocabulary, steps,
							every, evaluate, quiet, bucket, threads, bits};
	struct train_run *run = calloc(1, sizeof *run);

	snprintf(data, sizeof data, "data.directory=%s/data", temporary_directory);
	snprintf(log, sizeof log, "log.file=%s/log.%zu", temporary_directory, runs);
	snprintf(checkpoints, sizeof checkpoints, "checkpoint.directory=%s/run.%zu", temporary_directory, runs);
	char path[300];
	snprintf(path, sizeof path, "%s/empty.json", temporary_directory);
	CHECK_OK(train_config_load(path, assignments, sizeof assignments / sizeof *assignments - !reproducible, &config));
	enum st_status status = train_run_open(comm, &config, "empty.json", run);
	CHECK(status == ST_OK, "%s", st_message());
	if (status == ST_OK) {
		CHECK_OK(train_loop(run));
		int64_t sum = 0;
		for (int phase = 0; phase < TRAIN_PHASE_COUNT; phase++)
			sum += run->meter.record.phase_ns[phase];
		CHECK(sum == run->meter.record.step_ns && sum > 0, "phases add up to %lld of %lld ns", (long long)sum,
		      (long long)run->meter.record.step_ns);
		CHECK(run->meter.record.tokens == 8 * run->my_micro && run->my_micro - 8 / comm_size(comm) <= reproducible && run->meter.record.step == 6);
	}
	train_run_close(run);
	train_config_free(&config);
	free(run);
}

static double last_loss(size_t index)
{
	char path[300], line[512];
	double loss = NAN;
	snprintf(path, sizeof path, "%s/log.%zu", temporary_directory, index);
	FILE *file = fopen(path, "r");
	while (file && fgets(line, sizeof line, file))
		if (!strncmp(line, "{\"step\":6,", 10))
			sscanf(line, "{\"step\":6,\"loss\":%lf", &loss);
	if (file)
		fclose(file);
	return loss;
}

static void ranks_train_alike(void)
{
	st_command_main cmd_data;
	char text[1000];
	int quiet = dup(STDOUT_FILENO);

	for (size_t i = 0; i < sizeof text; i++)
		text[i] = (char)('a' + i * i % 7);
	temporary_file("text", text, sizeof text);
	temporary_file("empty.json", "{}", 2);
	FILE *null = freopen("/dev/null", "w", stdout);
	char *argv[] = {(char *)"data", (char *)temporary_path("text"), (char *)"-o", (char *)temporary_path("data"), NULL};
	CHECK(null && cmd_data(4, argv) == 0);
	const uint32_t worlds[] = {1, 4, 4};
	for (runs = 0; runs < 3; runs++)
		with_ranks(worlds[runs], train_tiny);
	const uint32_t other_worlds[] = {1, 3, 5};
	reproducible = true;
	for (; runs < 6; runs++)
		with_ranks(other_worlds[runs - 3], train_tiny);
	fflush(stdout);
	dup2(quiet, STDOUT_FILENO);
	close(quiet);
	CHECK(fabs(last_loss(0) - last_loss(1)) < 1e-5 && last_loss(1) == last_loss(2), "%.17g %.17g %.17g", last_loss(0), last_loss(1),
	      last_loss(2));
	CHECK(fabs(last_loss(0) - last_loss(3)) < 1e-5 && last_loss(3) == last_loss(4) && last_loss(3) == last_loss(5), "%.17g %.17g %.17g",
	      last_loss(3), last_loss(4), last_loss(5));
}

int main(void)
{
	temporary_make();
	with_ranks(1, buckets_are_cut_well);
	for (int i = 0; i < 8; i++)
		expected_mean += 1.0 / (3.0 + i);
	expected_mean /= 8;
	const uint32_t worlds[] = {1, 2, 4};
	for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) {
		with_ranks(worlds[i], buckets_sum);
		with_ranks(worlds[i], buckets_start_early);
		with_ranks(worlds[i], votes_are_counted);
	}
	for (uint32_t size = 1; size <= LEAVES; size++)
		with_ranks(size, leaves_are_summed);
	with_ranks(3, verdicts_are_shared);
	for (size_t i = 0; i < TENSORS; i++) {
		tensors[i] = (struct train_tensor){.offset = i, .elements = 1, .rows = 1, .columns = 1};
		snprintf(tensors[i].name, sizeof tensors[i].name, "t.%zu", i);
	}
	with_ranks(2, replicas_are_compared);
	with_ranks(5, replicas_are_compared);
	ranks_train_alike();
	return check_result();
}
