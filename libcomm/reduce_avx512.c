/* Kernels for AVX-512 (F, BW, DQ, VL: all that have it but the first Xeon Phi). */
#include "reduce_kernels.h"

#if defined(__x86_64__)
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,f16c")
#include <immintrin.h>

#define VECTOR_BYTES 64
#define STREAM(TO, VECTOR) _mm512_stream_si512((__m512i *)(void *)(TO), (__m512i)(VECTOR))
#define STREAM_HALF(TO, VECTOR) _mm256_stream_si256((__m256i *)(void *)(TO), (__m256i)(VECTOR))
#define NARROW_TYPES 1
#define F16_WIDEN(FROM) ((vf32)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i_u *)(const void *)(FROM))))
#define F16_NARROW(VECTOR) ((vu16)_mm512_cvtps_ph((__m512)(VECTOR), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC))
#define TABLE reduce_avx512
#include "reduce_vector.h"
#else
reduce_table reduce_avx512;
#endif
