"""Models of named annotators: their confusion matrices, the posterior of labels that they gave, and their drift."""

from ml.annotations import Annotations
from ml.annotators.choosing import Choice, choose_readers
from ml.annotators.confusions import ReaderModel, describe_annotator_habit
from ml.annotators.drift import WeekBand, drift_paths, excess_log_loss, weekly_bands
from ml.annotators.fitting import HeldOutGain, held_out_gain, next_label_losses
from ml.annotators.posterior import NamedPosterior, Opinions, answer_distribution, named_posterior

__all__ = [
    "Annotations",
    "Choice",
    "HeldOutGain",
    "NamedPosterior",
    "Opinions",
    "ReaderModel",
    "WeekBand",
    "answer_distribution",
    "choose_readers",
    "describe_annotator_habit",
    "drift_paths",
    "excess_log_loss",
    "held_out_gain",
    "named_posterior",
    "next_label_losses",
    "weekly_bands",
]
