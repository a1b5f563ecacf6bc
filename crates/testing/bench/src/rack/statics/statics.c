// SPDX-License-Identifier: Apache-2.0
/*
 * A static program that talks over kernel TCP, and what could serve it without its help: seccomp's user notification,
 * and redirection from socket to socket by BPF (sock_ops, a hash of sockets, sk_msg). `bench-rack static` compiles it
 * (`cc -O2 -static -pthread`) and runs it as root; it prints one line for each value:
 *
 *   time NAME P50_NS P99_NS     one round's
 *   rate NAME GBIT_PER_S        one round's; with cpu_ before the name, for each second of CPU time of both ends
 *   end NAME CARRIER RESULT     what a program sees of a connection; CARRIER is tcp or redirected
 *   unmeasured NAME WHY
 *
 * All sockets are in a network namespace of the run's own; redirection is attached to a control group of its own. The
 * kernel takes the namespace and the program away with the last process; a guard that no signal of the terminal ends
 * removes the control group, also after SIGKILL of all others.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <netinet/in.h>
#include <linux/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_TRIPS 20000
#define WARM 300
/* What a writer may write that nobody reads, before it counts as without a bound. */
#define UNREAD_LIMIT (128L << 20)
/* The hash of sockets. */
#define SOCKETS 16384
/* Of a read that waits for nothing, and of a test as a whole. */
#define WAIT_MS 500
#define TEST_LIMIT_S 20
/* Of the whole run: about half a minute on an idle machine. */
#define RUN_LIMIT_S 240

#ifndef SECCOMP_IOCTL_NOTIF_SET_FLAGS
#define SECCOMP_IOCTL_NOTIF_SET_FLAGS SECCOMP_IOW(4, __u64)
#define SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP (1UL << 0)
#endif

static char group[256];

static void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static uint64_t now_ns(void)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	return at.tv_sec * 1000000000ULL + at.tv_nsec;
}

static void pause_ms(long ms)
{
	struct timespec whole = { ms / 1000, ms % 1000 * 1000000 };

	nanosleep(&whole, NULL);
}

static void pin(int core)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(core, &set);
	sched_setaffinity(0, sizeof set, &set);
}

/* ---- times ---- */

static uint32_t *trips;

static int by_value(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

static void print_times(const char *name, int count)
{
	qsort(trips, count, sizeof *trips, by_value);
	printf("time %s %u %u\n", name, trips[count / 2], trips[(int)(count * 0.99)]);
	fflush(stdout);
}

/* ---- TCP ---- */

static int listening(uint16_t *port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof at;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || bind(fd, (void *)&at, len) || listen(fd, 64) || getsockname(fd, (void *)&at, &len))
		fail("listening");
	*port = ntohs(at.sin_port);
	return fd;
}

static int set(int fd, int level, int option, int value)
{
	return setsockopt(fd, level, option, &value, sizeof value);
}

static void limit_reads(int fd)
{
	struct timeval limit = { 0, WAIT_MS * 1000 };

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
}

static int connected(uint16_t port)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || connect(fd, (void *)&to, sizeof to))
		fail("connecting");
	set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
	return fd;
}

static void write_all(int fd, const void *bytes, size_t len)
{
	while (len) {
		ssize_t n = write(fd, bytes, len);

		if (n < 0)
			fail("writing");
		bytes = (const char *)bytes + n;
		len -= n;
	}
}

/* Reads len bytes, or fewer before the end or an error. */
static size_t read_all(int fd, void *bytes, size_t len)
{
	size_t got = 0;

	while (got < len) {
		ssize_t n = read(fd, (char *)bytes + got, len - got);

		if (n <= 0)
			break;
		got += n;
	}
	return got;
}

/* One end, as a program of its own: what it does, on which core, the other end's port or `@` and a descriptor, bytes of a read. */
static void one_end(char **args)
{
	static char bytes[64 << 10];
	const char *role = args[0];
	long size = atol(args[3]);
	int fd;

	pin(atoi(args[1]));
	fd = args[2][0] == '@' ? atoi(args[2] + 1) : connected(atoi(args[2]));
	if (!strcmp(role, "echo")) {
		while (read_all(fd, bytes, 8) == 8)
			write_all(fd, bytes, 8);
	} else if (!strcmp(role, "sink")) {
		while (read(fd, bytes, size) > 0)
			;
	} else {
		fprintf(stderr, "no such role: %s\n", role);
		exit(1);
	}
	exit(0);
}

static double cpu_ns(int who)
{
	struct rusage of;

	getrusage(who, &of);
	return (of.ru_utime.tv_sec + of.ru_stime.tv_sec) * 1e9 + (of.ru_utime.tv_usec + of.ru_stime.tv_usec) * 1e3;
}

static void enter_group(void)
{
	char path[300];
	int fd;

	snprintf(path, sizeof path, "%s/cgroup.procs", group);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, "0", 1) != 1)
		fail("entering the control group");
	close(fd);
}

static pid_t spawn(int is_redirected, char *const args[])
{
	pid_t pid = fork();

	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (is_redirected)
		enter_group();
	execv("/proc/self/exe", args);
	fail("exec");
	return 0;
}

/* What carries the bytes. */
enum carrier { TCP, REDIRECTED, UNIX, CARRIERS };

static const char *const carriers[] = { "tcp", "redirected", "unix" };

/* The measuring end, a program of its own, too: role, carrier, name, count or milliseconds, bytes of a write, both cores. */
static void measuring_end(char **args)
{
	static char bytes[64 << 10];
	const char *role = args[0], *name = args[2], *its_role = strcmp(role, "trips") ? "sink" : "echo";
	long much = atol(args[3]), size = atol(args[4]);
	enum carrier by = atoi(args[1]);
	struct tcp_info info = { 0 };
	socklen_t len = sizeof info;
	char to[16];
	uint16_t port;
	int fd, ends[2], status;
	uint64_t written = 0;
	pid_t other;

	if (by == UNIX) {
		if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends))
			fail("socketpair");
		snprintf(to, sizeof to, "@%d", ends[1]);
		fcntl(ends[1], F_SETFD, 0);
		other = spawn(0, (char *[]){ "statics", "end", (char *)its_role, args[6], to, args[4], NULL });
		close(ends[1]);
		fd = ends[0];
	} else {
		int at = listening(&port);

		snprintf(to, sizeof to, "%u", port);
		/* It is in the control group that this one is in. */
		other = spawn(0, (char *[]){ "statics", "end", (char *)its_role, args[6], to, args[4], NULL });
		fd = accept(at, NULL, NULL);
		if (fd < 0)
			fail("accept");
		set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
	}
	pin(atoi(args[5]));
	if (!strcmp(role, "trips")) {
		for (long n = -WARM; n < much; n++) {
			uint64_t begun = now_ns();

			write_all(fd, bytes, 8);
			if (read_all(fd, bytes, 8) != 8)
				fail("an answer");
			if (n >= 0)
				trips[n] = now_ns() - begun;
		}
		print_times(name, much);
	} else {
		uint64_t begun = now_ns(), ended;

		do {
			write_all(fd, bytes, size);
			written += size;
			ended = now_ns();
		} while (ended - begun < much * 1000000ULL);
		/* Until all is read: redirection lets a writer run ahead as far as it likes. */
		shutdown(fd, SHUT_WR);
		while ((status = read(fd, bytes, 1)) < 0 && errno == EAGAIN)
			/* Redirected, a read that blocks was seen to fail so. */;
		if (status)
			fail("the reader's end");
		ended = now_ns();
		printf("rate %s %.3f\n", name, written * 8.0 / (ended - begun));
	}
	/* The kernel's TCP says whether it was TCP that carried them. */
	if (by != UNIX) {
		getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len);
		if ((by == REDIRECTED) != (info.tcpi_bytes_sent < 64)) {
			fprintf(stderr, "%s: TCP sent %llu bytes\n", name, (unsigned long long)info.tcpi_bytes_sent);
			exit(1);
		}
	}
	close(fd);
	waitpid(other, &status, 0);
	/* Of both ends. */
	if (written)
		printf("rate cpu_%s %.3f\n", name, written * 8.0 / (cpu_ns(RUSAGE_SELF) + cpu_ns(RUSAGE_CHILDREN)));
	exit(0);
}

static char *own_core, *other_core;

static void measured(enum carrier by, const char *role, const char *what, long much, long size, char *core)
{
	char name[48], by_text[4], much_text[24], size_text[24];
	int status;

	snprintf(name, sizeof name, "%s_%s", what, carriers[by]);
	snprintf(by_text, sizeof by_text, "%d", by);
	snprintf(much_text, sizeof much_text, "%ld", much);
	snprintf(size_text, sizeof size_text, "%ld", size);
	fflush(stdout);
	waitpid(spawn(by == REDIRECTED, (char *[]){ "statics", "measure", (char *)role, by_text, name, much_text, size_text,
						    own_core, core, NULL }), &status, 0);
	if (status)
		exit(1);
}

/* ---- seccomp ---- */

/* A read of this descriptor is notified, and all else is the kernel's. */
#define NOTIFIED_FD 0x7ff0

struct shared {
	volatile int listener, is_done;
};

static int filter(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_read, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, NOTIFIED_FD, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof code / sizeof *code, code };

	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
}

static void supervise(struct shared *shared, int core, int is_sync)
{
	struct seccomp_notif asked;
	struct seccomp_notif_resp answer;

	pin(core);
	while (!shared->listener)
		pause_ms(1);
	if (is_sync && ioctl(shared->listener, SECCOMP_IOCTL_NOTIF_SET_FLAGS, SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP))
		fail("SECCOMP_IOCTL_NOTIF_SET_FLAGS");
	shared->is_done = -1;
	for (;;) {
		memset(&asked, 0, sizeof asked);
		if (ioctl(shared->listener, SECCOMP_IOCTL_NOTIF_RECV, &asked)) {
			if (errno == EINTR)
				continue;
			exit(0);
		}
		memset(&answer, 0, sizeof answer);
		answer.id = asked.id;
		answer.val = 8;
		ioctl(shared->listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
	}
}

/* A process whose reads are notified to another one, which does nothing but answer: less than any use needs. */
static void notified(const char *name, int count, char *core, int is_sync)
{
	struct shared *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t asks, answers;
	int status;
	char word[8];

	fflush(stdout);
	asks = fork();
	if (!asks) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		/* Its descriptors are the other's, its memory is not. */
		answers = syscall(SYS_clone, CLONE_FILES | SIGCHLD, NULL, NULL, NULL, NULL);
		if (!answers) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			supervise(shared, atoi(core), is_sync);
		}
		pin(atoi(own_core));
		shared->listener = filter();
		if (shared->listener < 0) {
			printf("unmeasured %s seccomp: %s\n", name, strerror(errno));
			fflush(stdout);
			kill(answers, SIGKILL);
			_exit(1);
		}
		while (shared->is_done != -1)
			pause_ms(1);
		for (int n = -WARM; n < count; n++) {
			uint64_t begun = now_ns();

			if (read(NOTIFIED_FD, word, 8) != 8)
				fail("a notified call");
			if (n >= 0)
				trips[n] = now_ns() - begun;
		}
		print_times(name, count);
		kill(answers, SIGKILL);
		_exit(0);
	}
	waitpid(asks, &status, 0);
	munmap(shared, 4096);
}

static void bare(const char *name, int count)
{
	int fd = open("/dev/zero", O_RDONLY | O_CLOEXEC);
	char word[8];

	pin(atoi(own_core));
	for (int n = -WARM; n < count; n++) {
		uint64_t begun = now_ns();

		if (read(fd, word, 8) != 8)
			fail("/dev/zero");
		if (n >= 0)
			trips[n] = now_ns() - begun;
	}
	close(fd);
	print_times(name, count);
}

/* ---- redirection ---- */

static long bpf(int command, union bpf_attr *attr)
{
	return syscall(SYS_bpf, command, attr, sizeof *attr);
}

#define I(CODE, DST, SRC, OFF, IMM) ((struct bpf_insn){ .code = CODE, .dst_reg = DST, .src_reg = SRC, .off = OFF, .imm = IMM })
#define LOAD(DST, SRC, OFF) I(BPF_LDX | BPF_W | BPF_MEM, DST, SRC, OFF, 0)
#define STORE(OFF, SRC) I(BPF_STX | BPF_W | BPF_MEM, 10, SRC, OFF, 0)
#define MOVE(DST, SRC) I(BPF_ALU64 | BPF_MOV | BPF_X, DST, SRC, 0, 0)
#define PUT(DST, IMM) I(BPF_ALU64 | BPF_MOV | BPF_K, DST, 0, 0, IMM)
#define ADD(DST, IMM) I(BPF_ALU64 | BPF_ADD | BPF_K, DST, 0, 0, IMM)
#define SWAP32(DST) I(BPF_ALU | BPF_END | BPF_TO_BE, DST, 0, 0, 32)
#define MAP(DST, FD) I(BPF_LD | BPF_DW | BPF_IMM, DST, BPF_PSEUDO_MAP_FD, 0, FD), I(0, 0, 0, 0, 0)
#define CALL(WHICH) I(BPF_JMP | BPF_CALL, 0, 0, 0, WHICH)
#define END I(BPF_JMP | BPF_EXIT, 0, 0, 0, 0)

static int load(int type, int expected, const struct bpf_insn *code, int count)
{
	static char log[16384];
	union bpf_attr attr = { .prog_type = type, .insn_cnt = count, .insns = (uintptr_t)code,
				.license = (uintptr_t) "Apache-2.0", .expected_attach_type = expected,
				.log_buf = (uintptr_t)log, .log_size = sizeof log, .log_level = 1 };
	int fd = bpf(BPF_PROG_LOAD, &attr);

	if (fd < 0)
		fprintf(stderr, "%s\n", log);
	return fd;
}

/* Each connection of the group goes into a hash as it stands; each write looks there for its other end. NULL, or why not. */
static const char *redirect(int group_fd)
{
	union bpf_attr attr = { .map_type = BPF_MAP_TYPE_SOCKHASH, .key_size = 16, .value_size = 4, .max_entries = SOCKETS };
	int map = bpf(BPF_MAP_CREATE, &attr), joins, sends;

	if (map < 0)
		return "a hash of sockets";
	struct bpf_insn join[] = {
		MOVE(6, 1),
		LOAD(2, 6, offsetof(struct bpf_sock_ops, op)),
		I(BPF_JMP | BPF_JEQ | BPF_K, 2, 0, 1, BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB),
		I(BPF_JMP | BPF_JNE | BPF_K, 2, 0, 16, BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB),
		LOAD(2, 6, offsetof(struct bpf_sock_ops, remote_ip4)), STORE(-16, 2),
		LOAD(2, 6, offsetof(struct bpf_sock_ops, local_ip4)), STORE(-12, 2),
		LOAD(2, 6, offsetof(struct bpf_sock_ops, remote_port)), STORE(-8, 2),
		LOAD(2, 6, offsetof(struct bpf_sock_ops, local_port)), SWAP32(2), STORE(-4, 2),
		MOVE(1, 6), MAP(2, map), MOVE(3, 10), ADD(3, -16), PUT(4, BPF_ANY), CALL(BPF_FUNC_sock_hash_update),
		PUT(0, 1), END,
	};
	struct bpf_insn send[] = {
		MOVE(6, 1),
		LOAD(2, 6, offsetof(struct sk_msg_md, local_ip4)), STORE(-16, 2),
		LOAD(2, 6, offsetof(struct sk_msg_md, remote_ip4)), STORE(-12, 2),
		LOAD(2, 6, offsetof(struct sk_msg_md, local_port)), SWAP32(2), STORE(-8, 2),
		LOAD(2, 6, offsetof(struct sk_msg_md, remote_port)), STORE(-4, 2),
		MOVE(1, 6), MAP(2, map), MOVE(3, 10), ADD(3, -16), PUT(4, BPF_F_INGRESS), CALL(BPF_FUNC_msg_redirect_hash),
		/* Where there is no other end in the hash, TCP carries it. */
		PUT(0, SK_PASS), END,
	};
	sends = load(BPF_PROG_TYPE_SK_MSG, BPF_SK_MSG_VERDICT, send, sizeof send / sizeof *send);
	if (sends < 0)
		return "the program of writes";
	joins = load(BPF_PROG_TYPE_SOCK_OPS, BPF_CGROUP_SOCK_OPS, join, sizeof join / sizeof *join);
	if (joins < 0)
		return "the program of connections";
	attr = (union bpf_attr){ .target_fd = map, .attach_bpf_fd = sends, .attach_type = BPF_SK_MSG_VERDICT };
	if (bpf(BPF_PROG_ATTACH, &attr))
		return "attaching to the hash";
	/* A link, which ends with the last process that has it open. */
	attr = (union bpf_attr){ .link_create = { .prog_fd = joins, .target_fd = group_fd, .attach_type = BPF_CGROUP_SOCK_OPS } };
	int link = bpf(BPF_LINK_CREATE, &attr);
	if (link < 0)
		return "attaching to the control group";
	for (int fd = 0; fd < 3; fd++)
		fcntl((int[]){ map, sends, link }[fd], F_SETFD, FD_CLOEXEC);
	return NULL;
}

#include "ends.h"

/* ---- the run ---- */

static int make_group(void)
{
	char line[1024], at[200], type[64];
	FILE *mounts = fopen("/proc/self/mounts", "re");

	while (mounts && fgets(line, sizeof line, mounts))
		if (sscanf(line, "%*s %199s %63s", at, type) == 2 && !strcmp(type, "cgroup2")) {
			snprintf(group, sizeof group, "%s/fide-bench-static-%d", at, getpid());
			fclose(mounts);
			if (mkdir(group, 0755))
				return -1;
			return open(group, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		}
	errno = ENOENT;
	return -1;
}

/* Removes the control group after the last process of the run. */
static void guard(void)
{
	int ends[2];
	char byte;

	if (pipe(ends))
		fail("pipe");
	if (fork()) {
		close(ends[0]);
		/* Kept open by this process alone: the others die with it. */
		fcntl(ends[1], F_SETFD, FD_CLOEXEC);
		return;
	}
	setsid();
	for (int signal_ = 1; signal_ < 32; signal_++)
		signal(signal_, SIG_IGN);
	close(ends[1]);
	close(1);
	while (read(ends[0], &byte, 1) < 0 && errno == EINTR)
		;
	for (int tries = 0; tries < 200 && rmdir(group) && errno == EBUSY; tries++)
		pause_ms(50);
	_exit(0);
}

static void own_network(void)
{
	struct ifreq lo = { .ifr_name = "lo", .ifr_flags = IFF_UP };
	int fd;

	if (unshare(CLONE_NEWNET))
		fail("a network namespace (it takes root)");
	fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (ioctl(fd, SIOCSIFFLAGS, &lo))
		fail("lo");
	close(fd);
}

static void all_ends(enum carrier by)
{
	int status;

	fflush(stdout);
	waitpid(spawn(by == REDIRECTED, (char *[]){ "statics", "ends", (char *)carriers[by], NULL }), &status, 0);
}

int main(int count_of_args, char **args)
{
	int rounds, count, ms, group_fd;
	const char *why = NULL;

	trips = malloc(MAX_TRIPS * sizeof *trips);
	if (count_of_args == 6 && !strcmp(args[1], "end"))
		one_end(args + 2);
	if (count_of_args == 9 && !strcmp(args[1], "measure"))
		measuring_end(args + 2);
	if (count_of_args == 3 && !strcmp(args[1], "ends"))
		ends_of(args[2]);
	if (count_of_args != 6) {
		fprintf(stderr, "usage: statics ROUNDS TRIPS MILLISECONDS CORE OTHER_CORE\n");
		return 2;
	}
	/* With the bench that began it, or at last by itself; its processes end with it. */
	alarm(RUN_LIMIT_S);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	rounds = atoi(args[1]);
	count = atoi(args[2]) < MAX_TRIPS ? atoi(args[2]) : MAX_TRIPS;
	ms = atoi(args[3]);
	own_core = args[4];
	other_core = args[5];
	own_network();
	group_fd = make_group();
	if (group_fd < 0) {
		why = "a control group of cgroup2";
	} else {
		guard();
		why = redirect(group_fd);
	}
	if (why)
		printf("unmeasured redirected %s: %s\n", why, strerror(errno));
	for (int round = 0; round < rounds; round++) {
		bare("bare_call", count);
		notified("notified_two_cores", count, other_core, 0);
		notified("notified_two_cores_sync", count, other_core, 1);
		notified("notified_one_core", count, own_core, 0);
		notified("notified_one_core_sync", count, own_core, 1);
		for (int turn = 0; turn < CARRIERS; turn++) {
			enum carrier by = (round + turn) % CARRIERS;

			if (why && by == REDIRECTED)
				continue;
			measured(by, "trips", "rtt8", count, 8, other_core);
			measured(by, "trips", "rtt8_one_core", count, 8, own_core);
			measured(by, "stream", "stream64k", ms, 64 << 10, other_core);
			measured(by, "stream", "messages2k", ms, 2 << 10, other_core);
		}
	}
	all_ends(TCP);
	if (!why)
		all_ends(REDIRECTED);
	return 0;
}
