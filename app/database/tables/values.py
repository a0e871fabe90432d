"""Closed sets of values, as columns contain them and the API returns them."""

from typing import Literal

Role = Literal["viewer", "annotator", "admin", "service"]
Partition = Literal["calibration", "evaluation"]

Rule = Literal["disagreement", "expected_gain", "capacity", "graded", "specimen_value"]
SpecimenGoal = Literal["share", "decision"]
SpecimenState = Literal["open", "decided", "signed"]
SignatureMeaning = Literal["reviewed", "approved"]
Reveal = Literal["after_commit", "after_case_closed", "never"]

Round = Literal["planned", "adjudication"]
Arm = Literal["first", "triage", "audit", "adjudication"]
RequestState = Literal["open", "leased", "answered", "closed"]
ReadState = Literal["leased", "committed", "declined", "released", "expired"]
Hidden = Literal["before-commit", "until-case-closed", "never"]
LabelKind = Literal["label", "correction", "revision", "retraction"]

PracticePurpose = Literal["training", "qualification"]
EligibilityReason = Literal["not-required", "passed", "qualified", "earlier-labels", "withdrawn", "not-yet"]
RunState = Literal["open", "finished"]
QualificationKind = Literal["passed", "qualified", "withdrawn", "renewed"]

OutcomeKind = Literal["class", "split", "reopened"]
OutcomeRule = Literal["majority", "split"]

AliasName = Literal["champion", "challenger"]

JobKind = Literal["check", "evaluation", "import", "judgement", "prediction", "readers", "recalibration", "report"]
JobState = Literal["queued", "running", "succeeded", "failed", "cancelled"]
RowStatus = Literal["created", "known", "failed", "ignored"]
