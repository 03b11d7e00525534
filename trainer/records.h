/*
 * Step records: what each rank did in each step, in nanoseconds, written beside the training and never in its way.
 *
 * Every rank fills one fixed-size record a step into a preallocated ring and returns at once.  One writer per node (the node's lowest
 * rank, a thread of its own) collects the records of its node's ranks over a Unix datagram socket and appends them to one
 * file, DIRECTORY/steps-<run>-<node>.rec.  When the storage or the writer is slow or full, records are dropped and
 * counted, and the count is in the file.  File format: see records_format.h; readers check every length.
 */
#ifndef SYNCTRAIN_TRAINER_RECORDS_H
#define SYNCTRAIN_TRAINER_RECORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

struct comm;

/* The phases of a step do not overlap and add up to train_record.step_ns. */
enum train_phase {
	TRAIN_PHASE_DATA,       /* reading and preparing the batch */
	TRAIN_PHASE_FORWARD,
	TRAIN_PHASE_BACKWARD,   /* computing, without time spent inside communication calls */
	TRAIN_PHASE_EXPOSED,    /* communication that backward did not hide: from the end of backward to the last bucket's end, less WAIT */
	TRAIN_PHASE_WAIT,       /* of that time, the part spent waiting for ranks that had not come yet: the straggler waits least */
	TRAIN_PHASE_OPTIMIZER,
	TRAIN_PHASE_GATE,       /* health gate */
	TRAIN_PHASE_CHECKPOINT,
	TRAIN_PHASE_OTHER,      /* evaluation, hash checks, logging */
	TRAIN_PHASE_COUNT
};

#define TRAIN_RECORD_BYTES 144
#define TRAIN_RANKS_MAX (1u << 20)

/* Fixed layout, little-endian, 144 bytes. busy = data + forward + backward: what the rank itself needed before it met the others. */
struct train_record {
	uint64_t step;
	uint32_t rank;                          /* train_records_add fills it in */
	uint32_t epoch;
	int64_t start_wall_ns;                  /* CLOCK_REALTIME at the step's start: for people */
	int64_t step_ns;                        /* the whole step; the phases add up to it */
	int64_t phase_ns[TRAIN_PHASE_COUNT];
	int64_t cpu_ns;                         /* CPU time of the process in this step */
	int64_t runqueue_ns;                    /* time its main thread was runnable and did not run (/proc/self/schedstat) */
	uint64_t tokens;                        /* of this rank */
	uint64_t reduced_bytes;                 /* handed to all-reduce by this rank */
	double loss;                            /* global mean of the step; NaN where there is none */
};

struct train_records;

/*
 * Collective over comm, which it does not keep (agrees on the launch and the sockets).  run_name names the file and the run in
 * reports; NULL or "": comm_job's name.  A name that was there before is appended to: one session per launch, and readers let the last
 * launch of a step win.  The directory is made by rank 0 alone, right at the start, the file with the first records or at the close, and both
 * by the writer's thread, so that hung storage does not hold up the start.  What goes wrong there is one warning and the run goes on without
 * records: a report must never stop a job.  Fails only with what the collectives returned, or ST_ERR_NOMEM.  Local threads block all signals.
 */
enum st_status train_records_open(struct comm *comm, const char *directory, const char *run_name, struct train_records **records);

/* Never blocks, never fails, makes no system call: drops and counts. One thread at a time. records NULL: nothing happens. */
void train_records_add(struct train_records *records, const struct train_record *record);

/* Flushes what is there within 2 s, then closes. Not collective: works after the job was aborted. Whether this rank has written records
 * to its node's file, its own or its neighbours': false on ranks that do not write, and for NULL. */
bool train_records_close(struct train_records *records);

/* Records dropped so far: this rank's, and on the node's writer also those of its neighbours that it could not write. NULL: 0. */
uint64_t train_records_dropped(const struct train_records *records);

/*
 * Reader.  A launch is one start of the job: a requeued or resumed job has several, told apart by a random id that all its
 * nodes share, and ordered by rank 0's clock.
 */
struct train_hosts {                  /* ranks first .. first + count - 1 run on host */
	uint32_t first, count;
	char host[64];
};
struct train_launch {
	uint64_t id;
	int64_t wall_ns;              /* when it started */
	char job[96];
	uint32_t ranks;               /* world size */
	uint64_t dropped;             /* as its writers counted */
	uint32_t writers, ended;      /* files whose writers say when they end, and that say so: fewer were killed, or still run */
	size_t records;               /* of it in the set */
	struct train_hosts *hosts;    /* sorted by first */
	size_t host_runs;
};
struct train_record_set {
	struct train_record *records; /* sorted by (step, rank), each pair once; the records of one step are all of one launch */
	uint32_t *launch_of;          /* (count): index into launches */
	size_t count;
	uint32_t ranks;               /* highest rank + 1 */
	char (*hosts)[64];            /* (ranks), of the last launch that has records; "" where unknown */
	char job[96];                 /* of that launch */
	struct train_launch *launches; /* oldest first */
	size_t launch_count;
	size_t files;
	uint64_t superseded;          /* records of steps that a later launch did again: not in the set */
	uint64_t dropped, damaged;
	char *notes;                  /* lines ending in '\n', printable ASCII; NULL when there is nothing to say */
};

/*
 * Loads every steps-*.rec of a directory; what is truncated, foreign or impossible is counted in damaged and said in notes, and
 * the rest is used.  Memory: the records, 28 bytes for each while sorting, and at most 64 MiB of host names.
 * ST_ERR_NOINPUT: no such directory. ST_ERR_PERMISSION, ST_ERR_SYSTEM, ST_ERR_NOMEM. A directory without records: ST_OK, count 0.
 */
enum st_status train_records_load(const char *directory, struct train_record_set *set);
void train_records_free(struct train_record_set *set);

/* The host of a rank in a launch, "" when unknown; valid while the set lives. */
const char *train_launch_host(const struct train_launch *launch, uint32_t rank);

#endif
