# SPDX-License-Identifier: Apache-2.0
"""`talks.py server [forks]` prints its port and serves until its input ends, each connection by a thread or a process of its own.
`talks.py client PORT` makes a connection for each line of its input, `WORD COUNT`, and prints the line once it is done: `talk` closes it after
so many round trips, `keep` does not, and `again` has them over all that were kept, and `drop`
closes those."""

import os
import socket
import sys
import threading
import time


def exact(s, count):
    got = b""
    while len(got) < count:
        more = s.recv(count - len(got))
        if not more:
            break
        got += more
    return got


def serves(s):
    try:
        while got := s.recv(4):
            s.sendall(got)
    except ConnectionResetError:
        pass
    s.close()


def server(forks):
    listener = socket.create_server(("127.0.0.1", 0), backlog=100)
    print(listener.getsockname()[1], flush=True)

    def accepts():
        while True:
            s, _ = listener.accept()
            if not forks:
                threading.Thread(target=serves, args=(s,), daemon=True).start()
            elif os.fork() == 0:
                listener.close()
                serves(s)
                sys.stdout.flush()
                os._exit(0)
            else:
                s.close()

    threading.Thread(target=accepts, daemon=True).start()
    sys.stdin.read()


def talks(s, count):
    for turn in range(count):
        sent = b"%04d" % turn
        s.sendall(sent)
        assert exact(s, 4) == sent
        time.sleep(0.001)


def client(port):
    kept = []
    for line in sys.stdin:
        word, count = line.split()
        if word == "again":
            for s in kept:
                talks(s, int(count))
        elif word == "drop":
            while kept:
                kept.pop().close()
        else:
            s = socket.create_connection(("127.0.0.1", port))
            talks(s, int(count))
            if word == "keep":
                kept.append(s)
            else:
                s.close()
        print(line.strip(), flush=True)


if sys.argv[1] == "server":
    server("forks" in sys.argv)
else:
    client(int(sys.argv[2]))
