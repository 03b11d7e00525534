/*
 * Reads the step records of a directory.  The bytes may be anybody's: every length is checked against what is there, every
 * value against what a step can be, and what is not right is counted and skipped.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trainer/records_format.h"

#define LAUNCHES_MAX 4096u
#define PHASE_NS_MAX (INT64_C(1) << 50) /* 13 days: sums of a step's phases stay far from overflow */
#define STEP_MAX (UINT64_C(1) << 53)    /* exact in JSON */
#define WASTE_MAX (UINT64_C(1) << 30)   /* bytes read for nothing in one file */
#define NOTES_MAX 24u

/* What the reader knows of a launch beyond what it hands out. */
struct launch_state {
	uint32_t record_bytes;
	size_t host_capacity;
	size_t session_file, end_file; /* the last file (as set->files counts) with a session that is to end, and with its end; 0: none */
};

struct dropped_note {
	uint32_t launch, rank;
	uint64_t count;
};

struct reader {
	struct train_record_set *set;
	size_t record_capacity, note_bytes;
	struct launch_state *states;
	struct dropped_note *drops;
	size_t drop_count, drop_capacity;
	unsigned notes, unsaid_notes;
	uint8_t *payload;
	size_t payload_capacity;
};

/* One file on its way through. */
struct file {
	const char *name;
	FILE *stream;
	uint64_t bytes, at, waste;
	uint64_t impossible; /* records */
	bool newer_said, names_said;
};

static enum st_status no_memory(void)
{
	return st_fail(ST_ERR_NOMEM, "step records: no memory");
}

static void *grown(void *memory, size_t *capacity, size_t needed, size_t size)
{
	size_t wanted = *capacity + *capacity / 2 + 64;

	if (wanted < needed)
		wanted = needed;
	memory = reallocarray(memory, wanted, size);
	if (memory)
		*capacity = wanted;
	return memory;
}

/* Adds a line to the set's notes, with everything that is not printable ASCII as '?'. Notes that find no memory are left out. */
__attribute__((format(printf, 2, 3))) static void note(struct reader *reader, const char *format, ...)
{
	char line[512];
	va_list args;

	if (reader->notes >= NOTES_MAX) {
		reader->unsaid_notes++;
		return;
	}
	va_start(args, format);
	vsnprintf(line, sizeof line, format, args);
	va_end(args);
	for (char *p = line; *p; p++)
		if (*p < ' ' || *p > '~')
			*p = '?';
	size_t length = strlen(line);
	char *text = realloc(reader->set->notes, reader->note_bytes + length + 2);
	if (!text)
		return;
	memcpy(text + reader->note_bytes, line, length);
	reader->note_bytes += length;
	text[reader->note_bytes++] = '\n';
	text[reader->note_bytes] = 0;
	reader->set->notes = text;
	reader->notes++;
}

__attribute__((format(printf, 3, 4))) static void damaged(struct reader *reader, const struct file *file, const char *format, ...)
{
	char text[256];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	note(reader, "%.200s: %s", file->name, text);
	reader->set->damaged++;
}

/* Copies a NUL-padded name and says whether it was clean: ended, and printable ASCII. */
static bool copy_name(char *out, const char *in, size_t bytes)
{
	size_t length = strnlen(in, bytes);
	bool clean = length < bytes;

	if (!clean)
		length = bytes - 1;
	for (size_t i = 0; i < length; i++) {
		bool printable = in[i] >= ' ' && in[i] <= '~';
		out[i] = printable ? in[i] : '?';
		clean = clean && printable;
	}
	memset(out + length, 0, bytes - length);
	return clean;
}

static bool find_launch(const struct reader *reader, uint64_t id, uint32_t *index)
{
	/* From the end: files hold few launches, and the last is the one in use. */
	for (size_t i = reader->set->launch_count; i-- > 0;)
		if (reader->set->launches[i].id == id) {
			*index = (uint32_t)i;
			return true;
		}
	return false;
}

static enum st_status add_launch(struct reader *reader, uint32_t *index)
{
	struct train_record_set *set = reader->set;
	size_t n = set->launch_count;
	struct train_launch *launches = reallocarray(set->launches, n + 1, sizeof *launches);
	struct launch_state *states;

	if (!launches)
		return no_memory();
	set->launches = launches;
	states = reallocarray(reader->states, n + 1, sizeof *states);
	if (!states)
		return no_memory();
	reader->states = states;
	memset(&launches[n], 0, sizeof *launches);
	memset(&states[n], 0, sizeof *states);
	set->launch_count = n + 1;
	*index = (uint32_t)n;
	return ST_OK;
}

static enum st_status read_session(struct reader *reader, struct file *file, const struct records_block *block)
{
	struct records_session session;
	uint64_t listed = 0;
	bool clean = true;
	uint32_t index = 0;

	if (block->bytes < sizeof session) {
		damaged(reader, file, "a session header of %u bytes, at least %zu expected", block->bytes, sizeof session);
		return ST_OK;
	}
	memcpy(&session, reader->payload, sizeof session);
	if ((block->bytes - sizeof session) / sizeof(struct train_hosts) != session.host_runs ||
	    (block->bytes - sizeof session) % sizeof(struct train_hosts)) {
		damaged(reader, file, "a session header of %u bytes with %u hosts", block->bytes, session.host_runs);
		return ST_OK;
	}
	if (session.ranks < 1 || session.ranks > TRAIN_RANKS_MAX || session.record_bytes < TRAIN_RECORD_BYTES ||
	    session.record_bytes > 65536) {
		damaged(reader, file, "a session with %u ranks and records of %u bytes", session.ranks, session.record_bytes);
		return ST_OK;
	}
	if (!find_launch(reader, block->launch, &index)) {
		if (reader->set->launch_count >= LAUNCHES_MAX) {
			damaged(reader, file, "more than %u launches in one directory", LAUNCHES_MAX);
			return ST_OK;
		}
		ST_TRY(add_launch(reader, &index));
		struct train_launch *launch = &reader->set->launches[index];
		launch->id = block->launch;
		launch->wall_ns = session.wall_ns;
		launch->ranks = session.ranks;
		clean = copy_name(launch->job, session.job, sizeof launch->job) && clean;
		reader->states[index].record_bytes = session.record_bytes;
	} else if (reader->set->launches[index].ranks != session.ranks || reader->states[index].record_bytes != session.record_bytes) {
		damaged(reader, file, "a session that contradicts another of its launch");
		return ST_OK;
	}
	struct train_launch *launch = &reader->set->launches[index];
	if (session.flags & RECORDS_HAS_END && reader->states[index].session_file != reader->set->files) {
		reader->states[index].session_file = reader->set->files;
		launch->writers++;
	}
	for (uint32_t i = 0; i < session.host_runs; i++) {
		struct train_hosts run;

		memcpy(&run, reader->payload + sizeof session + i * sizeof run, sizeof run);
		listed += run.count;
		if (run.count < 1 || run.first >= session.ranks || run.count > session.ranks - run.first || listed > session.ranks) {
			damaged(reader, file, "a host table with ranks out of range");
			break;
		}
		char host[sizeof run.host];
		clean = copy_name(host, run.host, sizeof host) && clean;
		memcpy(run.host, host, sizeof host);
		if (launch->host_runs >= reader->states[index].host_capacity) {
			struct train_hosts *hosts =
				grown(launch->hosts, &reader->states[index].host_capacity, launch->host_runs + 1, sizeof *hosts);
			if (!hosts)
				return no_memory();
			launch->hosts = hosts;
		}
		launch->hosts[launch->host_runs++] = run;
	}
	char node[sizeof session.node];
	clean = copy_name(node, session.node, sizeof node) && clean;
	if (!clean && !file->names_said) {
		file->names_said = true;
		damaged(reader, file, "names with characters that no job or node has, shown as '?'");
	}
	return ST_OK;
}

static bool possible(const struct train_record *record, uint32_t ranks)
{
	if (record->rank >= ranks || record->step > STEP_MAX || record->tokens > STEP_MAX || record->reduced_bytes > STEP_MAX * 1024)
		return false;
	if (record->step_ns < 0 || record->step_ns > PHASE_NS_MAX || record->cpu_ns < 0 || record->cpu_ns > PHASE_NS_MAX * 1024 ||
	    record->runqueue_ns < 0 || record->runqueue_ns > PHASE_NS_MAX)
		return false;
	for (int p = 0; p < TRAIN_PHASE_COUNT; p++)
		if (record->phase_ns[p] < 0 || record->phase_ns[p] > PHASE_NS_MAX)
			return false;
	return true;
}

static enum st_status read_steps(struct reader *reader, struct file *file, const struct records_block *block)
{
	struct train_record_set *set = reader->set;
	uint32_t launch;

	if (!find_launch(reader, block->launch, &launch)) {
		damaged(reader, file, "records of a launch without a session header");
		return ST_OK;
	}
	size_t stride = reader->states[launch].record_bytes, count = block->bytes / stride;
	if (block->bytes % stride) {
		damaged(reader, file, "a block of %u bytes of records of %zu bytes", block->bytes, stride);
		return ST_OK;
	}
	if (reader->record_capacity - set->count < count) {
		size_t needed = set->count + count, capacity = reader->record_capacity;
		struct train_record *records = grown(set->records, &capacity, needed, sizeof *records);
		if (!records)
			return no_memory();
		set->records = records;
		uint32_t *launch_of = reallocarray(set->launch_of, capacity, sizeof *launch_of);
		if (!launch_of)
			return no_memory();
		set->launch_of = launch_of;
		reader->record_capacity = capacity;
	}
	for (size_t i = 0; i < count; i++) {
		struct train_record *record = &set->records[set->count];

		memcpy(record, reader->payload + i * stride, sizeof *record);
		if (!possible(record, set->launches[launch].ranks)) {
			file->impossible++;
			continue;
		}
		set->launch_of[set->count++] = launch;
	}
	return ST_OK;
}

static enum st_status read_dropped(struct reader *reader, struct file *file, const struct records_block *block)
{
	struct records_dropped entry;
	uint32_t launch;

	if (!find_launch(reader, block->launch, &launch)) {
		damaged(reader, file, "drop counts of a launch without a session header");
		return ST_OK;
	}
	for (size_t at = 0; at + sizeof entry <= block->bytes; at += sizeof entry) {
		memcpy(&entry, reader->payload + at, sizeof entry);
		if (entry.rank >= reader->set->launches[launch].ranks || entry.count > STEP_MAX) {
			damaged(reader, file, "an impossible drop count");
			continue;
		}
		if (reader->drop_count >= reader->drop_capacity) {
			struct dropped_note *drops = grown(reader->drops, &reader->drop_capacity, reader->drop_count + 1, sizeof *drops);
			if (!drops)
				return no_memory();
			reader->drops = drops;
		}
		reader->drops[reader->drop_count++] = (struct dropped_note){launch, entry.rank, entry.count};
	}
	return ST_OK;
}

/* Where the next magic is, at or after file->at; the end of the file when there is none. */
static void find_magic(struct file *file)
{
	static const char magic[] = RECORDS_MAGIC;
	size_t matched = 0;
	int c;

	if (fseeko(file->stream, (off_t)file->at, SEEK_SET) < 0) {
		file->at = file->bytes;
		return;
	}
	/* The magic's first letter does not come again in it, so a mismatch needs no going back. */
	while ((c = getc_unlocked(file->stream)) != EOF && file->waste < WASTE_MAX) {
		matched = c == magic[matched] ? matched + 1 : c == magic[0];
		file->at++;
		file->waste++;
		if (matched == sizeof magic - 1) {
			file->at -= matched;
			fseeko(file->stream, (off_t)file->at, SEEK_SET);
			return;
		}
	}
	file->at = file->bytes;
}

static void read_end(struct reader *reader, struct file *file, const struct records_block *block)
{
	uint32_t index;

	if (!find_launch(reader, block->launch, &index) || reader->states[index].session_file != reader->set->files)
		damaged(reader, file, "an end of a launch that did not begin in this file");
	else if (reader->states[index].end_file != reader->set->files) {
		reader->states[index].end_file = reader->set->files;
		reader->set->launches[index].ended++;
	}
}

static bool read_payload(struct reader *reader, struct file *file, const struct records_block *block, enum st_status *status)
{
	if (reader->payload_capacity < block->bytes) {
		uint8_t *payload = realloc(reader->payload, block->bytes);
		if (!payload) {
			*status = no_memory();
			return false;
		}
		reader->payload = payload;
		reader->payload_capacity = block->bytes;
	}
	return fread(reader->payload, 1, block->bytes, file->stream) == block->bytes;
}

/* One block at file->at, which moves behind it. False: there is no whole, sound block there. */
static bool read_block(struct reader *reader, struct file *file, enum st_status *status)
{
	struct records_block block;
	uint64_t left = file->bytes - file->at;

	if (left < sizeof block) {
		damaged(reader, file, "ends inside a block");
		return false;
	}
	if (fread(&block, sizeof block, 1, file->stream) != 1) {
		damaged(reader, file, "can't be read at byte %llu", (unsigned long long)file->at);
		return false;
	}
	if (memcmp(block.magic, RECORDS_MAGIC, sizeof block.magic)) {
		damaged(reader, file, file->at ? "no block at byte %llu" : "does not start as a record file", (unsigned long long)file->at);
		return false;
	}
	/* The writer's largest block is the host table of a job with the most ranks. */
	if (block.bytes > left - sizeof block || block.bytes > sizeof(struct records_session) + TRAIN_RANKS_MAX * sizeof(struct train_hosts)) {
		damaged(reader, file, "a block of %u bytes at byte %llu of %llu", block.bytes, (unsigned long long)file->at,
			(unsigned long long)file->bytes);
		return false;
	}
	/* What a failing block costs counts as waste even when it is short, so that no file can be slow for its size. */
	file->waste += block.bytes + 4096;
	if (!read_payload(reader, file, &block, status)) {
		if (*status == ST_OK)
			damaged(reader, file, "can't be read at byte %llu", (unsigned long long)file->at);
		return false;
	}
	if (!train_records_sealed(&block, reader->payload)) {
		damaged(reader, file, "wrong checksum in the block at byte %llu", (unsigned long long)file->at);
		return false;
	}
	file->waste -= block.bytes + 4096;
	file->at += sizeof block + block.bytes;
	if (block.version != RECORDS_VERSION) {
		reader->set->damaged++;
		if (!file->newer_said)
			note(reader, "%.200s: version %u, this program reads %d", file->name, block.version, RECORDS_VERSION);
		file->newer_said = true;
	} else if (block.kind == RECORDS_SESSION) {
		*status = read_session(reader, file, &block);
	} else if (block.kind == RECORDS_STEPS) {
		*status = read_steps(reader, file, &block);
	} else if (block.kind == RECORDS_DROPPED) {
		*status = read_dropped(reader, file, &block);
	} else if (block.kind == RECORDS_END) {
		read_end(reader, file, &block);
	} else {
		damaged(reader, file, "a block of unknown kind %u", block.kind);
	}
	return true;
}

static enum st_status read_file(struct reader *reader, int directory, const char *name)
{
	struct file file = {.name = name};
	enum st_status status = ST_OK;
	struct stat info;
	/* Non-blocking, so that a FIFO of that name does not hold us. */
	int fd = openat(directory, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);

	if (fd < 0) {
		damaged(reader, &file, "can't be opened: %s", strerror(errno));
		return ST_OK;
	}
	if (fstat(fd, &info) < 0 || !S_ISREG(info.st_mode)) {
		damaged(reader, &file, "is no regular file");
		close(fd);
		return ST_OK;
	}
	file.stream = fdopen(fd, "r");
	if (!file.stream) {
		close(fd);
		return no_memory();
	}
	setvbuf(file.stream, NULL, _IOFBF, 256 * 1024);
	file.bytes = (uint64_t)info.st_size;
	reader->set->files++;
	while (file.at < file.bytes && status == ST_OK) {
		if (read_block(reader, &file, &status) || status != ST_OK)
			continue;
		if (file.waste >= WASTE_MAX || file.waste >= 2 * file.bytes + (64 << 20)) {
			damaged(reader, &file, "too damaged to go on at byte %llu", (unsigned long long)file.at);
			break;
		}
		file.at++;
		find_magic(&file);
	}
	if (file.impossible) {
		note(reader, "%.200s: %llu records with impossible values", name, (unsigned long long)file.impossible);
		reader->set->damaged += file.impossible;
	}
	fclose(file.stream);
	return status;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool is_record_file(const char *name)
{
	size_t length = strlen(name);

	return length > 10 && !strncmp(name, "steps-", 6) && !strcmp(name + length - 4, ".rec");
}

static enum st_status read_directory(struct reader *reader, const char *path)
{
	DIR *directory = opendir(path);
	char **names = NULL;
	size_t count = 0, capacity = 0;
	enum st_status status = ST_OK;
	struct dirent *entry;

	if (!directory && (errno == ENOENT || errno == ENOTDIR))
		return st_fail(ST_ERR_NOINPUT, "%s: no such directory", path);
	if (!directory)
		return st_fail_errno("%s: can't open directory", path);
	while (errno = 0, status == ST_OK && (entry = readdir(directory))) {
		if (!is_record_file(entry->d_name))
			continue;
		if (count >= capacity) {
			char **more = grown(names, &capacity, count + 1, sizeof *names);
			if (!more) {
				status = no_memory();
				break;
			}
			names = more;
		}
		names[count] = strdup(entry->d_name);
		if (names[count])
			count++;
		else
			status = no_memory();
	}
	if (status == ST_OK && errno)
		status = st_fail_errno("%s: can't read directory", path);
	if (count)
		qsort(names, count, sizeof *names, by_name);
	for (size_t i = 0; i < count; i++) {
		if (status == ST_OK)
			status = read_file(reader, dirfd(directory), names[i]);
		free(names[i]);
	}
	free(names);
	closedir(directory);
	return status;
}

static int by_launch_and_rank(const void *a, const void *b)
{
	const struct dropped_note *x = a, *y = b;

	if (x->launch != y->launch)
		return x->launch < y->launch ? -1 : 1;
	if (x->rank != y->rank)
		return x->rank < y->rank ? -1 : 1;
	return x->count < y->count ? -1 : x->count > y->count;
}

static void sum_dropped(struct reader *reader)
{
	if (reader->drop_count)
		qsort(reader->drops, reader->drop_count, sizeof *reader->drops, by_launch_and_rank);
	for (size_t i = 0; i < reader->drop_count; i++) {
		const struct dropped_note *d = &reader->drops[i];
		/* Counts only grow: the last of a rank is the highest. */
		if (i + 1 < reader->drop_count && d[1].launch == d->launch && d[1].rank == d->rank)
			continue;
		reader->set->launches[d->launch].dropped += d->count;
		reader->set->dropped += d->count;
	}
}

static int by_first_rank(const void *a, const void *b)
{
	const struct train_hosts *x = a, *y = b;

	return x->first < y->first ? -1 : x->first > y->first;
}

static int by_wall_time(const void *a, const void *b, void *context)
{
	const struct train_launch *launches = context, *x = &launches[*(const uint32_t *)a], *y = &launches[*(const uint32_t *)b];

	if (x->wall_ns != y->wall_ns)
		return x->wall_ns < y->wall_ns ? -1 : 1;
	return x->id < y->id ? -1 : x->id > y->id;
}

/* Puts launches in the order in which they started and renumbers what points to them. */
static enum st_status order_launches(struct train_record_set *set)
{
	size_t n = set->launch_count;
	uint32_t *order = calloc(n + 1, sizeof *order), *place = calloc(n + 1, sizeof *place);
	struct train_launch *launches = calloc(n + 1, sizeof *launches);
	enum st_status status = ST_OK;

	if (!order || !place || !launches) {
		status = no_memory();
		goto free_tables;
	}
	for (uint32_t i = 0; i < n; i++)
		order[i] = i;
	qsort_r(order, n, sizeof *order, by_wall_time, set->launches);
	for (uint32_t i = 0; i < n; i++) {
		launches[i] = set->launches[order[i]];
		place[order[i]] = i;
		if (launches[i].host_runs)
			qsort(launches[i].hosts, launches[i].host_runs, sizeof *launches[i].hosts, by_first_rank);
	}
	for (size_t i = 0; i < set->count; i++)
		set->launch_of[i] = place[set->launch_of[i]];
	struct train_launch *before = set->launches;
	set->launches = launches;
	launches = before;
free_tables:
	free(order);
	free(place);
	free(launches);
	return status;
}

struct key {
	uint64_t step;
	uint32_t rank, launch;
	size_t index; /* in reading order */
};

static int by_key(const void *a, const void *b)
{
	const struct key *x = a, *y = b;

	if (x->step != y->step)
		return x->step < y->step ? -1 : 1;
	if (x->rank != y->rank)
		return x->rank < y->rank ? -1 : 1;
	if (x->launch != y->launch)
		return x->launch < y->launch ? -1 : 1;
	return x->index < y->index ? -1 : 1;
}

/* Sorts by (step, rank, launch, reading order): small keys are sorted, then each record moves once. */
static enum st_status sort_records(struct train_record_set *set)
{
	struct key *keys = reallocarray(NULL, set->count + 1, sizeof *keys);
	bool sorted = true;

	if (!keys)
		return no_memory();
	for (size_t i = 0; i < set->count; i++) {
		keys[i] = (struct key){set->records[i].step, set->records[i].rank, set->launch_of[i], i};
		sorted = sorted && (!i || by_key(&keys[i - 1], &keys[i]) < 0);
	}
	if (!sorted)
		qsort(keys, set->count, sizeof *keys, by_key);
	for (size_t i = 0; i < set->count && !sorted; i++) {
		struct train_record record;
		size_t to = i;

		if (keys[i].index == i)
			continue;
		/* Walk the cycle through i; places done point to themselves. */
		record = set->records[i];
		while (keys[to].index != i) {
			size_t from = keys[to].index;
			set->records[to] = set->records[from];
			keys[to].index = to;
			to = from;
		}
		set->records[to] = record;
		keys[to].index = to;
	}
	for (size_t i = 0; i < set->count; i++)
		set->launch_of[i] = keys[i].launch;
	free(keys);
	return ST_OK;
}

/* Keeps of every step the launch that did it last, and of a rank's records in it the one written last. */
static void keep_last(struct train_record_set *set)
{
	size_t kept = 0;

	for (size_t begin = 0, end; begin < set->count; begin = end) {
		uint32_t last = 0;

		for (end = begin; end < set->count && set->records[end].step == set->records[begin].step; end++)
			if (set->launch_of[end] > last)
				last = set->launch_of[end];
		for (size_t i = begin; i < end; i++) {
			if (set->launch_of[i] != last || (i + 1 < end && set->records[i + 1].rank == set->records[i].rank)) {
				set->superseded++;
				continue;
			}
			set->launches[last].records++;
			set->records[kept] = set->records[i];
			set->launch_of[kept++] = last;
		}
	}
	set->count = kept;
}

const char *train_launch_host(const struct train_launch *launch, uint32_t rank)
{
	size_t low = 0, high = launch->host_runs;

	/* The last run that begins at or before rank. */
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		if (launch->hosts[middle].first <= rank)
			low = middle + 1;
		else
			high = middle;
	}
	if (!low || rank - launch->hosts[low - 1].first >= launch->hosts[low - 1].count)
		return "";
	return launch->hosts[low - 1].host;
}

static enum st_status name_hosts(struct train_record_set *set)
{
	const struct train_launch *launch = NULL;

	for (size_t i = 0; i < set->count; i++)
		if (set->records[i].rank >= set->ranks)
			set->ranks = set->records[i].rank + 1;
	for (size_t i = 0; i < set->launch_count; i++)
		if (set->launches[i].records)
			launch = &set->launches[i];
	if (!launch)
		return ST_OK;
	memcpy(set->job, launch->job, sizeof set->job);
	set->hosts = calloc(set->ranks, sizeof *set->hosts);
	if (!set->hosts)
		return no_memory();
	for (uint32_t r = 0; r < set->ranks; r++)
		memccpy(set->hosts[r], train_launch_host(launch, r), 0, sizeof set->hosts[r]);
	return ST_OK;
}

enum st_status train_records_load(const char *directory, struct train_record_set *set)
{
	struct reader reader = {.set = set};
	enum st_status status;

	memset(set, 0, sizeof *set);
	status = read_directory(&reader, directory);
	if (status == ST_OK) {
		sum_dropped(&reader);
		status = order_launches(set);
	}
	if (status == ST_OK)
		status = sort_records(set);
	if (status == ST_OK) {
		keep_last(set);
		status = name_hosts(set);
	}
	for (size_t i = 0; status == ST_OK && i < set->launch_count; i++) {
		const struct train_launch *launch = &set->launches[i];
		if (launch->ended < launch->writers)
			note(&reader, "launch %zu of %zu has no end in the files of %u of its %u nodes: killed there, or still running", i + 1, set->launch_count,
			     launch->writers - launch->ended, launch->writers);
	}
	if (reader.unsaid_notes) {
		unsigned more = reader.unsaid_notes;
		reader.notes = 0;
		note(&reader, "%u more notes", more);
	}
	free(reader.states);
	free(reader.drops);
	free(reader.payload);
	if (status != ST_OK)
		train_records_free(set);
	return status;
}

void train_records_free(struct train_record_set *set)
{
	for (size_t i = 0; i < set->launch_count; i++)
		free(set->launches[i].hosts);
	free(set->launches);
	free(set->records);
	free(set->launch_of);
	free(set->hosts);
	free(set->notes);
	memset(set, 0, sizeof *set);
}
