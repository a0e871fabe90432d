"""Steps that take minutes of a rented machine: what was done is kept, and the next call goes on from there.

A step is known by its name and a digest of its configuration, not of the code: a finished one is not run again. It runs
in a process of its own, so that one that crashes, or leaves a device unusable, is said and stops no other; at its
deadline it is interrupted wherever it is. That loses no more than a kill does, since all that steps keep is written
whole or not at all.
"""

import hashlib
import json
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from ml.files import read_json, write_json
from ml.training.deadline import Deadline, OutOfTimeError

Document = dict[str, Any]
Status = Literal["not begun", "begun", "unfinished", "failed", "killed", "skipped", "done"]
#: Seconds between interruptions after the first one, in case somebody swallowed it.
_AGAIN = 5.0
#: Exit status of a call that leaves something to the next one (EX_TEMPFAIL of sysexits.h).
MORE_TO_DO = 75


class SkipStepError(Exception):
    """A step has nothing to do on this machine; the message says why."""


@dataclass(frozen=True)
class Setting:
    """What a call was asked.

    Attributes:
        device: where networks run.
        state: folder with the states of steps, and what they resume from.
        results: folder for results; None: nothing is written, as on any device that is no GPU.
        tiny: sizes that a CPU is through with in seconds, to see that everything runs.
        deadline: of the step that runs.
    """

    device: torch.device
    state: Path
    results: Path | None
    tiny: bool
    deadline: Deadline

    @property
    def device_name(self) -> str:
        """As the driver calls it."""
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else self.device.type


@dataclass(frozen=True)
class Step:
    """A step.

    Attributes:
        name: on the command line.
        what: it does, in a line.
        least: seconds below which it is not begun.
        configuration: everything that decides what it does, as JSON values.
        run: does it, and gives what is kept of it, as JSON values.
    """

    name: str
    what: str
    least: float
    configuration: Callable[[Setting], Document]
    run: Callable[[Setting], Document]


@dataclass(frozen=True)
class State:
    """How far a step has come.

    Attributes:
        status: in one word.
        seconds: of all attempts.
        attempts: how many there were.
        reason: why it is not done, in a line.
        results: of one that is done.
    """

    status: Status = "not begun"
    seconds: float = 0.0
    attempts: int = 0
    reason: str = ""
    results: Document | None = None


def digest(configuration: Document) -> str:
    """Twelve hexadecimal digits that name a configuration."""
    return hashlib.sha256(json.dumps(configuration, sort_keys=True).encode()).hexdigest()[:12]


def folder_of(step: Step, setting: Setting) -> Path:
    """Where a step of this configuration keeps its state."""
    return setting.state / f"{step.name}-{digest(step.configuration(setting))}"


def read_state(step: Step, setting: Setting) -> State:
    """How far a step has come; one whose state cannot be read has not begun, and finds what it kept all the same."""
    path = folder_of(step, setting) / "state.json"
    if not path.is_file():
        return State()
    try:
        return State(**read_json(path))
    except (ValueError, TypeError) as exc:
        return State(reason=f"its state could not be read ({exc})")


def write_state(step: Step, setting: Setting, state: State) -> None:
    """Keep how far a step has come."""
    folder = folder_of(step, setting)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "configuration.json", step.configuration(setting))
    write_json(folder / "state.json", vars(state))


@contextmanager
def interrupted_at(deadline: Deadline) -> Iterator[None]:
    """Raise ``OutOfTimeError`` in the block when the deadline has passed; on SIGTERM the deadline is now.

    Raises:
        OutOfTimeError: it has passed.
    """

    def interrupt(*_: object) -> None:
        raise OutOfTimeError("its time was up")

    def end(*_: object) -> None:
        deadline.end()
        signal.setitimer(signal.ITIMER_REAL, _AGAIN, _AGAIN)  # as long as an epoch may take to end

    before = signal.signal(signal.SIGALRM, interrupt), signal.signal(signal.SIGTERM, end)
    signal.setitimer(signal.ITIMER_REAL, max(deadline.left, 1e-3), _AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before[0])
        signal.signal(signal.SIGTERM, before[1])


def attempt(step: Step, setting: Setting) -> State:
    """Run a step until it is done or its deadline has passed, and keep how that went."""
    known = read_state(step, setting)
    began = time.monotonic()
    begun = replace(known, status="begun", attempts=known.attempts + 1, reason="")
    write_state(step, setting, begun)

    def ended(status: Status, reason: str = "", results: Document | None = None) -> State:
        state = replace(
            begun,
            status=status,
            reason=reason,
            results=results,
            seconds=round(known.seconds + time.monotonic() - began, 2),
        )
        write_state(step, setting, state)
        return state

    try:
        with interrupted_at(setting.deadline):
            results = step.run(setting)
    except OutOfTimeError as exc:
        return ended("unfinished", str(exc))
    except SkipStepError as exc:
        return ended("skipped", str(exc))
    except Exception as exc:  # whatever it is, the other steps go on
        (folder_of(step, setting) / "failure.txt").write_text(traceback.format_exc())
        return ended("failed", f"{type(exc).__name__}: {' '.join(str(exc).split())[:300]}")
    return ended("done", results=results)
