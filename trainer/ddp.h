/*
 * Data-parallel gradients: all-reduced in buckets while backward still runs.
 *
 * Backward completes gradients from the end of the flat buffer to its start.  The buffer is cut into buckets from the end; as soon as
 * the last micro-batch's backward has passed a bucket's lower bound, its all-reduce starts.  The cut depends on sizes only, so it is the
 * same on all ranks.  The first bucket is smaller: the sooner communication starts, the more of it backward hides.
 *
 * REPRODUCIBLE.  Given leaves (see comm.h), the micro-batches' gradients are kept apart and summed in one fixed tree over all of them, in the node and
 * between nodes: the sums' bits don't depend on the ranks, on how they are wired, or on buckets.  A rank needs a buffer for each sum that it has to
 * keep until the last micro-batch, leaves.held in all; the first one holds the result.
 */
#ifndef SYNCTRAIN_TRAINER_DDP_H
#define SYNCTRAIN_TRAINER_DDP_H

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

struct comm;
struct comm_leaves;
struct train_buckets;

/* Elements from one buffer of `count` gradients to the next: on cache lines. */
size_t train_buckets_stride(size_t count);

/* gradients: `count` f32 of this rank, borrowed. Buckets of at most bucket_bytes; the first is a quarter of it.  leaves: NULL, or this rank's share of
 * the micro-batches (copied); then gradients are leaves->held buffers, train_buckets_stride(count) apart. */
enum st_status train_buckets_create(struct comm *comm, float *gradients, size_t count, size_t bucket_bytes, const struct comm_leaves *leaves,
				    struct train_buckets **buckets);
void train_buckets_free(struct train_buckets *buckets);

size_t train_buckets_count(const struct train_buckets *buckets);
/* The elements [*offset, *offset + *count) of bucket I, in the order in which they are reduced. */
void train_buckets_range(const struct train_buckets *buckets, size_t index, size_t *offset, size_t *count);

/* With leaves: where backward is to add the gradients of the rank's micro-batch number `index` (0, 1, ...), zeros but for the first, which the caller
 * has cleared; and after that, unless it is the rank's last: they are added to what they can be. */
float *train_buckets_leaf(struct train_buckets *buckets, uint64_t index);
void train_buckets_add_leaf(struct train_buckets *buckets, uint64_t index);

/* Before the last micro-batch's backward. */
void train_buckets_begin(struct train_buckets *buckets);

/* The model's `completed` callback (context: the buckets): starts what is complete and moves on what was started. */
void train_buckets_completed(void *context, size_t offset, size_t count);

/* Starts what is left and waits for all. On success the gradients hold the sum over ranks. */
enum st_status train_buckets_finish(struct train_buckets *buckets);

/* Element of this rank's own gradients, as they were before the reduction (with leaves: of any sum that it sent), that was not finite; SIZE_MAX: all
 * were. Valid once every bucket has been started. */
size_t train_buckets_not_finite(const struct train_buckets *buckets);

/* Nanoseconds of this step spent in communication calls before the end of backward. */
int64_t train_buckets_hidden_call_ns(const struct train_buckets *buckets);

#endif
