/* The plugin's pure parts: values, the site's arguments, precedence, the carrier as hostile text, srun's command line. */
#include "spank-plugin/options.c"

#include "spank-plugin/marks.c"
#include "spank-plugin/srun_args.c"
#include "tests/unit/check.h"

static char value[OPT_VALUE_BYTES], error[OPT_ERROR_BYTES];

static void accepts(enum opt_key key, const char *text, const char *canonical)
{
	CHECK(opt_parse(key, text, value, error), "'%s': %s", text, error);
	CHECK(!strcmp(value, canonical), "'%s' became '%s', expected '%s'", text, value, canonical);
}

static void refuses(enum opt_key key, const char *text, const char *reason)
{
	CHECK(!opt_parse(key, text, value, error), "'%s' became '%s'", text, value);
	CHECK(strstr(error, reason), "'%s': '%s' lacks '%s'", text, error, reason);
}

static void test_values(void)
{
	static char longest[2000];

	accepts(OPT_ALGORITHM, "auto", "auto");
	accepts(OPT_ALGORITHM, "ring", "ring");
	refuses(OPT_ALGORITHM, "nccl", "seen 'nccl', not in this version (have auto, ring, tree, halving, hierarchical, torus, direct)");
	refuses(OPT_ALGORITHM, "nccl", "not in this version");
	refuses(OPT_ALGORITHM, "rin", "seen 'rin', expected auto, ring, tree, halving, hierarchical, torus, direct");
	refuses(OPT_ALGORITHM, "", "seen '', expected");
	refuses(OPT_ALGORITHM, "ring\nx", "seen 'ring?x'");
	accepts(OPT_TRANSPORT, "auto", "auto");
	accepts(OPT_TRANSPORT, "tcp", "tcp");
	accepts(OPT_TRANSPORT, "tcp+shm", "shm+tcp");
	refuses(OPT_TRANSPORT, "carrier-pigeon", "seen 'carrier-pigeon', expected auto, or shm, tcp joined by +");
	refuses(OPT_TRANSPORT, "verbs", "not in this version (have auto, or shm, tcp joined by +)");
	refuses(OPT_TRANSPORT, "tcp+verbs", "not in this version");
	refuses(OPT_TRANSPORT, "verbs+pigeon", "expected");
	refuses(OPT_TRANSPORT, "tcp+tcp", "expected");
	refuses(OPT_TRANSPORT, "tcp+", "expected");
	refuses(OPT_TRANSPORT, "+", "expected");
	refuses(OPT_TRANSPORT, "auto+tcp", "expected");
	accepts(OPT_REPORT, "r/%j-%A_%a-%x-%u-100%%", "r/%j-%A_%a-%x-%u-100%%");
	refuses(OPT_REPORT, "r/%n", "expected a directory");
	refuses(OPT_REPORT, "r/%", "expected a directory");
	refuses(OPT_REPORT, "r/%%%", "expected a directory");
	refuses(OPT_REPORT, "a\tb", "expected a directory");
	memset(longest, 'x', 1001);
	refuses(OPT_REPORT, longest, "...'");
	longest[1000] = 0;
	accepts(OPT_REPORT, longest, longest);
}

static bool site_of(struct opt_site *site, const char *a, const char *b)
{
	char *argv[] = {(char *)a, (char *)b};

	return opt_site_parse(!!a + (b != NULL), argv, site, error);
}

static void test_site(void)
{
	static struct opt_site site;
	static const char *const bad[] = {"transport=pigeon", "transport", "lock=", "lock=transport,", "lock=colour", "mpi=", "mpi=../x",
					  "port-range=2-1", "port-range=0-5", "port-range=1-65536", "port-range=5", "helpers=lib", "x=y", ""};

	CHECK(site_of(&site, NULL, NULL), "%s", error);
	CHECK(!strcmp(site.mpi, "pmix") && site.port_low == 20000 && site.port_high == 29999, "defaults");
	CHECK(site_of(&site, "lock=transport,report", "port-range=1024-65535"), "%s", error);
	CHECK(site.locked[OPT_TRANSPORT] && site.locked[OPT_REPORT] && !site.locked[OPT_ALGORITHM], "locks");
	CHECK(site.port_low == 1024 && site.port_high == 65535, "seen %u-%u", site.port_low, site.port_high);
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		CHECK(!site_of(&site, bad[i], NULL), "'%s' is taken", bad[i]);
		CHECK(!strncmp(error, "plugstack.conf: ", 16), "'%s': %s", bad[i], error);
	}
}

static void test_precedence(void)
{
	static struct opt_site site;
	static struct opt_layer profile, line;
	static struct opt_job job;
	const struct opt_layer *layers[] = {&profile, &line};
	const char *overridden[OPT_COUNT];

	site_of(&site, "transport=tcp", "algorithm=ring");
	opt_resolve(&site, layers, 2, &job, overridden);
	CHECK(!strcmp(job.value[OPT_TRANSPORT], "tcp") && !strcmp(job.value[OPT_ALGORITHM], "ring"), "the site's defaults");
	profile.given[OPT_TRANSPORT] = true;
	strcpy(profile.value[OPT_TRANSPORT], "shm");
	opt_resolve(&site, layers, 2, &job, overridden);
	CHECK(!strcmp(job.value[OPT_TRANSPORT], "shm"), "the profile over the site, seen %s", job.value[OPT_TRANSPORT]);
	line.given[OPT_TRANSPORT] = true;
	strcpy(line.value[OPT_TRANSPORT], "auto");
	opt_resolve(&site, layers, 2, &job, overridden);
	CHECK(!strcmp(job.value[OPT_TRANSPORT], "auto") && !overridden[OPT_TRANSPORT], "the command line over the profile");
	site_of(&site, "transport=tcp", "lock=transport");
	opt_resolve(&site, layers, 2, &job, overridden);
	CHECK(!strcmp(job.value[OPT_TRANSPORT], "tcp"), "the lock over all, seen %s", job.value[OPT_TRANSPORT]);
	CHECK(overridden[OPT_TRANSPORT] && !strcmp(overridden[OPT_TRANSPORT], "auto"), "and it is told");
	strcpy(line.value[OPT_TRANSPORT], "tcp");
	opt_resolve(&site, layers, 2, &job, overridden);
	CHECK(!overridden[OPT_TRANSPORT], "a lock that changes nothing is not told");
	strcpy(job.value[OPT_TRANSPORT], "shm");
	opt_apply_locks(&site, &job);
	CHECK(!strcmp(job.value[OPT_TRANSPORT], "tcp"), "the lock over what a node is sent");
}

static void test_carrier(void)
{
	static struct opt_job job, seen;
	static char text[OPT_CARRIER_BYTES + 2], broken[OPT_CARRIER_BYTES + 2];
	static const char *const bad[] = {
		"", "v", "v1", "v2:algorithm=ring:transport=tcp:report=:directory=/", "v1:algorithm=ring", "v1:algorithm=nccl:transport=tcp:report=:directory=/",
		"v1:transport=tcp:algorithm=ring:report=:directory=/", "v1:algorithm=ring:transport=tcp:report=:directory=x",
		"v1:algorithm=ring:transport=tcp:report=:directory=", "v1:algorithm=ring:transport=tcp:report=:directory=/:x=y",
		"v1:algorithm=:transport=tcp:report=:directory=/", "v1:algorithm=ring:transport=tcp:report=%00:directory=/",
		"v1:algorithm=ring:transport=tcp:report=%0A:directory=/", "v1:algorithm=ring:transport=tcp:report=%2:directory=/",
		"v1:algorithm=ring:transport=tcp:report=%41:directory=/", "v1:algorithm=ring:transport=tcp:report=a b:directory=/",
		"v1:algorithm=ring:transport=tcp:report=%25n:directory=/", "v1:algorithm=ring:transport=tcp:report=:directory=/a%1Bb", "garbage"};

	strcpy(job.value[OPT_ALGORITHM], "ring");
	strcpy(job.value[OPT_TRANSPORT], "shm+tcp");
	strcpy(job.value[OPT_REPORT], "a:b=c d/%j\xc3\xa9");
	strcpy(job.directory, "/home/some body/x%j");
	CHECK(opt_carrier_print(&job, text), "does not fit");
	CHECK(!strpbrk(text, " \n'\"\\$"), "not plain: %s", text);
	CHECK(opt_carrier_parse(text, &seen, error), "%s", error);
	CHECK(!memcmp(&job, &seen, sizeof job), "comes back changed: %s", text);
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		CHECK(!opt_carrier_parse(bad[i], &seen, error), "'%s' is taken", bad[i]);

	/* Cut off anywhere, or with any byte changed: refused, or another text that is its own canonical form. */
	size_t length = strlen(text);
	uint32_t random = 1;
	for (size_t i = 0; i < 200000; i++) {
		strcpy(broken, text);
		random = random * 1664525u + 1013904223u;
		size_t at = (random >> 8) % length;
		if (i < length)
			broken[i] = 0;
		else
			broken[at] = (char)(random >> 24);
		if (opt_carrier_parse(broken, &seen, error)) {
			char again[OPT_CARRIER_BYTES];
			CHECK(opt_carrier_print(&seen, again) && !strcmp(again, broken), "'%s' is read as '%s'", broken, again);
		}
	}
	memset(job.directory, ' ', sizeof job.directory - 1);
	job.directory[0] = '/';
	CHECK(opt_carrier_print(&job, text) && opt_carrier_parse(text, &seen, error), "the longest directory");
	memset(text, 'a', sizeof text - 1);
	memcpy(text, "v1:algorithm=", 13);
	CHECK(!opt_carrier_parse(text, &seen, error), "too long is taken");
}

static void report_is(struct opt_job *job, const char *pattern, const struct opt_ids *ids, const char *expected)
{
	char path[OPT_PATH_BYTES];

	strcpy(job->value[OPT_REPORT], pattern);
	CHECK(opt_report_path(job, ids, path) && !strcmp(path, expected), "'%s' became '%s', expected '%s'", pattern, path, expected);
}

static void test_report(void)
{
	static struct opt_job job = {.directory = "/home/x%j"};
	struct opt_ids plain_job = {7, 7, OPT_NO_TASK, "../my job", "ann"}, array = {9, 7, 3, "n", "ann"};
	char path[OPT_PATH_BYTES];

	report_is(&job, "", &plain_job, "/home/x%j/synctrain-7");
	report_is(&job, "", &array, "/home/x%j/synctrain-7_3");
	report_is(&job, "/r/%u/%j%%%A_%a", &array, "/r/ann/9%7_3");
	report_is(&job, "%A_%a", &plain_job, "/home/x%j/7_0");
	report_is(&job, "%x", &plain_job, "/home/x%j/_._my job");
	strcpy(job.directory, "/");
	report_is(&job, "r", &plain_job, "/r");
	memset(job.directory, 'd', sizeof job.directory - 1);
	CHECK(!opt_report_path(&job, &plain_job, path), "a path of 4096 bytes and more is cut off");
}

static void srun_is(const char *words, bool synctrain, bool mpi)
{
	char block[512];
	struct srun_args args;
	size_t length = strlen(words) + 1;

	strcpy(block, words);
	for (char *p = block; *p; p++)
		if (*p == ' ')
			*p = 0;
	srun_args_scan(block, length, &args);
	CHECK(args.synctrain == synctrain && args.mpi == mpi, "'%s': seen synctrain %d mpi %d", words, args.synctrain, args.mpi);
}

static void test_srun_args(void)
{
	struct srun_args args;

	srun_is("srun --synctrain prog", true, false);
	srun_is("srun -N4 --synctrain-transport=tcp prog", true, false);
	srun_is("srun prog --synctrain-transport=x", false, false);
	srun_is("srun -- --synctrain", false, false);
	srun_is("srun -n 4 -l --nodes 2 --synctrain --mpi=pmix prog --mpi=x", true, true);
	srun_is("srun -n 4 --mpi none prog --synctrain", false, true);
	srun_is("srun -lN 2 prog --synctrain", false, false);
	srun_is("srun -lN2 --synctrain-report r --mpi none prog", true, true);
	srun_is("srun -I --synctrain prog", true, false);
	srun_is("srun -K1 --immediate --synctrain prog", true, false);
	srun_is("srun --job-name --synctrain prog", false, false);
	srun_is("srun --job-nam --synctrain prog", false, false);
	srun_is("srun -J --synctrain prog", false, false);
	srun_is("srun --container-thing x --synctrain prog", false, false);
	srun_is("srun --container-thing=x --synctrain prog", true, false);
	srun_is("srun --nice --synctrain prog", true, false);
	srun_is("srun --exclusive --synctrain=file --mp none prog", true, true);
	srun_is("srun --synctrain-t tcp --synctrain-a=ring prog", true, false);
	srun_is("srun - --synctrain", false, false);
	srun_is("srun", false, false);
	srun_args_scan("srun\0--synctrain", 16, &args);
	CHECK(!args.synctrain, "a word that is cut off counts");
	srun_args_scan("", 0, &args);
	CHECK(!args.synctrain, "nothing counts");
}

static void test_marks(void)
{
	static char text[MARKS_BYTES];

	marks_add(text, "LOCAL_RANK", "1");
	marks_add(text, "WORLD_SIZE", "8");
	marks_add(text, "RANK", "3");
	setenv(MARKS_VARIABLE, text, 1);
	setenv("LOCAL_RANK", "1", 1);
	setenv("WORLD_SIZE", "16", 1);
	setenv("RANK", "3", 1);
	setenv("MASTER_PORT", "1", 1);
	marks_forget();
	CHECK(!getenv("RANK") && !getenv("LOCAL_RANK") && !getenv(MARKS_VARIABLE), "what an outer task was given stays");
	CHECK(getenv("WORLD_SIZE") && getenv("MASTER_PORT"), "what the user set or changed goes");
	setenv("RANK", "1", 1);
	strcpy(text, "");
	marks_add(text, "LOCAL_RANK", "1");
	setenv(MARKS_VARIABLE, text, 1);
	marks_forget();
	CHECK(getenv("RANK"), "RANK goes for LOCAL_RANK's mark");
	for (int i = 0; i < 200; i++)
		marks_add(text, "LOCAL_WORLD_SIZE", "1");
	CHECK(strlen(text) < MARKS_BYTES, "%zu bytes", strlen(text));
}

int main(void)
{
	test_values();
	test_site();
	test_precedence();
	test_carrier();
	test_report();
	test_srun_args();
	test_marks();
	return check_result();
}
