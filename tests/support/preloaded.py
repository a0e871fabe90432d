"""What commands import, imported once: the forks of ``tests.support.forked`` begin here."""

from importlib import import_module

from tests.support.waiting import stretch_database_deadlines

for _name in (
    "alembic.command",
    "onnxruntime",
    "uvicorn.lifespan.on",
    "uvicorn.loops.auto",
    "uvicorn.protocols.http.auto",
    "uvicorn.protocols.websockets.auto",
    "app.cli.shared",
    "app.cli.imports",
    "app.job_table",
    "app.jobs.executor",
    "app.main",
    "app.maintenance.export",
    "app.audit.verify",
    "app.releases.registration",
):
    import_module(_name)
stretch_database_deadlines()
