/* What this build is: shown by `synctrain --version`, sent to peers so that two builds can name each other. */
#ifndef SYNCTRAIN_COMMON_VERSION_H
#define SYNCTRAIN_COMMON_VERSION_H

extern const char st_version[];  /* "0.1.0" */
extern const char st_build_id[]; /* git describe of the tree, or the version */

#endif
