"""GET /assets: the scripts and the icon of pages, for everybody, kept by browsers for good.

An address that no asset of this version has is answered with 404: during an upgrade a page of the
other version then works as one without scripts.
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

from gpuledger_collector.export.assets import ICON, PATH, Asset, asset, assets_by_address

KEPT = "public, max-age=31536000, immutable"
KEPT_A_DAY = "public, max-age=86400"
"""The address of the browser's own choice has no hash."""


def router() -> APIRouter:
    """The files."""
    routes = APIRouter(include_in_schema=False)

    @routes.get(f"{PATH}{{name}}")
    def read(name: str, request: Request) -> Response:
        """A file by its address."""
        found = assets_by_address().get(f"{PATH}{name}")
        if found is None:
            raise HTTPException(404)
        return _answer(found, request, KEPT)

    @routes.get("/favicon.ico")
    def icon(request: Request) -> Response:
        """The icon where browsers look for it by themselves."""
        return _answer(asset(ICON), request, KEPT_A_DAY)

    return routes


def accepts_gzip(header: str) -> bool:
    """Whether an Accept-Encoding admits gzip: by its name, or else by `*`, and not with `q=0`."""
    admitted: dict[str, bool] = {}
    for part in header.casefold().split(","):
        name, *parameters = (text.strip() for text in part.split(";"))
        weights = [text[2:] for text in parameters if text.startswith("q=")]
        admitted[name] = not any(weight.strip("0.") == "" for weight in weights)
    return admitted.get("gzip", admitted.get("*", False))


def _answer(found: Asset, request: Request, kept: str) -> Response:
    headers = {"Cache-Control": kept, "Vary": "Accept-Encoding"}
    content = found.content
    if accepts_gzip(request.headers.get("accept-encoding", "")):
        content, headers["Content-Encoding"] = found.compressed, "gzip"
    return Response(content, 200, headers, found.media_type)
