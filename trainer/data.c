#include "data.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/digest.h"
#include "common/io.h"
#include "trainer/fields.h"
#include "trainer/shard.h"

#define MOST_SHARDS 1000000
#define MOST_OPEN 128 /* descriptors: far below the usual limit of 1,024 */
#define MOST_DESCRIPTION_BYTES ((size_t)256 << 20)

struct shard {
	char *path;
	uint64_t first, tokens; /* in the split's stream */
	char sha256[65];        /* "": not known */
	int fd;                 /* -1: closed */
};

struct stream {
	struct shard *shards;
	size_t count, room;
	uint64_t tokens;
};

struct train_dataset {
	char *directory;
	struct train_dataset_info info;
	struct stream streams[TRAIN_SPLIT_COUNT];
	struct shard *opened[MOST_OPEN]; /* which shards hold a descriptor; replaced in turn */
	size_t next_victim;
};

static const char *const split_names[TRAIN_SPLIT_COUNT] = {"train", "validation"};

void train_dataset_shard_name(enum train_split split, size_t index, char name[64])
{
	snprintf(name, 64, "%s-%06zu.bin", split_names[split], index);
}

/* Makes sure that the shard is open, closing another when too many are. */
static enum st_status open_shard(struct train_dataset *dataset, struct shard *shard)
{
	uint64_t tokens;
	int fd;

	if (shard->fd >= 0)
		return ST_OK;
	ST_TRY(train_shard_open(shard->path, &fd, &tokens));
	if (shard->tokens != UINT64_MAX && tokens != shard->tokens) {
		close(fd);
		return st_fail(ST_ERR_DATA, "%s: tokens: seen %llu, expected %llu", shard->path, (unsigned long long)tokens,
			       (unsigned long long)shard->tokens);
	}
	struct shard **place = &dataset->opened[dataset->next_victim++ % MOST_OPEN];
	if (*place) {
		close((*place)->fd);
		(*place)->fd = -1;
	}
	*place = shard;
	shard->fd = fd;
	shard->tokens = tokens;
	return ST_OK;
}

static enum st_status add_shard(struct train_dataset *dataset, enum train_split split, const char *file, const char *sha256, uint64_t tokens)
{
	struct stream *stream = &dataset->streams[split];

	if (stream->count == stream->room) {
		size_t room = stream->room ? 2 * stream->room : 16;
		struct shard *grown = realloc(stream->shards, room * sizeof *grown);
		if (!grown)
			return st_fail(ST_ERR_NOMEM, "%s: no memory for %zu shards", dataset->directory, room);
		stream->shards = grown;
		stream->room = room;
	}
	struct shard *shard = &stream->shards[stream->count];
	*shard = (struct shard){.fd = -1, .tokens = tokens};
	if (asprintf(&shard->path, "%s/%s", dataset->directory, file) < 0) {
		shard->path = NULL;
		return st_fail(ST_ERR_NOMEM, "%s: no memory for a path", dataset->directory);
	}
	snprintf(shard->sha256, sizeof shard->sha256, "%s", sha256);
	stream->count++;
	return ST_OK;
}

static enum st_status read_split(struct train_dataset *dataset, const char *name, struct json_object *root, enum train_split split)
{
	struct json_object *shards;

	ST_TRY(train_field_array(name, root, split_names[split], MOST_SHARDS, &shards));
	for (size_t i = 0; i < json_object_array_length(shards); i++) {
		struct json_object *entry = json_object_array_get_idx(shards, i);
		const char *file, *sha256;
		uint64_t tokens;
		if (json_object_get_type(entry) != json_type_object)
			return st_fail(ST_ERR_DATA, "%s: %s: element %zu is not an object", name, split_names[split], i);
		ST_TRY(train_field_file_name(name, entry, "file", &file));
		ST_TRY(train_field_string(name, entry, "sha256", 64, &sha256));
		if (strlen(sha256) != 64)
			return st_fail(ST_ERR_DATA, "%s: sha256: seen %zu characters, expected 64", name, strlen(sha256));
		ST_TRY(train_field_count(name, entry, "tokens", 0, TRAIN_SHARD_MOST_TOKENS, &tokens));
		ST_TRY(add_shard(dataset, split, file, sha256, tokens));
	}
	return ST_OK;
}

static enum st_status read_description(struct train_dataset *dataset, const char *name, const char *text, size_t bytes)
{
	struct json_object *root;
	const char *format;
	uint64_t version, vocabulary;
	enum st_status status;

	ST_TRY(train_fields_parse(name, text, bytes, &root));
	status = train_field_string(name, root, "format", 100, &format);
	if (status == ST_OK && strcmp(format, TRAIN_DATASET_FORMAT))
		status = st_fail(ST_ERR_DATA, "%s: format: seen %s, expected %s", name, format, TRAIN_DATASET_FORMAT);
	if (status == ST_OK)
		status = train_field_count(name, root, "version", TRAIN_DATASET_VERSION, TRAIN_DATASET_VERSION, &version);
	if (status == ST_OK)
		status = train_field_count(name, root, "vocabulary", 1, 65536, &vocabulary);
	if (status == ST_OK)
		status = train_field_number(name, root, "bigram_entropy_nats", &dataset->info.bigram_entropy);
	for (int split = 0; split < TRAIN_SPLIT_COUNT && status == ST_OK; split++)
		status = read_split(dataset, name, root, (enum train_split)split);
	if (status == ST_OK)
		dataset->info.vocabulary = (int64_t)vocabulary;
	json_object_put(root);
	return status;
}

/* llm.c's names: tiny_shakespeare_train.bin, fineweb_train_000001.bin, ..._val.bin. */
static enum st_status find_shards(struct train_dataset *dataset)
{
	struct dirent **entries;
	enum st_status status = ST_OK;
	int found = scandir(dataset->directory, &entries, NULL, alphasort);

	if (found < 0)
		return st_fail_input(dataset->directory, "can't list");
	for (int i = 0; i < found; i++) {
		if (status == ST_OK && !fnmatch("*_train*.bin", entries[i]->d_name, 0))
			status = add_shard(dataset, TRAIN_SPLIT_TRAINING, entries[i]->d_name, "", UINT64_MAX);
		else if (status == ST_OK && !fnmatch("*_val*.bin", entries[i]->d_name, 0))
			status = add_shard(dataset, TRAIN_SPLIT_VALIDATION, entries[i]->d_name, "", UINT64_MAX);
		free(entries[i]);
	}
	free(entries);
	if (status == ST_OK && !dataset->streams[TRAIN_SPLIT_TRAINING].count)
		status = st_fail(ST_ERR_DATA, "%s: seen no dataset.json and no *_train*.bin, expected the output of `synctrain data`",
				 dataset->directory);
	return status;
}

static enum st_status open_streams(struct train_dataset *dataset, struct st_sha256 *identity)
{
	for (int split = 0; split < TRAIN_SPLIT_COUNT; split++) {
		struct stream *stream = &dataset->streams[split];
		for (size_t i = 0; i < stream->count; i++) {
			struct shard *shard = &stream->shards[i];
			ST_TRY(open_shard(dataset, shard));
			shard->first = stream->tokens;
			stream->tokens += shard->tokens;
			/* Without digests, names and counts must do as identity. The directory may differ between nodes. */
			const char *file = strrchr(shard->path, '/') + 1;
			ST_TRY(st_sha256_update(identity, file, strlen(file) + 1));
			ST_TRY(st_sha256_update(identity, &shard->tokens, sizeof shard->tokens));
			ST_TRY(st_sha256_update(identity, shard->sha256, sizeof shard->sha256));
		}
		dataset->info.tokens[split] = stream->tokens;
	}
	return ST_OK;
}

static enum st_status describe(struct train_dataset *dataset)
{
	struct st_sha256 identity;
	uint8_t digest[ST_SHA256_BYTES];
	char *name, *text;
	size_t bytes;
	enum st_status status;

	if (asprintf(&name, "%s/dataset.json", dataset->directory) < 0)
		return st_fail(ST_ERR_NOMEM, "%s: no memory for a path", dataset->directory);
	if (access(name, F_OK) == 0) {
		status = st_file_read(name, MOST_DESCRIPTION_BYTES, &text, &bytes);
		if (status == ST_OK) {
			status = read_description(dataset, name, text, bytes);
			free(text);
		}
	} else {
		status = find_shards(dataset);
	}
	free(name);
	ST_TRY(status);
	status = st_sha256_begin(&identity);
	if (status == ST_OK)
		status = open_streams(dataset, &identity);
	enum st_status ended = st_sha256_end(&identity, status == ST_OK ? digest : NULL);
	ST_TRY(status);
	ST_TRY(ended);
	st_hex(digest, sizeof digest, dataset->info.identity);
	return ST_OK;
}

enum st_status train_dataset_open(const char *directory, struct train_dataset **dataset)
{
	struct train_dataset *opened = calloc(1, sizeof *opened);
	enum st_status status;

	if (!opened || !(opened->directory = strdup(directory))) {
		free(opened);
		return st_fail(ST_ERR_NOMEM, "%s: no memory for a data set", directory);
	}
	opened->info.bigram_entropy = NAN;
	status = describe(opened);
	if (status == ST_OK)
		*dataset = opened;
	else
		train_dataset_free(opened);
	return status;
}

void train_dataset_free(struct train_dataset *dataset)
{
	if (!dataset)
		return;
	for (int split = 0; split < TRAIN_SPLIT_COUNT; split++) {
		struct stream *stream = &dataset->streams[split];
		for (size_t i = 0; i < stream->count; i++) {
			if (stream->shards[i].fd >= 0)
				close(stream->shards[i].fd);
			free(stream->shards[i].path);
		}
		free(stream->shards);
	}
	free(dataset->directory);
	free(dataset);
}

const struct train_dataset_info *train_dataset_info(const struct train_dataset *dataset)
{
	return &dataset->info;
}

static enum st_status verify_shard(struct train_dataset *dataset, struct shard *shard, uint16_t *buffer, size_t room, struct st_sha256 *hash)
{
	uint8_t header[TRAIN_SHARD_HEADER_BYTES];
	int64_t vocabulary = dataset->info.vocabulary;

	ST_TRY(open_shard(dataset, shard));
	ST_TRY(st_pread_full(shard->fd, header, sizeof header, 0, shard->path));
	ST_TRY(st_sha256_update(hash, header, sizeof header));
	for (uint64_t at = 0; at < shard->tokens;) {
		size_t count = shard->tokens - at < room ? (size_t)(shard->tokens - at) : room;
		ST_TRY(train_shard_read(shard->fd, shard->path, at, count, buffer));
		ST_TRY(st_sha256_update(hash, buffer, count * sizeof *buffer));
		for (size_t i = 0; i < count; i++)
			if (vocabulary && buffer[i] >= vocabulary)
				return st_fail(ST_ERR_DATA, "%s: token %llu: seen %u, expected less than the vocabulary of %lld", shard->path,
					       (unsigned long long)(at + i), buffer[i], (long long)vocabulary);
		at += count;
	}
	return ST_OK;
}

enum st_status train_dataset_verify(struct train_dataset *dataset)
{
	const size_t room = 1 << 19;
	uint16_t *buffer = malloc(room * sizeof *buffer);
	enum st_status status = ST_OK;

	if (!buffer)
		return st_fail(ST_ERR_NOMEM, "%s: no memory for a buffer", dataset->directory);
	for (int split = 0; split < TRAIN_SPLIT_COUNT; split++)
		for (size_t i = 0; i < dataset->streams[split].count && status == ST_OK; i++) {
			struct shard *shard = &dataset->streams[split].shards[i];
			struct st_sha256 hash;
			uint8_t digest[ST_SHA256_BYTES];
			char hex[ST_SHA256_HEX_BYTES];

			if (!*shard->sha256)
				continue;
			status = st_sha256_begin(&hash);
			if (status == ST_OK)
				status = verify_shard(dataset, shard, buffer, room, &hash);
			enum st_status ended = st_sha256_end(&hash, status == ST_OK ? digest : NULL);
			if (status == ST_OK)
				status = ended;
			if (status != ST_OK)
				break;
			st_hex(digest, sizeof digest, hex);
			if (strcmp(hex, shard->sha256))
				status = st_fail(ST_ERR_DATA, "%s: sha256: seen %s, expected %s", shard->path, hex, shard->sha256);
		}
	free(buffer);
	return status;
}

uint64_t train_dataset_sequences(const struct train_dataset *dataset, enum train_split split, size_t context)
{
	uint64_t tokens = dataset->info.tokens[split];

	return tokens > 1 ? (tokens - 1) / context : 0;
}

/* The shard that holds token AT: the last one that does not begin after it. */
static size_t shard_of(const struct stream *stream, uint64_t at)
{
	size_t low = 0, high = stream->count;

	while (high - low > 1) {
		size_t middle = low + (high - low) / 2;
		if (stream->shards[middle].first <= at)
			low = middle;
		else
			high = middle;
	}
	return low;
}

static enum st_status read_tokens(struct train_dataset *dataset, enum train_split split, uint64_t first, size_t count, uint16_t *tokens)
{
	struct stream *stream = &dataset->streams[split];

	if (first > stream->tokens || count > stream->tokens - first)
		return st_fail(ST_ERR_INTERNAL, "%s: tokens %llu + %zu of %llu", dataset->directory, (unsigned long long)first, count,
			       (unsigned long long)stream->tokens);
	for (size_t i = count ? shard_of(stream, first) : 0; count; i++) {
		struct shard *shard = &stream->shards[i];
		uint64_t skip = first - shard->first;
		size_t here = shard->tokens - skip < count ? (size_t)(shard->tokens - skip) : count;
		ST_TRY(open_shard(dataset, shard));
		ST_TRY(train_shard_read(shard->fd, shard->path, skip, here, tokens));
		first += here;
		tokens += here;
		count -= here;
	}
	return ST_OK;
}

enum st_status train_dataset_read(struct train_dataset *dataset, enum train_split split, size_t context, uint64_t index, uint16_t *inputs,
				  uint16_t *targets)
{
	/* Targets are the inputs one later, and one more token. */
	ST_TRY(read_tokens(dataset, split, index * context, context, inputs));
	memcpy(targets, inputs + 1, (context - 1) * sizeof *targets);
	return read_tokens(dataset, split, index * context + context, 1, targets + context - 1);
}
