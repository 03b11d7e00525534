/*
 * A rank of the fault campaign: collectives in a loop, every result checked, until rank 0 is told to finish or something fails.
 *
 *   fault_rank SOCKET     SOCKET: the driver's, a path that is the same on all nodes
 *   fault_rank SOCKET MS  goes on with the survivors of every failure (comm_shrink, MS at most) until told to finish or left without any
 *   fault_rank SECONDS    without a driver, for so long by the clock of rank 0 (running time); says what it would tell a driver
 *
 * Exit: 0 orderly end, 1 the job failed and the driver has its text, 2 a wrong result, 3 no driver.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/clock.h"
#include "libcomm/comm.h"
#include "report.h"

#define MOST 6000
#define RANKS 64
#define ROUNDS_TO_WORK 3

static int driver = -1;
static _Atomic bool finishing; /* relaxed: seen in some later round */
/* The communicator that orders are about, and who is in it: ranks of the first one. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct comm *current;
static uint32_t generation, world[RANKS];

static void tell(uint32_t kind, const struct comm *comm, uint64_t operations, enum st_status status, const char *text)
{
	struct report report = {.kind = kind, .operations = operations, .status = (int32_t)status, .when_ns = st_now_ns()};
	const char *rank = getenv("SLURM_PROCID");

	report.rank = rank ? (uint32_t)atoi(rank) : comm ? world[comm_rank(comm)] : 0;
	report.generation = generation;
	for (uint32_t r = 0; comm && r < comm_size(comm) && r < RANKS; r++)
		report.members |= UINT64_C(1) << world[r];
	if (comm)
		snprintf(report.node, sizeof report.node, "%s", comm_host(comm, comm_rank(comm)));
	snprintf(report.text, sizeof report.text, "%s", text);
	if (driver < 0 && (kind == REPORT_READY || kind == REPORT_END))
		printf("%s rank %u, %llu rounds: %s\n", kind == REPORT_READY ? "ready" : "ended", report.rank, (unsigned long long)operations, text);
	else if (driver >= 0 && send(driver, &report, sizeof report, MSG_NOSIGNAL) < 0)
		exit(3);
}

/* Whole numbers, so that sums are exact in any order. */
static float value(uint32_t rank, uint64_t round, size_t i)
{
	return (float)((i * 7 + rank * 13 + round * 31) % 509);
}

static void wrong(const struct comm *comm, uint64_t round, const char *what, size_t i, float seen, float expected)
{
	char text[256];

	snprintf(text, sizeof text, "WRONG RESULT: round %llu, %s, element %zu: seen %g, expected %g", (unsigned long long)round, what, i, (double)seen,
		 (double)expected);
	tell(REPORT_END, comm, round, ST_ERR_INTERNAL, text);
	exit(2);
}

static enum st_status finish(struct comm *comm, enum st_status status, struct comm_request **request)
{
	return status == ST_OK ? comm_wait(comm, request) : status;
}

/* One round of each collective. */
static enum st_status run_round(struct comm *comm, uint64_t round, float *in, float *out, uint32_t *stop)
{
	uint32_t rank = comm_rank(comm), size = comm_size(comm), root = (uint32_t)(round % size);
	size_t count = round % 3 == 0 ? 3 : round % 3 == 1 ? 1000 : MOST;
	struct comm_request *request, *second;

	for (size_t i = 0; i < count; i++)
		in[i] = value(rank, round, i);
	ST_TRY(finish(comm, comm_allreduce(comm, in, out, count, COMM_F32, COMM_SUM, &request), &request));
	for (size_t i = 0; i < count; i++) {
		float sum = 0;
		for (uint32_t r = 0; r < size; r++)
			sum += value(r, round, i);
		if (out[i] != sum)
			wrong(comm, round, "allreduce", i, out[i], sum);
	}
	count = count / size + 1;
	for (size_t i = 0; i < count; i++)
		in[i] = value(rank, round, i);
	ST_TRY(comm_all_gather(comm, in, out, count, COMM_F32, &request));
	enum st_status status = comm_barrier(comm, &second);
	ST_TRY(comm_wait(comm, &request));
	for (size_t i = 0; i < count * size; i++)
		if (out[i] != value((uint32_t)(i / count), round, i % count))
			wrong(comm, round, "all_gather", i, out[i], value((uint32_t)(i / count), round, i % count));
	ST_TRY(finish(comm, status, &second));
	for (size_t i = 0; i < count; i++)
		in[i] = rank == root ? value(root, round, i) : -1;
	ST_TRY(finish(comm, comm_broadcast(comm, in, count, COMM_F32, root, &request), &request));
	for (size_t i = 0; i < count; i++)
		if (in[i] != value(root, round, i))
			wrong(comm, round, "broadcast", i, in[i], value(root, round, i));
	return finish(comm, comm_broadcast(comm, stop, 1, COMM_I32, 0, &request), &request);
}

/* The driver's orders, also while the rank is in the middle of a collective. */
static void *take_orders(void *unused)
{
	char order;

	(void)unused;
	while (recv(driver, &order, 1, 0) == 1) {
		if (order == ORDER_ABORT) {
			pthread_mutex_lock(&lock);
			comm_abort(current, "the loss is not finite");
			pthread_mutex_unlock(&lock);
		}
		else if (order == ORDER_EXIT)
			_exit(0);
		else if (order == ORDER_FINISH)
			atomic_store_explicit(&finishing, true, memory_order_relaxed);
	}
	return NULL;
}

/* Rounds until the end or a failure. */
static enum st_status run_rounds(struct comm *comm, struct st_deadline *end, uint64_t *round, float *in, float *out)
{
	enum st_status status = ST_OK;
	uint32_t stop = 0;

	for (unsigned done = 0; status == ST_OK && !stop; done++) {
		if (generation && done == ROUNDS_TO_WORK)
			tell(REPORT_WORKS, comm, *round, ST_OK, "");
		stop = comm_rank(comm) == 0 && (atomic_load_explicit(&finishing, memory_order_relaxed) || st_deadline_expired(end));
		status = run_round(comm, ++*round, in, out, &stop);
	}
	return status;
}

/* The survivors' communicator takes the place of the failed one. */
static enum st_status go_on(int64_t timeout_ms, uint64_t *round)
{
	struct comm *old = current, *shrunk = NULL;
	uint32_t were[RANKS];
	enum st_status status = comm_shrink(old, timeout_ms, &shrunk);

	if (status != ST_OK) {
		tell(REPORT_SHRUNK, NULL, *round, status, st_message());
		return status;
	}
	memcpy(were, world, sizeof were);
	pthread_mutex_lock(&lock);
	for (uint32_t r = 0; r < comm_size(shrunk); r++)
		world[r] = were[comm_shrunk_from(shrunk, r)];
	generation++;
	current = shrunk;
	pthread_mutex_unlock(&lock);
	*round = 0; /* the same on all */
	tell(REPORT_SHRUNK, shrunk, 0, ST_OK, comm_job(shrunk));
	comm_free(old);
	return ST_OK;
}

int main(int argc, char **argv)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct comm_options options;
	uint64_t round = 0;
	int64_t shrink_ms = argc == 3 ? atol(argv[2]) : 0;
	char message[1024];

	if (argc < 2 || argc > 3 || strlen(argv[1]) >= sizeof address.sun_path)
		return 3;
	setvbuf(stdout, NULL, _IOLBF, 0);
	struct st_deadline end = st_deadline_in_ms(*argv[1] == '/' ? -1 : 1000 * atol(argv[1]));
	strcpy(address.sun_path, argv[1]);
	if (*argv[1] == '/')
		driver = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (*argv[1] == '/' && connect(driver, (struct sockaddr *)&address, sizeof address)) {
		fprintf(stderr, "fault_rank: no driver at %s: %s\n", argv[1], strerror(errno));
		return 3;
	}
	tell(REPORT_HELLO, NULL, 0, ST_OK, "");
	float *in = malloc((MOST + 64) * sizeof *in), *out = malloc((MOST + 4096) * sizeof *out);
	enum st_status status = in && out ? comm_options_init(&options) : ST_ERR_NOMEM;
	if (status == ST_OK) {
		options.startup_timeout_ms = 6000;
		status = comm_create(&options, &current);
	}
	if (status == ST_OK && comm_size(current) > RANKS)
		status = st_fail(ST_ERR_USAGE, "%u ranks, expected %d at most", comm_size(current), RANKS);
	for (uint32_t r = 0; r < RANKS; r++)
		world[r] = r;
	pthread_t orders;
	bool joined = status == ST_OK;
	if (joined) {
		tell(REPORT_READY, current, 0, ST_OK, "");
		if (driver >= 0 && pthread_create(&orders, NULL, take_orders, NULL))
			return 3;
	}
	for (bool again = true; again;) {
		if (status == ST_OK)
			status = run_rounds(current, &end, &round, in, out);
		snprintf(message, sizeof message, "%s", status == ST_OK ? "" : st_message());
		tell(REPORT_END, current, round, status, message);
		again = joined && status != ST_OK && shrink_ms > 0;
		if (again) {
			status = go_on(shrink_ms, &round);
			again = status == ST_OK;
		}
	}
	/* The thread that takes orders must not use what is freed. */
	if (joined && driver >= 0) {
		shutdown(driver, SHUT_RD);
		pthread_join(orders, NULL);
	}
	comm_free(current);
	tell(REPORT_FREED, NULL, round, ST_OK, "");
	free(in);
	free(out);
	return status == ST_OK ? 0 : 1;
}
