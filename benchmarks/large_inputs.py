"""Time and memory of library functions on large inputs: agreement, posteriors, named annotators, the training index.

    python -m benchmarks.large_inputs --save

Each table of agreement is measured in a process of its own, beside the package ``krippendorff`` if its N × K × K
numbers fit into memory. Posteriors stand beside the addition of counts to α, which is the least that could do; those
by name beside those that take annotators as alike. The index of a release trained on a million images stands beside a
Python set.
"""

import multiprocessing
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import krippendorff
import numpy as np

from benchmarks.harness import Figures, interleaved, main, spend
from ml.agreement import measure_agreement
from ml.annotations import Annotations
from ml.annotators.choosing import choose_readers
from ml.annotators.fitting import Anchor, FitInputs, fit_readers
from ml.annotators.posterior import Opinions, named_posterior
from ml.distributions.families import DirichletCpe
from ml.release.training_index import INDEX_FILE, TrainingIndex, as_digests
from ml.util.arrays import FloatArray

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


def agreement_of(table: tuple[int, int | None, int, int]) -> Figures:
    """Processor seconds, megabytes and α of one table."""
    case, names, label = draw(*table)
    columns = {
        "case_id": np.char.add("c", case.astype(str)),
        "annotator": np.char.add("r", names.astype(str)),
        "label": np.char.add("k", np.char.zfill(label.astype(str), 4)),
    }
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    report = measure_agreement(columns)
    ours, memory = time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    figures = {
        "seconds": round(ours, 2),
        "megabytes": round((memory - before) / 1024),
        "alpha": report.krippendorff_alpha.value,
        "pairs": len(report.pairs),
    }
    counts = np.zeros((int(case.max()) + 1, int(label.max()) + 1), dtype=np.int64)
    np.add.at(counts, (case, label), 1)
    if counts.shape[0] * counts.shape[1] ** 2 < _FITS:
        start = time.process_time()
        figures["alpha of krippendorff"] = float(
            krippendorff.alpha(value_counts=counts, level_of_measurement="nominal")
        )
        figures["seconds of krippendorff"] = round(time.process_time() - start, 2)
    return figures


def agreement(quick: bool) -> Figures:
    """Figures by table."""
    tables = {"200 cases, 5 annotators, 10 classes": (200, 5, 10, 3)} if quick else TABLES
    figures = {}
    for name, table in tables.items():
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            figures[name] = pool.submit(agreement_of, table).result()
    return figures


def posteriors(quick: bool) -> Figures:
    """Posterior class probabilities of a million cases of 22 classes with one or two labels each."""
    n_cases, n_classes = 1_000 if quick else 1_000_000, 22
    rng = np.random.default_rng(5)
    probs = rng.dirichlet(np.full(n_classes, 0.5), n_cases)
    log_concentration = rng.normal(1.0, 1.0, n_cases)
    counts = rng.multinomial(1, probs) + rng.multinomial(1, probs) * (rng.random((n_cases, 1)) < 0.5)
    prior = DirichletCpe(probs, log_concentration)

    def by_adding() -> FloatArray:
        alpha = np.exp(log_concentration)[:, None] * probs + counts
        return np.asarray(alpha / alpha.sum(axis=1, keepdims=True))

    np.testing.assert_allclose(prior.posterior(counts).class_probs, by_adding(), atol=1e-9)
    works = {"posteriors (s)": lambda: prior.posterior(counts), "adding counts to α (s)": by_adding}
    return {"cases": n_cases} | interleaved(works, 1 if quick else 5)


LABELS, CLASSES, READERS = 3, 8, 50


def matrices(rng: np.random.Generator) -> FloatArray:
    """Annotators of whom each says something else in up to 30 % of cases."""
    rate = rng.uniform(0, 0.3, READERS)[:, None, None]
    return np.asarray((1 - rate) * np.eye(CLASSES) + rate * (1 - np.eye(CLASSES)) / (CLASSES - 1))


def laboratory(per_case: FloatArray, rng: np.random.Generator) -> tuple[DirichletCpe, Annotations, FloatArray]:
    """Predictions, labels by random annotators, and the annotators' matrices."""
    n = len(per_case)
    prior = DirichletCpe(rng.dirichlet(np.full(CLASSES, 0.3), size=n), np.full(n, np.log(3.0)))
    gammas = rng.standard_gamma(np.maximum(3.0 * prior.class_probs, 1e-3)) + 1e-12
    opinions = gammas / gammas.sum(axis=1, keepdims=True)
    case = np.repeat(np.arange(n), per_case.astype(np.int64))
    annotator, confusions = rng.integers(READERS, size=len(case)), matrices(rng)
    chances = np.einsum("mk,mkl->ml", opinions[case], confusions[annotator]).cumsum(axis=1)
    label = (rng.uniform(size=len(case))[:, None] > chances[:, :-1]).sum(axis=1)
    return prior, Annotations(case, annotator, label, n, READERS, CLASSES), confusions


def named_annotators(quick: bool) -> Figures:
    """Posteriors of 100,000 cases with three labels, and a fit of 50 annotators on some 20,000 labels."""
    cases, fitted, rng = (500, 400, np.random.default_rng(0)) if quick else (100_000, 9_100, np.random.default_rng(0))
    prior, long, confusions = laboratory(np.full(cases, float(LABELS)), rng)
    opinions, counts = Opinions.of(prior), long.counts()
    fit_prior, fit_long, _ = laboratory(rng.choice((1.0, 2.0, 3.0, 4.0), p=(0.3, 0.35, 0.2, 0.15), size=fitted), rng)
    material, names = FitInputs(Opinions.of(fit_prior), fit_long), [f"reader {number}" for number in range(READERS)]
    works = {
        "posterior, alike": lambda: prior.posterior(counts).disagreement_probs,
        "posterior, named": lambda: named_posterior(opinions, long, confusions),
    }
    figures = interleaved(works, 1 if quick else 3)
    figures["named over alike"] = figures["posterior, named"] / figures["posterior, alike"]
    figures["fit, one strength"] = spend(lambda: fit_readers(material, Anchor(np.eye(CLASSES), 30.0))).processor
    figures["fit, strength chosen"] = spend(lambda: choose_readers(fit_prior, fit_long, names)).processor
    return figures | {"peak memory (MB)": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def training_index(quick: bool) -> Figures:
    """Look a million images up, half of them among the million of the index."""
    n, rng = 1_000 if quick else 1_000_000, np.random.default_rng(0)
    trained, others = (as_digests([rng.bytes(32 * n)]) for _ in range(2))
    queries, empty = rng.permutation(np.concatenate([trained[::2], others[::2]])), trained[:0]
    with TemporaryDirectory() as folder:
        path = Path(folder) / INDEX_FILE

        def write() -> None:
            index = TrainingIndex(
                {"network": np.sort(trained), "calibration": empty}, {"network": empty, "calibration": empty}
            )
            path.write_bytes(index.to_bytes())

        written, opened = spend(write), spend(lambda: TrainingIndex.read(path))
        index = TrainingIndex.read(path)
        looked_up = spend(lambda: index.uses(queries))
        size = path.stat().st_size
    made = spend(lambda: set(trained.tolist()))
    digests = set(trained.tolist())
    searched = spend(lambda: sum(digest in digests for digest in queries.tolist()))
    assert int((index.uses(queries) == "network").sum()) == n // 2
    return {
        "sort and write, s": written.processor,
        "open and check, s": opened.processor,
        "look up a million, s": looked_up.processor,
        "the same with a set, s": searched.processor,
        "making that set, s": made.processor,
        "file, MB": size / 1e6,
    }


if __name__ == "__main__":
    measurements = {"agreement": agreement, "posteriors": posteriors}
    main(__doc__, measurements | {"named_annotators": named_annotators, "training_index": training_index})
