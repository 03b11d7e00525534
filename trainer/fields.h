/* Typed members of a JSON object without a fixed key table (a manifest, a safetensors header): each refusal says which, seen, expected. */
#ifndef SYNCTRAIN_TRAINER_FIELDS_H
#define SYNCTRAIN_TRAINER_FIELDS_H

#include <json-c/json.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

/* Parses TEXT (BYTES long, strict JSON, no NUL) whose top must be an object. *object is to be freed by json_object_put. ST_ERR_DATA. */
enum st_status train_fields_parse(const char *name, const char *text, size_t bytes, struct json_object **object);

/* NAME is the file for messages. ST_ERR_DATA when the member is missing, of another type, or out of range. Values are borrowed. */
enum st_status train_field_object(const char *name, struct json_object *object, const char *key, struct json_object **value);
enum st_status train_field_array(const char *name, struct json_object *object, const char *key, size_t most, struct json_object **value);
enum st_status train_field_string(const char *name, struct json_object *object, const char *key, size_t most, const char **value);
enum st_status train_field_count(const char *name, struct json_object *object, const char *key, uint64_t minimum, uint64_t maximum,
				 uint64_t *value);
enum st_status train_field_number(const char *name, struct json_object *object, const char *key, double *value);

/* A file name that stays in its directory: no slash, not "." or "..", no control character, at most 200 bytes. */
enum st_status train_field_file_name(const char *name, struct json_object *object, const char *key, const char **value);

#endif
