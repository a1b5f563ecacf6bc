// SPDX-License-Identifier: Apache-2.0
/* What a program sees of a connection: a part of statics.c, which includes it once. */

static const char *carrier;

static void result(const char *name, const char *format, ...)
{
	va_list values;

	printf("end %s %s ", name, carrier);
	va_start(values, format);
	vprintf(format, values);
	va_end(values);
	printf("\n");
	fflush(stdout);
}

static const char *error_or(ssize_t n, char *room)
{
	if (n >= 0)
		sprintf(room, "%zd", n);
	else
		strcpy(room, strerrorname_np(errno));
	return room;
}

/* Both ends. */
static void pair(int ends[2])
{
	uint16_t port;
	int at = listening(&port);

	ends[0] = connected(port);
	ends[1] = accept(at, NULL, NULL);
	limit_reads(ends[0]);
	limit_reads(ends[1]);
	close(at);
}

static unsigned char byte_at(size_t n)
{
	return (n * 2654435761u) >> 13;
}

struct sending {
	int fd;
	size_t whole;
};

static void *sends_pattern(void *arg)
{
	struct sending *of = arg;
	static unsigned char bytes[40000];
	size_t sent = 0, step = 1;

	while (sent < of->whole) {
		size_t n = step < of->whole - sent ? step : of->whole - sent;

		for (size_t i = 0; i < n; i++)
			bytes[i] = byte_at(sent + i);
		write_all(of->fd, bytes, n);
		sent += n;
		step = step * 7 % 39989 + 1;
	}
	shutdown(of->fd, SHUT_WR);
	return NULL;
}

static const char *reads_pattern(int fd, size_t whole)
{
	static unsigned char bytes[30011];
	static char said[80];
	size_t got = 0;

	for (;;) {
		ssize_t n = read(fd, bytes, sizeof bytes);

		if (n <= 0) {
			sprintf(said, got == whole && n == 0 ? "whole" : "%zu of %zu bytes, then %s", got, whole, n ? strerrorname_np(errno) : "the end");
			return said;
		}
		for (ssize_t i = 0; i < n; i++)
			if (bytes[i] != byte_at(got + i)) {
				sprintf(said, "wrong byte at %zu", got + i);
				return said;
			}
		got += n;
	}
}

static void bytes_whole(const char *name)
{
	struct sending of = { .whole = 8 << 20 };
	pthread_t thread;
	int ends[2];

	pair(ends);
	of.fd = ends[0];
	pthread_create(&thread, NULL, sends_pattern, &of);
	result(name, "%s", reads_pattern(ends[1], of.whole));
}

static void slow_reader(const char *name)
{
	struct sending of = { .whole = 48 << 20 };
	pthread_t thread;
	int ends[2];

	pair(ends);
	of.fd = ends[0];
	pthread_create(&thread, NULL, sends_pattern, &of);
	pause_ms(300);
	result(name, "%s", reads_pattern(ends[1], of.whole));
}

static void end_after_data(const char *name)
{
	static char bytes[100000], more[200000];
	char room[32];
	int ends[2];
	size_t got;

	pair(ends);
	write_all(ends[0], bytes, sizeof bytes);
	close(ends[0]);
	pause_ms(30);
	got = read_all(ends[1], more, sizeof more);
	result(name, "%zu bytes, then %s", got, error_or(read(ends[1], more, 1), room));
}

static void half_close(const char *name)
{
	char bytes[16], room[32], second[32];
	int ends[2];
	ssize_t n, end;

	pair(ends);
	write_all(ends[0], "there", 5);
	shutdown(ends[0], SHUT_WR);
	n = read_all(ends[1], bytes, 5);
	end = read(ends[1], bytes, 1);
	error_or(end, room);
	write_all(ends[1], "andback", 7);
	close(ends[1]);
	result(name, "%zd, %s, %s", n, room, error_or(read_all(ends[0], bytes, 16), second));
}

static void *writes_later(void *arg)
{
	pause_ms(100);
	write_all(*(int *)arg, "abcd", 4);
	return NULL;
}

static void *ends_later(void *arg)
{
	pause_ms(100);
	close(*(int *)arg);
	return NULL;
}

/* A read that blocks, without a limit, until the other end closes. */
static void waits_for_end(const char *name)
{
	struct timeval none = { 0 };
	char byte, room[32];
	pthread_t thread;
	int ends[2];

	pair(ends);
	setsockopt(ends[1], SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none);
	pthread_create(&thread, NULL, ends_later, &ends[0]);
	result(name, "%s", error_or(read(ends[1], &byte, 1), room));
}

static void poll_wakes(const char *name)
{
	char bytes[16];
	pthread_t thread;
	int ends[2], before, woken, after;

	pair(ends);
	struct pollfd of = { ends[1], POLLIN, 0 };
	before = poll(&of, 1, 0);
	pthread_create(&thread, NULL, writes_later, &ends[0]);
	woken = poll(&of, 1, 5000);
	read(ends[1], bytes, 16);
	after = poll(&of, 1, 0);
	pthread_create(&thread, NULL, ends_later, &ends[0]);
	result(name, "%d %d %d %d", before, woken, after, poll(&of, 1, 5000));
}

static void epoll_edges(const char *name)
{
	char bytes[4];
	struct epoll_event event = { EPOLLIN | EPOLLET, { 0 } };
	int ends[2], set_of = epoll_create1(0), first, second, none;

	pair(ends);
	epoll_ctl(set_of, EPOLL_CTL_ADD, ends[1], &event);
	write_all(ends[0], "abcd", 4);
	first = epoll_wait(set_of, &event, 1, 1000);
	none = epoll_wait(set_of, &event, 1, 50);
	read(ends[1], bytes, 2);
	write_all(ends[0], "abcd", 4);
	second = epoll_wait(set_of, &event, 1, 1000);
	result(name, "%d %d %d", first, none, second);
}

static void peek(const char *name)
{
	char bytes[17] = "", room[32];
	int ends[2];
	ssize_t n;

	pair(ends);
	write_all(ends[0], "abcd", 4);
	write_all(ends[0], "efgh", 4);
	pause_ms(30);
	n = recv(ends[1], bytes, 16, MSG_PEEK);
	error_or(n, room);
	memset(bytes, 0, sizeof bytes);
	read(ends[1], bytes, 16);
	result(name, "%s %s", room, bytes);
}

static void wait_all(const char *name)
{
	char bytes[16], room[32];
	pthread_t thread;
	int ends[2];

	pair(ends);
	write_all(ends[0], "abcd", 4);
	pthread_create(&thread, NULL, writes_later, &ends[0]);
	result(name, "%s", error_or(recv(ends[1], bytes, 8, MSG_WAITALL), room));
}

static void low_water(const char *name)
{
	char bytes[16], room[32];
	int ends[2], ready;

	pair(ends);
	set(ends[1], SOL_SOCKET, SO_RCVLOWAT, 8);
	struct pollfd of = { ends[1], POLLIN, 0 };
	write_all(ends[0], "abcd", 4);
	ready = poll(&of, 1, 50);
	pthread_t thread;
	pthread_create(&thread, NULL, writes_later, &ends[0]);
	result(name, "%s, read %s", ready ? "ready" : "not ready", error_or(read(ends[1], bytes, 16), room));
}

static void unread_count(const char *name)
{
	int ends[2], count = -1;

	pair(ends);
	write_all(ends[0], "abcde", 5);
	pause_ms(30);
	ioctl(ends[1], FIONREAD, &count);
	result(name, "%d", count);
}

static void splices(const char *name)
{
	char room[32];
	int ends[2], through[2];

	pair(ends);
	pipe(through);
	write_all(ends[0], "abcde", 5);
	pause_ms(30);
	result(name, "%s", error_or(splice(ends[1], NULL, through[1], NULL, 5, SPLICE_F_NONBLOCK), room));
}

static void sends_file(const char *name)
{
	static unsigned char bytes[64 << 10];
	int ends[2], file = memfd_create("bytes", MFD_CLOEXEC);
	off_t at = 0;

	for (size_t n = 0; n < sizeof bytes; n++)
		bytes[n] = byte_at(n);
	write_all(file, bytes, sizeof bytes);
	pair(ends);
	while (at < (off_t)sizeof bytes && sendfile(ends[0], file, &at, sizeof bytes - at) > 0)
		;
	shutdown(ends[0], SHUT_WR);
	result(name, "%s", reads_pattern(ends[1], sizeof bytes));
}

/* The server's end begins with the first bytes, which TCP carries, and the next find it in the hash. */
static void deferred_accept(const char *name)
{
	char bytes[5] = "";
	uint16_t port;
	int at = listening(&port), ends[2];

	set(at, IPPROTO_TCP, TCP_DEFER_ACCEPT, 5);
	ends[0] = connected(port);
	write_all(ends[0], "ab", 2);
	pause_ms(50);
	write_all(ends[0], "cd", 2);
	pause_ms(50);
	ends[1] = accept(at, NULL, NULL);
	limit_reads(ends[1]);
	read_all(ends[1], bytes, 4);
	result(name, "%s", bytes);
}

static void no_reader(const char *name)
{
	static char bytes[64 << 10];
	char room[32] = "no bound";
	int ends[2];
	long written = 0;

	pair(ends);
	fcntl(ends[0], F_SETFL, O_NONBLOCK);
	while (written < UNREAD_LIMIT) {
		ssize_t n = write(ends[0], bytes, sizeof bytes);

		if (n < 0) {
			struct pollfd of = { ends[0], POLLOUT, 0 };

			error_or(n, room);
			/* As a program that waits until it may write. */
			if (errno == EAGAIN && poll(&of, 1, 300) == 1)
				continue;
			break;
		}
		written += n;
	}
	result(name, "%ld MiB, then %s", written >> 20, written < UNREAD_LIMIT ? room : "no bound");
}

static void killed_writer(const char *name)
{
	static char bytes[2000];
	char room[32];
	uint16_t port;
	int at = listening(&port), fd;
	pid_t child = fork();
	size_t got;

	if (!child) {
		close(at);
		fd = connected(port);
		write_all(fd, bytes, 1000);
		kill(getpid(), SIGKILL);
	}
	fd = accept(at, NULL, NULL);
	limit_reads(fd);
	waitpid(child, NULL, 0);
	pause_ms(30);
	got = read_all(fd, bytes, sizeof bytes);
	result(name, "%zu, then %s", got, error_or(read(fd, bytes, 1), room));
}

static void closed_unread(const char *name)
{
	char bytes[4], first[32], second[32];
	int ends[2];

	pair(ends);
	write_all(ends[0], "abcd", 4);
	pause_ms(30);
	close(ends[1]);
	pause_ms(30);
	error_or(read(ends[0], bytes, 4), first);
	error_or(send(ends[0], "x", 1, MSG_NOSIGNAL), second);
	result(name, "read %s, write %s", first, second);
}

static void urgent(const char *name)
{
	char bytes[9] = "", out[2] = "", room[32];
	int ends[2];

	pair(ends);
	write_all(ends[0], "ab", 2);
	send(ends[0], "!", 1, MSG_OOB);
	pause_ms(30);
	error_or(recv(ends[1], out, 1, MSG_OOB), room);
	read(ends[1], bytes, 8);
	result(name, "%s, %s", room, bytes);
}

#define CONNECTIONS 1500

static void *connects_and_writes(void *arg)
{
	for (int n = 0; n < CONNECTIONS; n++) {
		int fd = connected(*(uint16_t *)arg);

		for (char byte = 'a'; byte < 'i'; byte++)
			write_all(fd, &byte, 1);
		close(fd);
	}
	return NULL;
}

static void first_bytes(const char *name)
{
	uint16_t port;
	int at = listening(&port), wrong = 0;
	char last[9] = "";
	pthread_t thread;

	pthread_create(&thread, NULL, connects_and_writes, &port);
	for (int n = 0; n < CONNECTIONS; n++) {
		char bytes[9] = "";
		int fd = accept(at, NULL, NULL);

		limit_reads(fd);
		read_all(fd, bytes, 8);
		if (strcmp(bytes, "abcdefgh")) {
			wrong++;
			strcpy(last, bytes);
		}
		close(fd);
	}
	result(name, wrong ? "%d of %d wrong, such as '%s'" : "%d of %d wrong", wrong, CONNECTIONS, last);
}

static const struct {
	const char *name;
	void (*run)(const char *);
} tests[] = {
	{ "bytes_in_order", bytes_whole },
	{ "bytes_to_slow_reader", slow_reader },
	{ "first_bytes_of_connections", first_bytes },
	{ "bytes_with_TCP_DEFER_ACCEPT", deferred_accept },
	{ "bytes_by_sendfile", sends_file },
	{ "end_behind_bytes", end_after_data },
	{ "end_of_killed_writer", killed_writer },
	{ "end_while_read_waits", waits_for_end },
	{ "half_close", half_close },
	{ "close_with_unread_bytes", closed_unread },
	{ "written_without_reader", no_reader },
	{ "poll", poll_wakes },
	{ "epoll_edge", epoll_edges },
	{ "MSG_PEEK", peek },
	{ "MSG_WAITALL", wait_all },
	{ "MSG_OOB", urgent },
	{ "SO_RCVLOWAT", low_water },
	{ "FIONREAD", unread_count },
	{ "splice", splices },
};

static void ends_of(const char *by)
{
	carrier = by;
	signal(SIGPIPE, SIG_IGN);
	for (size_t n = 0; n < sizeof tests / sizeof *tests; n++) {
		int status;
		pid_t pid;

		fflush(stdout);
		pid = fork();
		if (!pid) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			alarm(TEST_LIMIT_S);
			tests[n].run(tests[n].name);
			_exit(0);
		}
		waitpid(pid, &status, 0);
		if (WIFSIGNALED(status))
			result(tests[n].name, "%s", WTERMSIG(status) == SIGALRM ? "hangs" : strsignal(WTERMSIG(status)));
	}
	exit(0);
}
