/*
 * Checkpoints: everything that a run needs to go on as if it had not stopped.
 *
 *   DIRECTORY/step-00000200/model.safetensors       parameters, under HuggingFace's names: other programs can load them
 *                           optimizer.safetensors   optimizer.m.NAME, optimizer.v.NAME (none for plain SGD)
 *                           manifest.json           what it is, the files' sizes and SHA-256, the run's configuration
 *
 * A checkpoint appears complete or not at all: it is written under another name, every file and directory is synced, and only then
 * is it renamed.  There is no "latest" file that could point to a broken one: the newest directory that passes every check counts.
 */
#ifndef SYNCTRAIN_TRAINER_CHECKPOINT_H
#define SYNCTRAIN_TRAINER_CHECKPOINT_H

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"
#include "trainer/model.h"

#define TRAIN_CHECKPOINT_FORMAT "synctrain-checkpoint"
#define TRAIN_CHECKPOINT_VERSION 1
#define TRAIN_CHECKPOINT_MOST_STATES 2

/* Where a run stands. Plain data: rank 0 reads it and gives it to the others as it is. */
struct train_progress {
	uint64_t step;           /* steps done: the next one has this number */
	uint64_t epoch;          /* complete passes over the training data: for people, it follows from the next one */
	uint64_t sequences;      /* sequences consumed: the position in the data order, see sampler.h */
	uint64_t updates;        /* steps that changed the parameters: the optimizer's own count */
	uint64_t skipped;        /* steps skipped for a non-finite gradient, in all */
	uint64_t skipped_in_row; /* and the last ones without an update between them */
};

/* What must be the same for a resumed run, and what is told when it is not. */
struct train_identity {
	struct train_model_config model;
	char optimizer[16];
	uint64_t seed;
	char data[65];       /* train_dataset_info.identity */
	uint64_t schedule_steps;
	uint32_t world_size; /* may differ at resume, as may threads and isa: bits are promised only if world_size, unless reproducible, and isa do not */
	uint32_t threads;
	char isa[32];
};

/* The buffers that are saved and restored: parameters, then the optimizer's states, each `elements` long. */
struct train_buffers {
	const struct train_tensor *tensors;
	size_t tensor_count, elements;
	float *parameters;
	unsigned state_count;
	const char *state_names[TRAIN_CHECKPOINT_MOST_STATES]; /* "m", "v" */
	float *states[TRAIN_CHECKPOINT_MOST_STATES];
};

/* Where the checkpoint after STEP is, or would be. path: 4,096 bytes. ST_ERR_USAGE: it does not fit. */
enum st_status train_checkpoint_path(const char *directory, uint64_t step, char path[4096]);

/*
 * Makes the directory, sees that it can be written, and keeps it for this run until *fd is closed: of two runs that write in one
 * directory each would take the other's half-written checkpoint for what a dead run has left.  ST_ERR_UNAVAILABLE when another run has
 * kept it for 5 s; ST_ERR_USAGE, ST_ERR_PERMISSION, ... when it can't be had.  *fd is -1 where the file system can't lock directories
 * (NFS): nothing is proven then.  Blocks for up to 5 s.
 */
enum st_status train_checkpoint_lock(const char *directory, int *fd);

/*
 * Writes one checkpoint, then removes older ones beyond the KEEP newest.  config_json: the run's configuration, stored as it is.
 * path: the checkpoint's directory.  On failure nothing has changed but for a temporary directory that the next write removes.
 * Called by one rank of one run: nobody else writes in DIRECTORY.
 */
enum st_status train_checkpoint_write(const char *directory, const struct train_progress *progress, const struct train_identity *identity,
				      const struct train_buffers *buffers, const char *config_json, uint64_t keep);

/*
 * The newest checkpoint in DIRECTORY whose manifest, sizes and SHA-256 are right; each newer one that is not is named in a warning.
 * *found is 0 when the directory holds none at all (or does not exist).  ST_ERR_DATA when it holds some and none is usable.
 */
enum st_status train_checkpoint_find(const char *directory, int *found, char path[4096], struct train_progress *progress,
				     struct train_identity *identity);

/* *text: the configuration of the run that wrote the checkpoint at PATH, as JSON, malloc'ed. */
enum st_status train_checkpoint_config(const char *path, char **text);

/* ST_ERR_CONFIG naming the key when a run with MINE can't continue from a checkpoint with SAVED. PATH is for the message. */
enum st_status train_checkpoint_check(const char *path, const struct train_identity *mine, const struct train_identity *saved);

/* Reads the checkpoint that was found into the buffers. Every tensor must be there, with its shape. */
enum st_status train_checkpoint_read(const char *path, const struct train_buffers *buffers);

#endif
