/* Memory that can be lent to local peers. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "transport.h"

enum st_status transport_memory_make(const char *name, size_t bytes, int *out, void **address)
{
	int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return st_fail_errno("shared memory: memfd_create");
	/* Allocated now: when memory runs out later there is no error to return. */
	int error = ftruncate(fd, (off_t)bytes) ? errno : 0;
	while (!error && fallocate(fd, 0, 0, (off_t)bytes))
		if (errno != EINTR)
			error = errno;
	if (!error && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW))
		error = errno;
	void *memory = error ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED) {
		if (!error)
			error = errno;
		close(fd);
		errno = error;
		return st_fail_errno("shared memory: %zu bytes", bytes);
	}
	*out = fd;
	*address = memory;
	return ST_OK;
}

/* Index of the first region that begins after an address. */
static size_t after(const struct transport_memory *memory, const void *address)
{
	size_t low = 0, high = memory->count;
	while (low < high) {
		size_t middle = (low + high) / 2;
		if ((uintptr_t)memory->regions[middle].address <= (uintptr_t)address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

enum st_status transport_memory_add(struct transport_memory *memory, const void *address, size_t bytes, int fd)
{
	if (memory->count == memory->room) {
		size_t room = memory->room ? 2 * memory->room : 8;
		struct transport_region *regions = realloc(memory->regions, room * sizeof *regions);
		if (!regions)
			return st_fail(ST_ERR_NOMEM, "memory of a communicator: out of memory");
		memory->regions = regions;
		memory->room = room;
	}
	size_t at = after(memory, address);
	memmove(&memory->regions[at + 1], &memory->regions[at], (memory->count - at) * sizeof *memory->regions);
	memory->regions[at] = (struct transport_region){address, bytes, ++memory->last_id, fd};
	memory->count++;
	return ST_OK;
}

uint64_t transport_memory_remove(struct transport_memory *memory, const void *address)
{
	size_t at = after(memory, address);
	if (!at || memory->regions[at - 1].address != address)
		return 0;
	uint64_t id = memory->regions[at - 1].id;
	memmove(&memory->regions[at - 1], &memory->regions[at], (memory->count - at) * sizeof *memory->regions);
	memory->count--;
	return id;
}

const struct transport_region *transport_memory_find(const struct transport_memory *memory, const void *address, size_t bytes)
{
	size_t at = memory ? after(memory, address) : 0;
	if (!at)
		return NULL;
	const struct transport_region *region = &memory->regions[at - 1];
	size_t offset = (size_t)((const char *)address - region->address);
	return offset <= region->bytes && bytes <= region->bytes - offset ? region : NULL;
}
