"""What schemathesis must know of this API: keys are new for each request, archives are bytes."""

import uuid
from typing import Any

import schemathesis


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """A key that was used for another request is refused, as it should be; here each request is a new one."""
    headers = case.headers or {}
    if any(name.lower() == "idempotency-key" for name in headers):
        for name in [name for name in headers if name.lower() == "idempotency-key"]:
            if headers[name]:
                case.headers[name] = uuid.uuid4().hex


@schemathesis.serializer("application/zip")
def zip_serializer(context: Any, value: Any) -> Any:
    return value if isinstance(value, bytes) else str(value).encode()
