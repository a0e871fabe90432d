"""Leases of hidden repeats that run out: like those of any read, and at the same moment."""

from datetime import timedelta

from sqlalchemy import select, update

from app.database.tables import Label, Read, ReadRequest, Repeat, utc_now
from tests.app.test_leases import classes_of, commit, lease, set_policy
from tests.security.test_hidden_repeats import (
    POLICY,
    Coin,
    coin,
    everything_counted,
    move_to_the_front,
    planned,
    read_next,
    repeats_of,
)
from tests.support.service import Service

__all__ = ["coin"]


def let_leases_run_out(service: Service) -> None:
    """Let every lease end by itself, and Ben ask for a case, by which it is seen."""
    past = utc_now() - timedelta(hours=1)
    with service.context.database.write() as session:
        for asked in (ReadRequest, Repeat):
            session.execute(update(asked).where(asked.state == "leased").values(lease_expires_at=past))
        session.execute(update(Read).where(Read.state == "leased").values(expires_at=past))
    assert lease(service, "ben") is not None


def test_a_repeat_whose_lease_ran_out_goes_back_when_others_do(service: Service, coin: Coin) -> None:
    """Anna holds three cases for too long; when Ben asks for one, none of hers may stay behind."""
    planned(service, coin)
    move_to_the_front(service)
    held = [read_next(service) for _ in range(3)]
    assert repeats_of(service)[0].state == "leased"
    let_leases_run_out(service)
    assert service.get("anna", "/v1/reads").json()["items"] == []
    states = {service.get("anna", f"/v1/reads/{read['id']}").json()["state"] for read in held}
    assert states == {"expired"}


def test_an_answer_to_a_repeat_that_was_withdrawn_meanwhile_is_late_as_to_any_read(
    service: Service, coin: Coin
) -> None:
    """A refusal would tell that it was one."""
    planned(service, coin)
    move_to_the_front(service)
    read = read_next(service)
    let_leases_run_out(service)
    set_policy(service, **POLICY | {"repeat_rate": 0})
    assert repeats_of(service)[0].state == "closed"
    before = everything_counted(service)
    assert commit(service, "anna", read, classes_of(service)[3]).status_code == 201
    assert everything_counted(service) == before
    with service.context.database.read() as session:
        late = session.execute(select(Label.late).where(Label.purpose == "repeat")).scalars().all()
    assert late == [True]
