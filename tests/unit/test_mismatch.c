/*
 * Ranks that call different collectives: every field of a signature, over shared memory, TCP and both, in small and larger worlds.  All ranks get one
 * and the same message with both ranks and what each calls, and no call succeeds with data that it did not ask for.  Ranks as threads; and
 * as processes under `synctrain run`, as which this program runs itself:  test_mismatch rank FIELD RANK_THAT_DEVIATES
 */
#include "check.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/command.h"
#include "libcomm/bootstrap.h"
#include "libcomm/comm.h"

#define MAX_RANKS 12
#define MOST 64
#define AT_ONCE 4

st_command_main cmd_run;

enum what { NOTHING, ALLREDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, BARRIER };

struct call {
	enum what what;
	size_t count;
	enum comm_type type; /* F32 or I32: four bytes each */
	enum comm_op op;
	uint32_t root;
};

/* What all ranks call, and what the one that deviates calls instead. */
static const struct field {
	const char *name;
	struct call calls[2], deviant[2];
} fields[] = {
	{"count", {{ALLREDUCE, 3, COMM_F32, COMM_SUM, 0}}, {{ALLREDUCE, 4, COMM_F32, COMM_SUM, 0}}},
	{"one-element-more", {{ALL_GATHER, 1, COMM_F32, COMM_SUM, 0}}, {{ALL_GATHER, 2, COMM_F32, COMM_SUM, 0}}},
	{"none-at-all", {{ALLREDUCE, 5, COMM_F32, COMM_SUM, 0}}, {{ALLREDUCE, 0, COMM_F32, COMM_SUM, 0}}},
	{"type", {{ALLREDUCE, 4, COMM_F32, COMM_SUM, 0}}, {{ALLREDUCE, 4, COMM_I32, COMM_SUM, 0}}},
	{"operation", {{ALLREDUCE, 4, COMM_F32, COMM_SUM, 0}}, {{ALLREDUCE, 4, COMM_F32, COMM_MAX, 0}}},
	{"root", {{BROADCAST, 4, COMM_F32, COMM_SUM, 0}}, {{BROADCAST, 4, COMM_F32, COMM_SUM, 1}}},
	{"collective", {{ALLREDUCE, 4, COMM_F32, COMM_SUM, 0}}, {{BROADCAST, 4, COMM_F32, COMM_SUM, 0}}},
	{"gather-or-scatter", {{ALL_GATHER, 4, COMM_F32, COMM_SUM, 0}}, {{REDUCE_SCATTER, 4, COMM_F32, COMM_SUM, 0}}},
	{"barrier-or-broadcast", {{BARRIER, 0, COMM_F32, COMM_SUM, 0}}, {{BROADCAST, 4, COMM_F32, COMM_SUM, 0}}},
	{"order",
	 {{ALLREDUCE, 4, COMM_F32, COMM_SUM, 0}, {BROADCAST, 4, COMM_F32, COMM_SUM, 0}},
	 {{BROADCAST, 4, COMM_F32, COMM_SUM, 0}, {ALLREDUCE, 4, COMM_F32, COMM_SUM, 0}}},
	{"left-out", {{ALLREDUCE, 4, COMM_F32, COMM_SUM, 0}, {ALLREDUCE, 6, COMM_F32, COMM_SUM, 0}}, {{ALLREDUCE, 6, COMM_F32, COMM_SUM, 0}, {BARRIER, 0, COMM_F32, COMM_SUM, 0}}},
};
#define FIELDS (sizeof fields / sizeof *fields)

/* ---- one rank ------------------------------------------------------------------------------------------------------ */

union word {
	float f;
	int32_t i;
};

static double value(uint32_t rank, size_t i)
{
	return (double)(rank * 17 + i * 3 + 1);
}

static double read_word(const union word *word, enum comm_type type)
{
	return type == COMM_F32 ? (double)word->f : (double)word->i;
}

static void write_word(union word *word, enum comm_type type, double v)
{
	if (type == COMM_F32)
		word->f = (float)v;
	else
		word->i = (int32_t)v;
}

static double reduced(uint32_t size, enum comm_op op, size_t i)
{
	double result = value(0, i);

	for (uint32_t r = 1; r < size; r++)
		result = op == COMM_SUM ? result + value(r, i) : value(r, i) > result ? value(r, i) : result;
	return result;
}

struct pending {
	union word in[MOST * MAX_RANKS], out[MOST * MAX_RANKS];
	struct comm_request *request;
	enum st_status status;
};

static void begin(struct comm *comm, const struct call *call, struct pending *p)
{
	uint32_t rank = comm_rank(comm), size = comm_size(comm);

	for (size_t i = 0; i < MOST * MAX_RANKS; i++)
		write_word(&p->in[i], call->type, value(rank, i));
	memset(p->out, 0xee, sizeof p->out);
	switch (call->what) {
	case ALLREDUCE: p->status = comm_allreduce(comm, p->in, p->out, call->count, call->type, call->op, &p->request); break;
	case REDUCE_SCATTER: p->status = comm_reduce_scatter(comm, p->in, p->out, call->count, call->type, call->op, &p->request); break;
	case ALL_GATHER: p->status = comm_all_gather(comm, p->in, p->out, call->count, call->type, &p->request); break;
	case BROADCAST: p->status = comm_broadcast(comm, p->in, call->count, call->type, call->root % size, &p->request); break;
	case BARRIER: p->status = comm_barrier(comm, &p->request); break;
	case NOTHING: p->request = NULL; break;
	}
}

/* A call that succeeds has what it asked for. */
static bool right(const struct comm *comm, const struct call *call, const struct pending *p)
{
	uint32_t rank = comm_rank(comm), size = comm_size(comm);
	size_t total = call->what == ALL_GATHER ? call->count * size : call->what == BARRIER ? 0 : call->count;

	for (size_t i = 0; i < total; i++) {
		double expected = call->what == ALLREDUCE      ? reduced(size, call->op, i)
				  : call->what == ALL_GATHER   ? value((uint32_t)(i / call->count), i % call->count)
				  : call->what == BROADCAST    ? value(call->root % size, i)
							       : reduced(size, call->op, rank * call->count + i);
		if (read_word(call->what == BROADCAST ? &p->in[i] : &p->out[i], call->type) != expected)
			return false;
	}
	return true;
}

/* Agrees with all in some calls, then calls the field's; the message is that of the failure. */
static bool call_all(struct comm *comm, const struct field *field, bool deviates, char *message, size_t bytes)
{
	const struct call *calls = deviates ? field->deviant : field->calls;
	struct pending *pending = calloc(3, sizeof *pending);
	struct call agreed = {ALLREDUCE, 7, COMM_F32, COMM_SUM, 0}, barrier = {BARRIER, 0, COMM_F32, COMM_SUM, 0};
	bool data = true;
	enum st_status status = ST_OK;

	begin(comm, &agreed, &pending[2]);
	if (pending[2].status != ST_OK || comm_wait(comm, &pending[2].request) != ST_OK || !right(comm, &agreed, &pending[2])) {
		snprintf(message, bytes, "before anybody deviated: %s", st_message());
		free(pending);
		return false;
	}
	/* Both in flight at once. */
	for (int i = 0; i < 2 && calls[i].what; i++)
		begin(comm, &calls[i], &pending[i]);
	for (int i = 0; i < 2 && calls[i].what; i++) {
		if (pending[i].status == ST_OK)
			pending[i].status = comm_wait(comm, &pending[i].request);
		if (pending[i].status != ST_OK && status == ST_OK) {
			status = pending[i].status;
			snprintf(message, bytes, "%s", st_message());
		}
		data = data && (pending[i].status != ST_OK || right(comm, &calls[i], &pending[i]));
	}
	/* Whoever got through (a root whose data was small) finds out here. */
	if (status == ST_OK) {
		begin(comm, &barrier, &pending[2]);
		status = pending[2].status == ST_OK ? comm_wait(comm, &pending[2].request) : pending[2].status;
		snprintf(message, bytes, "%s", status == ST_OK ? "a barrier after all that succeeds" : st_message());
	}
	free(pending);
	return data && (status == ST_ERR_MISMATCH || status == ST_ERR_ABORTED);
}

static void options_for(struct comm_options *options, unsigned transports)
{
	REQUIRE(comm_options_init(options) == ST_OK);
	options->transports = transports;
	options->arrival_timeout_ms = 20000; /* what is only found at its end reads otherwise */
	options->interface = "lo";
}

/* ---- ranks as threads ---------------------------------------------------------------------------------------------- */

struct world;
struct rank {
	struct world *world;
	uint32_t rank;
	pthread_t thread;
	char message[1024];
	bool good;
};
struct world {
	const struct field *field;
	uint32_t size, deviant, second; /* second: MAX_RANKS when there is one only */
	unsigned transports;
	struct bootstrap *bootstraps[MAX_RANKS];
	pthread_barrier_t all;
	struct rank ranks[MAX_RANKS];
};

static void *rank_thread(void *argument)
{
	struct rank *rank = argument;
	struct world *world = rank->world;
	struct comm_options options;
	struct comm *comm;

	options_for(&options, world->transports);
	REQUIRE(comm_create_over(world->bootstraps[rank->rank], &options, &comm) == ST_OK);
	rank->good = call_all(comm, world->field, rank->rank == world->deviant || rank->rank == world->second, rank->message, sizeof rank->message);
	pthread_barrier_wait(&world->all); /* nobody is to take another's leaving for the cause */
	comm_free(comm);
	return NULL;
}

static void begin_world(struct world *world)
{
	static const char *const names[MAX_RANKS] = {"n0", "n0", "n1", "n1", "n1", "n2", "n2", "n3", "n3", "n3", "n4", "n4"};
	static const char *const one[MAX_RANKS] = {"n0", "n0", "n0", "n0", "n0", "n0", "n0", "n0", "n0", "n0", "n0", "n0"};
	static const char *const own[MAX_RANKS] = {"n0", "n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8", "n9", "n10", "n11"};

	REQUIRE(bootstrap_threads(world->size, world->transports == COMM_TRANSPORT_SHM ? one : world->transports == COMM_TRANSPORT_TCP ? own : names,
				  world->bootstraps) == ST_OK);
	pthread_barrier_init(&world->all, NULL, world->size);
	for (uint32_t r = 0; r < world->size; r++) {
		world->ranks[r] = (struct rank){.world = world, .rank = r};
		REQUIRE(!pthread_create(&world->ranks[r].thread, NULL, rank_thread, &world->ranks[r]));
	}
}

/* What a call is called in messages: enough of it to tell it from the other. */
static bool names_rank(const char *text, uint32_t rank)
{
	char name[32];

	snprintf(name, sizeof name, "rank %" PRIu32 " on ", rank);
	return strstr(text, name) != NULL;
}

static void end_world(struct world *world)
{
	const char *first = world->ranks[0].message;

	for (uint32_t r = 0; r < world->size; r++)
		pthread_join(world->ranks[r].thread, NULL);
	for (uint32_t r = 0; r < world->size; r++) {
		const struct rank *rank = &world->ranks[r];
		CHECK(rank->good, "%s, %u ranks, rank %u: a wrong success or no failure: %s", world->field->name, world->size, r, rank->message);
		CHECK(!strcmp(rank->message, first), "%s: rank 0 says '%s', rank %u '%s'", world->field->name, first, r, rank->message);
	}
	CHECK(strstr(first, "ranks disagree") && strstr(first, " calls ") && strstr(strstr(first, " calls ") + 1, " calls ") &&
		      (names_rank(first, world->deviant) || (world->second < MAX_RANKS && names_rank(first, world->second))),
	      "%s, %u ranks, transports %u, deviant %u: %s", world->field->name, world->size, world->transports, world->deviant, first);
	for (uint32_t r = 0; r < world->size; r++)
		world->bootstraps[r]->finish(world->bootstraps[r]);
	pthread_barrier_destroy(&world->all);
}

static void test_threads(bool all)
{
	static const struct {
		uint32_t size, deviant, second;
		unsigned transports;
	} shapes[] = {
		{2, 1, MAX_RANKS, COMM_TRANSPORT_SHM}, {2, 0, MAX_RANKS, COMM_TRANSPORT_TCP}, {5, 3, MAX_RANKS, COMM_TRANSPORT_SHM | COMM_TRANSPORT_TCP},
		{8, 2, 6, COMM_TRANSPORT_SHM | COMM_TRANSPORT_TCP}, /* two alike that are no neighbours */
		{3, 2, MAX_RANKS, COMM_TRANSPORT_TCP}, {4, 0, MAX_RANKS, COMM_TRANSPORT_SHM}, {7, 6, 1, COMM_TRANSPORT_TCP},
		{12, 11, 4, COMM_TRANSPORT_SHM | COMM_TRANSPORT_TCP},
	};
	static struct world worlds[AT_ONCE];
	size_t running = 0;

	for (size_t s = 0; s < (all ? sizeof shapes / sizeof *shapes : 4); s++)
		for (size_t f = 0; f < FIELDS; f++) {
			worlds[running] = (struct world){.field = &fields[f], .size = shapes[s].size, .deviant = shapes[s].deviant,
							 .second = shapes[s].second, .transports = shapes[s].transports};
			begin_world(&worlds[running++]);
			if (running < AT_ONCE && f + 1 < FIELDS)
				continue;
			while (running)
				end_world(&worlds[--running]);
		}
}

/* ---- ranks as processes -------------------------------------------------------------------------------------------- */

static int rank_main(const char *name, uint32_t deviant)
{
	struct comm_options options;
	struct comm *comm;
	char message[1024];

	options_for(&options, COMM_TRANSPORT_SHM | COMM_TRANSPORT_TCP);
	if (comm_create(&options, &comm) != ST_OK) {
		printf("start-up: %s\n", st_message());
		return 2;
	}
	for (size_t f = 0; f < FIELDS; f++)
		if (!strcmp(fields[f].name, name)) {
			bool good = call_all(comm, &fields[f], comm_rank(comm) == deviant, message, sizeof message);
			printf("%s: %s\n", good ? "verdict" : "WRONG", message);
		}
	comm_free(comm); /* at once: what others are told must not depend on it */
	return 1;
}

static void test_processes(const char *self)
{
	static char output[65536];

	for (size_t f = 0; f < FIELDS; f += 3) {
		char number[16], *first = NULL;
		const uint32_t deviant = (uint32_t)(f + 1) % 6;
		size_t have = 0;
		unsigned lines = 0;
		int ends[2];
		snprintf(number, sizeof number, "%u", deviant);
		char *argv[] = {"run", "-n", "6", "--nodes", "3", "--grace", "20", "--timeout", "100", (char *)self, "rank", (char *)fields[f].name, number, NULL};
		REQUIRE(pipe(ends) == 0);
		fflush(NULL);
		pid_t child = fork();
		if (child == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			dup2(ends[1], 1);
			dup2(ends[1], 2);
			close(ends[0]);
			close(ends[1]);
			int code = cmd_run((int)(sizeof argv / sizeof *argv) - 1, argv);
			fflush(NULL);
			_exit(code);
		}
		close(ends[1]);
		for (ssize_t n; (n = read(ends[0], output + have, sizeof output - 1 - have)) > 0 || (n < 0 && errno == EINTR);)
			have += n > 0 ? (size_t)n : 0;
		output[have] = 0;
		close(ends[0]);
		CHECK(waitpid(child, NULL, 0) == child);
		for (char *line = strtok(output, "\n"); line; line = strtok(NULL, "\n")) {
			char *text = strstr(line, "verdict: ");
			if (!text)
				continue;
			lines++;
			if (!first)
				first = text;
			CHECK(!strcmp(text, first), "%s: '%s' and '%s'", fields[f].name, first, text);
		}
		CHECK(lines == 6 && strstr(first, "ranks disagree") && names_rank(first, deviant), "%s of rank %u: %u verdicts: %s", fields[f].name, deviant, lines,
		      first ? first : "");
	}
}

int main(int argc, char **argv)
{
	static char self[4096];

	if (argc == 4 && !strcmp(argv[1], "rank")) {
		setvbuf(stdout, NULL, _IOLBF, 0);
		return rank_main(argv[2], (uint32_t)atoi(argv[3]));
	}
	CHECK(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
	unsetenv("RANK");
	int64_t start = st_now_ns();
	test_threads(getenv("LONG") && *getenv("LONG"));
	printf("threads    %.2f s\n", (double)(st_now_ns() - start) / 1e9);
	start = st_now_ns();
	test_processes(self);
	printf("processes  %.2f s\n", (double)(st_now_ns() - start) / 1e9);
	return check_result();
}
