/* Memory that local peers can map. */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "comm_internal.h"
#include "shm_segment.h"

enum st_status comm_memory_alloc(struct comm *comm, size_t bytes, void **memory)
{
	struct comm_memory *made = calloc(1, sizeof *made);
	long page = sysconf(_SC_PAGESIZE);
	if (!made)
		return st_fail(ST_ERR_NOMEM, "memory of a communicator: out of memory");
	if (bytes > SIZE_MAX / 2) {
		free(made);
		return st_fail(ST_ERR_NOMEM, "memory of a communicator: %zu bytes", bytes);
	}
	made->bytes = bytes ? (bytes + (size_t)page - 1) / (size_t)page * (size_t)page : (size_t)page;
	/* Local ranks tend to allocate the same at the same time. */
	enum st_status status = shm_segment_make("synctrain-buffer", made->bytes, comm_local_size(comm), "memory of a communicator", &made->fd);
	if (status != ST_OK) {
		free(made);
		return status;
	}
	status = shm_segment_map(made->fd, made->bytes, "memory of a communicator", &made->address);
	if (status == ST_OK && (status = shm_segment_seal(made->fd, made->address, made->bytes, "memory of a communicator")) != ST_OK)
		munmap(made->address, made->bytes);
	if (status != ST_OK) {
		close(made->fd);
		free(made);
		return status;
	}
	made->next = comm->memory;
	comm->memory = made;
	*memory = made->address;
	return ST_OK;
}

void comm_memory_free(struct comm *comm, void *memory)
{
	for (struct comm_memory **at = &comm->memory; *at; at = &(*at)->next) {
		struct comm_memory *found = *at;
		if (found->address != memory)
			continue;
		*at = found->next;
		munmap(found->address, found->bytes);
		close(found->fd);
		free(found);
		return;
	}
}
