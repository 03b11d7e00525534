/* Reduction and copy kernels: one per instruction set, chosen at run time, all with the bits of the plain C loop. */
#ifndef SYNCTRAIN_LIBCOMM_REDUCE_H
#define SYNCTRAIN_LIBCOMM_REDUCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "plan.h"

enum reduce_isa { REDUCE_PLAIN, REDUCE_SSE2, REDUCE_AVX2, REDUCE_AVX512 };

/*
 * destination[i] = keep[i] = ((sources[0][i] + sources[1][i]) + ...), i < count, source_count 1..PLAN_MAX_SOURCES.
 * keep may be NULL.  destination or keep may be one of the sources, else nothing overlaps.  stream: destination (keep, when that is
 * given) will not be read soon: it is written past the caches where it pays, with a store fence at the end.  All are f32, naturally aligned.
 */
typedef void reduce_sum_f32_function(float *destination, float *keep, const float *const *sources, unsigned source_count, size_t count,
				     bool stream);

/* The kernel of an instruction set; NULL when this machine lacks it. */
reduce_sum_f32_function *reduce_sum_f32(enum reduce_isa isa);

/* The best kernel of this machine. */
reduce_sum_f32_function *reduce_sum_f32_best(void);

/* destination = keep = source, bytes of any type and alignment; keep may be NULL; stream as above. */
void reduce_copy(void *destination, void *keep, const void *source, size_t bytes, bool stream);

const char *reduce_isa_name(enum reduce_isa isa);

#endif
