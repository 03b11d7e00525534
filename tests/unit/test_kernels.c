/*
 * Kernels against the C library in f64, with equal bits for every instruction set of this CPU; matrix products of every
 * orientation; functions that are the same on every machine; and the parallel loop, under load and from several threads.
 */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "tests/unit/check.h"
#include "trainer/kernels.h"
#include "trainer/matmul.h"
#include "trainer/model.h"
#include "trainer/portable.h"
#include "trainer/threads.h"

#define ROOM 4
static const struct train_kernels *sets[ROOM];
static size_t set_count;

static float *random_values(size_t n, uint64_t seed, double scale)
{
	float *p = calloc(n + 1, sizeof(*p));
	if (!p)
		exit(1);
	for (size_t i = 0; i < n; i++)
		p[i] = (float)(scale * train_normal(seed, i));
	return p;
}

static double gelu(double x)
{
	return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(double x)
{
	double t = tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
	return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

static void test_exponential(void)
{
	for (size_t k = 0; k < set_count; k++) {
		double worst = 0;
		float x[1000], at = 0;
		for (int block = 0; block < 175; block++) {
			for (int i = 0; i < 1000; i++)
				x[i] = -87 + (float)(block * 1000 + i) / 1000;
			float original[1000];
			memcpy(original, x, sizeof(x));
			sets[k]->exponentials(x, 1000, 0, 1);
			for (int i = 0; i < 1000; i++) {
				double error = fabs(x[i] / exp(original[i]) - 1);
				if (!(error <= worst)) {
					worst = error;
					at = original[i];
				}
			}
		}
		CHECK(worst < 2e-7, "%s: relative error %.3g at %g", sets[k]->name, worst, at);
		float special[] = {-INFINITY, -1000, INFINITY, NAN, 0, -0.0f};
		sets[k]->exponentials(special, 6, 0, 1);
		CHECK(special[0] >= 0 && special[0] < 2e-38f && special[1] < 2e-38f, "%s: %g %g", sets[k]->name, special[0], special[1]);
		CHECK(special[2] > 1e38f && isnan(special[3]) && special[4] == 1 && special[5] == 1, "%s: %g %g %g", sets[k]->name, special[2], special[3],
		      special[4]);
	}
}

static void test_gelu(void)
{
	for (size_t k = 0; k < set_count; k++) {
		enum { n = 2001 };
		float x[n], out[n], slope[n], zero[n] = {0};
		for (int i = 0; i < n; i++) {
			x[i] = (float)(i - 1000) / 100;
			slope[i] = 1;
		}
		sets[k]->bias_gelu(out, x, zero, 1, n, n);
		sets[k]->gelu_backward(slope, x, 1, n, n);
		for (int i = 0; i < n; i++) {
			CHECK(fabs(out[i] - gelu(x[i])) <= 2e-6 * fabs(gelu(x[i])) + 1e-12, "%s: gelu(%g) = %.9g, expected %.9g", sets[k]->name, x[i],
			      out[i], gelu(x[i]));
			CHECK(fabs(slope[i] - gelu_slope(x[i])) <= 3e-7, "%s: gelu'(%g) = %.9g, expected %.9g", sets[k]->name, x[i], slope[i],
			      gelu_slope(x[i]));
		}
		float far[] = {1e6f, -1e6f, NAN}, far_out[3], far_slope[] = {1, 1, 1};
		sets[k]->bias_gelu(far_out, far, zero, 1, 3, 3);
		sets[k]->gelu_backward(far_slope, far, 1, 3, 3);
		CHECK(far_out[0] == 1e6f && fabsf(far_out[1]) < 1e-20f && isnan(far_out[2]), "%s: gelu far out: %g %g %g", sets[k]->name, far_out[0],
		      far_out[1], far_out[2]);
		CHECK(far_slope[0] == 1 && fabsf(far_slope[1]) < 1e-12f && isnan(far_slope[2]), "%s: its slope: %g %g %g", sets[k]->name, far_slope[0],
		      far_slope[1], far_slope[2]);
	}
}

static void test_softmax(void)
{
	for (size_t k = 0; k < set_count; k++)
		for (size_t n = 1; n < 70; n++) {
			float *x = random_values(n, n, 20), *p = random_values(n, n, 20), *q = random_values(n, n, 20), greatest, inverse, same[2];
			x[n / 2] = p[n / 2] = q[n / 2] = 90; /* exp(90) alone would overflow */
			float sum = sets[k]->softmax_statistics(x, n, &greatest, &inverse);
			sets[k]->exponentials(p, n, greatest, inverse);
			double expected = 0, total = 0;
			for (size_t i = 0; i < n; i++)
				expected += exp((double)x[i] - 90);
			CHECK(greatest >= 90 && fabs(sum / expected * exp(greatest - 90.0) - 1) < 1e-6, "%s, %zu: sum %.9g", sets[k]->name, n, sum);
			for (size_t i = 0; i < n; i++)
				total += p[i];
			CHECK(fabs(total - 1) < 1e-6, "%s: %zu probabilities sum to %.9g", sets[k]->name, n, total);
			sets[k]->softmax(q, n, &same[0], &same[1]);
			CHECK(same[0] == greatest && same[1] == inverse && memcmp(p, q, n * sizeof(*p)) == 0, "%s, %zu: softmax has other bits", sets[k]->name, n);
			x[n - 1] = NAN;
			CHECK(isnan(sets[k]->softmax_statistics(x, n, &greatest, &inverse)), "%s, %zu: not-a-number is not seen", sets[k]->name, n);
			free(x);
			free(p);
			free(q);
		}
}

/* Runs every kernel on n columns with one set; out: what they wrote, one after the other. Returns its length. */
static size_t run_all(const struct train_kernels *k, size_t n, float *out)
{
	const size_t rows = 70;
	float *start = out, *x = random_values(rows * n, 1, 1), *y = random_values(rows * n, 2, 1), *w = random_values(n, 3, 1), *b = random_values(n, 4, 1);
	float *mean = out, *rstd = out + rows;
	out += 2 * rows;
	k->layernorm(out, mean, rstd, x, w, b, rows, n);
	out += rows * n;
	memcpy(out, x, rows * n * sizeof(*x));
	k->layernorm_backward(out, y, x, w, mean, rstd, rows, n);
	out += rows * n;
	memcpy(out, w, n * sizeof(*w));
	memcpy(out + n, b, n * sizeof(*b));
	k->layernorm_parameters(out, out + n, y, x, mean, rstd, rows, n, n);
	out += 2 * n;
	memcpy(out, w, n * sizeof(*w));
	k->column_sums(out, x, rows, n, n);
	out += n;
	memcpy(out, x, rows * n * sizeof(*x));
	k->add_bias(out, b, y, rows, n, n);
	out += rows * n;
	memcpy(out, x, rows * n * sizeof(*x));
	k->bias_gelu(out + rows * n, out, b, rows, n, n);
	out += 2 * rows * n;
	memcpy(out, x, rows * n * sizeof(*x));
	k->gelu_backward(out, y, rows, n, n);
	out += rows * n;
	memcpy(out, x, n * sizeof(*x));
	k->add(out, y, n);
	k->sum(out + n, x, y, n);
	out += 2 * n;
	memcpy(out, x, n * sizeof(*x));
	out[n] = k->softmax_statistics(x, n, &out[n + 1], &out[n + 2]);
	k->softmax(out, n, &out[n + 3], &out[n + 4]);
	out[n + 5] = k->dot(x, y, n);
	out += n + 6;
	memcpy(out, x, n * sizeof(*x));
	k->softmax_backward(out, y, n, 0.25f, 0.7f);
	out += n;
	memcpy(out, x, n * sizeof(*x));
	memcpy(out + n, y, n * sizeof(*y));
	k->sgd(out, w, out + n, n, 0.1f, 0.9f, 0.01f, 0.3f);
	out += 2 * n;
	memcpy(out, x, n * sizeof(*x));
	memcpy(out + n, y, n * sizeof(*y));
	for (size_t i = 0; i < n; i++)
		out[2 * n + i] = y[n + i] * y[n + i];
	k->adamw(out, w, out + n, out + 2 * n, n, &(struct train_adamw){0.9f, 0.1f, 0.99f, 0.01f, 1e-3f, 0.3f, 1e-8f, 0.999f, 0.5f});
	out += 3 * n;
	double squares = k->sum_of_squares(x, n);
	memcpy(out, &squares, sizeof(squares));
	out += 2;
	free(x);
	free(y);
	free(w);
	free(b);
	return (size_t)(out - start);
}

static void test_sets_agree(void)
{
	const size_t sizes[] = {1, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 80, 127, 128, 200};
	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
		size_t n = sizes[s], room = 200 + 8 * 70 * n + 40 * n;
		float *expected = random_values(room, 9, 1), *seen = random_values(room, 9, 1);
		size_t length = run_all(sets[set_count - 1], n, expected);
		CHECK(length <= room, "%zu written, room for %zu", length, room);
		for (size_t k = 0; k + 1 < set_count; k++) {
			memset(seen, 0, room * sizeof(*seen));
			run_all(sets[k], n, seen);
			size_t at = 0;
			while (at < length && memcmp(&seen[at], &expected[at], sizeof(*seen)) == 0)
				at++;
			CHECK(at == length, "n = %zu: %s and %s differ at %zu of %zu: %a, %a", n, sets[k]->name, sets[set_count - 1]->name, at, length,
			      seen[at], expected[at]);
		}
		free(expected);
		free(seen);
	}
}

/* A column's sum must not depend on how many columns a task has: tasks at the edge have fewer. */
static void test_columns_are_independent(void)
{
	enum { rows = 150, n = 133 };
	float *x = random_values(rows * n, 1, 1), *y = random_values(rows * n, 2, 1), *mean = random_values(rows, 3, 1), *rstd = random_values(rows, 4, 1);
	for (size_t k = 0; k < set_count; k++) {
		float whole[3][n] = {0}, alone[3][n] = {0};
		sets[k]->column_sums(whole[0], x, rows, n, n);
		sets[k]->layernorm_parameters(whole[1], whole[2], y, x, mean, rstd, rows, n, n);
		for (size_t i = 0; i < n; i++) {
			sets[k]->column_sums(alone[0] + i, x + i, rows, 1, n);
			sets[k]->layernorm_parameters(alone[1] + i, alone[2] + i, y + i, x + i, mean, rstd, rows, 1, n);
			double sum = 0;
			for (size_t r = 0; r < rows; r++)
				sum += x[r * n + i];
			CHECK(fabs(whole[0][i] - sum) < 1e-5, "%s: column %zu sums to %g, expected %g", sets[k]->name, i, whole[0][i], sum);
		}
		CHECK(memcmp(whole, alone, sizeof(whole)) == 0, "%s: a column's bits depend on its neighbours", sets[k]->name);
	}
	free(x);
	free(y);
	free(mean);
	free(rstd);
}

static atomic_size_t finished;

static void count_finished(const struct train_matmul *p, size_t row, size_t rows, size_t column, size_t columns)
{
	for (size_t r = row; r < row + rows; r++)
		for (size_t j = column; j < column + columns; j++)
			p->c[r * p->ldc + j] += 1000;
	atomic_fetch_add(&finished, rows * columns);
}

static void check_product(size_t m, size_t n, size_t k, bool ta, bool tb, bool add)
{
	size_t lda = (ta ? m : k) + 3, ldb = (tb ? k : n) + 5, ldc = n + 2;
	float *a = random_values((ta ? k : m) * lda, 1, 1), *b = random_values((tb ? n : k) * ldb, 2, 1), *c = random_values(m * ldc, 3, 1),
	      *before = random_values(m * ldc, 3, 1);
	if (!add)
		for (size_t i = 0; i < m * ldc; i++)
			c[i] = i % ldc < n ? NAN : before[i]; /* beta 0: what was there is not read */
	struct train_matmul product = {.a_transposed = ta, .b_transposed = tb, .m = m, .n = n, .k = k, .alpha = 0.5f, .a = a, .lda = lda, .b = b,
				       .ldb = ldb, .beta = add ? 1 : 0, .c = c, .ldc = ldc, .finish = count_finished};
	atomic_store(&finished, 0);
	CHECK_OK(train_matmul_run(&product));
	CHECK(atomic_load(&finished) == m * n, "finish saw %zu elements of %zu", (size_t)atomic_load(&finished), m * n);
	double worst = 0;
	for (size_t r = 0; r < m; r++) {
		for (size_t j = 0; j < n; j++) {
			double sum = 0;
			for (size_t i = 0; i < k; i++)
				sum += (double)a[ta ? i * lda + r : r * lda + i] * b[tb ? j * ldb + i : i * ldb + j];
			double error = fabs(c[r * ldc + j] - (0.5 * sum + (add ? before[r * ldc + j] : 0) + 1000));
			if (!(error <= worst))
				worst = error;
		}
		CHECK(memcmp(c + r * ldc + n, before + r * ldc + n, 2 * sizeof(*c)) == 0, "row %zu: written past its end", r);
	}
	CHECK(worst < 2e-4, "(%zu, %zu, %zu) %d %d %d: error %g", m, n, k, ta, tb, add, worst);
	free(a);
	free(b);
	free(c);
	free(before);
}

static void test_products(void)
{
	const size_t shapes[][3] = {{1, 1, 1}, {1, 7, 3}, {64, 64, 16}, {65, 129, 40}, {300, 70, 33}, {1000, 50, 10}, {70, 1100, 20}, {5, 3, 400}};
	for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++)
		for (int form = 0; form < 8; form++)
			check_product(shapes[s][0], shapes[s][1], shapes[s][2], form & 1, form & 2, form & 4);
}

static void test_portable_functions(void)
{
	for (int i = 0; i < 20000; i++) {
		double x = exp((i - 10000) * 0.07), turns = (i - 10000) / 3331.0;
		CHECK(fabs(train_log(x) - log(x)) <= 4e-16 * fabs(log(x)), "log(%.17g) = %.17g, expected %.17g", x, train_log(x), log(x));
		CHECK(fabs(train_cos_turns(turns) - cos(2 * M_PI * turns)) < 1e-14, "cos of %.17g turns", turns);
		CHECK(fabs(train_sin_turns(turns) - sin(2 * M_PI * turns)) < 1e-14, "sin of %.17g turns", turns);
		double u = i / 20000.0;
		CHECK(fabs(train_cos_turns(u) - cos(2 * M_PI * u)) < 1e-15, "cos of %.17g turns", u);
	}
	CHECK(train_cos_turns(0) == 1 && train_cos_turns(0.5) == -1 && train_cos_turns(0.25) == 0 && train_sin_turns(-0.25) == -1, "quarters");
	CHECK(train_log(1) == 0 && train_log(0) == -INFINITY && isnan(train_log(-1)) && isnan(train_log(NAN)) && train_log(INFINITY) == INFINITY, "log's edges");
	CHECK(fabs(train_log(5e-324) - log(5e-324)) < 1e-12, "log of a subnormal: %.17g", train_log(5e-324));
	CHECK(train_power(0.9, 0) == 1 && train_power(0.5, 1000) == ldexp(1, -1000) && fabs(train_power(0.999, 100000) / pow(0.999, 100000) - 1) < 1e-11,
	      "powers");
	double sum = 0, squares = 0, product = 0;
	const int n = 200000;
	for (int i = 0; i < n; i++) {
		double x = train_normal(7, (uint64_t)i), y = train_normal(7, (uint64_t)i ^ 1), z = train_normal(8, (uint64_t)i);
		sum += x;
		squares += x * x;
		product += x * y + x * z;
	}
	CHECK(fabs(sum / n) < 0.01 && fabs(squares / n - 1) < 0.015 && fabs(product / n) < 0.02, "mean %g, variance %g, correlation %g", sum / n, squares / n,
	      product / n);
}

/* ---- The parallel loop ---- */

#define INDICES 1000

struct loop {
	atomic_int done[INDICES];
	atomic_int busy[8];
	unsigned limit;
	size_t count;
	atomic_int wrong;
};

static void loop_task(void *context, size_t index, unsigned thread)
{
	struct loop *loop = context;
	if (index >= loop->count || thread >= loop->limit || atomic_fetch_add(&loop->busy[thread & 7], 1) != 0)
		atomic_fetch_add(&loop->wrong, 1);
	atomic_fetch_add(&loop->done[index % INDICES], 1);
	for (volatile int i = 0; i < 50; i++)
		;
	atomic_fetch_sub(&loop->busy[thread & 7], 1);
}

static void nested_task(void *context, size_t index, unsigned thread)
{
	(void)index;
	struct loop inner = {.limit = thread + 1, .count = 3};
	train_parallel(8, 3, loop_task, &inner);
	if (atomic_load(&inner.wrong) || atomic_load(&inner.done[0]) != 1 || atomic_load(&inner.done[2]) != 1)
		atomic_fetch_add((atomic_int *)context, 1);
}

static void *loops(void *argument)
{
	(void)argument;
	for (int repeat = 0; repeat < 2000; repeat++) {
		struct loop loop = {.limit = 1 + (unsigned)repeat % 5, .count = (size_t)repeat * 7 % 40 + (repeat % 100 == 0 ? 900 : 0)};
		train_parallel(loop.limit, loop.count, loop_task, &loop);
		size_t wrong = 0;
		for (size_t i = 0; i < INDICES; i++)
			wrong += atomic_load(&loop.done[i]) != (i < loop.count);
		if (wrong || atomic_load(&loop.wrong)) {
			CHECK(false, "loop %d of %zu: %zu indices not done once, %d broken promises", repeat, loop.count, wrong, atomic_load(&loop.wrong));
			break;
		}
	}
	atomic_int broken = 0;
	train_parallel(8, 20, nested_task, &broken);
	CHECK(atomic_load(&broken) == 0, "%d nested loops went wrong", atomic_load(&broken));
	return NULL;
}

static void test_parallel(void)
{
	int before = train_threads();
	for (int threads = 1; threads <= 4; threads++) {
		train_set_threads(threads);
		CHECK(train_threads() == threads, "%d threads", train_threads());
		loops(NULL);
	}
	pthread_t ranks[3];
	for (int i = 0; i < 3; i++)
		if (pthread_create(&ranks[i], NULL, loops, NULL) != 0)
			exit(1);
	for (int i = 0; i < 3; i++)
		pthread_join(ranks[i], NULL);
	train_set_threads(0);
	CHECK(train_threads() == 1, "0 threads became %d", train_threads());
	train_set_threads(before);
}

int main(void)
{
	set_count = train_kernels_all(sets, ROOM);
	for (size_t k = 0; k < set_count; k++)
		printf("%s%s", sets[k]->name, k + 1 < set_count ? ", " : "\n");
	CHECK(train_kernels() == sets[0], "the best set is not chosen");
	test_exponential();
	test_gelu();
	test_softmax();
	test_sets_agree();
	test_columns_are_independent();
	test_products();
	test_portable_functions();
	test_parallel();
	return check_result();
}
