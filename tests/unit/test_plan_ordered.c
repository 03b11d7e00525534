/*
 * Plans of ordered sums are proved right: all numbers of ranks from 1 to 64 with leaves that they share evenly, unevenly, or of which some ranks
 * have none, every slot depth, in place and not, mapped links and others; thousands of ranks; and what a plan costs at 131,072 ranks.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "common/clock.h"
#include "libcomm/leaves.h"
#include "libcomm/plan.h"

static unsigned long proved;
static uint64_t state = 88172645463325252u;
static uint32_t draw(uint32_t n)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)(state >> 20) % n;
}

/* 0: none mapped; 1: all; 2: within the node of so many ranks; 3: some, without any sense. */
struct links {
	unsigned kind;
	uint32_t per_node;
};

static bool is_mapped(const void *context, uint32_t sender, uint32_t receiver)
{
	const struct links *links = context;
	switch (links->kind) {
	case 0: return false;
	case 1: return true;
	case 2: return sender / links->per_node == receiver / links->per_node;
	default: return (sender * 7 + receiver * 13) % 5 < 2;
	}
}

static void prove(struct plan_shape shape, struct links links, unsigned repeats)
{
	struct plan **plans = calloc(shape.size, sizeof *plans);
	REQUIRE(plans);
	shape.collective = PLAN_ALLREDUCE_ORDERED;
	shape.mapped = is_mapped;
	shape.mapped_context = &links;
	for (shape.rank = 0; shape.rank < shape.size; shape.rank++)
		if (plan_build_ordered(&shape, &plans[shape.rank]) != ST_OK) {
			fprintf(stderr, "%u leaves, %u ranks: %s\n", shape.leaves, shape.size, st_message());
			exit(1);
		}
	if (plan_verify((const struct plan *const *)plans, shape.size, repeats) != ST_OK) {
		static char text[1 << 16];
		unsigned culprit = 0;
		fprintf(stderr, "%" PRIu64 " elements, %u leaves, %u ranks, chunks of %" PRIu64 ", %u slots, in place %d, links %u: %s\n", shape.elements,
			shape.leaves, shape.size, shape.chunk_elements, shape.slots, shape.in_place, links.kind, st_message());
		sscanf(st_message(), "plan refused: rank %u", &culprit);
		plan_print(plans[culprit], text, sizeof text);
		fputs(text, stderr);
		exit(1);
	}
	for (uint32_t r = 0; r < shape.size; r++) {
		const struct plan *plan = plans[r];
		const uint64_t longest = plan_block_elements(plan, 0);
		for (uint32_t o = 0; o < plan->operand_count; o++) {
			uint64_t span = plan->operands[o].span ? plan->operands[o].span : 1;
			REQUIRE((plan->operands[o].space != PLAN_SCRATCH && plan->operands[o].space != PLAN_WORK) || span * longest <= shape.chunk_elements);
		}
		REQUIRE(plan->work_elements <= shape.chunk_elements && plan->work <= 32);
	}
	proved++;
	for (uint32_t r = 0; r < shape.size; r++)
		plan_free(plans[r]);
	free(plans);
}

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { MOST_RANKS = 16, LARGE_WORLDS = 1 };
#else
enum { MOST_RANKS = 64, LARGE_WORLDS = 4 };
#endif

static uint32_t draw_leaves(uint32_t size)
{
	switch (draw(8)) {
	case 0: return size;
	case 1: return 3 * size + 5;
	case 2: return size * (1 + draw(12));
	case 3: return 1 + draw(size); /* some ranks have none */
	case 4: return 1 + draw(3);
	case 5: return 1u << draw(12);
	case 6: return 1 + draw(200 * size); /* many on each */
	default: return 1 + draw(4 * size);
	}
}

static void every_size(void)
{
	const char *all = getenv("LONG");
	const unsigned times = all && *all ? 40 : 1;
	for (uint32_t size = 1; size <= MOST_RANKS; size++)
		for (uint32_t slots = 1; slots <= 4; slots++)
			for (unsigned variant = 0; variant < 8 * times; variant++) {
				if (size > 16 && times == 1 && (variant + slots + size) % 4)
					continue;
				const uint64_t counts[] = {0, 1, size / 2, 3 * size + 1, 40 * size + 7, 400 * size};
				struct plan_shape shape = {.size = size, .slots = slots, .in_place = variant & 1, .elements = counts[draw(6)],
							   .leaves = draw_leaves(size)};
				shape.chunk_elements = 1 + draw(5) * draw(60) + shape.elements / (12 * size);
				prove(shape, (struct links){variant / 2 % 4, 1 + draw(9)}, 2 + (draw(8) == 0));
			}
	/* Every number of leaves where there are few ranks. */
	for (uint32_t size = 1; size <= 13; size++)
		for (uint32_t leaves = 1; leaves <= 70; leaves++) {
			struct plan_shape shape = {.size = size, .slots = 1 + draw(4), .in_place = draw(2), .elements = 40 * size + 7, .leaves = leaves,
						   .chunk_elements = 1 + draw(60)};
			prove(shape, (struct links){draw(4), 1 + draw(9)}, 2);
		}
}

static void thousands_of_ranks(void)
{
	static const uint32_t sizes[] = {1000, 777, 1024, 2999};
	const char *all = getenv("LONG");
	for (size_t i = 0; i < LARGE_WORLDS; i++) {
		if (i > 2 && !(all && *all))
			break;
		struct plan_shape shape = {.size = sizes[i], .slots = 1 + (uint32_t)i, .elements = 20 * (uint64_t)sizes[i], .chunk_elements = 1000,
					   .leaves = i % 2 ? sizes[i] : 3 * sizes[i] + 5, .in_place = i / 2};
		prove(shape, (struct links){(unsigned)i % 4, 8}, 1);
	}
}

/* A plan of one rank of 131,072 is small, and its peers are few; how long it took to make is told, and no test. */
static void a_large_job(void)
{
	enum { SIZE = 131072 };
	size_t largest = 0;
	int64_t slowest = 0, fastest = INT64_MAX;
	uint32_t most_channels = 0;
	for (uint32_t n = 0; n < 4000; n++) {
		uint32_t size = SIZE - draw(2) * draw(SIZE / 2);
		const struct links links = {n % 4, 8};
		const uint32_t leaves[] = {size, 3 * size + 5, size * (1 + draw(64)), 1 + draw(size), 100 * size + 7, 1 + draw(LEAVES_MOST)};
		struct plan_shape shape = {.collective = PLAN_ALLREDUCE_ORDERED, .size = size, .rank = draw(size), .slots = 1 + draw(8),
					   .chunk_elements = 32768, .elements = (uint64_t)1 << draw(34), .in_place = draw(2), .mapped = is_mapped,
					   .mapped_context = &links, .leaves = leaves[draw(6)]};
		struct plan *plan;
		int64_t began = st_now_ns();
		REQUIRE(plan_build_ordered(&shape, &plan) == ST_OK);
		int64_t took = st_now_ns() - began;
		if (took > slowest)
			slowest = took;
		if (took < fastest)
			fastest = took;
		REQUIRE(plan_check(plan) == ST_OK);
		if (plan_bytes(plan) > largest)
			largest = plan_bytes(plan);
		if (plan->channel_count > most_channels)
			most_channels = plan->channel_count;
		plan_free(plan);
	}
	printf("ordered, 131,072 ranks: at most %zu bytes, %" PRIu32 " channels, %.4f to %.4f ms\n", largest, most_channels, (double)fastest / 1e6,
	       (double)slowest / 1e6);
	REQUIRE(largest < 65536 && most_channels <= 2 * 17 + 10);
}

/* Where ranks hold whole subtrees the bytes are those of recursive halving: each rank puts (p - 1) / p of the range twice. */
static void nothing_is_gathered(void)
{
	for (uint32_t size = 2; size <= 64; size *= 2)
		for (uint32_t leaves = size; leaves <= 8 * size; leaves *= 2) {
			struct plan_shape shape = {.collective = PLAN_ALLREDUCE_ORDERED, .size = size, .rank = draw(size), .slots = 2, .elements = 64 * size,
						   .chunk_elements = 64 * size, .leaves = leaves};
			struct plan *plan;
			uint64_t put = 0;
			REQUIRE(plan_build_ordered(&shape, &plan) == ST_OK);
			for (uint32_t i = 0; i < plan->step_count; i++) {
				REQUIRE(plan->steps[i].kind != PLAN_LOOP);
				if (plan->steps[i].kind == PLAN_PUT)
					put += plan->operands[plan->steps[i].sources].span * plan_block_elements(plan, 0);
			}
			REQUIRE(put == 2 * 64 * (size - 1) && !plan->work && plan_layers(plan) == 1);
			plan_free(plan);
		}
}

static void what_makes_no_sense_is_refused(void)
{
	struct plan_shape shape = {.collective = PLAN_ALLREDUCE_ORDERED, .size = 4, .slots = 1, .elements = 8, .chunk_elements = 4};
	struct plan *plan = NULL;
	REQUIRE(plan_build_ordered(&shape, &plan) == ST_ERR_USAGE && strstr(st_message(), "0 leaves"));
	shape.leaves = LEAVES_MOST + 1;
	REQUIRE(plan_build_ordered(&shape, &plan) == ST_ERR_USAGE && strstr(st_message(), "16777217 leaves"));
	shape.leaves = 4;
	shape.collective = PLAN_ALLREDUCE;
	REQUIRE(plan_build_ordered(&shape, &plan) == ST_ERR_USAGE && strstr(st_message(), "allreduce"));
	shape.collective = PLAN_ALLREDUCE_ORDERED;
	shape.rank = 4;
	REQUIRE(plan_build_ordered(&shape, &plan) == ST_ERR_USAGE && !plan);
	shape.rank = 0;
	shape.slots = 0;
	REQUIRE(plan_build_ordered(&shape, &plan) == ST_ERR_USAGE && !plan);
}

int main(void)
{
	what_makes_no_sense_is_refused();
	nothing_is_gathered();
	every_size();
	thousands_of_ranks();
	a_large_job();
	printf("%lu sets of plans proved\n", proved);
	return 0;
}
