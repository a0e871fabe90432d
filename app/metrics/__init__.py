"""Metrics over collected labels: dataset, cohort, snapshot, drift, alarms."""
