/* What srun's own command line says, before srun has parsed it: program arguments that look like ours must not count. */
#ifndef SYNCTRAIN_SPANK_SRUN_ARGS_H
#define SYNCTRAIN_SPANK_SRUN_ARGS_H

#include <stdbool.h>
#include <stddef.h>

struct srun_args {
	bool synctrain;   /* an option of ours is among srun's */
	bool mpi;         /* --mpi is among srun's */
	bool interactive; /* salloc's interactive step: no tasks of ours in it */
};

/*
 * Scans BLOCK, arguments each ended by a NUL as in /proc/PID/cmdline, program name first.  Stops where srun stops: at "--"
 * or the first argument that is no option.  Stops early at an option it does not know (another plugin's, a newer
 * srun's), because whether that takes the next argument can't be told.
 */
void srun_args_scan(const char *block, size_t bytes, struct srun_args *args);

/* The same for this process. */
void srun_args_read(struct srun_args *args);

#endif
