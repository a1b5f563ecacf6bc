# SPDX-License-Identifier: Apache-2.0
"""Two programs: `ends.py server COUNT` echoes over so many connections; `ends.py client PORT` asks, and asks again for each line."""

import socket
import sys
import time

ROUNDS = 20


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
        time.sleep(0.001)


def client(port):
    connection = socket.create_connection(("127.0.0.1", port))
    ask(connection)
    print("asked", flush=True)
    while sys.stdin.readline():
        ask(connection)
        print("asked", flush=True)
    connection.close()


{"server": server, "client": client}[sys.argv[1]](int(sys.argv[2]))
