/* Files that a run reads as they come: safetensors, token shards.  Input: which, then the file. */
#include "fuzz.h"

#include <fcntl.h>
#include <unistd.h>

#include "trainer/safetensors.h"
#include "trainer/shard.h"

static void safetensors(const uint8_t *data, size_t bytes)
{
	struct train_safetensors file;
	uint64_t expected;
	enum st_status status = train_safetensors_open(fuzz_file(data, bytes), &file);

	if (status != ST_OK) {
		FUZZ_REQUIRE(status == ST_ERR_DATA);
		fuzz_check_message();
		return;
	}
	FUZZ_REQUIRE(bytes >= 8);
	memcpy(&expected, data, 8);
	expected += 8;
	for (size_t i = 0; i < file.count; i++) {
		const struct train_safetensors_entry *entry = &file.entries[i];
		/* One after the other, without gap, within the file. */
		FUZZ_REQUIRE(entry->offset == expected && entry->elements <= bytes / 4 && strnlen(entry->name, sizeof entry->name) < sizeof entry->name);
		expected += 4 * entry->elements;
		float *values = malloc(entry->elements ? 4 * entry->elements : 1);
		FUZZ_REQUIRE(values && train_safetensors_read(&file, entry, values) == ST_OK);
		free(values);
	}
	FUZZ_REQUIRE(expected == bytes);
	train_safetensors_close(&file);
}

static void shard(const uint8_t *data, size_t bytes)
{
	const char *path = fuzz_file(data, bytes);
	uint64_t tokens;
	uint16_t *values;
	int fd;

	if (train_shard_open(path, &fd, &tokens) != ST_OK) {
		fuzz_check_message();
		return;
	}
	FUZZ_REQUIRE(bytes == 1024 + 2 * tokens);
	values = malloc(2 * tokens + 1);
	FUZZ_REQUIRE(values && train_shard_read(fd, path, 0, tokens, values) == ST_OK && !memcmp(values, data + 1024, 2 * tokens));
	free(values);
	close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	if (bytes && data[0] % 2)
		safetensors(data + 1, bytes - 1);
	else if (bytes)
		shard(data + 1, bytes - 1);
	return 0;
}

size_t fuzz_seed(unsigned i, uint8_t *data)
{
	static const char *const headers[] = {
		"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[24,32]}}",
		"{\"__metadata__\":{\"format\":\"pt\"},\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}",
		"{\"a\":{\"dtype\":\"BF16\",\"shape\":[18446744073709551615,2],\"data_offsets\":[0,4]}}",
		"{}",
	};
	if (i < 4) {
		uint64_t length = strlen(headers[i]);
		data[0] = 1;
		memcpy(data + 1, &length, 8);
		memcpy(data + 9, headers[i], length);
		memset(data + 9 + length, 0, 32);
		return 9 + length + (i == 0 ? 32 : i == 1 ? 4 : 0);
	}
	if (i > 5)
		return 0;
	char name[64], sha256[65];
	uint16_t tokens[20];
	/* As the writer makes it. */
	for (uint16_t k = 0; k < 20; k++)
		tokens[k] = k;
	snprintf(name, sizeof name, "/tmp/synctrain-fuzz-%d", getpid());
	FUZZ_REQUIRE(train_shard_write(name, tokens, i == 4 ? 20 : 1, sha256) == ST_OK);
	FILE *file = fopen(name, "rb");
	FUZZ_REQUIRE(file);
	data[0] = 0;
	size_t bytes = 1 + fread(data + 1, 1, FUZZ_MOST_BYTES - 1, file);
	fclose(file);
	unlink(name);
	return bytes;
}
