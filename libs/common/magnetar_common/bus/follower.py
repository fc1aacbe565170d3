"""A reader that does not stop: when it fails, is cut off, or stands still, it is opened anew after what it read last.

The client's own readers are not enough. They come back up to a minute after the broker did (the client's backoff cannot
be set), forget where they began if they had read nothing, and were seen to stand still for good
(pulsar-client-cpp#235, #436) while everything else said that all was well.
"""

import random
import threading
import time

import structlog

from magnetar_common.bus.base import EARLIEST, LATEST, Bus, Message, MessageId, Reader
from magnetar_common.errors import BusError, BusUnavailable
from magnetar_common.metrics import READER_PROGRESS, READER_REOPENED
from magnetar_common.topics import kind_of

QUIET_S = 5.0
"""After this long without a message (seconds) the broker is asked whether there is one."""

STALLED_S = 12.0
"""Without a message for this long (seconds), while the broker says that there is one, or does not say: stalled."""

DISCONNECTED_S = 5.0
"""A reader that has had no connection for this long (seconds) is not left to the client's own attempts."""

BACKOFF_S = (0.1, 5.0)
"""Between attempts to reopen (seconds): from, doubling up to; each is spread by half."""

_log = structlog.get_logger(__name__)


class Faulty(BusUnavailable):
    """A reader is of no use any more, whatever it says itself: ``disconnected`` or ``stalled``."""


class Backoff:
    """How long to wait before the next attempt: longer each time, and never in step with others."""

    def __init__(self) -> None:
        self._next = BACKOFF_S[0]

    def reset(self) -> None:
        """The last attempt was good."""
        self._next = BACKOFF_S[0]

    def seconds(self) -> float:
        """Return the wait before the next attempt."""
        wait, self._next = self._next, min(2 * self._next, BACKOFF_S[1])
        return wait * random.uniform(0.5, 1.0)  # noqa: S311 - spreads retries, guards nothing


class Progress:
    """Judges whether readers of one topic still move. Whoever reads tells it; any thread may look.

    Args:
        topic: full name.
    """

    def __init__(self, topic: str) -> None:
        self._topic = kind_of(topic)
        self._gauge = READER_PROGRESS.labels(self._topic)
        self.opened()

    def opened(self) -> None:
        """A reader was opened: it has all its time before it."""
        self.since = self.last = self._asked = self._connected = time.monotonic()

    def moved(self) -> None:
        """A message came, or the broker said that there is none."""
        self.last = time.monotonic()

    def examine(self, reader: Reader) -> None:
        """Look at a reader that just had no message.

        Now and then it asks the broker, which takes as long as the bus's operation time-out if it does not answer.

        Raises:
            Faulty: it is to be opened anew.
        """
        now = time.monotonic()
        self._gauge.set(now - self.last)
        if reader.is_connected:
            self._connected = now
        elif now - self._connected > DISCONNECTED_S:
            raise Faulty("disconnected")
        if now - max(self.last, self._asked) < QUIET_S:
            return
        ended, self._asked = reader.at_end(), time.monotonic()
        if ended:
            self.moved()
        elif self._asked - self.last > STALLED_S:
            raise Faulty("stalled")

    def broken(self, error: BusError) -> None:
        """Count a reader that is opened anew because of this."""
        READER_REOPENED.labels(self._topic, str(error) if isinstance(error, Faulty) else "failed").inc()


class Follower:
    """Reads one topic in order, from a place on, for as long as it is wanted. For one thread; ``check`` is for any.

    A follower that starts at `LATEST` learns at its first quiet moment which message was the last one before it. From
    then on an outage hides nothing from it. (The embedded broker cannot say.)

    Attributes:
        last: the place of the last message returned; before the first, where it began.
        opened: how often the reader was opened anew.

    Args:
        bus: where the topic is.
        topic: full name.
        after: start after this message.
        name: shown in the broker's statistics.

    Raises:
        BusError: it cannot be opened now. Once it is open, nothing of the kind is ever raised again.
    """

    def __init__(self, bus: Bus, topic: str, after: MessageId = EARLIEST, *, name: str = "") -> None:
        self.topic = topic
        self.last = after
        self.opened = 0
        self._bus = bus
        self._name = name
        self._reader: Reader | None = bus.reader(topic, after, name=name)
        self._progress = Progress(topic)
        self._backoff = Backoff()
        self._next_try = 0.0
        self._away = ""
        self._closing = threading.Event()

    def read(self, timeout: float) -> Message | None:
        """Return the next message, or None when none came within ``timeout`` seconds.

        None says nothing about the end of the topic. While the broker is away it may take as long as the bus's
        operation time-out.
        """
        reader = self._reader or self._reopen(timeout)
        if reader is None:
            return None
        try:
            message = reader.read(timeout)
            if message is None:
                self._progress.examine(reader)
        except BusError as error:
            self._drop(error)
            return None
        if message is not None:
            self.last = message.id
            self._progress.moved()
        elif self.last == LATEST and time.monotonic() >= self._next_try:
            self._find_beginning(reader)
        return message

    def at_end(self) -> bool:
        """Whether the broker says that nothing more is stored right now (False while it cannot be asked)."""
        return self._reader is not None and self._reader.at_end()

    def check(self) -> tuple[bool, str]:
        """Return (moving, why), for ``/readyz``."""
        silence = time.monotonic() - self._progress.last
        where = kind_of(self.topic)
        if self._away:
            return False, f"{where} has been out of reach for {silence:.1f} s: {self._away}"
        if silence > STALLED_S:
            return False, f"{where} has not moved for {silence:.1f} s"
        return True, f"{where} at {'its end' if self.last == LATEST else self.last}"

    def close(self) -> None:
        """Stop reading. Idempotent."""
        self._closing.set()
        if self._reader is not None:
            self._reader.close()

    def _find_beginning(self, reader: Reader) -> None:
        """Open a reader of what comes after a message, instead of the one that would come back at whatever is last."""
        self._next_try = time.monotonic() + QUIET_S
        try:
            end = self._bus.last_id(self.topic)
            if end is not None and reader.at_end():  # asked in this order: so nothing up to `end` came after we began
                self._reader, self.last = self._bus.reader(self.topic, end, name=self._name), end
                reader.close()
        except BusError as error:
            _log.info("where a topic ends cannot be told yet", topic=self.topic, error=str(error))

    def _drop(self, error: BusError) -> None:
        assert self._reader is not None
        _log.warning("a reader is opened anew", topic=self.topic, why=str(error), after=str(self.last))
        self._progress.broken(error)
        if self._progress.last > self._progress.since:  # it has been of use, so this is a new trouble
            self._backoff.reset()
        self._reader.close()
        self._reader, self._away = None, str(error)
        self._next_try = time.monotonic() + self._backoff.seconds()

    def _reopen(self, timeout: float) -> Reader | None:
        wait = self._next_try - time.monotonic()
        if wait > timeout or self._closing.wait(max(0.0, wait)):
            self._closing.wait(timeout)
            return None
        try:
            self._reader = self._bus.reader(self.topic, self.last, name=self._name)
        except BusError as error:
            self._away = str(error)
            self._next_try = time.monotonic() + self._backoff.seconds()
            _log.warning("a reader cannot be opened; trying again", topic=self.topic, error=self._away)
            return None
        _log.info("a reader is open again", topic=self.topic, after=str(self.last))
        self._away = ""
        self.opened += 1
        self._progress.opened()
        return self._reader
