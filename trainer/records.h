/*
 * Step records: what each rank did in each step, in nanoseconds, written beside the training and never in its way.
 *
 * Every rank fills one fixed-size record a step into a preallocated ring and returns at once.  One writer per node (the node's lowest
 * rank, a thread of its own) collects the records of its node's ranks over a Unix datagram socket and appends them to one
 * file, REPORT/steps-<job>-<node>.rec.  When the storage or the writer is slow or full, records are dropped and
 * counted, and the count is in the file.  File format: see records.c; readers check every length.
 */
#ifndef SYNCTRAIN_TRAINER_RECORDS_H
#define SYNCTRAIN_TRAINER_RECORDS_H

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

struct comm;

enum train_phase {
	TRAIN_PHASE_DATA,       /* reading and preparing the batch */
	TRAIN_PHASE_FORWARD,
	TRAIN_PHASE_BACKWARD,   /* computing, without time spent inside communication calls */
	TRAIN_PHASE_EXPOSED,    /* communication that backward did not hide: from the end of backward to the last bucket's end, less wait */
	TRAIN_PHASE_WAIT,       /* of that, waiting for ranks that had not yet come: see train_record.wait */
	TRAIN_PHASE_OPTIMIZER,
	TRAIN_PHASE_GATE,       /* health gate */
	TRAIN_PHASE_CHECKPOINT,
	TRAIN_PHASE_OTHER,      /* evaluation, hash checks, logging */
	TRAIN_PHASE_COUNT
};

/* Fixed layout, little-endian, 160 bytes. busy = data + forward + backward: what the rank itself needed before it met the others. */
struct train_record {
	uint64_t step;
	uint32_t rank;
	uint32_t epoch;
	int64_t start_wall_ns;                  /* CLOCK_REALTIME at the step's start: for people */
	int64_t step_ns;                        /* the whole step; the phases add up to it */
	int64_t phase_ns[TRAIN_PHASE_COUNT];
	int64_t cpu_ns;                         /* CPU time of the process in this step */
	int64_t runqueue_ns;                    /* time its main thread was runnable and did not run (/proc/self/schedstat) */
	uint64_t tokens;                        /* of this rank */
	uint64_t reduced_bytes;                 /* handed to all-reduce by this rank */
	double loss;                            /* global mean of the step */
};

struct train_records;

/* Collective over comm (agrees on the sockets). directory is created by rank 0. One file per node is opened for append by its leader:
 * on failure there the run goes on without records, with one warning: a report must never stop a job. */
enum st_status train_records_open(struct comm *comm, const char *directory, const char *run_name, struct train_records **records);

/* Never blocks, never fails: drops and counts. */
void train_records_add(struct train_records *records, const struct train_record *record);

/* Flushes what is there within 2 s, then closes. Not collective: works after the job was aborted. NULL is fine. */
void train_records_close(struct train_records *records);

uint64_t train_records_dropped(const struct train_records *records);

/* Reader: loads every file of a directory. records: malloc'ed, sorted by (step, rank); a later record of the same (step, rank) wins (resume).
 * Truncated or foreign files are counted in *damaged and said in *notes (malloc'ed text, may be NULL), and the rest is used. */
struct train_record_set {
	struct train_record *records;
	size_t count;
	uint32_t ranks;               /* highest rank + 1 */
	char (*hosts)[64];            /* (ranks) */
	char job[96];                 /* of the last run in the directory */
	uint64_t dropped, damaged;
	char *notes;
};
enum st_status train_records_load(const char *directory, struct train_record_set *set);
void train_records_free(struct train_record_set *set);

#endif
