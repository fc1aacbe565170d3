"""Which servers are there, and what they say of themselves."""

from dataclasses import dataclass

from magnetar_events.records import Device, ServiceRecord


@dataclass(slots=True)
class ServerJoined:
    """A life of an agent is there (a new server, or a new life of a known one).

    Attributes:
        due: log time (ms) at which it is lost unless its inventory is known.
    """

    server: str
    record: ServiceRecord
    due: int


@dataclass(slots=True)
class ServerSuperseded:
    """A newer life took the place of ``incarnation``, which never returns."""

    server: str
    incarnation: str


@dataclass(slots=True)
class ServerUpdated:
    """The same life says something else of itself (status, address, capabilities, limits)."""

    server: str
    record: ServiceRecord


@dataclass(slots=True)
class ServerReadingChanged:
    """Its devices or its load read differently."""

    server: str
    devices: tuple[Device, ...]
    loads: int
    digest: str


@dataclass(slots=True)
class ServerReadingStale:
    """Its reading is too old to place by."""

    server: str


@dataclass(slots=True)
class InventoryRequested:
    """The server is to say what it holds: its digest is not what the state expects."""

    server: str
    reason: str


@dataclass(slots=True)
class InventoryTaken:
    """What the server holds is in the state; it is schedulable."""

    server: str
    digest: str
    report: int


@dataclass(slots=True)
class ServerLost:
    """The server is silent or gone. Its replicas are Lost; they are re-placed in pieces.

    Attributes:
        code: LEASE_LAPSED, DOWN, GONE or NO_INVENTORY.
        due: log time (ms) at which it is forgotten.
    """

    server: str
    incarnation: str
    code: str
    reason: str
    due: int


@dataclass(slots=True)
class ServerReturned:
    """A lost server, in the same life, is there again; like one that joined, it must say what it holds."""

    server: str
    incarnation: str
    record: ServiceRecord
    due: int


@dataclass(slots=True)
class ServerForgotten:
    """A server that was lost long ago is dropped with its bookings."""

    server: str
