/*
 * The engine by itself, without control plane: it runs any plan that the verifier accepts, here a star with three-operand reductions; refuses
 * to bind what does not fit its links; sleeps and is woken; says who is gone and then fails at once.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "common/clock.h"
#include "libcomm/engine.h"

enum { RANKS = 3, SLOTS = 2, CHUNK_BYTES = 1024, ELEMENTS = 100003 };
static const char *const hosts[RANKS] = {"alpha", "beta", "gamma"};

struct rank {
	uint32_t rank;
	const struct transport_ops *ops;
	int fds[RANKS]; /* to each peer; -1: none */
	void (*body)(struct rank *rank, struct engine *engine);
	pthread_barrier_t *all;
};

static struct plan_step *step(struct plan *plan, enum plan_step_kind kind, uint16_t channel)
{
	struct plan_step *made = plan_add_step(plan, kind);
	REQUIRE(made);
	made->channel = channel;
	return made;
}

static void from(struct plan *plan, struct plan_step *to, struct plan_operand source)
{
	REQUIRE(plan_add_source(plan, to, &source));
}

static struct plan_step *into(struct plan *plan, struct plan_step *to, struct plan_operand destination)
{
	REQUIRE(plan_set_destination(plan, to, &destination));
	return to;
}

static struct plan_operand operand(enum plan_space space, uint16_t channel, int32_t ahead)
{
	return (struct plan_operand){.space = space, .channel = channel, .slot = {.base = ahead, .v = {1}}, .chunk = {.base = ahead, .v = {1}}};
}

/* All ranks send to rank 0, which adds and sends back: no good algorithm, but one that is nothing like a ring. */
static struct plan *star(uint32_t rank, bool mapped)
{
	struct plan *plan = plan_new();
	REQUIRE(plan);
	plan->collective = PLAN_ALLREDUCE;
	plan->rank = rank;
	plan->size = RANKS;
	plan->blocks = 1;
	plan->elements = ELEMENTS;
	plan->chunk_elements = CHUNK_BYTES / sizeof(float);
	plan->chunks = (ELEMENTS + plan->chunk_elements - 1) / plan->chunk_elements;
	plan->slots = SLOTS;
	if (rank == 0) {
		for (uint32_t peer = 1; peer < RANKS; peer++) {
			REQUIRE(plan_add_channel(plan, peer, false, mapped, 0));
			REQUIRE(plan_add_channel(plan, peer, true, mapped, 0));
		}
		for (uint16_t in = 0; in < 4; in += 2) {
			into(plan, step(plan, PLAN_READY, in), operand(PLAN_SCRATCH, in, 0));
			into(plan, step(plan, PLAN_READY, in), operand(PLAN_SCRATCH, in, 1));
		}
		step(plan, PLAN_LOOP, 0)->count = plan->chunks;
		step(plan, PLAN_WAIT, 0);
		step(plan, PLAN_WAIT, 2);
		struct plan_step *sum = into(plan, step(plan, PLAN_REDUCE, 0), operand(PLAN_OUTPUT, 0, 0));
		from(plan, sum, operand(PLAN_INPUT, 0, 0));
		from(plan, sum, operand(PLAN_SCRATCH, 0, 0));
		from(plan, sum, operand(PLAN_SCRATCH, 2, 0));
		for (uint16_t in = 0; in < 4; in += 2) {
			struct plan_step *ready = into(plan, step(plan, PLAN_READY, in), operand(PLAN_SCRATCH, in, 2));
			ready->guard = (struct plan_affine){.base = (int32_t)plan->chunks - 3, .v = {-1}};
			from(plan, step(plan, PLAN_PUT, (uint16_t)(in + 1)), operand(PLAN_OUTPUT, 0, 0));
		}
		step(plan, PLAN_END, 0);
		if (!mapped) {
			step(plan, PLAN_FLUSH, 1);
			step(plan, PLAN_FLUSH, 3);
		}
		return plan;
	}
	REQUIRE(plan_add_channel(plan, 0, true, mapped, 0) && plan_add_channel(plan, 0, false, mapped, 0));
	step(plan, PLAN_LOOP, 0)->count = plan->chunks;
	into(plan, step(plan, PLAN_READY, 1), operand(mapped ? PLAN_SCRATCH : PLAN_OUTPUT, 1, 0));
	from(plan, step(plan, PLAN_PUT, 0), operand(PLAN_INPUT, 0, 0));
	step(plan, PLAN_WAIT, 1);
	if (mapped)
		from(plan, into(plan, step(plan, PLAN_COPY, 0), operand(PLAN_OUTPUT, 0, 0)), operand(PLAN_SCRATCH, 1, 0));
	step(plan, PLAN_END, 0);
	if (!mapped)
		step(plan, PLAN_FLUSH, 0);
	return plan;
}

static void *rank_main(void *argument)
{
	struct rank *rank = argument;
	struct engine_options options = {.rank = rank->rank, .host = hosts[rank->rank], .arrival_timeout_ms = 60000, .crowded = true,
					 .stream_bytes = SIZE_MAX};
	struct engine *engine;
	REQUIRE(engine_create(&options, &engine) == ST_OK);
	for (uint32_t peer = 0; peer < RANKS; peer++) {
		struct transport_ends ends = {rank->rank, peer, hosts[rank->rank], hosts[peer]};
		struct link *link;
		if (rank->fds[peer] < 0)
			continue;
		REQUIRE(rank->ops->open(rank->fds[peer], &ends, SLOTS, CHUNK_BYTES, 10000, &link) == ST_OK);
		REQUIRE(engine_add_link(engine, link, 0, 0) == ST_OK);
		REQUIRE(engine_link(engine, peer, 0) == link && !engine_link(engine, peer, 1));
	}
	rank->body(rank, engine);
	engine_free(engine);
	return NULL;
}

static void run_star(const struct transport_ops *ops, void (*body)(struct rank *rank, struct engine *engine))
{
	struct rank ranks[RANKS];
	pthread_t threads[RANKS];
	pthread_barrier_t all;
	REQUIRE(!pthread_barrier_init(&all, NULL, RANKS));
	for (uint32_t r = 0; r < RANKS; r++) {
		ranks[r] = (struct rank){.rank = r, .ops = ops, .body = body, .all = &all};
		memset(ranks[r].fds, 0xff, sizeof ranks[r].fds);
	}
	for (uint32_t peer = 1; peer < RANKS; peer++) {
		int pair[2];
		REQUIRE(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
		ranks[0].fds[peer] = pair[0];
		ranks[peer].fds[0] = pair[1];
	}
	int pair[2];
	REQUIRE(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
	ranks[1].fds[2] = pair[0];
	ranks[2].fds[1] = pair[1];
	for (uint32_t r = 0; r < RANKS; r++)
		REQUIRE(!pthread_create(&threads[r], NULL, rank_main, &ranks[r]));
	for (uint32_t r = 0; r < RANKS; r++)
		REQUIRE(!pthread_join(threads[r], NULL));
	pthread_barrier_destroy(&all);
}

static const struct transport_signature signature = {.count = ELEMENTS, .collective = PLAN_ALLREDUCE, .type = COMM_F32};

static void adds_up(struct rank *rank, struct engine *engine)
{
	struct engine_plan *bound;
	float *input = malloc(ELEMENTS * sizeof(float)), *output = malloc(ELEMENTS * sizeof(float));
	REQUIRE(input && output && engine_bind(engine, star(rank->rank, rank->ops->mapped), 0, &bound) == ST_OK);
	for (int round = 0; round < 20; round++) {
		struct comm_request *request;
		for (size_t i = 0; i < ELEMENTS; i++)
			input[i] = (float)((i + (size_t)round) % 1000 * (rank->rank + 1));
		if (round == 5 && rank->rank == 2)
			usleep(60000); /* the others go to sleep */
		REQUIRE(engine_submit(engine, bound, false, input, output, signature, &request) == ST_OK);
		REQUIRE(engine_plan_users(bound) <= 1);
		REQUIRE(engine_wait(engine, &request) == ST_OK && !request && engine_plan_users(bound) == 0);
		for (size_t i = 0; i < ELEMENTS; i++)
			REQUIRE(output[i] == (float)((i + (size_t)round) % 1000 * 6));
	}
	struct comm_counters counters;
	engine_counters(engine, &counters);
	REQUIRE(counters.operations == 20);
	REQUIRE(rank->ops->mapped ? counters.shm_puts && !counters.tcp_puts : counters.tcp_puts && !counters.shm_puts);
	REQUIRE(rank->rank != 0 || (counters.reduced_bytes == 20ull * 3 * ELEMENTS * sizeof(float) && counters.sleeps));
	pthread_barrier_wait(rank->all);
	engine_unbind(bound);
	free(input);
	free(output);
}

static bool all_mapped(const void *context, uint32_t sender, uint32_t receiver)
{
	(void)sender, (void)receiver;
	return *(const bool *)context;
}

/* Runs a plan and frees it. */
static void run_plan(struct engine *engine, struct plan *plan, const float *input, float *output)
{
	struct engine_plan *bound;
	struct comm_request *request;
	struct transport_signature mine = {.count = plan->elements, .collective = (uint8_t)plan->collective, .type = COMM_F32};
	REQUIRE(engine_bind(engine, plan, 0, &bound) == ST_OK);
	REQUIRE(engine_submit(engine, bound, true, input, output, mine, &request) == ST_OK);
	REQUIRE(engine_wait(engine, &request) == ST_OK);
}

static void shards_may_differ(struct rank *rank, struct engine *engine)
{
	static const uint64_t cases[][RANKS + 1] = {{0, 3, 3, 20003}, {0, 0, 1, 1}, {0, 100, 107, 200}, {0, 1000, 3000, 3001}, {0, 0, 0, 0}};
	const uint32_t me = rank->rank;
	const bool mapped = rank->ops->mapped;
	for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
		const uint64_t *offsets = cases[c], elements = offsets[RANKS];
		float *all = malloc((elements + 1) * sizeof *all), *own = malloc((elements + 1) * sizeof *own);
		REQUIRE(all && own);
		struct plan_shape shape = {.rank = me, .size = RANKS, .elements = elements, .offsets = offsets, .chunk_elements = CHUNK_BYTES / sizeof(float),
					   .slots = SLOTS, .mapped = all_mapped, .mapped_context = &mapped};
		for (uint32_t r = 0; r < RANKS; r++)
			if (offsets[r + 1] - offsets[r] > shape.longest)
				shape.longest = offsets[r + 1] - offsets[r];
		for (int way = 0; way < 2; way++) {
			struct plan *plan;
			shape.collective = PLAN_ALL_GATHER;
			for (uint64_t i = 0; i < elements; i++) {
				own[i] = (float)(i + offsets[me]);
				all[i] = -1;
			}
			REQUIRE((way ? plan_build_pat : plan_build_ring)(&shape, &plan) == ST_OK);
			run_plan(engine, plan, own, all);
			for (uint64_t i = 0; i < elements; i++)
				REQUIRE(all[i] == (float)i);
		}
		struct plan *plan;
		shape.collective = PLAN_REDUCE_SCATTER;
		for (uint64_t i = 0; i < elements; i++)
			all[i] = (float)(i * (me + 1));
		REQUIRE(plan_build_ring(&shape, &plan) == ST_OK);
		run_plan(engine, plan, all, own);
		for (uint64_t i = 0; i < offsets[me + 1] - offsets[me]; i++)
			REQUIRE(own[i] == (float)((offsets[me] + i) * 6));
		free(all);
		free(own);
	}
	pthread_barrier_wait(rank->all);
}

static void misfits_are_not_bound(struct rank *rank, struct engine *engine)
{
	struct engine_plan *bound = NULL;
	struct plan *plan = star(rank->rank, !rank->ops->mapped);
	REQUIRE(engine_bind(engine, plan, 0, &bound) == ST_ERR_INTERNAL && !bound);
	plan = star(rank->rank, rank->ops->mapped);
	plan->channels[0].index = 7;
	REQUIRE(engine_bind(engine, plan, 0, &bound) == ST_ERR_INTERNAL && !bound);
	plan = star(rank->rank, rank->ops->mapped);
	plan->steps[plan->step_count - 1].kind = PLAN_LOOP;
	REQUIRE(engine_bind(engine, plan, 0, &bound) == ST_ERR_INTERNAL && !bound);
	pthread_barrier_wait(rank->all);
}

static void the_one_who_is_gone_is_named(struct rank *rank, struct engine *engine)
{
	struct engine_plan *bound;
	static float buffers[RANKS][2][ELEMENTS];
	struct comm_request *requests[3];
	REQUIRE(engine_bind(engine, star(rank->rank, rank->ops->mapped), 0, &bound) == ST_OK);
	if (rank->rank == 0)
		for (int i = 0; i < 3; i++)
			REQUIRE(engine_submit(engine, bound, false, buffers[0][0], buffers[0][1], signature, &requests[i]) == ST_OK);
	if (rank->rank == 0) {
		REQUIRE(engine_wait(engine, &requests[0]) == ST_ERR_ABORTED);
		REQUIRE(strstr(st_message(), "is gone") && strstr(st_message(), "allreduce 1 of 100003 f32"));
		REQUIRE(strstr(st_message(), "rank 1 on beta") || strstr(st_message(), "rank 2 on gamma"));
		REQUIRE(engine_test(engine, &requests[2]) == ST_ERR_ABORTED && engine_wait(engine, &requests[1]) == ST_ERR_ABORTED);
		REQUIRE(engine_progress(engine) == ST_ERR_ABORTED && engine_failure(engine) == ST_ERR_ABORTED);
		REQUIRE(engine_submit(engine, bound, false, buffers[0][0], buffers[0][1], signature, &requests[0]) == ST_ERR_ABORTED);
	}
	engine_unbind(bound);
}

int main(void)
{
	static const struct transport_ops *const all[] = {&transport_shm, &transport_tcp};
	for (int i = 0; i < 2; i++) {
		const struct plan *view[RANKS];
		for (uint32_t r = 0; r < RANKS; r++)
			view[r] = star(r, all[i]->mapped);
		REQUIRE(plan_verify(view, RANKS, 3) == ST_OK);
		for (uint32_t r = 0; r < RANKS; r++)
			plan_free((struct plan *)(uintptr_t)view[r]);
		run_star(all[i], adds_up);
		run_star(all[i], shards_may_differ);
		run_star(all[i], misfits_are_not_bound);
		run_star(all[i], the_one_who_is_gone_is_named);
	}
	return 0;
}
