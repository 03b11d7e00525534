/* Options of a communicator: defaults, the environment, checks. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm_internal.h"

/* What each algorithm's name allows. */
static const struct {
	const char *name;
	unsigned algorithms;
} choices[COMM_ALGORITHMS] = {
	[COMM_ALGORITHM_AUTO] = {"auto", ((1 << PLAN_ALGORITHMS) - 1) & ~(1 << PLAN_TORUS)},
	[COMM_ALGORITHM_RING] = {"ring", 1 << PLAN_RING},
	[COMM_ALGORITHM_HALVING] = {"halving", 1 << PLAN_HALVING | 1 << PLAN_DOUBLING | 1 << PLAN_PAT},
	[COMM_ALGORITHM_TREE] = {"tree", 1 << PLAN_TREE | 1 << PLAN_PAT},
	[COMM_ALGORITHM_HIERARCHICAL] = {"hierarchical", 1 << PLAN_HIERARCHICAL},
	[COMM_ALGORITHM_TORUS] = {"torus", 1 << PLAN_TORUS},
	[COMM_ALGORITHM_DIRECT] = {"direct", 1 << PLAN_DIRECT},
};

unsigned comm_algorithms_of(enum comm_algorithm algorithm)
{
	return choices[algorithm].algorithms;
}

/* A decimal number from the environment into *value when the variable is set and not empty. */
static enum st_status number_from_environment(const char *name, int64_t minimum, int64_t maximum, int64_t *value)
{
	const char *text = getenv(name);
	if (!text || !*text)
		return ST_OK;
	char *end;
	errno = 0;
	long long number = strtoll(text, &end, 10);
	if (errno || *end || *text < '0' || *text > '9' || number < minimum || number > maximum)
		return st_fail(ST_ERR_CONFIG, "%s: '%.64s', expected a number from %" PRId64 " to %" PRId64, name, text, minimum, maximum);
	*value = number;
	return ST_OK;
}

static enum st_status transports_from_environment(unsigned *transports)
{
	const char *text = getenv("SYNCTRAIN_TRANSPORT");
	if (!text || !*text || !strcmp(text, "auto"))
		return ST_OK;
	unsigned mask = 0;
	for (const char *at = text;;) {
		size_t length = strcspn(at, "+");
		if (length == 3 && !strncmp(at, "shm", 3))
			mask |= COMM_TRANSPORT_SHM;
		else if (length == 3 && !strncmp(at, "tcp", 3))
			mask |= COMM_TRANSPORT_TCP;
		else
			return st_fail(ST_ERR_CONFIG, "SYNCTRAIN_TRANSPORT: '%.64s', expected auto, or shm, tcp joined by '+'", text);
		if (!at[length])
			break;
		at += length + 1;
	}
	*transports = mask;
	return ST_OK;
}

static enum st_status algorithm_from_environment(enum comm_algorithm *algorithm)
{
	const char *text = getenv("SYNCTRAIN_ALGORITHM");
	if (!text || !*text)
		return ST_OK;
	char have[128] = "";
	for (int a = 0; a < COMM_ALGORITHMS; a++) {
		if (!strcmp(text, choices[a].name)) {
			*algorithm = (enum comm_algorithm)a;
			return ST_OK;
		}
		snprintf(have + strlen(have), sizeof have - strlen(have), "%s%s", a ? ", " : "", choices[a].name);
	}
	return st_fail(ST_ERR_CONFIG, "SYNCTRAIN_ALGORITHM: '%.64s' is not in this version (have %s)", text, have);
}

enum st_status comm_options_init(struct comm_options *options)
{
	struct comm_options made = {
		.algorithm = COMM_ALGORITHM_AUTO,
		.transports = COMM_TRANSPORT_SHM | COMM_TRANSPORT_TCP,
		.startup_timeout_ms = 60000,
		.stall_timeout_ms = 5000,
		.arrival_timeout_ms = 1800000,
		.chunk_bytes = 128 * 1024,
		.slots = 4,
		.lanes = 2,
		.fusion_bytes = 128 * 1024,
	};
	ST_TRY(algorithm_from_environment(&made.algorithm));
	ST_TRY(transports_from_environment(&made.transports));
	int64_t chunk_bytes = (int64_t)made.chunk_bytes;
	ST_TRY(number_from_environment("SYNCTRAIN_TIMEOUT_MS", 100, 86400000, &made.stall_timeout_ms));
	ST_TRY(number_from_environment("SYNCTRAIN_ARRIVAL_TIMEOUT_MS", 100, 7 * INT64_C(86400000), &made.arrival_timeout_ms));
	ST_TRY(number_from_environment("SYNCTRAIN_CHUNK_BYTES", 256, 1 << 28, &chunk_bytes));
	made.chunk_bytes = (size_t)chunk_bytes;
	const char *accumulate = getenv("SYNCTRAIN_ACCUMULATE");
	if (accumulate && !strcmp(accumulate, "wire"))
		made.accumulate = COMM_ACCUMULATE_WIRE;
	else if (accumulate && *accumulate && strcmp(accumulate, "f32"))
		return st_fail(ST_ERR_CONFIG, "SYNCTRAIN_ACCUMULATE: '%.64s', expected f32 or wire", accumulate);
	int64_t lanes = made.lanes, fusion_bytes = (int64_t)made.fusion_bytes;
	ST_TRY(number_from_environment("SYNCTRAIN_LANES", 1, COMM_MAX_LANES, &lanes));
	ST_TRY(number_from_environment("SYNCTRAIN_FUSION_BYTES", 0, COMM_MAX_FUSION_BYTES, &fusion_bytes));
	made.lanes = (unsigned)lanes;
	made.fusion_bytes = (size_t)fusion_bytes;
	const char *progress = getenv("SYNCTRAIN_PROGRESS");
	if (progress && !strcmp(progress, "thread"))
		made.progress_thread = true;
	else if (progress && *progress && strcmp(progress, "caller"))
		return st_fail(ST_ERR_CONFIG, "SYNCTRAIN_PROGRESS: '%.64s', expected caller or thread", progress);
	const char *interface = getenv("SYNCTRAIN_INTERFACE");
	if (interface && *interface)
		made.interface = interface;
	*options = made;
	return ST_OK;
}

enum st_status comm_options_check(const struct comm_options *options)
{
	if ((int)options->algorithm < COMM_ALGORITHM_AUTO || options->algorithm >= COMM_ALGORITHMS)
		return st_fail(ST_ERR_USAGE, "communicator: no algorithm %d", (int)options->algorithm);
	if (!(options->transports & (COMM_TRANSPORT_SHM | COMM_TRANSPORT_TCP)) ||
	    options->transports & ~(unsigned)(COMM_TRANSPORT_SHM | COMM_TRANSPORT_TCP))
		return st_fail(ST_ERR_USAGE, "communicator: no transports in mask 0x%x", options->transports);
	if ((unsigned)options->accumulate > COMM_ACCUMULATE_WIRE)
		return st_fail(ST_ERR_USAGE, "communicator: no way %d to accumulate", (int)options->accumulate);
	if (!options->lanes || options->lanes > COMM_MAX_LANES)
		return st_fail(ST_ERR_USAGE, "communicator: %u lanes, expected 1 to %d", options->lanes, COMM_MAX_LANES);
	if (options->fusion_bytes > COMM_MAX_FUSION_BYTES)
		return st_fail(ST_ERR_USAGE, "communicator: fusion of up to %zu bytes, expected at most %d", options->fusion_bytes,
			       COMM_MAX_FUSION_BYTES);
	if (options->startup_timeout_ms <= 0 || options->stall_timeout_ms <= 0 || options->arrival_timeout_ms <= 0)
		return st_fail(ST_ERR_USAGE, "communicator: a timeout that is not positive");
	if (options->chunk_bytes < 64 || options->chunk_bytes > (size_t)1 << 30 || options->slots < 2 || options->slots > 1024)
		return st_fail(ST_ERR_USAGE, "communicator: %u slots of %zu bytes, expected 2 to 1024 of 64 bytes to 1 GiB", options->slots,
			       options->chunk_bytes);
	return ST_OK;
}
