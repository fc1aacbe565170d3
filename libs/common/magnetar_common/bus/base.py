"""The bus: what Magnetar needs of a broker, and no more.

Three implementations pass one contract suite: in memory (shipped, for users' tests too), the embedded broker, and
Pulsar. Nothing outside this package knows the Pulsar client.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, Self

from magnetar_common.errors import BusError


class MessageId(NamedTuple):
    """A message's place in its topic. Ids compare within one topic of one cluster, and nowhere else."""

    ledger: int
    entry: int
    batch: int = -1
    partition: int = -1

    def __str__(self) -> str:
        """Return ``ledger:entry:batch``, which :meth:`parse` reads."""
        return f"{self.ledger}:{self.entry}:{self.batch}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what ``str`` wrote.

        Raises:
            ValueError: the text is not a message id.
        """
        ledger, entry, batch = (int(part) for part in text.split(":"))
        return cls(ledger, entry, batch)


EARLIEST = MessageId(-1, -1)
"""Start before the first message."""

LATEST = MessageId(2**63 - 1, 2**63 - 1)
"""Start after the last message that is there now."""


def just_before(place: MessageId) -> MessageId:
    """Return where to begin reading so that the message at a place comes soon: first, or after others of its ledger."""
    return place._replace(batch=place.batch - 1) if place.batch > 0 else MessageId(place.ledger, place.entry - 1)


class Message(NamedTuple):
    """A message as it was stored.

    Attributes:
        topic: full name.
        id: place in the topic.
        key: empty for none.
        payload: empty is a tombstone.
        properties: text headers.
        publish_ms: the *producer's* clock, milliseconds since the epoch: for people, never for an age.
        schema_version: the broker's number for the writer's schema, 8 bytes big-endian; empty where it keeps none.
    """

    topic: str
    id: MessageId
    key: str
    payload: bytes
    properties: Mapping[str, str]
    publish_ms: int
    schema_version: bytes = b""


SendCallback = Callable[[MessageId | BusError], None]
"""Called once per message on a thread of the client's: it may only enqueue, and must not raise."""


class Producer(Protocol):
    """Writes to one topic. Safe to use from several threads, except ``close``.

    At least once: what was not acknowledged when a connection broke is sent again, and may be stored twice, in order.
    """

    @property
    def topic(self) -> str:
        """Full name of the topic."""
        ...

    def send(self, payload: bytes, *, key: str = "", properties: Mapping[str, str] | None = None) -> MessageId:
        """Store one message and return its place.

        Raises:
            SendTimedOut: no acknowledgement in time; the message may have been stored.
            Fenced: the exclusive hold is lost for good.
            BusRefused: too big, not permitted.
        """
        ...

    def send_async(
        self, payload: bytes, callback: SendCallback, *, key: str = "", properties: Mapping[str, str] | None = None
    ) -> None:
        """Queue one message; blocks while the queue is full. Order is the order of calls."""
        ...

    def flush(self) -> None:
        """Send now whatever waits to be batched; does not wait for acknowledgements."""
        ...

    @property
    def is_connected(self) -> bool:
        """Whether the broker is reached right now."""
        ...

    def close(self) -> None:
        """Release the topic. Messages not acknowledged may be lost. Idempotent."""
        ...


class Reader(Protocol):
    """Reads one topic in order from a place. For one thread."""

    @property
    def topic(self) -> str:
        """Full name of the topic."""
        ...

    def read(self, timeout: float) -> Message | None:
        """Return the next message, or None when none came within ``timeout`` seconds (0 = only what is at hand).

        None says nothing about the end of the topic.

        Raises:
            BusUnavailable: the reader must be reopened, after the last message that it returned.
        """
        ...

    def at_end(self) -> bool:
        """Whether the broker says that nothing more is stored right now (False while it cannot be asked)."""
        ...

    @property
    def is_connected(self) -> bool:
        """Whether the broker is reached right now."""
        ...

    def close(self) -> None:
        """Stop reading. Idempotent."""
        ...


class Anchor(Protocol):
    """A durable subscription whose only use is that the broker keeps what comes after it."""

    def advance(self, to: MessageId) -> None:
        """Let go of everything up to and including ``to``. Best effort and asynchronous."""
        ...

    def close(self) -> None:
        """Close the connection; the subscription stays."""
        ...


class Bus(Protocol):
    """A connection to one broker cluster. Not to be carried over a fork."""

    @property
    def kind(self) -> str:
        """``memory``, ``embedded`` or ``pulsar``."""
        ...

    @property
    def fences(self) -> bool:
        """Whether the broker itself keeps a second exclusive producer out."""
        ...

    def cluster_id(self) -> str:
        """Return what identifies the broker cluster: message ids compare only within it."""
        ...

    def producer(
        self, topic: str, *, schema: str = "", exclusive: bool = False, batching: bool = False, name: str = ""
    ) -> Producer:
        """Open a producer.

        Args:
            topic: full name.
            schema: the Avro schema (JSON) to register with the topic, where the broker has a registry.
            exclusive: hold the topic: nobody else can write to it until this is closed or its owner dies.
            batching: gather what comes faster than it can be sent; never drop, retry or time out (for the log).
            name: shown in the broker's statistics.

        Raises:
            TopicHeld: somebody else holds it exclusively.
            BusUnavailable: not reached within the operation time-out.
            BusRefused: not permitted, or an incompatible schema.
        """
        ...

    def reader(self, topic: str, after: MessageId = EARLIEST, *, compacted: bool = False, name: str = "") -> Reader:
        """Open a reader of what comes after a place.

        Args:
            topic: full name.
            after: a place; `EARLIEST` and `LATEST` are places, too.
            compacted: of what the broker has compacted, only the last message of each key; then everything.
            name: shown in the broker's statistics.

        Raises:
            BusUnavailable: not reached within the operation time-out.
            BusRefused: not permitted.
        """
        ...

    def last_id(self, topic: str) -> MessageId | None:
        """Return the place of the last message that is stored, `EARLIEST` if there is none, None if it cannot be told.

        Raises:
            BusUnavailable: not reached within the operation time-out.
            BusRefused: not permitted.
        """
        ...

    def anchor(self, topic: str, name: str) -> Anchor:
        """Open (and create, at the topic's start) a durable subscription."""
        ...

    def close(self) -> None:
        """Close everything that was opened from here. Idempotent."""
        ...
