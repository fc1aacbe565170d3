"""Facts: what became so. Only these change state, and only in ``evolve``.

Facts carry outcomes (the resulting state, the bytes reserved), not instructions, so that a later change of rules does
not rewrite the past. They are slotted classes and not validated again on replay: what is in the log was validated
before it was appended. On the wire their fields are camelCase.

A model is named by its key ``tenant/name``, a server by ``cluster/server/replica``, and a replica by (model,
generation, server): a server holds a version at most once.
"""

from dataclasses import dataclass

from magnetar_events.models import ModelSpec
from magnetar_events.policy import Policy
from magnetar_events.records import Device, ServiceRecord
from magnetar_events.tenants import Tenant
from magnetar_events.tenants import subject_of as tenant_subject

# --- leadership -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class LeaderElected:
    """A process leads from here on.

    Attributes:
        term: one more than the previous.
        leader: who.
        cluster: Magnetar cluster that it leads.
        broker: id of the broker cluster: message ids in ``handled`` compare only within it.
        version: of the software.
    """

    term: int
    leader: str
    cluster: str
    broker: str
    version: str


@dataclass(slots=True)
class LeaderAlive:
    """The leader could still append."""

    term: int


@dataclass(slots=True)
class UpgradeFinalized:
    """From here on the log holds what only software of this fold version knows; older software neither folds nor leads."""

    fold_version: int


@dataclass(slots=True)
class LogRebased:
    """The log is on another broker cluster: message ids mean something only there from here on."""

    broker: str
    previous: str


@dataclass(slots=True)
class PolicySet:
    """These rules are in force."""

    policy: Policy


@dataclass(slots=True)
class TenantSet:
    """A tenant has this floor and this cap. What it has above the cap stays, and nothing is added.

    Attributes:
        tenant: with its limits.
        replicas: that it had at that moment.
        bytes: of device memory that were reserved for it.
    """

    tenant: Tenant
    replicas: int
    bytes: int

    @property
    def subject(self) -> str:
        """What it is about."""
        return self.tenant.subject


@dataclass(slots=True)
class TenantRemoved:
    """A tenant has neither floor nor cap any more."""

    tenant: str

    @property
    def subject(self) -> str:
        """What it is about."""
        return tenant_subject(self.tenant)


# --- requests ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class RequestAccepted:
    """A request was taken up.

    Attributes:
        request: its id.
        source: its source.
        kind: of request.
        subject: what it is about.
        generation: the model's that answers it (0 = not of a model).
        actor: who asked; a mere claim while ``authverified`` is ``none``.
        authtype: ``user``, ``service``, …
        authverified: how the leader knows: ``signature`` = the actor signed; ``gateway`` = the publisher did, and vouches
            for the actor; ``none`` = it does not.
        reason: why, in free text.
        publisher: who signed; empty = nobody.
    """

    request: str
    source: str
    kind: str
    subject: str
    generation: int
    actor: str
    authtype: str
    authverified: str
    reason: str
    publisher: str = ""


@dataclass(slots=True)
class RequestRejected:
    """A request changed nothing.

    Attributes:
        request: its id; empty if that could not be read.
        source: its source; empty if that could not be read.
        kind: of request.
        subject: what it was about.
        code: UNDECODABLE, UNKNOWN_KIND, INVALID, CREDENTIAL_IN_URI, CREDENTIAL_IN_TEXT, GENERATION_CONFLICT, NOT_FOUND, …
        field: which field is wrong, e.g. ``event.model.memory``.
        message: for people.
        publisher: who signed it; empty = nobody, as far as is known.
    """

    request: str
    source: str
    kind: str
    subject: str
    code: str
    field: str
    message: str
    publisher: str = ""


@dataclass(slots=True)
class RequestRepeated:
    """A client's retry: ``position`` is the entry that handled the first."""

    request: str
    source: str
    position: int


@dataclass(slots=True)
class ReportIgnored:
    """A report changed nothing: it answers an older command, or comes from a superseded agent, or is not legal."""

    server: str
    subject: str
    code: str
    message: str


# --- models -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class ModelWanted:
    """A version of a model is wanted.

    Attributes:
        spec: what is wanted of it.
        again: it was wanted before and is still known: its replicas and its pinned artifact go on.
        rollback_of: the earlier version, long gone, whose specification this new one has; 0 = none.
    """

    model: str
    generation: int
    spec: ModelSpec
    again: bool = False
    rollback_of: int = 0


@dataclass(slots=True)
class ModelScaled:
    """Another number of replicas of the wanted version is wanted."""

    model: str
    replicas: int
    owner: str


@dataclass(slots=True)
class ModelFrozen:
    """Nothing of the model is changed until it is unfrozen.

    Attributes:
        actor: who asked, as people are told: ``unverified NAME``, ``NAME (signed)`` or ``NAME via PUBLISHER (signed)``.
        reason: why, in free text.
    """

    model: str
    actor: str
    reason: str


@dataclass(slots=True)
class ModelUnfrozen:
    """The model may be changed again."""

    model: str


@dataclass(slots=True)
class ModelUndeployed:
    """The model is no longer wanted; whatever its servers say, it is forgotten at log time ``due`` (ms)."""

    model: str
    due: int


@dataclass(slots=True)
class ModelRemoved:
    """Nothing of the model is left."""

    model: str


@dataclass(slots=True)
class ArtifactPinned:
    """The first digest seen of a version: every other replica must have the same."""

    model: str
    generation: int
    digest: str


@dataclass(slots=True)
class VersionFailed:
    """A version cannot be had: every place that was tried, and why.

    Attributes:
        retriable: a new server may still help; otherwise only a new version does.
        places: ``server: code: message``.
    """

    model: str
    generation: int
    code: str
    message: str
    retriable: bool
    places: tuple[str, ...]


@dataclass(slots=True)
class VersionRevived:
    """A version that had failed for a retriable reason is tried again."""

    model: str
    generation: int
    reason: str


@dataclass(slots=True)
class VersionRetired:
    """Nothing of an old version is left."""

    model: str
    generation: int


@dataclass(slots=True)
class VersionKept:
    """A version that is being replaced is kept at another number of replicas.

    Attributes:
        replicas: how many.
        full: what it returns to if the version that replaces it fails; 0 = this is it.
    """

    model: str
    generation: int
    replicas: int
    full: int
    reason: str


@dataclass(slots=True)
class TrafficTarget:
    """An exact version and its weight in percent."""

    generation: int
    weight: int


@dataclass(slots=True)
class TrafficChanged:
    """The model's traffic table is this one."""

    model: str
    targets: tuple[TrafficTarget, ...]
    reason: str


# --- replicas ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Booking:
    """Bytes reserved for a replica on one device of its server's host."""

    device: str
    bytes: int


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


# --- memory -----------------------------------------------------------------------------------------------------------


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


# --- servers ----------------------------------------------------------------------------------------------------------


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


@dataclass(slots=True)
class ServerCordoned:
    """Nothing is placed on the server until it is resumed; what is there stays. If it was draining, that is over."""

    server: str
    reason: str


@dataclass(slots=True)
class ServerDraining:
    """Nothing is placed on the server, and what is there leaves once it is Available elsewhere.

    Attributes:
        due: log time (ms) at which is said what could not leave; it goes on serving.
        incarnation: the life of an agent that is to end, with which this is over; empty = until the server is resumed.
        reason: why.
    """

    server: str
    due: int
    incarnation: str
    reason: str


@dataclass(slots=True)
class LeftBehind:
    """A version on a draining server, and why it is still there."""

    model: str
    generation: int
    reason: str


@dataclass(slots=True)
class ServerDrained:
    """Nothing is left on a draining server; or its time is over, and this is what could not leave.

    Attributes:
        models: how many are left.
        left: up to a hundred of them, first those that fit nowhere else.
    """

    server: str
    models: int
    left: tuple[LeftBehind, ...]


@dataclass(slots=True)
class ServerResumed:
    """The server is neither cordoned nor drained any more."""

    server: str
    reason: str


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
)


def subject_of(fact: Fact) -> str:
    """Return the model or server that a fact is about; empty for none."""
    return getattr(fact, "model", "") or getattr(fact, "server", "") or getattr(fact, "subject", "")
