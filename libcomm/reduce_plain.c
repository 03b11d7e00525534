/* The reference: plain loops, for any machine. */
#include "reduce_kernels.h"

/* FINISH is an expression in `x`, the outcome, and call->ranks. */
#define PLAIN(NAME, T, ONE, FINISH)                                                        \
	static void NAME(const struct reduce_call *call)                                   \
	{                                                                                  \
		T *a = call->destination, *b = call->keep;                                 \
		for (size_t i = 0; i < call->count; i++) {                                 \
			T x = ((const T *)call->sources[0])[i];                            \
			for (unsigned s = 1; s < call->source_count; s++)                  \
				x = ONE(x, ((const T *)call->sources[s])[i]);              \
			x = FINISH;                                                        \
			a[i] = x;                                                          \
			if (b)                                                             \
				b[i] = x;                                                  \
		}                                                                          \
	}

#define PLAIN16(NAME, WIDEN, NARROW, ONE, FINISH)                                                                                    \
	static void NAME(const struct reduce_call *call)                                                                             \
	{                                                                                                                            \
		for (size_t i = 0; i < call->count; i++) {                                                                           \
			float x = 0;                                                                                                 \
			for (unsigned s = 0; s < call->source_count; s++) {                                                          \
				float y = call->wide_sources >> s & 1 ? ((const float *)call->sources[s])[i]                         \
								      : WIDEN(((const uint16_t *)call->sources[s])[i]);               \
				x = s ? ONE(x, y) : y;                                                                               \
			}                                                                                                            \
			x = FINISH;                                                                                                  \
			for (unsigned k = 0; k < 2; k++) {                                                                           \
				void *to = k ? call->keep : call->destination;                                                       \
				if (to && call->wide_result)                                                                         \
					((float *)to)[i] = x;                                                                        \
				else if (to)                                                                                         \
					((uint16_t *)to)[i] = NARROW(x);                                                             \
			}                                                                                                            \
		}                                                                                                                    \
	}

#define KINDS(NAME, T, AVERAGE)                      \
	PLAIN(NAME##_sum_loop, T, NAME##_sum, x)     \
	PLAIN(NAME##_avg_loop, T, NAME##_sum, AVERAGE) \
	PLAIN(NAME##_min_loop, T, NAME##_min, x)     \
	PLAIN(NAME##_max_loop, T, NAME##_max, x)
#define KINDS16(NAME, WIDEN, NARROW)                                               \
	PLAIN16(NAME##_sum_loop, WIDEN, NARROW, f32_sum, x)                        \
	PLAIN16(NAME##_avg_loop, WIDEN, NARROW, f32_sum, x / (float)call->ranks)   \
	PLAIN16(NAME##_min_loop, WIDEN, NARROW, f32_min, x)                        \
	PLAIN16(NAME##_max_loop, WIDEN, NARROW, f32_max, x)

KINDS(f32, float, x / (float)call->ranks)
KINDS(f64, double, x / call->ranks)
KINDS(i32, int32_t, (int32_t)(x / (int64_t)call->ranks))
KINDS(i64, int64_t, x / (int64_t)call->ranks)
KINDS(u8, uint8_t, (uint8_t)(x / call->ranks))
KINDS16(f16, f32_from_f16, f16_from_f32)
KINDS16(bf16, f32_from_bf16, bf16_from_f32)

#define ROW(NAME) {[COMM_SUM] = NAME##_sum_loop, [COMM_AVG] = NAME##_avg_loop, [COMM_MIN] = NAME##_min_loop, [COMM_MAX] = NAME##_max_loop}
reduce_table reduce_plain = {
	[COMM_F32] = ROW(f32), [COMM_F64] = ROW(f64), [COMM_I32] = ROW(i32), [COMM_I64] = ROW(i64),
	[COMM_U8] = ROW(u8),   [COMM_F16] = ROW(f16), [COMM_BF16] = ROW(bf16),
};
