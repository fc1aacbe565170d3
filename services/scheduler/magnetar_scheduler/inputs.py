"""What ``decide`` can be asked about: typed, and made from the entry's ``Input`` alone, so that the log can be re-decided."""

from dataclasses import dataclass

from magnetar_events import AGENT_EVENT, MODEL_EVENT, SERVICE_RECORD
from magnetar_events.codec import Undecodable
from magnetar_events.entry import Input
from magnetar_events.facts import LeaderElected
from magnetar_events.records import ServiceRecord
from magnetar_events.reports import AgentEvent
from magnetar_events.requests import ModelEvent


@dataclass(slots=True, frozen=True)
class Request:
    """Somebody wants something.

    Attributes:
        event: what.
        verified: what the leader found of its signature; see :class:`magnetar_events.entry.Input`.
        publisher: who signed; empty = nobody.
    """

    event: ModelEvent
    verified: str = ""
    publisher: str = ""


@dataclass(slots=True, frozen=True)
class Report:
    """An agent says what happened."""

    event: AgentEvent


@dataclass(slots=True, frozen=True)
class Rejected:
    """Bytes on an input topic that are not a valid message."""

    topic: str
    message_id: str
    error: Undecodable


@dataclass(slots=True, frozen=True)
class RegistryChanged:
    """An instance's record is this one, or is absent."""

    instance: str
    record: ServiceRecord | None


@dataclass(slots=True, frozen=True)
class ReadingChanged:
    """A server's devices, load or index digest read differently from what the log last said."""

    record: ServiceRecord


@dataclass(slots=True, frozen=True)
class LeaseLapsed:
    """A server's current life was silent for longer than its lease, and that is not our own fault."""

    server: str
    incarnation: str


@dataclass(slots=True, frozen=True)
class ReadingStale:
    """A server's reading is older than may be trusted.

    Attributes:
        server: key; empty = all of them, for nobody has led for some time, and none knows how old they are.
    """

    server: str = ""


@dataclass(slots=True, frozen=True)
class TimerDue:
    """Log time has reached what the state waits for."""


@dataclass(slots=True, frozen=True)
class Continue:
    """The next piece of what is pending.

    Attributes:
        skip: of the models that wait for room, this many (kinds of them) were tried already, in vain.
    """

    skip: int = 0


@dataclass(slots=True, frozen=True)
class Elected:
    """This process leads from here on."""

    fact: LeaderElected


@dataclass(slots=True, frozen=True)
class Alive:
    """Nothing was appended for a while."""

    term: int


Decidable = (
    Request
    | Report
    | Rejected
    | RegistryChanged
    | ReadingChanged
    | LeaseLapsed
    | ReadingStale
    | TimerDue
    | Continue
    | Elected
    | Alive
)


def understand(source: Input) -> Decidable:
    """Return the typed input that an entry's ``Input`` stands for; bytes that are not valid become ``Rejected``.

    Raises:
        ValueError: of a kind that has no bytes of its own to be understood from (``leader``), or whose bytes are gone.
    """
    if source.data is None:
        if source.kind == "lease":
            server, _, incarnation = source.subject.partition("@")
            return LeaseLapsed(server, incarnation)
        if source.kind == "registry" and not source.sha256:
            return RegistryChanged(source.key, None)
        if source.kind == "stale":
            return ReadingStale(source.subject)
        if source.kind == "timer":
            return TimerDue()
        if source.kind == "continue":
            return Continue(int(source.subject or 0))
        raise ValueError(f"an input of kind {source.kind!r} cannot be understood without its bytes")
    try:
        if source.kind == "request":
            return Request(MODEL_EVENT.decode(source.data, source.schema), source.verified, source.publisher)
        if source.kind == "report":
            return Report(AGENT_EVENT.decode(source.data, source.schema))
        record = SERVICE_RECORD.decode(source.data, source.schema)
    except Undecodable as error:
        return Rejected(source.topic, source.message_id, error)
    return ReadingChanged(record) if source.kind == "reading" else RegistryChanged(source.key, record)
