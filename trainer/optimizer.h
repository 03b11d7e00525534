/* Optimizers on flat f32 buffers, and schedules as pure functions of the step. */
#ifndef SYNCTRAIN_TRAINER_OPTIMIZER_H
#define SYNCTRAIN_TRAINER_OPTIMIZER_H

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"
#include "trainer/model.h"

enum train_optimizer_kind { TRAIN_SGD, TRAIN_ADAMW };

struct train_optimizer_config {
	enum train_optimizer_kind kind;
	double momentum;                         /* SGD (Polyak); 0: none */
	double beta1, beta2, epsilon;            /* AdamW (Loshchilov and Hutter, 2019) */
	double weight_decay;                     /* decoupled for AdamW, added to the gradient for SGD; only tensors with decay set */
};

struct train_schedule {
	double peak, minimum;     /* learning rate after warm-up, and at the end */
	uint64_t warmup_steps;    /* linear from peak/warmup_steps at step 0 */
	uint64_t total_steps;     /* cosine from peak at warmup_steps to minimum at total_steps; constant afterwards */
	int constant;             /* non-zero: no cosine, peak after warm-up */
};

/* The learning rate of step (0, 1, ...): a pure function, so that a resumed run has the same one. */
double train_schedule_rate(const struct train_schedule *schedule, uint64_t step);

/* Buffers of state that the optimizer keeps per parameter: 0, 1 (momentum) or 2 (AdamW's m and v). */
unsigned train_optimizer_states(const struct train_optimizer_config *config);

/*
 * One update of `count` elements starting at element `offset` of the flat buffer (so that a shard can be updated alone).  step counts from 1
 * for bias correction.  gradient_scale multiplies each gradient first (clipping).  states[k]: (count).  Elementwise: the bits of
 * an element do not depend on the range it was updated with.
 */
void train_optimizer_update(const struct train_optimizer_config *config, const struct train_tensor *tensors, size_t tensor_count,
			    float *parameters, const float *gradients, float *const *states, size_t offset, size_t count, double rate,
			    float gradient_scale, uint64_t step);

/* Sum of squares over fixed 1,024-element blocks, f64, pairwise over blocks: does not depend on threads or ISA. */
double train_sum_of_squares(const float *values, size_t count);

#endif
