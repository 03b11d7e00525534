/*
 * sbatch, salloc and srun, as the user.  Options come in one by one, the job's settings are settled when all are known,
 * and leave in one environment variable, OPT_CARRIER: the batch script inherits it, and so each srun in it.
 *
 * SPANK's own way of forwarding options is switched off: it would hand every sbatch typed inside a job the options of
 * that job, and would have each srun read the profile again, which may have changed since.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <slurm/slurm.h>

#include "marks.h"
#include "plugin.h"
#include "profile_reader.h"
#include "srun_args.h"

#ifndef SYNCTRAIN_LIBEXECDIR
#define SYNCTRAIN_LIBEXECDIR "/usr/local/libexec/synctrain"
#endif
#ifndef SYNCTRAIN_SLURM_PLUGINDIR
#define SYNCTRAIN_SLURM_PLUGINDIR "/usr/lib/x86_64-linux-gnu/slurm-wlm"
#endif

extern char **environ;

#define OPTION_ON OPT_COUNT           /* --synctrain itself, after the keys */
#define INTERACTIVE_STEP "4294967290" /* SLURM_INTERACTIVE_STEP, as SLURM_STEP_ID shows it */

static const struct opt_site *site;
static const char *site_error;

static bool asked;                        /* an option of ours was given */
static struct opt_layer explicit_options; /* by #SBATCH lines and the command line; Slurm calls back for the latter last */
static char profile_file[OPT_PATH_BYTES]; /* "" : none */
static bool inherited;                    /* srun in a synctrain job: */
static struct opt_job job_settings;       /* what the job was submitted with */
static bool on;

static enum { MPI_UNDECIDED, MPI_USERS, MPI_OURS, MPI_MISSING } mpi;

/* --- options --- */

static int take_option(int key, const char *text, int remote)
{
	char error[OPT_ERROR_BYTES];

	if (remote) /* nodes read the carrier instead */
		return 0;
	if (site_error) {
		slurm_error("synctrain: switched off: %s", site_error);
		return -1;
	}
	asked = true;
	if (key == OPTION_ON) {
		/* Slurm shows a missing value as any of these. */
		if (!text || !*text || !strcmp(text, "(null)"))
			return 0;
		if (strlen(text) >= sizeof profile_file) {
			slurm_error("synctrain: --synctrain: seen a path of %zu bytes, expected at most %zu", strlen(text),
				    sizeof profile_file - 1);
			return -1;
		}
		strcpy(profile_file, text);
		return 0;
	}
	if (key < 0 || key >= OPT_COUNT)
		return -1;
	if (!opt_parse((enum opt_key)key, text ? text : "", explicit_options.value[key], error)) {
		slurm_error("synctrain: --%s: %s", opt_table[key].option, error);
		return -1;
	}
	explicit_options.given[key] = true;
	return 0;
}

void submit_register_options(spank_t spank)
{
	struct spank_option option = {"synctrain", "[FILE]",
				      "train synchronously: site defaults, or the JSON profile FILE; any --synctrain option switches it on",
				      2, OPTION_ON, take_option};

	spank_option_register(spank, &option);
	for (int key = 0; key < OPT_COUNT; key++) {
		option = (struct spank_option){(char *)opt_table[key].option, (char *)opt_table[key].arginfo, (char *)opt_table[key].usage,
					       1, key, take_option};
		spank_option_register(spank, &option);
	}
}

/* --- what an outer job left behind --- */

static void forget_variables(const char *prefix)
{
	size_t length = strlen(prefix);

	for (size_t i = 0; environ[i];) {
		char name[256];
		size_t name_length = strcspn(environ[i], "=");
		if (strncmp(environ[i], prefix, length) != 0 || name_length >= sizeof name) {
			i++;
			continue;
		}
		memcpy(name, environ[i], name_length);
		name[name_length] = 0;
		unsetenv(name); /* the entries behind it move up */
	}
}

static void forget_raw_options(spank_t spank)
{
	forget_variables("SLURM_SPANK__SLURM_SPANK_OPTION_synctrain_");
	forget_variables("_SLURM_SPANK_OPTION_synctrain_");
	for (int key = 0; key <= OPT_COUNT; key++) {
		char name[96] = "_SLURM_SPANK_OPTION_synctrain_";
		strcat(name, key == OPTION_ON ? "synctrain" : opt_table[key].option);
		for (char *c = name; *c; c++)
			if (*c == '-')
				*c = '_';
		spank_job_control_unsetenv(spank, name);
	}
}

/* --- PMIx --- */

static bool directory_has_mpi(const char *directory, size_t length)
{
	char path[OPT_PATH_BYTES];
	int n = snprintf(path, sizeof path, "%.*s/mpi_%s.so", (int)length, directory, site->mpi);

	return n > 0 && (size_t)n < sizeof path && access(path, F_OK) == 0;
}

/*
 * Is the site's MPI plugin there?  Slurm does not tell a plugin its PluginDir without reading slurm.conf again; its library
 * lies in the built-in one, and this plugin in one that the admin chose.
 */
static bool mpi_plugin_exists(void)
{
	const void *const neighbours[] = {(const void *)slurm_error, (const void *)mpi_plugin_exists};

	for (size_t i = 0; i < sizeof neighbours / sizeof *neighbours; i++) {
		Dl_info info;
		const char *slash;
		if (dladdr(neighbours[i], &info) && info.dli_fname && (slash = strrchr(info.dli_fname, '/')) &&
		    directory_has_mpi(info.dli_fname, (size_t)(slash - info.dli_fname)))
			return true;
	}
	return directory_has_mpi(SYNCTRAIN_SLURM_PLUGINDIR, strlen(SYNCTRAIN_SLURM_PLUGINDIR));
}

/*
 * Did the user choose the MPI type?  In the shell of salloc's interactive step the variable is "none", left there by Slurm
 * itself, and would switch PMIx off for each srun typed in it.
 */
static bool user_has_mpi(void)
{
	const char *type = getenv("SLURM_MPI_TYPE"), *step = getenv("SLURM_STEP_ID");

	return type && !(!strcmp(type, "none") && step && !strcmp(step, INTERACTIVE_STEP));
}

/*
 * srun looks at SLURM_MPI_TYPE before it looks at its options, so the type has to be set before ours are known: hence
 * the look at the command line.
 */
static void choose_mpi(void)
{
	struct srun_args args;

	srun_args_read(&args);
	if (!args.synctrain && !inherited)
		return;
	if (args.mpi || args.interactive || user_has_mpi())
		mpi = MPI_USERS;
	else if (!mpi_plugin_exists())
		mpi = MPI_MISSING;
	else if (setenv("SLURM_MPI_TYPE", site->mpi, 1) == 0)
		mpi = MPI_OURS;
}

/* --- Slurm's calls --- */

static bool is_srun(void)
{
	return spank_context() == S_CTX_LOCAL;
}

static bool in_job(void)
{
	return getenv("SLURM_JOB_ID") || getenv("SLURM_JOBID");
}

static void inherit(void)
{
	const char *carrier = getenv(OPT_CARRIER);
	char error[OPT_ERROR_BYTES];

	/* sbatch and salloc make a new job, which has not asked; so does srun outside a job. */
	if (!carrier || !is_srun() || !in_job())
		return;
	if (site_error)
		slurm_error("synctrain: switched off: %s", site_error);
	else if (!opt_carrier_parse(carrier, &job_settings, error))
		slurm_error("synctrain: %s: %s: ignored", OPT_CARRIER, error);
	else
		inherited = true;
}

void submit_init(spank_t spank, const struct opt_site *the_site, const char *the_site_error)
{
	site = the_site;
	site_error = the_site_error;
	submit_register_options(spank);
	inherit();
	if (!inherited)
		unsetenv(OPT_CARRIER);
	spank_job_control_unsetenv(spank, "SYNCTRAIN");
	forget_raw_options(spank);
	unsetenv(MASTER_CARRIER);
	unsetenv(MPI_CARRIER);
	marks_forget();
	if (is_srun() && !site_error)
		choose_mpi();
}

/*
 * Ends sbatch, salloc or srun before anything is queued.  Returning an error would not: Slurm ignores it from a plugin that
 * is loaded as optional, as this one should be.
 */
static _Noreturn void refuse(const char *what, const char *error)
{
	slurm_error("synctrain: %s%s%s", what, *error ? ": " : "", error);
	exit(EXIT_FAILURE);
}

static void settle(struct opt_job *job)
{
	struct opt_layer from_job, from_profile;
	const struct opt_layer *layers[3];
	const char *overridden[OPT_COUNT];
	char error[OPT_ERROR_BYTES];
	size_t count = 0;
	bool own_report = explicit_options.given[OPT_REPORT];

	if (inherited) {
		for (int key = 0; key < OPT_COUNT; key++) {
			from_job.given[key] = true;
			memcpy(from_job.value[key], job_settings.value[key], OPT_VALUE_BYTES);
		}
		layers[count++] = &from_job;
	}
	if (*profile_file) {
		if (!profile_read(*site->helpers ? site->helpers : SYNCTRAIN_LIBEXECDIR, profile_file, &from_profile, error))
			refuse("--synctrain", error);
		own_report |= from_profile.given[OPT_REPORT];
		layers[count++] = &from_profile;
	}
	layers[count++] = &explicit_options;
	opt_resolve(site, layers, count, job, overridden);
	for (int key = 0; key < OPT_COUNT; key++) {
		char shown[80], used[80];
		if (!overridden[key])
			continue;
		opt_show(*overridden[key] ? overridden[key] : "the default", shown, sizeof shown);
		opt_show(*job->value[key] ? job->value[key] : "the default", used, sizeof used);
		slurm_info("synctrain: --%s: '%s' asked for, '%s' used: the site locked it", opt_table[key].option, shown, used);
	}
	/* A relative report directory lies under the directory of whoever named it. */
	if (inherited && !own_report)
		memcpy(job->directory, job_settings.directory, sizeof job->directory);
	else if (!getcwd(job->directory, sizeof job->directory))
		refuse("the working directory", "can't be read, or its path is too long");
}

void submit_post_opt(spank_t spank)
{
	static int components;
	struct opt_job job, check;
	char carrier[OPT_CARRIER_BYTES], error[OPT_ERROR_BYTES];

	components++;
	on = asked || inherited;
	if (!on)
		return;
	/* Slurm calls once for each component of a heterogeneous job or step. */
	if (components > 1 || (is_srun() && in_job() && getenv("SLURM_HET_SIZE")))
		refuse("heterogeneous jobs and steps are not supported: seen several components, expected one", "");
	settle(&job);
	if (!opt_carrier_print(&job, carrier))
		refuse("the report directory", "its path is too long");
	if (!opt_carrier_parse(carrier, &check, error)) /* a working directory with control characters in its name */
		refuse("the report directory", error);
	forget_raw_options(spank);
	if (is_srun() ? setenv(OPT_CARRIER, carrier, 1) != 0 : spank_job_control_setenv(spank, "SYNCTRAIN", carrier, 1) != ESPANK_SUCCESS)
		refuse("the settings can't be sent to the nodes", "");
	/* slurmstepd still needs the type from the step's environment; task.c takes it out when it sees this mark. */
	if (mpi == MPI_OURS)
		setenv(MPI_CARRIER, "1", 1);
	if (mpi == MPI_MISSING)
		slurm_info("synctrain: Slurm's plugin mpi_%s is not installed here: ranks start without it", site->mpi);
	else if (is_srun() && mpi == MPI_UNDECIDED)
		slurm_info("synctrain: can't tell whether --mpi was given, behind an option of another plugin: if it was not, add --mpi=%s",
			   site->mpi);
}

void submit_step_created(spank_t spank)
{
	slurm_step_layout_t *layout = NULL;
	node_info_msg_t *nodes = NULL;
	slurm_step_id_t step = {.step_het_comp = NO_VAL};
	hostlist_t hosts = NULL;
	char *first = NULL;

	if (!on || !is_srun() || spank_get_item(spank, S_JOB_ID, &step.job_id) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_STEPID, &step.step_id) != ESPANK_SUCCESS || step.step_id >= STEP_SPECIAL)
		return;
	/*
	 * Two questions to the controller that has just created the step.  On failure the nodes take the node's name, which
	 * is its address on most clusters.
	 */
	layout = slurm_job_step_layout_get(&step);
	if (layout && layout->node_list && (hosts = slurm_hostlist_create(layout->node_list)) && (first = slurm_hostlist_shift(hosts)) &&
	    slurm_load_node_single(&nodes, first, 0) == SLURM_SUCCESS && nodes && nodes->record_count == 1 && nodes->node_array[0].node_addr)
		setenv(MASTER_CARRIER, nodes->node_array[0].node_addr, 1);
	if (nodes)
		slurm_free_node_info_msg(nodes);
	free(first);
	if (hosts)
		slurm_hostlist_destroy(hosts);
	if (layout)
		slurm_job_step_layout_free(layout);
}
