"""What a sabotage is: a patch that undoes one control, and the tests that must notice.

A file of this folder begins with three lines, ``Control:`` (the promise that is broken), ``Threat:`` (its number in the
tables of threats and faults) and ``Red:`` (identifiers of tests, of which each must fail); the patch follows.
"""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
#: Seconds for the tests of one patch: an undone control may let them wait for ever.
TIMEOUT = 1200
_OUTCOME = re.compile(r"^(PASSED|FAILED|ERROR) (\S+::.*?)(?: - .*)?$", re.MULTILINE)


class SabotageError(ValueError):
    """A patch that does not apply, or whose tests cannot be run."""


@dataclass(frozen=True)
class Sabotage:
    """A control that is undone.

    Attributes:
        path: patch file.
        control: the promise that is broken.
        threat: its number among threats and faults.
        red: identifiers of the tests that must fail.
    """

    path: Path
    control: str
    threat: str
    red: list[str]

    @property
    def name(self) -> str:
        """Of the file."""
        return self.path.stem


@dataclass(frozen=True)
class Outcome:
    """What the tests said while a control was undone.

    Attributes:
        sabotage: what was undone.
        passed: named tests that did not notice.
        others: further tests of the same files that failed.
    """

    sabotage: Sabotage
    passed: list[str]
    others: list[str]


def sabotages() -> list[Sabotage]:
    """Every patch of the folder.

    Raises:
        SabotageError: one lacks a line of its head.
    """
    return [_read(path) for path in sorted(FOLDER.glob("*.patch"))]


def _read(path: Path) -> Sabotage:
    head = dict(re.findall(r"^(Control|Threat|Red): (.+)$", path.read_text().split("\n--- ")[0], re.MULTILINE))
    if set(head) != {"Control", "Threat", "Red"}:
        raise SabotageError(f"{path.name}: begins with the lines Control:, Threat: and Red:")
    return Sabotage(path, head["Control"], head["Threat"], head["Red"].split())


def copy_sources(target: Path) -> Path:
    """Copy what git tracks or would, with the changes that are not committed yet."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in names.splitlines():
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target


def apply(sabotage: Sabotage, folder: Path, *, check_only: bool = False, undo: bool = False) -> None:
    """Apply a patch to a copy of the sources.

    Raises:
        SabotageError: it does not apply.
    """
    options = [*(["--check"] if check_only else []), *(["--reverse"] if undo else [])]
    # an empty GIT_DIR: the copy may lie within some repository
    command = ["git", "apply", *options, str(sabotage.path)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=os.environ | {"GIT_DIR": os.devnull})
    if done.returncode:
        raise SabotageError(f"{sabotage.path.name} does not apply any more: {done.stderr.strip()}")


def run(sabotage: Sabotage, folder: Path, *, others: bool = True) -> Outcome:
    """Undo a control in a copy of the sources, run its tests there, and restore it.

    Args:
        sabotage: what is undone.
        folder: the copy.
        others: whether the other tests of the same files run as well.

    Raises:
        SabotageError: the patch does not apply, a named test did not run, or the tests did not end.
    """
    apply(sabotage, folder)
    try:
        chosen = sorted({test.partition("::")[0] for test in sabotage.red}) if others else sabotage.red
        command = [sys.executable, "-m", "pytest", "-q", "-rA", "--no-header", "--tb=no", "--show-capture=no", *chosen]
        command += ["-m", "not heavy and not gpu"]
        if not any("postgresql" in test for test in sabotage.red):
            command += ["-k", "not postgresql"]
        environment = os.environ | {"PYTHONPATH": str(folder)}
        for name in [name for name in environment if name.startswith("PYTEST_")]:
            del environment[name]
        said = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, env=environment, check=False, timeout=TIMEOUT
        ).stdout
    except subprocess.TimeoutExpired as exc:
        raise SabotageError(f"{sabotage.path.name}: tests that had not ended after {TIMEOUT} s") from exc
    finally:
        apply(sabotage, folder, undo=True)
    outcomes = {test: word for word, test in _OUTCOME.findall(said)}
    failed = {test for test, word in outcomes.items() if word != "PASSED"}
    named = {test: [seen for seen in outcomes if seen == test or seen.split("[")[0] == test] for test in sabotage.red}
    if silent := [test for test, seen in named.items() if not seen]:
        raise SabotageError(f"{sabotage.path.name}: {', '.join(silent)} did not run:\n{said[-2000:]}")
    passed = [test for test, seen in named.items() if not failed & set(seen)]
    return Outcome(sabotage, passed, sorted(failed - {one for seen in named.values() for one in seen}))
