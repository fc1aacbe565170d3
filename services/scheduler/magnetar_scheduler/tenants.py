"""Tenants: the cap that a placement must not pass, and whose turn it is.

The books (:mod:`magnetar_common.quotas`) say at once what a tenant has. A cap counts every replica that is there, those
of an old version while the new one loads, too: nothing passes it but what is found on servers, and what was there when
the cap was lowered.
"""

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from math import inf

from magnetar_common.amounts import amount
from magnetar_common.quotas import Amount, cost, minus, plus, tenant_of, times
from magnetar_common.state import Model, Version
from magnetar_events import facts as f
from magnetar_events.models import ModelSpec
from magnetar_events.requests import DeleteTenant, SetTenant
from magnetar_events.tenants import Tenant
from magnetar_scheduler.draft import Draft
from magnetar_scheduler.refusal import Refusal

# --- the cap ----------------------------------------------------------------------------------------------------------


def over_cap(draft: Draft, model: Model, version: Version) -> str:
    """Return why one more replica of a version would pass its tenant's cap, or an empty string. Before any server."""
    tenant = draft.state.tenants.get(tenant_of(model.key))
    if tenant is None:
        return ""
    told = _passed(tenant, draft.use(tenant.name), cost(version.spec, version.size))
    if told and any(replica.generation != version.generation for replica in model.replicas.values()):
        told += "; replicas of its other versions count until they have left"
    return told


def _passed(tenant: Tenant, used: Amount, wanted: Amount) -> str:
    total = plus(used, wanted)
    if 0 < tenant.cap_replicas < total.replicas:
        return (
            f"tenant {tenant.name} is at its cap: {used.replicas} of capReplicas {tenant.cap_replicas} are used, and "
            f"{wanted.replicas} more wanted"
        )
    if 0 < tenant.cap_bytes < total.bytes:
        return (
            f"tenant {tenant.name} is at its cap: {amount(used.bytes)} of capBytes {amount(tenant.cap_bytes)} are used, "
            f"and {amount(wanted.bytes)} more wanted"
        )
    return ""


def check_wish(draft: Draft, model: str, spec: ModelSpec, replicas: int, size: int = 0) -> None:
    """Refuse a wish after which a tenant's models want more than its cap, if that is what it says of such wishes.

    What is wanted of the others counts, whether or not it has a place: so that two wishes that fit singly and not
    together are not both taken. A wish for no more than before always passes.

    Args:
        draft: so far.
        model: key.
        spec: what is wanted of it.
        replicas: so many.
        size: bytes per device that it is known to need, if that is more than the specification says.

    Raises:
        Refusal: see above.
    """
    tenant = draft.state.tenants.get(tenant_of(model))
    if tenant is None or tenant.over_cap != "refuse":
        return
    books = draft.state.quotas
    before, wish = books.wish(model), times(cost(spec, max(size, spec.memory)), replicas)
    others, more = minus(books.wants(tenant.name), before), minus(wish, before)
    for cap, there, wanted, added, what, shown in (
        (tenant.cap_replicas, others.replicas, wish.replicas, more.replicas, "capReplicas", str),
        (tenant.cap_bytes, others.bytes, wish.bytes, more.bytes, "capBytes", amount),
    ):
        if cap and added > 0 and there + wanted > cap:
            message = (
                f"tenant {tenant.name} would be over its cap: its other models want {shown(there)} of {what} {shown(cap)}, "
                f"and {shown(wanted)} is wanted of {model}"
            )
            raise Refusal("TENANT_QUOTA", "event", message)


# --- whose turn it is -------------------------------------------------------------------------------------------------

Turn = tuple[bool, int, int, float, int, str]


def turn_of(draft: Draft, key: str) -> Turn:
    """Return by what models that wait for room are sorted, the first first.

    Who is below its floor goes before who is not, for that is what a floor is for; then the tenant of which the most of
    its cap is left, so that the one that has had least of what it may have goes on; then the higher priority, which
    decides within a tenant and among those that have had equally much; then the higher load, which is what each replica
    has to bear of all that are wanted: who has none at all comes before who wants one more; then the older wish;
    then the name. Who needs more than becomes free at a time is seen to in :mod:`magnetar_scheduler.reservations`.
    """
    tenant = tenant_of(key)
    return (not draft.is_short(tenant), -draft.left(tenant), *_among_its_own(draft, key))


def _among_its_own(draft: Draft, key: str) -> tuple[int, float, int, str]:
    model = draft.seen(key) or draft.state.models[key]
    target = model.target
    live = sum(replica.live for replica in model.of(model.generation))
    return (-target.spec.priority, -(target.wanted / live if live else inf), target.position, key)


def in_turn(draft: Draft, keys: Iterable[str], is_done: Callable[[str], bool]) -> Iterator[str]:
    """Yield models in the order in which they may place one more replica; the next depends on what was placed.

    Args:
        draft: takes what is decided meanwhile.
        keys: of models in the state.
        is_done: whether a model that was yielded has had all that it can have; otherwise its turn comes again.
    """
    queues: dict[str, list[tuple[int, float, int, str]]] = {}
    for key in keys:
        queues.setdefault(tenant_of(key), []).append(_among_its_own(draft, key))
    for queue in queues.values():
        heapify(queue)
    heads = [(turn_of(draft, queue[0][-1]), tenant) for tenant, queue in queues.items()]
    heapify(heads)
    while heads:
        (*_, key), tenant = heappop(heads)
        yield key
        queue = queues[tenant]
        heappop(queue)
        if not is_done(key):
            heappush(queue, _among_its_own(draft, key))
        if queue:
            heappush(heads, (turn_of(draft, queue[0][-1]), tenant))


# --- requests ---------------------------------------------------------------------------------------------------------


def set_tenant(draft: Draft, wish: SetTenant) -> f.TenantSet | None:
    """Return what follows from the request; None = it is so already.

    Raises:
        Refusal: there are too many.
    """
    tenants, tenant = draft.state.tenants, wish.tenant
    if tenants.get(tenant.name) == tenant:
        return None
    if tenant.name not in tenants and len(tenants) >= draft.policy.max_models:
        limit = f"there are {len(tenants)} tenants, and the policy's maxModels, which holds for them too, is as many"
        raise Refusal("TOO_MANY_TENANTS", "event.tenant.name", limit)
    return f.TenantSet(tenant, *draft.use(tenant.name))


def remove_tenant(draft: Draft, wish: DeleteTenant) -> f.TenantRemoved:
    """Return what follows from the request.

    Raises:
        Refusal: there is none.
    """
    if wish.name not in draft.state.tenants:
        raise Refusal("NOT_FOUND", "event.name", f"tenant {wish.name} has neither floor nor cap")
    return f.TenantRemoved(wish.name)
