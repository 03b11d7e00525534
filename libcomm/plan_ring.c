/*
 * Ring plans.
 *
 * The ranks stand in a ring; block b belongs to the rank at position b.  In the reduce-scatter phase each block starts at its owner's
 * successor and travels p-1 hops, gaining one operand per hop, until the owner adds the last one.  In the all-gather phase it travels
 * p-1 hops more and is stored by everyone it passes.  All p blocks travel at once, so each link carries one block per hop.
 * The first hop carries inputs as they are, the other p-2 of the first phase partial sums, the second phase final blocks.
 *
 * Blocks are cut into rounds of C chunks.  Within a round a rank handles, for each hop, C chunks: while chunk c travels, chunk
 * c+1 is reduced.  The unit of work is (round, hop, chunk); unit u arrives, is combined, and leaves as unit u+C.
 * The grant for unit u+C is given just before unit u is waited for: at any time C or C+1 slots are granted or in use, so C < slots is
 * needed (with C = slots all ranks would wait for the slot that their successor can free only after them).  The
 * last hop of a round sends the first hop of the next, so that rounds follow each other without a gap.
 */
#include "plan_ring.h"

struct ring {
	struct build *build;
	struct ring_part part;
	int32_t chunks_per_round; /* C */
	int32_t rounds;           /* R */
	int32_t slot_units;       /* units per round that arrive in slots */
	bool mapped_in, mapped_out;
};

/* Which loop variable is the round, the hop and the chunk at this place of the program; -1: none. */
struct scope {
	int round, hop, chunk;
};

static void set(struct plan_affine *affine, int depth, int64_t factor)
{
	if (depth >= 0)
		affine->v[depth] = (int32_t)factor;
}

/* Unit c of the scope's round, `ahead` rounds later, of the share that is `back` positions behind this rank, one more per hop. INPUT: own operands. */
static struct plan_operand buffer(const struct ring *ring, enum plan_space space, struct scope scope, int32_t back, int32_t ahead)
{
	const struct ring_part *part = &ring->part;
	const int32_t round = ring->chunks_per_round;
	struct plan_operand operand = {.space = space == PLAN_INPUT ? part->own : space, .span = part->span};
	struct plan_position *block = &operand.block;
	block->cycle.base = (int32_t)part->position - back;
	set(&block->cycle, scope.hop, -1);
	block->modulus = part->size;
	block->stride = (int32_t)part->stride;
	block->first.base = (int32_t)part->origin;
	struct plan_affine *unit = part->span ? &block->first : &operand.chunk;
	const int32_t step = part->span ? (int32_t)part->span : 1;
	unit->base += ahead * round * step;
	set(unit, scope.round, round * step);
	set(unit, scope.chunk, step);
	operand.partial.base = space == PLAN_INPUT && part->partial;
	return operand;
}

/* The slot of the finished unit that arrives at hop `hop` (plus the scope's hop variable), `ahead` rounds later. */
static struct plan_operand slot(const struct ring *ring, struct scope scope, int32_t hop, int32_t back, int32_t ahead)
{
	struct plan_operand operand = buffer(ring, PLAN_SCRATCH, scope, back, ahead);
	operand.channel = ring->part.in;
	operand.slot.base = ahead * ring->slot_units + hop * ring->chunks_per_round;
	set(&operand.slot, scope.round, ring->slot_units);
	set(&operand.slot, scope.hop, ring->chunks_per_round);
	set(&operand.slot, scope.chunk, 1);
	return operand;
}

/* The same in the reduce-scatter phase: the operand of the previous rank at hop 0, a partial sum from then on. */
static struct plan_operand sum_slot(const struct ring *ring, struct scope scope, int32_t hop, int32_t back, int32_t ahead)
{
	struct plan_operand operand = slot(ring, scope, hop, back, ahead);
	operand.partial.base = hop + ring->part.previous_partial;
	set(&operand.partial, scope.hop, 1);
	return operand;
}

static struct plan_step *ready(struct ring *ring, struct plan_operand destination)
{
	return build_ready(ring->build, ring->part.in, destination);
}

static struct plan_step *put(struct ring *ring, struct plan_operand source)
{
	return build_put(ring->build, ring->part.out, source);
}

static void wait(struct ring *ring)
{
	build_wait(ring->build, ring->part.in);
}

static void flush(struct ring *ring, int64_t pending)
{
	build_flush(ring->build, ring->part.out, pending);
}

static void loop(struct ring *ring, uint64_t count)
{
	build_loop(ring->build, count);
}

static void end(struct ring *ring)
{
	build_end(ring->build);
}

/* Grants where the unit of incoming hop `hop` lands, given `ahead` rounds before its time. gather: it is a finished block. */
static struct plan_step *grant(struct ring *ring, struct scope scope, int32_t hop, int32_t back, int32_t ahead, bool gather)
{
	if (gather && !ring->mapped_in)
		return ready(ring, buffer(ring, PLAN_OUTPUT, scope, back, ahead));
	return ready(ring, (gather ? slot : sum_slot)(ring, scope, hop, back, ahead));
}

/* The first hop of a round: no other rank's data in it. */
static void first_hop(struct ring *ring, struct scope scope, int32_t ahead, const struct plan_affine *guard)
{
	if (ring->part.scatter) {
		put(ring, buffer(ring, PLAN_INPUT, scope, 1, ahead))->guard = *guard;
		return;
	}
	struct plan_operand input = buffer(ring, PLAN_INPUT, scope, 0, ahead), output = buffer(ring, PLAN_OUTPUT, scope, 0, ahead);
	if (ring->part.in_place) {
		put(ring, input)->guard = *guard;
	} else if (ring->mapped_out) {
		struct plan_step *step = put(ring, input);
		build_keep(ring->build, step, output);
		step->guard = *guard;
	} else {
		build_copy(ring->build, output, input)->guard = *guard;
		put(ring, input)->guard = *guard;
	}
}

static void cyclic(struct ring *ring)
{
	const int32_t p = (int32_t)ring->part.size, c = ring->chunks_per_round;
	const int32_t slack = (int32_t)ring->build->plan->slots - c - 1;
	const int32_t gather_hop = ring->part.scatter ? p - 1 : 0; /* incoming hop at which finished blocks begin to arrive */
	const struct plan_affine always = {0};
	const struct scope start = {-1, -1, 0}, single = {0, -1, 1}, nested = {0, 1, 2};
	struct plan_affine if_more = {.base = ring->rounds - 2}; /* there is a next round */
	if_more.v[0] = -1;

	/* At incoming hop h a scattered block comes from h+2 positions behind; a gathered one, j hops into its phase, from j+1. */
	const int32_t first_back = ring->part.scatter ? 2 : 1;

	loop(ring, (uint64_t)c);
	grant(ring, start, 0, first_back, 0, !ring->part.scatter);
	end(ring);
	loop(ring, (uint64_t)c);
	first_hop(ring, start, 0, &always);
	end(ring);

	loop(ring, (uint64_t)ring->rounds);
	if (ring->part.scatter) {
		if (p > 2) {
			loop(ring, (uint64_t)(p - 2)); /* add and pass on */
			loop(ring, (uint64_t)c);
			flush(ring, slack); /* the slot to be granted was put from `slack` puts ago */
			grant(ring, nested, 1, 3, 0, false);
			wait(ring);
			struct plan_operand arrived = sum_slot(ring, nested, 0, 2, 0), own = buffer(ring, PLAN_INPUT, nested, 2, 0);
			if (ring->mapped_out) {
				struct plan_step *step = put(ring, arrived);
				build_source(ring->build, step, own);
			} else {
				struct plan_operand sum = arrived;
				sum.partial.base++;
				build_reduce(ring->build, sum, arrived, own);
				put(ring, sum);
			}
			end(ring);
			end(ring);
		}
		loop(ring, (uint64_t)c); /* the own block gets its last operand */
		struct plan_operand arrived = sum_slot(ring, single, p - 2, p, 0), own = buffer(ring, PLAN_INPUT, single, p, 0),
				    result = buffer(ring, PLAN_OUTPUT, single, p, 0);
		result.partial.base = ring->part.unfinished;
		if (ring->part.gather) {
			/* In place, the block that comes next lands where the first hop's put was taken from, c*(p-1) puts ago. */
			int64_t first_put = (int64_t)c * (p - 1) - 1;
			if (ring->mapped_in)
				flush(ring, ring->part.in_place && first_put < slack ? first_put : slack);
			else if (ring->part.in_place)
				flush(ring, first_put);
			grant(ring, single, gather_hop, 1, 0, true);
			wait(ring);
			if (ring->mapped_out) {
				struct plan_step *step = put(ring, arrived);
				build_source(ring->build, step, own);
				build_keep(ring->build, step, result);
			} else {
				build_reduce(ring->build, result, arrived, own);
				put(ring, result);
			}
		} else {
			flush(ring, slack);
			grant(ring, single, 0, 2, 1, false)->guard = if_more;
			wait(ring);
			build_reduce(ring->build, result, arrived, own);
			first_hop(ring, single, 1, &if_more);
		}
		end(ring);
	}
	if (ring->part.gather) {
		if (p > 2) {
			loop(ring, (uint64_t)(p - 2)); /* store and pass on */
			loop(ring, (uint64_t)c);
			if (ring->mapped_in && ring->part.scatter)
				flush(ring, slack);
			grant(ring, nested, gather_hop + 1, 2, 0, true);
			wait(ring);
			struct plan_operand result = buffer(ring, PLAN_OUTPUT, nested, 1, 0);
			struct plan_operand arrived = ring->mapped_in ? slot(ring, nested, gather_hop, 1, 0) : result;
			if (ring->mapped_in && ring->mapped_out) {
				build_keep(ring->build, put(ring, arrived), result);
			} else {
				if (ring->mapped_in)
					build_copy(ring->build, result, arrived);
				put(ring, result);
			}
			end(ring);
			end(ring);
		}
		loop(ring, (uint64_t)c); /* store the last one, and begin the next round */
		struct plan_operand result = buffer(ring, PLAN_OUTPUT, single, p - 1, 0);
		if (ring->part.scatter)
			flush(ring, ring->mapped_in ? slack : slack + (int64_t)c * (p - 1));
		grant(ring, single, 0, first_back, 1, !ring->part.scatter)->guard = if_more;
		wait(ring);
		if (ring->mapped_in)
			build_copy(ring->build, result, slot(ring, single, gather_hop + p - 2, p - 1, 0));
		first_hop(ring, single, 1, &if_more);
		end(ring);
	}
	end(ring);
	flush(ring, 0);
}

/* A pipeline from the root along the ring; grants run ahead as far as there are slots. */
static void chain(struct ring *ring, bool first, bool last)
{
	const uint64_t chunks = ring->build->plan->chunks, slots = ring->build->plan->slots;
	const uint64_t lead = chunks < slots ? chunks : slots;
	struct plan_operand output = {.space = PLAN_OUTPUT, .chunk.v[0] = 1};
	struct plan_operand landing = output;
	if (ring->mapped_in) {
		landing.space = PLAN_SCRATCH;
		landing.channel = ring->part.in;
		landing.slot.v[0] = 1;
	}
	if (!first) {
		loop(ring, lead);
		ready(ring, landing);
		end(ring);
	}
	loop(ring, chunks);
	if (!first) {
		wait(ring);
		if (ring->mapped_in && (last || !ring->mapped_out))
			build_copy(ring->build, output, landing);
	}
	if (!last) {
		if (!first && ring->mapped_in && ring->mapped_out)
			build_keep(ring->build, put(ring, landing), output);
		else
			put(ring, output);
	}
	if (!first) {
		struct plan_operand next = landing;
		next.chunk.base = (int32_t)lead;
		next.slot.base = (int32_t)lead;
		struct plan_step *step = ready(ring, next);
		step->guard.base = (int32_t)(chunks - 1 - lead);
		step->guard.v[0] = -1;
	}
	end(ring);
	if (!last)
		flush(ring, 0);
}

static bool fill(struct ring *ring, uint64_t per_round)
{
	const struct ring_part *part = &ring->part;
	ring->mapped_in = build_is_mapped(ring->build, part->in);
	ring->mapped_out = build_is_mapped(ring->build, part->out);
	ring->chunks_per_round = (int32_t)per_round;
	ring->rounds = (int32_t)(part->units / per_round);
	uint64_t hops = (part->scatter ? part->size - 1 : 0) + (part->gather && ring->mapped_in ? part->size - 1 : 0);
	ring->slot_units = (int32_t)(hops * per_round);
	return per_round * 2 * part->size <= INT32_MAX / 4 && part->units <= INT32_MAX / 4;
}

/* As many units per round as slots allow. */
static uint64_t most_per_round(const struct plan_shape *shape)
{
	return shape->slots <= 2 ? 1 : shape->slots - 2;
}

bool ring_part_build(struct build *build, const struct ring_part *part)
{
	struct ring ring = {.build = build, .part = *part};
	uint64_t per_round = most_per_round(build->shape);
	while (part->units % per_round)
		per_round--;
	if (!fill(&ring, per_round))
		return false;
	cyclic(&ring);
	return true;
}

enum st_status plan_build_ring(const struct plan_shape *shape, struct plan **plan)
{
	const bool broadcast = shape->collective == PLAN_BROADCAST, alone = shape->size <= 1;
	struct build build;
	/* As many chunks per round as the slots allow and there are. */
	uint32_t blocks = broadcast || !shape->size ? 1 : shape->size;
	uint64_t pieces = shape->chunk_elements ? build_divide_up(shape->offsets ? shape->longest : build_divide_up(shape->elements, blocks), shape->chunk_elements) : 0;
	uint64_t per_round = broadcast || alone ? 1 : most_per_round(shape);
	if (pieces < per_round)
		per_round = pieces ? pieces : 1;
	ST_TRY(build_start(&build, "ring", shape, broadcast || alone ? 1 : 2, blocks, per_round));
	struct plan *made = build.plan;
	if (blocks > 1)
		made->order = shape->order;
	if (alone) {
		build_alone(&build);
		return build_finish(&build, plan);
	}
	struct ring ring = {.build = &build,
			    .part = {.size = shape->size,
				     .position = build.position,
				     .scatter = shape->collective == PLAN_ALLREDUCE || shape->collective == PLAN_REDUCE_SCATTER,
				     .gather = shape->collective != PLAN_REDUCE_SCATTER,
				     .own = PLAN_INPUT,
				     .in_place = made->in_place,
				     .units = made->chunks,
				     .stride = 1}};
	uint32_t next = (build.position + 1) % shape->size, previous = (build.position + shape->size - 1) % shape->size;
	bool first = broadcast && build.position == build.root_position, last = broadcast && next == build.root_position;
	if (!first)
		ring.part.in = build_channel(&build, build_rank_at(&build, previous), false, 0);
	if (!last)
		ring.part.out = build_channel(&build, build_rank_at(&build, next), true, 0);
	if (!fill(&ring, per_round)) {
		plan_free(made);
		return st_fail(ST_ERR_USAGE, "ring plan: %u ranks with %u slots are too many", shape->size, shape->slots);
	}
	if (broadcast)
		chain(&ring, first, last);
	else
		cyclic(&ring);
	return build_finish(&build, plan);
}
