/*
 * The kernels of one instruction set, written once with the compiler's vectors.  Included by reduce_<isa>.c, which sets the target and defines
 *
 *   VECTOR_BYTES               of one register
 *   STREAM(to, vector)         store of VECTOR_BYTES past the caches, to aligned
 *   STREAM_HALF(to, vector)    of VECTOR_BYTES / 2; with NARROW_TYPES
 *   NARROW_TYPES               1: f16 and bf16 too, then
 *   F16_WIDEN(from)            VECTOR_BYTES / 4 f16 at from as vf32
 *   F16_NARROW(vector)         the reverse, as vu16
 *   TABLE                      the table to define
 */
#include "reduce_kernels.h"

/* As a value, and as it lies in memory: aligned to its elements only. */
#define VECTOR_OF(NAME, T, BYTES)													\
	typedef T NAME __attribute__((vector_size(BYTES)));										\
	typedef T NAME##_at __attribute__((vector_size(BYTES), aligned(sizeof(T)), may_alias))
VECTOR_OF(vf32, float, VECTOR_BYTES);
VECTOR_OF(vf64, double, VECTOR_BYTES);
VECTOR_OF(vi32, int32_t, VECTOR_BYTES);
VECTOR_OF(vi64, int64_t, VECTOR_BYTES);
VECTOR_OF(vu32, uint32_t, VECTOR_BYTES);
VECTOR_OF(vu64, uint64_t, VECTOR_BYTES);
VECTOR_OF(vu8, uint8_t, VECTOR_BYTES);
VECTOR_OF(vi8, int8_t, VECTOR_BYTES);

#define INLINE static inline __attribute__((always_inline))

/* As f32_min and so on: reduce_kernels.h. Comparisons give all ones where they hold. */
#define FLOAT_PICKS(NAME, V, I, NAN_BITS)												\
	INLINE V NAME##_min(V a, V b)													\
	{																\
		I nan = (a != a) | (b != b), less = a < b, equal = a == b;								\
		I picked = ((I)a & (less | equal)) | ((I)b & ~less);									\
		return (V)((picked & ~nan) | (nan & (NAN_BITS)));									\
	}																\
	INLINE V NAME##_max(V a, V b)													\
	{																\
		I nan = (a != a) | (b != b), more = a > b, equal = a == b;								\
		I picked = (((I)a & more) | ((I)b & ~more)) & ((I)a | ~equal);								\
		return (V)((picked & ~nan) | (nan & (NAN_BITS)));									\
	}
FLOAT_PICKS(vf32, vf32, vi32, (int32_t)F32_NAN_BITS)
FLOAT_PICKS(vf64, vf64, vi64, (int64_t)F64_NAN_BITS)

#define INTEGER_KINDS(NAME, V, U, I)													\
	INLINE V NAME##_sum(V a, V b)													\
	{																\
		return (V)((U)a + (U)b);												\
	}																\
	INLINE V NAME##_min(V a, V b)													\
	{																\
		I less = a < b;														\
		return (V)(((I)a & less) | ((I)b & ~less));										\
	}																\
	INLINE V NAME##_max(V a, V b)													\
	{																\
		I more = a > b;														\
		return (V)(((I)a & more) | ((I)b & ~more));										\
	}
INTEGER_KINDS(vi32, vi32, vu32, vi32)
INTEGER_KINDS(vi64, vi64, vu64, vi64)
INTEGER_KINDS(vu8, vu8, vu8, vi8)

INLINE vf32 vf32_sum(vf32 a, vf32 b)
{
	return a + b;
}

INLINE vf64 vf64_sum(vf64 a, vf64 b)
{
	return a + b;
}

/* Streaming stores need alignment: elements before the first aligned address are done one by one. */
INLINE size_t lead_of(const void *to, size_t vector_bytes, size_t element_bytes)
{
	return (size_t)(-(uintptr_t)to % vector_bytes) / element_bytes;
}

/*
 * One kernel, with variants by number of sources, second destination and streaming, all from one body whose flags are constants after
 * inlining.  DIVIDE: the result is divided by call->ranks.
 */
#define KERNEL(NAME, T, V, VECTOR, ONE, DIVIDE)												\
	INLINE void NAME##_body(const struct reduce_call *call, unsigned n, bool two, bool stream)					\
	{																\
		const T *s0 = call->sources[0], *s1 = n > 1 ? call->sources[1] : s0, *s2 = n > 2 ? call->sources[2] : s0,		\
			*s3 = n > 3 ? call->sources[3] : s0;										\
		T *a = call->destination, *far = two ? call->keep : a;									\
		const size_t count = call->count, width = VECTOR_BYTES / sizeof(T);							\
		size_t i = 0, lead = stream ? lead_of(far, VECTOR_BYTES, sizeof(T)) : 0;						\
		for (unsigned part = 0; part < 2; part++) {										\
			size_t until = part ? count : lead < count ? lead : count;							\
			for (; part && i + width <= count; i += width) {								\
				V x = *(const V##_at *)(s0 + i);									\
				if (n > 1)												\
					x = VECTOR(x, *(const V##_at *)(s1 + i));							\
				if (n > 2)												\
					x = VECTOR(x, *(const V##_at *)(s2 + i));							\
				if (n > 3)												\
					x = VECTOR(x, *(const V##_at *)(s3 + i));							\
				if (DIVIDE)												\
					x /= (T)call->ranks;										\
				if (two)												\
					*(V##_at *)(a + i) = x;										\
				if (stream)												\
					STREAM(far + i, x);										\
				else													\
					*(V##_at *)(far + i) = x;									\
			}														\
			for (; i < until; i++) {											\
				T x = s0[i];												\
				if (n > 1)												\
					x = ONE(x, s1[i]);										\
				if (n > 2)												\
					x = ONE(x, s2[i]);										\
				if (n > 3)												\
					x = ONE(x, s3[i]);										\
				if (DIVIDE)												\
					x /= (T)call->ranks;										\
				a[i] = x;												\
				far[i] = x;												\
			}														\
		}															\
		if (stream)														\
			_mm_sfence();													\
	}																\
	static void NAME(const struct reduce_call *call)										\
	{																\
		const unsigned n = call->source_count;											\
		const bool two = call->keep, stream = call->stream && call->count * sizeof(T) >= 4 * VECTOR_BYTES;			\
		switch (n * 4u + (two ? 2u : 0u) + stream) {										\
		case 8: NAME##_body(call, 2, false, false); break;									\
		case 9: NAME##_body(call, 2, false, true); break;									\
		case 10: NAME##_body(call, 2, true, false); break;									\
		case 11: NAME##_body(call, 2, true, true); break;									\
		case 12: NAME##_body(call, 3, false, false); break;									\
		case 16: NAME##_body(call, 4, false, false); break;									\
		default: NAME##_body(call, n, two, stream); break;									\
		}															\
	}

#define KINDS(NAME, T, V)														\
	KERNEL(NAME##_sum_kernel, T, V, V##_sum, NAME##_sum, false)									\
	KERNEL(NAME##_min_kernel, T, V, V##_min, NAME##_min, false)									\
	KERNEL(NAME##_max_kernel, T, V, V##_max, NAME##_max, false)
KINDS(f32, float, vf32)
KINDS(f64, double, vf64)
KINDS(i32, int32_t, vi32)
KINDS(i64, int64_t, vi64)
KINDS(u8, uint8_t, vu8)
KERNEL(f32_avg_kernel, float, vf32, vf32_sum, f32_sum, true)
KERNEL(f64_avg_kernel, double, vf64, vf64_sum, f64_sum, true)

#if NARROW_TYPES
VECTOR_OF(vu16, uint16_t, VECTOR_BYTES / 2);

#define BF16_WIDEN(FROM) ((vf32)(__builtin_convertvector(*(const vu16_at *)(FROM), vu32) << 16))

INLINE vu16 BF16_NARROW(vf32 x)
{
	vu32 bits = (vu32)x, nan = (vu32)(x != x);
	vu32 rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
	return __builtin_convertvector((rounded & ~nan) | ((bits >> 16 | 0x40) & nan), vu16);
}

/* wide: bit s says that source s is f32. */
#define KERNEL16(NAME, WIDEN, NARROW, WIDEN_ONE, NARROW_ONE, VECTOR, ONE, DIVIDE)							\
	INLINE void NAME##_body(const struct reduce_call *call, unsigned n, unsigned wide, bool wide_result)				\
	{																\
		const size_t count = call->count, width = VECTOR_BYTES / sizeof(float);							\
		char *a = call->destination, *b = call->keep, *far = b ? b : a;								\
		const bool stream = call->stream && !wide_result && count >= 8 * width;							\
		size_t i = 0, lead = stream ? lead_of(far, VECTOR_BYTES / 2, 2) : 0;							\
		for (unsigned part = 0; part < 2; part++) {										\
			size_t until = part ? count : lead < count ? lead : count;							\
			for (; part && i + width <= count; i += width) {								\
				vf32 x = {0};												\
				_Pragma("GCC unroll 4")											\
				for (unsigned s = 0; s < n; s++) {									\
					vf32 y;												\
					if (wide >> s & 1)										\
						y = *(const vf32_at *)((const float *)call->sources[s] + i);				\
					else												\
						y = WIDEN((const uint16_t *)call->sources[s] + i);					\
					x = s ? VECTOR(x, y) : y;									\
				}													\
				if (DIVIDE)												\
					x /= (float)call->ranks;									\
				if (wide_result) {											\
					*(vf32_at *)((float *)(void *)a + i) = x;							\
					if (b)												\
						*(vf32_at *)((float *)(void *)b + i) = x;						\
					continue;											\
				}													\
				vu16 narrow = NARROW(x);										\
				if (b)													\
					*(vu16_at *)((uint16_t *)(void *)a + i) = narrow;						\
				if (stream)												\
					STREAM_HALF((uint16_t *)(void *)far + i, narrow);						\
				else													\
					*(vu16_at *)((uint16_t *)(void *)far + i) = narrow;						\
			}														\
			for (; i < until; i++) {											\
				float x = 0;												\
				_Pragma("GCC unroll 4")											\
				for (unsigned s = 0; s < n; s++) {									\
					float y = wide >> s & 1 ? ((const float *)call->sources[s])[i]					\
								: WIDEN_ONE(((const uint16_t *)call->sources[s])[i]);			\
					x = s ? ONE(x, y) : y;										\
				}													\
				if (DIVIDE)												\
					x /= (float)call->ranks;									\
				for (unsigned k = 0; k < 2; k++) {									\
					char *to = k ? far : a;										\
					if (wide_result)										\
						((float *)(void *)to)[i] = x;								\
					else												\
						((uint16_t *)(void *)to)[i] = NARROW_ONE(x);						\
				}													\
			}														\
		}															\
		if (stream)														\
			_mm_sfence();													\
	}																\
	static void NAME(const struct reduce_call *call)										\
	{																\
		const unsigned n = call->source_count, wide = call->wide_sources;							\
		switch (n == 2 && wide < 2 ? wide * 2u + call->wide_result : 4u) {							\
		case 0: NAME##_body(call, 2, 0, false); break;										\
		case 1: NAME##_body(call, 2, 0, true); break;										\
		case 2: NAME##_body(call, 2, 1, false); break;										\
		case 3: NAME##_body(call, 2, 1, true); break;										\
		default: NAME##_body(call, n, wide, call->wide_result); break;								\
		}															\
	}

#define KINDS16(NAME, WIDEN, NARROW, WIDEN_ONE, NARROW_ONE)										\
	KERNEL16(NAME##_sum_kernel, WIDEN, NARROW, WIDEN_ONE, NARROW_ONE, vf32_sum, f32_sum, false)					\
	KERNEL16(NAME##_avg_kernel, WIDEN, NARROW, WIDEN_ONE, NARROW_ONE, vf32_sum, f32_sum, true)					\
	KERNEL16(NAME##_min_kernel, WIDEN, NARROW, WIDEN_ONE, NARROW_ONE, vf32_min, f32_min, false)					\
	KERNEL16(NAME##_max_kernel, WIDEN, NARROW, WIDEN_ONE, NARROW_ONE, vf32_max, f32_max, false)
KINDS16(f16, F16_WIDEN, F16_NARROW, f32_from_f16, f16_from_f32)
KINDS16(bf16, BF16_WIDEN, BF16_NARROW, f32_from_bf16, bf16_from_f32)
#endif

/* Vectors have no division of integers: their averages are the plain loop's. */
#define ROW(NAME) {[COMM_SUM] = NAME##_sum_kernel, [COMM_MIN] = NAME##_min_kernel, [COMM_MAX] = NAME##_max_kernel}
#define ROW_AVG(NAME) {[COMM_SUM] = NAME##_sum_kernel, [COMM_AVG] = NAME##_avg_kernel, [COMM_MIN] = NAME##_min_kernel, [COMM_MAX] = NAME##_max_kernel}
reduce_table TABLE = {
	[COMM_F32] = ROW_AVG(f32), [COMM_F64] = ROW_AVG(f64), [COMM_I32] = ROW(i32), [COMM_I64] = ROW(i64), [COMM_U8] = ROW(u8),
#if NARROW_TYPES
	[COMM_F16] = ROW_AVG(f16), [COMM_BF16] = ROW_AVG(bf16),
#endif
};
