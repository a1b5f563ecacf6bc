/* SPDX-License-Identifier: Apache-2.0 */
/* Flags of reads and writes, and the functions that `_FORTIFY_SOURCE` calls. */
#include "calls.h"

static void looks(void) {
  char into[16] = {0};
  SHOW("where nothing is", recv(a, into, 8, MSG_PEEK | MSG_DONTWAIT));
  sends(b, "abcdef");
  there(a, 6);
  SHOW("a part", recv(a, into, 4, MSG_PEEK));
  SHOW("again", recv(a, into, 4, MSG_PEEK));
  SHOW("more than there is", recv(a, into, 16, MSG_PEEK));
  say("%s", into);
  SHOW("none", recv(a, into, 0, MSG_PEEK));
  SHOW("read of the first ones", recv(a, into, 2, 0));
  memset(into, 0, sizeof into);
  SHOW("the rest", recv(a, into, 16, MSG_PEEK));
  say("%s", into);
  sends(b, "ghi");
  there(a, 7);
  memset(into, 0, sizeof into);
  SHOW("what came in two writes", recv(a, into, 16, MSG_PEEK));
  say("%s", into);
  SHOW("without copying", recv(a, NULL, 3, MSG_PEEK | MSG_TRUNC));
  SHOW("without copying, more than there is", recv(a, NULL, 30, MSG_PEEK | MSG_TRUNC));
  takes(a, 7);
  SHOW("nothing again", recv(a, into, 8, MSG_PEEK | MSG_DONTWAIT));
  OK(shutdown(b, SHUT_WR));
  ended(a);
  SHOW("the end", recv(a, into, 8, MSG_PEEK));
  SHOW("the end again", recv(a, into, 8, MSG_PEEK));
}

static void sends_more(void *fd) { sends(*(int *)fd, "defgh"); }

static void waits_for_all(void) {
  char into[16];
  struct iovec pieces[2] = {{into, 2}, {into + 2, 6}};
  struct msghdr message = {.msg_iov = pieces, .msg_iovlen = 2};
  struct later more;
  memset(into, 0, sizeof into);
  sends(b, "abc");
  there(a, 3);
  later(&more, 10, sends_more, &b);
  SHOW("recv", recv(a, into, 8, MSG_WAITALL));
  say("%s", into);
  joins(&more);
  sends(b, "abc");
  there(a, 3);
  later(&more, 10, sends_more, &b);
  SHOW("recvmsg", recvmsg(a, &message, MSG_WAITALL));
  say("%s", into);
  joins(&more);
  sends(b, "abc");
  there(a, 3);
  later(&more, 10, sends_more, &b);
  SHOW("recv that looks", recv(a, into, 8, MSG_WAITALL | MSG_PEEK));
  joins(&more);
  SHOW("recv", recv(a, into, 8, MSG_WAITALL));
  sends(b, "abc");
  there(a, 3);
  SHOW("without a wait", recv(a, into, 8, MSG_WAITALL | MSG_DONTWAIT));
  struct timeval limit = {0, 20000};
  OK(setsockopt(a, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
  SHOW("with a limit, none", recv(a, into, 8, MSG_WAITALL));
  sends(b, "abc");
  there(a, 3);
  SHOW("with a limit, some", recv(a, into, 8, MSG_WAITALL));
  limit.tv_usec = 0;
  OK(setsockopt(a, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
  sends(b, "abc");
  there(a, 3);
  later(&more, 10, ends_writing, &b);
  SHOW("to the end", recv(a, into, 8, MSG_WAITALL));
  joins(&more);
  SHOW("at the end", recv(a, into, 8, MSG_WAITALL));
}

static void throws_away(void) {
  char into[8] = "-------", many[6000] = {0};
  struct iovec pieces[2] = {{into, 2}, {into + 2, 3}};
  struct msghdr message = {.msg_iov = pieces, .msg_iovlen = 2};
  SHOW("where nothing is", recv(a, into, 5, MSG_TRUNC | MSG_DONTWAIT));
  sends(b, "abcdefghijklmnopq");
  there(a, 17);
  SHOW("to null", recv(a, NULL, 3, MSG_TRUNC));
  SHOW("to a buffer", recv(a, into, 3, MSG_TRUNC));
  say("left as it was: %d", into[0] == '-');
  SHOW("in pieces", recvmsg(a, &message, MSG_TRUNC));
  say("flags %#x", message.msg_flags);
  SHOW("read", recv(a, into, 1, 0));
  say("%c", into[0]);
  SHOW("more than there is", recv(a, NULL, 100, MSG_TRUNC));
  SHOW("nothing is left", recv(a, into, 5, MSG_DONTWAIT));
  OK(send(b, many, 6000, 0));
  there(a, 6000);
  SHOW("much", recv(a, NULL, 5990, MSG_TRUNC));
  SHOW("the rest", recv(a, NULL, 5990, MSG_TRUNC));
  OK(shutdown(b, SHUT_WR));
  ended(a);
  SHOW("at the end", recv(a, NULL, 5, MSG_TRUNC));
}

static void urgent(void) {
  char into[16] = {0};
  int mark = -1;
  SHOW("SIOCATMARK", ioctl(a, SIOCATMARK, &mark));
  say("at the mark: %d", mark);
  SHOW("recv of none that is urgent", recv(a, into, 1, MSG_OOB | MSG_DONTWAIT));
  sends(b, "abc");
  SHOW("send of one that is urgent", send(b, "!", 1, MSG_OOB));
  sends(b, "def");
  struct pollfd one = {a, POLLIN | POLLPRI, 0};
  pauses(5);
  SHOW("poll", poll(&one, 1, 1000));
  say("%s", bits(one.revents));
  SHOW("recv of the urgent one", recv(a, into, 1, MSG_OOB | MSG_DONTWAIT));
  say("%c", into[0]);
  memset(into, 0, sizeof into);
  SHOW("recv up to the mark", recv(a, into, 16, MSG_DONTWAIT));
  say("%s", into);
  SHOW("SIOCATMARK", ioctl(a, SIOCATMARK, &mark));
  memset(into, 0, sizeof into);
  SHOW("recv of the rest", recv(a, into, 16, MSG_DONTWAIT));
  say("%s", into);
  sends(b, "ghi");
  memset(into, 0, sizeof into);
  there(a, 3);
  SHOW("recv of what follows", recv(a, into, 16, 0));
  say("%s", into);
  SHOW("recv of errors", recv(a, into, 16, MSG_ERRQUEUE));
}

static void without_signal(void) {
  catches(SIGPIPE, 0);
  OK(shutdown(a, SHUT_WR));
  SHOW("send, no signal", send(a, "x", 1, MSG_NOSIGNAL));
  say("caught %d", caught);
  struct iovec one = {"x", 1};
  struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1};
  struct mmsghdr several = {.msg_hdr = message};
  SHOW("sendmsg, no signal", sendmsg(a, &message, MSG_NOSIGNAL));
  SHOW("sendmmsg, no signal", sendmmsg(a, &several, 1, MSG_NOSIGNAL));
  say("caught %d", caught);
  SHOW("send", send(a, "x", 1, 0));
  say("caught %d", caught);
  SHOW("write", write(a, "x", 1));
  say("caught %d", caught);
  SHOW("writev", writev(a, &one, 1));
  SHOW("sendto", sendto(a, "x", 1, 0, NULL, 0));
  SHOW("sendmsg", sendmsg(a, &message, 0));
  SHOW("sendmmsg", sendmmsg(a, &several, 1, 0));
  say("caught %d", caught);
  SHOW("write of none", write(a, "x", 0));
  SHOW("send of none", send(a, "x", 0, 0));
  say("caught %d", caught);
  signal(SIGPIPE, SIG_IGN);
  SHOW("write, ignored", write(a, "x", 1));
}

static void more_follows(void) {
  SHOW("send", send(a, "abc", 3, MSG_MORE));
  SHOW("send", send(a, "def", 3, MSG_MORE));
  SHOW("send of the last one", send(a, "ghi", 3, 0));
  there(b, 9);
  gathers("recv", b, 9);
  SHOW("send with other flags", send(a, "jkl", 3, MSG_EOR | MSG_CONFIRM | MSG_DONTROUTE | MSG_ZEROCOPY));
  takes(b, 3);
  int on = 1;
  OK(setsockopt(a, IPPROTO_TCP, TCP_CORK, &on, sizeof on));
  SHOW("send, corked", send(a, "mno", 3, 0));
  on = 0;
  OK(setsockopt(a, IPPROTO_TCP, TCP_CORK, &on, sizeof on));
  gathers("recv", b, 3);
}

ssize_t __read_chk(int fd, void *into, size_t len, size_t room);
ssize_t __recv_chk(int fd, void *into, size_t len, size_t room, int flags);
ssize_t __recvfrom_chk(int fd, void *into, size_t len, size_t room, int flags, struct sockaddr *from, socklen_t *from_len);
int __poll_chk(struct pollfd *fds, nfds_t count, int ms, size_t room);
int __ppoll_chk(struct pollfd *fds, nfds_t count, const struct timespec *within, const sigset_t *mask, size_t room);

static void checked(void) {
  char into[16];
  struct pollfd one = {a, POLLIN | POLLOUT, 0};
  struct timespec within = {1, 0};
  sends(b, "abcdefghijkl");
  there(a, 12);
  SHOW("__read_chk", __read_chk(a, into, 2, sizeof into));
  SHOW("__recv_chk", __recv_chk(a, into, 2, sizeof into, 0));
  SHOW("__recv_chk that looks", __recv_chk(a, into, 2, sizeof into, MSG_PEEK));
  SHOW("__recvfrom_chk", __recvfrom_chk(a, into, 2, sizeof into, 0, NULL, NULL));
  SHOW("__poll_chk", __poll_chk(&one, 1, 1000, sizeof one));
  say("%s", bits(one.revents));
  SHOW("__ppoll_chk", __ppoll_chk(&one, 1, &within, NULL, sizeof one));
  say("%s", bits(one.revents));
  takes(a, 6);
  one.events = POLLIN;
  struct later more;
  later(&more, 10, writes_one, &b);
  SHOW("__poll_chk that waits", __poll_chk(&one, 1, 1000, sizeof one));
  say("%s", bits(one.revents));
  joins(&more);
  takes(a, 1);
  SHOW("__ppoll_chk where nothing is", __ppoll_chk(&one, 1, &(struct timespec){0, 0}, NULL, sizeof one));
  later(&more, 10, writes_one, &b);
  SHOW("__ppoll_chk that waits", __ppoll_chk(&one, 1, &within, NULL, sizeof one));
  say("%s", bits(one.revents));
  joins(&more);
  takes(a, 1);
}

const struct scenario OF_FLAGS[] = {
    {"looks", looks},
    {"waits-for-all", waits_for_all},
    {"throws-away", throws_away},
    {"urgent", urgent},
    {"without-signal", without_signal},
    {"more-follows", more_follows},
    {"checked", checked},
    {0},
};
