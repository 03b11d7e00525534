/* What transports share: signatures as text, and how a link dies. */
#include "transport.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "comm.h"
#include "plan.h"

void transport_signature_print(const struct transport_signature *signature, char text[TRANSPORT_SIGNATURE_TEXT])
{
	const char *name = plan_collective_name((enum plan_collective)signature->collective);
	const char *type = comm_type_name((enum comm_type)signature->type);
	const bool ordered = signature->collective == PLAN_ALLREDUCE_ORDERED;
	const bool reduces = signature->collective == PLAN_ALLREDUCE || signature->collective == PLAN_REDUCE_SCATTER || ordered;
	char shards[32] = "";
	if ((signature->collective == PLAN_REDUCE_SCATTER || signature->collective == PLAN_ALL_GATHER) && signature->root)
		snprintf(shards, sizeof shards, " in shards %08" PRIx32, signature->root);
	if (ordered)
		snprintf(shards, sizeof shards, " in %" PRIu32 " leaves", signature->root);
	if (signature->collective == PLAN_BARRIER)
		snprintf(text, TRANSPORT_SIGNATURE_TEXT, "%s %" PRIu64, name, signature->sequence);
	else if (signature->collective == PLAN_BROADCAST)
		snprintf(text, TRANSPORT_SIGNATURE_TEXT, "%s %" PRIu64 " of %" PRIu64 " %s from rank %" PRIu32, name, signature->sequence,
			 signature->count, type, signature->root);
	else if (signature->fused)
		snprintf(text, TRANSPORT_SIGNATURE_TEXT, "%s %" PRIu64 " of %" PRIu64 " %s, %s, fused from %u operations, lengths 0x%08" PRIx32, name,
			 signature->sequence, signature->count, type, comm_op_name((enum comm_op)signature->op), signature->fused, signature->root);
	else
		snprintf(text, TRANSPORT_SIGNATURE_TEXT, "%s %" PRIu64 " of %" PRIu64 " %s%s%s%s", name, signature->sequence, signature->count, type,
			 shards, reduces ? ", " : "", reduces ? comm_op_name((enum comm_op)signature->op) : "");
}

/* All is alike but the sizes of the shards, which the texts show as digests only. */
static bool only_shards_differ(const struct transport_signature *a, const struct transport_signature *b)
{
	return (a->collective == PLAN_REDUCE_SCATTER || a->collective == PLAN_ALL_GATHER) && a->root != b->root && a->sequence == b->sequence &&
	       a->count == b->count && a->collective == b->collective && a->type == b->type && a->op == b->op;
}

enum st_status transport_break(struct link *link, enum st_status status, const char *format, ...)
{
	if (link->broken == ST_OK) {
		va_list args;
		va_start(args, format);
		vsnprintf(link->why, sizeof link->why, format, args);
		va_end(args);
		link->broken = status;
	}
	return transport_status(link);
}

enum st_status transport_status(const struct link *link)
{
	return link->broken == ST_OK ? ST_OK : st_fail_copy(link->broken, link->why);
}

void transport_disagreement(const struct transport_ends *ends, const char *mine, const char *theirs, char text[TRANSPORT_DISAGREEMENT_TEXT])
{
	bool first = ends->rank < ends->peer;
	snprintf(text, TRANSPORT_DISAGREEMENT_TEXT, "rank %" PRIu32 " on %s calls %s, rank %" PRIu32 " on %s calls %s", first ? ends->rank : ends->peer,
		 first ? ends->host : ends->peer_host, first ? mine : theirs, first ? ends->peer : ends->rank, first ? ends->peer_host : ends->host,
		 first ? theirs : mine);
}

enum st_status transport_mismatch(struct link *link, const struct transport_signature *theirs, bool peer_sends, uint64_t sent, uint64_t granted)
{
	const struct transport_ends *ends = &link->ends;
	char mine_text[TRANSPORT_SIGNATURE_TEXT], their_text[TRANSPORT_SIGNATURE_TEXT] = "something else", both[TRANSPORT_DISAGREEMENT_TEXT], bytes[96] = "";
	transport_signature_print(&link->entered, mine_text);
	if (theirs)
		transport_signature_print(theirs, their_text);
	transport_disagreement(ends, mine_text, their_text, both);
	if (sent != granted && (!theirs || !memcmp(theirs, &link->entered, sizeof *theirs)))
		snprintf(bytes, sizeof bytes, " (rank %" PRIu32 " sends %" PRIu64 " bytes where %" PRIu64 " are expected)", peer_sends ? ends->peer : ends->rank, sent,
			 granted);
	return transport_break(link, ST_ERR_MISMATCH, "ranks disagree%s: %s%s",
			       theirs && only_shards_differ(&link->entered, theirs) ? " about the sizes of the shards" : "", both, bytes);
}
