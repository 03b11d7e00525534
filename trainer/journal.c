#include "journal.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/log.h"

void train_journal_open(struct train_journal *journal, int speaks, const char *file)
{
	*journal = (struct train_journal){.speaks = speaks};
	if (!speaks || !file)
		return;
	journal->path = strdup(file);
	/* A pipe that nobody reads yet is refused: opening it would hold the run for ever, against signals too. */
	int fd = open(file, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666);
	if (fd >= 0 && (fcntl(fd, F_SETFL, O_APPEND) < 0 || !(journal->file = fdopen(fd, "a"))))
		close(fd);
	if (!journal->file)
		st_log(ST_LOG_WARN, "log.file %s: can't open: %s; the run goes on without it", file, strerror(errno));
}

void train_journal_close(struct train_journal *journal)
{
	if (journal->file)
		fclose(journal->file);
	free(journal->path);
	*journal = (struct train_journal){0};
}

void train_journal_say(struct train_journal *journal, const char *format, ...)
{
	va_list args;

	if (!journal->speaks)
		return;
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
	fflush(stdout);
}

/* Each line is flushed, so that a run that is killed has said everything up to its last step. */
static void end_line(struct train_journal *journal)
{
	fputs("}\n", journal->file);
	if (fflush(journal->file) == 0 && !ferror(journal->file))
		return;
	st_log(ST_LOG_WARN, "log.file %s: can't write: %s; the run goes on without it", journal->path ? journal->path : "", strerror(errno));
	fclose(journal->file);
	journal->file = NULL;
}

static void number(struct train_journal *journal, const char *key, double value)
{
	if (isfinite(value))
		fprintf(journal->file, ",\"%s\":%.17g", key, value);
	else
		fprintf(journal->file, ",\"%s\":null", key);
}

void train_journal_step(struct train_journal *journal, uint64_t step, double loss, double norm, double rate, int64_t step_ns,
			double tokens_per_s, int skipped)
{
	if (!journal->file)
		return;
	fprintf(journal->file, "{\"step\":%llu", (unsigned long long)step);
	number(journal, "loss", loss);
	number(journal, "norm", norm);
	number(journal, "learning_rate", rate);
	fprintf(journal->file, ",\"ns\":%lld", (long long)step_ns);
	number(journal, "tokens_per_s", tokens_per_s);
	if (skipped)
		fputs(",\"skipped\":true", journal->file);
	end_line(journal);
}

void train_journal_validation(struct train_journal *journal, uint64_t step, double loss)
{
	if (!journal->file)
		return;
	fprintf(journal->file, "{\"validation_at\":%llu", (unsigned long long)step);
	number(journal, "loss", loss);
	end_line(journal);
}

void train_journal_start(struct train_journal *journal, uint64_t step, uint32_t ranks)
{
	if (!journal->file)
		return;
	fprintf(journal->file, "{\"start_at\":%llu,\"ranks\":%u", (unsigned long long)step, ranks);
	end_line(journal);
}

void train_journal_replicas(struct train_journal *journal, uint64_t step, const char *hash)
{
	if (!journal->file)
		return;
	fprintf(journal->file, "{\"replicas_at\":%llu,\"hash\":\"%s\"", (unsigned long long)step, hash);
	end_line(journal);
}
