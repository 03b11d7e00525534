/*
 * Step record files of any content, and the report made of them.  A block's checksum is put right after the bytes are changed, so that what is
 * behind it is looked at as well.  Input: one byte, then the file.
 */
#include "fuzz.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "tests/unit/record_files.h"
#include "trainer/report.h"

static char directory[64], name[96];

static void remove_directory(void)
{
	unlink(name);
	rmdir(directory);
}

/* Blocks that lie where their magic says get their checksum. */
static void seal_all(uint8_t *data, size_t bytes)
{
	for (size_t at = 0; at + sizeof(struct records_block) <= bytes;) {
		struct records_block block;
		memcpy(&block, data + at, sizeof block);
		if (memcmp(block.magic, RECORDS_MAGIC, 8) || block.bytes > bytes - at - sizeof block) {
			at++;
			continue;
		}
		/* train_records_seal() wants it aligned, and fills in all fields. */
		size_t whole = sizeof block + block.bytes;
		struct records_block *copy = malloc(whole);
		FUZZ_REQUIRE(copy);
		memcpy(copy, data + at, whole);
		train_records_seal(copy, (enum records_kind)block.kind, block.launch, block.bytes);
		memcpy(data + at, copy, whole);
		free(copy);
		at += whole;
	}
}

unsigned fuzz_runs = 600;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct fuzz_input input = {data, bytes};
	uint8_t how = fuzz_u8(&input);
	struct train_record_set set;
	struct train_report_options options;
	struct train_report report;

	if (!*directory) {
		strcpy(directory, "/tmp/synctrain-fuzz-XXXXXX");
		FUZZ_REQUIRE(mkdtemp(directory));
		snprintf(name, sizeof name, "%s/steps-a-b.rec", directory);
		atexit(remove_directory);
	}
	uint8_t *copy = malloc(input.left + 1);
	FUZZ_REQUIRE(copy);
	memcpy(copy, input.data, input.left);
	if (how & 1)
		seal_all(copy, input.left);
	int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	FUZZ_REQUIRE(fd >= 0 && write(fd, copy, input.left) == (ssize_t)input.left && !close(fd));
	free(copy);
	FUZZ_REQUIRE(train_records_load(directory, &set) == ST_OK);
	for (size_t i = 0; i < set.count; i++) {
		FUZZ_REQUIRE(set.records[i].rank < set.ranks && set.launch_of[i] < set.launch_count);
		if (i)
			FUZZ_REQUIRE(set.records[i - 1].step < set.records[i].step ||
				     (set.records[i - 1].step == set.records[i].step && set.records[i - 1].rank < set.records[i].rank));
	}
	for (const char *p = set.notes; p && *p; p++)
		FUZZ_REQUIRE(*p == '\n' || (*p >= ' ' && *p <= '~'));
	train_report_options_init(&options);
	if (how & 2)
		options.warmup = 0;
	if (how & 4)
		options.launch = 1;
	if (train_report_make(&set, &options, &report) == ST_OK) {
		char *text, *printed;
		size_t length;
		FILE *out = open_memstream(&printed, &length);
		FUZZ_REQUIRE(out && train_report_print(&report, "DIR", how & 8, out) && !fclose(out));
		for (size_t i = 0; i < length; i++)
			FUZZ_REQUIRE(printed[i] == '\n' || (printed[i] >= ' ' && printed[i] <= '~'));
		free(printed);
		FUZZ_REQUIRE(train_report_json(&report, "DIR", &text) == ST_OK);
		free(text);
		train_report_free(&report);
	} else {
		fuzz_check_message();
	}
	train_records_free(&set);
	return 0;
}

size_t fuzz_seed(unsigned i, uint8_t *data)
{
	struct image image = {0};
	struct train_hosts hosts[2] = {{.first = 0, .count = 2, .host = "node1"}, {.first = 2, .count = 1, .host = "node2"}};
	struct train_record records[12];
	struct records_dropped dropped = {.rank = 1, .count = 7};

	if (i > 3)
		return 0;
	for (unsigned k = 0; k < 12; k++)
		records[k] = record_of(1 + k / 3, k % 3, 1000000 * (1 + k % 3), 4000000);
	image_session(&image, 11, 1700000000, "job.1", 3, hosts, i == 1 ? 0 : 2);
	image_block(&image, RECORDS_STEPS, 11, records, sizeof records);
	if (i == 2)
		image_block(&image, RECORDS_DROPPED, 11, &dropped, sizeof dropped);
	if (i == 3) {
		image_session(&image, 12, 1800000000, "job.2", 3, hosts, 2);
		image_block(&image, RECORDS_STEPS, 12, records + 6, sizeof records / 2);
	}
	FUZZ_REQUIRE(image.bytes < FUZZ_MOST_BYTES);
	data[0] = (uint8_t)(1 + 4 * i);
	memcpy(data + 1, image.data, image.bytes);
	size_t bytes = 1 + image.bytes;
	image_free(&image);
	return bytes;
}
