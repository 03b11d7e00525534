/*
 * A collective is a plan: for each rank a short program of steps over channels, blocks and slots.
 *
 * plan_build_*() is pure: it does no I/O and depends on its arguments alone.  plan_verify() proves the plans of all ranks
 * right together; the engine runs the very same objects.
 *
 * DATA.  A collective's element range is cut into `blocks` blocks, block b = [b*q + min(b,r), ...) with q = count/blocks,
 * r = count%blocks (even shards that differ by at most one element), and each block into `chunks` chunks of chunk_elements
 * (later chunks of a shorter block are short or empty: an empty chunk is still signalled, so that every rank runs the same
 * number of steps).  For reduce_scatter and all_gather the element range is size*count, so block b is exactly rank b's shard.
 *
 * SPACES.  INPUT and OUTPUT are the caller's buffers, addressed by (block, chunk); they may be the same memory.  In
 * all_gather INPUT, and in reduce_scatter OUTPUT, hold only the rank's own block, at offset 0 ("compact").
 * SCRATCH is the rank's own slots, one array of `slots` chunk-sized slots per incoming channel.
 *
 * CHANNELS.  A channel is one-way, from one rank to another, FIFO.  Per channel there are grants (the receiver says where
 * the next put may land: address and length; this is also the credit) and puts (the sender writes there, then raises the
 * receiver's 64-bit signal counter by one).  Put k uses grant k.  Counters are never reset between operations.
 *
 * ASYNCHRONY.  From READY until the WAIT that covers it, the granted memory belongs to the sender: the receiver may neither
 * read nor write it.  From PUT until the FLUSH that covers it, the source must not be written.  At the end of a plan every
 * grant is waited for and every put flushed, so two operations back to back are as safe as one.
 *
 * LOOPS.  LOOP count ... END, nested at most two deep; v0 is the outer and v1 the inner loop's variable (0, 1, 2, ...).
 * Every index is an affine expression base + a*v0 + b*v1, reduced modulo the number of blocks or slots.  So the memory of a
 * plan does not grow with the number of ranks or chunks.
 */
#ifndef SYNCTRAIN_LIBCOMM_PLAN_H
#define SYNCTRAIN_LIBCOMM_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

enum plan_collective { PLAN_ALLREDUCE, PLAN_REDUCE_SCATTER, PLAN_ALL_GATHER, PLAN_BROADCAST, PLAN_BARRIER };

enum plan_step_kind {
	PLAN_READY,  /* receiver: grant `destination` (SCRATCH or OUTPUT) to the sender of channel */
	PLAN_PUT,    /* sender: take the next grant, write `source[0]` there, then signal; blocks only for the grant */
	PLAN_FLUSH,  /* sender: wait until at most `pending` puts of channel are not yet flushed */
	PLAN_WAIT,   /* receiver: wait for the channel's next signal */
	PLAN_REDUCE, /* destination = reduction of sources[0..source_count), in that order; destination may be a source */
	PLAN_COPY,   /* destination = source[0] */
	PLAN_LOOP,   /* run up to the matching END `count` times; 0 is allowed */
	PLAN_END,
};

enum plan_space { PLAN_INPUT, PLAN_OUTPUT, PLAN_SCRATCH };

struct plan_expression {
	int64_t base, v0, v1; /* base + v0 * outer + v1 * inner, modulo what it indexes */
};

struct plan_operand {
	enum plan_space space;
	uint16_t channel;             /* SCRATCH: whose slots (an incoming channel of this rank) */
	struct plan_expression slot;  /* SCRATCH: which slot, modulo the plan's slots */
	struct plan_expression block; /* which block's data this is: gives place (INPUT, OUTPUT) and length (all) */
	struct plan_expression chunk; /* which chunk of that block, modulo chunks */
};

#define PLAN_MAX_SOURCES 4
#define PLAN_MAX_CHANNELS 16
#define PLAN_MAX_STEPS 64

struct plan_step {
	enum plan_step_kind kind;
	uint16_t channel;                              /* READY, PUT, FLUSH, WAIT: index into plan.channels */
	uint16_t source_count;
	uint64_t count;                                /* LOOP: iterations.  FLUSH: pending allowed */
	struct plan_operand destination;               /* READY, REDUCE, COPY */
	struct plan_operand sources[PLAN_MAX_SOURCES]; /* PUT, COPY: [0].  REDUCE: source_count of them */
};

struct plan_channel {
	uint32_t peer;
	bool outgoing;
	uint16_t index; /* tells apart several channels of one direction between the same two ranks */
};

struct plan {
	enum plan_collective collective;
	uint32_t rank, size;
	uint32_t blocks;
	uint64_t elements;       /* of the whole range: count, or size*count for reduce_scatter and all_gather */
	uint64_t chunk_elements; /* >= 1 */
	uint64_t chunks;         /* per block, >= 1: ceil(longest block / chunk_elements), 1 when elements is 0 */
	uint32_t slots;          /* per incoming channel */
	bool compact_input, compact_output;
	bool in_place;           /* INPUT and OUTPUT are the same memory */
	uint32_t root;           /* broadcast */
	uint16_t channel_count, step_count;
	struct plan_channel channels[PLAN_MAX_CHANNELS];
	struct plan_step steps[PLAN_MAX_STEPS];
};

/* What to build. Equal on all ranks except rank. */
struct plan_shape {
	enum plan_collective collective;
	uint32_t rank, size;
	uint64_t elements;
	uint64_t chunk_elements;
	uint32_t slots;
	bool in_place;
	uint32_t root;
	const uint32_t *order; /* ring position -> rank (a permutation of 0..size-1), or NULL for rank order */
};

/* Ring: bandwidth-optimal, 2(p-1) steps for all-reduce (Patarasuk and Yuan, 2009); a pipelined chain for broadcast; a token that
 * goes round twice for barrier.  ST_ERR_USAGE for a shape that makes no sense.  *plan is set only on success. */
enum st_status plan_build_ring(const struct plan_shape *shape, struct plan *plan);

/* Offset and length in elements of (block, chunk). A pure function of the plan's shape. */
uint64_t plan_block_offset(const struct plan *plan, uint64_t block);
uint64_t plan_block_elements(const struct plan *plan, uint64_t block);
void plan_chunk_range(const struct plan *plan, uint64_t block, uint64_t chunk, uint64_t *offset, uint64_t *elements);

/*
 * Proves plans[0..size) right together, or names the first fault: rank, step, channel, block, slot.  ST_ERR_INTERNAL with
 * the fault in st_message() when refused.  It checks that
 *   - every step is well formed, every channel has its other end, and put lengths equal granted lengths;
 *   - no deadlock, whatever the timing (the plans are a deterministic dataflow network: one order shows all);
 *   - no read of memory that was never written or is granted away, no write to memory that is granted away or still being
 *     put, no second grant of the same memory, no value overwritten that nobody used (a doubled or lost step shows so);
 *   - at the end every OUTPUT chunk holds each required input exactly once, every grant is waited for, every put flushed.
 * Runs the plans `repeats` times back to back on the same channels.
 */
enum st_status plan_verify(const struct plan *plans, uint32_t size, unsigned repeats);

/* One line per step, for people and tests. Returns the number of characters that the whole text needs. */
size_t plan_print(const struct plan *plan, char *text, size_t bytes);

#endif
