/* A new communicator of a failed one's survivors; how they find each other is control_shrink.h's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap.h"
#include "common/clock.h"
#include "comm_internal.h"
#include "control_shrink.h"

/* The failed control planes that the new communicator keeps. */
struct past {
	struct control **planes;
	size_t count;
};

static enum st_status keep(struct past *past, struct control *control)
{
	struct control **planes = realloc(past->planes, (past->count + 1) * sizeof *planes);

	if (!planes)
		return st_fail(ST_ERR_NOMEM, "communicator: out of memory");
	past->planes = planes;
	past->planes[past->count++] = control;
	control_hold(control);
	return ST_OK;
}

static void forget(struct past *past)
{
	for (size_t i = 0; i < past->count; i++)
		control_close(past->planes[i]);
	free(past->planes);
	*past = (struct past){0};
}

/* Either all members have it, or none; but who heard too little to be sure must not look dead to one who heard more. */
static enum st_status commit(struct comm *made, struct past *past, int64_t timeout_ms)
{
	ST_TRY(keep(past, made->control));
	enum st_status status = control_commit(made->control, timeout_ms);
	if (status == ST_OK)
		control_close(past->planes[--past->count]);
	else
		comm_abort(made, "this rank gave up the attempt to go on with these survivors"); /* the plane stays, so it must not seem to be in use */
	return status;
}

/* Messages of the last attempt that failed say why there is no communicator, when time is over. */
static enum st_status attempt(struct comm *comm, struct control_shrink *shrink, struct past *past, struct comm **made)
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
	int64_t began = st_now_ns();
	enum st_status status = comm_create_over(bootstrap, &options, made);
	control_shrink_charge(shrink, began, options.startup_timeout_ms);
	if (status == ST_OK) {
		(*made)->options.startup_timeout_ms = comm->options.startup_timeout_ms;
		left_ms = control_shrink_left_ms(shrink);
		began = st_now_ns();
		status = commit(*made, past, left_ms < options.startup_timeout_ms ? left_ms : options.startup_timeout_ms);
		control_shrink_charge(shrink, began, options.startup_timeout_ms);
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
	struct past past = {0};
	char why[1024] = "";
	enum st_status status;

	if (timeout_ms <= 0)
		return st_fail(ST_ERR_USAGE, "comm_shrink: seen %lld ms, expected more than 0", (long long)timeout_ms);
	if (control_group_context(comm->context))
		return st_fail(ST_ERR_USAGE, "comm_shrink: communicator %s was split off, expected the one that it comes from", comm_name(comm));
	if (control_await_failure(comm->control) == ST_OK)
		return st_fail(ST_ERR_USAGE, "comm_shrink: the communicator has not failed");
	ST_TRY(control_shrink_begin(comm->control, comm->generation, timeout_ms, &shrink));
	status = keep(&past, comm->control);
	for (size_t i = 0; status == ST_OK && i < comm->past_count; i++)
		status = keep(&past, comm->past[i]);
	while (status == ST_OK || status == ST_PENDING) {
		status = attempt(comm, shrink, &past, &made);
		if (status == ST_PENDING)
			snprintf(why, sizeof why, "%s", st_message());
		if (status != ST_PENDING || !control_shrink_left_ms(shrink))
			break;
	}
	control_shrink_end(shrink);
	if (status == ST_PENDING)
		status = st_fail(ST_ERR_UNAVAILABLE, "comm_shrink: no attempt succeeded within %lld ms; the last: %s", (long long)timeout_ms, why);
	if (status != ST_OK) {
		snprintf(why, sizeof why, "%s", st_message());
		forget(&past);
		return st_fail_copy(status, why);
	}
	for (size_t i = 0; i < past.count; i++)
		control_leave_out(past.planes[i]);
	made->past = past.planes;
	made->past_count = past.count;
	made->generation = comm->generation + 1;
	*shrunk = made;
	return ST_OK;
}

uint32_t comm_shrunk_from(const struct comm *comm, uint32_t rank)
{
	return comm->parent_ranks && rank < comm->size ? comm->parent_ranks[rank] : UINT32_MAX;
}
