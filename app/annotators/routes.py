"""HTTP routes of annotators: reading statistics for themselves and for admins."""

from typing import Annotated

from fastapi import APIRouter, Depends

from app.accounts.service import GuardedRoute, RequireScope
from app.annotators import service
from app.annotators.schemas import AnnotatorsOut, OwnReadingOut
from app.database.engine import ReadSession
from app.http.errors import NotFound, list_problem_responses
from app.http.models import Line
from app.http.principal import Principal

router = APIRouter(tags=["annotators"], responses=list_problem_responses(), route_class=GuardedRoute)


@router.get("/v1/annotators", operation_id="list_annotators", dependencies=[Depends(RequireScope("manage"))])
def list_annotators(session: ReadSession) -> AnnotatorsOut:
    """List annotators. Those with accounts, in alphabetical order."""
    return service.list_annotators(session)


@router.get("/v1/annotators/{name}", operation_id="get_annotator", responses=list_problem_responses(NotFound))
def get_annotator(
    name: Line, principal: Annotated[Principal, Depends(RequireScope("reads:own", "manage"))], session: ReadSession
) -> OwnReadingOut:
    """Get the statistics of an annotator. Until the last Monday, in steps of ten cells."""
    return service.own_reading(session, principal, name)
