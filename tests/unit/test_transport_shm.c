/* The shared-memory link: puts and grants, limits, sleeping, a peer that goes, and a peer that lies. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "common/clock.h"
#include "libcomm/transport.h"

enum { SLOTS = 4, BYTES = 1000 };
static const struct transport_ops *const shm = &transport_shm;

struct opener {
	int fd;
	struct transport_ends ends;
	unsigned slots;
	struct link *link;
	enum st_status status;
};

static void *open_one(void *argument)
{
	struct opener *opener = argument;
	opener->status = shm->open(opener->fd, &opener->ends, opener->slots, BYTES, 2000, &opener->link);
	return NULL;
}

static void open_pair(struct link *links[2])
{
	int fds[2];
	pthread_t thread;
	REQUIRE(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds));
	struct opener a = {fds[0], {0, 1, "here", "there"}, SLOTS, NULL, ST_OK}, b = {fds[1], {1, 0, "there", "here"}, SLOTS, NULL, ST_OK};
	REQUIRE(!pthread_create(&thread, NULL, open_one, &a));
	open_one(&b);
	REQUIRE(!pthread_join(thread, NULL));
	REQUIRE(a.status == ST_OK && b.status == ST_OK);
	links[0] = a.link;
	links[1] = b.link;
	struct transport_signature signature = {.sequence = 1, .count = 7, .collective = 0, .type = 1};
	shm->enter(links[0], &signature);
	shm->enter(links[1], &signature);
}

static void close_pair(struct link *links[2])
{
	shm->close(links[0]);
	shm->close(links[1]);
}

static void puts_land_where_granted(void)
{
	struct link *links[2];
	char data[BYTES];
	void *place;
	open_pair(links);
	struct link *from = links[0], *to = links[1];
	REQUIRE(shm->reserve(from, BYTES, &place) == ST_PENDING);
	for (unsigned k = 0; k < 1000; k++) {
		size_t bytes = (k * 37) % (BYTES + 1);
		unsigned slot = (k * 3) % SLOTS;
		REQUIRE((uintptr_t)shm->slot(to, slot) % 64 == 0);
		REQUIRE(shm->ready(to, shm->slot(to, slot), bytes) == ST_OK);
		REQUIRE(shm->received(to) == k);
		memset(data, (int)k, sizeof data);
		REQUIRE(shm->put(from, data, bytes) == ST_OK);
		REQUIRE(shm->put(from, data, bytes) == ST_PENDING); /* one grant, one put */
		REQUIRE(shm->received(to) == k + 1 && shm->flushed(from) == k + 1);
		REQUIRE(!memcmp(shm->slot(to, slot), data, bytes));
		REQUIRE(shm->progress(to) == ST_OK && shm->progress(from) == ST_OK);
	}
	REQUIRE(from->puts == 1000 && to->puts == 0);
	/* Not more grants than there is room for, and only own slots. */
	for (unsigned k = 0; k < SLOTS; k++)
		REQUIRE(shm->ready(to, shm->slot(to, k), 1) == ST_OK);
	REQUIRE(shm->ready(to, shm->slot(to, 0), 1) == ST_PENDING);
	REQUIRE(shm->ready(from, data, 1) == ST_ERR_INTERNAL);
	REQUIRE(shm->ready(from, (char *)shm->slot(from, 0) + 4, 1) == ST_ERR_INTERNAL);
	REQUIRE(shm->ready(from, shm->slot(from, 0), BYTES + 1) == ST_ERR_INTERNAL);
	close_pair(links);
}

static void disagreement_names_both(void)
{
	struct link *links[2];
	void *place;
	open_pair(links);
	struct transport_signature other = {.sequence = 2, .count = 9, .collective = 0, .type = 1}, mine = other;
	mine.count = 8;
	shm->enter(links[0], &mine);
	shm->enter(links[1], &other);
	/* The same length, another operation. */
	REQUIRE(shm->ready(links[1], shm->slot(links[1], 0), 4) == ST_OK);
	REQUIRE(shm->reserve(links[0], 4, &place) == ST_ERR_MISMATCH);
	REQUIRE(strstr(st_message(), "rank 0 on here calls allreduce 2 of 8 f32") && strstr(st_message(), "rank 1 on there calls allreduce 2 of 9 f32"));
	REQUIRE(shm->progress(links[0]) == ST_ERR_MISMATCH); /* and stays so */
	close_pair(links);

	open_pair(links);
	REQUIRE(shm->ready(links[1], shm->slot(links[1], 0), 4) == ST_OK);
	REQUIRE(shm->reserve(links[0], 8, &place) == ST_ERR_MISMATCH && strstr(st_message(), "8 bytes where 4"));
	close_pair(links);
}

struct sleeper {
	struct link *link;
	int64_t slept_ns;
};

static void *sleep_until_put(void *argument)
{
	struct sleeper *sleeper = argument;
	int64_t began = st_now_ns();
	while (!shm->received(sleeper->link)) {
		shm->arm(sleeper->link);
		if (!shm->received(sleeper->link)) {
			struct pollfd fd = {shm->fd(sleeper->link), POLLIN, 0};
			REQUIRE(poll(&fd, 1, 10000) == 1);
		}
		shm->disarm(sleeper->link);
		REQUIRE(shm->progress(sleeper->link) == ST_OK);
	}
	sleeper->slept_ns = st_now_ns() - began;
	return NULL;
}

static void a_sleeper_is_woken(void)
{
	for (int round = 0; round < 300; round++) {
		struct link *links[2];
		pthread_t thread;
		open_pair(links);
		struct sleeper sleeper = {links[1], 0};
		REQUIRE(shm->ready(links[1], shm->slot(links[1], 0), 1) == ST_OK);
		REQUIRE(!pthread_create(&thread, NULL, sleep_until_put, &sleeper));
		if (round % 3)
			usleep((useconds_t)(round % 7) * 30);
		REQUIRE(shm->put(links[0], "x", 1) == ST_OK);
		REQUIRE(!pthread_join(thread, NULL));
		REQUIRE(sleeper.slept_ns < 9 * ST_NS_PER_S);
		close_pair(links);
	}
}

/* A wake-up byte that arrives between arming and sleeping must not be taken away by a look. */
static void a_look_keeps_the_wake_up(void)
{
	struct link *links[2];
	open_pair(links);
	shm->arm(links[1]);
	REQUIRE(shm->ready(links[0], shm->slot(links[0], 0), 1) == ST_OK); /* an event: wakes */
	for (int i = 0; i < 200; i++)
		REQUIRE(shm->progress(links[1]) == ST_OK);
	struct pollfd fd = {shm->fd(links[1]), POLLIN, 0};
	REQUIRE(poll(&fd, 1, 0) == 1);
	shm->disarm(links[1]);
	REQUIRE(shm->progress(links[1]) == ST_OK && poll(&fd, 1, 0) == 0);
	close_pair(links);
}

static void a_peer_that_goes_is_seen(void)
{
	struct link *links[2];
	open_pair(links);
	REQUIRE(shm->ready(links[1], shm->slot(links[1], 0), 1) == ST_OK);
	REQUIRE(shm->put(links[0], "x", 1) == ST_OK);
	shm->close(links[0]);
	enum st_status status = ST_OK;
	for (int i = 0; i < 200 && status == ST_OK; i++)
		status = shm->progress(links[1]);
	REQUIRE(status == ST_ERR_ABORTED && strstr(st_message(), "rank 0 on here is gone"));
	REQUIRE(shm->received(links[1]) == 1); /* what came before counts */
	REQUIRE(shm->fd(links[1]) == -1);
	shm->close(links[1]);
}

/* Opens a link towards a peer that sends what the test wants. */
static void refused(const void *hello, size_t bytes, int descriptor, const char *reason)
{
	int fds[2];
	REQUIRE(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds));
	struct iovec part = {(void *)(uintptr_t)hello, bytes};
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	memset(&control, 0, sizeof control);
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
	if (descriptor >= 0) {
		message.msg_control = control.room;
		message.msg_controllen = sizeof control.room;
		control.header.cmsg_level = SOL_SOCKET;
		control.header.cmsg_type = SCM_RIGHTS;
		control.header.cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(&control.header), &descriptor, sizeof descriptor);
	}
	if (bytes)
		REQUIRE(sendmsg(fds[1], &message, 0) == (ssize_t)bytes);
	struct transport_ends ends = {0, 1, "here", "there"};
	struct link *link = NULL;
	enum st_status status = shm->open(fds[0], &ends, SLOTS, BYTES, 200, &link);
	if (status == ST_OK || link || !strstr(st_message(), reason)) {
		fprintf(stderr, "expected a refusal with '%s', got %s: %s\n", reason, st_status_name(status), st_message());
		exit(1);
	}
	close(fds[1]);
	if (descriptor >= 0)
		close(descriptor);
}

static int memory(size_t bytes, int seals)
{
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	REQUIRE(fd >= 0 && !ftruncate(fd, (off_t)bytes) && (!seals || !fcntl(fd, F_ADD_SEALS, seals)));
	return fd;
}

static void lies_are_refused(void)
{
	/* A true greeting, to be spoilt. */
	int fds[2];
	struct {
		uint64_t magic, bytes, slots, slot_bytes, proof[3];
	} hello, bad;
	REQUIRE(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds));
	struct opener opener = {fds[0], {0, 1, "here", "there"}, SLOTS, NULL, ST_OK};
	pthread_t thread;
	REQUIRE(!pthread_create(&thread, NULL, open_one, &opener));
	REQUIRE(read(fds[1], &hello, sizeof hello) == (ssize_t)sizeof hello);
	close(fds[1]);
	REQUIRE(!pthread_join(thread, NULL) && opener.status == ST_ERR_ABORTED);

	const int seals = F_SEAL_SHRINK | F_SEAL_GROW;
	refused(&hello, sizeof hello, -1, "no descriptor");
	refused(&hello, sizeof hello, memory(hello.bytes, 0), "can change its size");
	refused(&hello, sizeof hello, memory(hello.bytes, F_SEAL_GROW), "can change its size");
	refused(&hello, sizeof hello, memory(hello.bytes - 4096, seals), "bytes, expected");
	refused(&hello, sizeof hello, memory(0, seals), "bytes, expected");
	refused(&hello, sizeof hello, open("/dev/null", O_RDWR | O_CLOEXEC), "no memory that can be sealed");
	refused(&hello, 5, -1, "did not set up");
	refused(&hello, 0, -1, "did not set up");
	bad = hello;
	bad.magic ^= 1;
	refused(&bad, sizeof bad, memory(hello.bytes, seals), "not a greeting");
	bad = hello;
	bad.slots++;
	refused(&bad, sizeof bad, memory(hello.bytes, seals), "slots of");
	bad = hello;
	bad.bytes = UINT64_MAX;
	refused(&bad, sizeof bad, memory(hello.bytes, seals), "slots of");
}

/* Overwrites the shared segment with noise while the link is in use: nothing may crash, and nothing outside the slots is touched. */
static void noise_is_survived(void)
{
	for (unsigned round = 0; round < 400; round++) {
		struct link *links[2];
		char data[BYTES] = {0};
		open_pair(links);
		/* What rank 1 grants lies in a segment that rank 0, too, can write: from the start of the slots back to the page before it. */
		char *slots = shm->slot(links[1], 0);
		REQUIRE(shm->ready(links[1], slots, 8) == ST_OK);
		uint64_t *words = (uint64_t *)(void *)(slots - 4096 + 128); /* grants and puts: behind the control lines */
		srand(round);
		for (size_t i = 0; i < 128; i++)
			if (rand() % 3 == 0)
				words[i] = rand() % 2 ? (uint64_t)rand() << 33 | (uint64_t)rand() : (uint64_t)(rand() % 6);
		for (int i = 0; i < 100; i++) {
			enum st_status status = shm->put(links[0], data, 8);
			REQUIRE(status == ST_OK || status == ST_PENDING || status == ST_ERR_PROTOCOL || status == ST_ERR_MISMATCH);
			REQUIRE(shm->received(links[1]) <= 1);
			shm->progress(links[1]);
		}
		close_pair(links);
	}
}

int main(void)
{
	puts_land_where_granted();
	disagreement_names_both();
	a_sleeper_is_woken();
	a_look_keeps_the_wake_up();
	a_peer_that_goes_is_seen();
	lies_are_refused();
	noise_is_survived();
	return 0;
}
