/*
 * Matrix products through oneDNN's sgemm.
 *
 * A large product is cut into tiles of its output, which run as single-threaded sgemm calls on the trainer's own threads.  The cut
 * depends on the shape only, so the bits do not depend on the number of threads; they do depend on the instruction set that
 * oneDNN picks (train_isa).
 */
#ifndef SYNCTRAIN_TRAINER_MATMUL_H
#define SYNCTRAIN_TRAINER_MATMUL_H

#include <stdbool.h>
#include <stddef.h>

#include "common/status.h"

struct train_matmul;

/* Work on the finished tile c[row .. row+rows)[column .. column+columns) while it is in cache: bias, GELU, residual. */
typedef void train_matmul_finish(const struct train_matmul *product, size_t row, size_t rows, size_t column, size_t columns);

/* c (m, n) = alpha * op(a) (m, k) * op(b) (k, n) + beta * c, all row-major; ld*: elements from one stored row to the next. */
struct train_matmul {
	bool a_transposed, b_transposed; /* stored as (k, m), (n, k) */
	size_t m, n, k;
	float alpha;
	const float *a;
	size_t lda;
	const float *b;
	size_t ldb;
	float beta;
	float *c;
	size_t ldc;
	train_matmul_finish *finish; /* may be NULL */
	const void *context;         /* for finish */
};

/* On all threads. ST_ERR_NOMEM or ST_ERR_INTERNAL when oneDNN fails; what was computed is then lost. */
enum st_status train_matmul_run(const struct train_matmul *product);

/* On the calling thread, one sgemm call: for small products inside a task. finish is not called. */
enum st_status train_matmul_small(const struct train_matmul *product);

#endif
