#include "trainer/portable.h"

#include <math.h>
#include <string.h>

static const double two_pi = 6.283185307179586;

double train_log(double x)
{
	if (!(x > 0))
		return x == 0 ? -(double)INFINITY : (double)NAN;
	if (x > 1.7976931348623157e308)
		return x;
	int exponent_bias = 1023;
	if (x < 2.2250738585072014e-308) {
		x *= 18014398509481984.0; /* 2^54 */
		exponent_bias += 54;
	}
	uint64_t bits;
	memcpy(&bits, &x, sizeof(bits));
	int exponent = (int)(bits >> 52) - exponent_bias;
	bits = (bits & 0x000fffffffffffffULL) | 0x3ff0000000000000ULL;
	double m;
	memcpy(&m, &bits, sizeof(m));
	if (m > 1.4142135623730951) {
		m *= 0.5;
		exponent++;
	}
	/* log m = 2 atanh(s), |s| < 0.172: eleven terms of the series reach 1e-17. */
	double s = (m - 1) / (m + 1), z = s * s, series = 0;
	for (int k = 23; k >= 3; k -= 2)
		series = (series + 1.0 / k) * z;
	/* ln 2 in two parts: the first has few enough bits for exponent * part to be exact. */
	double n = exponent;
	return n * 0.69314718036912382 + (n * 1.9082149292705877e-10 + (2 * s * series + 2 * s));
}

/* sin and cos of |angle| <= pi/4 by their series. */
static double sin_series(double angle)
{
	double z = angle * angle, sum = 0;
	for (int k = 17; k >= 3; k -= 2)
		sum = (sum + 1) * -z / (k * (k - 1));
	return angle + angle * sum;
}

static double cos_series(double angle)
{
	double z = angle * angle, sum = 0;
	for (int k = 18; k >= 2; k -= 2)
		sum = (sum + 1) * -z / (k * (k - 1));
	return 1 + sum;
}

/* cos(2 pi (turns - quarters/4)): quarters 0 is the cosine, 1 the sine. */
static double wave(double turns, int64_t quarters)
{
	int64_t quadrant = (int64_t)(turns * 4 + (turns < 0 ? -0.5 : 0.5));
	double angle = (turns - (double)quadrant * 0.25) * two_pi;
	switch ((quadrant - quarters) & 3) {
	case 0: return cos_series(angle);
	case 1: return -sin_series(angle);
	case 2: return -cos_series(angle);
	default: return sin_series(angle);
	}
}

double train_cos_turns(double turns)
{
	return wave(turns, 0);
}

double train_sin_turns(double turns)
{
	return wave(turns, 1);
}

double train_power(double x, uint64_t n)
{
	double result = 1;
	for (; n; n >>= 1) {
		if (n & 1)
			result *= x;
		x *= x;
	}
	return result;
}

static uint64_t mix(uint64_t x)
{
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
	return x ^ (x >> 31);
}

uint64_t train_random(uint64_t seed, uint64_t index)
{
	/* The seed is mixed first: streams of neighbouring seeds must not be shifted copies of each other. */
	return mix(mix(seed + 0x9e3779b97f4a7c15ULL) + (index + 1) * 0x9e3779b97f4a7c15ULL);
}

double train_normal(uint64_t seed, uint64_t index)
{
	const double unit = 1.0 / 9007199254740992.0; /* 2^-53 */
	double u = ((double)(train_random(seed, index & ~1ULL) >> 11) + 0.5) * unit; /* in (0, 1) */
	double v = (double)(train_random(seed, index | 1) >> 11) * unit;            /* in [0, 1) */
	double radius = sqrt(-2 * train_log(u));
	return radius * (index & 1 ? train_sin_turns(v) : train_cos_turns(v));
}
