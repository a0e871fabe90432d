"""HTTP routes of the Open Inference Protocol v2, which is described outside OpenAPI."""

from typing import Annotated

from anyio import from_thread
from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from app.accounts.service import GuardedRoute, RequireServiceScope, allow_everyone
from app.context import AppContext
from app.http.errors import Problem, problem_response
from app.http.middleware import PROTOCOL
from app.maintenance.health import check_readiness
from app.predictions.open_inference import service
from app.predictions.open_inference.service import ModelOut, describe_model, find_model
from app.predictions.service import HEADER_LENGTH, UnsupportedImage
from secondread import __version__

router = APIRouter(prefix="/v2", route_class=GuardedRoute, include_in_schema=False)
_CALLER = [Depends(RequireServiceScope("predict"))]
_KEPT = ("Retry-After", "WWW-Authenticate")


class ServerOut(BaseModel):
    """Metadata of the server."""

    name: str
    version: str
    extensions: list[str]


class LiveOut(BaseModel):
    """Whether the process answers."""

    live: bool


class ModelReadyOut(BaseModel):
    """Whether a model can be asked."""

    name: str
    ready: bool


def protocol_error(request: Request, problem: Problem) -> Response | None:
    """A problem as the protocol has it; None of requests by anything else."""
    path = request.url.path
    if path != PROTOCOL.rstrip("/") and not path.startswith(PROTOCOL):
        return None
    headers = problem_response(problem).headers
    kept = {name: headers[name] for name in _KEPT if name in headers}
    return JSONResponse({"error": problem.detail}, problem.status, kept)


@router.get("", operation_id="server_metadata", dependencies=_CALLER)
def server_metadata() -> ServerOut:
    """Name and version of the server."""
    return ServerOut(name="secondread", version=__version__, extensions=["binary_tensor_data"])


@router.get("/health/live", operation_id="server_live", dependencies=[Depends(allow_everyone)])
async def server_live() -> LiveOut:
    """The process answers, however many requests wait for a thread."""
    return LiveOut(live=True)


@router.get("/health/ready", operation_id="server_ready", dependencies=[Depends(allow_everyone)])
def server_ready(request: Request, context: AppContext) -> Response:
    """Database and release can serve; what `/readyz` says."""
    ready = check_readiness(context, request.app.state.heads).status == "ready"
    return JSONResponse({"ready": ready}, 200 if ready else 503)


@router.get("/models/{model}", operation_id="model_metadata", dependencies=_CALLER)
def model_metadata(model: str, context: AppContext) -> ModelOut:
    """Inputs and outputs of a model."""
    return describe_model(find_model(context, model, None))


@router.get("/models/{model}/versions/{version}", operation_id="model_version_metadata", dependencies=_CALLER)
def model_version_metadata(model: str, version: str, context: AppContext) -> ModelOut:
    """The same of a version, which is the identifier of a release."""
    return describe_model(find_model(context, model, version))


@router.get("/models/{model}/ready", operation_id="model_ready", dependencies=_CALLER)
def model_ready(model: str, context: AppContext) -> ModelReadyOut:
    """Whether a model can be asked."""
    return ModelReadyOut(name=find_model(context, model, None).name, ready=True)


@router.get("/models/{model}/versions/{version}/ready", operation_id="model_version_ready", dependencies=_CALLER)
def model_version_ready(model: str, version: str, context: AppContext) -> ModelReadyOut:
    """The same of a version."""
    return ModelReadyOut(name=find_model(context, model, version).name, ready=True)


async def _read_plain_body(request: Request) -> bytes:
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedImage("send the body without compression")
    return await request.body()


def _infer_response(context: AppContext, request: Request, model: str, version: str | None, body: bytes) -> Response:
    served_model = find_model(context, model, version)
    content, header_length = service.run_inference_request(
        context,
        served_model,
        body,
        request.headers.get(HEADER_LENGTH),
        lambda: from_thread.run(request.is_disconnected),
    )
    if header_length is None:
        return Response(content, media_type="application/json")
    headers = {"Inference-Header-Content-Length": str(header_length)}
    return Response(content, media_type="application/octet-stream", headers=headers)


@router.post("/models/{model}/infer", operation_id="infer", dependencies=_CALLER)
def infer_by_model_name(
    model: str, context: AppContext, request: Request, body: Annotated[bytes, Depends(_read_plain_body)]
) -> Response:
    """Predict images without storing them."""
    return _infer_response(context, request, model, None, body)


@router.post("/models/{model}/versions/{version}/infer", operation_id="infer_by_version", dependencies=_CALLER)
def infer_by_version(
    model: str, version: str, context: AppContext, request: Request, body: Annotated[bytes, Depends(_read_plain_body)]
) -> Response:
    """Predict images by one release without storing them."""
    return _infer_response(context, request, model, version, body)
