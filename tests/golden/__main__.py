"""Renew the golden files and print what changed; ``tests.golden`` explains when that is legitimate."""

from pathlib import Path
from tempfile import TemporaryDirectory

from tests.golden.comparing import Difference, listed, renew_documents, renew_numbers
from tests.golden.documents import GROUPS
from tests.golden.numbers import numbers_of
from tests.golden.worlds import WORLDS


def main() -> None:
    """Renew every file whose content differs."""
    for world in WORLDS:
        _show(world.name, renew_numbers(world, numbers_of(world)))
    for group, make in GROUPS.items():
        with TemporaryDirectory() as folder:
            _show(group, renew_documents(group, dict(make(Path(folder)))))


def _show(name: str, found: list[Difference]) -> None:
    if found:
        print(f"{name}: {len(found)} differences\n{listed(found)}")


if __name__ == "__main__":
    main()
