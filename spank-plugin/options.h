/*
 * The options of the plugin: their table, their values in canonical form, the site's settings, and the text in which a
 * job's settings travel from the submit side to the nodes.
 *
 * Shared by every Slurm context and by the profile helper, so it knows neither Slurm nor any library but libc.  Nothing
 * here opens a file.  Every text that is parsed here is hostile: it comes from a command line, a file or an environment.
 */
#ifndef SYNCTRAIN_SPANK_OPTIONS_H
#define SYNCTRAIN_SPANK_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum opt_key { OPT_ALGORITHM, OPT_TRANSPORT, OPT_REPORT, OPT_COUNT };

#define OPT_VALUE_BYTES 1024 /* longest canonical value, with its NUL */
#define OPT_PATH_BYTES 4096
#define OPT_ERROR_BYTES 512
#define OPT_CARRIER_BYTES 16384
#define OPT_MPI_BYTES 32
#define OPT_NO_TASK 0xfffffffeu /* what Slurm gives as array index outside a job array (NO_VAL) */

/* Where a job's settings travel: SLURM_* survives --export=NONE, and SLURM_SPANK_* is what SPANK itself forwards. */
#define OPT_CARRIER "SLURM_SPANK_SYNCTRAIN"

struct opt_entry {
	const char *key;     /* in profiles and plugstack.conf: "algorithm" */
	const char *option;  /* on command lines, without the dashes */
	const char *arginfo; /* shown after = in --help */
	const char *usage;   /* shown in --help */
	const char *initial; /* the value when nobody says anything */
};
extern const struct opt_entry opt_table[OPT_COUNT];

/* One source of values. given[k] false: this source says nothing about key k. */
struct opt_layer {
	bool given[OPT_COUNT];
	char value[OPT_COUNT][OPT_VALUE_BYTES];
};

/* What the site's plugstack.conf line says. */
struct opt_site {
	struct opt_layer defaults;
	bool locked[OPT_COUNT];
	char mpi[OPT_MPI_BYTES]; /* name of the Slurm MPI plugin to select, "pmix" unless given */
	uint16_t port_low, port_high;
	char helpers[OPT_PATH_BYTES]; /* "" : the compiled-in directory */
};

/* A job's settings in canonical form. */
struct opt_job {
	char value[OPT_COUNT][OPT_VALUE_BYTES];
	char directory[OPT_PATH_BYTES]; /* absolute; a relative report directory starts here */
};

/* The key whose profile name is TEXT (LENGTH bytes), or OPT_COUNT. */
enum opt_key opt_find(const char *text, size_t length);

/*
 * Checks one value and writes it in canonical form (order of transports, for instance). False: ERROR holds
 * "seen '...', expected ..." with everything unprintable replaced, and VALUE is unspecified.
 */
bool opt_parse(enum opt_key key, const char *text, char value[OPT_VALUE_BYTES], char error[OPT_ERROR_BYTES]);

/* Copies hostile text for showing: unprintable bytes become '?', what is too long ends in "...". */
void opt_show(const char *text, char *shown, size_t bytes);

/*
 * Reads the arguments of the plugstack.conf line:
 *   algorithm= transport= report= lock=KEY,KEY mpi=NAME port-range=LOW-HIGH helpers=/DIR
 * False: ERROR holds one line, and the plugin must not act.
 */
bool opt_site_parse(int argc, char *const *argv, struct opt_site *site, char error[OPT_ERROR_BYTES]);

/*
 * Settles a job's settings. LAYERS from weakest to strongest lie over the site's defaults; the site's locked keys lie
 * over all. overridden[k], when not NULL, points to the value that a lock replaced by a different one, else NULL.
 * DIRECTORY of the job is left alone.
 */
void opt_resolve(const struct opt_site *site, const struct opt_layer *const *layers, size_t count, struct opt_job *job,
		 const char *overridden[OPT_COUNT]);

/* Puts the site's locked keys over settings that came from outside. */
void opt_apply_locks(const struct opt_site *site, struct opt_job *job);

/* Settings as one line of printable ASCII, and back. False when it does not fit, or is not what opt_carrier_print writes. */
bool opt_carrier_print(const struct opt_job *job, char text[OPT_CARRIER_BYTES]);
bool opt_carrier_parse(const char *text, struct opt_job *job, char error[OPT_ERROR_BYTES]);

/* What the report pattern is expanded with. */
struct opt_ids {
	uint32_t job, array_job, array_task; /* array_task OPT_NO_TASK: not an array job */
	const char *name, *user;             /* hostile; may be NULL */
};

/*
 * The absolute report directory of a job: %j job, %A array job (the job outside arrays), %a array index (0 outside arrays), %x
 * job name, %u user, %% a percent sign. False when the path gets longer than OPT_PATH_BYTES - 1.
 */
bool opt_report_path(const struct opt_job *job, const struct opt_ids *ids, char path[OPT_PATH_BYTES]);

#endif
