/* Groups: priorities, and which operations run as one. */
#include "comm_internal.h"

/* What a signature can say. */
#define MOST_MEMBERS 255

static void forget_members(struct comm_group *group)
{
	group->first = group->last = NULL;
	group->members = 0;
	group->count = 0;
	group->digest = 0;
}

/* Lists of counts that differ have different digests, but for one in 2^32. */
static uint32_t mix(uint32_t digest, size_t count)
{
	uint64_t x = ((uint64_t)digest + UINT64_C(0x9e3779b97f4a7c15)) ^ count;
	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return (uint32_t)(x ^ (x >> 32));
}

/* Issues what is held back.  A failure ends the job: others count on this rank's part. */
static enum st_status flush(struct comm *comm)
{
	struct comm_group *group = &comm->group;
	if (!group->first)
		return engine_failure(comm->engine);
	const struct comm_call call = {.collective = PLAN_ALLREDUCE, .input = group->input, .output = group->output, .count = group->count,
				       .type = group->type, .op = group->op, .in_place = group->members > 1 || group->input == group->output};
	enum st_status status = engine_failure(comm->engine);
	if (status == ST_OK) {
		status = comm_issue(comm, &call, NULL);
		if (status != ST_OK)
			engine_fail(comm->engine, status);
	}
	forget_members(group);
	return status;
}

static bool fits(const struct comm *comm, const struct comm_call *call)
{
	const struct comm_group *group = &comm->group;
	const size_t element_bytes = comm_type_bytes(call->type);
	return !group->first || (group->type == call->type && group->op == call->op && group->members < MOST_MEMBERS &&
				 (group->count + call->count) * element_bytes <= comm->options.fusion_bytes);
}

enum st_status comm_group_take(struct comm *comm, const struct comm_call *call, struct comm_request **request, bool *held)
{
	struct comm_group *group = &comm->group;
	struct comm_request *member;
	*held = false;
	if (!group->open)
		return ST_OK;
	const size_t bytes = call->count * comm_type_bytes(call->type);
	const bool small = call->collective == PLAN_ALLREDUCE && comm->options.fusion_bytes && bytes <= comm->options.fusion_bytes;
	/* What is issued later stays behind. */
	if (!small || !fits(comm, call))
		ST_TRY(flush(comm));
	if (!small)
		return ST_OK;
	ST_TRY(engine_make_member(comm->engine, call->input, call->output, bytes, &member));
	engine_set_group(member, group->number);
	if (group->first)
		engine_append_member(group->last, member);
	else {
		group->first = member;
		group->type = call->type;
		group->op = call->op;
		group->input = call->input;
		group->output = call->output;
	}
	group->last = member;
	group->members++;
	group->count += call->count;
	group->digest = mix(group->digest, call->count);
	*request = member;
	*held = true;
	return ST_OK;
}

enum st_status comm_group_check(const struct comm *comm, const struct comm_request *request, const char *name)
{
	if (!comm->group.open || engine_group_of(request) != comm->group.number)
		return ST_OK;
	return st_fail(ST_ERR_USAGE, "%s: the request belongs to a group that is still open: comm_group_end comes first", name);
}

enum st_status comm_group_begin(struct comm *comm, unsigned priority)
{
	struct comm_group *group = &comm->group;
	enum st_status status = ST_OK;
	engine_lock(comm->engine);
	if (group->open) {
		status = st_fail(ST_ERR_USAGE, "comm_group_begin: a group is open already, and groups do not nest");
	} else {
		status = engine_failure(comm->engine);
		group->open = status == ST_OK;
		group->number++;
		group->lane = priority < comm->options.lanes ? priority : comm->options.lanes - 1;
	}
	engine_unlock(comm->engine);
	return status;
}

enum st_status comm_group_end(struct comm *comm)
{
	struct comm_group *group = &comm->group;
	enum st_status status;
	engine_lock(comm->engine);
	if (group->open) {
		status = flush(comm);
		group->open = false;
	} else {
		status = st_fail(ST_ERR_USAGE, "comm_group_end: no group is open");
	}
	engine_unlock(comm->engine);
	return status;
}
