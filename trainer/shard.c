#include "shard.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/digest.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are little-endian and written as memory holds them");

static enum st_status check_header(int fd, const char *path, uint64_t *tokens)
{
	int32_t header[TRAIN_SHARD_HEADER_BYTES / sizeof(int32_t)];
	struct stat info;

	if (fstat(fd, &info) < 0)
		return st_fail_errno("%s: can't stat", path);
	if (!S_ISREG(info.st_mode))
		return st_fail(ST_ERR_DATA, "%s: not a regular file", path);
	if (info.st_size < TRAIN_SHARD_HEADER_BYTES)
		return st_fail(ST_ERR_DATA, "%s: size: seen %lld bytes, expected a header of %d and tokens", path, (long long)info.st_size,
			       TRAIN_SHARD_HEADER_BYTES);
	ST_TRY(st_pread_full(fd, header, sizeof header, 0, path));
	if (header[0] != TRAIN_SHARD_MAGIC)
		return st_fail(ST_ERR_DATA, "%s: magic number: seen %d, expected %d", path, header[0], TRAIN_SHARD_MAGIC);
	if (header[1] != TRAIN_SHARD_VERSION)
		return st_fail(ST_ERR_DATA, "%s: version: seen %d, expected %d", path, header[1], TRAIN_SHARD_VERSION);
	if (header[2] < 0)
		return st_fail(ST_ERR_DATA, "%s: tokens: seen %d, expected a count", path, header[2]);
	uint64_t expected = TRAIN_SHARD_HEADER_BYTES + 2 * (uint64_t)header[2];
	if ((uint64_t)info.st_size != expected)
		return st_fail(ST_ERR_DATA, "%s: size: seen %lld bytes, expected 1024 + 2 x %d tokens = %llu", path, (long long)info.st_size,
			       header[2], (unsigned long long)expected);
	*tokens = (uint64_t)header[2];
	return ST_OK;
}

enum st_status train_shard_open(const char *path, int *fd, uint64_t *tokens)
{
	int opened = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	if (opened < 0)
		return st_fail_input(path, "can't open");
	enum st_status status = check_header(opened, path, tokens);
	if (status == ST_OK)
		*fd = opened;
	else
		close(opened);
	return status;
}

enum st_status train_shard_read(int fd, const char *path, uint64_t first, size_t count, uint16_t *tokens)
{
	return st_pread_full(fd, tokens, count * sizeof *tokens, TRAIN_SHARD_HEADER_BYTES + 2 * first, path);
}

enum st_status train_shard_write(const char *path, const uint16_t *tokens, size_t count, char sha256[65])
{
	int32_t header[TRAIN_SHARD_HEADER_BYTES / sizeof(int32_t)] = {TRAIN_SHARD_MAGIC, TRAIN_SHARD_VERSION, (int32_t)count};
	struct st_sha256 hash = {0};
	uint8_t digest[ST_SHA256_BYTES];
	struct st_newfile file;
	enum st_status status;

	if (count > TRAIN_SHARD_MOST_TOKENS)
		return st_fail(ST_ERR_USAGE, "%s: %zu tokens, a shard holds at most %u", path, count, TRAIN_SHARD_MOST_TOKENS);
	ST_TRY(st_newfile_open(&file, path, 0666));
	status = st_sha256_begin(&hash);
	if (status == ST_OK)
		status = st_sha256_update(&hash, header, sizeof header);
	if (status == ST_OK)
		status = st_sha256_update(&hash, tokens, count * sizeof *tokens);
	enum st_status ended = st_sha256_end(&hash, status == ST_OK ? digest : NULL);
	if (status == ST_OK)
		status = ended;
	if (status == ST_OK)
		status = st_write_full(file.fd, header, sizeof header, path);
	if (status == ST_OK)
		status = st_write_full(file.fd, tokens, count * sizeof *tokens, path);
	if (status == ST_OK)
		status = st_newfile_commit(&file);
	st_newfile_abandon(&file);
	if (status == ST_OK)
		st_hex(digest, sizeof digest, sha256);
	return status;
}
