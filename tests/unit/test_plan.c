/* Ring plans of every shape are proved right; shapes that make no sense are refused; thousands of ranks are possible. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "libcomm/plan.h"

static unsigned long proved;

static bool is_mapped(const void *context, uint32_t sender, uint32_t receiver)
{
	(void)receiver;
	return *(const uint32_t *)context >> (sender % 32) & 1;
}

/* mapped: which links are mapped, bit (sender % 32). */
static struct plan **build_all(struct plan_shape shape, uint32_t mapped)
{
	struct plan **plans = calloc(shape.size, sizeof *plans);
	REQUIRE(plans);
	shape.mapped = is_mapped;
	shape.mapped_context = &mapped;
	for (uint32_t position = 0; position < shape.size; position++) {
		shape.rank = shape.order ? shape.order[position] : position;
		if (plan_build_ring(&shape, &plans[shape.rank]) != ST_OK) {
			fprintf(stderr, "build: %s\n", st_message());
			exit(1);
		}
	}
	return plans;
}

static void free_all(struct plan **plans, uint32_t size)
{
	for (uint32_t r = 0; r < size; r++)
		plan_free(plans[r]);
	free(plans);
}

static void prove(const struct plan_shape *shape, uint32_t mapped)
{
	struct plan **plans = build_all(*shape, mapped);
	if (plan_verify((const struct plan *const *)plans, shape->size, 3) != ST_OK) {
		static char text[1 << 16];
		fprintf(stderr, "%s of %" PRIu64 ", %u ranks, chunks of %" PRIu64 ", %u slots, in place %d, root %u, mapped %x: %s\n",
			plan_collective_name(shape->collective), shape->elements, shape->size, shape->chunk_elements, shape->slots,
			shape->in_place, shape->root, mapped, st_message());
		plan_print(plans[0], text, sizeof text);
		fputs(text, stderr);
		exit(1);
	}
	proved++;
	free_all(plans, shape->size);
}

static void every_shape(void)
{
	static const uint64_t counts[] = {0, 1, 2, 7, 31, 64, 997};
	static const uint32_t backwards[9][9] = {{0}, {1, 0}, {2, 0, 1}, {3, 1, 0, 2}, {4, 2, 0, 3, 1}, {5, 3, 1, 0, 2, 4}, {6, 4, 2, 0, 5, 3, 1},
						 {7, 5, 3, 1, 0, 2, 4, 6}, {8, 6, 4, 2, 0, 7, 5, 3, 1}};
	for (uint32_t size = 1; size <= 9; size++)
		for (int collective = PLAN_ALLREDUCE; collective <= PLAN_BARRIER; collective++)
			for (size_t n = 0; n < sizeof counts / sizeof *counts; n++)
				for (uint32_t slots = 1; slots <= 6; slots++)
					for (unsigned variant = 0; variant < 4; variant++)
						for (uint64_t chunk = 3; chunk <= 300; chunk *= 10) {
							if (slots < 2 && collective != PLAN_BROADCAST)
								continue;
							struct plan_shape shape = {.collective = (enum plan_collective)collective, .size = size,
										   .elements = counts[n], .chunk_elements = chunk, .slots = slots,
										   .in_place = variant & 1,
										   .order = variant & 2 ? backwards[size - 1] : NULL,
										   .root = (uint32_t)n % size};
							if (collective == PLAN_BARRIER)
								shape.elements = 0;
							else if (collective == PLAN_REDUCE_SCATTER || collective == PLAN_ALL_GATHER)
								shape.elements *= size;
							prove(&shape, 0);
							prove(&shape, 0xffffffff);
							prove(&shape, 0x55555555);
							prove(&shape, 0x00000009);
						}
}

static void thousands_of_ranks(uint32_t size)
{
	struct plan_shape shape = {.collective = PLAN_ALLREDUCE, .size = size, .elements = 100000, .chunk_elements = 1000, .slots = 4};
	struct plan **plans = build_all(shape, 0xfffefffe);
	REQUIRE(plan_verify((const struct plan *const *)plans, size, 1) == ST_OK);
	/* The plan's memory is the same as for nine ranks. */
	shape.size = 9;
	struct plan **few = build_all(shape, 0xfffefffe);
	REQUIRE(plans[0]->step_count == few[0]->step_count);
	free_all(few, 9);
	free_all(plans, size);
}

static void bad_shapes_are_refused(void)
{
	struct plan *plan = NULL;
	struct plan_shape good = {.collective = PLAN_ALLREDUCE, .rank = 1, .size = 3, .elements = 9, .chunk_elements = 4, .slots = 2}, bad;
	static const uint32_t twice[] = {0, 1, 1}, beyond[] = {0, 1, 3};
#define REFUSED(change)                                                        \
	do {                                                                   \
		bad = good;                                                    \
		change;                                                        \
		REQUIRE(plan_build_ring(&bad, &plan) == ST_ERR_USAGE && !plan); \
	} while (0)
	REFUSED(bad.size = 0);
	REFUSED(bad.rank = 3);
	REFUSED(bad.chunk_elements = 0);
	REFUSED(bad.slots = 1);
	REFUSED(bad.slots = 0);
	REFUSED(bad.order = twice);
	REFUSED(bad.order = beyond);
	REFUSED((bad.collective = PLAN_REDUCE_SCATTER, bad.elements = 10));
	REFUSED((bad.collective = PLAN_BROADCAST, bad.root = 3));
	REFUSED((bad.collective = PLAN_BARRIER, bad.elements = 1));
	REFUSED((bad.elements = UINT64_C(1) << 59, bad.chunk_elements = 1));
	REFUSED(bad.collective = (enum plan_collective)77);
	REQUIRE(plan_build_ring(&good, &plan) == ST_OK && plan);
	plan_free(plan);
}

static void chunks_cover_the_range_once(void)
{
	for (uint32_t size = 1; size < 7; size++)
		for (uint64_t elements = 0; elements < 200; elements += 13) {
			struct plan_shape shape = {.collective = PLAN_ALLREDUCE, .size = size, .elements = elements, .chunk_elements = 5, .slots = 4};
			struct plan *plan;
			REQUIRE(plan_build_ring(&shape, &plan) == ST_OK);
			uint64_t next = 0;
			for (uint64_t b = 0; b < plan->blocks; b++)
				for (uint64_t c = 0; c < plan->chunks; c++) {
					uint64_t offset, length;
					plan_chunk_range(plan, b, c, &offset, &length);
					REQUIRE(length <= shape.chunk_elements && offset == next);
					next += length;
				}
			REQUIRE(next == elements);
			plan_free(plan);
		}
}

static void printing_tells_the_needed_size(void)
{
	struct plan_shape shape = {.collective = PLAN_ALLREDUCE, .size = 3, .elements = 100, .chunk_elements = 8, .slots = 4};
	struct plan *plan;
	REQUIRE(plan_build_ring(&shape, &plan) == ST_OK);
	size_t need = plan_print(plan, NULL, 0);
	char *text = malloc(need + 1), few[10];
	REQUIRE(text && plan_print(plan, text, need + 1) == need && strlen(text) == need);
	REQUIRE(plan_print(plan, few, sizeof few) == need && !strncmp(few, text, 9) && !few[9]);
	REQUIRE(strstr(text, "reduce") && strstr(text, "wait 0") && strstr(text, "end"));
	free(text);
	plan_free(plan);
}

int main(void)
{
	every_shape();
	thousands_of_ranks(1500);
	bad_shapes_are_refused();
	chunks_cover_the_range_once();
	printing_tells_the_needed_size();
	printf("%lu sets of plans proved\n", proved);
	return 0;
}
