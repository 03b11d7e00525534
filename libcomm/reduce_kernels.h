/* For the files with kernels: the tables that they fill and what one element does. */
#ifndef SYNCTRAIN_LIBCOMM_REDUCE_KERNELS_H
#define SYNCTRAIN_LIBCOMM_REDUCE_KERNELS_H

#include "number16.h"
#include "reduce.h"

typedef reduce_function *const reduce_table[COMM_TYPES][COMM_OPS];
extern reduce_table reduce_plain, reduce_sse2, reduce_avx2, reduce_avx512; /* NULL where there is none; plain has all */

#define F32_NAN_BITS UINT32_C(0x7fc00000)
#define F64_NAN_BITS UINT64_C(0x7ff8000000000000)

/* An operation on two elements, and what becomes of the outcome (avg: divided by n). */
static inline float f32_sum(float a, float b)
{
	return a + b;
}

static inline double f64_sum(double a, double b)
{
	return a + b;
}

static inline int32_t i32_sum(int32_t a, int32_t b)
{
	return (int32_t)((uint32_t)a + (uint32_t)b);
}

static inline int64_t i64_sum(int64_t a, int64_t b)
{
	return (int64_t)((uint64_t)a + (uint64_t)b);
}

static inline uint8_t u8_sum(uint8_t a, uint8_t b)
{
	return (uint8_t)(a + b);
}

/* Equal numbers have equal bits, zeros excepted: of those, any set sign bit makes the minimum negative, any clear one the maximum positive. */
static inline float f32_min(float a, float b)
{
	if (a != a || b != b)
		return f32_of_bits(F32_NAN_BITS);
	return a == b ? f32_of_bits(f32_bits(a) | f32_bits(b)) : a < b ? a : b;
}

static inline float f32_max(float a, float b)
{
	if (a != a || b != b)
		return f32_of_bits(F32_NAN_BITS);
	return a == b ? f32_of_bits(f32_bits(a) & f32_bits(b)) : a > b ? a : b;
}

static inline double f64_pick(double a, double b, bool least)
{
	uint64_t x, y, nan = F64_NAN_BITS;
	memcpy(&x, &a, sizeof x);
	memcpy(&y, &b, sizeof y);
	x = a != a || b != b ? nan : a == b ? (least ? x | y : x & y) : (a < b) == least ? x : y;
	memcpy(&a, &x, sizeof a);
	return a;
}

static inline double f64_min(double a, double b)
{
	return f64_pick(a, b, true);
}

static inline double f64_max(double a, double b)
{
	return f64_pick(a, b, false);
}

#define INTEGER_PICKS(NAME, T)              \
	static inline T NAME##_min(T a, T b) \
	{                                   \
		return a < b ? a : b;       \
	}                                   \
	static inline T NAME##_max(T a, T b) \
	{                                   \
		return a > b ? a : b;       \
	}
INTEGER_PICKS(i32, int32_t)
INTEGER_PICKS(i64, int64_t)
INTEGER_PICKS(u8, uint8_t)
#undef INTEGER_PICKS

#endif
