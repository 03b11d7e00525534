/*
 * Collectives on a grid, chunk by chunk.
 *
 * The range is cut into a block for each rank of the grid (all-reduce) or of the job (reduce-scatter, all-gather), blocks into chunks, and a round
 * deals with one chunk of each block of the grid.  Let (t, c) be the block of the rank at row t and column c.
 *
 * REDUCE-SCATTER.  A round has a turn for each row t, y - 1, y - 2, ..., y at last.  In a turn the ranks of row y add up what they have of the blocks
 * (t, c): a ring along the row, after which the rank at column x has the row's sum of (t, x).  A ring along the rail adds the rows' sums: what
 * came from the row above, in its last turn, and this row's go on together.  So while a sum is on its way to the next node, the
 * node adds up the next one, and no more than a chunk or two is ever on the way in one place: partial sums need slots, and no room in OUTPUT.
 * ALL-GATHER: the same backwards.  In a turn a block comes along the rail, goes on to the next row, and around this one.
 * All-reduce does both in each round.  BROADCAST: a chain of chunks along the root's rail, and from there along each row.
 *
 * EXTRAS.  They hand their leader each operand when it is the leader's turn to add that one, and get from it each block when it comes by.  In
 * reduce-scatter and all-gather they have blocks of their own too: these are further layers of the leader's, one after the other chunk by chunk; where
 * another row has no such rank the layer has a hole, and an empty chunk travels.
 *
 * ORDER OF STEPS.  Every channel has one grant given ahead of the one that is waited for, from the beginning of its turn on.  Nobody waits in a circle: what
 * comes along the rail was put in the turn before; what comes along the row was put one step earlier in the same turn; all else depends on
 * a rank that is not further on.  Needs two slots; more let sums be on their way to the network for longer.
 */
#include "plan_grid.h"

enum { WORK_FIRST, WORK_SUM, WORK_EXTRA, WORK_SLOTS };

struct chunks {
	struct build *build;
	const struct grid *grid;
	int32_t x, y, columns, rows, width, layers;
	uint16_t row_in, row_out, rail_in, rail_out;
	uint16_t leader_in, leader_out;
	uint16_t first_extra;             /* channels of extra e, 1, 2, ...: first_extra + 2 (e - 1) from it, and the next to it */
	int32_t row_scatter, row_gather;  /* units per round that arrive in slots along the row */
	int32_t rail_scatter, rail_gather;
	bool has_row, has_rail;
};

/* Which loop variable is the turn and the step in the turn; -1: none.  The round is variable 0. */
struct scope {
	int turn, step;
};

static uint16_t extra_in(const struct chunks *chunks, uint32_t e)
{
	return (uint16_t)(chunks->first_extra + 2 * (e - 1));
}

static uint16_t extra_out(const struct chunks *chunks, uint32_t e)
{
	return (uint16_t)(chunks->first_extra + 2 * (e - 1) + 1);
}

static void set(struct plan_affine *affine, int variable, int32_t factor)
{
	if (variable >= 0)
		affine->v[variable] = factor;
}

/* The round's chunk of block (y - up, x - left), one row further up per turn and one column further left per step. */
static struct plan_operand block(const struct chunks *chunks, enum plan_space space, struct scope scope, int32_t up, int32_t left)
{
	struct plan_operand operand = {.space = space, .chunk.v = {1}};
	operand.block.first.base = (chunks->y - up) * chunks->width;
	set(&operand.block.first, scope.turn, -chunks->width);
	operand.block.cycle.base = chunks->x - left;
	set(&operand.block.cycle, scope.step, -1);
	operand.block.modulus = (uint32_t)chunks->columns;
	operand.block.stride = 1;
	return operand;
}

static struct plan_operand in_slot(struct plan_operand operand, uint16_t channel)
{
	operand.space = PLAN_SCRATCH;
	operand.channel = channel;
	return operand;
}

static struct plan_operand in_work(struct plan_operand operand, int32_t slot)
{
	operand.space = PLAN_WORK;
	operand.slot.base = slot;
	operand.partial = (struct plan_affine){.base = slot != WORK_EXTRA};
	return operand;
}

static bool adds(const struct chunks *chunks)
{
	return chunks->build->plan->collective != PLAN_ALL_GATHER;
}

static bool gathers(const struct chunks *chunks)
{
	return chunks->build->plan->collective != PLAN_REDUCE_SCATTER;
}

static int32_t slack(const struct chunks *chunks)
{
	return (int32_t)chunks->build->plan->slots - 2;
}

/* In the rounds of layer e of the own column. */
static void in_layer(const struct chunks *chunks, struct plan_step *step, uint32_t e)
{
	if (chunks->layers == 1)
		return;
	step->guard = (struct plan_affine){.base = -(int32_t)e, .v = {1}};
	step->every = (uint32_t)chunks->layers;
}

/* ---- adding ------------------------------------------------------------------------------------------------------------- */

/* The slot of what arrives along the row at step `first` (plus the scope's step) of turn `turn`: what the rank before has of block (y - 1 - turn, x - 2 - step). */
static struct plan_operand row_sum(const struct chunks *chunks, struct scope scope, int32_t turn, int32_t first)
{
	struct plan_operand operand = in_slot(block(chunks, PLAN_SCRATCH, scope, 1 + turn, 2 + first), chunks->row_in);
	operand.slot = (struct plan_affine){.base = turn * (chunks->columns - 1) + first, .v = {chunks->row_scatter + chunks->row_gather}};
	set(&operand.slot, scope.turn, chunks->columns - 1);
	set(&operand.slot, scope.step, 1);
	operand.partial.base = first + grid_leads(chunks->grid, (uint32_t)chunks->y, (uint32_t)(chunks->x + chunks->columns - 1) % (uint32_t)chunks->columns);
	set(&operand.partial, scope.step, 1);
	return operand;
}

/* What arrives along the rail and is added in turn `turn`, the first time in turn 1. */
static struct plan_operand rail_sum(const struct chunks *chunks, struct scope scope, int32_t turn)
{
	struct plan_operand operand = in_slot(block(chunks, PLAN_SCRATCH, scope, 1 + turn, 0), chunks->rail_in);
	operand.slot = (struct plan_affine){.base = turn - 1, .v = {chunks->rail_scatter + chunks->rail_gather}};
	set(&operand.slot, scope.turn, 1);
	operand.partial.base = turn - 1 + (chunks->has_row || grid_leads(chunks->grid, (uint32_t)(chunks->y + chunks->rows - 1) % (uint32_t)chunks->rows, (uint32_t)chunks->x));
	set(&operand.partial, scope.turn, 1);
	return operand;
}

/* What extra e hands over for step `step` of a turn: its operand of block (y - 1 - turn, x - 1 - step). */
static struct plan_operand extra_operand(const struct chunks *chunks, struct scope scope, int32_t turn, int32_t step, uint32_t e)
{
	struct plan_operand operand = in_slot(block(chunks, PLAN_SCRATCH, scope, 1 + turn, 1 + step), extra_in(chunks, e));
	operand.slot = (struct plan_affine){.base = turn * chunks->columns + step, .v = {chunks->rows * chunks->columns}};
	set(&operand.slot, scope.turn, chunks->columns);
	set(&operand.slot, scope.step, 1);
	return operand;
}

static void grant_extras(struct chunks *chunks, struct scope scope, int32_t turn, int32_t step)
{
	for (uint32_t e = 1; e <= chunks->grid->extras; e++)
		build_ready(chunks->build, extra_in(chunks, e), extra_operand(chunks, scope, turn, step, e));
}

/* Sources of one step, as many as there may be; those too many are added up in `spill` first. */
struct sum {
	struct plan_operand sources[PLAN_MAX_SOURCES], spill;
	unsigned count;
};

static void add_up(struct chunks *chunks, struct sum *sum, struct plan_operand destination)
{
	struct plan_step *step = build_reduce(chunks->build, destination, sum->sources[0], sum->sources[1]);
	for (unsigned s = 2; s < sum->count; s++)
		build_source(chunks->build, step, sum->sources[s]);
}

static void add_source(struct chunks *chunks, struct sum *sum, struct plan_operand source)
{
	if (sum->count == PLAN_MAX_SOURCES) {
		add_up(chunks, sum, sum->spill);
		sum->sources[0] = sum->spill;
		sum->count = 1;
	}
	sum->sources[sum->count++] = source;
}

/* This rank's own operand and its extras' for a step of a turn. */
static void add_own(struct chunks *chunks, struct sum *sum, struct scope scope, int32_t turn, int32_t step)
{
	add_source(chunks, sum, block(chunks, PLAN_INPUT, scope, 1 + turn, 1 + step));
	for (uint32_t e = 1; e <= chunks->grid->extras; e++)
		build_wait(chunks->build, extra_in(chunks, e));
	for (uint32_t e = 1; e <= chunks->grid->extras; e++)
		add_source(chunks, sum, extra_operand(chunks, scope, turn, step, e));
}

/* The sum to a channel; where the sender can't store there, by way of sum->spill. */
static void put_sum(struct chunks *chunks, struct sum *sum, uint16_t out)
{
	struct build *build = chunks->build;
	if (sum->count == 1) {
		build_put(build, out, sum->sources[0]);
	} else if (build_is_mapped(build, out)) {
		struct plan_step *step = build_put(build, out, sum->sources[0]);
		for (unsigned s = 1; s < sum->count; s++)
			build_source(build, step, sum->sources[s]);
	} else {
		add_up(chunks, sum, sum->spill);
		build_put(build, out, sum->spill);
	}
}

static struct plan_operand as_partial(struct plan_operand operand)
{
	operand.partial = (struct plan_affine){.base = 1};
	return operand;
}

/* One turn, or those of a loop whose variable scope.turn is: from `turn` on.  last: the block stays in this row. */
static void scatter_turn(struct chunks *chunks, struct scope scope, int32_t turn, bool last)
{
	struct build *build = chunks->build;
	const int32_t columns = chunks->columns;
	const struct grid *grid = chunks->grid;
	const bool with_rail = turn > 0;
	if (chunks->has_row) {
		build_flush(build, chunks->row_out, slack(chunks));
		build_ready(build, chunks->row_in, row_sum(chunks, scope, turn, 0));
	}
	grant_extras(chunks, scope, turn, 0);
	if (chunks->has_rail && !last) {
		build_flush(build, chunks->rail_out, slack(chunks));
		build_ready(build, chunks->rail_in, rail_sum(chunks, scope, turn + 1));
	}
	if (chunks->has_row) {
		struct sum sum = {.spill = in_work(block(chunks, PLAN_WORK, scope, 1 + turn, 1), WORK_FIRST)};
		grant_extras(chunks, scope, turn, 1);
		if (grid->extras)
			build_flush(build, chunks->row_out, columns - 2);
		add_own(chunks, &sum, scope, turn, 0);
		put_sum(chunks, &sum, chunks->row_out);
	}
	if (columns > 2) {
		const struct scope inner = {scope.turn, scope.turn < 0 ? 1 : 2};
		build_loop(build, (uint64_t)(columns - 2));
		build_flush(build, chunks->row_out, slack(chunks));
		build_ready(build, chunks->row_in, row_sum(chunks, inner, turn, 1));
		grant_extras(chunks, inner, turn, 2);
		build_wait(build, chunks->row_in);
		struct plan_operand arrived = row_sum(chunks, inner, turn, 0);
		struct sum sum = {.sources = {arrived}, .count = 1, .spill = as_partial(arrived)};
		add_own(chunks, &sum, inner, turn, 1);
		put_sum(chunks, &sum, chunks->row_out);
		build_end(build);
	}

	/* The row's sum of the own column. */
	struct sum sum = {.spill = in_work(block(chunks, PLAN_WORK, scope, 1 + turn, 0), WORK_SUM)};
	if (with_rail && !last)
		sum.spill = as_partial(rail_sum(chunks, scope, turn));
	else if (chunks->has_rail && (chunks->has_row || grid->extras))
		build_flush(build, chunks->rail_out, chunks->rows - 2);
	/* The rail's chunk has had the most time to come by the end of the turn. */
	if (chunks->has_row) {
		build_wait(build, chunks->row_in);
		add_source(chunks, &sum, row_sum(chunks, scope, turn, columns - 2));
	}
	if (with_rail) {
		build_wait(build, chunks->rail_in);
		add_source(chunks, &sum, rail_sum(chunks, scope, turn));
	}
	add_own(chunks, &sum, scope, turn, columns - 1);
	if (!last) {
		put_sum(chunks, &sum, chunks->rail_out);
		return;
	}
	const struct plan_operand result = block(chunks, PLAN_OUTPUT, scope, 1 + turn, 0);
	if (chunks->layers == 1) {
		add_up(chunks, &sum, result);
		return;
	}
	for (uint32_t e = 1; e <= grid->extras; e++)
		build_flush(build, extra_out(chunks, e), 0);
	/* Whose block it is differs from round to round. */
	const struct plan_operand extras = in_work(result, WORK_EXTRA);
	for (uint32_t e = 0; e <= grid->extras; e++) {
		struct plan_step *step = build_reduce(build, e ? extras : result, sum.sources[0], sum.sources[1]);
		for (unsigned s = 2; s < sum.count; s++)
			build_source(build, step, sum.sources[s]);
		in_layer(chunks, step, e);
		if (e)
			in_layer(chunks, build_put(build, extra_out(chunks, e), extras), e);
	}
}

static void scatter(struct chunks *chunks)
{
	const struct scope no_loop = {-1, -1}, in_loop = {1, -1};
	if (chunks->rows > 1)
		scatter_turn(chunks, no_loop, 0, false);
	if (chunks->rows > 2) {
		build_loop(chunks->build, (uint64_t)(chunks->rows - 2));
		scatter_turn(chunks, in_loop, 1, false);
		build_end(chunks->build);
	}
	scatter_turn(chunks, no_loop, chunks->rows - 1, true);
}

/* ---- gathering ---------------------------------------------------------------------------------------------------------- */

/* Where block (y - turn, x - 1 - step) arrives along the row. */
static struct plan_operand row_landing(const struct chunks *chunks, struct scope scope, int32_t turn, int32_t step)
{
	struct plan_operand operand = block(chunks, PLAN_OUTPUT, scope, turn, 1 + step);
	if (!build_is_mapped(chunks->build, chunks->row_in))
		return operand;
	operand = in_slot(operand, chunks->row_in);
	operand.slot = (struct plan_affine){.base = chunks->row_scatter + turn * (chunks->columns - 1) + step, .v = {chunks->row_scatter + chunks->row_gather}};
	set(&operand.slot, scope.turn, chunks->columns - 1);
	set(&operand.slot, scope.step, 1);
	return operand;
}

/* Where block (y - turn, x) arrives along the rail, the first time in turn 1. */
static struct plan_operand rail_landing(const struct chunks *chunks, struct scope scope, int32_t turn)
{
	struct plan_operand operand = block(chunks, PLAN_OUTPUT, scope, turn, 0);
	if (!build_is_mapped(chunks->build, chunks->rail_in))
		return operand;
	operand = in_slot(operand, chunks->rail_in);
	operand.slot = (struct plan_affine){.base = chunks->rail_scatter + turn - 1, .v = {chunks->rail_scatter + chunks->rail_gather}};
	set(&operand.slot, scope.turn, 1);
	return operand;
}

static uint16_t destination(const struct chunks *chunks, const uint16_t *out, unsigned count, unsigned i)
{
	return i < count ? out[i] : extra_out(chunks, i - count + 1);
}

/* A block that has come, to OUTPUT, the channels of a list and all extras but one (0: all). */
static void spread(struct chunks *chunks, struct plan_operand from, struct plan_operand output, const uint16_t *out, unsigned count, uint32_t but)
{
	struct build *build = chunks->build;
	const unsigned all = count + chunks->grid->extras, left_out = but ? count + but - 1 : all;
	unsigned keeper = all;
	/* Memory is passed over once where a put may keep. */
	for (unsigned i = 0; i < all && from.space == PLAN_SCRATCH && keeper == all; i++)
		if (i != left_out && build_is_mapped(build, destination(chunks, out, count, i)))
			keeper = i;
	if (keeper < all)
		build_keep(build, build_put(build, destination(chunks, out, count, keeper), from), output);
	else if (from.space == PLAN_SCRATCH)
		build_copy(build, output, from);
	for (unsigned i = 0; i < all; i++)
		if (i != keeper && i != left_out)
			build_put(build, destination(chunks, out, count, i), output);
}

/* The round's block of the own column is put into OUTPUT, if it is not there. */
static void begin_gather(struct chunks *chunks, struct scope scope)
{
	struct build *build = chunks->build;
	const struct plan_operand output = block(chunks, PLAN_OUTPUT, scope, 0, 0), input = block(chunks, PLAN_INPUT, scope, 0, 0);
	if (adds(chunks))
		return;
	if (!build->plan->in_place)
		in_layer(chunks, build_copy(build, output, input), 0);
	for (uint32_t e = 1; e <= chunks->grid->extras; e++) {
		const uint16_t in = extra_in(chunks, e);
		const struct plan_operand landing = build_is_mapped(build, in) ? in_slot(output, in) : output;
		in_layer(chunks, build_ready(build, in, landing), e);
		in_layer(chunks, build_wait(build, in), e);
		if (build_is_mapped(build, in))
			in_layer(chunks, build_copy(build, output, landing), e);
	}
}

static void gather_turn(struct chunks *chunks, struct scope scope, int32_t turn, bool last)
{
	struct build *build = chunks->build;
	const int32_t columns = chunks->columns;
	if (chunks->has_row)
		build_ready(build, chunks->row_in, row_landing(chunks, scope, turn, 0));
	if (!last)
		build_ready(build, chunks->rail_in, rail_landing(chunks, scope, turn + 1));
	const struct plan_operand output = block(chunks, PLAN_OUTPUT, scope, turn, 0);
	struct plan_operand from = output;
	if (turn) {
		build_wait(build, chunks->rail_in);
		from = rail_landing(chunks, scope, turn);
	} else {
		begin_gather(chunks, scope);
	}
	uint16_t out[2];
	unsigned count = 0;
	if (!last)
		out[count++] = chunks->rail_out;
	if (chunks->has_row)
		out[count++] = chunks->row_out;
	spread(chunks, from, output, out, count, 0);
	if (columns > 2) {
		const struct scope inner = {scope.turn, scope.turn < 0 ? 1 : 2};
		build_loop(build, (uint64_t)(columns - 2));
		build_ready(build, chunks->row_in, row_landing(chunks, inner, turn, 1));
		build_wait(build, chunks->row_in);
		spread(chunks, row_landing(chunks, inner, turn, 0), block(chunks, PLAN_OUTPUT, inner, turn, 1), &chunks->row_out, 1, 0);
		build_end(build);
	}
	if (chunks->has_row) {
		build_wait(build, chunks->row_in);
		spread(chunks, row_landing(chunks, scope, turn, columns - 2), block(chunks, PLAN_OUTPUT, scope, turn, columns - 1), NULL, 0, 0);
	}
}

static void gather(struct chunks *chunks)
{
	const struct scope no_loop = {-1, -1}, in_loop = {1, -1};
	if (chunks->rows > 1)
		gather_turn(chunks, no_loop, 0, false);
	if (chunks->rows > 2) {
		build_loop(chunks->build, (uint64_t)(chunks->rows - 2));
		gather_turn(chunks, in_loop, 1, false);
		build_end(chunks->build);
	}
	gather_turn(chunks, no_loop, chunks->rows - 1, true);
}

/* ---- an extra ----------------------------------------------------------------------------------------------------------- */

static void be_extra(struct chunks *chunks)
{
	struct build *build = chunks->build;
	const struct plan *plan = build->plan;
	const struct scope scope = {1, 2}, none = {-1, -1};
	const uint16_t in = chunks->leader_in, out = chunks->leader_out;
	const bool mapped = build_is_mapped(build, in);
	const uint32_t number = chunks->grid->number;
	const struct plan_operand own = block(chunks, PLAN_OUTPUT, none, 0, 0);
	if (adds(chunks)) {
		build_loop(build, (uint64_t)chunks->rows);
		build_loop(build, (uint64_t)chunks->columns);
		build_put(build, out, block(chunks, PLAN_INPUT, scope, 1, 1));
		build_end(build);
		build_end(build);
	} else {
		in_layer(chunks, build_put(build, out, block(chunks, PLAN_INPUT, none, 0, 0)), number);
	}
	if (plan->in_place)
		build_flush(build, out, 0);
	if (!gathers(chunks)) {
		const struct plan_operand landing = mapped ? in_slot(own, in) : own;
		in_layer(chunks, build_ready(build, in, landing), number);
		in_layer(chunks, build_wait(build, in), number);
		if (mapped)
			in_layer(chunks, build_copy(build, own, landing), number);
		return;
	}
	struct plan_operand output = block(chunks, PLAN_OUTPUT, scope, 0, 0), landing = output;
	if (mapped) {
		landing = in_slot(landing, in);
		landing.slot = (struct plan_affine){.v = {chunks->rows * chunks->columns, chunks->columns, 1}};
	}
	struct plan_operand first = landing, next = landing;
	first.block.cycle.v[2] = first.slot.v[2] = 0;
	next.block.cycle.base--;
	next.slot.base += mapped;
	build_loop(build, (uint64_t)chunks->rows);
	build_ready(build, in, first);
	build_loop(build, (uint64_t)chunks->columns);
	build_ready(build, in, next)->guard = (struct plan_affine){.base = chunks->columns - 2, .v = {0, 0, -1}};
	build_wait(build, in);
	if (mapped)
		build_copy(build, output, landing);
	build_end(build);
	build_end(build);
}

/* ---- broadcast ---------------------------------------------------------------------------------------------------------- */

static void forward(struct chunks *chunks, bool has_in, uint16_t in, const uint16_t *out, unsigned count, uint32_t but)
{
	struct build *build = chunks->build;
	const struct plan *plan = build->plan;
	const int64_t all = (int64_t)plan->chunks, lead = all < (int64_t)plan->slots ? all : (int64_t)plan->slots;
	const struct plan_operand output = {.space = PLAN_OUTPUT, .chunk.v = {1}};
	const bool mapped = has_in && build_is_mapped(build, in);
	struct plan_operand landing = output;
	if (mapped) {
		landing = in_slot(output, in);
		landing.slot = output.chunk;
	}
	if (has_in) {
		build_loop(build, (uint64_t)lead);
		build_ready(build, in, landing);
		build_end(build);
	}
	build_loop(build, (uint64_t)all);
	if (has_in)
		build_wait(build, in);
	spread(chunks, landing, output, out, count, but);
	if (has_in) {
		landing.chunk.base = (int32_t)lead;
		if (mapped)
			landing.slot.base = (int32_t)lead;
		build_ready(build, in, landing)->guard = (struct plan_affine){.base = (int32_t)(all - 1 - lead), .v = {-1}};
	}
	build_end(build);
}

/* root: the root's place. */
static void broadcast(struct chunks *chunks, const struct grid *root)
{
	const struct grid *grid = chunks->grid;
	const bool same_row = grid->y == root->y, same_column = grid->x == root->x, root_leads = same_row && same_column;
	if (grid->number) {
		if (root_leads && grid->number == root->number)
			forward(chunks, false, 0, &chunks->leader_out, 1, 0);
		else
			forward(chunks, true, chunks->leader_in, NULL, 0, 0);
		return;
	}
	uint16_t out[2];
	unsigned count = 0;
	if (same_column && chunks->has_rail && (grid->y + 1) % grid->rows != root->y)
		out[count++] = chunks->rail_out;
	if (chunks->has_row && (grid->x + 1) % grid->columns != root->x)
		out[count++] = chunks->row_out;
	if (!root_leads)
		forward(chunks, true, same_column ? chunks->rail_in : chunks->row_in, out, count, 0);
	else if (root->number)
		forward(chunks, true, extra_in(chunks, root->number), out, count, root->number);
	else
		forward(chunks, false, 0, out, count, 0);
}

/* ---- the builder -------------------------------------------------------------------------------------------------------- */

static void open_channels(struct chunks *chunks)
{
	struct build *build = chunks->build;
	const struct grid *grid = chunks->grid;
	const uint32_t x = grid->x, y = grid->y, columns = grid->columns, rows = grid->rows;
	if (grid->number) {
		const uint32_t leader = build_rank_at(build, grid_position(grid, y, x));
		chunks->leader_in = build_channel(build, leader, false, 0);
		chunks->leader_out = build_channel(build, leader, true, 0);
		return;
	}
	if (chunks->has_row) {
		chunks->row_in = build_channel(build, build_rank_at(build, grid_position(grid, y, (x + columns - 1) % columns)), false, 0);
		chunks->row_out = build_channel(build, build_rank_at(build, grid_position(grid, y, (x + 1) % columns)), true, 0);
	}
	if (chunks->has_rail) {
		chunks->rail_in = build_channel(build, build_rank_at(build, grid_position(grid, (y + rows - 1) % rows, x)), false, 0);
		chunks->rail_out = build_channel(build, build_rank_at(build, grid_position(grid, (y + 1) % rows, x)), true, 0);
	}
	chunks->first_extra = (uint16_t)build->plan->channel_count;
	for (uint32_t e = 1; e <= grid->extras; e++) {
		const uint32_t extra = build_rank_at(build, grid_position(grid, y, x + e * columns));
		build_channel(build, extra, false, 0);
		build_channel(build, extra, true, 0);
	}
}

static void flush_all(struct build *build)
{
	for (uint32_t c = 0; c < build->plan->channel_count; c++)
		if (build->plan->channels[c].outgoing)
			build_flush(build, (uint16_t)c, 0);
}

/* What was put from INPUT or from slots is gone before OUTPUT, which may be the same memory, and slots are granted for results. */
static void between(struct chunks *chunks)
{
	struct build *build = chunks->build;
	if (chunks->has_row && (build->plan->in_place || build_is_mapped(build, chunks->row_in)))
		build_flush(build, chunks->row_out, 0);
	if (chunks->has_rail && (build->plan->in_place || build_is_mapped(build, chunks->rail_in)))
		build_flush(build, chunks->rail_out, 0);
}

static void rounds(struct chunks *chunks)
{
	struct build *build = chunks->build;
	build_loop(build, build->plan->chunks * (uint64_t)chunks->layers);
	if (chunks->grid->number) {
		be_extra(chunks);
	} else {
		if (adds(chunks))
			scatter(chunks);
		if (adds(chunks) && gathers(chunks))
			between(chunks);
		if (gathers(chunks))
			gather(chunks);
	}
	build_end(build);
}

static void measure(struct chunks *chunks)
{
	const struct build *build = chunks->build;
	const int32_t along_row = chunks->rows * (chunks->columns - 1), along_rail = chunks->rows - 1;
	if (adds(chunks)) {
		chunks->row_scatter = along_row;
		chunks->rail_scatter = along_rail;
	}
	if (gathers(chunks) && chunks->has_row && build_is_mapped(build, chunks->row_in))
		chunks->row_gather = along_row;
	if (gathers(chunks) && chunks->has_rail && build_is_mapped(build, chunks->rail_in))
		chunks->rail_gather = along_rail;
}

enum st_status grid_chunks_build(struct build *build, const char *name, const struct plan_shape *shape, struct grid *grid, struct plan **plan)
{
	const bool shards = shape->collective == PLAN_REDUCE_SCATTER || shape->collective == PLAN_ALL_GATHER, sends = shape->collective == PLAN_BROADCAST;
	const uint64_t layers = shards ? build_divide_up(grid->widest, grid->columns) : 1, width = layers * grid->columns;
	if (width * grid->rows > INT32_MAX / 8)
		return st_fail(ST_ERR_USAGE, "%s plan: %u nodes of up to %u ranks and at least %u are too uneven", name, grid->rows, grid->widest, grid->columns);
	ST_TRY(build_start(build, name, shape, shape->size == 1 || sends ? 1 : 2, shards ? shape->size : sends ? 1 : grid->columns * grid->rows, 1));
	struct plan *made = build->plan;
	if (shape->size == 1) {
		build_alone(build);
		return build_finish(build, plan);
	}
	if (made->chunks * layers > INT32_MAX / 4) {
		plan_free(made);
		return st_fail(ST_ERR_USAGE, "%s plan: %ju elements in chunks of %ju are too many chunks", name, (uintmax_t)shape->elements,
			       (uintmax_t)shape->chunk_elements);
	}
	grid_place(grid, build->position);
	struct chunks chunks = {.build = build, .grid = grid, .x = (int32_t)grid->x, .y = (int32_t)grid->y, .columns = (int32_t)grid->columns,
				.rows = (int32_t)grid->rows, .width = (int32_t)width, .layers = (int32_t)layers,
				.has_row = !grid->number && grid->columns > 1, .has_rail = !grid->number && grid->rows > 1};
	if (shards)
		made->order = shape->order;
	if (shards && grid->widest > grid->columns) {
		made->row_starts = grid->starts;
		made->rows = grid->rows;
		made->row_width = (uint32_t)width;
		made->row_layers = (uint32_t)layers;
		made->row_stride = grid->columns;
	}
	open_channels(&chunks);
	if (sends) {
		struct grid root = *grid;
		grid_place(&root, build->root_position);
		broadcast(&chunks, &root);
	} else {
		measure(&chunks);
		if (adds(&chunks) && (grid->extras || (chunks.has_rail && chunks.has_row && !build_is_mapped(build, chunks.rail_out)))) {
			made->work = WORK_SLOTS;
			made->work_elements = made->chunk_elements;
		}
		rounds(&chunks);
	}
	flush_all(build);
	return build_finish(build, plan);
}
