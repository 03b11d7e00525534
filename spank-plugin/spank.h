/* Slurm's plugin interface, with the visibility that the version script needs: the rest of the plugin is hidden. */
#ifndef SYNCTRAIN_SPANK_SPANK_H
#define SYNCTRAIN_SPANK_SPANK_H

#include <stdint.h>

#pragma GCC visibility push(default)
#include <slurm/spank.h>
#pragma GCC visibility pop

#endif
