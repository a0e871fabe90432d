"""Bounds on recalibrations without human approval; the file's digest is stored with each job."""

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from ml.calibration.domain_adaptation import FEWEST_PAIRS
from ml.distributions.families import DirichletCpe, PredictiveDistribution
from ml.messages import Message


@dataclass(frozen=True)
class ChangePlan:
    """Bounds of an automatic change."""

    methods: tuple[str, ...] = ("none", "temperature", "adapt")
    # of the calibration partition
    min_labelled_cases: int = 50
    # cases of it with two labels, which the method ``adapt`` asks for instead
    min_double_reads: int = FEWEST_PAIRS
    # they must come from
    min_patients: int = 10
    # mean over cases of ½ Σ_k |f′ − f|
    max_mean_probability_change: float = 0.20
    # mean over cases of |a′ − a|
    max_mean_log_concentration_change: float = 2.0
    # 95% upper end of the paired change of L and of L_φ at most; None for no such margin
    max_increase: float | None = None

    @classmethod
    def read(cls, path: Path | None) -> "ChangePlan":
        """Read a plan; the defaults where no file is named."""
        if path is None:
            return cls()
        try:
            document = json.loads(path.read_text())
            if unknown := sorted(set(document) - {field.name for field in fields(cls)}):
                names = ", ".join(field.name for field in fields(cls))
                raise ValueError(f"{path}: unknown field {', '.join(unknown)}; the fields are {names}")
            plan = cls(**document | {"methods": tuple(document.get("methods", cls.methods))})
        except (OSError, json.JSONDecodeError, TypeError) as exc:
            raise ValueError(f"{path}: not a change plan: {exc}") from exc
        no_margin = {"max_increase"} if plan.max_increase is None else set()
        numbers = [value for name, value in asdict(plan).items() if name not in {"methods"} | no_margin]
        if not all(isinstance(value, int | float) and value >= 0 for value in numbers):
            raise ValueError(f"{path}: every bound must be a number that is not negative")
        return plan

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self) | {"methods": list(self.methods)}

    def sha256(self) -> str:
        """Digest of what it says."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()

    def violations(
        self, before: PredictiveDistribution, after: PredictiveDistribution
    ) -> tuple[dict[str, float | None], list[str]]:
        """Measure the shift of predictions, and describe each bound that it breaks."""
        moved = float(np.abs(after.class_probs - before.class_probs).sum(axis=1).mean() / 2)
        shift = None
        if isinstance(before, DirichletCpe) and isinstance(after, DirichletCpe):
            shift = float(np.abs(after.log_concentration - before.log_concentration).mean())
        broken: list[str] = []
        if moved > self.max_mean_probability_change:
            broken.append(
                Message(
                    "class probabilities would move by {moved:.3f} on average, more than {limit:g}",
                    moved=moved,
                    limit=self.max_mean_probability_change,
                )
            )
        if shift is not None and shift > self.max_mean_log_concentration_change:
            broken.append(
                Message(
                    "log concentrations would move by {shift:.2f} on average, more than {limit:g}",
                    shift=shift,
                    limit=self.max_mean_log_concentration_change,
                )
            )
        return {"mean_probability_change": moved, "mean_log_concentration_change": shift}, broken
