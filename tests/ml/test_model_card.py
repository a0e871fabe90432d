"""What a release's README.md states: front matter, and a concentration that is one for all cells."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from app import demo
from ml.calibration.calibrators import Calibration
from ml.calibration.concentration import ConcentrationHead
from ml.calibration.scaling import Scaling
from ml.release.artifact import DISTANCE_FILE, read_release, write_release
from ml.release.card import CONSTANT_CONCENTRATION, readme_text
from tests.support.tiny_release import FEATURES


def test_front_matter_has_what_the_card_knows() -> None:
    folder = Path(demo.__file__).parent / "cells" / "release"
    card = read_release(folder).card

    def parsed(**changes: Any) -> tuple[dict[str, Any], str]:
        text = readme_text({**card, **changes})  # type: ignore[typeddict-item]
        empty, matter, body = text.split("---\n", 2)
        assert (empty, body.lstrip("\n").startswith("# Release ")) == ("", True)
        return yaml.safe_load(matter), body

    matter, body = parsed()
    assert readme_text(card) == readme_text(card)
    assert (matter["pipeline_tag"], matter["library_name"]) == ("image-classification", "secondread")
    (entry,) = matter["model-index"]
    (result,) = entry["results"]
    step = list(card["held_out"])[-1]
    for metric in result["metrics"]:
        value = card["held_out"][step][metric["type"]]["value"]
        assert metric["value"] == round(value or 0.0, 4)
        assert f"| {metric['value']:.4f} (" in body
    assert {metric["type"] for metric in result["metrics"]} >= {"agreement", "L"}
    assert parsed(licence="MIT")[0]["license"] == "mit"
    assert "license" not in parsed(licence="not stated")[0]
    odd = 'a: "b"\n--- # c\u2028é'
    named = parsed(licence=odd, name=odd)[0]
    assert (named["license"], named["license_name"], named["model-index"][0]["name"]) == ("other", odd, odd)
    assert "model-index" not in parsed(held_out={})[0]
    assert "pairs of labels differ from the expected" not in body
    pairs = {"largest": 0.12, "excess": 0.03, "p_value": 0.005, "n_sets": 3, "n_cells": 1412}
    judged = {"verdict": "better", "constant": None, "second_order": pairs}
    sentence = "at most 0.120, 0.030 more than chance explains (p = 0.005).\n\n## Classes"
    assert sentence in parsed(disagreement=judged)[1]


def test_a_constant_concentration_is_stated_and_ranks_as_the_class_probabilities(
    tiny_release: Path, tmp_path: Path
) -> None:
    release, rng = read_release(tiny_release), np.random.default_rng(0)
    head = ConcentrationHead(np.zeros(FEATURES), 0.7)
    files = {name: (tiny_release / name).read_bytes() for name in ("network.onnx", DISTANCE_FILE)}
    stated = {}
    for name, calibration in {
        "constant": Calibration(Scaling(), head),
        "varied": Calibration(Scaling(), replace(head, weight=np.ones(FEATURES))),
        "replaced": Calibration(Scaling(), head, constant_disagreement=0.2),
        "none": Calibration(Scaling(), None),
    }.items():
        written = write_release(tmp_path / name, files, calibration, release.card)
        stated[name] = written.card.get("constant_concentration", False)
        assert (CONSTANT_CONCENTRATION in (written.path / "README.md").read_text()) == stated[name]
    assert stated == {"constant": True, "varied": False, "replaced": False, "none": False}
    logits = rng.normal(size=(50, 8))
    constant = Calibration(Scaling(), head).apply(logits, rng.normal(size=(50, FEATURES)))
    doubt = 1 - np.square(constant.class_probs).sum(axis=1)
    assert (np.argsort(constant.disagreement_probs) == np.argsort(doubt)).all()
