"""One trace from a request to the network and to the job, without a name in it; who collects them, slows nobody."""

import builtins
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from app.http import observability
from app.main import create_app
from app.settings import Settings, collector_variable
from tests.app.test_imports import packed
from tests.support.collector import Collector, KeptSpan, collecting
from tests.support.process import Installation, free_port
from tests.support.service import cell_png
from tests.support.waiting import patient, wait_until

#: Names that nobody may read in a trace.
CANARY = "canary-of-a-patient"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
FROM_OUTSIDE = {
    "traceparent": f"00-{TRACE}-{PARENT}-01",
    "tracestate": f"vendor={CANARY}",
    "baggage": f"patient={CANARY}",
}


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as made:
        yield made


def ask(made: Installation, method: str, path: str, **more: Any) -> httpx2.Response:
    headers = {"Authorization": f"Bearer {made.keys['lead']}", "Idempotency-Key": path, **more.pop("headers", {})}
    return httpx2.request(method, made.address + path, headers=headers, timeout=patient(30), **more)


def image(name: str = "cell.png") -> dict[str, tuple[str, bytes, str]]:
    return {"image": (name, cell_png(), "image/png")}


def traced(folder: Path, release: Path, collector: Collector, **variables: str) -> Installation:
    folder.mkdir(exist_ok=True)
    made = Installation(folder / "home")
    made.environment |= collector.variables | variables
    made.keys = made.prepare(release, lead="admin", program="service")
    return made


def one(collector: Collector, name: str, trace: str | None = None) -> KeptSpan:
    """The only span of a name, once it has arrived."""

    def found() -> list[KeptSpan]:
        return [span for span in collector.named(name) if trace in {None, span.trace_id}]

    wait_until(lambda: found() != [], what=lambda: f"no {name} among {[span.name for span in collector.spans]}")
    (span,) = found()
    return span


@pytest.mark.slow
def test_request_and_job_are_one_trace(
    database_url: str, tmp_path: Path, small_release: Path, collector: Collector
) -> None:
    made = traced(tmp_path, small_release, collector, SECONDREAD_DATABASE_URL=database_url)
    with made:
        made.start()
        if database_url.startswith("postgresql"):
            made.spawn("worker")
        fields = {"external_id": f"{CANARY}-1", "patient": CANARY, "site": CANARY}
        answer = ask(made, "POST", "/v1/cases", data=fields, files=image(f"{CANARY}.png"), headers=FROM_OUTSIDE)
        assert answer.status_code == 201, answer.text
        request_span = one(collector, "POST /v1/cases")
        inference, network = one(collector, "inference"), one(collector, "network")
        assert {request_span.trace_id, inference.trace_id, network.trace_id} == {TRACE}
        chain = [request_span.parent_id, inference.parent_id, network.parent_id]
        assert chain == [PARENT, request_span.span_id, inference.span_id]
        manifest = f"external_id,file,patient\n{CANARY}-2,{CANARY}.png,{CANARY}\n"
        archive = packed({"manifest.csv": manifest.encode(), f"{CANARY}.png": cell_png(1)})
        asked = ask(made, "POST", "/v1/imports", content=archive, headers={"Content-Type": "application/zip"})
        assert asked.status_code == 202, asked.text
        import_span, job = one(collector, "POST /v1/imports"), one(collector, "job import")
        assert (job.trace_id, job.parent_id) == (import_span.trace_id, import_span.span_id)
        assert import_span.trace_id != TRACE
        assert job.attributes == {"secondread.job": asked.json()["id"]}
        assert {request_span.process, job.process} == {"secondread-serve", "secondread-worker"}
        inside = one(collector, "inference", import_span.trace_id)
        assert (inside.process, inside.parent_id) == ("secondread-worker", job.span_id)
        _read_what_names_it(made, answer.json()["id"])
        wait_until(lambda: collector.named("GET unmatched") != [])
    _nothing_names_anybody(collector, answer.json()["id"])


def _read_what_names_it(made: Installation, case_id: str) -> None:
    """Requests whose paths, parameters or refusals have the names in them."""
    assert ask(made, "GET", f"/v1/cases?external_id={CANARY}-1").status_code == 200
    assert ask(made, "GET", f"/v1/cases/{case_id}").status_code == 200
    assert ask(made, "POST", "/v1/cases", data={"external_id": CANARY, CANARY: CANARY}).status_code == 422
    assert ask(made, "GET", f"/{CANARY}").status_code == 404
    assert ask(made, "GET", "/healthz").status_code == 200


def _nothing_names_anybody(collector: Collector, case_id: str) -> None:
    everything = b"".join(collector.bodies)
    for name in (CANARY, case_id, "basophil", "class-0"):
        assert name.encode() not in everything
    allowed = {"http.request.method", "http.route", "http.response.status_code", "secondread.request_id", "error.type"}
    allowed |= {"secondread.job", "secondread.release", "secondread.images"}
    assert {key for span in collector.spans for key in span.attributes} <= allowed
    assert one(collector, "GET /v1/cases/{case_id}").attributes["http.route"] == "/v1/cases/{case_id}"
    assert not [span for span in collector.spans if "healthz" in span.name or "readyz" in span.name]


@pytest.mark.slow
def test_a_trace_goes_on_in_an_inference_backend(tmp_path: Path, small_release: Path, collector: Collector) -> None:
    backend = traced(tmp_path / "backend", small_release, collector, OTEL_SERVICE_NAME="behind")
    with backend:
        backend.start()
        behind = {"SECONDREAD_INFERENCE_URL": backend.address, "SECONDREAD_INFERENCE_TOKEN": backend.keys["program"]}
        names = {"OTEL_SERVICE_NAME": "before", "SECONDREAD_WORKER": "false"}
        front = traced(tmp_path / "front", small_release, collector, **names, **behind)
        with front:
            front.start()
            assert ask(front, "POST", "/v1/predictions", files=image(), headers=FROM_OUTSIDE).status_code == 200
            call = one(collector, "inference backend", TRACE)
            served = one(collector, "POST /v2/models/{model}/infer", TRACE)
            assert (call.process, served.process) == ("before", "behind")
            assert (call.trace_id, served.trace_id, served.parent_id) == (TRACE, TRACE, call.span_id)
            there = {("behind", TRACE)}
            wait_until(lambda: there <= {(span.process, span.trace_id) for span in collector.named("network")})


@pytest.mark.slow
@pytest.mark.parametrize("trouble", ["nobody listens", "it never answers"])
def test_a_collector_may_be_away(trouble: str, tmp_path: Path, tiny_release: Path, collector: Collector) -> None:
    """Forty requests and the end of the process, with a queue of four spans: sooner than one export would give up."""
    collector.held.set()
    made = traced(tmp_path, tiny_release, collector, OTEL_BSP_MAX_QUEUE_SIZE="4", OTEL_BSP_MAX_EXPORT_BATCH_SIZE="2")
    if trouble == "nobody listens":
        made.environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{free_port()}"
    made.environment |= {"OTEL_EXPORTER_OTLP_TIMEOUT": "100000", "SECONDREAD_WORKER": "false"}
    with made:
        made.start()
        started = time.monotonic()
        assert {ask(made, "POST", "/v1/predictions", files=image()).status_code for _ in range(40)} == {200}
        made.stop()
        assert time.monotonic() - started < 100  # what waiting for one export would take
        if trouble == "nobody listens":
            assert (tmp_path / "server.log").read_text().count("traces are not delivered") == 1
    assert collector.spans == []


@pytest.mark.slow
def test_nothing_of_it_is_imported_where_nobody_collects(tmp_path: Path) -> None:
    code = (
        "import sys; from app.main import create_app; from app.http import observability as o; import app.worker\n"
        "from app.settings import Settings, collector_variable; from pathlib import Path\n"
        f"o.start_tracing('serve', collector_variable()); create_app(Settings(home=Path({str(tmp_path)!r})))\n"
        "with o.record_span('anything'): assert o.get_trace_headers() == {}\n"
        "print([name for name in sys.modules if name.startswith(('opentelemetry.sdk', 'opentelemetry.exporter'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"}, "OTEL_EXPORTER_OTLP_ENDPOINT: must be an address such as"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_PROTOCOL: only http/protobuf is supported"),
    ],
)
def test_wrong_settings_stop_it(variables: dict[str, str], said: str, tmp_path: Path, collector: Collector) -> None:
    made = Installation(tmp_path / "home")
    made.environment |= collector.variables | variables
    for command in ("serve", "worker"):
        done = made.run(command, check=False)
        assert done.returncode == 1
        assert said in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_an_address_without_the_extra_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., Any] = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("opentelemetry.exporter"):
            raise ModuleNotFoundError(name)
        return real(name, *rest, **more)

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ValueError, match="OTEL_EXPORTER_OTLP_ENDPOINT is set, and traces need the extra otel: pip"):
        observability.start_tracing("serve", collector_variable())
    for name, value in (("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(name, value)
            observability.start_tracing("serve", collector_variable())
            assert not observability.is_tracing_on()


def test_the_framework_records_nothing_by_itself(tmp_path: Path) -> None:
    """Its spans would have paths and parameters, whoever configures a provider for the whole process."""
    app = create_app(Settings(home=tmp_path))
    recorded = ("tracing", "metrics", "logs", "operation_spans", "auto_configure")
    assert {name: app._telemetry[name] for name in recorded} == dict.fromkeys(recorded, False)  # type: ignore[attr-defined]
