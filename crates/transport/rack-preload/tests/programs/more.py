# SPDX-License-Identifier: Apache-2.0
"""More of what one end of a connection does, for pair.py."""

import ctypes
import errno
import hashlib
import os
import select
import socket
import struct
import subprocess
import tempfile
import time


def low_water(s, is_server):
    """What is said to be ready, and what a read waits for, with a low-water mark."""
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if is_server:
        while asked := s.recv(1):
            if asked == b"4":
                s.sendall(b"4444")
            elif asked == b"6":
                s.sendall(b"666666")
            elif asked == b"s":
                s.sendall(b"4444")
                time.sleep(0.05)
                # Of a read that has begun with the first ones the kernel wakes by the mark once more.
                s.sendall(b"1010101010")
            else:
                s.sendall(b"333")
                s.shutdown(socket.SHUT_WR)
        return
    one, polled = select.epoll(), select.poll()
    one.register(s, select.EPOLLIN)
    polled.register(s, select.POLLIN)
    waits = [
        lambda within: one.poll(within) != [],
        lambda within: polled.poll(within * 1000) != [],
        lambda within: select.select([s], [], [], within)[0] != [],
    ]
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 10)
    print(s.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT))
    for wait in waits:
        s.sendall(b"4")
        time.sleep(0.03)
        print(wait(0.03))
        s.sendall(b"6")
        print(wait(5), s.recv(100, socket.MSG_DONTWAIT))
        s.sendall(b"s")
        print(s.recv(100))
        s.sendall(b"46")
        print(s.recv(3), wait(0.03))
        rest = b""
        while len(rest) < 7:
            try:
                rest = s.recv(100, socket.MSG_DONTWAIT | socket.MSG_PEEK)
            except BlockingIOError:
                time.sleep(0.001)
        print(s.recv(3, socket.MSG_DONTWAIT), s.recv(100, socket.MSG_DONTWAIT))
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 0)
    print(s.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT))
    s.sendall(b"4")
    print(one.poll(5) != [], s.recv(100))
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 10)
    s.sendall(b"e")
    for wait in waits:
        print(wait(5))
    print(s.recv(100), s.recv(100))


def cold_files(s, is_server):
    """sendfile of what the kernel has to read from its disk, a part of which it has in memory."""
    size, turns = 3_000_001, 4
    if is_server:
        got, count = hashlib.sha256(), 0
        while count < size * turns:
            more = s.recv(100_000)
            got.update(more)
            count += len(more)
        print(got.hexdigest())
        s.sendall(b"!")
        return
    with tempfile.TemporaryFile() as file:
        for at in range(size // 10_000 + 1):
            file.write((b"%09d\n" % at) * 1000)
        file.truncate(size)
        file.flush()
        for turn in range(turns):
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), turn * 300_000, 0, os.POSIX_FADV_DONTNEED)
            s.setblocking(turn % 2 == 0)
            at = 0
            while at < size:
                try:
                    at += os.sendfile(s.fileno(), file.fileno(), at, size)
                except BlockingIOError:
                    select.select([], [s], [])
            print(at)
        s.setblocking(True)
        print(s.recv(1))


def vectors(s, is_server):
    """preadv2 and pwritev2, at no place and at one."""
    fd = s.fileno()
    if is_server:
        while got := s.recv(100):
            s.sendall(got)
        return
    for turn in range(20):
        print(os.pwritev(fd, [b"%02d" % turn, b"", b"abc"], -1, os.RWF_DSYNC))
        pieces, count = [bytearray(2), bytearray(9)], 0
        while count == 0:
            try:
                count = os.preadv(fd, pieces, -1, os.RWF_NOWAIT)
            except BlockingIOError:
                select.select([s], [], [])
        print(count, pieces)
    for at in (-1, 0):
        try:
            os.preadv(fd, pieces, at, os.RWF_NOWAIT)
        except OSError as why:
            print(why.errno in (errno.EAGAIN, errno.ESPIPE), why.errno)


def streams(s, is_server):
    """Files of the C library."""
    c = ctypes.CDLL(None)
    c.fdopen.restype = c.fgets.restype = ctypes.c_void_p
    c.fileno.argtypes = c.fflush.argtypes = c.fclose.argtypes = c.feof.argtypes = [ctypes.c_void_p]
    c.fputs.argtypes, c.fgets.argtypes = [ctypes.c_char_p, ctypes.c_void_p], [ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p]
    fds = [os.dup(s.fileno()) for _ in range(2)]
    to, of = c.fdopen(fds[0], b"w"), c.fdopen(fds[1], b"r")
    print([c.fileno(to), c.fileno(of)] == fds)
    room = ctypes.create_string_buffer(300_000)
    line = lambda: room.value if c.fgets(room, len(room), of) else None
    if is_server:
        while got := line():
            c.fputs(b"<" + got, to)
            c.fflush(to)
        # What is left is written as the process ends.
        print("end", c.feof(of) != 0, c.fputs(b"left\n", to) >= 0, c.fclose(of))
        return
    for count in (1, 100, 5000, 200_000):
        sent = b"x" * count + b"\n"
        print(c.fputs(sent, to) >= 0, c.fflush(to), line() == b"<" + sent)
    print(c.fclose(to), c.fclose(of))
    for fd in fds:
        try:
            os.fstat(fd)
            print("is open")
        except OSError:
            pass
    s.sendall(b"the last one\n")
    s.shutdown(socket.SHUT_WR)
    print(s.recv(100, socket.MSG_WAITALL))


def inherits(s, is_server):
    """As a server that begins another program for each connection, which knows nothing of it: by its standard input and output, by another
    number, or through a process that is given it."""
    turns = 3
    if is_server:
        listener, begun = socket.create_server(("127.0.0.1", 0)), []
        s.sendall(struct.pack("!H", listener.getsockname()[1]))
        for turn in range(turns):
            c, _ = listener.accept()
            # Meanwhile its memory comes.
            for _ in range(60):
                s.sendall(exact(s, 1))
            if turn == 0:
                begun.append(subprocess.Popen(["cat"], stdin=c, stdout=c))
            elif turn == 1:
                fd = c.fileno()
                begun.append(subprocess.Popen(["sh", "-c", f"exec cat <&{fd} >&{fd}"], pass_fds=[fd]))
            else:
                here, there = socket.socketpair()
                if os.fork() == 0:
                    c.close()
                    here.close()
                    _, fds, _, _ = socket.recv_fds(there, 1, 1)
                    os.execvp("sh", ["sh", "-c", f"exec cat <&{fds[0]} >&{fds[0]}"])
                there.close()
                socket.send_fds(here, [b"!"], [c.fileno()])
            c.close()
        print([one.wait() for one in begun], os.wait()[1])
        return
    port = struct.unpack("!H", exact(s, 2))[0]
    for turn in range(turns):
        c = socket.create_connection(("127.0.0.1", port))
        for _ in range(60):
            s.sendall(b"?")
            exact(s, 1)
            time.sleep(0.001)
        for size in (1, 5, 30_000):
            c.sendall(b"x" * size)
            print(exact(c, size) == b"x" * size)
        c.shutdown(socket.SHUT_WR)
        print(c.recv(10))


def exact(s, count):
    got = b""
    while len(got) < count:
        more = s.recv(count - len(got))
        if not more:
            break
        got += more
    return got


def served_by_others(s, is_server):
    """A server that reads a request has another program answer, which writes as the C library does it, and goes on itself then."""
    if is_server:
        for _ in range(3):
            exact(s, 8)
            child = subprocess.Popen(["sed", "-u", "-e", "s/^/got /", "-e", "3q"], stdin=s, stdout=s)
            child.wait()
        while got := s.recv(100):
            s.sendall(got)
        return
    ready = select.poll()
    ready.register(s, select.POLLIN)
    for _ in range(3):
        s.sendall(b"request\n")
        for line in (b"a", b"bc", b"d" * 1000):
            s.sendall(line + b"\n")
            print(ready.poll(10000) != [], exact(s, len(line) + 5))
    s.sendall(b"once more")
    print(exact(s, 9))
    s.shutdown(socket.SHUT_WR)
    print(s.recv(10))


def hands_on(s, is_server):
    """Another process gets the descriptor, and sees right bytes."""
    if is_server:
        while got := s.recv(100):
            s.sendall(got)
        return
    here, there = socket.socketpair()
    child = os.fork()
    if child == 0:
        s.close()
        here.close()
        _, fds, _, _ = socket.recv_fds(there, 1, 1)
        if fds:
            given = socket.socket(fileno=fds[0])
            given.sendall(b"by another")
            assert given.recv(10, socket.MSG_WAITALL) == b"by another"
        os._exit(0)
    there.close()
    # The child has let it go.
    time.sleep(0.1)
    for _ in range(20):
        s.sendall(b"once more")
        assert s.recv(9, socket.MSG_WAITALL) == b"once more"
    try:
        socket.send_fds(here, [b"!"], [s.fileno()])
        print("given")
    except OSError as why:
        print("refused", why.errno == errno.EOPNOTSUPP)
        here.sendall(b"!")
    here.close()
    print(os.waitpid(child, 0)[1])
    s.sendall(b"at last")
    print(s.recv(7, socket.MSG_WAITALL))


SCENARIOS = {
    "streams": streams,
    "vectors": vectors,
    "hands-on": hands_on,
    "served-by-others": served_by_others,
    "inherits": inherits,
    "low-water": low_water,
    "cold-files": cold_files,
}
