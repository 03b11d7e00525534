/*
 * Runs a fuzz target without libFuzzer: its seeds, then mutations of them drawn with a fixed seed, the same on every machine.
 *
 *   test_fuzz_NAME               all that; LONG=1: a hundred times as many
 *   test_fuzz_NAME FILE...       these inputs (what libFuzzer has found)
 *   test_fuzz_NAME --seeds DIR   writes the seeds
 */
#include <errno.h>

#include "fuzz.h"

#define SEEDS 64

/* Fewer where a run takes milliseconds. */
unsigned fuzz_runs __attribute__((weak)) = 4000;

static uint64_t state = 1;

static uint64_t draw(uint64_t limit)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return limit ? (state * UINT64_C(0x2545f4914f6cdd1d) >> 11) % limit : 0;
}

static uint8_t seeds[SEEDS][FUZZ_MOST_BYTES];
static size_t lengths[SEEDS];
static unsigned seed_count;

static size_t mutate(uint8_t *data, size_t bytes)
{
	static const uint64_t numbers[] = {0, 1, 2, 3, 7, 8, 16, 64, 127, 128, 255, 256, 1024, 4096, 32767, 65535, 65536, 65537, INT32_MAX, UINT32_MAX, INT64_MAX, UINT64_MAX};
	uint64_t number = numbers[draw(sizeof numbers / sizeof *numbers)];
	size_t width = (size_t)1 << draw(4), at = (size_t)draw(bytes), length;

	switch (draw(8)) {
	case 0: /* a bit */
		if (bytes)
			data[at] ^= (uint8_t)(1u << draw(8));
		break;
	case 1: /* a byte */
		if (bytes)
			data[at] = (uint8_t)draw(256);
		break;
	case 2: /* a number of note */
		if (at + width <= bytes)
			memcpy(data + at, &number, width);
		break;
	case 3: /* one more or one less */
		if (bytes)
			data[at] = (uint8_t)(data[at] + (draw(2) ? 1 : 255));
		break;
	case 4: /* the end is cut off */
		bytes = at;
		break;
	case 5: /* something is taken out */
		length = (size_t)draw(bytes - at);
		memmove(data + at, data + at + length, bytes - at - length);
		bytes -= length;
		break;
	case 6: /* something is repeated */
		length = (size_t)draw(bytes - at < 64 ? bytes - at : 64);
		if (bytes + length <= FUZZ_MOST_BYTES) {
			memmove(data + at + length, data + at, bytes - at);
			bytes += length;
		}
		break;
	default: { /* another seed's part takes its place */
		unsigned other = (unsigned)draw(seed_count);
		size_t from = (size_t)draw(lengths[other]);
		length = (size_t)draw(lengths[other] - from);
		if (at + length > FUZZ_MOST_BYTES)
			break;
		memcpy(data + at, seeds[other] + from, length);
		bytes = at + length > bytes ? at + length : bytes;
	}
	}
	return bytes;
}

static int run_file(const char *path)
{
	static uint8_t data[1 << 20];
	FILE *file = fopen(path, "rb");

	if (!file) {
		fprintf(stderr, "%s: %s\n", path, strerror(errno));
		return 66;
	}
	size_t bytes = fread(data, 1, sizeof data, file);
	fclose(file);
	LLVMFuzzerTestOneInput(data, bytes);
	return 0;
}

/* A copy of exactly its size, so that a sanitizer sees a read past its end. */
static void run(const uint8_t *data, size_t bytes)
{
	uint8_t *copy = malloc(bytes ? bytes : 1);

	FUZZ_REQUIRE(copy);
	if (bytes)
		memcpy(copy, data, bytes);
	LLVMFuzzerTestOneInput(copy, bytes);
	free(copy);
}

int main(int argc, char **argv)
{
	const char *longer = getenv("LONG");
	unsigned long runs = longer && *longer ? fuzz_runs * 100ul : fuzz_runs;

	while (seed_count < SEEDS && (lengths[seed_count] = fuzz_seed(seed_count, seeds[seed_count])))
		FUZZ_REQUIRE(lengths[seed_count] <= FUZZ_MOST_BYTES && ++seed_count);
	FUZZ_REQUIRE(seed_count);
	if (argc == 3 && !strcmp(argv[1], "--seeds")) {
		for (unsigned i = 0; i < seed_count; i++) {
			char path[4096];
			snprintf(path, sizeof path, "%s/seed-%02u", argv[2], i);
			FILE *file = fopen(path, "wb");
			FUZZ_REQUIRE(file && fwrite(seeds[i], 1, lengths[i], file) == lengths[i] && !fclose(file));
		}
		return 0;
	}
	for (int i = 1; i < argc; i++) {
		int code = run_file(argv[i]);
		if (code)
			return code;
	}
	if (argc > 1)
		return 0;
	run(NULL, 0);
	for (unsigned i = 0; i < seed_count; i++)
		run(seeds[i], lengths[i]);
	for (unsigned long i = 0; i < runs; i++) {
		uint8_t data[FUZZ_MOST_BYTES];
		unsigned seed = (unsigned)draw(seed_count);
		size_t bytes = lengths[seed];
		memcpy(data, seeds[seed], bytes);
		for (uint64_t k = 1 + draw(4); k; k--)
			bytes = mutate(data, bytes);
		run(data, bytes);
	}
	printf("%u seeds, %lu mutations\n", seed_count, runs);
	return 0;
}
