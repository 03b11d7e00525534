/*
 * Groups: what runs as one operation is told by issue order and sizes alone; fused results equal unfused ones where sums are exact; ranks that fuse
 * differently are told so; an open group's requests can't be waited for; nothing is allocated per operation.
 */
#include "ranks.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COUNTS_ALLOCATIONS false
static _Thread_local uint64_t allocations;
#else
#define COUNTS_ALLOCATIONS true
static _Thread_local uint64_t allocations;
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *malloc(size_t bytes)
{
	allocations++;
	return __libc_malloc(bytes);
}
void *calloc(size_t count, size_t bytes)
{
	allocations++;
	return __libc_calloc(count, bytes);
}
void *realloc(void *memory, size_t bytes)
{
	allocations++;
	return __libc_realloc(memory, bytes);
}
#endif

static struct comm_counters counters_of(struct comm *comm)
{
	struct comm_counters counters;
	comm_counters_read(comm, &counters);
	return counters;
}

enum { MEMBERS = 40, MOST_COUNT = 3000 };

static size_t count_of(unsigned k)
{
	static const size_t counts[] = {1, 0, 17, 1000, 3, 256, MOST_COUNT, 64};
	return counts[k % 8];
}

/* Elements that are exact in any order and type: small whole numbers. */
static int element(uint32_t rank, unsigned k, size_t i)
{
	return (int)((i * 3 + k + rank * 5) % 7);
}

static void fill(enum comm_type type, void *buffer, uint32_t rank, unsigned k, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		int value = element(rank, k, i);
		switch (type) {
		case COMM_F32: ((float *)buffer)[i] = (float)value; break;
		case COMM_F64: ((double *)buffer)[i] = value; break;
		case COMM_I64: ((int64_t *)buffer)[i] = value; break;
		case COMM_I32: ((int32_t *)buffer)[i] = value; break;
		case COMM_BF16: {
			float wide = (float)value;
			memcpy((char *)buffer + 2 * i, (char *)&wide + 2, 2); /* exact: the lower half is zero */
			break;
		}
		default: ((uint8_t *)buffer)[i] = (uint8_t)value;
		}
	}
}

/* The same all-reduces alone and in a group, in place and not: the same bytes, in fewer operations. */
static void fused_equals_unfused(struct ranks *ranks, uint32_t rank, struct comm *comm)
{
	static const enum comm_type types[] = {COMM_I32, COMM_F32, COMM_BF16, COMM_U8, COMM_F64, COMM_I64};
	static const enum comm_op ops[] = {COMM_SUM, COMM_MAX, COMM_AVG};
	static char inputs[RANKS_MOST][MEMBERS][MOST_COUNT * 8], alone[RANKS_MOST][MEMBERS][MOST_COUNT * 8], fused[RANKS_MOST][MEMBERS][MOST_COUNT * 8];
	struct comm_request *requests[MEMBERS];
	for (size_t t = 0; t < sizeof types / sizeof *types; t++)
		for (size_t o = 0; o < 3; o++) {
			const size_t bytes = comm_type_bytes(types[t]);
			for (unsigned k = 0; k < MEMBERS; k++) {
				fill(types[t], inputs[rank][k], rank, k, count_of(k));
				memcpy(alone[rank][k], inputs[rank][k], count_of(k) * bytes);
				REQUIRE(comm_allreduce(comm, alone[rank][k], alone[rank][k], count_of(k), types[t], ops[o], &requests[k]) == ST_OK);
			}
			for (unsigned k = 0; k < MEMBERS; k++)
				ranks_wait(comm, &requests[k]);
			struct comm_counters before = counters_of(comm);
			memset(fused[rank], 0x55, sizeof fused[rank]);
			REQUIRE(comm_group_begin(comm, (unsigned)t % 2) == ST_OK);
			for (unsigned k = 0; k < MEMBERS; k++) {
				const bool in_place = k % 3 == 0;
				if (in_place)
					memcpy(fused[rank][k], inputs[rank][k], count_of(k) * bytes);
				REQUIRE(comm_allreduce(comm, in_place ? fused[rank][k] : inputs[rank][k], fused[rank][k], count_of(k), types[t], ops[o],
						       &requests[k]) == ST_OK);
			}
			REQUIRE(comm_group_end(comm) == ST_OK);
			for (unsigned k = MEMBERS; k--;)
				ranks_wait(comm, &requests[k]);
			struct comm_counters after = counters_of(comm);
			CHECK(after.operations - before.operations < MEMBERS / 2 && after.fused > before.fused);
			for (unsigned k = 0; k < MEMBERS; k++) {
				CHECK(!memcmp(fused[rank][k], alone[rank][k], count_of(k) * bytes), "%s, %s, member %u", comm_type_name(types[t]),
				      comm_op_name(ops[o]), k);
				CHECK(count_of(k) == MOST_COUNT || fused[rank][k][count_of(k) * bytes] == 0x55, "member %u is too long", k);
			}
		}
	/* Sums that are not exact: whatever the bits, all ranks have the same, and twice the same. */
	static float results[RANKS_MOST][2][100 * MEMBERS];
	for (int turn = 0; turn < 2; turn++) {
		float *result = results[rank][turn];
		for (size_t i = 0; i < 100 * MEMBERS; i++)
			result[i] = 1.0f / (float)(1 + (i * 31 + rank * 977) % 5003);
		REQUIRE(comm_group_begin(comm, 0) == ST_OK);
		for (unsigned k = 0; k < MEMBERS; k++)
			REQUIRE(comm_allreduce(comm, result + 100 * k, result + 100 * k, 100, COMM_F32, COMM_SUM, &requests[k]) == ST_OK);
		REQUIRE(comm_group_end(comm) == ST_OK);
		for (unsigned k = 0; k < MEMBERS; k++)
			ranks_wait(comm, &requests[k]);
	}
	CHECK(!memcmp(results[rank][0], results[rank][1], sizeof results[rank][0]));
	pthread_barrier_wait(&ranks->all);
	CHECK(!memcmp(results[rank][0], results[0][0], sizeof results[0][0]));
	pthread_barrier_wait(&ranks->all);
}

/* How many operations a group of these becomes, with fusion of up to 16 elements of f32. */
static void issue_order_and_sizes_decide(struct ranks *ranks, uint32_t rank, struct comm *comm)
{
	static const struct {
		const char *what; /* digits and letters: that many elements (f: 15, g: 16, h: 17) summed; '^': one maximum; 'i': one i32; 'b': broadcast */
		unsigned operations, fused;
	} cases[] = {
		{"", 0, 0},       {"1", 1, 0},      {"11", 1, 2},     {"88", 1, 2},     {"881", 2, 2},   {"g", 1, 0},
		{"gg", 2, 0},     {"h", 1, 0},      {"1h1", 3, 0},    {"11h11", 3, 4},  {"11b11", 3, 4}, {"1b1", 3, 0},
		{"11^11", 3, 4},  {"11i11", 3, 4},  {"11^^ii", 3, 6}, {"0000", 1, 4},   {"f1", 1, 2},    {"f2", 2, 0},
		{"f11f", 2, 4},   {"8888888", 4, 6},
	};
	float x[64] = {0};
	int32_t n[64] = {0};
	struct comm_request *requests[16];
	(void)ranks;
	for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
		struct comm_counters before = counters_of(comm);
		unsigned count = 0;
		REQUIRE(comm_group_begin(comm, (unsigned)c % 3) == ST_OK);
		for (const char *at = cases[c].what; *at; at++, count++) {
			if (*at == 'b')
				REQUIRE(comm_broadcast(comm, x + 40, 1, COMM_F32, 0, &requests[count]) == ST_OK);
			else if (*at == '^')
				REQUIRE(comm_allreduce(comm, x, x + 32, 1, COMM_F32, COMM_MAX, &requests[count]) == ST_OK);
			else if (*at == 'i')
				REQUIRE(comm_allreduce(comm, n, n + 32, 1, COMM_I32, COMM_SUM, &requests[count]) == ST_OK);
			else
				REQUIRE(comm_allreduce(comm, x, x + 32, *at <= '9' ? (size_t)(*at - '0') : (size_t)(*at - 'f' + 15), COMM_F32, COMM_SUM,
						       &requests[count]) == ST_OK);
		}
		REQUIRE(comm_group_end(comm) == ST_OK);
		for (unsigned k = 0; k < count; k++)
			ranks_wait(comm, &requests[k]);
		struct comm_counters after = counters_of(comm);
		const bool off = !ranks->options.fusion_bytes;
		CHECK(after.operations - before.operations == (off ? count : cases[c].operations), "'%s' on rank %u: %ju operations", cases[c].what, rank,
		      (uintmax_t)(after.operations - before.operations));
		CHECK(after.fused - before.fused == (off ? 0 : cases[c].fused), "'%s' on rank %u: %ju fused", cases[c].what, rank,
		      (uintmax_t)(after.fused - before.fused));
	}
	/* More members than a signature can say. */
	struct comm_request *many[600];
	struct comm_counters before = counters_of(comm);
	REQUIRE(comm_group_begin(comm, 0) == ST_OK);
	for (int k = 0; k < 600; k++)
		REQUIRE(comm_allreduce(comm, x, x, 0, COMM_F32, COMM_SUM, &many[k]) == ST_OK);
	REQUIRE(comm_group_end(comm) == ST_OK);
	for (int k = 0; k < 600; k++)
		ranks_wait(comm, &many[k]);
	CHECK(counters_of(comm).operations - before.operations == (ranks->options.fusion_bytes ? 3 : 600));
}

static void disagree(struct ranks *ranks, uint32_t rank, struct comm *comm)
{
	static const size_t other[2][2] = {{3, 4}, {4, 3}};
	float x[2][8] = {0};
	struct comm_request *requests[2];
	REQUIRE(comm_group_begin(comm, 0) == ST_OK);
	for (int k = 0; k < 2; k++)
		REQUIRE(comm_allreduce(comm, x[k], x[k], other[rank == 1][k], COMM_F32, COMM_SUM, &requests[k]) == ST_OK);
	comm_group_end(comm);
	enum st_status status = comm_wait(comm, &requests[1]);
	CHECK(status == ST_ERR_MISMATCH || status == ST_ERR_ABORTED);
	ranks_keep(ranks, rank, status);
	status = comm_wait(comm, &requests[0]);
	CHECK((status == ST_ERR_MISMATCH || status == ST_ERR_ABORTED) && !requests[0] && !requests[1]);
	pthread_barrier_wait(&ranks->all);
}

static void one_does_not_fuse(struct ranks *ranks, uint32_t rank, struct comm *comm)
{
	float x[2][8] = {0};
	struct comm_request *requests[2];
	if (rank == 0)
		REQUIRE(comm_group_begin(comm, 0) == ST_OK);
	for (int k = 0; k < 2; k++)
		REQUIRE(comm_allreduce(comm, x[k], x[k], 4, COMM_F32, COMM_SUM, &requests[k]) == ST_OK);
	if (rank == 0)
		comm_group_end(comm);
	enum st_status status = comm_wait(comm, &requests[0]);
	CHECK(status == ST_ERR_MISMATCH || status == ST_ERR_ABORTED);
	ranks_keep(ranks, rank, status);
	pthread_barrier_wait(&ranks->all);
}

static void open_groups(struct ranks *ranks, uint32_t rank, struct comm *comm)
{
	float x[4] = {1, 1, 1, 1}, large[100] = {0};
	struct comm_request *before, *held, *issued;
	(void)ranks, (void)rank;
	CHECK_FAILS(comm_group_end(comm), ST_ERR_USAGE, "no group is open");
	REQUIRE(comm_allreduce(comm, &x[0], &x[0], 1, COMM_F32, COMM_SUM, &before) == ST_OK);
	REQUIRE(comm_group_begin(comm, 1) == ST_OK);
	CHECK_FAILS(comm_group_begin(comm, 0), ST_ERR_USAGE, "groups do not nest");
	REQUIRE(comm_allreduce(comm, large, large, 100, COMM_F32, COMM_SUM, &issued) == ST_OK); /* too long to be held back */
	REQUIRE(comm_allreduce(comm, &x[1], &x[1], 1, COMM_F32, COMM_SUM, &held) == ST_OK);
	struct comm_request *const same = held;
	CHECK_FAILS(comm_wait(comm, &held), ST_ERR_USAGE, "comm_wait: the request belongs to a group that is still open");
	CHECK_FAILS(comm_test(comm, &held), ST_ERR_USAGE, "comm_test: the request belongs to a group that is still open");
	CHECK_FAILS(comm_wait(comm, &issued), ST_ERR_USAGE, "still open");
	CHECK(held == same && issued);
	/* No request is one that is done, inside a group and out of it. */
	struct comm_request *none = NULL;
	CHECK(comm_wait(comm, &none) == ST_OK && comm_test(comm, &none) == ST_OK && !none);
	/* What a group refuses is no part of it. */
	struct comm_request *bad = NULL;
	CHECK_FAILS(comm_allreduce(comm, x, x + 1, 2, COMM_F32, COMM_SUM, &bad), ST_ERR_USAGE, "overlap");
	CHECK(!bad);
	/* Requests from before are not concerned. */
	ranks_wait(comm, &before);
	REQUIRE(comm_progress(comm) == ST_OK);
	REQUIRE(comm_group_end(comm) == ST_OK);
	ranks_wait(comm, &held);
	ranks_wait(comm, &issued);
	CHECK(comm_test(comm, &issued) == ST_OK && comm_wait(comm, &issued) == ST_OK);
	CHECK(x[1] == (float)comm_size(comm));
	CHECK_FAILS(comm_group_end(comm), ST_ERR_USAGE, "no group is open");
}

/* A group that a failure overtakes: its requests say so once it is closed. */
static void fail_in_group(struct ranks *ranks, uint32_t rank, struct comm *comm)
{
	float x[2] = {0};
	struct comm_request *outside, *held = NULL;
	if (rank == 1) {
		pthread_barrier_wait(&ranks->all);
		return;
	}
	REQUIRE(comm_allreduce(comm, &x[0], &x[0], 1, COMM_F32, COMM_SUM, &outside) == ST_OK);
	REQUIRE(comm_group_begin(comm, 0) == ST_OK);
	REQUIRE(comm_allreduce(comm, &x[1], &x[1], 1, COMM_F32, COMM_SUM, &held) == ST_OK);
	pthread_barrier_wait(&ranks->all);
	CHECK(comm_wait(comm, &outside) == ST_ERR_ABORTED);
	CHECK_FAILS(comm_wait(comm, &held), ST_ERR_USAGE, "still open");
	CHECK(comm_allreduce(comm, &x[1], &x[1], 1, COMM_F32, COMM_SUM, &outside) == ST_ERR_ABORTED);
	CHECK(comm_group_end(comm) == ST_ERR_ABORTED);
	CHECK_FAILS(comm_wait(comm, &held), ST_ERR_ABORTED, "rank 1");
	CHECK(!held && comm_group_begin(comm, 0) == ST_ERR_ABORTED);
}

static void nothing_is_allocated(struct ranks *ranks, uint32_t rank, struct comm *comm)
{
	float x[20] = {0};
	struct comm_request *requests[20];
	(void)rank;
	for (int round = 0; round < 60; round++) {
		/* The first rounds make plans, requests and memory for fused operations. */
		if (round == 10)
			allocations = 0;
		for (unsigned priority = 0; priority < 2; priority++) {
			REQUIRE(comm_group_begin(comm, priority) == ST_OK);
			for (int k = 0; k < 20; k++)
				REQUIRE(comm_allreduce(comm, &x[k], &x[k], 1, COMM_F32, k == 10 ? COMM_MAX : COMM_SUM, &requests[k]) == ST_OK);
			REQUIRE(comm_group_end(comm) == ST_OK);
			for (int k = 20; k--;)
				ranks_wait(comm, &requests[k]);
		}
		if (round == 0) /* nobody is still opening links */
			pthread_barrier_wait(&ranks->all);
	}
	CHECK(!COUNTS_ALLOCATIONS || !allocations, "%ju allocations", (uintmax_t)allocations);
}

/* Held back, fused and not done, done and not waited for: all goes with the communicator. */
static void abandon(struct ranks *ranks, uint32_t rank, struct comm *comm)
{
	static float x[RANKS_MOST][600];
	struct comm_request *requests[600];
	for (unsigned priority = 0; priority < 2; priority++) {
		REQUIRE(comm_group_begin(comm, priority) == ST_OK);
		for (int k = 0; k < 600; k++)
			REQUIRE(comm_allreduce(comm, &x[rank][k], &x[rank][k], 1, COMM_F32, COMM_SUM, &requests[k]) == ST_OK);
		if (!priority)
			REQUIRE(comm_group_end(comm) == ST_OK);
	}
	pthread_barrier_wait(&ranks->all);
}

int main(void)
{
	static const unsigned masks[] = {COMM_TRANSPORT_SHM, COMM_TRANSPORT_TCP};
	for (int m = 0; m < 2; m++) {
		for (uint32_t size = 1; size <= 5; size += 1 + (size == 3)) {
			struct ranks equal = {0};
			ranks_options(&equal);
			if (size == 3)
				equal.options.chunk_bytes = 1024;
			if (size == 2)
				equal.options.progress_thread = true;
			ranks_run(&equal, size, masks[m], fused_equals_unfused);
		}
		struct ranks pure = {0};
		ranks_options(&pure);
		pure.options.fusion_bytes = 64;
		ranks_run(&pure, 3, masks[m], issue_order_and_sizes_decide);
		/* Rank 0's options are everybody's. */
		struct comm_options others = pure.options;
		others.fusion_bytes = 32;
		others.lanes = 1;
		pure.others = &others;
		ranks_run(&pure, 3, masks[m], issue_order_and_sizes_decide);
		pure.others = NULL;
		pure.options.fusion_bytes = 0;
		ranks_run(&pure, 2, masks[m], issue_order_and_sizes_decide);
		struct ranks rules = {0};
		ranks_options(&rules);
		rules.options.fusion_bytes = 64;
		ranks_run(&rules, 2, masks[m], open_groups);
		for (uint32_t size = 2; size <= 3; size++) {
			struct ranks told = {0};
			ranks_options(&told);
			told.options.arrival_timeout_ms = 5000;
			ranks_run(&told, size, masks[m], disagree);
			ranks_all_say(&told, "calls allreduce 1 of 7 f32, sum, fused from 2 operations, lengths 0x");
			struct ranks one = {0};
			ranks_options(&one);
			one.options.arrival_timeout_ms = 5000;
			ranks_run(&one, size, masks[m], one_does_not_fuse);
			ranks_all_say(&one, "allreduce 1 of 8 f32, sum, fused from 2 operations, lengths 0x");
			ranks_all_say(&one, "allreduce 1 of 4 f32, sum");
		}
		struct ranks failed = {0};
		ranks_run(&failed, 2, masks[m], fail_in_group);
		struct ranks abandoned = {0};
		ranks_run(&abandoned, 3, masks[m], abandon);
		struct ranks lean = {0};
		ranks_run(&lean, 2, masks[m], nothing_is_allocated);
	}
	return check_result();
}
