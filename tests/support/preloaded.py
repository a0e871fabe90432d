"""What commands import, imported once: the forks of ``tests.support.forked`` begin here."""

from importlib import import_module

for _name in (
    "alembic.command",
    "onnxruntime",
    "uvicorn.lifespan.on",
    "uvicorn.loops.auto",
    "uvicorn.protocols.http.auto",
    "uvicorn.protocols.websockets.auto",
    "app.cli.shared",
    "app.imports.command",
    "app.job_kinds",
    "app.jobs.executor",
    "app.main",
    "app.operations.export",
    "app.operations.verify",
    "app.releases.adding",
):
    import_module(_name)
