#include "world.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Everything of a world lives in one allocation, so that freeing it is one call and nothing can be half built. */
struct world {
	struct topo_world public;
	uint32_t *ring;
	char *text;
};

struct named_rank {
	const char *name;
	uint32_t rank;
};

static int by_name_then_rank(const void *a, const void *b)
{
	const struct named_rank *x = a, *y = b;
	int order = strcmp(x->name, y->name);

	return order ? order : (x->rank > y->rank) - (x->rank < y->rank);
}

struct group {
	uint32_t first, count; /* range of the sorted ranks; sorted[first] is the group's lowest rank */
	uint32_t lowest;
};

static int by_lowest_rank(const void *a, const void *b)
{
	const struct group *x = a, *y = b;

	return (x->lowest > y->lowest) - (x->lowest < y->lowest);
}

/* Length of the leaf switch's part of a topology address: up to its last dot, 0 when there is none. */
static size_t leaf_length(const char *address)
{
	const char *dot = strrchr(address, '.');

	return dot ? (size_t)(dot - address) : 0;
}

static bool same_leaf(const char *a, const char *b)
{
	size_t length = leaf_length(a);

	return length == leaf_length(b) && !memcmp(a, b, length);
}

struct placed_node {
	const char *address;
	size_t leaf;
	uint32_t index;
};

/*
 * Compares the switches above two nodes component by component, so that what hangs under one switch, at any level, is
 * adjacent after sorting ("leaf1-b" must not come between "leaf1.x" and "leaf1.y", as plain strcmp would have it).
 */
static int by_switches_then_index(const void *a, const void *b)
{
	const struct placed_node *x = a, *y = b;
	size_t shorter = x->leaf < y->leaf ? x->leaf : y->leaf;

	for (size_t i = 0; i < shorter; i++) {
		unsigned char p = (unsigned char)x->address[i], q = (unsigned char)y->address[i];
		if (p != q) {
			if (p == '.')
				return -1;
			if (q == '.')
				return 1;
			return p < q ? -1 : 1;
		}
	}
	if (x->leaf != y->leaf)
		return x->leaf < y->leaf ? -1 : 1;
	return (x->index > y->index) - (x->index < y->index);
}

static void fill_ring(struct world *world, const struct placed_node *order)
{
	uint32_t nodes = world->public.node_count, at = 0, start = 0, position = 0;

	/* Start with rank 0's node: it is the first of its leaf (lowest index), so the turn keeps every leaf in one piece. */
	while (order[start].index != 0)
		start++;
	for (at = 0; at < nodes; at++) {
		const struct topo_node *node = &world->public.nodes[order[(start + at) % nodes].index];
		for (uint32_t i = 0; i < node->rank_count; i++)
			world->ring[position++] = node->ranks[i];
	}
}

enum st_status topo_world_build(uint32_t rank, uint32_t size, const char *const *names, const char *const *addresses,
				struct topo_world **out)
{
	struct named_rank *sorted = NULL;
	struct group *groups = NULL;
	struct placed_node *order = NULL;
	struct world *world = NULL;
	size_t text_bytes = 0;
	uint32_t nodes = 0;
	enum st_status status = ST_OK;

	if (size == 0 || rank >= size)
		return st_fail(ST_ERR_USAGE, "world: seen rank %u of %u, expected a rank below the world size", rank, size);
	for (uint32_t r = 0; r < size; r++) {
		if (!names[r] || !*names[r])
			return st_fail(ST_ERR_USAGE, "world: rank %u of %u has no node name", r, size);
		text_bytes += strlen(names[r]) + 1 + (addresses && addresses[r] ? strlen(addresses[r]) : 0) + 1;
	}

	sorted = malloc(size * sizeof *sorted);
	groups = malloc(size * sizeof *groups);
	order = malloc(size * sizeof *order);
	/* Pointers first, then 4-byte indices, then text: every part keeps its alignment. */
	size_t nodes_bytes = size * sizeof(struct topo_node), index_bytes = size * sizeof(uint32_t);
	world = calloc(1, sizeof *world + nodes_bytes + 4 * index_bytes + text_bytes);
	if (!sorted || !groups || !order || !world) {
		status = st_fail(ST_ERR_NOMEM, "world: no memory for %u ranks", size);
		free(world);
		goto free_scratch;
	}
	struct topo_node *node_list = (struct topo_node *)(world + 1);
	uint32_t *ranks = (uint32_t *)(node_list + size), *node_of = ranks + size, *local_rank_of = node_of + size;
	world->ring = local_rank_of + size;
	world->text = (char *)(world->ring + size);

	for (uint32_t r = 0; r < size; r++)
		sorted[r] = (struct named_rank){.name = names[r], .rank = r};
	qsort(sorted, size, sizeof *sorted, by_name_then_rank);
	for (uint32_t i = 0; i < size; i++) {
		if (i == 0 || strcmp(sorted[i].name, sorted[i - 1].name))
			groups[nodes++] = (struct group){.first = i, .lowest = sorted[i].rank};
		groups[nodes - 1].count++;
	}
	qsort(groups, nodes, sizeof *groups, by_lowest_rank);

	char *text = world->text;
	for (uint32_t n = 0, next = 0; n < nodes; n++) {
		const struct group *group = &groups[n];
		const char *address = addresses && addresses[group->lowest] ? addresses[group->lowest] : "";
		struct topo_node *node = &node_list[n];
		node->name = strcpy(text, names[group->lowest]);
		text += strlen(text) + 1;
		node->address = strcpy(text, address);
		text += strlen(text) + 1;
		node->rank_count = group->count;
		node->ranks = ranks + next;
		for (uint32_t i = 0; i < group->count; i++) {
			uint32_t member = sorted[group->first + i].rank;
			ranks[next++] = member;
			node_of[member] = n;
			local_rank_of[member] = i;
		}
		order[n] = (struct placed_node){.address = node->address, .leaf = leaf_length(node->address), .index = n};
	}
	world->public = (struct topo_world){.rank = rank,
					    .size = size,
					    .node_count = nodes,
					    .nodes = node_list,
					    .node_of = node_of,
					    .local_rank_of = local_rank_of,
					    .ring = world->ring};
	qsort(order, nodes, sizeof *order, by_switches_then_index);
	fill_ring(world, order);
	*out = &world->public;

free_scratch:
	free(order);
	free(groups);
	free(sorted);
	return status;
}

void topo_world_free(struct topo_world *world)
{
	free(world); /* the first member of struct world */
}

uint32_t topo_ring_leaf_crossings(const struct topo_world *world)
{
	uint32_t crossings = 0;

	for (uint32_t i = 0; i < world->size; i++) {
		const struct topo_node *from = &world->nodes[world->node_of[world->ring[i]]];
		const struct topo_node *to = &world->nodes[world->node_of[world->ring[(i + 1) % world->size]]];
		crossings += from != to && !same_leaf(from->address, to->address);
	}
	return crossings;
}
