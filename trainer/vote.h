/*
 * What ranks tell each other once a step, after the gradients: losses, whether the gradient was finite, whether to stop.
 *
 * One small all-gather behind the gradient buckets: no extra round trip, and every rank computes the same verdict from the same bytes.
 * Losses travel as f64, one per micro-batch, and are summed in the order of the micro-batches: the mean does not depend on how many ranks
 * shared them.
 */
#ifndef SYNCTRAIN_TRAINER_VOTE_H
#define SYNCTRAIN_TRAINER_VOTE_H

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"
#include "trainer/stop.h"

struct comm;
struct train_ballot;

struct train_vote {
	uint64_t not_finite;  /* element of the flat gradient buffer, + 1; 0: all were finite */
	int64_t elapsed_ns;   /* since the last time all ranks met, until this rank's backward was done */
	train_stop stop;
	uint32_t reserved;
};

struct train_tally {
	double loss;                   /* mean over all micro-batches */
	uint32_t not_finite_rank;      /* lowest rank whose loss or gradient was not finite; UINT32_MAX: none */
	uint64_t not_finite;           /* its element + 1; 0: its loss */
	uint32_t stop_rank;            /* lowest rank that wants to stop */
	train_stop stop;               /* its reason; 0: nobody wants to */
	int64_t longest_elapsed_ns;
};

/* Rank r of n brings the losses of micro-batches [r M / n], rounded down, to [(r + 1) M / n] - 1 to each vote, M = micro_batches. */
enum st_status train_ballot_create(struct comm *comm, uint64_t micro_batches, struct train_ballot **ballot);
void train_ballot_free(struct train_ballot *ballot);

/* Collective, blocking. */
enum st_status train_ballot_vote(struct train_ballot *ballot, const struct train_vote *vote, const double *losses,
				 struct train_tally *tally);

#endif
