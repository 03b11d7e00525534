/*
 * The model's loss and gradients against a plain f64 implementation of the same mathematics, which is itself checked by finite
 * differences; and what the training loop relies on: accumulation, completed ranges, equal bits, refusals.
 */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "tests/unit/check.h"
#include "trainer/model.h"
#include "trainer/optimizer.h"
#include "trainer/portable.h"

/* ---- The reference: one loop per formula ---- */

struct shape {
	size_t batch, tokens, layers, heads, channels, vocabulary;
};

static double *doubles(size_t n)
{
	double *p = calloc(n ? n : 1, sizeof(*p));
	if (!p)
		exit(1);
	return p;
}

static void *aligned(size_t bytes)
{
	void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
	if (!p)
		exit(1);
	memset(p, 0, (bytes + 63) / 64 * 64);
	return p;
}

/* out (rows, n) = in (rows, k) w (k, n) + b */
static void linear(double *out, const double *in, const double *w, const double *b, size_t rows, size_t k, size_t n)
{
	for (size_t r = 0; r < rows; r++) {
		for (size_t j = 0; j < n; j++)
			out[r * n + j] = b[j];
		for (size_t i = 0; i < k; i++)
			for (size_t j = 0; j < n; j++)
				out[r * n + j] += in[r * k + i] * w[i * n + j];
	}
}

static void linear_backward(double *din, double *dw, double *db, const double *dout, const double *in, const double *w, size_t rows, size_t k,
			    size_t n)
{
	for (size_t r = 0; r < rows; r++) {
		for (size_t j = 0; j < n; j++)
			db[j] += dout[r * n + j];
		for (size_t i = 0; i < k; i++)
			for (size_t j = 0; j < n; j++) {
				din[r * k + i] += dout[r * n + j] * w[i * n + j];
				dw[i * n + j] += in[r * k + i] * dout[r * n + j];
			}
	}
}

static void normalize(double *normal, double *deviation, const double *x, size_t n)
{
	double mean = 0, variance = 0;
	for (size_t i = 0; i < n; i++)
		mean += x[i] / (double)n;
	for (size_t i = 0; i < n; i++)
		variance += (x[i] - mean) * (x[i] - mean) / (double)n;
	*deviation = sqrt(variance + 1e-5);
	for (size_t i = 0; i < n; i++)
		normal[i] = (x[i] - mean) / *deviation;
}

static void layernorm(double *out, const double *x, const double *w, const double *b, size_t rows, size_t n)
{
	for (size_t r = 0; r < rows; r++) {
		double deviation;
		normalize(out + r * n, &deviation, x + r * n, n);
		for (size_t i = 0; i < n; i++)
			out[r * n + i] = out[r * n + i] * w[i] + b[i];
	}
}

static void layernorm_backward(double *dx, double *dw, double *db, const double *dout, const double *x, const double *w, size_t rows, size_t n)
{
	double *normal = doubles(n);
	for (size_t r = 0; r < rows; r++) {
		double deviation, mean = 0, along = 0;
		normalize(normal, &deviation, x + r * n, n);
		for (size_t i = 0; i < n; i++) {
			double g = dout[r * n + i] * w[i];
			mean += g / (double)n;
			along += g * normal[i] / (double)n;
			dw[i] += dout[r * n + i] * normal[i];
			db[i] += dout[r * n + i];
		}
		for (size_t i = 0; i < n; i++)
			dx[r * n + i] += (dout[r * n + i] * w[i] - mean - normal[i] * along) / deviation;
	}
	free(normal);
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

/* Attention of one head, all of one row; strides in elements. probabilities (T, T). */
static void attention(double *out, double *probabilities, const double *qkv, size_t tokens, size_t channels, size_t size)
{
	for (size_t t = 0; t < tokens; t++) {
		double *p = probabilities + t * tokens, sum = 0;
		for (size_t s = 0; s <= t; s++) {
			double dot = 0;
			for (size_t i = 0; i < size; i++)
				dot += qkv[t * 3 * channels + i] * qkv[s * 3 * channels + channels + i];
			p[s] = exp(dot / sqrt((double)size));
			sum += p[s];
		}
		for (size_t s = 0; s <= t; s++) {
			p[s] /= sum;
			for (size_t i = 0; i < size; i++)
				out[t * channels + i] += p[s] * qkv[s * 3 * channels + 2 * channels + i];
		}
	}
}

static void attention_backward(double *dqkv, const double *dout, const double *probabilities, const double *qkv, size_t tokens, size_t channels,
			       size_t size)
{
	double *dp = doubles(tokens);
	size_t c = channels;
	for (size_t t = 0; t < tokens; t++) {
		const double *p = probabilities + t * tokens;
		double mean = 0;
		for (size_t s = 0; s <= t; s++) {
			dp[s] = 0;
			for (size_t i = 0; i < size; i++) {
				dp[s] += dout[t * c + i] * qkv[s * 3 * c + 2 * c + i];
				dqkv[s * 3 * c + 2 * c + i] += p[s] * dout[t * c + i];
			}
			mean += p[s] * dp[s];
		}
		for (size_t s = 0; s <= t; s++)
			for (size_t i = 0; i < size; i++) {
				double d = p[s] * (dp[s] - mean) / sqrt((double)size);
				dqkv[t * 3 * c + i] += d * qkv[s * 3 * c + c + i];
				dqkv[s * 3 * c + c + i] += d * qkv[t * 3 * c + i];
			}
	}
	free(dp);
}

/* Loss, and with gradients != NULL also the gradients (added). Parameters in the model's layout, whose offsets are taken from it. */
static double reference(const struct shape *s, const struct train_tensor *tensors, const double *p, const uint16_t *inputs, const uint16_t *targets,
			double *gradients)
{
	size_t rows = s->batch * s->tokens, c = s->channels, v = s->vocabulary, size = c / s->heads, width = 24 * c;
	/* Per layer: in C | ln1 C | qkv 3C | attended C | middle C | ln2 C | up 4C | gelu 4C; each (rows, width). */
	double *store = doubles(rows * width * s->layers), *stream = doubles(rows * c), *final = doubles(rows * c);
	double *probabilities = doubles(s->layers * s->batch * s->heads * s->tokens * s->tokens);
	for (size_t r = 0; r < rows; r++)
		for (size_t i = 0; i < c; i++)
			stream[r * c + i] = p[inputs[r] * c + i] + p[tensors[1].offset + r % s->tokens * c + i];
#define IN (a)
#define LN1 (a + rows * c)
#define QKV (a + rows * 2 * c)
#define ATTENDED (a + rows * 5 * c)
#define MIDDLE (a + rows * 6 * c)
#define LN2 (a + rows * 7 * c)
#define UP (a + rows * 8 * c)
#define GELU (a + rows * 12 * c)
#define PROBABILITIES (probabilities + ((l * s->batch + b) * s->heads + h) * s->tokens * s->tokens)
	for (size_t l = 0; l < s->layers; l++) {
		double *a = store + l * rows * width;
		const struct train_tensor *t = tensors + 2 + 12 * l;
		memcpy(IN, stream, rows * c * sizeof(*stream));
		layernorm(LN1, IN, p + t[0].offset, p + t[1].offset, rows, c);
		linear(QKV, LN1, p + t[2].offset, p + t[3].offset, rows, c, 3 * c);
		for (size_t b = 0; b < s->batch; b++)
			for (size_t h = 0; h < s->heads; h++)
				attention(ATTENDED + b * s->tokens * c + h * size, PROBABILITIES, QKV + b * s->tokens * 3 * c + h * size, s->tokens, c,
					  size);
		linear(MIDDLE, ATTENDED, p + t[4].offset, p + t[5].offset, rows, c, c);
		for (size_t i = 0; i < rows * c; i++)
			MIDDLE[i] += IN[i];
		layernorm(LN2, MIDDLE, p + t[6].offset, p + t[7].offset, rows, c);
		linear(UP, LN2, p + t[8].offset, p + t[9].offset, rows, c, 4 * c);
		for (size_t i = 0; i < rows * 4 * c; i++)
			GELU[i] = gelu(UP[i]);
		linear(stream, GELU, p + t[10].offset, p + t[11].offset, rows, 4 * c, c);
		for (size_t i = 0; i < rows * c; i++)
			stream[i] += MIDDLE[i];
	}
	const struct train_tensor *ln_f = tensors + 2 + 12 * s->layers;
	layernorm(final, stream, p + ln_f[0].offset, p + ln_f[1].offset, rows, c);

	double loss = 0, *logits = doubles(v), *d_final = doubles(rows * c);
	for (size_t r = 0; r < rows; r++) {
		double sum = 0;
		for (size_t j = 0; j < v; j++) {
			logits[j] = 0;
			for (size_t i = 0; i < c; i++)
				logits[j] += final[r * c + i] * p[j * c + i];
			sum += exp(logits[j]);
		}
		loss -= (logits[targets[r]] - log(sum)) / (double)rows;
		for (size_t j = 0; gradients && j < v; j++) {
			double d = (exp(logits[j]) / sum - (j == targets[r])) / (double)rows;
			for (size_t i = 0; i < c; i++) {
				d_final[r * c + i] += d * p[j * c + i];
				gradients[j * c + i] += d * final[r * c + i];
			}
		}
	}
	if (gradients) {
		double *d = doubles(rows * c), *g = gradients;
		layernorm_backward(d, g + ln_f[0].offset, g + ln_f[1].offset, d_final, stream, p + ln_f[0].offset, rows, c);
		for (size_t l = s->layers; l-- > 0;) {
			double *a = store + l * rows * width;
			const struct train_tensor *t = tensors + 2 + 12 * l;
			double *d_wide = doubles(rows * 4 * c), *d_ln2 = doubles(rows * c), *d_attended = doubles(rows * c), *d_qkv = doubles(rows * 3 * c),
			       *d_ln1 = doubles(rows * c);
			linear_backward(d_wide, g + t[10].offset, g + t[11].offset, d, GELU, p + t[10].offset, rows, 4 * c, c);
			for (size_t i = 0; i < rows * 4 * c; i++)
				d_wide[i] *= gelu_slope(UP[i]);
			linear_backward(d_ln2, g + t[8].offset, g + t[9].offset, d_wide, LN2, p + t[8].offset, rows, c, 4 * c);
			layernorm_backward(d, g + t[6].offset, g + t[7].offset, d_ln2, MIDDLE, p + t[6].offset, rows, c);
			linear_backward(d_attended, g + t[4].offset, g + t[5].offset, d, ATTENDED, p + t[4].offset, rows, c, c);
			for (size_t b = 0; b < s->batch; b++)
				for (size_t h = 0; h < s->heads; h++)
					attention_backward(d_qkv + b * s->tokens * 3 * c + h * size, d_attended + b * s->tokens * c + h * size,
							   PROBABILITIES, QKV + b * s->tokens * 3 * c + h * size, s->tokens, c, size);
			linear_backward(d_ln1, g + t[2].offset, g + t[3].offset, d_qkv, LN1, p + t[2].offset, rows, c, 3 * c);
			layernorm_backward(d, g + t[0].offset, g + t[1].offset, d_ln1, IN, p + t[0].offset, rows, c);
			free(d_wide);
			free(d_ln2);
			free(d_attended);
			free(d_qkv);
			free(d_ln1);
		}
		for (size_t r = 0; r < rows; r++)
			for (size_t i = 0; i < c; i++) {
				g[inputs[r] * c + i] += d[r * c + i];
				g[tensors[1].offset + r % s->tokens * c + i] += d[r * c + i];
			}
		free(d);
	}
	free(store);
	free(stream);
	free(final);
	free(probabilities);
	free(logits);
	free(d_final);
	return loss;
}

/* ---- What the tests share ---- */

struct fixture {
	struct shape shape;
	struct train_model *model;
	const struct train_tensor *tensors;
	size_t tensor_count, elements;
	float *parameters, *gradients;
	uint16_t *inputs, *targets;
};

/* A model with parameters that make every part matter: biases and LayerNorm away from 0 and 1, logits of a few units. */
static struct fixture setup(struct shape shape, uint64_t seed)
{
	struct fixture f = {.shape = shape};
	struct train_model_config config = {.vocabulary = (int64_t)shape.vocabulary, .context = (int64_t)shape.tokens + 3, .layers = (int64_t)shape.layers,
					    .heads = (int64_t)shape.heads, .channels = (int64_t)shape.channels};
	enum st_status status = train_model_create(&config, shape.batch, shape.tokens, &f.model);
	if (status != ST_OK) {
		fprintf(stderr, "create: %s\n", st_message());
		exit(1);
	}
	f.tensor_count = train_model_tensors(f.model, &f.tensors);
	f.elements = train_model_parameters(f.model);
	f.parameters = aligned(f.elements * sizeof(float));
	f.gradients = aligned(f.elements * sizeof(float));
	train_model_bind(f.model, f.parameters, f.gradients);
	train_model_initialize(f.model, seed);
	double spread = 1.0 / sqrt((double)shape.channels);
	for (size_t i = 0; i < f.elements; i++)
		f.parameters[i] += (float)(spread * train_normal(seed + 1000, i));
	size_t rows = shape.batch * shape.tokens;
	f.inputs = aligned(rows * sizeof(uint16_t));
	f.targets = aligned(rows * sizeof(uint16_t));
	for (size_t i = 0; i < rows; i++) {
		f.inputs[i] = (uint16_t)(train_random(seed, 2 * i) % shape.vocabulary);
		f.targets[i] = (uint16_t)(train_random(seed, 2 * i + 1) % shape.vocabulary);
	}
	/* The ends of the vocabulary, and a token that stands twice. */
	f.inputs[0] = (uint16_t)(shape.vocabulary - 1);
	f.targets[rows - 1] = (uint16_t)(shape.vocabulary - 1);
	if (rows > 2)
		f.inputs[2] = f.inputs[1] = 0;
	return f;
}

static void teardown(struct fixture *f)
{
	train_model_free(f->model);
	free(f->parameters);
	free(f->gradients);
	free(f->inputs);
	free(f->targets);
}

static double run(struct fixture *f, float scale, train_completed *completed, void *context)
{
	double loss = NAN;
	CHECK_OK(train_model_forward(f->model, f->inputs, f->targets, f->shape.batch, f->shape.tokens, &loss));
	train_model_backward(f->model, scale, completed, context);
	return loss;
}

static void clear_gradients(struct fixture *f)
{
	memset(f->gradients, 0, f->elements * sizeof(float));
}

static double *as_doubles(const float *values, size_t n)
{
	double *p = doubles(n);
	for (size_t i = 0; i < n; i++)
		p[i] = values[i];
	return p;
}

static struct shape shape_of(size_t batch, size_t tokens, size_t layers, size_t heads, size_t channels, size_t vocabulary)
{
	return (struct shape){batch, tokens, layers, heads, channels, vocabulary};
}

/* ---- Tests ---- */

static void test_reference_by_finite_differences(void)
{
	struct fixture f = setup(shape_of(2, 5, 2, 3, 12, 11), 5);
	double *p = as_doubles(f.parameters, f.elements), *g = doubles(f.elements), *moved = doubles(f.elements);
	reference(&f.shape, f.tensors, p, f.inputs, f.targets, g);
	const double epsilon = 1e-5;
	for (size_t t = 0; t < f.tensor_count; t++) {
		/* Along a random direction in this tensor alone: error epsilon^2 and 1e-16 / epsilon, so about 1e-10. */
		double expected = 0, size = 0;
		double loss[2];
		for (int side = 0; side < 2; side++) {
			memcpy(moved, p, f.elements * sizeof(*p));
			for (size_t i = f.tensors[t].offset; i < f.tensors[t].offset + f.tensors[t].elements; i++) {
				double direction = train_normal(77, i);
				moved[i] += (side ? epsilon : -epsilon) * direction;
				if (side) {
					expected += direction * g[i];
					size += g[i] * g[i];
				}
			}
			loss[side] = reference(&f.shape, f.tensors, moved, f.inputs, f.targets, NULL);
		}
		double seen = (loss[1] - loss[0]) / (2 * epsilon);
		CHECK(fabs(seen - expected) < 1e-6 * sqrt(size) + 1e-9, "%s: %.12g by differences, %.12g by backward", f.tensors[t].name, seen,
		      expected);
	}
	free(p);
	free(g);
	free(moved);
	teardown(&f);
}

/* The f32 model's own loss along its own gradient: what a training step relies on. */
static void test_gradient_by_finite_differences(void)
{
	struct fixture f = setup(shape_of(3, 9, 2, 2, 16, 23), 6);
	run(&f, 1, NULL, NULL);
	float *start = aligned(f.elements * sizeof(float));
	memcpy(start, f.parameters, f.elements * sizeof(float));
	for (size_t t = 0; t < f.tensor_count; t++) {
		const struct train_tensor *tensor = &f.tensors[t];
		double norm = 0;
		for (size_t i = tensor->offset; i < tensor->offset + tensor->elements; i++)
			norm += (double)f.gradients[i] * f.gradients[i];
		norm = sqrt(norm);
		/* A step that moves the loss by 0.01: its rounding of 1e-7 is 1e-5 of that, and curvature of the third order little. */
		double step = 0.01 / norm, limit = 0.05;
		if (step > limit)
			step = limit;
		double loss[2];
		for (int side = 0; side < 2; side++) {
			for (size_t i = tensor->offset; i < tensor->offset + tensor->elements; i++)
				f.parameters[i] = (float)(start[i] + (side ? step : -step) * f.gradients[i] / norm);
			CHECK_OK(train_model_forward(f.model, f.inputs, f.targets, f.shape.batch, f.shape.tokens, &loss[side]));
		}
		memcpy(f.parameters, start, f.elements * sizeof(float));
		double seen = (loss[1] - loss[0]) / (2 * step);
		CHECK(fabs(seen - norm) < 4e-3 * norm + 1e-5, "%s: slope %.6g, norm of the gradient %.6g", tensor->name, seen, norm);
	}
	free(start);
	teardown(&f);
}

static void compare_with_reference(struct shape shape, uint64_t seed)
{
	struct fixture f = setup(shape, seed);
	double *p = as_doubles(f.parameters, f.elements), *g = doubles(f.elements);
	double expected = reference(&shape, f.tensors, p, f.inputs, f.targets, g);
	double seen = run(&f, 1, NULL, NULL);
	CHECK(fabs(seen - expected) < 1e-6 * expected + 1e-7, "B=%zu T=%zu NH=%zu C=%zu V=%zu: loss %.9f, expected %.9f", shape.batch, shape.tokens,
	      shape.heads, shape.channels, shape.vocabulary, seen, expected);
	for (size_t t = 0; t < f.tensor_count; t++) {
		double difference = 0, size = 0;
		for (size_t i = f.tensors[t].offset; i < f.tensors[t].offset + f.tensors[t].elements; i++) {
			difference += (f.gradients[i] - g[i]) * (f.gradients[i] - g[i]);
			size += g[i] * g[i];
		}
		CHECK(sqrt(difference) <= 1e-5 * sqrt(size) && size > 0, "B=%zu T=%zu NH=%zu C=%zu V=%zu: %s differs by %.3g of its norm %.3g", shape.batch,
		      shape.tokens, shape.heads, shape.channels, shape.vocabulary, f.tensors[t].name, sqrt(difference / size), sqrt(size));
	}
	free(p);
	free(g);
	teardown(&f);
}

static void test_against_reference(void)
{
	const size_t batches[] = {1, 3}, tokens[] = {1, 5, 17}, heads[] = {1, 3}, channels[] = {12, 24}, vocabularies[] = {11, 257};
	for (size_t i = 0; i < 48; i++)
		compare_with_reference(shape_of(batches[i % 2], tokens[i / 2 % 3], 2, heads[i / 6 % 2], channels[i / 12 % 2], vocabularies[i / 24]), i);
	/* Several blocks of queries, tiles and tasks in each direction, none full. */
	compare_with_reference(shape_of(2, 150, 1, 5, 80, 301), 100);
	compare_with_reference(shape_of(5, 65, 2, 2, 32, 130), 101);
	/* The output layer in two chunks of rows. */
	compare_with_reference(shape_of(3, 90, 1, 1, 4, 65536), 102);
}

static void test_tensors(void)
{
	struct fixture f = setup(shape_of(1, 4, 2, 3, 12, 11), 1);
	static const struct {
		const char *name;
		size_t rows, columns;
	} expected[] = {
		{"wte.weight", 11, 12}, {"wpe.weight", 7, 12},
		{"h.0.ln_1.weight", 1, 12}, {"h.0.ln_1.bias", 1, 12}, {"h.0.attn.c_attn.weight", 12, 36}, {"h.0.attn.c_attn.bias", 1, 36},
		{"h.0.attn.c_proj.weight", 12, 12}, {"h.0.attn.c_proj.bias", 1, 12}, {"h.0.ln_2.weight", 1, 12}, {"h.0.ln_2.bias", 1, 12},
		{"h.0.mlp.c_fc.weight", 12, 48}, {"h.0.mlp.c_fc.bias", 1, 48}, {"h.0.mlp.c_proj.weight", 48, 12}, {"h.0.mlp.c_proj.bias", 1, 12},
	};
	size_t known = sizeof(expected) / sizeof(expected[0]), end = 0;
	CHECK(f.tensor_count == 2 + 2 * 12 + 2, "%zu tensors", f.tensor_count);
	for (size_t i = 0; i < f.tensor_count; i++) {
		const struct train_tensor *t = &f.tensors[i];
		CHECK(t->offset == end && t->elements == t->rows * t->columns, "%s: offset %zu, expected %zu", t->name, t->offset, end);
		CHECK(t->decay == (strstr(t->name, "ln_") == NULL && strstr(t->name, "bias") == NULL), "%s: decay %d", t->name, t->decay);
		end = t->offset + t->elements;
		if (i < known)
			CHECK(strcmp(t->name, expected[i].name) == 0 && t->rows == expected[i].rows && t->columns == expected[i].columns,
			      "tensor %zu is %s (%zu, %zu), expected %s", i, t->name, t->rows, t->columns, expected[i].name);
	}
	CHECK(strcmp(f.tensors[14].name, "h.1.ln_1.weight") == 0, "%s", f.tensors[14].name);
	CHECK(strcmp(f.tensors[26].name, "ln_f.weight") == 0 && strcmp(f.tensors[27].name, "ln_f.bias") == 0, "%s", f.tensors[26].name);
	CHECK(end == f.elements, "%zu elements in tensors, %zu in all", end, f.elements);
	teardown(&f);
}

static void test_accumulation(void)
{
	struct fixture f = setup(shape_of(2, 7, 2, 2, 16, 19), 9);
	float *first = aligned(f.elements * sizeof(float)), *second = aligned(f.elements * sizeof(float));
	run(&f, 0.25f, NULL, NULL);
	memcpy(first, f.gradients, f.elements * sizeof(float));
	for (size_t i = 0; i < 14; i++)
		f.inputs[i] = (uint16_t)((f.inputs[i] + 5) % 19);
	clear_gradients(&f);
	run(&f, 0.75f, NULL, NULL);
	memcpy(second, f.gradients, f.elements * sizeof(float));
	memcpy(f.gradients, first, f.elements * sizeof(float));
	run(&f, 0.75f, NULL, NULL);
	double worst = 0, norm = 0;
	for (size_t i = 0; i < f.elements; i++) {
		double d = f.gradients[i] - ((double)first[i] + second[i]);
		worst += d * d;
		norm += (double)f.gradients[i] * f.gradients[i];
	}
	CHECK(sqrt(worst) < 1e-6 * sqrt(norm), "gradients of two micro-batches differ from their sum by %.3g", sqrt(worst / norm));

	/* The scale is a factor of the gradient: a quarter is exact in binary. */
	clear_gradients(&f);
	run(&f, 1, NULL, NULL);
	memcpy(first, f.gradients, f.elements * sizeof(float));
	clear_gradients(&f);
	run(&f, 0.25f, NULL, NULL);
	worst = 0;
	for (size_t i = 0; i < f.elements; i++)
		worst += fabs(f.gradients[i] - 0.25 * first[i]);
	CHECK(worst == 0, "scale 0.25 is not a quarter of the gradient: %g", worst);
	/* A second backward of the same forward gives the same again. */
	clear_gradients(&f);
	train_model_backward(f.model, 1, NULL, NULL);
	CHECK(memcmp(f.gradients, first, f.elements * sizeof(float)) == 0, "a second backward gives other bits");
	free(first);
	free(second);
	teardown(&f);
}

struct ranges {
	struct fixture *f;
	float *copy;
	size_t end, count, sizes[8];
};

static void note_range(void *context, size_t offset, size_t count)
{
	struct ranges *r = context;
	CHECK(offset + count == r->end, "range %zu + %zu, expected to end at %zu", offset, count, r->end);
	memcpy(r->copy + offset, r->f->gradients + offset, count * sizeof(float));
	r->end = offset;
	if (r->count < 8)
		r->sizes[r->count] = count;
	r->count++;
}

static void test_completed_ranges(void)
{
	struct fixture f = setup(shape_of(2, 6, 3, 2, 8, 13), 10);
	struct ranges r = {.f = &f, .copy = aligned(f.elements * sizeof(float)), .end = f.elements};
	run(&f, 1, note_range, &r);
	CHECK(r.end == 0, "ranges end at %zu", r.end);
	CHECK(r.count == 4, "%zu ranges, expected one a layer and one for the embeddings", r.count);
	CHECK(r.sizes[3] == (13 + 9) * 8, "the last range has %zu elements, expected both embeddings", r.sizes[3]);
	CHECK(memcmp(r.copy, f.gradients, f.elements * sizeof(float)) == 0, "gradients changed after their range was complete");
	free(r.copy);
	teardown(&f);
}

static void test_same_bits(void)
{
	struct shape shape = shape_of(3, 70, 2, 3, 96, 300);
	float *expected = NULL;
	double expected_loss = 0;
	int before = train_threads();
	for (int threads = 1; threads <= 5; threads++) {
		train_set_threads(threads);
		struct fixture f = setup(shape, 11);
		for (int repeat = 0; repeat < 3; repeat++) {
			clear_gradients(&f);
			double loss = run(&f, 1, NULL, NULL);
			if (!expected) {
				expected = aligned(f.elements * sizeof(float));
				memcpy(expected, f.gradients, f.elements * sizeof(float));
				expected_loss = loss;
			}
			CHECK(loss == expected_loss, "%d threads: loss %.17g, expected %.17g", threads, loss, expected_loss);
			CHECK(memcmp(expected, f.gradients, f.elements * sizeof(float)) == 0, "%d threads, repeat %d: other bits", threads, repeat);
		}
		teardown(&f);
	}
	/* A model made for larger micro-batches, used after a larger one. */
	struct shape large = shape;
	large.batch = 4;
	large.tokens = 90;
	struct fixture f = setup(large, 12), g = setup(shape, 11);
	run(&f, 1, NULL, NULL);
	/* Another context, so another layout: compare with a model of that layout. */
	struct train_model_config config = {.vocabulary = 300, .context = 93, .layers = 2, .heads = 3, .channels = 96};
	struct train_model *exact;
	CHECK_OK(train_model_create(&config, 3, 70, &exact));
	float *gradients = aligned(f.elements * sizeof(float));
	train_model_bind(exact, f.parameters, gradients);
	double loss[2];
	CHECK_OK(train_model_forward(exact, g.inputs, g.targets, 3, 70, &loss[0]));
	train_model_backward(exact, 1, NULL, NULL);
	clear_gradients(&f);
	CHECK_OK(train_model_forward(f.model, g.inputs, g.targets, 3, 70, &loss[1]));
	train_model_backward(f.model, 1, NULL, NULL);
	CHECK(loss[0] == loss[1], "loss %.17g in a larger model, %.17g", loss[1], loss[0]);
	CHECK(memcmp(gradients, f.gradients, f.elements * sizeof(float)) == 0, "a model made for larger micro-batches gives other bits");
	train_model_free(exact);
	free(gradients);
	free(expected);
	teardown(&f);
	teardown(&g);
	train_set_threads(before);
}

static void test_overfits(void)
{
	struct shape shape = shape_of(2, 16, 2, 2, 32, 50);
	struct fixture f = setup(shape, 13);
	train_model_initialize(f.model, 3);
	struct train_optimizer_config config = {.kind = TRAIN_ADAMW, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8};
	float *states[2] = {aligned(f.elements * sizeof(float)), aligned(f.elements * sizeof(float))};
	double first = 0, loss = 0;
	for (uint64_t step = 1; step <= 250; step++) {
		clear_gradients(&f);
		loss = run(&f, 1, NULL, NULL);
		if (step == 1)
			first = loss;
		train_optimizer_update(&config, f.tensors, f.tensor_count, f.parameters, f.gradients, states, 0, f.elements, 3e-3, 1, step);
	}
	CHECK(fabs(first - log(50)) < 0.05, "loss of an untrained model is %.4f, expected log(vocabulary) = %.4f", first, log(50));
	CHECK(loss < 0.01, "loss after 250 steps on one batch: %.4f", loss);
	free(states[0]);
	free(states[1]);
	teardown(&f);
}

static void statistics(const struct fixture *f, const char *name, double *mean, double *deviation, double *tail)
{
	*mean = *deviation = *tail = NAN;
	for (size_t t = 0; t < f->tensor_count; t++)
		if (strcmp(f->tensors[t].name, name) == 0) {
			const float *p = f->parameters + f->tensors[t].offset;
			size_t n = f->tensors[t].elements, outside = 0;
			double sum = 0, squares = 0;
			for (size_t i = 0; i < n; i++)
				sum += p[i];
			*mean = sum / (double)n;
			for (size_t i = 0; i < n; i++)
				squares += (p[i] - *mean) * (p[i] - *mean);
			*deviation = sqrt(squares / (double)n);
			for (size_t i = 0; i < n; i++)
				outside += fabs(p[i]) > 2 * *deviation;
			*tail = (double)outside / (double)n;
		}
}

static void test_initial_values(void)
{
	struct fixture f = setup(shape_of(1, 4, 8, 4, 128, 1000), 1);
	train_model_initialize(f.model, 42);
	static const struct {
		const char *name;
		double deviation;
	} normal[] = {{"wte.weight", 0.02}, {"h.3.attn.c_attn.weight", 0.02}, {"h.7.mlp.c_fc.weight", 0.02}, {"h.0.attn.c_proj.weight", 0.005},
		      {"h.5.mlp.c_proj.weight", 0.005}};
	for (size_t i = 0; i < sizeof(normal) / sizeof(normal[0]); i++) {
		double mean, deviation, tail;
		statistics(&f, normal[i].name, &mean, &deviation, &tail);
		CHECK(fabs(mean) < 0.03 * normal[i].deviation, "%s: mean %.3g", normal[i].name, mean);
		CHECK(fabs(deviation / normal[i].deviation - 1) < 0.02, "%s: deviation %.4g, expected %.4g", normal[i].name, deviation,
		      normal[i].deviation);
		CHECK(fabs(tail - 0.0455) < 0.006, "%s: %.4f beyond two deviations, expected 0.0455", normal[i].name, tail);
	}
	for (size_t t = 0; t < f.tensor_count; t++) {
		if (f.tensors[t].decay)
			continue;
		float value = strstr(f.tensors[t].name, "weight") ? 1 : 0;
		size_t wrong = 0;
		for (size_t i = 0; i < f.tensors[t].elements; i++)
			wrong += f.parameters[f.tensors[t].offset + i] != value;
		CHECK(wrong == 0, "%s: %zu elements are not %g", f.tensors[t].name, wrong, value);
	}
	/* Written down once: the same on every machine. */
	CHECK(f.parameters[0] == 0x1.ccc3fep-6f && f.parameters[12345] == 0x1.4faa1cp-6f, "%a %a", f.parameters[0], f.parameters[12345]);
	size_t at = f.tensors[16].offset + 5;
	CHECK(strcmp(f.tensors[16].name, "h.1.attn.c_attn.weight") == 0 && f.parameters[at] == (float)(0.02 * train_normal(42, at)),
	      "%s: element 5 is not a function of its index in the buffer", f.tensors[16].name);
	float *other = aligned(f.elements * sizeof(float));
	memcpy(other, f.parameters, f.elements * sizeof(float));
	train_model_initialize(f.model, 43);
	size_t same = 0;
	for (size_t i = 0; i < 1000; i++)
		same += other[i] == f.parameters[i];
	CHECK(same < 5, "two seeds share %zu of 1000 values", same);
	train_model_initialize(f.model, 42);
	CHECK(memcmp(other, f.parameters, f.elements * sizeof(float)) == 0, "the same seed gives other values");
	free(other);
	teardown(&f);
}

static void test_refusals(void)
{
	struct train_model *model = NULL;
	struct train_model_config good = {.vocabulary = 11, .context = 8, .layers = 1, .heads = 3, .channels = 12}, bad;
#define REFUSED(field, value, text)                                                                          \
	do {                                                                                                 \
		bad = good;                                                                                  \
		bad.field = value;                                                                           \
		CHECK_FAILS(train_model_create(&bad, 1, 4, &model), ST_ERR_CONFIG, text);                    \
	} while (0)
	REFUSED(heads, 5, "channels is 12, expected a multiple of heads (5)");
	REFUSED(heads, 0, "heads is 0");
	REFUSED(channels, 0, "channels is 0");
	REFUSED(channels, -12, "channels is -12");
	REFUSED(channels, INT64_MAX, "channels is 9223372036854775807");
	REFUSED(layers, 0, "layers is 0");
	REFUSED(vocabulary, 65537, "vocabulary is 65537, expected 1 to 65536");
	REFUSED(vocabulary, 0, "vocabulary is 0");
	REFUSED(context, 3, "tokens a row are 4, expected 1 to context (3)");
	CHECK_FAILS(train_model_create(&good, 0, 4, &model), ST_ERR_CONFIG, "micro-batch rows are 0");
	CHECK_FAILS(train_model_create(&good, SIZE_MAX, 4, &model), ST_ERR_CONFIG, "micro-batch rows");
	struct train_model_config large = {.vocabulary = 65536, .context = 1 << 20, .layers = 1024, .heads = 1024, .channels = 65536};
	CHECK_FAILS(train_model_create(&large, 1 << 20, 1 << 20, &model), ST_ERR_NOMEM, "bytes");
	large.layers = 1;
	CHECK_FAILS(train_model_create(&large, 1, 1 << 20, &model), ST_ERR_NOMEM, "bytes, this machine has");
	CHECK(model == NULL, "a model after failures");

	struct fixture f = setup(shape_of(2, 4, 1, 3, 12, 11), 2);
	run(&f, 1, NULL, NULL);
	clear_gradients(&f);
	double loss = -1;
	f.inputs[6] = 11;
	CHECK_FAILS(train_model_forward(f.model, f.inputs, f.targets, 2, 4, &loss), ST_ERR_DATA,
		    "input token at row 1, position 2 of the micro-batch is 11, expected 0 to 10");
	f.inputs[6] = 10;
	f.targets[1] = 65535;
	CHECK_FAILS(train_model_forward(f.model, f.inputs, f.targets, 2, 4, &loss), ST_ERR_DATA, "target token at row 0, position 1");
	train_model_backward(f.model, 1, NULL, NULL);
	double sum = train_sum_of_squares(f.gradients, f.elements);
	CHECK(sum == 0, "backward after a refused forward wrote gradients");
	f.targets[1] = 1;
	CHECK_FAILS(train_model_forward(f.model, f.inputs, f.targets, 3, 4, &loss), ST_ERR_USAGE, "micro-batch is (3, 4), expected at most (2, 4)");
	CHECK_FAILS(train_model_forward(f.model, f.inputs, f.targets, 2, 5, &loss), ST_ERR_USAGE, "micro-batch is (2, 5)");
	CHECK(loss == -1, "the loss was set by a failure");
	CHECK_OK(train_model_forward(f.model, f.inputs, f.targets, 2, 4, &loss));
	teardown(&f);
	CHECK_OK(train_model_create(&good, 1, 4, &model));
	CHECK_FAILS(train_model_forward(model, (uint16_t[4]){0}, (uint16_t[4]){0}, 1, 4, &loss), ST_ERR_USAGE, "train_model_bind");
	train_model_free(model);
	train_model_free(NULL);
}

/* A parameter that is not a number must be seen in the loss and in the gradient: the training loop looks there. */
static void test_not_a_number_is_seen(void)
{
	struct fixture f = setup(shape_of(2, 20, 1, 2, 16, 30), 3);
	for (size_t t = 0; t < f.tensor_count; t++) {
		/* Of wte and wpe: a row that is used. */
		size_t at = f.tensors[t].offset + (t == 0 ? f.inputs[3] * 16u : 0);
		float kept = f.parameters[at];
		f.parameters[at] = t % 2 ? NAN : INFINITY;
		clear_gradients(&f);
		double loss = run(&f, 1, NULL, NULL);
		CHECK(!isfinite(loss), "%s: loss is %g", f.tensors[t].name, loss);
		CHECK(!isfinite(train_sum_of_squares(f.gradients, f.elements)), "%s: the gradient is finite", f.tensors[t].name);
		f.parameters[at] = kept;
	}
	clear_gradients(&f);
	double loss = run(&f, 1, NULL, NULL);
	CHECK(isfinite(loss) && isfinite(train_sum_of_squares(f.gradients, f.elements)), "nothing of it stays: loss %g", loss);
	teardown(&f);
}

int main(void)
{
	printf("ISA %s\n", train_isa());
	test_reference_by_finite_differences();
	test_gradient_by_finite_differences();
	test_against_reference();
	test_tensors();
	test_accumulation();
	test_completed_ranges();
	test_same_bits();
	test_overfits();
	test_initial_values();
	test_refusals();
	test_not_a_number_is_seen();
	return check_result();
}
