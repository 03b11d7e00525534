#include "plan_build.h"

#include <stdlib.h>

uint64_t build_divide_up(uint64_t a, uint64_t b)
{
	return a / b + (a % b != 0);
}

static enum st_status check_order(const char *name, const struct plan_shape *shape)
{
	if (shape->position) {
		/* Both are the caller's, made once for many plans: looked at where this plan needs them. */
		uint32_t at = shape->position[shape->rank];
		if (!shape->order || at >= shape->size || shape->order[at] != shape->rank)
			return st_fail(ST_ERR_USAGE, "%s plan: rank %u is not where its position says", name, shape->rank);
		return ST_OK;
	}
	if (!shape->order)
		return ST_OK;
	uint8_t *seen = calloc(shape->size, 1);
	if (!seen)
		return st_fail(ST_ERR_NOMEM, "%s plan: out of memory", name);
	enum st_status status = ST_OK;
	for (uint32_t i = 0; i < shape->size && status == ST_OK; i++) {
		if (shape->order[i] >= shape->size || seen[shape->order[i]])
			status = st_fail(ST_ERR_USAGE, "%s plan: order is no permutation: position %u has rank %u", name, i, shape->order[i]);
		else
			seen[shape->order[i]] = 1;
	}
	free(seen);
	return status;
}

static enum st_status check_shape(const char *name, const struct plan_shape *shape, uint32_t least_slots)
{
	if (!shape->size || shape->rank >= shape->size || shape->size > (1u << 20))
		return st_fail(ST_ERR_USAGE, "%s plan: rank %u of %u ranks", name, shape->rank, shape->size);
	if (!shape->chunk_elements || shape->chunk_elements > (UINT64_C(1) << 40))
		return st_fail(ST_ERR_USAGE, "%s plan: chunks of %ju elements", name, (uintmax_t)shape->chunk_elements);
	if (shape->slots < least_slots || shape->slots > 1024)
		return st_fail(ST_ERR_USAGE, "%s plan: %u slots, expected %u to 1024", name, shape->slots, least_slots);
	if (shape->elements > (UINT64_C(1) << 60))
		return st_fail(ST_ERR_USAGE, "%s plan: %ju elements", name, (uintmax_t)shape->elements);
	switch (shape->collective) {
	case PLAN_REDUCE_SCATTER:
	case PLAN_ALL_GATHER:
		if (!shape->offsets && shape->elements % shape->size)
			return st_fail(ST_ERR_USAGE, "%s plan: %ju elements are not the same for each of %u ranks", name,
				       (uintmax_t)shape->elements, shape->size);
		break;
	case PLAN_BROADCAST:
		if (shape->root >= shape->size)
			return st_fail(ST_ERR_USAGE, "%s plan: root %u of %u ranks", name, shape->root, shape->size);
		break;
	case PLAN_ALLREDUCE:
	case PLAN_ALLREDUCE_ORDERED: break;
	case PLAN_BARRIER:
		if (shape->elements)
			return st_fail(ST_ERR_USAGE, "%s plan: a barrier of %ju elements", name, (uintmax_t)shape->elements);
		break;
	default: return st_fail(ST_ERR_USAGE, "%s plan: no such collective: %d", name, (int)shape->collective);
	}
	if (shape->offsets && shape->collective != PLAN_REDUCE_SCATTER && shape->collective != PLAN_ALL_GATHER)
		return st_fail(ST_ERR_USAGE, "%s plan: shards of given sizes for %s", name, plan_collective_name(shape->collective));
	/* The others' shards were measured by the caller: a look at each would take time by the number of ranks. */
	if (shape->offsets && (shape->offsets[0] || shape->offsets[shape->size] != shape->elements ||
			       shape->offsets[shape->rank] > shape->offsets[shape->rank + 1] ||
			       shape->offsets[shape->rank + 1] - shape->offsets[shape->rank] > shape->longest || shape->longest > shape->elements))
		return st_fail(ST_ERR_USAGE, "%s plan: the shard of rank %u does not fit into %ju elements, the longest of %ju", name, shape->rank,
			       (uintmax_t)shape->elements, (uintmax_t)shape->longest);
	return check_order(name, shape);
}

static uint32_t position_of(const struct plan_shape *shape, uint32_t rank)
{
	if (shape->position)
		return shape->position[rank];
	for (uint32_t i = 0; shape->order && i < shape->size; i++)
		if (shape->order[i] == rank)
			return i;
	return rank;
}

enum st_status build_start(struct build *build, const char *name, const struct plan_shape *shape, uint32_t least_slots, uint32_t blocks,
			   uint64_t multiple)
{
	ST_TRY(check_shape(name, shape, least_slots));
	struct plan *made = plan_new();
	if (!made)
		return st_fail(ST_ERR_NOMEM, "%s plan: out of memory", name);
	*build = (struct build){.name = name, .shape = shape, .plan = made};
	made->collective = shape->collective;
	made->rank = shape->rank;
	made->size = shape->size;
	made->elements = shape->elements;
	made->slots = shape->slots;
	made->root = shape->root;
	made->leaves = shape->collective == PLAN_ALLREDUCE_ORDERED ? shape->leaves : 0;
	made->blocks = blocks;
	made->offsets = shape->offsets;
	made->wide = shape->wide;
	made->compact_input = shape->collective == PLAN_ALL_GATHER || (shape->collective == PLAN_BARRIER && blocks > 1);
	made->compact_output = shape->collective == PLAN_REDUCE_SCATTER;
	made->in_place = shape->in_place || shape->collective == PLAN_BROADCAST || shape->collective == PLAN_BARRIER;

	/* Equal chunks rather than full ones and a rest; whole cache lines of 4-byte elements. */
	uint64_t longest = build_longest(build);
	uint64_t pieces = build_divide_up(longest, shape->chunk_elements);
	made->chunks = pieces ? build_divide_up(pieces, multiple) * multiple : multiple;
	made->chunk_elements = longest ? build_divide_up(longest, made->chunks) : 1;
	uint64_t rounded = build_divide_up(made->chunk_elements, 16) * 16;
	if (rounded <= shape->chunk_elements)
		made->chunk_elements = rounded;
	if (made->chunks > INT32_MAX / 4) {
		plan_free(made);
		return st_fail(ST_ERR_USAGE, "%s plan: %ju elements in chunks of %ju are too many chunks", name, (uintmax_t)shape->elements,
			       (uintmax_t)shape->chunk_elements);
	}
	build->position = position_of(shape, shape->rank);
	build->root_position = shape->collective == PLAN_BROADCAST ? position_of(shape, shape->root) : 0;
	return ST_OK;
}

enum st_status build_not_wide(const char *name, const struct plan_shape *shape)
{
	if (shape->wide)
		return st_fail(ST_ERR_USAGE, "%s plan: wide partial sums have no place in the output", name);
	return ST_OK;
}

void build_work(struct build *build, uint32_t slots)
{
	if (!build->plan->wide)
		return;
	build->plan->work = slots;
	build->plan->work_elements = build->plan->chunk_elements;
}

uint64_t build_longest(const struct build *build)
{
	return build->plan->offsets ? build->shape->longest : plan_block_elements(build->plan, 0);
}

enum st_status build_finish(struct build *build, struct plan **plan)
{
	if (build->failed) {
		plan_free(build->plan);
		return st_fail(ST_ERR_NOMEM, "%s plan: out of memory", build->name);
	}
	plan_trim(build->plan);
	*plan = build->plan;
	return ST_OK;
}

uint32_t build_rank_at(const struct build *build, uint32_t position)
{
	return build->shape->order ? build->shape->order[position] : position;
}

uint16_t build_channel(struct build *build, uint32_t peer, bool outgoing, uint16_t index)
{
	const struct plan_shape *shape = build->shape;
	uint32_t sender = outgoing ? shape->rank : peer, receiver = outgoing ? peer : shape->rank;
	bool mapped = shape->mapped && shape->mapped(shape->mapped_context, sender, receiver);
	if (!plan_add_channel(build->plan, peer, outgoing, mapped, index)) {
		build->failed = true;
		return 0;
	}
	return (uint16_t)(build->plan->channel_count - 1);
}

bool build_is_mapped(const struct build *build, uint16_t channel)
{
	return channel < build->plan->channel_count && build->plan->channels[channel].mapped;
}

static struct plan_step *add(struct build *build, enum plan_step_kind kind, uint16_t channel)
{
	struct plan_step *step = plan_add_step(build->plan, kind);
	if (!step) {
		build->failed = true;
		return &build->nowhere;
	}
	step->channel = channel;
	return step;
}

void build_source(struct build *build, struct plan_step *step, struct plan_operand source)
{
	build->failed |= !plan_add_source(build->plan, step, &source);
}

static void set_destination(struct build *build, struct plan_step *step, struct plan_operand destination)
{
	build->failed |= !plan_set_destination(build->plan, step, &destination);
}

void build_keep(struct build *build, struct plan_step *step, struct plan_operand destination)
{
	step->keep = true;
	set_destination(build, step, destination);
}

void build_loop(struct build *build, uint64_t count)
{
	add(build, PLAN_LOOP, 0)->count = count;
}

void build_end(struct build *build)
{
	add(build, PLAN_END, 0);
}

void build_rounds(struct build *build, uint64_t count)
{
	if (count > 1)
		build_loop(build, count);
}

void build_rounds_end(struct build *build, uint64_t count)
{
	if (count > 1)
		build_end(build);
}

struct plan_step *build_ready(struct build *build, uint16_t channel, struct plan_operand destination)
{
	struct plan_step *step = add(build, PLAN_READY, channel);
	set_destination(build, step, destination);
	return step;
}

struct plan_step *build_put(struct build *build, uint16_t channel, struct plan_operand source)
{
	struct plan_step *step = add(build, PLAN_PUT, channel);
	build_source(build, step, source);
	return step;
}

struct plan_step *build_wait(struct build *build, uint16_t channel)
{
	return add(build, PLAN_WAIT, channel);
}

struct plan_step *build_lend(struct build *build, uint16_t channel, struct plan_operand source, bool copied)
{
	struct plan_step *step = add(build, PLAN_LEND, channel);
	step->copied = copied;
	build_source(build, step, source);
	return step;
}

struct plan_step *build_return(struct build *build, uint16_t channel)
{
	return add(build, PLAN_RETURN, channel);
}

struct plan_step *build_flush_lends(struct build *build, uint16_t channel, uint64_t pending)
{
	struct plan_step *step = add(build, PLAN_FLUSH, channel);
	step->count = pending;
	return step;
}

struct plan_step *build_flush(struct build *build, uint16_t channel, int64_t pending)
{
	if (build_is_mapped(build, channel))
		return NULL;
	struct plan_step *step = add(build, PLAN_FLUSH, channel);
	step->count = (uint64_t)pending;
	return step;
}

struct plan_step *build_reduce(struct build *build, struct plan_operand destination, struct plan_operand a, struct plan_operand b)
{
	struct plan_step *step = add(build, PLAN_REDUCE, 0);
	set_destination(build, step, destination);
	build_source(build, step, a);
	build_source(build, step, b);
	return step;
}

struct plan_step *build_copy(struct build *build, struct plan_operand destination, struct plan_operand source)
{
	struct plan_step *step = add(build, PLAN_COPY, 0);
	set_destination(build, step, destination);
	build_source(build, step, source);
	return step;
}

void build_alone(struct build *build)
{
	if (build->plan->in_place)
		return;
	const struct plan_operand output = {.space = PLAN_OUTPUT, .chunk.v[1] = 1, .block.first.v[0] = 1};
	struct plan_operand input = output;
	input.space = PLAN_INPUT;
	build_loop(build, build->plan->blocks);
	build_loop(build, build->plan->chunks);
	build_copy(build, output, input);
	build_end(build);
	build_end(build);
}
