/*
 * The flight recorder: what a rank's operations are doing, in a file that outlives the process.
 *
 * A communicator of more than one rank keeps its last operations in a mapped file DIRECTORY/<job>.<context>.<rank>.flight; after a kill, a
 * crash or a failure, and while the job hangs, `synctrain report --hang DIRECTORY` reads the files of all or some ranks and names who held the
 * others up.  An operation costs some stores into the mapping and two reads of a coarse clock in the vDSO: no system call.  (Where the
 * directory lies on a disk, the kernel may make a store wait when it writes the page back; a tmpfs never does.)
 *
 * DIRECTORY is SYNCTRAIN_RECORDER ("off": no recorder); unset, ${TMPDIR:-/tmp}/synctrain-recorder-UID, which is made with mode 0700 and must belong
 * to this user and to nobody else, and goes with its last file.  Files have mode 0600, are never opened through a link, and go in an orderly comm_free; what failures leave is
 * kept up to a number of files, of which the oldest are removed by later jobs of the same user.
 *
 * A recorder is never a reason to fail: what goes wrong is one warning, and the job goes on without.  Calls with a NULL recorder do
 * nothing.  Calls are made one at a time (under the engine's lock), except recorder_enter_decision and recorder_leave_decision, which may come
 * beside the others from one thread.
 */
#ifndef SYNCTRAIN_LIBCOMM_RECORDER_H
#define SYNCTRAIN_LIBCOMM_RECORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"
#include "recorder_format.h"

struct plan;
struct recorder;
struct transport_signature;

struct recorder_options {
	const char *job, *host;
	uint64_t context;
	uint32_t rank, size, world_rank, world_size;
	const uint32_t *world_ranks; /* (size): the job's rank of each rank of the communicator, borrowed; NULL: the same */
	int64_t stall_timeout_ms, arrival_timeout_ms;
	bool helper;                 /* a helper thread moves operations on */
	bool prunes;                 /* one rank of each node: removes files of earlier jobs when there are too many */
};

/* NULL when there is none: it is off, or could not be made, which is one warning. Blocks as the file system does. */
struct recorder *recorder_open(const struct recorder_options *options);

/* The file's directory; valid while the recorder lives. NULL recorder: NULL. */
const char *recorder_directory(const struct recorder *recorder);

/* An operation was issued, for a lane. */
void recorder_issue(struct recorder *recorder, const struct transport_signature *signature, const struct plan *plan, unsigned lane);
/* It begins to run. The arguments are those of recorder_issue. */
void recorder_start(struct recorder *recorder, const struct transport_signature *signature, const struct plan *plan, unsigned lane);
/* It has ended, well or with the communicator. */
void recorder_finish(struct recorder *recorder, uint64_t sequence, bool well);

/* Slow path. It is blocked at a step of its plan since a time of st_now_ns (0: since now), after so many steps. */
void recorder_wait(struct recorder *recorder, uint64_t sequence, const struct plan *plan, uint32_t step, uint64_t moves, int64_t since_ns);
/* What it waited for has come. */
void recorder_moved(struct recorder *recorder, uint64_t sequence);
/* Slow path: somebody still looks after what is in flight. */
void recorder_look(struct recorder *recorder);

/* A caller enters comm_wait, and leaves it or any other call that moves operations on. */
void recorder_enter(struct recorder *recorder);
void recorder_leave(struct recorder *recorder, bool entered);
void recorder_enter_decision(struct recorder *recorder);
void recorder_leave_decision(struct recorder *recorder);

/* The communicator has failed; only the first verdict counts. */
void recorder_fail(struct recorder *recorder, const char *verdict);

/* Removes the file, unless the communicator failed or operations have not ended; frees. True: the file stays. NULL is fine. */
bool recorder_close(struct recorder *recorder);

/* Where recorders of this environment go, without making anything. False: off, or a path longer than `bytes`. */
bool recorder_directory_name(char *path, size_t bytes);

/* The part of a file's name that tells its job: safe characters, at most RECORDER_JOB_NAME_BYTES with the NUL. */
#define RECORDER_JOB_NAME_BYTES 97
void recorder_job_name(const char *job, char name[RECORDER_JOB_NAME_BYTES]);

/* recorder_directory.c. A new, empty file in the directory of this environment, which is made if need be. ST_PENDING: recorders are off. */
struct recorder_place {
	int fd;                /* open for reading and writing */
	char directory[4096];  /* absolute */
	bool own_directory;    /* the default one, which goes with its last file */
	char name[RECORDER_JOB_NAME_BYTES + 64];
};
enum st_status recorder_create(const struct recorder_options *options, struct recorder_place *place);

/* Removes it again. */
void recorder_remove(const struct recorder_place *place);

/* When a process started, in ticks since boot (field 22 of /proc/PID/stat), and its state letter. False: no such process. */
bool recorder_process(uint64_t pid, uint64_t *start_ticks, char *state);
/* This machine's boot and this process's pid namespace; "" and 0 when unknown. */
void recorder_here(char boot[40], uint64_t *pid_namespace);

#endif
