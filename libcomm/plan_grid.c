/*
 * Algorithms on a grid: hierarchical, and 2-D torus.
 *
 * X * Y ranks; those with the same y are a row, those with the same x a column.  All-reduce: reduce-scatter along the row, after which the rank at x has
 * 1/X of the range, summed over the row; all-reduce of that along the column; all-gather along the row.  Reduce-scatter is the first half of that,
 * all-gather the second.
 *
 * HIERARCHICAL: a row is a node and a column a rail: rank l of every node.  1/X of the range crosses between nodes per rail, X rails at a time, so
 * each byte leaves a node as seldom as in any algorithm, and no message waits for more than Y - 1 + 2 (X - 1) others where the ring waits for
 * X Y - 1 twice.  Nodes may hold different numbers of ranks (7 + 8): X is the least of them, and the ranks of a node beyond it work through the
 * others (rank l through l mod X), which costs these + 2 n b_l + n g.  Broadcast: along the root's rail, and along each node.  Barrier: an
 * all-reduce of nothing.
 * Cost: 2 (X-1) (a_l + n/X b_l) + 2 (Y-1) (a_r + n/(X Y) b_r) + n g.
 *
 * TORUS: rows and columns are stretches of the order of ranks, X the largest divisor of the number of ranks up to its root, as on the machines that
 * are wired so (Jain and others; Ying and others, 2018).  2 (X + Y - 2) messages instead of 2 (X Y - 1).  A prime number of ranks has one column: the ring.
 *
 * An all-reduce of FEW BYTES, a rank's part of a row in one slot, takes three rings after each other with the fewest messages; all else goes chunk by chunk
 * with rows and columns at work at the same time: plan_grid_chunks.c.  Needs two slots, as the ring does.
 */
#include "plan_fold.h"
#include "plan_grid.h"
#include "plan_ring.h"

uint32_t grid_position(const struct grid *grid, uint32_t row, uint32_t l)
{
	return (grid->starts ? grid->starts[row] : row * grid->columns) + l;
}

static uint32_t ranks_of(const struct grid *grid, uint32_t row)
{
	return grid->starts ? grid->starts[row + 1] - grid->starts[row] : grid->columns;
}

bool grid_leads(const struct grid *grid, uint32_t row, uint32_t x)
{
	return x + grid->columns < ranks_of(grid, row);
}

void grid_place(struct grid *grid, uint32_t position)
{
	uint32_t low = 0, high = grid->rows; /* the row is one of low .. high - 1 */
	while (high - low > 1) {
		uint32_t middle = low + (high - low) / 2;
		*(grid_position(grid, middle, 0) <= position ? &low : &high) = middle;
	}
	const uint32_t l = position - grid_position(grid, low, 0);
	grid->y = low;
	grid->x = l % grid->columns;
	grid->number = l / grid->columns;
	grid->extras = grid->number ? 0 : (ranks_of(grid, low) - 1 - grid->x) / grid->columns;
}

/* All-reduce, and barrier: three rings with as few messages as there are hops. Blocks are the X * Y parts; a part of the row is Y of them. */
static bool three_rings(struct build *build, const struct grid *grid, enum plan_space own)
{
	const uint32_t columns = grid->columns, rows = grid->rows, x = grid->x, y = grid->y, left = (x + columns - 1) % columns, above = (y + rows - 1) % rows;
	const bool in_place = build->plan->in_place || own == PLAN_OUTPUT;
	struct ring_part along_row = {.size = columns, .position = x, .own = own, .in_place = in_place, .units = 1, .span = rows, .stride = rows,
				      .partial = own == PLAN_OUTPUT, .previous_partial = grid_leads(grid, y, left), .unfinished = rows > 1};
	struct ring_part along_column = {.size = rows, .position = y, .scatter = true, .gather = true, .own = columns > 1 ? PLAN_OUTPUT : own,
					 .in_place = columns > 1 || in_place, .units = 1, .span = 1, .origin = x * rows, .stride = 1,
					 .partial = columns > 1 || own == PLAN_OUTPUT, .previous_partial = columns > 1 || grid_leads(grid, above, x)};
	if (columns > 1) {
		along_row.in = build_channel(build, build_rank_at(build, grid_position(grid, y, left)), false, 0);
		along_row.out = build_channel(build, build_rank_at(build, grid_position(grid, y, (x + 1) % columns)), true, 0);
		along_row.scatter = true;
		if (!ring_part_build(build, &along_row))
			return false;
	}
	if (rows > 1) {
		along_column.in = build_channel(build, build_rank_at(build, grid_position(grid, above, x)), false, 0);
		along_column.out = build_channel(build, build_rank_at(build, grid_position(grid, (y + 1) % rows, x)), true, 0);
		if (!ring_part_build(build, &along_column))
			return false;
	}
	if (columns > 1) {
		along_row.scatter = false;
		along_row.gather = true;
		along_row.own = PLAN_OUTPUT;
		along_row.in_place = true;
		along_row.partial = along_row.previous_partial = along_row.unfinished = false;
		if (!ring_part_build(build, &along_row))
			return false;
	}
	return true;
}

/* Extras fold: they hand over their operands at the beginning and get the sums at the end. */
static bool folded(struct build *build, const struct grid *grid)
{
	const uint32_t group = grid->rows;
	if (grid->number) {
		struct fold fold = fold_with(build, build_rank_at(build, grid_position(grid, grid->y, grid->x)), group);
		fold_give(build, &fold);
		return true;
	}
	const uint32_t first = build->plan->channel_count, units = build->plan->blocks / group;
	const uint32_t lead = units < build->plan->slots ? units : build->plan->slots;
	enum plan_space own = PLAN_INPUT;
	for (uint32_t e = 1; e <= grid->extras; e++) {
		struct fold fold = fold_with(build, build_rank_at(build, grid_position(grid, grid->y, grid->x + e * grid->columns)), group);
		fold_grant(build, &fold);
	}
	for (uint32_t e = 0; e < grid->extras; e++) {
		struct fold fold = {.in = (uint16_t)(first + 2 * e), .group = group, .units = units, .lead = lead};
		fold_take(build, &fold, own);
		own = PLAN_OUTPUT;
	}
	if (!three_rings(build, grid, own))
		return false;
	for (uint32_t e = 0; e < grid->extras; e++) {
		struct fold fold = {.out = (uint16_t)(first + 2 * e + 1), .group = group, .units = units};
		fold_return(build, &fold);
	}
	return true;
}

static enum st_status build_grid(const char *name, const struct plan_shape *shape, struct grid *grid, struct plan **plan)
{
	struct build build;
	const uint64_t cells = (uint64_t)grid->columns * grid->rows;
	const bool reduces = shape->collective == PLAN_ALLREDUCE || shape->collective == PLAN_BARRIER;
	const bool few = cells && build_divide_up(shape->elements, cells) * grid->rows <= shape->chunk_elements;
	if (!cells || !reduces || !few || shape->wide)
		return grid_chunks_build(&build, name, shape, grid, plan);
	ST_TRY(build_start(&build, name, shape, shape->size == 1 ? 1 : 2, (uint32_t)cells, 1));
	if (shape->size == 1) {
		build_alone(&build);
		return build_finish(&build, plan);
	}
	build.plan->compact_input = false;
	grid_place(grid, build.position);
	if (folded(&build, grid))
		return build_finish(&build, plan);
	plan_free(build.plan);
	return st_fail(ST_ERR_USAGE, "%s plan: too many ranks", name);
}

enum st_status plan_build_torus(const struct plan_shape *shape, struct plan **plan)
{
	struct grid grid = {.columns = 1};
	if (shape->collective != PLAN_ALLREDUCE && shape->collective != PLAN_REDUCE_SCATTER && shape->collective != PLAN_ALL_GATHER)
		return st_fail(ST_ERR_USAGE, "torus plan: %s is not one of its collectives", plan_collective_name(shape->collective));
	for (uint32_t x = 1; (uint64_t)x * x <= shape->size; x++)
		if (shape->size % x == 0)
			grid.columns = x;
	grid.widest = grid.columns;
	grid.rows = shape->size / grid.columns;
	return build_grid("torus", shape, &grid, plan);
}

enum st_status plan_build_hierarchical(const struct plan_shape *shape, struct plan **plan)
{
	/* No nodes given: one for each rank. */
	struct grid grid = {.columns = 1, .widest = 1, .rows = shape->size};
	if (shape->node_starts) {
		grid = (struct grid){.columns = shape->size, .rows = shape->node_count, .starts = shape->node_starts};
		for (uint32_t k = 0; k < grid.rows; k++) {
			uint32_t first = grid.starts[k], end = grid.starts[k + 1];
			if (end <= first || end > shape->size || (!k && first))
				return st_fail(ST_ERR_USAGE, "hierarchical plan: node %u has positions %u to %u of %u", k, first, end, shape->size);
			if (end - first < grid.columns)
				grid.columns = end - first;
			if (end - first > grid.widest)
				grid.widest = end - first;
		}
		if (!grid.rows || grid.starts[grid.rows] != shape->size)
			return st_fail(ST_ERR_USAGE, "hierarchical plan: %u nodes do not hold %u ranks", grid.rows, shape->size);
	}
	return build_grid("hierarchical", shape, &grid, plan);
}
