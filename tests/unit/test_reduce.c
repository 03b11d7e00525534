/* Every kernel has the bits of a plain loop: all lengths, alignments, numbers of sources, aliasing, special values. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcomm/reduce.h"

static uint64_t state = 88172645463325252u;
static uint32_t draw(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)(state >> 16);
}

static float special(void)
{
	static const uint32_t bits[] = {0, 0x80000000u, 1, 0x807fffffu, 0x00800000u, 0x7f7fffffu, 0xff7fffffu, 0x7f800000u, 0xff800000u, 0x7fc00000u, 0x3f800000u, 0x33800000u};
	uint32_t b = draw() % 3 ? draw() : bits[draw() % (sizeof bits / sizeof *bits)];
	float f;
	memcpy(&f, &b, sizeof f);
	return f;
}

/* NaN is NaN: which operand's payload survives is not part of the contract. */
static int same(float a, float b)
{
	return !memcmp(&a, &b, sizeof a) || (isnan(a) && isnan(b));
}

enum { ROOM = 5000 };
static float buffers[6][ROOM], expected[ROOM];

static void once(reduce_sum_f32_function *sum, const char *name, size_t count, unsigned n, int with_keep, int stream, int alias)
{
	const float *sources[PLAN_MAX_SOURCES];
	for (int b = 0; b < 6; b++)
		for (size_t i = 0; i < count + 40; i++)
			buffers[b][i] = special();
	for (unsigned s = 0; s < n; s++)
		sources[s] = buffers[s] + draw() % 20;
	float *destination = alias ? (float *)(uintptr_t)sources[draw() % n] : buffers[4] + draw() % 20;
	float *keep = with_keep ? buffers[5] + draw() % 20 : NULL;
	for (size_t i = 0; i < count; i++) {
		volatile float total = sources[0][i];
		for (unsigned s = 1; s < n; s++)
			total = total + sources[s][i];
		expected[i] = total;
	}
	float after = destination[count], after_keep = keep ? keep[count] : 0;
	sum(destination, keep, sources, n, count, stream);
	for (size_t i = 0; i < count; i++)
		if (!same(destination[i], expected[i]) || (keep && !same(keep[i], expected[i]))) {
			fprintf(stderr, "%s: element %zu of %zu, %u sources, keep %d, stream %d, alias %d: %a, expected %a\n", name, i, count, n,
				with_keep, stream, alias, (double)destination[i], (double)expected[i]);
			exit(1);
		}
	if (!same(destination[count], after) || (keep && !same(keep[count], after_keep))) {
		fprintf(stderr, "%s: wrote past the end\n", name);
		exit(1);
	}
}

static void copies(void)
{
	static char from[30000], to[30000], second[30000];
	for (int round = 0; round < 3000; round++) {
		size_t bytes = draw() % (draw() % 2 ? 200 : 20000), a = draw() % 70, b = draw() % 70, c = draw() % 70;
		for (size_t i = 0; i < bytes + 140; i++)
			from[i] = (char)draw(), to[i] = second[i] = 0x55;
		int keep = draw() % 2;
		reduce_copy(to + a, keep ? second + b : NULL, from + c, bytes, draw() % 2);
		if (memcmp(to + a, from + c, bytes) || to[a + bytes] != 0x55 || (a && to[a - 1] != 0x55) ||
		    (keep && (memcmp(second + b, from + c, bytes) || second[b + bytes] != 0x55))) {
			fprintf(stderr, "copy of %zu bytes is wrong\n", bytes);
			exit(1);
		}
	}
}

int main(void)
{
	for (int isa = REDUCE_PLAIN; isa <= REDUCE_AVX512; isa++) {
		reduce_sum_f32_function *sum = reduce_sum_f32((enum reduce_isa)isa);
		if (!sum) {
			printf("%s: not on this machine\n", reduce_isa_name((enum reduce_isa)isa));
			continue;
		}
		for (size_t count = 0; count < 150; count++)
			for (unsigned variant = 0; variant < 32; variant++)
				once(sum, reduce_isa_name((enum reduce_isa)isa), count, variant % 4 + 1, variant & 4, !!(variant & 8), variant & 16);
		for (int i = 0; i < 300; i++)
			once(sum, reduce_isa_name((enum reduce_isa)isa), draw() % 4900, draw() % 4 + 1, draw() % 2, draw() % 2, draw() % 2);
		printf("%s: the bits of a plain loop\n", reduce_isa_name((enum reduce_isa)isa));
	}
	copies();
	return 0;
}
