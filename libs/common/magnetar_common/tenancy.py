"""What to tell people about a tenant: its limits, what it has and wants, and what of its models waits for which reason."""

from dataclasses import dataclass

from magnetar_common.quotas import Amount, below_floor, tenant_of
from magnetar_common.state import State
from magnetar_common.status import model_status
from magnetar_events.tenants import Tenant


@dataclass(slots=True, frozen=True)
class Waiting:
    """A model of which something waits.

    Attributes:
        model: key.
        code: typed reason: ``TENANT_QUOTA``, ``TENANT_FLOOR`` or ``NO_ROOM``.
        reason: for people.
    """

    model: str
    code: str
    reason: str


@dataclass(slots=True, frozen=True)
class TenantStatus:
    """How a tenant is.

    Attributes:
        tenant: name.
        limits: its floor and cap; None = it has neither.
        used: what it has.
        wanted: what its models want together.
        over: what it has above its cap: from when that was lowered, or found on servers.
        below_floor: whether it has less than its floor.
        waiting: what of it waits, by model.
    """

    tenant: str
    limits: Tenant | None
    used: Amount
    wanted: Amount
    over: Amount
    below_floor: bool
    waiting: tuple[Waiting, ...]


def tenant_status(state: State, name: str) -> TenantStatus:
    """Return how a tenant is; one that nobody has named has nothing and no limits."""
    limits, used = state.tenants.get(name), state.quotas.use(name)
    caps = (limits.cap_replicas, limits.cap_bytes) if limits is not None else (0, 0)
    over = Amount(*(max(0, there - cap) if cap else 0 for there, cap in zip(used, caps, strict=True)))
    waiting: list[Waiting] = []
    for key in sorted(key for key in state.waiting if tenant_of(key) == name):
        status = model_status(state.models[key])
        waiting.append(Waiting(key, status.code, status.reason))
    return TenantStatus(name, limits, used, state.quotas.wants(name), over, below_floor(limits, used), tuple(waiting))


def tenant_statuses(state: State) -> list[TenantStatus]:
    """Return how every tenant is that has limits or models, by name."""
    names = {*state.tenants, *state.quotas.used, *state.quotas.wanted, *map(tenant_of, state.models)}
    return [tenant_status(state, name) for name in sorted(names)]
