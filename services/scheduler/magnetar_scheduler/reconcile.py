"""Bring one model towards what is wanted of it. Everything that happens to a model ends here.

Order, always: load, verify, route; and backwards: unroute, grace, unload. The new version's replicas are in the route
table before the old version's leave it.
"""

from magnetar_common.state import Model, Replica, Version
from magnetar_common.transitions import R
from magnetar_events import facts as f
from magnetar_scheduler.draft import Draft
from magnetar_scheduler.placement import Placed, Refused, place

PLACES = 20
"""Places at which a version failed that are told, at most: each with what its agent said."""

_VICTIMS = {R.LOAD_FAILED: 0, R.LOAD_REQUESTED: 1, R.LOADING: 2, R.LOADED: 3, R.AVAILABLE: 4}
"""Whom to let go of first when there are too many: what is least far along."""


def reconcile(draft: Draft, key: str, reason: str = "", *, retry: bool = False) -> None:
    """Decide what a model needs next.

    Args:
        draft: takes the facts.
        key: the model.
        reason: of new placements, for people.
        retry: try again to place what did not fit before.
    """
    model = draft.model(key)
    if model is None:
        return
    if model.deleted:
        _wind_down(draft, model)
        return
    for replica in [each for each in model.replicas.values() if model.misplaced(each)]:
        let_go(draft, replica, "its server is draining")
    for generation in model.kept():
        _fill(draft, model, model.versions[generation], reason or "wanted", retry=retry)
        _trim(draft, model, generation)
    _hand_over(draft, model)
    for generation in model.kept():
        _relieve(draft, model, generation)
    _retire(draft, model)


def let_go(draft: Draft, replica: Replica, reason: str) -> None:
    """Start to take a replica away, from whatever state it is in."""
    if replica.state is R.AVAILABLE:
        draft.change(replica, R.UNROUTE_REQUESTED, reason=reason, due=draft.at + draft.policy.unload_grace_ms + 1)
    elif replica.state in (R.LOAD_REQUESTED, R.LOADING, R.LOAD_FAILED, R.LOADED):
        draft.change(replica, R.UNLOAD_REQUESTED, reason=reason, due=draft.at + draft.policy.unload_timeout_ms)
    elif replica.state is R.LOST:
        draft.change(replica, R.UNLOADED, reason=reason)


def _fill(draft: Draft, model: Model, version: Version, reason: str, *, retry: bool) -> None:
    """Place what is missing of a version."""
    missing = model.missing(version.generation)
    if version.refused is not None and not retry and missing:
        return
    for left in range(missing, 0, -1):
        if draft.full:
            return  # what is missing stays unsettled
        answer = place(draft, model, version)
        if not isinstance(answer, Placed):
            _no_room(draft, model, version, left, answer)
            return
        due = draft.at + draft.policy.load_timeout_ms
        draft.emit(
            f.ReplicaPlaced(model.key, version.generation, answer.server, answer.bookings, reason, due, (), answer.best)
        )
    if version.refused is not None:
        draft.emit(f.PlacementSettled(model.key, version.generation))


def _no_room(draft: Draft, model: Model, version: Version, left: int, answer: Refused) -> None:
    if version.places and not answer.passing:  # it was tried elsewhere and failed there; no place is left
        fail(draft, model, version, "LOAD_FAILED", "no other server takes it", retriable=True)
        return
    before = version.refused
    rules = {count.rule for count in answer.refusals}
    if before is None or before.missing != left or {count.rule for count in before.refusals} != rules:
        draft.emit(
            f.PlacementRefused(model.key, version.generation, left, answer.message, answer.refusals, answer.examples)
        )


def fail(draft: Draft, model: Model, version: Version, code: str, message: str, *, retriable: bool) -> None:
    """Decide that a version cannot be had, with every place that was tried."""
    if version.failed is None:
        told = sorted(version.places.items())[:PLACES]
        places = tuple(f"{server}: {why}" for server, why in told)
        draft.emit(f.VersionFailed(model.key, version.generation, code, message, retriable, places))


def _trim(draft: Draft, model: Model, generation: int) -> None:
    """Let go of what is more than wanted."""
    live = [replica for replica in model.of(generation) if replica.live]
    live.sort(key=lambda replica: (_VICTIMS[replica.state], replica.server))
    for replica in live[: max(0, len(live) - model.versions[generation].wanted)]:
        let_go(draft, replica, "more than wanted")


def _relieve(draft: Draft, model: Model, generation: int) -> None:
    """Let go of lost and draining replicas once others do their work."""
    replicas, wanted = list(model.of(generation)), model.versions[generation].wanted
    serving = [replica for replica in replicas if replica.state is R.AVAILABLE]
    if sum(replica.live for replica in serving) >= wanted:
        for replica in replicas:
            if replica.state is R.LOST:
                let_go(draft, replica, "replaced")
    draining = sorted((replica for replica in serving if replica.draining), key=lambda replica: replica.server)
    for replica in draining[: max(0, len(serving) - wanted)]:
        let_go(draft, replica, "its server is draining")


def _hand_over(draft: Draft, model: Model) -> None:
    """Put what is loaded into the route table, and hand the traffic over once the wanted version can take it."""
    routed = model.routed()
    ready = [replica for replica in model.of(model.generation) if replica.state in (R.LOADED, R.AVAILABLE)]
    if model.generation not in routed:
        serving = any(r.state is R.AVAILABLE for r in model.replicas.values() if r.generation in routed)
        if len(ready) >= model.wanted or (ready and not serving):
            draft.emit(
                f.TrafficChanged(model.key, (f.TrafficTarget(model.generation, 100),), "the wanted version is ready")
            )
    routed = model.routed()
    for replica in list(model.replicas.values()):
        if replica.state is R.LOADED and replica.generation in routed:
            draft.change(replica, R.AVAILABLE)


def _retire(draft: Draft, model: Model) -> None:
    """Let go of versions that are neither wanted nor get traffic; forget those of which nothing is left."""
    keep = model.kept()
    for replica in list(model.replicas.values()):
        if replica.generation not in keep:
            let_go(draft, replica, f"superseded by version {model.generation}")
    held = {replica.generation for replica in model.replicas.values()}
    for generation in sorted(model.versions):
        if generation not in keep and generation not in held:
            draft.emit(f.VersionRetired(model.key, generation))


def _wind_down(draft: Draft, model: Model) -> None:
    if model.traffic:
        draft.emit(f.TrafficChanged(model.key, (), "undeployed"))
    for replica in list(model.replicas.values()):
        let_go(draft, replica, "undeployed")
    if not model.replicas:
        draft.emit(f.ModelRemoved(model.key))
