"""What the registry is told of this agent: STARTING while its server does not answer, UP, and DRAINING for good."""

import threading
import time

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from magnetar_agent.agent import Agent
from magnetar_agent.threads import guarded
from magnetar_common.lifecycle import Lifecycle
from magnetar_common.registrar import Registrar

CHECK_S = 0.2
"""The status follows the server within this time (seconds)."""


class Presence:
    """Keeps the status of the record, so that nothing is placed on a server that is dead or about to go.

    Args:
        agent: whose server it is.
        changed: set by whoever sees the server end or come back.
        life: of the process; it ends once drained.
        drain_timeout_s: ``/terminate`` ends after this many seconds, drained or not.
    """

    def __init__(self, agent: Agent, changed: threading.Event, life: Lifecycle, drain_timeout_s: float) -> None:
        self._agent = agent
        self._changed = changed
        self._life = life
        self._drain_timeout_s = drain_timeout_s
        self._draining = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self.route = Route("/terminate", self._terminate, methods=["POST"])
        """``POST /terminate``: take nothing new, wait until every model is Available elsewhere, then end."""

    def start(self, registrar: Registrar) -> None:
        """Begin to keep the status of a record."""
        self._thread = guarded("presence", lambda: self._run(registrar), self._life.fail)
        self._thread.start()

    def close(self) -> None:
        """Stop; nothing overwrites the goodbye that follows."""
        self._closing.set()
        self._changed.set()
        if self._thread is not None:
            self._thread.join()

    def check(self) -> tuple[bool, str]:
        """Return whether it takes anything new, for ``/readyz``."""
        if self._draining.is_set():
            return False, f"draining: {self._agent.holds()} models left"
        return True, "not draining"

    @property
    def _status(self) -> str:
        if self._draining.is_set():
            return "DRAINING"
        return "UP" if self._agent.serving else "STARTING"

    def _run(self, registrar: Registrar) -> None:
        while not self._closing.is_set():
            if registrar.record.status != self._status:
                registrar.update(status=self._status)
            if self._changed.wait(CHECK_S):
                self._changed.clear()
                self._agent.server_changed()

    def _terminate(self, _: Request) -> Response:
        self._draining.set()
        deadline = time.monotonic() + self._drain_timeout_s
        while self._agent.holds() and time.monotonic() < deadline and not self._life.stopping.wait(0.1):
            pass
        left = self._agent.holds()
        self._life.stop("drained" if left == 0 else f"told to terminate, with {left} models left")
        return JSONResponse({"drained": left == 0, "modelsLeft": left}, 200 if left == 0 else 504)
