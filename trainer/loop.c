#include "loop.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "common/io.h"
#include "common/log.h"
#include "libcomm/comm.h"
#include "trainer/safetensors.h"
#include "trainer/sampler.h"
#include "trainer/stop.h"

/* Reads micro-batch `index` (0 .. M-1) of the current step. Which sequences it has does not depend on the number of ranks. */
static enum st_status read_micro_batch(struct train_run *run, uint64_t index)
{
	for (size_t row = 0; row < run->micro; row++) {
		uint64_t position = run->progress.sequences + index * run->micro + row;
		uint64_t sequence = train_sample((uint64_t)run->config->seed, run->sequences, position, NULL);
		ST_TRY(train_dataset_read(run->dataset, TRAIN_SPLIT_TRAINING, run->context, sequence, run->inputs + row * run->context,
					  run->targets + row * run->context));
	}
	return ST_OK;
}

/* This rank's share of the global batch: gradients summed over its micro-batches (in a reproducible run as far as one tree over all of them
 * allows), each scaled so that the sum over ranks is the mean.
 * While the last one's backward still runs, the gradients that are complete are already on their way. */
static enum st_status compute_gradients(struct train_run *run)
{
	const float scale = 1.0f / (float)run->micro_batches;

	for (uint64_t i = 0; i < run->my_micro; i++) {
		const bool last = i + 1 == run->my_micro;
		train_meter_phase(&run->meter, TRAIN_PHASE_DATA);
		enum st_status status = read_micro_batch(run, run->first_micro + i);
		train_meter_phase(&run->meter, TRAIN_PHASE_FORWARD);
		if (status == ST_OK)
			status = train_model_forward(run->model, run->inputs, run->targets, run->micro, run->context, &run->losses[i]);
		if (status != ST_OK)
			return train_run_give_up(run, status);
		train_meter_phase(&run->meter, TRAIN_PHASE_BACKWARD);
		if (run->config->reproducible)
			train_model_bind(run->model, run->buffers.parameters, train_buckets_leaf(run->buckets, i));
		if (last)
			train_buckets_begin(run->buckets);
		train_model_backward(run->model, scale, last ? train_buckets_completed : NULL, run->buckets);
		if (run->config->reproducible && !last)
			train_buckets_add_leaf(run->buckets, i);
	}
	return ST_OK;
}

/* Waits for the gradients of all ranks and hears how the step went for each. */
static enum st_status meet(struct train_run *run, struct train_tally *tally)
{
	struct comm_counters before, after;
	struct train_vote vote = {.elapsed_ns = st_now_ns() - run->met_ns, .stop = train_stop_wanted()};

	train_meter_phase(&run->meter, TRAIN_PHASE_EXPOSED);
	comm_counters_read(run->comm, &before);
	enum st_status status = train_buckets_finish(run->buckets);
	if (status == ST_OK) {
		vote.not_finite = train_buckets_not_finite(run->buckets) + 1; /* SIZE_MAX becomes 0 */
		status = train_ballot_vote(run->ballot, &vote, run->losses, tally);
	}
	comm_counters_read(run->comm, &after);
	run->met_ns = st_now_ns();
	train_meter_phase(&run->meter, TRAIN_PHASE_OTHER);
	ST_TRY(status);
	/* All ranks met at about the same time before, so the difference of their times until now is what the fast ones waited for the
	 * slowest: no clocks of different nodes are compared. */
	int64_t wait = tally->longest_elapsed_ns - vote.elapsed_ns, blocked = after.blocked_ns - before.blocked_ns;
	train_meter_move(&run->meter, TRAIN_PHASE_EXPOSED, TRAIN_PHASE_WAIT, wait < blocked ? wait : blocked);
	/* Calls that backward made are communication that backward did not hide. */
	train_meter_move(&run->meter, TRAIN_PHASE_BACKWARD, TRAIN_PHASE_EXPOSED, train_buckets_hidden_call_ns(run->buckets));
	return ST_OK;
}

static const char *tensor_at(const struct train_run *run, size_t element)
{
	for (size_t i = 0; i < run->buffers.tensor_count; i++)
		if (element - run->buffers.tensors[i].offset < run->buffers.tensors[i].elements)
			return run->buffers.tensors[i].name;
	return "?";
}

/* All ranks skip a step whose gradient is not finite: nobody's parameters take part of it. */
static enum st_status skip_step(struct train_run *run, const struct train_tally *tally)
{
	uint64_t limit = (uint64_t)run->config->skip_limit;
	char what[256];

	run->progress.skipped++;
	run->progress.skipped_in_row++;
	if (tally->not_finite_rank == UINT32_MAX)
		snprintf(what, sizeof what, "the sum of all ranks' gradients is not finite");
	else
		snprintf(what, sizeof what, "rank %u on %s has a non-finite %s%s", tally->not_finite_rank,
			 comm_host(run->comm, tally->not_finite_rank), tally->not_finite ? "gradient in " : "loss",
			 tally->not_finite ? tensor_at(run, (size_t)tally->not_finite - 1) : "");
	if (run->progress.skipped_in_row >= limit) {
		run->agreed = true;
		return st_fail(ST_ERR_DIVERGED, "step %llu: %s: %llu steps in a row were skipped, skip_limit is %llu",
			       (unsigned long long)run->progress.step + 1, what, (unsigned long long)run->progress.skipped_in_row,
			       (unsigned long long)limit);
	}
	if (run->rank == 0)
		st_log(ST_LOG_WARN, "step %llu: %s: step skipped by all ranks (%llu in a row, the run stops at %llu)",
		       (unsigned long long)run->progress.step + 1, what, (unsigned long long)run->progress.skipped_in_row,
		       (unsigned long long)limit);
	return ST_OK;
}

static void update_parameters(struct train_run *run, double norm, double rate)
{
	const double clip = run->config->optimizer.clip_norm;
	const float scale = clip > 0 && norm > clip ? (float)(clip / norm) : 1.0f;
	struct train_buffers *buffers = &run->buffers;

	run->progress.updates++;
	run->progress.skipped_in_row = 0;
	train_optimizer_update(&run->optimizer, buffers->tensors, buffers->tensor_count, buffers->parameters, run->gradients, buffers->states, 0,
			       run->parameters, rate, scale, run->progress.updates);
}

/* debug.*: faults and views that tests ask for. STEP counts from 1. */
static void inject_delay(const struct train_run *run)
{
	int64_t ms = run->config->debug.delay.milliseconds;
	struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * ST_NS_PER_MS};

	if (run->config->debug.delay.rank == (int64_t)run->rank && ms)
		nanosleep(&pause, NULL);
}

static void inject_not_a_number(struct train_run *run, uint64_t step)
{
	int64_t since = (int64_t)step - run->config->debug.not_a_number.step;

	/* Added to, not replaced, by the backward pass that follows. */
	if (run->config->debug.not_a_number.rank == (int64_t)run->rank && since >= 0 && since < run->config->debug.not_a_number.count)
		run->gradients[run->parameters - 1] = NAN;
}

static void inject_flipped_bit(struct train_run *run, uint64_t step)
{
	uint32_t bits;
	float *element = run->buffers.parameters + run->config->debug.flip_bit.element;

	if (run->config->debug.flip_bit.rank != (int64_t)run->rank || (uint64_t)run->config->debug.flip_bit.step != step)
		return;
	memcpy(&bits, element, sizeof bits);
	bits ^= 1u << run->config->debug.flip_bit.bit;
	memcpy(element, &bits, sizeof bits);
}

static enum st_status write_gradients(const struct train_run *run, const char *path)
{
	struct train_safetensors_source *sources = calloc(run->buffers.tensor_count, sizeof *sources);
	struct st_newfile file;
	char sha256[65];
	uint64_t bytes;

	if (!sources)
		return st_fail(ST_ERR_NOMEM, "%s: no memory for %zu tensors", path, run->buffers.tensor_count);
	for (size_t i = 0; i < run->buffers.tensor_count; i++) {
		const struct train_tensor *tensor = &run->buffers.tensors[i];
		sources[i] = (struct train_safetensors_source){.rows = tensor->rows == 1 ? 0 : tensor->rows, .columns = tensor->columns,
							       .values = run->gradients + tensor->offset};
		snprintf(sources[i].name, sizeof sources[i].name, "%s", tensor->name);
	}
	enum st_status status = st_newfile_open(&file, path, 0666);
	if (status == ST_OK) {
		status = train_safetensors_write(file.fd, path, sources, run->buffers.tensor_count, &bytes, sha256);
		if (status == ST_OK)
			status = st_newfile_commit(&file);
		st_newfile_abandon(&file);
	}
	free(sources);
	return status;
}

static enum st_status dump_gradients(struct train_run *run, uint64_t step)
{
	const char *path = run->config->debug.dump_gradients.file;

	if (!path || run->rank != 0 || (uint64_t)run->config->debug.dump_gradients.step != step)
		return ST_OK;
	enum st_status status = write_gradients(run, path);
	return status == ST_OK ? ST_OK : train_run_give_up(run, status);
}

static void say_step(struct train_run *run, uint64_t step, double loss, double norm, double rate, int skipped)
{
	const int64_t ns = train_meter_elapsed_ns(&run->meter);
	const double tokens = (double)run->config->batch.global * (double)run->context, seconds = (double)ns / (double)ST_NS_PER_S;

	if (step % (uint64_t)run->config->log.every == 0 || step == (uint64_t)run->config->steps)
		train_journal_say(&run->journal, "step %llu/%lld | loss %.4f | norm %.4f | lr %.2e | %.1f ms | %.0f tok/s%s",
				  (unsigned long long)step, (long long)run->config->steps, loss, norm, rate, seconds * 1e3, tokens / seconds,
				  skipped ? " | skipped" : "");
	train_journal_step(&run->journal, step, loss, norm, rate, ns, tokens / seconds, skipped);
}

static bool due(int64_t every, uint64_t step)
{
	return every > 0 && step % (uint64_t)every == 0;
}

/* One synchronous step: the same update on every rank, or none. */
static enum st_status take_step(struct train_run *run, struct train_tally *tally)
{
	const struct train_config *c = run->config;
	const uint64_t step = run->progress.step + 1; /* as people count */
	const double rate = train_schedule_rate(&run->schedule, run->progress.step);

	inject_not_a_number(run, step);
	train_meter_phase(&run->meter, TRAIN_PHASE_DATA);
	inject_delay(run);
	ST_TRY(compute_gradients(run));
	ST_TRY(meet(run, tally));
	ST_TRY(dump_gradients(run, step));

	train_meter_phase(&run->meter, TRAIN_PHASE_OPTIMIZER);
	/* The averaged gradient is the same on all ranks, so is its norm, and so is what each does with it. */
	const double norm = sqrt(train_sum_of_squares(run->gradients, run->parameters));
	const int skipped = tally->not_finite_rank != UINT32_MAX || !isfinite(norm);
	if (skipped)
		ST_TRY(skip_step(run, tally));
	else
		update_parameters(run, norm, rate);
	memset(run->gradients, 0, run->parameters * sizeof *run->gradients);
	run->progress.step = step;
	run->progress.sequences += (uint64_t)c->batch.global;
	inject_flipped_bit(run, step);

	train_meter_phase(&run->meter, TRAIN_PHASE_OTHER);
	say_step(run, step, tally->loss, norm, rate, skipped);
	if (due(c->hash_every, step))
		ST_TRY(train_run_compare(run));
	if (due(c->eval.every, step) || (c->eval.every && step == (uint64_t)c->steps))
		ST_TRY(train_run_evaluate(run));
	train_meter_phase(&run->meter, TRAIN_PHASE_CHECKPOINT);
	if (due(c->checkpoint.every, step))
		ST_TRY(train_run_save(run, step == (uint64_t)c->steps));
	return ST_OK;
}

static void record_step(struct train_run *run, const struct train_tally *tally)
{
	train_meter_end(&run->meter);
	run->meter.record.tokens = run->my_micro * run->micro * run->context;
	run->meter.record.reduced_bytes = run->parameters * sizeof(float);
	run->meter.record.loss = tally->loss;
	if (run->records)
		train_records_add(run->records, &run->meter.record);
}

static enum st_status stop_early(struct train_run *run, const struct train_tally *tally)
{
	char reason[64];

	ST_TRY(train_run_compare(run));
	ST_TRY(train_run_save(run, true));
	run->agreed = true;
	bool saved = run->saved && run->saved_at == run->progress.step;
	return st_fail(ST_ERR_INTERRUPTED, "stopped by %s at rank %u after step %llu: %s%s", train_stop_name(tally->stop, reason),
		       tally->stop_rank, (unsigned long long)run->progress.step,
		       saved ? "checkpoint " : "nothing was saved, checkpoint.directory is not set", saved ? run->saved_path : "");
}

/* Collective. */
static enum st_status say_traffic(struct train_run *run)
{
	struct comm_counters counters;
	uint64_t mine[2], shm = 0, tcp = 0, (*all)[2];

	if (run->size == 1)
		return ST_OK;
	all = calloc(run->size, sizeof *all);
	if (!all)
		return train_run_give_up(run, st_fail(ST_ERR_NOMEM, "no memory for the counters of %u ranks", run->size));
	comm_counters_read(run->comm, &counters);
	mine[0] = counters.shm_bytes;
	mine[1] = counters.tcp_bytes;
	enum st_status status = comm_collect(run->comm, mine, sizeof mine, all);
	for (uint32_t rank = 0; rank < run->size && status == ST_OK; rank++) {
		shm += all[rank][0];
		tcp += all[rank][1];
	}
	free(all);
	ST_TRY(status);
	train_journal_say(&run->journal, "ranks sent each other %.1f MB through shared memory and %.1f MB through tcp", (double)shm / 1e6,
			  (double)tcp / 1e6);
	return ST_OK;
}

enum st_status train_loop(struct train_run *run)
{
	const struct train_config *c = run->config;
	const uint64_t steps = (uint64_t)c->steps;
	struct train_tally tally = {0};

	run->met_ns = st_now_ns();
	ST_TRY(train_run_compare(run));
	if (run->progress.step >= steps)
		train_journal_say(&run->journal, "nothing to do: steps is %llu and the checkpoint is after step %llu", (unsigned long long)steps,
				  (unsigned long long)run->progress.step);
	else if (run->progress.step == 0 && c->eval.every)
		ST_TRY(train_run_evaluate(run));

	while (run->progress.step < steps) {
		run->step = run->progress.step + 1;
		train_meter_begin(&run->meter, run->progress.step + 1, (uint32_t)(run->progress.sequences / run->sequences));
		ST_TRY(take_step(run, &tally));
		record_step(run, &tally);
		if (tally.stop && run->progress.step < steps)
			return stop_early(run, &tally);
	}
	run->step = 0;

	ST_TRY(train_run_compare(run));
	ST_TRY(train_run_save(run, true));
	train_journal_say(&run->journal, "replicas identical: hash %s (%u %s)", run->hash, run->size, run->size == 1 ? "rank" : "ranks");
	ST_TRY(say_traffic(run));
	/* Closed here so as to know: not every report directory can be written, and not every launch has steps to record. */
	if (train_records_close(run->records))
		train_journal_say(&run->journal, "report %s (synctrain report %s)", run->report, run->report);
	run->records = NULL;
	return ST_OK;
}
