"""The service under attack is that of the other tests."""

from tests.app.conftest import (  # noqa: F401
    database_kind,
    database_url,
    populated,
    postgres_empty,
    postgres_served,
    service,
    settings,
    shared_service,
    sqlite_empty,
    sqlite_served,
    two,
)
