#include "run.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/digest.h"
#include "common/log.h"
#include "libcomm/comm.h"
#include "trainer/agree.h"
#include "trainer/replica.h"

enum st_status train_run_give_up(struct train_run *run, enum st_status status)
{
	char message[1024];

	snprintf(message, sizeof message, "%s", st_message());
	comm_abort(run->comm, message);
	return st_fail_copy(status, message);
}

static void *allocate(size_t bytes)
{
	/* Zeroed, on cache lines, and never of zero bytes. */
	size_t rounded = (bytes / 64 + 1) * 64;
	void *memory = aligned_alloc(64, rounded);

	if (memory)
		memset(memory, 0, rounded);
	return memory;
}

static enum st_status open_data(struct train_run *run)
{
	const struct train_config *c = run->config;

	ST_TRY(train_dataset_open(c->data.directory, &run->dataset));
	const struct train_dataset_info *info = train_dataset_info(run->dataset);
	if (info->vocabulary > c->model.vocabulary)
		return st_fail(ST_ERR_CONFIG, "%s: model.vocabulary: seen %lld, expected at least %lld as in data.directory %s",
			       train_config_source(c, run->config_name, "model.vocabulary"),
			       (long long)c->model.vocabulary, (long long)info->vocabulary, c->data.directory);
	run->sequences = train_dataset_sequences(run->dataset, TRAIN_SPLIT_TRAINING, run->context);
	if (run->sequences < (uint64_t)c->batch.global)
		return st_fail(ST_ERR_CONFIG, "%s: data.directory: seen %llu training sequences of model.context = %lld in %s, expected at least "
			       "batch.global = %lld", train_config_source(c, run->config_name, "data.directory"),
			       (unsigned long long)run->sequences, (long long)c->model.context, c->data.directory, (long long)c->batch.global);
	uint64_t validation = train_dataset_sequences(run->dataset, TRAIN_SPLIT_VALIDATION, run->context);
	if (c->eval.every && validation < run->micro)
		return st_fail(ST_ERR_CONFIG, "%s: data.directory: seen %llu validation sequences of model.context = %lld in %s, expected at "
			       "least batch.micro = %lld (or eval.every = 0)", train_config_source(c, run->config_name, "data.directory"),
			       (unsigned long long)validation, (long long)c->model.context, c->data.directory, (long long)c->batch.micro);
	uint64_t fit = validation / run->micro;
	run->validation_batches = fit < (uint64_t)c->eval.batches ? fit : (uint64_t)c->eval.batches;
	/* Ranks of a node read the same files: one look is enough. */
	if (c->data.verify && comm_local_rank(run->comm) == 0)
		ST_TRY(train_dataset_verify(run->dataset));
	return ST_OK;
}

/* Threads of each rank: what was asked for, else its share of the cores that it and its node's other ranks may run on, the same on all. */
static enum st_status choose_threads(struct train_run *run)
{
	struct {
		cpu_set_t cores;
		int32_t asked;
	} mine = {.asked = (int32_t)run->config->threads}, *all = calloc(run->size, sizeof *all);
	const char *host = comm_host(run->comm, run->rank);
	int threads = 1, sharing = 0;

	if (!all)
		return st_fail(ST_ERR_NOMEM, "no memory for the cores of %u ranks", run->size);
	if (!mine.asked && getenv("OMP_NUM_THREADS"))
		mine.asked = train_threads();
	if (sched_getaffinity(0, sizeof mine.cores, &mine.cores) < 0)
		CPU_ZERO(&mine.cores);
	enum st_status status = comm_collect(run->comm, &mine, sizeof mine, all);
	for (uint32_t rank = 0; rank < run->size && status == ST_OK; rank++) {
		cpu_set_t common;
		CPU_AND(&common, &mine.cores, &all[rank].cores);
		sharing += !strcmp(host, comm_host(run->comm, rank)) && CPU_COUNT(&common) > 0;
	}
	free(all);
	ST_TRY(status);
	if (mine.asked)
		threads = mine.asked;
	else if (sharing && CPU_COUNT(&mine.cores) / sharing > 1)
		threads = CPU_COUNT(&mine.cores) / sharing;
	int32_t *counts = calloc(run->size, sizeof *counts), count = threads;
	if (!counts)
		return st_fail(ST_ERR_NOMEM, "no memory for the threads of %u ranks", run->size);
	status = comm_collect(run->comm, &count, sizeof count, counts);
	for (uint32_t rank = 0; rank < run->size && status == ST_OK; rank++)
		count = counts[rank] < count ? counts[rank] : count;
	free(counts);
	ST_TRY(status);
	train_set_threads(count);
	return ST_OK;
}

static enum st_status make_model(struct train_run *run)
{
	const struct train_config *c = run->config;
	static const char *const adam_names[] = {"m", "v"}, *const sgd_names[] = {"momentum"};

	ST_TRY(train_model_create(&c->model, run->micro, run->context, &run->model));
	run->parameters = train_model_parameters(run->model);
	if (c->debug.flip_bit.rank >= 0 && (uint64_t)c->debug.flip_bit.element >= run->parameters)
		return st_fail(ST_ERR_CONFIG, "%s: debug.flip_bit.element: seen %lld, expected less than the model's %zu parameters",
			       train_config_source(c, run->config_name, "debug.flip_bit.element"), (long long)c->debug.flip_bit.element, run->parameters);
	run->optimizer = train_config_optimizer(c);
	run->schedule = train_config_schedule(c);
	struct train_buffers *buffers = &run->buffers;
	buffers->tensor_count = train_model_tensors(run->model, &buffers->tensors);
	buffers->elements = run->parameters;
	buffers->parameters = allocate(run->parameters * sizeof(float));
	unsigned states = train_optimizer_states(&run->optimizer);
	for (; buffers->state_count < states; buffers->state_count++) {
		unsigned k = buffers->state_count;
		buffers->state_names[k] = run->optimizer.kind == TRAIN_ADAMW ? adam_names[k] : sgd_names[k];
		buffers->states[k] = allocate(run->parameters * sizeof(float));
		if (!buffers->states[k])
			return st_fail(ST_ERR_NOMEM, "no memory for the optimizer state of %zu parameters", run->parameters);
	}
	size_t tokens = run->micro * run->context;
	run->inputs = calloc(tokens, sizeof *run->inputs);
	run->targets = calloc(tokens, sizeof *run->targets);
	run->losses = calloc(run->my_micro, sizeof *run->losses);
	if (!buffers->parameters || !run->inputs || !run->targets || !run->losses)
		return st_fail(ST_ERR_NOMEM, "no memory for %zu parameters", run->parameters);
	const struct comm_leaves *leaves = c->reproducible ? &run->leaves : NULL;
	const size_t all = train_buckets_stride(run->parameters) * (leaves ? leaves->held : 1) * sizeof(float);
	ST_TRY(comm_memory_alloc(run->comm, all, (void **)&run->gradients));
	memset(run->gradients, 0, run->parameters * sizeof(float));
	train_model_bind(run->model, buffers->parameters, run->gradients);
	ST_TRY(train_buckets_create(run->comm, run->gradients, run->parameters, (size_t)c->bucket_bytes, leaves, &run->buckets));
	return train_ballot_create(run->comm, run->micro_batches, &run->ballot);
}

static void describe(struct train_run *run)
{
	struct train_identity *identity = &run->identity;

	*identity = (struct train_identity){
		.model = run->config->model,
		.seed = (uint64_t)run->config->seed,
		.schedule_steps = run->schedule.total_steps,
		.world_size = run->size,
		.threads = (uint32_t)train_threads(),
	};
	strcpy(identity->optimizer, run->optimizer.kind == TRAIN_ADAMW ? "adamw" : "sgd");
	strcpy(identity->data, train_dataset_info(run->dataset)->identity);
	snprintf(identity->isa, sizeof identity->isa, "%s", train_isa());
}

/* What rank 0 found, for the others. */
struct resume_point {
	int32_t found;
	struct train_progress progress;
};

/* A resumed run may have other values than the one before; that they were meant, nobody but its user knows. */
static void say_changes(const struct train_run *run)
{
	char changes[1024], *saved;

	/* A checkpoint of another version, whose keys are others, can still be continued. */
	if (train_checkpoint_config(run->saved_path, &saved) != ST_OK)
		return;
	if (train_config_changes(run->config, saved, changes, sizeof changes) == ST_OK && *changes)
		st_log(ST_LOG_WARN, "resuming with other values: %s", changes);
	free(saved);
}

static void say_other_bits(const struct train_run *run, const struct train_identity *saved)
{
	char before[64] = "", now[64] = "";
	const bool ranks = saved->world_size != run->size && !run->config->reproducible, isa = strcmp(saved->isa, run->identity.isa) != 0;

	if (!ranks && !isa)
		return;
	if (ranks) {
		snprintf(before, sizeof before, " by %u rank%s", saved->world_size, saved->world_size == 1 ? "" : "s");
		snprintf(now, sizeof now, " %u", run->size);
	}
	if (isa) {
		snprintf(before + strlen(before), sizeof before - strlen(before), " with %s", saved->isa);
		snprintf(now + strlen(now), sizeof now - strlen(now), "%s %s", ranks ? " with" : "", run->identity.isa);
	}
	st_log(ST_LOG_WARN, "%s was written%s, this run has%s: losses may differ in their last bits", run->saved_path, before, now);
}

static enum st_status find_checkpoint(struct train_run *run, struct resume_point *point)
{
	const char *directory = run->config->checkpoint.directory;
	struct train_identity saved;
	int found;

	ST_TRY(train_checkpoint_find(directory, &found, run->saved_path, &point->progress, &saved));
	if (!found && run->config->checkpoint.resume == TRAIN_RESUME_MUST)
		return st_fail(ST_ERR_CONFIG, "%s: checkpoint.resume: seen must, but %s holds no checkpoint",
			       train_config_source(run->config, run->config_name, "checkpoint.resume"), directory);
	if (!found)
		return ST_OK;
	if (run->config->checkpoint.resume == TRAIN_RESUME_NEVER)
		return st_fail(ST_ERR_CONFIG, "%s: checkpoint.resume: seen never, but there is %s: empty the directory or name another one",
			       train_config_source(run->config, run->config_name, "checkpoint.resume"), run->saved_path);
	ST_TRY(train_checkpoint_check(run->saved_path, &run->identity, &saved));
	if (saved.schedule_steps != run->identity.schedule_steps)
		st_log(ST_LOG_WARN, "the learning-rate schedule was %llu steps long in %s and is %llu now",
		       (unsigned long long)saved.schedule_steps, run->saved_path, (unsigned long long)run->identity.schedule_steps);
	if (run->config->reproducible && strcmp(saved.isa, run->identity.isa))
		return st_fail(ST_ERR_CONFIG, "%s: reproducible: seen true, but %s was written with %s and this run has %s, of other bits: set DNNL_MAX_CPU_ISA, or "
			       "reproducible=false", train_config_source(run->config, run->config_name, "reproducible"), run->saved_path, saved.isa,
			       run->identity.isa);
	say_changes(run);
	say_other_bits(run, &saved);
	ST_TRY(train_checkpoint_read(run->saved_path, &run->buffers));
	point->found = 1;
	return ST_OK;
}

static enum st_status send_buffer(struct train_run *run, float *values)
{
	struct comm_request *request;

	ST_TRY(comm_broadcast(run->comm, values, run->parameters, COMM_F32, 0, &request));
	return comm_wait(run->comm, &request);
}

/* Rank 0 reads and gives to all: the directory need not be shared, and all have the same checkpoint whatever each would have seen. */
static enum st_status resume(struct train_run *run)
{
	struct resume_point point = {0};
	enum st_status status = ST_OK;

	if (run->config->checkpoint.directory) {
		if (run->rank == 0)
			status = train_checkpoint_lock(run->config->checkpoint.directory, &run->checkpoint_lock);
		if (run->rank == 0 && status == ST_OK)
			status = find_checkpoint(run, &point);
		ST_TRY(train_agree_with_first(run->comm, status, &run->agreed));
		ST_TRY(comm_decide(run->comm, &point, sizeof point));
	}
	if (!point.found) {
		train_model_initialize(run->model, (uint64_t)run->config->seed);
		return ST_OK;
	}
	run->progress = point.progress;
	run->saved = true;
	run->saved_at = point.progress.step;
	ST_TRY(train_checkpoint_path(run->config->checkpoint.directory, run->saved_at, run->saved_path));
	ST_TRY(send_buffer(run, run->buffers.parameters));
	for (unsigned k = 0; k < run->buffers.state_count; k++)
		ST_TRY(send_buffer(run, run->buffers.states[k]));
	return ST_OK;
}

static enum st_status open_report(struct train_run *run)
{
	const char *directory = run->config->report.directory;

	/* The environment may differ between nodes: rank 0's counts. */
	if (!directory)
		directory = getenv("SYNCTRAIN_REPORT");
	if (directory)
		snprintf(run->report, sizeof run->report, "%s", directory);
	ST_TRY(comm_decide(run->comm, run->report, sizeof run->report));
	run->report[sizeof run->report - 1] = 0;
	if (!*run->report)
		return ST_OK;
	return train_records_open(run->comm, run->report, run->config->name ? run->config->name : comm_job(run->comm), &run->records);
}

static void say_start(struct train_run *run)
{
	const struct train_config *c = run->config;
	const struct train_dataset_info *info = train_dataset_info(run->dataset);
	struct train_journal *journal = &run->journal;
	struct comm_options options;
	char ranks[128] = "";
	const char *transport = "";
	uint32_t nodes = 0, per_node = 0;

	for (uint32_t rank = 0; rank < run->size; rank++) {
		uint32_t first = 0, here = 0;
		while (strcmp(comm_host(run->comm, first), comm_host(run->comm, rank)))
			first++;
		if (first != rank)
			continue;
		for (uint32_t other = rank; other < run->size; other++)
			here += !strcmp(comm_host(run->comm, other), comm_host(run->comm, rank));
		per_node = here > per_node ? here : per_node;
		nodes++;
	}
	snprintf(ranks, sizeof ranks, "%u %s on %u %s (at most %u on one)", run->size, run->size == 1 ? "rank" : "ranks", nodes,
		 nodes == 1 ? "node" : "nodes", per_node);
	/* The same environment that the communicator was made from. */
	if (run->size > 1 && comm_options_init(&options) == ST_OK)
		transport = !(options.transports & COMM_TRANSPORT_SHM) || per_node == 1 ? ", tcp"
			    : nodes == 1						? ", shared memory"
										: ", shared memory in nodes and tcp between them";
	train_journal_say(journal, "model | %lld layers, %lld heads, %lld channels, context %lld, vocabulary %lld | %zu parameters",
			  (long long)c->model.layers, (long long)c->model.heads, (long long)c->model.channels, (long long)c->model.context,
			  (long long)c->model.vocabulary, run->parameters);
	train_journal_say(journal, "data  | %s | %llu training tokens, %llu sequences an epoch | %llu validation tokens", c->data.directory,
			  (unsigned long long)info->tokens[TRAIN_SPLIT_TRAINING], (unsigned long long)run->sequences,
			  (unsigned long long)info->tokens[TRAIN_SPLIT_VALIDATION]);
	train_journal_say(journal, "batch | %lld sequences = %llu micro-batches of %lld, %llu%s of them on each rank | %s%s", (long long)c->batch.global,
			  (unsigned long long)run->micro_batches, (long long)c->batch.micro, (unsigned long long)(run->micro_batches / run->size),
			  run->micro_batches % run->size ? " or one more" : "", run->identity.optimizer, c->reproducible ? ", reproducible" : "");
	train_journal_say(journal, "world | %s%s | %d %s each, %s | %zu gradient %s", ranks, transport, train_threads(),
			  train_threads() == 1 ? "thread" : "threads", train_isa(), train_buckets_count(run->buckets),
			  train_buckets_count(run->buckets) == 1 ? "bucket" : "buckets");
	if (run->saved)
		train_journal_say(journal, "resume | after step %llu, from %s", (unsigned long long)run->progress.step, run->saved_path);
	train_journal_start(journal, run->progress.step, run->size);
}

enum st_status train_run_open(struct comm *comm, const struct train_config *config, const char *config_name, struct train_run *run)
{
	struct st_sha256 hash = {0};
	uint8_t digest[ST_SHA256_BYTES] = {0};
	enum st_status status;

	*run = (struct train_run){.config = config, .config_name = config_name, .comm = comm, .compared_at = UINT64_MAX,
				  .checkpoint_lock = -1};
	run->rank = comm_rank(comm);
	run->size = comm_size(comm);
	train_meter_open(&run->meter, run->rank);
	status = train_config_check_world(config, config_name, run->size);
	if (status == ST_OK)
		status = train_config_print(config, &run->config_json);
	if (status == ST_OK)
		status = st_sha256_begin(&hash);
	if (status == ST_OK)
		status = st_sha256_update(&hash, run->config_json, strlen(run->config_json));
	if (status == ST_OK)
		status = st_sha256_end(&hash, digest);
	ST_TRY(train_agree(comm, status, &run->agreed));
	ST_TRY(train_agree_same(comm, digest, sizeof digest, "configuration", &run->agreed));

	run->context = (size_t)config->model.context;
	run->micro = (size_t)config->batch.micro;
	run->micro_batches = train_config_micro_batches(config);
	run->first_micro = run->micro_batches * run->rank / run->size;
	run->my_micro = run->micro_batches * (run->rank + UINT64_C(1)) / run->size - run->first_micro;
	ST_TRY(train_agree(comm, open_data(run), &run->agreed));
	ST_TRY(train_agree_same(comm, train_dataset_info(run->dataset)->identity, 64, "data set", &run->agreed));
	ST_TRY(choose_threads(run));
	if (config->reproducible) {
		/* The bits of matrix products depend on it, and a micro-batch may be any rank's. */
		char isa[64] = "";
		snprintf(isa, sizeof isa, "%s", train_isa());
		ST_TRY(train_agree_same(comm, isa, sizeof isa, "instruction set (reproducible is set; DNNL_MAX_CPU_ISA lowers it)", &run->agreed));
		ST_TRY(comm_leaves_open(comm, (uint32_t)run->micro_batches, &run->leaves));
	}
	ST_TRY(train_agree(comm, make_model(run), &run->agreed));
	describe(run);
	ST_TRY(resume(run));
	ST_TRY(open_report(run));
	train_journal_open(&run->journal, run->rank == 0, config->log.file);
	say_start(run);
	return ST_OK;
}

void train_run_close(struct train_run *run)
{
	train_records_close(run->records);
	train_journal_close(&run->journal);
	train_meter_close(&run->meter);
	train_ballot_free(run->ballot);
	train_buckets_free(run->buckets);
	train_model_free(run->model);
	train_dataset_free(run->dataset);
	if (run->gradients)
		comm_memory_free(run->comm, run->gradients);
	for (unsigned k = 0; k < run->buffers.state_count; k++)
		free(run->buffers.states[k]);
	free(run->buffers.parameters);
	free(run->losses);
	free(run->targets);
	free(run->inputs);
	free(run->config_json);
	if (run->checkpoint_lock >= 0)
		close(run->checkpoint_lock);
}

enum st_status train_run_compare(struct train_run *run)
{
	if (run->compared_at == run->progress.step)
		return ST_OK;
	enum st_status status = train_replicas_compare(run->comm, &run->buffers, run->progress.step, run->hash);
	run->met_ns = st_now_ns();
	run->agreed = status == ST_ERR_DIVERGED;
	ST_TRY(status);
	run->compared_at = run->progress.step;
	train_journal_replicas(&run->journal, run->progress.step, run->hash);
	return ST_OK;
}

enum st_status train_run_save(struct train_run *run, bool last)
{
	const struct train_config *c = run->config;
	enum st_status status = ST_OK;

	if (!c->checkpoint.directory || (run->saved && run->saved_at == run->progress.step))
		return ST_OK;
	ST_TRY(train_run_compare(run));
	run->progress.epoch = run->progress.sequences / run->sequences;
	if (run->rank == 0)
		status = train_checkpoint_write(c->checkpoint.directory, &run->progress, &run->identity, &run->buffers, run->config_json,
						(uint64_t)c->checkpoint.keep);
	status = train_agree_with_first(run->comm, status, &run->agreed);
	run->met_ns = st_now_ns();
	if (status == ST_OK) {
		run->saved = true;
		run->saved_at = run->progress.step;
		ST_TRY(train_checkpoint_path(c->checkpoint.directory, run->saved_at, run->saved_path));
		train_journal_say(&run->journal, "checkpoint %s", run->saved_path);
		return ST_OK;
	}
	if (!run->agreed)
		return status;
	char why[800];
	snprintf(why, sizeof why, "%s", st_message());
	const char *before = run->saved ? "the one before it is intact" : "there is none before it";
	if (c->checkpoint.on_failure == TRAIN_ON_FAILURE_CONTINUE && !last) {
		run->agreed = false;
		if (run->rank == 0)
			st_log(ST_LOG_WARN, "no checkpoint after step %llu: %s; %s; training goes on", (unsigned long long)run->progress.step, why,
			       before);
		return ST_OK;
	}
	/* The job failed, whatever the cause was: exit 1, not the cause's own code. */
	return st_fail(ST_ERR_ABORTED, "no checkpoint after step %llu: %s; %s", (unsigned long long)run->progress.step, why, before);
}
