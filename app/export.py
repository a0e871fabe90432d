"""What was collected, as a folder that `secondread train --data`, `evaluate` and people can read."""

from pathlib import Path

from sqlalchemy.orm import Session

from app.context import Context
from app.evaluations.service import collected_for
from app.releases.queries import reading_classes
from ml.tables import write_table


def export_dataset(session: Session, context: Context, out: Path, partition: str) -> dict[str, int]:
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
    _, data = collected_for(session, None, partition)
    images = out / "images"
    images.mkdir(parents=True, exist_ok=True)
    names = {row: f"images/{one.case.id}.png" for row, one in enumerate(data.predicted)}
    for row, one in enumerate(data.predicted):
        (out / names[row]).write_bytes(context.images.get(one.case.stored_sha256))
    files = [names[row] for row, _, _ in data.label_rows]
    write_table(data.label_table() | {"file": files}, out / "labels.csv")
    write_table(data.prediction_table(), out / "predictions.csv")
    classes = reading_classes(session)
    columns = {key: [getattr(info, key) for info in classes] for key in ("code", "name", "shortcut")}
    write_table(columns, out / "classes.csv")
    return {"n_cases": len(data.predicted), "n_labels": len(data.label_rows)}
