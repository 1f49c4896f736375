// Preloaded into the programs of a job on one host, so that no other host and no other user reaches them.
//
// Open MPI's mpirun listens on all addresses for the daemons of other hosts, and no parameter changes that. A job on one
// host has no daemons, so a port of mpirun is bound to the loopback interface and drops every packet. Horovod's Gloo binds
// its ports to the address of the host's name: this library binds them to the loopback interface instead. Ports of the
// loopback interface stay as they are: those of PMIx, by which ranks and mpirun find each other.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static void drop_packets(int descriptor) {
    struct sock_filter none = BPF_STMT(BPF_RET | BPF_K, 0);
    struct sock_fprog program = {.len = 1, .filter = &none};
    setsockopt(descriptor, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
}

int bind(int descriptor, __CONST_SOCKADDR_ARG address, socklen_t length) {
    union {
        struct sockaddr any;
        struct sockaddr_in four;
        struct sockaddr_in6 six;
    } own = {.any = {.sa_family = AF_UNSPEC}};
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
