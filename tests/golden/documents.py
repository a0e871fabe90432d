"""The documents that others read: OpenAPI, releases, evaluations, the audit page, frozen reports of the service."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from pydantic import SecretStr

from app.audit.installation import claim_database
from app.context import build_context
from app.database.engine import Database
from app.database.migration import upgrade_schema
from app.settings import Settings
from ml.agreement import measure_agreement
from ml.audit.evaluate_findings import audit_findings
from ml.audit.page import FileRecord, ProvenanceRecord, render_audit_page
from ml.calibration import Calibration
from ml.images.preprocess import Preprocessing
from ml.metrics import Estimate
from ml.metrics.jackknife import ModelAssisted
from ml.release.artifact import DISTANCE_FILE, HEAD_FILE, write_release
from ml.release.card import CARD_METRICS
from ml.release.dropout_head import DropoutHead, HeadLayer
from ml.release.ood_detector import FeatureDistance
from ml.release.training_index import INDEX_FILE, TrainingIndex
from ml.tables.evaluate import EvaluationOptions
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


SIDE, FEATURES = 8, 6
CLASSES = ("lymphocyte", "monocyte", "blast")
_NO_NETWORK = b"a network that nothing here runs"


def write_full_release(path: Path) -> Path:
    """Write a release with every optional file and key."""
    distance = FeatureDistance(np.arange(FEATURES) / 8, np.eye(FEATURES) * 2, 1.5)
    head = DropoutHead((HeadLayer(*(_float32(13 + n, *shape) for n, shape in enumerate(_HEAD))),))
    training = TrainingIndex.of([bytes([n]) * 32 for n in range(3)], ["network", "network", "calibration"], None)
    files = {
        "network.onnx": _NO_NETWORK,
        DISTANCE_FILE: distance.to_bytes(),
        HEAD_FILE: head.to_bytes(),
        INDEX_FILE: training.to_bytes(),
    }
    card = {**_card("all that a card can have", _NO_NETWORK), **_more(), "training": training.document()}
    return write_release(path, files, Calibration.from_dict(_calibration(refined=True)), card).path


def write_plain_release(path: Path, network: bytes = _NO_NETWORK, **checks: bytes) -> Path:
    """Write a release with the least that a release has."""
    card = _card("the least", network)
    files = {"network.onnx": network, **checks}
    return write_release(path, files, Calibration.from_dict(_calibration(refined=False)), card).path


def write_served_release(path: Path) -> Path:
    """Write the plain release with a network that runs the same on every machine, and a check that flags nothing."""
    check = FeatureDistance(np.zeros(FEATURES), np.eye(FEATURES), 1000.0)
    return write_plain_release(path, network(), **{DISTANCE_FILE: check.to_bytes()})


def network() -> bytes:
    """A network that only picks pixels, and multiplies them by four."""
    picked = np.arange(FEATURES, dtype=np.int64) * 29
    initial = [
        numpy_helper.from_array(picked, "picked"),
        numpy_helper.from_array(np.array([0, 1, 2], dtype=np.int64), "named"),
        numpy_helper.from_array(np.array(4, dtype=np.float32), "four"),
    ]
    nodes = [
        helper.make_node("Flatten", ["image"], ["flat"]),
        helper.make_node("Gather", ["flat", "picked"], ["features"], axis=1),
        helper.make_node("Gather", ["features", "named"], ["first"], axis=1),
        helper.make_node("Mul", ["first", "four"], ["logits"]),
    ]
    shapes = {"image": ["batch", 3, SIDE, SIDE], "logits": ["batch", len(CLASSES)], "features": ["batch", FEATURES]}
    infos = {key: helper.make_tensor_value_info(key, TensorProto.FLOAT, shape) for key, shape in shapes.items()}
    graph = helper.make_graph(nodes, "picking", [infos["image"]], [infos["logits"], infos["features"]], initial)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString(deterministic=True))


_HEAD = ((3, FEATURES), (3,), (2, FEATURES))


def _float32(seed: int, *shape: int) -> np.ndarray[Any, Any]:
    return (uniforms(seed, *shape) - 0.5).astype(np.float32)


def _calibration(*, refined: bool) -> dict[str, Any]:
    scaling = {"method": "temperature", "log_temperature": 0.25, "weight": None, "bias": None}
    weight = [0.5, -0.25, 0.125, 0.75, -0.5, 0.25]
    if not refined:
        return {"version": 1, **scaling, "concentration": {"weight": weight, "bias": 0.5}}
    summaries = {"centre": [0.5, 1.0, 0.75, 0.5], "spread": [1.0, 2.0, 0.5, 1.0]}
    summaries |= {"low": [-2.0, -1.0, -2.0, -1.0], "high": [2.0, 3.0, 1.5, 2.0]}
    return {
        "version": 3,
        **scaling,
        "concentration": {"weight": [*weight, 0.1, -0.05, 0.2, 0.15], "bias": 0.5},
        "constant_disagreement": None,
        "refinement": {
            "summaries": summaries,
            "temperature_weight": [0.05, -0.02, 0.04, 0.01],
            "disagreement_map": {"kind": "beta", "low": 0.9, "high": 1.1, "offset": -0.05},
        },
    }


def _estimate(number: int, *, whole: bool = False) -> Any:
    """Estimates that nothing was estimated for, with an exact value each."""
    value = number / 64 - 0.0625
    if not whole:
        return Estimate(value, None, None, None, n=number, dropped=0, ess=float(number)).to_dict()
    assisted = ModelAssisted(value, 0.0078125, value - 0.015625, value + 0.015625)
    new = {"low_new": value - 0.0625, "high_new": value + 0.0625}
    ends = (value, 0.015625, value - 0.03125, value + 0.03125)
    rest = {"clipped": True, "singleton_mass": 0.125, "horvitz_thompson": value + 0.25, "largest_weight": 3.5}
    return Estimate(*ends, n=90, dropped=10, ess=80.5, model_assisted=assisted, **new, **rest).to_dict()


def _estimates(names: tuple[str, ...], *, whole: bool) -> dict[str, Any]:
    return {name: _estimate(number, whole=whole) for number, name in enumerate(names, start=1)}


def _card(name: str, network: bytes) -> Any:
    return {
        "name": name,
        "classes": [{"code": code, "name": code.title(), "shortcut": code[0]} for code in CLASSES],
        "preprocessing": Preprocessing(3, None, SIDE, (0.0,) * 3, (1.0,) * 3).to_dict(),
        "network": "picked pixels",
        "seed": 5,
        "data": {
            "name": "cells",
            "source": "no cells",
            "partitions": {"train": 1200, "test": 60},
            "split_by": "case",
            "class_counts": {"train": [500, 400, 300], "test": [20, 25, 15]},
            "annotators": None,
        },
        "licence": "Apache-2.0",
        "calibration": {"n_fit": 48, "n_cv": 12},
        "disagreement_calibrated": True,
        "held_out": {"with concentration head": _estimates(CARD_METRICS, whole=False)},
        "n_held_out": 60,
        "measured_network_sha256": hashlib.sha256(network).hexdigest(),
        "parity": None,
        "versions": {},
        "limits_of_use": ["For tests.", "For nothing else."],
    }


def _more() -> dict[str, Any]:
    """What a card may have beside."""
    source = {"name": "another", "card_sha256": "0123456789abcdef" * 4}
    losses = ("L", "L_D", "agreement")
    recall = [{"class": code, "recall": 0.75, "n_cells": 20, "n_labels": 41} for code in CLASSES]
    recall[1]["recall"] = None
    steps = ("network", "with temperature", "with concentration head")
    shift = {"kind": "defocus", "strength": "mild", "n": 60, "flagged": 0.125, "mean_disagreement": 0.25}
    measured = {"agreement": 0.75, "agreement_change": -0.0625, "agreement_change_se": 0.03125, "loss": 0.375}
    return {
        "orientation": "any",
        "processes": [
            {"processes": 2, "batch_norm": "per-process", "epochs": 3},
            {"processes": 1, "batch_norm": None, "epochs": 2},
        ],
        "data": {
            "name": "cells",
            "source": "no cells",
            "partitions": {"train": 1200, "valid": 100, "calibration": 120, "test": 60},
            "split_by": "patient",
            "class_counts": {"train": [400, 500, 300], "calibration": [40, 50, 30], "test": [20, 20, 20]},
            "annotators": ["anna", "ben"],
        },
        "calibration": {
            "n_fit": 96,
            "n_cv": 24,
            "joint": {"kept": True, "cv_before": 1.25, "cv_after": 1.125, "temperature": 1.5},
            "refinement": {"variant": "head and temperature", "map": "beta"},
            "adaptation": {
                "n_double_reads": 1234,
                "seen": 0.25,
                "mean_before": 0.125,
                "mean_after": 0.25,
                "temperature_before": 1.0,
                "temperature_after": 1.125,
                "rise": -0.5,
                "slope": 0.75,
                "level": 0.25,
                "constant": None,
            },
        },
        "mc_dropout": {"samples": 2, "seed": 3},
        "disagreement": {"verdict": "no better so far", "constant": None},
        "held_out": {step: _estimates(CARD_METRICS, whole=step != "network") for step in steps},
        "parity": {"n": 64, "max_probability_difference": 2.0**-20, "max_relative_logit_difference": 2.0**-19},
        "parent": "fedcba9876543210" * 4,
        "reference": {
            "stain_mean": [0.25, 0.5, 0.75],
            "stain_sd": [0.125, 0.125, 0.0625],
            "n_stain": 120,
            "label_share": [0.5, 0.25, 0.25],
            "n_labels": 180,
            "false_alarm_rate": 0.015625,
            "distance_sq_mean": 1.5,
            "distance_sq_sd": 0.5,
            "n_distance": 60,
        },
        "shifts": [shift | measured, shift | dict.fromkeys(measured) | {"kind": "noise", "strength": "standard"}],
        "recall": recall,
        "baseline": {
            "name": "colours and shapes",
            "judged_on": "test",
            "n_cells": 60,
            "baseline": _estimates(losses, whole=True),
            "network": _estimates(losses, whole=True),
            "change": _estimates(losses, whole=True),
        },
        "recalibration": {
            "label_snapshot": "89abcdef01234567" * 4,
            "change_plan_sha256": "76543210fedcba98" * 4,
            "gate": {"passed": True},
            "method": "temperature",
            "kept_for_sets": 30,
        },
        "adapted_from": source,
        "quantized": {
            "kind": "int8",
            "source": source,
            "weight_bits": 7,
            "ranges": "percentiles",
            "n_range_images": 24,
            "n_layers": 2,
            "changes": _estimates(losses, whole=True),
            "harms": ["L rose by 0.01"],
        },
    }
