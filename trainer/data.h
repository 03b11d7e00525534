/*
 * A data set: a directory of token shards, split into training and validation tokens.
 *
 * `synctrain data` writes dataset.json beside the shards; a directory of llm.c's (*_train*.bin, *_val*.bin, no dataset.json) works too.
 * The shards of a split count as one stream of tokens, so the sequences of a run don't depend on how the stream was cut into shards.
 */
#ifndef SYNCTRAIN_TRAINER_DATA_H
#define SYNCTRAIN_TRAINER_DATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

enum train_split { TRAIN_SPLIT_TRAINING, TRAIN_SPLIT_VALIDATION, TRAIN_SPLIT_COUNT };

struct train_dataset;

struct train_dataset_info {
	uint64_t tokens[TRAIN_SPLIT_COUNT];
	int64_t vocabulary;          /* 0: not known */
	double bigram_entropy;       /* H(X2|X1) of the whole text, nats a token; NaN: not known */
	char identity[65];           /* hex SHA-256 over what describes the data: equal on all ranks, and in checkpoints */
};

/* Opens every shard and checks its header and size (and, with dataset.json, its count). *dataset is set on success only. */
enum st_status train_dataset_open(const char *directory, struct train_dataset **dataset);
void train_dataset_free(struct train_dataset *dataset);
const struct train_dataset_info *train_dataset_info(const struct train_dataset *dataset);

/* Reads every shard: its SHA-256 against dataset.json, and that no token is outside the vocabulary. One pass over all the data. */
enum st_status train_dataset_verify(struct train_dataset *dataset);

/* How many sequences of `context` inputs, each with its targets one token later, fit without overlap of inputs. */
uint64_t train_dataset_sequences(const struct train_dataset *dataset, enum train_split split, size_t context);

/* Reads sequence INDEX: inputs (context) and targets (context). ST_ERR_DATA when a file shrank since it was opened. */
enum st_status train_dataset_read(struct train_dataset *dataset, enum train_split split, size_t context, uint64_t index, uint16_t *inputs,
				  uint16_t *targets);

/* For the writer, `synctrain data`: the name of shard I of a split, "train-000000.bin". */
void train_dataset_shard_name(enum train_split split, size_t index, char name[64]);

#define TRAIN_DATASET_FORMAT "synctrain-dataset"
#define TRAIN_DATASET_VERSION 1

#endif
