/* The public interface: options, joining ranks, and collectives as plans. */
#include "comm.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bootstrap.h"
#include "comm_links.h"
#include "common/clock.h"
#include "control.h"
#include "engine.h"
#include "plan_choose.h"
#include "transport.h"

#define PLAN_CACHE 64
/* From here on results are written past the caches, which they would flush, except where they lie in the input's own cache lines. */
#define STREAM_BYTES ((size_t)8 << 20)

struct cached_plan {
	struct engine_plan *bound;
	enum plan_collective collective;
	uint64_t elements, chunk_elements;
	uint32_t root;
	bool in_place, wide;
	uint64_t last_use;
};

struct memory {
	struct memory *next;
	void *address;
	size_t bytes;
	int fd; /* kept: local peers can be given it */
};

struct comm {
	struct control *control;
	struct engine *engine;
	const struct topo_world *world;
	struct comm_options options;
	uint32_t rank, size;
	size_t chunk_bytes;
	unsigned slots;
	unsigned algorithms;         /* mask of 1 << enum plan_algorithm: those to choose from */
	struct plan_layout layout;
	uint32_t *position;          /* (size) rank -> ring position */
	uint32_t *node_starts;       /* (nodes + 1) ring position -> where each node's ranks begin */
	struct cached_plan plans[PLAN_CACHE];
	uint64_t uses;
	struct memory *memory;
};

/* What each algorithm's name allows. */
static const struct {
	const char *name;
	unsigned algorithms;
} choices[COMM_ALGORITHMS] = {
	[COMM_ALGORITHM_AUTO] = {"auto", ((1 << PLAN_ALGORITHMS) - 1) & ~(1 << PLAN_TORUS)},
	[COMM_ALGORITHM_RING] = {"ring", 1 << PLAN_RING},
	[COMM_ALGORITHM_HALVING] = {"halving", 1 << PLAN_HALVING | 1 << PLAN_DOUBLING | 1 << PLAN_BRUCK},
	[COMM_ALGORITHM_TREE] = {"tree", 1 << PLAN_TREE | 1 << PLAN_BRUCK},
	[COMM_ALGORITHM_HIERARCHICAL] = {"hierarchical", 1 << PLAN_HIERARCHICAL},
	[COMM_ALGORITHM_TORUS] = {"torus", 1 << PLAN_TORUS},
};

/* A decimal number from the environment into *value when the variable is set and not empty. */
static enum st_status number_from_environment(const char *name, int64_t minimum, int64_t maximum, int64_t *value)
{
	const char *text = getenv(name);
	if (!text || !*text)
		return ST_OK;
	char *end;
	errno = 0;
	long long number = strtoll(text, &end, 10);
	if (errno || *end || end == text || number < minimum || number > maximum)
		return st_fail(ST_ERR_CONFIG, "%s: '%.64s', expected a number from %" PRId64 " to %" PRId64, name, text, minimum, maximum);
	*value = number;
	return ST_OK;
}

static enum st_status transports_from_environment(unsigned *transports)
{
	const char *text = getenv("SYNCTRAIN_TRANSPORT");
	if (!text || !*text || !strcmp(text, "auto"))
		return ST_OK;
	unsigned mask = 0;
	for (const char *at = text;;) {
		size_t length = strcspn(at, "+");
		if (length == 3 && !strncmp(at, "shm", 3))
			mask |= COMM_TRANSPORT_SHM;
		else if (length == 3 && !strncmp(at, "tcp", 3))
			mask |= COMM_TRANSPORT_TCP;
		else
			return st_fail(ST_ERR_CONFIG, "SYNCTRAIN_TRANSPORT: '%.64s', expected auto, or shm, tcp joined by '+'", text);
		if (!at[length])
			break;
		at += length + 1;
	}
	*transports = mask;
	return ST_OK;
}

static enum st_status algorithm_from_environment(enum comm_algorithm *algorithm)
{
	const char *text = getenv("SYNCTRAIN_ALGORITHM");
	if (!text || !*text)
		return ST_OK;
	char have[128] = "";
	for (int a = 0; a < COMM_ALGORITHMS; a++) {
		if (!strcmp(text, choices[a].name)) {
			*algorithm = (enum comm_algorithm)a;
			return ST_OK;
		}
		snprintf(have + strlen(have), sizeof have - strlen(have), "%s%s", a ? ", " : "", choices[a].name);
	}
	return st_fail(ST_ERR_CONFIG, "SYNCTRAIN_ALGORITHM: '%.64s' is not in this version (have %s)", text, have);
}

enum st_status comm_options_init(struct comm_options *options)
{
	struct comm_options made = {
		.algorithm = COMM_ALGORITHM_AUTO,
		.transports = COMM_TRANSPORT_SHM | COMM_TRANSPORT_TCP,
		.startup_timeout_ms = 60000,
		.stall_timeout_ms = 5000,
		.arrival_timeout_ms = 1800000,
		.chunk_bytes = 128 * 1024,
		.slots = 4,
	};
	ST_TRY(algorithm_from_environment(&made.algorithm));
	ST_TRY(transports_from_environment(&made.transports));
	int64_t chunk_bytes = (int64_t)made.chunk_bytes;
	ST_TRY(number_from_environment("SYNCTRAIN_TIMEOUT_MS", 100, 86400000, &made.stall_timeout_ms));
	ST_TRY(number_from_environment("SYNCTRAIN_ARRIVAL_TIMEOUT_MS", 100, 7 * INT64_C(86400000), &made.arrival_timeout_ms));
	ST_TRY(number_from_environment("SYNCTRAIN_CHUNK_BYTES", 256, 1 << 28, &chunk_bytes));
	made.chunk_bytes = (size_t)chunk_bytes;
	const char *accumulate = getenv("SYNCTRAIN_ACCUMULATE");
	if (accumulate && !strcmp(accumulate, "wire"))
		made.accumulate = COMM_ACCUMULATE_WIRE;
	else if (accumulate && *accumulate && strcmp(accumulate, "f32"))
		return st_fail(ST_ERR_CONFIG, "SYNCTRAIN_ACCUMULATE: '%.64s', expected f32 or wire", accumulate);
	const char *interface = getenv("SYNCTRAIN_INTERFACE");
	if (interface && *interface)
		made.interface = interface;
	*options = made;
	return ST_OK;
}

static enum st_status check_options(const struct comm_options *options)
{
	if ((int)options->algorithm < COMM_ALGORITHM_AUTO || options->algorithm >= COMM_ALGORITHMS)
		return st_fail(ST_ERR_USAGE, "communicator: no algorithm %d", (int)options->algorithm);
	if (!(options->transports & (COMM_TRANSPORT_SHM | COMM_TRANSPORT_TCP)) ||
	    options->transports & ~(unsigned)(COMM_TRANSPORT_SHM | COMM_TRANSPORT_TCP))
		return st_fail(ST_ERR_USAGE, "communicator: no transports in mask 0x%x", options->transports);
	if ((unsigned)options->accumulate > COMM_ACCUMULATE_WIRE)
		return st_fail(ST_ERR_USAGE, "communicator: no way %d to accumulate", (int)options->accumulate);
	if (options->startup_timeout_ms <= 0 || options->stall_timeout_ms <= 0 || options->arrival_timeout_ms <= 0)
		return st_fail(ST_ERR_USAGE, "communicator: a timeout that is not positive");
	if (options->chunk_bytes < 64 || options->chunk_bytes > (size_t)1 << 30 || options->slots < 2 || options->slots > 1024)
		return st_fail(ST_ERR_USAGE, "communicator: %u slots of %zu bytes, expected 2 to 1024 of 64 bytes to 1 GiB", options->slots,
			       options->chunk_bytes);
	return ST_OK;
}

static struct plan_shape shape_of_ranks(const struct comm *comm)
{
	return (struct plan_shape){.rank = comm->rank, .size = comm->size, .slots = comm->slots, .order = comm->world->ring, .position = comm->position,
				   .node_starts = comm->node_starts, .node_count = comm->world->node_count};
}

/* What plans want to know of the world, found once. */
static enum st_status find_places(struct comm *comm)
{
	const struct topo_world *world = comm->world;
	struct plan_layout *layout = &comm->layout;
	*layout = (struct plan_layout){.size = comm->size, .nodes = world->node_count, .least_per_node = comm->size};
	comm->position = malloc(comm->size * sizeof *comm->position);
	comm->node_starts = malloc((world->node_count + 1) * sizeof *comm->node_starts);
	if (!comm->position || !comm->node_starts)
		return st_fail(ST_ERR_NOMEM, "communicator: out of memory");
	/* The ranks of a node are adjacent in the ring. */
	for (uint32_t i = 0, node = 0; i < comm->size; i++) {
		comm->position[world->ring[i]] = i;
		if (!i || world->node_of[world->ring[i]] != world->node_of[world->ring[i - 1]])
			comm->node_starts[node++] = i;
	}
	comm->node_starts[world->node_count] = comm->size;
	for (uint32_t n = 0; n < world->node_count; n++) {
		uint32_t count = world->nodes[n].rank_count;
		if (count > layout->per_node)
			layout->per_node = count;
		if (count < layout->least_per_node)
			layout->least_per_node = count;
	}
	return ST_OK;
}

/* The algorithms to choose from, as rank 0 says, and the links for them. */
static enum st_status open_links(struct comm *comm)
{
	uint32_t algorithm = comm->options.algorithm;
	if (comm->size > 1)
		ST_TRY(control_broadcast(comm->control, &algorithm, sizeof algorithm, comm->options.startup_timeout_ms));
	if (algorithm >= COMM_ALGORITHMS)
		return st_fail(ST_ERR_MISMATCH, "communicator: rank 0 chose algorithm %" PRIu32 ", unknown here", algorithm);
	comm->algorithms = choices[algorithm].algorithms;
	ST_TRY(find_places(comm));
	const struct comm_links_options links = {
		.control = comm->control,
		.engine = comm->engine,
		.algorithms = comm->algorithms | 1 << PLAN_RING,
		.transports = comm->options.transports,
		.shape = shape_of_ranks(comm),
		.slots = comm->slots,
		.chunk_bytes = comm->chunk_bytes,
		.timeout_ms = comm->options.startup_timeout_ms,
	};
	return comm_links_open(&links);
}

/* More ranks here than cores this process may use: whoever waits must give way at once. */
static bool crowded(const struct comm *comm)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	if (sched_getaffinity(0, sizeof set, &set))
		return false;
	long online = sysconf(_SC_NPROCESSORS_ONLN);
	int allowed = CPU_COUNT(&set);
	/* A rank bound to its own cores is not crowded by ranks bound to others. */
	if (allowed < online)
		return false;
	return comm_local_size(comm) > (unsigned)allowed;
}

static enum st_status create(struct bootstrap *bootstrap, bool finish, const struct comm_options *given, struct comm **out)
{
	struct comm_options options;
	struct comm *comm = NULL;
	enum st_status status = given ? ST_OK : comm_options_init(&options);
	if (given)
		options = *given;
	if (status == ST_OK)
		status = check_options(&options);
	if (status == ST_OK && !(comm = calloc(1, sizeof *comm)))
		status = st_fail(ST_ERR_NOMEM, "communicator: out of memory");
	if (status == ST_OK) {
		comm->options = options;
		struct control_options control = {
			.startup_timeout_ms = options.startup_timeout_ms,
			.heartbeat_ms = options.stall_timeout_ms < 5000 ? (options.stall_timeout_ms + 9) / 10 : 500,
			.stall_timeout_ms = options.stall_timeout_ms,
			.interface = options.interface,
			.chunk_bytes_hint = (uint32_t)options.chunk_bytes,
			.slots_hint = options.slots,
			.accumulate_hint = (uint8_t)options.accumulate,
		};
		status = control_open(bootstrap, &control, &comm->control);
	}
	if (status == ST_OK) {
		uint32_t chunk_bytes, slots;
		uint8_t accumulate;
		control_hints(comm->control, &chunk_bytes, &slots, &accumulate);
		comm->world = control_world(comm->control);
		comm->rank = comm->world->rank;
		comm->size = comm->world->size;
		comm->chunk_bytes = chunk_bytes;
		comm->slots = slots;
		comm->options.accumulate = (enum comm_accumulate)accumulate;
		options.chunk_bytes = chunk_bytes;
		options.slots = slots;
		options.accumulate = (enum comm_accumulate)accumulate;
		status = check_options(&options);
	}
	if (status == ST_OK) {
		struct engine_options engine = {
			.rank = comm->rank,
			.host = comm_host(comm, comm->rank),
			.control = comm->control,
			.arrival_timeout_ms = options.arrival_timeout_ms,
			.crowded = crowded(comm),
			.stream_bytes = STREAM_BYTES,
		};
		status = engine_create(&engine, &comm->engine);
	}
	if (status == ST_OK)
		status = open_links(comm);
	if (status != ST_OK && comm && comm->control && comm->engine) {
		/* The others wait for this rank: tell them why it does not come. */
		char why[512];
		snprintf(why, sizeof why, "%s", st_message());
		if (control_check(comm->control) == ST_OK)
			control_abort(comm->control, control_world(comm->control)->rank, CONTROL_HOW_APPLICATION, "start-up", why);
		st_fail_copy(status, why);
	}
	if (finish)
		bootstrap->finish(bootstrap);
	if (status != ST_OK) {
		char why[1024];
		snprintf(why, sizeof why, "%s", st_message());
		comm_free(comm);
		return st_fail_copy(status, why);
	}
	*out = comm;
	return ST_OK;
}

enum st_status comm_create_over(struct bootstrap *bootstrap, const struct comm_options *options, struct comm **comm)
{
	return create(bootstrap, false, options, comm);
}

enum st_status comm_create(const struct comm_options *options, struct comm **comm)
{
	struct comm_options defaults;
	if (!options) {
		ST_TRY(comm_options_init(&defaults));
		options = &defaults;
	}
	struct bootstrap *bootstrap;
	ST_TRY(bootstrap_pmix_or_single(options->startup_timeout_ms, &bootstrap));
	return create(bootstrap, true, options, comm);
}

void comm_free(struct comm *comm)
{
	if (!comm)
		return;
	/* The goodbye on the control plane goes first, so that peers take the end of the links for what it is; the engine's links name
	 * hosts that control owns, but closing them says nothing. */
	control_close(comm->control);
	engine_free(comm->engine);
	for (size_t i = 0; i < PLAN_CACHE; i++)
		engine_unbind(comm->plans[i].bound);
	while (comm->memory)
		comm_memory_free(comm, comm->memory->address);
	free(comm->position);
	free(comm->node_starts);
	free(comm);
}

uint32_t comm_rank(const struct comm *comm)
{
	return comm->rank;
}

uint32_t comm_size(const struct comm *comm)
{
	return comm->size;
}

uint32_t comm_local_rank(const struct comm *comm)
{
	return comm->world->local_rank_of[comm->rank];
}

uint32_t comm_local_size(const struct comm *comm)
{
	return comm->world->nodes[comm->world->node_of[comm->rank]].rank_count;
}

const char *comm_host(const struct comm *comm, uint32_t rank)
{
	return rank < comm->world->size ? comm->world->nodes[comm->world->node_of[rank]].name : "";
}

const char *comm_job(const struct comm *comm)
{
	return control_job(comm->control);
}

enum st_status comm_memory_alloc(struct comm *comm, size_t bytes, void **memory)
{
	struct memory *made = calloc(1, sizeof *made);
	long page = sysconf(_SC_PAGESIZE);
	if (!made)
		return st_fail(ST_ERR_NOMEM, "memory of a communicator: out of memory");
	if (bytes > SIZE_MAX / 2) {
		free(made);
		return st_fail(ST_ERR_NOMEM, "memory of a communicator: %zu bytes", bytes);
	}
	made->bytes = bytes ? (bytes + (size_t)page - 1) / (size_t)page * (size_t)page : (size_t)page;
	made->fd = memfd_create("synctrain-buffer", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (made->fd < 0) {
		free(made);
		return st_fail_errno("memory of a communicator: memfd_create");
	}
	/* Allocated now: when memory runs out later there is no error to return. */
	int error = ftruncate(made->fd, (off_t)made->bytes) ? errno : 0;
	while (!error && fallocate(made->fd, 0, 0, (off_t)made->bytes))
		if (errno != EINTR)
			error = errno;
	if (!error && fcntl(made->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW))
		error = errno;
	made->address = error ? MAP_FAILED : mmap(NULL, made->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, made->fd, 0);
	if (made->address == MAP_FAILED) {
		if (!error)
			error = errno;
		close(made->fd);
		free(made);
		errno = error;
		return st_fail_errno("memory of a communicator: %zu bytes", bytes);
	}
	made->next = comm->memory;
	comm->memory = made;
	*memory = made->address;
	return ST_OK;
}

void comm_memory_free(struct comm *comm, void *memory)
{
	for (struct memory **at = &comm->memory; *at; at = &(*at)->next) {
		struct memory *found = *at;
		if (found->address != memory)
			continue;
		*at = found->next;
		munmap(found->address, found->bytes);
		close(found->fd);
		free(found);
		return;
	}
}

/* The plan for this shape: a bound one from the cache, or a new one in the place of the one unused for longest. owned: it is not in the cache. */
static enum st_status find_plan(struct comm *comm, const struct plan_shape *shape, struct engine_plan **bound, bool *owned)
{
	struct cached_plan *oldest = NULL;
	*owned = false;
	comm->uses++;
	for (size_t i = 0; i < PLAN_CACHE; i++) {
		struct cached_plan *cached = &comm->plans[i];
		if (cached->bound && cached->elements == shape->elements && cached->collective == shape->collective &&
		    cached->chunk_elements == shape->chunk_elements && cached->in_place == shape->in_place && cached->root == shape->root &&
		    cached->wide == shape->wide) {
			cached->last_use = comm->uses;
			*bound = cached->bound;
			return ST_OK;
		}
		if (cached->bound && engine_plan_users(cached->bound))
			continue;
		if (!oldest || cached->last_use < oldest->last_use)
			oldest = cached;
	}
	struct plan *plan;
	/* Only the ring keeps partial sums out of the caller's buffers, where wide ones have no room. */
	unsigned algorithms = shape->wide ? 1 << PLAN_RING : comm->algorithms;
	enum plan_algorithm algorithm = plan_cheapest(algorithms, shape->collective, shape->elements * (comm->chunk_bytes / shape->chunk_elements),
						      &comm->layout, &plan_machine_default);
	ST_TRY(plan_build(algorithm, shape, &plan));
	*owned = !oldest;
	if (!oldest) /* so many in flight: this one lives as long as its request */
		return engine_bind(comm->engine, plan, bound);
	engine_unbind(oldest->bound);
	oldest->bound = NULL;
	ST_TRY(engine_bind(comm->engine, plan, &oldest->bound));
	oldest->collective = shape->collective;
	oldest->elements = shape->elements;
	oldest->chunk_elements = shape->chunk_elements;
	oldest->in_place = shape->in_place;
	oldest->wide = shape->wide;
	oldest->root = shape->root;
	oldest->last_use = comm->uses;
	*bound = oldest->bound;
	return ST_OK;
}

static bool is_mapped(const void *context, uint32_t sender, uint32_t receiver)
{
	const struct comm *comm = context;
	const struct link *link = engine_link(comm->engine, sender == comm->rank ? receiver : sender, 0);
	return link && link->ops->mapped;
}

static bool overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
	uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
	return a_bytes && b_bytes && x < y + b_bytes && y < x + a_bytes;
}

static enum st_status begin(struct comm *comm, enum plan_collective collective, const void *input, void *output, size_t count, enum comm_type type,
			    enum comm_op op, uint32_t root, struct comm_request **request)
{
	const char *name = plan_collective_name(collective);
	const bool reduces = collective == PLAN_ALLREDUCE || collective == PLAN_REDUCE_SCATTER;
	const bool shards = collective == PLAN_REDUCE_SCATTER || collective == PLAN_ALL_GATHER;
	size_t element_bytes = comm_type_bytes(type);
	if (!element_bytes)
		return st_fail(ST_ERR_USAGE, "%s: no type %d (have u8, f32, f64, f16, bf16, i32, i64)", name, (int)type);
	if ((unsigned)op >= COMM_OPS)
		return st_fail(ST_ERR_USAGE, "%s: no operation %d (have sum, avg, min, max)", name, (int)op);
	if (root >= comm->size)
		return st_fail(ST_ERR_USAGE, "%s: root %" PRIu32 " of %" PRIu32 " ranks", name, root, comm->size);
	size_t factor = shards ? comm->size : 1, bytes;
	if (__builtin_mul_overflow(count, factor * element_bytes, &bytes) || bytes > SIZE_MAX / 4)
		return st_fail(ST_ERR_USAGE, "%s: %zu elements are more than memory can hold", name, count);
	if (count && (!input || !output))
		return st_fail(ST_ERR_USAGE, "%s: no buffer for %zu elements", name, count);
	if (((uintptr_t)input | (uintptr_t)output) % element_bytes)
		return st_fail(ST_ERR_USAGE, "%s: a buffer that is not aligned to its elements of %zu bytes", name, element_bytes);

	size_t own = count * element_bytes;
	const char *in = input;
	char *out = output;
	size_t in_bytes = collective == PLAN_REDUCE_SCATTER ? bytes : own, out_bytes = collective == PLAN_ALL_GATHER ? bytes : own;
	bool in_place = collective == PLAN_REDUCE_SCATTER ? out == in + comm->rank * own
			: collective == PLAN_ALL_GATHER   ? in == out + comm->rank * own
							  : in == out;
	if (!count)
		in_place = true;
	if (!in_place && overlap(in, in_bytes, out, out_bytes))
		return st_fail(ST_ERR_USAGE, "%s: input and output overlap without being in place", name);

	/* Minima and maxima are exact in any type; the sum of two ranks is never partial. */
	bool wide = reduces && comm->size > 2 && comm->options.accumulate == COMM_ACCUMULATE_F32 && (type == COMM_F16 || type == COMM_BF16) &&
		    (op == COMM_SUM || op == COMM_AVG);
	struct plan_shape shape = shape_of_ranks(comm);
	shape.collective = collective;
	shape.elements = (uint64_t)count * factor;
	shape.chunk_elements = comm->chunk_bytes / (wide ? sizeof(float) : element_bytes);
	shape.wide = wide;
	shape.in_place = in_place;
	shape.root = root;
	shape.mapped = is_mapped;
	shape.mapped_context = comm;
	struct engine_plan *bound;
	bool owned;
	ST_TRY(engine_failure(comm->engine));
	ST_TRY(find_plan(comm, &shape, &bound, &owned));
	struct transport_signature signature = {.count = count, .root = root, .collective = (uint8_t)collective, .type = (uint8_t)type,
						.op = (uint8_t)op};
	return engine_submit(comm->engine, bound, owned, in, out, signature, request);
}

enum st_status comm_allreduce(struct comm *comm, const void *input, void *output, size_t count, enum comm_type type, enum comm_op op,
			      struct comm_request **request)
{
	return begin(comm, PLAN_ALLREDUCE, input, output, count, type, op, 0, request);
}

enum st_status comm_reduce_scatter(struct comm *comm, const void *input, void *output, size_t count, enum comm_type type, enum comm_op op,
				   struct comm_request **request)
{
	return begin(comm, PLAN_REDUCE_SCATTER, input, output, count, type, op, 0, request);
}

enum st_status comm_all_gather(struct comm *comm, const void *input, void *output, size_t count, enum comm_type type,
			       struct comm_request **request)
{
	return begin(comm, PLAN_ALL_GATHER, input, output, count, type, COMM_SUM, 0, request);
}

enum st_status comm_broadcast(struct comm *comm, void *buffer, size_t count, enum comm_type type, uint32_t root, struct comm_request **request)
{
	return begin(comm, PLAN_BROADCAST, buffer, buffer, count, type, COMM_SUM, root, request);
}

enum st_status comm_barrier(struct comm *comm, struct comm_request **request)
{
	return begin(comm, PLAN_BARRIER, NULL, NULL, 0, COMM_U8, COMM_SUM, 0, request);
}

enum st_status comm_progress(struct comm *comm)
{
	enum st_status status = engine_progress(comm->engine);
	return status == ST_PENDING ? ST_OK : status;
}

enum st_status comm_test(struct comm *comm, struct comm_request **request)
{
	return engine_test(comm->engine, request);
}

enum st_status comm_wait(struct comm *comm, struct comm_request **request)
{
	return engine_wait(comm->engine, request);
}

void comm_abort(struct comm *comm, const char *text)
{
	control_abort(comm->control, comm->rank, CONTROL_HOW_APPLICATION, "", text);
}

enum st_status comm_decide(struct comm *comm, void *data, size_t bytes)
{
	ST_TRY(engine_failure(comm->engine));
	return control_broadcast(comm->control, data, bytes, comm->options.arrival_timeout_ms);
}

enum st_status comm_collect(struct comm *comm, const void *mine, size_t bytes, void *all)
{
	ST_TRY(engine_failure(comm->engine));
	return control_all_gather(comm->control, mine, bytes, all, comm->options.arrival_timeout_ms);
}

void comm_counters_read(const struct comm *comm, struct comm_counters *counters)
{
	engine_counters(comm->engine, counters);
}
