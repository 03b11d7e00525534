/*
 * The layout of a flight recorder's file: one header, then a ring of fixed-size entries.  In the byte order of the machine, no padding.
 *
 * The file is a mapping that its process stores into, and that process may end between any two stores; somebody may read it at any moment.
 * So everything that changes is an aligned 64-bit word, and the words are stored in an order in which every prefix makes sense:
 *
 *   - the header's constant part is written before `magic`, which is stored last;
 *   - an entry's `tag` is odd while its first words are written: such an entry is torn.  What follows (start, finish, state, wait) is stored word by
 *     word, times before the state that tells of them, and `wait` last, 0 while the words that go with it change;
 *   - `verdict` is written before `state` says that the communicator has failed.
 *
 * A reader copies the file twice: an entry that is the same in both copies, and not torn, was so at a moment between the two, since no word
 * ever takes an old value again (tags and moves grow, waits are numbered).
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

/* What an operation waits for. */
enum recorder_wait { RECORDER_WAIT_NONE, RECORDER_WAIT_DATA, RECORDER_WAIT_GRANT, RECORDER_WAIT_FLUSH, RECORDER_WAIT_CREDIT };

/* Where the thread is that calls the communicator: low byte of header.inside. The rest is the operation or decision that it is in. */
enum recorder_inside { RECORDER_OUTSIDE, RECORDER_IN_WAIT, RECORDER_IN_DECISION };

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
	char reserved[136];
	char algorithms[RECORDER_ALGORITHMS][RECORDER_ALGORITHM_BYTES]; /* what entries number; "" where there is none */

	/* From here on it changes. */
	uint64_t state;                       /* enum recorder_state */
	int64_t now_ns;                       /* now and then, while it waits */
	uint64_t issued;                      /* the newest operation's sequence */
	uint64_t skipped;                     /* operations without an entry: theirs were taken by older ones that had not ended */
	uint64_t inside;                      /* enum recorder_inside | number << 8 */
	int64_t inside_ns, outside_ns;        /* since when it is inside; since when outside */
	uint64_t decisions;                   /* entered */
	char verdict[1024];
	char pad[1984];
};

struct recorder_entry {
	uint64_t tag;         /* sequence << 1; | 1 while the words up to issued_ns are written; 0: never used */
	uint64_t count;
	uint64_t shape;       /* root << 32 | collective << 16 | type << 8 | op, as in struct transport_signature */
	uint64_t plan;        /* steps << 32 | lane << 16 | algorithm << 8 | enum recorder_operation_state */
	int64_t issued_ns, started_ns, finished_ns; /* 0: not yet */
	uint64_t moves;       /* steps done, as of the wait or the end */
	uint64_t wait;        /* peer's world rank << 32 | number of the wait << 24 (8 bits) | channel index << 8 | outgoing << 7 | enum recorder_wait */
	int64_t wait_since_ns;
	uint64_t wait_step;
	uint64_t reserved[5];
};

#define RECORDER_FILE_BYTES (sizeof(struct recorder_header) + RECORDER_ENTRIES * sizeof(struct recorder_entry))

_Static_assert(offsetof(struct recorder_header, state) == 1024, "a file format; what changes has cache lines of its own");
_Static_assert(offsetof(struct recorder_header, algorithms) == 512, "as above");
_Static_assert(sizeof(struct recorder_header) == 4096, "as above");
_Static_assert(sizeof(struct recorder_entry) == 128, "as above: two cache lines, the first of which is all that an operation without trouble needs");

#endif
