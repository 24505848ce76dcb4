"""The page at ``/``, and its files at ``/static/``: no build step, and nothing that another server is asked for."""

from importlib.resources import files
from pathlib import Path

from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles
from starlette.responses import FileResponse, Response

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
