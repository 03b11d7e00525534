/*
 * A shared-memory link whose peer writes whatever it likes, whenever it likes, into both segments: grants, puts, what it has entered.  This side
 * never writes but into the slots of the peer's segment that a grant may name, and counts no put that it did not grant.
 */
#include "fuzz.h"

#include <fcntl.h>
#include <sys/socket.h>

#include "libcomm/shm_segment.h"
#include "libcomm/transport_shm_internal.h"

enum { SLOTS = 2, SLOT_BYTES = 128, WORD = 0, RANGE, READY, RESERVE, RECEIVED, HEARD, PROGRESS, SLEEP, TRUE_GRANT, TRUE_EVENT, LEND, BORROW, GIVE_BACK, MESSAGE,
       MEMORY, KINDS };

static size_t segment_bytes, hello_bytes;
static uint8_t hello[256];

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
	ssize_t n = recv(fds[1], hello, sizeof hello, MSG_DONTWAIT);
	FUZZ_REQUIRE(n > 0 && n < (ssize_t)sizeof hello);
	hello_bytes = (size_t)n;
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

static volatile uint8_t own_sum; /* what was borrowed has been read */

static void shm_read_once(struct link *link)
{
	for (int i = 0; i < 70; i++) /* it looks at the socket now and then */
		transport_shm.progress(link);
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
	uint64_t granted = 0, reserved = 0, lent = 0;

	if (!segment_bytes)
		learn();
	before = malloc(segment_bytes);
	FUZZ_REQUIRE(before && !socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds));
	/* The peer's part of the opening goes first: then this side's does not wait. */
	FUZZ_REQUIRE(shm_segment_make("fuzz", segment_bytes, 1, "fuzz", &mine) == ST_OK && shm_segment_map(mine, segment_bytes, "fuzz", &own) == ST_OK);
	maps[0] = own;
	FUZZ_REQUIRE(with_descriptor(fds[1], mine, hello, hello_bytes, NULL) == (int)hello_bytes && send(fds[1], "", 1, 0) == 1);
	FUZZ_REQUIRE(transport_shm.open(fds[0], &ends, SLOTS, SLOT_BYTES, 10000, &link) == ST_OK);
	uint8_t greeting[sizeof hello];
	with_descriptor(fds[1], -1, greeting, sizeof greeting, &theirs);
	close(theirs);
	struct shm_link *me = shm_of(link);
	maps[1] = (uint8_t *)me->own;
	const size_t head = (size_t)(me->own_slots - (char *)me->own), event_lines = 2 * me->lines;
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
			transport_shm.received(link);
			FUZZ_REQUIRE(me->landed_puts <= granted && me->landed_lends <= me->given_back + SLOTS);
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
		/* As a true peer would, but for what the input says: the next grant's line in its own segment, the next put's or lend's in this side's. */
		case TRUE_GRANT:
		case TRUE_EVENT: {
			bool event = what % KINDS == TRUE_EVENT;
			uint64_t number = event ? me->landed : link->puts;
			struct shm_line *line = event ? &me->own_events[number % event_lines] : &me->their_grants[number % me->lines];
			uint8_t change = fuzz_u8(&input);
			line->tag = me->tag ^ (change == 1);
			line->bytes = event && me->landed_puts < me->granted && change % 2 ? me->grants[me->landed_puts % me->lines].bytes : where;
			line->what = event ? change % (SHM_KINDS + 1) : change % (SLOTS + 1);
			for (int i = 0; event && i < SHM_WORDS && change & 64; i++)
				line->words[i] = change & 32 ? fuzz_u64(&input) : fuzz_u8(&input);
			line->number = number + 1;
			break;
		}
		case LEND: {
			static uint8_t source[SLOT_BYTES + 1];
			enum st_status status = transport_shm.lend(link, source, where % (SLOT_BYTES + 1), fuzz_u8(&input) & 1);
			lent += status == ST_OK;
			FUZZ_REQUIRE(transport_shm.returned(link) <= lent && transport_shm.flushed(link) <= lent + reserved);
			break;
		}
		case BORROW: {
			uint8_t into[SLOT_BYTES], sum = 0;
			const void *memory;
			uint64_t number = me->given_back + fuzz_u8(&input) % 2;
			size_t length = number < me->landed_lends && where & 1 ? me->lends[number % SLOTS].bytes : where;
			if (length > SLOT_BYTES) /* plans ask for no more */
				break;
			if (transport_shm.borrowed(link, number, length, where & 2 ? into : NULL, &memory) != ST_OK) {
				fuzz_check_message();
				break;
			}
			for (size_t i = 0; i < length; i++)
				sum ^= ((const uint8_t *)memory)[i];
			own_sum ^= sum;
			break;
		}
		case GIVE_BACK:
			if (me->given_back < me->landed_lends)
				transport_shm.give_back(link);
			break;
		case MESSAGE: { /* on the socket, without a descriptor */
			uint8_t bytes_of[SHM_MESSAGE_BYTES] = {where & 1 ? SHM_MEMORY : SHM_FORGET};
			size_t length = where & 2 ? fuzz_take(&input, bytes_of, where % sizeof bytes_of) : sizeof bytes_of;
			if (!(where & 2))
				bytes_of[1] = fuzz_u8(&input) % 4;
			if (length && send(fds[1], bytes_of, length, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
				break;
			shm_read_once(link);
			break;
		}
		case MEMORY: { /* shows memory, true or not */
			uint8_t message[SHM_MESSAGE_BYTES] = {SHM_MEMORY};
			uint64_t shown = 4096;
			void *memory;
			int fd;
			FUZZ_REQUIRE(shm_segment_make("fuzz", shown, 1, "fuzz", &fd) == ST_OK && shm_segment_map(fd, shown, "fuzz", &memory) == ST_OK);
			if (where & 1)
				FUZZ_REQUIRE(shm_segment_seal(fd, memory, shown, "fuzz") == ST_OK);
			shown += fuzz_u8(&input) == 1;
			message[1] = where % 4;
			memcpy(message + 9, &shown, sizeof shown);
			with_descriptor(fds[1], fd, message, sizeof message, NULL);
			close(fd);
			munmap(memory, 4096);
			shm_read_once(link);
			break;
		}
		default:
			break;
		}
	}
	FUZZ_REQUIRE(me->landed_puts <= granted && link->puts == reserved && link->lends == lent);
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
		{READY, 0, 9, TRUE_EVENT, 9, 5 * SHM_PUT, RECEIVED, 0, PROGRESS, 200},
		{READY, 1, 9, TRUE_GRANT, 9, 0, RESERVE, 9, HEARD, 0},
		{WORD, 0, 1, 0, 0, 0, 0, 0, 0, 0, 16, RESERVE, 0},
		{WORD, 1, 255, 255, 255, 255, 0, 0, 0, 0, 48, READY, 1, 3, RECEIVED, 0},
		{RANGE, 0, 32, 64, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3, HEARD, 0},
		{SLEEP, 0, PROGRESS, 1, PROGRESS, 200, READY, 0, 1},
		{READY, 0, 8, READY, 1, 8, READY, 0, 1, READY, 0, 1, READY, 0, 1, TRUE_GRANT, 8, 0, RESERVE, 8, RESERVE, 8},
		{TRUE_EVENT, 16, 64 + SHM_INLINE, 1, 2, 3, 4, RECEIVED, 0, BORROW, 16, 0, GIVE_BACK, 0},
		{MEMORY, 1, 0, TRUE_EVENT, 64, 70, 1, 8, 0, 0, RECEIVED, 0, BORROW, 64, 0, MESSAGE, 0, 1, GIVE_BACK, 0, BORROW, 64, 0},
		{TRUE_EVENT, 32, 96 + SHM_READ, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, RECEIVED, 0, BORROW, 1, 0},
		{LEND, 16, 0, LEND, 100, 0, LEND, 100, 1, WORD, 0, 1, 0, 0, 0, 0, 0, 0, 0, 16, LEND, 3, 0},
	};
	if (i >= sizeof seeds / sizeof *seeds)
		return 0;
	memcpy(data, seeds[i], sizeof seeds[i]);
	return sizeof seeds[i];
}
