"""Where replicas are to be, which fit nowhere, and which leave for more important ones."""

from dataclasses import dataclass

from magnetar_events.facts.memory import Booking


@dataclass(slots=True)
class Count:
    """How many servers one rule turned down."""

    rule: str
    servers: int


@dataclass(slots=True)
class Candidate:
    """A server and its score (lower is better), or the rule that turned it down."""

    server: str
    score: float
    rule: str


@dataclass(slots=True)
class ReplicaPlaced:
    """A replica is to be on a server, and the memory for it is reserved: state LoadRequested.

    Attributes:
        bookings: what is reserved.
        due: log time (ms) at which an unanswered load has failed.
        refusals: how many servers each rule turned down.
        best: up to five candidates, best first.
    """

    model: str
    generation: int
    server: str
    bookings: tuple[Booking, ...]
    reason: str
    due: int
    refusals: tuple[Count, ...]
    best: tuple[Candidate, ...]


@dataclass(slots=True)
class PlacementRefused:
    """So many replicas of the wanted version fit nowhere now. They are placed as soon as they fit.

    Attributes:
        missing: how many.
        message: for people.
        refusals: how many servers each rule turned down.
        examples: up to ten.
    """

    model: str
    generation: int
    missing: int
    message: str
    refusals: tuple[Count, ...]
    examples: tuple[Candidate, ...]


@dataclass(slots=True)
class PlacementSettled:
    """Nothing of the version waits for room any more."""

    model: str
    generation: int


@dataclass(slots=True)
class Victim:
    """A replica that leaves for a more important one; its server is where that one is to be."""

    model: str
    generation: int
    priority: int


@dataclass(slots=True)
class ReplicasPreempted:
    """Replicas of lower priority leave a server, and their room is kept for one of this version until ``due``.

    Attributes:
        victims: who leaves, the first to go first.
        priority: of the version.
        due: log time (ms) from which others may be placed there again, whatever came of it.
    """

    model: str
    generation: int
    server: str
    victims: tuple[Victim, ...]
    priority: int
    due: int


@dataclass(slots=True)
class ServerReserved:
    """What becomes free on a server is kept for a version that was overtaken there, until it fits or until ``due``.

    Attributes:
        free: bytes per device that one replica of it could have there at that moment.
        attempt: of as many in a row without a replica placed.
        since: log time (ms) since which the server is reserved for it without a break.
        due: log time (ms) at which it is looked at again.
    """

    model: str
    generation: int
    server: str
    free: int
    attempt: int
    since: int
    due: int


@dataclass(slots=True)
class ReservationEnded:
    """A server is reserved no longer, though nothing of the version was placed there: others may be."""

    model: str
    generation: int
    server: str
