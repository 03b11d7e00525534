/*
 * Configuration from JSON, checked against a table of keys.
 *
 * A program describes its configuration as a struct and a table that says, for each key, its type, where it goes and which
 * values make sense.  Unknown keys, keys given twice, wrong types and impossible values are refused with one line:
 * file, key, value seen, value expected.  Built on json-c.
 */
#ifndef SYNCTRAIN_COMMON_JSON_H
#define SYNCTRAIN_COMMON_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "status.h"

enum st_json_kind {
	ST_JSON_BOOL,   /* bool */
	ST_JSON_INT,    /* int64_t, minimum <= value <= maximum */
	ST_JSON_NUMBER, /* double, minimum <= value <= maximum, finite */
	ST_JSON_STRING, /* char *, malloc'ed, replaced and freed on override; at most 4095 bytes of UTF-8, no control characters */
	ST_JSON_CHOICE, /* int: index into choices */
	ST_JSON_OBJECT, /* nested struct described by keys, at the same base pointer: offsets are absolute */
};

struct st_json_key {
	const char *name; /* NULL ends the table */
	enum st_json_kind kind;
	size_t offset;
	double minimum, maximum;
	const char *const *choices; /* NULL-terminated */
	const struct st_json_key *keys;
	bool required;
};

/* Reads PATH (at most 1 MiB) into OUT, which holds the defaults beforehand. ST_ERR_CONFIG, or what reading returned. */
enum st_status st_json_load(const char *path, const struct st_json_key *keys, void *out);

/* The same for text in memory; NAME stands for the file in messages. */
enum st_status st_json_parse(const char *name, const char *text, const struct st_json_key *keys, void *out);

/* Applies one "section.key=value" from a command line. Strings need no quotes. */
enum st_status st_json_override(const struct st_json_key *keys, void *out, const char *assignment);

/* Writes the configuration as canonical JSON (keys in table order, %.17g numbers); *text is malloc'ed. */
enum st_status st_json_print(const struct st_json_key *keys, const void *in, char **text);

/* Frees every string of the configuration. */
void st_json_free(const struct st_json_key *keys, void *out);

#endif
