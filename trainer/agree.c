#include "agree.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcomm/comm.h"

struct verdict {
	int32_t status;
	char message[764];
};

static struct verdict verdict_of(enum st_status status)
{
	struct verdict verdict = {.status = (int32_t)status};

	if (status != ST_OK)
		snprintf(verdict.message, sizeof verdict.message, "%s", st_message());
	return verdict;
}

enum st_status train_agree(struct comm *comm, enum st_status mine, bool *agreed)
{
	uint32_t size = comm_size(comm), failed = 0, first = UINT32_MAX;
	struct verdict verdict = verdict_of(mine), *all = calloc(size, sizeof *all);
	char message[1024];

	if (!all)
		return st_fail(ST_ERR_NOMEM, "no memory for the verdicts of %u ranks", size);
	enum st_status status = comm_collect(comm, &verdict, sizeof verdict, all);
	if (status != ST_OK) {
		free(all);
		return status;
	}
	for (uint32_t rank = 0; rank < size; rank++)
		if (all[rank].status != ST_OK) {
			failed++;
			if (first == UINT32_MAX)
				first = rank;
		}
	if (first == UINT32_MAX) {
		free(all);
		return ST_OK;
	}
	/* "no such file" on all ranks is one fact, on one rank it is a fact about that node. */
	all[first].message[sizeof all[first].message - 1] = 0;
	int alike = failed == size;
	for (uint32_t rank = 0; rank < size && alike; rank++)
		alike = !strncmp(all[rank].message, all[first].message, sizeof all[rank].message);
	if (alike)
		snprintf(message, sizeof message, "%s", all[first].message);
	else
		snprintf(message, sizeof message, "rank %u on %s: %s", first, comm_host(comm, first), all[first].message);
	status = st_fail_copy((enum st_status)all[first].status, message);
	*agreed = true;
	free(all);
	return status;
}

enum st_status train_agree_with_first(struct comm *comm, enum st_status mine, bool *agreed)
{
	struct verdict verdict = verdict_of(mine);

	ST_TRY(comm_decide(comm, &verdict, sizeof verdict));
	if (verdict.status == ST_OK)
		return ST_OK;
	verdict.message[sizeof verdict.message - 1] = 0;
	*agreed = true;
	return st_fail_copy((enum st_status)verdict.status, verdict.message);
}

enum st_status train_agree_same(struct comm *comm, const void *mine, size_t bytes, const char *what, bool *agreed)
{
	uint32_t size = comm_size(comm);
	char *all = calloc(size, bytes);
	enum st_status status = all ? ST_OK : st_fail(ST_ERR_NOMEM, "no memory for the digests of %u ranks", size);

	if (status == ST_OK)
		status = comm_collect(comm, mine, bytes, all);
	for (uint32_t rank = 1; rank < size && status == ST_OK; rank++)
		if (memcmp(all, all + rank * bytes, bytes)) {
			*agreed = true;
			status = st_fail(ST_ERR_MISMATCH, "rank %u on %s has another %s than rank 0 on %s", rank, comm_host(comm, rank), what,
					 comm_host(comm, 0));
		}
	free(all);
	return status;
}
