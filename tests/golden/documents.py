"""The documents that others read: OpenAPI, releases, evaluations, the audit page, frozen reports of the service."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from pydantic import SecretStr

from app.audit.installation import claim_database
from app.context import build_context
from app.database.engine import Database
from app.database.migration import upgrade_schema
from app.settings import Settings
from ml.agreement import measure_agreement
from ml.audit.evaluate_findings import audit_findings
from ml.audit.page import FileRecord, ProvenanceRecord, render_audit_page
from ml.tables.matching import EvaluationOptions
from tests.golden.releases import CLASSES, SIDE, write_full_release, write_plain_release, write_served_release
from tests.golden.worlds import WORLDS, World, uniforms, write_csv
from tests.support.command import run_here
from tests.support.homes import process
from tests.support.images import encode
from tests.support.jobs import work_off
from tests.support.service import KEY, Service, add_people, put_release, store
from tools.openapi_files import openapi

#: When everything happens.
AT = datetime(2026, 3, 18, 9, 30, tzinfo=UTC)
_N_CASES = 36


def without_version(document: dict[str, Any]) -> dict[str, Any]:
    """An OpenAPI document that does not say which version it is of."""
    info = {name: value for name, value in document["info"].items() if name != "version"}
    return document | {"info": info}


def without_drawings(text: str) -> str:
    """A page without what the library for charts drew."""
    return re.sub(r"<svg.*?</svg>", "<svg/>", text, flags=re.DOTALL)


def without_ids(text: str) -> str:
    """A text with numbers for identifiers and digests, by their first appearance."""
    known: dict[str, str] = {}

    def number(match: re.Match[str]) -> str:
        return known.setdefault(match.group(), f"identifier-{len(known) + 1}")

    return re.sub(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b[0-9a-f]{64}\b", number, text)


def _json(document: Any) -> bytes:
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()


def openapi_documents(_folder: Path) -> Iterator[tuple[str, bytes]]:
    """The service's description of itself."""
    yield "openapi.json", _json(without_version(openapi()))


def release_documents(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Every file of the releases, but for what stands for a network."""
    for kind, write in (("full", write_full_release), ("plain", write_plain_release)):
        release = write(folder / kind)
        for path in sorted(release.iterdir()):
            if path.name != "network.onnx":
                yield f"{kind}/{path.name}", path.read_bytes()


def evaluation_documents(folder: Path) -> Iterator[tuple[str, bytes]]:
    """What the commands say of tables, and the page of an audit."""
    worlds = {world.name: world for world in WORLDS}
    for name in ("patients_in_few_bins", "weights_paper_form"):
        yield f"{name}.json", _command("evaluate", worlds[name], folder)
    compared = worlds["patients_in_few_bins"]
    rival = write_csv(compared.predictions_table(rival=True), folder / "rival.csv")
    grades = worlds["grades_of_patients"]
    yield "grades.json", _command("evaluate", grades, folder, "--level", "ordinal")
    yield "stream.json", _command("evaluate", worlds["patients"], folder, "--stream")
    yield "agreement.json", _json(measure_agreement(compared.labels_table, cluster="patient").to_dict())
    labels, predictions = _tables(compared, folder)
    answers = audit_findings(labels, predictions, EvaluationOptions(compared.n_bins, cluster="patient"), rival)
    files = [
        FileRecord("LABELS", "labels.csv", 1234, "0123456789abcdef" * 4),
        FileRecord("PREDICTIONS", "predictions.csv", 4321, "fedcba9876543210" * 4),
    ]
    record = ProvenanceRecord(tuple(files), "secondread audit", AT, {"secondread": "any"})
    yield "audit.html", without_drawings(render_audit_page(answers, record)).encode()


def _tables(world: World, folder: Path) -> tuple[Path, Path]:
    labels = write_csv(world.labels_table, folder / f"{world.name}_labels.csv")
    return labels, write_csv(world.predictions_table(), folder / f"{world.name}_predictions.csv")


def _command(name: str, world: World, folder: Path, *options: str) -> bytes:
    labels, predictions = _tables(world, folder)
    asked = [*options, "--json", "--n-bins", str(world.n_bins), "--debias", world.debias]
    asked += [part for key, column in world.columns.items() if column for part in (f"--{key}", column)]
    done = run_here(name, "--labels", labels, "--predictions", predictions, *asked)
    assert done.returncode == 0, done.stderr
    return done.stdout.encode()


@contextmanager
def clock_stands() -> Iterator[None]:
    """The service's clock shows one moment."""

    class Standing(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return AT.astimezone(tz)

    with patch("app.database.tables.base.datetime", Standing):
        yield


@contextmanager
def seeded_service(folder: Path) -> Iterator[Service]:
    """A service with a release and cases that up to three outside annotators have labelled."""
    url = f"sqlite:///{folder / 'service.db'}"
    settings = Settings(
        home=folder / "home",
        database_url=url,
        allowed_hosts=["testserver"],
        min_free_bytes=0,
        secret_key=SecretStr(KEY),
    )
    settings.home.mkdir()
    database = Database(url)
    upgrade_schema(database.engine)
    database.engine.dispose()
    context = build_context(settings)
    claim_database(context.database, context.keys.audit)
    release = write_served_release(folder / "served")
    with context.database.write() as session:
        put_release(session, context.keys.audit, release, settings.releases_folder)
    keys = add_people(context)
    context.database.engine.dispose()
    with process(settings, keys) as service:
        pixels = np.floor(256 * uniforms(31, _N_CASES, SIDE, SIDE, 3)).astype(np.uint8)
        chosen = np.floor(len(CLASSES) * uniforms(32, _N_CASES, 3)).astype(int)
        for number, image in enumerate(pixels):
            labels = {f"r{reader}": int(chosen[number, reader]) for reader in range(number % 4)}
            fields = {"patient": f"p{number // 3}", "site": f"site {number % 2}"}
            store(service, f"case-{number:02}", encode(image), labels, **fields)
        yield service


def service_documents(folder: Path) -> Iterator[tuple[str, bytes]]:
    """A frozen evaluation: its document, its report as a page and as a table."""
    with clock_stands(), seeded_service(folder) as service:
        asked = service.post("admin", "/v1/evaluations", json={"partition": "all", "weighting": "none"}).json()
        work_off(service.context)
        for kind, accepted in (("json", "application/json"), ("html", "text/html"), ("csv", "text/csv")):
            found = service.get("viewer", f"/v1/evaluations/{asked['id']}", headers={"Accept": accepted})
            assert found.status_code == 200, found.text
            text = json.dumps(found.json(), indent=1, ensure_ascii=False) if kind == "json" else found.text
            yield f"evaluation.{kind}", without_ids(text).encode()


#: Documents by the folder that they lie in; each is given an empty folder to work in.
GROUPS: dict[str, Callable[[Path], Iterator[tuple[str, bytes]]]] = {
    "openapi": openapi_documents,
    "releases": release_documents,
    "evaluations": evaluation_documents,
    "service": service_documents,
}
