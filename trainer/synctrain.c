/* `synctrain COMMAND ...`: finds the command and runs it. */
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

#include "common/command.h"
#include "common/log.h"
#include "common/version.h"

st_command_main cmd_bench, cmd_data, cmd_report, cmd_run, cmd_train;

static const struct st_command commands[] = {
	{"train", "train a model as one rank of a synchronous job", cmd_train},
	{"run", "start ranks on this machine", cmd_run},
	{"report", "who was slow, or holds up a job that hangs (--hang)", cmd_report},
	{"bench", "time collectives, in nccl-tests' columns", cmd_bench},
	{"data", "make token shards from text", cmd_data},
};

static void usage(FILE *out)
{
	fputs("usage: synctrain COMMAND [ARGUMENTS]\n\ncommands:\n", out);
	for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
		fprintf(out, "  %-8s %s\n", commands[i].name, commands[i].summary);
	fputs("\n`synctrain COMMAND --help` tells more. `synctrain --version` prints the version.\n", out);
}

/* A caller may have closed descriptors 0 to 2. Then the next file or socket would get that number, and lines of text would be written into
 * a checkpoint or to another rank. False: there is no /dev/null either. */
static bool fill_standard_descriptors(void)
{
	int fd;

	do
		fd = open("/dev/null", O_RDWR);
	while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd < 0)
		return fcntl(STDIN_FILENO, F_GETFD) >= 0 && fcntl(STDOUT_FILENO, F_GETFD) >= 0 && fcntl(STDERR_FILENO, F_GETFD) >= 0;
	close(fd);
	return true;
}

int main(int argc, char **argv)
{
	if (!fill_standard_descriptors())
		return EX_OSERR;
	if (argc < 2) {
		usage(stderr);
		return EX_USAGE;
	}
	if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
		usage(stdout);
		return EX_OK;
	}
	if (!strcmp(argv[1], "--version")) {
		printf("synctrain %s (%s)\n", st_version, st_build_id);
		return EX_OK;
	}
	if (st_log_check() != ST_OK) {
		fprintf(stderr, "synctrain: %s\n", st_message());
		return st_exit_code(ST_ERR_CONFIG);
	}
	for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
		if (!strcmp(argv[1], commands[i].name))
			return commands[i].main(argc - 1, argv + 1);
	fprintf(stderr, "synctrain: no command '%s', expected one of:", argv[1]);
	for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
		fprintf(stderr, " %s", commands[i].name);
	fputc('\n', stderr);
	return EX_USAGE;
}
