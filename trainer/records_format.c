#include "trainer/records_format.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

static uint64_t checksum(const struct records_block *block, const void *payload)
{
	return XXH3_64bits_withSeed(payload, block->bytes, XXH3_64bits(block, offsetof(struct records_block, check)));
}

void train_records_seal(struct records_block *block, enum records_kind kind, uint64_t launch, size_t bytes)
{
	memcpy(block->magic, RECORDS_MAGIC, sizeof block->magic);
	block->version = RECORDS_VERSION;
	block->kind = (uint16_t)kind;
	block->bytes = (uint32_t)bytes;
	block->launch = launch;
	block->check = checksum(block, block + 1);
}

bool train_records_sealed(const struct records_block *block, const void *payload)
{
	return block->check == checksum(block, payload);
}

static void sanitise(const char *text, char out[65])
{
	size_t length = 0;

	for (; text[length] && length < 64; length++) {
		char c = text[length];
		bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
		out[length] = plain ? c : '_';
	}
	out[length] = 0;
	if (!length)
		strcpy(out, "unnamed");
}

void train_records_name(const char *run, const char *node, char name[RECORDS_NAME_BYTES])
{
	char plain_run[65], plain_node[65];

	sanitise(run, plain_run);
	sanitise(node, plain_node);
	snprintf(name, RECORDS_NAME_BYTES, "steps-%s-%s.rec", plain_run, plain_node);
}
