"""A process's life: it runs until it is told to stop, or something in it fails, and then ends in order."""

import queue
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Self

import structlog

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_PREPARE = -1
_LOOK_S = 0.5
"""A second signal that the kernel gives to another thread does not wake the main one, which alone runs handlers."""

_log = structlog.get_logger(__name__)


class Lifecycle:
    """Stops a service in order on SIGTERM, SIGINT, :meth:`stop` or :meth:`fail`. A second signal ends it at once.

    With :meth:`on_terminate` the first SIGTERM only asks the service to prepare its end; then one more signal stops it in
    order, and another ends it at once.

    As a context manager it installs the signal handlers (in the main thread only), and on leaving runs what was given
    to :meth:`on_stop`, newest first::

        with Lifecycle() as life:
            life.on_stop("registrar", registrar.leave)
            life.wait()
        return life.exit_code
    """

    def __init__(self) -> None:
        self.stopping = threading.Event()
        """Set once the process is to end."""
        self.reason = ""
        """Why."""
        self.error: BaseException | None = None
        """What failed first, if anything did."""
        self._prepare: Callable[[], object] | None = None
        self._callbacks: list[tuple[str, Callable[[], object]]] = []
        self._lock = threading.Lock()
        self._signals: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._warned = False
        self._previous: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    @property
    def exit_code(self) -> int:
        """0, or 1 if anything failed."""
        return 1 if self.error is not None else 0

    def on_stop(self, name: str, callback: Callable[[], object]) -> None:
        """Run this at the end; what is registered last runs first. One that raises is recorded, and stops no other."""
        with self._lock:
            self._callbacks.append((name, callback))

    def on_terminate(self, prepare: Callable[[], object]) -> None:
        """Call this on the first SIGTERM instead of beginning to end; it does not block, and sees to it that we end."""
        self._prepare = prepare

    def terminate(self) -> None:
        """Do what the first SIGTERM does."""
        if self._prepare is None:
            self.stop(signal.SIGTERM.name)
        else:
            self._prepare()

    def stop(self, reason: str = "asked to") -> None:
        """Begin to end. Only the first reason counts."""
        with self._lock:
            if self.stopping.is_set():
                return
            self.reason = reason
            self.stopping.set()
        _log.info("stopping", reason=reason)

    def fail(self, error: BaseException) -> None:
        """End because something failed that the process cannot do without."""
        if self.error is None:
            self.error = error
        _log.error("failed", exc_info=error)
        self.stop(f"{type(error).__name__}: {error}")

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is time to stop, or for ``timeout`` seconds; return whether it is."""
        if timeout is not None or not self._previous:
            return self.stopping.wait(timeout)
        while not self.stopping.wait(_LOOK_S):
            pass
        return True

    def shutdown(self) -> None:
        """Run the callbacks now, newest first. Idempotent."""
        self.stop()
        while True:
            with self._lock:
                if not self._callbacks:
                    return
                name, callback = self._callbacks.pop()
            try:
                callback()
            except Exception as error:  # noqa: BLE001 - the others must still run
                self.error = self.error or error
                _log.error("shutdown step failed", step=name, exc_info=error)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            threading.Thread(target=self._hear, name="signals", daemon=True).start()
            self._previous = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.fail(error)
        self.shutdown()
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._signals.put(0)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # Setting an Event here can deadlock (the main thread may hold its lock); SimpleQueue.put is reentrant.
        del frame
        first, self._warned = not self._warned, True
        if number == signal.SIGTERM and first and self._prepare is not None:
            self._signals.put(_PREPARE)
            return
        self._signals.put(number)
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_DFL)

    def _hear(self) -> None:
        while number := self._signals.get():
            if number != _PREPARE:
                self.stop(signal.Signals(number).name)
                return
            try:
                self.terminate()
            except Exception as error:  # noqa: BLE001 - then it ends without
                self.fail(error)
