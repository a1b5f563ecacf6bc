/* SPDX-License-Identifier: Apache-2.0 */
/* Signals that interrupt calls that wait. */
#include "calls.h"

static void writes_late(void *fd) {
  pauses(250);
  writes_one(fd);
}

/* A signal comes first, and again and again; then what is waited for. */
#define INTERRUPTED(label, call)                                               \
  do {                                                                         \
    struct nag nag;                                                            \
    nags(&nag);                                                                \
    long result_ = (long)(call);                                               \
    int why_ = errno;                                                          \
    stops(&nag);                                                               \
    shows(label, result_, why_);                                               \
    errno = why_;                                                              \
  } while (0)

static void without_restart(void) {
  char into[8];
  struct iovec one = {into, 8};
  struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1};
  struct pollfd polled = {a, POLLIN, 0};
  struct epoll_event event = {.events = EPOLLIN};
  int set = OK(epoll_create1(0));
  OK(epoll_ctl(set, EPOLL_CTL_ADD, a, &event));
  catches(SIGUSR1, 0);
  step();
  INTERRUPTED("read", read(a, into, 8));
  INTERRUPTED("recv", recv(a, into, 8, 0));
  INTERRUPTED("recvfrom", recvfrom(a, into, 8, 0, NULL, NULL));
  INTERRUPTED("recvmsg", recvmsg(a, &message, 0));
  INTERRUPTED("readv", readv(a, &one, 1));
  INTERRUPTED("recv that looks", recv(a, into, 8, MSG_PEEK));
  step();
  INTERRUPTED("poll", poll(&polled, 1, 5000));
  INTERRUPTED("ppoll", ppoll(&polled, 1, &(struct timespec){5, 0}, NULL));
  fd_set fds;
  FD_ZERO(&fds);
  FD_SET(a, &fds);
  INTERRUPTED("select", select(a + 1, &fds, NULL, NULL, &(struct timeval){5, 0}));
  FD_SET(a, &fds);
  INTERRUPTED("pselect", pselect(a + 1, &fds, NULL, NULL, &(struct timespec){5, 0}, NULL));
  step();
  INTERRUPTED("epoll_wait", epoll_wait(set, &event, 1, 5000));
  INTERRUPTED("epoll_pwait", epoll_pwait(set, &event, 1, -1, NULL));
  INTERRUPTED("epoll_pwait2", epoll_pwait2(set, &event, 1, &(struct timespec){5, 0}, NULL));
  stuffs(a);
  INTERRUPTED("write", write(a, into, 8));
  INTERRUPTED("send", send(a, into, 8, 0));
  INTERRUPTED("writev", writev(a, &one, 1));
  INTERRUPTED("sendmsg", sendmsg(a, &message, 0));
  int listener = listens(5);
  INTERRUPTED("accept", accept(listener, NULL, NULL));
  say("caught some: %d", caught > 10);
}

/* What was read or written before the signal counts. */
static void in_the_middle(void) {
  static char into[4 << 20];
  catches(SIGUSR1, 0);
  sends(b, "abc");
  there(a, 3);
  step();
  INTERRUPTED("recv for all", recv(a, into, 8, MSG_WAITALL));
  struct nag nag;
  nags(&nag);
  long some = send(a, into, sizeof into, 0);
  stops(&nag);
  say("send of much: %s", some > 0 && some < (long)sizeof into ? "a part" : "something else");
}

static void with_restart(void) {
  char into[8];
  struct later more;
  catches(SIGUSR1, SA_RESTART);
  step();
#define RESTARTED(label, call)                                                 \
  later(&more, 0, writes_late, &b);                                            \
  INTERRUPTED(label, call);                                                    \
  joins(&more);                                                                \
  takes(a, 1)
  later(&more, 0, writes_late, &b);
  long got = -1;
  INTERRUPTED("read", got = read(a, into, 1));
  joins(&more);
  if (got < 0)
    takes(a, 1);
  RESTARTED("recv that looks", recv(a, into, 1, MSG_PEEK));
  struct pollfd polled = {a, POLLIN, 0};
  struct epoll_event event = {.events = EPOLLIN};
  int set = OK(epoll_create1(0));
  OK(epoll_ctl(set, EPOLL_CTL_ADD, a, &event));
  RESTARTED("poll", poll(&polled, 1, 5000));
  RESTARTED("epoll_wait", epoll_wait(set, &event, 1, 5000));
  fd_set fds;
  FD_ZERO(&fds);
  FD_SET(a, &fds);
  RESTARTED("select", select(a + 1, &fds, NULL, NULL, NULL));
}

static void takes_late(void *fd) {
  static char into[65536];
  for (int turn = 0; turn < 80; turn++) {
    pauses(1);
    while (turn > 40 && recv(*(int *)fd, into, sizeof into, MSG_DONTWAIT) > 0)
      ;
  }
}

static void with_restart_of_writes(void) {
  static char some[4 << 20];
  struct later more;
  catches(SIGUSR1, SA_RESTART);
  stuffs(a);
  step();
  later(&more, 0, takes_late, &b);
  INTERRUPTED("send", send(a, some, 3, 0));
  joins(&more);
}

/* A read with a limit is not restarted. */
static void with_a_limit(void) {
  char into[8];
  struct timeval limit = {5, 0};
  OK(setsockopt(a, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
  catches(SIGUSR1, SA_RESTART);
  step();
  INTERRUPTED("read", read(a, into, 8));
  INTERRUPTED("recv", recv(a, into, 8, 0));
}

static void with_a_mask(void) {
  struct pollfd one = {a, POLLIN, 0};
  struct epoll_event event = {.events = EPOLLIN};
  int set = OK(epoll_create1(0));
  OK(epoll_ctl(set, EPOLL_CTL_ADD, a, &event));
  sigset_t all, none;
  sigfillset(&all);
  sigemptyset(&none);
  catches(SIGUSR1, 0);
  OK(sigprocmask(SIG_SETMASK, &all, NULL));
  pthread_kill(main_thread, SIGUSR1);
  SHOW("poll, blocked", poll(&one, 1, 20));
  say("caught %d", caught);
  SHOW("ppoll", ppoll(&one, 1, &(struct timespec){5, 0}, &none));
  say("caught %d", caught);
  pthread_kill(main_thread, SIGUSR1);
  SHOW("epoll_pwait", epoll_pwait(set, &event, 1, 5000, &none));
  say("caught %d", caught);
  pthread_kill(main_thread, SIGUSR1);
  SHOW("epoll_pwait2", epoll_pwait2(set, &event, 1, &(struct timespec){5, 0}, &none));
  say("caught %d", caught);
  fd_set fds;
  FD_ZERO(&fds);
  FD_SET(a, &fds);
  pthread_kill(main_thread, SIGUSR1);
  SHOW("pselect", pselect(a + 1, &fds, NULL, NULL, &(struct timespec){5, 0}, &none));
  say("caught %d", caught);
  /* What is there goes before a signal that is pending. */
  sends(b, "x");
  there(a, 1);
  SHOW("ppoll, with bytes", ppoll(&one, 1, &(struct timespec){5, 0}, &all));
  SHOW("epoll_pwait, with bytes", epoll_pwait(set, &event, 1, 5000, &all));
}

static int of_handler;

static void talks(int number) {
  char byte;
  (void)number;
  int why = errno;
  if (send(of_handler, "h", 1, MSG_NOSIGNAL | MSG_DONTWAIT) != 1 || recv(of_handler, &byte, 1, MSG_DONTWAIT) < -1)
    caught = -1000;
  caught++;
  errno = why;
}

/* A handler uses another connection, and the same one. */
static void handlers_use_connections(void) {
  int ends[2];
  char into[8];
  pairs(ends);
  of_handler = ends[0];
  struct sigaction how = {.sa_handler = talks};
  OK(sigaction(SIGUSR1, &how, NULL));
  step();
  INTERRUPTED("read", read(a, into, 8));
  takes(ends[1], 1);
  of_handler = a;
  INTERRUPTED("read of the same one", read(a, into, 8));
  takes(b, 1);
  say("well: %d", caught > 0);
}

static void kills_by_pipe(void) {
  OK(shutdown(a, SHUT_WR));
  pid_t child = OK(fork());
  if (child == 0) {
    send(a, "x", 1, 0);
    _exit(5);
  }
  int status;
  OK(waitpid(child, &status, 0));
  say("by SIGPIPE: %d", WIFSIGNALED(status) && WTERMSIG(status) == SIGPIPE);
}

const struct scenario OF_SIGNALS[] = {
    {"without-restart", without_restart},
    {"in-the-middle", in_the_middle},
    {"with-restart", with_restart},
    {"with-restart-of-writes", with_restart_of_writes},
    {"with-a-limit", with_a_limit},
    {"with-a-mask", with_a_mask},
    {"handlers-use-connections", handlers_use_connections},
    {"kills-by-pipe", kills_by_pipe},
    {0},
};
