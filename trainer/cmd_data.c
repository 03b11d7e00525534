/*
 * `synctrain data TEXT... -o DIR`: token shards from text, bytes as tokens.
 *
 * The texts count as one stream in the order given.  Its last part is the validation split.  dataset.json says what was made, and the
 * text's bigram entropy: a model that knows no more than the byte before reaches it and no less, so a validation loss below it
 * proves that the model learned context.
 */
#include <fcntl.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sysexits.h>
#include <unistd.h>

#include "common/command.h"
#include "common/io.h"
#include "trainer/data.h"
#include "trainer/shard.h"

#include <json-c/json.h>

st_command_main cmd_data;

struct source {
	const char *path;
	int fd;
	uint64_t bytes;
};

/* Reads the texts one after the other, as one stream. */
struct text {
	struct source *sources;
	size_t count, current;
	uint64_t bytes, left; /* of all; of the current one */
	uint64_t pairs[256][256];
	int previous; /* -1: none yet */
};

static enum st_status open_texts(struct text *text, char *const *paths)
{
	for (size_t i = 0; i < text->count; i++) {
		struct source *source = &text->sources[i];
		struct stat info;
		source->path = paths[i];
		source->fd = open(paths[i], O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe that nobody writes must not hold us */
		if (source->fd < 0)
			return st_fail_input(paths[i], "can't open");
		if (fstat(source->fd, &info) < 0)
			return st_fail_errno("%s: can't stat", paths[i]);
		if (!S_ISREG(info.st_mode))
			return st_fail(ST_ERR_DATA, "%s: not a regular file", paths[i]);
		source->bytes = (uint64_t)info.st_size;
		text->bytes += source->bytes;
	}
	text->left = text->sources[0].bytes;
	if (text->bytes < 2)
		return st_fail(ST_ERR_DATA, "%s: seen %llu bytes of text, expected at least 2", paths[0], (unsigned long long)text->bytes);
	return ST_OK;
}

/* The next COUNT tokens of the stream, counted into the table of pairs on the way. */
static enum st_status next_tokens(struct text *text, size_t count, uint16_t *tokens)
{
	uint8_t buffer[1 << 16];

	while (count) {
		while (!text->left)
			text->left = text->sources[++text->current].bytes;
		const struct source *source = &text->sources[text->current];
		size_t take = count < sizeof buffer ? count : sizeof buffer;
		take = text->left < take ? (size_t)text->left : take;
		ST_TRY(st_read_full(source->fd, buffer, take, source->path));
		for (size_t i = 0; i < take; i++) {
			tokens[i] = buffer[i];
			if (text->previous >= 0)
				text->pairs[text->previous][buffer[i]]++;
			text->previous = buffer[i];
		}
		tokens += take;
		count -= take;
		text->left -= take;
	}
	return ST_OK;
}

/* H(X2|X1) = -sum p(a,b) log p(b|a), in nats. */
static double bigram_entropy(const struct text *text)
{
	double sum = 0;
	uint64_t pairs = 0;

	for (size_t a = 0; a < 256; a++) {
		uint64_t row = 0;
		for (size_t b = 0; b < 256; b++)
			row += text->pairs[a][b];
		for (size_t b = 0; b < 256; b++)
			if (text->pairs[a][b])
				sum -= (double)text->pairs[a][b] * log((double)text->pairs[a][b] / (double)row);
		pairs += row;
	}
	return sum / (double)pairs;
}

static enum st_status write_split(struct text *text, const char *directory, enum train_split split, uint64_t tokens, uint64_t shard_tokens,
				  struct json_object *list)
{
	size_t room = (size_t)(tokens < shard_tokens ? tokens : shard_tokens);
	uint16_t *buffer = malloc(room * sizeof *buffer + 1);
	enum st_status status = ST_OK;

	if (!buffer)
		return st_fail(ST_ERR_NOMEM, "no memory for a shard of %zu tokens: choose smaller ones with --shard-tokens", room);
	for (size_t index = 0; tokens && status == ST_OK; index++) {
		size_t count = tokens < shard_tokens ? (size_t)tokens : (size_t)shard_tokens;
		char name[64], path[4096], sha256[65];
		train_dataset_shard_name(split, index, name);
		if (snprintf(path, sizeof path, "%s/%s", directory, name) >= (int)sizeof path)
			status = st_fail(ST_ERR_USAGE, "%.60s...: path too long", directory);
		if (status == ST_OK)
			status = next_tokens(text, count, buffer);
		if (status == ST_OK)
			status = train_shard_write(path, buffer, count, sha256);
		if (status == ST_OK) {
			struct json_object *entry = json_object_new_object();
			json_object_object_add(entry, "file", json_object_new_string(name));
			json_object_object_add(entry, "tokens", json_object_new_uint64(count));
			json_object_object_add(entry, "sha256", json_object_new_string(sha256));
			json_object_array_add(list, entry);
		}
		tokens -= count;
	}
	free(buffer);
	return status;
}

static enum st_status write_description(const char *path, struct json_object *root)
{
	const char *text = json_object_to_json_string_ext(root, JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_NOSLASHESCAPE);
	struct st_newfile file;

	if (!text)
		return st_fail(ST_ERR_NOMEM, "%s: no memory for the description", path);
	ST_TRY(st_newfile_open(&file, path, 0666));
	enum st_status status = st_write_full(file.fd, text, strlen(text), path);
	if (status == ST_OK)
		status = st_write_full(file.fd, "\n", 1, path);
	if (status == ST_OK)
		status = st_newfile_commit(&file);
	st_newfile_abandon(&file);
	return status;
}

static enum st_status make_dataset(struct text *text, const char *directory, double validation, uint64_t shard_tokens)
{
	uint64_t tokens[TRAIN_SPLIT_COUNT];
	char path[4096], number[40];
	enum st_status status;

	tokens[TRAIN_SPLIT_VALIDATION] = (uint64_t)((double)text->bytes * validation);
	tokens[TRAIN_SPLIT_TRAINING] = text->bytes - tokens[TRAIN_SPLIT_VALIDATION];
	if (snprintf(path, sizeof path, "%s/dataset.json", directory) >= (int)sizeof path)
		return st_fail(ST_ERR_USAGE, "%.60s...: path too long", directory);
	ST_TRY(st_make_directories(directory, 0777));
	/* While shards are being replaced the old description must not vouch for them. */
	if (unlink(path) < 0 && access(path, F_OK) == 0)
		return st_fail_errno("%s: can't replace", path);

	struct json_object *root = json_object_new_object(), *count = json_object_new_object(), *sources = json_object_new_array();
	struct json_object *lists[TRAIN_SPLIT_COUNT] = {json_object_new_array(), json_object_new_array()};
	json_object_object_add(root, "format", json_object_new_string(TRAIN_DATASET_FORMAT));
	json_object_object_add(root, "version", json_object_new_int(TRAIN_DATASET_VERSION));
	json_object_object_add(root, "vocabulary", json_object_new_int(256));
	status = write_split(text, directory, TRAIN_SPLIT_TRAINING, tokens[TRAIN_SPLIT_TRAINING], shard_tokens, lists[TRAIN_SPLIT_TRAINING]);
	if (status == ST_OK)
		status = write_split(text, directory, TRAIN_SPLIT_VALIDATION, tokens[TRAIN_SPLIT_VALIDATION], shard_tokens,
				     lists[TRAIN_SPLIT_VALIDATION]);
	double entropy = bigram_entropy(text);
	snprintf(number, sizeof number, "%.17g", entropy);
	json_object_object_add(root, "bigram_entropy_nats", json_object_new_double_s(entropy, number));
	json_object_object_add(count, "train", json_object_new_uint64(tokens[TRAIN_SPLIT_TRAINING]));
	json_object_object_add(count, "validation", json_object_new_uint64(tokens[TRAIN_SPLIT_VALIDATION]));
	json_object_object_add(root, "tokens", count);
	for (size_t i = 0; i < text->count; i++) {
		struct json_object *source = json_object_new_object();
		const char *slash = strrchr(text->sources[i].path, '/');
		char name[256];
		snprintf(name, sizeof name, "%s", slash ? slash + 1 : text->sources[i].path);
		/* File names are bytes, JSON is UTF-8, and this one is only for people. */
		for (char *p = name; *p; p++)
			if ((unsigned char)*p >= 0x7f)
				*p = '?';
		json_object_object_add(source, "file", json_object_new_string(name));
		json_object_object_add(source, "bytes", json_object_new_uint64(text->sources[i].bytes));
		json_object_array_add(sources, source);
	}
	json_object_object_add(root, "text", sources);
	size_t shards = json_object_array_length(lists[0]) + json_object_array_length(lists[1]);
	json_object_object_add(root, "train", lists[TRAIN_SPLIT_TRAINING]);
	json_object_object_add(root, "validation", lists[TRAIN_SPLIT_VALIDATION]);
	if (status == ST_OK)
		status = write_description(path, root);
	json_object_put(root);
	if (status == ST_OK)
		printf("%s: %llu training and %llu validation tokens in %zu shard%s | bigram entropy %.4f nats/byte\n", directory,
		       (unsigned long long)tokens[TRAIN_SPLIT_TRAINING], (unsigned long long)tokens[TRAIN_SPLIT_VALIDATION], shards, shards == 1 ? "" : "s",
		       entropy);
	return status;
}

static void usage(FILE *out)
{
	fputs("usage: synctrain data TEXT... -o DIR [--validation FRACTION] [--shard-tokens N]\n\n"
	      "Makes token shards from text, one token a byte, in llm.c's file format, and DIR/dataset.json.\n\n"
	      "  -o, --output DIR         where to; made if missing\n"
	      "      --validation F       the last part of the text kept for validation, 0 to 0.9 (default 0.1)\n"
	      "      --shard-tokens N     tokens of a shard, 1 to 2147483647 (default 100000000)\n"
	      "  -h, --help\n",
	      out);
}

static enum st_status read_options(int argc, char **argv, const char **directory, double *validation, uint64_t *shard_tokens, int *help)
{
	static const struct option options[] = {
		{"output", required_argument, NULL, 'o'},       {"validation", required_argument, NULL, 'v'},
		{"shard-tokens", required_argument, NULL, 's'}, {"help", no_argument, NULL, 'h'},
		{0},
	};
	char *end;
	int option;

	optind = 1;
	opterr = 0;
	while ((option = getopt_long(argc, argv, "o:h", options, NULL)) != -1)
		switch (option) {
		case 'o':
			*directory = optarg;
			break;
		case 'v':
			*validation = strtod(optarg, &end);
			if (end == optarg || *end || optarg[strspn(optarg, "0123456789.")] || !(*validation >= 0 && *validation <= 0.9))
				return st_fail(ST_ERR_USAGE, "--validation: seen %.100s, expected a fraction from 0 to 0.9", optarg);
			break;
		case 's':
			*shard_tokens = strtoull(optarg, &end, 10);
			if (*optarg < '0' || *optarg > '9' || *end || *shard_tokens < 1 || *shard_tokens > TRAIN_SHARD_MOST_TOKENS)
				return st_fail(ST_ERR_USAGE, "--shard-tokens: seen %.100s, expected an integer from 1 to %u", optarg,
					       TRAIN_SHARD_MOST_TOKENS);
			break;
		case 'h':
			*help = 1;
			return ST_OK;
		default:
			return st_fail(ST_ERR_USAGE, "seen %.100s, expected an option of `synctrain data --help` and its value",
				       argv[optind - 1]);
		}
	if (optind >= argc)
		return st_fail(ST_ERR_USAGE, "seen no text, expected TEXT... -o DIR");
	if (!*directory)
		return st_fail(ST_ERR_USAGE, "seen no -o, expected a directory for the shards");
	return ST_OK;
}

int cmd_data(int argc, char **argv)
{
	const char *directory = NULL;
	double validation = 0.1;
	uint64_t shard_tokens = 100000000;
	int help = 0;
	enum st_status status = read_options(argc, argv, &directory, &validation, &shard_tokens, &help);

	if (status != ST_OK)
		return st_command_failed("data", status);
	if (help) {
		usage(stdout);
		return EX_OK;
	}
	struct text *text = calloc(1, sizeof *text);
	size_t count = (size_t)(argc - optind);
	struct source *sources = calloc(count, sizeof *sources);
	if (!text || !sources) {
		status = st_fail(ST_ERR_NOMEM, "no memory for %zu texts", count);
	} else {
		for (size_t i = 0; i < count; i++)
			sources[i].fd = -1;
		text->sources = sources;
		text->count = count;
		text->previous = -1;
		status = open_texts(text, argv + optind);
		if (status == ST_OK)
			status = make_dataset(text, directory, validation, shard_tokens);
		for (size_t i = 0; i < count; i++)
			if (sources[i].fd >= 0)
				close(sources[i].fd);
	}
	free(sources);
	free(text);
	return status == ST_OK ? EX_OK : st_command_failed("data", status);
}
