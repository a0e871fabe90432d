"""Leases of hidden repeats that run out: like those of any read, and at the same moment."""

from datetime import timedelta

from sqlalchemy import update

from app.database.tables import Read, ReadRequest, Repeat, utc_now
from tests.app.test_leases import lease
from tests.security.test_hidden_repeats import Coin, coin, move_to_the_front, planned, read_next, repeats_of
from tests.support.service import Service

__all__ = ["coin"]


def test_a_repeat_whose_lease_ran_out_goes_back_when_others_do(service: Service, coin: Coin) -> None:
    """Anna holds three cases for too long; when Ben asks for one, none of hers may stay behind."""
    planned(service, coin)
    move_to_the_front(service)
    held = [read_next(service) for _ in range(3)]
    assert repeats_of(service)[0].state == "leased"
    past = utc_now() - timedelta(hours=1)
    with service.context.database.write() as session:
        for asked in (ReadRequest, Repeat):
            session.execute(update(asked).where(asked.state == "leased").values(lease_expires_at=past))
        session.execute(update(Read).where(Read.state == "leased").values(expires_at=past))
    assert lease(service, "ben") is not None
    assert service.get("anna", "/v1/reads").json()["items"] == []
    states = {service.get("anna", f"/v1/reads/{read['id']}").json()["state"] for read in held}
    assert states == {"expired"}
