"""Shares of classes in a specimen, and the reads that would settle them.

A release is calibrated for the class mix of its training laboratory; every specimen has its own. ``cells`` holds
what is known of a specimen, ``own_mix`` draws its mix together with the kind of each cell, ``shares`` turns the draws
into shares with intervals and decisions, ``reads`` values further reads, and ``laboratory`` learns from specimens
of which every cell was read.
"""

from ml.specimens.cells import Group, NamedReads, Specimen, Threshold, calibration_mix
from ml.specimens.laboratory import (
    CoverageBand,
    Laboratory,
    annotator_tilt,
    coverage_by_band,
    fit_kappa,
    fit_stretch,
)
from ml.specimens.reads import choose_reads, reads_are_settled
from ml.specimens.shares import GroupShare, Share, SpecimenShares, measure_specimen

__all__ = [
    "CoverageBand",
    "Group",
    "GroupShare",
    "Laboratory",
    "NamedReads",
    "Share",
    "Specimen",
    "SpecimenShares",
    "Threshold",
    "annotator_tilt",
    "calibration_mix",
    "choose_reads",
    "coverage_by_band",
    "fit_kappa",
    "fit_stretch",
    "measure_specimen",
    "reads_are_settled",
]
