/* Shards of given sizes: reduce_scatter_v and all_gather_v. */
#include <inttypes.h>
#include <stdlib.h>

#include "comm_internal.h"

enum st_status comm_shards_measure(const char *name, const size_t *counts, uint32_t size, uint32_t rank, size_t element_bytes,
				   struct comm_shards *shards)
{
	struct comm_shards made = {.counts = counts};
	uint64_t digest = size;
	for (uint32_t r = 0; r < size; r++) {
		if (r == rank)
			made.before = made.total;
		if (__builtin_add_overflow(made.total, counts[r], &made.total) || made.total > SIZE_MAX / 4 / element_bytes)
			return st_fail(ST_ERR_USAGE, "%s: the shards of ranks 0 to %" PRIu32 " are more than memory can hold, that of rank %" PRIu32
				       " being %zu elements", name, r, r, counts[r]);
		if (counts[r] > made.longest)
			made.longest = counts[r];
		/* splitmix64's finisher over the chain of counts. */
		digest += counts[r] + UINT64_C(0x9e3779b97f4a7c15);
		digest = (digest ^ (digest >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
		digest = (digest ^ (digest >> 27)) * UINT64_C(0x94d049bb133111eb);
		digest ^= digest >> 31;
	}
	made.digest = (uint32_t)(digest >> 32);
	if (!made.digest)
		made.digest = 1;
	*shards = made;
	return ST_OK;
}

uint64_t *comm_shards_offsets(const struct comm_shards *shards, uint32_t size)
{
	uint64_t *offsets = malloc((size + (size_t)1) * sizeof *offsets);
	if (!offsets)
		return NULL;
	offsets[0] = 0;
	for (uint32_t r = 0; r < size; r++)
		offsets[r + 1] = offsets[r] + shards->counts[r];
	return offsets;
}

bool comm_shards_match(const struct comm_shards *shards, const struct plan *plan)
{
	if (!plan->offsets)
		return false;
	for (uint32_t r = 0; r < plan->size; r++)
		if (plan->offsets[r + 1] - plan->offsets[r] != shards->counts[r])
			return false;
	return true;
}
