"""A check that cannot fail is none: each control is undone by a patch, and its test turns red."""

import re
from pathlib import Path

import pytest

from tests.sabotage.patches import ROOT, Sabotage, apply, copy_sources, run, sabotages

EVERY = sabotages()


def test_every_patch_applies_and_names_tests_that_exist() -> None:
    assert len(EVERY) > 15
    for sabotage in EVERY:
        apply(sabotage, ROOT, check_only=True)
        for test in sabotage.red:
            assert exists(test), f"{sabotage.path.name}: {test}"


def exists(test: str) -> bool:
    path, _, name = test.split("[")[0].partition("::")
    return (ROOT / path).is_file() and f"def {name}(" in (ROOT / path).read_text()


def test_the_table_of_threats_names_tests_that_exist_and_every_patch() -> None:
    text = (ROOT / "docs" / "security.md").read_text()
    named = re.findall(r"`(tests/\S+::\w+)`", text)
    assert len(named) > 30
    assert [test for test in named if not exists(test)] == []
    assert [sabotage.name for sabotage in EVERY if f"`{sabotage.name}`" not in text] == []


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project."""
    return copy_sources(tmp_path_factory.mktemp("sabotage"))


@pytest.mark.heavy
@pytest.mark.parametrize("sabotage", EVERY, ids=[sabotage.name for sabotage in EVERY])
def test_a_control_that_is_undone_turns_its_test_red(sources: Path, sabotage: Sabotage) -> None:
    outcome = run(sabotage, sources)
    assert outcome.passed == [], f"{sabotage.control}: nobody noticed"
    assert len(outcome.others) <= 8, outcome.others
