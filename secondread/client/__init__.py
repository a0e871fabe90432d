"""Clients of secondread's HTTP API: ``Client`` waits, ``AsyncClient`` is awaited.

The extra ``client`` installs what they need: ``pip install 'secondread-cells[client]'``.

::

    try:
        with Client("http://127.0.0.1:8000", api_key) as api:
            print(api.predict(image).disagreement_prob)
            for case in api.iter_cases(site="north"):
                print(case.external_id, case.n_labels)
    except ApiError as refused:
        print(refused.code, refused.detail)
    except httpx2.TransportError as unreachable:
        print(unreachable)

Methods are called as the operations of the API are and take what these take; ``iter_…`` go through all pages. What is
refused raises ``ApiError``, and ``httpx2.TransportError`` means that the service was not reached. A request whose
connection breaks, or that comes when the service is busy, is sent again; one that stores something carries the same
Idempotency-Key each time, and is stored once.
"""

try:
    from secondread.client import models
    from secondread.client._async import AsyncClient
    from secondread.client._core import ApiError
    from secondread.client._sync import Client
except ModuleNotFoundError as _missing:
    raise ImportError(f"secondread.client needs {_missing.name}: pip install 'secondread-cells[client]'") from _missing

__all__ = ["ApiError", "AsyncClient", "Client", "models"]
