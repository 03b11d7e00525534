/*
 * Proving plans right by running them on symbols.
 *
 * Every (block, chunk) of a buffer and every slot is one cell.  A cell's value is a fingerprint of the multiset of inputs summed in it: each input
 * chunk (rank, block, chunk) has a pseudo-random 64-bit number, a reduction adds them modulo 2^64, and a chunk that must hold each
 * rank's input exactly once is compared with the sum of all.  So a cell costs 24 bytes whatever the number of ranks; a wrong multiset is
 * accepted with probability 2^-64.
 *
 * Where order counts (allreduce_ordered) a cell's value is the range of leaves summed in it, mixed with a number for the block and chunk that it is of:
 * whoever reads it as something else sees a range that fits nothing.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "leaves.h"
#include "plan.h"

enum { DEFINED = 1, GRANTED = 2, UNUSED = 4, PARTIAL = 8 };

struct cell {
	uint64_t value;
	uint64_t elements; /* slots: how much landed there */
	uint32_t puts;     /* not yet flushed puts and lends that read it */
	uint32_t flags;
};

/* What an operand names: the cells of `span` consecutive blocks. */
struct area {
	struct cell *cells;
	uint32_t span, block;
	uint64_t chunk;
};

struct grant {
	struct area area;
	bool partial;
	unsigned repeat;
	bool lent, copied; /* no grant but a lend; of a copy */
};

/* First in, first out. */
struct queue {
	struct grant *items;
	size_t first, count, room;
};

/* One direction between two ranks. */
struct wire {
	struct queue grants;    /* not yet taken by a put */
	struct queue landed;    /* put or lent, not yet waited for */
	struct queue unflushed; /* sources of puts; mapped: of lends */
	uint64_t granted, waited; /* by the receiver: grants, and the puts that used them */
	uint64_t lent, flushed; /* by the sender */
	uint64_t borrowed, returned; /* by the receiver */
	uint64_t returned_before; /* by the receiver's operations before this one */
	struct actor *receiver;
	uint32_t receiver_channel;
	bool outgoing_seen, incoming_seen;
	bool mapped_at_sender, mapped_at_receiver;
};

struct frame {
	uint32_t step;
	uint64_t count;
};

struct actor {
	const struct plan *plan;
	const uint64_t *complete; /* of the proof */
	struct wire **wires;  /* (channel_count) */
	struct cell *input, *output; /* (blocks * chunks); the same when in place */
	struct cell *layers;  /* of the input, from the second on: (layers - 1, blocks * chunks) */
	struct leaf_range roots[LEAVES_ROOTS_MOST];
	struct cell *slots;   /* (slot_first[channel_count]) */
	struct cell *borrowed; /* likewise: what lends showed */
	size_t *slot_first;   /* (channel_count + 1): where a channel's slots begin, those of one channel all as long as the longest operand */
	struct cell *work;    /* (work * work_span) */
	uint32_t work_span;   /* the most blocks that an operand in WORK spans */
	uint32_t at;
	unsigned repeat, depth;
	uint64_t vars[PLAN_MAX_DEPTH];
	struct frame frames[PLAN_MAX_DEPTH];
	bool done;
	bool queued;
};

struct proof {
	struct actor *actors;
	uint32_t size;
	unsigned repeats;
	/* The wires, found by (sender, receiver, index). */
	struct wire_entry {
		uint64_t key; /* 0: free */
		struct wire wire;
	} *table;
	size_t table_size;
	uint64_t *complete; /* reductions: (blocks * chunks) fingerprint of every rank's input exactly once */
	uint64_t *sums;     /* (blocks) values of the step at hand */
};

static uint64_t mixed(uint64_t x)
{
	/* splitmix64's finisher */
	x += UINT64_C(0x9e3779b97f4a7c15);
	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return x ^ (x >> 31);
}

static uint64_t fingerprint(uint32_t rank, uint64_t block, uint64_t chunk)
{
	return mixed(mixed(mixed(rank) ^ block) ^ chunk);
}

/* The sum of a range of leaves of what has this fingerprint, and back. */
static uint64_t sum_of_leaves(struct leaf_range range, uint64_t block, uint64_t chunk)
{
	return ((uint64_t)range.first << 32 | range.end) ^ fingerprint(0, block, chunk);
}

static struct leaf_range leaves_in(uint64_t value, uint64_t block, uint64_t chunk)
{
	value ^= fingerprint(0, block, chunk);
	return (struct leaf_range){(uint32_t)(value >> 32), (uint32_t)value};
}

static bool push(struct queue *queue, struct grant item)
{
	if (queue->first && queue->first + queue->count == queue->room) {
		memmove(queue->items, queue->items + queue->first, queue->count * sizeof *queue->items);
		queue->first = 0;
	}
	if (queue->count == queue->room) {
		size_t room = queue->room ? 2 * queue->room : 4;
		struct grant *items = realloc(queue->items, room * sizeof *items);
		if (!items)
			return false;
		queue->items = items;
		queue->room = room;
	}
	queue->items[queue->first + queue->count++] = item;
	return true;
}

static struct grant pop(struct queue *queue)
{
	struct grant item = queue->items[queue->first++];
	if (!--queue->count)
		queue->first = 0;
	return item;
}

static enum st_status no_memory(void)
{
	return st_fail(ST_ERR_NOMEM, "plan verifier: out of memory");
}

static enum st_status __attribute__((format(printf, 2, 3))) refuse(const struct actor *actor, const char *format, ...)
{
	char what[256], where[64] = "at its end";
	va_list args;
	va_start(args, format);
	vsnprintf(what, sizeof what, format, args);
	va_end(args);
	if (actor->at < actor->plan->step_count)
		snprintf(where, sizeof where, "step %" PRIu32, actor->at);
	return st_fail(ST_ERR_INTERNAL, "plan refused: rank %" PRIu32 ", %s, operation %u: %s", actor->plan->rank, where, actor->repeat, what);
}

static struct wire *find_wire(struct proof *proof, uint32_t sender, uint32_t receiver, uint16_t index)
{
	uint64_t key = 1 + (((uint64_t)sender * proof->size + receiver) << 16 | index);
	for (size_t i = mixed(key) & (proof->table_size - 1);; i = (i + 1) & (proof->table_size - 1)) {
		if (!proof->table[i].key)
			proof->table[i].key = key;
		if (proof->table[i].key == key)
			return &proof->table[i].wire;
	}
}

static bool only_own(const struct plan *plan, enum plan_space space)
{
	return space == PLAN_INPUT ? plan->compact_input : space == PLAN_OUTPUT ? plan->compact_output : false;
}

static struct cell *layer_of(const struct actor *actor, uint32_t layer)
{
	return layer ? actor->layers + (layer - 1) * (size_t)actor->plan->blocks * actor->plan->chunks : actor->input;
}

static void fill_roots(struct actor *actor)
{
	const struct plan *plan = actor->plan;
	const uint32_t layers = plan_layers(plan);
	for (uint32_t layer = 0; layer < layers; layer++)
		for (uint32_t block = 0; block < plan->blocks; block++)
			for (uint64_t chunk = 0; chunk < plan->chunks; chunk++)
				layer_of(actor, layer)[block * plan->chunks + chunk] = (struct cell){
					.value = sum_of_leaves(actor->roots[layer], block, chunk), .flags = DEFINED | UNUSED | PARTIAL};
}

/* Fresh buffers for the next operation: everything that is input is defined and not yet used. */
static void fill(struct actor *actor)
{
	const struct plan *plan = actor->plan;
	size_t cells = plan->blocks * plan->chunks;
	memset(actor->output, 0, cells * sizeof *actor->output);
	memset(actor->work, 0, plan->work * (size_t)actor->work_span * sizeof *actor->work);
	if (plan->leaves) {
		fill_roots(actor);
		return;
	}
	for (uint32_t block = 0; block < plan->blocks; block++) {
		bool is_input = !plan->compact_input || block == plan->rank;
		if (plan->collective == PLAN_BROADCAST)
			is_input = plan->rank == plan->root;
		for (uint64_t chunk = 0; chunk < plan->chunks; chunk++) {
			struct cell *cell = &actor->input[block * plan->chunks + chunk];
			if (is_input)
				*cell = (struct cell){.value = fingerprint(plan->rank, block, chunk), .flags = DEFINED | UNUSED};
			else if (actor->input != actor->output)
				*cell = (struct cell){0};
		}
	}
}

static uint64_t area_elements(const struct plan *plan, const struct area *area, uint32_t at)
{
	uint64_t offset, elements;
	plan_chunk_range(plan, area->block + at, area->chunk, &offset, &elements);
	return elements;
}

static enum st_status find_area(const struct actor *actor, const struct plan_operand *operand, struct area *area)
{
	const struct plan *plan = actor->plan;
	area->block = plan_operand_block(plan, operand, actor->vars);
	area->chunk = plan_operand_chunk(plan, operand, actor->vars);
	area->span = operand->span ? operand->span : 1;
	if (area->block == plan->blocks) { /* a hole */
		area->span = 0;
		return ST_OK;
	}
	if (area->span > plan->blocks - area->block)
		return refuse(actor, "block %" PRIu32 " and %" PRIu32 " more of %" PRIu32, area->block, area->span - 1, plan->blocks);
	if (operand->space == PLAN_SCRATCH || operand->space == PLAN_BORROWED) {
		const size_t *first = &actor->slot_first[operand->channel], span = (first[1] - first[0]) / plan->slots;
		uint64_t slot = plan_operand_slot(plan, operand, actor->vars);
		if (operand->skip > area->block)
			return refuse(actor, "block %" PRIu32 " is not the %" PRIu32 "th of a slot", area->block, operand->skip);
		if (operand->space == PLAN_BORROWED)
			slot = (actor->wires[operand->channel]->returned_before + slot) % plan->slots;
		area->cells = &(operand->space == PLAN_SCRATCH ? actor->slots : actor->borrowed)[first[0] + slot * span + operand->skip];
		return ST_OK;
	}
	if (operand->space == PLAN_WORK) {
		uint64_t elements = 0;
		for (uint32_t i = 0; i < area->span; i++)
			elements += area_elements(plan, area, i);
		if (elements > plan->work_elements)
			return refuse(actor, "%" PRIu64 " elements in a work slot of %" PRIu64, elements, plan->work_elements);
		area->cells = &actor->work[plan_operand_slot(plan, operand, actor->vars) * (size_t)actor->work_span];
		return ST_OK;
	}
	if (only_own(plan, operand->space) && (area->block != plan->rank || area->span > 1))
		return refuse(actor, "block %" PRIu32 " of a buffer that holds the own block only", area->block);
	area->cells = &(operand->space == PLAN_INPUT ? layer_of(actor, operand->layer) : actor->output)[area->block * plan->chunks + area->chunk];
	return ST_OK;
}

static enum st_status name_cell(const struct actor *actor, const struct plan_operand *operand, const char *what)
{
	const struct plan *plan = actor->plan;
	uint32_t block = plan_operand_block(plan, operand, actor->vars);
	uint64_t chunk = plan_operand_chunk(plan, operand, actor->vars);
	if (operand->space == PLAN_SCRATCH || operand->space == PLAN_BORROWED)
		return refuse(actor, "channel %u %s %" PRIu32 " (block %" PRIu32 " chunk %" PRIu64 ") %s", operand->channel,
			      operand->space == PLAN_SCRATCH ? "slot" : "lend", plan_operand_slot(plan, operand, actor->vars), block, chunk, what);
	if (operand->space == PLAN_WORK)
		return refuse(actor, "work slot %" PRIu32 " (block %" PRIu32 " chunk %" PRIu64 ") %s", plan_operand_slot(plan, operand, actor->vars), block,
			      chunk, what);
	return refuse(actor, "%s block %" PRIu32 " chunk %" PRIu64 " %s", operand->space == PLAN_INPUT ? "input" : "output", block, chunk, what);
}

static enum st_status read_area(const struct actor *actor, const struct plan_operand *operand, struct area *area)
{
	ST_TRY(find_area(actor, operand, area));
	const bool partial = plan_operand_partial(operand, actor->vars);
	for (uint32_t i = 0; i < area->span; i++) {
		struct cell *cell = &area->cells[i];
		if (cell->flags & GRANTED)
			return name_cell(actor, operand, "is read while it is granted away");
		if (!(cell->flags & DEFINED))
			return name_cell(actor, operand, operand->space == PLAN_BORROWED ? "is read while it is not borrowed" : "is read before it was written");
		if (partial != !!(cell->flags & PARTIAL))
			return name_cell(actor, operand, partial ? "is read as a partial sum and is none" : "is a partial sum and is read as something else");
		if (operand->space != PLAN_INPUT && operand->space != PLAN_OUTPUT && cell->elements != area_elements(actor->plan, area, i))
			return name_cell(actor, operand, "is read with another length than it was written");
		cell->flags &= ~(uint32_t)UNUSED;
	}
	return ST_OK;
}

static enum st_status may_write(const struct actor *actor, const struct plan_operand *operand, const struct area *area, bool grant)
{
	for (uint32_t i = 0; i < area->span; i++) {
		const struct cell *cell = &area->cells[i];
		if (cell->flags & GRANTED)
			return name_cell(actor, operand, grant ? "is granted twice" : "is written while it is granted away");
		if (cell->puts)
			return name_cell(actor, operand, grant ? "is granted while it is still being put or lent" : "is written while it is still being put or lent");
		if (cell->flags & UNUSED)
			return name_cell(actor, operand, grant ? "is granted before its value was used" : "is written before its value was used");
	}
	return ST_OK;
}

static bool same_lengths(const struct plan *plan, const struct area *a, const struct area *b)
{
	for (uint32_t i = 0; i < a->span && a->span == b->span; i++)
		if (area_elements(plan, a, i) != area_elements(plan, b, i))
			return false;
	return a->span == b->span;
}

/* *sum, of a block and chunk, gets one operand more. */
static enum st_status add_leaves(const struct actor *actor, uint64_t *sum, uint64_t value, uint64_t block, uint64_t chunk)
{
	struct leaf_range left = leaves_in(*sum, block, chunk), right = leaves_in(value, block, chunk);
	if (left.end > actor->plan->leaves || right.end > actor->plan->leaves)
		return refuse(actor, "adds what is no sum of leaves of block %" PRIu64 " chunk %" PRIu64, block, chunk);
	if (!leaves_are_siblings(actor->plan->leaves, left, right))
		return refuse(actor, "adds leaves %" PRIu32 "..%" PRIu32 " and %" PRIu32 "..%" PRIu32 ", which are not the halves of a node", left.first,
			      left.end - 1, right.first, right.end - 1);
	left.end = right.end;
	*sum = sum_of_leaves(left, block, chunk);
	return ST_OK;
}

/* Sums of the sources, which must all be of the same lengths, into proof->sums; *first: the first source. */
static enum st_status read_sources(const struct proof *proof, const struct actor *actor, const struct plan_step *step, struct area *first)
{
	for (unsigned s = 0; s < step->source_count; s++) {
		const struct plan_operand *operand = &actor->plan->operands[step->sources + s];
		struct area area;
		ST_TRY(read_area(actor, operand, &area));
		if (!s)
			*first = area;
		if (!same_lengths(actor->plan, first, &area))
			return name_cell(actor, operand, "has another length than the other operands");
		for (uint32_t i = 0; i < area.span; i++)
			if (s && actor->plan->leaves)
				ST_TRY(add_leaves(actor, &proof->sums[i], area.cells[i].value, first->block + i, first->chunk));
			else
				proof->sums[i] = s ? proof->sums[i] + area.cells[i].value : area.cells[i].value;
	}
	return ST_OK;
}

/* What becomes final here must have every rank's input; what is read is no partial sum unless it says so. */
static enum st_status check_finished(const struct proof *proof, const struct actor *actor, const struct plan_step *step, const struct area *first)
{
	const struct plan *plan = actor->plan;
	const struct plan_operand *operand = &plan->operands[step->sources];
	bool finishes = step->source_count > 1 || plan_operand_partial(operand, actor->vars);
	if (!finishes || !(actor->complete || plan->leaves) || plan_step_partial(plan, step, actor->vars))
		return ST_OK;
	for (uint32_t i = 0; i < first->span; i++)
		if (proof->sums[i] != (plan->leaves ? sum_of_leaves((struct leaf_range){0, plan->leaves}, first->block + i, first->chunk)
						    : actor->complete[(first->block + i) * plan->chunks + first->chunk]))
			return name_cell(actor, operand, "is finished but does not hold every input exactly once");
	return ST_OK;
}

static void store(const struct proof *proof, const struct plan *plan, const struct area *area, uint32_t flags)
{
	for (uint32_t i = 0; i < area->span; i++) {
		area->cells[i].value = proof->sums[i];
		area->cells[i].elements = area_elements(plan, area, i);
		area->cells[i].flags = flags;
	}
}

static enum st_status write_destination(const struct proof *proof, const struct actor *actor, const struct plan_step *step, const struct area *source)
{
	const struct plan_operand *operand = &actor->plan->operands[step->destination];
	struct area area;
	ST_TRY(find_area(actor, operand, &area));
	if (!same_lengths(actor->plan, &area, source))
		return name_cell(actor, operand, "has another length than the sources");
	ST_TRY(may_write(actor, operand, &area, false));
	store(proof, actor->plan, &area, DEFINED | UNUSED | (plan_step_partial(actor->plan, step, actor->vars) ? PARTIAL : 0));
	return ST_OK;
}

static enum st_status put(const struct proof *proof, struct actor *actor, const struct plan_step *step)
{
	const struct plan *plan = actor->plan;
	struct wire *wire = actor->wires[step->channel];
	struct area source;
	ST_TRY(read_sources(proof, actor, step, &source));
	ST_TRY(check_finished(proof, actor, step, &source));
	struct grant grant = pop(&wire->grants);
	if (grant.repeat != actor->repeat)
		return refuse(actor, "channel %u: the put meets a grant of operation %u", step->channel, grant.repeat);
	if (!same_lengths(plan, &source, &grant.area)) {
		uint64_t carried = 0, granted = 0;
		for (uint32_t i = 0; i < source.span; i++)
			carried += area_elements(plan, &source, i);
		for (uint32_t i = 0; i < grant.area.span; i++)
			granted += area_elements(plan, &grant.area, i);
		return refuse(actor, "channel %u: the put carries %" PRIu64 " elements of %" PRIu32 " blocks, %" PRIu64 " of %" PRIu32 " are granted",
			      step->channel, carried, source.span, granted, grant.area.span);
	}
	if (grant.partial != plan_step_partial(plan, step, actor->vars))
		return refuse(actor, "channel %u: %s", step->channel,
			      grant.partial ? "a partial sum is granted and something else put" : "a partial sum is put where none is granted");
	/* The receiver can't look before its WAIT, so when exactly the data lands makes no difference. */
	store(proof, plan, &grant.area, GRANTED);
	if (!push(&wire->landed, grant))
		return no_memory();
	if (step->keep)
		ST_TRY(write_destination(proof, actor, step, &source));
	if (plan->channels[step->channel].mapped)
		return ST_OK;
	for (uint32_t i = 0; i < source.span; i++)
		source.cells[i].puts++;
	return push(&wire->unflushed, (struct grant){.area = source}) ? ST_OK : no_memory();
}

/* Nobody may write the source until it is flushed, so what the receiver will see is known now. */
static enum st_status lend(const struct proof *proof, struct actor *actor, const struct plan_step *step)
{
	const struct plan *plan = actor->plan;
	struct wire *wire = actor->wires[step->channel];
	const bool partial = plan_step_partial(plan, step, actor->vars);
	struct area source;
	ST_TRY(read_sources(proof, actor, step, &source));
	const struct actor *receiver = wire->receiver;
	if (receiver->plan->slots != plan->slots)
		return refuse(actor, "channel %u: lends are counted by %" PRIu32 " slots here and by %" PRIu32 " at rank %" PRIu32, step->channel, plan->slots,
			      receiver->plan->slots, receiver->plan->rank);
	const size_t *first = &receiver->slot_first[wire->receiver_channel], span = (first[1] - first[0]) / plan->slots;
	if (source.span > span)
		return refuse(actor, "channel %u: lends %" PRIu32 " blocks, rank %" PRIu32 " takes no more than %zu", step->channel, source.span,
			      receiver->plan->rank, span);
	struct area shown = source;
	shown.cells = &receiver->borrowed[first[0] + wire->lent++ % plan->slots * span];
	for (uint32_t i = 0; i < source.span; i++) {
		shown.cells[i] = (struct cell){.value = proof->sums[i], .elements = area_elements(plan, &source, i)};
		source.cells[i].puts += !step->copied;
	}
	if (!push(&wire->landed, (struct grant){.area = shown, .partial = partial, .repeat = actor->repeat, .lent = true}))
		return no_memory();
	return push(&wire->unflushed, (struct grant){.area = source, .copied = step->copied}) ? ST_OK : no_memory();
}

/* Pops sources of puts, which are read some time, or of lends, which the receiver must have returned. False: it has not. */
static bool flush(struct wire *wire, uint64_t pending, bool mapped)
{
	while (wire->unflushed.count > pending) {
		const struct grant *oldest = &wire->unflushed.items[wire->unflushed.first];
		if (mapped && !oldest->copied && wire->returned <= wire->flushed)
			return false;
		struct grant source = pop(&wire->unflushed);
		wire->flushed += mapped;
		for (uint32_t i = 0; i < source.area.span && !source.copied; i++)
			source.area.cells[i].puts--;
	}
	return true;
}

static enum st_status give_back(const struct actor *actor, const struct plan_step *step)
{
	const struct plan *plan = actor->plan;
	struct wire *wire = actor->wires[step->channel];
	if (wire->returned == wire->borrowed)
		return refuse(actor, "channel %u: returns what it has not borrowed", step->channel);
	const size_t *first = &actor->slot_first[step->channel], span = (first[1] - first[0]) / plan->slots;
	struct cell *cells = &actor->borrowed[first[0] + wire->returned % plan->slots * span];
	for (size_t i = 0; i < span; i++) {
		if (cells[i].flags & UNUSED)
			return refuse(actor, "channel %u: a lend is returned before its value was used", step->channel);
		cells[i].flags = 0;
	}
	wire->returned++;
	return ST_OK;
}

/* *moved says whether the step is done or must wait for another rank. */
static enum st_status run_step(const struct proof *proof, struct actor *actor, const struct plan_step *step, bool *moved)
{
	const struct plan *plan = actor->plan;
	struct wire *wire = step->kind <= PLAN_WAIT ? actor->wires[step->channel] : NULL;
	struct area area;
	*moved = true;
	switch (step->kind) {
	case PLAN_READY:
		ST_TRY(find_area(actor, &plan->operands[step->destination], &area));
		ST_TRY(may_write(actor, &plan->operands[step->destination], &area, true));
		for (uint32_t i = 0; i < area.span; i++)
			area.cells[i].flags = GRANTED;
		wire->granted++;
		return push(&wire->grants, (struct grant){.area = area, .partial = plan_operand_partial(&plan->operands[step->destination], actor->vars),
							 .repeat = actor->repeat}) ? ST_OK : no_memory();
	case PLAN_PUT:
		*moved = wire->grants.count;
		return *moved ? put(proof, actor, step) : ST_OK;
	case PLAN_FLUSH:
		*moved = flush(wire, step->count, plan->channels[step->channel].mapped);
		return ST_OK;
	case PLAN_LEND:
		*moved = wire->lent - wire->returned < plan->slots;
		return *moved ? lend(proof, actor, step) : ST_OK;
	case PLAN_RETURN: return give_back(actor, step);
	case PLAN_WAIT: {
		if (!wire->landed.count) {
			*moved = false;
			return ST_OK;
		}
		struct grant grant = pop(&wire->landed);
		if (grant.repeat != actor->repeat)
			return refuse(actor, "channel %u: waits for a put of operation %u", step->channel, grant.repeat);
		for (uint32_t i = 0; i < grant.area.span; i++)
			grant.area.cells[i].flags = DEFINED | UNUSED | (grant.partial ? PARTIAL : 0);
		++*(grant.lent ? &wire->borrowed : &wire->waited);
		return ST_OK;
	}
	case PLAN_REDUCE:
	case PLAN_COPY:
		ST_TRY(read_sources(proof, actor, step, &area));
		ST_TRY(check_finished(proof, actor, step, &area));
		return write_destination(proof, actor, step, &area);
	default: return ST_OK;
	}
}

static uint32_t matching_end(const struct plan *plan, uint32_t at)
{
	for (unsigned depth = 0;; at++) {
		if (plan->steps[at].kind == PLAN_LOOP)
			depth++;
		else if (plan->steps[at].kind == PLAN_END && !--depth)
			return at;
	}
}

/* What every OUTPUT chunk must hold now that the plan has ended, and nothing left open. */
static enum st_status check_end(const struct proof *proof, const struct actor *actor)
{
	const struct plan *plan = actor->plan;
	for (uint32_t i = 0; i < plan->channel_count; i++) {
		struct wire *wire = actor->wires[i];
		if (plan->channels[i].outgoing) {
			/* Copies need no flush. */
			while (wire->unflushed.count && wire->unflushed.items[wire->unflushed.first].copied) {
				pop(&wire->unflushed);
				wire->flushed++;
			}
			if (wire->unflushed.count)
				return refuse(actor, "channel %" PRIu32 ": %zu puts or lends were not flushed", i, wire->unflushed.count);
			continue;
		}
		if (wire->borrowed != wire->returned)
			return refuse(actor, "channel %" PRIu32 ": %" PRIu64 " lends were not returned", i, wire->borrowed - wire->returned);
		wire->returned_before = wire->returned;
		if (wire->granted != wire->waited)
			return refuse(actor, "channel %" PRIu32 ": %" PRIu64 " grants were not waited for", i, wire->granted - wire->waited);
		const size_t *first = &actor->slot_first[i], cells = first[1] - first[0];
		for (size_t s = 0; s < cells; s++)
			if (actor->slots[first[0] + s].flags & UNUSED)
				return refuse(actor, "channel %" PRIu32 " slot %zu: what arrived was never used", i, s / (cells / plan->slots));
	}
	for (uint32_t s = 0; s < plan->work * actor->work_span; s++)
		if (actor->work[s].flags & UNUSED)
			return refuse(actor, "work slot %" PRIu32 ": what was written was never used", s / actor->work_span);
	for (uint32_t block = 0; block < plan->blocks; block++) {
		if (plan->compact_output && block != plan->rank)
			continue;
		for (uint64_t chunk = 0; chunk < plan->chunks; chunk++) {
			uint64_t expected = 0;
			switch (plan->collective) {
			case PLAN_ALLREDUCE:
			case PLAN_REDUCE_SCATTER:
				expected = proof->complete[block * plan->chunks + chunk];
				break;
			case PLAN_ALLREDUCE_ORDERED: expected = sum_of_leaves((struct leaf_range){0, plan->leaves}, block, chunk); break;
			case PLAN_BROADCAST: expected = fingerprint(plan->root, block, chunk); break;
			case PLAN_ALL_GATHER: expected = fingerprint(block, block, chunk); break;
			case PLAN_BARRIER: expected = plan_reduces(plan) ? proof->complete[block * plan->chunks + chunk] : fingerprint(block, block, chunk); break;
			}
			const struct cell *cell = &actor->output[block * plan->chunks + chunk];
			if (cell->flags & (GRANTED | PARTIAL) || !(cell->flags & DEFINED) || cell->value != expected)
				return refuse(actor, "output block %" PRIu32 " chunk %" PRIu64 " %s", block, chunk,
					      cell->flags & GRANTED      ? "is still granted away"
					      : !(cell->flags & DEFINED) ? "was never written"
					      : cell->flags & PARTIAL    ? "holds a partial sum"
									 : "does not hold every input exactly once");
		}
	}
	return ST_OK;
}

/* Runs one rank until it waits for another or has done all its operations. */
static enum st_status advance(struct proof *proof, struct actor *actor, bool *progress)
{
	const struct plan *plan = actor->plan;
	*progress = false;
	while (!actor->done) {
		if (actor->at == plan->step_count) {
			ST_TRY(check_end(proof, actor));
			*progress = true;
			if (++actor->repeat == proof->repeats) {
				actor->done = true;
				break;
			}
			actor->at = 0;
			fill(actor);
			continue;
		}
		const struct plan_step *step = &plan->steps[actor->at];
		if (step->kind == PLAN_LOOP) {
			if (!step->count) {
				actor->at = matching_end(plan, actor->at) + 1;
				continue;
			}
			actor->frames[actor->depth] = (struct frame){actor->at, step->count};
			actor->vars[actor->depth++] = 0;
			actor->at++;
		} else if (step->kind == PLAN_END) {
			struct frame *frame = &actor->frames[actor->depth - 1];
			if (++actor->vars[actor->depth - 1] < frame->count) {
				actor->at = frame->step + 1;
			} else {
				actor->vars[--actor->depth] = 0;
				actor->at++;
			}
		} else if (!plan_step_runs(step, actor->vars)) {
			actor->at++;
		} else {
			bool moved;
			ST_TRY(run_step(proof, actor, step, &moved));
			if (!moved)
				break;
			actor->at++;
			*progress = true;
		}
	}
	return ST_OK;
}

static enum st_status check_together(struct proof *proof, const struct plan *const *plans)
{
	const struct plan *first = plans[0];
	for (uint32_t r = 0; r < proof->size; r++) {
		const struct plan *plan = plans[r];
		ST_TRY(plan_check(plan));
		if (plan->rank != r || plan->size != proof->size)
			return st_fail(ST_ERR_INTERNAL, "plan refused: plan %" PRIu32 " of %" PRIu32 " is for rank %" PRIu32 " of %" PRIu32, r, proof->size,
				       plan->rank, plan->size);
		if (plan->collective != first->collective || plan->blocks != first->blocks || plan->elements != first->elements ||
		    plan->chunk_elements != first->chunk_elements || plan->chunks != first->chunks || plan->root != first->root ||
		    plan->wide != first->wide || plan->leaves != first->leaves || !plan->offsets != !first->offsets)
			return st_fail(ST_ERR_INTERNAL, "plan refused: ranks 0 and %" PRIu32 " have plans of different shapes", r);
		if (plan->offsets && memcmp(plan->offsets, first->offsets, (plan->blocks + (size_t)1) * sizeof *plan->offsets))
			return st_fail(ST_ERR_INTERNAL, "plan refused: ranks 0 and %" PRIu32 " have blocks of different sizes", r);
		uint64_t longest = plan_block_elements(plan, 0);
		for (uint32_t block = 1; plan->offsets && block < plan->blocks; block++)
			if (plan_block_elements(plan, block) > longest)
				longest = plan_block_elements(plan, block);
		if (plan->chunks > UINT64_MAX / plan->chunk_elements || plan->chunks * plan->chunk_elements < longest)
			return st_fail(ST_ERR_INTERNAL, "plan refused: rank %" PRIu32 ": the chunks do not cover a block", r);
		if ((plan->compact_input || plan->compact_output) && plan->blocks != plan->size)
			return st_fail(ST_ERR_INTERNAL, "plan refused: rank %" PRIu32 ": %" PRIu32 " blocks for %" PRIu32 " ranks", r, plan->blocks, plan->size);
	}
	return ST_OK;
}

/* How many blocks of a slot an operand needs: so far in slot_first[channel + 1]. */
static void measure(struct actor *actor, const struct plan_operand *operand)
{
	const uint32_t blocks = (operand->span ? operand->span : 1) + operand->skip;
	const bool of_channel = operand->space == PLAN_SCRATCH || operand->space == PLAN_BORROWED;
	if (of_channel && blocks > actor->slot_first[operand->channel + 1])
		actor->slot_first[operand->channel + 1] = blocks;
	else if (operand->space == PLAN_WORK && blocks > actor->work_span)
		actor->work_span = blocks;
}

static enum st_status set_up(struct proof *proof, const struct plan *const *plans)
{
	size_t ends = 1;
	for (uint32_t r = 0; r < proof->size; r++)
		ends += plans[r]->channel_count;
	for (proof->table_size = 16; proof->table_size < 2 * ends;)
		proof->table_size *= 2;
	proof->table = calloc(proof->table_size, sizeof *proof->table);
	proof->actors = calloc(proof->size, sizeof *proof->actors);
	proof->sums = calloc(plans[0]->blocks, sizeof *proof->sums);
	if (!proof->table || !proof->actors || !proof->sums)
		return no_memory();
	if (plan_reduces(plans[0]) && !plans[0]->leaves) {
		proof->complete = calloc(plans[0]->blocks * plans[0]->chunks, sizeof *proof->complete);
		if (!proof->complete)
			return no_memory();
		for (uint32_t block = 0; block < plans[0]->blocks; block++)
			for (uint64_t chunk = 0; chunk < plans[0]->chunks; chunk++)
				for (uint32_t r = 0; r < proof->size; r++)
					proof->complete[block * plans[0]->chunks + chunk] += fingerprint(r, block, chunk);
	}
	for (uint32_t r = 0; r < proof->size; r++) {
		struct actor *actor = &proof->actors[r];
		const struct plan *plan = actor->plan = plans[r];
		actor->complete = proof->complete;
		size_t cells = plan->blocks * plan->chunks;
		actor->wires = calloc(plan->channel_count + 1, sizeof(struct wire *));
		actor->output = calloc(cells, sizeof *actor->output);
		actor->input = plan->in_place ? actor->output : calloc(cells, sizeof *actor->input);
		if (plan->leaves)
			leaves_roots(plan->leaves, leaves_of_rank(plan->leaves, plan->size, plan->rank), actor->roots);
		actor->layers = calloc(plan_layers(plan) > 1 ? (plan_layers(plan) - 1) * cells : 1, sizeof *actor->layers);
		actor->slot_first = calloc(plan->channel_count + (size_t)1, sizeof *actor->slot_first);
		if (!actor->slot_first)
			return no_memory();
		actor->work_span = 1;
		for (uint32_t i = 0; i < plan->operand_count; i++)
			measure(actor, &plan->operands[i]);
		for (uint32_t i = 0; i < plan->channel_count; i++)
			actor->slot_first[i + 1] = actor->slot_first[i] + actor->slot_first[i + 1] * plan->slots;
		actor->slots = calloc(actor->slot_first[plan->channel_count] + 1, sizeof *actor->slots);
		actor->borrowed = calloc(actor->slot_first[plan->channel_count] + 1, sizeof *actor->borrowed);
		actor->work = calloc(plan->work * (size_t)actor->work_span + 1, sizeof *actor->work);
		if (!actor->wires || !actor->input || !actor->output || !actor->slots || !actor->borrowed || !actor->layers || !actor->work)
			return no_memory();
		fill(actor);
		for (uint32_t i = 0; i < plan->channel_count; i++) {
			const struct plan_channel *channel = &plan->channels[i];
			struct wire *wire = channel->outgoing ? find_wire(proof, r, channel->peer, channel->index)
							      : find_wire(proof, channel->peer, r, channel->index);
			actor->wires[i] = wire;
			*(channel->outgoing ? &wire->outgoing_seen : &wire->incoming_seen) = true;
			*(channel->outgoing ? &wire->mapped_at_sender : &wire->mapped_at_receiver) = channel->mapped;
			if (!channel->outgoing) {
				wire->receiver = actor;
				wire->receiver_channel = i;
			}
		}
	}
	for (uint32_t r = 0; r < proof->size; r++) {
		struct actor *actor = &proof->actors[r];
		for (uint32_t i = 0; i < actor->plan->channel_count; i++) {
			if (!actor->wires[i]->outgoing_seen || !actor->wires[i]->incoming_seen)
				return refuse(actor, "channel %" PRIu32 " has no other end at rank %" PRIu32, i, actor->plan->channels[i].peer);
			if (actor->wires[i]->mapped_at_sender != actor->wires[i]->mapped_at_receiver)
				return refuse(actor, "channel %" PRIu32 " is mapped at one end only", i);
		}
	}
	return ST_OK;
}

static enum st_status run_all(struct proof *proof)
{
	/* Ranks that may be able to move, each at most once: a rank that moved may have unblocked its peers. */
	uint32_t *work = malloc(((size_t)proof->size + 1) * sizeof *work);
	if (!work)
		return no_memory();
	uint32_t head = 0, waiting = proof->size;
	enum st_status status = ST_OK;
	for (uint32_t r = 0; r < proof->size; r++) {
		work[r] = r;
		proof->actors[r].queued = true;
	}
	while (waiting && status == ST_OK) {
		struct actor *actor = &proof->actors[work[head]];
		head = (head + 1) % (proof->size + 1);
		waiting--;
		actor->queued = false;
		bool progress;
		status = advance(proof, actor, &progress);
		for (uint32_t i = 0; progress && i < actor->plan->channel_count; i++) {
			struct actor *peer = &proof->actors[actor->plan->channels[i].peer];
			if (!peer->queued && !peer->done) {
				peer->queued = true;
				work[(head + waiting++) % (proof->size + 1)] = actor->plan->channels[i].peer;
			}
		}
	}
	free(work);
	for (uint32_t r = 0; r < proof->size && status == ST_OK; r++) {
		const struct actor *actor = &proof->actors[r];
		if (!actor->done) {
			const struct plan_step *step = &actor->plan->steps[actor->at];
			const char *waits = step->kind == PLAN_PUT ? "a grant" : step->kind == PLAN_WAIT ? "a put" : "a return";
			status = refuse(actor, "deadlock: waits for %s on channel %u, rank %" PRIu32 " never comes", waits, step->channel,
					actor->plan->channels[step->channel].peer);
		}
		for (uint32_t i = 0; i < actor->plan->channel_count && status == ST_OK; i++)
			if (!actor->plan->channels[i].outgoing && actor->wires[i]->landed.count)
				status = refuse(actor, "channel %" PRIu32 ": %zu lends were not waited for", i, actor->wires[i]->landed.count);
	}
	return status;
}

enum st_status plan_verify(const struct plan *const *plans, uint32_t size, unsigned repeats)
{
	struct proof proof = {.size = size, .repeats = repeats};
	if (!size || !repeats)
		return st_fail(ST_ERR_USAGE, "plan verifier: no plans or no repeats");
	enum st_status status = check_together(&proof, plans);
	if (status == ST_OK)
		status = set_up(&proof, plans);
	if (status == ST_OK)
		status = run_all(&proof);
	for (uint32_t r = 0; proof.actors && r < size; r++) {
		struct actor *actor = &proof.actors[r];
		free(actor->wires);
		if (actor->input != actor->output)
			free(actor->input);
		free(actor->output);
		free(actor->slots);
		free(actor->slot_first);
		free(actor->borrowed);
		free(actor->work);
		free(actor->layers);
	}
	for (size_t i = 0; proof.table && i < proof.table_size; i++) {
		free(proof.table[i].wire.grants.items);
		free(proof.table[i].wire.landed.items);
		free(proof.table[i].wire.unflushed.items);
	}
	free(proof.complete);
	free(proof.sums);
	free(proof.table);
	free(proof.actors);
	return status;
}
