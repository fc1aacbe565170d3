"""What an operator sees of a service: its logs, its health and its metrics, the last two over HTTP.

``/livez`` and ``/readyz`` answer 200 or 503 with every check by name; ``/metrics`` is Prometheus' text format.

On a loopback address whoever is on the machine may ask. On any other every caller must send a bearer token, without
which nothing is served but ``/livez`` and ``/readyz``, and of these only whether all is well: a kubelet has no token.
"""

import hmac
import ipaddress
import logging
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Self

import prometheus_client
import structlog

from magnetar_common.errors import MagnetarError, Unguarded
from magnetar_common.settings import HttpSettings
from magnetar_events.credentials import redacted

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp, Receive, Scope, Send
    from uvicorn import Server

Check = Callable[[], tuple[bool, str]]
"""Returns (ok, detail). Quick: it is called for each request."""

_BACKLOG = 2048
_STOP_S = 5

_log = structlog.get_logger(__name__)


def configure_logging(service: str, *, json: bool, level: str = "INFO") -> None:
    """Make every log line of this process structured, on stderr, with the service's name in it.

    Lines of the standard library's loggers (uvicorn, httpx, …) take the same form. What looks like a credential is
    taken out of each, as a last line of defence (see :mod:`magnetar_events.credentials`).

    Args:
        service: who speaks.
        json: one JSON object a line; else for people.
        level: ``DEBUG``, ``INFO``, ``WARNING``, ``ERROR``.
    """
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        lambda _logger, _method, event: {"service": service, **event},
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    last: list[structlog.types.Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if json
        else [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _Redacting(
            foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last]
        )
    )
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    for chatty in ("httpx", "httpcore"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


class _Redacting(structlog.stdlib.ProcessorFormatter):
    """Works on the whole line, tracebacks included."""

    def format(self, record: logging.LogRecord) -> str:
        return redacted(super().format(record))


class Health:
    """Named checks. Ready = all pass; alive = those pass whose failure only a restart can mend."""

    def __init__(self) -> None:
        self._checks: dict[str, tuple[Check, bool]] = {}

    def add(self, name: str, check: Check, *, live: bool = False) -> None:
        """Add a check, or replace the one of that name.

        Args:
            name: how it is shown.
            check: what to ask. One that raises has failed.
            live: whether the process should be restarted when it fails.
        """
        self._checks[name] = (check, live)

    def report(self, *, live: bool = False) -> tuple[bool, dict[str, dict[str, Any]]]:
        """Ask the checks (only the live ones, if asked so); return whether all passed, and each answer."""
        answers: dict[str, dict[str, Any]] = {}
        for name, (check, of_life) in list(self._checks.items()):
            if live and not of_life:
                continue
            try:
                ok, detail = check()
            except Exception as error:  # noqa: BLE001 - a check that cannot answer has failed
                _log.error("health check failed", check=name, exc_info=error)
                ok, detail = False, f"{type(error).__name__}: {error}"
            answers[name] = {"ok": ok, "detail": detail}
        return all(answer["ok"] for answer in answers.values()), answers


class OpsServer:
    """A small HTTP server in a thread: health, metrics, and whatever routes the service adds.

    Args:
        health: the checks.
        host: loopback unless somebody decides otherwise.
        port: 0 = any free one; see :attr:`port`.
        routes: starlette routes to serve as well.
        access: who may ask; by default what the environment says (``MAGNETAR_HTTP_…``).
    """

    def __init__(
        self,
        health: Health,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        routes: Sequence["BaseRoute"] = (),
        access: HttpSettings | None = None,
    ) -> None:
        self._health = health
        self._host = host
        self._asked_port = port
        self._routes = routes
        self._access = access or HttpSettings()
        self._socket: socket.socket | None = None
        self._server: Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port that it listens on, once started."""
        assert self._socket is not None, "not started"
        return self._socket.getsockname()[1]

    @property
    def url(self) -> str:
        """Its root, once started."""
        return f"http://{self._host}:{self.port}"

    def start(self) -> Self:
        """Begin to listen.

        Raises:
            Unguarded: the address is not a loopback one, and there is no token.
            MagnetarError: the port is taken, or the ``http`` extra is not installed.
        """
        if not self._access.current_token() and not _is_loopback(self._host):
            raise Unguarded(
                f"{self._host} can be reached from other machines, and callers would need no token: put one into the "
                "file that MAGNETAR_HTTP_TOKEN_FILE names, or listen on 127.0.0.1"
            )
        try:
            import uvicorn
        except ModuleNotFoundError as error:
            raise MagnetarError("serving HTTP needs the extra: pip install 'magnetar[http]'") from error
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((self._host, self._asked_port))
            self._socket.listen(_BACKLOG)  # from here on whoever calls is answered, if only once the thread is up
        except OSError as error:
            self._socket.close()
            raise MagnetarError(f"cannot listen on {self._host}:{self._asked_port}: {error.strerror}") from error
        config = uvicorn.Config(
            self._app(),
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=_STOP_S,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="ops", daemon=True
        )
        self._thread.start()
        _log.info("listening", url=self.url)
        return self

    def stop(self) -> None:
        """Finish the requests in progress (at most 5 s) and stop listening. Idempotent."""
        if self._server is not None and self._thread is not None and self._socket is not None:
            self._server.should_exit = True
            self._thread.join(2 * _STOP_S)
            self._socket.close()

    def _app(self) -> "Starlette":
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.middleware import Middleware
        from starlette.responses import JSONResponse, Response
        from starlette.routing import Route

        def answer(request: "Request", *, live: bool) -> JSONResponse:
            ok, checks = self._health.report(live=live)
            said = {"ok": ok, "checks": checks} if request.state.known else {"ok": ok}
            return JSONResponse(said, 200 if ok else 503)

        def livez(request: "Request") -> JSONResponse:
            return answer(request, live=True)

        def readyz(request: "Request") -> JSONResponse:
            return answer(request, live=False)

        def metrics(_: "Request") -> Response:
            return Response(prometheus_client.generate_latest(), media_type=prometheus_client.CONTENT_TYPE_LATEST)

        def refused(_: "Request", error: Exception) -> JSONResponse:
            assert isinstance(error, HTTPException)
            return JSONResponse({"error": error.detail}, error.status_code, error.headers)

        def broken(_: "Request", error: Exception) -> JSONResponse:
            return JSONResponse({"error": redacted(f"{type(error).__name__}: {error}")}, 500)

        own = [Route("/livez", livez), Route("/readyz", readyz), Route("/metrics", metrics)]
        return Starlette(
            routes=[*own, *self._routes],
            middleware=[Middleware(_Guard, self._access)],
            exception_handlers={HTTPException: refused, Exception: broken},
        )


_OPEN = frozenset({"/livez", "/readyz"})


class _Guard:
    """Lets through who sends the token, and whoever asks for health; ``request.state.known`` tells them apart."""

    def __init__(self, app: "ASGIApp", access: HttpSettings) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        from starlette.responses import JSONResponse

        known, status, said = self._judge(scope)
        scope.setdefault("state", {})["known"] = known
        if known or scope["path"] in _OPEN:
            await self._app(scope, receive, send)
            return
        challenge = {"WWW-Authenticate": "Bearer"} if status == HTTPStatus.UNAUTHORIZED else None
        await JSONResponse({"error": said}, status, challenge)(scope, receive, send)

    def _judge(self, scope: "Scope") -> tuple[bool, int, str]:
        try:
            token = self._access.current_token()
        except Unguarded as error:
            _log.error("nobody is let in", error=str(error))
            return False, HTTPStatus.SERVICE_UNAVAILABLE, "this service's own token cannot be read; see its log"
        if not token:
            return True, HTTPStatus.OK, ""
        sent = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, shown = sent.partition(b" ")
        # The time that the comparison takes says nothing of how much of the token was right.
        right = scheme.lower() == b"bearer" and hmac.compare_digest(shown.strip(), token.encode())
        return right, HTTPStatus.UNAUTHORIZED, "send this service's token: Authorization: Bearer …"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
