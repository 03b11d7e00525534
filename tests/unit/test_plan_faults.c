/*
 * The verifier refuses plans with faults that people make, each for its reason: a flush, grant, wait or return lost or doubled, a slot used again too
 * early, a sum taken for an input, memory written while it is lent, a channel that leads nowhere, ranks that wait in a circle.
 */
#include "plan_mutations.h"

static void build(struct plan_shape shape, unsigned mapped)
{
	static const struct algorithm ring = {.build = plan_build_ring};
	build_with(&ring, shape, mapped);
}

static struct plan *mutant_of(struct plan_shape shape, unsigned mapped, uint32_t victim)
{
	build(shape, mapped);
	return plans[victim];
}

static uint32_t find(const struct plan *plan, enum plan_step_kind kind, unsigned number)
{
	for (uint32_t i = 0; i < plan->step_count; i++)
		if (plan->steps[i].kind == kind && !number--)
			return i;
	REQUIRE(!"no such step");
	return 0;
}

static void must_refuse(uint32_t size, const char *what, const char *reason)
{
	enum st_status status = plan_verify((const struct plan *const *)plans, size, REPEATS);
	if (status != ST_ERR_INTERNAL || !strstr(st_message(), reason)) {
		fprintf(stderr, "%s: expected to be refused because '%s', got '%s'\n", what, reason, status == ST_OK ? "accepted" : st_message());
		show(plans[0]);
		exit(1);
	}
	free_plans(size);
}

static struct plan *direct_mutant_of(struct plan_shape shape, uint32_t victim)
{
	static const struct algorithm direct = {.build = plan_build_direct};
	build_with(&direct, shape, 1);
	return plans[victim];
}

static void known_faults_of_lends(void)
{
	/* One round; rounds of four chunks, in place and not. */
	const struct plan_shape few = {.collective = PLAN_ALLREDUCE, .size = 4, .slots = 4, .chunk_elements = 1024, .elements = 64};
	const struct plan_shape sum = {.collective = PLAN_ALLREDUCE, .size = 4, .slots = 4, .chunk_elements = 16, .elements = 16 * 4 * 4};
	struct plan_shape in_place = sum, few_in_place = few;
	in_place.in_place = few_in_place.in_place = true;
	struct plan *plan;

	plan = direct_mutant_of(sum, 1);
	mutate(plan, DROP, find(plan, PLAN_WAIT, 0), 0);
	must_refuse(4, "read before it was lent", "is read while it is not borrowed");

	plan = direct_mutant_of(sum, 1);
	mutate(plan, TO_BODY_START, find(plan, PLAN_RETURN, 2), 0);
	must_refuse(4, "returned before it was lent", "returns what it has not borrowed");

	plan = direct_mutant_of(few, 1);
	move_step(plan, find(plan, PLAN_RETURN, 0), find(plan, PLAN_REDUCE, 0));
	must_refuse(4, "returned before it was read", "is returned before its value was used");

	/* In place the results overwrite what is lent: a first flush too weak, and one lost. */
	plan = direct_mutant_of(in_place, 1);
	for (uint32_t i = 0; i + 1 < plan->step_count; i++)
		if (plan->steps[i].kind == PLAN_FLUSH && plan->steps[i].count)
			plan->steps[i].count += 100;
	must_refuse(4, "written while it is lent", "is written while it is still being put or lent");

	plan = direct_mutant_of(few_in_place, 2);
	mutate(plan, KEEP_GONE, find(plan, PLAN_LEND, 0), 0);
	must_refuse(4, "a source written that is no copy", "is written while it is still being put or lent");

	plan = direct_mutant_of(sum, 1);
	plan->step_count--; /* the last flush */
	must_refuse(4, "the end without a flush", "puts or lends were not flushed");

	plan = direct_mutant_of(few, 1);
	plan->step_count--; /* the last return */
	must_refuse(4, "not returned", "lends were not returned");

	plan = direct_mutant_of(few, 1);
	mutate(plan, DOUBLE, find(plan, PLAN_LEND, 0), 0);
	must_refuse(4, "lent twice", "waits for a put of operation");

	/* In the last operation nobody comes to wait for it. */
	direct_mutant_of(few, 1);
	mutate(plans[1], DOUBLE, find(plans[1], PLAN_LEND, 0), 0);
	REQUIRE(plan_verify((const struct plan *const *)plans, 4, 1) == ST_ERR_INTERNAL && strstr(st_message(), "lends were not waited for"));
	free_plans(4);

	plan = direct_mutant_of(sum, 1);
	mutate(plan, SLOT_SHIFTED, find(plan, PLAN_REDUCE, 0), 1);
	must_refuse(4, "another lend", "is read while it is not borrowed");

	plan = direct_mutant_of(sum, 3);
	mutate(plan, WRONG_BLOCK, find(plan, PLAN_LEND, 0), 0);
	must_refuse(4, "another block lent", "does not hold every input exactly once");

	/* Nobody returns any before four are out. */
	direct_mutant_of(sum, 1);
	for (uint32_t r = 0; r < 4; r++)
		plans[r]->slots = 1;
	must_refuse(4, "one slot where two are lent ahead", "deadlock: waits for a return");

	plan = direct_mutant_of(sum, 1);
	plan->slots--;
	must_refuse(4, "slots of one end only", "lends are counted by");

	plan = direct_mutant_of(sum, 1);
	for (uint32_t i = 0; i < plan->channel_count; i++)
		plan->channels[i].mapped = false;
	must_refuse(4, "lent on a channel that is not mapped", "not mapped");

	plan = direct_mutant_of(sum, 1);
	plan->operands[plan->steps[find(plan, PLAN_COPY, 0)].destination].space = PLAN_BORROWED;
	must_refuse(4, "written to what is borrowed", "borrowed");

	plan = direct_mutant_of(sum, 1);
	plan->operands[plan->steps[find(plan, PLAN_LEND, 0)].sources] = plan->operands[plan->steps[find(plan, PLAN_COPY, 0)].sources];
	must_refuse(4, "lent on", "lends what is no buffer of the caller");
}

static void known_faults(void)
{
	const struct plan_shape sum = {.collective = PLAN_ALLREDUCE, .size = 4, .slots = 4, .chunk_elements = 16, .elements = 16 * 4 * 4};
	const struct plan_shape cast = {.collective = PLAN_BROADCAST, .size = 4, .slots = 2, .chunk_elements = 16, .elements = 16 * 8};
	struct plan_shape in_place = sum;
	in_place.in_place = true;
	struct plan *plan;

	plan = mutant_of(sum, 0, 1);
	mutate(plan, DROP, find(plan, PLAN_FLUSH, 0), 0);
	must_refuse(4, "slot granted while it is still being put", "is granted while it is still being put");

	plan = mutant_of(sum, 0, 1);
	plan->step_count--; /* the last flush */
	must_refuse(4, "last flush lost", "were not flushed");

	plan = mutant_of(in_place, 0, 2);
	for (uint32_t i = 0; i < plan->step_count; i++)
		if (plan->steps[i].kind == PLAN_FLUSH && i + 1 < plan->step_count)
			plan->steps[i].count += 100;
	must_refuse(4, "in place without waiting for the first puts", "is granted while it is still being put");

	plan = mutant_of(sum, 1, 0);
	mutate(plan, DROP, find(plan, PLAN_READY, 0), 0);
	must_refuse(4, "a grant lost", "");

	plan = mutant_of(sum, 1, 0);
	mutate(plan, DOUBLE, find(plan, PLAN_READY, 0), 0);
	must_refuse(4, "a grant doubled", "is granted twice");

	plan = mutant_of(sum, 1, 3);
	mutate(plan, DROP, find(plan, PLAN_WAIT, 0), 0);
	must_refuse(4, "a wait lost", "is read while it is granted away");

	plan = mutant_of(sum, 1, 3);
	mutate(plan, WRONG_BLOCK, find(plan, PLAN_PUT, 1), 1);
	must_refuse(4, "a wrong block reduced", "does not hold every input exactly once");

	plan = mutant_of(sum, 0, 3);
	mutate(plan, DOUBLE, find(plan, PLAN_REDUCE, 0), 0);
	must_refuse(4, "a sum taken for an input", "is a partial sum and is read as something else");

	plan = mutant_of(sum, 0, 3);
	mutate(plan, DOUBLE, find(plan, PLAN_REDUCE, 0), 0);
	struct plan_step *again = &plan->steps[find(plan, PLAN_REDUCE, 1)];
	struct plan_operand sum_so_far = plan->operands[again->sources], own = plan->operands[again->sources + 1];
	sum_so_far.partial.base = 1;
	again->source_count = 0;
	REQUIRE(plan_add_source(plan, again, &sum_so_far) && plan_add_source(plan, again, &own));
	must_refuse(4, "added twice", "exactly once");

	plan = mutant_of(sum, 0, 3);
	mutate(plan, DROP, find(plan, PLAN_REDUCE, 0), 0);
	must_refuse(4, "an input taken for a sum", "is read as a partial sum and is none");

	plan = mutant_of(sum, 0, 3);
	plan->steps[find(plan, PLAN_REDUCE, 0)].source_count = 1;
	must_refuse(4, "not added", "exactly once");

	plan = mutant_of(sum, 0, 3);
	mutate(plan, PARTIAL_LESS, find(plan, PLAN_READY, 1), 0);
	must_refuse(4, "too little granted for a partial sum", "a partial sum is put where none is granted");

	plan = mutant_of(sum, 1, 3);
	mutate(plan, PARTIAL_MORE, find(plan, PLAN_READY, 0), 0);
	must_refuse(4, "an input where a partial sum is granted", "a partial sum is granted and something else put");

	plan = mutant_of(sum, 1, 3);
	struct plan_step *early = &plan->steps[find(plan, PLAN_PUT, 1)];
	early->keep = true;
	struct plan_operand result = plan->operands[early->sources + 1];
	result.space = PLAN_OUTPUT;
	REQUIRE(plan_set_destination(plan, early, &result));
	must_refuse(4, "rounded and divided too early", "is finished but does not hold every input exactly once");

	plan = mutant_of(sum, 0, 3);
	plan->operands[plan->steps[find(plan, PLAN_REDUCE, 1)].destination].partial.base = 1;
	must_refuse(4, "a partial sum read from the output as a result", "is a partial sum and is read as something else");

	struct plan_shape scatter = {.collective = PLAN_REDUCE_SCATTER, .size = 4, .slots = 4, .chunk_elements = 16, .elements = 16 * 4 * 4};
	plan = mutant_of(scatter, 0, 3);
	plan->operands[plan->steps[find(plan, PLAN_REDUCE, 1)].destination].partial.base = 1;
	must_refuse(4, "a partial sum left in the output", "holds a partial sum");

	scatter.wide = true;
	plan = mutant_of(scatter, 0, 3);
	plan->operands[plan->steps[find(plan, PLAN_REDUCE, 1)].destination].partial.base = 1;
	must_refuse(4, "a wide partial sum stored to the output", "a partial sum in a buffer of the caller");

	plan = mutant_of(scatter, 0, 3);
	plan->wide = false;
	must_refuse(4, "wide on three of four ranks", "plans of different shapes");

	plan = mutant_of(sum, 1, 0);
	for (uint32_t i = 0; i < plan->step_count; i++)
		for (unsigned o = 0; operand_of(plan, &plan->steps[i], o); o++)
			if (operand_of(plan, &plan->steps[i], o)->space == PLAN_SCRATCH) {
				struct plan_affine *slot = &operand_of(plan, &plan->steps[i], o)->slot;
				memset(slot, 0, sizeof *slot);
			}
	must_refuse(4, "one slot for all", "is granted twice");

	/* As many chunks in flight as slots: everybody waits for the slot that the next rank frees only later. */
	mutant_of(sum, 1, 0);
	for (uint32_t r = 0; r < 4; r++)
		plans[r]->slots = 2;
	must_refuse(4, "slots used up", "");

	plan = mutant_of(sum, 1, 0);
	plan->channels[1].index = 3;
	must_refuse(4, "a channel that leads nowhere", "has no other end");

	plan = mutant_of(sum, 1, 0);
	plan->channels[0].mapped = plan->channels[1].mapped = false;
	must_refuse(4, "mapped at one end", "");

	plan = mutant_of(cast, 0, 2);
	mutate(plan, SWAP, find(plan, PLAN_WAIT, 0), 0);
	must_refuse(4, "passed on before it came", "is read while it is granted away");

	plan = mutant_of(cast, 1, 1);
	mutate(plan, GUARD_GONE, find(plan, PLAN_READY, 1), 0);
	must_refuse(4, "grants that nobody uses", "");

	/* Equal lengths: only the contents tell. */
	plan = mutant_of(cast, 0, 1);
	for (uint32_t i = 0; i < plan->step_count; i++)
		if (plan->steps[i].kind == PLAN_READY)
			plan->operands[plan->steps[i].destination].chunk.base++;
	must_refuse(4, "lands in another chunk's place", "");

	struct plan_shape uneven = sum;
	uneven.elements = 4 * 9 + 1;
	plan = mutant_of(uneven, 1, 2);
	mutate(plan, WRONG_BLOCK, find(plan, PLAN_READY, 0), 0);
	must_refuse(4, "a grant of another length", "are granted");

	plan = mutant_of(sum, 1, 0);
	mutate(plan, LOOP_LONGER, find(plan, PLAN_LOOP, 2), 0);
	must_refuse(4, "a round too many", "");

	/* Ranks 0 and 2 meet before their neighbours do: every leaf is in it once, but in another tree. */
	struct plan_shape ordered = {.collective = PLAN_ALLREDUCE_ORDERED, .size = 4, .slots = 2, .chunk_elements = 16, .elements = 64, .leaves = 4};
	const struct algorithm ordered_builder = {.build = plan_build_ordered};
	build_with(&ordered_builder, ordered, 1);
	for (uint32_t r = 0; r < 4; r++) {
		plans[r]->rank = r == 1 || r == 2 ? 3 - r : r;
		for (uint32_t i = 0; i < plans[r]->channel_count; i++)
			if (plans[r]->channels[i].peer == 1 || plans[r]->channels[i].peer == 2)
				plans[r]->channels[i].peer = 3 - plans[r]->channels[i].peer;
	}
	plan = plans[1];
	plans[1] = plans[2];
	plans[2] = plan;
	must_refuse(4, "the wrong partner first", "which are not the halves of a node");

	build_with(&ordered_builder, ordered, 0);
	mutate(plans[1], OPERANDS_SWAPPED, find(plans[1], PLAN_REDUCE, 0), 0);
	must_refuse(4, "right before left", "adds leaves 1..1 and 0..0, which are not the halves of a node");

	build_with(&ordered_builder, ordered, 0);
	mutate(plans[0], WRONG_BLOCK, find(plans[0], PLAN_REDUCE, 0), 1);
	must_refuse(4, "another block's sum", "is no sum of leaves of block");

	ordered.leaves = 6; /* 1, 2, 1 and 2 on a rank */
	build_with(&ordered_builder, ordered, 0);
	mutate(plans[1], WRONG_LAYER, find(plans[1], PLAN_PUT, 0), 0);
	must_refuse(4, "another root", "which are not the halves of a node");

	build_with(&ordered_builder, ordered, 0);
	plans[3]->leaves = 7;
	must_refuse(4, "another number of leaves", "plans of different shapes");

	known_faults_of_lends();

	/* Two ranks that each wait for the other. */
	const struct plan_shape pair = {.collective = PLAN_ALLREDUCE, .size = 2, .slots = 2, .chunk_elements = 16, .elements = 32};
	build(pair, 1);
	for (uint32_t r = 0; r < 2; r++) {
		uint32_t wait = find(plans[r], PLAN_WAIT, 0);
		struct plan_step step = plans[r]->steps[wait];
		plan_add_step(plans[r], PLAN_WAIT);
		plans[r]->steps[plans[r]->step_count - 1] = step;
		move_step(plans[r], plans[r]->step_count - 1, find(plans[r], PLAN_PUT, 0));
	}
	must_refuse(2, "waits in a circle", "deadlock");
}

int main(void)
{
	known_faults();
	return 0;
}
