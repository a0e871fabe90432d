"""Sabotage: a control of the service is undone while its test runs, and the test must fail (``pytest --sabotage``)."""

from collections.abc import Generator
from typing import Any

import pytest

_FAILED: pytest.StashKey[set[Any]] = pytest.StashKey()


def undone(threat: str, control: str, target: object, name: str, instead: object) -> pytest.MarkDecorator:
    """Mark the test of a control with the way to undo it.

    Args:
        threat: its number among the threats and faults of docs/security.md.
        control: the promise that is then broken.
        target: module or class that has what enforces it.
        name: its attribute, replaced while the test is called; fixtures are made before.
        instead: what lets everything pass.
    """
    return pytest.mark.sabotage(threat, control, target, name, instead)


def keep_marked(items: list[pytest.Item]) -> None:
    items[:] = [item for item in items if item.get_closest_marker("sabotage")]


def call_undone(item: pytest.Function) -> Generator[None, Any, Any]:
    """Call a test without its control; of a test with parameters one set must fail, not each."""
    mark = item.get_closest_marker("sabotage")
    assert mark is not None
    threat, control, target, name, instead = mark.args
    failed = item.session.stash.setdefault(_FAILED, set())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, name, instead)  # a name that is gone is an error
        try:
            yield
        except (Exception, pytest.fail.Exception):
            failed.add(item.function)
    last = [other for other in item.session.items if getattr(other, "function", None) == item.function][-1]
    if item is last and item.function not in failed:
        pytest.fail(f"{threat}: {control}: undone, and the test passed")
    return True
