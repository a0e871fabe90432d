"""The packaged client against the service: in this process, and against a real server, waiting and awaited."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from secondread.client import ApiError, AsyncClient, Client, models
from tests.support.coroutines import asynchronous
from tests.support.process import Installation
from tests.support.service import Service, cell_png

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "predict.py"


class LosesAnswers(httpx2.BaseTransport):
    """Delivers every request; the answers to the first ones are lost on the way."""

    def __init__(self, inner: httpx2.BaseTransport, lost: int) -> None:
        self.inner, self.lost, self.n_sent = inner, lost, 0

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        answer = self.inner.handle_request(request)
        self.n_sent += 1
        if self.n_sent <= self.lost:
            answer.close()
            raise httpx2.ReadError("the connection broke", request=request)
        return answer


def client_of(service: Service, who: str, lost: int = 0, tries: int = 4) -> Client:
    transport = LosesAnswers(service.client._transport, lost)
    return Client("http://testserver", service.keys[who], transport=transport, tries=tries)


@pytest.fixture(autouse=True)
def _no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secondread.client._core._WAIT", 0.01)


def test_a_request_whose_answers_are_lost_is_stored_once(service: Service) -> None:
    lead = client_of(service, "admin", lost=2)
    case = lead.add_case(cell_png(), external_id="slide-1", patient="p1", metadata={"stain": "Wright"})
    assert [shown.id for shown in client_of(service, "admin").iter_cases()] == [case.id]
    assert case.metadata == {"stain": "Wright"}
    policy = models.PolicyIn(rule="disagreement", threshold=0.2, reason="as agreed")
    n_before = len(lead.list_policies().items)
    client_of(service, "admin", lost=3).add_policy(policy)
    assert len(lead.list_policies().items) == n_before + 1
    one = client_of(service, "admin")
    other = policy.model_copy(update={"threshold": 0.3})
    first, again = (one.add_policy(other, idempotency_key="mine") for _ in range(2))
    assert first == again


def test_what_may_have_happened_is_not_repeated_without_a_key(service: Service) -> None:
    service.add_case()
    reader = client_of(service, "anna")
    read = reader.lease_read()
    assert read is not None
    losing = client_of(service, "anna", lost=1)
    with pytest.raises(httpx2.ReadError):
        losing.release_read(read.id)
    assert reader.list_reads().items == []
    with pytest.raises(httpx2.ReadError):
        client_of(service, "admin", lost=9, tries=2).list_cases()


def test_refusals_say_what_was_wrong(service: Service) -> None:
    lead, reader = client_of(service, "admin"), client_of(service, "anna")
    case = lead.add_case(cell_png(), external_id="slide-1")
    with pytest.raises(ApiError, match="403 forbidden: this needs the scope metrics:read") as refused:
        reader.get_metrics()
    assert (refused.value.status, refused.value.code) == (403, "forbidden")
    with pytest.raises(ApiError, match=r"422 invalid: .*query\.limit: .*less than or equal to 200") as refused:
        lead.list_cases(limit=1000)
    assert [fault.where for fault in refused.value.faults] == [["query", "limit"]]
    with pytest.raises(ApiError, match="404 not-found"):
        lead.get_case("0198a3c0-0000-7000-8000-000000000000")
    with pytest.raises(ApiError, match="409 external-id-taken"):
        lead.add_case(cell_png(1), external_id="slide-1")
    assert lead.get_image(case.id).startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="treshold"):
        models.PolicyIn.model_validate({"treshold": 0.2, "reason": "misspelt"})


@pytest.mark.parametrize("name", ["httpx2", "pydantic"])
def test_without_its_packages_it_says_what_to_install(name: str) -> None:
    code = f"import sys; sys.modules['{name}'] = None; import secondread.client"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    said = f"ImportError: secondread.client needs {name}: pip install 'secondread-cells[client]'"
    assert done.stderr.strip().splitlines()[-1] == said


def answering(*answers: httpx2.Response) -> Client:
    """A client whose requests get these answers in turn, and then the last one again."""
    waiting = list(answers)
    transport = httpx2.MockTransport(lambda _: waiting.pop(0) if len(waiting) > 1 else waiting[0])
    return Client("http://testserver", "key", transport=transport)


def test_what_is_not_the_services_document_is_an_error_of_the_api() -> None:
    page = httpx2.Response(200, html="<h1>Sign in</h1>")
    with pytest.raises(ApiError, match=r"not the document of the service: <h1>Sign in"):
        answering(page).list_cases()
    with pytest.raises(ApiError, match="302"):
        answering(httpx2.Response(302, headers={"Location": "https://login.example"})).list_cases()


def test_pages_end_where_a_cursor_comes_again(service: Service) -> None:
    service.add_case()
    document = service.get("admin", "/v1/cases").json() | {"next_cursor": "again"}
    assert len(list(answering(httpx2.Response(200, json=document)).iter_cases())) == 2


def test_no_proxy_of_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with pytest.raises(httpx2.ConnectError), Client("http://127.0.0.1:1", tries=1) as client:
        client.list_cases()
    assert client._http.trust_env is False


def test_an_answer_with_a_field_of_tomorrow_is_read() -> None:
    found = models.AliasOut.model_validate({"name": "champion", "release": "r", "revision": 3, "since": "2027-01-01"})
    assert found.revision == 3


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory, tiny_release: Path) -> Iterator[Installation]:
    made = Installation(tmp_path_factory.mktemp("client") / "home")
    with made:
        made.keys = made.prepare(tiny_release, lead="admin", anna="annotator", ben="annotator", lis="service")
        made.start()
        yield made


@pytest.mark.slow
def test_from_an_image_to_a_posterior_against_a_server(installation: Installation) -> None:
    with Client(installation.address, installation.keys["lead"]) as lead:
        assert sum(lead.predict(cell_png()).class_probs.values()) == pytest.approx(1)
        ids = [lead.add_case(cell_png(i), external_id=f"north-{i}", site="north").id for i in range(5)]
        assert [case.id for case in lead.iter_cases(limit=2, site="north")] == ids[::-1]
        assert lead.add_case(cell_png(1), external_id="north-1", site="north").id in ids
        with Client(installation.address, installation.keys["anna"]) as anna:
            n_labels = 0
            while (read := anna.lease_read()) is not None:
                assert anna.get_image(read.case_id).startswith(b"\x89PNG")
                stored = anna.commit_read(read.id, models.OwnLabelIn(label=read.classes[0].code, confidence=0.8))
                assert stored.label.label == read.classes[0].code
                n_labels += 1
        assert n_labels >= 5
        assert sum(lead.get_posterior(case_id).n_labels for case_id in ids) >= 5
        assert {entry.annotator for case_id in ids for entry in lead.list_labels(case_id).items} == {"anna"}
        assert lead.get_metrics(partition="all", weighting="none").n_labels == n_labels
        assert lead.readyz().status == "ready"


@pytest.mark.slow
@asynchronous
async def test_the_same_awaited(installation: Installation) -> None:
    async with (
        AsyncClient(installation.address, installation.keys["lead"]) as lead,
        AsyncClient(installation.address, installation.keys["ben"]) as ben,
    ):
        uploads = (lead.add_case(cell_png(10 + i), external_id=f"south-{i}", site="south") for i in range(5))
        ids = {case.id for case in await asyncio.gather(*uploads)}
        assert {case.id async for case in lead.iter_cases(limit=2, site="south")} == ids
        with pytest.raises(ApiError, match="403 forbidden"):
            await ben.get_metrics()
        read = await ben.lease_read()
        assert read is not None
        label = models.OwnLabelIn(label=read.classes[0].code)
        first = await ben.commit_read(read.id, label, idempotency_key="once")
        assert await ben.commit_read(read.id, label, idempotency_key="once") == first


@pytest.mark.slow
def test_the_example_in_the_documents_runs(installation: Installation, tmp_path: Path) -> None:
    (tmp_path / "cell.png").write_bytes(cell_png())
    arguments = [installation.address, installation.keys["lead"]]
    environment = os.environ | {"PYTHONPATH": str(EXAMPLE.parents[2])}
    command = [sys.executable, str(EXAMPLE), *arguments, str(tmp_path / "cell.png")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert "two experts would disagree with probability" in done.stdout
    (tmp_path / "cell.png").write_bytes(b"no picture")
    refused = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (refused.returncode, len(refused.stderr.splitlines())) == (1, 1)
    command[2] = "http://127.0.0.1:1"
    away = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (away.returncode, "does not answer" in away.stderr, len(away.stderr.splitlines())) == (1, True, 1)
