"""Writes snapshots as the projector goes along."""

import threading
import time

import structlog

from magnetar_common.bus import EARLIEST
from magnetar_common.metrics import SNAPSHOT_FAILURES, SNAPSHOT_POSITION, SNAPSHOT_TIME
from magnetar_common.settings import SnapshotSettings
from magnetar_common.snapshot import Snapshot, Snapshots
from magnetar_common.state import State
from magnetar_projector.read_model import ReadModel

_LAST_S = 60.0
"""At the end a write may take this long (seconds); then it is given up."""

_log = structlog.get_logger(__name__)


class SnapshotWriter:
    """Takes a snapshot now and then, on the projector's thread, and stores it on another: a slow store delays nobody.

    One that cannot be stored is logged and counted; the next is tried in its time.

    Args:
        store: where they go.
        read_model: knows where the entries are in the log.
        every_entries: one after so many entries …
        pause_s: … and not before so many seconds have passed since the one before.
    """

    def __init__(self, store: Snapshots, read_model: ReadModel, *, every_entries: int, pause_s: float) -> None:
        self._store = store
        self._read_model = read_model
        self._every = every_entries
        self._pause_s = pause_s
        self._last: int | None = None
        self._not_before = 0.0
        self._writing: threading.Thread | None = None

    @classmethod
    def from_settings(
        cls, store: Snapshots | None, read_model: ReadModel, settings: SnapshotSettings
    ) -> "SnapshotWriter | None":
        """Return one that does as the settings say; None where there is no store."""
        if store is None:
            return None
        return cls(store, read_model, every_entries=settings.every_entries, pause_s=settings.pause_s)

    def committed(self, state: State, broker: str) -> None:
        """Take a snapshot if it is time for one.

        Args:
            state: all of it is in the read model.
            broker: cluster of the log.
        """
        if self._news(state) >= self._every and time.monotonic() >= self._not_before and not self._busy:
            self._take(state, broker)

    def close(self, state: State, broker: str) -> None:
        """Take a last one if there is any news, and wait until it is stored. Repeatable."""
        self._wait()
        if self._news(state) > 0:
            self._take(state, broker)
            self._wait()

    def _news(self, state: State) -> int:
        """Return how many entries no snapshot has."""
        if state.position < 0:
            return 0
        if self._last is None:
            self._last = self._newest()
        return state.position - self._last

    def _newest(self) -> int:
        try:
            return max(self._store.positions(self._read_model.place(0).id), default=-1)
        except Exception as error:  # noqa: BLE001 - drivers raise what they like, and nothing depends on it
            _log.warning("the snapshots cannot be listed", error=f"{type(error).__name__}: {error}")
            return -1

    def _take(self, state: State, broker: str) -> None:
        place = self._read_model.place
        snapshot = Snapshot.of(
            state,
            log=place(0).id,
            broker=broker,
            message_id=place(state.position).message_id,
            before=place(state.position - 1).message_id if state.position else EARLIEST,
        )
        self._last, self._not_before = state.position, time.monotonic() + self._pause_s
        self._writing = threading.Thread(target=self._write, args=(snapshot,), name="snapshot", daemon=True)
        self._writing.start()

    def _write(self, snapshot: Snapshot) -> None:
        try:
            self._store.write(snapshot)
        except Exception as error:  # noqa: BLE001 - drivers raise what they like, and the log has everything
            SNAPSHOT_FAILURES.inc()
            _log.error("a snapshot could not be written", error=f"{type(error).__name__}: {error}")
            return
        SNAPSHOT_POSITION.set(snapshot.header.position)
        SNAPSHOT_TIME.set(time.time())
        _log.info("snapshot written", position=snapshot.header.position, bytes=len(snapshot.image))

    @property
    def _busy(self) -> bool:
        return self._writing is not None and self._writing.is_alive()

    def _wait(self) -> None:
        if self._writing is not None:
            self._writing.join(_LAST_S)
