#include "options.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const struct opt_entry opt_table[OPT_COUNT] = {
	[OPT_ALGORITHM] = {"algorithm", "synctrain-algorithm", "NAME", "all-reduce algorithm: auto (default), ring, tree, halving, hierarchical, torus or direct", "auto"},
	[OPT_TRANSPORT] = {"transport", "synctrain-transport", "LIST",
			   "what may carry data: auto (default), or shm, tcp joined by +", "auto"},
	[OPT_REPORT] = {"report", "synctrain-report", "DIR",
			"where step reports go; %j %A %a %x %u as for --output. Default synctrain-%j, for arrays synctrain-%A_%a, "
			"under the submit directory",
			""},
};

/* One word of a value. Words that the contract names but this version lacks are told apart from typing errors. */
struct word {
	const char *text;
	bool built;
};

static const struct word algorithms[] = {{"auto", true}, {"ring", true}, {"tree", true}, {"halving", true}, {"hierarchical", true},
					 {"torus", true}, {"direct", true}, {"nccl", false}, {NULL, false}};
static const struct word transports[] = {{"shm", true}, {"tcp", true}, {"verbs", false}, {NULL, false}};

static const char algorithm_expected[] = "auto, ring, tree, halving, hierarchical, torus, direct";
static const char transport_expected[] = "auto, or shm, tcp joined by +";
static const char report_expected[] = "a directory of at most 1000 printable bytes with only %j %A %a %x %u %% in it";
#define REPORT_BYTES 1000

void opt_show(const char *text, char *shown, size_t bytes)
{
	size_t i;

	for (i = 0; text[i] && i + 1 < bytes; i++)
		shown[i] = text[i] >= ' ' && text[i] <= '~' ? text[i] : '?';
	shown[i] = 0;
	if (text[i] && bytes > 4)
		strcpy(shown + bytes - 4, "...");
}

static bool wrong(char error[OPT_ERROR_BYTES], const char *seen, const char *verb, const char *what)
{
	char shown[80];

	opt_show(seen, shown, sizeof shown);
	snprintf(error, OPT_ERROR_BYTES, "seen '%s', %s%s", shown, verb, what);
	return false;
}

static bool not_expected(char error[OPT_ERROR_BYTES], const char *seen, const char *expected)
{
	return wrong(error, seen, "expected ", expected);
}

static bool not_built(char error[OPT_ERROR_BYTES], const char *seen, const char *have)
{
	char what[128];

	snprintf(what, sizeof what, "(have %s)", have);
	return wrong(error, seen, "not in this version ", what);
}

static const struct word *find_word(const struct word *words, const char *text, size_t length)
{
	for (; words->text; words++)
		if (strlen(words->text) == length && !memcmp(words->text, text, length))
			return words;
	return NULL;
}

static bool parse_algorithm(const char *text, char value[OPT_VALUE_BYTES], char error[OPT_ERROR_BYTES])
{
	const struct word *word = find_word(algorithms, text, strlen(text));

	if (!word)
		return not_expected(error, text, algorithm_expected);
	if (!word->built)
		return not_built(error, text, algorithm_expected);
	strcpy(value, word->text);
	return true;
}

static bool parse_transport(const char *text, char value[OPT_VALUE_BYTES], char error[OPT_ERROR_BYTES])
{
	bool chosen[sizeof transports / sizeof *transports] = {false};
	bool missing = false;

	if (!strcmp(text, "auto")) {
		strcpy(value, text);
		return true;
	}
	for (const char *part = text;; part++) {
		size_t length = strcspn(part, "+");
		const struct word *word = find_word(transports, part, length);
		if (!word || chosen[word - transports])
			return not_expected(error, text, transport_expected);
		chosen[word - transports] = true;
		missing |= !word->built;
		part += length;
		if (!*part)
			break;
	}
	if (missing)
		return not_built(error, text, transport_expected);
	value[0] = 0;
	for (size_t i = 0; transports[i].text; i++)
		if (chosen[i])
			sprintf(value + strlen(value), "%s%s", *value ? "+" : "", transports[i].text);
	return true;
}

static bool printable(const char *text)
{
	for (; *text; text++)
		if ((unsigned char)*text < ' ' || *text == 0x7f)
			return false;
	return true;
}

static bool parse_report(const char *text, char value[OPT_VALUE_BYTES], char error[OPT_ERROR_BYTES])
{
	size_t length = strlen(text);

	if (!length || length > REPORT_BYTES || !printable(text))
		return not_expected(error, text, report_expected);
	for (const char *p = strchr(text, '%'); p; p = strchr(p + 2, '%'))
		if (!p[1] || !strchr("jAaxu%", p[1]))
			return not_expected(error, text, report_expected);
	memcpy(value, text, length + 1);
	return true;
}

enum opt_key opt_find(const char *text, size_t length)
{
	int key = 0;

	while (key < OPT_COUNT && (strlen(opt_table[key].key) != length || memcmp(opt_table[key].key, text, length) != 0))
		key++;
	return (enum opt_key)key;
}

bool opt_parse(enum opt_key key, const char *text, char value[OPT_VALUE_BYTES], char error[OPT_ERROR_BYTES])
{
	switch (key) {
	case OPT_ALGORITHM:
		return parse_algorithm(text, value, error);
	case OPT_TRANSPORT:
		return parse_transport(text, value, error);
	case OPT_REPORT:
		return parse_report(text, value, error);
	case OPT_COUNT:
		break;
	}
	return not_expected(error, text, "an option of synctrain");
}

/* "1024" to 16 bits, digits only; *end is where they end. */
static bool parse_port(const char *text, const char **end, uint16_t *port)
{
	uint32_t number = 0;

	for (*end = text; **end >= '0' && **end <= '9'; (*end)++) {
		number = number * 10 + (uint32_t)(**end - '0');
		if (number > UINT16_MAX)
			return false;
	}
	*port = (uint16_t)number;
	return *end > text && number > 0;
}

static bool parse_port_range(const char *text, struct opt_site *site)
{
	const char *end;

	return parse_port(text, &end, &site->port_low) && *end == '-' && parse_port(end + 1, &end, &site->port_high) && !*end &&
	       site->port_low <= site->port_high;
}

static bool parse_mpi(const char *text, struct opt_site *site)
{
	size_t length = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");

	if (!length || text[length] || length >= sizeof site->mpi)
		return false;
	memcpy(site->mpi, text, length + 1);
	return true;
}

static bool parse_lock(const char *text, struct opt_site *site)
{
	for (;; text++) {
		size_t length = strcspn(text, ",");
		enum opt_key key = opt_find(text, length);
		if (key == OPT_COUNT)
			return false;
		site->locked[key] = true;
		text += length;
		if (!*text)
			return true;
	}
}

static bool argument_wrong(char error[OPT_ERROR_BYTES], const char *argument, const char *expected)
{
	char reason[OPT_ERROR_BYTES];

	not_expected(reason, argument, expected);
	snprintf(error, OPT_ERROR_BYTES, "plugstack.conf: %.480s", reason);
	return false;
}

static bool site_argument(const char *argument, struct opt_site *site, char error[OPT_ERROR_BYTES])
{
	size_t length = strcspn(argument, "=");
	const char *text = argument[length] ? argument + length + 1 : "";
	enum opt_key key = argument[length] ? opt_find(argument, length) : OPT_COUNT;

	if (key != OPT_COUNT) {
		char reason[OPT_ERROR_BYTES];
		if (!opt_parse(key, text, site->defaults.value[key], reason)) {
			snprintf(error, OPT_ERROR_BYTES, "plugstack.conf: %s=: %.440s", opt_table[key].key, reason);
			return false;
		}
		site->defaults.given[key] = true;
		return true;
	}
	if (!strncmp(argument, "lock=", 5))
		return parse_lock(text, site) || argument_wrong(error, argument, "lock= and some of algorithm, transport, report joined by ,");
	if (!strncmp(argument, "mpi=", 4))
		return parse_mpi(text, site) || argument_wrong(error, argument, "mpi= and the name of a Slurm MPI plugin");
	if (!strncmp(argument, "port-range=", 11))
		return parse_port_range(text, site) || argument_wrong(error, argument, "port-range=LOW-HIGH, from 1 to 65535");
	if (!strncmp(argument, "helpers=", 8)) {
		if (*text != '/' || strlen(text) >= sizeof site->helpers || !printable(text))
			return argument_wrong(error, argument, "helpers= and an absolute directory");
		strcpy(site->helpers, text);
		return true;
	}
	return argument_wrong(error, argument, "algorithm=, transport=, report=, lock=, mpi=, port-range= or helpers=");
}

bool opt_site_parse(int argc, char *const *argv, struct opt_site *site, char error[OPT_ERROR_BYTES])
{
	memset(site, 0, sizeof *site);
	strcpy(site->mpi, "pmix");
	site->port_low = 20000;
	site->port_high = 29999;
	for (int i = 0; i < argc; i++)
		if (!site_argument(argv[i], site, error))
			return false;
	return true;
}

static const char *site_value(const struct opt_site *site, int key)
{
	return site->defaults.given[key] ? site->defaults.value[key] : opt_table[key].initial;
}

void opt_resolve(const struct opt_site *site, const struct opt_layer *const *layers, size_t count, struct opt_job *job,
		 const char *overridden[OPT_COUNT])
{
	for (int key = 0; key < OPT_COUNT; key++) {
		const char *value = site_value(site, key), *asked = value;
		for (size_t i = 0; i < count; i++)
			if (layers[i]->given[key])
				asked = layers[i]->value[key];
		if (overridden)
			overridden[key] = site->locked[key] && strcmp(asked, value) != 0 ? asked : NULL;
		snprintf(job->value[key], OPT_VALUE_BYTES, "%s", site->locked[key] ? value : asked);
	}
}

void opt_apply_locks(const struct opt_site *site, struct opt_job *job)
{
	for (int key = 0; key < OPT_COUNT; key++)
		if (site->locked[key])
			snprintf(job->value[key], OPT_VALUE_BYTES, "%s", site_value(site, key));
}

/*
 * The carrier: "v1:algorithm=ring:transport=shm+tcp:report=%25j:directory=/home/x", fields in this order, bytes that are
 * not plain in a value as %XX.  A version in front, because submit hosts and nodes are upgraded one after the other.
 */
static const char carrier_version[] = "v1";

static bool plain(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || (c && strchr("/._-+", c));
}

static bool append(char *text, size_t *used, const char *format, ...) __attribute__((format(printf, 3, 4)));
static bool append(char *text, size_t *used, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	int n = vsnprintf(text + *used, OPT_CARRIER_BYTES - *used, format, args);
	va_end(args);
	if (n < 0 || (size_t)n >= OPT_CARRIER_BYTES - *used)
		return false;
	*used += (size_t)n;
	return true;
}

static bool append_field(char *text, size_t *used, const char *name, const char *value)
{
	if (!append(text, used, ":%s=", name))
		return false;
	for (; *value; value++)
		if (!append(text, used, plain(*value) ? "%c" : "%%%02X", plain(*value) ? *value : (unsigned char)*value))
			return false;
	return true;
}

bool opt_carrier_print(const struct opt_job *job, char text[OPT_CARRIER_BYTES])
{
	size_t used = 0;

	if (!append(text, &used, "%s", carrier_version))
		return false;
	for (int key = 0; key < OPT_COUNT; key++)
		if (!append_field(text, &used, opt_table[key].key, job->value[key]))
			return false;
	return append_field(text, &used, "directory", job->directory);
}

static int hex(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Reads ":NAME=VALUE" at *TEXT into VALUE and moves *TEXT behind it. */
static bool take_field(const char **text, const char *name, char *value, size_t bytes)
{
	const char *p = *text;
	size_t length = strlen(name), used = 0;

	if (*p++ != ':' || strncmp(p, name, length) != 0 || p[length] != '=')
		return false;
	for (p += length + 1; *p && *p != ':'; p++) {
		char c = *p;
		if (c == '%') {
			int high = hex(p[1]), low = high < 0 ? -1 : hex(p[2]);
			if (low < 0)
				return false;
			c = (char)(high * 16 + low);
			if (plain(c)) /* one text for one meaning */
				return false;
			p += 2;
		} else if (!plain(c)) {
			return false;
		}
		if (!c || used + 1 >= bytes)
			return false;
		value[used++] = c;
	}
	value[used] = 0;
	*text = p;
	return true;
}

bool opt_carrier_parse(const char *text, struct opt_job *job, char error[OPT_ERROR_BYTES])
{
	const char *p = text;
	size_t length = strlen(carrier_version);

	if (strnlen(text, OPT_CARRIER_BYTES) == OPT_CARRIER_BYTES || strncmp(text, carrier_version, length) != 0)
		return not_expected(error, text, "what this version of the plugin writes");
	p += length;
	for (int key = 0; key < OPT_COUNT; key++) {
		char raw[OPT_VALUE_BYTES];
		if (!take_field(&p, opt_table[key].key, raw, sizeof raw))
			return not_expected(error, text, "what this version of the plugin writes");
		/* An empty value is the default that only the node can work out: whether this is an array job. */
		if (!*raw && !*opt_table[key].initial)
			job->value[key][0] = 0;
		else if (!opt_parse((enum opt_key)key, raw, job->value[key], error))
			return false;
	}
	if (!take_field(&p, "directory", job->directory, sizeof job->directory) || *p)
		return not_expected(error, text, "what this version of the plugin writes");
	if (job->directory[0] != '/' || !printable(job->directory))
		return not_expected(error, job->directory, "an absolute directory");
	return true;
}

struct path {
	char *text;
	size_t used;
	bool full;
};

static void put(struct path *path, const char *text, bool one_component)
{
	for (size_t i = 0; text[i]; i++) {
		char c = text[i];
		/* A job's name is free text: it may not add directories, hide, or climb. */
		if (one_component && (c == '/' || (unsigned char)c < ' ' || c == 0x7f || (c == '.' && i == 0)))
			c = '_';
		if (path->used + 1 >= OPT_PATH_BYTES) {
			path->full = true;
			return;
		}
		path->text[path->used++] = c;
	}
	path->text[path->used] = 0;
}

static void put_number(struct path *path, uint32_t number)
{
	char text[16];

	snprintf(text, sizeof text, "%u", number);
	put(path, text, false);
}

bool opt_report_path(const struct opt_job *job, const struct opt_ids *ids, char text[OPT_PATH_BYTES])
{
	bool array = ids->array_task != OPT_NO_TASK;
	const char *pattern = job->value[OPT_REPORT];
	struct path path = {text, 0, false};

	if (!*pattern)
		pattern = array ? "synctrain-%A_%a" : "synctrain-%j";
	text[0] = 0;
	if (*pattern != '/') {
		put(&path, job->directory, false);
		if (path.used && text[path.used - 1] != '/')
			put(&path, "/", false);
	}
	for (; *pattern; pattern++) {
		char literal[2] = {*pattern, 0};
		if (*pattern != '%') {
			put(&path, literal, false);
			continue;
		}
		switch (*++pattern) {
		case 'j':
			put_number(&path, ids->job);
			break;
		case 'A':
			put_number(&path, array ? ids->array_job : ids->job);
			break;
		case 'a':
			put_number(&path, array ? ids->array_task : 0);
			break;
		case 'x':
			put(&path, ids->name ? ids->name : "", true);
			break;
		case 'u':
			put(&path, ids->user ? ids->user : "", true);
			break;
		case '%':
			put(&path, "%", false);
			break;
		default: /* opt_parse lets no other through */
			return false;
		}
	}
	return !path.full;
}
