/*
 * What the control plane puts on the wire and into the bootstrap: version 4.
 *
 * Three kinds of bytes: the endpoint record that each rank gives to the bootstrap, the four messages of a handshake (see
 * auth.h), and frames on the connections of the tree.  All integers are little-endian; structures have no padding.  Bytes
 * of a peer are hostile until proven otherwise: every length is checked here before anything is read or allocated.
 *
 * In every version of the protocol the first 8 bytes of each of these are the magic and the version, and the first
 * WIRE_RECORD_HEAD_BYTES of a record also name build and node, so that two versions can name each other.
 */
#ifndef SYNCTRAIN_LIBCOMM_WIRE_H
#define SYNCTRAIN_LIBCOMM_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

#define WIRE_MAGIC 0x4e435453u /* "STCN" */
#define WIRE_VERSION 4

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the control plane's structures are little-endian: this machine needs conversions that nobody has written"
#endif

/* ---- the endpoint record ------------------------------------------------------------------------------------------- */

#define WIRE_SECRET_BYTES 32
#define WIRE_BUILD_BYTES 48
#define WIRE_NODE_BYTES 64
#define WIRE_ADDRESS_BYTES 128
#define WIRE_UNIX_NAME_BYTES 48
#define WIRE_RECORD_HEAD_BYTES 120 /* magic .. node: the same in every version */

struct wire_record {
	uint32_t magic;
	uint16_t version;
	uint16_t record_bytes;
	char build[WIRE_BUILD_BYTES]; /* NUL-terminated, as all texts here */
	char node[WIRE_NODE_BYTES];
	char address[WIRE_ADDRESS_BYTES];     /* topology address, "" when unknown */
	char unix_name[WIRE_UNIX_NAME_BYTES]; /* abstract socket name without the leading NUL */
	uint8_t host[16];                     /* equal on ranks that share kernel and network namespace */
	uint8_t ipv4[4], ipv6[16];
	uint16_t port4, port6; /* 0: does not listen on that family */
	uint8_t loopback;      /* 1: the chosen interface is the loopback interface */
	uint8_t accumulate_hint; /* rank 0's is the job's */
	uint8_t zero[2];
	uint32_t chunk_bytes_hint, slots_hint; /* rank 0's are the job's, as are the two below */
	uint32_t heartbeat_ms, stall_timeout_ms;
	uint8_t secret[WIRE_SECRET_BYTES]; /* rank 0's is the job's; zero in the others */
};
_Static_assert(sizeof(struct wire_record) == 388, "the record has no padding");
_Static_assert(offsetof(struct wire_record, address) == WIRE_RECORD_HEAD_BYTES, "the head is the same in every version");

/* ---- the handshake ------------------------------------------------------------------------------------------------- */

enum wire_purpose {
	WIRE_PURPOSE_TREE = 1, /* an edge of the control tree; frames follow */
	WIRE_PURPOSE_DATA,     /* handed to the caller of control_data_socket; no frames */
	WIRE_PURPOSE_LOCAL,    /* "I reach you by Unix socket: we are on the same node"; closed at once */
	WIRE_PURPOSE_REMOTE,   /* "I do not, though our nodes have one name"; closed at once */
	WIRE_PURPOSE_PROBE,    /* "are you there?"; closed at once */
	WIRE_PURPOSE_SHRINK,   /* survivors of a failed job meet; struct wire_shrink follow */
	WIRE_PURPOSE_END
};

enum { WIRE_HELLO = 1, WIRE_CHALLENGE, WIRE_PROOF, WIRE_WELCOME };

#define WIRE_NONCE_BYTES 32
#define WIRE_MAC_BYTES 32

struct wire_hello { /* client -> server */
	uint32_t magic;
	uint16_t version;
	uint8_t kind, purpose;
	uint32_t from, to, channel, zero; /* ranks of the job */
	uint64_t context;                 /* WIRE_PURPOSE_DATA: the communicator whose channel it is; else 0 */
	uint8_t nonce[WIRE_NONCE_BYTES];
};
struct wire_challenge { /* server -> client */
	uint32_t magic;
	uint16_t version;
	uint8_t kind, zero;
	uint8_t nonce[WIRE_NONCE_BYTES];
	uint8_t mac[WIRE_MAC_BYTES]; /* all zero when the versions differ: then the server closes */
};
struct wire_proof { /* client -> server */
	uint32_t magic;
	uint16_t version;
	uint8_t kind, zero;
	uint8_t mac[WIRE_MAC_BYTES];
};
struct wire_welcome { /* server -> client: the connection is accepted and now serves its purpose */
	uint32_t magic;
	uint16_t version;
	uint8_t kind, zero;
};
_Static_assert(sizeof(struct wire_hello) == 64 && sizeof(struct wire_challenge) == 72 && sizeof(struct wire_proof) == 40 &&
		       sizeof(struct wire_welcome) == 8,
	       "handshake messages have no padding");

/* ---- survivors meet ------------------------------------------------------------------------------------------------ */

enum wire_shrink_kind {
	WIRE_SHRINK_JOIN = 1, /* to the coordinator: a byte for each rank of the job, 1: it is proven dead */
	WIRE_SHRINK_BEAT,     /* from it: it still waits for others; no payload */
	WIRE_SHRINK_LEFT_OUT, /* from it, or who was asked: the others go on without you; text */
	WIRE_SHRINK_MEMBERS,  /* from it: the members' ranks, 4 bytes each, ascending; the attempt's number is final */
	WIRE_SHRINK_RECORD,   /* to it: struct wire_record for the new job */
	WIRE_SHRINK_RECORDS,  /* from it: all members', in their order */
	WIRE_SHRINK_END
};
struct wire_shrink {
	uint32_t magic;
	uint16_t version, kind;
	uint32_t attempt;
	uint32_t bytes; /* of payload that follow */
};
_Static_assert(sizeof(struct wire_shrink) == 16, "messages of survivors have no padding");

/* ---- frames on the tree -------------------------------------------------------------------------------------------- */

enum wire_frame_type {
	WIRE_HEARTBEAT = 1, /* no payload; to neighbours only */
	WIRE_GOODBYE,       /* struct wire_goodbye; flooded */
	WIRE_ABORT,         /* struct wire_abort; flooded */
	WIRE_DECISION,      /* struct wire_decision, then its data; flooded */
	WIRE_RESEND,        /* struct wire_resend; flooded */
	WIRE_FAREWELL,      /* no payload: answers a neighbour's goodbye, and is the last frame that it gets */
	WIRE_ASK,           /* struct wire_ask; to one neighbour: "do you reach this rank?" */
	WIRE_ANSWER,        /* struct wire_answer; back to the one who asked */
	WIRE_FRAME_END
};

struct wire_frame {
	uint32_t magic;
	uint16_t version, type;
	uint32_t length; /* bytes of payload that follow */
	uint32_t zero;
};
/*
 * Ranks in frames are the job's; contexts name communicators (see control.h): a rank that has no part in one passes its frames on.  As it remembers
 * nothing of what they say, and connections may form circles for a while, frames about communicators other than the root's are numbered by
 * the rank that floods them: `number` is 1, 2, ... for each origin, and who has heard a number of an origin drops it, and those more than 64
 * below the highest.  Elsewhere origin and number are 0.
 */
struct wire_goodbye {
	uint32_t rank;
	uint32_t whole; /* 1: it leaves the job, and context is 0; 0: the communicator of this context */
	uint64_t context;
	uint64_t entered; /* decisions of this context that it had part in, all before any other; WIRE_UNKNOWN: told by a third, who did not hear it */
	uint32_t origin, zero;
	uint64_t number;
};
#define WIRE_UNKNOWN UINT64_MAX
struct wire_resend { /* `origin` has found a new neighbour: what members of communicators sent while it had none may be lost beyond it */
	uint32_t origin, zero;
	uint64_t number;
};
#define WIRE_OPERATION_BYTES 96
#define WIRE_DETAIL_BYTES 384 /* two signatures and two hosts */
struct wire_abort {
	uint32_t culprit, detector;
	uint32_t how;   /* enum control_how */
	uint32_t other; /* CONTROL_HOW_LINK: the rank at the link's other end, below the culprit; else the culprit */
	int64_t when_ns; /* st_wall_ns() of the detector */
	char operation[WIRE_OPERATION_BYTES];
	char detail[WIRE_DETAIL_BYTES];
};
struct wire_ask {
	uint32_t about, zero;
};
struct wire_answer {
	uint32_t about;
	uint32_t sign; /* enum control_sign */
};
enum { WIRE_DECISION_GATHER = 1, WIRE_DECISION_BROADCAST, WIRE_DECISION_SPLIT /* a gather too */ };
struct wire_decision {
	uint64_t context, sequence;
	uint64_t operations; /* that the rank has issued on this communicator before its call */
	uint32_t kind, rank;
	uint32_t bytes; /* that the rank's call names; a broadcast carries data from the communicator's rank 0 only */
	uint32_t origin;
	uint64_t number;
};
_Static_assert(sizeof(struct wire_frame) == 16 && sizeof(struct wire_goodbye) == 40 && sizeof(struct wire_resend) == 16 && sizeof(struct wire_abort) == 504 &&
		       sizeof(struct wire_decision) == 48 && sizeof(struct wire_ask) == 8 && sizeof(struct wire_answer) == 8,
	       "frames have no padding");

#define WIRE_MAX_DECISION_BYTES 65536u
#define WIRE_MAX_PAYLOAD_BYTES (sizeof(struct wire_decision) + WIRE_MAX_DECISION_BYTES)

/*
 * Reassembles frames from a stream that arrives in pieces.  Never reads past the end of a frame, so one reader's memory is
 * one payload.  Loop: recv into wire_reader_space(), then wire_reader_advance(); when that says complete, type, payload and
 * length describe the frame until wire_reader_next().
 */
struct wire_reader {
	struct wire_frame header;
	size_t have; /* bytes of the header, then of the payload, that have arrived */
	bool in_payload, complete;
	uint8_t *payload; /* owned; grows to the longest frame seen */
	size_t capacity;
};

/* Where the next bytes go and how many fit; at least one. */
void wire_reader_space(struct wire_reader *reader, void **where, size_t *bytes);

/* BYTES have arrived there. ST_ERR_PROTOCOL: no correct peer sends this (the message says what was seen); ST_ERR_NOMEM. */
enum st_status wire_reader_advance(struct wire_reader *reader, size_t bytes);

void wire_reader_next(struct wire_reader *reader);
void wire_reader_free(struct wire_reader *reader);

/* Whether a frame of this type may have this many bytes of payload. */
bool wire_length_allowed(uint32_t type, uint32_t length);

/* Ends the text of a peer within its field and replaces what is not printable ASCII. */
void wire_clean_text(char *text, size_t bytes);

#endif
