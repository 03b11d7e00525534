/* `synctrain report DIR`: reads the step records of a run and says who was slow; with --hang the flight recorders, and who held the others up. */
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

#include "common/command.h"
#include "trainer/hang.h"
#include "trainer/report.h"

st_command_main cmd_report;

static void usage(FILE *out)
{
	fputs("usage: synctrain report DIR [--all] [--json] [--steps A-B] [--warmup N] [--launch N]\n"
	      "       synctrain report --hang DIR|FILE... [--all] [--json] [--job NAME]\n"
	      "\n"
	      "Reads the step records (steps-*.rec) that a run left in DIR and says who was slow.\n"
	      "\n"
	      "  --all        every rank and every statistic, also of a large job\n"
	      "  --json       for programs: stable keys, times in nanoseconds\n"
	      "  --steps A-B  only steps A to B; A- and -B are open ends\n"
	      "  --warmup N   leave out the first N steps of each launch (default 1)\n"
	      "  --launch N   only the Nth start of the job (default: the last, and those\n"
	      "               before it that had the same ranks on the same hosts)\n"
	      "  --help       this text\n"
	      "\n"
	      "A rank's busy time is data + forward + backward: what it needed before it met\n"
	      "the others. A straggler's median busy time is more than 1.10 times the median\n"
	      "of all ranks, with a robust z-score (0.6745 (x - median) / MAD) above 3.5, both\n"
	      "also in at least half of the stretches of the run. 'saving' is the part of step\n"
	      "time that the job would not have needed without that host.\n"
	      "\n"
	      "Exit: 0, 64 usage, 65 no usable records, 66 no such directory, 77 not permitted.\n"
	      "\n"
	      "With --hang it reads flight recorders (*.flight), in which each rank keeps its\n"
	      "last 256 operations and what it waits for, and names the rank that held the\n"
	      "others up and the operation: while the job hangs, or after it was killed or\n"
	      "failed. They lie in SYNCTRAIN_RECORDER, else in synctrain-recorder-UID under\n"
	      "TMPDIR or /tmp of each node; those of some ranks are enough to begin with.\n"
	      "\n"
	      "  --job NAME   of that job (default: of the one that started last)\n"
	      "\n"
	      "Exit: 0 somebody is named or the job's failure shown, 1 nobody waits for\n"
	      "another, 64 usage, 65 no usable file, 66 no such directory, 77 not permitted.\n",
	      out);
}

static bool parse_number(const char *text, uint64_t maximum, uint64_t *number, const char **end)
{
	char *stop;

	if (*text < '0' || *text > '9')
		return false;
	errno = 0;
	*number = strtoull(text, &stop, 10);
	*end = stop;
	return !errno && *number <= maximum;
}

static bool parse_steps(const char *text, struct train_report_options *options)
{
	uint64_t first = 0, last = UINT64_MAX;
	const char *at = text;

	if (*at != '-' && !parse_number(at, UINT64_MAX, &first, &at))
		return false;
	if (!*at)
		last = first;
	else if (*at++ != '-')
		return false;
	else if (*at && (!parse_number(at, UINT64_MAX, &last, &at) || *at))
		return false;
	options->first_step = first;
	options->last_step = last;
	return first <= last && strcmp(text, "-") != 0;
}

static int usage_error(const char *option, const char *seen, const char *expected)
{
	fprintf(stderr, "synctrain report: %s: seen '%s', expected %s\n", option, seen, expected);
	return EX_USAGE;
}

static int written(bool fine)
{
	if (!fine)
		fputs("synctrain report: can't write to standard output\n", stderr);
	return fine ? EX_OK : EX_IOERR;
}

static int report_hang(char *const *paths, size_t count, const char *job, bool all, bool json)
{
	struct hang_set set;
	struct hang_report report;
	int code = EX_OK;
	enum st_status status = hang_load(paths, count, job, &set);

	if (status == ST_OK) {
		status = hang_judge(&set, &report);
	} else if (set.notes) {
		/* Why there is nothing to use is mostly in the notes. */
		fputs(set.notes, stderr);
	}
	if (status == ST_OK) {
		char *text = NULL;

		if (json) {
			status = hang_json(&report, &text);
			if (status == ST_OK)
				code = written(puts(text) >= 0 && fflush(stdout) == 0);
		} else {
			code = written(hang_print(&report, all, stdout));
		}
		if (code == EX_OK && report.verdict == HANG_NOBODY && !report.failed)
			code = 1;
		free(text);
		hang_report_free(&report);
	}
	if (status != ST_OK)
		code = st_command_failed("report", status);
	hang_free(&set);
	return code;
}

int cmd_report(int argc, char **argv)
{
	static const struct option options[] = {
		{"all", no_argument, NULL, 'a'},       {"json", no_argument, NULL, 'j'},        {"steps", required_argument, NULL, 's'},
		{"warmup", required_argument, NULL, 'w'}, {"launch", required_argument, NULL, 'l'}, {"help", no_argument, NULL, 'h'},
		{"hang", no_argument, NULL, 'H'},      {"job", required_argument, NULL, 'J'},   {0},
	};
	struct train_report_options wanted;
	struct train_record_set set;
	struct train_report report;
	bool all = false, json = false, hang = false, steps = false;
	const char *job = NULL;
	enum st_status status;
	const char *end;
	uint64_t number;
	int option, code = EX_OK;

	train_report_options_init(&wanted);
	while ((option = getopt_long(argc, argv, "h", options, NULL)) >= 0) {
		switch (option) {
		case 'a':
			all = true;
			break;
		case 'j':
			json = true;
			break;
		case 'H':
			hang = true;
			break;
		case 'J':
			job = optarg;
			break;
		case 's':
			steps = true;
			if (!parse_steps(optarg, &wanted))
				return usage_error("--steps", optarg, "A-B, A-, -B or A");
			break;
		case 'w':
			steps = true;
			if (!parse_number(optarg, UINT64_MAX, &wanted.warmup, &end) || *end)
				return usage_error("--warmup", optarg, "a number of steps");
			break;
		case 'l':
			steps = true;
			if (!parse_number(optarg, UINT32_MAX, &number, &end) || *end || !number)
				return usage_error("--launch", optarg, "a number from 1");
			wanted.launch = (uint32_t)number;
			break;
		case 'h':
			usage(stdout);
			return EX_OK;
		default:
			fputs("`synctrain report --help` tells more.\n", stderr);
			return EX_USAGE;
		}
	}
	if (hang && steps)
		return usage_error("--hang", "--steps, --warmup or --launch with it", "none of these");
	if (job && !hang)
		return usage_error("--job", job, "--hang with it");
	if (hang && optind == argc)
		return usage_error("--hang", "nothing to read", "directories or files");
	if (hang)
		return report_hang(argv + optind, (size_t)(argc - optind), job, all, json);
	if (optind + 1 != argc) {
		fprintf(stderr, "synctrain report: seen %d directories, expected one; `synctrain report --help` tells more\n", argc - optind);
		return EX_USAGE;
	}
	const char *directory = argv[optind];
	status = train_records_load(directory, &set);
	if (status != ST_OK)
		return st_command_failed("report", status);
	/* A file that can't be read is in the notes and not among the files. */
	if (!set.files && !set.notes)
		status = st_fail(ST_ERR_DATA, "%s: no steps-*.rec, expected the report directory of a run", directory);
	else if (!set.count)
		status = st_fail(ST_ERR_DATA, "%s: no usable step records in its steps-*.rec", directory);
	else
		status = train_report_make(&set, &wanted, &report);
	if (status != ST_OK) {
		/* Why there is nothing to use is mostly in the notes. */
		if (set.notes)
			fputs(set.notes, stderr);
		code = st_command_failed("report", status);
		train_records_free(&set);
		return code;
	}
	if (json) {
		char *text = NULL;

		status = train_report_json(&report, directory, &text);
		if (status != ST_OK)
			code = st_command_failed("report", status);
		else if (puts(text) < 0 || fflush(stdout))
			code = EX_IOERR;
		free(text);
	} else if (!train_report_print(&report, directory, all, stdout)) {
		code = EX_IOERR;
	}
	if (code == EX_IOERR)
		fputs("synctrain report: can't write to standard output\n", stderr);
	train_report_free(&report);
	train_records_free(&set);
	return code;
}
