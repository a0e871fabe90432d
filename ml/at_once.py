"""Two calculations at once: NumPy lets go of the interpreter while it computes."""

import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ml.cores import cores

_A = TypeVar("_A")
_B = TypeVar("_B")

#: Numbers to go through from which on a second thread gains more than it costs.
WORTH_A_THREAD = 2**20


def at_once(first: Callable[[], _A], second: Callable[[], _B], size: int) -> tuple[_A, _B]:
    """Results of two calls that need nothing of each other: the second in a thread where there is much to do.

    Each computes what it would alone, so that the results are the same to the last bit.

    Args:
        first: in this thread.
        second: in another one, with this one's context.
        size: numbers that both go through.
    """
    if size < WORTH_A_THREAD or cores() < 2:
        return first(), second()
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(contextvars.copy_context().run, second)
        return first(), other.result()
