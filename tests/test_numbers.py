"""Documents say what results say: each figure is read from ``benchmarks/results``, or declared to be none."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.document_numbers import (
    ROOT,
    Claim,
    Constant,
    NumberError,
    agrees,
    check,
    declared,
    prose,
    undeclared,
    value_at,
)

PAGES = [f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))]
DOCUMENTS = ("README.md", "benchmarks/README.md", "experiments/README.md", *PAGES)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_figure_is_a_result_or_declared_to_be_none(document: str) -> None:
    claims, constants = declared()
    wrong = []
    for claim in (claim for claim in claims if claim.document == document):
        try:
            check(claim)
        except NumberError as exc:
            wrong.append(str(exc))
    assert wrong == []
    assert undeclared(document, claims, constants) == []


def test_nothing_is_declared_for_what_no_document_says() -> None:
    claims, constants = declared()
    assert {claim.document for claim in claims} <= set(DOCUMENTS)
    stale = [text for name, text in ((c.document, c.text) for c in constants) if not _said(name, text)]
    assert stale == []


def _said(document: str, text: str) -> bool:
    wanted = " ".join(text.split())
    return any(wanted in prose(name) for name in (DOCUMENTS if document == "*" else (document,)))


@pytest.mark.parametrize(
    ("said", "value", "right"),
    [
        (".22", 0.2249, True),
        (".22", 0.2251, False),
        ("−.01", -0.0085, True),
        (".01", -0.0085, False),
        ("7,500", 7500, True),
        ("+27", 27.4, True),
        ("0", 0.0, True),
        ("0", 0.6, False),
    ],
)
def test_a_number_is_right_where_it_is_the_value_rounded(said: str, value: float, right: bool) -> None:
    assert agrees(said, value) is right


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A document and results of its own."""
    monkeypatch.setattr("tools.document_numbers.ROOT", tmp_path)
    results = tmp_path / "results"
    results.mkdir()
    monkeypatch.setattr("tools.document_numbers.RESULTS", results)
    prose.cache_clear()
    (results / "2026-01-01_loss.json").write_text('{"rows": [{"method": "old", "L": 0.5}]}')
    (results / "2026-01-02_loss.json").write_text(
        '{"rows": [{"method": "a", "L": 0.123, "worse": false}, {"method": "b", "L": 0.4, "worse": true}]}'
    )
    (results / "2026-01-02_bias.md").write_text("| who | kind | L |\n|---|---|---|\n| a | now | +1.5 ± 0.25 % |\n")
    page = tmp_path / "page.md"
    page.write_text("L is .12\nwith `0.9` of\n12 % wrong, version 0.1.0, and 1,234 cells.\n")
    yield page
    prose.cache_clear()


def test_a_number_of_another_row_is_refused(page: Path) -> None:
    check(Claim("page.md", "L is {} with", "loss.json", ("rows > method=a > L",)))
    with pytest.raises(NumberError, match=r"says \.12 where loss\.json at rows > method=b > L has 0\.4"):
        check(Claim("page.md", "L is {} with", "loss.json", ("rows > method=b > L",)))
    with pytest.raises(NumberError, match="0 times"):
        check(Claim("page.md", "CE is {}", "loss.json", ("rows > method=b > L",)))
    with pytest.raises(NumberError, match="0 found"):
        check(Claim("page.md", "L is {} with", "loss.json", ("rows > method=old > L",)))


def test_values_are_counted_averaged_and_read_from_tables(page: Path) -> None:
    assert value_at("loss.json", "rows > worse=False > count") == 1
    assert value_at("loss.json", "rows > L > max") == 0.4
    assert value_at("loss.json", "rows > method=a > values > count") == 3
    assert value_at("loss.json", "rows > method=b > L ÷ rows > method=a > L") == pytest.approx(0.4 / 0.123)
    assert value_at("bias.md", "a|now > L") == 0.015
    assert value_at("bias.md", "a|now > L#1") == 0.0025
    with pytest.raises(NumberError, match="2 found"):
        value_at("loss.json", "rows > L")
    with pytest.raises(NumberError, match="0 cells"):
        value_at("bias.md", "a|then > L")


def test_what_nothing_declares_is_named(page: Path) -> None:
    left = undeclared("page.md", [], [])
    assert [figure in around for figure, around in zip((".12", "12 %", "1,234"), left, strict=True)] == [True] * 3
    claims = [Claim("page.md", "L is {} with", "loss.json", ("rows > method=a > L",))]
    constants = [Constant("page.md", "12 % wrong", "an example"), Constant("*", "1,234", "one more")]
    assert undeclared("page.md", claims, constants) == []


def test_rows_copied_from_a_result_need_no_declaration_as_long_as_they_are_the_same(page: Path) -> None:
    page.write_text("| a | now | +1.5 ± 0.25 % |\n")
    assert undeclared("page.md", [], []) == []
    prose.cache_clear()
    page.write_text("| a | now | +1.4 ± 0.25 % |\n")
    assert undeclared("page.md", [], []) != []
