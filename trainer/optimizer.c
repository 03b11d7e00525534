#include "trainer/optimizer.h"

#include <math.h>

#include "trainer/kernels.h"
#include "trainer/portable.h"
#include "trainer/threads.h"

#define BLOCK_ELEMENTS 1024
#define TASK_ELEMENTS 32768

static size_t at_most(size_t a, size_t b)
{
	return a < b ? a : b;
}

double train_schedule_rate(const struct train_schedule *schedule, uint64_t step)
{
	if (step < schedule->warmup_steps)
		return schedule->peak * ((double)(step + 1) / (double)schedule->warmup_steps);
	if (schedule->constant)
		return schedule->peak;
	if (step >= schedule->total_steps)
		return schedule->minimum;
	double progress = (double)(step - schedule->warmup_steps) / (double)(schedule->total_steps - schedule->warmup_steps);
	return schedule->minimum + (schedule->peak - schedule->minimum) * (0.5 * (1 + train_cos_turns(0.5 * progress)));
}

unsigned train_optimizer_states(const struct train_optimizer_config *config)
{
	if (config->kind == TRAIN_ADAMW)
		return 2;
	return config->momentum > 0 ? 1 : 0;
}

/* The part of one tensor in the range; pointers are at its first element. */
struct update {
	const struct train_optimizer_config *config;
	const struct train_kernels *kernels;
	float *parameters, *first, *second;
	const float *gradients;
	size_t count;
	float rate, decay, gradient_scale;
	struct train_adamw adamw;
};

static void update_task(void *context, size_t index, unsigned thread)
{
	(void)thread;
	const struct update *job = context;
	size_t at = index * TASK_ELEMENTS, n = at_most(TASK_ELEMENTS, job->count - at);
	if (job->config->kind == TRAIN_ADAMW)
		job->kernels->adamw(job->parameters + at, job->gradients + at, job->first + at, job->second + at, n, &job->adamw);
	else
		job->kernels->sgd(job->parameters + at, job->gradients + at, job->first ? job->first + at : NULL, n, job->rate,
				  (float)job->config->momentum, job->decay, job->gradient_scale);
}

void train_optimizer_update(const struct train_optimizer_config *config, const struct train_tensor *tensors, size_t tensor_count, float *parameters,
			    const float *gradients, float *const *states, size_t offset, size_t count, double rate, float gradient_scale,
			    uint64_t step)
{
	unsigned state_count = train_optimizer_states(config);
	/* 1 - beta^step: the share of the average that is not its initial zero. */
	double correction1 = 1 - train_power(config->beta1, step), correction2 = 1 - train_power(config->beta2, step);
	for (size_t i = 0; i < tensor_count; i++) {
		size_t first = tensors[i].offset > offset ? tensors[i].offset : offset;
		size_t end = at_most(tensors[i].offset + tensors[i].elements, offset + count);
		if (first >= end)
			continue;
		double decay = tensors[i].decay ? config->weight_decay : 0;
		size_t at = first - offset;
		struct update job = {
			.config = config,
			.kernels = train_kernels(),
			.parameters = parameters + at,
			.gradients = gradients + at,
			.first = state_count > 0 ? states[0] + at : NULL,
			.second = state_count > 1 ? states[1] + at : NULL,
			.count = end - first,
			.rate = (float)rate,
			.decay = (float)decay,
			.gradient_scale = gradient_scale,
			.adamw = {
				.beta1 = (float)config->beta1,
				.one_minus_beta1 = (float)(1 - config->beta1),
				.beta2 = (float)config->beta2,
				.one_minus_beta2 = (float)(1 - config->beta2),
				.rate = (float)(rate / correction1),
				.correction = (float)sqrt(correction2),
				.epsilon = (float)config->epsilon,
				.keep = (float)(1 - rate * decay),
				.gradient_scale = gradient_scale,
			},
		};
		train_parallel(TRAIN_THREADS_MAX, (job.count + TASK_ELEMENTS - 1) / TASK_ELEMENTS, update_task, &job);
	}
}

/* ---- Sum of squares ---- */

/*
 * A binary tree over blocks, left to right: as in a binary counter, two sums of 2^k blocks become one of 2^(k+1).  At the end what is
 * left is added from the smallest up.  Subtrees of aligned powers of two can be computed apart and put in as such.
 */
struct tree {
	double sums[64];
	unsigned levels[64];
	size_t depth;
};

static void tree_add(struct tree *tree, double sum, unsigned level)
{
	while (tree->depth && tree->levels[tree->depth - 1] == level) {
		sum = tree->sums[--tree->depth] + sum;
		level++;
	}
	tree->sums[tree->depth] = sum;
	tree->levels[tree->depth++] = level;
}

static double tree_total(struct tree *tree)
{
	if (!tree->depth)
		return 0;
	double sum = tree->sums[--tree->depth];
	while (tree->depth)
		sum = tree->sums[--tree->depth] + sum;
	return sum;
}

#define SUBTREES 1024

struct squares {
	const struct train_kernels *kernels;
	const float *values;
	size_t count, blocks_each; /* blocks of a subtree: a power of two */
	double sums[SUBTREES];
};

static void squares_task(void *context, size_t index, unsigned thread)
{
	(void)thread;
	struct squares *job = context;
	struct tree tree = {.depth = 0};
	size_t size = job->blocks_each * BLOCK_ELEMENTS;
	for (size_t at = index * size; at < at_most((index + 1) * size, job->count); at += BLOCK_ELEMENTS)
		tree_add(&tree, job->kernels->sum_of_squares(job->values + at, at_most(BLOCK_ELEMENTS, job->count - at)), 0);
	job->sums[index] = tree_total(&tree);
}

double train_sum_of_squares(const float *values, size_t count)
{
	struct squares job = {.kernels = train_kernels(), .values = values, .count = count, .blocks_each = 32};
	while (count / BLOCK_ELEMENTS / job.blocks_each >= SUBTREES)
		job.blocks_each *= 2;
	size_t size = job.blocks_each * BLOCK_ELEMENTS, subtrees = (count + size - 1) / size;
	train_parallel(TRAIN_THREADS_MAX, subtrees, squares_task, &job);
	/* The last subtree may be incomplete. It is the right-most, so its level does not matter: nothing comes after it. */
	struct tree tree = {.depth = 0};
	for (size_t i = 0; i < subtrees; i++)
		tree_add(&tree, job.sums[i], i + 1 < subtrees || count % size == 0 ? 0 : 63);
	return tree_total(&tree);
}
