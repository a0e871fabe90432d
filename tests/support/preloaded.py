"""What commands import, imported once: the forks of ``tests.support.forked`` begin here."""

import alembic.command
import onnxruntime
import uvicorn.lifespan.on
import uvicorn.loops.auto
import uvicorn.protocols.http.auto
import uvicorn.protocols.websockets.auto

import app.cli.main
import app.cli.shared
import app.imports.command
import app.job_kinds
import app.jobs.executor
import app.main
import app.operations.export
import app.operations.verify
import app.releases.adding
