"""Conformal sets of classes for the next annotator's answer, free of assumptions about predictions."""

from ml.conformal.sets import SetQuality, answer_scores, answer_sets, judge_sets, scores
from ml.conformal.thresholds import MISSES, Thresholds, calibrate, fewest_patients, patient_masses

__all__ = [
    "MISSES",
    "SetQuality",
    "Thresholds",
    "answer_scores",
    "answer_sets",
    "calibrate",
    "fewest_patients",
    "judge_sets",
    "patient_masses",
    "scores",
]
