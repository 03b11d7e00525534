/*
 * Are all replicas the same?  Synchronous training rests on it: parameters and optimizer state must be equal, bit for bit, on every rank.
 *
 * Each rank hashes every tensor of every buffer (XXH3, 128 bits), and the hash of these hashes is compared first.  Only when ranks
 * differ are the tensors' hashes exchanged, to name the ranks in the minority and what they differ in.
 */
#ifndef SYNCTRAIN_TRAINER_REPLICA_H
#define SYNCTRAIN_TRAINER_REPLICA_H

#include <stdint.h>

#include "common/status.h"
#include "trainer/checkpoint.h"

struct comm;

/*
 * Collective, blocking.  hash: hex of the common hash.  ST_ERR_DIVERGED, on all ranks with the same message, when replicas differ: the
 * minority ranks, their nodes and the first tensors that differ from the majority's; with two ranks, or without a majority, all are named.
 */
enum st_status train_replicas_compare(struct comm *comm, const struct train_buffers *buffers, uint64_t step, char hash[33]);

#endif
