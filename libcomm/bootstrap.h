/*
 * How ranks that know nothing of each other come to share one record each.
 *
 * Used once at start-up; afterwards everything goes over the control plane (control.h).  Three kinds: PMIx (srun --mpi=pmix,
 * mpirun, prterun, `synctrain run`), single (no server: one rank), threads (ranks as threads of one process, for tests).
 */
#ifndef SYNCTRAIN_LIBCOMM_BOOTSTRAP_H
#define SYNCTRAIN_LIBCOMM_BOOTSTRAP_H

#include <stdint.h>

#include "common/status.h"

#define BOOTSTRAP_NODE_BYTES 64
#define BOOTSTRAP_JOB_BYTES 96

struct bootstrap {
	uint32_t rank, size;
	char node[BOOTSTRAP_NODE_BYTES]; /* this rank's node as the launcher names it: ranks with the same name may share memory */
	char job[BOOTSTRAP_JOB_BYTES];   /* "job.step.restart", the same on all ranks, different for every launch */

	/* All-gather of one fixed-size record: all[r * bytes ..) is rank r's. Collective; called once. ST_ERR_TIMEOUT names who is missing if known. */
	enum st_status (*exchange)(struct bootstrap *bootstrap, const void *mine, size_t bytes, int64_t timeout_ms, void *all);

	/* Leaves the launcher's service (PMIx_Finalize), so that a later death of one rank does not make it kill the step. Frees. */
	void (*finish)(struct bootstrap *bootstrap);
};

/* Under a PMIx server: PMIx_Init under a deadline. Without one: single. */
enum st_status bootstrap_pmix_or_single(int64_t timeout_ms, struct bootstrap **bootstrap);

enum st_status bootstrap_single(struct bootstrap **bootstrap);

/* Ranks as threads: makes `size` bootstraps that meet in memory. nodes[r] is rank r's node name (NULL: all on "local"). */
enum st_status bootstrap_threads(uint32_t size, const char *const *nodes, struct bootstrap **bootstraps);

#endif
