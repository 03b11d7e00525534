/*
 * Elementary functions and random numbers whose bits are the same on every machine.
 *
 * The C library picks variants of log, cos and pow by CPU (with and without fused multiply-add), which differ in the last bit.
 * Ranks on nodes of different CPUs must not draw different initial values or learning rates from that: these functions use
 * only operations that IEEE 754 rounds exactly.  Errors are below 1e-15 relative.
 */
#ifndef SYNCTRAIN_TRAINER_PORTABLE_H
#define SYNCTRAIN_TRAINER_PORTABLE_H

#include <stdint.h>

/* Natural logarithm of x > 0, normal and finite; other values: NaN, or infinity of log's sign. */
double train_log(double x);

/* cos and sin of a full turn's fraction: cos(2 pi turns), sin(2 pi turns), |turns| < 2^50. */
double train_cos_turns(double turns);
double train_sin_turns(double turns);

/* x^n by repeated squaring. */
double train_power(double x, uint64_t n);

/* Random 64-bit number `index` of the stream `seed` (splitmix64's finalizer on a counter: Steele, Lea, Flood, 2014). */
uint64_t train_random(uint64_t seed, uint64_t index);

/* Standard normal number `index` of the stream `seed` (Box-Muller; the pair 2k, 2k+1 shares its two random numbers). */
double train_normal(uint64_t seed, uint64_t index);

#endif
