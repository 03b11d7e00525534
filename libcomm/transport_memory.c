/* Memory that can be lent to local peers. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shm_segment.h"
#include "transport.h"

enum st_status transport_memory_make(const char *name, size_t bytes, unsigned sharers, const char *what, int *out, void **address)
{
	int fd;
	void *memory;
	ST_TRY(shm_segment_make(name, bytes, sharers, what, &fd));
	enum st_status status = shm_segment_map(fd, bytes, what, &memory);
	if (status == ST_OK && (status = shm_segment_seal(fd, memory, bytes, what)) != ST_OK)
		munmap(memory, bytes);
	if (status != ST_OK) {
		close(fd);
		return status;
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
