"""Codes of the service that pages show in words: what the filter ``term`` is given, without its underscores."""

TERMS = (
    # roles
    *("admin", "annotator", "viewer", "service"),
    # partitions
    *("evaluation", "calibration", "all"),
    # states of reads, requests and jobs
    *(
        "open",
        "leased",
        "committed",
        "declined",
        "closed",
        "answered",
        "cancelled",
        "queued",
        "running",
        "succeeded",
        "failed",
    ),
    # reasons to plan a read
    *("first", "triage", "audit", "adjudication", "further"),
    # why a read is declined
    *("cannot tell", "image quality", "not my field", "know this case", "other"),
    # rules of the policy, and when predictions are shown
    *("disagreement", "expected gain", "capacity", "graded", "after commit", "after case closed", "never"),
    *("single read", "second read", "temperature", "vector", "matrix"),
    # jobs
    *("check", "evaluation", "import", "judgement", "prediction", "readers", "recalibration", "report"),
    # results of imported rows
    *("created", "known", "differs", "ignored"),
    # purposes of sets, names of releases, ways to fit
    *("training", "qualification", "champion", "challenger"),
)
