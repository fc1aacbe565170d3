"""What becomes of a replica on its server."""

from dataclasses import dataclass

from magnetar_events.facts.memory import Booking


@dataclass(slots=True)
class ReplicaAdopted:
    """A server was found to hold a version that the state did not have there: state Loaded."""

    model: str
    generation: int
    server: str
    bookings: tuple[Booking, ...]
    reason: str


@dataclass(slots=True)
class ReplicaChanged:
    """A replica went from one state to another.

    Attributes:
        before: state.
        after: state.
        code: typed reason; empty for the expected course.
        reason: for people.
        retriable: for a failure.
        attempt: number of the load on this server.
        due: log time (ms) at which the state is looked at again; 0 = never.
    """

    model: str
    generation: int
    server: str
    before: str
    after: str
    code: str
    reason: str
    retriable: bool
    attempt: int
    due: int


@dataclass(slots=True)
class ReplicaMeasured:
    """What a loaded replica turned out to be."""

    model: str
    generation: int
    server: str
    digest: str
    measured: tuple[Booking, ...]
    parallel: int
    http_port: int
    fetch_ms: int
    load_ms: int
    verify_ms: int
