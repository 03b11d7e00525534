/*
 * A parallel loop for the trainer's kernels.
 *
 * Why not OpenMP: several ranks share a node's cores, and libgomp's idle threads spin unless an environment variable was set
 * before the process started; ThreadSanitizer does not understand its barriers; and its loops tie results to the number of
 * threads.  Here idle threads sleep, a task's result depends on its index only, and so the bits of a run do not depend on the
 * number of threads.
 *
 * Each thread that calls train_parallel has helpers of its own (ranks may be threads of one process), made at the first call and
 * ended with the thread.
 */
#ifndef SYNCTRAIN_TRAINER_THREADS_H
#define SYNCTRAIN_TRAINER_THREADS_H

#include <stddef.h>

/* Does part `index` of a loop. thread: 0..limit-1, no two tasks run with the same number at the same time: it selects scratch memory. */
typedef void train_task(void *context, size_t index, unsigned thread);

/*
 * Runs task(context, 0 .. count-1) on at most min(limit, train_threads()) threads, the caller among them, and returns when all are done.
 * Order and thread of an index are not fixed, so what a task computes must depend on its index alone.  A call from inside a task
 * runs there, one index after the other.  When helpers can't be started, fewer threads do the same work.
 */
void train_parallel(unsigned limit, size_t count, train_task *task, void *context);

/* The greatest number of threads: limit for loops without scratch memory. */
#define TRAIN_THREADS_MAX 1024u

#endif
