/*
 * Reduction and copy kernels: for each type and operation one per instruction set, chosen at run time, all with the bits of the plain C loop
 * (which NaN a sum or average of NaNs is excepted).  What the operations mean stands in comm.h.
 */
#ifndef SYNCTRAIN_LIBCOMM_REDUCE_H
#define SYNCTRAIN_LIBCOMM_REDUCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm.h"
#include "plan.h"

/* What a kernel adds in one pass. */
#define REDUCE_SOURCES 4

enum reduce_isa { REDUCE_PLAIN, REDUCE_SSE2, REDUCE_AVX2, REDUCE_AVX512 };
#define REDUCE_ISAS 4

/*
 * destination[i] = keep[i] = (sources[0][i] op sources[1][i]) op ..., i < count; avg: the sum, divided by `ranks`.
 *
 * Operands are naturally aligned arrays of the type; those of f16 and bf16 may be wide instead, which is f32: partial sums.  They are
 * added in f32, and a result that is not wide is rounded once.
 */
struct reduce_call {
	void *destination;
	void *keep;                            /* may be NULL; destination or keep may be a source, else nothing overlaps */
	const void *sources[PLAN_MAX_SOURCES];
	unsigned source_count;                 /* 1..REDUCE_SOURCES; reduce_many: 1..PLAN_MAX_SOURCES */
	unsigned wide_sources;                 /* bit s: source s is wide */
	bool wide_result;                      /* destination and keep are */
	bool stream;                           /* the result (keep, when given) will not be read soon: written past the caches where it pays */
	uint32_t ranks;                        /* avg: >= 1 */
	size_t count;                          /* elements */
};
typedef void reduce_function(const struct reduce_call *call);

/* The kernel of an instruction set; NULL when it has none for this or the machine lacks the set. */
reduce_function *reduce_kernel(enum reduce_isa isa, enum comm_type type, enum comm_op op);

/* The best kernel of this machine; never NULL. */
reduce_function *reduce_kernel_best(enum comm_type type, enum comm_op op);

/* Runs a kernel.  Here a wide destination may also start where a source that is not wide does (a kernel called directly would overwrite what
 * it has still to read). */
void reduce_run(reduce_function *kernel, const struct reduce_call *call);

/* As reduce_run of `last`, for any number of sources, each read once: partial sums (wide ones of f16 and bf16) by `add`, in the same order, stay in the
 * first-level cache.  With more than REDUCE_SOURCES a wide destination may not start where a source does that is not. */
void reduce_many(reduce_function *add, reduce_function *last, enum comm_type type, const struct reduce_call *call);

/* destination = keep = source, bytes of any type and alignment; keep may be NULL; stream as above. */
void reduce_copy(void *destination, void *keep, const void *source, size_t bytes, bool stream);

const char *reduce_isa_name(enum reduce_isa isa);

#endif
