#include "meter.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"

void train_meter_open(struct train_meter *meter, uint32_t rank)
{
	*meter = (struct train_meter){.schedstat = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)};
	meter->record.rank = rank;
}

void train_meter_close(struct train_meter *meter)
{
	if (meter->schedstat >= 0)
		close(meter->schedstat);
	meter->schedstat = -1;
}

/* The second number of schedstat: time runnable without running. */
static int64_t runqueue_ns(const struct train_meter *meter)
{
	char text[128];
	ssize_t length = meter->schedstat >= 0 ? pread(meter->schedstat, text, sizeof text - 1, 0) : -1;

	if (length <= 0)
		return 0;
	text[length] = 0;
	const char *space = strchr(text, ' ');
	return space ? strtoll(space + 1, NULL, 10) : 0;
}

void train_meter_begin(struct train_meter *meter, uint64_t step, uint32_t epoch)
{
	meter->record = (struct train_record){.step = step, .rank = meter->record.rank, .epoch = epoch, .start_wall_ns = st_wall_ns()};
	meter->cpu_began_ns = st_process_cpu_ns();
	meter->runqueue_began_ns = runqueue_ns(meter);
	meter->phase = TRAIN_PHASE_OTHER;
	meter->began_ns = meter->phase_began_ns = st_now_ns();
}

void train_meter_phase(struct train_meter *meter, enum train_phase phase)
{
	int64_t now = st_now_ns();

	meter->record.phase_ns[meter->phase] += now - meter->phase_began_ns;
	meter->phase_began_ns = now;
	meter->phase = phase;
}

void train_meter_move(struct train_meter *meter, enum train_phase from, enum train_phase to, int64_t ns)
{
	int64_t there = meter->record.phase_ns[from];

	if (ns > there)
		ns = there;
	if (ns <= 0)
		return;
	meter->record.phase_ns[from] -= ns;
	meter->record.phase_ns[to] += ns;
}

int64_t train_meter_elapsed_ns(const struct train_meter *meter)
{
	return st_now_ns() - meter->began_ns;
}

void train_meter_end(struct train_meter *meter)
{
	train_meter_phase(meter, TRAIN_PHASE_OTHER);
	meter->record.step_ns = meter->phase_began_ns - meter->began_ns;
	meter->record.cpu_ns = st_process_cpu_ns() - meter->cpu_began_ns;
	meter->record.runqueue_ns = runqueue_ns(meter) - meter->runqueue_began_ns;
}
