/*
 * The configuration of a training run: one JSON file, then KEY=VALUE from the command line, every key checked.
 *
 * The table of keys in config.c is the reference: `synctrain train --help` prints it with its defaults.
 */
#ifndef SYNCTRAIN_TRAINER_CONFIG_H
#define SYNCTRAIN_TRAINER_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "common/status.h"
#include "trainer/model.h"
#include "trainer/optimizer.h"

enum train_resume { TRAIN_RESUME_AUTO, TRAIN_RESUME_NEVER, TRAIN_RESUME_MUST };
enum train_on_failure { TRAIN_ON_FAILURE_STOP, TRAIN_ON_FAILURE_CONTINUE };
enum train_schedule_kind { TRAIN_SCHEDULE_COSINE, TRAIN_SCHEDULE_CONSTANT };

/* Numbers that a choice selects are int, so that the key table can point at them. Strings are NULL when not set. */
struct train_config {
	char *name;
	struct train_model_config model;
	struct {
		char *directory;
		bool verify;
	} data;
	struct {
		int64_t global, micro; /* sequences */
	} batch;
	struct {
		int kind; /* enum train_optimizer_kind */
		double learning_rate, minimum_rate;
		int64_t warmup_steps;
		int schedule; /* enum train_schedule_kind */
		int64_t schedule_steps;
		double momentum, beta1, beta2, epsilon, weight_decay, clip_norm;
	} optimizer;
	int64_t steps, seed;
	bool reproducible;
	struct {
		int64_t every, batches;
	} eval;
	struct {
		char *directory;
		int64_t every, keep;
		int resume;     /* enum train_resume */
		int on_failure; /* enum train_on_failure */
	} checkpoint;
	int64_t hash_every, skip_limit;
	struct {
		double seconds, margin;
	} time_limit;
	struct {
		char *directory;
	} report;
	struct {
		int64_t every;
		char *file;
	} log;
	int64_t bucket_bytes, threads;
	struct {
		struct {
			int64_t rank, step, element, bit;
		} flip_bit;
		struct {
			int64_t rank, step, count;
		} not_a_number;
		struct {
			int64_t rank, milliseconds;
		} delay;
		struct {
			char *file;
			int64_t step;
		} dump_gradients;
	} debug;
	char *const *assignments; /* the caller's, from the command line: messages say where a value came from */
	size_t assignment_count;
};

/*
 * Defaults, then the file PATH, then each of COUNT assignments "section.key=value", then the checks that need one configuration only
 * (heads divide channels, micro divides global, ...).  ST_ERR_CONFIG with one line: file or "command line", key, seen,
 * expected.  *config is to be freed
 * by train_config_free() also on failure.  ASSIGNMENTS must outlive it.
 */
enum st_status train_config_load(const char *path, char *const *assignments, size_t count, struct train_config *config);

/* The checks that need the world: N ranks share the micro-batches evenly, debug ranks exist. NAME stands for the file in messages. */
enum st_status train_config_check_world(const struct train_config *config, const char *name, uint32_t ranks);

/* Where the value of KEY ("batch.global") came from, for messages: "command line", or NAME, which stands for the file. */
const char *train_config_source(const struct train_config *config, const char *name, const char *key);

void train_config_free(struct train_config *config);

/* The whole configuration as canonical JSON; *text is malloc'ed. */
enum st_status train_config_print(const struct train_config *config, char **text);

/*
 * What of batch and optimizer is other than in SAVED, a configuration as JSON: "batch.global 64 -> 32, optimizer.beta2 0.95 -> 0.99";
 * "" when nothing is.  The model, the seed and the data can't differ in a resumed run, and schedule_steps is compared by length.
 * text: cut to BYTES.  ST_ERR_CONFIG: SAVED is none of this version's.
 */
enum st_status train_config_changes(const struct train_config *config, const char *saved, char *text, size_t bytes);

/* One line for each key: path, default, meaning. */
void train_config_help(FILE *out);

/* The optimizer's and the schedule's part, in their own structs. */
struct train_optimizer_config train_config_optimizer(const struct train_config *config);
struct train_schedule train_config_schedule(const struct train_config *config);

/* M: micro-batches of a global batch. */
uint64_t train_config_micro_batches(const struct train_config *config);

#endif
