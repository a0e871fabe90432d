"""Shards of a long list of images: in any order, killed, raced, they are one run byte for byte."""

import csv
import random
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from ml.images.preprocess import ImageRejectedError, decode_image
from ml.scoring.shards import ShardError, merge_job_shards, rows_of, score_shard
from ml.scoring.table import score_images
from ml.tables.files import read_predictions
from ml.tables.reading import TableError
from ml.util.files import read_json, write_json
from tests.support.images import CORPUS
from tests.support.shards import joined, left_over, manifest, one_run, write_images
from tests.support.tiny_release import write_tiny_release


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("shards") / "images")


@pytest.mark.parametrize("n_rows", [1, 63, 64, 65, 1000])
@pytest.mark.parametrize("n_shards", [1, 2, 7, 40])
def test_shards_divide_the_rows_at_whole_blocks(n_rows: int, n_shards: int) -> None:
    rows = [rows_of(shard, n_shards, n_rows) for shard in range(1, n_shards + 1)]
    assert [row for first, stop in rows for row in range(first, stop)] == list(range(n_rows))
    assert all(first % 64 == 0 or first == n_rows for first, _ in rows)


@pytest.mark.parametrize(("kind", "n_shards"), [("csv", 3), ("parquet", 12)])
def test_shards_in_any_order_are_one_run(
    tiny_release: Path, images: Path, tmp_path: Path, kind: str, n_shards: int
) -> None:
    listed = manifest(images, 500, f"any.{kind}")
    expected = one_run(tiny_release, listed, tmp_path / "one.parquet")
    order = list(range(1, n_shards + 1))
    random.Random(n_shards).shuffle(order)
    for shard in order:
        score_shard(tiny_release, listed, tmp_path / "job", (shard, n_shards))
    assert joined(tmp_path / "job") == expected
    assert joined(tmp_path / "job") == expected
    assert not left_over(tmp_path / "job")


def test_a_shard_that_is_there_is_left_and_made_again_it_has_the_same_bytes(
    tiny_release: Path, images: Path, tmp_path: Path
) -> None:
    listed = manifest(images, 200, "again.csv")
    first = score_shard(tiny_release, listed, tmp_path / "job", (1, 2))
    written = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in (tmp_path / "job").iterdir()}
    assert score_shard(tiny_release, listed, tmp_path / "job", (1, 2)) == first
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in (tmp_path / "job").iterdir()} == written
    for path in list(written):
        path.unlink()
    assert score_shard(tiny_release, listed, tmp_path / "job", (1, 2)) == first
    assert {path: path.read_bytes() for path in (tmp_path / "job").iterdir()} == {p: w[1] for p, w in written.items()}


@pytest.mark.parametrize("left", [{"predictions.parquet"}, {"predictions.parquet", "errors.parquet"}])
def test_a_shard_that_was_killed_between_its_files_is_made_again(
    tiny_release: Path, images: Path, tmp_path: Path, left: set[str]
) -> None:
    listed, job = manifest(images, 200, "between.csv"), tmp_path / "job"
    for shard in (1, 2):
        score_shard(tiny_release, listed, job, (shard, 2))
    expected = joined(job)
    for path in job.glob("shard-00001-*"):
        if path.name.partition(".")[2] not in left:
            path.unlink()
    with pytest.raises(ShardError, match=r"1 of 2 shard is missing: 1$"):
        merge_job_shards(job)
    score_shard(tiny_release, listed, job, (1, 2))
    assert joined(job) == expected


def test_unreadable_images_are_rows_of_errors_with_names_and_reasons(tiny_release: Path, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    expected = {}
    for number, (content, reason) in enumerate(CORPUS.values()):
        (folder / f"{number:03d}.png").write_bytes(content)
        if reason is not None:
            expected[f"{number:03d}.png"] = reason
    (folder / "gone.png").symlink_to(tmp_path / "nothing")
    done = score_images(tiny_release, folder, tmp_path / "p.csv")
    with done.errors.open() as stream:
        found = {row["file"]: row for row in csv.DictReader(stream)}
    assert {name: row["reason"] for name, row in found.items()} == expected | {"gone.png": "missing"}
    for name in expected:
        with pytest.raises(ImageRejectedError) as refused:
            decode_image((folder / name).read_bytes())
        assert found[name]["message"] == str(refused.value)
    assert str(tmp_path) not in done.errors.read_text()
    names = sorted(path.name for path in folder.iterdir())
    assert [int(row["row"]) for row in found.values()] == [names.index(name) for name in found]
    assert done.n_predictions + done.n_errors == len(names)
    read = read_predictions(done.predictions)
    assert [f"{case}.png" for case in read.case_ids] == [name for name in names if name not in found]


def test_a_list_of_nothing_that_can_be_read_ends_well(tiny_release: Path, tmp_path: Path) -> None:
    listed = tmp_path / "list.csv"
    listed.write_text("case_id,file\na,a.png\nb,b.png\n")
    assert one_run(tiny_release, listed, tmp_path / "one.parquet") is not None
    for shard in (1, 2):
        score_shard(tiny_release, listed, tmp_path / "job", (shard, 2))
    assert joined(tmp_path / "job")[1] == (tmp_path / "one.errors.parquet").read_bytes()
    assert merge_job_shards(tmp_path / "job").reasons == {"missing": 2}


def test_folders_are_walked_in_one_order_however_few_names_fit_in_memory(tmp_path: Path) -> None:
    from ml.scoring.images import open_list

    names = [f"{a}/{b}.{kind}" for a in ("x", "y/z", "x-1") for b in range(9) for kind in ("png", "TIF", "txt")]
    random.Random(1).shuffle(names)
    for name in [*names, "top.jpg", "top.csv", "schön.png"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "around").symlink_to(tmp_path)
    whole = open_list(tmp_path)
    assert whole.rows == 3 * 9 * 2 + 2
    found = [name for rows in whole.read(0, whole.rows) for name in rows.names]
    assert found == sorted((name for name in [*names, "top.jpg", "schön.png"] if "txt" not in name), key=str.encode)
    for few in (1, 5, whole.rows):
        other = open_list(tmp_path, names_in_memory=few)
        assert (other.rows, other.sha256) == (whole.rows, whole.sha256)
        assert [name for rows in other.read(0, other.rows) for name in rows.names] == found
    assert "x-1/3" in [case for rows in whole.read(0, whole.rows) for case in rows.case_ids]
    (tmp_path / "another.png").write_bytes(b"")
    assert open_list(tmp_path).sha256 != whole.sha256


def test_missing_shards_are_named(tiny_release: Path, images: Path, tmp_path: Path) -> None:
    listed = manifest(images, 700, "missing.csv")
    for shard in (1, 4, 9):
        score_shard(tiny_release, listed, tmp_path / "job", (shard, 9))
    with pytest.raises(ShardError, match=r"6 of 9 shards are missing: 2–3, 5–8$"):
        merge_job_shards(tmp_path / "job")
    assert not (tmp_path / "job" / "predictions.parquet").exists()
    with pytest.raises(ShardError, match=r"no shard was ever written"):
        merge_job_shards(tmp_path)


def test_parts_of_another_job_are_refused_with_the_difference(tiny_release: Path, images: Path, tmp_path: Path) -> None:
    listed, job = manifest(images, 200, "a.csv"), tmp_path / "job"
    score_shard(tiny_release, listed, job, (1, 2))
    other = write_tiny_release(tmp_path / "release", "another name")
    before = {path.name: path.read_bytes() for path in job.iterdir()}
    with pytest.raises(ShardError, match="shards of another release"):
        score_shard(other, listed, job, (2, 2))
    with pytest.raises(ShardError, match="shards of another list of images"):
        score_shard(tiny_release, manifest(images, 201, "b.csv"), job, (2, 2))
    with pytest.raises(ShardError, match="shards of another number of shards"):
        score_shard(tiny_release, listed, job, (2, 3))
    with pytest.raises(ShardError, match="shards of another number of augmented views"):
        score_shard(tiny_release, listed, job, (2, 2), tta=2)
    assert {path.name: path.read_bytes() for path in job.iterdir()} == before
    # a part that was copied in from elsewhere
    score_shard(other, listed, tmp_path / "other", (2, 2))
    for path in (tmp_path / "other").glob("shard-*"):
        (job / path.name).write_bytes(path.read_bytes())
    with pytest.raises(ShardError, match=r"00002\.json: is a part of another job"):
        merge_job_shards(job)


def test_a_part_that_was_changed_is_seen(tiny_release: Path, images: Path, tmp_path: Path) -> None:
    listed, job = manifest(images, 200, "changed.csv"), tmp_path / "job"
    for shard in (1, 2):
        score_shard(tiny_release, listed, job, (shard, 2))
    expected = joined(job)
    part = job / "shard-00002-of-00002.predictions.parquet"
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    with pytest.raises(ShardError, match=r"is not what was written: delete the three files of shard 2"):
        merge_job_shards(job)
    (job / "shard-00002-of-00002.json").unlink()
    with pytest.raises(ShardError, match="other bytes"):
        score_shard(tiny_release, listed, job, (2, 2))
    for path in job.glob("shard-00002*"):
        path.unlink()
    score_shard(tiny_release, listed, job, (2, 2))
    assert joined(job) == expected


def test_counts_that_do_not_add_up_are_refused(tiny_release: Path, images: Path, tmp_path: Path) -> None:
    listed, job = manifest(images, 100, "counts.csv"), tmp_path / "job"
    score_shard(tiny_release, listed, job, (1, 1))
    path = job / "shard-00001-of-00001.json"
    write_json(path, read_json(path) | {"n_predictions": 1})
    with pytest.raises(ShardError, match=r"98 predictions and 2 errors of 100 images"):
        merge_job_shards(job)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_case_that_stands_twice_is_named(tiny_release: Path, images: Path, tmp_path: Path, kind: str) -> None:
    listed = images / f"twice.{kind}"
    cases = [f"c{row}" for row in range(150)]
    cases[140] = "c3"
    table = {"case_id": cases, "file": ["1.png"] * 150}
    if kind == "parquet":
        parquet.write_table(pa.table(table), listed)
    else:
        with listed.open("w", newline="") as stream:
            csv.writer(stream).writerows([tuple(table), *zip(*table.values(), strict=True)])
    row = 142 if kind == "csv" else 141
    with pytest.raises(TableError, match=rf"row {row}, column case_id: duplicated case 'c3'"):
        score_images(tiny_release, listed, tmp_path / "p.csv")
    assert not (tmp_path / "p.csv").exists()
    for shard in (1, 2):
        score_shard(tiny_release, listed, tmp_path / "job", (shard, 2))
    with pytest.raises(ShardError, match="case 'c3' stands twice"):
        merge_job_shards(tmp_path / "job")


@pytest.mark.parametrize("in_memory", [1, 7, 1000])
def test_repeats_are_found_however_few_fit_in_memory(in_memory: int) -> None:
    from ml.scoring.images import repeated_row

    names = [f"name {row}" for row in range(900)]
    assert repeated_row([names[:500], names[500:]], in_memory=in_memory) is None
    names[700], names[650], names[800] = names[2], names[649], names[2]
    assert repeated_row(iter([names[:500], [], names[500:]]), in_memory=in_memory) == 650


def test_columns_of_a_manifest_that_nobody_asked_for_may_contain_anything(
    tiny_release: Path, images: Path, tmp_path: Path
) -> None:
    listed = images / "wild.csv"
    with listed.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["site", "case_id", "file"])
        # numbers first, and words only after what is read at once
        writer.writerows((row if row < 60_000 else "ward", f"c{row}", "0.png") for row in range(60_100))
    part = score_shard(tiny_release, listed, tmp_path / "job", (900, 900))
    assert part["n_predictions"] == rows_of(900, 900, 60_100)[1] - rows_of(900, 900, 60_100)[0]
    listed.write_text("case_id,picture\na,0.png\n")
    with pytest.raises(TableError, match="column 'file' is missing; there are case_id, picture"):
        score_images(tiny_release, listed, tmp_path / "p.csv")
    listed.write_text("case_id,file\na,0.png\n,0.png\n")
    with pytest.raises(TableError, match="row 3, column case_id: the value is missing"):
        score_images(tiny_release, listed, tmp_path / "p.csv")


@pytest.mark.parametrize("name", ["images", "list.csv", "list.parquet"])
def test_a_list_that_is_not_there_is_said_so(tmp_path: Path, name: str) -> None:
    from ml.scoring.images import open_list

    with pytest.raises(TableError, match=f"{name}: there is no such file or folder"):
        open_list(tmp_path / name)
