# SPDX-License-Identifier: Apache-2.0
"""`many.py server` prints its port, and answers all connections of one epoll set. `many.py client PORT COUNT [full]` makes so many, talks over
each of them in turn, and prints how long that took and what memory both ends have. `full`: with them it has as many files open as it may."""

import os
import resource
import select
import socket
import sys
import time

STATM = os.open("/proc/self/statm", os.O_RDONLY)


def resident():
    """Bytes that this process has mapped and in memory, shared ones included."""
    return int(os.pread(STATM, 100, 0).split()[1]) * os.sysconf("SC_PAGE_SIZE")


def exact(s, count):
    got = b""
    while len(got) < count:
        more = s.recv(count - len(got))
        if not more:
            raise EOFError
        got += more
    return got


def server():
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    print(listener.getsockname()[1], flush=True)
    one, open_ = select.epoll(), {}
    one.register(listener, select.EPOLLIN)
    while True:
        for fd, _ in one.poll():
            if fd == listener.fileno():
                s, _ = listener.accept()
                s.setblocking(False)
                open_[s.fileno()] = s
                one.register(s, select.EPOLLIN)
                continue
            got = open_[fd].recv(100)
            if got == b"memory  ":
                got = b"%012d" % resident()
            if got:
                open_[fd].sendall(got)
            else:
                one.unregister(fd)
                open_.pop(fd).close()
                if not open_:
                    return


def client(port, count):
    before, begun, all_ = resident(), time.monotonic(), []

    def passes(what):
        nonlocal begun
        now = time.monotonic()
        print(f"{what}: {(now - begun) / count * 1e6:.0f} us for each", flush=True)
        begun = now

    for at in range(count):
        s = socket.socket()
        s.connect(("127.0.0.1", port))
        all_.append(s)
        s.sendall(b"%08d" % at)
        assert exact(s, 8) == b"%08d" % at
    passes("connected")
    for turn in range(4):
        for at, s in enumerate(all_):
            sent = b"%08d" % (at + turn)
            s.sendall(sent)
            assert exact(s, 8) == sent
        passes(f"round trip {turn}")
    # Messages that are on the way at once.
    for s in all_:
        s.sendall(b"m" * 90)
    for s in all_:
        assert exact(s, 90) == b"m" * 90
    passes("all at once")
    all_[0].sendall(b"memory  ")
    print(f"memory: {(resident() - before) // count} bytes for each in the client, {int(exact(all_[0], 12)) // count} in the server")
    for s in all_:
        s.close()
    passes("closed")


if sys.argv[1] == "server":
    server()
else:
    count = int(sys.argv[3])
    if "full" in sys.argv:
        # One that the list has is the library's then.
        files = len(os.listdir("/proc/self/fd")) + count
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    client(int(sys.argv[2]), count)
