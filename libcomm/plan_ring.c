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
#include <limits.h>
#include <stdlib.h>

#include "plan.h"

struct ring {
	struct plan *plan;
	uint32_t size, position;
	int32_t chunks_per_round; /* C */
	int32_t rounds;           /* R */
	int32_t slot_units;       /* units per round that arrive in slots */
	bool scatter, gather;     /* which phases */
	bool mapped_in, mapped_out, in_place;
	uint16_t in, out;         /* channels */
	bool failed;              /* out of memory: further steps are written here and dropped */
	struct plan_step nowhere;
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

/* The block that is `back` positions behind this rank, one more per hop. */
static struct plan_position block_behind(const struct ring *ring, struct scope scope, int32_t back)
{
	struct plan_position block = {.first.base = (int32_t)ring->position - back};
	set(&block.first, scope.hop, -1);
	return block;
}

/* Chunk c of the scope's round, `ahead` rounds later. */
static struct plan_affine chunk_of(const struct ring *ring, struct scope scope, int32_t ahead)
{
	struct plan_affine chunk = {.base = ahead * ring->chunks_per_round};
	set(&chunk, scope.round, ring->chunks_per_round);
	set(&chunk, scope.chunk, 1);
	return chunk;
}

static struct plan_operand buffer(const struct ring *ring, enum plan_space space, struct scope scope, int32_t back, int32_t ahead)
{
	return (struct plan_operand){.space = space, .block = block_behind(ring, scope, back), .chunk = chunk_of(ring, scope, ahead)};
}

/* The slot of the finished unit that arrives at hop `hop` (plus the scope's hop variable), `ahead` rounds later. */
static struct plan_operand slot(const struct ring *ring, struct scope scope, int32_t hop, int32_t back, int32_t ahead)
{
	struct plan_operand operand = buffer(ring, PLAN_SCRATCH, scope, back, ahead);
	operand.channel = ring->in;
	operand.slot.base = ahead * ring->slot_units + hop * ring->chunks_per_round;
	set(&operand.slot, scope.round, ring->slot_units);
	set(&operand.slot, scope.hop, ring->chunks_per_round);
	set(&operand.slot, scope.chunk, 1);
	return operand;
}

/* The same in the reduce-scatter phase: a rank's input at hop 0, a partial sum from then on. */
static struct plan_operand sum_slot(const struct ring *ring, struct scope scope, int32_t hop, int32_t back, int32_t ahead)
{
	struct plan_operand operand = slot(ring, scope, hop, back, ahead);
	operand.partial.base = hop;
	set(&operand.partial, scope.hop, 1);
	return operand;
}

static struct plan_step *add(struct ring *ring, enum plan_step_kind kind, uint16_t channel)
{
	struct plan_step *step = plan_add_step(ring->plan, kind);
	if (!step) {
		ring->failed = true;
		return &ring->nowhere;
	}
	step->channel = channel;
	return step;
}

static void loop(struct ring *ring, uint64_t count)
{
	add(ring, PLAN_LOOP, 0)->count = count;
}

static void end(struct ring *ring)
{
	add(ring, PLAN_END, 0);
}

static struct plan_step *ready(struct ring *ring, struct plan_operand destination)
{
	struct plan_step *step = add(ring, PLAN_READY, ring->in);
	step->destination = destination;
	return step;
}

static struct plan_step *put(struct ring *ring, struct plan_operand source)
{
	struct plan_step *step = add(ring, PLAN_PUT, ring->out);
	step->source_count = 1;
	step->sources[0] = source;
	return step;
}

static void flush(struct ring *ring, int64_t pending)
{
	if (!ring->mapped_out)
		add(ring, PLAN_FLUSH, ring->out)->count = (uint64_t)pending;
}

static void reduce(struct ring *ring, struct plan_operand destination, struct plan_operand a, struct plan_operand b)
{
	struct plan_step *step = add(ring, PLAN_REDUCE, 0);
	step->source_count = 2;
	step->destination = destination;
	step->sources[0] = a;
	step->sources[1] = b;
}

static struct plan_step *copy(struct ring *ring, struct plan_operand destination, struct plan_operand source)
{
	struct plan_step *step = add(ring, PLAN_COPY, 0);
	step->source_count = 1;
	step->destination = destination;
	step->sources[0] = source;
	return step;
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
	if (ring->scatter) {
		put(ring, buffer(ring, PLAN_INPUT, scope, 1, ahead))->guard = *guard;
		return;
	}
	struct plan_operand input = buffer(ring, PLAN_INPUT, scope, 0, ahead), output = buffer(ring, PLAN_OUTPUT, scope, 0, ahead);
	if (ring->in_place) {
		put(ring, input)->guard = *guard;
	} else if (ring->mapped_out) {
		struct plan_step *step = put(ring, input);
		step->keep = true;
		step->destination = output;
		step->guard = *guard;
	} else {
		copy(ring, output, input)->guard = *guard;
		put(ring, input)->guard = *guard;
	}
}

static void cyclic(struct ring *ring)
{
	const int32_t p = (int32_t)ring->size, c = ring->chunks_per_round;
	const int32_t slack = (int32_t)ring->plan->slots - c - 1;
	const int32_t gather_hop = ring->scatter ? p - 1 : 0; /* incoming hop at which finished blocks begin to arrive */
	const struct plan_affine always = {0};
	const struct scope start = {-1, -1, 0}, single = {0, -1, 1}, nested = {0, 1, 2};
	struct plan_affine if_more = {.base = ring->rounds - 2}; /* there is a next round */
	if_more.v[0] = -1;

	/* At incoming hop h a scattered block comes from h+2 positions behind; a gathered one, j hops into its phase, from j+1. */
	const int32_t first_back = ring->scatter ? 2 : 1;

	loop(ring, (uint64_t)c);
	grant(ring, start, 0, first_back, 0, !ring->scatter);
	end(ring);
	loop(ring, (uint64_t)c);
	first_hop(ring, start, 0, &always);
	end(ring);

	loop(ring, (uint64_t)ring->rounds);
	if (ring->scatter) {
		if (p > 2) {
			loop(ring, (uint64_t)(p - 2)); /* add and pass on */
			loop(ring, (uint64_t)c);
			flush(ring, slack); /* the slot to be granted was put from `slack` puts ago */
			grant(ring, nested, 1, 3, 0, false);
			add(ring, PLAN_WAIT, ring->in);
			struct plan_operand arrived = sum_slot(ring, nested, 0, 2, 0), own = buffer(ring, PLAN_INPUT, nested, 2, 0);
			if (ring->mapped_out) {
				struct plan_step *step = put(ring, arrived);
				step->source_count = 2;
				step->sources[1] = own;
			} else {
				struct plan_operand sum = arrived;
				sum.partial.base++;
				reduce(ring, sum, arrived, own);
				put(ring, sum);
			}
			end(ring);
			end(ring);
		}
		loop(ring, (uint64_t)c); /* the own block gets its last operand */
		struct plan_operand arrived = sum_slot(ring, single, p - 2, p, 0), own = buffer(ring, PLAN_INPUT, single, p, 0),
				    result = buffer(ring, PLAN_OUTPUT, single, p, 0);
		if (ring->gather) {
			/* In place, the block that comes next lands where the first hop's put was taken from, c*(p-1) puts ago. */
			int64_t first_put = (int64_t)c * (p - 1) - 1;
			if (ring->mapped_in)
				flush(ring, ring->in_place && first_put < slack ? first_put : slack);
			else if (ring->in_place)
				flush(ring, first_put);
			grant(ring, single, gather_hop, 1, 0, true);
			add(ring, PLAN_WAIT, ring->in);
			if (ring->mapped_out) {
				struct plan_step *step = put(ring, arrived);
				step->source_count = 2;
				step->sources[1] = own;
				step->keep = true;
				step->destination = result;
			} else {
				reduce(ring, result, arrived, own);
				put(ring, result);
			}
		} else {
			flush(ring, slack);
			grant(ring, single, 0, 2, 1, false)->guard = if_more;
			add(ring, PLAN_WAIT, ring->in);
			reduce(ring, result, arrived, own);
			first_hop(ring, single, 1, &if_more);
		}
		end(ring);
	}
	if (ring->gather) {
		if (p > 2) {
			loop(ring, (uint64_t)(p - 2)); /* store and pass on */
			loop(ring, (uint64_t)c);
			if (ring->mapped_in && ring->scatter)
				flush(ring, slack);
			grant(ring, nested, gather_hop + 1, 2, 0, true);
			add(ring, PLAN_WAIT, ring->in);
			struct plan_operand result = buffer(ring, PLAN_OUTPUT, nested, 1, 0);
			struct plan_operand arrived = ring->mapped_in ? slot(ring, nested, gather_hop, 1, 0) : result;
			if (ring->mapped_in && ring->mapped_out) {
				struct plan_step *step = put(ring, arrived);
				step->keep = true;
				step->destination = result;
			} else {
				if (ring->mapped_in)
					copy(ring, result, arrived);
				put(ring, result);
			}
			end(ring);
			end(ring);
		}
		loop(ring, (uint64_t)c); /* store the last one, and begin the next round */
		struct plan_operand result = buffer(ring, PLAN_OUTPUT, single, p - 1, 0);
		if (ring->scatter)
			flush(ring, ring->mapped_in ? slack : slack + (int64_t)c * (p - 1));
		grant(ring, single, 0, first_back, 1, !ring->scatter)->guard = if_more;
		add(ring, PLAN_WAIT, ring->in);
		if (ring->mapped_in)
			copy(ring, result, slot(ring, single, gather_hop + p - 2, p - 1, 0));
		first_hop(ring, single, 1, &if_more);
		end(ring);
	}
	end(ring);
	flush(ring, 0);
}

/* A pipeline from the root along the ring; grants run ahead as far as there are slots. */
static void chain(struct ring *ring, bool first, bool last)
{
	const uint64_t chunks = ring->plan->chunks, slots = ring->plan->slots;
	const uint64_t lead = chunks < slots ? chunks : slots;
	struct plan_operand output = {.space = PLAN_OUTPUT, .chunk.v[0] = 1};
	struct plan_operand landing = output;
	if (ring->mapped_in) {
		landing.space = PLAN_SCRATCH;
		landing.channel = ring->in;
		landing.slot.v[0] = 1;
	}
	if (!first) {
		loop(ring, lead);
		ready(ring, landing);
		end(ring);
	}
	loop(ring, chunks);
	if (!first) {
		add(ring, PLAN_WAIT, ring->in);
		if (ring->mapped_in && (last || !ring->mapped_out))
			copy(ring, output, landing);
	}
	if (!last) {
		struct plan_step *step = put(ring, output);
		if (!first && ring->mapped_in && ring->mapped_out) {
			step->sources[0] = landing;
			step->keep = true;
			step->destination = output;
		}
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

static enum st_status check_shape(const struct plan_shape *shape)
{
	if (!shape->size || shape->rank >= shape->size || shape->size > (1u << 20))
		return st_fail(ST_ERR_USAGE, "ring plan: rank %u of %u ranks", shape->rank, shape->size);
	if (!shape->chunk_elements || shape->chunk_elements > (UINT64_C(1) << 40))
		return st_fail(ST_ERR_USAGE, "ring plan: chunks of %ju elements", (uintmax_t)shape->chunk_elements);
	uint32_t least = shape->collective == PLAN_BROADCAST || shape->size == 1 ? 1 : 2;
	if (shape->slots < least || shape->slots > 1024)
		return st_fail(ST_ERR_USAGE, "ring plan: %u slots, expected %u to 1024", shape->slots, least);
	if (shape->elements > (UINT64_C(1) << 60))
		return st_fail(ST_ERR_USAGE, "ring plan: %ju elements", (uintmax_t)shape->elements);
	switch (shape->collective) {
	case PLAN_REDUCE_SCATTER:
	case PLAN_ALL_GATHER:
		if (shape->elements % shape->size)
			return st_fail(ST_ERR_USAGE, "ring plan: %ju elements are not the same for each of %u ranks",
				       (uintmax_t)shape->elements, shape->size);
		break;
	case PLAN_BROADCAST:
		if (shape->root >= shape->size)
			return st_fail(ST_ERR_USAGE, "ring plan: root %u of %u ranks", shape->root, shape->size);
		break;
	case PLAN_ALLREDUCE: break;
	case PLAN_BARRIER:
		if (shape->elements)
			return st_fail(ST_ERR_USAGE, "ring plan: a barrier of %ju elements", (uintmax_t)shape->elements);
		break;
	default: return st_fail(ST_ERR_USAGE, "ring plan: no such collective: %d", (int)shape->collective);
	}
	if (!shape->order)
		return ST_OK;
	uint8_t *seen = calloc(shape->size, 1);
	if (!seen)
		return st_fail(ST_ERR_NOMEM, "ring plan: out of memory");
	enum st_status status = ST_OK;
	for (uint32_t i = 0; i < shape->size && status == ST_OK; i++) {
		if (shape->order[i] >= shape->size || seen[shape->order[i]])
			status = st_fail(ST_ERR_USAGE, "ring plan: order is no permutation: position %u has rank %u", i, shape->order[i]);
		else
			seen[shape->order[i]] = 1;
	}
	free(seen);
	return status;
}

static uint64_t divide_up(uint64_t a, uint64_t b)
{
	return a / b + (a % b != 0);
}

enum st_status plan_build_ring(const struct plan_shape *shape, struct plan **plan)
{
	ST_TRY(check_shape(shape));
	struct plan *made = plan_new();
	if (!made)
		return st_fail(ST_ERR_NOMEM, "ring plan: out of memory");

	made->collective = shape->collective;
	made->rank = shape->rank;
	made->size = shape->size;
	made->elements = shape->elements;
	made->slots = shape->slots;
	made->root = shape->root;
	made->compact_input = shape->collective == PLAN_ALL_GATHER || shape->collective == PLAN_BARRIER;
	made->compact_output = shape->collective == PLAN_REDUCE_SCATTER;
	made->in_place = shape->in_place || shape->collective == PLAN_BROADCAST || shape->collective == PLAN_BARRIER;
	made->wide = shape->wide;
	made->blocks = shape->collective == PLAN_BROADCAST ? 1 : shape->size;
	if (made->blocks > 1)
		made->order = shape->order;

	struct ring ring = {.plan = made, .size = shape->size, .mapped_in = shape->mapped_in, .mapped_out = shape->mapped_out,
			    .in_place = made->in_place};
	ring.scatter = shape->collective == PLAN_ALLREDUCE || shape->collective == PLAN_REDUCE_SCATTER;
	ring.gather = shape->collective != PLAN_REDUCE_SCATTER;

	/* Equal chunks rather than full ones and a rest; whole cache lines of 4-byte elements. */
	uint64_t longest = plan_block_elements(made, 0);
	uint64_t pieces = divide_up(longest, shape->chunk_elements);
	uint64_t per_round = shape->slots <= 2 ? 1 : shape->slots - 2;
	if (shape->collective == PLAN_BROADCAST || shape->size == 1)
		per_round = 1;
	if (pieces < per_round)
		per_round = pieces ? pieces : 1;
	uint64_t rounds = pieces ? divide_up(pieces, per_round) : 1;
	made->chunks = rounds * per_round;
	made->chunk_elements = longest ? divide_up(longest, made->chunks) : 1;
	uint64_t rounded = divide_up(made->chunk_elements, 16) * 16;
	if (rounded <= shape->chunk_elements)
		made->chunk_elements = rounded;
	if (made->chunks > INT32_MAX / 4 || per_round * 2 * shape->size > INT32_MAX / 4) {
		plan_free(made);
		return st_fail(ST_ERR_USAGE, "ring plan: %ju elements in chunks of %ju are too many chunks", (uintmax_t)shape->elements,
			       (uintmax_t)shape->chunk_elements);
	}
	ring.chunks_per_round = (int32_t)per_round;
	ring.rounds = (int32_t)rounds;
	uint32_t hops = (ring.scatter ? shape->size - 1 : 0) + (ring.gather && ring.mapped_in ? shape->size - 1 : 0);
	ring.slot_units = (int32_t)(hops * per_round);

	uint32_t position = shape->rank, root_position = shape->root;
	for (uint32_t i = 0; shape->order && i < shape->size; i++) {
		if (shape->order[i] == shape->rank)
			position = i;
		if (shape->order[i] == shape->root)
			root_position = i;
	}
	ring.position = position;

	if (shape->size == 1) {
		if (!made->in_place) {
			loop(&ring, made->chunks);
			struct plan_operand output = {.space = PLAN_OUTPUT, .chunk.v[0] = 1}, input = {.space = PLAN_INPUT, .chunk.v[0] = 1};
			copy(&ring, output, input);
			end(&ring);
		}
	} else {
		uint32_t next = (position + 1) % shape->size, previous = (position + shape->size - 1) % shape->size;
		bool first = false, last = false;
		if (shape->collective == PLAN_BROADCAST) {
			first = position == root_position;
			last = next == root_position;
		}
		if (!first) {
			ring.in = (uint16_t)made->channel_count;
			ring.failed |= !plan_add_channel(made, shape->order ? shape->order[previous] : previous, false, shape->mapped_in, 0);
		}
		if (!last) {
			ring.out = (uint16_t)made->channel_count;
			ring.failed |= !plan_add_channel(made, shape->order ? shape->order[next] : next, true, shape->mapped_out, 0);
		}
		if (ring.failed)
			;
		else if (shape->collective == PLAN_BROADCAST)
			chain(&ring, first, last);
		else
			cyclic(&ring);
	}
	if (ring.failed) {
		plan_free(made);
		return st_fail(ST_ERR_NOMEM, "ring plan: out of memory");
	}
	*plan = made;
	return ST_OK;
}
