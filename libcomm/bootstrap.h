/*
 * How ranks that know nothing of each other come to share one record each.
 *
 * Used once at start-up; afterwards everything goes over the control plane (control.h).  Three kinds: PMIx (srun --mpi=pmix,
 * mpirun, prterun, `synctrain run`), single (no server: one rank), threads (ranks as threads of one process, for tests).
 */
#ifndef SYNCTRAIN_LIBCOMM_BOOTSTRAP_H
#define SYNCTRAIN_LIBCOMM_BOOTSTRAP_H

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

#ifdef __cplusplus
extern "C" {
#endif
/* Part of libcomm's interface: see comm.h. */
#pragma GCC visibility push(default)

#define BOOTSTRAP_NODE_BYTES 64
#define BOOTSTRAP_JOB_BYTES 96
#define BOOTSTRAP_ADDRESS_BYTES 128
#define BOOTSTRAP_JOB_OF_RUN "synctrain-run." /* jobs of `synctrain run` begin so */

struct bootstrap {
	uint32_t rank, size;
	char node[BOOTSTRAP_NODE_BYTES]; /* this rank's node as the launcher names it: ranks with the same name may share memory */
	char job[BOOTSTRAP_JOB_BYTES];   /* "job.step.restart", the same on all ranks, different for every launch */
	char address[BOOTSTRAP_ADDRESS_BYTES]; /* topology address of the node, "spine.leaf1.node1"; "" when unknown */

	/* All-gather of one fixed-size record: all[r * bytes ..) is rank r's. Collective; called once. ST_ERR_TIMEOUT names who is missing if known.
	 * A rank of another version may send a record of another length: it arrives cut off or filled up with zeros, for the caller to judge
	 * by its first bytes. */
	enum st_status (*exchange)(struct bootstrap *bootstrap, const void *mine, size_t bytes, int64_t timeout_ms, void *all);

	/* Leaves the launcher's service (PMIx_Finalize), so that a later death of one rank does not make it kill the step. Frees. */
	void (*finish)(struct bootstrap *bootstrap);
};

/*
 * Under a PMIx server (srun --mpi=pmix, mpirun, `synctrain run`): PMIx_Init under a deadline.  Without one: single, except that a process
 * which its launcher's environment shows to be one of several (SLURM_STEP_NUM_TASKS or SLURM_NTASKS > 1, ...) gets ST_ERR_UNAVAILABLE
 * with the way to launch it: N silent jobs of one rank each are never what was meant.
 */
enum st_status bootstrap_pmix_or_single(int64_t timeout_ms, struct bootstrap **bootstrap);

enum st_status bootstrap_single(struct bootstrap **bootstrap);

/* Ranks as threads: makes `size` bootstraps that meet in memory. nodes[r] is rank r's node name (NULL: all on "local"). */
enum st_status bootstrap_threads(uint32_t size, const char *const *nodes, struct bootstrap **bootstraps);

/* Fills bootstrap->address from Slurm's SLURM_TOPOLOGY_ADDR and SLURM_TOPOLOGY_ADDR_PATTERN; "" when absent or of an unknown shape. */
void bootstrap_topology_address(struct bootstrap *bootstrap);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
