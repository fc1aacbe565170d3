"""Bring one model towards what is wanted of it. Everything that happens to a model ends here.

Order, always: load, verify, route; and backwards: unroute, grace, unload. How a new version takes the place of an old one
is in :mod:`magnetar_scheduler.rollout`.
"""

from magnetar_common.amounts import counted
from magnetar_common.state import Model, Version
from magnetar_common.transitions import R
from magnetar_events import facts as f
from magnetar_scheduler.draft import Draft
from magnetar_scheduler.failures import NO_MATTER_OF_ROOM, clear_away, fail, revive_what_is_whole, to_place
from magnetar_scheduler.leaving import let_go, order_of_leaving
from magnetar_scheduler.placement import Placed, Refused, place
from magnetar_scheduler.preemption import make_room, waits_for_leavers
from magnetar_scheduler.rollout import hand_over, restore, settle_for_fewer, step, waits_because


def reconcile(draft: Draft, key: str, reason: str = "", *, retry: bool = False, most: int = 0) -> None:
    """Decide what a model needs next.

    Args:
        draft: takes the facts.
        key: the model.
        reason: of new placements, for people.
        retry: try again to place what did not fit before.
        most: replicas to place, of each version; what is missing then goes on waiting. 0 = all.
    """
    model = draft.model(key)
    if model is None:
        return
    if model.deleted:
        _wind_down(draft, model)
        return
    if model.frozen:
        _restore_places(draft, model)
        return
    for replica in [each for each in model.replicas.values() if model.misplaced(each)]:
        let_go(draft, replica, "its server is draining")
    revive_what_is_whole(draft, model)
    restore(draft, model)
    refused: list[tuple[Version, Refused]] = []
    for generation in model.kept():
        version = model.versions[generation]
        answer = _fill(draft, model, version, reason or "wanted", retry=retry, most=most)
        refused += [(version, answer)] if answer is not None else []
        _trim(draft, model, generation)
    hand_over(draft, model)
    if not most or refused:  # otherwise there may be room for more
        step(draft, model)
        settle_for_fewer(draft, model)
    for version, answer in refused:  # others leave only if none of its own do
        make_room(draft, model, version, answer)
    for generation in model.kept():
        _relieve(draft, model, generation)
    clear_away(draft, model)
    _retire(draft, model)


def _fill(draft: Draft, model: Model, version: Version, reason: str, *, retry: bool, most: int) -> Refused | None:
    """Place what is missing of a version; return why not all of it, if that is to wait for room and for nobody to leave."""
    missing = to_place(draft, model, version)
    if version.refused is not None and not retry and missing:
        return None
    if not missing and version.failed is not None and (bereft := model.bereft(version.generation)):
        failed = Refused((), (), f"failed on {counted(len(model.given_up(version.generation)), 'server')}")
        _wait(draft, model, version, bereft, failed)
        return None
    for left in range(missing, 0, -1):
        if draft.full or 0 < most <= missing - left:
            return None  # what is missing stays unsettled, or waits
        answer = place(draft, model, version)
        if not isinstance(answer, Placed):
            return answer if _no_room(draft, model, version, left, answer) else None
        due = draft.at + draft.policy.load_timeout_ms
        draft.emit(
            f.ReplicaPlaced(model.key, version.generation, answer.server, answer.bookings, reason, due, (), answer.best)
        )
    if version.refused is not None:
        draft.emit(f.PlacementSettled(model.key, version.generation))
    return None


def _no_room(draft: Draft, model: Model, version: Version, left: int, answer: Refused) -> bool:
    """Say that a version waits, or has failed; return whether it waits, and for nobody who is leaving."""
    known = version.failed
    if model.given_up(version.generation) and not answer.passing:  # no place is left, as things stand
        fail(draft, model, version, "LOAD_FAILED", "no other server takes it", retriable=True)
    if version.failed is not None:
        bereft = version.failed is known and model.bereft(version.generation)  # otherwise that is looked at next
        if bereft or not {count.rule for count in answer.refusals} <= NO_MATTER_OF_ROOM:
            _wait(draft, model, version, left, answer)
        return False
    if waits_for_leavers(draft, version):
        return False
    _wait(draft, model, version, left, answer)
    return True


def _wait(draft: Draft, model: Model, version: Version, left: int, answer: Refused) -> None:
    """Say for what the missing replicas of a version wait, unless that was said."""
    before = version.refused
    rules = {count.rule for count in answer.refusals}
    if before is None or before.missing != left or {count.rule for count in before.refusals} != rules:
        message = answer.message + waits_because(draft, model, version)
        draft.emit(f.PlacementRefused(model.key, version.generation, left, message, answer.refusals, answer.examples))


def _trim(draft: Draft, model: Model, generation: int) -> None:
    """Let go of what is more than wanted."""
    live = [replica for replica in model.of(generation) if replica.live]
    live.sort(key=order_of_leaving)
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


def _restore_places(draft: Draft, model: Model) -> None:
    """Route what came back where it was: of a frozen model nothing else is done."""
    for generation in model.routed() & model.versions.keys():
        available = sum(replica.state is R.AVAILABLE for replica in model.of(generation))
        for replica in list(model.of(generation)):
            if replica.state is R.LOADED and available < model.versions[generation].wanted:
                draft.change(replica, R.AVAILABLE)
                available += 1


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
        if draft.full:
            return  # the rest stays unsettled
        let_go(draft, replica, "undeployed")
    if not model.replicas:
        draft.emit(f.ModelRemoved(model.key))
