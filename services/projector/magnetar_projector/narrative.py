"""The log in plain words: one line for each fact."""

from collections.abc import Callable, Iterable
from typing import Any

from magnetar_common.actors import who
from magnetar_common.amounts import amount, counted
from magnetar_common.state import State
from magnetar_events import facts as f
from magnetar_events.facts import Fact

_OF_A_WHOLE_SERVER = (
    f.ServerUpdated,
    f.ServerLost,
    f.ServerForgotten,
    f.ServerCordoned,
    f.ServerDraining,
    f.ServerDrained,
    f.ServerResumed,
)
_ENDS_A_DRAIN = (f.ServerJoined, f.ServerReturned)

_NAMED = 5
"""Models left behind that a line names."""


def narrate(fact: Fact) -> str:
    """Return what a fact says, as one line for people."""
    return " ".join(_LINES[type(fact)](fact).split())


def concerns(state: State, fact: Fact) -> tuple[str, ...]:
    """Return every model and server that a fact is part of the story of.

    Args:
        state: before the fact: what is on a server that is lost or forgotten is concerned, too.
        fact: what became so.
    """
    subjects = dict.fromkeys((f.subject_of(fact), getattr(fact, "model", ""), getattr(fact, "server", "")))
    server = state.servers.get(getattr(fact, "server", ""))
    whole = isinstance(fact, _OF_A_WHOLE_SERVER) or (isinstance(fact, _ENDS_A_DRAIN) and server and server.draining)
    if whole and server is not None:
        subjects.update(dict.fromkeys(model for model, _ in server.replicas))
    if isinstance(fact, f.ReplicasPreempted):
        subjects.update(dict.fromkeys(victim.model for victim in fact.victims))
    subjects.pop("", None)
    return tuple(subjects)


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


def _of(fact: Any) -> str:
    return f"{fact.model} v{fact.generation}"


def _bookings(bookings: Iterable[f.Booking]) -> str:
    return ", ".join(f"{amount(booking.bytes)} on {booking.device}" for booking in bookings)


def _replicas(count: int) -> str:
    return counted(count, "replica")


# --- leadership and requests ------------------------------------------------------------------------------------------


def _leader_elected(fact: f.LeaderElected) -> str:
    return f"{fact.leader} leads cluster {fact.cluster}, term {fact.term} (Magnetar {fact.version})"


def _leader_alive(fact: f.LeaderAlive) -> str:
    return f"the leader of term {fact.term} is alive"


def _upgrade_finalized(fact: f.UpgradeFinalized) -> str:
    return f"the log is of fold version {fact.fold_version} from here on; there is no way back to older software"


def _log_rebased(fact: f.LogRebased) -> str:
    return f"the log is on broker cluster {fact.broker} from here on; it was on {fact.previous or 'none'}"


def _policy_set(fact: f.PolicySet) -> str:
    changed = fact.policy.model_dump(by_alias=True)
    usual = type(fact.policy)().model_dump(by_alias=True)
    parts = ", ".join(f"{name} {value}" for name, value in changed.items() if value != usual[name])
    return f"policy is now {parts}, and all else as shipped" if parts else "policy is now as shipped"


def _tenant_set(fact: f.TenantSet) -> str:
    tenant = fact.tenant
    limits = (
        ("floor", _limits(tenant.floor_replicas, tenant.floor_bytes)),
        ("cap", _limits(tenant.cap_replicas, tenant.cap_bytes)),
    )
    told = " and ".join(f"a {what} of {limit}" for what, limit in limits if limit) or "neither floor nor cap"
    over = (0 < tenant.cap_replicas < fact.replicas) or (0 < tenant.cap_bytes < fact.bytes)
    more = "; that is over its cap: it stays, and nothing is added" if over else ""
    beyond = {"wait": ", more waits", "refuse": ", more is refused"} if tenant.cap_replicas or tenant.cap_bytes else {}
    has = f"{_replicas(fact.replicas)}, {amount(fact.bytes)}"
    return f"{fact.subject} has {told}{beyond.get(tenant.over_cap, '')}; it holds {has}{more}"


def _limits(replicas: int, size: int) -> str:
    return ", ".join([*([_replicas(replicas)] if replicas else []), *([amount(size)] if size else [])])


def _tenant_removed(fact: f.TenantRemoved) -> str:
    return f"{fact.subject} has neither floor nor cap any more"


def _request_accepted(fact: f.RequestAccepted) -> str:
    version = f" v{fact.generation}" if fact.generation else ""
    asked = who(fact.actor, fact.authtype, fact.authverified, fact.publisher)
    return f"{fact.kind} {fact.subject}{version} accepted from {asked} ({fact.source}){_because(fact.reason)}"


def _request_rejected(fact: f.RequestRejected) -> str:
    where = f" ({fact.field})" if fact.field else ""
    source = f" from {fact.source}" if fact.source else ""
    return f"{fact.kind or 'message'} {fact.subject}{source} rejected, {fact.code}{where}: {fact.message}"


def _request_repeated(fact: f.RequestRepeated) -> str:
    return f"request {fact.request} of {fact.source} came again; it was handled at position {fact.position}"


def _report_ignored(fact: f.ReportIgnored) -> str:
    subject = f" on {fact.subject}" if fact.subject else ""
    return f"report of {fact.server}{subject} ignored, {fact.code}: {fact.message}"


# --- models -----------------------------------------------------------------------------------------------------------


def _model_wanted(fact: f.ModelWanted) -> str:
    again = " again" if fact.again else f", as v{fact.rollback_of} was" if fact.rollback_of else ""
    return f"{_of(fact)} is wanted{again}, {_replicas(fact.spec.replicas)} of {fact.spec.storage_uri}"


def _model_scaled(fact: f.ModelScaled) -> str:
    return f"{fact.model} is to have {_replicas(fact.replicas)} (set by {fact.owner})"


def _model_frozen(fact: f.ModelFrozen) -> str:
    return (
        f"{fact.model} is frozen by {fact.actor}, nothing of it is changed until it is unfrozen{_because(fact.reason)}"
    )


def _model_unfrozen(fact: f.ModelUnfrozen) -> str:
    return f"{fact.model} is no longer frozen"


def _version_kept(fact: f.VersionKept) -> str:
    full = f" of {fact.full}" if fact.full else ""
    return f"{_of(fact)} is kept at {fact.replicas}{full} replicas{_because(fact.reason)}"


def _model_undeployed(fact: f.ModelUndeployed) -> str:
    return f"{fact.model} is no longer wanted"


def _model_removed(fact: f.ModelRemoved) -> str:
    return f"nothing of {fact.model} is left"


def _artifact_pinned(fact: f.ArtifactPinned) -> str:
    return f"{_of(fact)} is pinned to the artifact sha256:{fact.digest[:12]}"


def _version_failed(fact: f.VersionFailed) -> str:
    hope = "a new server may help" if fact.retriable else "only a new version can help"
    places = f" [{'; '.join(fact.places)}]" if fact.places else ""
    return f"{_of(fact)} failed, {fact.code}: {fact.message} ({hope}){places}"


def _version_revived(fact: f.VersionRevived) -> str:
    return f"{_of(fact)} is tried again{_because(fact.reason)}"


def _version_retired(fact: f.VersionRetired) -> str:
    return f"nothing of {_of(fact)} is left"


def _traffic_changed(fact: f.TrafficChanged) -> str:
    targets = ", ".join(f"v{target.generation} {target.weight} %" for target in fact.targets)
    return f"traffic of {fact.model} goes to {targets or 'nobody'}{_because(fact.reason)}"


# --- replicas ---------------------------------------------------------------------------------------------------------


def _replica_placed(fact: f.ReplicaPlaced) -> str:
    booked = f" ({_bookings(fact.bookings)})" if fact.bookings else ""
    best = f", best of {len(fact.best)} candidates" if len(fact.best) > 1 else ""
    return f"{_of(fact)} placed on {fact.server}{booked}{best}{_because(fact.reason)}"


def _placement_refused(fact: f.PlacementRefused) -> str:
    verb = "fits" if fact.missing == 1 else "fit"
    return f"{_replicas(fact.missing)} of {_of(fact)} {verb} nowhere: {fact.message}"


def _placement_settled(fact: f.PlacementSettled) -> str:
    return f"nothing of {fact.model} waits for room any more"


def _replicas_preempted(fact: f.ReplicasPreempted) -> str:
    victims = ", ".join(f"{each.model} v{each.generation} of priority {each.priority}" for each in fact.victims)
    return f"{_of(fact)} of priority {fact.priority} has no room: on {fact.server} leave {victims}"


def _server_reserved(fact: f.ServerReserved) -> str:
    return f"others came where {_of(fact)} waits: what becomes free on {fact.server} is reserved for it"


def _reservation_ended(fact: f.ReservationEnded) -> str:
    return f"{fact.server} is reserved for {_of(fact)} no longer: others may be placed there"


def _replica_adopted(fact: f.ReplicaAdopted) -> str:
    return f"{_of(fact)} found on {fact.server} and adopted{_because(fact.reason)}"


def _replica_changed(fact: f.ReplicaChanged) -> str:
    code = f", {fact.code}" if fact.code else ""
    attempt = f" (attempt {fact.attempt})" if fact.attempt > 1 and fact.after.startswith("Load") else ""
    return f"{_of(fact)} on {fact.server}: {fact.before} → {fact.after}{attempt}{code}{_because(fact.reason)}"


def _replica_measured(fact: f.ReplicaMeasured) -> str:
    known = tuple(booking for booking in fact.measured if booking.bytes)
    memory = f"; took {_bookings(known)}" if known else ""
    times = f"fetch {fact.fetch_ms} ms, load {fact.load_ms} ms, verify {fact.verify_ms} ms"
    return f"{_of(fact)} loaded on {fact.server}: {times}{memory}"


# --- memory -----------------------------------------------------------------------------------------------------------


def _size_learnt(fact: f.SizeLearnt) -> str:
    return f"{_of(fact)} needs {amount(fact.bytes)} per device from here on{_because(fact.reason)}"


def _replica_booked(fact: f.ReplicaBooked) -> str:
    return f"{_of(fact)} on {fact.server} now reserves {_bookings(fact.bookings)}{_because(fact.reason)}"


def _memory_awaited(fact: f.MemoryAwaited) -> str:
    kept = _bookings(fact.bookings)
    return f"{_of(fact)} is unloaded from {fact.server}; {kept} stay reserved until the device shows them"


def _memory_returned(fact: f.MemoryReturned) -> str:
    return f"the memory of {_of(fact)}, unloaded at {fact.position}, is free again on {fact.server}"


def _memory_leaked(fact: f.MemoryLeaked) -> str:
    kept = _bookings(fact.bookings)
    return (
        f"{fact.server} is leaky: it did not give back {kept} of {_of(fact)}, unloaded at {fact.position}; "
        "restart the inference server with its agent to have it back"
    )


# --- servers ----------------------------------------------------------------------------------------------------------


def _server_joined(fact: f.ServerJoined) -> str:
    info = fact.record.server
    if info is None:
        return f"{fact.server} joined"
    runtime = f"{info.runtime.kind} {info.runtime.version}".strip() or "server of unknown kind"
    return f"{fact.server} joined as life {info.incarnation}: {runtime} on {info.host}"


def _server_superseded(fact: f.ServerSuperseded) -> str:
    return f"life {fact.incarnation} of {fact.server} is over; a newer one took its place"


def _server_updated(fact: f.ServerUpdated) -> str:
    return f"{fact.server} now says {fact.record.status}"


def _server_reading(fact: f.ServerReadingChanged) -> str:
    devices = ", ".join(
        f"{device.uuid} {device.error or f'{amount(device.free)} of {amount(device.total)} free'}"
        for device in fact.devices
    )
    return f"{fact.server} reads {devices or 'no devices'}, {fact.loads} loads in progress"


def _server_stale(fact: f.ServerReadingStale) -> str:
    return f"the reading of {fact.server} is too old to place by"


def _inventory_requested(fact: f.InventoryRequested) -> str:
    return f"{fact.server} is asked what it holds{_because(fact.reason)}"


def _inventory_taken(fact: f.InventoryTaken) -> str:
    return f"{fact.server} said what it holds; it can be placed on"


def _server_lost(fact: f.ServerLost) -> str:
    return f"{fact.server} is lost, {fact.code}{_because(fact.reason)}"


def _server_returned(fact: f.ServerReturned) -> str:
    return f"{fact.server} is there again, in the same life"


def _server_forgotten(fact: f.ServerForgotten) -> str:
    return f"{fact.server} was lost long ago and is forgotten"


def _server_cordoned(fact: f.ServerCordoned) -> str:
    return f"{fact.server} is cordoned: nothing more is placed on it{_because(fact.reason)}"


def _server_draining(fact: f.ServerDraining) -> str:
    until = f" with life {fact.incarnation}" if fact.incarnation else ""
    return f"{fact.server} drains{until}: its models move elsewhere{_because(fact.reason)}"


def _server_drained(fact: f.ServerDrained) -> str:
    if not fact.models:
        return f"{fact.server} is drained: nothing is left on it"
    told = [f"{_of(left)} ({left.reason})" for left in fact.left[:_NAMED]]
    if fact.models > len(told) > 0:
        told.append(f"and {fact.models - len(told)} more")
    left = f"{counted(fact.models, 'model')} {'is' if fact.models == 1 else 'are'} left"
    return f"the time for {fact.server} to drain is over, and {left}{_because('; '.join(told))}"


def _server_resumed(fact: f.ServerResumed) -> str:
    return f"{fact.server} is resumed: it can be placed on again{_because(fact.reason)}"


_LINES: dict[type, Callable[[Any], str]] = {
    f.LeaderElected: _leader_elected,
    f.LeaderAlive: _leader_alive,
    f.UpgradeFinalized: _upgrade_finalized,
    f.LogRebased: _log_rebased,
    f.PolicySet: _policy_set,
    f.TenantSet: _tenant_set,
    f.TenantRemoved: _tenant_removed,
    f.RequestAccepted: _request_accepted,
    f.RequestRejected: _request_rejected,
    f.RequestRepeated: _request_repeated,
    f.ReportIgnored: _report_ignored,
    f.ModelWanted: _model_wanted,
    f.ModelScaled: _model_scaled,
    f.ModelUndeployed: _model_undeployed,
    f.ModelFrozen: _model_frozen,
    f.ModelUnfrozen: _model_unfrozen,
    f.VersionKept: _version_kept,
    f.ModelRemoved: _model_removed,
    f.ArtifactPinned: _artifact_pinned,
    f.VersionFailed: _version_failed,
    f.VersionRevived: _version_revived,
    f.VersionRetired: _version_retired,
    f.TrafficChanged: _traffic_changed,
    f.ReplicaPlaced: _replica_placed,
    f.PlacementRefused: _placement_refused,
    f.PlacementSettled: _placement_settled,
    f.ReplicasPreempted: _replicas_preempted,
    f.ServerReserved: _server_reserved,
    f.ReservationEnded: _reservation_ended,
    f.ReplicaAdopted: _replica_adopted,
    f.ReplicaChanged: _replica_changed,
    f.ReplicaMeasured: _replica_measured,
    f.SizeLearnt: _size_learnt,
    f.ReplicaBooked: _replica_booked,
    f.MemoryAwaited: _memory_awaited,
    f.MemoryReturned: _memory_returned,
    f.MemoryLeaked: _memory_leaked,
    f.ServerJoined: _server_joined,
    f.ServerSuperseded: _server_superseded,
    f.ServerUpdated: _server_updated,
    f.ServerReadingChanged: _server_reading,
    f.ServerReadingStale: _server_stale,
    f.InventoryRequested: _inventory_requested,
    f.InventoryTaken: _inventory_taken,
    f.ServerLost: _server_lost,
    f.ServerReturned: _server_returned,
    f.ServerForgotten: _server_forgotten,
    f.ServerCordoned: _server_cordoned,
    f.ServerDraining: _server_draining,
    f.ServerDrained: _server_drained,
    f.ServerResumed: _server_resumed,
}
