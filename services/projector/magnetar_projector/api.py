"""The read model over HTTP, as JSON. Every answer names the ``position`` as of which it is true."""

from collections.abc import Callable
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from magnetar_common.render import plain, state_digest, state_to_dict
from magnetar_projector.places import BadPlace, NoSuchPlace, Place, parse_place, time_of
from magnetar_projector.queries import Queries
from magnetar_projector.versions import NoSuchVersion, VersionPast, between, shown

MAX_LIMIT = 1_000
"""Entries in one answer of ``/v1/log``."""

_Endpoint = Callable[[Request], JSONResponse]


def routes(queries: Queries) -> list[Route]:
    """Return what to serve besides health and metrics.

    ``/v1/models``, ``/v1/models/{tenant}/{name}`` with its ``/history``, ``/versions``, ``/diff?a=&b=`` (two versions) and
    ``/story?from=&to=``, ``/v1/servers``,
    ``/v1/servers/{cluster}/{server}/{replica}/story``, ``/v1/log?after=&subject=&kind=&limit=`` and ``/v1/state?at=``.
    Places (``at``, ``from``, ``to``) are positions, message ids or RFC 3339 times.
    """
    api = _Api(queries)
    table: dict[str, _Endpoint] = {
        "/v1/models": api.models,
        "/v1/models/{tenant}/{name}": api.model,
        "/v1/models/{tenant}/{name}/history": api.history,
        "/v1/models/{tenant}/{name}/versions": api.versions,
        "/v1/models/{tenant}/{name}/diff": api.diff,
        "/v1/models/{tenant}/{name}/story": api.model_story,
        "/v1/servers": api.servers,
        "/v1/servers/{cluster}/{server}/{replica}/story": api.server_story,
        "/v1/log": api.log,
        "/v1/state": api.state,
    }
    return [Route(path, _refusing(endpoint)) for path, endpoint in table.items()]


def _refusing(endpoint: _Endpoint) -> _Endpoint:
    """Turn a place that cannot be had into the answer that says so."""

    def serve(request: Request) -> JSONResponse:
        try:
            return endpoint(request)
        except BadPlace as error:
            raise HTTPException(400, str(error)) from error
        except NoSuchPlace as error:
            raise HTTPException(404, str(error)) from error

    return serve


class _Api:
    """The endpoints. Each is called in a thread of its own."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    def models(self, _: Request) -> JSONResponse:
        with self._queries.still():
            return self._answer(models=self._queries.models())

    def model(self, request: Request) -> JSONResponse:
        key = _model(request)
        with self._queries.still():
            found = self._queries.model(key)
            if found is None:
                raise HTTPException(404, f"there is no model {key} at position {self._queries.position}")
            return self._answer(model=found)

    def history(self, request: Request) -> JSONResponse:
        key = _model(request)
        with self._queries.still():
            changes = self._queries.history(key)
            if not changes:
                raise HTTPException(404, f"there was never a model {key} up to position {self._queries.position}")
            return self._answer(history=[{**plain(change), "time": time_of(change.wall)} for change in changes])

    def versions(self, request: Request) -> JSONResponse:
        with self._queries.still():
            return self._answer(versions=[shown(version) for version in self._versions(_model(request))])

    def diff(self, request: Request) -> JSONResponse:
        for name in ("a", "b"):
            if not request.query_params.get(name):
                raise HTTPException(400, f"{name} is missing: which versions are to be compared?")
        one, other = (_number(request, name, 1, least=1) for name in ("a", "b"))
        with self._queries.still():
            try:
                differences = between(self._versions(_model(request)), one, other)
            except NoSuchVersion as error:
                raise HTTPException(404, f"{_model(request)}: {error}") from error
            return self._answer(differences=[plain(each) for each in differences])

    def _versions(self, key: str) -> list[VersionPast]:
        versions = self._queries.versions(key)
        if not versions:
            raise HTTPException(404, f"there was never a model {key} up to position {self._queries.position}")
        return versions

    def model_story(self, request: Request) -> JSONResponse:
        return self._story(request, _model(request))

    def servers(self, _: Request) -> JSONResponse:
        with self._queries.still():
            return self._answer(servers=self._queries.servers())

    def server_story(self, request: Request) -> JSONResponse:
        return self._story(request, "{cluster}/{server}/{replica}".format(**request.path_params))

    def log(self, request: Request) -> JSONResponse:
        asked = request.query_params
        after = _number(request, "after", -1, least=-1)
        limit = min(MAX_LIMIT, _number(request, "limit", 100, least=1))
        with self._queries.still():
            subject, kind = asked.get("subject", ""), asked.get("kind", "")
            return self._answer(entries=self._queries.log(after=after, subject=subject, kind=kind, limit=limit))

    def state(self, request: Request) -> JSONResponse:
        state = self._queries.state_at(_place(request, "at"))  # long: nobody is made to wait for it
        return JSONResponse({"position": state.position, "digest": state_digest(state), "state": state_to_dict(state)})

    def _story(self, request: Request, subject: str) -> JSONResponse:
        start, end = (_place(request, name) for name in ("from", "to"))
        with self._queries.still():
            lines = self._queries.story(subject, start, end)
            return self._answer(story=[{**plain(line), "time": time_of(line.wall)} for line in lines])

    def _answer(self, **body: Any) -> JSONResponse:
        return JSONResponse({"position": self._queries.position, **body})


def _place(request: Request, name: str) -> Place | None:
    text = request.query_params.get(name, "")
    return parse_place(text) if text else None


def _model(request: Request) -> str:
    return "{tenant}/{name}".format(**request.path_params)


def _number(request: Request, name: str, default: int, *, least: int) -> int:
    text = request.query_params.get(name, "")
    if not text:
        return default
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if not least <= number < 2**63:
        raise HTTPException(400, f"{name} is {text!r} and must be a whole number from {least}")
    return number
