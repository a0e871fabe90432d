"""Outputs of a trained network that are kept, small enough to be passed on, and calibrations on redrawn labels."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ml.calibration.calibrators import Calibration, calibrate
from ml.util.arrays import FloatArray
from ml.util.files import write_bytes_atomically

Floats32 = npt.NDArray[np.float32]
#: Members of an ensemble that are kept: of 15,000 images they take less than 20 MB.
MEMBERS = 4
#: Times that the labels of the validation images are drawn again.
REDRAWS, QUICK_REDRAWS = 20, 2


@dataclass(frozen=True)
class Outputs:
    """Logits and features, (N, …) or (S, N, …) of an ensemble."""

    logits: Floats32
    features: Floats32

    def rows(self, rows: npt.NDArray[np.intp]) -> "Outputs":
        """Pick cases."""
        return Outputs(self.logits[..., rows, :], self.features[..., rows, :])


def keep_outputs(path: Path, outputs: Mapping[str, Outputs], network: str) -> None:
    """Write logits and features in half precision, by kind of output."""
    arrays = {"network": np.array(network)}
    for kind, each in outputs.items():
        members = slice(MEMBERS if each.logits.ndim == 3 else None)
        arrays[f"{kind}.logits"] = each.logits[members].astype(np.float16)
        arrays[f"{kind}.features"] = each.features[members].astype(np.float16)
    buffer = BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **cast(Any, arrays))
    write_bytes_atomically(path, buffer.getbuffer())


def read_kept_outputs(path: Path, n_cases: int, n_classes: int) -> tuple[dict[str, Outputs], str]:
    """Outputs by kind, and the network's name, from a file by ``keep_outputs``."""
    if not path.is_file():
        raise ValueError(f"{path}: no such file; a run of `secondread reproduce mix-…` writes it")
    with np.load(path, allow_pickle=False) as data:
        arrays = {name: data[name] for name in data.files}
    network = str(arrays.pop("network"))
    kinds = list(dict.fromkeys(name.split(".")[0] for name in arrays))
    whole = {name: array.astype(np.float32) for name, array in arrays.items()}
    outputs = {kind: Outputs(whole[f"{kind}.logits"], whole[f"{kind}.features"]) for kind in kinds}
    for kind, each in outputs.items():
        if each.logits.shape[-2:] != (n_cases, n_classes):
            raise ValueError(
                f"{path}: {kind} has outputs of {each.logits.shape[-2]} images; the data set has {n_cases}"
            )
    return outputs, network


def redrawn_calibrations(
    valid: Outputs, true_probs: FloatArray, groups: list[str], labels: int, *, draws: int, seed: int
) -> Iterator[dict[str, Calibration]]:
    """Calibrations on label histograms of the validation images that are drawn again from their true probabilities."""
    rng = np.random.default_rng((seed, labels))
    for _ in range(draws):
        args = (valid.logits, valid.features, rng.multinomial(labels, true_probs), groups)
        yield {
            "+ts+α": calibrate(*args, method="temperature", seed=seed, refined=False).calibration,
            "+ts+α served": calibrate(*args, method="temperature", seed=seed).calibration,
        }
