# SPDX-License-Identifier: Apache-2.0
"""X-PACE: messages with deadlines between two applications, encrypted, and paced to the slowest step between them.

>>> with fide_pace.connect("192.0.2.7:7000", key) as connection:
...     while True:
...         connection.send(camera.frame())  # returns when the next one may be made

All times are in seconds. Blocking calls let other threads run, and a signal interrupts them. All classes may be used from
several threads.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from types import TracebackType

from . import _native
from ._errors import (
    ConnectError,
    ConnectionClosed,
    ConnectionLost,
    DeadlineError,
    EndpointClosed,
    InvalidKey,
    MessageTooLong,
    PaceError,
    QueueFull,
)
from ._native import client_key, new_private, new_secret
from ._waiting import finished

__all__ = [
    "ConnectError",
    "Connection",
    "ConnectionClosed",
    "ConnectionLost",
    "Counts",
    "DeadlineError",
    "Endpoint",
    "EndpointClosed",
    "InvalidKey",
    "MessageTooLong",
    "PaceError",
    "QueueFull",
    "View",
    "client_key",
    "connect",
    "connect_async",
    "new_private",
    "new_secret",
    "server",
]

#: From sending to delivery; what is older is dropped.
DEADLINE = 0.1
#: The share of messages that may be lost.
LOSS = 0.001
#: Messages that may wait at the sender.
QUEUE = 1
#: Holds a queue of a part of one packet; the other one is "xpace".
CONGESTION = "level"
#: After this time without a packet of the other end the connection is over.
IDLE = 30.0

_STEPS = ("send", "transmit", "network", "receive", "deliver")


@dataclass(frozen=True)
class View:
    """What is known of a way: from here to the other end, or from there to here."""

    #: The slowest step: "send", "transmit", "network", "receive" or "deliver".
    bottleneck: str | None
    #: The time that it takes for a message: the time between two messages that nothing waits for.
    bottleneck_pace: float | None
    #: The time that each step takes for a message, by its name.
    paces: dict[str, float | None]
    #: Bytes a second that the network takes; only the sender knows it.
    network_bytes_per_s: int | None
    #: From sending to delivery, for a message that leaves at once.
    delay: float
    #: Messages that wait for the application at the end of the way.
    waiting_there: int
    #: From one send of this application to the next, if it sends periodically.
    send_period: float | None
    #: From one message of the other end to the next, if they come periodically.
    receive_period: float | None
    #: From one turn of this application to its next, as it sends on the way there, or takes messages on the way here, with all that it
    #: waits for. Its own work alone is in `paces`.
    total: float | None
    #: The mean time of packets on the way, by both ends' clocks; it may be wrong by `clock_uncertainty`.
    one_way: float | None
    #: By how much the other end's clock is ahead, but for multiples of 2**32 microseconds.
    clock_ahead: float | None
    #: By how much more or less that may be.
    clock_uncertainty: float | None
    #: How much faster the other end's clock runs, in microseconds for each second.
    drift_ppm: int | None


@dataclass(frozen=True)
class Counts:
    """What became of messages so far."""

    #: Messages taken from this application.
    sent: int
    #: Of these, dropped here, as they could not arrive in time.
    dropped: int
    #: Messages delivered to this application.
    received: int
    #: Messages of the other end that were not: lost on their way, or late.
    lost: int
    #: Of these, messages that were here when they expired.
    late: int


def _view(of: _native._View) -> View:
    bottleneck, pace, paces, *rest, clock = of
    clock = (None, None, None) if clock is None else clock
    return View(bottleneck, pace, dict(zip(_STEPS, paces, strict=True)), *rest, *clock)  # type: ignore[arg-type]


class Connection:
    """A connection that stands, made by `connect` or `Endpoint.accept`. It is closed at the end of a `with` block."""

    def __init__(self, native: _native.Connection) -> None:
        self._native = native

    def send(self, data: bytes | bytearray | memoryview, deadline: float | None = None) -> None:
        """Sends a message, and returns when the next one may be made: a loop around it is paced to the slowest step.

        Raises ConnectionClosed, DeadlineError, MessageTooLong; QueueFull only beside `try_send`.
        """
        self._native.send(bytes(data), deadline).run()

    async def send_async(self, data: bytes | bytearray | memoryview, deadline: float | None = None) -> None:
        """`send` in an event loop."""
        await finished(self._native.send(bytes(data), deadline))

    def try_send(self, data: bytes | bytearray | memoryview, deadline: float | None = None) -> None:
        """Puts a message into the queue, and returns at once. Raises QueueFull, and as `send`."""
        self._native.try_send(bytes(data), deadline)

    def recv(self, timeout: float | None = None) -> bytes:
        """The next message. Raises TimeoutError; ConnectionClosed once all that came was taken."""
        return self._native.recv(timeout).run()

    async def recv_async(self) -> bytes:
        """`recv` in an event loop: `asyncio.timeout` limits it, and loses no message."""
        return await finished(self._native.recv(None))

    def try_recv(self) -> bytes | None:
        """The next message, if it is here. Raises ConnectionClosed."""
        return self._native.try_recv()

    def __iter__(self) -> Iterator[bytes]:
        """All messages, until the connection is closed. Raises ConnectionLost."""
        while True:
            try:
                yield self.recv()
            except ConnectionLost:
                raise
            except ConnectionClosed:
                return

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """All messages, until the connection is closed. Raises ConnectionLost."""
        while True:
            try:
                yield await self.recv_async()
            except ConnectionLost:
                raise
            except ConnectionClosed:
                return

    def view(self) -> View | None:
        """What is known of the way from here to the other end; None when the connection is over."""
        view = self._native.view()
        return None if view is None else _view(view)

    def incoming_view(self) -> View | None:
        """`view` of the way from the other end to here: the slowest step of what is received, and how long that is on its way."""
        view = self._native.incoming_view()
        return None if view is None else _view(view)

    def bottleneck_pace(self) -> float | None:
        """The time that the slowest step takes for a message; None while it is not known."""
        view = self.view()
        return None if view is None else view.bottleneck_pace

    def expected_delay(self) -> float | None:
        """From now to the delivery of a message that is sent now; None: it would wait for feedback."""
        return self._native.expected_delay()

    def next_send_in(self) -> float | None:
        """When a message would leave at once; None: after the next feedback. An application that sleeps until then is paced.

        From this call on until it sends, it waits: that time is none of its own work.
        """
        return self._native.next_send_in()

    def expected_send_in(self) -> float | None:
        """When this application will send next, for those who schedule it; None: it does not send periodically."""
        return self._native.expected_send_in()

    def next_recv_in(self) -> float | None:
        """When the next message is to be expected; None: they do not come periodically. 0: one waits, or is late."""
        return self._native.next_recv_in()

    def on_change(self, callback: Callable[[View], object]) -> None:
        """Calls back with the view, once the bottleneck is known and at each change of it, until the connection is over.

        A change: another step is the slowest one, or its pace differs by more than an eighth. The callback runs on a thread
        of its own, which ends with the first exception of it.
        """
        changes = self._native.changes()

        def watch() -> None:
            while True:
                try:
                    view = changes.next(None).run()
                except ConnectionClosed:
                    return
                callback(_view(view))

        threading.Thread(target=watch, name="fide-pace-watch", daemon=True).start()

    async def changes(self) -> AsyncIterator[View]:
        """What `on_change` tells, in an event loop."""
        changes = self._native.changes()
        while True:
            try:
                yield _view(await finished(changes.next(None)))
            except ConnectionClosed:
                return

    def counts(self) -> Counts:
        """What became of messages so far."""
        return Counts(*self._native.counts())

    @property
    def peer(self) -> str | None:
        """Where the other end is: HOST:PORT."""
        return self._native.peer()

    @property
    def closed(self) -> bool:
        """Whether the connection is over, at either end."""
        return self._native.is_over()

    def finish(self, timeout: float) -> bool:
        """Waits until everything that was sent has arrived or expired, or the connection is over. False: something has not."""
        until = time.monotonic() + timeout
        while not self._native.is_idle():
            if self.closed or time.monotonic() >= until:
                return False
            time.sleep(0.001)
        return True

    async def finish_async(self, timeout: float) -> bool:
        """`finish` in an event loop."""
        until = time.monotonic() + timeout
        while not self._native.is_idle():
            if self.closed or time.monotonic() >= until:
                return False
            await asyncio.sleep(0.001)
        return True

    def close(self, reason: str = "") -> None:
        """Ends the connection, and tells the other end why. What has not left is dropped: `finish` before."""
        self._native.close(reason)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, kind: type[BaseException] | None, why: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, why: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()


class Endpoint:
    """A socket and its thread. Closed, it makes no more connections; those that stand go on."""

    def __init__(self, native: _native.Endpoint | None = None) -> None:
        """An endpoint that only connects; `server` makes one that accepts."""
        self._native = _native.Endpoint.client() if native is None else native

    @property
    def address(self) -> str:
        """Where it is: HOST:PORT."""
        return self._native.local_address()

    def connect(
        self,
        address: str,
        key: str,
        *,
        deadline: float = DEADLINE,
        loss: float = LOSS,
        queue: int = QUEUE,
        congestion: str = CONGESTION,
        even_ways: bool = False,
        idle: float = IDLE,
    ) -> Connection:
        """Connects to HOST:PORT.

        `idle`: after so many seconds without a packet of the other end, at least 1, all calls raise ConnectionLost.
        `even_ways`: both ways of the path take equally long. A deadline then has to be longer than one way, and else than a round
        trip; where they do not, a message can be late by half of the difference.

        Raises ConnectError, InvalidKey, EndpointClosed; ValueError for a wrong argument."""
        found = _native.resolve(address)
        options = (deadline, loss, queue, congestion, even_ways, idle)
        return Connection(self._native.connect(found, key, options).run())

    async def connect_async(
        self,
        address: str,
        key: str,
        *,
        deadline: float = DEADLINE,
        loss: float = LOSS,
        queue: int = QUEUE,
        congestion: str = CONGESTION,
        even_ways: bool = False,
        idle: float = IDLE,
    ) -> Connection:
        """`connect` in an event loop."""
        found = await asyncio.get_running_loop().run_in_executor(None, _native.resolve, address)
        options = (deadline, loss, queue, congestion, even_ways, idle)
        return Connection(await finished(self._native.connect(found, key, options)))

    def accept(self, timeout: float | None = None) -> Connection:
        """The next connection of a client. Raises TimeoutError, EndpointClosed."""
        return Connection(self._native.accept(timeout).run())

    async def accept_async(self) -> Connection:
        """`accept` in an event loop."""
        return Connection(await finished(self._native.accept(None)))

    def close(self) -> None:
        """Takes and makes no more connections: those who wait for one get EndpointClosed."""
        self._native.close()

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, kind: type[BaseException] | None, why: BaseException | None, _: TracebackType | None) -> None:
        self.close()


def server(
    address: str,
    key: str,
    *,
    deadline: float = DEADLINE,
    loss: float = LOSS,
    queue: int = QUEUE,
    congestion: str = CONGESTION,
    even_ways: bool = False,
    idle: float = IDLE,
) -> Endpoint:
    """An endpoint at HOST:PORT that accepts clients with a key. Port 0: any that is free.

    Raises InvalidKey, OSError of the socket; ValueError for a wrong argument.
    """
    options = (deadline, loss, queue, congestion, even_ways, idle)
    return Endpoint(_native.Endpoint.server(_native.resolve(address), key, options))


def connect(
    address: str,
    key: str,
    *,
    deadline: float = DEADLINE,
    loss: float = LOSS,
    queue: int = QUEUE,
    congestion: str = CONGESTION,
    even_ways: bool = False,
    idle: float = IDLE,
) -> Connection:
    """A connection from an endpoint of its own: `Endpoint.connect`."""
    with Endpoint() as endpoint:
        return endpoint.connect(
            address,
            key,
            deadline=deadline,
            loss=loss,
            queue=queue,
            congestion=congestion,
            even_ways=even_ways,
            idle=idle,
        )


async def connect_async(
    address: str,
    key: str,
    *,
    deadline: float = DEADLINE,
    loss: float = LOSS,
    queue: int = QUEUE,
    congestion: str = CONGESTION,
    even_ways: bool = False,
    idle: float = IDLE,
) -> Connection:
    """`connect` in an event loop."""
    with Endpoint() as endpoint:
        return await endpoint.connect_async(
            address,
            key,
            deadline=deadline,
            loss=loss,
            queue=queue,
            congestion=congestion,
            even_ways=even_ways,
            idle=idle,
        )
