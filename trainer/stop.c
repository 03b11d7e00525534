#include "stop.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"

static volatile sig_atomic_t noted;
static int64_t limit_ns = INT64_MAX;   /* monotonic; INT64_MAX: none */
static int64_t job_end_ns = INT64_MAX; /* wall time */
static double limit_seconds;

static void note(int number)
{
	noted = number;
}

/* SLURM_JOB_END_TIME: seconds since 1970. What is not a number is no limit: it is not ours to refuse. */
static int64_t read_job_end(double margin)
{
	const char *text = getenv("SLURM_JOB_END_TIME");
	char *end;

	if (!text || !*text)
		return INT64_MAX;
	errno = 0;
	long long seconds = strtoll(text, &end, 10);
	if (errno || *end || seconds <= 0 || seconds > INT64_MAX / ST_NS_PER_S)
		return INT64_MAX;
	return seconds * ST_NS_PER_S - (int64_t)(margin * (double)ST_NS_PER_S);
}

void train_stop_watch(double seconds, double margin)
{
	/* Launchers send a signal twice, to the process group and to each task: a second one must not undo the first. */
	struct sigaction once_noted = {.sa_handler = note, .sa_flags = SA_RESTART};
	struct sigaction ignore = {.sa_handler = SIG_IGN};

	limit_seconds = seconds;
	limit_ns = seconds > 0 ? st_now_ns() + (int64_t)((seconds - margin) * (double)ST_NS_PER_S) : INT64_MAX;
	job_end_ns = read_job_end(margin);
	sigaction(SIGTERM, &once_noted, NULL);
	sigaction(SIGINT, &once_noted, NULL);
	sigaction(SIGUSR1, &once_noted, NULL);
	/* Who reads the log may go away, and a file may reach a limit: both are errors of a write, not the end of a training run. */
	sigaction(SIGPIPE, &ignore, NULL);
	sigaction(SIGXFSZ, &ignore, NULL);
}

train_stop train_stop_wanted(void)
{
	if (noted)
		return (train_stop)noted;
	if (st_now_ns() >= limit_ns)
		return TRAIN_STOP_TIME_LIMIT;
	return st_wall_ns() >= job_end_ns ? TRAIN_STOP_JOB_END : 0;
}

const char *train_stop_name(train_stop stop, char text[64])
{
	if (stop == TRAIN_STOP_TIME_LIMIT)
		snprintf(text, 64, "time_limit.seconds = %g", limit_seconds);
	else if (stop == TRAIN_STOP_JOB_END)
		snprintf(text, 64, "the job's time limit");
	else
		snprintf(text, 64, "SIG%s", sigabbrev_np(stop) ? sigabbrev_np(stop) : "?");
	return text;
}
