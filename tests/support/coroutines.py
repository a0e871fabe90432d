"""Coroutines in tests, wherever they run."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from tests.support.waiting import patient

T = TypeVar("T")
P = ParamSpec("P")


def run_async(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in a thread of its own: Playwright leaves a loop running in that of the tests."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, asyncio.wait_for(coroutine, patient(60))).result()


def asynchronous(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:

    @functools.wraps(test)
    def run(*arguments: P.args, **named: P.kwargs) -> None:
        run_async(test(*arguments, **named))

    return run
