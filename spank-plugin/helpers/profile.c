/*
 * profile -- FILE: reads a JSON profile and prints its settings as the plugin wants them, one "KEY=VALUE" a line and
 * "end", or one line "error TEXT".  Started by the plugin in sbatch, srun and salloc, as the user.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

#include "common/json.h"
#include "spank-plugin/options.h"

struct profile {
	char *value[OPT_COUNT];
};

static int refuse(enum st_status status)
{
	printf("error %s\n", st_message());
	return st_exit_code(status);
}

int main(int argc, char **argv)
{
	struct profile profile = {{NULL}};
	struct st_json_key keys[OPT_COUNT + 1] = {{0}};
	char value[OPT_COUNT][OPT_VALUE_BYTES], error[OPT_ERROR_BYTES];

	if (argc != 3 || strcmp(argv[1], "--") != 0) {
		fputs("usage: profile -- FILE\nPrints the settings of a synctrain profile; started by the SPANK plugin.\n", stderr);
		return EX_USAGE;
	}
	for (int key = 0; key < OPT_COUNT; key++)
		keys[key] = (struct st_json_key){.name = opt_table[key].key,
						 .kind = ST_JSON_STRING,
						 .offset = offsetof(struct profile, value) + (size_t)key * sizeof(char *)};
	enum st_status status = st_json_load(argv[2], keys, &profile);
	if (status != ST_OK)
		return refuse(status);
	for (int key = 0; key < OPT_COUNT; key++)
		if (profile.value[key] && !opt_parse((enum opt_key)key, profile.value[key], value[key], error))
			return refuse(st_fail(ST_ERR_CONFIG, "%s: %s: %s", argv[2], opt_table[key].key, error));
	for (int key = 0; key < OPT_COUNT; key++)
		if (profile.value[key])
			printf("%s=%s\n", opt_table[key].key, value[key]);
	puts("end");
	st_json_free(keys, &profile);
	return fflush(stdout) == 0 ? EX_OK : EX_IOERR;
}
