"""A draft of a decision: facts decided so far, and a private copy of what they would change.

``decide`` may not touch the state. It works on copies of the few models that it is about, folded with the very code
that ``evolve`` uses, and keeps count of what it has reserved on servers meanwhile.
"""

from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import fields
from operator import attrgetter
from typing import TypeVar

from magnetar_common.evolve import DRAINS
from magnetar_common.memory import AwaitedKey
from magnetar_common.model_folds import fold_model
from magnetar_common.quotas import (
    NOTHING,
    Amount,
    Need,
    at_cap,
    below_floor,
    held,
    left,
    minus,
    need_of,
    plus,
    tenant_of,
)
from magnetar_common.state import Model, Replica, ReplicaKey, Server, State, Version
from magnetar_common.transitions import ARRIVING, STATES, R
from magnetar_events import facts as f
from magnetar_events.policy import Policy

BUDGET = 250_000
"""Estimated bytes of facts after which a draft is full.

What is begun is ended: a model of 1,000 replicas may add as much as 700,000 for names of full length. Both together stay
below the 1 MiB of an entry.
"""

_OF_MEMORY = (f.MemoryAwaited, f.MemoryReturned, f.MemoryLeaked)

_FACT_BYTES = 300
_CANDIDATE_BYTES = 20
_BYTES_A_CHARACTER = 4


_T = TypeVar("_T", Model, Version, Replica)


def _copies(cls: type[_T]) -> Callable[[_T], _T]:
    """Return what makes shallow copies; ``dataclasses.replace`` takes ten times as long."""
    values = attrgetter(*(field.name for field in fields(cls)))
    return lambda original: cls(*values(original))


_copy_model, _copy_version, _copy_replica = _copies(Model), _copies(Version), _copies(Replica)


class Draft:
    """What one input leads to.

    Args:
        state: only read.
        at: log time (ms).
    """

    __slots__ = (
        "_models",
        "_size",
        "at",
        "awaited",
        "bytes",
        "claims",
        "facts",
        "largest_room",
        "least",
        "loading",
        "placed",
        "refused",
        "reserved",
        "short",
        "state",
        "used",
    )

    def __init__(self, state: State, at: int) -> None:
        self.state = state
        self.at = at
        self.facts: list[f.Fact] = []
        self.placed: dict[str, int] = {}
        """Server → replicas added (or, below zero, taken away) by this draft."""
        self.reserved: dict[tuple[str, str], int] = {}
        """(host, device) → bytes added by this draft."""
        self.bytes: dict[str, int] = {}
        """Server → bytes added by this draft."""
        self.loading: Counter[str] = Counter()
        """Server → loads begun (or, below zero, ended) by this draft."""
        self.largest_room: dict[int, int] = {}
        """How many accelerators → the most that any device had left when somebody first asked; see ``placement``."""
        self.used: dict[str, Amount] = {}
        """Tenant → what this draft adds to what it has (or, below zero, takes away)."""
        self.short: dict[str, set[Need]] | None = None
        """Tenant with a floor → what its models needed before this draft; None = nobody has asked yet."""
        self.refused: dict[str, set[Need]] = {}
        """Tenant → what those of its models need that found no place in this draft."""
        self.awaited: dict[str, list[tuple[f.Booking, ...]]] = {}
        """Server → what replicas reserved that this draft has unloaded, and that are to give it back."""
        self.claims: dict[str, list[tuple[str, int]]] = {}
        """Server → (model, version) that this draft has others leave it for."""
        self.least: int | None = None
        """The lowest priority that anything has that is there; None = nobody has asked yet."""
        self._models: dict[str, Model | None] = {}
        self._size = 0

    @property
    def policy(self) -> Policy:
        """The rules in force."""
        return self.state.policy

    @property
    def full(self) -> bool:
        """Whether the entry is large enough: what is left to do is left pending, for the next one."""
        return self._size > BUDGET

    def model(self, key: str) -> Model | None:
        """Return the model as it is after the facts so far. The copy is for reading: change it by ``emit``."""
        if key in self._models:
            return self._models[key]
        model = self.state.models.get(key)
        if model is None:
            return None
        copy = _copy_model(model)
        copy.versions = {generation: _copy_version(version) for generation, version in model.versions.items()}
        copy.replicas = {key: _copy_replica(replica) for key, replica in model.replicas.items()}
        for version in copy.versions.values():
            version.places = dict(version.places)
        self._models[key] = copy
        return copy

    def server(self, key: str) -> Server | None:
        """Return a server as it was before this draft."""
        return self.state.servers.get(key)

    def replica(self, key: ReplicaKey) -> Replica | None:
        """Return a replica as it is after the facts so far."""
        if key.model not in self._models:
            return self.state.replica(key)
        model = self._models[key.model]
        return model.replicas.get((key.generation, key.server)) if model is not None else None

    def use(self, tenant: str) -> Amount:
        """Return what a tenant has after the facts so far."""
        used, added = self.state.quotas.use(tenant), self.used.get(tenant)
        return used if added is None else plus(used, added)

    def is_short(self, tenant: str) -> bool:
        """Whether a tenant has less than its floor after the facts so far."""
        return below_floor(self.state.tenants.get(tenant), self.use(tenant))

    def left(self, tenant: str) -> int:
        """Return how much of its cap is left to a tenant after the facts so far, in thousandths."""
        return left(self.state.tenants.get(tenant), self.use(tenant))

    def emit(self, fact: f.Fact) -> None:
        """Decide a fact."""
        self.facts.append(fact)
        self._size += _size_of(fact)
        if isinstance(fact, _OF_MEMORY):
            self._give_back(fact)
            return  # of a replica that is gone: nothing of its model changes
        key = getattr(fact, "model", None)
        if key is None:
            return
        model = self.model(key)
        if isinstance(fact, f.ModelRemoved):
            self._models[key] = None  # gone for the rest of this decision, whatever the state still says
            return
        if model is None:
            model = self._models[key] = Model(key, deleted=isinstance(fact, f.ReplicaAdopted))
        if isinstance(fact, f.ReplicaChanged):
            self._count(model, fact)
        if isinstance(fact, f.ReplicaBooked):
            self._hold(fact.server, model.replicas[fact.generation, fact.server].bookings, -1)
            self._hold(fact.server, fact.bookings, +1)
        if isinstance(fact, (f.ReplicaPlaced, f.ReplicaAdopted, f.ReplicaChanged, f.ReplicaBooked)):
            self._move(model, fact)
        else:
            fold_model(model, fact, self.state.position + 1, self.at)
        if isinstance(fact, (f.ReplicaPlaced, f.ReplicaAdopted)):
            server = self.state.servers[fact.server]
            model.replicas[fact.generation, fact.server].draining = self.state.version >= DRAINS and server.draining
            self._reserve(fact.server, fact.bookings, +1)
        if isinstance(fact, f.ReplicaPlaced):
            self.loading[fact.server] += 1
        if isinstance(fact, f.ReplicasPreempted):
            self.claims.setdefault(fact.server, []).append((key, fact.generation))
        elif isinstance(fact, f.PlacementRefused) and not at_cap(model.versions[fact.generation]):
            need = need_of(model, model.versions[fact.generation])
            self.refused.setdefault(tenant_of(key), set()).add(need)

    def _move(
        self, model: Model, fact: f.ReplicaPlaced | f.ReplicaAdopted | f.ReplicaChanged | f.ReplicaBooked
    ) -> None:
        """Fold a fact about a replica, and count it for its tenant."""
        place = (fact.generation, fact.server)
        before = held(model.replicas.get(place))
        fold_model(model, fact, self.state.position + 1, self.at)
        after = held(model.replicas.get(place))
        if after != before:
            self._use(model.key, minus(after, before))

    def _use(self, model: str, amount: Amount) -> None:
        tenant = tenant_of(model)
        self.used[tenant] = plus(self.used.get(tenant, NOTHING), amount)

    def change(
        self,
        replica: Replica,
        after: R,
        *,
        code: str = "",
        reason: str = "",
        retriable: bool = False,
        attempt: int = 0,
        due: int = 0,
    ) -> None:
        """Decide that a replica goes to another state."""
        self.emit(
            f.ReplicaChanged(
                replica.model,
                replica.generation,
                replica.server,
                replica.state.value,
                after.value,
                code,
                reason,
                retriable,
                attempt or replica.attempt,
                due,
            )
        )

    def _count(self, model: Model, fact: f.ReplicaChanged) -> None:
        before, after = STATES[fact.before], STATES[fact.after]
        replica = model.replicas.get((fact.generation, fact.server))
        if after is R.UNLOADED and replica is not None:
            self._reserve(fact.server, replica.bookings, -1)
        begun = (after in ARRIVING) - (before in ARRIVING)
        if begun:
            self.loading[fact.server] += begun

    @contextmanager
    def without(self, replica: Replica) -> Generator[None]:
        """Within it, things stand as if a replica were gone and its memory free."""
        amount, known = held(replica), replica.server in self.placed
        self._reserve(replica.server, replica.bookings, -1)
        self._use(replica.model, minus(NOTHING, amount))
        try:
            yield
        finally:
            self._reserve(replica.server, replica.bookings, +1)
            self._use(replica.model, amount)
            if not known:
                del self.placed[replica.server]

    @contextmanager
    def given_back(self, server: Server) -> Generator[None]:
        """Within it, things stand as if a server had back what its unloaded replicas are still to give back."""
        held = [*(each.bookings for each in server.awaited.values()), *self.awaited.get(server.key, ())]
        for bookings in held:
            self._hold(server.key, bookings, -1)
        try:
            yield
        finally:
            for bookings in held:
                self._hold(server.key, bookings, +1)

    def _reserve(self, key: str, bookings: tuple[f.Booking, ...], sign: int) -> None:
        self.placed[key] = self.placed.get(key, 0) + sign
        self._hold(key, bookings, sign)

    def _give_back(self, fact: f.MemoryAwaited | f.MemoryReturned | f.MemoryLeaked) -> None:
        server = self.state.servers[fact.server]
        key = AwaitedKey(fact.model, fact.generation, fact.position)
        known = server.awaited.get(key) or server.leaked.get(key)
        if isinstance(fact, f.MemoryAwaited) and known is None:
            self._hold(fact.server, fact.bookings, +1)
            self.awaited.setdefault(fact.server, []).append(fact.bookings)
        elif isinstance(fact, f.MemoryReturned) and known is not None:
            self._hold(fact.server, known.bookings, -1)

    def _hold(self, key: str, bookings: tuple[f.Booking, ...], sign: int) -> None:
        server = self.state.servers[key]
        for booking in bookings:
            device = (server.info.host, booking.device)
            self.reserved[device] = self.reserved.get(device, 0) + sign * booking.bytes
            self.bytes[key] = self.bytes.get(key, 0) + sign * booking.bytes


def _size_of(fact: f.Fact) -> int:
    """Return about how many bytes of an entry a fact takes, rather too many than too few."""
    size = _FACT_BYTES + _BYTES_A_CHARACTER * (len(getattr(fact, "reason", "")) + len(getattr(fact, "message", "")))
    if isinstance(fact, (f.ReplicaPlaced, f.ReplicaChanged, f.ReplicaAdopted)):
        size += len(fact.server)
    if isinstance(fact, f.VersionFailed):
        size += sum(_CANDIDATE_BYTES + _BYTES_A_CHARACTER * len(place) for place in fact.places)
    if isinstance(fact, (f.ReplicaPlaced, f.ReplicaAdopted, f.ReplicaBooked, f.MemoryAwaited, f.MemoryLeaked)):
        each = sum(_CANDIDATE_BYTES + _BYTES_A_CHARACTER * len(booking.device) for booking in fact.bookings)
        # What is awaited is told three times: what stays reserved, what is expected, and what was free before.
        size += 3 * each if isinstance(fact, f.MemoryAwaited) else each
    if isinstance(fact, f.ServerDrained):
        size += sum(_FACT_BYTES + _BYTES_A_CHARACTER * len(left.reason) for left in fact.left)
    if isinstance(fact, f.ReplicasPreempted):
        size += sum(_CANDIDATE_BYTES + len(victim.model) for victim in fact.victims)
    if isinstance(fact, (f.ReplicaPlaced, f.PlacementRefused)):
        evidence = fact.best if isinstance(fact, f.ReplicaPlaced) else fact.examples
        size += sum(_CANDIDATE_BYTES + len(candidate.server) for candidate in evidence)
    return size
