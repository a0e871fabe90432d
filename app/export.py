"""What was collected, as a folder that `secondread train --data`, `evaluate` and people can read."""

from pathlib import Path

from sqlalchemy.orm import Session

from app.context import Context
from app.evaluations.cohort import Partition, Question
from app.evaluations.queries import stored_images
from app.evaluations.service import collected_tables
from app.releases.queries import reading_classes
from ml.tables import write_table


def export_dataset(session: Session, context: Context, out: Path, partition: Partition) -> dict[str, int]:
    """Write images, labels.csv, predictions.csv and classes.csv.

    Args:
        session: for reading.
        context: parts of the service.
        out: folder to make; must be empty.
        partition: all, calibration or evaluation.

    Returns:
        Number of cases and of labels.

    Raises:
        ValueError: the folder holds something.
    """
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{out}: the folder is not empty; choose another --out")
    question = Question(partition=partition, weighting="none")
    data = collected_tables(session, question)
    images = out / "images"
    images.mkdir(parents=True, exist_ok=True)
    stored = stored_images(session, data.case_ids)
    names = [f"images/{case_id}.png" for case_id in data.case_ids]
    for name, case_id in zip(names, data.case_ids, strict=True):
        (out / name).write_bytes(context.images.get(stored[case_id]))
    files = [names[row] for row in data.labels.pop("row")]
    write_table(data.labels | {"file": files}, out / "labels.csv")
    write_table(data.predictions, out / "predictions.csv")
    classes = reading_classes(session)
    columns = {key: [getattr(info, key) for info in classes] for key in ("code", "name", "shortcut")}
    write_table(columns, out / "classes.csv")
    return {"n_cases": len(data.case_ids), "n_labels": len(files)}
