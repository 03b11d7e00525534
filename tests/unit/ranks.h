/* Ranks as threads, each with a communicator: for tests of libcomm. */
#ifndef SYNCTRAIN_TESTS_RANKS_H
#define SYNCTRAIN_TESTS_RANKS_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "libcomm/bootstrap.h"
#include "libcomm/comm.h"

enum { RANKS_MOST = 9 };

struct ranks {
	uint32_t size;
	struct comm_options options;      /* of all; comm_options_init's when slots is 0 */
	const struct comm_options *others; /* of ranks 1 and up, in place of these; NULL: the same */
	const bool *threads;              /* (size) which ranks have a progress thread; NULL: as options say */
	void (*body)(struct ranks *ranks, uint32_t rank, struct comm *comm);
	pthread_barrier_t all;            /* outside the library */
	struct bootstrap *bootstraps[RANKS_MOST];
	char texts[RANKS_MOST][1024];     /* what each was told: see ranks_keep */
};

struct ranks_one {
	struct ranks *ranks;
	uint32_t rank;
};

static void *ranks_main(void *argument)
{
	struct ranks_one *one = argument;
	struct ranks *ranks = one->ranks;
	struct comm_options options = ranks->others && one->rank ? *ranks->others : ranks->options;
	struct comm *comm = NULL;
	if (ranks->threads)
		options.progress_thread = ranks->threads[one->rank];
	REQUIRE(comm_create_over(ranks->bootstraps[one->rank], &options, &comm) == ST_OK);
	ranks->body(ranks, one->rank, comm);
	comm_free(comm);
	return NULL;
}

static inline void ranks_options(struct ranks *ranks)
{
	if (!ranks->options.slots)
		REQUIRE(comm_options_init(&ranks->options) == ST_OK);
}

/* Runs `body` on each of `size` ranks of one node and frees their communicators. */
static inline void ranks_run(struct ranks *ranks, uint32_t size, unsigned transports, void (*body)(struct ranks *, uint32_t, struct comm *))
{
	static const char *const nodes[RANKS_MOST] = {"n0", "n0", "n0", "n0", "n0", "n0", "n0", "n0", "n0"};
	pthread_t threads[RANKS_MOST];
	struct ranks_one ones[RANKS_MOST];
	ranks_options(ranks);
	ranks->options.transports = transports;
	ranks->size = size;
	ranks->body = body;
	REQUIRE(bootstrap_threads(size, nodes, ranks->bootstraps) == ST_OK);
	REQUIRE(!pthread_barrier_init(&ranks->all, NULL, size));
	for (uint32_t r = 0; r < size; r++) {
		ones[r] = (struct ranks_one){ranks, r};
		REQUIRE(!pthread_create(&threads[r], NULL, ranks_main, &ones[r]));
	}
	for (uint32_t r = 0; r < size; r++)
		REQUIRE(!pthread_join(threads[r], NULL));
	for (uint32_t r = 0; r < size; r++)
		ranks->bootstraps[r]->finish(ranks->bootstraps[r]);
	pthread_barrier_destroy(&ranks->all);
}

static inline void ranks_wait(struct comm *comm, struct comm_request **request)
{
	REQUIRE(comm_wait(comm, request) == ST_OK && !*request);
}

/* Keeps what a rank was told, for ranks_all_say. */
static inline void ranks_keep(struct ranks *ranks, uint32_t rank, enum st_status status)
{
	snprintf(ranks->texts[rank], sizeof ranks->texts[rank], "%s: %s", st_status_name(status), st_message());
}

static inline void ranks_all_say(const struct ranks *ranks, const char *what)
{
	for (uint32_t r = 0; r < ranks->size; r++)
		CHECK(!*ranks->texts[r] || strstr(ranks->texts[r], what), "rank %u says '%s', expected '%s' in it", r, ranks->texts[r], what);
}

#endif
