"""Recalibration: a candidate release from collected labels, its change plan and its gate."""
