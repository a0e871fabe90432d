"""Sets of classes for the next annotator's answer, calibrated without assumptions about the predictions."""

from ml.conformal.coverage import SetQuality, judge_sets
from ml.conformal.sets import answer_scores, answer_sets, scores
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
