/* The training loop: what one synchronous step is, from top to bottom. */
#ifndef SYNCTRAIN_TRAINER_LOOP_H
#define SYNCTRAIN_TRAINER_LOOP_H

#include "common/status.h"
#include "trainer/run.h"

/*
 * Trains from where the run stands to its last step, or until a signal, a time limit or a failure ends it.
 * ST_OK: done, replicas compared, last checkpoint written.  ST_ERR_INTERRUPTED: stopped early by agreement, checkpoint written.
 * ST_ERR_DIVERGED: replicas differ, or too many steps in a row were not finite.  ST_ERR_ABORTED and what libcomm returns: a rank was lost.
 */
enum st_status train_loop(struct train_run *run);

#endif
