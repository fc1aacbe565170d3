"""Reading the log: entries in order, from a place on, and the state at any position, message id or time."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import structlog

from magnetar_common.bus import EARLIEST, Bus, Message, MessageId, just_before
from magnetar_common.bus.follower import Follower
from magnetar_common.custody import Custody
from magnetar_common.errors import (
    BusUnavailable,
    LogError,
    LogFork,
    LogHole,
    LogReplaced,
    LogTooNew,
    LogUnreadable,
)
from magnetar_common.evolve import fold, follows
from magnetar_common.metrics import LOG_BROKEN
from magnetar_common.state import State
from magnetar_common.topics import STATE_CHANGES
from magnetar_common.voids import Voids
from magnetar_events import ENTRY
from magnetar_events.codec import FINGERPRINT, Undecodable
from magnetar_events.entry import BARRIER, FOLD_VERSION, FOLD_VERSION_PROPERTY, Entry

_log = structlog.get_logger(__name__)

_KINDS: dict[type[LogError], str] = {
    LogHole: "hole",
    LogFork: "fork",
    LogReplaced: "replaced",
    LogTooNew: "too-new",
}


@dataclass(slots=True, frozen=True)
class LogRecord:
    """An entry, where it is, and its bytes with the fingerprint of their schema."""

    entry: Entry
    message_id: MessageId
    payload: bytes
    fingerprint: str


class LogReader:
    """Reads entries in the order of the log; reopens by itself when the broker was away. For one thread.

    It notices when the log is not the one any more that it has read: see :mod:`magnetar_common.custody`.

    Args:
        bus: where the log is.
        after: start after this message.
        name: shown in the broker's statistics.
        state: what was folded up to there; None = nothing is known of it.
    """

    def __init__(self, bus: Bus, after: MessageId = EARLIEST, name: str = "log", state: State | None = None) -> None:
        self._bus = bus
        self._custody = Custody()
        if state is not None:
            self._custody.note(state.position, state.entry, after)
        self._broken: MessageId | None = None
        self._replaced: LogReplaced | None = None
        self.last = after
        self.skipped: list[MessageId] = []
        """Junk that was passed over, as it was signed off."""
        self.held: Message | None = None
        """What could not be folded, and comes next again."""
        self._latest: Message | None = None
        self._voids = Voids(bus)
        self._follower = Follower(bus, STATE_CHANGES.name, after, name=name)

    def read(self, timeout: float) -> LogRecord | None:
        """Return the next entry (a barrier too), or None when none came within ``timeout`` seconds.

        What cannot be read, and is not signed off as junk, stays next: a later call judges it again.

        Raises:
            LogUnreadable: a message is not an entry.
            LogTooNew: it holds a kind of fact that this version does not know.
            LogReplaced: the log that was read is gone, and stays so for this reader.
        """
        while (message := self.held or self._follower.read(timeout)) is not None:
            self.held = message
            if not self._is_same(message):
                return None
            fingerprint = message.properties.get(FINGERPRINT, "")
            try:
                entry = ENTRY.decode_trusted(message.payload, fingerprint)
            except Undecodable as error:
                if not self._voids.covers(message.id, message.payload):
                    raise self._met(_unreadable(message, error), message.id) from error
                self._skip(message)
                if self._follower.at_end():
                    return None
                continue
            self._latest, self.held, self.last = message, None, message.id
            return LogRecord(entry, message.id, message.payload, fingerprint)
        self._is_same(None)
        return None

    def follows(self, state: State, record: LogRecord) -> bool:
        """Whether what was read last is the next of the history, and no barrier, repeat or junk: see :meth:`take`."""
        return self.take(record, lambda record: follows(state, record.entry, str(record.message_id)))

    def fold(self, state: State, record: LogRecord) -> bool:
        """Fold what was read last; return False for what changes nothing: see :meth:`take`."""
        return self.take(record, lambda record: fold(state, record.entry, str(record.message_id)))

    def take(self, record: LogRecord, fold: Callable[[LogRecord], bool]) -> bool:
        """Fold what was read last, in the caller's way; return what that returns, and False for junk that is signed off.

        Raises:
            LogError: as ``fold`` did. The record stays next: it may be signed off meanwhile.
            BusUnavailable: the list of junk cannot be read now; the record stays next.
        """
        try:
            if follows := fold(record):
                self._custody.note(record.entry.position, record.entry.id, record.message_id)
            return follows
        except LogError as error:
            self.held = self._latest
            if not isinstance(error, (LogHole, LogFork)) or not self._voids.covers(record.message_id, record.payload):
                self._met(error, record.message_id)
                raise
            assert self.held is not None
            self._skip(self.held)
            return False

    def at_end(self) -> bool:
        """Whether the broker says that nothing more is stored right now. Never proof: only a barrier is."""
        return self.held is None and self._follower.at_end()

    def check(self) -> tuple[bool, str]:
        """Return (moving, why), for ``/readyz``."""
        return self._follower.check()

    def _is_same(self, message: Message | None) -> bool:
        """Whether the log is still the one that was read, as far as it is time to look; False = it cannot be told now.

        Raises:
            LogReplaced: it is another one.
        """
        if self._replaced is not None:
            raise self._replaced
        known, opened = self._custody, self._follower.opened
        if not known.due(message, opened):
            return True
        try:
            check_history(self._bus, known.position, known.entry, known.place)
        except LogReplaced as error:
            self._replaced = error
            raise self._met(error, known.place) from None
        except BusUnavailable as error:
            _log.warning("the log cannot be compared with what was read from it", error=str(error))
            return False
        known.looked(message, opened)
        return True

    def _met(self, error: LogError, where: MessageId) -> LogError:
        """Count what ends the history here, once."""
        if where != self._broken:
            self._broken = where
            LOG_BROKEN.labels(_KINDS.get(type(error), "unreadable")).inc()
        return error

    def _skip(self, junk: Message) -> None:
        _log.warning("junk on the log is skipped: it was signed off", message_id=str(junk.id), bytes=len(junk.payload))
        self.held, self.last = None, junk.id
        self.skipped.append(junk.id)

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

    def close(self) -> None:
        """Stop reading."""
        self._follower.close()


def first(bus: Bus, wanted: Callable[[LogRecord], bool], after: MessageId = EARLIEST) -> LogRecord | None:
    """Return the first record after a place that is wanted, or None if none is stored.

    Raises:
        LogError: what comes before it cannot be read.
        BusUnavailable: the broker is away.
    """
    reader = LogReader(bus, after, name="look-up")
    try:
        return next((record for record in reader.stored() if wanted(record)), None)
    finally:
        reader.close()


def check_history(bus: Bus, position: int, entry: str, place: MessageId) -> None:
    """See that the log begins where it began, and still holds an entry.

    Args:
        bus: where the log is.
        position: of an entry that was read from the log or written to it.
        entry: its id; empty = not known any more, and then only the beginning is looked at.
        place: where it is.

    Raises:
        LogReplaced: it is another log, or there is nothing on it.
        BusUnavailable: it cannot be told now.
    """

    def is_one(record: LogRecord) -> bool:
        return record.entry.position != BARRIER

    def is_there(record: LogRecord) -> bool:
        return is_one(record) and record.message_id >= place  # what comes before it is the rest of a batch

    beginning = first(bus, is_one)
    if beginning is None or beginning.entry.position != 0:
        raise LogReplaced(position, entry, str(place))
    if entry:
        found = first(bus, is_there, just_before(place))
        if found is None or found.entry.id != entry:
            raise LogReplaced(position, entry, str(place))


def _unreadable(message: Message, error: Undecodable) -> LogError:
    needs = message.properties.get(FOLD_VERSION_PROPERTY, "")  # every entry that we cannot read has it
    if needs and error.code in ("UNKNOWN_KIND", "UNKNOWN_SCHEMA"):
        return LogTooNew(
            f"message {message.id} of the log: {error}; it needs fold version {needs[:9]}, this software has "
            f"{FOLD_VERSION}: upgrade it"
        )
    return LogUnreadable(
        f"message {message.id} of the log is not an entry ({error}); only the leading scheduler may write here: find "
        f"out who did, and: magnetar log void {message.id}"
    )


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
            if not reader.follows(state, record):
                continue
            if until is not None and not until(record):
                break
            fold(state, record.entry, str(record.message_id))
            if on_record is not None:
                on_record(record)
    finally:
        reader.close()
    return state
