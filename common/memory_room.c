#include "memory_room.h"

#include <ctype.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Version 1 writes "no limit" as the largest number of whole pages. */
#define NO_LIMIT ((uint64_t)1 << 60)

static uint64_t plus(uint64_t a, uint64_t b)
{
	return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static uint64_t minus(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}

/* A whole number at the start of TEXT, followed by white space or the end. */
static bool parse(const char *text, uint64_t *value)
{
	char *end;

	if (!isdigit((unsigned char)*text))
		return false;
	*value = strtoull(text, &end, 10); /* too large: the largest number, which is right here */
	return !*end || isspace((unsigned char)*end);
}

/* The number in DIRECTORY/NAME; "max" is the largest. False: absent, or something else. */
static bool number_in(const char *directory, const char *name, uint64_t *value)
{
	char path[PATH_MAX], text[64];

	if (snprintf(path, sizeof path, "%s/%s", directory, name) >= (int)sizeof path)
		return false;
	FILE *file = fopen(path, "re");
	if (!file)
		return false;
	bool read = fgets(text, sizeof text, file);
	fclose(file);
	if (read && !strcmp(text, "max\n")) {
		*value = UINT64_MAX;
		return true;
	}
	return read && parse(text, value);
}

/* The sum of those lines "NAME number" of a file that name one of NAMES. */
static uint64_t sum_in(const char *path, const char *const *names, uint64_t unit)
{
	char line[256];
	uint64_t sum = 0, value;
	FILE *file = fopen(path, "re");

	if (!file)
		return 0;
	while (fgets(line, sizeof line, file)) {
		size_t length = strcspn(line, " \n");
		const char *text = line + length + strspn(line + length, " ");
		for (const char *const *name = names; *name; name++)
			if (strlen(*name) == length && !strncmp(line, *name, length) && parse(text, &value) && value < UINT64_MAX / unit)
				sum = plus(sum, value * unit);
	}
	fclose(file);
	return sum;
}

static void least(struct st_memory_room *room, uint64_t available, uint64_t limit, const char *path, size_t root_bytes)
{
	struct stat status;

	if (available >= room->available)
		return;
	room->available = available;
	room->limit = limit;
	room->identity = stat(path, &status) ? 0 : (uint64_t)status.st_ino ^ (uint64_t)status.st_dev << 40;
	snprintf(room->path, sizeof room->path, "%s", path + root_bytes);
}

static uint64_t cache_of(const char *directory, const char *const *names)
{
	char path[PATH_MAX];

	return snprintf(path, sizeof path, "%s/memory.stat", directory) < (int)sizeof path ? sum_in(path, names, 1) : 0;
}

static void level_v2(struct st_memory_room *room, const char *directory, size_t root_bytes, uint64_t free_swap)
{
	static const char *const cache[] = {"inactive_file", "active_file", "slab_reclaimable", NULL};
	uint64_t limit, usage, swap_limit, swap_usage;

	if (!number_in(directory, "memory.max", &limit) || limit >= NO_LIMIT || !number_in(directory, "memory.current", &usage))
		return;
	uint64_t available = minus(plus(limit, cache_of(directory, cache)), usage);
	if (free_swap && number_in(directory, "memory.swap.max", &swap_limit) && number_in(directory, "memory.swap.current", &swap_usage)) {
		uint64_t swap = minus(swap_limit, swap_usage);
		available = plus(available, swap < free_swap ? swap : free_swap);
	}
	least(room, available, limit, directory, root_bytes);
}

static void level_v1(struct st_memory_room *room, const char *directory, size_t root_bytes, uint64_t free_swap)
{
	static const char *const cache[] = {"total_inactive_file", "total_active_file", NULL};
	uint64_t limit, usage, reclaimable = cache_of(directory, cache);

	if (number_in(directory, "memory.limit_in_bytes", &limit) && limit < NO_LIMIT && number_in(directory, "memory.usage_in_bytes", &usage))
		least(room, plus(minus(plus(limit, reclaimable), usage), free_swap), limit, directory, root_bytes);
	if (number_in(directory, "memory.memsw.limit_in_bytes", &limit) && limit < NO_LIMIT &&
	    number_in(directory, "memory.memsw.usage_in_bytes", &usage))
		least(room, minus(plus(limit, reclaimable), usage), limit, directory, root_bytes);
}

/* Undoes mountinfo's \040 and the like, in place. */
static void unescape(char *text)
{
	char *to = text;

	for (const char *from = text; *from;) {
		if (from[0] == '\\' && from[1] >= '0' && from[1] <= '3' && from[2] >= '0' && from[2] <= '7' && from[3] >= '0' && from[3] <= '7') {
			*to++ = (char)((from[1] - '0') * 64 + (from[2] - '0') * 8 + (from[3] - '0'));
			from += 4;
		} else {
			*to++ = *from++;
		}
	}
	*to = 0;
}

static bool has_word(const char *list, const char *word)
{
	size_t length = strlen(word);

	for (const char *at = list; *at; at += strspn(at, ",")) {
		size_t here = strcspn(at, ",\n");
		if (here == length && !strncmp(at, word, length))
			return true;
		at += here;
		if (*at == '\n')
			break;
	}
	return false;
}

/* The path of this process in the memory hierarchy of a version, as /proc/self/cgroup has it. */
static bool own_path(const char *root, bool v2, char path[PATH_MAX])
{
	char name[PATH_MAX], line[PATH_MAX + 256];
	bool found = false;

	snprintf(name, sizeof name, "%s/proc/self/cgroup", root);
	FILE *file = fopen(name, "re");
	if (!file)
		return false;
	while (!found && fgets(line, sizeof line, file)) {
		/* number:controllers:path */
		char *controllers = strchr(line, ':'), *at = controllers ? strchr(controllers + 1, ':') : NULL;
		if (!at)
			continue;
		*at++ = 0;
		at[strcspn(at, "\n")] = 0;
		found = v2 ? !controllers[1] : has_word(controllers + 1, "memory");
		found = found && *at == '/' && snprintf(path, PATH_MAX, "%s", at) < PATH_MAX;
	}
	fclose(file);
	return found;
}

/* From this process's group up to the one that is mounted. */
static void walk(struct st_memory_room *room, const char *root, const char *mount_root, const char *mount_point, bool v2, uint64_t free_swap)
{
	char own[PATH_MAX], directory[PATH_MAX];
	size_t root_bytes = strlen(root), mounted = strlen(mount_root);

	if (!own_path(root, v2, own))
		return;
	if (!strcmp(mount_root, "/"))
		mounted = 0;
	/* In a container the path may be the host's, of which nothing but the mounted group is to be seen. */
	const char *below = !strncmp(own, mount_root, mounted) && (own[mounted] == '/' || !own[mounted]) ? own + mounted : "";
	if (strstr(below, "/.."))
		below = "";
	int length = snprintf(directory, sizeof directory, "%s%s%s", root, mount_point, below);
	if (length >= (int)sizeof directory)
		return;
	size_t end = root_bytes + strlen(mount_point);
	for (size_t at = (size_t)length;;) {
		while (at > end && directory[at - 1] == '/')
			at--;
		directory[at] = 0;
		(v2 ? level_v2 : level_v1)(room, directory, root_bytes, free_swap);
		if (at <= end)
			return;
		while (at > end && directory[at - 1] != '/')
			at--;
	}
}

void st_memory_room_read(const char *root, struct st_memory_room *room)
{
	static const char *const machine[] = {"MemAvailable:", "SwapFree:", NULL}, *const swap[] = {"SwapFree:", NULL}, *const total[] = {"MemTotal:", NULL};
	char path[PATH_MAX], line[2 * PATH_MAX];

	*room = (struct st_memory_room){.available = UINT64_MAX};
	snprintf(path, sizeof path, "%s/proc/meminfo", root);
	uint64_t free_swap = sum_in(path, swap, 1024), available = sum_in(path, machine, 1024);
	if (available)
		least(room, available, sum_in(path, total, 1024), path, strlen(root));

	snprintf(path, sizeof path, "%s/proc/self/mountinfo", root);
	FILE *file = fopen(path, "re");
	if (!file)
		return;
	while (fgets(line, sizeof line, file)) {
		/* id parent device ROOT MOUNTPOINT options... - TYPE source OPTIONS */
		char *fields[5], *save = NULL, *rest = strstr(line, " - ");
		if (!rest)
			continue;
		*rest = 0;
		char *type = strtok_r(rest + 3, " \n", &save), *source = strtok_r(NULL, " \n", &save), *options = strtok_r(NULL, "\n", &save);
		if (!type || !source || (strcmp(type, "cgroup2") && (strcmp(type, "cgroup") || !options || !has_word(options, "memory"))))
			continue;
		size_t count = 0;
		for (char *field = strtok_r(line, " ", &save); field && count < 5; field = strtok_r(NULL, " ", &save))
			fields[count++] = field;
		if (count < 5 || fields[3][0] != '/' || fields[4][0] != '/')
			continue;
		unescape(fields[3]);
		unescape(fields[4]);
		walk(room, root, fields[3], fields[4], !strcmp(type, "cgroup2"), free_swap);
	}
	fclose(file);
}

uint64_t st_memory_cost(uint64_t bytes)
{
	return plus(bytes, bytes / 64); /* page tables and the tree of the file's pages */
}

enum st_status st_memory_room_check(uint64_t bytes, const char *what)
{
	struct st_memory_room room;

	st_memory_room_read("", &room);
	if (st_memory_cost(bytes) <= room.available)
		return ST_OK;
	return st_fail(ST_ERR_NOMEM, "%s: %" PRIu64 " bytes are needed, %" PRIu64 " are available in %s, whose limit is %" PRIu64, what, bytes, room.available,
		       room.path, room.limit);
}
