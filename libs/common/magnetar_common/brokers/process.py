"""A broker that is a child process of ours, alone on its data folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path

from magnetar_common.brokers.broker import BrokerError, BrokerKind, RunningBroker

# Ends the broker when we die, even by SIGKILL: its stdin is a pipe that only we hold, and which then reads as ended.
# (Linux's PDEATHSIG fires when the *thread* that started the broker ends, and needs code between fork and exec.)
_WATCHDOG = 'read -r _; kill "$1" && sleep 5 && kill -9 "$1"'


class BrokerProcess(RunningBroker):
    """Runs one broker on a data folder, and holds the folder for as long as the broker lives.

    The lock (`flock` on ``broker.lock``) is inherited by the broker itself, so that it ends exactly when the broker
    does, also if we are killed first. Output goes to ``broker.log`` in the folder.
    """

    def __init__(
        self,
        kind: BrokerKind,
        data: Path,
        command: Sequence[str],
        *,
        service_url: str,
        admin_url: str | None,
        ready: Callable[[], bool],
        ready_seconds: float,
        stop_seconds: float = 15.0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start the broker and wait until it serves.

        Args:
            kind: How it is called in reports.
            data: Its folder and working directory; made when missing.
            command: Program and arguments.
            service_url: Where clients will reach it.
            admin_url: Where its admin interface will be, if it has one.
            ready: Asked again and again until it says yes.
            ready_seconds: How long the broker may take to become ready.
            stop_seconds: How long it may take to end after SIGTERM before it gets SIGKILL.
            environment: Variables on top of our own.

        Raises:
            BrokerError: Another broker runs on this folder, or this one ended or was not ready in time.
        """
        self.kind = kind
        self.service_url = service_url
        self.admin_url = admin_url
        self.data = data.resolve()
        self.log = self.data / "broker.log"
        self._command = list(command)
        self._environment = {**os.environ, **(environment or {})}
        self._ready = ready
        self._ready_seconds = ready_seconds
        self._stop_seconds = stop_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._start()

    @property
    def pid(self) -> int | None:
        """The broker's process id while it runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def stop(self) -> None:
        """End it with SIGTERM, and with SIGKILL when it has not ended within `stop_seconds`."""
        self._end(forced=False)

    def kill(self) -> None:
        """End it with SIGKILL."""
        self._end(forced=True)

    def restart(self) -> None:
        """Start it again with the same command.

        Raises:
            BrokerError: As when it was started first.
        """
        self.stop()
        self._start()

    def _start(self) -> None:
        self.data.mkdir(parents=True, exist_ok=True)
        with self._locked() as lock, self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self.data,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(lock,),
                start_new_session=True,  # Ctrl-C is for us: we end the broker after those who use it
            )
            os.pwrite(lock, f"{self._process.pid}\n".encode(), 0)
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHDOG, "watchdog", str(self._process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            self._wait_until_ready(self._process)
        except BaseException:
            self.kill()
            raise

    @contextlib.contextmanager
    def _locked(self) -> Generator[int, None, None]:
        lock = os.open(self.data / "broker.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(lock, 32, 0).decode().strip() or "unknown"
                msg = f"a broker already runs on {self.data} (pid {holder}): stop it, or choose another data folder"
                raise BrokerError(msg) from None
            os.ftruncate(lock, 0)
            yield lock
        finally:
            os.close(lock)

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + self._ready_seconds
        while not self._ready():
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(0.02)
                raise BrokerError(f"the {self.kind} broker ended with code {code} at its start{self._last_words()}")
            if time.monotonic() > deadline:
                seconds = f"{self._ready_seconds:g} s"
                raise BrokerError(f"the {self.kind} broker was not ready after {seconds}{self._last_words()}")

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return f"; the end of {self.log}:\n" + "\n".join(lines[-8:])

    def _end(self, *, forced: bool) -> None:
        process, watchdog = self._process, self._watchdog
        self._process = self._watchdog = None
        if process is not None:
            if not forced:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(self._stop_seconds)
            process.kill()
            process.wait()
        if watchdog is not None:
            watchdog.kill()
            watchdog.communicate()
