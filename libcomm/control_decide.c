/*
 * Decisions: every member floods its contribution, and has the result when it has all of them.
 *
 * Nobody can be more than one decision ahead of anybody (it needs everyone's contribution to end one), so memory is bounded.
 * The contributions of the last two decisions are kept for neighbours that come late.  All members see the same contributions
 * and judge them alike, so ranks that called different things all name the same culprit.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control_internal.h"

#define MEANWHILE_MS 1

static void clear(struct control_group *group, struct control_decision *decision)
{
	for (uint32_t m = 0; m < group->size; m++)
		free(decision->ranks[m].data);
	memset(decision->ranks, 0, group->size * sizeof *decision->ranks);
	decision->present = 0;
}

void control_decisions_free(struct control_group *group)
{
	for (int i = 0; i < CONTROL_DECISION_SLOTS; i++) {
		if (group->decisions[i].ranks)
			clear(group, &group->decisions[i]);
		free(group->decisions[i].ranks);
		group->decisions[i].ranks = NULL;
	}
}

static struct control_decision *slot_of(struct control_group *group, uint64_t sequence)
{
	struct control_decision *decision = &group->decisions[sequence % CONTROL_DECISION_SLOTS];

	if (decision->sequence != sequence) {
		clear(group, decision);
		decision->sequence = sequence;
	}
	return decision;
}

static uint32_t carried(const struct control_group *group, const struct wire_decision *head)
{
	return head->kind != WIRE_DECISION_BROADCAST || head->rank == control_group_rank_of(group, 0) ? head->bytes : 0;
}

static void pass_on(struct control *control, struct control_link *from, const struct wire_decision *head, const uint8_t *data, uint32_t bytes)
{
	if (head->context)
		control_group_flood(control, from, WIRE_DECISION, head, sizeof *head, data, bytes);
	else
		control_flood(control, from, WIRE_DECISION, head, sizeof *head, data, bytes);
}

/* Stores a contribution and passes it on. */
static enum st_status contribute(struct control_group *group, uint32_t member, struct control_link *from, const struct wire_decision *head,
				 const uint8_t *data)
{
	struct control_decision *decision = slot_of(group, head->sequence);
	struct control_contribution *slot = &decision->ranks[member];
	uint32_t bytes = carried(group, head);

	/* Of the root's decisions all ranks know all, and a flood ends where it is known.  Numbers end the others'. */
	if (head->context || !slot->present)
		pass_on(group->control, from, head, data, bytes);
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
	slot->operations = head->operations;
	decision->present++;
	pthread_cond_broadcast(&group->control->changed);
	return ST_OK;
}

static const char *kind_name(uint32_t kind)
{
	return kind == WIRE_DECISION_BROADCAST ? "broadcasts" : kind == WIRE_DECISION_SPLIT ? "splits by" : "gathers";
}

/* Decisions have their place in the order of a communicator's operations: who waits in one after fewer operations than this rank has issued by now
 * without entering it will not meet this rank there, nor in those operations. */
static void check_order(struct control_group *group, uint32_t member)
{
	const struct control_decision *decision = slot_of(group, group->decision);
	const struct control_contribution *slot = &decision->ranks[member];
	uint64_t issued = atomic_load_explicit(&group->operations, memory_order_relaxed);
	char operation[WIRE_OPERATION_BYTES], detail[WIRE_DETAIL_BYTES];

	if (!slot->present || decision->ranks[group->member].present || slot->operations >= issued)
		return;
	const struct topo_world *world = group->control->world;
	uint32_t rank = control_group_rank_of(group, member), own = group->control->rank;
	snprintf(operation, sizeof operation, "decision %llu%s", (unsigned long long)group->decision, group->label);
	snprintf(detail, sizeof detail,
		 "ranks disagree in %s: rank %u on %s %s %u bytes after %llu collectives, rank %u on %s has called collective %llu without having done so",
		 operation, rank, world->nodes[world->node_of[rank]].name, kind_name(slot->kind), slot->bytes, (unsigned long long)slot->operations, own,
		 world->nodes[world->node_of[own]].name, (unsigned long long)slot->operations + 1);
	control_abort_locked(group->control, rank, CONTROL_HOW_MISMATCH, operation, detail);
}

void control_decisions_tick(struct control *control)
{
	if (control->judged)
		return;
	for (struct control_group *group = control->groups; group; group = group->next)
		if (group->left && slot_of(group, group->decision)->present)
			for (uint32_t m = 0; m < group->size; m++)
				check_order(group, m);
}

enum st_status control_decision_frame(struct control *control, struct control_link *from, const uint8_t *payload, size_t bytes)
{
	struct control_group *group;
	struct wire_decision head;
	uint32_t member, data_bytes = (uint32_t)(bytes - sizeof head);

	memcpy(&head, payload, sizeof head);
	if (head.kind < WIRE_DECISION_GATHER || head.kind > WIRE_DECISION_SPLIT || head.rank >= control->size || head.origin >= control->size ||
	    (!head.context && (head.origin || head.number)) ||
	    head.bytes > WIRE_MAX_DECISION_BYTES || (data_bytes != head.bytes && (data_bytes || head.kind != WIRE_DECISION_BROADCAST)))
		return st_fail(ST_ERR_PROTOCOL, "a decision of kind %u, rank %u, %u bytes in a frame of %zu", head.kind, head.rank, head.bytes,
			       bytes);
	if (head.context && !control_group_news(control, head.origin, head.number))
		return ST_OK;
	group = control_group_find(control, head.context);
	if (group && !group->left) { /* it forms */
		if (head.sequence || head.bytes || head.kind != WIRE_DECISION_GATHER)
			return st_fail(ST_ERR_PROTOCOL, "decision %llu of rank %u in communicator %s, which is only forming",
				       (unsigned long long)head.sequence, head.rank, group->name);
		group->early[head.rank] = true;
	}
	if (!group || !group->left) {
		pass_on(control, from, &head, payload + sizeof head, data_bytes);
		return ST_OK;
	}
	if (!control_group_member(group, head.rank, &member))
		return st_fail(ST_ERR_PROTOCOL, "a decision of rank %u, which is no member of communicator %s", head.rank, group->name);
	if (data_bytes != carried(group, &head))
		return st_fail(ST_ERR_PROTOCOL, "a decision of kind %u, rank %u, %u bytes in a frame of %zu", head.kind, head.rank, head.bytes,
			       bytes);
	if (head.sequence + 2 < group->decision)
		return ST_OK; /* everybody has it */
	if (head.sequence > group->decision + 1)
		return st_fail(ST_ERR_PROTOCOL, "decision %llu%s while this rank is at %llu", (unsigned long long)head.sequence, group->label,
			       (unsigned long long)group->decision);
	ST_TRY(contribute(group, member, from, &head, payload + sizeof head));
	if (head.sequence == group->decision)
		check_order(group, member);
	return ST_OK;
}

void control_decisions_take_early(struct control_group *group)
{
	struct control_decision *decision = slot_of(group, 0);

	for (uint32_t m = 0; m < group->size; m++)
		if (group->early[control_group_rank_of(group, m)]) {
			decision->ranks[m].present = true;
			decision->ranks[m].kind = WIRE_DECISION_GATHER;
			decision->present++;
		}
	free(group->early);
	group->early = NULL;
}

static void send_contribution(const struct control_group *group, const struct control_decision *decision, uint32_t member, struct control_link *to)
{
	const struct control_contribution *slot = &decision->ranks[member];
	struct wire_decision head = {.context = group->context, .sequence = decision->sequence, .operations = slot->operations, .kind = slot->kind,
				     .rank = control_group_rank_of(group, member), .bytes = slot->bytes};

	if (!slot->present)
		return;
	if (to) {
		control_link_send(group->control, to, WIRE_DECISION, &head, sizeof head, slot->data, carried(group, &head));
	} else {
		control_group_number(group->control, &head.origin, &head.number);
		pass_on(group->control, NULL, &head, slot->data, carried(group, &head));
	}
}

static bool in_use(const struct control_group *group, const struct control_decision *decision)
{
	return decision->present && decision->sequence + 2 >= group->decision;
}

void control_decisions_resend(struct control *control, struct control_link *link)
{
	const struct control_group *root = &control->root;

	for (int i = 0; i < CONTROL_DECISION_SLOTS; i++)
		for (uint32_t m = 0; m < root->size && in_use(root, &root->decisions[i]); m++)
			send_contribution(root, &root->decisions[i], m, link);
}

void control_decisions_repeat(struct control_group *group)
{
	uint32_t lowest = 0;

	while (lowest < group->member && control_group_has_left(group, control_group_rank_of(group, lowest)))
		lowest++;
	for (int i = 0; i < CONTROL_DECISION_SLOTS; i++)
		for (uint32_t m = 0; m < group->size && in_use(group, &group->decisions[i]); m++)
			if (m == group->member || control_group_has_left(group, control_group_rank_of(group, m)))
				send_contribution(group, &group->decisions[i], m, NULL);
	/* Who has left has forgotten the communicator: one of those who remember speaks for it. */
	for (uint32_t m = 0; m < group->size && lowest == group->member; m++)
		if (group->left[m] && m != group->member) {
			struct wire_goodbye goodbye = {.rank = control_group_rank_of(group, m), .context = group->context, .entered = group->entered[m]};
			control_group_number(group->control, &goodbye.origin, &goodbye.number);
			control_flood(group->control, NULL, WIRE_GOODBYE, &goodbye, sizeof goodbye, NULL, 0);
		}
}

/* All are there: did all call the same, and after as many operations? Member 0's call is what the others are measured by. */
static bool agree(struct control_group *group, const struct control_decision *decision, const char *operation)
{
	const struct control_contribution *first = &decision->ranks[0];
	const struct topo_world *world = group->control->world;
	uint32_t first_rank = control_group_rank_of(group, 0);

	for (uint32_t m = 1; m < group->size; m++) {
		const struct control_contribution *slot = &decision->ranks[m];
		uint32_t rank = control_group_rank_of(group, m);
		char detail[WIRE_DETAIL_BYTES], after[2][48] = {"", ""};
		if (slot->kind == first->kind && slot->bytes == first->bytes && slot->operations == first->operations)
			continue;
		if (slot->operations != first->operations) {
			snprintf(after[0], sizeof after[0], " after %llu collectives", (unsigned long long)slot->operations);
			snprintf(after[1], sizeof after[1], " after %llu", (unsigned long long)first->operations);
		}
		snprintf(detail, sizeof detail, "ranks disagree in %s: rank %u on %s %s %u bytes%s, rank %u on %s %s %u bytes%s", operation, rank,
			 world->nodes[world->node_of[rank]].name, kind_name(slot->kind), slot->bytes, after[0], first_rank,
			 world->nodes[world->node_of[first_rank]].name, kind_name(first->kind), first->bytes, after[1]);
		control_abort_locked(group->control, rank, CONTROL_HOW_MISMATCH, operation, detail);
		return false;
	}
	return true;
}

/* Lets the communicator's operations go on: others may wait for them before they come here. Lock held, but not meanwhile: what came is to be looked
 * at before sleeping, or its wake-up is lost. True: there are more of them. */
static bool go_on(struct control_group *group)
{
	bool busy;

	if (!group->meanwhile)
		return false;
	pthread_mutex_unlock(&group->control->lock);
	busy = group->meanwhile(group->meanwhile_context);
	pthread_mutex_lock(&group->control->lock);
	return busy;
}

/* False: the deadline has passed. busy: operations are to go on soon. */
static bool wait_for_news(struct control *control, bool busy, struct st_deadline *deadline)
{
	if (!busy)
		return control_wait(control, deadline);
	struct st_deadline soon = st_deadline_in_ms(MEANWHILE_MS);
	control_wait(control, &soon);
	return !st_deadline_expired(deadline);
}

uint64_t control_decisions_entered(struct control_group *group)
{
	return group->decision + slot_of(group, group->decision)->ranks[group->member].present;
}

enum leaving { LEAVING_NOBODY, LEAVING_PERHAPS_HEARD_OF, LEAVING_FOR_GOOD };

/* Somebody who has left, and whose contribution is not here: it never will be, or may be on its way. */
static enum leaving find_leaver(const struct control_group *group, const struct control_decision *decision, uint32_t *leaver)
{
	enum leaving found = LEAVING_NOBODY;

	for (uint32_t m = 0; m < group->size; m++) {
		uint32_t rank = control_group_rank_of(group, m);
		if (decision->ranks[m].present || !control_group_has_left(group, rank))
			continue;
		*leaver = rank;
		if (group->left[m] && group->entered[m] <= decision->sequence)
			return LEAVING_FOR_GOOD;
		found = LEAVING_PERHAPS_HEARD_OF;
	}
	return found;
}

/* Waits for everybody's contribution; ends the job when one can't come. Lock held. */
static enum st_status await(struct control_group *group, const struct control_decision *decision, int64_t timeout_ms, const char *operation)
{
	struct control *control = group->control;
	struct st_deadline deadline = st_deadline_in_ms(timeout_ms), lost = deadline;
	bool lost_already = false;

	for (;;) {
		const bool busy = decision->present < group->size && go_on(group);
		/* A complete decision counts even when the job was aborted since: the others may have it too. */
		if (decision->present == group->size)
			return agree(group, decision, operation) ? ST_OK : control_verdict_await(control);
		ST_TRY(control_verdict(control));
		/* What who left has said before may be on a longer way than its goodbye, when the tree has changed. */
		uint32_t leaver = 0;
		enum leaving leaving = find_leaver(group, decision, &leaver);
		if (leaving == LEAVING_NOBODY || (leaving == LEAVING_PERHAPS_HEARD_OF && (control->rejoin_wanted || control->rejoining))) {
			lost_already = false;
		} else if (leaving == LEAVING_PERHAPS_HEARD_OF && !lost_already) {
			lost_already = true;
			lost = st_deadline_in_ms(CONTROL_LOST_MS);
		} else if (leaving == LEAVING_FOR_GOOD || st_deadline_expired(&lost)) {
			control_abort_locked(control, leaver, CONTROL_HOW_LEFT, operation, control_group_left_how(group, leaver));
			return control_verdict_await(control);
		}
		uint32_t present = decision->present;
		if (lost_already) {
			wait_for_news(control, busy, &lost);
			continue;
		}
		if (wait_for_news(control, busy, &deadline) || decision->present != present)
			continue;
		for (uint32_t m = 0; m < group->size; m++)
			if (!decision->ranks[m].present) {
				char detail[96];
				snprintf(detail, sizeof detail, "it did not enter within %.1f s", (double)timeout_ms / 1e3);
				control_abort_locked(control, control_group_rank_of(group, m), CONTROL_HOW_LATE, operation, detail);
				return control_verdict_await(control);
			}
	}
}

enum st_status control_group_decide(struct control_group *group, uint32_t kind, const void *mine, size_t bytes, void *all, int64_t timeout_ms,
				    const char *name)
{
	struct control *control = group->control;
	struct wire_decision head = {.context = group->context, .kind = kind, .rank = control->rank, .bytes = (uint32_t)bytes};
	char operation[WIRE_OPERATION_BYTES];
	enum st_status status;

	if (bytes > CONTROL_MAX_DECISION_BYTES)
		return st_fail(ST_ERR_USAGE, "a decision of %zu bytes, at most %zu expected", bytes, CONTROL_MAX_DECISION_BYTES);
	pthread_mutex_lock(&control->lock);
	head.sequence = group->decision;
	head.operations = atomic_load_explicit(&group->operations, memory_order_relaxed);
	if (name)
		snprintf(operation, sizeof operation, "%s%s", name, group->label);
	else
		snprintf(operation, sizeof operation, "decision %llu%s", (unsigned long long)head.sequence, group->label);
	/* What the service thread says when a neighbour dies meanwhile. */
	const char *doing = atomic_load_explicit(&control->doing_name, memory_order_relaxed);
	uint64_t doing_sequence = atomic_load_explicit(&control->doing_sequence, memory_order_relaxed);
	uint64_t doing_context = atomic_load_explicit(&control->doing_context, memory_order_relaxed);
	control_group_doing(group, name ? name : "decision", head.sequence);
	status = control_verdict(control);
	if (status == ST_OK && head.context)
		control_group_number(control, &head.origin, &head.number);
	if (status == ST_OK)
		status = contribute(group, group->member, NULL, &head, mine);
	const struct control_decision *decision = slot_of(group, head.sequence);
	if (status == ST_OK)
		status = await(group, decision, timeout_ms, operation);
	if (status == ST_OK) {
		if (kind != WIRE_DECISION_BROADCAST)
			for (uint32_t m = 0; m < group->size && bytes; m++)
				memcpy((uint8_t *)all + m * bytes, decision->ranks[m].data, bytes);
		else if (bytes)
			memcpy(all, decision->ranks[0].data, bytes);
		group->decision++;
	}
	control_doing(control, doing, doing_sequence);
	atomic_store_explicit(&control->doing_context, doing_context, memory_order_relaxed);
	pthread_mutex_unlock(&control->lock);
	return status;
}

enum st_status control_commit(struct control *control, int64_t timeout_ms)
{
	struct control_group *root = &control->root;
	uint64_t sequence = root->decision;
	enum st_status status = control_group_meet(root, timeout_ms);
	struct st_deadline late = st_deadline_in_ms(CONTROL_LOST_MS);
	char why[1024];

	if (status == ST_OK)
		return ST_OK;
	snprintf(why, sizeof why, "%s", st_message());
	pthread_mutex_lock(&control->lock);
	const struct control_decision *decision = slot_of(root, sequence);
	while (decision->present < root->size && decision->ranks[root->member].present && control_wait(control, &late))
		;
	if (decision->present == root->size)
		status = ST_OK;
	pthread_mutex_unlock(&control->lock);
	return status == ST_OK ? ST_OK : st_fail_copy(status, why);
}

enum st_status control_group_broadcast(struct control_group *group, void *data, size_t bytes, int64_t arrival_timeout_ms)
{
	return control_group_decide(group, WIRE_DECISION_BROADCAST, data, bytes, data, arrival_timeout_ms, NULL);
}

enum st_status control_group_all_gather(struct control_group *group, const void *mine, size_t bytes, void *all, int64_t arrival_timeout_ms)
{
	return control_group_decide(group, WIRE_DECISION_GATHER, mine, bytes, all, arrival_timeout_ms, NULL);
}

enum st_status control_group_split(struct control_group *group, const void *mine, size_t bytes, void *all, int64_t arrival_timeout_ms)
{
	return control_group_decide(group, WIRE_DECISION_SPLIT, mine, bytes, all, arrival_timeout_ms, NULL);
}

enum st_status control_group_meet(struct control_group *group, int64_t timeout_ms)
{
	return control_group_decide(group, WIRE_DECISION_GATHER, NULL, 0, NULL, timeout_ms, "start-up");
}

enum st_status control_broadcast(struct control *control, void *data, size_t bytes, int64_t arrival_timeout_ms)
{
	return control_group_broadcast(&control->root, data, bytes, arrival_timeout_ms);
}

enum st_status control_all_gather(struct control *control, const void *mine, size_t bytes, void *all, int64_t arrival_timeout_ms)
{
	return control_group_all_gather(&control->root, mine, bytes, all, arrival_timeout_ms);
}
