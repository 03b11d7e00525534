/* The ring as a part of other plans: reduce-scatter, all-gather or both among some ranks on a part of the range. */
#ifndef SYNCTRAIN_LIBCOMM_PLAN_RING_H
#define SYNCTRAIN_LIBCOMM_PLAN_RING_H

#include "plan_build.h"

/*
 * `size` ranks, this one at `position`; the range is shared out among them: share s is `units` units from block origin + s * stride on, and becomes
 * that of the rank at position s.  A unit is `span` consecutive blocks, or, when span is 0, one chunk of a block.
 */
struct ring_part {
	uint32_t size, position;
	uint16_t in, out;     /* channels from the previous and to the next position */
	bool scatter, gather; /* which phases */
	enum plan_space own;  /* where this rank's operands are; results go to OUTPUT */
	bool in_place;        /* which is the same memory */
	bool partial, previous_partial; /* they are partial sums, not inputs; and so are those of the rank at the previous position */
	bool unfinished;                /* scatter alone: what it makes is a partial sum still */
	uint64_t units;
	uint32_t span, origin, stride;
};

/* Adds the steps.  All grants are waited for and all puts flushed at their end.  Needs two slots and size >= 2.  False: too many units. */
bool ring_part_build(struct build *build, const struct ring_part *part);

#endif
