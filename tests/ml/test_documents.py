"""Dataclasses as JSON documents and back."""

import json
import re
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest

from ml.documents import LEFT_OUT, from_document, named, to_document
from ml.util.arrays import EqualByValue


@dataclass(frozen=True)
class Inner:
    size: int | None
    kind: Literal["x", "y"]


@dataclass(frozen=True, eq=False)
class Outer(EqualByValue):
    values: npt.NDArray[np.float64]
    numbers: npt.NDArray[np.int64]
    pair: tuple[str, float]
    parts: list[Inner]
    best: Inner | None
    by_name: dict[str, float | None]
    level: Literal["low", "high"] | None
    site: int | str
    mean: float
    class_name: str = field(default="", metadata=named("class"))
    kept: int = field(default=0, metadata=LEFT_OUT)


OUTER = Outer(
    np.array([[0.1, np.nan]]),
    np.array([2, 3]),
    ("a", 1.5),
    [Inner(1, "x")],
    None,
    {"k": None},
    "low",
    "s1",
    float("nan"),
    "c",
)


def test_a_dataclass_is_read_back_to_the_last_bit() -> None:
    document = json.loads(json.dumps(to_document(OUTER), allow_nan=False))
    assert list(document) == ["values", "numbers", "pair", "parts", "best", "by_name", "level", "site", "mean", "class"]
    assert document["values"] == [[0.1, None]]
    assert document["mean"] is None
    back = from_document(Outer, document | {"unknown": 1})
    assert back == OUTER
    assert (back.values.dtype, back.numbers.dtype) == (np.float64, np.int64)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"mean": True}, "Outer.mean: must be float, got True"),
        ({"class": 3}, "Outer.class: must be str, got 3"),
        ({"numbers": [1.5]}, "Outer.numbers: must be an array: float64 instead of int64"),
        ({"values": [[1], [1, 2]]}, "Outer.values: must be an array"),
        ({"values": ["1"]}, "Outer.values: must be an array"),
        ({"pair": ["a"]}, "Outer.pair: must be tuple"),
        ({"parts": [{"size": 1, "kind": "z"}]}, "Outer.parts[0].kind: must be 'x' or 'y', got 'z'"),
        ({"parts": [{"kind": "x"}]}, "Outer.parts[0]: size missing"),
        ({"best": 3}, "Outer.best: must be an object, got int"),
        ({"level": "mid"}, "Outer.level: must be 'low' or 'high', got 'mid'"),
        ({"site": 1.5}, "Outer.site: must be str, got 1.5"),
        ({"by_name": {"k": "1"}}, "Outer.by_name.k: must be float, got '1'"),
    ],
)
def test_a_value_of_another_type_is_refused_by_name(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        from_document(Outer, to_document(OUTER) | wrong)


def test_what_json_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="best: a set has no JSON form"):
        to_document(Outer(OUTER.values, OUTER.numbers, OUTER.pair, [], set(), {}, None, 1, 0.0))  # type: ignore[arg-type]
