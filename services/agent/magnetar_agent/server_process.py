"""An inference server that the agent starts and keeps running."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import httpx
import structlog

from magnetar_agent.children import Child, spawn

log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger()


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start one server: made by `launch_mlserver` and `launch_triton`.

    Attributes:
        kind: `mlserver` or `triton`.
        command: Program and arguments.
        environment: The whole environment.
        folder: Working directory, and place of its log.
        repository: The model repository it reads; empty at the first start, and loaded from only on command.
        host: Address it listens on.
        http_port: Port of its HTTP API.
        grpc_port: Port of its gRPC API.
    """

    kind: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path
    repository: Path
    host: str
    http_port: int
    grpc_port: int

    @property
    def url(self) -> str:
        """Root of its HTTP API."""
        return f"http://{self.host}:{self.http_port}"


class ServerStartFailed(Exception):
    """The server did not come up; the message holds its last lines."""


def _ignore(sentence: str) -> None:
    del sentence  # logged already


class ServerProcess:
    """Starts a server and starts it again, with growing pauses, whenever it ends.

    Its ports stay the same for the life of this object, so that what was announced stays true. Its index is empty
    after a restart: whoever wants models back loads them again (`on_restart`).

    Args:
        launch: Makes the way to start it; called again (for new ports) only while the first start fails.
        on_down: Called on the supervising thread with a sentence when it ended unasked.
        on_restart: Called on the supervising thread each time it answers again after that.
        start_seconds: A start that takes longer has failed.
        grace_seconds: Between SIGTERM and SIGKILL.
        backoff_seconds: First and longest pause before a restart; the pause doubles, and begins anew after
            `stable_seconds` of life.
        stable_seconds: See `backoff_seconds`.
    """

    def __init__(
        self,
        launch: Callable[[], Launch],
        *,
        on_down: Callable[[str], None] | None = None,
        on_restart: Callable[[], None] | None = None,
        start_seconds: float = 60.0,
        grace_seconds: float = 10.0,
        backoff_seconds: tuple[float, float] = (0.2, 30.0),
        stable_seconds: float = 60.0,
    ) -> None:
        self._make = launch
        self._on_down = on_down or _ignore
        self._on_restart = on_restart or (lambda: None)
        self._start_seconds = start_seconds
        self._grace_seconds = grace_seconds
        self._backoff = backoff_seconds
        self._stable_seconds = stable_seconds
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._supervise, name="magnetar-server", daemon=True)
        self._launch: Launch | None = None
        self._child: Child | None = None
        self.restarts = 0

    @property
    def launch(self) -> Launch:
        """How it was started: its URL, ports and repository. Only after `start`."""
        assert self._launch is not None, "start() first"
        return self._launch

    @property
    def pid(self) -> int | None:
        """Its process id; None while it does not run. What it uses of a device is ours, with its children's."""
        child = self._child
        return child.pid if child is not None and child.exit_code is None else None

    def start(self) -> None:
        """Start it, and return once it answers.

        Raises:
            ServerStartFailed: Not in three starts (each on ports of its own), or not in time.
        """
        for attempt in range(3):
            self._launch = self._make()
            try:
                self._child = self._run(self._launch)
                break
            except ServerStartFailed:
                if (
                    attempt == 2 or self._stopping.is_set()
                ):  # another process may have taken a port: twice is no accident
                    raise
        self._thread.start()

    def stop(self) -> None:
        """End it in order, with everything it started; no restart follows. Repeatable."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._child is not None:
            self._child.stop(self._grace_seconds)

    def tail(self) -> str:
        """Return the last lines of its log."""
        return self._child.tail() if self._child is not None else ""

    def _run(self, launch: Launch) -> Child:
        """Start it once and wait until it answers."""
        child = spawn(
            launch.command,
            environment=launch.environment,
            folder=launch.folder,
            log=launch.folder / f"{launch.kind}.log",
        )
        deadline = time.monotonic() + self._start_seconds
        with httpx.Client(timeout=2.0, trust_env=False) as http:
            while True:
                code = child.wait(0.05)
                if code is not None:
                    child.kill_group()
                    raise ServerStartFailed(f"{launch.kind} ended with {code} at its start: {child.tail()}")
                try:
                    if http.get(f"{launch.url}/v2/health/live").status_code == HTTPStatus.OK:
                        return child
                except httpx.TransportError:
                    pass  # not listening yet
                if time.monotonic() > deadline or self._stopping.is_set():
                    child.stop(self._grace_seconds)
                    raise ServerStartFailed(
                        f"{launch.kind} did not answer within {self._start_seconds:g} s: {child.tail()}"
                    )

    def _supervise(self) -> None:
        assert self._child is not None
        pause, alive_since = self._backoff[0], time.monotonic()
        while not self._stopping.is_set():
            code = self._child.wait(0.1)
            if code is None:
                continue
            self._child.kill_group()
            sentence = f"{self.launch.kind} ended with {code}: {self._child.tail(3)}"
            log.warning("server.down", server=self.launch.kind, exit_code=code, pid=self._child.pid)
            self._on_down(sentence)
            if time.monotonic() - alive_since > self._stable_seconds:
                pause = self._backoff[0]
            while not self._stopping.wait(pause):
                pause = min(pause * 2, self._backoff[1])
                try:
                    self._child = self._run(self.launch)
                except ServerStartFailed as error:
                    log.warning(
                        "server.restart_failed", server=self.launch.kind, error=str(error), next_try_seconds=pause
                    )
                    continue
                self.restarts += 1
                alive_since = time.monotonic()
                log.info("server.restarted", server=self.launch.kind, pid=self._child.pid, restarts=self.restarts)
                self._on_restart()
                break
