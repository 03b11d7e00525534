/* What `synctrain report --hang` prints for people: 80 columns, the verdict first. */
#include "trainer/hang.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "trainer/report.h"

#define ROWS_SHOWN 32

static void print_age(char text[16], const struct hang_set *set, int64_t since_ns)
{
	const int64_t end = set->first_failure_ns < set->now_ns ? set->first_failure_ns : set->now_ns;
	const double seconds = since_ns && end > since_ns ? (double)(end - since_ns) / ST_NS_PER_S : 0;
	if (!since_ns)
		strcpy(text, "-");
	else if (seconds < 1000)
		snprintf(text, 16, "%.1f s", seconds);
	else if (seconds < 100000)
		snprintf(text, 16, "%.0f s", seconds);
	else
		snprintf(text, 16, "%.0f h", seconds / 3600);
}

static const char *waits_for(const struct recorder_entry *entry)
{
	switch ((enum recorder_wait)(entry->wait & 0x7f)) {
	case RECORDER_WAIT_DATA: return "data";
	case RECORDER_WAIT_GRANT: return "grant";
	case RECORDER_WAIT_FLUSH: return "flush";
	case RECORDER_WAIT_ROOM: return "room";
	default: return "";
	}
}

/* E.g. "     3 n1         allreduce 41 of 2 f32, sum     blocked    12.3 s 0, data". */
static void print_row(const struct hang_report *report, const struct hang_place *place, FILE *out)
{
	const struct hang_file *file = place->file;
	char operation[HANG_OPERATION_TEXT + 8] = "-", age[16], peer[32] = "";
	const struct recorder_entry *shown = place->operation ? place->operation : file ? hang_entry(file, file->entered) : NULL;
	if (place->where == HANG_DECIDING) {
		snprintf(operation, sizeof operation, "decision %" PRIu64, place->decision);
	} else if (shown) {
		char text[HANG_OPERATION_TEXT];
		hang_operation(shown, text);
		snprintf(operation, sizeof operation, "%s%s", hang_open(shown) ? "" : "after ", text);
	}
	print_age(age, report->set, place->since_ns);
	if (place->has_peer && place->where == HANG_BLOCKED)
		snprintf(peer, sizeof peer, "%" PRIu32 ", %s", place->peer, waits_for(place->operation));
	else if (place->has_peer)
		snprintf(peer, sizeof peer, "%" PRIu32, place->peer);
	fprintf(out, "%6" PRIu32 " %-10.10s %-30.30s %-8s %8s %s\n", place->rank, file ? file->header.host : "?", operation,
		hang_where_names[place->where], age, peer);
}

/* The end of most chains, then whom it holds, then the others. */
static int importance(const struct hang_report *report, const struct hang_place *place)
{
	for (size_t e = 0; e < report->end_count; e++)
		if (report->ends[e].place.rank == place->rank)
			return 0;
	return place->where == HANG_BLOCKED || place->where == HANG_DECIDING ? 2 : 1;
}

static void print_table(const struct hang_report *report, bool all, FILE *out)
{
	size_t left = all ? report->place_count : ROWS_SHOWN, hidden = 0;
	fprintf(out, "\n%6s %-10s %-30s %-8s %8s %s\n", "rank", "host", "operation", "is", "for", "waits for");
	bool *shown = calloc(report->place_count + 1, sizeof *shown);
	for (int turn = 0; shown && turn < 3; turn++)
		for (size_t i = 0; i < report->place_count && left; i++)
			if (importance(report, &report->places[i]) == turn) {
				shown[i] = true;
				left--;
			}
	for (size_t i = 0; shown && i < report->place_count; i++) {
		if (shown[i])
			print_row(report, &report->places[i], out);
		else
			hidden++;
	}
	free(shown);
	if (hidden)
		fprintf(out, "       and %zu more; --all shows them\n", hidden);
}

bool hang_print(const struct hang_report *report, bool all, FILE *out)
{
	const struct hang_set *set = report->set;
	char *text = NULL;
	if (report->failed && asprintf(&text, "the job was ended: %s", report->failed->header.verdict) < 0)
		return false;
	train_print_wrapped(out, "verdict: ", text ? text : report->text);
	if (text)
		train_print_wrapped(out, "found:   ", report->text);
	free(text);
	if (asprintf(&text, "%s: %s", hang_sure_names[report->sure], report->why_sure) < 0)
		return false;
	train_print_wrapped(out, "sure:    ", text);
	free(text);
	if (asprintf(&text, "%s, %zu file%s used, %s", set->job, set->count, set->count == 1 ? "" : "s",
		     set->live ? "running on this machine now" : "as of the last sign of life in them") < 0)
		return false;
	train_print_wrapped(out, "job:     ", text);
	free(text);
	if (set->other_jobs) {
		train_print_wrapped(out, "others:  ", set->other_jobs);
	}
	if (report->missing)
		train_print_lines(out, "missing: ", report->missing);
	if (report->sides_text) {
		fputc('\n', out);
		train_print_lines(out, "  ", report->sides_text);
	}
	if (report->chain) {
		fputc('\n', out);
		train_print_lines(out, "  ", report->chain);
	}
	print_table(report, all, out);
	if (set->notes) {
		fputc('\n', out);
		train_print_lines(out, "  - ", set->notes);
	}
	return fflush(out) == 0 && !ferror(out);
}
