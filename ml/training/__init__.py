"""Training, calibration of a run and export; needs torch."""
