/* Configuration: what is accepted lands in the struct, what is not is refused with file, key, seen and expected. */
#include "check.h"

#include <math.h>

#include "common/json.h"

struct settings {
	bool flag;
	int64_t steps;
	double rate;
	char *name;
	int kind;
	int64_t inner;
};

static const char *const kinds[] = {"sgd", "adamw", NULL};
static const struct st_json_key inner_keys[] = {
	{.name = "depth", .kind = ST_JSON_INT, .offset = offsetof(struct settings, inner), .minimum = 1, .maximum = 8},
	{0},
};
static const struct st_json_key keys[] = {
	{.name = "flag", .kind = ST_JSON_BOOL, .offset = offsetof(struct settings, flag)},
	{.name = "steps", .kind = ST_JSON_INT, .offset = offsetof(struct settings, steps), .minimum = 0, .maximum = 1e16, .required = true},
	{.name = "rate", .kind = ST_JSON_NUMBER, .offset = offsetof(struct settings, rate), .minimum = 0, .maximum = 1},
	{.name = "name", .kind = ST_JSON_STRING, .offset = offsetof(struct settings, name)},
	{.name = "kind", .kind = ST_JSON_CHOICE, .offset = offsetof(struct settings, kind), .choices = kinds},
	{.name = "model", .kind = ST_JSON_OBJECT, .keys = inner_keys},
	{0},
};

static void refused(const char *text, const char *part1, const char *part2)
{
	struct settings s = {0};

	CHECK_FAILS(st_json_parse("c.json", text, keys, &s), ST_ERR_CONFIG, part1);
	CHECK(strstr(st_message(), part2), "message '%s' lacks '%s'", st_message(), part2);
	CHECK(strstr(st_message(), "c.json"), "message '%s' lacks the file", st_message());
	CHECK(!strchr(st_message(), '\n'), "more than one line");
	st_json_free(keys, &s);
}

int main(void)
{
	struct settings s = {.rate = 0.5};
	char *text;

	CHECK_OK(st_json_parse("c.json", "{\"flag\":true,\"steps\":9007199254740993,\"name\":\"a b\",\"kind\":\"adamw\",\"model\":{\"depth\":3}}",
			       keys, &s));
	CHECK(s.flag && s.steps == 9007199254740993 && s.rate == 0.5 && !strcmp(s.name, "a b") && s.kind == 1 && s.inner == 3);

	CHECK_OK(st_json_override(keys, &s, "model.depth=8"));
	CHECK_OK(st_json_override(keys, &s, "name=x=y"));
	CHECK_OK(st_json_override(keys, &s, "rate=1e-3"));
	CHECK_OK(st_json_override(keys, &s, "kind=sgd"));
	CHECK(s.inner == 8 && !strcmp(s.name, "x=y") && s.rate == 1e-3 && s.kind == 0);
	CHECK_FAILS(st_json_override(keys, &s, "model.depth=9"), ST_ERR_CONFIG, "from 1 to 8");
	CHECK_FAILS(st_json_override(keys, &s, "model.width=9"), ST_ERR_CONFIG, "unknown key");
	CHECK_FAILS(st_json_override(keys, &s, "steps.x=9"), ST_ERR_CONFIG, "unknown key");
	CHECK_FAILS(st_json_override(keys, &s, "steps=soon"), ST_ERR_CONFIG, "soon");
	CHECK_FAILS(st_json_override(keys, &s, "steps=1.5"), ST_ERR_CONFIG, "an integer");
	/* All of a value counts, not the number at its beginning. */
	CHECK_FAILS(st_json_override(keys, &s, "rate=0,5"), ST_ERR_CONFIG, "0,5");
	CHECK_FAILS(st_json_override(keys, &s, "steps=10abc"), ST_ERR_CONFIG, "10abc");
	CHECK_FAILS(st_json_override(keys, &s, "steps=10 20"), ST_ERR_CONFIG, "10 20");
	CHECK_FAILS(st_json_override(keys, &s, "flag=truely"), ST_ERR_CONFIG, "truely");
	CHECK_FAILS(st_json_override(keys, &s, "steps="), ST_ERR_CONFIG, "steps");
	CHECK_FAILS(st_json_override(keys, &s, "model={\"depth\":2}}"), ST_ERR_CONFIG, "model");
	/* Text that could not be printed as JSON is refused before a run, not when its checkpoint is written. */
	CHECK_FAILS(st_json_override(keys, &s, "name=\xff\xfe"), ST_ERR_CONFIG, "UTF-8");
	CHECK_FAILS(st_json_override(keys, &s, "name=cut \xe2\x82"), ST_ERR_CONFIG, "UTF-8");
	CHECK_FAILS(st_json_override(keys, &s, "name=\xed\xa0\x80"), ST_ERR_CONFIG, "UTF-8");
	CHECK_FAILS(st_json_override(keys, &s, "name=\xc0\xaf"), ST_ERR_CONFIG, "UTF-8");
	CHECK_OK(st_json_override(keys, &s, "name=d\xc3\xa9j\xc3\xa0 \xe2\x82\xac \xf0\x9f\x98\x80"));
	CHECK_OK(st_json_override(keys, &s, "name=x=y"));
	CHECK_FAILS(st_json_override(keys, &s, "steps"), ST_ERR_USAGE, "KEY=VALUE");
	CHECK_FAILS(st_json_override(keys, &s, "=1"), ST_ERR_USAGE, "KEY=VALUE");

	/* What is printed reads back the same. */
	struct settings again = {0};
	CHECK_OK(st_json_print(keys, &s, &text));
	CHECK_OK(st_json_parse("printed", text, keys, &again));
	CHECK(again.rate == s.rate && again.steps == s.steps && !strcmp(again.name, s.name) && again.inner == s.inner);
	free(text);
	st_json_free(keys, &again);
	st_json_free(keys, &s);
	CHECK(!s.name);

	refused("{\"steps\":1,\"stpes\":2}", "stpes: unknown key", "flag, steps, rate");
	refused("{\"steps\":1,\"model\":{\"dept\":2}}", "model.dept: unknown key", "depth");
	refused("{\"steps\":\"1\"}", "steps: seen \"1\"", "an integer");
	refused("{\"steps\":-1}", "steps: seen -1", "from 0");
	refused("{\"steps\":1,\"rate\":1.5}", "rate: seen 1.5", "from 0 to 1");
	refused("{\"steps\":1,\"flag\":1}", "flag: seen 1", "true or false");
	refused("{\"steps\":1,\"kind\":\"adam\"}", "kind: seen \"adam\"", "sgd, adamw");
	refused("{\"steps\":1,\"model\":3}", "model: seen 3", "an object");
	refused("{\"steps\":1,\"name\":\"a\\u0007\"}", "name", "plain text");
	refused("{\"steps\":1,\"name\":\"a\\u0000b\"}", "name", "NUL");
	refused("{\"steps\":1,\"rate\":0.1,\"steps\":2}", "steps: seen twice", "once");
	refused("{\"steps\":1,\"model\":{\"depth\":1},\"model\" : {\"depth\":1}}", "model: seen twice", "once");
	refused("{\"model\":{\"depth\":1,\"depth\":2},\"steps\":1}", "depth: seen twice", "once");
	CHECK_OK(st_json_parse("c.json", "{\"steps\":1,\"name\":\"\\\"steps\\\":{\"}", keys, &s));
	st_json_free(keys, &s);
	refused("{}", "steps: seen nothing", "required");
	refused("{\"steps\":1", "not JSON", "line 1");
	refused("{\"steps\":1,\n\"rate\":}", "not JSON", "line 2");
	refused("[1]", "seen array", "an object");
	refused("{\"steps\":1}x", "not JSON", "line 1");
	refused("{\"steps\":1,\"rate\":NaN}", "rate", "");
	CHECK_FAILS(st_json_load("/nonexistent/c.json", keys, &s), ST_ERR_NOINPUT, "/nonexistent/c.json");
	return check_result();
}
