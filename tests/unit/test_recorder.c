/*
 * Flight recorders: what is written is read back; a writer that is stopped after any of its instructions, or killed at any moment, leaves nothing that is taken
 * for something else; files of all kinds of garbage harm no reader; directories that are somebody else's, full or crowded cost nothing but
 * the recorder.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include "check.h"
#include "common/clock.h"
#include "libcomm/comm.h"
#include "libcomm/plan.h"
#include "libcomm/recorder.h"
#include "libcomm/transport.h"
#include "temporary.h"
#include "trainer/hang.h"

static struct plan_channel channel = {.peer = 2, .outgoing = true, .index = 5};
static struct plan_step steps[] = {{.kind = PLAN_PUT}, {.kind = PLAN_WAIT}};
static const struct plan plan = {.collective = PLAN_ALLREDUCE, .algorithm = 1, .step_count = 2, .steps = steps, .channels = &channel, .channel_count = 1};

static char directory[256];

static void use(const char *name)
{
	snprintf(directory, sizeof directory, "%s/%s", temporary_directory, name);
	setenv("SYNCTRAIN_RECORDER", directory, 1);
}

static struct recorder *open_recorder(uint32_t rank, uint64_t context)
{
	const struct recorder_options options = {.job = "job.1", .host = "n1", .context = context, .rank = rank, .size = 4, .world_rank = rank, .world_size = 4,
						 .stall_timeout_ms = 5000, .arrival_timeout_ms = 60000, .prunes = rank == 0};
	return recorder_open(&options);
}

/* All of an operation's fields follow from its number. */
static uint64_t mixed(uint64_t sequence)
{
	return (sequence + 1) * UINT64_C(0x9e3779b97f4a7c15);
}

static struct transport_signature signature_of(uint64_t sequence)
{
	const uint64_t m = mixed(sequence);
	return (struct transport_signature){.sequence = sequence, .count = m, .root = (uint32_t)(m >> 7), .collective = (uint8_t)(m >> 40 & 3),
					    .type = (uint8_t)(m >> 44) % COMM_TYPES, .op = (uint8_t)(m >> 50) % COMM_OPS, .fused = (uint8_t)(m >> 24)};
}

static void operate(struct recorder *recorder, uint64_t sequence)
{
	const struct transport_signature signature = signature_of(sequence);
	recorder_issue(recorder, &signature, &plan, sequence & 1);
	recorder_enter(recorder);
	recorder_start(recorder, &signature, &plan, sequence & 1);
	channel.peer = (uint32_t)(sequence % 4);
	recorder_wait(recorder, sequence, &plan, 0, sequence * 3, st_now_ns());
	recorder_moved(recorder, sequence);
	recorder_wait(recorder, sequence, &plan, 1, sequence * 5, st_now_ns());
	recorder_finish(recorder, sequence, true);
	recorder_leave(recorder, true);
}

static bool load(const char *path, struct hang_set *set)
{
	char *paths[] = {(char *)path};
	return hang_load(paths, 1, NULL, set) == ST_OK;
}

static const char *only_file(void)
{
	static char path[1024];
	DIR *list = opendir(directory);
	struct dirent *entry;
	path[0] = 0;
	while (list && (entry = readdir(list)))
		if (entry->d_name[0] != '.')
			snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
	if (list)
		closedir(list);
	return path;
}

static size_t count_files(void)
{
	DIR *list = opendir(directory);
	struct dirent *entry;
	size_t count = 0;
	while (list && (entry = readdir(list)))
		count += entry->d_name[0] != '.';
	if (list)
		closedir(list);
	return count;
}

/* Every entry that is read is one that was written, in a state that it had. */
static void check_entry(const struct recorder_entry *entry)
{
	const uint64_t sequence = entry->tag >> 1;
	const struct transport_signature s = signature_of(sequence);
	const uint64_t shape = (uint64_t)s.root << 32 | (uint64_t)s.fused << 24 | (uint64_t)s.collective << 16 | (uint64_t)s.type << 8 | s.op;
	CHECK(entry->count == s.count && entry->shape == shape && hang_lane(entry) == (sequence & 1) && entry->plan >> 32 == 2,
	      "operation %ju: count %jx, shape %jx, plan %jx", (uintmax_t)sequence, (uintmax_t)entry->count, (uintmax_t)entry->shape, (uintmax_t)entry->plan);
	CHECK(entry->issued_ns > 0 && (hang_state(entry) >= RECORDER_STARTED) <= (entry->started_ns >= entry->issued_ns) &&
		      (hang_state(entry) >= RECORDER_DONE) <= (entry->finished_ns >= entry->started_ns && entry->finished_ns > 0),
	      "operation %ju in state %d: %jd %jd %jd", (uintmax_t)sequence, (int)hang_state(entry), (intmax_t)entry->issued_ns, (intmax_t)entry->started_ns,
	      (intmax_t)entry->finished_ns);
	if (!entry->wait)
		return;
	const bool first = (entry->wait & 0x7f) == RECORDER_WAIT_GRANT;
	CHECK(hang_peer(entry) == sequence % 4 && (first || (entry->wait & 0x7f) == RECORDER_WAIT_DATA) && (entry->wait >> 8 & 0xffff) == 5 &&
		      entry->wait_step == !first && entry->moves == sequence * (first ? 3 : 5) && entry->wait_since_ns > 0,
	      "operation %ju waits %jx at step %ju after %ju", (uintmax_t)sequence, (uintmax_t)entry->wait, (uintmax_t)entry->wait_step,
	      (uintmax_t)entry->moves);
}

static void test_round_trip(void)
{
	struct hang_set set;
	use("round-trip");
	struct recorder *recorder = open_recorder(1, 0);
	REQUIRE(recorder);
	for (uint64_t sequence = 1; sequence <= 1000; sequence++)
		operate(recorder, sequence);
	REQUIRE(load(directory, &set));
	CHECK(set.count == 1 && set.files[0]->count == RECORDER_ENTRIES && !set.files[0]->torn && set.files[0]->entered == 1000 && !set.notes, "%s", set.notes);
	const struct recorder_header *header = &set.files[0]->header;
	CHECK(!strcmp(header->job, "job.1") && !strcmp(header->host, "n1") && header->world_rank == 1 && header->size == 4 && header->pid == (uint64_t)getpid() &&
		      header->arrival_timeout_ms == 60000 && !header->waiting && set.files[0]->process == HANG_PROCESS_ALIVE,
	      "job %s, host %s", header->job, header->host);
	for (size_t i = 0; i < set.files[0]->count; i++) {
		CHECK(set.files[0]->entries[i].tag >> 1 == 1000 - RECORDER_ENTRIES + 1 + i && hang_state(&set.files[0]->entries[i]) == RECORDER_DONE, " ");
		check_entry(&set.files[0]->entries[i]);
	}
	hang_free(&set);
	CHECK(!recorder_close(recorder) && count_files() == 0, "%zu files", count_files());

	/* One that has not ended keeps its place, however many follow in another lane. */
	recorder = open_recorder(1, 0);
	const struct transport_signature slow = signature_of(1001), fast = signature_of(1001 + RECORDER_ENTRIES);
	recorder_issue(recorder, &slow, &plan, 1);
	recorder_start(recorder, &slow, &plan, 1);
	recorder_issue(recorder, &fast, &plan, 1);
	REQUIRE(load(directory, &set));
	CHECK(set.files[0]->count == 1 && hang_entry(set.files[0], 1001) && set.files[0]->header.skipped == 1 && set.notes, " ");
	hang_free(&set);
	recorder_finish(recorder, 1001, true);
	recorder_start(recorder, &fast, &plan, 1);
	REQUIRE(load(directory, &set));
	CHECK(hang_entry(set.files[0], 1001 + RECORDER_ENTRIES) && !hang_entry(set.files[0], 1001), " ");
	hang_free(&set);
	/* After a failure it stays, and where the rank was stays with it. */
	recorder_enter(recorder);
	recorder_fail(recorder, "rank 3 on n2\ndied\x1b[31m");
	recorder_fail(recorder, "another");
	recorder_leave(recorder, true);
	CHECK(recorder_close(recorder), " ");
	REQUIRE(load(directory, &set));
	CHECK(set.files[0]->header.state == RECORDER_FAILED && !strcmp(set.files[0]->header.verdict, "rank 3 on n2?died?[31m") && set.files[0]->header.waiting == 1,
	      "'%s'", set.files[0]->header.verdict);
	hang_free(&set);
}

/*
 * Copies that were made while the writer went on: words from the front as they were at one moment, the rest as of a later one, and the other way
 * round.  What passes for whole has the identity of one operation.
 */
static void check_copies(const char *path, const struct recorder_entry *moments, size_t count, size_t index)
{
	static char copy[RECORDER_FILE_BYTES];
	const char *made = temporary_path("copy.flight");
	const size_t words = sizeof *moments / 8;
	unsigned whole = 0, torn = 0;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	REQUIRE(fd >= 0 && read(fd, copy, sizeof copy) == (ssize_t)sizeof copy);
	close(fd);
	memset(copy + sizeof(struct recorder_header), 0, sizeof copy - sizeof(struct recorder_header));
	fd = open(made, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	REQUIRE(fd >= 0 && write(fd, copy, sizeof copy) == (ssize_t)sizeof copy);
	for (size_t i = 0; i < count; i++)
		for (size_t k = i + 1; k < count; k++)
			for (size_t cut = 1; cut < 2 * words; cut++) {
				struct recorder_entry mixed_entry = moments[cut < words ? k : i];
				memcpy(&mixed_entry, &moments[cut < words ? i : k], cut % words * 8);
				if (cut == words)
					continue;
				REQUIRE(pwrite(fd, &mixed_entry, sizeof mixed_entry, (off_t)(sizeof(struct recorder_header) + index * sizeof mixed_entry)) ==
					(ssize_t)sizeof mixed_entry);
				struct hang_set set;
				REQUIRE(load(made, &set));
				for (size_t e = 0; e < set.files[0]->count; e++)
					check_entry(&set.files[0]->entries[e]);
				whole += set.files[0]->count == 1;
				torn += set.files[0]->torn == 1;
				hang_free(&set);
			}
	printf("%zu moments of an entry: of copies made between two, %u are whole and %u torn\n", count, whole, torn);
	CHECK(whole && torn, " ");
	close(fd);
	unlink(made);
}

/* The writer goes on instruction by instruction, and after each one that changed the file its reader finds whole truths or nothing. */
static void test_every_store(void)
{
	enum { NEW = RECORDER_ENTRIES + 7, OLD = 7 };
	int status;
	use("every-store");
	struct recorder *recorder = open_recorder(1, 0);
	REQUIRE(recorder);
	for (uint64_t sequence = 1; sequence < NEW; sequence++)
		operate(recorder, sequence);
	const char *path = only_file();
	const int fd = open(path, O_RDONLY | O_CLOEXEC);
	const char *now = mmap(NULL, RECORDER_FILE_BYTES, PROT_READ, MAP_SHARED, fd, 0);
	char *before = malloc(RECORDER_FILE_BYTES);
	REQUIRE(fd >= 0 && now != MAP_FAILED && before);
	memcpy(before, now, RECORDER_FILE_BYTES);
	fflush(NULL);
	const pid_t child = fork();
	REQUIRE(child >= 0);
	if (!child) {
		if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) < 0)
			_exit(77);
		raise(SIGSTOP);
		operate(recorder, NEW);
		recorder_fail(recorder, "the verdict");
		raise(SIGSTOP);
		_exit(0);
	}
	REQUIRE(waitpid(child, &status, 0) == child);
	if (WIFEXITED(status)) {
		printf("no ptrace here: no look after every store\n");
	} else {
		static struct recorder_entry moments[200];
		const struct recorder_entry *entries = (const struct recorder_entry *)(now + sizeof(struct recorder_header));
		size_t moment_count = 1;
		moments[0] = entries[OLD];
		unsigned changes = 0, torn = 0, old = 0, states[4] = {0}, waits = 0, verdicts = 0;
		for (int first = 1;; first = 0) {
			if (ptrace(PTRACE_SINGLESTEP, child, NULL, NULL) < 0 || waitpid(child, &status, 0) != child || !WIFSTOPPED(status))
				break;
			if (!first && WSTOPSIG(status) == SIGSTOP)
				break;
			if (!memcmp(before, now, RECORDER_FILE_BYTES))
				continue;
			memcpy(before, now, RECORDER_FILE_BYTES);
			changes++;
			if (memcmp(&moments[moment_count - 1], &entries[OLD], sizeof *entries) && moment_count < 200)
				moments[moment_count++] = entries[OLD];
			struct hang_set set;
			REQUIRE(load(path, &set));
			const struct hang_file *file = set.files[0];
			for (size_t i = 0; i < file->count; i++)
				check_entry(&file->entries[i]);
			CHECK(file->count + file->torn == RECORDER_ENTRIES, "%zu whole, %zu torn", file->count, file->torn);
			const struct recorder_entry *entry = hang_entry(file, NEW);
			torn += file->torn > 0;
			old += hang_entry(file, OLD) != NULL;
			CHECK(file->torn + (hang_entry(file, OLD) != NULL) + (entry != NULL) == 1, " ");
			if (entry) {
				states[hang_state(entry)]++;
				waits += entry->wait != 0;
			}
			CHECK(file->header.state != RECORDER_FAILED || (!strcmp(file->header.verdict, "the verdict") && file->header.failed_ns), "'%s'",
			      file->header.verdict);
			verdicts += file->header.state == RECORDER_FAILED;
			hang_free(&set);
		}
		CHECK(changes >= 20 && torn >= 5 && states[RECORDER_ISSUED] && states[RECORDER_STARTED] >= 5 && states[RECORDER_DONE] && waits && verdicts,
		      "%u changes: %u torn, %u issued, %u started, %u done, %u waiting, %u with a verdict", changes, torn, states[0], states[1], states[2], waits,
		      verdicts);
		kill(child, SIGKILL);
		waitpid(child, &status, 0);
		check_copies(path, moments, moment_count, OLD);
	}
	munmap((void *)(uintptr_t)now, RECORDER_FILE_BYTES);
	close(fd);
	free(before);
	recorder_close(recorder);
}

static void test_killed(void)
{
	const unsigned kills = getenv("LONG") && *getenv("LONG") ? 2000 : 60;
	unsigned torn = 0;
	uint64_t most = 0;
	use("killed");
	for (unsigned k = 0; k < kills; k++) {
		struct hang_set set;
		struct recorder *recorder = open_recorder(1, 0);
		REQUIRE(recorder);
		fflush(NULL);
		const pid_t child = fork();
		if (!child)
			for (uint64_t sequence = 1;; sequence++)
				operate(recorder, sequence);
		/* While it writes, too. */
		for (int looks = 0; looks < 5; looks++) {
			usleep((unsigned)mixed(k * 5u + (unsigned)looks) % 500);
			REQUIRE(load(directory, &set));
			for (size_t i = 0; i < set.files[0]->count; i++)
				check_entry(&set.files[0]->entries[i]);
			hang_free(&set);
		}
		kill(child, SIGKILL);
		REQUIRE(waitpid(child, NULL, 0) == child);
		REQUIRE(load(directory, &set));
		const struct hang_file *file = set.files[0];
		CHECK(file->torn <= 1, "%zu torn", file->torn);
		torn += file->torn > 0;
		for (size_t i = 0; i < file->count; i++) {
			check_entry(&file->entries[i]);
			CHECK(hang_state(&file->entries[i]) == RECORDER_DONE || i + 1 == file->count, " ");
		}
		if (file->entered > most)
			most = file->entered;
		hang_free(&set);
		unlink(only_file());
		recorder_close(recorder);
	}
	printf("%u writers killed, %u while they wrote an entry; the longest did %ju operations\n", kills, torn, (uintmax_t)most);
	CHECK(most > RECORDER_ENTRIES, "%ju operations", (uintmax_t)most);
}

/* ---- hostile files ------------------------------------------------------------------------------------------------- */

static uint64_t draw(uint64_t *state, uint64_t limit)
{
	*state = *state * UINT64_C(6364136223846793005) + 1442695040888963407u;
	return (*state >> 33) % limit;
}

static void check_printed(const char *text, size_t width)
{
	size_t column = 0;
	for (const char *c = text; *c; c++) {
		column = *c == '\n' ? 0 : column + 1;
		if ((*c != '\n' && (*c < ' ' || *c > '~')) || column > width) {
			CHECK(false, "character %d in column %zu of %s", *c, column, text);
			return;
		}
	}
}

static void test_hostile(void)
{
	enum { FILES = 5 };
	static char good[FILES][RECORDER_FILE_BYTES], bad[RECORDER_FILE_BYTES + 64];
	const unsigned rounds = getenv("LONG") && *getenv("LONG") ? 100000 : 1200;
	uint64_t random = 20261201;
	unsigned used = 0, verdicts[4] = {0};
	char *paths[FILES];
	use("hostile");
	for (uint32_t f = 0; f < FILES; f++) {
		struct recorder *recorder = open_recorder(f % 4, f / 4);
		REQUIRE(recorder);
		for (uint64_t sequence = 1; sequence < 300; sequence++)
			operate(recorder, sequence);
		const struct transport_signature last = signature_of(300);
		channel.peer = (f + 1) % 4;
		recorder_enter(recorder);
		recorder_issue(recorder, &last, &plan, 0);
		recorder_start(recorder, &last, &plan, 0);
		if (f != 3)
			recorder_wait(recorder, 300, &plan, 1, 9, 0);
		if (f == 2)
			recorder_enter_decision(recorder);
		const int fd = open(only_file(), O_RDONLY | O_CLOEXEC);
		REQUIRE(read(fd, good[f], sizeof good[f]) == (ssize_t)sizeof good[f]);
		close(fd);
		unlink(only_file());
		recorder_close(recorder);
		paths[f] = strdup(temporary_path("hostile/0.flight"));
		paths[f][strlen(paths[f]) - 8] = (char)('0' + f);
	}
	for (unsigned round = 0; round < rounds; round++) {
		for (int f = 0; f < FILES; f++) {
			size_t bytes = sizeof good[f];
			memcpy(bad, good[f], bytes);
			for (uint64_t change = draw(&random, 12); change; change--) {
				/* Mostly in entries, often in the one that waits, else in what changes of the header, or in what does not. */
				const size_t words = !draw(&random, 4) ? sizeof(struct recorder_header) / 8 + 16 * (300 % RECORDER_ENTRIES) + draw(&random, 16)
						     : draw(&random, 3) ? sizeof(struct recorder_header) / 8 + draw(&random, 16 * RECORDER_ENTRIES)
								      : draw(&random, 3) ? 128 + draw(&random, 10) : draw(&random, 128);
				static const uint64_t values[] = {0, 1, 2, 3, 4, UINT64_MAX, INT64_MAX, (uint64_t)INT64_MIN, UINT32_MAX, 1ull << 63, 600, 601};
				uint64_t word = draw(&random, 2) ? values[draw(&random, 12)] : mixed(draw(&random, 1 << 30));
				if (draw(&random, 3) == 0) {
					memcpy(&word, bad + words * 8, 8);
					word ^= 1ull << draw(&random, 64);
				}
				memcpy(bad + words * 8, &word, 8);
				/* Of an entry both ends, so that it passes for whole. */
				if (words >= 512 && words % 16 == 0)
					memcpy(bad + (words + 7) * 8, &word, 8);
				if (words >= 512 && words % 16 == 8)
					memcpy(bad + (words + 5) * 8, &word, 8);
			}
			struct recorder_header header;
			memcpy(&header, bad, sizeof header);
			if (draw(&random, 4)) {
				header.magic = header.check = 0;
				header.check = XXH3_64bits(&header, offsetof(struct recorder_header, state));
				header.magic = RECORDER_MAGIC;
				memcpy(bad, &header, sizeof header);
			}
			if (!draw(&random, 8))
				bytes = draw(&random, 2) ? draw(&random, bytes + 1) : bytes + draw(&random, 64);
			const int fd = open(paths[f], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
			REQUIRE(fd >= 0 && write(fd, bad, bytes) == (ssize_t)bytes);
			close(fd);
		}
		struct hang_set set;
		struct hang_report report;
		if (hang_load(paths, 1 + draw(&random, FILES), NULL, &set) == ST_OK) {
			REQUIRE(hang_judge(&set, &report) == ST_OK);
			char *text = NULL;
			size_t bytes;
			FILE *out = open_memstream(&text, &bytes);
			CHECK(hang_print(&report, draw(&random, 2), out), " ");
			fclose(out);
			check_printed(text, 80);
			free(text);
			CHECK_OK(hang_json(&report, &text));
			check_printed(text, SIZE_MAX);
			free(text);
			used++;
			verdicts[report.verdict]++;
			hang_report_free(&report);
		}
		hang_free(&set);
	}
	printf("%u of %u sets of hostile files were used: nobody %u, culprit %u, mismatch %u, circle %u\n", used, rounds, verdicts[0], verdicts[1], verdicts[2],
	       verdicts[3]);
	CHECK(used > rounds / 2 && verdicts[HANG_CULPRIT] && verdicts[HANG_MISMATCH] && verdicts[HANG_CIRCLE], " ");
	for (int f = 0; f < FILES; f++)
		free(paths[f]);
}

/* ---- places -------------------------------------------------------------------------------------------------------- */

static void test_places(void)
{
	char path[512], link[512];
	use("places");
	setenv("SYNCTRAIN_RECORDER", "off", 1);
	CHECK(!open_recorder(0, 0), "off");
	/* The default directory: this user's own, no link, closed to others; and gone with its last file. */
	REQUIRE(mkdir(directory, 0700) == 0);
	setenv("TMPDIR", directory, 1);
	unsetenv("SYNCTRAIN_RECORDER");
	struct recorder *recorder = open_recorder(0, 0);
	REQUIRE(recorder);
	snprintf(path, sizeof path, "%s/synctrain-recorder-%u", directory, (unsigned)geteuid());
	struct stat info;
	CHECK(stat(path, &info) == 0 && (info.st_mode & 07777) == 0700, "%s", path);
	CHECK(!recorder_close(recorder) && stat(path, &info) < 0 && errno == ENOENT, "%s", path);
	REQUIRE(mkdir(path, 0755) == 0 && chmod(path, 0755) == 0);
	CHECK(!open_recorder(0, 0), "a directory that others may read");
	rmdir(path);
	snprintf(link, sizeof link, "%s/elsewhere", directory);
	REQUIRE(mkdir(link, 0700) == 0 && symlink(link, path) == 0);
	CHECK(!open_recorder(0, 0), "a link");
	unlink(path);
	rmdir(link);
	unsetenv("TMPDIR");

	/* A file in the way, and a link in the place of the file. */
	use("places/taken");
	REQUIRE(mkdir(directory, 0700) == 0);
	snprintf(path, sizeof path, "%s/job.1.0.0.flight", directory);
	snprintf(link, sizeof link, "%s/target", directory);
	REQUIRE(symlink(link, path) == 0);
	recorder = open_recorder(0, 0);
	REQUIRE(recorder);
	CHECK(stat(link, &info) < 0, "the link was followed");
	CHECK(!recorder_close(recorder) && lstat(path, &info) == 0 && S_ISLNK(info.st_mode), "the link is somebody else's");
	unlink(path);

	/* No room. */
	struct rlimit before, small = {4096, 4096};
	REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
	small.rlim_max = before.rlim_max;
	signal(SIGXFSZ, SIG_IGN);
	REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
	CHECK(!open_recorder(0, 0), "no room");
	REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);
	CHECK(count_files() == 0, "%zu files", count_files());

	/* Old files: the oldest go, but none of a process that lives, and none that is not a recorder's. */
	use("places/crowded");
	REQUIRE(mkdir(directory, 0700) == 0);
	recorder = open_recorder(1, 0);
	REQUIRE(recorder);
	for (int i = 0; i < 600; i++) {
		snprintf(path, sizeof path, "%s/old.0.%d.flight", directory, i);
		struct recorder_header header = {.magic = RECORDER_MAGIC, .state = RECORDER_LEFT};
		const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
		REQUIRE(fd >= 0 && write(fd, &header, sizeof header) == (ssize_t)sizeof header);
		const struct timespec times[2] = {{1000000 + i, 0}, {1000000 + i, 0}};
		REQUIRE(futimens(fd, times) == 0);
		close(fd);
	}
	const struct timespec ancient[2] = {{1, 0}, {1, 0}};
	snprintf(path, sizeof path, "%s/job.1.0.1.flight", directory);
	REQUIRE(utimensat(AT_FDCWD, path, ancient, 0) == 0);
	struct recorder *other = open_recorder(0, 0);
	REQUIRE(other);
	CHECK(stat(path, &info) == 0, "the file of a living process");
	snprintf(link, sizeof link, "%s/old.0.599.flight", directory);
	CHECK(stat(link, &info) == 0, "the newest");
	snprintf(link, sizeof link, "%s/old.0.0.flight", directory);
	CHECK(stat(link, &info) < 0, "the oldest");
	CHECK(count_files() == 513, "%zu files", count_files());
	recorder_close(other);
	recorder_close(recorder);
}

int main(void)
{
	temporary_make();
	test_round_trip();
	test_every_store();
	test_killed();
	test_hostile();
	test_places();
	return check_result();
}
