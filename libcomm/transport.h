/*
 * A transport moves puts along channels; the engine sees nothing but this interface.
 *
 * A link joins this rank with one peer through one transport and carries both directions of one channel index.  All calls are
 * made by the communicator's one thread, none blocks (open excepted).  Grants and puts are FIFO per direction: put k lands where grant k said.
 *
 * What the peer writes, to memory or to the socket, is hostile: it is copied before it is checked and checked before it is used.
 */
#ifndef SYNCTRAIN_LIBCOMM_TRANSPORT_H
#define SYNCTRAIN_LIBCOMM_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

struct link;

/* What a rank is doing: travels with every grant and put, so that ranks that disagree find out before they use wrong data. */
struct transport_signature {
	uint64_t sequence; /* of the operation on its communicator: 1, 2, ... */
	uint64_t count;    /* as given by the caller, in elements */
	uint32_t root;       /* broadcast; reduce_scatter and all_gather of shards of given sizes: a digest of these, never 0; fused operations: of their counts */
	uint8_t collective;  /* enum plan_collective */
	uint8_t type, op;    /* enum comm_type, comm_op */
	uint8_t fused;       /* how many operations are fused into this one; 0: it is none of that kind */
};

/* Writes e.g. "allreduce 12 of 4194304 f32, sum", "broadcast 3 of 10 u8 from rank 2" or "all_gather 4 of 1000 f32 in shards 1a2b3c4d". */
#define TRANSPORT_SIGNATURE_TEXT 96
void transport_signature_print(const struct transport_signature *signature, char text[TRANSPORT_SIGNATURE_TEXT]);

/*
 * Memory of this process that local peers can map: what a link lends from it need not be copied.  A registry, kept by the engine for its links.
 */
struct transport_region {
	const char *address;
	size_t bytes;
	uint64_t id; /* 1, 2, ...: never used again */
	int fd;      /* of the memfd that it is, whole; borrowed */
};
struct transport_memory {
	struct transport_region *regions; /* by address */
	size_t count, room;
	uint64_t last_id;
};

/* ST_ERR_NOMEM. */
enum st_status transport_memory_add(struct transport_memory *memory, const void *address, size_t bytes, int fd);
/* The id that it had; 0: it was not there. */
uint64_t transport_memory_remove(struct transport_memory *memory, const void *address);
/* The region that holds all these bytes; NULL: none does. */
const struct transport_region *transport_memory_find(const struct transport_memory *memory, const void *address, size_t bytes);

/* New memory that can be lent, mapped for reading and writing: bytes is a multiple of the page size; see shm_segment.h for the rest. */
enum st_status transport_memory_make(const char *name, size_t bytes, unsigned sharers, const char *what, int *fd, void **address);

struct transport_ends {
	uint32_t rank, peer;
	const char *host, *peer_host; /* for messages; must outlive the link */
};

struct transport_ops {
	const char *name; /* "shm", "tcp" */
	bool mapped;      /* the sender stores straight into the receiver's slots: reserve and commit instead of put; only slots are granted */

	/*
	 * Makes a link out of a connected, authenticated stream socket (see control.h), which it then owns, also on failure.  `slots`
	 * slots of slot_bytes each are set aside for what the peer sends; equal on both ends.  Both ends call this; exchanges a first
	 * message on the socket within the deadline.
	 */
	enum st_status (*open)(int fd, const struct transport_ends *ends, unsigned slots, size_t slot_bytes, int64_t timeout_ms,
			       struct link **link);
	void (*close)(struct link *link);

	/* The memory of incoming slot `slot` (0..slots-1), slot_bytes long, cache-line aligned. */
	void *(*slot)(struct link *link, unsigned slot);

	/* This rank begins an operation that uses this link: grants and puts from here on belong to it. */
	void (*enter)(struct link *link, const struct transport_signature *signature);

	/* Slow path, once per operation that has waited long: makes sure that the peer can know that this rank has entered. */
	void (*announce)(struct link *link);

	/* Slow path, about once a second while this rank waits on the link: whether the peer's host still answers on it, whatever its process does.
	 * ST_ERR_ABORTED: not for silence_ms; the link is dead.  NULL: it has no silence that could be told from patience (shared memory). */
	enum st_status (*check)(struct link *link, int64_t silence_ms);

	/* The newest operation that the peer is known to have entered; false when none is known. */
	bool (*heard)(struct link *link, struct transport_signature *signature);

	/* Receiver: grants `bytes` at `destination` (an own slot; if not mapped, also any private memory) for the peer's next put, which
	 * must carry exactly this many bytes and belong to the same operation. ST_PENDING: too many grants outstanding, call again. */
	enum st_status (*ready)(struct link *link, void *destination, size_t bytes);

	/* Sender, not mapped: the next put. ST_PENDING: no room yet, call again with the same arguments. */
	enum st_status (*put)(struct link *link, const void *source, size_t bytes);

	/* Sender, mapped: where the next put, of `bytes`, goes; ST_PENDING: not granted yet.  After storing there, commit signals. */
	enum st_status (*reserve)(struct link *link, size_t bytes, void **destination);
	void (*commit)(struct link *link);

	/* Number of puts and lends of the peer that have landed whole; number of own puts and lends, from the first on, whose source may be
	 * overwritten. Both only grow. */
	uint64_t (*received)(struct link *link);
	uint64_t (*flushed)(struct link *link);

	/*
	 * Mapped links lend too (see plan.h); NULL on others.  Sender: lend, ST_PENDING while `slots` lends are not returned; returned, how many are.
	 * Receiver: borrowed, where lend `number` (0, 1, ... of the link, landed and not given back) can be read, of exactly so many bytes: in
	 * `into` (NULL: not there) if it has to be stored somewhere; give_back, the oldest one.  What is lent stays as it is until then.
	 */
	enum st_status (*lend)(struct link *link, const void *source, size_t bytes, bool copied);
	uint64_t (*returned)(struct link *link);
	enum st_status (*borrowed)(struct link *link, uint64_t number, size_t bytes, void *into, const void **memory);
	void (*give_back)(struct link *link);

	/* A region is no longer lent from, and about to be freed. NULL on links that do not lend. */
	void (*forget)(struct link *link, uint64_t region);

	/*
	 * Moves bytes. Returns ST_OK, or why this link is dead, again and again: ST_ERR_ABORTED for end of file or reset (the peer is gone;
	 * what it sent before still counts), ST_ERR_MISMATCH (length or operation of a put is not what was granted, st_message() names
	 * both sides), ST_ERR_PROTOCOL.
	 */
	enum st_status (*progress)(struct link *link);

	/*
	 * Sleeping.  arm() says that this rank is about to sleep until something changes on the link; afterwards the caller looks once
	 * more and then sleeps on fd() (-1: at end of file), for reading if wants_read() and for writing if wants_write().  disarm() when awake.
	 */
	int (*fd)(struct link *link);
	bool (*wants_read)(struct link *link);
	bool (*wants_write)(struct link *link);
	void (*arm)(struct link *link);
	void (*disarm)(struct link *link);
};

extern const struct transport_ops transport_shm, transport_tcp;

/* Bytes of shared memory that this end of a transport_shm link takes. */
size_t transport_shm_bytes(unsigned slots, size_t slot_bytes);

/* Every struct link starts with this. */
struct link {
	const struct transport_ops *ops;
	struct transport_ends ends;
	uint16_t index;            /* channel index, set by the engine */
	uint8_t lane;              /* likewise */
	uint64_t puts, lends;      /* sent by this rank, */
	uint64_t put_bytes;        /* of both */
	unsigned slots;            /* that there are */
	const struct transport_memory *memory; /* set by the engine; NULL: none */
	uint64_t waited;           /* the engine's: puts and lends of the peer that its plans have waited for, */
	uint64_t given_back, given_back_before; /* lends that they have returned; by earlier operations */
	struct transport_signature entered; /* by this rank */
	enum st_status broken;     /* not ST_OK: why this link is dead; `why` is the message */
	char why[512];
};

/* For transports: marks the link dead with the message of st_fail; returns broken. */
enum st_status transport_break(struct link *link, enum st_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Both ranks, the lower one first, and what each does: the same text at both ends. */
#define TRANSPORT_DISAGREEMENT_TEXT 384
void transport_disagreement(const struct transport_ends *ends, const char *mine, const char *theirs, char text[TRANSPORT_DISAGREEMENT_TEXT]);
/* The two ends disagree: names both ranks and what each does; where that is the same, or the peer's (NULL) is not known, the bytes on both sides. */
enum st_status transport_mismatch(struct link *link, const struct transport_signature *theirs, bool peer_sends, uint64_t sent, uint64_t granted);
/* Restores the message of a dead link. */
enum st_status transport_status(const struct link *link);

#endif
