/*
 * Memory that two processes of one node share: a memfd of fixed size, made by one and mapped by both.
 *
 * The one that gets it believes nothing: it must be a memfd (whose size can be sealed, and which no file server stands behind), of exactly the
 * size agreed, sealed against growing and shrinking (a peer that could shrink it could kill us by a signal) and without holes.  Whoever
 * has mapped it adds a seal against further writable mappings, which is also the one that keeps anybody from punching holes: a page that
 * comes back is charged to whoever touches it, perhaps where a memory limit kills.
 */
#ifndef SYNCTRAIN_LIBCOMM_SHM_SEGMENT_H
#define SYNCTRAIN_LIBCOMM_SHM_SEGMENT_H

#include <stddef.h>

#include "common/status.h"

/* Bytes of memory, all allocated, so that no later touch can fail; sealed against change of size.  `sharers` processes may be doing the
 * same at this moment: looks at the memory limits (common/memory_room.h) as it goes. WHAT begins the message: "shared memory for rank 3".
 * ST_ERR_NOMEM when it would not fit; nobody is killed. */
enum st_status shm_segment_make(const char *name, size_t bytes, unsigned sharers, const char *what, int *fd);

/* Maps for reading and writing what was made here or came from a peer, and which of the two checks it. A peer's that is not as it must
 * be: ST_ERR_PROTOCOL. WHAT: "shared memory of rank 3 on node1". */
enum st_status shm_segment_map(int fd, size_t bytes, const char *what, void **memory);

/* Maps for reading only what came from a peer, who has mapped it already; checks and seals it. ST_ERR_PROTOCOL. */
enum st_status shm_segment_map_read(int fd, size_t bytes, const char *what, const void **memory);

/* After all who write have mapped it: no holes from now on, and none before; later mappings can only read.  Then takes all its pages into this process's
 * page table. ST_ERR_PROTOCOL. */
enum st_status shm_segment_seal(int fd, void *memory, size_t bytes, const char *what);

#endif
