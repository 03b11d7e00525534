/*
 * Lending memory to a rank of the same node.
 *
 * What lies in memory of comm_memory_alloc is shown where it is: the peer is given the descriptor once, over the link's socket and before the
 * line that first names it, keeps the memory mapped for reading, and is told when it is freed.  Few bytes are copied: into the line, or into
 * a region of this rank's own with a slot for every lend that may be out.  Other memory the peer reads through the kernel, into a slot of its
 * own, if it has proved that it can; else it is copied as well.  So what kind of memory a rank lends is nobody else's business.
 *
 * The proof: this rank puts a random number into private memory and says where.  The peer asks the kernel who is at the other end of the
 * socket, reads that process's memory there, and compares.  Another PID namespace, a sandbox, a security policy: any failure is for good.
 * Every later read brings the number along, so that a process that took the place of another one is found out.
 *
 * ORDER.  A lend's line is released and acquired as a put's (transport_shm.c).  `returned` is stored with release by the borrower and loaded
 * with acquire by the lender: what was read from the memory before happens before the lender writes it again.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "comm.h"
#include "shm_segment.h"
#include "transport_shm_internal.h"

/* Up to here a copy costs less than to wait until the peer gives the memory back. */
#define COPY_BYTES 4096
/* A peer that maps without end would take this rank's address space; an honest one copies instead. */
#define MOST_REGIONS 256
/* The region of copies: the ids of others begin with 1. */
#define COPIES_ID 0

/* ---- what travels on the socket ------------------------------------------------------------------------------------------------ */

static bool send_message(struct shm_link *me, unsigned char which, uint64_t id, uint64_t bytes, int fd)
{
	unsigned char message[SHM_MESSAGE_BYTES] = {which};
	memcpy(message + 1, &id, sizeof id);
	memcpy(message + 9, &bytes, sizeof bytes);
	struct iovec part = {message, sizeof message};
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	memset(&control, 0, sizeof control);
	struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
	if (fd >= 0) {
		header.msg_control = control.room;
		header.msg_controllen = sizeof control.room;
		control.header.cmsg_level = SOL_SOCKET;
		control.header.cmsg_type = SCM_RIGHTS;
		control.header.cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
	}
	ssize_t n;
	do
		n = sendmsg(me->fd, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	/* So few bytes are taken whole or not at all. */
	return n == (ssize_t)sizeof message;
}

static struct shm_region *find_region(struct shm_link *me, uint64_t id)
{
	for (struct shm_region **at = &me->regions; *at; at = &(*at)->next) {
		struct shm_region *found = *at;
		if (found->id != id)
			continue;
		*at = found->next;
		found->next = me->regions;
		me->regions = found;
		return found;
	}
	return NULL;
}

static void unmap(struct shm_link *me, struct shm_region *region)
{
	struct shm_region **at = &me->regions;
	while (*at != region)
		at = &(*at)->next;
	*at = region->next;
	me->region_count--;
	munmap((void *)(uintptr_t)region->memory, region->bytes);
	free(region);
}

static enum st_status map(struct shm_link *me, uint64_t id, uint64_t bytes, int fd)
{
	const struct transport_ends *ends = &me->link.ends;
	if (find_region(me, id) || me->region_count >= MOST_REGIONS)
		return transport_break(&me->link, ST_ERR_PROTOCOL, "rank %" PRIu32 " on %s shows memory %" PRIu64 " again, or more than %d pieces of it",
				       ends->peer, ends->peer_host, id, MOST_REGIONS);
	char what[160];
	const void *memory;
	snprintf(what, sizeof what, "memory that rank %" PRIu32 " on %s lends", ends->peer, ends->peer_host);
	struct shm_region *region = calloc(1, sizeof *region);
	enum st_status status = region ? shm_segment_map_read(fd, bytes, what, &memory) : st_fail(ST_ERR_NOMEM, "%s: out of memory", what);
	if (status != ST_OK) {
		free(region);
		return transport_break(&me->link, status, "%s", st_message());
	}
	*region = (struct shm_region){.next = me->regions, .id = id, .memory = memory, .bytes = bytes};
	me->regions = region;
	me->region_count++;
	return ST_OK;
}

static enum st_status take_message(struct shm_link *me)
{
	const struct transport_ends *ends = &me->link.ends;
	uint64_t id, bytes;
	memcpy(&id, me->message + 1, sizeof id);
	memcpy(&bytes, me->message + 9, sizeof bytes);
	if (me->message[0] == SHM_MEMORY) {
		if (me->message_fd < 0)
			return transport_break(&me->link, ST_ERR_PROTOCOL, "rank %" PRIu32 " on %s shows memory and sends no descriptor of it", ends->peer,
					       ends->peer_host);
		enum st_status status = map(me, id, bytes, me->message_fd);
		close(me->message_fd);
		me->message_fd = -1;
		return status;
	}
	struct shm_region *region = find_region(me, id);
	if (!region || region->freed)
		return transport_break(&me->link, ST_ERR_PROTOCOL, "rank %" PRIu32 " on %s frees memory %" PRIu64 " that it has not shown", ends->peer,
				       ends->peer_host, id);
	region->freed = true;
	if (!region->users)
		unmap(me, region);
	return ST_OK;
}

/* False: more came than is expected, or one got lost. */
static bool take_descriptors(struct shm_link *me, struct msghdr *header)
{
	bool good = !(header->msg_flags & MSG_CTRUNC);
	for (struct cmsghdr *part = CMSG_FIRSTHDR(header); part; part = CMSG_NXTHDR(header, part)) {
		if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
			continue;
		size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < count; i++) {
			int fd;
			memcpy(&fd, CMSG_DATA(part) + i * sizeof fd, sizeof fd);
			if (me->message_fd < 0) {
				me->message_fd = fd;
			} else {
				close(fd);
				good = false;
			}
		}
	}
	return good;
}

enum st_status shm_read_socket(struct shm_link *me)
{
	const struct transport_ends *ends = &me->link.ends;
	unsigned char bytes[64];
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	/* A descriptor comes with the first byte of its message that is read, and ends the read.  So where a message was cut off no more than its rest is
	 * read: the next one's descriptor would come beside its own. */
	struct iovec part = {bytes, me->message_bytes ? SHM_MESSAGE_BYTES - me->message_bytes : sizeof bytes};
	struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room};
	ssize_t n = recvmsg(me->fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return ST_PENDING;
	if (n <= 0) {
		int error = errno;
		/* What the peer put before it went counts. */
		shm_take_events(me);
		me->eof = true;
		return transport_break(&me->link, ST_ERR_ABORTED, "rank %" PRIu32 " on %s is gone: %s", ends->peer, ends->peer_host,
				       n == 0 ? "its end of the link closed" : strerror(error));
	}
	if (!take_descriptors(me, &header))
		return transport_break(&me->link, ST_ERR_PROTOCOL, "rank %" PRIu32 " on %s sends more than one descriptor at a time%s", ends->peer,
				       ends->peer_host, header.msg_flags & MSG_CTRUNC ? ", or this process may open no more" : "");
	for (ssize_t i = 0; i < n; i++) {
		if (!me->message_bytes && bytes[i] == SHM_WAKE)
			continue;
		if (!me->message_bytes && bytes[i] != SHM_MEMORY && bytes[i] != SHM_FORGET)
			return transport_break(&me->link, ST_ERR_PROTOCOL, "rank %" PRIu32 " on %s: no message begins with 0x%02x", ends->peer,
					       ends->peer_host, bytes[i]);
		me->message[me->message_bytes++] = bytes[i];
		if (me->message_bytes == SHM_MESSAGE_BYTES) {
			me->message_bytes = 0;
			ST_TRY(take_message(me));
		}
	}
	if (me->message_fd >= 0 && !me->message_bytes) {
		close(me->message_fd);
		me->message_fd = -1;
		return transport_break(&me->link, ST_ERR_PROTOCOL, "rank %" PRIu32 " on %s sends a descriptor of nothing", ends->peer, ends->peer_host);
	}
	/* A byte to wake this rank may have been among them: whoever sent it has cleared the flag, and it will not end the sleep to come. */
	if (me->armed)
		atomic_store_explicit(&me->own->asleep, 1, memory_order_seq_cst);
	return ST_OK;
}

/* ---- lending ---------------------------------------------------------------------------------------------------------------------- */

uint64_t shm_returned(struct link *link)
{
	struct shm_link *me = shm_of(link);
	uint64_t returned = atomic_load_explicit(&me->theirs->returned, memory_order_acquire); /* releases: shm_give_back's */
	if (returned > link->lends || returned < me->returned)
		transport_break(link, ST_ERR_PROTOCOL, "rank %" PRIu32 " on %s has given back %" PRIu64 " lends of %" PRIu64, link->ends.peer,
				link->ends.peer_host, returned, link->lends);
	else
		me->returned = returned;
	return me->returned;
}

uint64_t shm_lends_flushed(struct shm_link *me)
{
	if (me->flushed < me->link.lends)
		shm_returned(&me->link);
	while (me->flushed < me->link.lends && (me->flushed < me->returned || me->copied[me->flushed % me->slots]))
		me->flushed++;
	return me->flushed;
}

static void send_freed(struct shm_link *me)
{
	while (me->freed_count && send_message(me, SHM_FORGET, me->freed[me->freed_count - 1], 0, -1))
		me->freed_count--;
}

/* False: the peer can't be shown this memory now. */
static bool pass(struct shm_link *me, uint64_t id, size_t bytes, int fd)
{
	for (size_t i = 0; i < me->passed_count; i++)
		if (me->passed[i] == id)
			return true;
	send_freed(me);
	const size_t known = me->passed_count + me->freed_count;
	/* One place is kept for the copies, without which the rest could not be lent at all. */
	if (known + (id != COPIES_ID && !me->copies) >= MOST_REGIONS)
		return false;
	if (known == me->passed_room) {
		size_t room = 2 * me->passed_room + 8;
		uint64_t *ids = realloc(me->passed, room * sizeof *ids);
		if (ids)
			me->passed = ids;
		uint64_t *freed = realloc(me->freed, room * sizeof *freed);
		if (freed)
			me->freed = freed;
		if (!ids || !freed)
			return false;
		me->passed_room = room;
	}
	if (!send_message(me, SHM_MEMORY, id, bytes, fd))
		return false;
	me->passed[me->passed_count++] = id;
	return true;
}

void shm_forget(struct link *link, uint64_t region)
{
	struct shm_link *me = shm_of(link);
	for (size_t i = 0; i < me->passed_count; i++)
		if (me->passed[i] == region) {
			me->passed[i] = me->passed[--me->passed_count];
			me->freed[me->freed_count++] = region;
			break;
		}
	send_freed(me);
}

static size_t copies_bytes(const struct shm_link *me)
{
	return (me->slots * me->stride + 4095) / 4096 * 4096;
}

static enum st_status make_copies(struct shm_link *me)
{
	const struct transport_ends *ends = &me->link.ends;
	const size_t bytes = copies_bytes(me);
	void *memory;
	int fd;
	char what[160];
	snprintf(what, sizeof what, "shared memory for rank %" PRIu32 " on %s", ends->peer, ends->peer_host);
	ST_TRY(transport_memory_make("synctrain-lends", bytes, 2, what, &fd, &memory));
	const bool shown = pass(me, COPIES_ID, bytes, fd);
	close(fd);
	if (!shown) {
		munmap(memory, bytes);
		return st_fail(ST_ERR_SYSTEM, "rank %" PRIu32 " on %s does not take shared memory", ends->peer, ends->peer_host);
	}
	me->copies = memory;
	return ST_OK;
}

static void announce(struct shm_link *me, enum shm_kind kind, size_t bytes, const uint64_t *words, size_t count)
{
	struct link *link = &me->link;
	uint64_t event = link->puts + link->lends;
	struct shm_line *line = &me->their_events[event & (2 * me->lines - 1)];
	atomic_store_explicit(&line->tag, me->tag, memory_order_relaxed);
	atomic_store_explicit(&line->bytes, bytes, memory_order_relaxed);
	atomic_store_explicit(&line->what, kind, memory_order_relaxed);
	for (size_t i = 0; i < count; i++)
		atomic_store_explicit(&line->words[i], words[i], memory_order_relaxed);
	atomic_store_explicit(&line->number, event + 1, memory_order_seq_cst);
	me->copied[link->lends % me->slots] = kind == SHM_INLINE || (kind == SHM_REGION && words[0] == COPIES_ID);
	link->lends++;
	link->put_bytes += bytes;
	shm_wake(me);
}

enum st_status shm_lend(struct link *link, const void *source, size_t bytes, bool copied)
{
	struct shm_link *me = shm_of(link);
	uint64_t words[SHM_WORDS] = {0};
	if (link->lends - me->returned >= me->slots && link->lends - shm_returned(link) >= me->slots)
		return link->broken == ST_OK || link->broken == ST_ERR_ABORTED ? ST_PENDING : transport_status(link);
	if (bytes > me->slot_bytes)
		return st_fail(ST_ERR_INTERNAL, "shared memory: a lend of %zu bytes, a slot has %zu", bytes, me->slot_bytes);
	shm_lends_flushed(me); /* before its place in `copied` is taken */
	if (bytes <= SHM_INLINE_BYTES) {
		if (bytes)
			memcpy(words, source, bytes);
		announce(me, SHM_INLINE, bytes, words, (bytes + sizeof *words - 1) / sizeof *words);
		return ST_OK;
	}
	copied |= bytes <= COPY_BYTES;
	const struct transport_region *region = copied ? NULL : transport_memory_find(link->memory, source, bytes);
	if (region && pass(me, region->id, region->bytes, region->fd)) {
		words[0] = region->id;
		words[1] = (uint64_t)((const char *)source - region->address);
		announce(me, SHM_REGION, bytes, words, 2);
		return ST_OK;
	}
	/* Stored once, when the peer opened the link; nothing else hangs on it. */
	if (!copied && atomic_load_explicit(&me->theirs->reads, memory_order_relaxed)) {
		words[0] = (uint64_t)(uintptr_t)source;
		announce(me, SHM_READ, bytes, words, 1);
		return ST_OK;
	}
	if (!me->copies)
		ST_TRY(make_copies(me));
	words[0] = COPIES_ID;
	words[1] = link->lends % me->slots * me->stride;
	memcpy(me->copies + words[1], source, bytes);
	announce(me, SHM_REGION, bytes, words, 2);
	return ST_OK;
}

/* ---- borrowing -------------------------------------------------------------------------------------------------------------------- */

void shm_lend_landed(struct shm_link *me, const struct shm_line *line, uint64_t kind)
{
	struct shm_lend *lend = &me->lends[me->landed_lends++ % me->slots];
	*lend = (struct shm_lend){.kind = kind, .bytes = atomic_load_explicit(&line->bytes, memory_order_relaxed)};
	for (unsigned i = 0; i < SHM_WORDS; i++)
		lend->words[i] = atomic_load_explicit(&line->words[i], memory_order_relaxed);
}

static enum st_status look_into_region(struct shm_link *me, struct shm_lend *lend)
{
	const struct transport_ends *ends = &me->link.ends;
	const uint64_t id = lend->words[0], offset = lend->words[1];
	struct shm_region *region;
	/* Its descriptor was sent before the line was written. */
	while (!(region = find_region(me, id)) || region->freed) {
		enum st_status status = me->eof ? ST_PENDING : shm_read_socket(me);
		if (status == ST_PENDING)
			return transport_break(&me->link, ST_ERR_PROTOCOL, "rank %" PRIu32 " on %s lends of memory %" PRIu64 " that it has not shown",
					       ends->peer, ends->peer_host, id);
		if (status != ST_OK)
			return status;
	}
	if (offset > region->bytes || lend->bytes > region->bytes - offset || offset % comm_type_bytes((enum comm_type)me->link.entered.type))
		return transport_break(&me->link, ST_ERR_PROTOCOL, "rank %" PRIu32 " on %s lends %" PRIu64 " bytes at %" PRIu64 " of memory of %zu",
				       ends->peer, ends->peer_host, lend->bytes, offset, region->bytes);
	region->users++;
	lend->region = region;
	lend->memory = region->memory + offset;
	return ST_OK;
}

/* Reads from the peer's process (no bytes: the number alone), and that it is the one that it was. False: errno says why. */
static bool read_process(const struct shm_link *me, uint64_t address, void *to, size_t bytes)
{
	size_t done = 0;
	do {
		uint64_t nonce[2] = {0};
		struct iovec local[2] = {{nonce, sizeof nonce}, {(char *)to + done, bytes - done}};
		struct iovec remote[2] = {{(void *)(uintptr_t)me->proof.address, sizeof nonce}, {(void *)(uintptr_t)(address + done), bytes - done}};
		ssize_t n = process_vm_readv(me->pid, local, bytes ? 2 : 1, remote, bytes ? 2 : 1, 0);
		if (n < 0)
			return false;
		if ((size_t)n < sizeof nonce || memcmp(nonce, me->proof.nonce, sizeof nonce)) {
			errno = ESRCH;
			return false;
		}
		if (bytes && (size_t)n == sizeof nonce) {
			errno = EFAULT;
			return false;
		}
		done += (size_t)n - sizeof nonce;
	} while (done < bytes);
	return true;
}

static enum st_status fetch(struct shm_link *me, struct shm_lend *lend, unsigned slot, void *into)
{
	const struct transport_ends *ends = &me->link.ends;
	if (!me->pid)
		return transport_break(&me->link, ST_ERR_PROTOCOL, "rank %" PRIu32 " on %s lends memory of its own, which rank %" PRIu32 " can't read",
				       ends->peer, ends->peer_host, ends->rank);
	void *fetched = me->fetched;
	if (!into && !fetched && posix_memalign(&fetched, SHM_LINE, me->slots * me->stride))
		return transport_break(&me->link, ST_ERR_NOMEM, "shared memory: out of memory");
	me->fetched = fetched;
	void *to = into ? into : me->fetched + slot * me->stride;
	if (!read_process(me, lend->words[0], to, lend->bytes)) {
		const int error = errno;
		return transport_break(&me->link, error == ESRCH ? ST_ERR_ABORTED : ST_ERR_SYSTEM,
				       "memory that rank %" PRIu32 " on %s lends can't be read: %s", ends->peer, ends->peer_host, strerror(error));
	}
	lend->memory = to;
	return ST_OK;
}

enum st_status shm_borrowed(struct link *link, uint64_t number, size_t bytes, void *into, const void **memory)
{
	struct shm_link *me = shm_of(link);
	const unsigned slot = (unsigned)(number % me->slots);
	struct shm_lend *lend = &me->lends[slot];
	if (number >= me->landed_lends || number < me->given_back)
		return transport_break(link, ST_ERR_PROTOCOL, "rank %" PRIu32 " on %s puts where it should lend", link->ends.peer, link->ends.peer_host);
	if (lend->bytes != bytes)
		return shm_mismatch(me, true, lend->bytes, bytes);
	if (!lend->memory) {
		if (lend->kind == SHM_INLINE)
			lend->memory = lend->words;
		else if (lend->kind == SHM_REGION)
			ST_TRY(look_into_region(me, lend));
		else
			ST_TRY(fetch(me, lend, slot, into));
	}
	*memory = lend->memory;
	return ST_OK;
}

void shm_give_back(struct link *link)
{
	struct shm_link *me = shm_of(link);
	struct shm_lend *lend = &me->lends[me->given_back % me->slots];
	if (lend->region && !--lend->region->users && lend->region->freed)
		unmap(me, lend->region);
	lend->region = NULL;
	me->given_back++;
	atomic_store_explicit(&me->own->returned, me->given_back, memory_order_seq_cst);
	shm_wake(me);
}

/* ---- reading the peer's memory ------------------------------------------------------------------------------------------------------ */

enum st_status shm_proof_make(struct shm_link *me, struct shm_proof *proof)
{
	me->nonce = calloc(2, sizeof *me->nonce);
	if (!me->nonce)
		return st_fail(ST_ERR_NOMEM, "shared memory: out of memory");
	if (getrandom(me->nonce, 2 * sizeof *me->nonce, 0) != (ssize_t)(2 * sizeof *me->nonce))
		return st_fail_errno("shared memory: getrandom");
	*proof = (struct shm_proof){(uint64_t)(uintptr_t)me->nonce, {me->nonce[0], me->nonce[1]}};
	return ST_OK;
}

void shm_proof_try(struct shm_link *me)
{
	struct ucred peer;
	socklen_t length = sizeof peer;
	if (getsockopt(me->fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) || peer.pid <= 0)
		return;
	me->pid = peer.pid;
	if (!read_process(me, 0, NULL, 0))
		me->pid = 0;
	atomic_store_explicit(&me->own->reads, me->pid != 0, memory_order_relaxed);
}

void shm_lend_close(struct shm_link *me)
{
	while (me->regions)
		unmap(me, me->regions);
	if (me->copies)
		munmap(me->copies, copies_bytes(me));
	if (me->message_fd >= 0)
		close(me->message_fd);
	free(me->passed);
	free(me->freed);
	free(me->copied);
	free(me->lends);
	free(me->fetched);
	free(me->nonce);
}
