/*
 * A transport moves puts along channels; the engine sees nothing but this interface.
 *
 * A link joins this rank with one peer through one transport and carries both directions of one channel index.  All calls are
 * made by the communicator's one thread, none blocks.  Grants and puts are FIFO per direction: put k lands where grant k said.
 */
#ifndef SYNCTRAIN_LIBCOMM_TRANSPORT_H
#define SYNCTRAIN_LIBCOMM_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

struct link;

struct transport_ops {
	const char *name; /* "shm", "tcp" */

	/*
	 * Makes a link out of a connected, authenticated stream socket (see control.h), which it then owns.  `slots` slots of
	 * slot_bytes each are set aside for what the peer sends; equal on both ends.  Both ends call this; may exchange a first
	 * message on the socket within the deadline.
	 */
	enum st_status (*open)(int fd, uint32_t peer, const char *peer_name, unsigned slots, size_t slot_bytes, int64_t timeout_ms,
			       struct link **link);
	void (*close)(struct link *link);

	/* The memory of incoming slot `slot` (0..slots-1), slot_bytes long. */
	void *(*slot)(struct link *link, unsigned slot);

	/* Receiver: grants `bytes` at `destination` (own slot or any private memory) for the peer's next put, which must carry
	 * exactly this many bytes and belong to operation `sequence`. ST_PENDING: too many grants outstanding, call again. */
	enum st_status (*ready)(struct link *link, void *destination, size_t bytes, uint64_t sequence);

	/* Sender: the next put. ST_PENDING: no grant or no room yet, call again with the same arguments. */
	enum st_status (*put)(struct link *link, const void *source, size_t bytes, uint64_t sequence);

	/* Number of puts of the peer that have landed whole; number of own puts whose source may be overwritten. Both only grow. */
	uint64_t (*received)(struct link *link);
	uint64_t (*flushed)(struct link *link);

	/* Moves bytes. Returns ST_OK, or why this link is dead: ST_ERR_ABORTED for end of file or reset (the peer is gone),
	 * ST_ERR_MISMATCH (length or operation of a put is not what was granted: both sides named), ST_ERR_PROTOCOL. */
	enum st_status (*progress)(struct link *link);

	/*
	 * Sleeping.  arm() says that this rank is about to sleep until something changes on the link; afterwards the caller looks once
	 * more with progress() and then sleeps in epoll on fd(), for reading and, if wants_write(), for writing.  disarm() when awake.
	 */
	int (*fd)(struct link *link);
	bool (*wants_write)(struct link *link);
	void (*arm)(struct link *link);
	void (*disarm)(struct link *link);
};

extern const struct transport_ops transport_shm, transport_tcp;

/* Every struct link starts with this. */
struct link {
	const struct transport_ops *ops;
	uint32_t peer;
	uint64_t puts, put_bytes; /* sent by this rank */
};

#endif
