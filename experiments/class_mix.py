"""How often the mix of labels is called different where it is not, and where one class has moved by a tenth.

Next to the test that counts labels as independent, two for each case that is read twice, as version 0.1.0 did.
"""

import argparse
import sys
from datetime import date

import numpy as np
import numpy.typing as npt
from scipy.stats import chi2_contingency

from app.metrics.drift import MIX_LIMIT, MIX_P_LIMIT, P_LIMIT
from experiments import RESULTS
from ml.metrics.homogeneity_test import mix_change_of_patients
from ml.util.arrays import FloatArray, IntArray

SHARE = 1 / np.arange(1, 9) ** 1.3
N_REFERENCE, SPREAD, READ_TWICE = 2000, 3.0, 0.28
DESIGNS = ((1000, 1), (500, 5), (1000, 5), (2000, 10))


def cells(
    rng: np.random.Generator, n: int, per_patient: int, share: FloatArray
) -> tuple[IntArray, IntArray, npt.NDArray[np.bool_]]:
    """Two labels of each cell (N, 2), patients, and which cells are read twice: the rarer their class, the likelier."""
    mixes = rng.dirichlet(SPREAD * share, n // per_patient)
    cluster = np.repeat(np.arange(n // per_patient), per_patient)
    class_ = (rng.random(n)[:, None] > mixes[cluster].cumsum(axis=1)[:, :-1]).sum(axis=1)
    second = np.where(rng.random(n) < 0.8, class_, rng.choice(len(share), n, p=share))
    twice = rng.random(n) < np.where(class_ > 1, 2 * READ_TWICE, READ_TWICE / 2)
    return np.stack([class_, second], axis=1), cluster, twice


def alarms(
    rng: np.random.Generator, n: int, per_patient: int, share: FloatArray, before: FloatArray
) -> tuple[bool, bool]:
    labels, cluster, twice = cells(rng, n, per_patient, share)
    k = len(share)
    patients = np.stack([np.bincount(cluster, labels[:, 0] == class_) for class_ in range(k)], axis=1)
    change = mix_change_of_patients(patients, before, N_REFERENCE)
    now = change.p_value is not None and change.p_value < MIX_P_LIMIT and change.distance > MIX_LIMIT
    counts = np.bincount(np.concatenate([labels[:, 0], labels[twice, 1]]), minlength=k)
    table = np.stack([counts, np.rint(before * N_REFERENCE)])
    formerly = chi2_contingency(table[:, table.sum(axis=0) > 0], correction=False).pvalue < P_LIMIT
    return now, bool(formerly)


def table(looks: int) -> str:
    lines = [
        "# False alarms and power of the test of the label mix",
        "",
        f"`python -m experiments.class_mix --looks {looks} --save`: eight classes, patients whose own mixes",
        f"spread around the common one (Dirichlet, concentration {SPREAD:g}), a reference of {N_REFERENCE:,} labels of",
        f"patients alike. An alarm: p < {MIX_P_LIMIT:g} and total variation > {MIX_LIMIT:g}. *0.1.0*: all labels as",
        f"independent, p < {P_LIMIT:g}. Power: a tenth of all labels moved from the first class to the second.",
        "",
        "| cases | per patient | false alarms | of 0.1.0 | power |",
        "|---|---|---|---|---|",
    ]
    share = SHARE / SHARE.sum()
    moved = share + np.array([-0.1, 0.1, *[0.0] * 6])
    for n, per_patient in DESIGNS:
        rng = np.random.default_rng([n, per_patient])
        false = np.zeros(2)
        for look in range(looks):
            before = np.eye(8)[cells(rng, N_REFERENCE, per_patient, share)[0][:, 0]].mean(axis=0)
            false += alarms(rng, n, per_patient, share, before)
            if look % 100 == 0:
                print(f"\r{n} cases, {look} of {looks}", end="", file=sys.stderr)
        right = np.mean([alarms(rng, n, per_patient, moved, share)[0] for _ in range(looks // 10)])
        lines.append(f"| {n:,} | {per_patient} | {false[0]:.0f} of {looks:,} | {false[1] / looks:.0%} | {right:.0%} |")
    print(file=sys.stderr)
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--looks", type=int, default=4000)
    parser.add_argument("--save", action="store_true", help="keep the table in benchmarks/results")
    arguments = parser.parse_args()
    text = table(arguments.looks)
    print(text)
    if arguments.save:
        (RESULTS / f"{date.today().isoformat()}_class_mix.md").write_text(text)


if __name__ == "__main__":
    main()
