"""The demo: real cells with two annotators' answers, or simulated ones whose release is trained here."""
