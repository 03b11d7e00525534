/*
 * Folding: a rank that an algorithm has no place for hands its operand to another one and gets the sum at the end.
 *
 * Costs the pair 2 a + 2 n b + n g for all of the range.  Works with one slot.
 */
#ifndef SYNCTRAIN_LIBCOMM_PLAN_FOLD_H
#define SYNCTRAIN_LIBCOMM_PLAN_FOLD_H

#include "plan_build.h"

struct fold {
	uint16_t in, out;
	uint32_t group, units; /* blocks per put (a divisor of the plan's blocks), puts */
	uint32_t lead;         /* puts under way at a time */
};

/* The two channels to the other rank. */
struct fold fold_with(struct build *build, uint32_t peer, uint32_t group);

/* All that the rank that hands over does: INPUT to the other one, the sum into OUTPUT. */
void fold_give(struct build *build, const struct fold *fold);

/* The other rank: grants its slots; OUTPUT = what comes + own (INPUT, or a partial sum in OUTPUT), a partial sum; at the end OUTPUT to the giver, flushed. */
void fold_grant(struct build *build, const struct fold *fold);
void fold_take(struct build *build, const struct fold *fold, enum plan_space own);
void fold_return(struct build *build, const struct fold *fold);

#endif
