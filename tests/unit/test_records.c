/*
 * Writing step records: what ranks add is what the reader finds, and nothing that storage or neighbours do stops a step.
 * The writer is tested between real processes; each case runs in its own, so that a stuck thread or a kill stays there.
 */
#include "check.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "common/clock.h"
#include "libcomm/comm.h"
#include "record_files.h"
#include "trainer/records_writer.h"

static char scratch[] = "/tmp/synctrain-records-XXXXXX";

static const char *directory_for(const char *test)
{
	static _Thread_local char path[256];

	snprintf(path, sizeof path, "%s/%s", scratch, test);
	return path;
}

static void empty_directory(const char *path)
{
	char command[512];

	snprintf(command, sizeof command, "rm -rf '%s'", path);
	CHECK(system(command) == 0);
}

static void sleep_ms(int ms)
{
	poll(NULL, 0, ms);
}

/* Runs cases, each in a process of its own and all at once since they mostly wait, and adds their failures to ours. */
struct process_case {
	const char *what;
	void (*run)(void);
	pid_t pid;
};

static void in_processes(struct process_case *cases)
{
	fflush(NULL);
	for (struct process_case *c = cases; c->run; c++) {
		c->pid = fork();
		if (c->pid == 0) {
			atomic_store(&check_failures, 0);
			c->run();
			fflush(NULL);
			_exit(atomic_load(&check_failures) ? 1 : 0);
		}
	}
	for (struct process_case *c = cases; c->run; c++) {
		int status;
		CHECK(waitpid(c->pid, &status, 0) == c->pid && status == 0, "%s: wait status 0x%x", c->what, status);
	}
}

static const char *one_host[] = {"node1", "node1", "node1", "node1"};
static const char *two_hosts[] = {"node1", "node2", "node1", "node2"};

static struct records_setup setup_of(uint32_t rank, uint32_t size, const char *const *hosts, const char *directory)
{
	return (struct records_setup){
		.rank = rank,
		.size = size,
		.hosts = hosts,
		.directory = directory,
		.run = "7.0.0",
		.launch = 77,
		.wall_ns = 1000,
	};
}

static struct train_records *start_alone(const char *directory)
{
	struct records_setup setup = setup_of(0, 1, one_host, directory);
	char name[RECORDS_SOCKET_BYTES];
	struct train_records *records = NULL;

	CHECK_OK(train_records_prepare(&setup, name, &records));
	train_records_start(records, name);
	return records;
}

/* ---- writer and reader together ---- */

static void rank_process(uint32_t rank, uint32_t size, const char *const *hosts, const char *directory, int (*pipes)[2], uint64_t steps)
{
	struct records_setup setup = setup_of(rank, size, hosts, directory);
	char name[RECORDS_SOCKET_BYTES];
	struct train_records *records = NULL;
	uint32_t writer = train_records_writer(&setup);

	CHECK_OK(train_records_prepare(&setup, name, &records));
	if (writer == rank) {
		for (uint32_t r = rank + 1; r < size; r++)
			if (!strcmp(hosts[r], hosts[rank]))
				CHECK(write(pipes[r][1], name, sizeof name) == sizeof name);
	} else {
		CHECK(read(pipes[rank][0], name, sizeof name) == sizeof name);
	}
	train_records_start(records, name);
	for (uint64_t step = 0; step < steps; step++) {
		struct train_record record = record_of(step, 99, 1000 * (int64_t)step + rank, 10000000);
		train_records_add(records, &record);
		/* More than a socket takes at once, but no more than the ring. */
		if (step % 500 == 499)
			sleep_ms(30);
	}
	train_records_close(records);
}

static void ranks_write(const char *const *hosts, uint32_t size, const char *directory, uint64_t steps)
{
	int pipes[8][2];
	pid_t pids[8];

	for (uint32_t r = 0; r < size; r++)
		CHECK(pipe(pipes[r]) == 0);
	fflush(NULL);
	for (uint32_t r = 0; r < size; r++) {
		pids[r] = fork();
		if (pids[r] == 0) {
			atomic_store(&check_failures, 0);
			rank_process(r, size, hosts, directory, pipes, steps);
			_exit(atomic_load(&check_failures) ? 1 : 0);
		}
	}
	for (uint32_t r = 0; r < size; r++) {
		int status;
		CHECK(waitpid(pids[r], &status, 0) == pids[r] && status == 0, "rank %u: wait status 0x%x", r, status);
		close(pipes[r][0]);
		close(pipes[r][1]);
	}
}

static void test_every_record_of_every_rank_arrives(const char *const *hosts, size_t files)
{
	const char *directory = directory_for("made/by/rank0");
	struct train_record_set set;
	uint64_t steps = 3000;
	struct stat info;
	char path[512];

	ranks_write(hosts, 4, directory, steps);
	CHECK_OK(train_records_load(directory, &set));
	CHECK(set.count == 4 * steps, "%zu records", set.count);
	CHECK(set.launch_count == 1 && set.launches[0].writers == files && set.launches[0].ended == files && !set.notes, "%u of %u writers ended: %s",
	      set.launches[0].ended, set.launches[0].writers, set.notes);
	CHECK(set.files == files && set.ranks == 4 && set.damaged == 0 && set.dropped == 0 && !set.notes, "%zu files, %s", set.files,
	      set.notes ? set.notes : "");
	CHECK(set.launch_count == 1 && set.launches[0].id == 77 && set.launches[0].ranks == 4 && !strcmp(set.job, "7.0.0"));
	for (uint32_t r = 0; r < 4 && set.count; r++)
		CHECK(!strcmp(set.hosts[r], hosts[r]), "rank %u on '%s'", r, set.hosts[r]);
	for (size_t i = 0; i < set.count; i++) {
		struct train_record expected = record_of(i / 4, (uint32_t)(i % 4), 1000 * (int64_t)(i / 4) + (int64_t)(i % 4), 10000000);
		if (memcmp(&set.records[i], &expected, sizeof expected)) {
			CHECK(false, "record %zu: step %llu rank %u", i, (unsigned long long)set.records[i].step, set.records[i].rank);
			break;
		}
	}
	train_records_free(&set);
	snprintf(path, sizeof path, "%s/steps-7.0.0-node1.rec", directory);
	CHECK(stat(path, &info) == 0 && (info.st_mode & 07777) == (0644 & ~077), "mode %o", info.st_mode);
	empty_directory(directory);
}

static void thread_blocks_signals(void)
{
	const char *directory = directory_for("signals");
	struct train_records *records = start_alone(directory);
	char command[256];

	/* SIGKILL, SIGSTOP and the C library's own two signals can't be blocked. */
	snprintf(command, sizeof command,
		 "for t in /proc/%d/task/*; do grep -qx records $t/comm && grep -q 'SigBlk:.*f[ef][^ ]*ff$' $t/status && exit 0; done; exit 1",
		 (int)getpid());
	sleep_ms(50);
	CHECK(system(command) == 0, "no thread named records that blocks signals");
	train_records_close(records);
}

static void killed_rank_leaves_what_is_older_than_a_second(void)
{
	const char *directory = directory_for("killed");
	struct train_record_set set;
	int ready[2];
	char byte;

	CHECK(pipe(ready) == 0);
	pid_t pid = fork();
	if (pid == 0) {
		struct train_records *records = start_alone(directory);
		for (uint64_t step = 0; step < 100; step++) {
			struct train_record record = record_of(step, 0, 1000, 2000);
			train_records_add(records, &record);
		}
		/* Half as much again as the file may lag, for a machine that is busy. */
		sleep_ms(1500);
		CHECK(write(ready[1], "x", 1) == 1);
		for (uint64_t step = 100;; step++) {
			struct train_record record = record_of(step, 0, 1000, 2000);
			train_records_add(records, &record);
			sleep_ms(1);
		}
	}
	CHECK(read(ready[0], &byte, 1) == 1);
	sleep_ms(100);
	CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid);
	CHECK_OK(train_records_load(directory, &set));
	CHECK(set.notes && strstr(set.notes, "launch 1 of 1 has no end in the files of 1 of its 1 nodes: killed there, or still running\n"), "%s", set.notes);
	CHECK(set.count >= 100, "%zu records survive", set.count);
	for (size_t i = 0; i < set.count; i++)
		CHECK(set.records[i].step == i);
	train_records_free(&set);
	empty_directory(directory);
}

/* Whoever appends after a torn block must be readable. */
static void next_session_survives_a_torn_one(void)
{
	const char *directory = directory_for("torn");
	struct train_record_set set;
	char path[512];

	for (int session = 0; session < 2; session++) {
		struct train_records *records = start_alone(directory);
		for (uint64_t step = 0; step < 10; step++) {
			struct train_record record = record_of(10 * (uint64_t)session + step, 0, 1000, 2000);
			train_records_add(records, &record);
		}
		train_records_close(records);
		snprintf(path, sizeof path, "%s/steps-7.0.0-node1.rec", directory);
		struct stat info;
		CHECK(stat(path, &info) == 0);
		if (session == 0)
			CHECK(truncate(path, info.st_size - 50) == 0);
	}
	CHECK_OK(train_records_load(directory, &set));
	CHECK(set.count == 10 && set.damaged >= 1 && set.records && set.records[0].step == 10, "%zu records, %llu damaged", set.count,
	      (unsigned long long)set.damaged);
	train_records_free(&set);
	empty_directory(directory);
}

/* ---- storage that fails ---- */

/* Standard error goes to a file while a case runs; returns how many warnings it holds. */
static int saved_stderr;
static char stderr_path[256];

static void catch_stderr(void)
{
	fflush(stderr);
	snprintf(stderr_path, sizeof stderr_path, "%s/stderr-%d", scratch, (int)getpid());
	saved_stderr = dup(STDERR_FILENO);
	int fd = open(stderr_path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	CHECK(fd >= 0 && dup2(fd, STDERR_FILENO) >= 0);
	close(fd);
}

static int caught_warnings(void)
{
	char line[2048];
	int warnings = 0;

	fflush(stderr);
	dup2(saved_stderr, STDERR_FILENO);
	close(saved_stderr);
	FILE *file = fopen(stderr_path, "r");
	while (file && fgets(line, sizeof line, file)) {
		/* What the check macros said while standard error was away. */
		if (!strstr(line, "step records: "))
			fputs(line, stderr);
		warnings += strstr(line, "warning: step records: ") != NULL;
	}
	if (file)
		fclose(file);
	unlink(stderr_path);
	return warnings;
}

static void add_steps(struct train_records *records, uint64_t first, uint64_t count)
{
	for (uint64_t step = first; step < first + count; step++) {
		struct train_record record = record_of(step, 0, 1000, 2000);
		train_records_add(records, &record);
	}
}

static void full_disk_keeps_then_drops_then_goes_on(void)
{
	const char *directory = directory_for("full");
	struct rlimit limit = {64 * 1024, RLIM_INFINITY};
	struct train_record_set set;

	/* A write beyond the limit gets EFBIG, and would kill a thread that did not block SIGXFSZ. */
	CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
	catch_stderr();
	struct train_records *records = start_alone(directory);
	add_steps(records, 0, 1000); /* 144 KB: does not fit the file, fits the memory */
	sleep_ms(2500);
	CHECK(train_records_dropped(records) == 0, "%llu dropped too early", (unsigned long long)train_records_dropped(records));
	add_steps(records, 1000, 20000);
	uint64_t dropped = train_records_dropped(records);
	CHECK(dropped > 10000 && dropped < 20000, "%llu dropped", (unsigned long long)dropped);
	limit.rlim_cur = RLIM_INFINITY;
	CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
	/* It looks again within a second; the deadline is for slow machines. */
	for (int i = 0; i < 200; i++) {
		sleep_ms(100);
		CHECK_OK(train_records_load(directory, &set));
		bool done = set.dropped == dropped;
		train_records_free(&set);
		if (done)
			break;
	}
	add_steps(records, 30000, 1);
	train_records_close(records);
	CHECK(caught_warnings() == 1);
	CHECK_OK(train_records_load(directory, &set));
	CHECK(set.count == 21001 - dropped && set.damaged == 0, "%zu records, %llu damaged", set.count, (unsigned long long)set.damaged);
	CHECK(set.dropped == dropped, "the file says %llu dropped, the writer %llu", (unsigned long long)set.dropped, (unsigned long long)dropped);
	CHECK(set.count && set.records[set.count - 1].step == 30000, "what comes after the gap is there");
	train_records_free(&set);
	empty_directory(directory);
}

static void full_file_system_stops_nothing(void)
{
	const char *directory = directory_for("tmpfs");
	struct train_record_set set;

	mkdir(directory, 0755);
	if (mount("tmpfs", directory, "tmpfs", 0, "size=64k") != 0)
		return; /* not root: the file size limit above does the same */
	catch_stderr();
	struct train_records *records = start_alone(directory);
	add_steps(records, 0, 5000);
	sleep_ms(1500);
	train_records_close(records);
	CHECK(caught_warnings() == 1);
	CHECK_OK(train_records_load(directory, &set));
	CHECK(set.count > 0 && set.count < 1000, "%zu records on a full disk", set.count);
	train_records_free(&set);
	CHECK(umount(directory) == 0);
}

/* A FIFO that nobody reads stands for storage that hangs. */
static void hung_storage_stops_nothing(void)
{
	const char *directory = directory_for("hung");
	char path[512];

	mkdir(directory, 0755);
	snprintf(path, sizeof path, "%s/steps-7.0.0-node1.rec", directory);
	CHECK(mkfifo(path, 0600) == 0);
	int reader = open(path, O_RDWR | O_CLOEXEC);
	CHECK(reader >= 0);
	catch_stderr();
	struct train_records *records = start_alone(directory);
	int64_t longest = 0;
	for (uint64_t step = 0; step < 30000; step++) {
		int64_t before = st_thread_cpu_ns();
		add_steps(records, step, 1);
		int64_t took = st_thread_cpu_ns() - before;
		longest = took > longest ? took : longest;
		if (step % 5000 == 0)
			sleep_ms(200);
	}
	CHECK(longest < ST_NS_PER_S, "adding took %lld ns", (long long)longest);
	CHECK(train_records_dropped(records) > 1000, "%llu dropped", (unsigned long long)train_records_dropped(records));
	int64_t before = st_now_ns();
	train_records_close(records);
	CHECK(st_now_ns() - before < 10 * ST_NS_PER_S, "close waits for storage that hangs");
	CHECK(caught_warnings() == 1);
	/* The reader stays open until the process ends: the thread is still in its write. */
}

static void unusable_directory_stops_nothing(void)
{
	const char *directory = directory_for("file");
	int fd = open(directory, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

	close(fd);
	catch_stderr();
	struct train_records *records = start_alone(directory);
	add_steps(records, 0, 10000);
	sleep_ms(2500);
	CHECK(train_records_dropped(records) > 0);
	train_records_close(records);
	CHECK(caught_warnings() == 1);
}

static void vanished_directory_stops_nothing(void)
{
	const char *directory = directory_for("vanishes");

	catch_stderr();
	struct train_records *records = start_alone(directory);
	add_steps(records, 0, 10);
	sleep_ms(1500);
	empty_directory(directory);
	add_steps(records, 10, 10);
	sleep_ms(2500);
	CHECK(access(directory, F_OK) != 0, "a directory that was removed comes back");
	train_records_close(records);
	CHECK(caught_warnings() == 1);
}

static void removed_file_begins_anew(void)
{
	const char *directory = directory_for("removed");
	struct train_record_set set;
	char path[512];

	struct train_records *records = start_alone(directory);
	add_steps(records, 0, 10);
	sleep_ms(1500);
	snprintf(path, sizeof path, "%s/steps-7.0.0-node1.rec", directory);
	CHECK(unlink(path) == 0);
	add_steps(records, 10, 10);
	train_records_close(records);
	CHECK_OK(train_records_load(directory, &set));
	CHECK(set.count == 10 && set.damaged == 0 && set.records[0].step == 10, "%zu records", set.count);
	train_records_free(&set);
	empty_directory(directory);
}

static void symbolic_link_is_not_followed(void)
{
	const char *directory = directory_for("link");
	char path[512], target[512];
	struct stat info;

	mkdir(directory, 0755);
	snprintf(target, sizeof target, "%s/precious", directory);
	snprintf(path, sizeof path, "%s/steps-7.0.0-node1.rec", directory);
	int fd = open(target, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	close(fd);
	CHECK(symlink(target, path) == 0);
	catch_stderr();
	struct train_records *records = start_alone(directory);
	add_steps(records, 0, 10);
	sleep_ms(1200);
	train_records_close(records);
	CHECK(caught_warnings() == 1);
	CHECK(stat(target, &info) == 0 && info.st_size == 0, "the link's target was written");
	empty_directory(directory);
}

/* ---- the socket ---- */

static void send_forged(const char *name, uint64_t launch, uint32_t rank, size_t count, size_t bytes_off)
{
	struct {
		struct records_datagram header;
		struct train_record records[RECORDS_DATAGRAM_MAX + 1];
	} message = {.header = {.launch = launch, .rank = rank, .count = (uint16_t)count}};
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	for (size_t i = 0; i < count; i++)
		message.records[i] = record_of(1000 + i, rank, 1, 2);
	memcpy(address.sun_path + 1, name, strlen(name));
	sendto(fd, &message, sizeof message.header + count * sizeof message.records[0] - bytes_off, 0, (struct sockaddr *)&address,
	       (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name)));
	close(fd);
}

static void strangers_are_not_heard(void)
{
	const char *directory = directory_for("strangers");
	struct records_setup setup = setup_of(0, 4, two_hosts, directory);
	char name[RECORDS_SOCKET_BYTES];
	struct train_records *records = NULL;
	struct train_record_set set;

	CHECK_OK(train_records_prepare(&setup, name, &records));
	CHECK(strlen(name) > 32);
	train_records_start(records, name);
	send_forged(name, 78, 2, 3, 0);                        /* another launch */
	send_forged(name, 77, 1, 3, 0);                        /* a rank of another node */
	send_forged(name, 77, 0, 3, 0);                        /* the writer itself */
	send_forged(name, 77, 2, 3, 1);                        /* too short for its count */
	send_forged(name, 77, 2, RECORDS_DATAGRAM_MAX + 1, 0); /* too many */
	send_forged(name, 77, 2, 0, 8);                        /* not even a header */
	if (getuid() == 0) {
		pid_t pid = fork();
		if (pid == 0) {
			if (setuid(65534) == 0)
				send_forged(name, 77, 2, 3, 0); /* another user */
			_exit(0);
		}
		waitpid(pid, NULL, 0);
	}
	send_forged(name, 77, 2, 2, 0); /* this one is right */
	sleep_ms(300);
	train_records_close(records);
	CHECK_OK(train_records_load(directory, &set));
	CHECK(set.count == 2 && set.damaged == 0, "%zu records", set.count);
	for (size_t i = 0; i < set.count; i++)
		CHECK(set.records[i].rank == 2 && set.records[i].step == 1000 + i);
	train_records_free(&set);
	empty_directory(directory);
}

static void rank_goes_on_when_its_writer_is_gone(void)
{
	const char *directory = directory_for("gone");
	struct records_setup setup = setup_of(0, 2, one_host, directory), other = setup_of(1, 2, one_host, directory);
	char name[RECORDS_SOCKET_BYTES], none[RECORDS_SOCKET_BYTES];
	struct train_records *writer = NULL, *records = NULL;

	CHECK_OK(train_records_prepare(&setup, name, &writer));
	CHECK_OK(train_records_prepare(&other, none, &records));
	CHECK(!*none, "a rank that does not write has a socket");
	train_records_start(writer, name);
	train_records_start(records, name);
	int64_t before = st_now_ns();
	train_records_close(writer); /* waits for rank 1's last words, but not for long */
	CHECK(st_now_ns() - before < 10 * ST_NS_PER_S);
	add_steps(records, 0, 100);
	before = st_now_ns();
	train_records_close(records);
	CHECK(st_now_ns() - before < 10 * ST_NS_PER_S);
	empty_directory(directory);
}

/* ---- over a communicator: ranks as threads, a communicator that knows only what records need ---- */

struct comm {
	uint32_t rank, size;
	const char *const *hosts;
	struct meeting {
		pthread_barrier_t barrier;
		uint8_t bytes[4][256];
	} *meeting;
};

uint32_t comm_rank(const struct comm *comm)
{
	return comm->rank;
}
uint32_t comm_size(const struct comm *comm)
{
	return comm->size;
}
const char *comm_host(const struct comm *comm, uint32_t rank)
{
	return comm->hosts[rank];
}
const char *comm_job(const struct comm *comm)
{
	(void)comm;
	return "5.1.0";
}
enum st_status comm_collect(struct comm *comm, const void *mine, size_t bytes, void *all)
{
	memcpy(comm->meeting->bytes[comm->rank], mine, bytes);
	pthread_barrier_wait(&comm->meeting->barrier);
	for (uint32_t r = 0; r < comm->size; r++)
		memcpy((uint8_t *)all + r * bytes, comm->meeting->bytes[r], bytes);
	pthread_barrier_wait(&comm->meeting->barrier);
	return ST_OK;
}
enum st_status comm_decide(struct comm *comm, void *data, size_t bytes)
{
	uint8_t all[4 * 256];

	ST_TRY(comm_collect(comm, data, bytes, all));
	memcpy(data, all, bytes);
	return ST_OK;
}

static void *rank_thread(void *argument)
{
	struct comm *comm = argument;
	struct train_records *records = NULL;

	CHECK_OK(train_records_open(comm, directory_for("comm"), NULL, &records));
	add_steps(records, 0, 50);
	CHECK(train_records_dropped(records) == 0);
	train_records_close(records);
	return NULL;
}

static void ranks_agree_over_a_communicator(void)
{
	struct meeting meeting;
	struct comm comms[4];
	pthread_t threads[4];
	struct train_record_set set;
	const char *directory = directory_for("comm");

	pthread_barrier_init(&meeting.barrier, NULL, 4);
	for (uint32_t r = 0; r < 4; r++) {
		comms[r] = (struct comm){r, 4, two_hosts, &meeting};
		CHECK(pthread_create(&threads[r], NULL, rank_thread, &comms[r]) == 0);
	}
	for (uint32_t r = 0; r < 4; r++)
		pthread_join(threads[r], NULL);
	pthread_barrier_destroy(&meeting.barrier);
	CHECK_OK(train_records_load(directory, &set));
	CHECK(set.count == 200 && set.files == 2 && set.launch_count == 1, "%zu records, %zu files, %zu launches", set.count, set.files,
	      set.launch_count);
	CHECK(!strcmp(set.job, "5.1.0") && set.launches[0].id && set.launches[0].wall_ns > 0);
	train_records_free(&set);
	empty_directory(directory);
}

int main(void)
{
	/* A narrower mask than the default shows that the mode asked for is subject to it. */
	umask(077);
	if (!mkdtemp(scratch))
		return 1;
	test_every_record_of_every_rank_arrives(one_host, 1);
	test_every_record_of_every_rank_arrives(two_hosts, 2);
	in_processes((struct process_case[]){
		{.what = "signals", .run = thread_blocks_signals},
		{.what = "killed", .run = killed_rank_leaves_what_is_older_than_a_second},
		{.what = "torn", .run = next_session_survives_a_torn_one},
		{.what = "full", .run = full_disk_keeps_then_drops_then_goes_on},
		{.what = "tmpfs", .run = full_file_system_stops_nothing},
		{.what = "hung", .run = hung_storage_stops_nothing},
		{.what = "unusable", .run = unusable_directory_stops_nothing},
		{.what = "vanished", .run = vanished_directory_stops_nothing},
		{.what = "removed", .run = removed_file_begins_anew},
		{.what = "link", .run = symbolic_link_is_not_followed},
		{.what = "strangers", .run = strangers_are_not_heard},
		{.what = "gone", .run = rank_goes_on_when_its_writer_is_gone},
		{.what = "comm", .run = ranks_agree_over_a_communicator},
		{0},
	});
	empty_directory(scratch);
	return check_result();
}
