/*
 * Recursive halving and doubling: all-reduce in 2 lg p messages (Rabenseifner, 2004; Thakur, Rabenseifner and Gropp, 2005).
 *
 * Let K be the largest power of two up to the number of ranks.  The range is cut into a multiple of K equal blocks.  At level s (0, 1, ..., lg K - 1)
 * the ranks whose numbers differ in bit s alone exchange halves of what they both hold: each sends one half and adds what it receives
 * to the other, with which it goes on.  At the end each rank holds 1/K of the range, summed over all.  Then the same exchanges run
 * backwards with sums instead of operands.  Most data moves at level 0, between neighbours in the order of ranks: in the node.
 *
 * Cost: 2 lg p (a + ...) + 2 (p-1)/p n b + (p-1)/p n g, the ring's bandwidth with far fewer messages.  When p is no power of two, the first p-K pairs of
 * neighbours fold: one hands its operand to the other and gets the sum at the end, + 2 a + 2 n b + n g.
 *
 * The unit of work is one put: a group of consecutive blocks as large as a slot takes, so that a half of few bytes is one message.  Each level has
 * links of its own, and so slots of its own: all first grants are given before the first put, and later a put waits for data only.
 * Works with one slot; two or more hide the grant of the way back.
 */
#include "plan_fold.h"

#define MAX_LEVELS 20

struct level {
	uint16_t in, out;
	uint32_t kept, sent;   /* first block of the half that stays and of the one that goes */
	uint32_t group, units; /* blocks per put, puts */
	uint32_t lead;         /* puts under way at a time */
	bool partial, peer_partial; /* what this rank and the other one bring are partial sums, no inputs */
	bool last;
};

struct halving {
	struct build build;
	struct level levels[MAX_LEVELS];
	struct fold fold; /* with the other rank of the pair */
	unsigned level_count;
	bool folds; /* this rank is in such a pair */
};

/* Unit u (ahead of the loop's variable if that is in scope) of a half that begins at block `first`. */
static struct plan_operand unit(enum plan_space space, const struct level *level, uint32_t first, uint32_t ahead)
{
	return (struct plan_operand){.space = space, .span = level->group,
				     .block.first = {.base = (int32_t)(first + ahead * level->group), .v = {(int32_t)level->group}}};
}

static struct plan_operand slot(const struct level *level, uint32_t first, uint32_t ahead, uint32_t slot_ahead)
{
	struct plan_operand operand = unit(PLAN_SCRATCH, level, first, ahead);
	operand.channel = level->in;
	operand.slot = (struct plan_affine){.base = (int32_t)(ahead + slot_ahead), .v = {1}};
	return operand;
}

static struct plan_affine while_more(const struct level *level)
{
	return (struct plan_affine){.base = (int32_t)(level->units - 1 - level->lead), .v = {-1}};
}

static struct plan_operand operand_slot(const struct level *level, uint32_t ahead)
{
	struct plan_operand operand = slot(level, level->kept, ahead, 0);
	operand.partial.base = level->peer_partial;
	return operand;
}

static struct plan_operand operand(const struct level *level, uint32_t first, uint32_t ahead)
{
	struct plan_operand own = unit(level->partial ? PLAN_OUTPUT : PLAN_INPUT, level, first, ahead);
	own.partial.base = level->partial;
	return own;
}

static void grant_operands(struct halving *halving, const struct level *level)
{
	build_rounds(&halving->build, level->lead);
	build_ready(&halving->build, level->in, operand_slot(level, 0));
	build_rounds_end(&halving->build, level->lead);
}

/* A sum arrives in its place, or in a slot when the sender can't reach that.  The slot is one further, so that it may be granted early. */
static struct plan_operand landing(const struct halving *halving, const struct level *level, uint32_t first, uint32_t ahead)
{
	return build_is_mapped(&halving->build, level->in) ? slot(level, first, ahead, 1) : unit(PLAN_OUTPUT, level, first, ahead);
}

/* What was put from there has been taken by now, or nearly so. */
static void grant_sums(struct halving *halving, const struct level *level, uint32_t first)
{
	build_flush(&halving->build, level->out, 0);
	build_rounds(&halving->build, level->lead);
	build_ready(&halving->build, level->in, landing(halving, level, first, 0));
	build_rounds_end(&halving->build, level->lead);
}

/* The other rank's half comes, this rank's goes; the sums go to OUTPUT. */
static void reduce_half(struct halving *halving, const struct level *level)
{
	struct plan_operand sum = unit(PLAN_OUTPUT, level, level->kept, 0);
	sum.partial.base = !level->last;
	struct build *build = &halving->build;
	const bool more = level->units > level->lead;
	/* With one unit, the sum's way back can be granted before the operand is here, if there is a place for it. */
	const bool early = level->units == 1 && (!build_is_mapped(build, level->in) || build->plan->slots > 1);
	build_rounds(build, level->lead);
	build_put(build, level->out, operand(level, level->sent, 0));
	build_rounds_end(build, level->lead);
	if (early)
		grant_sums(halving, level, level->sent);
	build_rounds(build, level->units);
	build_wait(build, level->in);
	build_reduce(build, sum, operand_slot(level, 0), operand(level, level->kept, 0));
	if (more) {
		build_ready(build, level->in, operand_slot(level, level->lead))->guard = while_more(level);
		build_put(build, level->out, operand(level, level->sent, level->lead))->guard = while_more(level);
	}
	build_rounds_end(build, level->units);
	if (!early)
		grant_sums(halving, level, level->sent);
}

/* Sums come into the half that was sent (granted already), and go from the one that was kept. */
static void gather_half(struct halving *halving, const struct level *level)
{
	struct build *build = &halving->build;
	build_rounds(build, level->lead);
	build_put(build, level->out, unit(PLAN_OUTPUT, level, level->kept, 0));
	build_rounds_end(build, level->lead);
	build_rounds(build, level->units);
	build_wait(build, level->in);
	if (build_is_mapped(build, level->in))
		build_copy(build, unit(PLAN_OUTPUT, level, level->sent, 0), landing(halving, level, level->sent, 0));
	if (level->units > level->lead) {
		build_ready(build, level->in, landing(halving, level, level->sent, level->lead))->guard = while_more(level);
		build_put(build, level->out, unit(PLAN_OUTPUT, level, level->kept, level->lead))->guard = while_more(level);
	}
	build_rounds_end(build, level->units);
}

static void participate(struct halving *halving)
{
	struct build *build = &halving->build;
	if (halving->folds)
		fold_grant(build, &halving->fold);
	for (unsigned s = 0; s < halving->level_count; s++)
		grant_operands(halving, &halving->levels[s]);
	if (halving->folds)
		fold_take(build, &halving->fold, PLAN_INPUT);
	for (unsigned s = 0; s < halving->level_count; s++)
		reduce_half(halving, &halving->levels[s]);
	for (unsigned s = halving->level_count; s-- > 0;)
		gather_half(halving, &halving->levels[s]);
	if (halving->folds)
		fold_return(build, &halving->fold);
	for (unsigned s = 0; s < halving->level_count; s++)
		build_flush(build, halving->levels[s].out, 0);
}

static struct level make_level(struct halving *halving, uint32_t position, uint32_t blocks, uint32_t group)
{
	struct build *build = &halving->build;
	uint32_t peer = build_rank_at(build, position);
	struct level level = {.group = group < blocks ? group : blocks};
	level.units = blocks / level.group;
	level.lead = level.units < build->plan->slots ? level.units : build->plan->slots;
	level.in = build_channel(build, peer, false, 0);
	level.out = build_channel(build, peer, true, 0);
	return level;
}

enum st_status plan_build_halving(const struct plan_shape *shape, struct plan **plan)
{
	struct halving halving = {0};
	struct build *build = &halving.build;
	if (shape->collective != PLAN_ALLREDUCE)
		return st_fail(ST_ERR_USAGE, "halving plan: %s is not one of its collectives", plan_collective_name(shape->collective));
	ST_TRY(build_not_wide("halving", shape));
	uint32_t participants = 1;
	while (participants * 2 <= shape->size && halving.level_count < MAX_LEVELS) {
		participants *= 2;
		halving.level_count++;
	}
	/* Blocks of at most a chunk. */
	uint64_t blocks = participants;
	while (shape->chunk_elements && blocks < INT32_MAX / 4 && build_divide_up(shape->elements, blocks) > shape->chunk_elements)
		blocks *= 2;
	if (shape->chunk_elements && build_divide_up(shape->elements, blocks) > shape->chunk_elements)
		return st_fail(ST_ERR_USAGE, "halving plan: %ju elements in chunks of %ju are too many chunks", (uintmax_t)shape->elements,
			       (uintmax_t)shape->chunk_elements);
	ST_TRY(build_start(build, "halving", shape, 1, (uint32_t)blocks, 1));
	if (shape->size == 1) {
		build_alone(build);
		return build_finish(build, plan);
	}
	uint64_t longest = plan_block_elements(build->plan, 0);
	uint32_t group = 1;
	while (group < blocks && group * 2 * longest <= shape->chunk_elements)
		group *= 2;

	const uint32_t extra = shape->size - participants, position = build->position;
	halving.folds = position < 2 * extra;
	if (halving.folds)
		halving.fold = fold_with(build, build_rank_at(build, position ^ 1), group);
	if (halving.folds && position % 2) {
		fold_give(build, &halving.fold);
		return build_finish(build, plan);
	}
	uint32_t number = halving.folds ? position / 2 : position - extra, first = 0, width = (uint32_t)blocks;
	for (unsigned s = 0; s < halving.level_count; s++) {
		uint32_t other = number ^ 1u << s;
		width /= 2;
		struct level *level = &halving.levels[s];
		*level = make_level(&halving, other < extra ? 2 * other : other + extra, width, group);
		level->kept = first + (number >> s & 1 ? width : 0);
		level->sent = first + (number >> s & 1 ? 0 : width);
		level->partial = s || halving.folds;
		level->peer_partial = s || other < extra;
		level->last = s + 1 == halving.level_count;
		first = level->kept;
	}
	participate(&halving);
	return build_finish(build, plan);
}
