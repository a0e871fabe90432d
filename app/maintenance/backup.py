"""Backup and restore: database first, then what it names; a manifest of digests shows whether all of it is there."""

import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypedDict

from sqlalchemy import Engine, func, inspect, make_url, select
from sqlalchemy.orm import Session

import migrations
from app.audit.anchor import count_anchored_erasures
from app.audit.chain import events
from app.audit.chain.keys import KeyRing, derive_keys
from app.context import ServiceContext
from app.database.engine import make_engine
from app.database.migration import empty_job_engine, require_known_revision
from app.database.tables import Erasure, Evaluation
from app.http.errors import NotFound
from app.maintenance.erasure_registry import ErasureListError, read_erasure_list
from app.reports.service import EVALUATIONS, evaluation_folder, shared_folder_name
from app.storage.blobs import BlobStore, DamagedObjectError
from app.storage.bundles import SharedFolders
from ml.util.files import file_sha256, read_json, sync_file, sync_folder, write_json

_SQLITE, _POSTGRES, _SECRET = "database.db", "database.dump", "secret.key"
_FOLDERS = ("images", "releases", EVALUATIONS)


class BackupReport(TypedDict):
    """Size of a backup, images that were damaged before it was made, and its audit head."""

    # The copy of the database contains the head, and may have a few events more.

    n_files: int
    n_bytes: int
    damaged: list[str]
    head: str


def write_backup(context: ServiceContext, out: Path) -> BackupReport:
    """Write a backup folder while the service runs; one that fails leaves nothing behind."""
    # Images and releases are only ever added, so a copy made after the database's contains everything that it names.
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{out}: the folder is not empty; choose another one")
    with context.database.read() as session:
        head, erasures = events.read_head_text(session), _count_erasures(session)
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = out.with_name(f".{out.name}.{secrets.token_hex(4)}.unfinished")
    unfinished.mkdir(mode=0o700)  # it contains the secret key
    try:
        files = _write_backup_files(context, unfinished, head, erasures)
        unfinished.rename(out)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    sync_folder(out.parent)
    damaged = [Path(name).name for name, digest in files.items() if _is_image(name) and Path(name).name != digest]
    n_bytes = sum((out / name).stat().st_size for name in files)
    return {"n_files": len(files), "n_bytes": n_bytes, "damaged": damaged, "head": head}


def _count_erasures(session: Session) -> int:
    return session.execute(select(func.count()).select_from(Erasure)).scalar_one()


def require_erasure_list(source: Path, path: Path, anchor: Path) -> int:
    """Refuse to bring a backup back without the list of those who were erased after it."""
    lines = read_erasure_list(path, derive_keys(KeyRing.parse((source / _SECRET).read_bytes())).erasures)
    n_required = max(read_json(source / "manifest.json")["erasures"], count_anchored_erasures(anchor))
    if len(lines) < n_required:
        raise ErasureListError(
            f"{path}: the list has {len(lines)} erasures, and there were {n_required}: take a newer copy"
        )
    return len(lines)


def _is_image(name: str) -> bool:
    return name.startswith("images/")


def _write_backup_files(context: ServiceContext, out: Path, head: str, erasures: int) -> dict[str, str]:
    """Write everything into an empty folder, the manifest last; gives the digest of each file."""
    _dump_database(context, out)
    for name in context.folders.shared("releases"):
        context.folders.path(name)
    for name, source in zip(_FOLDERS, _get_source_folders(context), strict=True):
        if name == "images" and context.bucket is not None:
            _copy_images(context.bucket, out / name)
        elif name == EVALUATIONS and context.bucket is not None:
            _copy_evaluations(context, out)
        elif source.is_dir():
            ignore = shutil.ignore_patterns("*.tmp", ".candidate-*")
            shutil.copytree(source, out / name, ignore=ignore)
    secret = out / _SECRET
    secret.touch(mode=0o600)
    secret.write_bytes(context.settings.key_ring().to_bytes())
    files = {str(path.relative_to(out)): file_sha256(path) for path in sorted(out.rglob("*")) if path.is_file()}
    for name in files:
        sync_file(out / name)
    signed = {
        "head": head,
        "signature": context.keys.audit.sign(head),
        "public_key": context.keys.audit.public_key,
    }
    manifest = {"revision": migrations.HEAD, "files": files, "audit": signed, "erasures": erasures}
    write_json(out / "manifest.json", manifest)
    return files


def _copy_images(bucket: BlobStore, folder: Path) -> None:
    """Copy every image of the bucket, a damaged one left out: `damaged` of a backup is of files."""
    for blob in bucket.under("images"):
        path = folder.parent / blob.key
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(
            DamagedObjectError, NotFound
        ):  # `db verify` names a damaged one; a missing one was erased just now
            bucket.fetch(blob.key, path)


def _copy_evaluations(context: ServiceContext, out: Path) -> None:
    """Copy the frozen evaluations that the database names; a damaged one is left out, and `db verify` names it."""
    with context.database.read() as session:
        evaluations = session.execute(select(Evaluation.id, Evaluation.snapshot_sha256)).all()
    for evaluation_id, digest in evaluations:
        name = shared_folder_name(context.folders, evaluation_id, digest)
        with suppress(DamagedObjectError):
            context.folders.bring(name)
            if (context.settings.home / name).is_dir():
                shutil.copytree(context.settings.home / name, evaluation_folder(out, evaluation_id))


def _require_empty(targets: Iterable[Path], bucket: BlobStore | None) -> None:
    for target in targets:
        if target.exists() and any(target.iterdir()):
            raise ValueError(f"{target}: not empty; restore into a new HOME")
    if bucket is not None and any(True for name in (*_FOLDERS, "imports", "snapshots") for _ in bucket.under(name)):
        raise ValueError("the bucket is not empty; restore into another prefix")


def _upload_backup_files(bucket: BlobStore, source: Path, home: Path) -> None:
    for path in sorted((source / "images").glob("*/*")):
        bucket.put(f"images/{path.parent.name}/{path.name}", path)
    for path in sorted((source / "releases").glob("*")):
        SharedFolders(home, bucket).publish(f"releases/{path.name}", path)


def _get_source_folders(context: ServiceContext) -> tuple[Path, Path, Path]:
    settings = context.settings
    return settings.images_folder, settings.releases_folder, settings.home / EVALUATIONS


def _dump_database(context: ServiceContext, out: Path) -> None:
    engine = context.database.engine
    if engine.dialect.name == "sqlite":
        with engine.connect() as connection:
            connection.exec_driver_sql("ROLLBACK")
            connection.exec_driver_sql("VACUUM INTO ?", (str(out / _SQLITE),))
            connection.exec_driver_sql("BEGIN")
        return
    # what the job engine remembers is no part of a backup: the jobs' rows are the truth
    options = ("--format=custom", "--no-owner", "--no-acl", "--exclude-schema=dbos")
    _run_postgres_program("pg_dump", engine, *options, f"--file={out / _POSTGRES}")


def _run_postgres_program(program: str, engine: Engine, *arguments: str) -> None:
    binary = shutil.which(program) or next(map(str, sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{program}"))), None)
    if binary is None:
        raise ValueError(f"{program} is missing: install PostgreSQL's client programs")
    url = make_url(str(engine.url.render_as_string(hide_password=False)))
    # the password goes through a file: a command line is seen by everybody on the machine
    with tempfile.NamedTemporaryFile("w", prefix="pgpass") as secret:
        escaped = (url.password or "").replace("\\", "\\\\").replace(":", "\\:")
        secret.write(f"*:*:*:*:{escaped}\n")
        secret.flush()
        plain = url.set(drivername="postgresql")._replace(password=None).update_query_dict({"passfile": secret.name})
        command = [binary, *arguments, f"--dbname={plain.render_as_string()}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode != 0:
        raise ValueError(f"{program} failed: {done.stderr.strip().splitlines()[-1:]}")


def check_backup(source: Path) -> dict[str, str]:
    """Verify every file of a backup against its manifest."""
    if not (source / "manifest.json").is_file():
        raise ValueError(f"{source}: not a backup (no manifest.json)")
    manifest = read_json(source / "manifest.json")
    require_known_revision(manifest.get("revision"), f"the backup {source}")
    files: dict[str, str] = manifest["files"]
    for name, digest in files.items():
        path = source / name
        if not path.is_file() or file_sha256(path) != digest:
            raise ValueError(f"{path}: missing, or changed since the backup")
    return files


def _require_no_database(url: str) -> None:
    """Refuse to restore over a database."""
    if url.startswith("sqlite"):
        path = Path(make_url(url).database or "")
        if path.exists():
            raise ValueError(f"{path}: there is a database already; restore into a new HOME")
        return
    engine = make_engine(url)
    tables = inspect(engine).get_table_names()
    engine.dispose()
    if tables:
        raise ValueError(f"{make_url(url).database}: there is a database already; restore into a new, empty one")


def restore_backup(
    source: Path, home: Path, images: Path, url: str, ring: KeyRing | None = None, bucket: BlobStore | None = None
) -> tuple[int, KeyRing]:
    """Bring a backup back into an empty installation."""
    files = check_backup(source)
    own = KeyRing.parse((source / _SECRET).read_bytes())
    if ring is not None and ring.oldest(len(own.secrets)) != own:
        raise ValueError(
            f"{source}: a backup of another key than the one in use; leave the key out, and that of the backup comes "
            "with it"
        )
    sqlite = url.startswith("sqlite")
    if (_SQLITE if sqlite else _POSTGRES) not in files:
        raise ValueError(f"{source}: a backup of another kind of database")
    targets = (images, home / "releases", home / EVALUATIONS)
    _require_empty(targets, bucket)
    _require_no_database(url)
    home.mkdir(parents=True, exist_ok=True)
    if bucket is not None:
        _upload_backup_files(bucket, source, home)
    if sqlite:
        shutil.copyfile(source / _SQLITE, Path(make_url(url).database or ""))
    engine = make_engine(url)
    if not sqlite:
        _run_postgres_program(
            "pg_restore", engine, "--no-owner", "--no-acl", "--exit-on-error", str(source / _POSTGRES)
        )
    empty_job_engine(engine)
    engine.dispose()
    for name, target in zip(_FOLDERS, targets, strict=True):
        if (source / name).is_dir() and (bucket is None or name == EVALUATIONS):
            shutil.copytree(source / name, target, dirs_exist_ok=True)
    if ring is None:
        secret = home / _SECRET
        secret.touch(mode=0o600)
        shutil.copyfile(source / _SECRET, secret)
    return len(files), own
