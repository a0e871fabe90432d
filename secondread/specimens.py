"""Shares of classes in a specimen, decisions at thresholds, and the reads that would settle them."""

from ml.specimens.cells import Group, NamedReads, Specimen, Threshold, calibration_mix
from ml.specimens.laboratory import (
    CoverageBand,
    GroupKnowledge,
    Laboratory,
    LogitShare,
    Stretch,
    annotator_tilt,
    coverage_by_band,
    fit_kappa,
    fit_stretch,
)
from ml.specimens.reads import choose_reads
from ml.specimens.shares import Components, GroupShare, Share, SpecimenShares, ThresholdDecision, measure_specimen

__all__ = [
    "Components",
    "CoverageBand",
    "Group",
    "GroupKnowledge",
    "GroupShare",
    "Laboratory",
    "LogitShare",
    "NamedReads",
    "Share",
    "Specimen",
    "SpecimenShares",
    "Stretch",
    "Threshold",
    "ThresholdDecision",
    "annotator_tilt",
    "calibration_mix",
    "choose_reads",
    "coverage_by_band",
    "fit_kappa",
    "fit_stretch",
    "measure_specimen",
]
