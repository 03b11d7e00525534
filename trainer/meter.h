/* Where a step's time goes: fills one step record. At each moment one phase runs, so that the phases add up to the step exactly. */
#ifndef SYNCTRAIN_TRAINER_METER_H
#define SYNCTRAIN_TRAINER_METER_H

#include "trainer/records.h"

struct train_meter {
	struct train_record record;
	enum train_phase phase;
	int64_t began_ns, phase_began_ns, cpu_began_ns, runqueue_began_ns;
	int schedstat; /* descriptor; -1: this kernel does not tell */
};

void train_meter_open(struct train_meter *meter, uint32_t rank);
void train_meter_close(struct train_meter *meter);

/* Begins a step, in phase TRAIN_PHASE_OTHER. */
void train_meter_begin(struct train_meter *meter, uint64_t step, uint32_t epoch);

/* From now on time belongs to PHASE. */
void train_meter_phase(struct train_meter *meter, enum train_phase phase);

/* Of the time that FROM has, NS belong to TO (no more than it has, nothing when negative). */
void train_meter_move(struct train_meter *meter, enum train_phase from, enum train_phase to, int64_t ns);

/* Nanoseconds since the step began. */
int64_t train_meter_elapsed_ns(const struct train_meter *meter);

/* Ends the step: the record is complete but for tokens, bytes and loss, which are the caller's. */
void train_meter_end(struct train_meter *meter);

#endif
