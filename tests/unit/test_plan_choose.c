/* Which algorithm is chosen: at the extremes of size and of worlds, whatever the constants of the machine are within reason. */
#include <stdio.h>

#include "check.h"
#include "libcomm/plan_choose.h"

#define BIT(algorithm) (1u << (algorithm))

/* What AUTO chooses from, in a job whose ranks do not all map each other's memory, and what of that is logarithmic. */
static const unsigned all = (BIT(PLAN_ALGORITHMS) - 1) & ~BIT(PLAN_TORUS) & ~BIT(PLAN_DIRECT);
static const unsigned logarithmic = BIT(PLAN_DOUBLING) | BIT(PLAN_HALVING) | BIT(PLAN_TREE) | BIT(PLAN_PAT);

static const struct plan_layout one_node = {8, 1, 8, 8}, few_nodes = {32, 4, 8, 8}, many_nodes = {8192, 1024, 8, 8}, uneven = {15, 2, 8, 7},
				one_rank_each = {64, 64, 1, 1}, huge = {131072, 16384, 8, 8}, skewed = {131072, 65536, 65537, 1};

/* The machine as it is assumed, and with each constant half and twice as large. */
#define MACHINES 11
static struct plan_machine machine_of(unsigned n)
{
	struct plan_machine machine = plan_machine_default;
	double *const constants[] = {&machine.local.alpha, &machine.local.beta, &machine.remote.alpha, &machine.remote.beta, &machine.gamma};
	if (n)
		*constants[(n - 1) / 2] *= n % 2 ? 2 : 0.5;
	return machine;
}

static void expect(const char *what, enum plan_collective collective, uint64_t bytes, const struct plan_layout *layout, unsigned allowed)
{
	for (unsigned n = 0; n < MACHINES; n++) {
		const struct plan_machine machine = machine_of(n);
		enum plan_algorithm chosen = plan_cheapest(all, collective, bytes, layout, &machine);
		CHECK(allowed >> chosen & 1, "%s: %s of %ju bytes, %u ranks on %u nodes, machine %u: %s", what, plan_collective_name(collective),
		      (uintmax_t)bytes, layout->size, layout->nodes, n, plan_algorithm_name(chosen));
	}
}

static void few_bytes_take_few_messages(void)
{
	const struct plan_layout *const layouts[] = {&few_nodes, &many_nodes, &one_rank_each, &huge};
	for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
		for (int collective = PLAN_ALLREDUCE; collective <= PLAN_BROADCAST; collective++)
			/* In nodes of a few ranks the rail's ring may be as short; with very many nodes it is not. */
			expect("few bytes", (enum plan_collective)collective, 8, layouts[i],
			       logarithmic | (layouts[i]->nodes <= 8 ? BIT(PLAN_HIERARCHICAL) : 0));
	expect("few bytes in a node", PLAN_ALLREDUCE, 8, &one_node, logarithmic);
	expect("nothing", PLAN_BARRIER, 0, &huge, BIT(PLAN_PAT));
	expect("nothing", PLAN_BARRIER, 0, &one_rank_each, BIT(PLAN_PAT));
}

static void many_bytes_leave_a_node_once(void)
{
	const uint64_t bytes = UINT64_C(1) << 32;
	for (int collective = PLAN_ALLREDUCE; collective <= PLAN_ALL_GATHER; collective++) {
		/* What moves each byte over a node's wire no more often than it must. */
		expect("many bytes", (enum plan_collective)collective, bytes, &few_nodes, BIT(PLAN_RING) | BIT(PLAN_HIERARCHICAL));
		expect("many bytes", (enum plan_collective)collective, bytes, &many_nodes, BIT(PLAN_HIERARCHICAL));
		expect("many bytes", (enum plan_collective)collective, bytes, &one_node, BIT(PLAN_RING) | BIT(PLAN_HALVING) | BIT(PLAN_HIERARCHICAL));
	}
	expect("many bytes, uneven nodes", PLAN_ALLREDUCE, bytes, &uneven, BIT(PLAN_RING) | BIT(PLAN_HIERARCHICAL));
	expect("many bytes", PLAN_BROADCAST, bytes, &few_nodes, BIT(PLAN_RING) | BIT(PLAN_TREE) | BIT(PLAN_HIERARCHICAL));
}

/* Whatever is allowed, what is chosen has the collective, and can be built. */
static void what_cannot_be_is_never_chosen(void)
{
	for (unsigned mask = 0; mask < BIT(PLAN_ALGORITHMS); mask++)
		for (int collective = PLAN_ALLREDUCE; collective <= PLAN_BARRIER; collective++)
			for (uint64_t bytes = 0; bytes < UINT64_C(1) << 40; bytes = bytes * 64 + 8) {
				enum plan_algorithm chosen = plan_cheapest(mask, (enum plan_collective)collective, bytes, &few_nodes, &plan_machine_default);
				if (!plan_algorithm_has(chosen, (enum plan_collective)collective) || (chosen != PLAN_RING && !(mask >> chosen & 1)))
					CHECK(false, "mask %x, %s of %ju: %s", mask, plan_collective_name((enum plan_collective)collective), (uintmax_t)bytes,
					      plan_algorithm_name(chosen));
			}
	CHECK(plan_cheapest(BIT(PLAN_HIERARCHICAL), PLAN_ALLREDUCE, 1 << 20, &skewed, &plan_machine_default) == PLAN_RING,
	      "a grid of 65,536 nodes by layers of 65,537 is chosen");
	CHECK(plan_cheapest(BIT(PLAN_HIERARCHICAL), PLAN_REDUCE_SCATTER, 1 << 20, &uneven, &plan_machine_default) == PLAN_HIERARCHICAL,
	      "hierarchical by name is not chosen");
}

/* A price never falls as bytes grow: a larger message may not be chosen an algorithm for by its being cheaper than a smaller one. */
static void more_costs_more(void)
{
	const struct plan_layout *const layouts[] = {&one_node, &few_nodes, &many_nodes, &uneven, &one_rank_each, &huge};
	for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
		for (int a = 0; a < PLAN_ALGORITHMS; a++)
			for (int collective = PLAN_ALLREDUCE; collective <= PLAN_BARRIER; collective++) {
				double before = 0;
				if (!plan_algorithm_has((enum plan_algorithm)a, (enum plan_collective)collective) || (a == PLAN_DIRECT && layouts[i]->nodes > 1))
					continue;
				for (uint64_t bytes = 1; bytes < UINT64_C(1) << 40; bytes *= 4) {
					double price = plan_price((enum plan_algorithm)a, (enum plan_collective)collective, bytes, layouts[i], &plan_machine_default);
					/* Where an algorithm changes its way, within a factor of two. */
					CHECK(price > 0 && price >= before / 2, "%s, %s of %ju bytes, %u ranks on %u nodes: %g after %g", plan_algorithm_name((enum plan_algorithm)a),
					      plan_collective_name((enum plan_collective)collective), (uintmax_t)bytes, layouts[i]->size, layouts[i]->nodes, price, before);
					before = price;
				}
			}
}

int main(void)
{
	few_bytes_take_few_messages();
	many_bytes_leave_a_node_once();
	what_cannot_be_is_never_chosen();
	more_costs_more();
	return check_result();
}
