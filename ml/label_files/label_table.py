"""Rows of a label file as a LABELS table for cases with names of their own."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ml.label_files.rows import IMAGE_END, UNNAMED, BadRow, LabelFileError, LabelRow


@dataclass(frozen=True)
class LabelTable:
    """A LABELS table by column, and the rows that are not in it.

    Without any name of an annotator the table has one row per case with counts of the classes.
    """

    columns: Mapping[str, list[str] | list[int]]
    bad_rows: list[BadRow]


def to_label_table(
    rows: Iterable[LabelRow | BadRow], case_ids: Sequence[str] = (), classes: Sequence[str] | None = None
) -> LabelTable:
    """Collect the labels of a file as a LABELS table.

    Args:
        rows: rows of the file.
        case_ids: cases of the predictions. An image has the case of its name, else of its file name without extension
            if no folder differs, else its name.
        classes: the classes that may occur; all that occur if omitted.

    Returns:
        The table. A second label of an image by one annotator is a bad row.

    Raises:
        LabelFileError: no label, an unknown class, or a name that fits several images or cases.
    """
    labels, bad = list[LabelRow](), list[BadRow]()
    for row in rows:
        if isinstance(row, BadRow):
            bad.append(row)
        elif classes is None or row.label in classes:
            labels.append(row)
        else:
            codes = ", ".join(classes)
            raise LabelFileError(f"{row.place}: {row.label!r} is none of the classes of the predictions: {codes}")
    if not labels:
        first = f"; {bad[0].place}: {bad[0].reason}" if bad else ""
        raise LabelFileError(f"the file has no label of a whole image{first}")
    case_of = match_images(dict.fromkeys(row.image for row in labels), case_ids)
    if all(row.annotator == UNNAMED for row in labels):
        return LabelTable(_count(labels, case_of, classes), bad)
    first_of: dict[tuple[str, str], LabelRow] = {}
    for label in labels:
        earlier = first_of.setdefault((case_of[label.image], label.annotator), label)
        if earlier is not label:
            bad.append(BadRow(label.place, f"{label.annotator} labels the image again, after {earlier.place}"))
    given = [row.label for row in first_of.values()]
    columns = {"case_id": [case for case, _ in first_of], "annotator": [name for _, name in first_of], "label": given}
    return LabelTable(columns, bad)


def _count(
    labels: Sequence[LabelRow], case_of: dict[str, str], classes: Sequence[str] | None
) -> dict[str, list[str] | list[int]]:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row in labels:
        counts[case_of[row.image]][row.label] += 1
    names = sorted({row.label for row in labels}) if classes is None else classes
    return {"case_id": list(counts), **{f"count:{name}": [row[name] for row in counts.values()] for name in names}}


def match_images(images: Iterable[str], case_ids: Sequence[str]) -> dict[str, str]:
    """Case of each image: of its name, else of its file name, else its name.

    Raises:
        LabelFileError: a name that fits several images or cases.

    >>> match_images(["slide-1/a.png", "b.png"], ["a", "b.png"])
    {'slide-1/a.png': 'a', 'b.png': 'b.png'}
    """
    exact, by_stem = set(case_ids), defaultdict[str, list[str]](list)
    for case_id in case_ids:
        by_stem[_stem(case_id)].append(case_id)
    matched: dict[str, str] = {}
    image_of: dict[str, str] = {}
    for image in images:
        fitting = [image] if image in exact else [one for one in by_stem[_stem(image)] if _may_be_same(one, image)]
        fitting = fitting or [image]
        if len(fitting) > 1:
            raise LabelFileError(f"image {image!r} fits several cases, {fitting[0]!r} and {fitting[1]!r}")
        matched[image] = fitting[0]
        other = image_of.setdefault(fitting[0], image)
        if other != image:
            raise LabelFileError(f"images {other!r} and {image!r} fit one case, {fitting[0]!r}")
    return matched


def _may_be_same(case_id: str, image: str) -> bool:
    """Whether no folder tells them apart: one is the end of the other.

    >>> _may_be_same("b/1", "a/b/1.png"), _may_be_same("a/1.png", "b/1.png")
    (True, False)
    """
    one, other = (f"/{IMAGE_END.sub('', name).lstrip('/')}" for name in (case_id, image))
    return one.endswith(other) or other.endswith(one)


def _stem(name: str) -> str:
    return IMAGE_END.sub("", name.rsplit("/", 1)[-1])
