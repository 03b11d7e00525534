#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/uio.h>
#include <unistd.h>

#include "control_internal.h"

/* How long a neighbour may take to say that it knows the verdict. */
#define ECHO_MS 80
#define RETRY_MS 20

bool control_tree_parent(const struct control *control, uint32_t rank, uint32_t *parent)
{
	const struct topo_world *world = control->world;
	uint32_t node = world->node_of[rank], leader = world->nodes[node].ranks[0];

	if (rank != leader)
		*parent = leader;
	else if (node > 0)
		*parent = world->nodes[(node - 1) / CONTROL_TREE_ARITY].ranks[0];
	else
		return false;
	return true;
}

struct control_link *control_link_find(struct control *control, uint32_t peer)
{
	for (struct control_link *link = control->links; link; link = link->next)
		if (link->peer == peer && link->source.fd >= 0)
			return link;
	return NULL;
}

static void close_link(struct control *control, struct control_link *link)
{
	char drain[512];

	if (link->source.fd < 0)
		return;
	epoll_ctl(control->epoll_fd, EPOLL_CTL_DEL, link->source.fd, NULL);
	/* Closing a socket with unread bytes resets the connection, which may overtake what was sent last: our ABORT or GOODBYE. */
	shutdown(link->source.fd, SHUT_WR);
	for (int i = 0; i < 256 && recv(link->source.fd, drain, sizeof drain, MSG_DONTWAIT) > 0; i++)
		;
	close(link->source.fd);
	link->source.fd = -1;
}

static void free_link(struct control_link *link)
{
	wire_reader_free(&link->reader);
	free(link->out);
	free(link);
}

void control_links_free_closed(struct control *control)
{
	for (struct control_link **at = &control->links; *at;) {
		struct control_link *link = *at;
		if (link->source.fd < 0) {
			*at = link->next;
			free_link(link);
		} else {
			at = &link->next;
		}
	}
}

void control_links_close_all(struct control *control)
{
	for (struct control_link *link = control->links; link; link = link->next)
		close_link(control, link);
	control_links_free_closed(control);
}

/* A neighbour from which nothing comes reads nothing either. */
static bool is_silent(const struct control *control, const struct control_link *link)
{
	return link->silent_ns > 3 * control->heartbeat_ms * ST_NS_PER_MS;
}

bool control_links_flushed(const struct control *control)
{
	for (const struct control_link *link = control->links; link; link = link->next)
		if (link->source.fd >= 0 && link->out_begin < link->out_end && !is_silent(control, link))
			return false;
	return true;
}

bool control_links_parted(const struct control *control)
{
	for (const struct control_link *link = control->links; link && !control->judged; link = link->next)
		if (link->source.fd >= 0 && !link->farewell && !control->left[link->peer])
			return false;
	return control_links_flushed(control);
}

int64_t control_silence_ns(const struct control *control, uint32_t peer)
{
	int64_t least = INT64_MAX;

	for (const struct control_link *link = control->links; link; link = link->next)
		if (link->peer == peer && link->source.fd >= 0 && link->silent_ns < least)
			least = link->silent_ns;
	return least;
}

/* ---- sending ------------------------------------------------------------------------------------------------------- */

static void watch(struct control *control, struct control_link *link, bool writing)
{
	struct epoll_event event = {.events = EPOLLIN | (writing ? EPOLLOUT : 0u), .data.ptr = link};

	if (link->wants_write == writing)
		return;
	link->wants_write = writing;
	epoll_ctl(control->epoll_fd, EPOLL_CTL_MOD, link->source.fd, &event);
}

static bool keep(struct control_link *link, const void *data, size_t bytes)
{
	if (link->out_end + bytes > link->out_capacity && link->out_begin > 0) {
		memmove(link->out, link->out + link->out_begin, link->out_end - link->out_begin);
		link->out_end -= link->out_begin;
		link->out_begin = 0;
	}
	if (link->out_end + bytes > link->out_capacity) {
		size_t capacity = 2 * link->out_capacity + bytes;
		uint8_t *larger = realloc(link->out, capacity);
		if (!larger)
			return false;
		link->out = larger;
		link->out_capacity = capacity;
	}
	memcpy(link->out + link->out_end, data, bytes);
	link->out_end += bytes;
	return true;
}

/* Errors of sending are left to the reading side, which sees them too: there is one place that judges a dead link. */
void control_link_send(struct control *control, struct control_link *link, uint32_t type, const void *payload, size_t bytes, const void *data,
		       size_t data_bytes)
{
	struct wire_frame header = {
		.magic = WIRE_MAGIC, .version = WIRE_VERSION, .type = (uint16_t)type, .length = (uint32_t)(bytes + data_bytes)};
	struct iovec parts[3] = {{&header, sizeof header}, {(void *)payload, bytes}, {(void *)data, data_bytes}};
	struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
	size_t sent = 0;

	if (link->source.fd < 0 || link->mute)
		return;
	if (link->out_begin == link->out_end) {
		ssize_t n = sendmsg(link->source.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n < 0 && errno != EAGAIN && errno != EINTR)
			return;
		sent = n > 0 ? (size_t)n : 0;
	}
	for (int i = 0; i < 3; i++) {
		size_t skip = sent < parts[i].iov_len ? sent : parts[i].iov_len;
		sent -= skip;
		if (skip < parts[i].iov_len && !keep(link, (uint8_t *)parts[i].iov_base + skip, parts[i].iov_len - skip)) {
			/* Half a frame can't be taken back: without memory for the rest this neighbour is lost. */
			shutdown(link->source.fd, SHUT_RDWR);
			return;
		}
	}
	watch(control, link, link->out_begin < link->out_end);
}

static void flush(struct control *control, struct control_link *link)
{
	while (link->out_begin < link->out_end) {
		ssize_t n = send(link->source.fd, link->out + link->out_begin, link->out_end - link->out_begin, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			break;
		link->out_begin += (size_t)n;
	}
	if (link->out_begin == link->out_end) {
		link->out_begin = link->out_end = 0;
		watch(control, link, false);
		pthread_cond_broadcast(&control->changed);
	}
}

void control_flood(struct control *control, const struct control_link *except, uint32_t type, const void *payload, size_t bytes,
		   const void *data, size_t data_bytes)
{
	for (struct control_link *link = control->links; link; link = link->next)
		if (link != except)
			control_link_send(control, link, type, payload, bytes, data, data_bytes);
}

enum st_status control_link_add(struct control *control, uint32_t peer, bool local, int fd)
{
	struct control_link *link = calloc(1, sizeof *link);
	struct epoll_event event = {.events = EPOLLIN, .data.ptr = link};

	if (!link)
		return st_fail(ST_ERR_NOMEM, "no memory for a control connection");
	link->source = (struct control_source){.kind = CONTROL_SOURCE_LINK, .fd = fd};
	link->peer = peer;
	link->local = local;
	if (epoll_ctl(control->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0) {
		free(link);
		return st_fail_errno("can't watch a control connection");
	}
	link->next = control->links;
	control->links = link;
	control->met[peer] = true;
	/* A tree connection tells what a probe would: the same name, and reached by Unix socket or not. */
	if (control_same_name(control, peer) && control->reach[peer] == CONTROL_REACH_UNKNOWN)
		control->reach[peer] = local ? CONTROL_REACH_LOCAL : CONTROL_REACH_REMOTE;

	control_decisions_resend(control, link);
	control_recent_send(control, link);
	/* After what those who left have said before. */
	for (uint32_t r = 0; r < control->size; r++)
		if (control->left[r])
			control_link_send(control, link, WIRE_GOODBYE, &(struct wire_goodbye){.rank = r, .whole = 1, .entered = control->root.entered[r]},
					  sizeof(struct wire_goodbye), NULL, 0);
		else if (control->root.left[r])
			control_link_send(control, link, WIRE_GOODBYE, &(struct wire_goodbye){.rank = r, .entered = control->root.entered[r]},
					  sizeof(struct wire_goodbye), NULL, 0);
	if (control->judged)
		control_link_send(control, link, WIRE_ABORT, &control->verdict, sizeof control->verdict, NULL, 0);
	pthread_cond_broadcast(&control->changed);
	return ST_OK;
}

/* ---- the verdict --------------------------------------------------------------------------------------------------- */

static const char *node_name(const struct control *control, uint32_t rank)
{
	return control->world->nodes[control->world->node_of[rank]].name;
}

static void verdict_text(struct control *control)
{
	const struct wire_abort *v = &control->verdict;
	char who[192], seen[160] = "";

	snprintf(who, sizeof who, "rank %u on %s", v->culprit, node_name(control, v->culprit));
	if (v->detector != v->culprit && v->detector != v->other)
		snprintf(seen, sizeof seen, "; seen by rank %u on %s", v->detector, node_name(control, v->detector));
	const char *during = v->operation[0] ? " during " : "", *colon = v->detail[0] ? ": " : "";
	const char *open = v->detail[0] ? " (" : "", *shut = v->detail[0] ? ")" : "";
	char *text = control->verdict_text;
	size_t bytes = sizeof control->verdict_text;

	switch ((enum control_how)v->how) {
	case CONTROL_HOW_EXITED:
		snprintf(text, bytes, "%s died (%s)%s%s%s", who, v->detail[0] ? v->detail : "its process ended", during, v->operation, seen);
		break;
	case CONTROL_HOW_UNREACHABLE:
		snprintf(text, bytes, "%s is unreachable%s%s%s%s%s%s", who, open, v->detail, shut, during, v->operation, seen);
		break;
	case CONTROL_HOW_LINK:
		snprintf(text, bytes, "the link between rank %u on %s and %s broke%s%s%s%s%s", v->other, node_name(control, v->other), who, during,
			 v->operation, colon, v->detail, seen);
		break;
	case CONTROL_HOW_LATE:
		snprintf(text, bytes, "%s is late%s%s%s%s%s", who, during, v->operation, colon, v->detail, seen);
		break;
	case CONTROL_HOW_MISMATCH:
		/* Both ends of the disagreement find it, and each would blame the other: the detail names both. */
		snprintf(text, bytes, "%s", v->detail);
		break;
	case CONTROL_HOW_APPLICATION:
		snprintf(text, bytes, "%s failed%s%s%s%s%s", who, during, v->operation, colon, v->detail, seen);
		break;
	case CONTROL_HOW_LEFT:
		/* The detail says what else it left: a communicator. */
		snprintf(text, bytes, "%s left%s%s%s%s%s%s", who, v->detail[0] ? "" : " the job", during, v->operation, colon, v->detail, seen);
		break;
	case CONTROL_HOW_PROTOCOL:
		snprintf(text, bytes, "%s sent bytes that no correct rank sends%s%s%s%s%s", who, during, v->operation, colon, v->detail, seen);
		break;
	}
}

/* Strongest first: what a process says of itself and what its host sees, then what is concluded from silence, then what may have another cause. */
static const uint8_t strength[] = {
	[CONTROL_HOW_EXITED] = 0,      [CONTROL_HOW_APPLICATION] = 1, [CONTROL_HOW_MISMATCH] = 2, [CONTROL_HOW_PROTOCOL] = 3,
	[CONTROL_HOW_UNREACHABLE] = 4, [CONTROL_HOW_LINK] = 5,        [CONTROL_HOW_LEFT] = 6,     [CONTROL_HOW_LATE] = 7,
};

/* A rank that says why it fails and then ends: its own word counts for more than its end. */
static bool own_word(const struct wire_abort *verdict)
{
	return verdict->how == CONTROL_HOW_APPLICATION && verdict->detector == verdict->culprit;
}

/* A total order, so that whoever knows the same verdicts has the same text. */
static bool stronger(const struct wire_abort *a, const struct wire_abort *b)
{
	const uint32_t x[] = {own_word(a) ? 0 : strength[a->how], a->culprit, !own_word(a), a->other, a->detector};
	const uint32_t y[] = {own_word(b) ? 0 : strength[b->how], b->culprit, !own_word(b), b->other, b->detector};

	for (size_t i = 0; i < sizeof x / sizeof *x; i++)
		if (x[i] != y[i])
			return x[i] < y[i];
	return memcmp(a, b, sizeof *a) < 0;
}

static void tell(struct control *control)
{
	uint64_t one = 1;

	verdict_text(control);
	/* Pairs with nothing but the lock: whoever sees the flag takes the lock before it reads the text. */
	atomic_store_explicit(&control->aborted, true, memory_order_relaxed);
	if (write(control->event_fd, &one, sizeof one) < 0) {
		/* Sleepers find the flag at their next look, within a second. */
	}
	pthread_cond_broadcast(&control->changed);
}

/* The tree may be cut without anybody having noticed yet: to a neighbour that does not say that it knows the verdict, a way round is looked for. */
static int reach_all(struct control *control)
{
	if (!control->judged || atomic_load_explicit(&control->aborted, memory_order_relaxed))
		return 1000;
	int64_t left_ns = control->settle.left_ns - (CONTROL_SETTLE_MS - ECHO_MS) * ST_NS_PER_MS;
	if (left_ns > 0)
		return (int)(left_ns / ST_NS_PER_MS) + 1;
	for (struct control_link *link = control->links; link; link = link->next) {
		if (link->source.fd < 0 || link->local || link->knows)
			continue;
		link->knows = true; /* asked for once */
		if (link->peer != control->verdict.culprit)
			control_inquire(control, link->peer, CONTROL_QUESTION_REACH, "");
	}
	return 1000;
}

int control_settle_tick(struct control *control)
{
	if (!control->judged || atomic_load_explicit(&control->aborted, memory_order_relaxed))
		return 1000;
	int left_ms = st_deadline_poll_ms(&control->settle), reach_ms = reach_all(control);
	if (left_ms > 0)
		return left_ms < reach_ms ? left_ms : reach_ms;
	if (control->reaching && !st_deadline_expired(&control->settle_most))
		return RETRY_MS;
	tell(control);
	return 1000;
}

static void take_verdict(struct control *control, const struct wire_abort *verdict, const struct control_link *from)
{
	bool first = !control->judged;

	if (atomic_load_explicit(&control->aborted, memory_order_relaxed) || (!first && !stronger(verdict, &control->verdict)))
		return;
	control->verdict = *verdict;
	control->judged = true;
	/* The first also back to where it came from: so everybody hears from all its neighbours that they know. */
	control_flood(control, first ? NULL : from, WIRE_ABORT, verdict, sizeof *verdict, NULL, 0);
	pthread_cond_broadcast(&control->changed);
	if (!first)
		return;
	control->settle = st_deadline_in_ms(CONTROL_SETTLE_MS);
	control->settle_most = st_deadline_in_ms(CONTROL_SETTLE_MOST_MS);
	if (control->size == 1)
		tell(control);
	else
		control_wake(control); /* the service thread shall look at the time */
}

static void judge(struct control *control, uint32_t culprit, uint32_t other, enum control_how how, const char *operation, const char *detail)
{
	struct wire_abort verdict = {.culprit = culprit, .detector = control->rank, .how = (uint32_t)how, .other = other, .when_ns = st_wall_ns()};

	if (control->judged && (st_deadline_expired(&control->settle) || control->settle.left_ns < CONTROL_SETTLE_MS / 2 * ST_NS_PER_MS))
		return;
	if (operation) {
		snprintf(verdict.operation, sizeof verdict.operation, "%s", operation);
	} else {
		const char *name = atomic_load_explicit(&control->doing_name, memory_order_relaxed);
		const struct control_group *group =
			control_group_find(control, atomic_load_explicit(&control->doing_context, memory_order_relaxed));
		if (name)
			snprintf(verdict.operation, sizeof verdict.operation, "%s %llu%s", name,
				 (unsigned long long)atomic_load_explicit(&control->doing_sequence, memory_order_relaxed), group ? group->label : "");
	}
	if (detail)
		snprintf(verdict.detail, sizeof verdict.detail, "%s", detail);
	wire_clean_text(verdict.operation, sizeof verdict.operation);
	wire_clean_text(verdict.detail, sizeof verdict.detail);
	take_verdict(control, &verdict, NULL);
}

void control_abort_locked(struct control *control, uint32_t culprit, enum control_how how, const char *operation, const char *detail)
{
	/* A link has two ends, and whoever finds it broken names them in the same order. */
	if (how == CONTROL_HOW_LINK && culprit < control->rank)
		judge(control, control->rank, culprit, how, operation, detail);
	else
		judge(control, culprit, how == CONTROL_HOW_LINK ? control->rank : culprit, how, operation, detail);
}

enum st_status control_verdict(struct control *control)
{
	if (!atomic_load_explicit(&control->aborted, memory_order_relaxed))
		return ST_OK;
	return st_fail_copy(ST_ERR_ABORTED, control->verdict_text);
}

enum st_status control_verdict_await(struct control *control)
{
	while (control->judged && !atomic_load_explicit(&control->aborted, memory_order_relaxed)) {
		control_settle_tick(control);
		if (!atomic_load_explicit(&control->aborted, memory_order_relaxed)) {
			struct st_deadline next = st_deadline_in_ms(RETRY_MS);
			control_wait(control, control->settle.left_ns > 0 ? &control->settle : &next);
		}
	}
	return control_verdict(control);
}

/* ---- receiving ----------------------------------------------------------------------------------------------------- */

void control_mark_left(struct control *control, uint32_t rank, uint64_t entered, const struct control_link *from)
{
	struct wire_goodbye goodbye = {.rank = rank, .whole = 1, .entered = entered};

	if (control->left[rank])
		return;
	control->left[rank] = true;
	if (!control->root.left[rank] || entered < control->root.entered[rank]) {
		control->root.left[rank] = true;
		control->root.entered[rank] = entered;
	}
	for (struct control_link *link = control->links; link; link = link->next) {
		if (link->peer != rank || link->source.fd < 0)
			continue;
		/* It passes nothing on for much longer: from here on it is no neighbour. */
		control_link_send(control, link, WIRE_FAREWELL, NULL, 0, NULL, 0);
		link->mute = true;
		control_rejoin_soon(control);
	}
	control_flood(control, from, WIRE_GOODBYE, &goodbye, sizeof goodbye, NULL, 0);
	pthread_cond_broadcast(&control->changed);
}

static enum st_status abort_frame(struct control *control, struct control_link *link, const uint8_t *payload)
{
	struct wire_abort verdict;

	memcpy(&verdict, payload, sizeof verdict);
	if (verdict.culprit >= control->size || verdict.detector >= control->size || verdict.how > CONTROL_HOW_PROTOCOL || verdict.other >= control->size)
		return st_fail(ST_ERR_PROTOCOL, "an abort by rank %u because of rank %u, how %u", verdict.detector, verdict.culprit, verdict.how);
	wire_clean_text(verdict.operation, sizeof verdict.operation);
	wire_clean_text(verdict.detail, sizeof verdict.detail);
	link->knows = true;
	take_verdict(control, &verdict, link);
	return ST_OK;
}

static enum st_status frame(struct control *control, struct control_link *link)
{
	const struct wire_reader *reader = &link->reader;

	switch (reader->header.type) {
	case WIRE_HEARTBEAT:
		control->counters.heartbeats_received++;
		/* Heartbeats alone count as a sign of life: a neighbour sends them to all its neighbours in one turn, so when it stops
		 * they all find out at the same moment, wherever its last other frame went. */
		link->silent_ns = 0;
		return ST_OK;
	case WIRE_GOODBYE:
		return control_goodbye_frame(control, link, reader->payload);
	case WIRE_FAREWELL:
		link->farewell = true;
		pthread_cond_broadcast(&control->changed);
		return ST_OK;
	case WIRE_RESEND:
		return control_resend_frame(control, link, reader->payload);
	case WIRE_ABORT:
		return abort_frame(control, link, reader->payload);
	case WIRE_ASK:
		return control_ask_frame(control, link, reader->payload);
	case WIRE_ANSWER:
		return control_answer_frame(control, link, reader->payload);
	default:
		return control_decision_frame(control, link, reader->payload, reader->header.length);
	}
}

/* The neighbour is gone. error: 0 for end of file, else errno. */
static void lost(struct control *control, struct control_link *link, int error)
{
	uint32_t peer = link->peer;

	close_link(control, link);
	if (control->left[peer] || link->farewell) { /* in an orderly way; whoever still needs it will find out by `left` */
		control_rejoin_soon(control);
		return;
	}
	if (control_link_find(control, peer))
		return; /* two ranks that looked for each other at once have two connections, and need one */
	control->gone[peer] = true;
	/* The kernel closes a Unix socket when its process ends, and at no other time. */
	if (link->local)
		control_abort_locked(control, peer, CONTROL_HOW_EXITED, NULL, "its process ended");
	else
		control_inquire(control, peer, CONTROL_QUESTION_ENDED, error ? strerror(error) : "its control connection ended");
	control_rejoin_now(control);
}

void control_link_ready(struct control *control, struct control_link *link, uint32_t events)
{
	if (events & EPOLLOUT)
		flush(control, link);
	/* A bounded number of frames per turn, so that one busy neighbour does not keep the others from being heard. */
	for (int i = 0; i < 64 && link->source.fd >= 0; i++) {
		void *where;
		size_t room;
		wire_reader_space(&link->reader, &where, &room);
		ssize_t n = recv(link->source.fd, where, room, MSG_DONTWAIT);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return;
		if (n <= 0) {
			lost(control, link, n < 0 ? errno : 0);
			return;
		}
		enum st_status status = wire_reader_advance(&link->reader, (size_t)n);
		if (status == ST_OK && link->reader.complete) {
			status = frame(control, link);
			wire_reader_next(&link->reader);
		}
		if (status == ST_ERR_PROTOCOL) {
			control_abort_locked(control, link->peer, CONTROL_HOW_PROTOCOL, NULL, st_message());
			close_link(control, link);
			return;
		}
		if (status != ST_OK) {
			control_abort_locked(control, control->rank, CONTROL_HOW_APPLICATION, NULL, st_message());
			close_link(control, link);
			return;
		}
	}
}

/*
 * A neighbour that is silent for the stall timeout is stopped, unreachable, or behind a cut link; asking which begins after half of that
 * time, so that the verdict comes at its end.  What came while this thread did not run lies in the socket: look first.
 */
static void judge_silence(struct control *control, struct control_link *link)
{
	int64_t stall_ns = control->stall_timeout_ms * ST_NS_PER_MS;
	uint32_t peer = link->peer;
	char seen[64];

	if (link->silent_ns < stall_ns / 2 || control->judged)
		return;
	control_link_ready(control, link, 0);
	if (link->source.fd < 0 || link->silent_ns < stall_ns / 2 || control->left[peer] || link->farewell)
		return;
	snprintf(seen, sizeof seen, "no heartbeat for %.1f s", (double)control->stall_timeout_ms / 1e3);
	if (!link->local)
		control_inquire(control, peer, CONTROL_QUESTION_SILENT, seen);
	else if (link->silent_ns >= control_silence_judged_ns(control))
		control_abort_locked(control, peer, CONTROL_HOW_UNREACHABLE, NULL, seen);
}

int control_links_tick(struct control *control)
{
	int64_t now = st_now_ns(), passed = now - control->last_tick_ns, most = 2 * control->heartbeat_ms * ST_NS_PER_MS;
	int64_t left_ns = ST_NS_PER_S;
	bool beat = st_deadline_expired(&control->next_heartbeat);

	/* As in clock.h, only running time counts; but a whole job wakes from a suspension within some moments, node by node, and
	 * a small stall timeout must outlast them too.  So a turn, of which there are several per timeout, counts little. */
	control->last_tick_ns = now;
	passed = passed < most ? passed : most;
	if (beat)
		control->next_heartbeat = st_deadline_in_ms(control->heartbeat_ms);
	for (struct control_link *link = control->links; link; link = link->next) {
		if (link->source.fd < 0)
			continue;
		if (beat) {
			control_link_send(control, link, WIRE_HEARTBEAT, NULL, 0, NULL, 0);
			control->counters.heartbeats_sent++;
		}
		link->silent_ns += passed;
		judge_silence(control, link);
		int64_t link_ns = (link->local ? control_silence_judged_ns(control) : control->stall_timeout_ms * ST_NS_PER_MS / 2) - link->silent_ns;
		if (link_ns <= 0)
			continue; /* it is being looked into */
		left_ns = link_ns < left_ns ? link_ns : left_ns;
	}
	int beat_ms = st_deadline_poll_ms(&control->next_heartbeat);
	int link_ms = left_ns > 0 ? (int)(left_ns / ST_NS_PER_MS) + 1 : 1;
	return beat_ms < link_ms ? beat_ms : link_ms;
}
