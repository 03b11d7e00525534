/*
 * All-reduce on a grid: hierarchical, and 2-D torus.
 *
 * X * Y ranks; those with the same y are a row, those with the same x a column.  Three rings after each other: reduce-scatter along the row, after which
 * the rank at x has 1/X of the range, summed over the row; all-reduce of that along the column; all-gather along the row.
 *
 * HIERARCHICAL: a row is a node and a column a rail: rank l of every node.  1/X of the range crosses between nodes per rail, X rails at a time, so
 * each byte leaves a node as seldom as in any algorithm, in messages of 1/(X Y), and no message waits for more than Y - 1 + 2 (X - 1)
 * others where the ring waits for X Y - 1 twice.  Nodes may hold different numbers of ranks (7 + 8): X is the least of them, and the ranks of a node
 * beyond it fold into the others (rank l into l mod X), which costs these + 2 n b_l + n g.
 * Cost: 2 (X-1) (a_l + n/X b_l) + 2 (Y-1) (a_r + n/(X Y) b_r) + n g.
 *
 * TORUS: rows and columns are stretches of the order of ranks, X the largest divisor of the number of ranks up to its root, as on the machines that
 * are wired so (Jain and others; Ying and others, 2018).  2 (X + Y - 2) messages instead of 2 (X Y - 1).  A prime number of ranks has one column: the ring.
 *
 * The three phases follow each other: links of rows rest while columns work.  Needs two slots, as the ring does.
 */
#include "plan_fold.h"
#include "plan_ring.h"

struct grid {
	struct build build;
	uint32_t columns, rows; /* X, Y */
	uint32_t x, y;
	uint32_t pieces;        /* m: blocks are cut so that one fits into a slot: X * Y * m of them */
	uint32_t row_span, column_span;
};

/* The largest divisor of `count` blocks that fit into a slot together. */
static uint32_t group_of(uint32_t count, uint64_t longest, uint64_t chunk_elements)
{
	uint32_t best = 1;
	for (uint32_t d = 1; (uint64_t)d * d <= count; d++) {
		if (count % d)
			continue;
		if (d * longest <= chunk_elements && d > best)
			best = d;
		if (count / d * longest <= chunk_elements && count / d > best)
			best = count / d;
	}
	return best;
}

/* Cuts the range and starts the plan. */
static enum st_status start(struct grid *grid, const char *name, const struct plan_shape *shape)
{
	const uint64_t cells = (uint64_t)grid->columns * grid->rows;
	uint64_t pieces = 1;
	if (shape->chunk_elements && cells) {
		/* ceil(elements / (cells * pieces)) <= chunk_elements */
		pieces = build_divide_up(build_divide_up(shape->elements, shape->chunk_elements), cells);
		if (!pieces)
			pieces = 1;
	}
	if (cells * pieces > INT32_MAX / 4)
		return st_fail(ST_ERR_USAGE, "%s plan: %ju elements in chunks of %ju are too many chunks", name, (uintmax_t)shape->elements,
			       (uintmax_t)shape->chunk_elements);
	ST_TRY(build_not_wide(name, shape));
	ST_TRY(build_start(&grid->build, name, shape, shape->size == 1 ? 1 : 2, cells ? (uint32_t)(cells * pieces) : 1, 1));
	const uint64_t longest = plan_block_elements(grid->build.plan, 0);
	grid->pieces = (uint32_t)pieces;
	grid->column_span = pieces > 1 ? 1 : group_of(grid->pieces, longest, shape->chunk_elements);
	grid->row_span = pieces > 1 ? 1 : group_of(grid->pieces * grid->rows, longest, shape->chunk_elements);
	return ST_OK;
}

struct ring_ends {
	uint32_t previous, next; /* ranks */
	bool previous_partial;   /* what the previous one brings is a partial sum: others have folded into it */
};

static bool phases(struct grid *grid, enum plan_space own, struct ring_ends row, struct ring_ends column)
{
	struct build *build = &grid->build;
	const uint32_t share = grid->rows * grid->pieces; /* blocks of a rank of the row */
	const bool in_place = build->plan->in_place || own == PLAN_OUTPUT;
	struct ring_part along_row = {.size = grid->columns, .position = grid->x, .own = own, .in_place = in_place,
				      .units = share / grid->row_span, .span = grid->row_span, .stride = share,
				      .partial = own == PLAN_OUTPUT, .previous_partial = row.previous_partial, .unfinished = grid->rows > 1};
	struct ring_part along_column = {.size = grid->rows, .position = grid->y, .scatter = true, .gather = true,
					 .own = grid->columns > 1 ? PLAN_OUTPUT : own, .in_place = grid->columns > 1 || in_place,
					 .units = grid->pieces / grid->column_span, .span = grid->column_span, .origin = grid->x * share,
					 .stride = grid->pieces, .partial = grid->columns > 1 || own == PLAN_OUTPUT,
					 .previous_partial = grid->columns > 1 || column.previous_partial};
	if (grid->columns > 1) {
		along_row.in = build_channel(build, row.previous, false, 0);
		along_row.out = build_channel(build, row.next, true, 0);
		along_row.scatter = true;
		if (!ring_part_build(build, &along_row))
			return false;
	}
	if (grid->rows > 1) {
		along_column.in = build_channel(build, column.previous, false, 0);
		along_column.out = build_channel(build, column.next, true, 0);
		if (!ring_part_build(build, &along_column))
			return false;
	}
	if (grid->columns > 1) {
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

static enum st_status finish(struct grid *grid, bool fits, struct plan **plan)
{
	if (fits)
		return build_finish(&grid->build, plan);
	plan_free(grid->build.plan);
	return st_fail(ST_ERR_USAGE, "%s plan: too many ranks or chunks", grid->build.name);
}

static enum st_status refuse(const char *name, enum plan_collective collective)
{
	return st_fail(ST_ERR_USAGE, "%s plan: %s is not one of its collectives", name, plan_collective_name(collective));
}

enum st_status plan_build_torus(const struct plan_shape *shape, struct plan **plan)
{
	struct grid grid = {.columns = 1};
	if (shape->collective != PLAN_ALLREDUCE)
		return refuse("torus", shape->collective);
	for (uint32_t x = 1; (uint64_t)x * x <= shape->size; x++)
		if (shape->size % x == 0)
			grid.columns = x;
	grid.rows = shape->size / grid.columns;
	ST_TRY(start(&grid, "torus", shape));
	struct build *build = &grid.build;
	if (shape->size == 1) {
		build_alone(build);
		return build_finish(build, plan);
	}
	const uint32_t columns = grid.columns, rows = grid.rows;
	const uint32_t x = grid.x = build->position % columns, y = grid.y = build->position / columns;
	struct ring_ends row = {build_rank_at(build, y * columns + (x + columns - 1) % columns), build_rank_at(build, y * columns + (x + 1) % columns), false};
	struct ring_ends column = {build_rank_at(build, (y + rows - 1) % rows * columns + x), build_rank_at(build, (y + 1) % rows * columns + x), false};
	return finish(&grid, phases(&grid, PLAN_INPUT, row, column), plan);
}

/* Positions node_starts[k] .. node_starts[k + 1] - 1 are node k's. No nodes given: one for each rank. */
static uint32_t first_of(const struct plan_shape *shape, uint32_t node)
{
	return shape->node_starts ? shape->node_starts[node] : node;
}

static enum st_status check_nodes(const struct plan_shape *shape, struct grid *grid)
{
	grid->rows = shape->node_starts ? shape->node_count : shape->size;
	grid->columns = shape->size;
	for (uint32_t k = 0; k < grid->rows; k++) {
		uint32_t first = first_of(shape, k), end = first_of(shape, k + 1);
		if (end <= first || end > shape->size || (!k && first))
			return st_fail(ST_ERR_USAGE, "hierarchical plan: node %u has positions %u to %u of %u", k, first, end, shape->size);
		if (end - first < grid->columns)
			grid->columns = end - first;
	}
	if (!grid->rows || first_of(shape, grid->rows) != shape->size)
		return st_fail(ST_ERR_USAGE, "hierarchical plan: %u nodes do not hold %u ranks", grid->rows, shape->size);
	return ST_OK;
}

enum st_status plan_build_hierarchical(const struct plan_shape *shape, struct plan **plan)
{
	struct grid grid = {0};
	if (shape->collective != PLAN_ALLREDUCE)
		return refuse("hierarchical", shape->collective);
	ST_TRY(check_nodes(shape, &grid));
	ST_TRY(start(&grid, "hierarchical", shape));
	struct build *build = &grid.build;
	if (shape->size == 1) {
		build_alone(build);
		return build_finish(build, plan);
	}
	const uint32_t columns = grid.columns, rows = grid.rows;
	uint32_t low = 0, high = rows; /* the node is one of low .. high - 1 */
	while (high - low > 1) {
		uint32_t middle = low + (high - low) / 2;
		*(first_of(shape, middle) <= build->position ? &low : &high) = middle;
	}
	const uint32_t first = first_of(shape, low), local = build->position - first, per_node = first_of(shape, low + 1) - first;
	/* Divides the whole: what one fold sends at a time. */
	const uint32_t group = grid.row_span;
	if (local >= columns) {
		struct fold fold = fold_with(build, build_rank_at(build, first + local % columns), group);
		fold_give(build, &fold);
		return build_finish(build, plan);
	}
	const uint32_t x = grid.x = local, y = grid.y = low;
	const uint32_t first_channel = build->plan->channel_count;
	enum plan_space own = PLAN_INPUT;
	for (uint32_t giver = local + columns; giver < per_node; giver += columns) {
		struct fold fold = fold_with(build, build_rank_at(build, first + giver), group);
		fold_grant(build, &fold);
	}
	for (uint32_t giver = local + columns, i = 0; giver < per_node; giver += columns, i++) {
		struct fold fold = {.in = (uint16_t)(first_channel + 2 * i), .group = group, .units = build->plan->blocks / group};
		fold.lead = fold.units < shape->slots ? fold.units : shape->slots;
		fold_take(build, &fold, own);
		own = PLAN_OUTPUT;
	}
	const uint32_t left = (x + columns - 1) % columns, above = (y + rows - 1) % rows;
	struct ring_ends row = {build_rank_at(build, first + left), build_rank_at(build, first + (x + 1) % columns), left + columns < per_node};
	struct ring_ends column = {build_rank_at(build, first_of(shape, above) + x), build_rank_at(build, first_of(shape, (y + 1) % rows) + x),
				   first_of(shape, above) + x + columns < first_of(shape, above + 1)};
	bool fits = phases(&grid, own, row, column);
	for (uint32_t giver = local + columns, i = 0; fits && giver < per_node; giver += columns, i++) {
		struct fold fold = {.out = (uint16_t)(first_channel + 2 * i + 1), .group = group, .units = build->plan->blocks / group};
		fold_return(build, &fold);
	}
	return finish(&grid, fits, plan);
}
