"""Tables on disk: LABELS and PREDICTIONS, and their evaluation."""
