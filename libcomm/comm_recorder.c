/* A communicator's flight recorder: what it is opened with, and what is said of it at the end. */
#include <stdio.h>
#include <string.h>

#include "bootstrap.h"
#include "comm_internal.h"
#include "common/log.h"
#include "recorder.h"

void comm_recorder_open(struct comm *comm)
{
	const uint64_t context = control_group_context(comm->context);
	const struct recorder_options options = {
		.job = comm_job(comm),
		.host = comm_host(comm, comm->rank),
		.rank = comm->rank,
		.size = comm->size,
		.context = context,
		.world_rank = comm_world_rank(comm, comm->rank),
		.world_size = control_world(comm->control)->size,
		.world_ranks = control_group_ranks(comm->context),
		.stall_timeout_ms = comm->options.stall_timeout_ms,
		.arrival_timeout_ms = comm->options.arrival_timeout_ms,
		.helper = comm->options.progress_thread,
		.prunes = !context && comm_local_rank(comm) == 0,
	};

	if (comm->size > 1)
		comm->recorder = recorder_open(&options);
}

void comm_recorder_judge(struct comm *comm)
{
	if (!comm->recorder)
		return;
	/* The engine may not have been asked since. */
	enum st_status status = control_check(comm->control);
	if (status != ST_OK)
		recorder_fail(comm->recorder, st_message());
	/* `synctrain run` says it once for all, also when no rank is left to say it. */
	if (status != ST_OK && !control_group_context(comm->context) && comm_local_rank(comm) == 0 &&
	    strncmp(comm_job(comm), BOOTSTRAP_JOB_OF_RUN, strlen(BOOTSTRAP_JOB_OF_RUN)))
		st_log(ST_LOG_WARN, "flight recorder: %s; `synctrain report --hang` reads it", recorder_directory(comm->recorder));
}
