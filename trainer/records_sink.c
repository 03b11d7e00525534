/* The writer's file: blocks that are built in memory and appended whole, sooner or later or never. */
#include "trainer/records_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/io.h"
#include "common/log.h"

enum {
	FLUSH_MS = 500,            /* how long a record may lie here; on top comes the ring's 100 ms */
	RETRY_MS = 1000,
	DIRECTORY_RETRY_MS = 50,
	DIRECTORY_GRACE_MS = 60000 /* a network file system may show rank 0's new directory to other nodes that late */
};

/* A block on its way out. */
struct buffer {
	uint8_t *data;
	size_t bytes, written; /* bytes 0: nothing to write; written > 0: begun, so it must not change any more */
};

struct local_rank {
	uint32_t rank;
	uint64_t dropped, dropped_saved;
};

struct records_sink {
	char *directory, *path;
	bool make_directory;
	int fd;
	bool was_open, warned, wrote;
	uint64_t launch;
	int64_t created_ns, retry_ns, oldest_ns; /* oldest_ns: when the oldest unwritten thing came, 0: nothing waits */
	struct buffer session, steps, drops;
	size_t staged; /* records in steps */
	struct local_rank *locals;
	size_t local_count;
};

static struct train_hosts *host_runs(const struct records_setup *setup, size_t *count)
{
	const char *mine = setup->hosts[setup->rank];
	/* Rank 0's file tells where every rank is, so that the reader knows of nodes that left no file; the other files of a
	 * large job need not repeat it. */
	bool all = setup->rank == 0;
	struct train_hosts *runs;
	size_t used = 0, needed = 0;

	for (int fill = 0; fill < 2; fill++) {
		used = 0;
		runs = fill ? calloc(needed, sizeof *runs) : NULL;
		if (fill && !runs)
			return NULL;
		for (uint32_t r = 0; r < setup->size; r++) {
			if (!all && strcmp(setup->hosts[r], mine))
				continue;
			bool joins = r > 0 && used > 0 && !strcmp(setup->hosts[r], setup->hosts[r - 1]);
			if (!joins)
				used++;
			if (!fill)
				continue;
			struct train_hosts *run = &runs[used - 1];
			if (!joins) {
				run->first = r;
				snprintf(run->host, sizeof run->host, "%s", setup->hosts[r]);
			}
			run->count++;
		}
		needed = used;
	}
	*count = used;
	return runs;
}

static enum st_status make_session(struct records_sink *sink, const struct records_setup *setup)
{
	size_t runs;
	struct train_hosts *hosts = host_runs(setup, &runs);
	size_t payload = sizeof(struct records_session) + runs * sizeof *hosts;

	sink->session.data = hosts ? calloc(1, sizeof(struct records_block) + payload) : NULL;
	if (!sink->session.data) {
		free(hosts);
		return st_fail(ST_ERR_NOMEM, "step records: no memory for the table of %u ranks", setup->size);
	}
	struct records_block *block = (struct records_block *)sink->session.data;
	struct records_session session = {
		.wall_ns = setup->wall_ns,
		.record_bytes = TRAIN_RECORD_BYTES,
		.ranks = setup->size,
		.host_runs = (uint32_t)runs,
		.flags = RECORDS_HAS_END,
	};
	snprintf(session.job, sizeof session.job, "%s", setup->run);
	snprintf(session.node, sizeof session.node, "%s", setup->hosts[setup->rank]);
	memcpy(block + 1, &session, sizeof session);
	memcpy((uint8_t *)(block + 1) + sizeof session, hosts, runs * sizeof *hosts);
	free(hosts);
	train_records_seal(block, RECORDS_SESSION, setup->launch, payload);
	sink->session.bytes = sizeof *block + payload;
	return ST_OK;
}

enum st_status records_sink_create(const struct records_setup *setup, struct records_sink **out)
{
	struct records_sink *sink = calloc(1, sizeof *sink);
	char name[RECORDS_NAME_BYTES];
	enum st_status status = ST_OK;

	if (!sink)
		return st_fail(ST_ERR_NOMEM, "step records: no memory for the writer");
	sink->fd = -1;
	sink->launch = setup->launch;
	sink->created_ns = st_now_ns();
	sink->make_directory = setup->rank == 0;
	for (uint32_t r = 0; r < setup->size; r++)
		sink->local_count += !strcmp(setup->hosts[r], setup->hosts[setup->rank]);
	train_records_name(setup->run, setup->hosts[setup->rank], name);
	sink->directory = strdup(setup->directory);
	if (asprintf(&sink->path, "%s/%s", setup->directory, name) < 0)
		sink->path = NULL;
	sink->locals = calloc(sink->local_count, sizeof *sink->locals);
	sink->steps.data = calloc(1, sizeof(struct records_block) + RECORDS_STEPS_MAX * sizeof(struct train_record));
	sink->drops.data = calloc(1, sizeof(struct records_block) + sink->local_count * sizeof(struct records_dropped));
	if (!sink->directory || !sink->path || !sink->locals || !sink->steps.data || !sink->drops.data)
		status = st_fail(ST_ERR_NOMEM, "step records: no memory for the writer");
	if (status == ST_OK)
		status = make_session(sink, setup);
	if (status != ST_OK) {
		records_sink_free(sink);
		return status;
	}
	for (uint32_t r = 0, i = 0; r < setup->size; r++)
		if (!strcmp(setup->hosts[r], setup->hosts[setup->rank]))
			sink->locals[i++].rank = r;
	*out = sink;
	return ST_OK;
}

void records_sink_free(struct records_sink *sink)
{
	if (!sink)
		return;
	if (sink->fd >= 0)
		close(sink->fd);
	free(sink->directory);
	free(sink->path);
	free(sink->session.data);
	free(sink->steps.data);
	free(sink->drops.data);
	free(sink->locals);
	free(sink);
}

bool records_sink_ready(const struct records_sink *sink)
{
	return !sink->steps.written && sink->staged < RECORDS_STEPS_MAX;
}

void records_sink_put(struct records_sink *sink, const struct train_record *record, int64_t now_ns)
{
	memcpy(sink->steps.data + sizeof(struct records_block) + sink->staged * sizeof *record, record, sizeof *record);
	sink->staged++;
	if (!sink->oldest_ns)
		sink->oldest_ns = now_ns;
}

void records_sink_dropped(struct records_sink *sink, uint32_t rank, uint64_t count, int64_t now_ns)
{
	for (size_t i = 0; i < sink->local_count; i++) {
		struct local_rank *local = &sink->locals[i];
		if (local->rank != rank || count <= local->dropped)
			continue;
		local->dropped = count;
		if (!sink->oldest_ns)
			sink->oldest_ns = now_ns;
	}
}

bool records_sink_due(const struct records_sink *sink, int64_t now_ns)
{
	return sink->oldest_ns && now_ns - sink->oldest_ns >= FLUSH_MS * ST_NS_PER_MS && now_ns >= sink->retry_ns;
}

static bool failed(struct records_sink *sink, int64_t now_ns, const char *what, int error)
{
	sink->retry_ns = now_ns + RETRY_MS * ST_NS_PER_MS;
	/* Rank 0 is still about to make the directory. */
	if (error == ENOENT && !sink->was_open && now_ns - sink->created_ns < DIRECTORY_GRACE_MS * ST_NS_PER_MS) {
		sink->retry_ns = now_ns + DIRECTORY_RETRY_MS * ST_NS_PER_MS;
		return false;
	}
	if (!sink->warned)
		st_log(ST_LOG_WARN, "step records: %s: %s: %s; steps go on, records are kept while there is room and then dropped",
		       sink->path, what, strerror(error));
	sink->warned = true;
	return false;
}

/* The file was replaced, or its tail is unknown: whoever reads on from there must find everything anew. */
static void start_over(struct records_sink *sink)
{
	if (sink->fd >= 0)
		close(sink->fd);
	sink->fd = -1;
	sink->session.written = sink->steps.written = sink->drops.written = 0;
	sink->drops.bytes = 0;
	for (size_t i = 0; i < sink->local_count; i++)
		sink->locals[i].dropped_saved = 0;
}

static bool make_directory(struct records_sink *sink, int64_t now_ns)
{
	if (st_make_directories(sink->directory, 0777) == ST_OK)
		return true;
	if (!sink->warned)
		st_log(ST_LOG_WARN, "step records: %s; steps go on, records are kept while there is room and then dropped", st_message());
	sink->warned = true;
	sink->retry_ns = now_ns + RETRY_MS * ST_NS_PER_MS;
	return false;
}

void records_sink_prepare(struct records_sink *sink, int64_t now_ns)
{
	/* A rank 0 whose file can't be opened there is told so now, not when the first records are due. */
	if (sink->make_directory && make_directory(sink, now_ns) && access(sink->directory, W_OK | X_OK) < 0)
		failed(sink, now_ns, "can't write into its directory", errno);
}

bool records_sink_wrote(const struct records_sink *sink)
{
	return sink->wrote;
}

static bool open_file(struct records_sink *sink, int64_t now_ns)
{
	struct stat info;

	if (sink->fd >= 0) {
		/* Somebody removed the file: go on in a new one rather than into nowhere. */
		if (fstat(sink->fd, &info) == 0 && info.st_nlink > 0)
			return true;
		start_over(sink);
	}
	if (sink->make_directory && !sink->was_open && !make_directory(sink, now_ns))
		return false;
	sink->fd = open(sink->path, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY, 0644);
	if (sink->fd < 0)
		return failed(sink, now_ns, "can't open", errno);
	sink->was_open = true;
	return true;
}

static bool write_buffer(struct records_sink *sink, struct buffer *buffer, int64_t now_ns)
{
	while (buffer->written < buffer->bytes) {
		ssize_t n = write(sink->fd, buffer->data + buffer->written, buffer->bytes - buffer->written);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			int error = n < 0 ? errno : EIO;
			/* With a full disk the file is fine and the rest may follow; after anything else nothing is sure. */
			if (error != ENOSPC && error != EDQUOT && error != EFBIG && error != EAGAIN)
				start_over(sink);
			return failed(sink, now_ns, "can't write", error);
		}
		buffer->written += (size_t)n;
	}
	return true;
}

static void seal_drops(struct records_sink *sink)
{
	struct records_block *block = (struct records_block *)sink->drops.data;
	struct records_dropped *entries = (struct records_dropped *)(block + 1);
	size_t count = 0;

	for (size_t i = 0; i < sink->local_count; i++) {
		struct local_rank *local = &sink->locals[i];
		if (local->dropped == local->dropped_saved)
			continue;
		entries[count++] = (struct records_dropped){.rank = local->rank, .count = local->dropped};
		local->dropped_saved = local->dropped;
	}
	if (!count)
		return;
	train_records_seal(block, RECORDS_DROPPED, sink->launch, count * sizeof *entries);
	sink->drops.bytes = sizeof *block + count * sizeof *entries;
}

bool records_sink_flush(struct records_sink *sink, int64_t now_ns)
{
	if (now_ns < sink->retry_ns || !open_file(sink, now_ns))
		return false;
	/* The session's block stays: it opens the next file too. */
	if (!write_buffer(sink, &sink->session, now_ns))
		return false;
	if (sink->staged && !sink->steps.written) {
		struct records_block *block = (struct records_block *)sink->steps.data;
		train_records_seal(block, RECORDS_STEPS, sink->launch, sink->staged * sizeof(struct train_record));
		sink->steps.bytes = sizeof *block + block->bytes;
	}
	/* A block that was begun comes first, or the other would lie in its middle. */
	if (sink->drops.written && !write_buffer(sink, &sink->drops, now_ns))
		return false;
	if (!write_buffer(sink, &sink->steps, now_ns))
		return false;
	sink->wrote = sink->wrote || sink->staged;
	sink->steps.bytes = sink->steps.written = sink->staged = 0;
	if (sink->drops.written == sink->drops.bytes) {
		sink->drops.bytes = sink->drops.written = 0;
		seal_drops(sink);
	}
	if (!write_buffer(sink, &sink->drops, now_ns))
		return false;
	sink->drops.bytes = sink->drops.written = 0;
	sink->oldest_ns = 0;
	return true;
}

void records_sink_end(struct records_sink *sink)
{
	struct records_block *block = (struct records_block *)sink->drops.data;
	/* Without a session there is nothing to end, and in the middle of another block it would be lost. */
	if (sink->fd < 0 || sink->session.written != sink->session.bytes || sink->steps.written || sink->drops.written)
		return;
	train_records_seal(block, RECORDS_END, sink->launch, 0);
	sink->drops.bytes = sizeof *block;
	write_buffer(sink, &sink->drops, st_now_ns());
}

int64_t records_sink_retry_ns(const struct records_sink *sink)
{
	return sink->retry_ns;
}

size_t records_sink_discard(struct records_sink *sink)
{
	size_t lost = sink->staged;

	if (lost && !sink->warned)
		st_log(ST_LOG_WARN, "step records: %s: could not be written before the end: %zu records are lost", sink->path, lost);
	sink->warned = sink->warned || lost;
	sink->staged = sink->steps.bytes = sink->steps.written = 0;
	return lost;
}
