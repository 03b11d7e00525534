#include "sampler.h"

#include <stddef.h>

#define ROUNDS 8

/* The finalizer of splitmix64 (Steele, Lea and Flood, 2014): every input bit reaches every output bit. */
static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

uint64_t train_permute(uint64_t seed, uint64_t epoch, uint64_t count, uint64_t index)
{
	unsigned half = 1;

	while (half < 32 && (uint64_t)1 << (2 * half) < count)
		half++;
	const uint64_t mask = ((uint64_t)1 << half) - 1, key = mix(mix(seed) ^ epoch);
	/* The domain is less than 4 * count, so that this takes four turns on average at most; it ends because the walk stays on the
	 * cycle of a valid index. */
	do {
		uint64_t left = index >> half, right = index & mask;
		for (uint64_t round = 0; round < ROUNDS; round++) {
			uint64_t next = left ^ (mix(key ^ mix(round << 56 | right)) & mask);
			left = right;
			right = next;
		}
		index = left << half | right;
	} while (index >= count);
	return index;
}

uint64_t train_sample(uint64_t seed, uint64_t count, uint64_t position, uint64_t *epoch)
{
	if (epoch)
		*epoch = position / count;
	return train_permute(seed, position / count, count, position % count);
}
