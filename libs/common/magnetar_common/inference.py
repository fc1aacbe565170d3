"""Sending inference requests to where the routes say, and elsewhere when a replica does not answer.

Speaks the Open Inference Protocol over HTTP, as MLServer and Triton do. ::

    with Routes(bus) as routes, InferenceClient(routes) as client:
        answer = client.infer("iris", {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [...]}]})
"""

import json
import random
import re
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Self, cast

import httpx

from magnetar_common.bus import Bus, Message
from magnetar_common.errors import InferenceRefused, NoRoute
from magnetar_common.table_view import SWEEP_S, TableView
from magnetar_common.topics import ROUTES
from magnetar_events import ROUTE, Route
from magnetar_events.codec import FINGERPRINT
from magnetar_events.routes import Endpoint, RouteTarget

DOUBT_S = 150.0
"""A route that a re-read of the topic does not find, and that nobody took back, is kept for this long (seconds). Each
minute the leader publishes what the topic lacks, and each minute the topic is read again: by then it would be back."""

ATTEMPTS = 4
"""Replicas of the newest route that one request is tried on, at most: those of a version that left do not count."""

LIMIT = 64
"""Requests in progress at one replica from one client, at most: one that hangs cannot hold all of its connections."""

ASIDE_S = (0.3, 1.0)
"""A replica that failed gets no requests for this long (seconds) while others can take them: from, doubling up to."""

CONNECT_S = 1.0
"""A connection that is not there after this long (seconds) counts as refused."""

_ELSEWHERE = frozenset(
    {HTTPStatus.NOT_FOUND, HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT}
)
"""Answers that say something of the replica and nothing of the request."""

_UNKNOWN_MODEL = re.compile(r"unknown model|model\b.{0,200}\bnot (found|ready|loaded)", re.IGNORECASE | re.DOTALL)
"""How servers say in a 400 that they do not have the model (any more): Triton's ``Request for unknown model``."""


def model_key(model: str) -> str:
    """Return the key of a model that may be named without its tenant: ``iris`` is ``default/iris``."""
    return model if "/" in model else f"default/{model}"


class Routes:
    """The last good table of routes. Safe to use from several threads.

    A model's route is only ever replaced by a newer one, by (term, position). While the broker is away the table stays
    as it is. A route that was taken back (a tombstone) is gone at once; one that is merely missing from a re-read, as
    when a topic is emptied, is doubted, and kept for `DOUBT_S`.

    Args:
        bus: where the routes are; it must outlive this.
        sweep_s: seconds between re-reads of the whole topic.
        doubt_s: see `DOUBT_S`.
    """

    def __init__(self, bus: Bus, *, sweep_s: float = SWEEP_S, doubt_s: float = DOUBT_S) -> None:
        self._doubt_s = doubt_s
        self._changed = threading.Condition()
        self._table: dict[str, Route] = {}
        self._doubted: dict[str, float] = {}
        self._view = TableView(bus, ROUTES.name, _decode, sweep_s=sweep_s)
        self._view.for_each_and_listen(self._heard)

    def get(self, model: str) -> Route | None:
        """Return a model's route; None when there is no such model, no targets when nothing of it is loaded."""
        key = model_key(model)
        with self._changed:
            since = self._doubted.get(key)
            if since is not None and time.monotonic() - since > self._doubt_s:
                del self._doubted[key], self._table[key]
            return self._table.get(key)

    def wait_ready(self, timeout: float) -> bool:
        """Wait until the topic has been read once; return whether it has been."""
        return self._view.wait_ready(timeout)

    def wait_for(self, model: str, condition: Callable[[Route | None], bool], timeout: float) -> bool:
        """Wait until a model's route is as wanted; return whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: condition(self.get(model)), timeout)

    def close(self) -> None:
        """Stop following; the table stays. Idempotent."""
        self._view.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _heard(self, key: str, route: Route | None) -> None:
        swept = self._view.sweeping if route is None else False
        with self._changed:
            known = self._table.get(key)
            if route is None:
                if swept:
                    self._doubted.setdefault(key, time.monotonic())
                else:
                    self._table.pop(key, None)
                    self._doubted.pop(key, None)
            elif known is None or key in self._doubted or _order(route) >= _order(known):
                # After a doubt anything counts as newer: a topic that was emptied may begin again with a new log.
                self._table[key] = route
                self._doubted.pop(key, None)
            self._changed.notify_all()


def _order(route: Route) -> tuple[int, int]:
    return route.term, route.position


def _decode(message: Message) -> Route:
    return ROUTE.decode(message.payload, message.properties.get(FINGERPRINT, ""))


@dataclass(slots=True, frozen=True)
class Response:
    """A model's answer.

    Attributes:
        json: the body, with the model's name as it was asked for.
        server: who answered, ``cluster/server/replica``.
        served_name: the name under which it has the model.
        generation: the version that answered.
    """

    json: dict[str, Any]
    server: str
    served_name: str
    generation: int


@dataclass(slots=True)
class _Replica:
    """What this client has seen of one endpoint, for as long as there is something to remember."""

    in_flight: int = 0
    failures: int = 0
    aside_until: float = 0.0


_Place = tuple[str, str]
"""Server and served name: one version on one server."""

_Choice = tuple[RouteTarget, Endpoint, bool]
"""Version, replica, and whether there are others that could take the request."""


class InferenceClient:
    """Sends requests to the replicas of a model. Safe to use from several threads.

    A version is drawn by weight among those that have a replica; of its replicas the one with the fewest requests from
    here is taken, in turn among equals. A replica that cannot be reached, does not answer in time, or says that it does
    not have the model or cannot serve now is set aside for a moment, and the request goes to another one, as inference
    changes nothing. Every other answer is the model's, and final.

    Args:
        routes: where models are; it must outlive this.
        http: the caller's, which stays open; None = one of our own.
        seed: of the draw by weight, for tests.
    """

    def __init__(self, routes: Routes, http: httpx.Client | None = None, *, seed: int | None = None) -> None:
        self._routes = routes
        self._owned = http is None
        # No limit to connections here: with one, a replica that hangs would keep requests from the healthy.
        self._http = http or httpx.Client(limits=httpx.Limits(max_connections=None, max_keepalive_connections=100))
        self._random = random.Random(seed)  # noqa: S311 - spreads load
        self._lock = threading.Lock()
        self._turn = 0
        self._replicas: dict[_Place, _Replica] = {}

    def infer(self, model: str, payload: dict[str, Any], *, timeout: float = 10.0) -> Response:
        """Return the model's answer to a request of the Open Inference Protocol.

        Args:
            model: key, or name of a model of the default tenant.
            payload: the body, with ``inputs``.
            timeout: seconds for all attempts together. While another replica is left, one may use half of what is left.

        Raises:
            NoRoute: 404 = there is no such model; 503 = no replica could take the request, which may be tried again.
            InferenceRefused: the request is wrong, or the model failed on it.
        """
        return self._ask("POST", model, "/infer", payload, timeout, "model_name")

    def metadata(self, model: str, *, timeout: float = 5.0) -> Response:
        """Return what a replica says of the model: inputs, outputs, platform. Errors as for :meth:`infer`."""
        return self._ask("GET", model, "", None, timeout, "name")

    def ready(self, model: str, *, timeout: float = 5.0) -> bool:
        """Return whether a replica says that it can serve the model now."""
        try:
            self._ask("GET", model, "/ready", None, timeout, "")
        except (NoRoute, InferenceRefused):
            return False
        return True

    def close(self) -> None:
        """Close the connections. Idempotent."""
        if self._owned:
            self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _ask(
        self, method: str, model: str, path: str, payload: dict[str, Any] | None, timeout: float, name: str
    ) -> Response:
        deadline = time.monotonic() + timeout
        tried: dict[_Place, str] = {}
        while True:
            route = self._routes.get(model)
            if route is None:
                raise NoRoute(model_key(model), HTTPStatus.NOT_FOUND, "there is no such model")
            attempts = sum(_place(e) in tried for target in route.targets for e in target.endpoints)
            if attempts >= ATTEMPTS:
                break
            with self._taken(route, tried) as choice:
                left = deadline - time.monotonic()
                if choice is None or left <= 0:
                    break
                target, endpoint, others = choice
                place = _place(endpoint)
                budget = left / 2 if others and attempts + 1 < ATTEMPTS else left
                url = f"http://{_host(endpoint)}:{endpoint.http_port}/v2/models/{endpoint.served_name}{path}"
                try:
                    limits = httpx.Timeout(budget, connect=min(budget, CONNECT_S))
                    answer = self._http.request(method, url, json=payload, timeout=limits)
                except httpx.TransportError as error:
                    tried[place] = f"{type(error).__name__} {error}".strip()
                    self._set_aside(place)
                    continue
                if _not_here(answer):
                    tried[place] = f"{answer.status_code} {_said(answer)}"
                    self._set_aside(place)
                    continue
                self._praise(place)
                if not answer.is_success:
                    raise InferenceRefused(model_key(model), endpoint.server, answer.status_code, _said(answer))
                body = _named(answer, endpoint, name, model)
                return Response(body, endpoint.server, endpoint.served_name, target.generation)
        why = "; ".join(f"{server}: {said}" for (server, _), said in tried.items())
        route = self._routes.get(model)
        note = (route.note if route else "") or "no replica can take a request now"
        raise NoRoute(model_key(model), HTTPStatus.SERVICE_UNAVAILABLE, why or note)

    @contextmanager
    def _taken(self, route: Route, tried: dict[_Place, str]) -> Generator[_Choice | None, None, None]:
        """Choose a replica, and count the request while it is in progress."""
        with self._lock:
            choice = self._choose(route, tried)
            if choice is not None:
                self._replicas.setdefault(_place(choice[1]), _Replica()).in_flight += 1
        try:
            yield choice
        finally:
            if choice is not None:
                with self._lock:
                    place = _place(choice[1])
                    replica = self._replicas[place]
                    replica.in_flight -= 1
                    if not (replica.in_flight or replica.failures):
                        del self._replicas[place]

    def _choose(self, route: Route, tried: dict[_Place, str]) -> _Choice | None:
        now = time.monotonic()
        free = [
            (target, [e for e in target.endpoints if _place(e) not in tried and self._of(_place(e)).in_flight < LIMIT])
            for target in route.targets
            if target.weight > 0
        ]
        left = sum(len(those) for _, those in free)
        well = [(target, [e for e in those if self._of(_place(e)).aside_until <= now]) for target, those in free]
        # Whoever is set aside is better than nobody.
        usable = [(t, e) for t, e in well if e] or [(t, e) for t, e in free if e]
        if not usable:
            return None
        target, endpoints = self._random.choices(usable, [t.weight for t, _ in usable])[0]
        self._turn += 1
        turn = self._turn % len(endpoints)
        endpoint = min(endpoints[turn:] + endpoints[:turn], key=lambda e: self._of(_place(e)).in_flight)
        return target, endpoint, left > 1

    def _of(self, place: _Place) -> _Replica:
        return self._replicas.get(place) or _Replica()

    def _set_aside(self, place: _Place) -> None:
        shortest, longest = ASIDE_S
        with self._lock:
            replica = self._replicas[place]
            replica.aside_until = time.monotonic() + min(longest, shortest * 2**replica.failures)
            replica.failures = min(replica.failures + 1, 8)

    def _praise(self, place: _Place) -> None:
        with self._lock:
            replica = self._replicas[place]
            replica.failures, replica.aside_until = 0, 0.0


def _place(endpoint: Endpoint) -> _Place:
    return endpoint.server, endpoint.served_name


def _host(endpoint: Endpoint) -> str:
    return f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host


def _not_here(answer: httpx.Response) -> bool:
    """Whether an answer says that another replica should be asked."""
    if answer.status_code in _ELSEWHERE:
        return True
    return answer.status_code == HTTPStatus.BAD_REQUEST and _UNKNOWN_MODEL.search(answer.text) is not None


def _said(answer: httpx.Response) -> str:
    """Return a server's error as text: the protocol has it in ``error``."""
    try:
        said: Any = answer.json()
    except ValueError:
        said = answer.text
    if isinstance(said, dict):
        said = cast("dict[str, Any]", said).get("error", said)
    return str(said)[:500]


def _named(answer: httpx.Response, endpoint: Endpoint, name: str, model: str) -> dict[str, Any]:
    """Return the body with the model's name as it was asked for; empty where nothing is expected."""
    if not name:
        return {}
    try:
        body: Any = answer.json()
    except json.JSONDecodeError:
        body = None
    if not isinstance(body, dict):
        raise InferenceRefused(model_key(model), endpoint.server, answer.status_code, "the answer is not a JSON object")
    return {**cast("dict[str, Any]", body), name: model}
