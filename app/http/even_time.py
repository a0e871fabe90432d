"""Answers to annotators whose time tells nothing of what others have done."""

from asyncio import sleep
from collections.abc import AsyncIterator
from time import monotonic

from fastapi import Depends

#: Seconds between the moments at which answers are sent.
STEP = 0.01


async def _send_at_a_step() -> AsyncIterator[None]:
    # a cell with labels of others takes a quarter of a millisecond longer, which an annotator could measure
    began = monotonic()
    try:
        yield
    finally:
        await sleep((began - monotonic()) % STEP)


#: Of a route that leases or ends a read: its answer waits for the next step after all of its work.
EVEN_TIME = Depends(_send_at_a_step, scope="function")
