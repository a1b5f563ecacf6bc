# SPDX-License-Identifier: Apache-2.0
"""One end of a connection: `pair.py SCENARIO server`, or `pair.py SCENARIO client PORT`. Prints what it sees."""

import errno
import hashlib
import os
import select
import selectors
import signal
import socket
import struct
import sys
import tempfile
import threading
import time

import more

WARM = int(os.environ.get("WARM", 30))
# Addresses of both ends.
SERVER = os.environ.get("SERVER", "127.0.0.1")
CLIENT = (os.environ["CLIENT"], 0) if "CLIENT" in os.environ else None


def exact(s, count):
    got = b""
    while len(got) < count:
        more = s.recv(count - len(got))
        if not more:
            break
        got += more
    return got


def warm(s, is_server):
    """Until both ends have had the time to get their memory."""
    for turn in range(WARM):
        if is_server:
            s.sendall(exact(s, 4))
        else:
            s.sendall(struct.pack("!I", turn))
            assert exact(s, 4) == struct.pack("!I", turn)
            time.sleep(0.001)


def data(seed, count):
    block = hashlib.sha256(seed).digest() * 1024
    return (block * (count // len(block) + 1))[:count]


def echo(s, is_server):
    if is_server:
        while more := s.recv(1000):
            s.sendall(more)
        print("end")
        return
    for size in (1, 7, 100, 4096, 70000, 300000):
        sent = data(b"echo", size)
        writer = threading.Thread(target=s.sendall, args=(sent,))
        writer.start()
        assert exact(s, size) == sent, size
        writer.join()
    s.shutdown(socket.SHUT_WR)
    print("end", s.recv(10))


def flags(s, is_server):
    if is_server:
        s.sendall(b"0123456789")
        exact(s, 1)
        s.sendmsg([b"abc", b"", b"def"])
        exact(s, 1)
        s.sendall(b"x" * 50)
        time.sleep(0.05)
        s.sendall(b"y" * 50)
        exact(s, 1)
        s.settimeout(0.05)
        try:
            s.recv(1)
        except TimeoutError:
            print("timeout")
        s.settimeout(None)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 50000))
        try:
            s.recv(1)
        except BlockingIOError:
            print("SO_RCVTIMEO")
        return
    while len(s.recv(20, socket.MSG_PEEK)) < 10:
        pass
    print(s.recv(4, socket.MSG_PEEK), s.recv(4), s.recv(6))
    try:
        s.recv(1, socket.MSG_DONTWAIT)
    except BlockingIOError as why:
        print(why.errno == errno.EAGAIN)
    s.sendall(b"1")
    while len(s.recv(20, socket.MSG_PEEK)) < 6:
        pass
    import array, fcntl, termios
    there = array.array("i", [0])
    fcntl.ioctl(s.fileno(), termios.FIONREAD, there)
    print(there[0])
    pieces = [bytearray(2), bytearray(3), bytearray(9)]
    print(s.recvmsg_into(pieces), pieces)
    s.sendall(b"1")
    print(len(s.recv(100, socket.MSG_WAITALL)))
    print(s.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    print(s.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
    s.sendall(b"1")
    print(s.recv(1))


def both(s, is_server):
    """Large streams both ways at once, by a thread each."""
    mine, theirs = (b"s", b"c") if is_server else (b"c", b"s")
    count = 8 << 20
    writer = threading.Thread(target=lambda: (s.sendall(data(mine, count)), s.shutdown(socket.SHUT_WR)))
    writer.start()
    got = hashlib.sha256()
    size = 0
    while more := s.recv(65536):
        got.update(more)
        size += len(more)
    writer.join()
    print(size, got.hexdigest() == hashlib.sha256(data(theirs, count)).hexdigest())


def nonblocking(s, is_server, wait):
    """Both ways at once in one thread."""
    s.setblocking(False)
    mine, theirs = (b"s", b"c") if is_server else (b"c", b"s")
    count = 4 << 20
    rest = memoryview(data(mine, count))
    got, size, is_over = hashlib.sha256(), 0, False
    while rest or not is_over:
        can_read, can_write = wait(s, not is_over, len(rest) > 0)
        while can_write and rest:
            try:
                rest = rest[s.send(rest[:50000]):]
            except BlockingIOError:
                break
            if not rest:
                s.shutdown(socket.SHUT_WR)
        while can_read and not is_over:
            try:
                more = s.recv(70000)
            except BlockingIOError:
                break
            got.update(more)
            size += len(more)
            is_over = not more
    print(size, got.hexdigest() == hashlib.sha256(data(theirs, count)).hexdigest())


def by_select(s, read, write):
    r, w, _ = select.select([s] if read else [], [s] if write else [], [], 20)
    assert r or w
    return bool(r), bool(w)


def by_poll(s, read, write):
    p = select.poll()
    p.register(s, (select.POLLIN if read else 0) | (select.POLLOUT if write else 0))
    events = p.poll(20000)
    assert events
    bits = events[0][1]
    return bool(bits & ~select.POLLOUT), bool(bits & ~select.POLLIN)


class ByEpoll:
    def __init__(self, edge):
        self.set, self.now, self.edge = select.epoll(), None, edge

    def __call__(self, s, read, write):
        if self.edge:
            wants = select.EPOLLIN | select.EPOLLOUT | select.EPOLLET
        else:
            wants = (select.EPOLLIN if read else 0) | (select.EPOLLOUT if write else 0)
        if self.now is None:
            self.set.register(s, wants)
        elif self.now != wants:
            self.set.modify(s, wants)
        self.now = wants
        events = self.set.poll(20)
        assert events and events[0][0] == s.fileno(), events
        bits = events[0][1]
        return bool(bits & ~select.EPOLLOUT), bool(bits & ~select.EPOLLIN)


def edges(s, is_server):
    """What an edge-triggered and a one-shot set tell, step by step."""
    if is_server:
        for _ in range(3):
            exact(s, 1)
            s.sendall(b"ab")
        exact(s, 1)
        return
    ask = lambda: (s.sendall(b"?"), time.sleep(0.05))
    one = select.epoll()
    one.register(s, select.EPOLLIN | select.EPOLLET)
    print(one.poll(0))
    ask()
    print(one.poll(1) != [], one.poll(0.02))
    ask()
    print(one.poll(1) != [], s.recv(10), one.poll(0.02))
    one.modify(s, select.EPOLLIN | select.EPOLLONESHOT)
    ask()
    print(one.poll(1) != [], one.poll(0.02))
    one.modify(s, select.EPOLLIN | select.EPOLLOUT | select.EPOLLONESHOT)
    print(one.poll(1) == [(s.fileno(), select.EPOLLIN | select.EPOLLOUT)], one.poll(0.02))
    one.unregister(s)
    print(s.recv(10), one.poll(0.02))
    s.sendall(b"!")


def rearms(s, is_server):
    """One thread sleeps for a set that another one changes."""
    if is_server:
        s.sendall(b"ab")
        exact(s, 1)
        return
    one = select.epoll()
    one.register(s, select.EPOLLIN | select.EPOLLONESHOT)
    print(one.poll(5) != [])
    later = threading.Timer(0.05, lambda: one.modify(s, select.EPOLLIN | select.EPOLLONESHOT))
    later.start()
    print(one.poll(5) != [], s.recv(10))
    s.sendall(b"!")


def adds(s, is_server):
    """One thread sleeps for a set that another one adds the connection to. Without a warm-up its memory comes meanwhile."""
    turns = 40
    if is_server:
        for _ in range(turns):
            exact(s, 1)
            time.sleep(0.003)
            s.sendall(b"a")
        return
    one = select.epoll()
    idle = socket.socketpair()
    one.register(idle[0], select.EPOLLIN)
    for turn in range(turns):
        s.sendall(b"?")
        later = threading.Timer(0.002 * (turn % 3), lambda: one.register(s, select.EPOLLIN))
        later.start()
        events = one.poll(5)
        later.join()
        if events != [(s.fileno(), select.EPOLLIN)] or s.recv(10) != b"a":
            print(turn, events)
        one.unregister(s)
    print("added")


def pool(s, is_server, flags):
    """Threads of the server share one set, to which connections are added as they sleep; pipes are in it, too."""
    connections, turns = 6, 120
    if not is_server:
        port = struct.unpack("!H", exact(s, 2))[0]
        wrong = []

        def talks(at):
            c = socket.create_connection(("127.0.0.1", port))
            for turn in range(turns):
                c.sendall(b"%03d%05d" % (at, turn))
                if exact(c, 8) != b"%03d%05d" % (at, turn):
                    wrong.append((at, turn))
                if turn % 16 == at:
                    time.sleep(0.002)
            c.shutdown(socket.SHUT_WR)
            wrong.extend(c.recv(8))

        talkers = [threading.Thread(target=talks, args=(at,)) for at in range(connections)]
        [t.start() for t in talkers]
        [t.join() for t in talkers]
        print(wrong)
        return
    listener = socket.create_server(("127.0.0.1", 0))
    s.sendall(struct.pack("!H", listener.getsockname()[1]))
    one, served, done = select.epoll(), {}, set()
    ends, begins = os.pipe()
    one.register(ends, select.EPOLLIN)

    def serves(fd):
        c, lock = served[fd]
        with lock:
            if fd in done:
                return
            while True:
                try:
                    got = c.recv(8)
                except BlockingIOError:
                    break
                if not got:
                    one.unregister(c)
                    c.shutdown(socket.SHUT_WR)
                    return done.add(fd)
                c.sendall(got)
            if flags & select.EPOLLONESHOT:
                one.modify(c, select.EPOLLIN | flags)

    def waits():
        while True:
            events = one.poll(5)
            if not events:
                print("nothing came")
            for fd, _ in events:
                if fd == ends:
                    return
                serves(fd)

    threads = [threading.Thread(target=waits) for _ in range(3)]
    [t.start() for t in threads]
    for _ in range(connections):
        c, _ = listener.accept()
        c.setblocking(False)
        served[c.fileno()] = (c, threading.Lock())
        one.register(c, select.EPOLLIN | flags)
    while len(done) < connections:
        time.sleep(0.01)
    os.write(begins, b"!")
    [t.join() for t in threads]
    print("served")


def nested(s, is_server):
    """A set that another one waits for, or `poll` and `select`, also as another thread adds to it."""
    turns = 30
    if is_server:
        for turn in range(turns * 5):
            if not exact(s, 1):
                break
            time.sleep(0.002 * (turn % 3))
            s.sendall(b"a")
        return
    inner, middle, outer = select.epoll(), select.epoll(), select.epoll()
    middle.register(inner, select.EPOLLIN)
    outer.register(middle, select.EPOLLIN)
    polled = select.poll()
    polled.register(middle, select.POLLIN)
    waits = {
        "epoll": lambda: outer.poll(5) == [(middle.fileno(), select.EPOLLIN)],
        "poll": lambda: polled.poll(5000) == [(middle.fileno(), select.POLLIN)],
        "select": lambda: select.select([middle], [], [], 5)[0] == [middle],
        "one": lambda: select.select([inner], [], [], 5)[0] == [inner],
    }
    for name, wait in waits.items():
        wrong = 0
        for turn in range(turns):
            if turn % 2:
                inner.register(s, select.EPOLLIN)
                s.sendall(b"?")
            else:
                s.sendall(b"?")
                later = threading.Timer(0.002 * (turn % 4), lambda: inner.register(s, select.EPOLLIN))
                later.start()
            # What wakes may say that there is something where there is nothing any more.
            while True:
                wrong += not wait()
                middle.poll(0)
                if inner.poll(0) == [(s.fileno(), select.EPOLLIN)]:
                    break
            wrong += s.recv(10) != b"a"
            inner.unregister(s)
        print(name, wrong, inner.poll(0), middle.poll(0), outer.poll(0.01))
    outer.modify(middle, select.EPOLLIN | select.EPOLLONESHOT)
    inner.register(s, select.EPOLLIN)
    s.sendall(b"?")
    print(outer.poll(5), outer.poll(0.02))
    print(s.recv(10))
    s.shutdown(socket.SHUT_WR)


def exclusive(s, is_server):
    """Two threads, each with a set of its own, serve one connection."""
    if not is_server:
        for turn in range(300):
            s.sendall(b"%08d" % turn)
            assert exact(s, 8) == b"%08d" % turn
            if turn % 50 == 0:
                time.sleep(0.003)
        s.shutdown(socket.SHUT_WR)
        print(s.recv(8))
        return
    s.setblocking(False)
    lock = threading.Lock()

    def serves():
        one = select.epoll()
        one.register(s, select.EPOLLIN | select.EPOLLEXCLUSIVE)
        while True:
            events = one.poll(5)
            if not events:
                print("nothing came")
            with lock:
                try:
                    while got := s.recv(8):
                        s.sendall(got)
                except BlockingIOError:
                    continue
            return

    threads = [threading.Thread(target=serves) for _ in range(2)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    s.shutdown(socket.SHUT_WR)
    print("served")


def crowd(s, is_server):
    """Many connections in one set, most of which say nothing for long; some are closed, and others come."""
    count, turns, now = 40, 700, 1
    if not is_server:
        port = struct.unpack("!H", exact(s, 2))[0]
        begins = lambda: socket.create_connection(("127.0.0.1", port))
        open_, wrong = [begins() for _ in range(count)], 0
        for turn in range(turns):
            now = (now * 1103515245 + 12345) % 2**31
            at = now >> 16
            # Few of them are busy at a time.
            c = open_[(turn // 100 * 7 + at % 3) % count if turn % 10 else at % count]
            size = 200000 if turn % 97 == 0 else 1 + at % 300
            writer = threading.Thread(target=c.sendall, args=(data(b"crowd", size),))
            writer.start()
            wrong += exact(c, size) != data(b"crowd", size)
            writer.join()
            if turn % 50 == 49:
                open_[at % count].close()
                open_[at % count] = begins()
        for c in open_:
            c.shutdown(socket.SHUT_WR)
            wrong += c.recv(1) != b""
        print(wrong)
        return
    listener = socket.create_server(("127.0.0.1", 0), backlog=100)
    s.sendall(struct.pack("!H", listener.getsockname()[1]))
    one, open_, rests, seen = select.epoll(), {}, {}, 0
    one.register(listener, select.EPOLLIN)
    kinds = [0, select.EPOLLET, select.EPOLLONESHOT]
    kind = lambda fd: kinds[fd % 3]
    while seen == 0 or open_:
        events = one.poll(10, 8)
        assert events, open_
        for fd, event in events:
            if fd == listener.fileno():
                c, _ = listener.accept()
                c.setblocking(False)
                open_[c.fileno()], rests[c.fileno()] = c, b""
                seen += 1
                wants = select.EPOLLIN | (select.EPOLLOUT if kind(c.fileno()) & select.EPOLLET else 0)
                one.register(c, wants | kind(c.fileno()))
                continue
            c, is_over = open_[fd], False
            while True:
                try:
                    got = c.recv(4096)
                except BlockingIOError:
                    break
                except ConnectionResetError:
                    got = b""
                if not got:
                    is_over = True
                    break
                rests[fd] += got
            try:
                while rests[fd]:
                    rests[fd] = rests[fd][c.send(rests[fd]):]
            except (BlockingIOError, BrokenPipeError):
                pass
            if is_over:
                one.unregister(c)
                del open_[fd]
                c.close()
            elif not kind(fd) & select.EPOLLET:
                one.modify(c, select.EPOLLIN | (select.EPOLLOUT if rests[fd] else 0) | kind(fd))
    print(seen, "served")


def set_forks(s, is_server):
    """A child uses the set in which a thread of its parent sleeps."""
    if not is_server:
        for size in (1, 7, 3000, 1):
            s.sendall(b"x" * size)
            assert len(exact(s, size)) == size
            time.sleep(0.01)
        s.shutdown(socket.SHUT_WR)
        print(s.recv(10))
        return
    one, (ends, begins) = select.epoll(), os.pipe()
    one.register(s, select.EPOLLIN)
    one.register(ends, select.EPOLLIN)

    def sleeps():
        while (ends, select.EPOLLIN) not in one.poll(5):
            time.sleep(0.001)

    sleeper = threading.Thread(target=sleeps)
    sleeper.start()
    time.sleep(0.05)
    child = os.fork()
    if child == 0:
        while one.poll(5):
            got = s.recv(100)
            if not got:
                break
            s.sendall(got)
        s.shutdown(socket.SHUT_WR)
        os._exit(0)
    print(os.waitpid(child, 0)[1])
    os.write(begins, b"!")
    sleeper.join()


def halves(s, is_server):
    if is_server:
        s.sendall(b"all")
        s.shutdown(socket.SHUT_WR)
        try:
            s.send(b"more")
        except BrokenPipeError:
            print("EPIPE")
        got = b""
        while more := s.recv(100):
            got += more
        print(got)
        return
    p = select.poll()
    p.register(s, select.POLLIN | select.POLLRDHUP)
    got = b""
    while more := s.recv(2):
        got += more
    print(got, [event & (select.POLLIN | select.POLLRDHUP) for _, event in p.poll(1000)], s.recv(1))
    for _ in range(5):
        s.sendall(b"on ")
        time.sleep(0.01)


def dups(s, is_server):
    if is_server:
        while more := s.recv(100):
            s.sendall(more)
        print("end")
        return
    other = s.dup()
    third = os.dup(s.fileno())
    s.sendall(b"one")
    print(exact(other, 3))
    s.close()
    os.write(third, b"two")
    print(os.read(third, 3))
    os.close(third)
    other.sendall(b"three")
    print(exact(other, 5))


def forks(s, is_server):
    if is_server:
        child = os.fork()
        if child == 0:
            while more := s.recv(100):
                s.sendall(more)
            s.sendall(b"of the child")
            sys.exit(0)
        s.close()
        print(os.waitpid(child, 0)[1])
        return
    for size in (10, 100000):
        sent = data(b"fork", size)
        writer = threading.Thread(target=s.sendall, args=(sent,))
        writer.start()
        assert exact(s, size) == sent
        writer.join()
    s.shutdown(socket.SHUT_WR)
    print(exact(s, 100))


def serves_by_forks(s, is_server):
    """As PostgreSQL: each connection is that of a process of its own, forked as soon as it was accepted."""
    if is_server:
        child = os.fork()
        if child == 0:
            warm(s, True)
            echo(s, True)
            sys.exit(0)
        s.close()
        print(os.waitpid(child, 0)[1])
        return
    warm(s, False)
    echo(s, False)


def keeps_forked(s, is_server):
    """The server has the connection, and a child that does not use it."""
    if is_server:
        ends, tells = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(tells)
            os.read(ends, 1)
            sys.exit(0)
        echo(s, True)
        os.close(tells)
        print(os.waitpid(child, 0)[1])
        return
    echo(s, False)


def files(s, is_server):
    """sendfile: of a part, to the end and past it, with and without an offset, without a wait, and to one that is gone."""
    size = 700001
    if is_server:
        received = exact(s, size * 3)
        print(hashlib.sha256(received).hexdigest())
        s.sendall(b"!")
        s.close()
        return
    with tempfile.TemporaryFile() as file:
        file.write(data(b"file", size))
        file.flush()
        fd = file.fileno()
        print(os.sendfile(s.fileno(), fd, size, 10), os.sendfile(s.fileno(), fd, 0, 0))
        at = 0
        while at < size:
            at += os.sendfile(s.fileno(), fd, at, 100000)
        # The file's own place.
        os.lseek(fd, 100, os.SEEK_SET)
        while os.sendfile(s.fileno(), fd, None, size):
            pass
        print(os.lseek(fd, 0, os.SEEK_CUR))
        s.sendall(data(b"file", 100))
        s.setblocking(False)
        at = full = 0
        while at < size:
            try:
                at += os.sendfile(s.fileno(), fd, at, size)
            except BlockingIOError:
                full += 1
                select.select([], [s], [])
        print(at)
        s.setblocking(True)
        print(exact(s, 1), s.recv(1))
        try:
            while True:
                os.sendfile(s.fileno(), fd, 0, size)
        except (BrokenPipeError, ConnectionResetError):
            print("cannot be sent")
        try:
            print(os.sendfile(s.fileno(), s.fileno(), 0, 1))
        except OSError as why:
            print(why.errno in (errno.EINVAL, errno.ESPIPE))


def spawns(s, is_server):
    """Children that begin another program close what is not theirs, some in the memory of their parent."""
    if is_server:
        while more := s.recv(100):
            s.sendall(more)
        return
    import subprocess
    for turn in range(3):
        print(subprocess.run(["echo", "%d" % turn], stdout=subprocess.PIPE).stdout)
        s.sendall(b"one")
        print(exact(s, 3))
        # It has the connection as its output, which says nothing.
        print(subprocess.call(["true"], stdout=s))
        os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_CLOSE, s.fileno())])
        os.wait()
        s.sendall(b"two")
        print(exact(s, 3))


def killed(s, is_server):
    if is_server:
        s.sendall(b"last words")
        exact(s, 1)
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    print(exact(s, 10))
    s.sendall(b"!")
    try:
        print(s.recv(10))
    except ConnectionResetError:
        print(b"")
    try:
        while True:
            s.sendall(b"x" * 10000)
    except (BrokenPipeError, ConnectionResetError):
        print("cannot be written")


def closed(s, is_server):
    """The other end closes: what it has written is read, and then the end; writes fail soon."""
    if is_server:
        s.sendall(b"x" * 50000)
        s.close()
        return
    time.sleep(0.05)
    print(len(exact(s, 50000)), s.recv(10))
    try:
        for _ in range(100):
            s.sendall(b"x")
            time.sleep(0.001)
    except (BrokenPipeError, ConnectionResetError):
        print("cannot be written")


def threads(s, is_server):
    """One thread reads while another one writes, and what is written waits for what was read."""
    if is_server:
        while more := s.recv(100):
            s.sendall(more)
        return
    got = []
    reader = threading.Thread(target=lambda: [got.append(s.recv(1)) for _ in range(500)])
    reader.start()
    for at in range(500):
        while len(got) < at:
            time.sleep(0)
        s.sendall(b"%d" % (at % 10))
    reader.join()
    print(len(got), b"".join(got[:12]))


def pingpong(s, is_server):
    count = int(os.environ.get("COUNT", 2000))
    if is_server:
        for _ in range(count):
            s.sendall(s.recv(8))
        return
    took = []
    for _ in range(count):
        begun = time.perf_counter_ns()
        s.sendall(b"12345678")
        s.recv(8)
        took.append(time.perf_counter_ns() - begun)
    took.sort()
    print("done")
    if "COUNT" in os.environ:
        print("median us", took[count // 2] / 1000)


def epolls(s, is_server):
    """Round trips, each end in a loop over its set."""
    count = int(os.environ.get("COUNT", 2000))
    s.setblocking(False)
    loop = selectors.DefaultSelector()
    loop.register(s, selectors.EVENT_READ)
    begun = time.perf_counter_ns()
    if not is_server:
        s.send(b"12345678")
    for turn in range(count):
        assert loop.select(20)
        assert len(s.recv(8)) == 8
        if is_server or turn < count - 1:
            s.send(b"12345678")
    if not is_server:
        print("done")
        if "COUNT" in os.environ:
            print("mean us", (time.perf_counter_ns() - begun) / count / 1000)


SCENARIOS = {
    "echo": echo,
    "flags": flags,
    "both": both,
    "select": lambda s, is_server: nonblocking(s, is_server, by_select),
    "poll": lambda s, is_server: nonblocking(s, is_server, by_poll),
    "epoll": lambda s, is_server: nonblocking(s, is_server, ByEpoll(False)),
    "epoll-edge": lambda s, is_server: nonblocking(s, is_server, ByEpoll(True)),
    "edges": edges,
    "rearms": rearms,
    "adds": adds,
    "pool": lambda s, is_server: pool(s, is_server, 0),
    "pool-edge": lambda s, is_server: pool(s, is_server, select.EPOLLET),
    "pool-once": lambda s, is_server: pool(s, is_server, select.EPOLLONESHOT),
    "nested": nested,
    "exclusive": exclusive,
    "crowd": crowd,
    "set-forks": set_forks,
    "halves": halves,
    "dups": dups,
    "forks": forks,
    "serves-by-forks": serves_by_forks,
    "keeps-forked": keeps_forked,
    "files": files,
    "spawns": spawns,
    "killed": killed,
    "closed": closed,
    "threads": threads,
    "pingpong": pingpong,
    "epolls": epolls,
    **more.SCENARIOS,
}


def main():
    name, role = sys.argv[1:3]
    is_server = role == "server"
    if is_server:
        listener = socket.create_server((SERVER, 0))
        print(listener.getsockname()[1], flush=True)
        s, _ = listener.accept()
    elif os.environ.get("CONNECTS") == "nonblocking":
        s = socket.socket()
        s.setblocking(False)
        s.connect_ex((SERVER, int(sys.argv[3])))
        select.select([], [s], [])
        s.setblocking(True)
    else:
        s = socket.create_connection((SERVER, int(sys.argv[3])), source_address=CLIENT)
    # Without a warm-up the memory comes in the middle of all. A read ends there, which may be one event more.
    if ("COLD" not in os.environ or name == "edges") and name not in ("serves-by-forks", "keeps-forked"):
        warm(s, is_server)
    SCENARIOS[name](s, is_server)


main()
