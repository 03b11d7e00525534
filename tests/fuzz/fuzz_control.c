/*
 * What a rank does with its neighbours' frames: three neighbours of one rank send whatever they like, in pieces, and this rank goes on deciding,
 * ticking and leaving.  Input: steps {neighbour and kind, length, bytes}.
 */
#include "control_state.h"

#include <fcntl.h>

enum { NEIGHBOURS = 3 };

static void deliver(struct control *control, uint32_t peer, int fd, const void *data, size_t bytes)
{
	struct control_link *link = control_link_find(control, peer);

	if (!link || send(fd, data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		return;
	control_link_ready(control, link, EPOLLIN | EPOLLOUT);
}

/* What this rank sends is whole frames of this version, whatever it got. */
struct outgoing {
	struct wire_reader reader;
	bool bad;
};

static void listen_to(struct outgoing *out, int fd)
{
	uint8_t bytes[4096];
	ssize_t n;

	while ((n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT)) > 0)
		for (ssize_t at = 0; at < n && !out->bad;) {
			void *where;
			size_t room;
			wire_reader_space(&out->reader, &where, &room);
			size_t take = room < (size_t)(n - at) ? room : (size_t)(n - at);
			memcpy(where, bytes + at, take);
			at += (ssize_t)take;
			out->bad = wire_reader_advance(&out->reader, take) != ST_OK;
			if (out->reader.complete)
				wire_reader_next(&out->reader);
		}
	FUZZ_REQUIRE(!out->bad);
}

static size_t frame_bytes(struct fuzz_input *input, uint8_t kind, size_t length, uint8_t *where)
{
	struct wire_frame frame = {.magic = WIRE_MAGIC, .version = WIRE_VERSION, .type = kind};
	/* The length that this kind needs, so that the contents are what is looked at. */
	while (!wire_length_allowed(kind, (uint32_t)length) && length <= 4096)
		length++;
	if (length > 4096)
		length = sizeof(struct wire_goodbye);
	frame.length = (uint32_t)length;
	memcpy(where, &frame, sizeof frame);
	fuzz_take(input, where + sizeof frame, length);
	return sizeof frame + length;
}

/* All others have contributed to the decision that this rank enters next, and to the same. Lock held. */
static bool agreed(const struct control *control)
{
	const struct control_decision *decision = &control->root.decisions[control->root.decision % CONTROL_DECISION_SLOTS];

	if (control->judged || decision->sequence != control->root.decision || decision->present != control->size - 1 || decision->ranks[control->rank].present)
		return false;
	for (uint32_t r = 1; r < control->size; r++)
		if (r != control->rank && (decision->ranks[r].kind != decision->ranks[0].kind || decision->ranks[r].bytes != decision->ranks[0].bytes ||
						decision->ranks[r].operations))
			return false;
	return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	static const uint32_t peers[NEIGHBOURS] = {0, 4, 5}; /* its parent, and two ranks of its node */
	struct fuzz_input input = {data, bytes};
	struct control *control = fuzz_control(3);
	struct outgoing outgoing[NEIGHBOURS] = {0};
	int ends[NEIGHBOURS];

	/* A communicator that this rank is in, and one whose members it does not know yet. */
	static const uint32_t members[] = {5, 3, 0};
	struct control_group *formed, *forming;
	FUZZ_REQUIRE(control_group_announce(control, 77, "1:0", &formed) == ST_OK && control_group_form(formed, members, 3) == ST_OK);
	FUZZ_REQUIRE(control_group_announce(control, 78, "2:0", &forming) == ST_OK);
	/* No threads that ask other hosts, which takes them a while: then this rank judges by what it saw itself. */
	control->helpers = CONTROL_MAX_HELPERS;
	for (int i = 0; i < NEIGHBOURS; i++) {
		int fds[2];
		FUZZ_REQUIRE(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds));
		pthread_mutex_lock(&control->lock);
		FUZZ_REQUIRE(control_link_add(control, peers[i], peers[i] != 0, fds[0]) == ST_OK);
		pthread_mutex_unlock(&control->lock);
		ends[i] = fds[1];
	}
	while (input.left) {
		uint8_t what = fuzz_u8(&input), buffer[4096 + sizeof(struct wire_frame)];
		int i = what % NEIGHBOURS;
		size_t length = fuzz_u16(&input) % 4097u;
		pthread_mutex_lock(&control->lock);
		switch (what / NEIGHBOURS % 8) {
		case 0: /* bytes as they come */
			length = fuzz_take(&input, buffer, length);
			deliver(control, peers[i], ends[i], buffer, length);
			break;
		case 5: /* a frame in two pieces */
			length = frame_bytes(&input, (uint8_t)(length % (WIRE_FRAME_END + 1)), length / 16, buffer);
			deliver(control, peers[i], ends[i], buffer, length / 2);
			deliver(control, peers[i], ends[i], buffer + length / 2, length - length / 2);
			break;
		case 6: /* time passes, and the neighbour may hang up */
			control_links_tick(control);
			if (length % 5 == 0 && control_link_find(control, peers[i])) {
				shutdown(ends[i], SHUT_WR);
				control_link_ready(control, control_link_find(control, peers[i]), EPOLLIN);
			}
			break;
		case 7: /* this rank decides with the others what they all have decided, so that it waits for nobody; else time passes for a verdict */
			if (agreed(control)) {
				const struct control_decision *decision = &control->root.decisions[control->root.decision % CONTROL_DECISION_SLOTS];
				uint32_t kind = decision->ranks[0].kind, each = decision->ranks[0].bytes;
				uint8_t *mine = calloc(1, each + 1), *all = malloc((size_t)FUZZ_RANKS * each + 1);
				FUZZ_REQUIRE(mine && all);
				pthread_mutex_unlock(&control->lock);
				enum st_status status = control_group_decide(&control->root, kind, mine, each, kind == WIRE_DECISION_BROADCAST ? mine : all, 0, NULL);
				FUZZ_REQUIRE(status == ST_OK || status == ST_ERR_ABORTED);
				pthread_mutex_lock(&control->lock);
				free(mine);
				free(all);
			} else if (control->judged) {
				control->settle = st_deadline_in_ms(0);
				control_settle_tick(control);
			}
			break;
		default: /* a frame of this version, of kind 1 to 4 and beyond */
			length = frame_bytes(&input, (uint8_t)(what / NEIGHBOURS % 8), length, buffer);
			deliver(control, peers[i], ends[i], buffer, length);
		}
		control_links_free_closed(control);
		pthread_mutex_unlock(&control->lock);
		for (int k = 0; k < NEIGHBOURS; k++)
			listen_to(&outgoing[k], ends[k]);
	}
	if (control_check(control) != ST_OK)
		fuzz_check_message();
	for (uint32_t r = 0; r <= FUZZ_RANKS; r++)
		control_has_left(control, r);
	control->helpers -= CONTROL_MAX_HELPERS;
	control_close(control);
	for (int i = 0; i < NEIGHBOURS; i++) {
		close(ends[i]);
		wire_reader_free(&outgoing[i].reader);
	}
	return 0;
}

static size_t step(uint8_t *data, unsigned neighbour, unsigned kind, uint16_t length, const void *payload, size_t bytes)
{
	data[0] = (uint8_t)(neighbour + NEIGHBOURS * kind);
	memcpy(data + 1, &length, 2);
	if (bytes)
		memcpy(data + 3, payload, bytes);
	return 3 + bytes;
}

size_t fuzz_seed(unsigned i, uint8_t *data)
{
	struct wire_goodbye goodbye = {.rank = 5};
	struct wire_abort verdict = {.culprit = 1, .detector = 0, .how = CONTROL_HOW_LINK, .when_ns = 1};
	struct {
		struct wire_decision head;
		uint8_t data[8];
	} decision = {.head = {.sequence = 0, .kind = WIRE_DECISION_GATHER, .bytes = 8}};
	size_t at = 0;

	strcpy(verdict.operation, "allreduce 12");
	strcpy(verdict.detail, "\x1b[2Jno route");
	switch (i) {
	case 0:
		return step(data, 0, WIRE_HEARTBEAT, 0, NULL, 0);
	case 1:
		at = step(data, 1, WIRE_GOODBYE, sizeof goodbye, &goodbye, sizeof goodbye);
		return at + step(data + at, 0, 6, 5, NULL, 0);
	case 2:
		return step(data, 2, WIRE_ABORT, sizeof verdict, &verdict, sizeof verdict);
	case 3: /* everybody's contribution, then this rank's own */
		for (uint32_t r = 0; r < FUZZ_RANKS; r++) {
			decision.head.rank = r;
			if (r != 3)
				at += step(data + at, r % NEIGHBOURS, WIRE_DECISION, sizeof decision, &decision, sizeof decision);
		}
		at += step(data + at, 0, 7, 9, NULL, 0);
		return at + step(data + at, 0, 7, 2, NULL, 0);
	case 4: { /* a whole frame as bytes, and half of one */
		struct wire_frame frame = {.magic = WIRE_MAGIC, .version = WIRE_VERSION, .type = WIRE_HEARTBEAT};
		at = step(data, 0, 0, sizeof frame, &frame, sizeof frame);
		at += step(data + at, 0, 0, 7, &frame, 7);
		return at + step(data + at, 0, 6, 1, NULL, 0);
	}
	case 5:
		at = step(data, 1, 5, WIRE_GOODBYE, &goodbye, sizeof goodbye);
		return at + step(data + at, 1, 7, 3, NULL, 0);
	case 6: /* in communicators: contributions, of which one comes twice, a goodbye, and a plea to say it again */
		for (uint64_t k = 0; k < 4; k++) {
			decision.head = (struct wire_decision){.context = k < 3 ? 77 : 78, .kind = WIRE_DECISION_GATHER, .rank = k % 2 ? 5 : 0, .origin = 5,
							       .number = k + 1};
			at += step(data + at, 2, WIRE_DECISION, sizeof decision.head, &decision.head, sizeof decision.head);
		}
		goodbye = (struct wire_goodbye){.rank = 5, .context = 77, .entered = 1, .origin = 5, .number = 9};
		at += step(data + at, 2, WIRE_GOODBYE, sizeof goodbye, &goodbye, sizeof goodbye);
		goodbye.number++;
		return at + step(data + at, 0, 5, WIRE_RESEND + 16 * sizeof(struct wire_resend), &(struct wire_resend){.origin = 5, .number = 20},
				 sizeof(struct wire_resend));
	default:
		return 0;
	}
}
