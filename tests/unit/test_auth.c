/* Only who knows the job's secret gets through the handshake, and only for this connection, direction, purpose and launch. */
#include "check.h"

#include "common/clock.h"
#include "common/digest.h"
#include "libcomm/auth.h"

static const uint8_t right[WIRE_SECRET_BYTES] = {1, 2, 3}, wrong[WIRE_SECRET_BYTES] = {1, 2, 4};

struct run {
	struct auth_keys client, server;
	uint32_t to;
	enum wire_purpose purpose;
	uint64_t context;
	uint32_t channel;
	bool client_local, server_local;
	struct auth_session client_session, server_session;
	struct wire_hello hello;
	struct wire_challenge challenge;
	struct wire_proof proof;
	struct wire_welcome welcome;
};

static struct run usual(void)
{
	return (struct run){.client = {.secret = right, .job = "7.0.0", .rank = 2, .size = 8},
			    .server = {.secret = right, .job = "7.0.0", .rank = 5, .size = 8},
			    .to = 5,
			    .purpose = WIRE_PURPOSE_DATA,
			    .context = 77,
			    .channel = 3};
}

/* Each step of one handshake; the first that fails ends it. */
static enum st_status handshake(struct run *r)
{
	ST_TRY(auth_client_begin(&r->client, r->to, r->purpose, r->context, r->channel, r->client_local, &r->client_session, &r->hello));
	ST_TRY(auth_server_begin(&r->server, &r->hello, r->server_local, &r->server_session, &r->challenge));
	ST_TRY(auth_client_prove(&r->client, &r->client_session, &r->challenge, &r->proof));
	ST_TRY(auth_server_end(&r->server, &r->server_session, &r->proof, &r->welcome));
	return auth_client_end(&r->welcome);
}

static void test_right(void)
{
	struct run r = usual();

	CHECK_OK(handshake(&r));
	CHECK(r.server_session.hello.from == 2 && r.server_session.hello.channel == 3 && r.server_session.hello.purpose == WIRE_PURPOSE_DATA);
}

/* The server proves itself first: with a wrong secret, job or medium on either side no proof of ours leaves. */
static void test_ends_that_differ(void)
{
	struct run r = usual();

	r.client.secret = wrong;
	CHECK_FAILS(handshake(&r), ST_ERR_PERMISSION, "secret");
	r = usual();
	r.server.secret = wrong;
	CHECK_FAILS(handshake(&r), ST_ERR_PERMISSION, "secret");
	r = usual();
	r.server.job = "7.0.1";
	CHECK_FAILS(handshake(&r), ST_ERR_PERMISSION, "secret");
	r = usual();
	r.server_local = true;
	CHECK_FAILS(handshake(&r), ST_ERR_PERMISSION, "secret");
	r = usual();
	r.to = 4;
	CHECK_FAILS(handshake(&r), ST_ERR_PERMISSION, "to rank 4");
	r = usual();
	r.client.rank = 5; /* claims to be the server itself */
	CHECK_FAILS(handshake(&r), ST_ERR_PERMISSION, "from rank 5");
	r = usual();
	r.client.rank = 8;
	CHECK_FAILS(handshake(&r), ST_ERR_PERMISSION, "from rank 8");
}

/* A client that does not know the secret but talks on: guesses, all zero, the server's own MAC sent back (reflection). */
static void test_bad_proofs(void)
{
	struct run r = usual();
	struct wire_proof forged = {.magic = WIRE_MAGIC, .version = WIRE_VERSION, .kind = WIRE_PROOF};

	CHECK_OK(handshake(&r));
	CHECK_FAILS(auth_server_end(&r.server, &r.server_session, &forged, &r.welcome), ST_ERR_PERMISSION, "did not prove");
	memcpy(forged.mac, r.challenge.mac, sizeof forged.mac);
	CHECK_FAILS(auth_server_end(&r.server, &r.server_session, &forged, &r.welcome), ST_ERR_PERMISSION, "did not prove");
	for (size_t bit = 0; bit < 8 * sizeof r.proof.mac; bit++) {
		forged = r.proof;
		forged.mac[bit / 8] ^= (uint8_t)(1u << bit % 8);
		CHECK(auth_server_end(&r.server, &r.server_session, &forged, &r.welcome) == ST_ERR_PERMISSION, "bit %zu does not matter", bit);
	}
}

/* Rank 5 opens a connection to rank 2 at the same time; its messages are turned round and fed back to it. */
static void test_reflection(void)
{
	struct run r = usual();
	struct auth_session session;
	struct wire_challenge challenge;

	/* Attacker gives rank 5's own HELLO back to rank 5. */
	CHECK_OK(auth_client_begin(&r.server, 2, WIRE_PURPOSE_TREE, 0, 0, false, &session, &r.hello));
	CHECK_FAILS(auth_server_begin(&r.server, &r.hello, false, &r.server_session, &challenge), ST_ERR_PERMISSION, "from rank 5");
	/* And asks rank 5 as server, in the name of rank 2, with rank 5's nonce: the answer must not pass as rank 2's answer. */
	struct wire_hello turned = r.hello;
	turned.from = 2;
	turned.to = 5;
	CHECK_OK(auth_server_begin(&r.server, &turned, false, &r.server_session, &challenge));
	CHECK_FAILS(auth_client_prove(&r.server, &session, &challenge, &r.proof), ST_ERR_PERMISSION, "secret");
}

static void test_replay(void)
{
	struct run first = usual(), second = usual();

	CHECK_OK(handshake(&first));
	/* All the client's bytes of the first connection, on a second one. */
	CHECK_OK(auth_server_begin(&second.server, &first.hello, false, &second.server_session, &second.challenge));
	CHECK(memcmp(second.challenge.nonce, first.challenge.nonce, sizeof first.challenge.nonce), "the server's nonce repeats");
	CHECK_FAILS(auth_server_end(&second.server, &second.server_session, &first.proof, &second.welcome), ST_ERR_PERMISSION, "did not prove");
	/* All the server's bytes of the first connection, to a client that asks again. */
	CHECK_OK(auth_client_begin(&second.client, 5, WIRE_PURPOSE_DATA, 0, 3, false, &second.client_session, &second.hello));
	CHECK_FAILS(auth_client_prove(&second.client, &second.client_session, &first.challenge, &second.proof), ST_ERR_PERMISSION, "secret");
}

/* In between, someone changes what the connection is for. */
static void test_changed_on_the_way(void)
{
	struct run r;

	for (int change = 0; change < 5; change++) {
		r = usual();
		CHECK_OK(auth_client_begin(&r.client, 5, WIRE_PURPOSE_DATA, 0, 3, false, &r.client_session, &r.hello));
		if (change == 0)
			r.hello.purpose = WIRE_PURPOSE_TREE;
		else if (change == 1)
			r.hello.channel = 4;
		else if (change == 2)
			r.hello.from = 1;
		else if (change == 3)
			r.hello.context = 5;
		else
			r.hello.nonce[31] ^= 1;
		CHECK_OK(auth_server_begin(&r.server, &r.hello, false, &r.server_session, &r.challenge));
		CHECK_FAILS(auth_client_prove(&r.client, &r.client_session, &r.challenge, &r.proof), ST_ERR_PERMISSION, "secret");
	}
}

static void test_versions(void)
{
	struct run r = usual();

	CHECK_OK(auth_client_begin(&r.client, 5, WIRE_PURPOSE_DATA, 0, 3, false, &r.client_session, &r.hello));
	r.hello.version = 9;
	CHECK_FAILS(auth_server_begin(&r.server, &r.hello, false, &r.server_session, &r.challenge), ST_ERR_MISMATCH, "version 9");
	CHECK(r.challenge.version == WIRE_VERSION, "the answer does not name the version");
	r.challenge.version = 8;
	CHECK_FAILS(auth_client_prove(&r.client, &r.client_session, &r.challenge, &r.proof), ST_ERR_MISMATCH, "version 8");
}

/* Random bytes, and right messages with random bytes changed: never accepted. */
static void test_garbage(void)
{
	struct run r = usual();
	struct st_deadline deadline = st_deadline_in_ms(500);
	unsigned accepted = 0, tried = 0;

	CHECK_OK(handshake(&r));
	while (!st_deadline_expired(&deadline)) {
		struct wire_hello hello;
		struct wire_challenge challenge;
		struct wire_proof proof;
		struct wire_welcome welcome;
		struct auth_session session;
		uint8_t at[4];
		CHECK_OK(st_random_bytes(at, sizeof at));
		CHECK_OK(st_random_bytes(&hello, sizeof hello));
		CHECK_OK(st_random_bytes(&challenge, sizeof challenge));
		CHECK_OK(st_random_bytes(&proof, sizeof proof));
		if (at[3] & 1) {
			hello = r.hello;
			challenge = r.challenge;
			proof = r.proof;
			uint8_t change = at[2] ? at[2] : 1;
			((uint8_t *)&hello)[at[0] % sizeof hello] ^= change;
			((uint8_t *)&challenge)[at[0] % sizeof challenge] ^= change;
			((uint8_t *)&proof)[at[0] % sizeof proof] ^= change;
		}
		struct auth_session client = r.client_session;
		struct wire_challenge ignored;
		auth_server_begin(&r.server, &hello, false, &session, &ignored);
		accepted += auth_client_prove(&r.client, &client, &challenge, &proof) == ST_OK;
		accepted += auth_server_end(&r.server, &r.server_session, &proof, &welcome) == ST_OK && memcmp(&proof, &r.proof, sizeof proof);
		tried++;
	}
	CHECK(accepted == 0, "%u of %u changed handshakes were accepted", accepted, tried);
}

/* The frame reader: pieces of any size give the same frames; random bytes are refused before anything is allocated. */
static void test_frames(void)
{
	uint8_t stream[4096];
	size_t bytes = 0;
	struct st_deadline deadline = st_deadline_in_ms(500);

	for (uint32_t i = 0; i < 10; i++) {
		struct wire_decision head = {.sequence = i, .kind = WIRE_DECISION_GATHER, .bytes = i * 10};
		struct wire_frame f = {.magic = WIRE_MAGIC, .version = WIRE_VERSION, .type = WIRE_DECISION, .length = (uint32_t)sizeof head + i * 10};
		memcpy(stream + bytes, &f, sizeof f);
		memcpy(stream + bytes + sizeof f, &head, sizeof head);
		memset(stream + bytes + sizeof f + sizeof head, (int)i, i * 10);
		bytes += sizeof f + f.length;
		f = (struct wire_frame){.magic = WIRE_MAGIC, .version = WIRE_VERSION, .type = WIRE_HEARTBEAT};
		memcpy(stream + bytes, &f, sizeof f);
		bytes += sizeof f;
	}
	for (size_t piece = 1; piece < 70; piece++) {
		struct wire_reader reader = {0};
		uint32_t decisions = 0, beats = 0;
		for (size_t at = 0; at < bytes;) {
			void *where;
			size_t room;
			wire_reader_space(&reader, &where, &room);
			size_t n = piece < room ? piece : room;
			n = n < bytes - at ? n : bytes - at;
			memcpy(where, stream + at, n);
			at += n;
			CHECK_OK(wire_reader_advance(&reader, n));
			if (!reader.complete)
				continue;
			if (reader.header.type == WIRE_HEARTBEAT) {
				beats++;
			} else {
				CHECK(reader.header.length == sizeof(struct wire_decision) + decisions * 10);
				CHECK(decisions == 0 || reader.payload[reader.header.length - 1] == decisions);
				decisions++;
			}
			wire_reader_next(&reader);
		}
		CHECK(decisions == 10 && beats == 10, "pieces of %zu give %u and %u frames", piece, decisions, beats);
		wire_reader_free(&reader);
	}

	unsigned accepted = 0;
	while (!st_deadline_expired(&deadline)) {
		struct wire_reader reader = {0};
		struct wire_frame f;
		uint8_t kind;
		void *where;
		size_t room;
		CHECK_OK(st_random_bytes(&f, sizeof f));
		CHECK_OK(st_random_bytes(&kind, 1));
		if (kind & 1) { /* a good header with an impossible length */
			uint32_t length = f.length;
			uint16_t type = kind & 2 ? WIRE_DECISION : f.type;
			f = (struct wire_frame){.magic = WIRE_MAGIC, .version = WIRE_VERSION, .type = type, .length = length | 0x80000000u};
		}
		wire_reader_space(&reader, &where, &room);
		CHECK(room == sizeof f);
		memcpy(where, &f, sizeof f);
		accepted += wire_reader_advance(&reader, sizeof f) != ST_ERR_PROTOCOL;
		CHECK(!reader.payload, "memory was allocated for a frame that no correct rank sends");
		wire_reader_free(&reader);
	}
	CHECK(accepted == 0, "%u random headers were accepted", accepted);
	CHECK(!wire_length_allowed(WIRE_DECISION, WIRE_MAX_PAYLOAD_BYTES + 1) && wire_length_allowed(WIRE_DECISION, WIRE_MAX_PAYLOAD_BYTES));
	CHECK(!wire_length_allowed(WIRE_ABORT, 0) && !wire_length_allowed(WIRE_FRAME_END, 0) && !wire_length_allowed(WIRE_HEARTBEAT, 1));
}

int main(void)
{
	test_right();
	test_ends_that_differ();
	test_bad_proofs();
	test_reflection();
	test_replay();
	test_changed_on_the_way();
	test_versions();
	test_garbage();
	test_frames();
	return check_result();
}
