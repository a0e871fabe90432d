"""The calibrator: fitted on arrays or on tables, with scikit-learn's conventions."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

import secondread
from tests.support.tables import labels_table, wide_table

RNG = np.random.default_rng(5)
TRUE = RNG.normal(size=(120, 3))
PROBS = np.exp(TRUE) / np.exp(TRUE).sum(axis=1, keepdims=True)
COUNTS = np.stack([RNG.multinomial(row % 4, probs) for row, probs in enumerate(PROBS)])
LOGITS, FEATURES = 2 * TRUE, RNG.normal(size=(120, 2))
PATIENTS = [f"p{row // 2}" for row in range(120)]
CLASSES = ["blast", "mono", "neutro"]
TABLE = pd.DataFrame(wide_table(LOGITS, CLASSES, "logit:"))
LABELS = pd.DataFrame(labels_table(COUNTS, CLASSES, patient=PATIENTS))


def test_it_fits_what_calibrate_fits() -> None:
    report = secondread.calibrate(LOGITS, FEATURES, COUNTS, PATIENTS)
    fitted = secondread.Calibrator().fit(LOGITS, COUNTS, features=FEATURES, groups=PATIENTS)
    assert fitted.calibration_ == report.calibration
    assert fitted.report_.report == report.report
    prior = fitted.predict(LOGITS, features=FEATURES)
    assert prior == report.calibration.apply(LOGITS, FEATURES)
    assert (fitted.predict_proba(LOGITS, features=FEATURES) == prior.class_probs).all()
    assert (prior.posterior(COUNTS).class_probs != prior.class_probs).any()


@pytest.mark.parametrize("shape", ["long", "wide", "polars", "files"])
def test_a_table_of_labels_gives_what_its_counts_give(shape: str, tmp_path: Path) -> None:
    # a case without labels has no patient in LABELS
    patients = [name if COUNTS[row].sum() else f"case c{row}" for row, name in enumerate(PATIENTS)]
    arrays = secondread.Calibrator(refined=False).fit(LOGITS, COUNTS, groups=patients)
    shuffled = TABLE.sample(frac=1.0, random_state=1)[list(reversed(TABLE.columns))]
    logits: Any = TABLE
    labels: Any = LABELS
    if shape == "polars":
        logits, labels = pl.DataFrame(TABLE), pl.DataFrame(LABELS)
    elif shape == "wide":
        labels = pd.DataFrame(wide_table(COUNTS, CLASSES, "count:")).assign(patient=patients)
        none = dict.fromkeys(labels.columns, 0) | {"case_id": "without logits", "patient": "p"}
        labels = pd.concat([labels, pd.DataFrame([none])])
    elif shape == "files":
        TABLE.to_csv(tmp_path / "logits.csv", index=False)
        LABELS.to_parquet(tmp_path / "labels.parquet", index=False)
        logits, labels = tmp_path / "logits.csv", tmp_path / "labels.parquet"
    fitted = secondread.Calibrator(refined=False).fit(logits, labels, groups="patient")
    assert fitted.classes_ == tuple(CLASSES)
    assert fitted.predict_proba(logits) == pytest.approx(arrays.predict_proba(LOGITS))
    by_case = dict(zip(shuffled["case_id"], fitted.predict_proba(shuffled), strict=True))
    assert np.stack([by_case[case] for case in TABLE["case_id"]]) == pytest.approx(arrays.predict_proba(LOGITS))


def test_tables_of_columns_meet_by_class() -> None:
    counts = pd.DataFrame(COUNTS, columns=CLASSES)
    logits = pd.DataFrame(LOGITS, columns=CLASSES)
    fitted = secondread.Calibrator(alpha=False).fit(logits[CLASSES[::-1]], counts)
    plain = secondread.Calibrator(alpha=False).fit(LOGITS, COUNTS)
    assert fitted.predict_proba(logits[CLASSES[::-1]]) == pytest.approx(plain.predict_proba(LOGITS))


def test_parameters_are_read_and_set_as_in_scikit_learn() -> None:
    calibrator = secondread.Calibrator("vector", seed=3)
    assert calibrator.get_params() == {
        "method": "vector",
        "alpha": True,
        "seed": 3,
        "refined": True,
        "level": "nominal",
    }
    assert secondread.Calibrator(**calibrator.get_params()).get_params() == calibrator.get_params()
    assert calibrator.set_params(method="temperature", seed=0, refined=False) is calibrator
    assert repr(calibrator) == "Calibrator(method='temperature', alpha=True, seed=0, refined=False, level='nominal')"
    assert calibrator.fit(LOGITS, COUNTS) is calibrator
    with pytest.raises(ValueError, match="unknown parameter 'bins'; there are method, alpha, seed, refined, level"):
        calibrator.set_params(bins=3)


FITTED = secondread.Calibrator(refined=False).fit(LOGITS, COUNTS, features=FEATURES)
NAMED = secondread.Calibrator(alpha=False).fit(TABLE, LABELS)
OTHER = TABLE.rename(columns={"logit:mono": "logit:lymph"})


def fit(*tables: Any, **options: Any) -> Callable[[], object]:
    return lambda: secondread.Calibrator().fit(*tables, **options)


def predict(fitted: secondread.Calibrator, *tables: Any, **options: Any) -> Callable[[], object]:
    return lambda: fitted.predict(*tables, **options)


WRONG: list[tuple[Callable[[], object], str]] = [
    (fit(PROBS.astype("float16"), COUNTS), "logits are probabilities"),
    (fit(LOGITS, COUNTS, groups=PATIENTS[1:]), r"groups must have shape \(120,\)"),
    (fit(LOGITS, COUNTS, groups="patient"), "groups names a column of LABELS"),
    (fit(LOGITS, COUNTS, features=FEATURES[1:]), r"features must have shape \(120, D\)"),
    (lambda: secondread.Calibrator("isotonic").fit(LOGITS, COUNTS), "unknown method"),  # type: ignore[arg-type]
    (fit(LOGITS, LABELS), "logits have no column 'case_id'"),
    (fit(TABLE, COUNTS), "annotations have no column 'case_id'"),
    (fit(TABLE, LABELS, groups="ward"), "LABELS: column 'ward' is missing"),
    (fit(TABLE.iloc[:99], LABELS), "LABELS: case 'c99' has a label but no logits"),
    (fit(pd.concat([TABLE, TABLE]), LABELS), "LOGITS: row 120, column case_id: duplicated case 'c0'"),
    (lambda: secondread.Calibrator().predict(LOGITS), "this Calibrator is not fitted yet"),
    (predict(FITTED, LOGITS), "features must be given"),
    (predict(FITTED, LOGITS, features=np.ones((120, 3))), "there are 3 features, and the calibrator was fitted on 2"),
    (
        predict(FITTED, np.ones((2, 4)), features=np.ones((2, 2))),
        "there are 4 classes, and the calibrator was fitted on 3",
    ),
    (predict(NAMED, LOGITS), r"classes had names in fit \(blast, mono, neutro\)"),
    (predict(NAMED, OTHER), "the classes of logits are blast, lymph, neutro, and those of the fit blast, mono, neutro"),
]


@pytest.mark.parametrize(("call", "message"), WRONG)
def test_what_cannot_be_used_is_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
