/* What a step of a plan does: where its operands lie, and the memory and link operations on them. */
#include "engine_internal.h"

/* Where an operand lies and how long it is. */
struct piece {
	char *memory;
	size_t elements, bytes;
	bool wide; /* holds partial sums that are wider than the elements */
};

static struct piece place(const struct lane *lane, const struct plan_operand *operand)
{
	const struct comm_request *request = lane->first;
	const struct engine_plan *bound = request->bound;
	const struct plan *plan = bound->plan;
	uint64_t block = plan_operand_block(plan, operand, lane->vars);
	uint64_t length = plan->offsets          ? plan_block_elements(plan, block)
			  : block < plan->blocks ? bound->quotient + (block < bound->remainder)
						 : 0; /* a hole */
	uint64_t start = plan_operand_chunk(plan, operand, lane->vars) * plan->chunk_elements;
	if (start > length)
		start = length;
	struct piece piece = {.elements = length - start < plan->chunk_elements ? length - start : plan->chunk_elements};
	if (operand->span > 1 && plan->offsets)
		piece.elements = plan->offsets[block + operand->span] - plan->offsets[block];
	else if (operand->span > 1) /* whole blocks: chunks is 1 */
		piece.elements = operand->span * bound->quotient +
				 (block >= bound->remainder ? 0 : bound->remainder - block < operand->span ? bound->remainder - block : operand->span);
	piece.wide = plan->wide && plan_operand_partial(operand, lane->vars);
	piece.bytes = piece.elements * (piece.wide ? sizeof(float) : request->element_bytes);
	if (operand->space == PLAN_BORROWED)
		return piece; /* see borrow() */
	if (operand->space == PLAN_SCRATCH) {
		struct link *link = bound->links[operand->channel];
		piece.memory = link->ops->slot(link, plan_operand_slot(plan, operand, lane->vars));
		if (operand->skip)
			piece.memory += (plan_block_offset(plan, block) - plan_block_offset(plan, block - operand->skip)) *
					(piece.wide ? sizeof(float) : request->element_bytes);
		return piece;
	}
	if (operand->space == PLAN_WORK) {
		piece.memory = bound->work + plan_operand_slot(plan, operand, lane->vars) * bound->work_bytes;
		return piece;
	}
	bool compact = operand->space == PLAN_INPUT ? plan->compact_input : plan->compact_output;
	if (!compact && plan->offsets)
		start += plan->offsets[block];
	else if (!compact)
		start += block * bound->quotient + (block < bound->remainder ? block : bound->remainder);
	char *base = operand->space == PLAN_INPUT ? request->input + operand->layer * request->layer_bytes : request->output;
	piece.memory = piece.bytes ? base + start * request->element_bytes : NULL;
	return piece;
}

/* Where a borrowed operand can be read: in `into` if it must be stored somewhere, unless that is NULL. */
static enum st_status borrow(struct lane *lane, const struct plan_operand *operand, struct piece *piece, void *into)
{
	const struct engine_plan *bound = lane->first->bound;
	struct link *link = bound->links[operand->channel];
	const uint32_t slots = bound->plan->slots;
	/* The plan counts from its start and modulo its slots, the link for ever: of the lends that may be out, the one with that remainder. */
	uint64_t oldest = link->given_back - link->given_back_before;
	uint32_t distance = (uint32_t)((plan_operand_slot(bound->plan, operand, lane->vars) + slots - oldest % slots) % slots);
	const void *memory;
	lane->blocked = link;
	ST_TRY(link->ops->borrowed(link, link->given_back + distance, piece->bytes, into, &memory));
	lane->blocked = NULL;
	piece->memory = (char *)(uintptr_t)memory;
	return ST_OK;
}

/* What a step's sources make, as long as `to`, into `to` and `keep` (NULL: only there). Fails only where it borrows. */
static enum st_status combine(struct lane *lane, const struct plan_step *step, const struct piece *to, void *keep, bool stream)
{
	const struct plan *plan = lane->first->bound->plan;
	struct comm_counters *counters = &lane->engine->counters;
	struct reduce_call call = {.destination = to->memory, .keep = keep, .source_count = step->source_count, .wide_result = to->wide,
				   .stream = stream, .ranks = plan->leaves ? plan->leaves : plan->size, .count = to->elements};
	bool partial = false;
	size_t read = 0;
	if (!to->elements)
		return ST_OK;
	for (unsigned s = 0; s < step->source_count; s++) {
		const struct plan_operand *operand = &plan->operands[step->sources + s];
		struct piece source = place(lane, operand);
		if (operand->space == PLAN_BORROWED)
			ST_TRY(borrow(lane, operand, &source, step->kind == PLAN_COPY ? to->memory : NULL));
		call.sources[s] = source.memory;
		call.wide_sources |= (unsigned)source.wide << s;
		partial |= plan_operand_partial(operand, lane->vars);
		read += source.bytes;
	}
	bool final = !plan_step_partial(plan, step, lane->vars);
	if (step->source_count > 1 || partial == final) {
		reduce_many(lane->add, final ? lane->finish : lane->add, (enum comm_type)lane->first->signature.type, &call);
		counters->reduced_bytes += read;
	} else if (call.sources[0] != to->memory) {
		reduce_copy(to->memory, keep, call.sources[0], to->bytes, stream);
		counters->copied_bytes += to->bytes;
	}
	return ST_OK;
}

enum st_status engine_run_step(struct lane *lane, const struct plan_step *step)
{
	const struct comm_request *request = lane->first;
	struct engine_plan *bound = request->bound;
	const struct plan *plan = bound->plan;
	struct link *link = step->kind <= PLAN_WAIT ? bound->links[step->channel] : NULL;
	struct piece piece;
	lane->blocked = link;
	switch (step->kind) {
	case PLAN_READY:
		piece = place(lane, &plan->operands[step->destination]);
		return link->ops->ready(link, piece.memory, piece.bytes);
	case PLAN_PUT: {
		piece = place(lane, &plan->operands[step->sources]);
		if (!link->ops->mapped)
			return link->ops->put(link, piece.memory, piece.bytes);
		void *destination;
		piece.wide = plan->wide && plan_step_partial(plan, step, lane->vars);
		piece.bytes = piece.elements * (piece.wide ? sizeof(float) : request->element_bytes);
		ST_TRY(link->ops->reserve(link, piece.bytes, &destination));
		piece.memory = destination;
		ST_TRY(combine(lane, step, &piece, step->keep ? place(lane, &plan->operands[step->destination]).memory : NULL,
			step->keep && lane->stream && plan->operands[step->destination].space == PLAN_OUTPUT));
		link->ops->commit(link);
		return ST_OK;
	}
	case PLAN_FLUSH:
		if (link->puts + link->lends - link->ops->flushed(link) <= step->count)
			return ST_OK;
		return link->broken == ST_OK || link->broken == ST_ERR_ABORTED ? ST_PENDING : transport_status(link);
	case PLAN_LEND:
		if (link->lends - link->ops->returned(link) >= plan->slots)
			return link->broken == ST_OK || link->broken == ST_ERR_ABORTED ? ST_PENDING : transport_status(link);
		piece = place(lane, &plan->operands[step->sources]);
		return link->ops->lend(link, piece.memory, piece.bytes, step->copied);
	case PLAN_RETURN:
		link->given_back++;
		link->ops->give_back(link);
		return ST_OK;
	case PLAN_WAIT:
		if (link->ops->received(link) > link->waited) {
			link->waited++;
			return ST_OK;
		}
		return link->broken == ST_OK || link->broken == ST_ERR_ABORTED ? ST_PENDING : transport_status(link);
	case PLAN_REDUCE:
	case PLAN_COPY:
		piece = place(lane, &plan->operands[step->destination]);
		return combine(lane, step, &piece, NULL, lane->stream && plan->operands[step->destination].space == PLAN_OUTPUT);
	default: return ST_OK;
	}
}
