#include "leaves.h"

struct leaf_range leaves_of_rank(uint32_t total, uint32_t ranks, uint32_t rank)
{
	return (struct leaf_range){(uint32_t)((uint64_t)total * rank / ranks), (uint32_t)((uint64_t)total * (rank + 1) / ranks)};
}

uint32_t leaves_rank_of(uint32_t total, uint32_t ranks, uint32_t leaf)
{
	/* The last rank that begins at or before the leaf: r M / n < leaf + 1. */
	return (uint32_t)((((uint64_t)leaf + 1) * ranks - 1) / total);
}

bool leaves_are_siblings(uint32_t total, struct leaf_range left, struct leaf_range right)
{
	uint64_t size = (uint64_t)left.end - left.first, end = (uint64_t)left.end + size;
	if (left.end <= left.first || right.end <= right.first || left.end != right.first)
		return false;
	/* A left half is complete where there is a right one. */
	return !(size & (size - 1)) && left.first % (2 * size) == 0 && right.end == (end < total ? end : total);
}

void leaves_counter_begin(struct leaves_counter *counter, uint32_t total, struct leaf_range range)
{
	counter->total = total;
	counter->next = range.first;
	counter->depth = 0;
}

unsigned leaves_add(struct leaves_counter *counter)
{
	unsigned sums = 0;
	counter->nodes[counter->depth++] = (struct leaf_range){counter->next, counter->next + 1};
	counter->next++;
	for (; counter->depth > 1; counter->depth--, sums++) {
		struct leaf_range *left = &counter->nodes[counter->depth - 2];
		if (!leaves_are_siblings(counter->total, left[0], left[1]))
			break;
		left->end = left[1].end;
	}
	return sums;
}

unsigned leaves_roots(uint32_t total, struct leaf_range range, struct leaf_range roots[LEAVES_ROOTS_MOST])
{
	unsigned count = 0;
	for (uint64_t at = range.first; at < range.end; count++) {
		uint64_t size = 1;
		/* Twice as large, while that is aligned and does not reach out of the range. */
		while (size < total && at % (2 * size) == 0 && (at + 2 * size <= range.end || range.end == total))
			size *= 2;
		uint64_t end = at + size < range.end ? at + size : range.end;
		if (roots)
			roots[count] = (struct leaf_range){(uint32_t)at, (uint32_t)end};
		at = end;
	}
	return count;
}

unsigned leaves_held(uint32_t total, struct leaf_range range)
{
	struct leaves_counter counter;
	unsigned most = 0;
	leaves_counter_begin(&counter, total, range);
	while (counter.next < range.end) {
		unsigned sums = leaves_add(&counter);
		if (counter.depth + sums > most)
			most = counter.depth + sums;
	}
	return most;
}
