/*
 * The order of the data: a permutation for each epoch, as a pure function of (seed, epoch, index).
 *
 * Nothing is stored and nothing is advanced, so the order can't depend on the number of ranks, and a resumed run needs one number only:
 * how many sequences were consumed.  The permutation is a balanced Feistel network (Luby and Rackoff, 1988) on the next even power of
 * two, with cycle walking (Black and Rogaway, 2002) down to the true count.
 */
#ifndef SYNCTRAIN_TRAINER_SAMPLER_H
#define SYNCTRAIN_TRAINER_SAMPLER_H

#include <stdint.h>

/* For fixed (seed, epoch, count): index 0..count-1 -> each of 0..count-1 once. index < count, count >= 1. */
uint64_t train_permute(uint64_t seed, uint64_t epoch, uint64_t count, uint64_t index);

/* Which of the COUNT sequences is the position-th that training consumes (position 0, 1, ... over all epochs).
 * Sequence position / count epochs are complete before it: *epoch, when not NULL. */
uint64_t train_sample(uint64_t seed, uint64_t count, uint64_t position, uint64_t *epoch);

#endif
