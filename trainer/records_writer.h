/*
 * The writing half of records.h without its communicator, so that it runs between plain processes:
 * records_node.c (ring, thread, socket between the ranks of a node) over records_sink.c (the file).
 */
#ifndef SYNCTRAIN_TRAINER_RECORDS_WRITER_H
#define SYNCTRAIN_TRAINER_RECORDS_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "trainer/records_format.h"

/* What the ranks of a launch know in common, and which of them this is. Borrowed by train_records_prepare for the call. */
struct records_setup {
	uint32_t rank, size;
	const char *const *hosts; /* (size): the node of each rank */
	const char *directory;
	const char *run;
	uint64_t launch;          /* equal on all ranks, random */
	int64_t wall_ns;          /* equal on all ranks */
};

#define RECORDS_SOCKET_BYTES 64

/* The lowest rank on this rank's node: the one that writes. */
uint32_t train_records_writer(const struct records_setup *setup);

/* Allocates, and on the writer binds its socket: socket_name is its abstract name without the leading NUL; "" when there is none.
 * ST_ERR_NOMEM. */
enum st_status train_records_prepare(const struct records_setup *setup, char socket_name[RECORDS_SOCKET_BYTES],
				     struct train_records **records);

/* Starts this rank's thread. socket_name: the writer's. What fails is one warning, and records are dropped from then on. */
void train_records_start(struct train_records *records, const char *socket_name);

/*
 * The file.  Used by the writer's thread alone.  Blocks that could not be written are kept and tried again a second later, from the
 * byte where the write stopped; meanwhile the sink is full and takes nothing, which makes the rings behind it overflow and count.
 */
struct records_sink;

enum st_status records_sink_create(const struct records_setup *setup, struct records_sink **sink);
void records_sink_free(struct records_sink *sink);

/* On rank 0: makes the directory, and warns when it can't be had, before there is anything to write. May block as the storage does. */
void records_sink_prepare(struct records_sink *sink, int64_t now_ns);
/* Whether records have reached the file. */
bool records_sink_wrote(const struct records_sink *sink);

/* Whether it has a place for another record. */
bool records_sink_ready(const struct records_sink *sink);
/* Only when ready. */
void records_sink_put(struct records_sink *sink, const struct train_record *record, int64_t now_ns);
/* This rank (of the sink's node) has dropped so many records since the launch began. */
void records_sink_dropped(struct records_sink *sink, uint32_t rank, uint64_t count, int64_t now_ns);
/* Whether something has waited long enough to be written. */
bool records_sink_due(const struct records_sink *sink, int64_t now_ns);
/* Writes everything. May block as long as the storage does. False: it could not; the first time for a lasting reason, it warns. */
bool records_sink_flush(struct records_sink *sink, int64_t now_ns);
/* After a flush that failed: when the next one will try again. */
int64_t records_sink_retry_ns(const struct records_sink *sink);
/* Nothing more will come, if what came before could be written: says so in the file. */
void records_sink_end(struct records_sink *sink);
/* Gives up what was not written and says how many records that was. */
size_t records_sink_discard(struct records_sink *sink);

#endif
