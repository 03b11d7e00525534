#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "launcher.h"

#define PREFIX "synctrain-run-"
#define MAX_GROUPS 8192
#define STALE_AFTER_S 60

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *walk)
{
	(void)info;
	(void)type;
	(void)walk;
	remove(path);
	return 0;
}

static void remove_tree(const char *directory)
{
	/* Physical: a symbolic link in it is removed, not followed. */
	nftw(directory, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

/* A lock file that its launcher held and the kernel let go of: that launcher is dead, and its guard too. */
static bool is_stale(const char *directory)
{
	struct stat info;
	bool stale = false;
	int at = open(directory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (at < 0)
		return false;
	/* A new directory's launcher may not have come to its lock yet, hence the age. */
	if (fstat(at, &info) == 0 && info.st_uid == geteuid() && !(info.st_mode & 077) && time(NULL) - info.st_mtime >= STALE_AFTER_S) {
		int lock = openat(at, "lock", O_RDWR | O_CLOEXEC | O_NOFOLLOW);
		stale = lock < 0 ? errno == ENOENT : flock(lock, LOCK_EX | LOCK_NB) == 0;
		if (lock >= 0)
			close(lock);
	}
	close(at);
	return stale;
}

static void remove_stale(const char *parent)
{
	DIR *list = opendir(parent);
	struct dirent *entry;

	while (list && (entry = readdir(list))) {
		char path[512];
		if (strncmp(entry->d_name, PREFIX, strlen(PREFIX)))
			continue;
		if ((size_t)snprintf(path, sizeof path, "%s/%s", parent, entry->d_name) < sizeof path && is_stale(path))
			remove_tree(path);
	}
	if (list)
		closedir(list);
}

static enum st_status make_directory(struct launcher_guard *guard)
{
	const char *parent = getenv("TMPDIR");
	char path[sizeof guard->directory + 8];

	if (!parent || !*parent)
		parent = "/tmp";
	remove_stale(parent);
	if ((size_t)snprintf(guard->directory, sizeof guard->directory, "%s/" PREFIX "XXXXXX", parent) >= sizeof guard->directory) {
		guard->directory[0] = 0;
		return st_fail(ST_ERR_CONFIG, "TMPDIR: seen a path of %zu bytes, expected at most %zu", strlen(parent),
			       sizeof guard->directory - 32);
	}
	if (!mkdtemp(guard->directory)) {
		enum st_status status = st_fail_errno("%s: can't make a session directory", parent);
		guard->directory[0] = 0;
		return status;
	}
	snprintf(path, sizeof path, "%s/lock", guard->directory);
	guard->directory_lock = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (guard->directory_lock < 0 || flock(guard->directory_lock, LOCK_EX | LOCK_NB) < 0)
		return st_fail_errno("%s: can't take the lock", path);
	return ST_OK;
}

/* The guard's whole life: learn of process groups until the launcher ends. */
static _Noreturn void guard_main(int fd, const char *directory)
{
	static int32_t groups[MAX_GROUPS];
	size_t count = 0;
	int32_t word;

	setsid(); /* a terminal's signals are not for it */
	prctl(PR_SET_NAME, "synctrain-guard");
	for (int signal_number = 1; signal_number < 32; signal_number++)
		signal(signal_number, SIG_IGN);
	/* Keeps no pipe of the launcher's output, nor its lock, open. */
	dup2(fd, 0);
	close_range(1, ~0u, 0);
	for (;;) {
		ssize_t n = read(0, &word, sizeof word);
		if (n < 0 && errno == EINTR)
			continue;
		if (n != sizeof word)
			break;
		if (word == 0)
			_exit(0);
		if (word > 0 && count < MAX_GROUPS) {
			groups[count++] = word;
		} else {
			for (size_t i = 0; i < count; i++)
				if (groups[i] == -word)
					groups[i--] = groups[--count];
		}
	}
	for (size_t i = 0; i < count; i++)
		kill(-groups[i], SIGKILL);
	remove_tree(directory);
	_exit(0);
}

enum st_status launcher_guard_start(struct launcher_guard *guard)
{
	int ends[2];

	*guard = (struct launcher_guard){.fd = -1, .directory_lock = -1};
	ST_TRY(make_directory(guard));
	if (pipe2(ends, O_CLOEXEC) < 0)
		return st_fail_errno("can't make a pipe");
	fflush(NULL);
	guard->pid = fork();
	if (guard->pid == 0) {
		close(ends[1]);
		guard_main(ends[0], guard->directory);
	}
	close(ends[0]);
	guard->fd = ends[1];
	if (guard->pid < 0) {
		guard->pid = 0;
		return st_fail_errno("can't start a process");
	}
	return ST_OK;
}

static void tell(struct launcher_guard *guard, int32_t word)
{
	/* SIGPIPE is ignored by the launcher; a guard that was killed is only missed should the launcher be killed too. */
	if (write(guard->fd, &word, sizeof word) < 0)
		return;
}

void launcher_guard_add(struct launcher_guard *guard, pid_t group)
{
	tell(guard, (int32_t)group);
}

void launcher_guard_remove(struct launcher_guard *guard, pid_t group)
{
	tell(guard, -(int32_t)group);
}

void launcher_guard_end(struct launcher_guard *guard)
{
	if (guard->directory[0])
		remove_tree(guard->directory);
	if (guard->fd >= 0) {
		tell(guard, 0);
		close(guard->fd);
	}
	if (guard->pid > 0)
		while (waitpid(guard->pid, NULL, 0) < 0 && errno == EINTR)
			;
	if (guard->directory_lock >= 0)
		close(guard->directory_lock);
}
