#include "plan_fold.h"

static struct plan_operand unit(enum plan_space space, const struct fold *fold, uint32_t ahead)
{
	return (struct plan_operand){.space = space, .span = fold->group,
				     .block.first = {.base = (int32_t)(ahead * fold->group), .v = {(int32_t)fold->group}}};
}

static struct plan_operand slot(const struct fold *fold, uint32_t ahead)
{
	struct plan_operand operand = unit(PLAN_SCRATCH, fold, ahead);
	operand.channel = fold->in;
	operand.slot = (struct plan_affine){.base = (int32_t)ahead, .v = {1}};
	return operand;
}

struct fold fold_with(struct build *build, uint32_t peer, uint32_t group)
{
	struct fold fold = {.group = group, .units = build->plan->blocks / group};
	fold.lead = fold.units < build->plan->slots ? fold.units : build->plan->slots;
	fold.in = build_channel(build, peer, false, 0);
	fold.out = build_channel(build, peer, true, 0);
	return fold;
}

/* Grants the unit after those under way, while there is one. */
static void grant_next(struct build *build, const struct fold *fold, struct plan_operand destination)
{
	if (fold->units > fold->lead)
		build_ready(build, fold->in, destination)->guard = (struct plan_affine){.base = (int32_t)(fold->units - 1 - fold->lead), .v = {-1}};
}

void fold_give(struct build *build, const struct fold *fold)
{
	const bool mapped = build_is_mapped(build, fold->in);
	build_loop(build, fold->units);
	build_put(build, fold->out, unit(PLAN_INPUT, fold, 0));
	build_end(build);
	build_flush(build, fold->out, 0);
	build_loop(build, fold->lead);
	build_ready(build, fold->in, mapped ? slot(fold, 0) : unit(PLAN_OUTPUT, fold, 0));
	build_end(build);
	build_loop(build, fold->units);
	build_wait(build, fold->in);
	if (mapped)
		build_copy(build, unit(PLAN_OUTPUT, fold, 0), slot(fold, 0));
	grant_next(build, fold, mapped ? slot(fold, fold->lead) : unit(PLAN_OUTPUT, fold, fold->lead));
	build_end(build);
}

void fold_grant(struct build *build, const struct fold *fold)
{
	build_loop(build, fold->lead);
	build_ready(build, fold->in, slot(fold, 0));
	build_end(build);
}

void fold_take(struct build *build, const struct fold *fold, enum plan_space own)
{
	build_loop(build, fold->units);
	build_wait(build, fold->in);
	struct plan_operand sum = unit(PLAN_OUTPUT, fold, 0), operand = unit(own, fold, 0);
	sum.partial.base = 1;
	operand.partial.base = own == PLAN_OUTPUT;
	build_reduce(build, sum, slot(fold, 0), operand);
	grant_next(build, fold, slot(fold, fold->lead));
	build_end(build);
}

void fold_return(struct build *build, const struct fold *fold)
{
	build_loop(build, fold->units);
	build_put(build, fold->out, unit(PLAN_OUTPUT, fold, 0));
	build_end(build);
	build_flush(build, fold->out, 0);
}
