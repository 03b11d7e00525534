/* The writing half of the flight recorder: stores into a mapping, and nothing else once it is open. */
#include "recorder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#define XXH_INLINE_ALL /* programs that link libcomm need no library more for one checksum */
#include <xxhash.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/version.h"
#include "plan.h"
#include "plan_choose.h"
#include "transport.h"

_Static_assert(PLAN_ALGORITHMS <= RECORDER_ALGORITHMS, "the header names every algorithm");
_Static_assert(sizeof(uint64_t) == sizeof(_Atomic uint64_t), "words of the file are stored as atomics");

#define NO_ALGORITHM 255u

struct recorder {
	struct recorder_header *header;
	struct recorder_entry *entries;
	const uint32_t *world_ranks;
	uint32_t size;
	uint8_t waits;                         /* numbers them */
	bool has_wait[RECORDER_ENTRIES];       /* so that an operation without trouble leaves an entry's second cache line alone */
	struct recorder_place place;
};

/* Nobody acquires: readers are other processes with copies of the file.  Release keeps the order in which the words were meant to be stored, for a
 * reader that copies meanwhile, and for one that finds what a killed process left. */
static inline void put(uint64_t *word, uint64_t value)
{
	atomic_store_explicit((_Atomic uint64_t *)word, value, memory_order_release);
}

static inline void put_time(int64_t *word, int64_t value)
{
	put((uint64_t *)word, (uint64_t)value);
}

static inline uint64_t get(const uint64_t *word)
{
	return atomic_load_explicit((const _Atomic uint64_t *)word, memory_order_relaxed);
}

/* The clock of the last tick, some milliseconds behind: a load where the exact clock costs an instruction that waits for all others. */
static inline int64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
	return (int64_t)t.tv_sec * ST_NS_PER_S + t.tv_nsec;
}

static void fill_header(struct recorder_header *header, const struct recorder_options *options)
{
	char state;

	header->version = RECORDER_VERSION;
	header->header_bytes = sizeof *header;
	header->entry_bytes = sizeof(struct recorder_entry);
	header->entries = RECORDER_ENTRIES;
	header->context = options->context;
	header->rank = options->rank;
	header->size = options->size;
	header->world_rank = options->world_rank;
	header->world_size = options->world_size;
	header->pid = (uint64_t)getpid();
	if (!recorder_process(header->pid, &header->start_ticks, &state))
		header->start_ticks = 0;
	recorder_here(header->boot, &header->pid_namespace);
	header->created_wall_ns = st_wall_ns();
	header->created_ns = now_ns();
	header->left_ns = header->created_ns;
	header->flags = options->helper ? RECORDER_HELPER : 0;
	header->stall_timeout_ms = options->stall_timeout_ms;
	header->arrival_timeout_ms = options->arrival_timeout_ms;
	snprintf(header->host, sizeof header->host, "%s", options->host);
	snprintf(header->job, sizeof header->job, "%s", options->job);
	snprintf(header->build, sizeof header->build, "%.*s", (int)sizeof header->build - 1, st_build_id);
	for (int a = 0; a < PLAN_ALGORITHMS; a++)
		snprintf(header->algorithms[a], sizeof header->algorithms[a], "%s", plan_algorithm_name((enum plan_algorithm)a));
	header->check = XXH3_64bits(header, offsetof(struct recorder_header, state));
	put(&header->magic, RECORDER_MAGIC);
}

static enum st_status map(struct recorder *recorder)
{
	const struct recorder_place *place = &recorder->place;
	/* Pages that are there need no room later, when a store could only end the process. */
	int error = posix_fallocate(place->fd, 0, RECORDER_FILE_BYTES);

	if (error) {
		errno = error;
		return st_fail_errno("%s/%s: no room for %zu bytes", place->directory, place->name, RECORDER_FILE_BYTES);
	}
	void *memory = mmap(NULL, RECORDER_FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, place->fd, 0);
	if (memory == MAP_FAILED)
		return st_fail_errno("%s/%s: can't map", place->directory, place->name);
	recorder->header = memory;
	recorder->entries = (struct recorder_entry *)(recorder->header + 1);
	return ST_OK;
}

struct recorder *recorder_open(const struct recorder_options *options)
{
	struct recorder *recorder = calloc(1, sizeof *recorder);
	enum st_status status;

	if (!recorder)
		return NULL;
	recorder->world_ranks = options->world_ranks;
	recorder->size = options->size;
	status = recorder_create(options, &recorder->place);
	if (status == ST_OK) {
		status = map(recorder);
		if (status != ST_OK)
			recorder_remove(&recorder->place);
		close(recorder->place.fd);
	}
	if (status == ST_OK) {
		fill_header(recorder->header, options);
		return recorder;
	}
	/* What one rank of a node can't do the others mostly can't either: one of them says so. */
	if (status != ST_PENDING)
		st_log(options->prunes ? ST_LOG_WARN : ST_LOG_INFO, "no flight recorder: %s", st_message());
	free(recorder);
	return NULL;
}

const char *recorder_directory(const struct recorder *recorder)
{
	return recorder ? recorder->place.directory : NULL;
}

static inline enum recorder_operation_state state_of(const struct recorder_entry *entry)
{
	return (enum recorder_operation_state)(get(&entry->plan) & 0xff);
}

static inline bool is_open(const struct recorder_entry *entry)
{
	return get(&entry->tag) && state_of(entry) < RECORDER_DONE;
}

static inline struct recorder_entry *find(struct recorder *recorder, uint64_t sequence)
{
	struct recorder_entry *entry = &recorder->entries[sequence % RECORDER_ENTRIES];
	return get(&entry->tag) == sequence << 1 ? entry : NULL;
}

static inline void clear_wait(struct recorder *recorder, struct recorder_entry *entry)
{
	put(&entry->wait_again, 0);
	put(&entry->wait, 0);
	recorder->has_wait[entry - recorder->entries] = false;
}

static inline void set_state(struct recorder_entry *entry, enum recorder_operation_state state)
{
	put(&entry->plan, (get(&entry->plan) & ~UINT64_C(0xff)) | state);
}

/* Takes the entry's place for a new operation. NULL: an older one, which has not ended, needs it more. */
static inline struct recorder_entry *write_entry(struct recorder *recorder, const struct transport_signature *signature, const struct plan *plan,
						 unsigned lane)
{
	const uint64_t index = signature->sequence % RECORDER_ENTRIES, algorithm = plan->algorithm ? plan->algorithm - 1u : NO_ALGORITHM;
	struct recorder_entry *entry = &recorder->entries[index];

	if (is_open(entry))
		return NULL;
	put(&entry->tag_again, signature->sequence << 1 | 1);
	put(&entry->tag, signature->sequence << 1 | 1);
	put(&entry->count, signature->count);
	put(&entry->shape, (uint64_t)signature->root << 32 | (uint64_t)signature->fused << 24 | (uint64_t)signature->collective << 16 |
				   (uint64_t)signature->type << 8 | signature->op);
	put(&entry->plan, (uint64_t)plan->step_count << 32 | (uint64_t)(lane & 0xffff) << 16 | algorithm << 8 | RECORDER_ISSUED);
	put_time(&entry->issued_ns, now_ns());
	put_time(&entry->started_ns, 0);
	put_time(&entry->finished_ns, 0);
	if (recorder->has_wait[index])
		clear_wait(recorder, entry);
	put(&entry->tag, signature->sequence << 1);
	put(&entry->tag_again, signature->sequence << 1);
	return entry;
}

void recorder_issue(struct recorder *recorder, const struct transport_signature *signature, const struct plan *plan, unsigned lane)
{
	if (!recorder)
		return;
	struct recorder_header *header = recorder->header;
	if (!write_entry(recorder, signature, plan, lane))
		put(&header->skipped, get(&header->skipped) + 1);
	put(&header->issued, signature->sequence);
}

void recorder_start(struct recorder *recorder, const struct transport_signature *signature, const struct plan *plan, unsigned lane)
{
	if (!recorder)
		return;
	struct recorder_entry *entry = find(recorder, signature->sequence);
	/* There was no room when it was issued. */
	if (!entry && !(entry = write_entry(recorder, signature, plan, lane)))
		return;
	put_time(&entry->started_ns, now_ns());
	set_state(entry, RECORDER_STARTED);
}

void recorder_finish(struct recorder *recorder, uint64_t sequence, bool well)
{
	struct recorder_entry *entry = recorder ? find(recorder, sequence) : NULL;
	if (!entry)
		return;
	put_time(&entry->finished_ns, now_ns());
	set_state(entry, well ? RECORDER_DONE : RECORDER_BROKEN);
}

void recorder_wait(struct recorder *recorder, uint64_t sequence, const struct plan *plan, uint32_t step, uint64_t moves, int64_t since_ns)
{
	struct recorder_entry *entry = recorder ? find(recorder, sequence) : NULL;
	if (!entry || step >= plan->step_count || plan->steps[step].kind > PLAN_WAIT)
		return;
	const enum plan_step_kind kind = plan->steps[step].kind;
	const struct plan_channel *channel = &plan->channels[plan->steps[step].channel];
	const enum recorder_wait what = kind == PLAN_WAIT    ? RECORDER_WAIT_DATA
					: kind == PLAN_PUT   ? RECORDER_WAIT_GRANT
					: kind == PLAN_FLUSH ? RECORDER_WAIT_FLUSH
							     : RECORDER_WAIT_ROOM;
	const uint32_t peer = recorder->world_ranks && channel->peer < recorder->size ? recorder->world_ranks[channel->peer] : channel->peer;
	const uint64_t wait = (uint64_t)peer << 32 | (uint64_t)++recorder->waits << 24 | (uint64_t)channel->index << 8 |
			      (uint64_t)channel->outgoing << 7 | what;
	clear_wait(recorder, entry);
	put_time(&entry->wait_since_ns, since_ns ? since_ns : now_ns());
	put(&entry->wait_step, step);
	put(&entry->moves, moves);
	put(&entry->wait_sequence, sequence);
	put(&entry->wait, wait);
	put(&entry->wait_again, wait);
	recorder->has_wait[sequence % RECORDER_ENTRIES] = true;
	recorder_look(recorder);
}

void recorder_moved(struct recorder *recorder, uint64_t sequence)
{
	struct recorder_entry *entry = recorder ? find(recorder, sequence) : NULL;
	if (entry)
		clear_wait(recorder, entry);
}

void recorder_look(struct recorder *recorder)
{
	if (recorder)
		put_time(&recorder->header->looked_ns, now_ns());
}

/* What comes after a failure says nothing of where the rank was when it came. */
static inline bool records_callers(const struct recorder *recorder)
{
	return recorder && get(&recorder->header->state) == RECORDER_RUNNING;
}

void recorder_enter(struct recorder *recorder)
{
	if (records_callers(recorder))
		put(&recorder->header->waiting, get(&recorder->header->waiting) + 1);
}

void recorder_leave(struct recorder *recorder, bool entered)
{
	if (!records_callers(recorder))
		return;
	put_time(&recorder->header->left_ns, now_ns());
	if (entered)
		put(&recorder->header->waiting, get(&recorder->header->waiting) - 1);
}

void recorder_enter_decision(struct recorder *recorder)
{
	if (!records_callers(recorder))
		return;
	struct recorder_header *header = recorder->header;
	put_time(&header->decision_ns, now_ns());
	put(&header->decision, ((get(&header->decision) >> 1) + 1) << 1 | 1);
}

void recorder_leave_decision(struct recorder *recorder)
{
	if (!records_callers(recorder))
		return;
	put_time(&recorder->header->left_ns, now_ns());
	put(&recorder->header->decision, get(&recorder->header->decision) & ~UINT64_C(1));
}

void recorder_fail(struct recorder *recorder, const char *verdict)
{
	if (!recorder || get(&recorder->header->state) == RECORDER_FAILED)
		return;
	struct recorder_header *header = recorder->header;
	snprintf(header->verdict, sizeof header->verdict, "%s", verdict);
	recorder_look(recorder);
	put_time(&header->failed_ns, now_ns());
	put(&header->state, RECORDER_FAILED);
}

bool recorder_close(struct recorder *recorder)
{
	if (!recorder)
		return false;
	bool stays = get(&recorder->header->state) == RECORDER_FAILED;
	for (size_t i = 0; i < RECORDER_ENTRIES && !stays; i++)
		stays = is_open(&recorder->entries[i]);
	recorder_leave(recorder, false);
	if (get(&recorder->header->state) == RECORDER_RUNNING)
		put(&recorder->header->state, RECORDER_LEFT);
	munmap(recorder->header, RECORDER_FILE_BYTES);
	if (!stays)
		recorder_remove(&recorder->place);
	free(recorder);
	return stays;
}
