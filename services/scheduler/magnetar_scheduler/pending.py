"""Decide on what the state itself waits for: timers, and the next piece of a large consequence."""

from heapq import nsmallest

from magnetar_common.since import DRAINS
from magnetar_common.state import DRAIN_TIMER, Model, Server, State, Version
from magnetar_common.transitions import ARRIVING, LEAVING, R
from magnetar_events import facts as f
from magnetar_scheduler.draft import Draft
from magnetar_scheduler.drains import say_what_is_left
from magnetar_scheduler.inputs import Continue, TimerDue
from magnetar_scheduler.kept import replaces
from magnetar_scheduler.leaving import let_go
from magnetar_scheduler.preemption import give_up
from magnetar_scheduler.reconcile import reconcile
from magnetar_scheduler.reports import load_failed, unload_failed
from magnetar_scheduler.reservations import look_again, reserve
from magnetar_scheduler.returns import on_due
from magnetar_scheduler.servers import INVENTORY_LEASES
from magnetar_scheduler.tenants import in_turn, turn_of

COMPARISONS = 50_000
"""A model of any kind that fits nowhere is compared with every server; one entry makes so many comparisons, at most.

Half a second of them, measured: whoever sends an input waits no longer, and nobody takes the leader for dead.
"""

FIRST = 20
"""Where there are tenants, so many times as many models as one entry works on are compared for whose turn it is."""


def on_timer(draft: Draft, source: TimerDue) -> None:
    """Do what is due; at most a piece of it, the rest stays due."""
    for key, generation, server in draft.state.due_by(draft.at, draft.policy.piece):
        if draft.full:
            return
        if key and server:
            _replica_due(draft, key, generation, server)
        elif key and generation:
            _claim_due(draft, key, generation)
        elif key:
            _model_due(draft, key)
        elif generation == DRAIN_TIMER:
            say_what_is_left(draft, draft.state.servers[server])
        else:
            due = _server_due if generation == 0 else on_due
            due(draft, draft.state.servers[server])


def _replica_due(draft: Draft, key: str, generation: int, server: str) -> None:
    model = draft.model(key)
    replica = model.replicas.get((generation, server)) if model else None
    if replica is None or not 0 < replica.due <= draft.at:
        return
    policy = draft.policy
    if replica.state in ARRIVING:
        message = f"no answer to the load within {policy.load_timeout_ms} ms"
        load_failed(draft, replica, "TIMEOUT", message, retriable=True)
    elif replica.state is R.LOAD_FAILED and draft.state.servers[server].closed:
        let_go(draft, replica, "nothing more is loaded on its server")
        reconcile(draft, key, "failed elsewhere", retry=True)
    elif replica.state is R.LOAD_FAILED:
        due = draft.at + policy.load_timeout_ms
        draft.change(replica, R.LOAD_REQUESTED, reason="tried again", attempt=replica.attempt + 1, due=due)
    elif replica.state in LEAVING:
        message = f"no answer to the unload within {policy.unload_timeout_ms} ms"
        unload_failed(draft, replica, "TIMEOUT", message)
    elif replica.state in (R.UNROUTE_REQUESTED, R.UNLOAD_FAILED):
        draft.change(replica, R.UNLOAD_REQUESTED, reason=replica.reason, due=draft.at + policy.unload_timeout_ms)


def _model_due(draft: Draft, key: str) -> None:
    """Forget an undeployed model whose servers did not let go of it in time; they are asked what they still hold."""
    model = draft.model(key)
    if model is None or not model.deleted:
        return
    for replica in list(model.replicas.values()):
        if draft.full:
            return  # the rest stays due
        if replica.state is not R.LOST:
            draft.change(replica, R.LOST, code="DEADLINE", reason="not unloaded by the deadline")
        draft.change(replica, R.UNLOADED, code="DEADLINE", reason="forgotten")
        server = draft.server(replica.server)
        if server is not None and not (server.lost or server.inventory_asked):
            draft.emit(f.InventoryRequested(server.key, f"{key} is forgotten, and may still be there"))
    reconcile(draft, key)


def _claim_due(draft: Draft, key: str, generation: int) -> None:
    model = draft.model(key)
    version = model.versions.get(generation) if model is not None else None
    if model is not None and version is not None and version.claim and version.claimed_until <= draft.at:
        (look_again if version.reserved else give_up)(draft, model, version)


def _server_due(draft: Draft, server: Server) -> None:
    if server.lost:
        draft.emit(f.ServerForgotten(server.key))
    elif not server.inventory:
        due = draft.at + draft.policy.forget_server_ms
        message = f"did not say what it holds within {INVENTORY_LEASES * draft.policy.lease_ms} ms"
        draft.emit(f.ServerLost(server.key, server.incarnation, "NO_INVENTORY", message, due))


def on_continue(draft: Draft, source: Continue) -> None:
    """Work on the next piece: models with something missing, then what waits for room or failed and may now work."""
    state, piece = draft.state, draft.policy.piece
    unsettled = _first(draft, piece)
    for key in unsettled:
        if draft.full:
            return
        reconcile(draft, key, _why(state, state.models[key]))
    if draft.full or len(unsettled) >= piece:
        return
    _retry(draft, piece, source.skip)
    if not source.skip:
        reserve(draft)


def tries(state: State) -> int:
    """Return how many models waiting for room, or kinds of them, one entry tries to place."""
    leavers = 0 if state.policy.preemption == "never" else sum(each.replicas for each in state.quotas.used.values())
    return max(1, COMPARISONS // max(1, 6 * len(state.servers) + 2 * leavers if leavers else len(state.servers)))


def more_to_try(state: State, tried: int) -> bool:
    """Whether more than so many models, or kinds of them, wait for room or failed and may now work."""
    keys = {*state.waiting, *state.revivable()}
    return len(keys) > tried and len({_tried_as(state, state.models[key]) for key in keys}) > tried


def _retry(draft: Draft, piece: int, skip: int) -> None:
    """Place what waits, and what failed before a server came, each in its turn (:mod:`magnetar_scheduler.tenants`).

    What is like one that waits and did not fit is not tried. Where several tenants wait a turn is one replica, so that they
    share what there is. What was tried already is skipped, and what is more than one entry tries is left for the next.
    """
    state = draft.state
    failed = dict.fromkeys(state.revivable())
    end = skip + tries(state)
    hopeless: set[object] = set()
    numbers: dict[object, int] = {}
    placed, share = 0, 1 if state.tenants else 0
    fits = False

    def is_done(key: str) -> bool:
        model = draft.model(key)
        return not (fits and share and model is not None and any(map(model.missing, model.kept())))

    for key in in_turn(draft, {**state.waiting, **failed}, is_done):
        model = state.models[key]
        like, unit = _like(state, model.target), _tried_as(state, model)
        number = numbers.setdefault(unit, len(numbers))
        if draft.full or number >= end:
            return
        fits = False
        if number < skip or (key not in failed and like in hopeless and _is_hopeless_too(state, model)):
            continue
        before, why = len(draft.facts), "room was found"
        for generation in (draft.seen(key) or model).revivable(state.newest) if key in failed else ():
            why = "a new server came"
            draft.emit(f.VersionRevived(key, generation, why))
        reconcile(draft, key, why, retry=True, most=share)
        fits = any(isinstance(fact, f.ReplicaPlaced) for fact in draft.facts[before:])
        if fits:
            placed += 1
            if placed >= piece:
                return
        elif unit == like:
            hopeless.add(like)


def _like(state: State, version: Version) -> tuple[object, ...]:
    """Return all of a version that placement looks at."""
    spec = version.spec
    asked = (spec.requirements, spec.runtime.kind, version.size, spec.devices, spec.gpu_types, spec.server)
    if state.policy.preemption != "never" or state.quotas.claims:
        asked = (*asked, spec.priority)
    return (*asked, spec.tenant) if state.tenants or state.quotas.claims else asked


def _tried_as(state: State, model: Model) -> object:
    """Return what a try of this model tells of: of all its like, unless something of its own may stand in its way."""
    target = model.target
    own = model.replicas or target.places or target.preempted or len(model.kept()) > 1
    return model.key if own else _like(state, target)


def _is_hopeless_too(state: State, model: Model) -> bool:
    """Whether a model has nothing that one of its like that fits nowhere may not have had, and lacks something at all.

    That is an old version that can make room, a server that others have left for it, or something lost to replace, which
    no floor keeps a server from.
    """
    target = model.target
    if len(model.kept()) > 1 or target.claim or replaces(state, model, target):
        return False
    return target.failed is not None or model.missing(model.generation) > 0


def _why(state: State, model: Model) -> str:
    """Return why something of a model is placed without its being asked for."""
    if any(replica.state is R.LOST for replica in model.replicas.values()):
        return "lost elsewhere"
    draining = state.version >= DRAINS and any(replica.draining for replica in model.replicas.values())
    return "its server is draining" if draining else ""


def _first(draft: Draft, count: int) -> list[str]:
    """Return the models to be worked on first: where there are tenants, those whose turn it is; otherwise by name."""
    pending = draft.state.unsettled
    near = pending if len(pending) <= FIRST * count else list(pending)[: FIRST * count]
    if draft.state.tenants:
        return nsmallest(count, near, key=lambda key: _turn(draft, key))
    return sorted(pending)[:count] if len(pending) <= 4 * count else sorted(list(pending)[:count])


def _turn(draft: Draft, key: str) -> tuple[object, ...]:
    """Return the turn of a model, perhaps one that nobody wants: of that, something is to be let go of, which goes first."""
    model = draft.state.models[key]
    return (1, *turn_of(draft, key)) if model.generation in model.versions else (0, key)
