#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "control_internal.h"

#define EVENTS_PER_TURN 64

bool control_wait(struct control *control, struct st_deadline *deadline)
{
	int sleep_ms = st_deadline_poll_ms(deadline);
	struct timespec until;

	if (sleep_ms == 0)
		return false;
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += sleep_ms * ST_NS_PER_MS;
	until.tv_sec += until.tv_nsec / ST_NS_PER_S;
	until.tv_nsec %= ST_NS_PER_S;
	pthread_cond_timedwait(&control->changed, &control->lock, &until);
	return true;
}

void control_wake(struct control *control)
{
	uint64_t one = 1;

	/* A full counter (EAGAIN) wakes as well. */
	if (write(control->wake.fd, &one, sizeof one) < 0)
		return;
}

static void dispatch(struct control *control, struct control_source *source, uint32_t events)
{
	uint64_t ignored;

	if (source->fd < 0)
		return; /* closed earlier in this turn */
	switch (source->kind) {
	case CONTROL_SOURCE_WAKE:
		if (read(source->fd, &ignored, sizeof ignored) < 0)
			return;
		break;
	case CONTROL_SOURCE_LISTENER:
		control_accept_ready(control, source);
		break;
	case CONTROL_SOURCE_OPENING:
		control_opening_ready(control, (struct control_opening *)source);
		break;
	case CONTROL_SOURCE_LINK:
		control_link_ready(control, (struct control_link *)source, events);
		break;
	}
}

static void revive_listeners(struct control *control)
{
	for (int i = 0; i < CONTROL_LISTENERS; i++) {
		struct control_source *listener = &control->listeners[i];
		struct epoll_event event = {.events = EPOLLIN, .data.ptr = listener};
		if (listener->idle && epoll_ctl(control->epoll_fd, EPOLL_CTL_ADD, listener->fd, &event) == 0)
			listener->idle = false;
	}
}

static void *service(void *argument)
{
	struct control *control = argument;
	struct epoll_event events[EVENTS_PER_TURN];
	struct st_deadline revive = st_deadline_in_ms(1000);
	int sleep_ms = 0;

	for (;;) {
		int n = epoll_wait(control->epoll_fd, events, EVENTS_PER_TURN, sleep_ms);
		pthread_mutex_lock(&control->lock);
		if (control->stopping)
			break;
		for (int i = 0; i < n; i++)
			dispatch(control, events[i].data.ptr, events[i].events);
		if (st_deadline_expired(&revive)) {
			revive_listeners(control);
			revive = st_deadline_in_ms(1000);
		}
		sleep_ms = control_openings_tick(control);
		/* After the events: what lay in the sockets while this process was stopped counts before silence does. */
		int links_ms = control_links_tick(control);
		sleep_ms = links_ms < sleep_ms ? links_ms : sleep_ms;
		control_decisions_tick(control);
		int settle_ms = control_settle_tick(control);
		sleep_ms = settle_ms < sleep_ms ? settle_ms : sleep_ms;
		int rejoin_ms = control_rejoin_tick(control);
		sleep_ms = rejoin_ms < sleep_ms ? rejoin_ms : sleep_ms;
		control_openings_free_closed(control);
		control_links_free_closed(control);
		pthread_mutex_unlock(&control->lock);
	}
	pthread_mutex_unlock(&control->lock);
	return NULL;
}

enum st_status control_service_start(struct control *control)
{
	struct epoll_event event = {.events = EPOLLIN, .data.ptr = &control->wake};
	sigset_t all, before;

	control->wake = (struct control_source){.kind = CONTROL_SOURCE_WAKE, .fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
	if (control->wake.fd < 0 || epoll_ctl(control->epoll_fd, EPOLL_CTL_ADD, control->wake.fd, &event) < 0)
		return st_fail_errno("can't make the control plane's wake-up descriptor");
	/* Signals are the application's. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int error = pthread_create(&control->thread, NULL, service, control);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (error)
		return st_fail(ST_ERR_NOMEM, "can't start the control plane's thread: %s", strerror(error));
	control->thread_started = true;
	return ST_OK;
}

void control_service_stop(struct control *control)
{
	if (!control->thread_started)
		return;
	pthread_mutex_lock(&control->lock);
	control->stopping = true;
	pthread_mutex_unlock(&control->lock);
	control_wake(control);
	pthread_join(control->thread, NULL);
	control->thread_started = false;
}
