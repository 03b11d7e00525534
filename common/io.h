/* Files and descriptors: whole reads and writes, and files that appear complete or not at all. */
#ifndef SYNCTRAIN_COMMON_IO_H
#define SYNCTRAIN_COMMON_IO_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "status.h"

/* Reads exactly BYTES (retrying EINTR and short reads). End of file before that is ST_ERR_DATA. NAME appears in the message. */
enum st_status st_read_full(int fd, void *buffer, size_t bytes, const char *name);
enum st_status st_pread_full(int fd, void *buffer, size_t bytes, uint64_t offset, const char *name);

/* Writes exactly BYTES. */
enum st_status st_write_full(int fd, const void *buffer, size_t bytes, const char *name);

/* Reads a whole regular file of at most MAX_BYTES; *data is malloc'ed, NUL-terminated past *bytes, owned by the caller. */
enum st_status st_file_read(const char *path, size_t max_bytes, char **data, size_t *bytes);

/* mkdir -p; existing directories are fine. */
enum st_status st_make_directories(const char *path, mode_t mode);

/* fsync of a directory, so that renames in it survive a crash. */
enum st_status st_sync_directory(const char *path);

/*
 * A file that replaces another only when complete: written under PATH.tmp.PID in the same directory, then fsync, rename,
 * fsync of the directory.  st_newfile_abandon() removes the temporary file; it may be called after commit (no effect).
 */
struct st_newfile {
	int fd;
	char path[4096];
	char temporary[4096 + 32];
};
enum st_status st_newfile_open(struct st_newfile *file, const char *path, mode_t mode);
enum st_status st_newfile_commit(struct st_newfile *file);
void st_newfile_abandon(struct st_newfile *file);

/* Sets FD_CLOEXEC and/or O_NONBLOCK. */
enum st_status st_set_nonblocking(int fd);

#endif
