/*
 * The leaves of reproducible sums: who holds which, and what may be added to what.
 *
 * `total` leaves 0 .. M-1 are summed in one fixed binary tree.  A node covers an aligned range of 2^k leaves, clipped at M, and is the sum of its
 * two halves; where nothing is left of the right half the left one stands for the node.  The ranks share the leaves in order, each a contiguous
 * range, and bring the roots of the largest nodes that lie within it.  Everything here is a pure function of its arguments.
 */
#ifndef SYNCTRAIN_LIBCOMM_LEAVES_H
#define SYNCTRAIN_LIBCOMM_LEAVES_H

#include <stdbool.h>
#include <stdint.h>

#define LEAVES_MOST (1 << 24)
/* At least the roots of any range: at most 23 that grow from its start and 23 that shrink to its end, and one more while leaves are added. */
#define LEAVES_ROOTS_MOST 48

/* The leaves first .. end - 1. */
struct leaf_range {
	uint32_t first, end;
};

/* The rule for sharing: rank r of n has the leaves from r M / n up to (r + 1) M / n, both rounded down.  total <= LEAVES_MOST. */
struct leaf_range leaves_of_rank(uint32_t total, uint32_t ranks, uint32_t rank);

/* The rank that has this leaf. */
uint32_t leaves_rank_of(uint32_t total, uint32_t ranks, uint32_t leaf);

/* Whether the two are the halves of a node, left and right. */
bool leaves_are_siblings(uint32_t total, struct leaf_range left, struct leaf_range right);

/* The largest nodes within a range, in order; returns how many. roots may be NULL. */
unsigned leaves_roots(uint32_t total, struct leaf_range range, struct leaf_range roots[LEAVES_ROOTS_MOST]);

/*
 * Adding the leaves of a range one by one, in order, as in a binary counter: nodes[0..depth) are the sums so far.  leaves_add takes the next leaf as a
 * new one at the end and returns how many times then the last but one is to become the sum of itself and the last, which is gone.  After the last leaf
 * of the range the nodes are its roots.
 */
struct leaves_counter {
	uint32_t total, next;
	unsigned depth;
	struct leaf_range nodes[LEAVES_ROOTS_MOST];
};
void leaves_counter_begin(struct leaves_counter *counter, uint32_t total, struct leaf_range range);
unsigned leaves_add(struct leaves_counter *counter);

/* The most sums that are held at a time while the leaves of a range are added: the new one counts. */
unsigned leaves_held(uint32_t total, struct leaf_range range);

#endif
