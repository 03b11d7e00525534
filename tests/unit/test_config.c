/* Training configurations: each impossible one is refused with one line: file, key, seen, expected. */
#include "temporary.h"

#include "trainer/config.h"

static const char good[] = "{\"data\": {\"directory\": \"d\"}}";

static void refused(const char *text, char *const *assignments, size_t count, const char *line)
{
	struct train_config config;
	char expected[512];
	const char *path = temporary_file("c.json", text, strlen(text));

	snprintf(expected, sizeof expected, "%s%s", strncmp(line, "command", 7) ? path : "", line);
	enum st_status status = train_config_load(path, assignments, count, &config);
	CHECK(status == ST_ERR_CONFIG, "%s accepted: %s", text, st_status_name(status));
	CHECK(!strcmp(st_message(), expected), "seen '%s', expected '%s'", st_message(), expected);
	CHECK(st_exit_code(status) == 78);
	train_config_free(&config);
}

static void refused_value(const char *assignment, const char *line)
{
	char copy[128], *list[] = {copy};

	snprintf(copy, sizeof copy, "%s", assignment);
	refused(good, list, 1, line);
}

static void every_key_has_a_meaning(void)
{
	char *text;
	size_t bytes, lines = 0;
	FILE *out = open_memstream(&text, &bytes);

	train_config_help(out);
	fclose(out);
	for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
		char key[64] = "", value[64] = "", meaning[8] = "";
		CHECK(sscanf(line, " %63s %63s %7s", key, value, meaning) == 3, "'%s' lacks a default or a meaning", line);
		lines++;
	}
	CHECK(lines > 40);
	free(text);
}

int main(void)
{
	struct train_config config;
	char steps[] = "steps=7", micro[] = "batch.micro=8", rate[] = "optimizer.learning_rate=0.5", kind[] = "optimizer.kind=sgd";
	char off[] = "log.file=", *assignments[] = {steps, micro, rate, kind, off}, *text;

	temporary_make();
	const char *path = temporary_file("good.json", "{\"data\":{\"directory\":\"d\"},\"log\":{\"file\":\"l\"},\"seed\":3}", 54);
	CHECK_OK(train_config_load(path, assignments, 5, &config));
	CHECK(config.steps == 7 && config.batch.micro == 8 && config.seed == 3 && config.optimizer.kind == TRAIN_SGD);
	CHECK(!config.log.file, "an empty string does not switch off");
	CHECK(train_config_micro_batches(&config) == 4);
	struct train_schedule schedule = train_config_schedule(&config);
	CHECK(schedule.total_steps == 7 && schedule.peak == 0.5 && !schedule.constant);

	/* What is printed is a configuration, and the same one. */
	CHECK_OK(train_config_print(&config, &text));
	train_config_free(&config);
	path = temporary_file("printed.json", text, strlen(text));
	CHECK_OK(train_config_load(path, NULL, 0, &config));
	char *again;
	CHECK_OK(train_config_print(&config, &again));
	CHECK(!strcmp(text, again), "%s\n%s", text, again);
	free(text);
	free(again);

	/* The world: 32 sequences in micro-batches of 4 are 8 micro-batches. */
	config.batch.global = 32;
	config.batch.micro = 4;
	CHECK_OK(train_config_check_world(&config, "c.json", 8));
	CHECK_FAILS(train_config_check_world(&config, "c.json", 3), ST_ERR_CONFIG,
		    "c.json: batch.global: seen 32, expected a multiple of batch.micro x ranks = 4 x 3 = 12");
	CHECK_FAILS(train_config_check_world(&config, "c.json", 16), ST_ERR_CONFIG, "batch.micro x ranks = 4 x 16 = 64");
	/* A reproducible run's ranks need not have equally many. */
	config.reproducible = true;
	CHECK_OK(train_config_check_world(&config, "c.json", 3));
	CHECK_FAILS(train_config_check_world(&config, "c.json", 9), ST_ERR_CONFIG,
		    "c.json: batch.global: seen 32, expected at least batch.micro x ranks = 4 x 9 = 36");
	/* One number for each micro-batch, all in one tree. */
	config.batch.global = INT64_C(4) << 24;
	CHECK_OK(train_config_check_world(&config, "c.json", 3));
	config.batch.global += 4;
	CHECK_FAILS(train_config_check_world(&config, "c.json", 3), ST_ERR_CONFIG,
		    "c.json: batch.global: seen 67108868, expected at most batch.micro x 16777216 = 67108864 in a reproducible run");
	config.batch.global = 32;
	config.reproducible = false;
	config.debug.flip_bit.rank = 4;
	CHECK_FAILS(train_config_check_world(&config, "c.json", 4), ST_ERR_CONFIG,
		    "c.json: debug.flip_bit.rank: seen 4, expected a rank of this job: 0 to 3, or -1");
	train_config_free(&config);

	/* Which of them a message blames: a value from the command line is not in the file. Only a whole key counts. */
	char global[] = "batch.global=24", longer[] = "batch.globally=1", *given[] = {longer, global};
	CHECK_OK(train_config_load(path, given + 1, 1, &config));
	CHECK_FAILS(train_config_check_world(&config, path, 5), ST_ERR_CONFIG, "command line: batch.global: seen 24, expected a multiple of");
	config.assignments = given;
	CHECK_FAILS(train_config_check_world(&config, "c.json", 5), ST_ERR_CONFIG, "c.json: batch.global: seen 24, expected a multiple of");
	train_config_free(&config);

	/* Warm-up may be longer than the run: a quick try of a long run's configuration. */
	char warmup[] = "optimizer.warmup_steps=700", two[] = "steps=2", *quick[] = {warmup, two};
	CHECK_OK(train_config_load(path, quick, 2, &config));
	schedule = train_config_schedule(&config);
	CHECK(train_schedule_rate(&schedule, 1) == schedule.peak * (2.0 / 700) && train_schedule_rate(&schedule, 700) == schedule.minimum);
	train_config_free(&config);

	refused("{}", NULL, 0, ": data.directory: seen nothing, expected a directory made by `synctrain data`");
	refused("{\"model\": {\"hiden\": 4}}", NULL, 0, ": model.hiden: unknown key, expected one of: vocabulary, context, layers, heads, channels");
	refused("{\"steps\": \"many\"}", NULL, 0, ": steps: seen \"many\", expected an integer");
	refused("{\"optimizer\": {\"kind\": \"adam\"}}", NULL, 0, ": optimizer.kind: seen \"adam\", expected sgd, adamw");
	refused("{\"optimizer\": {\"beta1\": 1}}", NULL, 0, ": optimizer.beta1: seen 1, expected a number from 0 to 0.999999");
	refused("{\"model\": 4}", NULL, 0, ": model: seen 4, expected an object");
	refused_value("model.heads=3", ": model.channels: seen 128, expected a multiple of model.heads = 3 (command line)");
	refused_value("batch.global=30", "command line: batch.global: seen 30, expected a multiple of batch.micro = 4");
	refused_value("optimizer.minimum_rate=1", "command line: optimizer.minimum_rate: seen 1, expected at most optimizer.learning_rate = 0.001");
	refused_value("optimizer.momentum=0.9", "command line: optimizer.momentum: seen 0.9, expected 0 with optimizer.kind adamw (beta1 is its momentum)");
	refused_value("checkpoint.every=5", ": checkpoint.directory: seen nothing, expected a directory because checkpoint.every is set; checkpoint.every=0 turns "
		      "checkpoints off");
	refused_value("checkpoint.resume=must", ": checkpoint.directory: seen nothing, expected a directory because checkpoint.resume is set");
	refused_value("time_limit.seconds=60", ": time_limit.margin: seen 60, expected less than time_limit.seconds = 60 (command line)");
	refused_value("data.directory=", "command line: data.directory: seen nothing, expected a directory made by `synctrain data`");
	refused_value("steps=abc", "command line: steps: seen abc, expected an integer");
	refused_value("optimizer.learning_rate=1,5", "command line: optimizer.learning_rate: seen 1,5, expected a number");
	refused_value("data.verify=yes", "command line: data.verify: seen yes, expected true or false");
	refused_value("steps=0", "command line: steps: seen 0, expected an integer from 1 to 9.007199255e+15");
	refused_value("model.hiden=0", "command line: model.hiden: unknown key, expected one of: vocabulary, context, layers, heads, channels");

	every_key_has_a_meaning();
	return check_result();
}
