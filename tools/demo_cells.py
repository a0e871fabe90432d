"""The real cells of the demo, written from the data set: `python -m tools.demo_cells`.

Images keep their bytes and names; labels.csv has what both annotators said of the nucleus. Texts and licences beside
them are written by hand, the release by the commands in docs/contribute/demo-cells.md.
"""

import csv
import zipfile
from pathlib import Path

from app.demo.real_cells import FOLDER
from ml.datasets.base import datasets_folder
from ml.datasets.pbc import demo_rows, label_table


def demo_cells() -> list[dict[str, str]]:
    """The demo's cells: file, cell type and nucleus shape by either annotator."""
    table = label_table()
    names = {
        "file": "file",
        "cell_type": "cell_type",
        "annotator_1": "a1_nucleus_shape",
        "annotator_2": "a2_nucleus_shape",
    }
    drawn = table.take(demo_rows(table)).select(list(names.values())).rename_columns(list(names))
    return [{name: str(value) for name, value in row.items()} for row in drawn.to_pylist()]


def write_cells(folder: Path) -> None:
    """Write images/ and labels.csv of the cells that were drawn."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    cells = demo_cells()
    with zipfile.ZipFile(datasets_folder("pbc_wbcatt", "its README") / "originals_test_304.zip") as archive:
        for cell in cells:
            (folder / "images" / cell["file"]).write_bytes(archive.read(cell["file"]))
    with (folder / "labels.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(cells[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(cells)


if __name__ == "__main__":
    write_cells(FOLDER)
