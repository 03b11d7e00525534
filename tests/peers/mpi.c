/*
 * Open MPI's side of the comparison: median time of MPI_Allreduce, each iteration after a barrier, the largest time over ranks.
 * Arguments: iterations, then sizes in bytes.  Output: "BYTES MEDIAN_US" per line.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static float *buffer(size_t bytes)
{
	const size_t huge = (size_t)2 << 20;
	size_t room = (bytes / huge + 1) * huge;
	float *memory = aligned_alloc(huge, room);
	if (!memory)
		MPI_Abort(MPI_COMM_WORLD, 1);
	madvise(memory, room, MADV_HUGEPAGE);
	memset(memory, 0, room);
	return memory;
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	int rank, size, iterations = argc > 1 ? atoi(argv[1]) : 0;
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (iterations < 1 || argc < 3) {
		fprintf(stderr, "usage: mpi ITERATIONS BYTES...\n");
		MPI_Abort(MPI_COMM_WORLD, 64);
	}
	double *times = malloc((size_t)iterations * sizeof *times), *longest = malloc((size_t)iterations * sizeof *longest);
	for (int a = 2; a < argc; a++) {
		size_t bytes = strtoull(argv[a], NULL, 10);
		float *input = buffer(bytes), *output = buffer(bytes);
		for (size_t i = 0; i < bytes / sizeof(float); i++)
			input[i] = (float)(rank + 1);
		for (int i = -5; i < iterations; i++) {
			MPI_Barrier(MPI_COMM_WORLD);
			double began = MPI_Wtime();
			MPI_Allreduce(input, output, (int)(bytes / sizeof(float)), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
			if (i >= 0)
				times[i] = MPI_Wtime() - began;
		}
		if (output[bytes / sizeof(float) - 1] != (float)(size * (size + 1) / 2)) {
			fprintf(stderr, "wrong result\n");
			MPI_Abort(MPI_COMM_WORLD, 1);
		}
		MPI_Reduce(times, longest, iterations, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
		qsort(longest, (size_t)iterations, sizeof *longest, compare);
		if (!rank)
			printf("%zu %.3f\n", bytes, longest[iterations / 2] * 1e6);
		free(input);
		free(output);
	}
	free(times);
	free(longest);
	MPI_Finalize();
	return 0;
}
