#include "control.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/digest.h"
#include "common/version.h"
#include "control_internal.h"

#define DEFAULT_STARTUP_MS 60000
#define DEFAULT_HEARTBEAT_MS 500
#define DEFAULT_STALL_MS 5000
#define PROBE_EVERY_MS 1000
#define TELL_CHILDREN_MS 2000

/* ---- the secret and the record ------------------------------------------------------------------------------------- */

static size_t secret_page_bytes(void)
{
	return (size_t)sysconf(_SC_PAGESIZE);
}

/* A page of its own, so that the kernel can be asked to keep it out of core files, children and swap. */
static enum st_status secret_make(struct control *control)
{
	void *page = mmap(NULL, secret_page_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (page == MAP_FAILED)
		return st_fail_errno("no memory for the job's secret");
	if (madvise(page, secret_page_bytes(), MADV_DONTDUMP) < 0) {
		munmap(page, secret_page_bytes());
		return st_fail_errno("can't keep the job's secret out of core files");
	}
	/* Best effort: old kernels lack the first, RLIMIT_MEMLOCK may forbid the second. */
	madvise(page, secret_page_bytes(), MADV_WIPEONFORK);
	(void)mlock(page, secret_page_bytes());
	control->secret = page;
	return ST_OK;
}

static void secret_free(struct control *control)
{
	if (!control->secret)
		return;
	st_wipe(control->secret, WIRE_SECRET_BYTES);
	munmap(control->secret, secret_page_bytes());
	control->secret = NULL;
}

static enum st_status fill_record(struct control *control, const struct bootstrap *bootstrap, const struct control_options *options,
				  struct wire_record *record)
{
	record->magic = WIRE_MAGIC;
	record->version = WIRE_VERSION;
	record->record_bytes = sizeof *record;
	snprintf(record->build, sizeof record->build, "%.*s", (int)sizeof record->build - 1, st_build_id);
	snprintf(record->node, sizeof record->node, "%s", bootstrap->node);
	snprintf(record->address, sizeof record->address, "%s", bootstrap->address);
	record->chunk_bytes_hint = options->chunk_bytes_hint;
	record->slots_hint = options->slots_hint;
	record->accumulate_hint = options->accumulate_hint;
	record->heartbeat_ms = (uint32_t)control->heartbeat_ms;
	record->stall_timeout_ms = (uint32_t)control->stall_timeout_ms;
	control_host_id(record->host);
	if (control->size == 1)
		return ST_OK;
	ST_TRY(control_interface_choose(options->interface, &control->addresses));
	record->loopback = control->addresses.loopback;
	ST_TRY(control_listen(control, record));
	if (control->rank == 0)
		ST_TRY(st_random_bytes(record->secret, sizeof record->secret));
	return ST_OK;
}

/* Every rank sees the same records, so every rank comes to the same conclusion. */
static enum st_status check_records(struct wire_record *records, uint32_t size)
{
	const struct wire_record *first = &records[0];

	for (uint32_t r = 0; r < size; r++) {
		struct wire_record *record = &records[r];
		if (record->magic != WIRE_MAGIC)
			return st_fail(ST_ERR_PROTOCOL, "rank %u gave something that is no endpoint record", r);
		wire_clean_text(record->build, sizeof record->build);
		wire_clean_text(record->node, sizeof record->node);
		if (record->version != first->version)
			return st_fail(ST_ERR_MISMATCH,
				       "rank 0 on %s speaks protocol version %u (build %s), rank %u on %s version %u (build %s): install one build "
				       "everywhere",
				       first->node, first->version, first->build, r, record->node, record->version, record->build);
	}
	if (first->version != WIRE_VERSION)
		return st_fail(ST_ERR_INTERNAL, "all ranks speak protocol version %u, this one version %u", first->version, WIRE_VERSION);
	for (uint32_t r = 0; r < size; r++) {
		struct wire_record *record = &records[r];
		if (record->record_bytes != sizeof *record || !record->node[0] || (size > 1 && !record->unix_name[0]))
			return st_fail(ST_ERR_PROTOCOL, "rank %u gave an endpoint record that is not whole", r);
		wire_clean_text(record->address, sizeof record->address);
		record->unix_name[sizeof record->unix_name - 1] = 0;
		if (size > 1 && record->loopback)
			for (uint32_t other = 0; other < size; other++)
				if (memcmp(record->host, records[other].host, sizeof record->host))
					return st_fail(ST_ERR_CONFIG,
						       "rank %u on %s has no network interface but loopback, where rank %u on %s can't reach it", r,
						       record->node, other, records[other].node);
	}
	return ST_OK;
}

static enum st_status take_records(struct control *control, struct wire_record *records)
{
	const char **names = malloc(control->size * sizeof *names), **addresses = malloc(control->size * sizeof *addresses);
	enum st_status status = ST_OK;

	control->endpoints = calloc(control->size, sizeof *control->endpoints);
	if (!names || !addresses || !control->endpoints) {
		status = st_fail(ST_ERR_NOMEM, "no memory for %u ranks", control->size);
		goto free_lists;
	}
	for (uint32_t r = 0; r < control->size; r++) {
		struct control_endpoint *end = &control->endpoints[r];
		names[r] = records[r].node;
		addresses[r] = records[r].address;
		memcpy(end->unix_name, records[r].unix_name, sizeof end->unix_name);
		memcpy(end->ipv4, records[r].ipv4, sizeof end->ipv4);
		memcpy(end->ipv6, records[r].ipv6, sizeof end->ipv6);
		end->port4 = records[r].port4;
		end->port6 = records[r].port6;
	}
	status = topo_world_build(control->rank, control->size, names, addresses, &control->world);
	memcpy(control->secret, records[0].secret, WIRE_SECRET_BYTES);
	control->chunk_bytes = records[0].chunk_bytes_hint;
	control->slots = records[0].slots_hint;
	control->accumulate = records[0].accumulate_hint;
	/* One pair of values for all: a neighbour that beats less often than this rank expects would look dead. */
	control->stall_timeout_ms = records[0].stall_timeout_ms;
	control->heartbeat_ms = records[0].heartbeat_ms;
free_lists:
	free(names);
	free(addresses);
	return status;
}

/* ---- joining the tree ---------------------------------------------------------------------------------------------- */

static enum st_status join_parent(struct control *control, uint32_t parent, struct st_deadline *deadline)
{
	bool local = control_same_name(control, parent);
	int fd = -1;
	enum st_status status = control_connect(control, parent, WIRE_PURPOSE_TREE, local, deadline, &fd);

	/* The same name, but not the same network namespace (containers): TCP will do. */
	if (local && status == ST_ERR_UNAVAILABLE && control->endpoints[parent].port4 + control->endpoints[parent].port6) {
		local = false;
		status = control_connect(control, parent, WIRE_PURPOSE_TREE, false, deadline, &fd);
	}
	if (status == ST_ERR_ABORTED)
		return status;
	if (status != ST_OK) {
		char why[512];
		snprintf(why, sizeof why, "%s", st_message());
		if (status == ST_ERR_UNAVAILABLE)
			return control_abort(control, parent, CONTROL_HOW_EXITED, "start-up", "nothing listens at its address any more");
		/* It may be stopped, its host down, the link to it cut. */
		if (status == ST_ERR_TIMEOUT)
			return control_suspect(control, parent, "start-up", why);
		return control_abort(control, parent, CONTROL_HOW_LINK, "start-up", why);
	}
	pthread_mutex_lock(&control->lock);
	status = control_link_add(control, parent, local, fd);
	pthread_mutex_unlock(&control->lock);
	if (status != ST_OK)
		close(fd);
	return status;
}

/* The first child, from rank `after` on, that has not connected yet. Lock held. */
static bool missing_child(struct control *control, uint32_t after, uint32_t *child)
{
	uint32_t parent;

	for (uint32_t r = after; r < control->size; r++)
		if (control_tree_parent(control, r, &parent) && parent == control->rank && !control->met[r] && !control->left[r]) {
			*child = r;
			return true;
		}
	return false;
}

/* A child that does not come may have died before it could: then nothing listens at its address any more. */
static enum st_status probe_child(struct control *control, uint32_t child, unsigned *refusals)
{
	bool gone;

	ST_TRY(control_probe(control, child, &refusals[child], &gone));
	if (!gone)
		return ST_OK;
	return control_abort(control, child, CONTROL_HOW_EXITED, "start-up", "nothing listens at its address any more");
}

static int64_t left_ms(struct st_deadline *deadline)
{
	if (st_deadline_expired(deadline))
		return 0;
	return deadline->left_ns / ST_NS_PER_MS;
}

static enum st_status wait_for_children(struct control *control, struct st_deadline *deadline)
{
	unsigned *refusals = calloc(control->size, sizeof *refusals);
	struct st_deadline probe = st_deadline_in_ms(PROBE_EVERY_MS);
	enum st_status status;
	uint32_t child = 0;

	if (!refusals)
		return st_fail(ST_ERR_NOMEM, "no memory for %u ranks", control->size);
	pthread_mutex_lock(&control->lock);
	for (;;) {
		status = control_verdict_await(control);
		if (status != ST_OK || !missing_child(control, 0, &child))
			break;
		if (st_deadline_expired(deadline)) {
			char detail[96];
			snprintf(detail, sizeof detail, "it did not connect within %.1f s", (double)control->startup_timeout_ms / 1e3);
			control_overdue(control, child, "start-up", detail);
			control_verdict_await(control);
			continue;
		}
		if (!control_wait(control, &probe) && left_ms(deadline) > PROBE_EVERY_MS) {
			for (bool more = true; more && status == ST_OK; more = missing_child(control, child + 1, &child)) {
				pthread_mutex_unlock(&control->lock);
				status = probe_child(control, child, refusals);
				pthread_mutex_lock(&control->lock);
			}
			probe = st_deadline_in_ms(PROBE_EVERY_MS);
			if (status != ST_OK)
				break;
		}
	}
	pthread_mutex_unlock(&control->lock);
	free(refusals);
	return status;
}

/* Start-up failed here: children that are still on their way shall hear the cause, and not take this rank for it. */
static void tell_children(struct control *control)
{
	struct st_deadline deadline = st_deadline_in_ms(TELL_CHILDREN_MS);
	uint32_t child;

	pthread_mutex_lock(&control->lock);
	/* The culprit itself will not come. */
	if (control->judged)
		control->met[control->verdict.culprit] = true;
	while (missing_child(control, 0, &child) && control_wait(control, &deadline))
		;
	pthread_mutex_unlock(&control->lock);
}

static enum st_status join_tree(struct control *control, struct st_deadline *deadline)
{
	int64_t step_ms = control->startup_timeout_ms / 6 < 2000 ? control->startup_timeout_ms / 6 : 2000;
	struct st_deadline sooner = *deadline;
	uint32_t parent, above = control->rank;

	/* The neighbours of a rank that does not come shall name it, before those who wait for them name them: the deeper, the sooner. */
	sooner.left_ns -= step_ms * ST_NS_PER_MS;
	while (control_tree_parent(control, above, &above))
		sooner.left_ns -= step_ms * ST_NS_PER_MS;
	if (control_tree_parent(control, control->rank, &parent))
		ST_TRY(join_parent(control, parent, &sooner));
	ST_TRY(wait_for_children(control, &sooner));
	/* Decision 0: when it ends, everybody is connected and the launcher's service can be left. */
	return control_group_meet(&control->root, left_ms(deadline));
}

/* ---- open and close ------------------------------------------------------------------------------------------------ */

static void destroy(struct control *control)
{
	control_service_stop(control);
	control_rejoin_end(control);
	control_links_close_all(control);
	control_openings_close_all(control);
	control_callers_close_all(control);
	control_recent_free(control);
	while (control->groups) {
		struct control_group *group = control->groups;
		control->groups = group->next;
		control_group_destroy(group);
		if (group != &control->root)
			free(group);
	}
	for (int i = 0; i < CONTROL_LISTENERS; i++)
		if (control->listeners[i].fd >= 0)
			close(control->listeners[i].fd);
	if (control->wake.fd >= 0)
		close(control->wake.fd);
	if (control->event_fd >= 0)
		close(control->event_fd);
	if (control->epoll_fd >= 0)
		close(control->epoll_fd);
	topo_world_free(control->world);
	free(control->endpoints);
	free(control->left);
	free(control->met);
	free(control->gone);
	free(control->inquired);
	free(control->reach);
	free(control->heard);
	secret_free(control);
	pthread_cond_destroy(&control->changed);
	pthread_mutex_destroy(&control->lock);
	free(control);
}

static enum st_status allocate(const struct bootstrap *bootstrap, const struct control_options *options, struct control **out)
{
	struct control *control = calloc(1, sizeof *control);
	pthread_condattr_t attributes;

	if (!control)
		return st_fail(ST_ERR_NOMEM, "no memory for the control plane");
	pthread_mutex_init(&control->lock, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&control->changed, &attributes);
	pthread_condattr_destroy(&attributes);
	for (int i = 0; i < CONTROL_LISTENERS; i++)
		control->listeners[i] = (struct control_source){.kind = CONTROL_SOURCE_LISTENER, .fd = -1};
	control->wake.fd = control->event_fd = control->epoll_fd = -1;
	*out = control;

	control->references = 1;
	control->rank = bootstrap->rank;
	control->size = bootstrap->size;
	memcpy(control->job, bootstrap->job, sizeof control->job);
	control->job[sizeof control->job - 1] = 0;
	control->startup_timeout_ms = options->startup_timeout_ms > 0 ? options->startup_timeout_ms : DEFAULT_STARTUP_MS;
	control->stall_timeout_ms = options->stall_timeout_ms > 0 ? options->stall_timeout_ms : DEFAULT_STALL_MS;
	control->heartbeat_ms = options->heartbeat_ms > 0 ? options->heartbeat_ms : DEFAULT_HEARTBEAT_MS;
	if (control->stall_timeout_ms > UINT32_MAX / 2)
		control->stall_timeout_ms = UINT32_MAX / 2;
	/* Several chances within one stall timeout. */
	if (control->heartbeat_ms > control->stall_timeout_ms / 4)
		control->heartbeat_ms = control->stall_timeout_ms / 4 + 1;
	control->left = calloc(control->size, sizeof *control->left);
	control->reach = calloc(control->size, sizeof *control->reach);
	control->met = calloc(control->size, sizeof *control->met);
	control->gone = calloc(control->size, sizeof *control->gone);
	control->inquired = calloc(control->size, sizeof *control->inquired);
	control->heard = calloc(control->size, sizeof *control->heard);
	bool have = control->left && control->reach && control->met && control->gone && control->inquired && control->heard;
	if (!have)
		return st_fail(ST_ERR_NOMEM, "no memory for the control plane of %u ranks", control->size);
	ST_TRY(control_root_init(control));
	control->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	control->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (control->epoll_fd < 0 || control->event_fd < 0)
		return st_fail_errno("can't make the control plane's descriptors");
	ST_TRY(secret_make(control));
	control->keys = (struct auth_keys){.secret = control->secret, .job = control->job, .rank = control->rank, .size = control->size};
	return ST_OK;
}

enum st_status control_open(struct bootstrap *bootstrap, const struct control_options *options, struct control **out)
{
	struct wire_record mine = {0}, *records = NULL;
	struct control *control = NULL;
	struct st_deadline deadline;
	enum st_status status;

	if (bootstrap->size == 0 || bootstrap->rank >= bootstrap->size)
		return st_fail(ST_ERR_USAGE, "seen rank %u of %u", bootstrap->rank, bootstrap->size);
	status = allocate(bootstrap, options, &control);
	if (status != ST_OK)
		goto free_control;
	deadline = st_deadline_in_ms(control->startup_timeout_ms);
	records = calloc(control->size, sizeof *records);
	if (!records) {
		status = st_fail(ST_ERR_NOMEM, "no memory for %u endpoint records", control->size);
		goto free_control;
	}
	status = fill_record(control, bootstrap, options, &mine);
	if (status == ST_OK)
		status = bootstrap->exchange(bootstrap, &mine, sizeof mine, left_ms(&deadline), records);
	if (status == ST_OK)
		status = check_records(records, control->size);
	if (status == ST_OK)
		status = take_records(control, records);
	st_wipe(&mine, sizeof mine);
	st_wipe(records, control->size * sizeof *records);
	free(records);
	if (status != ST_OK || control->size == 1)
		goto free_control;

	control->next_heartbeat = st_deadline_in_ms(control->heartbeat_ms);
	control->last_tick_ns = st_now_ns();
	status = control_service_start(control);
	if (status == ST_OK)
		status = join_tree(control, &deadline);
	if (status != ST_OK && status != ST_ERR_ABORTED) {
		char why[512];
		snprintf(why, sizeof why, "%s", st_message());
		control_abort(control, control->rank, CONTROL_HOW_APPLICATION, "start-up", why);
		status = st_fail_copy(status, why);
	}
	if (status != ST_OK && control->thread_started) {
		char why[1024];
		snprintf(why, sizeof why, "%s", st_message());
		tell_children(control);
		status = st_fail_copy(status, why);
	}

free_control:
	if (status != ST_OK) {
		if (control)
			control_close(control);
		return status;
	}
	*out = control;
	return ST_OK;
}

void control_close(struct control *control)
{
	struct st_deadline deadline = st_deadline_in_ms(CONTROL_CLOSE_FLUSH_MS);

	if (!control)
		return;
	pthread_mutex_lock(&control->lock);
	if (--control->references) {
		pthread_mutex_unlock(&control->lock);
		return;
	}
	atomic_store_explicit(&control->closing, true, memory_order_relaxed);
	if (control->world) {
		struct wire_goodbye goodbye = {.rank = control->rank, .whole = 1, .entered = control_decisions_entered(&control->root)};
		/* A connection that comes from now on hears it too, see control_link_add(). */
		control->left[control->rank] = control->root.left[control->rank] = true;
		control->root.entered[control->rank] = goodbye.entered;
		if (!control->judged)
			control_flood(control, NULL, WIRE_GOODBYE, &goodbye, sizeof goodbye, NULL, 0);
	}
	/* Usually all is out at once, and what neighbours sent before they heard the goodbye, which is for others too, passed on; only a neighbour that
	 * does not read or answer costs this second. */
	while (control->thread_started && !control_links_parted(control) && control_wait(control, &deadline))
		;
	control_helpers_end(control);
	pthread_mutex_unlock(&control->lock);
	destroy(control);
}

const char *control_interface(const struct control *control)
{
	return control->addresses.interface[0] ? control->addresses.interface : NULL;
}

enum st_status control_await_failure(struct control *control)
{
	pthread_mutex_lock(&control->lock);
	enum st_status status = control_verdict_await(control);
	pthread_mutex_unlock(&control->lock);
	return status;
}

void control_hold(struct control *control)
{
	pthread_mutex_lock(&control->lock);
	control->references++;
	pthread_mutex_unlock(&control->lock);
}

/* ---- what callers ask ---------------------------------------------------------------------------------------------- */

const struct topo_world *control_world(const struct control *control)
{
	return control->world;
}

const char *control_job(const struct control *control)
{
	return control->job;
}

void control_hints(const struct control *control, uint32_t *chunk_bytes, uint32_t *slots, uint8_t *accumulate)
{
	*chunk_bytes = control->chunk_bytes;
	*slots = control->slots;
	*accumulate = control->accumulate;
}

void control_doing(struct control *control, const char *name, uint64_t sequence)
{
	control_group_doing(&control->root, name, sequence);
}

void control_group_doing(struct control_group *group, const char *name, uint64_t sequence)
{
	struct control *control = group->control;

	/* Relaxed: the service thread may pair a name with its neighbour's number for an instant; both are only shown. */
	atomic_store_explicit(&control->doing_sequence, sequence, memory_order_relaxed);
	atomic_store_explicit(&control->doing_context, group->context, memory_order_relaxed);
	atomic_store_explicit(&control->doing_name, name, memory_order_relaxed);
}

enum st_status control_check(struct control *control)
{
	enum st_status status;

	/* Relaxed: the text is read under the lock that was held when the flag was set. */
	if (!atomic_load_explicit(&control->aborted, memory_order_relaxed))
		return ST_OK;
	pthread_mutex_lock(&control->lock);
	status = control_verdict(control);
	pthread_mutex_unlock(&control->lock);
	return status;
}

int control_event_fd(const struct control *control)
{
	return control->event_fd;
}

bool control_has_left(struct control *control, uint32_t rank)
{
	pthread_mutex_lock(&control->lock);
	bool left = rank < control->size && control->left[rank];
	pthread_mutex_unlock(&control->lock);
	return left;
}

enum st_status control_abort(struct control *control, uint32_t culprit, enum control_how how, const char *operation, const char *detail)
{
	enum st_status status;

	pthread_mutex_lock(&control->lock);
	control_abort_locked(control, culprit < control->size ? culprit : control->rank, how, operation, detail);
	status = control_verdict_await(control);
	pthread_mutex_unlock(&control->lock);
	return status;
}

void control_declare(struct control *control, const char *operation, const char *detail)
{
	pthread_mutex_lock(&control->lock);
	control_abort_locked(control, control->rank, CONTROL_HOW_APPLICATION, operation, detail);
	pthread_mutex_unlock(&control->lock);
}

enum st_status control_suspect(struct control *control, uint32_t peer, const char *operation, const char *detail)
{
	return control_group_suspect(&control->root, peer, operation, detail);
}

enum st_status control_group_suspect(struct control_group *group, uint32_t peer, const char *operation, const char *detail)
{
	struct control *control = group->control;
	struct st_deadline deadline = st_deadline_in_ms(CONTROL_SUSPECT_MS);
	enum st_status status;

	if (peer >= control->size)
		return st_fail(ST_ERR_USAGE, "seen rank %u of %u", peer, control->size);
	pthread_mutex_lock(&control->lock);
	for (;;) {
		status = control_verdict_await(control);
		if (status != ST_OK)
			break;
		if (control_group_has_left(group, peer))
			control_abort_locked(control, peer, CONTROL_HOW_LEFT, operation, control_group_left_how(group, peer));
		else if (!control_wait(control, &deadline))
			control_inquire_here(control, peer, operation, detail);
	}
	pthread_mutex_unlock(&control->lock);
	return status;
}

void control_counters_read(const struct control *control, struct control_counters *counters)
{
	/* The lock is no part of what the caller sees as const. */
	pthread_mutex_t *lock = (pthread_mutex_t *)&control->lock;

	pthread_mutex_lock(lock);
	*counters = control->counters;
	pthread_mutex_unlock(lock);
}
