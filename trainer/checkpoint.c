#include "checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/digest.h"
#include "common/io.h"
#include "common/log.h"
#include "common/version.h"
#include "trainer/fields.h"
#include "trainer/safetensors.h"

#define PATH_BYTES 4096
#define PREFIX "step-"
#define TEMPORARY "tmp." /* in front of the name of a directory that is being written or removed */
#define OLD "old."
#define MOST_FILES 4096
#define LOCK_PATIENCE_MS 5000
#define MOST_MANIFEST_BYTES ((size_t)16 << 20)
#define LARGEST ((uint64_t)1 << 62)

struct written_file {
	const char *name;
	uint64_t bytes;
	char sha256[65];
};

static enum st_status join(char path[PATH_BYTES], const char *directory, const char *name)
{
	if (snprintf(path, PATH_BYTES, "%s/%s", directory, name) >= PATH_BYTES)
		return st_fail(ST_ERR_USAGE, "%.60s...: path too long", directory);
	return ST_OK;
}

static void step_name(uint64_t step, char name[64])
{
	snprintf(name, 64, PREFIX "%08llu", (unsigned long long)step);
}

enum st_status train_checkpoint_path(const char *directory, uint64_t step, char path[PATH_BYTES])
{
	char name[64];

	step_name(step, name);
	return join(path, directory, name);
}

/* "step-00000200" -> 200; anything else, "step-200x" or a temporary name, is no checkpoint. */
static int step_of_name(const char *name, uint64_t *step)
{
	size_t length = strlen(name);

	if (strncmp(name, PREFIX, strlen(PREFIX)) || length < strlen(PREFIX) + 8 || length > strlen(PREFIX) + 18)
		return 0;
	*step = 0;
	for (const char *p = name + strlen(PREFIX); *p; p++) {
		if (*p < '0' || *p > '9')
			return 0;
		*step = *step * 10 + (uint64_t)(*p - '0');
	}
	return 1;
}

/* Removes a directory that holds files only. Missing is fine. */
static enum st_status remove_directory(const char *path)
{
	DIR *directory = opendir(path);
	struct dirent *entry;

	if (!directory)
		return errno == ENOENT ? ST_OK : st_fail_errno("%s: can't open directory", path);
	while ((entry = readdir(directory)))
		if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..") && unlinkat(dirfd(directory), entry->d_name, 0) < 0) {
			closedir(directory);
			return st_fail_errno("%s/%s: can't remove", path, entry->d_name);
		}
	closedir(directory);
	return rmdir(path) < 0 ? st_fail_errno("%s: can't remove directory", path) : ST_OK;
}

/* First out of the names that count, then away: a crash in between leaves no half checkpoint behind. */
static enum st_status retire(const char *directory, const char *name)
{
	char path[PATH_BYTES], old_name[64], old_path[PATH_BYTES];

	ST_TRY(join(path, directory, name));
	snprintf(old_name, sizeof old_name, TEMPORARY OLD "%.40s", name);
	ST_TRY(join(old_path, directory, old_name));
	ST_TRY(remove_directory(old_path));
	if (rename(path, old_path) < 0)
		return errno == ENOENT ? ST_OK : st_fail_errno("%s: can't rename to %s", path, old_path);
	return remove_directory(old_path);
}

/* "tmp.step-00000200" or "tmp.old.step-00000200". Whatever else is called tmp.something is somebody else's. */
static int is_leftover(const char *name)
{
	uint64_t step;

	if (strncmp(name, TEMPORARY, strlen(TEMPORARY)))
		return 0;
	name += strlen(TEMPORARY);
	return step_of_name(strncmp(name, OLD, strlen(OLD)) ? name : name + strlen(OLD), &step);
}

/* What a run that was killed while it wrote left behind. */
static enum st_status remove_leftovers(const char *directory)
{
	struct dirent **entries;
	enum st_status status = ST_OK;
	int found = scandir(directory, &entries, NULL, alphasort);

	if (found < 0)
		return st_fail_errno("%s: can't list", directory);
	for (int i = 0; i < found; i++) {
		char path[PATH_BYTES];
		if (status == ST_OK && is_leftover(entries[i]->d_name)) {
			status = join(path, directory, entries[i]->d_name);
			if (status == ST_OK)
				status = remove_directory(path);
		}
		free(entries[i]);
	}
	free(entries);
	return status;
}

/* fsync, then close: an error of either means that the file may not be there after a crash. */
static enum st_status sync_and_close(int fd, const char *path, enum st_status status)
{
	if (status == ST_OK && fsync(fd) < 0)
		status = st_fail_errno("%s: can't sync", path);
	if (close(fd) < 0 && status == ST_OK)
		status = st_fail_errno("%s: can't close", path);
	return status;
}

static enum st_status create(const char *path, int *fd)
{
	*fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
	return *fd < 0 ? st_fail_errno("%s: can't create", path) : ST_OK;
}

static void describe_tensor(const struct train_tensor *tensor, const char *prefix, const float *values,
			    struct train_safetensors_source *source)
{
	snprintf(source->name, sizeof source->name, "%s%s", prefix, tensor->name);
	source->rows = tensor->rows == 1 ? 0 : tensor->rows;
	source->columns = tensor->columns;
	source->values = values ? values + tensor->offset : NULL;
}

static void state_prefix(const struct train_buffers *buffers, unsigned state, char prefix[64])
{
	snprintf(prefix, 64, "optimizer.%s.", buffers->state_names[state]);
}

static enum st_status write_tensors(const char *directory, const struct train_safetensors_source *sources, size_t count,
				    struct written_file *file)
{
	char path[PATH_BYTES];
	int fd;

	ST_TRY(join(path, directory, file->name));
	ST_TRY(create(path, &fd));
	return sync_and_close(fd, path, train_safetensors_write(fd, path, sources, count, &file->bytes, file->sha256));
}

static void add_count(struct json_object *object, const char *key, uint64_t value)
{
	json_object_object_add(object, key, json_object_new_uint64(value));
}

static struct json_object *identity_object(const struct train_identity *identity)
{
	struct json_object *object = json_object_new_object(), *model = json_object_new_object();

	add_count(model, "vocabulary", (uint64_t)identity->model.vocabulary);
	add_count(model, "context", (uint64_t)identity->model.context);
	add_count(model, "layers", (uint64_t)identity->model.layers);
	add_count(model, "heads", (uint64_t)identity->model.heads);
	add_count(model, "channels", (uint64_t)identity->model.channels);
	json_object_object_add(object, "model", model);
	json_object_object_add(object, "optimizer", json_object_new_string(identity->optimizer));
	add_count(object, "seed", identity->seed);
	json_object_object_add(object, "data", json_object_new_string(identity->data));
	add_count(object, "schedule_steps", identity->schedule_steps);
	add_count(object, "world_size", identity->world_size);
	add_count(object, "threads", identity->threads);
	json_object_object_add(object, "isa", json_object_new_string(identity->isa));
	return object;
}

static enum st_status write_manifest(const char *directory, const struct train_progress *progress, const struct train_identity *identity,
				     const struct written_file *files, size_t count, const char *config_json)
{
	struct json_object *root = json_object_new_object(), *list = json_object_new_array(), *config;
	char path[PATH_BYTES];
	int fd;

	json_object_object_add(root, "format", json_object_new_string(TRAIN_CHECKPOINT_FORMAT));
	add_count(root, "version", TRAIN_CHECKPOINT_VERSION);
	json_object_object_add(root, "build", json_object_new_string(st_build_id));
	add_count(root, "step", progress->step);
	add_count(root, "epoch", progress->epoch);
	add_count(root, "sequences", progress->sequences);
	add_count(root, "updates", progress->updates);
	add_count(root, "skipped", progress->skipped);
	add_count(root, "skipped_in_row", progress->skipped_in_row);
	json_object_object_add(root, "identity", identity_object(identity));
	for (size_t i = 0; i < count; i++) {
		struct json_object *entry = json_object_new_object();
		json_object_object_add(entry, "file", json_object_new_string(files[i].name));
		add_count(entry, "bytes", files[i].bytes);
		json_object_object_add(entry, "sha256", json_object_new_string(files[i].sha256));
		json_object_array_add(list, entry);
	}
	json_object_object_add(root, "files", list);
	enum st_status status = train_fields_parse("configuration", config_json, strlen(config_json), &config);
	if (status == ST_OK)
		json_object_object_add(root, "config", config);
	const char *text = json_object_to_json_string_ext(root, JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_NOSLASHESCAPE);
	if (status == ST_OK && !text)
		status = st_fail(ST_ERR_NOMEM, "%s: no memory for a manifest", directory);
	if (status == ST_OK)
		status = join(path, directory, "manifest.json");
	if (status == ST_OK)
		status = create(path, &fd);
	if (status == ST_OK)
		status = sync_and_close(fd, path, st_write_full(fd, text, strlen(text), path));
	json_object_put(root);
	return status;
}

static enum st_status write_contents(const char *directory, const struct train_progress *progress, const struct train_identity *identity,
				     const struct train_buffers *buffers, const char *config_json)
{
	struct written_file files[] = {{.name = "model.safetensors"}, {.name = "optimizer.safetensors"}};
	size_t file_count = buffers->state_count ? 2 : 1, count = 0, most = buffers->tensor_count * (1 + buffers->state_count);
	struct train_safetensors_source *sources = calloc(most + 1, sizeof *sources);
	enum st_status status;
	char prefix[64];

	if (!sources)
		return st_fail(ST_ERR_NOMEM, "%s: no memory for %zu tensors", directory, most);
	for (size_t i = 0; i < buffers->tensor_count; i++)
		describe_tensor(&buffers->tensors[i], "", buffers->parameters, &sources[count++]);
	status = write_tensors(directory, sources, count, &files[0]);
	count = 0;
	for (unsigned state = 0; state < buffers->state_count; state++) {
		state_prefix(buffers, state, prefix);
		for (size_t i = 0; i < buffers->tensor_count; i++)
			describe_tensor(&buffers->tensors[i], prefix, buffers->states[state], &sources[count++]);
	}
	if (status == ST_OK && buffers->state_count)
		status = write_tensors(directory, sources, count, &files[1]);
	free(sources);
	if (status == ST_OK)
		status = write_manifest(directory, progress, identity, files, file_count, config_json);
	if (status == ST_OK)
		status = st_sync_directory(directory);
	return status;
}

enum st_status train_checkpoint_lock(const char *directory, int *fd)
{
	/* The run before may have been killed a moment ago and still be on its way out. */
	struct st_deadline patience = st_deadline_in_ms(LOCK_PATIENCE_MS);
	struct timespec pause = {.tv_nsec = 20 * ST_NS_PER_MS};
	int opened;

	*fd = -1;
	/* Now, and not after hours of training. */
	ST_TRY(st_make_directories(directory, 0777));
	if (access(directory, W_OK | X_OK) < 0)
		return st_fail_errno("checkpoint.directory: %s: can't write in it", directory);
	opened = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (opened < 0)
		return st_fail_errno("checkpoint.directory: %s: can't open", directory);
	while (flock(opened, LOCK_EX | LOCK_NB) < 0) {
		if (errno == EINTR)
			continue;
		/* Some network file systems lock no directories. */
		if (errno != EWOULDBLOCK) {
			close(opened);
			return ST_OK;
		}
		if (st_deadline_expired(&patience)) {
			close(opened);
			return st_fail(ST_ERR_UNAVAILABLE, "checkpoint.directory: seen %s, which another run is using, expected a directory for "
				       "this run alone", directory);
		}
		nanosleep(&pause, NULL);
	}
	*fd = opened;
	return ST_OK;
}

/* Newest first. *names is malloc'ed, and each of it. A directory that does not exist holds none. */
static enum st_status list_checkpoints(const char *directory, char ***names, size_t *count)
{
	struct dirent **entries;
	uint64_t step;
	int found = scandir(directory, &entries, NULL, versionsort), complete;

	*count = 0;
	*names = NULL;
	if (found < 0)
		return errno == ENOENT ? ST_OK : st_fail_errno("%s: can't list", directory);
	*names = calloc((size_t)found + 1, sizeof **names);
	complete = *names != NULL;
	for (int i = found - 1; i >= 0; i--) {
		if (complete && step_of_name(entries[i]->d_name, &step)) {
			(*names)[*count] = strdup(entries[i]->d_name);
			if ((*names)[*count])
				++*count;
			else
				complete = 0;
		}
		free(entries[i]);
	}
	free(entries);
	return complete ? ST_OK : st_fail(ST_ERR_NOMEM, "%s: no memory for %d names", directory, found);
}

static void free_names(char **names, size_t count)
{
	for (size_t i = 0; i < count; i++)
		free(names[i]);
	free(names);
}

/* Counts only what is not newer than the checkpoint just written: a newer one is one that could not be used, and must not
 * push out those that can. */
static enum st_status prune(const char *directory, uint64_t step, uint64_t keep)
{
	char **names;
	size_t count;
	uint64_t kept = 0, other;
	enum st_status status = list_checkpoints(directory, &names, &count);

	for (size_t i = 0; i < count && status == ST_OK; i++)
		if (step_of_name(names[i], &other) && other <= step && ++kept > keep)
			status = retire(directory, names[i]);
	free_names(names, count);
	return status;
}

enum st_status train_checkpoint_write(const char *directory, const struct train_progress *progress, const struct train_identity *identity,
				      const struct train_buffers *buffers, const char *config_json, uint64_t keep)
{
	char name[64], temporary_name[64], temporary[PATH_BYTES], final[PATH_BYTES];
	enum st_status status;

	step_name(progress->step, name);
	snprintf(temporary_name, sizeof temporary_name, TEMPORARY "%.50s", name);
	ST_TRY(join(temporary, directory, temporary_name));
	ST_TRY(join(final, directory, name));
	ST_TRY(st_make_directories(directory, 0777));
	ST_TRY(remove_leftovers(directory));
	if (mkdir(temporary, 0777) < 0)
		return st_fail_errno("%s: can't make directory", temporary);
	status = write_contents(temporary, progress, identity, buffers, config_json);
	/* One of the same step can only be one that this run could not use, or resumed before. */
	if (status == ST_OK)
		status = retire(directory, name);
	if (status == ST_OK && rename(temporary, final) < 0)
		status = st_fail_errno("%s: can't rename to %s", temporary, final);
	if (status != ST_OK) {
		char why[1024];
		snprintf(why, sizeof why, "%s", st_message());
		remove_directory(temporary); /* gives a full disk its space back */
		return st_fail_copy(status, why);
	}
	ST_TRY(st_sync_directory(directory));
	status = prune(directory, progress->step, keep);
	if (status != ST_OK)
		st_log(ST_LOG_WARN, "old checkpoints stay: %s", st_message());
	return ST_OK;
}

static enum st_status read_identity(const char *name, struct json_object *root, struct train_identity *identity)
{
	struct json_object *object, *model;
	const char *optimizer, *data, *isa;
	uint64_t count[5], world_size, threads;
	static const char *const keys[] = {"vocabulary", "context", "layers", "heads", "channels"};

	ST_TRY(train_field_object(name, root, "identity", &object));
	ST_TRY(train_field_object(name, object, "model", &model));
	for (int i = 0; i < 5; i++)
		ST_TRY(train_field_count(name, model, keys[i], 1, (uint64_t)1 << 40, &count[i]));
	identity->model = (struct train_model_config){.vocabulary = (int64_t)count[0], .context = (int64_t)count[1], .layers = (int64_t)count[2],
						      .heads = (int64_t)count[3], .channels = (int64_t)count[4]};
	ST_TRY(train_field_string(name, object, "optimizer", sizeof identity->optimizer - 1, &optimizer));
	strcpy(identity->optimizer, optimizer);
	ST_TRY(train_field_count(name, object, "seed", 0, LARGEST, &identity->seed));
	ST_TRY(train_field_string(name, object, "data", sizeof identity->data - 1, &data));
	strcpy(identity->data, data);
	ST_TRY(train_field_count(name, object, "schedule_steps", 0, LARGEST, &identity->schedule_steps));
	ST_TRY(train_field_count(name, object, "world_size", 1, UINT32_MAX, &world_size));
	identity->world_size = (uint32_t)world_size;
	ST_TRY(train_field_count(name, object, "threads", 1, UINT32_MAX, &threads));
	identity->threads = (uint32_t)threads;
	ST_TRY(train_field_string(name, object, "isa", sizeof identity->isa - 1, &isa));
	strcpy(identity->isa, isa);
	return ST_OK;
}

static enum st_status read_progress(const char *name, struct json_object *root, struct train_progress *progress)
{
	const char *format;
	uint64_t version;

	ST_TRY(train_field_string(name, root, "format", 100, &format));
	if (strcmp(format, TRAIN_CHECKPOINT_FORMAT))
		return st_fail(ST_ERR_DATA, "%s: format: seen %s, expected %s", name, format, TRAIN_CHECKPOINT_FORMAT);
	ST_TRY(train_field_count(name, root, "version", TRAIN_CHECKPOINT_VERSION, TRAIN_CHECKPOINT_VERSION, &version));
	ST_TRY(train_field_count(name, root, "step", 0, LARGEST, &progress->step));
	ST_TRY(train_field_count(name, root, "epoch", 0, LARGEST, &progress->epoch));
	ST_TRY(train_field_count(name, root, "sequences", 0, LARGEST, &progress->sequences));
	ST_TRY(train_field_count(name, root, "updates", 0, progress->step, &progress->updates));
	ST_TRY(train_field_count(name, root, "skipped", 0, progress->step, &progress->skipped));
	return train_field_count(name, root, "skipped_in_row", 0, progress->skipped, &progress->skipped_in_row);
}

/* *root is to be freed by json_object_put. */
static enum st_status read_manifest(const char *directory, char name[PATH_BYTES], struct json_object **root)
{
	char *text;
	size_t bytes;

	ST_TRY(join(name, directory, "manifest.json"));
	ST_TRY(st_file_read(name, MOST_MANIFEST_BYTES, &text, &bytes));
	enum st_status status = train_fields_parse(name, text, bytes, root);
	free(text);
	return status;
}

static enum st_status verify_file(const char *path, uint64_t bytes, const char *sha256)
{
	const size_t room = (size_t)4 << 20;
	char hex[ST_SHA256_HEX_BYTES], *buffer;
	uint8_t digest[ST_SHA256_BYTES];
	struct st_sha256 hash;
	struct stat info;
	enum st_status status;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	if (fd < 0)
		return st_fail_errno("%s: can't open", path);
	buffer = malloc(room);
	if (!buffer || fstat(fd, &info) < 0) {
		status = st_fail_errno("%s: can't look at it", path);
		goto close_file;
	}
	if (!S_ISREG(info.st_mode) || (uint64_t)info.st_size != bytes) {
		status = st_fail(ST_ERR_DATA, "%s: size: seen %lld bytes, expected %llu", path, (long long)info.st_size,
				 (unsigned long long)bytes);
		goto close_file;
	}
	status = st_sha256_begin(&hash);
	for (uint64_t at = 0; at < bytes && status == ST_OK;) {
		size_t piece = bytes - at < room ? (size_t)(bytes - at) : room;
		status = st_read_full(fd, buffer, piece, path);
		if (status == ST_OK)
			status = st_sha256_update(&hash, buffer, piece);
		at += piece;
	}
	enum st_status ended = st_sha256_end(&hash, status == ST_OK ? digest : NULL);
	if (status == ST_OK)
		status = ended;
	if (status != ST_OK)
		goto close_file;
	st_hex(digest, sizeof digest, hex);
	if (strcmp(hex, sha256))
		status = st_fail(ST_ERR_DATA, "%s: sha256: seen %s, expected %s", path, hex, sha256);
close_file:
	free(buffer);
	close(fd);
	return status;
}

/* Calls what(path of the file, its entry) for each file of the manifest. */
typedef enum st_status each_file(const char *path, uint64_t bytes, const char *sha256, void *context);

static enum st_status for_each_file(const char *directory, const char *name, struct json_object *root, each_file *what, void *context)
{
	struct json_object *files;

	ST_TRY(train_field_array(name, root, "files", MOST_FILES, &files));
	if (!json_object_array_length(files))
		return st_fail(ST_ERR_DATA, "%s: files: seen none, expected at least one", name);
	for (size_t i = 0; i < json_object_array_length(files); i++) {
		struct json_object *entry = json_object_array_get_idx(files, i);
		const char *file, *sha256;
		char path[PATH_BYTES];
		uint64_t bytes;
		if (json_object_get_type(entry) != json_type_object)
			return st_fail(ST_ERR_DATA, "%s: files: element %zu is not an object", name, i);
		ST_TRY(train_field_file_name(name, entry, "file", &file));
		ST_TRY(train_field_count(name, entry, "bytes", 0, LARGEST, &bytes));
		ST_TRY(train_field_string(name, entry, "sha256", 64, &sha256));
		ST_TRY(join(path, directory, file));
		ST_TRY(what(path, bytes, sha256, context));
	}
	return ST_OK;
}

static enum st_status verify_one(const char *path, uint64_t bytes, const char *sha256, void *context)
{
	(void)context;
	return verify_file(path, bytes, sha256);
}

static enum st_status verify(const char *directory, uint64_t step, struct train_progress *progress, struct train_identity *identity)
{
	char name[PATH_BYTES];
	struct json_object *root;
	enum st_status status;

	ST_TRY(read_manifest(directory, name, &root));
	status = read_progress(name, root, progress);
	if (status == ST_OK && progress->step != step)
		status = st_fail(ST_ERR_DATA, "%s: step: seen %llu, expected %llu as its directory says", name,
				 (unsigned long long)progress->step, (unsigned long long)step);
	if (status == ST_OK)
		status = read_identity(name, root, identity);
	if (status == ST_OK)
		status = for_each_file(directory, name, root, verify_one, NULL);
	json_object_put(root);
	return status;
}

enum st_status train_checkpoint_find(const char *directory, int *found, char path[4096], struct train_progress *progress,
				     struct train_identity *identity)
{
	char **names;
	size_t count;
	uint64_t step;
	enum st_status status = list_checkpoints(directory, &names, &count);

	*found = 0;
	for (size_t i = 0; i < count && status == ST_OK && !*found; i++) {
		status = join(path, directory, names[i]);
		if (status != ST_OK)
			break;
		step_of_name(names[i], &step);
		*progress = (struct train_progress){0};
		*identity = (struct train_identity){0};
		if (verify(path, step, progress, identity) == ST_OK)
			*found = 1;
		else
			st_log(ST_LOG_WARN, "checkpoint skipped: %s", st_message());
	}
	if (status == ST_OK && count && !*found)
		status = st_fail(ST_ERR_DATA, "%s: none of its %zu checkpoints can be used: move them away to start anew", directory, count);
	free_names(names, count);
	return status;
}

enum st_status train_checkpoint_config(const char *path, char **text)
{
	char name[PATH_BYTES];
	struct json_object *root, *config;

	ST_TRY(read_manifest(path, name, &root));
	enum st_status status = train_field_object(name, root, "config", &config);
	const char *printed = status == ST_OK ? json_object_to_json_string(config) : NULL;
	*text = printed ? strdup(printed) : NULL;
	if (status == ST_OK && !*text)
		status = st_fail(ST_ERR_NOMEM, "%s: no memory for its configuration", name);
	json_object_put(root);
	return status;
}

enum st_status train_checkpoint_check(const char *path, const struct train_identity *mine, const struct train_identity *saved)
{
	const struct {
		const char *key;
		uint64_t seen, expected;
	} numbers[] = {
		{"model.vocabulary", (uint64_t)mine->model.vocabulary, (uint64_t)saved->model.vocabulary},
		{"model.context", (uint64_t)mine->model.context, (uint64_t)saved->model.context},
		{"model.layers", (uint64_t)mine->model.layers, (uint64_t)saved->model.layers},
		{"model.heads", (uint64_t)mine->model.heads, (uint64_t)saved->model.heads},
		{"model.channels", (uint64_t)mine->model.channels, (uint64_t)saved->model.channels},
		{"seed", mine->seed, saved->seed},
	};

	for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
		if (numbers[i].seen != numbers[i].expected)
			return st_fail(ST_ERR_CONFIG, "%s: seen %llu, expected %llu as in the checkpoint %s", numbers[i].key,
				       (unsigned long long)numbers[i].seen, (unsigned long long)numbers[i].expected, path);
	if (strcmp(mine->optimizer, saved->optimizer))
		return st_fail(ST_ERR_CONFIG, "optimizer.kind: seen %s, expected %s as in the checkpoint %s", mine->optimizer, saved->optimizer,
			       path);
	if (strcmp(mine->data, saved->data))
		return st_fail(ST_ERR_CONFIG, "data.directory: seen other data (%.12s...), expected that of the checkpoint %s (%.12s...)",
			       mine->data, path, saved->data);
	return ST_OK;
}

struct destination {
	char name[TRAIN_SAFETENSORS_NAME_BYTES];
	const struct train_tensor *tensor;
	float *values;
	int filled;
};

struct reading {
	struct destination *destinations;
	size_t count;
};

static enum st_status read_entry(const struct train_safetensors *file, const struct train_safetensors_entry *entry, struct reading *reading)
{
	for (size_t i = 0; i < reading->count; i++) {
		struct destination *destination = &reading->destinations[i];
		const struct train_tensor *tensor = destination->tensor;
		if (strcmp(destination->name, entry->name))
			continue;
		uint64_t rows = entry->dimensions == 2 ? entry->shape[0] : 1;
		uint64_t columns = entry->dimensions ? entry->shape[entry->dimensions - 1] : 0;
		if (entry->dimensions > 2 || rows != tensor->rows || columns != tensor->columns || entry->elements != tensor->elements)
			return st_fail(ST_ERR_DATA, "%s: tensor %s: seen %llu elements, expected (%zu, %zu)", file->path, entry->name,
				       (unsigned long long)entry->elements, tensor->rows, tensor->columns);
		if (destination->filled++)
			return st_fail(ST_ERR_DATA, "%s: tensor %s: it is in another file of the checkpoint too", file->path, entry->name);
		return train_safetensors_read(file, entry, destination->values);
	}
	return st_fail(ST_ERR_DATA, "%s: tensor %s: this run has none of that name", file->path, entry->name);
}

static enum st_status read_one(const char *path, uint64_t bytes, const char *sha256, void *context)
{
	struct train_safetensors file;
	enum st_status status = ST_OK;

	(void)bytes;
	(void)sha256;
	ST_TRY(train_safetensors_open(path, &file));
	for (size_t i = 0; i < file.count && status == ST_OK; i++)
		status = read_entry(&file, &file.entries[i], context);
	train_safetensors_close(&file);
	return status;
}

static void add_destinations(struct reading *reading, const struct train_buffers *buffers, const char *prefix, float *values)
{
	for (size_t i = 0; i < buffers->tensor_count; i++) {
		struct destination *destination = &reading->destinations[reading->count++];
		destination->tensor = &buffers->tensors[i];
		destination->values = values + buffers->tensors[i].offset;
		snprintf(destination->name, sizeof destination->name, "%s%s", prefix, buffers->tensors[i].name);
	}
}

enum st_status train_checkpoint_read(const char *path, const struct train_buffers *buffers)
{
	struct reading reading = {0};
	char name[PATH_BYTES], prefix[64];
	struct json_object *root;
	enum st_status status;

	reading.destinations = calloc(buffers->tensor_count * (1 + buffers->state_count) + 1, sizeof *reading.destinations);
	if (!reading.destinations)
		return st_fail(ST_ERR_NOMEM, "%s: no memory for %zu tensors", path, buffers->tensor_count);
	add_destinations(&reading, buffers, "", buffers->parameters);
	for (unsigned state = 0; state < buffers->state_count; state++) {
		state_prefix(buffers, state, prefix);
		add_destinations(&reading, buffers, prefix, buffers->states[state]);
	}
	status = read_manifest(path, name, &root);
	if (status == ST_OK) {
		status = for_each_file(path, name, root, read_one, &reading);
		json_object_put(root);
	}
	for (size_t i = 0; i < reading.count && status == ST_OK; i++)
		if (!reading.destinations[i].filled)
			status = st_fail(ST_ERR_DATA, "%s: tensor %s: seen in none of its files", path, reading.destinations[i].name);
	free(reading.destinations);
	return status;
}
