/*
 * What to make of a neighbour that is silent, or whose connection ended.
 *
 * A process that ended, a process that is stopped, a host that is down and a cut between two hosts that live look alike from one end of a
 * connection.  So this rank first calls at the other's address itself: what its host answers to a connection, and what its service thread
 * answers to a handshake, tell the first two.  When nothing comes back it asks leaders of other nodes, one after the other until one
 * answers, whether they reach that rank:
 *
 *   refused by its host, here or there      its process ended                           EXITED, that rank
 *   its host answers, it does not           stopped or stuck                            UNREACHABLE, that rank
 *   this rank or the other reaches it       it lives: the link between the two is cut   LINK, both
 *   neither reaches it                      two hosts say that its host is gone         UNREACHABLE, its node's leader
 *   nobody whom this rank asks answers      this host itself is cut off                 UNREACHABLE, this node's leader
 *   there is no third node to ask           a cut and a dead host look the same         UNREACHABLE, its node's leader, said plainly
 *
 * A cut may go through the tree: who is asked connects itself to the rank in question, and who asks to the one it asks.  So a verdict has a
 * way round before it is spoken.
 *
 * All this takes connections, which block, and the service thread must not: each question has a helper thread with deadlines.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control_internal.h"

#define MOST_WITNESSES 3

/* What a helper waits for. On its stack; guarded by the lock. */
struct control_question {
	struct control_question *next;
	uint32_t about, witness;
	bool answered;
	enum control_sign sign;
};

struct finding {
	enum control_sign own, theirs; /* theirs: of the witness, when one answered */
	uint32_t witness;
	bool answered;
	unsigned tried; /* nodes */
};

struct helper {
	struct control *control;
	enum { HELPER_FINDS_OUT, HELPER_BEARS_WITNESS } work;
	enum control_question_kind kind;
	uint32_t peer, asker;
	char seen[128];
};

/* How long a host gets to answer; a process gets twice as long. */
static int64_t answer_ms(const struct control *control)
{
	int64_t ms = control->stall_timeout_ms / 8;

	return ms < 250 ? 250 : ms > 500 ? 500 : ms;
}

static const char *host_of(const struct control *control, uint32_t rank)
{
	return control->world->nodes[control->world->node_of[rank]].name;
}

/* The first rank of the node that is not known to have left. */
static uint32_t leader_of(const struct control *control, uint32_t node)
{
	const struct topo_node *n = &control->world->nodes[node];

	for (uint32_t i = 0; i < n->rank_count; i++)
		if (!control->left[n->ranks[i]])
			return n->ranks[i];
	return n->ranks[0];
}

/* ---- asking -------------------------------------------------------------------------------------------------------- */

/* A tree connection to the rank, a new one if need be. Lock held on entry and return, not in between. */
static struct control_link *reach(struct control *control, uint32_t rank, int64_t timeout_ms)
{
	struct control_link *link = control_link_find(control, rank);
	struct st_deadline deadline = st_deadline_in_ms(timeout_ms);
	bool local = control_same_name(control, rank) && control->reach[rank] != CONTROL_REACH_REMOTE;
	int fd = -1;

	if (link && link->silent_ns < 3 * control->heartbeat_ms * ST_NS_PER_MS)
		return link;
	pthread_mutex_unlock(&control->lock);
	enum st_status status = control_connect(control, rank, WIRE_PURPOSE_TREE, local, &deadline, &fd);
	pthread_mutex_lock(&control->lock);
	if (status != ST_OK)
		return NULL;
	if (control_link_add(control, rank, local, fd) != ST_OK) {
		close(fd);
		return NULL;
	}
	return control_link_find(control, rank);
}

/* Whether the witness answered. Lock held on entry and return, not in between. */
static bool ask(struct control *control, uint32_t witness, uint32_t about, enum control_sign *sign)
{
	struct control_question question = {.next = control->questions, .about = about, .witness = witness};
	struct wire_ask frame = {.about = about};
	/* Its own look at `about` takes up to three times answer_ms. */
	struct st_deadline deadline = st_deadline_in_ms(4 * answer_ms(control));
	struct control_link *link = reach(control, witness, answer_ms(control));

	if (!link)
		return false;
	question.next = control->questions;
	control->questions = &question;
	control_link_send(control, link, WIRE_ASK, &frame, sizeof frame, NULL, 0);
	while (!question.answered && !atomic_load_explicit(&control->closing, memory_order_relaxed) &&
	       !atomic_load_explicit(&control->aborted, memory_order_relaxed) && control_wait(control, &deadline))
		;
	for (struct control_question **at = &control->questions; *at; at = &(*at)->next)
		if (*at == &question) {
			*at = question.next;
			break;
		}
	*sign = question.sign;
	return question.answered;
}

/* Lock held on entry and return, not in between. */
static void find_out(struct control *control, uint32_t peer, bool reach_only, struct finding *finding)
{
	const struct topo_world *world = control->world;
	uint32_t mine = world->node_of[control->rank], theirs = world->node_of[peer];

	*finding = (struct finding){0};
	if (!reach_only) {
		pthread_mutex_unlock(&control->lock);
		finding->own = control_sign_of(control, peer, answer_ms(control));
		pthread_mutex_lock(&control->lock);
		if (finding->own != CONTROL_SIGN_NONE || mine == theirs)
			return;
	}
	for (uint32_t i = 1; i < world->node_count && finding->tried < MOST_WITNESSES && !finding->answered; i++) {
		uint32_t node = (theirs + i) % world->node_count;
		if (node == mine || node == theirs || control->left[leader_of(control, node)])
			continue;
		finding->tried++;
		finding->witness = leader_of(control, node);
		finding->answered = ask(control, finding->witness, peer, &finding->theirs);
	}
}

/* ---- judging ------------------------------------------------------------------------------------------------------- */

static void judge(struct control *control, uint32_t peer, const struct finding *finding, const char *operation, const char *seen)
{
	const struct topo_world *world = control->world;
	enum control_sign sign = finding->own != CONTROL_SIGN_NONE ? finding->own : finding->theirs;
	uint32_t leader = leader_of(control, world->node_of[peer]);
	char detail[WIRE_DETAIL_BYTES];

	if (control->left[peer]) {
		control_abort_locked(control, peer, CONTROL_HOW_LEFT, operation, "");
		return;
	}
	switch (sign) {
	case CONTROL_SIGN_REFUSED:
		control_abort_locked(control, peer, CONTROL_HOW_EXITED, operation, "its process ended");
		return;
	case CONTROL_SIGN_MUTE:
		control_abort_locked(control, peer, CONTROL_HOW_UNREACHABLE, operation, seen);
		return;
	case CONTROL_SIGN_ALIVE:
		if (finding->own == CONTROL_SIGN_ALIVE)
			snprintf(detail, sizeof detail, "%s", seen);
		else
			snprintf(detail, sizeof detail, "%s, while rank %" PRIu32 " on %s reaches both", seen, finding->witness,
				 host_of(control, finding->witness));
		control_abort_locked(control, peer, CONTROL_HOW_LINK, operation, detail);
		return;
	case CONTROL_SIGN_NONE:
		break;
	}
	if (finding->answered) {
		snprintf(detail, sizeof detail, "%s, and rank %" PRIu32 " on %s does not reach its host either", seen, finding->witness,
			 host_of(control, finding->witness));
	} else if (finding->tried) {
		leader = leader_of(control, world->node_of[control->rank]);
		snprintf(detail, sizeof detail, "its host reaches neither %s nor %u other node%s: it is cut off", host_of(control, peer), finding->tried,
			 finding->tried == 1 ? "" : "s");
	} else {
		snprintf(detail, sizeof detail, "%s; there is no third node to tell a dead host from a cut network", seen);
	}
	control_abort_locked(control, leader, CONTROL_HOW_UNREACHABLE, operation, detail);
}

void control_inquire_here(struct control *control, uint32_t peer, const char *operation, const char *seen)
{
	struct finding finding;

	find_out(control, peer, false, &finding);
	judge(control, peer, &finding, operation, seen);
}

void control_overdue(struct control *control, uint32_t rank, const char *operation, const char *detail)
{
	struct finding finding;

	find_out(control, rank, false, &finding);
	if (finding.own == CONTROL_SIGN_ALIVE && !control->left[rank])
		control_abort_locked(control, rank, CONTROL_HOW_LATE, operation, detail);
	else
		judge(control, rank, &finding, operation, detail);
}

/* False: it was heard again meanwhile, or the verdict is another's. */
static bool stays_silent(struct control *control, uint32_t peer)
{
	int64_t judged_ns = control_silence_judged_ns(control);

	for (;;) {
		int64_t silence_ns = control_silence_ns(control, peer);
		if (silence_ns < control->stall_timeout_ms * ST_NS_PER_MS / 2 || silence_ns == INT64_MAX || control->judged ||
		    atomic_load_explicit(&control->closing, memory_order_relaxed))
			return false;
		if (silence_ns >= judged_ns)
			return true;
		struct st_deadline next = st_deadline_in_ms((judged_ns - silence_ns) / ST_NS_PER_MS + 1);
		control_wait(control, &next);
	}
}

/* ---- helpers ------------------------------------------------------------------------------------------------------- */

static void inquire(struct helper *helper)
{
	struct control *control = helper->control;
	struct finding finding;

	find_out(control, helper->peer, helper->kind == CONTROL_QUESTION_REACH, &finding);
	if (helper->kind == CONTROL_QUESTION_ENDED || (helper->kind == CONTROL_QUESTION_SILENT && stays_silent(control, helper->peer)))
		judge(control, helper->peer, &finding, NULL, helper->seen);
	if (helper->kind == CONTROL_QUESTION_REACH)
		control->reaching--;
	else
		control->inquired[helper->peer] = false;
}

static void bear_witness(struct helper *helper)
{
	struct control *control = helper->control;
	struct wire_answer answer = {.about = helper->peer, .sign = CONTROL_SIGN_ALIVE};

	/* A way round the cut, should there be one; who is linked with the rank already has nothing to find out. */
	if (helper->peer != control->rank && !reach(control, helper->peer, 2 * answer_ms(control))) {
		pthread_mutex_unlock(&control->lock);
		answer.sign = control_sign_of(control, helper->peer, answer_ms(control));
		pthread_mutex_lock(&control->lock);
	}
	struct control_link *link = control_link_find(control, helper->asker);
	if (link && !atomic_load_explicit(&control->closing, memory_order_relaxed))
		control_link_send(control, link, WIRE_ANSWER, &answer, sizeof answer, NULL, 0);
}

static void *help(void *argument)
{
	struct helper *helper = argument;
	struct control *control = helper->control;

	pthread_mutex_lock(&control->lock);
	if (helper->work == HELPER_FINDS_OUT)
		inquire(helper);
	else
		bear_witness(helper);
	free(helper);
	control->helpers--;
	pthread_cond_broadcast(&control->changed);
	pthread_mutex_unlock(&control->lock);
	return NULL;
}

static bool start(const struct helper *wanted)
{
	struct control *control = wanted->control;
	struct helper *helper = control->helpers < CONTROL_MAX_HELPERS ? malloc(sizeof *helper) : NULL;
	pthread_attr_t attributes;
	sigset_t all, before;
	pthread_t thread;

	if (!helper || atomic_load_explicit(&control->closing, memory_order_relaxed)) {
		free(helper);
		return false;
	}
	*helper = *wanted;
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int error = pthread_create(&thread, &attributes, help, helper);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
	if (error)
		free(helper);
	else
		control->helpers++;
	return !error;
}

void control_inquire(struct control *control, uint32_t peer, enum control_question_kind kind, const char *seen)
{
	struct helper helper = {.control = control, .work = HELPER_FINDS_OUT, .kind = kind, .peer = peer};

	const bool judges = kind != CONTROL_QUESTION_REACH;
	if ((judges && control->inquired[peer]) || atomic_load_explicit(&control->closing, memory_order_relaxed) ||
	    atomic_load_explicit(&control->aborted, memory_order_relaxed))
		return;
	snprintf(helper.seen, sizeof helper.seen, "%s", seen);
	if (start(&helper)) {
		if (judges)
			control->inquired[peer] = true;
		else
			control->reaching++;
		return;
	}
	/* Without a thread there is what this rank saw. */
	if (kind == CONTROL_QUESTION_ENDED)
		control_abort_locked(control, peer, CONTROL_HOW_EXITED, NULL, seen);
	else if (kind == CONTROL_QUESTION_SILENT && control_silence_ns(control, peer) >= control_silence_judged_ns(control))
		control_abort_locked(control, peer, CONTROL_HOW_UNREACHABLE, NULL, seen);
}

void control_helpers_end(struct control *control)
{
	struct st_deadline never = st_deadline_in_ms(-1);

	while (control->helpers)
		control_wait(control, &never);
}

/* ---- frames -------------------------------------------------------------------------------------------------------- */

enum st_status control_ask_frame(struct control *control, struct control_link *link, const uint8_t *payload)
{
	struct wire_ask question;

	memcpy(&question, payload, sizeof question);
	if (question.about >= control->size || question.about == link->peer || question.zero)
		return st_fail(ST_ERR_PROTOCOL, "a question about rank %" PRIu32 " of %" PRIu32, question.about, control->size);
	/* Not answered when there are too many at once: the asker asks somebody else. */
	start(&(struct helper){.control = control, .work = HELPER_BEARS_WITNESS, .peer = question.about, .asker = link->peer});
	return ST_OK;
}

enum st_status control_answer_frame(struct control *control, struct control_link *link, const uint8_t *payload)
{
	struct wire_answer answer;

	memcpy(&answer, payload, sizeof answer);
	if (answer.about >= control->size || answer.sign > CONTROL_SIGN_ALIVE)
		return st_fail(ST_ERR_PROTOCOL, "an answer about rank %" PRIu32 " of %" PRIu32 ": %" PRIu32, answer.about, control->size, answer.sign);
	for (struct control_question *question = control->questions; question; question = question->next)
		if (question->about == answer.about && question->witness == link->peer) {
			question->answered = true;
			question->sign = (enum control_sign)answer.sign;
		}
	pthread_cond_broadcast(&control->changed);
	return ST_OK;
}
