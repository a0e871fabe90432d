"""From what a form sends to what the services take."""

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from app.platform.errors import Invalid
from app.triage.schemas import PolicyIn

_Model = TypeVar("_Model", bound=BaseModel)


def checked(model: type[_Model], **values: Any) -> _Model:
    """The values of a form as what the API takes.

    Raises:
        Invalid: what is wrong with them, in words.
    """
    try:
        return model(**values)
    except ValidationError as exc:
        first = exc.errors()[0]
        where = ", ".join(str(part) for part in first["loc"])
        raise Invalid(f"{where}: {first['msg']}" if where else first["msg"]) from exc


class PolicyForm(BaseModel):
    """The policy page's form: texts as typed; an empty field takes its default, except the one for adjudication.

    The page shows the fields of both kinds of rule; the one that the chosen rule does not use is left out.
    """

    model_config = ConfigDict(extra="forbid")

    rule: str = ""
    threshold: str = ""
    capacity_per_day: str = ""
    audit_rate: str = ""
    target_error: str = ""
    adjudicate_below: str = ""
    max_labels: str = ""
    reveal: str = ""
    lease_seconds: str = ""
    due_days: str = ""
    repeat_rate: str = ""
    draw_readers: str = ""
    require_qualification: str = ""
    reason: str = ""

    def policy(self) -> PolicyIn:
        """The new version of the policy.

        Raises:
            Invalid: what is wrong with the form, in words.
        """
        unused = "threshold" if self.rule in {"capacity", "graded"} else "capacity_per_day"
        values = {name: text for name, text in self.model_dump().items() if text != "" and name != unused}
        return checked(PolicyIn, **{"adjudicate_below": None} | values)
