/* Token shards and data sets: sequences don't depend on how the stream was cut, and every damage is refused by name. */
#include "temporary.h"

#include <math.h>
#include <sys/stat.h>

#include "common/command.h"
#include "trainer/data.h"
#include "trainer/shard.h"

st_command_main cmd_data;

static const char *shard(int32_t magic, int32_t version, int32_t count, size_t bytes)
{
	static char data[4096];
	int32_t header[3] = {magic, version, count};

	memset(data, 0, sizeof data);
	memcpy(data, header, sizeof header);
	return temporary_file("shard.bin", data, bytes);
}

static void shard_format(void)
{
	uint16_t tokens[10] = {0, 1, 2, 3, 65535, 5, 6, 7, 8, 9}, back[3];
	char sha256[65];
	uint64_t count;
	struct stat info;
	int fd;

	CHECK_OK(train_shard_write(temporary_path("ten.bin"), tokens, 10, sha256));
	CHECK(stat(temporary_path("ten.bin"), &info) == 0 && info.st_size == 1044, "%lld bytes", (long long)info.st_size);
	CHECK_OK(train_shard_open(temporary_path("ten.bin"), &fd, &count));
	CHECK(count == 10 && strlen(sha256) == 64);
	CHECK_OK(train_shard_read(fd, "ten.bin", 3, 3, back));
	CHECK(back[0] == 3 && back[1] == 65535 && back[2] == 5);
	CHECK_FAILS(train_shard_read(fd, "ten.bin", 9, 2, back), ST_ERR_DATA, "ends after 2 of 4 bytes");
	close(fd);

	CHECK_FAILS(train_shard_open(shard(20240801, 1, 10, 1044), &fd, &count), ST_ERR_DATA, "magic number: seen 20240801, expected 20240520");
	CHECK_FAILS(train_shard_open(shard(20240520, 7, 10, 1044), &fd, &count), ST_ERR_DATA, "version: seen 7, expected 1");
	CHECK_FAILS(train_shard_open(shard(20240520, 1, -1, 1044), &fd, &count), ST_ERR_DATA, "tokens: seen -1");
	CHECK_FAILS(train_shard_open(shard(20240520, 1, 10, 1043), &fd, &count), ST_ERR_DATA,
		    "size: seen 1043 bytes, expected 1024 + 2 x 10 tokens = 1044");
	CHECK_FAILS(train_shard_open(shard(20240520, 1, 10, 1046), &fd, &count), ST_ERR_DATA, "size: seen 1046 bytes");
	CHECK_FAILS(train_shard_open(shard(20240520, 1, 2147483647, 1044), &fd, &count), ST_ERR_DATA, "= 4294968318");
	CHECK_FAILS(train_shard_open(shard(20240520, 1, 0, 12), &fd, &count), ST_ERR_DATA, "size: seen 12 bytes");
	CHECK_FAILS(train_shard_open(temporary_path(""), &fd, &count), ST_ERR_DATA, "not a regular file");
	CHECK_FAILS(train_shard_open(temporary_path("none.bin"), &fd, &count), ST_ERR_NOINPUT, "can't open");
	CHECK_OK(train_shard_open(shard(20240520, 1, 0, 1024), &fd, &count));
	CHECK(count == 0);
	close(fd);
}

static int make(const char *directory, const char *shard_tokens, const char *validation)
{
	char *argv[] = {(char *)"data", (char *)temporary_path("text"), (char *)"-o", (char *)directory,   (char *)"--shard-tokens",
			(char *)shard_tokens, (char *)"--validation", (char *)validation, NULL};
	int saved = dup(STDOUT_FILENO), code;
	FILE *quiet = freopen("/dev/null", "w", stdout);

	code = quiet ? cmd_data(8, argv) : -1;
	fflush(stdout);
	dup2(saved, STDOUT_FILENO);
	close(saved);
	return code;
}

static char text[1000];

static void cuts_do_not_matter(void)
{
	struct train_dataset *whole, *cut;
	uint16_t inputs[2][9], targets[2][9];

	for (size_t i = 0; i < sizeof text; i++)
		text[i] = (char)(i * i % 251 % 97 + 'A' % 32);
	temporary_file("text", text, sizeof text);
	CHECK(make(temporary_path("whole"), "100000", "0.1") == 0);
	CHECK(make(temporary_path("cut"), "7", "0.1") == 0);
	CHECK_OK(train_dataset_open(temporary_path("whole"), &whole));
	CHECK_OK(train_dataset_open(temporary_path("cut"), &cut));
	CHECK_OK(train_dataset_verify(whole));
	CHECK_OK(train_dataset_verify(cut));
	CHECK(train_dataset_info(cut)->tokens[0] == 900 && train_dataset_info(cut)->tokens[1] == 100);
	CHECK(train_dataset_info(cut)->vocabulary == 256);
	CHECK(train_dataset_info(cut)->bigram_entropy == train_dataset_info(whole)->bigram_entropy);
	CHECK(strcmp(train_dataset_info(cut)->identity, train_dataset_info(whole)->identity));
	/* 899 inputs have a target: 99 sequences of 9. More than MOST_OPEN shards, in an order that jumps. */
	CHECK(train_dataset_sequences(cut, TRAIN_SPLIT_TRAINING, 9) == 99 && train_dataset_sequences(cut, TRAIN_SPLIT_VALIDATION, 9) == 11);
	for (int split = 0; split < 2; split++)
		for (uint64_t i = 0, n = train_dataset_sequences(cut, (enum train_split)split, 9); i < n; i++) {
			uint64_t index = i * 7 % n;
			CHECK_OK(train_dataset_read(whole, (enum train_split)split, 9, index, inputs[0], targets[0]));
			CHECK_OK(train_dataset_read(cut, (enum train_split)split, 9, index, inputs[1], targets[1]));
			int right = 1;
			for (size_t t = 0; t < 9; t++) {
				size_t at = (size_t)split * 900 + index * 9 + t;
				right = right && inputs[0][t] == (uint8_t)text[at] && targets[0][t] == (uint8_t)text[at + 1];
			}
			CHECK(right && !memcmp(inputs[0], inputs[1], sizeof inputs[0]) && !memcmp(targets[0], targets[1], sizeof targets[0]),
			      "split %d sequence %llu", split, (unsigned long long)index);
		}
	CHECK_FAILS(train_dataset_read(cut, TRAIN_SPLIT_TRAINING, 9, 100, inputs[0], targets[0]), ST_ERR_INTERNAL, "tokens");
	train_dataset_free(whole);
	train_dataset_free(cut);
}

/* Of "abababab...": after each letter the next is certain.  Of letters drawn evenly from two, it is log 2. */
static void entropy_is_right(void)
{
	struct train_dataset *dataset;
	char evenly[4096];
	unsigned state = 1;

	for (size_t i = 0; i < sizeof text; i++)
		text[i] = i % 2 ? 'a' : 'b';
	temporary_file("text", text, sizeof text);
	CHECK(make(temporary_path("alternating"), "1000", "0") == 0);
	CHECK_OK(train_dataset_open(temporary_path("alternating"), &dataset));
	CHECK(train_dataset_info(dataset)->bigram_entropy == 0 && train_dataset_info(dataset)->tokens[1] == 0);
	train_dataset_free(dataset);
	for (size_t i = 0; i < sizeof evenly; i++) {
		state = state * 1103515245 + 12345;
		evenly[i] = state >> 20 & 1 ? 'a' : 'b';
	}
	temporary_file("text", evenly, sizeof evenly);
	CHECK(make(temporary_path("even"), "1000", "0.5") == 0);
	CHECK_OK(train_dataset_open(temporary_path("even"), &dataset));
	CHECK(fabs(train_dataset_info(dataset)->bigram_entropy - log(2)) < 2e-3, "%g", train_dataset_info(dataset)->bigram_entropy);
	train_dataset_free(dataset);
}

static void damage(const char *file, long offset, int byte)
{
	FILE *out = fopen(temporary_path(file), "r+");

	CHECK(out && fseek(out, offset, SEEK_SET) == 0 && fputc(byte, out) == byte && fclose(out) == 0);
}

static void refused(const char *json, const char *message)
{
	struct train_dataset *dataset;

	temporary_file("d/dataset.json", json, strlen(json));
	CHECK_FAILS(train_dataset_open(temporary_path("d"), &dataset), ST_ERR_DATA, message);
}

#define HEAD "{\"format\":\"synctrain-dataset\",\"version\":1,\"vocabulary\":256,\"bigram_entropy_nats\":1.5,\"validation\":[],"
#define SHA "\"sha256\":\"0000000000000000000000000000000000000000000000000000000000000000\""

static void damage_is_refused(void)
{
	struct train_dataset *dataset;
	uint16_t inputs[50], targets[50];

	temporary_file("text", text, sizeof text);
	CHECK(make(temporary_path("d"), "300", "0.1") == 0);
	damage("d/train-000001.bin", 1024 + 11, 1);
	CHECK_OK(train_dataset_open(temporary_path("d"), &dataset));
	CHECK_FAILS(train_dataset_verify(dataset), ST_ERR_DATA, "train-000001.bin: token 5: seen ");
	train_dataset_free(dataset);
	damage("d/train-000001.bin", 1024 + 11, 0);
	damage("d/train-000001.bin", 1024 + 10, 'x');
	CHECK_OK(train_dataset_open(temporary_path("d"), &dataset));
	CHECK_FAILS(train_dataset_verify(dataset), ST_ERR_DATA, "train-000001.bin: sha256: seen ");
	/* A file that shrinks under a running job is an error of a read, not a fault of memory. */
	CHECK(truncate(temporary_path("d/train-000000.bin"), 1100) == 0);
	CHECK_FAILS(train_dataset_read(dataset, TRAIN_SPLIT_TRAINING, 50, 1, inputs, targets), ST_ERR_DATA, "train-000000.bin: ends after");
	train_dataset_free(dataset);
	CHECK_FAILS(train_dataset_open(temporary_path("d"), &dataset), ST_ERR_DATA, "train-000000.bin: size: seen 1100 bytes");

	refused("", "not JSON");
	refused("[]", "expected an object");
	refused("{\"format\":\"synctrain-dataset\"", "not JSON: it ends too early");
	refused("{\"format\":\"x\"}", "format: seen x");
	refused("{\"format\":\"synctrain-dataset\",\"version\":2}", "version: seen 2, expected an integer from 1 to 1");
	refused(HEAD "\"train\":[{\"file\":\"../text\",\"tokens\":1," SHA "}]}", "may leave the directory");
	refused(HEAD "\"train\":[{\"file\":\"/etc/passwd\",\"tokens\":1," SHA "}]}", "may leave the directory");
	refused(HEAD "\"train\":[{\"file\":\"train-000002.bin\",\"tokens\":-1," SHA "}]}", "tokens: seen -1");
	refused(HEAD "\"train\":[{\"file\":\"train-000002.bin\",\"tokens\":1," SHA "}]}", "train-000002.bin: tokens: seen 300, expected 1");
	refused(HEAD "\"train\":[{\"file\":\"train-000002.bin\",\"tokens\":300,\"sha256\":\"00\"}]}", "sha256: seen 2 characters");
	refused(HEAD "\"train\":[7]}", "train: element 0 is not an object");
	refused(HEAD "\"train\":7}", "train: seen 7, expected array");
}

/* A directory as llm.c leaves it: names and counts only. */
static void llmc_directories_work(void)
{
	struct train_dataset *dataset;
	uint16_t tokens[100], inputs[10], targets[10];
	char sha256[65];

	for (uint16_t i = 0; i < 100; i++)
		tokens[i] = (uint16_t)(50000 + i);
	CHECK(mkdir(temporary_path("llmc"), 0700) == 0);
	CHECK_FAILS(train_dataset_open(temporary_path("llmc"), &dataset), ST_ERR_DATA, "no dataset.json and no *_train*.bin");
	CHECK_OK(train_shard_write(temporary_path("llmc/fineweb_train_000001.bin"), tokens, 30, sha256));
	CHECK_OK(train_shard_write(temporary_path("llmc/fineweb_train_000002.bin"), tokens + 30, 40, sha256));
	CHECK_OK(train_shard_write(temporary_path("llmc/fineweb_val_000000.bin"), tokens + 70, 30, sha256));
	CHECK_OK(train_dataset_open(temporary_path("llmc"), &dataset));
	CHECK_OK(train_dataset_verify(dataset));
	const struct train_dataset_info *info = train_dataset_info(dataset);
	CHECK(info->tokens[0] == 70 && info->tokens[1] == 30 && info->vocabulary == 0 && isnan(info->bigram_entropy));
	CHECK_OK(train_dataset_read(dataset, TRAIN_SPLIT_TRAINING, 10, 2, inputs, targets));
	CHECK(inputs[0] == 50020 && inputs[9] == 50029 && targets[9] == 50030);
	train_dataset_free(dataset);
}

int main(void)
{
	temporary_make();
	shard_format();
	cuts_do_not_matter();
	entropy_is_right();
	damage_is_refused();
	llmc_directories_work();
	return check_result();
}
