/*
 * The bootstrap over PMIx (tested with the library's 4.2; servers: Slurm's mpi/pmix, Open MPI's mpirun, `synctrain run`).
 *
 * PMIx calls may block for ever: PMIx_Init when the server does not answer, PMIx_Fence when a rank does not come.  So each
 * stage runs in a helper thread that the caller waits for under a deadline.  A stage that misses it is left behind with
 * everything it may still touch (struct stage, counted references); no PMIx call is made after that.
 */
#include <pmix.h>

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bootstrap.h"
#include "common/clock.h"
#include "common/digest.h"

#define RECORD_KEY "synctrain.endpoint"
#define FINALIZE_TIMEOUT_MS 5000
#define GET_TIMEOUT_S 30

struct stage {
	pthread_mutex_t lock;
	pthread_cond_t ended;
	unsigned references; /* guarded by lock: the waiter and the helper */
	bool done;
	enum st_status status;
	char message[512];
	void (*run)(struct stage *stage);
	_Atomic int64_t getting; /* run_exchange: the rank whose record is being fetched, -1 before. Relaxed: for a message. */

	/* Written before the helper starts or by the helper before `done`. */
	pmix_proc_t me;
	pmix_status_t init;
	uint32_t size;
	char node[BOOTSTRAP_NODE_BYTES];
	size_t bytes;
	uint8_t *mine, *all; /* owned */
};

struct pmix_bootstrap {
	struct bootstrap public; /* first: exchange() and finish() get a pointer to it */
	pmix_proc_t me;
	bool stuck; /* a stage was left behind inside the library */
};

static void stage_release(struct stage *stage)
{
	pthread_mutex_lock(&stage->lock);
	bool last = --stage->references == 0;
	pthread_mutex_unlock(&stage->lock);
	if (!last)
		return;
	if (stage->mine)
		st_wipe(stage->mine, stage->bytes); /* rank 0's record holds the job's secret */
	if (stage->all)
		st_wipe(stage->all, stage->size * stage->bytes);
	free(stage->mine);
	free(stage->all);
	pthread_cond_destroy(&stage->ended);
	pthread_mutex_destroy(&stage->lock);
	free(stage);
}

static struct stage *stage_make(void (*run)(struct stage *), const pmix_proc_t *me)
{
	struct stage *stage = calloc(1, sizeof *stage);
	pthread_condattr_t attributes;

	if (!stage)
		return NULL;
	pthread_mutex_init(&stage->lock, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&stage->ended, &attributes);
	pthread_condattr_destroy(&attributes);
	stage->references = 1;
	stage->run = run;
	if (me)
		stage->me = *me;
	return stage;
}

static void *stage_thread(void *argument)
{
	struct stage *stage = argument;

	stage->run(stage);
	pthread_mutex_lock(&stage->lock);
	stage->done = true;
	pthread_cond_signal(&stage->ended);
	pthread_mutex_unlock(&stage->lock);
	stage_release(stage);
	return NULL;
}

/* Runs the stage; ST_ERR_TIMEOUT (naming `what`) when it does not end in time. */
static enum st_status stage_run(struct stage *stage, int64_t timeout_ms, const char *what)
{
	struct st_deadline deadline = st_deadline_in_ms(timeout_ms);
	pthread_attr_t attributes;
	sigset_t all, before;
	pthread_t thread;
	enum st_status status;

	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	stage->references = 2;
	/* The helper, and the threads that PMIx makes from it, take no signals: those are the application's. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int error = pthread_create(&thread, &attributes, stage_thread, stage);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
	if (error) {
		stage->references = 1;
		return st_fail(ST_ERR_NOMEM, "can't start a thread for PMIx: %s", strerror(error));
	}
	pthread_mutex_lock(&stage->lock);
	for (;;) {
		if (stage->done) {
			status = stage->status == ST_OK ? ST_OK : st_fail_copy(stage->status, stage->message);
			break;
		}
		int sleep_ms = st_deadline_poll_ms(&deadline);
		if (sleep_ms == 0) {
			status = st_fail(ST_ERR_TIMEOUT, "%s did not end within %lld ms", what, (long long)timeout_ms);
			break;
		}
		struct timespec until;
		clock_gettime(CLOCK_MONOTONIC, &until);
		until.tv_nsec += sleep_ms * ST_NS_PER_MS;
		until.tv_sec += until.tv_nsec / ST_NS_PER_S;
		until.tv_nsec %= ST_NS_PER_S;
		pthread_cond_timedwait(&stage->ended, &stage->lock, &until);
	}
	pthread_mutex_unlock(&stage->lock);
	return status;
}

static void stage_failed(struct stage *stage, enum st_status status, const char *what, pmix_status_t code)
{
	stage->status = status;
	snprintf(stage->message, sizeof stage->message, "%s: %s (%d)", what, PMIx_Error_string(code), (int)code);
}

static void run_init(struct stage *stage)
{
	pmix_value_t *value = NULL;
	pmix_proc_t job;
	pmix_status_t code = PMIx_Init(&stage->me, NULL, 0);

	stage->init = code;
	if (code != PMIX_SUCCESS) {
		stage_failed(stage, ST_ERR_UNAVAILABLE, "PMIx_Init", code);
		return;
	}
	PMIX_LOAD_PROCID(&job, stage->me.nspace, PMIX_RANK_WILDCARD);
	code = PMIx_Get(&job, PMIX_JOB_SIZE, NULL, 0, &value);
	if (code != PMIX_SUCCESS || value->type != PMIX_UINT32) {
		stage_failed(stage, ST_ERR_UNAVAILABLE, "PMIx_Get of the job size", code);
		return;
	}
	stage->size = value->data.uint32;
	PMIX_VALUE_RELEASE(value);
	value = NULL;
	if (PMIx_Get(&stage->me, PMIX_HOSTNAME, NULL, 0, &value) == PMIX_SUCCESS && value->type == PMIX_STRING && value->data.string)
		snprintf(stage->node, sizeof stage->node, "%s", value->data.string);
	if (value)
		PMIX_VALUE_RELEASE(value);
}

/* Releases a record that PMIx returned, which may hold the job's secret. */
static void forget(pmix_value_t *record)
{
	if (!record)
		return;
	if (record->type == PMIX_BYTE_OBJECT && record->data.bo.bytes)
		st_wipe(record->data.bo.bytes, record->data.bo.size);
	PMIX_VALUE_RELEASE(record);
}

/*
 * Why ranks meet before the fence under Slurm (mpi/pmix, seen with 22.05.8).
 *
 * A fence with data goes round the nodes, and a node passes its neighbour's part on as soon as it comes, also while it still
 * launches its own tasks.  slurmstepd does part of that with the effective uid of the job's user.  The next node answers
 * with a direct connection; its credential, meant for root's eyes, can't be decoded then ("Munge decode failed: Unauthorized
 * credential ... Connection reject from"), what is queued for that connection is lost, and no rank ever leaves the fence:
 * 2 to 10 % of all launches on four busy nodes.  A fence without data is no way out: there it does not wait for other nodes.
 *
 * A request for a rank's record is safe: it leaves a node only after that node's tasks run, which is after slurmstepd is
 * root again, and what it asks for is held back until that rank commits.  So the first rank of each node commits only when
 * those below it in a tree of nodes have, and the root's record tells everybody that all nodes are launched.  The other
 * ranks need not wait: their node's part of the fence leaves with its last rank.
 */
#define MEETING_WIDTH 8

struct meeting {
	uint32_t *first; /* owned: the first rank of each node, in an order that all ranks see; [0] is the root */
	size_t nodes;	 /* 0: no need to meet */
	size_t me;	 /* this rank in `first`; beyond it for one that is not there */
};

static bool of_slurm(const pmix_proc_t *me)
{
	return !strncmp(me->nspace, "slurm.pmix.", 11) && getenv("SLURM_JOB_ID");
}

/* Leaves `nodes` 0 where PMIx does not tell who is where: the fence mostly works without a meeting. */
static void meeting_plan(const struct stage *stage, struct meeting *meeting)
{
	char *names = NULL, *rest = NULL;
	size_t nodes = 0;

	*meeting = (struct meeting){0};
	if (!of_slurm(&stage->me) || PMIx_Resolve_nodes(stage->me.nspace, &names) != PMIX_SUCCESS || !names)
		return;
	meeting->first = calloc(stage->size, sizeof *meeting->first);
	meeting->me = stage->size;
	for (char *name = strtok_r(names, ",", &rest); name && meeting->first; name = strtok_r(NULL, ",", &rest)) {
		pmix_proc_t *ranks = NULL;
		size_t count = 0;
		if (nodes == stage->size || PMIx_Resolve_peers(name, stage->me.nspace, &ranks, &count) != PMIX_SUCCESS || count == 0) {
			nodes = 0;
			break;
		}
		meeting->first[nodes] = ranks[0].rank;
		if (ranks[0].rank == stage->me.rank)
			meeting->me = nodes;
		nodes++;
		PMIX_PROC_FREE(ranks, count);
	}
	free(names);
	meeting->nodes = nodes;
}

/* Until the rank, of another node, has committed.  An error is an answer too: what it means, the fence will find out. */
static void meeting_await(const struct stage *stage, uint32_t rank)
{
	pmix_value_t *record = NULL;
	pmix_proc_t proc;

	PMIX_LOAD_PROCID(&proc, stage->me.nspace, rank);
	PMIx_Get(&proc, RECORD_KEY, NULL, 0, &record);
	forget(record);
}

static pmix_status_t commit_and_meet(const struct stage *stage)
{
	struct meeting meeting;

	meeting_plan(stage, &meeting);
	bool first = meeting.me < meeting.nodes;
	size_t child = meeting.me * MEETING_WIDTH + 1, last = child + MEETING_WIDTH;
	for (; first && child < last && child < meeting.nodes; child++)
		meeting_await(stage, meeting.first[child]);
	pmix_status_t code = PMIx_Commit();
	if (code == PMIX_SUCCESS && first && meeting.me > 0)
		meeting_await(stage, meeting.first[0]);
	free(meeting.first);
	return code;
}

/* A fence that ended without everybody: names the first rank whose record did not come. */
static void incomplete(struct stage *stage, pmix_status_t fence)
{
	for (uint32_t r = 0; r < stage->size; r++) {
		pmix_value_t *seen = NULL;
		pmix_proc_t proc;
		pmix_info_t info[2];
		bool yes = true;
		int seconds = 1;
		PMIX_LOAD_PROCID(&proc, stage->me.nspace, r);
		PMIX_INFO_LOAD(&info[0], PMIX_IMMEDIATE, &yes, PMIX_BOOL); /* asks the server, which does not wait for the rank */
		PMIX_INFO_LOAD(&info[1], PMIX_TIMEOUT, &seconds, PMIX_INT);
		pmix_status_t code = PMIx_Get(&proc, RECORD_KEY, info, 2, &seen);
		PMIX_INFO_DESTRUCT(&info[0]);
		PMIX_INFO_DESTRUCT(&info[1]);
		forget(seen);
		if (code == PMIX_SUCCESS)
			continue;
		char what[96];
		snprintf(what, sizeof what, "rank %u ended before the first exchange: PMIx_Fence", r);
		stage_failed(stage, ST_ERR_UNAVAILABLE, what, fence);
		return;
	}
	stage_failed(stage, ST_ERR_UNAVAILABLE, "PMIx_Fence of the first exchange", fence);
}

static void run_exchange(struct stage *stage)
{
	pmix_value_t value, *seen = NULL;
	pmix_proc_t proc;
	pmix_info_t info;
	bool yes = true;
	int seconds = GET_TIMEOUT_S;
	pmix_status_t code;

	/* PMIx copies the bytes; nothing of `value` is owned by the library. */
	PMIX_VALUE_CONSTRUCT(&value);
	value.type = PMIX_BYTE_OBJECT;
	value.data.bo.bytes = (char *)stage->mine;
	value.data.bo.size = stage->bytes;
	code = PMIx_Put(PMIX_GLOBAL, RECORD_KEY, &value);
	if (code == PMIX_SUCCESS)
		code = commit_and_meet(stage);
	if (code != PMIX_SUCCESS) {
		stage_failed(stage, ST_ERR_UNAVAILABLE, "PMIx_Put of the endpoint record", code);
		return;
	}
	PMIX_LOAD_PROCID(&proc, stage->me.nspace, PMIX_RANK_WILDCARD);
	PMIX_INFO_LOAD(&info, PMIX_COLLECT_DATA, &yes, PMIX_BOOL);
	code = PMIx_Fence(&proc, 1, &info, 1);
	PMIX_INFO_DESTRUCT(&info);
	if (code != PMIX_SUCCESS) {
		incomplete(stage, code);
		return;
	}
	for (uint32_t r = 0; r < stage->size; r++) {
		PMIX_LOAD_PROCID(&proc, stage->me.nspace, r);
		PMIX_INFO_LOAD(&info, PMIX_TIMEOUT, &seconds, PMIX_INT);
		atomic_store_explicit(&stage->getting, r, memory_order_relaxed);
		code = PMIx_Get(&proc, RECORD_KEY, &info, 1, &seen);
		PMIX_INFO_DESTRUCT(&info);
		if (code != PMIX_SUCCESS || !seen || seen->type != PMIX_BYTE_OBJECT) {
			char what[80];
			snprintf(what, sizeof what, "PMIx_Get of rank %u's endpoint record", r);
			stage_failed(stage, ST_ERR_UNAVAILABLE, what, code);
			return;
		}
		pmix_byte_object_t *bytes = &seen->data.bo;
		if (bytes->bytes)
			memcpy(stage->all + r * stage->bytes, bytes->bytes, bytes->size < stage->bytes ? bytes->size : stage->bytes);
		forget(seen);
		seen = NULL;
	}
}

static void run_finalize(struct stage *stage)
{
	(void)stage;
	PMIx_Finalize(NULL, 0);
}

static enum st_status exchange(struct bootstrap *public, const void *mine, size_t bytes, int64_t timeout_ms, void *all)
{
	struct pmix_bootstrap *bootstrap = (struct pmix_bootstrap *)public;
	struct stage *stage = stage_make(run_exchange, &bootstrap->me);
	enum st_status status;

	if (!stage)
		return st_fail(ST_ERR_NOMEM, "no memory for the first exchange");
	stage->bytes = bytes;
	stage->size = public->size;
	stage->mine = malloc(bytes ? bytes : 1);
	stage->all = calloc(public->size, bytes ? bytes : 1);
	if (!stage->mine || !stage->all) {
		status = st_fail(ST_ERR_NOMEM, "no memory for %u records of %zu bytes", public->size, bytes);
	} else {
		memcpy(stage->mine, mine, bytes);
		atomic_init(&stage->getting, -1);
		status = stage_run(stage, timeout_ms, "PMIx_Fence of the first exchange (a rank has not come)");
		bootstrap->stuck = status == ST_ERR_TIMEOUT;
		int64_t getting = atomic_load_explicit(&stage->getting, memory_order_relaxed);
		if (bootstrap->stuck && getting >= 0)
			status = st_fail(ST_ERR_TIMEOUT, "PMIx_Get of rank %lld's endpoint record did not end within %lld ms", (long long)getting,
					 (long long)timeout_ms);
		if (status == ST_OK)
			memcpy(all, stage->all, public->size * bytes);
	}
	stage_release(stage);
	return status;
}

static void finish(struct bootstrap *public)
{
	struct pmix_bootstrap *bootstrap = (struct pmix_bootstrap *)public;
	/* A library that is stuck in one call is not entered by another. */
	struct stage *stage = bootstrap->stuck ? NULL : stage_make(run_finalize, &bootstrap->me);

	if (stage) {
		stage_run(stage, FINALIZE_TIMEOUT_MS, "PMIx_Finalize");
		stage_release(stage);
	}
	free(bootstrap);
}

/* The plugin's option comes first: it asks for PMIx and for whatever else a job needs. */
#define BY_SLURM "`sbatch --synctrain` or `srun --synctrain` (without the plugin: `srun --mpi=pmix`)"

/* How many tasks the launcher's environment speaks of, and which launcher; 1 when none. */
static long tasks_of_launcher(const char **launch_as)
{
	static const struct {
		const char *variable, *launch_as;
	} launchers[] = {
		{"SLURM_STEP_NUM_TASKS", BY_SLURM},
		{"SLURM_NTASKS", BY_SLURM},
		{"OMPI_COMM_WORLD_SIZE", "mpirun of an Open MPI with PMIx"},
		{"PMI_SIZE", BY_SLURM ", or mpirun of an Open MPI with PMIx"},
	};

	for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
		const char *value = getenv(launchers[i].variable);
		if (!value || !*value)
			continue;
		*launch_as = launchers[i].launch_as;
		return strtol(value, NULL, 10);
	}
	return 1;
}

static enum st_status without_server(const char *why, struct bootstrap **out)
{
	const char *launch_as = NULL;
	long tasks = tasks_of_launcher(&launch_as);

	if (tasks > 1)
		return st_fail(ST_ERR_UNAVAILABLE, "one of %ld tasks, but %s: launch with %s, or local ranks with `synctrain run -n N`",
			       tasks, why, launch_as);
	return bootstrap_single(out);
}

enum st_status bootstrap_pmix_or_single(int64_t timeout_ms, struct bootstrap **out)
{
	enum st_status status;

	if (!getenv("PMIX_NAMESPACE") || !getenv("PMIX_RANK"))
		return without_server("there is no PMIx server (no PMIX_NAMESPACE in the environment)", out);

	struct stage *stage = stage_make(run_init, NULL);
	struct pmix_bootstrap *bootstrap = calloc(1, sizeof *bootstrap);
	if (!stage || !bootstrap) {
		status = st_fail(ST_ERR_NOMEM, "no memory for the bootstrap");
		goto free_both;
	}
	status = stage_run(stage, timeout_ms, "PMIx_Init");
	if (status != ST_OK) {
		if (status == ST_ERR_UNAVAILABLE && stage->init == PMIX_ERR_UNREACH)
			status = without_server("its PMIx server does not answer", out);
		goto free_both;
	}
	if (stage->size == 0 || stage->me.rank >= stage->size) {
		status = st_fail(ST_ERR_PROTOCOL, "the PMIx server calls this rank %u of %u", stage->me.rank, stage->size);
		goto free_both;
	}

	bootstrap->me = stage->me;
	bootstrap->public.rank = stage->me.rank;
	bootstrap->public.size = stage->size;
	bootstrap->public.exchange = exchange;
	bootstrap->public.finish = finish;
	memcpy(bootstrap->public.node, stage->node, sizeof bootstrap->public.node);
	if (of_slurm(&stage->me)) {
		const char *step = getenv("SLURM_STEP_ID"), *restart = getenv("SLURM_RESTART_COUNT");
		snprintf(bootstrap->public.job, sizeof bootstrap->public.job, "%s.%s.%s", getenv("SLURM_JOB_ID"), step ? step : "0",
			 restart && *restart ? restart : "0");
	} else {
		snprintf(bootstrap->public.job, sizeof bootstrap->public.job, "%.*s", BOOTSTRAP_JOB_BYTES - 1, stage->me.nspace);
	}
	if (!bootstrap->public.node[0]) {
		const char *slurm_node = getenv("SLURMD_NODENAME");
		if (slurm_node && *slurm_node)
			snprintf(bootstrap->public.node, sizeof bootstrap->public.node, "%s", slurm_node);
		else if (gethostname(bootstrap->public.node, sizeof bootstrap->public.node - 1) < 0)
			strcpy(bootstrap->public.node, "localhost");
	}
	bootstrap_topology_address(&bootstrap->public);
	*out = &bootstrap->public;
	bootstrap = NULL;

free_both:
	free(bootstrap);
	if (stage)
		stage_release(stage);
	return status;
}
