/*
 * The report: runs with a known culprit get the right verdict and exact figures, checked against sums done the plain way here;
 * what can't be judged is said to be so; the text fits 80 columns.
 *
 *   test_report make DIR SCENARIO    writes a scenario's record files, for tests/train/test_report.sh
 */
#include "check.h"

#include <json-c/json.h>
#include <math.h>

#include "common/clock.h"
#include "record_files.h"
#include "trainer/report.h"

static char scratch[] = "/tmp/synctrain-report-XXXXXX";
static char directory[256];

static void empty_directory(void)
{
	char command[512];

	snprintf(command, sizeof command, "rm -rf '%s'", directory);
	CHECK(system(command) == 0);
}

#define MS 1000000

/* ---- scenarios: busy time of a rank in a step ---- */

static int64_t even(uint64_t step, uint32_t rank)
{
	return 10 * MS + noise(step, rank, MS / 4);
}
static int64_t slow_host(uint64_t step, uint32_t rank)
{
	return (rank == 4 || rank == 5 ? 13 * MS : 10 * MS) + noise(step, rank, MS / 4);
}
static int64_t slow_rank(uint64_t step, uint32_t rank)
{
	return (rank == 5 ? 15 * MS : 10 * MS) + noise(step, rank, MS / 4);
}
static int64_t two_slow_hosts(uint64_t step, uint32_t rank)
{
	return (rank / 2 == 1 || rank / 2 == 4 ? 14 * MS : 10 * MS) + noise(step, rank / 2, MS / 4);
}
static int64_t scattered(uint64_t step, uint32_t rank)
{
	return (noise(step, 1000, 6) == (int64_t)rank ? 15 * MS : 10 * MS) + noise(step, rank, MS / 4);
}
static int64_t slow_for_a_time(uint64_t step, uint32_t rank)
{
	return (rank == 2 && step >= 100 && step < 160 ? 16 * MS : 10 * MS) + noise(step, rank, MS / 4);
}
static int64_t slow_most_of_the_time(uint64_t step, uint32_t rank)
{
	return (rank == 2 && step >= 60 ? 16 * MS : 10 * MS) + noise(step, rank, MS / 4);
}
/* Over the run the others are even, but in each stretch they scatter so widely that rank 5 does not stand out. */
static int64_t lost_in_the_crowd(uint64_t step, uint32_t rank)
{
	return rank == 5 ? 12 * MS : 85 * MS / 10 + noise(step / 10, rank, 3 * MS);
}
static int64_t slower_second_half(uint64_t step, uint32_t rank)
{
	return (rank % 4 >= 2 ? 13 * MS : 10 * MS) + noise(step, rank, MS / 4);
}
static int64_t identical(uint64_t step, uint32_t rank)
{
	(void)step;
	return rank == 3 ? 12 * MS : 10 * MS;
}
static int64_t two_uneven(uint64_t step, uint32_t rank)
{
	return (rank ? 14 * MS : 10 * MS) + noise(step, rank, MS / 4);
}
static int64_t half_left(uint64_t step, uint32_t rank)
{
	return rank == 1 && step % 3 ? 0 : rank >= 4 ? 0 : even(step, rank);
}
static int64_t slowing_down(uint64_t step, uint32_t rank)
{
	return (10 * MS + noise(step, rank, MS / 4)) * (step >= 150 ? 3 : 2) / 2;
}

struct loaded {
	struct train_record_set set;
	struct train_report report;
};

static void open_report(struct loaded *loaded)
{
	struct train_report_options options;

	train_report_options_init(&options);
	CHECK_OK(train_records_load(directory, &loaded->set));
	CHECK_OK(train_report_make(&loaded->set, &options, &loaded->report));
}

static void close_report(struct loaded *loaded)
{
	train_report_free(&loaded->report);
	train_records_free(&loaded->set);
	empty_directory();
}

static void run_of(struct loaded *loaded, uint32_t ranks, uint32_t per_host, uint64_t steps, busy_of *busy)
{
	save_run(directory, 1, "7.0.0", ranks, per_host, 0, steps, busy);
	open_report(loaded);
}

static void expect_verdict(const struct loaded *loaded, enum train_report_verdict verdict, const char *text)
{
	CHECK(loaded->report.verdict == verdict, "verdict %s, expected %s", train_report_verdict_name(loaded->report.verdict),
	      train_report_verdict_name(verdict));
	CHECK(!strcmp(loaded->report.verdict_text, text), "\n  seen:     %s\n  expected: %s", loaded->report.verdict_text, text);
}

static void expect_evidence(const struct loaded *loaded, const char *text)
{
	CHECK(strstr(loaded->report.evidence, text), "evidence '%s' lacks '%s'", loaded->report.evidence, text);
}

/* ---- the same figures, the plain way ---- */

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static double plain_median(double *values, size_t n)
{
	qsort(values, n, sizeof *values, by_size);
	return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

static bool near(double a, double b)
{
	return fabs(a - b) <= 1e-9 * fabs(b) + 1e-9;
}

/* Every figure of a run whose ranks all left all records. */
static void check_figures(const struct loaded *loaded, uint32_t ranks, uint32_t per_host, uint64_t steps, busy_of *busy)
{
	const struct train_report *report = &loaded->report;
	double values[512], medians[64], deviations[64], total = 0, lost = 0, saving[64] = {0}, host_saving[64] = {0}, slowest[64] = {0};
	size_t n = steps - 1; /* the first is warm-up */

	CHECK(report->rank_count == ranks && report->steps == n && report->judged_steps == n && report->records == n * ranks);
	CHECK(report->missing == 0 && report->first_step == 1 && report->last_step == steps - 1 && report->warmup_steps == 1);
	for (uint64_t s = 1; s < steps; s++) {
		uint32_t top = 0;
		double rank_rest = 0, host_rest = 0, most, ties = 0;

		for (uint32_t r = 0; r < ranks; r++) {
			values[r] = (double)busy(s, r);
			top = busy(s, r) > busy(s, top) ? r : top;
		}
		most = (double)busy(s, top);
		for (uint32_t r = 0; r < ranks; r++) {
			rank_rest = r != top ? fmax(rank_rest, values[r]) : rank_rest;
			host_rest = r / per_host != top / per_host ? fmax(host_rest, values[r]) : host_rest;
		}
		for (uint32_t r = 0; r < ranks; r++)
			ties += values[r] == most;
		for (uint32_t r = 0; r < ranks; r++)
			slowest[r] += values[r] == most ? 1.0 / ties / (double)n : 0;
		saving[top] += most - rank_rest;
		host_saving[top / per_host] += ranks > per_host ? most - host_rest : 0;
		total += most + floor(most / 10);
		lost += most - plain_median(values, ranks);
	}
	CHECK(near(report->total_ns, total) && near(report->lost_ns, lost), "%f %f", report->total_ns, report->lost_ns);
	for (uint32_t r = 0; r < ranks; r++) {
		const struct train_report_rank *rank = &report->ranks[r];
		const struct train_report_spread *of = &rank->of[TRAIN_REPORT_BUSY];
		double sum = 0;

		for (uint64_t s = 1; s < steps; s++)
			sum += values[s - 1] = (double)busy(s, r);
		medians[r] = plain_median(values, n);
		CHECK(rank->rank == r && rank->steps == n && near(rank->busy_ns, medians[r]) && near(of->p50_ns, medians[r]), "rank %u: %f", r, rank->busy_ns);
		CHECK(near(of->mean_ns, sum / (double)n) && of->max_ns == (int64_t)values[n - 1], "rank %u: %f", r, of->mean_ns);
		/* At least 95 % are not above it, and with the next smaller it would not be so. */
		CHECK(of->p95_ns == (int64_t)values[(size_t)ceil(0.95 * (double)n - 1e-9) - 1], "rank %u: %lld", r, (long long)of->p95_ns);
		CHECK(near(rank->slowest_share, slowest[r]) && near(rank->saving_ns, saving[r]), "rank %u: %f, expected %f", r, rank->saving_ns, saving[r]);
		for (uint64_t s = 1; s < steps; s++)
			values[s - 1] = (double)record_of(s, r, busy(s, r), 0).phase_ns[TRAIN_PHASE_FORWARD];
		CHECK(near(rank->of[TRAIN_PHASE_FORWARD].p50_ns, plain_median(values, n)));
	}
	memcpy(values, medians, ranks * sizeof *medians);
	double middle = plain_median(values, ranks);
	for (uint32_t r = 0; r < ranks; r++)
		deviations[r] = fabs(medians[r] - middle);
	double mad = plain_median(deviations, ranks);
	CHECK(near(report->busy_ns, middle) && near(report->mad_ns, mad), "%f %f", report->busy_ns, report->mad_ns);
	for (uint32_t r = 0; r < ranks; r++) {
		CHECK(near(report->ranks[r].ratio, medians[r] / middle));
		if (ranks >= 3)
			CHECK(near(report->ranks[r].z, 0.6745 * (medians[r] - middle) / fmax(mad, 0.01 * middle)), "rank %u: z %f", r, report->ranks[r].z);
		else
			CHECK(isnan(report->ranks[r].z));
	}
	CHECK(report->host_count == (ranks + per_host - 1) / per_host);
	for (size_t h = 0; h < report->host_count; h++) {
		char name[32];
		snprintf(name, sizeof name, "node%zu", h + 1);
		CHECK(!strcmp(report->hosts[h].name, name) && near(report->hosts[h].saving_ns, host_saving[h]), "%s saves %f, expected %f", name,
		      report->hosts[h].saving_ns, host_saving[h]);
	}
}

static void test_known_culprits(void)
{
	struct loaded loaded;

	run_of(&loaded, 6, 2, 200, slow_host);
	check_figures(&loaded, 6, 2, 200, slow_host);
	expect_verdict(&loaded, TRAIN_VERDICT_STRAGGLER,
		       "node3 (ranks 4, 5) is slow: 1.30x the median, slowest in 100 % of steps, costs 21 % of step time");
	expect_evidence(&loaded, "all ranks of node3 are slow");
	CHECK(loaded.report.hosts[2].flagged && !loaded.report.hosts[0].flagged && !loaded.report.ranks[3].flagged);
	CHECK(near(loaded.report.flagged_saving_ns, loaded.report.hosts[2].saving_ns));
	close_report(&loaded);

	run_of(&loaded, 8, 4, 200, slow_rank);
	check_figures(&loaded, 8, 4, 200, slow_rank);
	expect_verdict(&loaded, TRAIN_VERDICT_STRAGGLER,
		       "rank 5 (node2) is slow: 1.49x the median, slowest in 100 % of steps, costs 29 % of step time");
	expect_evidence(&loaded, "its GPU or cores rather than the host");
	expect_evidence(&loaded, "60 % of its extra time is in backward, 3 ms a step");
	CHECK(loaded.report.ranks[5].flagged && !loaded.report.hosts[1].flagged && loaded.report.hosts[1].flagged_ranks == 1);
	close_report(&loaded);

	/* Each of two equally slow hosts hides the other: alone they save next to nothing, together a lot. */
	run_of(&loaded, 10, 2, 200, two_slow_hosts);
	check_figures(&loaded, 10, 2, 200, two_slow_hosts);
	CHECK(loaded.report.verdict == TRAIN_VERDICT_STRAGGLER);
	CHECK(strstr(loaded.report.verdict_text, "node2 (ranks 2, 3)") && strstr(loaded.report.verdict_text, "node5 (ranks 8, 9)") &&
	      strstr(loaded.report.verdict_text, "are slow: up to 1.40x") && strstr(loaded.report.verdict_text, "cost 26 % of"),
	      "%s", loaded.report.verdict_text);
	CHECK(loaded.report.flagged_saving_ns > 5 * (loaded.report.hosts[1].saving_ns + loaded.report.hosts[4].saving_ns));
	close_report(&loaded);

	/* All others exactly equal: MAD is 0, which must not make everything or nothing an outlier. */
	run_of(&loaded, 4, 1, 50, identical);
	check_figures(&loaded, 4, 1, 50, identical);
	expect_verdict(&loaded, TRAIN_VERDICT_STRAGGLER,
		       "node4 (rank 3) is slow: 1.20x the median, slowest in 100 % of steps, costs 15 % of step time");
	close_report(&loaded);

	run_of(&loaded, 3, 1, 200, slow_most_of_the_time);
	expect_verdict(&loaded, TRAIN_VERDICT_STRAGGLER,
		       "node3 (rank 2) is slow: 1.59x the median, slowest in 81 % of steps, costs 27 % of step time");
	CHECK(loaded.report.ranks[2].windows == 20 && loaded.report.ranks[2].windows_slow == 14, "%u of %u windows",
	      loaded.report.ranks[2].windows_slow, loaded.report.ranks[2].windows);
	close_report(&loaded);
}

static void test_no_culprit(void)
{
	struct loaded loaded;

	run_of(&loaded, 6, 2, 200, even);
	check_figures(&loaded, 6, 2, 200, even);
	expect_verdict(&loaded, TRAIN_VERDICT_NONE, "no straggler: the slowest rank costs 1 % of step time");
	CHECK(!*loaded.report.evidence, "%s", loaded.report.evidence);
	close_report(&loaded);

	run_of(&loaded, 6, 2, 200, scattered);
	check_figures(&loaded, 6, 2, 200, scattered);
	CHECK(loaded.report.verdict == TRAIN_VERDICT_UNEVEN);
	CHECK(strstr(loaded.report.verdict_text, "ranks take turns") && strstr(loaded.report.verdict_text, "the work is uneven"), "%s",
	      loaded.report.verdict_text);
	close_report(&loaded);

	run_of(&loaded, 6, 2, 200, slow_for_a_time);
	check_figures(&loaded, 6, 2, 200, slow_for_a_time);
	expect_verdict(&loaded, TRAIN_VERDICT_PASSING,
		       "no lasting straggler: rank 2 (node2) was slow in 6 of 20 stretches of the run; waiting for the slowest rank costs 14 % of "
		       "step time");
	close_report(&loaded);

	run_of(&loaded, 7, 1, 401, lost_in_the_crowd);
	check_figures(&loaded, 7, 1, 401, lost_in_the_crowd);
	CHECK(loaded.report.ranks[5].ratio > 1.1 && loaded.report.ranks[5].z > 3.5, "ratio %f, z %f", loaded.report.ranks[5].ratio,
	      loaded.report.ranks[5].z);
	CHECK(2 * loaded.report.ranks[5].windows_slow < loaded.report.ranks[5].windows && !loaded.report.ranks[5].flagged, "%u windows",
	      loaded.report.ranks[5].windows_slow);
	close_report(&loaded);

	run_of(&loaded, 6, 2, 200, slowing_down);
	CHECK(loaded.report.verdict == TRAIN_VERDICT_NONE && fabs(loaded.report.drift - 1.5) < 0.02, "%f", loaded.report.drift);
	expect_evidence(&loaded, "all ranks: the last stretch of the run is 1.5");
	close_report(&loaded);
}

static void test_what_has_no_majority_is_not_judged(void)
{
	struct loaded loaded;

	run_of(&loaded, 1, 1, 50, even);
	expect_verdict(&loaded, TRAIN_VERDICT_UNKNOWN, "one rank: there is nothing to compare it with");
	close_report(&loaded);

	run_of(&loaded, 2, 1, 50, two_uneven);
	check_figures(&loaded, 2, 1, 50, two_uneven);
	expect_verdict(&loaded, TRAIN_VERDICT_SPLIT,
		       "rank 1 (node2) needs 1.40x the time of rank 0 (node1), which costs 26 % of step time; two ranks have no majority to tell "
		       "which is unusual: compare with another run");
	close_report(&loaded);

	run_of(&loaded, 2, 2, 50, even);
	expect_verdict(&loaded, TRAIN_VERDICT_NONE, "no straggler: the slowest rank costs 0 % of step time");
	close_report(&loaded);

	run_of(&loaded, 4, 2, 100, slower_second_half);
	check_figures(&loaded, 4, 2, 100, slower_second_half);
	CHECK(loaded.report.verdict == TRAIN_VERDICT_SPLIT && strstr(loaded.report.verdict_text, "node2 (ranks 2, 3) needs 1.30x the time of node1"),
	      "%s", loaded.report.verdict_text);
	close_report(&loaded);

	run_of(&loaded, 6, 2, 4, slow_host);
	expect_verdict(&loaded, TRAIN_VERDICT_UNKNOWN, "can't tell: 3 steps with records of enough ranks, at least 4 expected");
	close_report(&loaded);
}

static void test_missing_records_are_said(void)
{
	struct loaded loaded;

	run_of(&loaded, 8, 2, 100, half_left);
	/* Ranks 4-7 left nothing, rank 1 a third: 3 whole and 1 third of 99 steps; a step of 4 ranks of 8 is judged, one of 3 is not. */
	CHECK(loaded.report.records == 3 * 99 + 33 && loaded.report.missing == 8 * 99 - (3 * 99 + 33), "%zu, %llu", loaded.report.records,
	      (unsigned long long)loaded.report.missing);
	CHECK(loaded.report.steps == 99 && loaded.report.judged_steps == 33 && loaded.report.rank_count == 4);
	CHECK(loaded.report.verdict == TRAIN_VERDICT_NONE);
	expect_evidence(&loaded, "no records of ranks 4-7");
	close_report(&loaded);
}

static void test_launches(void)
{
	struct train_report_options options;
	struct loaded loaded;

	/* A job that stopped at step 100 and was resumed from 80, on the same hosts. */
	save_run(directory, 1, "7.0.0", 6, 2, 0, 100, slow_rank);
	save_run(directory, 2, "7.0.1", 6, 2, 80, 100, slow_rank);
	open_report(&loaded);
	CHECK(loaded.set.superseded == 20 * 6 && loaded.report.launches == 2 && loaded.report.launches_left_out == 0);
	CHECK(loaded.report.warmup_steps == 2 && loaded.report.steps == 178, "%zu steps", loaded.report.steps);
	CHECK(loaded.report.verdict == TRAIN_VERDICT_STRAGGLER && loaded.report.missing == 0);
	close_report(&loaded);

	/* The same on other hosts: a host is judged only by what ran on it. */
	save_run(directory, 1, "7.0.0", 6, 2, 0, 100, slow_host);
	save_run(directory, 2, "7.0.1", 6, 3, 80, 100, even);
	open_report(&loaded);
	CHECK(loaded.report.launches == 1 && loaded.report.launches_left_out == 1 && loaded.report.steps == 99 && loaded.report.host_count == 2);
	CHECK(loaded.report.verdict == TRAIN_VERDICT_NONE);
	train_report_free(&loaded.report);
	train_report_options_init(&options);
	options.launch = 1;
	options.warmup = 10;
	options.last_step = 69;
	CHECK_OK(train_report_make(&loaded.set, &options, &loaded.report));
	CHECK(loaded.report.steps == 60 && loaded.report.first_step == 10 && loaded.report.last_step == 69 && loaded.report.host_count == 3);
	CHECK(loaded.report.verdict == TRAIN_VERDICT_STRAGGLER && strstr(loaded.report.verdict_text, "node3 (ranks 4, 5)"));
	train_report_free(&loaded.report);
	options.launch = 3;
	CHECK_FAILS(train_report_make(&loaded.set, &options, &loaded.report), ST_ERR_USAGE, "the records hold 2");
	options.launch = 0;
	options.first_step = 5000;
	options.last_step = UINT64_MAX;
	CHECK_FAILS(train_report_make(&loaded.set, &options, &loaded.report), ST_ERR_DATA, "no step is left");
	close_report(&loaded);
}

/* Rank 3 shares its cores; rank 1 waits for its data. */
static void test_evidence(void)
{
	struct image image = {0};
	struct train_hosts runs = {0, 5, "box"};

	mkdir(directory, 0755);
	image_session(&image, 1, 1, "job", 5, &runs, 1);
	for (uint64_t step = 0; step < 100; step++) {
		struct train_record records[5];
		for (uint32_t r = 0; r < 5; r++)
			records[r] = record_of(step, r, 10 * MS, 20 * MS);
		records[3].runqueue_ns = 36 * MS / 10;
		records[1].phase_ns[TRAIN_PHASE_DATA] += 5 * MS;
		records[1].runqueue_ns = 14 * MS / 10;
		image_block(&image, RECORDS_STEPS, 1, records, sizeof records);
	}
	image_save(&image, "%s/steps-a.rec", directory);
	image_free(&image);
	struct loaded loaded;
	open_report(&loaded);
	CHECK(near(loaded.report.ranks[3].runqueue_share, 0.18) && near(loaded.report.ranks[1].runqueue_share, 0.07));
	CHECK(strstr(loaded.report.verdict_text, "rank 1 is slow: 1.50x"), "%s", loaded.report.verdict_text);
	expect_evidence(&loaded, "so its input rather than the host");
	expect_evidence(&loaded, "rank 1: 100 % of its extra time is in data, 5 ms a step: reading, not computing\n");
	expect_evidence(&loaded, "rank 3 was runnable but not running for 18 % of step time: its cores are shared\n");
	expect_evidence(&loaded, "rank 1 was runnable but not running for 7 % of step time");
	close_report(&loaded);
}

/* Ranks that take turns at being slowest while the first `sharing` of them wait for cores. */
static void expect_turns(uint32_t sharing, const char *ending)
{
	struct train_hosts runs = {0, 6, "box"};
	struct image image = {0};
	struct loaded loaded;

	mkdir(directory, 0755);
	image_session(&image, 1, 1, "job", 6, &runs, 1);
	for (uint64_t step = 0; step < 100; step++) {
		struct train_record records[6];
		for (uint32_t r = 0; r < 6; r++) {
			records[r] = record_of(step, r, scattered(step, r), 20 * MS);
			records[r].runqueue_ns = r < sharing ? 3 * MS : 0;
		}
		image_block(&image, RECORDS_STEPS, 1, records, sizeof records);
	}
	image_save(&image, "%s/steps-a.rec", directory);
	image_free(&image);
	open_report(&loaded);
	const char *text = loaded.report.verdict_text;
	CHECK(loaded.report.verdict == TRAIN_VERDICT_UNEVEN);
	CHECK(strlen(text) > strlen(ending) && !strcmp(text + strlen(text) - strlen(ending), ending), "'%s' does not end with '%s'", text, ending);
	close_report(&loaded);
}

static void test_shared_cores_are_not_uneven_work(void)
{
	expect_turns(6, "of steps, because ranks share cores");
	expect_turns(3, "of steps, because ranks share cores");
	expect_turns(2, "of steps, so the work is uneven (data, sequence lengths)");
}

/* ---- how it is shown ---- */

static char *printed(const struct loaded *loaded, const char *from, bool all)
{
	char *text = NULL;
	size_t bytes;
	FILE *stream = open_memstream(&text, &bytes);

	CHECK(train_report_print(&loaded->report, from, all, stream));
	fclose(stream);
	size_t column = 0;
	for (const char *p = text; *p; p++) {
		CHECK(*p == '\n' || (*p >= ' ' && *p <= '~'), "byte 0x%02x", (unsigned char)*p);
		column = *p == '\n' ? 0 : column + 1;
		CHECK(column <= 80, "a line of more than 80 columns: %.90s", p - 80);
		CHECK(*p != '\n' || p == text || p[-1] != ' ', "spaces at the end of a line: %.60s", p > text + 50 ? p - 50 : text);
	}
	return text;
}

static const char golden[] =
	"verdict: node2 (rank 1) is slow: 1.20x the median, slowest in 100 % of steps,\n"
	"         costs 15 % of step time\n"
	"\n"
	"  - rank 1 (node2): 60 % of its extra time is in backward, 1.2 ms a step\n"
	"\n"
	"job      7.0.0: 3 ranks, 3 hosts\n"
	"from     /reports/7, 3 files\n"
	"steps    1-9: 9 used, 1 warm-up left out; 1 launch\n"
	"data     27 of 27 records; 0 missing, 0 dropped, 0 superseded, 0 damaged\n"
	"step     mean 13.20 ms, p50 13.20, p95 13.20, max 13.20; 2.273e+05 tokens/s;\n"
	"         loss 5 -> 1\n"
	"lost     2.000 ms a step (max busy - median busy), 15 % of step time\n"
	"\n"
	"where a step goes (ms, all ranks)\n"
	"phase            mean      p50      p95      max   share\n"
	"data            1.067    1.000    1.200    1.200     8 %\n"
	"forward         3.200    3.000    3.600    3.600    24 %\n"
	"backward        6.400    6.000    7.200    7.200    48 %\n"
	"wait            2.533    3.200    3.200    3.200    19 %\n"
	"busy            10.67    10.00    12.00    12.00    81 %\n"
	"step            13.20    13.20    13.20    13.20   100 %\n"
	"\n"
	"hosts, slowest first (ms)\n"
	"host                    ranks  busy p50   ratio  slowest   saving\n"
	"node2                       1     12.00    1.20    100 %     15 %  SLOW\n"
	"node1                       1     10.00    1.00      0 %      0 %\n"
	"node3                       1     10.00    1.00      0 %      0 %\n"
	"\n"
	"ranks (ms)\n"
	"                          busy     busy     wait     step\n"
	"   rank host               p50      p95      p50      p50  ratio      z slowest\n"
	"      0 node1            10.00    10.00    3.200    13.20   1.00    0.0     0 %\n"
	"      1 node2            12.00    12.00    1.200    13.20   1.20   13.5   100 %*\n"
	"      2 node3            10.00    10.00    3.200    13.20   1.00    0.0     0 %\n"
	"ratio: busy over the median of ranks; z: robust score; *: straggler\n"
	"\n"
	"p50 of each phase (ms)\n"
	"   rank    data forward backwrd    wait\n"
	"      0   1.000   3.000   6.000   3.200\n"
	"      1   1.200   3.600   7.200   1.200\n"
	"      2   1.000   3.000   6.000   3.200\n"
	"\n"
	"p95 of each phase (ms)\n"
	"   rank    data forward backwrd    wait\n"
	"      0   1.000   3.000   6.000   3.200\n"
	"      1   1.200   3.600   7.200   1.200\n"
	"      2   1.000   3.000   6.000   3.200\n"
	"\n"
	"max of each phase (ms)\n"
	"   rank    data forward backwrd    wait\n"
	"      0   1.000   3.000   6.000   3.200\n"
	"      1   1.200   3.600   7.200   1.200\n"
	"      2   1.000   3.000   6.000   3.200\n";

static int64_t second_of_three(uint64_t step, uint32_t rank)
{
	(void)step;
	return rank == 1 ? 12 * MS : 10 * MS;
}

static void test_text(void)
{
	struct loaded loaded;

	run_of(&loaded, 3, 1, 10, second_of_three);
	char *text = printed(&loaded, "/reports/7", false), *all = printed(&loaded, "/reports/7", true);

	CHECK(!strcmp(text, golden), "the text is not the expected one:\n%s", text);
	CHECK(strstr(all, "mean of each phase"));
	free(text);
	free(all);
	close_report(&loaded);

	/* Many ranks: the worst are shown, and all on request. */
	save_run(directory, 1, "7.0.0", 60, 1, 0, 20, even);
	save_run(directory, 2, "7.0.1", 60, 1, 20, 20, slow_rank);
	open_report(&loaded);
	text = printed(&loaded, "x", false);
	all = printed(&loaded, "x", true);
	CHECK(strstr(text, "the 16 slowest of 60 ranks") && strstr(text, "\n      5 node6 ") && strlen(text) < 8000, "%zu bytes", strlen(text));
	CHECK(strstr(all, "\n     59 node60 ") && strstr(all, "\n      0 node1 "));
	free(text);
	free(all);
	close_report(&loaded);
}

/* The widest numbers, the longest names, and names that would move the cursor. */
static void extreme_values(uint32_t world)
{
	struct image image = {0};
	struct train_hosts runs[3] = {{0, 1, "abcdefghijklmnopqrstuvwxyz-abcdefghijklmnopqrstuvwxyz-1234"}, {1, 1, "\033[31mred\n"}, {2, world - 2, "b"}};
	const char *from = "/a path/with \033[2J and/\xff\xfe/very-very-very-very-very-very-very-very-very-very-very-very-long-names-without-end";

	mkdir(directory, 0755);
	memset(runs[0].host + 58, 'z', 6);
	image_session(&image, 1, 1, "\033]0;title\007 job with a very long name that goes on and on and on and on", world, runs, 3);
	for (uint64_t step = 0; step < 40; step++) {
		struct train_record records[3];
		for (uint32_t r = 0; r < 3; r++) {
			records[r] = record_of(step, r, r == 2 ? INT64_C(1) << 49 : 5, INT64_C(1) << 50);
			records[r].step = step << 46;
			records[r].tokens = UINT64_C(1) << 52;
			for (int p = TRAIN_PHASE_EXPOSED; p < TRAIN_PHASE_COUNT; p++)
				records[r].phase_ns[p] = INT64_C(1) << 50;
			records[r].loss = r ? INFINITY : NAN;
		}
		records[2].rank = world - 1;
		image_block(&image, RECORDS_STEPS, 1, records, sizeof records);
	}
	image_save(&image, "%s/steps-a.rec", directory);
	image_free(&image);
	struct loaded loaded;
	open_report(&loaded);
	char *text = printed(&loaded, from, true), *json = NULL;
	CHECK(loaded.report.verdict == (world > 3 ? TRAIN_VERDICT_UNKNOWN : TRAIN_VERDICT_STRAGGLER) && strstr(text, "\\x1b[2J"));
	CHECK_OK(train_report_json(&loaded.report, from, &json));
	struct json_object *root = json_tokener_parse(json);
	CHECK(root, "no JSON");
	for (const char *p = json; *p; p++)
		CHECK((*p >= ' ' && *p <= '~') || *p == '\n', "byte 0x%02x in JSON", (unsigned char)*p);
	json_object_put(root);
	free(json);
	free(text);
	close_report(&loaded);
}

static void test_extreme_values_keep_the_form(void)
{
	extreme_values(TRAIN_RANKS_MAX);
	extreme_values(3);
}

static struct json_object *at(struct json_object *object, const char *key)
{
	struct json_object *value = NULL;

	CHECK(json_object_object_get_ex(object, key, &value), "no key '%s'", key);
	return value;
}

static void test_json(void)
{
	static const char *const keys[] = {
		"version", "verdict", "verdict_text", "evidence", "directory", "job", "launched_unix_ns", "world_size", "data_quality", "steps",
		"step_time_total_ns", "lost_ns", "lost_share", "flagged_saving_ns", "busy_median_ns", "busy_mad_ns", "tokens_per_s", "first_loss",
		"last_loss", "drift_ratio", "phases", "hosts", "ranks",
	};
	struct loaded loaded;

	run_of(&loaded, 6, 2, 200, slow_host);
	char *text = NULL;

	CHECK_OK(train_report_json(&loaded.report, "/a \"quoted\" \\ path", &text));
	struct json_object *root = json_tokener_parse(text);
	CHECK(root && !strstr(text, "NaN") && !strstr(text, "Infinity"));
	/* Scripts rely on the keys: taking one away or renaming it is an incompatible change. */
	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
		at(root, keys[i]);
	CHECK(json_object_object_length(root) == sizeof keys / sizeof *keys, "a new key: add it here and in report_json.c");
	CHECK(!strcmp(json_object_get_string(at(root, "directory")), "/a \"quoted\" \\ path"));
	CHECK(!strcmp(json_object_get_string(at(root, "verdict")), "straggler"));
	CHECK(json_object_get_int(at(root, "world_size")) == 6 && json_object_get_int(at(at(root, "steps"), "judged")) == 199);
	CHECK(json_object_get_int(at(at(root, "data_quality"), "records")) == 1194);
	CHECK(json_object_get_int64(at(root, "lost_ns")) == llround(loaded.report.lost_ns));
	struct json_object *host = json_object_array_get_idx(at(root, "hosts"), 2);
	CHECK(!strcmp(json_object_get_string(at(host, "host")), "node3") && json_object_get_boolean(at(host, "flagged")));
	CHECK(json_object_array_length(at(host, "ranks")) == 2 && json_object_get_int(json_object_array_get_idx(at(host, "ranks"), 1)) == 5);
	CHECK(json_object_array_length(at(root, "ranks")) == 6);
	struct json_object *rank = json_object_array_get_idx(at(root, "ranks"), 4);
	CHECK(json_object_get_int(at(rank, "rank")) == 4 && near(json_object_get_double(at(rank, "z")), loaded.report.ranks[4].z));
	CHECK(json_object_get_int64(at(at(at(rank, "phases"), "backward"), "p95_ns")) == loaded.report.ranks[4].of[TRAIN_PHASE_BACKWARD].p95_ns);
	json_object_put(root);
	free(text);
	close_report(&loaded);

	run_of(&loaded, 1, 1, 20, even);
	CHECK_OK(train_report_json(&loaded.report, "x", &text));
	root = json_tokener_parse(text);
	CHECK(root && !strcmp(json_object_get_string(at(root, "verdict")), "unknown"));
	rank = json_object_array_get_idx(at(root, "ranks"), 0);
	CHECK(!at(rank, "z"), "what can't be known is null");
	json_object_put(root);
	free(text);
	close_report(&loaded);
}

/* A large job must not take for ever; the bound is for a busy machine with sanitizers. */
static void test_a_large_job_is_quick(void)
{
	save_run(directory, 1, "7.0.0", 256, 8, 0, 200, slow_rank);
	int64_t before = st_now_ns();
	struct loaded loaded;
	open_report(&loaded);
	CHECK(st_now_ns() - before < 30 * ST_NS_PER_S && loaded.report.records == 256 * 199);
	CHECK(strstr(loaded.report.verdict_text, "rank 5 (node1) is slow: 1.49x"), "%s", loaded.report.verdict_text);
	close_report(&loaded);
}

static int make_scenario(const char *where, const char *name)
{
	static const struct {
		const char *name;
		uint32_t ranks, per_host;
		busy_of *busy;
	} scenarios[] = {
		{"slow-host", 6, 2, slow_host}, {"slow-rank", 8, 4, slow_rank}, {"even", 6, 2, even},
		{"scattered", 6, 2, scattered}, {"two-ranks", 2, 1, two_uneven}, {"one-rank", 1, 1, even},
	};

	for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
		if (!strcmp(scenarios[i].name, name)) {
			save_run(where, 1, "7.0.0", scenarios[i].ranks, scenarios[i].per_host, 0, 200, scenarios[i].busy);
			return 0;
		}
	fprintf(stderr, "no scenario '%s'\n", name);
	return 64;
}

int main(int argc, char **argv)
{
	if (argc == 4 && !strcmp(argv[1], "make"))
		return make_scenario(argv[2], argv[3]);
	if (!mkdtemp(scratch))
		return 1;
	snprintf(directory, sizeof directory, "%s/run", scratch);
	test_known_culprits();
	test_no_culprit();
	test_what_has_no_majority_is_not_judged();
	test_missing_records_are_said();
	test_launches();
	test_evidence();
	test_shared_cores_are_not_uneven_work();
	test_text();
	test_extreme_values_keep_the_form();
	test_json();
	test_a_large_job_is_quick();
	rmdir(scratch);
	return check_result();
}
