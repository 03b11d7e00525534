/* Which numbered frames about communicators are news: each once, also when one overtakes another by another way. */
#include <stdint.h>

#include "check.h"
#include "libcomm/control_internal.h"

static struct control_heard heard[3];
static struct control control = {.rank = 1, .size = 3, .heard = heard};

static bool news(uint32_t origin, uint64_t number)
{
	return control_group_news(&control, origin, number);
}

static void in_order(void)
{
	for (uint64_t number = 1; number <= 200; number++)
		CHECK(news(0, number) && !news(0, number), "number %d", (int)number);
	CHECK(!news(0, 136) && !news(0, 1) && !news(0, 0), "last %d", (int)heard[0].last);
}

/* Every order of a few that follow each other, after any number before them. */
static void overtaken(void)
{
	for (uint64_t first = 1; first < 70; first++)
		for (unsigned order = 0; order < 24; order++) {
			uint64_t left[4] = {0, 1, 2, 3}, count = 4;
			heard[2] = (struct control_heard){0};
			for (uint64_t number = 1; number < first; number++)
				REQUIRE(news(2, number));
			for (unsigned code = order, base = 4; count; code /= base--) {
				unsigned pick = code % base;
				uint64_t number = first + left[pick];
				CHECK(news(2, number), "first %d, order %u, number %d", (int)first, order, (int)number);
				CHECK(!news(2, number), "first %d, order %u, number %d", (int)first, order, (int)number);
				left[pick] = left[--count];
			}
			for (uint64_t number = 1; number < first + 4; number++)
				CHECK(!news(2, number), "first %d, order %u, number %d", (int)first, order, (int)number);
		}
}

static void far_apart(void)
{
	heard[0] = (struct control_heard){0};
	CHECK(news(0, 1) && news(0, 65) && !news(0, 1) && news(0, 2) && news(0, 64), "last %d", (int)heard[0].last);
	CHECK(news(0, 129) && !news(0, 65) && news(0, 66) && !news(0, 64), "last %d", (int)heard[0].last);
	CHECK(news(0, 1000) && !news(0, 129) && news(0, 936) && !news(0, 935) && news(0, UINT64_MAX) && !news(0, 1000), "last %d", (int)heard[0].last);
}

int main(void)
{
	in_order();
	overtaken();
	far_apart();
	CHECK(!news(1, 7), "this rank's own, come back");
	return check_result();
}
