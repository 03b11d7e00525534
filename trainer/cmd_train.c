/* `synctrain train CONFIG.json [KEY=VALUE ...]`: one rank of a training job. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

#include "common/command.h"
#include "common/log.h"
#include "libcomm/comm.h"
#include "trainer/agree.h"
#include "trainer/config.h"
#include "trainer/loop.h"
#include "trainer/run.h"
#include "trainer/stop.h"

st_command_main cmd_train;

struct arguments {
	const char *config;
	char **assignments;
	size_t assignment_count;
	int help, print_config;
};

static void usage(FILE *out)
{
	fputs("usage: synctrain train CONFIG.json [KEY=VALUE ...] [--print-config]\n\n"
	      "One rank of a training job: start it with srun, mpirun or `synctrain run -n N`; alone it is a job of one rank.\n\n"
	      "  KEY=VALUE       replaces a value of the configuration, e.g. optimizer.learning_rate=1e-3\n"
	      "  --print-config  prints the whole configuration as JSON and exits\n"
	      "  -h, --help\n\n"
	      "exit codes: 0 done; 1 the job failed (a rank was lost, replicas differ, ...); 75 stopped by SIGTERM, SIGUSR1, SIGINT or a time\n"
	      "limit with a checkpoint: start it again to go on; 78 configuration; 64 to 77 as in sysexits.h\n\n"
	      "keys and defaults:\n",
	      out);
	train_config_help(out);
}

static enum st_status read_arguments(int argc, char **argv, struct arguments *arguments)
{
	*arguments = (struct arguments){.assignments = calloc((size_t)argc, sizeof(char *))};
	if (!arguments->assignments)
		return st_fail(ST_ERR_NOMEM, "no memory for %d arguments", argc);
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
			arguments->help = 1;
		else if (!strcmp(argv[i], "--print-config"))
			arguments->print_config = 1;
		else if (argv[i][0] == '-')
			return st_fail(ST_ERR_USAGE, "seen %.100s, expected CONFIG.json [KEY=VALUE ...] [--print-config]", argv[i]);
		else if (!arguments->config)
			arguments->config = argv[i];
		else
			arguments->assignments[arguments->assignment_count++] = argv[i];
	}
	if (!arguments->config && !arguments->help)
		return st_fail(ST_ERR_USAGE, "seen no configuration, expected CONFIG.json [KEY=VALUE ...]");
	return ST_OK;
}

/* A job that failed exits with 1 and not with the code of its cause: 75 would say that a checkpoint was written. */
static int exit_code(enum st_status status)
{
	return status == ST_ERR_TIMEOUT || status == ST_ERR_PROTOCOL ? 1 : st_exit_code(status);
}

/* Once on each rank that knows something of its own, and once in all when every rank knows the same, which then names its step by itself.
 * step: in which it happened; 0: none. */
static int failed(struct comm *comm, enum st_status status, bool agreed, uint64_t step)
{
	const int code = exit_code(status);
	char printed = 0;

	if (comm_size(comm) == 1 || (agreed && comm_rank(comm) == 0))
		st_command_failed("train", (int)status);
	else if (!agreed && step)
		st_log(ST_LOG_ERROR, "step %llu: %s", (unsigned long long)step, st_message());
	else if (!agreed)
		st_log(ST_LOG_ERROR, "%s", st_message());
	/* Some launchers end a job as soon as one of its ranks leaves with an error: nobody leaves before rank 0 has said why. */
	if (agreed)
		comm_decide(comm, &printed, sizeof printed);
	return code;
}

/* status: how reading the arguments and the configuration went on this rank. */
static int train(struct comm *comm, enum st_status status, const struct arguments *arguments, const struct train_config *config)
{
	char speaker[128];
	struct train_run *run = calloc(1, sizeof *run);
	bool agreed = false;
	int code = EX_OK;

	if (comm_size(comm) > 1) {
		snprintf(speaker, sizeof speaker, "rank %u on %s", comm_rank(comm), comm_host(comm, comm_rank(comm)));
		st_log_set_speaker(speaker);
	}
	if (status == ST_OK && !run)
		status = st_fail(ST_ERR_NOMEM, "no memory for a training run");
	status = train_agree(comm, status, &agreed);
	if (status != ST_OK) {
		code = failed(comm, status, agreed, 0);
		free(run);
		return code;
	}
	/* From here on a signal means: stop with a checkpoint. Before, while ranks are still looking for each other, it ends the process. */
	train_stop_watch(config->time_limit.seconds, config->time_limit.margin);
	status = train_run_open(comm, config, arguments->config, run);
	if (status == ST_OK)
		status = train_loop(run);
	if (status != ST_OK)
		code = failed(comm, status, run->agreed, run->step);
	train_run_close(run);
	free(run);
	return code;
}

int cmd_train(int argc, char **argv)
{
	struct arguments arguments;
	struct train_config config = {0};
	struct comm_options options;
	struct comm *comm;
	char *text;
	int code;
	enum st_status status = read_arguments(argc, argv, &arguments);

	if (arguments.help) {
		usage(stdout);
		free(arguments.assignments);
		return EX_OK;
	}
	if (status == ST_OK)
		status = train_config_load(arguments.config, arguments.assignments, arguments.assignment_count, &config);
	if (arguments.print_config) {
		if (status == ST_OK)
			status = train_config_print(&config, &text);
		if (status == ST_OK) {
			puts(text);
			free(text);
		}
		code = status == ST_OK ? EX_OK : st_command_failed("train", (int)status);
		goto free_config;
	}
	/* A rank whose configuration is wrong still joins, to say so to the others, which would wait for it otherwise. */
	char problem[1024];
	snprintf(problem, sizeof problem, "%s", status == ST_OK ? "" : st_message());
	enum st_status joined = comm_options_init(&options);
	if (joined == ST_OK)
		joined = comm_create(&options, &comm);
	if (joined != ST_OK) {
		st_command_failed("train", (int)joined);
		code = exit_code(joined);
		goto free_config;
	}
	if (status != ST_OK)
		st_fail_copy(status, problem);
	code = train(comm, status, &arguments, &config);
	comm_free(comm);
free_config:
	train_config_free(&config);
	free(arguments.assignments);
	return code;
}
