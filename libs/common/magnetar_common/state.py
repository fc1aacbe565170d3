"""The state: what the log says is so. Only :mod:`magnetar_common.evolve` changes it."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

from magnetar_common.fleet import Fleet
from magnetar_common.memory import Awaited, AwaitedKey, Level
from magnetar_common.quotas import Quotas
from magnetar_common.transitions import ARRIVING, LEAVING, LIVE, ON_ITS_WAY, R
from magnetar_events.base import Later
from magnetar_events.entry import FOLD_VERSION
from magnetar_events.facts import Booking, PlacementRefused, ServerReserved, TrafficTarget, VersionFailed
from magnetar_events.models import ModelSpec
from magnetar_events.policy import Policy
from magnetar_events.records import Device, ServerInfo, ServiceRecord
from magnetar_events.tenants import Tenant

__all__ = ["Cordon", "Model", "Replica", "ReplicaKey", "Server", "State", "Version", "request_name"]


CORDONED, DRAINING = "CORDONED", "DRAINING"
"""Nothing is placed on a server; and besides, what is there is to leave."""

DRAIN_TIMER, RETURN_TIMER = 1, -1
"""Generations under which are indexed, with no model: the deadline of a server's drain, and when what it is to give back
has leaked. 0 is the server itself."""


class ReplicaKey(NamedTuple):
    """A server holds a version at most once, so these three name a replica."""

    model: str
    generation: int
    server: str


def request_name(source: str, request: str, publisher: str) -> tuple[str, str]:
    """Return by what a request is remembered.

    Those that a publisher signed have names of their own, so that nobody else can take one first and have the signed
    request passed over as a repeat. A source holds no line feed, so the names cannot meet.
    """
    return (f"{publisher}\n{source}" if publisher else source), request


@dataclass(slots=True)
class Replica:
    """One version of a model on one server.

    Attributes:
        model: key.
        generation: version.
        server: key.
        state: where it is in its life.
        position: of the entry that decided its newest command; reports echo it.
        since: log time (ms) of the last change of state.
        bookings: bytes reserved per device, until it is gone.
        attempt: number of the load on this server; every unload that fails counts as one more.
        due: log time (ms) at which the state is looked at again; 0 = never.
        code: typed reason of the state; empty for the expected course.
        reason: for people.
        retriable: for a failure.
        digest: of the artifact, as reported.
        measured: bytes per device that the load was seen to take; 0 = unknown.
        parallel: workers or instances.
        http_port: its own port; 0 = its server's.
        draining: its server is: it serves until enough others do, and counts for nothing.
    """

    model: str
    generation: int
    server: str
    state: R
    position: int
    since: int
    bookings: tuple[Booking, ...]
    attempt: int = 1
    due: int = 0
    code: str = ""
    reason: str = ""
    retriable: bool = False
    digest: str = ""
    measured: tuple[Booking, ...] = ()
    parallel: int = 0
    http_port: int = 0
    draining: bool = False

    @property
    def live(self) -> bool:
        """Whether it counts towards the number wanted."""
        return self.state in LIVE and not self.draining

    @property
    def key(self) -> ReplicaKey:
        """What names it."""
        return ReplicaKey(self.model, self.generation, self.server)


@dataclass(slots=True)
class Version:
    """One wish of the user for a model.

    Attributes:
        generation: 1, 2, 3, …
        spec: what was wanted.
        position: of the entry that took it up.
        at: log time of it (ms).
        wanted: replicas of it.
        digest: pinned; empty until the first replica is loaded.
        refused: why replicas of it wait for room; None when none does.
        failed: why it cannot be had; None while it can.
        failed_at: position of the entry that said so.
        places: server → why its load failed there.
        full: replicas of it before a rollout made room at its expense; 0 = that is ``wanted``.
        learnt: bytes per device that it was found to need, where that is more than the specification says; 0 = not so.
        claim: server that replicas of lower priority leave for it, or that is reserved for it; empty = none.
        claimed_until: log time (ms) from which that counts for nothing.
        preempted: a replica of it had to leave for another model; until all are back none leaves for it.
        reservation: the last one, perhaps over; None = it had none.
    """

    generation: int
    spec: ModelSpec
    position: int
    at: int
    wanted: int
    digest: str = ""
    refused: PlacementRefused | None = None
    failed: VersionFailed | None = None
    failed_at: int = 0
    places: dict[str, str] = field(default_factory=dict[str, str])
    full: int = field(default=0, metadata={Later: True})
    learnt: int = field(default=0, metadata={Later: True})
    claim: str = field(default="", metadata={Later: True})
    claimed_until: int = field(default=0, metadata={Later: True})
    preempted: bool = field(default=False, metadata={Later: True})
    reservation: ServerReserved | None = field(default=None, metadata={Later: True})

    @property
    def size(self) -> int:
        """The bytes per device that a replica of it is known to need: the largest of declared, measured and observed."""
        return max(self.spec.memory, self.learnt)

    @property
    def reserved(self) -> bool:
        """Whether its claim is a reservation: what becomes free there is kept for it, and nobody leaves."""
        reservation = self.reservation
        return reservation is not None and (self.claim, self.claimed_until) == (reservation.server, reservation.due)


@dataclass(slots=True)
class Model:
    """A model: its wanted version, the versions still alive, their replicas, and who gets the traffic.

    Attributes:
        key: ``tenant/name``.
        generation: the wanted version.
        owner: who set the number of replicas.
        versions: alive ones by generation.
        replicas: by (generation, server).
        traffic: exact versions with weights.
        deleted: undeployed, and not all gone yet.
        due: log time (ms) at which a deleted model is forgotten whatever its servers say.
        held: server → digest of the artifact that it held last, of the servers that let go of a replica.
        frozen: nothing of it is changed until it is unfrozen.
        frozen_by: who froze it, as people are told: a name that is not verified says so.
        frozen_reason: why.
    """

    key: str
    generation: int = 0
    owner: str = "user"
    versions: dict[int, Version] = field(default_factory=dict[int, Version])
    replicas: dict[tuple[int, str], Replica] = field(default_factory=dict[tuple[int, str], Replica])
    traffic: tuple[TrafficTarget, ...] = ()
    deleted: bool = False
    due: int = 0
    held: dict[str, str] = field(default_factory=dict[str, str], metadata={Later: True})
    frozen: bool = field(default=False, metadata={Later: True})
    frozen_by: str = field(default="", metadata={Later: True})
    frozen_reason: str = field(default="", metadata={Later: True})

    @property
    def target(self) -> Version:
        """The wanted version."""
        return self.versions[self.generation]

    def of(self, generation: int) -> Iterator[Replica]:
        """Yield the replicas of one version."""
        return (replica for replica in self.replicas.values() if replica.generation == generation)

    @property
    def wanted(self) -> int:
        """How many replicas of the wanted version are wanted; 0 once undeployed."""
        return 0 if self.deleted else self.target.wanted

    def routed(self) -> frozenset[int]:
        """Return the generations that get traffic."""
        return frozenset(target.generation for target in self.traffic)

    def kept(self) -> list[int]:
        """Return the generations to be kept up: the wanted one first, then those that serve until it can."""
        if self.deleted or self.generation not in self.versions:
            return []
        kept = [self.generation]
        kept += [
            t.generation for t in self.traffic if t.generation != self.generation and t.generation in self.versions
        ]
        return kept

    def missing(self, generation: int) -> int:
        """Return how many replicas of a kept version are still to be placed."""
        version = self.versions[generation]
        if version.failed is not None:
            return 0
        return max(0, version.wanted - sum(replica.live for replica in self.of(generation)))

    def bereft(self, generation: int) -> int:
        """Return how many replicas of a version that failed are to be replaced all the same.

        As many as left with their servers (lost, or draining) and were not replaced since it failed; of what gets
        traffic one at least while none is left. None of what gets no traffic and failed for good.
        """
        version, routed = self.versions[generation], any(target.generation == generation for target in self.traffic)
        if not routed and (version.failed is None or not version.failed.retriable):
            return 0
        gone = since = live = 0
        for replica in self.of(generation):
            live += replica.live
            since += replica.live and replica.position >= version.failed_at
            gone += replica.state is R.LOST or (replica.draining and replica.state is R.AVAILABLE)
        return min(max(0, version.wanted - live), max(gone - since, routed and not live))

    def given_up(self, generation: int) -> dict[str, str]:
        """Return where a version failed, with the reason: the places at which it is not loaded, nor tried again."""
        there = {
            replica.server
            for replica in self.of(generation)
            if replica.state in LIVE and (replica.due or replica.state is not R.LOAD_FAILED)
        }
        return {server: why for server, why in self.versions[generation].places.items() if server not in there}

    def revivable(self, newest: int) -> list[int]:
        """Return the kept versions that failed for a retriable reason before an entry, by its position."""
        versions = [self.versions[generation] for generation in self.kept()]
        return [v.generation for v in versions if v.failed is not None and v.failed.retriable and v.failed_at < newest]

    def misplaced(self, replica: Replica) -> bool:
        """Whether a replica is on its way to a server that drains, or has arrived there and gets no traffic."""
        if not replica.draining:
            return False
        waits = replica.state is R.LOADED and all(t.generation != replica.generation for t in self.traffic)
        return waits or replica.state in ON_ITS_WAY

    def pending(self) -> tuple[bool, bool, bool]:
        """Return whether it is unsettled, waits for room, and failed for a retriable reason.

        Unsettled: something is to be done for it without any further input: place, or let go of what is lost, or
        call off what is on its way to a server that drains. A version that failed can wait for room, too: where it was
        not tried.
        """
        if self.frozen:
            return False, False, False
        if self.deleted:
            return any(r.state in LIVE or r.state is R.LOST for r in self.replicas.values()), False, False
        unsettled = waits = failed = False
        kept = self.kept()
        for generation in kept:
            version = self.versions[generation]
            failed = failed or (version.failed is not None and version.failed.retriable)
            if version.refused is not None:
                waits = True
            elif version.failed is not None:
                unsettled = unsettled or self.bereft(generation) > 0
            else:
                live = 0
                for r in self.replicas.values():
                    if r.generation == generation and r.state in LIVE and not r.draining:
                        live += 1
                unsettled = unsettled or live < version.wanted
        for r in self.replicas.values():
            if (r.state is R.LOST and r.generation not in kept) or (r.draining and self.misplaced(r)):
                unsettled = True
        return unsettled, waits, failed


@dataclass(slots=True)
class Cordon:
    """What an operator ordered for a server; it holds for the name, whoever bears it, until the server is resumed.

    Attributes:
        server: key.
        drain: what is there is to leave; otherwise it stays.
        reason: why.
        position: of the entry that says so.
    """

    server: str
    drain: bool
    reason: str
    position: int


@dataclass(slots=True)
class Server:
    """An inference server with its agent, as the log knows it.

    Attributes:
        key: ``cluster/server/replica``.
        record: what the agent last said of it.
        info: the server's part of that.
        position: of the entry in which this life joined.
        lost: silent or gone.
        lost_code: why.
        inventory: what it holds is known.
        inventory_asked: position of the outstanding request for its inventory; 0 = none.
        stale: its reading is too old to place by.
        devices: memories by uuid.
        loads: in progress, as last read.
        digest: of its index, as last read.
        report: number of the last inventory folded.
        due: log time (ms) at which it is looked at again; 0 = never.
        superseded: lives that never return.
        replicas: what is placed here, by (model, generation).
        booked: bytes reserved here, over all devices.
        cordon: an operator's order for this name: CORDONED, DRAINING, or none.
        drains: a drain has begun, and something was here when that was last looked at.
        drain_due: log time (ms) at which is said what could not leave; 0 = it was said, or nothing drains.
        awaited: what unloaded replicas are to give back, longest first.
        leaked: what they did not give back in time.
    """

    key: str
    record: ServiceRecord
    info: ServerInfo = field(compare=False)
    position: int
    lost: bool = False
    lost_code: str = ""
    inventory: bool = False
    inventory_asked: int = 0
    stale: bool = False
    devices: dict[str, Device] = field(default_factory=dict[str, Device])
    loads: int = 0
    digest: str = ""
    report: int = 0
    due: int = 0
    superseded: frozenset[str] = frozenset()
    replicas: dict[tuple[str, int], Replica] = field(default_factory=dict[tuple[str, int], Replica])
    booked: int = 0
    cordon: str = field(default="", metadata={Later: True})
    drains: bool = field(default=False, metadata={Later: True})
    drain_due: int = field(default=0, metadata={Later: True})
    awaited: dict[AwaitedKey, Awaited] = field(default_factory=dict[AwaitedKey, Awaited], metadata={Later: True})
    leaked: dict[AwaitedKey, Awaited] = field(default_factory=dict[AwaitedKey, Awaited], metadata={Later: True})

    @property
    def return_due(self) -> int:
        """Log time (ms) at which what is awaited longest has leaked; 0 = never: nothing is, or nobody could say."""
        return 0 if self.lost else next((each.due for each in self.awaited.values()), 0)

    @property
    def incarnation(self) -> str:
        """The current life of its agent."""
        return self.info.incarnation

    @property
    def draining(self) -> bool:
        """Whether what is here is to leave: an operator wants it, or the agent is about to end."""
        return self.cordon == DRAINING or self.record.status == DRAINING

    @property
    def closed(self) -> bool:
        """Whether nothing more is to be loaded here, whatever there is room for."""
        return bool(self.cordon) or self.record.status == DRAINING

    @property
    def schedulable(self) -> bool:
        """Whether something may be placed here."""
        return self.record.status == "UP" and self.inventory and not (self.lost or self.stale or self.cordon)


@dataclass(slots=True)
class State:
    """Everything that ``decide`` sees. Fields that only index others are left out of comparisons.

    Attributes:
        position: of the last entry folded; -1 = none.
        term: of its leader.
        at: its log time (ms).
        wall: its wall time (ms since the epoch).
        entry: its id.
        fold_version: of the log, in force since it began or since the last upgrade was finalized; 0 while it is empty.
        handled: topic → id of the last message handled.
        cluster: Magnetar cluster of the leader.
        broker: broker cluster in which ``handled`` means something.
        leader: who leads.
        policy: rules in force.
        models: by key.
        servers: by key.
        booked: (host, device uuid) → bytes reserved by all servers on that host.
        arriving: the part of ``booked`` whose loads are not finished: no reading shows it yet.
        loading: server → loads in progress there, as decided here; what a reading says of them is older.
        levels: (host, device uuid) → what is free there without what is awaited; only where something is.
        generations: last generation of every model that ever was, but for the oldest of very many that are gone.
        floor: the highest generation among those: a model that comes back begins above it.
        cordons: servers on which nothing may be placed, by key, whether they are there or not.
        requests: :func:`request_name` → (position, log time) of the requests of the last day.
        tenants: those that have a floor or a cap, by name.
        illegal: facts that the transition table forbids; more than 0 is a defect of a writer.
        unsettled: models to be worked on without further input.
        waiting: models that wait for room.
        outstanding: replicas with an unanswered command.
        asked: servers asked for their inventory.
        failed: models of which a version that is kept failed for a retriable reason.
        newest: position at which a server last became schedulable: what failed before is tried again.
        room: counts events after which something may fit that did not.
        touched: models whose pending sets are to be looked at again.
        recent: position → entry id of the newest entries, by which a repeat is told from a fork.
        fleet: schedulable servers in order of load.
        quotas: what the tenants have, want and need.
    """

    position: int = -1
    term: int = 0
    at: int = 0
    wall: int = 0
    entry: str = ""
    fold_version: int = 0
    handled: dict[str, str] = field(default_factory=dict[str, str])
    cluster: str = ""
    broker: str = ""
    leader: str = ""
    policy: Policy = field(default_factory=Policy)
    models: dict[str, Model] = field(default_factory=dict[str, Model])
    servers: dict[str, Server] = field(default_factory=dict[str, Server])
    booked: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    arriving: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    loading: Counter[str] = field(default_factory=Counter[str], compare=False)
    levels: dict[tuple[str, str], Level] = field(default_factory=dict[tuple[str, str], Level], metadata={Later: True})
    generations: dict[str, int] = field(default_factory=dict[str, int])
    requests: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict[tuple[str, str], tuple[int, int]])
    floor: int = field(default=0, metadata={Later: True})
    cordons: dict[str, Cordon] = field(default_factory=dict[str, Cordon], metadata={Later: True})
    tenants: dict[str, Tenant] = field(default_factory=dict[str, Tenant], metadata={Later: True})
    illegal: int = 0
    newest: int = -1
    failed: dict[str, None] = field(default_factory=dict[str, None], compare=False)
    unsettled: dict[str, None] = field(default_factory=dict[str, None], compare=False)
    waiting: dict[str, None] = field(default_factory=dict[str, None], compare=False)
    outstanding: dict[ReplicaKey, Replica] = field(default_factory=dict[ReplicaKey, Replica], compare=False)
    asked: dict[str, None] = field(default_factory=dict[str, None], compare=False)
    room: int = field(default=0, compare=False)
    touched: dict[str, None] = field(default_factory=dict[str, None], compare=False)
    recent: dict[int, str] = field(default_factory=dict[int, str], compare=False)
    fleet: Fleet = field(default_factory=Fleet, compare=False)
    quotas: Quotas = field(default_factory=Quotas, compare=False)
    _timers: list[tuple[int, str, int, str]] = field(default_factory=list[tuple[int, str, int, str]], compare=False)

    @property
    def version(self) -> int:
        """The fold version that the next entry is written with: a log begins at that of the software."""
        return self.fold_version or FOLD_VERSION

    def replica(self, key: ReplicaKey) -> Replica | None:
        """Return a replica, or None."""
        model = self.models.get(key.model)
        return model.replicas.get((key.generation, key.server)) if model else None

    def memory_ms(self) -> int:
        """Return for how long requests are remembered: as the policy says, or less while there are too many of them."""
        if len(self.requests) < self.policy.max_requests:
            return self.policy.request_memory_ms
        _, oldest = next(iter(self.requests.values()))
        return min(self.policy.request_memory_ms, self.at - oldest)

    def revivable(self) -> list[str]:
        """Return the models of which something failed for a retriable reason before the newest server came."""
        return [key for key in self.failed if self.models[key].revivable(self.newest)]

    # --- timers: the due times of replicas, models and servers, in one heap; what is no longer so is skipped ----------

    def set_timer(self, due: int, model: str = "", generation: int = 0, server: str = "") -> None:
        """Index a due time (for ``evolve``)."""
        if due:
            heappush(self._timers, (due, model, generation, server))

    def next_due(self) -> int:
        """Return the earliest log time (ms) at which something is due, or 0 for never."""
        while self._timers:
            due, model, generation, server = self._timers[0]
            if self._due_of(model, generation, server) == due:
                return due
            heappop(self._timers)
        return 0

    def due_by(self, at: int, limit: int) -> list[tuple[str, int, str]]:
        """Return up to ``limit`` (model, generation, server) that are due.

        Generation 0 = the model or server itself. With a model and no server: what others leave for that version. With
        no model, below 0 or above: `DRAIN_TIMER` = the drain of a server, `RETURN_TIMER` = what it is to give back.
        """
        found: list[tuple[int, str, int, str]] = []
        while self._timers and self._timers[0][0] <= at and len(found) < limit:
            timer = heappop(self._timers)
            if self._due_of(*timer[1:]) == timer[0] and timer not in found[-1:]:
                found.append(timer)
        for timer in found:
            heappush(self._timers, timer)
        return [timer[1:] for timer in found]

    def _due_of(self, model: str, generation: int, server: str) -> int:
        if model and server:
            replica = self.replica(ReplicaKey(model, generation, server))
            return replica.due if replica else 0
        if model and generation:
            version = self.models[model].versions.get(generation) if model in self.models else None
            return version.claimed_until if version is not None and version.claim else 0
        if model:
            return self.models[model].due if model in self.models else 0
        if server not in self.servers:
            return 0
        if generation == DRAIN_TIMER:
            return self.servers[server].drain_due
        return self.servers[server].return_due if generation == RETURN_TIMER else self.servers[server].due

    def command_of(self, replica: Replica) -> str:
        """Return the kind of command outstanding for a replica, or an empty string."""
        if replica.state in ARRIVING:
            return "LoadModel"
        return "UnloadModel" if replica.state in LEAVING else ""
