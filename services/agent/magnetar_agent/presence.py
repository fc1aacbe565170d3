"""What the registry is told of this agent: STARTING while its server does not answer, UP, and DRAINING for good."""

import threading
import time
from collections.abc import Callable

import structlog
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from magnetar_agent.agent import Agent
from magnetar_agent.threads import guarded
from magnetar_common.amounts import counted
from magnetar_common.drains import DRAIN_METADATA
from magnetar_common.lifecycle import Lifecycle
from magnetar_common.registrar import Registrar

CHECK_S = 0.2
"""The status follows the server within this time (seconds)."""


_log = structlog.get_logger(__name__)


class Presence:
    """Keeps the status of the record, so that nothing is placed on a server that is dead or about to go.

    Args:
        agent: whose server it is.
        changed: set by whoever sees the server end or come back.
        life: of the process; it ends once drained.
        drain_timeout_s: a drain ends after this many seconds, whatever is left.
    """

    def __init__(self, agent: Agent, changed: threading.Event, life: Lifecycle, drain_timeout_s: float) -> None:
        self._agent = agent
        self._changed = changed
        self._life = life
        self._drain_timeout_s = drain_timeout_s
        self._draining = threading.Event()
        self._drained = threading.Event()
        self._closing = threading.Event()
        self._beginning = threading.Lock()
        self._threads: list[threading.Thread] = []
        self.route = Route("/terminate", self._terminate, methods=["POST"])
        """``POST /terminate``: take nothing new, wait until every model is Available elsewhere, then end."""

    def start(self, registrar: Registrar) -> None:
        """Begin to keep the status of a record."""
        self._spawn("presence", lambda: self._run(registrar))

    def close(self) -> None:
        """Stop; nothing overwrites the goodbye that follows."""
        with self._beginning:
            self._closing.set()
        self._changed.set()
        for thread in self._threads:
            thread.join()

    def drain(self) -> None:
        """Begin to drain; the process ends once nothing is left, or the time is over. Returns at once; repeatable."""
        with self._beginning:
            if self._draining.is_set() or self._closing.is_set():
                return
            self._draining.set()
            self._spawn("drain", self._wait)
        self._changed.set()  # said at once
        _log.info("draining", models=self._agent.holds(), seconds=self._drain_timeout_s)

    def check(self) -> tuple[bool, str]:
        """Return whether it takes anything new, for ``/readyz``."""
        if self._draining.is_set():
            return False, f"draining: {counted(self._agent.holds(), 'model')} left"
        return True, "not draining"

    @property
    def _status(self) -> str:
        if self._draining.is_set():
            return "DRAINING"
        return "UP" if self._agent.serving else "STARTING"

    def _run(self, registrar: Registrar) -> None:
        while not self._closing.is_set():
            status = self._status
            if registrar.record.status != status:
                said = registrar.record.metadata
                if status == "DRAINING":
                    said = {**said, DRAIN_METADATA: str(round(self._drain_timeout_s * 1000))}
                registrar.update(status=status, metadata=said)
            if self._changed.wait(CHECK_S):
                self._changed.clear()
                self._agent.server_changed()

    def _wait(self) -> None:
        deadline = time.monotonic() + self._drain_timeout_s
        while self._agent.holds() and time.monotonic() < deadline and not self._life.stopping.wait(0.1):
            pass
        left = self._agent.holds()
        self._life.stop("drained" if left == 0 else f"told to terminate, with {counted(left, 'model')} left")
        self._drained.set()

    def _terminate(self, _: Request) -> Response:
        self.drain()
        while not self._drained.wait(0.1) and not self._closing.is_set():
            pass
        left = self._agent.holds()
        return JSONResponse({"drained": left == 0, "modelsLeft": left}, 200 if left == 0 else 504)

    def _spawn(self, name: str, run: Callable[[], None]) -> None:
        thread = guarded(name, run, self._life.fail)
        self._threads.append(thread)
        thread.start()
