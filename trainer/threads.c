#include "trainer/threads.h"

#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "trainer/model.h"

/* Looks before sleeping: about 10 us, the gap between two loops of a step; longer would take cores from other ranks. */
#define SPIN 400
#define CLOSED UINT32_MAX

/*
 * The ticket holds the loop's number (upper half) and the next index to do (lower half); a thread takes an index by compare-and-swap.
 * A helper that was late can't take an index of a loop whose fields it has not seen: the ticket is closed before the fields
 * change, and a swap that started from an older ticket fails.
 */
struct pool {
	unsigned helpers;
	unsigned wanted; /* train_threads() that this pool was made for: it may have fewer */
	pthread_t *threads;
	_Atomic uint64_t ticket;
	_Atomic(train_task *) task;
	_Atomic(void *) context;
	_Atomic uint32_t count;
	_Atomic uint32_t limit;
	_Atomic uint32_t done;
	pthread_mutex_t mutex;
	pthread_cond_t opened, finished;
	bool stop;
};

struct helper {
	struct pool *pool;
	unsigned number;
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static bool have_key;
static _Atomic int chosen_threads; /* 0: not yet */
static _Thread_local int inside = -1; /* the thread number of the task that runs here */

static void relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#endif
}

static int default_threads(void)
{
	const char *text = getenv("OMP_NUM_THREADS");
	if (text && *text) {
		char *end;
		long value = strtol(text, &end, 10); /* a list "4,2" is for nested loops: the first counts */
		if (end != text && (*end == '\0' || *end == ',') && value >= 1)
			return value < (long)TRAIN_THREADS_MAX ? (int)value : (int)TRAIN_THREADS_MAX;
	}
	cpu_set_t cpus;
	if (sched_getaffinity(0, sizeof(cpus), &cpus) == 0 && CPU_COUNT(&cpus) > 0)
		return CPU_COUNT(&cpus) < (int)TRAIN_THREADS_MAX ? CPU_COUNT(&cpus) : (int)TRAIN_THREADS_MAX;
	return 1;
}

void train_set_threads(int threads)
{
	if (threads < 1)
		threads = 1;
	if (threads > (int)TRAIN_THREADS_MAX)
		threads = (int)TRAIN_THREADS_MAX;
	atomic_store_explicit(&chosen_threads, threads, memory_order_relaxed);
}

int train_threads(void)
{
	int threads = atomic_load_explicit(&chosen_threads, memory_order_relaxed);
	if (!threads) {
		threads = default_threads();
		train_set_threads(threads);
	}
	return threads;
}

/* Does indices of the current loop until none is left. */
static void work(struct pool *pool, unsigned number)
{
	/* Acquire pairs with the release that opened the loop, so that its fields are seen. */
	uint64_t ticket = atomic_load_explicit(&pool->ticket, memory_order_acquire);
	for (;;) {
		/* Acquire pairs with the release stores after the ticket was closed: whoever sees a new field sees the closed ticket in the swap. */
		uint32_t count = atomic_load_explicit(&pool->count, memory_order_acquire);
		uint32_t limit = atomic_load_explicit(&pool->limit, memory_order_acquire);
		train_task *task = atomic_load_explicit(&pool->task, memory_order_acquire);
		void *context = atomic_load_explicit(&pool->context, memory_order_acquire);
		uint32_t index = (uint32_t)ticket;
		if (index >= count || number >= limit)
			return;
		if (!atomic_compare_exchange_weak_explicit(&pool->ticket, &ticket, ticket + 1, memory_order_acquire,
							   memory_order_acquire))
			continue;
		inside = (int)number;
		task(context, index, number);
		inside = -1;
		/* Release: what the task wrote is seen by the caller, which acquires `done`. */
		if (atomic_fetch_add_explicit(&pool->done, 1, memory_order_acq_rel) + 1 == count && number != 0) {
			pthread_mutex_lock(&pool->mutex);
			pthread_cond_signal(&pool->finished);
			pthread_mutex_unlock(&pool->mutex);
		}
		ticket = atomic_load_explicit(&pool->ticket, memory_order_acquire);
	}
}

static void *helper_main(void *argument)
{
	struct helper *helper = argument;
	struct pool *pool = helper->pool;
	unsigned number = helper->number;
	free(helper);
	uint32_t seen = 0;
	for (;;) {
		uint32_t loop = seen;
		for (int i = 0; i < SPIN && loop == seen; i++) {
			relax();
			loop = (uint32_t)(atomic_load_explicit(&pool->ticket, memory_order_relaxed) >> 32);
		}
		if (loop == seen) {
			pthread_mutex_lock(&pool->mutex);
			while (!pool->stop &&
			       (loop = (uint32_t)(atomic_load_explicit(&pool->ticket, memory_order_relaxed) >> 32)) == seen)
				pthread_cond_wait(&pool->opened, &pool->mutex);
			bool stop = pool->stop;
			pthread_mutex_unlock(&pool->mutex);
			if (stop)
				return NULL;
		}
		seen = loop;
		work(pool, number);
	}
}

static void pool_free(void *argument)
{
	struct pool *pool = argument;
	if (!pool)
		return;
	pthread_mutex_lock(&pool->mutex);
	pool->stop = true;
	pthread_cond_broadcast(&pool->opened);
	pthread_mutex_unlock(&pool->mutex);
	for (unsigned i = 0; i < pool->helpers; i++)
		pthread_join(pool->threads[i], NULL);
	pthread_cond_destroy(&pool->opened);
	pthread_cond_destroy(&pool->finished);
	pthread_mutex_destroy(&pool->mutex);
	free(pool->threads);
	free(pool);
}

static struct pool *pool_create(unsigned threads)
{
	struct pool *pool = calloc(1, sizeof(*pool));
	if (!pool)
		return NULL;
	pool->wanted = threads;
	pthread_mutex_init(&pool->mutex, NULL);
	pthread_cond_init(&pool->opened, NULL);
	pthread_cond_init(&pool->finished, NULL);
	atomic_init(&pool->ticket, CLOSED);
	pool->threads = calloc(threads - 1, sizeof(*pool->threads));
	/* Signals are for the threads that wait for them, never for a helper. */
	sigset_t all, old;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	while (pool->threads && pool->helpers < threads - 1) {
		struct helper *helper = malloc(sizeof(*helper));
		if (!helper)
			break;
		*helper = (struct helper){pool, pool->helpers + 1};
		if (pthread_create(&pool->threads[pool->helpers], NULL, helper_main, helper) != 0) {
			free(helper);
			break;
		}
		pool->helpers++;
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return pool;
}

static void make_key(void)
{
	have_key = pthread_key_create(&key, pool_free) == 0;
}

/* This thread's pool, or NULL when it has to do without. */
static struct pool *pool_get(unsigned threads)
{
	pthread_once(&once, make_key);
	if (!have_key)
		return NULL;
	struct pool *pool = pthread_getspecific(key);
	if (pool && pool->wanted == threads)
		return pool;
	pool_free(pool);
	pool = pool_create(threads);
	if (pthread_setspecific(key, pool) != 0) {
		pool_free(pool);
		pthread_setspecific(key, NULL);
		return NULL;
	}
	return pool;
}

void train_parallel(unsigned limit, size_t count, train_task *task, void *context)
{
	unsigned threads = (unsigned)train_threads();
	struct pool *pool = NULL;
	if (threads > 1 && limit > 1 && count > 1 && count < CLOSED && inside < 0)
		pool = pool_get(threads);
	if (!pool || pool->helpers == 0) {
		unsigned number = inside < 0 ? 0 : (unsigned)inside;
		int outer = inside;
		inside = (int)number;
		for (size_t i = 0; i < count; i++)
			task(context, i, number);
		inside = outer;
		return;
	}
	uint64_t loop = (atomic_load_explicit(&pool->ticket, memory_order_relaxed) >> 32) + 1;
	/* The last loop's indices are all taken, but a greater count would revive its ticket. */
	atomic_store_explicit(&pool->ticket, ((loop - 1) << 32) | CLOSED, memory_order_release);
	atomic_store_explicit(&pool->task, task, memory_order_release);
	atomic_store_explicit(&pool->context, context, memory_order_release);
	atomic_store_explicit(&pool->count, (uint32_t)count, memory_order_release);
	atomic_store_explicit(&pool->limit, limit, memory_order_release);
	atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
	pthread_mutex_lock(&pool->mutex);
	/* Release: publishes the fields. Under the mutex, so that a helper that is about to sleep does not miss it. */
	atomic_store_explicit(&pool->ticket, (loop & UINT32_MAX) << 32, memory_order_release);
	if (count > 2)
		pthread_cond_broadcast(&pool->opened);
	else
		pthread_cond_signal(&pool->opened);
	pthread_mutex_unlock(&pool->mutex);

	work(pool, 0);

	for (int i = 0; i < SPIN; i++) {
		if (atomic_load_explicit(&pool->done, memory_order_acquire) == count)
			return;
		relax();
	}
	pthread_mutex_lock(&pool->mutex);
	while (atomic_load_explicit(&pool->done, memory_order_acquire) != count)
		pthread_cond_wait(&pool->finished, &pool->mutex);
	pthread_mutex_unlock(&pool->mutex);
}
