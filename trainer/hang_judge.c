/* Follows who waits for whom, and says who is at the end. */
#include "trainer/hang.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "libcomm/transport.h"

#define SILENT_NS (5 * ST_NS_PER_S) /* a rank that waits looks every second */
#define HELD_SHOWN 12

const char *const hang_verdict_names[] = {"nobody", "culprit", "mismatch", "circle"};
const char *const hang_sure_names[] = {"unsure", "likely", "certain"};
const char *const hang_where_names[] = {"outside", "inside", "blocked", "deciding", "silent", "done", "stopped", "gone", "left", "missing", "disagrees"};

struct text {
	char *data;
	size_t bytes;
	bool no_memory;
};

__attribute__((format(printf, 2, 3))) static void say(struct text *text, const char *format, ...)
{
	char *piece;
	va_list list;
	va_start(list, format);
	const int length = vasprintf(&piece, format, list);
	va_end(list);
	char *more = length < 0 ? NULL : realloc(text->data, text->bytes + (size_t)length + 1);
	if (!more) {
		text->no_memory = true;
	} else {
		memcpy(more + text->bytes, piece, (size_t)length + 1);
		text->data = more;
		text->bytes += (size_t)length;
	}
	if (length >= 0)
		free(piece);
}

/* "0-2, 5" */
static void say_ranks(struct text *text, const uint32_t *ranks, size_t count)
{
	size_t shown = 0;
	for (size_t i = 0; i < count; shown++) {
		size_t last = i;
		while (last + 1 < count && ranks[last + 1] == ranks[last] + 1)
			last++;
		if (shown == HELD_SHOWN) {
			say(text, " and %zu more", count - i);
			return;
		}
		say(text, last > i ? "%s%" PRIu32 "-%" PRIu32 : "%s%" PRIu32, i ? ", " : "", ranks[i], ranks[last]);
		i = last + 1;
	}
}

static void say_moment(struct text *text, int64_t wall_ns)
{
	const time_t seconds = (time_t)(wall_ns / ST_NS_PER_S);
	struct tm parts;
	char clock[32];
	if (!localtime_r(&seconds, &parts) || !strftime(clock, sizeof clock, "%H:%M:%S", &parts))
		snprintf(clock, sizeof clock, "%lld s", (long long)seconds);
	say(text, "%s.%03d", clock, (int)(wall_ns % ST_NS_PER_S / ST_NS_PER_MS));
}

static double seconds_since(const struct hang_set *set, int64_t wall_ns)
{
	const int64_t end = set->first_failure_ns < set->now_ns ? set->first_failure_ns : set->now_ns;
	return end > wall_ns ? (double)(end - wall_ns) / ST_NS_PER_S : 0;
}

static bool is_driven(const struct hang_file *file)
{
	return file->header.waiting || file->header.flags & RECORDER_HELPER;
}

static bool in_decision(const struct hang_file *file)
{
	return file->header.decision & 1;
}

static bool issued_in_time(const struct hang_file *file, const struct recorder_entry *entry)
{
	return entry->tag >> 1 <= file->entered;
}

/* The operation of a lane that runs, or ran when the communicator failed; any lane: < 0. */
static const struct recorder_entry *running(const struct hang_file *file, int lane)
{
	for (size_t i = 0; i < file->count; i++) {
		const struct recorder_entry *entry = &file->entries[i];
		if (hang_open(entry) && issued_in_time(file, entry) && entry->started_ns && (lane < 0 || hang_lane(entry) == (unsigned)lane))
			return entry;
	}
	return NULL;
}

static bool same_signature(const struct recorder_entry *a, const struct recorder_entry *b)
{
	return a->count == b->count && a->shape == b->shape && hang_lane(a) == hang_lane(b);
}

static int64_t latest_call(const struct hang_file *file)
{
	int64_t latest = file->left_ns;
	const struct recorder_entry *last = hang_entry(file, file->entered);
	if (last && last->issued_ns > latest)
		latest = last->issued_ns;
	return latest;
}

/* The newest of a process's files tells when it was last in libcomm. */
static int64_t latest_call_of(const struct hang_set *set, uint32_t rank)
{
	int64_t latest = 0;
	size_t first;
	for (size_t count = hang_files_of(set, rank, &first); count; count--, first++)
		if (latest_call(set->by_rank[first]) > latest)
			latest = latest_call(set->by_rank[first]);
	return latest;
}

/* Any file of a rank, its communicator of all ranks first. */
static const struct hang_file *any_file(const struct hang_set *set, uint32_t rank)
{
	size_t first;
	return hang_files_of(set, rank, &first) ? set->by_rank[first] : NULL;
}

/* Who has not entered a decision: one that is not blocked itself if there is any. */
static bool decision_peer(const struct hang_set *set, const struct hang_file *file, uint32_t *peer)
{
	bool found = false;
	size_t count = 0;
	for (size_t i = 0; i < set->count; i++) {
		const struct hang_file *other = set->files[i];
		if (other->header.context != file->header.context)
			continue;
		count++;
		if (other->header.decision >> 1 >= file->header.decision >> 1)
			continue;
		const struct recorder_entry *entry = running(other, -1);
		const bool blocked = entry && entry->wait && is_driven(other);
		if (!found || !blocked)
			*peer = other->header.world_rank;
		found = true;
		if (!blocked)
			break;
	}
	/* Or the one rank of which there is no file. */
	for (uint32_t rank = 0; !found && !file->header.context && rank < file->header.size && count + 1 == file->header.size; rank++)
		if (!hang_find(set, 0, rank)) {
			*peer = rank;
			found = true;
		}
	return found;
}

static void silent_or(const struct hang_set *set, struct hang_place *place, enum hang_where otherwise)
{
	const int64_t looked = place->file->looked_ns;
	place->where = looked && set->first_failure_ns == INT64_MAX && set->now_ns - looked > SILENT_NS ? HANG_SILENT : otherwise;
	if (place->where == HANG_SILENT)
		place->since_ns = looked;
}

/* An operation of a file that runs: blocked, or not. */
static void place_running(const struct hang_set *set, struct hang_place *place, const struct recorder_entry *entry)
{
	const struct hang_file *file = place->file;
	place->operation = entry;
	place->since_ns = entry->started_ns;
	if (!entry->wait && !is_driven(file)) {
		place->where = HANG_OUTSIDE;
		place->since_ns = latest_call_of(set, place->rank);
		return;
	}
	if (!entry->wait) {
		silent_or(set, place, HANG_INSIDE);
		return;
	}
	place->peer = hang_peer(entry);
	place->has_peer = true;
	const struct hang_file *peer = hang_find(set, place->context, place->peer);
	/* Whom it waited for when it was last here may have come since. */
	if (!is_driven(file) && peer && peer->entered >= entry->tag >> 1) {
		place->where = HANG_OUTSIDE;
		place->since_ns = latest_call_of(set, place->rank);
		return;
	}
	place->where = HANG_BLOCKED;
	place->since_ns = entry->wait_since_ns;
}

/* Where a rank is that others wait for in an operation of a communicator; wanted 0: in general. */
static struct hang_place locate(const struct hang_set *set, uint32_t rank, uint64_t context, uint64_t wanted)
{
	struct hang_place place = {.where = HANG_MISSING, .rank = rank, .context = context, .file = hang_find(set, context, rank)};
	const struct hang_file *any = place.file ? place.file : any_file(set, rank);
	if (!any)
		return place;
	if (any->process == HANG_PROCESS_STOPPED || (any->process == HANG_PROCESS_GONE && (set->living || set->first_failure_ns < INT64_MAX) &&
						     any->header.state == RECORDER_RUNNING)) {
		place.where = any->process == HANG_PROCESS_STOPPED ? HANG_STOPPED : HANG_GONE;
		place.file = any;
		place.since_ns = any->last_ns;
		place.operation = running(any, -1);
		place.entered = place.file->header.context == context && any->entered >= wanted && wanted;
		return place;
	}
	if (any->header.state == RECORDER_LEFT) {
		place.where = HANG_LEFT;
		place.file = any;
		place.since_ns = any->left_ns;
		return place;
	}
	if (place.file && wanted && place.file->entered >= wanted) {
		const struct recorder_entry *entry = hang_entry(place.file, wanted);
		place.entered = true;
		if (entry && !hang_open(entry)) {
			place.where = HANG_SENT;
			place.operation = entry;
			place.since_ns = entry->finished_ns;
			return place;
		}
		/* Behind another one in its lane. */
		if (entry && !entry->started_ns && running(place.file, (int)hang_lane(entry)))
			entry = running(place.file, (int)hang_lane(entry));
		if (entry) {
			place_running(set, &place, entry);
			return place;
		}
		if (place.file->entered - wanted >= RECORDER_ENTRIES) {
			place.where = HANG_SENT;
			return place;
		}
	}
	/* It is elsewhere: in a decision, in a wait, perhaps of another communicator, or outside. */
	size_t first;
	const size_t count = hang_files_of(set, rank, &first);
	for (int turn = 0; turn < 2; turn++)
		for (size_t i = first; i < first + count; i++) {
			const struct hang_file *file = set->by_rank[i];
			const struct recorder_entry *entry = running(file, -1);
			place.file = file;
			place.context = file->header.context;
			if (turn == 0 && in_decision(file)) {
				place.where = HANG_DECIDING;
				place.decision = file->header.decision >> 1;
				place.since_ns = file->decision_ns;
				place.has_peer = decision_peer(set, file, &place.peer);
				return place;
			}
			if (turn == 0 && entry && file->header.waiting) {
				place_running(set, &place, entry);
				return place;
			}
			if (turn == 1 && file->header.waiting) {
				silent_or(set, &place, HANG_INSIDE);
				return place;
			}
		}
	place.file = hang_find(set, context, rank);
	place.context = context;
	if (!place.file) {
		/* Of this communicator there is none: what the others say tells only that it waits in none of them. */
		place.where = wanted ? HANG_MISSING : HANG_OUTSIDE;
		place.file = wanted ? NULL : any;
		place.since_ns = wanted ? 0 : latest_call_of(set, rank);
		return place;
	}
	place.where = HANG_OUTSIDE;
	place.operation = running(place.file, -1);
	place.since_ns = latest_call_of(set, rank);
	return place;
}

static bool waits(const struct hang_place *place)
{
	return (place->where == HANG_BLOCKED || place->where == HANG_DECIDING) && place->has_peer;
}

/* A circle is entered at any of its ranks: its name is the lowest. */
static uint32_t lowest_of_circle(const struct hang_set *set, const struct hang_place *start)
{
	struct hang_place place = *start;
	uint32_t lowest = start->rank;
	for (size_t steps = 0; steps <= set->count && waits(&place); steps++) {
		place = locate(set, place.peer, place.context, place.where == HANG_BLOCKED ? place.operation->tag >> 1 : 0);
		if (place.rank == start->rank)
			break;
		if (place.rank < lowest)
			lowest = place.rank;
	}
	return lowest;
}

/* One rank's chain. Its steps are marked in `seen`, (world_size), with `mark`. */
static struct hang_end follow(const struct hang_set *set, const struct hang_place *start, uint32_t *seen, uint32_t mark, struct text *chain)
{
	struct hang_place place = *start;
	struct hang_end end = {0};
	char text[HANG_OPERATION_TEXT];
	for (;;) {
		seen[place.rank] = mark;
		end.wanted_context = place.context;
		end.wanted = place.where == HANG_BLOCKED ? place.operation->tag >> 1 : 0;
		end.wanted_operation = place.where == HANG_BLOCKED ? place.operation : NULL;
		if (place.where == HANG_BLOCKED)
			hang_operation(place.operation, text);
		else
			snprintf(text, sizeof text, "decision %" PRIu64, place.decision);
		if (chain)
			say(chain, "rank %" PRIu32 " on %s waits for rank %" PRIu32 " in %s%s\n", place.rank, place.file->header.host, place.peer, text,
			    place.context ? " of another communicator" : "");
		const uint32_t next = place.peer;
		const struct recorder_entry *mine = end.wanted_operation;
		const struct hang_file *file = hang_find(set, place.context, next);
		const struct recorder_entry *theirs = mine && file && file->entered >= end.wanted ? hang_entry(file, end.wanted) : NULL;
		place = locate(set, next, end.wanted_context, end.wanted);
		if (theirs && !same_signature(mine, theirs)) {
			place = (struct hang_place){.where = HANG_DISAGREES, .rank = next, .context = end.wanted_context, .file = file, .operation = theirs,
						    .since_ns = theirs->issued_ns};
			break;
		}
		if (seen[next] == mark) {
			end.circle = true;
			place.rank = lowest_of_circle(set, &place);
			break;
		}
		if (!waits(&place))
			break;
	}
	end.place = place;
	return end;
}

static int strength(const struct hang_end *end)
{
	static const int of[] = {[HANG_OUTSIDE] = 4, [HANG_STOPPED] = 5, [HANG_GONE] = 5, [HANG_LEFT] = 5, [HANG_DISAGREES] = 5, [HANG_SILENT] = 3,
				 [HANG_MISSING] = 2, [HANG_SENT] = 1, [HANG_INSIDE] = 1, [HANG_DECIDING] = 1};
	return end->circle ? 2 : of[end->place.where];
}

static int most_first(const void *a, const void *b)
{
	const struct hang_end *x = a, *y = b;
	if (x->held_count != y->held_count)
		return x->held_count > y->held_count ? -1 : 1;
	if (strength(x) != strength(y))
		return strength(y) - strength(x);
	return x->place.rank < y->place.rank ? -1 : x->place.rank > y->place.rank;
}

/* The first operation on which the files of a communicator disagree. */
static void find_mismatch(const struct hang_set *set, struct hang_report *report)
{
	for (size_t first = 0, last; first < set->count; first = last) {
		uint64_t lowest = UINT64_MAX;
		for (last = first; last < set->count && set->files[last]->header.context == set->files[first]->header.context; last++)
			;
		for (size_t i = first + 1; i < last; i++)
			for (size_t k = 0; k < set->files[i]->count; k++) {
				const struct recorder_entry *a = &set->files[i]->entries[k];
				const struct recorder_entry *b = hang_entry(set->files[first], a->tag >> 1);
				if (b && a->tag >> 1 < lowest && !same_signature(a, b)) {
					lowest = a->tag >> 1;
					break;
				}
			}
		if (lowest == UINT64_MAX || report->mismatch_sequence)
			continue;
		/* What most call is one side. */
		size_t most = 0;
		for (size_t i = first; i < last; i++) {
			const struct recorder_entry *a = hang_entry(set->files[i], lowest);
			size_t same = 0;
			for (size_t k = first; a && k < last && same <= most; k++) {
				const struct recorder_entry *b = hang_entry(set->files[k], lowest);
				same += b && same_signature(a, b);
			}
			if (same > most) {
				most = same;
				report->sides[0] = a;
				report->side_files[0] = set->files[i];
			}
			if (last - first > 256) /* enough to see a majority */
				break;
		}
		for (size_t i = first; i < last && !report->sides[1]; i++) {
			const struct recorder_entry *a = hang_entry(set->files[i], lowest);
			if (a && !same_signature(a, report->sides[0])) {
				report->sides[1] = a;
				report->side_files[1] = set->files[i];
			}
		}
		report->mismatch_sequence = lowest;
		report->mismatch_context = set->files[first]->header.context;
	}
}

static void say_side(const struct hang_report *report, int side, struct text *text, size_t *count)
{
	const struct hang_set *set = report->set;
	uint32_t *ranks = malloc((set->count + 1) * sizeof *ranks);
	char operation[HANG_OPERATION_TEXT];
	*count = 0;
	for (size_t i = 0; ranks && i < set->count; i++) {
		const struct hang_file *file = set->files[i];
		const struct recorder_entry *entry = hang_entry(file, report->mismatch_sequence);
		if (file->header.context == report->mismatch_context && entry && same_signature(entry, report->sides[side]))
			ranks[(*count)++] = file->header.world_rank;
	}
	hang_operation(report->sides[side], operation);
	say(text, "rank%s ", *count == 1 ? "" : "s");
	if (ranks)
		say_ranks(text, ranks, *count);
	if (*count == 1)
		say(text, " on %s", report->side_files[side]->header.host);
	say(text, " call%s %s, lane %u", *count == 1 ? "s" : "", operation, hang_lane(report->sides[side]));
	free(ranks);
}

static void say_rank(struct text *text, const struct hang_set *set, uint32_t rank)
{
	const struct hang_file *file = any_file(set, rank);
	say(text, "rank %" PRIu32, rank);
	if (file)
		say(text, " on %s", file->header.host);
}

/* What a rank at the end of a chain did last and does now. */
static void say_why(struct text *text, const struct hang_set *set, const struct hang_end *end)
{
	const struct hang_place *place = &end->place;
	const struct hang_file *file = place->file;
	char wanted[HANG_OPERATION_TEXT] = "", operation[HANG_OPERATION_TEXT] = "";
	const struct recorder_entry *done = NULL;
	if (end->wanted_operation)
		hang_operation(end->wanted_operation, wanted);
	else
		snprintf(wanted, sizeof wanted, "the decision (comm_decide or comm_collect)");
	if (place->operation)
		hang_operation(place->operation, operation);
	if (file)
		for (size_t i = file->count; i-- && !done;)
			if (!hang_open(&file->entries[i]))
				done = &file->entries[i];
	if (place->where == HANG_MISSING) {
		say(text, "it is waited for in %s, and its file is not here, so what it does is not known", wanted);
		return;
	}
	if (place->where == HANG_DISAGREES) {
		say(text, "it calls %s where others call %s", operation, wanted);
		return;
	}
	if (place->where == HANG_SENT) {
		say(text, "it has finished %s", wanted);
		if (place->since_ns) {
			say(text, " at ");
			say_moment(text, place->since_ns);
		}
		say(text, ", and what it sent has not come through");
		return;
	}
	if (place->entered)
		say(text, "it has entered %s", wanted);
	else
		say(text, "it has not entered %s", wanted);
	if (!place->entered && done) {
		char last[HANG_OPERATION_TEXT];
		hang_operation(done, last);
		say(text, "; it finished %s at ", last);
		say_moment(text, done->finished_ns);
	}
	switch (place->where) {
	case HANG_OUTSIDE:
		if (place->entered)
			say(text, " but nobody moves it on: it");
		else
			say(text, " and");
		say(text, " has been outside libcomm for %.1f s", seconds_since(set, place->since_ns));
		if (place->operation && !place->entered)
			say(text, ", with %s in flight", operation);
		break;
	case HANG_STOPPED: say(text, "; its process %" PRIu64 " is stopped", file->header.pid); break;
	case HANG_GONE:
		say(text, "; its process %" PRIu64 " is no more, its last sign of life was at ", file->header.pid);
		say_moment(text, place->since_ns);
		break;
	case HANG_LEFT:
		say(text, "; it left in an orderly way at ");
		say_moment(text, place->since_ns);
		break;
	case HANG_SILENT:
		say(text, "; it is inside libcomm and has not looked for %.1f s, as if stopped (or its file was copied that much earlier)",
		    seconds_since(set, place->since_ns));
		break;
	case HANG_DECIDING: say(text, "; it is in decision %" PRIu64 ", and all whose files are here have entered that", place->decision); break;
	default: say(text, "; it is inside libcomm and was not blocked for long"); break;
	}
}

/* Ranks of communicator 0 (or of the largest one here) without a file. */
static void find_missing(const struct hang_set *set, struct text *text)
{
	for (size_t first = 0, last; first < set->count; first = last) {
		const struct recorder_header *head = &set->files[first]->header;
		size_t missing = 0;
		for (last = first; last < set->count && set->files[last]->header.context == head->context; last++)
			;
		if (last - first >= head->size)
			continue;
		bool *here = calloc(head->size, sizeof *here);
		uint32_t *ranks = malloc(head->size * sizeof *ranks);
		if (here && ranks) {
			for (size_t i = first; i < last; i++)
				here[set->files[i]->header.rank] = true;
			for (uint32_t r = 0; r < head->size; r++)
				if (!here[r])
					ranks[missing++] = r;
			say(text, "no file of rank%s ", missing == 1 ? "" : "s");
			say_ranks(text, ranks, missing);
			if (head->context)
				say(text, " of communicator %" PRIx64, head->context);
			say(text, "\n");
		} else {
			text->no_memory = true;
		}
		free(here);
		free(ranks);
	}
}

static void judge_text(struct hang_report *report, struct text *text, struct text *sure, struct text *sides)
{
	const struct hang_set *set = report->set;
	const struct hang_end *end = report->end_count ? &report->ends[0] : NULL;
	size_t counts[2];
	if (report->mismatch_sequence) {
		report->verdict = HANG_MISMATCH;
		report->sure = HANG_CERTAIN;
		struct text side[2] = {{0}};
		for (int s = 0; s < 2; s++) {
			say_side(report, s, &side[s], &counts[s]);
			say(sides, "%s\n", side[s].data ? side[s].data : "");
			text->no_memory |= side[s].no_memory;
		}
		say(text, "ranks disagree on operation %" PRIu64 ": %s, and %s", report->mismatch_sequence, side[1].data ? side[1].data : "",
		    side[0].data ? side[0].data : "");
		say(sure, "both entries are in the files%s", counts[0] == counts[1] ? "; as many call the one as the other" : "");
		free(side[0].data);
		free(side[1].data);
		return;
	}
	if (!end) {
		report->verdict = HANG_NOBODY;
		report->sure = set->live && set->first_failure_ns == INT64_MAX ? HANG_CERTAIN : HANG_UNSURE;
		const struct hang_place *deciding = NULL;
		for (size_t i = 0; i < report->place_count && !deciding; i++)
			if (report->places[i].where == HANG_DECIDING)
				deciding = &report->places[i];
		if (deciding) {
			report->sure = HANG_UNSURE;
			say(text, "rank %" PRIu32 " on %s waits in decision %" PRIu64 " (comm_decide or comm_collect), for whom the files that are here do not say",
			    deciding->rank, deciding->file->header.host, deciding->decision);
		} else {
			say(text, "no rank whose file is here %s for another", set->first_failure_ns == INT64_MAX ? "has been waiting long" : "was waiting");
		}
		say(sure, "%zu file%s", set->count, set->count == 1 ? "" : "s");
		return;
	}
	if (end->circle) {
		report->verdict = HANG_CIRCLE;
		report->sure = HANG_LIKELY;
		say(text, "ranks wait for each other in a circle, rank %" PRIu32 " among them; rank%s ", end->place.rank, end->held_count == 1 ? "" : "s");
		say_ranks(text, end->held, end->held_count);
		say(text, " %s held up", end->held_count == 1 ? "is" : "are");
		say(sure, "each wait is in a file; which of them is wrong the files can't say: compare the order of calls");
		return;
	}
	report->verdict = HANG_CULPRIT;
	say_rank(text, set, end->place.rank);
	say(text, " held up rank%s ", end->held_count == 1 ? "" : "s");
	say_ranks(text, end->held, end->held_count);
	say(text, ": ");
	say_why(text, set, end);
	const bool alone = report->end_count == 1;
	if (strength(end) >= 4) {
		report->sure = alone ? HANG_CERTAIN : HANG_LIKELY;
		say(sure, "its own file %s", end->place.where == HANG_STOPPED || end->place.where == HANG_GONE ? "and this machine say so" : "says so");
	} else if (strength(end) >= 2) {
		report->sure = alone ? HANG_LIKELY : HANG_UNSURE;
		say(sure, "%s", end->place.where == HANG_MISSING ? "its own file is not here" : "it gives no sign of life");
	} else {
		report->sure = HANG_UNSURE;
		say(sure, "it may be slow, or data may be on the way");
	}
	say(sure, alone ? ", and every rank that waits waits for it in the end" : ", but other ranks hold up some, too");
}

static enum st_status no_memory(void)
{
	return st_fail(ST_ERR_NOMEM, "out of memory");
}

enum st_status hang_judge(const struct hang_set *set, struct hang_report *report)
{
	struct text text = {0}, sure = {0}, chain = {0}, missing = {0}, sides = {0};
	uint32_t mark = 0, world = set->count ? set->files[0]->header.world_size : 0;
	uint32_t *seen = calloc((size_t)world + 1, sizeof *seen);
	uint8_t *known = calloc((size_t)world + 1, 1);

	*report = (struct hang_report){.set = set};
	report->places = calloc(set->count + 1, sizeof *report->places);
	report->ends = calloc(set->count + 1, sizeof *report->ends);
	if (!seen || !known || !report->places || !report->ends) {
		free(seen);
		free(known);
		hang_report_free(report);
		return no_memory();
	}
	for (size_t i = 0; i < set->count; i++) {
		const struct hang_file *file = set->files[i];
		known[file->header.world_rank] = 1;
		if (file->header.state == RECORDER_FAILED && (!report->failed || file->failed_ns < report->failed->failed_ns))
			report->failed = file;
	}
	find_mismatch(set, report);
	bool fine = true;
	for (uint32_t rank = 0; rank < world && fine; rank++) {
		if (!known[rank])
			continue;
		struct hang_place place = locate(set, rank, 0, 0);
		report->places[report->place_count++] = place;
		if (!waits(&place))
			continue;
		struct hang_end end = follow(set, &place, seen, ++mark, NULL);
		size_t e = 0;
		while (e < report->end_count && (report->ends[e].place.rank != end.place.rank || report->ends[e].circle != end.circle))
			e++;
		if (e == report->end_count)
			report->ends[report->end_count++] = end;
		else if (end.wanted && report->ends[e].wanted > end.wanted && report->ends[e].wanted_context == end.wanted_context)
			end.held = report->ends[e].held, end.held_count = report->ends[e].held_count, report->ends[e] = end;
		struct hang_end *mine = &report->ends[e];
		uint32_t *more = realloc(mine->held, (mine->held_count + 1) * sizeof *more);
		fine = more != NULL;
		if (more) {
			mine->held = more;
			mine->held[mine->held_count++] = rank;
		}
	}
	qsort(report->ends, report->end_count, sizeof *report->ends, most_first);
	if (fine) {
		judge_text(report, &text, &sure, &sides);
		find_missing(set, &missing);
		for (size_t i = 0; report->end_count && i < report->place_count; i++)
			if (report->places[i].rank == report->ends[0].held[0])
				follow(set, &report->places[i], seen, ++mark, &chain);
	}
	free(seen);
	free(known);
	report->text = text.data;
	report->why_sure = sure.data;
	report->chain = chain.data;
	report->missing = missing.data;
	report->sides_text = sides.data;
	if (!fine || text.no_memory || sure.no_memory || chain.no_memory || missing.no_memory || sides.no_memory || !text.data || !sure.data) {
		hang_report_free(report);
		return no_memory();
	}
	return ST_OK;
}

void hang_report_free(struct hang_report *report)
{
	for (size_t i = 0; i < report->end_count; i++)
		free(report->ends[i].held);
	free(report->ends);
	free(report->places);
	free(report->text);
	free(report->why_sure);
	free(report->chain);
	free(report->missing);
	free(report->sides_text);
	*report = (struct hang_report){0};
}
