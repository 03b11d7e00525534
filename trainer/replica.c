#include "replica.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "libcomm/comm.h"

#define NAMED_RANKS 4   /* more ranks or tensors than this are counted, not named */
#define NAMED_TENSORS 3
#define EXCHANGED 1024  /* hashes of one exchange: 16 KiB a rank */

struct hash {
	uint8_t bytes[16];
};

static struct hash hash_of(const void *data, size_t bytes)
{
	struct hash hash;
	XXH128_canonical_t canonical;

	XXH128_canonicalFromHash(&canonical, XXH3_128bits(data, bytes));
	memcpy(hash.bytes, canonical.digest, sizeof hash.bytes);
	return hash;
}

static int same(const struct hash *a, const struct hash *b)
{
	return !memcmp(a, b, sizeof *a);
}

/* hashes: (1 + state_count, tensor_count): parameters, then each state. */
static void hash_tensors(const struct train_buffers *buffers, struct hash *hashes)
{
	for (unsigned buffer = 0; buffer <= buffers->state_count; buffer++) {
		const float *values = buffer ? buffers->states[buffer - 1] : buffers->parameters;
		for (size_t i = 0; i < buffers->tensor_count; i++)
			*hashes++ = hash_of(values + buffers->tensors[i].offset, buffers->tensors[i].elements * sizeof *values);
	}
}

/* Text that grows to the end of its buffer and no further. */
struct text {
	char *at;
	size_t left;
};

static void append(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void append(struct text *text, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	int written = vsnprintf(text->at, text->left, format, args);
	va_end(args);
	size_t used = written < 0 ? 0 : (size_t)written < text->left ? (size_t)written : text->left - 1;
	text->at += used;
	text->left -= used;
}

static void append_tensor(struct text *text, const struct train_buffers *buffers, size_t index)
{
	size_t buffer = index / buffers->tensor_count;

	if (buffer)
		append(text, "optimizer.%s.", buffers->state_names[buffer - 1]);
	append(text, "%s", buffers->tensors[index % buffers->tensor_count].name);
}

/* The rank whose hash more than half of the ranks share; UINT32_MAX: there is none. */
static uint32_t find_majority(const struct hash *totals, uint32_t size)
{
	for (uint32_t candidate = 0; candidate < size; candidate++) {
		uint32_t votes = 0;
		for (uint32_t rank = 0; rank < size; rank++)
			votes += (uint32_t)same(&totals[candidate], &totals[rank]);
		if (votes > size / 2)
			return candidate;
	}
	return UINT32_MAX;
}

/* Marks in differs (count) the tensors in which a rank of the minority differs from rank REFERENCE. Collective. */
static enum st_status find_tensors(struct comm *comm, const struct hash *mine, size_t count, uint32_t reference, uint8_t *differs)
{
	uint32_t size = comm_size(comm);
	struct hash *all = malloc(size * EXCHANGED * sizeof *all);
	enum st_status status = ST_OK;

	if (!all)
		return st_fail(ST_ERR_NOMEM, "no memory for the hashes of %u ranks", size);
	for (size_t at = 0; at < count && status == ST_OK; at += EXCHANGED) {
		size_t piece = count - at < EXCHANGED ? count - at : EXCHANGED;
		status = comm_collect(comm, mine + at, piece * sizeof *mine, all);
		for (uint32_t rank = 0; rank < size && status == ST_OK; rank++)
			for (size_t i = 0; i < piece; i++)
				if (!same(&all[rank * piece + i], &all[reference * piece + i]))
					differs[at + i] = 1;
	}
	free(all);
	return status;
}

static enum st_status name_difference(struct comm *comm, const struct train_buffers *buffers, uint64_t step, const struct hash *totals,
				      const uint8_t *differs, size_t count, uint32_t majority)
{
	char message[900];
	struct text text = {message, sizeof message};
	uint32_t size = comm_size(comm), ranks = 0, named = 0;
	size_t tensors = 0;

	for (uint32_t rank = 0; rank < size; rank++)
		ranks += majority == UINT32_MAX || !same(&totals[rank], &totals[majority]);
	append(&text, "replicas differ at step %llu: ", (unsigned long long)step);
	for (uint32_t rank = 0; rank < size && named < NAMED_RANKS; rank++)
		if (majority == UINT32_MAX || !same(&totals[rank], &totals[majority]))
			append(&text, "%srank %u on %s", named++ ? ", " : "", rank, comm_host(comm, rank));
	if (ranks > named)
		append(&text, " and %u more", ranks - named);
	append(&text, ranks == 1 ? " differs in " : " differ in ");
	for (size_t i = 0; i < count; i++) {
		if (differs[i] && tensors < NAMED_TENSORS) {
			append(&text, "%s", tensors ? ", " : "");
			append_tensor(&text, buffers, i);
		}
		tensors += differs[i];
	}
	if (tensors > NAMED_TENSORS)
		append(&text, " and %zu more", tensors - NAMED_TENSORS);
	if (majority == UINT32_MAX)
		append(&text, "; no majority of the %u replicas agrees, so which are right can't be told", size);
	return st_fail(ST_ERR_DIVERGED, "%s", message);
}

enum st_status train_replicas_compare(struct comm *comm, const struct train_buffers *buffers, uint64_t step, char hash[33])
{
	size_t count = buffers->tensor_count * (1 + buffers->state_count);
	uint32_t size = comm_size(comm), majority;
	struct hash *hashes = calloc(count + 1, sizeof *hashes), *totals = calloc(size, sizeof *totals);
	uint8_t *differs = calloc(count + 1, 1);
	enum st_status status = ST_OK;
	int equal = 1;

	if (!hashes || !totals || !differs) {
		status = st_fail(ST_ERR_NOMEM, "no memory for the hashes of %zu tensors", count);
		goto done;
	}
	hash_tensors(buffers, hashes);
	struct hash total = hash_of(hashes, count * sizeof *hashes);
	status = comm_collect(comm, &total, sizeof total, totals);
	if (status != ST_OK)
		goto done;
	for (uint32_t rank = 1; rank < size; rank++)
		equal = equal && same(&totals[0], &totals[rank]);
	if (equal) {
		for (size_t i = 0; i < sizeof total.bytes; i++)
			snprintf(hash + 2 * i, 3, "%02x", total.bytes[i]);
		goto done;
	}
	majority = find_majority(totals, size);
	status = find_tensors(comm, hashes, count, majority == UINT32_MAX ? 0 : majority, differs);
	if (status == ST_OK)
		status = name_difference(comm, buffers, step, totals, differs, count, majority);
done:
	free(differs);
	free(totals);
	free(hashes);
	return status;
}
