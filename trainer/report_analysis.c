/* From step records to numbers: which steps count, what each rank needed, who was slowest, what removing a host would save. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/report.h"

#define RATIO_LIMIT 1.10
#define Z_LIMIT 3.5
#define MAD_FLOOR 0.01 /* of the median */
#define WINDOWS_MAX 20u
#define WINDOW_STEPS_MIN 8u

const char *const train_report_quantity_names[TRAIN_REPORT_QUANTITIES] = {
	[TRAIN_PHASE_DATA] = "data",
	[TRAIN_PHASE_FORWARD] = "forward",
	[TRAIN_PHASE_BACKWARD] = "backward",
	[TRAIN_PHASE_EXPOSED] = "exposed",
	[TRAIN_PHASE_WAIT] = "wait",
	[TRAIN_PHASE_OPTIMIZER] = "optimizer",
	[TRAIN_PHASE_GATE] = "gate",
	[TRAIN_PHASE_CHECKPOINT] = "checkpoint",
	[TRAIN_PHASE_OTHER] = "other",
	[TRAIN_REPORT_BUSY] = "busy",
	[TRAIN_REPORT_STEP] = "step",
};

/* The records of one step lie together in the set. */
struct step {
	size_t begin, end;
	bool judged;
	unsigned window;
};

struct work {
	const struct train_record_set *set;
	struct train_report *report;
	struct step *steps;
	uint32_t *dense;        /* rank -> index into report->ranks, UINT32_MAX: none */
	unsigned windows;
	double *window_busy;    /* (windows, ranks): median b, NaN where a rank has no record */
	int64_t *scratch;       /* (max(records of a rank or step)) for each quantity */
	double *rank_scratch;   /* (ranks) */
};

void train_report_options_init(struct train_report_options *options)
{
	*options = (struct train_report_options){.last_step = UINT64_MAX, .warmup = 1};
}

static enum st_status no_memory(void)
{
	return st_fail(ST_ERR_NOMEM, "report: no memory");
}

static int64_t quantity(const struct train_record *record, int which)
{
	if (which == TRAIN_REPORT_BUSY)
		return record->phase_ns[TRAIN_PHASE_DATA] + record->phase_ns[TRAIN_PHASE_FORWARD] + record->phase_ns[TRAIN_PHASE_BACKWARD];
	return which == TRAIN_REPORT_STEP ? record->step_ns : record->phase_ns[which];
}

/* The k-th smallest of n (from 0); reorders values so that no smaller one is behind it. */
static int64_t kth(int64_t *values, size_t n, size_t k)
{
	size_t low = 0, high = n - 1;
	uint64_t random = 0x9e3779b97f4a7c15u;

	while (low < high) {
		/* A pivot that the values can't foresee: no input makes this quadratic. */
		random ^= random << 13;
		random ^= random >> 7;
		random ^= random << 17;
		int64_t pivot = values[low + random % (high - low + 1)];
		size_t i = low, j = high;

		for (;;) {
			while (values[i] < pivot)
				i++;
			while (values[j] > pivot)
				j--;
			if (i >= j)
				break;
			int64_t swapped = values[i];
			values[i++] = values[j];
			values[j--] = swapped;
		}
		/* [low, j] holds nothing above the pivot, [j + 1, high] nothing below it; where i and j met lies the pivot itself. */
		if (i == j && k == j)
			return values[k];
		if (k > j)
			low = j + 1;
		else
			high = i == j ? j - 1 : j;
	}
	return values[low];
}

static double median(int64_t *values, size_t n)
{
	int64_t upper = kth(values, n, n / 2), lower = upper;

	if (n % 2)
		return (double)upper;
	/* The other middle value is the largest of those that kth left below. */
	lower = values[0];
	for (size_t i = 1; i < n / 2; i++)
		if (values[i] > lower)
			lower = values[i];
	return (double)lower + (double)(upper - lower) / 2;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

/* NaN for none. Sorts values. */
static double median_of(double *values, size_t n)
{
	if (!n)
		return NAN;
	qsort(values, n, sizeof *values, by_value);
	return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

static struct train_report_spread spread(int64_t *values, size_t n)
{
	struct train_report_spread result = {0};

	if (!n)
		return result;
	for (size_t i = 0; i < n; i++) {
		result.mean_ns += (double)values[i];
		if (values[i] > result.max_ns)
			result.max_ns = values[i];
	}
	result.mean_ns /= (double)n;
	result.p50_ns = median(values, n);
	result.p95_ns = kth(values, n, (n * 95 + 99) / 100 - 1);
	return result;
}

/* The launches that count: the one asked for and, when it is the last, earlier ones with the same ranks on the same hosts. */
static enum st_status choose_launches(struct work *work, const struct train_report_options *options, bool **chosen)
{
	const struct train_record_set *set = work->set;
	bool *use = calloc(set->launch_count + 1, sizeof *use);
	size_t main_launch = 0;

	if (!use)
		return no_memory();
	if (options->launch > set->launch_count) {
		free(use);
		return st_fail(ST_ERR_USAGE, "launch %u: the records hold %zu", options->launch, set->launch_count);
	}
	if (options->launch) {
		main_launch = options->launch - 1;
		use[main_launch] = true;
	} else {
		for (size_t i = 0; i < set->launch_count; i++)
			if (set->launches[i].records)
				main_launch = i;
		for (size_t i = 0; i < set->launch_count; i++)
			use[i] = set->launches[i].records && set->launches[i].ranks == set->launches[main_launch].ranks;
		for (size_t i = 0; i < set->count; i++) {
			uint32_t l = set->launch_of[i], rank = set->records[i].rank;
			if (l != main_launch && use[l] &&
			    strcmp(train_launch_host(&set->launches[l], rank), train_launch_host(&set->launches[main_launch], rank)))
				use[l] = false;
		}
	}
	work->report->launch = &set->launches[main_launch];
	for (size_t i = 0; i < set->launch_count; i++) {
		work->report->launches += use[i] && set->launches[i].records;
		work->report->launches_left_out += !use[i] && set->launches[i].records;
		if (use[i])
			work->report->dropped += set->launches[i].dropped;
	}
	*chosen = use;
	return ST_OK;
}

static enum st_status choose_steps(struct work *work, const struct train_report_options *options)
{
	const struct train_record_set *set = work->set;
	struct train_report *report = work->report;
	uint64_t *seen = calloc(set->launch_count + 1, sizeof *seen);
	bool *use = NULL;
	enum st_status status = seen ? choose_launches(work, options, &use) : no_memory();
	size_t capacity = 0;

	for (size_t begin = 0, end; status == ST_OK && begin < set->count; begin = end) {
		uint32_t launch = set->launch_of[begin];
		uint64_t number = set->records[begin].step;

		for (end = begin + 1; end < set->count && set->records[end].step == number; end++)
			;
		/* Warm-up is what a launch did first, whether it was asked for or not. */
		bool warmup = seen[launch]++ < options->warmup;
		if (!use[launch] || number < options->first_step || number > options->last_step)
			continue;
		if (warmup) {
			report->warmup_steps++;
			continue;
		}
		if (report->steps == capacity) {
			capacity = capacity * 2 + 64;
			struct step *steps = reallocarray(work->steps, capacity, sizeof *steps);
			if (!steps) {
				status = no_memory();
				break;
			}
			work->steps = steps;
		}
		size_t present = end - begin;
		bool judged = present >= 2 && 2 * present >= report->launch->ranks;
		work->steps[report->steps++] = (struct step){.begin = begin, .end = end, .judged = judged};
		if (report->steps == 1)
			report->first_step = number;
		report->last_step = number;
		report->judged_steps += judged;
		report->records += present;
		report->missing += report->launch->ranks - present;
	}
	free(seen);
	free(use);
	if (status == ST_OK && !report->steps)
		status = st_fail(ST_ERR_DATA, "no step is left to look at: %zu warm-up steps left out, %zu records in all", report->warmup_steps,
				 set->count);
	return status;
}

static enum st_status list_ranks(struct work *work)
{
	const struct train_record_set *set = work->set;
	struct train_report *report = work->report;
	size_t longest = 0;

	work->dense = malloc((set->ranks + 1) * sizeof *work->dense);
	if (!work->dense)
		return no_memory();
	memset(work->dense, 0xff, (set->ranks + 1) * sizeof *work->dense);
	for (size_t s = 0; s < report->steps; s++) {
		for (size_t i = work->steps[s].begin; i < work->steps[s].end; i++)
			work->dense[set->records[i].rank] = 0;
		if (work->steps[s].end - work->steps[s].begin > longest)
			longest = work->steps[s].end - work->steps[s].begin;
	}
	for (uint32_t r = 0; r < set->ranks; r++)
		if (work->dense[r] != UINT32_MAX)
			work->dense[r] = (uint32_t)report->rank_count++;
	if (longest < report->steps)
		longest = report->steps;
	report->ranks = calloc(report->rank_count, sizeof *report->ranks);
	work->rank_scratch = calloc(report->rank_count, sizeof *work->rank_scratch);
	work->scratch = calloc(longest, TRAIN_REPORT_QUANTITIES * sizeof *work->scratch);
	if (!report->ranks || !work->rank_scratch || !work->scratch)
		return no_memory();
	for (uint32_t r = 0; r < set->ranks; r++)
		if (work->dense[r] != UINT32_MAX)
			report->ranks[work->dense[r]].rank = r;
	return ST_OK;
}

struct placed {
	const char *host;
	size_t rank;
};

static int by_host(const void *a, const void *b)
{
	const struct placed *x = a, *y = b;
	int order = strcmp(x->host, y->host);

	return order ? order : x->rank < y->rank ? -1 : x->rank > y->rank;
}

static int by_lowest_rank(const void *a, const void *b)
{
	const struct train_report_host *x = a, *y = b;

	return x->ranks[0] < y->ranks[0] ? -1 : x->ranks[0] > y->ranks[0];
}

static enum st_status list_hosts(struct train_report *report)
{
	size_t n = report->rank_count;
	struct placed *placed = calloc(n, sizeof *placed);

	report->hosts = calloc(n, sizeof *report->hosts);
	report->host_ranks = calloc(n, sizeof *report->host_ranks);
	if (!placed || !report->hosts || !report->host_ranks) {
		free(placed);
		return no_memory();
	}
	for (size_t i = 0; i < n; i++)
		placed[i] = (struct placed){train_launch_host(report->launch, report->ranks[i].rank), i};
	qsort(placed, n, sizeof *placed, by_host);
	for (size_t i = 0; i < n; i++) {
		struct train_report_host *host;

		report->host_ranks[i] = placed[i].rank;
		if (!i || !*placed[i].host || strcmp(placed[i].host, placed[i - 1].host)) {
			host = &report->hosts[report->host_count++];
			host->name = placed[i].host;
			host->ranks = &report->host_ranks[i];
		}
		host = &report->hosts[report->host_count - 1];
		host->rank_count++;
	}
	free(placed);
	qsort(report->hosts, report->host_count, sizeof *report->hosts, by_lowest_rank);
	for (size_t h = 0; h < report->host_count; h++)
		for (size_t i = 0; i < report->hosts[h].rank_count; i++)
			report->ranks[report->hosts[h].ranks[i]].host = h;
	return ST_OK;
}

/* What one step says: the slowest, the loss, and what would have been without its rank or its host. */
static void judge_step(struct work *work, const struct step *step)
{
	const struct train_record *records = work->set->records;
	struct train_report *report = work->report;
	size_t n = step->end - step->begin, ties = 0;
	int64_t most = -1, longest = 0, without_host = -1, without_rank = -1;
	size_t slowest = 0;

	for (size_t i = 0; i < n; i++) {
		int64_t busy = quantity(&records[step->begin + i], TRAIN_REPORT_BUSY);

		work->scratch[i] = busy;
		if (busy > most) {
			most = busy;
			slowest = work->dense[records[step->begin + i].rank];
			ties = 0;
		}
		ties += busy == most;
		if (records[step->begin + i].step_ns > longest)
			longest = records[step->begin + i].step_ns;
	}
	for (size_t i = 0; i < n; i++) {
		size_t r = work->dense[records[step->begin + i].rank];

		if (work->scratch[i] == most)
			report->ranks[r].slowest_share += 1.0 / (double)ties;
		if (r != slowest && work->scratch[i] > without_rank)
			without_rank = work->scratch[i];
		if (report->ranks[r].host != report->ranks[slowest].host && work->scratch[i] > without_host)
			without_host = work->scratch[i];
	}
	report->ranks[slowest].saving_ns += (double)(most - without_rank);
	/* A step that one host did alone says nothing about doing without it. */
	if (without_host >= 0)
		report->hosts[report->ranks[slowest].host].saving_ns += (double)(most - without_host);
	report->total_ns += (double)longest;
	report->lost_ns += (double)most - median(work->scratch, n);
}

static void judge_steps(struct work *work)
{
	struct train_report *report = work->report;
	size_t number = 0;

	work->windows = (unsigned)(report->judged_steps / WINDOW_STEPS_MIN);
	if (work->windows > WINDOWS_MAX)
		work->windows = WINDOWS_MAX;
	if (!work->windows)
		work->windows = 1;
	for (size_t s = 0; s < report->steps; s++) {
		if (!work->steps[s].judged)
			continue;
		work->steps[s].window = (unsigned)(number++ * work->windows / report->judged_steps);
		judge_step(work, &work->steps[s]);
	}
	for (size_t r = 0; r < report->rank_count; r++) {
		if (report->judged_steps)
			report->ranks[r].slowest_share /= (double)report->judged_steps;
		report->hosts[report->ranks[r].host].slowest_share += report->ranks[r].slowest_share;
	}
}

/* The statistics of one rank, whose records are indices[0 .. n) in step order, and its medians per window. */
static void describe_rank(struct work *work, struct train_report_rank *rank, const size_t *indices, const uint32_t *step_of, size_t n)
{
	const struct train_record *records = work->set->records;
	struct train_report *report = work->report;
	double time = 0, runqueue = 0;
	size_t judged = 0, in_window = 0;
	unsigned window = 0;
	int64_t *columns[TRAIN_REPORT_QUANTITIES];
	double *window_busy = work->window_busy + (rank - report->ranks);

	for (int q = 0; q < TRAIN_REPORT_QUANTITIES; q++)
		columns[q] = work->scratch + (size_t)q * n;
	/* The window's values gather in a column that is filled only afterwards. */
	int64_t *values = columns[0];
	for (size_t i = 0; i <= n; i++) {
		const struct step *step = i < n ? &work->steps[step_of[i]] : NULL;

		if (step && !step->judged)
			continue;
		if (!step || step->window != window) {
			if (in_window)
				window_busy[(size_t)window * report->rank_count] = median(values, in_window);
			in_window = 0;
			if (!step)
				break;
			window = step->window;
		}
		values[in_window++] = quantity(&records[indices[i]], TRAIN_REPORT_BUSY);
		judged++;
	}
	judged = 0;
	for (size_t i = 0; i < n; i++)
		if (work->steps[step_of[i]].judged)
			values[judged++] = quantity(&records[indices[i]], TRAIN_REPORT_BUSY);
	rank->judged = judged && 2 * judged >= report->judged_steps;
	rank->busy_ns = judged ? median(values, judged) : NAN;
	for (size_t i = 0; i < n; i++) {
		const struct train_record *record = &records[indices[i]];

		for (int q = 0; q < TRAIN_REPORT_QUANTITIES; q++)
			columns[q][i] = quantity(record, q);
		time += (double)record->step_ns;
		runqueue += (double)record->runqueue_ns;
		rank->cpu_ns += (double)record->cpu_ns;
	}
	rank->steps = n;
	rank->runqueue_share = time > 0 ? runqueue / time : 0;
	for (int q = 0; q < TRAIN_REPORT_QUANTITIES; q++)
		rank->of[q] = spread(columns[q], n);
}

/* Sorts the used records by rank (they are by step), then takes rank after rank: each record is touched once. */
static enum st_status describe_ranks(struct work *work)
{
	struct train_report *report = work->report;
	size_t *start = calloc(report->rank_count + 1, sizeof *start);
	size_t *indices = calloc(report->records, sizeof *indices);
	uint32_t *step_of = calloc(report->records, sizeof *step_of);
	enum st_status status = ST_OK;

	work->window_busy = calloc((size_t)work->windows * report->rank_count, sizeof *work->window_busy);
	if (!start || !indices || !step_of || !work->window_busy) {
		status = no_memory();
		goto free_tables;
	}
	for (size_t i = 0; i < (size_t)work->windows * report->rank_count; i++)
		work->window_busy[i] = NAN;
	for (size_t s = 0; s < report->steps; s++)
		for (size_t i = work->steps[s].begin; i < work->steps[s].end; i++)
			start[work->dense[work->set->records[i].rank] + 1]++;
	for (size_t r = 0; r < report->rank_count; r++)
		start[r + 1] += start[r];
	/* Filling moves each start to its rank's end, which is the next one's start. */
	for (size_t s = 0; s < report->steps; s++)
		for (size_t i = work->steps[s].begin; i < work->steps[s].end; i++) {
			size_t place = start[work->dense[work->set->records[i].rank]]++;
			indices[place] = i;
			step_of[place] = (uint32_t)s;
		}
	for (size_t r = 0; r < report->rank_count; r++) {
		size_t begin = r ? start[r - 1] : 0;
		describe_rank(work, &report->ranks[r], indices + begin, step_of + begin, start[r] - begin);
	}
free_tables:
	free(start);
	free(indices);
	free(step_of);
	return status;
}

/* Median and MAD of the values of judged ranks; count: how many there are. */
static size_t centre(struct work *work, const double *values, double *middle, double *mad)
{
	size_t n = 0;

	for (size_t r = 0; r < work->report->rank_count; r++)
		if (work->report->ranks[r].judged && !isnan(values[r]))
			work->rank_scratch[n++] = values[r];
	*middle = median_of(work->rank_scratch, n);
	for (size_t i = 0; i < n; i++)
		work->rank_scratch[i] = fabs(work->rank_scratch[i] - *middle);
	*mad = median_of(work->rank_scratch, n);
	return n;
}

static double robust_z(double value, double middle, double mad)
{
	double floor_ns = MAD_FLOOR * middle;

	if (mad < floor_ns)
		mad = floor_ns;
	return mad > 0 ? 0.6745 * (value - middle) / mad : value > middle ? INFINITY : 0;
}

static void flag_ranks(struct work *work)
{
	struct train_report *report = work->report;
	double *values = work->window_busy, middle, mad, best = INFINITY, last = NAN;
	size_t n;

	for (unsigned w = 0; w < work->windows; w++, values += report->rank_count) {
		n = centre(work, values, &middle, &mad);
		last = middle;
		if (middle < best)
			best = middle;
		for (size_t r = 0; r < report->rank_count; r++) {
			if (!report->ranks[r].judged || isnan(values[r]))
				continue;
			report->ranks[r].windows++;
			report->ranks[r].windows_slow += n >= 3 && values[r] > RATIO_LIMIT * middle && robust_z(values[r], middle, mad) > Z_LIMIT;
		}
	}
	report->drift = work->windows >= 4 && best > 0 ? last / best : NAN;

	double *medians = work->window_busy; /* its first row is no longer needed */
	for (size_t r = 0; r < report->rank_count; r++)
		medians[r] = report->ranks[r].busy_ns;
	n = centre(work, medians, &report->busy_ns, &report->mad_ns);
	for (size_t r = 0; r < report->rank_count; r++) {
		struct train_report_rank *rank = &report->ranks[r];

		rank->ratio = rank->judged && report->busy_ns > 0 ? rank->busy_ns / report->busy_ns : NAN;
		rank->z = rank->judged && n >= 3 ? robust_z(rank->busy_ns, report->busy_ns, report->mad_ns) : NAN;
		rank->flagged = rank->ratio > RATIO_LIMIT && rank->z > Z_LIMIT && 2 * rank->windows_slow >= rank->windows;
	}
	for (size_t h = 0; h < report->host_count; h++) {
		struct train_report_host *host = &report->hosts[h];
		size_t judged = 0;

		for (size_t i = 0; i < host->rank_count; i++) {
			const struct train_report_rank *rank = &report->ranks[host->ranks[i]];
			if (rank->judged)
				work->rank_scratch[judged++] = rank->busy_ns;
			host->flagged_ranks += rank->flagged;
		}
		host->busy_ns = median_of(work->rank_scratch, judged);
		host->ratio = report->busy_ns > 0 ? host->busy_ns / report->busy_ns : NAN;
		host->flagged = judged && host->flagged_ranks == judged;
	}
}

/* What the job would have saved without everything that is flagged: two equally slow hosts save nothing one by one. */
static void what_if_without_flagged(struct work *work)
{
	struct train_report *report = work->report;

	for (size_t s = 0; s < report->steps; s++) {
		int64_t most = 0, rest = 0;

		if (!work->steps[s].judged)
			continue;
		for (size_t i = work->steps[s].begin; i < work->steps[s].end; i++) {
			int64_t busy = quantity(&work->set->records[i], TRAIN_REPORT_BUSY);
			if (busy > most)
				most = busy;
			if (busy > rest && !report->ranks[work->dense[work->set->records[i].rank]].flagged)
				rest = busy;
		}
		/* A step of which only flagged ranks left records says nothing about the others. */
		if (rest > 0)
			report->flagged_saving_ns += (double)(most - rest);
	}
}

static enum st_status describe_all(struct work *work)
{
	struct train_report *report = work->report;
	const struct train_record *records = work->set->records;
	int64_t *values = calloc(report->records, sizeof *values);
	double tokens = 0, time_ns = 0;

	if (!values)
		return no_memory();
	for (int q = 0; q < TRAIN_REPORT_QUANTITIES; q++) {
		size_t n = 0;

		for (size_t s = 0; s < report->steps; s++)
			for (size_t i = work->steps[s].begin; i < work->steps[s].end; i++)
				values[n++] = quantity(&records[i], q);
		report->of[q] = spread(values, n);
	}
	free(values);
	report->first_loss = report->last_loss = NAN;
	for (size_t s = 0; s < report->steps; s++) {
		int64_t longest = 0;
		double loss = records[work->steps[s].begin].loss;

		for (size_t i = work->steps[s].begin; i < work->steps[s].end; i++) {
			tokens += (double)records[i].tokens;
			if (records[i].step_ns > longest)
				longest = records[i].step_ns;
		}
		time_ns += (double)longest;
		if (isfinite(loss)) {
			if (isnan(report->first_loss))
				report->first_loss = loss;
			report->last_loss = loss;
		}
	}
	report->tokens_per_s = time_ns > 0 ? tokens / time_ns * 1e9 : 0;
	return ST_OK;
}

enum st_status train_report_make(const struct train_record_set *set, const struct train_report_options *options,
				 struct train_report *report)
{
	struct work work = {.set = set, .report = report};
	enum st_status status;

	memset(report, 0, sizeof *report);
	report->set = set;
	if (!set->count)
		return st_fail(ST_ERR_DATA, "no step records");
	status = choose_steps(&work, options);
	if (status == ST_OK)
		status = list_ranks(&work);
	if (status == ST_OK)
		status = list_hosts(report);
	if (status == ST_OK) {
		judge_steps(&work);
		status = describe_ranks(&work);
	}
	if (status == ST_OK) {
		flag_ranks(&work);
		what_if_without_flagged(&work);
		status = describe_all(&work);
	}
	if (status == ST_OK)
		status = train_report_judge(report);
	free(work.steps);
	free(work.dense);
	free(work.window_busy);
	free(work.scratch);
	free(work.rank_scratch);
	if (status != ST_OK)
		train_report_free(report);
	return status;
}

void train_report_free(struct train_report *report)
{
	free(report->ranks);
	free(report->hosts);
	free(report->host_ranks);
	free(report->evidence);
	memset(report, 0, sizeof *report);
}
