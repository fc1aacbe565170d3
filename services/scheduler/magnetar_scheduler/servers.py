"""Decide on servers: who joined, who is another life of a known one, who is lost, and what their devices say."""

from operator import attrgetter

from magnetar_common.memory import shown
from magnetar_common.state import Server, State
from magnetar_events import facts as f
from magnetar_events.records import ServerInfo, ServiceRecord
from magnetar_scheduler.draft import Draft
from magnetar_scheduler.drains import on_agent_draining, say_what_is_left
from magnetar_scheduler.inputs import LeaseLapsed, ReadingChanged, ReadingStale, RegistryChanged
from magnetar_scheduler.inventory import expected_digest
from magnetar_scheduler.returns import on_devices

INVENTORY_LEASES = 5
"""A server that is there and does not say what it holds is lost after this many leases."""


AFTER_LOAD = 0.1
"""Memory that moves by this share of the policy's ``readingDelta`` is worth a fact when the index is another, too."""


def on_registry_changed(draft: Draft, source: RegistryChanged) -> None:
    """Compare an instance's record, or its absence, with what the state says of that server."""
    record = source.record
    if record is None:
        for server in draft.state.servers.values():
            if server.record.instance_id == source.instance and not server.lost:
                _lose(draft, server, "GONE", "it left the registry")
        return
    info = record.server
    if info is None or info.cluster != draft.state.cluster:
        return
    server = draft.server(info.key)
    if server is None:
        if record.status != "DOWN" and _make_room(draft):
            _join(draft, info.key, record)
        return
    if server.incarnation != info.incarnation:
        if record.status != "DOWN" and info.incarnation not in server.superseded:
            draft.emit(f.ServerSuperseded(server.key, server.incarnation))
            _join(draft, server.key, record)
        return
    if record.status == "DOWN":
        if not server.lost and not record.declared_by:
            _lose(draft, server, "DOWN", "its agent said goodbye")
    elif server.lost:
        _return(draft, server, record)
        on_devices(draft, server, info)
    elif differs(record, server.record):
        _update(draft, server, record)
        on_devices(draft, server, info)
    elif is_news(draft.state, server, info, draft.at):
        _read(draft, server, info)


def on_reading_changed(draft: Draft, source: ReadingChanged) -> None:
    """Take up new readings; a digest that is not the expected one makes the leader ask what is held."""
    info = source.record.server
    server = draft.server(info.key) if info else None
    if info is None or server is None or server.incarnation != info.incarnation or server.lost:
        return
    _read(draft, server, info)


def on_reading_stale(draft: Draft, source: ReadingStale) -> None:
    """Place nothing more by an old reading; after a time without a leader that is every one, piece by piece."""
    servers = draft.state.servers
    for key in [source.server] if source.server else sorted(servers):
        server = servers.get(key)
        if server is not None and not server.lost and not server.stale and not draft.full:
            draft.emit(f.ServerReadingStale(key))


def on_lease_lapsed(draft: Draft, source: LeaseLapsed) -> None:
    """Declare a silent server lost."""
    server = draft.server(source.server)
    if server is not None and server.incarnation == source.incarnation and not server.lost:
        _lose(draft, server, "LEASE_LAPSED", f"silent for more than {draft.policy.lease_ms} ms")


_CHANGES_ALWAYS = {
    ServiceRecord: frozenset({"timestamp", "declared_by", "server"}),
    ServerInfo: frozenset({"devices", "loads", "digest", "report", "disk_bytes"}),
}
_of_record, _of_server = (
    attrgetter(*(name for name in cls.model_fields if name not in passing)) for cls, passing in _CHANGES_ALWAYS.items()
)


def differs(one: ServiceRecord, other: ServiceRecord) -> bool:
    """Whether two records differ in more than what changes with every heartbeat: that is worth a fact."""
    if _of_record(one) != _of_record(other):
        return True
    mine, others = one.server, other.server
    return mine is not others and (mine is None or others is None or _of_server(mine) != _of_server(others))


def reading_differs(server: Server, info: ServerInfo, delta: float, limit: float) -> bool:
    """Whether a heartbeat's readings differ enough from the logged ones to be worth a fact.

    They do when memory moves by ``delta`` of the total, an accelerator's utilisation crosses ``limit``, a device comes,
    goes or fails, or the logged reading was stale.
    """
    if server.stale or len(info.devices) != len(server.devices):
        return True
    for device in info.devices:
        old = server.devices.get(device.uuid)
        if old is None or device.total != old.total or bool(device.error) != bool(old.error):
            return True
        threshold = delta * max(device.total, 1)
        if abs(device.free - old.free) > threshold or abs(device.largest_free - old.largest_free) > threshold:
            return True
        if device.kind != "cpu" and (device.utilisation < limit) != (old.utilisation < limit):
            return True
    return False


def is_news(state: State, server: Server, info: ServerInfo, at: int) -> bool:
    """Whether a heartbeat's readings are worth a fact: they differ, or they show memory that is awaited.

    After something was loaded or unloaded less of a difference is enough: what it took is not read by chance.
    """
    policy = state.policy
    delta = policy.reading_delta * (AFTER_LOAD if info.digest != server.digest else 1)
    differ = reading_differs(server, info, delta, policy.utilisation_limit)
    return differ or bool(shown(state, server, info.devices, at))


def news(state: State, record: ServiceRecord) -> str:
    """Return what a heartbeat is to the decider: ``registry``, ``reading``, or an empty string for nothing new."""
    info = record.server
    if info is None or info.cluster != state.cluster:
        return ""
    server = state.servers.get(info.key)
    if server is None:
        return "registry" if record.status != "DOWN" and not full(state) else ""
    if server.incarnation != info.incarnation:
        return "registry" if record.status != "DOWN" and info.incarnation not in server.superseded else ""
    if record.status == "DOWN":
        return "registry" if not server.lost and not record.declared_by else ""
    if server.lost or differs(record, server.record):
        return "registry"
    return "reading" if is_news(state, server, info, state.at) else ""


def full(state: State) -> bool:
    """Whether no further server is taken in."""
    return len(state.servers) >= state.policy.max_servers and not any(server.lost for server in state.servers.values())


def _make_room(draft: Draft) -> bool:
    """Forget a lost server before its time if there are too many; return whether another may join."""
    servers = draft.state.servers
    if len(servers) < draft.policy.max_servers:
        return True
    lost = min((server for server in servers.values() if server.lost), key=lambda server: server.due, default=None)
    if lost is not None:
        draft.emit(f.ServerForgotten(lost.key))
    return lost is not None


def _read(draft: Draft, server: Server, info: ServerInfo) -> None:
    draft.emit(f.ServerReadingChanged(server.key, info.devices, info.loads, info.digest))
    on_devices(draft, server, info)
    expected = expected_digest(server)
    if server.inventory and not server.inventory_asked and expected not in (None, info.digest):
        draft.emit(f.InventoryRequested(server.key, f"its index has digest {info.digest}, expected {expected}"))


def inventory_due(draft: Draft) -> int:
    """Return the log time by which a server must have said what it holds; a busy one may take several leases."""
    return draft.at + INVENTORY_LEASES * draft.policy.lease_ms


def _join(draft: Draft, key: str, record: ServiceRecord) -> None:
    draft.emit(f.ServerJoined(key, record, inventory_due(draft)))


def _return(draft: Draft, server: Server, record: ServiceRecord) -> None:
    draft.emit(f.ServerReturned(server.key, server.incarnation, record, inventory_due(draft)))
    if record.status == "DRAINING":
        on_agent_draining(draft, server, record)


def _update(draft: Draft, server: Server, record: ServiceRecord) -> None:
    draft.emit(f.ServerUpdated(server.key, record))
    if record.status == "DRAINING" != server.record.status:
        on_agent_draining(draft, server, record)


def _lose(draft: Draft, server: Server, code: str, reason: str) -> None:
    if server.drain_due and server.replicas:
        say_what_is_left(draft, server)
    due = draft.at + draft.policy.forget_server_ms
    draft.emit(f.ServerLost(server.key, server.incarnation, code, reason, due))
