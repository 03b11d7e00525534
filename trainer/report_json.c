/*
 * The report for programs.  Keys are stable: new ones may come, none changes its meaning.  Times are in nanoseconds (_ns), shares are
 * fractions of 1, and what can't be known is null.
 *
 *   version               1
 *   verdict               none | straggler | passing | uneven | split | unknown
 *   verdict_text          one sentence
 *   evidence              [sentence]
 *   directory, job        strings
 *   launched_unix_ns      start of the (last) launch
 *   world_size            ranks of the job
 *   data_quality          {files, launches, launches_left_out, records, missing, dropped, superseded, damaged, notes: [line]}
 *   steps                 {first, last, used, judged, warmup}
 *   step_time_total_ns    sum over judged steps of the longest rank's step; every saving and loss is a part of it
 *   lost_ns, lost_share   sum of max busy - median busy
 *   flagged_saving_ns     what-if: without all that is flagged
 *   busy_median_ns        median over ranks of their median busy time
 *   busy_mad_ns           and the median absolute deviation from it
 *   tokens_per_s, first_loss, last_loss, drift_ratio
 *   phases                {NAME: SPREAD}, all ranks; NAME: data forward backward exposed wait optimizer gate checkpoint other busy step;
 *                         SPREAD: {mean_ns, p50_ns, p95_ns, max_ns}
 *   hosts                 [{host, ranks: [rank], busy_p50_ns, ratio, slowest_share, saving_ns, saving_share, flagged,
 *                         flagged_ranks}], by rank
 *   ranks                 [{rank, host, steps, judged, busy_median_ns, ratio, z, slowest_share, saving_ns, runqueue_share, cpu_ns,
 *                         windows, windows_slow, flagged, phases: {NAME: SPREAD}}], by rank;
 *                         runqueue_share: part of its step time in which a rank was runnable and did not run
 */
#include <json-c/json.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/report.h"

/* Adds a member and takes it over; remembers in *ok when there was no memory for it. */
static void add(struct json_object *object, const char *key, struct json_object *value, bool *ok)
{
	if (!object || json_object_object_add(object, key, value) != 0) {
		json_object_put(value);
		*ok = false;
	}
}

/* null is also what json-c makes of NaN's and infinities' absence in JSON. */
static void add_number(struct json_object *object, const char *key, double value, bool *ok)
{
	struct json_object *number = isfinite(value) ? json_object_new_double(value) : NULL;

	if (isfinite(value) && !number)
		*ok = false;
	add(object, key, number, ok);
}

static void add_ns(struct json_object *object, const char *key, double ns, bool *ok)
{
	struct json_object *number = isfinite(ns) ? json_object_new_int64((int64_t)llround(ns)) : NULL;

	if (isfinite(ns) && !number)
		*ok = false;
	add(object, key, number, ok);
}

static void add_count(struct json_object *object, const char *key, uint64_t count, bool *ok)
{
	struct json_object *number = json_object_new_uint64(count);

	if (!number)
		*ok = false;
	add(object, key, number, ok);
}

/* json-c escapes control characters; what is not ASCII becomes '?', since it need not be UTF-8. */
static void add_string(struct json_object *object, const char *key, const char *text, bool *ok)
{
	char *copy = strdup(text);

	for (char *p = copy; p && *p; p++)
		if (*p & 0x80)
			*p = '?';
	struct json_object *string = copy ? json_object_new_string(copy) : NULL;
	if (!string)
		*ok = false;
	add(object, key, string, ok);
	free(copy);
}

static void add_bool(struct json_object *object, const char *key, bool value, bool *ok)
{
	add(object, key, json_object_new_boolean(value), ok);
}

static void add_element(struct json_object *array, struct json_object *value, bool *ok)
{
	if (!array || !value || json_object_array_add(array, value) != 0) {
		json_object_put(value);
		*ok = false;
	}
}

static struct json_object *new_lines(const char *text, bool *ok)
{
	struct json_object *array = json_object_new_array();

	while (text && *text) {
		size_t length = strcspn(text, "\n");
		add_element(array, json_object_new_string_len(text, (int)length), ok);
		text += length + (text[length] == '\n');
	}
	return array;
}

static struct json_object *new_spreads(const struct train_report_spread *of, bool *ok)
{
	struct json_object *phases = json_object_new_object();

	for (int q = 0; q < TRAIN_REPORT_QUANTITIES; q++) {
		struct json_object *spread = json_object_new_object();

		add_ns(spread, "mean_ns", of[q].mean_ns, ok);
		add_ns(spread, "p50_ns", of[q].p50_ns, ok);
		add_ns(spread, "p95_ns", (double)of[q].p95_ns, ok);
		add_ns(spread, "max_ns", (double)of[q].max_ns, ok);
		add(phases, train_report_quantity_names[q], spread, ok);
	}
	return phases;
}

static struct json_object *new_host(const struct train_report *report, const struct train_report_host *host, bool *ok)
{
	struct json_object *object = json_object_new_object(), *ranks = json_object_new_array();

	add_string(object, "host", host->name, ok);
	for (size_t i = 0; i < host->rank_count; i++)
		add_element(ranks, json_object_new_int64(report->ranks[host->ranks[i]].rank), ok);
	add(object, "ranks", ranks, ok);
	add_ns(object, "busy_p50_ns", host->busy_ns, ok);
	add_number(object, "ratio", host->ratio, ok);
	add_number(object, "slowest_share", host->slowest_share, ok);
	add_ns(object, "saving_ns", host->saving_ns, ok);
	add_number(object, "saving_share", report->total_ns > 0 ? host->saving_ns / report->total_ns : NAN, ok);
	add_bool(object, "flagged", host->flagged, ok);
	add_count(object, "flagged_ranks", host->flagged_ranks, ok);
	return object;
}

static struct json_object *new_rank(const struct train_report *report, const struct train_report_rank *rank, bool *ok)
{
	struct json_object *object = json_object_new_object();

	add_count(object, "rank", rank->rank, ok);
	add_string(object, "host", report->hosts[rank->host].name, ok);
	add_count(object, "steps", rank->steps, ok);
	add_bool(object, "judged", rank->judged, ok);
	add_ns(object, "busy_median_ns", rank->busy_ns, ok);
	add_number(object, "ratio", rank->ratio, ok);
	add_number(object, "z", rank->z, ok);
	add_number(object, "slowest_share", rank->slowest_share, ok);
	add_ns(object, "saving_ns", rank->saving_ns, ok);
	add_number(object, "runqueue_share", rank->runqueue_share, ok);
	add_ns(object, "cpu_ns", rank->cpu_ns, ok);
	add_count(object, "windows", rank->windows, ok);
	add_count(object, "windows_slow", rank->windows_slow, ok);
	add_bool(object, "flagged", rank->flagged, ok);
	add(object, "phases", new_spreads(rank->of, ok), ok);
	return object;
}

static struct json_object *new_report(const struct train_report *report, const char *directory, bool *ok)
{
	const struct train_record_set *set = report->set;
	struct json_object *root = json_object_new_object(), *quality = json_object_new_object(), *steps = json_object_new_object();
	struct json_object *hosts = json_object_new_array(), *ranks = json_object_new_array();

	add_count(root, "version", 1, ok);
	add_string(root, "verdict", train_report_verdict_name(report->verdict), ok);
	add_string(root, "verdict_text", report->verdict_text, ok);
	add(root, "evidence", new_lines(report->evidence, ok), ok);
	add_string(root, "directory", directory, ok);
	add_string(root, "job", report->launch->job, ok);
	add(root, "launched_unix_ns", json_object_new_int64(report->launch->wall_ns), ok);
	add_count(root, "world_size", report->launch->ranks, ok);

	add_count(quality, "files", set->files, ok);
	add_count(quality, "launches", report->launches, ok);
	add_count(quality, "launches_left_out", report->launches_left_out, ok);
	add_count(quality, "records", report->records, ok);
	add_count(quality, "missing", report->missing, ok);
	add_count(quality, "dropped", report->dropped, ok);
	add_count(quality, "superseded", set->superseded, ok);
	add_count(quality, "damaged", set->damaged, ok);
	add(quality, "notes", new_lines(set->notes, ok), ok);
	add(root, "data_quality", quality, ok);

	add_count(steps, "first", report->first_step, ok);
	add_count(steps, "last", report->last_step, ok);
	add_count(steps, "used", report->steps, ok);
	add_count(steps, "judged", report->judged_steps, ok);
	add_count(steps, "warmup", report->warmup_steps, ok);
	add(root, "steps", steps, ok);

	add_ns(root, "step_time_total_ns", report->total_ns, ok);
	add_ns(root, "lost_ns", report->lost_ns, ok);
	add_number(root, "lost_share", report->total_ns > 0 ? report->lost_ns / report->total_ns : NAN, ok);
	add_ns(root, "flagged_saving_ns", report->flagged_saving_ns, ok);
	add_ns(root, "busy_median_ns", report->busy_ns, ok);
	add_ns(root, "busy_mad_ns", report->mad_ns, ok);
	add_number(root, "tokens_per_s", report->tokens_per_s, ok);
	add_number(root, "first_loss", report->first_loss, ok);
	add_number(root, "last_loss", report->last_loss, ok);
	add_number(root, "drift_ratio", report->drift, ok);
	add(root, "phases", new_spreads(report->of, ok), ok);
	for (size_t h = 0; h < report->host_count; h++)
		add_element(hosts, new_host(report, &report->hosts[h], ok), ok);
	add(root, "hosts", hosts, ok);
	for (size_t r = 0; r < report->rank_count; r++)
		add_element(ranks, new_rank(report, &report->ranks[r], ok), ok);
	add(root, "ranks", ranks, ok);
	return root;
}

enum st_status train_report_json(const struct train_report *report, const char *directory, char **text)
{
	bool ok = true;
	struct json_object *root = new_report(report, directory, &ok);
	const char *printed = ok ? json_object_to_json_string_ext(root, JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_NOSLASHESCAPE) : NULL;

	*text = printed ? strdup(printed) : NULL;
	json_object_put(root);
	return *text ? ST_OK : st_fail(ST_ERR_NOMEM, "report: no memory for JSON");
}
