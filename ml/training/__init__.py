"""Training, calibration of a run, export: the room that needs torch."""
