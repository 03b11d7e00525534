/*
 * `synctrain report --hang --json`.  Keys are stable: new ones may come, none changes its meaning.  Times are in nanoseconds since 1970; what is not
 * known is null.
 *
 *   version        1
 *   verdict        nobody | culprit | mismatch | circle
 *   text           one sentence
 *   sure           unsure | likely | certain;  why_sure: one sentence
 *   abort          {text, rank, unix_ns} of the first failure in the files, or null
 *   culprit        {rank, host, where, pid, since_unix_ns} or null
 *   operation      {communicator, sequence, signature} in which it is waited for, or null
 *   held           [rank]
 *   ends           [{rank, where, circle, held: [rank]}], most held first
 *   sides          [sentence] of a mismatch
 *   chain          [sentence], how the first of the held ranks comes to wait
 *   job, other_jobs, live, now_unix_ns, files
 *   missing        [sentence];  notes: [line]
 *   ranks          [{rank, host, pid, where, since_unix_ns, communicator, operation, sequence, plan, step, steps, moves, waits_for, wait, entered,
 *                  torn}]
 */
#include <inttypes.h>
#include <json-c/json.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/hang.h"

static void add(struct json_object *object, const char *key, struct json_object *value, bool *ok)
{
	if (!object || json_object_object_add(object, key, value) != 0) {
		json_object_put(value);
		*ok = false;
	}
}

static void add_string(struct json_object *object, const char *key, const char *text, bool *ok)
{
	struct json_object *value = text ? json_object_new_string(text) : NULL;
	*ok = *ok && (value || !text);
	add(object, key, value, ok);
}

static void add_number(struct json_object *object, const char *key, uint64_t number, bool *ok)
{
	struct json_object *value = json_object_new_uint64(number);
	*ok = *ok && value;
	add(object, key, value, ok);
}

/* 0: unknown */
static void add_time(struct json_object *object, const char *key, int64_t time, bool *ok)
{
	if (time > 0)
		add_number(object, key, (uint64_t)time, ok);
	else
		add(object, key, NULL, ok);
}

static void add_bool(struct json_object *object, const char *key, bool value, bool *ok)
{
	struct json_object *made = json_object_new_boolean(value);
	*ok = *ok && made;
	add(object, key, made, ok);
}

static void append(struct json_object *array, struct json_object *value, bool *ok)
{
	if (!array || !value || json_object_array_add(array, value) != 0) {
		json_object_put(value);
		*ok = false;
	}
}

static void add_lines(struct json_object *object, const char *key, const char *text, bool *ok)
{
	struct json_object *array = json_object_new_array();
	while (text && *text) {
		const size_t length = strcspn(text, "\n");
		append(array, json_object_new_string_len(text, (int)length), ok);
		text += length + (text[length] == '\n');
	}
	add(object, key, array, ok);
}

static void add_ranks(struct json_object *object, const char *key, const uint32_t *ranks, size_t count, bool *ok)
{
	struct json_object *array = json_object_new_array();
	for (size_t i = 0; i < count; i++)
		append(array, json_object_new_uint64(ranks[i]), ok);
	add(object, key, array, ok);
}

static void add_context(struct json_object *object, uint64_t context, bool *ok)
{
	char text[24];
	snprintf(text, sizeof text, "%" PRIx64, context);
	add_string(object, "communicator", text, ok);
}

static struct json_object *new_rank(const struct hang_place *place, bool *ok)
{
	static const char *const waits[] = {NULL, "data", "grant", "flush", "room"};
	struct json_object *object = json_object_new_object();
	const struct hang_file *file = place->file;
	const struct recorder_entry *entry = place->operation;
	const bool waits_here = entry && entry->wait && place->where == HANG_BLOCKED;
	const unsigned algorithm = entry ? (unsigned)(entry->plan >> 8 & 0xff) : RECORDER_ALGORITHMS;
	char text[HANG_OPERATION_TEXT];
	if (entry)
		hang_operation(entry, text);
	add_number(object, "rank", place->rank, ok);
	add_string(object, "host", file ? file->header.host : NULL, ok);
	add_time(object, "pid", file && file->header.pid <= INT64_MAX ? (int64_t)file->header.pid : 0, ok);
	add_string(object, "where", hang_where_names[place->where], ok);
	add_time(object, "since_unix_ns", place->since_ns, ok);
	add_context(object, place->context, ok);
	add_string(object, "operation", entry ? text : NULL, ok);
	add_time(object, "sequence", entry ? (int64_t)(entry->tag >> 1) : 0, ok);
	add_string(object, "plan", file && algorithm < RECORDER_ALGORITHMS && file->header.algorithms[algorithm][0] ? file->header.algorithms[algorithm] : NULL,
		   ok);
	add_time(object, "step", waits_here ? (int64_t)(entry->wait_step & UINT32_MAX) + 1 : 0, ok);
	add_time(object, "steps", entry ? (int64_t)(entry->plan >> 32) : 0, ok);
	add_time(object, "moves", waits_here && entry->moves <= INT64_MAX ? (int64_t)entry->moves : 0, ok);
	if (place->has_peer)
		add_number(object, "waits_for", place->peer, ok);
	else
		add(object, "waits_for", NULL, ok);
	add_string(object, "wait", waits_here ? waits[entry->wait & 0x7f] : NULL, ok);
	add_time(object, "entered", file && file->entered <= INT64_MAX ? (int64_t)file->entered : 0, ok);
	add_number(object, "torn", file ? file->torn : 0, ok);
	return object;
}

static struct json_object *new_end(const struct hang_end *end, bool *ok)
{
	struct json_object *object = json_object_new_object();
	add_number(object, "rank", end->place.rank, ok);
	add_string(object, "where", hang_where_names[end->place.where], ok);
	add_bool(object, "circle", end->circle, ok);
	add_ranks(object, "held", end->held, end->held_count, ok);
	return object;
}

static struct json_object *new_report(const struct hang_report *report, bool *ok)
{
	const struct hang_set *set = report->set;
	const struct hang_end *end = report->end_count ? &report->ends[0] : NULL;
	struct json_object *root = json_object_new_object(), *culprit = NULL, *operation = NULL, *abort = NULL, *ends, *ranks;
	char text[HANG_OPERATION_TEXT];
	add_number(root, "version", 1, ok);
	add_string(root, "verdict", hang_verdict_names[report->verdict], ok);
	add_string(root, "text", report->text, ok);
	add_string(root, "sure", hang_sure_names[report->sure], ok);
	add_string(root, "why_sure", report->why_sure, ok);
	if (report->failed) {
		abort = json_object_new_object();
		add_string(abort, "text", report->failed->header.verdict, ok);
		add_number(abort, "rank", report->failed->header.world_rank, ok);
		add_time(abort, "unix_ns", report->failed->failed_ns, ok);
	}
	add(root, "abort", abort, ok);
	if (report->verdict == HANG_CULPRIT && end) {
		const struct hang_file *file = end->place.file;
		culprit = json_object_new_object();
		add_number(culprit, "rank", end->place.rank, ok);
		add_string(culprit, "host", file ? file->header.host : NULL, ok);
		add_string(culprit, "where", hang_where_names[end->place.where], ok);
		add_time(culprit, "pid", file && file->header.pid <= INT64_MAX ? (int64_t)file->header.pid : 0, ok);
		add_time(culprit, "since_unix_ns", end->place.since_ns, ok);
	}
	add(root, "culprit", culprit, ok);
	if (end && end->wanted_operation) {
		operation = json_object_new_object();
		hang_operation(end->wanted_operation, text);
		add_context(operation, end->wanted_context, ok);
		add_number(operation, "sequence", end->wanted, ok);
		add_string(operation, "signature", text, ok);
	}
	add(root, "operation", operation, ok);
	add_ranks(root, "held", end ? end->held : NULL, end ? end->held_count : 0, ok);
	ends = json_object_new_array();
	for (size_t i = 0; i < report->end_count; i++)
		append(ends, new_end(&report->ends[i], ok), ok);
	add(root, "ends", ends, ok);
	add_lines(root, "sides", report->sides_text, ok);
	add_lines(root, "chain", report->chain, ok);
	add_string(root, "job", set->job, ok);
	add_string(root, "other_jobs", set->other_jobs, ok);
	add_bool(root, "live", set->live, ok);
	add_time(root, "now_unix_ns", set->now_ns, ok);
	add_number(root, "files", set->count, ok);
	add_lines(root, "missing", report->missing, ok);
	add_lines(root, "notes", set->notes, ok);
	ranks = json_object_new_array();
	for (size_t i = 0; i < report->place_count; i++)
		append(ranks, new_rank(&report->places[i], ok), ok);
	add(root, "ranks", ranks, ok);
	return root;
}

enum st_status hang_json(const struct hang_report *report, char **text)
{
	bool ok = true;
	struct json_object *root = new_report(report, &ok);
	const char *printed = ok ? json_object_to_json_string_ext(root, JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_NOSLASHESCAPE) : NULL;

	*text = printed ? strdup(printed) : NULL;
	json_object_put(root);
	return *text ? ST_OK : st_fail(ST_ERR_NOMEM, "report: no memory for JSON");
}
