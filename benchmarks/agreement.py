"""How long ``secondread agreement`` takes for hundreds of classes and thousands of annotators.

Each table is measured in a process of its own: seconds of processor, memory at its peak, and Krippendorff's α beside
that of the package ``krippendorff`` on the same labels, with its seconds, where its N × K × K numbers fit into memory
(of the first table they would take 6.4 GB). ``--save`` keeps the figures in ``results/``.
"""

import json
import multiprocessing
import resource
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from pathlib import Path

import krippendorff
import numpy as np

from ml.agreement import measure_agreement

#: Cases, annotators (None: another name for each reading), classes, labels per case.
TABLES = {
    "5,000 cases, 5 annotators, 400 classes": (5_000, 5, 400, 5),
    "4,000 cases, a name per reading (20,000 names), 300 classes": (4_000, None, 300, 5),
    "10,000 cases, 2,571 annotators, 10 classes, 51 labels each": (10_000, 2_571, 10, 51),
}

#: Numbers that the other package may hold at once.
_FITS = 100_000_000


def draw(n_cases: int, n_annotators: int | None, n_classes: int, per_case: int) -> tuple[np.ndarray, ...]:
    """Case, annotator and label (M,) of each reading; 70 % of the labels are the case's class."""
    rng = np.random.default_rng(0)
    case = np.repeat(np.arange(n_cases), per_case)
    names = np.arange(case.size)
    if n_annotators is not None:
        names = np.concatenate([rng.choice(n_annotators, per_case, replace=False) for _ in range(n_cases)])
    truth = rng.integers(0, n_classes, n_cases)[case]
    return case, names, np.where(rng.random(case.size) < 0.7, truth, rng.integers(0, n_classes, case.size))


def measure(name: str) -> dict[str, object]:
    """Seconds, memory and α of one table."""
    case, names, label = draw(*TABLES[name])
    table = {
        "case_id": np.char.add("c", case.astype(str)),
        "annotator": np.char.add("r", names.astype(str)),
        "label": np.char.add("k", np.char.zfill(label.astype(str), 4)),
    }
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    found = measure_agreement(table)
    ours, memory = time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    counts = np.zeros((int(case.max()) + 1, int(label.max()) + 1), dtype=np.int64)
    np.add.at(counts, (case, label), 1)
    start, theirs = time.process_time(), None
    if counts.shape[0] * counts.shape[1] ** 2 < _FITS:
        theirs = float(krippendorff.alpha(value_counts=counts, level_of_measurement="nominal"))
    return {
        "table": name,
        "seconds": round(ours, 2),
        "megabytes": round((memory - before) / 1024),
        "alpha": found.krippendorff_alpha.value,
        "alpha_low": found.krippendorff_alpha.low,
        "alpha_high": found.krippendorff_alpha.high,
        "alpha_of_krippendorff": theirs,
        "seconds_of_krippendorff": None if theirs is None else round(time.process_time() - start, 2),
        "pairs": len(found.pairs),
        "warnings": found.warnings,
    }


def main() -> None:
    rows = []
    for name in TABLES:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            row = pool.submit(measure, name).result()
        rows.append(row)
        print(
            f"{name}: {row['seconds']} s, {row['megabytes']} MB, alpha {row['alpha']:.6f}; "
            f"krippendorff {row['seconds_of_krippendorff']} s for alpha {row['alpha_of_krippendorff']} alone",
            flush=True,
        )
    if "--save" in sys.argv:
        path = Path(__file__).parent / "results" / f"{date.today().isoformat()}_agreement.json"
        path.write_text(json.dumps({"date": date.today().isoformat(), "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
