#include "wire.h"

#include <stdlib.h>

bool wire_length_allowed(uint32_t type, uint32_t length)
{
	switch (type) {
	case WIRE_HEARTBEAT:
	case WIRE_FAREWELL:
		return length == 0;
	case WIRE_GOODBYE:
		return length == sizeof(struct wire_goodbye);
	case WIRE_RESEND:
		return length == sizeof(struct wire_resend);
	case WIRE_ABORT:
		return length == sizeof(struct wire_abort);
	case WIRE_ASK:
		return length == sizeof(struct wire_ask);
	case WIRE_ANSWER:
		return length == sizeof(struct wire_answer);
	case WIRE_DECISION:
		return length >= sizeof(struct wire_decision) && length <= WIRE_MAX_PAYLOAD_BYTES;
	default:
		return false;
	}
}

void wire_reader_space(struct wire_reader *reader, void **where, size_t *bytes)
{
	if (!reader->in_payload) {
		*where = (uint8_t *)&reader->header + reader->have;
		*bytes = sizeof reader->header - reader->have;
	} else {
		*where = reader->payload + reader->have;
		*bytes = reader->header.length - reader->have;
	}
}

enum st_status wire_reader_advance(struct wire_reader *reader, size_t bytes)
{
	const struct wire_frame *header = &reader->header;

	reader->have += bytes;
	if (reader->in_payload) {
		reader->complete = reader->have == header->length;
		return ST_OK;
	}
	if (reader->have < sizeof *header)
		return ST_OK;
	if (header->magic != WIRE_MAGIC || header->version != WIRE_VERSION || header->zero)
		return st_fail(ST_ERR_PROTOCOL, "seen magic %08x version %u, expected %08x version %u", header->magic, header->version,
			       WIRE_MAGIC, WIRE_VERSION);
	if (!wire_length_allowed(header->type, header->length))
		return st_fail(ST_ERR_PROTOCOL, "seen a frame of type %u with %u bytes, which no correct rank sends", header->type,
			       header->length);
	reader->have = 0;
	reader->in_payload = true;
	reader->complete = header->length == 0;
	if (header->length > reader->capacity) {
		uint8_t *larger = realloc(reader->payload, header->length);
		if (!larger)
			return st_fail(ST_ERR_NOMEM, "no memory for a control frame of %u bytes", header->length);
		reader->payload = larger;
		reader->capacity = header->length;
	}
	return ST_OK;
}

void wire_reader_next(struct wire_reader *reader)
{
	reader->have = 0;
	reader->in_payload = reader->complete = false;
}

void wire_reader_free(struct wire_reader *reader)
{
	free(reader->payload);
	*reader = (struct wire_reader){0};
}

void wire_clean_text(char *text, size_t bytes)
{
	text[bytes - 1] = 0;
	for (; *text; text++)
		if (*text < ' ' || *text > '~')
			*text = '?';
}
