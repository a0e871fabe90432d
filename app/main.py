"""The application: parts, middleware, routes and their guards."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from asgi_correlation_id import CorrelationIdMiddleware
from fastapi import FastAPI
from starlette.middleware.trustedhost import TrustedHostMiddleware

from app.accounts.passwords import HASHING
from app.accounts.permissions import openapi_security, require_route_guards
from app.accounts.sign_in import SignInThrottle
from app.annotators.models.routes import router as readers
from app.annotators.practice.routes import router as practice
from app.annotators.routes import router as annotators
from app.audit.anchor import HeadFile
from app.audit.installation import claim_database
from app.audit.routes import router as audit_events
from app.cases.active_config import ActiveConfigCache
from app.cases.routes import router as cases
from app.context import ServiceContext, build_context
from app.database.tables import Clock, utc_now
from app.http import errors, middleware, observability
from app.http.limiter import BODIES, Limiter, RateLimit
from app.http.openapi import complete_openapi, operation_id
from app.imports.routes import router as imports
from app.invitations.routes import router as invitations
from app.jobs.routes import router as jobs
from app.labels.routes import router as reads
from app.maintenance import health
from app.maintenance.cache import keep_cache_fresh
from app.metrics.routes import router as evaluations
from app.outcomes.routes import router as outcomes
from app.predictions.open_inference.routes import protocol_error
from app.predictions.open_inference.routes import router as open_inference
from app.predictions.open_inference.service import PARSING
from app.recalibration.routes import router as recalibration
from app.releases.queries import get_champion_alias
from app.releases.routes import router as releases
from app.reports.routes import router as reports
from app.settings import Settings
from app.specimens.routes import router as specimens
from app.specimens.upload_routes import router as specimen_cells
from app.triage.routes import router as policies
from app.web.annotators import router as annotator_pages
from app.web.audit import router as audit_pages
from app.web.cells import router as cell_pages
from app.web.imports import router as import_pages
from app.web.jobs import router as job_pages
from app.web.page import answer_with_page
from app.web.people import router as people_pages
from app.web.practice import router as practice_pages
from app.web.reading import router as reader_pages
from app.web.reading_app import router as resident_pages
from app.web.reference_cells import router as reference_pages
from app.web.releases import router as release_pages
from app.web.render import StaticAssets
from app.web.report import router as report_pages
from app.web.sign_in import router as sign_in_pages
from app.web.specimens.pages import router as specimen_pages
from app.web.specimens.quality import router as specimen_quality_pages
from app.web.today import router as today_pages
from secondread import __version__

_DESCRIPTION = "Calibrated class and disagreement probabilities for cell images. For research, not a medical device."

_ROUTERS = (
    cases,
    specimens,
    specimen_cells,
    reads,
    outcomes,
    annotators,
    practice,
    readers,
    policies,
    invitations,
    imports,
    evaluations,
    reports,
    releases,
    recalibration,
    jobs,
    audit_events,
    open_inference,
    health.router,
    sign_in_pages,
    today_pages,
    reader_pages,
    resident_pages,
    cell_pages,
    specimen_pages,
    annotator_pages,
    practice_pages,
    reference_pages,
    report_pages,
    specimen_quality_pages,
    release_pages,
    job_pages,
    import_pages,
    people_pages,
    audit_pages,
)


@asynccontextmanager
async def _run_lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Refuse another key, an older database and a device that cannot be used, then load the active release."""
    # Where that fails, /readyz says so.
    context: ServiceContext = app.state.context
    context.inference.place()
    claim_database(context.database, context.keys.audit)
    try:
        with context.database.read() as session:
            context.inference.served(get_champion_alias(session))
    except errors.ServiceUnavailable:
        pass
    with keep_cache_fresh(context), app.state.heads.kept():
        yield
    observability.stop_tracing()
    context.inference.close()
    context.database.engine.dispose()


def attach_context(app: FastAPI, settings: Settings, sharing: int = 1, clock: Clock = utc_now) -> None:
    """Give an application the parts that settings describe: all that differs between two services."""
    app.state.context = build_context(settings, sharing=sharing, clock=clock)
    app.state.database = app.state.context.database
    app.state.heads = HeadFile(app.state.context)
    app.state.in_force = ActiveConfigCache(app.state.context.inference)
    app.state.rate_limit = RateLimit(settings.rate_limit)
    app.state.sign_in_throttle = SignInThrottle()


def create_app(settings: Settings | None = None, *, sharing: int = 1) -> FastAPI:
    """Build the application."""
    settings = settings or Settings()
    app = FastAPI(
        title="secondread",
        version=__version__,
        description=_DESCRIPTION,
        lifespan=_run_lifespan,
        docs_url=None,
        redoc_url=None,
        # its spans have paths and parameters, its records the words of exceptions: see app.http.observability
        telemetry={
            "tracing": False,
            "metrics": False,
            "logs": False,
            "operation_spans": False,
            "auto_configure": False,
        },
        generate_unique_id_function=operation_id,
    )
    of_callers, of_addresses = middleware.make_share_limiters(settings.requests_at_once)
    bodies = Limiter(BODIES)
    app.state.limiters = (of_callers, of_addresses, bodies, HASHING, PARSING)
    attach_context(app, settings, sharing)
    errors.install_error_handlers(
        app, lambda request, problem: protocol_error(request, problem) or answer_with_page(request, problem)
    )
    for router in _ROUTERS:
        app.include_router(router)
    app.mount("/static", StaticAssets(), name="static")
    require_route_guards(app, _ROUTERS)
    complete_openapi(app, openapi_security)
    app.add_middleware(middleware.BodyLimits, memory=bodies)
    app.add_middleware(middleware.FairShare, of_callers=of_callers, of_addresses=of_addresses)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=settings.allowed_hosts)
    app.add_middleware(middleware.UnexpectedErrorMiddleware)
    app.add_middleware(middleware.SecurityHeaders)
    app.add_middleware(observability.RequestLog)
    app.add_middleware(CorrelationIdMiddleware)
    app.add_middleware(middleware.LanguageMiddleware)
    return app
