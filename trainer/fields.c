#include "fields.h"

#include <limits.h>
#include <math.h>
#include <string.h>

enum st_status train_fields_parse(const char *name, const char *text, size_t bytes, struct json_object **object)
{
	if (bytes >= INT_MAX)
		return st_fail(ST_ERR_DATA, "%s: %zu bytes of JSON, expected less than 2 GiB", name, bytes);
	if (memchr(text, 0, bytes))
		return st_fail(ST_ERR_DATA, "%s: holds a NUL byte, expected JSON", name);
	struct json_tokener *parser = json_tokener_new();
	if (!parser)
		return st_fail(ST_ERR_NOMEM, "%s: no memory for a JSON parser", name);
	json_tokener_set_flags(parser, JSON_TOKENER_VALIDATE_UTF8);
	struct json_object *parsed = json_tokener_parse_ex(parser, text, (int)bytes);
	enum json_tokener_error error = json_tokener_get_error(parser);
	size_t end = json_tokener_get_parse_end(parser);
	json_tokener_free(parser);
	if (error != json_tokener_success)
		return st_fail(ST_ERR_DATA, "%s: not JSON: %s at byte %zu", name,
			       error == json_tokener_continue ? "it ends too early" : json_tokener_error_desc(error), end);
	for (; end < bytes; end++)
		if (!strchr(" \t\r\n", text[end])) {
			json_object_put(parsed);
			return st_fail(ST_ERR_DATA, "%s: not JSON: more text after the object, at byte %zu", name, end);
		}
	if (json_object_get_type(parsed) != json_type_object) {
		json_object_put(parsed);
		return st_fail(ST_ERR_DATA, "%s: seen another JSON type at the top, expected an object", name);
	}
	*object = parsed;
	return ST_OK;
}

static enum st_status find(const char *name, struct json_object *object, const char *key, enum json_type type, struct json_object **value)
{
	struct json_object *found;

	if (!json_object_object_get_ex(object, key, &found))
		return st_fail(ST_ERR_DATA, "%s: %s: seen nothing, expected %s", name, key, json_type_to_name(type));
	if (json_object_get_type(found) != type)
		return st_fail(ST_ERR_DATA, "%s: %s: seen %.100s, expected %s", name, key, json_object_to_json_string(found),
			       json_type_to_name(type));
	*value = found;
	return ST_OK;
}

enum st_status train_field_object(const char *name, struct json_object *object, const char *key, struct json_object **value)
{
	return find(name, object, key, json_type_object, value);
}

enum st_status train_field_array(const char *name, struct json_object *object, const char *key, size_t most, struct json_object **value)
{
	struct json_object *found;

	ST_TRY(find(name, object, key, json_type_array, &found));
	if (json_object_array_length(found) > most)
		return st_fail(ST_ERR_DATA, "%s: %s: seen %zu elements, expected at most %zu", name, key, json_object_array_length(found), most);
	*value = found;
	return ST_OK;
}

enum st_status train_field_string(const char *name, struct json_object *object, const char *key, size_t most, const char **value)
{
	struct json_object *found;

	ST_TRY(find(name, object, key, json_type_string, &found));
	size_t length = (size_t)json_object_get_string_len(found);
	const char *text = json_object_get_string(found);
	if (length > most || strlen(text) != length)
		return st_fail(ST_ERR_DATA, "%s: %s: seen a string of %zu bytes, expected plain text of at most %zu", name, key, length, most);
	*value = text;
	return ST_OK;
}

enum st_status train_field_count(const char *name, struct json_object *object, const char *key, uint64_t minimum, uint64_t maximum,
				 uint64_t *value)
{
	struct json_object *found;

	ST_TRY(find(name, object, key, json_type_int, &found));
	/* json-c clamps: a negative number reads as 0 here, and a minimum of 0 must not let it pass. */
	uint64_t seen = json_object_get_uint64(found);
	if ((json_object_get_int64(found) < 0 && seen == 0) || seen < minimum || seen > maximum)
		return st_fail(ST_ERR_DATA, "%s: %s: seen %s, expected an integer from %llu to %llu", name, key, json_object_to_json_string(found),
			       (unsigned long long)minimum, (unsigned long long)maximum);
	*value = seen;
	return ST_OK;
}

enum st_status train_field_number(const char *name, struct json_object *object, const char *key, double *value)
{
	struct json_object *found;

	if (!json_object_object_get_ex(object, key, &found))
		return st_fail(ST_ERR_DATA, "%s: %s: seen nothing, expected a number", name, key);
	enum json_type type = json_object_get_type(found);
	if ((type != json_type_double && type != json_type_int) || !isfinite(json_object_get_double(found)))
		return st_fail(ST_ERR_DATA, "%s: %s: seen %.100s, expected a finite number", name, key, json_object_to_json_string(found));
	*value = json_object_get_double(found);
	return ST_OK;
}

enum st_status train_field_file_name(const char *name, struct json_object *object, const char *key, const char **value)
{
	const char *text;

	ST_TRY(train_field_string(name, object, key, 200, &text));
	int plain = *text && strcmp(text, ".") && strcmp(text, "..");
	for (const char *p = text; *p; p++)
		plain = plain && (unsigned char)*p >= ' ' && *p != 0x7f && *p != '/';
	if (!plain)
		return st_fail(ST_ERR_DATA, "%s: %s: seen a name that may leave the directory, expected a plain file name", name, key);
	*value = text;
	return ST_OK;
}
