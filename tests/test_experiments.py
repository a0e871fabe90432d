"""Every experiment can be started, so that none rots unseen; `make experiments-quick` runs those that are short."""

import importlib
import sys
from pathlib import Path

import pytest

import experiments
from experiments.__main__ import QUICK

NAMES = sorted(path.stem for path in Path(experiments.__file__).parent.glob("*.py") if not path.stem.startswith("__"))


@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_lists_its_options(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"experiments.{name}").main()
    assert ended.value.code == 0
    options = capsys.readouterr().out
    assert options.startswith("usage: ")
    for word in QUICK.get(name, "").split():
        assert not word.startswith("--") or word in options


def test_the_page_of_experiments_lists_each() -> None:
    page = (Path(experiments.__file__).parent / "README.md").read_text()
    assert [name for name in NAMES if f"| `{name}.py` |" not in page] == []
