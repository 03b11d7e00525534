/* Reads flight recorders that anybody may have written, or that are being written. */
#include "trainer/hang.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "common/clock.h"
#include "libcomm/comm.h"
#include "libcomm/plan.h"
#include "libcomm/recorder.h"
#include "libcomm/transport.h"

#define MAX_FILES 65536
#define MAX_RANKS (1u << 20)
#define MAX_NOTES 40
#define LOOKS 4                             /* at a file that is written meanwhile */
#define YEAR_NS (366 * 86400 * ST_NS_PER_S) /* no job runs as long */
#define FAILURE_MARGIN_NS (20 * ST_NS_PER_MS)

struct loader {
	struct hang_file **files;
	size_t count, capacity, seen;
	char *notes;
	unsigned note_count;
	bool no_memory;
};

static void clean(char *text, size_t bytes)
{
	text[bytes - 1] = 0;
	for (; *text; text++)
		if (*text < ' ' || *text > '~')
			*text = '?';
}

/* A line for people; those that find no memory are left out. */
__attribute__((format(printf, 2, 3))) static void note(struct loader *loader, const char *format, ...)
{
	char line[512], *more;
	va_list list;
	if (++loader->note_count > MAX_NOTES)
		return;
	va_start(list, format);
	vsnprintf(line, sizeof line, format, list);
	va_end(list);
	clean(line, sizeof line);
	if (asprintf(&more, "%s%s\n", loader->notes ? loader->notes : "", line) < 0)
		return;
	free(loader->notes);
	loader->notes = more;
}

enum recorder_operation_state hang_state(const struct recorder_entry *entry)
{
	return (enum recorder_operation_state)(entry->plan & 0xff);
}

unsigned hang_lane(const struct recorder_entry *entry)
{
	return (unsigned)(entry->plan >> 16 & 0xffff);
}

uint32_t hang_peer(const struct recorder_entry *entry)
{
	return (uint32_t)(entry->wait >> 32);
}

bool hang_open(const struct recorder_entry *entry)
{
	return hang_state(entry) != RECORDER_DONE;
}

void hang_operation(const struct recorder_entry *entry, char text[HANG_OPERATION_TEXT])
{
	const struct transport_signature signature = {
		.sequence = entry->tag >> 1,
		.count = entry->count,
		.root = (uint32_t)(entry->shape >> 32),
		.fused = (uint8_t)(entry->shape >> 24),
		.collective = (uint8_t)(entry->shape >> 16),
		.type = (uint8_t)(entry->shape >> 8),
		.op = (uint8_t)entry->shape,
	};
	char whole[TRANSPORT_SIGNATURE_TEXT];
	transport_signature_print(&signature, whole);
	snprintf(text, HANG_OPERATION_TEXT, "%s", whole);
}

/* The recorder's clock as wall clock. 0 stays 0; false: no time of this file's. */
static bool to_wall(const struct hang_file *file, int64_t *time)
{
	int64_t since;
	if (!*time)
		return true;
	if (__builtin_sub_overflow(*time, file->header.created_ns, &since) || since < -ST_NS_PER_S || since > YEAR_NS)
		return false;
	*time = file->header.created_wall_ns + since;
	return true;
}

static void newest(int64_t *time, int64_t other)
{
	if (other > *time)
		*time = other;
}

static bool usable(struct hang_file *file, struct recorder_entry *entry)
{
	const unsigned state = (unsigned)(entry->plan & 0xff);
	if (!entry->tag || entry->tag & 1 || entry->tag != entry->tag_again)
		return false;
	if (state > RECORDER_BROKEN || (entry->shape >> 16 & 0xff) >= PLAN_COLLECTIVES || (entry->shape >> 8 & 0xff) >= COMM_TYPES ||
	    (entry->shape & 0xff) >= COMM_OPS)
		return false;
	/* A copy from the back may have the state and not yet its time. */
	if (((state == RECORDER_STARTED || state == RECORDER_DONE) && !entry->started_ns) || (state >= RECORDER_DONE && !entry->finished_ns))
		return false;
	if (state == RECORDER_ISSUED)
		entry->started_ns = 0;
	if (state < RECORDER_DONE)
		entry->finished_ns = 0;
	if (!to_wall(file, &entry->issued_ns) || !to_wall(file, &entry->started_ns) || !to_wall(file, &entry->finished_ns))
		return false;
	if (entry->wait != entry->wait_again || entry->wait_sequence != entry->tag >> 1 || !to_wall(file, &entry->wait_since_ns) || hang_peer(entry) >= file->header.world_size ||
	    (entry->wait & 0x7f) > RECORDER_WAIT_ROOM || !(entry->wait & 0x7f))
		entry->wait = 0;
	return true;
}

static int by_sequence(const void *a, const void *b)
{
	const struct recorder_entry *x = a, *y = b;
	return x->tag < y->tag ? -1 : x->tag > y->tag;
}

/* Takes `bytes` of a file apart. NULL: the reason is in st_message(), or no memory. */
static struct hang_file *parse(const char *data, size_t bytes)
{
	struct recorder_header head;
	if (bytes < sizeof head) {
		st_fail(ST_ERR_DATA, "%zu bytes, expected at least %zu", bytes, sizeof head);
		return NULL;
	}
	memcpy(&head, data, sizeof head);
	if (head.magic != RECORDER_MAGIC) {
		st_fail(ST_ERR_DATA, "not a flight recorder, or one that was not begun");
		return NULL;
	}
	if (head.version != RECORDER_VERSION || head.header_bytes != sizeof head || head.entry_bytes != sizeof(struct recorder_entry) ||
	    head.entries != RECORDER_ENTRIES) {
		st_fail(ST_ERR_DATA, "version %" PRIu32 ", this program reads %d", head.version, RECORDER_VERSION);
		return NULL;
	}
	struct recorder_header constant = head;
	constant.magic = constant.check = 0;
	if (XXH3_64bits(&constant, offsetof(struct recorder_header, state)) != head.check) {
		st_fail(ST_ERR_DATA, "damaged: its checksum does not match");
		return NULL;
	}
	if (!head.size || head.size > MAX_RANKS || head.rank >= head.size || !head.world_size || head.world_size > MAX_RANKS ||
	    head.world_rank >= head.world_size || head.size > head.world_size || head.created_wall_ns < 0 || head.created_wall_ns > INT64_MAX / 2 ||
	    head.created_ns < 0 || head.state > RECORDER_FAILED) {
		st_fail(ST_ERR_DATA, "impossible: rank %" PRIu32 " of %" PRIu32 ", in the job %" PRIu32 " of %" PRIu32, head.rank, head.size,
			head.world_rank, head.world_size);
		return NULL;
	}
	const size_t whole = (bytes - sizeof head) / sizeof(struct recorder_entry), count = whole < RECORDER_ENTRIES ? whole : RECORDER_ENTRIES;
	struct hang_file *file = calloc(1, sizeof *file);
	if (file)
		file->entries = calloc(count + 1, sizeof *file->entries);
	if (!file || !file->entries) {
		free(file);
		st_fail(ST_ERR_NOMEM, "out of memory");
		return NULL;
	}
	file->truncated = count < RECORDER_ENTRIES;
	clean(head.host, sizeof head.host);
	clean(head.job, sizeof head.job);
	clean(head.build, sizeof head.build);
	clean(head.boot, sizeof head.boot);
	clean(head.verdict, sizeof head.verdict);
	for (size_t i = 0; i < RECORDER_ALGORITHMS; i++)
		clean(head.algorithms[i], sizeof head.algorithms[i]);
	file->header = head;
	file->created_ns = file->last_ns = head.created_wall_ns;
	struct {
		int64_t *to, from;
	} times[] = {{&file->looked_ns, head.looked_ns}, {&file->left_ns, head.left_ns}, {&file->decision_ns, head.decision_ns},
		     {&file->failed_ns, head.failed_ns}};
	for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
		*times[i].to = times[i].from;
		if (!to_wall(file, times[i].to))
			*times[i].to = 0;
		newest(&file->last_ns, *times[i].to);
	}
	if (head.state == RECORDER_FAILED && !file->failed_ns)
		file->failed_ns = file->last_ns;
	for (size_t i = 0; i < count; i++) {
		struct recorder_entry entry;
		memcpy(&entry, data + sizeof head + i * sizeof entry, sizeof entry);
		if (!entry.tag && !entry.tag_again)
			continue;
		/* An entry that is not where it belongs would be there twice. */
		if (!usable(file, &entry) || (entry.tag >> 1) % RECORDER_ENTRIES != i) {
			file->torn++;
			continue;
		}
		newest(&file->last_ns, entry.issued_ns);
		newest(&file->last_ns, entry.started_ns);
		newest(&file->last_ns, entry.finished_ns);
		file->entries[file->count++] = entry;
	}
	qsort(file->entries, file->count, sizeof *file->entries, by_sequence);
	file->entered = head.issued;
	if (file->count && file->entries[file->count - 1].tag >> 1 > file->entered)
		file->entered = file->entries[file->count - 1].tag >> 1;
	return file;
}

static void free_file(struct hang_file *file)
{
	if (file)
		free(file->entries);
	free(file);
}

/* Whether its process lives, if it is this machine's. */
static void probe(struct hang_file *file, const char boot[40], uint64_t pid_namespace)
{
	const struct recorder_header *head = &file->header;
	uint64_t start_ticks;
	char state;
	if (!boot[0] || strncmp(boot, head->boot, 40) || !pid_namespace || head->pid_namespace != pid_namespace || !head->pid || !head->start_ticks)
		return;
	if (!recorder_process(head->pid, &start_ticks, &state) || start_ticks != head->start_ticks || state == 'Z' || state == 'X')
		file->process = HANG_PROCESS_GONE;
	else
		file->process = state == 'T' || state == 't' ? HANG_PROCESS_STOPPED : HANG_PROCESS_ALIVE;
}

static void keep(struct loader *loader, struct hang_file *file)
{
	if (loader->count == loader->capacity) {
		const size_t wanted = loader->capacity ? 2 * loader->capacity : 64;
		struct hang_file **more = realloc(loader->files, wanted * sizeof *more);
		if (!more) {
			loader->no_memory = true;
			free_file(file);
			return;
		}
		loader->files = more;
		loader->capacity = wanted;
	}
	loader->files[loader->count++] = file;
}

static enum st_status load_file(struct loader *loader, int directory, const char *name)
{
	char data[RECORDER_FILE_BYTES];
	struct hang_file *file = NULL;
	struct stat info;
	/* A file by name may be a link; what lies in a directory is what recorders make. */
	const int fd = openat(directory, name, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY | (directory == AT_FDCWD ? 0 : O_NOFOLLOW));
	loader->seen++;
	if (fd < 0)
		return st_fail_input(name, "can't open");
	if (fstat(fd, &info) < 0 || !S_ISREG(info.st_mode)) {
		close(fd);
		return st_fail(ST_ERR_DATA, "not a regular file");
	}
	for (int look = 0; look < LOOKS && (!file || file->torn); look++) {
		size_t bytes = 0;
		ssize_t got;
		while (bytes < sizeof data && ((got = pread(fd, data + bytes, sizeof data - bytes, (off_t)bytes)) > 0 || (got < 0 && errno == EINTR)))
			bytes += got > 0 ? (size_t)got : 0;
		free_file(file);
		file = parse(data, bytes);
		if (!file)
			break;
	}
	close(fd);
	if (!file)
		return ST_ERR_DATA;
	if (file->truncated)
		note(loader, "%.200s: cut off, %zu of %d entries used", name, file->count, RECORDER_ENTRIES);
	if (file->torn)
		note(loader, "%.200s: %zu entries were being written or make no sense, and are left out", name, file->torn);
	if (file->header.skipped)
		note(loader, "%.200s: %" PRIu64 " operations had no room beside older ones that had not ended", name, file->header.skipped);
	keep(loader, file);
	return ST_OK;
}

static enum st_status load_path(struct loader *loader, const char *path)
{
	struct stat info;
	if (stat(path, &info) < 0)
		return st_fail_input(path, "can't open");
	if (!S_ISDIR(info.st_mode)) {
		if (load_file(loader, AT_FDCWD, path) != ST_OK)
			note(loader, "%.200s: %.250s", path, st_message());
		return ST_OK;
	}
	const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *list = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *entry;
	if (!list) {
		const enum st_status status = st_fail_input(path, "can't open");
		if (fd >= 0)
			close(fd);
		return status;
	}
	while ((entry = readdir(list))) {
		const size_t length = strlen(entry->d_name), suffix = strlen(RECORDER_SUFFIX);
		if (length <= suffix || strcmp(entry->d_name + length - suffix, RECORDER_SUFFIX))
			continue;
		if (loader->seen >= MAX_FILES) {
			note(loader, "%.200s: more than %d files, the rest is left out", path, MAX_FILES);
			break;
		}
		if (load_file(loader, fd, entry->d_name) != ST_OK)
			note(loader, "%.200s: %.250s", entry->d_name, st_message());
	}
	closedir(list);
	return ST_OK;
}

/* By job, context, rank; of the same the newest first. */
static int by_place(const void *a, const void *b)
{
	const struct hang_file *x = *(struct hang_file *const *)a, *y = *(struct hang_file *const *)b;
	const int jobs = strcmp(x->header.job, y->header.job);
	if (jobs)
		return jobs;
	if (x->header.context != y->header.context)
		return x->header.context < y->header.context ? -1 : 1;
	if (x->header.world_rank != y->header.world_rank)
		return x->header.world_rank < y->header.world_rank ? -1 : 1;
	return x->created_ns > y->created_ns ? -1 : x->created_ns < y->created_ns;
}

static int by_rank(const void *a, const void *b)
{
	const struct hang_file *x = *(struct hang_file *const *)a, *y = *(struct hang_file *const *)b;
	if (x->header.world_rank != y->header.world_rank)
		return x->header.world_rank < y->header.world_rank ? -1 : 1;
	return x->header.context < y->header.context ? -1 : x->header.context > y->header.context;
}

static void add_job(struct hang_set *set, const char *job)
{
	char *more;
	if (set->other_jobs && strlen(set->other_jobs) > 1000)
		return;
	if (asprintf(&more, "%s%s%s", set->other_jobs ? set->other_jobs : "", set->other_jobs ? ", " : "", job) < 0)
		return;
	free(set->other_jobs);
	set->other_jobs = more;
}

/* Chooses the job, drops the files of others and what contradicts the newest file of a communicator. */
static void choose(struct loader *loader, const char *job, struct hang_set *set)
{
	const struct hang_file *latest = NULL;
	if (loader->count)
		qsort(loader->files, loader->count, sizeof *loader->files, by_place);
	for (size_t i = 0; i < loader->count; i++)
		if (job ? !strcmp(loader->files[i]->header.job, job) : !latest || loader->files[i]->created_ns > latest->created_ns)
			latest = loader->files[i];
	if (latest)
		snprintf(set->job, sizeof set->job, "%s", latest->header.job);
	const uint32_t world_size = latest ? latest->header.world_size : 0;
	char last_job[sizeof set->job] = "";
	size_t kept = 0;
	for (size_t i = 0; i < loader->count; i++) {
		struct hang_file *file = loader->files[i];
		const struct recorder_header *head = &file->header;
		const struct hang_file *before = kept ? set->files[kept - 1] : NULL;
		const char *other = NULL;
		if (!latest || strcmp(head->job, set->job)) {
			if (strcmp(head->job, last_job))
				add_job(set, head->job);
			snprintf(last_job, sizeof last_job, "%s", head->job);
			other = "";
		} else if (head->world_size != world_size) {
			other = "another world size than the job's newest file";
		} else if (before && before->header.context == head->context && before->header.size != head->size) {
			other = "another number of ranks than others of its communicator";
		} else if (before && before->header.context == head->context && before->header.world_rank == head->world_rank) {
			other = "an older file of the same rank";
		}
		if (!other) {
			set->files[kept++] = file;
			continue;
		}
		if (*other)
			note(loader, "rank %" PRIu32 " on %s: left out, %s", head->world_rank, head->host, other);
		free_file(file);
	}
	set->count = kept;
}

static void find_times(struct hang_set *set)
{
	set->first_failure_ns = INT64_MAX;
	for (size_t i = 0; i < set->count; i++) {
		const struct hang_file *file = set->files[i];
		set->living += file->process == HANG_PROCESS_ALIVE;
		set->live |= file->process == HANG_PROCESS_ALIVE || file->process == HANG_PROCESS_STOPPED;
		newest(&set->now_ns, file->last_ns);
		if (file->header.state == RECORDER_FAILED && file->failed_ns < set->first_failure_ns)
			set->first_failure_ns = file->failed_ns;
	}
	if (set->live)
		newest(&set->now_ns, st_wall_ns());
	/* What a rank calls when the others have failed was not called in time. */
	if (set->first_failure_ns == INT64_MAX)
		return;
	for (size_t i = 0; i < set->count; i++) {
		struct hang_file *file = set->files[i];
		while (file->entered) {
			const struct recorder_entry *entry = hang_entry(file, file->entered);
			if (!entry || entry->issued_ns <= set->first_failure_ns + FAILURE_MARGIN_NS)
				break;
			file->entered--;
		}
		/* What began to wait only then had nobody to move it on. */
		for (size_t k = 0; k < file->count; k++)
			if (file->entries[k].wait_since_ns > set->first_failure_ns + FAILURE_MARGIN_NS)
				file->entries[k].wait = 0;
	}
}

enum st_status hang_load(char *const *paths, size_t count, const char *job, struct hang_set *set)
{
	struct loader loader = {0};
	enum st_status status = ST_OK;
	char boot[40];
	uint64_t pid_namespace;

	*set = (struct hang_set){0};
	for (size_t i = 0; i < count && status == ST_OK; i++)
		status = load_path(&loader, paths[i]);
	if (status == ST_OK && loader.no_memory)
		status = st_fail(ST_ERR_NOMEM, "out of memory");
	recorder_here(boot, &pid_namespace);
	for (size_t i = 0; i < loader.count; i++)
		probe(loader.files[i], boot, pid_namespace);
	if (status == ST_OK) {
		set->files = loader.files;
		choose(&loader, job, set);
		set->by_rank = malloc((set->count + 1) * sizeof *set->by_rank);
		if (set->by_rank) {
			if (set->count) {
				memcpy(set->by_rank, set->files, set->count * sizeof *set->by_rank);
				qsort(set->by_rank, set->count, sizeof *set->by_rank, by_rank);
			}
			find_times(set);
		} else {
			status = st_fail(ST_ERR_NOMEM, "out of memory");
		}
	} else {
		for (size_t i = 0; i < loader.count; i++)
			free_file(loader.files[i]);
		free(loader.files);
	}
	if (loader.note_count > MAX_NOTES)
		loader.note_count = 0, note(&loader, "more notes are left out");
	set->notes = loader.notes;
	set->seen = loader.seen;
	if (status == ST_OK && !set->count)
		status = job && set->other_jobs ? st_fail(ST_ERR_DATA, "no flight recorder of job %.100s, have %.300s", job, set->other_jobs)
						: st_fail(ST_ERR_DATA, "%s: no usable flight recorder (*" RECORDER_SUFFIX ")", paths[0]);
	return status;
}

void hang_free(struct hang_set *set)
{
	for (size_t i = 0; i < set->count; i++)
		free_file(set->files[i]);
	free(set->files);
	free(set->by_rank);
	free(set->other_jobs);
	free(set->notes);
	*set = (struct hang_set){0};
}

const struct hang_file *hang_find(const struct hang_set *set, uint64_t context, uint32_t world_rank)
{
	size_t first = 0, last = set->count;
	while (first < last) {
		const size_t middle = first + (last - first) / 2;
		const struct recorder_header *head = &set->files[middle]->header;
		if (head->context == context && head->world_rank == world_rank)
			return set->files[middle];
		if (head->context < context || (head->context == context && head->world_rank < world_rank))
			first = middle + 1;
		else
			last = middle;
	}
	return NULL;
}

size_t hang_files_of(const struct hang_set *set, uint32_t world_rank, size_t *first)
{
	size_t low = 0, high = set->count, end;
	while (low < high) {
		const size_t middle = low + (high - low) / 2;
		if (set->by_rank[middle]->header.world_rank < world_rank)
			low = middle + 1;
		else
			high = middle;
	}
	for (end = low; end < set->count && set->by_rank[end]->header.world_rank == world_rank; end++)
		;
	*first = low;
	return end - low;
}

const struct recorder_entry *hang_entry(const struct hang_file *file, uint64_t sequence)
{
	size_t first = 0, last = file->count;
	while (first < last) {
		const size_t middle = first + (last - first) / 2;
		const uint64_t seen = file->entries[middle].tag >> 1;
		if (seen == sequence)
			return &file->entries[middle];
		if (seen < sequence)
			first = middle + 1;
		else
			last = middle;
	}
	return NULL;
}
