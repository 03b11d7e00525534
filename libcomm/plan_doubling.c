/*
 * Recursive doubling: all-reduce of few bytes in lg p messages, each of all of them.
 *
 * Let K be the largest power of two up to the number of ranks.  At level s (0, 1, ..., lg K - 1) the ranks whose numbers differ in bit s alone exchange
 * their sums so far and add (Thakur, Rabenseifner and Gropp, 2005): both with the lower one's first, so that they have the same bits, also of what is
 * not a number.  When p is no power of two, the first p-K pairs of neighbours fold: one hands its operand to the other and gets the sum at the end.
 *
 * Cost: lg p (a + n b + n g), + 2 a + 2 n b + n g with folding: the least latency, and for long vectors far too many bytes.  Each level has
 * links of its own, so that every first grant is given before the first put and a put waits for data only.  Works with one slot.
 * The sum so far lies in its place in OUTPUT, or, where it is wide, in one slot of WORK.
 */
#include "plan_build.h"

#define MAX_LEVELS 20

struct exchange {
	uint16_t in, out;
	bool partial; /* what comes is a partial sum, no input */
	bool first;   /* and the first operand */
};

/* What this rank has of a chunk: its input, a partial sum or the result. */
enum have { HAVE_INPUT, HAVE_PARTIAL, HAVE_RESULT };

/* Chunk u, `ahead` later than the loop's. */
static struct plan_operand chunk(enum plan_space space, int32_t ahead)
{
	return (struct plan_operand){.space = space, .chunk = {.base = ahead, .v = {1}}};
}

static struct plan_operand slot(const struct exchange *exchange, int32_t ahead)
{
	struct plan_operand operand = chunk(PLAN_SCRATCH, ahead);
	operand.channel = exchange->in;
	operand.slot = (struct plan_affine){.base = ahead, .v = {1}};
	operand.partial.base = exchange->partial;
	return operand;
}

static struct plan_operand sum_of(const struct build *build, enum have have)
{
	const enum plan_space partial = build->plan->wide ? PLAN_WORK : PLAN_OUTPUT;
	struct plan_operand operand = chunk(have == HAVE_INPUT ? PLAN_INPUT : have == HAVE_PARTIAL ? partial : PLAN_OUTPUT, 0);
	operand.partial.base = have == HAVE_PARTIAL;
	return operand;
}

static struct exchange exchange_with(struct build *build, uint32_t position)
{
	uint32_t peer = build_rank_at(build, position);
	struct exchange exchange = {.in = build_channel(build, peer, false, 0)};
	exchange.out = build_channel(build, peer, true, 0);
	return exchange;
}

static void add_up(struct build *build, const struct exchange *arrived, enum have have, enum have then)
{
	if (arrived->first)
		build_reduce(build, sum_of(build, then), slot(arrived, 0), sum_of(build, have));
	else
		build_reduce(build, sum_of(build, then), sum_of(build, have), slot(arrived, 0));
}

/* The slot is free again: it may take the next chunk's operand. */
static void grant_next(struct build *build, const struct exchange *exchange)
{
	if (build->plan->chunks > 1)
		build_ready(build, exchange->in, slot(exchange, 1))->guard = (struct plan_affine){.base = (int32_t)build->plan->chunks - 2, .v = {-1}};
}

/* The rank that hands its operand over. */
static void give(struct build *build, const struct exchange *with)
{
	const bool mapped = build_is_mapped(build, with->in);
	build_loop(build, build->plan->chunks);
	if (mapped)
		build_ready(build, with->in, slot(with, 0));
	build_put(build, with->out, chunk(PLAN_INPUT, 0));
	build_flush(build, with->out, 0);
	if (!mapped)
		build_ready(build, with->in, chunk(PLAN_OUTPUT, 0));
	build_wait(build, with->in);
	if (mapped)
		build_copy(build, chunk(PLAN_OUTPUT, 0), slot(with, 0));
	build_end(build);
}

/*
 * Of one chunk, what it has and the slot of `arrived` (when not NULL) are this rank's.  Puts their sum and leaves it in OUTPUT: one pass where the
 * link is mapped.  Afterwards the slot is free.
 */
static void put_sum(struct build *build, uint16_t out, const struct exchange *arrived, enum have have, enum have then)
{
	if (!arrived) {
		build_put(build, out, sum_of(build, have));
		return;
	}
	if (build_is_mapped(build, out)) {
		struct plan_step *put = build_put(build, out, arrived->first ? slot(arrived, 0) : sum_of(build, have));
		build_source(build, put, arrived->first ? sum_of(build, have) : slot(arrived, 0));
		build_keep(build, put, sum_of(build, then));
	} else {
		add_up(build, arrived, have, then);
		build_put(build, out, sum_of(build, then));
	}
	grant_next(build, arrived);
}

static void participate(struct build *build, const struct exchange *levels, unsigned count, const struct exchange *fold)
{
	const struct exchange *arrived = NULL;
	enum have have = HAVE_INPUT;
	if (fold)
		build_ready(build, fold->in, slot(fold, 0));
	for (unsigned s = 0; s < count; s++)
		build_ready(build, levels[s].in, slot(&levels[s], 0));
	build_loop(build, build->plan->chunks);
	if (fold) {
		build_wait(build, fold->in);
		arrived = fold;
	}
	for (unsigned s = 0; s < count; s++) {
		put_sum(build, levels[s].out, arrived, have, HAVE_PARTIAL);
		if (arrived)
			have = HAVE_PARTIAL;
		build_wait(build, levels[s].in);
		/* The sum that was put is about to be added to; an input that is not the output stays as it is. */
		if (have == HAVE_PARTIAL || build->plan->in_place)
			build_flush(build, levels[s].out, 0);
		arrived = &levels[s];
	}
	if (fold) {
		put_sum(build, fold->out, arrived, have, HAVE_RESULT);
	} else {
		add_up(build, arrived, have, HAVE_RESULT);
		grant_next(build, arrived);
	}
	build_end(build);
	for (unsigned s = 0; s < count; s++)
		build_flush(build, levels[s].out, 0);
	if (fold)
		build_flush(build, fold->out, 0);
}

enum st_status plan_build_doubling(const struct plan_shape *shape, struct plan **plan)
{
	struct build build;
	struct exchange levels[MAX_LEVELS], fold;
	if (shape->collective != PLAN_ALLREDUCE)
		return st_fail(ST_ERR_USAGE, "doubling plan: %s is not one of its collectives", plan_collective_name(shape->collective));
	ST_TRY(build_start(&build, "doubling", shape, 1, 1, 1));
	if (shape->size == 1) {
		build_alone(&build);
		return build_finish(&build, plan);
	}
	uint32_t participants = 1;
	unsigned count = 0;
	for (; participants * 2 <= shape->size && count < MAX_LEVELS; count++)
		participants *= 2;
	build_work(&build, 1);
	const uint32_t extra = shape->size - participants, position = build.position;
	const bool folds = position < 2 * extra;
	if (folds)
		fold = exchange_with(&build, position ^ 1);
	if (folds && position % 2) {
		give(&build, &fold);
		return build_finish(&build, plan);
	}
	uint32_t number = folds ? position / 2 : position - extra;
	for (unsigned s = 0; s < count; s++) {
		uint32_t other = number ^ 1u << s;
		levels[s] = exchange_with(&build, other < extra ? 2 * other : other + extra);
		levels[s].partial = s || other < extra;
		levels[s].first = other < number;
	}
	participate(&build, levels, count, folds ? &fold : NULL);
	return build_finish(&build, plan);
}
