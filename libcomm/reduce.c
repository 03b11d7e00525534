/* Sum of f32 arrays. IEEE addition is exact to the bit on every path, and the operands are added in the order given. */
#include "reduce.h"

#include <string.h>

/* A piece that stays in the first-level cache while it is summed and then stored a second time. */
#define PIECE_ELEMENTS ((size_t)2048)

static void sum_plain(float *destination, float *keep, const float *const *sources, unsigned source_count, size_t count, bool stream)
{
	(void)stream;
	for (size_t i = 0; i < count; i++) {
		float sum = sources[0][i];
		for (unsigned s = 1; s < source_count; s++)
			sum = sum + sources[s][i];
		destination[i] = sum;
		if (keep)
			keep[i] = sum;
	}
}

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>

/*
 * One kernel per (instruction set, number of sources, second destination, streaming), all from one body whose flags are
 * constants after inlining.  Streaming stores need alignment: elements before the first aligned address are done one by one.
 */
#define KERNELS(ISA, TARGET, VECTOR, WIDTH, LOAD, STORE, STREAM, ADD)                                                                     \
	static inline __attribute__((always_inline, target(TARGET))) void ISA##_body(float *a, float *b, const float *const *sources,     \
										      unsigned n, size_t count, bool stream)            \
	{                                                                                                                                 \
		const float *s0 = sources[0], *s1 = n > 1 ? sources[1] : s0, *s2 = n > 2 ? sources[2] : s0, *s3 = n > 3 ? sources[3] : s0;  \
		float *far = b ? b : a;                                                                                                   \
		size_t i = 0;                                                                                                             \
		size_t lead = stream ? (size_t)(-(uintptr_t)far / sizeof(float)) % (WIDTH) : 0;                                           \
		for (size_t part = 0; part < 2; part++) {                                                                                 \
			size_t until = part ? count : lead < count ? lead : count;                                                        \
			if (part)                                                                                                         \
				for (; i + (WIDTH) <= count; i += (WIDTH)) {                                                              \
					VECTOR sum = LOAD(s0 + i);                                                                        \
					if (n > 1)                                                                                        \
						sum = ADD(sum, LOAD(s1 + i));                                                             \
					if (n > 2)                                                                                        \
						sum = ADD(sum, LOAD(s2 + i));                                                             \
					if (n > 3)                                                                                        \
						sum = ADD(sum, LOAD(s3 + i));                                                             \
					if (b)                                                                                            \
						STORE(a + i, sum);                                                                        \
					if (stream)                                                                                       \
						STREAM(far + i, sum);                                                                     \
					else                                                                                              \
						STORE(far + i, sum);                                                                      \
				}                                                                                                         \
			for (; i < until; i++) {                                                                                          \
				float sum = s0[i];                                                                                        \
				if (n > 1)                                                                                                \
					sum = sum + s1[i];                                                                                \
				if (n > 2)                                                                                                \
					sum = sum + s2[i];                                                                                \
				if (n > 3)                                                                                                \
					sum = sum + s3[i];                                                                                \
				a[i] = sum;                                                                                               \
				far[i] = sum;                                                                                             \
			}                                                                                                                 \
		}                                                                                                                         \
		if (stream)                                                                                                               \
			_mm_sfence();                                                                                                     \
	}                                                                                                                                 \
	static __attribute__((target(TARGET))) void ISA(float *a, float *b, const float *const *sources, unsigned n, size_t count,       \
							bool stream)                                                                      \
	{                                                                                                                                 \
		if (stream && ((uintptr_t)(b ? b : a) % sizeof(float) || count < 4 * (WIDTH)))                                           \
			stream = false;                                                                                                   \
		switch (n * 4u + (b ? 2u : 0u) + stream) {                                                                                \
		case 8: ISA##_body(a, NULL, sources, 2, count, false); break;                                                             \
		case 9: ISA##_body(a, NULL, sources, 2, count, true); break;                                                              \
		case 10: ISA##_body(a, b, sources, 2, count, false); break;                                                               \
		case 11: ISA##_body(a, b, sources, 2, count, true); break;                                                                \
		case 12: ISA##_body(a, NULL, sources, 3, count, false); break;                                                            \
		case 16: ISA##_body(a, NULL, sources, 4, count, false); break;                                                            \
		default: ISA##_body(a, b, sources, n, count, stream); break;                                                              \
		}                                                                                                                         \
	}

KERNELS(sum_sse2, "sse2", __m128, 4, _mm_loadu_ps, _mm_storeu_ps, _mm_stream_ps, _mm_add_ps)
KERNELS(sum_avx2, "avx2", __m256, 8, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_stream_ps, _mm256_add_ps)
KERNELS(sum_avx512, "avx512f", __m512, 16, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_stream_ps, _mm512_add_ps)

static __attribute__((target("avx2"))) void copy_stream(char *destination, const char *source, size_t bytes)
{
	size_t lead = (size_t)(-(uintptr_t)destination % 32);
	if (lead > bytes)
		lead = bytes;
	memcpy(destination, source, lead);
	size_t i = lead;
	for (; i + 32 <= bytes; i += 32)
		_mm256_stream_si256((__m256i *)(void *)(destination + i), _mm256_loadu_si256((const __m256i *)(const void *)(source + i)));
	memcpy(destination + i, source + i, bytes - i);
	_mm_sfence();
}

static bool can_stream(void)
{
	return __builtin_cpu_supports("avx2");
}

reduce_sum_f32_function *reduce_sum_f32(enum reduce_isa isa)
{
	switch (isa) {
	case REDUCE_PLAIN: return sum_plain;
	case REDUCE_SSE2: return __builtin_cpu_supports("sse2") ? sum_sse2 : NULL;
	case REDUCE_AVX2: return __builtin_cpu_supports("avx2") ? sum_avx2 : NULL;
	case REDUCE_AVX512: return __builtin_cpu_supports("avx512f") ? sum_avx512 : NULL;
	}
	return NULL;
}
#else
static bool can_stream(void)
{
	return false;
}

static void copy_stream(char *destination, const char *source, size_t bytes)
{
	memcpy(destination, source, bytes);
}

reduce_sum_f32_function *reduce_sum_f32(enum reduce_isa isa)
{
	return isa == REDUCE_PLAIN ? sum_plain : NULL;
}
#endif

reduce_sum_f32_function *reduce_sum_f32_best(void)
{
	for (int isa = REDUCE_AVX512; isa > REDUCE_PLAIN; isa--) {
		reduce_sum_f32_function *function = reduce_sum_f32((enum reduce_isa)isa);
		if (function)
			return function;
	}
	return sum_plain;
}

void reduce_copy(void *destination, void *keep, const void *source, size_t bytes, bool stream)
{
	stream = stream && bytes >= 4096 && can_stream();
	if (!keep) {
		if (stream)
			copy_stream(destination, source, bytes);
		else
			memcpy(destination, source, bytes);
		return;
	}
	/* The second copy of each piece reads the first-level cache. */
	const size_t piece = PIECE_ELEMENTS * sizeof(float);
	for (size_t at = 0; at < bytes; at += piece) {
		size_t n = bytes - at < piece ? bytes - at : piece;
		memcpy((char *)destination + at, (const char *)source + at, n);
		if (stream)
			copy_stream((char *)keep + at, (const char *)source + at, n);
		else
			memcpy((char *)keep + at, (const char *)source + at, n);
	}
}

const char *reduce_isa_name(enum reduce_isa isa)
{
	static const char *const names[] = {"plain", "sse2", "avx2", "avx512"};
	return names[isa];
}
