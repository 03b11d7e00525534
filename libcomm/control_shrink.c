#include "control_shrink.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/digest.h"
#include "control_internal.h"

#define TURN_MS 20
#define PROBE_EVERY_MS 300
#define KNOCK_MS 250
#define PAUSE_MS 50
#define REFUSALS_OF_THE_DEAD 3
#define LEFT_OUT_ASKS 8 /* ranks that are asked whether they have gone on without this one */
#define LEFT_OUT_MS 500
#define TEXT_BYTES 256u

/* A peer's message as it comes in. */
struct inbox {
	struct wire_shrink head;
	size_t have; /* of head, then of payload */
	uint8_t *payload;
};

/* Who has called this rank, its coordinator. */
struct joiner {
	int fd; /* -1: nobody */
	bool joined;
	struct inbox inbox;
};

struct control_shrink {
	struct bootstrap bootstrap; /* first: exchange() gets a pointer to it */
	struct control *control;
	struct st_deadline deadline;
	unsigned generation;
	uint32_t attempt;
	bool *dead, *skipped;    /* (size) proven dead; mute in this round */
	uint8_t *refusals;       /* (size) over TCP alone, in a row */
	struct joiner *joiners;  /* (size) when this rank coordinates */
	uint32_t *members;       /* (bootstrap.size) ascending */
	bool coordinates;
	struct joiner coordinator; /* the connection to it, when this rank does not */
	char why[512];           /* there is no group yet */
};

/* ---- messages ------------------------------------------------------------------------------------------------------ */

static void hang_up(struct joiner *joiner)
{
	if (joiner->fd >= 0)
		close(joiner->fd);
	free(joiner->inbox.payload);
	*joiner = (struct joiner){.fd = -1};
}

/* Sends it whole, or gives up when the peer does not take it for a stall timeout. */
static bool say(const struct control_shrink *shrink, int fd, uint16_t kind, const void *payload, size_t bytes)
{
	struct wire_shrink head = {.magic = WIRE_MAGIC, .version = WIRE_VERSION, .kind = kind, .attempt = shrink->attempt, .bytes = (uint32_t)bytes};
	struct st_deadline deadline = st_deadline_in_ms(shrink->control->stall_timeout_ms);
	const uint8_t *parts[2] = {(const uint8_t *)&head, payload};
	const size_t lengths[2] = {sizeof head, bytes};

	for (int i = 0; i < 2; i++)
		for (size_t done = 0; done < lengths[i];) {
			ssize_t n = send(fd, parts[i] + done, lengths[i] - done, MSG_NOSIGNAL | MSG_DONTWAIT);
			if (n > 0) {
				done += (size_t)n;
				continue;
			}
			if (n == 0 || (errno != EAGAIN && errno != EINTR))
				return false;
			struct pollfd writable = {.fd = fd, .events = POLLOUT};
			int sleep_ms = st_deadline_poll_ms(&deadline);
			if (sleep_ms == 0)
				return false;
			poll(&writable, 1, sleep_ms);
		}
	return true;
}

static bool length_allowed(const struct control_shrink *shrink, const struct wire_shrink *head)
{
	const uint32_t size = shrink->control->size, bytes = head->bytes;

	switch (head->kind) {
	case WIRE_SHRINK_JOIN:
		return bytes == size;
	case WIRE_SHRINK_BEAT:
		return bytes == 0;
	case WIRE_SHRINK_LEFT_OUT:
		return bytes <= TEXT_BYTES;
	case WIRE_SHRINK_MEMBERS:
		return bytes && bytes % sizeof(uint32_t) == 0 && bytes / sizeof(uint32_t) <= size;
	case WIRE_SHRINK_RECORD:
		return bytes == sizeof(struct wire_record);
	case WIRE_SHRINK_RECORDS:
		return bytes == (uint64_t)shrink->bootstrap.size * sizeof(struct wire_record);
	default:
		return false;
	}
}

/* ST_OK: a whole message is in the inbox, until next(). ST_PENDING. ST_ERR_UNAVAILABLE: the peer hung up, or sent what nobody does. */
static enum st_status hear(const struct control_shrink *shrink, struct joiner *from)
{
	struct inbox *in = &from->inbox;

	for (;;) {
		bool head = in->have < sizeof in->head;
		uint8_t *where = head ? (uint8_t *)&in->head + in->have : in->payload + (in->have - sizeof in->head);
		size_t room = head ? sizeof in->head - in->have : sizeof in->head + in->head.bytes - in->have;
		if (!head && !room)
			return ST_OK;
		ssize_t n = recv(from->fd, where, room, MSG_DONTWAIT);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return ST_PENDING;
		if (n <= 0)
			return st_fail(ST_ERR_UNAVAILABLE, "it hung up");
		in->have += (size_t)n;
		if (!head || in->have < sizeof in->head)
			continue;
		if (in->head.magic != WIRE_MAGIC || in->head.version != WIRE_VERSION || !length_allowed(shrink, &in->head))
			return st_fail(ST_ERR_UNAVAILABLE, "it sent a message of kind %u and %u bytes", in->head.kind, in->head.bytes);
		free(in->payload);
		in->payload = malloc(in->head.bytes + 1u);
		if (!in->payload)
			return st_fail(ST_ERR_UNAVAILABLE, "no memory for its message");
	}
}

static void next(struct joiner *from)
{
	from->inbox.have = 0;
}

static void sleep_on(struct control_shrink *shrink, int fd, int longest_ms)
{
	struct pollfd readable = {.fd = fd, .events = POLLIN};
	int sleep_ms = st_deadline_poll_ms(&shrink->deadline);

	poll(&readable, fd >= 0, sleep_ms < longest_ms ? sleep_ms : longest_ms);
}

/* ---- who lives ----------------------------------------------------------------------------------------------------- */

static const char *host_of(const struct control *control, uint32_t rank)
{
	return control->world->nodes[control->world->node_of[rank]].name;
}

/* A look at the rank's address: its host's kernel knows. */
static void probe(struct control_shrink *shrink, uint32_t rank)
{
	struct control *control = shrink->control;
	bool local = control_same_name(control, rank);
	enum control_sign sign = control_knock(control, rank, local, KNOCK_MS);
	bool refused_here = local && sign == CONTROL_SIGN_REFUSED;

	if (refused_here && control->endpoints[rank].port4 + control->endpoints[rank].port6)
		sign = control_knock(control, rank, false, KNOCK_MS); /* the same name, but perhaps not the same network namespace */
	if (sign != CONTROL_SIGN_REFUSED)
		shrink->refusals[rank] = 0;
	else if (refused_here || ++shrink->refusals[rank] >= REFUSALS_OF_THE_DEAD) /* over TCP alone, one may be a firewall's */
		shrink->dead[rank] = true;
}

static uint32_t count_living(const struct control_shrink *shrink, uint32_t *lowest)
{
	uint32_t living = 0;

	for (uint32_t r = shrink->control->size; r-- > 0;)
		if (!shrink->dead[r]) {
			living++;
			*lowest = r;
		}
	return living;
}

/* ---- the coordinator ----------------------------------------------------------------------------------------------- */

void control_callers_close_all(struct control *control)
{
	while (control->callers) {
		struct control_caller *caller = control->callers;
		control->callers = caller->next;
		close(caller->fd);
		free(caller);
	}
}

static void leave_out(uint32_t rank, int fd)
{
	char text[TEXT_BYTES];
	struct wire_shrink head = {.magic = WIRE_MAGIC, .version = WIRE_VERSION, .kind = WIRE_SHRINK_LEFT_OUT};

	/* It fits into any socket's buffer. */
	head.bytes = (uint32_t)snprintf(text, sizeof text, "rank %u and others went on", rank);
	if (send(fd, &head, sizeof head, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof head)
		(void)!send(fd, text, head.bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
	/* What the other has said already must not make a reset of the end, which would overtake this. */
	shutdown(fd, SHUT_WR);
	for (int i = 0; i < 64 && recv(fd, text, sizeof text, MSG_DONTWAIT) > 0; i++)
		;
}

void control_caller_take(struct control *control, uint32_t peer, int fd)
{
	struct control_caller *caller = control->callers;

	while (caller && caller->peer != peer)
		caller = caller->next;
	if (control->moved)
		leave_out(control->rank, fd);
	if (caller) {
		/* It has hung up and calls anew.  One that is left out is kept, so that its own words don't reset the connection. */
		close(caller->fd);
		caller->fd = fd;
		return;
	}
	caller = malloc(sizeof *caller);
	if (!caller) {
		close(fd);
		return;
	}
	*caller = (struct control_caller){.next = control->callers, .peer = peer, .fd = fd};
	control->callers = caller;
}

/* Those who have called since. */
static void take_callers(struct control_shrink *shrink)
{
	struct control *control = shrink->control;

	pthread_mutex_lock(&control->lock);
	while (control->callers) {
		struct control_caller *caller = control->callers;
		struct joiner *joiner = &shrink->joiners[caller->peer];
		control->callers = caller->next;
		hang_up(joiner);
		joiner->fd = caller->fd;
		free(caller);
	}
	pthread_mutex_unlock(&control->lock);
}

static void hang_up_all(struct control_shrink *shrink)
{
	for (uint32_t r = 0; r < shrink->control->size; r++)
		hang_up(&shrink->joiners[r]);
	hang_up(&shrink->coordinator);
}

static void listen_to(struct control_shrink *shrink, uint32_t rank)
{
	struct joiner *joiner = &shrink->joiners[rank];
	enum st_status status = joiner->fd < 0 ? ST_PENDING : hear(shrink, joiner);

	if (status == ST_PENDING)
		return;
	if (status != ST_OK || joiner->inbox.head.kind != WIRE_SHRINK_JOIN || joiner->joined) {
		hang_up(joiner);
		return;
	}
	for (uint32_t r = 0; r < shrink->control->size; r++)
		if (r != shrink->control->rank && joiner->inbox.payload[r] == 1)
			shrink->dead[r] = true;
	if (joiner->inbox.head.attempt > shrink->attempt)
		shrink->attempt = joiner->inbox.head.attempt;
	joiner->joined = true;
	next(joiner);
}

/* Those who have joined and live; members has room for all. */
static uint32_t count_joined(struct control_shrink *shrink)
{
	uint32_t count = 0;

	for (uint32_t r = 0; r < shrink->control->size; r++) {
		if (r != shrink->control->rank && !shrink->joiners[r].joined)
			continue;
		shrink->dead[r] = false; /* whoever thought so */
		shrink->members[count++] = r;
	}
	return count;
}

enum outcome { OUTCOME_GROUP, OUTCOME_NOT_YET, OUTCOME_LEFT_OUT };

static enum outcome coordinate(struct control_shrink *shrink)
{
	struct control *control = shrink->control;
	const int64_t beat_ms = control->stall_timeout_ms / 8 + 1;
	struct st_deadline grace = st_deadline_in_ms(control->stall_timeout_ms), beat = st_deadline_in_ms(0), look = st_deadline_in_ms(0);

	for (;;) {
		uint32_t joined, living, lowest = control->rank;
		take_callers(shrink);
		for (uint32_t r = 0; r < control->size; r++)
			listen_to(shrink, r);
		bool looks = st_deadline_expired(&look), beats = st_deadline_expired(&beat);
		for (uint32_t r = 0; r < control->size; r++) {
			if (looks && r != control->rank && !shrink->joiners[r].joined && !shrink->dead[r])
				probe(shrink, r);
			if (beats && shrink->joiners[r].joined && !say(shrink, shrink->joiners[r].fd, WIRE_SHRINK_BEAT, NULL, 0))
				hang_up(&shrink->joiners[r]);
		}
		if (looks)
			look = st_deadline_in_ms(PROBE_EVERY_MS);
		if (beats)
			beat = st_deadline_in_ms(beat_ms);
		joined = count_joined(shrink);
		living = count_living(shrink, &lowest);
		bool over = st_deadline_expired(&grace) || st_deadline_expired(&shrink->deadline);
		if (joined < living && !over) {
			sleep_on(shrink, -1, TURN_MS);
			continue;
		}
		if (2 * joined > living || (2 * joined == living && shrink->members[0] == lowest)) {
			bool told = true;
			shrink->attempt++;
			shrink->bootstrap.size = joined;
			for (uint32_t m = 0; m < joined; m++)
				if (shrink->members[m] != control->rank)
					told &= say(shrink, shrink->joiners[shrink->members[m]].fd, WIRE_SHRINK_MEMBERS, shrink->members, joined * sizeof(uint32_t));
			if (told)
				return OUTCOME_GROUP;
		}
		snprintf(shrink->why, sizeof shrink->why,
			 "too few ranks to go on: %u of the %u that are not proven dead have come together, expected more than half of them, or half with rank %u", joined,
			 living, lowest);
		hang_up_all(shrink);
		return OUTCOME_NOT_YET;
	}
}

/* ---- members ------------------------------------------------------------------------------------------------------- */

/* Takes the list: ascending ranks of the job, this one among them. */
static bool take_members(struct control_shrink *shrink, const struct inbox *in)
{
	uint32_t count = in->head.bytes / (uint32_t)sizeof(uint32_t), found = 0;

	memcpy(shrink->members, in->payload, in->head.bytes);
	for (uint32_t m = 0; m < count; m++) {
		if (shrink->members[m] >= shrink->control->size || (m && shrink->members[m] <= shrink->members[m - 1]))
			return false;
		found += shrink->members[m] == shrink->control->rank;
	}
	shrink->bootstrap.size = count;
	shrink->attempt = in->head.attempt;
	return found == 1;
}

static enum outcome left_out(struct control_shrink *shrink, uint32_t by, struct inbox *in)
{
	in->payload[in->head.bytes] = 0;
	wire_clean_text((char *)in->payload, in->head.bytes + 1u);
	snprintf(shrink->why, sizeof shrink->why, "rank %u on %s was left out of the shrunken communicator: %s without it (said by rank %u on %s)",
		 shrink->control->rank, host_of(shrink->control, shrink->control->rank), (char *)in->payload, by, host_of(shrink->control, by));
	return OUTCOME_LEFT_OUT;
}

/* A connection to the rank that has said JOIN. */
static bool call(struct control_shrink *shrink, uint32_t rank, int64_t timeout_ms)
{
	struct control *control = shrink->control;
	struct st_deadline deadline = st_deadline_in_ms(timeout_ms);
	bool local = control_same_name(control, rank);
	uint8_t *dead = calloc(1, control->size);
	enum st_status status = dead ? ST_OK : st_fail(ST_ERR_NOMEM, "no memory for %u ranks", control->size);

	hang_up(&shrink->coordinator);
	if (status == ST_OK)
		status = control_connect(control, rank, WIRE_PURPOSE_SHRINK, local, &deadline, &shrink->coordinator.fd);
	if (local && status == ST_ERR_UNAVAILABLE && control->endpoints[rank].port4 + control->endpoints[rank].port6)
		status = control_connect(control, rank, WIRE_PURPOSE_SHRINK, false, &deadline, &shrink->coordinator.fd);
	for (uint32_t r = 0; status == ST_OK && r < control->size; r++)
		dead[r] = shrink->dead[r];
	if (status == ST_OK && !say(shrink, shrink->coordinator.fd, WIRE_SHRINK_JOIN, dead, control->size))
		hang_up(&shrink->coordinator);
	free(dead);
	return shrink->coordinator.fd >= 0;
}

/* Joins a coordinator and waits for the members' list.  Whether it is mute, or dead, is remembered. */
static enum outcome join(struct control_shrink *shrink, uint32_t rank, int64_t silence_ms)
{
	struct st_deadline silence = st_deadline_in_ms(silence_ms);

	if (!call(shrink, rank, silence_ms)) {
		probe(shrink, rank);
		if (!shrink->dead[rank] && !shrink->refusals[rank])
			shrink->skipped[rank] = true;
		else
			sleep_on(shrink, -1, PAUSE_MS);
		return OUTCOME_NOT_YET;
	}
	struct joiner *coordinator = &shrink->coordinator;
	for (;;) {
		enum st_status status = hear(shrink, coordinator);
		if (status == ST_PENDING) {
			if (st_deadline_expired(&silence) || st_deadline_expired(&shrink->deadline)) {
				shrink->skipped[rank] = true;
				break;
			}
			sleep_on(shrink, coordinator->fd, 100);
			continue;
		}
		if (status != ST_OK) {
			sleep_on(shrink, -1, PAUSE_MS); /* it has begun anew, or died: the next call tells */
			break;
		}
		switch (coordinator->inbox.head.kind) {
		case WIRE_SHRINK_BEAT:
			silence = st_deadline_in_ms(silence_ms);
			next(coordinator);
			continue;
		case WIRE_SHRINK_LEFT_OUT:
			return left_out(shrink, rank, &coordinator->inbox);
		case WIRE_SHRINK_MEMBERS:
			if (!take_members(shrink, &coordinator->inbox))
				break;
			next(coordinator);
			return OUTCOME_GROUP;
		default:
			break;
		}
		shrink->skipped[rank] = true; /* it talks nonsense */
		break;
	}
	hang_up(coordinator);
	return OUTCOME_NOT_YET;
}

/* Nobody joins this rank: have the others gone on? */
static enum outcome ask_others(struct control_shrink *shrink)
{
	unsigned asked = 0;

	for (uint32_t i = 1; i < shrink->control->size && asked < LEFT_OUT_ASKS; i++) {
		uint32_t rank = (shrink->control->rank + i) % shrink->control->size;
		if (shrink->dead[rank])
			continue;
		asked++;
		enum outcome outcome = join(shrink, rank, LEFT_OUT_MS);
		if (outcome != OUTCOME_NOT_YET || st_deadline_expired(&shrink->deadline))
			return outcome;
	}
	return OUTCOME_NOT_YET;
}

/* ---- attempts ------------------------------------------------------------------------------------------------------ */

/* Waits for this kind of message. */
static enum st_status await(struct control_shrink *shrink, struct joiner *from, uint32_t rank, uint16_t kind, struct st_deadline *deadline)
{
	for (;;) {
		enum st_status status = hear(shrink, from);
		if (status == ST_OK && from->inbox.head.kind == kind)
			return ST_OK;
		if (status == ST_OK && from->inbox.head.kind == WIRE_SHRINK_BEAT) {
			next(from);
			continue;
		}
		if (status != ST_PENDING)
			return st_fail(ST_ERR_UNAVAILABLE, "rank %u on %s left while the survivors met", rank, host_of(shrink->control, rank));
		if (st_deadline_expired(deadline) || st_deadline_expired(&shrink->deadline))
			return st_fail(ST_ERR_TIMEOUT, "rank %u on %s fell silent while the survivors met", rank, host_of(shrink->control, rank));
		sleep_on(shrink, from->fd, 100);
	}
}

/* What travels is a number; the secret is made of it and of the old one, which does not. */
static enum st_status derive_secret(const struct control_shrink *shrink, struct wire_record *first)
{
	struct {
		char label[16];
		uint8_t number[WIRE_SECRET_BYTES];
		char job[BOOTSTRAP_JOB_BYTES];
	} text = {.label = "shrunken secret"};
	uint8_t mac[ST_SHA256_BYTES];

	_Static_assert(ST_SHA256_BYTES == WIRE_SECRET_BYTES, "the secret is as long as a digest");
	memcpy(text.number, first->secret, sizeof text.number);
	memcpy(text.job, shrink->bootstrap.job, sizeof text.job);
	ST_TRY(st_hmac_sha256(shrink->control->keys.secret, WIRE_SECRET_BYTES, &text, sizeof text, mac));
	memcpy(first->secret, mac, sizeof first->secret);
	st_wipe(mac, sizeof mac);
	return ST_OK;
}

static enum st_status exchange(struct bootstrap *bootstrap, const void *mine, size_t bytes, int64_t timeout_ms, void *all)
{
	struct control_shrink *shrink = (struct control_shrink *)bootstrap;
	struct control *control = shrink->control;
	int64_t stall_ms = 2 * control->stall_timeout_ms;
	struct st_deadline deadline = st_deadline_in_ms(timeout_ms < stall_ms ? timeout_ms : stall_ms);

	if (bytes != sizeof(struct wire_record))
		return st_fail(ST_ERR_INTERNAL, "survivors exchange records of %zu bytes", bytes);
	if (!shrink->coordinates) {
		if (!say(shrink, shrink->coordinator.fd, WIRE_SHRINK_RECORD, mine, bytes))
			return st_fail(ST_ERR_UNAVAILABLE, "the survivors' coordinator left while they met");
		ST_TRY(await(shrink, &shrink->coordinator, shrink->members[0], WIRE_SHRINK_RECORDS, &deadline));
		memcpy(all, shrink->coordinator.inbox.payload, bootstrap->size * bytes);
		st_wipe(shrink->coordinator.inbox.payload, bootstrap->size * bytes);
		next(&shrink->coordinator);
		return derive_secret(shrink, all);
	}
	for (uint32_t m = 0; m < bootstrap->size; m++) {
		struct joiner *joiner = &shrink->joiners[shrink->members[m]];
		const void *record = mine;
		if (shrink->members[m] != control->rank) {
			ST_TRY(await(shrink, joiner, shrink->members[m], WIRE_SHRINK_RECORD, &deadline));
			record = joiner->inbox.payload;
			next(joiner);
		}
		memcpy((uint8_t *)all + m * bytes, record, bytes);
	}
	for (uint32_t m = 0; m < bootstrap->size; m++)
		if (shrink->members[m] != control->rank &&
		    !say(shrink, shrink->joiners[shrink->members[m]].fd, WIRE_SHRINK_RECORDS, all, bootstrap->size * bytes))
			return st_fail(ST_ERR_UNAVAILABLE, "rank %u on %s left while the survivors met", shrink->members[m], host_of(control, shrink->members[m]));
	return derive_secret(shrink, all);
}

static void finish(struct bootstrap *bootstrap)
{
	(void)bootstrap; /* it goes with the shrink */
}

enum st_status control_shrink_begin(struct control *control, unsigned generation, int64_t timeout_ms, struct control_shrink **out)
{
	struct control_shrink *shrink = calloc(1, sizeof *shrink);

	if (!shrink)
		return st_fail(ST_ERR_NOMEM, "no memory for the survivors");
	shrink->control = control;
	shrink->generation = generation;
	shrink->deadline = st_deadline_in_ms(timeout_ms);
	shrink->coordinator.fd = -1;
	shrink->dead = calloc(control->size, sizeof *shrink->dead);
	shrink->skipped = calloc(control->size, sizeof *shrink->skipped);
	shrink->refusals = calloc(control->size, sizeof *shrink->refusals);
	shrink->joiners = calloc(control->size, sizeof *shrink->joiners);
	shrink->members = calloc(control->size, sizeof *shrink->members);
	for (uint32_t r = 0; shrink->joiners && r < control->size; r++)
		shrink->joiners[r].fd = -1;
	if (!shrink->dead || !shrink->skipped || !shrink->refusals || !shrink->joiners || !shrink->members) {
		control_shrink_end(shrink);
		return st_fail(ST_ERR_NOMEM, "no memory for %u ranks", control->size);
	}
	*out = shrink;
	return ST_OK;
}

/* The old name up to what an earlier shrinking has added. */
static void name_job(struct control_shrink *shrink)
{
	const char *old = shrink->control->job;
	int keep = (int)strcspn(old, "~");

	snprintf(shrink->bootstrap.job, sizeof shrink->bootstrap.job, "%.*s~%u.%u", keep < 70 ? keep : 70, old, shrink->generation + 1, shrink->attempt);
}

static enum st_status found(struct control_shrink *shrink, struct bootstrap **bootstrap, const uint32_t **ranks)
{
	const struct topo_world *world = shrink->control->world;
	const struct topo_node *node = &world->nodes[world->node_of[shrink->control->rank]];

	for (uint32_t m = 0; m < shrink->bootstrap.size; m++)
		if (shrink->members[m] == shrink->control->rank)
			shrink->bootstrap.rank = m;
	snprintf(shrink->bootstrap.node, sizeof shrink->bootstrap.node, "%s", node->name);
	snprintf(shrink->bootstrap.address, sizeof shrink->bootstrap.address, "%s", node->address);
	name_job(shrink);
	shrink->bootstrap.exchange = exchange;
	shrink->bootstrap.finish = finish;
	*bootstrap = &shrink->bootstrap;
	*ranks = shrink->members;
	return ST_OK;
}

enum st_status control_shrink_attempt(struct control_shrink *shrink, struct bootstrap **bootstrap, const uint32_t **ranks)
{
	struct control *control = shrink->control;

	hang_up_all(shrink);
	while (!st_deadline_expired(&shrink->deadline)) {
		enum outcome outcome = OUTCOME_NOT_YET;
		uint32_t candidate = 0;
		memset(shrink->skipped, 0, control->size * sizeof *shrink->skipped);
		while (outcome == OUTCOME_NOT_YET && candidate < control->rank && !st_deadline_expired(&shrink->deadline)) {
			if (shrink->dead[candidate] || shrink->skipped[candidate])
				candidate++;
			else
				outcome = join(shrink, candidate, control->stall_timeout_ms);
		}
		shrink->coordinates = false;
		if (outcome == OUTCOME_NOT_YET) {
			outcome = coordinate(shrink);
			shrink->coordinates = outcome == OUTCOME_GROUP;
		}
		if (outcome == OUTCOME_NOT_YET)
			outcome = ask_others(shrink);
		if (outcome == OUTCOME_GROUP)
			return found(shrink, bootstrap, ranks);
		hang_up_all(shrink);
		if (outcome == OUTCOME_LEFT_OUT)
			return st_fail_copy(ST_ERR_ABORTED, shrink->why);
	}
	return st_fail_copy(ST_ERR_UNAVAILABLE, shrink->why[0] ? shrink->why : "the survivors did not find each other in time");
}

int64_t control_shrink_left_ms(struct control_shrink *shrink)
{
	return st_deadline_expired(&shrink->deadline) ? 0 : shrink->deadline.left_ns / ST_NS_PER_MS;
}

void control_shrink_charge(struct control_shrink *shrink, int64_t began_ns, int64_t most_ms)
{
	int64_t now = st_now_ns(), spent = now - began_ns;

	if (spent > most_ms * ST_NS_PER_MS)
		spent = most_ms * ST_NS_PER_MS;
	shrink->deadline.left_ns -= spent;
	shrink->deadline.last_ns = now;
}

void control_shrink_end(struct control_shrink *shrink)
{
	if (!shrink)
		return;
	if (shrink->joiners)
		hang_up_all(shrink);
	free(shrink->dead);
	free(shrink->skipped);
	free(shrink->refusals);
	free(shrink->joiners);
	free(shrink->members);
	free(shrink);
}

void control_leave_out(struct control *control)
{
	pthread_mutex_lock(&control->lock);
	for (struct control_caller *caller = control->moved ? NULL : control->callers; caller; caller = caller->next)
		leave_out(control->rank, caller->fd);
	control->moved = true;
	pthread_mutex_unlock(&control->lock);
}
