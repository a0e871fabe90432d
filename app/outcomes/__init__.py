"""Outcomes: what cells are settled as, by a person or by a rule, and reads that are assigned to end a conflict."""
