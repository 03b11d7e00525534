/*
 * Both halves of the handshake, on real sockets.  Server: strangers connect to the rank's Unix listener and send bytes, or what a true rank would send
 * with some bits changed; nobody gets in without an unchanged proof.  Client: the rank connects to what answers likewise.
 */
#include "control_state.h"

#include "libcomm/control_connect.c"

#include "common/log.h"

enum { STRANGERS = 3 };

struct stranger {
	int fd;
	bool greeted;
	struct auth_session session;
	struct wire_hello hello;
};

static struct control *server;
static struct wire_record address;
static struct auth_keys peer_keys = {.job = "fuzz", .rank = 1, .size = FUZZ_RANKS};

static void serve(void)
{
	struct epoll_event events[8];
	int n;

	for (int turn = 0; turn < 8 && (n = epoll_wait(server->epoll_fd, events, 8, 0)) > 0; turn++)
		for (int i = 0; i < n; i++) {
			struct control_source *source = events[i].data.ptr;
			if (source->fd < 0)
				continue;
			if (source->kind == CONTROL_SOURCE_LISTENER)
				control_accept_ready(server, source);
			else if (source->kind == CONTROL_SOURCE_OPENING)
				control_opening_ready(server, (struct control_opening *)source);
			else if (source->kind == CONTROL_SOURCE_LINK)
				control_link_ready(server, (struct control_link *)source, events[i].events);
		}
	control_openings_free_closed(server);
	control_links_free_closed(server);
}

static int connect_to_server(void)
{
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	size_t length = strlen(address.unix_name);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	memcpy(to.sun_path + 1, address.unix_name, length);
	FUZZ_REQUIRE(fd >= 0 && !connect(fd, (struct sockaddr *)&to, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length)));
	return fd;
}

/* Changes some bytes of a message; returns whether it is another one then. */
static bool spoil(struct fuzz_input *input, void *message, size_t bytes)
{
	uint8_t true_one[sizeof(struct wire_challenge)];
	memcpy(true_one, message, bytes);
	for (uint8_t changes = fuzz_u8(input) % 4; changes; changes--) {
		uint8_t at = fuzz_u8(input);
		((uint8_t *)message)[at % bytes] ^= fuzz_u8(input);
	}
	return memcmp(true_one, message, bytes) != 0;
}

static void as_server(struct fuzz_input *input)
{
	struct stranger strangers[STRANGERS];
	uint64_t before = server->counters.handshakes, proofs = 0;

	for (int i = 0; i < STRANGERS; i++)
		strangers[i] = (struct stranger){.fd = -1};
	pthread_mutex_lock(&server->lock);
	while (input->left) {
		uint8_t what = fuzz_u8(input), bytes[256];
		struct stranger *one = &strangers[what % STRANGERS];
		if (one->fd < 0) {
			*one = (struct stranger){.fd = connect_to_server()};
			serve();
		}
		switch (what / STRANGERS % 5) {
		case 0: {
			size_t length = fuzz_take(input, bytes, fuzz_u8(input));
			if (length && send(one->fd, bytes, length, MSG_NOSIGNAL) < 0)
				length = 0;
			break;
		}
		case 1: {
			uint8_t purpose = fuzz_u8(input);
			FUZZ_REQUIRE(auth_client_begin(&peer_keys, server->rank, (enum wire_purpose)(purpose % (WIRE_PURPOSE_END + 1)), fuzz_u8(input), fuzz_u8(input), true,
						       &one->session, &one->hello) == ST_OK);
			one->greeted = true;
			struct wire_hello hello = one->hello;
			spoil(input, &hello, sizeof hello);
			one->greeted = send(one->fd, &hello, sizeof hello, MSG_NOSIGNAL) == sizeof hello;
			break;
		}
		case 2: {
			struct wire_challenge challenge;
			struct wire_proof proof;
			if (!one->greeted || recv(one->fd, &challenge, sizeof challenge, MSG_DONTWAIT) != sizeof challenge)
				break;
			if (auth_client_prove(&peer_keys, &one->session, &challenge, &proof) != ST_OK)
				break;
			proofs += !spoil(input, &proof, sizeof proof);
			if (send(one->fd, &proof, sizeof proof, MSG_NOSIGNAL) < 0)
				one->greeted = false;
			break;
		}
		case 3:
			close(one->fd);
			one->fd = -1;
			break;
		default:
			control_openings_tick(server);
		}
		serve();
	}
	FUZZ_REQUIRE(server->counters.handshakes - before <= proofs);
	FUZZ_REQUIRE(server->opening_count <= CONTROL_MAX_OPENINGS && server->accepted_count <= CONTROL_MAX_ACCEPTED);
	for (int i = 0; i < STRANGERS; i++)
		if (strangers[i].fd >= 0)
			close(strangers[i].fd);
	serve();
	/* As it was. */
	control_openings_close_all(server);
	control_links_close_all(server);
	memset(server->reach, 0, server->size * sizeof *server->reach);
	memset(server->left, 0, server->size * sizeof *server->left);
	memset(server->met, 0, server->size * sizeof *server->met);
	atomic_store_explicit(&server->aborted, false, memory_order_relaxed);
	uint64_t count;
	while (read(server->event_fd, &count, sizeof count) > 0)
		;
	pthread_mutex_unlock(&server->lock);
}

/* What answers the client: challenge and welcome, spoilt or cut. */
struct impostor {
	int fd;
	struct fuzz_input input;
	bool honest;
};

static void *answer(void *argument)
{
	struct impostor *me = argument;
	struct auth_session session;
	struct wire_hello hello;
	struct wire_challenge challenge;
	struct wire_proof proof;
	struct wire_welcome welcome;

	me->honest = recv(me->fd, &hello, sizeof hello, MSG_WAITALL) == sizeof hello &&
		     auth_server_begin(&peer_keys, &hello, true, &session, &challenge) == ST_OK;
	if (me->honest) {
		size_t bytes = sizeof challenge;
		me->honest = !spoil(&me->input, &challenge, sizeof challenge);
		if (fuzz_u8(&me->input) % 8 == 1) {
			bytes = fuzz_u8(&me->input) % sizeof challenge;
			me->honest = false;
		}
		if (send(me->fd, &challenge, bytes, MSG_NOSIGNAL) != (ssize_t)bytes)
			me->honest = false;
	}
	if (me->honest) {
		me->honest = recv(me->fd, &proof, sizeof proof, MSG_WAITALL) == sizeof proof && auth_server_end(&peer_keys, &session, &proof, &welcome) == ST_OK;
		FUZZ_REQUIRE(me->honest); /* the client did not prove itself to an honest server */
		me->honest = !spoil(&me->input, &welcome, sizeof welcome) && send(me->fd, &welcome, sizeof welcome, MSG_NOSIGNAL) == sizeof welcome;
		if (!me->honest && send(me->fd, &welcome, sizeof welcome, MSG_NOSIGNAL) < 0)
			me->honest = false;
	}
	shutdown(me->fd, SHUT_RDWR);
	return NULL;
}

static void as_client(struct fuzz_input *input)
{
	struct st_deadline deadline = st_deadline_in_ms(20000);
	struct impostor impostor = {.input = *input};
	pthread_t thread;
	int fds[2];

	FUZZ_REQUIRE(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds));
	impostor.fd = fds[1];
	FUZZ_REQUIRE(!pthread_create(&thread, NULL, answer, &impostor));
	enum st_status status = handshake(server, fds[0], 1, WIRE_PURPOSE_DATA, 0, 3, true, &deadline, "rank 1");
	close(fds[0]);
	FUZZ_REQUIRE(!pthread_join(thread, NULL));
	close(fds[1]);
	FUZZ_REQUIRE((status == ST_OK) == impostor.honest);
	if (status != ST_OK)
		fuzz_check_message();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct fuzz_input input = {data, bytes};

	if (!server) {
		st_log_set_level(ST_LOG_ERROR);
		server = fuzz_control(4);
		FUZZ_REQUIRE(control_listen(server, &address) == ST_OK);
		peer_keys.secret = server->secret;
	}
	if (fuzz_u8(&input) % 4)
		as_server(&input);
	else
		as_client(&input);
	return 0;
}

size_t fuzz_seed(unsigned i, uint8_t *data)
{
	static const uint8_t seeds[][24] = {
		{1, 3, 1, 0, 0, 6, 0},                         /* a tree connection */
		{1, 3, 2, 7, 0, 6, 0},                         /* data */
		{1, 3, 3, 0, 0, 6, 0, 4, 5, 0, 0, 7, 0},       /* a probe of reach, then a probe */
		{1, 3, 2, 7, 1, 4, 1, 6, 0},                   /* another version */
		{1, 3, 2, 7, 0, 6, 1, 9, 1},                   /* a spoilt proof */
		{1, 0, 5, 1, 2, 3, 4, 5, 12, 9},               /* bytes, time, an end */
		{0, 0, 0, 0},                                  /* an honest server */
		{0, 1, 40, 1, 0},                              /* one that does not know the secret */
		{0, 0, 0, 1, 2, 1},                            /* one with a strange welcome */
		{0, 0, 1, 9},                                  /* one that stops in the middle */
	};
	if (i >= sizeof seeds / sizeof *seeds)
		return 0;
	memcpy(data, seeds[i], sizeof seeds[i]);
	return sizeof seeds[i];
}
