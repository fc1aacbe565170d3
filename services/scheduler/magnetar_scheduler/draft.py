"""A draft of a decision: facts decided so far, and a private copy of what they would change.

``decide`` may not touch the state. It works on copies of the few models that it is about, folded with the very code
that ``evolve`` uses, and keeps count of what it has reserved on servers meanwhile.
"""

from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import fields
from operator import attrgetter
from typing import Any, ClassVar, TypeVar

from magnetar_common.memory import AwaitedKey
from magnetar_common.model_folds import MODEL_FOLDS, fold_model
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
    stays,
    tenant_of,
)
from magnetar_common.since import DRAINS
from magnetar_common.state import Model, Replica, ReplicaKey, Server, State, Version
from magnetar_common.transitions import ARRIVING, STATES, R
from magnetar_events import facts as f
from magnetar_events.policy import Policy
from magnetar_scheduler.budget import BUDGET, size_of

LOOKED = 50_000
"""Replicas and comparisons for who could leave that one decision makes, before it leaves the rest to the next one.

Half a second of them, measured: as ``pending.COMPARISONS``.
"""

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
        "fresh",
        "kept",
        "largest_room",
        "least",
        "loading",
        "looked",
        "placed",
        "reserved",
        "state",
        "stayed",
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
        self.stayed: dict[str, Amount] = {}
        """The same of what is to stay."""
        self.kept: dict[str, tuple[frozenset[tuple[str, bool]], Amount]] | None = None
        """Tenant that waits below its floor → what is kept for it, see ``floors``; None = nobody has asked yet."""
        self.fresh: list[tuple[str, Need]] = []
        """(Model, what it needs) that found no place in this draft, and for which nothing is kept yet."""
        self.awaited: dict[str, list[tuple[f.Booking, ...]]] = {}
        """Server → what replicas reserved that this draft has unloaded, and that are to give it back."""
        self.claims: dict[str, list[tuple[str, int]]] = {}
        """Server → (model, version) that this draft has others leave it for, or reserves it for."""
        self.least: int | None = None
        """The lowest priority that anything has that is there; None = nobody has asked yet."""
        self.looked = 0
        """Replicas that were looked at for whether they could leave, and comparisons that were made for it."""
        self._models: dict[str, Model | None] = {}
        self._size = 0

    @property
    def policy(self) -> Policy:
        """The rules in force."""
        return self.state.policy

    @property
    def full(self) -> bool:
        """Whether the entry is large enough, or took long enough: what is left to do is left pending, for the next one."""
        return self.large or self.looked > LOOKED

    @property
    def large(self) -> bool:
        """Whether the entry is large enough."""
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

    def seen(self, key: str) -> Model | None:
        """Return the model as it is after the facts so far, to be read at once: no copy is made of it."""
        return self._models[key] if key in self._models else self.state.models.get(key)

    def replica(self, key: ReplicaKey) -> Replica | None:
        """Return a replica as it is after the facts so far."""
        model = self.seen(key.model)
        return model.replicas.get((key.generation, key.server)) if model is not None else None

    def use(self, tenant: str) -> Amount:
        """Return what a tenant has after the facts so far."""
        used, added = self.state.quotas.use(tenant), self.used.get(tenant)
        return used if added is None else plus(used, added)

    def stays(self, tenant: str) -> Amount:
        """Return what a tenant has after the facts so far that is to stay."""
        return plus(self.state.quotas.stays(tenant), self.stayed.get(tenant, NOTHING))

    def is_short(self, tenant: str) -> bool:
        """Whether a tenant has less than its floor after the facts so far."""
        return below_floor(self.state.tenants.get(tenant), self.use(tenant))

    def left(self, tenant: str) -> int:
        """Return how much of its cap is left to a tenant after the facts so far, in thousandths."""
        return left(self.state.tenants.get(tenant), self.use(tenant))

    def emit(self, fact: f.Fact) -> None:
        """Decide a fact."""
        self.facts.append(fact)
        self._size += size_of(fact)
        take = self._TAKE.get(type(fact))
        if take is not None:
            take(self, fact)

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

    # --- what a fact does to the draft, by its kind -----------------------------------------------------------------

    def _fold(self, fact: Any) -> Model:
        model = self.model(fact.model)
        if model is None:
            model = self._models[fact.model] = Model(fact.model, deleted=type(fact) is f.ReplicaAdopted)
        fold_model(model, fact, self.state.position + 1, self.at)
        return model

    def _on_removed(self, fact: f.ModelRemoved) -> None:
        self._models[fact.model] = None  # gone for the rest of this decision, whatever the state still says

    def _on_arrival(self, fact: f.ReplicaPlaced | f.ReplicaAdopted) -> None:
        server = self.state.servers[fact.server]
        replica = self._fold(fact).replicas[fact.generation, fact.server]
        replica.draining = self.state.version >= DRAINS and server.draining
        self._reserve(fact.server, fact.bookings, +1)
        self._use(fact.model, held(replica), stays(replica))
        if replica.state in ARRIVING:
            self.loading[fact.server] += 1

    def _on_changed(self, fact: f.ReplicaChanged) -> None:
        key = ReplicaKey(fact.model, fact.generation, fact.server)
        replica = self.replica(key)
        counted, stayed = held(replica), stays(replica)
        self._fold(fact)
        after = self.replica(key)
        if after is None and replica is not None:
            self._reserve(fact.server, replica.bookings, -1)
        begun = (STATES[fact.after] in ARRIVING) - (STATES[fact.before] in ARRIVING)
        if begun:
            self.loading[fact.server] += begun
        self._use(fact.model, minus(held(after), counted), minus(stays(after), stayed))

    def _on_booked(self, fact: f.ReplicaBooked) -> None:
        key = ReplicaKey(fact.model, fact.generation, fact.server)
        replica = self.replica(key)
        before = replica.bookings if replica is not None else ()
        counted, stayed = held(replica), stays(replica)
        self._fold(fact)
        after = self.replica(key)
        self._hold(fact.server, before, -1)
        self._hold(fact.server, fact.bookings, +1)
        self._use(fact.model, minus(held(after), counted), minus(stays(after), stayed))

    def _on_claimed(self, fact: f.ReplicasPreempted | f.ServerReserved) -> None:
        self._fold(fact)
        self.claims.setdefault(fact.server, []).append((fact.model, fact.generation))

    def _on_refused(self, fact: f.PlacementRefused) -> None:
        model = self._fold(fact)
        version = model.versions[fact.generation]
        if not at_cap(version):
            self.fresh.append((model.key, need_of(model, version)))

    def _use(self, model: str, amount: Amount, stay: Amount) -> None:
        for books, more in ((self.used, amount), (self.stayed, stay)):
            if more != NOTHING:
                tenant = tenant_of(model)
                books[tenant] = plus(books.get(tenant, NOTHING), more)

    @contextmanager
    def without(self, replica: Replica) -> Generator[None]:
        """Within it, things stand as if a replica were gone and its memory free."""
        known = replica.server in self.placed
        self.take_out(replica)
        try:
            yield
        finally:
            self.put_back(replica)
            if not known:
                del self.placed[replica.server]

    def take_out(self, replica: Replica) -> None:
        """Have things stand as if a replica were gone and its memory free, until it is put back."""
        self._reserve(replica.server, replica.bookings, -1)
        self._use(replica.model, minus(NOTHING, held(replica)), minus(NOTHING, stays(replica)))

    def put_back(self, replica: Replica) -> None:
        """Have things stand again as they do with a replica that was taken out."""
        self._reserve(replica.server, replica.bookings, +1)
        self._use(replica.model, held(replica), stays(replica))

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

    def _on_memory(self, fact: f.MemoryAwaited | f.MemoryReturned | f.MemoryLeaked) -> None:
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

    _TAKE: ClassVar[dict[type, Callable[[Any, Any], object]]] = {
        **dict.fromkeys(MODEL_FOLDS, _fold),
        f.ModelRemoved: _on_removed,
        f.ReplicaPlaced: _on_arrival,
        f.ReplicaAdopted: _on_arrival,
        f.ReplicaChanged: _on_changed,
        f.ReplicaBooked: _on_booked,
        f.ReplicasPreempted: _on_claimed,
        f.ServerReserved: _on_claimed,
        f.PlacementRefused: _on_refused,
        # Of a replica that is gone: nothing of its model changes.
        f.MemoryAwaited: _on_memory,
        f.MemoryReturned: _on_memory,
        f.MemoryLeaked: _on_memory,
    }
    """Kind of fact → what it does to a draft; the others are about nothing that a decision looks at again."""
