/*
 * Which variables of an environment are ours.
 *
 * A variable that the user set is never changed.  But a program started by one of our tasks inherits the variables that
 * we set, and when it is srun or sbatch, the new tasks would take the old RANK for the user's wish.  So each task also
 * gets SYNCTRAIN_SET, the names of what we set with a hash of each value; the submit side takes out what is listed
 * there and still has that value.
 */
#ifndef SYNCTRAIN_SPANK_MARKS_H
#define SYNCTRAIN_SPANK_MARKS_H

#include <stddef.h>

#define MARKS_VARIABLE "SYNCTRAIN_SET"
#define MARKS_BYTES 1024

/* The variables that a task may get, ended by NULL. */
extern const char *const marks_names[];

/* Adds one variable to TEXT ("" at first). What does not fit is left out. */
void marks_add(char text[MARKS_BYTES], const char *name, const char *value);

/* Removes from this process's environment what MARKS_VARIABLE shows to be ours, and MARKS_VARIABLE itself. */
void marks_forget(void);

#endif
