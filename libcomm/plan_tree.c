/*
 * Double binary tree: all-reduce and broadcast in O(lg p) hops at full bandwidth (Sanders, Speck and Träff, 2009).
 *
 * Each half of the range has a binary tree of its own over the same ranks.  The first tree is in order: of the labels l..h the root is the one that
 * leaves a full tree below it to the left, so that the odd labels are leaves; a rank's label is its position + 1.  In the second tree every
 * rank has the label of its successor in the first.  So each rank is an inner node of one tree at most, and has as many bytes to send as to
 * receive.  Subtrees are stretches of the order of ranks: most edges stay within a node.
 *
 * All-reduce sends chunks up, adding, and from the root down again; broadcast sends them from the root of the collective along the edges of the same
 * trees, whatever rank that is, so that no root needs links of its own.
 *
 * Cost: 4 lg p a + 2 n b + n g, for chunks that are short enough; broadcast 2 lg p a + n b.
 *
 * ORDER OF STEPS.  The four streams of a rank (up and down, in two trees) are one program that deals with chunk i going up and with chunk i - D coming
 * down in turn i, so that a rank does not wait for the root's answer before it sends on: D = 1 + k d at depth d, with k as large as slots allow
 * and at most 2, the way up and down of one level.  Nobody waits in a circle: in turn i of a rank, what goes up waits for children in
 * their turn i or before, what comes down waits for the parent, which sent it in its turn i - k, or before; a grant is given at most `slots`
 * turns before what it is for; and both trees keep to that.  Works with one slot (then k = 1).
 *
 * A sum on its way up lies in its place in OUTPUT until it is put, or, where it is wide, in WORK: as many slots for each tree as grants are given ahead.
 */
#include "plan_build.h"

enum { LEFT, RIGHT, PARENT, NEIGHBOURS };

struct edge {
	bool exists;
	bool partial; /* a child that has children itself: what comes up is a partial sum, no input */
	uint16_t in, out;
};

/* One tree, as seen from this rank. */
struct view {
	uint32_t block; /* the half of the range that it carries */
	struct edge edges[NEIGHBOURS];
	int toward; /* broadcast: the neighbour that data comes from; NEIGHBOURS: this rank is the root */
	int64_t lag, grant_lag; /* all-reduce: D; how many turns after a chunk went up its return is granted, where it lands in place */
	bool mapped_up, mapped_down; /* the edge to the parent, outgoing and incoming */
};

struct tree {
	struct build build;
	struct view views[2];
	int64_t chunks, lead; /* lead: grants given ahead */
};

static uint32_t root_of(uint32_t low, uint32_t high)
{
	uint32_t power = 1;
	while (power * 2 <= high - low + 1)
		power *= 2;
	return low - 1 + power;
}

struct place {
	uint32_t labels[NEIGHBOURS]; /* 0: none */
	uint32_t low, high;          /* of the subtree */
	uint32_t depth;
};

static struct place find_place(uint32_t label, uint32_t size)
{
	struct place place = {.low = 1, .high = size};
	for (uint32_t root; (root = root_of(place.low, place.high)) != label; place.depth++) {
		place.labels[PARENT] = root;
		if (label < root)
			place.high = root - 1;
		else
			place.low = root + 1;
	}
	if (place.low < label)
		place.labels[LEFT] = root_of(place.low, label - 1);
	if (place.high > label)
		place.labels[RIGHT] = root_of(label + 1, place.high);
	return place;
}

static uint32_t label_of(unsigned which, uint32_t position, uint32_t size)
{
	return (position + which) % size + 1;
}

static uint32_t position_of(unsigned which, uint32_t label, uint32_t size)
{
	return (label - 1 + size - which) % size;
}

static void make_views(struct tree *tree)
{
	struct build *build = &tree->build;
	const uint32_t size = build->shape->size;
	uint32_t first_peers[NEIGHBOURS] = {0};
	for (unsigned which = 0; which < 2; which++) {
		struct view *view = &tree->views[which];
		const uint32_t label = label_of(which, build->position, size), root = label_of(which, build->root_position, size);
		const struct place place = find_place(label, size);
		view->block = which;
		view->toward = root == label                                          ? NEIGHBOURS
			       : root >= place.low && root <= place.high && root < label ? LEFT
			       : root >= place.low && root <= place.high                 ? RIGHT
											 : PARENT;
		for (int n = 0; n < NEIGHBOURS; n++) {
			if (!place.labels[n])
				continue;
			uint32_t peer = build_rank_at(build, position_of(which, place.labels[n], size));
			/* Ranks that are neighbours in both trees have two links. */
			uint16_t index = 0;
			for (int m = 0; m < NEIGHBOURS && which; m++)
				index |= tree->views[0].edges[m].exists && first_peers[m] == peer;
			if (!which)
				first_peers[n] = peer;
			bool broadcast = build->shape->collective == PLAN_BROADCAST;
			view->edges[n].exists = true;
			view->edges[n].partial = n != PARENT && place.labels[n] % 2 == 0;
			if (!broadcast || n == view->toward)
				view->edges[n].in = build_channel(build, peer, false, index);
			if (!broadcast || n != view->toward)
				view->edges[n].out = build_channel(build, peer, true, index);
		}
		const int64_t step = tree->lead < 2 ? tree->lead : 2;
		view->lag = 1 + step * place.depth;
		view->grant_lag = view->lag - tree->lead < 1 ? 1 : view->lag - tree->lead;
		if (view->edges[PARENT].exists && build->shape->collective != PLAN_BROADCAST) {
			view->mapped_up = build_is_mapped(build, view->edges[PARENT].out);
			view->mapped_down = build_is_mapped(build, view->edges[PARENT].in);
		}
	}
}

static struct plan_operand chunk(const struct view *view, enum plan_space space, int64_t first)
{
	return (struct plan_operand){.space = space, .block.first.base = (int32_t)view->block, .chunk = {.base = (int32_t)first, .v = {1}}};
}

static struct plan_operand slot(const struct view *view, uint16_t channel, int64_t first)
{
	struct plan_operand operand = chunk(view, PLAN_SCRATCH, first);
	operand.channel = channel;
	operand.slot = operand.chunk;
	return operand;
}

/* Holds in a turn (the loop's variable, from 0) while chunk `first` + turn is one. */
static struct plan_affine while_chunk(const struct tree *tree, int64_t first)
{
	return (struct plan_affine){.base = (int32_t)(tree->chunks - 1 - first), .v = {-1}};
}

/* The steps of one turn, `turns` times. */
static void begin_turns(struct tree *tree, int64_t turns)
{
	if (turns > 1)
		build_loop(&tree->build, (uint64_t)turns);
}

static void end_turns(struct tree *tree, int64_t turns)
{
	if (turns > 1)
		build_end(&tree->build);
}

/* What comes from a neighbour. */
static struct plan_operand edge_slot(const struct view *view, int neighbour, int64_t first)
{
	struct plan_operand operand = slot(view, view->edges[neighbour].in, first);
	operand.partial.base = view->edges[neighbour].partial;
	return operand;
}

static void grant_slots(struct tree *tree, const struct view *view, int neighbour)
{
	begin_turns(tree, tree->lead);
	build_ready(&tree->build, view->edges[neighbour].in, edge_slot(view, neighbour, 0));
	end_turns(tree, tree->lead);
}

static void grant_slot_again(struct tree *tree, const struct view *view, int neighbour, int64_t first)
{
	if (first + tree->lead < tree->chunks)
		build_ready(&tree->build, view->edges[neighbour].in, edge_slot(view, neighbour, first + tree->lead))->guard =
			while_chunk(tree, first + tree->lead);
}

/* A sum that is going to be put to the parent. Whatever was in its place is on its way there. */
static struct plan_operand sum_so_far(struct tree *tree, const struct view *view, int64_t first)
{
	struct plan_operand sum = chunk(view, PLAN_OUTPUT, first);
	sum.partial.base = 1;
	if (tree->build.plan->wide) {
		sum.space = PLAN_WORK;
		sum.slot = (struct plan_affine){.base = (int32_t)(2 * first + view->block), .v = {2}};
		build_flush(&tree->build, view->edges[PARENT].out, tree->lead - 1);
	}
	return sum;
}

/* Chunk i: the children's sums and this rank's operand, to the parent, or in its place at the root. */
static void up(struct tree *tree, const struct view *view, int64_t first)
{
	struct build *build = &tree->build;
	const struct edge *parent = &view->edges[PARENT];
	struct plan_operand own = chunk(view, PLAN_INPUT, first), sum = own;
	struct plan_step *step = NULL;
	for (int n = LEFT; n <= RIGHT; n++)
		if (view->edges[n].exists)
			build_wait(build, view->edges[n].in);
	if (view->edges[LEFT].exists || view->edges[RIGHT].exists) {
		const int some = view->edges[LEFT].exists ? LEFT : RIGHT;
		const struct plan_operand arrived = edge_slot(view, some, first);
		if (view->mapped_up) {
			step = build_put(build, parent->out, arrived);
			build_source(build, step, own);
		} else {
			sum = parent->exists ? sum_so_far(tree, view, first) : chunk(view, PLAN_OUTPUT, first);
			step = build_reduce(build, sum, arrived, own);
		}
		if (some == LEFT && view->edges[RIGHT].exists)
			build_source(build, step, edge_slot(view, RIGHT, first));
	}
	if (parent->exists && !(step && view->mapped_up))
		build_put(build, parent->out, sum);
	for (int n = LEFT; n <= RIGHT; n++)
		if (view->edges[n].exists)
			grant_slot_again(tree, view, n, first);
}

/* Puts chunk j, which is in `from`, to the edges of a mask and, if it is not in OUTPUT, there too. */
static void spread(struct tree *tree, const struct view *view, struct plan_operand from, int64_t first, unsigned edges)
{
	struct build *build = &tree->build;
	const struct plan_operand output = chunk(view, PLAN_OUTPUT, first);
	int keeper = NEIGHBOURS;
	if (from.space == PLAN_SCRATCH) {
		for (int n = 0; n < NEIGHBOURS && keeper == NEIGHBOURS; n++)
			if (edges >> n & 1 && build_is_mapped(build, view->edges[n].out))
				keeper = n;
		if (keeper == NEIGHBOURS)
			build_copy(build, output, from);
		else
			build_keep(build, build_put(build, view->edges[keeper].out, from), output);
	}
	for (int n = 0; n < NEIGHBOURS; n++)
		if (edges >> n & 1 && n != keeper)
			build_put(build, view->edges[n].out, output);
}

static unsigned children(const struct view *view)
{
	return (view->edges[LEFT].exists ? 1u << LEFT : 0) | (view->edges[RIGHT].exists ? 1u << RIGHT : 0);
}

/* Chunk j, from the parent to the children. late: turns since the last chunk went up, so that `lag` puts are no longer pending. */
static void down(struct tree *tree, const struct view *view, int64_t first, bool late)
{
	struct build *build = &tree->build;
	const struct edge *parent = &view->edges[PARENT];
	struct plan_operand from = chunk(view, PLAN_OUTPUT, first);
	if (parent->exists) {
		build_wait(build, parent->in);
		if (view->mapped_down) {
			from = slot(view, parent->in, first);
			/* What went up may have been put from where this chunk goes. */
			build_flush(build, parent->out, late ? 0 : view->lag);
		}
	}
	spread(tree, view, from, first, children(view));
	if (parent->exists && view->mapped_down)
		grant_slot_again(tree, view, PARENT, first);
}

/* The parent may write chunk j in its place once what went up from there is gone. */
static void grant_return(struct tree *tree, const struct view *view, int64_t first, bool late)
{
	build_flush(&tree->build, view->edges[PARENT].out, late ? 0 : view->grant_lag);
	build_ready(&tree->build, view->edges[PARENT].in, chunk(view, PLAN_OUTPUT, first));
}

static void add_bound(int64_t *bounds, unsigned *count, int64_t bound)
{
	unsigned at = *count;
	for (unsigned i = 0; i < *count; i++)
		if (bounds[i] == bound)
			return;
	for (; at > 0 && bounds[at - 1] > bound; at--)
		bounds[at] = bounds[at - 1];
	bounds[at] = bound;
	++*count;
}

static void allreduce(struct tree *tree)
{
	const int64_t chunks = tree->chunks;
	int64_t bounds[12];
	unsigned count = 0;
	add_bound(bounds, &count, 0);
	add_bound(bounds, &count, chunks);
	for (unsigned t = 0; t < 2; t++) {
		const struct view *view = &tree->views[t];
		for (int n = LEFT; n <= RIGHT; n++)
			if (view->edges[n].exists)
				grant_slots(tree, view, n);
		if (view->edges[PARENT].exists && view->mapped_down)
			grant_slots(tree, view, PARENT);
		add_bound(bounds, &count, view->grant_lag);
		add_bound(bounds, &count, view->grant_lag + chunks);
		add_bound(bounds, &count, view->lag);
		add_bound(bounds, &count, view->lag + chunks);
	}
	/* Between two bounds every turn does the same. */
	for (unsigned b = 0; b + 1 < count; b++) {
		const int64_t turn = bounds[b], turns = bounds[b + 1] - turn;
		const bool late = turn >= chunks;
		begin_turns(tree, turns);
		for (unsigned t = 0; t < 2 && !late; t++)
			up(tree, &tree->views[t], turn);
		for (unsigned t = 0; t < 2; t++) {
			const struct view *view = &tree->views[t];
			if (view->edges[PARENT].exists && !view->mapped_down && turn >= view->grant_lag && turn < view->grant_lag + chunks)
				grant_return(tree, view, turn - view->grant_lag, late);
		}
		for (unsigned t = 0; t < 2; t++)
			if (turn >= tree->views[t].lag && turn < tree->views[t].lag + chunks)
				down(tree, &tree->views[t], turn - tree->views[t].lag, late);
		end_turns(tree, turns);
	}
	for (uint32_t c = 0; c < tree->build.plan->channel_count; c++)
		if (tree->build.plan->channels[c].outgoing)
			build_flush(&tree->build, (uint16_t)c, 0);
}

static struct plan_operand landing(const struct tree *tree, const struct view *view, int64_t first)
{
	const uint16_t in = view->edges[view->toward].in;
	return build_is_mapped(&tree->build, in) ? slot(view, in, first) : chunk(view, PLAN_OUTPUT, first);
}

static void broadcast(struct tree *tree)
{
	struct build *build = &tree->build;
	for (unsigned t = 0; t < 2; t++) {
		const struct view *view = &tree->views[t];
		if (view->toward == NEIGHBOURS)
			continue;
		begin_turns(tree, tree->lead);
		build_ready(build, view->edges[view->toward].in, landing(tree, view, 0));
		end_turns(tree, tree->lead);
	}
	begin_turns(tree, tree->chunks);
	for (unsigned t = 0; t < 2; t++) {
		const struct view *view = &tree->views[t];
		unsigned others = children(view) | (view->edges[PARENT].exists ? 1u << PARENT : 0);
		if (view->toward == NEIGHBOURS) {
			spread(tree, view, chunk(view, PLAN_OUTPUT, 0), 0, others);
			continue;
		}
		const uint16_t in = view->edges[view->toward].in;
		build_wait(build, in);
		spread(tree, view, landing(tree, view, 0), 0, others & ~(1u << view->toward));
		if (tree->lead < tree->chunks)
			build_ready(build, in, landing(tree, view, tree->lead))->guard = while_chunk(tree, tree->lead);
	}
	end_turns(tree, tree->chunks);
	for (uint32_t c = 0; c < build->plan->channel_count; c++)
		if (build->plan->channels[c].outgoing)
			build_flush(build, (uint16_t)c, 0);
}

enum st_status plan_build_tree(const struct plan_shape *shape, struct plan **plan)
{
	struct tree tree = {0};
	if (shape->collective != PLAN_ALLREDUCE && shape->collective != PLAN_BROADCAST)
		return st_fail(ST_ERR_USAGE, "tree plan: %s is not one of its collectives", plan_collective_name(shape->collective));
	ST_TRY(build_start(&tree.build, "tree", shape, 1, 2, 1));
	if (shape->size == 1) {
		build_alone(&tree.build);
		return build_finish(&tree.build, plan);
	}
	tree.chunks = (int64_t)tree.build.plan->chunks;
	tree.lead = tree.chunks < (int64_t)shape->slots ? tree.chunks : (int64_t)shape->slots;
	build_work(&tree.build, (uint32_t)(2 * tree.lead));
	make_views(&tree);
	if (shape->collective == PLAN_BROADCAST)
		broadcast(&tree);
	else
		allreduce(&tree);
	return build_finish(&tree.build, plan);
}
