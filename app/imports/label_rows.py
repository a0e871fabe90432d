"""Labels of an archive row by row: which cell and which class each row of a label file names."""

import posixpath
from collections import defaultdict
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from pydantic import ValidationError

from app.http.errors import describe_named_fault
from app.http.models import ClassOut
from app.imports.zip_contents import MAX_ROWS, ArchiveError, ArchiveRow, ImportArchive, is_image
from app.labels.service import OutsideLabelIn
from ml.label_files import UNNAMED, BadRow, LabelRow
from ml.messages import Message


@dataclass(frozen=True)
class ImportLabel:
    """A row of a label file: a label to store, or what is wrong with it."""

    # 1 for the first label of the first file
    number: int
    # file and row
    place: str
    # external ids of the cell that it may name, the best first; the cell as it is named if that is no cell
    names: Sequence[str]
    # with the first of them
    body: OutsideLabelIn | None
    problem: str = ""
    # of the archive, if the cell is among its rows
    row: int | None = None


class ArchiveLabels:
    """Labels of an archive, read from its files at each iteration."""

    def __init__(self, archive: ImportArchive, classes: Sequence[ClassOut], *, class_folders: bool = False) -> None:
        self._archive, self._class_folders = archive, class_folders
        self._codes, self._classes = [one.code for one in classes], _index_classes(classes)
        self._rows, self._by_id, self._by_name = _index_rows(archive.rows)
        self._folders = {str(folder) for row in archive.rows for folder in PurePosixPath(row.file).parents}
        #: By label file, what its paths have before those of the archive.
        self._outer = defaultdict[str, set[str]](set)
        if class_folders and not self.has_class_folders():
            raise ArchiveError(
                "the folders of the images are not all named like classes; the classes are {classes}",
                classes=", ".join(self._codes),
            )
        #: What is wrong with files that cannot be read to their end: none of their labels is stored.
        self._faults: dict[str, str] = {}
        self._n = self._count()

    def __len__(self) -> int:
        return self._n

    def _count(self) -> int:
        """Count the labels, before any is stored: a file that cannot be read to its end is one faulty row."""
        n = len(self._archive.rows) if self._class_folders else 0
        for file in self._archive.label_files:
            before = n
            try:
                for row in self._archive.read_labels(file):
                    n += 1
                    if isinstance(row, LabelRow) and (outer := self._outer_folder(row.image)) is not None:
                        self._outer[file].add(outer)
                    if n > MAX_ROWS:
                        raise ArchiveError("more than {n:,} labels; send several archives", n=MAX_ROWS)
            except ArchiveError:
                raise
            except ValueError as exc:
                self._faults[file] = str(exc).removeprefix(f"{PurePosixPath(file).name}: ")
                n = before + 1
        return n

    def __iter__(self) -> Iterator[ImportLabel]:
        """Every label, folders first, then files by name, in the order of their rows."""
        for number, (file, row) in enumerate(self._read(), 1):
            place = posixpath.join(posixpath.dirname(file), row.place)[:500]
            if isinstance(row, BadRow):
                yield ImportLabel(number, place, (), None, row.reason)
            else:
                yield self._make_label(number, place, file, row)

    def _make_label(self, number: int, place: str, file: str, row: LabelRow) -> ImportLabel:
        try:
            cell = self._find_cell(file, row.image)
        except ValueError as exc:
            return ImportLabel(number, place, [_storable(row.image)], None, str(exc))
        external_ids = _possible_ids(row.image) if cell is None else [cell.fields["external_id"]]
        if cell is None and self._is_local(file, row.image):  # short ids may be of images in other folders
            external_ids = external_ids[:1]
        body, problem = None, ""
        try:
            body = self._make_body(row, external_ids[0])
        except ValueError as exc:
            problem = str(exc)
        names, of_archive = [_storable(name) for name in external_ids], None if cell is None else cell.number
        return ImportLabel(number, place, names, body, problem, of_archive)

    def _read(self) -> Iterator[tuple[str, LabelRow | BadRow]]:
        for row in self._archive.rows if self._class_folders else ():
            yield "", LabelRow(row.file, UNNAMED, _folder_of(row), None, False, row.file)
        for file in self._archive.label_files:
            if file in self._faults:
                yield file, BadRow(PurePosixPath(file).name, self._faults[file])
                continue
            for label in self._archive.read_labels(file):
                yield file, label

    def has_class_folders(self) -> bool:
        """Whether every image is in a folder with the code or the name of a class."""
        folders = {_folder_of(row) for row in self._archive.rows}
        return bool(folders) and all(self._classes.get(folder.casefold()) is not None for folder in folders)

    def _find_cell(self, file: str, image: str) -> ArchiveRow | None:
        """Row of the image that a label file names: by its path or external id, else the end of its path."""
        named = self._rows.get(posixpath.normpath(PurePosixPath(file).parent / image), [])
        if image in self._by_id:
            named = [*named, self._by_id[image]]
        alike = [] if named else self._by_name.get(PurePosixPath(image).name, [])
        folder = f"{posixpath.dirname(file)}/" if self._is_local(file, image) else ""
        named = named or [
            r for r in alike if r.file.startswith(folder) and f"/{r.file}".endswith(f"/{image.lstrip('/')}")
        ]
        if not named and len(self._outer[file]) == 1 and self._outer_folder(image) is not None:
            return alike[0]
        return self._only(image, named) if named else None

    def _is_local(self, file: str, image: str) -> bool:
        """Whether a name without a folder is of an image in that of its labels, since there are images in it."""
        return "/" not in image and posixpath.dirname(file) in self._folders

    def _outer_folder(self, image: str) -> str | None:
        """What a path has before that of the archive, if the archive was packed without it."""
        rows = self._by_name.get(PurePosixPath(image).name, [])
        return image.removesuffix(rows[0].file) if len(rows) == 1 and image.endswith(f"/{rows[0].file}") else None

    def _only(self, image: str, rows: Sequence[ArchiveRow]) -> ArchiveRow:
        first, *others = dict.fromkeys(row.fields["external_id"] for row in rows)
        if others:
            raise ValueError(
                Message(
                    "{image} may be the cell {first} or {second}; name it by its path or its external id",
                    image=repr(image),
                    first=repr(first),
                    second=repr(others[0]),
                )
            )
        return rows[0]

    def _make_body(self, row: LabelRow, external_id: str) -> OutsideLabelIn:
        fields = {"external_id": external_id, "annotator": row.annotator, "label": self._find_class(row.label)}
        try:
            return OutsideLabelIn.model_validate(fields | {"blind": row.blinded, "at": row.at})
        except ValidationError as exc:
            raise ValueError(describe_named_fault(exc.errors(include_input=False)[0])) from exc

    def _find_class(self, text: str) -> str:
        """Code of the class with a code or a name, first as it is written."""
        code = text if text in self._codes else self._classes.get(text, self._classes.get(text.casefold()))
        if code is None:
            classes = ", ".join(self._codes)
            raise ValueError(
                Message("unknown class {label}; the classes are {classes}", label=repr(text[:80]), classes=classes)
            )
        return code


def names_cell(archive: ImportArchive, external_ids: Container[str]) -> bool:
    """Whether a label of an archive may be about one of these cells; raises ``ValueError`` if a file cannot be read."""
    rows = (row for file in archive.label_files for row in archive.read_labels(file))
    return any(name in external_ids for row in rows if isinstance(row, LabelRow) for name in _possible_ids(row.image))


def _storable(name: str) -> str:
    return name[:200].replace("\x00", "")


def _folder_of(row: ArchiveRow) -> str:
    return PurePosixPath(row.file).parent.name


def _possible_ids(image: str) -> list[str]:
    """External ids that a stored cell may have: as named, and as an import without a manifest names it.

    >>> _possible_ids("a/1.png"), _possible_ids("slide 1.2")
    (['a/1.png', 'a/1'], ['slide 1.2'])
    """
    return [image, str(PurePosixPath(image).with_suffix(""))] if is_image(image) else [image]


def _index_classes(classes: Sequence[ClassOut]) -> dict[str, str | None]:
    """Codes by name, and by code and name in lower case; None for what several classes are called."""
    meant: defaultdict[str, set[str]] = defaultdict(set)
    for one in classes:
        for text in (one.name, one.code.casefold(), one.name.casefold()):
            meant[text].add(one.code)
    return {text: codes.pop() if len(codes) == 1 else None for text, codes in meant.items()}


def _index_rows(
    rows: Sequence[ArchiveRow],
) -> tuple[dict[str, list[ArchiveRow]], dict[str, ArchiveRow], dict[str, list[ArchiveRow]]]:
    """Rows of an archive by path, by external id, and by file name without folder."""
    by_path, by_name = defaultdict[str, list[ArchiveRow]](list), defaultdict[str, list[ArchiveRow]](list)
    by_id: dict[str, ArchiveRow] = {}
    for row in rows:
        if row.fields.get("external_id"):
            by_path[row.file].append(row)
            by_name[PurePosixPath(row.file).name].append(row)
            by_id.setdefault(row.fields["external_id"], row)
    return by_path, by_id, by_name
