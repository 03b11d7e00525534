/* Which rank runs where: the job's ranks grouped by node. */
#ifndef SYNCTRAIN_TOPOLOGY_WORLD_H
#define SYNCTRAIN_TOPOLOGY_WORLD_H

#include <stdint.h>

#include "common/status.h"

struct topo_node {
	const char *name;
	const char *address;   /* topology address, "spine.leaf1.node1" as Slurm writes it; "" when unknown */
	uint32_t rank_count;
	const uint32_t *ranks; /* ascending; ranks[0] is the node's leader */
};

struct topo_world {
	uint32_t rank, size;
	uint32_t node_count;
	const struct topo_node *nodes;  /* ordered by their lowest rank */
	const uint32_t *node_of;        /* (size): rank -> index into nodes */
	const uint32_t *local_rank_of;  /* (size): rank -> its place among its node's ranks */
	uint32_t *ring;                 /* (size): ring position -> rank; ranks of a node adjacent, nodes of a leaf switch adjacent */
};

/* Groups ranks by node name. names[r] and addresses[r] (may be NULL or hold "") belong to rank r; both are copied.
 * Ranks of one node need not be contiguous.  Freed by topo_world_free. */
enum st_status topo_world_build(uint32_t rank, uint32_t size, const char *const *names, const char *const *addresses,
				struct topo_world **world);
void topo_world_free(struct topo_world *world);

/* Number of times the ring crosses between leaf switches (the address up to its last dot): k for k > 1 leaves, else 0. */
uint32_t topo_ring_leaf_crossings(const struct topo_world *world);

#endif
