#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "launcher.h"

#define LONGEST_LINE ((size_t)65536)
#define SINK_FULL ((size_t)1 << 20)

static bool reserve(char **data, size_t *capacity, size_t wanted)
{
	if (wanted <= *capacity)
		return true;
	size_t larger_capacity = wanted * 2;
	char *larger = realloc(*data, larger_capacity);
	if (!larger)
		return false;
	*data = larger;
	*capacity = larger_capacity;
	return true;
}

bool launcher_sink_full(const struct launcher_sink *sink)
{
	return !sink->broken && sink->end - sink->begin >= SINK_FULL;
}

static void put(struct launcher_sink *sink, const char *data, size_t bytes)
{
	if (sink->broken)
		return;
	if (sink->begin > 0) {
		memmove(sink->data, sink->data + sink->begin, sink->end - sink->begin);
		sink->end -= sink->begin;
		sink->begin = 0;
	}
	/* Without memory for it, output is dropped: ranks must not die of that. */
	if (!reserve(&sink->data, &sink->capacity, sink->end + bytes))
		return;
	memcpy(sink->data + sink->end, data, bytes);
	sink->end += bytes;
}

void launcher_sink_write(struct launcher_sink *sink)
{
	while (sink->begin < sink->end) {
		/* The descriptor may be shared with other programs, so it is not made non-blocking; a pipe that poll() calls
		 * writable takes PIPE_BUF bytes without blocking. */
		size_t bytes = sink->end - sink->begin;
		ssize_t n = write(sink->fd, sink->data + sink->begin, bytes < PIPE_BUF ? bytes : PIPE_BUF);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return;
		if (n < 0) {
			sink->broken = true;
			sink->begin = sink->end = 0;
			return;
		}
		sink->begin += (size_t)n;
		return;
	}
}

static void pass_on(struct launcher_stream *stream, const char *text, size_t bytes, bool add_newline)
{
	put(stream->sink, stream->prefix, strlen(stream->prefix));
	put(stream->sink, text, bytes);
	if (add_newline)
		put(stream->sink, "\n", 1);
}

static void pass_whole_lines(struct launcher_stream *stream)
{
	size_t begin = 0;

	for (;;) {
		char *newline = memchr(stream->line + begin, '\n', stream->length - begin);
		if (!newline)
			break;
		size_t end = (size_t)(newline - stream->line) + 1;
		pass_on(stream, stream->line + begin, end - begin, false);
		begin = end;
	}
	/* A line that never ends is cut: others wait for their turn, and memory is finite. */
	if (stream->length - begin >= LONGEST_LINE) {
		pass_on(stream, stream->line + begin, stream->length - begin, true);
		begin = stream->length;
	}
	memmove(stream->line, stream->line + begin, stream->length - begin);
	stream->length -= begin;
}

void launcher_stream_end(struct launcher_stream *stream)
{
	if (stream->fd >= 0)
		close(stream->fd);
	stream->fd = -1;
	if (stream->length)
		pass_on(stream, stream->line, stream->length, true);
	free(stream->line);
	stream->line = NULL;
	stream->length = stream->capacity = 0;
}

void launcher_stream_read(struct launcher_stream *stream)
{
	char piece[16384];
	ssize_t n = read(stream->fd, piece, sizeof piece);

	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return;
	if (n <= 0) {
		launcher_stream_end(stream);
		return;
	}
	if (!reserve(&stream->line, &stream->capacity, stream->length + (size_t)n))
		return;
	memcpy(stream->line + stream->length, piece, (size_t)n);
	stream->length += (size_t)n;
	pass_whole_lines(stream);
}
