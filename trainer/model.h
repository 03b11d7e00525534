/*
 * A decoder-only transformer of GPT-2's architecture (Radford et al., 2019), f32, forward and backward on the CPU.
 *
 * All parameters lie in one flat buffer, and their gradients in another of the same layout, ordered so that backward completes
 * gradients from the end of the buffer to its start: wte, wpe, h.0 .. h.L-1, ln_f.  Tensor names are HuggingFace's
 * ("h.3.attn.c_attn.weight", Conv1D orientation: (in, out)), the output projection is tied to wte.  GELU is the tanh form.
 *
 * Shapes: B micro-batch rows, T tokens a row, C channels, V vocabulary, L layers, NH heads.
 */
#ifndef SYNCTRAIN_TRAINER_MODEL_H
#define SYNCTRAIN_TRAINER_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

struct train_model_config {
	int64_t vocabulary;     /* V, tokens 0..V-1 */
	int64_t context;        /* longest T */
	int64_t layers, heads, channels; /* channels divisible by heads */
};

struct train_tensor {
	char name[64];
	size_t offset, elements;   /* in the flat buffers, elements; offsets ascend, no gaps */
	size_t rows, columns;      /* (rows, columns); vectors: rows = 1 */
	bool decay;                /* weight decay applies: matrices and embeddings, not biases or LayerNorm */
};

struct train_model;

/*
 * Allocates activations for micro-batches of at most (batch, tokens): nothing is allocated later.  Parameters and gradients are the
 * caller's: see train_model_bind.  Uses train_threads() threads as they are at this call.
 * ST_ERR_CONFIG: a size out of range, or channels no multiple of heads.  ST_ERR_NOMEM: names the bytes needed.
 */
enum st_status train_model_create(const struct train_model_config *config, size_t batch, size_t tokens, struct train_model **model);
void train_model_free(struct train_model *model);

size_t train_model_parameters(const struct train_model *model); /* elements of the flat buffer */
size_t train_model_tensors(const struct train_model *model, const struct train_tensor **tensors);
size_t train_model_bytes(const struct train_model *model); /* allocated for activations */

/* Uses these flat buffers (train_model_parameters elements each, 64-byte aligned, borrowed). gradients may be NULL: forward only. */
void train_model_bind(struct train_model *model, float *parameters, float *gradients);

/*
 * GPT-2's initial values: N(0, 0.02), the projections into the residual stream divided by sqrt(2L), biases 0, LayerNorm 1.  A
 * pure function of (seed, element index), with the same bits on every machine.
 */
void train_model_initialize(struct train_model *model, uint64_t seed);

/*
 * inputs, targets: (B, T) tokens, row major, copied, all < V: else ST_ERR_DATA names the position.  *loss: mean cross-entropy in nats
 * over B*T tokens.  ST_ERR_USAGE: not bound, or more than what was created.  ST_ERR_NOMEM, ST_ERR_INTERNAL: a matrix product failed.
 */
enum st_status train_model_forward(struct train_model *model, const uint16_t *inputs, const uint16_t *targets, size_t batch,
				   size_t tokens, double *loss);

/*
 * Adds scale * d(loss)/d(parameters) of the last forward to the gradients (accumulates).  After the gradients of the elements
 * [offset, offset + count) have their final value for this micro-batch, calls completed(context, offset, count) on the calling
 * thread: ranges come in descending order, without gaps: h.L-1 with ln_f, h.L-2 .. h.0, then both embeddings (wte is also the output
 * projection, so it is complete last).  completed may be NULL.  When a matrix product fails (out of memory), says so in the log
 * and makes the gradient not-a-number, which the training loop skips as any such step.
 */
typedef void train_completed(void *context, size_t offset, size_t count);
void train_model_backward(struct train_model *model, float scale, train_completed *completed, void *context);

/*
 * Threads used for matrix products and loops, the caller among them; default OMP_NUM_THREADS, else the CPUs this process may run on.  Set it before
 * train_model_create.  The bits of a run do not depend on it.  Idle threads sleep.  See trainer/threads.h.
 */
void train_set_threads(int threads);
int train_threads(void);

/* The instruction set of the matrix products: "avx512", "avx512_mic", "avx2", "avx", "sse41", "generic". Bits of a run depend on it: it is
 * in the manifest.  The environment variable DNNL_MAX_CPU_ISA (e.g. AVX2) lowers it, so that different CPUs can agree. */
const char *train_isa(void);

#endif
