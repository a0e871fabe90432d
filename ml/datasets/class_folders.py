"""Images in a folder for each class, as a LABELS table.

::

    DIR/CLASS/file.jpg                  or DIR/images/CLASS/file.jpg
    DIR/train|val|test/CLASS/file.jpg   partitions, if exactly these three folders exist
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from unicodedata import normalize

import pyarrow as pa

from ml.tables.reading import TableError

SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff")
#: The partition of each folder.
_PARTITIONS = {"train": "train", "val": "valid", "test": "test"}
_CODE = re.compile(r"\w(?:[\w .+-]*[\w.+-])?")


@dataclass
class _Found:
    """Images in their order, and what was skipped."""

    root: Path
    rows: list[dict[str, str]] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)

    def folders_in(self, folder: Path) -> list[Path]:
        """Folders of a folder that contains folders, sorted; its files are skipped."""
        entries = self._shown(folder)
        for entry in entries:
            if entry.is_file() and entry.name != "classes.csv":
                image = entry.suffix.lower() in SUFFIXES
                self.skipped["images outside the class folders" if image else "files that are no images"] += 1
        return [entry for entry in entries if entry.is_dir()]

    def add_class(self, folder: Path, partition: str | None) -> None:
        """Add the images of a class folder."""
        code, before = normalize("NFC", folder.name), len(self.rows)
        if not _CODE.fullmatch(code):
            raise TableError(
                f"{folder}: the class name {folder.name!r} has characters other than letters, digits, spaces inside, "
                "and _ . + -: rename the folder"
            )
        for entry in self._shown(folder):
            if entry.is_dir():
                raise TableError(
                    f"{entry}: a class folder contains images and no folders; partitions need exactly the folders "
                    f"{', '.join(_PARTITIONS)}, each with a folder for each class"
                )
            if entry.suffix.lower() not in SUFFIXES:
                self.skipped["files that are no images"] += 1
                continue
            name = entry.relative_to(self.root).as_posix()
            row = {"case_id": name, "label": code, "file": name}
            self.rows.append(row if partition is None else row | {"partition": partition})
        if len(self.rows) == before:
            raise TableError(f"{folder}: the class folder contains no image ({', '.join(SUFFIXES)}): fill or delete it")

    def _shown(self, folder: Path) -> list[Path]:
        entries = sorted(folder.iterdir())
        # the cache of decoded images is this program's
        self.skipped["hidden files"] += sum(e.name.startswith(".") and e.name != ".decoded" for e in entries)
        return [entry for entry in entries if not entry.name.startswith(".")]


def read_class_folders(root: Path) -> tuple[pa.Table, tuple[str, ...]]:
    """LABELS table with ``file`` and perhaps ``partition`` of the class folders in ``root``, and notes for people."""
    found = _Found(root)
    folders = found.folders_in(root)
    if [folder.name for folder in folders] == ["images"]:
        folders = found.folders_in(root / "images")
    if not folders:
        raise TableError(f"{root}: contains neither a table of labels (labels.csv) nor a folder for each class")
    if {folder.name for folder in folders} == set(_PARTITIONS):
        for part in folders:
            for folder in found.folders_in(part):
                found.add_class(folder, _PARTITIONS[part.name])
    else:
        for folder in folders:
            found.add_class(folder, None)
    if not found.rows:
        raise TableError(f"{root}: the folders {', '.join(_PARTITIONS)} contain no class folders")
    _refuse_shared_images(root, found.rows)
    notes = [f"{root}: the folder of an image is its only label, by one unnamed annotator"]
    skipped = [f"{what} ({count:,})" for what, count in found.skipped.items() if count]
    notes += [f"{root}: skipped {', '.join(skipped)}"] if skipped else []
    return pa.Table.from_pylist(found.rows), tuple(notes)


def _refuse_shared_images(root: Path, rows: list[dict[str, str]]) -> None:
    """Refuse an image file that is in the folders of two classes."""
    first: dict[bytes, dict[str, str]] = {}
    for row in _of_equal_size(root, rows):
        same = first.setdefault(hashlib.sha256((root / row["file"]).read_bytes()).digest(), row)
        if same["label"] != row["label"]:
            raise TableError(
                f"{root}: {same['file']} and {row['file']} are the same image in two classes; delete the wrong one, or "
                "give both labels in a table labels.csv"
            )


def _of_equal_size(root: Path, rows: list[dict[str, str]]) -> Iterable[dict[str, str]]:
    sizes = [(root / row["file"]).stat().st_size for row in rows]
    often = Counter(sizes)
    return (row for row, size in zip(rows, sizes, strict=True) if often[size] > 1)
