/* Ranks are grouped by node whatever their order, and the ring crosses between leaf switches as seldom as it can. */
#include "check.h"

#include <stdbool.h>

#include "topology/world.h"

static void check_ring(const struct topo_world *w)
{
	bool *seen = calloc(w->size, sizeof *seen);
	uint32_t node_changes = 0;

	for (uint32_t i = 0; i < w->size; i++) {
		uint32_t rank = w->ring[i], next = w->ring[(i + 1) % w->size];
		CHECK(rank < w->size && !seen[rank], "ring[%u] = %u is no permutation", i, rank);
		if (rank < w->size)
			seen[rank] = true;
		node_changes += w->node_of[rank] != w->node_of[next];
	}
	CHECK(node_changes == (w->node_count > 1 ? w->node_count : 0), "%u changes between %u nodes", node_changes, w->node_count);
	free(seen);
}

static void check_groups(const struct topo_world *w, const char *const *names)
{
	uint32_t total = 0;

	for (uint32_t n = 0; n < w->node_count; n++) {
		const struct topo_node *node = &w->nodes[n];
		total += node->rank_count;
		CHECK(node->rank_count > 0);
		CHECK(n == 0 || w->nodes[n - 1].ranks[0] < node->ranks[0], "nodes are not in the order of their lowest rank");
		for (uint32_t i = 0; i < node->rank_count; i++) {
			uint32_t r = node->ranks[i];
			CHECK(i == 0 || node->ranks[i - 1] < r, "ranks of a node are not ascending");
			CHECK(!strcmp(names[r], node->name), "rank %u is on %s, seen %s", r, names[r], node->name);
			CHECK(w->node_of[r] == n && w->local_rank_of[r] == i);
		}
	}
	CHECK(total == w->size);
}

static void test_interleaved(void)
{
	const char *names[] = {"b", "a", "b", "c", "a", "b"};
	struct topo_world *w = NULL;

	CHECK_OK(topo_world_build(4, 6, names, NULL, &w));
	CHECK(w->rank == 4 && w->size == 6 && w->node_count == 3);
	check_groups(w, names);
	check_ring(w);
	CHECK(!strcmp(w->nodes[0].name, "b") && w->nodes[0].rank_count == 3 && w->nodes[0].ranks[1] == 2);
	CHECK(w->ring[0] == 0, "the ring starts with rank %u", w->ring[0]);
	CHECK(topo_ring_leaf_crossings(w) == 0, "no addresses, no leaves");
	CHECK(!strcmp(w->nodes[2].address, ""));
	topo_world_free(w);
}

static void test_seven_and_eight_per_node(void)
{
	char text[4][8];
	const char *names[30];
	struct topo_world *w = NULL;

	for (uint32_t i = 0; i < 4; i++)
		snprintf(text[i], sizeof text[i], "n%u", i);
	for (uint32_t r = 0, node = 0, left = 7; r < 30; r++) {
		names[r] = text[node];
		if (--left == 0)
			left = ++node % 2 ? 8 : 7;
	}
	CHECK_OK(topo_world_build(29, 30, names, NULL, &w));
	CHECK(w->node_count == 4 && w->nodes[0].rank_count == 7 && w->nodes[1].rank_count == 8 && w->nodes[3].rank_count == 8);
	CHECK(w->local_rank_of[29] == 7);
	check_groups(w, names);
	check_ring(w);
	topo_world_free(w);
}

static void test_one_rank(void)
{
	const char *names[] = {"only"}, *addresses[] = {"leaf.only"};
	struct topo_world *w = NULL;

	CHECK_OK(topo_world_build(0, 1, names, addresses, &w));
	CHECK(w->node_count == 1 && w->ring[0] == 0 && topo_ring_leaf_crossings(w) == 0);
	topo_world_free(w);
}

/* nodes on k leaves in a shuffled order: k crossings, and leaves of one spine stay together. */
static void test_leaves(void)
{
	const uint32_t leaves = 6, nodes = 36, size = nodes * 3;
	char names_text[36][16], addresses_text[36][64];
	const char **names = calloc(size, sizeof *names), **addresses = calloc(size, sizeof *addresses);
	struct topo_world *w = NULL;

	for (uint32_t used = 1; used <= leaves; used++) {
		for (uint32_t n = 0; n < nodes; n++) {
			uint32_t leaf = n * 7 % used;
			snprintf(names_text[n], sizeof names_text[n], "node%u", n);
			/* "leaf1" and "leaf1-b" under one spine: a plain string order would mix their nodes. */
			snprintf(addresses_text[n], sizeof addresses_text[n], "spine%u.leaf%u%s.node%u", leaf / 2, leaf / 2,
				 leaf % 2 ? "-b" : "", n);
		}
		for (uint32_t r = 0; r < size; r++) {
			names[r] = names_text[r * 7 % nodes];
			addresses[r] = addresses_text[r * 7 % nodes];
		}
		CHECK_OK(topo_world_build(0, size, names, addresses, &w));
		check_groups(w, names);
		check_ring(w);
		CHECK(topo_ring_leaf_crossings(w) == (used > 1 ? used : 0), "%u leaves, %u crossings", used, topo_ring_leaf_crossings(w));
		uint32_t spine_changes = 0;
		for (uint32_t i = 0; i < size; i++)
			spine_changes += strncmp(w->nodes[w->node_of[w->ring[i]]].address, w->nodes[w->node_of[w->ring[(i + 1) % size]]].address, 6) != 0;
		uint32_t spines = (used + 1) / 2;
		CHECK(spine_changes == (spines > 1 ? spines : 0), "%u spines, %u changes", spines, spine_changes);
		CHECK(w->ring[0] == 0);
		topo_world_free(w);
	}
	free(names);
	free(addresses);
}

static void test_nonsense(void)
{
	const char *names[] = {"a", ""};
	struct topo_world *w = NULL;

	CHECK_FAILS(topo_world_build(0, 2, names, NULL, &w), ST_ERR_USAGE, "no node name");
	CHECK_FAILS(topo_world_build(2, 2, names, NULL, &w), ST_ERR_USAGE, "rank 2 of 2");
	CHECK_FAILS(topo_world_build(0, 0, names, NULL, &w), ST_ERR_USAGE, "of 0");
	CHECK(!w);
}

int main(void)
{
	test_interleaved();
	test_seven_and_eight_per_node();
	test_one_rank();
	test_leaves();
	test_nonsense();
	return check_result();
}
