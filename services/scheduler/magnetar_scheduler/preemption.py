"""Preemption: where the policy allows, replicas of lower priority leave for one that fits nowhere.

Who leaves is the same whenever the state is the same: on the server where the least important have to go, the fewest of
them, and of those the newest; on it, least priority first, then the newest. They leave in order: out of the routes, a
grace, out of memory. Until then the one that they leave for waits, and its server is kept for it.

Nobody is taken below a floor, nor a model below its ``minReplicas``, and no model has its own replicas leave. A model
that had to leave comes back when there is room, and has nobody leave for it until it is whole again: so no two can push
each other out in turn.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace

from magnetar_common.fleet import memory_limit, suited_devices
from magnetar_common.model_folds import PREEMPTED
from magnetar_common.quotas import NOTHING, Amount, below_floor, minus, plus, stays, tenant_of
from magnetar_common.state import Model, Replica, ReplicaKey, Server, Version
from magnetar_common.transitions import LEAVING, R
from magnetar_events import facts as f
from magnetar_scheduler.draft import Draft
from magnetar_scheduler.leaving import let_go
from magnetar_scheduler.placement import Refused
from magnetar_scheduler.placement.ask import Ask
from magnetar_scheduler.placement.filters import Sieve
from magnetar_scheduler.placement.filters.alive import STALE
from magnetar_scheduler.placement.site import Site

ROOM = frozenset({"max-models", "memory-limit", "memory"})
"""Rules that turn a server down for what is on it: it may be worth it that others leave."""

READINGS = 3
"""A server is kept until it is cleared, and so many leases longer: until its readings show it."""

_Choice = tuple[int, int, int, str]


def waits_for_leavers(draft: Draft, version: Version) -> bool:
    """Whether others leave a server for this version, which is still worth waiting for."""
    server = draft.server(version.claim) if version.claim and not version.reserved else None
    return server is not None and not server.lost and draft.at < version.claimed_until


def give_up(draft: Draft, model: Model, version: Version) -> None:
    """Keep a server no longer: those who were to leave it have not, or its readings do not show it."""
    before = version.refused
    if before is None:
        draft.emit(f.PlacementSettled(model.key, version.generation))
    else:
        draft.emit(replace(before, message=f"{before.message}; {version.claim} was not cleared in time"))


def make_room(draft: Draft, model: Model, version: Version, refused: Refused) -> None:
    """Have others leave a server for a version that fits nowhere, if the policy allows it and it helps."""
    if draft.policy.preemption == "never" or version.preempted or draft.full:
        return
    rules = {count.rule for count in refused.refusals}
    if STALE in rules or ROOM.isdisjoint(rules) or _least(draft) >= version.spec.priority:
        return  # where a reading is old there may be room: it is heard again, or lost, before long
    found: tuple[_Choice, Server, list[Replica]] | None = None
    search = _Search(draft, model, version)
    for key in sorted(draft.state.servers):
        server = draft.state.servers[key]
        if found is not None and draft.full:
            break  # the best of those looked at
        if not server.schedulable or search.rule(server) not in ROOM:
            continue
        with _trial(draft, server) as out:
            leaving, candidates = search.who(server)
            for replica in leaving:
                out.append(replica)
                draft.take_out(replica)
            if (leaving or server.awaited or key in draft.awaited) and not search.rule(server):
                return  # there will be room without anybody else
            if not candidates or (found is not None and _least_choice(candidates, key) >= found[0]):
                continue
            victims = search.victims(server, candidates, out)
        if victims:
            choice = _choice(draft, victims, key)
            if found is None or choice < found[0]:
                found = choice, server, victims
    if found is not None:
        _, server, victims = found
        _clear(draft, model, version, server, victims)


@contextmanager
def _trial(draft: Draft, server: Server) -> Generator[list[Replica]]:
    """Within it, a server has back what it is still to get, and whoever is taken out of it is put back at the end.

    Yields:
        Those that are taken out.
    """
    known, out = server.key in draft.placed, list[Replica]()
    with draft.given_back(server):
        try:
            yield out
        finally:
            for replica in out:
                draft.put_back(replica)
            if out and not known:
                del draft.placed[server.key]


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


_Candidate = tuple[int, int, ReplicaKey, Replica]
"""(priority, how old it is, key, itself): in this order they go."""


class _Search:
    """Looks for who would have to leave for one more replica of a version, at a cost in proportion to who is looked at.

    Args:
        draft: so far.
        model: of which one more replica is to be placed.
        version: of it.
    """

    def __init__(self, draft: Draft, model: Model, version: Version) -> None:
        self._draft = draft
        self._model = model.key
        self._priority = version.spec.priority
        self._ask = Ask(draft, model, version)
        self._ask.apart = self._ask.apart and draft.policy.anti_affinity != "soft"
        self._sieve = Sieve(self._ask)
        self._live: dict[tuple[str, int], int] = {}
        self._surplus: dict[str, Amount] | None = None

    def rule(self, server: Server) -> str:
        """Return the rule by which a schedulable server is turned down as things stand, or an empty string.

        What turns every server down is no matter of who leaves, and was asked when the placement was refused.
        """
        self._draft.looked += 1
        kind = self._draft.state.fleet.pool_of(server).kind
        return self._sieve.against_class(kind) or self._sieve.against_site(Site(self._ask, server))

    def who(self, server: Server) -> tuple[list[Replica], list[_Candidate]]:
        """Return the replicas that are on their way out of a server, and those of lower priority, the first to go first.

        There are none of the latter if the server is too small whoever leaves. Nor is a replica of the model itself one
        of them: how its versions take each other's place is for the rollout to say.
        """
        draft, leaving, found = self._draft, list[Replica](), list[_Candidate]()
        small = not could_do(self._ask, server)
        draft.looked += len(server.replicas)
        for known in server.replicas.values():
            replica = draft.replica(known.key)
            if replica is None:
                continue
            if replica.state is R.UNROUTE_REQUESTED or replica.state in LEAVING:
                leaving.append(replica)
            elif not small and replica.live and replica.model != self._model:
                priority = _priority(draft, replica)
                if priority < self._priority:
                    found.append((priority, -replica.position, replica.key, replica))
        return leaving, sorted(found, key=lambda each: each[:3])

    def victims(self, server: Server, candidates: list[_Candidate], out: list[Replica]) -> list[Replica]:
        """Return who would have to leave a server so that the version fits, as few as can be; empty = that does not help.

        All that may go are taken out; then, the most important first, everybody is put back without whom it fits not less.

        Args:
            server: where those on their way out are taken out already.
            candidates: from :meth:`who`.
            out: takes those that are taken out.
        """
        draft, begin = self._draft, len(out)
        for *_, replica in candidates:
            if self._may_leave(replica):
                draft.take_out(replica)
                out.append(replica)
        if len(out) == begin or self.rule(server):
            return []
        for at in range(len(out) - 1, begin - 1, -1):
            draft.put_back(out[at])
            if self.rule(server):
                draft.take_out(out[at])
            else:
                del out[at]
        return out[begin:]

    def _may_leave(self, replica: Replica) -> bool:
        """Whether none of its tenant's floor, its model's ``minReplicas`` and a freeze keeps a replica where it is.

        Those that go before it are taken out already. What is on its way out anyway holds no floor.
        """
        draft, tenant = self._draft, tenant_of(replica.model)
        floor = draft.state.tenants.get(tenant)
        if floor is not None and (floor.floor_replicas or floor.floor_bytes):
            if self._surplus is None:
                self._surplus = _surplus(draft)
            there = minus(draft.stays(tenant), self._surplus.get(tenant, NOTHING))
            if below_floor(floor, minus(there, stays(replica))):
                return False
        model = draft.seen(replica.model)
        version = model.versions.get(replica.generation) if model is not None else None
        if model is None or version is None or model.frozen:
            return False
        return not version.spec.min_replicas or self._there(model, replica.generation) > version.spec.min_replicas

    def _there(self, model: Model, generation: int) -> int:
        """Return how many replicas of a version stay; none of them is taken out, for a server has at most one."""
        key = model.key, generation
        if key not in self._live:
            self._live[key] = sum(each.live for each in model.of(generation))
        return self._live[key]


def _surplus(draft: Draft) -> dict[str, Amount]:
    """Return what each tenant has only until a version has taken another's place: it holds no floor either."""
    found: dict[str, Amount] = {}
    for key in draft.state.models:
        model = draft.seen(key)
        if model is None or len(model.versions) < 2:
            continue
        kept, target = model.kept(), model.generation
        live = sorted(
            filter(_is_live, model.replicas.values()),
            key=lambda each: (each.generation in kept, each.generation == target, each.server),
        )
        gone = sum(each.generation not in kept for each in live)  # let go of as soon as this is decided
        wanted = max((model.versions[generation].wanted for generation in kept), default=0)
        for replica in live[: max(gone, len(live) - wanted)]:
            tenant = tenant_of(key)
            found[tenant] = plus(found.get(tenant, NOTHING), stays(replica))
    return found


def _is_live(replica: Replica) -> bool:
    return replica.live


def could_do(ask: Ask, server: Server) -> bool:
    """Whether enough of a server's devices are large enough, and its limit of memory is, were nothing there."""
    whole = 100 + server.info.over_commit_percent
    if 0 < memory_limit(server.info) < ask.count * ask.size:
        return False
    suited = suited_devices(server, ask.spec.devices, ask.spec.gpu_types)
    return sum(device.total * whole // 100 >= ask.size for device in suited) >= ask.count


def _least_choice(candidates: list[_Candidate], key: str) -> _Choice:
    """Return what no choice of victims on a server comes before: one victim, the least important, the newest."""
    return candidates[0][0], 1, min(each[1] for each in candidates), key


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
