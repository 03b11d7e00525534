/* `synctrain bench`: times collectives with the flags and columns of nccl-tests. */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sysexits.h>

#include "comm.h"
#include "common/clock.h"
#include "common/command.h"
#include "common/log.h"
#include "common/version.h"
#include "number16.h"
#include "plan_choose.h"

st_command_main cmd_bench;

enum collective { ALLREDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, BARRIER, COLLECTIVES };
static const char *const names[COLLECTIVES] = {"allreduce", "reduce_scatter", "all_gather", "broadcast", "barrier"};

/* nccl-tests' names. */
static const char *const type_names[COMM_TYPES] = {[COMM_U8] = "uint8", [COMM_I32] = "int32", [COMM_I64] = "int64", [COMM_F16] = "half",
						   [COMM_F32] = "float", [COMM_F64] = "double", [COMM_BF16] = "bfloat16"};
enum { ALL = -1 };

/* Times of single iterations that are gathered for the median: what one record of the control plane holds. */
#define MAX_SAMPLES 8000

struct bench {
	struct comm *comm;
	enum collective collective;
	uint64_t first_bytes, last_bytes, factor, step;
	uint64_t iterations, warmup, root;
	bool check, json, calibrate;
	bool private_memory; /* malloc's, not comm_memory_alloc's */
	int types, ops; /* one of them, or ALL */
	enum comm_type type;
	enum comm_op op;
	bool rounds_on_the_way; /* COMM_ACCUMULATE_WIRE */
	uint32_t rank, size;
	char *input, *output;
	uint64_t total_wrong;
	double busbw_sum;
	unsigned rows;
};

struct outcome {
	double time_us, median_us; /* the median only with --json */
	double algbw, busbw;       /* GB/s */
	uint64_t wrong;
	bool checked;
};

static void usage(FILE *out)
{
	fputs("usage: synctrain bench allreduce|reduce_scatter|all_gather|broadcast|barrier [OPTIONS]\n"
	      "       synctrain bench --calibrate [OPTIONS]\n"
	      "\n"
	      "Times a collective over the ranks it is started on (srun --mpi=pmix, mpirun, synctrain run -n N; alone: one rank)\n"
	      "and prints nccl-tests' columns. Bandwidths are GB/s; busbw = algbw times 2(n-1)/n for allreduce, (n-1)/n for\n"
	      "reduce_scatter and all_gather (whose size is that of the whole array), 1 for broadcast.\n"
	      "\n"
	      "  -b, --minbytes SIZE      smallest size, with K, M or G; default 8\n"
	      "  -e, --maxbytes SIZE      largest size; default 64M\n"
	      "  -f, --stepfactor N       factor between sizes; default 8\n"
	      "  -i, --stepbytes SIZE     fixed step between sizes instead\n"
	      "  -n, --iters N            timed iterations; default 20\n"
	      "  -w, --warmup_iters N     iterations before; default 5\n"
	      "  -c, --check 0|1          check results; default 1\n"
	      "  -d, --datatype TYPE      float (default), half, bfloat16, double, int32, int64, uint8, or all\n"
	      "  -o, --op OP              sum (default), avg, min, max, or all\n"
	      "  -m, --memory KIND        shared (default: comm_memory_alloc's, which local ranks read in place) or private (malloc's)\n"
	      "  -r, --root RANK          root of broadcast; default 0\n"
	      "      --json               one JSON document, with medians of single iterations as well\n"
	      "      --calibrate          no collective: measure what a link and an addition cost here, as algorithms are chosen by, up to -e SIZE\n"
	      "\n"
	      "A time is the mean over iterations, the largest over ranks. Exit code 1 when a result is wrong.\n",
	      out);
}

static bool parse_number(const char *text, bool suffix, uint64_t minimum, uint64_t maximum, uint64_t *value)
{
	char *end;
	errno = 0;
	unsigned long long number = strtoull(text, &end, 10);
	if (errno || *text < '0' || *text > '9')
		return false;
	unsigned shift = 0;
	if (suffix && *end) {
		shift = *end == 'k' || *end == 'K' ? 10 : *end == 'm' || *end == 'M' ? 20 : *end == 'g' || *end == 'G' ? 30 : 99;
		if (shift == 99 || number > UINT64_MAX >> shift)
			return false;
		end++;
	}
	number <<= shift;
	if (*end || number < minimum || number > maximum)
		return false;
	*value = number;
	return true;
}

static int bad_value(const char *option, const char *value, const char *expected)
{
	fprintf(stderr, "synctrain bench: %s: '%.64s', expected %s\n", option, value, expected);
	return EX_USAGE;
}

/* Index of a name; n: not there. */
static int find_name(const char *const *list, int n, const char *name)
{
	int i = 0;
	while (i < n && strcmp(list[i], name))
		i++;
	return i;
}

/* EX_OK: go on. -1: help was printed. */
static int parse(int argc, char **argv, struct bench *bench)
{
	enum { JSON = 256, CALIBRATE, HELP };
	static const struct option options[] = {
		{"minbytes", required_argument, NULL, 'b'}, {"maxbytes", required_argument, NULL, 'e'},
		{"stepfactor", required_argument, NULL, 'f'}, {"stepbytes", required_argument, NULL, 'i'},
		{"iters", required_argument, NULL, 'n'}, {"warmup_iters", required_argument, NULL, 'w'},
		{"check", required_argument, NULL, 'c'}, {"root", required_argument, NULL, 'r'},
		{"memory", required_argument, NULL, 'm'}, {"datatype", required_argument, NULL, 'd'}, {"op", required_argument, NULL, 'o'},
		{"json", no_argument, NULL, JSON}, {"calibrate", no_argument, NULL, CALIBRATE}, {"help", no_argument, NULL, HELP}, {NULL, 0, NULL, 0},
	};
	const uint64_t most = UINT64_C(1) << 40;
	uint64_t check = 1;
	*bench = (struct bench){.first_bytes = 8, .last_bytes = 64 << 20, .factor = 8, .iterations = 20, .warmup = 5,
				.types = COMM_F32, .ops = COMM_SUM};
	opterr = 0;
	optind = 1;
	for (int c; (c = getopt_long(argc, argv, ":b:e:f:i:n:w:c:d:o:r:m:h", options, NULL)) != -1;) {
		switch (c) {
		case 'b':
			if (!parse_number(optarg, true, 0, most, &bench->first_bytes))
				return bad_value("-b", optarg, "bytes, with K, M or G");
			break;
		case 'e':
			if (!parse_number(optarg, true, 0, most, &bench->last_bytes))
				return bad_value("-e", optarg, "bytes, with K, M or G");
			break;
		case 'f':
			if (!parse_number(optarg, false, 2, 1 << 20, &bench->factor))
				return bad_value("-f", optarg, "a factor of at least 2");
			break;
		case 'i':
			if (!parse_number(optarg, true, 1, most, &bench->step))
				return bad_value("-i", optarg, "bytes, with K, M or G");
			break;
		case 'n':
			if (!parse_number(optarg, false, 1, 1000000000, &bench->iterations))
				return bad_value("-n", optarg, "a number of iterations, at least 1");
			break;
		case 'w':
			if (!parse_number(optarg, false, 0, 1000000000, &bench->warmup))
				return bad_value("-w", optarg, "a number of iterations");
			break;
		case 'c':
			if (!parse_number(optarg, false, 0, 1, &check))
				return bad_value("-c", optarg, "0 or 1");
			break;
		case 'r':
			if (!parse_number(optarg, false, 0, UINT32_MAX, &bench->root))
				return bad_value("-r", optarg, "a rank");
			break;
		case 'd':
			bench->types = !strcmp(optarg, "all") ? ALL : find_name(type_names, COMM_TYPES, optarg);
			if (bench->types == COMM_TYPES)
				return bad_value("-d", optarg, "float, half, bfloat16, double, int32, int64, uint8 or all");
			break;
		case 'o':
			bench->ops = ALL;
			for (int op = 0; strcmp(optarg, "all") && op <= COMM_OPS; op++)
				if (op == COMM_OPS)
					return bad_value("-o", optarg, "sum, avg, min, max or all");
				else if (!strcmp(optarg, comm_op_name((enum comm_op)op))) {
					bench->ops = op;
					break;
				}
			break;
		case 'm':
			bench->private_memory = !strcmp(optarg, "private");
			if (!bench->private_memory && strcmp(optarg, "shared"))
				return bad_value("-m", optarg, "shared or private");
			break;
		case JSON: bench->json = true; break;
		case CALIBRATE: bench->calibrate = true; break;
		case HELP:
		case 'h': usage(stdout); return -1;
		case ':': fprintf(stderr, "synctrain bench: %s needs a value\n", argv[optind - 1]); return EX_USAGE;
		default: fprintf(stderr, "synctrain bench: no option '%s'; see synctrain bench --help\n", argv[optind - 1]); return EX_USAGE;
		}
	}
	bench->check = check;
	if (bench->calibrate && argc == optind && !bench->json) {
		bench->collective = ALL_GATHER;
		bench->types = COMM_F32;
		bench->ops = COMM_SUM;
		bench->check = false;
		return EX_OK;
	}
	if (bench->calibrate) {
		fprintf(stderr, "synctrain bench: --calibrate takes neither a collective nor --json\n");
		return EX_USAGE;
	}
	if (argc - optind != 1) {
		fprintf(stderr, "synctrain bench: expected one collective, got %d; see synctrain bench --help\n", argc - optind);
		return EX_USAGE;
	}
	bench->collective = (enum collective)find_name(names, COLLECTIVES, argv[optind]);
	if (bench->collective == COLLECTIVES)
		return bad_value("collective", argv[optind], "allreduce, reduce_scatter, all_gather, broadcast or barrier");
	if (bench->first_bytes > bench->last_bytes) {
		fprintf(stderr, "synctrain bench: -b %" PRIu64 " is more than -e %" PRIu64 "\n", bench->first_bytes, bench->last_bytes);
		return EX_USAGE;
	}
	return EX_OK;
}

/* Elements per rank's call for a size in bytes, and the exact size that makes. */
static uint64_t count_for(const struct bench *bench, uint64_t bytes, uint64_t *exact)
{
	const size_t element_bytes = comm_type_bytes(bench->type);
	uint64_t count = bench->collective == BARRIER ? 0 : bytes / element_bytes, factor = 1;
	if (bench->collective == REDUCE_SCATTER || bench->collective == ALL_GATHER)
		factor = bench->size;
	count /= factor;
	*exact = count * factor * element_bytes;
	return count;
}

static enum st_status start(struct bench *bench, uint64_t count, bool in_place, struct comm_request **request)
{
	struct comm *comm = bench->comm;
	uint64_t own = bench->rank * count * comm_type_bytes(bench->type);
	char *in = bench->input, *out = bench->output;
	switch (bench->collective) {
	case ALLREDUCE: return comm_allreduce(comm, in, in_place ? in : out, count, bench->type, bench->op, request);
	case REDUCE_SCATTER: return comm_reduce_scatter(comm, in, in_place ? in + own : out, count, bench->type, bench->op, request);
	case ALL_GATHER: return comm_all_gather(comm, in_place ? out + own : in, out, count, bench->type, request);
	case BROADCAST: return comm_broadcast(comm, in_place ? in : out, count, bench->type, (uint32_t)bench->root, request);
	default: return comm_barrier(comm, request);
	}
}

static enum st_status once(struct bench *bench, uint64_t count, bool in_place)
{
	struct comm_request *request;
	ST_TRY(start(bench, count, in_place, &request));
	return comm_wait(bench->comm, &request);
}

static enum st_status barrier(struct bench *bench)
{
	struct comm_request *request;
	ST_TRY(comm_barrier(bench->comm, &request));
	return comm_wait(bench->comm, &request);
}

/* The largest over ranks of each of n values. */
static enum st_status largest(struct bench *bench, double *values, size_t n)
{
	double *all = malloc(n * bench->size * sizeof *all);
	if (!all)
		return st_fail(ST_ERR_NOMEM, "bench: out of memory");
	enum st_status status = comm_collect(bench->comm, values, n * sizeof *values, all);
	for (size_t i = 0; status == ST_OK && i < n * bench->size; i++)
		if (all[i] > values[i % n])
			values[i % n] = all[i];
	free(all);
	return status;
}

/* Whole numbers; floats are an eighth of them, which all types hold exactly and whose sums f32 does. */
static int64_t pattern(const struct bench *bench, uint32_t rank, uint64_t i)
{
	return (int64_t)((i * 31 + rank * 17) % 251) - (bench->type == COMM_U8 ? 0 : 100);
}

/* An element of `value`, or that divided by `ranks` as an average is. Returns the number itself. */
static double encode(const struct bench *bench, int64_t value, uint32_t ranks, void *to)
{
	double f64 = (double)value / 8 / ranks;
	float f32 = (float)value / 8 / (float)ranks;
	uint16_t half;
	int64_t i64 = value / (int64_t)ranks;
	int32_t i32 = (int32_t)value / (int32_t)ranks;
	switch (bench->type) {
	case COMM_F64: memcpy(to, &f64, sizeof f64); break;
	case COMM_F32: memcpy(to, &f32, sizeof f32); break;
	case COMM_I64: memcpy(to, &i64, sizeof i64); break;
	case COMM_I32: memcpy(to, &i32, sizeof i32); break;
	case COMM_U8: *(uint8_t *)to = (uint8_t)((uint8_t)value / ranks); break;
	default:
		half = bench->type == COMM_F16 ? f16_from_f32(f32) : bf16_from_f32(f32);
		memcpy(to, &half, sizeof half);
	}
	return f64;
}

/* Partial sums of f16 and bf16 that are rounded on the way: half a place of each, the magnitudes' sum being at most `most`. */
static bool near_enough(const struct bench *bench, const char *got, double expected, double most)
{
	uint16_t half;
	bool sums = bench->op == COMM_SUM || bench->op == COMM_AVG;
	if (!bench->rounds_on_the_way || !sums || (bench->type != COMM_F16 && bench->type != COMM_BF16))
		return false;
	memcpy(&half, got, sizeof half);
	double value = (double)(bench->type == COMM_F16 ? f32_from_f16(half) : f32_from_bf16(half));
	double allowed = most * bench->size * (bench->type == COMM_F16 ? 0x1p-11 : 0x1p-8);
	return value - expected <= allowed && expected - value <= allowed;
}

static enum st_status check(struct bench *bench, uint64_t count, bool in_place, uint64_t *wrong)
{
	const size_t bytes = comm_type_bytes(bench->type);
	const uint32_t rank = bench->rank, size = bench->size;
	const bool reduces = bench->collective == ALLREDUCE || bench->collective == REDUCE_SCATTER;
	const uint64_t first = bench->collective == REDUCE_SCATTER ? rank * count : 0;
	char *in = bench->input, *out = bench->output, *from = in, *result = out;
	uint64_t inputs = bench->collective == REDUCE_SCATTER ? count * size : count;
	*wrong = 0;
	if (bench->collective == BARRIER)
		return ST_OK;
	if (bench->collective == ALL_GATHER && in_place)
		from = out + rank * count * bytes;
	else if (bench->collective == BROADCAST && !in_place)
		from = out;
	else if (in_place)
		result = in + first * bytes;
	memset(result, 0xff, count * (bench->collective == ALL_GATHER ? size : 1) * bytes);
	for (uint64_t i = 0; i < inputs; i++)
		if (bench->collective != BROADCAST || rank == bench->root)
			encode(bench, pattern(bench, rank, i), 1, from + i * bytes);
	ST_TRY(once(bench, count, in_place));
	uint64_t results = bench->collective == ALL_GATHER ? count * size : count;
	for (uint64_t i = 0; i < results; i++) {
		char expected[sizeof(double)];
		int64_t value = 0;
		if (bench->collective == ALL_GATHER)
			value = pattern(bench, (uint32_t)(i / count), i % count);
		else if (bench->collective == BROADCAST)
			value = pattern(bench, (uint32_t)bench->root, i);
		for (uint32_t r = 0; reduces && r < size; r++) {
			int64_t one = pattern(bench, r, first + i);
			if (bench->op == COMM_SUM || bench->op == COMM_AVG)
				value += one;
			else if (!r || (bench->op == COMM_MIN ? one < value : one > value))
				value = one;
		}
		double number = encode(bench, value, reduces && bench->op == COMM_AVG ? size : 1, expected);
		if (memcmp(result + i * bytes, expected, bytes) && !near_enough(bench, result + i * bytes, number, 151.0 / 8 * size))
			++*wrong;
	}
	uint64_t *all = malloc(size * sizeof *all);
	if (!all)
		return st_fail(ST_ERR_NOMEM, "bench: out of memory");
	enum st_status status = comm_collect(bench->comm, wrong, sizeof *wrong, all);
	for (uint32_t r = 0; status == ST_OK && r < size; r++)
		if (r != rank)
			*wrong += all[r];
	free(all);
	return status;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static enum st_status measure(struct bench *bench, uint64_t bytes, uint64_t count, bool in_place, struct outcome *outcome)
{
	for (uint64_t i = 0; i < bench->warmup; i++)
		ST_TRY(once(bench, count, in_place));
	ST_TRY(barrier(bench));
	int64_t began = st_now_ns();
	for (uint64_t i = 0; i < bench->iterations; i++)
		ST_TRY(once(bench, count, in_place));
	double seconds = (double)(st_now_ns() - began) / 1e9 / (double)bench->iterations;
	ST_TRY(largest(bench, &seconds, 1));
	outcome->time_us = seconds * 1e6;
	if (bench->json) {
		size_t samples = bench->iterations < MAX_SAMPLES ? bench->iterations : MAX_SAMPLES;
		double *times = malloc(samples * sizeof *times);
		if (!times)
			return st_fail(ST_ERR_NOMEM, "bench: out of memory");
		enum st_status status = ST_OK;
		for (size_t i = 0; i < samples && status == ST_OK; i++) {
			status = barrier(bench);
			began = st_now_ns();
			if (status == ST_OK)
				status = once(bench, count, in_place);
			times[i] = (double)(st_now_ns() - began) / 1e3;
		}
		if (status == ST_OK)
			status = largest(bench, times, samples);
		if (status == ST_OK) {
			qsort(times, samples, sizeof *times, compare);
			outcome->median_us = times[samples / 2];
		}
		free(times);
		ST_TRY(status);
	}
	double n = bench->size, factor = 1;
	if (bench->collective == ALLREDUCE)
		factor = 2 * (n - 1) / n;
	else if (bench->collective == REDUCE_SCATTER || bench->collective == ALL_GATHER)
		factor = (n - 1) / n;
	outcome->algbw = (double)bytes / seconds / 1e9;
	outcome->busbw = outcome->algbw * factor;
	outcome->checked = bench->check;
	if (bench->check) {
		ST_TRY(check(bench, count, in_place, &outcome->wrong));
		bench->total_wrong += outcome->wrong;
	}
	return ST_OK;
}

static void print_outcome(const struct outcome *outcome)
{
	const char *format = outcome->time_us < 9999.995 ? "  %7.2f" : "  %7.0f";
	char wrong[24] = "N/A";
	if (outcome->checked)
		snprintf(wrong, sizeof wrong, "%" PRIu64, outcome->wrong);
	printf(format, outcome->time_us);
	printf("  %6.2f  %6.2f  %5s", outcome->algbw, outcome->busbw, wrong);
}

static void print_json_outcome(const char *name, const struct outcome *outcome)
{
	printf("\"%s\": {\"time_us\": %.3f, \"median_us\": %.3f, \"algbw\": %.4f, \"busbw\": %.4f, \"wrong\": ", name, outcome->time_us,
	       outcome->median_us, outcome->algbw, outcome->busbw);
	if (outcome->checked)
		printf("%" PRIu64 "}", outcome->wrong);
	else
		printf("null}");
}

static void print_head(const struct bench *bench)
{
	char step[48];
	if (bench->step)
		snprintf(step, sizeof step, "%" PRIu64 "(bytes)", bench->step);
	else
		snprintf(step, sizeof step, "%" PRIu64 "(factor)", bench->factor);
	if (bench->json) {
		printf("{\"program\": \"synctrain %s (%s)\", \"collective\": \"%s\", \"ranks\": %" PRIu32 ", \"iterations\": %" PRIu64
		       ", \"warmup\": %" PRIu64 ", \"results\": [",
		       st_version, st_build_id, names[bench->collective], bench->size, bench->iterations, bench->warmup);
		return;
	}
	printf("# synctrain %s (%s): %s, job %s\n", st_version, st_build_id, names[bench->collective], comm_job(bench->comm));
	printf("# ranks %" PRIu32 " minBytes %" PRIu64 " maxBytes %" PRIu64 " step: %s warmup iters: %" PRIu64 " iters: %" PRIu64 " validation: %d\n#\n",
	       bench->size, bench->first_bytes, bench->last_bytes, step, bench->warmup, bench->iterations, bench->check);
	for (uint32_t r = 0; r < bench->size && r < 64; r++)
		printf("#  Rank %2" PRIu32 " on %s\n", r, comm_host(bench->comm, r));
	if (bench->size > 64)
		printf("#  ... and %" PRIu32 " more\n", bench->size - 64);
	printf("#\n# %10s  %12s  %8s  %6s  %6s           out-of-place                       in-place          \n", "", "", "", "", "");
	printf("# %10s  %12s  %8s  %6s  %6s  %7s  %6s  %6s %6s  %7s  %6s  %6s %6s\n", "size", "count", "type", "redop", "root", "time", "algbw",
	       "busbw", "#wrong", "time", "algbw", "busbw", "#wrong");
	printf("# %10s  %12s  %8s  %6s  %6s  %7s  %6s  %6s %6s  %7s  %6s  %6s\n", "(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "",
	       "(us)", "(GB/s)", "(GB/s)");
}

static enum st_status sizes(struct bench *bench)
{
	for (uint64_t bytes = bench->first_bytes;;) {
		uint64_t exact, count = count_for(bench, bytes, &exact);
		bool reduces = bench->collective == ALLREDUCE || bench->collective == REDUCE_SCATTER;
		struct outcome outcomes[2];
		memset(outcomes, 0, sizeof outcomes);
		for (int in_place = 0; in_place < 2; in_place++)
			ST_TRY(measure(bench, exact, count, in_place, &outcomes[in_place]));
		bench->busbw_sum += outcomes[0].busbw + outcomes[1].busbw;
		if (!bench->rank) {
			const char *type = bench->collective == BARRIER ? "none" : type_names[bench->type];
			const char *redop = reduces ? comm_op_name(bench->op) : "none";
			int64_t root = bench->collective == BROADCAST ? (int64_t)bench->root : -1;
			if (bench->json) {
				printf("%s\n  {\"size\": %" PRIu64 ", \"count\": %" PRIu64 ", \"type\": \"%s\", \"redop\": \"%s\", \"root\": %" PRId64 ", ",
				       bench->rows ? "," : "", exact, count, type, redop, root);
				print_json_outcome("out_of_place", &outcomes[0]);
				printf(", ");
				print_json_outcome("in_place", &outcomes[1]);
				printf("}");
			} else {
				printf("%12" PRIu64 "  %12" PRIu64 "  %8s  %6s  %6" PRId64, exact, count, type, redop, root);
				print_outcome(&outcomes[0]);
				print_outcome(&outcomes[1]);
				printf("\n");
			}
			fflush(stdout);
		}
		bench->rows++;
		if (bench->collective == BARRIER)
			break;
		uint64_t next = bench->step ? bytes + bench->step : bytes ? bytes * bench->factor : comm_type_bytes(bench->type);
		if (next > bench->last_bytes)
			break;
		bytes = next;
	}
	return ST_OK;
}

/* Every size for each type and operation that was asked for, and what all that moved. */
static enum st_status kinds(struct bench *bench)
{
	const bool reduces = bench->collective == ALLREDUCE || bench->collective == REDUCE_SCATTER;
	for (int type = 0; type < COMM_TYPES; type++)
		for (int op = 0; op < COMM_OPS; op++) {
			/* Where nothing is reduced, or nothing is there, one row says all. */
			if (type != (bench->collective == BARRIER ? (int)COMM_F32 : bench->types == ALL ? type : bench->types) ||
			    op != (!reduces ? (int)COMM_SUM : bench->ops == ALL ? op : bench->ops))
				continue;
			bench->type = (enum comm_type)type;
			bench->op = (enum comm_op)op;
			ST_TRY(sizes(bench));
		}
	struct comm_counters mine, *all = malloc(bench->size * sizeof *all), total = {0};
	if (!all)
		return st_fail(ST_ERR_NOMEM, "bench: out of memory");
	comm_counters_read(bench->comm, &mine);
	enum st_status status = comm_collect(bench->comm, &mine, sizeof mine, all);
	for (uint32_t r = 0; status == ST_OK && r < bench->size; r++) {
		total.shm_puts += all[r].shm_puts;
		total.shm_bytes += all[r].shm_bytes;
		total.tcp_puts += all[r].tcp_puts;
		total.tcp_bytes += all[r].tcp_bytes;
		total.sleeps += all[r].sleeps;
	}
	free(all);
	ST_TRY(status);
	if (bench->rank)
		return ST_OK;
	if (bench->json)
		printf("\n], \"wrong\": %" PRIu64 ", \"counters\": {\"shm_puts\": %" PRIu64 ", \"shm_bytes\": %" PRIu64 ", \"tcp_puts\": %" PRIu64
		       ", \"tcp_bytes\": %" PRIu64 ", \"sleeps\": %" PRIu64 "}}\n",
		       bench->total_wrong, total.shm_puts, total.shm_bytes, total.tcp_puts, total.tcp_bytes, total.sleeps);
	else
		printf("# Out of bounds values : %" PRIu64 " %s\n# Avg bus bandwidth    : %g\n#\n"
		       "# transports: shm %" PRIu64 " puts %" PRIu64 " bytes, tcp %" PRIu64 " puts %" PRIu64 " bytes, sleeps %" PRIu64 "\n",
		       bench->total_wrong, bench->total_wrong ? "FAILED" : "OK", bench->busbw_sum / (2 * bench->rows), total.shm_puts, total.shm_bytes, total.tcp_puts,
		       total.tcp_bytes, total.sleeps);
	return ST_OK;
}

static enum st_status seconds_of(struct bench *bench, enum collective collective, uint64_t bytes, double *seconds)
{
	struct outcome outcome = {0};
	uint64_t exact;
	bench->collective = collective;
	uint64_t count = count_for(bench, bytes, &exact);
	ST_TRY(measure(bench, exact, count ? count : 1, false, &outcome));
	*seconds = outcome.time_us / 1e6;
	return ST_OK;
}

/*
 * The constants of struct plan_machine, of the links that a ring of these ranks has: all-gather around it takes (p-1) alpha + (p-1)/p n beta,
 * reduce-scatter (p-1)/p n gamma more.  Few bytes give alpha, many the rest.
 */
static enum st_status calibrate(struct bench *bench)
{
	const double p = bench->size, moved = (p - 1) / p * (double)bench->last_bytes;
	bool remote = false;
	double small, gather, scatter;
	bench->type = COMM_F32;
	bench->op = COMM_SUM;
	for (uint32_t r = 1; r < bench->size; r++)
		remote |= strcmp(comm_host(bench->comm, r), comm_host(bench->comm, 0)) != 0;
	ST_TRY(seconds_of(bench, ALL_GATHER, bench->size * sizeof(float), &small));
	ST_TRY(seconds_of(bench, ALL_GATHER, bench->last_bytes, &gather));
	ST_TRY(seconds_of(bench, REDUCE_SCATTER, bench->last_bytes, &scatter));
	if (bench->rank)
		return ST_OK;
	const struct plan_link_price *assumed = remote ? &plan_machine_default.remote : &plan_machine_default.local;
	const double beta = (gather - small) / moved, gamma = (scatter - gather) / moved;
	printf("# synctrain %s (%s): a ring of %" PRIu32 " ranks %s, %" PRIu64 " bytes\n"
	       "# what algorithms are chosen by: measured here, and assumed; only where algorithms cross depends on it\n"
	       "%s.alpha  %10.2f us        assumed %10.2f us\n%s.beta   %10.2f GB/s      assumed %10.2f GB/s\n",
	       st_version, st_build_id, bench->size, remote ? "of several nodes" : "of one node", bench->last_bytes, remote ? "remote" : "local ",
	       small / (p - 1) * 1e6, assumed->alpha * 1e6, remote ? "remote" : "local ", beta > 0 ? 1e-9 / beta : 0, 1e-9 / assumed->beta);
	if (gamma > 0)
		printf("gamma         %10.2f GB/s      assumed %10.2f GB/s\n", 1e-9 / gamma, 1e-9 / plan_machine_default.gamma);
	else
		printf("gamma         hidden by the link assumed %10.2f GB/s\n", 1e-9 / plan_machine_default.gamma);
	return ST_OK;
}

/* NULL: st_message() says why. Memory of the communicator goes with it. */
static char *buffer(const struct bench *bench, uint64_t bytes)
{
	const size_t huge = (size_t)2 << 20, room = (bytes / huge + 1) * huge;
	void *memory = NULL;
	if (!bench->private_memory)
		return comm_memory_alloc(bench->comm, bytes, &memory) == ST_OK ? memory : NULL;
	memory = aligned_alloc(huge, room);
	if (memory) {
		(void)madvise(memory, room, MADV_HUGEPAGE); /* where it can't be had, small pages do */
		memset(memory, 0, room);
	} else {
		st_fail(ST_ERR_NOMEM, "rank %" PRIu32 ": no memory for buffers of %" PRIu64 " bytes", bench->rank, bytes);
	}
	return memory;
}

int cmd_bench(int argc, char **argv)
{
	struct bench bench;
	int code = parse(argc, argv, &bench);
	if (code)
		return code < 0 ? EX_OK : code;
	struct comm_options options;
	enum st_status status = comm_options_init(&options);
	if (status == ST_OK && bench.calibrate)
		options.algorithm = COMM_ALGORITHM_RING;
	if (status == ST_OK)
		status = comm_create(&options, &bench.comm);
	if (status != ST_OK)
		return st_command_failed("bench", status);
	bench.rank = comm_rank(bench.comm);
	bench.size = comm_size(bench.comm);
	uint64_t most = (bench.collective == BARRIER ? 0 : bench.last_bytes) + sizeof(double) * bench.size;
	if (bench.root >= bench.size) {
		if (!bench.rank)
			fprintf(stderr, "synctrain bench: -r: root %" PRIu64 " of %" PRIu32 " ranks\n", bench.root, bench.size);
		comm_free(bench.comm);
		return EX_USAGE;
	}
	if (bench.calibrate && (bench.size == 1 || bench.last_bytes < 1 << 20)) {
		if (!bench.rank)
			fprintf(stderr, "synctrain bench: --calibrate: %" PRIu32 " ranks, -e %" PRIu64 ", expected two ranks or more and a MiB\n", bench.size,
				bench.last_bytes);
		comm_free(bench.comm);
		return EX_USAGE;
	}
	bench.input = buffer(&bench, most);
	bench.output = bench.input ? buffer(&bench, most) : NULL;
	if (!bench.output) {
		char why[512];
		snprintf(why, sizeof why, "%s", st_message());
		comm_abort(bench.comm, why);
		status = st_fail_copy(ST_ERR_NOMEM, why);
	} else {
		bench.rounds_on_the_way = options.accumulate == COMM_ACCUMULATE_WIRE;
		if (!bench.rank && !bench.calibrate)
			print_head(&bench);
		status = comm_decide(bench.comm, &bench.rounds_on_the_way, sizeof bench.rounds_on_the_way); /* rank 0's options hold */
		if (status == ST_OK)
			status = bench.calibrate ? calibrate(&bench) : kinds(&bench);
	}
	code = status == ST_OK ? bench.total_wrong ? 1 : EX_OK : st_command_failed("bench", status);
	if (status == ST_OK && fflush(stdout)) {
		fprintf(stderr, "synctrain bench: writing the results: %s\n", strerror(errno));
		code = EX_IOERR;
	}
	if (bench.private_memory) {
		free(bench.input);
		free(bench.output);
	}
	comm_free(bench.comm);
	return code;
}
