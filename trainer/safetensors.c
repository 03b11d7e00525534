#include "safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/digest.h"
#include "common/io.h"
#include "trainer/fields.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are little-endian and written as memory holds them");

#define PIECE_BYTES ((size_t)8 << 20)
#define MOST_TENSORS 1000000

static uint64_t source_bytes(const struct train_safetensors_source *tensor)
{
	return (tensor->rows ? tensor->rows : 1) * tensor->columns * sizeof(float);
}

/* The header with its length in front, padded with spaces so that the data is aligned to 8 bytes. *text is malloc'ed. */
static enum st_status make_header(const char *path, const struct train_safetensors_source *tensors, size_t count, char **text, size_t *bytes)
{
	uint64_t at = 0;
	FILE *out = open_memstream(text, bytes);

	if (!out)
		return st_fail_errno("%s: can't make a header", path);
	fwrite("\0\0\0\0\0\0\0\0", 8, 1, out);
	/* HuggingFace's loaders refuse a file whose metadata does not say which framework's layout it has. */
	fputs("{\"__metadata__\":{\"format\":\"pt\"}", out);
	for (size_t i = 0; i < count; i++) {
		const struct train_safetensors_source *tensor = &tensors[i];
		uint64_t end = at + source_bytes(tensor);
		fprintf(out, ",\"%s\":{\"dtype\":\"F32\",\"shape\":[", tensor->name);
		if (tensor->rows)
			fprintf(out, "%" PRIu64 ",", tensor->rows);
		fprintf(out, "%" PRIu64 "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", tensor->columns, at, end);
		at = end;
	}
	fputc('}', out);
	while (ftell(out) % 8)
		fputc(' ', out);
	int broken = ferror(out);
	if (fclose(out) != 0 || broken) {
		free(*text);
		return st_fail(ST_ERR_NOMEM, "%s: no memory for a header of %zu tensors", path, count);
	}
	uint64_t length = *bytes - 8;
	memcpy(*text, &length, sizeof length);
	return ST_OK;
}

/* Hash and write piece by piece: a piece is still in the cache when it is written. */
static enum st_status put(int fd, const char *path, struct st_sha256 *hash, const void *data, uint64_t bytes)
{
	for (uint64_t at = 0; at < bytes;) {
		size_t piece = bytes - at < PIECE_BYTES ? (size_t)(bytes - at) : PIECE_BYTES;
		ST_TRY(st_sha256_update(hash, (const char *)data + at, piece));
		ST_TRY(st_write_full(fd, (const char *)data + at, piece, path));
		at += piece;
	}
	return ST_OK;
}

enum st_status train_safetensors_write(int fd, const char *path, const struct train_safetensors_source *tensors, size_t count,
				       uint64_t *bytes, char sha256[65])
{
	struct st_sha256 hash;
	uint8_t digest[ST_SHA256_BYTES];
	char *header;
	size_t header_bytes;

	ST_TRY(make_header(path, tensors, count, &header, &header_bytes));
	enum st_status status = st_sha256_begin(&hash);
	if (status == ST_OK)
		status = put(fd, path, &hash, header, header_bytes);
	free(header);
	*bytes = header_bytes;
	for (size_t i = 0; i < count && status == ST_OK; i++) {
		status = put(fd, path, &hash, tensors[i].values, source_bytes(&tensors[i]));
		*bytes += source_bytes(&tensors[i]);
	}
	enum st_status ended = st_sha256_end(&hash, status == ST_OK ? digest : NULL);
	ST_TRY(status);
	ST_TRY(ended);
	st_hex(digest, sizeof digest, sha256);
	return ST_OK;
}

static enum st_status read_array(const char *path, const char *name, struct json_object *tensor, const char *key, size_t most,
				 uint64_t *values, uint64_t *count)
{
	struct json_object *array;

	if (!json_object_object_get_ex(tensor, key, &array) || json_object_get_type(array) != json_type_array ||
	    json_object_array_length(array) > most)
		return st_fail(ST_ERR_DATA, "%s: tensor %s: no usable %s, expected an array of at most %zu integers", path, name, key, most);
	*count = json_object_array_length(array);
	for (size_t i = 0; i < *count; i++) {
		struct json_object *value = json_object_array_get_idx(array, i);
		/* 2^56: far beyond any file, and sums of two can't overflow. */
		if (json_object_get_type(value) != json_type_int || json_object_get_int64(value) < 0 ||
		    json_object_get_int64(value) > (int64_t)1 << 56)
			return st_fail(ST_ERR_DATA, "%s: tensor %s: %s: seen %.60s, expected an integer from 0 to 2^56", path, name, key,
				       json_object_to_json_string(value));
		values[i] = json_object_get_uint64(value);
	}
	return ST_OK;
}

static enum st_status read_tensor(const char *path, const char *name, struct json_object *tensor, uint64_t data_bytes,
				  struct train_safetensors_entry *entry)
{
	struct json_object *type;
	uint64_t offsets[2], offset_count;

	if (strlen(name) >= sizeof entry->name)
		return st_fail(ST_ERR_DATA, "%s: tensor %.60s...: a name of %zu bytes, expected at most %zu", path, name, strlen(name),
			       sizeof entry->name - 1);
	strcpy(entry->name, name);
	for (const char *p = name; *p; p++)
		if ((unsigned char)*p < ' ' || *p == 0x7f)
			return st_fail(ST_ERR_DATA, "%s: a tensor's name holds a control character", path);
	if (json_object_get_type(tensor) != json_type_object)
		return st_fail(ST_ERR_DATA, "%s: tensor %s: its description is not an object", path, name);
	if (!json_object_object_get_ex(tensor, "dtype", &type) || json_object_get_type(type) != json_type_string ||
	    strcmp(json_object_get_string(type), "F32"))
		return st_fail(ST_ERR_DATA, "%s: tensor %s: dtype: seen %.60s, expected \"F32\"", path, name,
			       type ? json_object_to_json_string(type) : "nothing");
	ST_TRY(read_array(path, name, tensor, "shape", sizeof entry->shape / sizeof *entry->shape, entry->shape, &entry->dimensions));
	ST_TRY(read_array(path, name, tensor, "data_offsets", 2, offsets, &offset_count));
	if (offset_count != 2 || offsets[0] > offsets[1] || offsets[1] > data_bytes)
		return st_fail(ST_ERR_DATA, "%s: tensor %s: data_offsets: seen %s, expected a range within the %" PRIu64 " bytes of data", path,
			       name, json_object_to_json_string(json_object_object_get(tensor, "data_offsets")), data_bytes);
	entry->elements = 1;
	for (uint64_t i = 0; i < entry->dimensions; i++)
		if (__builtin_mul_overflow(entry->elements, entry->shape[i], &entry->elements) || entry->elements > (uint64_t)1 << 56)
			return st_fail(ST_ERR_DATA, "%s: tensor %s: shape: its product is larger than any file", path, name);
	if (entry->elements * sizeof(float) != offsets[1] - offsets[0])
		return st_fail(ST_ERR_DATA, "%s: tensor %s: seen %" PRIu64 " bytes of data, expected %" PRIu64 " for its shape", path, name,
			       offsets[1] - offsets[0], entry->elements * sizeof(float));
	entry->offset = offsets[0];
	return ST_OK;
}

static int by_offset(const void *a, const void *b)
{
	const struct train_safetensors_entry *x = a, *y = b;

	if (x->offset != y->offset)
		return x->offset < y->offset ? -1 : 1;
	/* An empty tensor shares its offset with the next one. */
	return x->elements < y->elements ? -1 : x->elements > y->elements;
}

static enum st_status read_header(struct train_safetensors *file, const char *text, size_t bytes, uint64_t data_start, uint64_t data_bytes)
{
	struct json_object *root;
	const char *path = file->path;
	enum st_status status = ST_OK;

	ST_TRY(train_fields_parse(path, text, bytes, &root));
	size_t room = (size_t)json_object_object_length(root);
	if (room > MOST_TENSORS) {
		json_object_put(root);
		return st_fail(ST_ERR_DATA, "%s: seen %zu tensors, expected at most %d", path, room, MOST_TENSORS);
	}
	file->entries = calloc(room + 1, sizeof *file->entries);
	if (!file->entries) {
		json_object_put(root);
		return st_fail(ST_ERR_NOMEM, "%s: no memory for %zu tensors", path, room);
	}
	json_object_object_foreach(root, name, tensor) {
		if (!strcmp(name, "__metadata__"))
			continue;
		status = read_tensor(path, name, tensor, data_bytes, &file->entries[file->count]);
		if (status != ST_OK)
			break;
		file->count++;
	}
	json_object_put(root);
	ST_TRY(status);
	qsort(file->entries, file->count, sizeof *file->entries, by_offset);
	uint64_t end = 0;
	for (size_t i = 0; i < file->count; i++) {
		struct train_safetensors_entry *entry = &file->entries[i];
		if (entry->offset != end)
			return st_fail(ST_ERR_DATA, "%s: tensor %s: begins at byte %" PRIu64 " of the data, expected %" PRIu64 " (%s)", path,
				       entry->name, entry->offset, end, entry->offset < end ? "it overlaps another" : "there is a gap before it");
		end += entry->elements * sizeof(float);
		entry->offset += data_start;
	}
	if (end != data_bytes)
		return st_fail(ST_ERR_DATA, "%s: size: seen %" PRIu64 " bytes of data, expected %" PRIu64, path, data_bytes, end);
	return ST_OK;
}

static enum st_status open_checked(struct train_safetensors *file)
{
	const char *path = file->path;
	struct stat info;
	uint64_t length;
	char *text;

	file->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (file->fd < 0)
		return st_fail_errno("%s: can't open", path);
	if (fstat(file->fd, &info) < 0)
		return st_fail_errno("%s: can't stat", path);
	if (!S_ISREG(info.st_mode))
		return st_fail(ST_ERR_DATA, "%s: not a regular file", path);
	if (info.st_size < 8)
		return st_fail(ST_ERR_DATA, "%s: size: seen %lld bytes, expected a safetensors file", path, (long long)info.st_size);
	ST_TRY(st_pread_full(file->fd, &length, sizeof length, 0, path));
	if (length > TRAIN_SAFETENSORS_MOST_HEADER || length > (uint64_t)info.st_size - 8)
		return st_fail(ST_ERR_DATA, "%s: header length: seen %" PRIu64 ", expected at most %" PRIu64, path, length,
			       (uint64_t)info.st_size - 8 < TRAIN_SAFETENSORS_MOST_HEADER ? (uint64_t)info.st_size - 8
											  : TRAIN_SAFETENSORS_MOST_HEADER);
	text = malloc((size_t)length + 1);
	if (!text)
		return st_fail(ST_ERR_NOMEM, "%s: no memory for a header of %" PRIu64 " bytes", path, length);
	enum st_status status = st_pread_full(file->fd, text, (size_t)length, 8, path);
	if (status == ST_OK)
		status = read_header(file, text, (size_t)length, 8 + length, (uint64_t)info.st_size - 8 - length);
	free(text);
	return status;
}

enum st_status train_safetensors_open(const char *path, struct train_safetensors *file)
{
	*file = (struct train_safetensors){.fd = -1, .path = strdup(path)};
	if (!file->path)
		return st_fail(ST_ERR_NOMEM, "%s: no memory for a path", path);
	enum st_status status = open_checked(file);
	if (status != ST_OK)
		train_safetensors_close(file);
	return status;
}

void train_safetensors_close(struct train_safetensors *file)
{
	if (file->fd >= 0)
		close(file->fd);
	free(file->entries);
	free(file->path);
	*file = (struct train_safetensors){.fd = -1};
}

enum st_status train_safetensors_read(const struct train_safetensors *file, const struct train_safetensors_entry *entry, float *values)
{
	return st_pread_full(file->fd, values, (size_t)entry->elements * sizeof *values, entry->offset, file->path);
}
