/*
 * A shared-memory link whose peer writes whatever it likes, whenever it likes, into both segments: grants, puts, what it has entered.  This side
 * never writes but into the slots of the peer's segment that a grant may name, and counts no put that it did not grant.
 */
#include "fuzz.h"

#include <fcntl.h>
#include <sys/socket.h>

#include "libcomm/shm_segment.h"
#include "libcomm/transport.h"

enum { SLOTS = 2, SLOT_BYTES = 128, WORD = 0, RANGE, READY, RESERVE, RECEIVED, HEARD, PROGRESS, SLEEP, TRUE_GRANT, TRUE_PUT, KINDS };

static size_t segment_bytes;
static struct {
	uint64_t magic, bytes, slots, slot_bytes;
} hello;

/* The hello of a true peer. */
static void learn(void)
{
	static const struct transport_ends ends = {1, 0, "there", "here"};
	struct link *link;
	int fds[2];

	segment_bytes = transport_shm_bytes(SLOTS, SLOT_BYTES);
	FUZZ_REQUIRE(!socketpair(AF_UNIX, SOCK_STREAM, 0, fds));
	/* It waits for ours in vain. */
	FUZZ_REQUIRE(transport_shm.open(fds[0], &ends, SLOTS, SLOT_BYTES, 1, &link) == ST_ERR_TIMEOUT);
	FUZZ_REQUIRE(recv(fds[1], &hello, sizeof hello, MSG_DONTWAIT) == sizeof hello && hello.bytes == segment_bytes);
	close(fds[1]);
}

static int with_descriptor(int fd, int send_fd, void *data, size_t bytes, int *received)
{
	struct iovec part = {data, bytes};
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room};

	memset(&control, 0, sizeof control);
	if (!received) {
		control.header = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
		memcpy(CMSG_DATA(&control.header), &send_fd, sizeof send_fd);
		return (int)sendmsg(fd, &message, MSG_NOSIGNAL);
	}
	int n = (int)recvmsg(fd, &message, MSG_DONTWAIT);
	FUZZ_REQUIRE(n > 0 && CMSG_FIRSTHDR(&message));
	memcpy(received, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof *received);
	return n;
}

unsigned fuzz_runs = 1500;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	static const struct transport_ends ends = {0, 1, "here", "there"};
	struct transport_signature signature = {.sequence = 1, .count = 7, .type = 1};
	struct fuzz_input input = {data, bytes};
	struct link *link;
	int fds[2], mine, theirs;
	void *own;
	uint8_t *maps[2], *before;
	uint64_t granted = 0, reserved = 0;

	if (!segment_bytes)
		learn();
	before = malloc(segment_bytes);
	FUZZ_REQUIRE(before && !socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds));
	/* The peer's part of the opening goes first: then this side's does not wait. */
	FUZZ_REQUIRE(shm_segment_make("fuzz", segment_bytes, 1, "fuzz", &mine) == ST_OK && shm_segment_map(mine, segment_bytes, "fuzz", &own) == ST_OK);
	maps[0] = own;
	FUZZ_REQUIRE(with_descriptor(fds[1], mine, &hello, sizeof hello, NULL) == sizeof hello && send(fds[1], "", 1, 0) == 1);
	FUZZ_REQUIRE(transport_shm.open(fds[0], &ends, SLOTS, SLOT_BYTES, 10000, &link) == ST_OK);
	uint8_t greeting[sizeof hello];
	with_descriptor(fds[1], -1, greeting, sizeof greeting, &theirs);
	close(theirs);
	/* This side's segment is found through its slots, which lie at its end. */
	char *first = transport_shm.slot(link, 0), *last = transport_shm.slot(link, SLOTS - 1);
	size_t head = segment_bytes - ((size_t)(last - first) + SLOT_BYTES + 4095) / 4096 * 4096;
	maps[1] = (uint8_t *)first - head;
	transport_shm.enter(link, &signature);

	while (input.left) {
		uint8_t what = fuzz_u8(&input), where = fuzz_u8(&input);
		switch (what % KINDS) {
		case WORD: { /* the words of lines are 8 bytes; the lines all lie before the slots */
			uint64_t value = fuzz_u64(&input);
			size_t at = (size_t)fuzz_u8(&input) * 8 % head;
			memcpy(maps[where & 1] + at, &value, sizeof value);
			break;
		}
		case RANGE: {
			size_t length = fuzz_u8(&input), at = (size_t)fuzz_u16(&input) % segment_bytes;
			length = length < segment_bytes - at ? length : segment_bytes - at;
			fuzz_take(&input, maps[where & 1] + at, length);
			break;
		}
		case READY:
			if (transport_shm.ready(link, transport_shm.slot(link, where % SLOTS), fuzz_u8(&input) % (SLOT_BYTES + 1)) == ST_OK)
				granted++;
			break;
		case RESERVE: {
			size_t length = where % (SLOT_BYTES + 1);
			void *place;
			memcpy(before, maps[0], segment_bytes);
			enum st_status status = transport_shm.reserve(link, length, &place);
			if (status == ST_OK) {
				memset(place, 0x77, length);
				FUZZ_REQUIRE(!memcmp(before, maps[0], head)); /* slots only */
				transport_shm.commit(link);
				reserved++;
			} else if (status != ST_PENDING) {
				fuzz_check_message();
			}
			break;
		}
		case RECEIVED:
			FUZZ_REQUIRE(transport_shm.received(link) <= granted);
			break;
		case HEARD: {
			struct transport_signature heard;
			char text[TRANSPORT_SIGNATURE_TEXT];
			if (transport_shm.heard(link, &heard)) {
				transport_signature_print(&heard, text);
				FUZZ_REQUIRE(strnlen(text, sizeof text) < sizeof text);
			}
			break;
		}
		case PROGRESS:
			if (where == 1 && send(fds[1], "xyz", 3, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
				break;
			for (int i = 0; i <= where; i++)
				transport_shm.progress(link);
			break;
		case SLEEP:
			transport_shm.arm(link);
			transport_shm.disarm(link);
			break;
		case TRUE_GRANT: /* as a true peer would: number, tag, bytes, slot of the next grant's line, in its own segment */
		case TRUE_PUT: { /* and of the next put's, in this side's; the tag is copied from what this side wrote */
			bool put = what % KINDS == TRUE_PUT;
			uint64_t line[4] = {(put ? transport_shm.received(link) : reserved) + 1, fuzz_u64(&input), where, put ? 0 : where % 3};
			uint64_t *granted_line = (uint64_t *)(void *)(maps[1] + 128 + (line[0] - 1) % 4 * 64);
			if (granted && !line[1])
				line[1] = granted_line[1];
			if (put && granted)
				line[2] = granted_line[2];
			memcpy(put ? maps[1] + 128 + (4 + (line[0] - 1) % 4) * 64 : maps[0] + 128 + (line[0] - 1) % 4 * 64, line, sizeof line);
			break;
		}
		default:
			break;
		}
	}
	FUZZ_REQUIRE(transport_shm.received(link) <= granted && link->puts == reserved);
	transport_shm.close(link);
	munmap(own, segment_bytes);
	close(mine);
	close(fds[1]);
	free(before);
	return 0;
}

size_t fuzz_seed(unsigned i, uint8_t *data)
{
	static const uint8_t seeds[][64] = {
		{READY, 0, 9, TRUE_PUT, 0, 0, 0, 0, 0, 0, 0, 0, 0, RECEIVED, 0, PROGRESS, 200},
		{READY, 1, 9, TRUE_GRANT, 9, 0, 0, 0, 0, 0, 0, 0, 0, RESERVE, 9, HEARD, 0},
		{WORD, 0, 1, 0, 0, 0, 0, 0, 0, 0, 16, RESERVE, 0},
		{WORD, 1, 255, 255, 255, 255, 0, 0, 0, 0, 48, READY, 1, 3, RECEIVED, 0},
		{RANGE, 0, 32, 64, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3, HEARD, 0},
		{SLEEP, 0, PROGRESS, 1, PROGRESS, 200, READY, 0, 1},
		{READY, 0, 8, TRUE_PUT, 0, 5, 5, 5, 5, 5, 5, 5, 5, RECEIVED, 0},
		{READY, 0, 8, READY, 1, 8, READY, 0, 1, READY, 0, 1, READY, 0, 1, TRUE_GRANT, 8, 0, 0, 0, 0, 0, 0, 0, 0, RESERVE, 8, RESERVE, 8},
	};
	if (i >= sizeof seeds / sizeof *seeds)
		return 0;
	memcpy(data, seeds[i], sizeof seeds[i]);
	return sizeof seeds[i];
}
