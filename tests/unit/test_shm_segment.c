/*
 * A peer that lies about the memory it shares, as a process of its own: whatever it sends instead of a sealed memfd of the agreed size, and
 * whatever it does to the memory before and after, this side gets one line that names it, and neither a signal, a leak, nor a page to pay for.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "libcomm/shm_segment.h"
#include "libcomm/transport.h"
#include "temporary.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

enum { SLOTS = 4, SLOT_BYTES = 523264 }; /* a segment is then exactly one huge page long */
static const size_t SEGMENT_BYTES = 2 << 20;
static const int SIZE_SEALS = F_SEAL_SHRINK | F_SEAL_GROW;
static struct {
	uint64_t magic, bytes, slots, slot_bytes, proof[3];
} hello; /* as a true peer would send it */

static int memory(size_t bytes, int seals, unsigned flags)
{
	int fd = memfd_create("hostile", MFD_ALLOW_SEALING | MFD_CLOEXEC | flags);
	REQUIRE(fd >= 0 && !ftruncate(fd, (off_t)bytes));
	if (!flags && bytes)
		REQUIRE(!fallocate(fd, 0, 0, (off_t)bytes));
	if (seals)
		REQUIRE(!fcntl(fd, F_ADD_SEALS, seals));
	return fd;
}

static void send_with(int fd, const void *data, size_t bytes, const int *descriptors, size_t count)
{
	struct iovec part = {(void *)(uintptr_t)data, bytes};
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(253 * sizeof(int))];
	} control;
	memset(&control, 0, sizeof control);
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
	if (count) {
		message.msg_control = control.room;
		message.msg_controllen = CMSG_SPACE(count * sizeof(int));
		control.header.cmsg_level = SOL_SOCKET;
		control.header.cmsg_type = SCM_RIGHTS;
		control.header.cmsg_len = CMSG_LEN(count * sizeof(int));
		memcpy(CMSG_DATA(&control.header), descriptors, count * sizeof(int));
	}
	/* The other side may have judged and gone. */
	REQUIRE(sendmsg(fd, &message, MSG_NOSIGNAL) == (ssize_t)bytes || errno == EPIPE || errno == ECONNRESET);
}

/* The other side's hello, and its segment. */
static int take(int fd)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec part = {&hello, sizeof hello};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room};
	int segment;
	REQUIRE(recvmsg(fd, &message, MSG_CMSG_CLOEXEC) == sizeof hello && CMSG_FIRSTHDR(&message));
	memcpy(&segment, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof segment);
	return segment;
}

/* ---- what liars do, in their own process; the link's socket is fd ------------------------------------------------------ */

static void send_one(int fd, int descriptor)
{
	REQUIRE(descriptor >= 0);
	send_with(fd, &hello, sizeof hello, &descriptor, 1);
	send_with(fd, "", 1, NULL, 0);
}

static void sends_none(int fd) { send_with(fd, &hello, sizeof hello, NULL, 0); }
static void sends_pipe(int fd) { int ends[2]; REQUIRE(!pipe(ends)); send_one(fd, ends[0]); }
static void sends_socket(int fd) { send_one(fd, fd); }
static void sends_eventfd(int fd) { send_one(fd, eventfd(0, 0)); }
static void sends_directory(int fd) { send_one(fd, open("/", O_RDONLY | O_DIRECTORY)); }
static void sends_path(int fd) { send_one(fd, open("/", O_PATH)); }
static void sends_zero(int fd) { send_one(fd, open("/dev/zero", O_RDWR)); }
static void sends_file(int fd)
{
	int file = open(temporary_path("file"), O_RDWR | O_CREAT, 0600);
	REQUIRE(file >= 0 && !ftruncate(file, (off_t)SEGMENT_BYTES));
	send_one(fd, file);
}
static void sends_huge(int fd) { send_one(fd, memory(SEGMENT_BYTES, SIZE_SEALS, MFD_HUGETLB)); }
static void sends_unsealable(int fd)
{
	int plain = memfd_create("plain", MFD_CLOEXEC);
	REQUIRE(plain >= 0 && !ftruncate(plain, (off_t)SEGMENT_BYTES));
	send_one(fd, plain);
}
static void sends_unsealed(int fd) { send_one(fd, memory(SEGMENT_BYTES, 0, 0)); }
static void sends_shrinkable(int fd) { send_one(fd, memory(SEGMENT_BYTES, F_SEAL_GROW, 0)); }
static void sends_growable(int fd) { send_one(fd, memory(SEGMENT_BYTES, F_SEAL_SHRINK, 0)); }
static void sends_smaller(int fd) { send_one(fd, memory(SEGMENT_BYTES - 4096, SIZE_SEALS, 0)); }
static void sends_bigger(int fd) { send_one(fd, memory(SEGMENT_BYTES + 4096, SIZE_SEALS, 0)); }
static void sends_nothing_in_it(int fd) { send_one(fd, memory(0, SIZE_SEALS, 0)); }
static void sends_terabytes(int fd)
{
	int huge = memfd_create("terabytes", MFD_ALLOW_SEALING);
	REQUIRE(huge >= 0 && !ftruncate(huge, (off_t)1 << 42) && !fcntl(huge, F_ADD_SEALS, SIZE_SEALS));
	send_one(fd, huge);
}
static void sends_write_sealed(int fd) { send_one(fd, memory(SEGMENT_BYTES, SIZE_SEALS | F_SEAL_WRITE, 0)); }
static void sends_future_write_sealed(int fd) { send_one(fd, memory(SEGMENT_BYTES, SIZE_SEALS | F_SEAL_FUTURE_WRITE, 0)); }
static void sends_finally_sealed(int fd) { send_one(fd, memory(SEGMENT_BYTES, SIZE_SEALS | F_SEAL_SEAL, 0)); }
static void sends_read_only(int fd)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/self/fd/%d", memory(SEGMENT_BYTES, SIZE_SEALS, 0));
	send_one(fd, open(path, O_RDONLY));
}
static void sends_all_holes(int fd)
{
	int holes = memfd_create("holes", MFD_ALLOW_SEALING);
	REQUIRE(holes >= 0 && !ftruncate(holes, (off_t)SEGMENT_BYTES) && !fcntl(holes, F_ADD_SEALS, SIZE_SEALS));
	send_one(fd, holes);
}
static void sends_one_hole(int fd)
{
	int holes = memory(SEGMENT_BYTES, SIZE_SEALS, 0);
	REQUIRE(!fallocate(holes, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 8192, 4096));
	send_one(fd, holes);
}
static void sends_several(int fd, size_t count)
{
	int many[253];
	many[0] = memory(SEGMENT_BYTES, SIZE_SEALS, 0);
	for (size_t i = 1; i < count; i++)
		many[i] = dup(many[0]);
	send_with(fd, &hello, sizeof hello, many, count);
	send_with(fd, "", 1, NULL, 0);
}
static void sends_two(int fd) { sends_several(fd, 2); }
static void sends_three(int fd) { sends_several(fd, 3); }
static void sends_253(int fd) { sends_several(fd, 253); }
static void sends_one_with_each_byte(int fd)
{
	int segment = memory(SEGMENT_BYTES, SIZE_SEALS, 0);
	for (size_t i = 0; i < sizeof hello; i++)
		send_with(fd, (char *)&hello + i, 1, &segment, 1);
}
static void sends_one_more_with_the_last_byte(int fd)
{
	int segment = memory(SEGMENT_BYTES, SIZE_SEALS, 0);
	send_with(fd, &hello, sizeof hello, &segment, 1);
	send_with(fd, "", 1, &segment, 1);
}
static void never_says_that_it_mapped(int fd)
{
	int segment = memory(SEGMENT_BYTES, SIZE_SEALS, 0);
	send_with(fd, &hello, sizeof hello, &segment, 1);
	char byte;
	while (recv(fd, &byte, 1, 0) > 0)
		;
}
static void goes_before_it_mapped(int fd)
{
	int segment = memory(SEGMENT_BYTES, SIZE_SEALS, 0);
	send_with(fd, &hello, sizeof hello, &segment, 1);
}

/* Takes a page out of the other side's memory while it still may. */
static void punches_ours(int fd)
{
	int segment = memory(SEGMENT_BYTES, SIZE_SEALS, 0), theirs = take(fd);
	REQUIRE(!fallocate(theirs, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096));
	send_with(fd, &hello, sizeof hello, &segment, 1);
	send_with(fd, "", 1, NULL, 0);
}

static const struct lie {
	const char *name;
	void (*tell)(int fd);
	enum st_status status;
	const char *says;
} lies[] = {
	{"no descriptor", sends_none, ST_ERR_PROTOCOL, "sent no descriptor"},
	{"a pipe", sends_pipe, ST_ERR_PROTOCOL, "no memory that can be sealed"},
	{"the link's own socket", sends_socket, ST_ERR_PROTOCOL, "no memory that can be sealed"},
	{"an eventfd", sends_eventfd, ST_ERR_PROTOCOL, "no memory that can be sealed"},
	{"a directory", sends_directory, ST_ERR_PROTOCOL, "no memory that can be sealed"},
	{"a path", sends_path, ST_ERR_PROTOCOL, "no memory that can be sealed"},
	{"/dev/zero", sends_zero, ST_ERR_PROTOCOL, "no memory that can be sealed"},
	{"a file", sends_file, ST_ERR_PROTOCOL, ""}, /* /tmp may be a tmpfs: then it has seals, and the wrong ones */
	{"huge pages", sends_huge, ST_ERR_PROTOCOL, "file system type"},
	{"a memfd without seals", sends_unsealable, ST_ERR_PROTOCOL, "can change its size"},
	{"unsealed", sends_unsealed, ST_ERR_PROTOCOL, "can change its size: seals 0x0"},
	{"shrinkable", sends_shrinkable, ST_ERR_PROTOCOL, "can change its size: seals 0x4"},
	{"growable", sends_growable, ST_ERR_PROTOCOL, "can change its size: seals 0x2"},
	{"smaller", sends_smaller, ST_ERR_PROTOCOL, "has 2093056 bytes, expected 2097152"},
	{"bigger", sends_bigger, ST_ERR_PROTOCOL, "has 2101248 bytes, expected 2097152"},
	{"empty", sends_nothing_in_it, ST_ERR_PROTOCOL, "has 0 bytes, expected 2097152"},
	{"four terabytes", sends_terabytes, ST_ERR_PROTOCOL, "has 4398046511104 bytes"},
	{"sealed against writing", sends_write_sealed, ST_ERR_PROTOCOL, "sealed against writing"},
	{"sealed against later writing", sends_future_write_sealed, ST_ERR_PROTOCOL, "sealed against writing"},
	{"sealed for good", sends_finally_sealed, ST_ERR_PROTOCOL, "can't be sealed against holes"},
	{"read-only", sends_read_only, ST_ERR_PROTOCOL, "can't be written"},
	{"all holes", sends_all_holes, ST_ERR_PROTOCOL, "has holes: 0 of 2097152 bytes"},
	{"one hole", sends_one_hole, ST_ERR_PROTOCOL, "has holes: 2093056 of 2097152 bytes"},
	{"two descriptors", sends_two, ST_ERR_PROTOCOL, "several descriptors"},
	{"three descriptors", sends_three, ST_ERR_PROTOCOL, "several descriptors"},
	{"253 descriptors", sends_253, ST_ERR_PROTOCOL, "several descriptors"},
	{"a descriptor with each byte", sends_one_with_each_byte, ST_ERR_PROTOCOL, "several descriptors"},
	{"one more with the word that it mapped", sends_one_more_with_the_last_byte, ST_ERR_PROTOCOL, "several descriptors"},
	{"no word that it mapped", never_says_that_it_mapped, ST_ERR_TIMEOUT, "did not set up shared memory"},
	{"gone before it mapped", goes_before_it_mapped, ST_ERR_ABORTED, "closed the connection"},
	{"a hole in our own", punches_ours, ST_ERR_PROTOCOL, "shared memory for rank 1 on there has holes"},
};

static unsigned descriptors(void)
{
	unsigned count = 0;
	for (int fd = 0; fd < 1024; fd++)
		count += fcntl(fd, F_GETFD) >= 0;
	return count;
}

static unsigned mappings(void)
{
	char line[512];
	unsigned count = 0;
	FILE *maps = fopen("/proc/self/maps", "re");
	REQUIRE(maps);
	while (fgets(line, sizeof line, maps))
		count += strstr(line, "memfd:") != NULL;
	fclose(maps);
	return count;
}

static pid_t peer(const struct lie *lie, void (*tell)(int), int fd, int close_first)
{
	pid_t pid = fork();
	REQUIRE(pid >= 0);
	if (!pid) {
		close(close_first);
		tell(fd);
		if (lie && lie->status != ST_ERR_ABORTED) { /* stays until the other side has judged */
			char byte;
			shutdown(fd, SHUT_WR);
			while (recv(fd, &byte, 1, 0) > 0)
				;
		}
		_exit(0);
	}
	close(fd);
	return pid;
}

static void ended(const char *name, pid_t pid)
{
	int status;
	REQUIRE(waitpid(pid, &status, 0) == pid);
	CHECK(WIFEXITED(status) && !WEXITSTATUS(status), "%s: the peer's own part failed: 0x%x", name, (unsigned)status);
}

static void no_lie_is_believed(void)
{
	static const struct transport_ends ends = {0, 1, "here", "there"};
	for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
		int fds[2];
		struct link *link = NULL;
		unsigned had_descriptors = descriptors(), had_mappings = mappings();
		REQUIRE(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds));
		pid_t pid = peer(&lies[i], lies[i].tell, fds[1], fds[0]);
		enum st_status status = transport_shm.open(fds[0], &ends, SLOTS, SLOT_BYTES, lies[i].status == ST_ERR_TIMEOUT ? 100 : 10000, &link);
		CHECK(status == lies[i].status && !link, "%s: seen %s (%s), expected %s", lies[i].name, st_status_name(status), st_message(),
		      st_status_name(lies[i].status));
		CHECK(strstr(st_message(), lies[i].says) && strstr(st_message(), "rank 1 on there"), "%s: message '%s' lacks '%s'", lies[i].name,
		      st_message(), lies[i].says);
		CHECK(descriptors() == had_descriptors, "%s: %u descriptors, before %u", lies[i].name, descriptors(), had_descriptors);
		CHECK(mappings() == had_mappings, "%s: %u mappings, before %u", lies[i].name, mappings(), had_mappings);
		ended(lies[i].name, pid);
	}
}

/* ---- after a good start ------------------------------------------------------------------------------------------------ */

static void cannot(const char *what, bool failed)
{
	if (!failed) {
		fprintf(stderr, "a peer can still %s\n", what);
		exit(1);
	}
}

/* Plays by the rules until the link is up, and then does its worst to both segments. */
static void turns_hostile(int fd)
{
	int segments[2] = {memory(SEGMENT_BYTES, SIZE_SEALS, 0), take(fd)};
	char *maps[2], byte;
	for (int i = 0; i < 2; i++)
		REQUIRE((maps[i] = mmap(NULL, SEGMENT_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, segments[i], 0)) != MAP_FAILED);
	send_with(fd, &hello, sizeof hello, segments, 1);
	send_with(fd, "", 1, NULL, 0);
	REQUIRE(recv(fd, &byte, 1, 0) == 1); /* it has mapped ours */
	/* And it has sealed its own once we may go on: the test's side says so. */
	REQUIRE(recv(fd, &byte, 1, 0) == 1);
	for (int i = 0; i < 2; i++) {
		cannot("shrink", ftruncate(segments[i], 0) < 0);
		cannot("grow", ftruncate(segments[i], (off_t)SEGMENT_BYTES * 2) < 0);
		cannot("punch holes", fallocate(segments[i], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 65536) < 0);
		cannot("zero a range", fallocate(segments[i], FALLOC_FL_ZERO_RANGE, 0, 65536) < 0);
		cannot("remove pages", madvise(maps[i], 65536, MADV_REMOVE) < 0);
		cannot("map for writing again", mmap(NULL, SEGMENT_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, segments[i], 0) == MAP_FAILED);
		madvise(maps[i], SEGMENT_BYTES, MADV_DONTNEED);
		memset(maps[i], 0xa5, SEGMENT_BYTES); /* noise over everything: control lines, grants, puts */
	}
	send_with(fd, "", 1, NULL, 0);
	while (recv(fd, &byte, 1, 0) > 0)
		;
}

static void a_peer_that_turns_hostile_harms_nobody(void)
{
	static const struct transport_ends ends = {0, 1, "here", "there"};
	const struct transport_signature signature = {.sequence = 1, .count = 7, .type = 1};
	int fds[2];
	struct link *link = NULL;
	void *place;
	REQUIRE(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds));
	pid_t pid = peer(NULL, turns_hostile, fds[1], fds[0]);
	REQUIRE(transport_shm.open(fds[0], &ends, SLOTS, SLOT_BYTES, 10000, &link) == ST_OK);
	transport_shm.enter(link, &signature);
	REQUIRE(transport_shm.ready(link, transport_shm.slot(link, 0), 8) == ST_OK);
	send_with(fds[0], "", 1, NULL, 0);
	struct stat before;
	char byte;
	REQUIRE(!fstat(transport_shm.fd(link), &before));
	while (recv(fds[0], &byte, 1, 0) != 1)
		;
	enum st_status status = ST_OK;
	for (int i = 0; i < 1000 && status == ST_OK; i++) {
		struct transport_signature heard;
		CHECK(transport_shm.received(link) == 0, "a put that was never made");
		status = transport_shm.reserve(link, 8, &place);
		transport_shm.heard(link, &heard);
		if (status == ST_PENDING)
			status = transport_shm.progress(link);
	}
	CHECK_FAILS(status, ST_ERR_PROTOCOL, "rank 1 on there");
	memset(transport_shm.slot(link, 0), 1, SLOT_BYTES); /* memory that is there, whatever is in it */
	transport_shm.close(link);
	ended("turned hostile", pid);
}

/* Memory of comm_memory_alloc's kind: others get it to read only, and can't make holes in it. */
static void what_is_sealed_at_once_is_only_read_by_others(void)
{
	int fd;
	void *mapped;
	CHECK_OK(shm_segment_make("test", 65536, 1, "test", &fd));
	CHECK_OK(shm_segment_map(fd, 65536, "test", &mapped));
	CHECK_OK(shm_segment_seal(fd, mapped, 65536, "test"));
	memset(mapped, 1, 65536);
	cannot("map it for writing", mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
	void *reading = mmap(NULL, 65536, PROT_READ, MAP_SHARED, fd, 0);
	CHECK(reading != MAP_FAILED && !memcmp(reading, mapped, 65536), "readers can't map it");
	munmap(reading, 65536);
	munmap(mapped, 65536);
	close(fd);
}

/* If it did not look first, it would end every process of this machine: a limit on file sizes is there to stop it. */
static void too_much_is_refused_first(void)
{
	int fd;
	const struct rlimit limit = {1 << 26, 1 << 26};
	REQUIRE(signal(SIGXFSZ, SIG_IGN) != SIG_ERR && !setrlimit(RLIMIT_FSIZE, &limit));
	CHECK_FAILS(shm_segment_make("test", SIZE_MAX / 2, 1, "a great lot", &fd), ST_ERR_NOMEM, "a great lot: 9223372036854775807 bytes are needed");
}

int main(void)
{
	int fds[2];
	struct link *link;
	static const struct transport_ends ends = {0, 1, "here", "there"};
	temporary_make();
	/* A true hello, to be imitated. */
	REQUIRE(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds));
	pid_t pid = fork();
	if (!pid) {
		close(fds[1]);
		transport_shm.open(fds[0], &ends, SLOTS, SLOT_BYTES, 10000, &link);
		_exit(0);
	}
	close(fds[0]);
	close(take(fds[1]));
	close(fds[1]);
	ended("hello", pid);
	REQUIRE(hello.bytes == SEGMENT_BYTES && transport_shm_bytes(SLOTS, SLOT_BYTES) == SEGMENT_BYTES);
	no_lie_is_believed();
	a_peer_that_turns_hostile_harms_nobody();
	what_is_sealed_at_once_is_only_read_by_others();
	too_much_is_refused_first();
	return check_result();
}
