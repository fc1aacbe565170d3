"""Which memory is reserved for replicas, and when it is free again."""

from dataclasses import dataclass


@dataclass(slots=True)
class Booking:
    """Bytes reserved for a replica on one device of its server's host."""

    device: str
    bytes: int


@dataclass(slots=True)
class SizeLearnt:
    """A version was found to need more than was known: so many bytes per device are reserved for new replicas of it."""

    model: str
    generation: int
    bytes: int
    reason: str


@dataclass(slots=True)
class ReplicaBooked:
    """Other bytes than before are reserved for a replica, for it was seen to take more."""

    model: str
    generation: int
    server: str
    bookings: tuple[Booking, ...]
    reason: str


@dataclass(slots=True)
class MemoryAwaited:
    """A replica is unloaded, and what was reserved for it stays so until its devices show it.

    Attributes:
        position: of the entry that unloaded it; with the replica's names it is the name of what is awaited.
        bookings: what stays reserved.
        expected: what the devices are to show, as the load was seen to take it; 0 = that is not known.
        free: bytes that they had free before the unload.
        due: log time (ms) at which it has leaked unless they have shown it. With the same position again: a later one.
    """

    model: str
    generation: int
    server: str
    position: int
    bookings: tuple[Booking, ...]
    expected: tuple[Booking, ...]
    free: tuple[Booking, ...]
    due: int


@dataclass(slots=True)
class MemoryReturned:
    """The devices show the memory of an unloaded replica (``returned`` of it): nothing is reserved for it any more."""

    model: str
    generation: int
    server: str
    position: int
    returned: tuple[Booking, ...]


@dataclass(slots=True)
class MemoryLeaked:
    """The memory of an unloaded replica was not given back in time: it stays reserved until it is, or the life ends."""

    model: str
    generation: int
    server: str
    position: int
    bookings: tuple[Booking, ...]
