#include "profile_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_OUTPUT 8192

static int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* In the child, between fork and exec: async-signal-safe calls only. */
static _Noreturn void start(const char *program, const char *file, int out)
{
	static char *const environment[] = {"LC_ALL=C", NULL};
	char *const arguments[] = {"profile", "--", (char *)file, NULL};
	sigset_t none;
	int null = open("/dev/null", O_RDWR);

	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	if (null < 0 || dup2(null, 0) < 0 || dup2(out, 1) < 0 || dup2(null, 2) < 0)
		_exit(126);
	close_range(3, ~0u, 0);
	execve(program, arguments, environment);
	const char *reason = errno == ENOENT ? "error no such program\n" : errno == EACCES ? "error not executable\n" : "error can't start\n";
	if (write(1, reason, strlen(reason)) < 0)
		_exit(126);
	_exit(127);
}

/* Reads until end of file. False: past the deadline, too much, or an error. */
static bool read_all(int fd, char text[MAX_OUTPUT], const char **why)
{
	int64_t end = now_ms() + PROFILE_SECONDS * 1000;
	size_t used = 0;

	for (;;) {
		int64_t left = end - now_ms();
		struct pollfd wait = {fd, POLLIN, 0};
		int ready = left > 0 ? poll(&wait, 1, (int)left) : 0;
		if (ready < 0 && errno == EINTR)
			continue;
		*why = "no answer in time";
		if (ready == 0)
			return false;
		ssize_t n = ready < 0 ? -1 : read(fd, text + used, MAX_OUTPUT - 1 - used);
		if (n < 0 && errno == EINTR)
			continue;
		*why = "its answer can't be read";
		if (n < 0)
			return false;
		if (n == 0)
			break;
		used += (size_t)n;
		*why = "its answer is too long";
		if (used == MAX_OUTPUT - 1)
			return false;
	}
	text[used] = 0;
	*why = "its answer holds a NUL";
	return strlen(text) == used;
}

/* Lines "KEY=VALUE", then "end"; or one line "error TEXT". */
static bool understand(char *text, struct opt_layer *layer, char error[OPT_ERROR_BYTES])
{
	char *rest, *line = strtok_r(text, "\n", &rest);

	memset(layer, 0, sizeof *layer);
	for (; line; line = strtok_r(NULL, "\n", &rest)) {
		size_t length = strcspn(line, "=");
		enum opt_key key = opt_find(line, length);
		if (!strcmp(line, "end"))
			return !strtok_r(NULL, "\n", &rest);
		if (!strncmp(line, "error ", 6)) {
			opt_show(line + 6, error, OPT_ERROR_BYTES);
			return false;
		}
		if (!line[length] || key == OPT_COUNT || layer->given[key] ||
		    !opt_parse(key, line + length + 1, layer->value[key], error))
			break;
		layer->given[key] = true;
	}
	snprintf(error, OPT_ERROR_BYTES, "its answer is not understood");
	return false;
}

bool profile_read(const char *directory, const char *file, struct opt_layer *layer, char error[OPT_ERROR_BYTES])
{
	char program[OPT_PATH_BYTES + 16], text[MAX_OUTPUT], shown[128];
	const char *why;
	int fds[2];

	snprintf(program, sizeof program, "%s/profile", directory);
	snprintf(error, OPT_ERROR_BYTES, "the helper program can't be started");
	if (pipe2(fds, O_CLOEXEC) < 0)
		return false;
	pid_t child = fork();
	if (child == 0)
		start(program, file, fds[1]);
	close(fds[1]);
	if (child < 0) {
		close(fds[0]);
		return false;
	}
	bool complete = read_all(fds[0], text, &why);
	close(fds[0]);
	/* The answer is judged by its text; an exit status can get lost to whoever else waits for children in this process. */
	kill(child, SIGKILL);
	while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
		;
	if (!complete) {
		opt_show(program, shown, sizeof shown);
		snprintf(error, OPT_ERROR_BYTES, "%s: %s", shown, why);
		return false;
	}
	char reason[OPT_ERROR_BYTES];
	if (understand(text, layer, reason))
		return true;
	opt_show(file, shown, sizeof shown);
	/* The helper names the file itself; what else goes wrong with it names the helper. */
	if (!strncmp(reason, file, strlen(file))) {
		memcpy(error, reason, sizeof reason);
	} else {
		opt_show(program, shown, sizeof shown);
		snprintf(error, OPT_ERROR_BYTES, "%s: %.300s", shown, reason);
	}
	return false;
}
