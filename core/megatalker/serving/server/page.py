"""The page at ``/`` with its files at ``/static/``, and ``/docs``: no build step, no other server is asked, and every
address is relative, so that a reverse proxy may offer them under any prefix.
"""

from importlib.resources import files
from pathlib import Path

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.staticfiles import StaticFiles
from starlette.responses import FileResponse, HTMLResponse, Response

DOCS_ASSETS = "docs/assets"
STATIC = Path(str(files("megatalker.serving.server") / "static"))
POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "media-src": "blob:",  # a recording that is listened to before it is sent
    "connect-src": "'self' http: https: ws: wss:",  # another server, to compare with
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}
HEADERS = {
    "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in POLICY.items()),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",  # may be kept, but is asked for again: files of two versions never meet
}


class _Files(StaticFiles):
    def file_response(self, *arguments: object, **options: object) -> Response:
        response = super().file_response(*arguments, **options)  # type: ignore[arg-type] # passed on as they are
        response.headers.update(HEADERS)
        return response


def serve_page(app: FastAPI) -> None:
    """Add the page to an application."""

    @app.get("/", include_in_schema=False)
    def page() -> FileResponse:
        return FileResponse(STATIC / "index.html", headers=HEADERS)

    app.mount("/static", _Files(directory=STATIC))


def serve_docs(app: FastAPI) -> None:
    """Add the page at ``/docs``, whose files lie at ``/docs/assets/``."""

    @app.get("/docs", include_in_schema=False)
    def docs() -> HTMLResponse:
        return get_swagger_ui_html(
            openapi_url="openapi.json",
            title=f"{app.title} - Swagger UI",
            swagger_js_url=f"{DOCS_ASSETS}/swagger-ui-bundle.js",
            swagger_css_url=f"{DOCS_ASSETS}/swagger-ui.css",
            swagger_favicon_url=f"{DOCS_ASSETS}/favicon.png",
        )
