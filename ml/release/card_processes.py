"""What a card says of the processes that trained its network together."""

from collections.abc import Sequence
from typing import TypedDict

from ml.charts.rows import EpochMetrics

_BATCH_NORM = {"per-process": ", with batch normalisation over each process's part of it"}


class ProcessesDocument(TypedDict):
    """How many epochs so many processes trained together, and of what their batch normalisation took its statistics.

    ``batch_norm`` is ``per-process`` (each one's part of a batch), or None: one process, or a network without any.
    """

    processes: int
    batch_norm: str | None
    epochs: int


def processes_of(history: list[EpochMetrics]) -> list[ProcessesDocument]:
    """Which processes trained how many epochs, in their order; nothing where no epoch was trained by several."""
    rows: list[ProcessesDocument] = []
    for epoch in history:
        count, norm = epoch.get("processes", 1), epoch.get("batch_norm")
        if not rows or (rows[-1]["processes"], rows[-1]["batch_norm"]) != (count, norm):
            rows.append({"processes": count, "batch_norm": norm, "epochs": 0})
        rows[-1]["epochs"] += 1
    return rows if any(row["processes"] > 1 for row in rows) else []


def processes_sentence(rows: Sequence[ProcessesDocument]) -> str:
    """Who trained which epochs; nothing on cards of networks that one process trained."""
    shown = [
        f"{row['epochs']} epochs by {row['processes']}" + _BATCH_NORM.get(row["batch_norm"] or "", "") for row in rows
    ]
    return f" Number of processes that shared each batch of its training: {'; '.join(shown)}." if shown else ""
