"""What each fold version added, so that a log can stay at an older one while software of both versions runs.

A log has a *version in force*: entries are written with its schema, and hold only facts that it knows. So whatever newer
software writes, older software reads, until ``magnetar upgrade finalize``. This is the one place that says which version
introduced what.
"""

from collections.abc import Iterable

from magnetar_events import schemas
from magnetar_events.codec import Codec
from magnetar_events.entry import FOLD_VERSION, Entry, Input
from magnetar_events.facts import (
    Fact,
    LogRebased,
    MemoryAwaited,
    MemoryLeaked,
    MemoryReturned,
    ModelFrozen,
    ModelUnfrozen,
    ModelWanted,
    PolicySet,
    ReplicaBooked,
    ReplicasPreempted,
    ReservationEnded,
    ServerCordoned,
    ServerDrained,
    ServerDraining,
    ServerReserved,
    ServerResumed,
    SizeLearnt,
    TenantRemoved,
    TenantSet,
    UpgradeFinalized,
    VersionKept,
)

SCHEMAS: dict[int, str] = {1: "60144c1c804ca6e1", 2: "2e0fc52656124c83", 3: "f458a6533a47a022"}
"""Fold version → fingerprint of the released schema that its entries are written with.

``FOLD_VERSION`` is added when its schema is released; until then it is the current one, and may change.
"""

SINCE: dict[type[Fact], int] = {
    UpgradeFinalized: 2,
    LogRebased: 2,
    ServerCordoned: 2,
    ServerDraining: 2,
    ServerDrained: 2,
    ServerResumed: 2,
    ModelFrozen: 2,
    ModelUnfrozen: 2,
    VersionKept: 2,
    SizeLearnt: 2,
    ReplicaBooked: 2,
    MemoryAwaited: 2,
    MemoryReturned: 2,
    MemoryLeaked: 2,
    TenantSet: 2,
    TenantRemoved: 2,
    ReplicasPreempted: 2,
    ServerReserved: 3,
    ReservationEnded: 3,
}
"""Kind of fact → the fold version that introduced it; version 1 had all that are not named."""

REPORTS_PROPERTY = "reports"
"""Message property of a command: the fingerprint of the schema that its sender reads reports in; none = the first release."""

_REPORTS = {1: "c18346f12316b406"}

_WISHES = (PolicySet, ModelWanted, TenantSet)
"""Facts that hold what somebody asked for: if a field of it got lost, they would not have what they asked for."""

_ENTRY = Codec(Entry, "state-changes")


def schema_of(version: int) -> str:
    """Return the fingerprint of the schema that entries of a fold version, ours or an older one, are written with."""
    return SCHEMAS.get(version) or schemas.fingerprint("state-changes")


def reports_schema(version: int) -> str:
    """Return the fingerprint of the schema that every leader of a log of this fold version reads reports in.

    Before an upgrade is finalized older software may lead again, and would not understand what newer agents say.
    """
    return _REPORTS.get(version) or schemas.fingerprint("agent-events")


def reports_schema_for(asked: str) -> str:
    """Return the schema to report in for a leader that asked for this one: the first release's, if it is not known here."""
    known = asked and schemas.by_fingerprint("agent-events", asked) is not None
    return asked if known else reports_schema(1)


def needed(facts: Iterable[Fact], in_force: int) -> int:
    """Return the lowest fold version, the one in force or a later one, of a log that can hold these facts whole."""
    if in_force >= FOLD_VERSION:
        return in_force
    return max((_needed(fact) for fact in facts), default=in_force)


def _needed(fact: Fact) -> int:
    since = SINCE.get(type(fact), 1)
    if isinstance(fact, _WISHES):
        while since < FOLD_VERSION and not _carried(fact, since):
            since += 1
    return since


def _carried(fact: Fact, version: int) -> bool:
    """Whether the schema of a version has every field that the fact makes use of."""
    schema = schema_of(version)
    if schema == schemas.fingerprint("state-changes"):
        return True
    payload = _ENTRY.encode(Entry("", 0, 0, 0, 0, version, Input(""), facts=(fact,)), schema)
    return _ENTRY.decode_trusted(payload, schema).facts == (fact,)
