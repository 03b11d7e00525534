#include "shm_segment.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "common/memory_room.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* So much between two looks at the memory limits: one look costs what some hundred KiB of allocation cost. */
#define PIECE ((size_t)8 << 20)

/* Every sharer may have passed its look and not yet taken its piece. */
static enum st_status look(size_t left, unsigned sharers, const char *what)
{
	uint64_t piece = left < PIECE ? left : PIECE;
	return st_memory_room_check((uint64_t)left + piece * (sharers ? sharers - 1 : 0), what);
}

static enum st_status allocate(int fd, size_t bytes, unsigned sharers, const char *what)
{
	for (size_t done = 0; done < bytes;) {
		size_t piece = bytes - done < PIECE ? bytes - done : PIECE;
		if (done)
			ST_TRY(look(bytes - done, sharers, what));
		while (fallocate(fd, 0, (off_t)done, (off_t)piece))
			if (errno != EINTR)
				return st_fail_errno("%s: %zu bytes", what, bytes);
		done += piece;
	}
	return ST_OK;
}

enum st_status shm_segment_make(const char *name, size_t bytes, unsigned sharers, const char *what, int *out)
{
	unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
#ifdef MFD_NOEXEC_SEAL
	int fd = memfd_create(name, flags | MFD_NOEXEC_SEAL);
	if (fd < 0 && errno == EINVAL)
		fd = memfd_create(name, flags);
#else
	int fd = memfd_create(name, flags);
#endif
	if (fd < 0)
		return st_fail_errno("%s: memfd_create", what);
	enum st_status status = look(bytes, sharers, what);
	if (status == ST_OK && bytes > INT64_MAX)
		status = st_fail(ST_ERR_NOMEM, "%s: %zu bytes", what, bytes);
	if (status == ST_OK && ftruncate(fd, (off_t)bytes))
		status = st_fail_errno("%s: %zu bytes", what, bytes);
	if (status == ST_OK)
		status = allocate(fd, bytes, sharers, what);
	if (status == ST_OK && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW))
		status = st_fail_errno("%s: F_ADD_SEALS", what);
	if (status != ST_OK) {
		close(fd);
		return status;
	}
	*out = fd;
	return ST_OK;
}

static enum st_status check(int fd, size_t bytes, bool writable, const char *what)
{
	const int needed = F_SEAL_SHRINK | F_SEAL_GROW;
	struct statfs system;
	struct stat status;

	/* Seals first: the kernel answers for files that have none without asking whatever server may stand behind them. */
	int seals = fcntl(fd, F_GET_SEALS);
	if (seals < 0)
		return st_fail(ST_ERR_PROTOCOL, "%s is no memory that can be sealed", what);
	if ((seals & needed) != needed)
		return st_fail(ST_ERR_PROTOCOL, "%s can change its size: seals 0x%x, expected 0x%x", what, (unsigned)seals, (unsigned)needed);
	/* Huge pages come from a pool, and their absence is a signal. */
	if (fstatfs(fd, &system))
		return st_fail_errno("%s: fstatfs", what);
	if (system.f_type != TMPFS_MAGIC)
		return st_fail(ST_ERR_PROTOCOL, "%s is of file system type 0x%lx, expected a memfd", what, (unsigned long)system.f_type);
	if (fstat(fd, &status))
		return st_fail_errno("%s: fstat", what);
	if (!S_ISREG(status.st_mode) || status.st_size < 0 || (uint64_t)status.st_size != bytes)
		return st_fail(ST_ERR_PROTOCOL, "%s has %jd bytes, expected %zu", what, (intmax_t)status.st_size, bytes);
	if (!writable)
		return ST_OK;
	int mode = fcntl(fd, F_GETFL);
	if (mode < 0 || (mode & O_ACCMODE) != O_RDWR)
		return st_fail(ST_ERR_PROTOCOL, "%s can't be written", what);
	if (seals & F_SEAL_WRITE || seals & F_SEAL_FUTURE_WRITE)
		return st_fail(ST_ERR_PROTOCOL, "%s is sealed against writing: seals 0x%x", what, (unsigned)seals);
	return ST_OK;
}

enum st_status shm_segment_map(int fd, size_t bytes, const char *what, void **memory)
{
	ST_TRY(check(fd, bytes, true, what));
	/* Not populated yet: if there are holes, nothing shall be charged for them. */
	void *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (mapped == MAP_FAILED)
		return st_fail_errno("%s: mmap of %zu bytes", what, bytes);
	*memory = mapped;
	return ST_OK;
}

/* Nobody punches holes from now on, and there are none. */
static enum st_status seal(int fd, size_t bytes, const char *what)
{
	struct stat status;

	/* EINVAL: a kernel before 5.1 has no such seal. */
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) && errno != EINVAL) {
		int seals = fcntl(fd, F_GET_SEALS);
		if (seals < 0 || !(seals & F_SEAL_FUTURE_WRITE))
			return st_fail(ST_ERR_PROTOCOL, "%s can't be sealed against holes: seals 0x%x", what, seals < 0 ? 0u : (unsigned)seals);
	}
	if (fstat(fd, &status))
		return st_fail_errno("%s: fstat", what);
	if ((uint64_t)status.st_blocks * 512 < bytes)
		return st_fail(ST_ERR_PROTOCOL, "%s has holes: %jd of %zu bytes are there", what, (intmax_t)status.st_blocks * 512, bytes);
	return ST_OK;
}

enum st_status shm_segment_map_read(int fd, size_t bytes, const char *what, const void **memory)
{
	ST_TRY(check(fd, bytes, false, what));
	void *mapped = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
	if (mapped == MAP_FAILED)
		return st_fail_errno("%s: mmap of %zu bytes", what, bytes);
	enum st_status status = seal(fd, bytes, what);
	if (status != ST_OK) {
		munmap(mapped, bytes);
		return status;
	}
	*memory = mapped;
	return ST_OK;
}

enum st_status shm_segment_seal(int fd, void *memory, size_t bytes, const char *what)
{
	ST_TRY(seal(fd, bytes, what));
	madvise(memory, bytes, MADV_POPULATE_WRITE); /* saves faults later; a kernel before 5.14 can't */
	return ST_OK;
}
