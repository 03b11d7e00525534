#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/digest.h"
#include "common/log.h"
#include "control_internal.h"

#define BACKLOG 1024
#define ACCEPTS_PER_TURN 64

static enum st_status listen_on(struct control *control, int which, const struct sockaddr *address, socklen_t bytes, const char *name)
{
	struct control_source *listener = &control->listeners[which];
	int fd = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), one = 1;
	struct epoll_event event = {.events = EPOLLIN, .data.ptr = listener};

	if (fd < 0)
		return st_fail_errno("can't make a socket for %s", name);
	listener->fd = fd;
	if (address->sa_family == AF_INET6 && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one) < 0)
		return st_fail_errno("%s: can't set IPV6_V6ONLY", name);
	if (bind(fd, address, bytes) < 0 || listen(fd, BACKLOG) < 0)
		return st_fail_errno("can't listen on %s", name);
	if (epoll_ctl(control->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0)
		return st_fail_errno("%s: can't watch the socket", name);
	return ST_OK;
}

static enum st_status listen_unix(struct control *control, struct wire_record *record)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	uint8_t random[16];
	char hex[2 * sizeof random + 1];

	/* Abstract: no file is left behind, whatever kills the process.  The random part is against squatters, not for secrecy. */
	ST_TRY(st_random_bytes(random, sizeof random));
	st_hex(random, sizeof random, hex);
	snprintf(record->unix_name, sizeof record->unix_name, "synctrain.%s", hex);
	size_t length = strlen(record->unix_name);
	memcpy(address.sun_path + 1, record->unix_name, length);
	return listen_on(control, CONTROL_LISTENER_UNIX, (struct sockaddr *)&address,
			 (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length), "an abstract Unix socket");
}

static enum st_status bound_port(int fd, uint16_t *port)
{
	struct sockaddr_storage address;
	socklen_t bytes = sizeof address;

	if (getsockname(fd, (struct sockaddr *)&address, &bytes) < 0)
		return st_fail_errno("can't read the port of a listening socket");
	*port = ntohs(address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
						    : ((struct sockaddr_in *)&address)->sin_port);
	return ST_OK;
}

enum st_status control_listen(struct control *control, struct wire_record *record)
{
	const struct control_addresses *mine = &control->addresses;
	char name[64];

	ST_TRY(listen_unix(control, record));
	snprintf(name, sizeof name, "interface %s", mine->interface);
	if (mine->has4) {
		struct sockaddr_in address = {.sin_family = AF_INET};
		memcpy(&address.sin_addr, mine->ipv4, 4);
		ST_TRY(listen_on(control, CONTROL_LISTENER_IPV4, (struct sockaddr *)&address, sizeof address, name));
		ST_TRY(bound_port(control->listeners[CONTROL_LISTENER_IPV4].fd, &record->port4));
		memcpy(record->ipv4, mine->ipv4, 4);
	}
	if (mine->has6) {
		struct sockaddr_in6 address = {.sin6_family = AF_INET6};
		memcpy(&address.sin6_addr, mine->ipv6, 16);
		enum st_status status = listen_on(control, CONTROL_LISTENER_IPV6, (struct sockaddr *)&address, sizeof address, name);
		if (status == ST_OK)
			status = bound_port(control->listeners[CONTROL_LISTENER_IPV6].fd, &record->port6);
		if (status == ST_OK) {
			memcpy(record->ipv6, mine->ipv6, 16);
		} else if (!mine->has4) {
			return status;
		} else if (control->listeners[CONTROL_LISTENER_IPV6].fd >= 0) {
			/* An IPv6 address that can't be bound (duplicate detection still runs, IPv6 switched off) is no reason to
			 * give up while IPv4 works. */
			close(control->listeners[CONTROL_LISTENER_IPV6].fd);
			control->listeners[CONTROL_LISTENER_IPV6].fd = -1;
		}
	}
	return ST_OK;
}

/* ---- unproven connections ------------------------------------------------------------------------------------------ */

/* Takes the opening off the list; its descriptor is the caller's, who has taken it out of epoll. Freed at the end of the turn. */
static void forget(struct control *control, struct control_opening *opening)
{
	*(opening->older ? &opening->older->newer : &control->oldest_opening) = opening->newer;
	*(opening->newer ? &opening->newer->older : &control->newest_opening) = opening->older;
	control->opening_count--;
	opening->source.fd = -1;
	opening->newer = control->closed_openings;
	control->closed_openings = opening;
}

static void drop(struct control *control, struct control_opening *opening)
{
	int fd = opening->source.fd;

	epoll_ctl(control->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
	forget(control, opening);
	close(fd);
}

static void drop_as_slow(struct control *control, struct control_opening *opening)
{
	control->counters.dropped_slow++;
	drop(control, opening);
}

static void refuse(struct control *control, struct control_opening *opening, const char *why)
{
	control->counters.refused++;
	st_log(ST_LOG_INFO, "refused a %s connection: %s", opening->local ? "Unix" : "TCP", why);
	drop(control, opening);
}

void control_openings_free_closed(struct control *control)
{
	while (control->closed_openings) {
		struct control_opening *next = control->closed_openings->newer;
		free(control->closed_openings);
		control->closed_openings = next;
	}
}

void control_openings_close_all(struct control *control)
{
	while (control->oldest_opening)
		drop(control, control->oldest_opening);
	control_openings_free_closed(control);
	while (control->accepted) {
		struct control_accepted *next = control->accepted->next;
		close(control->accepted->fd);
		free(control->accepted);
		control->accepted = next;
	}
	control->accepted_count = 0;
}

int control_openings_tick(struct control *control)
{
	int sleep_ms = 1000;

	/* All have the same time to live, but each deadline must be looked at every second (see clock.h), not only the oldest's. */
	for (struct control_opening *opening = control->oldest_opening, *newer; opening; opening = newer) {
		newer = opening->newer;
		int left_ms = st_deadline_poll_ms(&opening->deadline);
		if (left_ms == 0)
			drop_as_slow(control, opening);
		else if (left_ms < sleep_ms)
			sleep_ms = left_ms;
	}
	return sleep_ms;
}

static bool same_user(int fd)
{
	struct ucred peer;
	socklen_t bytes = sizeof peer;

	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == geteuid();
}

void control_accept_ready(struct control *control, struct control_source *listener)
{
	bool local = listener == &control->listeners[CONTROL_LISTENER_UNIX];

	for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
		int fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC), one = 1;
		if (fd < 0) {
			if (errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS)
				return;
			/* No descriptor left: make room if a stranger holds one, and look away until the next turn of the clock:
			 * the listener would stay readable and keep the thread spinning. */
			if (control->oldest_opening)
				drop_as_slow(control, control->oldest_opening);
			epoll_ctl(control->epoll_fd, EPOLL_CTL_DEL, listener->fd, NULL);
			listener->idle = true;
			return;
		}
		struct control_opening *opening = NULL;
		if (!local || same_user(fd))
			opening = calloc(1, sizeof *opening);
		struct epoll_event event = {.events = EPOLLIN, .data.ptr = opening};
		if (!opening || epoll_ctl(control->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0) {
			control->counters.refused++;
			free(opening);
			close(fd);
			continue;
		}
		if (!local)
			setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
		while (control->opening_count >= CONTROL_MAX_OPENINGS)
			drop_as_slow(control, control->oldest_opening);
		opening->source = (struct control_source){.kind = CONTROL_SOURCE_OPENING, .fd = fd};
		opening->local = local;
		opening->deadline = st_deadline_in_ms(CONTROL_OPENING_MS);
		opening->older = control->newest_opening;
		*(opening->older ? &opening->older->newer : &control->oldest_opening) = opening;
		control->newest_opening = opening;
		control->opening_count++;
	}
}

/* A handshake message fits any socket buffer: one that is not taken whole belongs to a peer that plays games. */
static bool send_whole(int fd, const void *message, size_t bytes)
{
	return send(fd, message, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)bytes;
}

static unsigned links_to(const struct control *control, uint32_t peer)
{
	unsigned count = 0;

	for (const struct control_link *link = control->links; link; link = link->next)
		count += link->peer == peer && link->source.fd >= 0;
	return count;
}

static void hand_over(struct control *control, struct control_opening *opening, int fd)
{
	const struct wire_hello *hello = &opening->session.hello;
	uint32_t peer = hello->from;
	bool local = opening->local;
	struct control_accepted *accepted;

	switch (hello->purpose) {
	case WIRE_PURPOSE_TREE:
		/* Two ranks that look for each other at once make two connections; neither may close the other's. */
		if (links_to(control, peer) >= CONTROL_MAX_LINKS_TO_PEER || control_link_add(control, peer, local, fd) != ST_OK)
			break;
		return;
	case WIRE_PURPOSE_DATA:
		/* The lower rank connects. */
		accepted = peer < control->rank && control->accepted_count < CONTROL_MAX_ACCEPTED ? malloc(sizeof *accepted) : NULL;
		if (!accepted)
			break;
		*accepted = (struct control_accepted){.next = control->accepted, .peer = peer, .context = hello->context, .channel = hello->channel,
							 .local = local, .fd = fd};
		control->accepted = accepted;
		control->accepted_count++;
		return;
	case WIRE_PURPOSE_LOCAL:
	case WIRE_PURPOSE_REMOTE:
		/* The lower rank's probe decides, once; "local" counts only when it came by Unix socket from the same node name. */
		if (peer < control->rank && control->reach[peer] == CONTROL_REACH_UNKNOWN) {
			bool same = hello->purpose == WIRE_PURPOSE_LOCAL && local && control_same_name(control, peer);
			control->reach[peer] = same ? CONTROL_REACH_LOCAL : CONTROL_REACH_REMOTE;
		}
		break;
	case WIRE_PURPOSE_SHRINK:
		control_caller_take(control, peer, fd);
		return;
	default:
		break;
	}
	close(fd);
}

void control_opening_ready(struct control *control, struct control_opening *opening)
{
	size_t wanted = opening->challenged ? sizeof opening->in.proof : sizeof opening->in.hello;
	/* Never past the end of this message: what follows belongs to whoever gets the connection. */
	ssize_t n = recv(opening->source.fd, opening->in.bytes + opening->have, wanted - opening->have, MSG_DONTWAIT);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		refuse(control, opening, "it ended before its proof");
		return;
	}
	opening->have += (size_t)n;
	if (opening->have < wanted)
		return;
	opening->have = 0;
	if (!opening->challenged) {
		struct wire_challenge challenge;
		enum st_status status = auth_server_begin(&control->keys, &opening->in.hello, opening->local, &opening->session, &challenge);
		if (status == ST_OK || status == ST_ERR_MISMATCH)
			if (!send_whole(opening->source.fd, &challenge, sizeof challenge))
				status = st_fail(ST_ERR_PROTOCOL, "it does not take the challenge");
		if (status == ST_OK)
			opening->challenged = true;
		else
			refuse(control, opening, st_message());
		return;
	}
	struct wire_welcome welcome;
	if (auth_server_end(&control->keys, &opening->session, &opening->in.proof, &welcome) != ST_OK) {
		refuse(control, opening, st_message());
		return;
	}
	if (!send_whole(opening->source.fd, &welcome, sizeof welcome)) {
		refuse(control, opening, "it does not take the welcome");
		return;
	}
	control->counters.handshakes++;
	int fd = opening->source.fd;
	epoll_ctl(control->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
	hand_over(control, opening, fd);
	forget(control, opening);
	pthread_cond_broadcast(&control->changed);
}

int control_accepted_take(struct control *control, uint32_t peer, uint64_t context, uint32_t channel, bool local)
{
	for (struct control_accepted **at = &control->accepted; *at; at = &(*at)->next) {
		struct control_accepted *accepted = *at;
		if (accepted->peer != peer || accepted->context != context || accepted->channel != channel || accepted->local != local)
			continue;
		int fd = accepted->fd;
		*at = accepted->next;
		free(accepted);
		control->accepted_count--;
		return fd;
	}
	return -1;
}
