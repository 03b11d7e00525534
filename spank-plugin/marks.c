#include "marks.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const marks_names[] = {"SYNCTRAIN", "SYNCTRAIN_ALGORITHM", "SYNCTRAIN_TRANSPORT", "SYNCTRAIN_REPORT", "SYNCTRAIN_JOB",
				   "SYNCTRAIN_STEP", "SYNCTRAIN_RESTART", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
				   "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", NULL};

/* FNV-1a: only has to tell a value from a changed one, nobody gains by a collision. */
static uint32_t hash(const char *text)
{
	uint32_t h = 0x811c9dc5u;

	for (; *text; text++)
		h = (h ^ (unsigned char)*text) * 0x01000193u;
	return h;
}

static void mark(char *entry, size_t bytes, const char *name, const char *value)
{
	snprintf(entry, bytes, "%s:%08x,", name, (unsigned)hash(value));
}

void marks_add(char text[MARKS_BYTES], const char *name, const char *value)
{
	char entry[64];

	mark(entry, sizeof entry, name, value);
	if (strlen(text) + strlen(entry) < MARKS_BYTES)
		strcat(text, entry);
}

void marks_forget(void)
{
	const char *set = getenv(MARKS_VARIABLE);
	char text[MARKS_BYTES + 1];

	if (!set)
		return;
	/* A comma in front, so that LOCAL_RANK's entry is not found as RANK's. */
	snprintf(text, sizeof text, ",%s", set);
	for (const char *const *name = marks_names; *name; name++) {
		const char *value = getenv(*name);
		char entry[65] = ",";
		if (!value)
			continue;
		mark(entry + 1, sizeof entry - 1, *name, value);
		if (strstr(text, entry))
			unsetenv(*name);
	}
	unsetenv(MARKS_VARIABLE);
}
