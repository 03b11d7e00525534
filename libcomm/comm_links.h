/* The links of a communicator: those that the plans of its algorithms run over, opened when it is created, and those that ordered sums of so many leaves
 * need beyond them, opened when their number is known. */
#ifndef SYNCTRAIN_LIBCOMM_COMM_LINKS_H
#define SYNCTRAIN_LIBCOMM_COMM_LINKS_H

#include "control.h"
#include "engine.h"
#include "plan_choose.h"

struct comm_links_options {
	struct control_group *group;
	struct engine *engine;
	unsigned algorithms; /* mask of 1 << enum plan_algorithm, equal on all ranks */
	uint32_t leaves;     /* 0: links for the algorithms; else for ordered sums of so many leaves; equal on all ranks */
	unsigned transports; /* mask of enum comm_transport; likewise */
	struct plan_shape shape; /* rank, size, order, ...: what a plan's channels depend on; ranks are the communicator's */
	unsigned lanes; /* equal on all ranks, as are the two below */
	unsigned slots;
	size_t chunk_bytes;
	int64_t timeout_ms;
};

/* Collective. Opens every link that a plan of any of the algorithms, for any collective, has channels for, once for each lane, unless the engine
 * has it already. Blocks. */
enum st_status comm_links_open(const struct comm_links_options *options);

/* Collective among the group's members, before any of them opens links. ST_ERR_NOMEM, the same on all, when the shared memory that the ranks of a
 * node need together is more than their memory limit leaves them: filling it up one segment after the other would have the kernel kill
 * a rank. */
enum st_status comm_links_room(const struct comm_links_options *options);

#endif
