"""Files that are written whole or not at all."""

import errno
from pathlib import Path

import pytest

from ml.util.files import temporary_path, write_bytes_atomically


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
