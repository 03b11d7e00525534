/* Messages to standard error: one line each, one write each, prefixed with who speaks. */
#ifndef SYNCTRAIN_COMMON_LOG_H
#define SYNCTRAIN_COMMON_LOG_H

#include "status.h"

enum st_log_level { ST_LOG_ERROR, ST_LOG_WARN, ST_LOG_INFO, ST_LOG_DEBUG };

/* Sets the speaker shown in each line, e.g. "rank 3 on node2"; NULL or "" for none. Copies the text. Call before threads start. */
void st_log_set_speaker(const char *speaker);

/* ST_ERR_CONFIG when SYNCTRAIN_LOG is none of its values. For a program's start. */
enum st_status st_log_check(void);

/* Lines above this level are dropped. Default: SYNCTRAIN_LOG (error, warn, info, debug) or warn; a value that is none of these is said with the first line. */
void st_log_set_level(enum st_log_level level);

/* printf-style, no newline: "synctrain: rank 3 on node2: TEXT". Control characters in the text are replaced by '?'. */
void st_log(enum st_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
