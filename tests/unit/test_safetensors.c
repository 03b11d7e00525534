/* safetensors: what is written is read back, and no header of a stranger gets past the checks. */
#include "temporary.h"

#include <fcntl.h>

#include "trainer/safetensors.h"

static const char *with_header(uint64_t length, const char *header, size_t data_bytes)
{
	static char file[8192];

	memcpy(file, &length, 8);
	memcpy(file + 8, header, strlen(header));
	memset(file + 8 + strlen(header), 0, data_bytes);
	return temporary_file("x.safetensors", file, 8 + strlen(header) + data_bytes);
}

static void refused(const char *header, size_t data_bytes, const char *message)
{
	struct train_safetensors file;

	CHECK_FAILS(train_safetensors_open(with_header(strlen(header), header, data_bytes), &file), ST_ERR_DATA, message);
	CHECK(file.fd == -1 && !file.entries);
}

#define F32(name, shape, begin, end) "\"" name "\":{\"dtype\":\"F32\",\"shape\":[" shape "],\"data_offsets\":[" #begin "," #end "]}"

static void round_trip(void)
{
	float matrix[6] = {1, 2, 3, 4, 5, 6}, vector[3] = {7, 8, 9}, back[6];
	struct train_safetensors_source sources[] = {
		{.name = "wte.weight", .rows = 2, .columns = 3, .values = matrix},
		{.name = "optimizer.m.b", .rows = 0, .columns = 3, .values = vector},
	};
	struct train_safetensors file;
	char sha256[65];
	uint64_t bytes;
	int fd = open(temporary_path("a.safetensors"), O_RDWR | O_CREAT, 0600);

	CHECK_OK(train_safetensors_write(fd, "a.safetensors", sources, 2, &bytes, sha256));
	CHECK((uint64_t)lseek(fd, 0, SEEK_END) == bytes && bytes % 4 == 0);
	close(fd);
	CHECK_OK(train_safetensors_open(temporary_path("a.safetensors"), &file));
	CHECK(file.count == 2 && !strcmp(file.entries[0].name, "wte.weight") && file.entries[0].dimensions == 2 &&
	      file.entries[0].shape[0] == 2 && file.entries[0].shape[1] == 3 && file.entries[1].dimensions == 1 && file.entries[1].elements == 3);
	CHECK_OK(train_safetensors_read(&file, &file.entries[0], back));
	CHECK(!memcmp(back, matrix, sizeof matrix));
	CHECK_OK(train_safetensors_read(&file, &file.entries[1], back));
	CHECK(!memcmp(back, vector, sizeof vector));
	train_safetensors_close(&file);

	/* Every shorter file is refused: there is no prefix that passes. */
	for (uint64_t length = 0; length < bytes; length++) {
		CHECK(truncate(temporary_path("a.safetensors"), (off_t)(bytes - 1 - length)) == 0);
		CHECK_FAILS(train_safetensors_open(temporary_path("a.safetensors"), &file), ST_ERR_DATA, "a.safetensors: ");
	}
}

int main(void)
{
	struct train_safetensors file;

	temporary_make();
	round_trip();

	CHECK_FAILS(train_safetensors_open(with_header(UINT64_MAX, "{}", 0), &file), ST_ERR_DATA, "header length: seen 18446744073709551615");
	CHECK_FAILS(train_safetensors_open(with_header(UINT64_MAX - 7, "{}", 0), &file), ST_ERR_DATA, "header length: seen 18446744073709551608");
	CHECK_FAILS(train_safetensors_open(with_header(3, "{}", 0), &file), ST_ERR_DATA, "header length: seen 3, expected at most 2");
	CHECK_FAILS(train_safetensors_open(temporary_file("short", "1234567", 7), &file), ST_ERR_DATA, "size: seen 7 bytes");

	refused("", 0, "not JSON");
	refused("{", 0, "not JSON");
	refused("{} x", 0, "more text after the object");
	refused("[1]", 0, "expected an object");
	refused("{" F32("a", "1", 0, 4) "", 4, "not JSON");
	refused("{\"a\":7}", 0, "tensor a: its description is not an object");
	refused("{\"a\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "tensor a: dtype: seen \"BF16\", expected \"F32\"");
	refused("{\"a\":{\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "tensor a: dtype: seen nothing");
	refused("{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "tensor a: no usable shape");
	refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "tensor a: no usable data_offsets");
	refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "tensor a: data_offsets");
	refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4, "tensor a: no usable data_offsets");
	refused("{" F32("a", "1,1,1,1,1", 0, 4) "}", 4, "tensor a: no usable shape");
	refused("{" F32("a", "-1", 0, 4) "}", 4, "tensor a: shape: seen -1");
	refused("{" F32("a", "1.5", 0, 4) "}", 4, "tensor a: shape: seen 1.5");
	refused("{" F32("a", "99999999999999999999999", 0, 4) "}", 4, "tensor a: shape: seen");
	refused("{" F32("a", "4294967296,4294967296", 0, 4) "}", 4, "tensor a: shape: its product is larger than any file");
	refused("{" F32("a", "4611686018427387905", 0, 4) "}", 4, "tensor a: shape: seen 4611686018427387905");
	refused("{" F32("a", "2", 0, 4) "}", 4, "tensor a: seen 4 bytes of data, expected 8 for its shape");
	refused("{" F32("a", "1", 4, 0) "}", 4, "expected a range within the 4 bytes");
	refused("{" F32("a", "2", 0, 8) "}", 4, "expected a range within the 4 bytes");
	refused("{" F32("a", "1", 4, 8) "}", 8, "tensor a: begins at byte 4 of the data, expected 0 (there is a gap before it)");
	refused("{" F32("a", "2", 0, 8) "," F32("b", "2", 4, 12) "}", 12, "tensor b: begins at byte 4 of the data, expected 8 (it overlaps another)");
	refused("{" F32("a", "1", 0, 4) "}", 8, "size: seen 8 bytes of data, expected 4");
	refused("{" F32("a\\u0007", "1", 0, 4) "}", 4, "control character");
	refused("{" F32("a", "1", 0, 4) "," F32("a", "1", 4, 8) "}", 8, "tensor a: begins at byte 4"); /* the same name twice: a gap */

	/* Empty tensors, scalars and strangers' metadata are fine. */
	const char *header = "{\"__metadata__\":{\"who\":\"x\"}," F32("e", "0,5", 4, 4) "," F32("s", "", 0, 4) "," F32("t", "1", 4, 8) "}";
	CHECK_OK(train_safetensors_open(with_header(strlen(header), header, 8), &file));
	CHECK(file.count == 3);
	train_safetensors_close(&file);
	return check_result();
}
