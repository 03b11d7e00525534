/* Memory that local peers can map. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "comm_internal.h"

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
	made->fd = memfd_create("synctrain-buffer", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (made->fd < 0) {
		free(made);
		return st_fail_errno("memory of a communicator: memfd_create");
	}
	/* Allocated now: when memory runs out later there is no error to return. */
	int error = ftruncate(made->fd, (off_t)made->bytes) ? errno : 0;
	while (!error && fallocate(made->fd, 0, 0, (off_t)made->bytes))
		if (errno != EINTR)
			error = errno;
	if (!error && fcntl(made->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW))
		error = errno;
	made->address = error ? MAP_FAILED : mmap(NULL, made->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, made->fd, 0);
	if (made->address == MAP_FAILED) {
		if (!error)
			error = errno;
		close(made->fd);
		free(made);
		errno = error;
		return st_fail_errno("memory of a communicator: %zu bytes", bytes);
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
