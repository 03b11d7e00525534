/* A new communicator of a failed one's survivors; how they find each other is control_shrink.h's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap.h"
#include "comm_internal.h"
#include "control_shrink.h"

/* Messages of the last attempt that failed say why there is no communicator, when time is over. */
static enum st_status attempt(struct comm *comm, struct control_shrink *shrink, struct comm **made)
{
	struct comm_options options = comm->options;
	struct bootstrap *bootstrap;
	const uint32_t *ranks;
	char why[1024];

	*made = NULL;
	ST_TRY(control_shrink_attempt(shrink, &bootstrap, &ranks));
	uint32_t *parents = malloc(bootstrap->size * sizeof *parents);
	if (!parents)
		return st_fail(ST_ERR_NOMEM, "communicator: out of memory");
	memcpy(parents, ranks, bootstrap->size * sizeof *parents);
	/* The text that was given with the options is the caller's, and may be gone. */
	options.interface = control_interface(comm->control);
	int64_t left_ms = control_shrink_left_ms(shrink);
	if (options.startup_timeout_ms > left_ms)
		options.startup_timeout_ms = left_ms ? left_ms : 1;
	enum st_status status = comm_create_over(bootstrap, &options, made);
	if (status == ST_OK) {
		(*made)->options.startup_timeout_ms = comm->options.startup_timeout_ms;
		status = control_commit((*made)->control, options.startup_timeout_ms);
	}
	if (status == ST_OK) {
		(*made)->parent_ranks = parents;
		return ST_OK;
	}
	snprintf(why, sizeof why, "%s", st_message());
	free(parents);
	comm_free(*made);
	*made = NULL;
	/* Of whatever kind it was: the others have heard of it, and try again. */
	return st_fail_copy(ST_PENDING, why);
}

enum st_status comm_shrink(struct comm *comm, int64_t timeout_ms, struct comm **shrunk)
{
	struct control_shrink *shrink;
	struct comm *made = NULL;
	char why[1024] = "";
	enum st_status status;

	if (timeout_ms <= 0)
		return st_fail(ST_ERR_USAGE, "comm_shrink: seen %lld ms, expected more than 0", (long long)timeout_ms);
	if (control_group_context(comm->context))
		return st_fail(ST_ERR_USAGE, "comm_shrink: communicator %s was split off, expected the one that it comes from", comm_name(comm));
	if (control_await_failure(comm->control) == ST_OK)
		return st_fail(ST_ERR_USAGE, "comm_shrink: the communicator has not failed");
	ST_TRY(control_shrink_begin(comm->control, comm->generation, timeout_ms, &shrink));
	do {
		status = attempt(comm, shrink, &made);
		if (status == ST_PENDING)
			snprintf(why, sizeof why, "%s", st_message());
	} while (status == ST_PENDING && control_shrink_left_ms(shrink));
	control_shrink_end(shrink, status == ST_OK);
	if (status == ST_PENDING)
		return st_fail(ST_ERR_UNAVAILABLE, "comm_shrink: no attempt succeeded within %lld ms; the last: %s", (long long)timeout_ms, why);
	ST_TRY(status);
	control_hold(comm->control);
	made->parent = comm->control;
	made->generation = comm->generation + 1;
	*shrunk = made;
	return ST_OK;
}

uint32_t comm_shrunk_from(const struct comm *comm, uint32_t rank)
{
	return comm->parent_ranks && rank < comm->size ? comm->parent_ranks[rank] : UINT32_MAX;
}
