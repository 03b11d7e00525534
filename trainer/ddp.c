#include "ddp.h"

#include <math.h>
#include <stdlib.h>

#include "common/clock.h"
#include "libcomm/comm.h"
#include "trainer/optimizer.h"

/* Buckets begin on cache lines, which keeps two buckets' reductions off each other's lines. */
#define ALIGN_ELEMENTS ((size_t)16)

struct bucket {
	size_t offset, count;
	struct comm_request *request;
};

struct train_buckets {
	struct comm *comm;
	float *gradients;
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

enum st_status train_buckets_create(struct comm *comm, float *gradients, size_t count, size_t bucket_bytes, struct train_buckets **buckets)
{
	size_t first = elements_of(bucket_bytes / 4), other = elements_of(bucket_bytes);
	struct train_buckets *made = calloc(1, sizeof *made);

	if (!made || !(made->buckets = calloc(count / other + 2, sizeof *made->buckets))) {
		free(made);
		return st_fail(ST_ERR_NOMEM, "no memory for the buckets of %zu gradients", count);
	}
	made->comm = comm;
	made->gradients = gradients;
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

void train_buckets_begin(struct train_buckets *buckets)
{
	buckets->started = 0;
	buckets->not_finite = SIZE_MAX;
	buckets->status = ST_OK;
	buckets->call_ns = 0;
}

/* Once summed, a NaN is every rank's: the rank that made it can only be named before. The sum of squares is f64, so that finite
 * gradients can't overflow it. */
static void look_for_not_finite(struct train_buckets *buckets, const struct bucket *bucket)
{
	const float *values = buckets->gradients + bucket->offset;

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
		look_for_not_finite(buckets, bucket);
		int64_t begun = st_now_ns();
		if (buckets->status == ST_OK)
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
