/*
 * Direct plans are proved right: every number of ranks that they are for, every collective, slot depth and number of chunks, in place and not, even and
 * uneven shards, wide, two and three operations back to back, and alternating with each other on the same channels; and they are refused
 * where they can't be.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "libcomm/plan.h"

static unsigned long proved;

static bool mapped(const void *context, uint32_t sender, uint32_t receiver)
{
	const uint32_t *unmapped = context;
	return !unmapped || sender != *unmapped || receiver != *unmapped + 1;
}

static void prove(struct plan_shape shape, unsigned repeats)
{
	struct plan *plans[PLAN_DIRECT_RANKS];
	shape.mapped = mapped;
	for (shape.rank = 0; shape.rank < shape.size; shape.rank++)
		REQUIRE(plan_build_direct(&shape, &plans[shape.rank]) == ST_OK);
	if (plan_verify((const struct plan *const *)plans, shape.size, repeats) != ST_OK) {
		static char text[1 << 16];
		fprintf(stderr, "%s of %" PRIu64 ", %u ranks, chunks of %" PRIu64 ", %u slots, in place %d, root %u: %s\n", plan_collective_name(shape.collective),
			shape.elements, shape.size, shape.chunk_elements, shape.slots, shape.in_place, shape.root, st_message());
		plan_print(plans[0], text, sizeof text);
		fputs(text, stderr);
		exit(1);
	}
	for (uint32_t r = 0; r < shape.size; r++) {
		/* A lend is never longer than a slot, nor are there partial sums. */
		REQUIRE(plans[r]->chunk_elements <= shape.chunk_elements && plan_bytes(plans[r]) < 65536 * 2);
		for (uint32_t i = 0; i < plans[r]->operand_count; i++)
			REQUIRE(plans[r]->operands[i].span <= 1 && !plans[r]->operands[i].partial.base);
		plan_free(plans[r]);
	}
	proved++;
}

static void every_shape(uint32_t size)
{
	for (int collective = PLAN_ALLREDUCE; collective <= PLAN_BARRIER; collective++)
		for (uint32_t slots = 1; slots <= 5; slots++)
			for (uint32_t chunks = 0; chunks <= 9; chunks++)
				for (unsigned variant = 0; variant < 4; variant++) {
					struct plan_shape shape = {.collective = (enum plan_collective)collective, .size = size, .slots = slots,
								   .chunk_elements = 16, .in_place = variant & 1, .root = chunks % size};
					uint64_t offsets[PLAN_DIRECT_RANKS + 1] = {0};
					const bool shards = collective == PLAN_REDUCE_SCATTER || collective == PLAN_ALL_GATHER;
					shape.elements = (uint64_t)16 * chunks * size;
					if (variant & 2 && collective == PLAN_ALLREDUCE)
						shape.elements = chunks > 3 ? shape.elements - 17 : chunks;
					for (uint32_t r = 0; shards && variant & 2 && r < size; r++) {
						uint64_t shard = r % 3 == 2 ? 0 : chunks * 16 - r;
						shard = shard > chunks * 16 ? 0 : shard;
						offsets[r + 1] = offsets[r] + shard;
						shape.offsets = offsets;
						shape.longest = shard > shape.longest ? shard : shape.longest;
						shape.elements = offsets[r + 1];
					}
					if (collective == PLAN_BARRIER)
						shape.elements = 0;
					shape.wide = (collective == PLAN_ALLREDUCE || collective == PLAN_REDUCE_SCATTER) && chunks % 2;
					prove(shape, 2 + chunks % 2);
				}
}

static void refused(struct plan_shape shape, const char *reason)
{
	struct plan *plan = NULL;
	REQUIRE(plan_build_direct(&shape, &plan) == ST_ERR_USAGE && !plan);
	REQUIRE(strstr(st_message(), reason) || (fprintf(stderr, "%s\n", st_message()), 0));
}

int main(void)
{
	for (uint32_t size = 1; size <= PLAN_DIRECT_RANKS; size++)
		every_shape(size);
	const uint32_t cut = 2;
	struct plan_shape shape = {.size = 4, .slots = 4, .chunk_elements = 16, .elements = 100, .mapped = mapped};
	shape.size = PLAN_DIRECT_RANKS + 1;
	refused(shape, "17 ranks, expected at most 16");
	shape.size = 4;
	shape.mapped = NULL;
	refused(shape, "do not map each other's memory");
	shape.mapped = mapped;
	shape.mapped_context = &cut;
	shape.rank = 3;
	refused(shape, "ranks 3 and 2 do not map each other's memory");
	shape.rank = 0;
	shape.slots = 0;
	refused(shape, "0 slots");
	shape.slots = 4;
	shape.collective = PLAN_ALLREDUCE_ORDERED;
	refused(shape, "allreduce_ordered is not one of its collectives");
	printf("%lu sets of plans proved\n", proved);
	return 0;
}
