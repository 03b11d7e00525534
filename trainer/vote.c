#include "vote.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcomm/comm.h"

struct train_ballot {
	struct comm *comm;
	uint32_t ranks;
	size_t losses, bytes; /* of one rank */
	char *all;            /* (ranks, bytes) */
};

enum st_status train_ballot_create(struct comm *comm, size_t losses, struct train_ballot **ballot)
{
	struct train_ballot *made = calloc(1, sizeof *made);

	if (made) {
		made->comm = comm;
		made->ranks = comm_size(comm);
		made->losses = losses;
		made->bytes = sizeof(struct train_vote) + losses * sizeof(double);
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

static void count(const struct train_ballot *ballot, struct train_tally *tally)
{
	double sum = 0;

	*tally = (struct train_tally){.not_finite_rank = UINT32_MAX};
	for (uint32_t rank = 0; rank < ballot->ranks; rank++) {
		const char *theirs = ballot->all + rank * ballot->bytes;
		struct train_vote vote;
		int finite = 1;
		memcpy(&vote, theirs, sizeof vote);
		for (size_t i = 0; i < ballot->losses; i++) {
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
	tally->loss = sum / (double)((size_t)ballot->ranks * ballot->losses);
}

enum st_status train_ballot_vote(struct train_ballot *ballot, const struct train_vote *vote, const double *losses,
				 struct train_tally *tally)
{
	char *mine = ballot->all + comm_rank(ballot->comm) * ballot->bytes;
	struct comm_request *request;

	memcpy(mine, vote, sizeof *vote);
	memcpy(mine + sizeof *vote, losses, ballot->losses * sizeof *losses);
	ST_TRY(comm_all_gather(ballot->comm, mine, ballot->all, ballot->bytes, COMM_U8, &request));
	ST_TRY(comm_wait(ballot->comm, &request));
	count(ballot, tally);
	return ST_OK;
}
