/*
 * What rank 0 says of a run: lines on standard output for people, and, when log.file is set, JSON lines for programs.
 *
 * In the JSON lines numbers have 17 digits, enough to compare two runs bit for bit.  A log that can't be written is said once and
 * does not stop the run.
 */
#ifndef SYNCTRAIN_TRAINER_JOURNAL_H
#define SYNCTRAIN_TRAINER_JOURNAL_H

#include <stdint.h>
#include <stdio.h>

struct train_journal {
	int speaks;  /* rank 0 */
	FILE *file;  /* NULL: none */
	char *path;
};

/* file: NULL for none; opened for append. */
void train_journal_open(struct train_journal *journal, int speaks, const char *file);
void train_journal_close(struct train_journal *journal);

/* A line for people, printf-style without newline, on standard output of rank 0 only. */
void train_journal_say(struct train_journal *journal, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* One JSON line. Not a number and infinity become null, which JSON has instead. */
void train_journal_step(struct train_journal *journal, uint64_t step, double loss, double norm, double rate, int64_t step_ns,
			double tokens_per_s, int skipped);
void train_journal_validation(struct train_journal *journal, uint64_t step, double loss);
void train_journal_start(struct train_journal *journal, uint64_t step, uint32_t ranks);
void train_journal_replicas(struct train_journal *journal, uint64_t step, const char *hash);

#endif
