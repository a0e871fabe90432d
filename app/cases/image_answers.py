"""Images as they are sent: the stored pixels, and how long a browser may keep them."""

from fastapi import Response

from app.context import Context

#: Seconds for which a browser may keep an image: no longer than a lease, and until somebody signs out.
KEPT_SECONDS = 1800


def image_answer(context: Context, stored_sha256: str, *, kept: bool = True) -> Response:
    """The pixels of an image as PNG, without metadata.

    Args:
        context: parts of the service.
        stored_sha256: its name in the store.
        kept: whether a browser may keep it.
    """
    control = f"max-age={KEPT_SECONDS}, immutable" if kept else "no-store"
    headers = {"Cache-Control": f"private, {control}", "Content-Disposition": "inline"}
    return Response(context.images.get(stored_sha256), media_type="image/png", headers=headers)
