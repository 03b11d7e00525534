/*
 * The layout of step records on disk and between the ranks of a node.  Little-endian, no padding.
 *
 * A file is a sequence of blocks, each {struct records_block, payload}.  Blocks of several launches may follow each other, or even
 * alternate, since each names its launch; a launch's RECORDS_SESSION block comes before its others in every file.  The checksum covers
 * header and payload, so a reader that meets a torn or overwritten block looks for the next magic and goes on there.
 * The block header never changes its layout; version counts changes of payloads.  New fields of a record go to its end: readers
 * take the part they know.
 */
#ifndef SYNCTRAIN_TRAINER_RECORDS_FORMAT_H
#define SYNCTRAIN_TRAINER_RECORDS_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "trainer/records.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "step records are written as they lie in memory: a big-endian machine needs conversions here"
#endif

#define RECORDS_MAGIC "SYNCTREC"
#define RECORDS_VERSION 1

enum records_kind {
	RECORDS_SESSION = 1, /* struct records_session, then its host runs: a writer starts on this file */
	RECORDS_STEPS = 2,   /* struct train_record, as many as fit bytes */
	RECORDS_DROPPED = 3, /* struct records_dropped, one for each rank whose count changed */
	RECORDS_END = 4,     /* nothing: the writer was closed, so its process was not killed */
};

struct records_block {
	char magic[8];
	uint16_t version;
	uint16_t kind;
	uint32_t bytes;  /* of the payload */
	uint64_t launch; /* random, the same on all nodes of one launch */
	uint64_t check;  /* XXH3-64 of the payload, seeded with that of the 24 bytes above */
};

#define RECORDS_HAS_END 1u /* this writer ends its part of the file with RECORDS_END */

struct records_session {
	int64_t wall_ns;       /* CLOCK_REALTIME of rank 0 at the launch: orders launches */
	uint32_t record_bytes; /* distance between records in RECORDS_STEPS, at least TRAIN_RECORD_BYTES */
	uint32_t ranks;        /* world size */
	uint32_t host_runs;    /* struct train_hosts that follow: in the file of rank 0's node all ranks, else this node's */
	uint32_t flags;        /* RECORDS_HAS_END; older writers wrote 0 */
	char job[96];          /* NUL-padded, as all strings */
	char node[64];
};

struct records_dropped {
	uint32_t rank;
	uint32_t reserved;
	uint64_t count; /* since the launch began: the highest count says it all */
};

/* From a rank to its node's writer: this, then count records. */
struct records_datagram {
	uint64_t launch;
	uint32_t rank;
	uint16_t count;
	uint16_t last;    /* 1: nothing more will come */
	uint64_t dropped; /* by this rank since the launch began */
};

#define RECORDS_DATAGRAM_MAX 56 /* records in one datagram: about 8 KiB */
#define RECORDS_STEPS_MAX 448   /* records in one block that the writer makes: about 64 KiB */

_Static_assert(sizeof(struct train_record) == TRAIN_RECORD_BYTES, "the record's layout is a file format");
_Static_assert(offsetof(struct train_record, phase_ns) == 32 && offsetof(struct train_record, loss) == 136, "as above");
_Static_assert(sizeof(struct records_block) == 32, "as above");
_Static_assert(sizeof(struct records_session) == 184, "as above");
_Static_assert(sizeof(struct train_hosts) == 72, "as above");
_Static_assert(sizeof(struct records_dropped) == 16, "as above");
_Static_assert(sizeof(struct records_datagram) == 24, "as above");

/* Fills the header of a block whose payload lies behind it. */
void train_records_seal(struct records_block *block, enum records_kind kind, uint64_t launch, size_t bytes);

/* Whether the checksum matches the header and the payload (block->bytes). */
bool train_records_sealed(const struct records_block *block, const void *payload);

/* "steps-<run>-<node>.rec": letters, digits, '.', '_' and '-' stay, everything else becomes '_'; at most 64 characters of each. */
#define RECORDS_NAME_BYTES 160
void train_records_name(const char *run, const char *node, char name[RECORDS_NAME_BYTES]);

#endif
