"""The service under attack is that of the other tests."""

from tests.app.conftest import (
    database_kind,  # noqa: F401
    database_url,  # noqa: F401
    populated,  # noqa: F401
    postgres_empty,  # noqa: F401
    postgres_served,  # noqa: F401
    service,  # noqa: F401
    settings,  # noqa: F401
    shared_service,  # noqa: F401
    sqlite_empty,  # noqa: F401
    sqlite_served,  # noqa: F401
    two,  # noqa: F401
)
