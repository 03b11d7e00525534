/* Plans changed in one small way each: for tests of the verifier, which is to refuse them. */
#ifndef SYNCTRAIN_TESTS_PLAN_MUTATIONS_H
#define SYNCTRAIN_TESTS_PLAN_MUTATIONS_H

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "libcomm/plan.h"

#define MAX_RANKS 9
#define REPEATS 2 /* operations, one after the other */

enum mutation {
	DROP, DOUBLE, SWAP, TO_BODY_START, TO_BODY_END, FLUSH_WEAKER, SLOTS_FEWER, SLOT_SHIFTED, SLOT_STRIDE, WRONG_BLOCK, WRONG_CHUNK,
	WRONG_CHANNEL, WRONG_SPACE, WORK_SHIFTED, WORK_FEWER, LOOP_LONGER, LOOP_SHORTER, GUARD_GONE, GUARD_LATER, GUARD_EARLIER, KEEP_GONE, WRONG_SPAN, PARTIAL_MORE,
	PARTIAL_LESS, WRONG_LAYER, OPERANDS_SWAPPED, MUTATIONS
};
static const char *const mutation_names[MUTATIONS] = {
	"step dropped", "step doubled", "steps swapped", "wait, put, lend, return or flush moved to the start of its loop", "grant, return or flush moved to the end of its loop",
	"flush weakened", "slots one fewer", "slot shifted by one", "slot stride changed", "wrong block", "wrong chunk", "wrong channel",
	"wrong space", "work slot shifted by one", "work slots one fewer", "loop one longer", "loop one shorter", "guard removed", "guard one later", "guard one earlier", "copy dropped", "wrong span",
	"taken for a partial sum", "not taken for a partial sum", "another root", "operands of a sum swapped"};

static inline bool same_step(const struct plan_step *a, const struct plan_step *b)
{
	return !memcmp(a, b, sizeof *a);
}

static inline struct plan_operand *operand_of(const struct plan *plan, const struct plan_step *step, unsigned which)
{
	bool to = step->kind == PLAN_READY || step->kind == PLAN_REDUCE || step->kind == PLAN_COPY || (step->kind == PLAN_PUT && step->keep);
	if (to && !which--)
		return &plan->operands[step->destination];
	return which < step->source_count ? &plan->operands[step->sources + which] : NULL;
}

static inline void move_step(struct plan *plan, uint32_t from, uint32_t to)
{
	struct plan_step step = plan->steps[from];
	if (from > to)
		memmove(&plan->steps[to + 1], &plan->steps[to], (from - to) * sizeof step);
	else
		memmove(&plan->steps[from], &plan->steps[from + 1], (to - from) * sizeof step);
	plan->steps[to] = step;
}

static inline bool has_slots(const struct plan_operand *operand)
{
	return operand->space == PLAN_SCRATCH || operand->space == PLAN_BORROWED;
}

/* False when the mutation does not apply here or changes nothing. */
static inline bool mutate(struct plan *plan, enum mutation mutation, uint32_t at, unsigned which)
{
	struct plan_step *step = &plan->steps[at], copy = *step;
	struct plan_operand *operand = operand_of(plan, step, which), swapped;
	static const struct plan_affine always;
	bool guarded = memcmp(&step->guard, &always, sizeof always);
	bool loop = step->kind == PLAN_LOOP || step->kind == PLAN_END;
	uint32_t start = at, end = at;
	switch (mutation) {
	case DROP:
		if (which)
			return false;
		move_step(plan, at, plan->step_count - 1);
		plan->step_count--;
		return true;
	case DOUBLE:
		if (which || !plan_add_step(plan, PLAN_END))
			return false;
		plan->steps[plan->step_count - 1] = copy;
		move_step(plan, plan->step_count - 1, at);
		return true;
	case SWAP:
		if (which || at + 1 >= plan->step_count || same_step(step, step + 1))
			return false;
		move_step(plan, at, at + 1);
		return true;
	case TO_BODY_START:
	case TO_BODY_END:
		if (which || loop)
			return false;
		if (mutation == TO_BODY_START ? step->kind == PLAN_READY || step->kind > PLAN_WAIT
					      : step->kind != PLAN_READY && step->kind != PLAN_FLUSH && step->kind != PLAN_RETURN)
			return false;
		while (start > 0 && plan->steps[start - 1].kind != PLAN_LOOP && plan->steps[start - 1].kind != PLAN_END)
			start--;
		while (end + 1 < plan->step_count && plan->steps[end + 1].kind != PLAN_LOOP && plan->steps[end + 1].kind != PLAN_END)
			end++;
		end = mutation == TO_BODY_START ? start : end;
		if (end == at || end + 1 == at || end == at + 1) /* those are swaps */
			return false;
		move_step(plan, at, end);
		return true;
	case FLUSH_WEAKER:
		if (which || step->kind != PLAN_FLUSH)
			return false;
		step->count++;
		return true;
	case SLOTS_FEWER:
		if (which || at || plan->slots < 2)
			return false;
		for (uint32_t i = 0; i < plan->step_count; i++)
			for (unsigned o = 0; operand_of(plan, &plan->steps[i], o); o++)
				if (has_slots(operand_of(plan, &plan->steps[i], o))) {
					plan->slots--;
					return true;
				}
		return false;
	case SLOT_SHIFTED:
		if (!operand || !has_slots(operand) || plan->slots < 2)
			return false;
		operand->slot.base++;
		return true;
	case SLOT_STRIDE:
		if (!operand || !has_slots(operand) || plan->slots < 2)
			return false;
		for (int d = PLAN_MAX_DEPTH - 1; d >= 0; d--)
			if (operand->slot.v[d]) {
				operand->slot.v[d]--;
				return true;
			}
		return false;
	case WRONG_BLOCK:
		if (!operand || plan->blocks < 2)
			return false;
		operand->block.first.base++;
		return true;
	case WRONG_CHUNK:
		if (!operand || plan->chunks < 2)
			return false;
		operand->chunk.base++;
		return true;
	case WRONG_CHANNEL:
		if (which || loop || plan->channel_count < 2 || step->kind > PLAN_WAIT)
			return false;
		step->channel = (uint16_t)((step->channel + 1) % plan->channel_count);
		return true;
	case WRONG_SPACE:
		if (!operand || plan->in_place)
			return false;
		operand->space = operand->space == PLAN_INPUT ? PLAN_OUTPUT : PLAN_INPUT;
		return true;
	case WORK_SHIFTED:
		if (!operand || operand->space != PLAN_WORK || plan->work < 2)
			return false;
		operand->slot.base++;
		return true;
	case WORK_FEWER:
		if (which || at || !plan->work)
			return false;
		plan->work--;
		return true;
	case LOOP_LONGER:
		if (which || step->kind != PLAN_LOOP)
			return false;
		step->count++;
		return true;
	case LOOP_SHORTER:
		if (which || step->kind != PLAN_LOOP || !step->count)
			return false;
		step->count--;
		return true;
	case GUARD_GONE:
		if (which || !guarded)
			return false;
		step->guard = always;
		return true;
	case GUARD_LATER:
		if (which || !guarded)
			return false;
		step->guard.base++;
		return true;
	case GUARD_EARLIER:
		if (which || !guarded)
			return false;
		step->guard.base--;
		return true;
	case KEEP_GONE:
		if (which || (!step->keep && !step->copied))
			return false;
		step->keep = step->copied = false;
		return true;
	case WRONG_SPAN:
		if (!operand || plan->chunks != 1 || plan->order)
			return false;
		operand->span = operand->span > 1 ? operand->span - 1 : 2;
		return true;
	case PARTIAL_MORE:
		if (!operand || operand->space == PLAN_INPUT)
			return false;
		operand->partial.base++;
		return true;
	case PARTIAL_LESS:
		if (!operand || operand->space == PLAN_INPUT)
			return false;
		operand->partial.base--;
		return true;
	case WRONG_LAYER:
		if (!operand || operand->space != PLAN_INPUT || !plan->leaves)
			return false;
		operand->layer = operand->layer ? operand->layer - 1 : 1;
		return true;
	case OPERANDS_SWAPPED:
		if (which || step->kind != PLAN_REDUCE || !plan->leaves)
			return false;
		swapped = plan->operands[step->sources];
		plan->operands[step->sources] = plan->operands[step->sources + 1];
		plan->operands[step->sources + 1] = swapped;
		return true;
	case MUTATIONS: break;
	}
	return false;
}

/* ---- plans to change ---------------------------------------------------------------------------------------------------- */

static struct plan *plans[MAX_RANKS];

static inline bool is_mapped(const void *context, uint32_t sender, uint32_t receiver)
{
	unsigned mapped = *(const unsigned *)context;
	(void)receiver;
	return mapped == 1 || (mapped == 2 && sender % 2);
}

struct algorithm {
	enum st_status (*build)(const struct plan_shape *shape, struct plan **plan);
	unsigned collectives; /* mask of 1 << enum plan_collective */
	uint32_t least_slots; /* broadcast: 1 */
	bool wide;            /* may be */
};

static inline void build_with(const struct algorithm *algorithm, struct plan_shape shape, unsigned mapped)
{
	/* 2, 3, 2, ... ranks per node. */
	static uint32_t starts[MAX_RANKS + 1]; /* plans borrow it */
	for (uint32_t at = 0; at < shape.size; at += 2 + (shape.node_count++ % 2))
		starts[shape.node_count] = at;
	starts[shape.node_count] = shape.size;
	shape.node_starts = starts;
	if (algorithm->build == plan_build_direct)
		mapped = 1;
	shape.mapped = is_mapped;
	shape.mapped_context = &mapped;
	for (uint32_t p = 0; p < shape.size; p++) {
		shape.rank = p;
		REQUIRE(algorithm->build(&shape, &plans[p]) == ST_OK);
	}
}

static inline void free_plans(uint32_t size)
{
	for (uint32_t p = 0; p < size; p++)
		plan_free(plans[p]);
}

static inline void show(const struct plan *plan)
{
	static char text[1 << 16];
	plan_print(plan, text, sizeof text);
	fputs(text, stderr);
}

#endif
