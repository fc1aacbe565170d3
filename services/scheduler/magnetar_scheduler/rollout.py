"""How a new version takes the place of an old one.

Where there is room, all of its replicas come up beside the old ones, and the traffic changes over once every one of
them is loaded. Where room is short it goes in steps: an old replica leaves whose place a new one can have, as long as no
more than the policy's ``rolloutUnavailable`` of the wanted number are missing; both versions get traffic meanwhile, each
as much as it has replicas. A version that fails stops there: the old one returns to its full number and goes on.

Steps came with fold version 2. In an older log a version waits until all of it fits beside the old one.
"""

from collections.abc import Iterable

from magnetar_common.quotas import TENANT_QUOTA
from magnetar_common.state import Model, Replica, Version
from magnetar_common.transitions import LEAVING, ON_ITS_WAY, R
from magnetar_events import facts as f
from magnetar_scheduler.draft import Draft
from magnetar_scheduler.leaving import let_go, order_of_leaving
from magnetar_scheduler.placement import Placed, place, rule_against
from magnetar_scheduler.placement.filters.loads import LOADS

STEPS = 2
"""Fold version since which a log can say that an old version is kept at fewer replicas."""

_READY = (R.LOADED, R.AVAILABLE)
_ON_THE_WAY_OUT = (R.UNROUTE_REQUESTED, R.UNLOAD_FAILED, *LEAVING)


def supersede(draft: Draft, model: Model) -> None:
    """Prepare for another wanted version: one that is half rolled out keeps what it has, for it serves with the others."""
    routed = model.routed()
    if draft.state.version < STEPS or model.deleted or len(routed) < 2 or model.generation not in routed:
        return
    target = model.target
    held = sum(map(_is_there, model.of(model.generation)))
    if held < target.wanted:
        reason = "superseded in the middle of its rollout"
        draft.emit(f.VersionKept(model.key, model.generation, held, 0, reason))


def restore(draft: Draft, model: Model) -> None:
    """Bring old versions back to their full number when the one that was to replace them has failed."""
    if model.target.failed is None:
        return
    there = _ready(model, model.generation) if model.generation in model.routed() else 0
    for generation in _old(model):
        version = model.versions[generation]
        if version.full:
            full = version.full
            replicas = max(version.wanted, full - there)
            if replicas != version.wanted:
                reason = f"version {model.generation} failed"
                left = full if replicas < full else 0
                draft.emit(f.VersionKept(model.key, generation, replicas, left, reason))


def resize(draft: Draft, model: Model) -> None:
    """After another number is wanted: what serves until the wanted version can has as many replicas, too."""
    if draft.state.version < STEPS:
        return
    left = full = model.target.wanted
    old = _old(model)
    for generation in old:
        version = model.versions[generation]
        replicas = left if not version.full and len(old) == 1 else min(version.wanted, left)
        before = full if version.full and replicas < full else 0
        if (replicas, before) != (version.wanted, version.full):
            draft.emit(f.VersionKept(model.key, generation, replicas, before, "scaled with the wanted version"))
        left -= min(replicas, _available(model, generation))


def hand_over(draft: Draft, model: Model) -> None:
    """Put what is loaded into the route table, and hand the traffic over once the wanted version can take it.

    One that has failed takes none from another: what is loaded of it may be as bad as what was not.
    """
    routed = model.routed()
    if routed != frozenset({model.generation}):
        ready = _ready(model, model.generation)
        serving = any(_available(model, generation) for generation in routed if generation != model.generation)
        sound = model.target.failed is None or routed <= {model.generation}
        if sound and (ready >= model.wanted or (ready and not serving)):
            _take_over(draft, model, "the wanted version is ready")
        elif len(routed) > 1 or (ready and any(model.versions[generation].full for generation in _old(model))):
            _share(draft, model)
    promote(draft, model)


def _take_over(draft: Draft, model: Model, reason: str) -> None:
    draft.emit(f.TrafficChanged(model.key, (f.TrafficTarget(model.generation, 100),), reason))


def promote(draft: Draft, model: Model) -> None:
    """Put what is loaded of a version that gets traffic into the route table."""
    routed = model.routed()
    for replica in list(model.replicas.values()):
        if replica.state is R.LOADED and replica.generation in routed:
            draft.change(replica, R.AVAILABLE)


def step(draft: Draft, model: Model) -> None:
    """Let old replicas go whose places the wanted version can have, if it fits nowhere else: as many as may be missing."""
    target = model.target
    if draft.state.version < STEPS or target.refused is None or target.failed is not None:
        return
    old = [replica for generation in _old(model) for replica in model.of(generation)]
    leaving = sum(replica.state in _ON_THE_WAY_OUT for replica in old)
    awaited = target.refused.missing - leaving
    spare = _spare(draft, model)
    drains = {replica.generation for replica in old if _serves_still(replica)}
    capped = not leaving and any(count.rule == TENANT_QUOTA for count in target.refused.refusals)
    for replica in sorted(filter(_counts, old), key=order_of_leaving):
        serves = replica.state is R.AVAILABLE or replica.generation in drains
        if awaited <= 0 or (serves and spare <= 0):
            return
        if not _makes_room(draft, model, target, replica):
            if not capped:
                continue
            capped = False  # one after the other: they would all have the same place
            if not _makes_room_elsewhere(draft, model, target, replica):
                continue
        if _ready(model, target.generation) and target.generation not in model.routed():
            _share(draft, model)
            promote(draft, model)
        version = model.versions[replica.generation]
        kept = sum(map(_counts, model.of(replica.generation))) - 1
        reason = f"makes room for version {target.generation}"
        let_go(draft, replica, reason)
        full = version.full or version.wanted
        draft.emit(f.VersionKept(model.key, replica.generation, kept, full if kept < full else 0, reason))
        awaited, spare = awaited - 1, spare - serves
        if serves:
            _share(draft, model)


def settle_for_fewer(draft: Draft, model: Model) -> None:
    """Hand over to fewer than are wanted where no step helps, if enough serve without the old version."""
    target = model.target
    if draft.state.version < STEPS or target.refused is None or target.failed is not None:
        return
    serving = any(_available(model, generation) for generation in _old(model))
    passing = any(count.rule in LOADS for count in target.refused.refusals)
    moving = any(replica.state in (*ON_ITS_WAY, *_ON_THE_WAY_OUT) for replica in model.replicas.values())
    if serving and not passing and not moving and _ready(model, target.generation) >= max(1, _least(draft, model)):
        _take_over(draft, model, "no more of the wanted version fit, and it has as many as have to serve")
        promote(draft, model)


def waits_because(draft: Draft, model: Model, version: Version) -> str:
    """Return why a version that fits nowhere does not take the place of an old one, or an empty string."""
    if draft.state.version < STEPS or version.generation != model.generation:
        return ""
    serving = sorted({r.generation for g in _old(model) for r in model.of(g) if r.state is R.AVAILABLE})
    if not serving:
        return ""
    names = " and ".join(str(generation) for generation in serving)
    if _spare(draft, model) > 0:
        return f"; version {names} goes on serving"
    limit = draft.policy.rollout_unavailable
    return f"; version {names} goes on serving, and none of it leaves first: rolloutUnavailable is {limit}"


def _old(model: Model) -> list[int]:
    """Return the versions that serve until the wanted one can."""
    return [generation for generation in model.kept() if generation != model.generation]


def _counts(replica: Replica) -> bool:
    return replica.live


def _serves_still(replica: Replica) -> bool:
    """Whether it serves until another on its way can: it counts for nothing, and must not be left without that one."""
    return replica.draining and replica.state is R.AVAILABLE


def _is_there(replica: Replica) -> bool:
    return replica.live or _serves_still(replica)


def _ready(model: Model, generation: int) -> int:
    return sum(replica.state in _READY for replica in model.of(generation))


def _available(model: Model, generation: int) -> int:
    return sum(replica.state is R.AVAILABLE for replica in model.of(generation))


def _spare(draft: Draft, model: Model) -> int:
    """Return how many replicas that serve, or could at once, may leave: what leaves with its server counts as gone."""
    serving = (r for generation in _old(model) for r in model.of(generation) if r.state is R.AVAILABLE and r.live)
    ready = (r for r in model.of(model.generation) if r.state in _READY and r.live)
    return sum(1 for _ in serving) + sum(1 for _ in ready) - _least(draft, model)


def _least(draft: Draft, model: Model) -> int:
    """Return how many must go on serving: what the policy asks for, or what serves now where that is less anyway."""
    serving = sum(replica.state is R.AVAILABLE for replica in model.replicas.values())
    return min(serving, max(0, model.wanted - draft.policy.rollout_unavailable))


def _makes_room(draft: Draft, model: Model, target: Version, replica: Replica) -> bool:
    """Whether the wanted version can have a replica's place once that is gone."""
    with draft.without(replica):
        return not rule_against(draft, model, target, draft.state.servers[replica.server])


def _makes_room_elsewhere(draft: Draft, model: Model, target: Version, replica: Replica) -> bool:
    """Whether the wanted version can have any place once a replica is gone, for that makes room under its tenant's cap."""
    with draft.without(replica):
        return isinstance(place(draft, model, target), Placed)


def _share(draft: Draft, model: Model) -> None:
    """Give the wanted version and those that get traffic as much of it as they have replicas that can take it."""
    counts = {generation: _ready(model, generation) for generation in model.kept()}
    targets = tuple(f.TrafficTarget(generation, weight) for generation, weight in _weights(counts.items()))
    if targets and targets != model.traffic:
        draft.emit(f.TrafficChanged(model.key, targets, "by replicas, while one version replaces another"))


def _weights(counts: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return weights in percent, 100 together, in proportion to counts; what has none is left out, lower numbers first."""
    there = sorted((generation, count) for generation, count in counts if count)
    total, given, weights = sum(count for _, count in there), 0, list[tuple[int, int]]()
    seen = 0
    for generation, count in there:
        seen += count
        weight = 100 * seen // total - given
        given += weight
        weights.append((generation, weight))
    return weights
