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

static enum st_status set_string(const char *name, const char *path, char **slot, const char *text, size_t length)
{
	if (length > MAX_STRING_BYTES || strlen(text) != length)
		return wrong(name, path, "a string that is too long or holds a NUL", "at most 4095 bytes of text");
	for (const char *p = text; *p; p++)
		if ((unsigned char)*p < ' ' || *p == 0x7f)
			return wrong(name, path, "a string with a control character", "plain text");
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
		status = read_object(name, "", object, keys, out);
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
			object = json_tokener_parse(value);
		if (!object)
			return wrong(name, path, value, "a JSON value");
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
