/*
 * Ordered all-reduce: sums in the one tree over leaves that leaves.h describes, whatever the number of ranks.
 *
 * Let K be the largest power of two up to the number of ranks, and each of K participants stand for an equal and aligned stretch of leaves, a
 * subtree: the last ones may be short, or empty.  Then
 *   1. each participant gathers the roots of its stretch from the ranks that hold them and adds them up in tree order.  Its host is the rank that
 *      has the stretch's first leaf, so that where ranks hold whole subtrees, there is nothing to gather;
 *   2. participants that differ in bit 0 exchange halves of the range and add, then those that differ in bit 1, and so on: what meets are always
 *      the two halves of a node, the lower participant's on the left (recursive halving, see plan_halving.c, with the nearest first);
 *   3. the same exchanges run backwards with sums, and ranks that are no participant get theirs from one that is.
 * An empty stretch brings nothing; its participant is some rank without a stretch, and takes over its part of the work when halves of others come.
 *
 * Cost: with whole subtrees 2 lg p a + 2 (p-1)/p n b + (p-1)/p n g, as any halving; else the ranks without a stretch add 2 a + 2 n b, and each rank
 * whose leaves lie on both sides of a border a + n b for each root on the left of it.  A rank has lg p peers, and a few more where there is something
 * to gather: fewer than nine ranks reach into a stretch.
 *
 * Sums of more than a pair need room while the other ranks' roots come in: WORK has a chunk for each level of the stretch's tree.  After that a sum is in its
 * place in OUTPUT.  The unit of work is one put: a group of consecutive blocks as large as a slot takes.  Works with one slot.
 */
#include "leaves.h"
#include "plan_build.h"

#define MAX_LEVELS 20
#define MAX_SENDERS 16

/* Channels between two ranks that exchange halves have index 0; those of the roots and of the last result this one. */
#define OUTER 1

/* Who plays which part: known from the numbers of leaves and ranks. */
struct cast {
	uint32_t leaves, ranks;
	uint32_t participants, levels;
	uint32_t stretch;   /* leaves of a participant */
	uint32_t occupied;  /* participants that have any: the first ones */
	uint32_t followers; /* ranks that are no participant */
};

static uint64_t divide_up(uint64_t a, uint64_t b)
{
	return a / b + (a % b != 0);
}

static struct cast make_cast(uint32_t leaves, uint32_t ranks)
{
	struct cast cast = {.leaves = leaves, .ranks = ranks, .participants = 1, .stretch = 1};
	uint64_t full = 1;
	while ((uint64_t)cast.participants * 2 <= ranks) {
		cast.participants *= 2;
		cast.levels++;
	}
	while (full < leaves)
		full *= 2;
	if (full > cast.participants)
		cast.stretch = (uint32_t)(full / cast.participants);
	cast.occupied = (uint32_t)divide_up(leaves, cast.stretch);
	cast.followers = ranks - cast.participants;
	return cast;
}

static struct leaf_range stretch_of(const struct cast *cast, uint32_t participant)
{
	uint64_t first = (uint64_t)participant * cast->stretch, end = first + cast->stretch;
	return (struct leaf_range){(uint32_t)(first < cast->leaves ? first : cast->leaves), (uint32_t)(end < cast->leaves ? end : cast->leaves)};
}

/* Whether any of the 2^level participants that agree with this one above the lowest bits has leaves. */
static bool has_leaves(const struct cast *cast, uint32_t participant, unsigned level)
{
	return participant >> level << level < cast->occupied;
}

/* The host of a stretch with leaves. A rank has at most as many leaves as a stretch, so no rank hosts two. */
static uint32_t first_host(const struct cast *cast, uint32_t participant)
{
	return leaves_rank_of(cast->leaves, cast->ranks, participant * cast->stretch);
}

/* Number of hosts of stretches with leaves among the ranks below this one; it is itself the next one's host if *hosts. */
static uint32_t hosts_below(const struct cast *cast, uint32_t rank, bool *hosts)
{
	struct leaf_range own = leaves_of_rank(cast->leaves, cast->ranks, rank);
	uint64_t next = divide_up(own.first, cast->stretch);
	*hosts = next * cast->stretch < own.end;
	return (uint32_t)next;
}

/*
 * The other ranks, number 0 .. others - 1 in their order.  Some of them, evenly spread, are the hosts of the empty stretches in turn, the rest follow:
 * other j is a host when floor(j h / others) grows there, h the number of hosts wanted.
 */
static uint32_t others(const struct cast *cast)
{
	return cast->ranks - cast->occupied;
}

static uint32_t hosts_among(const struct cast *cast, uint64_t others_before)
{
	return others(cast) ? (uint32_t)(others_before * (cast->participants - cast->occupied) / others(cast)) : 0;
}

static uint32_t other_rank(const struct cast *cast, uint32_t number)
{
	/* The least count of first hosts with which the ranks from the next first host on are beyond it. */
	uint32_t low = 0, high = cast->occupied;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		if (first_host(cast, middle) - middle > number)
			high = middle;
		else
			low = middle + 1;
	}
	return number + low;
}

static uint32_t rank_of_participant(const struct cast *cast, uint32_t participant)
{
	if (participant < cast->occupied)
		return first_host(cast, participant);
	uint64_t number = participant - cast->occupied, empty = cast->participants - cast->occupied;
	return other_rank(cast, (uint32_t)(divide_up((number + 1) * others(cast), empty) - 1));
}

/* The k-th of the ranks that are no participant. */
static uint32_t follower_rank(const struct cast *cast, uint32_t k)
{
	uint32_t low = 0, high = others(cast);
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		if (middle + 1 - hosts_among(cast, middle + UINT64_C(1)) >= k + 1)
			high = middle;
		else
			low = middle + 1;
	}
	return other_rank(cast, low);
}

/* Whom the k-th follower gets its result from: no participant has two. */
static uint32_t participant_of_follower(const struct cast *cast, uint32_t k)
{
	return (uint32_t)((uint64_t)k * cast->participants / cast->followers);
}

static bool find_follower(const struct cast *cast, uint32_t participant, uint32_t *k)
{
	if (!cast->followers)
		return false;
	*k = (uint32_t)divide_up((uint64_t)participant * cast->followers, cast->participants);
	return *k < cast->followers && participant_of_follower(cast, *k) == participant;
}

/* ---- the steps --------------------------------------------------------------------------------------------------------------------- */

/* A rank that puts roots here, `roots` of them for each unit. */
struct sender {
	uint16_t in;
	unsigned roots;
	uint32_t ahead; /* whole units that are granted ahead; 0: less than one, as many puts as there are slots */
	struct leaf_range nodes[LEAVES_ROOTS_MOST];
};

struct level {
	uint16_t in, out;
	uint32_t kept, sent;   /* first block of the half that stays and of the one that goes */
	uint32_t group, units; /* blocks per put, puts */
	uint32_t lead;         /* puts under way at a time */
	bool left;             /* this rank's operand is the left one */
	bool gives, takes;     /* this rank has an operand, the other one has */
	bool partial;          /* operands are partial sums, not the result */
	bool last;             /* their sum is the result */
};

struct ordered {
	struct build build;
	struct cast cast;
	uint32_t group, units, lead; /* as above, for all of the range */

	bool participates;
	uint32_t participant;
	unsigned roots, outgoing; /* own roots; how many of them, from the first on, are others' to add */
	uint16_t target;          /* channel that they go to */
	struct leaf_range nodes[LEAVES_ROOTS_MOST]; /* the own roots */
	struct sender senders[MAX_SENDERS];
	unsigned sender_count;
	bool gathered;            /* the sum of the stretch is in OUTPUT, not a root in INPUT */

	struct level levels[MAX_LEVELS];
	bool follows, leads;      /* gets the result from a participant; gives it to a rank that is none */
	uint16_t result;          /* channel for that */
};

/* Unit u (ahead of the loop's variable) of `group` blocks from block `first` on. */
static struct plan_operand unit(enum plan_space space, uint32_t group, uint32_t first, uint32_t ahead)
{
	return (struct plan_operand){.space = space, .span = group,
				     .block.first = {.base = (int32_t)(first + ahead * group), .v = {(int32_t)group}}};
}

static struct plan_operand whole(const struct ordered *ordered, enum plan_space space, bool partial)
{
	struct plan_operand operand = unit(space, ordered->group, 0, 0);
	operand.partial.base = partial;
	return operand;
}

static struct plan_operand root(const struct ordered *ordered, unsigned layer)
{
	struct plan_operand operand = whole(ordered, PLAN_INPUT, true);
	operand.layer = (uint16_t)layer;
	return operand;
}

static struct plan_operand work(const struct ordered *ordered, unsigned depth)
{
	struct plan_operand operand = whole(ordered, PLAN_WORK, true);
	operand.slot.base = (int32_t)depth;
	return operand;
}

/* Where a sender's put number `put`, counted from those of the loop's unit on, arrives. */
static struct plan_operand root_slot(const struct ordered *ordered, const struct sender *sender, uint32_t put)
{
	struct plan_operand operand = unit(PLAN_SCRATCH, ordered->group, 0, put / sender->roots);
	operand.channel = sender->in;
	operand.slot = (struct plan_affine){.base = (int32_t)put, .v = {(int32_t)sender->roots}};
	operand.partial.base = 1;
	return operand;
}

static struct plan_affine while_units(const struct ordered *ordered, uint32_t ahead)
{
	return (struct plan_affine){.base = (int32_t)ordered->units - 1 - (int32_t)ahead, .v = {-1}};
}

static void grant_roots(struct ordered *ordered, const struct sender *sender)
{
	struct build *build = &ordered->build;
	struct plan_operand operand = root_slot(ordered, sender, 0);
	if (!sender->ahead) {
		operand.slot.v[0] = 1;
		operand.block.first.v[0] = 0;
		build_loop(build, build->plan->slots);
		build_ready(build, sender->in, operand);
		build_end(build);
		return;
	}
	operand.slot.v[1] = 1;
	build_loop(build, sender->ahead);
	build_loop(build, sender->roots);
	build_ready(build, sender->in, operand);
	build_end(build);
	build_end(build);
}

static void grant_next_root(struct ordered *ordered, const struct sender *sender, uint32_t put)
{
	uint32_t next = put + (sender->ahead ? sender->ahead * sender->roots : ordered->build.plan->slots);
	if (next / sender->roots < ordered->units)
		build_ready(&ordered->build, sender->in, root_slot(ordered, sender, next))->guard = while_units(ordered, next / sender->roots);
}

/* Sums of one unit in tree order: a binary counter, whose entries are roots in INPUT or sums in WORK, each at its own depth. */
struct stack {
	struct leaf_range nodes[LEAVES_ROOTS_MOST + 1];
	struct plan_operand operands[LEAVES_ROOTS_MOST + 1];
	unsigned depth, work;
};

static void add_operand(struct ordered *ordered, struct stack *stack, struct leaf_range node, struct plan_operand operand)
{
	struct build *build = &ordered->build;
	const struct leaf_range all = stretch_of(&ordered->cast, ordered->participant);
	bool arrived = operand.space == PLAN_SCRATCH;
	while (stack->depth && leaves_are_siblings(ordered->cast.leaves, stack->nodes[stack->depth - 1], node)) {
		struct plan_operand sum = work(ordered, --stack->depth), left = stack->operands[stack->depth];
		node.first = stack->nodes[stack->depth].first;
		if (node.first == all.first && node.end == all.end)
			sum = whole(ordered, PLAN_OUTPUT, all.first || all.end < ordered->cast.leaves);
		else if (stack->work <= stack->depth)
			stack->work = stack->depth + 1;
		build_reduce(build, sum, left, operand);
		operand = sum;
		arrived = false;
	}
	if (arrived) {
		/* The slot is wanted for what it is to be added to. */
		build_copy(build, work(ordered, stack->depth), operand);
		operand = work(ordered, stack->depth);
		if (stack->work <= stack->depth)
			stack->work = stack->depth + 1;
	}
	stack->nodes[stack->depth] = node;
	stack->operands[stack->depth++] = operand;
}

/* Each unit's roots: those for others go, the others' come and are added. */
static enum st_status gather(struct ordered *ordered)
{
	struct build *build = &ordered->build;
	struct stack stack = {.depth = 0};
	if (!ordered->outgoing && !ordered->sender_count)
		return ST_OK;
	build_loop(build, ordered->units);
	for (unsigned i = 0; i < ordered->outgoing; i++)
		build_put(build, ordered->target, root(ordered, i));
	/* In place the sum goes where the first root was put from. */
	if (ordered->outgoing && ordered->sender_count && build->plan->in_place)
		build_flush(build, ordered->target, 0);
	for (unsigned i = ordered->outgoing; i < ordered->roots; i++)
		add_operand(ordered, &stack, ordered->nodes[i], root(ordered, i));
	for (unsigned s = 0; s < ordered->sender_count; s++) {
		const struct sender *sender = &ordered->senders[s];
		for (unsigned i = 0; i < sender->roots; i++) {
			build_wait(build, sender->in);
			add_operand(ordered, &stack, sender->nodes[i], root_slot(ordered, sender, i));
			grant_next_root(ordered, sender, i);
		}
	}
	build_end(build);
	if (ordered->outgoing)
		build_flush(build, ordered->target, 0);
	ordered->gathered = ordered->sender_count;
	if (stack.work) {
		build->plan->work = stack.work;
		build->plan->work_elements = build->shape->chunk_elements;
	}
	if (stack.depth > 1)
		return st_fail(ST_ERR_INTERNAL, "ordered plan: rank %u of %u can't add up its part of %u leaves", build->shape->rank, build->shape->size,
			       ordered->cast.leaves);
	return ST_OK;
}

static struct plan_affine while_more(const struct level *level)
{
	return (struct plan_affine){.base = (int32_t)(level->units - 1 - level->lead), .v = {-1}};
}

static struct plan_operand slot(const struct level *level, uint32_t first, uint32_t ahead, uint32_t slot_ahead)
{
	struct plan_operand operand = unit(PLAN_SCRATCH, level->group, first, ahead);
	operand.channel = level->in;
	operand.slot = (struct plan_affine){.base = (int32_t)(ahead + slot_ahead), .v = {1}};
	return operand;
}

static struct plan_operand operand_slot(const struct level *level, uint32_t ahead)
{
	struct plan_operand operand = slot(level, level->kept, ahead, 0);
	operand.partial.base = level->partial;
	return operand;
}

/* This rank's operand: the root that it began with, or a sum. */
static struct plan_operand own_operand(const struct ordered *ordered, const struct level *level, uint32_t first, uint32_t ahead, bool began)
{
	struct plan_operand operand = unit(began ? PLAN_INPUT : PLAN_OUTPUT, level->group, first, ahead);
	operand.partial.base = level->partial;
	if (began)
		operand.layer = (uint16_t)(ordered->roots - 1);
	return operand;
}

static struct plan_operand landing(const struct ordered *ordered, const struct level *level, uint32_t first, uint32_t ahead)
{
	return build_is_mapped(&ordered->build, level->in) ? slot(level, first, ahead, 1) : unit(PLAN_OUTPUT, level->group, first, ahead);
}

/* What was put from there has been taken by now, or nearly so. */
static void grant_sums(struct ordered *ordered, const struct level *level)
{
	struct build *build = &ordered->build;
	build_flush(build, level->out, 0);
	build_rounds(build, level->lead);
	build_ready(build, level->in, landing(ordered, level, level->sent, 0));
	build_rounds_end(build, level->lead);
}

/* The other rank's half comes, this rank's goes, as far as they have any. *began: the own operand still is the root that it began with. */
static void reduce_half(struct ordered *ordered, const struct level *level, bool *began)
{
	struct build *build = &ordered->build;
	const bool more = level->units > level->lead, early = level->units == 1 && (!build_is_mapped(build, level->in) || build->plan->slots > 1);
	struct plan_operand sum = unit(PLAN_OUTPUT, level->group, level->kept, 0);
	sum.partial.base = level->partial && !level->last;
	if (level->gives) {
		build_rounds(build, level->lead);
		build_put(build, level->out, own_operand(ordered, level, level->sent, 0, *began));
		build_rounds_end(build, level->lead);
	}
	/* With one unit, the sum's way back can be granted before the operand is here, if there is a place for it. */
	if (early)
		grant_sums(ordered, level);
	if (level->takes || (level->gives && more)) {
		build_rounds(build, level->units);
		if (level->takes) {
			struct plan_operand theirs = operand_slot(level, 0), own = own_operand(ordered, level, level->kept, 0, *began);
			build_wait(build, level->in);
			if (level->gives)
				build_reduce(build, sum, level->left ? own : theirs, level->left ? theirs : own);
			else
				build_copy(build, sum, theirs);
			if (more)
				build_ready(build, level->in, operand_slot(level, level->lead))->guard = while_more(level);
		}
		if (level->gives && more)
			build_put(build, level->out, own_operand(ordered, level, level->sent, level->lead, *began))->guard = while_more(level);
		build_rounds_end(build, level->units);
	}
	if (level->takes)
		*began = false;
	if (!early)
		grant_sums(ordered, level);
}

/* Sums come into the half that was sent (granted already), and go from the one that was kept. */
static void gather_half(struct ordered *ordered, const struct level *level)
{
	struct build *build = &ordered->build;
	build_rounds(build, level->lead);
	build_put(build, level->out, unit(PLAN_OUTPUT, level->group, level->kept, 0));
	build_rounds_end(build, level->lead);
	build_rounds(build, level->units);
	build_wait(build, level->in);
	if (build_is_mapped(build, level->in))
		build_copy(build, unit(PLAN_OUTPUT, level->group, level->sent, 0), landing(ordered, level, level->sent, 0));
	if (level->units > level->lead) {
		build_ready(build, level->in, landing(ordered, level, level->sent, level->lead))->guard = while_more(level);
		build_put(build, level->out, unit(PLAN_OUTPUT, level->group, level->kept, level->lead))->guard = while_more(level);
	}
	build_rounds_end(build, level->units);
}

/* The result for a rank that is no participant, and there. */
static void give_result(struct ordered *ordered)
{
	build_loop(&ordered->build, ordered->units);
	build_put(&ordered->build, ordered->result, whole(ordered, PLAN_OUTPUT, false));
	build_end(&ordered->build);
	build_flush(&ordered->build, ordered->result, 0);
}

static void take_result(struct ordered *ordered)
{
	struct build *build = &ordered->build;
	const bool mapped = build_is_mapped(build, ordered->result);
	struct plan_operand output = whole(ordered, PLAN_OUTPUT, false), arrived = output, next;
	if (mapped) {
		arrived.space = PLAN_SCRATCH;
		arrived.channel = ordered->result;
		arrived.slot.v[0] = 1;
	}
	next = arrived;
	next.block.first.base += (int32_t)(ordered->lead * ordered->group);
	next.slot.base += (int32_t)ordered->lead;
	build_loop(build, ordered->lead);
	build_ready(build, ordered->result, arrived);
	build_end(build);
	build_loop(build, ordered->units);
	build_wait(build, ordered->result);
	if (mapped)
		build_copy(build, output, arrived);
	if (ordered->units > ordered->lead)
		build_ready(build, ordered->result, next)->guard = while_units(ordered, ordered->lead);
	build_end(build);
}

static enum st_status run(struct ordered *ordered)
{
	struct build *build = &ordered->build;
	const struct cast *cast = &ordered->cast;
	for (unsigned s = 0; s < ordered->sender_count; s++)
		grant_roots(ordered, &ordered->senders[s]);
	for (unsigned s = 0; s < cast->levels && ordered->participates; s++) {
		if (!ordered->levels[s].takes)
			continue;
		build_rounds(build, ordered->levels[s].lead);
		build_ready(build, ordered->levels[s].in, operand_slot(&ordered->levels[s], 0));
		build_rounds_end(build, ordered->levels[s].lead);
	}
	ST_TRY(gather(ordered));
	if (!ordered->participates) {
		take_result(ordered);
		return ST_OK;
	}
	bool began = !ordered->gathered;
	if (began && !ordered->participant && cast->stretch >= cast->leaves) {
		/* One rank has all there is. */
		build_loop(build, ordered->units);
		build_copy(build, whole(ordered, PLAN_OUTPUT, false), root(ordered, 0));
		build_end(build);
		began = false;
	}
	for (unsigned s = 0; s < cast->levels; s++)
		reduce_half(ordered, &ordered->levels[s], &began);
	for (unsigned s = cast->levels; s-- > 0;)
		gather_half(ordered, &ordered->levels[s]);
	if (ordered->leads)
		give_result(ordered);
	for (unsigned s = 0; s < cast->levels; s++)
		build_flush(build, ordered->levels[s].out, 0);
	return ST_OK;
}

/* ---- what this rank has to do ---------------------------------------------------------------------------------------------------------- */

static void find_levels(struct ordered *ordered, uint32_t blocks)
{
	struct build *build = &ordered->build;
	const struct cast *cast = &ordered->cast;
	const uint32_t number = ordered->participant;
	uint32_t first = 0, width = blocks;
	for (unsigned s = 0; s < cast->levels; s++) {
		const uint32_t other = number ^ 1u << s, peer = rank_of_participant(cast, other);
		struct level *level = &ordered->levels[s];
		width /= 2;
		level->left = !(number >> s & 1);
		level->kept = first + (level->left ? 0 : width);
		level->sent = first + (level->left ? width : 0);
		level->group = ordered->group < width ? ordered->group : width;
		level->units = width / level->group;
		level->lead = level->units < build->plan->slots ? level->units : build->plan->slots;
		level->gives = has_leaves(cast, number, s);
		level->takes = has_leaves(cast, other, s);
		level->partial = (uint64_t)cast->stretch << s < cast->leaves;
		level->last = (uint64_t)cast->stretch << (s + 1) >= cast->leaves;
		level->in = build_channel(build, peer, false, 0);
		level->out = build_channel(build, peer, true, 0);
		first = level->kept;
	}
}

static bool find_senders(struct ordered *ordered)
{
	const struct cast *cast = &ordered->cast;
	const struct leaf_range stretch = stretch_of(cast, ordered->participant);
	uint32_t last = leaves_rank_of(cast->leaves, cast->ranks, stretch.end - 1);
	for (uint32_t rank = ordered->build.shape->rank + 1; rank <= last; rank++) {
		struct leaf_range range = leaves_of_rank(cast->leaves, cast->ranks, rank);
		if (range.end > stretch.end)
			range.end = stretch.end;
		if (range.first >= range.end)
			continue;
		if (ordered->sender_count == MAX_SENDERS)
			return false;
		struct sender *sender = &ordered->senders[ordered->sender_count++];
		sender->roots = leaves_roots(cast->leaves, range, sender->nodes);
		sender->in = build_channel(&ordered->build, rank, false, OUTER);
		sender->ahead = ordered->build.plan->slots / sender->roots;
		if (sender->ahead > ordered->units)
			sender->ahead = ordered->units;
	}
	return true;
}

static bool find_parts(struct ordered *ordered)
{
	struct build *build = &ordered->build;
	const struct cast *cast = &ordered->cast;
	const uint32_t rank = build->shape->rank;
	const struct leaf_range range = leaves_of_rank(cast->leaves, cast->ranks, rank);
	bool hosts;
	uint32_t below = hosts_below(cast, rank, &hosts), number = rank - below, k = 0;
	ordered->roots = leaves_roots(cast->leaves, range, ordered->nodes);
	/* Leaves before the own stretch, or all where there is none, are the host's below. */
	while (ordered->outgoing < ordered->roots && (!hosts || ordered->nodes[ordered->outgoing].first < below * cast->stretch))
		ordered->outgoing++;
	if (ordered->outgoing)
		ordered->target = build_channel(build, first_host(cast, below - 1), true, OUTER);
	ordered->participant = below;
	ordered->participates = hosts;
	if (!hosts && hosts_among(cast, number + UINT64_C(1)) > hosts_among(cast, number)) {
		ordered->participant = cast->occupied + hosts_among(cast, number);
		ordered->participates = true;
	}
	if (hosts && !find_senders(ordered))
		return false;
	if (!ordered->participates) {
		ordered->follows = true;
		ordered->result = build_channel(build, rank_of_participant(cast, participant_of_follower(cast, number - hosts_among(cast, number))), false, OUTER);
	} else if (find_follower(cast, ordered->participant, &k)) {
		ordered->leads = true;
		ordered->result = build_channel(build, follower_rank(cast, k), true, OUTER);
	}
	return true;
}

enum st_status plan_build_ordered(const struct plan_shape *shape, struct plan **plan)
{
	struct ordered ordered = {0};
	struct build *build = &ordered.build;
	if (shape->collective != PLAN_ALLREDUCE_ORDERED)
		return st_fail(ST_ERR_USAGE, "ordered plan: %s is not one of its collectives", plan_collective_name(shape->collective));
	if (!shape->leaves || shape->leaves > LEAVES_MOST)
		return st_fail(ST_ERR_USAGE, "ordered plan: %u leaves, expected 1 to %d", shape->leaves, LEAVES_MOST);
	ST_TRY(build_not_wide("ordered", shape));
	if (shape->size)
		ordered.cast = make_cast(shape->leaves, shape->size);
	/* Blocks of at most a chunk. */
	uint64_t blocks = ordered.cast.participants ? ordered.cast.participants : 1;
	while (shape->chunk_elements && blocks < INT32_MAX / 4 && build_divide_up(shape->elements, blocks) > shape->chunk_elements)
		blocks *= 2;
	if (shape->chunk_elements && build_divide_up(shape->elements, blocks) > shape->chunk_elements)
		return st_fail(ST_ERR_USAGE, "ordered plan: %ju elements in chunks of %ju are too many chunks", (uintmax_t)shape->elements,
			       (uintmax_t)shape->chunk_elements);
	ST_TRY(build_start(build, "ordered", shape, 1, (uint32_t)blocks, 1));
	uint64_t longest = plan_block_elements(build->plan, 0);
	ordered.group = 1;
	while (ordered.group < blocks && ordered.group * 2 * longest <= shape->chunk_elements)
		ordered.group *= 2;
	ordered.units = (uint32_t)blocks / ordered.group;
	ordered.lead = ordered.units < shape->slots ? ordered.units : shape->slots;
	enum st_status status = ST_OK;
	if (!find_parts(&ordered))
		status = st_fail(ST_ERR_INTERNAL, "ordered plan: rank %u of %u with %u leaves: too many ranks reach into one stretch", shape->rank, shape->size,
				 shape->leaves);
	if (ordered.participates)
		find_levels(&ordered, (uint32_t)blocks);
	if (status == ST_OK)
		status = run(&ordered);
	if (status != ST_OK) {
		plan_free(build->plan);
		return status;
	}
	return build_finish(build, plan);
}
