"""Waiting for what happens, with deadlines that judge nobody's machine."""

import os
import time
from collections.abc import Callable

#: Factor on every deadline, for a machine that is busy with something else.
PATIENCE = float(os.environ.get("SECONDREAD_TEST_PATIENCE", "1"))


def wait_until(condition: Callable[[], object], seconds: float = 30.0, what: str = "", every: float = 0.05) -> None:
    """Look again and again until a condition is true.

    Args:
        condition: asked again after a short while.
        seconds: deadline, multiplied by ``SECONDREAD_TEST_PATIENCE``.
        what: said where the deadline passes.
        every: seconds between two looks.

    Raises:
        AssertionError: the deadline passed.
    """
    deadline = time.monotonic() + seconds * PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds * PATIENCE:g} s in vain: {what or condition}")
        time.sleep(every)
