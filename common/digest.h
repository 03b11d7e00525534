/* SHA-256 and HMAC-SHA-256 (FIPS 180-4, RFC 2104) through libcrypto, and random bytes from the kernel. */
#ifndef SYNCTRAIN_COMMON_DIGEST_H
#define SYNCTRAIN_COMMON_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "status.h"

#define ST_SHA256_BYTES 32
#define ST_SHA256_HEX_BYTES 65 /* with the terminating NUL */

struct st_sha256 {
	void *context;
};
enum st_status st_sha256_begin(struct st_sha256 *hash);
enum st_status st_sha256_update(struct st_sha256 *hash, const void *data, size_t bytes);
/* Ends the hash and frees its context, also on failure. digest may be NULL to only free. */
enum st_status st_sha256_end(struct st_sha256 *hash, uint8_t digest[ST_SHA256_BYTES]);

void st_hex(const uint8_t *data, size_t bytes, char *hex); /* hex: 2 * bytes + 1 characters */

enum st_status st_hmac_sha256(const void *key, size_t key_bytes, const void *data, size_t bytes, uint8_t mac[ST_SHA256_BYTES]);

/* Compares in time that does not depend on the contents. */
bool st_equal_constant_time(const void *a, const void *b, size_t bytes);

/* Fills from getrandom(2). */
enum st_status st_random_bytes(void *buffer, size_t bytes);

/* Overwrites a secret so that the compiler can't drop the store. */
void st_wipe(void *buffer, size_t bytes);

#endif
