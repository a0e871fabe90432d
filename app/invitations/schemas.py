"""Request and response models of the invitation routes."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

from pydantic import Field

from app.http.models import Line, RequestModel, ResponseModel


class InvitationIn(RequestModel):
    """An annotator to invite, and the cells that they are asked to read."""

    annotator: Annotated[Line, Field(max_length=100)]
    cases: Annotated[list[UUID], Field(min_length=1, max_length=100)]


class InvitationOut(ResponseModel):
    """An invitation, with its link."""

    url: str
    expires_at: datetime
    annotator: str
