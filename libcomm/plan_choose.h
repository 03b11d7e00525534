/*
 * The algorithms by name, what each costs, and which to take.
 *
 * All ranks must take the same one, so the choice is a pure function of things that are equal everywhere: the collective, its bytes, how many
 * ranks and nodes there are, and constants.
 */
#ifndef SYNCTRAIN_LIBCOMM_PLAN_CHOOSE_H
#define SYNCTRAIN_LIBCOMM_PLAN_CHOOSE_H

#include "plan.h"

enum plan_algorithm { PLAN_RING, PLAN_DOUBLING, PLAN_HALVING, PLAN_TREE, PLAN_PAT, PLAN_HIERARCHICAL, PLAN_TORUS, PLAN_DIRECT, PLAN_ALGORITHMS };

/* "ring", ... */
const char *plan_algorithm_name(enum plan_algorithm algorithm);

/* Whether the algorithm has plans for a collective. The ring has for all. */
bool plan_algorithm_has(enum plan_algorithm algorithm, enum plan_collective collective);

/* Whether its plans may be wide (see plan.h).  Halving keeps partial sums of whole halves: those would take memory by the number of elements. */
bool plan_algorithm_has_wide(enum plan_algorithm algorithm);

/* The algorithm's builder: see plan.h. */
enum st_status plan_build(enum plan_algorithm algorithm, const struct plan_shape *shape, struct plan **plan);

/* How the ranks lie. */
struct plan_layout {
	uint32_t size, nodes;
	uint32_t per_node, least_per_node; /* ranks of the fullest node and of the emptiest */
};

/* A message of n bytes over a link takes alpha + n * beta seconds; beta of `remote` is the whole node's, shared by its ranks. */
struct plan_link_price {
	double alpha, beta;
};

struct plan_machine {
	struct plan_link_price local, remote;
	double gamma; /* seconds per byte added */
};

/*
 * Shared memory of a server, and TCP over 25 Gb/s: only where algorithms cross matters, and that within a factor of two.  `synctrain bench --calibrate`
 * measures the same constants: those of local links on ranks of one node, those of remote ones on one rank of each of several.
 */
extern const struct plan_machine plan_machine_default;

/* Predicted seconds for a collective of `bytes` in all (of the whole range, see struct plan). */
double plan_price(enum plan_algorithm algorithm, enum plan_collective collective, uint64_t bytes, const struct plan_layout *layout,
		  const struct plan_machine *machine);

/* The cheapest of a mask (1 << algorithm) that has the collective; the ring when none has. Ties: the first in the order of enum plan_algorithm. */
enum plan_algorithm plan_cheapest(unsigned mask, enum plan_collective collective, uint64_t bytes, const struct plan_layout *layout,
				  const struct plan_machine *machine);

#endif
