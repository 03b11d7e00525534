/*
 * f16 (IEEE 754 binary16) and bf16 in plain C, with the bits of F16C: to nearest even, subnormals kept, what is too large becomes
 * infinity, a NaN stays one (made quiet, its payload cut).  The one exception: bf16 to f32 only shifts, so a signalling NaN still is one.
 */
#ifndef SYNCTRAIN_LIBCOMM_NUMBER16_H
#define SYNCTRAIN_LIBCOMM_NUMBER16_H

#include <stdint.h>
#include <string.h>

static inline uint32_t f32_bits(float value)
{
	uint32_t bits;
	memcpy(&bits, &value, sizeof bits);
	return bits;
}

static inline float f32_of_bits(uint32_t bits)
{
	float value;
	memcpy(&value, &bits, sizeof value);
	return value;
}

static inline float f32_from_f16(uint16_t half)
{
	uint32_t sign = (uint32_t)(half & 0x8000) << 16, magnitude = half & 0x7fff;
	if (magnitude > 0x7c00)
		return f32_of_bits(sign | 0x7fc00000 | (magnitude & 0x3ff) << 13);
	if (magnitude == 0x7c00)
		return f32_of_bits(sign | 0x7f800000);
	if (magnitude >= 0x400)
		return f32_of_bits(sign | ((magnitude << 13) + ((127 - 15) << 23)));
	return f32_of_bits(sign | f32_bits((float)magnitude * 0x1p-24f));
}

static inline uint16_t f16_from_f32(float value)
{
	uint32_t bits = f32_bits(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
	if (magnitude > 0x7f800000)
		return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
	if (magnitude >= 0x477ff000) /* 65520 is half way from the largest f16 to 2^16, and that is even */
		return (uint16_t)(sign | 0x7c00);
	if (magnitude < 0x38800000) /* below 2^-14: the last place is 2^-24, as it is of f32 from 0.5 to 1 */
		return (uint16_t)(sign | (f32_bits(f32_of_bits(magnitude) + 0.5f) - f32_bits(0.5f)));
	return (uint16_t)(sign | ((magnitude - ((127 - 15) << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13));
}

static inline float f32_from_bf16(uint16_t half)
{
	return f32_of_bits((uint32_t)half << 16);
}

static inline uint16_t bf16_from_f32(float value)
{
	uint32_t bits = f32_bits(value);
	if ((bits & 0x7fffffff) > 0x7f800000)
		return (uint16_t)(bits >> 16 | 0x40);
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#endif
