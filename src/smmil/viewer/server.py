"""HTTP routes of the viewer; every URL names a number of a table."""

import json
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from smmil.errors import ConfigError, SmmilError
from smmil.files import digest
from smmil.viewer.api import _all_cases, _bounded, _decimal, _Download, _number, _numbers, _one_case
from smmil.viewer.catalogue import _NotFound
from smmil.viewer.data import ViewerData
from smmil.viewer.guard import _Guard
from smmil.viewer.tiles import _LARGEST_PATCH
from smmil.web import render, static_files

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_BYTES = "application/octet-stream"
_CHUNK = 2**20


def _create_app(study: ViewerData, *, host: str = "127.0.0.1", token: str | None = None) -> Starlette:
    """The application over a study, guarded; `host` is where it is bound, `token` what other machines must send."""
    handlers = _Routes(study)
    about_cases = {
        "/api/cases": handlers.cases,
        "/api/case/{case}": handlers.case,
        "/api/case/{case}/coords": handlers.coords,
        "/api/case/{case}/scores/{model}": handlers.scores,
        "/api/case/{case}/truth": handlers.truth,
        "/api/case/{case}/instance/{instance}": handlers.instance,
        "/tiles/{case}/{level}/{place}": handlers.tile,
        "/patch/{case}/{picture}": handlers.patch,
        "/slice/{case}/{slice}": handlers.slice,
        "/thumbnail/{picture}": handlers.thumbnail,
        "/export/{case}/{model}/{format}": handlers.export,
    }
    routes = [
        Route("/", handlers.page),
        Route("/static/{name}", handlers.static),
        *(Route(path, handlers.same_start(handler)) for path, handler in about_cases.items()),
    ]
    problems: Any = {
        SmmilError: handlers.problem,
        HTTPException: handlers.http_problem,
        Exception: handlers.internal_error,
    }

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        study.close()

    guard = Middleware(_Guard, bound=host, token=token)
    app = Starlette(routes=routes, middleware=[guard], exception_handlers=problems, lifespan=lifespan)
    app.router.redirect_slashes = False
    return app


class _Routes:
    """One method per route. They run in threads, several at once."""

    def __init__(self, study: ViewerData):
        self.study = study
        self._page = render("viewer.html", title=study.title).encode()
        self._files = {name: path for name, path in static_files().items() if not name.startswith("report")}
        # Numbers mean other cases after a restart: no browser may take an old answer for a new one.
        self._start = secrets.token_hex(8)
        self._all_cases = _json({"study": self._start, **_all_cases(study)})

    def same_start(self, handler: Callable[[Request], Response]) -> Callable[[Request], Response]:
        """Refuse requests of a page of an earlier start (query `study`): its numbers mean other cases now."""

        def checked(request: Request) -> Response:
            if set(request.query_params.getlist("study")) <= {self._start}:
                return handler(request)
            return _refusal(409, "this page belongs to an earlier start of smmil view; reload it")

        return checked

    def page(self, request: Request) -> Response:
        return _tagged(request, digest(self._page), "text/html; charset=utf-8", lambda: self._page)

    def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._files:
            raise _NotFound
        content = self._files[name].read_bytes()
        return _tagged(request, digest(content), _TYPES[self._files[name].suffix], lambda: content)

    def cases(self, request: Request) -> Response:
        return _json_response(self._all_cases)

    def case(self, request: Request) -> Response:
        return _json_response(_json(_one_case(self.study, self._case(request))))

    def coords(self, request: Request) -> Response:
        return self._cached(request, _BYTES, lambda: self.study.coords_bytes(self._case(request)))

    def scores(self, request: Request) -> Response:
        return self._cached(request, _BYTES, lambda: self.study.scores_bytes(self._case(request), self._model(request)))

    def truth(self, request: Request) -> Response:
        return self._cached(request, _BYTES, lambda: self.study.truth_bytes(self._case(request)))

    def instance(self, request: Request) -> Response:
        case = self._case(request)
        index = _number(request.path_params["instance"], self.study.cases[case].instances)
        wanted = request.query_params.get("model")
        model = None if wanted is None else _bounded(wanted, "model", 0, len(self.study.models) - 1, 0)
        return _json_response(_json(self.study.instance(case, index, model)))

    def tile(self, request: Request) -> Response:
        case, level = self._case(request), _number(request.path_params["level"], 64)
        column, row = _numbers(request.path_params["place"], "*_*.jpg")
        return self._cached(request, "image/jpeg", lambda: self.study.tile(case, level, column, row))

    def patch(self, request: Request) -> Response:
        case = self._case(request)
        index = _number(request.path_params["picture"], self.study.cases[case].instances, "*.jpg")
        size = _bounded(request.query_params.get("size"), "size", 16, _LARGEST_PATCH, _LARGEST_PATCH)
        return self._cached(request, "image/jpeg", lambda: self.study.patch(case, index, size))

    def slice(self, request: Request) -> Response:
        case, index = self._case(request), _number(request.path_params["slice"], 10**6)
        return self._cached(request, _BYTES, lambda: self.study.slice(case, index))

    def thumbnail(self, request: Request) -> Response:
        case = _number(request.path_params["picture"], len(self.study.cases), "*.png")
        request.path_params["case"] = str(case)  # so that an error names this case
        return self._cached(request, "image/png", lambda: self.study.thumbnail(case))

    def export(self, request: Request) -> Response:
        case, model = self._case(request), self._model(request)
        threshold = _decimal(request.query_params.get("threshold"), "threshold")
        return _Attachment(self.study.download(case, model, request.path_params["format"], threshold))

    def problem(self, request: Request, problem: Exception) -> Response:
        """A mistake in the URL, or an unusable image or file, as one line."""
        try:
            text = self.study.message(problem, self._case(request))
        except (_NotFound, KeyError):
            text = str(_NotFound()) if isinstance(problem, _NotFound) else str(problem)
        status = 404 if isinstance(problem, _NotFound) else 400 if isinstance(problem, ConfigError) else 422
        return _refusal(status, text)

    def http_problem(self, request: Request, problem: Exception) -> Response:
        assert isinstance(problem, HTTPException)
        return _refusal(problem.status_code, str(_NotFound()) if problem.status_code == 404 else problem.detail)

    def internal_error(self, request: Request, problem: Exception) -> Response:
        return _refusal(500, "the viewer made a mistake; the terminal it was started from shows more")

    def _case(self, request: Request) -> int:
        return _number(request.path_params["case"], len(self.study.cases))

    def _model(self, request: Request) -> int:
        return _number(request.path_params["model"], len(self.study.models))

    def _cached(self, request: Request, kind: str, make: Callable[[], bytes]) -> Response:
        return _tagged(request, digest(self._start, request.url.path, request.url.query), kind, make)


def _tagged(request: Request, tag: str, kind: str, make: Callable[[], bytes]) -> Response:
    """A response that a browser may cache if it revalidates it each time."""
    headers = {"etag": f'"{tag[:32]}"', "cache-control": "private, no-cache"}
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(status_code=304, headers=headers)
    return Response(make(), media_type=kind, headers=headers)


def _json(content: Any) -> bytes:
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


def _json_response(content: bytes, status: int = 200) -> Response:
    return Response(content, status, {"cache-control": "no-store"}, "application/json")


def _refusal(status: int, text: str) -> Response:
    return _json_response(_json({"error": text}), status)


class _Attachment(StreamingResponse):
    """A file download; the file is deleted once it was sent or the connection is closed."""

    def __init__(self, download: _Download):
        self._download = download
        plain = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in download.name)
        exact = f"filename*=UTF-8''{quote(download.name, safe='')}"
        headers = {
            "content-disposition": f'attachment; filename="{plain}"; {exact}',
            "content-length": str(download.file.stat().st_size),
            "cache-control": "no-store",
        }
        super().__init__(self._pieces(), media_type=_BYTES, headers=headers)

    def _pieces(self) -> Any:
        with self._download.file.open("rb") as file:
            while piece := file.read(_CHUNK):
                yield piece

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._download.discard()
