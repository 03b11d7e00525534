/* The control plane's frames, reassembled from pieces of any size: the same frames whatever the pieces, and never past the end of one. */
#include "fuzz.h"

#include "libcomm/wire.h"

/* Gives the reader at most `most` bytes at a time. The status it ended with; *digest over all whole frames, *frames their number. */
static enum st_status read_all(const uint8_t *data, size_t bytes, size_t most, uint64_t *digest, unsigned *frames)
{
	struct wire_reader reader = {0};
	enum st_status status = ST_OK;

	*digest = *frames = 0;
	while (bytes && status == ST_OK) {
		void *where;
		size_t room;
		wire_reader_space(&reader, &where, &room);
		FUZZ_REQUIRE(room > 0 && room <= WIRE_MAX_PAYLOAD_BYTES);
		size_t n = room < most ? room : most;
		n = n < bytes ? n : bytes;
		memcpy(where, data, n);
		data += n;
		bytes -= n;
		status = wire_reader_advance(&reader, n);
		if (status != ST_OK || !reader.complete)
			continue;
		FUZZ_REQUIRE(wire_length_allowed(reader.header.type, reader.header.length));
		(*frames)++;
		*digest = *digest * 31 + reader.header.type;
		for (size_t i = 0; i < reader.header.length; i++)
			*digest = *digest * 31 + reader.payload[i];
		wire_reader_next(&reader);
	}
	wire_reader_free(&reader);
	return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	uint64_t whole, pieces;
	unsigned frames, again;
	struct fuzz_input input = {data, bytes};
	size_t most = 1 + fuzz_u8(&input) % 61u;

	enum st_status status = read_all(input.data, input.left, SIZE_MAX, &whole, &frames);
	FUZZ_REQUIRE(status == ST_OK || status == ST_ERR_PROTOCOL);
	if (status != ST_OK)
		fuzz_check_message();
	FUZZ_REQUIRE(read_all(input.data, input.left, most, &pieces, &again) == status && whole == pieces && frames == again);

	char text[32];
	size_t length = 1 + fuzz_take(&input, text, sizeof text - 1);
	wire_clean_text(text, length);
	FUZZ_REQUIRE(strnlen(text, length) < length);
	for (const char *p = text; *p; p++)
		FUZZ_REQUIRE(*p >= ' ' && *p <= '~');
	return 0;
}

size_t fuzz_seed(unsigned i, uint8_t *data)
{
	size_t at = 1;

	if (i > WIRE_FRAME_END)
		return 0;
	data[0] = (uint8_t)i;
	/* Seed 0: all kinds, one after the other. */
	for (uint16_t type = 1; type < WIRE_FRAME_END; type++) {
		struct wire_frame frame = {.magic = WIRE_MAGIC, .version = WIRE_VERSION, .type = type};
		if (i && i != type)
			continue;
		/* The shortest that it may be. */
		while (!wire_length_allowed(type, frame.length) && frame.length < 4096)
			frame.length++;
		memcpy(data + at, &frame, sizeof frame);
		memset(data + at + sizeof frame, 0, frame.length);
		at += sizeof frame + frame.length;
	}
	return at;
}
