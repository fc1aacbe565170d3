"""The newest value of each key of a compacted topic, kept up to date: Magnetar's own, with the verbs of Pulsar's.

The Python client's is never used: it crashes the process on large topics, stops for good at its first read error, and
loses what happens between its first pass and its listener (README, and a test that watches whether this is still so).

A view lives in passes. A pass opens a reader at the start, reads to the end, and compares what it found with the
table; then it follows the topic until it is time for the next pass, or the connection breaks. So one piece of code
starts, reopens and sweeps: a tombstone that was compacted away while the view was not looking (apache/pulsar#26190) is
found out by the next pass, because its key is not seen again. Only a pass that reached the end may remove anything.

The broker makes a deleted topic anew for whoever connects, and the client connects by itself. So when the broker begins
another ledger, which it does now and then, and always for a topic that was made anew, a pass begins.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Generic, NamedTuple, TypeVar

import structlog

from magnetar_common.bus.base import EARLIEST, Bus, Message, MessageId, Reader
from magnetar_common.bus.follower import STALLED_S, Backoff, Progress
from magnetar_common.errors import BusError
from magnetar_common.topics import kind_of

SWEEP_S = 60.0
"""Seconds from one pass to the next; within it a key whose tombstone was missed is gone."""

POLL_S = 0.2
"""Seconds that a read may wait: how soon the view notices that it is to close or to begin a pass."""

LOOK_S = 0.05
"""While messages come, it is asked this often (seconds) whether one is there already: to hear that none is takes the client
longer than to hand one out."""

BUSY_S = 1.0
"""Seconds without having seen the end of what is there, after which the view no longer counts as caught up."""

T = TypeVar("T")

_log = structlog.get_logger(__name__)


class _Row(NamedTuple, Generic[T]):
    value: T
    message: Message


class TableView(Generic[T]):
    """A table of key → decoded value that follows its topic on a thread of its own. Safe to use from any thread.

    Attributes:
        rejected: messages so far that could not be decoded; their keys keep the value they had.
        listener_errors: exceptions that listeners raised so far; each is logged, none stops the view.
        interruptions: how often reading broke off and a pass began out of turn.
        passes: how many passes reached the end.
        sweeping: a listener that hears now of a key that is gone hears it because a pass did not find the key, and not
            because a tombstone was read.
    """

    def __init__(
        self,
        bus: Bus,
        topic: str,
        decode: Callable[[Message], T],
        *,
        on_rejected: Callable[[Message, Exception], None] | None = None,
        sweep_s: float = SWEEP_S,
    ) -> None:
        """Start to follow; :meth:`wait_ready` waits for the first pass.

        Args:
            bus: where the topic is; it must outlive the view.
            topic: full name.
            decode: called on the view's thread for every message that is not a tombstone; what it raises rejects it.
            on_rejected: hears of each message that `decode` refused, with its exception.
            sweep_s: seconds between passes, ± 10 % so that views do not march in step.
        """
        self.topic = topic
        self.rejected = 0
        self.listener_errors = 0
        self.interruptions = 0
        self.passes = 0
        self.sweeping = False
        self._bus = bus
        self._decode = decode
        self._on_rejected = on_rejected
        self._sweep_s = sweep_s
        self._rows: dict[str, _Row[T]] = {}
        self._refused: dict[str, MessageId] = {}
        self._listeners: list[Callable[[str, T | None], None]] = []
        self._last = EARLIEST
        self._started = 0
        self._complete = 0
        self._progress = Progress(topic)
        self._interrupted = ""
        self._behind_since: float | None = time.monotonic()
        # Two locks, so that a slow listener never delays `get`: listeners are called under `_order` alone.
        self._order = threading.RLock()
        self._table = threading.Lock()
        self._passed = threading.Condition()
        self._resync = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"view of {topic.rpartition('/')[2]}", daemon=True)
        self._thread.start()

    def get(self, key: str) -> T | None:
        """Return the value of a key, or None when the table has none."""
        with self._table:
            row = self._rows.get(key)
        return None if row is None else row.value

    def get_message(self, key: str) -> Message | None:
        """Return the message that a key's value came with (its id, publish time, properties), or None."""
        with self._table:
            row = self._rows.get(key)
        return None if row is None else row.message

    def items(self) -> list[tuple[str, T]]:
        """Return a copy of the table at one moment."""
        with self._table:
            return [(key, row.value) for key, row in self._rows.items()]

    def keys(self) -> list[str]:
        """Return a copy of the keys."""
        with self._table:
            return list(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, key: str) -> bool:
        return key in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def for_each(self, action: Callable[[str, T], None]) -> None:
        """Call `action` for each row of the table as it is now."""
        for key, value in self.items():
            action(key, value)

    def for_each_and_listen(self, listener: Callable[[str, T | None], None]) -> None:
        """Call `listener` for each row on this thread, and then for each change on the view's: no gap, and in order.

        None as the value means that the key is gone. A listener that is slow delays the view; it may read the view.
        """
        with self._order:
            for key, value in self.items():
                self._tell(listener, key, value)
            self._listeners.append(listener)

    def wait_ready(self, timeout: float) -> bool:
        """Wait until the first pass has reached the end of the topic; return whether it has."""
        with self._passed:
            return self._passed.wait_for(lambda: self.passes > 0, timeout)

    def resync(self, timeout: float) -> bool:
        """Begin a pass now, and wait until one that began after this call is complete; return whether it is."""
        with self._passed:
            target = self._started + 1
            self._resync.set()
            return self._passed.wait_for(lambda: self._complete >= target, timeout)

    @property
    def caught_up(self) -> bool:
        """Whether all that the broker has sent was in the table within the last second, and the broker is reached."""
        return self._behind_since is None

    @property
    def lag(self) -> float:
        """Seconds for which the view has not been caught up; 0 while it is."""
        since = self._behind_since
        return 0.0 if since is None else time.monotonic() - since

    def check(self) -> tuple[bool, str]:
        """Return (following, why), for ``/readyz``: a short lag is none."""
        where = kind_of(self.topic)
        if (lag := self.lag) > STALLED_S:
            return False, f"{where} has not been caught up for {lag:.1f} s; {self._interrupted}".rstrip("; ")
        return True, f"{where} has {len(self)} keys"

    def close(self) -> None:
        """Stop following. What is in the table stays readable. Idempotent."""
        self._closing.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> "TableView[T]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        backoff = Backoff()
        try:
            while not self._closing.is_set():
                passes = self.passes
                try:
                    self._pass()
                except Exception as error:  # noqa: BLE001 - a view that ended would say for ever what was true once
                    self.interruptions += 1
                    self._interrupted = str(error)
                    self._behind()
                    if self.passes > passes:
                        backoff.reset()
                    wait = backoff.seconds()
                    _log.warning(
                        "table view interrupted", topic=self.topic, error=str(error), again_in_s=round(wait, 1)
                    )
                    self._closing.wait(wait)
        finally:
            self._behind()

    def _pass(self) -> None:
        with self._passed:
            self._started += 1
            self._resync.clear()
        reader = self._bus.reader(self.topic, EARLIEST, compacted=True, name="table-view")
        self._progress.opened()
        try:
            if self._read_to_end(reader):
                self._follow(reader)
        except BusError as error:
            self._progress.broken(error)
            raise
        finally:
            reader.close()

    def _read_to_end(self, reader: Reader) -> bool:
        """Apply what is new, gather the rest, compare at the end; return False when told to close before it.

        The end is where the broker says so, or, on a topic that never pauses, the first message that is new to us: ids
        rise, so that all that came before it has been seen.
        """
        known = self._last
        last = EARLIEST
        seen: dict[str, Message] = {}
        while not self._closing.is_set():
            message = reader.read(0)
            if message is None:
                if reader.at_end():
                    self._reconcile(seen, known)
                    self._last = last
                    self._caught_up()
                    return True
                if not reader.is_connected:
                    self._behind()
                message = reader.read(0.02)
            if message is None:
                self._progress.examine(reader)
                continue
            last = message.id
            self._progress.moved()
            if message.id > known:
                if known > EARLIEST:
                    self._reconcile(seen, known)
                self._apply(message)
                if known > EARLIEST:
                    return True
            elif message.payload:
                seen[message.key] = message
            else:
                seen.pop(message.key, None)
        return False

    def _reconcile(self, seen: dict[str, Message], known: MessageId) -> None:
        """Make the table what a pass found, for all that it held up to `known`; so the pass is complete."""
        self.sweeping = True
        for key in [key for key, row in self._rows.items() if row.message.id <= known and key not in seen]:
            self._set(key, None)
        self.sweeping = False
        for key, message in seen.items():
            row = self._rows.get(key)
            # Other than what is there, and yet not newer: ids went back, as when a broker starts over with no data.
            if row is None or (row.message.id <= known and row.message != message):
                self._apply(message)
        with self._passed:
            self.passes += 1
            self._complete = self._started
            self._passed.notify_all()

    def _follow(self, reader: Reader) -> None:
        until = time.monotonic() + self._sweep_s * random.uniform(0.9, 1.1)  # noqa: S311
        drained = now = time.monotonic()
        looked = 0.0
        while now < until and not self._closing.is_set() and not self._resync.is_set():
            looks = now - looked >= LOOK_S
            message = reader.read(0 if looks else POLL_S)
            looked = now if looks else looked
            if message is None:
                drained = now
                if reader.is_connected:
                    self._caught_up()
                else:
                    self._behind()
                message = reader.read(POLL_S) if looks else None
                if message is None:
                    self._progress.examine(reader)
            now = time.monotonic()
            if message is not None:
                turned = message.id.ledger != self._last.ledger and self._last != EARLIEST
                self._progress.moved()
                self._last = message.id
                self._apply(message)
                if turned:
                    return
                if now - drained > BUSY_S:
                    self._behind()

    def _apply(self, message: Message) -> None:
        if not message.key:
            return  # no row: compaction drops it, too
        self._last = max(self._last, message.id)
        if not message.payload:
            self._set(message.key, None)
            return
        try:
            value = self._decode(message)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is recorded, and must not stop the view
            self._reject(message, error)
            return
        self._refused.pop(message.key, None)
        self._set(message.key, _Row(value, message))

    def _reject(self, message: Message, error: Exception) -> None:
        if self._refused.get(message.key) == message.id:
            return  # an earlier pass has said so
        self._refused[message.key] = message.id
        self.rejected += 1
        _log.warning("message rejected", topic=self.topic, key=message.key, id=str(message.id), error=str(error))
        if self._on_rejected is not None:
            try:
                self._on_rejected(message, error)
            except Exception:  # noqa: BLE001 - as above
                self.listener_errors += 1
                _log.exception("on_rejected failed", topic=self.topic, key=message.key)

    def _set(self, key: str, row: _Row[T] | None) -> None:
        with self._order:
            with self._table:
                if row is not None:
                    self._rows[key] = row
                elif self._rows.pop(key, None) is None:
                    return
            for listener in self._listeners:
                self._tell(listener, key, None if row is None else row.value)

    def _tell(self, listener: Callable[[str, T | None], None], key: str, value: T | None) -> None:
        try:
            listener(key, value)
        except Exception:  # noqa: BLE001 - as above
            self.listener_errors += 1
            _log.exception("table view listener failed", topic=self.topic, key=key)

    def _caught_up(self) -> None:
        self._behind_since = None

    def _behind(self) -> None:
        if self._behind_since is None:
            self._behind_since = time.monotonic()
