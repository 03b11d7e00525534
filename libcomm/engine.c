/* The interpreter of plans, waiting, and what happens when a wait is in vain. */
#include "engine_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control.h"

/*
 * A wait spins (data that is on its way comes within microseconds), then yields, then sleeps.  How long it spins adapts: when data comes only
 * with the first yield the peer may need this very core, and spinning is in its way.  Now and then a wait spins in full to find
 * out whether that is still so: without, two ranks on cores of their own would go on yielding to nobody.
 */
#define SPIN_NS (20 * INT64_C(1000))
#define SPIN_LEAST_NS INT64_C(500)
#define SPIN_PROBE_EVERY 64
#define YIELD_NS (500 * INT64_C(1000))
/* A rank that has waited so long tells its peers where it is. */
#define ANNOUNCE_NS (100 * ST_NS_PER_MS)

static void release_plan(struct engine_plan *bound)
{
	if (!--bound->users && bound->owned)
		engine_unbind(bound);
}

enum st_status engine_create(const struct engine_options *options, struct engine **engine)
{
	struct engine *made = calloc(1, sizeof *made);
	if (!made)
		return st_fail(ST_ERR_NOMEM, "engine: out of memory");
	made->options = *options;
	made->lane.engine = made;
	made->spin_ns = options->crowded ? 0 : SPIN_NS;
	*engine = made;
	return ST_OK;
}

void engine_free(struct engine *engine)
{
	if (!engine)
		return;
	struct lane *lane = &engine->lane;
	while (lane->first) {
		struct comm_request *request = lane->first;
		lane->first = request->next;
		release_plan(request->bound);
		free(request);
	}
	while (engine->spare) {
		struct comm_request *request = engine->spare;
		engine->spare = request->next;
		free(request);
	}
	for (size_t i = 0; i < engine->link_count; i++)
		engine->links[i]->ops->close(engine->links[i]);
	free(engine->links);
	free(engine);
}

enum st_status engine_add_link(struct engine *engine, struct link *link, uint16_t index)
{
	struct link **links = realloc(engine->links, (engine->link_count + 1) * sizeof(struct link *));
	if (!links) {
		link->ops->close(link);
		return st_fail(ST_ERR_NOMEM, "engine: out of memory");
	}
	engine->links = links;
	engine->links[engine->link_count++] = link;
	link->index = index;
	return ST_OK;
}

const struct link *engine_link(const struct engine *engine, uint32_t peer, uint16_t index)
{
	if (engine->options.group)
		peer = control_group_job_rank(engine->options.group, peer);
	for (size_t i = 0; i < engine->link_count; i++)
		if (engine->links[i]->ends.peer == peer && engine->links[i]->index == index)
			return engine->links[i];
	return NULL;
}

void engine_unbind(struct engine_plan *bound)
{
	if (!bound)
		return;
	plan_free(bound->plan);
	free(bound->links);
	free(bound->distinct);
	free(bound->ends);
	free(bound);
}

const struct plan *engine_plan_of(const struct engine_plan *bound)
{
	return bound->plan;
}

unsigned engine_plan_users(const struct engine_plan *bound)
{
	return bound->users;
}

enum st_status engine_bind(struct engine *engine, struct plan *plan, struct engine_plan **bound)
{
	struct engine_plan *made = calloc(1, sizeof *made);
	if (!made) {
		plan_free(plan);
		return st_fail(ST_ERR_NOMEM, "engine: out of memory");
	}
	made->plan = plan;
	enum st_status status = plan_check(plan);
	if (status == ST_OK) {
		made->links = calloc(plan->channel_count + 1, sizeof(struct link *));
		made->distinct = calloc(plan->channel_count + 1, sizeof(struct link *));
		made->ends = calloc(plan->step_count + 1, sizeof *made->ends);
		if (!made->links || !made->distinct || !made->ends)
			status = st_fail(ST_ERR_NOMEM, "engine: out of memory");
	}
	for (uint32_t i = 0; status == ST_OK && i < plan->channel_count; i++) {
		const struct plan_channel *channel = &plan->channels[i];
		made->links[i] = (struct link *)(uintptr_t)engine_link(engine, channel->peer, channel->index);
		if (!made->links[i])
			status = st_fail(ST_ERR_INTERNAL, "engine: rank %" PRIu32 " has no link %u to rank %" PRIu32, engine->options.rank,
					 channel->index, channel->peer);
		else if (made->links[i]->ops->mapped != channel->mapped)
			status = st_fail(ST_ERR_INTERNAL, "engine: the plan of rank %" PRIu32 " takes %s for another kind of link",
					 engine->options.rank, made->links[i]->ops->name);
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
	made->quotient = plan->elements / plan->blocks;
	made->remainder = plan->elements % plan->blocks;
	*bound = made;
	return ST_OK;
}

static void start(struct lane *lane)
{
	const struct engine_options *options = &lane->engine->options;
	struct comm_request *request = lane->first;
	request->started = true;
	lane->at = 0;
	lane->depth = 0;
	memset(lane->vars, 0, sizeof lane->vars);
	const struct plan *plan = request->bound->plan;
	bool reduces = plan->collective == PLAN_ALLREDUCE || plan->collective == PLAN_REDUCE_SCATTER;
	const enum comm_type type = (enum comm_type)request->signature.type;
	const enum comm_op op = (enum comm_op)request->signature.op;
	lane->finish = reduce_kernel_best(type, op);
	lane->add = op == COMM_AVG ? reduce_kernel_best(type, COMM_SUM) : lane->finish;
	/* A reduction in place has just read the lines that it writes. */
	lane->stream = plan->elements * request->element_bytes >= options->stream_bytes && !(reduces && plan->in_place);
	lane->still_since = 0;
	lane->announced = lane->second_chance = false;
	for (uint32_t i = 0; i < request->bound->distinct_count; i++)
		request->bound->distinct[i]->ops->enter(request->bound->distinct[i], &request->signature);
	if (options->control)
		control_group_doing(options->group, plan_collective_name(plan->collective), request->signature.sequence);
}

static void retire(struct engine *engine, struct comm_request *request)
{
	request->next = engine->spare;
	engine->spare = request;
}

static void finish_first(struct lane *lane, enum st_status status)
{
	struct comm_request *request = lane->first;
	lane->first = request->next;
	if (!lane->first)
		lane->last = NULL;
	request->done = true;
	request->status = status;
	release_plan(request->bound);
	request->bound = NULL;
	lane->blocked = NULL;
	lane->moves++;
}

/* Runs the lane as far as it goes. ST_OK: no requests left. */
static enum st_status run(struct lane *lane)
{
	while (lane->first) {
		struct comm_request *request = lane->first;
		const struct engine_plan *bound = request->bound;
		const struct plan *plan = bound->plan;
		if (!request->started)
			start(lane);
		while (lane->at < plan->step_count) {
			const struct plan_step *step = &plan->steps[lane->at];
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
			} else if (plan_affine_value(&step->guard, lane->vars) >= 0) {
				enum st_status status = engine_run_step(lane, step);
				if (status != ST_OK)
					return status;
				lane->moves++;
			}
			lane->at++;
		}
		lane->engine->counters.operations++;
		finish_first(lane, ST_OK);
	}
	lane->blocked = NULL;
	return ST_OK;
}

bool engine_busy(const struct engine *engine)
{
	return engine->lane.first != NULL;
}

enum st_status engine_failure(const struct engine *engine)
{
	return engine->failed == ST_OK ? ST_OK : st_fail_copy(engine->failed, engine->why);
}

/* From here on everything fails. `status` is what this call returns; later calls return ST_ERR_ABORTED. Message: st_message(). */
static enum st_status fail_all(struct engine *engine, enum st_status status)
{
	if (engine->failed == ST_OK) {
		snprintf(engine->why, sizeof engine->why, "%s", st_message());
		engine->failed = ST_ERR_ABORTED;
	}
	while (engine->lane.first)
		finish_first(&engine->lane, ST_ERR_ABORTED);
	return st_fail_copy(status, engine->why);
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
	snprintf(detail, sizeof detail, "%s", st_message());
	struct engine *engine = lane->engine;
	struct control *control = engine->options.control;
	if (status == ST_ERR_ABORTED) {
		if (control)
			control_group_suspect(engine->options.group, link->ends.peer, operation, detail);
		else
			st_fail(status, "%s, in %s", detail, operation);
		return fail_all(engine, ST_ERR_ABORTED);
	}
	if (control) {
		enum control_how how = status == ST_ERR_MISMATCH   ? CONTROL_HOW_MISMATCH
				       : status == ST_ERR_PROTOCOL ? CONTROL_HOW_PROTOCOL
								   : CONTROL_HOW_LINK;
		control_abort(control, link->ends.peer, how, operation, detail);
	} else {
		st_fail(status, "%s", detail);
	}
	return fail_all(engine, status);
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
	return fail_all(engine, ST_ERR_ABORTED);
}

/* Nothing moved in this look: has it been too long? */
static enum st_status check_stillness(struct lane *lane)
{
	struct link *link = lane->blocked;
	if (!link)
		return ST_OK;
	if (!lane->still_since || lane->still_moves != lane->moves) {
		lane->still_moves = lane->moves;
		lane->still_since = st_now_ns();
		lane->arrival = st_deadline_in_ms(lane->engine->options.arrival_timeout_ms);
		lane->second_chance = false;
		return ST_OK;
	}
	bool late_now = st_deadline_expired(&lane->arrival);
	if (!lane->announced && (late_now || st_now_ns() - lane->still_since > ANNOUNCE_NS)) {
		lane->announced = true;
		for (uint32_t i = 0; i < lane->first->bound->distinct_count; i++)
			lane->first->bound->distinct[i]->ops->announce(lane->first->bound->distinct[i]);
	}
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

/*
 * One look at everything: runs, moves bytes, runs again while that helped.  ST_OK: nothing is left to do.  ST_PENDING.
 * Else: the failure, after which nothing is left.
 */
static enum st_status look(struct engine *engine)
{
	struct lane *lane = &engine->lane;
	if (engine->failed != ST_OK)
		return engine_failure(engine);
	for (;;) {
		uint64_t before = lane->moves;
		enum st_status status = run(lane);
		if (status == ST_OK)
			return ST_OK;
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
		uint64_t moves = lane->moves;
		status = run(lane);
		if (status == ST_OK)
			return ST_OK;
		if (status != ST_PENDING)
			return link_failed(lane, lane->blocked, status);
		if (dead && lane->moves == moves) {
			transport_status(blocked);
			return link_failed(lane, blocked, ST_ERR_ABORTED);
		}
		if (lane->moves == before)
			return ST_PENDING;
	}
}

static enum st_status check_control(struct engine *engine)
{
	if (engine->options.control && control_check(engine->options.control) != ST_OK)
		return fail_all(engine, ST_ERR_ABORTED);
	return ST_OK;
}

enum st_status engine_submit(struct engine *engine, struct engine_plan *bound, bool owned, const void *input, void *output,
			     struct transport_signature signature, struct comm_request **request)
{
	struct lane *lane = &engine->lane;
	enum st_status status = engine_failure(engine);
	struct comm_request *made = engine->spare;
	if (status == ST_OK && bound->plan->wide && signature.type != COMM_F16 && signature.type != COMM_BF16)
		status = st_fail(ST_ERR_INTERNAL, "engine: a wide plan for %s", comm_type_name((enum comm_type)signature.type));
	if (status == ST_OK && made)
		engine->spare = made->next;
	else if (status == ST_OK && !(made = malloc(sizeof *made)))
		status = st_fail(ST_ERR_NOMEM, "engine: out of memory");
	if (status != ST_OK) {
		if (owned)
			engine_unbind(bound);
		return status;
	}
	signature.sequence = ++engine->sequence;
	*made = (struct comm_request){.bound = bound, .input = (char *)(uintptr_t)input, .output = output, .signature = signature,
				      .element_bytes = comm_type_bytes((enum comm_type)signature.type)};
	bound->owned = owned;
	bound->users++;
	if (lane->last)
		lane->last->next = made;
	else
		lane->first = made;
	lane->last = made;
	*request = made;
	/* The first look sends what can be sent. A failure is the request's, seen when it is waited for. */
	if (lane->first == made)
		run(lane);
	return ST_OK;
}

enum st_status engine_progress(struct engine *engine)
{
	ST_TRY(check_control(engine));
	enum st_status status = look(engine);
	if (status == ST_PENDING)
		status = check_stillness(&engine->lane);
	return status;
}

/* The request is done: frees it and returns its status; an aborted one has the verdict as its message. */
static enum st_status collect(struct engine *engine, struct comm_request **request)
{
	enum st_status status = (*request)->status;
	retire(engine, *request);
	*request = NULL;
	return status == ST_OK ? ST_OK : st_fail_copy(status, engine->why);
}

enum st_status engine_test(struct engine *engine, struct comm_request **request)
{
	enum st_status status = ST_OK;
	if (!(*request)->done)
		status = engine_progress(engine);
	if (!(*request)->done) {
		/* A caller that polls would keep the others, whom it waits for, from running. */
		if (engine->options.crowded)
			sched_yield();
		return ST_PENDING;
	}
	enum st_status own = collect(engine, request);
	/* The detector of a failure gives its own status. */
	return own != ST_OK && status != ST_OK ? st_fail_copy(status, engine->why) : own;
}

static enum st_status sleep_once(struct engine *engine)
{
	struct lane *lane = &engine->lane;
	struct engine_plan *bound = lane->first->bound;
	struct control *control = engine->options.control;
	struct pollfd few[16], *fds = few;
	if (bound->distinct_count + 1 > sizeof few / sizeof *few) {
		fds = malloc((bound->distinct_count + 1) * sizeof *fds);
		if (!fds)
			return st_fail(ST_ERR_NOMEM, "engine: out of memory");
	}
	bound->users++; /* the request may end in the look */
	for (uint32_t i = 0; i < bound->distinct_count; i++)
		bound->distinct[i]->ops->arm(bound->distinct[i]);
	enum st_status status = look(engine);
	if (status == ST_PENDING) {
		nfds_t count = 0;
		for (uint32_t i = 0; i < bound->distinct_count; i++) {
			struct link *link = bound->distinct[i];
			short events = (short)((link->ops->wants_read(link) ? POLLIN : 0) | (link->ops->wants_write(link) ? POLLOUT : 0));
			if (link->ops->fd(link) >= 0 && events)
				fds[count++] = (struct pollfd){link->ops->fd(link), events, 0};
		}
		if (control)
			fds[count++] = (struct pollfd){control_event_fd(control), POLLIN, 0};
		int timeout = st_deadline_poll_ms(&lane->arrival);
		if (!lane->announced && timeout > 100)
			timeout = 100;
		engine->counters.sleeps++;
		if (poll(fds, count, timeout) < 0 && errno != EINTR)
			status = st_fail_errno("engine: poll");
	}
	for (uint32_t i = 0; i < bound->distinct_count; i++)
		bound->distinct[i]->ops->disarm(bound->distinct[i]);
	release_plan(bound);
	if (fds != few)
		free(fds);
	/* Awake: this look also takes the wake-up away, lest the next sleep end at once. */
	return status == ST_PENDING ? look(engine) : status;
}

static inline void pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#endif
}

/* A wait is over that spun for up to `budget` and then yielded so many times. */
static void adapt_spin(struct engine *engine, int64_t budget, unsigned yields)
{
	if (!yields)
		engine->spin_ns = SPIN_NS;
	else if (yields == 1 && budget > SPIN_LEAST_NS)
		engine->spin_ns = engine->spin_ns / 2 < SPIN_LEAST_NS ? SPIN_LEAST_NS : engine->spin_ns / 2;
}

enum st_status engine_wait(struct engine *engine, struct comm_request **request)
{
	struct lane *lane = &engine->lane;
	enum st_status status = ST_OK;
	int64_t began = 0, still = 0;
	uint64_t moves = lane->moves;
	if (!(*request)->done) {
		began = st_now_ns();
		status = look(engine);
	}
	unsigned yields = 0;
	int64_t budget = engine->spin_ns;
	for (unsigned turn = 1; !(*request)->done; turn++) {
		if (lane->moves != moves || !still) {
			if (still && !engine->options.crowded)
				adapt_spin(engine, budget, yields);
			moves = lane->moves;
			still = st_now_ns();
			yields = 0;
			budget = !engine->options.crowded && ++engine->waits % SPIN_PROBE_EVERY == 0 ? SPIN_NS : engine->spin_ns;
			lane->still_since = 0;
		}
		if (budget && !yields && turn % 8) {
			pause_cpu();
			status = look(engine);
			continue;
		}
		status = check_control(engine);
		if (status != ST_OK)
			break;
		int64_t waited = st_now_ns() - still;
		if (waited < budget) {
			status = look(engine);
			continue;
		}
		yields++;
		status = check_stillness(lane);
		if (status != ST_OK)
			break;
		if (waited < YIELD_NS) {
			sched_yield();
			status = look(engine);
		} else {
			status = sleep_once(engine);
			if (status != ST_OK && status != ST_PENDING && !(*request)->done)
				status = fail_all(engine, status);
		}
	}
	if (still && !engine->options.crowded)
		adapt_spin(engine, budget, yields);
	if (began)
		engine->counters.blocked_ns += st_now_ns() - began;
	enum st_status own = collect(engine, request);
	return own != ST_OK && status != ST_OK && status != ST_PENDING ? st_fail_copy(status, engine->why) : own;
}

void engine_counters(const struct engine *engine, struct comm_counters *counters)
{
	*counters = engine->counters;
	for (size_t i = 0; i < engine->link_count; i++) {
		const struct link *link = engine->links[i];
		if (link->ops->mapped) {
			counters->shm_puts += link->puts;
			counters->shm_bytes += link->put_bytes;
		} else {
			counters->tcp_puts += link->puts;
			counters->tcp_bytes += link->put_bytes;
		}
	}
}
