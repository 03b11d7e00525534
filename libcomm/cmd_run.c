/* `synctrain run`: starts ranks on this machine and ends when they have ended. */
#include <dirent.h>
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/command.h"
#include "launcher.h"
#include "recorder.h"

#define MAX_RANKS 4096
#define DEFAULT_GRACE_S 10
#define KILL_AFTER_MS 5000
#define DRAIN_MS 1000
#define SETTLE_MS 200
#define SETTLE_AT_MOST_MS 5000
#define IMPATIENCE 3
#define EXIT_NOT_FOUND 127
#define EXIT_NOT_EXECUTABLE 126

static const char usage_text[] =
	"usage: synctrain run -n N [OPTIONS] COMMAND [ARGUMENTS]\n"
	"\n"
	"Starts N ranks of COMMAND on this machine, under a PMIx server of its own, and waits for them.\n"
	"\n"
	"  -n, --ranks N     number of ranks, 1 to 4096\n"
	"      --no-prefix   output lines without the rank in front\n"
	"      --timeout S   end the ranks after S seconds and exit 75, or as below if one has failed before\n"
	"      --grace S     after one rank has failed, let the others run S seconds before ending them (default 10),\n"
	"                    so that each can say what it saw\n"
	"      --on-death W  stop (default): when a rank dies by a signal, end the others as after any failure; continue: let\n"
	"                    them go on, for programs that go on with the survivors (comm_shrink)\n"
	"      --nodes K     pretend K nodes named node0, node1, ...: for tests of what happens between nodes\n"
	"      --help        this text\n"
	"\n"
	"Output: whole lines, \"[RANK] \" in front. Input: none. Sets RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE and\n"
	"OMP_NUM_THREADS (cores / ranks, at least 1) unless they are set already. SIGINT, SIGTERM, SIGHUP and SIGQUIT are\n"
	"passed on to the ranks; the third one kills them.\n"
	"\n"
	"Exit: 0 when all ranks ended well; else the first failing rank's exit code, or 128 + the number of the signal that\n"
	"killed it (of ranks that fail at about the same time, one killed by a signal counts first, and one that exits with\n"
	"1, as ranks do when another failed, last); with --on-death=continue, ranks killed by a signal do not count as long as\n"
	"another ended well, and a rank that fails ends nobody; 64 usage, 75 --timeout, 126 COMMAND is not executable, 127 COMMAND is not found, 69, 71: can't start.\n";

struct rank {
	pid_t pid, group; /* 0: not started; pid 0: ended */
	struct launcher_stream out, err;
};

struct run {
	struct launcher_layout layout;
	bool prefix;
	bool go_on;      /* --on-death=continue */
	bool ended_well; /* a rank has */
	int64_t timeout_ms, grace_ms;
	struct launcher_guard guard;
	struct launcher_sink out, err;
	struct rank *ranks;
	struct pollfd *polls;
	uint32_t running;
	int signal_fd;
	unsigned signals_seen;

	bool suspected; /* a rank has failed; who and how may change until `settle` */
	uint32_t suspect;
	int suspect_status;
	struct st_deadline settle, latest;
	bool failed; /* exit_code and its message stand */
	int exit_code;
	enum { GOING, GRACE, TERMINATED, KILLED } phase;
	struct st_deadline until; /* of this phase */
	struct st_deadline timeout;
};

/* ---- options ------------------------------------------------------------------------------------------------------- */

static enum st_status number(const char *option, const char *text, double minimum, double maximum, double *value)
{
	char *end;

	errno = 0;
	*value = strtod(text, &end);
	/* Digits and a point: no 1e1, 0x10, inf or blanks. */
	if (end == text || *end || text[strspn(text, "0123456789.")] || errno || !(*value >= minimum && *value <= maximum))
		return st_fail(ST_ERR_USAGE, "%s: seen '%.40s', expected a number from %.10g to %.10g", option, text, minimum, maximum);
	return ST_OK;
}

static enum st_status whole_number(const char *option, const char *text, uint32_t maximum, uint32_t *value)
{
	char *end;

	errno = 0;
	unsigned long long number = strtoull(text, &end, 10);
	if (*text < '0' || *text > '9' || *end || errno || number < 1 || number > maximum)
		return st_fail(ST_ERR_USAGE, "%s: seen '%.40s', expected a whole number from 1 to %u", option, text, maximum);
	*value = (uint32_t)number;
	return ST_OK;
}

static enum st_status parse(struct run *run, int argc, char **argv, bool *help)
{
	enum { NO_PREFIX = 256, TIMEOUT, GRACE_OPTION, ON_DEATH, NODES, HELP };
	static const struct option options[] = {{"ranks", required_argument, NULL, 'n'},
						{"no-prefix", no_argument, NULL, NO_PREFIX},
						{"timeout", required_argument, NULL, TIMEOUT},
						{"grace", required_argument, NULL, GRACE_OPTION},
						{"on-death", required_argument, NULL, ON_DEATH},
						{"nodes", required_argument, NULL, NODES},
						{"help", no_argument, NULL, HELP},
						{0}};
	double seconds;
	int option;

	optind = 0; /* glibc: start afresh, also when another command has parsed before */
	opterr = 0;
	while ((option = getopt_long(argc, argv, "+:n:h", options, NULL)) != -1) {
		switch (option) {
		case 'n':
			ST_TRY(whole_number("-n", optarg, MAX_RANKS, &run->layout.size));
			break;
		case NO_PREFIX:
			run->prefix = false;
			break;
		case TIMEOUT:
			ST_TRY(number("--timeout", optarg, 0.001, 1e9, &seconds));
			run->timeout_ms = (int64_t)(seconds * 1e3);
			break;
		case GRACE_OPTION:
			ST_TRY(number("--grace", optarg, 0, 1e6, &seconds));
			run->grace_ms = (int64_t)(seconds * 1e3);
			break;
		case ON_DEATH:
			run->go_on = strcmp(optarg, "continue") == 0;
			if (!run->go_on && strcmp(optarg, "stop"))
				return st_fail(ST_ERR_USAGE, "--on-death: seen '%.40s', expected stop or continue", optarg);
			break;
		case NODES:
			ST_TRY(whole_number("--nodes", optarg, MAX_RANKS, &run->layout.nodes));
			break;
		case 'h':
		case HELP:
			*help = true;
			return ST_OK;
		case ':':
			return st_fail(ST_ERR_USAGE, "%s needs a value; see synctrain run --help", argv[optind - 1]);
		default:
			return st_fail(ST_ERR_USAGE, "unknown option '%s'; see synctrain run --help", argv[optind - 1]);
		}
	}
	if (run->layout.size == 0)
		return st_fail(ST_ERR_USAGE, "-n N is missing; see synctrain run --help");
	if (run->layout.nodes > run->layout.size)
		return st_fail(ST_ERR_USAGE, "--nodes: seen %u for %u ranks, expected at most one node per rank", run->layout.nodes, run->layout.size);
	if (optind >= argc)
		return st_fail(ST_ERR_USAGE, "COMMAND is missing; see synctrain run --help");
	return ST_OK;
}

/* ---- ending -------------------------------------------------------------------------------------------------------- */

static void signal_ranks(const struct run *run, int number_of_signal)
{
	for (uint32_t r = 0; r < run->layout.size; r++)
		if (run->ranks[r].pid)
			kill(-run->ranks[r].group, number_of_signal);
}

static void say(const char *text)
{
	fprintf(stderr, "synctrain run: %s\n", text);
}

static void enter_phase(struct run *run, int phase)
{
	if (phase <= (int)run->phase)
		return;
	run->phase = (typeof(run->phase))phase;
	switch (phase) {
	case GRACE:
		run->until = st_deadline_in_ms(run->grace_ms);
		break;
	case TERMINATED:
		run->until = st_deadline_in_ms(KILL_AFTER_MS);
		signal_ranks(run, SIGTERM);
		/* A stopped rank hears nothing else. */
		signal_ranks(run, SIGCONT);
		break;
	case KILLED:
		run->until = st_deadline_in_ms(-1);
		signal_ranks(run, SIGKILL);
		break;
	default:
		break;
	}
}

/* How likely a rank that ended so is the cause of the others' ends, and not their effect. */
static int likelihood(int wait_status)
{
	if (WIFSIGNALED(wait_status))
		return 3;
	/* Ranks that end because another one failed exit with 1 (st_exit_code of ST_ERR_ABORTED). */
	return WEXITSTATUS(wait_status) == 1 ? 1 : 2;
}

/* Whether a process that can't be reaped yet has begun to end: PF_EXITING (include/linux/sched.h) of its kernel flags, proc(5). */
static bool is_ending(pid_t pid)
{
	char path[64], text[512], *end;
	unsigned long flags = 0;
	FILE *file;

	snprintf(path, sizeof path, "/proc/%ld/stat", (long)pid);
	file = fopen(path, "re");
	if (!file)
		return false;
	/* The name in parentheses may hold anything, also spaces and parentheses. */
	size_t bytes = fread(text, 1, sizeof text - 1, file);
	text[bytes] = 0;
	fclose(file);
	end = strrchr(text, ')');
	return end && sscanf(end + 1, " %*c %*d %*d %*d %*d %*d %lu", &flags) == 1 && (flags & 0x4);
}

static bool any_ending(const struct run *run)
{
	for (uint32_t r = 0; r < run->layout.size; r++)
		if (run->ranks[r].pid && is_ending(run->ranks[r].pid))
			return true;
	return false;
}

/* The kernel closes a dying process's sockets some time before its parent can reap it (the more memory, the longer): its peers
 * may be seen to fail first.  So those that fail within a moment, or are about to, are judged together. */
static void take_failure(struct run *run, uint32_t rank, int wait_status)
{
	if (run->failed)
		return;
	if (run->go_on) {
		/* Judged at the end: who ended well, and what the first failure that counts was. */
		bool counts = !run->suspected || (WIFSIGNALED(run->suspect_status) && !WIFSIGNALED(wait_status));
		if (WIFSIGNALED(wait_status)) {
			char text[120];
			snprintf(text, sizeof text, "rank %u was killed by signal %d (%s); the others go on", rank, WTERMSIG(wait_status),
				 strsignal(WTERMSIG(wait_status)));
			say(text);
		}
		run->suspected = true;
		run->settle = run->latest = st_deadline_in_ms(-1);
		if (counts) {
			run->suspect = rank;
			run->suspect_status = wait_status;
		}
		return;
	}
	if (!run->suspected) {
		run->suspected = true;
		run->settle = st_deadline_in_ms(SETTLE_MS);
		run->latest = st_deadline_in_ms(SETTLE_AT_MOST_MS);
		enter_phase(run, GRACE);
	} else if (likelihood(wait_status) <= likelihood(run->suspect_status)) {
		return;
	}
	run->suspect = rank;
	run->suspect_status = wait_status;
}

static void judge(struct run *run)
{
	int wait_status = run->suspect_status;
	char text[160];

	if (run->failed || !run->suspected || (run->go_on && run->ended_well && WIFSIGNALED(wait_status)))
		return;
	run->failed = true;
	if (WIFSIGNALED(wait_status)) {
		run->exit_code = 128 + WTERMSIG(wait_status);
		snprintf(text, sizeof text, "rank %u was killed by signal %d (%s)", run->suspect, WTERMSIG(wait_status),
			 strsignal(WTERMSIG(wait_status)));
	} else {
		run->exit_code = WEXITSTATUS(wait_status);
		snprintf(text, sizeof text, "rank %u exited with code %d", run->suspect, run->exit_code);
	}
	say(text);
}

static void reap(struct run *run)
{
	for (uint32_t r = 0; r < run->layout.size; r++) {
		int wait_status;
		if (!run->ranks[r].pid || waitpid(run->ranks[r].pid, &wait_status, WNOHANG) <= 0)
			continue;
		run->ranks[r].pid = 0;
		run->running--;
		if (wait_status != 0)
			take_failure(run, r, wait_status);
		else
			run->ended_well = true;
	}
	if (!run->suspected || run->failed)
		return;
	if (run->running == 0 || st_deadline_expired(&run->latest)) {
		judge(run);
	} else if (st_deadline_expired(&run->settle)) {
		if (any_ending(run))
			run->settle = st_deadline_in_ms(SETTLE_MS);
		else
			judge(run);
	}
}

static void take_signal(struct run *run)
{
	struct signalfd_siginfo info;

	while (read(run->signal_fd, &info, sizeof info) == sizeof info) {
		if (info.ssi_signo == SIGCHLD)
			continue;
		if (++run->signals_seen >= IMPATIENCE)
			enter_phase(run, KILLED);
		else
			signal_ranks(run, (int)info.ssi_signo);
	}
}

static void look_at_clock(struct run *run)
{
	int status;

	if (run->phase < TERMINATED && st_deadline_expired(&run->timeout)) {
		judge(run);
		if (!run->failed)
			run->exit_code = EX_TEMPFAIL;
		run->failed = true;
		say("the time of --timeout is over: ending the ranks");
		enter_phase(run, TERMINATED);
	}
	if (run->phase < TERMINATED && launcher_server_aborted(&status)) {
		judge(run);
		if (!run->failed) {
			run->exit_code = status & 0xff ? status & 0xff : EX_SOFTWARE;
			run->failed = true;
			say("a rank asked for the end of the job (PMIx_Abort)");
		}
		enter_phase(run, TERMINATED);
	}
	if (run->phase == GRACE && st_deadline_expired(&run->until)) {
		char text[120];
		snprintf(text, sizeof text, "ending %u ranks that still run %.3g s after the first failure", run->running, (double)run->grace_ms / 1e3);
		say(text);
		enter_phase(run, TERMINATED);
	}
	if (run->phase == TERMINATED && st_deadline_expired(&run->until))
		enter_phase(run, KILLED);
}

/* ---- the loop ------------------------------------------------------------------------------------------------------ */

static size_t watch_output(struct run *run, size_t count)
{
	struct launcher_sink *sinks[2] = {&run->out, &run->err};

	for (int i = 0; i < 2; i++)
		if (sinks[i]->begin < sinks[i]->end)
			run->polls[count++] = (struct pollfd){.fd = sinks[i]->fd, .events = POLLOUT};
	for (uint32_t r = 0; r < run->layout.size; r++) {
		struct launcher_stream *streams[2] = {&run->ranks[r].out, &run->ranks[r].err};
		for (int i = 0; i < 2; i++)
			if (streams[i]->fd >= 0 && !launcher_sink_full(streams[i]->sink))
				run->polls[count++] = (struct pollfd){.fd = streams[i]->fd, .events = POLLIN};
	}
	return count;
}

/* One sleep, and everything that it brought. */
static void turn(struct run *run, int sleep_ms)
{
	size_t count = 0;

	run->polls[count++] = (struct pollfd){.fd = run->signal_fd, .events = POLLIN};
	count = watch_output(run, count);
	if (poll(run->polls, count, sleep_ms) <= 0)
		return;
	if (run->polls[0].revents)
		take_signal(run);
	for (size_t i = 1; i < count; i++) {
		if (!run->polls[i].revents)
			continue;
		if (run->polls[i].events == POLLOUT) {
			launcher_sink_write(run->polls[i].fd == run->out.fd ? &run->out : &run->err);
			continue;
		}
		for (uint32_t r = 0; r < run->layout.size; r++) {
			if (run->ranks[r].out.fd == run->polls[i].fd) {
				launcher_stream_read(&run->ranks[r].out);
				break;
			}
			if (run->ranks[r].err.fd == run->polls[i].fd) {
				launcher_stream_read(&run->ranks[r].err);
				break;
			}
		}
	}
}

static bool output_open(const struct run *run)
{
	for (uint32_t r = 0; r < run->layout.size; r++)
		if (run->ranks[r].out.fd >= 0 || run->ranks[r].err.fd >= 0)
			return true;
	return false;
}

static void watch_ranks(struct run *run)
{
	struct st_deadline drain;

	while (run->running) {
		int sleep_ms = 1000, next_ms;
		if (run->phase < TERMINATED && (next_ms = st_deadline_poll_ms(&run->timeout)) < sleep_ms)
			sleep_ms = next_ms;
		if (run->phase != GOING && (next_ms = st_deadline_poll_ms(&run->until)) < sleep_ms)
			sleep_ms = next_ms;
		if (run->suspected && !run->failed && (next_ms = st_deadline_poll_ms(&run->settle)) < sleep_ms)
			sleep_ms = next_ms;
		turn(run, sleep_ms);
		reap(run);
		look_at_clock(run);
	}
	/* What ranks left behind in their process groups goes with them. */
	for (uint32_t r = 0; r < run->layout.size; r++)
		if (run->ranks[r].group) {
			kill(-run->ranks[r].group, SIGKILL);
			launcher_guard_remove(&run->guard, run->ranks[r].group);
		}
	/* A process that has left its group may still hold a pipe: the rest of the output is waited for only so long. */
	drain = st_deadline_in_ms(DRAIN_MS);
	while (output_open(run) && !st_deadline_expired(&drain) && run->phase != KILLED)
		turn(run, st_deadline_poll_ms(&drain));
	for (uint32_t r = 0; r < run->layout.size; r++) {
		launcher_stream_end(&run->ranks[r].out);
		launcher_stream_end(&run->ranks[r].err);
	}
	/* A slow reader is waited for; a signal ends that. */
	unsigned signals_before = run->signals_seen;
	while ((run->out.begin < run->out.end || run->err.begin < run->err.end) && run->signals_seen == signals_before)
		turn(run, 1000);
}

static enum st_status start_ranks(struct run *run, const char *path, char **argv)
{
	for (uint32_t r = 0; r < run->layout.size; r++) {
		struct rank *rank = &run->ranks[r];
		pid_t pid = 0;
		enum st_status status = launcher_spawn(&run->layout, r, path, argv, &pid, &rank->out.fd, &rank->err.fd);
		if (pid) {
			rank->pid = rank->group = pid;
			run->running++;
			launcher_guard_add(&run->guard, pid);
		}
		if (status != ST_OK)
			return status;
	}
	return ST_OK;
}

static enum st_status prepare(struct run *run)
{
	sigset_t signals;

	/* 2 pipes per rank, the signals, 2 outputs. */
	run->ranks = calloc(run->layout.size, sizeof *run->ranks);
	run->polls = calloc(2 * (size_t)run->layout.size + 3, sizeof *run->polls);
	if (!run->ranks || !run->polls)
		return st_fail(ST_ERR_NOMEM, "no memory for %u ranks", run->layout.size);
	for (uint32_t r = 0; r < run->layout.size; r++) {
		struct rank *rank = &run->ranks[r];
		rank->out = (struct launcher_stream){.fd = -1, .sink = &run->out};
		rank->err = (struct launcher_stream){.fd = -1, .sink = &run->err};
		if (run->prefix) {
			snprintf(rank->out.prefix, sizeof rank->out.prefix, "[%u] ", r);
			memcpy(rank->err.prefix, rank->out.prefix, sizeof rank->err.prefix);
		}
	}
	sigemptyset(&signals);
	sigaddset(&signals, SIGCHLD);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGHUP);
	sigaddset(&signals, SIGQUIT);
	signal(SIGPIPE, SIG_IGN);
	/* A parent that ignores SIGCHLD would make the kernel reap the ranks unseen. */
	signal(SIGCHLD, SIG_DFL);
	if (sigprocmask(SIG_BLOCK, &signals, NULL) < 0)
		return st_fail_errno("can't block signals");
	run->signal_fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
	if (run->signal_fd < 0)
		return st_fail_errno("can't make a signal descriptor");
	return ST_OK;
}

/* The job ended badly: where its ranks' flight recorders are, if any. */
static void say_where_recorders_are(void)
{
	char directory[3500], job[RECORDER_JOB_NAME_BYTES], text[4096];
	DIR *list = recorder_directory_name(directory, sizeof directory) ? opendir(directory) : NULL;
	struct dirent *entry;

	if (!list)
		return;
	recorder_job_name(launcher_server_job(), job);
	while ((entry = readdir(list)))
		if (!strncmp(entry->d_name, job, strlen(job))) {
			snprintf(text, sizeof text, "flight recorder: %s; `synctrain report --hang` reads it", directory);
			say(text);
			break;
		}
	closedir(list);
}

static void clean_up(struct run *run)
{
	if (run->signal_fd >= 0)
		close(run->signal_fd);
	free(run->out.data);
	free(run->err.data);
	free(run->ranks);
	free(run->polls);
}

int cmd_run(int argc, char **argv)
{
	struct run run = {.layout = {.nodes = 1},
			  .prefix = true,
			  .timeout_ms = -1,
			  .grace_ms = DEFAULT_GRACE_S * 1000,
			  .guard = {.fd = -1, .directory_lock = -1},
			  .out = {.fd = STDOUT_FILENO},
			  .err = {.fd = STDERR_FILENO},
			  .signal_fd = -1};
	char path[4096];
	bool help = false, server = false;
	enum st_status status = parse(&run, argc, argv, &help);
	int code = 0;

	if (help) {
		fputs(usage_text, stdout);
		return EX_OK;
	}
	if (status != ST_OK)
		return st_command_failed("run", status);
	char **command = argv + optind;
	status = launcher_find_program(command[0], path, sizeof path);
	if (status != ST_OK) {
		st_command_failed("run", status);
		return status == ST_ERR_PERMISSION ? EXIT_NOT_EXECUTABLE : EXIT_NOT_FOUND;
	}
	status = prepare(&run);
	if (status == ST_OK)
		status = launcher_guard_start(&run.guard);
	if (status == ST_OK) {
		status = launcher_server_start(&run.layout, run.guard.directory);
		server = status == ST_OK;
	}
	if (status == ST_OK) {
		run.timeout = st_deadline_in_ms(run.timeout_ms);
		status = start_ranks(&run, path, command);
		if (status != ST_OK) {
			code = st_command_failed("run", status);
			/* Those that were started can do nothing without the others. */
			run.failed = true;
			run.exit_code = code;
			enter_phase(&run, KILLED);
		}
		watch_ranks(&run);
		code = run.exit_code;
		if (code)
			say_where_recorders_are();
	} else {
		code = st_command_failed("run", status);
	}
	if (server)
		launcher_server_stop();
	launcher_guard_end(&run.guard);
	clean_up(&run);
	return code;
}
