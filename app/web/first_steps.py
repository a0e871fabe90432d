"""Setup steps of an empty service: done, next, possible later, or blocked."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sqlalchemy.orm import Session

from app.accounts.service import count_annotators
from app.cases.service import is_empty
from app.releases.service import champion_since
from app.triage.service import current_policy

State = Literal["done", "next", "later", "waits"]
#: A second opinion needs another annotator.
ENOUGH_ANNOTATORS = 2


@dataclass(frozen=True)
class FirstSteps:
    """Progress of a service towards its first case."""

    # of the steps release, people, policy, import: done, next, later (can be done now too) or waits
    states: dict[str, State]
    # when the release that is served was added; None without one
    release_since: datetime | None
    # accounts of annotators that may sign in
    n_annotators: int
    # in force; the first came with the tables
    policy_version: int


def first_steps(session: Session) -> FirstSteps | None:
    """The steps of a service without a case; None once there is one."""
    if not is_empty(session):
        return None
    since = champion_since(session)
    n_annotators, version = count_annotators(session), current_policy(session).version
    done = {"release": since is not None, "people": n_annotators >= ENOUGH_ANNOTATORS, "policy": version > 1}
    states: dict[str, State] = {}
    for name in ("release", "people", "policy", "import"):
        if done.get(name, False):
            states[name] = "done"
        elif name == "import" and since is None:
            states[name] = "waits"
        else:
            states[name] = "later" if "next" in states.values() else "next"
    return FirstSteps(states, since, n_annotators, version)
