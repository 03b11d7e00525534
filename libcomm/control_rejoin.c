/*
 * A place in the tree for ranks whose parent has left in an orderly way or died: they go to whoever does its work now.
 *
 * The lowest rank of a node that is still there leads it; a leader's parent is the leader of the nearest node above that still has
 * one, or else of the lowest node.  So a parent always comes before its child in the order (node, rank): whatever two ranks
 * know of who has left, their edges make no circle.  A job usually ends with everybody leaving at once, hence the pause
 * before anything is done.  When it died there is no time to lose: the parts into which the tree has fallen must agree on a verdict.
 */
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "control_internal.h"

#define PAUSE_MS 200
#define CONNECT_MS 2000

static bool acting_leader(const struct control *control, uint32_t node, uint32_t *leader)
{
	const struct topo_node *n = &control->world->nodes[node];

	for (uint32_t i = 0; i < n->rank_count; i++)
		if (!control->left[n->ranks[i]] && !control->gone[n->ranks[i]]) {
			*leader = n->ranks[i];
			return true;
		}
	return false;
}

/* False: this rank is the root of what is left. */
static bool wanted_parent(const struct control *control, uint32_t *parent)
{
	uint32_t mine = control->world->node_of[control->rank];

	if (acting_leader(control, mine, parent) && *parent != control->rank)
		return true;
	for (uint32_t node = mine; node > 0;) {
		node = (node - 1) / CONTROL_TREE_ARITY;
		if (acting_leader(control, node, parent))
			return true;
	}
	for (uint32_t node = 0; node < mine; node++)
		if (acting_leader(control, node, parent))
			return true;
	return false;
}

static bool comes_before(const struct control *control, uint32_t a, uint32_t b)
{
	uint32_t x = control->world->node_of[a], y = control->world->node_of[b];

	return x != y ? x < y : a < b;
}

static bool has_parent(const struct control *control)
{
	for (const struct control_link *link = control->links; link; link = link->next)
		if (link->source.fd >= 0 && !link->mute && comes_before(control, link->peer, control->rank))
			return true;
	return false;
}

/* Lock held on entry and return. */
static void try_parent(struct control *control, uint32_t parent)
{
	struct st_deadline deadline = st_deadline_in_ms(CONNECT_MS);
	bool local = control_same_name(control, parent);
	int fd = -1;

	pthread_mutex_unlock(&control->lock);
	enum st_status status = control_connect(control, parent, WIRE_PURPOSE_TREE, local, &deadline, &fd);
	if (local && status == ST_ERR_UNAVAILABLE) {
		local = false;
		status = control_connect(control, parent, WIRE_PURPOSE_TREE, false, &deadline, &fd);
	}
	pthread_mutex_lock(&control->lock);
	if (status == ST_OK) {
		/* Also when this rank is closing by now: adding the link tells the parent so, where a bare end would look like a death. */
		if (control_link_add(control, parent, local, fd) != ST_OK)
			close(fd);
		else
			control_groups_ask_again(control);
	} else if (status == ST_ERR_UNAVAILABLE && !control->judged) {
		/* Its listener is gone, so it left too, and we were cut off from its GOODBYE. */
		control_mark_left(control, parent, WIRE_UNKNOWN, NULL);
	} else if (status != ST_ERR_INTERRUPTED) {
		control->gone[parent] = true; /* it died as well, or can't be reached from here */
	}
}

static void *rejoin(void *argument)
{
	struct control *control = argument;
	uint32_t parent;

	pthread_mutex_lock(&control->lock);
	while (!atomic_load_explicit(&control->closing, memory_order_relaxed) && !atomic_load_explicit(&control->aborted, memory_order_relaxed) &&
	       !has_parent(control) && wanted_parent(control, &parent))
		try_parent(control, parent);
	control->rejoining = false;
	pthread_mutex_unlock(&control->lock);
	return NULL;
}

void control_rejoin_soon(struct control *control)
{
	control->rejoin_wanted = true;
	control->rejoin_pause = st_deadline_in_ms(PAUSE_MS);
}

void control_rejoin_now(struct control *control)
{
	control->rejoin_wanted = true;
	control->rejoin_pause = st_deadline_in_ms(0);
}

int control_rejoin_tick(struct control *control)
{
	sigset_t all, before;
	uint32_t parent;

	if (!control->rejoin_wanted || control->rejoining)
		return 1000;
	int pause_ms = st_deadline_poll_ms(&control->rejoin_pause);
	if (pause_ms > 0)
		return pause_ms;
	control->rejoin_wanted = false;
	if (atomic_load_explicit(&control->closing, memory_order_relaxed) || has_parent(control) || !wanted_parent(control, &parent))
		return 1000;
	control_rejoin_end(control); /* the last one's thread has ended or is about to: rejoining is false */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	/* Connecting blocks, and the service thread must not. Without a thread this rank stays apart, and its data links tell. */
	control->rejoin_started = pthread_create(&control->rejoin_thread, NULL, rejoin, control) == 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	control->rejoining = control->rejoin_started;
	return 1000;
}

void control_rejoin_end(struct control *control)
{
	if (control->rejoin_started)
		pthread_join(control->rejoin_thread, NULL);
	control->rejoin_started = false;
}
