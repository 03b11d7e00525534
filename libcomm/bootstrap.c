#include "bootstrap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void bootstrap_topology_address(struct bootstrap *bootstrap)
{
	const char *address = getenv("SLURM_TOPOLOGY_ADDR"), *pattern = getenv("SLURM_TOPOLOGY_ADDR_PATTERN");
	size_t address_parts = 1, pattern_parts = 1;

	bootstrap->address[0] = 0;
	if (!address || !pattern || strlen(address) >= sizeof bootstrap->address)
		return;
	for (const char *p = address; *p; p++) {
		if (*p <= ' ' || *p > '~')
			return;
		address_parts += *p == '.';
	}
	for (const char *p = pattern; *p; p++)
		pattern_parts += *p == '.';
	/* The last part must be the node: then what stands before its dot are the switches above it.  A node name with dots in
	 * it would make its own first parts look like switches, hence the count. */
	const char *last = strrchr(pattern, '.');
	if (address_parts != pattern_parts || strcmp(last ? last + 1 : pattern, "node"))
		return;
	snprintf(bootstrap->address, sizeof bootstrap->address, "%s", address);
}
