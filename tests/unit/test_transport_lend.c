/*
 * Lending over the shared-memory link: every way that memory can be shown, alone and among puts; when a source is free; memory that is freed while the
 * peer has it mapped; a kernel that lets nobody read another process; and a peer that lies about region, offset, length, descriptor, address, or what
 * it gave back: one message each, and nothing is touched that is not its own.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"
#include "libcomm/comm.h"
#include "libcomm/transport_shm_internal.h"

enum { SLOTS = 4, BYTES = 20000, PAGES = 65536 };
static const struct transport_ops *const shm = &transport_shm;

struct opener {
	int fd;
	struct transport_ends ends;
	bool forbidden; /* to read another process's memory */
	struct link *link;
};

static void *open_one(void *argument)
{
	struct opener *opener = argument;
	if (opener->forbidden) {
		/* Of this thread alone. */
		struct sock_filter filter[] = {
			BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
			BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_process_vm_readv, 0, 1),
			BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
			BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		};
		struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
		REQUIRE(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
	}
	REQUIRE(shm->open(opener->fd, &opener->ends, SLOTS, BYTES, 5000, &opener->link) == ST_OK);
	return NULL;
}

static const struct transport_signature signature = {.sequence = 1, .count = 7, .type = COMM_F32};

/* links[0] lends, links[1] borrows. */
static void open_pair(struct link *links[2], bool forbidden)
{
	int fds[2];
	pthread_t thread;
	REQUIRE(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds));
	struct opener a = {fds[0], {0, 1, "here", "there"}, false, NULL}, b = {fds[1], {1, 0, "there", "here"}, forbidden, NULL};
	REQUIRE(!pthread_create(&thread, NULL, open_one, &b));
	open_one(&a);
	REQUIRE(!pthread_join(thread, NULL));
	links[0] = a.link;
	links[1] = b.link;
	shm->enter(links[0], &signature);
	shm->enter(links[1], &signature);
}

static void close_pair(struct link *links[2])
{
	shm->close(links[0]);
	shm->close(links[1]);
}

static void fill(unsigned char *memory, size_t bytes, unsigned seed)
{
	for (size_t i = 0; i < bytes; i++)
		memory[i] = (unsigned char)(i * 7 + i / 251 + seed);
}

static struct transport_memory registry;

static unsigned char *lendable(size_t bytes)
{
	int fd;
	void *memory;
	REQUIRE(transport_memory_make("test", bytes, 1, "test", &fd, &memory) == ST_OK);
	REQUIRE(transport_memory_add(&registry, memory, bytes, fd) == ST_OK);
	return memory;
}

static uint64_t forget(unsigned char *memory, size_t bytes)
{
	const struct transport_region *region = transport_memory_find(&registry, memory, bytes);
	REQUIRE(region);
	int fd = region->fd;
	uint64_t id = transport_memory_remove(&registry, memory);
	REQUIRE(id && !munmap(memory, bytes) && !close(fd) && !transport_memory_find(&registry, memory, 1));
	return id;
}

static void take(struct link *to, uint64_t *waited, uint64_t number, const unsigned char *expected, size_t bytes)
{
	const void *memory = NULL;
	REQUIRE(shm->received(to) > *waited);
	to->waited = ++*waited;
	REQUIRE(shm->borrowed(to, number, bytes, NULL, &memory) == ST_OK || (fprintf(stderr, "%s\n", st_message()), 0));
	REQUIRE(!memcmp(memory, expected, bytes));
}

static void every_kind(bool forbidden)
{
	static const size_t lengths[] = {0, 1, 8, 31, 32, 33, 1000, 4096, 4100, 12288, BYTES};
	struct link *links[2];
	uint64_t waited = 0, number = 0;
	open_pair(links, forbidden);
	struct link *from = links[0], *to = links[1];
	from->memory = &registry;
	unsigned char *region = lendable(PAGES), *ordinary = malloc(PAGES), *kinds[] = {region, ordinary};
	REQUIRE(ordinary);
	REQUIRE((shm_of(to)->pid != 0) == !forbidden && atomic_load(&shm_of(from)->theirs->reads) == !forbidden);
	for (unsigned round = 0; round < 60; round++)
		for (size_t n = 0; n < sizeof lengths / sizeof *lengths; n++)
			for (unsigned kind = 0; kind < 2; kind++) {
				const size_t bytes = lengths[n], offset = (round * 4 * 13) % 4000;
				const bool copied = round % 3 == 0;
				fill(kinds[kind] + offset, bytes, round);
				const bool free_at_once = copied || bytes <= 4096 || (kind && forbidden);
				REQUIRE(shm->lend(from, kinds[kind] + offset, bytes, copied) == ST_OK);
				number++;
				REQUIRE(shm->flushed(from) == number - !free_at_once + from->puts);
				if (free_at_once && bytes) { /* is it? */
					unsigned char before = kinds[kind][offset];
					kinds[kind][offset] ^= 0xff;
					const void *memory;
					REQUIRE(shm->received(to) == waited + 1 && shm->borrowed(to, number - 1, bytes, NULL, &memory) == ST_OK);
					REQUIRE(*(const unsigned char *)memory == before);
					kinds[kind][offset] = before;
				}
				/* A put among the lends. */
				if (round % 5 == 1) {
					REQUIRE(shm->ready(to, shm->slot(to, 1), 4) == ST_OK && shm->put(from, "put", 4) == ST_OK);
				}
				take(to, &waited, number - 1, kinds[kind] + offset, bytes);
				if (round % 5 == 1) {
					REQUIRE(shm->received(to) == ++waited && !strcmp(shm->slot(to, 1), "put"));
					to->waited = waited;
				}
				REQUIRE(shm->returned(from) == number - 1);
				shm->give_back(to);
				REQUIRE(shm->returned(from) == number && shm->flushed(from) == number + from->puts);
				REQUIRE(shm->progress(to) == ST_OK && shm->progress(from) == ST_OK);
			}
	/* Mapped once: the region and, with it, what was copied. */
	REQUIRE(shm_of(to)->region_count == 2);
	/* No more than slots at a time. */
	for (unsigned i = 0; i < SLOTS; i++)
		REQUIRE(shm->lend(from, region, 4, false) == ST_OK);
	REQUIRE(shm->lend(from, region, 4, false) == ST_PENDING);
	take(to, &waited, number, region, 4);
	shm->give_back(to);
	REQUIRE(shm->lend(from, region, 4, false) == ST_OK && shm->lend(from, region, 4, false) == ST_PENDING);
	REQUIRE(shm->lend(to, region, BYTES + 1, false) == ST_ERR_INTERNAL);
	/* Straight to where it is wanted, if it has to be stored anyway. */
	for (unsigned i = 0; i < SLOTS; i++) {
		take(to, &waited, number + 1 + i, region, 4);
		shm->give_back(to);
	}
	number += SLOTS + 1;
	REQUIRE(shm->lend(from, ordinary, 5000, false) == ST_OK && shm->received(to) == waited + 1);
	static unsigned char place[5000];
	const void *memory;
	REQUIRE(shm->borrowed(to, number, 5000, place, &memory) == ST_OK && !memcmp(memory, ordinary, 5000));
	REQUIRE((memory == place) == !forbidden);
	shm->forget(from, forget(region, PAGES));
	close_pair(links);
	free(ordinary);
}

/* The region goes when the peer is told; not while it has borrowed of it. */
static void freed_memory_is_unmapped(void)
{
	struct link *links[2];
	uint64_t waited = 0;
	open_pair(links, false);
	struct link *from = links[0], *to = links[1];
	from->memory = &registry;
	for (uint64_t round = 0; round < 300; round++) { /* more than may be mapped at a time */
		unsigned char *memory = lendable(PAGES), copy[6000];
		const void *seen;
		fill(memory, sizeof copy, (unsigned)round);
		memcpy(copy, memory, sizeof copy);
		REQUIRE(shm->lend(from, memory, sizeof copy, false) == ST_OK);
		take(to, &waited, round, copy, sizeof copy);
		REQUIRE(shm_of(to)->region_count == 1);
		shm->forget(from, forget(memory, PAGES));
		while (shm_read_socket(shm_of(to)) == ST_OK)
			;
		REQUIRE(shm_of(to)->region_count == 1 && shm->borrowed(to, round, sizeof copy, NULL, &seen) == ST_OK && !memcmp(seen, copy, sizeof copy));
		shm->give_back(to);
		REQUIRE(shm_of(to)->region_count == 0 && shm_of(from)->passed_count == 0 && shm_of(from)->freed_count == 0);
	}
	/* Too many at a time: the others are lent all the same, in another way. */
	enum { MANY = 300 };
	unsigned char *many[MANY];
	for (uint64_t i = 0; i < MANY; i++) {
		many[i] = lendable(8192);
		fill(many[i], 8192, (unsigned)i);
		REQUIRE(shm->lend(from, many[i], 8192, false) == ST_OK);
		take(to, &waited, 300 + i, many[i], 8192);
		shm->give_back(to);
	}
	REQUIRE(shm_of(to)->region_count <= 256 && shm_of(to)->region_count > 200);
	/* And copies, of which this link has had none before if its peer reads for itself. */
	REQUIRE(shm->lend(from, many[0], 1000, true) == ST_OK);
	take(to, &waited, 300 + MANY, many[0], 1000);
	shm->give_back(to);
	for (unsigned i = 0; i < MANY; i++)
		shm->forget(from, forget(many[i], 8192));
	close_pair(links);
}

/* Messages are read whole, with their descriptors, wherever the reads happen to cut them. */
static void messages_are_cut_anywhere(void)
{
	static const char wakes[80];
	unsigned char *memory[2] = {lendable(PAGES), lendable(PAGES)};
	for (size_t before = 0; before <= sizeof wakes; before++) {
		struct link *links[2];
		uint64_t waited = 0;
		open_pair(links, false);
		links[0]->memory = &registry;
		REQUIRE(send(shm_of(links[0])->fd, wakes, before, 0) == (ssize_t)before);
		for (unsigned i = 0; i < 2; i++) {
			fill(memory[i], 6000, i);
			REQUIRE(shm->lend(links[0], memory[i], 6000, false) == ST_OK);
		}
		for (unsigned i = 0; i < 2; i++) {
			take(links[1], &waited, i, memory[i], 6000);
			shm->give_back(links[1]);
		}
		REQUIRE(shm_of(links[1])->region_count == 2 && shm_of(links[1])->message_fd < 0);
		close_pair(links);
	}
	for (unsigned i = 0; i < 2; i++)
		forget(memory[i], PAGES);
}

/* ---- lies --------------------------------------------------------------------------------------------------------------------------- */

static int memory_of(size_t bytes, int seals, bool allocated)
{
	int fd = memfd_create("lie", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	REQUIRE(fd >= 0 && !ftruncate(fd, (off_t)bytes) && (!allocated || !fallocate(fd, 0, 0, (off_t)bytes)));
	REQUIRE(!seals || !fcntl(fd, F_ADD_SEALS, seals));
	return fd;
}

/* As the link's own, and says whatever it is told to. */
static void say(struct link *from, unsigned char which, uint64_t id, uint64_t bytes, int fd, size_t length)
{
	unsigned char message[SHM_MESSAGE_BYTES] = {which};
	memcpy(message + 1, &id, 8);
	memcpy(message + 9, &bytes, 8);
	struct iovec part = {message, length};
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
	REQUIRE(sendmsg(shm_of(from)->fd, &header, 0) == (ssize_t)length);
	if (fd >= 0)
		close(fd);
}

static void write_line(struct link *from, uint64_t event, uint64_t what, uint64_t bytes, uint64_t first, uint64_t second)
{
	struct shm_link *me = shm_of(from);
	struct shm_line *line = &me->their_events[event & (2 * me->lines - 1)];
	atomic_store(&line->tag, me->tag);
	atomic_store(&line->bytes, bytes);
	atomic_store(&line->what, what);
	atomic_store(&line->words[0], first);
	atomic_store(&line->words[1], second);
	atomic_store(&line->number, event + 1);
}

enum lie { UNKNOWN_REGION, OFFSET, OFFSET_OVERFLOW, LENGTH, MISALIGNED, WRONG_LENGTH, UNSEALED, GROWS, SHORT, LONG_ONE, NOTHING, HOLES, NO_MEMFD, NO_DESCRIPTOR,
	   TWICE, FREES_UNKNOWN, USES_FREED, GARBAGE, STRAY_DESCRIPTOR, UNKNOWN_KIND, TOO_MANY, NOT_GRANTED, BAD_ADDRESS, KERNEL_ADDRESS, LIES };

static void a_lie(enum lie lie, const char *reason)
{
	enum { SIZE = 16384, LENT = 5000 };
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW;
	struct link *links[2];
	const void *memory = NULL;
	open_pair(links, false);
	struct link *from = links[0], *to = links[1];
	uint64_t region = 5, offset = 0, bytes = LENT, what = SHM_REGION, said = SIZE;
	int fd = -1;
	switch (lie) {
	case OFFSET: offset = SIZE - LENT + 4; break;
	case OFFSET_OVERFLOW: offset = UINT64_MAX - 3; break;
	case LENGTH: bytes = UINT64_MAX - 7; break;
	case MISALIGNED: offset = 2; break;
	case WRONG_LENGTH: bytes = LENT - 4; break;
	case UNSEALED: fd = memory_of(SIZE, 0, true); break;
	case GROWS: fd = memory_of(SIZE, F_SEAL_SHRINK, true); break;
	case SHORT: fd = memory_of(SIZE / 2, seals, true); break;
	case LONG_ONE: fd = memory_of(2 * SIZE, seals, true); break;
	case NOTHING: fd = memory_of(said = 0, seals, false); break;
	case HOLES: fd = memory_of(SIZE, seals, false); break;
	case NO_MEMFD: fd = open("/dev/zero", O_RDWR | O_CLOEXEC); break;
	case UNKNOWN_KIND: what = SHM_KINDS; break;
	case BAD_ADDRESS: what = SHM_READ; region = 64; break;
	case KERNEL_ADDRESS: what = SHM_READ; region = UINT64_C(0xffff888000000000); break;
	case NOT_GRANTED: what = SHM_PUT; break;
	default: break;
	}
	if (lie == GARBAGE)
		say(from, 'x', 1, 2, -1, SHM_MESSAGE_BYTES);
	else if (lie == STRAY_DESCRIPTOR)
		say(from, SHM_WAKE, 0, 0, memory_of(SIZE, seals, true), 1);
	else if (lie == FREES_UNKNOWN)
		say(from, SHM_FORGET, 77, 0, -1, SHM_MESSAGE_BYTES);
	else if (lie == NO_DESCRIPTOR)
		say(from, SHM_MEMORY, region, SIZE, -1, SHM_MESSAGE_BYTES);
	else if (lie != UNKNOWN_REGION && what != SHM_READ)
		say(from, SHM_MEMORY, region, said, fd >= 0 ? fd : memory_of(SIZE, seals, true), SHM_MESSAGE_BYTES);
	if (lie == TWICE)
		say(from, SHM_MEMORY, region, said, memory_of(SIZE, seals, true), SHM_MESSAGE_BYTES);
	if (lie == USES_FREED) {
		say(from, SHM_FORGET, region, 0, -1, SHM_MESSAGE_BYTES);
		while (shm_read_socket(shm_of(to)) == ST_OK)
			;
	}
	for (unsigned i = 0; i < (lie == TOO_MANY ? SLOTS + 1 : 1); i++)
		write_line(from, i, what, bytes, region, offset);
	enum st_status status = ST_OK;
	if (lie == FREES_UNKNOWN || lie == GARBAGE || lie == STRAY_DESCRIPTOR || lie == TWICE)
		while (status == ST_OK)
			status = shm_read_socket(shm_of(to));
	if (status == ST_OK && (shm->received(to), to->broken == ST_OK))
		status = shm->borrowed(to, 0, lie == LENGTH ? bytes : LENT, NULL, &memory);
	if (status == ST_OK)
		status = transport_status(to);
	const bool right = status == (lie == WRONG_LENGTH ? ST_ERR_MISMATCH : lie == BAD_ADDRESS || lie == KERNEL_ADDRESS ? ST_ERR_SYSTEM : ST_ERR_PROTOCOL);
	if ((!right && lie != NOTHING) || status == ST_OK || !strstr(st_message(), reason) || !strstr(st_message(), "rank 0")) {
		fprintf(stderr, "lie %d: expected a refusal with '%s', got %s: %s\n", (int)lie, reason, st_status_name(status), st_message());
		exit(1);
	}
	REQUIRE(shm->progress(to) == status && shm_of(to)->message_fd < 0); /* and it stays so */
	close_pair(links);
}

static void lies_harm_nobody(void)
{
	static const char *const reasons[LIES] = {
		[UNKNOWN_REGION] = "has not shown", [OFFSET] = "lends 5000 bytes at 11388 of memory of 16384", [OFFSET_OVERFLOW] = "lends 5000 bytes at",
		[LENGTH] = "bytes at 0 of memory of 16384", [MISALIGNED] = "at 2 of memory", [WRONG_LENGTH] = "sends 4996 bytes where 5000",
		[UNSEALED] = "can change its size", [GROWS] = "can change its size", [SHORT] = "has 8192 bytes, expected 16384",
		[LONG_ONE] = "has 32768 bytes, expected 16384", [NOTHING] = "mmap of 0 bytes", [HOLES] = "has holes", [NO_MEMFD] = "no memory that can be sealed",
		[NO_DESCRIPTOR] = "no descriptor", [TWICE] = "again", [FREES_UNKNOWN] = "frees memory 77", [USES_FREED] = "has not shown",
		[GARBAGE] = "no message begins with 0x78", [STRAY_DESCRIPTOR] = "a descriptor of nothing", [UNKNOWN_KIND] = "in way 4",
		[TOO_MANY] = "lends more than 4 times", [NOT_GRANTED] = "was not granted", [BAD_ADDRESS] = "can't be read", [KERNEL_ADDRESS] = "can't be read",
	};
	for (int lie = 0; lie < LIES; lie++)
		a_lie((enum lie)lie, reasons[lie]);

	/* A descriptor where none is expected anything of is closed, and the one before it too. */
	struct link *links[2];
	open_pair(links, false);
	say(links[0], SHM_MEMORY, 1, 4096, memory_of(4096, F_SEAL_SHRINK | F_SEAL_GROW, true), 5);
	say(links[0], SHM_MEMORY, 1, 4096, memory_of(4096, F_SEAL_SHRINK | F_SEAL_GROW, true), 5);
	REQUIRE(shm_read_socket(shm_of(links[1])) == ST_OK && shm_read_socket(shm_of(links[1])) == ST_ERR_PROTOCOL);
	close_pair(links);

	/* What it never got it can't give back, and what it gave back it can't take again. */
	open_pair(links, false);
	REQUIRE(shm->lend(links[0], "abc", 4, false) == ST_OK);
	atomic_store(&shm_of(links[1])->own->returned, 2);
	REQUIRE(shm->returned(links[0]) == 0 && links[0]->broken == ST_ERR_PROTOCOL && strstr(links[0]->why, "given back 2 lends of 1"));
	close_pair(links);
	open_pair(links, false);
	REQUIRE(shm->lend(links[0], "abc", 4, false) == ST_OK);
	atomic_store(&shm_of(links[1])->own->returned, 1);
	REQUIRE(shm->returned(links[0]) == 1 && links[0]->broken == ST_OK);
	atomic_store(&shm_of(links[1])->own->returned, 0);
	REQUIRE(shm->returned(links[0]) == 1 && links[0]->broken == ST_ERR_PROTOCOL);
	close_pair(links);

	/* An address is believed only from who can prove it, and one who can't reads nothing. */
	open_pair(links, true);
	const void *memory;
	write_line(links[0], 0, SHM_READ, 5000, (uint64_t)(uintptr_t)&links, 0);
	REQUIRE(shm->received(links[1]) == 1 && shm->borrowed(links[1], 0, 5000, NULL, &memory) == ST_ERR_PROTOCOL);
	REQUIRE(strstr(st_message(), "can't read"));
	close_pair(links);

	/* The process is another one by now. */
	open_pair(links, false);
	static char source[5000];
	REQUIRE(shm->lend(links[0], source, sizeof source, false) == ST_OK);
	shm_of(links[0])->nonce[1] ^= 1;
	REQUIRE(shm->received(links[1]) == 1 && shm->borrowed(links[1], 0, sizeof source, NULL, &memory) == ST_ERR_ABORTED);
	close_pair(links);
}

/* A lend of an operation that this rank has not entered waits; one that it expects and that is another operation's is a disagreement. */
static void operations_are_told_apart(void)
{
	struct link *links[2];
	struct transport_signature next = signature, other = signature;
	next.sequence = 2;
	other.sequence = 2;
	other.count = 8;
	for (int round = 0; round < 2; round++) {
		open_pair(links, false);
		REQUIRE(shm->lend(links[0], "abc", 4, false) == ST_OK);
		shm->enter(links[0], &next);
		REQUIRE(shm->lend(links[0], "abc", 4, false) == ST_OK);
		REQUIRE(shm->received(links[1]) == 1);
		links[1]->waited = 1;
		shm->give_back(links[1]);
		shm->enter(links[1], round ? &other : &next);
		if (round) {
			REQUIRE(shm->received(links[1]) == 1 && links[1]->broken == ST_ERR_MISMATCH);
			REQUIRE(strstr(links[1]->why, "allreduce 2 of 7 f32") && strstr(links[1]->why, "allreduce 2 of 8 f32"));
			/* Who waits for something else altogether is told as well. */
			REQUIRE(shm->progress(links[0]) == ST_ERR_MISMATCH && strstr(st_message(), "allreduce 2 of 8 f32"));
		} else {
			REQUIRE(shm->received(links[1]) == 2 && links[1]->broken == ST_OK && shm->progress(links[0]) == ST_OK);
		}
		close_pair(links);
	}
}

int main(void)
{
	every_kind(false);
	every_kind(true);
	freed_memory_is_unmapped();
	messages_are_cut_anywhere();
	lies_harm_nobody();
	operations_are_told_apart();
	free(registry.regions);
	return 0;
}
