/*
 * Communicators out of communicators.
 *
 * All ranks of the parent gather colors and keys, so each finds its fellows without another word.  The context of a new communicator is a
 * hash of the parent's, of how many times that was split, and of the color: a rank knows it before it gathers, and announces
 * it to the control plane, where a faster fellow's first words may come before this rank knows who its fellows are.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "comm_internal.h"

struct choice { /* what each rank gathers */
	int32_t color, key;
};

struct fellow {
	int32_t key;
	uint32_t rank; /* of the parent */
};

static int by_key_then_rank(const void *a, const void *b)
{
	const struct fellow *x = a, *y = b;

	if (x->key != y->key)
		return x->key < y->key ? -1 : 1;
	return (x->rank > y->rank) - (x->rank < y->rank);
}

static uint64_t context_of(uint64_t parent, uint64_t number, int32_t color)
{
	const uint64_t words[3] = {parent, number, (uint64_t)color};
	uint64_t context = XXH3_64bits(words, sizeof words);

	return context ? context : 1; /* 0 is the root's */
}

static void name_of(const struct comm *parent, int32_t color, char name[CONTROL_GROUP_NAME_BYTES])
{
	const char *above = control_group_context(parent->context) ? control_group_name(parent->context) : NULL;

	snprintf(name, CONTROL_GROUP_NAME_BYTES, "%s%s%" PRIu64 ":%" PRId32, above ? above : "", above ? "/" : "", parent->splits, color);
}

/* Who has this rank's color, as ranks of the job in the order of the new communicator. */
static enum st_status find_fellows(const struct comm *parent, const struct choice *choices, int32_t color, uint32_t **ranks, uint32_t *count)
{
	struct fellow *fellows = malloc(parent->size * sizeof *fellows);
	uint32_t found = 0;

	*ranks = malloc(parent->size * sizeof **ranks);
	if (!fellows || !*ranks) {
		free(fellows);
		free(*ranks);
		return st_fail(ST_ERR_NOMEM, "communicator: out of memory");
	}
	for (uint32_t r = 0; r < parent->size; r++)
		if (choices[r].color == color)
			fellows[found++] = (struct fellow){choices[r].key, r};
	qsort(fellows, found, sizeof *fellows, by_key_then_rank);
	for (uint32_t i = 0; i < found; i++)
		(*ranks)[i] = control_group_job_rank(parent->context, fellows[i].rank);
	*count = found;
	free(fellows);
	return ST_OK;
}

/* The group is announced and its members' choices are known. Takes nothing: on failure the caller frees comm. */
static enum st_status form(const struct comm *parent, const struct choice *choices, int32_t color, struct comm *comm)
{
	uint32_t *ranks = NULL, count = 0;

	ST_TRY(find_fellows(parent, choices, color, &ranks, &count));
	enum st_status status = control_group_form(comm->context, ranks, count);
	free(ranks);
	ST_TRY(status);
	comm->options = parent->options;
	comm->chunk_bytes = parent->chunk_bytes;
	comm->slots = parent->slots;
	/* From here on all members know the group, and decisions may carry what they like. */
	ST_TRY(control_group_meet(comm->context, parent->options.startup_timeout_ms));
	return comm_wire(comm);
}

enum st_status comm_split(struct comm *parent, int32_t color, int32_t key, struct comm **sub)
{
	const struct choice mine = {color, key};
	struct choice *choices = NULL;
	struct comm *comm = NULL;
	char name[CONTROL_GROUP_NAME_BYTES];
	enum st_status status = ST_OK;

	if (color < 0 && color != COMM_NO_COLOR)
		return st_fail(ST_ERR_USAGE, "comm_split: seen color %" PRId32 ", expected 0 or more, or COMM_NO_COLOR", color);
	ST_TRY(comm_failure(parent));
	parent->splits++;
	choices = calloc(parent->size, sizeof *choices);
	if (color != COMM_NO_COLOR)
		comm = calloc(1, sizeof *comm);
	if (!choices || (color != COMM_NO_COLOR && !comm)) {
		status = st_fail(ST_ERR_NOMEM, "communicator: out of memory");
		goto give_up;
	}
	if (comm) {
		name_of(parent, color, name);
		control_hold(parent->control);
		comm->control = parent->control;
		status = control_group_announce(parent->control, context_of(control_group_context(parent->context), parent->splits, color), name, &comm->context);
		if (status != ST_OK)
			goto give_up;
	}
	status = control_group_split(parent->context, &mine, sizeof mine, choices, parent->options.arrival_timeout_ms);
	if (status == ST_OK && comm)
		status = form(parent, choices, color, comm);
give_up:
	free(choices);
	if (status != ST_OK) {
		char why[1024];
		comm_give_up(parent->control, status);
		snprintf(why, sizeof why, "%s", st_message());
		comm_free(comm);
		return st_fail_copy(status, why);
	}
	*sub = comm;
	return ST_OK;
}
