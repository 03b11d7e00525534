#include "command.h"

#include <stdio.h>

#include "status.h"

int st_command_failed(const char *name, int status)
{
	fflush(stdout);
	fprintf(stderr, "synctrain %s: %s\n", name, st_message());
	return st_exit_code((enum st_status)status);
}
