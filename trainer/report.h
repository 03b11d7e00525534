/*
 * Who was slow: per-rank statistics of a run's step records, and a verdict.
 *
 * In synchronous training all ranks take equally long for a step, since they wait for the slowest.  So a rank is judged by its busy
 * time b = data + forward + backward, what it needed before it met the others.  The rule, per rank r:
 *
 *   x_r      median of b_r over the judged steps                 ratio_r = x_r / median over ranks of x
 *   z_r      0.6745 (x_r - median) / MAD                         (Iglewicz and Hoaglin's modified z-score)
 *   flagged  ratio_r > 1.10, z_r > 3.5, and both also in at least half of the windows into which the steps are cut
 *
 * MAD is taken as at least 1 % of the median: with few or very even ranks it can be next to 0, and differences below that are noise.
 * All ranks of a host flagged: the host.  Some of them: their GPU or cores.  Nobody flagged and yet much time lost: ranks take turns,
 * because they share cores when half of them are often runnable without running, else because the work is uneven.  Two ranks, or two hosts that differ, have no majority that could say which is unusual: the report says so.
 *
 * What-if (after Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis"): removing h saves the sum over
 * steps of (max b - max b without h).
 */
#ifndef SYNCTRAIN_TRAINER_REPORT_H
#define SYNCTRAIN_TRAINER_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "trainer/records.h"

struct train_report_options {
	uint64_t first_step, last_step; /* inclusive */
	uint64_t warmup;                /* first steps of each launch that are left out */
	uint32_t launch;                /* 1: the first; 0: the last, with earlier ones that had the same ranks on the same hosts */
};

/* Defaults: all steps, warm-up 1, last launch. */
void train_report_options_init(struct train_report_options *options);

/* The phases, and: */
enum { TRAIN_REPORT_BUSY = TRAIN_PHASE_COUNT, TRAIN_REPORT_STEP, TRAIN_REPORT_QUANTITIES };
extern const char *const train_report_quantity_names[TRAIN_REPORT_QUANTITIES];

/* p50: the middle value, or the mean of the two; p95: the smallest value that at least 95 % do not exceed. */
struct train_report_spread {
	double mean_ns, p50_ns;
	int64_t p95_ns, max_ns;
};

struct train_report_rank {
	uint32_t rank;
	size_t host;                /* index into hosts */
	size_t steps;               /* with a record */
	struct train_report_spread of[TRAIN_REPORT_QUANTITIES];
	double runqueue_share;      /* of its step time, over which it is counted: runnable, not running */
	double cpu_ns;              /* sum */
	bool judged;                /* has records of at least half of the judged steps */
	double busy_ns;             /* x above: median over judged steps */
	double ratio, z;            /* NaN when not judged; z is NaN with fewer than three ranks */
	double slowest_share;       /* of the judged steps; several equally slow ranks share a step */
	double saving_ns;           /* what-if */
	unsigned windows, windows_slow;
	bool flagged;
};

struct train_report_host {
	const char *name;           /* "" when unknown: then a host of one rank */
	size_t rank_count;
	size_t *ranks;              /* indices into train_report.ranks */
	double busy_ns, ratio;      /* median over its judged ranks, and that over the median of all ranks; NaN: none judged */
	double slowest_share, saving_ns;
	size_t flagged_ranks;
	bool flagged;               /* all its judged ranks are flagged */
};

enum train_report_verdict {
	TRAIN_VERDICT_NONE,       /* no straggler */
	TRAIN_VERDICT_STRAGGLER,  /* flagged hosts or ranks */
	TRAIN_VERDICT_PASSING,    /* a rank was slow for a time */
	TRAIN_VERDICT_UNEVEN,     /* ranks take turns at being slowest */
	TRAIN_VERDICT_SPLIT,      /* two sides differ and neither is a majority */
	TRAIN_VERDICT_UNKNOWN     /* one rank, or too few steps */
};

struct train_report {
	const struct train_record_set *set;
	const struct train_launch *launch;
	size_t launches, launches_left_out; /* with records; used, and not since their ranks or hosts were others */
	uint64_t first_step, last_step;
	size_t steps, judged_steps, warmup_steps; /* used, of these judged (enough ranks), left out as warm-up */
	size_t records;
	uint64_t missing;                   /* records that the used steps should have and do not */
	uint64_t dropped;                   /* of the used launches */
	double total_ns;                    /* sum over judged steps of the longest step_ns */
	double lost_ns;                     /* sum of max b - median b */
	double flagged_saving_ns;           /* what-if without all that is flagged */
	double busy_ns, mad_ns;             /* median over ranks of x, and its MAD before the floor */
	double tokens_per_s;                /* all ranks; 0 when unknown */
	double first_loss, last_loss;       /* NaN when unknown */
	double drift;                       /* last window's median b over the best window's, all ranks; NaN with fewer than 4 windows */
	struct train_report_spread of[TRAIN_REPORT_QUANTITIES]; /* over all records */
	struct train_report_rank *ranks;    /* by rank */
	size_t rank_count;
	struct train_report_host *hosts;    /* by lowest rank */
	size_t host_count;
	size_t *host_ranks;                 /* what train_report_host.ranks points into */
	enum train_report_verdict verdict;
	char verdict_text[640];             /* one line, printable ASCII */
	char *evidence;                     /* lines ending in '\n', "" when there are none */
};

/* set stays the caller's and must outlive the report, where it is. ST_ERR_DATA: no step is left to look at; ST_ERR_USAGE: no such
 * launch; ST_ERR_NOMEM. */
enum st_status train_report_make(const struct train_record_set *set, const struct train_report_options *options,
				 struct train_report *report);
void train_report_free(struct train_report *report);

/* Fills in verdict, verdict_text and evidence; called by train_report_make. */
enum st_status train_report_judge(struct train_report *report);

const char *train_report_verdict_name(enum train_report_verdict verdict);

/* At most 80 columns. all: every rank and every statistic. False: the stream failed. */
bool train_report_print(const struct train_report *report, const char *directory, bool all, FILE *out);

/* *text: malloc'ed JSON, see report_json.c for its keys. */
enum st_status train_report_json(const struct train_report *report, const char *directory, char **text);

/* Printable text after a label, wrapped at words at 80 columns; following lines begin under the text. Words longer than a line are cut. */
void train_print_wrapped(FILE *out, const char *label, const char *text);
/* Every line of a text behind the label, with what is not printable ASCII escaped. */
void train_print_lines(FILE *out, const char *label, const char *text);

#endif
