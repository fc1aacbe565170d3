"""How much fits into one decision: the facts of one entry stay below the largest message that the log takes."""

from collections.abc import Callable, Iterable
from typing import Any

from magnetar_events import facts as f

BUDGET = 250_000
"""Estimated bytes of facts after which a draft is full.

What is begun is ended: a model of 1,000 replicas may add as much as 700,000 for names of full length. Both together stay
below the 1 MiB of an entry.
"""

_FACT_BYTES = 300
_ITEM_BYTES = 20
_BYTES_A_CHARACTER = 4


def size_of(fact: f.Fact) -> int:
    """Return about how many bytes of an entry a fact takes, rather too many than too few."""
    size = _FACT_BYTES + _text(getattr(fact, "reason", "")) + _text(getattr(fact, "message", ""))
    more = _MORE.get(type(fact))
    return size if more is None else size + more(fact)


def _text(text: str) -> int:
    return _BYTES_A_CHARACTER * len(text)


def _bookings(bookings: Iterable[f.Booking]) -> int:
    return sum(_ITEM_BYTES + _text(booking.device) for booking in bookings)


def _candidates(candidates: Iterable[f.Candidate]) -> int:
    return sum(_ITEM_BYTES + len(candidate.server) for candidate in candidates)


_MORE: dict[type, Callable[[Any], int]] = {
    f.ReplicaPlaced: lambda fact: len(fact.server) + _bookings(fact.bookings) + _candidates(fact.best),
    f.ReplicaAdopted: lambda fact: len(fact.server) + _bookings(fact.bookings),
    f.ReplicaChanged: lambda fact: len(fact.server),
    f.ReplicaBooked: lambda fact: _bookings(fact.bookings),
    # Told three times: what stays reserved, what is expected, and what was free before.
    f.MemoryAwaited: lambda fact: 3 * _bookings(fact.bookings),
    f.MemoryLeaked: lambda fact: _bookings(fact.bookings),
    f.PlacementRefused: lambda fact: _candidates(fact.examples),
    f.VersionFailed: lambda fact: sum(_ITEM_BYTES + _text(place) for place in fact.places),
    f.ServerDrained: lambda fact: sum(_FACT_BYTES + _text(left.reason) for left in fact.left),
    f.ServerReserved: lambda fact: len(fact.server),
    f.ReservationEnded: lambda fact: len(fact.server),
    f.ReplicasPreempted: lambda fact: sum(_ITEM_BYTES + len(victim.model) for victim in fact.victims),
}
"""Kind of fact → what its lists and names add."""
