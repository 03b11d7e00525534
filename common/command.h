/* One subcommand of `synctrain`. Each room defines its own; trainer/synctrain.c holds the table. */
#ifndef SYNCTRAIN_COMMON_COMMAND_H
#define SYNCTRAIN_COMMON_COMMAND_H

/* argv[0] is the subcommand's name. Returns the process's exit code (sysexits.h). Each handles --help itself: usage on stdout, 0. */
typedef int st_command_main(int argc, char **argv);

struct st_command {
	const char *name;
	const char *summary; /* one line for `synctrain --help` */
	st_command_main *main;
};

/* Prints "synctrain NAME: MESSAGE" on standard error once and returns the exit code of STATUS. */
int st_command_failed(const char *name, int status);

#endif
