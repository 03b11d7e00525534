/*
 * All-gather and barrier in ceil(lg p) rounds, for any number of ranks (Bruck, Ho, Kipnis, Upfal and Weathersby, 1997).
 *
 * In round s rank r has the blocks r, r+1, ..., r + 2^s - 1 (modulo p).  It sends the first of them, as many as are missing in all, to rank
 * r - 2^s and receives those from r + 2^s on from rank r + 2^s; each lands where it belongs.
 *
 * Cost: ceil(lg p) a + (p-1)/p n b.  Most bytes go farthest, in the last round, so it is for few bytes and for a barrier, which is an
 * all-gather of nothing.
 *
 * Blocks stand in the order of ranks in memory, so ranks are numbered as such.  When a round's blocks fit into one slot they travel as one put, or as
 * two where they go past the last block; else one by one, in chunks.  Each round has links of its own: all first grants are given before the first
 * put.  Needs two slots.
 */
#include "plan_build.h"

#define MAX_ROUNDS 20

struct round {
	uint16_t in, out;
	uint32_t count; /* blocks */
	bool whole;     /* all in one or two puts */
};

struct bruck {
	struct build build;
	struct round rounds[MAX_ROUNDS];
	unsigned round_count;
};

/* Where what arrives goes: in its place, or into the slot when the sender can't reach that. */
static struct plan_operand landing(const struct bruck *bruck, const struct round *round, struct plan_operand output, struct plan_affine slot)
{
	if (!build_is_mapped(&bruck->build, round->in))
		return output;
	output.space = PLAN_SCRATCH;
	output.channel = round->in;
	output.slot = slot;
	return output;
}

/* The two stretches of `count` blocks from `first` on, modulo all; the second may be empty. */
struct stretches {
	struct plan_operand pieces[2];
	unsigned count;
};

static struct stretches stretches_of(const struct bruck *bruck, uint32_t first, uint32_t count)
{
	const uint32_t blocks = bruck->build.plan->blocks;
	first %= blocks;
	uint32_t before = count < blocks - first ? count : blocks - first;
	struct stretches stretches = {.count = before < count ? 2 : 1};
	stretches.pieces[0] = (struct plan_operand){.space = PLAN_OUTPUT, .span = before, .block.first.base = (int32_t)first};
	stretches.pieces[1] = (struct plan_operand){.space = PLAN_OUTPUT, .span = count - before};
	return stretches;
}

static void grant_whole(struct bruck *bruck, const struct round *round, uint32_t from)
{
	struct stretches stretches = stretches_of(bruck, from, round->count);
	for (unsigned i = 0; i < stretches.count; i++)
		build_ready(&bruck->build, round->in, landing(bruck, round, stretches.pieces[i], (struct plan_affine){.base = (int32_t)i}));
}

static void run_whole(struct bruck *bruck, const struct round *round, uint32_t from)
{
	struct build *build = &bruck->build;
	struct stretches sent = stretches_of(bruck, build->shape->rank, round->count), come = stretches_of(bruck, from, round->count);
	for (unsigned i = 0; i < sent.count; i++)
		build_put(build, round->out, sent.pieces[i]);
	for (unsigned i = 0; i < come.count; i++) {
		build_wait(build, round->in);
		if (build_is_mapped(build, round->in))
			build_copy(build, come.pieces[i], landing(bruck, round, come.pieces[i], (struct plan_affine){.base = (int32_t)i}));
	}
}

/*
 * One by one.  Blocks of one chunk: the unit is a block, and several are under way.  Longer blocks: the unit is a chunk of the block that the outer
 * loop is at, and all chunks of one block come before the next.
 */
struct units {
	uint64_t outer, count, lead;
	bool chunks;
};

static struct units units_of(const struct bruck *bruck, const struct round *round)
{
	const struct plan *plan = bruck->build.plan;
	struct units units = {.chunks = plan->chunks > 1};
	units.outer = units.chunks ? round->count : 1;
	units.count = units.chunks ? plan->chunks : round->count;
	units.lead = units.count < plan->slots ? units.count : plan->slots;
	return units;
}

/* Unit (loop variable 1) + ahead of the outer loop's turn (variable 0), from block `first` on. */
static struct plan_operand unit(const struct units *units, uint32_t first, uint64_t ahead)
{
	struct plan_operand operand = {.space = PLAN_OUTPUT, .block.first.base = (int32_t)first};
	struct plan_affine *index = units->chunks ? &operand.chunk : &operand.block.first;
	index->base += (int32_t)ahead;
	index->v[1] = 1;
	operand.block.first.v[0] = 1;
	return operand;
}

static struct plan_operand landing_unit(const struct bruck *bruck, const struct round *round, const struct units *units, uint32_t from, uint64_t ahead)
{
	return landing(bruck, round, unit(units, from, ahead), (struct plan_affine){.base = (int32_t)ahead, .v = {0, 1}});
}

static void grant_units(struct bruck *bruck, const struct round *round, uint32_t from)
{
	struct build *build = &bruck->build;
	struct units units = units_of(bruck, round);
	build_loop(build, 1); /* so that the unit is variable 1 here too */
	build_loop(build, units.lead);
	build_ready(build, round->in, landing_unit(bruck, round, &units, from, 0));
	build_end(build);
	build_end(build);
}

static void run_units(struct bruck *bruck, const struct round *round, uint32_t from)
{
	struct build *build = &bruck->build;
	const uint32_t rank = build->shape->rank;
	struct units units = units_of(bruck, round);
	struct plan_affine more = {.base = (int32_t)(units.count - 1 - units.lead), .v = {0, -1}};
	build_loop(build, units.outer);
	build_loop(build, units.lead);
	build_put(build, round->out, unit(&units, rank, 0));
	build_end(build);
	build_loop(build, units.count);
	build_wait(build, round->in);
	if (build_is_mapped(build, round->in))
		build_copy(build, unit(&units, from, 0), landing_unit(bruck, round, &units, from, 0));
	build_ready(build, round->in, landing_unit(bruck, round, &units, from, units.lead))->guard = more;
	build_put(build, round->out, unit(&units, rank, units.lead))->guard = more;
	build_end(build);
	/* The next block's first units. */
	struct plan_affine another = {.base = (int32_t)units.outer - 2, .v = {-1}};
	build_loop(build, units.lead);
	build_ready(build, round->in, landing_unit(bruck, round, &units, from + 1, 0))->guard = another;
	build_end(build);
	build_end(build);
}

enum st_status plan_build_bruck(const struct plan_shape *shape, struct plan **plan)
{
	struct bruck bruck = {0};
	struct build *build = &bruck.build;
	if (shape->collective != PLAN_ALL_GATHER && shape->collective != PLAN_BARRIER)
		return st_fail(ST_ERR_USAGE, "bruck plan: %s is not one of its collectives", plan_collective_name(shape->collective));
	ST_TRY(build_start(build, "bruck", shape, shape->size == 1 ? 1 : 2, shape->size ? shape->size : 1, 1));
	const uint64_t longest = build_longest(build);
	const uint32_t size = shape->size, rank = shape->rank;
	for (uint32_t distance = 1; distance < size && bruck.round_count < MAX_ROUNDS; distance *= 2) {
		struct round *round = &bruck.rounds[bruck.round_count++];
		round->count = distance < size - distance ? distance : size - distance;
		round->whole = build->plan->chunks == 1 && round->count * longest <= shape->chunk_elements;
		round->in = build_channel(build, (rank + distance) % size, false, 0);
		round->out = build_channel(build, (rank + size - distance) % size, true, 0);
	}
	for (unsigned s = 0; s < bruck.round_count; s++)
		(bruck.rounds[s].whole ? grant_whole : grant_units)(&bruck, &bruck.rounds[s], rank + (UINT32_C(1) << s));
	if (!build->plan->in_place) {
		const struct plan_operand output = {.space = PLAN_OUTPUT, .block.first.base = (int32_t)rank, .chunk.v[0] = 1};
		struct plan_operand input = output;
		input.space = PLAN_INPUT;
		build_loop(build, build->plan->chunks);
		build_copy(build, output, input);
		build_end(build);
	}
	for (unsigned s = 0; s < bruck.round_count; s++)
		(bruck.rounds[s].whole ? run_whole : run_units)(&bruck, &bruck.rounds[s], rank + (UINT32_C(1) << s));
	for (unsigned s = 0; s < bruck.round_count; s++)
		build_flush(build, bruck.rounds[s].out, 0);
	return build_finish(build, plan);
}
