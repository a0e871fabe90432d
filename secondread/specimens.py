"""Shares of classes in a specimen, decisions at thresholds, and the reads that would settle them."""

from ml.calibration.calibrators import calibration_mix
from ml.specimens.cells import Group, NamedReads, Specimen, Threshold
from ml.specimens.laboratory import (
    CoverageBand,
    GroupKnowledge,
    Laboratory,
    LogitShare,
    PatientShift,
    annotator_tilt,
    annotator_tilt_interval,
    coverage_by_band,
    fit_kappa,
    fit_shift,
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
    "PatientShift",
    "Share",
    "Specimen",
    "SpecimenShares",
    "Threshold",
    "ThresholdDecision",
    "annotator_tilt",
    "annotator_tilt_interval",
    "calibration_mix",
    "choose_reads",
    "coverage_by_band",
    "fit_kappa",
    "fit_shift",
    "measure_specimen",
]
