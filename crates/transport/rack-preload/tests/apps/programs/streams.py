# SPDX-License-Identifier: Apache-2.0
"""Large streams by asyncio: `streams.py server`, or `streams.py client PORT`. Prints what it sees."""

import asyncio
import hashlib
import sys
import tempfile

STREAMS, SIZE = 6, 6 << 20


def data(seed, count):
    block = hashlib.sha256(seed).digest() * 2048
    return (block * (count // len(block) + 1))[:count]


async def serves(reader, writer):
    kind = await reader.readexactly(1)
    try:
        if kind == b"e":
            while got := await reader.read(50000):
                writer.write(got)
                await writer.drain()
        elif kind == b"l":
            async for line in reader:
                writer.write(line.upper())
        elif kind == b"f":
            with tempfile.TemporaryFile() as file:
                file.write(data(b"file", SIZE))
                file.flush()
                sent = await asyncio.get_running_loop().sendfile(writer.transport, file, 7, SIZE - 100)
                assert sent == SIZE - 100
        elif kind == b"a":
            writer.transport.abort()
            return
        elif kind == b"s":
            # Nobody reads for a while, and then all at once.
            await asyncio.sleep(0.2)
            got = await reader.read()
            writer.write(hashlib.sha256(got).hexdigest().encode())
        elif kind == b"q":
            writer.write(b"bye")
            await writer.drain()
            stops.set()
        writer.write_eof()
        await writer.drain()
        while await reader.read(1000):
            pass
    except ConnectionError:
        pass
    writer.close()


async def echoes(port, at):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"e")
    sent = data(b"%d" % at, SIZE)

    async def writes():
        for start in range(0, SIZE, 70000):
            writer.write(sent[start : start + 70000])
            await writer.drain()
        writer.write_eof()

    task = asyncio.create_task(writes())
    got = hashlib.sha256()
    while more := await reader.read(1 << 16):
        got.update(more)
    await task
    writer.close()
    await writer.wait_closed()
    return got.hexdigest() == hashlib.sha256(sent).hexdigest()


async def asks(port, kind, text, lines=0):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(kind + text)
    answers = []
    for _ in range(lines):
        writer.write(b"a line\n")
        answers.append(await reader.readline())
    writer.write_eof()
    try:
        rest = await reader.read()
    except ConnectionError as why:
        rest = b"an error"
    writer.close()
    return hashlib.sha256(b"".join(answers)).hexdigest(), len(rest), hashlib.sha256(rest).hexdigest()


async def client(port):
    print(await asyncio.gather(*(echoes(port, at) for at in range(STREAMS))))
    print(await asks(port, b"l", b"begin\n", 300))
    print(await asks(port, b"f", b""))
    print(await asks(port, b"s", data(b"slow", 3 << 20)))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"a")
    # Which of the two it is depends on what comes first.
    try:
        print("aborted", len(await reader.read()))
    except ConnectionResetError:
        print("aborted", 0)
    writer.close()
    # A read that ends in time without anything, and goes on.
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"e" + b"x" * 100)
    await reader.readexactly(100)
    try:
        await asyncio.wait_for(reader.read(10), 0.05)
    except asyncio.TimeoutError:
        print("in time")
    writer.write(b"more")
    print(await reader.readexactly(4))
    writer.close()
    print(await asks(port, b"q", b""))


async def server():
    global stops
    stops = asyncio.Event()
    listening = await asyncio.start_server(serves, "127.0.0.1", 0)
    print(listening.sockets[0].getsockname()[1], flush=True)
    await stops.wait()
    await asyncio.sleep(0.2)
    listening.close()
    print("stops")


asyncio.run(server() if sys.argv[1] == "server" else client(int(sys.argv[2])))
