"""A leader on a bus, turned by a thread of the test, and waiting for conditions with a deadline."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from magnetar_common.bus import Bus, Message
from magnetar_common.errors import MagnetarError
from magnetar_common.snapshot import Snapshots
from magnetar_common.state import State
from magnetar_scheduler.leader import Leader
from magnetar_scheduler.leadership import Challenger

T = TypeVar("T")


def eventually(condition: Callable[[], T], *, within: float = 45.0, what: str = "") -> T:
    """Return what the condition says once it is true; fail with what it said last."""
    deadline = time.monotonic() + within
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within} s: {what or condition!r}; last: {value!r}")
        threading.Event().wait(0.005)


class Led:
    """A running leader."""

    def __init__(self, leader: Leader) -> None:
        self.leader = leader
        self.error: Exception | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self.leader.turn()
        except Exception as error:
            self.error = error

    @property
    def state(self):
        return self.leader.state

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(10)
        self.leader.close()


@contextmanager
def leading(
    connect: Callable[[], Bus],
    *,
    identity: str = "test",
    resolve: Callable[[Message], Message] = lambda message: message,
    snapshots: Snapshots | None = None,
    folded: Callable[[State], None] = lambda _: None,
) -> Iterator[Led]:
    """Stand by, lead, and stop leading at the end."""
    mandate = Challenger(connect, lambda: False, folded, snapshots).run()
    assert mandate is not None
    leader = Leader(mandate, "local", identity, resolve)
    leader.start()
    led = Led(leader)
    try:
        yield led
    finally:
        led.stop()
        if led.error is not None and not isinstance(led.error, MagnetarError):
            raise led.error
