/*
 * The progress thread: operations end without a call by the application; waits of several threads are woken, also by failures; a communicator can be
 * freed with operations in flight; links can be opened meanwhile; signals are the application's.
 *
 * That a rank makes no calls is a fact here, not a matter of time: it stands in a barrier until its peers are done.
 */
#include <dirent.h>
#include <signal.h>
#include <unistd.h>

#include "ranks.h"

enum { LARGE = 1 << 20 };

static float *ones(size_t count)
{
	float *buffer = malloc(count * sizeof *buffer);
	REQUIRE(buffer);
	for (size_t i = 0; i < count; i++)
		buffer[i] = 1;
	return buffer;
}

static void check_sum(const float *buffer, size_t count, uint32_t size)
{
	size_t wrong = 0;
	for (size_t i = 0; i < count; i++)
		wrong += buffer[i] != (float)size;
	CHECK(!wrong, "%zu of %zu elements", wrong, count);
}

/* Rank 0 issues and then makes no calls until all others have their results, which takes its part again and again. */
static void no_calls(struct ranks *ranks, uint32_t rank, struct comm *comm)
{
	float *large = ones(LARGE), small[2] = {1, 1};
	struct comm_request *requests[3];
	for (int round = 0; round < 3; round++) {
		for (size_t i = 0; i < LARGE; i++)
			large[i] = 1;
		small[0] = small[1] = 1;
		REQUIRE(comm_allreduce(comm, large, large, LARGE, COMM_F32, COMM_SUM, &requests[0]) == ST_OK);
		REQUIRE(comm_group_begin(comm, 1) == ST_OK);
		for (int k = 0; k < 2; k++)
			REQUIRE(comm_allreduce(comm, &small[k], &small[k], 1, COMM_F32, COMM_SUM, &requests[1 + k]) == ST_OK);
		REQUIRE(comm_group_end(comm) == ST_OK);
		for (int k = 0; k < 3 && rank; k++)
			CHECK(comm_wait(comm, &requests[k]) == ST_OK, "%s", st_message());
		pthread_barrier_wait(&ranks->all);
		for (int k = 0; k < 3 && !rank; k++)
			ranks_wait(comm, &requests[k]);
		check_sum(large, LARGE, ranks->size);
		CHECK(small[0] == (float)ranks->size && small[1] == (float)ranks->size);
	}
	free(large);
}

enum { SHARED = 200 };

struct waiter {
	struct comm *comm;
	struct comm_request **requests;
	unsigned first, step;
	enum st_status expected;
};

static void *wait_for_some(void *argument)
{
	struct waiter *waiter = argument;
	for (unsigned k = waiter->first; k < SHARED; k += waiter->step) {
		enum st_status status = comm_wait(waiter->comm, &waiter->requests[k]);
		CHECK(status == waiter->expected, "operation %u: %s, %s", k, st_status_name(status), st_message());
	}
	return NULL;
}

/* Three threads of each rank wait for the operations of a fourth. */
static void several_threads(struct ranks *ranks, uint32_t rank, struct comm *comm)
{
	static const size_t counts[] = {1, 10000, 30, 0, 2000};
	struct comm_request *requests[SHARED];
	float *buffers[SHARED];
	struct waiter waiters[3];
	pthread_t threads[3];
	(void)rank;
	for (unsigned k = 0; k < SHARED; k++) {
		buffers[k] = ones(counts[k % 5]);
		REQUIRE(comm_group_begin(comm, k % 3) == ST_OK);
		REQUIRE(comm_allreduce(comm, buffers[k], buffers[k], counts[k % 5], COMM_F32, COMM_SUM, &requests[k]) == ST_OK);
		REQUIRE(comm_group_end(comm) == ST_OK);
	}
	for (unsigned t = 0; t < 3; t++) {
		waiters[t] = (struct waiter){comm, requests, t, 3, ST_OK};
		REQUIRE(!pthread_create(&threads[t], NULL, wait_for_some, &waiters[t]));
	}
	/* Meanwhile this thread issues more, and looks. */
	for (int round = 0; round < 50; round++) {
		float x = 1;
		struct comm_request *request;
		REQUIRE(comm_allreduce(comm, &x, &x, 1, COMM_F32, COMM_SUM, &request) == ST_OK);
		enum st_status status;
		while ((status = comm_test(comm, &request)) == ST_PENDING)
			REQUIRE(comm_progress(comm) == ST_OK);
		CHECK(status == ST_OK && x == (float)ranks->size);
	}
	for (unsigned t = 0; t < 3; t++)
		REQUIRE(!pthread_join(threads[t], NULL));
	for (unsigned k = 0; k < SHARED; k++) {
		CHECK(!requests[k]);
		check_sum(buffers[k], counts[k % 5], ranks->size);
		free(buffers[k]);
	}
}

/* Links are opened while another thread of each rank waits, and the helper polls the links that there are. */
static void links_meanwhile(struct ranks *ranks, uint32_t rank, struct comm *comm)
{
	enum { TURNS = 3 };
	struct comm_request *requests[SHARED] = {0};
	float *large = ones(LARGE), small[SHARED];
	(void)rank;
	for (unsigned turn = 0; turn < TURNS; turn++) {
		struct waiter waiter = {comm, requests, 0, 1, ST_OK};
		struct comm_leaves leaves;
		struct comm_request *request, *ordered;
		pthread_t thread;
		float *layers = ones(64);
		for (size_t i = 0; i < LARGE; i++)
			large[i] = 1;
		REQUIRE(comm_allreduce(comm, large, large, LARGE, COMM_F32, COMM_SUM, &request) == ST_OK);
		for (unsigned k = 0; k < SHARED; k++) {
			small[k] = 1;
			REQUIRE(comm_allreduce(comm, &small[k], &small[k], 1, COMM_F32, COMM_SUM, &requests[k]) == ST_OK);
		}
		REQUIRE(!pthread_create(&thread, NULL, wait_for_some, &waiter));
		const uint32_t total = ranks->size + turn;
		CHECK(comm_leaves_open(comm, total, &leaves) == ST_OK, "%s", st_message());
		CHECK(comm_allreduce_ordered(comm, &leaves, layers, 1, layers, 1, COMM_F32, COMM_AVG, &ordered) == ST_OK, "%s", st_message());
		ranks_wait(comm, &ordered);
		REQUIRE(!pthread_join(thread, NULL));
		ranks_wait(comm, &request);
		check_sum(large, LARGE, ranks->size);
		check_sum(small, SHARED, ranks->size);
		free(layers);
	}
	free(large);
}

/* The last rank leaves; the waits of the others, which sleep by then or not, end. */
static void failures_wake(struct ranks *ranks, uint32_t rank, struct comm *comm)
{
	struct comm_request *requests[SHARED];
	static float x[RANKS_MOST][SHARED];
	struct waiter waiters[2];
	pthread_t threads[2];
	const bool leaver = rank == ranks->size - 1;
	for (unsigned k = 0; k < SHARED && !leaver; k++)
		REQUIRE(comm_allreduce(comm, &x[rank][k], &x[rank][k], 1, COMM_F32, COMM_SUM, &requests[k]) == ST_OK);
	for (unsigned t = 0; t < 2 && !leaver; t++) {
		waiters[t] = (struct waiter){comm, requests, t, 2, ST_ERR_ABORTED};
		REQUIRE(!pthread_create(&threads[t], NULL, wait_for_some, &waiters[t]));
	}
	pthread_barrier_wait(&ranks->all);
	if (leaver) {
		usleep(20000); /* most often they sleep by now; either way is right */
		return;
	}
	for (unsigned t = 0; t < 2; t++)
		REQUIRE(!pthread_join(threads[t], NULL));
	enum st_status status = comm_progress(comm);
	CHECK(status == ST_ERR_ABORTED);
	ranks_keep(ranks, rank, status);
}

static void abandon(struct ranks *ranks, uint32_t rank, struct comm *comm)
{
	static float x[RANKS_MOST][LARGE / 4];
	struct comm_request *requests[2];
	for (int k = 0; k < 2; k++)
		REQUIRE(comm_allreduce(comm, x[rank] + k * LARGE / 8, x[rank] + k * LARGE / 8, LARGE / 8, COMM_F32, COMM_SUM, &requests[k]) == ST_OK);
	pthread_barrier_wait(&ranks->all);
}

/* Looks through this process's threads: each helper blocks what can be blocked. */
static unsigned helpers_with_signals_blocked(void)
{
	unsigned found = 0;
	DIR *tasks = opendir("/proc/self/task");
	REQUIRE(tasks);
	for (struct dirent *task; (task = readdir(tasks));) {
		char path[300], line[256];
		bool helper = false;
		snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
		FILE *file = fopen(path, "r");
		while (file && fgets(line, sizeof line, file)) {
			unsigned long long blocked;
			helper |= !strcmp(line, "Name:\tsynctrain-comm\n");
			if (helper && sscanf(line, "SigBlk: %llx", &blocked) == 1) {
				CHECK(blocked >> (SIGINT - 1) & 1 && blocked >> (SIGTERM - 1) & 1 && blocked >> (SIGUSR1 - 1) & 1);
				found++;
			}
		}
		if (file)
			fclose(file);
	}
	closedir(tasks);
	return found;
}

static void signals_are_blocked(struct ranks *ranks, uint32_t rank, struct comm *comm)
{
	float x = 1;
	struct comm_request *request;
	REQUIRE(comm_allreduce(comm, &x, &x, 1, COMM_F32, COMM_SUM, &request) == ST_OK);
	ranks_wait(comm, &request);
	pthread_barrier_wait(&ranks->all);
	if (rank == 0)
		CHECK(helpers_with_signals_blocked() == ranks->size);
	sigset_t now;
	REQUIRE(!pthread_sigmask(SIG_SETMASK, NULL, &now));
	CHECK(!sigismember(&now, SIGTERM)); /* creating it left this thread's alone */
	pthread_barrier_wait(&ranks->all);
}

int main(void)
{
	static const unsigned masks[] = {COMM_TRANSPORT_SHM, COMM_TRANSPORT_TCP};
	static const bool first_alone[RANKS_MOST] = {true}, last_alone[RANKS_MOST] = {false, false, true};
	for (int m = 0; m < 2; m++) {
		for (uint32_t size = 2; size <= 3; size++) {
			struct ranks alone = {.threads = first_alone};
			ranks_options(&alone);
			alone.options.arrival_timeout_ms = 8000; /* an error, and no hang, when nobody drives */
			ranks_run(&alone, size, masks[m], no_calls);
			alone.threads = NULL;
			alone.options.progress_thread = true;
			ranks_run(&alone, size, masks[m], no_calls);
		}
		struct ranks threads = {0};
		ranks_options(&threads);
		threads.options.progress_thread = true;
		for (uint32_t size = 1; size <= 4; size++)
			ranks_run(&threads, size, masks[m], several_threads);
		for (uint32_t size = 2; size <= 3; size++)
			ranks_run(&threads, size, masks[m], links_meanwhile);
		struct ranks left = {0};
		ranks_options(&left);
		left.options.progress_thread = true;
		ranks_run(&left, 3, masks[m], failures_wake);
		ranks_all_say(&left, "rank 2");
		struct ranks abandoned = {.threads = last_alone};
		ranks_run(&abandoned, 3, masks[m], abandon);
		struct ranks signals = {0};
		ranks_options(&signals);
		signals.options.progress_thread = true;
		ranks_run(&signals, 2, masks[m], signals_are_blocked);
	}
	return check_result();
}
