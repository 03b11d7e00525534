/*
 * `synctrain report --hang` on real jobs: four ranks under `synctrain run`, of which one sleeps outside libcomm, is stopped, exits, calls something else, or
 * decides while the others reduce.  The reader names it from all files and from those of the others alone, while the job hangs where
 * it does.  A job that ends well leaves nothing.
 */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "common/clock.h"
#include "common/command.h"
#include "libcomm/comm.h"
#include "temporary.h"
#include "trainer/hang.h"

st_command_main cmd_run, cmd_report;

enum { RANKS = 4, CULPRIT = 2, BEFORE = 5 };

/* ---- a rank -------------------------------------------------------------------------------------------------------- */

static enum st_status allreduce(struct comm *comm)
{
	float value = 1;
	struct comm_request *request;
	ST_TRY(comm_allreduce(comm, &value, &value, 1, COMM_F32, COMM_SUM, &request));
	return comm_wait(comm, &request);
}

/* Of as many leaves as ranks, as a job in reproducible mode has them. */
static enum st_status allreduce_ordered(struct comm *comm, const struct comm_leaves *leaves)
{
	float value = 1;
	struct comm_request *request;
	ST_TRY(comm_allreduce_ordered(comm, leaves, &value, 1, &value, 1, COMM_F32, COMM_SUM, &request));
	return comm_wait(comm, &request);
}

static int rank_main(const char *what)
{
	const bool ordered = !strcmp(what, "ordered");
	struct comm_leaves leaves;
	struct comm_options options;
	struct comm *comm;
	enum st_status status = comm_options_init(&options);
	if (!strcmp(what, "helper"))
		options.progress_thread = true;
	if (status == ST_OK)
		status = comm_create(&options, &comm);
	if (status == ST_OK && ordered)
		status = comm_leaves_open(comm, RANKS, &leaves);
	for (int i = 0; status == ST_OK && i < BEFORE; i++)
		status = ordered ? allreduce_ordered(comm, &leaves) : allreduce(comm);
	if (status != ST_OK)
		goto failed;
	if (comm_rank(comm) == CULPRIT && strcmp(what, "well")) {
		if (!strcmp(what, "sleep") || !strcmp(what, "helper") || ordered)
			for (;;)
				pause();
		if (!strcmp(what, "flight")) {
			/* Begun, and then left alone. */
			float value[4096] = {0};
			struct comm_request *request;
			status = comm_allreduce(comm, value, value, 4096, COMM_F32, COMM_SUM, &request);
			for (; status == ST_OK;)
				pause();
		}
		if (!strcmp(what, "stop"))
			raise(SIGSTOP);
		if (!strcmp(what, "exit"))
			_exit(3);
		if (!strcmp(what, "other")) {
			struct comm_request *request;
			status = comm_barrier(comm, &request);
			if (status == ST_OK)
				status = comm_wait(comm, &request);
			goto failed;
		}
		if (!strcmp(what, "decide")) {
			int number = 7;
			status = comm_decide(comm, &number, sizeof number);
			goto failed;
		}
	}
	if (!strcmp(what, "flight")) {
		float value[4096] = {0};
		struct comm_request *request;
		status = comm_allreduce(comm, value, value, 4096, COMM_F32, COMM_SUM, &request);
		if (status == ST_OK)
			status = comm_wait(comm, &request);
	} else {
		status = ordered ? allreduce_ordered(comm, &leaves) : allreduce(comm);
	}
failed:
	if (status != ST_OK)
		fprintf(stderr, "%s\n", st_message());
	comm_free(comm);
	return status != ST_OK;
}

/* ---- the job ------------------------------------------------------------------------------------------------------- */

static char self[4096], directory[256];
static pid_t launcher;

static void launch(const char *what)
{
	static unsigned number;
	snprintf(directory, sizeof directory, "%s/%u-%s", temporary_directory, number++, what);
	setenv("SYNCTRAIN_RECORDER", directory, 1);
	fflush(NULL);
	launcher = fork();
	if (launcher)
		return;
	char *argv[] = {"run", "-n", "4", "--grace", "1", "--timeout", "200", self, "rank", (char *)what, NULL};
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	setenv("SYNCTRAIN_INTERFACE", "lo", 1);
	/* They are to hang until they are looked at. */
	setenv("SYNCTRAIN_TIMEOUT_MS", "100000", 1);
	setenv("SYNCTRAIN_ARRIVAL_TIMEOUT_MS", "100000", 1);
	const int code = cmd_run((int)(sizeof argv / sizeof *argv) - 1, argv);
	fflush(NULL);
	_exit(code);
}

static int end(bool kill_it)
{
	int status;
	if (kill_it)
		kill(launcher, SIGTERM);
	REQUIRE(waitpid(launcher, &status, 0) == launcher);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* The job's files, without the culprit's if told so. */
static size_t files(bool culprit, char *paths[RANKS])
{
	static char names[RANKS][1024];
	char suffix[32];
	DIR *list = opendir(directory);
	struct dirent *entry;
	size_t count = 0;
	snprintf(suffix, sizeof suffix, ".%d" RECORDER_SUFFIX, CULPRIT);
	while (list && (entry = readdir(list))) {
		const char *dot = strstr(entry->d_name, suffix);
		if (!strstr(entry->d_name, RECORDER_SUFFIX) || (dot && !culprit) || count == RANKS)
			continue;
		snprintf(names[count], sizeof names[0], "%s/%s", directory, entry->d_name);
		paths[count] = names[count];
		count++;
	}
	if (list)
		closedir(list);
	return count;
}

struct finding {
	enum hang_verdict verdict;
	enum hang_sure sure;
	enum hang_where where;
	uint32_t rank;
	size_t held, places;
	uint64_t wanted;
	bool failed;
	char text[2048], missing[256], sides[1024], chain[4096];
};

static bool look(bool culprit, struct finding *finding)
{
	char *paths[RANKS];
	struct hang_set set;
	struct hang_report report;
	const size_t count = files(culprit, paths);
	*finding = (struct finding){0};
	if (count < (culprit ? RANKS : RANKS - 1))
		return false;
	const enum st_status status = hang_load(paths, count, NULL, &set);
	if (status == ST_OK && hang_judge(&set, &report) == ST_OK) {
		*finding = (struct finding){.verdict = report.verdict, .sure = report.sure, .failed = report.failed != NULL, .places = report.place_count};
		if (report.end_count) {
			finding->where = report.ends[0].place.where;
			finding->rank = report.ends[0].place.rank;
			finding->held = report.ends[0].held_count;
			finding->wanted = report.ends[0].wanted;
		}
		snprintf(finding->text, sizeof finding->text, "%s", report.text);
		snprintf(finding->missing, sizeof finding->missing, "%s", report.missing ? report.missing : "");
		snprintf(finding->sides, sizeof finding->sides, "%s", report.sides_text ? report.sides_text : "");
		snprintf(finding->chain, sizeof finding->chain, "%s", report.chain ? report.chain : "");
		hang_report_free(&report);
	}
	hang_free(&set);
	return status == ST_OK;
}

/* While it hangs: until so many ranks are held up, in an operation (0: any) and not while they start. */
static void look_until(bool culprit, enum hang_verdict verdict, size_t held, uint64_t wanted, struct finding *finding)
{
	const int64_t until = st_now_ns() + 90 * ST_NS_PER_S;
	while (st_now_ns() < until && !(look(culprit, finding) && finding->verdict == verdict && finding->held >= held &&
					 (!wanted || finding->wanted == wanted)))
		usleep(50000);
}

#define CHECK_TEXT(haystack, needle) CHECK(strstr(haystack, needle), "'%s' lacks '%s'", haystack, needle)

static void named(const char *what, enum hang_where where, const char *why)
{
	struct finding finding;
	launch(what);
	look_until(true, HANG_CULPRIT, RANKS - 1, BEFORE + 1, &finding);
	CHECK(finding.verdict == HANG_CULPRIT && finding.rank == CULPRIT && finding.where == where && finding.held == RANKS - 1 && finding.sure == HANG_CERTAIN,
	      "%s: rank %u, %s, holds up %zu, %s: %s", what, finding.rank, hang_where_names[finding.where], finding.held, hang_sure_names[finding.sure],
	      finding.text);
	CHECK(finding.wanted == BEFORE + 1, "in operation %ju: %s", (uintmax_t)finding.wanted, finding.text);
	CHECK_TEXT(finding.text, why);
	CHECK(!*finding.missing, "%s", finding.missing);
	look_until(false, HANG_CULPRIT, RANKS - 1, BEFORE + 1, &finding);
	CHECK(finding.verdict == HANG_CULPRIT && finding.rank == CULPRIT && finding.where == HANG_MISSING && finding.sure == HANG_LIKELY,
	      "%s, its file missing: rank %u, %s, %s: %s", what, finding.rank, hang_where_names[finding.where], hang_sure_names[finding.sure], finding.text);
	CHECK(!strcmp(finding.missing, "no file of rank 2\n"), "%s", finding.missing);
	/* The command says the same, and ends with 0. */
	fflush(NULL);
	pid_t child = fork();
	if (!child) {
		char *argv[] = {"report", "--hang", directory, NULL};
		const int code = cmd_report(3, argv);
		fflush(NULL);
		_exit(code);
	}
	int status;
	REQUIRE(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "wait status %d", status);
	end(true);
}

static void test_exit(void)
{
	struct finding finding;
	launch("exit");
	CHECK(end(false) == 3, " ");
	REQUIRE(look(true, &finding));
	CHECK(finding.failed && finding.rank == CULPRIT && finding.where == HANG_GONE, "rank %u, %s: %s", finding.rank, hang_where_names[finding.where],
	      finding.text);
	REQUIRE(look(false, &finding));
	CHECK(finding.failed && (finding.rank == CULPRIT || !finding.held), "its file missing: rank %u: %s", finding.rank, finding.text);
}

static void test_other_collective(void)
{
	struct finding finding;
	launch("other");
	CHECK(end(false) != 0, " ");
	REQUIRE(look(true, &finding));
	CHECK(finding.failed && finding.verdict == HANG_MISMATCH, "%s: %s", hang_verdict_names[finding.verdict], finding.text);
	CHECK_TEXT(finding.sides, "ranks 0-1, 3 call allreduce 6 of 1 f32, sum");
	CHECK_TEXT(finding.sides, "rank 2 on");
	CHECK_TEXT(finding.sides, "calls barrier 6");
	CHECK_TEXT(finding.text, "ranks disagree on operation 6: rank 2");
}

static void test_decision(void)
{
	struct finding finding;
	launch("decide");
	look_until(true, HANG_CIRCLE, RANKS, 0, &finding);
	CHECK(finding.verdict == HANG_CIRCLE && finding.held == RANKS, "%s, %zu: %s", hang_verdict_names[finding.verdict], finding.held, finding.text);
	CHECK_TEXT(finding.chain, "rank 2 on");
	CHECK_TEXT(finding.chain, "in decision ");
	CHECK_TEXT(finding.chain, "for rank 2 in allreduce 6 of 1 f32, sum");
	end(true);
}

static void test_well(void)
{
	char *paths[RANKS];
	launch("well");
	CHECK(end(false) == 0, " ");
	CHECK(files(true, paths) == 0, "%s", paths[0]);
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "rank"))
		return rank_main(argv[2]);
	const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
	REQUIRE(n > 0);
	unsetenv("RANK");
	temporary_make();
	test_well();
	named("sleep", HANG_OUTSIDE, "has not entered allreduce 6 of 1 f32, sum; it finished allreduce 5 of 1 f32, sum at ");
	named("ordered", HANG_OUTSIDE, "has not entered allreduce_ordered 6 of 1 f32 in 4 leaves, sum; it finished allreduce_ordered 5 of 1 f32 in 4 leaves, sum");
	named("helper", HANG_OUTSIDE, "has been outside libcomm for ");
	named("flight", HANG_OUTSIDE, "nobody moves it on: it has been outside libcomm for ");
	named("stop", HANG_STOPPED, "has not entered allreduce 6 of 1 f32, sum; it finished allreduce 5 of 1 f32, sum at ");
	test_exit();
	test_other_collective();
	test_decision();
	return check_result();
}
