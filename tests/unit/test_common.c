/* Files appear whole or not at all, digests match their published vectors, deadlines count running time. */
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/digest.h"
#include "common/io.h"

static void test_files(void)
{
	char directory[] = "/tmp/synctrain-test-XXXXXX", path[128], deep[160];
	struct st_newfile file;
	char *data;
	size_t bytes;

	CHECK(mkdtemp(directory));
	snprintf(deep, sizeof deep, "%s/a/b/c", directory);
	CHECK_OK(st_make_directories(deep, 0755));
	CHECK_OK(st_make_directories(deep, 0755));
	snprintf(path, sizeof path, "%s/a/file", directory);

	CHECK_OK(st_newfile_open(&file, path, 0644));
	CHECK_OK(st_write_full(file.fd, "first", 5, "test"));
	CHECK(access(path, F_OK) < 0, "visible before it is complete");
	CHECK_OK(st_newfile_commit(&file));
	CHECK_OK(st_file_read(path, 100, &data, &bytes));
	CHECK(bytes == 5 && !strcmp(data, "first"));
	free(data);

	CHECK_OK(st_newfile_open(&file, path, 0644));
	CHECK_OK(st_write_full(file.fd, "second", 6, "test"));
	st_newfile_abandon(&file);
	CHECK(access(file.temporary, F_OK) < 0, "temporary file left");
	CHECK_OK(st_file_read(path, 100, &data, &bytes));
	CHECK(bytes == 5, "an abandoned file replaced the old one");
	free(data);

	CHECK_FAILS(st_file_read(path, 4, &data, &bytes), ST_ERR_DATA, "at most 4");
	CHECK_FAILS(st_file_read(directory, 100, &data, &bytes), ST_ERR_DATA, "not a regular file");
	char pipe_path[600];
	snprintf(pipe_path, sizeof pipe_path, "%s/a/pipe", directory);
	CHECK(mkfifo(pipe_path, 0600) == 0);
	alarm(20); /* it would wait for a writer for ever */
	CHECK_FAILS(st_file_read(pipe_path, 100, &data, &bytes), ST_ERR_DATA, "not a regular file");
	alarm(0);
	unlink(pipe_path);
	CHECK_FAILS(st_make_directories(path, 0755), ST_ERR_USAGE, "not a directory");
	int fd = open(path, O_RDONLY);
	char buffer[8];
	CHECK_FAILS(st_read_full(fd, buffer, 8, "short"), ST_ERR_DATA, "after 5 of 8");
	CHECK_OK(st_pread_full(fd, buffer, 2, 3, "at"));
	CHECK(!memcmp(buffer, "st", 2));
	close(fd);
	fd = open("/dev/full", O_WRONLY);
	CHECK_FAILS(st_write_full(fd, "x", 1, "/dev/full"), ST_ERR_NOMEM, "No space left");
	close(fd);

	unlink(path);
	for (char *slash; strlen(deep) > strlen(directory) && (slash = strrchr(deep, '/')); *slash = 0)
		rmdir(deep);
	CHECK(rmdir(directory) == 0, "%s not empty", directory);
}

static void test_digests(void)
{
	/* FIPS 180-4 example "abc"; RFC 4231 test case 2. */
	uint8_t digest[ST_SHA256_BYTES];
	char hex[ST_SHA256_HEX_BYTES];
	struct st_sha256 hash;

	CHECK_OK(st_sha256_begin(&hash));
	CHECK_OK(st_sha256_update(&hash, "ab", 2));
	CHECK_OK(st_sha256_update(&hash, "c", 1));
	CHECK_OK(st_sha256_end(&hash, digest));
	st_hex(digest, sizeof digest, hex);
	CHECK(!strcmp(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"), "%s", hex);
	CHECK_OK(st_hmac_sha256("Jefe", 4, "what do ya want for nothing?", 28, digest));
	st_hex(digest, sizeof digest, hex);
	CHECK(!strcmp(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"), "%s", hex);
	CHECK(st_equal_constant_time("abc", "abc", 3) && !st_equal_constant_time("abc", "abd", 3));

	uint8_t a[32] = {0}, b[32] = {0};
	CHECK_OK(st_random_bytes(a, sizeof a));
	CHECK_OK(st_random_bytes(b, sizeof b));
	CHECK(memcmp(a, b, sizeof a), "two draws are equal");
}

static void test_deadlines(void)
{
	struct st_deadline d = st_deadline_in_ms(5000);

	CHECK(!st_deadline_expired(&d) && st_deadline_poll_ms(&d) == 1000);
	/* As if the process had been stopped for an hour: 2 s are charged, no more. */
	d.last_ns -= 3600 * ST_NS_PER_S;
	CHECK(!st_deadline_expired(&d));
	CHECK(d.left_ns > 2 * ST_NS_PER_S && d.left_ns <= 3 * ST_NS_PER_S, "left %lld", (long long)d.left_ns);
	d.last_ns -= 3600 * ST_NS_PER_S;
	d.left_ns = ST_NS_PER_S;
	CHECK(st_deadline_expired(&d) && st_deadline_poll_ms(&d) == 0);
	d = st_deadline_in_ms(-1);
	d.last_ns = 0;
	CHECK(!st_deadline_expired(&d) && st_deadline_poll_ms(&d) == 1000);
	d = st_deadline_in_ms(0);
	CHECK(st_deadline_expired(&d));
}

static void test_status(void)
{
	errno = ENOSPC;
	CHECK(st_fail_errno("disk %d", 3) == ST_ERR_NOMEM);
	CHECK(!strcmp(st_message(), "disk 3: No space left on device"), "%s", st_message());
	for (int s = 1; s < ST_STATUS_COUNT; s++)
		CHECK(st_exit_code((enum st_status)s) != 0 && strcmp(st_status_name((enum st_status)s), "unknown status"), "status %d", s);
	CHECK(st_exit_code(ST_OK) == 0 && st_exit_code(ST_ERR_CONFIG) == 78 && st_exit_code(ST_ERR_USAGE) == 64);
	CHECK(st_exit_code((enum st_status)-1) == 70 && st_exit_code((enum st_status)999) == 70);
}

int main(void)
{
	test_files();
	test_digests();
	test_deadlines();
	test_status();
	return check_result();
}
