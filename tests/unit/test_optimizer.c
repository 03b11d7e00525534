/* Optimizers against their formulas in f64, schedules at their edges, and bits that do not depend on how the buffer is cut. */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "tests/unit/check.h"
#include "trainer/optimizer.h"
#include "trainer/portable.h"

#define ELEMENTS 100003

static const struct train_tensor tensors[] = {
	{.name = "matrix", .offset = 0, .elements = 70000, .rows = 100, .columns = 700, .decay = true},
	{.name = "bias", .offset = 70000, .elements = 700, .rows = 1, .columns = 700, .decay = false},
	{.name = "second", .offset = 70700, .elements = ELEMENTS - 70700, .rows = 1, .columns = ELEMENTS - 70700, .decay = true},
};
#define TENSORS (sizeof(tensors) / sizeof(tensors[0]))

static void *allocate(size_t bytes)
{
	void *p = calloc(1, bytes);
	if (!p)
		exit(1);
	return p;
}

struct buffers {
	float *parameters, *gradients, *states[2];
};

static struct buffers fill(void)
{
	struct buffers b;
	b.parameters = allocate(ELEMENTS * sizeof(float));
	b.gradients = allocate(ELEMENTS * sizeof(float));
	b.states[0] = allocate(ELEMENTS * sizeof(float));
	b.states[1] = allocate(ELEMENTS * sizeof(float));
	for (size_t i = 0; i < ELEMENTS; i++)
		b.parameters[i] = (float)train_normal(1, i);
	return b;
}

static void release(struct buffers *b)
{
	free(b->parameters);
	free(b->gradients);
	free(b->states[0]);
	free(b->states[1]);
}

static void new_gradients(struct buffers *b, uint64_t step)
{
	/* Of very different sizes, as gradients are. */
	for (size_t i = 0; i < ELEMENTS; i++)
		b->gradients[i] = (float)(train_normal(step + 50, i) * (i % 3 == 0 ? 1e-4 : i % 3 == 1 ? 1e-2 : 3));
}

static const struct train_optimizer_config configs[] = {
	{.kind = TRAIN_SGD},
	{.kind = TRAIN_SGD, .momentum = 0.9},
	{.kind = TRAIN_SGD, .momentum = 0.9, .weight_decay = 0.01},
	{.kind = TRAIN_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1},
	{.kind = TRAIN_ADAMW, .beta1 = 0.8, .beta2 = 0.999, .epsilon = 1e-3},
};
#define CONFIGS (sizeof(configs) / sizeof(configs[0]))

/* The formulas as in the papers, f64, started from the same f32 values in each step. */
static void expected_step(const struct train_optimizer_config *c, double *p, double *m, double *v, double g, double rate, uint64_t step, bool decay)
{
	double wd = decay ? c->weight_decay : 0;
	if (c->kind == TRAIN_SGD) {
		g += wd * *p;
		if (c->momentum > 0)
			g = *m = c->momentum * *m + g;
		*p -= rate * g;
		return;
	}
	*m = c->beta1 * *m + (1 - c->beta1) * g;
	*v = c->beta2 * *v + (1 - c->beta2) * g * g;
	double mean = *m / (1 - pow(c->beta1, (double)step)), square = *v / (1 - pow(c->beta2, (double)step));
	*p -= rate * wd * *p;
	*p -= rate * mean / (sqrt(square) + c->epsilon);
}

static void test_formulas(void)
{
	const float gradient_scale = 0.5f;
	for (size_t k = 0; k < CONFIGS; k++) {
		struct buffers b = fill();
		double *p = allocate(ELEMENTS * sizeof(*p)), *m = allocate(ELEMENTS * sizeof(*m)), *v = allocate(ELEMENTS * sizeof(*v));
		for (size_t i = 0; i < ELEMENTS; i++)
			p[i] = b.parameters[i];
		for (uint64_t step = 1; step <= 12; step++) {
			double rate = 0.01 / (double)step;
			new_gradients(&b, step);
			for (size_t i = 0; i < ELEMENTS; i++)
				expected_step(&configs[k], &p[i], &m[i], &v[i], b.gradients[i] * 0.5, rate, step, i < 70000 || i >= 70700);
			train_optimizer_update(&configs[k], tensors, TENSORS, b.parameters, b.gradients, b.states, 0, ELEMENTS, rate, gradient_scale,
					       step);
		}
		double worst = 0;
		size_t at = 0;
		for (size_t i = 0; i < ELEMENTS; i++) {
			double error = fabs(b.parameters[i] - p[i]) / (fabs(p[i]) + 0.1);
			if (!(error <= worst)) {
				worst = error;
				at = i;
			}
		}
		CHECK(worst < 3e-6, "configuration %zu: element %zu is %.9g, expected %.9g", k, at, b.parameters[at], p[at]);
		/* The states are part of a checkpoint: they must be what their names say. */
		unsigned states = train_optimizer_states(&configs[k]);
		CHECK(states == (configs[k].kind == TRAIN_ADAMW ? 2 : configs[k].momentum > 0 ? 1 : 0), "configuration %zu: %u states", k, states);
		for (size_t i = 0; i < ELEMENTS; i += 97)
			for (unsigned s = 0; s < states; s++) {
				double expected = s ? v[i] : m[i];
				CHECK(fabs(b.states[s][i] - expected) <= 1e-5 * fabs(expected) + 1e-6, "configuration %zu: state %u of %zu is %.9g, expected %.9g", k, s,
				      i, b.states[s][i], expected);
			}
		release(&b);
		free(p);
		free(m);
		free(v);
	}
}

static void test_any_range_gives_the_same_bits(void)
{
	int before = train_threads();
	for (size_t k = 0; k < CONFIGS; k++) {
		struct buffers whole = fill(), parts = fill();
		for (uint64_t step = 1; step <= 5; step++) {
			new_gradients(&whole, step);
			new_gradients(&parts, step);
			train_set_threads(1);
			train_optimizer_update(&configs[k], tensors, TENSORS, whole.parameters, whole.gradients, whole.states, 0, ELEMENTS, 0.02, 0.7f, step);
			train_set_threads(3);
			/* Cuts of all sizes, across tensors and vectors. */
			size_t offset = 0;
			for (uint64_t cut = 0; offset < ELEMENTS; cut++) {
				size_t count = 1 + train_random(step, cut) % (cut % 4 == 0 ? 40000 : 100);
				if (count > ELEMENTS - offset)
					count = ELEMENTS - offset;
				float *states[2] = {parts.states[0] + offset, parts.states[1] + offset};
				train_optimizer_update(&configs[k], tensors, TENSORS, parts.parameters + offset, parts.gradients + offset, states, offset,
						       count, 0.02, 0.7f, step);
				offset += count;
			}
		}
		CHECK(memcmp(whole.parameters, parts.parameters, ELEMENTS * sizeof(float)) == 0, "configuration %zu: parameters differ", k);
		for (unsigned s = 0; s < train_optimizer_states(&configs[k]); s++)
			CHECK(memcmp(whole.states[s], parts.states[s], ELEMENTS * sizeof(float)) == 0, "configuration %zu: state %u differs", k, s);
		release(&whole);
		release(&parts);
	}
	train_set_threads(before);
}

static void check_rate(const struct train_schedule *schedule, uint64_t step, double expected)
{
	double seen = train_schedule_rate(schedule, step);
	CHECK(fabs(seen - expected) <= 1e-15 + 1e-14 * fabs(expected), "rate of step %llu is %.17g, expected %.17g", (unsigned long long)step, seen, expected);
}

static void test_schedule(void)
{
	struct train_schedule s = {.peak = 0.5, .minimum = 0.125, .warmup_steps = 10, .total_steps = 110};
	check_rate(&s, 0, 0.05);
	check_rate(&s, 4, 0.25);
	check_rate(&s, 9, 0.5);
	check_rate(&s, 10, 0.5);
	check_rate(&s, 35, 0.125 + 0.375 * 0.5 * (1 + sqrt(0.5)));
	check_rate(&s, 60, 0.3125);
	check_rate(&s, 85, 0.125 + 0.375 * 0.5 * (1 - sqrt(0.5)));
	CHECK(train_schedule_rate(&s, 109) > 0.125, "the minimum came too early");
	CHECK(train_schedule_rate(&s, 110) == 0.125, "%.17g at the end", train_schedule_rate(&s, 110));
	CHECK(train_schedule_rate(&s, UINT64_MAX) == 0.125, "%.17g far after the end", train_schedule_rate(&s, UINT64_MAX));
	for (uint64_t step = 10; step < 120; step++)
		CHECK(train_schedule_rate(&s, step + 1) <= train_schedule_rate(&s, step), "the rate rises at step %llu", (unsigned long long)step);
	s.constant = 1;
	check_rate(&s, 0, 0.05);
	check_rate(&s, 10, 0.5);
	check_rate(&s, 1000000, 0.5);
	s = (struct train_schedule){.peak = 1, .minimum = 0, .warmup_steps = 0, .total_steps = 4};
	check_rate(&s, 0, 1);
	check_rate(&s, 2, 0.5);
	check_rate(&s, 4, 0);
	/* All of the run is warm-up; no steps at all. */
	s = (struct train_schedule){.peak = 1, .minimum = 0.25, .warmup_steps = 8, .total_steps = 8};
	check_rate(&s, 7, 1);
	check_rate(&s, 8, 0.25);
	s = (struct train_schedule){.peak = 1, .minimum = 0.25, .warmup_steps = 0, .total_steps = 0};
	check_rate(&s, 0, 0.25);
	/* Warm-up longer than the run. */
	s = (struct train_schedule){.peak = 1, .minimum = 0.25, .warmup_steps = 8, .total_steps = 4};
	check_rate(&s, 3, 0.5);
	check_rate(&s, 5, 0.75);
	check_rate(&s, 8, 0.25);
}

/* The tree written down: halves at the greatest power of two of blocks. */
static double tree(const double *blocks, size_t n)
{
	if (n == 1)
		return blocks[0];
	size_t left = 1;
	while (left * 2 < n)
		left *= 2;
	return tree(blocks, left) + tree(blocks + left, n - left);
}

static void test_sum_of_squares(void)
{
	const size_t most = 3 * 1000 * 1000;
	float *values = allocate(most * sizeof(*values));
	double *blocks = allocate((most / 1024 + 1) * sizeof(*blocks));
	for (size_t i = 0; i < most; i++)
		values[i] = (float)train_random(3, i) * 0x1p-60f - 4;
	const size_t counts[] = {0, 1, 2, 15, 16, 17, 1023, 1024, 1025, 2048, 3072, 5000, 32768, 32769, 65536, 98304, 100000, 999999, 2999999, 3000000};
	int before = train_threads();
	for (size_t k = 0; k < sizeof(counts) / sizeof(counts[0]); k++) {
		size_t n = counts[k];
		train_set_threads(1);
		double seen = train_sum_of_squares(values, n), exact = 0;
		for (size_t i = 0; i < n; i++)
			exact += (double)values[i] * values[i];
		CHECK(fabs(seen - exact) <= 1e-12 * exact, "%zu elements: %.17g, expected %.17g", n, seen, exact);
		/* Blocks are what the function gives for one block; the tree over them has the documented shape. */
		for (size_t block = 0; block * 1024 < n; block++)
			blocks[block] = train_sum_of_squares(values + block * 1024, n - block * 1024 < 1024 ? n - block * 1024 : 1024);
		double expected = n ? tree(blocks, (n + 1023) / 1024) : 0;
		CHECK(seen == expected, "%zu elements: %.17g, the tree gives %.17g", n, seen, expected);
		for (int threads = 2; threads <= 4; threads++) {
			train_set_threads(threads);
			CHECK(train_sum_of_squares(values, n) == seen, "%zu elements: %d threads give other bits", n, threads);
		}
	}
	/* One block, lane by lane: 16 sums of every 16th element, then halves. */
	double lanes[16] = {0};
	for (size_t i = 0; i < 1024; i++)
		lanes[i % 16] += (double)values[i] * values[i];
	for (size_t half = 8; half; half /= 2)
		for (size_t i = 0; i < half; i++)
			lanes[i] += lanes[i + half];
	CHECK(train_sum_of_squares(values, 1024) == lanes[0], "a block sums in another order");
	values[70000] = INFINITY;
	CHECK(!isfinite(train_sum_of_squares(values, 100000)), "infinity is not seen");
	values[70000] = NAN;
	CHECK(isnan(train_sum_of_squares(values, 100000)), "not-a-number is not seen");
	/* Beyond f32's range, not beyond f64's. */
	values[70000] = 3e38f;
	CHECK(isfinite(train_sum_of_squares(values, 100000)), "the square of 3e38 overflows");
	if (getenv("LONG")) {
		/* More subtrees than fit their table: their size doubles. */
		size_t n = 80 * 1000 * 1000;
		float *large = allocate(n * sizeof(*large));
		double *large_blocks = allocate((n / 1024 + 1) * sizeof(*large_blocks));
		for (size_t i = 0; i < n; i++)
			large[i] = values[i % 65521];
		for (size_t block = 0; block * 1024 < n; block++)
			large_blocks[block] = train_sum_of_squares(large + block * 1024, n - block * 1024 < 1024 ? n - block * 1024 : 1024);
		CHECK(train_sum_of_squares(large, n) == tree(large_blocks, (n + 1023) / 1024), "a large buffer sums in another order");
		free(large);
		free(large_blocks);
	}
	train_set_threads(before);
	free(values);
	free(blocks);
}

int main(void)
{
	test_formulas();
	test_any_range_gives_the_same_bits();
	test_schedule();
	test_sum_of_squares();
	return check_result();
}
