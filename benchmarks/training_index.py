"""Looking a million images up in the index of a release that was trained on another million, half of them the same.

``python -m benchmarks.training_index [--save]``
"""

import json
import sys
import time
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from ml.release.training_index import INDEX_FILE, TrainingIndex, as_digests

N = 1_000_000


def main() -> None:
    rng = np.random.default_rng(0)
    known, others = (as_digests([rng.bytes(32 * N)]) for _ in range(2))
    wanted = rng.permutation(np.concatenate([known[::2], others[::2]]))
    with TemporaryDirectory() as folder:
        path = Path(folder) / INDEX_FILE
        started = time.perf_counter()
        empty = known[:0]
        index = TrainingIndex(
            {"network": np.sort(known), "calibration": empty}, {"network": empty, "calibration": empty}
        )
        path.write_bytes(index.to_bytes())
        written = time.perf_counter()
        read = TrainingIndex.read(path)
        opened = time.perf_counter()
        found = int((read.uses(wanted) == "network").sum())
        looked_up = time.perf_counter()
        as_set = set(known.tolist())
        made = time.perf_counter()
        same = sum(digest in as_set for digest in wanted.tolist())
        searched = time.perf_counter()
        size = path.stat().st_size
    assert found == same == N // 2
    rows = {
        "sort and write, s": written - started,
        "open and check, s": opened - written,
        "look up a million, s": looked_up - opened,
        "the same with a set, s": searched - made,
        "making that set, s": made - looked_up,
        "file, MB": size / 1e6,
    }
    for name, value in rows.items():
        print(f"{name:<26}{value:8.2f}")
    if "--save" in sys.argv:
        path = Path(__file__).parent / "results" / f"{date.today().isoformat()}_training_index.json"
        command = "python -m benchmarks.training_index --save"
        path.write_text(json.dumps({"command": command, "digests": N, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
