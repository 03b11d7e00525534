/*
 * The safetensors file format, for f32 tensors.
 *
 *   8 bytes   little-endian length of the header
 *   header    JSON {name: {"dtype": "F32", "shape": [...], "data_offsets": [begin, end]}, "__metadata__": {string: string}}
 *   data      the tensors one after the other, no gap, nothing after the last; offsets count from the data's start
 *
 * A file read here may have come from anywhere: nothing in it is believed before it is checked.
 */
#ifndef SYNCTRAIN_TRAINER_SAFETENSORS_H
#define SYNCTRAIN_TRAINER_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

#define TRAIN_SAFETENSORS_NAME_BYTES 128
#define TRAIN_SAFETENSORS_MOST_HEADER ((uint64_t)32 << 20)

/* A tensor to write. columns > 0; rows == 0: a vector of `columns`, else a matrix (rows, columns). */
struct train_safetensors_source {
	char name[TRAIN_SAFETENSORS_NAME_BYTES];
	uint64_t rows, columns;
	const float *values;
};

/* Writes a whole file to FD (at its start) and gives its size and SHA-256 (hex). PATH is for messages. Syncs nothing. */
enum st_status train_safetensors_write(int fd, const char *path, const struct train_safetensors_source *tensors, size_t count,
				       uint64_t *bytes, char sha256[65]);

struct train_safetensors_entry {
	char name[TRAIN_SAFETENSORS_NAME_BYTES];
	uint64_t dimensions, shape[4];
	uint64_t elements;
	uint64_t offset; /* in the file, bytes */
};

struct train_safetensors {
	int fd;
	char *path;
	struct train_safetensors_entry *entries; /* in the order of their data */
	size_t count;
};

/* Opens PATH and checks its header, every tensor's type, shape and place, and the file's size. ST_ERR_DATA names what was wrong. */
enum st_status train_safetensors_open(const char *path, struct train_safetensors *file);
void train_safetensors_close(struct train_safetensors *file);

/* Reads all values of ENTRY. */
enum st_status train_safetensors_read(const struct train_safetensors *file, const struct train_safetensors_entry *entry, float *values);

#endif
