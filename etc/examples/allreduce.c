/*
 * Every rank contributes its number; every rank gets the sum.
 *
 *   cc allreduce.c -o allreduce $(pkg-config --cflags --libs synctrain-comm)
 *   synctrain run -n 4 ./allreduce            # or srun --mpi=pmix, mpirun; alone it is a job of one rank
 *
 * Also a C++ program: c++ -x c++ allreduce.c ...
 */
#include <stdio.h>
#include <synctrain/comm.h>

#define COUNT 1000000

/* One line says what went wrong, on which rank, and who is to blame. */
static int failed(struct comm *comm, enum st_status status)
{
	fprintf(stderr, "allreduce: %s\n", st_message());
	comm_free(comm);
	return st_exit_code(status);
}

int main(void)
{
	struct comm *comm = NULL;
	struct comm_request *request;
	void *memory;
	enum st_status status = comm_create(NULL, &comm); /* NULL: options from SYNCTRAIN_* variables */
	if (status != ST_OK)
		return failed(comm, status);

	/* Any memory will do; on this, ranks of the same node can save a copy. */
	status = comm_memory_alloc(comm, COUNT * sizeof(float), &memory);
	if (status != ST_OK)
		return failed(comm, status);
	float *values = (float *)memory;
	for (size_t i = 0; i < COUNT; i++)
		values[i] = (float)comm_rank(comm);

	/* Starts the sum in place and returns at once: compute here, then wait. */
	status = comm_allreduce(comm, values, values, COUNT, COMM_F32, COMM_SUM, &request);
	if (status == ST_OK)
		status = comm_wait(comm, &request);
	if (status != ST_OK)
		return failed(comm, status);

	float expected = (float)comm_size(comm) * (float)(comm_size(comm) - 1) / 2;
	for (size_t i = 0; i < COUNT; i++)
		if (values[i] != expected) {
			fprintf(stderr, "allreduce: element %zu is %g, expected %g\n", i, (double)values[i], (double)expected);
			comm_abort(comm, "a wrong sum");
			comm_free(comm);
			return 1;
		}
	printf("rank %u of %u on %s: the sum is %g\n", (unsigned)comm_rank(comm), (unsigned)comm_size(comm), comm_host(comm, comm_rank(comm)), (double)expected);
	comm_free(comm);
	return 0;
}
