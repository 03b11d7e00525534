/*
 * From the training thread to the file: a ring with one producer and one consumer, and a thread that empties it ten times a second.
 * On the node's writer the thread puts records into the sink, elsewhere it sends them to the writer.
 *
 * No record is waited for and nobody waits for a record: a full ring drops, a full socket leaves them in the ring.  The thread looks
 * by itself, so that adding a record costs a copy and no system call.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/digest.h"
#include "common/log.h"
#include "trainer/records_writer.h"

enum {
	RING_RECORDS = 8192, /* 1.2 MB: 80,000 steps a second at the pace below */
	LOOK_MS = 100,
	LAST_WORDS_MS = 1000, /* how long a closing writer waits for its neighbours, and they for room in its socket */
	CLOSE_MS = 2000
};
_Static_assert((RING_RECORDS & (RING_RECORDS - 1)) == 0, "positions wrap by masking");

struct message {
	struct records_datagram header;
	struct train_record records[RECORDS_DATAGRAM_MAX];
};

/* A rank of the writer's node, as the writer knows it. */
struct neighbour {
	uint32_t rank;
	bool last; /* has said that nothing more will come */
};

struct train_records {
	uint32_t rank;
	uint64_t launch;
	struct train_record *ring;
	_Alignas(64) _Atomic uint64_t added;   /* by the training thread */
	_Alignas(64) _Atomic uint64_t removed; /* by our thread */
	_Atomic uint64_t dropped;
	atomic_bool closing;
	atomic_int holders; /* caller and thread: a thread stuck in a write outlives train_records_close */
	bool running;
	pthread_t thread;
	int socket_fd, wake_fd, done_fd;
	struct records_sink *sink; /* NULL: not the writer */
	struct neighbour *neighbours;
	size_t neighbour_count;
	bool gone; /* the writer's socket is no more */
	struct message message;
};

uint32_t train_records_writer(const struct records_setup *setup)
{
	uint32_t r = 0;

	while (r < setup->rank && strcmp(setup->hosts[r], setup->hosts[setup->rank]))
		r++;
	return r;
}

static void release(struct train_records *records)
{
	if (atomic_fetch_sub_explicit(&records->holders, 1, memory_order_acq_rel) > 1)
		return;
	if (records->socket_fd >= 0)
		close(records->socket_fd);
	if (records->wake_fd >= 0)
		close(records->wake_fd);
	if (records->done_fd >= 0)
		close(records->done_fd);
	records_sink_free(records->sink);
	free(records->neighbours);
	free(records->ring);
	free(records);
}

static socklen_t abstract_address(const char *name, struct sockaddr_un *address)
{
	size_t length = strnlen(name, RECORDS_SOCKET_BYTES);

	*address = (struct sockaddr_un){.sun_family = AF_UNIX};
	memcpy(address->sun_path + 1, name, length);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

/* The name is random and 128 bits long: nobody else can have taken it, and a later launch never meets an earlier one's. */
static bool bind_socket(struct train_records *records, char name[RECORDS_SOCKET_BYTES])
{
	struct sockaddr_un address;
	uint8_t random[16];
	char hex[2 * sizeof random + 1];
	int on = 1;

	records->socket_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (records->socket_fd < 0 || st_random_bytes(random, sizeof random) != ST_OK)
		return false;
	st_hex(random, sizeof random, hex);
	snprintf(name, RECORDS_SOCKET_BYTES, "synctrain-records-%s", hex);
	socklen_t length = abstract_address(name, &address);
	return setsockopt(records->socket_fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) == 0 &&
	       bind(records->socket_fd, (struct sockaddr *)&address, length) == 0;
}

enum st_status train_records_prepare(const struct records_setup *setup, char socket_name[RECORDS_SOCKET_BYTES],
				     struct train_records **out)
{
	struct train_records *records = aligned_alloc(64, (sizeof *records + 63) / 64 * 64);
	enum st_status status;
	size_t others = 0;

	memset(socket_name, 0, RECORDS_SOCKET_BYTES);
	if (!records)
		return st_fail(ST_ERR_NOMEM, "step records: no memory for rank %u", setup->rank);
	memset(records, 0, sizeof *records);
	records->rank = setup->rank;
	records->launch = setup->launch;
	records->socket_fd = records->wake_fd = records->done_fd = -1;
	atomic_init(&records->holders, 1);
	records->ring = malloc(RING_RECORDS * sizeof *records->ring);
	if (!records->ring) {
		status = st_fail(ST_ERR_NOMEM, "step records: no memory for %d records", RING_RECORDS);
		goto fail;
	}
	/* Touched now, so that no step pays for a page. */
	memset(records->ring, 0xff, RING_RECORDS * sizeof *records->ring);
	if (train_records_writer(setup) == setup->rank) {
		status = records_sink_create(setup, &records->sink);
		if (status != ST_OK)
			goto fail;
		for (uint32_t r = setup->rank + 1; r < setup->size; r++)
			others += !strcmp(setup->hosts[r], setup->hosts[setup->rank]);
		records->neighbours = calloc(others + 1, sizeof *records->neighbours);
		if (!records->neighbours) {
			status = st_fail(ST_ERR_NOMEM, "step records: no memory for %zu neighbours", others);
			goto fail;
		}
		for (uint32_t r = setup->rank + 1; r < setup->size; r++)
			if (!strcmp(setup->hosts[r], setup->hosts[setup->rank]))
				records->neighbours[records->neighbour_count++].rank = r;
		if (others && !bind_socket(records, socket_name)) {
			st_log(ST_LOG_WARN, "step records: no socket for the other ranks of %s: %s; theirs are dropped",
			       setup->hosts[setup->rank], strerror(errno));
			socket_name[0] = 0;
		}
	}
	*out = records;
	return ST_OK;
fail:
	release(records);
	return status;
}

/* Records that lie in the ring, for its consumer. */
static uint64_t waiting(const struct train_records *records)
{
	return atomic_load_explicit(&records->added, memory_order_acquire) -
	       atomic_load_explicit(&records->removed, memory_order_relaxed);
}

static const struct train_record *peek(const struct train_records *records, uint64_t ahead)
{
	return &records->ring[(atomic_load_explicit(&records->removed, memory_order_relaxed) + ahead) & (RING_RECORDS - 1)];
}

/* Gives n places back to the producer: its acquire of `removed` in train_records_add. */
static void advance(struct train_records *records, uint64_t n)
{
	atomic_fetch_add_explicit(&records->removed, n, memory_order_release);
}

static void drop(struct train_records *records, uint64_t n)
{
	atomic_fetch_add_explicit(&records->dropped, n, memory_order_relaxed);
}

void train_records_add(struct train_records *records, const struct train_record *record)
{
	if (!records)
		return;
	uint64_t added = atomic_load_explicit(&records->added, memory_order_relaxed);
	if (!records->running || added - atomic_load_explicit(&records->removed, memory_order_acquire) >= RING_RECORDS) {
		drop(records, 1);
		return;
	}
	struct train_record *slot = &records->ring[added & (RING_RECORDS - 1)];
	*slot = *record;
	slot->rank = records->rank;
	atomic_store_explicit(&records->added, added + 1, memory_order_release); /* acquired in waiting() */
}

uint64_t train_records_dropped(const struct train_records *records)
{
	return records ? atomic_load_explicit(&records->dropped, memory_order_relaxed) : 0;
}

/* Sleeps until the next look, until train_records_close wakes us, or until the socket has something for us. */
static void sleep_until(struct train_records *records, short socket_events)
{
	struct pollfd fds[2] = {{.fd = records->wake_fd, .events = POLLIN}, {.fd = records->socket_fd, .events = socket_events}};
	bool closing = atomic_load_explicit(&records->closing, memory_order_acquire);

	/* Once closing, wake_fd stays readable: leave it out, or the last second would be spent spinning. */
	if (closing)
		fds[0].fd = -1;
	if (!socket_events)
		fds[1].fd = -1;
	poll(fds, 2, closing ? LOOK_MS / 10 : LOOK_MS);
}

/* One datagram into the sink. Whatever is not exactly what a rank of this launch and user sends is ignored. False: none there. */
static bool receive(struct train_records *records, int64_t now_ns)
{
	struct message *message = &records->message;
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(struct ucred))];
	} control;
	struct iovec vector = {message, sizeof *message};
	struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
	struct neighbour *sender = NULL;
	struct ucred sent_by;
	bool known = false;
	ssize_t n = recvmsg(records->socket_fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

	if (n < 0)
		return errno == EINTR;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&header); c; c = CMSG_NXTHDR(&header, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_CREDENTIALS || c->cmsg_len != CMSG_LEN(sizeof sent_by))
			continue;
		memcpy(&sent_by, CMSG_DATA(c), sizeof sent_by);
		known = sent_by.uid == getuid();
	}
	if (!known || (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) || (size_t)n < sizeof message->header ||
	    message->header.launch != records->launch || message->header.count > RECORDS_DATAGRAM_MAX ||
	    (size_t)n != sizeof message->header + message->header.count * sizeof message->records[0])
		return true;
	for (size_t i = 0; i < records->neighbour_count; i++)
		if (records->neighbours[i].rank == message->header.rank)
			sender = &records->neighbours[i];
	if (!sender)
		return true;
	sender->last = sender->last || message->header.last;
	records_sink_dropped(records->sink, sender->rank, message->header.dropped, now_ns);
	for (size_t i = 0; i < message->header.count; i++) {
		message->records[i].rank = sender->rank;
		if (records_sink_ready(records->sink) || (records_sink_flush(records->sink, now_ns) && records_sink_ready(records->sink)))
			records_sink_put(records->sink, &message->records[i], now_ns);
		else
			drop(records, 1);
	}
	return true;
}

/* Moves records into the sink until it is full (true) or nothing is left. */
static bool gather(struct train_records *records, int64_t now_ns)
{
	while (waiting(records) && records_sink_ready(records->sink)) {
		records_sink_put(records->sink, peek(records, 0), now_ns);
		advance(records, 1);
	}
	/* As many at a time as neighbours may have sent since the last look: a flood does not keep us from our own ring. */
	for (size_t i = 0; records->socket_fd >= 0 && records_sink_ready(records->sink) && i < 4 * (records->neighbour_count + 1); i++)
		if (!receive(records, now_ns))
			break;
	return !records_sink_ready(records->sink);
}

static bool neighbours_are_done(const struct train_records *records)
{
	for (size_t i = 0; i < records->neighbour_count; i++)
		if (!records->neighbours[i].last)
			return false;
	return true;
}

static void write_records(struct train_records *records)
{
	int64_t close_by = 0;

	records_sink_prepare(records->sink, st_now_ns());
	for (;;) {
		/* Looked at before the ring: what was added before closing is then seen in this turn. */
		bool closing = atomic_load_explicit(&records->closing, memory_order_acquire), stuck = false;
		int64_t now = st_now_ns();

		if (closing && !close_by)
			close_by = now + LAST_WORDS_MS * ST_NS_PER_MS;
		bool full = gather(records, now);
		records_sink_dropped(records->sink, records->rank, train_records_dropped(records), now);
		if (full || closing || records_sink_due(records->sink, now))
			stuck = !records_sink_flush(records->sink, now);
		if (closing && (stuck ? records_sink_retry_ns(records->sink) >= close_by : !full && neighbours_are_done(records)))
			break;
		if (closing && now >= close_by)
			break;
		if (full && !stuck)
			continue;
		sleep_until(records, records->socket_fd >= 0 && !full ? POLLIN : 0);
	}
	uint64_t left = waiting(records);
	records_sink_end(records->sink);
	drop(records, left + records_sink_discard(records->sink));
	advance(records, left);
}

enum delivery { DELIVERED, NO_ROOM, GONE };

static enum delivery send_message(struct train_records *records, size_t count, bool last)
{
	struct message *message = &records->message;
	size_t bytes = sizeof message->header + count * sizeof message->records[0];

	message->header = (struct records_datagram){
		.launch = records->launch,
		.rank = records->rank,
		.count = (uint16_t)count,
		.last = last,
		.dropped = train_records_dropped(records),
	};
	while (send(records->socket_fd, message, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
		if (errno == EINTR)
			continue;
		return errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM ? NO_ROOM : GONE;
	}
	return DELIVERED;
}

static enum delivery send_waiting(struct train_records *records)
{
	uint64_t left;

	while ((left = waiting(records)) > 0) {
		size_t n = left < RECORDS_DATAGRAM_MAX ? (size_t)left : RECORDS_DATAGRAM_MAX;

		for (size_t i = 0; i < n; i++)
			records->message.records[i] = *peek(records, i);
		enum delivery delivery = send_message(records, n, false);
		if (delivery != DELIVERED)
			return delivery;
		advance(records, n);
	}
	return DELIVERED;
}

static void send_records(struct train_records *records)
{
	int64_t close_by = 0;

	for (;;) {
		bool closing = atomic_load_explicit(&records->closing, memory_order_acquire);
		int64_t now = st_now_ns();
		enum delivery delivery = records->gone ? GONE : send_waiting(records);

		if (closing && !close_by)
			close_by = now + LAST_WORDS_MS * ST_NS_PER_MS;
		if (delivery == DELIVERED && closing)
			delivery = send_message(records, 0, true);
		if (delivery == GONE) {
			/* The writer has closed or died, which its job tells better than we: no warning. */
			uint64_t left = waiting(records);
			if (!records->gone)
				st_log(ST_LOG_INFO, "step records: this node's writer is gone: records are dropped");
			records->gone = true;
			drop(records, left);
			advance(records, left);
		}
		if (closing && (delivery != NO_ROOM || now >= close_by))
			break;
		sleep_until(records, delivery == NO_ROOM ? POLLOUT : 0);
	}
	uint64_t left = waiting(records);
	drop(records, left);
	advance(records, left);
}

static void *run(void *argument)
{
	struct train_records *records = argument;
	uint64_t one = 1;

	pthread_setname_np(pthread_self(), "records");
	if (records->sink)
		write_records(records);
	else
		send_records(records);
	/* Can't fail: the counter is far from its limit. */
	if (write(records->done_fd, &one, sizeof one) < 0)
		st_log(ST_LOG_DEBUG, "step records: can't tell that the thread has ended");
	release(records);
	return NULL;
}

void train_records_start(struct train_records *records, const char *socket_name)
{
	sigset_t all, before;
	int error = 0;

	if (!records->sink) {
		struct sockaddr_un address;
		socklen_t length = abstract_address(socket_name, &address);

		/* The writer has said why it has none. */
		if (!*socket_name)
			return;
		records->socket_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		if (records->socket_fd < 0 || connect(records->socket_fd, (struct sockaddr *)&address, length) < 0) {
			st_log(ST_LOG_WARN, "step records: rank %u can't reach its node's writer: %s; its records are dropped", records->rank,
			       strerror(errno));
			return;
		}
	}
	records->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	records->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (records->wake_fd < 0 || records->done_fd < 0)
		error = errno;
	if (!error) {
		/* Signals are the training thread's business. (A file size limit's SIGXFSZ goes to whoever writes: to us, unheard.) */
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &before);
		records->running = true;
		atomic_store_explicit(&records->holders, 2, memory_order_relaxed);
		error = pthread_create(&records->thread, NULL, run, records);
		pthread_sigmask(SIG_SETMASK, &before, NULL);
	}
	if (error) {
		records->running = false;
		atomic_store_explicit(&records->holders, 1, memory_order_relaxed);
		st_log(ST_LOG_WARN, "step records: can't start the thread of rank %u: %s; its records are dropped", records->rank,
		       strerror(error));
	}
}

bool train_records_close(struct train_records *records)
{
	uint64_t one = 1;
	bool wrote = false;

	if (!records)
		return false;
	if (records->running) {
		struct st_deadline deadline = st_deadline_in_ms(CLOSE_MS);
		struct pollfd done = {.fd = records->done_fd, .events = POLLIN};
		int ready = 0;

		atomic_store_explicit(&records->closing, true, memory_order_release);
		if (write(records->wake_fd, &one, sizeof one) < 0)
			st_log(ST_LOG_DEBUG, "step records: the thread has to find out by itself");
		while (ready <= 0 && !st_deadline_expired(&deadline))
			ready = poll(&done, 1, st_deadline_poll_ms(&deadline));
		if (ready > 0) {
			pthread_join(records->thread, NULL);
			wrote = records->sink && records_sink_wrote(records->sink);
		} else {
			st_log(ST_LOG_WARN, "step records: the storage did not take the last records within %d ms", CLOSE_MS);
			pthread_detach(records->thread);
		}
	}
	release(records);
	return wrote;
}
