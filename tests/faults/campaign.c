/*
 * The fault campaign: many short jobs on a cluster with a network namespace per node, one fault in each, the expected verdict known before.
 *
 *   campaign DIR JOB COUNT SEED [KIND]     as root; DIR: state directory of a cluster that is up (etc/quickstart/cluster), JOB: an allocation on it
 *
 * COUNT: 0 for every fault once, except deaths, stops and cuts in the midst of shrinking.  KIND: one kind only, or "shrink*" for all kinds of jobs that shrink.
 *
 * README.md has the table of faults and what is expected; `kinds` below is the same table.  Run number N of seed S draws everything that
 * can be drawn from (S, N), so a failure is repeated with the line that it prints.  What is not drawn is when things happen inside the ranks.
 *
 * Exit: 0 every run as expected; 1 not; 64 usage.
 */
#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/status.h"
#include "report.h"

#define NODES 4
#define PER_NODE 2
#define RANKS (NODES * PER_NODE)
#define STARTUP_MS 6000 /* as in fault_rank.c */
#define STALL_MS 2000
/* Of TCP connections without an answer: what the transport needs to be sure, see transport_tcp.c. */
#define TCP_SILENCE_MS 3000
/* What asking others takes at most, and a machine whose few cores are shared by everything here. */
#define SLACK_MS 5000
#define HANG_MS 45000
/* What comm_shrink is given; and a survivor that stands alone says so then. */
#define SHRINK_MS 20000

/* ---- what is done, and what is expected ---------------------------------------------------------------------------- */

enum kind { KILL, KILL_LEADER, KILL_ROOT, KILL_NODE, KILL_TWO, STOP, STOP_LEADER, STOP_NODE, PAUSE, DELAY, SUSPEND, CUT_LINK, CUT_DATA, BREAK_DATA, CUT_NODE, CUT_TWO,
	    ABORT, ABORT_KILL, ABORT_CUT, EXIT,
	    /* The second fault of a job that goes on without those of the first: */
	    SHRINK, SHRINK_KILL, SHRINK_STOP, SHRINK_PAUSE, SHRINK_ABORT, SHRINK_CUT_NODE, SHRINK_CUT_LINK, SHRINK_CUT_HALF, KINDS };
enum moment { STARTUP, RUNNING };
enum outcome {
	GOES_ON,      /* the job ends in an orderly way, with exit code 0 */
	NAMES_VICTIM, /* every survivor names a victim, the same one, and `how` */
	NAMES_LINK,   /* every survivor names a link between a rank of one victim's node and a rank of the other's, the same one */
	NAMES_LEADER, /* every survivor names the leader of the victim's node, and `how` */
	NAMES_OTHER,  /* every survivor names the leader of the other of two nodes */
	ALL_GO_ON,    /* comm_shrink leaves nobody behind who is not killed, stopped for good or cut off with its node */
	SOME_GO_ON,   /* ... or leaves also out who can't be reached by all, or refuses: see fits() */
};

static const struct fault {
	const char *name;
	enum outcome outcome;
	const char *how; /* follows "rank R on NODE" in the verdict */
	int64_t within_ms;
	bool at_startup; /* also tried then */
} kinds[KINDS] = {
	[KILL] = {"kill", NAMES_VICTIM, " died", SLACK_MS, true},
	[KILL_LEADER] = {"kill-leader", NAMES_VICTIM, " died", SLACK_MS, true},
	[KILL_ROOT] = {"kill-root", NAMES_VICTIM, " died", SLACK_MS, true},
	[KILL_NODE] = {"kill-node", NAMES_VICTIM, " died", SLACK_MS, false},
	[KILL_TWO] = {"kill-two", NAMES_VICTIM, " died", SLACK_MS, false},
	[STOP] = {"stop", NAMES_VICTIM, " is unreachable", STALL_MS + SLACK_MS, true},
	[STOP_LEADER] = {"stop-leader", NAMES_VICTIM, " is unreachable", STALL_MS + SLACK_MS, true},
	[STOP_NODE] = {"stop-node", NAMES_VICTIM, " is unreachable", STALL_MS + SLACK_MS, false},
	[PAUSE] = {"pause", GOES_ON, "", 0, true},
	[DELAY] = {"delay", GOES_ON, "", 0, true},
	[SUSPEND] = {"suspend", GOES_ON, "", 0, false},
	[CUT_LINK] = {"cut-link", NAMES_LINK, "", TCP_SILENCE_MS + SLACK_MS, true},
	[CUT_DATA] = {"cut-data", NAMES_LINK, "", TCP_SILENCE_MS + SLACK_MS, false},
	[BREAK_DATA] = {"break-data", NAMES_LINK, "", SLACK_MS, false},
	[CUT_NODE] = {"cut-node", NAMES_LEADER, " is unreachable", TCP_SILENCE_MS + SLACK_MS, true},
	[CUT_TWO] = {"cut-two-nodes", NAMES_OTHER, " is unreachable", TCP_SILENCE_MS + SLACK_MS, false},
	[ABORT] = {"abort", NAMES_VICTIM, " failed: the loss is not finite", SLACK_MS, false},
	[ABORT_KILL] = {"abort-and-kill", NAMES_VICTIM, "", SLACK_MS, false},
	[ABORT_CUT] = {"abort-behind-a-cut", NAMES_VICTIM, " failed: the loss is not finite", STALL_MS + SLACK_MS, false},
	[EXIT] = {"exit-0", NAMES_VICTIM, " died", SLACK_MS, false},
	/* within_ms: from the second fault until all who go on have done so */
	[SHRINK] = {"shrink", ALL_GO_ON, "", STALL_MS + SLACK_MS, false},
	[SHRINK_KILL] = {"shrink-kill", ALL_GO_ON, " died", STALL_MS + SLACK_MS, false},
	[SHRINK_STOP] = {"shrink-stop", ALL_GO_ON, " is unreachable", STARTUP_MS + 2 * STALL_MS + SLACK_MS, false},
	[SHRINK_PAUSE] = {"shrink-pause", ALL_GO_ON, "", 2 * STALL_MS + SLACK_MS, false},
	[SHRINK_ABORT] = {"shrink-abort", ALL_GO_ON, " failed: the loss is not finite", STALL_MS + SLACK_MS, false},
	[SHRINK_CUT_NODE] = {"shrink-cut-node", ALL_GO_ON, " is unreachable", STARTUP_MS + 2 * STALL_MS + TCP_SILENCE_MS + SLACK_MS, false},
	[SHRINK_CUT_LINK] = {"shrink-cut-link", SOME_GO_ON, "", SHRINK_MS + TCP_SILENCE_MS + SLACK_MS, false},
	[SHRINK_CUT_HALF] = {"shrink-cut-half", SOME_GO_ON, " is unreachable", SHRINK_MS + TCP_SILENCE_MS + SLACK_MS, false},
};

/* ---- state --------------------------------------------------------------------------------------------------------- */

struct rank {
	int fd; /* -1: not there (any more) */
	pid_t pid;
	bool hello, ready, ended, freed, victim;
	struct report end;
	int64_t freed_ns;
	uint64_t operations;
	/* of jobs that shrink */
	uint32_t generation; /* of the communicator that is used */
	uint64_t group;      /* its members, a bit for each rank of the first one */
	bool works;          /* some rounds on it were right */
	int64_t works_ns;
	struct report left;  /* comm_shrink has failed */
};

static const char *directory, *job;
static char *cluster;
static char tree[PATH_MAX], net[64];
static pid_t node_pid[NODES];
static int node_net[NODES];
static uint64_t drawn;
static int nodes = NODES, size = RANKS; /* of this run */
static struct rank ranks[RANKS];
static char why[4096];

static uint64_t draw(uint64_t below)
{
	/* splitmix64 */
	uint64_t x = drawn += UINT64_C(0x9e3779b97f4a7c15);
	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return (x ^ (x >> 31)) % below;
}

static bool bad(const char *format, ...) __attribute__((format(printf, 1, 2)));
static bool bad(const char *format, ...)
{
	size_t have = strlen(why);
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(why + have, sizeof why - have, format, arguments);
	va_end(arguments);
	have = strlen(why);
	snprintf(why + have, sizeof why - have, "\n");
	return false;
}

static void sleep_ms(int64_t ms)
{
	poll(NULL, 0, (int)ms);
}

static size_t read_file(const char *path, char *text, size_t bytes)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : read(fd, text, bytes - 1);

	if (fd >= 0)
		close(fd);
	text[n > 0 ? n : 0] = 0;
	return n > 0 ? (size_t)n : 0;
}

/* ---- the cluster --------------------------------------------------------------------------------------------------- */

/* The init of each node: the process `cluster _node NODE ID` that is number 1 in its own namespace. */
static bool find_nodes(const char *id)
{
	DIR *proc = opendir("/proc");
	unsigned found = 0;

	for (struct dirent *entry; proc && (entry = readdir(proc));) {
		char path[64], text[4096], status[4096];
		if (!isdigit((unsigned char)entry->d_name[0]))
			continue;
		snprintf(path, sizeof path, "/proc/%.20s/cmdline", entry->d_name);
		size_t n = read_file(path, text, sizeof text);
		for (size_t i = 0; i < n; i++)
			if (!text[i])
				text[i] = ' ';
		char *at = strstr(text, " _node node");
		if (!at || !strstr(at, id))
			continue;
		snprintf(path, sizeof path, "/proc/%.20s/status", entry->d_name);
		read_file(path, status, sizeof status);
		char *inner = strstr(status, "\nNSpid:");
		if (!inner)
			continue;
		inner[strcspn(inner + 1, "\n") + 1] = 0;
		char *last = strrchr(inner, '\t');
		int node = at[11] - '1';
		if (!last || strcmp(last, "\t1") || node < 0 || node >= NODES)
			continue;
		node_pid[node] = (pid_t)atoi(entry->d_name);
		snprintf(path, sizeof path, "/proc/%.20s/ns/net", entry->d_name);
		node_net[node] = open(path, O_RDONLY | O_CLOEXEC);
		found += node_net[node] >= 0;
	}
	if (proc)
		closedir(proc);
	return found == NODES;
}

/* Runs `ip` in the network namespace of a node. */
static bool ip(int node, const char *const *words)
{
	pid_t child = fork();
	int status = -1;

	if (child == 0) {
		int null = open("/dev/null", O_WRONLY);
		dup2(null, 2);
		if (setns(node_net[node], CLONE_NEWNET))
			_exit(126);
		execvp("ip", (char *const *)words);
		_exit(127);
	}
	return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

/* Packets between two nodes go to an address that nobody has, in both directions, and are lost without a word. */
static bool cut(int a, int b)
{
	for (int i = 0; i < 2; i++) {
		char address[80];
		snprintf(address, sizeof address, "%s.%d", net, (i ? a : b) + 1);
		const char *words[] = {"ip", "neigh", "replace", address, "lladdr", "02:00:00:00:ff:ff", "nud", "permanent", "dev", "eth0", NULL};
		if (!ip(i ? b : a, words))
			return bad("can't cut node%d off node%d", b + 1, a + 1);
		char *colon = strrchr(net, '.');
		snprintf(address, sizeof address, "fd77::%s:%d", colon + 1, (i ? a : b) + 1);
		words[3] = address;
		ip(i ? b : a, words); /* where there is IPv6 */
	}
	return true;
}

static void heal(void)
{
	const char *words[] = {"ip", "neigh", "flush", "nud", "permanent", "dev", "eth0", NULL};

	for (int node = 0; node < NODES; node++)
		ip(node, words);
}

/* ---- sockets of ranks ---------------------------------------------------------------------------------------------- */

struct connection {
	struct sockaddr_storage mine, theirs;
	int fd; /* our own descriptor of the rank's socket */
};

/* The rank's TCP connections that no epoll watches: the control plane's are in one, data links in none. */
static int data_connections(const struct rank *rank, struct connection *found, int room)
{
	char path[64], text[16384];
	bool watched[1024] = {false};
	int count = 0;

	for (int fd = 0; fd < 1024; fd++) {
		snprintf(path, sizeof path, "/proc/%d/fdinfo/%d", (int)rank->pid, fd);
		if (!read_file(path, text, sizeof text))
			continue;
		for (char *at = text; (at = strstr(at, "tfd:")); at += 4) {
			long target = strtol(at + 4, NULL, 10);
			if (target >= 0 && target < 1024)
				watched[target] = true;
		}
	}
	int pidfd = (int)syscall(SYS_pidfd_open, rank->pid, 0);
	for (int fd = 3; pidfd >= 0 && fd < 1024 && count < room; fd++) {
		socklen_t bytes = sizeof found->mine;
		if (watched[fd])
			continue;
		int own = (int)syscall(SYS_pidfd_getfd, pidfd, fd, 0);
		if (own < 0)
			continue;
		struct connection *c = &found[count];
		*c = (struct connection){.fd = own};
		if (getsockname(own, (struct sockaddr *)&c->mine, &bytes) == 0 && c->mine.ss_family == AF_INET) {
			bytes = sizeof c->theirs;
			if (getpeername(own, (struct sockaddr *)&c->theirs, &bytes) == 0) {
				count++;
				continue;
			}
		}
		close(own);
	}
	if (pidfd >= 0)
		close(pidfd);
	return count;
}

static bool same_end(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
	const struct sockaddr_in *x = (const struct sockaddr_in *)a, *y = (const struct sockaddr_in *)b;

	return x->sin_port == y->sin_port && x->sin_addr.s_addr == y->sin_addr.s_addr;
}

/* Ends, or silences at both ends, all data connections of a drawn pair of ranks that has some. */
static bool strike_data(bool silently, int *a, int *b)
{
	enum { ROOM = 256 };
	static struct connection mine[ROOM], theirs[ROOM];
	struct sock_filter nothing = {BPF_RET | BPF_K, 0, 0, 0};
	struct sock_fprog drop = {1, &nothing};
	int first = (int)draw(RANKS * RANKS), struck = 0;

	for (int i = 0; i < RANKS * RANKS && !struck; i++) {
		*a = (first + i) % (RANKS * RANKS) / RANKS;
		*b = (first + i) % RANKS;
		if (*a >= *b || *a / PER_NODE == *b / PER_NODE)
			continue;
		int have = data_connections(&ranks[*a], mine, ROOM), others = data_connections(&ranks[*b], theirs, ROOM);
		for (int m = 0; m < have; m++)
			for (int t = 0; t < others; t++) {
				if (!same_end(&mine[m].mine, &theirs[t].theirs) || !same_end(&mine[m].theirs, &theirs[t].mine))
					continue;
				if (!silently)
					shutdown(mine[m].fd, SHUT_RDWR);
				else if (setsockopt(mine[m].fd, SOL_SOCKET, SO_ATTACH_FILTER, &drop, sizeof drop) ||
					 setsockopt(theirs[t].fd, SOL_SOCKET, SO_ATTACH_FILTER, &drop, sizeof drop))
					continue;
				struck++;
			}
		for (int m = 0; m < have; m++)
			close(mine[m].fd);
		for (int t = 0; t < others; t++)
			close(theirs[t].fd);
	}
	return struck ? true : bad("no two ranks with a data connection between them");
}

/* ---- a run --------------------------------------------------------------------------------------------------------- */

static int listen_at(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (strlen(path) >= sizeof address.sun_path) {
		bad("the path %s is too long for a socket", path);
		close(fd);
		return -1;
	}
	strcpy(address.sun_path, path);
	unlink(path);
	if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 64) || chmod(path, 0777)) {
		bad("can't listen at %s: %s", path, strerror(errno));
		return -1;
	}
	return fd;
}

static pid_t launch(const char *output, bool shrinks)
{
	char shrink_ms[16], number[16], per_node[40], count[16], timeout[48];

	snprintf(shrink_ms, sizeof shrink_ms, "%d", SHRINK_MS);
	snprintf(number, sizeof number, "-n%d", size);
	snprintf(count, sizeof count, "-N%d", nodes);
	snprintf(per_node, sizeof per_node, "--ntasks-per-node=%d", PER_NODE);
	snprintf(timeout, sizeof timeout, "SYNCTRAIN_TIMEOUT_MS=%d", STALL_MS);
	pid_t child = fork();
	if (child == 0) {
		char jobid[32];
		int log = open(output, O_WRONLY | O_CREAT | O_TRUNC, 0644), null = open("/dev/null", O_RDONLY);
		dup2(null, 0);
		dup2(log, 1);
		dup2(log, 2);
		snprintf(jobid, sizeof jobid, "--jobid=%s", job);
		execl(cluster, cluster, "run", "-u", "nobody", directory, "--", "env", timeout, "SYNCTRAIN_ARRIVAL_TIMEOUT_MS=30000", "srun", jobid,
		      "--mpi=pmix", "--overlap", "--kill-on-bad-exit=0", "--wait=0", count, number, per_node,
		      nodes == 2 ? "--nodelist=node1,node2" : "--nodelist=node1,node2,node3,node4", "/mnt/tree/build/tests/faults/fault_rank",
		      "/mnt/c/home/nobody/driver", shrinks ? shrink_ms : (char *)NULL, (char *)NULL);
		_exit(127);
	}
	return child;
}

/* Takes what ranks say, for up to `ms`. */
static void note_shrunk(struct rank *rank, const struct report *report);
static void note_failure(struct rank *rank, const struct report *report);

static void listen_to_ranks(int listener, int64_t ms)
{
	struct pollfd fds[RANKS + 1];
	int who[RANKS + 1], count = 0;

	fds[count++] = (struct pollfd){listener, POLLIN, 0};
	for (int r = 0; r < size; r++)
		if (ranks[r].fd >= 0) {
			who[count] = r;
			fds[count++] = (struct pollfd){ranks[r].fd, POLLIN, 0};
		}
	if (poll(fds, (nfds_t)count, (int)ms) <= 0)
		return;
	for (int i = 1; i < count; i++) {
		struct rank *rank = &ranks[who[i]];
		struct report report;
		if (!fds[i].revents)
			continue;
		ssize_t n = recv(rank->fd, &report, sizeof report, MSG_DONTWAIT);
		if (n <= 0) {
			if (n == 0 || errno != EAGAIN) {
				close(rank->fd);
				rank->fd = -1;
			}
			continue;
		}
		rank->operations = report.operations;
		if (report.kind == REPORT_READY)
			rank->ready = true;
		if (report.kind == REPORT_END) {
			rank->ended = true;
			rank->end = report;
			if (report.status)
				note_failure(rank, &report);
		}
		if (report.kind == REPORT_SHRUNK)
			note_shrunk(rank, &report);
		if (report.kind == REPORT_WORKS && report.generation == rank->generation) {
			rank->works = true;
			rank->works_ns = report.when_ns;
		}
		if (report.kind == REPORT_FREED) {
			rank->freed = true;
			rank->freed_ns = report.when_ns;
		}
	}
	if (fds[0].revents) {
		int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		struct report report;
		struct ucred peer;
		socklen_t bytes = sizeof peer;
		struct pollfd wait = {fd, POLLIN, 0};
		if (fd < 0)
			return;
		if (poll(&wait, 1, 1000) == 1 && recv(fd, &report, sizeof report, MSG_DONTWAIT) == sizeof report && report.kind == REPORT_HELLO &&
		    report.rank < (uint32_t)size && !ranks[report.rank].hello && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0) {
			ranks[report.rank].fd = fd;
			ranks[report.rank].pid = peer.pid;
			ranks[report.rank].hello = true;
		} else {
			close(fd);
		}
	}
}

static bool every(bool (*what)(const struct rank *))
{
	for (int r = 0; r < size; r++)
		if (!what(&ranks[r]))
			return false;
	return true;
}
static bool says_hello(const struct rank *rank) { return rank->hello; }
static bool is_ready(const struct rank *rank) { return rank->ready || rank->ended; }
static bool is_over(const struct rank *rank) { return rank->victim || rank->freed || (rank->hello && rank->fd < 0); }

static bool wait_for(int listener, bool (*what)(const struct rank *), int64_t ms)
{
	int64_t until = st_now_ns() + ms * ST_NS_PER_MS;

	while (!every(what)) {
		if (st_now_ns() >= until)
			return false;
		listen_to_ranks(listener, 100);
	}
	return true;
}

static void wait_listening(int listener, int64_t ms)
{
	int64_t until = st_now_ns() + ms * ST_NS_PER_MS, left;

	while ((left = (until - st_now_ns()) / ST_NS_PER_MS) > 0)
		listen_to_ranks(listener, left);
}

static void order(int rank, char what)
{
	if (ranks[rank].fd >= 0 && send(ranks[rank].fd, &what, 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		bad("can't give rank %d an order", rank);
}

static void signal_node(int node, int number)
{
	for (int r = node * PER_NODE; r < (node + 1) * PER_NODE; r++) {
		kill(ranks[r].pid, number);
		ranks[r].victim = true;
	}
}

/* Does it. *a, *b: who is expected to be named; b only where there are two. Returns when, or 0. */
static int64_t inject(enum kind kind, int listener, int *a, int *b)
{
	int any = (int)draw(size), node = (int)draw(nodes), other = (node + 1 + (int)draw(nodes - 1)) % nodes;
	int64_t now = st_now_ns();

	*a = any;
	*b = -1;
	switch (kind) {
	case KILL_LEADER:
		*a = (1 + (int)draw(nodes - 1)) * PER_NODE;
		break;
	case KILL_ROOT:
		*a = 0;
		break;
	case STOP_LEADER:
		*a = node * PER_NODE;
		break;
	case KILL: /* one that leads nobody */
	case STOP:
		*a = node * PER_NODE + 1;
		break;
	default:
		break;
	}
	switch (kind) {
	case KILL:
	case KILL_LEADER:
	case KILL_ROOT:
		ranks[*a].victim = true;
		kill(ranks[*a].pid, SIGKILL);
		break;
	case STOP:
	case STOP_LEADER:
		ranks[*a].victim = true;
		kill(ranks[*a].pid, SIGSTOP);
		break;
	case KILL_NODE:
	case STOP_NODE:
		signal_node(node, kind == KILL_NODE ? SIGKILL : SIGSTOP);
		*a = node * PER_NODE;
		*b = *a + 1;
		break;
	case KILL_TWO:
		*b = (*a + 1 + (int)draw(size - 1)) % size;
		ranks[*a].victim = ranks[*b].victim = true;
		kill(ranks[*a].pid, SIGKILL);
		sleep_ms((int64_t)draw(3) * 10);
		kill(ranks[*b].pid, SIGKILL);
		break;
	case PAUSE:
		kill(ranks[*a].pid, SIGSTOP);
		wait_listening(listener, STALL_MS / 4 + (int64_t)draw(STALL_MS / 4));
		kill(ranks[*a].pid, SIGCONT);
		break;
	case DELAY:
		for (int i = 0; i < 12; i++) {
			int slow = (int)draw(size);
			kill(ranks[slow].pid, SIGSTOP);
			wait_listening(listener, 10 + (int64_t)draw(150));
			kill(ranks[slow].pid, SIGCONT);
			wait_listening(listener, (int64_t)draw(30));
		}
		break;
	case SUSPEND: /* as scontrol does it: every node by itself, and not all in the same moment */
		for (int i = 0; i < 2 * nodes; i++) {
			if (i == nodes)
				wait_listening(listener, STALL_MS * 3 / 2 + (int64_t)draw(STALL_MS));
			for (int r = i % nodes * PER_NODE; r < (i % nodes + 1) * PER_NODE; r++)
				kill(ranks[r].pid, i < nodes ? SIGSTOP : SIGCONT);
			wait_listening(listener, (int64_t)draw(STALL_MS / 16));
		}
		break;
	case CUT_LINK:
	case CUT_TWO:
		if (!cut(node, other))
			return 0;
		*a = node * PER_NODE;
		*b = other * PER_NODE;
		break;
	case CUT_NODE:
		for (int n = 0; n < nodes; n++)
			if (n != node && !cut(node, n))
				return 0;
		*a = node * PER_NODE;
		break;
	case CUT_DATA:
	case BREAK_DATA:
		if (!strike_data(kind == CUT_DATA, a, b))
			return 0;
		break;
	case ABORT:
		order(*a, ORDER_ABORT);
		break;
	case ABORT_KILL:
		*b = (*a + 1 + (int)draw(size - 1)) % size;
		order(*a, ORDER_ABORT);
		wait_listening(listener, (int64_t)draw(120));
		ranks[*b].victim = true;
		kill(ranks[*b].pid, SIGKILL);
		break;
	case ABORT_CUT: /* an edge of the tree has been cut for a moment, which nobody has noticed for sure */
		other = 1 + (int)draw(nodes - 1);
		if (!cut(0, other))
			return 0;
		wait_listening(listener, STALL_MS / 3 + (int64_t)draw(STALL_MS / 8));
		now = st_now_ns();
		order(*a, ORDER_ABORT);
		break;
	case EXIT:
		ranks[*a].victim = true;
		order(*a, ORDER_EXIT);
		break;
	default: /* those of shrink() */
		break;
	}
	return now;
}

static void name_rank(char *text, size_t bytes, int rank, const char *how)
{
	snprintf(text, bytes, "rank %d on node%d%s", rank, rank / PER_NODE + 1, how);
}

/* Ranks of a link in a verdict; false when it names none. */
static bool link_ends(const char *text, int *a, int *b)
{
	int x, y;

	return sscanf(text, "the link between rank %d on node%d and rank %d on node%d broke", a, &x, b, &y) == 4 && *a / PER_NODE + 1 == x &&
	       *b / PER_NODE + 1 == y;
}

/* Whether the verdict of `rank` is an expected one. */
static bool one_of(const char *text, const struct fault *fault, enum kind kind, int rank, int a, int b)
{
	char wanted[128];

	if (fault->outcome == NAMES_OTHER) {
		name_rank(wanted, sizeof wanted, rank / PER_NODE == a / PER_NODE ? b : a, fault->how);
		return !strncmp(text, wanted, strlen(wanted)) && strstr(text, "there is no third node");
	}

	if (fault->outcome == NAMES_LINK) {
		int x, y;
		if (!link_ends(text, &x, &y))
			return false;
		if (kind == CUT_LINK)
			return (x / PER_NODE == a / PER_NODE && y / PER_NODE == b / PER_NODE) ||
			       (x / PER_NODE == b / PER_NODE && y / PER_NODE == a / PER_NODE);
		return (x == a && y == b) || (x == b && y == a);
	}
	name_rank(wanted, sizeof wanted, a, kind == ABORT_KILL ? " failed: the loss is not finite" : fault->how);
	if (!strncmp(text, wanted, strlen(wanted)))
		return true;
	name_rank(wanted, sizeof wanted, b, kind == ABORT_KILL ? " died" : fault->how);
	return b >= 0 && !strncmp(text, wanted, strlen(wanted));
}

/* Up to where the culprit and what happened to it are said. */
static size_t head_of(const char *text)
{
	size_t length = strcspn(text, "(:");
	const char *during = strstr(text, " during ");

	return during && (size_t)(during - text) < length ? (size_t)(during - text) : length;
}

/* A step whose rank dies before all have left PMIx is ended by Slurm: then nobody has a word to say. */
static bool ended_by_slurm(const char *output)
{
	static char text[65536];

	read_file(output, text, sizeof text);
	return strstr(text, "CANCELLED") || strstr(text, "mpi/pmix");
}

/* A cut or a stop may catch some ranks in PMIx, which only gives up when the start-up timeout is over: what the others see then is that these ranks do not
 * come, or have ended.  They must be of the nodes that were struck. */
static bool names_the_stuck(const char *text, int a, int b)
{
	bool stuck = false, named = false;

	for (int r = 0; r < size; r++) {
		char wanted[64];
		stuck |= ranks[r].ended && strstr(ranks[r].end.text, "PMIx");
		name_rank(wanted, sizeof wanted, r, " ");
		if (r / PER_NODE == a / PER_NODE || (b >= 0 && r / PER_NODE == b / PER_NODE))
			named |= !strncmp(text, wanted, strlen(wanted));
	}
	return stuck && named;
}

static bool judge(enum kind kind, bool startup, int a, int b, int64_t began, const char *output, double *took)
{
	const struct fault *fault = &kinds[kind];
	const char *first = NULL;
	bool ok = true;

	*took = 0;
	for (int r = 0; r < size; r++) {
		const struct rank *rank = &ranks[r];
		if (rank->victim)
			continue;
		if (!rank->ended) {
			if (!startup || !ended_by_slurm(output))
				ok = bad("rank %d ended without a word after %llu rounds", r, (unsigned long long)rank->operations);
			continue;
		}
		const char *text = rank->end.text;
		if (strstr(text, "WRONG RESULT"))
			ok = bad("rank %d: %s", r, text);
		if (fault->outcome == GOES_ON) {
			if (rank->end.status)
				ok = bad("rank %d failed: %s", r, text);
			continue;
		}
		double s = (double)(rank->end.when_ns - began) / 1e9;
		*took = s > *took ? s : *took;
		if (!rank->end.status) {
			ok = bad("rank %d ended as if nothing had happened", r);
			continue;
		}
		int64_t within_ms = startup ? STARTUP_MS + STALL_MS + SLACK_MS : fault->within_ms;
		if (s * 1e3 > (double)within_ms)
			ok = bad("rank %d knew after %.2f s, expected %.1f s at most: %s", r, s, (double)within_ms / 1e3, text);
		/* Before the control plane is up, PMIx is all there is. */
		if (startup && (strstr(text, "PMIx") || ended_by_slurm(output)))
			continue;
		if (!one_of(text, fault, kind, r, a, b) && !(startup && names_the_stuck(text, a, b)))
			ok = bad("rank %d names the wrong culprit: %s", r, text);
		if (!first)
			first = text;
		else if (fault->outcome != NAMES_OTHER && (head_of(first) != head_of(text) || strncmp(first, text, head_of(first))))
			ok = bad("ranks disagree: rank %d: %s", r, text);
		if (kind != ABORT && kind != ABORT_KILL && kind != ABORT_CUT && !startup && !strstr(text, " during "))
			ok = bad("rank %d does not name the operation: %s", r, text);
		if (rank->freed && rank->freed_ns - rank->end.when_ns > SLACK_MS * ST_NS_PER_MS)
			ok = bad("rank %d took %.2f s to free its communicator", r, (double)(rank->freed_ns - rank->end.when_ns) / 1e9);
	}
	if (first)
		printf("      %s\n", first);
	return ok;
}

/* Processes, Unix sockets and shared memory of ranks: they are gone within a moment, or not at all. */
static bool leftovers(void)
{
	char what[256] = "";

	for (int try = 0; try < 50; try++) {
		*what = 0;
		for (int r = 0; r < size; r++)
			if (ranks[r].hello && kill(ranks[r].pid, 0) == 0) {
				char path[64], name[64];
				snprintf(path, sizeof path, "/proc/%d/comm", (int)ranks[r].pid);
				read_file(path, name, sizeof name);
				if (!strncmp(name, "fault_rank", 10))
					snprintf(what, sizeof what, "the process of rank %d", r);
			}
		for (int node = 0; node < NODES; node++) {
			static char text[1 << 18];
			char path[64];
			snprintf(path, sizeof path, "/proc/%d/net/unix", (int)node_pid[node]);
			read_file(path, text, sizeof text);
			if (strstr(text, "synctrain."))
				snprintf(what, sizeof what, "a Unix socket on node%d", node + 1);
			snprintf(path, sizeof path, "/proc/%d/root/dev/shm", (int)node_pid[node]);
			DIR *shm = opendir(path);
			for (struct dirent *entry; shm && (entry = readdir(shm));)
				if (entry->d_name[0] != '.')
					snprintf(what, sizeof what, "/dev/shm/%.100s on node%d", entry->d_name, node + 1);
			if (shm)
				closedir(shm);
		}
		if (!*what)
			return true;
		sleep_ms(100);
	}
	return bad("left behind: %s", what);
}

/* ---- runs whose survivors go on ------------------------------------------------------------------------------------ */

/* What has been done to the job so far: who may be named for it. */
static struct {
	enum { DID_STRIKE, DID_CUT_NODES, DID_CUT_LINK } what;
	uint64_t victims;   /* ranks struck, or those on one side of the cut */
	int a, b;           /* DID_CUT_LINK: the two nodes */
	const char *how;
} deeds[8];
static unsigned deed_count;
static uint64_t groups[64]; /* all that a rank has said it was in */
static unsigned group_count;
/* What the ranks of a generation have said of its failure, the head of it in ranks of the first communicator; of those who are not struck. */
static struct {
	int rank;
	uint32_t generation;
	uint64_t group;
	char text[256];
} verdicts[RANKS * 8];
static unsigned verdict_count;

static uint64_t bit(int rank) { return UINT64_C(1) << rank; }
static uint64_t node_bits(int node) { return (bit(PER_NODE) - 1) << (node * PER_NODE); }

static int nth(uint64_t group, int number)
{
	for (int r = 0; r < RANKS; r++)
		if ((group & bit(r)) && number-- == 0)
			return r;
	return -1;
}

static void note_shrunk(struct rank *rank, const struct report *report)
{
	if (report->status) {
		rank->left = *report;
		return;
	}
	rank->generation = report->generation;
	rank->group = report->members;
	rank->works = false;
	unsigned g = 0;
	while (g < group_count && groups[g] != report->members)
		g++;
	if (g == group_count && g < sizeof groups / sizeof *groups)
		groups[group_count++] = report->members;
}

/* Verdicts name ranks of the communicator that failed. */
static void note_failure(struct rank *rank, const struct report *report)
{
	const char *text = report->text;
	int a, b, x, y, skip = 0;

	if (strstr(text, "WRONG RESULT"))
		bad("rank %d: %s", (int)(rank - ranks), text);
	if (verdict_count == sizeof verdicts / sizeof *verdicts || !rank->group)
		return;
	char *said = verdicts[verdict_count].text;
	if (sscanf(text, "the link between rank %d on node%d and rank %d on node%d broke%n", &a, &x, &b, &y, &skip) == 4 && skip)
		snprintf(said, sizeof verdicts->text, "the link between rank %d on node%d and rank %d on node%d broke", nth(rank->group, a), x,
			 nth(rank->group, b), y);
	else if (sscanf(text, "rank %d on node%d%n", &a, &x, &skip) == 2 && skip)
		snprintf(said, sizeof verdicts->text, "rank %d on node%d%.200s", nth(rank->group, a), x, text + skip);
	else
		snprintf(said, sizeof verdicts->text, "%.255s", text);
	verdicts[verdict_count].rank = (int)(rank - ranks);
	verdicts[verdict_count].group = rank->group;
	verdicts[verdict_count++].generation = rank->generation;
}

static void did(int what, uint64_t victims, const char *how)
{
	deeds[deed_count].what = what;
	deeds[deed_count].victims = victims;
	deeds[deed_count++].how = how;
}

/* Whether what `rank` says is explained by something that was done. */
static bool explained(const char *text, int rank, uint64_t group)
{
	int a, b;
	bool link = link_ends(text, &a, &b);

	for (unsigned d = 0; d < deed_count; d++) {
		if (deeds[d].what == DID_CUT_LINK && link &&
		    ((a / PER_NODE == deeds[d].a && b / PER_NODE == deeds[d].b) || (a / PER_NODE == deeds[d].b && b / PER_NODE == deeds[d].a)))
			return true;
		/* A cut of several nodes is several cut links, or somebody on the other side, as seen from here. */
		if (deeds[d].what == DID_CUT_NODES && link && !(deeds[d].victims & bit(a)) != !(deeds[d].victims & bit(b)))
			return true;
		for (int r = 0; r < RANKS; r++) {
			char wanted[128];
			bool there = deeds[d].victims & bit(r);
			if (deeds[d].what == DID_CUT_NODES)
				there = !there != !(deeds[d].victims & bit(rank)) || (there && deeds[d].a == 1);
			if (deeds[d].what == DID_CUT_LINK || !there || !(group & bit(r)))
				continue;
			name_rank(wanted, sizeof wanted, r, deeds[d].how);
			if (!strncmp(text, wanted, strlen(wanted)))
				return true;
		}
	}
	return false;
}

static uint64_t who(bool (*what)(const struct rank *))
{
	uint64_t found = 0;

	for (int r = 0; r < size; r++)
		if (what(&ranks[r]))
			found |= bit(r);
	return found;
}
static bool is_at_work(const struct rank *rank) { return !is_over(rank) && rank->works; }
static bool has_finished(const struct rank *rank) { return rank->freed && rank->ended && !rank->end.status && !rank->left.status; }

/* All `expected` are at work in one communicator, of them alone, of generation `least` at least. */
static bool together(uint64_t expected, uint32_t least)
{
	int first = nth(expected, 0);

	for (int r = 0; r < size; r++)
		if ((expected & bit(r)) && (!is_at_work(&ranks[r]) || ranks[r].group != expected || ranks[r].generation < least ||
					    ranks[r].generation != ranks[first].generation))
			return false;
	return true;
}

static bool describe(const char *what, uint64_t expected)
{
	bad("%s; expected a communicator of 0x%llx:", what, (unsigned long long)expected);
	for (int r = 0; r < size; r++)
		bad("  rank %d (pid %d): generation %u, group 0x%llx%s%s%s: %s", r, (int)ranks[r].pid, ranks[r].generation, (unsigned long long)ranks[r].group,
		    ranks[r].works ? ", works" : "", ranks[r].victim ? ", struck" : "", is_over(&ranks[r]) ? ", over" : "",
		    ranks[r].left.status ? ranks[r].left.text : ranks[r].end.text);
	return false;
}

/* Until they are; *took: seconds from `began` on, or what it was if that is more. */
static bool wait_together(int listener, uint64_t expected, uint32_t least, int64_t began, int64_t within_ms, double *took)
{
	while (!together(expected, least)) {
		if (st_now_ns() - began > within_ms * ST_NS_PER_MS)
			return describe("survivors do not come together in time", expected);
		listen_to_ranks(listener, 100);
	}
	for (int r = 0; r < size; r++)
		if (expected & bit(r)) {
			double s = (double)(ranks[r].works_ns - began) / 1e9;
			*took = s > *took ? s : *took;
		}
	return true;
}

/* Whoever is left: all in the one group that is at work, or over. */
static bool wait_settled(int listener, uint64_t living, int64_t within_ms, uint64_t *group)
{
	int64_t began = st_now_ns();

	/* Until a cut is noticed, all seems well. */
	wait_listening(listener, TCP_SILENCE_MS + 2 * STALL_MS);
	for (;;) {
		*group = who(is_at_work) & living;
		if (together(*group, 1) && ((*group | who(is_over)) & living) == living)
			return true;
		if (st_now_ns() - began > within_ms * ST_NS_PER_MS)
			return describe("survivors neither go on nor give up", *group);
		listen_to_ranks(listener, 100);
	}
}

/* Never two: each communicator was made of members of the one before. */
static bool one_group(void)
{
	bool ok = true;

	for (unsigned x = 0; x < group_count; x++)
		for (unsigned y = 0; y < x; y++)
			if ((groups[x] & groups[y]) != groups[x] && (groups[x] & groups[y]) != groups[y])
				ok = bad("SPLIT BRAIN: 0x%llx and 0x%llx", (unsigned long long)groups[x], (unsigned long long)groups[y]);
	return ok;
}

/* Whether these may be the ones that go on, of those who are neither killed nor stopped. */
static bool fits(enum kind kind, uint64_t living, uint64_t one, uint64_t other, bool known, uint64_t group)
{
	uint64_t gave_up = 0;
	for (int r = 0; r < RANKS; r++)
		gave_up |= ranks[r].left.status == ST_ERR_UNAVAILABLE ? bit(r) : 0;
	/* Who has given up is as good as dead to those who had more time. */
	if (group && ((group | gave_up) & living) == living)
		return true;
	if (!group) /* nobody can be sure, or the coordinator still reaches all, who do not reach each other */
		return kind == SHRINK_CUT_LINK || !known;
	if (kind == SHRINK_CUT_LINK)
		return group == living || group == (living & ~one) || group == (living & ~other);
	/* The larger half; of two equal ones that with the lowest rank.  Without having seen that the dead are dead, perhaps neither. */
	uint64_t a = living & one, b = living & other, larger = a;
	if (__builtin_popcountll(b) > __builtin_popcountll(a) || (__builtin_popcountll(b) == __builtin_popcountll(a) && nth(b, 0) < nth(a, 0)))
		larger = b;
	return group == larger;
}

/* The first fault, the second one in the middle of it, a last one, and the end.  *orderly: nobody failed. */
static bool shrink(enum kind kind, int listener, double *took, bool *orderly)
{
	const struct fault *fault = &kinds[kind];
	uint64_t living = bit(size) - 1, stopped = 0, off = 0, other_side = 0, group;
	bool ok = true, dead_known = true;

	deed_count = group_count = verdict_count = 0;
	for (int r = 0; r < size; r++)
		ranks[r].group = living;

	/* The first: a rank dies, is stopped, or aborts, or a node dies. */
	int first = (int)draw(size), way = (int)draw(4);
	uint64_t struck = way == 1 ? node_bits(first / PER_NODE) : bit(first);
	int64_t began = st_now_ns();
	for (int r = 0; r < size; r++)
		if ((struck & bit(r)) && way < 3) {
			ranks[r].victim = true;
			kill(ranks[r].pid, way == 2 ? SIGSTOP : SIGKILL);
		}
	if (way == 3)
		order(first, ORDER_ABORT);
	else
		living &= ~struck;
	stopped |= way == 2 ? struck : 0;
	did(DID_STRIKE, struck, way == 3 ? " failed: the loss is not finite" : way == 2 ? " is unreachable" : " died");
	printf("      0x%llx%s", (unsigned long long)struck, deeds[0].how);

	/* The second: a little after the first survivor knows, somewhere in the shrinking, or just after it for the first to be through. */
	int when = (int)draw(3);
	int64_t until = st_now_ns() + HANG_MS * ST_NS_PER_MS;
	for (bool there = false; !there && st_now_ns() < until;) {
		listen_to_ranks(listener, 2);
		for (int r = 0; r < size; r++)
			there |= (living & bit(r)) && (when == 2 || kind == SHRINK ? ranks[r].generation > 0 : ranks[r].ended);
	}
	wait_listening(listener, when == 0 ? (int64_t)draw(40) : when == 1 ? (int64_t)draw(way == 2 ? 2500 : 500) : (int64_t)draw(60));
	int aim = (int)draw(3), node = (int)draw(NODES), other = (node + 1 + (int)draw(NODES - 1)) % NODES;
	int second = nth(living, aim == 0 ? 0 : (int)draw((uint64_t)__builtin_popcountll(living)));
	if (aim == 1)
		second = nth(living & node_bits(second / PER_NODE), 0);
	uint32_t least = 1;
	int64_t again = st_now_ns();
	switch (kind) {
	case SHRINK_KILL:
	case SHRINK_STOP:
		ranks[second].victim = true;
		kill(ranks[second].pid, kind == SHRINK_KILL ? SIGKILL : SIGSTOP);
		did(DID_STRIKE, bit(second), fault->how);
		living &= ~bit(second);
		stopped |= kind == SHRINK_STOP ? bit(second) : 0;
		break;
	case SHRINK_PAUSE:
		kill(ranks[second].pid, SIGSTOP);
		wait_listening(listener, STALL_MS / 4 + (int64_t)draw(STALL_MS / 4));
		kill(ranks[second].pid, SIGCONT);
		break;
	case SHRINK_ABORT: /* of a communicator that has failed it does nothing, so this may have no effect */
		order(second, ORDER_ABORT);
		did(DID_STRIKE, bit(second), fault->how);
		wait_listening(listener, STALL_MS / 2);
		break;
	case SHRINK_CUT_NODE:
		node = second / PER_NODE;
		off = node_bits(node);
		for (int n = 0; n < NODES; n++)
			ok &= n == node || cut(node, n);
		did(DID_CUT_NODES, off, fault->how);
		deeds[deed_count - 1].a = 1; /* the node itself names its own leader */
		break;
	case SHRINK_CUT_LINK:
		off = node_bits(node);
		other_side = node_bits(other);
		ok &= cut(node, other);
		did(DID_CUT_LINK, 0, "");
		deeds[deed_count - 1].a = node;
		deeds[deed_count - 1].b = other;
		break;
	case SHRINK_CUT_HALF:
		off = node_bits(node) | node_bits(other);
		other_side = (bit(size) - 1) & ~off;
		for (int n = 0; n < NODES; n++)
			ok &= n == node || n == other || (cut(node, n) && cut(other, n));
		did(DID_CUT_NODES, off, fault->how);
		dead_known = way == 3;
		break;
	default:
		again = began;
		break;
	}
	printf(", second: rank %d, node%d, node%d, moment %d\n", second, node + 1, other + 1, when);
	if (!ok)
		return false;
	if (fault->outcome == ALL_GO_ON) {
		group = living & ~off;
		if (!wait_together(listener, group, least, again, fault->within_ms, took))
			return false;
	} else {
		if (!wait_settled(listener, living, fault->within_ms, &group))
			return false;
		if (!fits(kind, living, off, other_side, dead_known, group))
			ok = describe("others than expected went on", living);
	}

	/* A further one, before or after the cut is mended and those who slept are woken up. */
	bool early = kind == SHRINK_CUT_LINK || draw(2);
	for (int turn = 0; turn < 2; turn++) {
		if (early == (turn == 0)) {
			heal();
			for (int r = 0; r < size; r++)
				if (group && (stopped & bit(r))) { /* when all have given up it may go on alone, and nobody is left to tell */
					ranks[r].victim = false; /* from now on it has something to say */
					kill(ranks[r].pid, SIGCONT);
				}
			wait_listening(listener, (int64_t)draw(500));
			continue;
		}
		if (__builtin_popcountll(group) < 2) /* who is alone does not fail */
			continue;
		int third = nth(group, (int)draw((uint64_t)__builtin_popcountll(group)));
		double last = 0;
		least = ranks[third].generation + 1;
		did(DID_STRIKE, bit(third), " failed: the loss is not finite");
		int64_t now = st_now_ns();
		order(third, ORDER_ABORT);
		if (!wait_together(listener, group, least, now, STALL_MS + SLACK_MS, &last))
			return false;
		ok &= ranks[third].generation == least || bad("an abort took %u communicators", ranks[third].generation - least + 1);
	}

	/* Who is left out says so while the others live. */
	until = st_now_ns() + (SHRINK_MS + SLACK_MS) * ST_NS_PER_MS;
	while ((who(is_over) | group) != bit(size) - 1 && st_now_ns() < until)
		listen_to_ranks(listener, 100);
	if ((who(is_over) | group) != bit(size) - 1)
		ok = describe("HANG: who is left out does not notice", group);
	for (int r = 0; r < size; r++) {
		const struct rank *rank = &ranks[r];
		if (rank->victim || (group & bit(r)))
			continue;
		if (!strstr(rank->left.text, "was left out") && !strstr(rank->left.text, "too few ranks") && !strstr(rank->left.text, "no attempt succeeded"))
			ok = describe("who is left out says something else", group);
	}
	for (int r = 0; r < size; r++)
		if (group & bit(r))
			order(r, ORDER_FINISH);
	if (!wait_for(listener, is_over, HANG_MS))
		return describe("HANG at the end", group);
	if ((who(has_finished) & ~(group)) || (group & ~who(has_finished)))
		ok = describe("others than the last communicator's members ended in an orderly way", group);

	for (unsigned v = 0; v < verdict_count; v++) {
		if (!(group & bit(verdicts[v].rank)))
			continue;
		if (!explained(verdicts[v].text, verdicts[v].rank, verdicts[v].group))
			ok = bad("rank %d names the wrong culprit in generation %u: %s", verdicts[v].rank, verdicts[v].generation, verdicts[v].text);
		for (unsigned w = 0; w < v; w++)
			if (kind != SHRINK_CUT_HALF && (group & bit(verdicts[w].rank)) && verdicts[v].generation == verdicts[w].generation &&
			    (head_of(verdicts[v].text) != head_of(verdicts[w].text) || strncmp(verdicts[v].text, verdicts[w].text, head_of(verdicts[v].text)))) {
				ok = bad("ranks %d and %d disagree: %s | %s", verdicts[v].rank, verdicts[w].rank, verdicts[v].text, verdicts[w].text);
				break;
			}
	}
	*orderly = group == bit(size) - 1;
	return ok && !*why;
}

static bool run(enum kind kind, enum moment moment, double *took)
{
	char path[PATH_MAX], output[PATH_MAX];
	int a = -1, b = -1, code = -1;
	bool ok = true;

	why[0] = 0;
	*took = 0;
	bool shrinks = kinds[kind].outcome == ALL_GO_ON || kinds[kind].outcome == SOME_GO_ON, orderly = kinds[kind].outcome == GOES_ON;
	nodes = kind == CUT_TWO ? 2 : NODES;
	size = nodes * PER_NODE;
	memset(ranks, 0, sizeof ranks);
	for (int r = 0; r < RANKS; r++)
		ranks[r].fd = -1;
	snprintf(path, sizeof path, "%s/home/nobody/driver", directory);
	snprintf(output, sizeof output, "%s/home/nobody/output", directory);
	int listener = listen_at(path);
	if (listener < 0)
		return false;
	pid_t srun = launch(output, shrinks);
	int64_t began = 0;
	if (!wait_for(listener, moment == STARTUP ? says_hello : is_ready, HANG_MS)) {
		ok = bad("the job does not start");
	} else {
		wait_listening(listener, (int64_t)draw(moment == STARTUP ? 120 : 300));
		began = shrinks ? 1 : inject(kind, listener, &a, &b);
		ok = began > 0;
		if (shrinks)
			ok = shrink(kind, listener, took, &orderly) & one_group();
	}
	if (ok && kinds[kind].outcome == GOES_ON) {
		wait_listening(listener, STALL_MS / 4);
		order(0, ORDER_FINISH);
	}
	if (ok && !wait_for(listener, is_over, HANG_MS)) {
		ok = bad("HANG: after %d s there are survivors:", HANG_MS / 1000);
		for (int r = 0; r < size; r++)
			if (!is_over(&ranks[r]))
				bad("  rank %d (pid %d), %s", r, (int)ranks[r].pid, ranks[r].ended ? ranks[r].end.text : "which has said nothing");
	}
	heal();
	/* Who was stopped for good, and who hangs. */
	for (int r = 0; r < size; r++)
		if (ranks[r].fd >= 0 && ranks[r].pid > 0 && !ranks[r].freed)
			kill(ranks[r].pid, SIGKILL);
	int status = -1;
	for (int64_t until = st_now_ns() + HANG_MS * ST_NS_PER_MS; waitpid(srun, &status, WNOHANG) == 0;) {
		if (st_now_ns() > until) {
			ok = bad("srun does not end");
			kill(srun, SIGKILL);
			waitpid(srun, &status, 0);
			break;
		}
		listen_to_ranks(listener, 10);
	}
	code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
	if (ok) {
		if (!shrinks)
			ok = judge(kind, moment == STARTUP, a, b, began, output, took);
		if ((code == 0) != orderly)
			ok = bad("srun exits with %d", code);
	}
	ok = leftovers() && ok;
	for (int r = 0; r < size; r++)
		if (ranks[r].fd >= 0)
			close(ranks[r].fd);
	close(listener);
	unlink(path);
	return ok;
}

/* ---- all runs ------------------------------------------------------------------------------------------------------ */

static int by_value(const void *x, const void *y)
{
	double a = *(const double *)x, b = *(const double *)y;

	return (a > b) - (a < b);
}

int main(int argc, char **argv)
{
	static double times[KINDS][4096];
	static size_t counts[KINDS];
	char path[PATH_MAX], text[128], id[64] = "";
	long failed = 0;

	if (argc < 5 || argc > 6) {
		fprintf(stderr, "usage: campaign DIR JOB COUNT SEED [KIND]\n");
		return 64;
	}
	directory = argv[1];
	job = argv[2];
	long count = atol(argv[3]), from = 0;
	uint64_t seed = strtoull(argv[4], NULL, 0);
	char *colon = strchr(argv[4], ':'); /* SEED:RUN: this one run */
	if (colon) {
		from = atol(colon + 1);
		count = from + 1;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	signal(SIGPIPE, SIG_IGN);
	ssize_t n = readlink("/proc/self/exe", tree, sizeof tree - 1);
	for (int up = 0; n > 0 && up < 4; up++) /* build/tests/faults/campaign */
		*strrchr(tree, '/') = 0;
	if (asprintf(&cluster, "%s/etc/quickstart/cluster", tree) < 0)
		return 1;
	snprintf(path, sizeof path, "%s/run/init", directory);
	read_file(path, text, sizeof text);
	sscanf(text, "%*s %63s", id);
	snprintf(path, sizeof path, "%s/run/net", directory);
	read_file(path, net, sizeof net);
	net[strcspn(net, "\n")] = 0;
	if (!*id || !*net || !find_nodes(id)) {
		fprintf(stderr, "campaign: no cluster is up in %s\n", directory);
		return 1;
	}
	enum kind startup_kinds[KINDS];
	long turns = KINDS;
	for (int k = 0; k < KINDS; k++)
		if (kinds[k].at_startup)
			startup_kinds[turns++ - KINDS] = (enum kind)k;
	bool brief = !count;
	if (brief)
		count = turns;
	for (long i = from; i < count; i++) {
		drawn = seed * UINT64_C(0x100000001b3) + (uint64_t)i;
		/* Every kind in turn, then every one that is meant for it at start-up, so that a short campaign has them all. */
		long turn = i % turns;
		enum kind kind = turn < KINDS ? (enum kind)turn : startup_kinds[turn - KINDS];
		enum moment moment = turn < KINDS ? RUNNING : STARTUP;
		double took;
		/* Cuts take half a minute each; deaths in the midst of shrinking are not always survived by all yet (README.md). */
		if (brief && (kind >= SHRINK_CUT_NODE || kind == SHRINK_KILL || kind == SHRINK_STOP) && moment == RUNNING)
			continue;
		if (argc == 6) {
			for (kind = 0; kind < KINDS && strcmp(argv[5], kinds[kind].name); kind++)
				;
			if (!strcmp(argv[5], "shrink*"))
				kind = SHRINK + (enum kind)(i % (KINDS - SHRINK));
			if (kind == KINDS) {
				fprintf(stderr, "campaign: no kind '%s'\n", argv[5]);
				return 64;
			}
			moment = kinds[kind].at_startup && i % 2 ? STARTUP : RUNNING;
		}
		int64_t start = st_now_ns();
		bool ok = run(kind, moment, &took);
		printf("%s %ld %s%s: %.2f s, whole run %.1f s\n", ok ? "ok   " : "FAIL ", i, kinds[kind].name, moment == STARTUP ? " at start-up" : "", took,
		       (double)(st_now_ns() - start) / 1e9);
		if (!ok) {
			failed++;
			printf("%s      repeat with: campaign DIR JOB 1 %llu:%ld%s%s\n", why, (unsigned long long)seed, i, argc == 6 ? " " : "",
			       argc == 6 ? argv[5] : "");
		} else if (moment == RUNNING && kinds[kind].outcome != GOES_ON && counts[kind] < 4096) {
			times[kind][counts[kind]++] = took;
		}
	}
	printf("seconds until the last survivor knew: least, median, most\n");
	for (int k = 0; k < KINDS; k++) {
		if (!counts[k])
			continue;
		qsort(times[k], counts[k], sizeof *times[k], by_value);
		printf("  %-20s %5.2f %5.2f %5.2f  (%zu runs)\n", kinds[k].name, times[k][0], times[k][counts[k] / 2], times[k][counts[k] - 1], counts[k]);
	}
	printf("%ld runs, %ld failed, seed %llu\n", count - from, failed, (unsigned long long)seed);
	return failed != 0;
}
