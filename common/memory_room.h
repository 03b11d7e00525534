/*
 * How much memory this process may still take before the kernel kills somebody.
 *
 * A memory cgroup's limit counts the pages of memfds too, and when it is reached fallocate() and the first touch of a page do not fail: the
 * kernel kills a process of the group.  So who is about to take much looks first.  Read are memory cgroups of version 1 and 2, each with all
 * its ancestors as far as they are mounted here (a container sees only its own), and the machine itself.  What is absent or makes no sense limits nothing.
 *
 *   room = limit - usage + page cache and slab that the kernel can give back (clean or written out first) + swap that may still be used
 *
 * memory.high is no limit in this sense: beyond it the kernel slows down and does not kill.
 */
#ifndef SYNCTRAIN_COMMON_MEMORY_ROOM_H
#define SYNCTRAIN_COMMON_MEMORY_ROOM_H

#include <stdint.h>

#include "status.h"

struct st_memory_room {
	uint64_t available; /* bytes; UINT64_MAX: nothing known limits it */
	uint64_t limit;     /* of the group that leaves least, or the machine's memory */
	uint64_t identity;  /* equal for two processes of this machine exactly when the same group leaves them least */
	char path[256];     /* its directory, cut off if longer; "/proc/meminfo": the machine itself; "" when nothing is known */
};

/* ROOT is put before every path: "" but for tests with a recorded tree. */
void st_memory_room_read(const char *root, struct st_memory_room *room);

/* What BYTES cost at most: with the kernel's own bookkeeping. */
uint64_t st_memory_cost(uint64_t bytes);

/* ST_ERR_NOMEM with what is needed and available, and where, when BYTES more would not fit. */
enum st_status st_memory_room_check(uint64_t bytes, const char *what);

#endif
