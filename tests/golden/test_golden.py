"""Numbers and documents are those of the golden files.

A change of structure changes no number and no document, so it passes here as it is. See ``tests.golden`` for when
the files may be renewed.
"""

import pytest

from tests.golden.comparing import Difference
from tests.golden.files import HOW_TO_RENEW, compare_document, compare_numbers, listed
from tests.golden.numbers import numbers_of
from tests.golden.worlds import WORLDS, World


def _same(what: str, found: list[Difference]) -> None:
    if found:
        pytest.fail(f"{what} has {len(found)} differences\n{listed(found)}\n{HOW_TO_RENEW}", pytrace=False)


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_every_number_of_a_world_is_as_it_was(world: World) -> None:
    _same(f"world {world.name}", compare_numbers(world, numbers_of(world)))
