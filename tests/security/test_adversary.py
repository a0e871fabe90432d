"""An annotator who writes down everything but the pixels learns nothing of the plan: a classifier does as chance does.

The same harness, with a known leak put back, tells almost everything.
"""

import hashlib
import random
import re
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit
from sqlalchemy import func, select

from app.accounts import people as auth
from app.database.tables import CasePrediction, Label, Read, ReadRequest
from tests.app.test_gallery import all_names, draw, send
from tests.app.test_leases import classes_of, set_policy
from tests.support.service import Service, cell_png

PEOPLE = ("anna", "ben", "cleo")


def disagreement_of(prediction: dict[str, Any]) -> float:
    """The disagreement probability of a prediction; where it is withheld, what follows from the rest."""
    probs = np.array(list(prediction["class_probs"].values()))
    return float(expit(prediction["log_concentration"]) * (1 - np.square(probs).sum()))


def auc(scores: Any, truth: Any) -> tuple[float, float]:
    """AUC with half for ties, and its 99 % upper bound (Hanley and McNeil 1982)."""
    positive, negative = scores[truth], scores[~truth]
    value = float(np.mean(np.sign(positive[:, None] - negative[None, :]) + 1) / 2)
    q1, q2 = value / (2 - value), 2 * value**2 / (1 + value)
    spread = value * (1 - value) + (positive.size - 1) * (q1 - value**2) + (negative.size - 1) * (q2 - value**2)
    return value, value + 2.576 * float(np.sqrt(spread / (positive.size * negative.size)))


def guess(signs: Any, truth: Any, folds: int = 5) -> Any:
    """Scores of each row by a logistic regression on the rows of the other folds; signs enter as such and as ranks."""
    ranks = np.argsort(np.argsort(signs, axis=0), axis=0) / len(signs)
    x = np.hstack([signs, ranks])
    x = (x - x.mean(0)) / np.where(x.std(0) > 0, x.std(0), 1)
    x = np.hstack([x, np.ones((len(x), 1))])
    fold = np.random.default_rng(0).permutation(len(x)) % folds
    scores = np.zeros(len(x))
    for k in range(folds):
        rows, sign = x[fold != k], np.where(truth[fold != k], 1.0, -1.0)

        def loss(w: Any, rows: Any = rows, sign: Any = sign) -> tuple[float, Any]:
            margin = sign * (rows @ w)
            pull = -sign / (1 + np.exp(np.clip(margin, -500, 500)))
            return float(np.logaddexp(0, -margin).sum() + w @ w / 2), rows.T @ pull + w

        best = minimize(loss, np.zeros(x.shape[1]), jac=True, method="L-BFGS-B").x
        scores[fold == k] = x[fold == k] @ best
    return scores


@dataclass
class Adversary:
    """What one annotator notes down."""

    name: str
    ids: list[float] = field(default_factory=list)
    seen: dict[str, float] = field(default_factory=dict)
    read: dict[str, str] = field(default_factory=dict)


class Harness:
    """A laboratory whose annotators are adversaries: cases arrive, are read in random turns, and looked back at."""

    def __init__(self, service: Service, seed: int, people: tuple[str, ...]) -> None:
        self.service, self.rng, self.lead = service, random.Random(seed), random.Random(seed + 1)
        self.people = {name: Adversary(name) for name in people}
        self.polls: list[tuple[float, float]] = []
        self.rows: list[list[float]] = []
        self.truths: dict[str, list[bool]] = defaultdict(list)
        self.codes = classes_of(service)
        self.in_gallery: list[str] = []
        self.drawn: set[str] = set()

    def arrive(self, first: int, n: int) -> None:
        """Cases are stored one at a time, a tenth of them twice, while everybody watches what is public; of those that
        the rule selects, a lead comments on each."""
        for number in range(first, first + n):
            copies = 2 if number % self.twin_every == 0 else 1
            for copy in range(copies):
                of = {"specimen": f"S-{number // self.per_specimen}"} if self.per_specimen else {}
                case = self.service.add_case(f"{number} {copy}", cell_png(number), **of)
                if case["prediction"]["triage"]["decision"] == "second_read":
                    self.service.post("admin", f"/v1/cases/{case['id']}/comments", json={"text": "read it twice"})
                shown = re.search(r'requests\{state="open"\} (\S+)', self.service.get(None, "/metrics").text)
                self.polls.append((time.time(), float(shown[1]) if shown else 0.0))

    def counted(self, moment: float) -> float:
        """By how much the public count rose when a case of this time was stored."""
        after = next((i for i, (at, _) in enumerate(self.polls) if at >= moment), None)
        if not after or moment < self.polls[0][0]:
            return 0.0
        return self.polls[after][1] - self.polls[after - 1][1]

    def read_everything(self, final_every: int = 25) -> None:
        """Whoever's turn it is reads, until nobody is given anything; labels become final after so many reads each, and
        at the end."""
        turns = 0
        left = list(self.people.values())
        self.use_gallery(begin=True)
        while left:
            adversary = self.rng.choice(left)
            if not self.turn(adversary):
                left.remove(adversary)
            turns += 1
            if turns % final_every == 0:
                self.look_back()
                self.use_gallery()
        self.look_back()

    def use_gallery(self, *, begin: bool = False) -> None:
        """A lead looks at every cell in the gallery, and labels there a third of those that have just come, so that
        the time of a read tells nothing of it, and some of these again later."""
        names = all_names(self.service)
        for start in range(0, len(names), 500):
            draw(self.service, names[start : start + 500])
        come = [name for name in names if name not in self.drawn] if begin else []
        chosen = (
            self.lead.sample(come, len(come) // 3)
            if begin
            else self.lead.sample(self.in_gallery, min(5, len(self.in_gallery)))
        )
        self.in_gallery += chosen if begin else []
        self.drawn |= set(come)
        for start in range(0, len(chosen), 500):
            given = send(self.service, "labels", cell=chosen[start : start + 500], label=self.lead.choice(self.codes))
            assert given.status_code == 201, given.text

    def look_back(self) -> None:
        """Labels become final, and everybody looks at what is shown of the cases they have read."""
        self.service.make_labels_final()
        for adversary in self.people.values():
            for case, image in list(adversary.read.items())[:40]:  # the oldest that were not shown yet
                shown = self.service.get(adversary.name, f"/v1/cases/{case}")
                if shown.status_code == 200:
                    adversary.seen[image] = disagreement_of(shown.json()["prediction"])
                    del adversary.read[case]

    def turn(self, who: Adversary) -> bool:
        """One read, with everything around it; False where there is none."""
        get, started = self.service.get, time.perf_counter()
        answer = self.service.post(who.name, "/v1/reads")
        seconds = time.perf_counter() - started
        if answer.status_code != 201:
            return False
        read = answer.json()
        case, moment = read["case_id"], (UUID(read["case_id"]).int >> 80) / 1000
        moment = moment if abs(moment - time.time()) < 1e6 else 0.0
        before, image = get(who.name, f"/v1/cases/{case}"), get(who.name, read["image"])
        at = time.perf_counter()
        talk = get(who.name, f"/v1/cases/{case}/comments")
        talk_seconds = time.perf_counter() - at
        digest = hashlib.sha256(image.content).hexdigest()
        disagreement = disagreement_of(before.json()["prediction"]) if before.status_code == 200 else 0.0
        varying = {"content-length", "x-request-id"}
        headers = {name: value for name, value in image.headers.items() if name not in varying}
        waiting = re.search(r"(\d+) waiting", get(who.name, "/worklist").text)
        signs = [
            float(len(who.ids)), moment, max(who.ids, default=moment) - moment, self.counted(moment),
            before.status_code, disagreement, who.seen.get(digest, 0.0), seconds, len(answer.content),
            float(waiting[1]) if waiting else 0.0, float(len(str(sorted(headers.items())))),
            talk.status_code, len(talk.content), talk_seconds,
        ]  # fmt: skip
        self.note_truth(read["id"])
        who.ids.append(moment)
        started = time.perf_counter()
        body = {"label": self.answer(digest)}
        given = self.service.post(who.name, f"/v1/reads/{read['id']}/labels", json=body)
        seconds = time.perf_counter() - started
        assert given.status_code == 201, given.text
        hidden = given.json()["hidden_because"]
        status = get(who.name, f"/v1/cases/{case}").status_code
        self.rows.append([*signs, float(hidden is not None), status, seconds, len(given.content) - len(body["label"])])
        who.read[case] = digest
        return True

    def answer(self, digest: str) -> str:
        """The class of a cell; by a slip, one of three by chance."""
        slip = self.rng.random() < self.slips
        return self.rng.choice(self.codes[:3]) if slip else self.codes[int(digest, 16) % 3]

    def note_truth(self, read_id: str) -> None:
        """What nobody may know, at the time of the read."""
        with self.service.context.database.read() as session:
            request = session.get_one(ReadRequest, session.get_one(Read, UUID(read_id)).request_id)
            arms = set(session.execute(select(ReadRequest.arm).where(ReadRequest.case_id == request.case_id)).scalars())
            labels = select(func.count()).select_from(Label).where(Label.case_id == request.case_id)
            blind, seeing = (labels.where(Label.blind.is_(kind)) for kind in (True, False))
            score = select(CasePrediction.disagreement_prob).where(CasePrediction.case_id == request.case_id)
            self.truths["read twice"].append(bool(arms & {"triage", "audit"}))
            self.truths["audit"].append("audit" in arms)
            self.truths["triage (π = 1)"].append("triage" in arms)
            self.truths["adjudication"].append(request.arm == "adjudication")
            self.truths["labels there"].append(session.execute(blind).scalar_one() > 0)
            self.truths["gallery label"].append(session.execute(seeing).scalar_one() > 0)
            self.truths["prediction"].append(session.execute(score).scalar_one() > self.median)

    #: Disagreement that is the median, every how many cases is stored twice, and how often an annotator slips.
    median, twin_every, slips, per_specimen = 0.0, 10, 1 / 6, 0
    #: Reads of the first batch.
    first_batch = 0

    def told(self) -> dict[str, tuple[float, float, int]]:
        """AUC, upper bound and number of positive rows of each truth."""
        signs = np.array(self.rows)
        found = {}
        for name, values in self.truths.items():
            truth = np.array(values)
            if min(truth.sum(), (~truth).sum()) >= 10:
                found[name] = (*auc(guess(signs, truth), truth), int(truth.sum()))
        return found


def run(
    service: Service,
    n: int,
    people: tuple[str, ...] = PEOPLE,
    twin_every: int = 10,
    slips: float = Harness.slips,
    final_every: int = 25,
    per_specimen: int = 0,
    **policy: Any,
) -> Harness:
    """A laboratory of n cases in two batches, of specimens with so many cells each or of none."""
    service.before_change = lambda: None  # no snapshots on the way
    with service.context.database.write() as session:
        auth.add_account(session, service.context.keys.audit, "cleo", "annotator")
        service.keys["cleo"] = auth.add_key(session, service.context.keys.audit, "cleo", [])[1]
    harness = Harness(service, 1, people)
    harness.twin_every, harness.slips, harness.per_specimen = twin_every, slips, per_specimen
    scores = [
        disagreement_of(service.post("viewer", "/v1/predictions", files={"image": ("x.png", cell_png(i))}).json())
        for i in range(40)
    ]
    harness.median = float(np.median(scores))
    wanted = {"threshold": float(np.quantile(scores, 0.8)), "audit_rate": 0.25, "adjudicate_below": 0.9}
    set_policy(service, **wanted | {"reveal": "after_case_closed"} | policy)
    harness.arrive(0, n // 2)
    harness.read_everything(final_every)
    harness.first_batch = len(harness.rows)
    harness.arrive(n // 2, n - n // 2)
    harness.read_everything(final_every)
    return harness


#: The rule by specimen value; a fifth of the cells of a large specimen are read twice.
BY_SPECIMEN = {
    "rule": "specimen_value",
    "threshold": None,
    "specimen_goal": "share",
    "reporting_groups": [{"group": "blasts", "classes": ["blast"]}],
}


@pytest.mark.parametrize("specimens", [False, True], ids=["cells", "specimens"])
@pytest.mark.parametrize(
    ("n", "most"),
    # with few cases chance alone reaches far: the quick variant asks only that nothing is told plainly
    [
        pytest.param(60, 0.9, id="quick", marks=[pytest.mark.slow, pytest.mark.ci]),
        pytest.param(2000, 0.56, id="full", marks=pytest.mark.heavy),
    ],
)
def test_nothing_but_the_pixels_tells_the_plan(service: Service, n: int, most: float, specimens: bool) -> None:
    reads = {"reads_per_specimen": 10 if n > 100 else 3}
    told = (run(service, n, per_specimen=50, **BY_SPECIMEN | reads) if specimens else run(service, n)).told()
    print({name: [round(value, 3) for value in row] for name, row in told.items()})
    assert set(told) >= {"read twice", "prediction"}
    assert n < 100 or "gallery label" in told
    # the upper bound, too, of what is true of so many reads that chance alone stays below
    plain = {name: row for name, row in told.items() if (row[1] if row[2] > MANY else row[0]) >= most}
    assert plain == {}


#: Reads of which something is true, from which on the upper bound of an AUC of one half is well below .56.
MANY = 500


def identity(_secret: bytes, _principal: Any, case_id: UUID) -> UUID:
    return case_id


def leak_identifiers(monkeypatch: pytest.MonkeyPatch, _service: Service) -> None:
    monkeypatch.setattr("app.labels.routes.case_handle", identity)


def leak_twins(monkeypatch: pytest.MonkeyPatch, _service: Service) -> None:
    monkeypatch.setattr("app.triage.planning.are_twins", lambda *_: False)


def leak_arm(monkeypatch: pytest.MonkeyPatch, _service: Service) -> None:
    def as_in_0_1_0(_session: Any, requests: Any, *_: Any, **__: Any) -> str | None:
        return "until-case-closed" if any(request.arm == "audit" for request in requests) else None

    for name in ("hidden_before_final", "hidden_after_commit"):
        monkeypatch.setattr(f"app.cases.service.{name}", as_in_0_1_0)


def leak_gallery(monkeypatch: pytest.MonkeyPatch, _service: Service) -> None:
    def by_a_lead(session: Any, _principal: Any, case: Any) -> bool:
        given = select(Label.id).where(Label.case_id == case.id, Label.blind.is_(False))
        return session.execute(given).first() is not None

    monkeypatch.setattr("app.cases.blindness.has_committed", by_a_lead)


def leak_comments(monkeypatch: pytest.MonkeyPatch, _service: Service) -> None:
    monkeypatch.setattr("app.cases.comments.ensure_discussed", lambda *_: None)


@pytest.mark.parametrize(
    ("leak", "target", "rows", "n"),
    [
        pytest.param(leak_comments, "triage (π = 1)", "all", 60, id="comments", marks=pytest.mark.heavy),
        pytest.param(leak_gallery, "gallery label", "all", 60, id="gallery", marks=pytest.mark.heavy),
        pytest.param(leak_arm, "audit", "all", 24, id="arm of few", marks=pytest.mark.heavy),
        pytest.param(leak_arm, "audit", "all", 200, id="arm", marks=pytest.mark.heavy),
        # labels become final at the end of a batch: those of the first are adjudicated among the second
        pytest.param(leak_identifiers, "adjudication", "second batch", 200, id="identifiers", marks=pytest.mark.heavy),
        pytest.param(leak_twins, "prediction", "twins", 200, id="twins", marks=pytest.mark.heavy),
    ],
)
def test_the_harness_tells_each_known_leak(
    service: Service, monkeypatch: pytest.MonkeyPatch, leak: Callable[..., None], target: str, rows: str, n: int
) -> None:
    leak(monkeypatch, service)
    people = ("anna", "ben") if leak is leak_twins else PEOPLE
    policy = {"reveal": "after_commit"} if leak in {leak_arm, leak_gallery} else {}
    # answers by chance alone, so that there are many adjudications to tell
    final_every = 10**6 if rows == "second batch" else 25
    harness = run(service, n, people, 2 if leak is leak_twins else 10, slips=1.0, final_every=final_every, **policy)
    signs, truth = np.array(harness.rows), np.array(harness.truths[target])
    kept = {
        "all": np.ones(len(signs), bool),
        "twins": signs[:, 6] > 0,
        "second batch": np.arange(len(signs)) >= harness.first_batch,
    }[rows]
    value, _ = auc(guess(signs[kept], truth[kept]), truth[kept])
    print(leak.__name__, round(value, 3), int(kept.sum()), int(truth[kept].sum()))
    assert value > 0.9
