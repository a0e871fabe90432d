"""OpenAPI as it is meant: headers that a request must carry are declared as required.

They are optional parameters in the code, so that a request without one gets an error of its own (400, 428) and not
the general 422.
"""

from typing import Any

from fastapi import FastAPI

_REQUIRED = {
    "idempotency-key": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[!-~]+$"},
    "if-match": {"type": "string", "pattern": r'^((W/)?"?[0-9]{1,9}"?|\*)$'},
}


def require_headers(app: FastAPI) -> None:
    """Wrap the application's OpenAPI, once made."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        known = app.openapi_schema is not None
        document = make()
        if not known:
            for path in document["paths"].values():
                for operation in path.values():
                    for parameter in operation.get("parameters", []):
                        schema = _REQUIRED.get(parameter["name"].lower())
                        if parameter["in"] == "header" and schema is not None:
                            parameter["required"], parameter["schema"] = True, schema
        return document

    app.openapi = openapi  # type: ignore[method-assign]
