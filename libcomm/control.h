/*
 * The control plane: who is in the job, who is alive, who failed, and the decisions that must be equal everywhere.
 *
 * Each rank listens on an abstract Unix socket and on one TCP port of the chosen interface.  The lowest rank of each node is
 * its leader; every other rank of the node holds a Unix connection to it, and the leaders form a TCP tree (arity 8, by node
 * order).  One thread per rank serves listening, handshakes, heartbeats and aborts, so that a rank deep in a matrix product
 * still answers.  Data connections are made by the same listeners and handed over.
 *
 * SECRET.  Rank 0 draws 32 random bytes per launch; they travel in the bootstrap record (PMIx) only.  Every connection starts
 * with a mutual challenge-response: HMAC-SHA-256 over protocol version, both nonces, job, both ranks, purpose, direction.  Unix peers
 * must also have this process's uid.  This keeps other users out; it does not protect against root or against reading the wire.
 * A connection that is slow, wrong or garbled is closed and counted, and holds up nobody: at most 64 unproven ones at a time,
 * 5 s each, oldest dropped first.
 *
 * FAILURE.  The first detector sends ABORT{culprit, host, operation, how, when} up and down the tree before it closes anything; a
 * rank tells its callers of it 300 ms after it first heard of a verdict, and until then the stronger of two replaces the other, so that ranks
 * which fail at the same time, or are seen to fail by several, give one verdict everywhere.  End of file on a Unix connection without ABORT or GOODBYE
 * means that its rank died: its leader is the detector.  A neighbour on another node that hangs up or falls silent is looked into first,
 * with the help of a third node (control_evidence.c): a cut between two living ranks names the link.  Evidence ranks: process exit > host
 * unreachable by two hosts > link.  So a rank whose data link breaks first asks control_suspect(), which waits up to 500 ms for a better verdict.
 *
 * LEAVING.  control_close says GOODBYE, which reaches everybody like an ABORT but ends nothing: only who still needs the leaver fails,
 * with CONTROL_HOW_LEFT.  Neighbours that it leaves without a parent find another (control_rejoin.c).
 */
#ifndef SYNCTRAIN_LIBCOMM_CONTROL_H
#define SYNCTRAIN_LIBCOMM_CONTROL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"
#include "topology/world.h"

struct bootstrap;
struct control;
struct control_group;

#define CONTROL_MAX_DECISION_BYTES ((size_t)65536)

struct control_options {
	int64_t startup_timeout_ms;
	int64_t heartbeat_ms;     /* default 500; a tree neighbour silent for stall_timeout_ms is unreachable */
	int64_t stall_timeout_ms;
	const char *interface;    /* a name or an address; NULL: the interface that owns SLURMD_NODENAME's address, else the default route's, else the first
				     that is up, not loopback, not docker/veth/virbr/bridge; loopback only when all ranks share the host */
	uint32_t chunk_bytes_hint, slots_hint; /* carried in the record: rank 0's are the job's; see control_hints */
	uint8_t accumulate_hint;               /* likewise */
};

/* Collective. Listens, exchanges records, agrees on versions (peers of another protocol version: one line naming both), connects the
 * tree, starts the service thread.  *control is set only on success.  The bootstrap stays the caller's and may be finished afterwards. */
enum st_status control_open(struct bootstrap *bootstrap, const struct control_options *options, struct control **control);

/* Gives up a reference; the last one tells the neighbours GOODBYE, stops the thread, closes everything. Waits for nobody. NULL is fine. */
void control_close(struct control *control);
/* One more reference, to be given up by control_close. */
void control_hold(struct control *control);

/* The last decision of a start, of no bytes: also when the verdict comes first, it counts if the others' contributions come soon after it.  They do when
 * anybody has seen them all, as everybody passes on what he has seen while a verdict settles. */
enum st_status control_commit(struct control *control, int64_t timeout_ms);

/* The network interface in use; NULL for one rank. Lives as long as control. */
const char *control_interface(const struct control *control);

/* As control_check, but a verdict that has not settled yet is waited for. */
enum st_status control_await_failure(struct control *control);

/* Rank, size, nodes, local ranks: valid while control lives. */
const struct topo_world *control_world(const struct control *control);
const char *control_job(const struct control *control);
void control_hints(const struct control *control, uint32_t *chunk_bytes, uint32_t *slots, uint8_t *accumulate);

/*
 * A connected, authenticated, non-blocking stream socket to a peer for the data channel `channel`; the caller owns it.  The lower rank
 * connects and the higher accepts; both call this.  A peer on the same node (control_same_node) gets a Unix socket when `local`
 * is set, else TCP.  Blocks up to the start-up deadline; fails at once when the job is aborted.
 */
enum st_status control_data_socket(struct control *control, uint32_t peer, uint32_t channel, bool local, int *fd);

/* The same node by name AND reachable by Unix socket (a connect probe that succeeded, taken once per peer; a boot id alone would turn a one-box
 * cluster into shared memory). Symmetric: the lower rank's probe decides. Blocks like control_data_socket. */
enum st_status control_same_node(struct control *control, uint32_t peer, bool *same);

/* What this rank is doing, for the text of an ABORT that its service thread sends: shown as "NAME SEQUENCE", e.g. "allreduce 12".  NAME must
 * live as long as control does (a literal); NULL: nothing.  Two relaxed stores: cheap enough for every operation. */
void control_doing(struct control *control, const char *name, uint64_t sequence);

/* ST_OK while the job is whole: one relaxed load. After an ABORT: ST_ERR_ABORTED with its text in st_message(). */
enum st_status control_check(struct control *control);

/* Readable once the job is aborted: to be slept on beside data sockets. Never read it. */
int control_event_fd(const struct control *control);

enum control_how {
	CONTROL_HOW_EXITED,      /* its process ended without GOODBYE */
	CONTROL_HOW_UNREACHABLE, /* its heartbeats stopped: it is stopped, or its host is down or cut off (then the node's leader is named) */
	CONTROL_HOW_LINK,        /* both ends live, and nothing passes between them */
	CONTROL_HOW_LATE,        /* it is alive and did not enter the operation within arrival_timeout */
	CONTROL_HOW_MISMATCH,    /* it called another collective, or the same with another shape */
	CONTROL_HOW_APPLICATION, /* it said so itself (comm_abort, or an error of its own) */
	CONTROL_HOW_LEFT,        /* it left in an orderly way (control_close) while others still needed it */
	CONTROL_HOW_PROTOCOL,    /* it sent bytes that no correct rank sends */
};

/* Ends the job with `culprit` as the cause: sends ABORT at once, and returns when the job's verdict, which may be another, has settled (300 ms):
 * ST_ERR_ABORTED with the verdict's text in st_message(). operation: e.g. "allreduce 12 of 4194304 elements". Waits for nobody. */
enum st_status control_abort(struct control *control, uint32_t culprit, enum control_how how, const char *operation, const char *detail);

/* The same with this rank as the culprit (CONTROL_HOW_APPLICATION). Never blocks: the verdict is for others to wait for. */
void control_declare(struct control *control, const char *operation, const char *detail);

/* A data link to `peer` failed. Waits up to 500 ms for an ABORT with better evidence, else finds out (see control_evidence.c) and ends the job:
 * with CONTROL_HOW_LINK when the peer lives, with CONTROL_HOW_LEFT when it has said GOODBYE. */
enum st_status control_suspect(struct control *control, uint32_t peer, const char *operation, const char *detail);

/* Whether `rank` has left in an orderly way, as far as this rank has heard. */
bool control_has_left(struct control *control, uint32_t rank);

/* Rank 0's bytes everywhere; everybody's bytes in rank order (all: size * bytes). Collective, called in the same order by all, from one
 * thread; blocking, until all ranks have entered, the job is aborted, or arrival_timeout_ms has passed (then the job is aborted with a
 * missing rank as culprit: CONTROL_HOW_LATE). Ranks that call different ones: CONTROL_HOW_MISMATCH, everywhere the same text.
 * bytes <= CONTROL_MAX_DECISION_BYTES, equal on all ranks. */
enum st_status control_broadcast(struct control *control, void *data, size_t bytes, int64_t arrival_timeout_ms);
enum st_status control_all_gather(struct control *control, const void *mine, size_t bytes, void *all, int64_t arrival_timeout_ms);

/*
 * Groups: the communicators of the job, each with its members, its decisions and a 64-bit context that names it on the wire; the root, of all
 * ranks, has context 0.  Members' decisions travel along the tree as the job's do: a rank that has no part in one passes it on and
 * remembers nothing.  Contexts come from comm_split, which reckons the same one on all its future members before it gathers who they are:
 * a rank announces it first, so a contribution that comes before this rank knows the members finds a place (one bit per rank, as
 * the first decision of a group carries no bytes, and nobody can be past it without this rank).  The functions above that name no
 * group mean the root.  A failure is the job's, not a group's.
 */
#define CONTROL_GROUP_NAME_BYTES 40
struct control_group *control_root(struct control *control); /* lives as long as control */

/* Makes room for a group whose members are not known yet. ST_ERR_INTERNAL: the context is taken. `name` is cut off where it is too long. */
enum st_status control_group_announce(struct control *control, uint64_t context, const char *name, struct control_group **group);
/* Its members, as ranks of the job, this rank among them. Builds its world. */
enum st_status control_group_form(struct control_group *group, const uint32_t *ranks, uint32_t size);
/* Leaves it in an orderly way: tells the others, and frees it unless it is the root. The others fail with CONTROL_HOW_LEFT where they still
 * need this rank. NULL is fine. */
void control_group_leave(struct control_group *group);

struct control *control_group_control(const struct control_group *group);
const struct topo_world *control_group_world(const struct control_group *group);
uint64_t control_group_context(const struct control_group *group);
const char *control_group_name(const struct control_group *group);
const char *control_group_label(const struct control_group *group); /* " in communicator NAME", "" for the root; lives as long as group */
const uint32_t *control_group_ranks(const struct control_group *group); /* (its size) the members' ranks of the job; NULL: the same */
uint32_t control_group_job_rank(const struct control_group *group, uint32_t member);

/* What to do while a decision waits: returns whether it wants to be called again soon. Called by the thread that waits, without locks. */
void control_group_meanwhile(struct control_group *group, bool (*work)(void *context), void *context);
/* This rank has issued one more operation on the communicator: decisions are called by all after the same number of operations, else
 * CONTROL_HOW_MISMATCH.  One relaxed store. */
void control_group_issued(struct control_group *group);
/* As control_doing, on this communicator. */
void control_group_doing(struct control_group *group, const char *name, uint64_t sequence);

/* As the functions above without `group`; peer is a rank of the job. */
enum st_status control_group_broadcast(struct control_group *group, void *data, size_t bytes, int64_t arrival_timeout_ms);
enum st_status control_group_all_gather(struct control_group *group, const void *mine, size_t bytes, void *all, int64_t arrival_timeout_ms);
/* An all_gather that only matches one of its kind: ranks that split a communicator. */
enum st_status control_group_split(struct control_group *group, const void *mine, size_t bytes, void *all, int64_t arrival_timeout_ms);
/* All members have entered: the first decision of a group. */
enum st_status control_group_meet(struct control_group *group, int64_t timeout_ms);
enum st_status control_group_data_socket(struct control_group *group, uint32_t peer, uint32_t channel, bool local, int *fd);
enum st_status control_group_suspect(struct control_group *group, uint32_t peer, const char *operation, const char *detail);

/* Counters for tests and reports. */
struct control_counters {
	uint64_t handshakes, refused, dropped_slow, heartbeats_sent, heartbeats_received;
};
void control_counters_read(const struct control *control, struct control_counters *counters);

#endif
