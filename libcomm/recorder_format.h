/*
 * The layout of a flight recorder's file: one header, then a ring of fixed-size entries.  In the byte order of the machine, no padding.
 *
 * The file is a mapping that its process stores into, and that process may end between any two stores; somebody may read it at any moment.
 * So everything that changes is an aligned 64-bit word, and the words are stored in an order in which every prefix makes sense:
 *
 *   - the header's constant part is written before `magic`, which is stored last;
 *   - an entry has its sequence at both ends of its first cache line, `tag` and `tag_again`: odd while the words between are written.  Where the two
 *     differ or are odd the entry is torn, also in a copy that was made meanwhile, from the front or from the back;
 *   - start, finish and state are stored later, word by word, times before the state that tells of them; what it waits for lies likewise
 *     between `wait` and `wait_again`, which are 0 while it changes and numbered, so that no value comes back;
 *   - `verdict` and failed_ns are written before `state` says that the communicator has failed.
 */
#ifndef SYNCTRAIN_LIBCOMM_RECORDER_FORMAT_H
#define SYNCTRAIN_LIBCOMM_RECORDER_FORMAT_H

#include <stddef.h>
#include <stdint.h>

#define RECORDER_MAGIC UINT64_C(0x524c465452544353) /* "SCTRTFLR" in the bytes of a little-endian machine */
#define RECORDER_VERSION 1
#define RECORDER_ENTRIES 256
#define RECORDER_SUFFIX ".flight"

enum recorder_state { RECORDER_RUNNING, RECORDER_LEFT, RECORDER_FAILED };
enum recorder_operation_state { RECORDER_ISSUED, RECORDER_STARTED, RECORDER_DONE, RECORDER_BROKEN };

/* What an operation waits for: a put or lend of the peer; its grant; that it has taken what was sent; or room for what is to be granted or lent. */
enum recorder_wait { RECORDER_WAIT_NONE, RECORDER_WAIT_DATA, RECORDER_WAIT_GRANT, RECORDER_WAIT_FLUSH, RECORDER_WAIT_ROOM };

#define RECORDER_HELPER 1u /* header.flags: a helper thread moves operations on while no caller is inside */

#define RECORDER_ALGORITHM_BYTES 16
#define RECORDER_ALGORITHMS 32

struct recorder_header {
	uint64_t magic;
	uint32_t version, header_bytes, entry_bytes, entries;
	uint64_t check;                       /* XXH3-64 of the constant part with magic and check 0 */
	uint64_t context;                     /* of the communicator; the job's own: 0 */
	uint32_t rank, size;                  /* in the communicator */
	uint32_t world_rank, world_size;      /* in the job */
	uint64_t pid, start_ticks;            /* of the process, as /proc/PID/stat has them in pid_namespace; 0: unknown */
	uint64_t pid_namespace;               /* inode; 0: unknown */
	int64_t created_wall_ns, created_ns;  /* CLOCK_REALTIME and CLOCK_MONOTONIC_COARSE at one moment; all other times are of the latter */
	int64_t stall_timeout_ms, arrival_timeout_ms;
	char boot[40];                        /* /proc/sys/kernel/random/boot_id; NUL-padded, as all strings */
	char host[64];
	char job[96];
	char build[64];
	uint64_t flags;
	char reserved[128];
	char algorithms[RECORDER_ALGORITHMS][RECORDER_ALGORITHM_BYTES]; /* what entries number; "" where there is none */

	/* From here on it changes. */
	uint64_t state;                       /* enum recorder_state */
	int64_t looked_ns;                    /* now and then, while an operation waits long: somebody looks after it */
	uint64_t issued;                      /* the newest operation's sequence */
	uint64_t skipped;                     /* operations without an entry: theirs were taken by older ones that had not ended */
	uint64_t waiting;                     /* callers inside comm_wait */
	int64_t left_ns;                      /* when a call last returned */
	uint64_t decision;                    /* how many comm_decide and comm_collect were entered << 1; | 1: inside the last one */
	int64_t decision_ns;                  /* since when */
	int64_t failed_ns;                    /* from then on waiting, left_ns and decision stay as they were */
	char verdict[1024];
	char pad[1976];
};

struct recorder_entry {
	uint64_t tag;         /* sequence << 1; | 1 while the words up to tag_again are written; 0: never used */
	uint64_t count;
	uint64_t shape;       /* root << 32 | fused << 24 | collective << 16 | type << 8 | op, as in struct transport_signature */
	uint64_t plan;        /* steps << 32 | lane << 16 | algorithm << 8 | enum recorder_operation_state */
	int64_t issued_ns, started_ns, finished_ns; /* 0: not yet */
	uint64_t tag_again;

	uint64_t wait;        /* peer's world rank << 32 | number of the wait << 24 (8 bits) | channel index << 8 | outgoing << 7 | enum recorder_wait */
	int64_t wait_since_ns;
	uint64_t wait_step;   /* of the plan's */
	uint64_t moves;       /* steps done by then, in loops each time */
	uint64_t wait_sequence; /* of the operation that waits */
	uint64_t wait_again;
	uint64_t reserved[2];
};

#define RECORDER_FILE_BYTES (sizeof(struct recorder_header) + RECORDER_ENTRIES * sizeof(struct recorder_entry))

_Static_assert(offsetof(struct recorder_header, state) == 1024, "a file format; what changes has cache lines of its own");
_Static_assert(offsetof(struct recorder_header, algorithms) == 512, "as above");
_Static_assert(sizeof(struct recorder_header) == 4096, "as above");
_Static_assert(offsetof(struct recorder_entry, wait) == 64, "as above");
_Static_assert(sizeof(struct recorder_entry) == 128, "as above: two cache lines, the first of which is all that an operation without trouble needs");

#endif
