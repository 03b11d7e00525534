/*
 * Verdicts that all ranks share.  Each function is collective and blocks.  *agreed becomes true when all ranks return the same failure with
 * the same message, and stays as it is otherwise, also when the communicator failed: then each rank knows something of its own.
 */
#ifndef SYNCTRAIN_TRAINER_AGREE_H
#define SYNCTRAIN_TRAINER_AGREE_H

#include <stdbool.h>
#include <stddef.h>

#include "common/status.h"

struct comm;

/*
 * Every rank says how a step of start-up went for it; all return ST_OK, or all return the first failing rank's status with its
 * message, which then names that rank unless every rank failed alike.  Without this, one rank would leave and the others would only
 * see it vanish.
 */
enum st_status train_agree(struct comm *comm, enum st_status mine, bool *agreed);

/* Rank 0 says how something went that it alone did; all return its status and message. */
enum st_status train_agree_with_first(struct comm *comm, enum st_status mine, bool *agreed);

/* All ranks hold the same BYTES (at most 64) at MINE, called WHAT ("configuration"); else ST_ERR_MISMATCH names one that differs from rank 0. */
enum st_status train_agree_same(struct comm *comm, const void *mine, size_t bytes, const char *what, bool *agreed);

#endif
