# SPDX-License-Identifier: Apache-2.0
"""Operations of the native part in an event loop."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from ._native import Operation

_T = TypeVar("_T")


def _ready(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def finished(operation: Operation[_T]) -> _T:
    """Waits for an operation in the running event loop."""
    done, result = operation.poll()
    if done:
        return result
    loop, descriptor = asyncio.get_running_loop(), operation.fileno()
    while True:
        future: asyncio.Future[None] = loop.create_future()
        loop.add_reader(descriptor, _ready, future)
        try:
            await future
        finally:
            loop.remove_reader(descriptor)
        done, result = operation.poll()
        if done:
            return result
