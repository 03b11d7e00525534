/* slurmstepd's child, as the user, just before the program starts: the environment of one rank. */
#include <pwd.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "marks.h"
#include "plugin.h"

struct task {
	spank_t spank;
	char marks[MARKS_BYTES];
};

/* Sets a variable that the user has not set. */
static void set(struct task *task, const char *name, const char *value)
{
	if (spank_setenv(task->spank, name, value, 0) == ESPANK_SUCCESS)
		marks_add(task->marks, name, value);
}

static void set_number(struct task *task, const char *name, uint32_t number)
{
	char text[16];

	snprintf(text, sizeof text, "%u", number);
	set(task, name, text);
}

static uint32_t item(spank_t spank, spank_item_t which)
{
	uint32_t number = 0;

	return spank_get_item(spank, which, &number) == ESPANK_SUCCESS ? number : 0;
}

/* A number from the environment, 0 when it is none or out of range. */
static uint32_t environment_number(spank_t spank, const char *name, uint32_t maximum)
{
	char text[16], *end;

	if (spank_getenv(spank, name, text, sizeof text) != ESPANK_SUCCESS || *text < '0' || *text > '9')
		return 0;
	unsigned long number = strtoul(text, &end, 10);
	return *end || number > maximum ? 0 : (uint32_t)number;
}

/* --- threads --- */

/* CPUs in a list such as "0-5,8"; 0 when it is not one. */
static uint32_t count_cpus(const char *list)
{
	unsigned long count = 0, first, last;
	char *end;

	for (const char *p = list; p && *p; p = *end == ',' ? end + 1 : end) {
		first = last = strtoul(p, &end, 10);
		if (end > p && *end == '-') {
			p = end + 1;
			last = strtoul(p, &end, 10);
		}
		if (end == p || (*end && *end != ',') || last < first || last - first > 65535)
			return 0;
		count += last - first + 1;
	}
	return count <= 65535 ? (uint32_t)count : 0;
}

/* CPUs that this process may run on; 0: not known. */
static uint32_t allowed_cpus(void)
{
	int cpus = 0;

	for (size_t sets = 1; sets <= 64 && !cpus; sets *= 2) {
		size_t bytes = CPU_ALLOC_SIZE(CPU_SETSIZE * sets);
		cpu_set_t *set_of_cpus = CPU_ALLOC(CPU_SETSIZE * sets);
		if (set_of_cpus && sched_getaffinity(0, bytes, set_of_cpus) == 0)
			cpus = CPU_COUNT_S(bytes, set_of_cpus);
		CPU_FREE(set_of_cpus);
	}
	return cpus > 0 ? (uint32_t)cpus : 0;
}

/* What the user gave each task, else the task's share of the step's cores on this node; never more than it may run on. */
static uint32_t threads(spank_t spank)
{
	uint32_t wanted = environment_number(spank, "SLURM_CPUS_PER_TASK", 65535), allowed = allowed_cpus();
	uint32_t tasks = item(spank, S_JOB_LOCAL_TASK_COUNT);
	char *cores = NULL;

	if (!wanted && tasks && spank_get_item(spank, S_STEP_ALLOC_CORES, &cores) == ESPANK_SUCCESS)
		wanted = count_cpus(cores) / tasks;
	if (allowed && wanted > allowed)
		wanted = allowed;
	return wanted ? wanted : 1;
}

/* --- rendezvous --- */

static bool is_address(const char *text)
{
	return *text && !text[strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.:-_")];
}

/* The first name of a list such as "node[3-5,7],other": "node3". */
static bool first_host(const char *list, char *host, size_t bytes)
{
	size_t prefix = strcspn(list, "[,"), number = 0, suffix = 0;
	const char *rest = list + prefix;

	if (*rest == '[') {
		number = strcspn(++rest, "-,]");
		const char *close = strchr(rest, ']');
		if (!close)
			return false;
		suffix = strcspn(close + 1, ",");
		int n = snprintf(host, bytes, "%.*s%.*s%.*s", (int)prefix, list, (int)number, rest, (int)suffix, close + 1);
		return n > 0 && (size_t)n < bytes && is_address(host);
	}
	int n = snprintf(host, bytes, "%.*s", (int)prefix, list);
	return n > 0 && (size_t)n < bytes && is_address(host);
}

void task_take_carriers(spank_t spank, char address[TASK_ADDRESS_BYTES])
{
	char mark[8];

	if (spank_getenv(spank, MASTER_CARRIER, address, TASK_ADDRESS_BYTES) != ESPANK_SUCCESS || !is_address(address))
		address[0] = 0;
	spank_unsetenv(spank, MASTER_CARRIER);
	if (spank_getenv(spank, MPI_CARRIER, mark, sizeof mark) != ESPANK_ENV_NOEXIST) {
		spank_unsetenv(spank, MPI_CARRIER);
		spank_unsetenv(spank, "SLURM_MPI_TYPE");
	}
}

static void set_master_address(struct task *task, const char *address)
{
	char name[TASK_ADDRESS_BYTES], list[65536];

	if (*address)
		set(task, "MASTER_ADDR", address);
	else if (spank_getenv(task->spank, "SLURM_STEP_NODELIST", list, sizeof list) == ESPANK_SUCCESS && first_host(list, name, sizeof name))
		set(task, "MASTER_ADDR", name);
}

/* Same on all nodes, different for steps that live at the same time as far as a hash can do it. */
static uint32_t hashed_port(const struct opt_site *site, uint32_t job, uint32_t step, uint32_t restart)
{
	uint32_t words[] = {job, step, restart};
	uint64_t h = 0;

	/* The mixing function of splitmix64: neighbouring jobs and steps land far apart. */
	for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
		h += words[i] + 0x9e3779b97f4a7c15u;
		h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9u;
		h = (h ^ h >> 27) * 0x94d049bb133111ebu;
		h ^= h >> 31;
	}
	return site->port_low + (uint32_t)(h % (uint64_t)(site->port_high - site->port_low + 1));
}

static uint32_t reserved_port(spank_t spank)
{
	char text[1024];

	/* "12000-12003" or "12000,12002": rank 0 listens on the first. */
	if (spank_getenv(spank, "SLURM_STEP_RESV_PORTS", text, sizeof text) != ESPANK_SUCCESS || *text < '0' || *text > '9')
		return 0;
	unsigned long port = strtoul(text, NULL, 10);
	return port <= 65535 ? (uint32_t)port : 0;
}

/* --- reports --- */

static void set_report(struct task *task, const struct opt_job *job)
{
	struct opt_ids ids = {.job = item(task->spank, S_JOB_ID),
			      .array_job = item(task->spank, S_JOB_ARRAY_ID),
			      .array_task = item(task->spank, S_JOB_ARRAY_TASK_ID)};
	char path[OPT_PATH_BYTES], name[256], password_text[4096];
	struct passwd entry, *user = NULL;

	if (spank_getenv(task->spank, "SLURM_JOB_NAME", name, sizeof name) == ESPANK_SUCCESS)
		ids.name = name;
	/* Asking for a name can mean a network directory: only when it is wanted. */
	if (strstr(job->value[OPT_REPORT], "%u") && getpwuid_r(getuid(), &entry, password_text, sizeof password_text, &user) == 0 && user)
		ids.user = user->pw_name;
	if (opt_report_path(job, &ids, path))
		set(task, "SYNCTRAIN_REPORT", path);
	else if (item(task->spank, S_TASK_GLOBAL_ID) == 0)
		slurm_spank_log("synctrain: the report directory: its path is too long: SYNCTRAIN_REPORT is not set");
}

void task_environment(spank_t spank, const struct opt_site *site, const struct opt_job *job, const char *address)
{
	struct task task = {spank, ""};
	uint32_t job_id = item(spank, S_JOB_ID), step = item(spank, S_JOB_STEPID), restart = item(spank, S_SLURM_RESTART_COUNT), port;
	int local_rank = 0;

	/* Slurm gives the count to the batch step only; the steps inherit that one's environment. */
	if (!restart)
		restart = environment_number(spank, "SLURM_RESTART_COUNT", UINT32_MAX);
	if (spank_get_item(spank, S_TASK_ID, &local_rank) != ESPANK_SUCCESS || local_rank < 0)
		return;
	set(&task, "SYNCTRAIN", "1");
	set(&task, "SYNCTRAIN_ALGORITHM", job->value[OPT_ALGORITHM]);
	set(&task, "SYNCTRAIN_TRANSPORT", job->value[OPT_TRANSPORT]);
	set_report(&task, job);
	set_number(&task, "SYNCTRAIN_JOB", job_id);
	set_number(&task, "SYNCTRAIN_STEP", step);
	set_number(&task, "SYNCTRAIN_RESTART", restart);
	set_number(&task, "RANK", item(spank, S_TASK_GLOBAL_ID));
	set_number(&task, "LOCAL_RANK", (uint32_t)local_rank);
	set_number(&task, "WORLD_SIZE", item(spank, S_JOB_TOTAL_TASK_COUNT));
	set_number(&task, "LOCAL_WORLD_SIZE", item(spank, S_JOB_LOCAL_TASK_COUNT));
	set_number(&task, "GROUP_RANK", item(spank, S_JOB_NODEID));
	set_master_address(&task, address);
	port = reserved_port(spank);
	set_number(&task, "MASTER_PORT", port ? port : hashed_port(site, job_id, step, restart));
	set_number(&task, "OMP_NUM_THREADS", threads(spank));
	spank_setenv(spank, MARKS_VARIABLE, task.marks, 1);
}

void task_refusal(spank_t spank, const char *refusal)
{
	if (item(spank, S_TASK_GLOBAL_ID) == 0)
		slurm_spank_log("%s", refusal);
}
