"""Face of practice and qualification: sets, runs and answers."""

from app.annotators.practice.answers import answer_item, begin_run, case_of_item, own_practice, show_item, show_run
from app.annotators.practice.cells import (
    MOST_CANDIDATES,
    drop_later_twins,
    is_settled,
    never_revealed_cases,
    with_twins,
)
from app.annotators.practice.schemas import DecisionIn, PracticeAnswerIn, PracticeItemOut, PracticeSetIn, RunIn
from app.annotators.practice.sets import add_qualification_decision, add_set, list_qualified, list_sets, retire_set

__all__ = [
    "MOST_CANDIDATES",
    "DecisionIn",
    "PracticeAnswerIn",
    "PracticeItemOut",
    "PracticeSetIn",
    "RunIn",
    "add_qualification_decision",
    "add_set",
    "answer_item",
    "begin_run",
    "case_of_item",
    "drop_later_twins",
    "is_settled",
    "list_qualified",
    "list_sets",
    "never_revealed_cases",
    "own_practice",
    "retire_set",
    "show_item",
    "show_run",
    "with_twins",
]
