"""What the facts about servers do to the state: who is there, what they read, and what becomes of their replicas."""

from collections.abc import Callable
from typing import Any

from magnetar_common.cordons import (
    cordon_of,
    mark_draining,
    server_cordoned,
    server_drained,
    server_draining,
    server_resumed,
)
from magnetar_common.indexes import book, book_arriving, load_ended, move_host
from magnetar_common.memory_folds import forget_returns, rearm
from magnetar_common.quotas import NOTHING, count, count_staying, held, stays
from magnetar_common.since import BOUNDED
from magnetar_common.state import Server, State
from magnetar_common.transitions import ARRIVING, R
from magnetar_events import facts as f
from magnetar_events.records import Device, ServerInfo

LIVES = 1_000
"""Superseded lives of one server that are remembered."""


def _server_joined(state: State, fact: f.ServerJoined) -> None:
    known = state.servers.get(fact.server)
    info = fact.record.server
    if info is None or (known is not None and info.incarnation in known.superseded):
        state.illegal += 1
        return
    if known is not None:
        forget_returns(state, known)
        move_host(state, known, info.host)
        known.record, known.info, known.position = fact.record, info, state.position
        known.lost, known.lost_code, known.inventory, known.inventory_asked = False, "", False, 0
        known.report = 0
        server = known
    else:
        server = state.servers[fact.server] = Server(fact.server, fact.record, info, state.position)
        server.cordon = cordon_of(state, fact.server)
    _read(server, info)
    mark_draining(state, server)
    _arrived(state, server, fact.due)


def _server_returned(state: State, fact: f.ServerReturned) -> None:
    server = state.servers.get(fact.server)
    if server is None or not server.lost or fact.record.server is None or server.incarnation != fact.incarnation:
        state.illegal += 1
        return
    _move(state, server, fact.record.server.host)
    server.record, server.info = fact.record, fact.record.server
    server.lost, server.lost_code, server.inventory = False, "", False
    _read(server, fact.record.server)
    mark_draining(state, server)
    _arrived(state, server, fact.due)
    rearm(state, server)


def _move(state: State, server: Server, host: str) -> None:
    """Take the bookings along to another machine; what the devices of the old one are to give back stays there."""
    if server.info.host != host:
        forget_returns(state, server)
        move_host(state, server, host)


def _arrived(state: State, server: Server, due: int) -> None:
    server.due, server.inventory_asked = due, state.position
    state.asked[server.key] = None
    state.set_timer(due, server=server.key)
    state.fleet.touch(server)


def _read(server: Server, info: ServerInfo) -> None:
    server.devices = {device.uuid: device for device in info.devices}
    server.loads, server.digest, server.stale = info.loads, info.digest, False


def _server_superseded(state: State, fact: f.ServerSuperseded) -> None:
    server = state.servers.get(fact.server)
    if server is None:
        state.illegal += 1
        return
    if state.version >= BOUNDED and len(server.superseded) >= LIVES:
        server.superseded -= {min(server.superseded)}  # any one will do, but the same in every fold
    server.superseded |= {fact.incarnation}


def _server_updated(state: State, fact: f.ServerUpdated) -> None:
    server = state.servers.get(fact.server)
    if server is None or fact.record.server is None:
        state.illegal += 1
        return
    _move(state, server, fact.record.server.host)
    if fact.record.status == "UP" != server.record.status:
        state.newest = state.position
    server.record, server.info = fact.record, fact.record.server
    _read(server, fact.record.server)
    state.fleet.touch(server)
    state.room += 1
    mark_draining(state, server)


def _server_reading(state: State, fact: f.ServerReadingChanged) -> None:
    server = state.servers.get(fact.server)
    if server is None:
        state.illegal += 1
        return
    if server.stale or any(_more_room(server.devices.get(device.uuid), device) for device in fact.devices):
        state.room += 1
    server.devices = {device.uuid: device for device in fact.devices}
    server.loads, server.digest, server.stale = fact.loads, fact.digest, False
    state.fleet.touch(server)


def _more_room(old: Device | None, new: Device) -> bool:
    return old is None or new.free > old.free or new.total > old.total or new.utilisation < old.utilisation


def _server_stale(state: State, fact: f.ServerReadingStale) -> None:
    server = state.servers.get(fact.server)
    if server is None:
        state.illegal += 1
        return
    server.stale = True
    state.fleet.touch(server)


def _inventory_requested(state: State, fact: f.InventoryRequested) -> None:
    server = state.servers.get(fact.server)
    if server is None:
        state.illegal += 1
        return
    server.inventory_asked = state.position
    state.asked[fact.server] = None


def _inventory_taken(state: State, fact: f.InventoryTaken) -> None:
    server = state.servers.get(fact.server)
    if server is None:
        state.illegal += 1
        return
    if not server.inventory:
        state.newest = state.position
    server.inventory, server.inventory_asked, server.due = True, 0, 0
    server.report, server.digest = fact.report, fact.digest
    state.asked.pop(fact.server, None)
    state.fleet.touch(server)
    state.room += 1


def _server_lost(state: State, fact: f.ServerLost) -> None:
    server = state.servers.get(fact.server)
    if server is None or server.lost:
        state.illegal += 1
        return
    server.lost, server.lost_code, server.inventory, server.inventory_asked = True, fact.code, False, 0
    server.due = fact.due
    state.set_timer(fact.due, server=fact.server)
    state.asked.pop(fact.server, None)
    state.fleet.drop(fact.server)
    for replica in server.replicas.values():
        if replica.state in ARRIVING:
            book_arriving(state, server, replica, -1)
            load_ended(state)
        count(state, replica.model, held(replica), NOTHING)
        count_staying(state, replica.model, stays(replica), NOTHING)
        replica.state, replica.since, replica.due = R.LOST, state.at, 0
        replica.code, replica.reason = fact.code, fact.reason
        state.outstanding.pop(replica.key, None)
    state.touched.update((model, None) for model, _ in server.replicas)


def _server_forgotten(state: State, fact: f.ServerForgotten) -> None:
    server = state.servers.get(fact.server)
    if server is None or not server.lost:
        state.illegal += 1
        return
    for replica in list(server.replicas.values()):
        book(state, server, replica, -1)
        count(state, replica.model, held(replica), NOTHING)
        count_staying(state, replica.model, stays(replica), NOTHING)
        model = state.models[replica.model]
        del model.replicas[replica.generation, replica.server]
        state.touched[replica.model] = None
    forget_returns(state, server)
    del state.servers[fact.server]
    state.fleet.drop(fact.server)


SERVER_FOLDS: dict[type, Callable[[State, Any], None]] = {
    f.ServerJoined: _server_joined,
    f.ServerReturned: _server_returned,
    f.ServerSuperseded: _server_superseded,
    f.ServerUpdated: _server_updated,
    f.ServerReadingChanged: _server_reading,
    f.ServerReadingStale: _server_stale,
    f.InventoryRequested: _inventory_requested,
    f.InventoryTaken: _inventory_taken,
    f.ServerLost: _server_lost,
    f.ServerForgotten: _server_forgotten,
    f.ServerCordoned: server_cordoned,
    f.ServerDraining: server_draining,
    f.ServerDrained: server_drained,
    f.ServerResumed: server_resumed,
}
"""Fact about a server → what it does to the state."""
