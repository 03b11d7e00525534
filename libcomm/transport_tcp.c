/*
 * TCP: frames over one stream socket, received straight into granted memory.
 *
 * A frame is a 64-byte header (magic and version, kind, bytes, signature) and its payload.  Grants stay local: the socket's own
 * flow control is the credit, and a frame waits in the socket until its grant is there.  When a grant is outstanding, header and payload are
 * read with one call, the payload to where the grant says.  Buffer sizes are left to the kernel, which tunes them to the path; setting
 * them would switch that off and be cut to net.core.wmem_max.
 */
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "common/io.h"
#include "transport.h"

#define MAGIC UINT32_C(0x31435953) /* "SYC1" */
#define HEADER_BYTES 64
#define QUEUE 256 /* grants and puts outstanding, each; a power of two */
#define PARTS 16  /* frames per sendmsg */
/* One call of progress() moves at most so much, so that one fast peer does not starve the others. */
#define PROGRESS_BYTES ((uint64_t)4 << 20)

/* How many calls of progress() go by between looks at a socket from which nothing is awaited: a system call each. */
#define IDLE_EVERY 8

/* The kernels ask and answer this by themselves: a stopped process is no silence. */
#define KEEPALIVE_S 1
#define KEEPALIVE_MOST 120
/* Less could be a slow path's, or the time between two questions. */
#define LEAST_SILENCE_MS (3 * KEEPALIVE_S * INT64_C(1000))
#define SILENT_LOOKS 2

enum kind { DATA = 1, ENTERED = 2 };

struct header {
	uint32_t magic, kind;
	uint64_t bytes;
	struct transport_signature signature;
	uint8_t reserved[HEADER_BYTES - 16 - sizeof(struct transport_signature)];
};
_Static_assert(sizeof(struct header) == HEADER_BYTES, "a header is 64 bytes");

struct grant {
	char *destination;
	uint64_t bytes;
	struct transport_signature signature;
};

struct send {
	struct header header;
	const char *source;
	bool put; /* counts as one; an announcement does not */
};

struct tcp_link {
	struct link link;
	int fd;
	bool eof, blocked_on_write;
	unsigned silent_looks; /* of tcp_check, one after the other */
	unsigned slots;
	size_t stride;
	char *slot_memory;
	struct grant grants[QUEUE];
	uint64_t granted, landed;
	union {
		struct header header;
		char bytes[HEADER_BYTES];
	} incoming;
	size_t have;       /* bytes of the header */
	bool in_payload;   /* the header is whole and fits the grant */
	uint64_t got;      /* bytes of the payload */
	struct send sends[QUEUE];
	uint64_t queued, sent, sent_puts; /* sends given, wholly written; puts among those */
	uint64_t sent_bytes;              /* of the first unfinished one, header included */
	unsigned idle;
	bool peer_known;
	struct transport_signature peer_entered;
};

static struct tcp_link *tcp(struct link *link)
{
	return (struct tcp_link *)link;
}

static void tcp_close(struct link *link)
{
	struct tcp_link *me = tcp(link);
	if (!me)
		return;
	if (me->fd >= 0) {
		/* Unread bytes at close would make the kernel reset the connection and drop what the peer has yet to read. */
		char rest[256];
		shutdown(me->fd, SHUT_WR);
		while (recv(me->fd, rest, sizeof rest, MSG_DONTWAIT) > 0)
			;
		close(me->fd);
	}
	free(me->slot_memory);
	free(me);
}

static enum st_status tcp_open_link(int fd, const struct transport_ends *ends, unsigned slots, size_t slot_bytes, int64_t timeout_ms,
				    struct link **link)
{
	(void)timeout_ms; /* nothing to exchange: every frame carries the version */
	struct tcp_link *me = calloc(1, sizeof *me);
	if (!me) {
		close(fd);
		return st_fail(ST_ERR_NOMEM, "tcp: out of memory");
	}
	me->fd = fd;
	me->link.ops = &transport_tcp;
	me->link.ends = *ends;
	me->slots = me->link.slots = slots;
	me->stride = (slot_bytes + 4095) / 4096 * 4096;
	me->slot_memory = slots && me->stride ? aligned_alloc(4096, slots * me->stride) : NULL;
	int yes = 1;
	enum st_status status = ST_OK;
	if (!me->slot_memory)
		status = st_fail(ST_ERR_NOMEM, "tcp: %u slots of %zu bytes: out of memory", slots, slot_bytes);
	/* Tests use Unix sockets, which have nothing to switch off. */
	else if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes) && errno != EOPNOTSUPP && errno != ENOPROTOOPT)
		status = st_fail_errno("tcp: TCP_NODELAY");
	else
		status = st_set_nonblocking(fd);
	/* So that an idle connection has something to be answered too. What can't be set is what Unix sockets lack. */
	const int every_s = KEEPALIVE_S, most = KEEPALIVE_MOST;
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &every_s, sizeof every_s);
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every_s, sizeof every_s);
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &most, sizeof most);
	if (status != ST_OK) {
		tcp_close(&me->link);
		return status;
	}
	*link = &me->link;
	return ST_OK;
}

static void *tcp_slot(struct link *link, unsigned slot)
{
	return tcp(link)->slot_memory + slot * tcp(link)->stride;
}

static void tcp_enter(struct link *link, const struct transport_signature *signature)
{
	link->entered = *signature;
}

static enum st_status gone(struct tcp_link *me, const char *why)
{
	me->eof = true;
	return transport_break(&me->link, ST_ERR_ABORTED, "rank %" PRIu32 " on %s is gone: %s", me->link.ends.peer, me->link.ends.peer_host, why);
}

/* Writes as much as the socket takes. */
static enum st_status push(struct tcp_link *me)
{
	me->blocked_on_write = false;
	while (me->sent < me->queued) {
		struct iovec parts[2 * PARTS];
		int count = 0;
		uint64_t skip = me->sent_bytes;
		for (uint64_t i = me->sent; i < me->queued && count < 2 * PARTS - 1; i++) {
			struct send *send = &me->sends[i & (QUEUE - 1)];
			if (skip < HEADER_BYTES) {
				parts[count++] = (struct iovec){(char *)&send->header + skip, HEADER_BYTES - skip};
				skip = HEADER_BYTES;
			}
			if (send->header.bytes > skip - HEADER_BYTES)
				parts[count++] = (struct iovec){(char *)(uintptr_t)send->source + (skip - HEADER_BYTES),
								send->header.bytes - (skip - HEADER_BYTES)};
			skip = 0;
		}
		struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)count};
		ssize_t n = sendmsg(me->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n < 0) {
			if (errno == EINTR)
				continue;
			if (errno == EAGAIN || errno == ENOBUFS) {
				me->blocked_on_write = true;
				return ST_OK;
			}
			/* What the peer sent before it went may still be in the socket: the reading side finds the end. */
			me->blocked_on_write = true;
			if (errno == EPIPE || errno == ECONNRESET)
				return ST_OK;
			return gone(me, strerror(errno));
		}
		me->sent_bytes += (uint64_t)n;
		while (me->sent < me->queued) {
			struct send *send = &me->sends[me->sent & (QUEUE - 1)];
			if (me->sent_bytes < HEADER_BYTES + send->header.bytes)
				break;
			me->sent_bytes -= HEADER_BYTES + send->header.bytes;
			me->sent++;
			me->sent_puts += send->put;
		}
	}
	return ST_OK;
}

static bool append(struct tcp_link *me, enum kind kind, const void *source, uint64_t bytes)
{
	if (me->queued - me->sent >= QUEUE)
		return false;
	struct send *send = &me->sends[me->queued & (QUEUE - 1)];
	memset(&send->header, 0, sizeof send->header);
	send->header.magic = MAGIC;
	send->header.kind = kind;
	send->header.bytes = bytes;
	send->header.signature = me->link.entered;
	send->source = source;
	send->put = kind == DATA;
	me->queued++;
	return true;
}

static void tcp_announce(struct link *link)
{
	/* When the queue is full, data is on its way and says the same. */
	if (link->broken == ST_OK && append(tcp(link), ENTERED, NULL, 0))
		push(tcp(link));
}

/*
 * What was sent and has no acknowledgement, or a question without an answer, for so long.  Not TCP_USER_TIMEOUT: it also ends a connection whose peer
 * lives and does not read, which is late, not dead.  Two looks, as one may fall between a question and its answer.
 */
static enum st_status tcp_check(struct link *link, int64_t silence_ms)
{
	struct tcp_link *me = tcp(link);
	struct tcp_info info;
	socklen_t bytes = sizeof info;
	memset(&info, 0, sizeof info);
	if (link->broken != ST_OK || getsockopt(me->fd, IPPROTO_TCP, TCP_INFO, &info, &bytes))
		return link->broken == ST_OK ? ST_OK : transport_status(link);
	if (silence_ms < LEAST_SILENCE_MS)
		silence_ms = LEAST_SILENCE_MS;
	if ((!info.tcpi_unacked && !info.tcpi_probes) || (int64_t)info.tcpi_last_ack_recv < silence_ms) {
		me->silent_looks = 0;
		return ST_OK;
	}
	if (++me->silent_looks < SILENT_LOOKS)
		return ST_OK;
	return transport_break(link, ST_ERR_ABORTED, "nothing has come from rank %" PRIu32 " on %s for %.1f s", link->ends.peer, link->ends.peer_host,
			       (double)info.tcpi_last_ack_recv / 1e3);
}

static bool tcp_heard(struct link *link, struct transport_signature *signature)
{
	if (tcp(link)->peer_known)
		*signature = tcp(link)->peer_entered;
	return tcp(link)->peer_known;
}

static enum st_status tcp_ready(struct link *link, void *destination, size_t bytes)
{
	struct tcp_link *me = tcp(link);
	if (me->granted - me->landed >= QUEUE)
		return ST_PENDING;
	me->grants[me->granted++ & (QUEUE - 1)] = (struct grant){destination, bytes, link->entered};
	return ST_OK;
}

static enum st_status tcp_put(struct link *link, const void *source, size_t bytes)
{
	struct tcp_link *me = tcp(link);
	if (link->broken != ST_OK && link->broken != ST_ERR_ABORTED)
		return transport_status(link);
	if (!append(me, DATA, source, bytes))
		return ST_PENDING;
	link->puts++;
	link->put_bytes += bytes;
	/* The put is taken: a failure to write shows in progress(). */
	if (!me->blocked_on_write && link->broken == ST_OK)
		push(me);
	return ST_OK;
}

static uint64_t tcp_received(struct link *link)
{
	return tcp(link)->landed;
}

static uint64_t tcp_flushed(struct link *link)
{
	return tcp(link)->sent_puts;
}

static bool grant_waits(const struct tcp_link *me)
{
	return me->landed < me->granted;
}

static struct grant *next_grant(struct tcp_link *me)
{
	return &me->grants[me->landed & (QUEUE - 1)];
}

/* Looks at a whole header. `rest` bytes after it lie at the start of the next grant's memory; *rest is what is left of them. */
static enum st_status take_header(struct tcp_link *me, size_t *rest)
{
	while (me->have == HEADER_BYTES && !me->in_payload) {
		struct header header = me->incoming.header;
		const struct transport_ends *ends = &me->link.ends;
		if (header.magic != MAGIC || (header.kind != DATA && header.kind != ENTERED) || (header.kind == ENTERED && header.bytes))
			return transport_break(&me->link, ST_ERR_PROTOCOL, "rank %" PRIu32 " on %s: sent what is no frame (0x%08" PRIx32 " 0x%08" PRIx32 ")",
					       ends->peer, ends->peer_host, header.magic, header.kind);
		me->peer_entered = header.signature;
		me->peer_known = true;
		if (header.kind == ENTERED) {
			me->have = 0;
			if (*rest) {
				char *memory = next_grant(me)->destination;
				me->have = *rest < HEADER_BYTES ? *rest : HEADER_BYTES;
				memcpy(me->incoming.bytes, memory, me->have);
				*rest -= me->have;
				memmove(memory, memory + me->have, *rest);
			}
			continue;
		}
		if (!grant_waits(me))
			return ST_OK;
		const struct grant *grant = next_grant(me);
		if (memcmp(&header.signature, &grant->signature, sizeof header.signature) || header.bytes != grant->bytes)
			return transport_mismatch(&me->link, &header.signature, true, header.bytes, grant->bytes);
		me->in_payload = true;
		me->got = *rest;
		*rest = 0;
	}
	return ST_OK;
}

static enum st_status pull(struct tcp_link *me)
{
	for (uint64_t moved = 0; moved < PROGRESS_BYTES;) {
		struct iovec parts[2];
		struct msghdr message = {.msg_iov = parts};
		size_t rest = 0;
		ST_TRY(take_header(me, &rest)); /* a header may have waited for its grant */
		if (me->in_payload) {
			struct grant *grant = next_grant(me);
			if (me->got == grant->bytes) {
				me->landed++;
				me->in_payload = false;
				me->have = 0;
				continue;
			}
			parts[message.msg_iovlen++] = (struct iovec){grant->destination + me->got, grant->bytes - me->got};
		} else if (me->have < HEADER_BYTES) {
			parts[message.msg_iovlen++] = (struct iovec){me->incoming.bytes + me->have, HEADER_BYTES - me->have};
			if (grant_waits(me) && next_grant(me)->bytes)
				parts[message.msg_iovlen++] = (struct iovec){next_grant(me)->destination, next_grant(me)->bytes};
		} else {
			return ST_OK; /* the frame waits for its grant, in the socket */
		}
		ssize_t n = recvmsg(me->fd, &message, MSG_DONTWAIT);
		if (n == 0)
			return gone(me, "its end of the connection closed");
		if (n < 0) {
			if (errno == EINTR)
				continue;
			if (errno == EAGAIN)
				return ST_OK;
			return gone(me, strerror(errno));
		}
		moved += (uint64_t)n;
		if (me->in_payload) {
			me->got += (uint64_t)n;
		} else {
			size_t head = (size_t)n < HEADER_BYTES - me->have ? (size_t)n : HEADER_BYTES - me->have;
			me->have += head;
			rest = (size_t)n - head;
			ST_TRY(take_header(me, &rest));
		}
		/* A short read means that the socket is empty: the next call would only say so. */
		size_t asked = 0;
		for (size_t i = 0; i < message.msg_iovlen; i++)
			asked += parts[i].iov_len;
		if ((size_t)n < asked && !(me->in_payload && me->got == next_grant(me)->bytes))
			return ST_OK;
	}
	return ST_OK;
}

static enum st_status tcp_progress(struct link *link)
{
	struct tcp_link *me = tcp(link);
	if (link->broken != ST_OK)
		return transport_status(link);
	if (me->sent < me->queued)
		ST_TRY(push(me));
	/* Without a grant nothing can land; a look now and then sees announcements and the end. */
	if (!grant_waits(me) && me->idle++ % IDLE_EVERY)
		return ST_OK;
	return pull(me);
}

static int tcp_fd(struct link *link)
{
	return tcp(link)->eof ? -1 : tcp(link)->fd;
}

static bool tcp_wants_read(struct link *link)
{
	struct tcp_link *me = tcp(link);
	return me->have < HEADER_BYTES || grant_waits(me);
}

static bool tcp_wants_write(struct link *link)
{
	return tcp(link)->sent < tcp(link)->queued;
}

static void tcp_arm(struct link *link)
{
	(void)link;
}

const struct transport_ops transport_tcp = {
	.name = "tcp", .mapped = false,
	.open = tcp_open_link, .close = tcp_close, .slot = tcp_slot,
	.enter = tcp_enter, .announce = tcp_announce, .check = tcp_check, .heard = tcp_heard,
	.ready = tcp_ready, .put = tcp_put,
	.received = tcp_received, .flushed = tcp_flushed, .progress = tcp_progress,
	.fd = tcp_fd, .wants_read = tcp_wants_read, .wants_write = tcp_wants_write, .arm = tcp_arm, .disarm = tcp_arm,
};
