/*
 * Inside the engine:
 *
 *   engine.c         links, plans, requests, lanes taking turns, failures
 *   engine_step.c    what a step does
 *   engine_wait.c    progress, waiting, sleeping
 *   engine_thread.c  the helper thread
 */
#ifndef SYNCTRAIN_LIBCOMM_ENGINE_INTERNAL_H
#define SYNCTRAIN_LIBCOMM_ENGINE_INTERNAL_H

#include <poll.h>

#include "common/clock.h"
#include "engine.h"
#include "reduce.h"

struct engine_plan {
	struct plan *plan;
	unsigned lane;
	struct link **links;   /* (channel_count) */
	struct link **distinct; /* (distinct_count): each link once */
	uint32_t distinct_count;
	uint32_t *ends;        /* (step_count): LOOP: index of its END */
	uint64_t quotient, remainder; /* of elements by blocks */
	char *work;            /* the plan's WORK; NULL: it has none */
	size_t work_bytes;     /* of each of its slots, whatever the elements are */
	bool borrows;          /* reads the memory of others */
	unsigned users;
	bool owned; /* by its users: unbound with the last of them */
};

struct comm_request {
	struct comm_request *next; /* behind it in its lane; next member of the same fused operation; next spare one */
	struct comm_request *made; /* all that the engine has ever made, for its end */
	struct comm_request *members; /* fused: the requests that end with it, which say what to pack and where to unpack */
	struct engine_plan *bound;
	char *input, *output;
	size_t bytes; /* a member's */
	size_t layer_bytes; /* from one layer of the input to the next */
	size_t element_bytes;
	struct transport_signature signature;
	uint64_t group; /* that it was issued in; 0: in none */
	bool started, done;
	bool waits_for_group; /* a member of an operation that was not submitted yet */
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
	bool counting; /* arrival runs, and has since still_moves */
	uint64_t still_moves;
	int64_t still_since; /* as far as somebody waited for it; 0: not set */
	struct st_deadline arrival;
	int64_t checked; /* when the links were last asked for a sign of life */
	bool announced, second_chance;
	bool recorded;          /* the flight recorder knows what it waits for */
	uint64_t started_moves; /* moves when the first request began */

	char *staging;             /* (options.fusion_bytes) where the lane's current operation is packed if it is fused; made when first needed */
	struct engine_plan *armed; /* whose links are armed, in a sleep */
};

struct engine {
	struct engine_options options; /* lanes: at least 1 */
	struct link **links;
	size_t link_count;
	struct transport_memory memory;    /* that links may lend from */
	struct comm_request *made, *spare;
	uint64_t sequence;
	struct lane lanes[COMM_MAX_LANES]; /* (options.lanes) the last one goes first */
	uint64_t starts, ends;             /* operations begun; requests done */
	int64_t spin_ns;
	uint64_t waits;
	struct pollfd *fds; /* (link_count + 2); the helper takes it along while it polls */
	struct engine_thread *thread; /* NULL: whoever calls drives the engine */

	enum st_status failed;
	char why[1024];
	struct comm_counters counters;
};

/* One step of the lane's first request. ST_OK: done. ST_PENDING: lane->blocked says on what. Else the link's failure. */
enum st_status engine_run_step(struct lane *lane, const struct plan_step *step);

/* engine.c */

/* Steps done and operations ended in all lanes: grows as long as anything goes on. */
uint64_t engine_moves(const struct engine *engine);

/*
 * One look at everything: lanes take turns, from the highest down, until nothing moves or `until` (may be NULL) is done.  ST_OK: nothing is left to
 * do.  ST_PENDING.  Else: the failure, after which nothing is left.
 */
enum st_status engine_look(struct engine *engine, const struct comm_request *until);

/* Nothing moved in this look: has it been too long, in any lane? */
enum st_status engine_check_stillness(struct engine *engine);
enum st_status engine_check_control(struct engine *engine);

/* From here on everything fails. `status` is what this call returns; later calls return ST_ERR_ABORTED. Message: st_message(). */
enum st_status engine_fail_all(struct engine *engine, enum st_status status);

/* The request is done: frees it and returns its status; an aborted one has the verdict as its message. */
enum st_status engine_collect(struct engine *engine, struct comm_request **request);

void engine_release_plan(struct engine_plan *bound);

/* engine_wait.c */
void engine_reset_spin(struct engine *engine);
void engine_pause_cpu(void);

/* A sleep is: begin, which arms the links of all lanes and says what to poll, unless it returns something else than ST_PENDING; poll; end, in any case. */
enum st_status engine_sleep_begin(struct engine *engine, int wake_fd, nfds_t *count, int *timeout_ms);
void engine_sleep_end(struct engine *engine);

/* engine_thread.c */

/* Somebody waits for the lock. */
bool engine_lock_wanted(const struct engine *engine);

/* engine_wait where a helper thread drives the engine. */
enum st_status engine_thread_wait(struct engine *engine, struct comm_request **request);

#endif
