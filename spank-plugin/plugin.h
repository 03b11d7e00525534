/*
 * The contexts in which Slurm runs the plugin, one file each:
 *
 *   submit.c   sbatch, salloc, srun: as the user, before anything is queued or launched
 *   node.c     slurmstepd, as root, once per step and node
 *   task.c     slurmstepd's child, as the user, once per task, just before the program starts
 *
 * plugin.c sends Slurm's calls here.
 */
#ifndef SYNCTRAIN_SPANK_PLUGIN_H
#define SYNCTRAIN_SPANK_PLUGIN_H

#include <stdbool.h>

#include "options.h"
#include "spank.h"

/* Step ids from here on are the batch script, the extern and the interactive step: none of them runs ranks. */
#define STEP_SPECIAL 0xfffffff0u

/*
 * What srun adds to the step's environment for task.c, which takes it out again: the first node's address, which only
 * srun can look up, and whether SLURM_MPI_TYPE is our choice.
 */
#define MASTER_CARRIER "SLURM_SPANK_SYNCTRAIN_MASTER"
#define MPI_CARRIER "SLURM_SPANK_SYNCTRAIN_MPI"

/* --- submit.c --- */

/* Registers the options and forgets what an outer job left in the environment. SITE_ERROR: NULL, or why the plugin is off. */
void submit_init(spank_t spank, const struct opt_site *site, const char *site_error);

/*
 * For nodes too, where values are not used, because the carrier brings them: slurmstepd warns about each option that
 * srun sends along and no plugin there has registered.
 */
void submit_register_options(spank_t spank);

/* All options are known: settles the job's settings and sends them on, or ends the program with one line. */
void submit_post_opt(spank_t spank);

/* srun only: the step exists, its tasks don't. */
void submit_step_created(spank_t spank);

/* --- node.c --- */

/*
 * Reads the step's settings from its environment, as hostile text, and puts the site's locks over them.  True: the step
 * is a synctrain step and JOB is filled.  False: it is not, or must not be; *REFUSAL is then NULL or the line for the user.
 */
bool node_settings(spank_t spank, const struct opt_site *site, const char *site_error, struct opt_job *job, const char **refusal);

/* --- task.c --- */

/* Takes what srun sent along for the plugin out of the task's environment. ADDRESS: the first node's, "" when not sent. */
#define TASK_ADDRESS_BYTES 256
void task_take_carriers(spank_t spank, char address[TASK_ADDRESS_BYTES]);

/* Sets the environment of one task. */
void task_environment(spank_t spank, const struct opt_site *site, const struct opt_job *job, const char *address);

/* Shows the refusal of the step once, from its first task. */
void task_refusal(spank_t spank, const char *refusal);

#endif
