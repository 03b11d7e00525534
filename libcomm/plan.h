/*
 * A collective is a plan: for each rank a short program of steps over channels, blocks and slots.
 *
 * plan_build_*() is pure: it does no I/O and depends on its arguments alone.  plan_verify() proves the plans of all ranks
 * right together; the engine runs the very same objects.
 *
 * DATA.  A collective's element range is cut into `blocks` blocks, block b = [b*q + min(b,r), ...) with q = elements/blocks,
 * r = elements%blocks (even shards that differ by at most one element), and each block into `chunks` chunks of chunk_elements
 * (later chunks of a shorter block are short or empty: an empty chunk is still signalled, so that every rank runs the same
 * number of steps).  For reduce_scatter and all_gather the element range is size*count, so block b is exactly rank b's shard.  With `offsets`
 * block b is [offsets[b], offsets[b + 1]) instead: shards of any sizes, also empty ones.
 * A block is named by its position: block = order[position] (order NULL: block = position), so that affine indices also walk
 * rings and grids whose ranks are numbered in any way.  Where blocks are short (chunks 1, order NULL) an operand may span several
 * consecutive ones, which then travel as one put: the number of messages follows the algorithm and not the number of blocks.
 * With `row_starts` positions are a grid of rows (nodes) as wide as the widest: what a shorter row lacks is a hole, nobody's block, without elements.
 * With `row_layers` a walk over chunks is one over the layers of a row too: chunk c of an operand is chunk c / row_layers of a block, c % row_layers *
 * row_stride positions on.
 *
 * SPACES.  INPUT and OUTPUT are the caller's buffers, addressed by (block, chunk); they may be the same memory.  In
 * all_gather INPUT, and in reduce_scatter OUTPUT, hold only the rank's own block, at offset 0 ("compact"); in place, the compact
 * buffer is the rank's own block of the other one.
 * SCRATCH is the rank's own slots, one array of `slots` chunk-sized slots per incoming channel.
 * BORROWED is what the sender of a mapped channel has lent and the receiver has waited for and not yet returned, wherever that lies; read only.
 * Lends are counted from the start of the plan, lend k is found under k modulo slots, and no more than `slots` are out at a time.
 * WORK is private memory of the plan, `work` slots for work_elements each, for partial sums that have no room in OUTPUT: the engine allocates it
 * when it binds the plan.  Nothing in it lasts from one operation to the next.
 *
 * CHANNELS.  A channel is one-way, from one rank to another, FIFO.  Per channel there are grants (the receiver says where
 * the next put may land: address and length; this is also the credit) and puts (the sender writes there, then raises the
 * receiver's 64-bit signal counter by one).  Put k uses grant k.  Counters are never reset between operations.
 * On a MAPPED channel the sender stores into the receiver's slots with plain instructions: only SCRATCH may be granted, a put
 * may be the reduction of several sources and may keep a second copy in OUTPUT (memory is passed over once, not twice), and
 * its sources are free when the step is done.  On other channels a grant may be SCRATCH or OUTPUT and a put has one source.
 * A mapped channel also carries lends: the sender leaves a chunk of its INPUT or OUTPUT where it is and says so, without any grant; the
 * receiver waits for it as for a put (puts and lends of a channel are one FIFO), reads it as BORROWED, and returns it, the oldest first.  A lend
 * blocks while `slots` lends of its channel are not yet returned, so that a transport that can't show the peer that memory always has room for
 * a copy.
 *
 * ASYNCHRONY.  From READY until the WAIT that covers it, the granted memory belongs to the sender: the receiver may neither
 * read nor write it.  From PUT or LEND until the FLUSH that covers it, the source must not be written (puts on mapped channels and lends
 * of a copy excepted: their sources are free when the step is done).  FLUSH covers a lend when the receiver has returned it; it may read
 * BORROWED from the WAIT to the RETURN.  At the end of a plan every grant is waited for, every put flushed, and every lend waited for, returned
 * and, if not of a copy, flushed, so two operations back to back are as safe as one.
 *
 * PARTIAL SUMS.  In allreduce and reduce_scatter a chunk is one rank's input as it was given, or a partial sum, or final: every rank's
 * input, in the caller's type.  An operand says by `partial` whether it is a partial sum; left alone, it is none.  What a step makes: REDUCE, COPY
 * and a PUT that keeps, what their destination is; any other PUT, a partial sum if it has several sources, else what its source is.
 * A step that makes something final out of several sources or of a partial sum finishes it: rounds, and divides an average.  It must have
 * every rank's input then.  In a `wide` plan partial sums are wider than the elements (f32, of f16 and bf16) and live in SCRATCH and WORK only,
 * whose slots are long enough for them; else OUTPUT may hold them in the meantime.
 *
 * ORDERED SUMS.  In allreduce_ordered what is summed are `leaves` leaves, in the tree of leaves.h.  INPUT is the roots of the rank's leaves, one after the
 * other in layers of the whole range, and a root is a partial sum.  A reduction must have the left half of a node first and then the right one,
 * and the result is the tree's root.  In place, OUTPUT is the first layer.
 *
 * LOOPS.  LOOP count ... END, nested at most PLAN_MAX_DEPTH deep.  Indices are affine in the loop variables, with one cyclic
 * part where a walk goes round a subset of the blocks (a node's ranks, a row of a grid).  A step may carry a guard, affine too, and is skipped when that is negative (the first or last round of a
 * loop differs) or no multiple of `every` (binomial trees: what happens at every second, fourth, ... turn).  So the memory of a plan grows with the rank's
 * channels, not with ranks or chunks.
 */
#ifndef SYNCTRAIN_LIBCOMM_PLAN_H
#define SYNCTRAIN_LIBCOMM_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

enum plan_collective { PLAN_ALLREDUCE, PLAN_REDUCE_SCATTER, PLAN_ALL_GATHER, PLAN_BROADCAST, PLAN_BARRIER, PLAN_ALLREDUCE_ORDERED };
#define PLAN_COLLECTIVES (PLAN_ALLREDUCE_ORDERED + 1)

enum plan_step_kind {
	PLAN_READY,  /* receiver: grant `destination` (SCRATCH or OUTPUT) to the sender of channel */
	PLAN_PUT,    /* sender: take the next grant, write the sources' reduction there, with `keep` also to `destination`, then signal;
			blocks only for the grant */
	PLAN_FLUSH,  /* sender: wait until at most `count` puts (mapped channel: lends) of channel are not yet flushed */
	PLAN_LEND,   /* sender on a mapped channel: let the receiver read the source (INPUT or OUTPUT) where it lies, with `copied` a copy of it;
			then signal; blocks only while `slots` lends are out */
	PLAN_RETURN, /* receiver: give back the oldest lend that was waited for and not yet returned */
	PLAN_WAIT,   /* receiver: wait for the channel's next signal */
	PLAN_REDUCE, /* destination = reduction of sources[0..source_count), in that order; destination may be a source */
	PLAN_COPY,   /* destination = source[0] */
	PLAN_LOOP,   /* run up to the matching END `count` times; 0 is allowed */
	PLAN_END,
};

enum plan_space { PLAN_INPUT, PLAN_OUTPUT, PLAN_SCRATCH, PLAN_WORK, PLAN_BORROWED };

#define PLAN_MAX_DEPTH 3
#define PLAN_MAX_SOURCES 16

/* base + v[0] * outermost loop's variable + v[1] * next + v[2] * next; a loop's variable counts 0, 1, 2, ... */
struct plan_affine {
	int32_t base, v[PLAN_MAX_DEPTH];
};

/* first + stride * (cycle mod modulus), modulo the number of blocks; modulus 0: first alone. */
struct plan_position {
	struct plan_affine first, cycle;
	uint32_t modulus;
	int32_t stride;
};

struct plan_operand {
	enum plan_space space;
	uint16_t channel;           /* SCRATCH, BORROWED: whose slots or lends (an incoming channel of this rank) */
	uint16_t layer;             /* INPUT in allreduce_ordered: which of the rank's roots */
	uint32_t span;              /* how many consecutive blocks; 0: one.  More than one only with chunks 1 and order NULL, never past the last block */
	uint32_t skip;              /* SCRATCH, likewise: how many blocks before this one the slot holds first; not in a grant */
	struct plan_affine slot;    /* SCRATCH: which slot; BORROWED: which lend; both modulo the plan's slots; WORK: modulo its `work` slots */
	struct plan_affine chunk;   /* which chunk of the block, modulo chunks */
	struct plan_position block; /* whose data this is: gives place (INPUT, OUTPUT) and length (all) */
	struct plan_affine partial; /* only in reductions, and in INPUT only in ordered ones: holds a partial sum when this is positive, else not */
};

struct plan_step {
	enum plan_step_kind kind;
	uint16_t channel;                              /* up to WAIT: index into plan.channels */
	uint8_t source_count;                          /* PUT, REDUCE: 1..PLAN_MAX_SOURCES; COPY, LEND: 1 */
	bool keep : 1;                                 /* PUT on a mapped channel: store to destination too */
	bool copied : 1;                               /* LEND: of a copy */
	uint64_t count;                                /* LOOP: iterations.  FLUSH: puts or lends that may be pending */
	struct plan_affine guard;                      /* not LOOP, END: the step is skipped when this is negative */
	uint32_t every;                                /* or no multiple of this; 0 and 1: all are */
	uint32_t destination;                          /* READY, REDUCE, COPY, PUT with keep: index into plan.operands */
	uint32_t sources;                              /* PUT, REDUCE, COPY, LEND: index of the first of source_count operands */
};

struct plan_channel {
	uint32_t peer;
	bool outgoing;
	bool mapped;    /* the sender stores straight into the receiver's slots */
	uint16_t index; /* tells apart several channels of one direction between the same two ranks */
};

struct plan {
	enum plan_collective collective;
	uint8_t algorithm;       /* for reports: 1 + the enum plan_algorithm that plan_build was asked for; 0: none */
	uint32_t rank, size;
	uint32_t blocks;
	const uint64_t *offsets; /* (blocks + 1): where blocks begin, offsets[blocks] = elements; borrowed; NULL: even blocks */
	uint64_t *owned_offsets; /* freed with the plan; NULL: none.  A builder leaves it alone: its caller may hand over what offsets borrows */
	const uint32_t *order;   /* (blocks): position -> block, borrowed; NULL: the same */
	const uint32_t *row_starts; /* (rows + 1), borrowed: position r * row_width + c is number row_starts[r] + c of order, if row r has it; NULL: no grid */
	uint32_t rows, row_width;
	uint32_t row_layers, row_stride; /* more than one layer: see above */
	uint64_t elements;       /* of the whole range: count, or size*count for reduce_scatter and all_gather */
	uint64_t chunk_elements; /* >= 1 */
	uint64_t chunks;         /* per block, >= 1; chunks * chunk_elements >= the longest block */
	uint32_t slots;          /* per incoming channel */
	uint32_t work;           /* slots of WORK */
	uint64_t work_elements;  /* what each of them holds */
	bool compact_input, compact_output;
	bool in_place;           /* INPUT and OUTPUT are the same memory */
	bool wide;               /* partial sums are wider than the elements */
	uint32_t root;           /* broadcast */
	uint32_t leaves;         /* allreduce_ordered; else 0 */
	uint32_t channel_count, step_count, operand_count;
	uint32_t channel_room, step_room, operand_room;
	struct plan_channel *channels;
	struct plan_step *steps;
	struct plan_operand *operands; /* of all steps, each operand of one step */
};

/* Whether the link that carries puts from `sender` to `receiver` is mapped; both ends get the same answer. */
typedef bool plan_mapped_function(const void *context, uint32_t sender, uint32_t receiver);

/* What to build. Equal on all ranks except rank. */
struct plan_shape {
	enum plan_collective collective;
	uint32_t rank, size;
	uint64_t elements;       /* of the whole range, see struct plan */
	const uint64_t *offsets; /* reduce_scatter, all_gather: (size + 1) where each rank's shard begins, from 0 to elements, borrowed; NULL: all alike */
	uint64_t longest;        /* with offsets: elements of the longest shard */
	uint64_t chunk_elements; /* longest chunk, >= 1: what a slot holds */
	uint32_t slots;          /* >= 2 (broadcast: >= 1) */
	bool in_place;           /* broadcast and barrier: always taken as true */
	bool wide;               /* see struct plan; a builder that keeps partial sums in OUTPUT refuses this (ST_ERR_USAGE) */
	uint32_t root;
	uint32_t leaves;         /* allreduce_ordered: how many are summed; shared among the ranks as leaves.h says */
	const uint32_t *order;   /* ring position -> rank (a permutation of 0..size-1), borrowed while the plan lives; NULL: rank order */
	const uint32_t *position; /* rank -> ring position, with order; NULL: found, and the order checked, in time O(size) */
	const uint32_t *node_starts; /* (node_count + 1) ring position at which each node's ranks begin, and size; NULL: a node for each rank */
	uint32_t node_count;
	plan_mapped_function *mapped; /* NULL: no channel is */
	const void *mapped_context;
};

/* Ring: bandwidth-optimal, 2(p-1) steps for all-reduce (Patarasuk and Yuan, 2009); a pipelined chain for broadcast; for barrier an
 * all-gather of nothing, p-1 hops.  ST_ERR_USAGE for a shape that makes no sense.  *plan is set only on success; plan_free it. */
enum st_status plan_build_ring(const struct plan_shape *shape, struct plan **plan);

/* Recursive halving and doubling (Rabenseifner): all-reduce in 2 lg p messages at the ring's bandwidth.  slots >= 1. */
enum st_status plan_build_halving(const struct plan_shape *shape, struct plan **plan);

/* Recursive doubling: all-reduce in lg p messages, each of everything, for few bytes.  slots >= 1. */
enum st_status plan_build_doubling(const struct plan_shape *shape, struct plan **plan);

/* Double binary tree (Sanders, Speck, Träff): all-reduce and broadcast in O(lg p) hops, pipelined.  slots >= 1. */
enum st_status plan_build_tree(const struct plan_shape *shape, struct plan **plan);

/* Rows and columns: all-reduce by reduce-scatter in the node, ring per rail across nodes, all-gather in the node; and the same on a grid of the ring's
 * order.  slots >= 2. */
enum st_status plan_build_hierarchical(const struct plan_shape *shape, struct plan **plan);
enum st_status plan_build_torus(const struct plan_shape *shape, struct plan **plan);

/* Parallel aggregated trees: reduce-scatter, all-gather and barrier, which is one of nothing, in ceil(lg p) rounds.  slots >= 2. */
enum st_status plan_build_pat(const struct plan_shape *shape, struct plan **plan);

/* Direct: every rank reads the others' memory; all channels mapped, at most PLAN_DIRECT_RANKS ranks, else ST_ERR_USAGE. For all collectives. slots >= 1. */
#define PLAN_DIRECT_RANKS 16
enum st_status plan_build_direct(const struct plan_shape *shape, struct plan **plan);

/* Ordered all-reduce: gathers what neighbours hold of a subtree, then recursive halving, nearest ranks first.  The channels depend on the numbers of
 * ranks and of leaves.  slots >= 1. */
enum st_status plan_build_ordered(const struct plan_shape *shape, struct plan **plan);

/* For builders and tests: an empty plan; a step or channel at its end (zeroed; the pointer holds until the next one; NULL: no memory); a
 * step's operands, its sources one after the other without another operand between (false: no memory). */
struct plan *plan_new(void);
struct plan_step *plan_add_step(struct plan *plan, enum plan_step_kind kind);
bool plan_add_source(struct plan *plan, struct plan_step *step, const struct plan_operand *operand);
bool plan_set_destination(struct plan *plan, struct plan_step *step, const struct plan_operand *operand);
struct plan_channel *plan_add_channel(struct plan *plan, uint32_t peer, bool outgoing, bool mapped, uint16_t index);
void plan_trim(struct plan *plan); /* gives back what was allocated ahead */
struct plan *plan_clone(const struct plan *plan);
void plan_free(struct plan *plan); /* NULL is fine */

/* Memory of a plan, all told. */
size_t plan_bytes(const struct plan *plan);

/* How many layers INPUT has: the rank's roots in allreduce_ordered, which may be none; else 1. */
uint32_t plan_layers(const struct plan *plan);

/* Offset and length in elements of (block, chunk). Pure functions of the plan's shape. */
uint64_t plan_block_offset(const struct plan *plan, uint64_t block);
uint64_t plan_block_elements(const struct plan *plan, uint64_t block);
void plan_chunk_range(const struct plan *plan, uint64_t block, uint64_t chunk, uint64_t *offset, uint64_t *elements);

/* Values of indices for given loop variables; reduced into range, so always valid indices. */
int64_t plan_affine_value(const struct plan_affine *affine, const uint64_t vars[PLAN_MAX_DEPTH]);
uint32_t plan_operand_block(const struct plan *plan, const struct plan_operand *operand, const uint64_t vars[PLAN_MAX_DEPTH]);
uint64_t plan_operand_chunk(const struct plan *plan, const struct plan_operand *operand, const uint64_t vars[PLAN_MAX_DEPTH]);
uint32_t plan_operand_slot(const struct plan *plan, const struct plan_operand *operand, const uint64_t vars[PLAN_MAX_DEPTH]);

/* Whether the operand holds a partial sum; whether what the step (PUT, REDUCE, COPY, LEND) makes is one. */
bool plan_operand_partial(const struct plan_operand *operand, const uint64_t vars[PLAN_MAX_DEPTH]);
bool plan_step_partial(const struct plan *plan, const struct plan_step *step, const uint64_t vars[PLAN_MAX_DEPTH]);

/* Whether the step's guard lets it run. */
bool plan_step_runs(const struct plan_step *step, const uint64_t vars[PLAN_MAX_DEPTH]);

/* Whether every rank's contribution is summed: reductions, and a barrier that is an all-reduce of nothing; other barriers are all-gathers of
 * nothing (compact_input). */
bool plan_reduces(const struct plan *plan);

/* Whether one rank's plan is well formed by itself: kinds, channels and their direction, spaces, loops. ST_ERR_INTERNAL names the step. */
enum st_status plan_check(const struct plan *plan);

/*
 * Proves plans[0..size) right together, or names the first fault: rank, step, channel, block, slot.  ST_ERR_INTERNAL with
 * the fault in st_message() when refused; ST_ERR_NOMEM.  It checks that
 *   - every step is well formed, every channel has its other end, and put lengths equal granted lengths;
 *   - partial sums are granted, put and read as such, finished only with every input in them, and not left in OUTPUT (or ever in it, when
 *     they are wide);
 *   - in ordered sums only the two halves of a node are added, left and right, and what is finished is the root of all leaves;
 *   - what is written to WORK fits, was written in the same operation, and is used;
 *   - no deadlock, whatever the timing (the plans are a deterministic dataflow network: one order shows all);
 *   - no read of memory that was never written or is granted away, no write to memory that is granted away or still being
 *     put, no second grant of the same memory, no value overwritten that nobody used (a doubled or lost step shows so);
 *   - nothing lent is written before the flush that covers it, nothing borrowed read before it was waited for or after it was returned;
 *   - at the end every OUTPUT chunk holds each required input exactly once, every grant is waited for, every put flushed, every lend waited for,
 *     returned and flushed.
 * All of these are judged in the program order of the rank that owns the memory, so the order in which the symbolic run happens to
 * visit ranks does not matter.  Runs the plans `repeats` times back to back on the same channels.
 */
enum st_status plan_verify(const struct plan *const *plans, uint32_t size, unsigned repeats);

/* One line per step, for people and tests. Returns the number of characters that the whole text needs. */
size_t plan_print(const struct plan *plan, char *text, size_t bytes);

/* "allreduce", ...; never NULL. */
const char *plan_collective_name(enum plan_collective collective);

#endif
