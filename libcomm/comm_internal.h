/* Inside a communicator: shared by comm.c (joining, collectives), comm_options.c and comm_memory.c. */
#ifndef SYNCTRAIN_LIBCOMM_COMM_INTERNAL_H
#define SYNCTRAIN_LIBCOMM_COMM_INTERNAL_H

#include "comm.h"
#include "control.h"
#include "engine.h"
#include "plan_choose.h"

#define PLAN_CACHE 64

struct cached_plan {
	struct engine_plan *bound;
	enum plan_collective collective;
	uint64_t elements, chunk_elements;
	uint32_t root;
	bool in_place, wide;
	uint64_t last_use;
};

struct comm_memory {
	struct comm_memory *next;
	void *address;
	size_t bytes;
	int fd; /* kept: local peers can be given it */
};

struct comm {
	struct control *control;     /* shared with the communicators split off from this one: a reference each */
	struct control_group *group; /* the control plane as this communicator sees it */
	uint64_t splits;             /* of this communicator so far */
	struct engine *engine;
	const struct topo_world *world;
	struct comm_options options;
	uint32_t rank, size;
	size_t chunk_bytes;
	unsigned slots;
	unsigned algorithms;         /* mask of 1 << enum plan_algorithm: those to choose from */
	struct plan_layout layout;
	uint32_t *position;          /* (size) rank -> ring position */
	uint32_t *node_starts;       /* (nodes + 1) ring position -> where each node's ranks begin */
	struct cached_plan plans[PLAN_CACHE];
	uint64_t uses;
	struct comm_memory *memory;
};

/* Engine and links of a communicator whose control, group and options are set: collective among its members. */
enum st_status comm_wire(struct comm *comm);
/* This rank can't go on with making a communicator, of which st_message() tells: the others, who wait for it, are told. Returns status. */
enum st_status comm_give_up(struct control *control, enum st_status status);

/* ST_ERR_USAGE for options that no communicator can have. */
enum st_status comm_options_check(const struct comm_options *options);

/* What an algorithm's name allows: a mask of 1 << enum plan_algorithm. */
unsigned comm_algorithms_of(enum comm_algorithm algorithm);

#endif
