/*
 * Shared memory between two ranks of a node.
 *
 * Each rank makes one segment per link (shm_segment.h), passed over the link's Unix socket.  It holds the slots for
 * what the peer sends, the grants that this rank gives and the records of the puts that the peer has made:
 *
 *   control lines | grants (lines) | puts and lends (2 * lines) | slots
 *
 * A line is one cache line, written by one side only, and tells its number itself: line k % lines is grant (or put or lend) k when its
 * `number` is k + 1.  So the reader fetches one line per event, and there is no common counter.  There are never more puts under way than
 * grants, nor more lends than slots.  What is lent: transport_shm_lend.c.
 *
 * ORDER.  A grant's number is stored with release by the receiver and loaded with acquire by the sender: what the receiver read from the
 * slot before happens before the sender writes it.  A put's number is stored with release by the sender and loaded with acquire
 * by the receiver: the data is there.  Those stores are sequentially consistent too, as are the store and loads of `asleep`: either
 * the sleeper sees the event in its last look or the other side sees it asleep and writes one byte to the socket.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/io.h"
#include "shm_segment.h"
#include "transport_shm_internal.h"

#define MAGIC UINT64_C(0x32304d4853435953) /* "SYCSHM02" */
#define MAX_LINES 1024
/* How many calls of progress() go by between looks at the socket: a system call each. */
#define SOCKET_EVERY 64

struct hello {
	uint64_t magic, bytes, slots, slot_bytes;
	struct shm_proof proof;
};

/* Where things lie in a segment. */
struct layout {
	unsigned lines;
	size_t stride, head, bytes; /* head: before the slots */
};

static struct layout layout(unsigned slots, size_t slot_bytes)
{
	struct layout made = {.lines = 4};
	while (made.lines < slots && made.lines < MAX_LINES)
		made.lines *= 2;
	made.stride = (slot_bytes + SHM_LINE - 1) / SHM_LINE * SHM_LINE;
	made.head = (sizeof(struct shm_segment_head) + 3 * made.lines * sizeof(struct shm_line) + 4095) / 4096 * 4096;
	made.bytes = (made.head + slots * made.stride + 4095) / 4096 * 4096;
	return made;
}

/* A tag for a signature: different operations have different tags but for one in 2^64. */
static uint64_t tag_of(const struct transport_signature *signature)
{
	uint64_t words[3], tag = 0;
	_Static_assert(sizeof words == sizeof *signature, "a signature is three words");
	memcpy(words, signature, sizeof words);
	for (int i = 0; i < 3; i++) {
		tag = (tag ^ words[i]) * UINT64_C(0x9e3779b97f4a7c15);
		tag ^= tag >> 29;
	}
	return tag;
}

static void shm_close(struct link *link)
{
	struct shm_link *me = shm_of(link);
	if (!me)
		return;
	if (me->own)
		munmap(me->own, me->segment_bytes);
	if (me->theirs)
		munmap(me->theirs, me->segment_bytes);
	if (me->fd >= 0)
		close(me->fd);
	shm_lend_close(me);
	free(me->grants);
	free(me);
}

static enum st_status closed(const struct shm_link *me)
{
	return st_fail(ST_ERR_ABORTED, "rank %" PRIu32 " on %s closed the connection while shared memory was set up", me->link.ends.peer,
		       me->link.ends.peer_host);
}

static enum st_status send_segment(struct shm_link *me, int segment)
{
	struct hello hello = {.magic = MAGIC, .bytes = me->segment_bytes, .slots = me->slots, .slot_bytes = me->slot_bytes};
	ST_TRY(shm_proof_make(me, &hello.proof));
	struct iovec part = {&hello, sizeof hello};
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	memset(&control, 0, sizeof control);
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room};
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(header), &segment, sizeof segment);
	ssize_t n;
	do
		n = sendmsg(me->fd, &message, MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	if (n < 0 && (errno == EPIPE || errno == ECONNRESET))
		return closed(me);
	/* The socket is new and its buffer empty: a short write does not happen. */
	if (n != (ssize_t)sizeof hello)
		return n < 0 ? st_fail_errno("shared memory with rank %" PRIu32 ": sendmsg", me->link.ends.peer)
			     : st_fail(ST_ERR_SYSTEM, "shared memory with rank %" PRIu32 ": short sendmsg", me->link.ends.peer);
	return ST_OK;
}

/* Takes `bytes` of the peer's and at most one descriptor with them; *segment is -1 when none came. */
static enum st_status receive(struct shm_link *me, struct st_deadline *deadline, int64_t timeout_ms, void *where, size_t bytes, int *segment)
{
	size_t have = 0;
	bool several = false;
	*segment = -1;
	while (have < bytes) {
		union {
			struct cmsghdr header;
			char room[CMSG_SPACE(sizeof(int))];
		} control;
		struct iovec part = {(char *)where + have, bytes - have};
		struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room};
		ssize_t n = recvmsg(me->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
		if (n > 0) {
			have += (size_t)n;
			several |= (message.msg_flags & MSG_CTRUNC) != 0;
			for (struct cmsghdr *header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
				if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
					continue;
				size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
				for (size_t i = 0; i < count; i++) {
					int fd;
					memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
					if (*segment < 0)
						*segment = fd;
					else
						several |= !close(fd);
				}
			}
		} else if (n == 0 || errno == ECONNRESET) {
			return closed(me);
		} else if (errno == EAGAIN || errno == EINTR) {
			if (st_deadline_expired(deadline))
				return st_fail(ST_ERR_TIMEOUT, "rank %" PRIu32 " on %s did not set up shared memory within %" PRId64 " ms",
					       me->link.ends.peer, me->link.ends.peer_host, timeout_ms);
			struct pollfd wait = {me->fd, POLLIN, 0};
			poll(&wait, 1, st_deadline_poll_ms(deadline));
		} else {
			return st_fail_errno("shared memory with rank %" PRIu32 ": recvmsg", me->link.ends.peer);
		}
	}
	/* Cut off: more than two came, or this process has no room for more descriptors. */
	if (several)
		return st_fail(ST_ERR_PROTOCOL, "rank %" PRIu32 " on %s: several descriptors for shared memory, or none left to take one with",
			       me->link.ends.peer, me->link.ends.peer_host);
	return ST_OK;
}

static enum st_status check_hello(const struct shm_link *me, const struct hello *hello, int segment)
{
	const struct transport_ends *ends = &me->link.ends;
	if (hello->magic != MAGIC)
		return st_fail(ST_ERR_PROTOCOL, "rank %" PRIu32 " on %s: not a greeting for shared memory", ends->peer, ends->peer_host);
	if (hello->bytes != me->segment_bytes || hello->slots != me->slots || hello->slot_bytes != me->slot_bytes)
		return st_fail(ST_ERR_MISMATCH,
			       "shared memory: rank %" PRIu32 " has %" PRIu64 " slots of %" PRIu64 " bytes, rank %" PRIu32 " has %u of %zu", ends->peer,
			       hello->slots, hello->slot_bytes, ends->rank, me->slots, me->slot_bytes);
	if (segment < 0)
		return st_fail(ST_ERR_PROTOCOL, "rank %" PRIu32 " on %s: sent no descriptor for shared memory", ends->peer, ends->peer_host);
	return ST_OK;
}

/* Both segments: made, exchanged, mapped, and then, when both ends have mapped both, sealed.  mine and theirs are left to be closed. */
static enum st_status exchange_segments(struct shm_link *me, int64_t timeout_ms, int *mine, int *theirs)
{
	const struct transport_ends *ends = &me->link.ends;
	struct st_deadline deadline = st_deadline_in_ms(timeout_ms);
	char own[160], other[160], mapped = 0;
	void *memory;
	int none;
	struct hello hello;
	snprintf(own, sizeof own, "shared memory for rank %" PRIu32 " on %s", ends->peer, ends->peer_host);
	snprintf(other, sizeof other, "shared memory of rank %" PRIu32 " on %s", ends->peer, ends->peer_host);
	ST_TRY(shm_segment_make("synctrain", me->segment_bytes, 2, own, mine));
	ST_TRY(shm_segment_map(*mine, me->segment_bytes, own, &memory));
	me->own = memory;
	ST_TRY(send_segment(me, *mine));
	ST_TRY(st_set_nonblocking(me->fd));
	ST_TRY(receive(me, &deadline, timeout_ms, &hello, sizeof hello, theirs));
	ST_TRY(check_hello(me, &hello, *theirs));
	me->proof = hello.proof;
	ST_TRY(shm_segment_map(*theirs, me->segment_bytes, other, &memory));
	me->theirs = memory;
	ST_TRY(shm_segment_seal(*theirs, memory, me->segment_bytes, other));
	/* One byte says that it is mapped. A peer that has gone shows when its byte is awaited. */
	if (send(me->fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno != EPIPE && errno != ECONNRESET)
		return st_fail_errno("%s: send", own);
	enum st_status status = receive(me, &deadline, timeout_ms, &mapped, 1, &none);
	if (none >= 0) {
		close(none);
		status = st_fail(ST_ERR_PROTOCOL, "rank %" PRIu32 " on %s: several descriptors for shared memory", ends->peer, ends->peer_host);
	}
	ST_TRY(status);
	return shm_segment_seal(*mine, me->own, me->segment_bytes, own);
}

size_t transport_shm_bytes(unsigned slots, size_t slot_bytes)
{
	return layout(slots, slot_bytes).bytes;
}

static enum st_status shm_open_link(int fd, const struct transport_ends *ends, unsigned slots, size_t slot_bytes, int64_t timeout_ms,
				    struct link **link)
{
	struct shm_link *me = calloc(1, sizeof *me);
	if (!me) {
		close(fd);
		return st_fail(ST_ERR_NOMEM, "shared memory: out of memory");
	}
	me->fd = fd;
	me->message_fd = -1;
	me->link.ops = &transport_shm;
	me->link.ends = *ends;
	me->slots = me->link.slots = slots;
	me->slot_bytes = slot_bytes;
	const struct layout places = layout(slots, slot_bytes);
	me->lines = places.lines;
	me->stride = places.stride;
	me->segment_bytes = places.bytes;
	me->grants = calloc(me->lines, sizeof *me->grants);
	me->copied = calloc(slots, sizeof *me->copied);
	me->lends = calloc(slots, sizeof *me->lends);

	int mine = -1, theirs = -1;
	enum st_status status = ST_OK;
	if (!slots || slots > MAX_LINES || !slot_bytes || slot_bytes > (size_t)1 << 40)
		status = st_fail(ST_ERR_USAGE, "shared memory: %u slots of %zu bytes", slots, slot_bytes);
	else if (!me->grants || !me->copied || !me->lends)
		status = st_fail(ST_ERR_NOMEM, "shared memory: out of memory");
	if (status == ST_OK)
		status = exchange_segments(me, timeout_ms, &mine, &theirs);
	if (mine >= 0)
		close(mine);
	if (theirs >= 0)
		close(theirs);
	if (status != ST_OK) {
		shm_close(&me->link);
		return status;
	}
	me->own_grants = me->own->lines;
	me->own_events = me->own->lines + me->lines;
	me->their_grants = me->theirs->lines;
	me->their_events = me->theirs->lines + me->lines;
	me->own_slots = (char *)me->own + places.head;
	me->their_slots = (char *)me->theirs + places.head;
	shm_proof_try(me);
	*link = &me->link;
	return ST_OK;
}

static void *shm_slot(struct link *link, unsigned slot)
{
	return shm_of(link)->own_slots + slot * shm_of(link)->stride;
}

static void shm_enter(struct link *link, const struct transport_signature *signature)
{
	struct shm_link *me = shm_of(link);
	uint64_t words[3];
	link->entered = *signature;
	me->tag = tag_of(signature);
	me->compared = 0;
	memcpy(words, signature, sizeof words);
	/* Readers take the words only if the version is even and the same before and after. */
	uint64_t version = atomic_load_explicit(&me->own->version, memory_order_relaxed) | 1;
	atomic_store_explicit(&me->own->version, version, memory_order_relaxed);
	for (int i = 0; i < 3; i++)
		atomic_store_explicit(&me->own->entered[i], words[i], memory_order_release);
	atomic_store_explicit(&me->own->version, version + 1, memory_order_release);
}

static void shm_announce(struct link *link)
{
	(void)link; /* entering was visible at once */
}

static bool shm_heard(struct link *link, struct transport_signature *signature)
{
	struct shm_link *me = shm_of(link);
	uint64_t words[3];
	uint64_t version = atomic_load_explicit(&me->theirs->version, memory_order_acquire); /* releases: shm_enter's */
	if (!version || version & 1)
		return false;
	for (int i = 0; i < 3; i++)
		words[i] = atomic_load_explicit(&me->theirs->entered[i], memory_order_acquire);
	if (atomic_load_explicit(&me->theirs->version, memory_order_relaxed) != version)
		return false;
	memcpy(signature, words, sizeof words);
	return true;
}

void shm_wake(struct shm_link *me)
{
	uint32_t yes = 1;
	if (atomic_load_explicit(&me->theirs->asleep, memory_order_seq_cst) &&
	    atomic_compare_exchange_strong(&me->theirs->asleep, &yes, 0)) {
		ssize_t n;
		do
			n = send(me->fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
		while (n < 0 && errno == EINTR);
		/* A full buffer wakes it as well; a broken connection is seen by progress. */
	}
}

static enum st_status shm_ready(struct link *link, void *destination, size_t bytes)
{
	struct shm_link *me = shm_of(link);
	if (me->granted - me->landed_puts >= me->lines)
		return ST_PENDING;
	size_t offset = (size_t)((char *)destination - me->own_slots);
	if ((char *)destination < me->own_slots || offset % me->stride || offset / me->stride >= me->slots || bytes > me->slot_bytes)
		return st_fail(ST_ERR_INTERNAL, "shared memory: a grant that is no slot");
	unsigned at = (unsigned)(me->granted & (me->lines - 1));
	me->grants[at] = (struct shm_grant){bytes, me->tag};
	struct shm_line *line = &me->own_grants[at];
	atomic_store_explicit(&line->tag, me->tag, memory_order_relaxed);
	atomic_store_explicit(&line->bytes, bytes, memory_order_relaxed);
	atomic_store_explicit(&line->what, offset / me->stride, memory_order_relaxed);
	atomic_store_explicit(&line->number, ++me->granted, memory_order_seq_cst);
	shm_wake(me);
	return ST_OK;
}

enum st_status shm_mismatch(struct shm_link *me, bool peer_sends, uint64_t sent, uint64_t granted)
{
	struct transport_signature theirs;
	bool known = shm_heard(&me->link, &theirs);
	return transport_mismatch(&me->link, known ? &theirs : NULL, peer_sends, sent, granted);
}

static enum st_status shm_reserve(struct link *link, size_t bytes, void **destination)
{
	struct shm_link *me = shm_of(link);
	struct shm_line *line = &me->their_grants[link->puts & (me->lines - 1)];
	uint64_t number = atomic_load_explicit(&line->number, memory_order_acquire); /* releases: shm_ready's */
	if (number != link->puts + 1) {
		if (number > link->puts + 1)
			return transport_break(link, ST_ERR_PROTOCOL, "rank %" PRIu32 " on %s: grant %" PRIu64 " where %" PRIu64 " was expected",
					       link->ends.peer, link->ends.peer_host, number, link->puts + 1);
		return ST_PENDING;
	}
	uint64_t tag = atomic_load_explicit(&line->tag, memory_order_relaxed);
	uint64_t granted = atomic_load_explicit(&line->bytes, memory_order_relaxed);
	uint64_t slot = atomic_load_explicit(&line->what, memory_order_relaxed);
	if (tag != me->tag || granted != bytes)
		return shm_mismatch(me, false, bytes, granted);
	if (slot >= me->slots || bytes > me->slot_bytes)
		return transport_break(link, ST_ERR_PROTOCOL, "rank %" PRIu32 " on %s: grants slot %" PRIu64 " of %u", link->ends.peer,
				       link->ends.peer_host, slot, me->slots);
	me->reserved_bytes = bytes;
	*destination = me->their_slots + slot * me->stride;
	return ST_OK;
}

static void shm_commit(struct link *link)
{
	struct shm_link *me = shm_of(link);
	uint64_t event = link->puts + link->lends;
	struct shm_line *line = &me->their_events[event & (2 * me->lines - 1)];
	atomic_store_explicit(&line->tag, me->tag, memory_order_relaxed);
	atomic_store_explicit(&line->bytes, me->reserved_bytes, memory_order_relaxed);
	atomic_store_explicit(&line->what, SHM_PUT, memory_order_relaxed);
	atomic_store_explicit(&line->number, event + 1, memory_order_seq_cst);
	link->puts++;
	link->put_bytes += me->reserved_bytes;
	shm_wake(me);
}

static enum st_status shm_put(struct link *link, const void *source, size_t bytes)
{
	void *destination;
	ST_TRY(shm_reserve(link, bytes, &destination));
	if (bytes)
		memcpy(destination, source, bytes);
	shm_commit(link);
	return ST_OK;
}

/* The next line of the peer's that is not taken yet; NULL: it is not written. */
static struct shm_line *next_line(struct shm_link *me)
{
	struct link *link = &me->link;
	struct shm_line *line = &me->own_events[me->landed & (2 * me->lines - 1)];
	uint64_t number = atomic_load_explicit(&line->number, memory_order_acquire); /* releases: shm_commit's, announce's */
	if (number == me->landed + 1)
		return line;
	if (number > me->landed + 1)
		transport_break(link, ST_ERR_PROTOCOL, "rank %" PRIu32 " on %s: put %" PRIu64 " where %" PRIu64 " was expected", link->ends.peer,
				link->ends.peer_host, number, me->landed + 1);
	return NULL;
}

static void put_landed(struct shm_link *me, const struct shm_line *line)
{
	const uint64_t tag = atomic_load_explicit(&line->tag, memory_order_relaxed), bytes = atomic_load_explicit(&line->bytes, memory_order_relaxed);
	const struct shm_grant *grant = &me->grants[me->landed_puts & (me->lines - 1)];
	if (me->landed_puts == me->granted)
		transport_break(&me->link, ST_ERR_PROTOCOL, "rank %" PRIu32 " on %s: a put of %" PRIu64 " bytes that was not granted", me->link.ends.peer,
				me->link.ends.peer_host, bytes);
	else if (tag != grant->tag || bytes != grant->bytes)
		shm_mismatch(me, true, bytes, grant->bytes);
	else
		me->landed_puts++;
}

void shm_take_events(struct shm_link *me)
{
	struct link *link = &me->link;
	struct shm_line *line;
	while (link->broken == ST_OK && (line = next_line(me))) {
		uint64_t what = atomic_load_explicit(&line->what, memory_order_relaxed);
		if (what == SHM_PUT)
			put_landed(me, line);
		else if (what >= SHM_KINDS || me->landed_lends - me->given_back >= me->slots)
			transport_break(link, ST_ERR_PROTOCOL, "rank %" PRIu32 " on %s lends more than %u times, or in way %" PRIu64, link->ends.peer,
					link->ends.peer_host, me->slots, what);
		else if (atomic_load_explicit(&line->tag, memory_order_relaxed) != me->tag)
			return; /* of an operation to come, unless this one waits for it: shm_received */
		else
			shm_lend_landed(me, line, what);
		if (link->broken == ST_OK)
			me->landed++;
	}
}

static uint64_t shm_received(struct link *link)
{
	struct shm_link *me = shm_of(link);
	struct shm_line *line;
	shm_take_events(me);
	/* Left there, and wanted now. */
	if (me->landed == link->waited && link->broken == ST_OK && (line = next_line(me)) &&
	    atomic_load_explicit(&line->what, memory_order_relaxed) != SHM_PUT &&
	    atomic_load_explicit(&line->tag, memory_order_relaxed) != me->tag) {
		uint64_t bytes = atomic_load_explicit(&line->bytes, memory_order_relaxed);
		shm_mismatch(me, true, bytes, bytes);
	}
	return me->landed;
}

static uint64_t shm_flushed(struct link *link)
{
	return link->puts + shm_lends_flushed(shm_of(link));
}

/* Where ranks that disagree take different algorithms, each may wait for what the other one never sends: its signature tells. */
static void compare_signatures(struct shm_link *me)
{
	struct link *link = &me->link;
	struct transport_signature theirs;
	uint64_t version = atomic_load_explicit(&me->theirs->version, memory_order_relaxed);
	if (version == me->compared || !shm_heard(link, &theirs))
		return;
	me->compared = version;
	if (theirs.sequence == link->entered.sequence && memcmp(&theirs, &link->entered, sizeof theirs))
		transport_mismatch(link, &theirs, true, 0, 0);
}

static enum st_status shm_progress(struct link *link)
{
	struct shm_link *me = shm_of(link);
	if (link->broken == ST_OK)
		compare_signatures(me);
	if (link->broken != ST_OK)
		return transport_status(link);
	/* A wake-up byte that comes after arm() must stay in the socket until the sleep: whoever sent it has cleared `asleep`. */
	if (me->armed || me->quiet++ < SOCKET_EVERY)
		return ST_OK;
	me->quiet = 0;
	enum st_status status = shm_read_socket(me);
	return status == ST_PENDING ? ST_OK : status;
}

static int shm_fd(struct link *link)
{
	return shm_of(link)->eof ? -1 : shm_of(link)->fd;
}

static bool shm_wants_read(struct link *link)
{
	(void)link;
	return true;
}

static bool shm_wants_write(struct link *link)
{
	(void)link;
	return false;
}

static void shm_arm(struct link *link)
{
	shm_of(link)->armed = true;
	atomic_store_explicit(&shm_of(link)->own->asleep, 1, memory_order_seq_cst);
}

static void shm_disarm(struct link *link)
{
	shm_of(link)->armed = false;
	atomic_store_explicit(&shm_of(link)->own->asleep, 0, memory_order_relaxed);
	shm_of(link)->quiet = SOCKET_EVERY; /* the next progress takes the wake-up bytes away, or sees the end */
}

const struct transport_ops transport_shm = {
	.name = "shm", .mapped = true,
	.open = shm_open_link, .close = shm_close, .slot = shm_slot,
	.enter = shm_enter, .announce = shm_announce, .heard = shm_heard,
	.ready = shm_ready, .put = shm_put, .reserve = shm_reserve, .commit = shm_commit,
	.received = shm_received, .flushed = shm_flushed,
	.lend = shm_lend, .returned = shm_returned, .borrowed = shm_borrowed, .give_back = shm_give_back, .forget = shm_forget,
	.progress = shm_progress,
	.fd = shm_fd, .wants_read = shm_wants_read, .wants_write = shm_wants_write, .arm = shm_arm, .disarm = shm_disarm,
};
