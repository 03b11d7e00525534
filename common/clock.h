/* Clocks, and deadlines that count running time. */
#ifndef SYNCTRAIN_COMMON_CLOCK_H
#define SYNCTRAIN_COMMON_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

#define ST_NS_PER_MS 1000000LL
#define ST_NS_PER_S 1000000000LL

/* CLOCK_MONOTONIC, nanoseconds. */
int64_t st_now_ns(void);

/* CLOCK_REALTIME, nanoseconds since 1970: for time stamps shown to people, never for durations. */
int64_t st_wall_ns(void);

/* CPU time of the calling thread and of the whole process, nanoseconds. */
int64_t st_thread_cpu_ns(void);
int64_t st_process_cpu_ns(void);

/*
 * A deadline in running time.  A process that was stopped (scontrol suspend, a debugger, a laptop's lid) must not wake to
 * find that every peer has failed, so each look charges at most 2 s, whatever the clock says: whoever waits must look
 * at least once a second, see st_deadline_poll_ms.
 */
struct st_deadline {
	int64_t left_ns; /* negative: expired; INT64_MAX: never expires */
	int64_t last_ns;
};

/* timeout_ms < 0: never expires. */
struct st_deadline st_deadline_in_ms(int64_t timeout_ms);

/* Charges the time since the last look and says whether the deadline has passed. */
bool st_deadline_expired(struct st_deadline *deadline);

/* How long a poll() or futex wait may sleep before the next look: milliseconds, 0..1000. */
int st_deadline_poll_ms(struct st_deadline *deadline);

#endif
