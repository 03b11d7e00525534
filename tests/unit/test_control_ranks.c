/*
 * The control plane between real processes: ranks start under `synctrain run` (PMIx), one is killed, stopped or ends at every stage, and
 * all others end with the same culprit.  Run as `test_control_ranks rank SCENARIO VICTIM` it is such a rank, under any PMIx
 * launcher (tests/slurm/test_bootstrap.sh starts it with srun and mpirun).
 */
#include "check.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/command.h"
#include "libcomm/bootstrap.h"
#include "libcomm/control.h"

st_command_main cmd_run;

/* ---- one rank ------------------------------------------------------------------------------------------------------ */

static int fail(const char *what)
{
	printf("%s: %s\n", what, st_message());
	return 1;
}

static int rank_main(const char *scenario, uint32_t victim)
{
	struct control_options options = {.startup_timeout_ms = 20000, .stall_timeout_ms = 2000, .interface = getenv("SYNCTRAIN_INTERFACE")};
	struct bootstrap *bootstrap;
	struct control *control;
	int64_t start = st_now_ns();
	uint32_t all[4096];

	if (getenv("STALL_MS"))
		options.stall_timeout_ms = atoi(getenv("STALL_MS"));
	if (bootstrap_pmix_or_single(options.startup_timeout_ms, &bootstrap) != ST_OK)
		return fail("bootstrap");
	uint32_t me = bootstrap->rank;
	int64_t joined = st_now_ns();
	if (!strcmp(scenario, "die-before-exchange") && me == victim)
		raise(SIGKILL);
	if (control_open(bootstrap, &options, &control) != ST_OK) {
		char why[1024];
		snprintf(why, sizeof why, "%s", st_message());
		bootstrap->finish(bootstrap);
		printf("start-up: %s\n", why);
		return 1;
	}
	int64_t opened = st_now_ns();
	bootstrap->finish(bootstrap);
	int64_t finished = st_now_ns();
	const struct topo_world *w = control_world(control);
	if (!strcmp(scenario, "start")) {
		if (control_all_gather(control, &me, sizeof me, all, 20000) != ST_OK)
			return fail("all_gather");
		for (uint32_t r = 0; r < w->size; r++)
			if (all[r] != r)
				return fail("all_gather: wrong values");
		printf("ready rank %u of %u node %s (%u of %u) job %s: pmix %.1f ms, control %.1f ms, finish %.1f ms\n", me, w->size,
		       w->nodes[w->node_of[me]].name, w->node_of[me], w->node_count, control_job(control), (double)(joined - start) / 1e6,
		       (double)(opened - joined) / 1e6, (double)(finished - opened) / 1e6);
		control_close(control);
		return 0;
	}
	control_doing(control, "allreduce", 12);
	if (control_all_gather(control, &me, sizeof me, all, 20000) != ST_OK)
		return fail("all_gather");
	if (!strcmp(scenario, "linger")) { /* time for someone to suspend the job */
		printf("lingering\n");
		/* Ten seconds of running time: a suspension does not count. */
		for (struct st_deadline end = st_deadline_in_ms(10000); !st_deadline_expired(&end);)
			poll(NULL, 0, 200);
		if (control_all_gather(control, &me, sizeof me, all, 20000) != ST_OK)
			return fail("all_gather");
		printf("lingered\n");
		control_close(control);
		return 0;
	}
	if (me == victim) {
		if (!strcmp(scenario, "kill"))
			raise(SIGKILL);
		if (!strcmp(scenario, "stop")) {
			raise(SIGSTOP);
			/* Ended by SIGTERM when the launcher's patience ends. */
		}
		if (!strcmp(scenario, "exit"))
			_exit(3);
		if (!strcmp(scenario, "abort"))
			control_abort(control, me, CONTROL_HOW_APPLICATION, "step 4", "the loss is not finite");
	}
	struct pollfd fd = {.fd = control_event_fd(control), .events = POLLIN};
	if (poll(&fd, 1, 30000) != 1) {
		printf("never heard of it\n");
		return 1;
	}
	control_check(control);
	printf("verdict: %s\n", st_message());
	control_close(control);
	return 1;
}

/* ---- the launcher -------------------------------------------------------------------------------------------------- */

static char self[4096];

/* Runs this program's ranks under cmd_run in a child; returns its exit code, and its output. */
static int launch(const char *ranks, const char *nodes, const char *grace, const char *scenario, uint32_t victim, char *output, size_t bytes)
{
	char number[16];
	int ends[2], wait_status;
	size_t have = 0;

	snprintf(number, sizeof number, "%u", victim);
	char *argv[] = {"run", "-n", (char *)ranks, "--nodes", (char *)nodes, "--grace", (char *)grace, "--timeout", "100", self, "rank", (char *)scenario, number, NULL};
	CHECK(pipe(ends) == 0);
	fflush(NULL);
	pid_t child = fork();
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(ends[0]);
		dup2(ends[1], 1);
		dup2(ends[1], 2);
		close(ends[1]);
		setenv("SYNCTRAIN_INTERFACE", "lo", 1);
		int code = cmd_run((int)(sizeof argv / sizeof *argv) - 1, argv);
		fflush(NULL);
		_exit(code);
	}
	close(ends[1]);
	for (;;) {
		ssize_t n = read(ends[0], output + have, bytes - 1 - have);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		have += (size_t)n;
	}
	output[have] = 0;
	close(ends[0]);
	CHECK(waitpid(child, &wait_status, 0) == child);
	return WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : -WTERMSIG(wait_status);
}

static unsigned lines_with(const char *output, const char *text)
{
	unsigned count = 0;

	for (const char *p = output; (p = strstr(p, text)); p += strlen(text))
		count++;
	return count;
}

static char output[65536];

static void test_start(void)
{
	static const struct {
		const char *ranks, *nodes;
		unsigned size;
	} worlds[] = {{"1", "1", 1}, {"2", "1", 2}, {"8", "1", 8}, {"8", "3", 8}, {"5", "5", 5}};

	for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) {
		char nodes[16];
		int code = launch(worlds[i].ranks, worlds[i].nodes, "10", "start", 0, output, sizeof output);
		snprintf(nodes, sizeof nodes, "of %s) job", worlds[i].nodes);
		CHECK(code == 0 && lines_with(output, "ready rank ") == worlds[i].size && lines_with(output, nodes) == worlds[i].size, "exit %d\n%s", code,
		      output);
		char *first = strstr(output, "[0] ready");
		if (first)
			printf("%.*s\n", (int)strcspn(first, "\n"), first);
	}
}

static void test_deaths(void)
{
	static const struct {
		const char *scenario, *expected;
		int code;
	} ways[] = {{"kill", "verdict: rank %u on node%u died (its process ended) during allreduce ", 128 + SIGKILL},
		    {"exit", "verdict: rank %u on node%u died (its process ended) during allreduce ", 3},
		    {"abort", "verdict: rank %u on node%u failed during step 4: the loss is not finite", 1}};

	for (size_t way = 0; way < sizeof ways / sizeof *ways; way++)
		for (uint32_t victim = 0; victim < 6; victim++) {
			char expected[128];
			/* 6 ranks on 3 nodes: a root, leaders and others. */
			int code = launch("6", "3", "10", ways[way].scenario, victim, output, sizeof output);
			snprintf(expected, sizeof expected, ways[way].expected, victim, victim / 2);
			CHECK(code == ways[way].code, "%s of rank %u: exit %d\n%s", ways[way].scenario, victim, code, output);
			unsigned wanted = !strcmp(ways[way].scenario, "abort") ? 6 : 5;
			/* A service thread may see the end while its rank is still in the gathering. */
			unsigned seen = lines_with(output, expected);
			if (wanted == 5) {
				snprintf(expected, sizeof expected, "verdict: rank %u on node%u died (its process ended) during decision 1", victim, victim / 2);
				seen += lines_with(output, expected);
			}
			CHECK(seen == wanted, "%s of rank %u: %u say so\n%s", ways[way].scenario, victim, seen, output);
		}
}

static void test_stop(void)
{
	for (uint32_t victim = 0; victim < 6; victim += victim == 1 ? 1 : 2 - (victim == 0)) {
		char expected[128];
		int code = launch("6", "3", "1", "stop", victim, output, sizeof output);
		snprintf(expected, sizeof expected, "verdict: rank %u on node%u is unreachable (no heartbeat for 2.0 s)", victim, victim / 2);
		/* The survivors leave with 1; the stopped one is woken and ended by the launcher. */
		CHECK(code == 1, "exit %d\n%s", code, output);
		CHECK(lines_with(output, expected) >= 5, "stop of rank %u\n%s", victim, output);
	}
}

static void test_death_before_exchange(void)
{
	int64_t start = st_now_ns();
	int code = launch("4", "2", "30", "die-before-exchange", 2, output, sizeof output);

	CHECK(code == 128 + SIGKILL, "exit %d\n%s", code, output);
	CHECK(lines_with(output, "start-up: ") == 3, "%s", output);
	CHECK(st_now_ns() - start < 60 * ST_NS_PER_S);
}

int main(int argc, char **argv)
{
	if (argc == 4 && !strcmp(argv[1], "rank")) {
		setvbuf(stdout, NULL, _IOLBF, 0);
		return rank_main(argv[2], (uint32_t)atoi(argv[3]));
	}
	ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
	CHECK(n > 0);
	unsetenv("RANK");
	test_start();
	test_deaths();
	test_stop();
	test_death_before_exchange();
	return check_result();
}
