/* Ranks as threads exchange records; who is missing is named, and nobody waits for ever. */
#include "check.h"

#include <pthread.h>
#include <stdbool.h>

#include "libcomm/bootstrap.h"

#define RANKS 7

struct rank {
	pthread_t thread;
	struct bootstrap *bootstrap;
	int64_t timeout_ms;
	bool absent;
	enum st_status status;
	char message[256];
	uint32_t all[RANKS][4];
};

static void *run(void *argument)
{
	struct rank *rank = argument;
	uint32_t mine[4] = {rank->bootstrap->rank, 11, 22, rank->bootstrap->rank * 1000};

	if (!rank->absent) {
		rank->status = rank->bootstrap->exchange(rank->bootstrap, mine, sizeof mine, rank->timeout_ms, rank->all);
		snprintf(rank->message, sizeof rank->message, "%s", st_message());
	}
	rank->bootstrap->finish(rank->bootstrap);
	return NULL;
}

static void launch(struct rank *ranks)
{
	struct bootstrap *bootstraps[RANKS];
	const char *nodes[RANKS] = {"x", "y", "x", "y", "x", "y", "z"};

	CHECK_OK(bootstrap_threads(RANKS, nodes, bootstraps));
	CHECK(!strcmp(bootstraps[6]->node, "z") && !strcmp(bootstraps[0]->job, bootstraps[6]->job) && bootstraps[3]->size == RANKS);
	for (uint32_t r = 0; r < RANKS; r++)
		ranks[r].bootstrap = bootstraps[r];
}

static void join(struct rank *ranks)
{
	for (uint32_t r = 0; r < RANKS; r++)
		pthread_create(&ranks[r].thread, NULL, run, &ranks[r]);
	for (uint32_t r = 0; r < RANKS; r++)
		pthread_join(ranks[r].thread, NULL);
}

static void test_all_come(void)
{
	struct rank ranks[RANKS] = {0};

	launch(ranks);
	for (uint32_t r = 0; r < RANKS; r++)
		ranks[r].timeout_ms = 60000;
	join(ranks);
	for (uint32_t r = 0; r < RANKS; r++) {
		CHECK(ranks[r].status == ST_OK, "%s", ranks[r].message);
		for (uint32_t other = 0; other < RANKS; other++)
			CHECK(ranks[r].all[other][0] == other && ranks[r].all[other][3] == other * 1000 && ranks[r].all[other][2] == 22);
	}
}

static void test_one_leaves(void)
{
	struct rank ranks[RANKS] = {0};

	launch(ranks);
	for (uint32_t r = 0; r < RANKS; r++)
		ranks[r].timeout_ms = 60000;
	ranks[4].absent = true;
	join(ranks);
	for (uint32_t r = 0; r < RANKS; r++)
		if (r != 4)
			CHECK(ranks[r].status == ST_ERR_UNAVAILABLE && strstr(ranks[r].message, "rank 4 left"), "%s", ranks[r].message);
}

static void test_one_is_missing(void)
{
	struct bootstrap *bootstraps[2];
	uint32_t mine = 1, all[2];

	CHECK_OK(bootstrap_threads(2, NULL, bootstraps));
	CHECK(!strcmp(bootstraps[0]->node, bootstraps[1]->node));
	CHECK_FAILS(bootstraps[0]->exchange(bootstraps[0], &mine, sizeof mine, 50, all), ST_ERR_TIMEOUT, "rank 1");
	bootstraps[0]->finish(bootstraps[0]);
	bootstraps[1]->finish(bootstraps[1]);
}

static void test_launches_differ(void)
{
	struct bootstrap *a, *b;

	CHECK_OK(bootstrap_threads(1, NULL, &a));
	CHECK_OK(bootstrap_threads(1, NULL, &b));
	CHECK(strcmp(a->job, b->job), "two launches are both called %s", a->job);
	a->finish(a);
	b->finish(b);
	CHECK_FAILS(bootstrap_threads(0, NULL, &a), ST_ERR_USAGE, "0 ranks");
}

/* Slurm's topology address is taken only where its last part is the node. */
static void test_topology_address(void)
{
	struct bootstrap b = {0};

	setenv("SLURM_TOPOLOGY_ADDR", "spine.leaf1.node1", 1);
	setenv("SLURM_TOPOLOGY_ADDR_PATTERN", "switch.switch.node", 1);
	bootstrap_topology_address(&b);
	CHECK(!strcmp(b.address, "spine.leaf1.node1"), "%s", b.address);
	setenv("SLURM_TOPOLOGY_ADDR", "node1.example.org", 1);
	setenv("SLURM_TOPOLOGY_ADDR_PATTERN", "node", 1);
	bootstrap_topology_address(&b);
	CHECK(!b.address[0], "a node name with dots is no path of switches: %s", b.address);
	unsetenv("SLURM_TOPOLOGY_ADDR");
	bootstrap_topology_address(&b);
	CHECK(!b.address[0]);
}

/* One of several tasks without a PMIx server is told how to launch; a lone process is a job of one rank. */
static void test_no_server(void)
{
	struct bootstrap *b = NULL;
	static const char *const variables[] = {"PMIX_NAMESPACE", "PMIX_RANK", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"};

	for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
		unsetenv(variables[i]);
	CHECK_OK(bootstrap_pmix_or_single(1000, &b));
	CHECK(b->size == 1 && b->rank == 0 && b->node[0]);
	b->finish(b);
	setenv("SLURM_NTASKS", "4", 1);
	CHECK_FAILS(bootstrap_pmix_or_single(1000, &b), ST_ERR_UNAVAILABLE, "srun --mpi=pmix");
	setenv("SLURM_STEP_NUM_TASKS", "1", 1);
	CHECK_OK(bootstrap_pmix_or_single(1000, &b));
	b->finish(b);
}

int main(void)
{
	test_all_come();
	test_one_leaves();
	test_one_is_missing();
	test_launches_differ();
	test_topology_address();
	test_no_server();
	return check_result();
}
