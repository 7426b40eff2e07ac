"""The page at `/`: a document, style sheets and scripts from `static/`, uPlot among them. It loads nothing from elsewhere."""

from __future__ import annotations

import hashlib
from pathlib import Path

from fastapi import FastAPI, Request, Response

from harvester.errors import NotFoundError

STATIC = Path(__file__).parent / "static"
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
FILES = {path.name: path for path in sorted(STATIC.rglob("*")) if path.suffix in KINDS}
# Results hold untrusted text: even if it were taken for markup, nothing in it could run, load or send.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",  # revalidated each time, and not sent again while the etag is the same
}


class Asset:
    """A file of the page, held in memory."""

    def __init__(self, name: str) -> None:
        self._body = FILES[name].read_bytes()
        self._kind = f"{KINDS[FILES[name].suffix]}; charset=utf-8"
        self._headers = {**HEADERS, "etag": f'"{hashlib.sha256(self._body).hexdigest()[:16]}"'}

    def answer(self, request: Request) -> Response:
        if request.headers.get("if-none-match") == self._headers["etag"]:
            return Response(status_code=304, headers=self._headers)
        return Response(self._body, media_type=self._kind, headers=self._headers)


def add_page(app: FastAPI) -> None:
    """Add ``GET /`` to the chat application, whose prefix it is."""
    page = Asset("index.html")

    @app.get("/", include_in_schema=False)
    async def index(request: Request) -> Response:
        return page.answer(request)


def add_assets(app: FastAPI) -> None:
    """Add ``GET /page/...`` to the jobs application: what the page loads."""
    assets = {name: Asset(name) for name in FILES if name != "index.html"}

    @app.get("/page/{name}", include_in_schema=False)
    async def asset(name: str, request: Request) -> Response:
        if name not in assets:
            raise NotFoundError(f"unknown file {name[:80]} of the page; there are {', '.join(assets)}")
        return assets[name].answer(request)
