#include "trainer/kernels.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* All vector functions are inlined: no calling convention is at stake. */
#pragma GCC diagnostic ignored "-Wpsabi"

/* Aligned as any argument is, not to 64: the compiler has notes to give about functions that take such. */
typedef float vec __attribute__((vector_size(64), aligned(16)));
typedef float vec_unaligned __attribute__((vector_size(64), aligned(4), may_alias));
typedef float vec_half __attribute__((vector_size(32)));
typedef float vec_quarter __attribute__((vector_size(16)));
typedef uint32_t vec_bits __attribute__((vector_size(64)));
typedef double vec_double __attribute__((vector_size(64)));

#define LANES 16
#define INLINE static inline __attribute__((always_inline))
#define NAME_(name, set) name##_##set
#define NAME(name, set) NAME_(name, set)
#define FN(name) NAME(name, SET)
#define TEXT_(set) #set
#define TEXT(set) TEXT_(set)

/* 256 and 512: width of the set's registers, for the few operations that have no portable vector form. */
#if defined(__x86_64__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl")
#define SET avx512
#define WIDTH 512
#include "trainer/kernels.inc"
#undef SET
#undef WIDTH
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2")
#define SET avx2
#define WIDTH 256
#include "trainer/kernels.inc"
#undef SET
#undef WIDTH
#pragma GCC pop_options
#endif

#define SET generic
#if defined(__x86_64__)
#define WIDTH 128
#else
#define WIDTH 0
#endif
#include "trainer/kernels.inc"

size_t train_kernels_all(const struct train_kernels **sets, size_t room)
{
	size_t n = 0;
#if defined(__x86_64__) && !defined(__clang__)
	__builtin_cpu_init();
	if (n < room && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
	    __builtin_cpu_supports("avx512vl"))
		sets[n++] = &kernels_avx512;
	if (n < room && __builtin_cpu_supports("avx2"))
		sets[n++] = &kernels_avx2;
#endif
	if (n < room)
		sets[n++] = &kernels_generic;
	return n;
}

const struct train_kernels *train_kernels(void)
{
	static const struct train_kernels *_Atomic best;
	if (!best) {
		const struct train_kernels *first = &kernels_generic;
		train_kernels_all(&first, 1);
		best = first;
	}
	return best;
}
