/* The endpoint records that ranks give to the bootstrap: a job starts with those that make sense, and says whose does not. */
#include "control_state.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct fuzz_input input = {data, bytes};
	struct wire_record records[FUZZ_RANKS];
	struct control *control = fuzz_control_bare(2);

	/* Patches of true records: {rank and where, bytes}. */
	for (uint32_t r = 0; r < FUZZ_RANKS; r++)
		records[r] = fuzz_record(r);
	while (input.left) {
		uint16_t where = fuzz_u16(&input);
		uint8_t length = fuzz_u8(&input), patch[255];
		struct wire_record *record = &records[where % FUZZ_RANKS];
		size_t at = where / FUZZ_RANKS % sizeof *record, room = sizeof *record - at;
		fuzz_take(&input, patch, length);
		memcpy((uint8_t *)record + at, patch, length < room ? length : room);
	}
	enum st_status status = check_records(records, FUZZ_RANKS);
	if (status == ST_OK)
		status = take_records(control, records);
	if (status == ST_OK) {
		uint32_t steps = 0, parent;
		for (uint32_t r = 0; r < FUZZ_RANKS; r++) {
			FUZZ_REQUIRE(strnlen(control->endpoints[r].unix_name, WIRE_UNIX_NAME_BYTES) < WIRE_UNIX_NAME_BYTES);
			/* Everybody's parents lead to one root. */
			for (uint32_t at = r; control_tree_parent(control, at, &parent); at = parent)
				FUZZ_REQUIRE(parent < FUZZ_RANKS && ++steps <= FUZZ_RANKS * FUZZ_RANKS);
		}
	} else {
		fuzz_check_message();
	}
	destroy(control);
	return 0;
}

static size_t patch(uint8_t *data, uint32_t rank, size_t offset, const void *bytes, uint8_t length)
{
	uint16_t where = (uint16_t)(rank + FUZZ_RANKS * offset);

	memcpy(data, &where, 2);
	data[2] = length;
	memcpy(data + 3, bytes, length);
	return 3u + length;
}

#define FIELD(name) offsetof(struct wire_record, name)

size_t fuzz_seed(unsigned i, uint8_t *data)
{
	switch (i) {
	case 0: return patch(data, 0, FIELD(node), "node7", 6);
	case 1: return patch(data, 1, FIELD(version), "\x63", 1);
	case 2: return patch(data, 1, FIELD(address), "spine.leaf9.node0", 18);
	case 3: return patch(data, 2, FIELD(unix_name), "a name without an end that is longer than it may be", 48);
	case 4: return patch(data, 3, FIELD(loopback), "\1", 1);
	case 5: return patch(data, 0, FIELD(chunk_bytes_hint), "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 16);
	case 6: return patch(data, 5, FIELD(node), "", 1);
	case 7: return patch(data, 4, FIELD(magic), "JUNK", 4);
	default: return 0;
	}
}
