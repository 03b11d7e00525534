/* Inside the engine: engine.c (requests, waiting, failures) and engine_step.c (what a step does). */
#ifndef SYNCTRAIN_LIBCOMM_ENGINE_INTERNAL_H
#define SYNCTRAIN_LIBCOMM_ENGINE_INTERNAL_H

#include "common/clock.h"
#include "engine.h"
#include "reduce.h"

struct engine_plan {
	struct plan *plan;
	struct link **links;   /* (channel_count) */
	struct link **distinct; /* (distinct_count): each link once */
	uint32_t distinct_count;
	uint32_t *ends;        /* (step_count): LOOP: index of its END */
	uint64_t quotient, remainder; /* of elements by blocks */
	char *work;            /* the plan's WORK; NULL: it has none */
	size_t work_bytes;     /* of each of its slots, whatever the elements are */
	unsigned users;
	bool owned; /* by its users: unbound with the last of them */
};

struct comm_request {
	struct comm_request *next;
	struct engine_plan *bound;
	char *input, *output;
	size_t layer_bytes; /* from one layer of the input to the next */
	size_t element_bytes;
	struct transport_signature signature;
	bool started, done;
	enum st_status status;
};

/* A program in execution: the requests of one lane, one after the other in the order of issue, and how far the first of them is. */
struct lane {
	struct engine *engine;
	struct comm_request *first, *last;
	reduce_function *add, *finish; /* to a partial sum; to what is final */
	uint32_t at;
	unsigned depth;
	uint64_t vars[PLAN_MAX_DEPTH];
	struct {
		uint32_t step;
		uint64_t count;
	} frames[PLAN_MAX_DEPTH];
	bool stream;
	struct link *blocked; /* the link that the current step waits on */
	uint64_t moves;       /* steps done: grows as long as anything goes on */

	/* Since when nothing moved. */
	uint64_t still_moves;
	int64_t still_since; /* 0: not set */
	struct st_deadline arrival;
	bool announced, second_chance;
};

struct engine {
	struct engine_options options;
	struct link **links;
	size_t link_count;
	struct comm_request *spare;
	uint64_t sequence;
	struct lane lane;
	int64_t spin_ns;
	uint64_t waits;

	enum st_status failed;
	char why[1024];
	struct comm_counters counters;
};

/* One step of the lane's first request. ST_OK: done. ST_PENDING: lane->blocked says on what. Else the link's failure. */
enum st_status engine_run_step(struct lane *lane, const struct plan_step *step);

#endif
