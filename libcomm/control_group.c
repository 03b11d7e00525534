/*
 * Communicators as the control plane sees them: members, who has left, and what is sent again when the tree has changed.
 *
 * Every rank keeps the root's decisions, so a neighbour that comes late is told them (control_decisions_resend).  Nobody but its members keeps a
 * group's, and members may leave the job while others need what they said last.  So nothing may be lost when the tree changes:
 *
 *   - a rank that leaves goes on passing frames until each neighbour has answered its goodbye with a farewell (or 1 s has passed)
 *   - every rank remembers the frames of groups that it passed on lately, up to a bound, and sends them to a new neighbour
 *   - should that be too few, the rank that found the new neighbour floods RESEND, and members flood again what they contributed to
 *     decisions that may still be in use
 *
 * Every flood has a number of its own (wire.h), so that connections which form a circle for a while don't pass it round for ever.  Along each way
 * the numbers of an origin come in order, but where the tree has just changed a later one can overtake by another way: the last 65 are remembered.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control_internal.h"

static enum st_status make_room(struct control_group *group)
{
	bool have = true;

	for (int i = 0; i < CONTROL_DECISION_SLOTS; i++) {
		group->decisions[i].ranks = calloc(group->size, sizeof *group->decisions[i].ranks);
		have = have && group->decisions[i].ranks;
	}
	group->entered = calloc(group->size, sizeof *group->entered);
	/* Last: this is what tells the service thread that the group is formed. */
	if (have && group->entered)
		group->left = calloc(group->size, sizeof *group->left);
	return group->left ? ST_OK : st_fail(ST_ERR_NOMEM, "no memory for a communicator of %u ranks", group->size);
}

enum st_status control_root_init(struct control *control)
{
	struct control_group *root = &control->root;

	root->control = control;
	root->size = control->size;
	root->member = control->rank;
	snprintf(root->name, sizeof root->name, "world");
	control->groups = root;
	return make_room(root);
}

void control_group_destroy(struct control_group *group)
{
	control_decisions_free(group);
	if (group != &group->control->root)
		topo_world_free(group->world);
	free(group->ranks);
	free(group->members);
	free(group->early);
	free(group->left);
	free(group->entered);
	group->world = NULL;
	group->ranks = NULL;
	group->members = NULL;
	group->early = group->left = NULL;
	group->entered = NULL;
}

struct control_group *control_group_find(struct control *control, uint64_t context)
{
	for (struct control_group *group = control->groups; group; group = group->next)
		if (group->context == context)
			return group;
	return NULL;
}

uint32_t control_group_rank_of(const struct control_group *group, uint32_t member)
{
	return group->ranks ? group->ranks[member] : member;
}

bool control_group_member(const struct control_group *group, uint32_t rank, uint32_t *member)
{
	if (!group->members) {
		*member = rank;
		return rank < group->size;
	}
	for (uint32_t low = 0, high = group->size; low < high;) {
		uint32_t middle = low + (high - low) / 2;
		if (group->members[middle].rank == rank) {
			*member = group->members[middle].member;
			return true;
		}
		if (group->members[middle].rank < rank)
			low = middle + 1;
		else
			high = middle;
	}
	return false;
}

bool control_group_has_left(const struct control_group *group, uint32_t rank)
{
	uint32_t member;

	return group->control->left[rank] || (group->left && control_group_member(group, rank, &member) && group->left[member]);
}

const char *control_group_left_how(const struct control_group *group, uint32_t rank)
{
	return group->control->left[rank] ? "" : "it has freed the communicator";
}

enum st_status control_group_announce(struct control *control, uint64_t context, const char *name, struct control_group **out)
{
	struct control_group *group = calloc(1, sizeof *group);
	bool taken;

	if (group)
		group->early = calloc(control->size, sizeof *group->early);
	if (!group || !group->early) {
		free(group);
		return st_fail(ST_ERR_NOMEM, "no memory for a communicator");
	}
	group->control = control;
	group->context = context;
	snprintf(group->name, sizeof group->name, "%s", name);
	snprintf(group->label, sizeof group->label, " in communicator %s", group->name);
	pthread_mutex_lock(&control->lock);
	taken = control_group_find(control, context) != NULL;
	if (!taken) {
		group->next = control->groups;
		control->groups = group;
	}
	pthread_mutex_unlock(&control->lock);
	if (taken) {
		free(group->early);
		free(group);
		return st_fail(ST_ERR_INTERNAL, "communicator %s: its context %016llx is another's", name, (unsigned long long)context);
	}
	*out = group;
	return ST_OK;
}

static int by_rank(const void *a, const void *b)
{
	const struct control_member *x = a, *y = b;

	return (x->rank > y->rank) - (x->rank < y->rank);
}

/* The world of the members: hosts and switches are the job's. */
static enum st_status build_world(struct control_group *group)
{
	const struct topo_world *all = group->control->world;
	const char **names = malloc(group->size * sizeof *names), **addresses = malloc(group->size * sizeof *addresses);
	enum st_status status;

	for (uint32_t m = 0; names && addresses && m < group->size; m++) {
		const struct topo_node *node = &all->nodes[all->node_of[group->ranks[m]]];
		names[m] = node->name;
		addresses[m] = node->address;
	}
	if (names && addresses)
		status = topo_world_build(group->member, group->size, names, addresses, &group->world);
	else
		status = st_fail(ST_ERR_NOMEM, "no memory for a communicator of %u ranks", group->size);
	free(names);
	free(addresses);
	return status;
}

enum st_status control_group_form(struct control_group *group, const uint32_t *ranks, uint32_t size)
{
	struct control *control = group->control;
	bool found = false;

	/* Beside the list entry that the service thread sees: it looks at nothing of this before early is gone. */
	group->ranks = malloc(size * sizeof *group->ranks);
	group->members = malloc(size * sizeof *group->members);
	if (!group->ranks || !group->members)
		return st_fail(ST_ERR_NOMEM, "no memory for a communicator of %u ranks", size);
	pthread_mutex_lock(&control->lock);
	group->size = size;
	for (uint32_t m = 0; m < size; m++) {
		group->ranks[m] = ranks[m];
		group->members[m] = (struct control_member){.rank = ranks[m], .member = m};
		if (ranks[m] == control->rank) {
			group->member = m;
			found = true;
		}
	}
	qsort(group->members, size, sizeof *group->members, by_rank);
	enum st_status status = found ? build_world(group) : st_fail(ST_ERR_INTERNAL, "communicator %s: this rank is no member", group->name);
	if (status == ST_OK)
		status = make_room(group);
	if (status == ST_OK)
		control_decisions_take_early(group);
	pthread_mutex_unlock(&control->lock);
	return status;
}

/* Ends this rank's part in the communicator. Lock held. */
static void say_goodbye(struct control_group *group)
{
	struct control *control = group->control;
	struct wire_goodbye goodbye = {.rank = control->rank, .context = group->context};

	if (!group->size || !group->left || group->left[group->member])
		return;
	goodbye.entered = group->entered[group->member] = control_decisions_entered(group);
	group->left[group->member] = true;
	if (group->size == 1 || control->judged)
		return;
	if (group->context)
		control_group_number(control, &goodbye.origin, &goodbye.number);
	control_group_flood(control, NULL, WIRE_GOODBYE, &goodbye, sizeof goodbye, NULL, 0);
}

void control_group_leave(struct control_group *group)
{
	if (!group)
		return;
	struct control *control = group->control;
	pthread_mutex_lock(&control->lock);
	group->meanwhile = NULL;
	if (group != &control->root) {
		for (struct control_group **at = &control->groups; *at; at = &(*at)->next)
			if (*at == group) {
				*at = group->next;
				break;
			}
		say_goodbye(group);
	} else if (control->references > 1) {
		/* Others of this rank's communicators live on; if not, control_close says the greater goodbye. */
		say_goodbye(group);
	}
	pthread_mutex_unlock(&control->lock);
	if (group != &control->root) {
		control_group_destroy(group);
		free(group);
	}
}

void control_group_number(struct control *control, uint32_t *origin, uint64_t *number)
{
	*origin = control->rank;
	*number = ++control->heard[control->rank].last;
}

bool control_group_news(struct control *control, uint32_t origin, uint64_t number)
{
	struct control_heard *heard = &control->heard[origin];

	if (origin == control->rank)
		return false;
	if (number > heard->last) {
		uint64_t ahead = number - heard->last;
		/* The highest so far becomes one of those before; number 0 was none. */
		heard->before = ahead < 64 ? heard->before << ahead : 0;
		if (heard->last && ahead <= 64)
			heard->before |= UINT64_C(1) << (ahead - 1);
		heard->last = number;
		return true;
	}
	uint64_t behind = heard->last - number;
	if (!number || !behind || behind > 64 || heard->before >> (behind - 1) & 1)
		return false;
	heard->before |= UINT64_C(1) << (behind - 1);
	return true;
}

/* ---- frames -------------------------------------------------------------------------------------------------------- */

enum st_status control_goodbye_frame(struct control *control, struct control_link *link, const uint8_t *payload)
{
	struct wire_goodbye goodbye;
	struct control_group *group;
	uint32_t member;

	memcpy(&goodbye, payload, sizeof goodbye);
	if (goodbye.rank >= control->size || goodbye.whole > 1 || (goodbye.whole && goodbye.context) || goodbye.origin >= control->size || goodbye.zero ||
	    (!goodbye.context && (goodbye.origin || goodbye.number)))
		return st_fail(ST_ERR_PROTOCOL, "a goodbye of rank %u of %u", goodbye.rank, control->size);
	/* Of this rank itself: someone who was cut off took it for gone. */
	if (goodbye.rank == control->rank)
		return ST_OK;
	if (goodbye.whole) {
		control_mark_left(control, goodbye.rank, goodbye.entered, link);
		return ST_OK;
	}
	if (goodbye.context && !control_group_news(control, goodbye.origin, goodbye.number))
		return ST_OK;
	group = control_group_find(control, goodbye.context);
	if (group && group->left) {
		if (!control_group_member(group, goodbye.rank, &member))
			return st_fail(ST_ERR_PROTOCOL, "a goodbye of rank %u, which is no member of communicator %s", goodbye.rank, group->name);
		if (group->left[member] && !goodbye.context)
			return ST_OK;
		group->left[member] = true;
		group->entered[member] = goodbye.entered;
		pthread_cond_broadcast(&control->changed);
	}
	control_group_flood(control, link, WIRE_GOODBYE, &goodbye, sizeof goodbye, NULL, 0);
	return ST_OK;
}

static void remember(struct control *control, uint32_t type, const void *payload, size_t bytes, const void *data, size_t data_bytes)
{
	struct control_recent *recent = malloc(sizeof *recent + bytes + data_bytes);

	if (!recent)
		return; /* RESEND is there for this too */
	*recent = (struct control_recent){.when_ns = st_now_ns(), .type = type, .bytes = bytes + data_bytes};
	memcpy(recent->payload, payload, bytes);
	if (data_bytes)
		memcpy(recent->payload + bytes, data, data_bytes);
	*(control->newest_recent ? &control->newest_recent->next : &control->oldest_recent) = recent;
	control->newest_recent = recent;
	control->recent_bytes += sizeof *recent + recent->bytes;
	while (control->recent_bytes > CONTROL_RECENT_BYTES) {
		struct control_recent *oldest = control->oldest_recent;
		control->recent_bytes -= sizeof *oldest + oldest->bytes;
		control->oldest_recent = oldest->next;
		if (!oldest->next)
			control->newest_recent = NULL;
		free(oldest);
	}
}

void control_group_flood(struct control *control, const struct control_link *except, uint32_t type, const void *payload, size_t bytes,
			 const void *data, size_t data_bytes)
{
	remember(control, type, payload, bytes, data, data_bytes);
	control_flood(control, except, type, payload, bytes, data, data_bytes);
}

void control_recent_send(struct control *control, struct control_link *link)
{
	int64_t since = st_now_ns() - CONTROL_RECENT_MS * ST_NS_PER_MS;

	for (const struct control_recent *recent = control->oldest_recent; recent; recent = recent->next)
		if (recent->when_ns >= since)
			control_link_send(control, link, recent->type, recent->payload, recent->bytes, NULL, 0);
}

void control_recent_free(struct control *control)
{
	while (control->oldest_recent) {
		struct control_recent *next = control->oldest_recent->next;
		free(control->oldest_recent);
		control->oldest_recent = next;
	}
	control->newest_recent = NULL;
}

/* Floods again what only members know. Lock held. */
static void repeat_all(struct control *control)
{
	for (struct control_group *group = control->groups; group; group = group->next)
		if (group != &control->root && group->left)
			control_decisions_repeat(group);
}

enum st_status control_resend_frame(struct control *control, struct control_link *link, const uint8_t *payload)
{
	struct wire_resend resend;

	memcpy(&resend, payload, sizeof resend);
	if (resend.origin >= control->size || resend.zero)
		return st_fail(ST_ERR_PROTOCOL, "rank %u of %u asks to send again", resend.origin, control->size);
	if (!control_group_news(control, resend.origin, resend.number))
		return ST_OK;
	control_flood(control, link, WIRE_RESEND, &resend, sizeof resend, NULL, 0);
	repeat_all(control);
	return ST_OK;
}

void control_groups_ask_again(struct control *control)
{
	struct wire_resend resend = {0};

	control_group_number(control, &resend.origin, &resend.number);
	control_flood(control, NULL, WIRE_RESEND, &resend, sizeof resend, NULL, 0);
	repeat_all(control);
}

/* ---- what callers ask ---------------------------------------------------------------------------------------------- */

struct control_group *control_root(struct control *control)
{
	return &control->root;
}

struct control *control_group_control(const struct control_group *group)
{
	return group->control;
}

const struct topo_world *control_group_world(const struct control_group *group)
{
	return group->ranks ? group->world : group->control->world;
}

uint64_t control_group_context(const struct control_group *group)
{
	return group->context;
}

const char *control_group_name(const struct control_group *group)
{
	return group->name;
}

const char *control_group_label(const struct control_group *group)
{
	return group->label;
}

const uint32_t *control_group_ranks(const struct control_group *group)
{
	return group->ranks;
}

uint32_t control_group_job_rank(const struct control_group *group, uint32_t member)
{
	return control_group_rank_of(group, member);
}

void control_group_meanwhile(struct control_group *group, bool (*work)(void *context), void *context)
{
	group->meanwhile = work;
	group->meanwhile_context = context;
}

void control_group_issued(struct control_group *group)
{
	/* One thread issues; the service thread only reads. */
	uint64_t issued = atomic_load_explicit(&group->operations, memory_order_relaxed);

	atomic_store_explicit(&group->operations, issued + 1, memory_order_relaxed);
}
