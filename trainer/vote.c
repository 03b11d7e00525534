#include "vote.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcomm/comm.h"

struct train_ballot {
	struct comm *comm;
	uint32_t ranks;
	uint64_t micro_batches;
	size_t bytes; /* of one rank: with room for the most losses that one has */
	char *all;            /* (ranks, bytes) */
};

enum st_status train_ballot_create(struct comm *comm, uint64_t micro_batches, struct train_ballot **ballot)
{
	struct train_ballot *made = calloc(1, sizeof *made);

	if (made) {
		made->comm = comm;
		made->ranks = comm_size(comm);
		made->micro_batches = micro_batches;
		made->bytes = sizeof(struct train_vote) + (size_t)((micro_batches + made->ranks - 1) / made->ranks) * sizeof(double);
		made->all = calloc(made->ranks, made->bytes);
	}
	if (!made || !made->all) {
		free(made);
		return st_fail(ST_ERR_NOMEM, "no memory for the votes of %u ranks", comm_size(comm));
	}
	*ballot = made;
	return ST_OK;
}

void train_ballot_free(struct train_ballot *ballot)
{
	if (!ballot)
		return;
	free(ballot->all);
	free(ballot);
}

static size_t losses_of(const struct train_ballot *ballot, uint32_t rank)
{
	return (size_t)(ballot->micro_batches * (rank + UINT64_C(1)) / ballot->ranks - ballot->micro_batches * rank / ballot->ranks);
}

static void count(const struct train_ballot *ballot, struct train_tally *tally)
{
	double sum = 0;

	*tally = (struct train_tally){.not_finite_rank = UINT32_MAX};
	for (uint32_t rank = 0; rank < ballot->ranks; rank++) {
		const char *theirs = ballot->all + rank * ballot->bytes;
		struct train_vote vote;
		int finite = 1;
		memcpy(&vote, theirs, sizeof vote);
		for (size_t i = 0; i < losses_of(ballot, rank); i++) {
			double loss;
			memcpy(&loss, theirs + sizeof vote + i * sizeof loss, sizeof loss);
			finite = finite && isfinite(loss);
			sum += loss;
		}
		if (tally->not_finite_rank == UINT32_MAX && (vote.not_finite || !finite)) {
			tally->not_finite_rank = rank;
			tally->not_finite = vote.not_finite;
		}
		if (!tally->stop && vote.stop) {
			tally->stop = vote.stop;
			tally->stop_rank = rank;
		}
		if (vote.elapsed_ns > tally->longest_elapsed_ns)
			tally->longest_elapsed_ns = vote.elapsed_ns;
	}
	tally->loss = sum / (double)ballot->micro_batches;
}

enum st_status train_ballot_vote(struct train_ballot *ballot, const struct train_vote *vote, const double *losses,
				 struct train_tally *tally)
{
	char *mine = ballot->all + comm_rank(ballot->comm) * ballot->bytes;
	struct comm_request *request;

	memcpy(mine, vote, sizeof *vote);
	memcpy(mine + sizeof *vote, losses, losses_of(ballot, comm_rank(ballot->comm)) * sizeof *losses);
	ST_TRY(comm_all_gather(ballot->comm, mine, ballot->all, ballot->bytes, COMM_U8, &request));
	ST_TRY(comm_wait(ballot->comm, &request));
	count(ballot, tally);
	return ST_OK;
}
