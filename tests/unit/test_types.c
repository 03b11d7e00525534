/*
 * Every type with every operation, over ranks as threads: world sizes 1..9, shared memory, TCP and both, in place and not, partial sums as
 * f32 and in the type itself.  Integers, minima and maxima are exact; sums and averages lie within what comm.h promises of a sum in
 * long double; all ranks have the same bits; the bytes on the way are those that the rule for partial sums makes.
 */
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "libcomm/bootstrap.h"
#include "libcomm/comm.h"
#include "libcomm/number16.h"

#define MAX_RANKS 9

struct job {
	uint32_t size;
	struct bootstrap *bootstraps[MAX_RANKS];
	struct comm_options options[MAX_RANKS];
	void (*body)(struct job *job, uint32_t rank, struct comm *comm);
	uint64_t hashes[2]; /* rank 0's, of f16 and bf16 sums */
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
	REQUIRE(comm_create_over(job->bootstraps[thread->rank], &job->options[thread->rank], &comm) == ST_OK);
	job->body(job, thread->rank, comm);
	comm_free(comm);
	return NULL;
}

static void every_kind(struct job *job, uint32_t rank, struct comm *comm);

static void run_job(struct job *job, uint32_t size, const char *const *nodes, unsigned transports, enum comm_accumulate accumulate,
		    void (*body)(struct job *, uint32_t, struct comm *))
{
	pthread_t threads[MAX_RANKS];
	struct thread arguments[MAX_RANKS];
	job->size = size;
	job->body = body;
	REQUIRE(bootstrap_threads(size, nodes, job->bootstraps) == ST_OK);
	for (uint32_t r = 0; r < size; r++) {
		struct comm_options *options = &job->options[r];
		REQUIRE(comm_options_init(options) == ST_OK);
		options->transports = transports;
		options->chunk_bytes = size % 2 ? 1024 : 4096;
		options->slots = 2 + size % 3;
		/* Rank 0's holds for all. */
		/* So does its algorithm: the ring where bytes are counted, else one after the other. */
		if (body == every_kind)
			options->algorithm = (enum comm_algorithm)((size + accumulate + r) % COMM_ALGORITHMS);
		else
			options->algorithm = COMM_ALGORITHM_RING;
		/* Direct plans have no partial sums, in whatever type. */
		if (accumulate == COMM_ACCUMULATE_WIRE && (options->algorithm == COMM_ALGORITHM_DIRECT || options->algorithm == COMM_ALGORITHM_AUTO))
			options->algorithm = COMM_ALGORITHM_RING;
		options->accumulate = r ? (enum comm_accumulate)(r % 2) : accumulate;
		arguments[r] = (struct thread){job, r};
		REQUIRE(!pthread_create(&threads[r], NULL, rank_main, &arguments[r]));
	}
	for (uint32_t r = 0; r < size; r++)
		REQUIRE(!pthread_join(threads[r], NULL));
	for (uint32_t r = 0; r < size; r++)
		job->bootstraps[r]->finish(job->bootstraps[r]);
}

/* ---- elements ------------------------------------------------------------------------------------------------------------------ */

static uint64_t mixed(uint64_t x)
{
	x += UINT64_C(0x9e3779b97f4a7c15);
	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return x ^ (x >> 31);
}

static bool is_integer(enum comm_type type)
{
	return type == COMM_U8 || type == COMM_I32 || type == COMM_I64;
}

/* Rank's element i: integers from the whole range; numbers of various size, of both signs for odd i; now and then a special one. */
static void make(enum comm_type type, bool specials, uint32_t rank, size_t i, void *to)
{
	static const float special[] = {NAN, INFINITY, -INFINITY, 0.0f, -0.0f};
	uint64_t h = mixed(mixed(i * 64 + rank) + (uint64_t)type);
	double value = ldexp(1 + (double)(h >> 12) * 0x1p-52, (int)(h & 7) - 4) * (i % 2 && h & 8 ? -1 : 1);
	float rounded = (float)value;
	if (specials && i % 8 == 3 && h & 0x300) {
		rounded = special[(h >> 10) % 5];
		value = (double)rounded;
	}
	uint16_t half = type == COMM_F16 ? f16_from_f32(rounded) : bf16_from_f32(rounded);
	memcpy(to, is_integer(type) ? (void *)&h : type == COMM_F64 ? (void *)&value : type == COMM_F32 ? (void *)&rounded : (void *)&half,
	       comm_type_bytes(type));
}

static long double number(enum comm_type type, const void *at)
{
	double d;
	float f;
	uint16_t half;
	memcpy(&half, at, comm_type_bytes(type) < 2 ? 1 : 2);
	switch (type) {
	case COMM_F64: memcpy(&d, at, sizeof d); return (long double)d;
	case COMM_F32: memcpy(&f, at, sizeof f); return (long double)f;
	case COMM_F16: return (long double)f32_from_f16(half);
	default: return (long double)f32_from_bf16(half);
	}
}

static int64_t integer(enum comm_type type, const void *at)
{
	int64_t wide;
	int32_t narrow;
	if (type == COMM_U8)
		return *(const uint8_t *)at;
	if (type == COMM_I32) {
		memcpy(&narrow, at, sizeof narrow);
		return narrow;
	}
	memcpy(&wide, at, sizeof wide);
	return wide;
}

static int64_t wrapped(enum comm_type type, uint64_t value)
{
	return type == COMM_U8 ? (uint8_t)value : type == COMM_I32 ? (int32_t)(uint32_t)value : (int64_t)value;
}

static bool right_integer(enum comm_type type, enum comm_op op, uint32_t size, size_t i, const void *got)
{
	int64_t expected = 0;
	for (uint32_t r = 0; r < size; r++) {
		unsigned char element[8];
		make(type, false, r, i, element);
		int64_t value = integer(type, element);
		if (op == COMM_SUM || op == COMM_AVG)
			expected = wrapped(type, (uint64_t)expected + (uint64_t)value);
		else if (!r || (op == COMM_MIN ? value < expected : value > expected))
			expected = value;
	}
	return integer(type, got) == (op == COMM_AVG ? expected / (int64_t)size : expected);
}

/* Least place of a number of this type and size. */
static long double ulp(enum comm_type type, long double value)
{
	static const struct {
		int fraction_bits, least_exponent;
	} kinds[COMM_TYPES] = {[COMM_F32] = {23, -126}, [COMM_F64] = {52, -1022}, [COMM_F16] = {10, -14}, [COMM_BF16] = {7, -126}};
	int exponent = value != 0 ? ilogbl(value) : kinds[type].least_exponent;
	return ldexpl(1, (exponent > kinds[type].least_exponent ? exponent : kinds[type].least_exponent) - kinds[type].fraction_bits);
}

/* As comm.h says. */
static bool right_number(enum comm_type type, enum comm_op op, bool wire, uint32_t size, size_t i, const void *got)
{
	const bool sums = op == COMM_SUM || op == COMM_AVG, narrow = type == COMM_F16 || type == COMM_BF16;
	long double sum = 0, magnitudes = 0, least = 0, most = 0, result = number(type, got);
	bool nan = false, negative_zero = false, positive_zero = false;
	for (uint32_t r = 0; r < size; r++) {
		unsigned char element[8];
		make(type, true, r, i, element);
		long double value = number(type, element);
		nan |= isnan(value);
		negative_zero |= value == 0 && signbit(value);
		positive_zero |= value == 0 && !signbit(value);
		sum += value;
		magnitudes += fabsl(value);
		least = !r || value < least ? value : least;
		most = !r || value > most ? value : most;
	}
	if (!sums) {
		long double expected = op == COMM_MIN ? least : most;
		if (nan || isnan(result))
			return nan && isnan(result);
		/* signbit() is not normalised. */
		if (expected == 0)
			return result == 0 && !!signbit(result) == (op == COMM_MIN ? negative_zero : !positive_zero);
		return result == expected;
	}
	long double exact = op == COMM_AVG ? sum / size : sum;
	if (!isfinite(exact) || !isfinite(result))
		return isnan(exact) ? isnan(result) : result == exact;
	/* Rounding of a partial sum, at most half a place each and of the magnitudes together; then that of the result. */
	const long double each = ldexpl(1, type == COMM_F64 ? -53 : type == COMM_F32 || !wire ? -24 : type == COMM_F16 ? -11 : -8);
	long double allowed = (size - 1) * each * magnitudes / (op == COMM_AVG ? size : 1) * (1 + 0x1p-7L * size);
	if (op == COMM_AVG)
		allowed += ulp(type == COMM_F64 ? COMM_F64 : COMM_F32, exact);
	if (narrow)
		allowed += ulp(type, result) / 2;
	if (narrow && wire)
		allowed += size * ulp(type, 0); /* below the least normal number */
	/* With no cancellation that is one place. */
	if (narrow && !wire && i % 2 == 0)
		REQUIRE(allowed < ulp(type, result));
	return fabsl(result - exact) <= allowed;
}

static uint64_t hash_of(const unsigned char *bytes, size_t count)
{
	uint64_t hash = 1;
	for (size_t i = 0; i < count; i++)
		hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
	return hash;
}

static void finish(struct comm *comm, enum st_status started, struct comm_request **request)
{
	REQUIRE(started == ST_OK);
	REQUIRE(comm_wait(comm, request) == ST_OK);
}

static void check(enum comm_type type, enum comm_op op, bool wire, uint32_t size, uint32_t rank, size_t first, size_t count,
		  const unsigned char *results, const char *what)
{
	const size_t bytes = comm_type_bytes(type);
	for (size_t i = 0; i < count; i++)
		if (is_integer(type) ? !right_integer(type, op, size, first + i, results + i * bytes)
				     : !right_number(type, op, wire, size, first + i, results + i * bytes)) {
			fprintf(stderr, "rank %u of %u: %s of %zu %s, %s: element %zu is wrong (%La)\n", rank, size, what, count, comm_type_name(type),
				comm_op_name(op), i, is_integer(type) ? (long double)integer(type, results + i * bytes) : number(type, results + i * bytes));
			exit(1);
		}
}

static void one_kind(struct job *job, uint32_t rank, struct comm *comm, enum comm_type type, enum comm_op op, size_t count)
{
	const uint32_t size = job->size;
	const size_t bytes = comm_type_bytes(type);
	const bool wire = job->options[0].accumulate == COMM_ACCUMULATE_WIRE;
	struct comm_request *request = NULL;
	unsigned char *input = malloc((count * size + 1) * bytes), *output = malloc((count * size + 1) * bytes);
	REQUIRE(input && output);
	for (size_t i = 0; i < count * size; i++)
		make(type, true, rank, i, input + i * bytes);

	memset(output, 0x55, (count * size + 1) * bytes);
	finish(comm, comm_allreduce(comm, input, output, count, type, op, &request), &request);
	check(type, op, wire, size, rank, 0, count, output, "allreduce");
	REQUIRE(output[count * bytes] == 0x55);
	uint64_t hash = hash_of(output, count * bytes), hashes[MAX_RANKS];
	REQUIRE(comm_collect(comm, &hash, sizeof hash, hashes) == ST_OK);
	for (uint32_t r = 0; r < size; r++)
		REQUIRE(hashes[r] == hash);
	if (!rank && op == COMM_SUM && (type == COMM_F16 || type == COMM_BF16)) {
		/* Algorithms add in orders of their own: which NaN a sum of some is, is not part of the contract. */
		const uint16_t nan = type == COMM_F16 ? 0x7e00 : 0x7fc0;
		for (size_t i = 0; i < count; i++)
			if (isnan(number(type, output + i * bytes)))
				memcpy(output + i * bytes, &nan, sizeof nan);
		job->hashes[type == COMM_BF16] ^= mixed(hash_of(output, count * bytes) + count);
	}

	memset(output, 0x55, (count * size + 1) * bytes);
	finish(comm, comm_reduce_scatter(comm, input, output, count, type, op, &request), &request);
	check(type, op, wire, size, rank, rank * count, count, output, "reduce_scatter");
	REQUIRE(output[count * bytes] == 0x55);

	finish(comm, comm_reduce_scatter(comm, input, input + rank * count * bytes, count, type, op, &request), &request);
	check(type, op, wire, size, rank, rank * count, count, input + rank * count * bytes, "reduce_scatter in place");

	for (size_t i = 0; i < count; i++)
		make(type, true, rank, i, input + i * bytes);
	finish(comm, comm_all_gather(comm, input, output, count, type, &request), &request);
	for (size_t i = 0; i < count * size; i++) {
		unsigned char expected[8];
		make(type, true, (uint32_t)(i / count), i % count, expected);
		REQUIRE(!memcmp(output + i * bytes, expected, bytes));
	}
	finish(comm, comm_allreduce(comm, input, input, count, type, op, &request), &request);
	check(type, op, wire, size, rank, 0, count, input, "allreduce in place");

	for (size_t i = 0; i < count; i++)
		make(type, true, rank, i, input + i * bytes);
	finish(comm, comm_broadcast(comm, input, count, type, size - 1, &request), &request);
	for (size_t i = 0; i < count; i++) {
		unsigned char expected[8];
		make(type, true, size - 1, i, expected);
		REQUIRE(!memcmp(input + i * bytes, expected, bytes));
	}
	free(input);
	free(output);
}

static void every_kind(struct job *job, uint32_t rank, struct comm *comm)
{
	static const size_t counts[] = {0, 1, 6, 1009, 4099};
	for (int type = 0; type < COMM_TYPES; type++)
		for (int op = 0; op < COMM_OPS; op++)
			for (size_t n = 0; n < sizeof counts / sizeof *counts; n++)
				if (counts[n] < 1500 || (uint32_t)(type + op) % 3 == job->size % 3)
					one_kind(job, rank, comm, (enum comm_type)type, (enum comm_op)op, counts[n]);
}

/* What all ranks together send, in bytes, for one allreduce of `count` elements. */
static uint64_t sent(struct comm *comm, size_t count, enum comm_type type, enum comm_op op)
{
	unsigned char *buffer = calloc(count, 8);
	struct comm_counters before, after;
	struct comm_request *request = NULL;
	REQUIRE(buffer);
	comm_counters_read(comm, &before);
	finish(comm, comm_allreduce(comm, buffer, buffer, count, type, op, &request), &request);
	comm_counters_read(comm, &after);
	free(buffer);
	uint64_t mine = after.shm_bytes - before.shm_bytes + after.tcp_bytes - before.tcp_bytes, all[MAX_RANKS], sum = 0;
	REQUIRE(comm_collect(comm, &mine, sizeof mine, all) == ST_OK);
	for (uint32_t r = 0; r < comm_size(comm); r++)
		sum += all[r];
	return sum;
}

static void bytes_on_the_way(struct job *job, uint32_t rank, struct comm *comm)
{
	const size_t count = 10007, n = job->size;
	const size_t partial = job->options[0].accumulate == COMM_ACCUMULATE_WIRE ? 2 : 4;
	(void)rank;
	/* Each element makes n - 1 hops to be reduced, the first as an input, and as many as a result. */
	for (int type = COMM_F16; type <= COMM_BF16; type++)
		for (int op = COMM_SUM; op <= COMM_AVG; op++)
			REQUIRE(sent(comm, count, (enum comm_type)type, (enum comm_op)op) == count * (2 + (n - 2) * partial + (n - 1) * 2));
	REQUIRE(sent(comm, count, COMM_F16, COMM_MAX) == count * 4 * (n - 1));
	REQUIRE(sent(comm, count, COMM_F32, COMM_AVG) == count * 8 * (n - 1));
	REQUIRE(sent(comm, count, COMM_F64, COMM_SUM) == count * 16 * (n - 1));
	REQUIRE(sent(comm, count, COMM_U8, COMM_MIN) == count * 2 * (n - 1));
}

/* 2048 + 1 + 1 + ... in f16, whose numbers lie 2 apart from 2048 on: rounded after each addition every 1 is lost, where the large one comes first. */
static void small_ones_are_not_lost(struct job *job, uint32_t rank, struct comm *comm)
{
	const bool wire = job->options[0].accumulate == COMM_ACCUMULATE_WIRE;
	uint16_t values[700];
	struct comm_request *request = NULL;
	bool lost = false;
	for (size_t i = 0; i < 700; i++)
		values[i] = f16_from_f32(rank ? 1 : 2048);
	finish(comm, comm_allreduce(comm, values, values, 700, COMM_F16, COMM_SUM, &request), &request);
	for (size_t i = 0; i < 700; i++) {
		lost |= f32_from_f16(values[i]) < (float)(2048 + job->size - 2);
		REQUIRE(wire || f32_from_f16(values[i]) == f32_from_f16(f16_from_f32((float)(2048 + job->size - 1))));
	}
	REQUIRE(lost == wire);
}

static void ranks_that_disagree_are_told(struct job *job, uint32_t rank, struct comm *comm)
{
	uint16_t values[8] = {0};
	struct comm_request *request = NULL;
	(void)job;
	REQUIRE(comm_allreduce(comm, values, values, 8, rank ? COMM_BF16 : COMM_F16, rank ? COMM_MAX : COMM_AVG, &request) == ST_OK);
	REQUIRE(comm_wait(comm, &request) != ST_OK);
	REQUIRE(strstr(st_message(), "allreduce 1 of 8 f16, avg") && strstr(st_message(), "allreduce 1 of 8 bf16, max"));
}

int main(void)
{
	static const char *const alternating[] = {"a", "b", "a", "b", "a", "b", "a", "b", "a"};
	static const unsigned both = COMM_TRANSPORT_SHM | COMM_TRANSPORT_TCP;
	for (uint32_t size = 1; size <= MAX_RANKS; size++) {
		struct job shm = {0}, tcp = {0}, mixed_job = {0}, wire = {0};
		run_job(&shm, size, NULL, both, COMM_ACCUMULATE_F32, every_kind);
		run_job(&tcp, size, NULL, COMM_TRANSPORT_TCP, COMM_ACCUMULATE_F32, every_kind);
		run_job(&wire, size, NULL, size % 2 ? both : COMM_TRANSPORT_TCP, COMM_ACCUMULATE_WIRE, every_kind);
		/* The same bits whatever the transport; others where partial sums are rounded, which there are from three ranks on. */
		for (int k = 0; k < 2; k++) {
			REQUIRE(shm.hashes[k] && shm.hashes[k] == tcp.hashes[k]);
			REQUIRE((wire.hashes[k] != shm.hashes[k]) == (size > 2));
		}
		if (size % 2 == 0)
			run_job(&mixed_job, size, alternating, both, COMM_ACCUMULATE_F32, every_kind);
		for (unsigned w = 0; w < 2 && size > 1; w++) {
			struct job job = {0};
			run_job(&job, size, w == size % 2 ? alternating : NULL, both, (enum comm_accumulate)w, bytes_on_the_way);
			if (size > 3)
				run_job(&job, size, NULL, both, (enum comm_accumulate)w, small_ones_are_not_lost);
		}
	}
	struct job job = {0};
	run_job(&job, 2, NULL, COMM_TRANSPORT_TCP, COMM_ACCUMULATE_F32, ranks_that_disagree_are_told);
	return 0;
}
