/*
 * The verifier refuses plans that are broken on purpose.
 *
 * Every plan of many shapes is changed in every small way: a step lost, doubled, swapped, a wait or grant moved, a flush weakened, a slot
 * used again too early, a wrong block, chunk, channel, space, loop count or guard.  The verifier must refuse the mutant, or it must
 * be harmless: then an adversary runs it many times with random timing, in which puts read their sources as late and write
 * their targets as early as the rules allow, and every result must be right.  The adversary shares no code with the verifier and counts exactly.
 */
#include "libcomm/leaves.h"
#include "plan_mutations.h"

static uint64_t state = 88172645463325252u;
static uint32_t draw(uint32_t n)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)(state >> 20) % n;
}

/* ---- the adversary ---------------------------------------------------------------------------------------------------- */

struct value {
	uint32_t what; /* block and chunk; GARBAGE */
	bool partial;
	uint8_t count[MAX_RANKS];
	uint32_t first, end; /* ordered sums: of which leaves, instead of count */
};
#define GARBAGE UINT32_MAX

#define MAX_SPAN 16
struct area {
	struct value *values;
	uint32_t span;
	uint64_t elements[MAX_SPAN];
};
struct data {
	struct value values[MAX_SPAN];
};

struct message {
	struct area from, to; /* from.values NULL: `data` is already it */
	struct data data;
	bool granted_partial;
	int stage; /* 0 put, 1 source read, 2 target half written, 3 landed */
};

struct adversary_lend {
	struct area from; /* copied: of `data` */
	struct data data;
	bool copied;
};

struct adversary_wire {
	struct adversary_lend *lends;
	size_t lent, borrowed, returned, returned_before, lend_room;
	struct message *messages;
	size_t grants, puts, flushed, landed, waited, room;
};

struct adversary_rank {
	const struct plan *plan;
	struct value *input, *output, *slots, *work;
	struct value *buffers[2 * REPEATS];
	struct adversary_wire *wires[32];
	uint32_t at;
	unsigned depth, repeat;
	uint64_t vars[PLAN_MAX_DEPTH];
	uint32_t loops[PLAN_MAX_DEPTH];
	bool done;
};

static bool trouble; /* something that the engine would report or that can't be right */

static struct area area(struct adversary_rank *rank, uint32_t operand_index)
{
	const struct plan *plan = rank->plan;
	const struct plan_operand *operand = &plan->operands[operand_index];
	uint32_t block = plan_operand_block(plan, operand, rank->vars);
	uint64_t chunk = plan_operand_chunk(plan, operand, rank->vars), offset;
	struct area area = {.span = operand->span ? operand->span : 1};
	if (block == plan->blocks)
		area.span = 0; /* a hole */
	else if (area.span > plan->blocks - block) {
		trouble = true;
		area.span = plan->blocks - block;
	}
	REQUIRE(area.span <= MAX_SPAN);
	for (uint32_t i = 0; i < area.span; i++) {
		plan_chunk_range(plan, block + i, chunk, &offset, &area.elements[i]);
		if ((operand->space == PLAN_INPUT ? plan->compact_input : operand->space == PLAN_OUTPUT ? plan->compact_output : false) &&
		    block + i != plan->rank && area.elements[i])
			trouble = true; /* would be outside of the buffer */
	}
	if (operand->space == PLAN_BORROWED) {
		/* The lender's memory itself: what it writes there too early is seen. */
		static struct value nothing[MAX_SPAN];
		const struct adversary_wire *wire = rank->wires[operand->channel];
		size_t number = wire->returned;
		while ((number - wire->returned_before) % plan->slots != plan_operand_slot(plan, operand, rank->vars))
			number++;
		if (number >= wire->borrowed || wire->lends[number].from.span != area.span ||
		    memcmp(wire->lends[number].from.elements, area.elements, area.span * sizeof *area.elements)) {
			trouble = true;
			area.values = nothing;
		} else {
			struct adversary_lend *lend = &wire->lends[number];
			area.values = lend->copied ? lend->data.values : lend->from.values;
		}
	} else if (operand->space == PLAN_SCRATCH)
		area.values = &rank->slots[(operand->channel * plan->slots + plan_operand_slot(plan, operand, rank->vars)) * MAX_SPAN + operand->skip];
	else if (operand->space == PLAN_WORK)
		area.values = &rank->work[plan_operand_slot(plan, operand, rank->vars) * MAX_SPAN];
	else
		area.values = &(operand->space == PLAN_INPUT ? rank->input + operand->layer * plan->blocks * plan->chunks
							     : rank->output)[block * plan->chunks + chunk];
	return area;
}

static void same_size(const struct area *a, const struct area *b)
{
	if (a->span != b->span || memcmp(a->elements, b->elements, a->span * sizeof *a->elements))
		trouble = true;
}

/* Whether [first, middle) and [middle, end) are what a node of the tree over all leaves is cut into: looked for from the top. */
static bool halves_of_a_node(uint32_t total, uint32_t first, uint32_t middle, uint32_t end)
{
	uint32_t low = 0, size = 1;
	while (size < total)
		size *= 2;
	for (; size > 1; size /= 2) {
		uint32_t half = low + size / 2, high = low + size < total ? low + size : total;
		if (low == first && half == middle && high == end && half < high)
			return true;
		if (first >= half)
			low = half;
	}
	return false;
}

static struct value add(const struct plan *plan, struct value a, struct value b)
{
	if (a.what != b.what)
		a.what = GARBAGE;
	if (plan->leaves) {
		if (a.end != b.first || !halves_of_a_node(plan->leaves, a.first, a.end, b.end))
			a.what = GARBAGE;
		a.end = b.end;
	}
	for (int r = 0; r < MAX_RANKS; r++)
		a.count[r] = (uint8_t)(a.count[r] + b.count[r]);
	return a;
}

static struct data combine(struct adversary_rank *rank, const struct plan_step *step, struct area *first)
{
	const struct plan *plan = rank->plan;
	struct data sum = {0};
	bool finishes = step->source_count > 1, partial = false;
	for (unsigned s = 0; s < step->source_count; s++) {
		struct area source = area(rank, step->sources + s);
		const bool said = plan_affine_value(&plan->operands[step->sources + s].partial, rank->vars) > 0;
		/* Bytes taken for what they are not. */
		for (uint32_t i = 0; i < source.span; i++)
			if (source.values[i].partial != said)
				trouble = true;
		partial |= said;
		if (!s)
			*first = source;
		same_size(first, &source);
		for (uint32_t i = 0; i < source.span && i < first->span; i++)
			sum.values[i] = s ? add(plan, sum.values[i], source.values[i]) : source.values[i];
	}
	finishes |= partial;
	if (step->kind == PLAN_LEND)
		finishes = false;
	else if (step->kind == PLAN_PUT && !step->keep)
		partial |= step->source_count > 1;
	else
		partial = plan_affine_value(&plan->operands[step->destination].partial, rank->vars) > 0;
	for (uint32_t i = 0; i < first->span; i++) {
		sum.values[i].partial = partial;
		/* An average divided too early would be divided again, or not be one. */
		for (uint32_t r = 0; r < plan->size && finishes && !partial; r++)
			if (plan->leaves ? sum.values[i].first || sum.values[i].end != plan->leaves : sum.values[i].count[r] != 1)
				trouble = true;
	}
	return sum;
}

static void store(const struct area *to, const struct data *data)
{
	memcpy(to->values, data->values, to->span * sizeof *to->values);
}

static void begin_operation(struct adversary_rank *rank)
{
	const struct plan *plan = rank->plan;
	size_t cells = plan->blocks * plan->chunks;
	rank->input = rank->buffers[2 * rank->repeat];
	rank->output = plan->in_place ? rank->input : rank->buffers[2 * rank->repeat + 1];
	for (uint32_t i = 0; i < plan->work * MAX_SPAN; i++)
		rank->work[i].what = GARBAGE;
	if (plan->leaves) {
		struct leaf_range roots[LEAVES_ROOTS_MOST];
		unsigned layers = leaves_roots(plan->leaves, leaves_of_rank(plan->leaves, plan->size, plan->rank), roots);
		for (size_t i = 0; i < cells; i++)
			rank->output[i] = (struct value){.what = GARBAGE};
		for (size_t i = 0; i < cells * layers; i++)
			rank->input[i] = (struct value){.what = (uint32_t)(i % cells), .partial = true, .first = roots[i / cells].first, .end = roots[i / cells].end};
		return;
	}
	for (size_t i = 0; i < cells; i++) {
		rank->output[i] = rank->input[i] = (struct value){.what = GARBAGE};
		bool mine = plan->collective == PLAN_BROADCAST ? plan->rank == plan->root
			    : plan->compact_input             ? i / plan->chunks == plan->rank
							      : true;
		if (mine) {
			rank->input[i].what = (uint32_t)i;
			rank->input[i].count[plan->rank] = 1;
		}
	}
}

static void end_operation(struct adversary_rank *rank)
{
	const struct plan *plan = rank->plan;
	for (uint32_t block = 0; block < plan->blocks; block++)
		for (uint64_t chunk = 0; chunk < plan->chunks; chunk++) {
			uint64_t offset, elements;
			plan_chunk_range(plan, block, chunk, &offset, &elements);
			if (!elements && plan->collective != PLAN_BARRIER)
				continue;
			if (plan->compact_output && block != plan->rank)
				continue;
			const struct value *got = &rank->output[block * plan->chunks + chunk];
			if (got->what != block * plan->chunks + chunk || got->partial)
				trouble = true;
			if (plan->leaves && (got->first || got->end != plan->leaves))
				trouble = true;
			for (uint32_t r = 0; r < plan->size && !plan->leaves; r++) {
				bool wanted = plan->collective == PLAN_BROADCAST                                          ? r == plan->root
					      : !plan_reduces(plan)                      ? r == block
														 : true;
				if (got->count[r] != wanted)
					trouble = true;
			}
		}
	/* The caller uses its buffers for something else now. */
	for (size_t i = 0; i < plan->blocks * plan->chunks; i++)
		rank->input[i].what = rank->output[i].what = GARBAGE;
}

/* Moves the oldest message that is not there yet by one stage. */
static bool carry(struct adversary_wire *wire)
{
	if (wire->landed == wire->puts)
		return false;
	struct message *message = &wire->messages[wire->landed];
	switch (message->stage++) {
	case 0:
		if (message->from.values)
			memcpy(message->data.values, message->from.values, message->from.span * sizeof *message->from.values);
		break;
	case 1:
		for (uint32_t i = 0; i < message->to.span; i++)
			message->to.values[i].what = GARBAGE;
		break;
	default:
		store(&message->to, &message->data);
		wire->landed++;
		break;
	}
	return true;
}

static bool advance(struct adversary_rank *rank)
{
	const struct plan *plan = rank->plan;
	if (rank->done)
		return false;
	if (rank->at == plan->step_count) {
		end_operation(rank);
		for (uint32_t i = 0; i < plan->channel_count; i++)
			if (!plan->channels[i].outgoing)
				rank->wires[i]->returned_before = rank->wires[i]->returned;
		rank->at = 0;
		if (++rank->repeat == REPEATS)
			rank->done = true;
		else
			begin_operation(rank);
		return true;
	}
	const struct plan_step *step = &plan->steps[rank->at];
	struct adversary_wire *wire = step->kind <= PLAN_WAIT ? rank->wires[step->channel] : NULL;
	struct area source, destination;
	if (step->kind == PLAN_LOOP) {
		rank->loops[rank->depth] = rank->at;
		rank->vars[rank->depth++] = 0;
		if (!step->count) {
			rank->depth--;
			for (unsigned open = 0;; rank->at++) {
				open += plan->steps[rank->at].kind == PLAN_LOOP;
				open -= plan->steps[rank->at].kind == PLAN_END;
				if (!open)
					break;
			}
		}
		rank->at++;
		return true;
	}
	if (step->kind == PLAN_END) {
		if (++rank->vars[rank->depth - 1] < plan->steps[rank->loops[rank->depth - 1]].count) {
			rank->at = rank->loops[rank->depth - 1] + 1;
		} else {
			rank->vars[--rank->depth] = 0;
			rank->at++;
		}
		return true;
	}
	if (!plan_step_runs(step, rank->vars)) {
		rank->at++;
		return true;
	}
	struct message *message;
	switch (step->kind) {
	case PLAN_READY:
		if (wire->grants == wire->room) {
			wire->room = wire->room ? 2 * wire->room : 32;
			wire->messages = realloc(wire->messages, wire->room * sizeof *wire->messages);
			REQUIRE(wire->messages);
		}
		message = &wire->messages[wire->grants++];
		memset(message, 0, sizeof *message);
		message->to = area(rank, step->destination);
		message->granted_partial = plan_affine_value(&plan->operands[step->destination].partial, rank->vars) > 0;
		break;
	case PLAN_PUT:
		if (wire->puts == wire->grants)
			return false;
		message = &wire->messages[wire->puts++];
		if (plan->channels[step->channel].mapped) {
			message->data = combine(rank, step, &source);
			store(&message->to, &message->data);
			if (step->keep) {
				destination = area(rank, step->destination);
				store(&destination, &message->data);
				same_size(&destination, &source);
			}
		} else {
			message->data = combine(rank, step, &source);
			message->from = source;
		}
		same_size(&message->to, &source);
		if (source.span && message->data.values[0].partial != message->granted_partial)
			trouble = true;
		break;
	case PLAN_FLUSH:
		for (size_t i = 0; i < wire->lent && wire->lent - i > step->count; i++)
			if (i >= wire->returned && !wire->lends[i].copied)
				return false;
		/* As late as possible: sources are read one by one until few enough are left. */
		if (!plan->channels[step->channel].mapped)
			for (size_t i = 0; i < wire->puts && wire->puts - i > step->count; i++)
				if (wire->messages[i].stage == 0)
					return false;
		break;
	case PLAN_LEND:
		if (wire->lent - wire->returned >= plan->slots)
			return false;
		if (wire->lent == wire->lend_room) {
			wire->lend_room = wire->lend_room ? 2 * wire->lend_room : 32;
			wire->lends = realloc(wire->lends, wire->lend_room * sizeof *wire->lends);
			REQUIRE(wire->lends);
		}
		struct adversary_lend *lend = &wire->lends[wire->lent++];
		lend->data = combine(rank, step, &lend->from);
		lend->copied = step->copied;
		break;
	case PLAN_RETURN:
		if (wire->returned == wire->borrowed)
			trouble = true;
		else
			wire->returned++;
		break;
	case PLAN_WAIT:
		/* No plan here puts and lends on one channel. */
		if (wire->borrowed < wire->lent) {
			wire->borrowed++;
			break;
		}
		if (wire->landed == wire->waited)
			return false;
		wire->waited++;
		break;
	case PLAN_REDUCE:
	case PLAN_COPY: {
		struct data sum = combine(rank, step, &source);
		destination = area(rank, step->destination);
		store(&destination, &sum);
		same_size(&destination, &source);
		break;
	}
	default: break;
	}
	rank->at++;
	return true;
}

/* One run with random timing. True when everything came out right. */
static bool survives(const struct plan *const *view, uint32_t size)
{
	static struct adversary_rank ranks[MAX_RANKS];
	struct adversary_wire *all[MAX_RANKS * 12];
	size_t wire_count = 0;
	trouble = false;
	memset(ranks, 0, sizeof ranks);
	for (uint32_t r = 0; r < size; r++) {
		const struct plan *plan = view[r];
		ranks[r].plan = plan;
		for (int i = 0; i < 2 * REPEATS; i++)
			REQUIRE(ranks[r].buffers[i] = calloc(plan->blocks * plan->chunks * (plan_layers(plan) + 1), sizeof(struct value)));
		REQUIRE(ranks[r].slots = calloc(plan->channel_count * plan->slots * MAX_SPAN + 1, sizeof(struct value)));
		for (uint32_t i = 0; i < plan->channel_count * plan->slots * MAX_SPAN; i++)
			ranks[r].slots[i].what = GARBAGE;
		REQUIRE(ranks[r].work = calloc(plan->work * MAX_SPAN + 1, sizeof(struct value)));
		begin_operation(&ranks[r]);
		for (uint32_t i = 0; i < plan->channel_count; i++)
			if (plan->channels[i].outgoing) {
				REQUIRE(all[wire_count] = calloc(1, sizeof *all[0]));
				ranks[r].wires[i] = all[wire_count++];
			}
	}
	for (uint32_t r = 0; r < size; r++)
		for (uint32_t i = 0; i < view[r]->channel_count; i++) {
			const struct plan *peer = view[view[r]->channels[i].peer];
			for (uint32_t k = 0; !view[r]->channels[i].outgoing && k < peer->channel_count; k++)
				if (peer->channels[k].outgoing && peer->channels[k].peer == r && peer->channels[k].index == view[r]->channels[i].index)
					ranks[r].wires[i] = ranks[peer->rank].wires[k];
			if (!ranks[r].wires[i] && !view[r]->channels[i].outgoing)
				trouble = true;
		}
	/* Some ranks are fast and some slow, and so are wires; who is which changes from run to run. */
	uint32_t rank_weight = 1 + draw(8), wire_weight = 1 + draw(8), favourite = draw(size), slow = draw(4) ? draw(size) : size;
	unsigned idle = 0;
	for (;;) {
		uint32_t left = 0;
		for (uint32_t r = 0; r < size; r++)
			left += !ranks[r].done;
		if (!left || trouble)
			break;
		bool moved = false;
		if (draw(rank_weight + wire_weight) < rank_weight || !wire_count) {
			uint32_t r = draw(3) ? draw(size) : favourite;
			if (r != slow || idle > 50 || !draw(40))
				moved = advance(&ranks[r]);
		} else {
			moved = carry(all[draw((uint32_t)wire_count)]);
		}
		idle = moved ? 0 : idle + 1;
		if (idle > 300) {
			/* Nobody by chance: nobody at all? */
			for (size_t w = 0; w < wire_count; w++)
				moved |= carry(all[w]);
			for (uint32_t r = 0; r < size; r++)
				moved |= advance(&ranks[r]);
			if (!moved)
				trouble = true; /* deadlock */
		}
	}
	for (size_t w = 0; w < wire_count; w++) {
		if (all[w]->grants != all[w]->puts || all[w]->puts != all[w]->waited || all[w]->lent != all[w]->borrowed || all[w]->lent != all[w]->returned)
			trouble = true;
		free(all[w]->lends);
		free(all[w]->messages);
		free(all[w]);
	}
	for (uint32_t r = 0; r < size; r++) {
		for (int i = 0; i < 2 * REPEATS; i++)
			free(ranks[r].buffers[i]);
		free(ranks[r].slots);
		free(ranks[r].work);
	}
	return !trouble;
}

/* ---- mutants ------------------------------------------------------------------------------------------------------------ */

static struct {
	unsigned long refused, accepted;
} tally[MUTATIONS];

/*
 * A number for what a plan does: its steps as they run, indices resolved, without flushes that change nothing.  A mutant with the same
 * number is the same program written differently (a stride in a loop of one, a slot's block of the same length).
 */
static uint64_t behaviour(const struct plan *plan)
{
	static struct adversary_rank rank;
	uint64_t hash = 1, unflushed[32] = {0};
	memset(&rank, 0, sizeof rank);
	rank.plan = plan;
	while (rank.at < plan->step_count) {
		const struct plan_step *step = &plan->steps[rank.at];
		if (step->kind == PLAN_LOOP || step->kind == PLAN_END || !plan_step_runs(step, rank.vars)) {
			REQUIRE(advance(&rank));
			continue;
		}
		rank.at++;
		if (step->kind == PLAN_LEND || (step->kind == PLAN_PUT && !plan->channels[step->channel].mapped))
			unflushed[step->channel]++;
		if (step->kind == PLAN_FLUSH) {
			if (unflushed[step->channel] <= step->count)
				continue;
			unflushed[step->channel] = step->count;
			hash = hash * 31 + step->count;
		}
		hash = (hash ^ step->kind) * UINT64_C(0x9e3779b97f4a7c15) + step->keep + 2 * step->copied;
		hash = (hash ^ (step->kind <= PLAN_WAIT ? step->channel : 0)) * UINT64_C(0xbf58476d1ce4e5b9);
		for (unsigned o = 0; operand_of(plan, step, o); o++) {
			const struct plan_operand *operand = operand_of(plan, step, o);
			uint32_t block = plan_operand_block(plan, operand, rank.vars);
			uint64_t chunk = plan_operand_chunk(plan, operand, rank.vars), offset, elements, place;
			plan_chunk_range(plan, block, chunk, &offset, &elements);
			if (has_slots(operand))
				place = UINT64_C(1) << (operand->space == PLAN_SCRATCH ? 40 : 41) | (uint64_t)operand->channel << 32 | plan_operand_slot(plan, operand, rank.vars);
			else if (operand->space == PLAN_WORK)
				place = UINT64_C(1) << 48 | plan_operand_slot(plan, operand, rank.vars);
			else
				place = (plan->in_place && !operand->layer ? PLAN_OUTPUT : operand->space) * UINT64_C(1000000) +
					operand->layer * UINT64_C(10000) + block * plan->chunks + chunk;
			hash = ((hash ^ place) * UINT64_C(0x94d049bb133111eb) ^ elements) * 31;
			hash += plan_affine_value(&operand->partial, rank.vars) > 0;
			hash ^= hash >> 29;
		}
	}
	return hash;
}

static unsigned long same_behaviour;
static unsigned long adversary_runs, refused_tried, refused_wrong;

static const struct algorithm algorithms[] = {
	{plan_build_ring, ~0u, 2, true},
	{plan_build_halving, 1 << PLAN_ALLREDUCE, 1, false},
	{plan_build_doubling, 1 << PLAN_ALLREDUCE, 1, true},
	{plan_build_hierarchical, 0x1f, 2, true},
	{plan_build_torus, 1 << PLAN_ALLREDUCE | 1 << PLAN_REDUCE_SCATTER | 1 << PLAN_ALL_GATHER, 2, true},
	{plan_build_pat, 1 << PLAN_REDUCE_SCATTER | 1 << PLAN_ALL_GATHER | 1 << PLAN_BARRIER, 2, true},
	{plan_build_direct, 0x1f, 1, true},
	{plan_build_tree, 1 << PLAN_ALLREDUCE | 1 << PLAN_BROADCAST, 1, true},
};

static void try_mutants(uint32_t size, uint32_t victim, unsigned runs)
{
	const struct plan *const *view = (const struct plan *const *)plans;
	struct plan *original = plans[victim];
	const uint64_t unchanged = behaviour(original);
	REQUIRE(plan_verify(view, size, REPEATS) == ST_OK);
	for (unsigned i = 0; i < runs; i++)
		if (!survives(view, size)) {
			fprintf(stderr, "a right plan fails with the adversary\n");
			for (uint32_t r = 0; r < size; r++)
				show(plans[r]);
			exit(1);
		}
	for (int mutation = 0; mutation < MUTATIONS; mutation++)
		for (uint32_t at = 0; at < original->step_count; at++)
			for (unsigned which = 0; which < 3; which++) {
				struct plan *mutant = plan_clone(original);
				REQUIRE(mutant);
				if (!mutate(mutant, (enum mutation)mutation, at, which)) {
					plan_free(mutant);
					continue;
				}
				bool malformed = plan_check(mutant) != ST_OK;
				if (!malformed && mutant->slots == original->slots && mutant->work == original->work && behaviour(mutant) == unchanged) {
					same_behaviour++;
					plan_free(mutant);
					continue;
				}
				plans[victim] = mutant;
				enum st_status status = plan_verify(view, size, REPEATS);
				if (status == ST_OK) {
					tally[mutation].accepted++;
					for (unsigned i = 0; i < runs; i++, adversary_runs++)
						if (malformed || !survives(view, size)) {
							fprintf(stderr, "ACCEPTED AND WRONG: %s, rank %" PRIu32 " of %" PRIu32 ", step %" PRIu32 ", operand %u\n",
								mutation_names[mutation], victim, size, at, which);
							show(original);
							exit(1);
						}
				} else {
					REQUIRE(status == ST_ERR_INTERNAL && strstr(st_message(), "rank"));
					tally[mutation].refused++;
					/* The adversary is one: it finds most of the refused mutants wrong by itself. */
					if (!malformed && tally[mutation].refused % 16 == 0) {
						bool wrong = false;
						for (unsigned i = 0; i < 4 && !wrong; i++)
							wrong = !survives(view, size);
						refused_tried++;
						refused_wrong += wrong;
					}
				}
				plans[victim] = original;
				plan_free(mutant);
			}
}

static void every_mutant(const struct algorithm *algorithm)
{
	for (uint32_t size = 1; size <= MAX_RANKS; size++)
		for (int collective = PLAN_ALLREDUCE; collective <= PLAN_BARRIER; collective++)
			for (uint32_t chunks = 1; chunks <= 3; chunks++)
				for (uint32_t slots = 1; slots <= 4; slots++)
					for (unsigned variant = 0; variant < 6; variant++) {
						if (!(algorithm->collectives >> collective & 1) ||
						    (slots < algorithm->least_slots && collective != PLAN_BROADCAST))
							continue;
						/* A sample of the combinations, by primes, so that each choice meets each other one; all of them in the long form. */
						static const uint32_t every[2][2] = {{13, 7}, {47, 23}};
						const char *all = getenv("LONG");
						const uint32_t number = ((chunks * 4 + slots) * 6 + variant) * 5 + (uint32_t)collective + size;
						if (!(all && *all) && size > 1 && number % every[size > 4][algorithm == algorithms])
							continue;
						struct plan_shape shape = {.collective = (enum plan_collective)collective, .size = size, .slots = slots,
									   .chunk_elements = 16, .in_place = variant & 1,
									   .elements = 16 * chunks * size - (chunks * size > 3 ? 3 : 0) * !(variant & 1), .root = size / 2, .wide = algorithm->wide && collective <= PLAN_REDUCE_SCATTER && (chunks + slots + size) % 2};
						if (collective == PLAN_BROADCAST)
							shape.elements = 16 * chunks;
						else if (collective != PLAN_ALLREDUCE)
							shape.elements = shape.elements / size * size;
						if (collective == PLAN_BARRIER)
							shape.elements = 0;
						/* Blocks so short that several of them travel together. */
						if (collective <= PLAN_ALL_GATHER && slots == 3 && chunks == 1)
							shape.elements = size;
						build_with(algorithm, shape, variant / 2);
						for (uint32_t victim = 0; victim < size; victim++)
							if (size <= 3 || victim == (chunks + slots + variant) % size)
								try_mutants(size, victim, 5);
						free_plans(size);
					}
}

/* Leaves that ranks share in all kinds of ways. */
static void every_ordered_mutant(void)
{
	static const struct algorithm ordered = {plan_build_ordered, 1u << PLAN_ALLREDUCE_ORDERED, 1, false};
	const char *all = getenv("LONG");
	for (uint32_t size = 1; size <= MAX_RANKS; size++)
		for (uint32_t slots = 1; slots <= 3; slots++)
			for (unsigned variant = 0; variant < 12; variant++) {
				if (!(all && *all) && size > 2 && (size + slots + variant) % (size > 5 ? 9 : 4))
					continue;
				const uint32_t leaves[] = {size, 3 * size + 5, size / 2 + 1, 2 * size};
				const uint64_t elements[] = {8, 128, 253};
				struct plan_shape shape = {.collective = PLAN_ALLREDUCE_ORDERED, .size = size, .slots = slots, .chunk_elements = 16,
							   .in_place = draw(2), .elements = elements[draw(3)], .leaves = leaves[variant % 4]};
				build_with(&ordered, shape, variant / 4);
				for (uint32_t victim = 0; victim < size; victim++)
					if (size <= 3 || victim == (slots + variant) % size)
						try_mutants(size, victim, 5);
				free_plans(size);
			}
}

int main(void)
{
	for (size_t a = 0; a < sizeof algorithms / sizeof *algorithms; a++) {
		unsigned long before = 0, after = 0;
		for (int m = 0; m < MUTATIONS; m++)
			before += tally[m].refused + tally[m].accepted;
		every_mutant(&algorithms[a]);
		for (int m = 0; m < MUTATIONS; m++)
			after += tally[m].refused + tally[m].accepted;
		printf("%lu mutants of algorithm %zu\n", after - before, a);
	}
	unsigned long before = 0, after = 0;
	for (int m = 0; m < MUTATIONS; m++)
		before += tally[m].refused + tally[m].accepted;
	every_ordered_mutant();
	for (int m = 0; m < MUTATIONS; m++)
		after += tally[m].refused + tally[m].accepted;
	printf("%lu mutants of ordered sums\n", after - before);
	unsigned long refused = 0, accepted = 0;
	printf("%-52s %10s %10s\n", "mutation", "refused", "harmless");
	for (int m = 0; m < MUTATIONS; m++) {
		printf("%-52s %10lu %10lu\n", mutation_names[m], tally[m].refused, tally[m].accepted);
		refused += tally[m].refused;
		accepted += tally[m].accepted;
		REQUIRE(tally[m].refused); /* every kind of mutation was there, and seen */
	}
	printf("%-52s %10lu %10lu (%.1f %%), each right in all of its runs, %lu together\n", "all", refused, accepted,
	       100.0 * (double)accepted / (double)(refused + accepted), adversary_runs);
	printf("of %lu refused ones the adversary found %lu wrong by itself\n", refused_tried, refused_wrong);
	printf("%lu more were the same program written differently\n", same_behaviour);
	/* Harmless ones are steps that may as well come in another order; of all others there are few. */
	unsigned long order = tally[SWAP].accepted + tally[TO_BODY_START].accepted + tally[TO_BODY_END].accepted;
	REQUIRE((accepted - order) * 20 < refused);
	REQUIRE(refused_wrong * 10 > refused_tried * 7);
	return 0;
}
