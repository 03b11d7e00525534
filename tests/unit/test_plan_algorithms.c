/*
 * Plans of every algorithm are proved right: all sizes from 1 to 64, every slot depth that is allowed, in place and not, mapped links, others
 * and mixtures, ranks in any order; thousands of ranks; and what a plan costs in memory at 131,072 ranks.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "common/clock.h"
#include "libcomm/plan.h"

static const struct algorithm {
	const char *name;
	enum st_status (*build)(const struct plan_shape *shape, struct plan **plan);
	uint32_t least_slots;
	unsigned collectives; /* mask of 1 << enum plan_collective */
	bool wide;            /* sums may be */
} algorithms[] = {
	{"ring", plan_build_ring, 2, 1 << PLAN_REDUCE_SCATTER | 1 << PLAN_ALL_GATHER, true}, /* the others: test_plan.c */
	{"halving", plan_build_halving, 1, 1 << PLAN_ALLREDUCE, false},
	{"doubling", plan_build_doubling, 1, 1 << PLAN_ALLREDUCE, true},
	{"hierarchical", plan_build_hierarchical, 2, ~0u, true},
	{"torus", plan_build_torus, 2, 1 << PLAN_ALLREDUCE | 1 << PLAN_REDUCE_SCATTER | 1 << PLAN_ALL_GATHER, true},
	{"pat", plan_build_pat, 2, 1 << PLAN_REDUCE_SCATTER | 1 << PLAN_ALL_GATHER | 1 << PLAN_BARRIER, true},
	{"tree", plan_build_tree, 1, 1 << PLAN_ALLREDUCE | 1 << PLAN_BROADCAST, true},
};
#define ALGORITHMS (sizeof algorithms / sizeof *algorithms)

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

static struct plan **build_all(const struct algorithm *algorithm, struct plan_shape shape, struct links links)
{
	struct plan **plans = calloc(shape.size, sizeof *plans);
	REQUIRE(plans);
	shape.mapped = is_mapped;
	shape.mapped_context = &links;
	for (shape.rank = 0; shape.rank < shape.size; shape.rank++)
		if (algorithm->build(&shape, &plans[shape.rank]) != ST_OK) {
			fprintf(stderr, "%s: %s\n", algorithm->name, st_message());
			exit(1);
		}
	return plans;
}

static void free_all(struct plan **plans, uint32_t size)
{
	for (uint32_t r = 0; r < size; r++)
		plan_free(plans[r]);
	free(plans);
}

static void prove(const struct algorithm *algorithm, const struct plan_shape *shape, struct links links, unsigned repeats)
{
	struct plan **plans = build_all(algorithm, *shape, links);
	if (plan_verify((const struct plan *const *)plans, shape->size, repeats) != ST_OK) {
		static char text[1 << 16];
		fprintf(stderr, "%s, %s of %" PRIu64 ", %u ranks, chunks of %" PRIu64 ", %u slots, in place %d, wide %d, root %u, links %u: %s\n", algorithm->name,
			plan_collective_name(shape->collective), shape->elements, shape->size, shape->chunk_elements, shape->slots, shape->in_place,
			shape->wide, shape->root, links.kind, st_message());
		plan_print(plans[0], text, sizeof text);
		fputs(text, stderr);
		exit(1);
	}
	for (uint32_t r = 0; r < shape->size; r++)
		for (uint32_t o = 0; o < plans[r]->operand_count; o++) {
			/* What a slot holds is never longer than a slot. */
			const struct plan *plan = plans[r];
			uint64_t span = plan->operands[o].span ? plan->operands[o].span : 1;
			uint64_t longest = shape->offsets ? shape->longest : plan_block_elements(plan, 0);
			if (longest > plan->chunk_elements)
				longest = plan->chunk_elements;
			REQUIRE(plan->operands[o].space != PLAN_SCRATCH || span * longest <= shape->chunk_elements);
			/* Memory of its own is by what is under way, whatever the number of elements. */
			REQUIRE(plan->work <= 2 * plan->slots && plan->work_elements <= shape->chunk_elements);
		}
	proved++;
	free_all(plans, shape->size);
}

static void shuffle(uint32_t *order, uint32_t size)
{
	for (uint32_t i = 0; i < size; i++)
		order[i] = i;
	for (uint32_t i = size; i > 1; i--) {
		uint32_t j = draw(i), other = order[j];
		order[j] = order[i - 1];
		order[i - 1] = other;
	}
}

/* Nodes of any number of ranks: all alike, or each at random, sometimes few and many. */
static uint32_t draw_nodes(uint32_t *starts, uint32_t size)
{
	uint32_t nodes = 0, most = 1 + draw(9), alike = draw(3);
	for (uint32_t at = 0; at < size; nodes++) {
		starts[nodes] = at;
		at += alike == 0 ? most : 1 + draw(most);
	}
	starts[nodes] = size;
	return nodes;
}

/* Shards of any sizes instead of equal ones: some empty, one perhaps with nearly all. */
static void draw_shards(struct plan_shape *shape, uint64_t *offsets)
{
	const uint32_t most = 1 + draw(80), large = draw(2 * shape->size);
	offsets[0] = shape->longest = 0;
	for (uint32_t r = 0; r < shape->size; r++) {
		uint64_t shard = draw(3) ? draw(most) : 0;
		if (r == large)
			shard += 500;
		if (shard > shape->longest)
			shape->longest = shard;
		offsets[r + 1] = offsets[r] + shard;
	}
	shape->offsets = offsets;
	shape->elements = offsets[shape->size];
	shape->chunk_elements = 1 + draw(60) + shape->longest / 12;
}

/* What the sanitizers look for does not need many ranks, and they make every rank several times as slow. */
#ifdef __SANITIZE_ADDRESS__
enum { MOST_RANKS = 16, LARGE_WORLDS = 1 };
#else
enum { MOST_RANKS = 64, LARGE_WORLDS = 4 };
#endif

static void every_size(const struct algorithm *algorithm, enum plan_collective collective)
{
	uint32_t order[64], position[64], starts[65];
	uint64_t offsets[65];
	const char *all = getenv("LONG");
	const unsigned times = all && *all ? 20 : 1;
	unsigned turn = 0;
	for (uint32_t size = 1; size <= MOST_RANKS; size++)
		for (uint32_t slots = algorithm->least_slots; slots <= 4; slots++)
			for (unsigned kind = 0; kind < 4; kind++)
				for (unsigned variant = 0; variant < 4 * times; variant++) {
					/* A few of these for each size, each of these for some size; all of them in the long form. */
					if (size > 9 && times == 1 && turn++ % (size > 32 ? 47 : 17))
						continue;
					/* From nothing over less than one element per rank to several chunks per rank. */
					const uint64_t counts[] = {0, 1, size / 2, 3 * size + 1, 40 * size + 7, 400 * size};
					struct plan_shape shape = {.collective = collective, .size = size, .slots = slots, .in_place = variant & 1,
								   .elements = counts[draw(6)], .root = draw(size)};
					shape.chunk_elements = 1 + draw(5) * draw(60) + shape.elements / (12 * size);
					if (draw(8)) {
						shape.node_count = draw_nodes(starts, size);
						shape.node_starts = starts;
					}
					if (variant & 2) {
						shuffle(order, size);
						shape.order = order;
						if (draw(2)) {
							for (uint32_t i = 0; i < size; i++)
								position[order[i]] = i;
							shape.position = position;
						}
					}
					shape.wide = algorithm->wide && (collective == PLAN_ALLREDUCE || collective == PLAN_REDUCE_SCATTER) && draw(2);
					if (collective == PLAN_BARRIER)
						shape.elements = 0;
					else if (collective == PLAN_REDUCE_SCATTER || collective == PLAN_ALL_GATHER)
						shape.elements *= size;
					if ((collective == PLAN_REDUCE_SCATTER || collective == PLAN_ALL_GATHER) && draw(2))
						draw_shards(&shape, offsets);
					/* Two operations back to back; three now and then. */
					prove(algorithm, &shape, (struct links){kind, 1 + draw(9)}, 2 + (draw(8) == 0));
				}
}

static void thousands_of_ranks(const struct algorithm *algorithm, enum plan_collective collective)
{
	static const uint32_t sizes[] = {1000, 1024, 2999, 4096};
	uint32_t order[4096], starts[4097];
	const char *all = getenv("LONG");
	for (size_t i = 0; i < LARGE_WORLDS; i++) {
		if (i > 1 && !(all && *all))
			break;
		/* Proving an all-gather takes memory by the square of its size. */
		if (i > 1 && collective != PLAN_ALLREDUCE && collective != PLAN_BROADCAST)
			break;
		/* Every second one in an order of its own. */
		struct plan_shape shape = {.collective = collective, .size = sizes[i], .slots = algorithm->least_slots + (uint32_t)i,
					   .elements = 20 * (uint64_t)sizes[i], .chunk_elements = 1000, .root = draw(sizes[i])};
		if (collective == PLAN_BARRIER)
			shape.elements = 0;
		/* 30 to 33 ranks per node. */
		for (uint32_t at = 0; at < sizes[i]; at += 30 + draw(4))
			starts[shape.node_count++] = at;
		starts[shape.node_count] = sizes[i];
		shape.node_starts = starts;
		if (i % 2) {
			shuffle(order, sizes[i]);
			shape.order = order;
		}
		prove(algorithm, &shape, (struct links){(unsigned)i % 4, 8}, 1);
	}
}

/* A plan of one rank of 131,072 is small; how long it took to make is told, and no test. */
static void a_large_job(const struct algorithm *algorithm, enum plan_collective collective)
{
	enum { SIZE = 131072 };
	uint32_t *order = malloc(SIZE * sizeof *order), *position = malloc(SIZE * sizeof *position), *starts = malloc((SIZE + 1) * sizeof *starts);
	REQUIRE(order && position && starts);
	shuffle(order, SIZE);
	for (uint32_t i = 0; i < SIZE; i++)
		position[order[i]] = i;
	size_t largest = 0;
	int64_t slowest = 0, fastest = INT64_MAX;
	for (uint32_t n = 0; n < 400; n++) {
		uint32_t size = SIZE - draw(2) * draw(SIZE / 2);
		const struct links links = {n % 4, 8};
		struct plan_shape shape = {.collective = collective, .size = size, .rank = draw(size), .slots = 4, .chunk_elements = 32768,
					   .elements = (uint64_t)1 << draw(34), .in_place = draw(2), .wide = algorithm->wide && collective == PLAN_ALLREDUCE && draw(2), .mapped = is_mapped, .mapped_context = &links};
		shape.node_count = draw_nodes(starts, size);
		shape.node_starts = starts;
		if (size == SIZE) {
			shape.order = order;
			shape.position = position;
		}
		if (collective == PLAN_BARRIER)
			shape.elements = 0;
		else if (collective == PLAN_REDUCE_SCATTER || collective == PLAN_ALL_GATHER)
			shape.elements = shape.elements / size * size;
		struct plan *plan;
		int64_t began = st_now_ns();
		REQUIRE(algorithm->build(&shape, &plan) == ST_OK);
		int64_t took = st_now_ns() - began;
		if (took > slowest)
			slowest = took;
		if (took < fastest)
			fastest = took;
		REQUIRE(plan_check(plan) == ST_OK);
		if (plan_bytes(plan) > largest)
			largest = plan_bytes(plan);
		plan_free(plan);
	}
	printf("%-12s %-14s 131,072 ranks: at most %zu bytes, %.4f to %.4f ms\n", algorithm->name, plan_collective_name(collective), largest,
	       (double)fastest / 1e6, (double)slowest / 1e6);
	REQUIRE(largest < 65536);
	free(order);
	free(position);
	free(starts);
}

static void other_collectives_are_refused(const struct algorithm *algorithm)
{
	for (int collective = PLAN_ALLREDUCE; collective <= PLAN_BARRIER; collective++) {
		struct plan_shape shape = {.collective = (enum plan_collective)collective, .size = 4, .slots = 4, .chunk_elements = 4};
		struct plan *plan = NULL;
		if (algorithm->collectives >> collective & 1 || algorithm->build == plan_build_ring)
			continue;
		REQUIRE(algorithm->build(&shape, &plan) == ST_ERR_USAGE && !plan && strstr(st_message(), plan_collective_name(shape.collective)));
	}
}

int main(void)
{
	for (size_t a = 0; a < ALGORITHMS; a++) {
		other_collectives_are_refused(&algorithms[a]);
		for (int collective = PLAN_ALLREDUCE; collective <= PLAN_BARRIER; collective++)
			if (algorithms[a].collectives >> collective & 1) {
				every_size(&algorithms[a], (enum plan_collective)collective);
				thousands_of_ranks(&algorithms[a], (enum plan_collective)collective);
				a_large_job(&algorithms[a], (enum plan_collective)collective);
			}
	}
	printf("%lu sets of plans proved\n", proved);
	return 0;
}
