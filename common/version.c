#include "version.h"

const char st_version[] = SYNCTRAIN_VERSION;
const char st_build_id[] = SYNCTRAIN_BUILD_ID;
