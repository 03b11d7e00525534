/* A network that delivers other bytes than were sent: preloaded into rank 1, flips a bit at the end of each large receive. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
	ssize_t (*real)(int, struct msghdr *, int);
	*(void **)&real = dlsym(RTLD_NEXT, "recvmsg");
	ssize_t n = real(fd, message, flags);
	const char *rank = getenv("RANK");

	if (n < 4096 || !rank || strcmp(rank, "1"))
		return n;
	size_t at = (size_t)n - 1;
	for (size_t i = 0; i < message->msg_iovlen; i++) {
		if (at < message->msg_iov[i].iov_len) {
			((unsigned char *)message->msg_iov[i].iov_base)[at] ^= 0x40;
			break;
		}
		at -= message->msg_iov[i].iov_len;
	}
	return n;
}
