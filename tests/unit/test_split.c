/*
 * Communicators out of communicators, over ranks as threads: who is in which and in what order, that each works by itself and beside the
 * others, in which order they may be freed, and what the ranks are told when one disagrees, goes, or fails.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "check.h"
#include "common/clock.h"
#include "libcomm/bootstrap.h"
#include "libcomm/comm.h"
#include "libcomm/control_internal.h"
#include "libcomm/comm_internal.h"

#define MAX_RANKS 24

struct job;
typedef void body(struct job *job, uint32_t rank, struct comm *comm);

struct job {
	uint32_t size;
	struct bootstrap *bootstraps[MAX_RANKS];
	struct comm_options options;
	body *body;
	pthread_barrier_t all; /* outside the library */
	char texts[MAX_RANKS][1024];
	enum st_status ends[MAX_RANKS];
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
	job->body(job, thread->rank, comm); /* frees it */
	return NULL;
}

static void run_job(uint32_t size, const char *const *nodes, body *work, struct job *job)
{
	pthread_t threads[MAX_RANKS];
	struct thread arguments[MAX_RANKS];
	if (!job->options.slots)
		REQUIRE(comm_options_init(&job->options) == ST_OK);
	job->size = size;
	job->body = work;
	REQUIRE(bootstrap_threads(size, nodes, job->bootstraps) == ST_OK);
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

static void note(struct job *job, uint32_t rank, enum st_status status)
{
	job->ends[rank] = status;
	snprintf(job->texts[rank], sizeof job->texts[rank], "%s", status == ST_OK ? "" : st_message());
}

/* The sum over the communicator of (number of the rank in the job + 1) in every element, and everybody's number by collect. */
static void use(struct comm *comm, const uint32_t *members, uint32_t size)
{
	enum { COUNT = 5000 };
	int64_t expected = 0, *data = malloc(COUNT * sizeof *data);
	uint32_t mine = comm_world_rank(comm, comm_rank(comm)), all[MAX_RANKS], chosen = mine;
	struct comm_request *request;
	REQUIRE(data && comm_size(comm) == size);
	for (uint32_t m = 0; m < size; m++) {
		expected += members[m] + 1;
		REQUIRE(comm_world_rank(comm, m) == members[m]);
	}
	REQUIRE(comm_world_rank(comm, size) == UINT32_MAX && members[comm_rank(comm)] == mine);
	for (int i = 0; i < COUNT; i++)
		data[i] = mine + 1;
	REQUIRE(comm_allreduce(comm, data, data, COUNT, COMM_I64, COMM_SUM, &request) == ST_OK);
	REQUIRE(comm_wait(comm, &request) == ST_OK);
	for (int i = 0; i < COUNT; i++)
		REQUIRE(data[i] == expected);
	for (int i = 0; i < COUNT; i++)
		data[i] = comm_rank(comm) == size - 1 ? (int64_t)mine + i : -1;
	REQUIRE(comm_broadcast(comm, data, COUNT, COMM_I64, size - 1, &request) == ST_OK);
	REQUIRE(comm_wait(comm, &request) == ST_OK);
	for (int i = 0; i < COUNT; i++)
		REQUIRE(data[i] == members[size - 1] + i);
	REQUIRE(comm_collect(comm, &mine, sizeof mine, all) == ST_OK);
	REQUIRE(!memcmp(all, members, size * sizeof *all));
	REQUIRE(comm_decide(comm, &chosen, sizeof chosen) == ST_OK);
	REQUIRE(chosen == members[0]);
	free(data);
}

/* The members of color by the rule of MPI_Comm_split. */
static uint32_t model(const int32_t *colors, const int32_t *keys, const uint32_t *parents, uint32_t size, int32_t color, uint32_t *members)
{
	uint32_t count = 0, order[MAX_RANKS];
	for (uint32_t r = 0; r < size; r++) {
		if (colors[r] != color)
			continue;
		uint32_t at = count++;
		for (; at > 0 && keys[order[at - 1]] > keys[r]; at--)
			order[at] = order[at - 1];
		order[at] = r;
	}
	for (uint32_t i = 0; i < count; i++)
		members[i] = parents[order[i]];
	return count;
}

static uint32_t draw(uint64_t *state)
{
	*state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)(*state >> 33);
}

/* ---- semantics ----------------------------------------------------------------------------------------------------- */

#define LIVE 12

/* Splits drawn at random, of the world and of what came out of it, many alive at once; all ranks draw alike. */
static void random_splits(struct job *job, uint32_t rank, struct comm *world)
{
	struct {
		struct comm *comm;
		uint32_t members[MAX_RANKS], count;
	} live[LIVE + 1];
	uint32_t alive = 1;
	uint64_t state = job->size * 7919;
	const int rounds = getenv("LONG") && *getenv("LONG") ? 200 : 6;

	live[0].comm = world;
	live[0].count = job->size;
	for (uint32_t r = 0; r < job->size; r++)
		live[0].members[r] = r;
	use(world, live[0].members, job->size);
	for (int round = 0; round < rounds; round++) {
		int32_t colors[MAX_RANKS], keys[MAX_RANKS];
		uint32_t choice = draw(&state);
		for (uint32_t r = 0; r < MAX_RANKS; r++) {
			colors[r] = (int32_t)(draw(&state) % 4) - 1;
			keys[r] = (int32_t)(draw(&state) % 3) - 1;
		}
		struct comm *sub = NULL;
		if (alive == LIVE) {
			for (uint32_t i = 1; i < alive; i++)
				comm_free(live[i].comm);
			alive = 1;
		}
		REQUIRE(comm_split(world, colors[rank], keys[rank], &sub) == ST_OK);
		REQUIRE(!sub == (colors[rank] == COMM_NO_COLOR));
		if (!sub)
			continue;
		live[alive].comm = sub;
		live[alive].count = model(colors, keys, live[0].members, job->size, colors[rank], live[alive].members);
		use(sub, live[alive].members, live[alive].count);
		REQUIRE(!strcmp(comm_host(sub, comm_rank(sub)), comm_host(world, rank)));
		if (choice % 2) {
			/* Its ranks are numbered anew. */
			struct comm *nested = NULL;
			uint32_t members[MAX_RANKS], mine = comm_rank(sub);
			uint32_t expected = model(colors, keys, live[alive].members, comm_size(sub), colors[mine], members);
			REQUIRE(comm_split(sub, colors[mine], keys[mine], &nested) == ST_OK);
			REQUIRE(!nested == (colors[mine] == COMM_NO_COLOR));
			if (nested) {
				use(nested, members, expected);
				REQUIRE(strstr(comm_name(nested), comm_name(sub)) == comm_name(nested));
			}
			use(sub, live[alive].members, live[alive].count); /* not disturbed, and with the other alive */
			if (nested)
				use(nested, members, expected);
			comm_free(nested);
		}
		alive++;
	}
	/* The first first: what was split off lives on, and the last one leaves the job. */
	comm_free(world);
	for (uint32_t i = 1; i < alive; i++) {
		use(live[i].comm, live[i].members, live[i].count);
		comm_free(live[i].comm);
	}
}

static void test_semantics(void)
{
	static const char *const two[] = {"a", "b", "a", "b", "a", "b"}, *const uneven[] = {"a", "b", "b", "b", "c"};
	run_job(1, NULL, random_splits, &(struct job){0});
	run_job(6, two, random_splits, &(struct job){0});
	run_job(5, uneven, random_splits, &(struct job){0});
}

/* Operations in flight on two communicators, finished in another order than issued, also across a split. */
static void beside_each_other(struct job *job, uint32_t rank, struct comm *world)
{
	enum { COUNT = 100000 };
	struct comm *sub = NULL, *second = NULL;
	float *a = malloc(COUNT * sizeof *a), *b = malloc(COUNT * sizeof *b);
	struct comm_request *on_world, *on_sub;
	REQUIRE(a && b);
	REQUIRE(comm_split(world, (int32_t)(rank % 2), 0, &sub) == ST_OK);
	for (int round = 0; round < 5; round++) {
		for (int i = 0; i < COUNT; i++)
			a[i] = b[i] = (float)rank;
		/* The odd ranks wait for the world's operation first, the even ones for the other. */
		REQUIRE(comm_allreduce(world, a, a, COUNT, COMM_F32, COMM_SUM, &on_world) == ST_OK);
		REQUIRE(comm_allreduce(sub, b, b, COUNT, COMM_F32, COMM_SUM, &on_sub) == ST_OK);
		if (round == 3) {
			/* The even ranks split with their operations in flight, the odd ones finish them first: nobody waits in a circle. */
			if (rank % 2)
				REQUIRE(comm_wait(world, &on_world) == ST_OK);
			REQUIRE(comm_split(world, 5, -(int32_t)rank, &second) == ST_OK);
			REQUIRE(comm_size(second) == job->size && comm_rank(second) == job->size - 1 - rank);
		}
		if (!on_world) {
			REQUIRE(comm_wait(sub, &on_sub) == ST_OK);
		} else {
			/* Waiting on one communicator does not move the other: all wait in one order. */
			REQUIRE(comm_wait(world, &on_world) == ST_OK);
			REQUIRE(comm_wait(sub, &on_sub) == ST_OK);
		}
		float all = 0, some = 0;
		for (uint32_t r = 0; r < job->size; r++) {
			all += (float)r;
			some += r % 2 == rank % 2 ? (float)r : 0;
		}
		for (int i = 0; i < COUNT; i++)
			REQUIRE(a[i] == all && b[i] == some);
	}
	comm_free(sub);
	comm_free(world);
	comm_free(second);
	free(a);
	free(b);
}

static void test_beside_each_other(void)
{
	static const char *const two[] = {"a", "a", "a", "b", "b", "b"};
	struct job job = {0};
	REQUIRE(comm_options_init(&job.options) == ST_OK);
	job.options.arrival_timeout_ms = 60000;
	run_job(6, two, beside_each_other, &job);
}

/* ---- who has no part passes on ------------------------------------------------------------------------------------- */

/* The edges of the tree lead through ranks without a part, which sit idle. */
static void among_some(struct job *job, uint32_t rank, struct comm *world)
{
	static const uint32_t members[] = {1, 2, 4, 5, 7, 10};
	struct comm *sub = NULL;
	bool in = false;
	for (size_t i = 0; i < sizeof members / sizeof *members; i++)
		in |= members[i] == rank;
	REQUIRE(comm_split(world, in ? 0 : COMM_NO_COLOR, 0, &sub) == ST_OK);
	for (int i = 0; sub && i < 20; i++)
		use(sub, members, sizeof members / sizeof *members);
	comm_free(sub);
	pthread_barrier_wait(&job->all);
	CHECK(!world->control->root.next && world->control->groups == &world->control->root, "a rank remembers communicators that are gone");
	comm_free(world);
}

/* The leaders, who passed on, leave for good while others decide: what is on its way then must not be lost. */
static void leaders_leave(struct job *job, uint32_t rank, struct comm *world)
{
	static const uint32_t members[] = {1, 2, 4, 5, 7, 8};
	struct comm *sub = NULL;
	bool in = rank % 3 != 0;
	REQUIRE(comm_split(world, in ? 0 : COMM_NO_COLOR, 0, &sub) == ST_OK);
	comm_free(world);
	if (!sub)
		return;
	struct st_deadline end = st_deadline_in_ms(900);
	for (uint32_t going = 1; going;) {
		uint32_t all[MAX_RANKS];
		enum st_status status = comm_collect(sub, &rank, sizeof rank, all);
		if (status != ST_OK) {
			note(job, rank, status);
			break;
		}
		REQUIRE(!memcmp(all, members, sizeof members));
		going = !st_deadline_expired(&end);
		if (comm_decide(sub, &going, sizeof going) != ST_OK) {
			note(job, rank, ST_ERR_ABORTED);
			break;
		}
	}
	comm_free(sub);
}

static void test_passing_on(void)
{
	static const char *const nodes[] = {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"};
	static const char *const three[] = {"a", "a", "a", "b", "b", "b", "c", "c", "c"};
	run_job(11, nodes, among_some, &(struct job){0});
	for (int round = 0; round < 3; round++) {
		struct job job = {0};
		REQUIRE(comm_options_init(&job.options) == ST_OK);
		job.options.arrival_timeout_ms = 4000;
		run_job(9, three, leaders_leave, &job);
		for (uint32_t r = 0; r < 9; r++)
			CHECK(job.ends[r] == ST_OK, "rank %u: %s", r, job.texts[r]);
	}
}

/* ---- failures ------------------------------------------------------------------------------------------------------ */

static void split_or_reduce(struct job *job, uint32_t rank, struct comm *world)
{
	struct comm *sub = NULL;
	float x = 1;
	struct comm_request *request;
	enum st_status status;
	if (rank == 2) {
		status = comm_allreduce(world, &x, &x, 1, COMM_F32, COMM_SUM, &request);
		if (status == ST_OK)
			status = comm_wait(world, &request);
	} else {
		status = comm_split(world, 0, 0, &sub);
	}
	note(job, rank, status);
	comm_free(world);
}

static void split_or_collect(struct job *job, uint32_t rank, struct comm *world)
{
	struct comm *sub = NULL;
	uint64_t mine = 0, all[MAX_RANKS];
	note(job, rank, rank == 3 ? comm_collect(world, &mine, sizeof mine, all) : comm_split(world, 0, 0, &sub));
	comm_free(world);
}

/* Rank 1 is done with the communicator, the others are not. */
static void leaves_early(struct job *job, uint32_t rank, struct comm *world)
{
	struct comm *sub = NULL;
	float x[100] = {0};
	struct comm_request *request;
	REQUIRE(comm_split(world, 0, 0, &sub) == ST_OK);
	pthread_barrier_wait(&job->all);
	if (rank == 1) {
		comm_free(sub);
		pthread_barrier_wait(&job->all);
		note(job, rank, ST_OK);
	} else {
		enum st_status status = comm_allreduce(sub, x, x, 100, COMM_F32, COMM_SUM, &request);
		if (status == ST_OK)
			status = comm_wait(sub, &request);
		note(job, rank, status);
		comm_free(sub);
		pthread_barrier_wait(&job->all);
	}
	comm_free(world);
}

static void leaves_before_a_decision(struct job *job, uint32_t rank, struct comm *world)
{
	struct comm *sub = NULL;
	REQUIRE(comm_split(world, 0, 0, &sub) == ST_OK);
	pthread_barrier_wait(&job->all);
	if (rank != 1)
		note(job, rank, comm_decide(sub, &(uint32_t){0}, sizeof rank));
	comm_free(sub);
	pthread_barrier_wait(&job->all);
	comm_free(world);
}

/* Rank 3 fails inside its communicator: those in the other one hear of it, by its number in the job. */
static void fails_inside(struct job *job, uint32_t rank, struct comm *world)
{
	struct comm *sub = NULL;
	float x[100] = {0};
	struct comm_request *request;
	REQUIRE(comm_split(world, (int32_t)(rank % 2), 0, &sub) == ST_OK);
	pthread_barrier_wait(&job->all);
	if (rank == 3) {
		comm_abort(sub, "disk full");
		note(job, rank, comm_decide(sub, &(uint32_t){0}, sizeof rank));
	} else {
		enum st_status status = ST_OK;
		for (int i = 0; status == ST_OK && i < 1000000; i++) {
			status = comm_allreduce(sub, x, x, 100, COMM_F32, COMM_SUM, &request);
			if (status == ST_OK)
				status = comm_wait(sub, &request);
		}
		note(job, rank, status);
	}
	comm_free(sub);
	comm_free(world);
}

/* Other counts inside a communicator. */
static void disagrees_inside(struct job *job, uint32_t rank, struct comm *world)
{
	struct comm *sub = NULL;
	float x[100] = {0};
	struct comm_request *request;
	enum st_status status = ST_OK;
	REQUIRE(comm_split(world, (int32_t)(rank % 2), -(int32_t)rank, &sub) == ST_OK);
	pthread_barrier_wait(&job->all);
	if (rank % 2) {
		status = comm_allreduce(sub, x, x, rank == 3 ? 7 : 8, COMM_F32, COMM_SUM, &request);
		if (status == ST_OK)
			status = comm_wait(sub, &request);
	} else {
		for (uint32_t chosen = 0; status == ST_OK;)
			status = comm_decide(sub, &chosen, sizeof chosen);
	}
	note(job, rank, status);
	comm_free(sub);
	comm_free(world);
}

static void test_failures(void)
{
	static const char *const nodes[] = {"a", "a", "b", "b", "c"};
	struct job job;
#define RUN(work)                                                                     \
	do {                                                                          \
		memset(&job, 0, sizeof job);                                          \
		REQUIRE(comm_options_init(&job.options) == ST_OK);                    \
		job.options.arrival_timeout_ms = 600000; /* no deadline helps here */ \
		run_job(5, nodes, work, &job);                                        \
	} while (0)
#define ALL_SAY(status, text)                                                                                                               \
	for (uint32_t r = 0; r < 5; r++)                                                                                                    \
	CHECK((job.ends[r] == ST_ERR_ABORTED || job.ends[r] == (status)) && strstr(job.texts[r], text), \
	      "rank %u: %s: %s", r, st_status_name(job.ends[r]), job.texts[r])

	RUN(split_or_reduce);
	ALL_SAY(ST_ERR_ABORTED, "rank 2 on b has called collective 1 without having done so");
	RUN(split_or_collect);
	ALL_SAY(ST_ERR_ABORTED, "ranks disagree in decision ");
	ALL_SAY(ST_ERR_ABORTED, ": rank 3 on b gathers 8 bytes, rank 0 on a splits by 8 bytes");
	RUN(leaves_early);
	for (uint32_t r = 0; r < 5; r++)
		if (r != 1)
			CHECK(job.ends[r] == ST_ERR_ABORTED && strstr(job.texts[r], "rank 1 on a left during allreduce 1 of 100 f32, sum in communicator 1:0"),
			      "rank %u: %s", r, job.texts[r]);
	RUN(leaves_before_a_decision);
	for (uint32_t r = 0; r < 5; r++)
		if (r != 1)
			CHECK(job.ends[r] == ST_ERR_ABORTED && strstr(job.texts[r], "rank 1 on a left during decision ") &&
				      strstr(job.texts[r], " in communicator 1:0: it has freed"),
			      "rank %u: %s", r, job.texts[r]);
	RUN(fails_inside);
	ALL_SAY(ST_ERR_ABORTED, "rank 3 on b failed: disk full");
	RUN(disagrees_inside);
	for (uint32_t r = 0; r < 5; r++)
		CHECK(strstr(job.texts[r], "in communicator 1:1") && strstr(job.texts[r], "allreduce 1 of 7 f32") &&
			      strstr(job.texts[r], "allreduce 1 of 8 f32") && strstr(job.texts[r], "rank 3 on b") && strstr(job.texts[r], "rank 1 on a"),
		      "rank %u: %s", r, job.texts[r]);
}

static void bad_arguments(struct job *job, uint32_t rank, struct comm *world)
{
	struct comm *sub = (struct comm *)world;
	(void)job;
	(void)rank;
	CHECK_FAILS(comm_split(world, -2, 0, &sub), ST_ERR_USAGE, "color -2");
	CHECK(sub == world, "set without success");
	comm_free(world);
}

/* ---- frames that no correct rank sends ----------------------------------------------------------------------------- */

static void strange_contexts(struct job *job, uint32_t rank, struct comm *world)
{
	struct control *control = world->control;
	struct control_group *forming;
	uint64_t nothing = 0;
	uint32_t zero = 0;
	if (rank == 1) {
		REQUIRE(control_group_announce(control, 99, "forming", &forming) == ST_OK);
		pthread_mutex_lock(&control->lock);
	} else {
		REQUIRE(control_group_announce(control, 99, "forming", &forming) == ST_OK);
		CHECK_FAILS(control_group_announce(control, 99, "again", &forming), ST_ERR_INTERNAL, "another's");
	}
	pthread_barrier_wait(&job->all);
	if (rank == 1) {
		/* Contexts that nobody has: passed on, forgotten. */
		for (uint64_t context = 1000; context < 3000; context++)
			control_flood(control, NULL, WIRE_DECISION,
				      &(struct wire_decision){.context = context, .sequence = context * 77, .kind = WIRE_DECISION_GATHER, .rank = 1, .bytes = 8,
							.origin = 1, .number = ++control->heard[1].last},
				      sizeof(struct wire_decision), &nothing, 8);
		control_flood(control, NULL, WIRE_GOODBYE, &(struct wire_goodbye){.rank = 1, .context = 4444, .origin = 1, .number = ++control->heard[1].last}, sizeof(struct wire_goodbye), NULL, 0);
		pthread_mutex_unlock(&control->lock);
	}
	/* All is well so far. */
	REQUIRE(comm_decide(world, &zero, sizeof zero) == ST_OK);
	pthread_mutex_lock(&control->lock);
	unsigned groups = 0;
	for (struct control_group *group = control->groups; group; group = group->next)
		groups++;
	CHECK(groups == 2, "%u groups", groups);
	/* One that is only forming can't be past its first decision, which is of no bytes. */
	if (rank == 1)
		control_flood(control, NULL, WIRE_DECISION,
			      &(struct wire_decision){.context = 99, .sequence = 1, .kind = WIRE_DECISION_GATHER, .rank = 1, .origin = 1,
							.number = ++control->heard[1].last},
			      sizeof(struct wire_decision), NULL, 0);
	pthread_mutex_unlock(&control->lock);
	note(job, rank, rank ? ST_OK : comm_decide(world, &zero, sizeof zero));
	if (!rank)
		CHECK(job->ends[0] == ST_ERR_ABORTED && strstr(job->texts[0], "rank 1 on a sent bytes that no correct rank sends") &&
			      strstr(job->texts[0], "only forming"),
		      "%s", job->texts[0]);
	pthread_barrier_wait(&job->all);
	comm_free(world);
}

int main(void)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} tests[] = {{"semantics", test_semantics}, {"beside each other", test_beside_each_other}, {"passing on", test_passing_on}, {"failures", test_failures}};
	static const char *const nodes[] = {"a", "a"};
	for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
		int64_t start = st_now_ns();
		tests[i].run();
		printf("%-20s %6.2f s\n", tests[i].name, (double)(st_now_ns() - start) / 1e9);
	}
	run_job(2, nodes, strange_contexts, &(struct job){0});
	run_job(1, NULL, bad_arguments, &(struct job){0});
	return check_result();
}
