/* SPDX-License-Identifier: Apache-2.0 */
/* Sets of epoll. */
#include "calls.h"

static int set;

static long control(int change, int fd, unsigned events, unsigned data) {
  struct epoll_event event = {.events = events, .data.u64 = data};
  return epoll_ctl(set, change, fd, &event);
}

/* What a wait tells, by the numbers of what is told. */
static void waits(const char *label, int of, int ms) {
  struct epoll_event events[16];
  step();
  int count = epoll_wait(of, events, 16, ms);
  char text[512] = "", one[100];
  unsigned done = 0;
  for (int turn = 0; turn < count; turn++) {
    int least = -1;
    for (int at = 0; at < count; at++)
      if (!(done & 1u << at) && (least < 0 || events[at].data.u64 < events[least].data.u64))
        least = at;
    done |= 1u << least;
    snprintf(one, sizeof one, " %u:%s", (unsigned)events[least].data.u64, bits(events[least].events));
    strcat(text, one);
  }
  if (count < 0)
    say("%s: %s", label, strerrorname_np(errno));
  else
    say("%s: %d%s", label, count, text);
}

static void level(void) {
  set = OK(epoll_create1(EPOLL_CLOEXEC));
  SHOW("ADD", control(EPOLL_CTL_ADD, a, EPOLLIN | EPOLLOUT | EPOLLRDHUP, 1));
  SHOW("ADD again", control(EPOLL_CTL_ADD, a, EPOLLIN, 1));
  waits("room", set, 0);
  waits("room again", set, 0);
  sends(b, "abc");
  there(a, 3);
  waits("bytes and room", set, 1000);
  SHOW("MOD", control(EPOLL_CTL_MOD, a, EPOLLIN, 2));
  waits("bytes", set, 1000);
  waits("bytes again", set, 0);
  takes(a, 2);
  waits("one byte", set, 0);
  takes(a, 1);
  waits("nothing", set, 10);
  SHOW("MOD to nothing", control(EPOLL_CTL_MOD, a, 0, 3));
  sends(b, "abc");
  there(a, 3);
  waits("nothing is asked for", set, 10);
  SHOW("MOD", control(EPOLL_CTL_MOD, a, EPOLLIN, 4));
  waits("bytes that were there", set, 0);
  SHOW("DEL", epoll_ctl(set, EPOLL_CTL_DEL, a, NULL));
  waits("not in it any more", set, 10);
  SHOW("DEL again", epoll_ctl(set, EPOLL_CTL_DEL, a, NULL));
  SHOW("MOD of none", control(EPOLL_CTL_MOD, a, EPOLLIN, 4));
  SHOW("ADD once more", control(EPOLL_CTL_ADD, a, EPOLLIN | EPOLLRDHUP, 5));
  waits("bytes", set, 0);
  takes(a, 3);
  OK(shutdown(b, SHUT_WR));
  ended(a);
  waits("the end", set, 1000);
  OK(shutdown(a, SHUT_WR));
  pauses(5);
  waits("both ends", set, 1000);
  SHOW("MOD to nothing", control(EPOLL_CTL_MOD, a, 0, 6));
  waits("both ends, nothing asked for", set, 1000);
}

static void wrong_calls(void) {
  set = OK(epoll_create1(0));
  struct epoll_event event = {.events = EPOLLIN};
  SHOW("no set", epoll_ctl(a, EPOLL_CTL_ADD, b, &event));
  SHOW("no descriptor", epoll_ctl(set, EPOLL_CTL_ADD, -1, &event));
  SHOW("no event", epoll_ctl(set, EPOLL_CTL_ADD, a, NULL));
  SHOW("itself", epoll_ctl(set, EPOLL_CTL_ADD, set, &event));
  SHOW("no change", epoll_ctl(set, 77, a, &event));
  SHOW("a file", epoll_ctl(set, EPOLL_CTL_ADD, OK(open("/proc/self/exe", O_RDONLY)), &event));
  SHOW("wait of no set", epoll_wait(a, &event, 1, 0));
  SHOW("wait of no descriptor", epoll_wait(-1, &event, 1, 0));
  SHOW("wait for none", epoll_wait(set, &event, 0, 0));
  SHOW("wait for less than none", epoll_wait(set, &event, -1, 0));
  SHOW("wait", epoll_wait(set, &event, 1, 0));
  SHOW("no size", epoll_create(0));
  SHOW("no flag", epoll_create1(12345));
  SHOW("exclusive with RDHUP", control(EPOLL_CTL_ADD, a, EPOLLIN | EPOLLEXCLUSIVE | EPOLLRDHUP, 1));
  SHOW("exclusive with one shot", control(EPOLL_CTL_ADD, a, EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT, 1));
  SHOW("exclusive", control(EPOLL_CTL_ADD, a, EPOLLIN | EPOLLEXCLUSIVE, 1));
  SHOW("exclusive by a change", control(EPOLL_CTL_MOD, a, EPOLLIN | EPOLLEXCLUSIVE, 1));
  SHOW("change of an exclusive one", control(EPOLL_CTL_MOD, a, EPOLLIN, 1));
  sends(b, "x");
  there(a, 1);
  waits("exclusive", set, 1000);
}

static void edge(void) {
  char into[64];
  set = OK(epoll_create1(0));
  SHOW("ADD", control(EPOLL_CTL_ADD, a, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, 1));
  waits("room", set, 0);
  waits("nothing new", set, 10);
  sends(b, "abc");
  there(a, 3);
  pauses(5);
  waits("bytes", set, 1000);
  waits("nothing new", set, 10);
  SHOW("read of a part", read(a, into, 1));
  waits("nothing new after a part", set, 10);
  sends(b, "def");
  there(a, 5);
  pauses(5);
  waits("more bytes", set, 1000);
  waits("nothing new", set, 10);
  SHOW("read of all", read(a, into, 64));
  waits("nothing new", set, 10);
  SHOW("read of none", recv(a, into, 64, MSG_DONTWAIT));
  waits("nothing new", set, 10);
  sends(b, "a");
  there(a, 1);
  sends(b, "b");
  there(a, 2);
  pauses(5);
  waits("two writes at once", set, 1000);
  waits("nothing new", set, 10);
  SHOW("MOD", control(EPOLL_CTL_MOD, a, EPOLLIN | EPOLLET, 2));
  waits("bytes after a change", set, 1000);
  waits("nothing new", set, 10);
  SHOW("read of all", read(a, into, 64));
  OK(shutdown(b, SHUT_WR));
  ended(a);
  pauses(5);
  SHOW("MOD", control(EPOLL_CTL_MOD, a, EPOLLIN | EPOLLRDHUP | EPOLLET, 3));
  waits("the end", set, 1000);
  waits("nothing new", set, 10);
}

static void edge_of_room(void) {
  set = OK(epoll_create1(0));
  SHOW("ADD", control(EPOLL_CTL_ADD, a, EPOLLOUT | EPOLLET, 1));
  waits("room", set, 0);
  waits("nothing new", set, 10);
  SHOW("send", send(a, "x", 1, 0));
  waits("nothing new after a write", set, 10);
  long all = stuffs(a) + 1;
  waits("no room", set, 10);
  takes(b, all);
  pauses(5);
  waits("room again", set, 1000);
  waits("nothing new", set, 10);
  all = stuffs(a);
  SHOW("MOD", control(EPOLL_CTL_MOD, a, EPOLLIN | EPOLLOUT | EPOLLET, 2));
  waits("no room", set, 10);
}

static void one_shot(void) {
  set = OK(epoll_create1(0));
  SHOW("ADD", control(EPOLL_CTL_ADD, a, EPOLLIN | EPOLLONESHOT, 1));
  sends(b, "abc");
  there(a, 3);
  waits("bytes", set, 1000);
  waits("told once", set, 10);
  sends(b, "def");
  there(a, 6);
  waits("still", set, 10);
  SHOW("MOD", control(EPOLL_CTL_MOD, a, EPOLLIN | EPOLLOUT | EPOLLONESHOT, 2));
  waits("again", set, 1000);
  waits("told once", set, 10);
  OK(shutdown(b, SHUT_WR));
  OK(shutdown(a, SHUT_WR));
  pauses(5);
  waits("the ends of one that was told", set, 10);
  SHOW("MOD", control(EPOLL_CTL_MOD, a, EPOLLIN | EPOLLRDHUP | EPOLLONESHOT | EPOLLET, 3));
  waits("bytes and the ends", set, 1000);
  waits("told once", set, 10);
  SHOW("DEL", epoll_ctl(set, EPOLL_CTL_DEL, a, NULL));
}

static void wakes(void) {
  struct later more;
  set = OK(epoll_create1(0));
  OK(control(EPOLL_CTL_ADD, a, EPOLLIN | EPOLLRDHUP, 1));
#define WAKES(label, what, with, wait)                                         \
  later(&more, 15, what, with);                                                \
  waits(label, set, wait);                                                     \
  joins(&more)
  WAKES("bytes", writes_one, &b, 5000);
  takes(a, 1);
  WAKES("bytes, for ever", writes_one, &b, -1);
  takes(a, 1);
  OK(control(EPOLL_CTL_MOD, a, EPOLLIN | EPOLLET, 2));
  WAKES("edge", writes_one, &b, 5000);
  takes(a, 1);
  OK(control(EPOLL_CTL_MOD, a, EPOLLIN | EPOLLONESHOT, 3));
  WAKES("one shot", writes_one, &b, 5000);
  takes(a, 1);
  OK(control(EPOLL_CTL_MOD, a, EPOLLRDHUP, 4));
  WAKES("the end", ends_writing, &b, 5000);
  OK(control(EPOLL_CTL_MOD, a, 0, 5));
  WAKES("both ends", ends_writing, &a, 5000);
}

static void takes_all(void *fd) {
  static char into[65536];
  long got = 0, more;
  for (int turn = 0; turn < 50; turn++) {
    while ((more = recv(*(int *)fd, into, sizeof into, MSG_DONTWAIT)) > 0)
      got += more;
    pauses(1);
  }
}

static void wakes_for_room(void) {
  struct later more;
  set = OK(epoll_create1(0));
  OK(control(EPOLL_CTL_ADD, a, EPOLLOUT, 1));
  stuffs(a);
  waits("no room", set, 10);
  WAKES("room", takes_all, &b, 5000);
  stuffs(a);
  OK(control(EPOLL_CTL_MOD, a, EPOLLOUT | EPOLLET, 2));
  waits("no room", set, 10);
  WAKES("room, edge", takes_all, &b, 5000);
  stuffs(a);
  OK(control(EPOLL_CTL_MOD, a, EPOLLOUT | EPOLLIN | EPOLLONESHOT, 3));
  waits("no room", set, 10);
  WAKES("room, one shot", takes_all, &b, 5000);
}

/* What is told in some waits. */
static void several(const char *label, int of, int room) {
  struct epoll_event events[16];
  unsigned seen = 0;
  step();
  for (int turn = 0; turn < 20; turn++) {
    int count = epoll_wait(of, events, room, 1000);
    for (int at = 0; at < count; at++)
      seen |= 1u << events[at].data.u64;
  }
  say("%s: %#x", label, seen);
}

static void mixed(void) {
  int ends[2], event = OK(eventfd(0, 0)), timer = OK(timerfd_create(CLOCK_MONOTONIC, 0)), listener = listens(8);
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGUSR2);
  OK(sigprocmask(SIG_BLOCK, &mask, NULL));
  int signals = OK(signalfd(-1, &mask, 0));
  OK(pipe(ends));
  set = OK(epoll_create1(0));
  int all[] = {ends[0], a, event, timer, signals, listener, b};
  for (int at = 0; at < 7; at++)
    OK(control(EPOLL_CTL_ADD, all[at], EPOLLIN, at));
  struct later more;
  waits("nothing", set, 10);
  WAKES("the connection", writes_one, &b, 5000);
  OK(write(ends[1], "x", 1));
  several("the pipe, too", set, 16);
  several("each in turn, where there is room for one", set, 1);
  takes(a, 1);
  char byte;
  OK(read(ends[0], &byte, 1));
  struct itimerspec soon = {.it_value.tv_nsec = 15000000};
  OK(timerfd_settime(timer, 0, &soon, NULL));
  waits("the timer", set, 5000);
  uint64_t count = 1;
  OK(read(timer, &count, 8));
  OK(write(event, &count, 8));
  OK(kill(getpid(), SIGUSR2));
  struct sockaddr_storage at;
  socklen_t len = address(listener, &at);
  OK(connect(client(), (struct sockaddr *)&at, len));
  sends(a, "x");
  there(b, 1);
  several("most of them", set, 16);
}

static void nested(void) {
  set = OK(epoll_create1(0));
  int inner = set, outer = OK(epoll_create1(0));
  OK(control(EPOLL_CTL_ADD, a, EPOLLIN, 1));
  set = outer;
  SHOW("ADD of a set", control(EPOLL_CTL_ADD, inner, EPOLLIN, 9));
  waits("nothing", outer, 10);
  sends(b, "x");
  there(a, 1);
  waits("outer", outer, 1000);
  waits("inner", inner, 1000);
  waits("outer", outer, 1000);
  takes(a, 1);
  struct later more;
  waits("inner, nothing", inner, 10);
  WAKES("outer that waits", writes_one, &b, 5000);
  struct pollfd one = {inner, POLLIN, 0};
  SHOW("poll of the inner one", poll(&one, 1, 1000));
  say("%s", bits(one.revents));
  one.fd = outer;
  SHOW("poll of the outer one", poll(&one, 1, 1000));
  fd_set of;
  FD_ZERO(&of);
  FD_SET(inner, &of);
  SHOW("select of the inner one", select(inner + 1, &of, NULL, NULL, &(struct timeval){1, 0}));
  SHOW("MOD of a set", control(EPOLL_CTL_MOD, inner, EPOLLIN | EPOLLET, 8));
  waits("edge", outer, 1000);
  SHOW("DEL of a set", epoll_ctl(outer, EPOLL_CTL_DEL, inner, NULL));
  waits("outer, nothing", outer, 10);
  waits("inner", inner, 1000);
  set = inner;
  SHOW("a circle", control(EPOLL_CTL_ADD, outer, EPOLLIN, 7));
  SHOW("a circle", epoll_ctl(outer, EPOLL_CTL_ADD, inner, &(struct epoll_event){.events = EPOLLIN}));
}

static void two_sets(void) {
  int sets[2] = {OK(epoll_create1(0)), OK(epoll_create1(0))};
  for (int at = 0; at < 2; at++) {
    set = sets[at];
    OK(control(EPOLL_CTL_ADD, a, EPOLLIN | (at ? EPOLLET : 0), at));
  }
  sends(b, "abc");
  there(a, 3);
  waits("one", sets[0], 1000);
  waits("other", sets[1], 1000);
  waits("one again", sets[0], 10);
  waits("other again", sets[1], 10);
  OK(close(sets[0]));
  waits("other, as one is closed", sets[1], 10);
  int again = OK(dup(sets[1]));
  OK(close(sets[1]));
  set = again;
  OK(control(EPOLL_CTL_MOD, a, EPOLLIN, 5));
  waits("by its second descriptor", again, 1000);
}

static void second_descriptors(void) {
  set = OK(epoll_create1(0));
  int other = OK(dup(a));
  OK(control(EPOLL_CTL_ADD, a, EPOLLIN, 1));
  SHOW("ADD of the second one", control(EPOLL_CTL_ADD, other, EPOLLIN, 2));
  sends(b, "abc");
  there(a, 3);
  waits("both", set, 1000);
  SHOW("DEL of the first one", epoll_ctl(set, EPOLL_CTL_DEL, a, NULL));
  waits("the second one", set, 1000);
  OK(control(EPOLL_CTL_ADD, a, EPOLLIN, 3));
  OK(close(other));
  waits("the closed one is still told", set, 1000);
  OK(close(a));
  waits("nothing", set, 10);
}

static void closed_ones(void) {
  int ends[2];
  set = OK(epoll_create1(0));
  OK(control(EPOLL_CTL_ADD, a, EPOLLIN, 1));
  sends(b, "abc");
  there(a, 3);
  OK(close(a));
  waits("closed with bytes", set, 10);
  pairs(ends);
  SHOW("ADD of another one", control(EPOLL_CTL_ADD, ends[0], EPOLLIN, 2));
  sends(ends[1], "x");
  there(ends[0], 1);
  waits("the other one", set, 1000);
  OK(close(ends[1]));
  takes(ends[0], 1);
  ended(ends[0]);
  waits("its end", set, 1000);
}

static void the_other_end_dies(void) {
  set = OK(epoll_create1(0));
  OK(control(EPOLL_CTL_ADD, a, EPOLLIN | EPOLLRDHUP, 1));
  struct linger how = {1, 0};
  OK(setsockopt(b, SOL_SOCKET, SO_LINGER, &how, sizeof how));
  struct later more;
  WAKES("reset", closes, &b, 5000);
  char byte;
  SHOW("read", read(a, &byte, 1));
  waits("afterwards", set, 1000);
}

static void by_other_functions(void) {
  struct epoll_event event;
  set = OK(epoll_create(5));
  OK(control(EPOLL_CTL_ADD, a, EPOLLIN, 1));
  SHOW("epoll_pwait", epoll_pwait(set, &event, 1, 10, NULL));
  SHOW("epoll_pwait2", epoll_pwait2(set, &event, 1, &(struct timespec){0, 10000000}, NULL));
  SHOW("epoll_pwait2, no time", epoll_pwait2(set, &event, 1, &(struct timespec){0, -1}, NULL));
  sends(b, "x");
  there(a, 1);
  SHOW("epoll_pwait", epoll_pwait(set, &event, 1, -1, NULL));
  SHOW("epoll_pwait2", epoll_pwait2(set, &event, 1, NULL, NULL));
  say("%s %u", bits(event.events), (unsigned)event.data.u64);
}

/* From before it was connected. */
static void added_before(void) {
  struct sockaddr_storage at;
  int listener = listens(8);
  socklen_t len = address(listener, &at);
  int one = OK(socket(at.ss_family, SOCK_STREAM | SOCK_NONBLOCK, 0));
  set = OK(epoll_create1(0));
  OK(control(EPOLL_CTL_ADD, one, EPOLLIN | EPOLLOUT | EPOLLET, 1));
  waits("not connected", set, 100);
  SHOW("connect", connect(one, (struct sockaddr *)&at, len));
  int other = OK(accept(listener, NULL, NULL));
  waits("connected", set, 1000);
  char into[8];
  for (int turn = 0; turn < 30; turn++) {
    OK(write(one, "ab", 2));
    takes(other, 2);
    sends(other, "x");
    while (read(one, into, 8) < 0)
      pauses(1);
  }
  pauses(5);
  epoll_wait(set, &(struct epoll_event){0}, 1, 0);
  sends(other, "x");
  waits("bytes", set, 1000);
}

const struct scenario OF_SETS[] = {
    {"level", level},
    {"wrong-calls", wrong_calls},
    {"edge", edge},
    {"edge-of-room", edge_of_room},
    {"one-shot", one_shot},
    {"wakes", wakes},
    {"wakes-for-room", wakes_for_room},
    {"mixed", mixed},
    {"nested", nested},
    {"two-sets", two_sets},
    {"second-descriptors", second_descriptors},
    {"closed-ones", closed_ones},
    {"the-other-end-dies", the_other_end_dies},
    {"by-other-functions", by_other_functions},
    {"added-before", added_before},
    {0},
};
