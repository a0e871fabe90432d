"""The files that one label enters are few enough for an engineer to read in order."""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

from tests.support.service import Service, cell_png

_APP = f"{Path(__file__).parents[2] / 'app'}/"
_MOST_FILES = 25


class _EnteredFiles:
    """Files of the service whose functions are called while it is on, in every thread that begins after it."""

    def __init__(self) -> None:
        self.on, self.names = False, set[str]()

    def note(self, frame: FrameType, event: str, _: object) -> None:
        if self.on and event == "call" and frame.f_code.co_filename.startswith(_APP):
            self.names.add(frame.f_code.co_filename.removeprefix(_APP))


@pytest.fixture
def entered() -> Iterator[_EnteredFiles]:
    files = _EnteredFiles()
    threading.setprofile(files.note)
    yield files
    threading.setprofile(None)
    sys.setprofile(None)


def test_one_label_enters_few_files(entered: _EnteredFiles, service: Service) -> None:
    for number in range(3):
        service.add_case(f"case-{number}", cell_png(number + 1))
    code = service.get("viewer", "/v1/releases").json()["items"][0]["classes"][0]["code"]
    reads = [service.post("anna", "/v1/reads").json() for _ in range(2)]
    statuses = []
    for read in reads:  # the second one, with everything cached
        entered.names.clear()
        sys.setprofile(entered.note)
        entered.on = True
        statuses.append(service.post("anna", f"/v1/reads/{read['id']}/labels", json={"label": code}).status_code)
        entered.on = False
    assert statuses == [201, 201]
    assert "labels/submission.py" in entered.names, "nothing was noted"
    assert len(entered.names) <= _MOST_FILES, sorted(entered.names)
