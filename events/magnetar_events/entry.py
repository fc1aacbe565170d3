"""The entry: one input, and what became of it. The log is a sequence of entries on ``state-changes``."""

from dataclasses import dataclass, field

from magnetar_events.facts import Fact

FOLD_VERSION = 3
"""Version of the meaning of facts. A process with a lower one than the log's neither folds nor leads.

What each version added is in :mod:`magnetar_events.versions`.
"""

FOLD_VERSION_PROPERTY = "foldVersion"
"""Message property that names an entry's fold version, for whoever cannot read the entry."""

BARRIER = -1
"""Position of an entry that only marks where a new leader stands; it is part of no history."""

MAX_ENTRY_BYTES = 2**20
"""An entry is at most this large."""

MAX_INPUT_BYTES = 64 * 2**10
"""A larger input is kept as its size and sha256."""


@dataclass(slots=True)
class Input:
    """What an entry answers, with its bytes, so that the log alone can be run through another ``decide``.

    Attributes:
        kind: ``request``, ``report``, ``registry``, ``reading``, ``lease``, ``stale``, ``timer``, ``continue``, ``leader``,
            ``rebase``.
        topic: where it came from; empty = from within.
        message_id: its place there.
        key: its key.
        schema: fingerprint of the writer's schema (hex).
        data: its bytes; None when it is too large or had to be redacted.
        size: of the bytes.
        sha256: of the bytes, hex; empty when ``data`` is there.
        subject: for inputs without bytes: the server or the model; for ``continue``, how many were tried before.
        verified: what the leader found of a request's signature: ``signature`` = it is the publisher's; empty = there is
            none; else the code for which it is refused.
        publisher: who signed; empty unless the signature is theirs.
    """

    kind: str
    topic: str = ""
    message_id: str = ""
    key: str = ""
    schema: str = ""
    data: bytes | None = None
    size: int = 0
    sha256: str = ""
    subject: str = ""
    verified: str = ""
    publisher: str = ""


@dataclass(slots=True)
class Entry:
    """One input and its facts, at one position.

    Attributes:
        id: random; the same position with another id is a fork.
        position: 0, 1, 2, …; ``BARRIER`` for a marker.
        term: of the leader that appended it.
        at: the log's clock, in ms: never jumps, the only time that ``decide`` sees.
        wall: ms since the epoch, for people; never goes back.
        fold_version: in force: with its schema it was written, and no fact in it is newer.
        input: what is answered.
        handled: topic → id of the last message handled, for every input topic.
        facts: what became so.
    """

    id: str
    position: int
    term: int
    at: int
    wall: int
    fold_version: int
    input: Input
    handled: dict[str, str] = field(default_factory=dict[str, str])
    facts: tuple[Fact, ...] = ()
