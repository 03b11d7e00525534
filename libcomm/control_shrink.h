/*
 * Survivors of a failure find each other, and become the ranks of a new job.
 *
 * The failed control plane keeps its listeners and its service thread, which takes connections of purpose SHRINK.  Each survivor calls the lowest
 * rank that is not proven dead, its coordinator, over an authenticated connection; who finds that all lower ranks are dead or mute coordinates.  It
 * gathers those who join until all who are not proven dead are there, or a stall timeout has passed, and tells them the members.  Then the
 * coordinator makes one exchange of endpoint records, which is all that a struct bootstrap needs: control_open and comm_create_over run on top as
 * they always do, and their last decision commits: either all members have the new communicator, or the attempt is repeated.
 *
 * PROVEN DEAD is a rank whose host's kernel refuses connections to its address: its process has ended, or it has given up the failed
 * communicator without going on from it.  Silence, a cut or a stopped process prove nothing.
 *
 * NEVER TWO.  A group has more than half of the ranks that are not proven dead, or exactly half with the lowest of them.  A rank is in one group at a time, a
 * commit takes all members of it, and who has committed refuses others without looking dead to them: it keeps the failed control plane, those
 * that failed before it, and those of attempts whose commit it has entered and others may have seen through, as long as the job
 * goes on, to say LEFT_OUT.  So two groups would need a rank in common.
 *
 * BOUNDS.  A coordinator that stops, or has not called shrink, is given up after a stall timeout without BEAT, and tried again in the next round; a member
 * that dies or stops ends the attempt.  All of it ends with the deadline.  The star costs the coordinator one connection for each survivor and
 * O(ranks) probes, which is meant for thousands of ranks, not for 100,000.
 */
#ifndef SYNCTRAIN_LIBCOMM_CONTROL_SHRINK_H
#define SYNCTRAIN_LIBCOMM_CONTROL_SHRINK_H

#include "bootstrap.h"
#include "control.h"

struct control_shrink;

/* Begins for a control plane that has failed; `generation`: how many times its job was shrunk before. */
enum st_status control_shrink_begin(struct control *control, unsigned generation, int64_t timeout_ms, struct control_shrink **shrink);

/* One more attempt: blocks until there is a group.  *bootstrap is good for one control_open and belongs to shrink; *ranks (bootstrap->size): which ranks
 * of the failed job they were.  ST_ERR_ABORTED: left out; ST_ERR_UNAVAILABLE: too few until the deadline; ST_ERR_NOMEM and ST_ERR_SYSTEM of this rank. */
enum st_status control_shrink_attempt(struct control_shrink *shrink, struct bootstrap **bootstrap, const uint32_t **ranks);

/* How long there is, in ms. */
int64_t control_shrink_left_ms(struct control_shrink *shrink);

/* Charges what the caller did with the bootstrap since `began_ns` (st_now_ns), which was bounded by most_ms of running time: a deadline charges a single
 * look for 2 s only. */
void control_shrink_charge(struct control_shrink *shrink, int64_t began_ns, int64_t most_ms);

/* NULL is fine. */
void control_shrink_end(struct control_shrink *shrink);

/* This rank has gone on from this failed control plane: from now on who calls is left out. */
void control_leave_out(struct control *control);

#endif
