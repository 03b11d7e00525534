/*
 * Going on with the survivors of a failure.  Ranks as threads: who comes, who is left out, who may go on.  Ranks as processes: real deaths, at
 * any moment, also of those that lead; ranks that are stopped through all of it and wake up afterwards.
 */
#include <inttypes.h>
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "common/clock.h"
#include "libcomm/bootstrap.h"
#include "libcomm/comm.h"

#define MAX_RANKS 8
#define STALL_MS 1500
#define SHRINK_MS 30000

static bool all_sums_right(struct comm *comm, enum st_status *status)
{
	int64_t data[1000], expected = (int64_t)comm_size(comm) * (comm_size(comm) + 1) / 2;
	struct comm_request *request;
	for (int i = 0; i < 1000; i++)
		data[i] = comm_rank(comm) + 1;
	*status = comm_allreduce(comm, data, data, 1000, COMM_I64, COMM_SUM, &request);
	if (*status == ST_OK)
		*status = comm_wait(comm, &request);
	for (int i = 0; *status == ST_OK && i < 1000; i++)
		if (data[i] != expected)
			return false;
	return true;
}

/* Collectives, decisions and a split work. */
static void use(struct comm *comm)
{
	uint32_t size = comm_size(comm), mine = comm_rank(comm), all[MAX_RANKS], chosen = mine;
	enum st_status status;
	struct comm *sub;
	REQUIRE(all_sums_right(comm, &status));
	REQUIRE(status == ST_OK);
	REQUIRE(comm_collect(comm, &mine, sizeof mine, all) == ST_OK);
	for (uint32_t r = 0; r < size; r++)
		REQUIRE(all[r] == r);
	REQUIRE(comm_decide(comm, &chosen, sizeof chosen) == ST_OK);
	REQUIRE(chosen == 0);
	REQUIRE(comm_split(comm, (int32_t)(mine % 2), 0, &sub) == ST_OK);
	REQUIRE(all_sums_right(sub, &status));
	REQUIRE(status == ST_OK);
	comm_free(sub);
}

static struct comm_options options_for_tests(void)
{
	struct comm_options options;
	REQUIRE(comm_options_init(&options) == ST_OK);
	options.stall_timeout_ms = STALL_MS;
	options.slots = 2;
	options.chunk_bytes = 16384;
	return options;
}

/* ---- ranks as threads ---------------------------------------------------------------------------------------------- */

struct job;
typedef void body(struct job *job, uint32_t rank, struct comm *comm);

struct job {
	uint32_t size;
	struct bootstrap *bootstraps[MAX_RANKS];
	body *body;
	pthread_barrier_t all;
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
	struct comm_options options = options_for_tests();
	struct comm *comm = NULL;
	REQUIRE(comm_create_over(thread->job->bootstraps[thread->rank], &options, &comm) == ST_OK);
	thread->job->body(thread->job, thread->rank, comm);
	return NULL;
}

static void run_job(struct job *job, uint32_t size, const char *const *nodes, body *work)
{
	pthread_t threads[MAX_RANKS];
	struct thread arguments[MAX_RANKS];
	*job = (struct job){.size = size, .body = work};
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

/* Works until the failure. */
static void wait_for_failure(struct comm *comm)
{
	enum st_status status = ST_OK;
	while (status == ST_OK)
		REQUIRE(all_sums_right(comm, &status));
	CHECK(status == ST_ERR_ABORTED, "%s: %s", st_status_name(status), st_message());
}

/* Rank 2 gives up, but lives: all join, twice, and the old communicators are freed after, and before, the new ones are used. */
static void all_join(struct job *job, uint32_t rank, struct comm *comm)
{
	struct comm *second = NULL, *third = NULL, *none = comm, *sub;
	CHECK(comm_shrink(comm, 1000, &none) == ST_ERR_USAGE && strstr(st_message(), "has not failed"), "%s", st_message());
	CHECK(none == comm && comm_shrunk_from(comm, 0) == UINT32_MAX, "not shrunk");
	REQUIRE(comm_split(comm, 0, 0, &sub) == ST_OK);
	pthread_barrier_wait(&job->all);
	if (rank == 2)
		comm_abort(comm, "tired");
	wait_for_failure(comm);
	CHECK(comm_shrink(sub, 1000, &none) == ST_ERR_USAGE && strstr(st_message(), "was split off"), "%s", st_message());
	CHECK(comm_shrink(comm, 0, &none) == ST_ERR_USAGE, "no time");
	comm_free(sub);
	enum st_status status = comm_shrink(comm, SHRINK_MS, &second);
	note(job, rank, status);
	REQUIRE(status == ST_OK);
	CHECK(comm_size(second) == job->size && comm_rank(second) == rank && comm_shrunk_from(second, rank) == rank, "rank %u of %u", comm_rank(second),
	      comm_size(second));
	CHECK(strstr(comm_job(second), "~1.") && strncmp(comm_job(second), comm_job(comm), strlen(comm_job(comm))) == 0, "%s", comm_job(second));
	use(second);
	comm_free(comm);
	use(second);
	pthread_barrier_wait(&job->all);
	if (rank == 0)
		comm_abort(second, "tired too");
	wait_for_failure(second);
	REQUIRE(comm_shrink(second, SHRINK_MS, &third) == ST_OK);
	comm_free(second);
	CHECK(strstr(comm_job(third), "~2.") && !strstr(comm_job(third), "~1."), "%s", comm_job(third));
	use(third);
	comm_free(third);
}

/* Rank 0 leaves the failed communicator, rank 3 sleeps through all of it: the others go on, and rank 3 is told. */
static void some_join(struct job *job, uint32_t rank, struct comm *comm)
{
	struct comm *shrunk = NULL;
	pthread_barrier_wait(&job->all);
	if (rank == 0)
		comm_abort(comm, "tired");
	wait_for_failure(comm);
	if (rank == 0)
		comm_free(comm);
	pthread_barrier_wait(&job->all);
	if (rank == 0)
		goto done;
	if (rank == 3)
		pthread_barrier_wait(&job->all);
	note(job, rank, comm_shrink(comm, SHRINK_MS, &shrunk));
	if (rank != 3) {
		REQUIRE(job->ends[rank] == ST_OK);
		CHECK(comm_size(shrunk) == 3, "%u ranks", comm_size(shrunk));
		uint32_t expected[] = {1, 2, 4};
		for (uint32_t r = 0; r < 3; r++)
			CHECK(comm_shrunk_from(shrunk, r) == expected[r], "rank %u was %u", r, comm_shrunk_from(shrunk, r));
		CHECK(comm_shrunk_from(shrunk, 3) == UINT32_MAX, "no rank 3");
		use(shrunk);
		comm_free(comm);
		comm = NULL;
		pthread_barrier_wait(&job->all);
	}
	pthread_barrier_wait(&job->all);
	comm_free(shrunk);
	comm_free(comm);
	return;
done:
	pthread_barrier_wait(&job->all);
	pthread_barrier_wait(&job->all);
}

/* Only the upper ranks come: of six, three are half without the lowest, which is not enough. */
static void too_few(struct job *job, uint32_t rank, struct comm *comm)
{
	struct comm *shrunk = NULL;
	pthread_barrier_wait(&job->all);
	if (rank == 0)
		comm_abort(comm, "tired");
	wait_for_failure(comm);
	if (rank >= job->size / 2)
		note(job, rank, comm_shrink(comm, 4 * STALL_MS, &shrunk));
	pthread_barrier_wait(&job->all);
	CHECK(!shrunk, "rank %u has a communicator", rank);
	comm_free(shrunk);
	comm_free(comm);
}

/* Half with the lowest is enough. */
static void half_with_lowest(struct job *job, uint32_t rank, struct comm *comm)
{
	struct comm *shrunk = NULL;
	pthread_barrier_wait(&job->all);
	if (rank == 0)
		comm_abort(comm, "tired");
	wait_for_failure(comm);
	if (rank < job->size / 2) {
		note(job, rank, comm_shrink(comm, SHRINK_MS, &shrunk));
		REQUIRE(job->ends[rank] == ST_OK && comm_size(shrunk) == job->size / 2);
		use(shrunk);
	}
	pthread_barrier_wait(&job->all);
	comm_free(shrunk);
	comm_free(comm);
}

static void test_threads(void)
{
	static const char *const nodes[] = {"a", "a", "b", "b", "c", "c"};
	struct job job;
	run_job(&job, 5, nodes, all_join);
	run_job(&job, 5, nodes, some_join);
	CHECK(job.ends[3] == ST_ERR_ABORTED && strstr(job.texts[3], "rank 3 on b was left out") && strstr(job.texts[3], "went on without it"), "%s: %s",
	      st_status_name(job.ends[3]), job.texts[3]);
	run_job(&job, 6, nodes, too_few);
	for (uint32_t r = 3; r < 6; r++)
		CHECK(job.ends[r] == ST_ERR_UNAVAILABLE && strstr(job.texts[r], "of the 6 that are not proven dead"), "rank %u: %s: %s", r,
		      st_status_name(job.ends[r]), job.texts[r]);
	run_job(&job, 6, nodes, half_with_lowest);
}

/* ---- ranks as processes -------------------------------------------------------------------------------------------- */

/* Shared by the processes of one job. */
struct shared {
	_Atomic uint32_t arrived, ready;
	struct record {
		uint8_t bytes[1024];
	} records[MAX_RANKS];
	struct report {
		_Atomic uint32_t phase; /* see below */
		uint32_t status, size, rank, from[MAX_RANKS], generation;
		int descriptors_before, descriptors_after;
		char text[512];
	} reports[MAX_RANKS];
	_Atomic uint32_t stop; /* survivors may leave */
};
enum { PHASE_WORKING = 1, PHASE_SHRINKING, PHASE_SHRUNK, PHASE_DONE, PHASE_WRONG };

struct shared_bootstrap {
	struct bootstrap public;
	struct shared *shared;
};

static enum st_status shared_exchange(struct bootstrap *bootstrap, const void *mine, size_t bytes, int64_t timeout_ms, void *all)
{
	struct shared *shared = ((struct shared_bootstrap *)bootstrap)->shared;
	struct st_deadline deadline = st_deadline_in_ms(timeout_ms);
	REQUIRE(bytes <= sizeof(struct record));
	memcpy(shared->records[bootstrap->rank].bytes, mine, bytes);
	/* Pairs with the load below: who sees the count sees the records. */
	atomic_fetch_add_explicit(&shared->arrived, 1, memory_order_acq_rel);
	while (atomic_load_explicit(&shared->arrived, memory_order_acquire) < bootstrap->size) {
		if (st_deadline_expired(&deadline))
			return st_fail(ST_ERR_TIMEOUT, "a rank did not come");
		usleep(1000);
	}
	for (uint32_t r = 0; r < bootstrap->size; r++)
		memcpy((uint8_t *)all + r * bytes, shared->records[r].bytes, bytes);
	return ST_OK;
}

static void shared_finish(struct bootstrap *bootstrap)
{
	(void)bootstrap;
}

static int count_descriptors(void)
{
	DIR *directory = opendir("/proc/self/fd");
	int count = 0;
	REQUIRE(directory);
	while (readdir(directory))
		count++;
	closedir(directory);
	return count;
}

/* A rank: works, and when the job fails goes on with the survivors, until it is told to stop. */
static void process_main(struct shared *shared, uint32_t rank, uint32_t size, const char *node)
{
	struct shared_bootstrap bootstrap = {.public = {.rank = rank, .size = size, .exchange = shared_exchange, .finish = shared_finish}, .shared = shared};
	struct report *report = &shared->reports[rank];
	struct comm_options options = options_for_tests();
	struct comm *comm = NULL;
	enum st_status status;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	snprintf(bootstrap.public.node, sizeof bootstrap.public.node, "%s", node);
	snprintf(bootstrap.public.job, sizeof bootstrap.public.job, "processes.%d", (int)getppid());
	report->descriptors_before = count_descriptors();
	status = comm_create_over(&bootstrap.public, &options, &comm);
	for (uint32_t r = 0; r < size; r++)
		report->from[r] = r;
	atomic_fetch_add_explicit(&shared->ready, 1, memory_order_acq_rel);
	while (status == ST_OK) {
		atomic_store_explicit(&report->phase, report->generation ? PHASE_SHRUNK : PHASE_WORKING, memory_order_release);
		uint32_t stop = 0;
		while (status == ST_OK && !stop) {
			if (!all_sums_right(comm, &status)) {
				snprintf(report->text, sizeof report->text, "a wrong sum");
				atomic_store_explicit(&report->phase, PHASE_WRONG, memory_order_release);
				_exit(2);
			}
			stop = atomic_load_explicit(&shared->stop, memory_order_acquire);
			if (status == ST_OK)
				status = comm_decide(comm, &stop, sizeof stop);
		}
		if (status == ST_OK)
			break;
		struct comm *shrunk = NULL;
		atomic_store_explicit(&report->phase, PHASE_SHRINKING, memory_order_release);
		status = comm_shrink(comm, SHRINK_MS, &shrunk);
		if (status != ST_OK)
			break;
		uint32_t from[MAX_RANKS];
		for (uint32_t r = 0; r < comm_size(shrunk); r++)
			from[r] = report->from[comm_shrunk_from(shrunk, r)];
		memcpy(report->from, from, sizeof from);
		report->generation++;
		comm_free(comm);
		comm = shrunk;
	}
	snprintf(report->text, sizeof report->text, "%s", status == ST_OK ? "" : st_message());
	report->status = (uint32_t)status;
	report->size = status == ST_OK ? comm_size(comm) : 0;
	report->rank = status == ST_OK ? comm_rank(comm) : 0;
	comm_free(comm);
	report->descriptors_after = count_descriptors();
	atomic_store_explicit(&report->phase, PHASE_DONE, memory_order_release);
	_exit(0);
}

struct processes {
	struct shared *shared;
	uint32_t size;
	pid_t pids[MAX_RANKS];
	bool killed[MAX_RANKS], stopped[MAX_RANKS];
};

static uint32_t phase_of(const struct processes *job, uint32_t rank)
{
	return atomic_load_explicit(&job->shared->reports[rank].phase, memory_order_acquire);
}

static void start_processes(struct processes *job, uint32_t size, const char *const *nodes)
{
	*job = (struct processes){.size = size};
	job->shared = mmap(NULL, sizeof *job->shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	REQUIRE(job->shared != MAP_FAILED);
	fflush(NULL);
	for (uint32_t r = 0; r < size; r++) {
		job->pids[r] = fork();
		REQUIRE(job->pids[r] >= 0);
		if (!job->pids[r])
			process_main(job->shared, r, size, nodes ? nodes[r] : "local");
	}
	while (atomic_load_explicit(&job->shared->ready, memory_order_acquire) < size)
		usleep(1000);
}

static void kill_rank(struct processes *job, uint32_t rank, int number)
{
	kill(job->pids[rank], number);
	if (number == SIGKILL)
		job->killed[rank] = true;
	job->stopped[rank] = number == SIGSTOP;
}

/* The ranks that were neither killed nor stopped are together in one communicator of their own. */
static bool together(const struct processes *job, const uint32_t *expected, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		uint32_t phase = phase_of(job, expected[i]);
		if (phase != PHASE_SHRUNK)
			return false;
	}
	return true;
}

/* Waits until those who live work again, ends them, and checks what they say of themselves. */
static void expect_survivors(struct processes *job, const char *what)
{
	uint32_t expected[MAX_RANKS], count = 0;
	struct st_deadline deadline = st_deadline_in_ms(SHRINK_MS + 30000);
	for (uint32_t r = 0; r < job->size; r++)
		if (!job->killed[r] && !job->stopped[r])
			expected[count++] = r;
	while (!together(job, expected, count) && !st_deadline_expired(&deadline))
		usleep(5000);
	/* A death that came late may begin it anew. */
	atomic_store_explicit(&job->shared->stop, 1, memory_order_release);
	for (uint32_t i = 0; i < count; i++) {
		const struct report *report = &job->shared->reports[expected[i]];
		while (phase_of(job, expected[i]) < PHASE_DONE && !st_deadline_expired(&deadline))
			usleep(5000);
		CHECK(phase_of(job, expected[i]) == PHASE_DONE, "%s: rank %u hangs in phase %u: %s", what, expected[i], phase_of(job, expected[i]), report->text);
		if (phase_of(job, expected[i]) != PHASE_DONE)
			continue;
		CHECK(report->status == ST_OK && report->size == count && report->rank == i && report->generation >= 1, "%s: rank %u: %s, rank %u of %u: %s", what,
		      expected[i], st_status_name((enum st_status)report->status), report->rank, report->size, report->text);
		for (uint32_t k = 0; k < count && report->size == count; k++)
			CHECK(report->from[k] == expected[k], "%s: rank %u says that %u was %u", what, expected[i], k, report->from[k]);
		CHECK(report->descriptors_after == report->descriptors_before, "%s: rank %u had %d descriptors, has %d", what, expected[i],
		      report->descriptors_before, report->descriptors_after);
	}
}

static void end_processes(struct processes *job)
{
	for (uint32_t r = 0; r < job->size; r++) {
		kill(job->pids[r], SIGKILL);
		waitpid(job->pids[r], NULL, 0);
	}
	munmap(job->shared, sizeof *job->shared);
}

static const char *const three_nodes[] = {"a", "a", "b", "b", "c", "c"};

static void kills(const char *what, uint32_t size, const char *const *nodes, uint32_t first, uint32_t second, unsigned pause_us)
{
	struct processes job;
	start_processes(&job, size, nodes);
	kill_rank(&job, first, SIGKILL);
	usleep(pause_us);
	if (second < size)
		kill_rank(&job, second, SIGKILL);
	expect_survivors(&job, what);
	end_processes(&job);
}

/* Stopped through the shrinking, woken up afterwards: it is left out, and says so. */
static void sleeper(uint32_t rank)
{
	struct processes job;
	start_processes(&job, 5, three_nodes);
	kill_rank(&job, rank, SIGSTOP);
	struct st_deadline deadline = st_deadline_in_ms(SHRINK_MS + 30000);
	for (uint32_t r = 0; r < 5; r++)
		while (r != rank && phase_of(&job, r) != PHASE_SHRUNK && !st_deadline_expired(&deadline))
			usleep(5000);
	kill_rank(&job, rank, SIGCONT);
	const struct report *report = &job.shared->reports[rank];
	while (phase_of(&job, rank) != PHASE_DONE && !st_deadline_expired(&deadline))
		usleep(5000);
	CHECK(phase_of(&job, rank) == PHASE_DONE && report->status == ST_ERR_ABORTED && strstr(report->text, "was left out"), "rank %u, phase %u: %s: %s", rank,
	      phase_of(&job, rank), st_status_name((enum st_status)report->status), report->text);
	job.stopped[rank] = true; /* no survivor */
	expect_survivors(&job, "beside a sleeper");
	end_processes(&job);
}

/* Stopped while the others shrink twice: they have freed the first communicator, but are not dead to a rank that knows no other. */
static void long_sleeper(uint32_t rank, uint32_t second)
{
	struct processes job;
	start_processes(&job, 5, three_nodes);
	kill_rank(&job, rank, SIGSTOP);
	struct st_deadline deadline = st_deadline_in_ms(2 * SHRINK_MS);
	for (unsigned generation = 1; generation <= 2; generation++) {
		for (uint32_t r = 0; r < 5; r++)
			while (r != rank && !job.killed[r] && (phase_of(&job, r) != PHASE_SHRUNK || job.shared->reports[r].generation < generation) &&
			       !st_deadline_expired(&deadline))
				usleep(5000);
		if (generation == 1)
			kill_rank(&job, second, SIGKILL);
	}
	kill_rank(&job, rank, SIGCONT);
	const struct report *report = &job.shared->reports[rank];
	while (phase_of(&job, rank) != PHASE_DONE && phase_of(&job, rank) != PHASE_SHRUNK && !st_deadline_expired(&deadline))
		usleep(5000);
	CHECK(phase_of(&job, rank) == PHASE_DONE && report->status == ST_ERR_ABORTED && strstr(report->text, "was left out"), "rank %u, phase %u: %s: %s", rank,
	      phase_of(&job, rank), st_status_name((enum st_status)report->status), report->text);
	job.stopped[rank] = true; /* no survivor */
	expect_survivors(&job, "beside a long sleeper");
	end_processes(&job);
}

/* One dies while the others shrink. */
static void dies_in_shrink(uint32_t first, uint32_t second, unsigned pause_us)
{
	struct processes job;
	char what[96];
	snprintf(what, sizeof what, "rank %u, and %u after %u us of shrinking", first, second, pause_us);
	start_processes(&job, 6, three_nodes);
	kill_rank(&job, first, SIGKILL);
	struct st_deadline deadline = st_deadline_in_ms(10000);
	while (phase_of(&job, second) != PHASE_SHRINKING && !st_deadline_expired(&deadline))
		usleep(200);
	usleep(pause_us);
	kill_rank(&job, second, SIGKILL);
	expect_survivors(&job, what);
	end_processes(&job);
}

/* Half of all, on one host: their kernel proves them dead, and the rest goes on. */
static void half_dies(void)
{
	struct processes job;
	start_processes(&job, 6, three_nodes);
	for (uint32_t r = 0; r < 6; r += 2)
		kill_rank(&job, r, SIGKILL);
	expect_survivors(&job, "half dies");
	end_processes(&job);
}

/* Three of six are stopped, the lowest among them: the rest is half without the lowest, and must not go on. */
static void half_stopped(void)
{
	struct processes job;
	start_processes(&job, 6, three_nodes);
	for (uint32_t r = 0; r < 3; r++)
		kill_rank(&job, r, SIGSTOP);
	struct st_deadline deadline = st_deadline_in_ms(SHRINK_MS + 30000);
	for (uint32_t r = 3; r < 6; r++) {
		const struct report *report = &job.shared->reports[r];
		while (phase_of(&job, r) != PHASE_DONE && !st_deadline_expired(&deadline))
			usleep(5000);
		CHECK(phase_of(&job, r) == PHASE_DONE && report->status == ST_ERR_UNAVAILABLE && strstr(report->text, "not proven dead"), "rank %u, phase %u: %s: %s",
		      r, phase_of(&job, r), st_status_name((enum st_status)report->status), report->text);
	}
	end_processes(&job);
}

static void test_processes(void)
{
	const char *more = getenv("LONG");
	kills("rank 0", 4, NULL, 0, 9, 0);
	kills("leaders of two nodes at once", 6, three_nodes, 0, 2, 0);
	kills("one of two", 2, NULL, 1, 9, 0);
	kills("twice", 5, three_nodes, 4, 0, 2500000);
	half_dies();
	dies_in_shrink(5, 0, 1000);
	sleeper(4);
	long_sleeper(4, 1);
	if (!more || !*more)
		return;
	half_stopped();
	for (uint32_t rank = 0; rank < 4; rank++)
		sleeper(rank);
	long_sleeper(0, 1);
	uint64_t state = 12345;
	for (int round = 0; round < 60; round++) {
		state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
		uint32_t first = (uint32_t)(state >> 33) % 6, second = (first + 1 + (uint32_t)(state >> 40) % 5) % 6;
		dies_in_shrink(first, second, (unsigned)(state >> 36) % 400000);
	}
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} tests[] = {{"processes", test_processes}, {"threads", test_threads}}; /* no fork beside threads */
	setvbuf(stdout, NULL, _IOLBF, 0);
	setenv("SYNCTRAIN_RECORDER", "off", 1);
	for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
		if (argc > 1 && strcmp(argv[1], tests[i].name))
			continue;
		int64_t start = st_now_ns();
		tests[i].run();
		printf("%-20s %6.2f s\n", tests[i].name, (double)(st_now_ns() - start) / 1e9);
	}
	return check_result();
}
