/* Reading step records: sound files give what was written, whatever else a directory holds is counted, said and survived. */
#include "check.h"

#include <math.h>
#include <xxhash.h>

#include "common/clock.h"
#include "record_files.h"

static char scratch[] = "/tmp/synctrain-records-XXXXXX";

static const char *directory_for(const char *test)
{
	static char path[256];

	snprintf(path, sizeof path, "%s/%s", scratch, test);
	return path;
}

static void empty_directory(const char *path)
{
	char command[512];

	snprintf(command, sizeof command, "rm -rf '%s'", path);
	CHECK(system(command) == 0);
}

static const struct train_hosts four_on_one = {0, 4, "node1"};

/* Two launches: steps 0..9 of four ranks, then steps 5..14 again. */
static struct image sound_image(void)
{
	struct image image = {0};

	for (uint64_t launch = 1; launch <= 2; launch++) {
		uint64_t first = launch == 1 ? 0 : 5;
		struct records_dropped drops[] = {{.rank = 1, .count = 3}, {.rank = 2, .count = launch}};

		image_session(&image, launch, (int64_t)launch * 1000, launch == 1 ? "1.0.0" : "1.0.1", 4, &four_on_one, 1);
		for (uint64_t step = first; step < first + 10; step++) {
			struct train_record records[4];
			for (uint32_t r = 0; r < 4; r++)
				records[r] = record_of(step, r, (int64_t)(launch * 1000), 5000);
			image_block(&image, RECORDS_STEPS, launch, records, sizeof records);
		}
		image_block(&image, RECORDS_DROPPED, launch, drops, sizeof drops[0]);
		image_block(&image, RECORDS_DROPPED, launch, drops, sizeof drops);
	}
	return image;
}

static struct train_record_set load(const struct image *image)
{
	const char *directory = directory_for("read");
	struct train_record_set set;

	mkdir(directory, 0755);
	image_save(image, "%s/steps-x-node1.rec", directory);
	CHECK_OK(train_records_load(directory, &set));
	/* What must hold of any set, whatever the file held. */
	for (size_t i = 0; i < set.count; i++) {
		CHECK(set.records[i].rank < set.ranks && set.ranks <= TRAIN_RANKS_MAX && set.launch_of[i] < set.launch_count);
		CHECK(i == 0 || set.records[i - 1].step < set.records[i].step ||
		      (set.records[i - 1].step == set.records[i].step && set.records[i - 1].rank < set.records[i].rank &&
		       set.launch_of[i - 1] == set.launch_of[i]));
		for (int p = 0; p < TRAIN_PHASE_COUNT; p++)
			CHECK(set.records[i].phase_ns[p] >= 0);
	}
	for (const char *p = set.notes; p && *p; p++)
		CHECK((*p >= ' ' && *p <= '~') || *p == '\n', "byte 0x%02x in the notes", (unsigned char)*p);
	CHECK(!set.damaged || set.notes);
	return set;
}

static void test_last_launch_of_a_step_wins(void)
{
	struct image image = sound_image();
	struct train_record_set set = load(&image);

	CHECK(set.count == 15 * 4 && set.superseded == 5 * 4 && set.damaged == 0, "%zu records, %llu superseded", set.count,
	      (unsigned long long)set.superseded);
	CHECK(set.dropped == 3 + 1 + 3 + 2, "%llu dropped", (unsigned long long)set.dropped);
	CHECK(set.launch_count == 2 && set.launches[0].records == 20 && set.launches[1].records == 40 && !strcmp(set.job, "1.0.1"));
	for (size_t i = 0; i < set.count; i++)
		CHECK(set.records[i].step == i / 4 && set.records[i].rank == i % 4 && set.records[i].cpu_ns == (i / 4 < 5 ? 1000 : 2000));
	train_records_free(&set);

	/* A rank that the second launch has no record of does not get the first one's: they ran against other neighbours. */
	struct train_record alone = record_of(3, 0, 7000, 8000);
	image_session(&image, 3, 9000, "1.0.2", 4, &four_on_one, 1);
	image_block(&image, RECORDS_STEPS, 3, &alone, sizeof alone);
	/* And the launches' order is that of their clocks, not that of the files. */
	image_session(&image, 4, 1, "0.0.0", 4, &four_on_one, 1);
	alone = record_of(4, 0, 7000, 8000);
	image_block(&image, RECORDS_STEPS, 4, &alone, sizeof alone);
	set = load(&image);
	CHECK(set.count == 57 && set.records[12].cpu_ns == 7000 && set.records[13].step == 4 && set.records[13].cpu_ns == 1000, "%zu", set.count);
	CHECK(!strcmp(set.job, "1.0.2"));
	train_records_free(&set);
	image_free(&image);
}

static void test_every_truncation_is_survived(void)
{
	struct image image = sound_image();
	size_t before = 0;

	for (size_t bytes = 0; bytes <= image.bytes; bytes += bytes < 900 ? 1 : 37) {
		struct image cut = {image.data, bytes};
		struct train_record_set set = load(&cut);

		CHECK(set.count >= before, "%zu records of %zu bytes, %zu of fewer", set.count, bytes, before);
		before = set.count;
		train_records_free(&set);
	}
	CHECK(before > 50);
	image_free(&image);
}

static void expect_damage(struct image *image, size_t records, uint64_t damaged, const char *text)
{
	struct train_record_set set = load(image);

	CHECK(set.count == records, "%zu records, expected %zu: %s", set.count, records, text);
	CHECK(set.damaged == damaged, "%llu damaged, expected %llu: %s", (unsigned long long)set.damaged, (unsigned long long)damaged, text);
	CHECK(set.notes && strstr(set.notes, text), "notes '%s' lack '%s'", set.notes ? set.notes : "", text);
	train_records_free(&set);
	image_free(image);
}

/* The block at `at` as a program of another version would have sealed it. */
static void image_version(struct image *image, size_t at, uint16_t version)
{
	struct records_block block;

	memcpy(&block, image->data + at, sizeof block);
	block.version = version;
	block.check = XXH3_64bits_withSeed(image->data + at + sizeof block, block.bytes, XXH3_64bits(&block, offsetof(struct records_block, check)));
	memcpy(image->data + at, &block, sizeof block);
}

static void test_hostile_contents_are_counted_and_skipped(void)
{
	struct image image = {0};
	struct train_record bad[12], good = record_of(1, 0, 1000, 2000);
	struct train_hosts runs[2] = {{0, 2, "node1"}, {2, 2, "no\033[2Jde\n"}};

	/* Impossible values; the others of the block are used. */
	for (size_t i = 0; i < 12; i++)
		bad[i] = record_of(i, 0, 1000, 2000);
	bad[1].rank = 4;
	bad[2].rank = UINT32_MAX;
	bad[3].step_ns = -1;
	bad[4].phase_ns[TRAIN_PHASE_OTHER] = INT64_MIN;
	bad[5].phase_ns[TRAIN_PHASE_DATA] = INT64_MAX;
	bad[6].step = UINT64_MAX;
	bad[7].runqueue_ns = -5;
	bad[8].tokens = UINT64_MAX;
	bad[9].cpu_ns = INT64_MAX;
	bad[10].loss = NAN; /* what a run that diverged records: it is not damage */
	image_session(&image, 1, 1, "job", 4, runs, 1);
	image_block(&image, RECORDS_STEPS, 1, bad, sizeof bad);
	expect_damage(&image, 3, 9, "9 records with impossible values");

	/* Names. */
	image_session(&image, 1, 1, "j\033]0;ob", 4, runs, 2);
	image_block(&image, RECORDS_STEPS, 1, &good, sizeof good);
	expect_damage(&image, 1, 1, "names with characters");

	/* Another magic, then a sound session. */
	image.data = calloc(1, image.bytes = 1000);
	memset(image.data, 'S', 1000);
	image_session(&image, 1, 1, "job", 4, runs, 1);
	image_block(&image, RECORDS_STEPS, 1, &good, sizeof good);
	expect_damage(&image, 1, 1, "does not start as a record file");

	/* A newer version, said once; what this program can read is read. */
	image_session(&image, 1, 1, "job", 4, runs, 1);
	image_block(&image, RECORDS_STEPS, 1, &good, sizeof good);
	for (int i = 0; i < 2; i++) {
		size_t at = image.bytes;
		image_block(&image, RECORDS_STEPS, 1, &good, sizeof good);
		image_version(&image, at, 2);
	}
	expect_damage(&image, 1, 2, "version 2, this program reads 1");
	image_session(&image, 1, 1, "job", 4, runs, 1);
	image_block(&image, RECORDS_STEPS, 1, &good, sizeof good);
	image_block(&image, 9, 1, &good, sizeof good);
	expect_damage(&image, 1, 1, "unknown kind 9");

	/* Sizes that lie. */
	image_session(&image, 1, 1, "job", 4, runs, 1);
	((struct records_block *)image.data)->bytes = UINT32_MAX;
	image_session(&image, 1, 1, "job", 4, runs, 1);
	image_block(&image, RECORDS_STEPS, 1, &good, sizeof good);
	expect_damage(&image, 1, 1, "4294967295 bytes at byte 0");

	/* No larger than a block may be, but larger than the file. */
	image_session(&image, 1, 1, "job", 4, runs, 1);
	((struct records_block *)image.data)->bytes = 50000000;
	expect_damage(&image, 0, 1, "a block of 50000000 bytes");

	/* Ranks that are listed again and again would make a small file costly. */
	image_session(&image, 1, 1, "job", 2, (struct train_hosts[]){{0, 2, "a"}, {0, 2, "b"}}, 2);
	expect_damage(&image, 0, 1, "ranks out of range");

	image_session(&image, 1, 1, "job", TRAIN_RANKS_MAX + 1, runs, 1);
	image_block(&image, RECORDS_STEPS, 1, &good, sizeof good);
	expect_damage(&image, 0, 2, "1048577 ranks");

	image_session(&image, 1, 1, "job", 4, runs, 1);
	image_block(&image, RECORDS_STEPS, 1, &good, sizeof good - 1);
	image_block(&image, RECORDS_STEPS, 2, &good, sizeof good);
	expect_damage(&image, 0, 2, "without a session header");

	runs[1].count = UINT32_MAX;
	image_session(&image, 1, 1, "job", 4, runs, 2);
	image_block(&image, RECORDS_STEPS, 1, &good, sizeof good);
	expect_damage(&image, 1, 1, "ranks out of range");

	/* A flipped bit anywhere is seen by the checksum: the block is lost, not believed. */
	image_session(&image, 1, 1, "job", 4, runs, 1);
	image_block(&image, RECORDS_STEPS, 1, &good, sizeof good);
	image.data[image.bytes - 20] ^= 1;
	expect_damage(&image, 0, 1, "wrong checksum");
}

/* A later program may make records longer. */
static void test_longer_records_are_read(void)
{
	uint8_t longer[2 * 200] = {0};
	struct image image = {0};
	struct records_session session = {.wall_ns = 1, .record_bytes = 200, .ranks = 4, .job = "job", .node = "n"};
	struct train_record records[2] = {record_of(0, 0, 100, 200), record_of(0, 1, 100, 200)};

	memcpy(longer, &records[0], sizeof records[0]);
	memcpy(longer + 200, &records[1], sizeof records[1]);
	image_block(&image, RECORDS_SESSION, 1, &session, sizeof session);
	image_block(&image, RECORDS_STEPS, 1, longer, sizeof longer);
	struct train_record_set set = load(&image);
	CHECK(set.count == 2 && !set.damaged && set.records[1].rank == 1 && set.records[1].step_ns == 200, "%zu records", set.count);
	train_records_free(&set);
	image_free(&image);
}

static void test_other_files_are_left_alone(void)
{
	const char *directory = directory_for("mixed");
	char path[512];
	struct train_record_set set;
	struct image image = sound_image();

	mkdir(directory, 0755);
	image_save(&image, "%s/notes.txt", directory);
	image_save(&image, "%s/steps-a.rec", directory);
	snprintf(path, sizeof path, "%s/steps-fifo.rec", directory);
	CHECK(mkfifo(path, 0600) == 0); /* must not hang */
	snprintf(path, sizeof path, "%s/steps-link.rec", directory);
	CHECK(symlink("/dev/zero", path) == 0);
	snprintf(path, sizeof path, "%s/steps-\033[31m.rec", directory);
	CHECK(mkdir(path, 0755) == 0);
	CHECK_OK(train_records_load(directory, &set));
	CHECK(set.files == 1 && set.count == 60 && set.damaged == 3 && set.notes && !strchr(set.notes, '\033'), "%zu files, %llu damaged",
	      set.files, (unsigned long long)set.damaged);
	train_records_free(&set);
	image_free(&image);
	CHECK_FAILS(train_records_load(directory_for("nowhere"), &set), ST_ERR_NOINPUT, "no such directory");
	snprintf(path, sizeof path, "%s/mixed/notes.txt", scratch);
	CHECK_FAILS(train_records_load(path, &set), ST_ERR_NOINPUT, "no such directory");
	empty_directory(directory_for("mixed"));
}

static void test_names_of_files_are_tame(void)
{
	char name[RECORDS_NAME_BYTES], longest[300];

	train_records_name("12.0.0", "node-1.cluster", name);
	CHECK(!strcmp(name, "steps-12.0.0-node-1.cluster.rec"), "%s", name);
	train_records_name("../../etc/x\n", "", name);
	CHECK(!strcmp(name, "steps-.._.._etc_x_-unnamed.rec"), "%s", name);
	memset(longest, 'a', sizeof longest - 1);
	longest[sizeof longest - 1] = 0;
	train_records_name(longest, longest, name);
	CHECK(strlen(name) == 6 + 64 + 1 + 64 + 4, "%zu", strlen(name));
}

/* Random damage, also such that the checksums are right again: load() checks what must hold of any result. */
static void test_random_damage(void)
{
	struct image image = sound_image();
	struct image copy = {malloc(image.bytes), image.bytes};
	int64_t end = st_now_ns() + (getenv("LONG") && *getenv("LONG") ? 60 : 2) * ST_NS_PER_S;
	uint64_t random = 88172645463325252u;
	size_t rounds = 0;

	for (; st_now_ns() < end; rounds++) {
		memcpy(copy.data, image.data, image.bytes);
		copy.bytes = image.bytes;
		for (int i = 0; i < 1 + (int)(rounds % 7); i++) {
			random ^= random << 13, random ^= random >> 7, random ^= random << 17;
			uint64_t at = random % copy.bytes;
			uint8_t byte = (uint8_t)(random >> 40);
			if ((random >> 48) % 8 == 0 && at + 8 < copy.bytes)
				memset(copy.data + at, byte & 1 ? 0xff : 0x7f, 8);
			else if ((random >> 48) % 8 == 1)
				copy.bytes = at + 1;
			else
				copy.data[at] ^= (uint8_t)(byte | 1);
		}
		/* Half of the rounds: seal what still looks like a block, so that the damage gets past the checksum. */
		for (size_t at = 0; rounds % 2 && at + sizeof(struct records_block) <= copy.bytes;) {
			struct records_block *block = malloc(copy.bytes - at);
			memcpy(block, copy.data + at, copy.bytes - at);
			if (!memcmp(block->magic, RECORDS_MAGIC, 8) && block->bytes <= copy.bytes - at - sizeof *block) {
				train_records_seal(block, block->kind, block->launch, block->bytes);
				memcpy(copy.data + at, block, sizeof *block);
				at += sizeof *block + block->bytes;
			} else {
				at = copy.bytes;
			}
			free(block);
		}
		struct train_record_set set = load(&copy);
		CHECK(set.count <= 15 * 4 + 8, "%zu records", set.count);
		train_records_free(&set);
	}
	CHECK(rounds > 20, "%zu rounds", rounds);
	image_free(&copy);
	image_free(&image);
}

int main(void)
{
	if (!mkdtemp(scratch))
		return 1;
	test_last_launch_of_a_step_wins();
	test_every_truncation_is_survived();
	test_hostile_contents_are_counted_and_skipped();
	test_longer_records_are_read();
	test_other_files_are_left_alone();
	test_names_of_files_are_tame();
	test_random_damage();
	empty_directory(scratch);
	return check_result();
}
