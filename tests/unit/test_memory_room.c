/* How much memory may still be taken: recorded trees of /proc and /sys/fs/cgroup, and files that make no sense. */
#include <inttypes.h>
#include <stdarg.h>
#include <sys/stat.h>

#include "common/io.h"
#include "common/memory_room.h"
#include "temporary.h"

static char root[128];

static void put(const char *name, const char *text)
{
	char path[512], directory[512];
	snprintf(path, sizeof path, "%s%s", root, name);
	snprintf(directory, sizeof directory, "%s", path);
	*strrchr(directory, '/') = 0;
	REQUIRE(st_make_directories(directory, 0755) == ST_OK);
	FILE *file = fopen(path, "w");
	REQUIRE(file && fputs(text, file) >= 0 && !fclose(file));
}

static void fresh(const char *name)
{
	snprintf(root, sizeof root, "%s", temporary_path(name));
	REQUIRE(!mkdir(root, 0755));
}

static void expect(const char *what, uint64_t available, const char *path)
{
	struct st_memory_room room;
	st_memory_room_read(root, &room);
	CHECK(room.available == available && !strcmp(room.path, path), "%s: seen %" PRIu64 " in '%s', expected %" PRIu64 " in '%s'", what, room.available,
	      room.path, available, path);
}

#define V2_MOUNT "25 1 0:22 / /proc rw - proc proc rw\n31 23 0:27 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
#define V1_MOUNTS                                                                                          \
	"32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"                                       \
	"35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:3 master:1 - cgroup cgroup rw,memory\n"      \
	"41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
#define V1_CGROUP "9:name=systemd:/memory\n4:memory:/slurm/uid_7/job_3/step_0\n3:cpu,memory_bandwidth:/wrong\n0::/\n"

/* A Slurm step under cgroup version 2: the step's limit, and above it a job that has used more. */
static void version_2(void)
{
	fresh("v2");
	put("/proc/self/mountinfo", V2_MOUNT);
	put("/proc/self/cgroup", "0::/system.slice/slurmstepd.scope/job_3/step_0/user\n");
	expect("no limits at all", UINT64_MAX, "");
	put("/proc/meminfo", "MemTotal:       16384 kB\nMemFree: 1 kB\nMemAvailable:    9000 kB\nSwapTotal: 0 kB\nSwapFree:           0 kB\n");
	expect("the machine", 9000 * 1024, "/proc/meminfo");
	put("/sys/fs/cgroup/system.slice/slurmstepd.scope/job_3/step_0/memory.max", "8000000\n");
	put("/sys/fs/cgroup/system.slice/slurmstepd.scope/job_3/step_0/memory.current", "3000000\n");
	put("/sys/fs/cgroup/system.slice/slurmstepd.scope/job_3/step_0/user/memory.max", "max\n");
	put("/sys/fs/cgroup/system.slice/slurmstepd.scope/job_3/step_0/user/memory.current", "2000000\n");
	expect("an ancestor's limit", 5000000, "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_3/step_0");
	put("/sys/fs/cgroup/system.slice/slurmstepd.scope/job_3/step_0/memory.stat",
	    "anon 5\nfile 99999999\nshmem 7\ninactive_anon 4\ninactive_file 400000\nactive_file 30000\nslab_reclaimable 2000\nslab 77777\ninactive_file_x 9\n");
	expect("page cache can be given back", 5432000, "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_3/step_0");
	put("/sys/fs/cgroup/system.slice/slurmstepd.scope/job_3/memory.max", "9000000\n");
	put("/sys/fs/cgroup/system.slice/slurmstepd.scope/job_3/memory.current", "8500000\n");
	expect("the one above has less left", 500000, "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_3");
	put("/sys/fs/cgroup/system.slice/slurmstepd.scope/job_3/memory.current", "9500000\n");
	expect("over its limit", 0, "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_3");
	put("/sys/fs/cgroup/system.slice/slurmstepd.scope/job_3/memory.high", "1\n");
	put("/sys/fs/cgroup/system.slice/slurmstepd.scope/job_3/memory.max", "max\n");
	expect("memory.high kills nobody", 5432000, "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_3/step_0");
	/* Swap, as far as the group may use it and there is any. */
	put("/sys/fs/cgroup/system.slice/slurmstepd.scope/job_3/step_0/memory.swap.max", "1000000\n");
	put("/sys/fs/cgroup/system.slice/slurmstepd.scope/job_3/step_0/memory.swap.current", "400000\n");
	expect("no swap on the machine", 5432000, "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_3/step_0");
	put("/proc/meminfo", "MemTotal: 16384 kB\nMemAvailable:    9000 kB\nSwapFree:    1024 kB\n");
	expect("swap", 6032000, "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_3/step_0");
	put("/sys/fs/cgroup/system.slice/slurmstepd.scope/job_3/step_0/memory.swap.max", "max\n");
	expect("as much swap as there is", 5432000 + 1024 * 1024, "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_3/step_0");
	put("/sys/fs/cgroup/memory.max", "100\n"); /* the root of a container's own namespace */
	put("/sys/fs/cgroup/memory.current", "60\n");
	expect("up to where it is mounted", 40, "/sys/fs/cgroup");
}

static void version_1(void)
{
	fresh("v1");
	put("/proc/self/mountinfo", V1_MOUNTS);
	put("/proc/self/cgroup", V1_CGROUP);
	put("/sys/fs/cgroup/memory/slurm/uid_7/job_3/step_0/memory.limit_in_bytes", "9223372036854771712\n");
	put("/sys/fs/cgroup/memory/slurm/uid_7/job_3/step_0/memory.usage_in_bytes", "50\n");
	expect("no limit", UINT64_MAX, "");
	put("/sys/fs/cgroup/memory/slurm/uid_7/job_3/memory.limit_in_bytes", "1000\n");
	put("/sys/fs/cgroup/memory/slurm/uid_7/job_3/memory.usage_in_bytes", "300\n");
	put("/sys/fs/cgroup/memory/slurm/uid_7/job_3/memory.stat", "cache 9\ninactive_file 1\nactive_file 1\ntotal_inactive_file 80\ntotal_active_file 20\n");
	expect("the job's", 800, "/sys/fs/cgroup/memory/slurm/uid_7/job_3");
	put("/sys/fs/cgroup/memory/slurm/uid_7/job_3/memory.memsw.limit_in_bytes", "1100\n");
	put("/sys/fs/cgroup/memory/slurm/uid_7/job_3/memory.memsw.usage_in_bytes", "700\n");
	expect("memory and swap together", 500, "/sys/fs/cgroup/memory/slurm/uid_7/job_3");
	put("/sys/fs/cgroup/memory/wrong/memory.limit_in_bytes", "1\n");
	put("/sys/fs/cgroup/memory/wrong/memory.usage_in_bytes", "1\n");
	expect("the path of memory, not of what is called so", 500, "/sys/fs/cgroup/memory/slurm/uid_7/job_3");
	put("/proc/meminfo", "SwapFree: 1 kB\n");
	put("/sys/fs/cgroup/memory/slurm/uid_7/memory.limit_in_bytes", "2000\n");
	put("/sys/fs/cgroup/memory/slurm/uid_7/memory.usage_in_bytes", "1900\n");
	expect("swap counts where nothing limits it", 500, "/sys/fs/cgroup/memory/slurm/uid_7/job_3");
}

/* Containers: a path that only the host has, a path above the namespace, a mount of the group itself, escaped names. */
static void containers(void)
{
	fresh("c1");
	put("/proc/self/mountinfo", "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
	put("/proc/self/cgroup", "4:memory:/docker/abc\n");
	put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "500\n");
	put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "100\n");
	expect("the mounted group", 400, "/sys/fs/cgroup/memory");
	put("/proc/self/cgroup", "4:memory:/docker/abc/inner\n");
	put("/sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "90\n");
	put("/sys/fs/cgroup/memory/inner/memory.usage_in_bytes", "10\n");
	expect("a group below", 80, "/sys/fs/cgroup/memory/inner");
	put("/proc/self/cgroup", "4:memory:/docker/abcdef\n");
	put("/sys/fs/cgroup/memory/def/memory.limit_in_bytes", "1\n");
	put("/sys/fs/cgroup/memory/def/memory.usage_in_bytes", "1\n");
	expect("another group whose name begins alike", 400, "/sys/fs/cgroup/memory");
	fresh("c2");
	put("/proc/self/mountinfo", "31 23 0:27 / /odd\\040place/cg rw - cgroup2 none rw\n");
	put("/proc/self/cgroup", "0::/../../outside\n");
	put("/odd place/cg/memory.max", "70\n");
	put("/odd place/cg/memory.current", "60\n");
	expect("above the namespace", 10, "/odd place/cg");
}

static void nonsense_limits_nothing(void)
{
	fresh("n");
	expect("no files", UINT64_MAX, "");
	put("/proc/self/mountinfo", "garbage\n - cgroup2\n31 23 0:27 / /sys/fs/cgroup rw - cgroup2\n - - - cgroup2 x y\n1 2 3 relative also - cgroup2 x rw\n");
	put("/proc/self/cgroup", "0::/a\n");
	expect("no mount", UINT64_MAX, "");
	put("/proc/self/mountinfo", V2_MOUNT);
	static const char *const paths[] = {"", ":::\n", "0::relative\n", "0:\n", "x\n", "0::/nowhere\n"};
	for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
		put("/proc/self/cgroup", paths[i]);
		expect(paths[i], UINT64_MAX, "");
	}
	char longest[9000];
	memset(longest, 'x', sizeof longest);
	memcpy(longest, "0::/", 4);
	longest[sizeof longest - 2] = '\n';
	longest[sizeof longest - 1] = 0;
	put("/proc/self/cgroup", longest);
	expect("a path of 9,000 bytes", UINT64_MAX, "");
	put("/proc/self/cgroup", "0::/a\n");
	static const char *const numbers[] = {"", "\n", "-1\n", "1.5\n", "0x10\n", "lots\n", "99999999999999999999999999\n", "12monkeys\n", "max"};
	for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
		put("/sys/fs/cgroup/a/memory.max", numbers[i]);
		put("/sys/fs/cgroup/a/memory.current", "5\n");
		expect(numbers[i], UINT64_MAX, "");
		put("/sys/fs/cgroup/a/memory.max", "100\n");
		put("/sys/fs/cgroup/a/memory.current", numbers[i]);
		if (i != 6) /* more than any number is a usage, of everything */
			expect(numbers[i], UINT64_MAX, "");
	}
	put("/sys/fs/cgroup/a/memory.current", "100\n");
	put("/sys/fs/cgroup/a/memory.stat", "inactive_file\ninactive_file -3\nactive_file 99999999999999999999999\n\n   \ninactive_file 7 8\n");
	expect("of a strange memory.stat the one line that makes sense", 7, "/sys/fs/cgroup/a");
}

static void this_machine(void)
{
	struct st_memory_room room;
	st_memory_room_read("", &room);
	CHECK(room.available > 0 && room.available < UINT64_MAX && room.path[0] == '/', "seen %" PRIu64 " in '%s'", room.available, room.path);
	CHECK_OK(st_memory_room_check(4096, "a page"));
	CHECK_FAILS(st_memory_room_check(room.available * 2, "twice all"), ST_ERR_NOMEM, "twice all: ");
	CHECK(strstr(st_message(), "are available in /") && strstr(st_message(), "whose limit is"), "%s", st_message());
	CHECK_FAILS(st_memory_room_check(UINT64_MAX, "everything"), ST_ERR_NOMEM, "everything");
}

int main(void)
{
	temporary_make();
	version_2();
	version_1();
	containers();
	nonsense_limits_nothing();
	this_machine();
	return check_result();
}
