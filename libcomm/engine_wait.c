/* Progress by call, and waiting: spin, yield, sleep. */
#include "engine_internal.h"

#include <errno.h>
#include <sched.h>

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

void engine_reset_spin(struct engine *engine)
{
	engine->spin_ns = engine->options.crowded ? 0 : SPIN_NS;
}

enum st_status engine_progress(struct engine *engine)
{
	ST_TRY(engine_check_control(engine));
	enum st_status status = engine_look(engine, NULL);
	return status == ST_PENDING ? engine_check_stillness(engine) : status;
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
	enum st_status own = engine_collect(engine, request);
	/* The detector of a failure gives its own status. */
	return own != ST_OK && status != ST_OK ? st_fail_copy(status, engine->why) : own;
}

enum st_status engine_sleep_begin(struct engine *engine, int wake_fd, nfds_t *count, int *timeout_ms)
{
	struct control *control = engine->options.control;
	const uint64_t moves = engine_moves(engine);
	for (unsigned l = 0; l < engine->options.lanes; l++) {
		struct lane *lane = &engine->lanes[l];
		if (!lane->first)
			continue;
		lane->armed = lane->first->bound;
		lane->armed->users++; /* the request may end in the look */
		for (uint32_t i = 0; i < lane->armed->distinct_count; i++)
			lane->armed->distinct[i]->ops->arm(lane->armed->distinct[i]);
	}
	enum st_status status = engine_look(engine, NULL);
	/* What moved may have come to other links than the armed ones. */
	if (status != ST_PENDING || engine_moves(engine) != moves)
		return status == ST_PENDING ? ST_OK : status;
	*count = 0;
	*timeout_ms = 1000;
	for (unsigned l = 0; l < engine->options.lanes; l++) {
		struct lane *lane = &engine->lanes[l];
		if (!lane->armed)
			continue;
		for (uint32_t i = 0; i < lane->armed->distinct_count; i++) {
			struct link *link = lane->armed->distinct[i];
			short events = (short)((link->ops->wants_read(link) ? POLLIN : 0) | (link->ops->wants_write(link) ? POLLOUT : 0));
			if (link->ops->fd(link) >= 0 && events)
				engine->fds[(*count)++] = (struct pollfd){link->ops->fd(link), events, 0};
		}
		int patience = st_deadline_poll_ms(&lane->arrival);
		if (!(lane->announced && lane->recorded) && patience > 100)
			patience = 100;
		if (patience < *timeout_ms)
			*timeout_ms = patience;
	}
	if (control)
		engine->fds[(*count)++] = (struct pollfd){control_event_fd(control), POLLIN, 0};
	if (wake_fd >= 0)
		engine->fds[(*count)++] = (struct pollfd){wake_fd, POLLIN, 0};
	engine->counters.sleeps++;
	return ST_PENDING;
}

void engine_sleep_end(struct engine *engine)
{
	for (unsigned l = 0; l < engine->options.lanes; l++) {
		struct lane *lane = &engine->lanes[l];
		if (!lane->armed)
			continue;
		for (uint32_t i = 0; i < lane->armed->distinct_count; i++)
			lane->armed->distinct[i]->ops->disarm(lane->armed->distinct[i]);
		engine_release_plan(lane->armed);
		lane->armed = NULL;
	}
}

static enum st_status sleep_once(struct engine *engine, const struct comm_request *until)
{
	nfds_t count;
	int timeout_ms;
	enum st_status status = engine_sleep_begin(engine, -1, &count, &timeout_ms);
	if (status == ST_PENDING)
		status = poll(engine->fds, count, timeout_ms) < 0 && errno != EINTR ? st_fail_errno("engine: poll") : ST_OK;
	engine_sleep_end(engine);
	/* Awake: this look also takes the wake-up away, lest the next sleep end at once. */
	return status == ST_OK ? engine_look(engine, until) : status;
}

void engine_pause_cpu(void)
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

/* Somebody waits from now on: what was still before has not been looked at. */
static void begin_waiting(struct engine *engine)
{
	for (unsigned l = 0; l < engine->options.lanes; l++)
		engine->lanes[l].still_since = 0;
}

enum st_status engine_wait(struct engine *engine, struct comm_request **request)
{
	enum st_status status = ST_OK;
	int64_t began = 0, still = 0;
	uint64_t moves = engine_moves(engine);
	if (engine->thread)
		return engine_thread_wait(engine, request);
	if (!(*request)->done) {
		began = st_now_ns();
		begin_waiting(engine);
		status = engine_look(engine, *request);
	}
	unsigned yields = 0;
	int64_t budget = engine->spin_ns;
	for (unsigned turn = 1; !(*request)->done; turn++) {
		if (engine_moves(engine) != moves || !still) {
			if (still && !engine->options.crowded)
				adapt_spin(engine, budget, yields);
			moves = engine_moves(engine);
			still = st_now_ns();
			yields = 0;
			budget = !engine->options.crowded && ++engine->waits % SPIN_PROBE_EVERY == 0 ? SPIN_NS : engine->spin_ns;
		}
		if (budget && !yields && turn % 8) {
			engine_pause_cpu();
			status = engine_look(engine, *request);
			continue;
		}
		status = engine_check_control(engine);
		if (status != ST_OK)
			break;
		int64_t waited = st_now_ns() - still;
		if (waited < budget) {
			status = engine_look(engine, *request);
			continue;
		}
		yields++;
		status = engine_check_stillness(engine);
		if (status != ST_OK)
			break;
		if (waited < YIELD_NS) {
			sched_yield();
			status = engine_look(engine, *request);
		} else {
			status = sleep_once(engine, *request);
			if (status != ST_OK && status != ST_PENDING && !(*request)->done)
				status = engine_fail_all(engine, status);
		}
	}
	if (still && !engine->options.crowded)
		adapt_spin(engine, budget, yields);
	if (began)
		engine->counters.blocked_ns += st_now_ns() - began;
	enum st_status own = engine_collect(engine, request);
	return own != ST_OK && status != ST_OK && status != ST_PENDING ? st_fail_copy(status, engine->why) : own;
}
