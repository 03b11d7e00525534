/* Inside the shared-memory link: transport_shm.c (grants, puts, sleeping) and transport_shm_lend.c (memory that is lent). */
#ifndef SYNCTRAIN_LIBCOMM_TRANSPORT_SHM_INTERNAL_H
#define SYNCTRAIN_LIBCOMM_TRANSPORT_SHM_INTERNAL_H

#include <stdatomic.h>

#include "transport.h"

#define SHM_LINE 64

/* What a line with a put or a lend says of it. */
enum shm_kind {
	SHM_PUT,    /* lies where the next grant said */
	SHM_INLINE, /* a lend of up to SHM_INLINE_BYTES: they are in `words` */
	SHM_REGION, /* a lend: words = region, offset in it */
	SHM_READ,   /* a lend: words = address in the sender's memory, to be read from there */
	SHM_KINDS
};
#define SHM_WORDS 4
#define SHM_INLINE_BYTES (SHM_WORDS * sizeof(uint64_t))

struct shm_line {
	_Alignas(SHM_LINE) _Atomic uint64_t number;
	_Atomic uint64_t tag, bytes;
	_Atomic uint64_t what; /* grant: the slot; else enum shm_kind */
	_Atomic uint64_t words[SHM_WORDS];
};
_Static_assert(sizeof(struct shm_line) == SHM_LINE, "a line is a cache line");

struct shm_segment_head {
	_Alignas(SHM_LINE) _Atomic uint32_t asleep;   /* the owner sleeps; cleared by whoever wakes it */
	_Alignas(SHM_LINE) _Atomic uint64_t version;  /* odd while the owner writes `entered` */
	_Atomic uint64_t entered[3];
	_Alignas(SHM_LINE) _Atomic uint64_t returned; /* lends of the peer that the owner has given back */
	_Atomic uint32_t reads;                       /* the owner has proved that it can read the peer's memory */
	_Alignas(SHM_LINE) struct shm_line lines[];   /* grants, then puts and lends */
};

struct shm_grant {
	uint64_t bytes, tag;
};

/* A lend of the peer's, as its line said. */
struct shm_lend {
	uint64_t bytes, kind;
	uint64_t words[SHM_WORDS];
	const void *memory;        /* once it has been looked for */
	struct shm_region *region; /* of which `memory` is a part */
};

/* Memory of the peer's that is mapped here. */
struct shm_region {
	struct shm_region *next;
	uint64_t id;
	const char *memory;
	size_t bytes;
	unsigned users; /* lends not yet given back */
	bool freed;     /* by the peer; goes with its last user */
};

/* Messages on the socket, and between them single bytes that only wake. */
enum { SHM_WAKE = 0, SHM_MEMORY = 'm', SHM_FORGET = 'f' };
#define SHM_MESSAGE_BYTES 17 /* which, region, bytes */

/* Where in this process a random number lies: who can read it there can read all of its memory. */
struct shm_proof {
	uint64_t address, nonce[2];
};

struct shm_link {
	struct link link;
	int fd;
	bool eof, armed;
	unsigned slots, lines;
	size_t slot_bytes, stride, segment_bytes;
	struct shm_segment_head *own, *theirs; /* own: the peer writes its puts here */
	struct shm_line *own_grants, *own_events, *their_grants, *their_events;
	char *own_slots, *their_slots;
	uint64_t tag;                 /* of the operation entered */
	uint64_t granted;             /* grants given */
	uint64_t landed;              /* puts and lends of the peer seen, */
	uint64_t landed_puts, landed_lends; /* and of each kind */
	struct shm_grant *grants;     /* (lines) what was granted: never read back from the segment */
	uint64_t reserved_bytes;
	unsigned quiet;               /* calls of progress since the last look at the socket */
	uint64_t compared;            /* version of the peer's `entered` that was compared with the own one */

	/* Lending. */
	uint64_t returned, flushed;   /* own lends that the peer gave back; own lends whose source is free */
	bool *copied;                 /* (slots) own lend `number modulo slots` is of a copy */
	char *copies;                 /* (slots * stride) those; made with the first one */
	uint64_t *passed;             /* memory that the peer has been given */
	uint64_t *freed;              /* that it has still to be told of */
	size_t passed_count, freed_count, passed_room;

	/* Borrowing. */
	struct shm_lend *lends;       /* (slots) */
	uint64_t given_back;
	struct shm_region *regions;   /* the one used last is the first */
	size_t region_count;
	char *fetched;                /* (slots * stride) what was read from the peer's memory; made with the first one */
	unsigned char message[SHM_MESSAGE_BYTES];
	size_t message_bytes;
	int message_fd;               /* came with it; -1 */

	/* Reading the peer's memory. */
	int pid;                      /* 0: can't */
	uint64_t *nonce;              /* (2) of this rank, for the peer to find */
	struct shm_proof proof;       /* the peer's */
};

static inline struct shm_link *shm_of(struct link *link)
{
	return (struct shm_link *)link;
}

/* One byte on the socket, only when the peer sleeps. */
void shm_wake(struct shm_link *me);

/* Takes the lines that the peer has written, up to the first lend for an operation that this rank has not entered. */
void shm_take_events(struct shm_link *me);

/* The two ends disagree. */
enum st_status shm_mismatch(struct shm_link *me, bool peer_sends, uint64_t sent, uint64_t expected);

/* Takes what is on the socket: bytes that wake, memory to map or unmap. ST_PENDING: nothing was there. Else the link is broken. */
enum st_status shm_read_socket(struct shm_link *me);

/* A lend that a line announced; there must be room for it. */
void shm_lend_landed(struct shm_link *me, const struct shm_line *line, uint64_t kind);

/* This rank's proof, before the link is used; and what to do when the peer's is there. */
enum st_status shm_proof_make(struct shm_link *me, struct shm_proof *proof);
void shm_proof_try(struct shm_link *me);

/* See transport.h. */
enum st_status shm_lend(struct link *link, const void *source, size_t bytes, bool copied);
uint64_t shm_returned(struct link *link);
enum st_status shm_borrowed(struct link *link, uint64_t number, size_t bytes, void *into, const void **memory);
void shm_give_back(struct link *link);
void shm_forget(struct link *link, uint64_t region);

/* Number of own lends, from the first on, whose sources are free. */
uint64_t shm_lends_flushed(struct shm_link *me);

void shm_lend_close(struct shm_link *me);

#endif
