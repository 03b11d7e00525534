/* What a rank of the fault campaign tells the driver, one packet each, over a SOCK_SEQPACKET Unix socket that leads through all namespaces. */
#ifndef SYNCTRAIN_TESTS_FAULTS_REPORT_H
#define SYNCTRAIN_TESTS_FAULTS_REPORT_H

#include <stdint.h>

enum report_kind {
	REPORT_HELLO, /* before it joins; the driver takes its process id from the socket */
	REPORT_READY, /* has joined */
	REPORT_END,   /* status and text of the failure, or 0 after an orderly end; then the rank frees its communicator */
	REPORT_FREED,
	REPORT_SHRUNK, /* comm_shrink has returned: its status and text, or 0 and who is in the new communicator */
	REPORT_WORKS,  /* some rounds on the new communicator were right */
};

struct report {
	uint32_t kind, rank;
	int64_t when_ns; /* CLOCK_MONOTONIC */
	uint64_t operations;
	uint64_t members;    /* a bit for each rank of the first communicator that is in the one that is used now */
	uint32_t generation; /* 0: the first communicator */
	int32_t status;
	char node[64];
	char text[1024];
};

/* What the driver tells a rank: one byte each. */
enum { ORDER_ABORT = 'A', ORDER_EXIT = 'X', ORDER_FINISH = 'F' }; /* the last to rank 0 of the communicator, which takes all others along */

#endif
