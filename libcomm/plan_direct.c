/*
 * Direct: every rank reads the others' memory where it lies.  For the ranks of one node, whose channels are all mapped.
 *
 * All-reduce: block b belongs to rank b.  Every rank lends each other one's block of its INPUT; a rank reduces its own block from all of them, each read
 * once, in one step, so that there are no partial sums; it lends the result, and the others copy it into place.  Chunk by chunk, some ahead.
 * Few bytes need only one exchange: every rank lends copies of all its input to all, and all reduce everything.  Sums are made in the
 * order of ranks both ways, so every rank gets the same bits, for any number of elements.
 * reduce_scatter is the first half of that, all_gather (and barrier, one of nothing) the second; in a broadcast the root lends and all copy.
 *
 * Cost: 2 a + (p-1)/p n (b + g), each rank with one link to each other one.
 */
#include "plan_build.h"

/* What may be exchanged whole, of a slot: one exchange with more to add for every rank, or two with less. */
static uint64_t few_elements(const struct plan_shape *shape)
{
	return shape->chunk_elements / (shape->size > 2 ? 4 : 2);
}

struct direct {
	struct build build;
	uint32_t peers;      /* size - 1 */
	uint16_t in[PLAN_DIRECT_RANKS], out[PLAN_DIRECT_RANKS]; /* by rank; not the own one */
};

/* The ranks after this one first, so that not all wait for, or read from, the same one. */
static uint32_t peer(const struct direct *direct, uint32_t i)
{
	return (direct->build.shape->rank + 1 + i) % direct->build.shape->size;
}

static const struct plan_affine always;

/* In terms of the loop's variable. */
static struct plan_affine affine(int32_t base, int32_t stride)
{
	return (struct plan_affine){.base = base, .v = {stride}};
}

static struct plan_operand chunk_of(enum plan_space space, uint32_t block, struct plan_affine chunk)
{
	return (struct plan_operand){.space = space, .block.first.base = (int32_t)block, .chunk = chunk};
}

/* What rank `from` lent: its lend `number`, a chunk of `block`. */
static struct plan_operand borrowed(const struct direct *direct, uint32_t from, struct plan_affine number, uint32_t block, struct plan_affine chunk)
{
	struct plan_operand operand = chunk_of(PLAN_BORROWED, block, chunk);
	operand.channel = direct->in[from];
	operand.slot = number;
	return operand;
}

/* Chunk `chunk` of the own block's result out of everybody's input, which is lend `number` of each, in the order of ranks. */
static void reduce(struct direct *direct, uint32_t block, struct plan_affine number, struct plan_affine chunk)
{
	struct build *build = &direct->build;
	struct plan_operand sources[PLAN_DIRECT_RANKS];
	for (uint32_t r = 0; r < build->shape->size; r++)
		sources[r] = r == build->shape->rank ? chunk_of(PLAN_INPUT, block, chunk) : borrowed(direct, r, number, block, chunk);
	struct plan_step *step = build_reduce(build, chunk_of(PLAN_OUTPUT, block, chunk), sources[0], sources[1]);
	for (uint32_t r = 2; r < build->shape->size; r++)
		build_source(build, step, sources[r]);
}

static void wait_for_all(struct direct *direct)
{
	for (uint32_t i = 0; i < direct->peers; i++)
		build_wait(&direct->build, direct->in[peer(direct, i)]);
}

static void return_all(struct direct *direct)
{
	for (uint32_t i = 0; i < direct->peers; i++)
		build_return(&direct->build, direct->in[peer(direct, i)]);
}

static void flush_all(struct direct *direct, uint64_t pending)
{
	for (uint32_t i = 0; i < direct->peers; i++)
		build_flush_lends(&direct->build, direct->out[peer(direct, i)], pending);
}

static void reduce_own(struct direct *direct, struct plan_affine number, struct plan_affine chunk)
{
	wait_for_all(direct);
	reduce(direct, direct->build.shape->rank, number, chunk);
	return_all(direct);
}

/* To each peer the chunk of its block. */
static void lend_inputs(struct direct *direct, struct plan_affine chunk, struct plan_affine guard)
{
	for (uint32_t i = 0; i < direct->peers; i++) {
		uint32_t to = peer(direct, i);
		build_lend(&direct->build, direct->out[to], chunk_of(PLAN_INPUT, to, chunk), false)->guard = guard;
	}
}

/* To each peer the chunk of the own block. */
static void lend_own(struct direct *direct, enum plan_space space, uint32_t block, struct plan_affine chunk, struct plan_affine guard)
{
	for (uint32_t i = 0; i < direct->peers; i++)
		build_lend(&direct->build, direct->out[peer(direct, i)], chunk_of(space, block, chunk), false)->guard = guard;
}

/* A chunk of each peer's block, its lend `number`. */
static void copy_blocks(struct direct *direct, struct plan_affine number, struct plan_affine chunk)
{
	struct build *build = &direct->build;
	for (uint32_t i = 0; i < direct->peers; i++) {
		uint32_t from = peer(direct, i);
		build_wait(build, direct->in[from]);
		build_copy(build, chunk_of(PLAN_OUTPUT, from, chunk), borrowed(direct, from, number, from, chunk));
		build_return(build, direct->in[from]);
	}
}

static void one_round(struct direct *direct)
{
	struct build *build = &direct->build;
	for (uint32_t i = 0; i < direct->peers; i++)
		build_lend(build, direct->out[peer(direct, i)], chunk_of(PLAN_INPUT, 0, always), true);
	wait_for_all(direct);
	reduce(direct, 0, always, always);
	return_all(direct);
}

/* With one slot nothing can be lent ahead. */
static void all_reduce_in_turn(struct direct *direct)
{
	struct build *build = &direct->build;
	build_loop(build, build->plan->chunks);
	lend_inputs(direct, affine(0, 1), always);
	reduce_own(direct, affine(0, 2), affine(0, 1));
	lend_own(direct, PLAN_OUTPUT, build->shape->rank, affine(0, 1), always);
	if (build->plan->in_place)
		flush_all(direct, 1);
	copy_blocks(direct, affine(1, 2), affine(0, 1));
	build_end(build);
	flush_all(direct, 0);
}

/*
 * Inputs are lent `lead` chunks ahead, and results are copied as many chunks behind, so that nobody waits for the slowest at every chunk.  The
 * lends of a channel: lead inputs; then a result and an input in turn; the last results.  More than 2 lead are never out.
 */
static void all_reduce(struct direct *direct)
{
	struct build *build = &direct->build;
	const struct plan *plan = build->plan;
	const int32_t chunks = (int32_t)plan->chunks, most = (int32_t)(plan->slots / 2), lead = most < chunks ? most : chunks;

	build_loop(build, (uint64_t)lead);
	lend_inputs(direct, affine(0, 1), always);
	build_end(build);

	build_loop(build, (uint64_t)lead);
	reduce_own(direct, affine(0, 1), affine(0, 1));
	lend_own(direct, PLAN_OUTPUT, build->shape->rank, affine(0, 1), always);
	if (chunks > lead)
		lend_inputs(direct, affine(lead, 1), affine(chunks - 1 - lead, -1));
	build_end(build);

	if (chunks > lead) {
		build_loop(build, (uint64_t)(chunks - lead));
		/* In place a result overwrites the input, which its owner has long read: it came before the latest 2 lead lends. */
		if (plan->in_place)
			flush_all(direct, 2 * (uint64_t)lead);
		copy_blocks(direct, affine(lead, 2), affine(0, 1));
		reduce_own(direct, affine(lead + 1, 2), affine(lead, 1));
		lend_own(direct, PLAN_OUTPUT, build->shape->rank, affine(lead, 1), always);
		lend_inputs(direct, affine(2 * lead, 1), affine(chunks - 1 - 2 * lead, -1));
		build_end(build);
	}

	if (plan->in_place)
		flush_all(direct, (uint64_t)lead);
	build_loop(build, (uint64_t)lead);
	copy_blocks(direct, affine(2 * chunks - lead, 1), affine(chunks - lead, 1));
	build_end(build);
	flush_all(direct, 0);
}

static uint64_t lead_of(const struct plan *plan)
{
	return plan->chunks < plan->slots ? plan->chunks : plan->slots;
}

static void reduce_scatter(struct direct *direct)
{
	struct build *build = &direct->build;
	const struct plan *plan = build->plan;
	const uint64_t lead = lead_of(plan);
	build_loop(build, lead);
	lend_inputs(direct, affine(0, 1), always);
	build_end(build);
	build_loop(build, plan->chunks);
	reduce_own(direct, affine(0, 1), affine(0, 1));
	lend_inputs(direct, affine((int32_t)lead, 1), affine((int32_t)(plan->chunks - 1 - lead), -1));
	build_end(build);
	flush_all(direct, 0);
}

static void all_gather(struct direct *direct)
{
	struct build *build = &direct->build;
	const struct plan *plan = build->plan;
	const uint32_t rank = build->shape->rank;
	const uint64_t lead = lead_of(plan);
	build_loop(build, lead);
	lend_own(direct, PLAN_INPUT, rank, affine(0, 1), always);
	build_end(build);
	build_loop(build, plan->chunks);
	if (!plan->in_place)
		build_copy(build, chunk_of(PLAN_OUTPUT, rank, affine(0, 1)), chunk_of(PLAN_INPUT, rank, affine(0, 1)));
	copy_blocks(direct, affine(0, 1), affine(0, 1));
	lend_own(direct, PLAN_INPUT, rank, affine((int32_t)lead, 1), affine((int32_t)(plan->chunks - 1 - lead), -1));
	build_end(build);
	flush_all(direct, 0);
}

static void broadcast(struct direct *direct)
{
	struct build *build = &direct->build;
	const uint32_t root = build->shape->root;
	build_loop(build, build->plan->chunks);
	if (build->shape->rank == root) {
		lend_own(direct, PLAN_OUTPUT, 0, affine(0, 1), always);
	} else {
		build_wait(build, direct->in[root]);
		build_copy(build, chunk_of(PLAN_OUTPUT, 0, affine(0, 1)), borrowed(direct, root, affine(0, 1), 0, affine(0, 1)));
		build_return(build, direct->in[root]);
	}
	build_end(build);
	if (build->shape->rank == root)
		flush_all(direct, 0);
}

static enum st_status add_channels(struct direct *direct)
{
	struct build *build = &direct->build;
	const struct plan_shape *shape = build->shape;
	const bool all = shape->collective != PLAN_BROADCAST;
	for (uint32_t i = 0; i < direct->peers; i++) {
		uint32_t other = peer(direct, i);
		if (!shape->mapped || !shape->mapped(shape->mapped_context, shape->rank, other) || !shape->mapped(shape->mapped_context, other, shape->rank))
			return st_fail(ST_ERR_USAGE, "direct plan: ranks %u and %u do not map each other's memory", shape->rank, other);
		if (all || other == shape->root)
			direct->in[other] = build_channel(build, other, false, 0);
		if (all || shape->rank == shape->root)
			direct->out[other] = build_channel(build, other, true, 0);
	}
	return ST_OK;
}

enum st_status plan_build_direct(const struct plan_shape *shape, struct plan **plan)
{
	struct direct direct = {0};
	struct build *build = &direct.build;
	if (shape->size > PLAN_DIRECT_RANKS)
		return st_fail(ST_ERR_USAGE, "direct plan: %u ranks, expected at most %u", shape->size, PLAN_DIRECT_RANKS);
	if (shape->collective == PLAN_ALLREDUCE_ORDERED)
		return st_fail(ST_ERR_USAGE, "direct plan: %s is not one of its collectives", plan_collective_name(shape->collective));
	const bool few = shape->collective == PLAN_ALLREDUCE && shape->elements <= few_elements(shape);
	const bool whole = few || shape->collective == PLAN_BROADCAST || !shape->size;
	ST_TRY(build_start(build, "direct", shape, 1, whole ? 1 : shape->size, 1));
	if (shape->size == 1) {
		build_alone(build);
		return build_finish(build, plan);
	}
	direct.peers = shape->size - 1;
	enum st_status status = add_channels(&direct);
	if (status != ST_OK) {
		plan_free(build->plan);
		return status;
	}
	if (few)
		one_round(&direct);
	else if (shape->collective == PLAN_ALLREDUCE)
		(shape->slots > 1 ? all_reduce : all_reduce_in_turn)(&direct);
	else if (shape->collective == PLAN_REDUCE_SCATTER)
		reduce_scatter(&direct);
	else if (shape->collective == PLAN_BROADCAST)
		broadcast(&direct);
	else
		all_gather(&direct);
	return build_finish(build, plan);
}
