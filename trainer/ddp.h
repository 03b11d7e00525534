/*
 * Data-parallel gradients: all-reduced in buckets while backward still runs.
 *
 * Backward completes gradients from the end of the flat buffer to its start.  The buffer is cut into buckets from the end; as soon as
 * the last micro-batch's backward has passed a bucket's lower bound, its all-reduce starts.  The cut depends on sizes only, so it is the
 * same on all ranks.  The first bucket is smaller: the sooner communication starts, the more of it backward hides.
 */
#ifndef SYNCTRAIN_TRAINER_DDP_H
#define SYNCTRAIN_TRAINER_DDP_H

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

struct comm;
struct train_buckets;

/* gradients: `count` f32 of this rank, borrowed. Buckets of at most bucket_bytes; the first is a quarter of it. */
enum st_status train_buckets_create(struct comm *comm, float *gradients, size_t count, size_t bucket_bytes, struct train_buckets **buckets);
void train_buckets_free(struct train_buckets *buckets);

size_t train_buckets_count(const struct train_buckets *buckets);
/* The elements [*offset, *offset + *count) of bucket I, in the order in which they are reduced. */
void train_buckets_range(const struct train_buckets *buckets, size_t index, size_t *offset, size_t *count);

/* Before the last micro-batch's backward. */
void train_buckets_begin(struct train_buckets *buckets);

/* The model's `completed` callback (context: the buckets): starts what is complete and moves on what was started. */
void train_buckets_completed(void *context, size_t offset, size_t count);

/* Starts what is left and waits for all. On success the gradients hold the sum over ranks. */
enum st_status train_buckets_finish(struct train_buckets *buckets);

/* Element of this rank's own gradients, as they were before the reduction, that was not finite; SIZE_MAX: all were. Valid once every
 * bucket has been started. */
size_t train_buckets_not_finite(const struct train_buckets *buckets);

/* Nanoseconds of this step spent in communication calls before the end of backward. */
int64_t train_buckets_hidden_call_ns(const struct train_buckets *buckets);

#endif
