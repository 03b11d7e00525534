/* A run's configuration, and a profile's settings: any text is a configuration that makes sense, or one line that says what does not. */
#include "fuzz.h"

#include "common/json.h"
#include "trainer/config.h"

struct settings {
	char *text;
	bool yes;
	int64_t whole;
	double real;
	int choice;
	struct {
		char *inner;
	} nested;
};

static const char *const choices[] = {"auto", "ring", "tree", NULL};
static const struct st_json_key inner[] = {{.name = "inner", .kind = ST_JSON_STRING, .offset = offsetof(struct settings, nested.inner)}, {0}};
static const struct st_json_key keys[] = {
	{.name = "text", .kind = ST_JSON_STRING, .offset = offsetof(struct settings, text)},
	{.name = "yes", .kind = ST_JSON_BOOL, .offset = offsetof(struct settings, yes)},
	{.name = "whole", .kind = ST_JSON_INT, .offset = offsetof(struct settings, whole), .minimum = -5, .maximum = 1e15},
	{.name = "real", .kind = ST_JSON_NUMBER, .offset = offsetof(struct settings, real), .minimum = 0, .maximum = 1},
	{.name = "choice", .kind = ST_JSON_CHOICE, .offset = offsetof(struct settings, choice), .choices = choices},
	{.name = "nested", .kind = ST_JSON_OBJECT, .keys = inner},
	{0},
};

static void print_and_read_again(const struct settings *settings)
{
	char *text, *again;
	struct settings copy = {0};

	FUZZ_REQUIRE(settings->whole >= -5 && settings->real >= 0 && settings->real <= 1 && settings->choice >= 0 && settings->choice < 3);
	FUZZ_REQUIRE(st_json_print(keys, settings, &text) == ST_OK);
	FUZZ_REQUIRE(st_json_parse("again", text, keys, &copy) == ST_OK && st_json_print(keys, &copy, &again) == ST_OK);
	FUZZ_REQUIRE(!strcmp(text, again));
	free(text);
	free(again);
	st_json_free(keys, &copy);
}

static void check_refusal(enum st_status status)
{
	FUZZ_REQUIRE(status == ST_ERR_CONFIG || status == ST_ERR_DATA || status == ST_ERR_USAGE);
	fuzz_check_message();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct settings settings = {0};
	struct train_config config;
	struct fuzz_input input = {data, bytes};
	uint8_t how = fuzz_u8(&input) % 3;
	char *text = malloc(input.left + 1);
	enum st_status status;

	FUZZ_REQUIRE(text);
	memcpy(text, input.data, input.left);
	text[input.left] = 0;
	switch (how) {
	case 0:
		status = st_json_parse("text", text, keys, &settings);
		break;
	case 1: { /* lines of assignments */
		char *line = text;
		status = ST_OK;
		while (line && status == ST_OK) {
			char *next = strchr(line, '\n');
			if (next)
				*next++ = 0;
			status = st_json_override(keys, &settings, line);
			line = next;
		}
		break;
	}
	default:
		status = train_config_load(fuzz_file(input.data, input.left), NULL, 0, &config);
		if (status == ST_OK) {
			char *printed;
			FUZZ_REQUIRE(train_config_print(&config, &printed) == ST_OK);
			free(printed);
			FUZZ_REQUIRE(train_config_micro_batches(&config) > 0);
			train_config_check_world(&config, "fuzz", 2);
			train_config_schedule(&config);
		}
		train_config_free(&config);
	}
	if (status != ST_OK)
		check_refusal(status);
	else if (how < 2)
		print_and_read_again(&settings);
	st_json_free(keys, &settings);
	free(text);
	return 0;
}

size_t fuzz_seed(unsigned i, uint8_t *data)
{
	static const char *const seeds[] = {
		"0{\"text\": \"a\\u00e9\\n\", \"yes\": true, \"whole\": -3, \"real\": 0.25, \"choice\": \"tree\", \"nested\": {\"inner\": \"x\"}}",
		"0{\"text\": null, \"yes\": 1, \"whole\": 1e400, \"real\": NaN, \"nested\": []}",
		"0{\"whole\": 99999999999999999999, \"whole\": 1}",
		"1text=hello\nyes=false\nwhole=12\nreal=1e-3\nchoice=ring\nnested.inner=y",
		"1nested=3\nwhole=0x10\nreal=inf",
		"2{\"name\": \"tiny\", \"model\": {\"context\": 32, \"layers\": 2, \"heads\": 2, \"channels\": 32}, \"data\": {\"directory\": \"data\"}, \"batch\": {\"global\": "
		"16, \"micro\": 2}, \"optimizer\": {\"learning_rate\": 3e-3, \"kind\": \"sgd\"}, \"eval\": {\"every\": 0}, \"steps\": 20}",
		"2{\"data\": {\"directory\": \"d\"}, \"batch\": {\"global\": 9223372036854775807, \"micro\": -1}, \"seed\": 1.5}",
		"2{\"data\": {\"directory\": \"d\"}, \"debug\": {\"flip_bit\": {\"rank\": 0, \"bit\": 31}}, \"time_limit\": {\"seconds\": 5}}",
	};
	if (i >= sizeof seeds / sizeof *seeds)
		return 0;
	size_t bytes = strlen(seeds[i]);
	memcpy(data, seeds[i], bytes);
	data[0] = (uint8_t)(seeds[i][0] - '0');
	return bytes;
}
