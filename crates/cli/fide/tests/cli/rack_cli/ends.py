# SPDX-License-Identifier: Apache-2.0
"""Two programs: `ends.py server COUNT` echoes over so many connections; `ends.py client PORT` asks, stands until a line comes, asks again."""

import socket
import sys
import time

ROUNDS = 40


def server(count):
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    for _ in range(count):
        connection, _ = listener.accept()
        while more := connection.recv(100):
            connection.sendall(more)
        connection.close()
    print("served", flush=True)


def ask(connection):
    for turn in range(ROUNDS):
        word = b"%08d" % turn
        connection.sendall(word)
        assert connection.recv(100) == word
        # Both have the time to get their memory.
        time.sleep(0.001)


def client(port):
    connection = socket.create_connection(("127.0.0.1", port))
    ask(connection)
    print("asked", flush=True)
    sys.stdin.readline()
    ask(connection)
    connection.close()
    print("asked again", flush=True)


{"server": server, "client": client}[sys.argv[1]](int(sys.argv[2]))
