"""The books of the tenants: what each has, what it wants, and what those of its models need that have no place.

Derived from the models, and kept in step by ``evolve``, so that a decision asks and does not count. A replica counts from
when it is placed or adopted until it is known to be gone; while it is lost it counts for nothing, so that another can
take its place, and when it comes back it counts again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from magnetar_common.transitions import R

if TYPE_CHECKING:
    from magnetar_common.state import Model, Replica, State, Version
    from magnetar_events.facts import Booking, PlacementRefused
    from magnetar_events.models import ModelSpec
    from magnetar_events.tenants import Tenant

TENANT_QUOTA = "tenant-quota"
"""Rule that refuses a placement, whatever the servers: the tenant is at its cap."""

TENANT_FLOOR = "tenant-floor"
"""Rule that keeps a server for a tenant that waits below its floor."""

AT_CAP = "TENANT_QUOTA"
"""Code of what waits because of its own tenant's cap."""


class Amount(NamedTuple):
    """Of what floors and caps are: replicas, and bytes of device memory."""

    replicas: int
    bytes: int


class Need(NamedTuple):
    """What a replica needs that has no place yet: which servers could be the one, were they empty."""

    server: str
    runtime: str
    requirements: tuple[str, ...]
    devices: int
    gpu_types: tuple[str, ...]
    memory: int
    without: frozenset[str]
    """Servers that hold the version already, or where it failed."""
    missing: int
    """So many replicas have no place."""
    priority: int
    position: int
    """Of the entry that took the wish up."""


NOTHING = Amount(0, 0)


class _Noted(NamedTuple):
    wanted: Amount
    needs: tuple[Need, ...]
    claims: tuple[tuple[str, int], ...]


_NOT_NOTED = _Noted(NOTHING, (), ())


@dataclass(slots=True)
class Quotas:
    """The books.

    Attributes:
        used: tenant → what it has; one that has nothing is not there.
        staying: tenant → what of that is to stay: neither on its way out nor on a server that drains.
        wanted: tenant → what its models want together.
        needs: tenant → model → what it needs that has no place.
        claims: server → (model, version) that replicas of lower priority leave it for, or that it is reserved for.
    """

    used: dict[str, Amount] = field(default_factory=dict[str, Amount])
    staying: dict[str, Amount] = field(default_factory=dict[str, Amount])
    wanted: dict[str, Amount] = field(default_factory=dict[str, Amount])
    needs: dict[str, dict[str, tuple[Need, ...]]] = field(default_factory=dict[str, "dict[str, tuple[Need, ...]]"])
    claims: dict[str, dict[tuple[str, int], None]] = field(default_factory=dict[str, dict[tuple[str, int], None]])
    _noted: dict[str, _Noted] = field(default_factory=dict[str, _Noted])

    def use(self, tenant: str) -> Amount:
        """Return what a tenant has."""
        return self.used.get(tenant, NOTHING)

    def stays(self, tenant: str) -> Amount:
        """Return what a tenant has that is to stay."""
        return self.staying.get(tenant, NOTHING)

    def wants(self, tenant: str) -> Amount:
        """Return what a tenant's models want together: of each, the wanted version."""
        return self.wanted.get(tenant, NOTHING)

    def wish(self, model: str) -> Amount:
        """Return what is wanted of a model."""
        return self._noted.get(model, _NOT_NOTED).wanted

    def note(self, key: str, model: Model | None, *, pending: bool) -> bool:
        """Take note of a model that is another than it was.

        Args:
            key: the model's.
            model: as it is now; None = gone.
            pending: whether something of it may have no place.

        Returns:
            Whether it no longer needs what it needed.
        """
        before = self._noted.get(key, _NOT_NOTED)
        wanted = NOTHING if model is None else _wanted_of(model)
        if not pending and wanted == before.wanted and not (before.needs or before.claims):
            return False  # most of what happens to a model
        now = _NOT_NOTED if model is None else _note_of(model, wanted, pending=pending)
        if now == before:
            return False
        if now == _NOT_NOTED:
            del self._noted[key]
        else:
            self._noted[key] = now
        tenant = tenant_of(key)
        if now.wanted != before.wanted:
            _add(self.wanted, tenant, minus(now.wanted, before.wanted))
        if now.needs:
            self.needs.setdefault(tenant, {})[key] = now.needs
        elif before.needs:
            del self.needs[tenant][key]
            if not self.needs[tenant]:
                del self.needs[tenant]
        for server, generation in before.claims:
            del self.claims[server][key, generation]
            if not self.claims[server]:
                del self.claims[server]
        for server, generation in now.claims:
            self.claims.setdefault(server, {})[key, generation] = None
        return bool(before.needs or before.claims) and (now.needs, now.claims) != (before.needs, before.claims)


def tenant_of(model: str) -> str:
    """Return the tenant of a model, by its key."""
    return model.partition("/")[0]


def cost(spec: ModelSpec, size: int) -> Amount:
    """Return what one more replica takes that is known to need so many bytes per device."""
    return Amount(1, max(1, spec.devices) * size)


def times(one: Amount, count: int) -> Amount:
    """Return so many times an amount."""
    return Amount(one.replicas * count, one.bytes * count)


def plus(one: Amount, other: Amount) -> Amount:
    """Return two amounts together."""
    return Amount(one.replicas + other.replicas, one.bytes + other.bytes)


def minus(one: Amount, other: Amount) -> Amount:
    """Return what is left of one without the other."""
    return Amount(one.replicas - other.replicas, one.bytes - other.bytes)


def held(replica: Replica | None) -> Amount:
    """Return what a replica counts for; nothing if it is lost, or None."""
    return NOTHING if replica is None or replica.state is R.LOST else taken(replica.bookings)


def stays(replica: Replica | None) -> Amount:
    """Return what a replica counts for that is to stay; nothing if it is lost, on its way out, or its server drains."""
    return taken(replica.bookings) if replica is not None and replica.live else NOTHING


def taken(bookings: tuple[Booking, ...]) -> Amount:
    """Return what a replica with these bookings counts for."""
    return Amount(1, bookings[0].bytes if len(bookings) == 1 else sum(booking.bytes for booking in bookings))


def below_floor(tenant: Tenant | None, used: Amount) -> bool:
    """Whether a tenant has less than its floor: fewer replicas, or fewer bytes."""
    return tenant is not None and (used.replicas < tenant.floor_replicas or used.bytes < tenant.floor_bytes)


def lacking(tenant: Tenant, used: Amount) -> Amount:
    """Return what a tenant lacks of its floor; nothing if it has that."""
    return Amount(max(0, tenant.floor_replicas - used.replicas), max(0, tenant.floor_bytes - used.bytes))


def left(tenant: Tenant | None, used: Amount) -> int:
    """Return how much of its cap is left to a tenant, in thousandths, of that cap of which the least is.

    A tenant without a cap was promised nothing: 0 is left.
    """
    if tenant is None:
        return 0
    caps = ((tenant.cap_replicas, used.replicas), (tenant.cap_bytes, used.bytes))
    return max(0, min(((cap - taken) * 1000 // cap for cap, taken in caps if cap), default=0))


def count(state: State, model: str, before: Amount, now: Amount) -> None:
    """Enter a replica that counts for another amount than it did; something may fit after that which did not."""
    if now == before:
        return
    name = tenant_of(model)
    used, tenant = state.quotas.use(name), state.tenants.get(name)
    _add(state.quotas.used, name, minus(now, before))
    if tenant is not None and (now < before or below_floor(tenant, used) > below_floor(tenant, state.quotas.use(name))):
        state.room += 1


def count_staying(state: State, model: str, before: Amount, now: Amount) -> None:
    """Enter a replica of which another amount is to stay than was."""
    if now != before:
        _add(state.quotas.staying, tenant_of(model), minus(now, before))


def _add(books: dict[str, Amount], tenant: str, amount: Amount) -> None:
    total = plus(books.get(tenant, NOTHING), amount)
    if total == NOTHING:
        books.pop(tenant, None)
    else:
        books[tenant] = total


def _wanted_of(model: Model) -> Amount:
    target = model.versions.get(model.generation)
    if target is None or model.deleted or not target.wanted:
        return NOTHING
    return Amount(target.wanted, target.wanted * (target.spec.devices or 1) * target.size)


def _note_of(model: Model, wanted: Amount, *, pending: bool) -> _Noted:
    if not pending or model.deleted:
        return _Noted(wanted, (), ()) if wanted != NOTHING else _NOT_NOTED
    waiting = [model.versions[generation] for generation in model.kept() if model.missing(generation)]
    needs = tuple(need_of(model, version) for version in waiting if not at_cap(version))
    kept = (model.versions[generation] for generation in model.kept())
    claims = tuple(
        (version.claim, version.generation) for version in kept if version.claim and version.refused is not None
    )
    return _Noted(wanted, needs, claims)


def at_cap(version: Version) -> bool:
    """Whether a version waits because of its own tenant's cap."""
    return version.refused is not None and code_of(version.refused) == AT_CAP


def code_of(refused: PlacementRefused) -> str:
    """Return why something waits, as a code: for its tenant's cap, for another tenant's floor, or for room."""
    rules = {count.rule for count in refused.refusals}
    return AT_CAP if TENANT_QUOTA in rules else "TENANT_FLOOR" if TENANT_FLOOR in rules else "NO_ROOM"


def need_of(model: Model, version: Version) -> Need:
    """Return what the missing replicas of a version need, each."""
    spec, missing = version.spec, model.missing(version.generation)
    without = frozenset((*version.places, *(replica.server for replica in model.of(version.generation))))
    return Need(
        spec.server,
        spec.runtime.kind,
        spec.requirements,
        spec.devices,
        spec.gpu_types,
        version.size,
        without,
        missing,
        spec.priority,
        version.position,
    )


def once(need: Need) -> Amount:
    """Return what one replica that a need is for takes."""
    return Amount(1, max(1, need.devices) * need.memory)
