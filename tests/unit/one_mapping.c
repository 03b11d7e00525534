/*
 * For ranks as threads under ThreadSanitizer, which knows memory by its address: two mappings of one memfd in one process would be two memories to it, and
 * it would see neither a race on what is shared nor the stores and loads that order it.  So what maps a memfd a second time gets the address of the first.
 * Linked into the unit tests of such builds in place of mmap and munmap (--wrap).
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

void *__real_mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset);
int __real_munmap(void *address, size_t bytes);
void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset);
int __wrap_munmap(void *address, size_t bytes);

static struct mapping {
	struct mapping *next;
	dev_t device;
	ino_t inode;
	void *address;
	size_t bytes;
	unsigned users;
} *mappings;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
	struct stat status;
	struct mapping *mapping;
	void *mapped = MAP_FAILED;

	if (fd < 0 || !(flags & MAP_SHARED) || address || offset || fcntl(fd, F_GET_SEALS) < 0 || fstat(fd, &status))
		return __real_mmap(address, bytes, protection, flags, fd, offset);
	pthread_mutex_lock(&lock);
	for (mapping = mappings; mapping; mapping = mapping->next)
		if (mapping->device == status.st_dev && mapping->inode == status.st_ino && mapping->bytes == bytes)
			break;
	/* Whether it may be mapped at all is still the kernel's to say. */
	mapped = __real_mmap(NULL, bytes, protection, flags, fd, 0);
	if (mapped != MAP_FAILED && mapping) {
		__real_munmap(mapped, bytes);
		mapping->users++;
		mapped = mapping->address;
	} else if (mapped != MAP_FAILED && (mapping = malloc(sizeof *mapping))) {
		*mapping = (struct mapping){mappings, status.st_dev, status.st_ino, mapped, bytes, 1};
		mappings = mapping;
	}
	pthread_mutex_unlock(&lock);
	return mapped;
}

int __wrap_munmap(void *address, size_t bytes)
{
	int result = 0;

	pthread_mutex_lock(&lock);
	struct mapping **at = &mappings;
	while (*at && (*at)->address != address)
		at = &(*at)->next;
	if (!*at) {
		result = __real_munmap(address, bytes);
	} else if (!--(*at)->users) {
		struct mapping *last = *at;
		*at = last->next;
		result = __real_munmap(address, bytes);
		free(last);
	}
	pthread_mutex_unlock(&lock);
	return result;
}
