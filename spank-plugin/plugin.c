/*
 * Where Slurm enters.  Each hook finds out in which context it runs and calls that context's file.
 *
 * Hooks on the nodes always return 0: a failing hook can drain a node or end a job whose only fault was to ask for us.
 * There is no job_prolog and no job_epilog: defining them makes slurmd fork for every job on every node.
 */
#include "plugin.h"

#pragma GCC visibility push(default)
SPANK_PLUGIN(synctrain, 1)
#pragma GCC visibility pop

static struct opt_site site;
static char site_error[OPT_ERROR_BYTES]; /* "" : the site's arguments are good */

static struct opt_job job; /* of this step; slurmstepd is one process per step */
static bool on;
static const char *refusal;

static const char *read_site(int argc, char **argv)
{
	if (opt_site_parse(argc, argv, &site, site_error))
		site_error[0] = 0;
	return site_error[0] ? site_error : NULL;
}

int slurm_spank_init(spank_t spank, int argc, char **argv)
{
	switch (spank_context()) {
	case S_CTX_LOCAL:
	case S_CTX_ALLOCATOR:
		submit_init(spank, &site, read_site(argc, argv));
		break;
	case S_CTX_REMOTE:
		submit_register_options(spank);
		break;
	default: /* slurmd loads every plugin that has this hook: nothing to do there */
		break;
	}
	return 0;
}

int slurm_spank_init_post_opt(spank_t spank, int argc, char **argv)
{
	switch (spank_context()) {
	case S_CTX_LOCAL:
	case S_CTX_ALLOCATOR:
		submit_post_opt(spank);
		break;
	case S_CTX_REMOTE:
		on = node_settings(spank, &site, read_site(argc, argv), &job, &refusal);
		break;
	default:
		break;
	}
	return 0;
}

int slurm_spank_local_user_init(spank_t spank, int argc, char **argv)
{
	(void)argc;
	(void)argv;
	submit_step_created(spank);
	return 0;
}

int slurm_spank_task_init(spank_t spank, int argc, char **argv)
{
	char address[TASK_ADDRESS_BYTES];

	(void)argc;
	(void)argv;
	if (!on && !refusal)
		return 0;
	task_take_carriers(spank, address);
	if (on)
		task_environment(spank, &site, &job, address);
	else
		task_refusal(spank, refusal);
	return 0;
}
