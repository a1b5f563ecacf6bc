# SPDX-License-Identifier: Apache-2.0
"""Both ends of a connection in one program: `alone.py SCENARIO`. Prints what it sees."""

import ctypes
import errno
import os
import select
import signal
import socket
import struct
import sys
import threading
import time

WARM = int(os.environ.get("WARM", 30))


def exact(s, count):
    got = b""
    while len(got) < count:
        more = s.recv(count - len(got))
        if not more:
            break
        got += more
    return got


def goes(one, other):
    """Until both ends have had the time to get their memory; one way, so that what came the other way before stays unread."""
    for turn in range(WARM):
        one.sendall(b"%4d" % turn)
        assert exact(other, 4) == b"%4d" % turn
        time.sleep(0.001)


def retries():
    """A connection that is refused, and tried again with the same socket, which a set has all the time."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    address = listener.getsockname()
    client = socket.socket()
    client.setblocking(False)
    print(client.connect_ex(address) == errno.EINPROGRESS)
    waits = select.epoll()
    waits.register(client, select.EPOLLOUT)
    listener.listen(1)
    while (why := client.connect_ex(address)) == errno.ECONNREFUSED:
        print("refused")
    print(why == errno.EINPROGRESS, waits.poll(5) == [(client.fileno(), select.EPOLLOUT)])
    server, _ = listener.accept()
    client.setblocking(True)
    goes(client, server)
    goes(server, client)
    waits.modify(client, select.EPOLLIN)
    print(waits.poll(0))
    server.sendall(b"hello")
    print(waits.poll(5) == [(client.fileno(), select.EPOLLIN)], exact(client, 5))


class Interrupted(Exception):
    pass


def interrupts():
    """A signal ends a wait for room, also while bytes are unread that came over TCP."""
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    server.sendall(b"unread")
    goes(client, server)
    client.setblocking(False)

    def fills():
        sent = 0
        try:
            while True:
                sent += client.send(bytes(1 << 16))
        except BlockingIOError:
            return sent

    # The kernel's buffers grow for a while.
    while fills() > 0:
        time.sleep(0.03)
    print("full")
    is_waiting = False

    def handler(*_):
        nonlocal is_waiting
        if is_waiting:
            is_waiting = False
            raise Interrupted

    signal.signal(signal.SIGUSR1, handler)
    poll, epoll = select.poll(), select.epoll()
    poll.register(client, select.POLLOUT)
    epoll.register(client, select.EPOLLOUT)
    main = threading.get_ident()
    for name, wait in [
        ("poll", poll.poll),
        ("epoll", epoll.poll),
        ("select", lambda: select.select([], [client], [])),
        ("send", lambda: (client.setblocking(True), client.sendall(bytes(1 << 26)))),
    ]:
        is_over = threading.Event()

        def kills():
            # One that comes between two calls interrupts neither.
            while not is_over.wait(0.02):
                signal.pthread_kill(main, signal.SIGUSR1)

        killer = threading.Thread(target=kills)
        killer.start()
        try:
            is_waiting = True
            wait()
        except Interrupted:
            print(name, "is interrupted")
        is_over.set()
        killer.join()
    print(exact(client, 6))


def pair():
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    return client, listener.accept()[0]


def tries(call):
    try:
        return call()
    except OSError as why:
        return why.errno and errno.errorcode[why.errno]


def resets():
    """Closes with bytes that nobody has read, or with no time to linger, are resets for the other end."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    for name in ("unread", "unread, system call", "linger", "linger, writes", "linger, waits", "read", "read, writes"):
        client, server = pair()
        goes(client, server)
        goes(server, client)
        server.sendall(b"last")
        waits = select.epoll()
        waits.register(client, select.EPOLLIN | select.EPOLLRDHUP)
        if name.startswith("unread"):
            client.sendall(b"unread")
        elif not name.startswith("read"):
            server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if name == "linger, waits":
            exact(client, 4)
            threading.Timer(0.05, server.close).start()
        elif name.endswith("system call"):
            # As libuv does it.
            ctypes.CDLL(None).syscall({"x86_64": 3}.get(os.uname().machine, 57), server.detach())
        else:
            server.close()
        # Also for one who sees the byte and the end at once.
        time.sleep(0.02)
        print(name, waits.poll(5)[0][1] & select.EPOLLIN)
        if name.endswith("writes"):
            print(tries(lambda: client.send(b"x")), tries(lambda: client.send(b"x")))
        print(*(tries(lambda: client.recv(100)) for _ in range(3)))


def urgent():
    """A byte out of turn, before there is memory, and after."""
    client, server = pair()
    for turn in range(2):
        waits = select.epoll()
        waits.register(client, select.EPOLLIN | select.EPOLLOUT | select.EPOLLPRI)
        sent = server.sendmsg([b"hello"], [], socket.MSG_OOB) if turn else server.send(b"hello", socket.MSG_OOB)
        print(sent, server.send(b"world"))
        seen, deadline = 0, time.monotonic() + 5
        while not seen & select.EPOLLPRI and time.monotonic() < deadline:
            seen = waits.poll(0)[0][1]
        print(seen & select.EPOLLPRI, seen & select.EPOLLOUT, client.recv(1, socket.MSG_OOB))
        print(exact(client, 9))
        if turn == 0:
            client, server = pair()
            goes(client, server)
            goes(server, client)


SCENARIOS = {"retries": retries, "interrupts": interrupts, "resets": resets, "urgent": urgent}

SCENARIOS[sys.argv[1]]()
