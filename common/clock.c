#include "clock.h"

#include <time.h>

#define LARGEST_CHARGE_NS (2 * ST_NS_PER_S)

static int64_t read_clock(clockid_t id)
{
	struct timespec t;

	clock_gettime(id, &t);
	return (int64_t)t.tv_sec * ST_NS_PER_S + t.tv_nsec;
}

int64_t st_now_ns(void)
{
	return read_clock(CLOCK_MONOTONIC);
}

int64_t st_wall_ns(void)
{
	return read_clock(CLOCK_REALTIME);
}

int64_t st_thread_cpu_ns(void)
{
	return read_clock(CLOCK_THREAD_CPUTIME_ID);
}

int64_t st_process_cpu_ns(void)
{
	return read_clock(CLOCK_PROCESS_CPUTIME_ID);
}

struct st_deadline st_deadline_in_ms(int64_t timeout_ms)
{
	struct st_deadline d = {.left_ns = INT64_MAX, .last_ns = st_now_ns()};

	if (timeout_ms >= 0 && timeout_ms < INT64_MAX / ST_NS_PER_MS)
		d.left_ns = timeout_ms * ST_NS_PER_MS;
	return d;
}

bool st_deadline_expired(struct st_deadline *d)
{
	int64_t now = st_now_ns(), passed = now - d->last_ns;

	d->last_ns = now;
	if (d->left_ns == INT64_MAX)
		return false;
	d->left_ns -= passed < LARGEST_CHARGE_NS ? passed : LARGEST_CHARGE_NS;
	return d->left_ns <= 0;
}

int st_deadline_poll_ms(struct st_deadline *d)
{
	if (st_deadline_expired(d))
		return 0;
	if (d->left_ns >= ST_NS_PER_S)
		return 1000;
	return (int)((d->left_ns + ST_NS_PER_MS - 1) / ST_NS_PER_MS);
}
