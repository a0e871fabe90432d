"""Code blocks of the documentation, run as a reader would run them.

    pytest -n0 "tests/test_docs.py::test_the_blocks_of_a_page_run[lead/recalibrate.md]"

Blocks of ``sh`` and ``python`` run in order, all of one language in one terminal, so a variable of one block is there
in the next. The working folder is that of a newcomer: the demo in ``.secondread``, ``docs``, an active ``.venv``, and
``mycells`` with images labelled twice. A page that names ``http://127.0.0.1:8000`` has a server there. A block of
``json`` shows a part of the answer before it. A block below the line "`labels.csv`:" is that file. The line above a
block may be ``<!-- not run: REASON -->`` or ``<!-- run with: OLD -> NEW -->``, which makes the block smaller.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from ml.datasets.cells import simulate_cells
from tests.support.process import Installation
from tests.support.waiting import patient

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
#: Where the documentation has a server.
ADDRESS = "127.0.0.1:8000"
_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE
)
_MARK = re.compile(r"<!-- (not run|run with): (.+) -->\s*\Z")
_FILE = re.compile(r"(?:^|\n)`([\w.-]+\.\w+)`:\s*\Z")
_DONE = "--- the block ran ---"
#: Terminals: each reads paths of blocks, runs them one after the other, and ends at the first that fails.
TERMINALS = {
    "sh": [
        "bash",
        "-euo",
        "pipefail",
        "-c",
        f'while read -r block; do . "$block" </dev/null; echo; echo "{_DONE}"; done',
    ],
    "python": [
        sys.executable,
        "-c",
        "import sys\nnames = {'__name__': '__main__'}\nfor line in sys.stdin:\n"
        "    exec(compile(open(line.strip()).read(), line.strip(), 'exec'), names)\n"
        f"    print('\\n{_DONE}', flush=True)",
    ],
}


@dataclass(frozen=True)
class Block:
    """A fenced block of a document."""

    where: str
    language: str
    text: str
    reason: str | None
    smaller: tuple[str, str] | None
    file: str | None = None

    @property
    def script(self) -> str:
        """Its code as a test runs it."""
        if self.smaller is None:
            return self.text
        old, new = self.smaller
        assert old in self.text, f"{self.where}: {old!r} is not in the block"
        return self.text.replace(old, new)


def read_blocks(document: Path) -> list[Block]:
    """Fenced blocks of a document, each with the marker directly above it."""
    text = document.read_text()
    blocks = []
    for match in _FENCE.finditer(text):
        mark = _MARK.search(text[: match.start()])
        kind, words = (mark[1], mark[2]) if mark else ("", "")
        body = re.sub(f"^{match['indent']}", "", match["text"], flags=re.MULTILINE)
        old, _, new = words.partition(" -> ")
        smaller = (old, new) if kind == "run with" else None
        line = text[: match.start()].count("\n") + 1
        where = f"{document.relative_to(ROOT)}:{line}"
        reason = words if kind == "not run" else None
        file = _FILE.search(text[: match.start()])
        blocks.append(Block(where, match["language"], body, reason, smaller, file[1] if file else None))
    return blocks


class Terminal:
    """A shell or a Python that runs blocks one after the other."""

    def __init__(self, language: str, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder, self.errors = folder, folder.parent / f"{language}.err"
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                TERMINALS[language],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=folder,
                env=environment,
                start_new_session=True,
            )

    def run(self, block: Block, script: str) -> str:
        """Standard output of a block; an AssertionError if it fails or takes five minutes."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        file = self.errors.with_suffix(".block")
        file.write_text(script)
        deadline = threading.Timer(patient(300), self.close)
        deadline.start()
        try:
            self.process.stdin.write(f"{file}\n")
            self.process.stdin.flush()
            lines = []
            for line in self.process.stdout:
                if line == f"{_DONE}\n":
                    return "".join(lines).removesuffix("\n")
                lines.append(line)
        finally:
            deadline.cancel()  # else a test that fails waits for it before it ends
        raise AssertionError(f"{block.where}\n{script}\n{''.join(lines)}\n{self.errors.read_text()[-6000:]}")

    def close(self) -> None:
        """End it with all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # a shell that failed leaves what it started in the background
        self.process.communicate()


def make_newcomer(folder: Path) -> None:
    """The project folder of a newcomer after `make run`."""
    folder.mkdir()
    (folder / "docs").symlink_to(DOCS)
    (folder / ".venv").symlink_to(sys.prefix)
    Installation(folder / ".secondread").run("demo")
    (folder / "mycells" / "images").mkdir(parents=True)
    rows = ["case_id,annotator,label,patient"]
    for number, cell in enumerate(simulate_cells(160, seed=3)):
        Image.fromarray(cell.pixels).save(folder / "mycells" / "images" / f"cell-{number}.png")
        order = cell.true_probs.argsort()
        for who, k in (("a", order[-1]), ("b", order[-1] if number % 3 else order[-2])):
            rows.append(f"cell-{number},{who},{'granulocyte' if k > 2 else 'other'},p{number // 2}")
    (folder / "mycells" / "labels.csv").write_text("\n".join(rows) + "\n")


def run_page(page: Path, newcomer: Path, folder: Path) -> str:
    """Run the blocks of a page in a copy of a newcomer's folder; gives all that they printed."""
    blocks = [block for block in read_blocks(page) if block.reason is None]
    here = Path(shutil.copytree(newcomer, folder / "newcomer", symlinks=True))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SECONDREAD_")}
    environment |= {"HOME": str(folder), "PATH": path}
    terminals: dict[str, Terminal] = {}
    answers = [""]
    with Installation(here / ".secondread") as installation:
        if any(ADDRESS in block.text for block in blocks):
            installation.start()
        try:
            for block in blocks:
                if block.file is not None:
                    (here / block.file).write_text(block.text)
                elif block.language == "json":
                    assert_contains(json.loads(answers[-1]), json.loads(block.text))
                elif block.language in TERMINALS:
                    if block.language not in terminals:
                        terminals[block.language] = Terminal(block.language, here, environment)
                    script = block.script.replace(ADDRESS, f"127.0.0.1:{installation.port}")
                    answers.append(terminals[block.language].run(block, script))
        finally:
            for terminal in terminals.values():
                terminal.close()
    return "\n".join(answers)


def assert_contains(answer: Any, shown: Any, digits: int = 3) -> None:
    """Compare what a document shows of an answer, rounded, with the answer."""
    if isinstance(shown, dict):
        for name, value in shown.items():
            assert_contains(answer[name], value, digits)
    elif isinstance(shown, list):
        for one, other in zip(answer, shown, strict=True):
            assert_contains(one, other, digits)
    else:
        assert (round(answer, digits) if isinstance(shown, float) else answer) == shown
