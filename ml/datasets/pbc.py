"""Real peripheral blood cells: 8 types, and nucleus shape labelled twice.

Images are 48 × 48 averages of the central 240 × 240 px of the photographs.
The demo's 200 cells labelled twice are in no other data set.
"""

import zipfile
from io import BytesIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from PIL import Image
from pyarrow import csv

from ml.datasets.base import ClassInfo, ImageDataset, datasets_folder
from ml.images.preprocess import Preprocessing, fit_normalisation
from ml.util.arrays import IntArray
from ml.util.splits import split_partitions

_WHERE = "Acevedo et al. 2020, Mendeley Data snkd93bnjr, and WBCAtt, github.com/apple2373/wbcatt"
_CROP, _SIZE = 240, 48
#: Number of the demo's cells, and the seed of their draw.
DEMO_CELLS, DEMO_SEED = 200, 2026

CELL_TYPES = (
    ClassInfo("basophil", "Basophil", "b", "Granulocytes"),
    ClassInfo("eosinophil", "Eosinophil", "e", "Granulocytes"),
    ClassInfo("erythroblast", "Erythroblast", "r", "Erythroid and platelets"),
    ClassInfo("ig", "Immature granulocyte", "i", "Granulocytes"),
    ClassInfo("lymphocyte", "Lymphocyte", "l", "Mononuclear"),
    ClassInfo("monocyte", "Monocyte", "m", "Mononuclear"),
    ClassInfo("neutrophil", "Neutrophil", "n", "Granulocytes"),
    ClassInfo("platelet", "Platelet", "p", "Erythroid and platelets"),
)
NUCLEUS_SHAPES = (
    ClassInfo("unsegmented-band", "Unsegmented, band", "b", "Unsegmented"),
    ClassInfo("unsegmented-round", "Unsegmented, round", "r", "Unsegmented"),
    ClassInfo("unsegmented-indented", "Unsegmented, indented", "i", "Unsegmented"),
    ClassInfo("segmented-bilobed", "Segmented, two lobes", "l", "Segmented"),
    ClassInfo("segmented-multilobed", "Segmented, several lobes", "m", "Segmented"),
    ClassInfo("irregular", "Irregular", "x"),
)


def label_table() -> pa.Table:
    """Labels of all cells, a row each."""
    path = datasets_folder("pbc_wbcatt", _WHERE) / "pbc_labels.csv.gz"
    return csv.read_csv(path, convert_options=csv.ConvertOptions(strings_can_be_null=True))


def _text(table: pa.Table, column: str) -> npt.NDArray[np.str_]:
    return np.array([value or "" for value in table.column(column).to_pylist()])


def _dataset(
    name: str,
    classes: tuple[ClassInfo, ...],
    table: pa.Table,
    rows: npt.NDArray[np.intp],
    label_counts: IntArray,
    partition: npt.NDArray[np.str_],
    source: str,
) -> ImageDataset:
    """Rows of the label table with their images."""
    with zipfile.ZipFile(datasets_folder("pbc_wbcatt", _WHERE) / "pbc_images_48.zip") as archive:
        pixels = np.stack([np.asarray(Image.open(BytesIO(archive.read(f"{row:05d}.jpg")))) for row in rows])
    mean, std = fit_normalisation(pixels[partition == "train"])
    return ImageDataset(
        name=name,
        classes=classes,
        pixels=pixels,
        label_counts=label_counts,
        partition=partition,
        case_ids=_text(table, "file")[rows].tolist(),
        patients=None,
        preprocessing=Preprocessing(3, _CROP, _SIZE, mean, std),
        orientation="any",
        source=source,
        licence="CC BY 4.0 (images and types), MIT (attributes)",
    )


def _labelled_twice(table: pa.Table, part: str) -> npt.NDArray[np.intp]:
    """Rows labelled by both annotators, of the test part or the others."""
    inside = _text(table, "wbcatt_split") == "test"
    return np.flatnonzero((inside if part == "test" else ~inside) & (_text(table, "a2_nucleus_shape") != ""))


def demo_rows(table: pa.Table) -> npt.NDArray[np.intp]:
    """Rows of the label table that are the demo's cells, in ascending order."""
    drawn = np.random.default_rng(DEMO_SEED).choice(_labelled_twice(table, "test"), DEMO_CELLS, replace=False)
    return np.sort(drawn)


def load_pbc(seed: int = 0) -> ImageDataset:
    """Load 16,892 cells of 8 types, one label each; without the demo's."""
    # Doubly annotated cells whose photographs are at hand are in the test part.
    table = label_table()
    types = np.asarray(table.column("cell_type_id").to_numpy(), dtype=np.int64)
    files = _text(table, "file").tolist()
    partition = split_partitions(files, {"train": 0.7, "valid": 0.1, "test": 0.2}, seed, types)
    originals = np.isin(np.arange(len(files)), _labelled_twice(table, "test"))
    partition = _swap_into_test(partition, originals, types)
    kept = np.setdiff1d(np.arange(len(files)), demo_rows(table))
    counts = np.eye(len(CELL_TYPES), dtype=np.int64)[types[kept]]
    source = "16,892 peripheral blood cells of 8 types (Acevedo et al. 2020), one label each"
    return _dataset("pbc", CELL_TYPES, table, kept, counts, partition[kept], source)


def _swap_into_test(
    partition: npt.NDArray[np.str_], reserved: npt.NDArray[np.bool_], types: npt.NDArray[np.int64]
) -> npt.NDArray[np.str_]:
    """Move reserved cases to the test part, type for type."""
    result = partition.copy()
    for value in np.unique(types):
        inside = types == value
        move = np.flatnonzero(reserved & inside & (partition != "test"))
        give = np.flatnonzero(~reserved & inside & (partition == "test"))[: len(move)]
        result[give] = partition[move]
        result[move] = "test"
    return result


def load_pbc_nucleus(cases: int | None = None) -> ImageDataset:
    """Load nucleus shapes of 10,098 white cells; 800 have two labels."""
    # 200 of the 304 twice labelled cells of the source's test part are the demo's. As many
    # others take their place in the test part; the calibrators are fitted on the other 496.
    table = label_table()
    first, second = _text(table, "a1_nucleus_shape"), _text(table, "a2_nucleus_shape")
    demo = demo_rows(table)
    rows = np.setdiff1d(np.flatnonzero(first != ""), demo)
    codes = [shape.code for shape in NUCLEUS_SHAPES]
    counts = np.zeros((len(rows), len(codes)), dtype=np.int64)
    for answers in (first[rows], second[rows]):
        given = np.flatnonzero(answers != "")
        np.add.at(counts, (given, np.array([codes.index(a) for a in answers[given]])), 1)
    partition = np.array([{"val": "valid"}.get(s, s) for s in _text(table, "wbcatt_split")[rows]], dtype="U12")
    partition[(second[rows] != "") & (partition != "test")] = "calibration"
    others = _labelled_twice(table, "train and valid")
    instead = np.random.default_rng(DEMO_SEED).choice(others, len(demo), replace=False)
    partition[np.isin(rows, instead)] = "test"
    source = "nucleus shape of 10,098 peripheral blood cells (WBCAtt), 800 labelled twice"
    dataset = _dataset("pbc_nucleus", NUCLEUS_SHAPES, table, rows, counts, partition, source)
    return dataset if cases is None else dataset.thinned(cases)
