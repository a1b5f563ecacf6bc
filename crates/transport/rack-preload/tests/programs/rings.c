// SPDX-License-Identifier: Apache-2.0
// Both ends of a connection, one of which reads by a ring of io_uring: `rings before` makes it before the connection, `rings after MS` once so
// much time of messages has passed. `rings files MS` makes one as `before`, and does not read by it. Prints what the ring was and what it has read.
#include <arpa/inet.h>
#include <errno.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static int ring = -1;
static struct io_uring_params params;

static void make(void) {
    ring = (int)syscall(SYS_io_uring_setup, 4, &params);
    printf("ring: %s\n", ring < 0 ? strerror(errno) : "made");
}

static void read_by_ring(int fd, char *into, unsigned len) {
    unsigned char *sq = mmap(NULL, params.sq_off.array + params.sq_entries * sizeof(uint32_t), PROT_READ | PROT_WRITE,
                             MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQ_RING);
    struct io_uring_sqe *sqes = mmap(NULL, params.sq_entries * sizeof *sqes, PROT_READ | PROT_WRITE,
                                     MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQES);
    unsigned char *cq = mmap(NULL, params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe),
                             PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_CQ_RING);
    if (sq == MAP_FAILED || sqes == MAP_FAILED || cq == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    memset(&sqes[0], 0, sizeof sqes[0]);
    sqes[0].opcode = IORING_OP_RECV;
    sqes[0].fd = fd;
    sqes[0].addr = (uintptr_t)into;
    sqes[0].len = len;
    *(uint32_t *)(sq + params.sq_off.array) = 0;
    __atomic_store_n((uint32_t *)(sq + params.sq_off.tail), 1, __ATOMIC_RELEASE);
    if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) != 1) {
        perror("io_uring_enter");
        exit(1);
    }
    struct io_uring_cqe *cqe = (void *)(cq + params.cq_off.cqes);
    printf("the ring has read %d: %.*s\n", cqe->res, cqe->res > 0 ? cqe->res : 0, into);
}

int main(int argc, char **argv) {
    int is_for_files = argc > 1 && !strcmp(argv[1], "files");
    int is_before = is_for_files || (argc > 1 && !strcmp(argv[1], "before"));
    if (is_before)
        make();
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    if (bind(listener, (void *)&at, len) || listen(listener, 1) || getsockname(listener, (void *)&at, &len) ||
        connect(one, (void *)&at, len)) {
        perror("connection");
        return 1;
    }
    int other = accept(listener, NULL, NULL);
    char byte = 'x', text[16] = {0};
    for (int ms = argc > 2 ? atoi(argv[2]) : 30; ms > 0; ms--) {
        if (write(one, &byte, 1) != 1 || read(other, &byte, 1) != 1 || write(other, &byte, 1) != 1 ||
            read(one, &byte, 1) != 1) {
            perror("message");
            return 1;
        }
        usleep(1000);
    }
    if (!is_before)
        make();
    if (write(one, "by a ring", 9) != 9)
        return 1;
    if (ring >= 0 && !is_for_files)
        read_by_ring(other, text, sizeof text);
    else
        printf("read %zd: %.9s\n", read(other, text, sizeof text), text);
    return 0;
}
