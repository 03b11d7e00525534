/* Kernels for AVX2 with F16C. */
#include "reduce_kernels.h"

#if defined(__x86_64__)
#pragma GCC target("avx2,f16c")
#include <immintrin.h>

#define VECTOR_BYTES 32
#define STREAM(TO, VECTOR) _mm256_stream_si256((__m256i *)(void *)(TO), (__m256i)(VECTOR))
#define STREAM_HALF(TO, VECTOR) _mm_stream_si128((__m128i *)(void *)(TO), (__m128i)(VECTOR))
#define NARROW_TYPES 1
#define F16_WIDEN(FROM) ((vf32)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i_u *)(const void *)(FROM))))
#define F16_NARROW(VECTOR) ((vu16)_mm256_cvtps_ph((__m256)(VECTOR), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC))
#define TABLE reduce_avx2
#include "reduce_vector.h"
#else
reduce_table reduce_avx2;
#endif
