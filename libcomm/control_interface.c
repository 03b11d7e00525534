#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/digest.h"
#include "control_internal.h"

#define LOOKUP_MS 2000

void control_host_id(uint8_t id[16])
{
	/* Boot id and network namespace: a node that lives in a namespace of its own does not share a host with its neighbours. */
	char text[128] = "";
	uint8_t digest[ST_SHA256_BYTES] = {0};
	struct st_sha256 hash;
	struct stat space;
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	ssize_t n = 0;

	if (fd >= 0) {
		n = read(fd, text, 64);
		close(fd);
	}
	if (n <= 0 && gethostname(text, 64) == 0)
		n = (ssize_t)strlen(text);
	if (n < 0)
		n = 0;
	if (stat("/proc/self/ns/net", &space) == 0)
		n += snprintf(text + n, sizeof text - (size_t)n, "/%llu", (unsigned long long)space.st_ino);
	if (st_sha256_begin(&hash) == ST_OK && st_sha256_update(&hash, text, (size_t)n) == ST_OK)
		st_sha256_end(&hash, digest);
	memcpy(id, digest, 16);
}

static bool is_address(const struct ifaddrs *entry, int family)
{
	return entry->ifa_addr && entry->ifa_addr->sa_family == family && (entry->ifa_flags & IFF_UP);
}

static const uint8_t *ipv4_of(const struct sockaddr *address)
{
	return (const uint8_t *)&((const struct sockaddr_in *)(const void *)address)->sin_addr;
}

static const uint8_t *ipv6_of(const struct sockaddr *address)
{
	return (const uint8_t *)&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
}

static bool link_local(const uint8_t ipv6[16])
{
	return ipv6[0] == 0xfe && (ipv6[1] & 0xc0) == 0x80;
}

/* All addresses of one interface: the first IPv4 and the best IPv6 (a link-local one needs a scope that peers can't know). */
static bool take_interface(const struct ifaddrs *list, const char *name, struct control_addresses *out)
{
	*out = (struct control_addresses){0};
	for (const struct ifaddrs *e = list; e; e = e->ifa_next) {
		if (strcmp(e->ifa_name, name))
			continue;
		if (is_address(e, AF_INET) && !out->has4) {
			memcpy(out->ipv4, ipv4_of(e->ifa_addr), 4);
			out->has4 = true;
		}
		if (is_address(e, AF_INET6) && !link_local(ipv6_of(e->ifa_addr)) && !out->has6) {
			memcpy(out->ipv6, ipv6_of(e->ifa_addr), 16);
			out->has6 = true;
		}
		if (out->has4 || out->has6)
			out->loopback = e->ifa_flags & IFF_LOOPBACK;
	}
	snprintf(out->interface, sizeof out->interface, "%s", name);
	out->index = if_nametoindex(name);
	return out->has4 || out->has6;
}

/* One address only: the interface that owns it. */
static bool take_address(const struct ifaddrs *list, const char *text, struct control_addresses *out)
{
	uint8_t wanted[16];
	int family = strchr(text, ':') ? AF_INET6 : AF_INET;

	if (inet_pton(family, text, wanted) != 1)
		return false;
	for (const struct ifaddrs *e = list; e; e = e->ifa_next) {
		if (!is_address(e, family))
			continue;
		if (memcmp(family == AF_INET ? ipv4_of(e->ifa_addr) : ipv6_of(e->ifa_addr), wanted, family == AF_INET ? 4 : 16))
			continue;
		*out = (struct control_addresses){.has4 = family == AF_INET, .has6 = family == AF_INET6};
		memcpy(family == AF_INET ? out->ipv4 : out->ipv6, wanted, family == AF_INET ? 4 : 16);
		out->loopback = e->ifa_flags & IFF_LOOPBACK;
		snprintf(out->interface, sizeof out->interface, "%s", e->ifa_name);
		out->index = if_nametoindex(e->ifa_name);
		return true;
	}
	return false;
}

/* getaddrinfo() may ask a name server that never answers, so it runs in a thread that is left behind after a while. */
struct lookup {
	pthread_mutex_t lock;
	pthread_cond_t ended;
	unsigned references;
	bool done;
	char name[256];
	struct addrinfo *found;
};

static void lookup_release(struct lookup *lookup)
{
	pthread_mutex_lock(&lookup->lock);
	bool last = --lookup->references == 0;
	pthread_mutex_unlock(&lookup->lock);
	if (!last)
		return;
	if (lookup->found)
		freeaddrinfo(lookup->found);
	pthread_cond_destroy(&lookup->ended);
	pthread_mutex_destroy(&lookup->lock);
	free(lookup);
}

static void *lookup_thread(void *argument)
{
	struct lookup *lookup = argument;
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;

	if (getaddrinfo(lookup->name, NULL, &hints, &found) != 0)
		found = NULL;
	pthread_mutex_lock(&lookup->lock);
	lookup->found = found;
	lookup->done = true;
	pthread_cond_signal(&lookup->ended);
	pthread_mutex_unlock(&lookup->lock);
	lookup_release(lookup);
	return NULL;
}

/* The interface that owns an address of host NAME. */
static bool take_host(const struct ifaddrs *list, const char *name, struct control_addresses *out)
{
	struct lookup *lookup = calloc(1, sizeof *lookup);
	pthread_condattr_t clock_attribute;
	pthread_attr_t attributes;
	sigset_t all, before;
	pthread_t thread;
	bool taken = false;

	if (!lookup)
		return false;
	pthread_mutex_init(&lookup->lock, NULL);
	pthread_condattr_init(&clock_attribute);
	pthread_condattr_setclock(&clock_attribute, CLOCK_MONOTONIC);
	pthread_cond_init(&lookup->ended, &clock_attribute);
	pthread_condattr_destroy(&clock_attribute);
	lookup->references = 2;
	snprintf(lookup->name, sizeof lookup->name, "%s", name);
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	if (pthread_create(&thread, &attributes, lookup_thread, lookup) != 0)
		lookup->references = 1;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);

	struct timespec until;
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += LOOKUP_MS / 1000;
	pthread_mutex_lock(&lookup->lock);
	while (lookup->references == 2 && !lookup->done)
		if (pthread_cond_timedwait(&lookup->ended, &lookup->lock, &until) == ETIMEDOUT)
			break;
	for (const struct addrinfo *a = lookup->done ? lookup->found : NULL; a && !taken; a = a->ai_next)
		for (const struct ifaddrs *e = list; e && !taken; e = e->ifa_next) {
			if (!is_address(e, a->ai_family) || (e->ifa_flags & IFF_LOOPBACK))
				continue;
			if ((a->ai_family == AF_INET && !memcmp(ipv4_of(e->ifa_addr), ipv4_of(a->ai_addr), 4)) ||
			    (a->ai_family == AF_INET6 && !memcmp(ipv6_of(e->ifa_addr), ipv6_of(a->ai_addr), 16)))
				taken = take_interface(list, e->ifa_name, out);
		}
	pthread_mutex_unlock(&lookup->lock);
	lookup_release(lookup);
	return taken;
}

/* The interface of the default route, IPv4 then IPv6. */
static bool default_route(char name[IF_NAMESIZE])
{
	char line[512], interface[IF_NAMESIZE];
	bool found = false;
	FILE *file = fopen("/proc/net/route", "re");

	while (file && !found && fgets(line, sizeof line, file)) {
		unsigned long destination, gateway, flags, mask;
		if (sscanf(line, "%15s %lx %lx %lx %*s %*s %*s %lx", interface, &destination, &gateway, &flags, &mask) == 5)
			found = destination == 0 && mask == 0 && (flags & 1);
	}
	if (file)
		fclose(file);
	if (!found) {
		file = fopen("/proc/net/ipv6_route", "re");
		while (file && !found && fgets(line, sizeof line, file)) {
			char destination[33];
			unsigned prefix;
			if (sscanf(line, "%32s %x %*s %*s %*s %*s %*s %*s %*s %15s", destination, &prefix, interface) == 3)
				found = prefix == 0 && strspn(destination, "0") == 32 && strcmp(interface, "lo");
		}
		if (file)
			fclose(file);
	}
	if (found)
		memcpy(name, interface, IF_NAMESIZE);
	return found;
}

/* Bridges and pairs that containers and virtual machines leave on a host: up, addressed, and leading nowhere else. */
static bool of_containers(const char *name)
{
	static const char *const prefixes[] = {"docker", "veth", "virbr", "br-", "cni", "flannel", "cali", "lxc", "lxdbr", "podman", "tun", "tap"};
	char path[64];

	for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
		if (!strncmp(name, prefixes[i], strlen(prefixes[i])))
			return true;
	snprintf(path, sizeof path, "/sys/class/net/%.15s/bridge", name);
	return access(path, F_OK) == 0;
}

static enum st_status unknown_interface(const struct ifaddrs *list, const char *wanted)
{
	char known[256] = "";
	size_t used = 0;

	for (const struct ifaddrs *e = list; e; e = e->ifa_next) {
		struct control_addresses ignored;
		/* One entry per family: name each interface once. */
		bool named = false;
		for (const struct ifaddrs *p = list; p != e; p = p->ifa_next)
			named |= !strcmp(p->ifa_name, e->ifa_name);
		if (!named && take_interface(list, e->ifa_name, &ignored) && used < sizeof known)
			used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", e->ifa_name);
	}
	return st_fail(ST_ERR_CONFIG, "interface: seen '%.64s', expected the name or an address of one that is up: %s", wanted, known);
}

enum st_status control_interface_choose(const char *wanted, struct control_addresses *out)
{
	struct ifaddrs *list;
	const char *slurm_node = getenv("SLURMD_NODENAME");
	char name[IF_NAMESIZE];
	enum st_status status = ST_OK;

	if (getifaddrs(&list) < 0)
		return st_fail_errno("can't list the network interfaces");
	if (wanted && *wanted) {
		if (!take_interface(list, wanted, out) && !take_address(list, wanted, out))
			status = unknown_interface(list, wanted);
		goto free_list;
	}
	if (slurm_node && *slurm_node && take_host(list, slurm_node, out))
		goto free_list;
	if (default_route(name) && take_interface(list, name, out))
		goto free_list;
	for (const struct ifaddrs *e = list; e; e = e->ifa_next)
		if ((e->ifa_flags & IFF_UP) && !(e->ifa_flags & IFF_LOOPBACK) && !of_containers(e->ifa_name) &&
		    take_interface(list, e->ifa_name, out))
			goto free_list;
	for (const struct ifaddrs *e = list; e; e = e->ifa_next)
		if ((e->ifa_flags & IFF_LOOPBACK) && take_interface(list, e->ifa_name, out))
			goto free_list;
	status = st_fail(ST_ERR_UNAVAILABLE, "no network interface with an address is up, not even loopback");
free_list:
	freeifaddrs(list);
	return status;
}
