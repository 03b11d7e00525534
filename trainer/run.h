/* Everything a training run holds on one rank: made by train_run_open, worked on by the loop, freed by train_run_close. */
#ifndef SYNCTRAIN_TRAINER_RUN_H
#define SYNCTRAIN_TRAINER_RUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"
#include "libcomm/comm.h"
#include "trainer/checkpoint.h"
#include "trainer/config.h"
#include "trainer/data.h"
#include "trainer/ddp.h"
#include "trainer/journal.h"
#include "trainer/meter.h"
#include "trainer/model.h"
#include "trainer/optimizer.h"
#include "trainer/records.h"
#include "trainer/vote.h"

struct train_run {
	const struct train_config *config;
	const char *config_name; /* its file, for messages */
	char *config_json;
	struct comm *comm;
	uint32_t rank, size;

	/*
	 * A failure that every rank has found by itself from the same facts, or was told: rank 0 alone prints it.
	 * Everything else is printed by each rank: the one that failed says why, the others whom they lost.
	 */
	bool agreed;

	struct train_dataset *dataset;
	uint64_t sequences;             /* of one epoch */
	uint64_t validation_batches;    /* of one evaluation */
	size_t context, micro;          /* T, and sequences of a micro-batch */
	uint64_t micro_batches;         /* M, of a global batch */
	uint64_t first_micro, my_micro; /* this rank's range of them */
	struct comm_leaves leaves;      /* the same, in a reproducible run */
	uint16_t *inputs, *targets;     /* (micro, T) */
	double *losses;                 /* (my_micro), of the step */

	struct train_model *model;
	size_t parameters;
	float *gradients;               /* in memory that local peers map; in a reproducible run the first of leaves.held buffers: see ddp.h */
	struct train_buffers buffers;   /* parameters and optimizer state */
	struct train_optimizer_config optimizer;
	struct train_schedule schedule;
	struct train_buckets *buckets;
	struct train_ballot *ballot;

	struct train_identity identity;
	struct train_progress progress;
	uint64_t step;                  /* the one that is being taken, counted from 1; 0: none */
	uint64_t compared_at;           /* step after which all replicas were last found equal; UINT64_MAX: not yet */
	char hash[33];                  /* their hash */
	bool saved;                     /* a checkpoint was written or read; */
	uint64_t saved_at;              /* after this step, */
	char saved_path[4096];          /* here */
	int checkpoint_lock;            /* rank 0 keeps the directory; -1: not */

	struct train_journal journal;
	struct train_records *records;  /* NULL: no report */
	char report[4096];              /* its directory; "": none */
	struct train_meter meter;
	int64_t met_ns;                 /* when all ranks last met, on this rank's clock */
};

/* Opens data, builds the model, initializes or resumes. Collective. *run is to be closed also on failure. */
enum st_status train_run_open(struct comm *comm, const struct train_config *config, const char *config_name, struct train_run *run);

/* Closes the report and frees everything but comm. Not collective. */
void train_run_close(struct train_run *run);

/* Compares the replicas (once a step) and returns ST_ERR_DIVERGED, agreed, when they differ. Collective. */
enum st_status train_run_compare(struct train_run *run);

/* Compares the replicas and writes a checkpoint of where the run stands (once a step). LAST: nothing comes after it, so that the run has
 * failed without it, whatever checkpoint.on_failure is. Collective. */
enum st_status train_run_save(struct train_run *run, bool last);

/* evaluate.c: prints the mean loss over the fixed validation batches, the same bits whatever the number of ranks. Collective. */
enum st_status train_run_evaluate(struct train_run *run);

/* This rank alone can't go on: tells the others why and returns STATUS. */
enum st_status train_run_give_up(struct train_run *run, enum st_status status);

#endif
