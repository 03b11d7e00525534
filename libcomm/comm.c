/* The public interface: options, joining ranks, and collectives as plans. */
#include "comm_internal.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bootstrap.h"
#include "comm_links.h"
#include "common/clock.h"
#include "recorder.h"
#include "transport.h"

/* From here on results are written past the caches, which they would flush, except where they lie in the input's own cache lines. */
#define STREAM_BYTES ((size_t)8 << 20)

static struct plan_shape shape_of_ranks(const struct comm *comm)
{
	return (struct plan_shape){.rank = comm->rank, .size = comm->size, .slots = comm->slots, .order = comm->world->ring, .position = comm->position,
				   .node_starts = comm->node_starts, .node_count = comm->world->node_count};
}

/* What plans want to know of the world, found once. */
static enum st_status find_places(struct comm *comm)
{
	const struct topo_world *world = comm->world;
	struct plan_layout *layout = &comm->layout;
	*layout = (struct plan_layout){.size = comm->size, .nodes = world->node_count, .least_per_node = comm->size};
	comm->position = malloc(comm->size * sizeof *comm->position);
	comm->node_starts = malloc((world->node_count + 1) * sizeof *comm->node_starts);
	if (!comm->position || !comm->node_starts)
		return st_fail(ST_ERR_NOMEM, "communicator: out of memory");
	/* The ranks of a node are adjacent in the ring. */
	for (uint32_t i = 0, node = 0; i < comm->size; i++) {
		comm->position[world->ring[i]] = i;
		if (!i || world->node_of[world->ring[i]] != world->node_of[world->ring[i - 1]])
			comm->node_starts[node++] = i;
	}
	comm->node_starts[world->node_count] = comm->size;
	for (uint32_t n = 0; n < world->node_count; n++) {
		uint32_t count = world->nodes[n].rank_count;
		if (count > layout->per_node)
			layout->per_node = count;
		if (count < layout->least_per_node)
			layout->least_per_node = count;
	}
	return ST_OK;
}

/* What rank 0's options say for all, beyond what its record does. */
static enum st_status agree(struct comm *comm)
{
	struct {
		uint32_t algorithm, lanes;
		uint64_t fusion_bytes;
	} all = {comm->options.algorithm, comm->options.lanes, comm->options.fusion_bytes};
	if (comm->size > 1)
		ST_TRY(control_group_broadcast(comm->context, &all, sizeof all, comm->options.startup_timeout_ms));
	if (all.algorithm >= COMM_ALGORITHMS)
		return st_fail(ST_ERR_MISMATCH, "communicator: rank 0 chose algorithm %" PRIu32 ", unknown here", all.algorithm);
	comm->options.algorithm = (enum comm_algorithm)all.algorithm;
	comm->options.lanes = all.lanes;
	comm->options.fusion_bytes = all.fusion_bytes;
	return comm_options_check(&comm->options);
}

static bool is_mapped(const void *context, uint32_t sender, uint32_t receiver)
{
	const struct comm *comm = context;
	const uint32_t peer = sender == comm->rank ? receiver : sender;
	const struct link *link = engine_link(comm->engine, peer, 0);
	if (!link) /* only for ordered sums; all links to a peer are of one kind */
		link = engine_link(comm->engine, peer, 1);
	return link && link->ops->mapped;
}

/* Whether every rank maps every other one's memory: one pair that can't, and none of them may take the algorithm that needs it. */
static enum st_status all_mapped(const struct comm *comm, bool *mapped)
{
	uint8_t mine = 1, *all = malloc(comm->size);
	if (!all)
		return st_fail(ST_ERR_NOMEM, "communicator: out of memory");
	for (uint32_t peer = 0; peer < comm->size; peer++)
		mine &= peer == comm->rank || is_mapped(comm, comm->rank, peer);
	enum st_status status = control_group_all_gather(comm->context, &mine, sizeof mine, all, comm->options.startup_timeout_ms);
	*mapped = true;
	for (uint32_t r = 0; r < comm->size && status == ST_OK; r++)
		*mapped &= all[r] == 1;
	free(all);
	return status;
}

enum st_status comm_open_links(struct comm *comm, uint32_t leaves)
{
	const struct comm_links_options links = {
		.group = comm->context,
		.engine = comm->engine,
		.algorithms = comm->algorithms | 1 << PLAN_RING,
		.leaves = leaves,
		.transports = comm->options.transports,
		.shape = shape_of_ranks(comm),
		.lanes = comm->options.lanes,
		.slots = comm->slots,
		.chunk_bytes = comm->chunk_bytes,
		.timeout_ms = comm->options.startup_timeout_ms,
	};
	ST_TRY(comm_links_room(&links));
	return comm_links_open(&links);
}

/* The algorithms to choose from, and the links for them. */
static enum st_status open_links(struct comm *comm)
{
	comm->algorithms = comm_algorithms_of(comm->options.algorithm);
	ST_TRY(find_places(comm));
	if (comm->size == 1 || comm->size > PLAN_DIRECT_RANKS || comm->layout.nodes > 1 || !(comm->options.transports & COMM_TRANSPORT_SHM))
		comm->algorithms &= ~(1u << PLAN_DIRECT);
	ST_TRY(comm_open_links(comm, 0));
	bool mapped = true;
	if (comm->algorithms >> PLAN_DIRECT & 1)
		ST_TRY(all_mapped(comm, &mapped));
	if (!mapped)
		comm->algorithms &= ~(1u << PLAN_DIRECT);
	return ST_OK;
}

/* More ranks here than cores this process may use: whoever waits must give way at once. */
static bool crowded(const struct comm *comm)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	if (sched_getaffinity(0, sizeof set, &set))
		return false;
	long online = sysconf(_SC_NPROCESSORS_ONLN);
	int allowed = CPU_COUNT(&set);
	/* A rank bound to its own cores is not crowded by ranks bound to others. */
	if (allowed < online)
		return false;
	return comm_local_size(comm) > (unsigned)allowed;
}

/* Lets operations go on while a decision waits: others may wait for them before they come to the decision. */
static bool move_on(void *context)
{
	const struct comm *comm = context;
	if (comm->options.progress_thread)
		return false;
	engine_progress(comm->engine); /* a failure is the job's, and ends the decision too */
	return engine_busy(comm->engine);
}

enum st_status comm_wire(struct comm *comm)
{
	const struct topo_world *job = control_world(comm->control);
	comm->world = control_group_world(comm->context);
	comm->rank = comm->world->rank;
	comm->size = comm->world->size;
	comm_recorder_open(comm);
	recorder_enter(comm->recorder); /* it waits for its peers here, too */
	struct engine_options engine = {
		.rank = job->rank,
		.host = comm_host(comm, comm->rank),
		.control = comm->control,
		.group = comm->context,
		.recorder = comm->recorder,
		.arrival_timeout_ms = comm->options.arrival_timeout_ms,
		.stall_timeout_ms = comm->options.stall_timeout_ms,
		.crowded = crowded(comm),
		.stream_bytes = STREAM_BYTES,
		.lanes = comm->options.lanes,
		.fusion_bytes = comm->options.fusion_bytes,
	};
	ST_TRY(engine_create(&engine, &comm->engine));
	control_group_meanwhile(comm->context, move_on, comm);
	ST_TRY(open_links(comm));
	recorder_leave(comm->recorder, true);
	return comm->options.progress_thread ? engine_start_thread(comm->engine) : ST_OK;
}

enum st_status comm_give_up(struct control *control, enum st_status status)
{
	char why[512];
	snprintf(why, sizeof why, "%s", st_message());
	if (control_check(control) == ST_OK)
		control_abort(control, control_world(control)->rank, CONTROL_HOW_APPLICATION, "start-up", why);
	return st_fail_copy(status, why);
}

static enum st_status create(struct bootstrap *bootstrap, bool finish, const struct comm_options *given, struct comm **out)
{
	struct comm_options options;
	struct comm *comm = NULL;
	enum st_status status = given ? ST_OK : comm_options_init(&options);
	if (given)
		options = *given;
	if (status == ST_OK)
		status = comm_options_check(&options);
	if (status == ST_OK && !(comm = calloc(1, sizeof *comm)))
		status = st_fail(ST_ERR_NOMEM, "communicator: out of memory");
	if (status == ST_OK) {
		comm->options = options;
		struct control_options control = {
			.startup_timeout_ms = options.startup_timeout_ms,
			.heartbeat_ms = options.stall_timeout_ms < 5000 ? (options.stall_timeout_ms + 9) / 10 : 500,
			.stall_timeout_ms = options.stall_timeout_ms,
			.interface = options.interface,
			.chunk_bytes_hint = (uint32_t)options.chunk_bytes,
			.slots_hint = options.slots,
			.accumulate_hint = (uint8_t)options.accumulate,
		};
		status = control_open(bootstrap, &control, &comm->control);
	}
	if (status == ST_OK) {
		uint32_t chunk_bytes, slots;
		uint8_t accumulate;
		control_hints(comm->control, &chunk_bytes, &slots, &accumulate);
		comm->context = control_root(comm->control);
		comm->size = control_world(comm->control)->size;
		comm->chunk_bytes = chunk_bytes;
		comm->slots = slots;
		comm->options.accumulate = (enum comm_accumulate)accumulate;
		/* Also for those that are split off from this one, or shrunk to. */
		comm->options.chunk_bytes = chunk_bytes;
		comm->options.slots = slots;
		status = comm_options_check(&comm->options);
	}
	if (status == ST_OK)
		status = agree(comm);
	if (status == ST_OK)
		status = comm_wire(comm);
	if (status != ST_OK && comm && comm->control)
		comm_give_up(comm->control, status);
	if (finish)
		bootstrap->finish(bootstrap);
	if (status != ST_OK) {
		char why[1024];
		snprintf(why, sizeof why, "%s", st_message());
		comm_free(comm);
		return st_fail_copy(status, why);
	}
	*out = comm;
	return ST_OK;
}

enum st_status comm_create_over(struct bootstrap *bootstrap, const struct comm_options *options, struct comm **comm)
{
	return create(bootstrap, false, options, comm);
}

enum st_status comm_create(const struct comm_options *options, struct comm **comm)
{
	struct comm_options defaults;
	if (!options) {
		ST_TRY(comm_options_init(&defaults));
		options = &defaults;
	}
	struct bootstrap *bootstrap;
	ST_TRY(bootstrap_pmix_or_single(options->startup_timeout_ms, &bootstrap));
	return create(bootstrap, true, options, comm);
}

void comm_free(struct comm *comm)
{
	if (!comm)
		return;
	engine_stop_thread(comm->engine);
	comm_recorder_judge(comm);
	/* The goodbye on the control plane goes first, so that peers take the end of the links for what it is; the engine's links name
	 * hosts that control owns, but closing them says nothing. */
	control_group_leave(comm->context);
	control_close(comm->control);
	for (size_t i = 0; i < comm->past_count; i++)
		control_close(comm->past[i]);
	engine_free(comm->engine);
	comm->engine = NULL;
	recorder_close(comm->recorder);
	for (size_t i = 0; i < PLAN_CACHE; i++)
		engine_unbind(comm->plans[i].bound);
	while (comm->memory)
		comm_memory_free(comm, comm->memory->address);
	free(comm->position);
	free(comm->node_starts);
	free(comm->leaves);
	free(comm->past);
	free(comm->parent_ranks);
	free(comm);
}

uint32_t comm_rank(const struct comm *comm)
{
	return comm->rank;
}

uint32_t comm_size(const struct comm *comm)
{
	return comm->size;
}

uint32_t comm_local_rank(const struct comm *comm)
{
	return comm->world->local_rank_of[comm->rank];
}

uint32_t comm_local_size(const struct comm *comm)
{
	return comm->world->nodes[comm->world->node_of[comm->rank]].rank_count;
}

const char *comm_host(const struct comm *comm, uint32_t rank)
{
	return rank < comm->world->size ? comm->world->nodes[comm->world->node_of[rank]].name : "";
}

uint32_t comm_world_rank(const struct comm *comm, uint32_t rank)
{
	return rank < comm->size ? control_group_job_rank(comm->context, rank) : UINT32_MAX;
}

const char *comm_name(const struct comm *comm)
{
	return control_group_name(comm->context);
}

const char *comm_job(const struct comm *comm)
{
	return control_job(comm->control);
}

/* The plan for this shape: a bound one from the cache, or a new one in the place of the one unused for longest. owned: it is not in the cache. */
static enum st_status find_plan(struct comm *comm, struct plan_shape *shape, const struct comm_shards *shards, unsigned lane,
				struct engine_plan **bound, bool *owned)
{
	struct cached_plan *oldest = NULL;
	*owned = false;
	comm->uses++;
	for (size_t i = 0; i < PLAN_CACHE; i++) {
		struct cached_plan *cached = &comm->plans[i];
		if (cached->bound && cached->lane == lane && cached->elements == shape->elements && cached->collective == shape->collective &&
		    cached->chunk_elements == shape->chunk_elements && cached->in_place == shape->in_place && cached->root == shape->root &&
		    cached->wide == shape->wide && (!shards || comm_shards_match(shards, engine_plan_of(cached->bound)))) {
			cached->last_use = comm->uses;
			*bound = cached->bound;
			return ST_OK;
		}
		if (cached->bound && engine_plan_users(cached->bound))
			continue;
		if (!oldest || cached->last_use < oldest->last_use)
			oldest = cached;
	}
	struct plan *plan;
	/* Wide partial sums have no room in the caller's buffers. */
	unsigned algorithms = comm->algorithms;
	for (int a = 0; shape->wide && a < PLAN_ALGORITHMS; a++)
		if (!plan_algorithm_has_wide((enum plan_algorithm)a))
			algorithms &= ~(1u << a);
	enum plan_algorithm algorithm = plan_cheapest(algorithms, shape->collective, shape->elements * (comm->chunk_bytes / shape->chunk_elements),
						      &comm->layout, &plan_machine_default);
	if (shards) {
		uint64_t *offsets = comm_shards_offsets(shards, comm->size);
		if (!offsets)
			return st_fail(ST_ERR_NOMEM, "communicator: out of memory");
		shape->offsets = offsets;
		shape->longest = shards->longest;
		enum st_status status = plan_build(algorithm, shape, &plan);
		if (status != ST_OK) {
			free(offsets);
			return status;
		}
		plan->owned_offsets = offsets;
	} else {
		ST_TRY(shape->leaves ? plan_build_ordered(shape, &plan) : plan_build(algorithm, shape, &plan));
	}
	*owned = !oldest;
	if (!oldest) /* so many in flight: this one lives as long as its request */
		return engine_bind(comm->engine, plan, lane, bound);
	engine_unbind(oldest->bound);
	oldest->bound = NULL;
	ST_TRY(engine_bind(comm->engine, plan, lane, &oldest->bound));
	oldest->collective = shape->collective;
	oldest->elements = shape->elements;
	oldest->chunk_elements = shape->chunk_elements;
	oldest->in_place = shape->in_place;
	oldest->wide = shape->wide;
	oldest->lane = lane;
	oldest->root = shape->root;
	oldest->last_use = comm->uses;
	*bound = oldest->bound;
	return ST_OK;
}

bool comm_overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
	uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
	return a_bytes && b_bytes && x < y + b_bytes && y < x + a_bytes;
}

enum st_status comm_issue(struct comm *comm, const struct comm_call *call, struct comm_request **request)
{
	struct comm_group *group = &comm->group;
	const enum plan_collective collective = call->collective;
	const bool reduces = collective == PLAN_ALLREDUCE || collective == PLAN_REDUCE_SCATTER;
	const bool shards = collective == PLAN_REDUCE_SCATTER || collective == PLAN_ALL_GATHER;
	/* Minima and maxima are exact in any type; the sum of two ranks is never partial. */
	bool wide = reduces && comm->size > 2 && comm->options.accumulate == COMM_ACCUMULATE_F32 &&
		    (call->type == COMM_F16 || call->type == COMM_BF16) && (call->op == COMM_SUM || call->op == COMM_AVG);
	struct plan_shape shape = shape_of_ranks(comm);
	shape.collective = collective;
	shape.elements = call->shards ? call->shards->total : (uint64_t)call->count * (shards ? comm->size : 1);
	shape.chunk_elements = comm->chunk_bytes / (wide ? sizeof(float) : comm_type_bytes(call->type));
	shape.wide = wide;
	shape.in_place = call->in_place;
	shape.root = call->shards ? call->shards->digest : call->leaves ? call->leaves : call->root;
	shape.leaves = call->leaves;
	shape.mapped = is_mapped;
	shape.mapped_context = comm;
	struct engine_plan *bound;
	bool owned;
	ST_TRY(engine_failure(comm->engine));
	ST_TRY(find_plan(comm, &shape, call->shards, group->open ? group->lane : 0, &bound, &owned));
	struct transport_signature signature = {.count = call->shards ? call->shards->total : call->count, .root = shape.root,
						.collective = (uint8_t)collective, .type = (uint8_t)call->type, .op = (uint8_t)call->op};
	if (!request) {
		if (group->members > 1) {
			signature.root = group->digest;
			signature.fused = (uint8_t)group->members;
		}
		ST_TRY(engine_submit_members(comm->engine, bound, owned, group->first, signature));
		control_group_issued(comm->context);
		return ST_OK;
	}
	ST_TRY(engine_submit_ordered(comm->engine, bound, owned, call->input, call->layer_bytes, call->output, signature, request));
	control_group_issued(comm->context);
	if (group->open)
		engine_set_group(*request, group->number);
	return ST_OK;
}

enum st_status comm_begin(struct comm *comm, const struct comm_call *call, struct comm_request **request)
{
	bool held;
	engine_lock(comm->engine);
	enum st_status status = comm_group_take(comm, call, request, &held);
	if (status == ST_OK && !held)
		status = comm_issue(comm, call, request);
	engine_unlock(comm->engine);
	return status;
}

/* counts: of shards of given sizes, which count says nothing about; else NULL. */
static enum st_status begin(struct comm *comm, enum plan_collective collective, const void *input, void *output, size_t count, const size_t *counts,
			    enum comm_type type, enum comm_op op, uint32_t root, struct comm_request **request)
{
	const char *name = plan_collective_name(collective);
	const bool shards = collective == PLAN_REDUCE_SCATTER || collective == PLAN_ALL_GATHER;
	size_t element_bytes = comm_type_bytes(type);
	if (!element_bytes)
		return st_fail(ST_ERR_USAGE, "%s: no type %d (have u8, f32, f64, f16, bf16, i32, i64)", name, (int)type);
	if ((unsigned)op >= COMM_OPS)
		return st_fail(ST_ERR_USAGE, "%s: no operation %d (have sum, avg, min, max)", name, (int)op);
	if (root >= comm->size)
		return st_fail(ST_ERR_USAGE, "%s: root %" PRIu32 " of %" PRIu32 " ranks", name, root, comm->size);
	size_t factor = shards ? comm->size : 1, bytes;
	struct comm_shards given, *uneven = counts ? &given : NULL;
	if (uneven) {
		ST_TRY(comm_shards_measure(name, counts, comm->size, comm->rank, element_bytes, uneven));
		bytes = given.total * element_bytes;
		count = counts[comm->rank];
	} else if (__builtin_mul_overflow(count, factor * element_bytes, &bytes) || bytes > SIZE_MAX / 4) {
		return st_fail(ST_ERR_USAGE, "%s: %zu elements are more than memory can hold", name, count);
	}
	if (((uintptr_t)input | (uintptr_t)output) % element_bytes)
		return st_fail(ST_ERR_USAGE, "%s: a buffer that is not aligned to its elements of %zu bytes", name, element_bytes);

	size_t own = count * element_bytes, before = uneven ? given.before * element_bytes : comm->rank * own;
	const char *in = input;
	char *out = output;
	size_t in_bytes = collective == PLAN_REDUCE_SCATTER ? bytes : own, out_bytes = collective == PLAN_ALL_GATHER ? bytes : own;
	if ((in_bytes && !input) || (out_bytes && !output))
		return st_fail(ST_ERR_USAGE, "%s: no buffer for %zu elements", name, (input ? out_bytes : in_bytes) / element_bytes);
	bool in_place = collective == PLAN_REDUCE_SCATTER ? out == in + before
			: collective == PLAN_ALL_GATHER   ? in == out + before
							  : in == out;
	if (!bytes)
		in_place = true;
	if (!in_place && comm_overlap(in, in_bytes, out, out_bytes))
		return st_fail(ST_ERR_USAGE, "%s: input and output overlap without being in place", name);

	const struct comm_call call = {.collective = collective, .input = input, .output = output, .count = count, .shards = uneven, .type = type, .op = op,
				       .root = root, .in_place = in_place};
	return comm_begin(comm, &call, request);
}

/* Shards that are all alike are what the plain collectives have: one plan and one signature for both. */
static enum st_status begin_shards(struct comm *comm, enum plan_collective collective, const void *input, void *output, const size_t *counts,
				   enum comm_type type, enum comm_op op, struct comm_request **request)
{
	bool alike = true;
	if (!counts)
		return st_fail(ST_ERR_USAGE, "%s: no counts for the shards", plan_collective_name(collective));
	for (uint32_t r = 1; r < comm->size; r++)
		alike &= counts[r] == counts[0];
	return begin(comm, collective, input, output, alike ? counts[0] : 0, alike ? NULL : counts, type, op, 0, request);
}

enum st_status comm_allreduce(struct comm *comm, const void *input, void *output, size_t count, enum comm_type type, enum comm_op op,
			      struct comm_request **request)
{
	return begin(comm, PLAN_ALLREDUCE, input, output, count, NULL, type, op, 0, request);
}

enum st_status comm_reduce_scatter(struct comm *comm, const void *input, void *output, size_t count, enum comm_type type, enum comm_op op,
				   struct comm_request **request)
{
	return begin(comm, PLAN_REDUCE_SCATTER, input, output, count, NULL, type, op, 0, request);
}

enum st_status comm_all_gather(struct comm *comm, const void *input, void *output, size_t count, enum comm_type type,
			       struct comm_request **request)
{
	return begin(comm, PLAN_ALL_GATHER, input, output, count, NULL, type, COMM_SUM, 0, request);
}

enum st_status comm_reduce_scatter_v(struct comm *comm, const void *input, void *output, const size_t *counts, enum comm_type type,
				     enum comm_op op, struct comm_request **request)
{
	return begin_shards(comm, PLAN_REDUCE_SCATTER, input, output, counts, type, op, request);
}

enum st_status comm_all_gather_v(struct comm *comm, const void *input, void *output, const size_t *counts, enum comm_type type,
				 struct comm_request **request)
{
	return begin_shards(comm, PLAN_ALL_GATHER, input, output, counts, type, COMM_SUM, request);
}

enum st_status comm_broadcast(struct comm *comm, void *buffer, size_t count, enum comm_type type, uint32_t root, struct comm_request **request)
{
	return begin(comm, PLAN_BROADCAST, buffer, buffer, count, NULL, type, COMM_SUM, root, request);
}

enum st_status comm_barrier(struct comm *comm, struct comm_request **request)
{
	return begin(comm, PLAN_BARRIER, NULL, NULL, 0, NULL, COMM_U8, COMM_SUM, 0, request);
}

enum st_status comm_progress(struct comm *comm)
{
	engine_lock(comm->engine);
	enum st_status status = engine_progress(comm->engine);
	recorder_leave(comm->recorder, false);
	engine_unlock(comm->engine);
	return status;
}

enum st_status comm_test(struct comm *comm, struct comm_request **request)
{
	if (!*request)
		return ST_OK;
	engine_lock(comm->engine);
	enum st_status status = comm_group_check(comm, *request, "comm_test");
	if (status == ST_OK)
		status = engine_test(comm->engine, request);
	recorder_leave(comm->recorder, false);
	engine_unlock(comm->engine);
	return status;
}

enum st_status comm_wait(struct comm *comm, struct comm_request **request)
{
	if (!*request)
		return ST_OK;
	engine_lock(comm->engine);
	enum st_status status = comm_group_check(comm, *request, "comm_wait");
	recorder_enter(comm->recorder);
	if (status == ST_OK)
		status = engine_wait(comm->engine, request);
	recorder_leave(comm->recorder, true);
	engine_unlock(comm->engine);
	return status;
}

void comm_abort(struct comm *comm, const char *text)
{
	control_declare(comm->control, "", text);
}

enum st_status comm_failure(struct comm *comm)
{
	engine_lock(comm->engine);
	enum st_status status = engine_failure(comm->engine);
	engine_unlock(comm->engine);
	return status;
}

enum st_status comm_decide(struct comm *comm, void *data, size_t bytes)
{
	ST_TRY(comm_failure(comm));
	recorder_enter_decision(comm->recorder);
	enum st_status status = control_group_broadcast(comm->context, data, bytes, comm->options.arrival_timeout_ms);
	recorder_leave_decision(comm->recorder);
	return status;
}

enum st_status comm_collect(struct comm *comm, const void *mine, size_t bytes, void *all)
{
	ST_TRY(comm_failure(comm));
	recorder_enter_decision(comm->recorder);
	enum st_status status = control_group_all_gather(comm->context, mine, bytes, all, comm->options.arrival_timeout_ms);
	recorder_leave_decision(comm->recorder);
	return status;
}

void comm_counters_read(const struct comm *comm, struct comm_counters *counters)
{
	engine_lock(comm->engine);
	engine_counters(comm->engine, counters);
	engine_unlock(comm->engine);
}
