/* SPDX-License-Identifier: Apache-2.0 */
/* How sockets are made, named and set. */
#include "calls.h"

static struct sockaddr *of(struct sockaddr_storage *at) { return (struct sockaddr *)at; }

static void connects(void) {
  struct sockaddr_storage at;
  int listener = listens(8);
  socklen_t len = address(listener, &at);
  int one = client();
  SHOW("connect", connect(one, of(&at), len));
  SHOW("connect again", connect(one, of(&at), len));
  SHOW("bind again", bind(one, of(&at), len));
  SHOW("listen of one that is connected", listen(one, 5));
  int other = SHOW("accept", accept(listener, NULL, NULL)) >= 0;
  (void)other;
  SHOW("connect of a listener", connect(listener, of(&at), len));
  SHOW("accept of one that is connected", accept(one, NULL, NULL));
  int none = client();
  SHOW("connect with a short address", connect(none, of(&at), 4));
  SHOW("connect to nobody", connect(none, NULL, 0));
  SHOW("connect of no socket", connect(0, of(&at), len));
  SHOW("connect of no descriptor", connect(-1, of(&at), len));
  SHOW("read of one that is not connected", read(none, &at, 1));
  SHOW("send of one that is not connected", send(none, "x", 1, MSG_NOSIGNAL));
  len = sizeof at;
  SHOW("getpeername of one that is not connected", getpeername(none, of(&at), &len));
  struct pollfd poll_one = {none, POLLIN | POLLOUT, 0};
  SHOW("poll of one that is not connected", poll(&poll_one, 1, 0));
  say("%s", bits(poll_one.revents));
}

static void connects_without_a_wait(void) {
  struct sockaddr_storage at;
  int listener = listens(8), error = -1;
  socklen_t len = address(listener, &at), number = sizeof error;
  int one = OK(socket(at.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  SHOW("connect", connect(one, of(&at), len));
  struct pollfd poll_one = {one, POLLOUT | POLLIN, 0};
  SHOW("poll", poll(&poll_one, 1, 1000));
  say("%s", bits(poll_one.revents));
  SHOW("SO_ERROR", getsockopt(one, SOL_SOCKET, SO_ERROR, &error, &number));
  say("%d", error);
  SHOW("connect once more", connect(one, of(&at), len));
  SHOW("connect again", connect(one, of(&at), len));
  SHOW("flags", fcntl(one, F_GETFL) & O_NONBLOCK);
  SHOW("close-on-exec", fcntl(one, F_GETFD));
  int other = OK(accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
  SHOW("flags", fcntl(other, F_GETFL) & O_NONBLOCK);
  SHOW("close-on-exec", fcntl(other, F_GETFD));
  char into[64];
  SHOW("read", read(one, into, 8));
  for (int turn = 0; turn < 30; turn++) {
    OK(write(one, "ab", 2));
    while (read(other, into, 8) != 2)
      pauses(1);
    OK(write(other, "abc", 3));
    while (read(one, into, 8) != 3)
      pauses(1);
  }
  SHOW("read", read(other, into, 8));
  OK(close(other));
  ended(one);
  SHOW("read at the end", read(one, into, 8));
}

static void connects_to_a_closed_port(void) {
  struct sockaddr_storage at;
  int listener = listens(8), error = -1;
  socklen_t len = address(listener, &at), number = sizeof error;
  OK(close(listener));
  int one = client();
  SHOW("connect", connect(one, of(&at), len));
  SHOW("read", read(one, &error, 1));
  SHOW("write", send(one, &error, 1, MSG_NOSIGNAL));
  OK(close(one));
  one = OK(socket(at.ss_family, SOCK_STREAM | SOCK_NONBLOCK, 0));
  long result = connect(one, of(&at), len);
  say("without a wait: %s", result < 0 && (errno == EINPROGRESS || errno == ECONNREFUSED) ? "not yet" : "at once");
  struct pollfd poll_one = {one, POLLOUT | POLLIN | POLLRDHUP, 0};
  SHOW("poll", poll(&poll_one, 1, 1000));
  say("%s", bits(poll_one.revents));
  SHOW("SO_ERROR", getsockopt(one, SOL_SOCKET, SO_ERROR, &error, &number));
  say("%d", result < 0 && error ? error : ECONNREFUSED);
  SHOW("SO_ERROR again", getsockopt(one, SOL_SOCKET, SO_ERROR, &error, &number));
  say("%d", error);
  struct epoll_event event = {.events = EPOLLIN | EPOLLOUT, .data.u64 = 7};
  int set = OK(epoll_create1(0));
  int two = OK(socket(at.ss_family, SOCK_STREAM | SOCK_NONBLOCK, 0));
  connect(two, of(&at), len);
  OK(epoll_ctl(set, EPOLL_CTL_ADD, two, &event));
  SHOW("epoll_wait", epoll_wait(set, &event, 1, 1000));
  say("%s", bits(event.events));
  SHOW("read", read(two, &error, 1));
}

static void accepts(void) {
  struct sockaddr_storage at, from, own;
  int listener = listens(8);
  socklen_t len = address(listener, &at), from_len = sizeof from, own_len = sizeof own;
  OK(fcntl(listener, F_SETFL, O_NONBLOCK));
  SHOW("accept of none", accept(listener, NULL, NULL));
  SHOW("accept4 of none", accept4(listener, NULL, NULL, 0));
  SHOW("accept4 with wrong flags", accept4(listener, NULL, NULL, 1));
  int flags[] = {0, SOCK_NONBLOCK, SOCK_CLOEXEC, SOCK_NONBLOCK | SOCK_CLOEXEC};
  for (unsigned turn = 0; turn < LENGTH(flags); turn++) {
    int one = client();
    OK(connect(one, of(&at), len));
    step();
    from_len = sizeof from;
    int other = OK(turn % 2 ? accept4(listener, of(&from), &from_len, flags[turn]) : accept4(listener, NULL, NULL, flags[turn]));
    say("non-blocking %d, close-on-exec %d", (fcntl(other, F_GETFL) & O_NONBLOCK) != 0, fcntl(other, F_GETFD));
    own_len = sizeof own;
    OK(getsockname(one, of(&own), &own_len));
    from_len = sizeof from;
    OK(getpeername(other, of(&from), &from_len));
    say("the same address: %d", from_len == own_len && memcmp(&from, &own, own_len) == 0);
    OK(close(one));
    OK(close(other));
  }
  int one = client();
  OK(connect(one, of(&at), len));
  from_len = 3;
  int other = OK(accept(listener, of(&from), &from_len));
  say("its address has %u bytes", from_len);
  OK(close(other));
  SHOW("accept of no descriptor", accept(-1, NULL, NULL));
  SHOW("accept of no socket", accept(0, NULL, NULL));
}

static void connects_later(void *with) {
  int one = client();
  struct sockaddr_storage at;
  socklen_t len = address(*(int *)with, &at);
  OK(connect(one, of(&at), len));
}

static void accepts_with_a_wait(void) {
  struct later more;
  int listener = listens(8);
  later(&more, 20, connects_later, &listener);
  say("accept: %d", OK(accept(listener, NULL, NULL)) > 0);
  joins(&more);
  later(&more, 20, connects_later, &listener);
  struct pollfd one = {listener, POLLIN | POLLOUT, 0};
  SHOW("poll", poll(&one, 1, 1000));
  say("%s", bits(one.revents));
  joins(&more);
  struct timeval limit = {0, 20000};
  OK(close(OK(accept(listener, NULL, NULL))));
  OK(setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
  SHOW("accept with a limit", accept(listener, NULL, NULL));
  later(&more, 20, shuts, &listener);
  limit.tv_usec = 0;
  OK(setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
  SHOW("accept of one that is shut", accept(listener, NULL, NULL));
  joins(&more);
}

static void names(void) {
  struct sockaddr_storage own, peer, other_own, other_peer;
  socklen_t lens[4] = {sizeof own, sizeof own, sizeof own, sizeof own};
  SHOW("getsockname", getsockname(a, of(&own), &lens[0]));
  SHOW("getpeername", getpeername(a, of(&peer), &lens[1]));
  OK(getsockname(b, of(&other_own), &lens[2]));
  OK(getpeername(b, of(&other_peer), &lens[3]));
  say("%u %u, each other's: %d %d", lens[0], lens[1], memcmp(&own, &other_peer, lens[0]) == 0, memcmp(&peer, &other_own, lens[1]) == 0);
  char text[64];
  if (own.ss_family == AF_INET6)
    say("%s", inet_ntop(AF_INET6, &((struct sockaddr_in6 *)&own)->sin6_addr, text, sizeof text));
  else
    say("%s", inet_ntop(AF_INET, &((struct sockaddr_in *)&own)->sin_addr, text, sizeof text));
  lens[0] = 3;
  SHOW("getsockname with too little room", getsockname(a, of(&own), &lens[0]));
  say("%u", lens[0]);
}

static void gets(const char *name, int level, int option) {
  int value = -77;
  socklen_t len = sizeof value;
  step();
  int result = getsockopt(a, level, option, &value, &len);
  if (result < 0)
    say("%s: %s", name, strerrorname_np(errno));
  else
    say("%s: %d, %u bytes", name, value, len);
}

static void sets(const char *name, int level, int option, int value) {
  step();
  int result = setsockopt(a, level, option, &value, sizeof value);
  if (result < 0)
    say("%s to %d: %s", name, value, strerrorname_np(errno));
  gets(name, level, option);
}

static void options(void) {
#define GETS(level, option) gets(#option, level, option)
#define SETS(level, option, value) sets(#option, level, option, value)
  GETS(SOL_SOCKET, SO_ERROR);
  GETS(SOL_SOCKET, SO_TYPE);
  GETS(SOL_SOCKET, SO_DOMAIN);
  GETS(SOL_SOCKET, SO_PROTOCOL);
  GETS(SOL_SOCKET, SO_ACCEPTCONN);
  GETS(SOL_SOCKET, SO_RCVLOWAT);
  GETS(SOL_SOCKET, SO_SNDLOWAT);
  GETS(SOL_SOCKET, SO_REUSEADDR);
  GETS(SOL_SOCKET, SO_OOBINLINE);
  GETS(IPPROTO_TCP, TCP_NODELAY);
  GETS(IPPROTO_TCP, TCP_CORK);
  GETS(IPPROTO_TCP, TCP_QUICKACK + 1000);
  SETS(IPPROTO_TCP, TCP_NODELAY, 1);
  SETS(IPPROTO_TCP, TCP_NODELAY, 0);
  SETS(IPPROTO_TCP, TCP_NODELAY, 5);
  SETS(IPPROTO_TCP, TCP_CORK, 1);
  SETS(IPPROTO_TCP, TCP_CORK, 0);
  SETS(SOL_SOCKET, SO_KEEPALIVE, 1);
  SETS(IPPROTO_TCP, TCP_KEEPIDLE, 100);
  SETS(IPPROTO_TCP, TCP_KEEPINTVL, 10);
  SETS(IPPROTO_TCP, TCP_KEEPCNT, 3);
  SETS(IPPROTO_TCP, TCP_USER_TIMEOUT, 5000);
  SETS(IPPROTO_TCP, TCP_KEEPIDLE, -1);
  SETS(SOL_SOCKET, SO_SNDBUF, 100000);
  SETS(SOL_SOCKET, SO_RCVBUF, 100000);
  SETS(SOL_SOCKET, SO_REUSEADDR, 1);
  SETS(SOL_SOCKET, SO_PRIORITY, 1);
  SETS(SOL_SOCKET, SO_BUSY_POLL, 0);
  int value = 1;
  char small = 1;
  socklen_t len = 1;
  SHOW("TCP_NODELAY of one byte", setsockopt(a, IPPROTO_TCP, TCP_NODELAY, &small, 1));
  SHOW("TCP_NODELAY into one byte", getsockopt(a, IPPROTO_TCP, TCP_NODELAY, &small, &len));
  say("%d, %u", small, len);
  len = 100;
  char many[100];
  SHOW("TCP_NODELAY into many", getsockopt(a, IPPROTO_TCP, TCP_NODELAY, many, &len));
  say("%u", len);
  len = (socklen_t)-1;
  SHOW("TCP_NODELAY into less than none", getsockopt(a, IPPROTO_TCP, TCP_NODELAY, many, &len));
  SHOW("TCP_NODELAY of null", setsockopt(a, IPPROTO_TCP, TCP_NODELAY, NULL, 4));
  SHOW("of no socket", setsockopt(0, IPPROTO_TCP, TCP_NODELAY, &value, 4));
  SHOW("of no descriptor", setsockopt(-1, IPPROTO_TCP, TCP_NODELAY, &value, 4));
  SHOW("SO_LINGER of little", setsockopt(a, SOL_SOCKET, SO_LINGER, &value, 4));
  SHOW("send", send(a, "abc", 3, 0));
  drains("all", b, 0);
  takes(b, 3);
}

static void limits(void) {
  char into[8];
  struct timeval limit = {0, 20000}, seen = {9, 9};
  socklen_t len = sizeof seen;
  SHOW("SO_RCVTIMEO", setsockopt(a, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
  SHOW("SO_RCVTIMEO", getsockopt(a, SOL_SOCKET, SO_RCVTIMEO, &seen, &len));
  say("%ld s %d", seen.tv_sec, seen.tv_usec >= 20000);
  SHOW("recv", recv(a, into, 8, 0));
  SHOW("read", read(a, into, 8));
  SHOW("recv that looks", recv(a, into, 8, MSG_PEEK));
  struct pollfd one = {a, POLLIN, 0};
  SHOW("poll", poll(&one, 1, 30));
  sends(b, "abc");
  there(a, 3);
  SHOW("recv", recv(a, into, 8, 0));
  SHOW("SO_SNDTIMEO", setsockopt(a, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit));
  stuffs(a);
  SHOW("send", send(a, into, 8, 0));
  limit = (struct timeval){0, 2000000};
  SHOW("SO_RCVTIMEO that is wrong", setsockopt(a, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
  limit = (struct timeval){-1, 0};
  SHOW("SO_RCVTIMEO of less than nothing", setsockopt(a, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
  SHOW("recv", recv(a, into, 8, 0));
  SHOW("SO_RCVTIMEO", getsockopt(a, SOL_SOCKET, SO_RCVTIMEO, &seen, &len));
  say("%ld s %ld us", seen.tv_sec, (long)seen.tv_usec);
}

static void limits_from_before(void) {
  struct sockaddr_storage at;
  struct timeval limit = {0, 20000};
  int listener = listens(8), one = client();
  socklen_t len = address(listener, &at);
  OK(setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
  OK(setsockopt(one, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
  int on = 1;
  OK(setsockopt(one, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
  OK(connect(one, of(&at), len));
  int other = OK(accept(listener, NULL, NULL));
  warms(one, other);
  char into[8];
  SHOW("recv", recv(one, into, 8, 0));
  SHOW("recv of the accepted one", recv(other, into, 8, 0));
  a = one;
  GETS(IPPROTO_TCP, TCP_NODELAY);
  a = other;
  GETS(IPPROTO_TCP, TCP_NODELAY);
}

static void descriptors(void) {
  SHOW("F_GETFD", fcntl(a, F_GETFD));
  SHOW("F_SETFD", fcntl(a, F_SETFD, FD_CLOEXEC));
  SHOW("F_GETFD", fcntl(a, F_GETFD));
  SHOW("F_GETFL", fcntl(a, F_GETFL));
  SHOW("F_SETFL", fcntl(a, F_SETFL, O_NONBLOCK));
  SHOW("F_GETFL", fcntl(a, F_GETFL));
  int other = OK(fcntl(a, F_DUPFD, 100));
  say("%d, close-on-exec %d, flags %#x", other >= 100, fcntl(other, F_GETFD), fcntl(other, F_GETFL));
  int third = OK(fcntl(a, F_DUPFD_CLOEXEC, 100));
  say("%d, close-on-exec %d", third > other, fcntl(third, F_GETFD));
  SHOW("F_DUPFD of less than none", fcntl(a, F_DUPFD, -1));
  SHOW("what is not known", fcntl(a, 12345));
  SHOW("F_GETOWN", fcntl(a, F_GETOWN));
  SHOW("F_GETLK", fcntl(a, F_GETLK, &(struct flock){.l_type = F_RDLCK}));
  char into[8];
  SHOW("read of the second", read(other, into, 8));
  OK(fcntl(third, F_SETFL, 0));
  SHOW("F_GETFL of the first", fcntl(a, F_GETFL));
  sends(other, "abc");
  sends(third, "def");
  OK(close(a));
  OK(close(third));
  sends(other, "ghi");
  there(b, 9);
  SHOW("all of them", recv(b, into, 8, 0));
  OK(close(other));
  takes(b, 1);
  ended(b);
  SHOW("the end", recv(b, into, 8, 0));
}

static void requests(void) {
  int value = -1, on = 1, off = 0;
  char into[8];
  SHOW("FIONREAD", ioctl(a, FIONREAD, &value));
  say("%d", value);
  sends(b, "abc");
  there(a, 3);
  sends(b, "def");
  there(a, 6);
  SHOW("FIONREAD", ioctl(a, FIONREAD, &value));
  say("%d", value);
  SHOW("read", read(a, into, 2));
  SHOW("FIONREAD", ioctl(a, FIONREAD, &value));
  say("%d", value);
  SHOW("read", read(a, into, 8));
  SHOW("SIOCOUTQ", ioctl(a, SIOCOUTQ, &value));
  SHOW("SIOCOUTQNSD", ioctl(a, SIOCOUTQNSD, &value));
  SHOW("SIOCATMARK", ioctl(a, SIOCATMARK, &value));
  SHOW("FIONBIO", ioctl(a, FIONBIO, &on));
  SHOW("read", read(a, into, 2));
  SHOW("flags", fcntl(a, F_GETFL) & O_NONBLOCK);
  SHOW("FIONBIO", ioctl(a, FIONBIO, &off));
  SHOW("flags", fcntl(a, F_GETFL) & O_NONBLOCK);
  SHOW("FIOCLEX", ioctl(a, FIOCLEX));
  SHOW("close-on-exec", fcntl(a, F_GETFD));
  SHOW("FIONCLEX", ioctl(a, FIONCLEX));
  SHOW("close-on-exec", fcntl(a, F_GETFD));
  SHOW("TCGETS", ioctl(a, TCGETS, into));
  SHOW("isatty", isatty(a));
  SHOW("FIONREAD of no descriptor", ioctl(-1, FIONREAD, &value));
  OK(shutdown(b, SHUT_WR));
  ended(a);
  SHOW("FIONREAD at the end", ioctl(a, FIONREAD, &value));
  say("%d", value);
}

/* What is still to be read by the other end. */
static void counts_what_was_sent(void) {
  int value = -1;
  static char some[50000];
  OK(send(a, some, sizeof some, 0));
  there(b, 50000);
  for (int turn = 0; turn < 1000 && value != 0; turn++) {
    OK(ioctl(a, SIOCOUTQ, &value));
    pauses(1);
  }
  say("SIOCOUTQ of what has arrived: %d", value);
  long all = stuffs(a);
  OK(ioctl(a, SIOCOUTQ, &value));
  say("SIOCOUTQ of what has not, and is more than nothing: %d", value > 0);
  takes(b, 50000 + all);
}

static void others(void) {
  int ends[2], value;
  char into[8];
  OK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
  SHOW("write of a Unix socket", write(ends[0], "abc", 3));
  SHOW("read of a Unix socket", read(ends[1], into, 8));
  SHOW("TCP_NODELAY of a Unix socket", setsockopt(ends[0], IPPROTO_TCP, TCP_NODELAY, &(int){1}, 4));
  int datagrams = OK(socket(AF_INET, SOCK_DGRAM, 0));
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof at;
  OK(bind(datagrams, (struct sockaddr *)&at, sizeof at));
  OK(getsockname(datagrams, (struct sockaddr *)&at, &len));
  SHOW("connect of UDP", connect(datagrams, (struct sockaddr *)&at, len));
  SHOW("send of UDP", send(datagrams, "abc", 3, 0));
  SHOW("FIONREAD of UDP", ioctl(datagrams, FIONREAD, &value));
  SHOW("recv of UDP", recv(datagrams, into, 8, 0));
  SHOW("socket of no family", socket(12345, SOCK_STREAM, 0));
  SHOW("socket of no type", socket(AF_INET, 12345, 0));
  SHOW("socket of another protocol", socket(AF_INET, SOCK_STREAM, IPPROTO_UDP));
  struct sockaddr_storage none = {.ss_family = AF_UNSPEC};
  SHOW("connect that ends the connection", connect(a, (struct sockaddr *)&none, sizeof none));
  ended(b);
  SHOW("recv of the other end", recv(b, into, 8, MSG_DONTWAIT));
}

const struct scenario OF_NAMES[] = {
    {"connects", connects},
    {"connects-without-a-wait", connects_without_a_wait},
    {"connects-to-a-closed-port", connects_to_a_closed_port},
    {"accepts", accepts},
    {"accepts-with-a-wait", accepts_with_a_wait},
    {"names", names},
    {"options", options},
    {"limits", limits},
    {"limits-from-before", limits_from_before},
    {"descriptors", descriptors},
    {"requests", requests},
    {"counts-what-was-sent", counts_what_was_sent},
    {"others", others},
    {0},
};
