/* The receiving half of a TCP link: whatever comes in whatever pieces lands where it was granted, whole, or breaks the link. */
#include "fuzz.h"

#include <sys/socket.h>

#include "libcomm/transport.h"

enum { HEADER = 64, GRANTS = 16, MOST = 300, ENTER = 1, GRANT, BYTES, FRAME, ANNOUNCE, LOOK, KINDS };

/* A frame of the true format is learnt from the sending half. */
static uint8_t header[HEADER];

static void learn(const struct transport_signature *signature)
{
	static const struct transport_ends ends = {1, 0, "there", "here"};
	struct link *link;
	int fds[2];

	FUZZ_REQUIRE(!socketpair(AF_UNIX, SOCK_STREAM, 0, fds));
	FUZZ_REQUIRE(transport_tcp.open(fds[0], &ends, 2, 64, 1000, &link) == ST_OK);
	transport_tcp.enter(link, signature);
	FUZZ_REQUIRE(transport_tcp.put(link, "", 0) == ST_OK && transport_tcp.progress(link) == ST_OK);
	FUZZ_REQUIRE(recv(fds[1], header, sizeof header, MSG_DONTWAIT) == sizeof header);
	transport_tcp.close(link);
	close(fds[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	static const struct transport_ends ends = {0, 1, "here", "there"};
	struct transport_signature signature = {.sequence = 1, .count = 7, .type = 1};
	struct fuzz_input input = {data, bytes};
	struct link *link;
	int fds[2];
	uint8_t *granted[GRANTS] = {0};
	size_t lengths[GRANTS];
	uint64_t grants = 0, landed = 0;

	learn(&signature);
	FUZZ_REQUIRE(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds));
	FUZZ_REQUIRE(transport_tcp.open(fds[0], &ends, 2, 64, 1000, &link) == ST_OK);
	transport_tcp.enter(link, &signature);
	while (input.left) {
		uint8_t buffer[HEADER + MOST];
		size_t length = 0;
		switch (fuzz_u8(&input) % KINDS) {
		case ENTER:
			signature.sequence++;
			transport_tcp.enter(link, &signature);
			break;
		case GRANT: /* memory of exactly that size: a sanitizer sees a byte too many */
			if (grants == GRANTS)
				break;
			lengths[grants] = fuzz_u8(&input);
			granted[grants] = malloc(lengths[grants] ? lengths[grants] : 1);
			FUZZ_REQUIRE(granted[grants] && transport_tcp.ready(link, granted[grants], lengths[grants]) == ST_OK);
			grants++;
			break;
		case BYTES:
			length = fuzz_take(&input, buffer, fuzz_u8(&input));
			break;
		case FRAME: /* header as it should be for the next grant, but for a byte */
		case ANNOUNCE: {
			uint8_t at = fuzz_u8(&input), mask = fuzz_u8(&input), cut = fuzz_u8(&input);
			uint64_t payload = landed < grants ? lengths[landed] : 3;
			memcpy(buffer, header, HEADER);
			memcpy(buffer + 8, &payload, sizeof payload);
			memcpy(buffer + 16, &signature, sizeof signature);
			buffer[at % HEADER] ^= mask;
			length = HEADER + fuzz_take(&input, buffer + HEADER, payload < MOST ? payload : MOST);
			length = cut ? length * cut / 255 : length;
			break;
		}
		default:
			break;
		}
		if (length && send(fds[1], buffer, length, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
			length = 0;
		enum st_status status = transport_tcp.progress(link);
		FUZZ_REQUIRE(status == ST_OK || status == ST_ERR_PROTOCOL || status == ST_ERR_MISMATCH || status == ST_ERR_ABORTED);
		if (status != ST_OK)
			fuzz_check_message();
		uint64_t now = transport_tcp.received(link);
		FUZZ_REQUIRE(now >= landed && now <= grants);
		landed = now;
		struct transport_signature heard;
		transport_tcp.heard(link, &heard);
	}
	shutdown(fds[1], SHUT_RDWR);
	for (int i = 0; i < 20; i++)
		transport_tcp.progress(link);
	transport_tcp.close(link);
	close(fds[1]);
	for (uint64_t i = 0; i < grants; i++)
		free(granted[i]);
	return 0;
}

size_t fuzz_seed(unsigned i, uint8_t *data)
{
	static const uint8_t seeds[][40] = {
		{GRANT, 5, FRAME, 0, 0, 0, 1, 2, 3, 4, 5, LOOK},
		{GRANT, 0, FRAME, 0, 0, 0, LOOK, GRANT, 3, FRAME, 0, 0, 0, 7, 8, 9},
		{FRAME, 0, 0, 0, 1, 2, 3, GRANT, 3, LOOK},                               /* the frame comes before its grant */
		{GRANT, 9, FRAME, 0, 0, 128, 1, 2, 3, 4, 5, 6, 7, 8, 9, BYTES, 2, 1, 2}, /* in pieces */
		{GRANT, 5, FRAME, 8, 1, 0, 1, 2, 3, 4, 5},                               /* another length */
		{GRANT, 5, FRAME, 16, 1, 0, 1, 2, 3, 4, 5},                              /* another operation */
		{GRANT, 8, ANNOUNCE, 4, 3, 54, FRAME, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8},
		{ENTER, GRANT, 4, BYTES, 9, 'g', 'a', 'r', 'b', 'a', 'g', 'e', 0, 0},
	};
	if (i >= sizeof seeds / sizeof *seeds)
		return 0;
	memcpy(data, seeds[i], sizeof seeds[i]);
	return sizeof seeds[i];
}
