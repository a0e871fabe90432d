"""Writes label files with the tools' own packages, as fixtures of the tests.

Run it in a separate environment: ``pip install label-studio-sdk datumaro cleanlab``, then
``python tools/label_fixtures.py tests/ml/label_files``.
"""

import json
import shutil
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

import pandas as pd
from cleanlab.multiannotator import convert_long_to_wide_dataset
from datumaro.components.annotation import Bbox, Label
from datumaro.components.dataset import Dataset
from datumaro.components.dataset_base import DatasetItem
from label_studio_sdk.converter import Converter
from label_studio_sdk.label_interface import LabelInterface
from label_studio_sdk.types import Annotation, UserSimple

CLASSES = ["blast", "lymphocyte", "band neutrophil"]
ANNOTATORS = ["ana", "ben", "chi"]
#: Class number by each annotator of each image, or None.
LABELS: dict[str, tuple[int | None, ...]] = {
    "cell 1.png": (0, 0, 0),
    "cell 2.png": (0, 1, None),
    "Zelle_ä.png": (None, None, 2),
    "slide-1/cell 4.png": (2, 1, 0),
    "slide-2/cell 5.png": (1, 1, None),
    "cell 6.png": (None, 2, 2),
}
GIVEN = [
    (image, name, label)
    for image, row in LABELS.items()
    for name, label in zip(ANNOTATORS, row, strict=True)
    if label is not None
]
CONFIG = f"""<View>
  <Image name="image" value="$image"/>
  <Choices name="cell" toName="image">{"".join(f'<Choice value="{name}"/>' for name in CLASSES)}</Choices>
  <RectangleLabels name="box" toName="image">{"".join(f'<Label value="{name}"/>' for name in CLASSES)}</RectangleLabels>
</View>"""


def write_label_studio(out: Path) -> None:
    """Tasks as a server stores them, by the package's models and converter."""
    interface, tasks, number = LabelInterface(CONFIG), [], 0
    choices, boxes = interface.get_control("cell"), interface.get_control("box")
    box = [boxes.label([CLASSES[0]], x=1, y=1, width=10, height=10)._dict()]
    several = [choices.label(CLASSES[:2])._dict()]
    for task, (image, labels) in enumerate(LABELS.items(), start=11):
        address = f"/data/local-files/?d={image}" if "/" in image else f"/data/upload/1/0a1b2c3{task % 10}-{image}"
        results = [
            (name, [choices.label([CLASSES[label]])._dict()])
            for name, label in zip(ANNOTATORS, labels, strict=True)
            if label is not None
        ]
        results += {11: [("dan", box)], 12: [("dan", several)], 13: [("dan", [])]}.get(task, [])
        annotations = []
        for name, result in results:
            number += 1
            who = name if name == "ana" else f"{name}@example.org"
            user = UserSimple(id=number, username=name, email=who if "@" in who else None)
            at = datetime(2026, 3, 1, 12, tzinfo=UTC) + timedelta(minutes=number)
            for region in result:
                region["id"] = f"region-{number}"  # random otherwise
            times = {"created_at": at, "updated_at": at, "lead_time": 2.5}
            annotation = Annotation(id=number, result=result, was_cancelled=not result, task=task, **times)
            document = json.loads(annotation.json(exclude_none=True))
            document["completed_by"] = json.loads(user.json(exclude_none=True)) if "@" in who else 1
            annotations.append(document)
        tasks.append({"id": task, "data": {"image": address}, "annotations": annotations, "predictions": []})
    with tempfile.TemporaryDirectory() as folder:
        stored = Path(folder) / "tasks"
        stored.mkdir()
        for task in tasks:
            (stored / f"{task['id']}.json").write_text(json.dumps(task))
        Converter(CONFIG, project_dir=folder).convert_to_json(str(stored), folder)
        rows = json.loads((Path(folder) / "result.json").read_text())
    rows.sort(key=lambda task: task["id"])
    (out / "label-studio.json").write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")


def make_dataset(*, with_box: bool) -> Dataset:
    """Labels of whole images, and one box if wanted."""
    items = []
    for image in LABELS:
        annotations = [Label(label, attributes={"annotator": name}) for other, name, label in GIVEN if other == image]
        if with_box and image == "cell 1.png":
            annotations.append(Bbox(1, 1, 10, 10, label=0))
        items.append(DatasetItem(image.removesuffix(".png"), annotations=annotations))
    return Dataset.from_iterable(items, categories=CLASSES)


def write_by_datumaro(out: Path, kind: str, name: str, *, with_box: bool, **options: object) -> None:
    """An export by datumaro: its file of annotations only."""
    with tempfile.TemporaryDirectory() as folder:
        make_dataset(with_box=with_box).export(folder, kind, image_ext=".png", **options)
        (file,) = (path for path in Path(folder).rglob("*") if path.is_file())
        shutil.copyfile(file, out / name)


def write_wide(out: Path) -> None:
    """A column of class numbers per annotator, as cleanlab takes them."""
    rows = pd.DataFrame(GIVEN, columns=["task", "annotator", "label"])
    convert_long_to_wide_dataset(rows).to_csv(out / "wide.csv", index_label="image")


def main() -> None:
    """Write the files and the versions of the packages."""
    out = Path(sys.argv[1])
    write_label_studio(out)
    write_by_datumaro(out, "cvat", "cvat.xml", with_box=True, allow_undeclared_attrs=True)
    write_by_datumaro(out, "coco_labels", "coco.json", with_box=False)
    write_wide(out)
    packages = ("label-studio-sdk", "datumaro", "cleanlab", "pandas")
    lines = [f"- {name} {version(name)}" for name in packages]
    text = "Written by `tools/label_fixtures.py` with\n\n" + "\n".join(lines) + "\n"
    (out / "README.md").write_text(text)


if __name__ == "__main__":
    main()
