"""Lists of images and tables of any length, for benchmarks of commands on files."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from tests.support.service import cell_png

FILES, SIDE, N_CLASSES = 64, 96, 8


def write_list(folder: Path, rows: int) -> Path:
    """A list of so many images, which are few files again and again."""
    images = folder / "images"
    if not images.exists():
        images.mkdir()
        for index in range(FILES):
            (images / f"{index}.png").write_bytes(cell_png(index, SIDE))
    path = images / f"list-{rows}.csv"
    lines = [f"case-{row:07d},{row % FILES}.png" for row in range(rows)]
    path.write_text("\n".join(["case_id,file", *lines]) + "\n")
    return path


def write_tables(folder: Path, rows: int) -> tuple[Path, Path]:
    """LABELS with two labels per case and ten cases per patient, and PREDICTIONS, both sorted."""
    rng = np.random.default_rng(0)
    names = [f"{row:09d}" for row in range(rows)]
    probs = rng.dirichlet(np.ones(N_CLASSES), rows)
    columns: dict[str, Any] = {"case_id": names} | {f"prob:{k}": probs[:, k] for k in range(N_CLASSES)}
    read: dict[str, Any] = {"case_id": np.repeat(names, 2), "annotator": ["a", "b"] * rows}
    read["patient"] = np.repeat([name[:-1] for name in names], 2)
    read["label"] = rng.integers(N_CLASSES, size=2 * rows).astype(str)
    paths = folder / f"labels-{rows}.parquet", folder / f"predictions-{rows}.parquet"
    for path, table in zip(paths, (read, columns), strict=True):
        parquet.write_table(pa.table(table), path, row_group_size=122_880)
    return paths
