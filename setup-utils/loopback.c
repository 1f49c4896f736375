// Preloaded into the programs of a job on one host, so that no other host and no other user reaches them.
//
// Hosts: Open MPI's mpirun listens on all addresses for the daemons of other hosts, and no parameter changes that. A job on
// one host has no daemons, so such a port of mpirun is bound to the loopback interface and drops every packet. Horovod's
// Gloo binds its ports to the address of the host's name: here they are bound to the loopback interface instead.
//
// Users: Gloo believes whoever connects, and PMIx, by which ranks and mpirun find each other, believes the user that it is
// told. So accept() returns connections of this user only. Both ends are on this host, whose /proc/net/tcp has the users.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

union address {
    struct sockaddr any;
    struct sockaddr_in four;
    struct sockaddr_in6 six;
};

// How long accept() waits for a connection of this user after one of another user.
static const int PATIENCE_MILLISECONDS = 5000;

static void drop_packets(int descriptor) {
    struct sock_filter none = BPF_STMT(BPF_RET | BPF_K, 0);
    struct sock_fprog program = {.len = 1, .filter = &none};
    setsockopt(descriptor, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
}

int bind(int descriptor, __CONST_SOCKADDR_ARG address, socklen_t length) {
    union address own = {.any = {.sa_family = AF_UNSPEC}};
    int type = 0, is_open = 0;
    socklen_t size = sizeof type;
    getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &size);
    if (type == SOCK_STREAM && length <= sizeof own) memcpy(&own, address.__sockaddr__, length);
    if (own.any.sa_family == AF_INET && ntohl(own.four.sin_addr.s_addr) >> 24 != IN_LOOPBACKNET) {
        is_open = own.four.sin_addr.s_addr == htonl(INADDR_ANY);
        own.four.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    } else if (own.any.sa_family == AF_INET6) {
        is_open = IN6_IS_ADDR_UNSPECIFIED(&own.six.sin6_addr);
        own.six.sin6_addr = in6addr_loopback;
        own.six.sin6_scope_id = 0;
    } else {
        return syscall(SYS_bind, descriptor, address.__sockaddr__, length);
    }
    if (is_open && strcmp(program_invocation_short_name, "mpirun") == 0) drop_packets(descriptor);
    return syscall(SYS_bind, descriptor, &own, length);
}

// Writes an address as /proc/net/tcp has it, or with is_six as /proc/net/tcp6.
static int write_address(char *text, const union address *end, int is_six) {
    if (end->any.sa_family == AF_INET6) {
        const uint32_t *words = end->six.sin6_addr.s6_addr32;
        unsigned port = ntohs(end->six.sin6_port);
        if (is_six) return sprintf(text, "%08X%08X%08X%08X:%04X", words[0], words[1], words[2], words[3], port);
        return sprintf(text, "%08X:%04X", words[3], port);
    }
    const char *mapped = is_six ? "0000000000000000FFFF0000" : "";
    return sprintf(text, "%s%08X:%04X", mapped, end->four.sin_addr.s_addr, ntohs(end->four.sin_port));
}

enum { IS_LISTED, IS_NOT_LISTED, NO_LIST };

// Whether a file lists an open socket of this user that connects one address to another. A socket that its process has
// closed has no inode, and root as its user. A file of a working system lists at least the socket that listens.
static int look_up(const char *path, const union address *from, const union address *to, int is_six) {
    char line[512], wanted[128];
    int size = write_address(wanted, from, is_six), result = NO_LIST;
    wanted[size++] = ' ';
    size += write_address(wanted + size, to, is_six);
    FILE *file = fopen(path, "re");
    // Otherwise there are too many open files, or too little memory.
    if (!file) return errno == ENOENT || errno == EACCES ? NO_LIST : IS_NOT_LISTED;
    while (result != IS_LISTED && fgets(line, sizeof line, file)) {
        const char *entry = strchr(line, ':');
        unsigned user = 0;
        unsigned long inode = 0;
        if (!entry) continue;
        result = IS_NOT_LISTED;
        if (strncmp(entry + 2, wanted, size) != 0) continue;
        sscanf(entry + 2 + size, "%*x %*x:%*x %*x:%*x %*x %u %*d %lu", &user, &inode);
        if (inode && user == geteuid()) result = IS_LISTED;
    }
    fclose(file);
    return result;
}

// Whether the other end of a connection is on this host, and an open socket of this user. Python calls it, too.
int is_of_this_user(int descriptor) {
    static int is_told;
    union address here, there;
    socklen_t size = sizeof here;
    if (getsockname(descriptor, &here.any, &size)) return 0;
    if (here.any.sa_family != AF_INET && here.any.sa_family != AF_INET6) return 1;
    size = sizeof there;
    if (getpeername(descriptor, &there.any, &size)) return 0;
    int is_four = here.any.sa_family == AF_INET || IN6_IS_ADDR_V4MAPPED(&here.six.sin6_addr);
    int four = is_four ? look_up("/proc/self/net/tcp", &there, &here, 0) : NO_LIST;
    int six = four == IS_LISTED ? NO_LIST : look_up("/proc/self/net/tcp6", &there, &here, 1);
    if (four == IS_LISTED || six == IS_LISTED) return 1;
    if (four == IS_NOT_LISTED || six == IS_NOT_LISTED) return 0;
    // A system without these files, on which no job would start otherwise.
    if (!__atomic_exchange_n(&is_told, 1, __ATOMIC_RELAXED)) {
        fprintf(stderr, "warning: /proc/net/tcp lists no connections, so other users of this host reach ports of this job\n");
    }
    return 1;
}

static int milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int)(now.tv_sec % 1000000) * 1000 + (int)(now.tv_nsec / 1000000);
}

int accept4(int descriptor, __SOCKADDR_ARG address, socklen_t *length, int flags) {
    static unsigned refused;
    int end = 0;
    for (;;) {
        // After another user's connection, which has been announced to the caller: Gloo takes an error for the end of the
        // job, so this waits for the next one, but not forever, as Gloo does nothing else meanwhile. PMIx tries again
        // after this error alone.
        struct pollfd waiting = {.fd = descriptor, .events = POLLIN};
        if (end && (milliseconds() > end || poll(&waiting, 1, end - milliseconds()) <= 0)) {
            errno = ECONNABORTED;
            return -1;
        }
        socklen_t size = length ? *length : 0;
        int accepted = syscall(SYS_accept4, descriptor, address.__sockaddr__, length ? &size : NULL, flags);
        if (accepted < 0) return -1;
        if (is_of_this_user(accepted)) {
            if (length) *length = size;
            return accepted;
        }
        close(accepted);
        if (!end) end = milliseconds() + PATIENCE_MILLISECONDS;
        unsigned count = __atomic_add_fetch(&refused, 1, __ATOMIC_RELAXED);
        // The first one, the second, the fourth and so on.
        if ((count & (count - 1)) == 0) {
            fprintf(stderr, "warning: a connection of another user of this host was closed; %u so far\n", count);
        }
    }
}

int accept(int descriptor, __SOCKADDR_ARG address, socklen_t *length) { return accept4(descriptor, address, length, 0); }
