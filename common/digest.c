#include "digest.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

static enum st_status crypto_failed(const char *what)
{
	return st_fail(ST_ERR_INTERNAL, "libcrypto: %s failed", what);
}

enum st_status st_sha256_begin(struct st_sha256 *hash)
{
	EVP_MD_CTX *context = EVP_MD_CTX_new();

	hash->context = context;
	if (!context || !EVP_DigestInit_ex(context, EVP_sha256(), NULL))
		return crypto_failed("SHA-256 start");
	return ST_OK;
}

enum st_status st_sha256_update(struct st_sha256 *hash, const void *data, size_t bytes)
{
	return EVP_DigestUpdate(hash->context, data, bytes) ? ST_OK : crypto_failed("SHA-256 update");
}

enum st_status st_sha256_end(struct st_sha256 *hash, uint8_t digest[ST_SHA256_BYTES])
{
	int ok = !digest || EVP_DigestFinal_ex(hash->context, digest, NULL);

	EVP_MD_CTX_free(hash->context);
	hash->context = NULL;
	return ok ? ST_OK : crypto_failed("SHA-256 end");
}

void st_hex(const uint8_t *data, size_t bytes, char *hex)
{
	static const char digits[] = "0123456789abcdef";

	for (size_t i = 0; i < bytes; i++) {
		*hex++ = digits[data[i] >> 4];
		*hex++ = digits[data[i] & 15];
	}
	*hex = 0;
}

enum st_status st_hmac_sha256(const void *key, size_t key_bytes, const void *data, size_t bytes, uint8_t mac[ST_SHA256_BYTES])
{
	unsigned length = 0;

	if (!HMAC(EVP_sha256(), key, (int)key_bytes, data, bytes, mac, &length) || length != ST_SHA256_BYTES)
		return crypto_failed("HMAC-SHA-256");
	return ST_OK;
}

bool st_equal_constant_time(const void *a, const void *b, size_t bytes)
{
	return CRYPTO_memcmp(a, b, bytes) == 0;
}

enum st_status st_random_bytes(void *buffer, size_t bytes)
{
	size_t done = 0;

	while (done < bytes) {
		ssize_t n = getrandom((char *)buffer + done, bytes - done, 0);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return st_fail_errno("getrandom");
		done += (size_t)n;
	}
	return ST_OK;
}

void st_wipe(void *buffer, size_t bytes)
{
	OPENSSL_cleanse(buffer, bytes);
}
