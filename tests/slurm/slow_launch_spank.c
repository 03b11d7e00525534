/*
 * A SPANK plugin for tests: makes the launch of a step slow on chosen nodes, in the part of it that slurmstepd does with
 * the effective uid of the job's user, and makes it change that uid back and forth meanwhile, which it does a few times
 * anyway.  What another node asks of it at that time meets both.  Arguments: node=NAME (any number), ms=MILLISECONDS.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include <slurm/spank.h>

SPANK_PLUGIN(slow_launch, 1)

#define AS_ROOT_MS 4 /* long enough to send a message to another node, too short to see the answer */
#define AS_USER_MS 12

static void pause_ms(long ms)
{
	struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

	nanosleep(&pause, NULL);
}

int slurm_spank_user_init(spank_t spank, int ac, char *argv[])
{
	char host[65] = "";
	long ms = 0;
	int here = 0;

	(void)spank;
	gethostname(host, sizeof host - 1);
	for (int i = 0; i < ac; i++) {
		if (!strncmp(argv[i], "node=", 5))
			here |= !strcmp(argv[i] + 5, host);
		else if (!strncmp(argv[i], "ms=", 3))
			ms = strtol(argv[i] + 3, NULL, 10);
	}
	if (!here)
		return 0;
	uid_t user = geteuid();
	for (long slept = 0; slept < ms; slept += AS_ROOT_MS + AS_USER_MS) {
		if (seteuid(0) < 0)
			return -1;
		pause_ms(AS_ROOT_MS);
		if (seteuid(user) < 0)
			return -1;
		pause_ms(AS_USER_MS);
	}
	return 0;
}
