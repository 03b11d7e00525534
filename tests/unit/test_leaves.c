/* Leaves of reproducible sums: the ranks share them without gap or overlap, and adding the roots of any shares in order gives the one tree. */
#include <stdio.h>
#include <stdlib.h>

#include "check.h"
#include "libcomm/leaves.h"

/* Whether the range is a node, by the definition from the top: [0, 2^k) clipped, halved again and again. */
static bool is_node(uint32_t total, struct leaf_range range)
{
	uint64_t first = 0, size = 1;
	while (size < total)
		size *= 2;
	for (; size; size /= 2) {
		uint64_t end = first + size < total ? first + size : total;
		if (first == range.first && end == range.end)
			return true;
		if (range.first >= first + size / 2)
			first += size / 2;
	}
	return false;
}

static bool is_half_of_a_node(uint32_t total, struct leaf_range left, struct leaf_range right)
{
	uint64_t first = 0, size = 1;
	while (size < total)
		size *= 2;
	for (; size > 1; size /= 2) {
		uint64_t middle = first + size / 2, end = first + size < total ? first + size : total;
		if (middle < total && left.first == first && left.end == middle && right.first == middle && right.end == end)
			return true;
		if (left.first >= middle)
			first = middle;
	}
	return false;
}

static void every_pair(uint32_t total)
{
	for (uint32_t a = 0; a <= total; a++)
		for (uint32_t b = a; b <= total; b++)
			for (uint32_t c = a; c <= total; c++) {
				struct leaf_range left = {a, b}, right = {c == a ? b : c, total - (total - b) / 2};
				REQUIRE(leaves_are_siblings(total, left, right) == is_half_of_a_node(total, left, right));
				right.first = b;
				right.end = c;
				REQUIRE(leaves_are_siblings(total, left, right) == is_half_of_a_node(total, left, right));
			}
}

static void every_range(uint32_t total)
{
	for (uint32_t first = 0; first <= total; first++)
		for (uint32_t end = first; end <= total; end++) {
			const struct leaf_range range = {first, end};
			struct leaf_range roots[LEAVES_ROOTS_MOST];
			struct leaves_counter counter;
			unsigned count = leaves_roots(total, range, roots), most = 0;
			uint32_t at = first;
			for (unsigned i = 0; i < count; i++) {
				REQUIRE(roots[i].first == at && roots[i].end > at && is_node(total, roots[i]));
				at = roots[i].end;
				/* As large as can be: no two of them are one. */
				REQUIRE(!i || !leaves_are_siblings(total, roots[i - 1], roots[i]));
			}
			REQUIRE(at == end);
			leaves_counter_begin(&counter, total, range);
			while (counter.next < end) {
				unsigned before = counter.depth;
				unsigned sums = leaves_add(&counter);
				REQUIRE(counter.depth + sums == before + 1);
				most = before + 1 > most ? before + 1 : most;
			}
			REQUIRE(counter.depth == count && leaves_held(total, range) == most && most <= LEAVES_ROOTS_MOST);
			for (unsigned i = 0; i < count; i++)
				REQUIRE(counter.nodes[i].first == roots[i].first && counter.nodes[i].end == roots[i].end);
		}
}

static void every_share(uint32_t total, uint32_t ranks)
{
	uint32_t at = 0;
	for (uint32_t rank = 0; rank < ranks; rank++) {
		struct leaf_range range = leaves_of_rank(total, ranks, rank);
		REQUIRE(range.first == at && range.end >= at);
		REQUIRE(range.end - range.first >= total / ranks && range.end - range.first <= total / ranks + 1);
		for (at = range.first; at < range.end; at++)
			REQUIRE(leaves_rank_of(total, ranks, at) == rank);
	}
	REQUIRE(at == total);
}

int main(void)
{
	for (uint32_t total = 1; total <= 40; total++) {
		every_pair(total);
		every_range(total);
		for (uint32_t ranks = 1; ranks <= 45; ranks++)
			every_share(total, ranks);
	}
	every_range(129);
	/* Numbers that no longer fit where they are multiplied. */
	const uint32_t most = LEAVES_MOST;
	REQUIRE(leaves_of_rank(most, 1 << 20, (1 << 20) - 1).end == most);
	REQUIRE(leaves_rank_of(most, 1 << 20, most - 1) == (1 << 20) - 1 && leaves_rank_of(most, 1 << 20, 0) == 0);
	REQUIRE(leaves_roots(most, (struct leaf_range){0, most}, NULL) == 1);
	REQUIRE(leaves_roots(most, (struct leaf_range){1, most}, NULL) == 24);
	REQUIRE(leaves_roots(most, (struct leaf_range){1, most - 1}, NULL) == 46 && leaves_held(most, (struct leaf_range){1, most - 1}) <= LEAVES_ROOTS_MOST);
	REQUIRE(leaves_are_siblings(most, (struct leaf_range){0, 1u << 23}, (struct leaf_range){1u << 23, most}));
	return 0;
}
