/*
 * Decisions: every rank floods its contribution, and has the result when it has all of them.
 *
 * Nobody can be more than one decision ahead of anybody (it needs everyone's contribution to end one), so memory is bounded.
 * The contributions of the last two decisions are kept for neighbours that come late.  All ranks see the same contributions
 * and judge them alike, so ranks that called different things all name the same culprit.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control_internal.h"

static void clear(struct control *control, struct control_decision *decision)
{
	for (uint32_t r = 0; r < control->size; r++)
		free(decision->ranks[r].data);
	memset(decision->ranks, 0, control->size * sizeof *decision->ranks);
	decision->present = 0;
}

void control_decisions_free(struct control *control)
{
	for (int i = 0; i < CONTROL_DECISION_SLOTS; i++) {
		if (control->decisions[i].ranks)
			clear(control, &control->decisions[i]);
		free(control->decisions[i].ranks);
		control->decisions[i].ranks = NULL;
	}
}

static struct control_decision *slot_of(struct control *control, uint64_t sequence)
{
	struct control_decision *decision = &control->decisions[sequence % CONTROL_DECISION_SLOTS];

	if (decision->sequence != sequence) {
		clear(control, decision);
		decision->sequence = sequence;
	}
	return decision;
}

static uint32_t carried(const struct wire_decision *head)
{
	return head->kind == WIRE_DECISION_GATHER || head->rank == 0 ? head->bytes : 0;
}

/* Stores a contribution and passes it on. */
static enum st_status contribute(struct control *control, struct control_link *from, const struct wire_decision *head, const uint8_t *data)
{
	struct control_decision *decision = slot_of(control, head->sequence);
	struct control_contribution *slot = &decision->ranks[head->rank];
	uint32_t bytes = carried(head);

	if (slot->present)
		return ST_OK;
	if (bytes) {
		slot->data = malloc(bytes);
		if (!slot->data)
			return st_fail(ST_ERR_NOMEM, "no memory for a decision of %u bytes", bytes);
		memcpy(slot->data, data, bytes);
	}
	slot->present = true;
	slot->kind = head->kind;
	slot->bytes = head->bytes;
	decision->present++;
	control_flood(control, from, WIRE_DECISION, head, sizeof *head, data, bytes);
	pthread_cond_broadcast(&control->changed);
	return ST_OK;
}

enum st_status control_decision_frame(struct control *control, struct control_link *from, const uint8_t *payload, size_t bytes)
{
	struct wire_decision head;

	memcpy(&head, payload, sizeof head);
	if ((head.kind != WIRE_DECISION_GATHER && head.kind != WIRE_DECISION_BROADCAST) || head.rank >= control->size || head.zero ||
	    head.bytes > WIRE_MAX_DECISION_BYTES || bytes - sizeof head != carried(&head))
		return st_fail(ST_ERR_PROTOCOL, "a decision of kind %u, rank %u, %u bytes in a frame of %zu", head.kind, head.rank, head.bytes,
			       bytes);
	if (head.sequence + 2 < control->decision)
		return ST_OK; /* everybody has it */
	if (head.sequence > control->decision + 1)
		return st_fail(ST_ERR_PROTOCOL, "decision %llu while this rank is at %llu", (unsigned long long)head.sequence,
			       (unsigned long long)control->decision);
	return contribute(control, from, &head, payload + sizeof head);
}

void control_decisions_resend(struct control *control, struct control_link *link)
{
	for (int i = 0; i < CONTROL_DECISION_SLOTS; i++) {
		const struct control_decision *decision = &control->decisions[i];
		if (!decision->present || decision->sequence + 2 < control->decision)
			continue;
		for (uint32_t r = 0; r < control->size; r++) {
			const struct control_contribution *slot = &decision->ranks[r];
			struct wire_decision head = {.sequence = decision->sequence, .kind = slot->kind, .rank = r, .bytes = slot->bytes};
			if (slot->present)
				control_link_send(control, link, WIRE_DECISION, &head, sizeof head, slot->data, carried(&head));
		}
	}
}

static const char *kind_name(uint32_t kind)
{
	return kind == WIRE_DECISION_GATHER ? "gathers" : "broadcasts";
}

/* All are there: did all call the same? Rank 0's call is what the others are measured by. */
static bool agree(struct control *control, const struct control_decision *decision, const char *operation)
{
	const struct control_contribution *first = &decision->ranks[0];
	const struct topo_world *world = control->world;

	for (uint32_t r = 1; r < control->size; r++) {
		const struct control_contribution *slot = &decision->ranks[r];
		char detail[WIRE_DETAIL_BYTES];
		if (slot->kind == first->kind && slot->bytes == first->bytes)
			continue;
		snprintf(detail, sizeof detail, "ranks disagree in %s: rank %u on %s %s %u bytes, rank 0 on %s %s %u bytes", operation, r,
			 world->nodes[world->node_of[r]].name, kind_name(slot->kind), slot->bytes, world->nodes[world->node_of[0]].name,
			 kind_name(first->kind), first->bytes);
		control_abort_locked(control, r, CONTROL_HOW_MISMATCH, operation, detail);
		return false;
	}
	return true;
}

/* Waits for everybody's contribution; ends the job when one can't come. Lock held. */
static enum st_status await(struct control *control, const struct control_decision *decision, int64_t timeout_ms, const char *operation)
{
	struct st_deadline deadline = st_deadline_in_ms(timeout_ms);

	for (;;) {
		/* A complete decision counts even when the job was aborted since: the others may have it too. */
		if (decision->present == control->size)
			return agree(control, decision, operation) ? ST_OK : control_verdict_await(control);
		ST_TRY(control_verdict(control));
		for (uint32_t r = 0; r < control->size; r++)
			if (control->left[r] && !decision->ranks[r].present) {
				control_abort_locked(control, r, CONTROL_HOW_LEFT, operation, "");
				return control_verdict_await(control);
			}
		if (control_wait(control, &deadline))
			continue;
		for (uint32_t r = 0; r < control->size; r++)
			if (!decision->ranks[r].present) {
				char detail[96];
				snprintf(detail, sizeof detail, "it did not enter within %.1f s", (double)timeout_ms / 1e3);
				control_abort_locked(control, r, CONTROL_HOW_LATE, operation, detail);
				return control_verdict_await(control);
			}
	}
}

enum st_status control_decide(struct control *control, uint32_t kind, const void *mine, size_t bytes, void *all, int64_t timeout_ms,
			      const char *name)
{
	struct wire_decision head = {.kind = kind, .rank = control->rank, .bytes = (uint32_t)bytes};
	char operation[WIRE_OPERATION_BYTES];
	enum st_status status;

	if (bytes > CONTROL_MAX_DECISION_BYTES)
		return st_fail(ST_ERR_USAGE, "a decision of %zu bytes, at most %zu expected", bytes, CONTROL_MAX_DECISION_BYTES);
	pthread_mutex_lock(&control->lock);
	head.sequence = control->decision;
	if (name)
		snprintf(operation, sizeof operation, "%s", name);
	else
		snprintf(operation, sizeof operation, "decision %llu", (unsigned long long)head.sequence);
	/* What the service thread says when a neighbour dies meanwhile. */
	const char *doing = atomic_load_explicit(&control->doing_name, memory_order_relaxed);
	uint64_t doing_sequence = atomic_load_explicit(&control->doing_sequence, memory_order_relaxed);
	control_doing(control, name ? name : "decision", head.sequence);
	status = control_verdict(control);
	if (status == ST_OK)
		status = contribute(control, NULL, &head, mine);
	const struct control_decision *decision = slot_of(control, head.sequence);
	if (status == ST_OK)
		status = await(control, decision, timeout_ms, operation);
	if (status == ST_OK) {
		if (kind == WIRE_DECISION_GATHER)
			for (uint32_t r = 0; r < control->size && bytes; r++)
				memcpy((uint8_t *)all + r * bytes, decision->ranks[r].data, bytes);
		else if (bytes)
			memcpy(all, decision->ranks[0].data, bytes);
		control->decision++;
	}
	control_doing(control, doing, doing_sequence);
	pthread_mutex_unlock(&control->lock);
	return status;
}

enum st_status control_broadcast(struct control *control, void *data, size_t bytes, int64_t arrival_timeout_ms)
{
	return control_decide(control, WIRE_DECISION_BROADCAST, data, bytes, data, arrival_timeout_ms, NULL);
}

enum st_status control_all_gather(struct control *control, const void *mine, size_t bytes, void *all, int64_t arrival_timeout_ms)
{
	return control_decide(control, WIRE_DECISION_GATHER, mine, bytes, all, arrival_timeout_ms, NULL);
}
