"""One service as a process of its own that cannot outlive us, started again when it dies."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import httpx

from magnetar_agent.children import Child, spawn
from magnetar_common.settings import HttpSettings

GRACE_S = 15.0
"""Between SIGINT and SIGKILL (seconds)."""

_BACKOFF_S = (0.5, 30.0)
_STABLE_S = 60.0
_POLL_S = 0.05


class Supervised:
    """Runs ``magnetar SERVICE`` and keeps it running. Its output goes to a log file of its own.

    On Linux the kernel kills it when this process dies, however that happens.

    Args:
        name: how it is called here.
        service: the command that runs it alone.
        variables: its environment, above ours.
        folder: working directory.
        log: file for its output.
        url: root of where it serves health.
        ready: judges what ``/readyz`` says of its checks, beyond that all pass.
    """

    def __init__(
        self,
        name: str,
        service: str,
        variables: Mapping[str, str],
        *,
        folder: Path,
        log: Path,
        url: str,
        ready: Callable[[Mapping[str, Mapping[str, object]]], bool] = lambda _: True,
    ) -> None:
        self.name = name
        self.url = url
        self.log = log
        self.restarts = 0
        self.last_exit: int | None = None
        self.last_words = ""
        self._command: Sequence[str] = (sys.executable, "-m", "magnetar_cli", service)
        self._environment = {**os.environ, **variables}
        self._folder = folder
        self._ready = ready
        self._stopping = threading.Event()
        self._child = self._spawn()
        self._thread = threading.Thread(target=self._keep, name=f"supervise-{name}", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """Its process id; None while it does not run."""
        child = self._child
        return child.pid if child.exit_code is None else None

    def is_ready(self) -> bool:
        """Whether it runs and says that it is ready."""
        if self.pid is None:
            return False
        try:
            headers = HttpSettings().headers()
            # Plain HTTP on loopback: reading the machine's certificates each time would cost 65 ms.
            answer = httpx.get(f"{self.url}/readyz", headers=headers, timeout=2.0, trust_env=False, verify=False)  # noqa: S501
        except httpx.TransportError:
            return False
        return answer.is_success and self._ready(answer.json()["checks"])

    def let_go(self) -> int:
        """Supervise it no longer, and return its process id: whoever kills it wants it dead."""
        self._stopping.set()
        self._thread.join()
        return self._child.pid

    def stop(self) -> None:
        """End it in order, with everything in its process group. Repeatable.

        SIGTERM would have an agent look for servers to take over its models, and all of them end.
        """
        self._stopping.set()
        self._thread.join()
        self.last_exit = self._child.stop(GRACE_S, signal.SIGINT)

    def said(self) -> str:
        """Return the last line of what it wrote; of what the one before it wrote if it has said nothing yet."""
        return _last_line(self._child.tail()) or self.last_words or "it said nothing"

    def _spawn(self) -> Child:
        return spawn(self._command, environment=self._environment, folder=self._folder, log=self.log)

    def _keep(self) -> None:
        pause, since = _BACKOFF_S[0], time.monotonic()
        while not self._stopping.wait(_POLL_S):
            code = self._child.exit_code
            if code is None:
                continue
            self._child.kill_group()
            self.last_exit, self.last_words = code, _last_line(self._child.tail())
            if time.monotonic() - since > _STABLE_S:
                pause = _BACKOFF_S[0]
            if self._stopping.wait(pause):
                return
            pause = min(2 * pause, _BACKOFF_S[1])
            self._child = self._spawn()
            self.restarts += 1
            since = time.monotonic()


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")
