"""Messages: their text is what a sentence says, and their codes and values outlast copies and storage."""

import copy
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml.messages import Message, Term, from_json, from_text, joined, listed, separated, to_json, to_text

MESSAGE = joined(
    "; ",
    [
        Message("{name} may rise by up to {high:.4f}", name="L", high=0.25),
        Message("the job is {state}", state=Term("failed")),
        Message("no case has a label"),
    ],
)


def shape(text: object) -> object:
    """What a message is made of."""
    if isinstance(text, Message):
        return str(text).encode(), text.code, {name: shape(value) for name, value in text.values.items()}
    return type(text), text


def test_a_message_is_its_text() -> None:
    assert MESSAGE == "L may rise by up to 0.2500; the job is failed; no case has a label"
    assert json.dumps([MESSAGE]) == json.dumps(["L may rise by up to 0.2500; the job is failed; no case has a label"])
    assert [part.code for part in separated(MESSAGE, "; ") if isinstance(part, Message)] == [
        "{name} may rise by up to {high}",
        "the job is {state}",
        "no case has a label",
    ]
    assert listed(["L", "L_φ"]) == "L and L_φ"


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
    assert to_text(Message("no case has a label")) == "no case has a label"


@given(st.one_of(st.text(), st.text("{}$ab").map('{"$message":'.__add__), st.just(to_text(MESSAGE)).map(str)))
def test_a_text_of_somebody_comes_back_as_it_was(text: str) -> None:
    assert from_text(to_text(text)) == text


@given(st.dictionaries(st.sampled_from(["$message", "values", "a"]), st.one_of(st.none(), st.text("{}x"))))
def test_an_object_of_somebody_is_no_message(found: dict[str, str | None]) -> None:
    kept = from_json(to_json(found))
    assert kept == found or found.get("values", "") is None
