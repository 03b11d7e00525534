/* The TCP link, over real loopback sockets and over Unix ones: any cut of the byte stream, frames before grants, lies, ends. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "libcomm/transport.h"

enum { SLOTS = 4, BYTES = 1000 };
static const struct transport_ops *const tcp = &transport_tcp;
static const struct transport_signature first = {.sequence = 1, .count = 7, .collective = 0, .type = 1};

static void loopback(int fds[2])
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t length = sizeof address;
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	REQUIRE(listener >= 0 && !bind(listener, (struct sockaddr *)&address, length) && !listen(listener, 1));
	REQUIRE(!getsockname(listener, (struct sockaddr *)&address, &length));
	fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	REQUIRE(!connect(fds[0], (struct sockaddr *)&address, length));
	fds[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	REQUIRE(fds[1] >= 0);
	close(listener);
}

static struct link *open_end(int fd, uint32_t rank)
{
	struct transport_ends ends = {rank, 1 - rank, rank ? "there" : "here", rank ? "here" : "there"};
	struct link *link;
	REQUIRE(tcp->open(fd, &ends, SLOTS, BYTES, 1000, &link) == ST_OK);
	tcp->enter(link, &first);
	return link;
}

static void open_pair(struct link *links[2])
{
	int fds[2];
	loopback(fds);
	links[0] = open_end(fds[0], 0);
	links[1] = open_end(fds[1], 1);
	int yes = 0;
	socklen_t length = sizeof yes;
	REQUIRE(!getsockopt(fds[0], IPPROTO_TCP, TCP_NODELAY, &yes, &length) && yes);
}

static void both(struct link *links[2])
{
	REQUIRE(tcp->progress(links[0]) == ST_OK && tcp->progress(links[1]) == ST_OK);
}

static void puts_land_where_granted(void)
{
	struct link *links[2];
	open_pair(links);
	/* Large, empty and small ones, both directions at once, many outstanding, the last ones before their grants. */
	static const size_t sizes[] = {1, 0, 5 << 20, 64, 0, 100000, 3, 63, 65, 8 << 20};
	enum { N = sizeof sizes / sizeof *sizes };
	static char *from[2][N], *to[2][N];
	for (int side = 0; side < 2; side++)
		for (int k = 0; k < N; k++) {
			from[side][k] = malloc(sizes[k] + 1);
			to[side][k] = calloc(sizes[k] + 8, 1);
			REQUIRE(from[side][k] && to[side][k]);
			for (size_t i = 0; i < sizes[k]; i++)
				from[side][k][i] = (char)((size_t)(k + side) * 7 + i * 13 + (i >> 9));
			if (k < 4)
				REQUIRE(tcp->ready(links[side], to[side][k], sizes[k]) == ST_OK);
		}
	for (int side = 0; side < 2; side++)
		for (int k = 0; k < N; k++)
			REQUIRE(tcp->put(links[side], from[side][k], sizes[k]) == ST_OK);
	for (int turn = 0; turn < 100000 && (tcp->received(links[0]) < 4 || tcp->received(links[1]) < 4); turn++)
		both(links);
	for (int turn = 0; turn < 100; turn++)
		both(links);
	REQUIRE(tcp->received(links[0]) == 4 && tcp->received(links[1]) == 4); /* the others wait for their grants */
	for (int side = 0; side < 2; side++)
		for (int k = 4; k < N; k++)
			REQUIRE(tcp->ready(links[side], to[side][k], sizes[k]) == ST_OK);
	for (int turn = 0; turn < 100000 && (tcp->received(links[0]) < N || tcp->received(links[1]) < N); turn++)
		both(links);
	for (int side = 0; side < 2; side++) {
		REQUIRE(tcp->received(links[side]) == N && tcp->flushed(links[side]) == N && !tcp->wants_write(links[side]));
		for (int k = 0; k < N; k++) {
			REQUIRE(!memcmp(from[!side][k], to[side][k], sizes[k]));
			for (int i = 0; i < 8; i++)
				REQUIRE(!to[side][k][sizes[k] + (size_t)i]);
			free(to[side][k]);
		}
	}
	for (int side = 0; side < 2; side++)
		for (int k = 0; k < N; k++)
			free(from[side][k]);
	tcp->close(links[0]);
	tcp->close(links[1]);
}

/* Takes what a link writes for some frames, announcements among them, and gives it to a fresh link cut at every place. */
static void any_cut_of_the_stream(void)
{
	static char stream[4096];
	size_t length = 0;
	int fds[2];
	REQUIRE(!socketpair(AF_UNIX, SOCK_STREAM, 0, fds));
	struct link *writer = open_end(fds[0], 0);
	tcp->announce(writer);
	REQUIRE(tcp->put(writer, "0123456789", 10) == ST_OK);
	tcp->announce(writer);
	tcp->announce(writer);
	REQUIRE(tcp->put(writer, "", 0) == ST_OK && tcp->put(writer, "abc", 3) == ST_OK);
	tcp->announce(writer);
	REQUIRE(tcp->put(writer, "xyz", 3) == ST_OK);
	for (ssize_t n; (n = recv(fds[1], stream + length, sizeof stream - length, MSG_DONTWAIT)) > 0;)
		length += (size_t)n;
	close(fds[1]);
	tcp->close(writer);
	REQUIRE(length == 8 * 64 + 16);
	for (size_t cut = 0; cut <= length; cut++)
		for (size_t step = 1; step < 200; step += 66) {
			char a[10] = {0}, b[1], c[3] = {0}, d[3] = {0};
			REQUIRE(!socketpair(AF_UNIX, SOCK_STREAM, 0, fds));
			struct link *reader = open_end(fds[0], 1);
			if (cut % 2) {
				REQUIRE(tcp->ready(reader, a, 10) == ST_OK && tcp->ready(reader, b, 0) == ST_OK);
				REQUIRE(tcp->ready(reader, c, 3) == ST_OK && tcp->ready(reader, d, 3) == ST_OK);
			}
			REQUIRE(write(fds[1], stream, cut) == (ssize_t)cut);
			for (int i = 0; i < 3; i++)
				REQUIRE(tcp->progress(reader) == ST_OK);
			if (!(cut % 2)) {
				REQUIRE(tcp->ready(reader, a, 10) == ST_OK && tcp->ready(reader, b, 0) == ST_OK);
				REQUIRE(tcp->ready(reader, c, 3) == ST_OK && tcp->ready(reader, d, 3) == ST_OK);
			}
			for (size_t at = cut; at < length; at += step) {
				size_t n = length - at < step ? length - at : step;
				REQUIRE(write(fds[1], stream + at, n) == (ssize_t)n && tcp->progress(reader) == ST_OK);
			}
			for (int i = 0; i < 4; i++)
				REQUIRE(tcp->progress(reader) == ST_OK);
			REQUIRE(tcp->received(reader) == 4);
			REQUIRE(!memcmp(a, "0123456789", 10) && !memcmp(c, "abc", 3) && !memcmp(d, "xyz", 3));
			struct transport_signature heard;
			REQUIRE(tcp->heard(reader, &heard) && heard.sequence == 1 && heard.count == 7);
			close(fds[1]);
			tcp->close(reader);
		}
}

static void disagreement_names_both(void)
{
	struct link *links[2];
	char memory[64];
	struct transport_signature mine = {.sequence = 2, .count = 8, .collective = 3, .type = 0, .root = 1};
	open_pair(links);
	tcp->enter(links[0], &mine);
	REQUIRE(tcp->ready(links[1], memory, 8) == ST_OK && tcp->put(links[0], "12345678", 8) == ST_OK);
	enum st_status status = ST_OK;
	for (int i = 0; i < 1000 && status == ST_OK; i++)
		status = tcp->progress(links[1]);
	REQUIRE(status == ST_ERR_MISMATCH);
	REQUIRE(strstr(st_message(), "rank 0 on here calls broadcast 2 of 8 u8 from rank 1") && strstr(st_message(), "rank 1 on there calls allreduce 1 of 7 f32"));
	tcp->close(links[0]);
	tcp->close(links[1]);

	open_pair(links);
	REQUIRE(tcp->ready(links[1], memory, 7) == ST_OK && tcp->put(links[0], "12345678", 8) == ST_OK);
	for (int i = 0; i < 1000 && (status = tcp->progress(links[1])) == ST_OK; i++)
		;
	REQUIRE(status == ST_ERR_MISMATCH && strstr(st_message(), "8 bytes where 7"));
	REQUIRE(tcp->received(links[1]) == 0);
	tcp->close(links[0]);
	tcp->close(links[1]);
}

static void noise_is_refused(void)
{
	for (unsigned round = 0; round < 300; round++) {
		int fds[2];
		char noise[300], memory[16], guard[2] = {5, 5};
		REQUIRE(!socketpair(AF_UNIX, SOCK_STREAM, 0, fds));
		struct link *link = open_end(fds[0], 0);
		srand(round);
		for (size_t i = 0; i < sizeof noise; i++)
			noise[i] = (char)rand();
		if (round % 2)
			memcpy(noise, "SYC1", 4);
		if (round % 4 == 3)
			memcpy(noise + 4, "\2\0\0\0", 4); /* an announcement that claims a payload */
		if (round % 3)
			REQUIRE(tcp->ready(link, memory, sizeof memory) == ST_OK);
		REQUIRE(write(fds[1], noise, sizeof noise) == (ssize_t)sizeof noise);
		enum st_status status = ST_OK;
		for (int i = 0; i < 10 && status == ST_OK; i++)
			status = tcp->progress(link);
		REQUIRE(status == ST_ERR_PROTOCOL && strstr(st_message(), "rank 1 on there"));
		REQUIRE(guard[0] == 5 && guard[1] == 5);
		close(fds[1]);
		tcp->close(link);
	}
}

static void a_peer_that_goes_is_seen(void)
{
	struct link *links[2];
	char memory[8];
	open_pair(links);
	REQUIRE(tcp->ready(links[1], memory, 3) == ST_OK && tcp->put(links[0], "abc", 3) == ST_OK);
	tcp->close(links[0]);
	enum st_status status = ST_OK;
	for (int i = 0; i < 100000 && status == ST_OK; i++)
		status = tcp->progress(links[1]);
	REQUIRE(status == ST_ERR_ABORTED && strstr(st_message(), "rank 0 on here is gone"));
	REQUIRE(tcp->received(links[1]) == 1 && !memcmp(memory, "abc", 3)); /* what came before counts */
	REQUIRE(tcp->fd(links[1]) == -1);
	/* Puts into the void do no harm. */
	for (int i = 0; i < 300; i++)
		tcp->put(links[1], "abc", 3);
	tcp->close(links[1]);
}

static void a_full_queue_says_so(void)
{
	struct link *links[2];
	static char big[1 << 20];
	open_pair(links);
	int taken = 0;
	while (tcp->put(links[0], big, sizeof big) == ST_OK)
		REQUIRE(++taken < 100000);
	REQUIRE(tcp->wants_write(links[0]) && tcp->flushed(links[0]) < (uint64_t)taken);
	int granted = 0;
	while (tcp->ready(links[1], big, sizeof big) == ST_OK)
		REQUIRE(++granted < 100000);
	tcp->close(links[0]);
	tcp->close(links[1]);
}

int main(void)
{
	puts_land_where_granted();
	any_cut_of_the_stream();
	disagreement_names_both();
	noise_is_refused();
	a_peer_that_goes_is_seen();
	a_full_queue_says_so();
	return 0;
}
