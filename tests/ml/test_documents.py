"""Dataclasses as JSON documents, messages that outlast storage, and files that are written whole."""

import copy
import errno
import json
import pickle
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml.documents import LEFT_OUT, from_document, named, to_document
from ml.messages import Message, Number, Share, Term, from_json, from_text, joined, listed, separated, to_json, to_text
from ml.util.arrays import EqualByValue
from ml.util.files import temporary_path, write_bytes_atomically


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


MESSAGE = joined(
    "; ",
    [
        Message("{name} could rise by up to {high:.4f}", name="L", high=0.25),
        Message("the job is {state}", state=Term("failed")),
        Message("disagreement above {threshold}", threshold=Share("0.20")),
        Message("no cell has a label"),
    ],
)
TEXT = "L could rise by up to 0.2500; the job is failed; disagreement above 0.20; no cell has a label"


def shape(text: object) -> object:
    """What a message is made of."""
    if isinstance(text, Message):
        return str(text).encode(), text.code, {name: shape(value) for name, value in text.values.items()}
    return type(text), text


def test_a_message_is_its_text() -> None:
    assert MESSAGE == TEXT
    assert json.dumps([MESSAGE]) == json.dumps([TEXT])
    assert [part.code for part in separated(MESSAGE, "; ") if isinstance(part, Message)] == [
        "{name} could rise by up to {high}",
        "the job is {state}",
        "disagreement above {threshold}",
        "no cell has a label",
    ]
    assert listed(["L", "L_φ"]) == "L and L_φ"


def test_numbers_with_signs_are_marked_and_other_values_are_not() -> None:
    message = Message("{n:,} {m} {p:.0%} {x:g} {name}", n=1200, m=12, p=0.125, x=np.float64(0.5), name="1.5")
    assert message == "1,200 12 12% 0.5 1.5"
    assert [type(value) for value in message.values.values()] == [Number, str, Number, Number, str]


@pytest.mark.parametrize("found", [{"$share": "many"}, {"$share": 1}, {"$number": None}, {"number": "1.5"}])
def test_an_object_of_somebody_is_no_number(found: dict[str, object]) -> None:
    assert from_json(to_json(found)) == found


def test_an_error_keeps_the_message_that_it_was_made_with() -> None:
    assert shape(str(ValueError(MESSAGE))) == shape(MESSAGE)
    assert shape(Message("field: {why}", why=ValueError(MESSAGE)).values["why"]) == shape(MESSAGE)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda text: pickle.loads(pickle.dumps(text))])
def test_copies_keep_code_and_values(again: object) -> None:
    assert callable(again)
    assert shape(again(MESSAGE)) == shape(MESSAGE)


def test_json_and_text_that_are_stored_keep_code_and_values() -> None:
    kept = from_json(to_json({"reasons": [MESSAGE, "plain"], "probs": [0.5, 0.5]}).encode())
    assert (shape(kept["reasons"][0]), kept["reasons"][1], kept["probs"]) == (shape(MESSAGE), "plain", [0.5, 0.5])
    assert shape(from_text(to_text(MESSAGE))) == shape(MESSAGE)
    assert to_text(Message("no cell has a label")) == "no cell has a label"


@given(st.one_of(st.text(), st.text("{}$ab").map('{"$message":'.__add__), st.just(to_text(MESSAGE)).map(str)))
def test_a_text_of_somebody_comes_back_as_it_was(text: str) -> None:
    assert from_text(to_text(text)) == text


@given(st.dictionaries(st.sampled_from(["$message", "values", "a"]), st.one_of(st.none(), st.text("{}x"))))
def test_an_object_of_somebody_is_no_message(found: dict[str, str | None]) -> None:
    kept = from_json(to_json(found))
    assert kept == found or found.get("values", "") is None


def write_to_full_disk(target: Path) -> None:
    with temporary_path(target), Path("/dev/full").open("wb", buffering=0) as full:
        full.write(b"new")


def test_a_full_disk_is_reported_with_the_file_and_leaves_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "shard.npz"
    write_bytes_atomically(target, b"old")
    with pytest.raises(OSError, match=str(target)) as caught:
        write_to_full_disk(target)
    assert caught.value.errno == errno.ENOSPC
    assert [path.name for path in tmp_path.iterdir()] == ["shard.npz"]
    assert target.read_bytes() == b"old"
