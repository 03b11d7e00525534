/*
 * `synctrain report --hang`: who held the others up, from the flight recorders of all or some of a job's ranks (libcomm/recorder_format.h).
 *
 * A rank that is blocked says on whom and in which operation.  Such chains are followed, also from one communicator into another, to a rank that is
 * blocked on nobody: one that is outside libcomm, stopped, gone, or whose file is not here; or in a circle.  Ranks that disagree on what
 * operation N is are found by comparing the entries of that number.  The rank at the end of most chains is named.
 *
 * The files may be copied from several nodes while the job hangs, cut off, or made by somebody with bad intentions: every length is checked, and no byte
 * of theirs is printed that is not printable ASCII.  Times of different nodes are compared by their wall clocks.
 */
#ifndef SYNCTRAIN_TRAINER_HANG_H
#define SYNCTRAIN_TRAINER_HANG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "common/status.h"
#include "libcomm/recorder_format.h"

enum hang_process { HANG_PROCESS_UNKNOWN, HANG_PROCESS_ALIVE, HANG_PROCESS_STOPPED, HANG_PROCESS_GONE };

/* One file: header and whole entries, checked; strings end and are printable. */
struct hang_file {
	struct recorder_header header;
	struct recorder_entry *entries; /* by sequence; times in them are wall clock, 0: not yet; wait 0 where it is torn */
	size_t count, torn;
	int64_t created_ns, looked_ns, left_ns, decision_ns, failed_ns, last_ns; /* wall clock; last: the newest of all times in the file */
	uint64_t entered; /* the newest operation issued, before the job's first failure */
	enum hang_process process; /* of this machine, now */
	bool truncated;
};

struct hang_set {
	struct hang_file **files;   /* of one job, by context and world rank, each pair once */
	struct hang_file **by_rank; /* the same by world rank and context */
	size_t count;
	char job[sizeof ((struct recorder_header *)0)->job + 1];
	char *other_jobs;         /* names, by ", "; NULL: none */
	char *notes;              /* lines ending in '\n', printable; NULL: none */
	size_t seen;              /* files looked at */
	size_t living;            /* files whose process lives on this machine and runs */
	int64_t now_ns;           /* wall clock: this moment if a process of the job lives here, else the last sign of life in any file */
	int64_t first_failure_ns; /* INT64_MAX: none */
	bool live;                /* a process of the job lives on this machine */
};

/*
 * Loads flight recorders: paths are directories, of which *.flight are read, or files.  job: NULL for the one that started last.  ST_ERR_NOINPUT: no such
 * directory or file, ST_ERR_PERMISSION, ST_ERR_DATA: nothing usable, or not of that job; ST_ERR_NOMEM.  What else is wrong is in the notes.
 */
enum st_status hang_load(char *const *paths, size_t count, const char *job, struct hang_set *set);
void hang_free(struct hang_set *set);

const struct hang_file *hang_find(const struct hang_set *set, uint64_t context, uint32_t world_rank);
/* A rank's files, one after the other in set->by_rank. */
size_t hang_files_of(const struct hang_set *set, uint32_t world_rank, size_t *first);
const struct recorder_entry *hang_entry(const struct hang_file *file, uint64_t sequence);
enum recorder_operation_state hang_state(const struct recorder_entry *entry);
unsigned hang_lane(const struct recorder_entry *entry);
/* The peer of a wait. Only where entry->wait is not 0. */
uint32_t hang_peer(const struct recorder_entry *entry);
bool hang_open(const struct recorder_entry *entry); /* not ended, or ended by the failure */
#define HANG_OPERATION_TEXT 128
void hang_operation(const struct recorder_entry *entry, char text[HANG_OPERATION_TEXT]);

/* Where a rank is. */
enum hang_where {
	HANG_OUTSIDE,   /* not in libcomm; if `operation` is set that is in flight, and nobody moves it on */
	HANG_INSIDE,    /* in libcomm, and not blocked for long */
	HANG_BLOCKED,   /* in `operation`, on `peer` */
	HANG_DECIDING,  /* in comm_decide or comm_collect number `decision`; on `peer` if known */
	HANG_SILENT,    /* in libcomm, and has not looked for long */
	HANG_SENT,      /* it has finished the operation in which others wait for it */
	HANG_STOPPED, HANG_GONE, HANG_LEFT,
	HANG_MISSING,   /* there is no file */
	HANG_DISAGREES, /* it calls something else under the same number */
};
struct hang_place {
	enum hang_where where;
	uint32_t rank;       /* in the job */
	uint64_t context;    /* of the communicator */
	const struct hang_file *file;            /* NULL: missing */
	const struct recorder_entry *operation;  /* NULL: none */
	uint64_t decision;
	uint32_t peer;
	bool has_peer;
	int64_t since_ns;    /* wall clock; 0: unknown */
	bool entered;        /* the operation in which others wait for it */
};

enum hang_sure { HANG_UNSURE, HANG_LIKELY, HANG_CERTAIN };
enum hang_verdict {
	HANG_NOBODY,   /* no rank waits for another */
	HANG_CULPRIT,  /* one rank */
	HANG_MISMATCH, /* ranks disagree on an operation */
	HANG_CIRCLE,   /* ranks wait for each other in a circle */
};
extern const char *const hang_verdict_names[], *const hang_sure_names[], *const hang_where_names[];

/* A rank at which chains end. */
struct hang_end {
	struct hang_place place;
	uint64_t wanted_context, wanted; /* the operation in which it is waited for; wanted 0: a decision */
	const struct recorder_entry *wanted_operation; /* as a waiting rank has it */
	uint32_t *held;                  /* the waiting ranks, ascending */
	size_t held_count;
	bool circle;
};

struct hang_report {
	const struct hang_set *set;
	enum hang_verdict verdict;
	enum hang_sure sure;
	const struct hang_file *failed;     /* whose verdict came first; NULL: no failure */
	struct hang_place *places;          /* of every rank that is known, by rank */
	size_t place_count;
	struct hang_end *ends;              /* most held first */
	size_t end_count;
	/* MISMATCH */
	const struct recorder_entry *sides[2]; /* what most call, and what the others call (the first other) */
	const struct hang_file *side_files[2];
	uint64_t mismatch_context, mismatch_sequence; /* 0: none */
	char *text;    /* one sentence, printable */
	char *why_sure;
	char *chain;   /* lines: how the first waiting rank's chain goes; "": none */
	char *missing; /* lines: whose files are not here; "": none */
	char *sides_text; /* lines; "": none */
};
enum st_status hang_judge(const struct hang_set *set, struct hang_report *report);
void hang_report_free(struct hang_report *report);

/* At most 80 columns. False: the stream failed. */
bool hang_print(const struct hang_report *report, bool all, FILE *out);
/* *text: malloc'ed JSON; its keys are in hang_json.c. */
enum st_status hang_json(const struct hang_report *report, char **text);

#endif
