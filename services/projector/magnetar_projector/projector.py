"""The projector: follows the log into the read model, and halts where it cannot be trusted. It never writes to it."""

import threading
import time
from collections.abc import Callable

import structlog

from magnetar_common import metrics
from magnetar_common.bus import EARLIEST, Bus, MessageId
from magnetar_common.errors import BusUnavailable, LogError
from magnetar_common.log import LogReader, LogRecord, first
from magnetar_common.state import State
from magnetar_projector.read_model import ReadModel, ReadModelBroken
from magnetar_projector.snapshots import SnapshotWriter

MAX_LAG_S = 10.0
"""Further behind than this, the read model is not of now."""

_POLL_S = 0.5
_RETRY_S = 1.0
_NAME = "projector"

_log = structlog.get_logger(__name__)


class Projector:
    """Follows the log into a read model. Everything but :meth:`healthy` and :attr:`lag` is for one thread.

    Args:
        bus: where the log is; no producer is ever opened on it.
        read_model: where it goes.
        batch_entries: at most this many entries are written in one transaction.
        batch_ms: … and at most this much time passes between two, while catching up. Later each is written at once.
        snapshots: are taken on the way; None = none.
        wall: the time (seconds since the epoch), for the lag alone.
    """

    def __init__(
        self,
        bus: Bus,
        read_model: ReadModel,
        *,
        batch_entries: int = 1_000,
        batch_ms: int = 200,
        snapshots: SnapshotWriter | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.state = State()
        self.halted = ""
        """Why nothing more is projected; empty while all is well, and again once what was in the way is signed off."""
        self.caught_up = False
        """Whether the end of the log was reached, as the broker tells it, and nothing piled up since."""
        self._bus = bus
        self._read_model = read_model
        self._batch_entries = batch_entries
        self._batch_s = batch_ms / 1000
        self._snapshots = snapshots
        self._wall = wall
        self._broker = ""
        self._last: MessageId | None = None
        self._reader: LogReader | None = None
        self._unreachable = ""
        self._committed = time.monotonic()

    def run(self, stopping: threading.Event) -> None:
        """Project until told to stop. Where the log cannot be followed (see :attr:`halted`), look again now and then.

        Raises:
            BusRefused: the broker does not let us read the log.
            sqlite3.Error: the read model cannot be written.
        """
        while not stopping.is_set():
            try:
                self.step(_POLL_S)
                self._unreachable = ""
                if self.halted:
                    stopping.wait(_RETRY_S)
            except BusUnavailable as error:
                if not self._unreachable:
                    _log.warning("the log cannot be reached; trying again", error=str(error))
                self._unreachable, self.caught_up = str(error), False
                stopping.wait(_RETRY_S)
        self.close()

    def step(self, timeout: float) -> bool:
        """Take one entry, or write what was taken if none is at hand; return whether one was.

        Args:
            timeout: seconds to wait for an entry while nothing waits to be written.

        Raises:
            BusUnavailable: the broker is away; call again.
        """
        try:
            if self._reader is None:
                self._reader = self._open()
            record = self._reader.read(0 if self._read_model.pending else timeout)
            if record is not None:
                self._project(self._reader, record)
        except LogError as error:
            self._halt(error)
            return False
        if self.halted:
            _log.warning("going on", position=self.state.position)
            self.halted = ""
        full = self._read_model.pending >= self._batch_entries or time.monotonic() - self._committed >= self._batch_s
        if record is None or full:
            self.caught_up = record is None and self._reader.at_end()
            self._commit()
        return record is not None

    def close(self) -> None:
        """Write what is folded, and stop reading."""
        self._commit()
        if self._snapshots is not None:
            self._snapshots.close(self.state, self._broker)
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    @property
    def lag(self) -> float:
        """Seconds between now and the last entry projected, by the clocks of two machines; 0 when caught up."""
        if self.caught_up or self.state.position < 0:
            return 0.0
        return max(0.0, self._wall() - self.state.wall / 1000)

    def healthy(self) -> tuple[bool, str]:
        """Whether the read model is of now, give or take ``MAX_LAG_S``, and why not."""
        if self.halted:
            return False, f"halted: {self.halted}"
        if self._unreachable:
            return False, f"the log cannot be reached: {self._unreachable}"
        if (reader := self._reader) is not None and not (moving := reader.check())[0]:
            return moving
        where = f"at position {self.state.position}"
        if self.caught_up or (self.state.position >= 0 and self.lag <= MAX_LAG_S):
            return True, where
        return False, f"catching up, {where}"

    # --- the way in ---------------------------------------------------------------------------------------------------

    def _open(self) -> LogReader:
        """Fold what is stored, and begin to read the log after it; if the two do not match, start over."""
        self._broker = self._bus.cluster_id()
        try:
            self.state = self._read_model.refold()
            checkpoint = self._read_model.checkpoint()
            if checkpoint is None:
                return LogReader(self._bus, name=_NAME)
            self._check(0)
            self._check(checkpoint.position)
        except ReadModelBroken as error:
            self._read_model.recreate(str(error))
            self.state = State()
            return LogReader(self._bus, name=_NAME)
        self._last = checkpoint.message_id
        return LogReader(self._bus, checkpoint.message_id, _NAME, self.state)

    def _check(self, position: int) -> None:
        """Compare an entry that is stored with the log: another log may be there now, or an older copy of this one."""
        stored = self._read_model.place(position)
        before = self._read_model.place(position - 1).message_id if position else EARLIEST
        found = first(self._bus, lambda record: record.message_id >= stored.message_id, before)
        if found is None or (found.entry.id, found.message_id) != (stored.id, stored.message_id):
            there = f"entry {found.entry.id} in message {found.message_id}" if found else "nothing"
            raise ReadModelBroken(
                f"position {position} is entry {stored.id} in message {stored.message_id} here, and the log has {there}"
            )

    def _project(self, reader: LogReader, record: LogRecord) -> None:
        illegal = self.state.illegal
        if reader.take(record, lambda record: self._read_model.project(self.state, record)):
            self._last = record.message_id
            metrics.ILLEGAL_FACTS.inc(self.state.illegal - illegal)

    def _commit(self) -> None:
        self._read_model.commit(self.state)
        self._committed = time.monotonic()
        if self._snapshots is not None:
            self._snapshots.committed(self.state, self._broker)
        metrics.LOG_POSITION.set(self.state.position)
        metrics.TERM.set(self.state.term)
        metrics.PROJECTOR_LAG.set(self.lag)

    def _halt(self, error: LogError) -> None:
        self.caught_up = False
        self._commit()  # what came before is as true as ever
        last = f"the last good entry is {self.state.entry}, position {self.state.position}, message {self._last}"
        reason = f"{error}; {last}"
        if reason != self.halted:
            _log.error("halted", reason=reason)
        self.halted = reason
