/*
 * A helper thread that drives the engine while the application computes.
 *
 * One lock serialises everybody.  A wait drives the engine itself for as long as data usually takes, which saves two changes of thread, and then sleeps on
 * `ended`.  The helper drives when operations are in flight that nobody moves; when nothing can move it lets go of the lock and polls.
 * Whoever lets go of the lock tells those who wait for a request that some have ended, and the helper what it can't know.
 *
 * Waking the helper costs more than a small operation, so it is not woken for each: while others are at work it naps, and takes over what it finds where
 * it was a nap before.  After a few naps with nothing in flight it sleeps until something is.
 *
 * Engine calls keep the lock while data flows, which may be long; `wanted` tells them to give it up, between two steps on data.
 */
#include "engine_internal.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

/* As a wait without helper: see engine_wait.c. */
#define DRIVE_SPIN_NS (20 * INT64_C(1000))
#define DRIVE_NS (500 * INT64_C(1000))
#define NAP_NS (100 * INT64_C(1000))
#define NAPS_UNTIL_ASLEEP 10

struct engine_thread {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t work; /* the helper naps and sleeps here */
	pthread_cond_t ended; /* the waits that have given up driving */
	atomic_uint wanted; /* relaxed: a hint; what it leads to is decided with the lock held */
	int wake_fd;        /* ends the helper's poll */
	/* Guarded by the lock. */
	unsigned drivers;   /* waits that drive the engine */
	bool stop;
	bool asleep, polling; /* the helper: on `work` until woken; on descriptors */
	bool handed;          /* a wait has given up: the helper is to take over now */
	uint64_t armed_at;  /* how far the engine was when the helper began to poll */
	uint64_t told;      /* requests ended that the waits know of */
};

static uint64_t how_far(const struct engine *engine)
{
	return engine_moves(engine) + engine->starts;
}

static void wake_helper(struct engine_thread *thread)
{
	thread->polling = false;
	while (write(thread->wake_fd, &(uint64_t){1}, sizeof(uint64_t)) < 0 && errno == EINTR)
		;
}

static void tell_waits(struct engine *engine)
{
	struct engine_thread *thread = engine->thread;
	if (engine->ends == thread->told)
		return;
	thread->told = engine->ends;
	pthread_cond_broadcast(&thread->ended);
}

static void hand_over(struct engine *engine)
{
	struct engine_thread *thread = engine->thread;
	tell_waits(engine);
	if (thread->drivers || !engine_busy(engine))
		return;
	if (thread->asleep || thread->handed)
		pthread_cond_signal(&thread->work);
	if (thread->polling && how_far(engine) != thread->armed_at) /* what it polls for is not all that can happen now */
		wake_helper(thread);
}

static void lock(struct engine_thread *thread)
{
	atomic_fetch_add_explicit(&thread->wanted, 1, memory_order_relaxed);
	pthread_mutex_lock(&thread->lock);
	atomic_fetch_sub_explicit(&thread->wanted, 1, memory_order_relaxed);
}

void engine_lock(struct engine *engine)
{
	if (engine->thread)
		lock(engine->thread);
}

void engine_unlock(struct engine *engine)
{
	if (!engine->thread)
		return;
	hand_over(engine);
	pthread_mutex_unlock(&engine->thread->lock);
}

bool engine_lock_wanted(const struct engine *engine)
{
	return engine->thread && atomic_load_explicit(&engine->thread->wanted, memory_order_relaxed);
}

/* Lets go of the lock until something changes on a link, or is submitted. */
static void sleep_unlocked(struct engine *engine)
{
	struct engine_thread *thread = engine->thread;
	nfds_t count;
	int timeout_ms;
	if (engine_sleep_begin(engine, thread->wake_fd, &count, &timeout_ms) == ST_PENDING) {
		struct pollfd *fds = engine->fds;
		engine->fds = NULL; /* a link that is added meanwhile makes a new one */
		thread->polling = true;
		thread->armed_at = how_far(engine);
		pthread_mutex_unlock(&thread->lock);
		int ready = poll(fds, count, timeout_ms);
		int error = errno;
		pthread_mutex_lock(&thread->lock);
		thread->polling = false;
		if (engine->fds)
			free(fds);
		else
			engine->fds = fds;
		uint64_t wakes;
		while (read(thread->wake_fd, &wakes, sizeof wakes) < 0 && errno == EINTR)
			;
		errno = error;
		if (ready < 0 && error != EINTR)
			engine_fail_all(engine, st_fail_errno("engine: poll"));
	}
	engine_sleep_end(engine);
}

/* Leaves the engine to others while they are at it. false: it is to stop. */
static bool my_turn(struct engine *engine)
{
	struct engine_thread *thread = engine->thread;
	uint64_t before = 0;
	for (unsigned naps = 0; !thread->stop; naps++) {
		thread->handed &= engine_busy(engine);
		if (!engine_busy(engine) && naps >= NAPS_UNTIL_ASLEEP) {
			thread->asleep = true;
			pthread_cond_wait(&thread->work, &thread->lock);
			thread->asleep = false;
			naps = 0;
			continue;
		}
		if (engine_busy(engine) && !thread->drivers && !engine_lock_wanted(engine) && (thread->handed || (naps && how_far(engine) == before))) {
			thread->handed = false;
			return true;
		}
		before = how_far(engine);
		struct timespec until;
		clock_gettime(CLOCK_MONOTONIC, &until);
		until.tv_nsec += NAP_NS;
		until.tv_sec += until.tv_nsec / ST_NS_PER_S;
		until.tv_nsec %= ST_NS_PER_S;
		pthread_cond_timedwait(&thread->work, &thread->lock, &until);
	}
	return false;
}

static void *drive(void *argument)
{
	struct engine *engine = argument;
	struct engine_thread *thread = engine->thread;
	pthread_mutex_lock(&thread->lock);
	while (my_turn(engine)) {
		while (engine_busy(engine) && !thread->drivers && !thread->stop) {
			uint64_t before = how_far(engine);
			engine_progress(engine); /* a failure is every request's */
			tell_waits(engine);
			if (engine_lock_wanted(engine)) /* for a moment, or to wait, which drives */
				break;
			if (engine_busy(engine) && how_far(engine) == before)
				sleep_unlocked(engine);
			tell_waits(engine);
		}
	}
	pthread_mutex_unlock(&thread->lock);
	return NULL;
}

enum st_status engine_thread_wait(struct engine *engine, struct comm_request **request)
{
	struct engine_thread *thread = engine->thread;
	enum st_status status = ST_OK;
	const int64_t began = (*request)->done ? 0 : st_now_ns();
	int64_t still = began;
	uint64_t moves = engine_moves(engine);
	thread->drivers++;
	while (!(*request)->done) {
		status = engine_check_control(engine);
		if (status == ST_OK)
			status = engine_look(engine, *request);
		if (status == ST_PENDING)
			status = engine_check_stillness(engine);
		if ((*request)->done)
			break;
		int64_t now = st_now_ns();
		if (engine_moves(engine) != moves)
			still = now;
		moves = engine_moves(engine);
		if (now - still > DRIVE_NS)
			break;
		tell_waits(engine);
		pthread_mutex_unlock(&thread->lock);
		if (engine->options.crowded || now - still > DRIVE_SPIN_NS)
			sched_yield();
		else
			engine_pause_cpu();
		lock(thread);
	}
	thread->drivers--;
	while (!(*request)->done) {
		thread->handed = true;
		hand_over(engine);
		pthread_cond_wait(&thread->ended, &thread->lock);
	}
	if (began)
		engine->counters.blocked_ns += st_now_ns() - began;
	enum st_status own = engine_collect(engine, request);
	return own != ST_OK && status != ST_OK && status != ST_PENDING ? st_fail_copy(status, engine->why) : own;
}

enum st_status engine_start_thread(struct engine *engine)
{
	struct engine_thread *made = calloc(1, sizeof *made);
	sigset_t all, before;
	if (!made)
		return st_fail(ST_ERR_NOMEM, "engine: out of memory");
	made->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (made->wake_fd < 0) {
		free(made);
		return st_fail_errno("engine: eventfd");
	}
	pthread_mutex_init(&made->lock, NULL);
	pthread_condattr_t attributes;
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&made->work, &attributes);
	pthread_condattr_destroy(&attributes);
	pthread_cond_init(&made->ended, NULL);
	engine->thread = made;
	/* Signals are the application's. */
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	int error = pthread_create(&made->thread, NULL, drive, engine);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (!error) {
		pthread_setname_np(made->thread, "synctrain-comm");
		return ST_OK;
	}
	engine->thread = NULL;
	pthread_cond_destroy(&made->ended);
	pthread_cond_destroy(&made->work);
	pthread_mutex_destroy(&made->lock);
	close(made->wake_fd);
	free(made);
	errno = error;
	return st_fail_errno("engine: a helper thread");
}

void engine_stop_thread(struct engine *engine)
{
	struct engine_thread *thread = engine ? engine->thread : NULL;
	if (!thread)
		return;
	lock(thread);
	thread->stop = true;
	if (thread->polling)
		wake_helper(thread);
	pthread_cond_signal(&thread->work);
	pthread_mutex_unlock(&thread->lock);
	pthread_join(thread->thread, NULL);
	engine->thread = NULL;
	pthread_cond_destroy(&thread->ended);
	pthread_cond_destroy(&thread->work);
	pthread_mutex_destroy(&thread->lock);
	close(thread->wake_fd);
	free(thread);
}
