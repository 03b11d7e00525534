/* The report for people: 80 columns, times in milliseconds, the worst first, nothing unprintable. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "trainer/report.h"

enum {
	COLUMNS = 80,
	RANKS_SHOWN = 32, /* a job with more shows the worst WORST_SHOWN, unless all are asked for */
	WORST_SHOWN = 16
};

/* Anything else than printable ASCII becomes \xNN: names come from files that anybody may have written. */
static void escape(const char *text, char *out, size_t bytes)
{
	size_t used = 0;

	for (; *text && used + 5 < bytes; text++) {
		if (*text >= ' ' && *text <= '~')
			out[used++] = *text;
		else
			used += (size_t)snprintf(out + used, bytes - used, "\\x%02x", (unsigned char)*text);
	}
	out[used] = 0;
}

void train_print_wrapped(FILE *out, const char *label, const char *text)
{
	int indent = (int)strlen(label), column = indent;

	fputs(label, out);
	while (*text) {
		int length = (int)strcspn(text, " ");

		if (column > indent && column + 1 + length > COLUMNS) {
			fprintf(out, "\n%*s", indent, "");
			column = indent;
		} else if (column > indent) {
			fputc(' ', out);
			column++;
		}
		int shown = length;
		if (column + shown > COLUMNS)
			shown = COLUMNS - column;
		fprintf(out, "%.*s", shown, text);
		column += shown;
		text += shown;
		/* What was cut off goes on in the next line. */
		if (shown == length)
			text += strspn(text, " ");
	}
	fputc('\n', out);
}

void train_print_lines(FILE *out, const char *label, const char *text)
{
	char line[1024], clean[2048];

	while (*text) {
		size_t length = strcspn(text, "\n");

		snprintf(line, sizeof line, "%.*s", (int)(length < sizeof line ? length : sizeof line - 1), text);
		escape(line, clean, sizeof clean);
		train_print_wrapped(out, label, clean);
		text += length + (text[length] == '\n');
	}
}

struct cell {
	char text[24];
};

/* Milliseconds, four digits, at most seven characters. */
static struct cell ms(double ns)
{
	struct cell cell;
	double value = ns / 1e6;
	int digits = value < 9.9995 ? 3 : value < 99.995 ? 2 : value < 999.95 ? 1 : 0;

	if (isnan(value))
		strcpy(cell.text, "-");
	else if (value <= 0)
		strcpy(cell.text, "0");
	else if (value < 9999999)
		snprintf(cell.text, sizeof cell.text, "%.*f", digits, value);
	else
		snprintf(cell.text, sizeof cell.text, "%.1e", value);
	return cell;
}

static struct cell fixed(double value, int digits, double limit)
{
	struct cell cell;

	if (isnan(value))
		strcpy(cell.text, "-");
	else if (value >= limit)
		snprintf(cell.text, sizeof cell.text, ">%.0f", limit);
	else if (value <= -limit)
		snprintf(cell.text, sizeof cell.text, "<-%.0f", limit);
	else
		snprintf(cell.text, sizeof cell.text, "%.*f", digits, value);
	return cell;
}

static struct cell percent(double share)
{
	struct cell cell;

	snprintf(cell.text, sizeof cell.text, "%.0f %%", share * 100);
	return cell;
}

static double share_of_time(const struct train_report *report, double ns)
{
	return report->total_ns > 0 ? ns / report->total_ns : 0;
}

/* A name in a column of `width`: cut with '~' when too long. */
static struct cell name(const char *text, size_t width)
{
	struct cell cell;
	char clean[512];

	escape(*text ? text : "?", clean, sizeof clean);
	if (strlen(clean) > width) {
		clean[width - 1] = '~';
		clean[width] = 0;
	}
	snprintf(cell.text, sizeof cell.text, "%.23s", clean);
	return cell;
}

static void print_header(const struct train_report *report, const char *directory, FILE *out)
{
	const struct train_record_set *set = report->set;
	char text[1024], clean[700];

	escape(report->launch->job, clean, sizeof clean);
	snprintf(text, sizeof text, "%s: %u rank%s, %zu host%s", clean, report->launch->ranks, report->launch->ranks == 1 ? "" : "s",
		 report->host_count, report->host_count == 1 ? "" : "s");
	train_print_wrapped(out, "job      ", text);
	escape(directory, clean, sizeof clean);
	snprintf(text, sizeof text, "%s, %zu file%s", clean, set->files, set->files == 1 ? "" : "s");
	train_print_wrapped(out, "from     ", text);
	snprintf(text, sizeof text, "%llu-%llu: %zu used, %zu warm-up left out; %zu launch%s%s", (unsigned long long)report->first_step,
		 (unsigned long long)report->last_step, report->steps, report->warmup_steps, report->launches, report->launches == 1 ? "" : "es",
		 report->launches_left_out ? ", others left out since their ranks or hosts differ (--launch)" : "");
	train_print_wrapped(out, "steps    ", text);
	snprintf(text, sizeof text, "%zu of %llu records; %llu missing, %llu dropped, %llu superseded, %llu damaged", report->records,
		 (unsigned long long)(report->records + report->missing), (unsigned long long)report->missing,
		 (unsigned long long)report->dropped, (unsigned long long)set->superseded, (unsigned long long)set->damaged);
	train_print_wrapped(out, "data     ", text);
	const struct train_report_spread *step = &report->of[TRAIN_REPORT_STEP];
	snprintf(text, sizeof text, "mean %s ms, p50 %s, p95 %s, max %s", ms(step->mean_ns).text, ms(step->p50_ns).text,
		 ms((double)step->p95_ns).text, ms((double)step->max_ns).text);
	if (report->tokens_per_s > 0)
		snprintf(text + strlen(text), sizeof text - strlen(text), "; %.4g tokens/s", report->tokens_per_s);
	if (!isnan(report->first_loss))
		snprintf(text + strlen(text), sizeof text - strlen(text), "; loss %.4g -> %.4g", report->first_loss, report->last_loss);
	train_print_wrapped(out, "step     ", text);
	if (report->judged_steps && report->rank_count > 1) {
		snprintf(text, sizeof text, "%s ms a step (max busy - median busy), %.0f %% of step time",
			 ms(report->lost_ns / (double)report->judged_steps).text, share_of_time(report, report->lost_ns) * 100);
		train_print_wrapped(out, "lost     ", text);
	}
}

static void print_phases(const struct train_report *report, FILE *out)
{
	double whole = report->of[TRAIN_REPORT_STEP].mean_ns;

	fputs("\nwhere a step goes (ms, all ranks)\n", out);
	fprintf(out, "%-12s %8s %8s %8s %8s %7s\n", "phase", "mean", "p50", "p95", "max", "share");
	for (int q = 0; q < TRAIN_REPORT_QUANTITIES; q++) {
		const struct train_report_spread *s = &report->of[q];

		if (q < TRAIN_PHASE_COUNT && !s->max_ns)
			continue;
		fprintf(out, "%-12s %8s %8s %8s %8s %7s\n", train_report_quantity_names[q], ms(s->mean_ns).text, ms(s->p50_ns).text,
			ms((double)s->p95_ns).text, ms((double)s->max_ns).text, percent(whole > 0 ? s->mean_ns / whole : 0).text);
	}
}

struct ranked {
	double first, key; /* larger is worse, key when first is equal; NaN last */
	size_t index;
};

static int worst_first(const void *a, const void *b)
{
	const struct ranked *x = a, *y = b;
	bool x_nan = isnan(x->key), y_nan = isnan(y->key);

	if (x->first != y->first)
		return x->first > y->first ? -1 : 1;
	if (x_nan != y_nan)
		return x_nan ? 1 : -1;
	if (!x_nan && x->key != y->key)
		return x->key > y->key ? -1 : 1;
	return x->index < y->index ? -1 : x->index > y->index;
}

static int by_index(const void *a, const void *b)
{
	const struct ranked *x = a, *y = b;

	return x->index < y->index ? -1 : x->index > y->index;
}

static void print_hosts(const struct train_report *report, bool all, FILE *out)
{
	struct ranked *order = calloc(report->host_count, sizeof *order);
	size_t shown = all || report->host_count <= RANKS_SHOWN ? report->host_count : WORST_SHOWN;

	if (!order)
		return;
	/* Flagged first, by what they cost; equally slow ones cost nothing one by one. */
	for (size_t h = 0; h < report->host_count; h++) {
		const struct train_report_host *host = &report->hosts[h];
		order[h] = (struct ranked){host->flagged_ranks ? 1 + host->saving_ns : 0, host->ratio, h};
	}
	qsort(order, report->host_count, sizeof *order, worst_first);
	if (shown < report->host_count)
		fprintf(out, "\nthe %zu slowest of %zu hosts (ms)\n", shown, report->host_count);
	else
		fputs("\nhosts, slowest first (ms)\n", out);
	fprintf(out, "%-22s %6s %9s %7s %8s %8s\n", "host", "ranks", "busy p50", "ratio", "slowest", "saving");
	for (size_t i = 0; i < shown; i++) {
		const struct train_report_host *host = &report->hosts[order[i].index];

		fprintf(out, "%-22s %6zu %9s %7s %8s %8s%s\n", name(host->name, 22).text, host->rank_count, ms(host->busy_ns).text,
			fixed(host->ratio, 2, 999).text, percent(host->slowest_share).text,
			percent(share_of_time(report, host->saving_ns)).text,
			host->flagged ? "  SLOW" : host->flagged_ranks ? "  slow ranks" : "");
	}
	free(order);
}

/* Which ranks the tables show, in their order. */
static struct ranked *choose_ranks(const struct train_report *report, bool all, size_t *count)
{
	struct ranked *order = calloc(report->rank_count, sizeof *order);

	if (!order)
		return NULL;
	for (size_t r = 0; r < report->rank_count; r++)
		order[r] = (struct ranked){report->ranks[r].flagged, report->ranks[r].ratio, r};
	*count = report->rank_count;
	if (!all && report->rank_count > RANKS_SHOWN) {
		*count = WORST_SHOWN;
		qsort(order, report->rank_count, sizeof *order, worst_first);
	} else {
		qsort(order, report->rank_count, sizeof *order, by_index);
	}
	return order;
}

static void print_ranks(const struct train_report *report, const struct ranked *order, size_t count, FILE *out)
{
	if (count < report->rank_count)
		fprintf(out, "\nthe %zu slowest of %zu ranks (ms; --all shows every one)\n", count, report->rank_count);
	else
		fputs("\nranks (ms)\n", out);
	fprintf(out, "%7s %-13s %8s %8s %8s %8s\n", "", "", "busy", "busy", "wait", "step");
	fprintf(out, "%7s %-13s %8s %8s %8s %8s %6s %6s %7s\n", "rank", "host", "p50", "p95", "p50", "p50", "ratio", "z", "slowest");
	for (size_t i = 0; i < count; i++) {
		const struct train_report_rank *rank = &report->ranks[order[i].index];
		const struct train_report_spread *of = rank->of;

		fprintf(out, "%7u %-13s %8s %8s %8s %8s %6s %6s %7s%s\n", rank->rank, name(report->hosts[rank->host].name, 13).text,
			ms(of[TRAIN_REPORT_BUSY].p50_ns).text, ms((double)of[TRAIN_REPORT_BUSY].p95_ns).text,
			ms(of[TRAIN_PHASE_WAIT].p50_ns).text, ms(of[TRAIN_REPORT_STEP].p50_ns).text, fixed(rank->ratio, 2, 999).text,
			fixed(rank->z, 1, 999).text, percent(rank->slowest_share).text, rank->flagged ? "*" : "");
	}
	fputs("ratio: busy over the median of ranks; z: robust score; *: straggler\n", out);
}

/* One statistic of each phase for each rank. Phases that never happened have no column. */
static void print_rank_phases(const struct train_report *report, const struct ranked *order, size_t count, const char *statistic, FILE *out)
{
	static const char *const heads[TRAIN_PHASE_COUNT] = {"data", "forward", "backwrd", "exposed", "wait", "optim", "gate", "ckpt", "other"};

	fprintf(out, "\n%s of each phase (ms)\n%7s", statistic, "rank");
	for (int p = 0; p < TRAIN_PHASE_COUNT; p++)
		if (report->of[p].max_ns)
			fprintf(out, " %7s", heads[p]);
	fputc('\n', out);
	for (size_t i = 0; i < count; i++) {
		const struct train_report_rank *rank = &report->ranks[order[i].index];

		fprintf(out, "%7u", rank->rank);
		for (int p = 0; p < TRAIN_PHASE_COUNT; p++) {
			const struct train_report_spread *of = &rank->of[p];
			double value = statistic[0] == 'm' ? (statistic[1] == 'e' ? of->mean_ns : (double)of->max_ns)
							   : (statistic[1] == '5' ? of->p50_ns : (double)of->p95_ns);
			if (report->of[p].max_ns)
				fprintf(out, " %7s", ms(value).text);
		}
		fputc('\n', out);
	}
}

bool train_report_print(const struct train_report *report, const char *directory, bool all, FILE *out)
{
	size_t count = 0;
	struct ranked *order = choose_ranks(report, all, &count);

	train_print_wrapped(out, "verdict: ", report->verdict_text);
	if (*report->evidence) {
		fputc('\n', out);
		train_print_lines(out, "  - ", report->evidence);
	}
	fputc('\n', out);
	print_header(report, directory, out);
	print_phases(report, out);
	if (report->host_count > 1)
		print_hosts(report, all, out);
	if (order) {
		print_ranks(report, order, count, out);
		if (all)
			print_rank_phases(report, order, count, "mean", out);
		print_rank_phases(report, order, count, "p50", out);
		print_rank_phases(report, order, count, "p95", out);
		print_rank_phases(report, order, count, "max", out);
	}
	free(order);
	if (report->set->notes) {
		fputs("\nnotes on the files\n", out);
		train_print_lines(out, "  - ", report->set->notes);
	}
	fflush(out);
	return !ferror(out);
}
