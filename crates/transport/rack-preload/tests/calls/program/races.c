/* SPDX-License-Identifier: Apache-2.0 */
/* One thing as another one is under way: threads that close what others wait for, and programs that end meanwhile. */
#include "calls.h"
#include <sys/resource.h>
#include <sys/time.h>

static int child_ends(pid_t child) {
  int status;
  OK(waitpid(child, &status, 0));
  return status;
}

static int first;
static volatile int is_there;

static void reads_first(void *to) {
  char into[64];
  is_there = 1;
  *(long *)to = recv(first, into, sizeof into, 0);
}

/* Another connection has the number of the first one, for which a thread still waits, as that ends. */
static void number_is_taken_again(void) {
  char into[16];
  int next[2];
  long got = -1;
  struct later reads;
  first = OK(dup2(a, 60));
  OK(close(a));
  later(&reads, 0, reads_first, &got);
  while (!is_there)
    pauses(1);
  pauses(100);
  OK(close(first));
  /* One whose bytes come over TCP. */
  struct sockaddr_storage at;
  int listener = listens(8);
  socklen_t len = address(listener, &at);
  next[0] = client();
  OK(connect(next[0], (struct sockaddr *)&at, len));
  next[1] = OK(syscall(SYS_accept4, listener, NULL, NULL, 0));
  OK(dup2(next[0], first));
  OK(close(next[0]));
  sends(next[1], "of the next one");
  OK(close(b));
  joins(&reads);
  there(first, 15);
  say("the thread has nothing of it: %d", got <= 0);
  SHOW("recv", recv(first, into, 16, MSG_DONTWAIT));
  sends(first, "abc");
  there(next[1], 3);
  SHOW("recv of the other end", recv(next[1], into, 16, MSG_DONTWAIT));
}

static int ends_of[2];

static void *writes_on(void *unused) {
  char some[100] = {0};
  while (write(ends_of[0], some, sizeof some) > 0)
    ;
  return NULL;
}

static void *reads_on(void *unused) {
  char into[4096];
  while (read(ends_of[1], into, sizeof into) > 0)
    ;
  return NULL;
}

/* Its other threads are in the middle of something then. */
static void exits_as_others_write(void) {
  for (int turn = 0; turn < 4; turn++) {
    pid_t child = OK(fork());
    if (child == 0) {
      pthread_t threads[2];
      pairs(ends_of);
      pthread_create(&threads[0], NULL, writes_on, NULL);
      pthread_create(&threads[1], NULL, reads_on, NULL);
      pauses(10);
      exit(0);
    }
    say("it ends with %d", child_ends(child));
  }
}

static void forks_again(void) {
  pid_t child = fork();
  if (child == 0)
    _exit(child < 0);
  waitpid(child, NULL, 0);
}

static void forks_as_it_exits(void) {
  pid_t child = OK(fork());
  if (child == 0) {
    forks_again();
    atexit(forks_again);
    exit(7);
  }
  say("it ends with %d", WEXITSTATUS(child_ends(child)));
}

/* A program that was killed says nothing itself. */
static void writes_to_one_that_died(void) {
  char into[16];
  int few = 0;
  pid_t child = OK(fork());
  if (child == 0) {
    close(a);
    for (;;)
      pause();
  }
  OK(close(b));
  pauses(5);
  kill(child, SIGKILL);
  child_ends(child);
  ended(a);
  step();
  recv(a, into, 16, 0);
  while (send(a, "late", 4, MSG_NOSIGNAL | MSG_DONTWAIT) == 4 && few++ < 100)
    pauses(2);
  say("it fails after a few: %d", few < 100);
}

/* Sets for more descriptors than the C library has room for. */
static void selects_high(void) {
  struct rlimit most;
  OK(getrlimit(RLIMIT_NOFILE, &most));
  most.rlim_cur = most.rlim_max < 8192 ? most.rlim_max : 8192;
  OK(setrlimit(RLIMIT_NOFILE, &most));
  unsigned long read[8192 / (8 * sizeof(unsigned long))] = {0};
  int at = OK(fcntl(a, F_DUPFD, most.rlim_cur / 2)), pipes[2];
  OK(pipe(pipes));
  int other = OK(fcntl(pipes[0], F_DUPFD, most.rlim_cur / 2 + 64));
#define WORD(fd) read[(fd) / (8 * sizeof *read)]
#define BIT(fd) (1UL << (fd) % (8 * sizeof *read))
  for (int turn = 0; turn < 2; turn++) {
    struct timeval limit = {1, 0};
    WORD(at) |= BIT(at);
    WORD(other) |= BIT(other);
    if (turn)
      sends(b, "abc");
    else
      OK(write(pipes[1], "abc", 3));
    there(turn ? a : pipes[0], 3);
    SHOW("select", select(other + 1, (fd_set *)read, NULL, NULL, &limit));
    say("%d %d", (WORD(at) & BIT(at)) != 0, (WORD(other) & BIT(other)) != 0);
  }
}

/* As programs do that have not counted: as many as there may be, with a set that has fewer. */
static void selects_all(void) {
  pid_t child = OK(fork());
  if (child == 0) {
    struct rlimit most;
    int ends[2], pipes[2], others = 0;
    OK(getrlimit(RLIMIT_NOFILE, &most));
    most.rlim_cur = most.rlim_max < 65536 ? most.rlim_max : 65536;
    OK(setrlimit(RLIMIT_NOFILE, &most));
    pairs(ends);
    OK(pipe(pipes));
    OK(write(pipes[1], "abc", 3));
    unsigned char *behind = malloc(sizeof(fd_set) + 8192);
    memset(behind, 0xaa, sizeof(fd_set) + 8192);
    fd_set *set = (fd_set *)behind;
    struct timeval limit = {1, 0};
    FD_ZERO(set);
    FD_SET(pipes[0], set);
    shows("select", select(getdtablesize(), set, NULL, NULL, &limit), errno);
    for (int at = 0; at < 8192; at++)
      others += behind[sizeof(fd_set) + at] != 0xaa;
    say("%d bytes behind the set were written", others);
    _exit(0);
  }
  say("it ends with %d", child_ends(child));
}

static volatile int handled = -1;

static void handles(int number) {
  int before = errno;
  struct pollfd one = {handled, POLLIN, 0};
  (void)number;
  send(handled, "h", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
  poll(&one, 1, 0);
  errno = before;
}

static void waits_on(void *unused) { pauses(2); }

/* A handler that interrupts the allocator may use a connection for which memory comes then. */
static void handled_as_memory_is_taken(void) {
  struct sigaction how = {.sa_handler = handles, .sa_flags = SA_RESTART};
  struct itimerval often = {{0, 100}, {0, 100}}, never = {{0}};
  struct sockaddr_storage at;
  int listener = listens(8);
  socklen_t len = address(listener, &at);
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, SIGALRM);
  OK(sigprocmask(SIG_BLOCK, &one, NULL));
  OK(sigaction(SIGALRM, &how, NULL));
  OK(setitimer(ITIMER_REAL, &often, NULL));
  for (int turn = 0; turn < 250; turn++) {
    struct later other;
    int ends[2] = {client()};
    OK(connect(ends[0], (struct sockaddr *)&at, len));
    ends[1] = OK(accept(listener, NULL, NULL));
    handled = ends[0];
    /* The allocator has a lock only where there are threads. */
    later(&other, 0, waits_on, NULL);
    OK(sigprocmask(SIG_UNBLOCK, &one, NULL));
    for (int number = 0; number < 20000; number++)
      free(malloc(1 + number * 7919 % 3000));
    OK(sigprocmask(SIG_BLOCK, &one, NULL));
    joins(&other);
    close(ends[0]);
    close(ends[1]);
  }
  OK(setitimer(ITIMER_REAL, &never, NULL));
  say("it has come to its end");
}

const struct scenario OF_RACES[] = {
    {"number-is-taken-again", number_is_taken_again},
    {"exits-as-others-write", exits_as_others_write},
    {"forks-as-it-exits", forks_as_it_exits},
    {"writes-to-one-that-died", writes_to_one_that_died},
    {"selects-high", selects_high},
    {"selects-all", selects_all},
    {"handled-as-memory-is-taken", handled_as_memory_is_taken},
    {0},
};
