"""Reading the log: entries in order, from a place on, and the state at any position, message id or time."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from magnetar_common.bus import EARLIEST, Bus, MessageId
from magnetar_common.bus.follower import Follower
from magnetar_common.errors import BusUnavailable, LogTooNew, LogUnreadable
from magnetar_common.evolve import fold
from magnetar_common.state import State
from magnetar_common.topics import STATE_CHANGES
from magnetar_events import ENTRY
from magnetar_events.codec import FINGERPRINT, Undecodable
from magnetar_events.entry import BARRIER, FOLD_VERSION, FOLD_VERSION_PROPERTY, Entry

_QUIET_S = 0.5
_PATIENCE_S = 5.0


@dataclass(slots=True, frozen=True)
class LogRecord:
    """An entry, where it is, and its bytes with the fingerprint of their schema."""

    entry: Entry
    message_id: MessageId
    payload: bytes
    fingerprint: str


class LogReader:
    """Reads entries in the order of the log; reopens by itself when the broker was away. For one thread.

    Args:
        bus: where the log is.
        after: start after this message.
        name: shown in the broker's statistics.
    """

    def __init__(self, bus: Bus, after: MessageId = EARLIEST, name: str = "log") -> None:
        self._follower = Follower(bus, STATE_CHANGES.name, after, name=name)

    def read(self, timeout: float) -> LogRecord | None:
        """Return the next entry (a barrier too), or None when none came within ``timeout`` seconds.

        Raises:
            LogUnreadable: a message is not an entry.
            LogTooNew: it holds a kind of fact that this version does not know.
        """
        message = self._follower.read(timeout)
        if message is None:
            return None
        fingerprint = message.properties.get(FINGERPRINT, "")
        try:
            entry = ENTRY.decode_trusted(message.payload, fingerprint)
        except Undecodable as error:
            if error.code in ("UNKNOWN_KIND", "UNKNOWN_SCHEMA"):
                named = message.properties.get(FOLD_VERSION_PROPERTY, "")
                needs = f"fold version {named[:9]}" if named else "a newer fold version"
                raise LogTooNew(
                    f"message {message.id} of the log: {error}; it needs {needs}, this software has "
                    f"{FOLD_VERSION}: upgrade it"
                ) from error
            raise LogUnreadable(
                f"message {message.id} of the log is not an entry ({error}); "
                "only the leading scheduler may write here: find out who did"
            ) from error
        return LogRecord(entry, message.id, message.payload, fingerprint)

    def at_end(self) -> bool:
        """Whether the broker says that nothing more is stored right now. Never proof: only a barrier is."""
        return self._follower.at_end()

    def check(self) -> tuple[bool, str]:
        """Return (moving, why), for ``/readyz``."""
        return self._follower.check()

    def stored(self, patience: float = 5.0) -> Iterator[LogRecord]:
        """Yield what is stored now, up to the end as the broker tells it.

        Args:
            patience: seconds to wait for a message that the broker says is there.

        Raises:
            BusUnavailable: the broker said that there is more, and did not send it.
        """
        while not self.at_end():
            record = self.read(patience)
            if record is None:
                if self.at_end():
                    return
                raise BusUnavailable(f"the log has more after {self.last}, and the broker does not send it")
            yield record

    @property
    def last(self) -> MessageId:
        """Place of the last message that was read."""
        return self._follower.last

    def close(self) -> None:
        """Stop reading."""
        self._follower.close()


def first(bus: Bus, wanted: Callable[[LogRecord], bool], after: MessageId = EARLIEST) -> LogRecord | None:
    """Return the first record after a place that is wanted, or None if none is stored.

    It reads first and asks for the end afterwards: in the middle of its last batch the embedded broker takes a reader
    to be at the end (measured).

    Raises:
        LogError: what comes before it cannot be read.
        BusUnavailable: the broker is away.
    """
    reader = LogReader(bus, after, name="look-up")
    deadline = time.monotonic() + _PATIENCE_S
    try:
        while (record := reader.read(_QUIET_S)) is not None or not reader.at_end():
            if record is not None and wanted(record):
                return record
            if record is not None:
                deadline = time.monotonic() + _PATIENCE_S
            elif time.monotonic() > deadline:
                raise BusUnavailable(f"the log has more after {reader.last}, and the broker does not send it")
        return None
    finally:
        reader.close()


Until = Callable[[LogRecord], bool]
"""Tells whether an entry still belongs to the wanted past."""


def until_position(position: int) -> Until:
    """Up to and including a position."""
    return lambda record: record.entry.position <= position


def until_message(message_id: MessageId) -> Until:
    """Up to and including a message."""
    return lambda record: record.message_id <= message_id


def until_wall(milliseconds: int) -> Until:
    """Up to and including what was appended at a time (ms since the epoch)."""
    return lambda record: record.entry.wall <= milliseconds


def replay(bus: Bus, until: Until | None = None, on_record: Callable[[LogRecord], None] | None = None) -> State:
    """Rebuild the state from the log alone, as of a place in the past or as of now.

    Args:
        bus: where the log is.
        until: see :func:`until_position`, :func:`until_message`, :func:`until_wall`; None = to the end.
        on_record: sees every entry that is folded.

    Raises:
        LogError: the log has a hole or a fork, or cannot be read.
    """
    reader = LogReader(bus, name="replay")
    state = State()
    try:
        for record in reader.stored():
            if record.entry.position == BARRIER:
                continue
            if until is not None and not until(record):
                break
            if fold(state, record.entry, str(record.message_id)) and on_record is not None:
                on_record(record)
    finally:
        reader.close()
    return state
