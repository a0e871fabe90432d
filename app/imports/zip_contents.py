"""Contents of an import archive: images, manifest and skipped files."""

import csv
import io
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, Protocol, cast

from pydantic import ValidationError

from app.cases.service import CaseIn
from app.http.errors import describe_named_fault
from ml.label_files import BadRow, Format, LabelRow, detect_format, read_label_file
from ml.label_files.formats import START
from ml.messages import Message

#: Content types of a body that is a zip.
ZIP_TYPES = frozenset({"application/zip", "application/x-zip-compressed", "application/octet-stream"})
#: By the ends of their names: what is decoded here.
IMAGES = (".png", ".jpg", ".jpeg", ".tif", ".tiff")
_OF_SYSTEMS = {".ds_store", "thumbs.db", "desktop.ini"}
_TABLES, _DOCUMENTS = (".csv", ".txt"), (".json", ".xml")
# what other files begin like, too: they have labels if their names say so, or they name annotations
_COMMON_FORMATS = {"wide", "label-studio"}


def is_image(name: str) -> bool:
    """Whether a file is an image by its name, and none of an operating system's own."""
    path = PurePosixPath(name)
    return path.suffix.lower() in IMAGES and not is_of_system(name)


def is_of_system(name: str) -> bool:
    """Whether an operating system wrote a file for itself."""
    path = PurePosixPath(name)
    return "__MACOSX" in path.parts or path.name.startswith("._") or path.name.lower() in _OF_SYSTEMS


def get_skip_reason(name: str, *, manifest: bool) -> str:
    """Return why a file becomes no case."""
    path = PurePosixPath(name)
    kind = path.suffix.lower()
    if is_of_system(name):
        return "written by an operating system for itself"
    if kind in {".csv", *_DOCUMENTS}:
        return "neither an image nor a file of labels in a format that is read here"
    if kind in {".dcm", ".dicom"}:
        return "DICOM is not read here: export PNG, JPEG or TIFF"
    if kind in IMAGES:
        return "no row of manifest.csv names it" if manifest else "a hidden file"
    return f"not an image by its name: images end in {', '.join(IMAGES)}"


def find_label_format(name: str, stream: IO[bytes]) -> Format | None:
    """Find the format of a file of labels, given open at its beginning; None if it has none."""
    path = PurePosixPath(name)
    if path.suffix.lower() not in _TABLES + _DOCUMENTS or path.name == MANIFEST or is_of_system(name):
        return None
    named = any(word in path.name.lower() for word in ("label", "annotation"))
    try:
        start = stream.read(START)
    except _DAMAGE:
        return "labels" if named else None  # reading it will meet the damage
    kind = detect_format(name, start)
    return None if kind in _COMMON_FORMATS and not named and b'"annotations"' not in start else kind


MANIFEST = "manifest.csv"
MAX_ENTRIES, MAX_ROWS, MAX_IMAGE, MAX_MANIFEST = 200_000, 200_000, 12 * 1024**2, 64 * 1024**2
#: Bytes of a file of labels: the objects of a document may take 25 times its size.
MAX_LABELS = 32 * 1024**2
#: Bytes of the list of files at the end of an archive: opening an archive builds an object per entry of it.
MAX_DIRECTORY = 32 * 1024**2
#: How many bytes an archive may unpack to per byte of its own, beyond an amount that any archive may.
MAX_RATIO, ALWAYS_ALLOWED, MANIFEST_ALLOWED = 100, 128 * 1024**2, 1024**2
#: The others reach ratios, or need memory, that nothing bounds.
_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
_DAMAGE = (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, OSError)
_COLUMNS = {"file", "field", "external_id", "patient", "site", "specimen", "metadata"}
_FILES = {"file", "field"}


class ArchiveError(ValueError):
    """An archive that cannot be imported at all; the message says why."""

    def __init__(self, reason: str, /, **values: object) -> None:
        super().__init__(Message(reason, **values) if values else reason)


@dataclass(frozen=True)
class ArchiveRow:
    """One case to import."""

    # row, 1 for the first
    number: int
    # name in the archive
    file: str
    # of the case, or what is wrong with them
    fields: dict[str, str]
    # how many fields there are beyond the manifest's columns
    surplus: int = 0
    # name in the archive of the wider field around the cell; empty without one
    field: str = ""

    def case(self) -> CaseIn:
        """Checked fields."""
        if self.surplus:
            more = Message("a field") if self.surplus == 1 else f"{self.surplus} fields"
            raise ValueError(
                Message(
                    "the row has {more} more than the columns of {manifest}; put text with commas in quotes",
                    more=more,
                    manifest=MANIFEST,
                )
            )
        try:
            return CaseIn.model_validate(self.fields)
        except ValidationError as exc:
            raise ValueError(describe_named_fault(exc.errors(include_input=False)[0])) from exc


@dataclass(frozen=True)
class SkippedFile:
    """A file that becomes no case: its number after those of all rows, its name, and why."""

    number: int
    file: str
    why: str


class ImportArchive:
    """An opened archive."""

    def __init__(self, archive: zipfile.ZipFile, name: str, size: int) -> None:
        self._zip, self._name, self._size = archive, name, size
        entries = [info for info in archive.infolist() if not info.is_dir()]
        if len(entries) > MAX_ENTRIES:
            raise ArchiveError(
                "{name}: {entries:,} entries; at most {max_entries:,} in one import",
                name=name,
                entries=len(entries),
                max_entries=MAX_ENTRIES,
            )
        if sum(info.file_size for info in entries) > ALWAYS_ALLOWED + MAX_RATIO * size:
            raise ArchiveError(
                "{name}: unpacks to more than {max_ratio} times its size", name=name, max_ratio=MAX_RATIO
            )
        self._entries = {info.filename: info for info in entries}
        manifests = [name for name in self._entries if PurePosixPath(name).name == MANIFEST]
        if len(manifests) > 1:
            raise ArchiveError(
                "{name}: contains {manifests} files {manifest}", name=name, manifests=len(manifests), manifest=MANIFEST
            )
        self.has_manifest = bool(manifests)
        #: Formats of the files of labels by their names, in the order in which their labels are stored.
        self.label_files = self._find_label_files()
        self.rows = self._from_manifest(manifests[0]) if manifests else self._from_names()
        self.ignored = self._left_out(manifests[0] if manifests else None)

    def _find_label_files(self) -> dict[str, Format]:
        formats: dict[str, Format] = {}
        for name in sorted(self._entries):
            if PurePosixPath(name).suffix.lower() in _TABLES + _DOCUMENTS:
                with suppress(ArchiveError), self._opened(self._entries[name]) as stream:
                    kind = find_label_format(name, stream)
                    formats |= {} if kind is None else {name: kind}
        return formats

    def _left_out(self, manifest: str | None) -> list[SkippedFile]:
        used = {row.file for row in self.rows} | {row.field for row in self.rows} | {manifest, *self.label_files}
        names = sorted(name for name in self._entries if name not in used)
        why = [get_skip_reason(name, manifest=manifest is not None) for name in names]
        return [SkippedFile(len(self.rows) + i, *left) for i, left in enumerate(zip(names, why, strict=True), 1)]

    def _from_names(self) -> list[ArchiveRow]:
        """Without a manifest every image is a case, named by its file as short as tells it from the others."""
        names = sorted(filter(is_image, self._entries))
        if not names and not self.label_files:
            others = [f"{name}: {get_skip_reason(name, manifest=False)}" for name in sorted(self._entries)[:3]]
            also = f" ({'; '.join(others)})" if others else ""
            raise ArchiveError(
                "{name}: contains no image ({images}), no {manifest} and no labels{also}",
                name=self._name,
                images=", ".join(IMAGES),
                manifest=MANIFEST,
                also=also,
            )
        ids = _short_names(names)
        return [ArchiveRow(i, name, {"external_id": ids[name]}) for i, name in enumerate(names, 1)]

    def _from_manifest(self, manifest: str) -> list[ArchiveRow]:
        """Rows of a manifest, read as it is unpacked, so that one with too many rows costs no more than the limit."""
        info = self._entries[manifest]
        if info.file_size > MAX_MANIFEST:
            raise ArchiveError(
                "{name}: {manifest} is larger than {max_manifest} MiB",
                name=self._name,
                manifest=manifest,
                max_manifest=MAX_MANIFEST // 1024**2,
            )
        if info.file_size > max(MANIFEST_ALLOWED, MAX_RATIO * self._size):
            raise ArchiveError(
                "{name}: {manifest} unpacks to more than {max_ratio} times the archive",
                name=self._name,
                manifest=manifest,
                max_ratio=MAX_RATIO,
            )
        try:
            with self._opened(info) as stream, io.TextIOWrapper(stream, "utf-8-sig", newline="") as text:
                return list(self._rows(manifest, csv.DictReader(text)))
        except UnicodeDecodeError as exc:
            raise ArchiveError(
                "{name}: {manifest} cannot be read as UTF-8: {exc}", name=self._name, manifest=manifest, exc=exc
            ) from exc
        except csv.Error as exc:
            raise ArchiveError(
                "{name}: {manifest} cannot be read as CSV: {exc}", name=self._name, manifest=manifest, exc=exc
            ) from exc
        except _DAMAGE as exc:
            raise ArchiveError(
                "{name}: {manifest} is damaged in the archive: {exc}", name=self._name, manifest=manifest, exc=exc
            ) from exc

    def _rows(self, manifest: str, lines: "csv.DictReader[str]") -> Iterator[ArchiveRow]:
        header = lines.fieldnames or []
        missing, unknown = {"file", "external_id"} - set(header), set(header) - _COLUMNS
        if missing or unknown:
            wrong = (
                Message("column {missing} is missing", missing=repr(sorted(missing)[0]))
                if missing
                else Message("unknown column {unknown}", unknown=repr(sorted(unknown)[0]))
            )
            raise ArchiveError(
                "{name}: {manifest}: {wrong}; columns are {columns}",
                name=self._name,
                manifest=manifest,
                wrong=wrong,
                columns=", ".join(sorted(_COLUMNS)),
            )
        folder, number = PurePosixPath(manifest).parent, 0
        for number, line in enumerate(lines, 1):
            if number > MAX_ROWS:
                raise ArchiveError(
                    "{name}: {manifest} has more than {max_rows:,} rows; send several archives",
                    name=self._name,
                    manifest=manifest,
                    max_rows=MAX_ROWS,
                )
            fields = {key: value for key, value in line.items() if key in _COLUMNS - _FILES and (value or "").strip()}
            surplus = len(line.get(None, []))  # under None: what has no column
            field = line.get("field") or ""
            yield ArchiveRow(
                number, str(folder / (line["file"] or "")), fields, surplus, str(folder / field) if field else ""
            )
        if not number:
            raise ArchiveError("{name}: {manifest} has no row", name=self._name, manifest=manifest)

    def _opened(self, info: zipfile.ZipInfo) -> IO[bytes]:
        if info.compress_type not in _METHODS:
            raise ArchiveError(
                "{name}: {filename} is not compressed with deflate", name=self._name, filename=info.filename
            )
        return self._zip.open(info)

    def read_labels(self, file: str) -> Iterator[LabelRow | BadRow]:
        """Rows of a file of labels, one by one; raises ``ValueError`` if the file cannot be read."""
        info = self._entries[file]
        if info.file_size > MAX_LABELS:
            raise ValueError(Message("the file is larger than {max_image} MiB", max_image=MAX_LABELS // 1024**2))
        try:
            with self._opened(info) as stream:
                yield from read_label_file(cast(BinaryIO, stream), self.label_files[file])
        except _DAMAGE as exc:
            raise ValueError(Message("the file is damaged in the archive")) from exc

    def read(self, row: ArchiveRow, limit: int = MAX_IMAGE) -> bytes:
        """Bytes of a row's image."""
        return self._bytes(row.file, limit)

    def read_field(self, row: ArchiveRow) -> bytes | None:
        """Bytes of the wider field around a row's cell, None where it names none."""
        try:
            return self._bytes(row.field) if row.field else None
        except ValueError as exc:
            raise ValueError(Message("field: {why}", why=str(exc))) from exc

    def _bytes(self, file: str, limit: int = MAX_IMAGE) -> bytes:
        path = PurePosixPath(file)
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(
                Message("file {name} must be in the folder of {manifest}", name=repr(path.name), manifest=MANIFEST)
            )
        info = self._entries.get(file)
        if info is None:
            raise ValueError(Message("file {name} is not in the archive", name=repr(path.name)))
        try:
            with self._opened(info) as stream:
                data = stream.read(limit + 1)
        except _DAMAGE as exc:
            raise ValueError(Message("the file is damaged in the archive")) from exc
        require_size(data, limit)
        return data


def require_size(data: bytes, limit: int) -> None:
    """Refuse an image with more bytes."""
    if len(data) > limit:
        raise ValueError(Message("the file is larger than {max_image} MiB", max_image=limit // 1024**2))


def _short_names(names: list[str]) -> dict[str, str]:
    """A name for each file: without folder and extension, with the folder where others are called alike, or in full.

    >>> _short_names(["a/1.png", "b/1.png", "b/2.png", "c/3.jpg", "c/3.png"])
    {'a/1.png': 'a/1', 'b/1.png': 'b/1', 'b/2.png': '2', 'c/3.jpg': 'c/3.jpg', 'c/3.png': 'c/3.png'}
    """
    paths = [PurePosixPath(name) for name in names]
    ways = [[path.stem for path in paths], [str(path.with_suffix("")) for path in paths], names]
    counts = [Counter(way) for way in ways]
    choices = zip(names, zip(*ways, strict=True), strict=True)
    return {
        name: next((word for word, count in zip(words, counts, strict=True) if count[word] == 1), name)
        for name, words in choices
    }


@contextmanager
def open_archive(path: Path, name: str | None = None) -> Iterator[ImportArchive]:
    """Open an archive on disk."""
    with path.open("rb") as stream, read_archive(stream, name or path.name) as archive:
        yield archive


@contextmanager
def read_archive(stream: IO[bytes], name: str) -> Iterator[ImportArchive]:
    """Open an archive in a file or in memory."""
    try:
        _require_short_directory(stream, name)
        with zipfile.ZipFile(stream) as opened:
            yield ImportArchive(opened, name, stream.seek(0, io.SEEK_END))
    except zipfile.BadZipFile as exc:
        raise ArchiveError("{name}: not a zip archive, or damaged", name=name) from exc


def _require_short_directory(stream: IO[bytes], name: str) -> None:
    """Refuse an archive whose list of files would fill the memory before anybody could count it."""
    # Private to ``zipfile``, and for that reason what it itself goes by: another reader could find another list.
    end = zipfile._EndRecData(stream)  # type: ignore[attr-defined]
    if end and end[zipfile._ECD_SIZE] > MAX_DIRECTORY:  # type: ignore[attr-defined]
        raise ArchiveError(
            "{name}: more entries than can be read; at most {max_entries:,} in one import",
            name=name,
            max_entries=MAX_ENTRIES,
        )


class WritableStream(Protocol):
    """Something that bytes can be written to."""

    def write(self, data: bytes, /) -> int:
        """Take some bytes."""
        ...

    def flush(self) -> None:
        """Pass on what is buffered."""
        ...


def pack_folder(folder: Path, out: WritableStream) -> None:
    """Pack a folder of images and labels, with or without a manifest, as an archive; of other files the names alone."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    packed = {path for path in files if is_image(path.relative_to(folder).as_posix()) or path.name == MANIFEST}
    packed |= {path for path in files if _has_labels(path)}
    if not packed:
        raise ArchiveError("{folder}: contains no image and no labels", folder=folder)
    with zipfile.ZipFile(cast(IO[bytes], out), "w", zipfile.ZIP_STORED) as archive:
        for path in files:
            name = path.relative_to(folder).as_posix()
            if path in packed:
                archive.write(path, name)
            else:
                archive.writestr(name, b"")


def _has_labels(path: Path) -> bool:
    with path.open("rb") as stream:
        return find_label_format(path.name, stream) is not None
