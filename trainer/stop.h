/*
 * Reasons to stop early, with a checkpoint: a signal (SIGTERM, SIGUSR1, SIGINT), or a time limit that comes near.
 *
 * One rank's reason becomes all ranks' at a step boundary, see vote.h.
 */
#ifndef SYNCTRAIN_TRAINER_STOP_H
#define SYNCTRAIN_TRAINER_STOP_H

#include <stdint.h>

/* 0: go on; > 0: the number of the signal that came; < 0: a time limit. */
typedef int32_t train_stop;
#define TRAIN_STOP_TIME_LIMIT (-1)     /* time_limit.seconds */
#define TRAIN_STOP_JOB_END (-2)        /* SLURM_JOB_END_TIME */

/* Installs the handlers, which only note the signal. Starts counting `seconds` (0: no limit); both limits are met `margin` seconds
 * early. */
void train_stop_watch(double seconds, double margin);

train_stop train_stop_wanted(void);

/* "SIGTERM", "the time limit of 3600 s", ...; text of at least 64 bytes. */
const char *train_stop_name(train_stop stop, char text[64]);

#endif
