"""Numbers and documents are those of the golden files.

A change of structure changes no number and no document, so it passes here as it is. See ``tests.golden`` for when
the files may be renewed.
"""

from pathlib import Path

import pytest

from tests.golden.comparing import (
    HOW_TO_RENEW,
    Difference,
    compare_documents,
    compare_numbers,
    differences,
    differing_json,
    differing_texts,
    listed,
    same,
)
from tests.golden.documents import GROUPS
from tests.golden.numbers import numbers_of
from tests.golden.worlds import WORLDS, World


def _same(what: str, found: list[Difference]) -> None:
    if found:
        pytest.fail(f"{what} has {len(found)} differences\n{listed(found)}\n{HOW_TO_RENEW}", pytrace=False)


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_every_number_of_a_world_is_as_it_was(world: World) -> None:
    _same(f"world {world.name}", compare_numbers(world, numbers_of(world)))


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("group", GROUPS)
def test_every_document_is_as_it_was(group: str, tmp_path: Path) -> None:
    _same(f"the folder documents/{group}", compare_documents(group, dict(GROUPS[group](tmp_path))))


def test_numbers_are_compared_up_to_rounding_and_anything_else_entirely() -> None:
    assert same("evaluate/L", 0.25, 0.25 * (1 + 1e-13))
    assert not same("evaluate/L", 0.25, 0.25 * (1 + 1e-11))
    assert same("fitted/majority", 0.25, 0.25 * (1 + 1e-7))
    assert same("evaluate/L", 0.0, 1e-16)
    assert same("evaluate/L", float("nan"), float("nan"))
    assert not same("evaluate/L", 0.0, float("nan"))
    assert not same("evaluate/n", 3, 4)
    assert not same("evaluate/clipped", True, 1)
    estimate = {"value": 0.5, "low": 0.001, "n": 3}
    assert not differences(estimate, estimate | {"low": 0.001 + 1e-13})
    assert differences(estimate, estimate | {"low": 0.001 + 1e-12, "n": 4}) == [
        ("low", 0.001, 0.001 + 1e-12),
        ("n", 3, 4),
    ]
    assert not differing_texts('"L": 0.12345678901234567', '"L": 0.12345678901234569')
    assert len(differing_texts('"L": 0.12345678901234567', '"L": 0.12345678909234567')) == 1
    assert not differing_texts("L 0.25", "L 0.25000000000000006")
    assert len(differing_texts("0.25 of 3", "0.26 of 3")) == 1
    assert len(differing_texts("one\ntwo", "one")) == 1
    document = '{"value": 0.5, "low": 0.001}'
    assert not differing_json(document, '{"value": 0.5, "low": 0.0010000000000001}')
    assert len(differing_json(document, '{"value": 0.5, "low": 0.0010000001}')) == 1
    assert len(differing_json(document, '{"low": 0.001, "value": 0.5}')) == 1
