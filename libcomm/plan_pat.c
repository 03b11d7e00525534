/*
 * Parallel aggregated trees: reduce-scatter, all-gather and barrier in ceil(lg p) rounds, for any number of ranks.
 *
 * A block that belongs to rank t travels along a binomial tree rooted there, one such tree for every rank, all at once and all of one shape: with
 * o = t - rank (modulo p) a rank's children are those with o + 1, o + 2, o + 4, ... below its lowest set bit, its parent has that bit cleared.
 * A reduction climbs each tree, adding; an all-gather descends it.  So rank r exchanges with r +- 2^j only: lg p links each way.
 *
 * FEW BYTES (a slot takes half of the range): all trees advance together, level by level, and what crosses one level is consecutive blocks, one put
 * or, where they go past the last block, two.  The all-gather is Bruck's (Bruck, Ho, Kipnis, Upfal and Weathersby, 1997), the reduce-scatter the same
 * backwards (Träff, 2023).  Cost: ceil(lg p) a + (p-1)/p n b (+ (p-1)/p n g).
 *
 * MORE BYTES (PAT: Jeaugey, 2025): one tree after the other, o = p-1, p-2, ..., 0 when adding and upwards when not.  Every rank is at the same o, at
 * its own block; a child's sum is sent 2^j turns before it is wanted, so one slot per link is enough however many ranks there are, and half of all
 * puts go to the neighbour, a quarter two ranks far, ...: most bytes stay in the node.  Cost: lg p a + (p-1) (o + n/p b), o being what a rank is
 * busy with a put for, where a ring waits (p-1) a.
 *
 * Blocks stand in the order of ranks in memory, so ranks are numbered as such.  Partial sums live in slots and in WORK, so they may be wide.
 * Needs two slots.
 */
#include "plan_build.h"

#define MAX_LEVELS 20

struct level {
	uint16_t in, out;
	uint32_t distance;
};

struct pat {
	struct build build;
	struct level levels[MAX_LEVELS];
	unsigned count; /* of levels */
	uint32_t size, rank;
};

/* ---- few bytes ---------------------------------------------------------------------------------------------------------- */

/* Blocks o = first .. first + count - 1 from this rank's on, as stretches of consecutive ones; the second begins at block 0. */
struct stretch {
	uint32_t block, count;
	uint32_t slot, skip; /* where they are in the slots that hold blocks o = 0, 1, ... */
};

static unsigned stretches_of(const struct pat *pat, uint32_t first, uint32_t count, struct stretch stretches[2])
{
	const uint32_t wrap = pat->size - pat->rank;
	unsigned n = 0;
	if (count && first < wrap) {
		uint32_t before = count < wrap - first ? count : wrap - first;
		stretches[n++] = (struct stretch){pat->rank + first, before, 0, first};
		first += before;
		count -= before;
	}
	if (count)
		stretches[n++] = (struct stretch){first - wrap, count, 1, first - wrap};
	return n;
}

static struct plan_operand in_buffer(enum plan_space space, const struct stretch *stretch)
{
	return (struct plan_operand){.space = space, .span = stretch->count, .block.first.base = (int32_t)stretch->block};
}

static struct plan_operand in_slot(const struct level *level, const struct stretch *stretch, bool partial)
{
	struct plan_operand operand = in_buffer(PLAN_SCRATCH, stretch);
	operand.channel = level->in;
	operand.slot.base = (int32_t)stretch->slot;
	operand.skip = stretch->skip;
	operand.partial.base = partial;
	return operand;
}

/*
 * Round by round from the farthest level down.  After the round of distance d a rank has sums, its own operands in them, of the blocks o < d, in the
 * slots of that round; the next one sends the upper half of them away and adds what comes to the lower half.  Only the first round, of less than
 * d blocks unless p is a power of two, brings plain inputs.
 */
static void scatter_together(struct pat *pat)
{
	struct build *build = &pat->build;
	struct stretch stretches[2];
	const struct level *far = &pat->levels[pat->count - 1];
	const uint32_t first_count = pat->size - far->distance;
	for (unsigned s = pat->count; s-- > 0;) {
		const struct level *level = &pat->levels[s];
		unsigned n = stretches_of(pat, 0, level == far ? first_count : level->distance, stretches);
		for (unsigned i = 0; i < n; i++)
			build_ready(build, level->in, in_slot(level, &stretches[i], level != far));
	}
	unsigned n = stretches_of(pat, far->distance, first_count, stretches);
	for (unsigned i = 0; i < n; i++)
		build_put(build, far->out, in_buffer(PLAN_INPUT, &stretches[i]));
	n = stretches_of(pat, 0, first_count, stretches);
	for (unsigned i = 0; i < n; i++)
		build_wait(build, far->in);
	for (unsigned i = 0; i < n && pat->count > 1; i++)
		build_reduce(build, in_slot(far, &stretches[i], true), in_slot(far, &stretches[i], false), in_buffer(PLAN_INPUT, &stretches[i]));
	n = pat->count > 1 ? stretches_of(pat, first_count, far->distance - first_count, stretches) : 0;
	for (unsigned i = 0; i < n; i++)
		build_copy(build, in_slot(far, &stretches[i], true), in_buffer(PLAN_INPUT, &stretches[i]));
	const struct stretch own = {pat->rank, 1, 0, 0};
	if (pat->count == 1)
		build_reduce(build, in_buffer(PLAN_OUTPUT, &own), in_slot(far, &own, false), in_buffer(PLAN_INPUT, &own));
	for (unsigned s = pat->count - 1; s-- > 0;) {
		const struct level *level = &pat->levels[s], *sums = &pat->levels[s + 1];
		n = stretches_of(pat, level->distance, level->distance, stretches);
		for (unsigned i = 0; i < n; i++)
			build_put(build, level->out, in_slot(sums, &stretches[i], true));
		n = stretches_of(pat, 0, level->distance, stretches);
		for (unsigned i = 0; i < n; i++)
			build_wait(build, level->in);
		for (unsigned i = 0; i < n && s; i++)
			build_reduce(build, in_slot(level, &stretches[i], true), in_slot(level, &stretches[i], true), in_slot(sums, &stretches[i], true));
		if (!s)
			build_reduce(build, in_buffer(PLAN_OUTPUT, &own), in_slot(level, &own, true), in_slot(sums, &own, true));
	}
}

/* What comes at a level, in its place, or in the slots when the sender can't reach that. */
static struct plan_operand landing(const struct pat *pat, const struct level *level, const struct stretch *stretch)
{
	return build_is_mapped(&pat->build, level->in) ? in_slot(level, stretch, false) : in_buffer(PLAN_OUTPUT, stretch);
}

/* Blocks that come from `distance` on: a slot holds each stretch of them from its start. */
static unsigned arriving(const struct pat *pat, const struct level *level, struct stretch stretches[2])
{
	uint32_t rest = pat->size - level->distance;
	unsigned n = stretches_of(pat, level->distance, level->distance < rest ? level->distance : rest, stretches);
	for (unsigned i = 0; i < n; i++) {
		stretches[i].slot = i;
		stretches[i].skip = 0;
	}
	return n;
}

/* Near levels first: a rank has the blocks o < d before the round of distance d, sends as many of them as are missing and gets the next ones. */
static void gather_together(struct pat *pat)
{
	struct build *build = &pat->build;
	struct stretch stretches[2];
	for (unsigned s = 0; s < pat->count; s++) {
		unsigned n = arriving(pat, &pat->levels[s], stretches);
		for (unsigned i = 0; i < n; i++)
			build_ready(build, pat->levels[s].in, landing(pat, &pat->levels[s], &stretches[i]));
	}
	const struct stretch own = {pat->rank, 1, 0, 0};
	if (!build->plan->in_place)
		build_copy(build, in_buffer(PLAN_OUTPUT, &own), in_buffer(PLAN_INPUT, &own));
	for (unsigned s = 0; s < pat->count; s++) {
		const struct level *level = &pat->levels[s];
		uint32_t rest = pat->size - level->distance;
		unsigned n = stretches_of(pat, 0, level->distance < rest ? level->distance : rest, stretches);
		for (unsigned i = 0; i < n; i++)
			build_put(build, level->out, in_buffer(PLAN_OUTPUT, &stretches[i]));
		n = arriving(pat, level, stretches);
		for (unsigned i = 0; i < n; i++) {
			build_wait(build, level->in);
			if (build_is_mapped(build, level->in))
				build_copy(build, in_buffer(PLAN_OUTPUT, &stretches[i]), landing(pat, level, &stretches[i]));
		}
	}
}

/* ---- more bytes: one tree after the other ------------------------------------------------------------------------------- */

/*
 * The program is a loop over chunks (variable 0) of a loop over pairs of trees (variable 1, q): o even, with all levels, and its odd neighbour, where
 * only the nearest level has anything to do.  Adding, o = top - 2 q (+ 1); gathering, o = 2 q (+ 1).  What happens at the multiples of 2^j alone is
 * guarded so.
 */
static struct plan_operand tree(const struct pat *pat, enum plan_space space, int64_t o, int32_t step)
{
	return (struct plan_operand){.space = space, .chunk.v = {1}, .block.first = {.base = (int32_t)((pat->rank + o) % pat->size), .v = {0, step}}};
}

static struct plan_operand tree_slot(const struct pat *pat, const struct level *level, int64_t o, int32_t step)
{
	struct plan_operand operand = tree(pat, PLAN_SCRATCH, o, step);
	operand.channel = level->in;
	return operand;
}

static void guard(struct plan_step *step, int64_t base, int32_t factor, uint32_t every)
{
	step->guard = (struct plan_affine){.base = (int32_t)base, .v = {0, factor}};
	step->every = every;
}

/* The largest number up to `most` that is `rest` modulo `every`; negative: there is none. */
static int64_t largest(int64_t most, int64_t rest, int64_t every)
{
	return most < rest ? -1 : most - (most - rest) % every;
}

static struct plan_operand sum_so_far(const struct pat *pat, int64_t top)
{
	struct plan_operand sum = tree(pat, PLAN_WORK, top, -2);
	sum.partial.base = 1;
	return sum;
}

static void scatter_one_by_one(struct pat *pat)
{
	struct build *build = &pat->build;
	const int64_t last = (int64_t)pat->size - 1, top = last & ~INT64_C(1), slots = build->plan->slots;
	const struct level *near = &pat->levels[0];
	/* What comes from the neighbour is of even o up to here, and so many of them are granted ahead. */
	const int64_t first_near = largest(last - 1, 0, 2), near_count = first_near / 2 + 1, ahead = near_count < slots ? near_count : slots;
	const bool late = first_near < top; /* nothing comes of the first even o: o + 1 is none */
	build->plan->work = pat->count > 1;
	build->plan->work_elements = build->plan->chunk_elements;

	build_loop(build, build->plan->chunks);
	build_loop(build, (uint64_t)(ahead - late));
	struct plan_operand near_slot = tree_slot(pat, near, first_near, -2);
	near_slot.slot.v[1] = 1;
	build_ready(build, near->in, near_slot);
	build_end(build);
	for (unsigned s = 1; s < pat->count; s++) {
		const struct level *level = &pat->levels[s];
		const int64_t every = 2 * (int64_t)level->distance, first = largest(last - level->distance, 0, every);
		if (first + every <= last)
			continue; /* granted when the loop comes by */
		struct plan_operand slot = tree_slot(pat, level, first, 0);
		slot.partial.base = first + level->distance != last;
		build_ready(build, level->in, slot);
	}

	build_loop(build, (uint64_t)(top / 2 + 1));
	guard(build_put(build, near->out, tree(pat, PLAN_INPUT, top + 1, -2)), top + 1 > last ? -1 : 0, 1, 0);
	const int64_t from = first_near - top; /* 0, or -2 */
	guard(build_wait(build, near->in), from, 2, 0);
	near_slot = tree_slot(pat, near, top, -2);
	near_slot.slot = (struct plan_affine){.base = (int32_t)(from / 2), .v = {0, 1}};
	struct plan_operand result = tree(pat, PLAN_OUTPUT, top, -2), own = tree(pat, PLAN_INPUT, top, -2), sum = sum_so_far(pat, top);
	guard(build_reduce(build, pat->count > 1 ? sum : result, near_slot, own), from, 2, 0);
	near_slot = tree_slot(pat, near, top - 2 * ahead, -2);
	near_slot.slot = (struct plan_affine){.base = (int32_t)(from / 2 + ahead), .v = {0, 1}};
	guard(build_ready(build, near->in, near_slot), top - 2 * ahead, -2, 0);

	for (unsigned s = 1; s < pat->count; s++) {
		const struct level *level = &pat->levels[s];
		const int64_t every = 2 * (int64_t)level->distance, first = largest(last - level->distance, 0, every);
		struct plan_operand slot = tree_slot(pat, level, top, -2);
		slot.partial.base = 1;
		if (first + level->distance == last) /* from a leaf */
			slot.partial = (struct plan_affine){.base = (int32_t)(first - top), .v = {0, 2}};
		guard(build_wait(build, level->in), first - top, 2, (uint32_t)every);
		guard(build_reduce(build, s + 1 < pat->count ? sum : result, slot, sum), first - top, 2, (uint32_t)every);
		slot.block = tree_slot(pat, level, top - every, -2).block;
		if (slot.partial.v[1])
			slot.partial.base += (int32_t)every;
		guard(build_ready(build, level->in, slot), top - every, -2, (uint32_t)every);
	}
	for (unsigned s = 1; s < pat->count; s++) {
		const struct level *level = &pat->levels[s];
		const int64_t every = 2 * (int64_t)level->distance, first = largest(last - (last == top), level->distance, every);
		if (first >= 0) {
			guard(build_put(build, level->out, sum), first - top, 2, (uint32_t)every);
			struct plan_step *flush = build_flush(build, level->out, 0);
			if (flush)
				guard(flush, first - top, 2, (uint32_t)every);
		}
		if (last == top && (last & (every - 1)) == level->distance) /* as a leaf */
			guard(build_put(build, level->out, own), 0, -1, 0);
	}
	build_end(build);
	build_end(build);
}

static void gather_one_by_one(struct pat *pat)
{
	struct build *build = &pat->build;
	const int64_t last = (int64_t)pat->size - 1, slots = build->plan->slots;
	const struct level *near = &pat->levels[0];
	const int64_t near_count = (last + 1) / 2, ahead = near_count < slots ? near_count : slots;
	const bool near_mapped = build_is_mapped(build, near->in);
	if (!build->plan->in_place) {
		build_loop(build, build->plan->chunks);
		build_copy(build, tree(pat, PLAN_OUTPUT, 0, 0), tree(pat, PLAN_INPUT, 0, 0));
		build_end(build);
	}

	build_loop(build, build->plan->chunks);
	build_loop(build, (uint64_t)ahead);
	struct plan_operand near_landing = near_mapped ? tree_slot(pat, near, 1, 2) : tree(pat, PLAN_OUTPUT, 1, 2);
	near_landing.slot.v[1] = near_mapped;
	build_ready(build, near->in, near_landing);
	build_end(build);
	for (unsigned s = 1; s < pat->count; s++) {
		const struct level *level = &pat->levels[s];
		build_ready(build, level->in, build_is_mapped(build, level->in) ? tree_slot(pat, level, level->distance, 0) : tree(pat, PLAN_OUTPUT, level->distance, 0));
	}

	build_loop(build, (uint64_t)(last / 2 + 1));
	for (unsigned s = 1; s < pat->count; s++) {
		const struct level *level = &pat->levels[s];
		const int64_t every = 2 * (int64_t)level->distance, last_granted = largest(last - every, level->distance, every);
		const bool mapped = build_is_mapped(build, level->in);
		guard(build_wait(build, level->in), -(int64_t)level->distance, 2, (uint32_t)every);
		if (mapped)
			guard(build_copy(build, tree(pat, PLAN_OUTPUT, 0, 2), tree_slot(pat, level, 0, 2)), -(int64_t)level->distance, 2, (uint32_t)every);
		if (last_granted >= 0)
			guard(build_ready(build, level->in, mapped ? tree_slot(pat, level, every, 2) : tree(pat, PLAN_OUTPUT, every, 2)), last_granted, -2,
			      (uint32_t)every);
	}
	for (unsigned s = pat->count; s-- > 0;) {
		const struct level *level = &pat->levels[s];
		const int64_t every = 2 * (int64_t)level->distance;
		guard(build_put(build, level->out, tree(pat, PLAN_OUTPUT, 0, 2)), largest(last - level->distance, 0, every), -2, (uint32_t)every);
	}
	guard(build_wait(build, near->in), last - 1, -2, 0);
	if (near_mapped)
		guard(build_copy(build, tree(pat, PLAN_OUTPUT, 1, 2), near_landing), last - 1, -2, 0);
	near_landing.block = tree(pat, PLAN_OUTPUT, 1 + 2 * ahead, 2).block;
	near_landing.slot.base = near_mapped ? (int32_t)ahead : 0;
	guard(build_ready(build, near->in, near_landing), last - 1 - 2 * ahead, -2, 0);
	build_end(build);
	build_end(build);
}

enum st_status plan_build_pat(const struct plan_shape *shape, struct plan **plan)
{
	struct pat pat = {.size = shape->size, .rank = shape->rank};
	struct build *build = &pat.build;
	const bool scatters = shape->collective == PLAN_REDUCE_SCATTER;
	if (!scatters && shape->collective != PLAN_ALL_GATHER && shape->collective != PLAN_BARRIER)
		return st_fail(ST_ERR_USAGE, "pat plan: %s is not one of its collectives", plan_collective_name(shape->collective));
	ST_TRY(build_start(build, "pat", shape, shape->size == 1 ? 1 : 2, shape->size ? shape->size : 1, 1));
	if (shape->size == 1) {
		build_alone(build);
		return build_finish(build, plan);
	}
	const uint64_t longest = build_longest(build), chunks = build->plan->chunks;
	if (chunks * shape->size > INT32_MAX / 4) {
		plan_free(build->plan);
		return st_fail(ST_ERR_USAGE, "pat plan: %u ranks of %ju chunks each are too many", shape->size, (uintmax_t)chunks);
	}
	for (uint32_t distance = 1; distance < pat.size && pat.count < MAX_LEVELS; distance *= 2) {
		struct level *level = &pat.levels[pat.count++];
		uint32_t above = (pat.rank + distance) % pat.size, below = (pat.rank + pat.size - distance) % pat.size;
		level->distance = distance;
		level->in = build_channel(build, scatters ? below : above, false, 0);
		level->out = build_channel(build, scatters ? above : below, true, 0);
	}
	const bool together = chunks == 1 && pat.levels[pat.count - 1].distance * longest <= shape->chunk_elements;
	if (scatters)
		(together ? scatter_together : scatter_one_by_one)(&pat);
	else
		(together ? gather_together : gather_one_by_one)(&pat);
	for (unsigned s = 0; s < pat.count; s++)
		build_flush(build, pat.levels[s].out, 0);
	return build_finish(build, plan);
}
