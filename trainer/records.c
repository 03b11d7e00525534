/* Step records over a communicator: who writes, and where the others find it. */
#include "trainer/records.h"

#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/digest.h"
#include "libcomm/comm.h"
#include "trainer/records_writer.h"

enum st_status train_records_open(struct comm *comm, const char *directory, const char *run_name, struct train_records **records)
{
	struct launch {
		uint64_t id;
		int64_t wall_ns;
	} launch = {0};
	struct records_setup setup = {
		.rank = comm_rank(comm),
		.size = comm_size(comm),
		.directory = directory,
		.run = run_name && *run_name ? run_name : comm_job(comm),
	};
	char mine[RECORDS_SOCKET_BYTES];
	char(*names)[RECORDS_SOCKET_BYTES] = calloc(setup.size, sizeof *names);
	const char **hosts = calloc(setup.size, sizeof *hosts);
	struct train_records *opened = NULL;
	enum st_status status;

	if (!names || !hosts) {
		status = st_fail(ST_ERR_NOMEM, "step records: no memory for %u ranks", setup.size);
		goto free_tables;
	}
	for (uint32_t r = 0; r < setup.size; r++)
		hosts[r] = comm_host(comm, r);
	setup.hosts = hosts;
	if (setup.rank == 0) {
		status = st_random_bytes(&launch.id, sizeof launch.id);
		if (status != ST_OK)
			goto free_tables;
		launch.wall_ns = st_wall_ns();
	}
	status = comm_decide(comm, &launch, sizeof launch);
	if (status != ST_OK)
		goto free_tables;
	setup.launch = launch.id;
	setup.wall_ns = launch.wall_ns;
	status = train_records_prepare(&setup, mine, &opened);
	if (status != ST_OK)
		goto free_tables;
	/* When this returns, every writer's socket is bound. */
	status = comm_collect(comm, mine, sizeof mine, names);
	if (status != ST_OK) {
		train_records_close(opened);
		goto free_tables;
	}
	/* A peer's bytes: end them. */
	char *name = names[train_records_writer(&setup)];
	name[RECORDS_SOCKET_BYTES - 1] = 0;
	train_records_start(opened, name);
	*records = opened;
free_tables:
	free(names);
	free(hosts);
	return status;
}
