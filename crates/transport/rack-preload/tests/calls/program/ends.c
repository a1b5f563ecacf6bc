/* SPDX-License-Identifier: Apache-2.0 */
/* Halves that are shut, ends that are closed, and what each call says then. */
#include "calls.h"

static void polls(const char *label, int fd) {
  struct pollfd one = {fd, POLLIN | POLLOUT | POLLRDHUP, 0};
  int result = poll(&one, 1, 0);
  say("%s: poll %d %s", label, result, bits(one.revents));
}

/* Each call on an end. */
static void calls(const char *label, int fd) {
  char into[8];
  say("-- %s", label);
  polls(label, fd);
  SHOW("recv that looks", recv(fd, into, 8, MSG_PEEK | MSG_DONTWAIT));
  SHOW("recv", recv(fd, into, 8, MSG_DONTWAIT));
  SHOW("send", send(fd, "x", 1, MSG_DONTWAIT | MSG_NOSIGNAL));
  int error = -1;
  socklen_t len = sizeof error;
  OK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len));
  say("SO_ERROR %d", error);
  struct sockaddr_storage at;
  len = sizeof at;
  SHOW("getpeername", getpeername(fd, (struct sockaddr *)&at, &len));
  polls(label, fd);
}

static void shuts_writing(void) {
  sends(a, "abc");
  SHOW("shutdown", shutdown(a, SHUT_WR));
  there(b, 3);
  pauses(5);
  polls("other end, with bytes", b);
  calls("own", a);
  char into[8];
  SHOW("recv of what was before", recv(b, into, 8, 0));
  ended(b);
  SHOW("recv at the end", recv(b, into, 8, 0));
  polls("other end, at the end", b);
  sends(b, "answer");
  there(a, 6);
  polls("own, with bytes", a);
  SHOW("recv", recv(a, into, 8, 0));
  struct msghdr none = {0};
  SHOW("sendmsg of no pieces", sendmsg(a, &none, MSG_NOSIGNAL));
  signal(SIGPIPE, SIG_IGN);
  SHOW("write of nothing", write(a, "", 0));
  struct iovec empty = {into, 0};
  SHOW("writev of nothing", writev(a, &empty, 1));
  SHOW("again", shutdown(a, SHUT_WR));
  SHOW("other end, too", shutdown(b, SHUT_WR));
  ended(a);
  pauses(5);
  polls("own, both", a);
  polls("other end, both", b);
  SHOW("recv", recv(a, into, 8, 0));
  SHOW("send of the other end", send(b, "x", 1, MSG_NOSIGNAL));
}

static void shuts_reading(void) {
  char into[8];
  sends(b, "abc");
  there(a, 3);
  SHOW("shutdown", shutdown(a, SHUT_RD));
  polls("with bytes", a);
  SHOW("recv of what was before", recv(a, into, 8, MSG_DONTWAIT));
  SHOW("recv", recv(a, into, 8, 0));
  polls("own", a);
  SHOW("send", send(a, "ghi", 3, MSG_NOSIGNAL));
  there(b, 3);
  SHOW("recv of the other end", recv(b, into, 8, 0));
  polls("other end", b);
  SHOW("again", shutdown(a, SHUT_RD));
  SHOW("other half", shutdown(a, SHUT_WR));
  ended(b);
  SHOW("recv of the other end", recv(b, into, 8, 0));
}

static void shuts_both(void) {
  char into[8];
  sends(b, "abc");
  sends(a, "def");
  there(a, 3);
  there(b, 3);
  SHOW("shutdown", shutdown(a, SHUT_RDWR));
  pauses(5);
  calls("own", a);
  SHOW("recv of the other end", recv(b, into, 8, MSG_DONTWAIT));
  ended(b);
  SHOW("recv of the other end", recv(b, into, 8, MSG_DONTWAIT));
  polls("other end", b);
}

static void shuts_wrongly(void) {
  int other = client();
  SHOW("how 3", shutdown(a, 3));
  SHOW("how -1", shutdown(a, -1));
  SHOW("of one that is not connected", shutdown(other, SHUT_WR));
  SHOW("of no socket", shutdown(0, SHUT_WR));
  SHOW("send", send(a, "abc", 3, 0));
  takes(b, 3);
}

static void closes_after_reading(void) {
  char into[8];
  sends(a, "abc");
  SHOW("close", close(a));
  there(b, 3);
  SHOW("recv", recv(b, into, 8, 0));
  ended(b);
  SHOW("recv", recv(b, into, 8, 0));
  polls("other end", b);
  SHOW("send", send(b, "x", 1, MSG_NOSIGNAL));
  /* The kernel's answer to that one comes later. */
  for (int turn = 0; turn < 100 && send(b, "x", 1, MSG_NOSIGNAL) == 1; turn++)
    pauses(1);
  SHOW("send", send(b, "x", 1, MSG_NOSIGNAL));
  SHOW("recv", recv(b, into, 8, MSG_DONTWAIT));
}

static void closes_without_reading(void) {
  char into[8];
  sends(b, "abc");
  there(a, 3);
  SHOW("close", close(a));
  ended(b);
  polls("other end", b);
  SHOW("recv", recv(b, into, 8, MSG_DONTWAIT));
  SHOW("recv again", recv(b, into, 8, MSG_DONTWAIT));
  SHOW("send", send(b, "x", 1, MSG_NOSIGNAL));
}

static void closes_without_lingering(void) {
  char into[8];
  struct linger how = {1, 0};
  SHOW("SO_LINGER", setsockopt(a, SOL_SOCKET, SO_LINGER, &how, sizeof how));
  SHOW("close", close(a));
  ended(b);
  polls("other end", b);
  SHOW("recv", recv(b, into, 8, MSG_DONTWAIT));
  SHOW("recv again", recv(b, into, 8, MSG_DONTWAIT));
  SHOW("send", send(b, "x", 1, MSG_NOSIGNAL));
}

static void closes_with_lingering(void) {
  char into[8];
  struct linger how = {1, 1};
  SHOW("SO_LINGER", setsockopt(a, SOL_SOCKET, SO_LINGER, &how, sizeof how));
  how = (struct linger){0, 0};
  socklen_t len = sizeof how;
  SHOW("SO_LINGER", getsockopt(a, SOL_SOCKET, SO_LINGER, &how, &len));
  say("%d %d", how.l_onoff, how.l_linger);
  sends(a, "abc");
  SHOW("close", close(a));
  there(b, 3);
  SHOW("recv", recv(b, into, 8, MSG_DONTWAIT));
  ended(b);
  SHOW("recv", recv(b, into, 8, MSG_DONTWAIT));
}

static void other_end_closes_with_bytes(void) {
  static char some[60000], into[60000];
  OK(send(b, some, sizeof some, 0));
  OK(close(b));
  there(a, 60000);
  struct pollfd end = {a, POLLRDHUP, 0};
  SHOW("the end comes", poll(&end, 1, 5000));
  polls("own", a);
  SHOW("recv", recv(a, into, 59999, MSG_WAITALL));
  polls("own, one left", a);
  SHOW("recv", recv(a, into, 8, 0));
  SHOW("recv", recv(a, into, 8, 0));
  SHOW("send", send(a, "x", 1, MSG_NOSIGNAL));
}

static void *reads_one(void *with) {
  char one;
  say("a reader: %ld", (long)read(*(int *)with, &one, 1));
  return NULL;
}

/* What other threads that wait for it see as one shuts it: the end. */
static void shuts_as_others_read(void) {
  char into[8];
  struct later at;
  pthread_t reader;
  later(&at, 20, shuts, &a);
  SHOW("recv", recv(a, into, 8, 0));
  joins(&at);
  (void)reader;
  int ends[2];
  pairs(ends);
  pthread_create(&reader, NULL, reads_one, &ends[0]);
  later(&at, 20, shuts, &ends[0]);
  pthread_join(reader, NULL);
  joins(&at);
  pairs(ends);
  later(&at, 20, shuts, &ends[1]);
  SHOW("recv, shut by the other end", recv(ends[0], into, 8, 0));
  joins(&at);
  pairs(ends);
  struct pollfd one = {ends[0], POLLIN | POLLRDHUP, 0};
  later(&at, 20, shuts, &ends[0]);
  SHOW("poll", poll(&one, 1, 5000));
  say("%s", bits(one.revents));
  joins(&at);
  pairs(ends);
  later(&at, 20, ends_writing, &ends[1]);
  one = (struct pollfd){ends[0], POLLIN | POLLRDHUP, 0};
  SHOW("poll, shut by the other end", poll(&one, 1, 5000));
  say("%s", bits(one.revents));
  joins(&at);
}

static void shuts_as_others_write(void) {
  struct later at;
  stuffs(a);
  later(&at, 20, shuts, &a);
  SHOW("send", send(a, "xyz", 3, MSG_NOSIGNAL));
  joins(&at);
  int ends[2];
  pairs(ends);
  stuffs(ends[0]);
  later(&at, 20, closes, &ends[1]);
  long result = send(ends[0], "xyz", 3, MSG_NOSIGNAL);
  say("send, closed by the other end: %s", result < 0 && (errno == ECONNRESET || errno == EPIPE) ? "fails" : "goes");
  joins(&at);
}

static void may_write(void *fd) { send(*(int *)fd, "!", 1, MSG_NOSIGNAL); }

/* Another thread closes what this one waits for: it goes on waiting, and the connection stays until it is done. */
static void closes_as_others_read(void) {
  char into[8];
  struct later at, then, last;
  later(&at, 20, closes, &a);
  later(&then, 60, may_write, &b);
  later(&last, 100, closes, &b);
  SHOW("recv", recv(a, into, 8, 0));
  joins(&at);
  joins(&then);
  joins(&last);
}

static void closes_as_others_poll(void) {
  struct later at;
  struct pollfd one = {a, POLLIN, 0};
  later(&at, 60, closes, &a);
  /* Long enough that it is closed meanwhile, on a host that has much else to do, too. */
  SHOW("poll", poll(&one, 1, 1500));
  say("%s", bits(one.revents));
  joins(&at);
  one.revents = 0;
  SHOW("poll afterwards", poll(&one, 1, 0));
  say("%s", bits(one.revents));
}

static void closes_as_a_set_waits(void) {
  struct later at;
  struct epoll_event event = {.events = EPOLLIN, .data.u64 = 7};
  int set = OK(epoll_create1(0));
  OK(epoll_ctl(set, EPOLL_CTL_ADD, a, &event));
  later(&at, 20, closes, &a);
  SHOW("epoll_wait", epoll_wait(set, &event, 1, 100));
  joins(&at);
  SHOW("epoll_ctl", epoll_ctl(set, EPOLL_CTL_DEL, a, NULL));
}

/* A number that another connection had. */
static void numbers_are_used_again(void) {
  int was = a, ends[2];
  sends(a, "abc");
  takes(b, 3);
  OK(close(a));
  OK(close(b));
  for (int turn = 0; turn < 3; turn++) {
    pairs(ends);
    say("the same numbers: %d", ends[0] == was || ends[1] == was);
    SHOW("send", send(ends[0], "def", 3, 0));
    drains("read", ends[1], 0);
    takes(ends[1], 3);
    OK(close(ends[0]));
    OK(close(ends[1]));
  }
}

const struct scenario OF_ENDS[] = {
    {"shuts-writing", shuts_writing},
    {"shuts-reading", shuts_reading},
    {"shuts-both", shuts_both},
    {"shuts-wrongly", shuts_wrongly},
    {"closes-after-reading", closes_after_reading},
    {"closes-without-reading", closes_without_reading},
    {"closes-without-lingering", closes_without_lingering},
    {"closes-with-lingering", closes_with_lingering},
    {"other-end-closes-with-bytes", other_end_closes_with_bytes},
    {"shuts-as-others-read", shuts_as_others_read},
    {"shuts-as-others-write", shuts_as_others_write},
    {"closes-as-others-read", closes_as_others_read},
    {"closes-as-others-poll", closes_as_others_poll},
    {"closes-as-a-set-waits", closes_as_a_set_waits},
    {"numbers-are-used-again", numbers_are_used_again},
    {0},
};
