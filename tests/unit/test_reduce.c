/*
 * Reductions.  f16 and bf16 in plain C are right for every one of their values and around every rounding boundary; the plain loops do what comm.h
 * says; the kernels of every instruction set have the bits of the plain loops: all types, operations, lengths, alignments, numbers of
 * sources, widths, aliasing, special values.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "libcomm/number16.h"
#include "libcomm/reduce.h"

static uint64_t state = 88172645463325252u;
static uint32_t draw(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)(state >> 16);
}

/* ---- numbers of 16 bits ----------------------------------------------------------------------------------------------------- */

/* By the definition: sign, exponent of `exponent_bits`, fraction; in f64, which holds them all exactly. */
static double defined(uint16_t half, int exponent_bits)
{
	int fraction_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
	int exponent = half >> fraction_bits & ((1 << exponent_bits) - 1), fraction = half & ((1 << fraction_bits) - 1);
	double magnitude;
	if (exponent == (1 << exponent_bits) - 1)
		magnitude = fraction ? (double)NAN : (double)INFINITY;
	else if (!exponent)
		magnitude = ldexp(fraction, 1 - bias - fraction_bits);
	else
		magnitude = ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
	return half & 0x8000 ? -magnitude : magnitude;
}

/* Rounds through a search among all values: the nearest, of two as near the even one. `table` holds the values of 0..infinity. */
static uint16_t nearest(const double *table, uint16_t infinity, double value)
{
	uint16_t low = 0, high = infinity;
	double magnitude = fabs(value);
	while (high - low > 1) {
		uint16_t middle = (uint16_t)((low + high) / 2);
		if (table[middle] <= magnitude)
			low = middle;
		else
			high = middle;
	}
	/* Past the largest number the next step would have led to 2 * largest - the one before. */
	double above = high == infinity ? 2 * table[infinity - 1] - table[infinity - 2] : table[high];
	double to_low = magnitude - table[low], to_high = above - magnitude;
	uint16_t best = isinf(magnitude) ? infinity : to_low < to_high || (to_low == to_high && !(low & 1)) ? low : high;
	return (uint16_t)(best | (signbit(value) ? 0x8000 : 0));
}

static void all_numbers_of_16_bits(void)
{
	static const struct {
		const char *name;
		int exponent_bits;
		float (*widen)(uint16_t);
		uint16_t (*narrow)(float);
	} kinds[] = {{"f16", 5, f32_from_f16, f16_from_f32}, {"bf16", 8, f32_from_bf16, bf16_from_f32}};
	static double table[65536];
	for (size_t k = 0; k < 2; k++) {
		const uint16_t infinity = (uint16_t)(((1 << kinds[k].exponent_bits) - 1) << (15 - kinds[k].exponent_bits));
		const uint16_t quiet = (uint16_t)(1 << (14 - kinds[k].exponent_bits));
		for (uint32_t half = 0; half < 65536; half++) {
			double value = table[half] = defined((uint16_t)half, kinds[k].exponent_bits);
			float wide = kinds[k].widen((uint16_t)half);
			uint16_t back = kinds[k].narrow(wide);
			if (isnan(value)) {
				REQUIRE(isnan(wide) && back == (half | quiet));
				continue;
			}
			REQUIRE((double)wide == value && !signbit(wide) == !signbit(value) && back == half);
		}
		/* Every value, every half way between neighbours, and the f32 next to each on both sides; both signs. */
		for (uint16_t half = 0; half < infinity; half++) {
			double next = half + 1 == infinity ? 2 * table[half] - table[half - 1] : table[half + 1];
			float at[] = {(float)table[half], (float)((table[half] + next) / 2)};
			for (int i = 0; i < 2; i++)
				for (int side = -1; side <= 1; side++)
					for (int sign = -1; sign <= 1; sign += 2) {
						float value = (float)sign * (side ? nextafterf(at[i], side > 0 ? INFINITY : 0) : at[i]);
						REQUIRE(kinds[k].narrow(value) == nearest(table, infinity, (double)value));
					}
		}
		for (int i = 0; i < 3000000; i++) {
			float value = f32_of_bits(draw());
			if (isnan(value))
				REQUIRE(isnan(kinds[k].widen(kinds[k].narrow(value))));
			else
				REQUIRE(kinds[k].narrow(value) == nearest(table, infinity, (double)value));
		}
		REQUIRE(kinds[k].narrow(INFINITY) == infinity && kinds[k].narrow(-INFINITY) == (infinity | 0x8000));
		printf("%s: all 65536 values both ways, all boundaries\n", kinds[k].name);
	}
}

/* ---- kernels against the plain loop ---------------------------------------------------------------------------------------- */

enum { ROOM = 5000, SLACK = 64, MOST_BYTES = 8 };
static _Alignas(64) unsigned char buffers[7][(ROOM + SLACK) * MOST_BYTES], before[(ROOM + SLACK) * MOST_BYTES], expected[ROOM * MOST_BYTES];

static void fill(enum comm_type type, bool wide, void *to, size_t count)
{
	static const uint32_t special32[] = {0, 0x80000000u, 1, 0x807fffffu, 0x00800000u, 0x7f7fffffu, 0xff7fffffu, 0x7f800000u, 0xff800000u,
					     0x7fc00000u, 0xff812345u, 0x3f800000u, 0x33800000u, 0x477fefffu, 0x477ff000u, 0x33000000u};
	for (size_t i = 0; i < count; i++) {
		uint32_t bits = draw() % 3 ? draw() : special32[draw() % (sizeof special32 / sizeof *special32)];
		if (draw() % 4 == 0) /* numbers of a size, whose sums round */
			bits = f32_bits((float)(int32_t)draw() * 0x1p-31f);
		if (wide || type == COMM_F32 || type == COMM_I32) {
			memcpy((char *)to + i * 4, &bits, 4);
		} else if (type == COMM_F16 || type == COMM_BF16) {
			uint16_t half = type == COMM_F16 ? f16_from_f32(f32_of_bits(bits)) : bf16_from_f32(f32_of_bits(bits));
			if (draw() % 2)
				half = (uint16_t)draw();
			memcpy((char *)to + i * 2, &half, 2);
		} else if (type == COMM_F64) {
			double value = (double)f32_of_bits(bits) * (1 + 0x1p-30 * draw());
			uint64_t bits64 = (uint64_t)draw() << 32 | draw();
			memcpy((char *)to + i * 8, draw() % 2 ? (void *)&value : (void *)&bits64, 8);
		} else if (type == COMM_I64) {
			int64_t value = draw() % 2 ? (int64_t)((uint64_t)draw() << 32 | draw()) : (int32_t)bits;
			memcpy((char *)to + i * 8, &value, 8);
		} else {
			((unsigned char *)to)[i] = (unsigned char)bits;
		}
	}
}

static bool is_nan(enum comm_type type, bool wide, const void *at)
{
	float f;
	double d;
	uint16_t half;
	if (wide || type == COMM_F32) {
		memcpy(&f, at, sizeof f);
		return isnan(f);
	}
	memcpy(&half, at, sizeof half);
	if (type == COMM_F64) {
		memcpy(&d, at, sizeof d);
		return isnan(d);
	}
	return type == COMM_F16 ? isnan(f32_from_f16(half)) : type == COMM_BF16 ? isnan(f32_from_bf16(half)) : false;
}

/* Which NaN a sum of NaNs is, is not part of the contract; a minimum's or maximum's is. */
static bool same(enum comm_type type, enum comm_op op, bool wide, const void *a, const void *b, size_t bytes)
{
	return !memcmp(a, b, bytes) || ((op == COMM_SUM || op == COMM_AVG) && is_nan(type, wide, a) && is_nan(type, wide, b));
}

struct variant {
	unsigned sources;
	bool keep, stream, alias;
	unsigned wide_sources;
	bool wide_result;
};

static void once(enum reduce_isa isa, enum comm_type type, enum comm_op op, size_t count, struct variant v)
{
	reduce_function *kernel = reduce_kernel(isa, type, op);
	const size_t narrow = comm_type_bytes(type), bytes = v.wide_result ? sizeof(float) : narrow;
	struct reduce_call call = {.source_count = v.sources, .wide_sources = v.wide_sources, .wide_result = v.wide_result, .stream = v.stream,
				   .ranks = 1 + draw() % 70, .count = count};
	for (unsigned s = 0; s < v.sources; s++) {
		bool wide = v.wide_sources >> s & 1;
		unsigned char *at = buffers[s] + draw() % 20 * (wide ? sizeof(float) : narrow);
		fill(type, wide, at, count);
		call.sources[s] = at;
	}
	unsigned char *plain = buffers[6];
	unsigned char *destination = buffers[4] + draw() % 20 * bytes, *keep = v.keep ? buffers[5] + draw() % 20 * bytes : NULL;
	memset(buffers[4], 0x55, (count + SLACK) * bytes);
	memset(buffers[5], 0x55, (count + SLACK) * bytes);
	struct reduce_call reference = call;
	reference.destination = plain;
	reduce_kernel(REDUCE_PLAIN, type, op)(&reference);
	memcpy(expected, plain, count * bytes);
	if (v.alias) {
		unsigned s = draw() % v.sources;
		/* Partial sums of 4 bytes over elements of 2: the slot is long enough. */
		destination = (unsigned char *)(uintptr_t)call.sources[s];
		if ((uintptr_t)destination % bytes) {
			memmove(destination - 2, destination, count * narrow);
			call.sources[s] = destination -= 2;
		}
		memset(destination + count * bytes, 0x55, bytes);
		if (v.wide_result || !(v.wide_sources >> s & 1))
			memcpy(before, destination, count * bytes);
	}
	call.destination = destination;
	call.keep = keep;
	reduce_run(kernel, &call);
	for (int second = 0; second <= v.keep; second++) {
		const unsigned char *got = second ? keep : destination;
		for (size_t i = 0; i < count; i++)
			if (!same(type, op, v.wide_result, got + i * bytes, expected + i * bytes, bytes)) {
				fprintf(stderr, "%s %s %s: element %zu of %zu differs: %u sources (wide 0x%x), wide result %d, keep %d, stream %d, alias %d\n",
					reduce_isa_name(isa), comm_type_name(type), comm_op_name(op), i, count, v.sources, v.wide_sources, v.wide_result,
					v.keep, v.stream, v.alias);
				exit(1);
			}
		for (size_t i = 0; i < bytes; i++)
			REQUIRE(got[count * bytes + i] == 0x55);
		REQUIRE(v.alias || got == (second ? buffers[5] : buffers[4]) || got[-1] == 0x55);
	}
}

static void kernels_have_the_bits_of_the_plain_loop(void)
{
	for (int isa = REDUCE_PLAIN; isa < REDUCE_ISAS; isa++) {
		unsigned kernels = 0;
		for (int type = 0; type < COMM_TYPES; type++)
			for (int op = 0; op < COMM_OPS; op++) {
				REQUIRE(reduce_kernel_best((enum comm_type)type, (enum comm_op)op));
				if (!reduce_kernel((enum reduce_isa)isa, (enum comm_type)type, (enum comm_op)op))
					continue;
				kernels++;
				const bool narrow = type == COMM_F16 || type == COMM_BF16;
				for (unsigned i = 0; i < 5000; i++) {
					struct variant v = {.sources = i % 4 + 1, .keep = i & 4, .stream = i & 8, .alias = i & 16};
					if (narrow) {
						v.wide_result = draw() % 2;
						v.wide_sources = draw() & ((1u << v.sources) - 1);
						/* What is not wide can't be stored over what is. */
						if (v.alias && !v.wide_result)
							v.wide_sources = 0;
					}
					size_t count = i < 4800 ? i / 32 : draw() % (ROOM - SLACK);
					once((enum reduce_isa)isa, (enum comm_type)type, (enum comm_op)op, count, v);
				}
			}
		if (kernels)
			printf("%s: %u kernels with the bits of a plain loop\n", reduce_isa_name((enum reduce_isa)isa), kernels);
		else
			printf("%s: not on this machine\n", reduce_isa_name((enum reduce_isa)isa));
		REQUIRE(isa != REDUCE_PLAIN || kernels == COMM_TYPES * COMM_OPS);
	}
}

/* More sources than a kernel takes: as one after the other, with wide partial sums of f16 and bf16, and nothing else touched. */
static void many_sources_are_added_in_order(void)
{
	static _Alignas(64) unsigned char sources[PLAN_MAX_SOURCES][(ROOM + SLACK) * MOST_BYTES];
	static float sum[2][ROOM * 2];
	for (int type = 0; type < COMM_TYPES; type++)
		for (int op = 0; op < COMM_OPS; op++)
			for (unsigned n = 1; n <= PLAN_MAX_SOURCES; n++)
				for (unsigned round = 0; round < 6; round++) {
					const bool widens = type == COMM_F16 || type == COMM_BF16;
					const enum comm_op adds = op == COMM_AVG ? COMM_SUM : (enum comm_op)op;
					const size_t bytes = comm_type_bytes((enum comm_type)type), count = round ? draw() % (ROOM - SLACK) : round;
					struct reduce_call call = {.source_count = n, .ranks = 1 + draw() % 70, .count = count, .stream = draw() % 2};
					for (unsigned s = 0; s < n; s++) {
						call.sources[s] = sources[s] + draw() % 20 * bytes;
						fill((enum comm_type)type, false, (void *)(uintptr_t)call.sources[s], count);
					}
					struct reduce_call two = {.ranks = call.ranks, .count = count, .source_count = 1, .sources = {call.sources[0]}};
					for (unsigned s = 1; s < n - 1; s++) {
						two.sources[two.source_count++] = call.sources[s];
						two.wide_result = widens;
						two.destination = sum[s % 2];
						reduce_kernel(REDUCE_PLAIN, (enum comm_type)type, adds)(&two);
						two.sources[0] = two.destination;
						two.wide_sources = widens;
						two.source_count = 1;
					}
					if (n > 1)
						two.sources[two.source_count++] = call.sources[n - 1];
					two.wide_result = false;
					two.destination = expected;
					reduce_kernel(REDUCE_PLAIN, (enum comm_type)type, (enum comm_op)op)(&two);
					memset(buffers[4], 0x55, (count + SLACK) * bytes);
					memset(buffers[5], 0x55, (count + SLACK) * bytes);
					call.destination = round % 2 ? (void *)(uintptr_t)call.sources[draw() % n] : buffers[4] + 7 * bytes;
					call.keep = round % 3 ? NULL : buffers[5] + 5 * bytes;
					reduce_many(reduce_kernel_best((enum comm_type)type, adds), reduce_kernel_best((enum comm_type)type, (enum comm_op)op),
						    (enum comm_type)type, &call);
					for (int second = 0; second <= !!call.keep; second++) {
						const unsigned char *got = second ? call.keep : call.destination;
						for (size_t i = 0; i < count; i++)
							REQUIRE(same((enum comm_type)type, (enum comm_op)op, false, got + i * bytes, expected + i * bytes, bytes));
						REQUIRE((!second && round % 2) || (got[-1] == 0x55 && got[count * bytes] == 0x55));
					}
				}
}

/* Every f16 and bf16 through the kernels' own conversions, both ways: a source of one kind, a result of the other. */
static void kernels_convert_all_numbers_of_16_bits(void)
{
	static uint16_t halves[65536], back[65536];
	static float wide[65536];
	for (uint32_t i = 0; i < 65536; i++)
		halves[i] = (uint16_t)i;
	for (int isa = REDUCE_PLAIN; isa < REDUCE_ISAS; isa++)
		for (int k = 0; k < 2; k++) {
			reduce_function *kernel = reduce_kernel((enum reduce_isa)isa, k ? COMM_BF16 : COMM_F16, COMM_SUM);
			if (!kernel)
				continue;
			kernel(&(struct reduce_call){.destination = wide, .sources = {halves}, .source_count = 1, .wide_result = true, .count = 65536});
			for (uint32_t i = 0; i < 65536; i++)
				REQUIRE(f32_bits(wide[i]) == f32_bits(k ? f32_from_bf16(halves[i]) : f32_from_f16(halves[i])));
			/* Numbers between the representable ones: the upper and the lower half of each gap, and its middle. */
			for (uint32_t low = 0; low < 4; low++) {
				static const uint32_t ends[] = {0, 0x0fff, 0x1000, 0x1001}, ends_bf16[] = {0, 0x7fff, 0x8000, 0x8001};
				for (uint32_t i = 0; i < 65536; i++)
					wide[i] = f32_of_bits(f32_bits(k ? f32_from_bf16(halves[i]) : f32_from_f16(halves[i])) |
							      (k ? ends_bf16[low] : ends[low]));
				kernel(&(struct reduce_call){.destination = back, .sources = {wide}, .source_count = 1, .wide_sources = 1, .count = 65536});
				for (uint32_t i = 0; i < 65536; i++)
					REQUIRE(back[i] == (k ? bf16_from_f32(wide[i]) : f16_from_f32(wide[i])));
			}
		}
}

/* The long form: every f32 there is, narrowed by every kernel. */
static void kernels_narrow_all_numbers_of_32_bits(void)
{
	enum { BLOCK = 1 << 16 };
	static float wide[BLOCK];
	static uint16_t plain[BLOCK], narrow[BLOCK];
	for (uint32_t high = 0; high < 65536; high++) {
		for (uint32_t low = 0; low < BLOCK; low++)
			wide[low] = f32_of_bits(high << 16 | low);
		for (int type = COMM_F16; type <= COMM_BF16; type++) {
			struct reduce_call call = {.destination = plain, .sources = {wide}, .source_count = 1, .wide_sources = 1, .count = BLOCK};
			reduce_kernel(REDUCE_PLAIN, (enum comm_type)type, COMM_SUM)(&call);
			call.destination = narrow;
			for (int isa = REDUCE_PLAIN + 1; isa < REDUCE_ISAS; isa++) {
				reduce_function *kernel = reduce_kernel((enum reduce_isa)isa, (enum comm_type)type, COMM_SUM);
				if (kernel)
					kernel(&call);
				REQUIRE(!kernel || !memcmp(plain, narrow, sizeof plain));
			}
		}
	}
	printf("all f32 narrowed the same by all instruction sets\n");
}

/* ---- what the operations mean ------------------------------------------------------------------------------------------------ */

#define RESULT(TYPE, C, OP, RANKS, A, B)                                                                                                 \
	({                                                                                                                               \
		C first = (A), second = (B), made;                                                                                       \
		reduce_kernel_best(TYPE, OP)(&(struct reduce_call){.destination = &made, .sources = {&first, &second},                   \
								   .source_count = 2, .ranks = (RANKS), .count = 1});                    \
		made;                                                                                                                    \
	})

static void operations_mean_what_they_say(void)
{
	const float zero = 0.0f, inf = INFINITY, nan = NAN;
	REQUIRE(signbit(RESULT(COMM_F32, float, COMM_MIN, 1, zero, -zero)) && signbit(RESULT(COMM_F32, float, COMM_MIN, 1, -zero, zero)));
	REQUIRE(!signbit(RESULT(COMM_F32, float, COMM_MAX, 1, zero, -zero)) && !signbit(RESULT(COMM_F32, float, COMM_MAX, 1, -zero, zero)));
	REQUIRE(f32_bits(RESULT(COMM_F32, float, COMM_MIN, 1, 1.0f, -nan)) == 0x7fc00000u);
	REQUIRE(f32_bits(RESULT(COMM_F32, float, COMM_MAX, 1, nan, 1.0f)) == 0x7fc00000u);
	REQUIRE(RESULT(COMM_F32, float, COMM_MIN, 1, inf, -inf) == -inf && RESULT(COMM_F32, float, COMM_MAX, 1, 3.0f, -inf) == 3.0f);
	REQUIRE(isnan(RESULT(COMM_F32, float, COMM_SUM, 1, inf, -inf)) && RESULT(COMM_F32, float, COMM_SUM, 1, inf, 1.0f) == inf);
	REQUIRE(RESULT(COMM_F32, float, COMM_SUM, 1, 0x1p-149f, 0x1p-149f) == 0x1p-148f);
	REQUIRE(RESULT(COMM_F64, double, COMM_AVG, 3, 1.0, 9.0) == 10.0 / 3 && RESULT(COMM_F32, float, COMM_AVG, 3, 1.0f, 9.0f) == 10.0f / 3);
	REQUIRE(isnan(RESULT(COMM_F64, double, COMM_MAX, 1, (double)nan, 1.0)) && signbit(RESULT(COMM_F64, double, COMM_MIN, 1, 0.0, -0.0)));
	REQUIRE(RESULT(COMM_F16, uint16_t, COMM_MAX, 1, 0x7c01, 0x3c00) == 0x7e00 && RESULT(COMM_BF16, uint16_t, COMM_MIN, 1, 0xffff, 0) == 0x7fc0);
	REQUIRE(RESULT(COMM_F16, uint16_t, COMM_MIN, 1, 0x8000, 0) == 0x8000 && RESULT(COMM_BF16, uint16_t, COMM_MAX, 1, 0x8000, 0) == 0);
	/* 65504 + 65504 is infinity, but their mean is not. */
	REQUIRE(RESULT(COMM_F16, uint16_t, COMM_SUM, 2, 0x7bff, 0x7bff) == 0x7c00 && RESULT(COMM_F16, uint16_t, COMM_AVG, 2, 0x7bff, 0x7bff) == 0x7bff);
	REQUIRE(RESULT(COMM_I32, int32_t, COMM_SUM, 1, INT32_MAX, 1) == INT32_MIN && RESULT(COMM_I32, int32_t, COMM_AVG, 4, -5, -2) == -1);
	REQUIRE(RESULT(COMM_I64, int64_t, COMM_SUM, 1, INT64_MIN, -1) == INT64_MAX && RESULT(COMM_I64, int64_t, COMM_AVG, 2, -9, 2) == -3);
	REQUIRE(RESULT(COMM_I64, int64_t, COMM_MAX, 1, INT64_MIN, -1) == -1 && RESULT(COMM_I32, int32_t, COMM_MIN, 1, INT32_MIN, 7) == INT32_MIN);
	REQUIRE(RESULT(COMM_U8, uint8_t, COMM_SUM, 1, 200, 100) == 44 && RESULT(COMM_U8, uint8_t, COMM_AVG, 2, 200, 100) == 22);
	REQUIRE(RESULT(COMM_U8, uint8_t, COMM_MAX, 1, 200, 100) == 200 && RESULT(COMM_U8, uint8_t, COMM_MIN, 1, 200, 100) == 100);
}

static void copies(void)
{
	static char from[30000], to[30000], second[30000];
	for (int round = 0; round < 3000; round++) {
		size_t bytes = draw() % (draw() % 2 ? 200 : 20000), a = draw() % 70, b = draw() % 70, c = draw() % 70;
		for (size_t i = 0; i < bytes + 140; i++)
			from[i] = (char)draw(), to[i] = second[i] = 0x55;
		int keep = draw() % 2;
		reduce_copy(to + a, keep ? second + b : NULL, from + c, bytes, draw() % 2);
		if (memcmp(to + a, from + c, bytes) || to[a + bytes] != 0x55 || (a && to[a - 1] != 0x55) ||
		    (keep && (memcmp(second + b, from + c, bytes) || second[b + bytes] != 0x55))) {
			fprintf(stderr, "copy of %zu bytes is wrong\n", bytes);
			exit(1);
		}
	}
}

int main(void)
{
	all_numbers_of_16_bits();
	operations_mean_what_they_say();
	kernels_have_the_bits_of_the_plain_loop();
	many_sources_are_added_in_order();
	kernels_convert_all_numbers_of_16_bits();
	const char *all = getenv("LONG");
	if (all && *all)
		kernels_narrow_all_numbers_of_32_bits();
	copies();
	return 0;
}
