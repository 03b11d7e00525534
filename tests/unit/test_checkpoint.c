/* Checkpoints: complete or not at all, the newest usable one counts, and what is read is what was written. */
#include "temporary.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "common/io.h"
#include "common/log.h"
#include "trainer/checkpoint.h"

#define ELEMENTS 26

static const struct train_tensor tensors[] = {
	{.name = "wte.weight", .offset = 0, .elements = 20, .rows = 4, .columns = 5, .decay = true},
	{.name = "ln_f.bias", .offset = 20, .elements = 6, .rows = 1, .columns = 6},
};
static float parameters[ELEMENTS], m[ELEMENTS], v[ELEMENTS];
static const struct train_buffers buffers = {
	.tensors = tensors, .tensor_count = 2, .elements = ELEMENTS, .parameters = parameters,
	.state_count = 2, .state_names = {"m", "v"}, .states = {m, v},
};
static const struct train_identity identity = {
	.model = {.vocabulary = 4, .context = 8, .layers = 1, .heads = 1, .channels = 5}, .optimizer = "adamw", .seed = 9007199254740991,
	.data = "0123", .schedule_steps = 500, .world_size = 8, .threads = 2, .isa = "avx2",
};

static void fill(float first)
{
	for (size_t i = 0; i < ELEMENTS; i++) {
		parameters[i] = first + (float)i;
		m[i] = -parameters[i];
		v[i] = parameters[i] * 0.001f;
	}
}

static enum st_status save(uint64_t step, uint64_t keep)
{
	struct train_progress progress = {.step = step, .epoch = 1, .sequences = step * 32, .updates = step, .skipped = 0};

	fill((float)step);
	return train_checkpoint_write(temporary_path("run"), &progress, &identity, &buffers, "{\"steps\": 500}", keep);
}

/* The step that a resume would start from; 0: none. */
static uint64_t newest(void)
{
	struct train_progress progress;
	struct train_identity saved;
	char path[4096];
	int found;

	enum st_status status = train_checkpoint_find(temporary_path("run"), &found, path, &progress, &saved);
	return status == ST_OK && found ? progress.step : 0;
}

static size_t entries(const char *part)
{
	size_t count = 0;
	DIR *directory = opendir(temporary_path("run"));
	for (struct dirent *entry; directory && (entry = readdir(directory));)
		count += strstr(entry->d_name, part) != NULL;
	if (directory)
		closedir(directory);
	return count;
}

static void round_trip(void)
{
	struct train_progress progress;
	struct train_identity saved;
	float expected[3][ELEMENTS];
	char path[4096], manifest[5000], *text;
	size_t bytes;
	int found = 1;

	CHECK_OK(train_checkpoint_find(temporary_path("run"), &found, path, &progress, &saved));
	CHECK(!found, "a directory that does not exist holds a checkpoint");
	CHECK_OK(save(200, 2));
	memcpy(expected[0], parameters, sizeof parameters);
	memcpy(expected[1], m, sizeof m);
	memcpy(expected[2], v, sizeof v);
	fill(-1);
	CHECK_OK(train_checkpoint_find(temporary_path("run"), &found, path, &progress, &saved));
	CHECK(found && !strcmp(strrchr(path, '/'), "/step-00000200"), "%s", path);
	CHECK(progress.step == 200 && progress.sequences == 6400 && progress.updates == 200 && progress.epoch == 1);
	CHECK(saved.seed == identity.seed && !strcmp(saved.isa, "avx2") && saved.world_size == 8 && saved.schedule_steps == 500);
	CHECK_OK(train_checkpoint_check(path, &identity, &saved));
	CHECK_OK(train_checkpoint_read(path, &buffers));
	CHECK(!memcmp(expected[0], parameters, sizeof m) && !memcmp(expected[1], m, sizeof m) && !memcmp(expected[2], v, sizeof m));
	snprintf(manifest, sizeof manifest, "%s/manifest.json", path);
	CHECK_OK(st_file_read(manifest, 1 << 20, &text, &bytes));
	CHECK(strstr(text, "\"config\":{") && strstr(text, "\"steps\":500"), "no configuration in %s", text);
	free(text);

	struct train_identity other = identity;
	other.model.layers = 3;
	CHECK_FAILS(train_checkpoint_check("P", &other, &saved), ST_ERR_CONFIG, "model.layers: seen 3, expected 1 as in the checkpoint P");
	other = identity;
	strcpy(other.optimizer, "sgd");
	CHECK_FAILS(train_checkpoint_check("P", &other, &saved), ST_ERR_CONFIG, "optimizer.kind: seen sgd, expected adamw");
	other = identity;
	strcpy(other.data, "0124");
	CHECK_FAILS(train_checkpoint_check("P", &other, &saved), ST_ERR_CONFIG, "data.directory: seen other data");
	other = identity;
	other.world_size = 3;
	other.schedule_steps = 1;
	CHECK_OK(train_checkpoint_check("P", &other, &saved)); /* any world size */

	/* The model's tensors must be those of the file, by name and shape. */
	struct train_tensor changed[2];
	struct train_buffers odd = buffers;
	memcpy(changed, tensors, sizeof tensors);
	odd.tensors = changed;
	changed[0].rows = 5;
	changed[0].columns = 4;
	CHECK_FAILS(train_checkpoint_read(path, &odd), ST_ERR_DATA, "tensor wte.weight: seen 20 elements, expected (5, 4)");
	changed[0] = tensors[0];
	strcpy(changed[1].name, "ln_f.weight");
	CHECK_FAILS(train_checkpoint_read(path, &odd), ST_ERR_DATA, "tensor ln_f.bias: this run has none of that name");
	odd = buffers;
	odd.state_count = 1;
	CHECK_FAILS(train_checkpoint_read(path, &odd), ST_ERR_DATA, "tensor optimizer.v.wte.weight: this run has none of that name");
}

static void older_ones_go(void)
{
	CHECK_OK(save(300, 2));
	CHECK(entries("step-") == 2 && newest() == 300);
	CHECK_OK(save(400, 2));
	CHECK(entries("step-") == 2 && newest() == 400);
	CHECK_OK(save(123456789012, 2));
	CHECK(entries("step-") == 2 && newest() == 123456789012);
	CHECK_OK(save(500, 1)); /* as after a resume from 400: what is newer does not count, and does not push it out */
	CHECK(entries("step-") == 2 && newest() == 123456789012);
	CHECK_OK(save(123456789012, 1)); /* the same step again replaces it */
	CHECK(entries("step-") == 1 && newest() == 123456789012 && entries("tmp") == 0);
}

static void write_over(const char *name, const void *data, size_t bytes)
{
	temporary_file(name, data, bytes);
}

static void clear(void)
{
	temporary_remove();
	CHECK(mkdir(temporary_directory, 0700) == 0);
}

/* After each damage of the newer of two, the older is found; undamaged again, the newer. */
static void damaged_ones_are_skipped(void)
{
	static const char *const files[] = {"model.safetensors", "optimizer.safetensors", "manifest.json"};
	struct train_progress progress;
	struct train_identity saved;
	char path[4096];
	int found;

	clear();
	CHECK_OK(save(100, 9));
	CHECK_OK(save(200, 9));
	for (size_t i = 0; i < 3; i++) {
		char name[100], *data, *copy;
		size_t bytes;
		snprintf(name, sizeof name, "run/step-00000200/%s", files[i]);
		CHECK_OK(st_file_read(temporary_path(name), 1 << 20, &data, &bytes));
		CHECK(newest() == 200);
		copy = malloc(bytes + 1);
		write_over(name, data, bytes / 2);
		CHECK(newest() == 100, "%s cut in half", name);
		write_over(name, data, 0);
		CHECK(newest() == 100, "%s empty", name);
		write_over(name, data, bytes - 1);
		CHECK(newest() == 100, "%s lacks its last byte", name);
		CHECK(unlink(temporary_path(name)) == 0 && newest() == 100, "%s missing", name);
		if (i < 2) {
			memcpy(copy, data, bytes);
			copy[bytes - 1] ^= 1;
			write_over(name, copy, bytes);
			CHECK(newest() == 100, "%s with one bit flipped", name);
		}
		write_over(name, data, bytes);
		CHECK(newest() == 200);
		free(data);
		free(copy);
	}
	/* A directory of another step's contents, half-written ones and strangers are no checkpoints. */
	CHECK(rename(temporary_path("run/step-00000200"), temporary_path("run/step-00000300")) == 0 && newest() == 100);
	CHECK(mkdir(temporary_path("run/tmp.step-00000400"), 0700) == 0 && mkdir(temporary_path("run/step-00000500"), 0700) == 0);
	CHECK(mkdir(temporary_path("run/step-600"), 0700) == 0 && mkdir(temporary_path("run/step-0000070x"), 0700) == 0 && newest() == 100);
	/* The next write removes what was half-written, and nothing of anybody else's. */
	CHECK(mkdir(temporary_path("run/tmp.old.step-00000400"), 0700) == 0 && mkdir(temporary_path("run/tmp.notes"), 0700) == 0);
	write_over("run/tmp.notes/one", "1", 1);
	write_over("run/tmp.file", "2", 1);
	CHECK_OK(save(150, 9));
	CHECK(newest() == 150 && entries("tmp.") == 2);
	CHECK(access(temporary_path("run/tmp.notes/one"), F_OK) == 0 && access(temporary_path("run/tmp.file"), F_OK) == 0);
	/* Some, and none usable: never silently from the start. */
	write_over("run/step-00000100/manifest.json", "", 0);
	write_over("run/step-00000150/manifest.json", "{}", 2);
	CHECK_FAILS(train_checkpoint_find(temporary_path("run"), &found, path, &progress, &saved), ST_ERR_DATA,
		    "none of its 4 checkpoints can be used");
}

static void full_disks_leave_the_last_one(void)
{
	struct rlimit before, small;

	clear();
	CHECK_OK(save(100, 1));
	signal(SIGXFSZ, SIG_IGN);
	getrlimit(RLIMIT_FSIZE, &before);
	small = before;
	for (small.rlim_cur = 0; small.rlim_cur < 400; small.rlim_cur += 50) {
		setrlimit(RLIMIT_FSIZE, &small);
		enum st_status status = save(200, 1);
		setrlimit(RLIMIT_FSIZE, &before);
		CHECK(status != ST_OK, "written within %llu bytes a file", (unsigned long long)small.rlim_cur);
		CHECK(strstr(st_message(), "can't write") && strstr(st_message(), "File too large"), "%s", st_message());
		CHECK(newest() == 100 && entries("") == 3, "not as before"); /* the step, . and .. */
	}
	CHECK_OK(save(200, 1));
	CHECK(newest() == 200 && entries("") == 3);
}

static void one_run_has_the_directory(void)
{
	int first, second;

	clear();
	CHECK_OK(train_checkpoint_lock(temporary_path("run/new"), &first));
	CHECK(first >= 0);
	CHECK_FAILS(train_checkpoint_lock(temporary_path("run/new"), &second), ST_ERR_UNAVAILABLE, "which another run is using");
	CHECK(second == -1);
	close(first);
	CHECK_OK(train_checkpoint_lock(temporary_path("run/new"), &second));
	CHECK(second >= 0);
	close(second);
	write_over("run/file", "1", 1);
	CHECK_FAILS(train_checkpoint_lock(temporary_path("run/file"), &first), ST_ERR_USAGE, "not a directory");
	CHECK(first == -1);
	if (geteuid() != 0) { /* root may write anywhere */
		CHECK(mkdir(temporary_path("run/shut"), 0500) == 0);
		CHECK_FAILS(train_checkpoint_lock(temporary_path("run/shut"), &first), ST_ERR_PERMISSION, "can't write in it");
	}
}

int main(void)
{
	st_log_set_level(ST_LOG_ERROR); /* skipped checkpoints are said in warnings */
	temporary_make();
	round_trip();
	older_ones_go();
	damaged_ones_are_skipped();
	full_disks_leave_the_last_one();
	one_run_has_the_directory();
	return check_result();
}
