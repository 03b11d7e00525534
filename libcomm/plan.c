/* Plans: making them, and where blocks and chunks lie. */
#include "plan.h"

#include <stdlib.h>
#include <string.h>

#include "leaves.h"

struct plan *plan_new(void)
{
	return calloc(1, sizeof(struct plan));
}

void plan_free(struct plan *plan)
{
	if (!plan)
		return;
	free(plan->channels);
	free(plan->steps);
	free(plan->operands);
	free(plan->owned_offsets);
	free(plan);
}

size_t plan_bytes(const struct plan *plan)
{
	return sizeof *plan + plan->channel_room * sizeof *plan->channels + plan->step_room * sizeof *plan->steps +
	       plan->operand_room * sizeof *plan->operands;
}

/* As it was, where there is no smaller memory to be had. */
static void *trimmed(void *items, uint32_t count, size_t bytes, uint32_t *room)
{
	void *smaller = count ? realloc(items, count * bytes) : NULL;
	if (!smaller)
		return items;
	*room = count;
	return smaller;
}

void plan_trim(struct plan *plan)
{
	plan->channels = trimmed(plan->channels, plan->channel_count, sizeof *plan->channels, &plan->channel_room);
	plan->steps = trimmed(plan->steps, plan->step_count, sizeof *plan->steps, &plan->step_room);
	plan->operands = trimmed(plan->operands, plan->operand_count, sizeof *plan->operands, &plan->operand_room);
}

struct plan *plan_clone(const struct plan *plan)
{
	struct plan *copy = malloc(sizeof *copy);
	if (!copy)
		return NULL;
	*copy = *plan;
	copy->owned_offsets = NULL; /* the copy borrows them */
	copy->channel_room = plan->channel_count;
	copy->step_room = plan->step_count;
	copy->operand_room = plan->operand_count;
	copy->channels = malloc(plan->channel_count * sizeof *plan->channels + 1);
	copy->steps = malloc(plan->step_count * sizeof *plan->steps + 1);
	copy->operands = malloc(plan->operand_count * sizeof *plan->operands + 1);
	if (!copy->channels || !copy->steps || !copy->operands) {
		plan_free(copy);
		return NULL;
	}
	if (plan->channel_count)
		memcpy(copy->channels, plan->channels, plan->channel_count * sizeof *plan->channels);
	if (plan->step_count)
		memcpy(copy->steps, plan->steps, plan->step_count * sizeof *plan->steps);
	if (plan->operand_count)
		memcpy(copy->operands, plan->operands, plan->operand_count * sizeof *plan->operands);
	return copy;
}

struct plan_step *plan_add_step(struct plan *plan, enum plan_step_kind kind)
{
	if (plan->step_count == plan->step_room) {
		uint32_t room = plan->step_room + plan->step_room / 2 + 16;
		struct plan_step *steps = realloc(plan->steps, room * sizeof *steps);
		if (!steps)
			return NULL;
		plan->steps = steps;
		plan->step_room = room;
	}
	struct plan_step *step = &plan->steps[plan->step_count++];
	memset(step, 0, sizeof *step);
	step->kind = kind;
	return step;
}

static bool add_operand(struct plan *plan, const struct plan_operand *operand)
{
	if (plan->operand_count == plan->operand_room) {
		uint32_t room = plan->operand_room + plan->operand_room / 2 + 16;
		struct plan_operand *operands = realloc(plan->operands, room * sizeof *operands);
		if (!operands)
			return false;
		plan->operands = operands;
		plan->operand_room = room;
	}
	plan->operands[plan->operand_count++] = *operand;
	return true;
}

bool plan_add_source(struct plan *plan, struct plan_step *step, const struct plan_operand *operand)
{
	if (!add_operand(plan, operand))
		return false;
	if (!step->source_count++)
		step->sources = plan->operand_count - 1;
	return true;
}

bool plan_set_destination(struct plan *plan, struct plan_step *step, const struct plan_operand *operand)
{
	if (!add_operand(plan, operand))
		return false;
	step->destination = plan->operand_count - 1;
	return true;
}

struct plan_channel *plan_add_channel(struct plan *plan, uint32_t peer, bool outgoing, bool mapped, uint16_t index)
{
	if (plan->channel_count == plan->channel_room) {
		uint32_t room = plan->channel_room ? 2 * plan->channel_room : 4;
		struct plan_channel *channels = realloc(plan->channels, room * sizeof *channels);
		if (!channels)
			return NULL;
		plan->channels = channels;
		plan->channel_room = room;
	}
	struct plan_channel *channel = &plan->channels[plan->channel_count++];
	*channel = (struct plan_channel){.peer = peer, .outgoing = outgoing, .mapped = mapped, .index = index};
	return channel;
}

uint64_t plan_block_offset(const struct plan *plan, uint64_t block)
{
	if (plan->offsets)
		return plan->offsets[block];
	uint64_t q = plan->elements / plan->blocks, r = plan->elements % plan->blocks;
	return block * q + (block < r ? block : r);
}

uint64_t plan_block_elements(const struct plan *plan, uint64_t block)
{
	if (plan->offsets)
		return block < plan->blocks ? plan->offsets[block + 1] - plan->offsets[block] : 0;
	return block < plan->blocks ? plan->elements / plan->blocks + (block < plan->elements % plan->blocks) : 0;
}

void plan_chunk_range(const struct plan *plan, uint64_t block, uint64_t chunk, uint64_t *offset, uint64_t *elements)
{
	uint64_t length = plan_block_elements(plan, block);
	/* The builder keeps chunks * chunk_elements far below 2^64. */
	uint64_t start = chunk * plan->chunk_elements;
	if (start > length)
		start = length;
	*offset = plan_block_offset(plan, block) + start;
	*elements = length - start < plan->chunk_elements ? length - start : plan->chunk_elements;
}

int64_t plan_affine_value(const struct plan_affine *affine, const uint64_t vars[PLAN_MAX_DEPTH])
{
	int64_t value = affine->base;
	for (int i = 0; i < PLAN_MAX_DEPTH; i++)
		value += (int64_t)affine->v[i] * (int64_t)vars[i];
	return value;
}

/* The remainder in 0..modulus-1, also for negative values; no division where none is needed. */
static uint64_t reduced(int64_t value, uint64_t modulus)
{
	if (value >= 0 && (uint64_t)value < modulus)
		return (uint64_t)value;
	int64_t m = (int64_t)modulus, rest = value % m;
	return (uint64_t)(rest < 0 ? rest + m : rest);
}

uint32_t plan_operand_block(const struct plan *plan, const struct plan_operand *operand, const uint64_t vars[PLAN_MAX_DEPTH])
{
	const struct plan_position *block = &operand->block;
	int64_t value = plan_affine_value(&block->first, vars);
	if (block->modulus)
		value += block->stride * (int64_t)reduced(plan_affine_value(&block->cycle, vars), block->modulus);
	if (plan->row_layers > 1)
		value += (int64_t)reduced(plan_affine_value(&operand->chunk, vars), plan->row_layers) * plan->row_stride;
	uint32_t position = (uint32_t)reduced(value, plan->row_starts ? (uint64_t)plan->rows * plan->row_width : plan->blocks);
	if (plan->row_starts) {
		const uint32_t *starts = &plan->row_starts[position / plan->row_width];
		position = starts[0] + position % plan->row_width;
		if (position >= starts[1])
			return plan->blocks;
	}
	return plan->order ? plan->order[position] : position;
}

uint64_t plan_operand_chunk(const struct plan *plan, const struct plan_operand *operand, const uint64_t vars[PLAN_MAX_DEPTH])
{
	int64_t value = plan_affine_value(&operand->chunk, vars);
	return reduced(plan->row_layers > 1 ? value / plan->row_layers : value, plan->chunks);
}

uint32_t plan_operand_slot(const struct plan *plan, const struct plan_operand *operand, const uint64_t vars[PLAN_MAX_DEPTH])
{
	return (uint32_t)reduced(plan_affine_value(&operand->slot, vars), operand->space == PLAN_WORK ? plan->work : plan->slots);
}

bool plan_operand_partial(const struct plan_operand *operand, const uint64_t vars[PLAN_MAX_DEPTH])
{
	return plan_affine_value(&operand->partial, vars) > 0;
}

bool plan_step_partial(const struct plan *plan, const struct plan_step *step, const uint64_t vars[PLAN_MAX_DEPTH])
{
	if (step->kind == PLAN_LEND)
		return plan_operand_partial(&plan->operands[step->sources], vars);
	if (step->kind != PLAN_PUT || step->keep)
		return plan_operand_partial(&plan->operands[step->destination], vars);
	return step->source_count > 1 || plan_operand_partial(&plan->operands[step->sources], vars);
}

bool plan_step_runs(const struct plan_step *step, const uint64_t vars[PLAN_MAX_DEPTH])
{
	int64_t value = plan_affine_value(&step->guard, vars);
	return value >= 0 && (step->every <= 1 || value % step->every == 0);
}

bool plan_reduces(const struct plan *plan)
{
	return plan->collective == PLAN_ALLREDUCE || plan->collective == PLAN_REDUCE_SCATTER || plan->collective == PLAN_ALLREDUCE_ORDERED ||
	       (plan->collective == PLAN_BARRIER && !plan->compact_input);
}

const char *plan_collective_name(enum plan_collective collective)
{
	static const char *const names[PLAN_COLLECTIVES] = {"allreduce", "reduce_scatter", "all_gather", "broadcast", "barrier", "allreduce_ordered"};
	return (unsigned)collective < PLAN_COLLECTIVES ? names[collective] : "unknown collective";
}

static enum st_status bad(const struct plan *plan, uint32_t step, const char *what)
{
	return st_fail(ST_ERR_INTERNAL, "plan of rank %u, step %u: %s", plan->rank, step, what);
}

uint32_t plan_layers(const struct plan *plan)
{
	return plan->leaves ? leaves_roots(plan->leaves, leaves_of_rank(plan->leaves, plan->size, plan->rank), NULL) : 1;
}

static enum st_status check_operand(const struct plan *plan, uint32_t layers, uint32_t at, uint32_t index, bool written)
{
	if (index >= plan->operand_count)
		return bad(plan, at, "no such operand");
	const struct plan_operand *operand = &plan->operands[index];
	if ((operand->span > 1 || operand->skip) && (plan->chunks != 1 || plan->order || plan->row_starts || operand->span > plan->blocks || operand->skip >= plan->blocks))
		return bad(plan, at, "spans blocks that are cut, in no order, or too few");
	static const struct plan_affine never;
	if (memcmp(&operand->partial, &never, sizeof never)) {
		if (!plan_reduces(plan))
			return bad(plan, at, "a partial sum where nothing is reduced");
		if ((operand->space == PLAN_INPUT && !plan->leaves) || ((operand->space == PLAN_OUTPUT || operand->space == PLAN_BORROWED) && plan->wide))
			return bad(plan, at, "a partial sum in a buffer of the caller");
	}
	if (operand->skip && operand->space != PLAN_SCRATCH)
		return bad(plan, at, "skips blocks where there is no slot");
	if (operand->space == PLAN_SCRATCH) {
		if (operand->channel >= plan->channel_count || plan->channels[operand->channel].outgoing)
			return bad(plan, at, "scratch of a channel that is not incoming");
	} else if (operand->space == PLAN_BORROWED) {
		if (operand->channel >= plan->channel_count || plan->channels[operand->channel].outgoing || !plan->channels[operand->channel].mapped)
			return bad(plan, at, "borrowed from a channel that is not incoming and mapped");
		if (written)
			return bad(plan, at, "writes to what is borrowed");
	} else if (operand->space == PLAN_INPUT) {
		if (written)
			return bad(plan, at, "writes to the input");
		if (operand->layer >= layers)
			return bad(plan, at, "no such layer of the input");
	} else if (operand->space == PLAN_WORK) {
		if (!plan->work || !plan->work_elements)
			return bad(plan, at, "work memory of a plan that has none");
	} else if (operand->space != PLAN_OUTPUT) {
		return bad(plan, at, "no such space");
	}
	return ST_OK;
}

enum st_status plan_check(const struct plan *plan)
{
	if (!plan->blocks || !plan->chunks || !plan->chunk_elements || !plan->slots || !plan->size || plan->rank >= plan->size)
		return st_fail(ST_ERR_INTERNAL, "plan of rank %u: no blocks, chunks, slots or ranks", plan->rank);
	if (plan->row_starts && (!plan->rows || !plan->row_width || plan->row_starts[0] || plan->row_starts[plan->rows] != plan->blocks))
		return st_fail(ST_ERR_INTERNAL, "plan of rank %u: %u rows do not hold %u blocks", plan->rank, plan->rows, plan->blocks);
	for (uint32_t r = 0; plan->row_starts && r < plan->rows; r++)
		if (plan->row_starts[r] > plan->row_starts[r + 1] || plan->row_starts[r + 1] - plan->row_starts[r] > plan->row_width)
			return st_fail(ST_ERR_INTERNAL, "plan of rank %u: row %u has blocks %u to %u, %u at most", plan->rank, r, plan->row_starts[r],
				       plan->row_starts[r + 1], plan->row_width);
	if ((plan->collective == PLAN_ALLREDUCE_ORDERED) != (plan->leaves != 0) || plan->leaves > LEAVES_MOST)
		return st_fail(ST_ERR_INTERNAL, "plan of rank %u: %s of %u leaves", plan->rank, plan_collective_name(plan->collective), plan->leaves);
	const uint32_t layers = plan_layers(plan);
	for (uint32_t b = 0; plan->order && b < plan->blocks; b++)
		if (plan->order[b] >= plan->blocks)
			return st_fail(ST_ERR_INTERNAL, "plan of rank %u: order names block %u of %u", plan->rank, plan->order[b], plan->blocks);
	for (uint32_t i = 0; i < plan->channel_count; i++) {
		const struct plan_channel *a = &plan->channels[i];
		if (a->peer >= plan->size || a->peer == plan->rank)
			return st_fail(ST_ERR_INTERNAL, "plan of rank %u, channel %u: leads to rank %u of %u", plan->rank, i, a->peer, plan->size);
		for (uint32_t j = 0; j < i; j++) {
			const struct plan_channel *b = &plan->channels[j];
			if (a->peer == b->peer && a->outgoing == b->outgoing && a->index == b->index)
				return st_fail(ST_ERR_INTERNAL, "plan of rank %u, channels %u and %u: the same", plan->rank, j, i);
		}
	}
	unsigned depth = 0;
	for (uint32_t i = 0; i < plan->step_count; i++) {
		const struct plan_step *step = &plan->steps[i];
		unsigned sources = 0;
		bool destination = false, incoming = false, outgoing = false;
		switch (step->kind) {
		case PLAN_LOOP:
			if (++depth > PLAN_MAX_DEPTH)
				return bad(plan, i, "loops nested too deep");
			if (step->count > INT32_MAX)
				return bad(plan, i, "a loop of more than 2^31 - 1 iterations");
			break;
		case PLAN_END:
			if (!depth--)
				return bad(plan, i, "end without loop");
			break;
		case PLAN_READY: incoming = destination = true; break;
		case PLAN_WAIT:
		case PLAN_RETURN: incoming = true; break;
		case PLAN_FLUSH: outgoing = true; break;
		case PLAN_LEND:
			outgoing = true;
			sources = step->source_count;
			break;
		case PLAN_PUT:
			outgoing = true;
			destination = step->keep;
			sources = step->source_count;
			break;
		case PLAN_REDUCE:
			destination = true;
			sources = step->source_count;
			break;
		case PLAN_COPY:
			destination = true;
			sources = step->source_count;
			break;
		default: return bad(plan, i, "no such kind of step");
		}
		if ((incoming || outgoing) && (step->channel >= plan->channel_count || plan->channels[step->channel].outgoing != outgoing))
			return bad(plan, i, incoming ? "the channel is not incoming" : "the channel is not outgoing");
		if ((step->kind == PLAN_PUT || step->kind == PLAN_REDUCE || step->kind == PLAN_COPY || step->kind == PLAN_LEND) && !sources)
			return bad(plan, i, "no source");
		if (sources > (step->kind == PLAN_COPY || step->kind == PLAN_LEND ? 1 : PLAN_MAX_SOURCES))
			return bad(plan, i, "too many sources");
		if ((step->kind == PLAN_LEND || step->kind == PLAN_RETURN) && !plan->channels[step->channel].mapped)
			return bad(plan, i, "lends on a channel that is not mapped");
		if (step->kind == PLAN_PUT && (sources > 1 || step->keep) && !plan->channels[step->channel].mapped)
			return bad(plan, i, "a put of several sources, or one that keeps, on a channel that is not mapped");
		for (unsigned s = 0; s < sources; s++)
			ST_TRY(check_operand(plan, layers, i, step->sources + s, false));
		if (step->kind == PLAN_LEND && plan->operands[step->sources].space != PLAN_INPUT && plan->operands[step->sources].space != PLAN_OUTPUT)
			return bad(plan, i, "lends what is no buffer of the caller");
		if (destination)
			ST_TRY(check_operand(plan, layers, i, step->destination, true));
		if (step->kind == PLAN_READY) {
			const struct plan_operand *granted = &plan->operands[step->destination];
			if (granted->space == PLAN_SCRATCH && granted->channel != step->channel)
				return bad(plan, i, "grants another channel's slot");
			if (granted->space == PLAN_WORK)
				return bad(plan, i, "grants work memory");
			if (granted->skip)
				return bad(plan, i, "grants a part of a slot");
			if (granted->space != PLAN_SCRATCH && plan->channels[step->channel].mapped)
				return bad(plan, i, "grants memory that the sender of a mapped channel does not map");
		}
	}
	if (depth)
		return bad(plan, plan->step_count, "loop without end");
	return ST_OK;
}
