/*
 * libcomm: collectives for synchronous training.
 *
 * A communicator joins N ranks.  Every collective is called by all ranks in the same order with the same count, type,
 * operation and root; ranks that disagree get ST_ERR_MISMATCH naming both sides.  All calls start the operation and
 * return at once with a request; comm_wait() finishes it.  Operations of one priority run in issue order; see groups below for
 * urgent ones.  A communicator is used by one thread at a time (with a progress thread: by any number, but a group is open for all of them); several
 * communicators may live in one process (ranks as threads).
 *
 * Without a progress thread a call moves on the operations of its own communicator and of no other.  So ranks that have operations in flight on several
 * wait for them in one order that is the same for all, or call comm_progress on each meanwhile; else one may wait in one communicator for a rank that
 * waits for it in another, until arrival_timeout_ms ends both.
 *
 * Failure: when a rank dies, stalls or reports an error, every other rank's pending and later calls return ST_ERR_ABORTED
 * (the detector itself may return a closer status) and st_message() names the culprit: rank, host, operation, how.
 * A communicator that has failed can only be freed, or shrunk to the survivors.  A failure ends all communicators that were split off
 * from one another.  Nothing here blocks for longer than the deadlines in comm_options.
 */
#ifndef SYNCTRAIN_LIBCOMM_COMM_H
#define SYNCTRAIN_LIBCOMM_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

#ifdef __cplusplus
extern "C" {
#endif
/* The library is built with hidden visibility: what is declared between here and the pop, and named in exports.map, is its interface. */
#pragma GCC visibility push(default)

struct comm;
struct comm_request;
struct bootstrap;

enum comm_type { COMM_U8, COMM_F32, COMM_F64, COMM_F16, COMM_BF16, COMM_I32, COMM_I64 };
#define COMM_TYPES 7
enum comm_op { COMM_SUM, COMM_AVG, COMM_MIN, COMM_MAX };
#define COMM_OPS 4
enum comm_accumulate { COMM_ACCUMULATE_F32, COMM_ACCUMULATE_WIRE };
/* AUTO: the cheapest for each collective and size by a price that all ranks reckon alike (plan_choose.h).  A name: that algorithm where it has the
 * collective, with logarithmic companions for few bytes (HALVING: recursive doubling; HALVING and TREE: PAT's reduce-scatter,
 * all-gather and barrier); else the ring.
 * TORUS is never chosen by AUTO: it suits machines that are wired so.  DIRECT: ranks read each other's memory; for all collectives of up to 16 ranks
 * of one node that share memory.  On a job of several nodes, or more ranks, it means the ring. */
enum comm_algorithm { COMM_ALGORITHM_AUTO, COMM_ALGORITHM_RING, COMM_ALGORITHM_HALVING, COMM_ALGORITHM_TREE, COMM_ALGORITHM_HIERARCHICAL,
		      COMM_ALGORITHM_TORUS, COMM_ALGORITHM_DIRECT, COMM_ALGORITHMS };
enum comm_transport { COMM_TRANSPORT_SHM = 1, COMM_TRANSPORT_TCP = 2 }; /* bits of a mask */

#define COMM_MAX_LANES 4

struct comm_options {
	enum comm_algorithm algorithm; /* rank 0's value is used */
	unsigned transports;           /* mask of enum comm_transport; ranks of one node use shm when it is in the mask */
	int64_t startup_timeout_ms;    /* bootstrap and wiring, default 60,000 */
	int64_t stall_timeout_ms;      /* a peer whose process or link is dead or silent, default 5,000 */
	int64_t arrival_timeout_ms;    /* a living rank that has not entered the operation, default 1,800,000 */
	size_t chunk_bytes;            /* pipeline granularity, default 128 KiB; equal on all ranks (rank 0's value is used) */
	unsigned slots;                /* chunks in flight per channel, default 4; likewise */
	enum comm_accumulate accumulate; /* how partial sums of f16 and bf16 travel, default f32; see below; likewise */
	unsigned lanes;                /* operations in flight at once, each lane with links of its own: 1 to COMM_MAX_LANES, default 2; likewise.  Each
	                                  takes slots * chunk_bytes of memory per link and direction */
	size_t fusion_bytes;           /* all-reduces of a group run as one up to this size, default 128 KiB, at most 64 MiB, 0: never; likewise.  Each
	                                  lane that fuses takes as much memory */
	bool progress_thread;          /* a helper thread moves operations on while the application computes; default: only calls do.  Of a process that
	                                  forks, only the parent has it: the child leaves the communicator alone */
	const char *interface;         /* network interface for TCP, NULL: chosen (see bootstrap.h); borrowed */
};

/* Defaults, then SYNCTRAIN_ALGORITHM (auto, ring, ...), SYNCTRAIN_TRANSPORT (auto, or shm, tcp joined by '+'), SYNCTRAIN_TIMEOUT_MS (stall),
 * SYNCTRAIN_ARRIVAL_TIMEOUT_MS, SYNCTRAIN_CHUNK_BYTES, SYNCTRAIN_ACCUMULATE (f32, wire), SYNCTRAIN_LANES, SYNCTRAIN_FUSION_BYTES, SYNCTRAIN_PROGRESS
 * (caller, thread), SYNCTRAIN_INTERFACE; an empty one counts as unset. A bad value: ST_ERR_CONFIG naming variable, seen, expected; a
 * bad interface is found by comm_create. */
enum st_status comm_options_init(struct comm_options *options);

/*
 * Joins the job's ranks: PMIx when a server answers, else one rank.  Collective.  options NULL: comm_options_init's.
 * *comm is set only on success and freed by comm_free.
 */
enum st_status comm_create(const struct comm_options *options, struct comm **comm);

/* As comm_create, over a bootstrap made by the caller (ranks as threads, tests); see bootstrap.h. Takes no ownership. */
enum st_status comm_create_over(struct bootstrap *bootstrap, const struct comm_options *options, struct comm **comm);

#define COMM_NO_COLOR (-1)
/*
 * Splits a communicator, as MPI_Comm_split does: the ranks that give the same color (>= 0) get a communicator of their own, ordered by key,
 * then by rank in COMM; who gives COMM_NO_COLOR gets NULL.  Collective over COMM, in the order of its other collectives and decisions;
 * blocking.  Operations on COMM may be pending and go on meanwhile.  The new communicator has its own links, plans and decisions and is
 * split like any other; it shares only the control plane, so that a failure anywhere ends all, and messages name ranks of the
 * job beside the communicator's name.  Communicators are freed in any order: the job is left with the last of them.  A rank that
 * leaves one while others still use it is named as the cause of their failure, and nobody hangs.
 *
 * ST_ERR_USAGE: another color; ST_ERR_MISMATCH or ST_ERR_ABORTED as collectives: *sub is set only on success.
 */
enum st_status comm_split(struct comm *comm, int32_t color, int32_t key, struct comm **sub);

/*
 * The survivors of a failure go on: a new communicator of those who call this and can be reached, in the order of their old ranks.  `comm` is one that
 * comm_create or comm_shrink made, and has failed (ST_ERR_ABORTED); it is freed when the caller likes, and nothing else can be done with it.  Every living
 * rank calls it, soon after the failure; also one whose own comm_abort was the cause.  Blocks for timeout_ms at most.
 *
 * The ranks that are proven dead (their host's kernel says that nothing listens at their address any more) are left behind.  Others that do not come within
 * a stall timeout are too, if those who have come are more than half of all who are not proven dead, or exactly half with the lowest of them;
 * so there is never more than one new communicator.  Ranks that die meanwhile are survived likewise.  On ST_OK all members have it; if one
 * failed since, the first operation says so, and it can be shrunk again.  The lowest rank that lives has a connection from each of the others meanwhile: as
 * many descriptors as there are survivors.
 *
 * ST_ERR_ABORTED: the others went on without this rank, which was stopped, cut off or late.  ST_ERR_UNAVAILABLE: too few have come within timeout_ms; the
 * message has the numbers.  ST_ERR_USAGE: comm has not failed, or was made by comm_split.
 *
 * Known to fall short: where another rank dies, stops or is cut off in the midst of this call, a rank that lives is sometimes left out as well, and
 * behind a link that stays cut ranks can run out of time, or one can go on alone (tests/faults/README.md has the counts).
 *
 * The launcher must let the others live when one rank dies: synctrain run --on-death=continue, srun --kill-on-bad-exit=0 with --wait=0
 * (srun's exit code is still that of the rank that died).
 */
enum st_status comm_shrink(struct comm *comm, int64_t timeout_ms, struct comm **shrunk);

/* The rank that `rank` had in the communicator which was shrunk to this one; UINT32_MAX: no such rank, or not made by comm_shrink. */
uint32_t comm_shrunk_from(const struct comm *comm, uint32_t rank);

/* Leaves the job in an orderly way: tells the others, waits for nobody. Pending requests are abandoned. NULL is fine. */
void comm_free(struct comm *comm);

uint32_t comm_rank(const struct comm *comm);
uint32_t comm_size(const struct comm *comm);
uint32_t comm_local_rank(const struct comm *comm);
uint32_t comm_local_size(const struct comm *comm);
const char *comm_host(const struct comm *comm, uint32_t rank);  /* node name of a rank; valid while comm lives */
uint32_t comm_world_rank(const struct comm *comm, uint32_t rank); /* the rank in the job that messages name; UINT32_MAX: no such rank */
const char *comm_name(const struct comm *comm);                  /* "world", or "2:1" for color 1 of its second split, "2:1/1:0" and so on */
const char *comm_job(const struct comm *comm);                   /* "job.step.restart", or "local" */

/* Page-aligned memory that local peers can map: DIRECT reads it where it is, where others' memory is copied once more.  For this communicator's
 * collectives.  Freed by comm_memory_free, not before the operations on it are done, or by comm_free. */
enum st_status comm_memory_alloc(struct comm *comm, size_t bytes, void **memory);
void comm_memory_free(struct comm *comm, void *memory);

/* Bytes of an element; 0 for what is no type.  Names are "f32", "avg" and so on; "unknown type", "unknown operation". */
size_t comm_type_bytes(enum comm_type type);
const char *comm_type_name(enum comm_type type);
const char *comm_op_name(enum comm_op op);

/*
 * Collectives.  Buffers are borrowed until the request is done; input == output is in place (where shapes allow: for
 * reduce_scatter output == input + rank * count, for all_gather input == output + rank * count elements; with counts, + the shards of lower
 * ranks); other overlaps are not allowed.  Zero counts are fine, also of some shards.  counts[size] is read during the call only, the same on
 * all ranks, and each call looks at all of it; repeated calls with the same counts find their plan again.
 *
 *   allreduce       input (count), output (count): elementwise reduction over ranks
 *   reduce_scatter  input (size * count), output (count): shard `rank` of the reduction
 *   all_gather      input (count), output (size * count): all inputs in rank order
 *   broadcast       buffer (count): root's contents everywhere
 *   reduce_scatter_v  input (sum of counts), output (counts[rank]): shard `rank` of the reduction, where shard r has counts[r] elements
 *   all_gather_v    input (counts[rank]), output (sum of counts): all inputs in rank order
 *   barrier         done when all ranks have entered
 *
 * Buffers are aligned to their elements.  Sums are taken in an order that the algorithm gives, the same on every run with the same world, count
 * and algorithm, and every rank gets the same bits.
 *
 *   f32, f64    each addition rounds once, to nearest even
 *   f16, bf16   inputs are widened to f32 and added there; a partial sum that is forwarded travels as f32 and the last rank to add rounds
 *               once: |result - exact sum| <= ulp(result)/2 + (ranks - 1) * 2^-24 * sum of |inputs|, which is within 1 ulp of the exact
 *               sum unless the inputs cancel or there are thousands of ranks; such sums of more than two ranks run on the ring, the tree
 *               or recursive doubling, the cheapest of those that the algorithm's name allows, or on the ring if it allows none.
 *               COMM_ACCUMULATE_WIRE: partial sums travel in the type itself, half the bytes, and every rank that adds rounds
 *   i32, i64, u8  sums wrap modulo 2^32, 2^64, 2^8
 *   avg         the sum, divided once by the number of ranks where it becomes final: floats round once more (f16 and bf16 divide
 *               in f32, before their one rounding, so a sum beyond their range does no harm), integers divide the wrapped sum and cut
 *               towards zero.  One rank's average is its input, untouched
 *   min, max    IEEE 754-2019's minimum and maximum: any NaN gives the (one, quiet, positive) NaN, -0 is less than +0; exact
 */
enum st_status comm_allreduce(struct comm *comm, const void *input, void *output, size_t count, enum comm_type type, enum comm_op op,
			      struct comm_request **request);
enum st_status comm_reduce_scatter(struct comm *comm, const void *input, void *output, size_t count, enum comm_type type,
				   enum comm_op op, struct comm_request **request);
enum st_status comm_all_gather(struct comm *comm, const void *input, void *output, size_t count, enum comm_type type,
			       struct comm_request **request);
enum st_status comm_reduce_scatter_v(struct comm *comm, const void *input, void *output, const size_t *counts, enum comm_type type,
				     enum comm_op op, struct comm_request **request);
enum st_status comm_all_gather_v(struct comm *comm, const void *input, void *output, const size_t *counts, enum comm_type type,
				 struct comm_request **request);
enum st_status comm_broadcast(struct comm *comm, void *buffer, size_t count, enum comm_type type, uint32_t root,
			      struct comm_request **request);
enum st_status comm_barrier(struct comm *comm, struct comm_request **request);

/*
 * Ordered sums: the same bits however many ranks there are, wherever they run, and whatever algorithm, transport and chunks they use.
 *
 * What is summed are `total` leaves, 0 .. M-1, for instance the gradients of a global batch's micro-batches.  They are added in one fixed binary tree: a
 * node is an aligned range of 2^k leaves, cut off at M, and the sum of its two halves, left and right; with nothing right, it is the left one.  The
 * ranks share the leaves in order: rank r of n has those from floor(r M / n) up to floor((r + 1) M / n), which may be none.  It adds up
 * what it can, and brings the rest: the sums of the largest nodes that lie within its leaves, its roots, each a layer of `count` elements.
 *
 *	for (uint32_t leaf = leaves.first; leaf < leaves.end; leaf++) {
 *		unsigned sums, layer = comm_leaf_place(&leaves, leaf, &sums);
 *		... layer number `layer` = the leaf's vector; leaves.held layers have room for all ...
 *		for (; sums; sums--, layer--)
 *			... layer number layer - 1 += layer number `layer`, element by element, in the vectors' own type ...
 *	}
 *	... layers 0 .. leaves.roots - 1 are the roots ...
 *
 * A rank that holds an aligned power of two of the leaves has one root, and then nothing more is sent than in an all-reduce by halving.
 */
#define COMM_MAX_LEAVES (1u << 24)
struct comm_leaves {
	uint32_t total;
	uint32_t first, end; /* this rank's: first .. end - 1 */
	unsigned roots;      /* at most 46 */
	unsigned held;       /* layers that adding up takes, >= roots; at most 48 */
};

/* This rank's share of `total` leaves.  Collective, blocks as comm_create: opens the links that sums of so many leaves need.  total 1 to
 * COMM_MAX_LEAVES, else ST_ERR_USAGE; not the same on all ranks: ST_ERR_MISMATCH, the same text on all, and nothing is changed. */
enum st_status comm_leaves_open(struct comm *comm, uint32_t total, struct comm_leaves *leaves);

/* The layer into which a leaf of the share goes, and how many times then the last layer is to be added to the last but one, which it leaves. */
unsigned comm_leaf_place(const struct comm_leaves *leaves, uint32_t leaf, unsigned *sums);

/*
 * output (count): the sum of all leaves, or that divided once by their number (COMM_AVG), on every rank.  f32 or f64.  roots: the first of leaves->roots
 * layers of `count` elements, each `stride` (>= count) elements after the one before; NULL when there are none.  output == roots is in place;
 * other overlaps are not allowed.  leaves: as comm_leaves_open gave them on this communicator, else ST_ERR_USAGE.
 */
enum st_status comm_allreduce_ordered(struct comm *comm, const struct comm_leaves *leaves, const void *roots, size_t stride, void *output, size_t count,
				      enum comm_type type, enum comm_op op, struct comm_request **request);

/* Moves every pending operation on as far as it goes without blocking. ST_OK, or the communicator's failure. */
enum st_status comm_progress(struct comm *comm);

/* ST_OK: done, *request freed and set to NULL; so is a NULL request, which may be tested and waited for again.  ST_PENDING: not yet.
 * ST_ERR_USAGE: see groups.  Else: failed, freed and NULL too. */
enum st_status comm_test(struct comm *comm, struct comm_request **request);

/* Blocks until done or failed (spin, yield, then sleep). The request is freed and set to NULL in both cases. ST_ERR_USAGE: see groups. */
enum st_status comm_wait(struct comm *comm, struct comm_request **request);

/*
 * This rank ends the job: every rank's pending calls fail with this rank as culprit and TEXT as the reason.
 * For the application's own failures (a non-finite loss, a full disk).  Never blocks; may be called by any thread while the communicator lives.
 */
void comm_abort(struct comm *comm, const char *text);

/* Small decisions, over the control plane (never the data path): rank 0's bytes everywhere; everybody's bytes, in rank order.
 * Collective, in the order of the other collectives, blocking (the communicator's pending operations go on meanwhile), at most 64 KiB per rank. */
enum st_status comm_decide(struct comm *comm, void *data, size_t bytes);
enum st_status comm_collect(struct comm *comm, const void *mine, size_t bytes, void *all);

/*
 * Groups: what is issued between begin and end, by all ranks alike, has a priority, 0 to anything, and may be fused.
 *
 * PRIORITY.  Larger is more urgent; outside a group it is 0.  Operations of priority p run in lane min(p, lanes - 1), one after the other; a chunk of a
 * lower lane moves only while no higher lane can, and then it does, so nobody starves for an urgent operation that waits for a peer.
 * Ranks that issue an operation with different priorities get ST_ERR_MISMATCH, as those that issue them in another order.
 *
 * FUSION.  Consecutive all-reduces of a group, of one type and operation, run as one operation while they have fusion_bytes or less together (and are 255
 * or fewer): a function of the order of issue and of sizes alone, so the same on all ranks.  Their elements are added as those of one long vector:
 * results are equal on all ranks and from run to run, but last bits of floating-point sums may differ from those of the same all-reduces outside a group,
 * where the ranks' contributions may be added in another order.  Each has its own request, done when all are.  Counters count one operation.
 *
 * Operations of an open group may start any time until its end.  Waiting for or testing their requests before that is ST_ERR_USAGE, and
 * leaves the request as it is.  Groups do not nest.
 */
enum st_status comm_group_begin(struct comm *comm, unsigned priority);
/* ST_ERR_USAGE: no group is open.  Else what became of the operations that were still held back; their requests say the same. */
enum st_status comm_group_end(struct comm *comm);

struct comm_counters {
	uint64_t shm_puts, shm_bytes; /* sent or lent by this rank through shared memory */
	uint64_t tcp_puts, tcp_bytes; /* and through TCP */
	uint64_t reduced_bytes;       /* operand bytes read by reductions */
	uint64_t copied_bytes;
	uint64_t operations;
	uint64_t fused;               /* all-reduces that ran as part of one operation with others */
	int64_t blocked_ns;           /* wall time this rank spent inside comm_wait */
	uint64_t sleeps;              /* times a wait went to sleep in the kernel */
};
void comm_counters_read(const struct comm *comm, struct comm_counters *counters);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
