"""Preemption: where the policy allows, replicas of lower priority leave for one that fits nowhere.

Who leaves is the same whenever the state is the same: on the server where the least important have to go, the fewest of
them, and of those the newest; on it, least priority first, then the newest. They leave in order: out of the routes, a
grace, out of memory. Until then the one that they leave for waits, and its server is kept for it.

Nobody is taken below a floor, nor a model below its ``minReplicas``. A model that had to leave comes back when there is
room, and has nobody leave for it until it is whole again: so no two can push each other out in turn.
"""

from contextlib import ExitStack

from magnetar_common.model_folds import PREEMPTED
from magnetar_common.quotas import Need, below_floor, held, minus, tenant_of
from magnetar_common.state import Model, Replica, ReplicaKey, Server, Version
from magnetar_common.transitions import LEAVING, R
from magnetar_events import facts as f
from magnetar_scheduler.draft import Draft
from magnetar_scheduler.leaving import let_go
from magnetar_scheduler.placement import Refused, rule_against
from magnetar_scheduler.tenants import kept_from

ROOM = frozenset({"max-models", "memory-limit", "memory"})
"""Rules that turn a server down for what is on it: it may be worth it that others leave."""

READINGS = 3
"""A server is kept until it is cleared, and so many leases longer: until its readings show it."""

_Choice = tuple[int, int, int, str]


def waits_for_leavers(draft: Draft, version: Version) -> bool:
    """Whether others leave a server for this version, which is still worth waiting for."""
    server = draft.server(version.claim) if version.claim else None
    return server is not None and not server.lost and draft.at < version.claimed_until


def give_up(draft: Draft, key: str, generation: int) -> None:
    """Keep a server no longer: those who were to leave it have not, or its readings do not show it."""
    model = draft.model(key)
    version = model.versions.get(generation) if model is not None else None
    if version is None or not version.claim or version.claimed_until > draft.at:
        return
    before = version.refused
    if before is None:
        draft.emit(f.PlacementSettled(key, generation))
    else:
        message = f"{before.message}; {version.claim} was not cleared in time"
        draft.emit(f.PlacementRefused(key, generation, before.missing, message, before.refusals, before.examples))


def make_room(draft: Draft, model: Model, version: Version, refused: Refused) -> None:
    """Have others leave a server for a version that fits nowhere, if the policy allows it and it helps."""
    if draft.policy.preemption == "never" or version.preempted or draft.full:
        return
    if ROOM.isdisjoint(count.rule for count in refused.refusals) or _least(draft) >= version.spec.priority:
        return
    found: tuple[_Choice, Server, list[Replica]] | None = None
    needs = kept_from(draft, version)
    for key in sorted(draft.state.servers):
        server = draft.state.servers[key]
        if not server.schedulable or rule_against(draft, model, version, server, needs) not in ROOM:
            continue
        with ExitStack() as gone:
            gone.enter_context(draft.given_back(server))
            for replica in _leaving(draft, server):
                gone.enter_context(draft.without(replica))
            if not rule_against(draft, model, version, server, needs):
                return  # there will be room without anybody else
            victims = _victims(draft, model, version, server, needs)
        if victims:
            choice = _choice(draft, victims, key)
            if found is None or choice < found[0]:
                found = choice, server, victims
    if found is not None:
        _, server, victims = found
        _clear(draft, model, version, server, victims)


def _clear(draft: Draft, model: Model, version: Version, server: Server, victims: list[Replica]) -> None:
    policy, spec = draft.policy, version.spec
    due = draft.at + policy.unload_grace_ms + policy.unload_timeout_ms
    due += policy.memory_return_ms + READINGS * policy.lease_ms
    named = tuple(f.Victim(each.model, each.generation, _priority(draft, each)) for each in victims)
    draft.emit(f.ReplicasPreempted(model.key, version.generation, server.key, named, spec.priority, due))
    for each in victims:
        theirs = draft.model(each.model)
        assert theirs is not None
        reason = f"makes room for {model.key} v{version.generation} of priority {spec.priority}"
        let_go(draft, theirs.replicas[each.generation, each.server], reason, PREEMPTED)


def _victims(draft: Draft, model: Model, version: Version, server: Server, needs: frozenset[Need]) -> list[Replica]:
    """Return who would have to leave a server so that the version fits, as few as can be; empty = that does not help."""
    with ExitStack() as gone:
        chosen: list[Replica] = []
        for replica in _candidates(draft, version, server):
            if not _may_leave(draft, replica, chosen):
                continue
            gone.enter_context(draft.without(replica))
            chosen.append(replica)
            if not rule_against(draft, model, version, server, needs):
                break
        else:
            return []
    for replica in reversed(chosen[:-1]):  # whoever is not needed after all stays, the most important first
        others = [each for each in chosen if each is not replica]
        with ExitStack() as gone:
            for each in others:
                gone.enter_context(draft.without(each))
            if not rule_against(draft, model, version, server, needs):
                chosen = others
    return chosen


def _leaving(draft: Draft, server: Server) -> list[Replica]:
    """Return the replicas that are on their way out of a server."""
    found = (draft.replica(known.key) for known in server.replicas.values())
    return [each for each in found if each is not None and (each.state is R.UNROUTE_REQUESTED or each.state in LEAVING)]


def _candidates(draft: Draft, version: Version, server: Server) -> list[Replica]:
    """Return the replicas of lower priority on a server that are not on their way out, the first to go first."""
    found: list[tuple[int, int, ReplicaKey, Replica]] = []
    for known in server.replicas.values():
        replica = draft.replica(known.key)
        if replica is not None and replica.live:
            priority = _priority(draft, replica)
            if priority < version.spec.priority:
                found.append((priority, -replica.position, replica.key, replica))
    return [replica for *_, replica in sorted(found, key=lambda each: each[:3])]


def _may_leave(draft: Draft, replica: Replica, chosen: list[Replica]) -> bool:
    """Whether none of its tenant's floor, its model's ``minReplicas`` and a freeze keeps a replica where it is.

    Those chosen before it are taken away in the draft already.
    """
    tenant = tenant_of(replica.model)
    if below_floor(draft.state.tenants.get(tenant), minus(draft.use(tenant), held(replica))):
        return False
    model = draft.model(replica.model)
    version = model.versions.get(replica.generation) if model is not None else None
    if model is None or version is None or model.frozen:
        return False
    if not version.spec.min_replicas:
        return True
    leaving = sum(each.model == replica.model and each.generation == replica.generation for each in chosen)
    there = sum(each.live for each in model.of(replica.generation)) - leaving
    return there > version.spec.min_replicas


def _choice(draft: Draft, victims: list[Replica], key: str) -> _Choice:
    """Return by what servers are compared: the most important that has to go, how many go, the oldest of them, the name."""
    oldest = min(victim.position for victim in victims)
    return max(_priority(draft, victim) for victim in victims), len(victims), -oldest, key


def _priority(draft: Draft, replica: Replica) -> int:
    model = draft.state.models.get(replica.model) or draft.model(replica.model)
    version = model.versions.get(replica.generation) if model is not None else None
    return version.spec.priority if version is not None else 0


def _least(draft: Draft) -> int:
    """Return the lowest priority that anything has that is there: mostly all have the same, and nobody need be looked at."""
    if draft.least is None:
        models = draft.state.models.values()
        priorities = (
            version.spec.priority for model in models if model.replicas for version in model.versions.values()
        )
        draft.least = min(priorities, default=0)
    return draft.least
