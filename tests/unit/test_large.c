/* More than 2^31 bytes in one call: no length or offset may pass through 32 bits. Skipped where there is too little memory. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"
#include "libcomm/bootstrap.h"
#include "libcomm/comm.h"

enum { RANKS = 2 };
/* Odd, and more than 2^31 bytes. */
static const size_t count = ((size_t)1 << 29) + 1021;
static struct bootstrap *bootstraps[RANKS];
static unsigned transports;

static float value(uint32_t rank, size_t i)
{
	return (float)((i >> 8) % 4093 + rank);
}

static void *rank_main(void *argument)
{
	uint32_t rank = (uint32_t)(uintptr_t)argument;
	struct comm_options options;
	struct comm *comm;
	struct comm_request *request;
	REQUIRE(comm_options_init(&options) == ST_OK);
	options.transports = transports;
	REQUIRE(comm_create_over(bootstraps[rank], &options, &comm) == ST_OK);
	float *buffer = mmap(NULL, count * sizeof(float), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	REQUIRE(buffer != MAP_FAILED);
	madvise(buffer, count * sizeof(float), MADV_HUGEPAGE);
	for (size_t i = 0; i < count; i++)
		buffer[i] = value(rank, i);
	REQUIRE(comm_allreduce(comm, buffer, buffer, count, COMM_F32, COMM_SUM, &request) == ST_OK);
	REQUIRE(comm_wait(comm, &request) == ST_OK);
	for (size_t i = 0; i < count; i++)
		if (buffer[i] != value(0, i) + value(1, i)) {
			fprintf(stderr, "rank %u, element %zu: %f\n", rank, i, (double)buffer[i]);
			exit(1);
		}
	/* Bytes, from a root whose offsets pass 2^31 as well. */
	unsigned char *bytes = (unsigned char *)buffer;
	size_t length = count * sizeof(float);
	if (rank == 1)
		for (size_t i = 0; i < length; i += 4099)
			bytes[i] = (unsigned char)(i / 4099 * 7);
	REQUIRE(comm_broadcast(comm, bytes, length, COMM_U8, 1, &request) == ST_OK);
	REQUIRE(comm_wait(comm, &request) == ST_OK);
	for (size_t i = 0; i < length; i += 4099)
		REQUIRE(bytes[i] == (unsigned char)(i / 4099 * 7));
	munmap(buffer, length);
	comm_free(comm);
	return NULL;
}

int main(void)
{
	size_t available = (size_t)sysconf(_SC_AVPHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
	if (available < 3 * RANKS * (count * sizeof(float)) / 2) {
		printf("needs 6.5 GB of free memory, there are %.1f\n", (double)available / 1e9);
		return 77;
	}
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
	printf("takes too much memory under sanitizers\n");
	return 77;
#endif
	for (transports = COMM_TRANSPORT_SHM; transports <= COMM_TRANSPORT_TCP; transports++) {
		pthread_t threads[RANKS];
		REQUIRE(bootstrap_threads(RANKS, NULL, bootstraps) == ST_OK);
		for (uintptr_t r = 0; r < RANKS; r++)
			REQUIRE(!pthread_create(&threads[r], NULL, rank_main, (void *)r));
		for (int r = 0; r < RANKS; r++)
			REQUIRE(!pthread_join(threads[r], NULL));
		for (int r = 0; r < RANKS; r++)
			bootstraps[r]->finish(bootstraps[r]);
	}
	return 0;
}
