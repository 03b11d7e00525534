/*
 * The mutual challenge-response that every control and data connection starts with.
 *
 *   client -> server  HELLO      purpose, both ranks, channel, nonce c
 *   server -> client  CHALLENGE  nonce s, HMAC(secret, "server" + transcript)
 *   client -> server  PROOF      HMAC(secret, "client" + transcript)
 *   server -> client  WELCOME    the server has checked the proof and taken the connection
 *
 * transcript = protocol version, purpose, Unix or TCP, context and channel, both ranks, c, s, job: so a proof is good for one connection,
 * one direction, one purpose and one launch.  It shows that both ends know the job's secret; it does not encrypt what
 * follows.  (Symmetric two-pass mutual authentication as in ISO/IEC 9798-4, with HMAC-SHA-256, RFC 2104.)
 *
 * Pure: these functions turn bytes into bytes; who moves them, and under which deadline, is the caller's business.
 */
#ifndef SYNCTRAIN_LIBCOMM_AUTH_H
#define SYNCTRAIN_LIBCOMM_AUTH_H

#include "wire.h"

struct auth_keys {
	const uint8_t *secret; /* WIRE_SECRET_BYTES; borrowed */
	const char *job;       /* borrowed */
	uint32_t rank, size;   /* of this end, and of the job */
};

/* One connection's state. Holds no secret. */
struct auth_session {
	struct wire_hello hello; /* after auth_server_hello: who asks for what */
	uint8_t server_nonce[WIRE_NONCE_BYTES];
	bool local; /* the connection is a Unix socket */
};

/* Client: fills HELLO for a connection to rank `to`. ST_ERR_SYSTEM when the kernel has no random bytes. */
enum st_status auth_client_begin(const struct auth_keys *keys, uint32_t to, enum wire_purpose purpose, uint64_t context, uint32_t channel,
				 bool local, struct auth_session *session, struct wire_hello *hello);

/* Client: checks the server's CHALLENGE, fills PROOF. ST_ERR_PROTOCOL: not a challenge; ST_ERR_MISMATCH: another protocol version, named in
 * the message; ST_ERR_PERMISSION: the server does not know the secret, or means another connection. */
enum st_status auth_client_prove(const struct auth_keys *keys, struct auth_session *session, const struct wire_challenge *challenge,
				 struct wire_proof *proof);

/* Client: checks WELCOME. ST_ERR_PROTOCOL. */
enum st_status auth_client_end(const struct wire_welcome *welcome);

/* Server: checks HELLO, fills CHALLENGE. ST_ERR_PROTOCOL: garbage; ST_ERR_MISMATCH: another version (challenge is still to be sent: it names
 * this end's version); ST_ERR_PERMISSION: meant for another rank, or from a rank that can't be. */
enum st_status auth_server_begin(const struct auth_keys *keys, const struct wire_hello *hello, bool local, struct auth_session *session,
				 struct wire_challenge *challenge);

/* Server: checks PROOF, fills WELCOME. ST_ERR_PROTOCOL, ST_ERR_PERMISSION. */
enum st_status auth_server_end(const struct auth_keys *keys, const struct auth_session *session, const struct wire_proof *proof,
			       struct wire_welcome *welcome);

#endif
