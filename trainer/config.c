#include "config.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "libcomm/comm.h"

#define LARGEST 9007199254740991.0 /* 2^53 - 1: every JSON reader keeps such an integer exactly */
#define AT(member) offsetof(struct train_config, member)

#define BOOL(key, member) {.name = key, .kind = ST_JSON_BOOL, .offset = AT(member)}
#define INT(key, member, low, high) {.name = key, .kind = ST_JSON_INT, .offset = AT(member), .minimum = low, .maximum = high}
#define NUMBER(key, member, low, high) {.name = key, .kind = ST_JSON_NUMBER, .offset = AT(member), .minimum = low, .maximum = high}
#define STRING(key, member) {.name = key, .kind = ST_JSON_STRING, .offset = AT(member)}
#define CHOICE(key, member, list) {.name = key, .kind = ST_JSON_CHOICE, .offset = AT(member), .choices = list}
#define OBJECT(key, table) {.name = key, .kind = ST_JSON_OBJECT, .keys = table}

static const char *const optimizer_kinds[] = {"sgd", "adamw", NULL}; /* in the order of enum train_optimizer_kind */
static const char *const schedules[] = {"cosine", "constant", NULL};
static const char *const resumes[] = {"auto", "never", "must", NULL};
static const char *const on_failures[] = {"stop", "continue", NULL};

static const struct st_json_key model_keys[] = {
	INT("vocabulary", model.vocabulary, 1, 65536),
	INT("context", model.context, 1, 1 << 20),
	INT("layers", model.layers, 1, 10000),
	INT("heads", model.heads, 1, 10000),
	INT("channels", model.channels, 1, 1 << 20),
	{0},
};
static const struct st_json_key data_keys[] = {
	STRING("directory", data.directory),
	BOOL("verify", data.verify),
	{0},
};
static const struct st_json_key batch_keys[] = {
	INT("global", batch.global, 1, 1 << 24),
	INT("micro", batch.micro, 1, 1 << 16),
	{0},
};
static const struct st_json_key optimizer_keys[] = {
	CHOICE("kind", optimizer.kind, optimizer_kinds),
	NUMBER("learning_rate", optimizer.learning_rate, 0, 1e6),
	NUMBER("minimum_rate", optimizer.minimum_rate, 0, 1e6),
	INT("warmup_steps", optimizer.warmup_steps, 0, LARGEST),
	CHOICE("schedule", optimizer.schedule, schedules),
	INT("schedule_steps", optimizer.schedule_steps, 0, LARGEST),
	NUMBER("momentum", optimizer.momentum, 0, 0.999999),
	NUMBER("beta1", optimizer.beta1, 0, 0.999999),
	NUMBER("beta2", optimizer.beta2, 0, 0.999999),
	NUMBER("epsilon", optimizer.epsilon, 1e-30, 1),
	NUMBER("weight_decay", optimizer.weight_decay, 0, 1e3),
	NUMBER("clip_norm", optimizer.clip_norm, 0, 1e9),
	{0},
};
static const struct st_json_key eval_keys[] = {
	INT("every", eval.every, 0, LARGEST),
	INT("batches", eval.batches, 1, 1 << 20),
	{0},
};
static const struct st_json_key checkpoint_keys[] = {
	STRING("directory", checkpoint.directory),
	INT("every", checkpoint.every, 0, LARGEST),
	INT("keep", checkpoint.keep, 1, 100000),
	CHOICE("resume", checkpoint.resume, resumes),
	CHOICE("on_failure", checkpoint.on_failure, on_failures),
	{0},
};
static const struct st_json_key time_limit_keys[] = {
	NUMBER("seconds", time_limit.seconds, 0, 1e9),
	NUMBER("margin", time_limit.margin, 0, 1e6),
	{0},
};
static const struct st_json_key report_keys[] = {STRING("directory", report.directory), {0}};
static const struct st_json_key log_keys[] = {
	INT("every", log.every, 1, LARGEST),
	STRING("file", log.file),
	{0},
};
static const struct st_json_key flip_bit_keys[] = {
	INT("rank", debug.flip_bit.rank, -1, 1 << 24),
	INT("step", debug.flip_bit.step, 1, LARGEST),
	INT("element", debug.flip_bit.element, 0, LARGEST),
	INT("bit", debug.flip_bit.bit, 0, 31),
	{0},
};
static const struct st_json_key not_a_number_keys[] = {
	INT("rank", debug.not_a_number.rank, -1, 1 << 24),
	INT("step", debug.not_a_number.step, 1, LARGEST),
	INT("count", debug.not_a_number.count, 1, LARGEST),
	{0},
};
static const struct st_json_key delay_keys[] = {
	INT("rank", debug.delay.rank, -1, 1 << 24),
	INT("milliseconds", debug.delay.milliseconds, 0, 3600000),
	{0},
};
static const struct st_json_key dump_gradients_keys[] = {
	STRING("file", debug.dump_gradients.file),
	INT("step", debug.dump_gradients.step, 1, LARGEST),
	{0},
};
static const struct st_json_key debug_keys[] = {
	OBJECT("flip_bit", flip_bit_keys),
	OBJECT("not_a_number", not_a_number_keys),
	OBJECT("delay", delay_keys),
	OBJECT("dump_gradients", dump_gradients_keys),
	{0},
};
static const struct st_json_key config_keys[] = {
	STRING("name", name),
	OBJECT("model", model_keys),
	OBJECT("data", data_keys),
	OBJECT("batch", batch_keys),
	OBJECT("optimizer", optimizer_keys),
	INT("steps", steps, 1, LARGEST),
	INT("seed", seed, 0, LARGEST),
	BOOL("reproducible", reproducible),
	OBJECT("eval", eval_keys),
	OBJECT("checkpoint", checkpoint_keys),
	INT("hash_every", hash_every, 0, LARGEST),
	INT("skip_limit", skip_limit, 1, 1000000),
	OBJECT("time_limit", time_limit_keys),
	OBJECT("report", report_keys),
	OBJECT("log", log_keys),
	INT("bucket_bytes", bucket_bytes, 1024, 1 << 30),
	INT("threads", threads, 0, 1024),
	OBJECT("debug", debug_keys),
	{0},
};

/* What `--help` says of each key. A key without a line here is printed without one, and test_config fails. */
static const struct {
	const char *path, *meaning;
} meanings[] = {
	{"name", "name of the run, in its report"},
	{"model.vocabulary", "tokens are 0 .. vocabulary - 1"},
	{"model.context", "tokens of a sequence"},
	{"model.layers", "transformer blocks"},
	{"model.heads", "attention heads; divide channels"},
	{"model.channels", "width of the residual stream"},
	{"data.directory", "made by `synctrain data`, or llm.c's *_train*.bin and *_val*.bin (required)"},
	{"data.verify", "check every shard's SHA-256 at the start, once on each node"},
	{"batch.global", "sequences of one optimizer step, whatever the number of ranks"},
	{"batch.micro", "sequences of one forward and backward; ranks share the global/micro micro-batches evenly, if reproducible within one"},
	{"optimizer.kind", "sgd or adamw"},
	{"optimizer.learning_rate", "after warm-up"},
	{"optimizer.minimum_rate", "at the end of the cosine"},
	{"optimizer.warmup_steps", "linear warm-up; a run of fewer steps ends within it"},
	{"optimizer.schedule", "cosine or constant"},
	{"optimizer.schedule_steps", "length of the schedule; 0: steps"},
	{"optimizer.momentum", "sgd only"},
	{"optimizer.beta1", "adamw"},
	{"optimizer.beta2", "adamw"},
	{"optimizer.epsilon", "adamw"},
	{"optimizer.weight_decay", "of matrices and embeddings"},
	{"optimizer.clip_norm", "largest global norm of the gradient; 0: no clipping"},
	{"steps", "optimizer steps in all, those before a resume included"},
	{"seed", "of the initial parameters and the order of the data"},
	{"reproducible", "the same bits for any number of ranks, buckets, transport and algorithm: each micro-batch's gradient is summed in one fixed tree"},
	{"eval.every", "steps between evaluations, and one before the first step; 0: none"},
	{"eval.batches", "micro-batches of one evaluation, spread evenly over the validation tokens"},
	{"checkpoint.directory", "one directory for one run; none: no checkpoints"},
	{"checkpoint.every", "steps between checkpoints; 0: only at the end and before an early stop"},
	{"checkpoint.keep", "how many to keep; older ones go after the new one is complete"},
	{"checkpoint.resume", "auto: if there is one; never: refuse if there is one; must: refuse if there is none"},
	{"checkpoint.on_failure", "stop: exit 1 when one can't be written; continue: one line, and train on (not after the last step)"},
	{"hash_every", "steps between comparisons of all replicas by hash; 0: only at the end and before checkpoints"},
	{"skip_limit", "steps in a row with a non-finite gradient, each skipped by all ranks, after which the run stops"},
	{"time_limit.seconds", "stop with a checkpoint and exit 75 after this long; 0: only SLURM_JOB_END_TIME counts"},
	{"time_limit.margin", "seconds before either limit at which to stop"},
	{"report.directory", "where step records go; none: SYNCTRAIN_REPORT, else nowhere"},
	{"log.every", "steps between lines on standard output"},
	{"log.file", "JSON lines for programs, numbers with all their digits; appended by rank 0"},
	{"bucket_bytes", "gradient bytes of one all-reduce"},
	{"threads", "of each rank; 0: OMP_NUM_THREADS, else this rank's share of the cores it may run on"},
	{"debug.flip_bit.rank", "fault injection: rank in which one bit of one parameter flips; -1: none"},
	{"debug.flip_bit.step", "after the update of this step, counted from 1 as in the log"},
	{"debug.flip_bit.element", "index in the flat parameter buffer"},
	{"debug.flip_bit.bit", "0 lowest .. 31 sign"},
	{"debug.not_a_number.rank", "fault injection: rank whose gradient gets a NaN; -1: none"},
	{"debug.not_a_number.step", "in this step"},
	{"debug.not_a_number.count", "and so many steps in all, one after the other"},
	{"debug.delay.rank", "fault injection: rank that sleeps in every step; -1: none"},
	{"debug.delay.milliseconds", "how long, before its forward pass"},
	{"debug.dump_gradients.file", "rank 0 writes the averaged gradients of one step here as safetensors"},
	{"debug.dump_gradients.step", "which step"},
};

static void set_defaults(struct train_config *config)
{
	*config = (struct train_config){
		.model = {.vocabulary = 256, .context = 128, .layers = 4, .heads = 4, .channels = 128},
		.data = {.verify = true},
		.batch = {.global = 32, .micro = 4},
		.optimizer = {.kind = TRAIN_ADAMW, .learning_rate = 1e-3, .minimum_rate = 1e-4, .warmup_steps = 0, .beta1 = 0.9, .beta2 = 0.95,
			      .epsilon = 1e-8, .weight_decay = 0.1, .clip_norm = 1.0},
		.steps = 200,
		.seed = 1,
		.eval = {.every = 50, .batches = 8},
		.checkpoint = {.every = 0, .keep = 2},
		.hash_every = 50,
		.skip_limit = 5,
		.time_limit = {.margin = 60},
		.log = {.every = 1},
		.bucket_bytes = 4 << 20,
		.debug = {.flip_bit = {.rank = -1, .step = 1, .bit = 22}, .not_a_number = {.rank = -1, .step = 1, .count = 1}, .delay = {.rank = -1},
			  .dump_gradients = {.step = 1}},
	};
}

/* An empty string on the command line switches a file or directory of the configuration off. */
static void drop_empty(char **text)
{
	if (*text && !**text) {
		free(*text);
		*text = NULL;
	}
}

static bool is_overridden(const struct train_config *config, const char *key)
{
	size_t length = strlen(key);

	for (size_t i = 0; i < config->assignment_count; i++)
		if (!strncmp(config->assignments[i], key, length) && config->assignments[i][length] == '=')
			return true;
	return false;
}

const char *train_config_source(const struct train_config *config, const char *name, const char *key)
{
	return is_overridden(config, key) ? "command line" : name;
}

/* For the other key of a check, whose value may come from elsewhere than the first one's. */
static const char *aside(const struct train_config *config, const char *key)
{
	return is_overridden(config, key) ? " (command line)" : "";
}

static enum st_status check(const struct train_config *c, const char *name)
{
	const char *key;

	if (!c->data.directory)
		return st_fail(ST_ERR_CONFIG, "%s: data.directory: seen nothing, expected a directory made by `synctrain data`",
			       train_config_source(c, name, "data.directory"));
	key = "model.channels";
	if (c->model.channels % c->model.heads)
		return st_fail(ST_ERR_CONFIG, "%s: %s: seen %lld, expected a multiple of model.heads = %lld%s", train_config_source(c, name, key),
			       key, (long long)c->model.channels, (long long)c->model.heads, aside(c, "model.heads"));
	key = "batch.global";
	if (c->batch.global % c->batch.micro)
		return st_fail(ST_ERR_CONFIG, "%s: %s: seen %lld, expected a multiple of batch.micro = %lld%s", train_config_source(c, name, key),
			       key, (long long)c->batch.global, (long long)c->batch.micro, aside(c, "batch.micro"));
	key = "optimizer.minimum_rate";
	if (c->optimizer.minimum_rate > c->optimizer.learning_rate && c->optimizer.schedule == TRAIN_SCHEDULE_COSINE)
		return st_fail(ST_ERR_CONFIG, "%s: %s: seen %g, expected at most optimizer.learning_rate = %g%s",
			       train_config_source(c, name, key), key, c->optimizer.minimum_rate, c->optimizer.learning_rate,
			       aside(c, "optimizer.learning_rate"));
	key = "optimizer.momentum";
	if (c->optimizer.kind == TRAIN_ADAMW && c->optimizer.momentum > 0)
		return st_fail(ST_ERR_CONFIG, "%s: %s: seen %g, expected 0 with optimizer.kind adamw (beta1 is its momentum)",
			       train_config_source(c, name, key), key, c->optimizer.momentum);
	key = "checkpoint.directory";
	if (!c->checkpoint.directory && c->checkpoint.every)
		return st_fail(ST_ERR_CONFIG, "%s: %s: seen nothing, expected a directory because checkpoint.every is set; checkpoint.every=0 "
			       "turns checkpoints off", train_config_source(c, name, key), key);
	if (!c->checkpoint.directory && c->checkpoint.resume == TRAIN_RESUME_MUST)
		return st_fail(ST_ERR_CONFIG, "%s: %s: seen nothing, expected a directory because checkpoint.resume is set",
			       train_config_source(c, name, key), key);
	key = "time_limit.margin";
	if (c->time_limit.seconds > 0 && c->time_limit.margin >= c->time_limit.seconds)
		return st_fail(ST_ERR_CONFIG, "%s: %s: seen %g, expected less than time_limit.seconds = %g%s", train_config_source(c, name, key),
			       key, c->time_limit.margin, c->time_limit.seconds, aside(c, "time_limit.seconds"));
	return ST_OK;
}

enum st_status train_config_load(const char *path, char *const *assignments, size_t count, struct train_config *config)
{
	set_defaults(config);
	config->assignments = assignments;
	config->assignment_count = count;
	ST_TRY(st_json_load(path, config_keys, config));
	for (size_t i = 0; i < count; i++)
		ST_TRY(st_json_override(config_keys, config, assignments[i]));
	drop_empty(&config->name);
	drop_empty(&config->data.directory);
	drop_empty(&config->checkpoint.directory);
	drop_empty(&config->report.directory);
	drop_empty(&config->log.file);
	drop_empty(&config->debug.dump_gradients.file);
	return check(config, path);
}

enum st_status train_config_check_world(const struct train_config *config, const char *name, uint32_t ranks)
{
	uint64_t micro_batches = train_config_micro_batches(config);
	const struct {
		const char *key;
		int64_t rank;
	} debug[] = {
		{"debug.flip_bit.rank", config->debug.flip_bit.rank},
		{"debug.not_a_number.rank", config->debug.not_a_number.rank},
		{"debug.delay.rank", config->debug.delay.rank},
	};

	if (config->reproducible && micro_batches < ranks)
		return st_fail(ST_ERR_CONFIG, "%s: batch.global: seen %lld, expected at least batch.micro x ranks = %lld%s x %u = %lld",
			       train_config_source(config, name, "batch.global"), (long long)config->batch.global, (long long)config->batch.micro,
			       aside(config, "batch.micro"), ranks, (long long)config->batch.micro * ranks);
	if (config->reproducible && micro_batches > COMM_MAX_LEAVES)
		return st_fail(ST_ERR_CONFIG, "%s: batch.global: seen %lld, expected at most batch.micro x %u = %lld%s in a reproducible run",
			       train_config_source(config, name, "batch.global"), (long long)config->batch.global, COMM_MAX_LEAVES,
			       (long long)config->batch.micro * COMM_MAX_LEAVES, aside(config, "batch.micro"));
	if (!config->reproducible && micro_batches % ranks)
		return st_fail(ST_ERR_CONFIG,
			       "%s: batch.global: seen %lld, expected a multiple of batch.micro x ranks = %lld%s x %u = %lld",
			       train_config_source(config, name, "batch.global"), (long long)config->batch.global,
			       (long long)config->batch.micro, aside(config, "batch.micro"), ranks, (long long)config->batch.micro * ranks);
	for (size_t i = 0; i < sizeof debug / sizeof *debug; i++)
		if (debug[i].rank >= (int64_t)ranks)
			return st_fail(ST_ERR_CONFIG, "%s: %s: seen %lld, expected a rank of this job: 0 to %u, or -1",
				       train_config_source(config, name, debug[i].key), debug[i].key, (long long)debug[i].rank, ranks - 1);
	return ST_OK;
}

void train_config_free(struct train_config *config)
{
	st_json_free(config_keys, config);
}

enum st_status train_config_print(const struct train_config *config, char **text)
{
	return st_json_print(config_keys, config, text);
}

static const char *meaning_of(const char *path)
{
	for (size_t i = 0; i < sizeof meanings / sizeof *meanings; i++)
		if (!strcmp(meanings[i].path, path))
			return meanings[i].meaning;
	return "";
}

/* The value of a key as people write it; a string, which has no default, is "-". */
static void value_text(const struct st_json_key *key, const struct train_config *config, char text[64])
{
	const void *field = (const char *)config + key->offset;

	strcpy(text, "-");
	if (key->kind == ST_JSON_BOOL)
		snprintf(text, 64, "%s", *(const bool *)field ? "true" : "false");
	else if (key->kind == ST_JSON_INT)
		snprintf(text, 64, "%lld", (long long)*(const int64_t *)field);
	else if (key->kind == ST_JSON_NUMBER)
		snprintf(text, 64, "%.10g", *(const double *)field);
	else if (key->kind == ST_JSON_CHOICE)
		snprintf(text, 64, "%s", key->choices[*(const int *)field]);
}

static void add_changes(const struct st_json_key *keys, const char *prefix, const struct train_config *before,
			const struct train_config *after, char *text, size_t bytes)
{
	for (; keys->name; keys++) {
		char old[64], new[64];
		size_t used = strlen(text);

		value_text(keys, before, old);
		value_text(keys, after, new);
		if (strcmp(old, new) && strcmp(keys->name, "schedule_steps"))
			snprintf(text + used, bytes - used, "%s%s.%s %s -> %s", used ? ", " : "", prefix, keys->name, old, new);
	}
}

enum st_status train_config_changes(const struct train_config *config, const char *saved, char *text, size_t bytes)
{
	struct train_config before;

	set_defaults(&before);
	*text = 0;
	enum st_status status = st_json_parse("configuration", saved, config_keys, &before);
	if (status == ST_OK) {
		add_changes(batch_keys, "batch", &before, config, text, bytes);
		add_changes(optimizer_keys, "optimizer", &before, config, text, bytes);
	}
	train_config_free(&before);
	return status;
}

static void help_keys(FILE *out, const struct st_json_key *keys, const char *prefix, const struct train_config *defaults)
{
	for (; keys->name; keys++) {
		char path[128], value[64];

		snprintf(path, sizeof path, "%s%s%s", prefix, *prefix ? "." : "", keys->name);
		if (keys->kind == ST_JSON_OBJECT) {
			help_keys(out, keys->keys, path, defaults);
			continue;
		}
		value_text(keys, defaults, value);
		fprintf(out, "  %-26s %-9s %s\n", path, value, meaning_of(path));
	}
}

void train_config_help(FILE *out)
{
	struct train_config defaults;

	set_defaults(&defaults);
	help_keys(out, config_keys, "", &defaults);
}

struct train_optimizer_config train_config_optimizer(const struct train_config *config)
{
	return (struct train_optimizer_config){
		.kind = (enum train_optimizer_kind)config->optimizer.kind,
		.momentum = config->optimizer.momentum,
		.beta1 = config->optimizer.beta1,
		.beta2 = config->optimizer.beta2,
		.epsilon = config->optimizer.epsilon,
		.weight_decay = config->optimizer.weight_decay,
	};
}

struct train_schedule train_config_schedule(const struct train_config *config)
{
	int64_t length = config->optimizer.schedule_steps ? config->optimizer.schedule_steps : config->steps;

	return (struct train_schedule){
		.peak = config->optimizer.learning_rate,
		.minimum = config->optimizer.minimum_rate,
		.warmup_steps = (uint64_t)config->optimizer.warmup_steps,
		.total_steps = (uint64_t)length,
		.constant = config->optimizer.schedule == TRAIN_SCHEDULE_CONSTANT,
	};
}

uint64_t train_config_micro_batches(const struct train_config *config)
{
	return (uint64_t)(config->batch.global / config->batch.micro);
}
