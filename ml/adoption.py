"""Adoption of a model made elsewhere, loaded on first use."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ml.calibration.calibrators import Level
from ml.calibration.scaling import Method
from ml.tables.logits import Output
from ml.tables.reading import TableSource

if TYPE_CHECKING:
    from ml.training.adopt import AdoptReport, PreprocessingSteps


def adopt(
    source: TableSource,
    out: str | Path,
    *,
    data: str | Path | None = None,
    labels: TableSource | None = None,
    images: str | Path | None = None,
    classes: Sequence[str] | None = None,
    output: Output | None = None,
    features: TableSource | None = None,
    preprocessing: "PreprocessingSteps | None" = None,
    method: Method = "temperature",
    alpha: bool = True,
    level: Level = "nominal",
    seed: int = 0,
    held_out: float | None = None,
    cluster: str | None = None,
    name: str | None = None,
    observer: Callable[[int, int], None] = lambda done, total: None,
) -> "AdoptReport":
    """Calibrate a model made elsewhere on labelled cells, and write it as a release.

    Args:
        source: an ONNX file with one image input; ``module.py:factory``, which returns a ``torch.nn.Module``; or a
            table of outputs, ``case_id`` and ``logit:<class>`` or ``prob:<class>``, whose release predicts no images.
        out: the new release folder.
        data: folder of images with LABELS; or give ``labels``, with ``images`` (a folder or manifest) for a network.
        labels: LABELS, long or wide.
        images: images of ``labels``, named by their case.
        classes: classes in the order of the outputs; sorted, or as ``data`` lists them, if left out.
        output: ``logits`` or ``probabilities``; found out on the images if left out.
        features: tensor or layer whose output the concentration is predicted from (left out: what enters the last
            linear layer); of a table another table with ``case_id`` and ``feature:<name>``.
        preprocessing: ``size`` and ``crop`` in px, ``channels``, and ``mean`` and ``std`` of pixels in [0, 1].
        method: how class probabilities are calibrated.
        alpha: whether to fit the concentration, which needs cells with two labels.
        level: ``ordinal`` if classes are grades: a label may then also raise its neighbours.
        seed: of the split into calibration and evaluation, by patient.
        held_out: share of the cells that evaluate; left out, those of the partition ``test`` in LABELS, or half.
        cluster: column of ``labels`` that names the patient; ``patient`` if left out.
        name: name of the release; that of the source if left out.
        observer: called with the number of predicted images and of all.

    Returns:
        Metrics on held-out cells by step, and where the release is.

    Raises:
        ValueError: a model, image or table that cannot be used, or a folder that is not empty; the message names it.

    Examples:
        >>> import numpy as np, secondread, tempfile
        >>> rng = np.random.default_rng(0)
        >>> logits, cases = rng.normal(size=(200, 2)), [f"cell-{i}" for i in range(200)]
        >>> counts = [rng.multinomial(2, np.exp(row) / np.exp(row).sum()) for row in logits]
        >>> outputs = {"case_id": cases, **{f"logit:{k}": 3 * logits[:, i] for i, k in enumerate("ab")}}
        >>> labels = {"case_id": cases, **{f"count:{k}": np.array(counts)[:, i] for i, k in enumerate("ab")}}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     report = secondread.adopt(outputs, f"{folder}/release", labels=labels)
        >>> steps = report["held_out"]
        >>> steps["raw"]["L"]["value"] > steps["with concentration head"]["L"]["value"]
        True
    """
    from ml.training.adopt import AdoptRequest, adopt_model  # needs more packages than the library

    model = (data, labels, images, classes, output, features, preprocessing, cluster)
    return adopt_model(AdoptRequest(source, *model, held_out, seed, method, alpha, level, observer), Path(out), name)
