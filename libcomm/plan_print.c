/* Plans as text. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "plan.h"

struct text {
	char *to;
	size_t room, length;
};

static void __attribute__((format(printf, 2, 3))) say(struct text *text, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	size_t left = text->length < text->room ? text->room - text->length : 0;
	int n = vsnprintf(left ? text->to + text->length : NULL, left, format, args);
	va_end(args);
	if (n > 0)
		text->length += (size_t)n;
}

static void say_affine(struct text *text, const struct plan_affine *affine)
{
	bool any = false;
	for (int i = 0; i < PLAN_MAX_DEPTH; i++) {
		if (!affine->v[i])
			continue;
		if (affine->v[i] == 1 || affine->v[i] == -1)
			say(text, "%s%c", affine->v[i] < 0 ? "-" : any ? "+" : "", 'i' + i);
		else
			say(text, "%s%" PRId32 "%c", affine->v[i] > 0 && any ? "+" : "", affine->v[i], 'i' + i);
		any = true;
	}
	if (affine->base || !any)
		say(text, any ? "%+" PRId32 : "%" PRId32, affine->base);
}

static void say_operand(struct text *text, const struct plan_operand *operand)
{
	if (operand->space == PLAN_SCRATCH || operand->space == PLAN_BORROWED) {
		say(text, "%s%u[", operand->space == PLAN_SCRATCH ? "slot" : "borrowed", operand->channel);
		say_affine(text, &operand->slot);
		if (operand->skip)
			say(text, "] after %" PRIu32 " blocks for ", operand->skip);
		else
			say(text, "] for ");
	} else if (operand->space == PLAN_WORK) {
		say(text, "work[");
		say_affine(text, &operand->slot);
		say(text, "] for ");
	} else {
		say(text, operand->space == PLAN_INPUT ? "input " : "output ");
		if (operand->layer)
			say(text, "layer %u, ", operand->layer);
	}
	say_affine(text, &operand->block.first);
	if (operand->span > 1)
		say(text, "(%" PRIu32 " blocks)", operand->span);
	if (operand->block.modulus) {
		say(text, "%+" PRId32 "*((", operand->block.stride);
		say_affine(text, &operand->block.cycle);
		say(text, ") mod %" PRIu32 ")", operand->block.modulus);
	}
	say(text, ".");
	say_affine(text, &operand->chunk);
	static const struct plan_affine never;
	if (memcmp(&operand->partial, &never, sizeof never)) {
		say(text, " (partial if ");
		say_affine(text, &operand->partial);
		say(text, " > 0)");
	}
}

size_t plan_print(const struct plan *plan, char *out, size_t bytes)
{
	static const char *const names[] = {"ready", "put", "flush", "lend", "return", "wait", "reduce", "copy", "loop", "end"};
	struct text text = {out, bytes, 0};
	if (bytes)
		out[0] = 0;
	say(&text, "%s of %" PRIu64 " elements, rank %" PRIu32 " of %" PRIu32 "%s%s: %" PRIu32 " blocks x %" PRIu64 " chunks of %" PRIu64 ", %" PRIu32 " slots\n",
	    plan_collective_name(plan->collective), plan->elements, plan->rank, plan->size, plan->in_place ? ", in place" : "",
	    plan->wide ? ", wide" : "", plan->blocks,
	    plan->chunks, plan->chunk_elements, plan->slots);
	for (uint32_t i = 0; i < plan->channel_count; i++)
		say(&text, "channel %" PRIu32 ": %s rank %" PRIu32 " #%u%s\n", i, plan->channels[i].outgoing ? "to" : "from", plan->channels[i].peer,
		    plan->channels[i].index, plan->channels[i].mapped ? ", mapped" : "");
	int depth = 1;
	for (uint32_t i = 0; i < plan->step_count; i++) {
		const struct plan_step *step = &plan->steps[i];
		if (step->kind == PLAN_END && depth > 1)
			depth--;
		say(&text, "%3" PRIu32 ":%*s%s", i, depth * 2, "", step->kind <= PLAN_END ? names[step->kind] : "?");
		switch (step->kind) {
		case PLAN_LOOP:
			say(&text, " %c < %" PRIu64, 'i' + depth - 1, step->count);
			depth++;
			break;
		case PLAN_READY: say(&text, " %u, ", step->channel); break;
		case PLAN_WAIT:
		case PLAN_RETURN: say(&text, " %u", step->channel); break;
		case PLAN_FLUSH: say(&text, " %u, %" PRIu64 " pending", step->channel, step->count); break;
		case PLAN_PUT: say(&text, " %u, ", step->channel); break;
		case PLAN_LEND: say(&text, step->copied ? " %u, copy of " : " %u, ", step->channel); break;
		default: say(&text, " "); break;
		}
		bool to = step->kind == PLAN_READY || step->kind == PLAN_REDUCE || step->kind == PLAN_COPY;
		if (to)
			say_operand(&text, &plan->operands[step->destination]);
		if (to ? step->kind != PLAN_READY : step->kind == PLAN_PUT || step->kind == PLAN_LEND) {
			if (to)
				say(&text, " = ");
			for (unsigned s = 0; s < step->source_count && s < PLAN_MAX_SOURCES; s++) {
				say(&text, s ? " + " : "");
				say_operand(&text, &plan->operands[step->sources + s]);
			}
		}
		if (step->kind == PLAN_PUT && step->keep) {
			say(&text, ", keep in ");
			say_operand(&text, &plan->operands[step->destination]);
		}
		static const struct plan_affine always;
		bool guarded = step->guard.base != always.base || step->every > 1;
		for (int v = 0; v < PLAN_MAX_DEPTH; v++)
			guarded |= step->guard.v[v] != 0;
		if (guarded) {
			say(&text, " if ");
			say_affine(&text, &step->guard);
			say(&text, " >= 0");
			if (step->every > 1)
				say(&text, ", every %" PRIu32, step->every);
		}
		say(&text, "\n");
	}
	return text.length;
}
