/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calls list | calls SCENARIO MODE FAMILY ORDER [STEP]
 *
 * MODE: `plain`, `memory` (from the beginning), `tcp` (the other end is not known to the library), or `over`: the memory comes before the
 * call with the number STEP. FAMILY: 4, 6, or m: IPv4 through a socket of IPv6. ORDER: the end under test connects, or accepts.
 */
#include "calls.h"
#include <stdarg.h>
#include <time.h>

int a = -1, b = -1;
pthread_t main_thread;
volatile sig_atomic_t caught;

static enum { PLAIN, MEMORY, TCP, OVER } mode;
static char family = '4';
static int accepts_first;
static long at_step = -1, steps;
static pid_t of;

static const struct scenario *const ALL[] = {OF_DATA, OF_FLAGS, OF_ENDS, OF_NAMES, OF_WAITS, OF_SETS, OF_SIGNALS, OF_PROCESSES, OF_RACES};

void say(const char *format, ...) {
  char line[4096];
  va_list with;
  va_start(with, format);
  int len = vsnprintf(line, sizeof line - 1, format, with);
  va_end(with);
  line[len++] = '\n';
  syscall(SYS_write, 1, line, len);
}

void fails(const char *what) {
  say("failed: %s: %s", what, strerrorname_np(errno) ? strerrorname_np(errno) : "?");
  syscall(SYS_exit_group, 2);
  __builtin_unreachable();
}

long shows(const char *label, long result, int why) {
  if (result < 0)
    say("%s: %s", label, why ? strerrorname_np(why) : "-1 without an error");
  else
    say("%s: %ld", label, result);
  return result;
}

void pauses(int ms) {
  struct timespec left = {ms / 1000, ms % 1000 * 1000000L};
  while (nanosleep(&left, &left) < 0)
    ;
}

/* The mappings that are windows. */
static int windows(void) {
  static char maps[1 << 20];
  int fd = syscall(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY), count = 0;
  long len = 0, more;
  while ((more = syscall(SYS_read, fd, maps + len, sizeof maps - 1 - len)) > 0)
    len += more;
  syscall(SYS_close, fd);
  maps[len] = 0;
  for (char *at = maps; (at = strstr(at, "/memfd:")); at++)
    count++;
  return count;
}

void step(void) {
  if (getpid() != of || steps++ != at_step || mode != OVER)
    return;
  char go;
  say("*memory");
  if (syscall(SYS_read, 0, &go, 1) != 1)
    fails("waiting for the memory");
  /* The library looks for it seldom, and more seldom as time goes on. */
  for (int turn = 0; turn < 200; turn++) {
    int count;
    pauses(2);
    ioctl(a, FIONREAD, &count);
    ioctl(b, FIONREAD, &count);
    if (windows() < 2)
      continue;
    /* It is taken by a call that reads or writes: of nothing, here. */
    send(a, "", 0, MSG_DONTWAIT | MSG_NOSIGNAL);
    send(b, "", 0, MSG_DONTWAIT | MSG_NOSIGNAL);
    return;
  }
  say("*none");
}

static long counts(int fd, int sent) {
  struct tcp_info info = {0};
  socklen_t len = sizeof info;
  OK(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len));
  return sent ? info.tcpi_bytes_sent : info.tcpi_bytes_received;
}

void takes(int fd, long count) {
  char into[65536];
  while (count > 0) {
    long got = recv(fd, into, count < (long)sizeof into ? count : (long)sizeof into, MSG_WAITALL);
    if (got <= 0)
      fails("taking bytes");
    count -= got;
  }
}

/* The kernel says how many bytes have gone over TCP: fewer than were written. */
void warms(int one, int other) {
  enum { LEN = 64 };
  char some[LEN] = {0};
  for (int turn = 0; turn < 5000; turn++) {
    long before[2] = {counts(one, 1), counts(other, 1)};
    OK(send(one, some, LEN, 0));
    takes(other, LEN);
    OK(send(other, some, LEN, 0));
    takes(one, LEN);
    int is_over = counts(one, 1) - before[0] < LEN && counts(other, 1) - before[1] < LEN;
    if (mode == MEMORY ? is_over : turn > 1)
      return;
    pauses(1);
  }
  say("*none");
}

int client(void) { return OK(socket(family == '4' ? AF_INET : AF_INET6, SOCK_STREAM, 0)); }

int listens(int backlog) {
  int fd = client(), off = 0;
  struct sockaddr_in of4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  struct sockaddr_in6 of6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
  if (family == '4') {
    OK(bind(fd, (struct sockaddr *)&of4, sizeof of4));
  } else {
    if (family == 'm') {
      of6.sin6_addr = in6addr_any;
      OK(setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off));
    }
    OK(bind(fd, (struct sockaddr *)&of6, sizeof of6));
  }
  OK(listen(fd, backlog));
  return fd;
}

socklen_t address(int listener, struct sockaddr_storage *at) {
  socklen_t len = sizeof *at;
  OK(getsockname(listener, (struct sockaddr *)at, &len));
  if (family == 'm') {
    struct sockaddr_in6 *of6 = (struct sockaddr_in6 *)at;
    inet_pton(AF_INET6, "::ffff:127.0.0.1", &of6->sin6_addr);
  }
  return len;
}

void pairs(int ends[2]) {
  struct sockaddr_storage at;
  int listener = listens(8), connects = client();
  socklen_t len = address(listener, &at);
  OK(connect(connects, (struct sockaddr *)&at, len));
  int accepts = OK(mode == TCP ? (int)syscall(SYS_accept4, listener, NULL, NULL, 0) : accept(listener, NULL, NULL));
  OK(close(listener));
  /* Buffers that do not grow meanwhile. */
  int size = 100000;
  for (int turn = 0; turn < 4; turn++)
    OK(setsockopt(turn % 2 ? connects : accepts, SOL_SOCKET, turn / 2 ? SO_SNDBUF : SO_RCVBUF, &size, sizeof size));
  if (mode != OVER)
    warms(connects, accepts);
  ends[accepts_first] = connects;
  ends[!accepts_first] = accepts;
}

void there(int fd, int count) {
  for (int turn = 0, are = 0; turn < 3000; turn++) {
    /* What is still to come over TCP is counted, and then what has come through the memory. */
    if (ioctl(fd, FIONREAD, &are) == 0 && (are >= count || (mode == OVER && are > 0 && turn > 10)))
      return;
    pauses(1);
  }
  say("what should be there does not come");
}

void ended(int fd) {
  char one;
  for (int turn = 0; turn < 3000; turn++) {
    long got = recv(fd, &one, 1, MSG_PEEK | MSG_DONTWAIT);
    if (got >= 0 || errno != EAGAIN)
      return;
    pauses(1);
  }
  say("the end does not come");
}

void fills(char *into, long count, long place) {
  for (long at = 0; at < count; at++)
    into[at] = (char)((place + at) * 31 % 251);
}

void drains(const char *label, int fd, long count) {
  static char into[65536], right[65536];
  long place = 0, wrong = 0, got = 1;
  while (place < count && got > 0) {
    long most = count - place < (long)sizeof into ? count - place : (long)sizeof into;
    got = read(fd, into, most);
    if (got < 0) {
      say("%s: %s after %ld", label, strerrorname_np(errno), place);
      return;
    }
    fills(right, got, place);
    for (long at = 0; at < got; at++)
      wrong += into[at] != right[at];
    place += got;
  }
  say("%s: %ld bytes, %ld of them wrong", label, place, wrong);
}

void gathers(const char *label, int fd, long count) {
  char into[64] = {0};
  step();
  for (long at = 0; at < count;) {
    long got = recv(fd, into + at, count - at, 0);
    if (got <= 0)
      fails("gathering bytes");
    at += got;
  }
  say("%s: %s", label, into);
}

void sends(int fd, const char *text) {
  if (send(fd, text, strlen(text), MSG_NOSIGNAL) != (long)strlen(text))
    fails("sending a few bytes");
}

long stuffs(int fd) {
  static char some[65536];
  static const long sizes[] = {65536, 1024, 16, 1};
  long all = 0;
  for (unsigned at = 0, idle = 0; at < LENGTH(sizes); at++, idle = 0)
    /* The kernel acknowledges within 40 ms, and asks for room after 200; either makes room once more. */
    while (idle < (sizes[at] == 1 ? 100 : 2)) {
      long got = send(fd, some, sizes[at], MSG_DONTWAIT | MSG_NOSIGNAL);
      if (got > 0) {
        all += got;
        idle = 0;
      } else if (got < 0 && errno == EAGAIN) {
        /* What is on its way over TCP makes room once more. */
        idle++;
        pauses(3);
      } else {
        fails("filling a connection");
      }
    }
  return all;
}

const char *bits(unsigned of_them) {
  static char text[4][128];
  static int turn;
  static const struct {
    unsigned bit;
    const char *name;
  } names[] = {{POLLIN, "IN"},         {POLLPRI, "PRI"},       {POLLOUT, "OUT"},       {POLLERR, "ERR"},       {POLLHUP, "HUP"},
               {POLLNVAL, "NVAL"},     {POLLRDNORM, "RDNORM"}, {POLLWRNORM, "WRNORM"}, {POLLRDBAND, "RDBAND"}, {POLLWRBAND, "WRBAND"},
               {POLLRDHUP, "RDHUP"}};
  char *into = text[turn++ % 4];
  into[0] = 0;
  for (unsigned at = 0; at < LENGTH(names); at++)
    if (of_them & names[at].bit) {
      if (into[0])
        strcat(into, "|");
      strcat(into, names[at].name);
    }
  return into[0] ? into : "nothing";
}

static void *runs_later(void *with) {
  struct later *it = with;
  pauses(it->ms);
  it->what(it->with);
  return NULL;
}

static pthread_t thread(void *(*runs)(void *), void *with) {
  pthread_t of_it;
  sigset_t all, before;
  /* Signals are for the main thread. */
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  if (pthread_create(&of_it, NULL, runs, with) != 0)
    fails("a thread");
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return of_it;
}

void later(struct later *it, int ms, void (*what)(void *), void *with) {
  it->ms = ms;
  it->what = what;
  it->with = with;
  it->thread = thread(runs_later, it);
}

void joins(struct later *it) { pthread_join(it->thread, NULL); }

void writes_one(void *fd) { sends(*(int *)fd, "!"); }
void closes(void *fd) { close(*(int *)fd); }
void ends_writing(void *fd) { shutdown(*(int *)fd, SHUT_WR); }
void shuts(void *fd) { shutdown(*(int *)fd, SHUT_RDWR); }

static void counts_signal(int number) {
  (void)number;
  caught++;
}

void catches(int number, int flags) {
  struct sigaction how = {.sa_handler = counts_signal, .sa_flags = flags};
  OK(sigaction(number, &how, NULL));
}

static void *runs_nag(void *with) {
  struct nag *nag = with;
  for (int turn = 0; turn < 2000 && !nag->is_over; turn++) {
    pauses(5);
    if (!nag->is_over)
      pthread_kill(main_thread, SIGUSR1);
  }
  return NULL;
}

void nags(struct nag *nag) {
  nag->is_over = 0;
  nag->thread = thread(runs_nag, nag);
}

void stops(struct nag *nag) {
  nag->is_over = 1;
  pthread_join(nag->thread, NULL);
}

int main(int count, char **words) {
  main_thread = pthread_self();
  of = getpid();
  for (unsigned list = 0; list < LENGTH(ALL); list++)
    for (const struct scenario *one = ALL[list]; one->name; one++) {
      if (count == 2) {
        say("%s", one->name);
        continue;
      }
      if (count < 5 || strcmp(words[1], one->name) != 0)
        continue;
      mode = !strcmp(words[2], "plain") ? PLAIN : !strcmp(words[2], "memory") ? MEMORY : !strcmp(words[2], "tcp") ? TCP : OVER;
      family = words[3][0];
      accepts_first = strcmp(words[4], "accepts") == 0;
      if (count > 5)
        at_step = atol(words[5]);
      int ends[2];
      pairs(ends);
      a = ends[0];
      b = ends[1];
      one->run();
      say("*steps %ld", steps);
      return 0;
    }
  return count == 2 ? 0 : 3;
}
