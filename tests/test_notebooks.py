"""The notebooks of the documentation run from scratch, and their stored outputs are those of the present code.

``python -m tests.test_notebooks`` runs them again and stores the outputs.
"""

import os
import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.test_style import LIMIT, find_hits, keep_prose
from tools.notebook_pages import render_notebook

ROOT = Path(__file__).parent.parent
NAMES = ("audit-a-model", "blinded-reads-by-rest", "calibrate-your-own")
NOTEBOOKS = [ROOT / "docs" / "notebooks" / f"{name}.ipynb" for name in NAMES]
#: All that a notebook keeps of the machine that ran it.
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
#: By how much a number may differ on another machine.
TOLERANCE = 0.02
_NUMBER = re.compile(r"-?\d+\.\d+")


def run(path: Path, folder: Path) -> nbformat.NotebookNode:
    """A notebook with the outputs of a run in an empty HOME."""
    notebook = nbformat.read(path, as_version=4)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SECONDREAD_")}
    environment |= {"HOME": str(folder), "TMPDIR": str(folder), "PYTHONPATH": str(ROOT)}
    environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    resources = {"metadata": {"path": str(folder)}}
    client = NotebookClient(notebook, timeout=600, record_timing=False, coalesce_streams=True, resources=resources)
    client.execute(env=environment)
    notebook.metadata = METADATA
    for output in (output for cell in notebook.cells for output in cell.get("outputs", [])):
        output.get("data", {}).pop("image/jpeg", None)  # Pillow shows a picture as PNG too
    return notebook


def printed(output: dict[str, Any]) -> str:
    """The text of an output; of a picture, its kinds."""
    if output["output_type"] == "stream":
        return f"{output['name']}: {output['text']}"
    data = output["data"]
    return " ".join(sorted(data)) if any(kind.startswith("image/") for kind in data) else data["text/plain"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_short_and_keeps_nothing_of_the_machine_that_ran_it(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert len(notebook.cells) <= 25
    assert path.stat().st_size <= 300_000
    prose = keep_prose("\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown"))
    n_words = len(re.findall(r"[A-Za-z']+", prose))
    assert n_words <= 400
    assert len(find_hits(prose)) <= max(2, LIMIT * n_words // 1000), find_hits(prose)
    assert notebook.metadata == METADATA
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert [cell.id for cell in notebook.cells if cell.metadata] == []
    outputs = [printed(output) for cell in code for output in cell.outputs]
    machine = re.compile(r"/(?:home|root|tmp|work|usr)/|127\.0\.0\.1|\x1b|\d\d:\d\d:\d\d|sr_\w+|Warning")
    assert [text for text in outputs if machine.search(text)] == []
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", "\n".join(cell.source for cell in notebook.cells))
    assert [target for target in targets if not (path.parent / target).exists()] == []
    page = render_notebook(notebook)
    assert [cell.id for cell in notebook.cells if cell.source not in page] == []
    assert page.count("<img ") == sum("image/" in text for text in outputs)


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_gives_its_stored_outputs_again(path: Path, tmp_path: Path) -> None:
    stored = nbformat.read(path, as_version=4).cells
    for cell, now in zip(stored, run(path, tmp_path).cells, strict=True):
        shown, seen = ("\n".join(map(printed, each.get("outputs", []))) for each in (cell, now))
        assert _NUMBER.sub("#", seen) == _NUMBER.sub("#", shown), cell.source
        for number, other in zip(_NUMBER.findall(seen), _NUMBER.findall(shown), strict=True):
            assert float(number) == pytest.approx(float(other), abs=TOLERANCE), f"{cell.source}\n{seen}"


def main() -> None:
    """Run every notebook, and store it with its outputs."""
    for path in NOTEBOOKS:
        with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            nbformat.write(run(path, Path(folder)), path)


if __name__ == "__main__":
    main()
