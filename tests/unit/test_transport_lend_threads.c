/* Memory lent between two threads, over and over: the borrower sees what the lender wrote, and the lender writes again only what was given back. */
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "libcomm/transport.h"

enum { SLOTS = 2, BYTES = 8192, ROUNDS = 200 };
static const struct transport_signature signature = {.sequence = 1, .count = 7, .type = 0};

struct side {
	int fd;
	struct transport_ends ends;
	struct link *link;
};

static void open_side(struct side *side)
{
	REQUIRE(transport_shm.open(side->fd, &side->ends, SLOTS, BYTES, 10000, &side->link) == ST_OK);
	transport_shm.enter(side->link, &signature);
}

static void *borrow(void *argument)
{
	struct side *side = argument;
	open_side(side);
	for (uint64_t round = 0; round < ROUNDS; round++) {
		const void *memory;
		while (transport_shm.received(side->link) <= round) {
			REQUIRE(transport_shm.progress(side->link) == ST_OK);
			sched_yield();
		}
		REQUIRE(transport_shm.borrowed(side->link, round, BYTES, NULL, &memory) == ST_OK);
		for (size_t i = 0; i < BYTES; i++)
			REQUIRE(((const unsigned char *)memory)[i] == (unsigned char)round);
		transport_shm.give_back(side->link);
	}
	return NULL;
}

int main(void)
{
	int fds[2], fd;
	void *address;
	pthread_t thread;
	struct transport_memory memory = {0};
	REQUIRE(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds));
	struct side lender = {fds[0], {0, 1, "here", "there"}, NULL}, borrower = {fds[1], {1, 0, "there", "here"}, NULL};
	REQUIRE(transport_memory_make("test", BYTES, 1, "test", &fd, &address) == ST_OK && transport_memory_add(&memory, address, BYTES, fd) == ST_OK);
	REQUIRE(!pthread_create(&thread, NULL, borrow, &borrower));
	open_side(&lender);
	lender.link->memory = &memory;
	for (uint64_t round = 0; round < ROUNDS; round++) {
		for (size_t i = 0; i < BYTES; i++)
			((volatile unsigned char *)address)[i] = (unsigned char)round;
		REQUIRE(transport_shm.lend(lender.link, address, BYTES, false) == ST_OK);
		while (transport_shm.returned(lender.link) <= round)
			sched_yield();
	}
	REQUIRE(!pthread_join(thread, NULL));
	transport_shm.close(borrower.link);
	transport_shm.close(lender.link);
	transport_memory_remove(&memory, address);
	free(memory.regions);
	munmap(address, BYTES);
	close(fd);
	return 0;
}
