/*
 * What the builders of plans share: checking a shape, cutting blocks into chunks, adding channels and steps.
 *
 * Running out of memory is remembered in the builder, so that builders read as the programs that they write; build_finish reports it.
 */
#ifndef SYNCTRAIN_LIBCOMM_PLAN_BUILD_H
#define SYNCTRAIN_LIBCOMM_PLAN_BUILD_H

#include "plan.h"

struct build {
	const char *name; /* of the algorithm, for messages */
	const struct plan_shape *shape;
	struct plan *plan;
	uint32_t position;      /* of this rank in the shape's order */
	uint32_t root_position; /* of the broadcast's root */
	bool failed;
	struct plan_step nowhere;
};

/*
 * Checks the shape and starts a plan of so many blocks, each cut into equal chunks of whole cache lines, a multiple of `multiple` in number (the
 * least that holds the block; 1 for an empty one).  least_slots: what the algorithm needs.  ST_ERR_USAGE, ST_ERR_NOMEM: nothing to free.
 */
enum st_status build_start(struct build *build, const char *name, const struct plan_shape *shape, uint32_t least_slots, uint32_t blocks,
			   uint64_t multiple);
/* The plan, or ST_ERR_NOMEM, with the plan freed, when any call ran out of memory. */
enum st_status build_finish(struct build *build, struct plan **plan);

/* For builders that keep partial sums in OUTPUT: ST_ERR_USAGE for a shape that is wide. */
enum st_status build_not_wide(const char *name, const struct plan_shape *shape);

/* Where the plan is wide, gives it so many WORK slots of a chunk. */
void build_work(struct build *build, uint32_t slots);

/* Elements of the longest block. */
uint64_t build_longest(const struct build *build);

/* The rank at a position of the shape's order. */
uint32_t build_rank_at(const struct build *build, uint32_t position);

/* A new channel; whether it is mapped comes from the shape. Returns its index in the plan. */
uint16_t build_channel(struct build *build, uint32_t peer, bool outgoing, uint16_t index);
bool build_is_mapped(const struct build *build, uint16_t channel);

/* Steps. Those that return one may be given a guard or further operands until the next step is added. */
void build_loop(struct build *build, uint64_t count);
void build_end(struct build *build);
/* The same, but a loop is only written where it runs more than once. */
void build_rounds(struct build *build, uint64_t count);
void build_rounds_end(struct build *build, uint64_t count);
struct plan_step *build_ready(struct build *build, uint16_t channel, struct plan_operand destination);
struct plan_step *build_put(struct build *build, uint16_t channel, struct plan_operand source);
struct plan_step *build_wait(struct build *build, uint16_t channel);
/* Mapped channels only. A lend of a copy leaves its source free. */
struct plan_step *build_lend(struct build *build, uint16_t channel, struct plan_operand source, bool copied);
struct plan_step *build_return(struct build *build, uint16_t channel);
/* Until at most so many lends are out. */
struct plan_step *build_flush_lends(struct build *build, uint16_t channel, uint64_t pending);
/* Of puts. Only where the channel is not mapped: there is nothing to wait for otherwise. NULL then. */
struct plan_step *build_flush(struct build *build, uint16_t channel, int64_t pending);
struct plan_step *build_reduce(struct build *build, struct plan_operand destination, struct plan_operand a, struct plan_operand b);
struct plan_step *build_copy(struct build *build, struct plan_operand destination, struct plan_operand source);
void build_source(struct build *build, struct plan_step *step, struct plan_operand source);
void build_keep(struct build *build, struct plan_step *step, struct plan_operand destination);

/* For ranks that are alone: OUTPUT = INPUT unless they are the same. */
void build_alone(struct build *build);

uint64_t build_divide_up(uint64_t a, uint64_t b);

#endif
