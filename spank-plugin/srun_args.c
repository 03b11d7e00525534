#include "srun_args.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define OWN_PREFIX "synctrain"

/* srun's options as of Slurm 22.05, in getopt's notation: one colon takes an argument, two may carry one in the same word. */
static const char short_options[] = "A:b:D:M:C:S:c:d:Xm:e:x:B:G:hHI::i:J:K::lL:T:Zk::F:w:N:n:o:Osp:Eq:Qr:t:uvVW:";

/* Options that take no argument from the next word, and options that do. */
static const char *const alone[] = {
	"bcast", "compress", "contiguous", "debugger-test", "disable-status", "exact", "exclusive", "help", "hold", "immediate",
	"interactive", "kill-on-bad-exit", "label", "multi-prog", "nice", "no-allocate", "no-kill", "overcommit", "overlap",
	"oversubscribe", "preserve-env", "propagate", "pty", "quiet", "quit-on-interrupt", "reboot", "resv-ports", "send-libs",
	"spread-job", "test-only", "unbuffered", "usage", "use-min-nodes", "verbose", "version", "whole", "x11", NULL};
static const char *const with_argument[] = {
	"accel-bind", "account", "acctg-freq", "bb", "bbf", "bcast-exclude", "begin", "chdir", "cluster", "cluster-constraint",
	"clusters", "comment", "constraint", "container", "context", "core-spec", "cores-per-socket", "cpu-bind", "cpu-freq", "cpu_bind",
	"cpus-per-gpu", "cpus-per-task", "deadline", "delay-boot", "dependency", "distribution", "epilog", "error", "exclude", "export",
	"extra-node-info", "gid", "gpu-bind", "gpu-freq", "gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task", "gres",
	"gres-flags", "het-group", "hint", "input", "job-name", "jobid", "licenses", "mail-type", "mail-user", "mcs-label", "mem",
	"mem-bind", "mem-per-cpu", "mem-per-gpu", "mincpus", "mpi", "msg-timeout", "network", "nodefile", "nodelist", "nodes", "ntasks",
	"ntasks-per-core", "ntasks-per-gpu", "ntasks-per-node", "ntasks-per-socket", "ntasks-per-tres", "open-mode", "output",
	"pack-group", "partition", "power", "prefer", "priority", "profile", "prolog", "qos", "relative", "reservation", "signal",
	"slurmd-debug", "sockets-per-node", "switches", "task-epilog", "task-prolog", "tasks-per-node", "thread-spec", "threads",
	"threads-per-core", "time", "time-min", "tmp", "uid", "wait", "wckey", NULL};

/* Looks TEXT up as getopt_long does: the whole name, else a beginning. *matches counts the names that begin so. */
static const char *look_up(const char *const *names, const char *text, size_t length, size_t *matches)
{
	const char *found = NULL;

	for (*matches = 0; *names; names++) {
		if (strncmp(*names, text, length) != 0)
			continue;
		found = *names;
		if (!found[length]) {
			*matches = 1;
			return found;
		}
		++*matches;
	}
	return found;
}

enum verdict { TAKES_NOTHING, TAKES_NEXT, CANT_TELL };

static enum verdict long_option(const char *text, struct srun_args *args)
{
	size_t length = strcspn(text, "="), few, many;
	bool attached = text[length] == '=';

	if (!strncmp(text, OWN_PREFIX, sizeof OWN_PREFIX - 1)) {
		/* --synctrain itself takes its value attached only; the others need one. */
		args->synctrain = true;
		return attached || length == sizeof OWN_PREFIX - 1 ? TAKES_NOTHING : TAKES_NEXT;
	}
	const char *without = look_up(alone, text, length, &few), *with = look_up(with_argument, text, length, &many);
	bool without_exact = without && !without[length], with_exact = with && !with[length];
	if ((with_exact || many == 1) && !without_exact && (with_exact || !few)) {
		args->mpi |= !strcmp(with, "mpi");
		return attached ? TAKES_NOTHING : TAKES_NEXT;
	}
	if ((without_exact || few == 1) && (without_exact || !many)) {
		args->interactive |= !strcmp(without, "interactive");
		return TAKES_NOTHING;
	}
	return attached ? TAKES_NOTHING : CANT_TELL;
}

static enum verdict short_cluster(const char *text)
{
	for (; *text; text++) {
		const char *known = *text == ':' ? NULL : strchr(short_options, *text);
		if (!known)
			return CANT_TELL;
		if (known[1] == ':')
			return known[2] == ':' || text[1] ? TAKES_NOTHING : TAKES_NEXT;
	}
	return TAKES_NOTHING;
}

void srun_args_scan(const char *block, size_t bytes, struct srun_args *args)
{
	const char *end = block + bytes, *next;
	bool skip = true; /* the program's name */

	*args = (struct srun_args){false, false, false};
	for (const char *word = block; word < end; word = next) {
		size_t length = strnlen(word, (size_t)(end - word));
		if (word + length == end) /* cut off: what it would be is not known */
			return;
		next = word + length + 1;
		if (skip) {
			skip = false;
			continue;
		}
		if (word[0] != '-' || !word[1] || !strcmp(word, "--"))
			return;
		switch (word[1] == '-' ? long_option(word + 2, args) : short_cluster(word + 1)) {
		case TAKES_NOTHING:
			break;
		case TAKES_NEXT:
			skip = true;
			break;
		case CANT_TELL:
			return;
		}
	}
}

void srun_args_read(struct srun_args *args)
{
	/* Options come first; a program's own arguments may be megabytes, and are not wanted. */
	char block[65536];
	size_t used = 0;
	int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);

	while (fd >= 0 && used < sizeof block) {
		ssize_t n = read(fd, block + used, sizeof block - used);
		if (n <= 0)
			break;
		used += (size_t)n;
	}
	if (fd >= 0)
		close(fd);
	srun_args_scan(block, used, args);
}
