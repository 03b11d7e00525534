#include "json.h"

#include <json-c/json.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io.h"

#define MAX_FILE_BYTES ((size_t)1 << 20)
#define MAX_STRING_BYTES 4095
#define MAX_KEY_BYTES 256

static void *field(void *out, const struct st_json_key *key)
{
	return (char *)out + key->offset;
}

static const void *const_field(const void *in, const struct st_json_key *key)
{
	return (const char *)in + key->offset;
}

static void list_choices(const char *const *choices, char *text, size_t bytes)
{
	size_t used = 0;

	text[0] = 0;
	for (; *choices && used < bytes; choices++)
		used += (size_t)snprintf(text + used, bytes - used, "%s%s", used ? ", " : "", *choices);
}

static enum st_status wrong(const char *name, const char *path, const char *seen, const char *expected)
{
	return st_fail(ST_ERR_CONFIG, "%s: %s: seen %.200s, expected %s", name, path, seen, expected);
}

static enum st_status check_range(const char *name, const char *path, const struct st_json_key *key, double value, const char *seen)
{
	char expected[128];

	if (isfinite(value) && value >= key->minimum && value <= key->maximum)
		return ST_OK;
	snprintf(expected, sizeof expected, "%s from %.10g to %.10g", key->kind == ST_JSON_INT ? "an integer" : "a number", key->minimum,
		 key->maximum);
	return wrong(name, path, seen, expected);
}

/* RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF. */
static bool is_utf8(const char *text)
{
	for (const unsigned char *p = (const unsigned char *)text; *p;) {
		unsigned char lead = *p++, low = 0x80, high = 0xbf;
		int more = lead < 0x80 ? 0 : lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : 3; /* bytes that follow */
		if ((more && lead < 0xc2) || lead > 0xf4)
			return false;
		if (lead == 0xe0 || lead == 0xf0)
			low = lead == 0xe0 ? 0xa0 : 0x90;
		if (lead == 0xed || lead == 0xf4)
			high = lead == 0xed ? 0x9f : 0x8f;
		for (; more > 0; more--, p++) {
			if (*p < low || *p > high)
				return false;
			low = 0x80;
			high = 0xbf;
		}
	}
	return true;
}

static enum st_status set_string(const char *name, const char *path, char **slot, const char *text, size_t length)
{
	if (length > MAX_STRING_BYTES || strlen(text) != length)
		return wrong(name, path, "a string that is too long or holds a NUL", "at most 4095 bytes of text");
	for (const char *p = text; *p; p++)
		if ((unsigned char)*p < ' ' || *p == 0x7f)
			return wrong(name, path, "a string with a control character", "plain text");
	/* The command line can bring any bytes, and what is printed must read back. */
	if (!is_utf8(text))
		return wrong(name, path, "a string that is not UTF-8", "plain text");
	char *copy = strdup(text);
	if (!copy)
		return st_fail(ST_ERR_NOMEM, "%s: %s: no memory for the value", name, path);
	free(*slot);
	*slot = copy;
	return ST_OK;
}

static enum st_status read_object(const char *name, const char *prefix, struct json_object *object, const struct st_json_key *keys,
				  void *out);

static enum st_status read_value(const char *name, const char *path, struct json_object *value, const struct st_json_key *key, void *out)
{
	const char *seen = json_object_to_json_string_ext(value, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE);
	enum json_type type = json_object_get_type(value);

	switch (key->kind) {
	case ST_JSON_BOOL:
		if (type != json_type_boolean)
			return wrong(name, path, seen, "true or false");
		*(bool *)field(out, key) = json_object_get_boolean(value);
		return ST_OK;
	case ST_JSON_INT:
		if (type != json_type_int)
			return wrong(name, path, seen, "an integer");
		ST_TRY(check_range(name, path, key, (double)json_object_get_int64(value), seen));
		*(int64_t *)field(out, key) = json_object_get_int64(value);
		return ST_OK;
	case ST_JSON_NUMBER:
		if (type != json_type_int && type != json_type_double)
			return wrong(name, path, seen, "a number");
		ST_TRY(check_range(name, path, key, json_object_get_double(value), seen));
		*(double *)field(out, key) = json_object_get_double(value);
		return ST_OK;
	case ST_JSON_STRING:
		if (type != json_type_string)
			return wrong(name, path, seen, "a string");
		return set_string(name, path, field(out, key), json_object_get_string(value), (size_t)json_object_get_string_len(value));
	case ST_JSON_CHOICE:
		if (type == json_type_string)
			for (int i = 0; key->choices[i]; i++)
				if (!strcmp(key->choices[i], json_object_get_string(value))) {
					*(int *)field(out, key) = i;
					return ST_OK;
				}
		char expected[512];
		list_choices(key->choices, expected, sizeof expected);
		return wrong(name, path, seen, expected);
	case ST_JSON_OBJECT:
		if (type != json_type_object)
			return wrong(name, path, seen, "an object");
		return read_object(name, path, value, key->keys, out);
	}
	return st_fail(ST_ERR_INTERNAL, "%s: %s: a key of unknown kind", name, path);
}

static const struct st_json_key *find_key(const struct st_json_key *keys, const char *name, size_t length)
{
	for (; keys->name; keys++)
		if (strlen(keys->name) == length && !memcmp(keys->name, name, length))
			return keys;
	return NULL;
}

static enum st_status unknown_key(const char *name, const char *path, const struct st_json_key *keys)
{
	char known[768];
	size_t used = 0;

	known[0] = 0;
	for (; keys->name && used < sizeof known; keys++)
		used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", keys->name);
	return st_fail(ST_ERR_CONFIG, "%s: %.200s: unknown key, expected one of: %s", name, path, known);
}

static enum st_status read_object(const char *name, const char *prefix, struct json_object *object, const struct st_json_key *keys,
				  void *out)
{
	char path[MAX_KEY_BYTES];

	json_object_object_foreach(object, key_name, value) {
		const struct st_json_key *key = find_key(keys, key_name, strlen(key_name));
		snprintf(path, sizeof path, "%s%s%.100s", prefix, *prefix ? "." : "", key_name);
		if (!key)
			return unknown_key(name, path, keys);
		ST_TRY(read_value(name, path, value, key, out));
	}
	for (; keys->name; keys++)
		if (keys->required && !json_object_object_get_ex(object, keys->name, NULL)) {
			snprintf(path, sizeof path, "%s%s%s", prefix, *prefix ? "." : "", keys->name);
			return wrong(name, path, "nothing", "a value (this key is required)");
		}
	return ST_OK;
}

/* json-c keeps the last of several values of one key. TEXT is valid JSON: returns the first key that its object has already had, or
 * NULL. Keys are compared as they are written: one spelled with escapes is another. */
static const char *find_repeated_key(const char *text, size_t *length)
{
	struct {
		const char *text;
		size_t length, object;
	} *seen = NULL;
	size_t open[JSON_TOKENER_DEFAULT_DEPTH + 1] = {0}, depth = 0, objects = 0, count = 0, room = 0;
	const char *repeated = NULL;

	for (const char *p = text; *p && !repeated; p++) {
		if ((*p == '{' || *p == '[') && depth < JSON_TOKENER_DEFAULT_DEPTH)
			open[++depth] = ++objects;
		if ((*p == '}' || *p == ']') && depth)
			depth--;
		if (*p != '"')
			continue;
		const char *begin = ++p;
		while (*p && *p != '"')
			p += *p == '\\' && p[1] ? 2 : 1;
		const char *next = p + (*p != 0);
		if (next[strspn(next, " \t\r\n")] != ':')
			continue;
		*length = (size_t)(p - begin);
		for (size_t i = 0; i < count && !repeated; i++)
			if (seen[i].object == open[depth] && seen[i].length == *length && !memcmp(seen[i].text, begin, *length))
				repeated = begin;
		if (count == room) {
			room = room ? 2 * room : 64;
			void *grown = realloc(seen, room * sizeof *seen);
			if (!grown)
				break;
			seen = grown;
		}
		seen[count].text = begin;
		seen[count].length = *length;
		seen[count++].object = open[depth];
	}
	free(seen);
	return repeated;
}

enum st_status st_json_parse(const char *name, const char *text, const struct st_json_key *keys, void *out)
{
	struct json_tokener *parser = json_tokener_new();
	enum st_status status;

	if (!parser)
		return st_fail(ST_ERR_NOMEM, "%s: no memory for a JSON parser", name);
	json_tokener_set_flags(parser, JSON_TOKENER_STRICT | JSON_TOKENER_VALIDATE_UTF8);
	/* The terminating NUL is passed too: it tells json-c that a top-level number has ended. */
	struct json_object *object = json_tokener_parse_ex(parser, text, (int)strlen(text) + 1);
	enum json_tokener_error error = json_tokener_get_error(parser);
	if (error != json_tokener_success) {
		size_t at = json_tokener_get_parse_end(parser), line = 1;
		for (size_t i = 0; i < at && text[i]; i++)
			line += text[i] == '\n';
		status = st_fail(ST_ERR_CONFIG, "%s: line %zu: not JSON: %s", name, line, json_tokener_error_desc(error));
	} else if (json_object_get_type(object) != json_type_object) {
		status = st_fail(ST_ERR_CONFIG, "%s: seen %s at the top, expected an object", name,
				 json_type_to_name(json_object_get_type(object)));
	} else {
		/* Keys that are no keys are refused first: few different ones are left to compare. */
		status = read_object(name, "", object, keys, out);
		size_t length = 0;
		const char *repeated = status == ST_OK ? find_repeated_key(text, &length) : NULL;
		if (repeated)
			status = st_fail(ST_ERR_CONFIG, "%s: %.*s: seen twice in one object, expected once", name, (int)length, repeated);
	}
	json_object_put(object);
	json_tokener_free(parser);
	return status;
}

enum st_status st_json_load(const char *path, const struct st_json_key *keys, void *out)
{
	char *text;
	size_t bytes;

	ST_TRY(st_file_read(path, MAX_FILE_BYTES, &text, &bytes));
	enum st_status status = strlen(text) == bytes ? st_json_parse(path, text, keys, out)
						      : st_fail(ST_ERR_CONFIG, "%s: holds a NUL byte at offset %zu", path, strlen(text));
	free(text);
	return status;
}

/* NULL: null, or not one JSON value and nothing after it: "1,5" is not 1. */
static struct json_object *parse_whole(const char *text)
{
	struct json_tokener *parser = json_tokener_new();

	if (!parser)
		return NULL;
	json_tokener_set_flags(parser, JSON_TOKENER_STRICT | JSON_TOKENER_VALIDATE_UTF8);
	/* The terminating NUL tells json-c that a number has ended. */
	struct json_object *object = json_tokener_parse_ex(parser, text, (int)strlen(text) + 1);
	if (json_tokener_get_error(parser) != json_tokener_success) {
		json_object_put(object);
		object = NULL;
	}
	json_tokener_free(parser);
	return object;
}

/* For a value that is no JSON at all. */
static const char *name_kind(enum st_json_kind kind)
{
	return kind == ST_JSON_INT ? "an integer" : kind == ST_JSON_NUMBER ? "a number" : kind == ST_JSON_BOOL ? "true or false" : "an object";
}

enum st_status st_json_override(const struct st_json_key *keys, void *out, const char *assignment)
{
	static const char name[] = "command line";
	const char *equals = strchr(assignment, '='), *part = assignment;
	char path[MAX_KEY_BYTES];

	if (!equals || equals == assignment || (size_t)(equals - assignment) >= sizeof path)
		return st_fail(ST_ERR_USAGE, "command line: seen '%.200s', expected KEY=VALUE", assignment);
	memcpy(path, assignment, (size_t)(equals - assignment));
	path[equals - assignment] = 0;
	for (;;) {
		const char *dot = memchr(part, '.', (size_t)(equals - part));
		const char *end = dot ? dot : equals;
		const struct st_json_key *key = find_key(keys, part, (size_t)(end - part));
		if (!key)
			return unknown_key(name, path, keys);
		if (dot) {
			if (key->kind != ST_JSON_OBJECT)
				return unknown_key(name, path, (const struct st_json_key[]){{0}});
			keys = key->keys;
			part = dot + 1;
			continue;
		}
		const char *value = equals + 1;
		if (key->kind == ST_JSON_STRING)
			return set_string(name, path, field(out, key), value, strlen(value));
		struct json_object *object;
		if (key->kind == ST_JSON_CHOICE)
			object = json_object_new_string(value);
		else
			object = parse_whole(value);
		if (!object)
			return wrong(name, path, value, name_kind(key->kind));
		enum st_status status = read_value(name, path, object, key, out);
		json_object_put(object);
		return status;
	}
}

static struct json_object *print_object(const struct st_json_key *keys, const void *in)
{
	struct json_object *object = json_object_new_object();

	for (; object && keys->name; keys++) {
		struct json_object *value = NULL;
		char number[40];
		switch (keys->kind) {
		case ST_JSON_BOOL:
			value = json_object_new_boolean(*(const bool *)const_field(in, keys));
			break;
		case ST_JSON_INT:
			value = json_object_new_int64(*(const int64_t *)const_field(in, keys));
			break;
		case ST_JSON_NUMBER:
			snprintf(number, sizeof number, "%.17g", *(const double *)const_field(in, keys));
			value = json_object_new_double_s(*(const double *)const_field(in, keys), number);
			break;
		case ST_JSON_STRING: {
			const char *text = *(char *const *)const_field(in, keys);
			value = text ? json_object_new_string(text) : NULL;
			if (!text)
				continue;
			break;
		}
		case ST_JSON_CHOICE:
			value = json_object_new_string(keys->choices[*(const int *)const_field(in, keys)]);
			break;
		case ST_JSON_OBJECT:
			value = print_object(keys->keys, in);
			break;
		}
		if (!value || json_object_object_add(object, keys->name, value) != 0) {
			json_object_put(value);
			json_object_put(object);
			return NULL;
		}
	}
	return object;
}

enum st_status st_json_print(const struct st_json_key *keys, const void *in, char **text)
{
	struct json_object *object = print_object(keys, in);
	const char *printed = object ? json_object_to_json_string_ext(object, JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_NOSLASHESCAPE)
				     : NULL;
	char *copy = printed ? strdup(printed) : NULL;

	json_object_put(object);
	if (!copy)
		return st_fail(ST_ERR_NOMEM, "no memory to print the configuration");
	*text = copy;
	return ST_OK;
}

void st_json_free(const struct st_json_key *keys, void *out)
{
	for (; keys->name; keys++) {
		if (keys->kind == ST_JSON_OBJECT)
			st_json_free(keys->keys, out);
		if (keys->kind == ST_JSON_STRING) {
			free(*(char **)field(out, keys));
			*(char **)field(out, keys) = NULL;
		}
	}
}
