/*
 * The machine's limit for an all-reduce between processes that see each other's memory: each rank sums its share straight from every
 * rank's input and stores it to every rank's output.  Less memory traffic is not known.  Buffers are shared from the start, which no library
 * can ask of its callers; one barrier before and one after.
 * Arguments: ranks, iterations, then sizes in bytes.  Output: "BYTES MEDIAN_US" per line.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_RANKS 16
#define PIECE 1024 /* elements summed at a time: stays in the first-level cache */

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *shared(size_t bytes)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		exit(71);
	return memory;
}

static void barrier(atomic_uint *arrived, unsigned ranks, unsigned *epoch)
{
	unsigned target = ++*epoch * ranks;
	atomic_fetch_add(arrived, 1);
	for (int spins = 0; (int)(atomic_load(arrived) - target) < 0; spins++)
		if (spins > 2000)
			sched_yield();
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	unsigned ranks = argc > 3 ? (unsigned)atoi(argv[1]) : 0, me = 0, epoch = 0;
	int iterations = argc > 3 ? atoi(argv[2]) : 0;
	if (ranks < 1 || ranks > MAX_RANKS || iterations < 1) {
		fprintf(stderr, "usage: limit RANKS ITERATIONS BYTES...\n");
		return 64;
	}
	size_t largest = 0;
	for (int a = 3; a < argc; a++)
		if (strtoull(argv[a], NULL, 10) > largest)
			largest = strtoull(argv[a], NULL, 10);
	atomic_uint *arrived = shared(4096);
	double *times = shared((size_t)iterations * sizeof *times);
	float *in[MAX_RANKS], *out[MAX_RANKS];
	for (unsigned r = 0; r < ranks; r++) {
		in[r] = shared(largest + 4096);
		out[r] = shared(largest + 4096);
	}
	for (unsigned r = 1; r < ranks; r++)
		if (!fork()) {
			me = r;
			break;
		}
	if ((unsigned)sysconf(_SC_NPROCESSORS_ONLN) >= ranks) {
		cpu_set_t set;
		CPU_ZERO(&set);
		CPU_SET(me, &set);
		sched_setaffinity(0, sizeof set, &set); /* as the launchers of the others do */
	}
	memset(in[me], 0, largest);
	memset(out[me], 0, largest);
	for (int a = 3; a < argc; a++) {
		size_t bytes = strtoull(argv[a], NULL, 10), elements = bytes / sizeof(float);
		size_t from = elements * me / ranks, until = elements * (me + 1) / ranks;
		for (int i = -3; i < iterations; i++) {
			barrier(arrived, ranks, &epoch);
			double began = now();
			barrier(arrived, ranks, &epoch);
			for (size_t at = from; at < until; at += PIECE) {
				size_t n = until - at < PIECE ? until - at : PIECE;
				float sum[PIECE];
				memcpy(sum, in[0] + at, n * sizeof *sum);
				for (unsigned r = 1; r < ranks; r++)
					for (size_t x = 0; x < n; x++)
						sum[x] += in[r][at + x];
				for (unsigned r = 0; r < ranks; r++)
					memcpy(out[r] + at, sum, n * sizeof *sum);
			}
			barrier(arrived, ranks, &epoch);
			if (!me && i >= 0)
				times[i] = now() - began;
		}
		if (!me) {
			qsort(times, (size_t)iterations, sizeof *times, compare);
			printf("%zu %.3f\n", bytes, times[iterations / 2] * 1e6);
			fflush(stdout);
		}
	}
	if (me)
		_exit(0);
	while (wait(NULL) > 0)
		;
	return 0;
}
