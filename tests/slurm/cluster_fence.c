/*
 * The smallest program that proves PMIx works between the nodes of the one-box cluster: every rank puts a value that only
 * it knows, all meet in one fence, and every rank then gets every other rank's value.
 *
 * Prints "rank R of N on HOST: fence ok".  Exit 0, or 1 with the failing call on stderr.
 */
#include <pmix.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KEY "synctrain.test.fence"

static pmix_proc_t self;

static void check(pmix_status_t status, const char *call)
{
	if (status == PMIX_SUCCESS)
		return;
	fprintf(stderr, "rank %u: %s: %s\n", self.rank, call, PMIx_Error_string(status));
	exit(1);
}

/* The value of a rank, made of its number so that a mix-up shows. */
static void value_of(uint32_t rank, char *text, size_t bytes)
{
	snprintf(text, bytes, "value-%" PRIu32, rank * 7919u + 13u);
}

int main(void)
{
	pmix_proc_t job, peer;
	pmix_value_t *got = NULL, mine;
	pmix_info_t collect;
	bool yes = true;
	char text[32], host[65] = "";

	check(PMIx_Init(&self, NULL, 0), "PMIx_Init");
	PMIX_LOAD_PROCID(&job, self.nspace, PMIX_RANK_WILDCARD);
	check(PMIx_Get(&job, PMIX_JOB_SIZE, NULL, 0, &got), "PMIx_Get(JOB_SIZE)");
	uint32_t world_size = got->data.uint32;
	PMIX_VALUE_RELEASE(got);

	value_of(self.rank, text, sizeof text);
	PMIX_VALUE_LOAD(&mine, text, PMIX_STRING);
	check(PMIx_Put(PMIX_GLOBAL, KEY, &mine), "PMIx_Put");
	PMIX_VALUE_DESTRUCT(&mine);
	check(PMIx_Commit(), "PMIx_Commit");
	PMIX_INFO_LOAD(&collect, PMIX_COLLECT_DATA, &yes, PMIX_BOOL);
	check(PMIx_Fence(&job, 1, &collect, 1), "PMIx_Fence");

	for (uint32_t rank = 0; rank < world_size; rank++) {
		PMIX_LOAD_PROCID(&peer, self.nspace, rank);
		check(PMIx_Get(&peer, KEY, NULL, 0, &got), "PMIx_Get");
		value_of(rank, text, sizeof text);
		if (got->type != PMIX_STRING || strcmp(got->data.string, text) != 0) {
			fprintf(stderr, "rank %u: rank %" PRIu32 " gave %s, expected %s\n", self.rank, rank,
				got->type == PMIX_STRING ? got->data.string : "another type", text);
			return 1;
		}
		PMIX_VALUE_RELEASE(got);
	}
	gethostname(host, sizeof host - 1);
	printf("rank %u of %" PRIu32 " on %s: fence ok\n", self.rank, world_size, host);
	check(PMIx_Finalize(NULL, 0), "PMIx_Finalize");
	return 0;
}
