# SPDX-License-Identifier: Apache-2.0
"""Clients of memcached, by its text protocol: `memcached.py PORT`. Prints what each is answered."""

import hashlib
import socket
import sys
import threading

CONNECTIONS, TURNS = 40, 60
PORT = int(sys.argv[1])


class Client:
    def __init__(self):
        self.socket = socket.create_connection(("127.0.0.1", PORT))
        self.rest, self.seen = b"", hashlib.sha256()

    def line(self):
        while b"\r\n" not in self.rest:
            more = self.socket.recv(65536)
            assert more, "the server has closed"
            self.rest += more
        line, self.rest = self.rest.split(b"\r\n", 1)
        self.seen.update(line)
        return line

    def exact(self, count):
        while len(self.rest) < count:
            self.rest += self.socket.recv(1 << 20)
        got, self.rest = self.rest[:count], self.rest[count:]
        self.seen.update(got)
        return got

    def asks(self, text):
        self.socket.sendall(text.encode() + b"\r\n")

    def sets(self, key, value, verb="set", more=""):
        self.socket.sendall(b"%s %s 7 0 %d%s\r\n" % (verb.encode(), key.encode(), len(value), more.encode()) + value + b"\r\n")
        return b"" if "noreply" in more else self.line()

    def gets(self, keys, verb="get"):
        self.asks(verb + " " + keys)
        values = []
        while (line := self.line()) != b"END":
            words = line.split()
            values.append((words[1], self.exact(int(words[3])), words[4:]))
            self.exact(2)
        return values


def value(seed, count):
    block = hashlib.sha256(seed.encode()).digest()
    return (block * (count // 32 + 1))[:count]


def one(at, said):
    c, own = Client(), "k%d:" % at
    for turn in range(TURNS):
        size = [1, 100, 4000, 40000, 900000][turn % 5 if turn % 15 == 4 else turn % 4]
        assert c.sets(own + str(turn), value(own + str(turn), size)) == b"STORED"
        assert c.gets(own + str(turn))[0][1] == value(own + str(turn), size)
    c.sets(own + "n", b"10")
    for _ in range(50):
        c.asks("incr %sn 3" % own)
        c.line()
    # Many questions before the first answer is read.
    for turn in range(200):
        c.asks("get %s%d" % (own, turn % 3))
    for turn in range(200):
        c.line(), c.exact(len(value(own + str(turn % 3), [1, 100, 4000][turn % 3])) + 2), c.line()
    for turn in range(50):
        c.sets(own + "quiet", b"%d" % turn, more=" noreply")
    assert c.gets(own + "quiet")[0][1] == b"49"
    c.gets(" ".join(own + str(turn) for turn in range(30)))
    # The number of a value is the server's; whether it still is the same is for all to see.
    unique = c.gets(own + "n", "gets")[0][2][0].decode()
    c.seen = hashlib.sha256(b"from here on")
    said[at] = [c.sets(own + "n", b"1", "cas", " " + unique), c.sets(own + "n", b"2", "cas", " " + unique)]
    said[at] += [c.sets(own + "1", b"+", verb) for verb in ("append", "prepend", "add", "replace")]
    c.asks("delete %s1" % own)
    said[at].append(c.line())
    c.asks("nonsense")
    said[at].append(c.line())
    said[at].append(c.sets(own + "large", b"x" * (2 << 20)))
    c.rest = b""
    c.asks("quit")
    while c.socket.recv(65536):
        pass
    said[at].append(c.seen.hexdigest())


said = {}
threads = [threading.Thread(target=one, args=(at, said)) for at in range(CONNECTIONS)]
[t.start() for t in threads]
[t.join() for t in threads]
for at in range(CONNECTIONS):
    print(at, said.get(at))

c = Client()
for _ in range(200):
    c.asks("version")
    c.line()
c.asks("stats")
kept = {}
while (line := c.line()) != b"END":
    kept[line.split()[1]] = line
for name in (b"curr_items", b"cmd_get", b"cmd_set", b"get_hits", b"get_misses", b"cas_hits", b"cas_badval", b"incr_hits"):
    print(kept[name])
