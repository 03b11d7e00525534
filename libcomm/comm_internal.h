/* Inside a communicator: shared by comm.c (joining, collectives), comm_options.c, comm_memory.c and comm_recorder.c. */
#ifndef SYNCTRAIN_LIBCOMM_COMM_INTERNAL_H
#define SYNCTRAIN_LIBCOMM_COMM_INTERNAL_H

#include "comm.h"
#include "control.h"
#include "engine.h"
#include "plan_choose.h"

struct recorder;

#define PLAN_CACHE 64
#define COMM_MAX_FUSION_BYTES (64 << 20)

struct cached_plan {
	struct engine_plan *bound;
	enum plan_collective collective;
	uint64_t elements, chunk_elements;
	uint32_t root; /* or the shards' digest */
	unsigned lane;
	bool in_place, wide;
	uint64_t last_use;
};

struct comm_memory {
	struct comm_memory *next;
	void *address;
	size_t bytes;
	int fd; /* kept: local peers can be given it */
};

/* The operations of an open group that may yet be fused, in the order of issue. */
struct comm_group {
	bool open;
	uint64_t number;  /* of the group: 1, 2, ... */
	unsigned lane;
	struct comm_request *first, *last; /* held back; NULL: none */
	unsigned members;
	size_t count;     /* elements of all of them */
	uint32_t digest;  /* of their counts */
	enum comm_type type;
	enum comm_op op;
	const void *input; /* of the first */
	void *output;
};

/* A collective that was checked. */
struct comm_call {
	enum plan_collective collective;
	const void *input;
	void *output;
	size_t count;
	const struct comm_shards *shards; /* NULL: all alike */
	enum comm_type type;
	enum comm_op op;
	uint32_t root;
	uint32_t leaves;    /* allreduce_ordered, as is the next */
	size_t layer_bytes; /* from one root to the next */
	bool in_place;
};

struct comm {
	struct control *control;       /* shared with the communicators split off from this one: a reference each */
	struct control_group *context; /* the control plane as this communicator sees it */
	uint64_t splits;               /* of this communicator so far */
	/* Of a communicator that was shrunk to. */
	struct control **past;         /* (past_count) references to all failed control planes of the job, which tell latecomers that they are left out */
	size_t past_count;
	uint32_t *parent_ranks;        /* (size) */
	unsigned generation;           /* 0: not shrunk to */
	struct engine *engine;
	struct recorder *recorder;
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
	struct comm_group group;
	uint32_t *leaves;            /* (leaves_count): ordered sums of so many leaves have their links */
	size_t leaves_count;
};

/* Issues a call, as the operation of *request; or of those that are held back in the group, and request is NULL. */
enum st_status comm_issue(struct comm *comm, const struct comm_call *call, struct comm_request **request);

/* Checked, taken into the open group or issued. Takes the engine's lock. */
enum st_status comm_begin(struct comm *comm, const struct comm_call *call, struct comm_request **request);

/* Opens the links of the communicator's algorithms, or of ordered sums of so many leaves (0: those of the algorithms). Collective; blocks. */
enum st_status comm_open_links(struct comm *comm, uint32_t leaves);

bool comm_overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes);
/* The engine's failure; takes its lock. */
enum st_status comm_failure(struct comm *comm);

/* comm_group.c, the engine locked: takes the call into the open group when it is one to hold back, else *held is false and it may be issued. */
enum st_status comm_group_take(struct comm *comm, const struct comm_call *call, struct comm_request **request, bool *held);
/* ST_ERR_USAGE for a request of the open group. */
enum st_status comm_group_check(const struct comm *comm, const struct comm_request *request, const char *name);

/* Shards of given sizes, as a collective's caller gives them: what a plan and the other ranks need to know of them. */
struct comm_shards {
	const size_t *counts; /* (size); borrowed for the call */
	size_t total, longest, before; /* elements of all, of the longest, of those of lower ranks */
	uint32_t digest;      /* never 0 */
};

/* Looks at counts[size].  ST_ERR_USAGE: more elements in all than memory can hold. */
enum st_status comm_shards_measure(const char *name, const size_t *counts, uint32_t size, uint32_t rank, size_t element_bytes,
				   struct comm_shards *shards);
/* Where the shards begin, size + 1 numbers, to be freed; NULL: no memory. */
uint64_t *comm_shards_offsets(const struct comm_shards *shards, uint32_t size);
/* Whether a plan was made for these very shards. */
bool comm_shards_match(const struct comm_shards *shards, const struct plan *plan);

/* Engine and links of a communicator whose control, context and options are set, and its helper thread: collective among its members. */
enum st_status comm_wire(struct comm *comm);
/* This rank can't go on with making a communicator, of which st_message() tells: the others, who wait for it, are told. Returns status. */
enum st_status comm_give_up(struct control *control, enum st_status status);
/* The engine's failure; takes its lock. */
enum st_status comm_failure(struct comm *comm);

/* ST_ERR_USAGE for options that no communicator can have. */
enum st_status comm_options_check(const struct comm_options *options);

/* comm_recorder.c: makes comm->recorder, of ranks that can wait for each other; before it is closed, what it is to say of the communicator's end. */
void comm_recorder_open(struct comm *comm);
void comm_recorder_judge(struct comm *comm);

/* What an algorithm's name allows: a mask of 1 << enum plan_algorithm. */
unsigned comm_algorithms_of(enum comm_algorithm algorithm);

#endif
