/*
 * Inside the control plane.  One mutex guards everything that changes; the service thread holds it while it works and never
 * while it sleeps, callers hold it for a few stores or one non-blocking send.  What is marked constant is written by
 * control_open before the service thread starts.
 *
 *   control.c            open, close, what callers ask
 *   control_interface.c  which interface and addresses to listen on
 *   control_listen.c     listeners and the server's half of handshakes
 *   control_connect.c    the client's half; data sockets; same-node probes
 *   control_tree.c       connections of the tree, frames, floods, the verdict
 *   control_rejoin.c     a new parent when the old one has left or died
 *   control_evidence.c   what to make of a neighbour that is silent: whom to ask, whom to blame
 *   control_group.c      communicators: their members, who has left them
 *   control_decide.c     all_gather and broadcast among the members of one
 *   control_shrink.c     survivors of a failure find each other
 *   control_service.c    the thread: epoll, heartbeats, deadlines
 *
 * FLOOD.  The connections form a tree, so a frame that each rank passes on to all its neighbours but the one it came from
 * reaches every rank once.  Whoever gets a new neighbour sends it what it knows (abort, goodbyes, contributions to the
 * decisions still in use), and what a rank knows already it drops: so a flood also survives a neighbour that comes late, and
 * a circle of connections does no harm: where an edge is cut, more are made around it.
 *
 * VERDICT.  Two ranks may fail at once, and two ranks may find out about one failure and see it differently.  So a verdict is first judged, and
 * only CONTROL_SETTLE_MS later, when it has reached everybody, told to callers (`aborted`).  Until then the stronger of two replaces
 * the other, by an order that is the same everywhere; a rank that has known of one for half that time adds none of its own.
 */
#ifndef SYNCTRAIN_LIBCOMM_CONTROL_INTERNAL_H
#define SYNCTRAIN_LIBCOMM_CONTROL_INTERNAL_H

#include <net/if.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>

#include "auth.h"
#include "bootstrap.h"
#include "common/clock.h"
#include "control.h"

#define CONTROL_TREE_ARITY 8
#define CONTROL_MAX_OPENINGS 64
#define CONTROL_OPENING_MS 5000
#define CONTROL_MAX_ACCEPTED 4096
#define CONTROL_SUSPECT_MS 500
#define CONTROL_LOST_MS 2000
#define CONTROL_SETTLE_MS 300
#define CONTROL_SETTLE_MOST_MS 1000 /* while a way round a cut is looked for */
#define CONTROL_MAX_HELPERS 16
#define CONTROL_MAX_LINKS_TO_PEER 4
#define CONTROL_CLOSE_FLUSH_MS 1000
#define CONTROL_RECENT_BYTES ((size_t)256 << 10)
#define CONTROL_RECENT_MS 10000
#define CONTROL_DECISION_SLOTS 4 /* the two before the current one, the current one, and the next */

enum { CONTROL_LISTENER_UNIX, CONTROL_LISTENER_IPV4, CONTROL_LISTENER_IPV6, CONTROL_LISTENERS };

/* What an epoll event points to. */
struct control_source {
	enum { CONTROL_SOURCE_WAKE, CONTROL_SOURCE_LISTENER, CONTROL_SOURCE_OPENING, CONTROL_SOURCE_LINK } kind;
	int fd;    /* -1: closed; the object is freed at the end of the service thread's turn */
	bool idle; /* listener: out of the epoll set for a moment, because no descriptor was left to accept with */
};

/* A connection that has not proven itself. */
struct control_opening {
	struct control_source source;
	struct control_opening *older, *newer;
	struct st_deadline deadline;
	bool local, challenged;
	size_t have; /* bytes of the message it is sending: HELLO, or once challenged PROOF */
	union {
		struct wire_hello hello;
		struct wire_proof proof;
		uint8_t bytes[sizeof(struct wire_hello)];
	} in;
	struct auth_session session;
};

/* An edge of the tree. */
struct control_link {
	struct control_source source;
	struct control_link *next;
	uint32_t peer;
	bool local;
	bool wants_write;
	bool mute, farewell; /* the peer leaves, and gets nothing more from this rank; this rank leaves, and gets nothing more from the peer */
	bool knows; /* the verdict */
	int64_t silent_ns; /* this process's running time since the last heartbeat */
	struct wire_reader reader;
	uint8_t *out; /* what the kernel did not take at once: out[out_begin .. out_end) */
	size_t out_begin, out_end, out_capacity;
};

/* A proven data connection that waits for control_data_socket. */
struct control_accepted {
	struct control_accepted *next;
	uint32_t peer, channel;
	uint64_t context;
	bool local;
	int fd;
};

/* A proven connection of a survivor, who looks for others; see control_shrink.h. */
struct control_caller {
	struct control_caller *next;
	uint32_t peer;
	int fd;
};

struct control_contribution {
	bool present;
	uint32_t kind, bytes;
	uint64_t operations;
	uint8_t *data; /* owned; NULL when there is none */
};

struct control_decision {
	uint64_t sequence;
	uint32_t present;                   /* number of contributions */
	struct control_contribution *ranks; /* (size of the group) */
};

/* A frame of a group that passed through this rank: a new neighbour may be without it. */
struct control_recent {
	struct control_recent *next;
	int64_t when_ns;
	uint32_t type;
	size_t bytes;
	uint8_t payload[];
};

struct control_member {
	uint32_t rank, member; /* of the job; of the group */
};

/* A communicator's part.  Guarded by the control plane's lock, except what is constant once it is formed. */
struct control_group {
	struct control *control;
	struct control_group *next;
	uint64_t context;
	char name[CONTROL_GROUP_NAME_BYTES];
	char label[CONTROL_GROUP_NAME_BYTES + 20]; /* " in communicator NAME" for messages; "" for the root */
	struct topo_world *world;       /* of its members; the root's is the control plane's */
	uint32_t size, member;          /* 0 while it forms; this rank's place */
	uint32_t *ranks;                /* (size) member -> rank of the job; NULL: the same */
	struct control_member *members; /* (size) by rank; NULL: the same */
	bool *early;                    /* (size of the job) while it forms: who has entered decision 0 already */
	bool *left;                     /* (size) has left this communicator, though perhaps not the job */
	uint64_t *entered;              /* (size) of those: how many decisions they had part in, or WIRE_UNKNOWN */
	struct control_decision decisions[CONTROL_DECISION_SLOTS];
	uint64_t decision;              /* the one that callers are in, or enter next */
	_Atomic uint64_t operations;    /* issued by this rank; relaxed: whoever compares looks again */
	bool (*meanwhile)(void *context);
	void *meanwhile_context;
};

enum control_reach { CONTROL_REACH_UNKNOWN, CONTROL_REACH_LOCAL, CONTROL_REACH_REMOTE };

/* Where a rank listens, from its record. */
struct control_endpoint {
	char unix_name[WIRE_UNIX_NAME_BYTES];
	uint8_t ipv4[4], ipv6[16];
	uint16_t port4, port6;
};

struct control_addresses {
	char interface[IF_NAMESIZE];
	uint32_t index;
	bool has4, has6, loopback;
	uint8_t ipv4[4], ipv6[16];
};

/* Which numbered frames of an origin have come. */
struct control_heard {
	uint64_t last;   /* the highest number */
	uint64_t before; /* bit k: number last - 1 - k as well */
};

struct control {
	/* Constant. */
	uint32_t rank, size;
	struct auth_keys keys;
	uint8_t *secret; /* a page of its own: kept out of core files and wiped in forked children */
	char job[BOOTSTRAP_JOB_BYTES];
	int64_t startup_timeout_ms, heartbeat_ms, stall_timeout_ms;
	uint32_t chunk_bytes, slots;
	uint8_t accumulate;
	struct control_addresses addresses;
	struct control_endpoint *endpoints; /* (size) */
	struct topo_world *world;
	struct control_source listeners[CONTROL_LISTENERS], wake;
	int epoll_fd, event_fd;
	pthread_t thread;
	bool thread_started;

	_Atomic bool closing;               /* control_close has begun; relaxed: whoever connects looks again within a second */
	_Atomic bool aborted;               /* set once, after verdict and text, with the lock held */
	_Atomic(const char *) doing_name;   /* relaxed: texts only */
	_Atomic uint64_t doing_sequence, doing_context;

	pthread_mutex_t lock;
	pthread_cond_t changed; /* broadcast whenever something that a caller may wait for has changed */
	/* Guarded by lock. */
	bool stopping;
	struct control_link *links;
	struct control_opening *oldest_opening, *newest_opening, *closed_openings;
	unsigned opening_count;
	struct control_accepted *accepted;
	unsigned accepted_count;
	struct control_caller *callers; /* at most one of each rank */
	bool moved;     /* this rank is in the communicator of the survivors: who calls now is left out */
	bool *left;     /* (size) said GOODBYE; this rank's own: control_close has begun */
	bool *met;      /* (size) has had a tree connection with this rank */
	bool *gone;     /* (size) this rank's connection to it ended without GOODBYE, or can't be made */
	bool *inquired; /* (size) a helper is finding out about it */
	uint8_t *reach; /* (size) enum control_reach */
	struct control_group root, *groups; /* groups: all, the root's last */
	struct control_recent *oldest_recent, *newest_recent;
	size_t recent_bytes;
	struct control_heard *heard; /* (size) numbered frames of each origin; this rank's own: what it sent */
	unsigned references;
	bool judged; /* there is a verdict, which may still change until `aborted` */
	struct st_deadline settle, settle_most;
	unsigned reaching; /* helpers that look for a way round a cut, to bring the verdict there */
	struct wire_abort verdict;
	char verdict_text[896];
	bool rejoin_wanted, rejoining, rejoin_started; /* rejoining: rejoin_thread has not come to its end */
	struct st_deadline rejoin_pause;
	pthread_t rejoin_thread;
	unsigned helpers; /* threads of control_evidence.c that have not ended */
	struct control_question *questions;
	struct st_deadline next_heartbeat;
	int64_t last_tick_ns;
	struct control_counters counters;
};

/* control_interface.c */
enum st_status control_interface_choose(const char *wanted, struct control_addresses *addresses);
/* Equal for two processes that share kernel and network namespace. */
void control_host_id(uint8_t id[16]);

/* control_listen.c */
enum st_status control_listen(struct control *control, struct wire_record *record);
void control_accept_ready(struct control *control, struct control_source *listener);
void control_opening_ready(struct control *control, struct control_opening *opening);
/* Drops those whose time is over. Returns how long until the next one's is, in ms (at most 1000). */
int control_openings_tick(struct control *control);
void control_openings_free_closed(struct control *control);
void control_openings_close_all(struct control *control);
/* Takes a waiting data connection, or returns -1. */
int control_accepted_take(struct control *control, uint32_t peer, uint64_t context, uint32_t channel, bool local);

enum control_sign {
	CONTROL_SIGN_NONE,    /* nothing: its host is down, or cut off from here */
	CONTROL_SIGN_REFUSED, /* its host says that nobody listens: its process has ended */
	CONTROL_SIGN_MUTE,    /* its host answers, its service thread does not: stopped, or stuck */
	CONTROL_SIGN_ALIVE,
};

/* control_connect.c */
/* A proven connection to `peer` for `purpose`. ST_ERR_UNAVAILABLE: nothing listens there (its process is gone, when the socket is a Unix
 * socket); ST_ERR_TIMEOUT; ST_ERR_ABORTED; others as auth.h. Blocks; the lock is not held. */
enum st_status control_connect(struct control *control, uint32_t peer, enum wire_purpose purpose, bool local, struct st_deadline *deadline, int *fd);
enum st_status control_connect_channel(struct control *control, uint32_t peer, enum wire_purpose purpose, uint64_t context, uint32_t channel,
				       bool local, struct st_deadline *deadline, int *fd);
/* Asks whether anybody listens at rank's address, for up to a second. *refusals is the caller's memory of earlier answers, 0 at first; true in
 * *gone: nobody does any more. ST_ERR_ABORTED. The lock is not held. */
enum st_status control_probe(struct control *control, uint32_t rank, unsigned *refusals, bool *gone);
/* Whether a connection to the address comes about (CONTROL_SIGN_MUTE), which is the host's work and not the process's; also after the verdict. */
enum control_sign control_knock(struct control *control, uint32_t rank, bool local, int64_t timeout_ms);
/* What comes back from rank's address: waits answer_ms for its host, and as long again twice for its service thread.  The lock is not held. */
enum control_sign control_sign_of(struct control *control, uint32_t rank, int64_t answer_ms);
/* Whether rank may be reached by Unix socket at all: the same node by name. */
bool control_same_name(const struct control *control, uint32_t peer);

/* control_tree.c; all with the lock held */
bool control_tree_parent(const struct control *control, uint32_t rank, uint32_t *parent);
struct control_link *control_link_find(struct control *control, uint32_t peer);
enum st_status control_link_add(struct control *control, uint32_t peer, bool local, int fd);
void control_link_ready(struct control *control, struct control_link *link, uint32_t events);
void control_link_send(struct control *control, struct control_link *link, uint32_t type, const void *payload, size_t bytes, const void *data,
		       size_t data_bytes);
void control_flood(struct control *control, const struct control_link *except, uint32_t type, const void *payload, size_t bytes,
		   const void *data, size_t data_bytes);
/* rank has left after it `entered` so many of the root's decisions: remembers it and passes it on. */
void control_mark_left(struct control *control, uint32_t rank, uint64_t entered, const struct control_link *from);
void control_links_free_closed(struct control *control);
void control_links_close_all(struct control *control);
bool control_links_flushed(const struct control *control);
/* All is out, and every neighbour has answered this rank's goodbye, or there is none to be answered: the job was aborted. */
bool control_links_parted(const struct control *control);
/* Sends heartbeats that are due, ends links that are silent. Returns how long until the next look, in ms. */
int control_links_tick(struct control *control);
/* Judges: floods the verdict unless there is a stronger one, or one that has been known for long. Never blocks. */
void control_abort_locked(struct control *control, uint32_t culprit, enum control_how how, const char *operation, const char *detail);
/* ST_OK until the verdict has settled. */
enum st_status control_verdict(struct control *control);
/* When there is a verdict, waits until it has settled. */
enum st_status control_verdict_await(struct control *control);
/* Tells callers of a verdict whose time has come. Returns how long until the next look, in ms. */
int control_settle_tick(struct control *control);
/* How long nothing has come from this neighbour, on the best of the connections to it; INT64_MAX when there is none. */
int64_t control_silence_ns(const struct control *control, uint32_t peer);

/* control_rejoin.c */
/* A neighbour has left: if it was the parent, another is looked for in a moment. Lock held. */
void control_rejoin_soon(struct control *control);
/* A neighbour has died: likewise, at once, as the others must agree on the verdict. Lock held. */
void control_rejoin_now(struct control *control);
/* Returns how long until the next look, in ms. Lock held, service thread. */
int control_rejoin_tick(struct control *control);
/* Waits for the helper thread. Without the lock, unless the helper is known to have ended. */
void control_rejoin_end(struct control *control);

/* control_shrink.c; with the lock held */
void control_caller_take(struct control *control, uint32_t peer, int fd); /* takes fd */
void control_callers_close_all(struct control *control);

/* control_group.c; with the lock held, except init and destroy */
enum st_status control_root_init(struct control *control);
void control_group_destroy(struct control_group *group); /* what it owns, not itself */
struct control_group *control_group_find(struct control *control, uint64_t context);
/* The place of a rank of the job; false: it is no member. */
bool control_group_member(const struct control_group *group, uint32_t rank, uint32_t *member);
uint32_t control_group_rank_of(const struct control_group *group, uint32_t member);
/* rank (of the job) has left it, or the whole job. */
bool control_group_has_left(const struct control_group *group, uint32_t rank);
/* The detail of CONTROL_HOW_LEFT for such a rank. */
const char *control_group_left_how(const struct control_group *group, uint32_t rank);
enum st_status control_goodbye_frame(struct control *control, struct control_link *from, const uint8_t *payload);
enum st_status control_resend_frame(struct control *control, struct control_link *from, const uint8_t *payload);
/* The number of a flood that begins here; whether one that came from another rank is new. */
void control_group_number(struct control *control, uint32_t *origin, uint64_t *number);
bool control_group_news(struct control *control, uint32_t origin, uint64_t number);
/* A frame of another group than the root: as control_flood, and remembers it for a while. */
void control_group_flood(struct control *control, const struct control_link *except, uint32_t type, const void *payload, size_t bytes,
			 const void *data, size_t data_bytes);
/* To a new neighbour: what it may be without. */
void control_recent_send(struct control *control, struct control_link *link);
void control_recent_free(struct control *control);
/* This rank has a new neighbour: asks all members of communicators to send again what may have been lost before. */
void control_groups_ask_again(struct control *control);

/* A silence of this length is judged, so that the verdict has settled when the stall timeout is over. */
static inline int64_t control_silence_judged_ns(const struct control *control)
{
	int64_t ms = control->stall_timeout_ms;

	return (ms > 4 * CONTROL_SETTLE_MS ? ms - CONTROL_SETTLE_MS : ms) * ST_NS_PER_MS;
}

/* control_evidence.c */
enum control_question_kind {
	CONTROL_QUESTION_SILENT, /* no heartbeats from it */
	CONTROL_QUESTION_ENDED,  /* its connection ended without a word */
	CONTROL_QUESTION_REACH,  /* only makes sure that it hears the verdict */
};
/* Finds out about a neighbour in a thread of its own, and judges. `seen`: what made this rank ask, for the verdict's text. Lock held. */
void control_inquire(struct control *control, uint32_t peer, enum control_question_kind kind, const char *seen);
/* The same for the peer of a data link, in the caller's thread. Lock held on entry and return, not in between. */
void control_inquire_here(struct control *control, uint32_t peer, const char *operation, const char *seen);
/* A rank has not done in time what this one waits for: as control_inquire_here, but it is late when it answers. */
void control_overdue(struct control *control, uint32_t rank, const char *operation, const char *detail);
enum st_status control_ask_frame(struct control *control, struct control_link *link, const uint8_t *payload);
enum st_status control_answer_frame(struct control *control, struct control_link *link, const uint8_t *payload);
/* Waits for the helpers, which end soon after `closing`. Lock held. */
void control_helpers_end(struct control *control);

/* control_decide.c */
enum st_status control_group_decide(struct control_group *group, uint32_t kind, const void *mine, size_t bytes, void *all, int64_t timeout_ms,
				    const char *name);
/* The rest with the lock held.  ST_ERR_PROTOCOL with a message: no correct rank sends this. */
enum st_status control_decision_frame(struct control *control, struct control_link *from, const uint8_t *payload, size_t bytes);
/* To a new neighbour: all that is known of the root's decisions, which every rank keeps. */
void control_decisions_resend(struct control *control, struct control_link *link);
/* How many decisions this rank has had part in. */
uint64_t control_decisions_entered(struct control_group *group);
/* To everybody: what this rank, and members that have left, have contributed. */
void control_decisions_repeat(struct control_group *group);
/* Contributions that came while the group was forming. */
void control_decisions_take_early(struct control_group *group);
/* Ranks that wait in a decision before which this one has issued more operations than they. */
void control_decisions_tick(struct control *control);
void control_decisions_free(struct control_group *group);

/* control_service.c */
enum st_status control_service_start(struct control *control);
void control_service_stop(struct control *control);
void control_wake(struct control *control);
/* Waits for `changed`, at most until the deadline's next look; false when the deadline has passed. Lock held. */
bool control_wait(struct control *control, struct st_deadline *deadline);

#endif
