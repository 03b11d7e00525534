/* The interpreter of plans, and what happens when a wait is in vain. */
#include "engine_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control.h"
#include "recorder.h"

/* A rank that has waited so long tells its peers where it is. */
#define ANNOUNCE_NS (100 * ST_NS_PER_MS)
/* And so often asks their hosts for a sign of life. */
#define CHECK_NS (500 * ST_NS_PER_MS)

void engine_release_plan(struct engine_plan *bound)
{
	if (!--bound->users && bound->owned)
		engine_unbind(bound);
}

enum st_status engine_create(const struct engine_options *options, struct engine **engine)
{
	if (options->lanes > COMM_MAX_LANES)
		return st_fail(ST_ERR_INTERNAL, "engine: %u lanes", options->lanes);
	struct engine *made = calloc(1, sizeof *made);
	if (!made)
		return st_fail(ST_ERR_NOMEM, "engine: out of memory");
	made->options = *options;
	if (!made->options.lanes)
		made->options.lanes = 1;
	for (unsigned l = 0; l < COMM_MAX_LANES; l++)
		made->lanes[l].engine = made;
	engine_reset_spin(made);
	*engine = made;
	return ST_OK;
}

void engine_free(struct engine *engine)
{
	if (!engine)
		return;
	engine_stop_thread(engine);
	for (unsigned l = 0; l < engine->options.lanes; l++) {
		for (struct comm_request *request = engine->lanes[l].first; request; request = request->next)
			engine_release_plan(request->bound);
		free(engine->lanes[l].staging);
	}
	while (engine->made) {
		struct comm_request *request = engine->made;
		engine->made = request->made;
		free(request);
	}
	for (size_t i = 0; i < engine->link_count; i++)
		engine->links[i]->ops->close(engine->links[i]);
	free(engine->links);
	free(engine->fds);
	free(engine->memory.regions);
	free(engine);
}

enum st_status engine_add_link(struct engine *engine, struct link *link, uint16_t index, unsigned lane)
{
	struct link **links = realloc(engine->links, (engine->link_count + 1) * sizeof(struct link *));
	if (links)
		engine->links = links;
	struct pollfd *fds = realloc(engine->fds, (engine->link_count + 3) * sizeof *fds);
	if (fds)
		engine->fds = fds;
	if (!links || !fds || lane >= engine->options.lanes) {
		link->ops->close(link);
		return links && fds ? st_fail(ST_ERR_INTERNAL, "engine: lane %u of %u", lane, engine->options.lanes)
				    : st_fail(ST_ERR_NOMEM, "engine: out of memory");
	}
	engine->links[engine->link_count++] = link;
	link->index = index;
	link->lane = (uint8_t)lane;
	link->memory = &engine->memory;
	return ST_OK;
}

enum st_status engine_add_memory(struct engine *engine, const void *address, size_t bytes, int fd)
{
	return transport_memory_add(&engine->memory, address, bytes, fd);
}

void engine_remove_memory(struct engine *engine, const void *address)
{
	uint64_t id = transport_memory_remove(&engine->memory, address);
	for (size_t i = 0; id && i < engine->link_count; i++)
		if (engine->links[i]->ops->forget)
			engine->links[i]->ops->forget(engine->links[i], id);
}

static struct link *find_link(const struct engine *engine, uint32_t peer, uint16_t index, unsigned lane)
{
	if (engine->options.group)
		peer = control_group_job_rank(engine->options.group, peer);
	for (size_t i = 0; i < engine->link_count; i++)
		if (engine->links[i]->ends.peer == peer && engine->links[i]->index == index && engine->links[i]->lane == lane)
			return engine->links[i];
	return NULL;
}

const struct link *engine_link(const struct engine *engine, uint32_t peer, uint16_t index)
{
	return find_link(engine, peer, index, 0);
}

void engine_unbind(struct engine_plan *bound)
{
	if (!bound)
		return;
	plan_free(bound->plan);
	free(bound->links);
	free(bound->distinct);
	free(bound->ends);
	free(bound->work);
	free(bound);
}

/* The plan does not say of which type its elements are: wide partial sums are f32, others as long as the longest type. */
static enum st_status allocate_work(struct engine_plan *bound)
{
	const struct plan *plan = bound->plan;
	const size_t line = 64, element = plan->wide ? sizeof(float) : sizeof(double);
	size_t bytes, all;
	if (!plan->work)
		return ST_OK;
	if (__builtin_mul_overflow(plan->work_elements, element, &bytes) || bytes > SIZE_MAX - line ||
	    __builtin_mul_overflow((bytes + line - 1) / line * line, plan->work, &all) || !(bound->work = aligned_alloc(line, all)))
		return st_fail(ST_ERR_NOMEM, "engine: no memory for %" PRIu32 " work slots of %ju elements", plan->work, (uintmax_t)plan->work_elements);
	bound->work_bytes = all / plan->work;
	return ST_OK;
}

const struct plan *engine_plan_of(const struct engine_plan *bound)
{
	return bound->plan;
}

unsigned engine_plan_users(const struct engine_plan *bound)
{
	return bound->users;
}

enum st_status engine_bind(struct engine *engine, struct plan *plan, unsigned lane, struct engine_plan **bound)
{
	struct engine_plan *made = calloc(1, sizeof *made);
	if (!made) {
		plan_free(plan);
		return st_fail(ST_ERR_NOMEM, "engine: out of memory");
	}
	made->plan = plan;
	made->lane = lane;
	enum st_status status = lane < engine->options.lanes ? plan_check(plan) : st_fail(ST_ERR_INTERNAL, "engine: lane %u of %u", lane, engine->options.lanes);
	if (status == ST_OK) {
		made->links = calloc(plan->channel_count + 1, sizeof(struct link *));
		made->distinct = calloc(plan->channel_count + 1, sizeof(struct link *));
		made->ends = calloc(plan->step_count + 1, sizeof *made->ends);
		if (!made->links || !made->distinct || !made->ends)
			status = st_fail(ST_ERR_NOMEM, "engine: out of memory");
	}
	if (status == ST_OK)
		status = allocate_work(made);
	for (uint32_t i = 0; status == ST_OK && i < plan->channel_count; i++) {
		const struct plan_channel *channel = &plan->channels[i];
		made->links[i] = find_link(engine, channel->peer, channel->index, lane);
		if (!made->links[i])
			status = st_fail(ST_ERR_INTERNAL, "engine: rank %" PRIu32 " has no link %u to rank %" PRIu32 " in lane %u", engine->options.rank,
					 channel->index, channel->peer, lane);
		else if (made->links[i]->ops->mapped != channel->mapped)
			status = st_fail(ST_ERR_INTERNAL, "engine: the plan of rank %" PRIu32 " takes %s for another kind of link",
					 engine->options.rank, made->links[i]->ops->name);
		else if (made->links[i]->slots < plan->slots)
			status = st_fail(ST_ERR_INTERNAL, "engine: the plan of rank %" PRIu32 " has %" PRIu32 " slots, its link %u", engine->options.rank,
					 plan->slots, made->links[i]->slots);
		bool known = false;
		for (uint32_t k = 0; k < made->distinct_count; k++)
			known |= made->distinct[k] == made->links[i];
		if (!known)
			made->distinct[made->distinct_count++] = made->links[i];
	}
	if (status != ST_OK) {
		engine_unbind(made);
		return status;
	}
	uint32_t open[PLAN_MAX_DEPTH], depth = 0;
	for (uint32_t i = 0; i < plan->step_count; i++) {
		if (plan->steps[i].kind == PLAN_LOOP)
			open[depth++] = i;
		else if (plan->steps[i].kind == PLAN_END)
			made->ends[open[--depth]] = i;
	}
	for (uint32_t i = 0; i < plan->operand_count; i++)
		made->borrows |= plan->operands[i].space == PLAN_BORROWED;
	made->quotient = plan->elements / plan->blocks;
	made->remainder = plan->elements % plan->blocks;
	*bound = made;
	return ST_OK;
}

/* What the service thread says of this rank: of its current operations, the oldest is what others wait for most. */
static void say_what_is_done(const struct engine *engine)
{
	const struct comm_request *oldest = NULL;
	for (unsigned l = 0; l < engine->options.lanes; l++) {
		const struct comm_request *first = engine->lanes[l].first;
		if (first && first->started && (!oldest || first->signature.sequence < oldest->signature.sequence))
			oldest = first;
	}
	if (oldest && engine->options.group)
		control_group_doing(engine->options.group, plan_collective_name(oldest->bound->plan->collective), oldest->signature.sequence);
}

/* Gathers a fused operation's inputs, or spreads out what became of them. */
static void copy_members(const struct lane *lane, const struct comm_request *request, bool gather)
{
	char *staging = lane->staging;
	for (const struct comm_request *member = request->members; member; member = member->next) {
		if (member->bytes)
			memcpy(gather ? staging : member->output, gather ? member->input : staging, member->bytes);
		staging += member->bytes;
		lane->engine->counters.copied_bytes += member->bytes;
	}
}

/* Of the bytes from which on results are written past the caches: where memory is read by others in place it pays so much earlier. */
#define BORROWED_STREAMS_FROM 128

static void start(struct lane *lane)
{
	struct engine *engine = lane->engine;
	struct comm_request *request = lane->first;
	request->started = true;
	engine->starts++;
	lane->at = 0;
	lane->depth = 0;
	memset(lane->vars, 0, sizeof lane->vars);
	const struct plan *plan = request->bound->plan;
	bool reduces = plan->collective == PLAN_ALLREDUCE || plan->collective == PLAN_REDUCE_SCATTER || plan->collective == PLAN_ALLREDUCE_ORDERED;
	const enum comm_type type = (enum comm_type)request->signature.type;
	const enum comm_op op = (enum comm_op)request->signature.op;
	lane->finish = reduce_kernel_best(type, op);
	lane->add = op == COMM_AVG ? reduce_kernel_best(type, COMM_SUM) : lane->finish;
	/* A reduction in place has just read the lines that it writes.  Results that others have read are in their caches, from where it would take them away. */
	size_t stream_bytes = engine->options.stream_bytes / (request->bound->borrows ? BORROWED_STREAMS_FROM : 1);
	lane->stream = plan->elements * request->element_bytes >= stream_bytes && !(reduces && plan->in_place);
	lane->still_since = 0;
	lane->counting = lane->announced = lane->second_chance = lane->recorded = false;
	lane->started_moves = lane->moves;
	recorder_start(engine->options.recorder, &request->signature, plan, request->bound->lane);
	if (request->members) {
		request->input = request->output = lane->staging;
		copy_members(lane, request, true);
	}
	for (uint32_t i = 0; i < request->bound->distinct_count; i++) {
		struct link *link = request->bound->distinct[i];
		link->given_back_before = link->given_back;
		link->ops->enter(link, &request->signature);
	}
	say_what_is_done(engine);
}

static void retire(struct engine *engine, struct comm_request *request)
{
	request->next = engine->spare;
	engine->spare = request;
}

static void end_request(struct engine *engine, struct comm_request *request, enum st_status status)
{
	request->done = true;
	request->status = status;
	engine->ends++;
}

static void finish_first(struct lane *lane, enum st_status status)
{
	struct engine *engine = lane->engine;
	struct comm_request *request = lane->first;
	lane->first = request->next;
	if (!lane->first)
		lane->last = NULL;
	recorder_finish(engine->options.recorder, request->signature.sequence, status == ST_OK);
	engine_release_plan(request->bound);
	request->bound = NULL;
	if (request->members) {
		if (status == ST_OK)
			copy_members(lane, request, false);
		for (struct comm_request *member = request->members; member; member = member->next)
			end_request(engine, member, status);
		retire(engine, request); /* nobody else knows it */
	} else {
		end_request(engine, request, status);
	}
	lane->blocked = NULL;
	lane->moves++;
	say_what_is_done(engine);
}

/*
 * Runs the lane as far as it goes; a polite one, below others that have something to do, stops after a step on data.  ST_OK: no requests left.
 * ST_PENDING.  Else the failure of lane->blocked.
 */
static enum st_status run(struct lane *lane, bool polite)
{
	while (lane->first) {
		struct comm_request *request = lane->first;
		const struct engine_plan *bound = request->bound;
		const struct plan *plan = bound->plan;
		if (!request->started)
			start(lane);
		while (lane->at < plan->step_count) {
			const struct plan_step *step = &plan->steps[lane->at];
			bool data = false;
			if (step->kind == PLAN_LOOP) {
				if (!step->count) {
					lane->at = bound->ends[lane->at] + 1;
					continue;
				}
				lane->frames[lane->depth].step = lane->at;
				lane->frames[lane->depth].count = step->count;
				lane->vars[lane->depth++] = 0;
			} else if (step->kind == PLAN_END) {
				if (++lane->vars[lane->depth - 1] < lane->frames[lane->depth - 1].count)
					lane->at = lane->frames[lane->depth - 1].step;
				else
					lane->vars[--lane->depth] = 0;
			} else if (plan_step_runs(step, lane->vars)) {
				enum st_status status = engine_run_step(lane, step);
				if (status != ST_OK)
					return status;
				lane->moves++;
				data = step->kind == PLAN_PUT || step->kind == PLAN_LEND || step->kind == PLAN_REDUCE || step->kind == PLAN_COPY;
			}
			lane->at++;
			if (data && polite)
				return ST_PENDING;
		}
		lane->engine->counters.operations++;
		finish_first(lane, ST_OK);
	}
	lane->blocked = NULL;
	return ST_OK;
}

enum st_status engine_failure(const struct engine *engine)
{
	return engine->failed == ST_OK ? ST_OK : st_fail_copy(engine->failed, engine->why);
}

/* The lane's first request has waited long, or fails where it waits: the flight recorder shall say for whom, and that this rank still looks. */
static void record_wait(struct lane *lane)
{
	struct recorder *recorder = lane->engine->options.recorder;
	if (lane->recorded)
		recorder_look(recorder);
	else
		recorder_wait(recorder, lane->first->signature.sequence, lane->first->bound->plan, lane->at, lane->moves - lane->started_moves,
			      lane->still_since);
	lane->recorded = true;
}

enum st_status engine_fail_all(struct engine *engine, enum st_status status)
{
	if (engine->failed == ST_OK) {
		snprintf(engine->why, sizeof engine->why, "%s", st_message());
		engine->failed = ST_ERR_ABORTED;
		recorder_fail(engine->options.recorder, engine->why);
	}
	for (unsigned l = 0; l < engine->options.lanes; l++) {
		struct lane *lane = &engine->lanes[l];
		if (lane->first && lane->first->started && lane->blocked)
			record_wait(lane);
		while (lane->first)
			finish_first(lane, ST_ERR_ABORTED);
	}
	/* Members of operations that were not submitted yet. */
	for (struct comm_request *request = engine->made; request; request = request->made)
		if (request->waits_for_group) {
			request->waits_for_group = false;
			end_request(engine, request, ST_ERR_ABORTED);
		}
	return st_fail_copy(status, engine->why);
}

enum st_status engine_fail(struct engine *engine, enum st_status status)
{
	char why[512];
	snprintf(why, sizeof why, "%s", st_message());
	if (engine->options.control)
		control_abort(engine->options.control, engine->options.rank, CONTROL_HOW_APPLICATION, "", why);
	return engine_fail_all(engine, status);
}

#define OPERATION_TEXT (TRANSPORT_SIGNATURE_TEXT + 64)
static void operation_text(const struct lane *lane, char text[OPERATION_TEXT])
{
	const struct control_group *group = lane->engine->options.group;
	if (lane->first)
		transport_signature_print(&lane->first->signature, text);
	else
		snprintf(text, TRANSPORT_SIGNATURE_TEXT, "no operation");
	if (group)
		snprintf(text + strlen(text), OPERATION_TEXT - strlen(text), "%s", control_group_label(group));
}

/* A link reported its end. Its message is in st_message(). */
static enum st_status link_failed(struct lane *lane, const struct link *link, enum st_status status)
{
	char operation[OPERATION_TEXT], detail[sizeof link->why];
	operation_text(lane, operation);
	struct engine *engine = lane->engine;
	struct control *control = engine->options.control;
	/* A mismatch is told by its detail alone. */
	snprintf(detail, sizeof detail, "%s%s", st_message(),
		 status == ST_ERR_MISMATCH && engine->options.group ? control_group_label(engine->options.group) : "");
	if (status == ST_ERR_ABORTED) {
		if (control)
			control_group_suspect(engine->options.group, link->ends.peer, operation, detail);
		else
			st_fail(status, "%s, in %s", detail, operation);
		return engine_fail_all(engine, ST_ERR_ABORTED);
	}
	if (control) {
		enum control_how how = status == ST_ERR_MISMATCH   ? CONTROL_HOW_MISMATCH
				       : status == ST_ERR_PROTOCOL ? CONTROL_HOW_PROTOCOL
								   : CONTROL_HOW_LINK;
		control_abort(control, link->ends.peer, how, operation, detail);
	} else {
		st_fail(status, "%s", detail);
	}
	return engine_fail_all(engine, status);
}

static enum st_status late(struct lane *lane, bool entered)
{
	struct engine *engine = lane->engine;
	const struct link *link = lane->blocked;
	char operation[OPERATION_TEXT], detail[256];
	operation_text(lane, operation);
	snprintf(detail, sizeof detail, "rank %" PRIu32 " on %s has waited %" PRId64 " ms for rank %" PRIu32 " on %s, which %s", engine->options.rank,
		 engine->options.host, engine->options.arrival_timeout_ms * (entered ? 2 : 1), link->ends.peer, link->ends.peer_host,
		 entered ? "entered the operation and did not go on" : "did not enter the operation");
	if (engine->options.control)
		control_abort(engine->options.control, link->ends.peer, CONTROL_HOW_LATE, operation, detail);
	else
		st_fail(ST_ERR_TIMEOUT, "%s: %s", operation, detail);
	return engine_fail_all(engine, ST_ERR_ABORTED);
}

/*
 * A peer that issued this operation with another priority is in another lane, where the two can't meet.  What it entered there is
 * known once it has announced it.
 */
static enum st_status check_other_lanes(struct lane *lane)
{
	const struct engine *engine = lane->engine;
	const struct transport_signature *mine = &lane->first->signature;
	const struct transport_ends *ends = &lane->blocked->ends;
	const unsigned own = lane->blocked->lane;
	for (size_t i = 0; i < engine->link_count; i++) {
		struct link *link = engine->links[i];
		struct transport_signature theirs;
		char my_text[TRANSPORT_SIGNATURE_TEXT + 32], their_text[TRANSPORT_SIGNATURE_TEXT + 32], both[TRANSPORT_DISAGREEMENT_TEXT];
		if (link->ends.peer != ends->peer || link->lane == own)
			continue;
		/* A transport looks at a link that is not in use only now and then.  A failure stays there for who needs the link. */
		for (int turn = 0; turn < 8; turn++)
			link->ops->progress(link);
		if (!link->ops->heard(link, &theirs) || theirs.sequence != mine->sequence)
			continue;
		transport_signature_print(mine, my_text);
		transport_signature_print(&theirs, their_text);
		snprintf(my_text + strlen(my_text), sizeof my_text - strlen(my_text), " with priority %u", own);
		snprintf(their_text + strlen(their_text), sizeof their_text - strlen(their_text), " with priority %u", link->lane);
		transport_disagreement(ends, my_text, their_text, both);
		st_fail(ST_ERR_MISMATCH, "ranks disagree: %s", both);
		return link_failed(lane, lane->blocked, ST_ERR_MISMATCH);
	}
	return ST_OK;
}

/* Tells every peer of the lane, also those whom this operation has nothing to do with: to one that calls another operation it may look otherwise. */
static void announce(struct lane *lane)
{
	const struct engine *engine = lane->engine;
	const struct engine_plan *bound = lane->first->bound;
	for (size_t i = 0; i < engine->link_count; i++) {
		struct link *link = engine->links[i];
		bool used = false;
		if (link->lane != bound->lane || link->broken != ST_OK)
			continue;
		for (uint32_t k = 0; k < bound->distinct_count; k++)
			used |= bound->distinct[k] == link;
		if (!used)
			link->ops->enter(link, &lane->first->signature);
		link->ops->announce(link);
	}
}

/* Of a rank that has waited for a while: do the links live, and does the peer that it waits for call the same? */
static enum st_status check_peers(struct lane *lane)
{
	const struct engine_plan *bound = lane->first->bound;
	const int64_t silence_ms = lane->engine->options.stall_timeout_ms;
	struct link *blocked = lane->blocked;
	struct transport_signature theirs;
	const struct transport_signature *mine = &lane->first->signature;
	if (blocked->broken == ST_OK && blocked->ops->heard(blocked, &theirs) && theirs.sequence == mine->sequence && memcmp(&theirs, mine, sizeof theirs)) {
		enum st_status status = transport_mismatch(blocked, &theirs, true, 0, 0);
		return link_failed(lane, blocked, status);
	}
	if (!silence_ms || st_now_ns() - lane->checked < CHECK_NS)
		return ST_OK;
	lane->checked = st_now_ns();
	for (uint32_t i = 0; i < bound->distinct_count; i++) {
		struct link *link = bound->distinct[i];
		enum st_status status = link->ops->check && link->broken == ST_OK ? link->ops->check(link, silence_ms) : ST_OK;
		if (status != ST_OK)
			return link_failed(lane, link, status);
	}
	return ST_OK;
}

static enum st_status check_lane(struct lane *lane)
{
	struct link *link = lane->blocked;
	if (!link)
		return ST_OK;
	if (!lane->counting || lane->still_moves != lane->moves) {
		if (lane->recorded)
			recorder_moved(lane->engine->options.recorder, lane->first->signature.sequence);
		lane->recorded = false;
		lane->counting = true;
		lane->still_moves = lane->moves;
		lane->still_since = st_now_ns();
		lane->arrival = st_deadline_in_ms(lane->engine->options.arrival_timeout_ms);
		lane->second_chance = false;
		return ST_OK;
	}
	if (!lane->still_since)
		lane->still_since = st_now_ns();
	bool late_now = st_deadline_expired(&lane->arrival), long_now = late_now || st_now_ns() - lane->still_since > ANNOUNCE_NS;
	if (lane->recorded || long_now)
		record_wait(lane);
	if (!lane->announced && long_now) {
		lane->announced = true;
		announce(lane);
	}
	if (lane->announced)
		ST_TRY(check_peers(lane));
	if (lane->announced && lane->engine->options.lanes > 1)
		ST_TRY(check_other_lanes(lane));
	if (!late_now)
		return ST_OK;
	/* A peer that has entered waits for somebody else itself; that rank's neighbour will name it. */
	struct transport_signature theirs;
	bool entered = link->ops->heard(link, &theirs) && theirs.sequence >= lane->first->signature.sequence;
	if (entered && !lane->second_chance) {
		lane->second_chance = true;
		lane->arrival = st_deadline_in_ms(lane->engine->options.arrival_timeout_ms);
		return ST_OK;
	}
	return late(lane, entered);
}

enum st_status engine_check_stillness(struct engine *engine)
{
	for (unsigned l = engine->options.lanes; l--;)
		if (engine->lanes[l].first)
			ST_TRY(check_lane(&engine->lanes[l]));
	return ST_OK;
}

/* A lane's turn: runs, moves bytes, runs again.  A polite one does no more than a step on data.  As run(), but failures are dealt with. */
static enum st_status serve(struct lane *lane, bool polite)
{
	uint64_t moves = lane->moves;
	enum st_status status = run(lane, polite);
	if (status == ST_OK || (status == ST_PENDING && polite && lane->moves != moves))
		return status;
	struct link *blocked = lane->blocked;
	if (status != ST_PENDING)
		return link_failed(lane, blocked, status);
	const struct engine_plan *bound = lane->first->bound;
	bool dead = false;
	for (uint32_t i = 0; i < bound->distinct_count; i++) {
		struct link *link = bound->distinct[i];
		status = link->ops->progress(link);
		if (status == ST_ERR_ABORTED)
			dead |= link == blocked; /* what came before the end may be all that is needed */
		else if (status != ST_OK)
			return link_failed(lane, link, status);
	}
	/* The step that was blocked may go on now; when it can't and its link is dead, it never will. */
	moves = lane->moves;
	status = run(lane, polite);
	if (status != ST_OK && status != ST_PENDING)
		return link_failed(lane, lane->blocked, status);
	if (status == ST_PENDING && dead && lane->moves == moves) {
		transport_status(blocked);
		return link_failed(lane, blocked, ST_ERR_ABORTED);
	}
	return status;
}

enum st_status engine_look(struct engine *engine, const struct comm_request *until)
{
	if (engine->failed != ST_OK)
		return engine_failure(engine);
	for (;;) {
		bool busy = false, moved = false;
		/* Whatever moves, the highest lane is looked at next. */
		for (unsigned l = engine->options.lanes; l-- && !moved;) {
			struct lane *lane = &engine->lanes[l];
			if (!lane->first)
				continue;
			uint64_t moves = lane->moves;
			enum st_status status = serve(lane, busy || engine->thread);
			if (status != ST_OK && status != ST_PENDING)
				return status;
			busy = true;
			moved = lane->moves != moves;
		}
		if ((until && until->done) || engine_lock_wanted(engine))
			return ST_PENDING;
		if (!moved)
			return busy ? ST_PENDING : ST_OK;
	}
}

enum st_status engine_check_control(struct engine *engine)
{
	if (engine->options.control && control_check(engine->options.control) != ST_OK)
		return engine_fail_all(engine, ST_ERR_ABORTED);
	return ST_OK;
}

uint64_t engine_moves(const struct engine *engine)
{
	uint64_t moves = 0;
	for (unsigned l = 0; l < engine->options.lanes; l++)
		moves += engine->lanes[l].moves;
	return moves;
}

bool engine_busy(const struct engine *engine)
{
	bool busy = false;
	for (unsigned l = 0; l < engine->options.lanes; l++)
		busy |= engine->lanes[l].first != NULL;
	return busy;
}

/* What can be sent at once is sent.  A failure is the request's, seen when it is waited for. */
static void run_all(struct engine *engine)
{
	bool moved = true;
	while (moved) {
		bool busy = false;
		moved = false;
		for (unsigned l = engine->options.lanes; l-- && !moved;) {
			struct lane *lane = &engine->lanes[l];
			uint64_t moves = lane->moves;
			if (!lane->first)
				continue;
			enum st_status status = run(lane, busy);
			if (status != ST_OK && status != ST_PENDING)
				return;
			/* A lane alone has gone as far as it can. */
			moved = busy && lane->moves != moves;
			busy = true;
		}
	}
}

static enum st_status take_request(struct engine *engine, struct comm_request **request)
{
	struct comm_request *made = engine->spare;
	if (made) {
		engine->spare = made->next;
	} else {
		made = malloc(sizeof *made);
		if (!made)
			return st_fail(ST_ERR_NOMEM, "engine: out of memory");
		made->made = engine->made;
		engine->made = made;
	}
	*made = (struct comm_request){.made = made->made};
	*request = made;
	return ST_OK;
}

static void issue(struct engine *engine, struct engine_plan *bound, bool owned, struct transport_signature signature, struct comm_request *request)
{
	struct lane *lane = &engine->lanes[bound->lane];
	signature.sequence = ++engine->sequence;
	request->bound = bound;
	request->signature = signature;
	request->element_bytes = comm_type_bytes((enum comm_type)signature.type);
	request->next = NULL;
	bound->owned = owned;
	bound->users++;
	if (lane->last)
		lane->last->next = request;
	else
		lane->first = request;
	lane->last = request;
	recorder_issue(engine->options.recorder, &signature, bound->plan, bound->lane);
	if (lane->first == request)
		run_all(engine);
}

enum st_status engine_submit_ordered(struct engine *engine, struct engine_plan *bound, bool owned, const void *input, size_t layer_bytes, void *output,
				     struct transport_signature signature, struct comm_request **request)
{
	enum st_status status = engine_failure(engine);
	struct comm_request *made = NULL;
	if (status == ST_OK && bound->plan->wide && signature.type != COMM_F16 && signature.type != COMM_BF16)
		status = st_fail(ST_ERR_INTERNAL, "engine: a wide plan for %s", comm_type_name((enum comm_type)signature.type));
	if (status == ST_OK)
		status = take_request(engine, &made);
	if (status != ST_OK) {
		if (owned)
			engine_unbind(bound);
		return status;
	}
	made->input = (char *)(uintptr_t)input;
	made->layer_bytes = layer_bytes;
	made->output = output;
	*request = made;
	issue(engine, bound, owned, signature, made);
	return ST_OK;
}

enum st_status engine_submit(struct engine *engine, struct engine_plan *bound, bool owned, const void *input, void *output,
			     struct transport_signature signature, struct comm_request **request)
{
	return engine_submit_ordered(engine, bound, owned, input, 0, output, signature, request);
}

enum st_status engine_make_member(struct engine *engine, const void *input, void *output, size_t bytes, struct comm_request **member)
{
	struct comm_request *made;
	ST_TRY(engine_failure(engine));
	ST_TRY(take_request(engine, &made));
	made->input = (char *)(uintptr_t)input;
	made->output = output;
	made->bytes = bytes;
	made->waits_for_group = true;
	*member = made;
	return ST_OK;
}

void engine_append_member(struct comm_request *last, struct comm_request *member)
{
	last->next = member;
}

static enum st_status check_members(struct engine *engine, const struct engine_plan *bound, const struct comm_request *members,
				    const struct transport_signature *signature)
{
	struct lane *lane = &engine->lanes[bound->lane];
	size_t bytes = 0;
	ST_TRY(engine_failure(engine));
	for (const struct comm_request *member = members; member; member = member->next)
		bytes += member->bytes;
	if (bytes != bound->plan->elements * comm_type_bytes((enum comm_type)signature->type) ||
	    (members->next && (bytes > engine->options.fusion_bytes || !bound->plan->in_place || bound->plan->collective != PLAN_ALLREDUCE)))
		return st_fail(ST_ERR_INTERNAL, "engine: members of %zu bytes for a plan of %" PRIu64 " elements", bytes, bound->plan->elements);
	if (members->next && !lane->staging && !(lane->staging = aligned_alloc(64, (engine->options.fusion_bytes + 63) / 64 * 64)))
		return st_fail(ST_ERR_NOMEM, "engine: no memory for fused operations of up to %zu bytes", engine->options.fusion_bytes);
	return ST_OK;
}

enum st_status engine_submit_members(struct engine *engine, struct engine_plan *bound, bool owned, struct comm_request *members,
				     struct transport_signature signature)
{
	struct comm_request *request = members;
	enum st_status status = check_members(engine, bound, members, &signature);
	if (status == ST_OK && members->next)
		status = take_request(engine, &request);
	if (status != ST_OK) {
		if (owned)
			engine_unbind(bound);
		return status;
	}
	for (struct comm_request *member = members; member; member = member->next) {
		member->waits_for_group = false;
		engine->counters.fused += members->next != NULL;
	}
	if (request != members)
		request->members = members;
	issue(engine, bound, owned, signature, request);
	return ST_OK;
}

void engine_set_group(struct comm_request *request, uint64_t group)
{
	request->group = group;
}

uint64_t engine_group_of(const struct comm_request *request)
{
	return request->group;
}

enum st_status engine_collect(struct engine *engine, struct comm_request **request)
{
	enum st_status status = (*request)->status;
	retire(engine, *request);
	*request = NULL;
	return status == ST_OK ? ST_OK : st_fail_copy(status, engine->why);
}

void engine_counters(const struct engine *engine, struct comm_counters *counters)
{
	*counters = engine->counters;
	for (size_t i = 0; i < engine->link_count; i++) {
		const struct link *link = engine->links[i];
		if (link->ops->mapped) {
			counters->shm_puts += link->puts + link->lends;
			counters->shm_bytes += link->put_bytes;
		} else {
			counters->tcp_puts += link->puts;
			counters->tcp_bytes += link->put_bytes;
		}
	}
}
