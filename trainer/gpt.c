#include "trainer/model.h"

#include <math.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/log.h"
#include "trainer/kernels.h"
#include "trainer/matmul.h"
#include "trainer/portable.h"
#include "trainer/threads.h"

/* Tensors of a layer, in the order of the flat buffer. */
enum layer_tensor {
	LN1_WEIGHT,   /* (C) */
	LN1_BIAS,     /* (C) */
	QKV_WEIGHT,   /* (C, 3C) */
	QKV_BIAS,     /* (3C) */
	PROJ_WEIGHT,  /* (C, C) */
	PROJ_BIAS,    /* (C) */
	LN2_WEIGHT,   /* (C) */
	LN2_BIAS,     /* (C) */
	UP_WEIGHT,    /* (C, 4C) */
	UP_BIAS,      /* (4C) */
	DOWN_WEIGHT,  /* (4C, C) */
	DOWN_BIAS,    /* (C) */
	LAYER_TENSORS
};

/* Elements of the logits kept at a time: the output layer works on this many rows at once, so that a vocabulary of 50,257 does not need gigabytes. */
#define LOGITS_ELEMENTS ((size_t)16 << 20)
/* Queries that attention treats at once: below and right of the diagonal, work of at most this many columns is wasted. */
#define QUERIES 64
/* Rows of an elementwise task. */
#define TASK_ROWS 32
/* Columns of a task that sums over rows. */
#define TASK_COLUMNS 64
#define NO_CHUNK SIZE_MAX

/* What forward keeps of a layer for backward; rows are (b, t). */
struct layer_activations {
	float *ln1, *ln1_mean, *ln1_rstd; /* (B*T, C), (B*T), (B*T) */
	float *qkv;                       /* (B*T, 3C) */
	float *greatest, *inverse;        /* (B, NH, T) each: softmax statistics, from which backward gets the probabilities again */
	float *attended;                  /* (B*T, C) */
	float *middle;                    /* (B*T, C): the residual stream after attention */
	float *ln2, *ln2_mean, *ln2_rstd;
	float *up;                        /* (B*T, 4C) before GELU */
	float *gelu;                      /* (B*T, 4C) */
	float *out;                       /* (B*T, C): the residual stream after the layer */
};

struct train_model {
	struct train_model_config config;
	size_t channels, heads, layers, vocabulary;
	size_t head_size;
	size_t max_batch, max_tokens; /* as created */
	unsigned threads;             /* scratch memory is for so many */
	const struct train_kernels *kernels;

	struct train_tensor *tensors;
	size_t tensor_count, elements;
	float *parameters, *gradients; /* borrowed */

	size_t batch, tokens, rows; /* of the last forward; rows = batch * tokens */
	uint16_t *inputs, *targets; /* (B*T): copies */
	float *embedded;            /* (B*T, C) */
	struct layer_activations *activations;
	float *final, *final_mean, *final_rstd;
	size_t logits_ld, logits_rows; /* rows of a chunk */
	float *logits;                 /* (logits_rows, logits_ld): of chunk logits_chunk */
	size_t logits_chunk;
	float *logits_greatest, *logits_inverse; /* (B*T) */
	double *losses;                          /* (B*T) */

	/* Backward. */
	float *d_stream; /* (B*T, C): gradient at the residual stream */
	float *d_narrow; /* (B*T, C) */
	float *d_wide;   /* (B*T, 4C) */

	size_t scores_ld;
	float *scores; /* (threads, 2, QUERIES, scores_ld) */

	_Atomic int status; /* first failure of a matrix product since forward began */
	size_t bytes;
};

/* ---- Configuration and memory ---- */

static size_t at_most(size_t a, size_t b)
{
	return a < b ? a : b;
}

static size_t pieces(size_t n, size_t size)
{
	return (n + size - 1) / size;
}

static enum st_status check_range(const char *name, int64_t seen, int64_t least, int64_t most)
{
	if (seen < least || seen > most)
		return st_fail(ST_ERR_CONFIG, "model: %s is %lld, expected %lld to %lld", name, (long long)seen, (long long)least, (long long)most);
	return ST_OK;
}

static enum st_status check_config(const struct train_model_config *config, size_t batch, size_t tokens)
{
	ST_TRY(check_range("vocabulary", config->vocabulary, 1, 65536));
	ST_TRY(check_range("context", config->context, 1, 1 << 20));
	ST_TRY(check_range("layers", config->layers, 1, 1024));
	ST_TRY(check_range("heads", config->heads, 1, 1024));
	ST_TRY(check_range("channels", config->channels, 1, 65536));
	if (config->channels % config->heads != 0)
		return st_fail(ST_ERR_CONFIG, "model: channels is %lld, expected a multiple of heads (%lld)", (long long)config->channels,
			       (long long)config->heads);
	if (batch < 1 || batch > 1 << 20)
		return st_fail(ST_ERR_CONFIG, "model: micro-batch rows are %zu, expected 1 to %d", batch, 1 << 20);
	if (tokens < 1 || tokens > (size_t)config->context)
		return st_fail(ST_ERR_CONFIG, "model: tokens a row are %zu, expected 1 to context (%lld)", tokens, (long long)config->context);
	return ST_OK;
}

static void add_tensor(struct train_model *model, size_t rows, size_t columns, bool decay, const char *name)
{
	struct train_tensor *tensor = &model->tensors[model->tensor_count++];
	*tensor = (struct train_tensor){.offset = model->elements, .elements = rows * columns, .rows = rows, .columns = columns, .decay = decay};
	snprintf(tensor->name, sizeof(tensor->name), "%s", name);
	model->elements += tensor->elements;
}

static void add_layer_tensor(struct train_model *model, size_t layer, size_t rows, size_t columns, const char *name)
{
	char full[64];
	snprintf(full, sizeof(full), "h.%zu.%s", layer, name);
	add_tensor(model, rows, columns, rows > 1, full);
}

static enum st_status lay_out_tensors(struct train_model *model)
{
	size_t c = model->channels;
	model->tensors = calloc(2 + LAYER_TENSORS * model->layers + 2, sizeof(*model->tensors));
	if (!model->tensors)
		return st_fail(ST_ERR_NOMEM, "model: no memory for %zu tensor descriptions", 4 + LAYER_TENSORS * model->layers);
	add_tensor(model, model->vocabulary, c, true, "wte.weight");
	add_tensor(model, (size_t)model->config.context, c, true, "wpe.weight");
	for (size_t l = 0; l < model->layers; l++) {
		add_layer_tensor(model, l, 1, c, "ln_1.weight");
		add_layer_tensor(model, l, 1, c, "ln_1.bias");
		add_layer_tensor(model, l, c, 3 * c, "attn.c_attn.weight");
		add_layer_tensor(model, l, 1, 3 * c, "attn.c_attn.bias");
		add_layer_tensor(model, l, c, c, "attn.c_proj.weight");
		add_layer_tensor(model, l, 1, c, "attn.c_proj.bias");
		add_layer_tensor(model, l, 1, c, "ln_2.weight");
		add_layer_tensor(model, l, 1, c, "ln_2.bias");
		add_layer_tensor(model, l, c, 4 * c, "mlp.c_fc.weight");
		add_layer_tensor(model, l, 1, 4 * c, "mlp.c_fc.bias");
		add_layer_tensor(model, l, 4 * c, c, "mlp.c_proj.weight");
		add_layer_tensor(model, l, 1, c, "mlp.c_proj.bias");
	}
	add_tensor(model, 1, c, false, "ln_f.weight");
	add_tensor(model, 1, c, false, "ln_f.bias");
	return ST_OK;
}

/* A buffer of the model: where its address goes, and its size. */
struct buffer {
	void *address; /* of a pointer of the model */
	size_t size;
};

static void plan(struct buffer *buffers, size_t *count, void *address, size_t elements, size_t element_size)
{
	buffers[(*count)++] = (struct buffer){address, (elements * element_size + 63) / 64 * 64};
}

#define PLAN(pointer, elements) plan(buffers, &n, &(pointer), elements, sizeof(*(pointer)))

static enum st_status allocate(struct train_model *model)
{
	size_t rows = model->max_batch * model->max_tokens, c = model->channels;
	/* The greatest element count below, as f64: no product of the checked ranges can overflow a size_t when this one does not. */
	double greatest = (double)rows * (double)(model->layers * 16 * c + model->heads * 2) * sizeof(float);
	if (greatest > 1e15)
		return st_fail(ST_ERR_NOMEM, "model: activations of %zu rows of %zu tokens need %.3g bytes: make the micro-batch smaller",
			       model->max_batch, model->max_tokens, greatest);
	model->activations = calloc(model->layers, sizeof(*model->activations));
	struct buffer *buffers = calloc(20 + 14 * model->layers, sizeof(*buffers));
	if (!model->activations || !buffers) {
		free(buffers);
		return st_fail(ST_ERR_NOMEM, "model: no memory for the descriptions of %zu layers", model->layers);
	}
	size_t n = 0;
	PLAN(model->inputs, rows);
	PLAN(model->targets, rows);
	PLAN(model->embedded, rows * c);
	for (size_t l = 0; l < model->layers; l++) {
		struct layer_activations *a = &model->activations[l];
		PLAN(a->ln1, rows * c);
		PLAN(a->ln1_mean, rows);
		PLAN(a->ln1_rstd, rows);
		PLAN(a->qkv, rows * 3 * c);
		PLAN(a->greatest, rows * model->heads);
		PLAN(a->inverse, rows * model->heads);
		PLAN(a->attended, rows * c);
		PLAN(a->middle, rows * c);
		PLAN(a->ln2, rows * c);
		PLAN(a->ln2_mean, rows);
		PLAN(a->ln2_rstd, rows);
		PLAN(a->up, rows * 4 * c);
		PLAN(a->gelu, rows * 4 * c);
		PLAN(a->out, rows * c);
	}
	PLAN(model->final, rows * c);
	PLAN(model->final_mean, rows);
	PLAN(model->final_rstd, rows);
	model->logits_ld = pieces(model->vocabulary, 16) * 16;
	/* A function of the vocabulary alone: how the output layer is cut must not depend on how large micro-batches may be. */
	size_t chunk = LOGITS_ELEMENTS / model->logits_ld / 64 * 64;
	model->logits_rows = chunk < 64 ? 64 : chunk;
	PLAN(model->logits, at_most(model->logits_rows, rows) * model->logits_ld);
	PLAN(model->logits_greatest, rows);
	PLAN(model->logits_inverse, rows);
	PLAN(model->losses, rows);
	PLAN(model->d_stream, rows * c);
	PLAN(model->d_narrow, rows * c);
	PLAN(model->d_wide, rows * 4 * c);
	model->scores_ld = pieces(model->max_tokens, 16) * 16;
	PLAN(model->scores, 2 * model->threads * QUERIES * model->scores_ld);

	for (size_t i = 0; i < n; i++)
		model->bytes += buffers[i].size;
	/* The kernel grants more than there is and kills when it is used: better to refuse here. */
	double machine = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
	enum st_status status = ST_OK;
	if ((double)model->bytes > machine)
		status = st_fail(ST_ERR_NOMEM, "model: activations of %zu rows of %zu tokens need %zu bytes, this machine has %.0f: make the micro-batch smaller",
				 model->max_batch, model->max_tokens, model->bytes, machine);
	for (size_t i = 0; i < n && status == ST_OK; i++) {
		void *memory = aligned_alloc(64, buffers[i].size);
		if (!memory) {
			status = st_fail(ST_ERR_NOMEM, "model: no memory for activations (%zu bytes)", model->bytes);
			break;
		}
		memset(memory, 0, buffers[i].size);
		memcpy(buffers[i].address, &memory, sizeof(memory));
	}
	free(buffers);
	return status;
}

enum st_status train_model_create(const struct train_model_config *config, size_t batch, size_t tokens, struct train_model **out)
{
	ST_TRY(check_config(config, batch, tokens));
	struct train_model *model = calloc(1, sizeof(*model));
	if (!model)
		return st_fail(ST_ERR_NOMEM, "model: no memory for %zu bytes", sizeof(*model));
	model->config = *config;
	model->channels = (size_t)config->channels;
	model->heads = (size_t)config->heads;
	model->layers = (size_t)config->layers;
	model->vocabulary = (size_t)config->vocabulary;
	model->head_size = model->channels / model->heads;
	model->max_batch = batch;
	model->max_tokens = tokens;
	model->threads = (unsigned)train_threads();
	model->kernels = train_kernels();
	enum st_status status = lay_out_tensors(model);
	if (status == ST_OK)
		status = allocate(model);
	if (status != ST_OK) {
		train_model_free(model);
		return status;
	}
	*out = model;
	return ST_OK;
}

void train_model_free(struct train_model *model)
{
	if (!model)
		return;
	for (size_t l = 0; model->activations && l < model->layers; l++) {
		struct layer_activations *a = &model->activations[l];
		float *buffers[] = {a->ln1, a->ln1_mean, a->ln1_rstd, a->qkv, a->greatest, a->inverse, a->attended, a->middle,
				    a->ln2, a->ln2_mean, a->ln2_rstd, a->up, a->gelu, a->out};
		for (size_t i = 0; i < sizeof(buffers) / sizeof(buffers[0]); i++)
			free(buffers[i]);
	}
	float *buffers[] = {model->embedded, model->final, model->final_mean, model->final_rstd, model->logits, model->logits_greatest,
			    model->logits_inverse, model->d_stream, model->d_narrow, model->d_wide, model->scores};
	for (size_t i = 0; i < sizeof(buffers) / sizeof(buffers[0]); i++)
		free(buffers[i]);
	free(model->inputs);
	free(model->targets);
	free(model->losses);
	free(model->activations);
	free(model->tensors);
	free(model);
}

size_t train_model_parameters(const struct train_model *model)
{
	return model->elements;
}

size_t train_model_tensors(const struct train_model *model, const struct train_tensor **tensors)
{
	*tensors = model->tensors;
	return model->tensor_count;
}

size_t train_model_bytes(const struct train_model *model)
{
	return model->bytes;
}

void train_model_bind(struct train_model *model, float *parameters, float *gradients)
{
	model->parameters = parameters;
	model->gradients = gradients;
}

static size_t offset_of(const struct train_model *model, size_t layer, enum layer_tensor tensor)
{
	return model->tensors[2 + layer * LAYER_TENSORS + tensor].offset;
}

static const float *parameter(const struct train_model *model, size_t layer, enum layer_tensor tensor)
{
	return model->parameters + offset_of(model, layer, tensor);
}

static float *gradient(const struct train_model *model, size_t layer, enum layer_tensor tensor)
{
	return model->gradients + offset_of(model, layer, tensor);
}

/* ---- Initial values ---- */

struct initialize {
	struct train_model *model;
	const struct train_tensor *tensor;
	uint64_t seed;
	double deviation; /* 0: the constant */
	float constant;
};

#define INITIALIZE_ELEMENTS 16384

static void initialize_task(void *context, size_t index, unsigned thread)
{
	(void)thread;
	const struct initialize *job = context;
	size_t first = index * INITIALIZE_ELEMENTS, end = at_most(first + INITIALIZE_ELEMENTS, job->tensor->elements);
	float *out = job->model->parameters + job->tensor->offset;
	for (size_t i = first; i < end; i++)
		out[i] = job->deviation > 0 ? (float)(job->deviation * train_normal(job->seed, job->tensor->offset + i)) : job->constant;
}

void train_model_initialize(struct train_model *model, uint64_t seed)
{
	for (size_t i = 0; i < model->tensor_count; i++) {
		const struct train_tensor *tensor = &model->tensors[i];
		struct initialize job = {.model = model, .tensor = tensor, .seed = seed};
		size_t in_layer = i < 2 || i >= model->tensor_count - 2 ? LAYER_TENSORS : (i - 2) % LAYER_TENSORS;
		bool is_residual = in_layer == PROJ_WEIGHT || in_layer == DOWN_WEIGHT;
		bool is_scale = in_layer == LN1_WEIGHT || in_layer == LN2_WEIGHT || i == model->tensor_count - 2;
		if (tensor->decay)
			/* 2L projections add to the residual stream: their sum keeps the variance of one. */
			job.deviation = is_residual ? 0.02 / sqrt(2.0 * (double)model->layers) : 0.02;
		else
			job.constant = is_scale ? 1.0f : 0.0f;
		train_parallel(TRAIN_THREADS_MAX, pieces(tensor->elements, INITIALIZE_ELEMENTS), initialize_task, &job);
	}
}

/* ---- Steps that both directions use ---- */

static void multiply(struct train_model *model, const struct train_matmul *product)
{
	enum st_status status = train_matmul_run(product);
	if (status != ST_OK)
		atomic_store_explicit(&model->status, (int)status, memory_order_relaxed);
}

static void multiply_small(struct train_model *model, const struct train_matmul *product)
{
	enum st_status status = train_matmul_small(product);
	if (status != ST_OK)
		atomic_store_explicit(&model->status, (int)status, memory_order_relaxed);
}

/* What a tile's finish step needs; pointers have the product's shape and ld. */
struct finish {
	const struct train_kernels *kernels;
	const float *bias;
	const float *residual; /* may be NULL */
	float *gelu;
	const float *before_gelu;
};

static void finish_bias(const struct train_matmul *p, size_t row, size_t rows, size_t column, size_t columns)
{
	const struct finish *f = p->context;
	size_t at = row * p->ldc + column;
	f->kernels->add_bias(p->c + at, f->bias + column, f->residual ? f->residual + at : NULL, rows, columns, p->ldc);
}

static void finish_bias_gelu(const struct train_matmul *p, size_t row, size_t rows, size_t column, size_t columns)
{
	const struct finish *f = p->context;
	size_t at = row * p->ldc + column;
	f->kernels->bias_gelu(f->gelu + at, p->c + at, f->bias + column, rows, columns, p->ldc);
}

static void finish_gelu_backward(const struct train_matmul *p, size_t row, size_t rows, size_t column, size_t columns)
{
	const struct finish *f = p->context;
	size_t at = row * p->ldc + column;
	f->kernels->gelu_backward(p->c + at, f->before_gelu + at, rows, columns, p->ldc);
}

/* out (rows, n) = in (rows, k) weight (k, n), then finish. */
static void linear(struct train_model *model, float *out, const float *in, const float *weight, size_t k, size_t n, train_matmul_finish *finish,
		   const struct finish *context)
{
	multiply(model, &(struct train_matmul){.m = model->rows, .n = n, .k = k, .alpha = 1, .a = in, .lda = k, .b = weight, .ldb = n, .c = out,
					       .ldc = n, .finish = finish, .context = context});
}

/* din (rows, k) = dout (rows, n) weight^T (n, k), then finish. */
static void linear_backward_input(struct train_model *model, float *din, const float *dout, const float *weight, size_t k, size_t n,
				  train_matmul_finish *finish, const struct finish *context)
{
	multiply(model, &(struct train_matmul){.b_transposed = true, .m = model->rows, .n = k, .k = n, .alpha = 1, .a = dout, .lda = n, .b = weight,
					       .ldb = n, .c = din, .ldc = k, .finish = finish, .context = context});
}

struct column_sums {
	const struct train_kernels *kernels;
	float *out;
	const float *in;
	size_t rows, columns;
};

static void column_sums_task(void *context, size_t index, unsigned thread)
{
	(void)thread;
	const struct column_sums *job = context;
	size_t column = index * TASK_COLUMNS;
	job->kernels->column_sums(job->out + column, job->in + column, job->rows, at_most(TASK_COLUMNS, job->columns - column), job->columns);
}

/* dweight (k, n) += in^T (k, rows) dout (rows, n); dbias (n) += sum over rows of dout. */
static void linear_backward_parameters(struct train_model *model, float *dweight, float *dbias, const float *in, const float *dout, size_t k,
				       size_t n)
{
	multiply(model, &(struct train_matmul){.a_transposed = true, .m = k, .n = n, .k = model->rows, .alpha = 1, .a = in, .lda = k, .b = dout,
					       .ldb = n, .beta = 1, .c = dweight, .ldc = n});
	struct column_sums job = {model->kernels, dbias, dout, model->rows, n};
	train_parallel(TRAIN_THREADS_MAX, pieces(n, TASK_COLUMNS), column_sums_task, &job);
}

struct layernorm {
	struct train_model *model;
	float *out; /* forward: (rows, C); backward: gradient at the input, added to */
	const float *in, *dout;
	const float *weight, *bias;
	float *mean, *rstd;
	float *dweight, *dbias;
};

static void layernorm_task(void *context, size_t index, unsigned thread)
{
	(void)thread;
	const struct layernorm *job = context;
	size_t c = job->model->channels, row = index * TASK_ROWS;
	job->model->kernels->layernorm(job->out + row * c, job->mean + row, job->rstd + row, job->in + row * c, job->weight, job->bias,
				       at_most(TASK_ROWS, job->model->rows - row), c);
}

static void layernorm_backward_task(void *context, size_t index, unsigned thread)
{
	(void)thread;
	const struct layernorm *job = context;
	size_t c = job->model->channels, row = index * TASK_ROWS;
	job->model->kernels->layernorm_backward(job->out + row * c, job->dout + row * c, job->in + row * c, job->weight, job->mean + row,
						job->rstd + row, at_most(TASK_ROWS, job->model->rows - row), c);
}

static void layernorm_parameters_task(void *context, size_t index, unsigned thread)
{
	(void)thread;
	const struct layernorm *job = context;
	size_t c = job->model->channels, column = index * TASK_COLUMNS;
	job->model->kernels->layernorm_parameters(job->dweight + column, job->dbias + column, job->dout + column, job->in + column, job->mean, job->rstd,
						  job->model->rows, at_most(TASK_COLUMNS, c - column), c);
}

static void layernorm_forward(struct layernorm *job)
{
	train_parallel(TRAIN_THREADS_MAX, pieces(job->model->rows, TASK_ROWS), layernorm_task, job);
}

static void layernorm_backward(struct layernorm *job)
{
	train_parallel(TRAIN_THREADS_MAX, pieces(job->model->channels, TASK_COLUMNS), layernorm_parameters_task, job);
	train_parallel(TRAIN_THREADS_MAX, pieces(job->model->rows, TASK_ROWS), layernorm_backward_task, job);
}

/* ---- Attention ---- */

struct attention {
	struct train_model *model;
	const struct layer_activations *activations;
	const float *dout; /* (B*T, C) */
	float *dqkv;       /* (B*T, 3C) */
};

/* scores (queries, keys) = Q K^T / sqrt(head size) for the queries first..first+queries and keys 0..keys of one head. */
static void scores_of(struct train_model *model, const float *qkv, float *scores, size_t first, size_t queries, size_t keys)
{
	size_t c = model->channels, ld = 3 * c;
	multiply_small(model, &(struct train_matmul){.b_transposed = true, .m = queries, .n = keys, .k = model->head_size,
						     .alpha = 1.0f / sqrtf((float)model->head_size), .a = qkv + first * ld, .lda = ld, .b = qkv + c,
						     .ldb = ld, .c = scores, .ldc = model->scores_ld});
}

/* One (row of the batch, head). */
static void attention_task(void *context, size_t index, unsigned thread)
{
	const struct attention *job = context;
	struct train_model *model = job->model;
	size_t b = index / model->heads, h = index % model->heads;
	size_t t = model->tokens, c = model->channels, size = model->head_size, ld = model->scores_ld;
	const float *qkv = job->activations->qkv + b * t * 3 * c + h * size; /* Q here, K at + C, V at + 2C */
	float *out = job->activations->attended + b * t * c + h * size;
	float *greatest = job->activations->greatest + index * t, *inverse = job->activations->inverse + index * t;
	float *p = model->scores + (size_t)thread * 2 * QUERIES * ld;
	for (size_t first = 0; first < t; first += QUERIES) {
		size_t queries = at_most(QUERIES, t - first), keys = first + queries;
		scores_of(model, qkv, p, first, queries, keys);
		for (size_t q = 0; q < queries; q++) {
			size_t visible = first + q + 1;
			model->kernels->softmax(p + q * ld, visible, &greatest[first + q], &inverse[first + q]);
			memset(p + q * ld + visible, 0, (keys - visible) * sizeof(*p));
		}
		multiply_small(model, &(struct train_matmul){.m = queries, .n = size, .k = keys, .alpha = 1, .a = p, .lda = ld, .b = qkv + 2 * c,
							     .ldb = 3 * c, .c = out + first * c, .ldc = c});
	}
}

static void attention_backward_task(void *context, size_t index, unsigned thread)
{
	const struct attention *job = context;
	struct train_model *model = job->model;
	size_t b = index / model->heads, h = index % model->heads;
	size_t t = model->tokens, c = model->channels, size = model->head_size, ld = model->scores_ld;
	const float *qkv = job->activations->qkv + b * t * 3 * c + h * size;
	const float *out = job->activations->attended + b * t * c + h * size, *dout = job->dout + b * t * c + h * size;
	float *dqkv = job->dqkv + b * t * 3 * c + h * size;
	const float *greatest = job->activations->greatest + index * t, *inverse = job->activations->inverse + index * t;
	float *p = model->scores + (size_t)thread * 2 * QUERIES * ld, *dp = p + QUERIES * ld;
	/* From the last queries to the first: those see all keys, and so give dK and dV their first values everywhere. */
	for (size_t left = pieces(t, QUERIES); left-- > 0;) {
		size_t first = left * QUERIES, queries = at_most(QUERIES, t - first), keys = first + queries;
		float beta = keys == t ? 0 : 1;
		scores_of(model, qkv, p, first, queries, keys);
		/* dP = dout V^T */
		multiply_small(model, &(struct train_matmul){.b_transposed = true, .m = queries, .n = keys, .k = size, .alpha = 1, .a = dout + first * c,
							     .lda = c, .b = qkv + 2 * c, .ldb = 3 * c, .c = dp, .ldc = ld});
		for (size_t q = 0; q < queries; q++) {
			size_t visible = first + q + 1, row = (first + q) * c;
			float *p_row = p + q * ld, *dp_row = dp + q * ld;
			model->kernels->exponentials(p_row, visible, greatest[first + q], inverse[first + q]);
			/* sum over keys of P dP = sum over channels of out dout (Dao et al., 2022) */
			float dot = model->kernels->dot(out + row, dout + row, size);
			model->kernels->softmax_backward(dp_row, p_row, visible, dot, 1.0f / sqrtf((float)size));
			memset(p_row + visible, 0, (keys - visible) * sizeof(*p));
			memset(dp_row + visible, 0, (keys - visible) * sizeof(*p));
		}
		/* dV = P^T dout; dK = dS^T Q; dQ = dS K */
		multiply_small(model, &(struct train_matmul){.a_transposed = true, .m = keys, .n = size, .k = queries, .alpha = 1, .a = p, .lda = ld,
							     .b = dout + first * c, .ldb = c, .beta = beta, .c = dqkv + 2 * c, .ldc = 3 * c});
		multiply_small(model, &(struct train_matmul){.a_transposed = true, .m = keys, .n = size, .k = queries, .alpha = 1, .a = dp, .lda = ld,
							     .b = qkv + first * 3 * c, .ldb = 3 * c, .beta = beta, .c = dqkv + c, .ldc = 3 * c});
		multiply_small(model, &(struct train_matmul){.m = queries, .n = size, .k = keys, .alpha = 1, .a = dp, .lda = ld, .b = qkv + c,
							     .ldb = 3 * c, .c = dqkv + first * 3 * c, .ldc = 3 * c});
	}
}

/* ---- Embeddings ---- */

static void embed_task(void *context, size_t index, unsigned thread)
{
	(void)thread;
	const struct train_model *model = context;
	const float *wte = model->parameters, *wpe = model->parameters + model->tensors[1].offset;
	size_t c = model->channels;
	for (size_t row = index * TASK_ROWS; row < at_most((index + 1) * TASK_ROWS, model->rows); row++)
		model->kernels->sum(model->embedded + row * c, wte + model->inputs[row] * c, wpe + row % model->tokens * c, c);
}

/* A task owns columns of both embeddings: a token may stand in many rows, and their order must not change. */
static void embed_backward_task(void *context, size_t index, unsigned thread)
{
	(void)thread;
	const struct train_model *model = context;
	float *dwte = model->gradients, *dwpe = model->gradients + model->tensors[1].offset;
	size_t c = model->channels, column = index * TASK_COLUMNS, columns = at_most(TASK_COLUMNS, c - column);
	for (size_t row = 0; row < model->rows; row++) {
		const float *d = model->d_stream + row * c + column;
		model->kernels->add(dwte + model->inputs[row] * c + column, d, columns);
		model->kernels->add(dwpe + row % model->tokens * c + column, d, columns);
	}
}

/* ---- Output layer ---- */

static size_t chunk_rows(const struct train_model *model, size_t chunk)
{
	return at_most(model->logits_rows, model->rows - chunk * model->logits_rows);
}

/* logits (rows of the chunk, V) = final wte^T */
static void logits_of(struct train_model *model, size_t chunk)
{
	size_t c = model->channels;
	multiply(model, &(struct train_matmul){.b_transposed = true, .m = chunk_rows(model, chunk), .n = model->vocabulary, .k = c, .alpha = 1,
					       .a = model->final + chunk * model->logits_rows * c, .lda = c, .b = model->parameters, .ldb = c,
					       .c = model->logits, .ldc = model->logits_ld});
	model->logits_chunk = chunk;
}

struct output {
	struct train_model *model;
	size_t chunk;
	float scale;
};

/* Cross-entropy of the rows of a chunk. */
static void loss_task(void *context, size_t index, unsigned thread)
{
	(void)thread;
	const struct output *job = context;
	struct train_model *model = job->model;
	size_t first = job->chunk * model->logits_rows;
	for (size_t i = index * TASK_ROWS; i < at_most((index + 1) * TASK_ROWS, chunk_rows(model, job->chunk)); i++) {
		const float *logits = model->logits + i * model->logits_ld;
		float *greatest = &model->logits_greatest[first + i];
		float sum = model->kernels->softmax_statistics(logits, model->vocabulary, greatest, &model->logits_inverse[first + i]);
		model->losses[first + i] = train_log(sum) + ((double)*greatest - (double)logits[model->targets[first + i]]);
	}
}

/* logits become their gradients: scale * (softmax - one at the target). */
static void loss_backward_task(void *context, size_t index, unsigned thread)
{
	(void)thread;
	const struct output *job = context;
	struct train_model *model = job->model;
	size_t first = job->chunk * model->logits_rows;
	for (size_t i = index * TASK_ROWS; i < at_most((index + 1) * TASK_ROWS, chunk_rows(model, job->chunk)); i++) {
		float *logits = model->logits + i * model->logits_ld;
		model->kernels->exponentials(logits, model->vocabulary, model->logits_greatest[first + i],
					     model->logits_inverse[first + i] * job->scale);
		logits[model->targets[first + i]] -= job->scale;
	}
}

/* ---- The whole ---- */

static enum st_status check_tokens(const struct train_model *model, const uint16_t *values, size_t batch, size_t tokens, const char *name)
{
	for (size_t i = 0; i < batch * tokens; i++)
		if (values[i] >= model->vocabulary)
			return st_fail(ST_ERR_DATA, "%s token at row %zu, position %zu of the micro-batch is %u, expected 0 to %zu (vocabulary %zu)", name,
				       i / tokens, i % tokens, values[i], model->vocabulary - 1, model->vocabulary);
	return ST_OK;
}

enum st_status train_model_forward(struct train_model *model, const uint16_t *inputs, const uint16_t *targets, size_t batch, size_t tokens,
				   double *loss)
{
	model->rows = 0; /* nothing for backward until this has succeeded */
	if (!model->parameters)
		return st_fail(ST_ERR_USAGE, "model: forward before train_model_bind");
	if (batch < 1 || batch > model->max_batch || tokens < 1 || tokens > model->max_tokens)
		return st_fail(ST_ERR_USAGE, "model: micro-batch is (%zu, %zu), expected at most (%zu, %zu)", batch, tokens, model->max_batch,
			       model->max_tokens);
	ST_TRY(check_tokens(model, inputs, batch, tokens, "input"));
	ST_TRY(check_tokens(model, targets, batch, tokens, "target"));
	model->batch = batch;
	model->tokens = tokens;
	model->rows = batch * tokens;
	memcpy(model->inputs, inputs, model->rows * sizeof(*inputs));
	memcpy(model->targets, targets, model->rows * sizeof(*targets));
	atomic_store_explicit(&model->status, ST_OK, memory_order_relaxed);

	size_t c = model->channels;
	train_parallel(TRAIN_THREADS_MAX, pieces(model->rows, TASK_ROWS), embed_task, model);
	const float *stream = model->embedded;
	for (size_t l = 0; l < model->layers; l++) {
		struct layer_activations *a = &model->activations[l];
		layernorm_forward(&(struct layernorm){.model = model, .out = a->ln1, .mean = a->ln1_mean, .rstd = a->ln1_rstd, .in = stream,
						      .weight = parameter(model, l, LN1_WEIGHT), .bias = parameter(model, l, LN1_BIAS)});
		linear(model, a->qkv, a->ln1, parameter(model, l, QKV_WEIGHT), c, 3 * c, finish_bias,
		       &(struct finish){.kernels = model->kernels, .bias = parameter(model, l, QKV_BIAS)});
		train_parallel(model->threads, batch * model->heads, attention_task, &(struct attention){.model = model, .activations = a});
		linear(model, a->middle, a->attended, parameter(model, l, PROJ_WEIGHT), c, c, finish_bias,
		       &(struct finish){.kernels = model->kernels, .bias = parameter(model, l, PROJ_BIAS), .residual = stream});
		layernorm_forward(&(struct layernorm){.model = model, .out = a->ln2, .mean = a->ln2_mean, .rstd = a->ln2_rstd, .in = a->middle,
						      .weight = parameter(model, l, LN2_WEIGHT), .bias = parameter(model, l, LN2_BIAS)});
		linear(model, a->up, a->ln2, parameter(model, l, UP_WEIGHT), c, 4 * c, finish_bias_gelu,
		       &(struct finish){.kernels = model->kernels, .bias = parameter(model, l, UP_BIAS), .gelu = a->gelu});
		linear(model, a->out, a->gelu, parameter(model, l, DOWN_WEIGHT), 4 * c, c, finish_bias,
		       &(struct finish){.kernels = model->kernels, .bias = parameter(model, l, DOWN_BIAS), .residual = a->middle});
		stream = a->out;
	}
	const float *ln_f = model->parameters + model->tensors[model->tensor_count - 2].offset;
	layernorm_forward(&(struct layernorm){.model = model, .out = model->final, .mean = model->final_mean, .rstd = model->final_rstd, .in = stream,
					      .weight = ln_f, .bias = ln_f + c});
	for (size_t chunk = 0; chunk < pieces(model->rows, model->logits_rows); chunk++) {
		logits_of(model, chunk);
		train_parallel(TRAIN_THREADS_MAX, pieces(chunk_rows(model, chunk), TASK_ROWS), loss_task,
			       &(struct output){.model = model, .chunk = chunk});
	}
	int status = atomic_load_explicit(&model->status, memory_order_relaxed);
	if (status != ST_OK)
		return st_fail((enum st_status)status, "model: a matrix product failed (%s)", st_status_name((enum st_status)status));
	double sum = 0;
	for (size_t i = 0; i < model->rows; i++)
		sum += model->losses[i];
	*loss = sum / (double)model->rows;
	return ST_OK;
}

static void output_backward(struct train_model *model, float scale)
{
	size_t c = model->channels;
	for (size_t chunk = 0; chunk < pieces(model->rows, model->logits_rows); chunk++) {
		size_t rows = chunk_rows(model, chunk), first = chunk * model->logits_rows;
		if (model->logits_chunk != chunk)
			logits_of(model, chunk);
		train_parallel(TRAIN_THREADS_MAX, pieces(rows, TASK_ROWS), loss_backward_task,
			       &(struct output){.model = model, .chunk = chunk, .scale = scale / (float)model->rows});
		model->logits_chunk = NO_CHUNK;
		/* d final (rows, C) = dlogits wte */
		multiply(model, &(struct train_matmul){.m = rows, .n = c, .k = model->vocabulary, .alpha = 1, .a = model->logits,
						       .lda = model->logits_ld, .b = model->parameters, .ldb = c, .c = model->d_narrow + first * c,
						       .ldc = c});
		/* d wte (V, C) += dlogits^T final */
		multiply(model, &(struct train_matmul){.a_transposed = true, .m = model->vocabulary, .n = c, .k = rows, .alpha = 1, .a = model->logits,
						       .lda = model->logits_ld, .b = model->final + first * c, .ldb = c, .beta = 1,
						       .c = model->gradients, .ldc = c});
	}
}

void train_model_backward(struct train_model *model, float scale, train_completed *completed, void *context)
{
	if (model->rows == 0 || !model->gradients)
		return;
	size_t c = model->channels, end = model->elements;
	const float *top = model->activations[model->layers - 1].out;
	size_t ln_f = model->tensors[model->tensor_count - 2].offset;

	output_backward(model, scale);
	memset(model->d_stream, 0, model->rows * c * sizeof(*model->d_stream));
	layernorm_backward(&(struct layernorm){.model = model, .out = model->d_stream, .dout = model->d_narrow, .in = top,
					       .weight = model->parameters + ln_f, .mean = model->final_mean, .rstd = model->final_rstd,
					       .dweight = model->gradients + ln_f, .dbias = model->gradients + ln_f + c});

	for (size_t l = model->layers; l-- > 0;) {
		struct layer_activations *a = &model->activations[l];
		const float *stream = l ? model->activations[l - 1].out : model->embedded;
		linear_backward_parameters(model, gradient(model, l, DOWN_WEIGHT), gradient(model, l, DOWN_BIAS), a->gelu, model->d_stream, 4 * c, c);
		linear_backward_input(model, model->d_wide, model->d_stream, parameter(model, l, DOWN_WEIGHT), 4 * c, c, finish_gelu_backward,
				      &(struct finish){.kernels = model->kernels, .before_gelu = a->up});
		linear_backward_parameters(model, gradient(model, l, UP_WEIGHT), gradient(model, l, UP_BIAS), a->ln2, model->d_wide, c, 4 * c);
		linear_backward_input(model, model->d_narrow, model->d_wide, parameter(model, l, UP_WEIGHT), c, 4 * c, NULL, NULL);
		layernorm_backward(&(struct layernorm){.model = model, .out = model->d_stream, .dout = model->d_narrow, .in = a->middle,
						       .weight = parameter(model, l, LN2_WEIGHT), .mean = a->ln2_mean, .rstd = a->ln2_rstd,
						       .dweight = gradient(model, l, LN2_WEIGHT), .dbias = gradient(model, l, LN2_BIAS)});

		linear_backward_parameters(model, gradient(model, l, PROJ_WEIGHT), gradient(model, l, PROJ_BIAS), a->attended, model->d_stream, c, c);
		linear_backward_input(model, model->d_narrow, model->d_stream, parameter(model, l, PROJ_WEIGHT), c, c, NULL, NULL);
		train_parallel(model->threads, model->batch * model->heads, attention_backward_task,
			       &(struct attention){.model = model, .activations = a, .dout = model->d_narrow, .dqkv = model->d_wide});
		linear_backward_parameters(model, gradient(model, l, QKV_WEIGHT), gradient(model, l, QKV_BIAS), a->ln1, model->d_wide, c, 3 * c);
		linear_backward_input(model, model->d_narrow, model->d_wide, parameter(model, l, QKV_WEIGHT), c, 3 * c, NULL, NULL);
		layernorm_backward(&(struct layernorm){.model = model, .out = model->d_stream, .dout = model->d_narrow, .in = stream,
						       .weight = parameter(model, l, LN1_WEIGHT), .mean = a->ln1_mean, .rstd = a->ln1_rstd,
						       .dweight = gradient(model, l, LN1_WEIGHT), .dbias = gradient(model, l, LN1_BIAS)});
		size_t first = offset_of(model, l, LN1_WEIGHT);
		if (completed)
			completed(context, first, end - first);
		end = first;
	}
	train_parallel(TRAIN_THREADS_MAX, pieces(c, TASK_COLUMNS), embed_backward_task, model);
	/* There is no caller to hand a status to: a gradient that is not a number is what every training loop looks for. */
	int status = atomic_load_explicit(&model->status, memory_order_relaxed);
	if (status != ST_OK) {
		st_log(ST_LOG_ERROR, "model: a matrix product of backward failed (%s): the gradient is set to not-a-number", st_status_name((enum st_status)status));
		model->gradients[0] = NAN;
	}
	if (completed)
		completed(context, 0, end);
}

const char *train_isa(void)
{
	static const struct {
		unsigned bits;
		const char *name;
	} sets[] = {{dnnl_cpu_isa_avx512_core, "avx512"}, {dnnl_cpu_isa_avx512_mic, "avx512_mic"}, {dnnl_cpu_isa_avx2, "avx2"}, {dnnl_cpu_isa_avx, "avx"},
		    {dnnl_cpu_isa_sse41, "sse41"}};
	unsigned isa = (unsigned)dnnl_get_effective_cpu_isa();
	for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]); i++)
		if ((isa & sets[i].bits) == sets[i].bits)
			return sets[i].name;
	return "generic";
}
