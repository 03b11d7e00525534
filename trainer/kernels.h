/*
 * Loops of the model and the optimizers, single-threaded: the callers cut the work.
 *
 * One source, kernels.inc, is compiled for several instruction sets, and the best is chosen at run time.  It is written with
 * vectors of 16 floats whatever the machine has, sums in one fixed order, and never fuses a multiply with an add: all sets
 * give the same bits, which test_kernels checks.
 *
 * Matrices are row-major; ld: elements from one row to the next.  No alignment is needed.
 */
#ifndef SYNCTRAIN_TRAINER_KERNELS_H
#define SYNCTRAIN_TRAINER_KERNELS_H

#include <stddef.h>

/* Constants of one AdamW step, each rounded to f32 once. */
struct train_adamw {
	float beta1, one_minus_beta1, beta2, one_minus_beta2;
	float rate;       /* learning rate / (1 - beta1^step) */
	float correction; /* sqrt(1 - beta2^step) */
	float epsilon;
	float keep;       /* 1 - learning rate * weight decay */
	float gradient_scale;
};

struct train_kernels {
	const char *name; /* "avx512", "avx2", "generic" */

	/* out (rows, n) = (x - mean) * rstd * weight + bias; mean, rstd: (rows). epsilon 1e-5. */
	void (*layernorm)(float *out, float *mean, float *rstd, const float *x, const float *weight, const float *bias, size_t rows, size_t n);
	/* dx (rows, n) += gradient through the normalisation of dout (rows, n). */
	void (*layernorm_backward)(float *dx, const float *dout, const float *x, const float *weight, const float *mean, const float *rstd,
				   size_t rows, size_t n);
	/* Columns [0, columns) of dweight += sum over rows of dout * (x - mean) * rstd, and of dbias += sum of dout. */
	void (*layernorm_parameters)(float *dweight, float *dbias, const float *dout, const float *x, const float *mean, const float *rstd,
				     size_t rows, size_t columns, size_t ld);
	/* out (columns) += sum over rows. */
	void (*column_sums)(float *out, const float *in, size_t rows, size_t columns, size_t ld);

	/* x (rows, columns) += bias (columns), and with residual (may be NULL, same ld) also += residual. */
	void (*add_bias)(float *x, const float *bias, const float *residual, size_t rows, size_t columns, size_t ld);
	/* x += bias, then out = gelu(x) with the tanh form. */
	void (*bias_gelu)(float *out, float *x, const float *bias, size_t rows, size_t columns, size_t ld);
	/* dx *= gelu'(x). */
	void (*gelu_backward)(float *dx, const float *x, size_t rows, size_t columns, size_t ld);
	/* out += in. */
	void (*add)(float *out, const float *in, size_t n);
	/* out = a + b. */
	void (*sum)(float *out, const float *a, const float *b, size_t n);

	/* Greatest value of x (n), and 1 / sum(exp(x - greatest)); the sum is returned. */
	float (*softmax_statistics)(const float *x, size_t n, float *greatest, float *inverse);
	/* x = softmax(x): statistics, then exponentials with factor *inverse, with the same bits, in one. */
	void (*softmax)(float *x, size_t n, float *greatest, float *inverse);
	/* x = exp(x - greatest) * factor. */
	void (*exponentials)(float *x, size_t n, float greatest, float factor);
	/* ds = p * (dp - dot) * scale, in dp. */
	void (*softmax_backward)(float *dp, const float *p, size_t n, float dot, float scale);
	float (*dot)(const float *a, const float *b, size_t n);

	/* x = gradient * gradient_scale + decay * parameter; with a momentum buffer: momentum = momentum * factor + x, x = momentum; parameter -= rate * x. */
	void (*sgd)(float *parameters, const float *gradients, float *momentum, size_t n, float rate, float factor, float decay,
		    float gradient_scale);
	void (*adamw)(float *parameters, const float *gradients, float *m, float *v, size_t n, const struct train_adamw *constants);
	/* f64 sum of squares of at most a few thousand elements. */
	double (*sum_of_squares)(const float *x, size_t n);
};

/* The best set for this CPU. */
const struct train_kernels *train_kernels(void);

/* Every set that this CPU can run, best first; for tests. */
size_t train_kernels_all(const struct train_kernels **sets, size_t room);

#endif
