/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and writes, of one byte, many, or none, in one piece or several; files. */
#include "calls.h"
#include <sys/mman.h>

static void writes(void) {
  char some[5000];
  fills(some, sizeof some, 0);
  long place = 0, sizes[] = {1, 5, 0, 4096, 5000};
  for (unsigned at = 0; at < LENGTH(sizes); at++) {
    fills(some, sizes[at], place);
    place += SHOW("write", write(a, some, sizes[at]));
    fills(some, sizes[at], place);
    place += SHOW("send", send(a, some, sizes[at], 0));
    fills(some, sizes[at], place);
    place += SHOW("sendto", sendto(a, some, sizes[at], 0, NULL, 0));
    fills(some, sizes[at], place);
    struct iovec one = {some, sizes[at]};
    place += SHOW("writev", writev(a, &one, 1));
    fills(some, sizes[at], place);
    struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1};
    place += SHOW("sendmsg", sendmsg(a, &message, 0));
    fills(some, sizes[at], place);
    struct mmsghdr several = {.msg_hdr = message};
    SHOW("sendmmsg", sendmmsg(a, &several, 1, 0));
    say("of it %u", several.msg_len);
    place += several.msg_len;
    drains("all", b, place);
    place = 0;
  }
}

static void writes_in_pieces(void) {
  char some[9000];
  struct iovec pieces[1025];
  fills(some, sizeof some, 0);
  SHOW("writev of no piece", writev(a, pieces, 0));
  SHOW("writev of no piece, at null", writev(a, NULL, 0));
  SHOW("writev of -1 pieces", writev(a, pieces, -1));
  pieces[0] = (struct iovec){some, 0};
  pieces[1] = (struct iovec){NULL, 0};
  SHOW("writev of empty pieces", writev(a, pieces, 2));
  pieces[0] = (struct iovec){some, 3};
  pieces[2] = (struct iovec){some + 3, 4};
  SHOW("writev with an empty piece", writev(a, pieces, 3));
  drains("writev with an empty piece", b, 7);
  pieces[0] = (struct iovec){some, 4000};
  pieces[2] = (struct iovec){some + 4000, 5000};
  SHOW("writev of much", writev(a, pieces, 3));
  drains("writev of much", b, 9000);
  for (int at = 0; at < 1025; at++)
    pieces[at] = (struct iovec){some + at, 1};
  SHOW("writev of 17 pieces", writev(a, pieces, 17));
  drains("17 pieces", b, 17);
  SHOW("writev of 1024 pieces", writev(a, pieces, 1024));
  drains("1024 pieces", b, 1024);
  SHOW("writev of 1025 pieces", writev(a, pieces, 1025));
  struct msghdr message = {.msg_iov = pieces, .msg_iovlen = 1025};
  SHOW("sendmsg of 1025 pieces", sendmsg(a, &message, 0));
  message.msg_iovlen = 0;
  SHOW("sendmsg of no piece", sendmsg(a, &message, 0));
  message.msg_iovlen = 17;
  SHOW("sendmsg of 17 pieces", sendmsg(a, &message, 0));
  drains("17 pieces", b, 17);
  pieces[0] = (struct iovec){some, (size_t)SSIZE_MAX + 1};
  SHOW("writev of more than there can be", writev(a, pieces, 2));
  SHOW("sendmsg to null", sendmsg(a, NULL, 0));
  struct sockaddr_storage at;
  memset(&at, 0, sizeof at);
  at.ss_family = AF_INET;
  SHOW("sendto another address", sendto(a, some, 3, 0, (struct sockaddr *)&at, sizeof(struct sockaddr_in)));
  message = (struct msghdr){.msg_iov = pieces, .msg_iovlen = 1, .msg_name = &at, .msg_namelen = sizeof(struct sockaddr_in)};
  pieces[0] = (struct iovec){some + 3, 3};
  SHOW("sendmsg to another address", sendmsg(a, &message, 0));
  drains("what was sent to others", b, 6);
}

static void writes_several_messages(void) {
  char some[64];
  fills(some, sizeof some, 0);
  struct iovec pieces[3] = {{some, 3}, {some + 3, 4}, {some + 7, 5}}, *many = calloc(1025, sizeof *many);
  struct mmsghdr messages[3] = {0};
  for (int at = 0; at < 3; at++)
    messages[at].msg_hdr = (struct msghdr){.msg_iov = &pieces[at], .msg_iovlen = 1};
  SHOW("sendmmsg of none", sendmmsg(a, messages, 0, 0));
  SHOW("sendmmsg of three", sendmmsg(a, messages, 3, 0));
  say("%u %u %u", messages[0].msg_len, messages[1].msg_len, messages[2].msg_len);
  drains("three messages", b, 12);
  pieces[1].iov_len = 0;
  SHOW("sendmmsg with an empty one", sendmmsg(a, messages, 3, 0));
  say("%u %u %u", messages[0].msg_len, messages[1].msg_len, messages[2].msg_len);
  takes(b, 8);
  messages[1].msg_hdr.msg_iov = many;
  messages[1].msg_hdr.msg_iovlen = 1025;
  SHOW("sendmmsg with a wrong one", sendmmsg(a, messages, 3, 0));
  takes(b, 3);
  SHOW("sendmmsg of a wrong one", sendmmsg(a, messages + 1, 1, 0));
  stuffs(a);
  SHOW("sendmmsg without room", sendmmsg(a, messages, 1, MSG_DONTWAIT));
  free(many);
}

static void reads(void) {
  char into[64], sent[64];
  struct iovec one = {into, 5};
  struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1};
  fills(sent, sizeof sent, 0);
  OK(send(b, sent, 64, 0));
  there(a, 64);
  SHOW("read of none", read(a, into, 0));
  SHOW("read", read(a, into, 5));
  SHOW("recv of none", recv(a, into, 0, 0));
  SHOW("recv", recv(a, into, 5, 0));
  SHOW("readv", readv(a, &one, 1));
  struct sockaddr_storage from;
  socklen_t len = sizeof from;
  SHOW("recvfrom", recvfrom(a, into, 5, 0, (struct sockaddr *)&from, &len));
  say("from %u bytes", len);
  SHOW("recvfrom nobody", recvfrom(a, into, 5, 0, NULL, NULL));
  char control[64];
  message.msg_name = &from;
  message.msg_namelen = sizeof from;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  message.msg_flags = 77;
  SHOW("recvmsg", recvmsg(a, &message, 0));
  say("name %u, control %lu, flags %d", message.msg_namelen, (unsigned long)message.msg_controllen, message.msg_flags);
  SHOW("recvmsg, close-on-exec", recvmsg(a, &message, MSG_CMSG_CLOEXEC));
  say("flags %#x", message.msg_flags);
  one.iov_len = 0;
  SHOW("recvmsg of none", recvmsg(a, &message, 0));
  one.iov_len = 5;
  struct mmsghdr several[2] = {{.msg_hdr = {.msg_iov = &one, .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = &one, .msg_iovlen = 1}}};
  SHOW("recvmmsg of no message", recvmmsg(a, several, 0, 0, NULL));
  SHOW("recvmmsg of one", recvmmsg(a, several, 1, 0, NULL));
  say("of it %u", several[0].msg_len);
  SHOW("recvmmsg of two", recvmmsg(a, several, 2, 0, NULL));
  say("of them %u %u", several[0].msg_len, several[1].msg_len);
  takes(a, 64 - 7 * 5 - 5 - 10);
  SHOW("read of none where nothing is", read(a, into, 0));
  SHOW("readv of no piece where nothing is", readv(a, &one, 0));
  SHOW("recv of none where nothing is, without a wait", recv(a, into, 0, MSG_DONTWAIT));
  SHOW("recv where nothing is, without a wait", recv(a, into, 5, MSG_DONTWAIT));
  one.iov_len = 0;
  SHOW("recvmsg of none where nothing is, without a wait", recvmsg(a, &message, MSG_DONTWAIT));
  SHOW("readv of an empty piece where nothing is", readv(a, &one, 1));
  one.iov_len = 5;
  SHOW("recvmmsg where nothing is, without a wait", recvmmsg(a, several, 2, MSG_DONTWAIT, NULL));
  struct later more;
  later(&more, 10, writes_one, &b);
  SHOW("recv of none that waits", recv(a, into, 0, 0));
  joins(&more);
  SHOW("read", read(a, into, 64));
}

static void reads_into_pieces(void) {
  char into[64], sent[64];
  struct iovec pieces[1025];
  fills(sent, sizeof sent, 0);
  OK(send(b, sent, 64, 0));
  there(a, 64);
  SHOW("readv of -1 pieces", readv(a, pieces, -1));
  for (int at = 0; at < 1025; at++)
    pieces[at] = (struct iovec){into + at % 64, 1};
  SHOW("readv of 1025 pieces", readv(a, pieces, 1025));
  struct msghdr message = {.msg_iov = pieces, .msg_iovlen = 1025};
  SHOW("recvmsg of 1025 pieces", recvmsg(a, &message, 0));
  message.msg_iovlen = 3;
  pieces[0] = (struct iovec){into, 2};
  pieces[1] = (struct iovec){NULL, 0};
  pieces[2] = (struct iovec){into + 2, 7};
  SHOW("recvmsg, looks at pieces", recvmsg(a, &message, MSG_PEEK));
  say("right: %d", memcmp(into, sent, 9) == 0);
  SHOW("recvmsg of pieces", recvmsg(a, &message, 0));
  say("right: %d", memcmp(into, sent, 9) == 0);
  for (int at = 0; at < 30; at++)
    pieces[at] = (struct iovec){into + at, 1};
  SHOW("readv of 30 pieces", readv(a, pieces, 30));
  say("right: %d", memcmp(into, sent + 9, 30) == 0);
  pieces[0] = (struct iovec){into, 10};
  pieces[1] = (struct iovec){into + 10, 54};
  SHOW("readv of more than there is", readv(a, pieces, 2));
  say("right: %d", memcmp(into, sent + 39, 25) == 0);
  SHOW("recvmsg to null", recvmsg(a, NULL, MSG_DONTWAIT));
}

static void reads_several_messages(void) {
  char into[64];
  struct iovec pieces[2] = {{into, 4}, {into + 4, 4}};
  struct mmsghdr messages[2] = {{.msg_hdr = {.msg_iov = &pieces[0], .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = &pieces[1], .msg_iovlen = 1}}};
  sends(b, "abcd");
  there(a, 4);
  struct later more;
  later(&more, 20, writes_one, &b);
  SHOW("recvmmsg that waits for the second one", recvmmsg(a, messages, 2, 0, NULL));
  say("of them %u %u", messages[0].msg_len, messages[1].msg_len);
  joins(&more);
  sends(b, "abcd");
  there(a, 4);
  SHOW("recvmmsg that waits for one", recvmmsg(a, messages, 2, MSG_WAITFORONE, NULL));
  say("of them %u", messages[0].msg_len);
  sends(b, "abcd");
  there(a, 4);
  struct timespec now = {0, 0};
  SHOW("recvmmsg with a time that is over", recvmmsg(a, messages, 2, 0, &now));
  struct timespec wrong = {0, -1};
  SHOW("recvmmsg with a time that is none", recvmmsg(a, messages, 2, MSG_DONTWAIT, &wrong));
  sends(b, "abc");
  OK(shutdown(b, SHUT_WR));
  ended(a);
  SHOW("recvmmsg to the end", recvmmsg(a, messages, 2, 0, NULL));
  say("of them %u %u", messages[0].msg_len, messages[1].msg_len);
}

static void waits_for_bytes(void) {
  char into[8];
  struct iovec one = {into, 8};
  struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1};
  struct later more;
#define WAITS(label, call)                                                     \
  later(&more, 10, writes_one, &b);                                            \
  SHOW(label, call);                                                           \
  joins(&more)
  WAITS("read", read(a, into, 8));
  WAITS("recv", recv(a, into, 8, 0));
  WAITS("readv", readv(a, &one, 1));
  WAITS("recvfrom", recvfrom(a, into, 8, 0, NULL, NULL));
  WAITS("recvmsg", recvmsg(a, &message, 0));
  WAITS("recv that looks", recv(a, into, 8, MSG_PEEK));
  SHOW("recv", recv(a, into, 8, 0));
}

static void takes_much(void *fd) {
  pauses(10);
  takes(*(int *)fd, 4 << 20);
}

static void waits_for_room(void) {
  char *some = malloc(4 << 20);
  struct iovec pieces[2] = {{some, 1 << 20}, {some + (1 << 20), 3 << 20}};
  struct msghdr message = {.msg_iov = pieces, .msg_iovlen = 2};
  struct later more;
  fills(some, 4 << 20, 0);
#define ROOM(label, call)                                                      \
  later(&more, 0, takes_much, &b);                                             \
  SHOW(label, call);                                                           \
  joins(&more)
  ROOM("write", write(a, some, 4 << 20));
  ROOM("send", send(a, some, 4 << 20, 0));
  ROOM("writev", writev(a, pieces, 2));
  ROOM("sendmsg", sendmsg(a, &message, 0));
  free(some);
}

static void without_a_wait(void) {
  char into[8];
  long flags = OK(fcntl(a, F_GETFL));
  OK(fcntl(a, F_SETFL, flags | O_NONBLOCK));
  SHOW("read where nothing is", read(a, into, 8));
  SHOW("recv where nothing is, for all", recv(a, into, 8, MSG_WAITALL));
  SHOW("recv that looks where nothing is", recv(a, into, 8, MSG_PEEK));
  sends(b, "abc");
  there(a, 3);
  SHOW("recv for more than there is", recv(a, into, 8, MSG_WAITALL));
  say("much went: %d", stuffs(a) > 100000);
  SHOW("write without room", write(a, into, 8));
  SHOW("send without room", send(a, into, 8, 0));
  struct iovec one = {into, 8};
  SHOW("writev without room", writev(a, &one, 1));
  OK(fcntl(a, F_SETFL, flags));
  SHOW("send without room, without a wait", send(a, into, 8, MSG_DONTWAIT));
  SHOW("write of none without room", write(a, into, 0));
}

/* A file of so many bytes, with the place at its beginning. */
static int file_of(long count) {
  int fd = OK(memfd_create("file", 0));
  char *some = malloc(count + 1);
  fills(some, count, 0);
  OK(write(fd, some, count));
  free(some);
  OK(lseek(fd, 0, SEEK_SET));
  return fd;
}

static void sends_files(void) {
  enum { SIZE = 60000 };
  int fd = file_of(SIZE);
  off_t at = 0;
  SHOW("of nothing", sendfile(a, fd, &at, 0));
  SHOW("with an offset", sendfile(a, fd, &at, 1000));
  say("offset %ld, place %ld", (long)at, (long)lseek(fd, 0, SEEK_CUR));
  drains("with an offset", b, 1000);
  SHOW("without an offset", sendfile(a, fd, NULL, 1000));
  say("place %ld", (long)lseek(fd, 0, SEEK_CUR));
  drains("without an offset", b, 1000);
  at = SIZE - 10;
  SHOW("past the end", sendfile(a, fd, &at, 1000));
  say("offset %ld", (long)at);
  takes(b, 10);
  SHOW("at the end", sendfile(a, fd, &at, 1000));
  at = SIZE + 5;
  SHOW("behind the end", sendfile(a, fd, &at, 1000));
  at = -1;
  SHOW("before the beginning", sendfile(a, fd, &at, 1000));
  say("offset %ld", (long)at);
  OK(lseek(fd, 0, SEEK_SET));
  SHOW("all", sendfile(a, fd, NULL, SIZE * 2));
  drains("all", b, SIZE);
  SHOW("of no descriptor", sendfile(a, -1, NULL, 10));
  SHOW("to no descriptor", sendfile(-1, fd, NULL, 10));
  int ends[2];
  OK(pipe(ends));
  OK(write(ends[1], "pipe", 4));
  SHOW("of a pipe", sendfile(a, ends[0], NULL, 4));
  at = 0;
  SHOW("of a pipe, with an offset", sendfile(a, ends[0], &at, 4));
  int only_written = OK(open("/dev/null", O_WRONLY));
  SHOW("of a file that is not to be read", sendfile(a, only_written, NULL, 4));
  int directory = OK(open("/", O_RDONLY | O_DIRECTORY));
  SHOW("of a directory", sendfile(a, directory, NULL, 4));
  say("a socket is no file: %d", sendfile(fd, a, NULL, 4) < 0 && (errno == EINVAL || errno == ESPIPE));
  int zeros = OK(open("/dev/zero", O_RDONLY));
  SHOW("of a device", sendfile(a, zeros, NULL, 4096));
  takes(b, 4096);
  stuffs(a);
  long flags = OK(fcntl(a, F_GETFL));
  OK(fcntl(a, F_SETFL, flags | O_NONBLOCK));
  at = 7;
  SHOW("without room", sendfile(a, fd, &at, 1000));
  say("offset %ld", (long)at);
  OK(close(b));
  ended(a);
  pauses(5);
  OK(fcntl(a, F_SETFL, flags));
  catches(SIGPIPE, 0);
  for (int turn = 0; turn < 100 && sendfile(a, fd, &at, 1000) >= 0; turn++)
    pauses(1);
  at = 7;
  SHOW("to one that has closed", sendfile(a, fd, &at, 1000));
  say("offset %ld, SIGPIPE %d", (long)at, caught > 0);
}

static void sends_a_file_with_waits(void) {
  int fd = file_of(4 << 20);
  struct later more;
  later(&more, 0, takes_much, &b);
  SHOW("4 MiB", sendfile(a, fd, NULL, 4 << 20));
  joins(&more);
}

/* Takes what a pipe has, without a wait, and shows it. */
static void pipe_has(const char *label, int from) {
  char into[64] = {0};
  long flags = OK(fcntl(from, F_GETFL));
  OK(fcntl(from, F_SETFL, flags | O_NONBLOCK));
  long got = read(from, into, sizeof into - 1);
  OK(fcntl(from, F_SETFL, flags));
  say("%s: %ld %s", label, got, into);
}

static void splices(void) {
  int ends[2];
  OK(pipe(ends));
  OK(write(ends[1], "pipe", 4));
  SHOW("out of a pipe", splice(ends[0], NULL, a, NULL, 4, 0));
  gathers("what came", b, 4);
  OK(write(ends[1], "abcdef", 6));
  SHOW("out of a pipe, a part", splice(ends[0], NULL, a, NULL, 4, SPLICE_F_MORE));
  SHOW("out of a pipe, more than there is", splice(ends[0], NULL, a, NULL, 4, SPLICE_F_MOVE));
  gathers("what came", b, 6);
  SHOW("out of an empty pipe", splice(ends[0], NULL, a, NULL, 4, SPLICE_F_NONBLOCK));
  sends(b, "abcd");
  there(a, 4);
  SHOW("into a pipe", splice(a, NULL, ends[1], NULL, 4, 0));
  pipe_has("it has", ends[0]);
  sends(b, "efghij");
  there(a, 6);
  SHOW("into a pipe, a part", splice(a, NULL, ends[1], NULL, 3, SPLICE_F_NONBLOCK));
  sends(b, "kl");
  there(a, 5);
  long rest = 0;
  step();
  while (rest < 5)
    rest += OK(splice(a, NULL, ends[1], NULL, 100, 0));
  say("into a pipe, the rest: %ld", rest);
  pipe_has("it has", ends[0]);
  long flags = OK(fcntl(a, F_GETFL));
  OK(fcntl(a, F_SETFL, flags | O_NONBLOCK));
  SHOW("into a pipe where nothing is", splice(a, NULL, ends[1], NULL, 4, 0));
  OK(fcntl(a, F_SETFL, flags));
  sends(b, "mn");
  OK(shutdown(b, SHUT_WR));
  ended(a);
  SHOW("into a pipe, before the end", splice(a, NULL, ends[1], NULL, 2, 0));
  ended(a);
  SHOW("into a pipe, at the end", splice(a, NULL, ends[1], NULL, 4, 0));
  pipe_has("it has", ends[0]);
}

static void splices_wrongly(void) {
  int ends[2], file = file_of(100);
  loff_t at = 0;
  OK(pipe(ends));
  OK(write(ends[1], "pipe", 4));
  sends(b, "abcd");
  there(a, 4);
  SHOW("of nothing", splice(a, NULL, ends[1], NULL, 0, 0));
  SHOW("from no descriptor", splice(-1, NULL, ends[1], NULL, 4, 0));
  SHOW("from no descriptor to a connection", splice(-1, NULL, a, NULL, 4, 0));
  SHOW("to no descriptor", splice(a, NULL, -1, NULL, 4, 0));
  SHOW("from one connection to the other", splice(a, NULL, b, NULL, 4, 0));
  SHOW("to itself", splice(a, NULL, a, NULL, 4, 0));
  SHOW("to the end that is read", splice(a, NULL, ends[0], NULL, 4, 0));
  SHOW("from the end that is written", splice(ends[1], NULL, a, NULL, 4, 0));
  SHOW("to a file", splice(a, NULL, file, NULL, 4, 0));
  SHOW("from a file", splice(file, NULL, a, NULL, 4, 0));
  SHOW("from a place", splice(a, &at, ends[1], NULL, 4, 0));
  SHOW("to a place", splice(ends[0], NULL, a, &at, 4, 0));
  SHOW("from a place of a pipe", splice(ends[0], &at, a, NULL, 4, 0));
  SHOW("to a place of a pipe", splice(a, NULL, ends[1], &at, 4, 0));
  SHOW("with a wrong flag", splice(a, NULL, ends[1], NULL, 4, 1 << 20));
  SHOW("tee", tee(a, ends[1], 4, 0));
  SHOW("vmsplice", vmsplice(a, &(struct iovec){"abcd", 4}, 1, 0));
  pipe_has("it has", ends[0]);
  gathers("what came", a, 4);
}

static void writes_pipe(void *fd) { OK(write(*(int *)fd, "late", 4)); }

static void reads_pipe(void *fd) {
  static char into[1 << 16];
  OK(read(*(int *)fd, into, sizeof into));
}

static void pours_late(void *fd) {
  for (int turn = 0; turn < 3; turn++) {
    pauses(3);
    sends(*(int *)fd, "xyz");
  }
}

static void splices_with_waits(void) {
  int ends[2];
  struct later more;
  OK(pipe(ends));
  later(&more, 10, writes_pipe, &ends[1]);
  SHOW("out of a pipe that has something later", splice(ends[0], NULL, a, NULL, 10, 0));
  joins(&more);
  gathers("what came", b, 4);
  later(&more, 10, writes_one, &b);
  SHOW("into a pipe", splice(a, NULL, ends[1], NULL, 10, 0));
  joins(&more);
  later(&more, 10, writes_one, &b);
  SHOW("into a pipe, whose calls do not wait", splice(a, NULL, ends[1], NULL, 10, SPLICE_F_NONBLOCK));
  joins(&more);
  pipe_has("it has", ends[0]);
  later(&more, 10, pours_late, &b);
  SHOW("into a pipe, of more than comes", splice(a, NULL, ends[1], NULL, 3, 0));
  joins(&more);
  takes(a, 6);
  struct timeval limit = {0, 20000};
  OK(setsockopt(a, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
  SHOW("into a pipe, with a limit", splice(a, NULL, ends[1], NULL, 10, 0));
  catches(SIGUSR1, 0);
  limit.tv_usec = 0;
  OK(setsockopt(a, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
  pipe_has("it has", ends[0]);
  struct nag nag;
  nags(&nag);
  SHOW("into a pipe, with a signal", splice(a, NULL, ends[1], NULL, 10, 0));
  SHOW("out of an empty pipe, with a signal", splice(ends[0], NULL, a, NULL, 10, 0));
  stops(&nag);
  later(&more, 10, ends_writing, &b);
  SHOW("into a pipe, until the end", splice(a, NULL, ends[1], NULL, 10, 0));
  joins(&more);
  later(&more, 10, closes, &ends[1]);
  SHOW("out of a pipe that is closed", splice(ends[0], NULL, a, NULL, 10, 0));
  joins(&more);
  SHOW("out of a closed one", splice(ends[0], NULL, a, NULL, 10, SPLICE_F_NONBLOCK));
}

static void splices_without_room(void) {
  int ends[2];
  char into[4096] = {0};
  struct later more;
  OK(pipe(ends));
  OK(fcntl(ends[1], F_SETPIPE_SZ, 4096));
  fills(into, sizeof into, 0);
  OK(write(ends[1], into, 4096));
  sends(b, "abc");
  there(a, 3);
  SHOW("into a full pipe, without a wait", splice(a, NULL, ends[1], NULL, 3, SPLICE_F_NONBLOCK));
  long flags = OK(fcntl(ends[1], F_GETFL));
  OK(fcntl(ends[1], F_SETFL, flags | O_NONBLOCK));
  SHOW("into a full pipe that does not wait", splice(a, NULL, ends[1], NULL, 3, 0));
  OK(fcntl(ends[1], F_SETFL, flags));
  later(&more, 10, reads_pipe, &ends[0]);
  SHOW("into a full pipe", splice(a, NULL, ends[1], NULL, 3, 0));
  joins(&more);
  pipe_has("it has", ends[0]);
  OK(write(ends[1], into, 4096));
  long all = 0;
  /* With memory comes room, which is filled first. */
  long got;
#define FULL(label, call)                                                      \
  do {                                                                         \
    step();                                                                    \
    all += stuffs(a);                                                          \
    got = call;                                                                \
    shows(label, got, errno);                                                  \
  } while (0)
  flags = OK(fcntl(a, F_GETFL));
  OK(fcntl(a, F_SETFL, flags | O_NONBLOCK));
  FULL("out of a pipe, without room", splice(ends[0], NULL, a, NULL, 4096, 0));
  OK(fcntl(a, F_SETFL, flags));
  struct timeval limit = {0, 20000};
  OK(setsockopt(a, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit));
  FULL("out of a pipe, with a limit", splice(ends[0], NULL, a, NULL, 4096, 0));
  limit.tv_usec = 0;
  OK(setsockopt(a, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit));
  catches(SIGUSR1, 0);
  struct nag nag;
  step();
  all += stuffs(a);
  nags(&nag);
  got = splice(ends[0], NULL, a, NULL, 4096, SPLICE_F_NONBLOCK);
  shows("out of a pipe, with a signal", got, errno);
  stops(&nag);
  takes(b, all);
  SHOW("out of a pipe, with room", splice(ends[0], NULL, a, NULL, 4096, 0));
  drains("what came", b, 4096);
}

static void splices_to_the_end(void) {
  int ends[2], others[2];
  OK(pipe(ends));
  OK(pipe(others));
  catches(SIGPIPE, 0);
  sends(b, "abc");
  there(a, 3);
  OK(close(others[0]));
  SHOW("into a pipe that nobody reads", splice(a, NULL, others[1], NULL, 3, 0));
  say("SIGPIPE %d", caught);
  SHOW("into a pipe that nobody reads, without a wait", splice(a, NULL, others[1], NULL, 3, SPLICE_F_NONBLOCK));
  say("SIGPIPE %d", caught);
  gathers("it is left", a, 3);
  OK(write(ends[1], "pipe", 4));
  OK(shutdown(a, SHUT_WR));
  SHOW("out of a pipe, behind the own end", splice(ends[0], NULL, a, NULL, 4, 0));
  say("SIGPIPE %d", caught);
  pipe_has("it has", ends[0]);
  pairs(others);
  OK(close(others[1]));
  ended(others[0]);
  step();
  long got = 0;
  for (int turn = 0; turn < 100 && got >= 0; turn++) {
    OK(write(ends[1], "more", 4));
    got = splice(ends[0], NULL, others[0], NULL, 4, 0);
    pauses(1);
  }
  say("to one that has closed: %s", got < 0 && errno == EPIPE ? "EPIPE" : "something else");
}

/* A relay, as proxies are that splice: bytes from one connection to another by a pipe. */
struct relay {
  int from, to, ends[2];
  long all;
};

static void relays(void *with) {
  struct relay *it = with;
  long in = 1, there = 0;
  while (in > 0) {
    in = splice(it->from, NULL, it->ends[1], NULL, 1 << 20, SPLICE_F_MOVE | SPLICE_F_MORE);
    for (there += in > 0 ? in : 0; there > 0;) {
      long out = splice(it->ends[0], NULL, it->to, NULL, there, SPLICE_F_MOVE | (in > 0 ? SPLICE_F_MORE : 0));
      if (out <= 0)
        fails("relaying bytes");
      there -= out;
      it->all += out;
    }
  }
  shutdown(it->to, SHUT_WR);
}

static void pours_much(void *fd) {
  static char some[100000];
  long sizes[] = {1, 7, 4096, 5000, 16384, 70000, 100000};
  for (long place = 0, turn = 0; place < 3000000; turn++) {
    long size = sizes[turn % LENGTH(sizes)];
    if (size > 3000000 - place)
      size = 3000000 - place;
    fills(some, size, place);
    if (send(*(int *)fd, some, size, 0) != size)
      fails("pouring bytes");
    place += size;
  }
  shutdown(*(int *)fd, SHUT_WR);
}

static void relays_by_a_pipe(void) {
  int ends[2];
  struct later pours, goes_on;
  pairs(ends);
  struct relay relay = {.from = a, .to = ends[0]};
  OK(pipe(relay.ends));
  later(&pours, 0, pours_much, &b);
  later(&goes_on, 0, relays, &relay);
  step();
  drains("all", ends[1], 4000000);
  joins(&pours);
  joins(&goes_on);
  say("relayed %ld", relay.all);
  /* A pipe with little room, and back: what there is no room for stays. */
  OK(fcntl(relay.ends[1], F_SETPIPE_SZ, 4096));
  struct relay back = {.from = ends[0], .to = a, .ends = {relay.ends[0], relay.ends[1]}};
  later(&pours, 0, pours_much, &ends[1]);
  later(&goes_on, 0, relays, &back);
  step();
  drains("all", b, 4000000);
  joins(&pours);
  joins(&goes_on);
  say("relayed %ld", back.all);
}

static void places(void) {
  char into[8];
  sends(b, "abcd");
  there(a, 4);
  SHOW("pread", pread(a, into, 4, 0));
  SHOW("pwrite", pwrite(a, into, 4, 0));
  SHOW("lseek", lseek(a, 0, SEEK_CUR));
  SHOW("ftruncate", ftruncate(a, 0));
  SHOW("fsync", fsync(a));
  struct stat of;
  SHOW("fstat", fstat(a, &of));
  say("a socket: %d", S_ISSOCK(of.st_mode));
  SHOW("read", read(a, into, 8));
}

static void at_no_descriptor(void) {
  char into[8] = "1234567";
  int fd = OK(dup(a));
  OK(close(fd));
  struct iovec one = {into, 8};
  struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1};
  struct mmsghdr several = {.msg_hdr = message};
  SHOW("read", read(fd, into, 8));
  SHOW("readv", readv(fd, &one, 1));
  SHOW("recv", recv(fd, into, 8, 0));
  SHOW("recvmsg", recvmsg(fd, &message, 0));
  SHOW("recvmmsg", recvmmsg(fd, &several, 1, 0, NULL));
  SHOW("write", write(fd, into, 8));
  SHOW("writev", writev(fd, &one, 1));
  SHOW("send", send(fd, into, 8, 0));
  SHOW("sendmsg", sendmsg(fd, &message, 0));
  SHOW("sendmmsg", sendmmsg(fd, &several, 1, 0));
  SHOW("shutdown", shutdown(fd, SHUT_RDWR));
  SHOW("close", close(fd));
  SHOW("close of -1", close(-1));
  SHOW("read of -1", read(-1, into, 8));
  SHOW("dup", dup(fd));
  SHOW("dup2", dup2(fd, fd));
  SHOW("dup2 over it", dup2(-1, a));
  SHOW("fcntl", fcntl(fd, F_GETFL));
  SHOW("the connection goes on", write(a, into, 8));
  takes(b, 8);
}

const struct scenario OF_DATA[] = {
    {"writes", writes},
    {"writes-in-pieces", writes_in_pieces},
    {"writes-several-messages", writes_several_messages},
    {"reads", reads},
    {"reads-into-pieces", reads_into_pieces},
    {"reads-several-messages", reads_several_messages},
    {"waits-for-bytes", waits_for_bytes},
    {"waits-for-room", waits_for_room},
    {"without-a-wait", without_a_wait},
    {"sends-files", sends_files},
    {"sends-a-file-with-waits", sends_a_file_with_waits},
    {"splices", splices},
    {"splices-wrongly", splices_wrongly},
    {"splices-with-waits", splices_with_waits},
    {"splices-without-room", splices_without_room},
    {"splices-to-the-end", splices_to_the_end},
    {"relays-by-a-pipe", relays_by_a_pipe},
    {"places", places},
    {"at-no-descriptor", at_no_descriptor},
    {0},
};
