"""``evolve``: the only code that changes state. One fold serves the scheduler, the projector, replay, audit and tests.

It works in place on a state that its caller owns. It never raises on a fact: one that the transition table forbids, or
that is about nothing known, leaves the state as it is and is counted in ``State.illegal``.
"""

from collections.abc import Callable
from typing import Any

from magnetar_common.errors import LogFork, LogHole, LogTooNew
from magnetar_common.indexes import book, book_arriving, index_models, index_replica, load_ended, rebook
from magnetar_common.memory_folds import MEMORY_FOLDS, level_off
from magnetar_common.model_folds import MODEL_FOLDS, model_wanted
from magnetar_common.quotas import NOTHING, count, count_staying, held, stays, taken
from magnetar_common.server_folds import SERVER_FOLDS
from magnetar_common.since import BOUNDED, DRAINS
from magnetar_common.state import Model, Replica, ReplicaKey, State, request_name
from magnetar_common.transitions import ARRIVING, R
from magnetar_events import facts as f
from magnetar_events.entry import BARRIER, FOLD_VERSION, Entry

RECENT = 16_384
"""Entries whose ids are remembered: more than a client sends again after it lost its connection (its queue is 10,000)."""

HELD = 16
"""Servers that a model remembers to have held its artifact."""


def follows(state: State, entry: Entry, message_id: str = "") -> bool:
    """Whether an entry is the next of the history; False for a barrier or a repeat, which are no part of it.

    Args:
        state: only read.
        entry: the next of the log.
        message_id: where it was read, for the error.

    Raises:
        LogHole: positions are missing.
        LogFork: this position already holds another entry.
        LogTooNew: only a newer version understands it.
    """
    if entry.fold_version > FOLD_VERSION:
        raise LogTooNew(
            f"position {entry.position} (message {message_id}) needs fold version {entry.fold_version}, "
            f"this software has {FOLD_VERSION}: upgrade it"
        )
    if entry.position == BARRIER:
        return False
    expected = state.position + 1
    if entry.position != expected:
        if entry.position > expected:
            raise LogHole(expected, entry.position, message_id)
        known = state.recent.get(entry.position, "")
        if entry.id == known:
            return False
        raise LogFork(entry.position, known or "(long ago)", entry.id, message_id)
    return True


def fold(state: State, entry: Entry, message_id: str = "") -> bool:
    """Fold one entry of the log; return False for a barrier or a repeat, which change nothing.

    Args:
        state: changed in place.
        entry: the next of the log.
        message_id: where it was read, for the error.

    Raises:
        LogHole, LogFork, LogTooNew: it does not follow (see :func:`follows`); the state is as it was.
    """
    if not follows(state, entry, message_id):
        return False
    state.recent[entry.position] = entry.id
    state.recent.pop(entry.position - RECENT, None)
    state.position, state.term, state.entry = entry.position, entry.term, entry.id
    state.at, state.wall, state.fold_version = entry.at, entry.wall, entry.fold_version
    if state.handled != entry.handled:
        state.handled = entry.handled
    for fact in entry.facts:
        _FOLDS[type(fact)](state, fact)
    index_models(state)
    return True


def evolve(state: State, fact: f.Fact) -> State:
    """Make one fact so, and return the same state."""
    _FOLDS[type(fact)](state, fact)
    index_models(state)
    return state


# --- models in the state: the same, and the books and indexes ---------------------------------------------------------


def _of_model(state: State, fact: Any) -> None:
    model = state.models.get(fact.model)
    if model is None or not MODEL_FOLDS[type(fact)](model, fact, state.position, state.at):
        state.illegal += 1
    else:
        state.touched[fact.model] = None


def _wanted(state: State, fact: f.ModelWanted) -> None:
    model = state.models.get(fact.model)
    if model is None:
        model = state.models[fact.model] = Model(fact.model)
    model_wanted(model, fact, state.position, state.at)
    state.generations[fact.model] = max(fact.generation, state.generations.get(fact.model, 0))
    state.touched[fact.model] = None


def _undeployed(state: State, fact: f.ModelUndeployed) -> None:
    _of_model(state, fact)
    state.set_timer(fact.due, fact.model)


def _claimed(state: State, fact: f.ReplicasPreempted | f.ServerReserved) -> None:
    _of_model(state, fact)
    state.set_timer(fact.due, fact.model, fact.generation)


def _adopted(state: State, fact: f.ReplicaAdopted) -> None:
    if fact.model not in state.models:  # nobody wants it: it is here to be let go
        state.models[fact.model] = Model(fact.model, deleted=True)
    _of_replica(state, fact)


def _of_replica(state: State, fact: f.ReplicaPlaced | f.ReplicaAdopted | f.ReplicaChanged) -> None:
    model, server = state.models.get(fact.model), state.servers.get(fact.server)
    if model is None or server is None:
        state.illegal += 1
        return
    key = (fact.generation, fact.server)
    before = model.replicas.get(key)
    counted = before is not None and before.state is not R.LOST
    reserved = before.bookings if before is not None else ()
    bookings, lived = reserved if counted else (), before is not None and before.live
    arriving = before is not None and before.state in ARRIVING
    if not MODEL_FOLDS[type(fact)](model, fact, state.position, state.at):
        state.illegal += 1
        return
    after = model.replicas.get(key)
    if before is None and after is not None:
        after.draining = state.version >= DRAINS and server.draining
        book(state, server, after, +1)
    elif before is not None and after is None:
        book(state, server, before, -1)
        state.room += 1
        if before.digest and state.version >= BOUNDED:
            _held(model, before)
    if arriving != (after is not None and after.state in ARRIVING):
        book_arriving(state, server, before or after, -1 if arriving else +1)
        if arriving:
            load_ended(state)
        if after is not None and after.state is R.LOADED:
            level_off(state, server, after.bookings)
    if after is None or after.bookings is not bookings or (after.state is not R.LOST) != counted:
        count(state, fact.model, taken(bookings) if counted else NOTHING, held(after))
    lives = after is not None and after.live
    if lives != lived or (after is not None and lives and after.bookings is not reserved):
        count_staying(state, fact.model, taken(reserved) if lived else NOTHING, stays(after))
    index_replica(state, ReplicaKey(fact.model, *key), after)
    state.touched[fact.model] = None


def _held(model: Model, replica: Replica) -> None:
    """Remember who had an artifact, for its agent may have it still; the latest few."""
    model.held.pop(replica.server, None)
    if len(model.held) >= HELD:
        del model.held[next(iter(model.held))]
    model.held[replica.server] = replica.digest


def _measured(state: State, fact: f.ReplicaMeasured) -> None:
    replica = state.replica(ReplicaKey(fact.model, fact.generation, fact.server)) if state.levels else None
    if replica is not None:
        booked = {booking.device: booking.bytes for booking in replica.bookings}
        more = (
            f.Booking(m.device, m.bytes - booked[m.device]) for m in fact.measured if m.bytes and m.device in booked
        )
        level_off(state, state.servers[fact.server], more)
    _of_model(state, fact)


def _rebooked(state: State, fact: f.ReplicaBooked) -> None:
    replica = state.replica(ReplicaKey(fact.model, fact.generation, fact.server))
    if replica is None:
        state.illegal += 1
        return
    rebook(state, state.servers[fact.server], replica, fact.bookings)
    before, stayed = held(replica), stays(replica)
    _of_model(state, fact)
    count(state, fact.model, before, held(replica))
    count_staying(state, fact.model, stayed, stays(replica))


def _model_removed(state: State, fact: f.ModelRemoved) -> None:
    model = state.models.get(fact.model)
    if model is None or model.replicas:
        state.illegal += 1
        return
    del state.models[fact.model]
    state.touched[fact.model] = None
    if state.version >= BOUNDED and len(state.generations) > 2 * state.policy.max_models:
        gone = [key for key in state.generations if key not in state.models]
        for key in gone[: 1 + len(gone) // 8]:  # several at once, so that they are seldom looked for
            state.floor = max(state.floor, state.generations.pop(key))


# --- requests and leadership ------------------------------------------------------------------------------------------


def _leader_elected(state: State, fact: f.LeaderElected) -> None:
    state.leader, state.cluster, state.broker = fact.leader, fact.cluster, fact.broker
    state.room += 1


def _upgrade_finalized(state: State, fact: f.UpgradeFinalized) -> None:
    state.fold_version = fact.fold_version


def _log_rebased(state: State, fact: f.LogRebased) -> None:
    state.broker = fact.broker


def _policy_set(state: State, fact: f.PolicySet) -> None:
    if fact.policy.loads_per_server != state.policy.loads_per_server:
        for server in state.servers.values():
            state.fleet.touch(server)
    state.policy = fact.policy
    state.room += 1


def _tenant_set(state: State, fact: f.TenantSet) -> None:
    state.tenants[fact.tenant.name] = fact.tenant
    state.room += 1


def _tenant_removed(state: State, fact: f.TenantRemoved) -> None:
    if state.tenants.pop(fact.tenant, None) is None:
        state.illegal += 1
    state.room += 1


UNAUTHENTIC = frozenset(
    {"SIGNATURE_REQUIRED", "SIGNATURE_INVALID", "SIGNATURE_EXPIRED", "UNKNOWN_PUBLISHER", "TOO_MANY_REQUESTS"}
)
"""Codes of requests that are not known to be their sender's: their names are not remembered, for anybody may use them."""


def _rejected(state: State, fact: f.RequestRejected) -> None:
    if fact.code not in UNAUTHENTIC:
        _request(state, fact)


def _request(state: State, fact: f.RequestAccepted | f.RequestRejected) -> None:
    if not fact.request:
        return
    oldest = state.at - state.policy.request_memory_ms
    while state.requests:
        first = next(iter(state.requests))
        too_many = state.version >= BOUNDED and len(state.requests) >= state.policy.max_requests
        if state.requests[first][1] >= oldest and not too_many:
            break
        del state.requests[first]
    name = request_name(fact.source, fact.request, fact.publisher)
    state.requests.setdefault(name, (state.position, state.at))


def _nothing(state: State, fact: Any) -> None:
    """Evidence: it is in the log for people, and changes no state."""


_FOLDS: dict[type, Callable[[State, Any], None]] = {
    **dict.fromkeys(MODEL_FOLDS, _of_model),
    **MEMORY_FOLDS,
    **SERVER_FOLDS,
    f.ReplicaMeasured: _measured,
    f.ReplicaBooked: _rebooked,
    f.ModelWanted: _wanted,
    f.ModelUndeployed: _undeployed,
    f.ReplicaPlaced: _of_replica,
    f.ReplicasPreempted: _claimed,
    f.ServerReserved: _claimed,
    f.ReplicaAdopted: _adopted,
    f.ReplicaChanged: _of_replica,
    f.ModelRemoved: _model_removed,
    f.LeaderElected: _leader_elected,
    f.LeaderAlive: _nothing,
    f.UpgradeFinalized: _upgrade_finalized,
    f.LogRebased: _log_rebased,
    f.PolicySet: _policy_set,
    f.TenantSet: _tenant_set,
    f.TenantRemoved: _tenant_removed,
    f.RequestAccepted: _request,
    f.RequestRejected: _rejected,
    f.RequestRepeated: _nothing,
    f.ReportIgnored: _nothing,
}
