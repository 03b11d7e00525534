/* From numbers to one sentence and the evidence for it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/report.h"

#define SIDES_RATIO 1.10      /* two ranks or hosts that differ by more are worth a word */
#define UNEVEN_SHARE 0.10     /* of step time lost without a straggler */
#define PASSING_SHARE 0.03
#define RUNQUEUE_FLAGGED 0.05 /* of step time, for a flagged rank */
#define RUNQUEUE_ANY 0.10
#define DRIFT_RATIO 1.15
#define STEPS_MIN 4u

const char *train_report_verdict_name(enum train_report_verdict verdict)
{
	static const char *const names[] = {"none", "straggler", "passing", "uneven", "split", "unknown"};

	return (unsigned)verdict < sizeof names / sizeof *names ? names[verdict] : "unknown";
}

static double share(const struct train_report *report, double ns)
{
	return report->total_ns > 0 ? ns / report->total_ns : 0;
}

/* Prints "rank 4", "ranks 4, 5" or "ranks 0-3, 8": n ascending ranks, at most about 60 characters. */
static void print_ranks(FILE *out, const struct train_report *report, const size_t *indices, size_t n)
{
	size_t shown = 0, next;

	fputs(n == 1 ? "rank " : "ranks ", out);
	for (size_t i = 0; i < n; i = next) {
		uint32_t first = report->ranks[indices[i]].rank, last = first;

		for (next = i + 1; next < n && report->ranks[indices[next]].rank == last + 1; next++)
			last++;
		if (last == first + 1)
			next = i + 1, last = first;
		fputs(i ? ", " : "", out);
		if (shown++ == 6 && next < n) {
			fprintf(out, "and %zu more", n - i);
			return;
		}
		if (last == first)
			fprintf(out, "%u", first);
		else
			fprintf(out, "%u-%u", first, last);
	}
}

/* "rank 3", or "rank 3 (node2)" where there are several hosts. */
static void print_rank(FILE *out, const struct train_report *report, size_t index)
{
	const struct train_report_rank *rank = &report->ranks[index];
	const char *host = report->hosts[rank->host].name;

	fprintf(out, *host && report->host_count > 1 ? "rank %u (%s)" : "rank %u", rank->rank, host);
}

/* What is named in the verdict: a host whose ranks are all flagged, or one flagged rank. */
struct culprit {
	size_t host, rank; /* rank SIZE_MAX: the host */
	double ratio;
};

static bool blames_host(const struct train_report *report, const struct train_report_host *host)
{
	return host->flagged && *host->name && report->host_count > 1;
}

static int by_ratio(const void *a, const void *b)
{
	const struct culprit *x = a, *y = b;

	if (x->ratio != y->ratio)
		return x->ratio > y->ratio ? -1 : 1;
	return x->host < y->host ? -1 : x->host > y->host ? 1 : x->rank < y->rank ? -1 : x->rank > y->rank;
}

static size_t list_culprits(const struct train_report *report, struct culprit *culprits)
{
	size_t n = 0;

	for (size_t h = 0; h < report->host_count; h++) {
		const struct train_report_host *host = &report->hosts[h];

		if (blames_host(report, host)) {
			culprits[n++] = (struct culprit){h, SIZE_MAX, host->ratio};
			continue;
		}
		for (size_t i = 0; i < host->rank_count; i++)
			if (report->ranks[host->ranks[i]].flagged)
				culprits[n++] = (struct culprit){h, host->ranks[i], report->ranks[host->ranks[i]].ratio};
	}
	qsort(culprits, n, sizeof *culprits, by_ratio);
	return n;
}

static void print_culprit(FILE *out, const struct train_report *report, const struct culprit *culprit)
{
	const struct train_report_host *host = &report->hosts[culprit->host];

	if (culprit->rank != SIZE_MAX) {
		print_rank(out, report, culprit->rank);
		return;
	}
	fprintf(out, "%s (", host->name);
	print_ranks(out, report, host->ranks, host->rank_count);
	fputc(')', out);
}

static void say_stragglers(FILE *out, const struct train_report *report, const struct culprit *culprits, size_t n)
{
	double slowest = 0;

	for (size_t r = 0; r < report->rank_count; r++)
		if (report->ranks[r].flagged)
			slowest += report->ranks[r].slowest_share;
	for (size_t i = 0; i < n && i < 4; i++) {
		fputs(!i ? "" : i + 1 == n ? " and " : ", ", out);
		print_culprit(out, report, &culprits[i]);
	}
	if (n > 4)
		fprintf(out, " and %zu more", n - 4);
	fprintf(out, " %s slow: %s%.2fx the median, slowest in %.0f %% of steps, cost%s %.0f %% of step time", n == 1 ? "is" : "are",
		n == 1 ? "" : "up to ", culprits[0].ratio, slowest * 100, n == 1 ? "s" : "", share(report, report->flagged_saving_ns) * 100);
}

static size_t count_judged(const struct train_report *report)
{
	size_t n = 0;

	for (size_t r = 0; r < report->rank_count; r++)
		n += report->ranks[r].judged;
	return n;
}

/* Two ranks, of which one needs more. False: they are even, or not two. */
static bool say_two_ranks(FILE *out, const struct train_report *report)
{
	size_t slow = SIZE_MAX, fast = SIZE_MAX;

	if (count_judged(report) != 2)
		return false;
	for (size_t r = 0; r < report->rank_count; r++) {
		if (!report->ranks[r].judged)
			continue;
		if (slow == SIZE_MAX || report->ranks[r].busy_ns > report->ranks[slow].busy_ns)
			fast = slow, slow = r;
		else
			fast = r;
	}
	if (report->ranks[slow].busy_ns <= SIDES_RATIO * report->ranks[fast].busy_ns)
		return false;
	print_rank(out, report, slow);
	fprintf(out, " needs %.2fx the time of ", report->ranks[slow].busy_ns / report->ranks[fast].busy_ns);
	print_rank(out, report, fast);
	fprintf(out, ", which costs %.0f %% of step time; two ranks have no majority to tell which is unusual: compare with another run",
		share(report, report->ranks[slow].saving_ns) * 100);
	return true;
}

/* Two hosts of which one is slower with all its ranks. False: they are even or mixed, or not two. */
static bool say_two_hosts(FILE *out, const struct train_report *report)
{
	const struct train_report_host *slow = NULL, *fast = NULL;
	double slow_least = INFINITY, fast_most = 0;
	size_t hosts = 0;

	for (size_t h = 0; h < report->host_count; h++) {
		const struct train_report_host *host = &report->hosts[h];

		if (isnan(host->ratio))
			continue;
		hosts++;
		if (!slow || host->ratio > slow->ratio)
			fast = slow, slow = host;
		else
			fast = host;
	}
	if (hosts != 2 || !*slow->name || !*fast->name || slow->busy_ns <= SIDES_RATIO * fast->busy_ns)
		return false;
	for (size_t r = 0; r < report->rank_count; r++) {
		const struct train_report_rank *rank = &report->ranks[r];

		if (rank->judged && &report->hosts[rank->host] == slow)
			slow_least = fmin(slow_least, rank->busy_ns);
		else if (rank->judged)
			fast_most = fmax(fast_most, rank->busy_ns);
	}
	if (slow_least <= fast_most)
		return false;
	fprintf(out, "%s (", slow->name);
	print_ranks(out, report, slow->ranks, slow->rank_count);
	fprintf(out, ") needs %.2fx the time of %s, which costs %.0f %% of step time; two hosts have no majority to tell which is unusual: ",
		slow->busy_ns / fast->busy_ns, fast->name, share(report, slow->saving_ns) * 100);
	fputs("compare with another run", out);
	return true;
}

static size_t most_often_slowest(const struct train_report *report)
{
	size_t most = 0;

	for (size_t r = 1; r < report->rank_count; r++)
		if (report->ranks[r].slowest_share > report->ranks[most].slowest_share)
			most = r;
	return most;
}

/* The rank that was slow in most windows, if in enough to be more than chance; SIZE_MAX otherwise. */
static size_t slow_for_a_time(const struct train_report *report)
{
	size_t most = 0;

	for (size_t r = 1; r < report->rank_count; r++)
		if (report->ranks[r].windows_slow > report->ranks[most].windows_slow)
			most = r;
	const struct train_report_rank *rank = &report->ranks[most];
	return rank->windows_slow && rank->windows >= 4 && 10 * rank->windows_slow >= rank->windows ? most : SIZE_MAX;
}

/* Ranks that wait for cores are slow at random, however even their work is: with half of them waiting that is what takes turns. */
static bool ranks_share_cores(const struct train_report *report)
{
	size_t waiting = 0;

	for (size_t r = 0; r < report->rank_count; r++)
		waiting += report->ranks[r].runqueue_share > RUNQUEUE_ANY;
	return 2 * waiting >= report->rank_count;
}

static enum train_report_verdict say_verdict(FILE *out, const struct train_report *report, const struct culprit *culprits, size_t n)
{
	double lost = share(report, report->lost_ns);
	size_t most, passing;

	if (report->rank_count == 1 && report->launch->ranks == 1) {
		fputs("one rank: there is nothing to compare it with", out);
		return TRAIN_VERDICT_UNKNOWN;
	}
	if (report->judged_steps < STEPS_MIN) {
		fprintf(out, "can't tell: %zu steps with records of enough ranks, at least %u expected", report->judged_steps, STEPS_MIN);
		return TRAIN_VERDICT_UNKNOWN;
	}
	if (count_judged(report) < 2) {
		fputs("can't tell: records of fewer than two ranks", out);
		return TRAIN_VERDICT_UNKNOWN;
	}
	if (n) {
		say_stragglers(out, report, culprits, n);
		return TRAIN_VERDICT_STRAGGLER;
	}
	if (say_two_ranks(out, report) || say_two_hosts(out, report))
		return TRAIN_VERDICT_SPLIT;
	passing = slow_for_a_time(report);
	if (passing != SIZE_MAX && lost >= PASSING_SHARE) {
		fputs("no lasting straggler: ", out);
		print_rank(out, report, passing);
		fprintf(out, " was slow in %u of %u stretches of the run; waiting for the slowest rank costs %.0f %% of step time",
			report->ranks[passing].windows_slow, report->ranks[passing].windows, lost * 100);
		return TRAIN_VERDICT_PASSING;
	}
	if (lost >= UNEVEN_SHARE) {
		most = most_often_slowest(report);
		fprintf(out, "no single straggler, but waiting for the slowest costs %.0f %% of step time: ranks take turns, most often ", lost * 100);
		print_rank(out, report, most);
		fprintf(out, " in %.0f %% of steps, %s", report->ranks[most].slowest_share * 100,
			ranks_share_cores(report) ? "because ranks share cores" : "so the work is uneven (data, sequence lengths)");
		return TRAIN_VERDICT_UNEVEN;
	}
	fprintf(out, "no straggler: the slowest rank costs %.0f %% of step time", lost * 100);
	return TRAIN_VERDICT_NONE;
}

static void say_missing_ranks(FILE *out, const struct train_report *report)
{
	uint32_t next = 0, ranges = 0;

	if (report->rank_count >= report->launch->ranks)
		return;
	fputs("no records of ", out);
	for (size_t i = 0; i <= report->rank_count; i++) {
		uint32_t rank = i < report->rank_count ? report->ranks[i].rank : report->launch->ranks;

		if (rank > next && ranges++ < 4) {
			const char *host = train_launch_host(report->launch, next);

			fprintf(out, rank - next > 1 ? "%sranks %u-%u" : "%srank %u", ranges > 1 ? ", " : "", next, rank - 1);
			if (*host)
				fprintf(out, rank - next > 1 ? " (from %s on)" : " (%s)", host);
		}
		next = rank + 1;
	}
	if (ranges > 4)
		fprintf(out, " and %u more ranges", ranges - 4);
	fprintf(out, ": %s not judged\n", report->launch->ranks - report->rank_count == 1 ? "it was" : "they were");
}

/* Which busy phase makes a slow rank slow: computing points to a GPU or cores, reading to storage. part: of all its extra time. */
struct slow_phase {
	int phase;
	double part, extra_ns;
};

static struct slow_phase find_slow_phase(const struct train_report *report, size_t index)
{
	struct slow_phase slow = {.phase = TRAIN_PHASE_DATA};
	double sum = 0;

	for (int p = TRAIN_PHASE_DATA; p <= TRAIN_PHASE_BACKWARD; p++) {
		double others = 0, extra;
		size_t n = 0;

		for (size_t r = 0; r < report->rank_count; r++)
			if (!report->ranks[r].flagged) {
				others += report->ranks[r].of[p].mean_ns;
				n++;
			}
		extra = n ? fmax(0, report->ranks[index].of[p].mean_ns - others / (double)n) : 0;
		sum += extra;
		if (extra > slow.extra_ns) {
			slow.phase = p;
			slow.extra_ns = extra;
		}
	}
	slow.part = sum > 0 ? slow.extra_ns / sum : 0;
	return slow;
}

static void say_run_queue(FILE *out, const struct train_report *report)
{
	size_t said = 0, unsaid = 0;

	for (int flagged = 1; flagged >= 0; flagged--)
		for (size_t r = 0; r < report->rank_count; r++) {
			const struct train_report_rank *rank = &report->ranks[r];

			if (rank->flagged != flagged || rank->runqueue_share < (flagged ? RUNQUEUE_FLAGGED : RUNQUEUE_ANY))
				continue;
			if (said == 4) {
				unsaid++;
				continue;
			}
			said++;
			print_rank(out, report, r);
			fprintf(out, " was runnable but not running for %.0f %% of step time: its cores are shared\n", rank->runqueue_share * 100);
		}
	if (unsaid)
		fprintf(out, "so %s %zu other rank%s\n", unsaid == 1 ? "was" : "were", unsaid, unsaid == 1 ? "" : "s");
}

static void say_evidence(FILE *out, const struct train_report *report, const struct culprit *culprits, size_t n)
{
	for (size_t i = 0; i < n && i < 4; i++) {
		const struct train_report_host *host = &report->hosts[culprits[i].host];
		size_t rank = culprits[i].rank == SIZE_MAX ? host->ranks[0] : culprits[i].rank;
		struct slow_phase slow = find_slow_phase(report, rank);
		bool reading = slow.phase == TRAIN_PHASE_DATA && slow.part > 0.5;

		if (culprits[i].rank == SIZE_MAX && host->rank_count > 1) {
			fprintf(out, "all ranks of %s are slow: %s\n", host->name,
				reading ? "its storage or memory rather than one rank's input" : "its CPUs, power, memory or network rather than one GPU");
		} else if (culprits[i].rank != SIZE_MAX && host->rank_count > host->flagged_ranks) {
			print_rank(out, report, rank);
			fprintf(out, ": its neighbours on the same host are not slow, so its %s rather than the host\n", reading ? "input" : "GPU or cores");
		}
		if (slow.part > 0) {
			print_rank(out, report, rank);
			fprintf(out, ": %.0f %% of its extra time is in %s, %.3g ms a step%s\n", slow.part * 100,
				train_report_quantity_names[slow.phase], slow.extra_ns / 1e6, reading ? ": reading, not computing" : "");
		}
	}
	say_run_queue(out, report);
	if (report->drift > DRIFT_RATIO)
		fprintf(out, "all ranks: the last stretch of the run is %.2fx slower than its best one\n", report->drift);
	say_missing_ranks(out, report);
}

enum st_status train_report_judge(struct train_report *report)
{
	struct culprit *culprits = calloc(report->rank_count + 1, sizeof *culprits);
	enum st_status status = st_fail(ST_ERR_NOMEM, "report: no memory");
	char *verdict = NULL, *evidence = NULL;
	size_t verdict_bytes, evidence_bytes;
	FILE *verdict_stream = open_memstream(&verdict, &verdict_bytes), *evidence_stream = open_memstream(&evidence, &evidence_bytes);

	if (culprits && verdict_stream && evidence_stream) {
		size_t n = list_culprits(report, culprits);

		report->verdict = say_verdict(verdict_stream, report, culprits, n);
		say_evidence(evidence_stream, report, culprits, n);
		status = ST_OK;
	}
	if ((verdict_stream && fclose(verdict_stream)) || (evidence_stream && fclose(evidence_stream)))
		status = ST_ERR_NOMEM;
	if (status == ST_OK) {
		snprintf(report->verdict_text, sizeof report->verdict_text, "%s", verdict);
		report->evidence = evidence;
		evidence = NULL;
	}
	free(verdict);
	free(evidence);
	free(culprits);
	return status;
}
