/* Ordered sums: who holds which leaves, the links for them, and the call. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "comm_internal.h"
#include "leaves.h"

_Static_assert(COMM_MAX_LEAVES == LEAVES_MOST, "what is public is what there is");

static struct comm_leaves share_of(const struct comm *comm, uint32_t total)
{
	const struct leaf_range range = leaves_of_rank(total, comm->size, comm->rank);
	return (struct comm_leaves){.total = total, .first = range.first, .end = range.end, .roots = leaves_roots(total, range, NULL),
				    .held = leaves_held(total, range)};
}

static bool is_open(const struct comm *comm, uint32_t total)
{
	bool found = false;
	engine_lock(comm->engine);
	for (size_t i = 0; i < comm->leaves_count; i++)
		found |= comm->leaves[i] == total;
	engine_unlock(comm->engine);
	return found;
}

/* Whether all ranks want the same: all find the same answer. */
static enum st_status compare(struct comm *comm, uint32_t total)
{
	uint32_t *totals = malloc(comm->size * sizeof *totals), other = 0;
	if (!totals)
		return st_fail(ST_ERR_NOMEM, "communicator: out of memory");
	enum st_status status = comm_collect(comm, &total, sizeof total, totals);
	while (status == ST_OK && other < comm->size && totals[other] == totals[0])
		other++;
	if (status == ST_OK && other < comm->size)
		status = st_fail(ST_ERR_MISMATCH, "ranks disagree about the leaves of ordered sums: rank 0 on %s has %" PRIu32 " in all, rank %" PRIu32
				 " on %s has %" PRIu32, comm_host(comm, 0), totals[0], other, comm_host(comm, other), totals[other]);
	free(totals);
	return status;
}

static enum st_status remember(struct comm *comm, uint32_t total)
{
	engine_lock(comm->engine);
	uint32_t *grown = realloc(comm->leaves, (comm->leaves_count + 1) * sizeof *grown);
	if (grown) {
		comm->leaves = grown;
		comm->leaves[comm->leaves_count++] = total;
	}
	engine_unlock(comm->engine);
	return grown ? ST_OK : st_fail(ST_ERR_NOMEM, "communicator: out of memory");
}

static enum st_status open_links(struct comm *comm, uint32_t total)
{
	enum st_status status = comm_open_links(comm, total);
	if (status == ST_OK)
		status = remember(comm, total);
	if (status == ST_OK)
		return ST_OK;
	/* The others wait for this rank: tell them why it does not come. */
	char why[512];
	snprintf(why, sizeof why, "%s", st_message());
	if (control_check(comm->control) == ST_OK)
		control_abort(comm->control, comm_world_rank(comm, comm->rank), CONTROL_HOW_APPLICATION, "links for ordered sums", why);
	return st_fail_copy(status, why);
}

enum st_status comm_leaves_open(struct comm *comm, uint32_t total, struct comm_leaves *leaves)
{
	if (!total || total > COMM_MAX_LEAVES)
		return st_fail(ST_ERR_USAGE, "comm_leaves_open: %" PRIu32 " leaves, expected 1 to %u", total, COMM_MAX_LEAVES);
	ST_TRY(compare(comm, total));
	if (!is_open(comm, total))
		ST_TRY(open_links(comm, total));
	*leaves = share_of(comm, total);
	return ST_OK;
}

unsigned comm_leaf_place(const struct comm_leaves *leaves, uint32_t leaf, unsigned *sums)
{
	const unsigned layer = leaves_roots(leaves->total, (struct leaf_range){leaves->first, leaf}, NULL);
	*sums = layer + 1 - leaves_roots(leaves->total, (struct leaf_range){leaves->first, leaf + 1}, NULL);
	return layer;
}

/* Only what this communicator's rule gives: other ranks count on it. */
static enum st_status check_share(const struct comm *comm, const struct comm_leaves *given)
{
	if (!is_open(comm, given->total))
		return st_fail(ST_ERR_USAGE, "comm_allreduce_ordered: %" PRIu32 " leaves, for which comm_leaves_open was not called", given->total);
	const struct comm_leaves own = share_of(comm, given->total);
	if (given->first != own.first || given->end != own.end || given->roots != own.roots)
		return st_fail(ST_ERR_USAGE, "comm_allreduce_ordered: rank %" PRIu32 " brings leaves %" PRIu32 " to %" PRIu32 " of %" PRIu32 " in %u roots, expected %"
			       PRIu32 " to %" PRIu32 " in %u (from, up to)", comm->rank, given->first, given->end, given->total, given->roots, own.first, own.end,
			       own.roots);
	return ST_OK;
}

enum st_status comm_allreduce_ordered(struct comm *comm, const struct comm_leaves *leaves, const void *roots, size_t stride, void *output, size_t count,
				      enum comm_type type, enum comm_op op, struct comm_request **request)
{
	const size_t element_bytes = comm_type_bytes(type);
	size_t layer_bytes, all;
	if (type != COMM_F32 && type != COMM_F64)
		return st_fail(ST_ERR_USAGE, "comm_allreduce_ordered: type %s, expected f32 or f64", comm_type_name(type));
	if (op != COMM_SUM && op != COMM_AVG)
		return st_fail(ST_ERR_USAGE, "comm_allreduce_ordered: operation %s, expected sum or avg", comm_op_name(op));
	ST_TRY(check_share(comm, leaves));
	if (stride < count && leaves->roots > 1)
		return st_fail(ST_ERR_USAGE, "comm_allreduce_ordered: roots %zu elements apart, expected at least the %zu that each has", stride, count);
	if (leaves->roots <= 1)
		stride = count;
	if (__builtin_mul_overflow(stride, element_bytes, &layer_bytes) || __builtin_mul_overflow(layer_bytes, leaves->roots + 1u, &all) || all > SIZE_MAX / 4)
		return st_fail(ST_ERR_USAGE, "comm_allreduce_ordered: %u roots %zu elements apart are more than memory can hold", leaves->roots, stride);
	if (((uintptr_t)roots | (uintptr_t)output) % element_bytes)
		return st_fail(ST_ERR_USAGE, "comm_allreduce_ordered: a buffer that is not aligned to its elements of %zu bytes", element_bytes);
	if (count && (!output || (leaves->roots && !roots)))
		return st_fail(ST_ERR_USAGE, "comm_allreduce_ordered: no buffer for %zu elements", count);
	bool in_place = leaves->roots && output == roots;
	for (unsigned i = in_place; i < leaves->roots; i++)
		if (comm_overlap((const char *)roots + i * layer_bytes, count * element_bytes, output, count * element_bytes))
			return st_fail(ST_ERR_USAGE, "comm_allreduce_ordered: output and root %u overlap without being in place", i);
	const struct comm_call call = {.collective = PLAN_ALLREDUCE_ORDERED, .input = roots, .output = output, .count = count, .type = type, .op = op,
				       .leaves = leaves->total, .layer_bytes = layer_bytes, .in_place = in_place};
	return comm_begin(comm, &call, request);
}
