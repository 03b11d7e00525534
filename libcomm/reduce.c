/* Which kernel, and copies. */
#include "reduce_kernels.h"

/* A piece that stays in the first-level cache while it is copied and then used a second time. */
#define PIECE_BYTES ((size_t)8192)

#if defined(__x86_64__)
#include <immintrin.h>

static bool machine_has(enum reduce_isa isa)
{
	switch (isa) {
	case REDUCE_PLAIN:
	case REDUCE_SSE2: return true;
	case REDUCE_AVX2: return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
	case REDUCE_AVX512:
		return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
		       __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("f16c");
	}
	return false;
}

static __attribute__((target("avx2"))) void copy_stream(char *destination, const char *source, size_t bytes)
{
	size_t lead = (size_t)(-(uintptr_t)destination % 32);
	if (lead > bytes)
		lead = bytes;
	memcpy(destination, source, lead);
	size_t i = lead;
	for (; i + 32 <= bytes; i += 32)
		_mm256_stream_si256((__m256i *)(void *)(destination + i), _mm256_loadu_si256((const __m256i *)(const void *)(source + i)));
	memcpy(destination + i, source + i, bytes - i);
	_mm_sfence();
}
#else
static bool machine_has(enum reduce_isa isa)
{
	return isa == REDUCE_PLAIN;
}

static void copy_stream(char *destination, const char *source, size_t bytes)
{
	memcpy(destination, source, bytes);
}
#endif

reduce_function *reduce_kernel(enum reduce_isa isa, enum comm_type type, enum comm_op op)
{
	static reduce_table *const tables[REDUCE_ISAS] = {&reduce_plain, &reduce_sse2, &reduce_avx2, &reduce_avx512};
	return machine_has(isa) ? (*tables[isa])[type][op] : NULL;
}

reduce_function *reduce_kernel_best(enum comm_type type, enum comm_op op)
{
	reduce_function *kernel = NULL;
	for (int isa = REDUCE_ISAS - 1; !kernel; isa--)
		kernel = reduce_kernel((enum reduce_isa)isa, type, op);
	return kernel;
}

void reduce_run(reduce_function *kernel, const struct reduce_call *call)
{
	bool grows = false;
	for (unsigned s = 0; s < call->source_count; s++)
		grows |= call->wide_result && call->sources[s] == call->destination && !(call->wide_sources >> s & 1);
	if (!grows) {
		kernel(call);
		return;
	}
	/* Backwards: what is stored covers only elements that were read.  Within a piece they are read first, into a copy. */
	enum { PIECE = PIECE_BYTES / sizeof(uint16_t) };
	uint16_t copy[PIECE];
	struct reduce_call part = *call;
	for (size_t left = call->count; left;) {
		part.count = left % PIECE ? left % PIECE : PIECE;
		left -= part.count;
		part.destination = (float *)call->destination + left;
		part.keep = call->keep ? (float *)call->keep + left : NULL;
		for (unsigned s = 0; s < call->source_count; s++) {
			if (call->wide_sources >> s & 1)
				part.sources[s] = (const float *)call->sources[s] + left;
			else
				part.sources[s] = (const uint16_t *)call->sources[s] + left;
			if (call->sources[s] == call->destination && !(call->wide_sources >> s & 1)) {
				memcpy(copy, part.sources[s], part.count * sizeof *copy);
				part.sources[s] = copy;
			}
		}
		kernel(&part);
	}
}

static const void *source_from(const struct reduce_call *call, unsigned s, size_t at, size_t element_bytes)
{
	return (const char *)call->sources[s] + at * (call->wide_sources >> s & 1 ? sizeof(float) : element_bytes);
}

void reduce_many(reduce_function *add, reduce_function *last, enum comm_type type, const struct reduce_call *call)
{
	if (call->source_count <= REDUCE_SOURCES) {
		reduce_run(last, call);
		return;
	}
	_Alignas(64) char partial[PIECE_BYTES];
	const bool widens = type == COMM_F16 || type == COMM_BF16;
	const size_t element_bytes = comm_type_bytes(type), most = PIECE_BYTES / (widens ? sizeof(float) : element_bytes);
	const size_t result_bytes = call->wide_result ? sizeof(float) : element_bytes;
	for (size_t at = 0; at < call->count; at += most) {
		struct reduce_call part = {.ranks = call->ranks, .count = call->count - at < most ? call->count - at : most};
		for (unsigned done = 0; done < call->source_count;) {
			unsigned n = 0;
			part.wide_sources = 0;
			if (done) {
				part.wide_sources = widens;
				part.sources[n++] = partial;
			}
			for (; n < REDUCE_SOURCES && done < call->source_count; n++, done++) {
				part.sources[n] = source_from(call, done, at, element_bytes);
				part.wide_sources |= (call->wide_sources >> done & 1) << n;
			}
			part.source_count = n;
			const bool ends = done == call->source_count;
			part.destination = ends ? (char *)call->destination + at * result_bytes : partial;
			part.keep = ends && call->keep ? (char *)call->keep + at * result_bytes : NULL;
			part.wide_result = ends ? call->wide_result : widens;
			part.stream = ends && call->stream;
			(ends ? last : add)(&part);
		}
	}
}

void reduce_copy(void *destination, void *keep, const void *source, size_t bytes, bool stream)
{
	stream = stream && bytes >= 4096 && machine_has(REDUCE_AVX2);
	if (!keep) {
		if (stream)
			copy_stream(destination, source, bytes);
		else
			memcpy(destination, source, bytes);
		return;
	}
	/* The second copy of each piece reads the first-level cache. */
	for (size_t at = 0; at < bytes; at += PIECE_BYTES) {
		size_t n = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
		memcpy((char *)destination + at, (const char *)source + at, n);
		if (stream)
			copy_stream((char *)keep + at, (const char *)source + at, n);
		else
			memcpy((char *)keep + at, (const char *)source + at, n);
	}
}

const char *reduce_isa_name(enum reduce_isa isa)
{
	static const char *const names[REDUCE_ISAS] = {"plain", "sse2", "avx2", "avx512"};
	return names[isa];
}
