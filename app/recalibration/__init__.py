"""Recalibration: fit, evidence and decision on a candidate."""
