#include "auth.h"

#include <string.h>

#include "bootstrap.h"
#include "common/digest.h"

enum direction { FROM_SERVER = 1, FROM_CLIENT = 2 };

/* What is authenticated. Fixed size: no two transcripts can run into each other. */
struct transcript {
	char label[16];
	uint32_t version, direction, purpose, local;
	uint32_t channel, from, to, job_bytes;
	uint64_t context;
	uint8_t client_nonce[WIRE_NONCE_BYTES], server_nonce[WIRE_NONCE_BYTES];
	char job[BOOTSTRAP_JOB_BYTES];
};
_Static_assert(sizeof(struct transcript) == 16 + 32 + 8 + 64 + BOOTSTRAP_JOB_BYTES, "padding would be authenticated garbage");

static enum st_status mac_of(const struct auth_keys *keys, const struct auth_session *session, enum direction direction,
			     uint8_t mac[WIRE_MAC_BYTES])
{
	struct transcript t = {.label = "synctrain-auth",
			       .version = WIRE_VERSION,
			       .direction = direction,
			       .purpose = session->hello.purpose,
			       .local = session->local,
			       .channel = session->hello.channel,
			       .context = session->hello.context,
			       .from = session->hello.from,
			       .to = session->hello.to};
	size_t job_bytes = strnlen(keys->job, sizeof t.job);

	t.job_bytes = (uint32_t)job_bytes;
	memcpy(t.job, keys->job, job_bytes);
	memcpy(t.client_nonce, session->hello.nonce, sizeof t.client_nonce);
	memcpy(t.server_nonce, session->server_nonce, sizeof t.server_nonce);
	return st_hmac_sha256(keys->secret, WIRE_SECRET_BYTES, &t, sizeof t, mac);
}

enum st_status auth_client_begin(const struct auth_keys *keys, uint32_t to, enum wire_purpose purpose, uint64_t context, uint32_t channel,
				 bool local, struct auth_session *session, struct wire_hello *hello)
{
	*session = (struct auth_session){.local = local};
	session->hello = (struct wire_hello){.magic = WIRE_MAGIC,
					     .version = WIRE_VERSION,
					     .kind = WIRE_HELLO,
					     .purpose = (uint8_t)purpose,
					     .from = keys->rank,
					     .to = to,
					     .channel = channel,
					     .context = context};
	ST_TRY(st_random_bytes(session->hello.nonce, sizeof session->hello.nonce));
	*hello = session->hello;
	return ST_OK;
}

enum st_status auth_client_prove(const struct auth_keys *keys, struct auth_session *session, const struct wire_challenge *challenge,
				 struct wire_proof *proof)
{
	uint8_t expected[WIRE_MAC_BYTES];

	if (challenge->magic != WIRE_MAGIC || challenge->kind != WIRE_CHALLENGE || challenge->zero)
		return st_fail(ST_ERR_PROTOCOL, "what listens there is not synctrain");
	if (challenge->version != WIRE_VERSION)
		return st_fail(ST_ERR_MISMATCH, "it speaks protocol version %u, this rank speaks version %u", challenge->version,
			       WIRE_VERSION);
	memcpy(session->server_nonce, challenge->nonce, sizeof session->server_nonce);
	ST_TRY(mac_of(keys, session, FROM_SERVER, expected));
	if (!st_equal_constant_time(expected, challenge->mac, sizeof expected))
		return st_fail(ST_ERR_PERMISSION, "it does not know the job's secret");
	*proof = (struct wire_proof){.magic = WIRE_MAGIC, .version = WIRE_VERSION, .kind = WIRE_PROOF};
	return mac_of(keys, session, FROM_CLIENT, proof->mac);
}

enum st_status auth_client_end(const struct wire_welcome *welcome)
{
	if (welcome->magic != WIRE_MAGIC || welcome->version != WIRE_VERSION || welcome->kind != WIRE_WELCOME || welcome->zero)
		return st_fail(ST_ERR_PROTOCOL, "it answered a good proof with garbage");
	return ST_OK;
}

enum st_status auth_server_begin(const struct auth_keys *keys, const struct wire_hello *hello, bool local, struct auth_session *session,
				 struct wire_challenge *challenge)
{
	*challenge = (struct wire_challenge){.magic = WIRE_MAGIC, .version = WIRE_VERSION, .kind = WIRE_CHALLENGE};
	if (hello->magic != WIRE_MAGIC || hello->kind != WIRE_HELLO)
		return st_fail(ST_ERR_PROTOCOL, "garbage instead of a greeting");
	if (hello->version != WIRE_VERSION)
		return st_fail(ST_ERR_MISMATCH, "protocol version %u, this rank speaks version %u", hello->version, WIRE_VERSION);
	if (hello->zero || hello->purpose == 0 || hello->purpose >= WIRE_PURPOSE_END)
		return st_fail(ST_ERR_PROTOCOL, "a greeting of purpose %u, which does not exist", hello->purpose);
	if (hello->to != keys->rank || hello->from >= keys->size || hello->from == keys->rank)
		return st_fail(ST_ERR_PERMISSION, "a greeting from rank %u to rank %u, this is rank %u of %u", hello->from, hello->to,
			       keys->rank, keys->size);
	*session = (struct auth_session){.hello = *hello, .local = local};
	ST_TRY(st_random_bytes(session->server_nonce, sizeof session->server_nonce));
	memcpy(challenge->nonce, session->server_nonce, sizeof challenge->nonce);
	return mac_of(keys, session, FROM_SERVER, challenge->mac);
}

enum st_status auth_server_end(const struct auth_keys *keys, const struct auth_session *session, const struct wire_proof *proof,
			       struct wire_welcome *welcome)
{
	uint8_t expected[WIRE_MAC_BYTES];

	if (proof->magic != WIRE_MAGIC || proof->version != WIRE_VERSION || proof->kind != WIRE_PROOF || proof->zero)
		return st_fail(ST_ERR_PROTOCOL, "garbage instead of a proof");
	ST_TRY(mac_of(keys, session, FROM_CLIENT, expected));
	if (!st_equal_constant_time(expected, proof->mac, sizeof expected))
		return st_fail(ST_ERR_PERMISSION, "rank %u did not prove that it knows the job's secret", session->hello.from);
	*welcome = (struct wire_welcome){.magic = WIRE_MAGIC, .version = WIRE_VERSION, .kind = WIRE_WELCOME};
	return ST_OK;
}
