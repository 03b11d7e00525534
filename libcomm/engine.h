/*
 * The engine runs plans over links: a resumable interpreter, one operation after the other in the order of issue.
 *
 * Used by one thread.  Nothing here allocates, locks or calls the kernel while data flows between ranks that are awake, sockets excepted.
 */
#ifndef SYNCTRAIN_LIBCOMM_ENGINE_H
#define SYNCTRAIN_LIBCOMM_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm.h"
#include "common/status.h"
#include "plan.h"
#include "transport.h"

struct control;
struct engine;

struct engine_options {
	uint32_t rank;
	const char *host;            /* of this rank, for messages; borrowed */
	struct control *control;     /* NULL in tests: then failures stay on this rank */
	struct control_group *group; /* the communicator's part of it; the ranks of plans are its members, those of links and messages the job's */
	int64_t arrival_timeout_ms;
	bool crowded;                /* more ranks than cores on this node: yield at once instead of spinning */
	size_t stream_bytes;         /* operations of at least so many bytes write their results past the caches */
};

enum st_status engine_create(const struct engine_options *options, struct engine **engine);

/* Closes the links; requests that are not done are abandoned, and freed. */
void engine_free(struct engine *engine);

/* Gives the engine a link that carries channel `index` to and from link->ends.peer. The engine owns it. */
enum st_status engine_add_link(struct engine *engine, struct link *link, uint16_t index);

/* The link to a peer; NULL when there is none. */
const struct link *engine_link(const struct engine *engine, uint32_t peer, uint16_t index);

/* A plan with its channels bound to this engine's links; may be run any number of times. */
struct engine_plan;
/* Takes the plan, also on failure. ST_ERR_INTERNAL: malformed, or a channel without link, or mapped where the link is not. */
enum st_status engine_bind(struct engine *engine, struct plan *plan, struct engine_plan **bound);
const struct plan *engine_plan_of(const struct engine_plan *bound);
unsigned engine_plan_users(const struct engine_plan *bound); /* requests that still run it */
void engine_unbind(struct engine_plan *bound); /* not while it has users; NULL is fine */

/* Starts an operation behind those already issued. owned: the request unbinds the plan when it is done, or at once on failure.  The
 * signature says type and operation, which must be valid ones; its sequence is filled in by the engine.  The plan's chunks must fit into
 * slots: of elements, or where it is wide (f16 and bf16 only) of f32. */
enum st_status engine_submit(struct engine *engine, struct engine_plan *bound, bool owned, const void *input, void *output,
			     struct transport_signature signature, struct comm_request **request);

/* As in comm.h. */
enum st_status engine_progress(struct engine *engine);
enum st_status engine_test(struct engine *engine, struct comm_request **request);
enum st_status engine_wait(struct engine *engine, struct comm_request **request);

/* Operations are in flight. */
bool engine_busy(const struct engine *engine);

/* The engine failed by itself or by control's verdict: status (ST_OK: it did not) and message. */
enum st_status engine_failure(const struct engine *engine);

void engine_counters(const struct engine *engine, struct comm_counters *counters);

#endif
