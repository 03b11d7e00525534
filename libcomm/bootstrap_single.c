#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bootstrap.h"

static enum st_status exchange(struct bootstrap *bootstrap, const void *mine, size_t bytes, int64_t timeout_ms, void *all)
{
	(void)bootstrap;
	(void)timeout_ms;
	memcpy(all, mine, bytes);
	return ST_OK;
}

static void finish(struct bootstrap *bootstrap)
{
	free(bootstrap);
}

enum st_status bootstrap_single(struct bootstrap **out)
{
	struct bootstrap *bootstrap = calloc(1, sizeof *bootstrap);
	const char *slurm_node = getenv("SLURMD_NODENAME");

	if (!bootstrap)
		return st_fail(ST_ERR_NOMEM, "no memory for the bootstrap");
	bootstrap->size = 1;
	bootstrap->exchange = exchange;
	bootstrap->finish = finish;
	if (slurm_node && *slurm_node)
		snprintf(bootstrap->node, sizeof bootstrap->node, "%s", slurm_node);
	else if (gethostname(bootstrap->node, sizeof bootstrap->node) < 0 || !bootstrap->node[0])
		strcpy(bootstrap->node, "localhost");
	bootstrap->node[sizeof bootstrap->node - 1] = 0;
	snprintf(bootstrap->job, sizeof bootstrap->job, "local.%ld", (long)getpid());
	bootstrap_topology_address(bootstrap);
	*out = bootstrap;
	return ST_OK;
}
