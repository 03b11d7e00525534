#include "plan_choose.h"

#include <math.h>

#define TYPICAL_CHUNK 131072.0 /* bytes */

/* Ordered sums have a plan of their own. */
#define EVERY_COLLECTIVE ((1u << (PLAN_BARRIER + 1)) - 1)

static const struct {
	const char *name;
	enum st_status (*build)(const struct plan_shape *shape, struct plan **plan);
	unsigned collectives;
} algorithms[PLAN_ALGORITHMS] = {
	[PLAN_RING] = {"ring", plan_build_ring, EVERY_COLLECTIVE},
	[PLAN_DOUBLING] = {"doubling", plan_build_doubling, 1 << PLAN_ALLREDUCE},
	[PLAN_HALVING] = {"halving", plan_build_halving, 1 << PLAN_ALLREDUCE},
	[PLAN_TREE] = {"tree", plan_build_tree, 1 << PLAN_ALLREDUCE | 1 << PLAN_BROADCAST},
	[PLAN_PAT] = {"pat", plan_build_pat, 1 << PLAN_REDUCE_SCATTER | 1 << PLAN_ALL_GATHER | 1 << PLAN_BARRIER},
	[PLAN_HIERARCHICAL] = {"hierarchical", plan_build_hierarchical, EVERY_COLLECTIVE},
	[PLAN_TORUS] = {"torus", plan_build_torus, 1 << PLAN_ALLREDUCE | 1 << PLAN_REDUCE_SCATTER | 1 << PLAN_ALL_GATHER},
	[PLAN_DIRECT] = {"direct", plan_build_direct, EVERY_COLLECTIVE},
};

const struct plan_machine plan_machine_default = {
	.local = {.alpha = 1e-6, .beta = 1 / 10e9},
	.remote = {.alpha = 20e-6, .beta = 1 / 3e9},
	.gamma = 1 / 10e9,
};

const char *plan_algorithm_name(enum plan_algorithm algorithm)
{
	return (unsigned)algorithm < PLAN_ALGORITHMS ? algorithms[algorithm].name : "unknown algorithm";
}

bool plan_algorithm_has(enum plan_algorithm algorithm, enum plan_collective collective)
{
	return (unsigned)algorithm < PLAN_ALGORITHMS && algorithms[algorithm].collectives >> collective & 1;
}

bool plan_algorithm_has_wide(enum plan_algorithm algorithm)
{
	return algorithm != PLAN_HALVING;
}

enum st_status plan_build(enum plan_algorithm algorithm, const struct plan_shape *shape, struct plan **plan)
{
	if ((unsigned)algorithm >= PLAN_ALGORITHMS)
		return st_fail(ST_ERR_USAGE, "no algorithm %d", (int)algorithm);
	ST_TRY(algorithms[algorithm].build(shape, plan));
	(*plan)->algorithm = (uint8_t)(1 + algorithm);
	return ST_OK;
}

/* Ranks differ in bit s: a local link while 2^s of those that take part fit into a node. Remote messages share the node's one wire. */
static double exchange(unsigned s, double per_node, double bytes, const struct plan_layout *layout, const struct plan_machine *machine)
{
	bool local = layout->nodes <= 1 || (double)(UINT64_C(2) << s) <= per_node;
	return local ? machine->local.alpha + bytes * machine->local.beta
		     : machine->remote.alpha + bytes * (per_node > 1 ? per_node : 1) * machine->remote.beta;
}

static double price_ring(enum plan_collective collective, double bytes, const struct plan_layout *layout, const struct plan_machine *machine)
{
	const double p = layout->size;
	const struct plan_link_price *link = layout->nodes > 1 ? &machine->remote : &machine->local;
	switch (collective) {
	case PLAN_ALLREDUCE: return 2 * (p - 1) * link->alpha + (p - 1) / p * bytes * (2 * link->beta + machine->gamma);
	case PLAN_REDUCE_SCATTER: return (p - 1) * link->alpha + (p - 1) / p * bytes * (link->beta + machine->gamma);
	case PLAN_ALL_GATHER:
	case PLAN_BARRIER: return (p - 1) * link->alpha + (p - 1) / p * bytes * link->beta;
	case PLAN_BROADCAST:
	case PLAN_ALLREDUCE_ORDERED: break;
	}
	return (p - 1) * link->alpha + bytes * link->beta;
}

/* Folding and unfolding when p is no power of two; halving: the vector is halved at each level, else it stays whole. */
static double price_exchanges(bool halving, double bytes, const struct plan_layout *layout, const struct plan_machine *machine)
{
	double price = 0, part = bytes;
	uint64_t participants = 1;
	while (participants * 2 <= layout->size)
		participants *= 2;
	const double per_node = (double)layout->per_node * (double)participants / layout->size;
	for (unsigned s = 0; UINT64_C(2) << s <= participants; s++) {
		part /= halving ? 2 : 1;
		price += (halving ? 2 : 1) * exchange(s, per_node, part, layout, machine) + part * machine->gamma;
	}
	if (participants < layout->size)
		price += 2 * exchange(0, layout->per_node, bytes, layout, machine) + bytes * machine->gamma;
	return price;
}

/*
 * Both trees at once, half of the range each, in chunks: as many hops as it is deep, then one chunk after the other.  Where a node has several ranks, it
 * has an inner node of either tree, whose edges all leave it.
 */
static double price_tree(enum plan_collective collective, double bytes, const struct plan_layout *layout, const struct plan_machine *machine)
{
	const double chunk = bytes / 2 < TYPICAL_CHUNK ? bytes / 2 : TYPICAL_CHUNK;
	const struct plan_link_price *link = layout->nodes > 1 ? &machine->remote : &machine->local;
	double hops = 0;
	for (uint64_t reached = 1; reached <= layout->size; reached *= 2)
		hops += layout->nodes <= 1 || reached * 2 <= layout->per_node ? machine->local.alpha + chunk * machine->local.beta
									       : machine->remote.alpha + chunk * machine->remote.beta;
	const bool shared = layout->nodes > 1 && layout->per_node > 1;
	if (collective == PLAN_BROADCAST)
		return 2 * hops + bytes * (shared ? 2 : 1) * link->beta;
	return 4 * hops + bytes * ((shared ? 3 : 2) * link->beta + machine->gamma);
}

/*
 * Few bytes: round s goes to the rank 2^s further, with that many blocks, and a node's wire carries those of all its ranks.  More bytes: p - 1 puts of a
 * block, each of which costs its rank about what a local message does; half of them go to the neighbour, a quarter two ranks far, ....
 */
static double price_pat(enum plan_collective collective, double bytes, const struct plan_layout *layout, const struct plan_machine *machine)
{
	const struct plan_link_price *link = layout->nodes > 1 ? &machine->remote : &machine->local;
	const bool few = bytes / 2 <= TYPICAL_CHUNK;
	const double p = layout->size;
	double price = collective == PLAN_REDUCE_SCATTER ? (p - 1) / p * bytes * machine->gamma : 0, blocks = 0;
	for (uint64_t distance = 1; distance < layout->size; distance *= 2) {
		uint64_t count = distance < layout->size - distance ? distance : layout->size - distance;
		double sharing = layout->nodes <= 1 ? 1 : distance < layout->per_node ? (double)distance : layout->per_node;
		price += link->alpha;
		/* Over a node's wire, or from one rank. */
		blocks += few ? (double)count * sharing : p / (2 * (double)distance) * sharing;
	}
	return price + blocks / p * bytes * link->beta + (few ? 0 : (p - 1) * machine->local.alpha);
}

/*
 * Rows of x ranks and columns of y; `sharing` ranks of a node use its wire at a time.  Half of an all-reduce, or a reduce-scatter or all-gather.  Rings one
 * after the other for few bytes of an all-reduce; else they overlap, and a chunk of each block is a message.
 */
static double price_half(double x, double y, bool few, bool local_rows, double sharing, double bytes, const struct plan_layout *layout,
			 const struct plan_machine *machine)
{
	const struct plan_link_price *row = local_rows ? &machine->local : &machine->remote;
	const struct plan_link_price *column = layout->nodes > 1 ? &machine->remote : &machine->local;
	const double row_bytes = (x - 1) / x * bytes * row->beta * (local_rows ? 1 : sharing);
	const double column_bytes = (y - 1) / (x * y) * bytes * column->beta * (layout->nodes > 1 ? sharing : 1);
	const double start = (x - 1) * row->alpha + (y - 1) * column->alpha;
	if (few || !local_rows || layout->nodes <= 1)
		return start + row_bytes + column_bytes;
	return start + (y - 1) * (x - 1) * row->alpha + (row_bytes > column_bytes ? row_bytes : column_bytes);
}

static double price_grid(enum plan_collective collective, double x, double y, bool local_rows, double sharing, double bytes,
			 const struct plan_layout *layout, const struct plan_machine *machine)
{
	const bool gathers = collective == PLAN_ALL_GATHER, both = collective == PLAN_ALLREDUCE || collective == PLAN_BARRIER;
	const double half = price_half(x, y, both && bytes / x <= TYPICAL_CHUNK, local_rows, sharing, bytes, layout, machine);
	return (both ? 2 : 1) * half + (gathers ? 0 : (x * y - 1) / (x * y) * bytes * machine->gamma);
}

static double price_hierarchical(enum plan_collective collective, double bytes, const struct plan_layout *layout, const struct plan_machine *machine)
{
	const struct plan_link_price *local = &machine->local, *remote = layout->nodes > 1 ? &machine->remote : local;
	const double x = layout->least_per_node, y = layout->nodes, extras = (layout->per_node - 1) / layout->least_per_node;
	if (x * y * (extras + 1) > INT32_MAX / 8)
		return HUGE_VAL; /* too uneven, see grid_chunks_build */
	if (collective == PLAN_BROADCAST) {
		const double chunk = bytes < TYPICAL_CHUNK ? bytes : TYPICAL_CHUNK;
		const double slowest = remote->beta > (1 + extras) * local->beta ? remote->beta : (1 + extras) * local->beta;
		return (y - 1) * (remote->alpha + chunk * remote->beta) + x * (local->alpha + chunk * local->beta) + bytes * slowest;
	}
	const double operands = collective == PLAN_ALL_GATHER ? 0 : 1, results = collective == PLAN_REDUCE_SCATTER ? 0 : 1;
	return price_grid(collective, x, y, true, x, bytes, layout, machine) +
	       extras * ((operands + results) * (local->alpha + bytes * local->beta) + operands * bytes * machine->gamma);
}

static double price_torus(enum plan_collective collective, double bytes, const struct plan_layout *layout, const struct plan_machine *machine)
{
	uint32_t columns = 1;
	for (uint32_t x = 1; (uint64_t)x * x <= layout->size; x++)
		if (layout->size % x == 0)
			columns = x;
	bool local_rows = layout->nodes <= 1 || (layout->per_node == layout->least_per_node && layout->per_node % columns == 0);
	return price_grid(collective, columns, layout->size / columns, local_rows, layout->nodes > 1 ? layout->per_node : 1, bytes, layout, machine);
}

/* What one rank reads of the others, and how often it waits for them. A lend to one more rank costs little beside the first one. */
static double price_direct(enum plan_collective collective, double bytes, const struct plan_layout *layout, const struct plan_machine *machine)
{
	const double p = layout->size, others = (p - 1) / p * bytes, round = machine->local.alpha * (1 + (p - 2) / 4);
	switch (collective) {
	case PLAN_ALLREDUCE:
		if (bytes <= TYPICAL_CHUNK / (p > 2 ? 4 : 2)) /* in one round */
			return round + bytes * (p - 1) * (machine->local.beta + machine->gamma);
		return 2 * round + others * (machine->local.beta + machine->gamma);
	case PLAN_REDUCE_SCATTER: return round + others * machine->gamma;
	case PLAN_ALL_GATHER:
	case PLAN_BARRIER: return round + others * machine->local.beta;
	case PLAN_BROADCAST:
	case PLAN_ALLREDUCE_ORDERED: break;
	}
	return round + bytes * machine->local.beta;
}

double plan_price(enum plan_algorithm algorithm, enum plan_collective collective, uint64_t bytes, const struct plan_layout *layout,
		  const struct plan_machine *machine)
{
	switch (algorithm) {
	case PLAN_DOUBLING: return price_exchanges(false, (double)bytes, layout, machine);
	case PLAN_HALVING: return price_exchanges(true, (double)bytes, layout, machine);
	case PLAN_TREE: return price_tree(collective, (double)bytes, layout, machine);
	case PLAN_PAT: return price_pat(collective, (double)bytes, layout, machine);
	case PLAN_HIERARCHICAL: return price_hierarchical(collective, (double)bytes, layout, machine);
	case PLAN_TORUS: return price_torus(collective, (double)bytes, layout, machine);
	case PLAN_DIRECT: return price_direct(collective, (double)bytes, layout, machine);
	default: return price_ring(collective, (double)bytes, layout, machine);
	}
}

enum plan_algorithm plan_cheapest(unsigned mask, enum plan_collective collective, uint64_t bytes, const struct plan_layout *layout,
				  const struct plan_machine *machine)
{
	enum plan_algorithm best = PLAN_RING;
	double least = HUGE_VAL;
	for (int a = 0; a < PLAN_ALGORITHMS; a++) {
		if (!(mask >> a & 1) || !plan_algorithm_has((enum plan_algorithm)a, collective))
			continue;
		double price = plan_price((enum plan_algorithm)a, collective, bytes, layout, machine);
		if (price < least) {
			least = price;
			best = (enum plan_algorithm)a;
		}
	}
	return best;
}
