/* SPDX-License-Identifier: Apache-2.0 */
/* Second descriptors, other processes, and the C library's streams. */
#include "calls.h"
#include <sys/mman.h>
#include <spawn.h>
#include <stdarg.h>

extern char **environ;

static void second_numbers(void) {
  char into[16];
  int other = OK(dup(a));
  SHOW("close-on-exec of dup", fcntl(other, F_GETFD));
  sends(a, "abc");
  sends(other, "def");
  SHOW("dup2 to itself", dup2(a, a) == a);
  SHOW("dup3 to itself", dup3(a, a, 0));
  SHOW("dup3 with a wrong flag", dup3(a, 50, 12345));
  int at = OK(dup3(a, 50, O_CLOEXEC));
  SHOW("close-on-exec of dup3", fcntl(at, F_GETFD));
  sends(at, "ghi");
  OK(close(a));
  sends(other, "jkl");
  OK(close(other));
  gathers("all", b, 12);
  sends(b, "xyz");
  SHOW("recv of the last one", recv(at, into, 16, 0));
  OK(close(at));
  ended(b);
  SHOW("the end", recv(b, into, 16, 0));
}

/* A connection takes the number of another one, which is closed by that. */
static void over_another(void) {
  int ends[2];
  char into[16];
  pairs(ends);
  sends(ends[0], "last");
  SHOW("dup2", dup2(a, ends[0]) == ends[0]);
  there(ends[1], 4);
  SHOW("recv of the other end", recv(ends[1], into, 16, 0));
  ended(ends[1]);
  SHOW("its end", recv(ends[1], into, 16, 0));
  sends(ends[0], "abc");
  there(b, 3);
  SHOW("recv", recv(b, into, 16, 0));
  int pipes[2];
  OK(pipe(pipes));
  SHOW("dup2 of a pipe", dup2(pipes[1], ends[0]) == ends[0]);
  SHOW("write into the pipe", write(ends[0], "pipe", 4));
  SHOW("read of the pipe", read(pipes[0], into, 16));
  sends(a, "def");
  there(b, 3);
  SHOW("recv", recv(b, into, 16, 0));
  SHOW("dup2 over the last one", dup2(pipes[1], a) == a);
  ended(b);
  SHOW("the end", recv(b, into, 16, 0));
}

static void closes_ranges(void) {
  char into[16];
  int other = OK(dup2(a, 200)), last = OK(dup2(a, 300));
  SHOW("close_range, close-on-exec", close_range(200, 250, CLOSE_RANGE_CLOEXEC));
  SHOW("close-on-exec", fcntl(other, F_GETFD));
  sends(other, "abc");
  SHOW("close_range", close_range(200, 250, 0));
  SHOW("send of the closed one", send(other, "x", 1, MSG_NOSIGNAL));
  SHOW("close_range, the wrong way", close_range(5, 3, 0));
  SHOW("close_range with a wrong flag", close_range(200, 250, 1 << 20));
  OK(close(a));
  sends(last, "def");
  gathers("recv", b, 6);
  step();
  closefrom(300);
  SHOW("send of the closed one", send(last, "x", 1, MSG_NOSIGNAL));
  ended(b);
  SHOW("the end", recv(b, into, 16, 0));
}

static int child_ends(pid_t child) {
  int status;
  OK(waitpid(child, &status, 0));
  return status;
}

static void child_answers(void) {
  char into[16];
  step();
  pid_t child = OK(fork());
  if (child == 0) {
    OK(close(a));
    long got = recv(b, into, 16, 0);
    send(b, into, got, 0);
    while ((got = recv(b, into, 16, 0)) > 0)
      send(b, into, got, 0);
    shutdown(b, SHUT_WR);
    _exit(0);
  }
  OK(close(b));
  SHOW("send", send(a, "abc", 3, 0));
  SHOW("recv", recv(a, into, 3, MSG_WAITALL));
  SHOW("send", send(a, "defg", 4, 0));
  SHOW("recv", recv(a, into, 4, MSG_WAITALL));
  SHOW("shutdown", shutdown(a, SHUT_WR));
  SHOW("recv", recv(a, into, 4, 0));
  say("it ends with %d", child_ends(child));
}

static void child_keeps(void) {
  char into[16];
  int ends[2];
  OK(pipe(ends));
  step();
  pid_t child = OK(fork());
  if (child == 0) {
    close(ends[1]);
    read(ends[0], into, 1);
    _exit(0);
  }
  close(ends[0]);
  SHOW("send", send(a, "abc", 3, 0));
  SHOW("recv", recv(b, into, 16, 0));
  OK(close(a));
  pauses(5);
  SHOW("not the end", recv(b, into, 16, MSG_DONTWAIT));
  close(ends[1]);
  say("it ends with %d", child_ends(child));
  ended(b);
  SHOW("the end", recv(b, into, 16, MSG_DONTWAIT));
}

static void both_write(void) {
  char into[16];
  step();
  pid_t child = OK(fork());
  if (child == 0) {
    for (int turn = 0; turn < 100; turn++)
      send(a, "c", 1, 0);
    _exit(0);
  }
  for (int turn = 0; turn < 100; turn++)
    OK(send(a, "p", 1, 0));
  say("it ends with %d", child_ends(child));
  int counts[2] = {0, 0};
  for (int turn = 0; turn < 200; turn++) {
    OK(recv(b, into, 1, 0));
    counts[into[0] == 'c']++;
  }
  say("%d %d", counts[0], counts[1]);
}

static void begins_another(void) {
  char into[16];
  char number[8];
  /* One that is not closed, and writes to it: it does so over TCP. */
  snprintf(number, sizeof number, "%d", a);
  step();
  pid_t child = OK(fork());
  if (child == 0) {
    fcntl(a, F_SETFD, 0);
    execl("/bin/sh", "sh", "-c", "printf abc >&$0", number, NULL);
    _exit(9);
  }
  say("it ends with %d", child_ends(child));
  struct pollfd one = {b, POLLIN, 0};
  SHOW("poll", poll(&one, 1, 1000));
  SHOW("recv", recv(b, into, 16, MSG_DONTWAIT));
}

static void begins_another_that_finds_it(void) {
  char into[16];
  char variable[16];
  char *words[] = {"sh", "-c", "printf abc >&$IT", NULL};
  char *variables[] = {"LS_COLORS=di=01;34", variable, NULL};
  snprintf(variable, sizeof variable, "IT=%d", a);
  pid_t child;
  step();
  SHOW("posix_spawn", posix_spawn(&child, "/bin/sh", NULL, NULL, words, variables));
  say("it ends with %d", child_ends(child));
  there(b, 3);
  SHOW("recv", recv(b, into, 16, MSG_DONTWAIT));
  snprintf(variable, sizeof variable, "IT=%d", b);
  child = vfork();
  if (child == 0) {
    execle("/bin/sh", "sh", "-c", "printf defg >&$IT", NULL, variables);
    _exit(9);
  }
  say("it ends with %d", child_ends(child));
  there(a, 4);
  SHOW("recv", recv(a, into, 16, MSG_DONTWAIT));
  posix_spawn_file_actions_t how;
  posix_spawn_file_actions_init(&how);
  posix_spawn_file_actions_adddup2(&how, a, 9);
  char *renumbered[] = {"sh", "-c", "printf hi >&9", NULL};
  SHOW("posix_spawn", posix_spawn(&child, "/bin/sh", &how, NULL, renumbered, environ));
  say("it ends with %d", child_ends(child));
  there(b, 2);
  SHOW("recv", recv(b, into, 16, MSG_DONTWAIT));
  child = OK(fork());
  if (child == 0) {
    /* More words than registers. */
    execlp("sh", "sh", "-e", "-c", "exit $(($# + $7 - $6))", "0", "1", "2", "3", "4", "5", "6", "7", "8", NULL);
    _exit(9);
  }
  say("it ends with %d", child_ends(child));
}

static void has_the_shell_use_it(void) {
  char into[16];
  char command[32];
  step();
  snprintf(command, sizeof command, "printf abc >&%d", a);
  SHOW("system", system(command));
  there(b, 3);
  SHOW("recv", recv(b, into, 16, MSG_DONTWAIT));
  snprintf(command, sizeof command, "printf defg >&%d", b);
  FILE *shell = popen(command, "r");
  SHOW("popen", fread(into, 1, 16, shell));
  SHOW("pclose", pclose(shell));
  there(a, 4);
  SHOW("recv", recv(a, into, 16, MSG_DONTWAIT));
}

static void begins_another_without_it(void) {
  char into[16];
  OK(fcntl(a, F_SETFD, FD_CLOEXEC));
  OK(fcntl(b, F_SETFD, FD_CLOEXEC));
  char *words[] = {"true", NULL};
  pid_t child;
  step();
  SHOW("posix_spawn", posix_spawn(&child, "/bin/true", NULL, NULL, words, environ));
  say("it ends with %d", child_ends(child));
  SHOW("system", system("exit 3"));
  FILE *from = popen("echo abc", "r");
  SHOW("popen", fread(into, 1, 16, from));
  SHOW("pclose", pclose(from));
  SHOW("send", send(a, "abc", 3, 0));
  there(b, 3);
  SHOW("recv", recv(b, into, 16, 0));
  child = vfork();
  if (child == 0) {
    close(a);
    execl("/bin/true", "true", NULL);
    _exit(9);
  }
  say("it ends with %d", child_ends(child));
  SHOW("send", send(a, "abc", 3, 0));
  there(b, 3);
  SHOW("recv", recv(b, into, 16, 0));
  OK(close(a));
  ended(b);
  SHOW("the end", recv(b, into, 16, MSG_DONTWAIT));
}

static void is_output(void) {
  char into[16];
  pid_t child;
  char *words[] = {"sh", "-c", "echo abc", NULL};
  posix_spawn_file_actions_t how;
  posix_spawn_file_actions_init(&how);
  posix_spawn_file_actions_adddup2(&how, a, 1);
  step();
  SHOW("posix_spawn", posix_spawn(&child, "/bin/sh", &how, NULL, words, environ));
  say("it ends with %d", child_ends(child));
  struct pollfd one = {b, POLLIN, 0};
  SHOW("poll", poll(&one, 1, 1000));
  SHOW("recv", recv(b, into, 16, MSG_DONTWAIT));
}

static int hands(int over, int fd) {
  char byte = 'x', control[CMSG_SPACE(sizeof fd)] = {0};
  struct iovec one = {&byte, 1};
  struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof fd);
  memcpy(CMSG_DATA(header), &fd, sizeof fd);
  return sendmsg(over, &message, 0);
}

static int takes_over(int from) {
  int fd = -1;
  char byte, control[CMSG_SPACE(sizeof fd)];
  struct iovec one = {&byte, 1};
  struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  OK(recvmsg(from, &message, 0));
  memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
  return fd;
}

static void handed_on(void) {
  int ends[2];
  char into[16];
  OK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
  if (SHOW("sendmsg", hands(ends[0], a)) < 0)
    return;
  int got = takes_over(ends[1]);
  SHOW("send of what was got", send(got, "abc", 3, 0));
  struct pollfd one = {b, POLLIN, 0};
  SHOW("poll", poll(&one, 1, 1000));
  SHOW("recv", recv(b, into, 16, MSG_DONTWAIT));
  OK(close(a));
  SHOW("send of the other end", send(b, "def", 3, MSG_NOSIGNAL));
  one.fd = got;
  SHOW("poll", poll(&one, 1, 1000));
  SHOW("recv of what was got", recv(got, into, 16, MSG_DONTWAIT));
  OK(close(got));
  pauses(5);
  one.fd = b;
  SHOW("poll at the end", poll(&one, 1, 1000));
}

static void polls_for_bytes(void *fd) { poll(&(struct pollfd){*(int *)fd, POLLIN, 0}, 1, 20000); }

static void reads_one(void *fd) {
  char one;
  OK(recv(*(int *)fd, &one, 1, 0));
}

static void waits_in_a_set(void *fd) {
  int set = OK(epoll_create1(0));
  struct epoll_event event = {.events = EPOLLIN};
  OK(epoll_ctl(set, EPOLL_CTL_ADD, *(int *)fd, &event));
  OK(epoll_wait(set, &event, 1, 20000));
  OK(close(set));
}

/* What is still to be read goes with it, as the other end waits, by one means or another, or does something else. */
static void handed_on_with_bytes(void) {
  void (*const waits[])(void *) = {polls_for_bytes, reads_one, waits_in_a_set};
  char into[16] = {0};
  int ends[2];
  OK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
  for (int turn = 0; turn < 4; turn++) {
    int of[2] = {a, b};
    struct later more;
    if (turn > 0)
      pairs(of);
    SHOW("send", send(of[1], "unread", 6, 0));
    there(of[0], 6);
    SHOW("recv of a part", recv(of[0], into, 2, 0));
    if (turn < 3) {
      later(&more, 0, waits[turn], &of[1]);
      pauses(20);
    }
    SHOW("sendmsg", hands(ends[0], of[0]));
    int got = takes_over(ends[1]);
    OK(close(of[0]));
    if (turn == 3)
      SHOW("send", send(of[1], " and more", 9, 0));
    gathers("it is left", got, turn == 3 ? 13 : 4);
    sends(got, "!!");
    if (turn < 3)
      joins(&more);
    takes(of[1], turn == 1 ? 1 : 2);
    SHOW("send", send(of[1], "again", 5, 0));
    gathers("what came", got, 5);
    OK(close(of[1]));
    SHOW("recv of the end", recv(got, into, 16, 0));
    OK(close(got));
  }
}

/* The other end waits by each means as this one is handed on, and goes on to do so. */
static void others_wait_as_it_is_handed_on(void) {
  int ends[2], set = OK(epoll_create1(0)), edges = OK(epoll_create1(0));
  char into[16];
  OK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
  struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.fd = 1}, edge = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.fd = 2};
  OK(epoll_ctl(set, EPOLL_CTL_ADD, b, &event));
  OK(epoll_ctl(edges, EPOLL_CTL_ADD, b, &edge));
  OK(epoll_wait(edges, &edge, 1, 0));
  SHOW("send", send(a, "abc", 3, 0));
  SHOW("sendmsg", hands(ends[0], a));
  int got = takes_over(ends[1]);
  OK(close(a));
  SHOW("epoll_wait", epoll_wait(set, &event, 1, 1000));
  SHOW("epoll_wait, edge", epoll_wait(edges, &edge, 1, 1000));
  say("%s", bits(edge.events));
  SHOW("recv", recv(b, into, 16, 0));
  SHOW("recv", recv(b, into, 16, MSG_DONTWAIT));
  SHOW("epoll_wait of nothing", epoll_wait(set, &event, 1, 20));
  SHOW("epoll_wait of nothing, edge", epoll_wait(edges, &edge, 1, 20));
  struct later more;
  struct pollfd one = {b, POLLIN, 0};
  later(&more, 15, writes_one, &got);
  SHOW("epoll_wait that waits", epoll_wait(set, &event, 1, 5000));
  say("%s", bits(event.events));
  joins(&more);
  SHOW("epoll_wait, edge", epoll_wait(edges, &edge, 1, 1000));
  say("%s", bits(edge.events));
  takes(b, 1);
  later(&more, 15, writes_one, &got);
  SHOW("poll that waits", poll(&one, 1, 5000));
  say("%s", bits(one.revents));
  joins(&more);
  takes(b, 1);
  later(&more, 15, writes_one, &got);
  SHOW("recv that waits", recv(b, into, 16, 0));
  joins(&more);
  long all = stuffs(b);
  one.events = POLLIN | POLLOUT;
  SHOW("poll without room", poll(&one, 1, 0));
  takes(got, all);
  SHOW("poll with room", poll(&one, 1, 1000));
  say("%s", bits(one.revents));
  OK(close(got));
  SHOW("epoll_wait of the end", epoll_wait(set, &event, 1, 5000));
  say("%s", bits(event.events));
  SHOW("recv of the end", recv(b, into, 16, 0));
}

/* As `others_wait_as_it_is_handed_on`, where a thread sleeps for it at that time. */
static void hands_late(void *with) {
  int *of = with;
  pauses(20);
  if (hands(of[0], a) == 1) {
    int got = takes_over(of[1]);
    sends(got, "x");
    pauses(20);
    sends(got, "y");
    pauses(20);
    close(got);
  }
}

static void others_sleep_as_it_is_handed_on(void) {
  int ends[2];
  char into[16];
  struct later more;
  OK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
  int set = OK(epoll_create1(0));
  struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.fd = 1};
  OK(epoll_ctl(set, EPOLL_CTL_ADD, b, &event));
  later(&more, 0, hands_late, ends);
  SHOW("recv", recv(b, into, 1, 0));
  SHOW("epoll_wait", epoll_wait(set, &event, 1, 5000));
  SHOW("recv", recv(b, into, 1, 0));
  SHOW("send", send(b, "abc", 3, 0));
  joins(&more);
  OK(close(a));
  SHOW("poll of the end", poll(&(struct pollfd){b, POLLIN, 0}, 1, 5000));
}

/* What was set of it stays, as it is the kernel's again. */
static void options_of_one_that_is_handed_on(void) {
  int ends[2], on = 1, three = 3, value;
  socklen_t len = sizeof value;
  OK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
  OK(setsockopt(a, IPPROTO_TCP, TCP_CORK, &on, sizeof on));
  OK(setsockopt(a, SOL_SOCKET, SO_RCVLOWAT, &three, sizeof three));
  SHOW("sendmsg", hands(ends[0], a));
  int got = takes_over(ends[1]);
  for (int turn = 0; turn < 2; turn++) {
    int of = turn ? got : a;
    OK(getsockopt(of, IPPROTO_TCP, TCP_NODELAY, &value, &len));
    say("TCP_NODELAY %d", value);
    OK(getsockopt(of, IPPROTO_TCP, TCP_CORK, &value, &len));
    say("TCP_CORK %d", value);
    OK(getsockopt(of, SOL_SOCKET, SO_RCVLOWAT, &value, &len));
    say("SO_RCVLOWAT %d", value);
  }
}

/* So that the memory may come before it is handed on. */
static void talks_before(int turns) {
  for (int turn = 0; turn < turns; turn++) {
    SHOW("send before", send(b, "x", 1, 0));
    takes(a, 1);
  }
}

/* The close of one that another process has is none of the connection, also without time to linger. */
static void handed_on_without_lingering(void) {
  int ends[2];
  char into[16];
  struct linger none = {.l_onoff = 1, .l_linger = 0};
  OK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
  talks_before(10);
  SHOW("setsockopt", setsockopt(a, SOL_SOCKET, SO_LINGER, &none, sizeof none));
  SHOW("sendmsg", hands(ends[0], a));
  int got = takes_over(ends[1]);
  OK(close(a));
  SHOW("send", send(got, "abc", 3, MSG_NOSIGNAL));
  SHOW("poll", poll(&(struct pollfd){b, POLLIN, 0}, 1, 1000));
  SHOW("recv", recv(b, into, 16, MSG_DONTWAIT));
  SHOW("send of the other end", send(b, "def", 3, MSG_NOSIGNAL));
  SHOW("poll", poll(&(struct pollfd){got, POLLIN, 0}, 1, 1000));
  SHOW("recv of what was got", recv(got, into, 16, MSG_DONTWAIT));
  OK(close(got));
  ended(b);
  SHOW("recv of the end", recv(b, into, 16, MSG_DONTWAIT));
}

static void takes_late(void *with) {
  long *of = with;
  pauses(250);
  takes(of[0], of[1]);
  sends(of[0], "!");
}

/* More is unread than TCP has room for, and who got it reads late. The other end waits for an answer, by one means or another. */
static void handed_on_with_much(void) {
  void (*const waits[])(void *) = {polls_for_bytes, reads_one, waits_in_a_set};
  static char some[1000];
  int ends[2], little = 20000;
  OK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
  talks_before(14);
  for (int turn = 0; turn < 3; turn++) {
    int of[2] = {a, b};
    long left[2] = {0, 0};
    struct later more;
    if (turn > 0)
      pairs(of);
    OK(setsockopt(of[0], SOL_SOCKET, SO_RCVBUF, &little, sizeof little));
    OK(setsockopt(of[1], SOL_SOCKET, SO_SNDBUF, &little, sizeof little));
    for (int idle = 0; idle < 5;) {
      long got = send(of[1], some, sizeof some, MSG_DONTWAIT);
      left[1] += got > 0 ? got : 0;
      idle = got > 0 ? 0 : idle + 1;
      pauses(got > 0 ? 0 : 5);
    }
    SHOW("sendmsg", hands(ends[0], of[0]));
    left[0] = takes_over(ends[1]);
    OK(close(of[0]));
    later(&more, 0, takes_late, left);
    step();
    waits[turn](&of[1]);
    if (turn != 1)
      takes(of[1], 1);
    joins(&more);
    SHOW("send", send(of[1], "again", 5, 0));
    gathers("what came", left[0], 5);
    OK(close(left[0]));
    OK(close(of[1]));
  }
}

/* The other end has closed: what is unread would be lost. */
static void handed_on_as_the_other_end_has_closed(void) {
  int ends[2];
  char into[16] = {0};
  OK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
  talks_before(8);
  SHOW("send", send(b, "abc", 3, 0));
  OK(close(b));
  there(a, 3);
  int got = a;
  if (SHOW("sendmsg", hands(ends[0], a)) == 1)
    got = takes_over(ends[1]);
  gathers("it is left", got, 3);
  SHOW("recv of the end", recv(got, into, 16, 0));
}

/* Calls that go well leave `errno` alone: many look at it behind a close. */
static void leaves_errno_alone(void) {
  char into[16];
  int ends[2], set = OK(epoll_create1(0)), pipes[2], file = OK(memfd_create("file", 0)), count;
  struct epoll_event event = {.events = EPOLLIN};
  struct pollfd one = {b, POLLIN, 0};
  struct linger none = {.l_onoff = 1, .l_linger = 0};
  OK(pipe(pipes));
  OK(write(file, "abcdef", 6));
  OK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
#define KEEPS(call)                                                            \
  do {                                                                         \
    step();                                                                    \
    errno = ENOTNAM;                                                           \
    long result_ = (long)(call);                                               \
    int why_ = errno;                                                          \
    say("%s: %ld, errno %s", #call, result_, strerrorname_np(why_));            \
  } while (0)
  KEEPS(send(a, "abcdef", 6, 0));
  KEEPS(poll(&one, 1, 1000));
  KEEPS(epoll_ctl(set, EPOLL_CTL_ADD, b, &event));
  KEEPS(epoll_wait(set, &event, 1, 1000));
  KEEPS(recv(b, into, 6, MSG_WAITALL));
  KEEPS(epoll_wait(set, &event, 1, 0));
  KEEPS(poll(&one, 1, 0));
  KEEPS(sendfile(a, file, &(off_t){0}, 6));
  KEEPS(splice(b, NULL, pipes[1], NULL, 6, 0));
  KEEPS(splice(pipes[0], NULL, b, NULL, 6, 0));
  KEEPS(ioctl(a, FIONREAD, &count) < 0);
  KEEPS(recv(a, into, 6, MSG_WAITALL));
  KEEPS(setsockopt(a, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)));
  int other = dup(a);
  KEEPS(dup2(a, other) - other);
  KEEPS(close(other));
  KEEPS(hands(ends[0], a));
  KEEPS(close(a));
  KEEPS(shutdown(b, SHUT_WR));
  KEEPS(close(b));
  int more[2];
  for (int turn = 0; turn < 2; turn++) {
    pairs(more);
    if (turn == 0)
      OK(setsockopt(more[0], SOL_SOCKET, SO_LINGER, &none, sizeof none));
    sends(more[1], "x");
    KEEPS(close(more[turn]));
    KEEPS(close(more[1 - turn]));
  }
}

/* The set of the other ends is large, and they have been quiet. */
static void some_of_many_are_handed_on(void) {
  enum { MANY = 24 };
  int ends[2], of[MANY][2], set = OK(epoll_create1(0));
  char into[16];
  OK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
  for (int at = 0; at < MANY; at++) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.fd = at};
    pairs(of[at]);
    OK(epoll_ctl(set, EPOLL_CTL_ADD, of[at][1], &event));
  }
  for (int turn = 0; turn < 10; turn++) {
    struct epoll_event event;
    OK(epoll_wait(set, &event, 1, 5));
  }
  for (int at = 0; at < MANY; at += 5) {
    struct epoll_event event = {0};
    if (at % 2)
      sends(of[at][1], "unread");
    SHOW("sendmsg", hands(ends[0], of[at][0]));
    int got = takes_over(ends[1]);
    OK(close(of[at][0]));
    SHOW("epoll_wait of nothing", epoll_wait(set, &event, 1, 10));
    if (at % 2)
      gathers("it is left", got, 6);
    sends(got, "abc");
    SHOW("epoll_wait", epoll_wait(set, &event, 1, 5000));
    say("%s of %d", bits(event.events), event.data.fd == at);
    SHOW("recv", recv(of[at][1], into, 3, MSG_DONTWAIT));
    SHOW("epoll_wait of nothing", epoll_wait(set, &event, 1, 10));
    sends(of[at][1], "back");
    gathers("what came", got, 4);
    struct later more;
    later(&more, 10, closes, &got);
    SHOW("epoll_wait of the end", epoll_wait(set, &event, 1, 5000));
    say("%s of %d", bits(event.events), event.data.fd == at);
    joins(&more);
    SHOW("recv of the end", recv(of[at][1], into, 3, MSG_DONTWAIT));
    OK(close(of[at][1]));
  }
}

/* Both ends are handed on, and a half is shut before. */
static void both_ends_are_handed_on(void) {
  int ends[2], of[2];
  char into[16];
  OK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
  OK(shutdown(a, SHUT_WR));
  ended(b);
  SHOW("recv of the end", recv(b, into, 16, 0));
  SHOW("sendmsg", hands(ends[0], a));
  of[0] = takes_over(ends[1]);
  SHOW("sendmsg of the other end", hands(ends[0], b));
  of[1] = takes_over(ends[1]);
  OK(close(a));
  OK(close(b));
  SHOW("send", send(of[1], "abc", 3, 0));
  SHOW("recv", recv(of[0], into, 16, 0));
  SHOW("recv of the end", recv(of[1], into, 16, 0));
  OK(close(of[1]));
  ended(of[0]);
  SHOW("recv of the end", recv(of[0], into, 16, 0));
}

/* As a server does that begins a program for a client whose request it has read: with the connection as its input and output. */
static void serves_by_another(void) {
  char into[64] = {0};
  sends(b, "request\n");
  gathers("request", a, 8);
  step();
  pid_t child = OK(fork());
  if (child == 0) {
    close(b);
    dup2(a, 0);
    dup2(a, 1);
    close(a);
    execl("/bin/sh", "sh", "-c", "read line; echo got $line; cat", NULL);
    _exit(9);
  }
  OK(close(a));
  SHOW("send", send(b, "more\n", 5, 0));
  gathers("answer", b, 9);
  SHOW("send", send(b, "and more\n", 9, 0));
  gathers("answer", b, 9);
  OK(shutdown(b, SHUT_WR));
  say("it ends with %d", child_ends(child));
  SHOW("recv of the end", recv(b, into, 16, 0));
}

static void handed_to_a_child(void) {
  int ends[2];
  char into[16];
  OK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
  pid_t child = OK(fork());
  if (child == 0) {
    close(a);
    close(b);
    int got = takes_over(ends[1]);
    send(got, "abc", 3, 0);
    _exit(0);
  }
  if (SHOW("sendmsg", hands(ends[0], a)) < 0) {
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    return;
  }
  OK(close(a));
  say("it ends with %d", child_ends(child));
  struct pollfd one = {b, POLLIN, 0};
  SHOW("poll", poll(&one, 1, 1000));
  SHOW("recv", recv(b, into, 16, MSG_DONTWAIT));
}

static void streams(void) {
  char line[64];
  struct timeval limit = {1, 0};
  OK(setsockopt(a, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
  FILE *one = fdopen(a, "r+");
  setvbuf(one, NULL, _IOLBF, 1024);
  SHOW("fprintf", fprintf(one, "hello %d\n", 7));
  SHOW("fflush", fflush(one));
  struct pollfd polled = {b, POLLIN, 0};
  SHOW("poll", poll(&polled, 1, 1000));
  SHOW("recv", recv(b, line, sizeof line, MSG_DONTWAIT));
  sends(b, "a line\nand more");
  OK(shutdown(b, SHUT_WR));
  pauses(5);
  say("fgets: %s", fgets(line, sizeof line, one) ? strtok(line, "\n") : "nothing");
  SHOW("fread", fread(line, 1, sizeof line, one));
  SHOW("feof", feof(one) != 0);
  SHOW("fclose", fclose(one));
  pauses(5);
  polled.revents = 0;
  SHOW("poll", poll(&polled, 1, 1000));
}

/* As headers for functions that check have it. */
extern int __dprintf_chk(int fd, int flag, const char *format, ...);

static int lists(int fd, const char *format, ...) {
  va_list with;
  va_start(with, format);
  int count = vdprintf(fd, format, with);
  va_end(with);
  return count;
}

static void prints(void) {
  static char much[10000];
  char line[256] = {0};
  int file = OK(memfd_create("file", 0));
  SHOW("dprintf", dprintf(a, "hello %d\n", 7));
  struct pollfd polled = {b, POLLIN, 0};
  SHOW("poll", poll(&polled, 1, 1000));
  SHOW("recv", recv(b, line, sizeof line, MSG_DONTWAIT));
#define MANY "%d %s %.2f %ld %c %.1f %x %.1f %d %.1f %d %.1f %.1f %.1f %.1f %.1f %.1f %d %Lf", 1, "two", 3.0, 4L, '5', 6.5, 7, 8.5, 9, 10.5, 11, 12.5, 13.5, 14.5, 15.5, 16.5, 17.5, 18, 19.5L
  long len = SHOW("dprintf of many arguments", dprintf(a, MANY));
  gathers("what came", b, len > 0 && len < 64 ? len : 0);
  if (len >= 64) {
    memset(line, 0, sizeof line);
    OK(recv(b, line, len, MSG_WAITALL));
    say("what came: %s", line);
  }
  len = SHOW("__dprintf_chk", __dprintf_chk(a, 1, "%s %d %.1f %d %d %d", "some", 1, 2.5, 3, 4, 5));
  gathers("what came", b, len);
  len = SHOW("vdprintf", lists(a, "%d %.1f %s", 1, 2.5, "three"));
  gathers("what came", b, len);
  SHOW("dprintf of nothing", dprintf(a, "%s", ""));
  memset(much, 'x', sizeof much - 1);
  SHOW("dprintf of much", dprintf(a, "%s%s", much, much));
  takes(b, 2 * (sizeof much - 1));
  SHOW("dprintf to a file", dprintf(file, MANY));
  OK(lseek(file, 0, SEEK_SET));
  memset(line, 0, sizeof line);
  OK(read(file, line, sizeof line - 1));
  say("it has: %s", line);
  SHOW("dprintf to no descriptor", dprintf(-1, "%d", 1));
  catches(SIGPIPE, 0);
  OK(shutdown(a, SHUT_WR));
  SHOW("dprintf behind the end", dprintf(a, "%d", 1));
  say("SIGPIPE %d", caught);
}

static void at_other_places(void) {
  char into[16];
  struct iovec one = {into, 16};
  SHOW("pwritev2 at no place", pwritev2(a, &(struct iovec){"abc", 3}, 1, -1, 0));
  struct pollfd polled = {b, POLLIN, 0};
  SHOW("poll", poll(&polled, 1, 1000));
  SHOW("preadv2 at no place", preadv2(b, &one, 1, -1, RWF_NOWAIT));
  SHOW("preadv", preadv(a, &one, 1, 0));
  SHOW("preadv2 at a place", preadv2(a, &one, 1, 7, 0));
  SHOW("preadv2 before all places", preadv2(a, &one, 1, -7, 0));
  SHOW("preadv2 with a wrong flag", preadv2(a, &one, 1, -1, 1 << 30));
  SHOW("pwritev2 with a wrong flag", pwritev2(a, &one, 1, -1, 1 << 30));
  SHOW("pwritev2 as to a file", pwritev2(a, &(struct iovec){"def", 3}, 1, -1, RWF_SYNC | RWF_HIPRI));
  there(b, 3);
  SHOW("recv", recv(b, into, 16, MSG_DONTWAIT));
}

const struct scenario OF_PROCESSES[] = {
    {"second-numbers", second_numbers},
    {"over-another", over_another},
    {"closes-ranges", closes_ranges},
    {"child-answers", child_answers},
    {"child-keeps", child_keeps},
    {"both-write", both_write},
    {"begins-another", begins_another},
    {"begins-another-that-finds-it", begins_another_that_finds_it},
    {"has-the-shell-use-it", has_the_shell_use_it},
    {"begins-another-without-it", begins_another_without_it},
    {"is-output", is_output},
    {"handed-on", handed_on},
    {"handed-on-with-bytes", handed_on_with_bytes},
    {"others-wait-as-it-is-handed-on", others_wait_as_it_is_handed_on},
    {"others-sleep-as-it-is-handed-on", others_sleep_as_it_is_handed_on},
    {"options-of-one-that-is-handed-on", options_of_one_that_is_handed_on},
    {"handed-on-without-lingering", handed_on_without_lingering},
    {"handed-on-with-much", handed_on_with_much},
    {"handed-on-as-the-other-end-has-closed", handed_on_as_the_other_end_has_closed},
    {"leaves-errno-alone", leaves_errno_alone},
    {"some-of-many-are-handed-on", some_of_many_are_handed_on},
    {"both-ends-are-handed-on", both_ends_are_handed_on},
    {"serves-by-another", serves_by_another},
    {"handed-to-a-child", handed_to_a_child},
    {"streams", streams},
    {"prints", prints},
    {"at-other-places", at_other_places},
    {0},
};
