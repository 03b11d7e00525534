/* Where flight recorders lie: a directory that nobody else can have prepared, a file that was not there before, and few of earlier jobs. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/io.h"
#include "recorder.h"

#define KEEP_FILES 512
#define LIST_FILES 65536              /* in one look; the rest has its turn at the next start */
#define SAME_NAMES 9
#define UNFINISHED_S 60               /* a file without a header may be about to get one */
#define FOREIGN_S (7 * 24 * 3600)     /* of another machine or container: nobody here can say whether its process lives */

bool recorder_directory_name(char *path, size_t bytes)
{
	const char *given = getenv("SYNCTRAIN_RECORDER"), *parent = getenv("TMPDIR");
	int length;

	if (given && !strcmp(given, "off"))
		return false;
	if (given && *given)
		length = snprintf(path, bytes, "%s", given);
	else
		length = snprintf(path, bytes, "%s/synctrain-recorder-%lu", parent && *parent ? parent : "/tmp", (unsigned long)geteuid());
	return length > 0 && (size_t)length < bytes;
}

void recorder_job_name(const char *job, char name[RECORDER_JOB_NAME_BYTES])
{
	size_t length = 0;

	for (; job[length] && length < RECORDER_JOB_NAME_BYTES - 1; length++) {
		char c = job[length];
		bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || (c == '.' && length) || c == '_' || c == '-';
		name[length] = plain ? c : '_';
	}
	name[length] = 0;
	if (!length)
		strcpy(name, "unnamed");
}

bool recorder_process(uint64_t pid, uint64_t *start_ticks, char *state)
{
	char path[64], text[1024], *end;
	unsigned long long ticks;
	ssize_t bytes = -1;

	snprintf(path, sizeof path, "/proc/%" PRIu64 "/stat", pid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	bytes = read(fd, text, sizeof text - 1);
	close(fd);
	if (bytes <= 0)
		return false;
	text[bytes] = 0;
	/* The name in parentheses may hold anything, also spaces and parentheses. */
	end = strrchr(text, ')');
	if (!end || sscanf(end + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", state, &ticks) != 2)
		return false;
	*start_ticks = ticks;
	return true;
}

void recorder_here(char boot[40], uint64_t *pid_namespace)
{
	struct stat info;
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	ssize_t bytes = fd < 0 ? -1 : read(fd, boot, 36);

	if (fd >= 0)
		close(fd);
	memset(boot + (bytes == 36 ? 36 : 0), 0, bytes == 36 ? 4 : 40);
	*pid_namespace = stat("/proc/self/ns/pid", &info) < 0 ? 0 : (uint64_t)info.st_ino;
}

void recorder_remove(const struct recorder_place *place)
{
	char path[sizeof place->directory + sizeof place->name];

	snprintf(path, sizeof path, "%s/%s", place->directory, place->name);
	unlink(path);
	/* Other files are in the way, mostly. */
	if (place->own_directory)
		rmdir(place->directory);
}

/* The default place: a name in a directory where anybody may put anything. */
static enum st_status open_private(const char *path, int *fd)
{
	struct stat info;

	if (mkdir(path, 0700) < 0 && errno != EEXIST)
		return st_fail_errno("%s: can't make directory", path);
	*fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (*fd < 0) {
		bool gone = errno == ENOENT;
		st_fail_errno("%s: can't open as a directory of this user's own", path);
		return gone ? ST_ERR_NOINPUT : ST_ERR_PERMISSION;
	}
	if (fstat(*fd, &info) < 0)
		return st_fail_errno("%s: can't stat", path);
	if (info.st_uid != geteuid() || info.st_mode & 077)
		return st_fail(ST_ERR_PERMISSION, "%s: seen owner %lu and mode %03o, expected owner %lu and mode 700", path, (unsigned long)info.st_uid,
			       info.st_mode & 0777, (unsigned long)geteuid());
	return ST_OK;
}

static enum st_status open_directory(char path[4096], int *fd)
{
	const char *given = getenv("SYNCTRAIN_RECORDER");
	char absolute[4096];

	*fd = -1;
	if (given && !strcmp(given, "off"))
		return ST_PENDING;
	if (!recorder_directory_name(path, 4096))
		return st_fail(ST_ERR_CONFIG, "SYNCTRAIN_RECORDER or TMPDIR: a path of more than 4095 bytes");
	if (given && *given) {
		ST_TRY(st_make_directories(path, 0700));
		*fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (*fd < 0)
			return st_fail_errno("%s: can't open directory", path);
	} else {
		ST_TRY(open_private(path, fd));
	}
	/* The process may change its working directory before it ends. */
	if (!realpath(path, absolute)) {
		bool gone = errno == ENOENT;
		st_fail_errno("%s: can't resolve", path);
		return gone ? ST_ERR_NOINPUT : ST_ERR_SYSTEM;
	}
	strcpy(path, absolute);
	return ST_OK;
}

/* Whether a file of this user's is of a process that has ended. Doubt counts as no. */
static bool is_over(int directory, const char *name)
{
	struct recorder_header header;
	struct stat info;
	struct timespec now;
	char boot[40], state;
	uint64_t pid_namespace, start_ticks;
	int fd = openat(directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);

	if (fd < 0)
		return false;
	bool own = fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == geteuid();
	ssize_t bytes = own ? pread(fd, &header, sizeof header, 0) : -1;
	close(fd);
	if (!own)
		return false;
	clock_gettime(CLOCK_REALTIME, &now);
	if (bytes != sizeof header || header.magic != RECORDER_MAGIC)
		return now.tv_sec - info.st_mtim.tv_sec > UNFINISHED_S;
	recorder_here(boot, &pid_namespace);
	header.boot[sizeof header.boot - 1] = 0;
	if (header.state == RECORDER_LEFT)
		return true;
	if (!boot[0] || strcmp(boot, header.boot) || !header.pid || !header.start_ticks || header.pid_namespace != pid_namespace)
		return now.tv_sec - info.st_mtim.tv_sec > FOREIGN_S;
	return !recorder_process(header.pid, &start_ticks, &state) || start_ticks != header.start_ticks || state == 'Z' || state == 'X';
}

struct old_file {
	struct timespec changed;
	char *name;
};

static int oldest_first(const void *a, const void *b)
{
	const struct old_file *x = a, *y = b;

	if (x->changed.tv_sec != y->changed.tv_sec)
		return x->changed.tv_sec < y->changed.tv_sec ? -1 : 1;
	return x->changed.tv_nsec < y->changed.tv_nsec ? -1 : x->changed.tv_nsec > y->changed.tv_nsec;
}

/* Removes the oldest of this user's files, of processes that have ended, until few are left. */
static void prune(int directory)
{
	int list_fd = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *list = list_fd < 0 ? NULL : fdopendir(list_fd);
	struct old_file *files = NULL;
	size_t count = 0, capacity = 0;
	struct dirent *entry;

	if (!list) {
		if (list_fd >= 0)
			close(list_fd);
		return;
	}
	while (count < LIST_FILES && (entry = readdir(list))) {
		size_t length = strlen(entry->d_name), suffix = strlen(RECORDER_SUFFIX);
		struct stat info;
		if (length <= suffix || strcmp(entry->d_name + length - suffix, RECORDER_SUFFIX))
			continue;
		if (fstatat(directory, entry->d_name, &info, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(info.st_mode) || info.st_uid != geteuid())
			continue;
		if (count == capacity) {
			size_t wanted = capacity ? 2 * capacity : 256;
			struct old_file *more = realloc(files, wanted * sizeof *files);
			if (!more)
				break;
			files = more;
			capacity = wanted;
		}
		files[count] = (struct old_file){.changed = info.st_mtim, .name = strdup(entry->d_name)};
		if (!files[count].name)
			break;
		count++;
	}
	closedir(list);
	if (count > KEEP_FILES)
		qsort(files, count, sizeof *files, oldest_first);
	for (size_t i = 0, left = count; i < count && left > KEEP_FILES; i++)
		if (is_over(directory, files[i].name) && unlinkat(directory, files[i].name, 0) == 0)
			left--;
	for (size_t i = 0; i < count; i++)
		free(files[i].name);
	free(files);
}

/* ST_ERR_NOINPUT: the directory went, with the last file of another job. */
static enum st_status create(const struct recorder_options *options, struct recorder_place *place)
{
	const char *given = getenv("SYNCTRAIN_RECORDER");
	char job[RECORDER_JOB_NAME_BYTES], number[16] = "";
	int directory;
	enum st_status status = open_directory(place->directory, &directory);

	place->fd = -1;
	place->own_directory = !given || !*given;
	if (status != ST_OK)
		goto close_directory;
	if (options->prunes)
		prune(directory);
	recorder_job_name(options->job, job);
	for (unsigned same = 1; place->fd < 0 && same <= SAME_NAMES; same++) {
		if (same > 1)
			snprintf(number, sizeof number, ".%u", same);
		snprintf(place->name, sizeof place->name, "%s.%" PRIx64 ".%" PRIu32 "%s" RECORDER_SUFFIX, job, options->context, options->rank, number);
		for (int again = 0; place->fd < 0 && again < 2; again++) {
			place->fd = openat(directory, place->name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY, 0600);
			if (place->fd >= 0)
				break;
			if (errno != EEXIST) {
				bool gone = errno == ENOENT;
				status = st_fail_errno("%s/%s: can't create", place->directory, place->name);
				status = gone ? ST_ERR_NOINPUT : status;
				goto close_directory;
			}
			/* A file of this name is left from an earlier launch, or in use, or somebody else's. */
			if (!is_over(directory, place->name) || unlinkat(directory, place->name, 0) < 0)
				break;
		}
	}
	if (place->fd < 0)
		status = st_fail(ST_ERR_UNAVAILABLE, "%s/%s: this name and %u like it are taken", place->directory, place->name, SAME_NAMES - 1);
close_directory:
	if (directory >= 0)
		close(directory);
	return status;
}

enum st_status recorder_create(const struct recorder_options *options, struct recorder_place *place)
{
	enum st_status status = ST_ERR_NOINPUT;

	for (int attempt = 0; status == ST_ERR_NOINPUT && attempt < 8; attempt++)
		status = create(options, place);
	return status;
}
