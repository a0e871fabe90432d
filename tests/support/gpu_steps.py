"""Steps of ``benchmarks.gpu`` that end at once, each in another way."""

import os
import signal
import time

from benchmarks.gpu_state import Document, Setting, SkipStepError, Step

CONFIGURATION = {"of": "tests"}


def _note(setting: Setting, name: str) -> int:
    """Count that a step has run; gives how often."""
    path = setting.state / f"{name}.count"
    count = int(path.read_text()) + 1 if path.exists() else 1
    path.write_text(str(count))
    return count


def good(setting: Setting) -> Document:
    """Is done at once."""
    return {"runs": _note(setting, "good")}


def bad(setting: Setting) -> Document:
    """Fails."""
    _note(setting, "bad")
    raise ValueError("two and two\nare five")


def killed_once(setting: Setting) -> Document:
    """Is killed at the first attempt."""
    if _note(setting, "killed") == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return {}


def endless(setting: Setting) -> Document:
    """Never ends by itself."""
    _note(setting, "endless")
    while True:
        time.sleep(0.01)


def skipped(setting: Setting) -> Document:
    """Has nothing to do here."""
    raise SkipStepError("there is one device")


def _step(name: str, run: object, least: float = 0.0) -> Step:
    return Step(name, f"the step that is {name}", least, lambda setting: CONFIGURATION | {"name": name}, run)


STEPS = (
    _step("bad", bad),
    _step("killed", killed_once),
    _step("skipped", skipped),
    _step("good", good),
    _step("long", good, least=10_000),
)
ENDLESS = _step("endless", endless)
