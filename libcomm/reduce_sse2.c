/* Kernels for SSE2: every x86-64 has it. */
#include "reduce_kernels.h"

#if defined(__x86_64__)
#pragma GCC target("sse2")
#include <immintrin.h>

#define VECTOR_BYTES 16
#define STREAM(TO, VECTOR) _mm_stream_si128((__m128i *)(void *)(TO), (__m128i)(VECTOR))
#define NARROW_TYPES 0
#define TABLE reduce_sse2
#include "reduce_vector.h"
#else
reduce_table reduce_sse2;
#endif
