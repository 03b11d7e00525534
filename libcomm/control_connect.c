#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "control_internal.h"

#define RETRY_FIRST_MS 10
#define RETRY_LONGEST_MS 500
#define PROBE_MS 1000
#define SOONER_MS 5000
#define REFUSALS_OF_THE_DEAD 3

union address {
	struct sockaddr any;
	struct sockaddr_un local;
	struct sockaddr_in ipv4;
	struct sockaddr_in6 ipv6;
};

bool control_same_name(const struct control *control, uint32_t peer)
{
	return control->world->node_of[peer] == control->world->node_of[control->rank];
}

static const char *node_name(const struct control *control, uint32_t rank)
{
	return control->world->nodes[control->world->node_of[rank]].name;
}

/* The peer's address, and the text that names it in messages. */
static enum st_status address_of(const struct control *control, uint32_t peer, bool local, union address *address, socklen_t *bytes,
				 char *text, size_t text_bytes)
{
	const struct control_endpoint *end = &control->endpoints[peer];
	char host[INET6_ADDRSTRLEN];

	memset(address, 0, sizeof *address);
	if (local) {
		size_t length = strlen(end->unix_name);
		address->local.sun_family = AF_UNIX;
		memcpy(address->local.sun_path + 1, end->unix_name, length);
		*bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
		snprintf(text, text_bytes, "rank %u on %s (Unix socket)", peer, node_name(control, peer));
		return ST_OK;
	}
	if (end->port4 && (control->addresses.has4 || !end->port6)) {
		address->ipv4.sin_family = AF_INET;
		address->ipv4.sin_port = htons(end->port4);
		memcpy(&address->ipv4.sin_addr, end->ipv4, 4);
		*bytes = sizeof address->ipv4;
		inet_ntop(AF_INET, end->ipv4, host, sizeof host);
		snprintf(text, text_bytes, "rank %u on %s (%s port %u)", peer, node_name(control, peer), host, end->port4);
		return ST_OK;
	}
	if (end->port6) {
		address->ipv6.sin6_family = AF_INET6;
		address->ipv6.sin6_port = htons(end->port6);
		memcpy(&address->ipv6.sin6_addr, end->ipv6, 16);
		*bytes = sizeof address->ipv6;
		inet_ntop(AF_INET6, end->ipv6, host, sizeof host);
		snprintf(text, text_bytes, "rank %u on %s (%s port %u)", peer, node_name(control, peer), host, end->port6);
		return ST_OK;
	}
	return st_fail(ST_ERR_UNAVAILABLE, "rank %u on %s listens on no network address", peer, node_name(control, peer));
}

/* Sleeps until the descriptor (-1: none) has `events`, the deadline's next look, or at most `longest_ms`. */
static enum st_status wait_for(struct control *control, int fd, short events, struct st_deadline *deadline, int longest_ms, bool interruptible,
				const char *whom)
{
	struct pollfd fds[2] = {{.fd = interruptible ? control->event_fd : -1, .events = POLLIN}, {.fd = fd, .events = events}};
	int sleep_ms = st_deadline_poll_ms(deadline);

	if (sleep_ms == 0)
		return st_fail(ST_ERR_TIMEOUT, "%s did not answer before the start-up deadline", whom);
	if (sleep_ms > longest_ms)
		sleep_ms = longest_ms;
	if (poll(fds, 2, sleep_ms) < 0 && errno != EINTR)
		return st_fail_errno("poll");
	if (!interruptible)
		return ST_OK;
	ST_TRY(control_check(control));
	if (atomic_load_explicit(&control->closing, memory_order_relaxed))
		return st_fail(ST_ERR_INTERRUPTED, "this rank is leaving the job");
	return ST_OK;
}

/* Moves a whole handshake message. ST_ERR_UNAVAILABLE: the peer hung up. */
static enum st_status move(struct control *control, int fd, void *message, size_t bytes, bool sending, bool interruptible,
			   struct st_deadline *deadline, const char *whom)
{
	size_t done = 0;

	while (done < bytes) {
		ssize_t n = sending ? send(fd, (char *)message + done, bytes - done, MSG_NOSIGNAL | MSG_DONTWAIT)
				    : recv(fd, (char *)message + done, bytes - done, MSG_DONTWAIT);
		if (n > 0) {
			done += (size_t)n;
		} else if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
			ST_TRY(wait_for(control, fd, sending ? POLLOUT : POLLIN, deadline, 1000, interruptible, whom));
		} else {
			return st_fail(ST_ERR_UNAVAILABLE, "%s hung up during the handshake", whom);
		}
	}
	return ST_OK;
}

static enum st_status handshake(struct control *control, int fd, uint32_t peer, enum wire_purpose purpose, uint64_t context, uint32_t channel,
				bool local, struct st_deadline *deadline, const char *whom)
{
	struct auth_session session;
	struct wire_hello hello;
	struct wire_challenge challenge;
	struct wire_proof proof;
	struct wire_welcome welcome;
	bool interruptible = purpose != WIRE_PURPOSE_SHRINK; /* which comes after the verdict */
	char why[256];
	enum st_status status;

	ST_TRY(auth_client_begin(&control->keys, peer, purpose, context, channel, local, &session, &hello));
	ST_TRY(move(control, fd, &hello, sizeof hello, true, interruptible, deadline, whom));
	ST_TRY(move(control, fd, &challenge, sizeof challenge, false, interruptible, deadline, whom));
	status = auth_client_prove(&control->keys, &session, &challenge, &proof);
	if (status == ST_OK) {
		ST_TRY(move(control, fd, &proof, sizeof proof, true, interruptible, deadline, whom));
		/* The peer may have taken the connection by now: leaving without a word would look like a death. */
		ST_TRY(move(control, fd, &welcome, sizeof welcome, false, false, deadline, whom));
		status = auth_client_end(&welcome);
	}
	if (status == ST_OK)
		return ST_OK;
	snprintf(why, sizeof why, "%s", st_message());
	return st_fail(status, "%s: %s", whom, why);
}

enum attempt { ATTEMPT_DONE, ATTEMPT_REFUSED, ATTEMPT_AGAIN, ATTEMPT_FAILED };

/* One try. *status and st_message() say why it did not end with ATTEMPT_DONE. */
static enum attempt attempt(struct control *control, uint32_t peer, enum wire_purpose purpose, uint64_t context, uint32_t channel, bool local,
			    struct st_deadline *deadline, int *out, enum st_status *status)
{
	union address address;
	socklen_t bytes = 0, length = sizeof(int);
	char whom[192];
	int one = 1, error = 0;

	*status = address_of(control, peer, local, &address, &bytes, whom, sizeof whom);
	if (*status != ST_OK)
		return ATTEMPT_FAILED;
	int fd = socket(address.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0) {
		*status = st_fail_errno("%s: can't make a socket", whom);
		return ATTEMPT_FAILED;
	}
	if (!local)
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	if (connect(fd, &address.any, bytes) < 0)
		error = errno;
	while (error == EINPROGRESS) {
		struct pollfd writable = {.fd = fd, .events = POLLOUT};
		*status = wait_for(control, fd, POLLOUT, deadline, 1000, purpose != WIRE_PURPOSE_SHRINK, whom);
		if (*status != ST_OK) {
			close(fd);
			return ATTEMPT_FAILED;
		}
		if (poll(&writable, 1, 0) > 0 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) < 0)
			error = errno;
	}
	errno = error;
	if (error)
		*status = st_fail_errno("%s: can't connect", whom);
	struct ucred owner;
	length = sizeof owner;
	if (error) {
		close(fd);
		/* EAGAIN: the listener's queue is full.  The others may pass too while the network comes up, but what is refused
		 * was listening before any rank could know its address, and has closed since. */
		return error == ECONNREFUSED ? ATTEMPT_REFUSED : ATTEMPT_AGAIN;
	}
	if (local && (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &owner, &length) < 0 || owner.uid != geteuid())) {
		close(fd);
		*status = st_fail(ST_ERR_PERMISSION, "%s: another user listens there", whom);
		return ATTEMPT_FAILED;
	}
	*status = handshake(control, fd, peer, purpose, context, channel, local, deadline, whom);
	if (*status == ST_OK) {
		*out = fd;
		return ATTEMPT_DONE;
	}
	close(fd);
	/* Hung up: the peer dropped this connection to make room, or is going away; the next try tells. */
	return *status == ST_ERR_UNAVAILABLE || *status == ST_ERR_PROTOCOL ? ATTEMPT_AGAIN : ATTEMPT_FAILED;
}

enum st_status control_connect_channel(struct control *control, uint32_t peer, enum wire_purpose purpose, uint64_t context, uint32_t channel,
				       bool local, struct st_deadline *deadline, int *fd)
{
	enum st_status status;

	for (int pause_ms = RETRY_FIRST_MS;; pause_ms = pause_ms * 2 < RETRY_LONGEST_MS ? pause_ms * 2 : RETRY_LONGEST_MS) {
		char why[512];
		switch (attempt(control, peer, purpose, context, channel, local, deadline, fd, &status)) {
		case ATTEMPT_DONE:
			return ST_OK;
		case ATTEMPT_REFUSED:
			return st_fail_copy(ST_ERR_UNAVAILABLE, st_message());
		case ATTEMPT_FAILED:
			return status;
		case ATTEMPT_AGAIN:
			break;
		}
		if (st_deadline_expired(deadline))
			return st_fail_copy(ST_ERR_TIMEOUT, st_message());
		/* The message of the last try is the one worth showing. */
		snprintf(why, sizeof why, "%s", st_message());
		enum st_status waited = wait_for(control, -1, 0, deadline, pause_ms, purpose != WIRE_PURPOSE_SHRINK, "");
		if (waited == ST_ERR_TIMEOUT)
			return st_fail_copy(ST_ERR_TIMEOUT, why);
		if (waited != ST_OK)
			return waited;
	}
}

enum st_status control_connect(struct control *control, uint32_t peer, enum wire_purpose purpose, bool local, struct st_deadline *deadline, int *fd)
{
	return control_connect_channel(control, peer, purpose, 0, 0, local, deadline, fd);
}

enum st_status control_probe(struct control *control, uint32_t rank, unsigned *refusals, bool *gone)
{
	struct st_deadline deadline = st_deadline_in_ms(PROBE_MS);
	bool local = control_same_name(control, rank);
	int fd = -1;
	enum st_status status = control_connect(control, rank, WIRE_PURPOSE_PROBE, local, &deadline, &fd);
	bool refused_here = local && status == ST_ERR_UNAVAILABLE;

	*gone = false;
	if (refused_here)
		status = control_connect(control, rank, WIRE_PURPOSE_PROBE, false, &deadline, &fd);
	if (status == ST_OK)
		close(fd);
	if (status == ST_ERR_ABORTED)
		return status;
	/* Over TCP alone a refusal may be a firewall's: several in a row are needed. */
	if (status != ST_ERR_UNAVAILABLE)
		*refusals = 0;
	else
		*refusals += refused_here ? REFUSALS_OF_THE_DEAD : 1u;
	*gone = *refusals >= REFUSALS_OF_THE_DEAD;
	return ST_OK;
}

enum control_sign control_knock(struct control *control, uint32_t rank, bool local, int64_t timeout_ms)
{
	struct st_deadline deadline = st_deadline_in_ms(timeout_ms);
	union address address;
	socklen_t bytes = 0, length = sizeof(int);
	char whom[192];
	int error = 0;

	if (address_of(control, rank, local, &address, &bytes, whom, sizeof whom) != ST_OK)
		return CONTROL_SIGN_NONE;
	int fd = socket(address.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return CONTROL_SIGN_NONE;
	if (connect(fd, &address.any, bytes) < 0)
		error = errno;
	while (error == EINPROGRESS) {
		struct pollfd writable = {.fd = fd, .events = POLLOUT};
		if (wait_for(control, fd, POLLOUT, &deadline, 1000, false, whom) != ST_OK)
			break;
		if (poll(&writable, 1, 0) > 0 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) < 0)
			error = errno;
	}
	close(fd);
	/* EAGAIN: a Unix listener whose queue is full. */
	return error == 0 || error == EAGAIN ? CONTROL_SIGN_MUTE : error == ECONNREFUSED ? CONTROL_SIGN_REFUSED : CONTROL_SIGN_NONE;
}

enum control_sign control_sign_of(struct control *control, uint32_t rank, int64_t answer_ms)
{
	bool local = control_same_name(control, rank);
	enum control_sign sign = control_knock(control, rank, local, answer_ms);
	int fd = -1;

	if (local && sign == CONTROL_SIGN_REFUSED && control->endpoints[rank].port4 + control->endpoints[rank].port6) {
		local = false; /* the same name, but perhaps not the same network namespace */
		sign = control_knock(control, rank, false, answer_ms);
	}
	if (sign != CONTROL_SIGN_MUTE)
		return sign;
	struct st_deadline deadline = st_deadline_in_ms(2 * answer_ms);
	switch (control_connect(control, rank, WIRE_PURPOSE_PROBE, local, &deadline, &fd)) {
	case ST_OK:
		close(fd);
		return CONTROL_SIGN_ALIVE;
	case ST_ERR_UNAVAILABLE:
		return CONTROL_SIGN_REFUSED;
	default:
		return CONTROL_SIGN_MUTE;
	}
}

/* ---- data sockets and probes --------------------------------------------------------------------------------------- */

/* The peer can't be connected to: it left, or ends the job. */
static enum st_status peer_failed(struct control_group *group, uint32_t peer, enum st_status status, const char *operation)
{
	char why[512];

	snprintf(why, sizeof why, "%s", st_message());
	if (status == ST_ERR_ABORTED)
		return status;
	if (status == ST_ERR_UNAVAILABLE || status == ST_ERR_TIMEOUT)
		return control_group_suspect(group, peer, operation, why);
	return control_abort(group->control, peer, CONTROL_HOW_LINK, operation, why);
}

static enum st_status check_peer(const struct control *control, uint32_t peer)
{
	if (peer >= control->size || peer == control->rank)
		return st_fail(ST_ERR_USAGE, "seen rank %u as a peer of rank %u of %u", peer, control->rank, control->size);
	return ST_OK;
}

enum st_status control_group_data_socket(struct control_group *group, uint32_t peer, uint32_t channel, bool local, int *fd)
{
	struct control *control = group->control;
	struct st_deadline deadline = st_deadline_in_ms(control->startup_timeout_ms);
	char operation[WIRE_OPERATION_BYTES];
	enum st_status status;

	snprintf(operation, sizeof operation, "wiring%s", group->label);
	ST_TRY(check_peer(control, peer));
	if (local && !control_same_name(control, peer))
		return st_fail(ST_ERR_USAGE, "rank %u is on %s, not on this node", peer, node_name(control, peer));
	ST_TRY(control_check(control));
	if (control->rank < peer) {
		/* Who can't connect must have said why before those who wait for it call it late. */
		int64_t sooner_ms = control->startup_timeout_ms * 3 / 8 < SOONER_MS ? control->startup_timeout_ms * 3 / 8 : SOONER_MS;
		deadline.left_ns -= sooner_ms * ST_NS_PER_MS;
		status = control_connect_channel(control, peer, WIRE_PURPOSE_DATA, group->context, channel, local, &deadline, fd);
		return status == ST_OK ? ST_OK : peer_failed(group, peer, status, operation);
	}
	pthread_mutex_lock(&control->lock);
	for (;;) {
		int accepted = control_accepted_take(control, peer, group->context, channel, local);
		if (accepted >= 0) {
			*fd = accepted;
			status = ST_OK;
			break;
		}
		status = control_verdict_await(control);
		if (status != ST_OK)
			break;
		if (control_group_has_left(group, peer)) {
			control_abort_locked(control, peer, CONTROL_HOW_LEFT, operation, control_group_left_how(group, peer));
		} else if (!control_wait(control, &deadline)) {
			char detail[128];
			snprintf(detail, sizeof detail, "it did not open data channel %u within %.1f s", channel,
				 (double)control->startup_timeout_ms / 1e3);
			control_overdue(control, peer, operation, detail);
		}
	}
	pthread_mutex_unlock(&control->lock);
	return status;
}

enum st_status control_data_socket(struct control *control, uint32_t peer, uint32_t channel, bool local, int *fd)
{
	return control_group_data_socket(&control->root, peer, channel, local, fd);
}

enum st_status control_same_node(struct control *control, uint32_t peer, bool *same)
{
	struct st_deadline deadline = st_deadline_in_ms(control->startup_timeout_ms);
	enum control_reach reach;
	enum st_status status = ST_OK;
	int fd = -1;

	ST_TRY(check_peer(control, peer));
	if (!control_same_name(control, peer)) {
		*same = false;
		return control_check(control);
	}
	pthread_mutex_lock(&control->lock);
	reach = control->reach[peer];
	/* The higher rank waits for what the lower one finds. */
	while (control->rank > peer && reach == CONTROL_REACH_UNKNOWN && status == ST_OK) {
		status = control_verdict_await(control);
		if (status == ST_OK && control->left[peer])
			control_abort_locked(control, peer, CONTROL_HOW_LEFT, "wiring", "");
		else if (status == ST_OK && !control_wait(control, &deadline))
			control_overdue(control, peer, "wiring", "it did not probe this rank's Unix socket in time");
		reach = control->reach[peer];
	}
	pthread_mutex_unlock(&control->lock);
	if (status != ST_OK)
		return status;

	if (reach == CONTROL_REACH_UNKNOWN) {
		reach = CONTROL_REACH_LOCAL;
		status = control_connect(control, peer, WIRE_PURPOSE_LOCAL, true, &deadline, &fd);
		if (status == ST_ERR_UNAVAILABLE || status == ST_ERR_PERMISSION) {
			/* Another network namespace, or another user's: tell the peer, which waits for one answer or the other. */
			reach = CONTROL_REACH_REMOTE;
			status = control_connect(control, peer, WIRE_PURPOSE_REMOTE, false, &deadline, &fd);
		}
		if (status != ST_OK)
			return peer_failed(&control->root, peer, status, "wiring");
		close(fd);
		pthread_mutex_lock(&control->lock);
		control->reach[peer] = (uint8_t)reach;
		pthread_mutex_unlock(&control->lock);
	}
	*same = reach == CONTROL_REACH_LOCAL;
	return control_check(control);
}
