/* The order of the data: a permutation for every size, another one each epoch and seed, and nothing in it depends on the number of ranks. */
#include "check.h"

#include "trainer/sampler.h"

static void is_permutation(uint64_t count)
{
	for (uint64_t epoch = 0; epoch < 3; epoch++) {
		char *seen = calloc(count, 1);
		uint64_t twice = 0, outside = 0;
		for (uint64_t i = 0; i < count; i++) {
			uint64_t at = train_permute(42, epoch, count, i);
			if (at >= count)
				outside++;
			else
				twice += (uint64_t)seen[at]++;
		}
		CHECK(!twice && !outside, "count %llu epoch %llu: %llu twice, %llu outside", (unsigned long long)count,
		      (unsigned long long)epoch, (unsigned long long)twice, (unsigned long long)outside);
		free(seen);
	}
}

/* Of a random permutation, each of 10 ranges of inputs reaches each of 10 ranges of outputs equally often: chi-squared with 81 degrees. */
static void is_mixed(uint64_t seed, uint64_t epoch)
{
	const uint64_t count = 100000;
	double cells[10][10] = {{0}}, chi = 0, expected = (double)count / 100;

	for (uint64_t i = 0; i < count; i++)
		cells[i * 10 / count][train_permute(seed, epoch, count, i) * 10 / count]++;
	for (int i = 0; i < 10; i++)
		for (int j = 0; j < 10; j++)
			chi += (cells[i][j] - expected) * (cells[i][j] - expected) / expected;
	CHECK(chi < 140, "chi-squared %g", chi); /* 99.99 % are below */
}

static uint64_t common_places(uint64_t seed1, uint64_t epoch1, uint64_t seed2, uint64_t epoch2)
{
	uint64_t common = 0;

	for (uint64_t i = 0; i < 10000; i++)
		common += train_permute(seed1, epoch1, 10000, i) == train_permute(seed2, epoch2, 10000, i);
	return common; /* one on average */
}

/* Rank r of n takes micro-batches [M r / n, M (r + 1) / n): together they always are the same global batch. */
static void same_for_every_world(void)
{
	const uint64_t micro_batches = 12, micro = 3, count = 1000;
	const uint64_t worlds[] = {1, 2, 3, 4, 6, 12};
	uint64_t first[36], all[36];

	for (size_t w = 0; w < sizeof worlds / sizeof *worlds; w++) {
		size_t used = 0;
		for (uint64_t rank = 0; rank < worlds[w]; rank++)
			for (uint64_t m = micro_batches * rank / worlds[w]; m < micro_batches * (rank + 1) / worlds[w]; m++)
				for (uint64_t row = 0; row < micro; row++)
					all[used++] = train_sample(7, count, 5 * 36 + m * micro + row, NULL);
		CHECK(used == 36);
		if (w == 0)
			memcpy(first, all, sizeof all);
		CHECK(!memcmp(first, all, sizeof all), "world %llu", (unsigned long long)worlds[w]);
	}
}

int main(void)
{
	const uint64_t sizes[] = {1, 2, 3, 4, 5, 7, 15, 16, 17, 63, 64, 65, 100, 255, 256, 257, 1000, 4095, 4096, 4097, 65537, 200001};
	uint64_t epoch;

	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
		is_permutation(sizes[i]);
	is_mixed(1, 0);
	is_mixed(1, 1);
	is_mixed(9007199254740991, 12345);
	CHECK(common_places(1, 0, 1, 1) < 12 && common_places(1, 0, 2, 0) < 12 && common_places(0, 1, 1, 0) < 12);
	CHECK(train_permute(1, 0, UINT64_MAX, 5) < UINT64_MAX && train_permute(1, 0, (uint64_t)1 << 63, 5) < (uint64_t)1 << 63);

	same_for_every_world();

	/* Positions run on over epochs, and epochs are complete passes. */
	CHECK(train_sample(1, 10, 9, &epoch) == train_permute(1, 0, 10, 9) && epoch == 0);
	CHECK(train_sample(1, 10, 10, &epoch) == train_permute(1, 1, 10, 0) && epoch == 1);
	return check_result();
}
