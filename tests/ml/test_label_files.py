"""Label files of other tools: what they state, what is refused, and what a command makes of them."""

import copy
import csv
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from ml.label_files import (
    UNNAMED,
    BadRow,
    Format,
    LabelFileError,
    LabelRow,
    detect_format,
    match_images,
    read_class_folders,
    read_label_file,
    to_label_table,
)
from ml.tables import evaluate, read_labels
from tests.support.command import run_here

FILES = Path(__file__).parent / "label_files"
NAMES: dict[Format, str] = {
    "label-studio": "label-studio.json",
    "cvat": "cvat.xml",
    "coco": "coco.json",
    "wide": "wide.csv",
}
CLASSES = ["blast", "lymphocyte", "band neutrophil"]
#: Labels of each image in the order of CLASSES, counted by hand in the script that wrote the files.
BY_HAND = {
    "cell 1.png": (3, 0, 0),
    "cell 2.png": (1, 1, 0),
    "Zelle_ä.png": (0, 0, 1),
    "slide-1/cell 4.png": (1, 1, 1),
    "slide-2/cell 5.png": (0, 2, 0),
    "cell 6.png": (0, 0, 2),
}


def parse(kind: Format) -> Iterator[tuple[str, str]]:
    """Image and class of every label, by other means than the readers'."""
    text = (FILES / NAMES[kind]).read_text()
    if kind == "wide":
        for row in csv.DictReader(text.splitlines()):
            yield from ((row["image"], CLASSES[int(float(row[name]))]) for name in ("ana", "ben", "chi") if row[name])
    elif kind == "cvat":
        for image in ElementTree.fromstring(text).iter("image"):
            yield from ((image.attrib["name"], tag.attrib["label"]) for tag in image.iter("tag"))
    elif kind == "coco":
        document = json.loads(text)
        for row in document["annotations"]:
            image = document["images"][row["image_id"] - 1]["file_name"]
            yield image, document["categories"][row["category_id"] - 1]["name"]
    else:
        for task in json.loads(text):
            image = re.sub(r".*(\?d=|/upload/1/.{9})", "", task["data"]["image"])
            for annotation in task["annotations"]:
                choices = [result["value"].get("choices", []) for result in annotation["result"]]
                yield from ((image, one[0]) for one in choices if len(one) == 1)


def count(labels: Iterator[tuple[str, str]]) -> dict[str, tuple[int, ...]]:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for image, label in labels:
        counts[image][label] += 1
    return {image: tuple(row[name] for name in CLASSES) for image, row in counts.items()}


def labels_of(source: Any, kind: Format | None = None) -> list[LabelRow]:
    return [row for row in read_label_file(source, kind) if isinstance(row, LabelRow)]


def bad_rows_of(source: Any, kind: Format | None = None) -> dict[str, str]:
    return {row.place: row.reason for row in read_label_file(source, kind) if isinstance(row, BadRow)}


@pytest.mark.parametrize("kind", NAMES)
def test_counts_are_those_of_another_parser_and_those_counted_by_hand(kind: Format) -> None:
    rows = labels_of(FILES / NAMES[kind])
    names = {str(number): name for number, name in enumerate(CLASSES)}
    counts = count((row.image, names.get(row.label, row.label)) for row in rows)
    assert counts == count(parse(kind)) == BY_HAND
    assert detect_format(NAMES[kind], (FILES / NAMES[kind]).read_bytes()[:200]) == kind
    annotators = {"1", "ben@example.org", "chi@example.org"} if kind == "label-studio" else {"ana", "ben", "chi"}
    assert {row.annotator for row in rows} == annotators
    assert not any(row.blinded for row in rows)


def test_what_is_no_label_of_an_image_is_listed_by_its_place() -> None:
    kinds = {kind: bad_rows_of(FILES / name) for kind, name in NAMES.items()}
    assert kinds == {
        "label-studio": {
            "task 11 annotation 4": "rectanglelabels is not a label of the whole image",
            "task 12 annotation 7": "2 choices, and one is needed",
        },
        "cvat": {"image cell 1.png": "box is not a label of the whole image"},
        "coco": {},
        "wide": {},
    }
    (at,) = {row.at for row in labels_of(FILES / "label-studio.json") if row.place == "task 14 annotation 11"}
    assert at == datetime(2026, 3, 1, 12, 11, tzinfo=UTC)


def test_a_table_of_labels_states_annotators_times_and_blinding() -> None:
    table = (
        "\ufefffile,annotator,label,time,blinded\r\n"
        'slide\\a.png,ana,"T cell, large",2026-03-01T12:00:00+02:00,Yes\r\n'
        "b.png,,blast,2026-03-01 12:00,\r\n"
        "b.png,ben,,,\r\n"
        ",ben,blast,,\r\n"
        "b.png,ben,blast,yesterday,\r\n"
        "b.png,ben,blast,,perhaps\r\n"
        "b.png,ben\r\n"
    )
    stream = BytesIO(table.encode())
    stream.name = "export/labels.csv"  # type: ignore[attr-defined]
    assert labels_of(stream) == [
        LabelRow("slide/a.png", "ana", "T cell, large", datetime(2026, 3, 1, 10, tzinfo=UTC), True, "labels.csv row 2"),
        LabelRow("b.png", UNNAMED, "blast", datetime(2026, 3, 1, 12, tzinfo=UTC), False, "labels.csv row 3"),
    ]
    assert bad_rows_of(BytesIO(table.encode()), "labels") == {
        "row 4": "the label is empty",
        "row 5": "the image is not named",
        "row 6": "'yesterday' is not a time (ISO 8601)",
        "row 7": "'perhaps' in column blinded is neither yes nor no",
        "row 8": "2 cells, and the header has 5",
    }


@pytest.mark.parametrize("header", ["image, annotator, label, at", "Image,Annotator,Label,At"])
def test_spaces_and_capitals_in_a_header_change_no_column(header: str) -> None:
    table = BytesIO(f"{header}\na.png, ana, Blast, 2026-03-01\n".encode())
    at = datetime(2026, 3, 1, tzinfo=UTC)
    assert labels_of(table) == [LabelRow("a.png", "ana", "Blast", at, False, "row 2")]


@pytest.mark.parametrize(
    ("meta", "task", "annotator"),
    [
        ("<task><id>7</id><assignee><username>ana</username></assignee></task>", "", "ana"),
        ("<task><id>7</id><assignee></assignee></task>", "", UNNAMED),
        (
            "<project><assignee><username>pat</username></assignee><tasks>"
            "<task><id>7</id><assignee><username>ana</username></assignee></task>"
            "<task><id>8</id><assignee><username>ben</username></assignee></task></tasks></project>",
            'task_id="8"',
            "ben",
        ),
        ("<project><assignee><username>pat</username></assignee></project>", 'task_id="9"', "pat"),
    ],
)
def test_tags_of_cvat_are_of_the_assignee(meta: str, task: str, annotator: str) -> None:
    image = f'<image name="a.png" {task}><tag label="blast"/></image>'
    twice = f'<image name="b.png" {task}><tag label="blast"/><tag label="lymphocyte"/></image>'
    text = f"<annotations><meta>{meta}</meta>{image}{twice}<track id='3' label='x'/></annotations>".encode()
    assert [(row.image, row.annotator, row.label) for row in labels_of(BytesIO(text), "cvat")] == [
        ("a.png", annotator, "blast")
    ]
    assert list(bad_rows_of(BytesIO(text), "cvat")) == ["image b.png", "track 3"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.xml", '<!DOCTYPE a [<!ENTITY b SYSTEM "/etc/hostname">]><annotations>&b;</annotations>', "document type"),
        ("a.xml", "<annotations><image>", "this is no XML: no element found: line 1"),
        ("a.json", '[{"id": 1, "image": "a.png", "choice": "blast"}]', "task 1: there is no 'data'"),
        ("a.json", '{"images": [{"id": 1}], "annotations": [], "categories": []}', "objects with id and file_name"),
        ("a.json", '[{"data": {"image": "\\ud800"}}]', "surrogates not allowed"),
        ("a.json", '[{"data": {"image": "\\u0000"}}]', "U+0000"),
        ("a.json", "[" * 100_000, "this is no JSON"),
        ("a.csv", "image;annotator;label\na;b;c\n", "the format of the labels cannot be detected"),
        ("a.csv", "case_id,prob:blast,prob:monocyte\na,0.5,0.5\n", "the format of the labels cannot be detected"),
        ("a.csv", "image,label,label\na,b,c\n", "row 1: there are several columns 'label'"),
        ("a.csv", "image,annotator,lable\na,b,c\n", "the format of the labels cannot be detected"),
        ("a.csv", "image,label," + ",".join(f"c{n}" for n in range(50_000)) + ",c1\n", "several columns 'c1'"),
        ("a.json", '{"images": [{"id": 1, "file_name": "a"}, {"id": "1", "file_name": "b"}]}', "id 1 is given twice"),
        ("a.csv", "image,label\nä,b\n".encode("latin-1"), "'CSV UTF-8"),
    ],
)
def test_a_file_that_is_something_else_is_refused_by_name(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(LabelFileError, match=f"{name}: .*{re.escape(message)}"):
        list(read_label_file(tmp_path / name))


def places(value: Any) -> Iterator[list[Any]]:
    """Path of every value inside a JSON document."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield [key]
        yield from ([key, *path] for path in places(inner))


@pytest.mark.parametrize("kind", ["label-studio", "coco"])
def test_any_damage_to_a_document_is_refused_or_gives_a_row(kind: Format) -> None:
    document = json.loads((FILES / NAMES[kind]).read_text())
    if kind == "label-studio":
        document = document[:1]
    else:
        document["images"], document["annotations"] = document["images"][:1], document["annotations"][:2]
    for path in places(document):
        for value in (None, 3, "x", [], [None], {}, {"a": [1]}):
            damaged = copy.deepcopy(document)
            inner = damaged
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = value
            try:
                rows = list(read_label_file(BytesIO(json.dumps(damaged).encode()), kind))
            except LabelFileError:
                continue
            assert all(
                type(field) is str for row in rows if isinstance(row, LabelRow) for field in (row.image, row.label)
            )


def test_folders_of_classes_are_labels_without_annotators(tmp_path: Path) -> None:
    for name in ("blast/a.png", "blast/b.png", "lymphocyte/c.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "notes.txt").touch()
    table = to_label_table(read_class_folders(tmp_path), ["a", "b", "c"])
    assert table.columns == {"case_id": ["a", "b", "c"], "count:blast": [1, 1, 0], "count:lymphocyte": [0, 0, 1]}
    with pytest.raises(LabelFileError, match="no such folder"):
        next(read_class_folders(tmp_path / "other"))


def test_images_have_the_case_of_their_name_else_of_their_file() -> None:
    assert match_images(["s1/a.png", "s2/a.png"], ["s1/a.png", "s2/a.png"]) == {
        "s1/a.png": "s1/a.png",
        "s2/a.png": "s2/a.png",
    }
    assert match_images(["S1/v1.0.jpeg", "z.png"], ["v1.0"]) == {"S1/v1.0.jpeg": "v1.0", "z.png": "z.png"}
    assert match_images(["s2/a.png", "/home/me/s1/b.png"], ["s1/a.png", "s1/b"]) == {
        "s2/a.png": "s2/a.png",
        "/home/me/s1/b.png": "s1/b",
    }
    with pytest.raises(LabelFileError, match=r"'a\.png' fits several cases, 's1/a.png' and 's2/a.png'"):
        match_images(["a.png"], ["s1/a.png", "s2/a.png"])
    with pytest.raises(LabelFileError, match=r"images 's1/a.png' and 's2/a.png' fit one case, 'a'"):
        match_images(["s1/a.png", "s2/a.png"], ["a"])


def test_a_second_label_by_one_annotator_is_a_bad_row() -> None:
    rows = [LabelRow("a.png", "ana", label, None, False, f"row {n}") for n, label in enumerate("xyx", 2)]
    table = to_label_table(rows)
    assert table.columns == {"case_id": ["a.png"], "annotator": ["ana"], "label": ["x"]}
    assert [row.place for row in table.bad_rows] == ["row 3", "row 4"]
    assert table.bad_rows[0].reason == "ana labels the image again, after row 2"


@pytest.fixture
def predictions(tmp_path: Path) -> Path:
    """Predictions of the six images, named by file, by path and without an extension."""
    rows = [f"{name},0.5,0.3,0.2" for name in ("cell 1", "cell 2.png", "Zelle_ä", "slide-1/cell 4.png", "cell 5")]
    header = "case_id," + ",".join(f"prob:{name}" for name in CLASSES)
    path = tmp_path / "predictions.csv"
    path.write_text("\n".join([header, *rows, "cell 6,0.1,0.2,0.7", ""]))
    return path


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("kind", ["label-studio", "coco"])
def test_an_audit_of_an_export_is_that_of_its_labels(tmp_path: Path, predictions: Path, kind: Format) -> None:
    out, export = tmp_path / "page.html", FILES / NAMES[kind]
    command = ["audit", "--from", kind, export, "--predictions", predictions, "-o", out]
    done = run_here(*command)
    if kind != "coco":
        assert done.returncode == 1
        assert not out.exists()
        assert "--bad-rows drop" in done.stderr
        first = next(iter(bad_rows_of(export)))
        assert first in done.stderr
        done = run_here(*command, "--bad-rows", "drop")
        assert f"warning: {export}: {len(bad_rows_of(export))} row" in done.stderr
    assert done.returncode == 0, done.stderr
    assert "6 of them have a label and 5 have two or more, 13 labels in all, by 3 annotators" in out.read_text()


@pytest.mark.slow
@pytest.mark.ci
def test_class_folders_are_audited_and_known_by_the_names_of_their_files(tmp_path: Path) -> None:
    predictions, pages = tmp_path / "p.csv", []
    predictions.write_text("case_id,prob:blast,prob:lymphocyte\na,0.5,0.5\n")
    for code in ("blast", "lymphocyte"):
        (tmp_path / code / code).mkdir(parents=True)
        (tmp_path / code / code / "a.png").touch()
        out = tmp_path / f"{code}.html"
        done = run_here("audit", tmp_path / code, "--predictions", predictions, "-o", out)
        assert done.returncode == 0, done.stderr
        pages.append(re.findall(r"[0-9a-f]{64}", out.read_text()))
    assert (pages[0][0] == pages[1][0], pages[0][1] == pages[1][1]) == (False, True)


def test_agreement_of_an_export_is_that_of_its_table(tmp_path: Path) -> None:
    table = to_label_table(read_label_file(FILES / "wide.csv"))
    assert read_labels(table.columns).counts().sum() == 13
    lines = [",".join(table.columns), *map(",".join, zip(*table.columns.values(), strict=True)), ""]
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    ours = run_here("agreement", "--labels", tmp_path / "labels.csv", "--json")
    theirs = run_here("agreement", FILES / "wide.csv", "--json")
    assert ours.returncode == theirs.returncode == 0
    assert json.loads(ours.stdout) == json.loads(theirs.stdout)
    assert run_here("agreement").returncode == run_here("agreement", "--from", "wide").returncode == 2


def test_an_unknown_class_and_an_image_without_a_prediction_are_named(tmp_path: Path, predictions: Path) -> None:
    command = ["--predictions", predictions, "-o", tmp_path / "page.html"]
    done = run_here("audit", FILES / "wide.csv", *command)
    assert done.returncode == 1
    assert f"{FILES / 'wide.csv'}: row 2: '2' is none of the classes" in done.stderr
    (tmp_path / "more.csv").write_text("image,annotator,label\ncell 1.png,ana,blast\ncell 9.png,ana,blast\n")
    done = run_here("audit", tmp_path / "more.csv", *command)
    assert "case 'cell 9.png' has a label but no prediction, 1 in all" in done.stderr


def test_labels_without_a_column_of_annotators_are_stated() -> None:
    predictions = {"case_id": ["a", "b"], "prob:x": [0.5, 0.25], "prob:y": [0.5, 0.75]}
    labels = {"case_id": ["a", "b"], "annotater": ["r", "s"], "label": ["x", "y"]}
    assert any("no annotator is named" in warning for warning in evaluate(labels, predictions).warnings)
    labels["annotator"] = labels.pop("annotater")
    assert not any("no annotator is named" in warning for warning in evaluate(labels, predictions).warnings)
