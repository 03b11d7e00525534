/*
 * The control plane with ranks as threads: decisions, data sockets, deaths, strangers.  Every wait has a generous deadline of
 * its own, so that what should not hang fails instead.
 */
#include "check.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/digest.h"
#include "libcomm/control_internal.h"

#define MAX_RANKS 40

struct rank;
typedef void body(struct rank *rank);

struct rank {
	struct world *world;
	uint32_t rank;
	pthread_t thread;
	struct bootstrap *bootstrap;
	struct control *control;
	enum st_status opened;
	char open_message[1024];
	enum st_status ended; /* what the body found at the end, and its text */
	char message[1024];
};

struct world {
	uint32_t size;
	struct control_options options;
	body *body;
	uint32_t victim;
	pthread_barrier_t barrier;
	struct rank ranks[MAX_RANKS];
};

static const struct control_options quick = {.startup_timeout_ms = 60000, .heartbeat_ms = 50, .stall_timeout_ms = 30000, .interface = "lo"};

static void *rank_thread(void *argument)
{
	struct rank *rank = argument;

	rank->opened = control_open(rank->bootstrap, &rank->world->options, &rank->control);
	if (rank->opened != ST_OK)
		snprintf(rank->open_message, sizeof rank->open_message, "%s", st_message());
	rank->bootstrap->finish(rank->bootstrap);
	if (rank->opened == ST_OK && rank->world->body)
		rank->world->body(rank);
	return NULL;
}

static void note(struct rank *rank, enum st_status status)
{
	rank->ended = status;
	snprintf(rank->message, sizeof rank->message, "%s", status == ST_OK ? "" : st_message());
}

/* Node of rank r: blocks of ranks, or round robin. */
static const char *node_of(uint32_t r, uint32_t size, uint32_t nodes, bool interleaved)
{
	static const char *const names[] = {"n0", "n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8", "n9", "n10", "n11", "n12", "n13", "n14", "n15", "n16", "n17", "n18", "n19"};

	return names[interleaved ? r % nodes : r * nodes / size];
}

static struct world *launch(uint32_t size, uint32_t nodes, bool interleaved, const struct control_options *options, uint32_t victim, body *run)
{
	struct world *world = calloc(1, sizeof *world);
	const char *names[MAX_RANKS];
	struct bootstrap *bootstraps[MAX_RANKS];

	world->size = size;
	world->options = *options;
	world->body = run;
	world->victim = victim;
	pthread_barrier_init(&world->barrier, NULL, size);
	for (uint32_t r = 0; r < size; r++)
		names[r] = node_of(r, size, nodes, interleaved);
	CHECK_OK(bootstrap_threads(size, names, bootstraps));
	for (uint32_t r = 0; r < size; r++) {
		world->ranks[r].world = world;
		world->ranks[r].rank = r;
		world->ranks[r].bootstrap = bootstraps[r];
	}
	return world;
}

static void run(struct world *world)
{
	for (uint32_t r = 0; r < world->size; r++)
		pthread_create(&world->ranks[r].thread, NULL, rank_thread, &world->ranks[r]);
	for (uint32_t r = 0; r < world->size; r++)
		pthread_join(world->ranks[r].thread, NULL);
}

static void end(struct world *world)
{
	pthread_barrier_destroy(&world->barrier);
	free(world);
}

/* What SIGKILL does to a rank's control plane: everything closes, nothing is said. */
static void crash(struct control *control)
{
	control_service_stop(control);
	control_links_close_all(control);
	control_openings_close_all(control);
	for (int i = 0; i < CONTROL_LISTENERS; i++) {
		close(control->listeners[i].fd);
		control->listeners[i].fd = -1;
	}
}

/* Sleeps on the event descriptor until the job is aborted. */
static void wait_for_abort(struct rank *rank)
{
	struct pollfd fd = {.fd = control_event_fd(rank->control), .events = POLLIN};

	CHECK(poll(&fd, 1, 60000) == 1, "rank %u never heard of it", rank->rank);
	note(rank, control_check(rank->control));
}

/* ---- decisions ----------------------------------------------------------------------------------------------------- */

static void decide(struct rank *rank)
{
	uint32_t size = rank->world->size;
	struct control *control = rank->control;
	uint8_t *all = malloc((size_t)size * CONTROL_MAX_DECISION_BYTES), *mine = malloc(CONTROL_MAX_DECISION_BYTES);

	CHECK(control_world(control)->size == size && control_world(control)->rank == rank->rank);
	for (uint32_t round = 0; round < 20; round++) {
		size_t bytes = round == 7 ? CONTROL_MAX_DECISION_BYTES : round == 8 ? 0 : round * 13 + 1;
		memset(mine, (int)(rank->rank * 7 + round), bytes);
		CHECK_OK(control_all_gather(control, mine, bytes, all, 60000));
		for (uint32_t r = 0; r < size && bytes; r++)
			CHECK(all[r * bytes] == (uint8_t)(r * 7 + round) && all[r * bytes + bytes - 1] == (uint8_t)(r * 7 + round),
			      "round %u: rank %u's bytes are wrong at rank %u", round, r, rank->rank);
		memset(mine, rank->rank == 0 ? (int)(100 + round) : 1, bytes);
		CHECK_OK(control_broadcast(control, mine, bytes, 60000));
		CHECK(!bytes || (mine[0] == 100 + round && mine[bytes - 1] == 100 + round));
	}
	free(all);
	free(mine);
	/* Leaving at once, while others may still be in the last decision, is no death. */
	note(rank, control_check(control));
	control_close(control);
}

static void test_decisions(void)
{
	for (uint32_t size = 1; size <= 9; size++)
		for (uint32_t nodes = 1; nodes <= 4 && nodes <= size; nodes++) {
			struct world *world = launch(size, nodes, (size + nodes) % 2, &quick, 0, decide);
			run(world);
			for (uint32_t r = 0; r < size; r++)
				CHECK(world->ranks[r].opened == ST_OK && world->ranks[r].ended == ST_OK, "%u ranks on %u nodes: rank %u: %s%s", size, nodes,
				      r, world->ranks[r].open_message, world->ranks[r].message);
			end(world);
		}
}

/* Who waits for decisions lets operations go on without the lock. What comes then must be seen before it sleeps: nobody will wake it for that again. */
static _Thread_local struct control *watched;
static atomic_uint sleeps_on_news;

static bool has_all(const struct control *control)
{
	const struct control_group *root = &control->root;

	return root->decisions[root->decision % CONTROL_DECISION_SLOTS].present == control->size;
}

/* In the place of libc's: the lock is held. */
int pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *lock, const struct timespec *until)
{
	int (*wait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
	void *found = dlsym(RTLD_NEXT, "pthread_cond_timedwait");

	memcpy(&wait, &found, sizeof wait);
	if (watched && cond == &watched->changed && has_all(watched))
		atomic_fetch_add_explicit(&sleeps_on_news, 1, memory_order_relaxed); /* read after the threads are joined */
	return wait(cond, lock, until);
}

static bool until_all_came(void *context)
{
	struct control *control = context;
	struct st_deadline deadline = st_deadline_in_ms(60000);
	bool all = false;

	while (!all && !st_deadline_expired(&deadline)) {
		usleep(200);
		pthread_mutex_lock(&control->lock);
		all = has_all(control);
		pthread_mutex_unlock(&control->lock);
	}
	CHECK(all, "rank %u: not all came", control->rank);
	return false;
}

static void decide_meanwhile(struct rank *rank)
{
	uint8_t mine = (uint8_t)rank->rank, all[3];

	watched = rank->control;
	if (rank->rank == 1)
		control_group_meanwhile(control_root(rank->control), until_all_came, rank->control);
	for (int round = 0; round < 5; round++) {
		CHECK_OK(control_all_gather(rank->control, &mine, 1, all, 60000));
		CHECK(all[0] == 0 && all[1] == 1 && all[2] == 2);
	}
	control_group_meanwhile(control_root(rank->control), NULL, NULL);
	watched = NULL;
	note(rank, control_check(rank->control));
	control_close(rank->control);
}

static void test_news_meanwhile(void)
{
	struct world *world = launch(3, 2, false, &quick, 0, decide_meanwhile);

	run(world);
	for (uint32_t r = 0; r < 3; r++)
		CHECK(world->ranks[r].opened == ST_OK && world->ranks[r].ended == ST_OK, "rank %u: %s%s", r, world->ranks[r].open_message,
		      world->ranks[r].message);
	end(world);
	unsigned slept = atomic_load_explicit(&sleeps_on_news, memory_order_relaxed);
	CHECK(!slept, "slept %u times on a decision that was complete", slept);
}

/* More leaders than one level of the tree holds. */
static void test_deep_tree(void)
{
	struct world *world = launch(40, 20, false, &quick, 0, decide);

	run(world);
	for (uint32_t r = 0; r < 40; r++)
		CHECK(world->ranks[r].opened == ST_OK && world->ranks[r].ended == ST_OK, "rank %u: %s%s", r, world->ranks[r].open_message,
		      world->ranks[r].message);
	end(world);
}

static void disagree(struct rank *rank)
{
	uint8_t mine[64] = {0}, all[64 * MAX_RANKS];
	struct control *control = rank->control;

	CHECK_OK(control_all_gather(control, mine, 8, all, 60000));
	if (rank->rank == rank->world->victim)
		note(rank, control_broadcast(control, mine, 16, 60000));
	else
		note(rank, control_all_gather(control, mine, 8, all, 60000));
	pthread_barrier_wait(&rank->world->barrier);
	control_close(control);
}

static void test_disagreement(void)
{
	struct world *world = launch(5, 2, false, &quick, 3, disagree);

	run(world);
	for (uint32_t r = 0; r < 5; r++) {
		CHECK(world->ranks[r].ended == ST_ERR_ABORTED && strstr(world->ranks[r].message, "ranks disagree in decision 2: rank 3 on n1 broadcasts 16 bytes, rank 0 on n0 gathers 8 bytes"),
		      "rank %u: %s", r, world->ranks[r].message);
	}
	end(world);
}

static void come_late(struct rank *rank)
{
	uint8_t mine[4] = {0}, all[4 * MAX_RANKS];

	if (rank->rank == rank->world->victim)
		wait_for_abort(rank);
	else
		note(rank, control_all_gather(rank->control, mine, 4, all, 300));
	pthread_barrier_wait(&rank->world->barrier);
	control_close(rank->control);
}

static void test_late(void)
{
	struct world *world = launch(4, 2, false, &quick, 2, come_late);

	run(world);
	for (uint32_t r = 0; r < 4; r++)
		CHECK(world->ranks[r].ended == ST_ERR_ABORTED && strstr(world->ranks[r].message, "rank 2 on n1 is late during decision 1"),
		      "rank %u: %s", r, world->ranks[r].message);
	end(world);
}

static void leave_early(struct rank *rank)
{
	uint8_t mine[4] = {0}, all[4 * MAX_RANKS];

	if (rank->rank == rank->world->victim) {
		note(rank, ST_OK);
		control_close(rank->control);
		pthread_barrier_wait(&rank->world->barrier);
		return;
	}
	note(rank, control_all_gather(rank->control, mine, 4, all, 60000));
	pthread_barrier_wait(&rank->world->barrier);
	control_close(rank->control);
}

static void test_leaving_early(void)
{
	for (uint32_t victim = 0; victim < 5; victim++) {
		struct world *world = launch(5, 2, false, &quick, victim, leave_early);
		char expected[64];
		snprintf(expected, sizeof expected, "rank %u on n%u left the job during decision 1", victim, victim * 2 / 5);
		run(world);
		for (uint32_t r = 0; r < 5; r++)
			if (r != victim)
				CHECK(world->ranks[r].ended == ST_ERR_ABORTED && strstr(world->ranks[r].message, expected), "rank %u: %s", r,
				      world->ranks[r].message);
		end(world);
	}
}

/* Ranks leave one after the other, the root and leaders first; the rest still hears of a death. */
static bool leaves(uint32_t rank)
{
	return rank == 0 || rank == 1 || rank == 3 || rank == 5;
}

static void leave_then_die(struct rank *rank)
{
	if (leaves(rank->rank)) {
		pthread_barrier_wait(&rank->world->barrier);
		usleep(rank->rank * 30000);
		control_close(rank->control);
		note(rank, ST_OK);
		return;
	}
	pthread_barrier_wait(&rank->world->barrier);
	/* Until everybody has a neighbour again. */
	struct st_deadline deadline = st_deadline_in_ms(30000);
	bool apart = true, known = false;
	while ((apart || !known) && !st_deadline_expired(&deadline)) {
		usleep(20000);
		known = control_has_left(rank->control, 0) && control_has_left(rank->control, 1) && control_has_left(rank->control, 3) &&
			control_has_left(rank->control, 5);
		pthread_mutex_lock(&rank->control->lock);
		apart = true;
		for (uint32_t r = 0; r < rank->world->size; r++)
			apart = apart && (leaves(r) || !control_link_find(rank->control, r));
		pthread_mutex_unlock(&rank->control->lock);
	}
	CHECK(!apart && known, "rank %u is cut off", rank->rank);
	CHECK_OK(control_check(rank->control));
	usleep(500000);
	if (rank->rank == rank->world->victim)
		crash(rank->control);
	else
		wait_for_abort(rank);
	usleep(300000);
	control_close(rank->control);
}

static void test_leavers_and_a_death(void)
{
	/* On 4 nodes: node 0 leaves whole (0, 1); nodes 1 and 2 lose a rank each. */
	for (uint32_t victim = 2; victim < 8; victim++) {
		if (leaves(victim))
			continue;
		struct world *world = launch(8, 4, false, &quick, victim, leave_then_die);
		char expected[64];
		snprintf(expected, sizeof expected, "rank %u on n%u died", victim, victim / 2);
		run(world);
		for (uint32_t r = 0; r < 8; r++)
			if (!leaves(r) && r != victim)
				CHECK(world->ranks[r].ended == ST_ERR_ABORTED && strstr(world->ranks[r].message, expected), "victim %u rank %u: %s", victim,
				      r, world->ranks[r].message);
		end(world);
	}
}

/* ---- data sockets -------------------------------------------------------------------------------------------------- */

static void say_and_hear(struct rank *rank, uint32_t peer, int fd, uint32_t channel)
{
	uint32_t mine[2] = {rank->rank, channel}, theirs[2] = {99, 99};
	struct pollfd readable = {.fd = fd, .events = POLLIN};
	size_t have = 0;

	CHECK(write(fd, mine, sizeof mine) == sizeof mine);
	while (have < sizeof theirs && poll(&readable, 1, 30000) == 1) {
		ssize_t n = read(fd, (uint8_t *)theirs + have, sizeof theirs - have);
		if (n <= 0)
			break;
		have += (size_t)n;
	}
	CHECK(theirs[0] == peer && theirs[1] == channel, "rank %u expected rank %u channel %u, heard %u %u", rank->rank, peer, channel, theirs[0],
	      theirs[1]);
}

static void wire_all(struct rank *rank)
{
	const struct topo_world *w = control_world(rank->control);

	/* In rank order, which everybody can follow without a deadlock. */
	for (uint32_t peer = 0; peer < w->size; peer++) {
		bool same = false;
		int fd = -1;
		if (peer == rank->rank)
			continue;
		CHECK_OK(control_same_node(rank->control, peer, &same));
		CHECK(same == (w->node_of[peer] == w->node_of[rank->rank]), "rank %u and %u: same node: %d", rank->rank, peer, same);
		for (uint32_t channel = 0; channel < 2; channel++) {
			CHECK_OK(control_data_socket(rank->control, peer, channel, same, &fd));
			say_and_hear(rank, peer, fd, channel);
			struct sockaddr_storage name;
			socklen_t bytes = sizeof name;
			CHECK(getsockname(fd, (struct sockaddr *)&name, &bytes) == 0 && (name.ss_family == AF_UNIX) == same);
			close(fd);
		}
		CHECK_OK(control_data_socket(rank->control, peer, 7, false, &fd));
		say_and_hear(rank, peer, fd, 7);
		close(fd);
	}
	if (w->node_count > 1) {
		int fd;
		uint32_t far = w->nodes[w->node_of[rank->rank] == 0].ranks[0];
		CHECK_FAILS(control_data_socket(rank->control, far, 0, true, &fd), ST_ERR_USAGE, "not on this node");
	}
	int fd;
	CHECK_FAILS(control_data_socket(rank->control, w->size, 0, false, &fd), ST_ERR_USAGE, "peer");
	uint8_t nothing;
	note(rank, control_all_gather(rank->control, &nothing, 0, NULL, 60000));
	control_close(rank->control);
}

static void test_data_sockets(void)
{
	struct control_options ipv6 = quick;

	ipv6.interface = "::1";
	for (int i = 0; i < 4; i++) {
		const struct control_options *options = i == 3 ? &ipv6 : &quick;
		uint32_t size = (uint32_t[]){2, 5, 6, 4}[i], nodes = (uint32_t[]){1, 2, 3, 2}[i];
		struct world *world = launch(size, nodes, i == 1, options, 0, wire_all);
		run(world);
		if (i == 3 && world->ranks[0].opened == ST_ERR_CONFIG)
			printf("no ::1 here: IPv6 not tested\n");
		else
			for (uint32_t r = 0; r < size; r++)
				CHECK(world->ranks[r].opened == ST_OK && world->ranks[r].ended == ST_OK, "rank %u: %s%s", r,
				      world->ranks[r].open_message, world->ranks[r].message);
		end(world);
	}
}

/* ---- deaths -------------------------------------------------------------------------------------------------------- */

static void die_idle(struct rank *rank)
{
	control_doing(rank->control, "allreduce", 12);
	pthread_barrier_wait(&rank->world->barrier);
	if (rank->rank == rank->world->victim)
		crash(rank->control);
	else
		wait_for_abort(rank);
	pthread_barrier_wait(&rank->world->barrier);
	control_close(rank->control);
}

static void die_in_decision(struct rank *rank)
{
	uint8_t mine[4] = {0}, all[4 * MAX_RANKS];

	CHECK_OK(control_all_gather(rank->control, mine, 4, all, 60000));
	if (rank->rank == rank->world->victim)
		crash(rank->control);
	else
		note(rank, control_all_gather(rank->control, mine, 4, all, 60000));
	pthread_barrier_wait(&rank->world->barrier);
	control_close(rank->control);
}

/* The survivors leave as soon as they know, without waiting for each other: their own ends must not be taken for the cause. */
static void die_and_run(struct rank *rank)
{
	uint8_t mine[4] = {0}, all[4 * MAX_RANKS];
	enum st_status status = ST_OK;

	for (uint32_t round = 0; status == ST_OK; round++) {
		if (rank->rank == rank->world->victim && round == 5) {
			crash(rank->control);
			break;
		}
		status = control_all_gather(rank->control, mine, 4, all, 60000);
	}
	note(rank, status);
	control_close(rank->control);
}

/* The service thread sleeps: nothing closes, nothing is said. */
static void freeze(struct rank *rank)
{
	pthread_barrier_wait(&rank->world->barrier);
	if (rank->rank == rank->world->victim) {
		pthread_mutex_lock(&rank->control->lock);
		pthread_barrier_wait(&rank->world->barrier);
		pthread_mutex_unlock(&rank->control->lock);
	}
	wait_for_abort(rank); /* the frozen one too, when it wakes: it finds ABORT in its sockets */
	if (rank->rank != rank->world->victim)
		pthread_barrier_wait(&rank->world->barrier);
	pthread_barrier_wait(&rank->world->barrier);
	control_close(rank->control);
}

static void test_deaths(void)
{
	struct control_options impatient = quick;
	static const struct {
		body *run;
		const char *how;
	} ways[] = {{die_idle, "died (its process ended) during allreduce 12; seen by rank "},
		    {die_in_decision, "died (its process ended) during decision "},
		    {die_and_run, "died (its process ended) during decision "},
		    {freeze, "is unreachable (no heartbeat for 1.0 s); seen by rank "}};

	impatient.stall_timeout_ms = 1000;
	for (size_t way = 0; way < sizeof ways / sizeof *ways; way++)
		for (uint32_t victim = 0; victim < 7; victim++) {
			const uint32_t size = 7, nodes = 3;
			struct world *world = launch(size, nodes, false, ways[way].run == freeze ? &impatient : &quick, victim, ways[way].run);
			char who[32];
			run(world);
			snprintf(who, sizeof who, "rank %u on n%u ", victim, victim * nodes / size);
			for (uint32_t r = 0; r < size; r++) {
				const struct rank *rank = &world->ranks[r];
				if (r == victim && ways[way].run != freeze)
					continue;
				CHECK(rank->opened == ST_OK && rank->ended == ST_ERR_ABORTED && !strncmp(rank->message, who, strlen(who)) &&
					      strstr(rank->message, ways[way].how),
				      "way %zu victim %u rank %u: %s%s", way, victim, r, rank->open_message, rank->message);
			}
			end(world);
		}
}

/* At start-up: the victim gives its record, then closes everything before the tree is up. */
static enum st_status exchange_then_vanish(struct bootstrap *bootstrap, const void *mine, size_t bytes, int64_t timeout_ms, void *all);
static enum st_status (*real_exchange)(struct bootstrap *, const void *, size_t, int64_t, void *);

static enum st_status exchange_then_vanish(struct bootstrap *bootstrap, const void *mine, size_t bytes, int64_t timeout_ms, void *all)
{
	enum st_status status = real_exchange(bootstrap, mine, bytes, timeout_ms, all);

	return status == ST_OK ? st_fail(ST_ERR_SYSTEM, "made to vanish") : status;
}

static void hear_only(struct rank *rank)
{
	wait_for_abort(rank);
	control_close(rank->control);
}

static void test_death_at_startup(void)
{
	for (uint32_t victim = 0; victim < 5; victim++) {
		struct world *world = launch(5, 2, false, &quick, victim, hear_only);
		real_exchange = world->ranks[victim].bootstrap->exchange;
		world->ranks[victim].bootstrap->exchange = exchange_then_vanish;
		int64_t start = st_now_ns();
		run(world);
		CHECK(st_now_ns() - start < 40 * ST_NS_PER_S, "it took the whole start-up deadline to find out");
		char who[32];
		snprintf(who, sizeof who, "rank %u on n%u died", victim, victim * 2 / 5);
		for (uint32_t r = 0; r < 5; r++) {
			const struct rank *rank = &world->ranks[r];
			if (r == victim)
				CHECK(rank->opened == ST_ERR_SYSTEM && strstr(rank->open_message, "made to vanish"), "%s", rank->open_message);
			else
				CHECK(rank->opened == ST_ERR_ABORTED && strstr(rank->open_message, who), "victim %u rank %u: %s", victim, r,
				      rank->open_message);
		}
		end(world);
	}
}

static void fail_by_itself(struct rank *rank)
{
	if (rank->rank == rank->world->victim)
		note(rank, control_abort(rank->control, rank->rank, CONTROL_HOW_APPLICATION, NULL, "the loss is not finite"));
	else if (rank->rank == 0)
		note(rank, control_suspect(rank->control, rank->world->victim, "allreduce 3", "connection reset")); /* gets better evidence */
	else
		wait_for_abort(rank);
	pthread_barrier_wait(&rank->world->barrier);
	/* The first verdict stays. */
	CHECK_FAILS(control_abort(rank->control, 0, CONTROL_HOW_LATE, "later", ""), ST_ERR_ABORTED, "the loss is not finite");
	pthread_barrier_wait(&rank->world->barrier);
	control_close(rank->control);
}

static void suspect(struct rank *rank)
{
	if (rank->rank == 1)
		note(rank, control_suspect(rank->control, rank->world->victim, "allreduce 3", "connection reset"));
	else
		wait_for_abort(rank);
	pthread_barrier_wait(&rank->world->barrier);
	control_close(rank->control);
}

static void test_abort_and_suspect(void)
{
	struct world *world = launch(6, 3, false, &quick, 4, fail_by_itself);

	run(world);
	for (uint32_t r = 0; r < 6; r++)
		CHECK(world->ranks[r].ended == ST_ERR_ABORTED && !strcmp(world->ranks[r].message, "rank 4 on n2 failed: the loss is not finite"), "%s",
		      world->ranks[r].message);
	end(world);

	world = launch(6, 3, false, &quick, 4, suspect);
	run(world);
	for (uint32_t r = 0; r < 6; r++)
		CHECK(world->ranks[r].ended == ST_ERR_ABORTED &&
			      !strcmp(world->ranks[r].message,
				      "the link between rank 1 on n0 and rank 4 on n2 broke during allreduce 3: connection reset"),
		      "%s", world->ranks[r].message);
	end(world);
}

/* Nobody between them needs the leaver: they only pass its goodbye on, and far away it is told from a death. */
static void need_the_leaver(struct rank *rank)
{
	uint32_t victim = rank->world->victim;

	pthread_barrier_wait(&rank->world->barrier);
	if (rank->rank == victim) {
		control_close(rank->control);
		note(rank, ST_OK);
		pthread_barrier_wait(&rank->world->barrier);
		return;
	}
	if (rank->rank == 1)
		note(rank, control_suspect(rank->control, victim, "allreduce 3", "its end of the connection closed"));
	else
		wait_for_abort(rank);
	pthread_barrier_wait(&rank->world->barrier);
	control_close(rank->control);
}

static void test_goodbye_is_passed_on(void)
{
	for (uint32_t victim = 3; victim < 8; victim += 2) {
		struct world *world = launch(8, 4, false, &quick, victim, need_the_leaver);
		char expected[96];
		snprintf(expected, sizeof expected, "rank %u on n%u left the job during allreduce 3; seen by rank 1 on n0", victim, victim / 2);
		run(world);
		for (uint32_t r = 0; r < 8; r++)
			CHECK(r == victim || (world->ranks[r].ended == ST_ERR_ABORTED && !strcmp(world->ranks[r].message, expected)), "%s",
			      world->ranks[r].message);
		end(world);
	}
}

/* A neighbour that has stopped reading, and whose socket is full: who aborts and leaves does not wait for it, and the others hear. */
static void abort_with_full_sockets(struct rank *rank)
{
	struct control *control = rank->control;
	static _Atomic bool left;

	if (rank->rank == 0)
		left = false;
	pthread_barrier_wait(&rank->world->barrier);
	if (rank->rank == rank->world->victim)
		pthread_mutex_lock(&control->lock);
	pthread_barrier_wait(&rank->world->barrier);
	if (rank->rank == 0) {
		pthread_mutex_lock(&control->lock);
		struct control_link *link = control_link_find(control, rank->world->victim);
		CHECK(link);
		while (link->out_end - link->out_begin < (1 << 20))
			control_link_send(control, link, WIRE_HEARTBEAT, NULL, 0, NULL, 0);
		pthread_mutex_unlock(&control->lock);
		int64_t start = st_now_ns();
		control_declare(control, "step 4", "the loss is not finite");
		CHECK(st_now_ns() - start < 2 * ST_NS_PER_S, "it took %.1f s to say so", (double)(st_now_ns() - start) / 1e9);
		wait_for_abort(rank);
		start = st_now_ns();
		control_close(control);
		CHECK(st_now_ns() - start < 5 * ST_NS_PER_S, "it took %.1f s to leave", (double)(st_now_ns() - start) / 1e9);
		left = true;
	} else if (rank->rank == rank->world->victim) {
		while (!left)
			usleep(10000);
		pthread_mutex_unlock(&control->lock);
		wait_for_abort(rank);
		control_close(control);
	} else {
		wait_for_abort(rank);
		control_close(control);
	}
}

static void test_abort_does_not_block(void)
{
	for (uint32_t victim = 1; victim < 5; victim += 2) { /* on the same node; alone on another */
		struct world *world = launch(5, 3, false, &quick, victim == 3 ? 4 : victim, abort_with_full_sockets);
		run(world);
		for (uint32_t r = 0; r < 5; r++)
			CHECK(r == world->victim || (world->ranks[r].ended == ST_ERR_ABORTED &&
						     !strcmp(world->ranks[r].message, "rank 0 on n0 failed during step 4: the loss is not finite")),
			      "rank %u: %s", r, world->ranks[r].message);
		end(world);
	}
}

/* Two ranks of different nodes fail in the same moment, or a moment apart: everybody has the same verdict, whoever it names. */
static void fail_together(struct rank *rank)
{
	pthread_barrier_wait(&rank->world->barrier);
	if (rank->rank == rank->world->victim) {
		note(rank, control_abort(rank->control, rank->rank, CONTROL_HOW_APPLICATION, "step 4", "a"));
	} else if (rank->rank == rank->world->size - 1) {
		usleep(rank->world->victim * 4000);
		note(rank, control_abort(rank->control, rank->rank, CONTROL_HOW_APPLICATION, "step 4", "b"));
	} else {
		wait_for_abort(rank);
	}
	control_close(rank->control);
}

static void test_failing_together(void)
{
	for (uint32_t victim = 0; victim < 7; victim++) {
		struct world *world = launch(8, 4, false, &quick, victim, fail_together);
		run(world);
		for (uint32_t r = 0; r < 8; r++)
			CHECK(world->ranks[r].ended == ST_ERR_ABORTED && !strcmp(world->ranks[r].message, world->ranks[0].message), "'%s' and '%s'",
			      world->ranks[0].message, world->ranks[r].message);
		end(world);
	}
}

/* A rank says why it fails and ends, and a neighbour that has not heard it sees the end: what it said of itself counts. */
static void own_word(struct rank *rank)
{
	pthread_barrier_wait(&rank->world->barrier);
	if (rank->rank == 0)
		note(rank, control_abort(rank->control, 0, CONTROL_HOW_APPLICATION, "step 4", "the loss is not finite"));
	else if (rank->rank == rank->world->victim)
		note(rank, control_abort(rank->control, 0, CONTROL_HOW_EXITED, "step 4", "its process ended"));
	else
		wait_for_abort(rank);
	control_close(rank->control);
}

static void test_own_word(void)
{
	for (uint32_t victim = 1; victim < 8; victim += 3) {
		struct world *world = launch(8, 4, false, &quick, victim, own_word);
		run(world);
		for (uint32_t r = 0; r < 8; r++)
			CHECK(world->ranks[r].ended == ST_ERR_ABORTED &&
				      !strcmp(world->ranks[r].message, "rank 0 on n0 failed during step 4: the loss is not finite"),
			      "rank %u: %s", r, world->ranks[r].message);
		end(world);
	}
}

/* ---- versions ------------------------------------------------------------------------------------------------------ */

static enum st_status exchange_of_other_version(struct bootstrap *bootstrap, const void *mine, size_t bytes, int64_t timeout_ms, void *all)
{
	struct wire_record *records = all;

	ST_TRY(real_exchange(bootstrap, mine, bytes, timeout_ms, all));
	records[2].version = 77;
	snprintf(records[2].build, sizeof records[2].build, "another-build");
	memset((uint8_t *)&records[2] + WIRE_RECORD_HEAD_BYTES, 0xa5, sizeof records[2] - WIRE_RECORD_HEAD_BYTES);
	return ST_OK;
}

static void test_versions(void)
{
	struct world *world = launch(3, 3, false, &quick, 0, NULL);

	for (uint32_t r = 0; r < 3; r++) {
		real_exchange = world->ranks[r].bootstrap->exchange;
		world->ranks[r].bootstrap->exchange = exchange_of_other_version;
	}
	run(world);
	for (uint32_t r = 0; r < 3; r++) {
		const char *text = world->ranks[r].open_message;
		char first[64];
		snprintf(first, sizeof first, "rank 0 on n0 speaks protocol version %d (build ", WIRE_VERSION);
		CHECK(world->ranks[r].opened == ST_ERR_MISMATCH && strstr(text, first) &&
			      strstr(text, "rank 2 on n2 version 77 (build another-build)"),
		      "%s", text);
	}
	end(world);
}

/* ---- strangers ----------------------------------------------------------------------------------------------------- */

static int dial(const struct control_endpoint *end, bool local)
{
	int fd = socket(local ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_in tcp = {.sin_family = AF_INET, .sin_port = htons(end->port4)};
	struct sockaddr_un name = {.sun_family = AF_UNIX};

	memcpy(&tcp.sin_addr, end->ipv4, 4);
	memcpy(name.sun_path + 1, end->unix_name, strlen(end->unix_name));
	int failed = local ? connect(fd, (struct sockaddr *)&name, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(end->unix_name)))
			   : connect(fd, (struct sockaddr *)&tcp, sizeof tcp);
	CHECK(!failed, "can't reach the listener: %s", strerror(errno));
	return fd;
}

/* Whether the other end closes within the time. */
static bool hung_up(int fd, int64_t timeout_ms)
{
	struct pollfd readable = {.fd = fd, .events = POLLIN};
	struct st_deadline deadline = st_deadline_in_ms(timeout_ms);
	char byte[256];

	for (;;) {
		int sleep_ms = st_deadline_poll_ms(&deadline);
		if (sleep_ms == 0)
			return false;
		if (poll(&readable, 1, sleep_ms) == 1 && recv(fd, byte, sizeof byte, MSG_DONTWAIT) <= 0)
			return true;
	}
}

static enum st_status open_as(struct control *control, const uint8_t *secret, uint32_t as, enum wire_purpose purpose, int *out)
{
	struct auth_keys keys = {.secret = secret, .job = control->job, .rank = as, .size = control->size};
	struct auth_session session;
	struct wire_hello hello;
	struct wire_challenge challenge;
	struct wire_proof proof;
	struct wire_welcome welcome;
	int fd = dial(&control->endpoints[control->rank], false);
	enum st_status status = auth_client_begin(&keys, control->rank, purpose, 0, 5, false, &session, &hello);

	if (status == ST_OK && (send(fd, &hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello || recv(fd, &challenge, sizeof challenge, MSG_WAITALL) != sizeof challenge))
		status = st_fail(ST_ERR_PROTOCOL, "no challenge");
	if (status == ST_OK) {
		status = auth_client_prove(&keys, &session, &challenge, &proof);
		if (status == ST_ERR_PERMISSION) { /* does not stop an attacker: he guesses */
			proof = (struct wire_proof){.magic = WIRE_MAGIC, .version = WIRE_VERSION, .kind = WIRE_PROOF};
			status = ST_OK;
		}
	}
	if (status == ST_OK && (send(fd, &proof, sizeof proof, MSG_NOSIGNAL) != sizeof proof || recv(fd, &welcome, sizeof welcome, MSG_WAITALL) != sizeof welcome))
		status = st_fail(ST_ERR_PROTOCOL, "no welcome");
	if (status != ST_OK)
		close(fd);
	else
		*out = fd;
	return status;
}

#define FLOOD 300

static void meet_strangers(struct rank *rank)
{
	struct control *control = rank->control;
	struct control_counters before, after;
	const struct control_endpoint *mine = &control->endpoints[rank->rank];
	uint8_t mine_bytes[4] = {0}, all[16], wrong[WIRE_SECRET_BYTES] = {0};
	int slow[3], flood[FLOOD], fd;

	if (rank->rank == 0) {
		control_counters_read(control, &before);
		/* Slow openers: nothing, a byte, half a greeting. */
		slow[0] = dial(mine, false);
		slow[1] = dial(mine, true);
		CHECK(write(slow[1], "S", 1) == 1);
		slow[2] = dial(mine, false);
		CHECK(write(slow[2], &(struct wire_hello){.magic = WIRE_MAGIC, .version = WIRE_VERSION}, 20) == 20);
	}
	pthread_barrier_wait(&rank->world->barrier);
	/* They hold up nobody: a data connection in the meantime. */
	int64_t start = st_now_ns();
	CHECK_OK(control_data_socket(control, 1 - rank->rank, 0, false, &fd));
	CHECK(st_now_ns() - start < 4 * ST_NS_PER_S, "slow openers hold up the others");
	say_and_hear(rank, 1 - rank->rank, fd, 0);
	close(fd);
	if (rank->rank == 0) {
		for (int i = 0; i < 3; i++) {
			CHECK(hung_up(slow[i], 30000), "slow opener %d is still welcome", i);
			close(slow[i]);
		}
		CHECK(st_now_ns() - start < 9 * ST_NS_PER_S, "slow openers were kept for %.1f s", (double)(st_now_ns() - start) / 1e9);
		control_counters_read(control, &after);
		CHECK(after.dropped_slow - before.dropped_slow == 3, "%llu dropped as slow", (unsigned long long)(after.dropped_slow - before.dropped_slow));

		/* Garbage of all lengths, then random bytes for a while. */
		before = after;
		struct st_deadline deadline = st_deadline_in_ms(1000);
		uint64_t sent = 0;
		while (!st_deadline_expired(&deadline) && sent < 4000) {
			uint8_t junk[200], length;
			CHECK_OK(st_random_bytes(junk, sizeof junk));
			CHECK_OK(st_random_bytes(&length, 1));
			int stranger = dial(mine, sent & 1);
			if (sent % 3 == 0) {
				struct wire_hello hello = {.magic = WIRE_MAGIC, .version = WIRE_VERSION, .kind = WIRE_HELLO, .purpose = WIRE_PURPOSE_TREE, .from = 1};
				memcpy(junk, &hello, 24);
			}
			if (send(stranger, junk, length % sizeof junk, MSG_NOSIGNAL) < 0)
				CHECK(errno == EPIPE || errno == ECONNRESET);
			close(stranger);
			sent++;
		}
		/* Another user's process on this machine does not even get a challenge on the Unix socket. */
		if (geteuid() == 0) {
			struct control_counters now;
			pid_t child = fork();
			if (child == 0) {
				struct sockaddr_un name = {.sun_family = AF_UNIX};
				struct wire_hello hello = {.magic = WIRE_MAGIC, .version = WIRE_VERSION, .kind = WIRE_HELLO, .purpose = WIRE_PURPOSE_TREE, .from = 1};
				int other = socket(AF_UNIX, SOCK_STREAM, 0);
				char byte;
				memcpy(name.sun_path + 1, mine->unix_name, strlen(mine->unix_name));
				if (setgid(65534) || setuid(65534) ||
				    connect(other, (struct sockaddr *)&name, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(mine->unix_name))))
					_exit(2);
				if (send(other, &hello, sizeof hello, MSG_NOSIGNAL) < 0 && errno != EPIPE && errno != ECONNRESET)
					_exit(3);
				_exit(recv(other, &byte, 1, 0) > 0 ? 4 : 0);
			}
			int status = -1;
			CHECK(waitpid(child, &status, 0) == child && status == 0, "another user's process ended with %x", status);
			control_counters_read(control, &now);
			sent += now.refused > before.refused ? 1 : 0;
		}
		/* Who guesses the proof. */
		CHECK(open_as(control, wrong, 1, WIRE_PURPOSE_TREE, &fd) != ST_OK, "a wrong secret was accepted");
		CHECK(open_as(control, wrong, 1, WIRE_PURPOSE_DATA, &fd) != ST_OK, "a wrong secret was accepted");
		do {
			usleep(10000);
			control_counters_read(control, &after);
			/* A full set of openings may drop some as oldest instead. */
		} while (after.refused + after.dropped_slow - before.refused - before.dropped_slow < sent + 2);
		CHECK(after.refused - before.refused >= 2);
		CHECK(after.handshakes == before.handshakes, "garbage counted as handshakes");

		/* A flood: at most 64 are kept. */
		for (int i = 0; i < FLOOD; i++)
			flood[i] = dial(mine, i & 1);
		unsigned open = 0;
		for (int i = 0; i < 100; i++) {
			pthread_mutex_lock(&control->lock);
			open = control->opening_count;
			pthread_mutex_unlock(&control->lock);
			CHECK(open <= CONTROL_MAX_OPENINGS, "%u unproven connections at once", open);
			usleep(1000);
		}
	}
	pthread_barrier_wait(&rank->world->barrier);
	CHECK_OK(control_data_socket(control, 1 - rank->rank, 1, false, &fd));
	say_and_hear(rank, 1 - rank->rank, fd, 1);
	close(fd);
	if (rank->rank == 0)
		for (int i = 0; i < FLOOD; i++)
			close(flood[i]);
	/* And nobody was harmed. */
	note(rank, control_all_gather(control, mine_bytes, 4, all, 60000));
	control_close(control);
}

static void test_strangers(void)
{
	struct world *world = launch(2, 2, false, &quick, 0, meet_strangers);

	run(world);
	for (uint32_t r = 0; r < 2; r++)
		CHECK(world->ranks[r].opened == ST_OK && world->ranks[r].ended == ST_OK, "rank %u: %s%s", r, world->ranks[r].open_message,
		      world->ranks[r].message);
	end(world);
}

/* A peer that knows the secret and has gone mad: the job ends and it is named; nothing crashes, whatever it sends. */
static void go_mad(struct rank *rank)
{
	struct control *control = rank->control;

	if (rank->rank == 0) {
		struct control_link *link;
		pthread_mutex_lock(&control->lock);
		link = control_link_find(control, 2);
		CHECK(link);
		/* Valid header, random rest. */
		uint8_t bytes[300];
		st_random_bytes(bytes, sizeof bytes);
		struct wire_frame head = {.magic = WIRE_MAGIC, .version = WIRE_VERSION, .type = (uint16_t)(1 + bytes[0] % 7), .length = sizeof(struct wire_decision) + bytes[1]};
		if (head.type == WIRE_HEARTBEAT)
			head.length = 4;
		else if (head.type == WIRE_GOODBYE)
			head.length = sizeof(struct wire_goodbye);
		else if (head.type == WIRE_ABORT)
			head.length = sizeof(struct wire_abort);
		else if (head.type == WIRE_ASK || head.type == WIRE_ANSWER)
			head.length = sizeof(struct wire_ask);
		memcpy(bytes, &head, sizeof head);
		CHECK(send(link->source.fd, bytes, sizeof bytes, MSG_NOSIGNAL) == sizeof bytes);
		CHECK(send(link->source.fd, bytes, sizeof bytes, MSG_NOSIGNAL) == sizeof bytes || errno == EPIPE || errno == ECONNRESET);
		pthread_mutex_unlock(&control->lock);
	}
	wait_for_abort(rank);
	pthread_barrier_wait(&rank->world->barrier);
	control_close(rank->control);
}

static void test_mad_peer(void)
{
	for (int round = 0; round < 14; round++) {
		struct world *world = launch(4, 2, false, &quick, 0, go_mad);
		run(world);
		for (uint32_t r = 0; r < 4; r++)
			CHECK(world->ranks[r].ended == ST_ERR_ABORTED && strstr(world->ranks[r].message, "rank 0 on n0 sent bytes that no correct rank sends"),
			      "rank %u: %s", r, world->ranks[r].message);
		end(world);
	}
}

/* ---- the rest ------------------------------------------------------------------------------------------------------ */

static void test_interface(void)
{
	struct control_addresses a;

	CHECK_OK(control_interface_choose("lo", &a));
	CHECK(a.loopback && a.has4 && a.ipv4[0] == 127);
	CHECK_OK(control_interface_choose("127.0.0.1", &a));
	CHECK(a.loopback && a.has4 && !a.has6 && !strcmp(a.interface, "lo"));
	CHECK_FAILS(control_interface_choose("nonesuch0", &a), ST_ERR_CONFIG, "nonesuch0");
	CHECK_FAILS(control_interface_choose("203.0.113.77", &a), ST_ERR_CONFIG, "lo");
	CHECK_OK(control_interface_choose(NULL, &a));
	CHECK(a.has4 || a.has6);
}

/* The secret is in one page of its own, the same on all ranks, and not in what the ranks were given. */
static void look_at_secret(struct rank *rank)
{
	static uint8_t first[WIRE_SECRET_BYTES];
	uint8_t zero[WIRE_SECRET_BYTES] = {0}, nothing;

	if (rank->rank == 0)
		memcpy(first, rank->control->secret, sizeof first);
	pthread_barrier_wait(&rank->world->barrier);
	CHECK(!memcmp(first, rank->control->secret, sizeof first) && memcmp(first, zero, sizeof zero));
	note(rank, control_all_gather(rank->control, &nothing, 0, NULL, 60000));
	control_close(rank->control);
}

static void test_secret(void)
{
	struct world *world = launch(3, 1, false, &quick, 0, look_at_secret);

	run(world);
	for (uint32_t r = 0; r < 3; r++)
		CHECK(world->ranks[r].ended == ST_OK, "%s", world->ranks[r].message);
	end(world);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} tests[] = {{"interface", test_interface},
		     {"secret", test_secret},
		     {"decisions", test_decisions},
		     {"news_meanwhile", test_news_meanwhile},
		     {"deep_tree", test_deep_tree},
		     {"disagreement", test_disagreement},
		     {"late", test_late},
		     {"leaving_early", test_leaving_early},
		     {"leavers_and_a_death", test_leavers_and_a_death},
		     {"data_sockets", test_data_sockets},
		     {"deaths", test_deaths},
		     {"death_at_startup", test_death_at_startup},
		     {"abort_and_suspect", test_abort_and_suspect},
		     {"goodbye_passed_on", test_goodbye_is_passed_on},
		     {"abort_blocks_not", test_abort_does_not_block},
		     {"failing_together", test_failing_together},
		     {"own_word", test_own_word},
		     {"versions", test_versions},
		     {"mad_peer", test_mad_peer},
		     {"strangers", test_strangers}};

	setvbuf(stdout, NULL, _IOLBF, 0);
	for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
		if (argc > 1 && strcmp(argv[1], tests[i].name))
			continue;
		int64_t start = st_now_ns();
		tests[i].run();
		printf("%-20s %.2f s\n", tests[i].name, (double)(st_now_ns() - start) / 1e9);
	}
	return check_result();
}
