# SPDX-License-Identifier: Apache-2.0
"""Two programs with three connections: `links.py server`; `links.py client PORT`. For each line the client asks once more over all of them.
With the line `last`, both wait for the other one, in different ways, and print how each wait ended. They end as they read no more, as what
the other one sees of that is no matter of a test; one that fails ends them."""

import errno
import select
import signal
import socket
import sys
import threading

COUNT = 3
LOCK = threading.Lock()
signal.alarm(60)


def reads(end):
    return end.recv(100)


def polls(end):
    end.setblocking(False)
    poll = select.poll()
    poll.register(end, select.POLLIN)
    poll.poll()
    return end.recv(100)


def epolls(end):
    end.setblocking(False)
    poll = select.epoll()
    poll.register(end, select.EPOLLIN)
    poll.poll()
    return end.recv(100)


def waits(number, call, end):
    try:
        ended = call(end)
    except OSError as error:
        ended = errno.errorcode[error.errno]
    with LOCK:
        print(number, ended, flush=True)


def wait(ends):
    ways = enumerate([reads, polls, epolls])
    threads = [threading.Thread(target=waits, args=(number, call, ends[number])) for number, call in ways]
    for thread in threads:
        thread.start()
    print("waits", flush=True)
    for thread in threads:
        thread.join()
    sys.stdin.read()


def server():
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    ends = [listener.accept()[0] for _ in range(COUNT)]
    while True:
        words = [end.recv(100) for end in ends]
        for end, word in zip(ends, words):
            end.sendall(word)
        if words[0] == b"last":
            return wait(ends)


def client(port):
    ends = [socket.create_connection(("127.0.0.1", port)) for _ in range(COUNT)]

    def ask(word):
        for end in ends:
            end.sendall(word)
        for end in ends:
            assert end.recv(100) == word

    ask(b"first")
    print("asked", flush=True)
    while sys.stdin.readline() != "last\n":
        ask(b"again")
        print("asked", flush=True)
    ask(b"last")
    wait(ends)


server() if sys.argv[1] == "server" else client(int(sys.argv[2]))
