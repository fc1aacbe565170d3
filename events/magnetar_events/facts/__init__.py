"""Facts: what became so. Only these change state, and only in ``evolve``.

Facts carry outcomes (the resulting state, the bytes reserved), not instructions, so that a later change of rules does
not rewrite the past. They are slotted classes and not validated again on replay: what is in the log was validated
before it was appended. On the wire their fields are camelCase.

A model is named by its key ``tenant/name``, a server by ``cluster/server/replica``, and a replica by (model,
generation, server): a server holds a version at most once.
"""

from magnetar_events.facts.drains import LeftBehind, ServerCordoned, ServerDrained, ServerDraining, ServerResumed
from magnetar_events.facts.leadership import LeaderAlive, LeaderElected, LogRebased, UpgradeFinalized
from magnetar_events.facts.memory import Booking, MemoryAwaited, MemoryLeaked, MemoryReturned, ReplicaBooked, SizeLearnt
from magnetar_events.facts.models import (
    ModelFrozen,
    ModelRemoved,
    ModelScaled,
    ModelUndeployed,
    ModelUnfrozen,
    ModelWanted,
)
from magnetar_events.facts.placement import (
    Candidate,
    Count,
    PlacementRefused,
    PlacementSettled,
    ReplicaPlaced,
    ReplicasPreempted,
    ReservationEnded,
    ServerReserved,
    Victim,
)
from magnetar_events.facts.policy import PolicySet
from magnetar_events.facts.replicas import ReplicaAdopted, ReplicaChanged, ReplicaMeasured
from magnetar_events.facts.requests import ReportIgnored, RequestAccepted, RequestRejected, RequestRepeated
from magnetar_events.facts.servers import (
    InventoryRequested,
    InventoryTaken,
    ServerForgotten,
    ServerJoined,
    ServerLost,
    ServerReadingChanged,
    ServerReadingStale,
    ServerReturned,
    ServerSuperseded,
    ServerUpdated,
)
from magnetar_events.facts.tenants import TenantRemoved, TenantSet
from magnetar_events.facts.versions import (
    ArtifactPinned,
    TrafficChanged,
    TrafficTarget,
    VersionFailed,
    VersionKept,
    VersionRetired,
    VersionRevived,
)

__all__ = [
    "ArtifactPinned",
    "Booking",
    "Candidate",
    "Count",
    "Fact",
    "InventoryRequested",
    "InventoryTaken",
    "LeaderAlive",
    "LeaderElected",
    "LeftBehind",
    "LogRebased",
    "MemoryAwaited",
    "MemoryLeaked",
    "MemoryReturned",
    "ModelFrozen",
    "ModelRemoved",
    "ModelScaled",
    "ModelUndeployed",
    "ModelUnfrozen",
    "ModelWanted",
    "PlacementRefused",
    "PlacementSettled",
    "PolicySet",
    "ReplicaAdopted",
    "ReplicaBooked",
    "ReplicaChanged",
    "ReplicaMeasured",
    "ReplicaPlaced",
    "ReplicasPreempted",
    "ReportIgnored",
    "RequestAccepted",
    "RequestRejected",
    "RequestRepeated",
    "ReservationEnded",
    "ServerCordoned",
    "ServerDrained",
    "ServerDraining",
    "ServerForgotten",
    "ServerJoined",
    "ServerLost",
    "ServerReadingChanged",
    "ServerReadingStale",
    "ServerReserved",
    "ServerResumed",
    "ServerReturned",
    "ServerSuperseded",
    "ServerUpdated",
    "SizeLearnt",
    "TenantRemoved",
    "TenantSet",
    "TrafficChanged",
    "TrafficTarget",
    "UpgradeFinalized",
    "VersionFailed",
    "VersionKept",
    "VersionRetired",
    "VersionRevived",
    "Victim",
    "subject_of",
]

Fact = (
    LeaderElected
    | LeaderAlive
    | PolicySet
    | RequestAccepted
    | RequestRejected
    | RequestRepeated
    | ReportIgnored
    | ModelWanted
    | ModelScaled
    | ModelUndeployed
    | ModelRemoved
    | ArtifactPinned
    | VersionFailed
    | VersionRevived
    | VersionRetired
    | TrafficChanged
    | ReplicaPlaced
    | PlacementRefused
    | PlacementSettled
    | ReplicaAdopted
    | ReplicaChanged
    | ReplicaMeasured
    | ServerJoined
    | ServerSuperseded
    | ServerUpdated
    | ServerReadingChanged
    | ServerReadingStale
    | InventoryRequested
    | InventoryTaken
    | ServerLost
    | ServerReturned
    | ServerForgotten
    | UpgradeFinalized
    | LogRebased
    | ServerCordoned
    | ServerDraining
    | ServerDrained
    | ServerResumed
    | ModelFrozen
    | ModelUnfrozen
    | VersionKept
    | SizeLearnt
    | ReplicaBooked
    | MemoryAwaited
    | MemoryReturned
    | MemoryLeaked
    | TenantSet
    | TenantRemoved
    | ReplicasPreempted
    | ServerReserved
    | ReservationEnded
)
"""Every kind, in the schema's order: a new one is added at the end."""


def subject_of(fact: Fact) -> str:
    """Return the model or server that a fact is about; empty for none."""
    return getattr(fact, "model", "") or getattr(fact, "server", "") or getattr(fact, "subject", "")
