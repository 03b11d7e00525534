#include "io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static enum st_status read_at(int fd, void *buffer, size_t bytes, int positioned, uint64_t offset, const char *name)
{
	size_t done = 0;

	while (done < bytes) {
		ssize_t n = positioned ? pread(fd, (char *)buffer + done, bytes - done, (off_t)(offset + done))
				       : read(fd, (char *)buffer + done, bytes - done);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return st_fail_errno("%s: can't read", name);
		if (n == 0)
			return st_fail(ST_ERR_DATA, "%s: ends after %zu of %zu bytes", name, done, bytes);
		done += (size_t)n;
	}
	return ST_OK;
}

enum st_status st_read_full(int fd, void *buffer, size_t bytes, const char *name)
{
	return read_at(fd, buffer, bytes, 0, 0, name);
}

enum st_status st_pread_full(int fd, void *buffer, size_t bytes, uint64_t offset, const char *name)
{
	return read_at(fd, buffer, bytes, 1, offset, name);
}

enum st_status st_write_full(int fd, const void *buffer, size_t bytes, const char *name)
{
	size_t done = 0;

	while (done < bytes) {
		ssize_t n = write(fd, (const char *)buffer + done, bytes - done);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return st_fail_errno("%s: can't write", name);
		done += (size_t)n;
	}
	return ST_OK;
}

enum st_status st_file_read(const char *path, size_t max_bytes, char **data, size_t *bytes)
{
	struct stat info;
	char *buffer = NULL;
	enum st_status status;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe that nobody writes must not hold us */

	if (fd < 0)
		return st_fail_input(path, "can't open");
	if (fstat(fd, &info) < 0) {
		status = st_fail_errno("%s: can't stat", path);
		goto close_file;
	}
	if (!S_ISREG(info.st_mode)) {
		status = st_fail(ST_ERR_DATA, "%s: not a regular file", path);
		goto close_file;
	}
	if ((uint64_t)info.st_size > max_bytes) {
		status = st_fail(ST_ERR_DATA, "%s: %lld bytes, at most %zu expected", path, (long long)info.st_size, max_bytes);
		goto close_file;
	}
	buffer = malloc((size_t)info.st_size + 1);
	if (!buffer) {
		status = st_fail(ST_ERR_NOMEM, "%s: no memory for %lld bytes", path, (long long)info.st_size);
		goto close_file;
	}
	status = st_read_full(fd, buffer, (size_t)info.st_size, path);
	if (status != ST_OK)
		goto close_file;
	buffer[info.st_size] = 0;
	*data = buffer;
	*bytes = (size_t)info.st_size;
	buffer = NULL;
close_file:
	free(buffer);
	close(fd);
	return status;
}

enum st_status st_make_directories(const char *path, mode_t mode)
{
	char copy[4096];

	if (strlen(path) >= sizeof copy)
		return st_fail(ST_ERR_USAGE, "%.60s...: path of %zu bytes, at most %zu expected", path, strlen(path), sizeof copy - 1);
	strcpy(copy, path);
	for (char *p = copy + 1;; p++) {
		if (*p && *p != '/')
			continue;
		char end = *p;
		*p = 0;
		if (mkdir(copy, mode) < 0 && errno != EEXIST)
			return st_fail_errno("%s: can't make directory", copy);
		if (!end)
			break;
		*p = end;
	}
	struct stat info;
	if (stat(path, &info) < 0)
		return st_fail_errno("%s: can't stat", path);
	if (!S_ISDIR(info.st_mode))
		return st_fail(ST_ERR_USAGE, "%s: exists and is not a directory", path);
	return ST_OK;
}

enum st_status st_sync_directory(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	enum st_status status = ST_OK;

	if (fd < 0)
		return st_fail_errno("%s: can't open directory", path);
	/* Some file systems have no fsync for directories (EINVAL): the rename is then as durable as it gets there. */
	if (fsync(fd) < 0 && errno != EINVAL)
		status = st_fail_errno("%s: can't sync directory", path);
	close(fd);
	return status;
}

enum st_status st_newfile_open(struct st_newfile *file, const char *path, mode_t mode)
{
	file->fd = -1;
	if (strlen(path) >= sizeof file->path)
		return st_fail(ST_ERR_USAGE, "%.60s...: path of %zu bytes, at most %zu expected", path, strlen(path), sizeof file->path - 1);
	strcpy(file->path, path);
	snprintf(file->temporary, sizeof file->temporary, "%s.tmp.%ld", path, (long)getpid());
	file->fd = open(file->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, mode);
	if (file->fd < 0)
		return st_fail_errno("%s: can't create", file->temporary);
	return ST_OK;
}

enum st_status st_newfile_commit(struct st_newfile *file)
{
	char directory[4096];
	enum st_status status;
	int fd = file->fd;

	file->fd = -1;
	if (fsync(fd) < 0) {
		status = st_fail_errno("%s: can't sync", file->temporary);
		close(fd);
		goto remove_temporary;
	}
	if (close(fd) < 0) {
		status = st_fail_errno("%s: can't close", file->temporary);
		goto remove_temporary;
	}
	if (rename(file->temporary, file->path) < 0) {
		status = st_fail_errno("%s: can't rename to %s", file->temporary, file->path);
		goto remove_temporary;
	}
	strcpy(directory, file->path);
	char *slash = strrchr(directory, '/');
	if (slash == directory)
		slash[1] = 0;
	else if (slash)
		*slash = 0;
	else
		strcpy(directory, ".");
	return st_sync_directory(directory);
remove_temporary:
	unlink(file->temporary);
	return status;
}

void st_newfile_abandon(struct st_newfile *file)
{
	if (file->fd < 0)
		return;
	close(file->fd);
	file->fd = -1;
	unlink(file->temporary);
}

enum st_status st_set_nonblocking(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
		return st_fail_errno("descriptor %d: can't set O_NONBLOCK", fd);
	return ST_OK;
}
