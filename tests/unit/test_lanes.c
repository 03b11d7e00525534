/*
 * Lanes: an urgent operation overtakes one issued before it, and never the other way round; a lower lane goes on while a higher one waits; hundreds
 * of operations in flight in all lanes; what ranks are told that issue with different priorities, or lose a peer with all lanes busy.
 *
 * Nothing here depends on time: a rank that makes no calls moves nothing, so what it has not done is known.
 */
#include "ranks.h"

enum { LARGE = 1 << 20 }; /* elements: many times what the slots hold, so that both ranks must make calls again and again */

static void allreduce(struct comm *comm, unsigned priority, float *buffer, size_t count, struct comm_request **request)
{
	REQUIRE(comm_group_begin(comm, priority) == ST_OK);
	REQUIRE(comm_allreduce(comm, buffer, buffer, count, COMM_F32, COMM_SUM, request) == ST_OK);
	REQUIRE(comm_group_end(comm) == ST_OK);
}

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

static uint64_t puts_of(struct comm *comm)
{
	struct comm_counters counters;
	comm_counters_read(comm, &counters);
	return counters.shm_puts + counters.tcp_puts;
}

/*
 * Two ranks issue a large operation and a small one in another lane.  Rank 1 then makes no calls; rank 0 gets the small one done nevertheless,
 * and the large one not.
 */
static void small_beside_large(struct ranks *ranks, uint32_t rank, struct comm *comm, bool small_is_urgent)
{
	float *large = ones(LARGE), small = 1;
	struct comm_request *large_request, *small_request;
	for (uint32_t turn = 0; turn < 2; turn++) {
		/* Rank 0 first, so that it has granted what rank 1 sends when it issues. */
		if (turn == rank) {
			allreduce(comm, !small_is_urgent, large, LARGE, &large_request);
			allreduce(comm, small_is_urgent, &small, 1, &small_request);
		}
		pthread_barrier_wait(&ranks->all);
	}
	if (rank == 0) {
		uint64_t puts = puts_of(comm);
		CHECK(comm_wait(comm, &small_request) == ST_OK, "%s", st_message());
		/* All that it took was the urgent operation's own put, and be it one that was made when it was issued: rank 1 had made room for
		 * more of the large one. */
		CHECK(!small_is_urgent || puts_of(comm) <= puts + 1, "%ju puts", (uintmax_t)(puts_of(comm) - puts));
		CHECK(comm_test(comm, &large_request) == ST_PENDING);
	}
	pthread_barrier_wait(&ranks->all);
	if (rank == 1)
		ranks_wait(comm, &small_request);
	ranks_wait(comm, &large_request);
	CHECK(small == 2);
	check_sum(large, LARGE, 2);
	free(large);
}

static void urgent_overtakes(struct ranks *ranks, uint32_t rank, struct comm *comm)
{
	small_beside_large(ranks, rank, comm, true);
}

/* The large one is urgent, and waits for rank 1. */
static void others_go_on(struct ranks *ranks, uint32_t rank, struct comm *comm)
{
	small_beside_large(ranks, rank, comm, false);
}

static uint32_t draw(uint64_t *state)
{
	*state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)(*state >> 33);
}

enum { IN_FLIGHT = 300 };

/* Ranks draw alike what they issue, and each for itself in which order it waits. */
static void many_in_flight(struct ranks *ranks, uint32_t rank, struct comm *comm)
{
	static const size_t counts[] = {0, 1, 3, 100, 1000, 5000, 40000};
	const uint32_t size = ranks->size;
	uint64_t same = 1, own = 100 + rank;
	struct {
		struct comm_request *request;
		int32_t *buffer;
		size_t count;
		bool reduced;
	} flights[IN_FLIGHT];
	for (int round = 0; round < 2; round++) {
		for (int k = 0; k < IN_FLIGHT; k++) {
			size_t count = flights[k].count = counts[draw(&same) % 7];
			uint32_t what = draw(&same) % 8, root = draw(&same) % size;
			int32_t *buffer = flights[k].buffer = malloc(count * sizeof *buffer + 1);
			REQUIRE(buffer);
			flights[k].reduced = what < 5;
			for (size_t i = 0; i < count; i++)
				buffer[i] = flights[k].reduced ? (int32_t)(i + k) * (int32_t)(rank + 1) : rank == root ? (int32_t)(i + k) : -1;
			REQUIRE(comm_group_begin(comm, draw(&same) % 5) == ST_OK);
			if (flights[k].reduced)
				REQUIRE(comm_allreduce(comm, buffer, buffer, count, COMM_I32, COMM_SUM, &flights[k].request) == ST_OK);
			else if (what < 7)
				REQUIRE(comm_broadcast(comm, buffer, count, COMM_I32, root, &flights[k].request) == ST_OK);
			else
				REQUIRE(comm_barrier(comm, &flights[k].request) == ST_OK);
			if (what == 7)
				flights[k].count = 0;
			REQUIRE(comm_group_end(comm) == ST_OK);
		}
		for (int left = IN_FLIGHT; left;) {
			int k = (int)(draw(&own) % IN_FLIGHT);
			if (!flights[k].request)
				continue;
			if (draw(&own) % 4) {
				ranks_wait(comm, &flights[k].request);
			} else {
				enum st_status status = comm_test(comm, &flights[k].request);
				REQUIRE(status == ST_OK || status == ST_PENDING);
				if (status == ST_PENDING)
					continue;
			}
			left--;
			size_t wrong = 0;
			for (size_t i = 0; i < flights[k].count; i++)
				wrong += flights[k].buffer[i] != (int32_t)(i + k) * (int32_t)(flights[k].reduced ? size * (size + 1) / 2 : 1);
			CHECK(!wrong, "operation %d of round %d: %zu of %zu elements", k, round, wrong, flights[k].count);
			free(flights[k].buffer);
		}
	}
	struct comm_counters counters;
	comm_counters_read(comm, &counters);
	CHECK(counters.operations == 2 * IN_FLIGHT && !counters.fused);
}

static void other_priority(struct ranks *ranks, uint32_t rank, struct comm *comm)
{
	float x = 1;
	struct comm_request *request;
	allreduce(comm, rank == 0 ? 1 : 0, &x, 1, &request);
	enum st_status status = comm_wait(comm, &request);
	CHECK(status == ST_ERR_MISMATCH || status == ST_ERR_ABORTED);
	CHECK(!request);
	ranks_keep(ranks, rank, status);
	pthread_barrier_wait(&ranks->all);
}

static void other_order(struct ranks *ranks, uint32_t rank, struct comm *comm)
{
	float x = 1, y[2] = {1, 1};
	struct comm_request *urgent, *normal;
	if (rank == 0)
		allreduce(comm, 1, &x, 1, &urgent);
	allreduce(comm, 0, y, 2, &normal);
	if (rank == 1)
		allreduce(comm, 1, &x, 1, &urgent);
	enum st_status status = comm_wait(comm, &urgent);
	CHECK(status == ST_ERR_MISMATCH || status == ST_ERR_ABORTED);
	ranks_keep(ranks, rank, status);
	CHECK(comm_wait(comm, &normal) == ST_ERR_ABORTED && !normal);
	pthread_barrier_wait(&ranks->all);
}

static void leave_with_all_busy(struct ranks *ranks, uint32_t rank, struct comm *comm)
{
	struct comm_request *requests[4];
	float *large[4];
	for (unsigned k = 0; k < 4; k++)
		large[k] = ones(LARGE / 4);
	for (unsigned k = 0; k < 4 && rank != 2; k++)
		allreduce(comm, k % 2, large[k], LARGE / 4, &requests[k]);
	pthread_barrier_wait(&ranks->all);
	for (unsigned k = 4; k-- && rank != 2;) {
		enum st_status status = comm_wait(comm, &requests[k]);
		CHECK(status == ST_ERR_ABORTED, "%s", st_status_name(status));
		CHECK(!requests[k]);
		ranks_keep(ranks, rank, status);
	}
	for (unsigned k = 0; k < 4; k++)
		free(large[k]);
}

/* Done, but never waited for; not done; held back in a group: all of it goes with the communicator. */
static void abandon(struct ranks *ranks, uint32_t rank, struct comm *comm)
{
	float x[6] = {0};
	struct comm_request *requests[6];
	(void)rank;
	for (unsigned k = 0; k < 4; k++)
		allreduce(comm, k % 2, &x[k], 1, &requests[k]);
	ranks_wait(comm, &requests[3]);
	pthread_barrier_wait(&ranks->all);
	REQUIRE(comm_group_begin(comm, 1) == ST_OK);
	for (unsigned k = 4; k < 6; k++)
		REQUIRE(comm_allreduce(comm, &x[k], &x[k], 1, COMM_F32, COMM_SUM, &requests[k]) == ST_OK);
}

int main(void)
{
	static const unsigned masks[] = {COMM_TRANSPORT_SHM, COMM_TRANSPORT_TCP};
	for (int m = 0; m < 2; m++) {
		struct ranks ranks = {0};
		ranks_options(&ranks);
		/* On code where the urgent one waits for the large one: an error, and no hang. */
		ranks.options.arrival_timeout_ms = 4000;
		/* Pairs exchange: no rank waits for what another answers to it, only for what it sends. */
		ranks.options.algorithm = COMM_ALGORITHM_HALVING;
		ranks_run(&ranks, 2, masks[m], urgent_overtakes);
		ranks_run(&ranks, 2, masks[m], others_go_on);
		for (unsigned lanes = 1; lanes <= COMM_MAX_LANES; lanes++) {
			struct ranks many = {0};
			ranks_options(&many);
			many.options.lanes = lanes;
			if (lanes % 2)
				many.options.chunk_bytes = 1024;
			ranks_run(&many, 1 + lanes % 4, masks[m], many_in_flight);
		}
		struct ranks priorities = {0};
		ranks_options(&priorities);
		priorities.options.arrival_timeout_ms = 4000;
		ranks_run(&priorities, 2, masks[m], other_priority);
		ranks_all_say(&priorities, "allreduce 1 of 1 f32, sum with priority 1");
		ranks_all_say(&priorities, "allreduce 1 of 1 f32, sum with priority 0");
		struct ranks order = {0};
		ranks_run(&order, 2, masks[m], other_order);
		ranks_all_say(&order, "ranks disagree");
		ranks_all_say(&order, "allreduce 1 of ");
		ranks_all_say(&order, "allreduce 2 of ");
		struct ranks left = {0};
		ranks_run(&left, 3, masks[m], leave_with_all_busy);
		ranks_all_say(&left, "rank 2");
		struct ranks abandoned = {0};
		ranks_run(&abandoned, 3, masks[m], abandon);
	}
	return check_result();
}
