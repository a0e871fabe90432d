"""Which cells stand for a class: laws of the choice, and the two classes between which a case is."""

import random
import uuid
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from app.annotators.reference_cells.selection import N_CELLS, CellCandidate, candidate_of, pair_at_stake, select_cells

_patients = st.one_of(st.none(), st.sampled_from(["p", "q", "r", "s"]))


@st.composite
def candidates(draw: st.DrawFn) -> list[CellCandidate]:
    """Cells of one class, each with a lot of its own."""
    made = []
    for number in range(draw(st.integers(0, 14))):
        n_readers = draw(st.integers(2, 6))
        n_same = draw(st.integers(2, n_readers))
        made.append(
            CellCandidate(uuid.UUID(int=number), "blast", n_readers, n_same, draw(_patients), number.to_bytes(2, "big"))
        )
    return made


def cell(number: int, n_readers: int = 2, n_same: int = 2, patient: str | None = None) -> CellCandidate:
    return CellCandidate(uuid.UUID(int=number), "blast", n_readers, n_same, patient, bytes([number]))


@given(candidates(), st.integers(0, 3), st.randoms())
def test_the_choice_is_full_keeps_what_is_kept_and_knows_no_order(
    found: list[CellCandidate], n_kept: int, rng: random.Random
) -> None:
    kept = found[:n_kept]
    chosen = select_cells(found, kept)
    assert len(chosen) == min(N_CELLS, len(found))
    assert len({one.case_id for one in chosen}) == len(chosen)
    assert chosen[: len(kept)] == kept
    assert select_cells(rng.sample(found, len(found)), kept) == chosen
    rest = chosen[len(kept) :]
    assert [one.worth for one in rest] == sorted((one.worth for one in rest), reverse=True)


@given(candidates())
def test_no_patient_has_a_second_cell_while_another_patient_has_none(found: list[CellCandidate]) -> None:
    chosen = select_cells(found)
    counts = Counter(one.patient for one in chosen if one.patient is not None)
    left_out = {one.patient for one in found} - {one.patient for one in chosen}
    free_left = [one for one in found if one not in chosen and one.patient is None]
    assert max(counts.values(), default=0) <= 1 or not (left_out - {None} or free_left)


@given(candidates())
def test_of_each_patient_the_worthiest_cell_comes_first(found: list[CellCandidate]) -> None:
    for one in select_cells(found):
        better = [other for other in found if other.patient == one.patient and other.worth > one.worth]
        assert all(other in select_cells(found) for other in better)


def test_readers_and_agreement_count_together() -> None:
    two, four, most, nearly = cell(1), cell(2, 4, 4), cell(3, 12, 10), cell(4, 10, 9)
    assert select_cells([two, most, nearly, four]) == [four, nearly, most, two]
    assert select_cells([two, four], [two], 1) == [two]
    assert select_cells([], []) == []


def test_too_few_readers_or_too_little_agreement_make_no_candidate() -> None:
    case_id = uuid.UUID(int=1)
    assert candidate_of(case_id, [], None, b"") is None
    assert candidate_of(case_id, ["blast"], None, b"") is None
    assert candidate_of(case_id, ["blast"] * 3 + ["monocyte"], None, b"") is None
    found = candidate_of(case_id, ["blast"] * 4 + ["monocyte"], "p", b"x")
    assert found == CellCandidate(case_id, "blast", 5, 4, "p", b"x")


def test_a_case_is_between_what_was_said_else_between_what_is_likely() -> None:
    probs = {"blast": 0.5, "monocyte": 0.3, "lymphocyte": 0.2}
    assert pair_at_stake("monocyte", Counter(blast=2, lymphocyte=1), probs) == ("monocyte", "blast")
    assert pair_at_stake("monocyte", Counter(monocyte=2), probs) == ("monocyte", "blast")
    assert pair_at_stake("blast", Counter(blast=2, lymphocyte=1), probs) == ("blast", "lymphocyte")
    assert pair_at_stake(None, Counter(lymphocyte=2, monocyte=1), probs) == ("lymphocyte", "monocyte")
    assert pair_at_stake(None, Counter(lymphocyte=2), probs) == ("lymphocyte", "blast")
    assert pair_at_stake(None, Counter(), probs) == ("blast", "monocyte")
    assert pair_at_stake("blast", Counter(), {}) is None
    assert pair_at_stake(None, Counter(), {}) is None
