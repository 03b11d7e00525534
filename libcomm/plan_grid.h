/*
 * Ranks as a grid: rows (nodes) of at least `columns` ranks.  Column x is a rail: rank x of every row.
 *
 * A row may have more ranks than the grid has columns: these, the extras, have no place in it.  Rank l of a row belongs to column l mod `columns`, and
 * an extra works through the rank of its row that has a place there, its leader.
 */
#ifndef SYNCTRAIN_LIBCOMM_PLAN_GRID_H
#define SYNCTRAIN_LIBCOMM_PLAN_GRID_H

#include "plan_build.h"

struct grid {
	uint32_t columns, rows;
	const uint32_t *starts; /* (rows + 1) position at which each row begins; NULL: all of them are of `columns` ranks */
	uint32_t widest;        /* ranks of the longest row */
	/* This rank's place, made by grid_place. */
	uint32_t x, y;
	uint32_t number;        /* 0: in the grid; else it is the leader's extra of this number, 1, 2, ... */
	uint32_t extras;        /* in the grid: how many extras it leads */
};

void grid_place(struct grid *grid, uint32_t position);

/* The position of rank l of a row. */
uint32_t grid_position(const struct grid *grid, uint32_t row, uint32_t l);

/* Whether the rank at column x of a row leads extras. */
bool grid_leads(const struct grid *grid, uint32_t row, uint32_t x);

/* Chunk by chunk, rows and rails overlapping, any collective but barrier; may be wide.  *build has been given to nobody; all others as for builders. */
enum st_status grid_chunks_build(struct build *build, const char *name, const struct plan_shape *shape, struct grid *grid, struct plan **plan);

#endif
