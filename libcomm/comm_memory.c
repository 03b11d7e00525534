/* Memory that local peers can map. */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "comm_internal.h"
#include "shm_segment.h"

static void release(struct comm_memory *memory)
{
	munmap(memory->address, memory->bytes);
	close(memory->fd);
	free(memory);
}

enum st_status comm_memory_alloc(struct comm *comm, size_t bytes, void **memory)
{
	struct comm_memory *made = calloc(1, sizeof *made);
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	if (!made)
		return st_fail(ST_ERR_NOMEM, "memory of a communicator: out of memory");
	if (bytes > SIZE_MAX / 2) {
		free(made);
		return st_fail(ST_ERR_NOMEM, "memory of a communicator: %zu bytes", bytes);
	}
	made->bytes = bytes ? (bytes + page - 1) / page * page : page;
	/* Local ranks tend to allocate the same at the same time. */
	enum st_status status = transport_memory_make("synctrain-buffer", made->bytes, comm_local_size(comm), "memory of a communicator", &made->fd,
						      &made->address);
	if (status != ST_OK) {
		free(made);
		return status;
	}
	engine_lock(comm->engine);
	status = engine_add_memory(comm->engine, made->address, made->bytes, made->fd);
	if (status == ST_OK) {
		made->next = comm->memory;
		comm->memory = made;
	}
	engine_unlock(comm->engine);
	if (status != ST_OK) {
		release(made);
		return status;
	}
	*memory = made->address;
	return ST_OK;
}

void comm_memory_free(struct comm *comm, void *memory)
{
	struct comm_memory *found = NULL;
	/* No engine: the communicator itself is being freed. */
	if (comm->engine)
		engine_lock(comm->engine);
	for (struct comm_memory **at = &comm->memory; *at; at = &(*at)->next)
		if ((*at)->address == memory) {
			found = *at;
			*at = found->next;
			break;
		}
	if (comm->engine) {
		if (found)
			engine_remove_memory(comm->engine, found->address);
		engine_unlock(comm->engine);
	}
	if (found)
		release(found);
}
