#include "ddp.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "libcomm/comm.h"
#include "trainer/kernels.h"
#include "trainer/optimizer.h"
#include "trainer/threads.h"

/* Buckets begin on cache lines, which keeps two buckets' reductions off each other's lines. */
#define ALIGN_ELEMENTS ((size_t)16)

/* What one task adds or clears. */
#define TASK_ELEMENTS ((size_t)1 << 16)

struct bucket {
	size_t offset, count;
	struct comm_request *request;
};

struct train_buckets {
	struct comm *comm;
	float *gradients;
	size_t elements, stride;
	bool ordered;
	struct comm_leaves leaves; /* if ordered */
	struct bucket *buckets;
	size_t count, started, not_finite;
	enum st_status status; /* the first failure: a callback has nowhere to return it to */
	int64_t call_ns;
};

static size_t elements_of(size_t bytes)
{
	size_t elements = bytes / sizeof(float) / ALIGN_ELEMENTS * ALIGN_ELEMENTS;

	return elements ? elements : ALIGN_ELEMENTS;
}

size_t train_buckets_stride(size_t count)
{
	return (count + ALIGN_ELEMENTS - 1) / ALIGN_ELEMENTS * ALIGN_ELEMENTS;
}

enum st_status train_buckets_create(struct comm *comm, float *gradients, size_t count, size_t bucket_bytes, const struct comm_leaves *leaves,
				    struct train_buckets **buckets)
{
	size_t first = elements_of(bucket_bytes / 4), other = elements_of(bucket_bytes);
	struct train_buckets *made = calloc(1, sizeof *made);

	if (!made || !(made->buckets = calloc(count / other + 2, sizeof *made->buckets))) {
		free(made);
		return st_fail(ST_ERR_NOMEM, "no memory for the buckets of %zu gradients", count);
	}
	made->comm = comm;
	made->gradients = gradients;
	made->elements = count;
	made->stride = train_buckets_stride(count);
	if (leaves) {
		made->ordered = true;
		made->leaves = *leaves;
	}
	for (size_t end = count; end;) {
		size_t size = made->count ? other : first;
		size_t begin = end > size ? (end - size) / ALIGN_ELEMENTS * ALIGN_ELEMENTS : 0;
		made->buckets[made->count++] = (struct bucket){.offset = begin, .count = end - begin};
		end = begin;
	}
	made->started = made->count;
	made->not_finite = SIZE_MAX;
	*buckets = made;
	return ST_OK;
}

void train_buckets_free(struct train_buckets *buckets)
{
	if (!buckets)
		return;
	free(buckets->buckets);
	free(buckets);
}

size_t train_buckets_count(const struct train_buckets *buckets)
{
	return buckets->count;
}

void train_buckets_range(const struct train_buckets *buckets, size_t index, size_t *offset, size_t *count)
{
	*offset = buckets->buckets[index].offset;
	*count = buckets->buckets[index].count;
}

/* to[i] += from[i], or to[i] = 0 without from. */
struct addition {
	float *to;
	const float *from;
	size_t count;
};

static void addition_task(void *context, size_t index, unsigned thread)
{
	const struct addition *job = context;
	size_t begin = index * TASK_ELEMENTS, count = job->count - begin < TASK_ELEMENTS ? job->count - begin : TASK_ELEMENTS;

	(void)thread;
	if (job->from)
		train_kernels()->add(job->to + begin, job->from + begin, count);
	else
		memset(job->to + begin, 0, count * sizeof *job->to);
}

static void run_addition(struct addition job)
{
	train_parallel(TRAIN_THREADS_MAX, (job.count + TASK_ELEMENTS - 1) / TASK_ELEMENTS, addition_task, &job);
}

static float *layer_at(const struct train_buckets *buckets, unsigned layer)
{
	return buckets->gradients + layer * buckets->stride;
}

/* Elements [offset, offset + count) of a micro-batch's gradients are complete: the sums of the tree that this completes, left half + right half. */
static void add_up(const struct train_buckets *buckets, uint32_t leaf, size_t offset, size_t count)
{
	unsigned sums, layer = comm_leaf_place(&buckets->leaves, leaf, &sums);

	for (; sums; sums--, layer--)
		run_addition((struct addition){layer_at(buckets, layer - 1) + offset, layer_at(buckets, layer) + offset, count});
}

float *train_buckets_leaf(struct train_buckets *buckets, uint64_t index)
{
	unsigned sums, layer = comm_leaf_place(&buckets->leaves, buckets->leaves.first + (uint32_t)index, &sums);

	if (layer)
		run_addition((struct addition){layer_at(buckets, layer), NULL, buckets->elements});
	return layer_at(buckets, layer);
}

void train_buckets_add_leaf(struct train_buckets *buckets, uint64_t index)
{
	add_up(buckets, buckets->leaves.first + (uint32_t)index, 0, buckets->elements);
}

void train_buckets_begin(struct train_buckets *buckets)
{
	buckets->started = 0;
	buckets->not_finite = SIZE_MAX;
	buckets->status = ST_OK;
	buckets->call_ns = 0;
}

/* Once summed, a NaN is every rank's: the rank that made it can only be named before. The sum of squares is f64, so that finite
 * gradients can't overflow it. */
static void look_for_not_finite(struct train_buckets *buckets, const struct bucket *bucket, const float *values)
{
	if (buckets->not_finite != SIZE_MAX || isfinite(train_sum_of_squares(values, bucket->count)))
		return;
	for (size_t i = 0; i < bucket->count; i++)
		if (!isfinite(values[i])) {
			buckets->not_finite = bucket->offset + i;
			return;
		}
}

static void start_down_to(struct train_buckets *buckets, size_t offset)
{
	while (buckets->started < buckets->count && buckets->buckets[buckets->started].offset >= offset) {
		struct bucket *bucket = &buckets->buckets[buckets->started++];
		float *values = buckets->gradients + bucket->offset;
		if (buckets->ordered)
			add_up(buckets, buckets->leaves.end - 1, bucket->offset, bucket->count);
		for (unsigned layer = 0; layer < (buckets->ordered ? buckets->leaves.roots : 1); layer++)
			look_for_not_finite(buckets, bucket, layer_at(buckets, layer) + bucket->offset);
		int64_t begun = st_now_ns();
		if (buckets->status == ST_OK && buckets->ordered)
			buckets->status = comm_allreduce_ordered(buckets->comm, &buckets->leaves, values, buckets->stride, values, bucket->count, COMM_F32,
								 COMM_SUM, &bucket->request);
		else if (buckets->status == ST_OK)
			buckets->status = comm_allreduce(buckets->comm, values, values, bucket->count, COMM_F32, COMM_SUM, &bucket->request);
		buckets->call_ns += st_now_ns() - begun;
	}
}

void train_buckets_completed(void *context, size_t offset, size_t count)
{
	struct train_buckets *buckets = context;

	(void)count;
	start_down_to(buckets, offset);
	int64_t begun = st_now_ns();
	if (buckets->status == ST_OK)
		buckets->status = comm_progress(buckets->comm);
	buckets->call_ns += st_now_ns() - begun;
}

enum st_status train_buckets_finish(struct train_buckets *buckets)
{
	start_down_to(buckets, 0);
	for (size_t i = 0; i < buckets->count; i++) {
		if (buckets->status == ST_OK && buckets->buckets[i].request)
			buckets->status = comm_wait(buckets->comm, &buckets->buckets[i].request);
		/* After a failure the communicator can only be freed, and frees its requests. */
		buckets->buckets[i].request = NULL;
	}
	return buckets->status;
}

size_t train_buckets_not_finite(const struct train_buckets *buckets)
{
	return buckets->not_finite;
}

int64_t train_buckets_hidden_call_ns(const struct train_buckets *buckets)
{
	return buckets->call_ns;
}
