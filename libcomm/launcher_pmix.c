/*
 * A PMIx server for the ranks of one machine.
 *
 * All ranks are this server's own clients, so the library collects what they put; a fence has nothing to fetch from elsewhere
 * and hands the collected bytes straight back.  The keys registered are those that our bootstrap, Open MPI's and MPICH's
 * clients read at start-up.
 */
#include <pmix.h>
#include <pmix_server.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/digest.h"
#include "bootstrap.h"
#include "launcher.h"

#define STOP_TIMEOUT_S 2

/* The PMIx server library is one per process, and calls back without a context of ours. */
static char job_name[PMIX_MAX_NSLEN + 1];
static _Atomic int abort_status;
static _Atomic bool abort_asked;

static pmix_status_t client_connected(const pmix_proc_t *proc, void *server_object, pmix_op_cbfunc_t done, void *data)
{
	(void)proc;
	(void)server_object;
	(void)done;
	(void)data;
	return PMIX_OPERATION_SUCCEEDED;
}

static pmix_status_t client_finalized(const pmix_proc_t *proc, void *server_object, pmix_op_cbfunc_t done, void *data)
{
	return client_connected(proc, server_object, done, data);
}

static pmix_status_t client_aborted(const pmix_proc_t *proc, void *server_object, int status, const char message[], pmix_proc_t procs[], size_t count,
				    pmix_op_cbfunc_t done, void *data)
{
	(void)proc;
	(void)server_object;
	(void)message;
	(void)procs;
	(void)count;
	(void)done;
	(void)data;
	atomic_store_explicit(&abort_status, status, memory_order_relaxed);
	/* Pairs with the acquire in launcher_server_aborted(): who sees the flag sees the status. */
	atomic_store_explicit(&abort_asked, true, memory_order_release);
	return PMIX_OPERATION_SUCCEEDED;
}

bool launcher_server_aborted(int *status)
{
	/* Pairs with the release in client_aborted(). */
	if (!atomic_load_explicit(&abort_asked, memory_order_acquire))
		return false;
	*status = atomic_load_explicit(&abort_status, memory_order_relaxed);
	return true;
}

static pmix_status_t fence(const pmix_proc_t procs[], size_t proc_count, const pmix_info_t info[], size_t info_count, char *data, size_t bytes,
			   pmix_modex_cbfunc_t done, void *callback_data)
{
	(void)procs;
	(void)proc_count;
	(void)info;
	(void)info_count;
	char *copy = NULL;

	if (bytes) {
		copy = malloc(bytes);
		if (!copy)
			return PMIX_ERR_NOMEM;
		memcpy(copy, data, bytes);
	}
	/* The library queues this for its own thread and frees the copy when it has read it. */
	done(PMIX_SUCCESS, copy, bytes, callback_data, free, copy);
	return PMIX_SUCCESS;
}

static pmix_status_t direct_modex(const pmix_proc_t *proc, const pmix_info_t info[], size_t info_count, pmix_modex_cbfunc_t done, void *data)
{
	(void)proc;
	(void)info;
	(void)info_count;
	(void)done;
	(void)data;
	return PMIX_ERR_NOT_FOUND; /* there are no ranks elsewhere */
}

static pmix_server_module_t module = {
	.client_connected = client_connected,
	.client_finalized = client_finalized,
	.abort = client_aborted,
	.fence_nb = fence,
	.direct_modex = direct_modex,
};

static enum st_status server_failed(const char *what, pmix_status_t code)
{
	return st_fail(ST_ERR_UNAVAILABLE, "PMIx server: %s: %s (%d)", what, PMIx_Error_string(code), (int)code);
}

/* ---- what the ranks may ask ---------------------------------------------------------------------------------------- */

#define RANK_KEYS 8
#define NODE_KEYS 4

static void load_u32(pmix_info_t *info, const char *key, uint32_t value)
{
	PMIX_INFO_LOAD(info, key, &value, PMIX_UINT32);
}

static void load_u16(pmix_info_t *info, const char *key, uint32_t value)
{
	uint16_t narrow = (uint16_t)value;

	PMIX_INFO_LOAD(info, key, &narrow, PMIX_UINT16);
}

/* Owns `list` from here on: PMIX_INFO_DESTRUCT of info frees it. */
static void load_array(pmix_info_t *info, const char *key, pmix_info_t *list, size_t count)
{
	pmix_data_array_t array = {.type = PMIX_INFO, .size = count, .array = list};

	PMIX_INFO_LOAD(info, key, &array, PMIX_DATA_ARRAY); /* copies */
	PMIX_INFO_FREE(list, count);
}

static void load_rank(pmix_info_t *info, const struct launcher_layout *layout, uint32_t rank)
{
	uint32_t node = launcher_node_of(layout, rank), local = launcher_local_rank(layout, rank);
	pmix_rank_t number = rank;
	char name[64];
	pmix_info_t *list;

	launcher_node_name(layout, node, name, sizeof name);
	PMIX_INFO_CREATE(list, RANK_KEYS);
	PMIX_INFO_LOAD(&list[0], PMIX_RANK, &number, PMIX_PROC_RANK);
	PMIX_INFO_LOAD(&list[1], PMIX_GLOBAL_RANK, &number, PMIX_PROC_RANK);
	PMIX_INFO_LOAD(&list[2], PMIX_APP_RANK, &number, PMIX_PROC_RANK);
	load_u32(&list[3], PMIX_APPNUM, 0);
	load_u16(&list[4], PMIX_LOCAL_RANK, local);
	load_u16(&list[5], PMIX_NODE_RANK, local);
	PMIX_INFO_LOAD(&list[6], PMIX_HOSTNAME, name, PMIX_STRING);
	load_u32(&list[7], PMIX_NODEID, node);
	load_array(info, PMIX_PROC_DATA, list, RANK_KEYS);
}

/* "0,1,2" for the ranks of a node; malloc'ed. */
static char *ranks_of_node(const struct launcher_layout *layout, uint32_t node)
{
	char *text = calloc(layout->size, 12);
	size_t used = 0;

	for (uint32_t r = 0; text && r < layout->size; r++)
		if (launcher_node_of(layout, r) == node)
			used += (size_t)snprintf(text + used, 12 * (size_t)layout->size - used, "%s%u", used ? "," : "", r);
	return text;
}

/* node_names: "a,b"; node_ranks: "0,1;2,3". Both malloc'ed. */
static bool map_texts(const struct launcher_layout *layout, char **node_names, char **node_ranks)
{
	size_t name_bytes = (size_t)layout->nodes * 66 + 1, rank_bytes = (size_t)layout->size * 12 + layout->nodes + 1, names = 0, ranks = 0;

	*node_names = calloc(1, name_bytes);
	*node_ranks = calloc(1, rank_bytes);
	for (uint32_t n = 0; *node_names && *node_ranks && n < layout->nodes; n++) {
		char name[64], *list = ranks_of_node(layout, n);
		if (!list)
			return false;
		launcher_node_name(layout, n, name, sizeof name);
		names += (size_t)snprintf(*node_names + names, name_bytes - names, "%s%s", n ? "," : "", name);
		ranks += (size_t)snprintf(*node_ranks + ranks, rank_bytes - ranks, "%s%s", n ? ";" : "", list);
		free(list);
	}
	return *node_names && *node_ranks;
}

#define JOB_KEYS 17

static enum st_status register_job(const struct launcher_layout *layout, const char *directory)
{
	char *names = NULL, *ranks = NULL, *node_map = NULL, *proc_map = NULL, *all = NULL;
	pmix_info_t *info = NULL;
	size_t count = JOB_KEYS + layout->nodes + layout->size, at = 0;
	struct launcher_layout whole = {.size = layout->size, .nodes = 1};
	pmix_rank_t leader = 0;
	pmix_status_t code;
	enum st_status status = ST_OK;

	all = ranks_of_node(&whole, 0);
	if (!all || !map_texts(layout, &names, &ranks)) {
		status = st_fail(ST_ERR_NOMEM, "no memory for the PMIx server's maps");
		goto free_texts;
	}
	code = PMIx_generate_regex(names, &node_map);
	if (code == PMIX_SUCCESS)
		code = PMIx_generate_ppn(ranks, &proc_map);
	if (code != PMIX_SUCCESS) {
		status = server_failed("can't describe the ranks", code);
		goto free_texts;
	}
	PMIX_INFO_CREATE(info, count);
	load_u32(&info[at++], PMIX_UNIV_SIZE, layout->size);
	load_u32(&info[at++], PMIX_JOB_SIZE, layout->size);
	load_u32(&info[at++], PMIX_MAX_PROCS, layout->size);
	load_u32(&info[at++], PMIX_JOB_NUM_APPS, 1);
	load_u32(&info[at++], PMIX_NUM_NODES, layout->nodes);
	load_u32(&info[at++], PMIX_LOCAL_SIZE, layout->nodes > 1 ? launcher_local_size(layout, 0) : layout->size);
	load_u32(&info[at++], PMIX_NODE_SIZE, layout->nodes > 1 ? launcher_local_size(layout, 0) : layout->size);
	load_u32(&info[at++], PMIX_NODEID, 0);
	PMIX_INFO_LOAD(&info[at], PMIX_JOBID, job_name, PMIX_STRING);
	at++;
	PMIX_INFO_LOAD(&info[at], PMIX_NODE_MAP, node_map, PMIX_REGEX);
	at++;
	PMIX_INFO_LOAD(&info[at], PMIX_PROC_MAP, proc_map, PMIX_REGEX);
	at++;
	PMIX_INFO_LOAD(&info[at], PMIX_LOCAL_PEERS, all, PMIX_STRING);
	at++;
	PMIX_INFO_LOAD(&info[at], PMIX_LOCALLDR, &leader, PMIX_PROC_RANK);
	at++;
	PMIX_INFO_LOAD(&info[at], PMIX_NSDIR, directory, PMIX_STRING);
	at++;
	PMIX_INFO_LOAD(&info[at], PMIX_TMPDIR, directory, PMIX_STRING);
	at++;
	bool yes = true;
	PMIX_INFO_LOAD(&info[at], PMIX_TDIR_RMCLEAN, &yes, PMIX_BOOL);
	at++;
	for (uint32_t n = 0; n < layout->nodes; n++) {
		char name[64], *list = ranks_of_node(layout, n);
		pmix_info_t *keys;
		launcher_node_name(layout, n, name, sizeof name);
		PMIX_INFO_CREATE(keys, NODE_KEYS);
		PMIX_INFO_LOAD(&keys[0], PMIX_HOSTNAME, name, PMIX_STRING);
		load_u32(&keys[1], PMIX_NODEID, n);
		load_u32(&keys[2], PMIX_LOCAL_SIZE, launcher_local_size(layout, n));
		PMIX_INFO_LOAD(&keys[3], PMIX_LOCAL_PEERS, list ? list : "", PMIX_STRING);
		load_array(&info[at++], PMIX_NODE_INFO_ARRAY, keys, NODE_KEYS);
		free(list);
	}
	for (uint32_t r = 0; r < layout->size; r++)
		load_rank(&info[at++], layout, r);
	code = PMIx_server_register_nspace(job_name, (int)layout->size, info, at, NULL, NULL);
	if (code != PMIX_SUCCESS && code != PMIX_OPERATION_SUCCEEDED)
		status = server_failed("can't register the job", code);
	PMIX_INFO_FREE(info, count);

free_texts:
	free(all);
	free(names);
	free(ranks);
	free(node_map);
	free(proc_map);
	return status;
}

const char *launcher_server_job(void)
{
	return job_name;
}

enum st_status launcher_server_start(const struct launcher_layout *layout, const char *directory)
{
	pmix_info_t info[3];
	uint8_t random[8];
	char hex[17], node[64];
	pmix_status_t code;

	ST_TRY(st_random_bytes(random, sizeof random));
	st_hex(random, sizeof random, hex);
	snprintf(job_name, sizeof job_name, BOOTSTRAP_JOB_OF_RUN "%ld.%s", (long)getpid(), hex);
	/* An outer launcher's server is not ours.  The hash store keeps what the ranks exchange in memory; the default maps it to
	 * files, where the job's secret has no business. */
	unsetenv("PMIX_NAMESPACE");
	unsetenv("PMIX_RANK");
	setenv("PMIX_MCA_gds", "hash", 1);
	launcher_node_name(layout, 0, node, sizeof node);
	PMIX_INFO_LOAD(&info[0], PMIX_SERVER_TMPDIR, directory, PMIX_STRING);
	PMIX_INFO_LOAD(&info[1], PMIX_SYSTEM_TMPDIR, directory, PMIX_STRING);
	PMIX_INFO_LOAD(&info[2], PMIX_HOSTNAME, node, PMIX_STRING);
	code = PMIx_server_init(&module, info, 3);
	for (int i = 0; i < 3; i++)
		PMIX_INFO_DESTRUCT(&info[i]);
	if (code != PMIX_SUCCESS)
		return server_failed("can't start", code);
	ST_TRY(register_job(layout, directory));
	for (uint32_t r = 0; r < layout->size; r++) {
		pmix_proc_t proc;
		PMIX_LOAD_PROCID(&proc, job_name, r);
		code = PMIx_server_register_client(&proc, geteuid(), getegid(), NULL, NULL, NULL);
		if (code != PMIX_SUCCESS && code != PMIX_OPERATION_SUCCEEDED)
			return server_failed("can't register a rank", code);
	}
	return ST_OK;
}

enum st_status launcher_server_environment(uint32_t rank, char ***environment)
{
	pmix_proc_t proc;
	pmix_status_t code;

	PMIX_LOAD_PROCID(&proc, job_name, rank);
	code = PMIx_server_setup_fork(&proc, environment);
	return code == PMIX_SUCCESS ? ST_OK : server_failed("can't prepare a rank's environment", code);
}

static void *finalize(void *ended)
{
	PMIx_server_finalize();
	/* Pairs with the acquire of the waiter: nothing else is passed. */
	atomic_store_explicit((_Atomic bool *)ended, true, memory_order_release);
	return NULL;
}

void launcher_server_stop(void)
{
	static _Atomic bool ended; /* static: a helper that is left behind may still write it */
	pthread_t thread;

	/* The library waits for its threads, which may wait for a rank that is stuck. */
	if (pthread_create(&thread, NULL, finalize, &ended) != 0)
		return;
	pthread_detach(thread);
	for (int i = 0; i < STOP_TIMEOUT_S * 100; i++) {
		/* Pairs with the release in finalize(). */
		if (atomic_load_explicit(&ended, memory_order_acquire))
			return;
		nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
	}
}
