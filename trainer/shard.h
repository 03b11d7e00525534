/*
 * A token shard: llm.c's file format, so that its data sets can be used as they are.
 *
 *   bytes 0..1023   256 little-endian int32: 20240520, version 1, number of tokens, zeros
 *   then            that many little-endian uint16 tokens, and nothing after them
 */
#ifndef SYNCTRAIN_TRAINER_SHARD_H
#define SYNCTRAIN_TRAINER_SHARD_H

#include <stddef.h>
#include <stdint.h>

#include "common/io.h"
#include "common/status.h"

#define TRAIN_SHARD_HEADER_BYTES 1024
#define TRAIN_SHARD_MAGIC 20240520
#define TRAIN_SHARD_VERSION 1
#define TRAIN_SHARD_MOST_TOKENS 2147483647u

/* Opens PATH and checks its magic number, version, count and size. *fd is the caller's. ST_ERR_DATA names file, field, seen, expected. */
enum st_status train_shard_open(const char *path, int *fd, uint64_t *tokens);

/* Reads `count` tokens from token `first`. The caller has checked that they exist. */
enum st_status train_shard_read(int fd, const char *path, uint64_t first, size_t count, uint16_t *tokens);

/* Writes a whole shard from `count` tokens; the file appears complete or not at all. sha256: hex digest of the file. */
enum st_status train_shard_write(const char *path, const uint16_t *tokens, size_t count, char sha256[65]);

#endif
