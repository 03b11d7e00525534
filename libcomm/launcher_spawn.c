#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/io.h"
#include "launcher.h"

extern char **environ;

/* Blocks: rank r is on node r * nodes / size. */
uint32_t launcher_node_of(const struct launcher_layout *layout, uint32_t rank)
{
	return (uint32_t)((uint64_t)rank * layout->nodes / layout->size);
}

static uint32_t first_rank(const struct launcher_layout *layout, uint32_t node)
{
	return (uint32_t)(((uint64_t)node * layout->size + layout->nodes - 1) / layout->nodes);
}

uint32_t launcher_local_rank(const struct launcher_layout *layout, uint32_t rank)
{
	return rank - first_rank(layout, launcher_node_of(layout, rank));
}

uint32_t launcher_local_size(const struct launcher_layout *layout, uint32_t node)
{
	return first_rank(layout, node + 1) - first_rank(layout, node);
}

void launcher_node_name(const struct launcher_layout *layout, uint32_t node, char *name, size_t bytes)
{
	if (layout->nodes > 1) {
		snprintf(name, bytes, "node%u", node);
		return;
	}
	const char *slurm_node = getenv("SLURMD_NODENAME");
	if (slurm_node && *slurm_node)
		snprintf(name, bytes, "%s", slurm_node);
	else if (gethostname(name, bytes) < 0 || !*name)
		snprintf(name, bytes, "localhost");
	name[bytes - 1] = 0;
}

enum st_status launcher_find_program(const char *name, char *path, size_t bytes)
{
	const char *list = getenv("PATH"), *part = list ? list : "/usr/local/bin:/usr/bin:/bin";
	struct stat info;
	bool forbidden = false;

	if (!*name)
		return st_fail(ST_ERR_UNAVAILABLE, "'': no such program");
	if (strchr(name, '/')) {
		if ((size_t)snprintf(path, bytes, "%s", name) >= bytes)
			return st_fail(ST_ERR_UNAVAILABLE, "%.60s...: path too long", name);
		if (stat(path, &info) < 0)
			return st_fail(ST_ERR_UNAVAILABLE, "%s: %s", name, errno == ENOENT ? "no such program" : strerror(errno));
		if (!S_ISREG(info.st_mode) || access(path, X_OK) < 0)
			return st_fail(ST_ERR_PERMISSION, "%s: not an executable file", name);
		return ST_OK;
	}
	for (;;) {
		size_t length = strcspn(part, ":");
		/* An empty part of PATH is the current directory. */
		if ((size_t)snprintf(path, bytes, "%.*s%s%s", (int)length, part, length ? "/" : "./", name) < bytes && stat(path, &info) == 0 &&
		    S_ISREG(info.st_mode)) {
			if (access(path, X_OK) == 0)
				return ST_OK;
			forbidden = true;
		}
		if (!part[length])
			break;
		part += length + 1;
	}
	return forbidden ? st_fail(ST_ERR_PERMISSION, "%s: not an executable file", name) : st_fail(ST_ERR_UNAVAILABLE, "%s: no such program", name);
}

/* ---- environment --------------------------------------------------------------------------------------------------- */

static void free_environment(char **environment)
{
	for (char **e = environment; e && *e; e++)
		free(*e);
	free(environment);
}

static bool append(char ***environment, size_t *count, const char *text)
{
	char **larger = realloc(*environment, (*count + 2) * sizeof **environment);

	if (!larger)
		return false;
	*environment = larger;
	larger[*count] = strdup(text);
	larger[*count + 1] = NULL;
	return larger[(*count)++] != NULL;
}

static bool append_number(char ***environment, size_t *count, const char *name, unsigned value)
{
	char text[64];

	/* What the user set is the user's. */
	if (getenv(name))
		return true;
	snprintf(text, sizeof text, "%s=%u", name, value);
	return append(environment, count, text);
}

static unsigned threads_per_rank(const struct launcher_layout *layout)
{
	cpu_set_t set;
	unsigned cores = 1;

	if (sched_getaffinity(0, sizeof set, &set) == 0)
		cores = (unsigned)CPU_COUNT(&set);
	return cores / layout->size > 1 ? cores / layout->size : 1;
}

static enum st_status make_environment(const struct launcher_layout *layout, uint32_t rank, char ***out)
{
	char **environment = NULL;
	size_t count = 0;
	bool whole = true;

	for (char **e = environ; *e && whole; e++) {
		/* An outer launcher's PMIx server is not this job's; its parameters (PMIX_MCA_...) may stay. */
		if (!strncmp(*e, "PMIX_", 5) && strncmp(*e, "PMIX_MCA_", 9))
			continue;
		whole = append(&environment, &count, *e);
	}
	whole = whole && append_number(&environment, &count, "RANK", rank) &&
		append_number(&environment, &count, "LOCAL_RANK", launcher_local_rank(layout, rank)) &&
		append_number(&environment, &count, "WORLD_SIZE", layout->size) &&
		append_number(&environment, &count, "LOCAL_WORLD_SIZE", launcher_local_size(layout, launcher_node_of(layout, rank))) &&
		append_number(&environment, &count, "OMP_NUM_THREADS", threads_per_rank(layout));
	if (!whole) {
		free_environment(environment);
		return st_fail(ST_ERR_NOMEM, "no memory for the environment of rank %u", rank);
	}
	*out = environment;
	return ST_OK;
}

/* ---- fork ---------------------------------------------------------------------------------------------------------- */

/* In the child, after fork() of a process with threads: system calls only, no memory, no locks. */
static _Noreturn void become_rank(const char *path, char **argv, char **environment, pid_t launcher, int null_fd, int out, int err, int report)
{
	sigset_t none;
	int error;

	setpgid(0, 0);
	/* Ends with the launcher, however that ends; the check closes the gap before the call. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != launcher)
		_exit(127);
	for (int number = 1; number < NSIG; number++)
		signal(number, SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	if (dup2(null_fd, 0) >= 0 && dup2(out, 1) >= 0 && dup2(err, 2) >= 0) {
		execve(path, argv, environment);
		if (errno == ENOEXEC) {
			/* A script without #!: the shell runs it, as execvp has it.  argv[-1] is a spare place. */
			argv[-1] = (char *)"sh";
			argv[0] = (char *)path;
			execve("/bin/sh", argv - 1, environment);
		}
	}
	error = errno;
	if (write(report, &error, sizeof error) < 0)
		_exit(126);
	_exit(127);
}

enum st_status launcher_spawn(const struct launcher_layout *layout, uint32_t rank, const char *path, char **argv, pid_t *pid, int *out, int *err)
{
	int out_pipe[2] = {-1, -1}, err_pipe[2] = {-1, -1}, report[2] = {-1, -1}, null_fd = -1, error = 0;
	char **environment = NULL, **spare = NULL;
	size_t arguments = 0;
	enum st_status status;

	while (argv[arguments])
		arguments++;
	spare = calloc(arguments + 2, sizeof *spare);
	if (!spare)
		return st_fail(ST_ERR_NOMEM, "no memory to start rank %u", rank);
	memcpy(spare + 1, argv, (arguments + 1) * sizeof *argv);
	status = make_environment(layout, rank, &environment);
	if (status == ST_OK)
		status = launcher_server_environment(rank, &environment);
	if (status != ST_OK)
		goto free_all;
	null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (null_fd < 0 || pipe2(out_pipe, O_CLOEXEC) < 0 || pipe2(err_pipe, O_CLOEXEC) < 0 || pipe2(report, O_CLOEXEC) < 0) {
		status = st_fail_errno("can't make the pipes of rank %u", rank);
		goto free_all;
	}
	pid_t launcher = getpid(), child = fork();
	if (child == 0)
		become_rank(path, spare + 1, environment, launcher, null_fd, out_pipe[1], err_pipe[1], report[1]);
	if (child < 0) {
		status = st_fail_errno("can't start rank %u", rank);
		goto free_all;
	}
	/* Also here: whichever of the two comes first, the group is there before it is signalled. */
	setpgid(child, child);
	close(report[1]);
	report[1] = -1;
	if (read(report[0], &error, sizeof error) == sizeof error) {
		errno = error;
		status = st_fail_errno("%s: can't be executed", path);
		*pid = child; /* still to be reaped */
		goto free_all;
	}
	*pid = child;
	*out = out_pipe[0];
	*err = err_pipe[0];
	out_pipe[0] = err_pipe[0] = -1;
	status = st_set_nonblocking(*out);
	if (status == ST_OK)
		status = st_set_nonblocking(*err);

free_all:
	for (int i = 0; i < 2; i++) {
		if (out_pipe[i] >= 0)
			close(out_pipe[i]);
		if (err_pipe[i] >= 0)
			close(err_pipe[i]);
		if (report[i] >= 0)
			close(report[i]);
	}
	if (null_fd >= 0)
		close(null_fd);
	free_environment(environment);
	free(spare);
	return status;
}
