/* SPDX-License-Identifier: Apache-2.0 */
/* Scenarios of calls on sockets. Each prints what it sees, and nothing that differs from run to run. */
#ifndef CALLS_H
#define CALLS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

struct scenario {
  const char *name;
  void (*run)(void);
};

/* The ends of the connection: `a` is the one under test. */
extern int a, b;
extern pthread_t main_thread;

/* Before each call that is shown: where the memory comes at a call of the run's choice, it comes here. */
void step(void);
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
long shows(const char *label, long result, int why);
void fails(const char *what) __attribute__((noreturn));

/* Shows what a call returns, or its error. */
#define SHOW(label, call)                                                      \
  ({                                                                           \
    step();                                                                    \
    errno = 0;                                                                 \
    long result_ = (long)(call);                                               \
    int why_ = errno;                                                          \
    shows(label, result_, why_);                                               \
    errno = why_;                                                              \
    result_;                                                                   \
  })
/* What has to go well. */
#define OK(call)                                                               \
  ({                                                                           \
    long ok_ = (long)(call);                                                   \
    if (ok_ < 0)                                                               \
      fails(#call);                                                            \
    ok_;                                                                       \
  })
#define LENGTH(array) (sizeof(array) / sizeof(*(array)))

/* One more connection as the run has them; with the memory, if the run has it from the beginning. */
void pairs(int ends[2]);
/* A listener, its address as a client names it, and a client's socket. */
int listens(int backlog);
socklen_t address(int listener, struct sockaddr_storage *at);
int client(void);
/* Until both directions of a connection go over memory, if they are to. */
void warms(int one, int other);

void pauses(int ms);
/* Until so many bytes are there to be read. */
void there(int fd, int count);
/* Until the end, or an error, is there to be read. */
void ended(int fd);
/* Reads exactly so many bytes, or to the end, and shows how many they were and whether they were those of `fills`. */
void drains(const char *label, int fd, long count);
/* Reads so much, in as many calls as that takes, and shows it. */
void gathers(const char *label, int fd, long count);
/* Bytes as they are sent; the first one has this place. */
void fills(char *into, long count, long place);
void sends(int fd, const char *text);
/* Writes without a wait until there is no room, and returns how much it was. */
long stuffs(int fd);
/* Reads so much, without showing it. */
void takes(int fd, long count);

/* The names of bits of poll and epoll. */
const char *bits(unsigned bits);

/* Does something in another thread after a while. */
struct later {
  pthread_t thread;
  int ms;
  void (*what)(void *);
  void *with;
};
void later(struct later *later, int ms, void (*what)(void *), void *with);
void joins(struct later *later);
/* For `later`: writes a byte to, closes, ends the writing of, or shuts the descriptor that is pointed to. */
void writes_one(void *fd);
void closes(void *fd);
void ends_writing(void *fd);
void shuts(void *fd);

/* A handler that counts, with these flags. */
extern volatile sig_atomic_t caught;
void catches(int number, int flags);
/* SIGUSR1 to the main thread again and again until `stops`, so that none comes too early only. */
struct nag {
  pthread_t thread;
  volatile int is_over;
};
void nags(struct nag *nag);
void stops(struct nag *nag);

extern const struct scenario OF_DATA[], OF_FLAGS[], OF_ENDS[], OF_NAMES[], OF_WAITS[], OF_SETS[], OF_SIGNALS[], OF_PROCESSES[], OF_RACES[];

#endif
