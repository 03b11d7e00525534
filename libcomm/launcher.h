/*
 * The parts of `synctrain run`: ranks on this machine under a PMIx server of our own.
 *
 *   cmd_run.c          the command: options, the loop, who failed first
 *   launcher_pmix.c    the PMIx server
 *   launcher_guard.c   the private session directory, and a process that cleans up should the launcher be killed
 *   launcher_output.c  line-wise output with a prefix
 *   launcher_spawn.c   program, environment, fork
 */
#ifndef SYNCTRAIN_LIBCOMM_LAUNCHER_H
#define SYNCTRAIN_LIBCOMM_LAUNCHER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/status.h"

struct launcher_layout {
	uint32_t size;
	uint32_t nodes; /* 1, or how many nodes to pretend */
};

/* Rank r's node, and its place there. Ranks are dealt out in blocks that differ by at most one. */
uint32_t launcher_node_of(const struct launcher_layout *layout, uint32_t rank);
uint32_t launcher_local_rank(const struct launcher_layout *layout, uint32_t rank);
uint32_t launcher_local_size(const struct launcher_layout *layout, uint32_t node);
/* "node0", "node1", ... when nodes are pretended, else this machine's name. */
void launcher_node_name(const struct launcher_layout *layout, uint32_t node, char *name, size_t bytes);

/* ---- launcher_guard.c ---------------------------------------------------------------------------------------------- */

struct launcher_guard {
	pid_t pid;
	int fd;        /* what is written here is what the guard knows; its end is the launcher's end */
	int directory_lock;
	char directory[256];
};

/* Makes a directory of mode 0700 under TMPDIR (or /tmp), removes those of dead launchers of this user, starts the guard.  To be called
 * while the process has one thread. */
enum st_status launcher_guard_start(struct launcher_guard *guard);
/* A process group to be killed with the launcher, or no longer. */
void launcher_guard_add(struct launcher_guard *guard, pid_t group);
void launcher_guard_remove(struct launcher_guard *guard, pid_t group);
/* Removes the directory and ends the guard. May be called when start failed. */
void launcher_guard_end(struct launcher_guard *guard);

/* ---- launcher_pmix.c ----------------------------------------------------------------------------------------------- */

/* Starts the server with its files in `directory` and registers the ranks. One per process, as PMIx has it. */
enum st_status launcher_server_start(const struct launcher_layout *layout, const char *directory);
/* The job's name, "" before that. */
const char *launcher_server_job(void);
/* Adds what rank's PMIx client needs to *environment (malloc'ed strings in a malloc'ed, NULL-terminated array). */
enum st_status launcher_server_environment(uint32_t rank, char ***environment);
/* Whether a rank asked for the end of the job (PMIx_Abort), and with which status. */
bool launcher_server_aborted(int *status);
/* Ends it; waits at most two seconds for the library. */
void launcher_server_stop(void);

/* ---- launcher_output.c --------------------------------------------------------------------------------------------- */

/* One of the launcher's own outputs, fed by many ranks. */
struct launcher_sink {
	int fd;
	char *data;
	size_t begin, end, capacity;
	bool broken; /* nobody reads any more: the rest is dropped */
};

/* One pipe of one rank. */
struct launcher_stream {
	int fd; /* -1: at its end */
	struct launcher_sink *sink;
	char prefix[16]; /* "[3] " or "" */
	char *line;      /* what came after the last newline */
	size_t length, capacity;
};

/* Reads what there is and passes whole lines on; closes at the end of file, passing on an unfinished line with a newline added. */
void launcher_stream_read(struct launcher_stream *stream);
void launcher_stream_end(struct launcher_stream *stream);
/* Writes without blocking for long (call when poll says writable). */
void launcher_sink_write(struct launcher_sink *sink);
/* Full: stop reading from the ranks until it drains. */
bool launcher_sink_full(const struct launcher_sink *sink);

/* ---- launcher_spawn.c ---------------------------------------------------------------------------------------------- */

/* The program's path as execvp would find it. ST_ERR_UNAVAILABLE: not found; ST_ERR_PERMISSION: found but not executable. */
enum st_status launcher_find_program(const char *name, char *path, size_t bytes);

/* Starts a rank in a process group of its own, which dies with the launcher; output goes to the returned pipe ends. */
enum st_status launcher_spawn(const struct launcher_layout *layout, uint32_t rank, const char *path, char **argv, pid_t *pid, int *out, int *err);

#endif
