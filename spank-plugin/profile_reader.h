/* Starts the program that reads a JSON profile: the plugin links libc only, and must not bring a parser into sbatch. */
#ifndef SYNCTRAIN_SPANK_PROFILE_READER_H
#define SYNCTRAIN_SPANK_PROFILE_READER_H

#include "options.h"

/*
 * Runs DIRECTORY/profile on FILE as the calling user and fills LAYER from what it prints.  False: ERROR holds one line.
 * Blocks for at most PROFILE_SECONDS. What the program prints is hostile: limited in size and checked again.
 */
#define PROFILE_SECONDS 10
bool profile_read(const char *directory, const char *file, struct opt_layer *layer, char error[OPT_ERROR_BYTES]);

#endif
