/* One rank's control plane without threads and launcher: the state that control_open makes, for targets that play its peers. */
#ifndef SYNCTRAIN_TESTS_FUZZ_CONTROL_STATE_H
#define SYNCTRAIN_TESTS_FUZZ_CONTROL_STATE_H

/* Its functions are static, and stand here for those of the library. */
#include "libcomm/control.c"

#include "fuzz.h"

#define FUZZ_RANKS 6 /* on two nodes */

/* What rank R of FUZZ_RANKS would give to the bootstrap. */
static inline struct wire_record fuzz_record(uint32_t r)
{
	struct wire_record record = {.magic = WIRE_MAGIC, .version = WIRE_VERSION, .record_bytes = sizeof record, .port4 = (uint16_t)(1000 + r),
				     .chunk_bytes_hint = 131072, .slots_hint = 4, .heartbeat_ms = 500, .stall_timeout_ms = 5000};

	strcpy(record.build, "build");
	snprintf(record.node, sizeof record.node, "node%u", r / 3);
	snprintf(record.address, sizeof record.address, "leaf%u.node%u", r / 3, r / 3);
	snprintf(record.unix_name, sizeof record.unix_name, "synctrain.%u", r);
	if (r == 0)
		memset(record.secret, 7, sizeof record.secret);
	return record;
}

static inline struct control *fuzz_control_bare(uint32_t rank)
{
	struct bootstrap bootstrap = {.rank = rank, .size = FUZZ_RANKS, .job = "fuzz"};
	static const struct control_options options;
	struct control *control = NULL;

	FUZZ_REQUIRE(allocate(&bootstrap, &options, &control) == ST_OK);
	control->next_heartbeat = st_deadline_in_ms(control->heartbeat_ms);
	control->last_tick_ns = st_now_ns();
	return control;
}

static inline struct control *fuzz_control(uint32_t rank)
{
	struct control *control = fuzz_control_bare(rank);
	struct wire_record records[FUZZ_RANKS];

	for (uint32_t r = 0; r < FUZZ_RANKS; r++)
		records[r] = fuzz_record(r);
	FUZZ_REQUIRE(check_records(records, FUZZ_RANKS) == ST_OK && take_records(control, records) == ST_OK);
	return control;
}

#endif
