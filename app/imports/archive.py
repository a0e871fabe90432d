"""A zip of images, with or without ``manifest.csv``: which rows it has, and the bytes of each image."""

import csv
import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Protocol, cast

from pydantic import ValidationError

from app.cases.schemas import CaseIn

MANIFEST = "manifest.csv"
MAX_ENTRIES, MAX_IMAGE, MAX_MANIFEST = 200_000, 12 * 1024**2, 256 * 1024**2
_IMAGES = {".png", ".jpg", ".jpeg", ".tif", ".tiff", ".dcm"}
_COLUMNS = {"file", "external_id", "patient", "site", "metadata"}


class ArchiveError(ValueError):
    """An archive that cannot be imported at all; the message says why."""


@dataclass(frozen=True)
class Row:
    """One case to import.

    Attributes:
        number: row, 1 for the first.
        file: name in the archive.
        fields: of the case, or what is wrong with them.
    """

    number: int
    file: str
    fields: dict[str, str]

    def case(self) -> CaseIn:
        """Checked fields.

        Raises:
            ValueError: which field is not acceptable, and why.
        """
        try:
            return CaseIn.model_validate(self.fields)
        except ValidationError as exc:
            first = exc.errors(include_input=False, include_context=False)[0]
            raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from exc


class Archive:
    """An opened archive.

    Args:
        archive: zip file.
        name: of the file, for messages.

    Raises:
        ArchiveError: too many entries, or a manifest that cannot be read.
    """

    def __init__(self, archive: zipfile.ZipFile, name: str) -> None:
        self._zip, self._name = archive, name
        entries = [info for info in archive.infolist() if not info.is_dir()]
        if len(entries) > MAX_ENTRIES:
            raise ArchiveError(f"{name}: {len(entries):,} entries; at most {MAX_ENTRIES:,} in one import")
        self._entries = {info.filename: info for info in entries}
        manifests = [name for name in self._entries if PurePosixPath(name).name == MANIFEST]
        if len(manifests) > 1:
            raise ArchiveError(f"{name}: contains {len(manifests)} files {MANIFEST}")
        self.rows = self._from_manifest(manifests[0]) if manifests else self._from_names()

    def _from_names(self) -> list[Row]:
        """Without a manifest every image is a case, named by its file without folder and extension.

        Raises:
            ArchiveError: there is none.
        """
        names = sorted(name for name in self._entries if PurePosixPath(name).suffix.lower() in _IMAGES)
        if not names:
            raise ArchiveError(f"{self._name}: contains no image and no {MANIFEST}")
        return [Row(i, name, {"external_id": PurePosixPath(name).stem}) for i, name in enumerate(names, 1)]

    def _from_manifest(self, manifest: str) -> list[Row]:
        """Rows of a manifest.

        Raises:
            ArchiveError: it is too large, not UTF-8, or lacks a column.
        """
        if self._entries[manifest].file_size > MAX_MANIFEST:
            raise ArchiveError(f"{self._name}: {manifest} is too large")
        try:
            text = self._zip.read(manifest).decode("utf-8-sig")
        except (UnicodeDecodeError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as exc:
            raise ArchiveError(f"{self._name}: {manifest} cannot be read as UTF-8: {exc}") from exc
        reader = csv.DictReader(io.StringIO(text))
        header = reader.fieldnames or []
        missing, unknown = {"file", "external_id"} - set(header), set(header) - _COLUMNS
        if missing or unknown:
            wrong = f"column {sorted(missing)[0]!r} is missing" if missing else f"unknown column {sorted(unknown)[0]!r}"
            raise ArchiveError(f"{self._name}: {manifest}: {wrong}; columns are {', '.join(sorted(_COLUMNS))}")
        folder = PurePosixPath(manifest).parent
        rows = []
        for number, line in enumerate(reader, 1):
            fields = {key: value for key, value in line.items() if key in _COLUMNS and key != "file" and value}
            rows.append(Row(number, str(folder / (line["file"] or "")), fields))
        if not rows:
            raise ArchiveError(f"{self._name}: {manifest} has no row")
        return rows

    def read(self, row: Row) -> bytes:
        """Bytes of a row's image.

        Raises:
            ValueError: no such file, too large, or damaged.
        """
        info = self._entries.get(row.file)
        if info is None:
            raise ValueError(f"file {PurePosixPath(row.file).name!r} is not in the archive")
        try:
            with self._zip.open(info) as stream:
                data = stream.read(MAX_IMAGE + 1)
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError) as exc:
            raise ValueError("the file is damaged in the archive") from exc
        if len(data) > MAX_IMAGE:
            raise ValueError(f"the file is larger than {MAX_IMAGE // 1024**2} MiB")
        return data


@contextmanager
def open_archive(path: Path) -> Iterator[Archive]:
    """Open an archive on disk.

    Raises:
        ArchiveError: not a zip, or one that cannot be imported.
    """
    try:
        with zipfile.ZipFile(path) as opened:
            yield Archive(opened, path.name)
    except zipfile.BadZipFile as exc:
        raise ArchiveError(f"{path.name}: not a zip archive, or a damaged one") from exc


class Writable(Protocol):
    """Something that bytes can be written to."""

    def write(self, data: bytes, /) -> int:
        """Take some bytes."""
        ...

    def flush(self) -> None:
        """Pass on what is buffered."""
        ...


def pack_folder(folder: Path, out: Writable) -> None:
    """Pack a folder of images, with or without a manifest, as an archive.

    Raises:
        ArchiveError: the folder contains no image.
    """
    files = sorted(p for p in folder.rglob("*") if p.is_file() and (p.suffix.lower() in _IMAGES or p.name == MANIFEST))
    if not files:
        raise ArchiveError(f"{folder}: contains no image")
    with zipfile.ZipFile(cast(IO[bytes], out), "w", zipfile.ZIP_STORED) as archive:
        for path in files:
            archive.write(path, path.relative_to(folder).as_posix())
