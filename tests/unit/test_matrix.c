/*
 * Results are right in every combination of algorithm, collective, type, operation, size, world, transport, mode and place.
 *
 * Ranks are threads.  What is expected comes from a plain loop over ranks here, which shares no code with the library: sums of numbers that every
 * type holds exactly, so that no order of adding and no width of partial sums changes them, and one rounding of an average.
 *
 * The quick form runs a sample, the same every time, and fails if it misses a value of any axis, or a pair of algorithm and collective, algorithm and
 * type, transport or mode, collective and type, operation, length or place, world and transport, mode and type; LONG=1 runs all of them.  A new algorithm, mode or world is a row in its table.
 */
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "libcomm/bootstrap.h"
#include "libcomm/comm.h"

#define MAX_RANKS 9
#define CHUNK_BYTES 512
#define LENGTH(table) (sizeof(table) / sizeof *(table))

/* ---- axes --------------------------------------------------------------------------------------------------------------- */

static const struct {
	const char *name;
	enum comm_algorithm algorithm;
} algorithms[] = {
	{"auto", COMM_ALGORITHM_AUTO},
	{"ring", COMM_ALGORITHM_RING},
	{"halving", COMM_ALGORITHM_HALVING},
	{"tree", COMM_ALGORITHM_TREE},
	{"hierarchical", COMM_ALGORITHM_HIERARCHICAL},
	{"torus", COMM_ALGORITHM_TORUS},
	{"direct", COMM_ALGORITHM_DIRECT},
};

enum collective { ALLREDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, BARRIER, REDUCE_SCATTER_V, ALL_GATHER_V, COLLECTIVES };
static const struct {
	const char *name;
	bool reduces, scatters, gathers, given; /* given: shards of given sizes */
} collectives[COLLECTIVES] = {
	[ALLREDUCE] = {"allreduce", .reduces = true},
	[REDUCE_SCATTER] = {"reduce_scatter", .reduces = true, .scatters = true},
	[ALL_GATHER] = {"all_gather", .gathers = true},
	[BROADCAST] = {"broadcast"},
	[BARRIER] = {"barrier"},
	[REDUCE_SCATTER_V] = {"reduce_scatter_v", .reduces = true, .scatters = true, .given = true},
	[ALL_GATHER_V] = {"all_gather_v", .gathers = true, .given = true},
};

/* Elements per shard or in all: chunks * what a chunk holds + more. */
static const struct {
	const char *name;
	size_t chunks;
	int more;
} lengths[] = {
	{"nothing", 0, 0}, {"1", 0, 1}, {"odd", 0, 37}, {"a chunk - 1", 1, -1}, {"a chunk", 1, 0}, {"a chunk + 1", 1, 1}, {"3 chunks", 3, 5}, {"more than slots", 11, 3},
};

/* Worlds: a letter is a rank's node. */
static const char *const worlds[] = {
	"a", "aa", "aaa", "aaaa", "aaaaa", "aaaaaa", "aaaaaaa", "aaaaaaaa", "aaaaaaaaa", /* 1 to 9 ranks of one node */
	"ab", "aabb", "aaabbb", "abab", "aaaabbb", "abbbbbbbb", "babab",                 /* two nodes: even, uneven, not contiguous */
	"abc", "aabbcc", "abcabc", "aaaabbccc", "acbbacaab",                             /* three */
};

static const struct {
	const char *name;
	unsigned mask;
} transports[] = {
	{"shm in nodes", COMM_TRANSPORT_SHM | COMM_TRANSPORT_TCP},
	{"tcp", COMM_TRANSPORT_TCP},
};

static void accumulate_f32(struct comm_options *options)
{
	options->accumulate = COMM_ACCUMULATE_F32;
}

static void accumulate_wire(struct comm_options *options)
{
	options->accumulate = COMM_ACCUMULATE_WIRE;
}

static const struct {
	const char *name;
	void (*set)(struct comm_options *options);
} modes[] = {
	{"partial sums in f32", accumulate_f32},
	{"partial sums as on the wire", accumulate_wire},
};

/* ---- one combination ---------------------------------------------------------------------------------------------------- */

struct combination {
	enum collective collective;
	enum comm_type type;
	enum comm_op op;
	unsigned length;
	bool in_place;
};

struct job {
	unsigned algorithm, world, transport, mode;
	uint32_t size;
	struct bootstrap *bootstraps[MAX_RANKS];
	struct comm_options options;
	const struct combination *combinations;
	size_t count;
};

/* ---- the plain reference ------------------------------------------------------------------------------------------------ */

static uint64_t mixed(uint64_t x)
{
	x = (x ^ (x >> 33)) * UINT64_C(0xff51afd7ed558ccd);
	return x ^ (x >> 29);
}

/* What rank r gives for element i, as a whole number: of all bits for integers (sums wrap), of so few for floats that sums of all ranks are exact. */
static int64_t given(enum comm_type type, uint32_t rank, size_t i)
{
	const uint64_t random = mixed(mixed(i + 1) + rank + 1);
	switch (type) {
	case COMM_U8: return (int64_t)(random & 0xff);
	case COMM_I32: return (int32_t)random;
	case COMM_I64: return (int64_t)random;
	case COMM_F64: return (int64_t)(random >> 20) - (INT64_C(1) << 43);
	case COMM_F32: return (int64_t)(random >> 48) - (1 << 15);
	default: return (int64_t)(random % 57) - 28; /* bf16 has 8 bits: 9 * 28 < 256 */
	}
}

/* The nearest number of so many significant bits, ties to even; no such number here is subnormal or too large. */
static double rounded(double x, int bits)
{
	int exponent;
	frexp(x, &exponent);
	return ldexp(nearbyint(ldexp(x, bits - exponent)), exponent - bits);
}

/* The bits of a number that fits: sign, exponent, fraction. */
static uint16_t small_float(double x, int exponent_bits, int fraction_bits)
{
	if (x == 0)
		return 0;
	int exponent;
	double fraction = frexp(fabs(x), &exponent); /* 0.5 .. 1 */
	int biased = exponent - 1 + (1 << (exponent_bits - 1)) - 1;
	uint16_t rest = (uint16_t)(ldexp(fraction * 2 - 1, fraction_bits));
	return (uint16_t)((x < 0 ? 0x8000 : 0) | biased << fraction_bits | rest);
}

/* Element `value` (or, of an average, value / ranks) as the type stores it. */
static void store(enum comm_type type, int64_t value, uint32_t ranks, unsigned char *to)
{
	const int64_t n = ranks;
	switch (type) {
	case COMM_U8: *to = (uint8_t)((uint8_t)value / ranks); return;
	case COMM_I32: memcpy(to, &(int32_t){(int32_t)((int32_t)value / n)}, 4); return;
	case COMM_I64: memcpy(to, &(int64_t){value / n}, 8); return;
	case COMM_F64: memcpy(to, &(double){(double)value / (double)n}, 8); return;
	case COMM_F32: memcpy(to, &(float){(float)value / (float)n}, 4); return;
	case COMM_F16: memcpy(to, &(uint16_t){small_float(rounded((double)((float)value / (float)n), 11), 5, 10)}, 2); return;
	case COMM_BF16: memcpy(to, &(uint16_t){small_float(rounded((double)((float)value / (float)n), 8), 8, 7)}, 2); return;
	}
}

/* Element i of the whole range, reduced over all ranks. */
static void expect(enum comm_type type, enum comm_op op, uint32_t ranks, size_t i, unsigned char *to)
{
	int64_t result = given(type, 0, i);
	for (uint32_t r = 1; r < ranks; r++) {
		int64_t next = given(type, r, i);
		if (op == COMM_MIN)
			result = next < result ? next : result;
		else if (op == COMM_MAX)
			result = next > result ? next : result;
		else
			result = (int64_t)((uint64_t)result + (uint64_t)next);
	}
	store(type, result, op == COMM_AVG ? ranks : 1, to);
}

/* ---- running one -------------------------------------------------------------------------------------------------------- */

static void wrong(const struct job *job, const struct combination *c, uint32_t rank, const char *what, size_t i)
{
	fprintf(stderr, "rank %" PRIu32 " of world %s: %s, element %zu: %s of %s, %s, %s, %s, %s, %s, %s\n", rank, worlds[job->world], what, i,
		collectives[c->collective].name, comm_type_name(c->type), comm_op_name(c->op), lengths[c->length].name, c->in_place ? "in place" : "out of place",
		algorithms[job->algorithm].name, transports[job->transport].name, modes[job->mode].name);
	exit(1);
}

#define EDGE 64 /* bytes around each buffer that nobody may touch */

static unsigned char *edged(size_t bytes)
{
	unsigned char *memory = malloc(bytes + 2 * EDGE);
	REQUIRE(memory);
	memset(memory, 0xa5, bytes + 2 * EDGE);
	return memory + EDGE;
}

static bool edges_intact(const unsigned char *buffer, size_t bytes)
{
	for (int i = 1; i <= EDGE; i++)
		if (buffer[-i] != 0xa5 || buffer[bytes + (size_t)i - 1] != 0xa5)
			return false;
	return true;
}

static void run(const struct job *job, struct comm *comm, uint32_t rank, const struct combination *c)
{
	const size_t width = comm_type_bytes(c->type), chunk = CHUNK_BYTES / width;
	const size_t length = (size_t)((int64_t)(lengths[c->length].chunks * chunk) + lengths[c->length].more);
	const uint32_t size = job->size, root = (uint32_t)(c->length + c->type) % size;
	const bool shards = collectives[c->collective].scatters || collectives[c->collective].gathers;
	size_t counts[MAX_RANKS], whole = 0, before = 0;
	for (uint32_t r = 0; r < size; r++) {
		counts[r] = !collectives[c->collective].given || r % 3 == 0 ? length : r % 3 == 1 ? length / 2 : 0;
		before += r < rank ? counts[r] : 0;
		whole += counts[r];
	}
	if (!shards) {
		whole = length;
		before = 0;
	}
	const size_t own = shards ? counts[rank] : whole;
	const size_t ins = collectives[c->collective].gathers ? own : whole, outs = collectives[c->collective].scatters ? own : whole;
	unsigned char *large = edged(whole * width), *other = edged((ins > outs ? outs : ins) * width), expected[8];
	/* In place, the smaller one of the two lies in the larger at this rank's shard. */
	unsigned char *in = collectives[c->collective].gathers ? c->in_place ? large + before * width : other : large;
	unsigned char *out = collectives[c->collective].gathers ? large : c->in_place ? large + (shards ? before * width : 0) : other;
	if (c->collective == BROADCAST)
		out = in;

	for (size_t i = 0; i < ins; i++)
		if (c->collective != BROADCAST || rank == root)
			store(c->type, given(c->type, rank, i), 1, in + i * width);
	struct comm_request *request = NULL;
	enum st_status status = ST_OK;
	switch (c->collective) {
	case ALLREDUCE: status = comm_allreduce(comm, in, out, length, c->type, c->op, &request); break;
	case REDUCE_SCATTER: status = comm_reduce_scatter(comm, in, out, length, c->type, c->op, &request); break;
	case ALL_GATHER: status = comm_all_gather(comm, in, out, length, c->type, &request); break;
	case BROADCAST: status = comm_broadcast(comm, in, length, c->type, root, &request); break;
	case BARRIER: status = comm_barrier(comm, &request); break;
	case REDUCE_SCATTER_V: status = comm_reduce_scatter_v(comm, in, out, counts, c->type, c->op, &request); break;
	case ALL_GATHER_V: status = comm_all_gather_v(comm, in, out, counts, c->type, &request); break;
	case COLLECTIVES: break;
	}
	if (status == ST_OK)
		status = comm_wait(comm, &request);
	if (status != ST_OK)
		wrong(job, c, rank, st_message(), 0);

	for (size_t i = 0, r = 0, k = 0; c->collective != BARRIER && i < outs; i++) {
		if (collectives[c->collective].gathers) {
			for (; k >= counts[r]; r++)
				k = 0;
			store(c->type, given(c->type, (uint32_t)r, k++), 1, expected);
		} else if (c->collective == BROADCAST) {
			store(c->type, given(c->type, root, i), 1, expected);
		} else {
			expect(c->type, c->op, size, before + i, expected);
		}
		if (memcmp(out + i * width, expected, width))
			wrong(job, c, rank, "a wrong result", i);
	}
	for (size_t i = 0; !c->in_place && c->collective != BROADCAST && i < ins; i++) {
		store(c->type, given(c->type, rank, i), 1, expected);
		if (memcmp(in + i * width, expected, width))
			wrong(job, c, rank, "the input was changed", i);
	}
	if (!edges_intact(large, whole * width) || !edges_intact(other, (ins > outs ? outs : ins) * width))
		wrong(job, c, rank, "memory around a buffer was changed", 0);
	free(large - EDGE);
	free(other - EDGE);
}

struct thread {
	struct job *job;
	uint32_t rank;
};

static void *rank_main(void *argument)
{
	const struct thread *thread = argument;
	const struct job *job = thread->job;
	struct comm *comm = NULL;
	if (comm_create_over(job->bootstraps[thread->rank], &job->options, &comm) != ST_OK) {
		fprintf(stderr, "world %s, %s: %s\n", worlds[job->world], algorithms[job->algorithm].name, st_message());
		exit(1);
	}
	for (size_t i = 0; i < job->count; i++)
		run(job, comm, thread->rank, &job->combinations[i]);
	comm_free(comm);
	return NULL;
}

static void run_job(struct job *job)
{
	pthread_t threads[MAX_RANKS];
	struct thread arguments[MAX_RANKS];
	const char *names[MAX_RANKS];
	static const char *const letters[] = {"a", "b", "c"};
	job->size = (uint32_t)strlen(worlds[job->world]);
	for (uint32_t r = 0; r < job->size; r++)
		names[r] = letters[worlds[job->world][r] - 'a'];
	REQUIRE(comm_options_init(&job->options) == ST_OK);
	job->options.algorithm = algorithms[job->algorithm].algorithm;
	job->options.transports = transports[job->transport].mask;
	job->options.chunk_bytes = CHUNK_BYTES;
	job->options.slots = 2 + (job->world + job->algorithm) % 3;
	modes[job->mode].set(&job->options);
	REQUIRE(bootstrap_threads(job->size, names, job->bootstraps) == ST_OK);
	for (uint32_t r = 0; r < job->size; r++) {
		arguments[r] = (struct thread){job, r};
		REQUIRE(!pthread_create(&threads[r], NULL, rank_main, &arguments[r]));
	}
	for (uint32_t r = 0; r < job->size; r++)
		REQUIRE(!pthread_join(threads[r], NULL));
	for (uint32_t r = 0; r < job->size; r++)
		job->bootstraps[r]->finish(job->bootstraps[r]);
}

/* ---- which ones --------------------------------------------------------------------------------------------------------- */

static struct {
	bool algorithm_collective[LENGTH(algorithms)][COLLECTIVES], algorithm_type[LENGTH(algorithms)][COMM_TYPES];
	bool collective_type[COLLECTIVES][COMM_TYPES], world_transport[LENGTH(worlds)][LENGTH(transports)], mode_type[LENGTH(modes)][COMM_TYPES];
	bool algorithm_transport[LENGTH(algorithms)][LENGTH(transports)], algorithm_mode[LENGTH(algorithms)][LENGTH(modes)];
	bool collective_place[COLLECTIVES][2], collective_op[COLLECTIVES][COMM_OPS], collective_length[COLLECTIVES][LENGTH(lengths)];
} seen;

static void see(const struct job *job, const struct combination *c)
{
	seen.algorithm_collective[job->algorithm][c->collective] = seen.algorithm_type[job->algorithm][c->type] = true;
	seen.collective_type[c->collective][c->type] = seen.world_transport[job->world][job->transport] = seen.mode_type[job->mode][c->type] = true;
	seen.algorithm_transport[job->algorithm][job->transport] = seen.algorithm_mode[job->algorithm][job->mode] = true;
	seen.collective_place[c->collective][c->in_place] = seen.collective_op[c->collective][c->op] = true;
	seen.collective_length[c->collective][c->length] = true;
}

/* Type, operation, length and place of a collective have a meaning; those that have none are run as one value. */
static bool sensible(const struct combination *c)
{
	if (c->collective == BARRIER)
		return c->type == COMM_U8 && !c->op && !c->length && !c->in_place;
	return (collectives[c->collective].reduces || !c->op) && (c->collective != BROADCAST || !c->in_place);
}

#define ALL_SEEN(table, first, second, condition)                                                             \
	do {                                                                                                  \
		for (unsigned a = 0; a < (first); a++)                                                        \
			for (unsigned b = 0; b < (second); b++)                                               \
				CHECK(table[a][b] || !(condition), #table ": none of %u with %u was run", a, b); \
	} while (0)

static void nothing_is_left_out(void)
{
	ALL_SEEN(seen.algorithm_collective, LENGTH(algorithms), COLLECTIVES, true);
	ALL_SEEN(seen.algorithm_type, LENGTH(algorithms), COMM_TYPES, true);
	ALL_SEEN(seen.collective_type, COLLECTIVES, COMM_TYPES, a != BARRIER || b == COMM_U8);
	ALL_SEEN(seen.world_transport, LENGTH(worlds), LENGTH(transports), true);
	ALL_SEEN(seen.mode_type, LENGTH(modes), COMM_TYPES, true);
	ALL_SEEN(seen.algorithm_transport, LENGTH(algorithms), LENGTH(transports), true);
	ALL_SEEN(seen.algorithm_mode, LENGTH(algorithms), LENGTH(modes), true);
	ALL_SEEN(seen.collective_place, COLLECTIVES, 2, !b || (a != BARRIER && a != BROADCAST));
	ALL_SEEN(seen.collective_op, COLLECTIVES, COMM_OPS, !b || collectives[a].reduces);
	ALL_SEEN(seen.collective_length, COLLECTIVES, LENGTH(lengths), !b || a != BARRIER);
}

/* Of a job, all combinations, or one for each collective and type, with operation, length and place taking turns from job to job. */
static size_t choose(bool all, unsigned turn, struct combination *to)
{
	size_t count = 0;
	for (unsigned c = 0; c < COLLECTIVES; c++)
		for (unsigned type = 0; type < COMM_TYPES; type++) {
			const unsigned at = c * COMM_TYPES + type + turn;
			for (unsigned op = 0; op < COMM_OPS; op++)
				for (unsigned length = 0; length < LENGTH(lengths); length++)
					for (unsigned in_place = 0; in_place < 2; in_place++) {
						struct combination one = {(enum collective)c, (enum comm_type)type, (enum comm_op)op, length, in_place};
						if (sensible(&one) && (all || c == BARRIER || ((op == at % 4 || !collectives[c].reduces) && length == at * 3 % LENGTH(lengths) &&
											       (in_place == at / 3 % 2 || c == BROADCAST))))
							to[count++] = one;
					}
		}
	return count;
}

int main(void)
{
	const char *long_form = getenv("LONG");
	const bool all = long_form && *long_form;
	static struct combination combinations[COLLECTIVES * COMM_TYPES * COMM_OPS * LENGTH(lengths) * 2];
	unsigned long ran = 0, jobs = 0;
	for (unsigned world = 0; world < LENGTH(worlds); world++)
		for (unsigned transport = 0; transport < LENGTH(transports); transport++)
			for (unsigned mode = 0; mode < LENGTH(modes); mode++)
				for (unsigned algorithm = 0; algorithm < LENGTH(algorithms); algorithm++) {
					struct job job = {.algorithm = algorithm, .world = world, .transport = transport, .mode = mode};
					if (!all && (algorithm != (world + LENGTH(algorithms) / 2 * transport) % LENGTH(algorithms) ||
						     mode != (world / LENGTH(algorithms) + transport) % LENGTH(modes)))
						continue;
					job.combinations = combinations;
					job.count = choose(all, (unsigned)jobs * 5, combinations);
					run_job(&job);
					for (size_t i = 0; i < job.count; i++)
						see(&job, &combinations[i]);
					ran += job.count;
					jobs++;
				}
	nothing_is_left_out();
	printf("%lu combinations in %lu worlds%s\n", ran, jobs, all ? "" : ", a sample; LONG=1 runs all");
	return check_result();
}
