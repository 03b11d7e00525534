/*
 * The engine runs plans over links: a resumable interpreter.
 *
 * LANES.  An operation runs in a lane, and each lane runs its operations one after the other in the order of issue, over links of its own.  Lanes take
 * turns step by step: a step that moves data is only run while no higher lane can move.  So an urgent operation overtakes large ones
 * that were issued before it, and those go on whenever the urgent one waits for somebody.
 *
 * Used by one thread, or by one at a time between engine_lock and engine_unlock.  Nothing here allocates, locks or calls the kernel while data flows between ranks that are awake, sockets excepted.
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
struct recorder;

struct engine_options {
	uint32_t rank;
	const char *host;            /* of this rank, for messages; borrowed */
	struct control *control;     /* NULL in tests: then failures stay on this rank */
	struct control_group *group; /* the communicator's part of it; the ranks of plans are its members, those of links and messages the job's */
	struct recorder *recorder;   /* NULL: none; borrowed, must outlive the engine */
	int64_t arrival_timeout_ms;
	int64_t stall_timeout_ms;    /* 0: links are trusted to say when they are dead */
	bool crowded;                /* more ranks than cores on this node: yield at once instead of spinning */
	size_t stream_bytes;         /* operations of at least so many bytes write their results past the caches */
	unsigned lanes;              /* 0: one */
	size_t fusion_bytes;         /* longest fused operation; each lane that fuses sets as much memory aside */
};

enum st_status engine_create(const struct engine_options *options, struct engine **engine);

/* Stops the helper thread, closes the links; requests that were not waited for are abandoned, and freed. */
void engine_free(struct engine *engine);

/* Gives the engine a link that carries channel `index` to and from link->ends.peer for one lane. The engine owns it. */
enum st_status engine_add_link(struct engine *engine, struct link *link, uint16_t index, unsigned lane);

/* Lane 0's link to a peer; NULL when there is none. */
const struct link *engine_link(const struct engine *engine, uint32_t peer, uint16_t index);

/* Memory that links may let local peers map (see transport.h), borrowed until it is removed, while no operation uses it. ST_ERR_NOMEM. */
enum st_status engine_add_memory(struct engine *engine, const void *address, size_t bytes, int fd);
void engine_remove_memory(struct engine *engine, const void *address);

/* A plan with its channels bound to this engine's links in one lane; may be run any number of times. */
struct engine_plan;
/* Takes the plan, also on failure. ST_ERR_INTERNAL: malformed, or a channel without link, or mapped where the link is not. */
enum st_status engine_bind(struct engine *engine, struct plan *plan, unsigned lane, struct engine_plan **bound);
const struct plan *engine_plan_of(const struct engine_plan *bound);
unsigned engine_plan_users(const struct engine_plan *bound); /* requests that still run it */
void engine_unbind(struct engine_plan *bound); /* not while it has users; NULL is fine */

/* Starts an operation behind those already issued in the plan's lane. owned: the request unbinds the plan when it is done, or at once on failure.  The
 * signature says type and operation, which must be valid ones; its sequence is filled in by the engine.  The plan's chunks must fit into
 * slots: of elements, or where it is wide (f16 and bf16 only) of f32. */
enum st_status engine_submit(struct engine *engine, struct engine_plan *bound, bool owned, const void *input, void *output,
			     struct transport_signature signature, struct comm_request **request);

/* As engine_submit, for allreduce_ordered: from one layer of the input to the next it is layer_bytes. */
enum st_status engine_submit_ordered(struct engine *engine, struct engine_plan *bound, bool owned, const void *input, size_t layer_bytes, void *output,
				     struct transport_signature signature, struct comm_request **request);

/*
 * Fusion: several all-reduces of one type and operation run as one.  A member is a request that does not run yet; it ends with the operation that it
 * becomes part of.  engine_submit_members submits one for the members, linked by engine_append_member in the order of issue: input and output are
 * gathered into memory of the lane when it starts and spread out again when it is done.  A member alone runs as it is, without detour.
 * The signature's count is what all have together, of at most fusion_bytes; its plan is in place.  On failure the members are left as they are.
 */
enum st_status engine_make_member(struct engine *engine, const void *input, void *output, size_t bytes, struct comm_request **member);
void engine_append_member(struct comm_request *last, struct comm_request *member);
enum st_status engine_submit_members(struct engine *engine, struct engine_plan *bound, bool owned, struct comm_request *members,
				     struct transport_signature signature);

/* This rank can't do what the others expect of it: ends the job with st_message() as the reason. Returns `status`. */
enum st_status engine_fail(struct engine *engine, enum st_status status);

/* The group that a request was issued in: for who refuses to wait inside a group. */
void engine_set_group(struct comm_request *request, uint64_t group);
uint64_t engine_group_of(const struct comm_request *request);

/*
 * The helper thread drives the engine whenever something is in flight and nobody who waits does.  Then every call, except engine_create and
 * engine_free, is made between engine_lock and engine_unlock, which do nothing without it.  engine_wait lets go of the lock while it waits.
 */
enum st_status engine_start_thread(struct engine *engine);
void engine_stop_thread(struct engine *engine);
void engine_lock(struct engine *engine);
void engine_unlock(struct engine *engine);

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
