"""What is kept from one more replica: for tenants below their floor, and for models that others leave, or overtook.

A server stands for its memory, and servers of a host share it: what is kept on one is kept on all.
"""

from collections.abc import Mapping
from math import inf

from magnetar_common.quotas import TENANT_FLOOR
from magnetar_common.state import Model, Server, State, Version
from magnetar_common.transitions import ON_ITS_WAY, R
from magnetar_events.models import ModelSpec
from magnetar_scheduler.draft import Draft
from magnetar_scheduler.floors import Place, kept_for_others

CLAIMED, RESERVED = "claimed", "reserved"
"""Rules that keep a server for a model that others leave it for, and for one that was overtaken there."""

Kept = Mapping[Place, str]
"""What is kept → the rule by which it is."""

NONE: Kept = {}


def kept_from(draft: Draft, model: Model, version: Version) -> Kept:
    """Return what is kept from one more replica of a version; of who is below its own floor nothing is."""
    state = draft.state
    claims = [*state.quotas.claims.items(), *draft.claims.items()] if state.quotas.claims or draft.claims else []
    if not (claims or state.tenants) or draft.is_short(version.spec.tenant):
        return NONE
    kept: dict[Place, str] = dict.fromkeys(kept_for_others(draft), TENANT_FLOOR) if state.tenants else {}
    for server, each in claims:
        for key, generation in each:
            claimant = draft.seen(key)
            claim = claimant.versions.get(generation) if claimant is not None and not claimant.deleted else None
            if claim is None or claim.claim != server or (key, generation) == (model.key, version.generation):
                continue
            if rule := _against(draft, version, claim):
                place = (server, claim.spec.devices > 0)
                kept[place] = CLAIMED if CLAIMED in (rule, kept.get(place)) else rule
    for (server, on_devices), rule in list(kept.items()):
        for neighbour in state.fleet.neighbours(state, state.servers[server]) if server in state.servers else ():
            kept.setdefault((neighbour.key, on_devices), rule)
    return kept


def rule_of(kept: Kept, server: Server, spec: ModelSpec) -> str:
    """Return the rule by which a server is kept from a replica, or an empty string: its memory, or a limit for all of it."""
    on_devices, info = spec.devices > 0, server.info
    rule = kept.get((server.key, on_devices), "")
    if not rule and (info.max_models > 0 or info.memory_bytes > 0):
        rule = kept.get((server.key, not on_devices), "")
    return rule


def but_for_replacements(kept: Kept) -> Kept:
    """Return what is kept even from what is nothing more than its tenant had: what others leave for a model."""
    return {place: rule for place, rule in kept.items() if rule == CLAIMED}


def replaces(state: State, model: Model, version: Version) -> bool:
    """Whether one more replica is nothing more than its tenant had: it replaces one that is lost or drains.

    Each is replaced once. What is on its way counts for one of them, and so does what came since.
    """
    lost, drains, gone = (inf, inf), inf, 0
    for replica in model.of(version.generation):
        if replica.state is R.LOST:
            gone, lost = gone + 1, min(lost, (replica.since, replica.position))
        elif replica.draining:
            order = state.cordons.get(replica.server)
            gone, drains = gone + 1, min(drains, order.position if order is not None else inf)
    came = sum(
        replica.state in ON_ITS_WAY or replica.position > drains or (replica.since, replica.position) > lost
        for replica in model.of(version.generation)
        if replica.live
    )
    return gone > came


def _against(draft: Draft, version: Version, claim: Version) -> str:
    """Return the rule by which a claim keeps its server from a version, or an empty string."""
    asks, has = version.spec, claim.spec
    if claim.refused is None or draft.at >= claim.claimed_until:
        return ""
    if not claim.reserved:
        return CLAIMED
    passes = asks.priority > has.priority and (asks.tenant == has.tenant or draft.policy.preemption != "never")
    return "" if passes or not draft.policy.reserve_after_ms else RESERVED
