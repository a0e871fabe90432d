"""The client in docs/examples does what its words say, against the service."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.service import Service, cell_png

PATH = Path(__file__).parents[2] / "docs" / "examples" / "client.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("example_client", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["example_client"] = module
    spec.loader.exec_module(module)
    return module


def test_from_an_image_to_the_metrics(service: Service, example: ModuleType) -> None:
    lead = example.SecondRead(service.client, service.keys["admin"])
    anna = example.SecondRead(service.client, service.keys["anna"])
    assert sum(lead.predict(cell_png()).class_probs.values()) == pytest.approx(1)
    ids = {lead.add_case(f"case-{i}", cell_png(i), patient=f"p{i}") for i in range(3)}
    assert lead.add_case("case-1", cell_png(1)) in ids
    assert {case["id"] for case in lead.cases()} == ids
    read = anna.next_read()
    assert read is not None
    assert anna.image(read.case_id).startswith(b"\x89PNG")
    anna.decline(read, "know_this_case")
    seen = 0
    while (read := anna.next_read()) is not None:
        anna.commit(read, read.classes[0], "by the example")
        seen += 1
        # annotators know cases by names of their own
        assert sum(lead.posterior(case_id).n_labels for case_id in ids) == seen
    assert seen == 2
    assert lead.metrics(partition="all", weighting="none")["n_labels"] == 2
    with pytest.raises(example.ApiError) as refused:
        anna.metrics()
    assert (refused.value.status, refused.value.type) == (403, "urn:secondread:problem:forbidden")
