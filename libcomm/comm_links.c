/*
 * Opening links.
 *
 * Both ends of a link open it, and opening blocks until the other end does.  So every rank opens its links in one order that is the same for all: of the
 * links not yet open the first one of all is the next one at both of its ends, and nobody waits in a circle.  The order is by a number
 * drawn from the link's two ends: in the order of ranks the links of a ring would open one after the other.
 */
#include "comm_links.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory_room.h"
#include "transport.h"
#include "wire.h"

struct edge {
	uint64_t order;
	uint32_t peer;
	uint16_t index;
	uint8_t lane;
};

struct edges {
	struct edge *items;
	size_t count, room;
};

static uint64_t order_of(uint64_t a, uint64_t b, uint64_t index, uint64_t lane)
{
	uint64_t x = ((a < b ? a << 32 | b : b << 32 | a) ^ index << 60 ^ lane << 28) + UINT64_C(0x9e3779b97f4a7c15);
	/* One to one, so that no two links of a job have the same number. */
	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return x ^ (x >> 31);
}

static int by_order(const void *a, const void *b)
{
	const struct edge *x = a, *y = b;
	return (x->order > y->order) - (x->order < y->order);
}

static enum st_status add_edges(const struct engine *engine, struct edges *edges, const struct plan *plan, uint8_t lane)
{
	for (uint32_t i = 0; i < plan->channel_count; i++) {
		struct edge edge = {.peer = plan->channels[i].peer, .index = plan->channels[i].index, .lane = lane};
		edge.order = order_of(plan->rank, edge.peer, edge.index, lane);
		bool known = engine_link(engine, edge.peer, edge.index); /* all lanes of it were opened together */
		for (size_t k = 0; k < edges->count; k++)
			known |= edges->items[k].order == edge.order;
		if (known)
			continue;
		if (edges->count == edges->room) {
			size_t room = edges->room ? 2 * edges->room : 16;
			struct edge *items = realloc(edges->items, room * sizeof *items);
			if (!items)
				return st_fail(ST_ERR_NOMEM, "communicator: out of memory");
			edges->items = items;
			edges->room = room;
		}
		edges->items[edges->count++] = edge;
	}
	return ST_OK;
}

static bool any_mapped(const void *context, uint32_t sender, uint32_t receiver)
{
	(void)context, (void)sender, (void)receiver;
	return true;
}

static enum st_status add_plan(const struct comm_links_options *options, enum plan_algorithm algorithm, enum plan_collective collective,
			       struct edges *edges)
{
	struct plan_shape shape = options->shape;
	struct plan *plan;
	shape.collective = collective;
	shape.leaves = options->leaves;
	shape.elements = 0;
	shape.chunk_elements = 1;
	shape.slots = options->slots;
	shape.mapped = any_mapped;
	ST_TRY(options->leaves ? plan_build_ordered(&shape, &plan) : plan_build(algorithm, &shape, &plan));
	enum st_status status = ST_OK;
	for (uint8_t lane = 0; lane < options->lanes && status == ST_OK; lane++)
		status = add_edges(options->engine, edges, plan, lane);
	plan_free(plan);
	return status;
}

/* The channels of an algorithm's plans depend on the shape's ranks alone, neither on how much data there is nor on what carries it. */
static enum st_status find_edges(const struct comm_links_options *options, struct edges *edges)
{
	if (options->leaves)
		return add_plan(options, PLAN_RING, PLAN_ALLREDUCE_ORDERED, edges);
	for (int algorithm = 0; algorithm < PLAN_ALGORITHMS; algorithm++)
		for (int collective = PLAN_ALLREDUCE; collective <= PLAN_BARRIER; collective++)
			if (options->algorithms >> algorithm & 1 && plan_algorithm_has((enum plan_algorithm)algorithm, (enum plan_collective)collective))
				ST_TRY(add_plan(options, (enum plan_algorithm)algorithm, (enum plan_collective)collective, edges));
	return ST_OK;
}

/* Shared memory on the same node where allowed, else TCP. */
static enum st_status open_link(const struct comm_links_options *options, const struct edge *edge)
{
	struct control *control = control_group_control(options->group);
	const struct topo_world *world = control_world(control);
	/* Of the job, as everything below. */
	const uint32_t rank = world->rank, peer = control_group_job_rank(options->group, edge->peer);
	struct transport_ends ends = {rank, peer, world->nodes[world->node_of[rank]].name, world->nodes[world->node_of[peer]].name};
	bool share = false;
	if (world->node_of[rank] == world->node_of[peer] && options->transports & COMM_TRANSPORT_SHM)
		ST_TRY(control_same_node(control, peer, &share));
	if (!share && !(options->transports & COMM_TRANSPORT_TCP))
		return st_fail(ST_ERR_UNAVAILABLE, "ranks %" PRIu32 " on %s and %" PRIu32 " on %s can't share memory, and the transports allowed are shm only",
			       ends.rank, ends.host, ends.peer, ends.peer_host);
	int fd;
	struct link *link;
	ST_TRY(control_group_data_socket(options->group, peer, edge->index | (uint32_t)edge->lane << 16, share, &fd));
	const struct transport_ops *ops = share ? &transport_shm : &transport_tcp;
	enum st_status status = ops->open(fd, &ends, options->slots, options->chunk_bytes, options->timeout_ms, &link);
	if (status == ST_ERR_SYSTEM || status == ST_ERR_ABORTED || status == ST_ERR_TIMEOUT) {
		/* Most likely the peer went away in mid-opening: whoever saw how knows better than this end of the socket. */
		char why[512];
		snprintf(why, sizeof why, "%s", st_message());
		return control_group_suspect(options->group, peer, "start-up", why);
	}
	ST_TRY(status);
	/* Operations over other links may be in flight. */
	engine_lock(options->engine);
	status = engine_add_link(options->engine, link, edge->index, edge->lane);
	engine_unlock(options->engine);
	return status;
}

/* What a rank tells the others of its memory. */
struct room {
	uint64_t needed, available, limit;
	uint64_t group; /* equal for ranks of one node that the same limit binds */
	char path[128];
};

enum st_status comm_links_room(const struct comm_links_options *options)
{
	const struct topo_world *world = control_group_world(options->group);
	const uint32_t node = world->node_of[world->rank];
	struct edges edges = {0};
	struct st_memory_room here;
	if (world->size == 1)
		return ST_OK;
	enum st_status status = find_edges(options, &edges);
	uint64_t segments = 0;
	for (size_t i = 0; i < edges.count; i++)
		segments += world->node_of[edges.items[i].peer] == node;
	free(edges.items);
	ST_TRY(status);
	st_memory_room_read("", &here);
	struct room mine = {.available = here.available, .limit = here.limit, .group = here.identity};
	if (options->transports & COMM_TRANSPORT_SHM)
		mine.needed = st_memory_cost(segments * transport_shm_bytes(options->slots, options->chunk_bytes));
	snprintf(mine.path, sizeof mine.path, "%.*s", (int)sizeof mine.path - 1, here.path);
	struct room *rooms = malloc(world->size * sizeof *rooms);
	if (!rooms)
		return st_fail(ST_ERR_NOMEM, "communicator: out of memory");
	status = control_group_all_gather(options->group, &mine, sizeof mine, rooms, options->timeout_ms);
	/* For each rank: what it and the later ranks of its group need, so that the group's first rank sees the sum. */
	for (uint32_t n = 0; n < world->node_count && status == ST_OK; n++)
		for (uint32_t i = 0; i < world->nodes[n].rank_count && status == ST_OK; i++) {
			struct room *first = &rooms[world->nodes[n].ranks[i]];
			uint32_t ranks = 0;
			uint64_t needed = 0;
			for (uint32_t k = i; k < world->nodes[n].rank_count; k++) {
				struct room *other = &rooms[world->nodes[n].ranks[k]];
				if (other->group != first->group || !other->needed)
					continue;
				if (__builtin_add_overflow(needed, other->needed, &needed))
					needed = UINT64_MAX;
				ranks++;
				if (other->available < first->available)
					first->available = other->available;
			}
			wire_clean_text(first->path, sizeof first->path);
			if (needed > first->available)
				status = st_fail(ST_ERR_NOMEM,
						 "shared memory for the links of %" PRIu32 " ranks on %s: %" PRIu64 " bytes are needed, %" PRIu64
						 " are available in %s, whose limit is %" PRIu64,
						 ranks, world->nodes[n].name, needed, first->available, first->path, first->limit);
		}
	free(rooms);
	return status;
}

enum st_status comm_links_open(const struct comm_links_options *options)
{
	const struct topo_world *world = control_group_world(options->group);
	struct edges edges = {0};
	if (world->size == 1)
		return ST_OK;
	/* Known to all ranks: all say the same. */
	if (!(options->transports & COMM_TRANSPORT_TCP) && world->node_count > 1)
		return st_fail(ST_ERR_UNAVAILABLE, "the transports allowed are shm only, and the job spans %" PRIu32 " nodes (%s, %s%s)", world->node_count,
			       world->nodes[0].name, world->nodes[1].name, world->node_count > 2 ? ", ..." : "");
	enum st_status status = find_edges(options, &edges);
	if (edges.count)
		qsort(edges.items, edges.count, sizeof *edges.items, by_order);
	for (size_t i = 0; i < edges.count && status == ST_OK; i++)
		status = open_link(options, &edges.items[i]);
	free(edges.items);
	return status;
}
