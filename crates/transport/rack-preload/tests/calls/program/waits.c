/* SPDX-License-Identifier: Apache-2.0 */
/* poll, ppoll, select and pselect, for connections and what else there is. */
#include "calls.h"

enum { ALL = POLLIN | POLLOUT | POLLPRI | POLLRDHUP | POLLRDNORM | POLLWRNORM | POLLRDBAND | POLLWRBAND };

static void polls(const char *label, int fd, int events) {
  struct pollfd one = {fd, events, 0x7777};
  step();
  int result = poll(&one, 1, 0);
  say("%s: %d %s", label, result, bits(one.revents));
}

static void polled(void) {
  polls("all", a, ALL);
  polls("nothing", a, 0);
  polls("bytes", a, POLLIN);
  polls("room", a, POLLOUT);
  sends(b, "abc");
  there(a, 3);
  polls("all, with bytes", a, ALL);
  polls("bytes, with bytes", a, POLLIN);
  polls("POLLRDNORM", a, POLLRDNORM);
  polls("POLLRDHUP", a, POLLRDHUP);
  stuffs(a);
  polls("all, without room", a, ALL);
  polls("room, without room", a, POLLOUT);
  takes(a, 3);
  polls("neither", a, ALL);
  struct pollfd same[3] = {{a, POLLIN, 0}, {a, POLLOUT, 0}, {-1, POLLIN, 0x7777}};
  sends(b, "abc");
  there(a, 3);
  SHOW("the same one twice", poll(same, 3, 0));
  say("%s, %s, %s", bits(same[0].revents), bits(same[1].revents), bits(same[2].revents));
  int closed = OK(dup(a));
  OK(close(closed));
  struct pollfd some[2] = {{closed, POLLIN, 0}, {a, POLLIN, 0}};
  SHOW("with one that is closed", poll(some, 2, 1000));
  say("%s, %s", bits(some[0].revents), bits(some[1].revents));
  SHOW("of none", poll(NULL, 0, 0));
  SHOW("of none, with a wait", poll(some, 0, 5));
  SHOW("of too many", poll(some, 1 << 30, 0));
  takes(a, 3);
  SHOW("a short wait", poll(same, 1, 20));
  SHOW("ppoll, a time that is none", ppoll(same, 1, &(struct timespec){0, -1}, NULL));
  SHOW("ppoll, less than no time", ppoll(same, 1, &(struct timespec){-1, 0}, NULL));
  SHOW("ppoll, a short wait", ppoll(same, 1, &(struct timespec){0, 20000000}, NULL));
}

static void takes_all(void *fd) {
  static char into[65536];
  pauses(10);
  while (recv(*(int *)fd, into, sizeof into, MSG_DONTWAIT) > 0)
    ;
}

static void waits_by_poll(void) {
  struct later more;
  struct pollfd one = {a, POLLIN, 0};
#define WAITS(label, what, with, call)                                         \
  later(&more, 15, what, with);                                                \
  SHOW(label, call);                                                           \
  say("%s", bits(one.revents));                                                \
  joins(&more)
  WAITS("bytes", writes_one, &b, poll(&one, 1, 5000));
  takes(a, 1);
  WAITS("bytes, for ever", writes_one, &b, poll(&one, 1, -1));
  takes(a, 1);
  WAITS("bytes, ppoll", writes_one, &b, ppoll(&one, 1, &(struct timespec){5, 0}, NULL));
  takes(a, 1);
  WAITS("bytes, ppoll for ever", writes_one, &b, ppoll(&one, 1, NULL, NULL));
  takes(a, 1);
  stuffs(a);
  one.events = POLLOUT;
  WAITS("room", takes_all, &b, poll(&one, 1, 5000));
  one.events = POLLIN | POLLRDHUP;
  WAITS("the end", ends_writing, &b, poll(&one, 1, 5000));
  one.events = POLLRDHUP;
  WAITS("the end, again", writes_one, &a, poll(&one, 1, 5000));
}

static void waits_for_the_end_only(void) {
  struct later more;
  struct pollfd one = {a, POLLRDHUP, 0};
  WAITS("the end", ends_writing, &b, poll(&one, 1, 5000));
  int ends[2];
  pairs(ends);
  one = (struct pollfd){ends[0], 0, 0};
  later(&more, 15, closes, &ends[1]);
  SHOW("nothing", poll(&one, 1, 60));
  say("%s", bits(one.revents));
  joins(&more);
  /* Bytes come before it, and are not asked for. */
  pairs(ends);
  sends(ends[1], "abc");
  there(ends[0], 3);
  one = (struct pollfd){ends[0], POLLRDHUP, 0};
  SHOW("bytes that are not asked for", poll(&one, 1, 20));
  WAITS("the end behind bytes", ends_writing, &ends[1], poll(&one, 1, 5000));
}

static void bytes_and_others(void) {
  int ends[2], event = OK(eventfd(0, 0)), timer = OK(timerfd_create(CLOCK_MONOTONIC, 0)), listener = listens(8);
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGUSR2);
  OK(sigprocmask(SIG_BLOCK, &mask, NULL));
  int signals = OK(signalfd(-1, &mask, 0));
  OK(pipe(ends));
  struct pollfd all[7] = {{ends[0], POLLIN, 0}, {a, POLLIN, 0},        {event, POLLIN, 0}, {timer, POLLIN, 0},
                          {signals, POLLIN, 0}, {listener, POLLIN, 0}, {b, POLLIN, 0}};
#define ALL_OF(label, wait)                                                    \
  do {                                                                         \
    SHOW(label, poll(all, 7, wait));                                           \
    for (int at = 0; at < 7; at++)                                             \
      if (all[at].revents)                                                     \
        say("  %d %s", at, bits(all[at].revents));                             \
  } while (0)
  ALL_OF("nothing", 10);
  struct later more;
  later(&more, 15, writes_one, &b);
  ALL_OF("the connection", 5000);
  joins(&more);
  OK(write(ends[1], "x", 1));
  ALL_OF("the pipe, too", 5000);
  takes(a, 1);
  ALL_OF("the pipe", 5000);
  char one;
  OK(read(ends[0], &one, 1));
  struct itimerspec soon = {.it_value.tv_nsec = 15000000};
  OK(timerfd_settime(timer, 0, &soon, NULL));
  ALL_OF("the timer", 5000);
  uint64_t count = 1;
  OK(read(timer, &count, 8));
  OK(write(event, &count, 8));
  OK(kill(getpid(), SIGUSR2));
  struct sockaddr_storage at;
  socklen_t len = address(listener, &at);
  OK(connect(client(), (struct sockaddr *)&at, len));
  sends(a, "x");
  there(b, 1);
  ALL_OF("most of them", 5000);
}

static void selects(const char *label, int fd, int wait_ms) {
  fd_set read, write, except;
  FD_ZERO(&read);
  FD_ZERO(&write);
  FD_ZERO(&except);
  FD_SET(fd, &read);
  FD_SET(fd, &write);
  FD_SET(fd, &except);
  struct timeval within = {wait_ms / 1000, wait_ms % 1000 * 1000};
  step();
  int result = select(fd + 1, &read, &write, &except, &within);
  say("%s: %d, read %d, write %d, except %d", label, result, FD_ISSET(fd, &read) != 0, FD_ISSET(fd, &write) != 0,
      FD_ISSET(fd, &except) != 0);
}

static void selected(void) {
  fd_set read, none;
  selects("room", a, 0);
  sends(b, "abc");
  there(a, 3);
  selects("bytes and room", a, 0);
  long all = stuffs(a);
  selects("bytes", a, 0);
  takes(a, 3);
  selects("neither", a, 0);
  takes(b, all);
  struct later more;
  struct timeval within = {5, 0};
  FD_ZERO(&read);
  FD_SET(a, &read);
  later(&more, 15, writes_one, &b);
  SHOW("select that waits", select(a + 1, &read, NULL, NULL, &within));
  say("there: %d, time is left: %d", FD_ISSET(a, &read) != 0, within.tv_sec >= 3 && within.tv_sec < 5);
  joins(&more);
  SHOW("select for ever", select(a + 1, &read, NULL, NULL, NULL));
  takes(a, 1);
  within = (struct timeval){0, 10000};
  SHOW("select that waits in vain", select(a + 1, &read, NULL, NULL, &within));
  say("there: %d, time is left: %d", FD_ISSET(a, &read) != 0, within.tv_sec > 0 || within.tv_usec > 0);
  FD_SET(a, &read);
  SHOW("pselect that waits in vain", pselect(a + 1, &read, NULL, NULL, &(struct timespec){0, 10000000}, NULL));
  FD_SET(a, &read);
  later(&more, 15, writes_one, &b);
  SHOW("pselect that waits", pselect(a + 1, &read, NULL, NULL, &(struct timespec){5, 0}, NULL));
  joins(&more);
  FD_SET(a, &read);
  SHOW("select of fewer", select(a, &read, NULL, NULL, &(struct timeval){0, 0}));
  SHOW("select of -1", select(-1, &read, NULL, NULL, &(struct timeval){0, 0}));
  SHOW("select, less than no time", select(a + 1, &read, NULL, NULL, &(struct timeval){-1, 0}));
  SHOW("select, more than a second of parts", select(a + 1, &read, NULL, NULL, &(struct timeval){0, 1500000}));
  FD_ZERO(&none);
  int closed = OK(dup(a));
  OK(close(closed));
  FD_SET(closed, &none);
  FD_SET(a, &none);
  SHOW("select with one that is closed", select(closed + 1, &none, NULL, NULL, &(struct timeval){0, 0}));
  OK(shutdown(b, SHUT_WR));
  takes(a, 1);
  ended(a);
  selects("the end", a, 0);
  OK(close(b));
  pauses(5);
  selects("the end, and closed", a, 0);
}

static void polled_at_the_ends(void) {
  OK(shutdown(a, SHUT_WR));
  pauses(5);
  polls("own half is shut", a, ALL);
  polls("other end", b, ALL);
  sends(b, "abc");
  there(a, 3);
  polls("with bytes", a, ALL);
  OK(shutdown(b, SHUT_WR));
  pauses(5);
  polls("both, with bytes", a, ALL);
  polls("both", b, ALL);
  takes(a, 3);
  polls("both, at the end", a, ALL);
  polls("both, for nothing", a, 0);
}

const struct scenario OF_WAITS[] = {
    {"polled", polled},
    {"waits-by-poll", waits_by_poll},
    {"waits-for-the-end-only", waits_for_the_end_only},
    {"bytes-and-others", bytes_and_others},
    {"selected", selected},
    {"polled-at-the-ends", polled_at_the_ends},
    {0},
};
