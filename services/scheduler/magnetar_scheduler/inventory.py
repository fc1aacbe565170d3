"""Decide on what a server says it holds: adopt, notice what is gone, and let go of what nobody wants."""

from magnetar_common.state import Replica, Server
from magnetar_common.transitions import ARRIVING, LEAVING, R
from magnetar_events import facts as f
from magnetar_events.models import index_digest, served_name
from magnetar_events.reports import InventoryModel, InventoryReported, ResyncRequested
from magnetar_scheduler.draft import Draft
from magnetar_scheduler.leaving import let_go
from magnetar_scheduler.reconcile import reconcile

MAX_CHANGES = 1_000
"""Replicas settled in one entry; with more, the inventory is asked for again. Keeps an entry far below 1 MiB."""


def expected_digest(server: Server) -> str | None:
    """Return the digest that the server's index should have, or None while a load or unload is in flight there."""
    names: list[str] = []
    for replica in server.replicas.values():
        if replica.state in (R.LOADED, R.AVAILABLE, R.UNROUTE_REQUESTED):
            names.append(served_name(replica.model, replica.generation))
        elif replica.state is not R.LOAD_FAILED:
            return None
    return index_digest(names)


def on_resync(draft: Draft, server: Server, report: ResyncRequested) -> None:
    """The agent wants to be told again: ask what it holds, and the rest follows."""
    draft.emit(f.InventoryRequested(server.key, report.cause or "the agent asked"))


def on_inventory(draft: Draft, server: Server, report: InventoryReported, number: int) -> None:
    """Settle every replica on a server with what the server really holds."""
    held = {(item.model, item.generation): item for item in report.models}
    touched: dict[str, None] = {}
    room = draft.policy.max_models - len(draft.state.models)  # for what nobody wants, too: it is here to be let go
    for place, replica in sorted(server.replicas.items()):
        if len(touched) >= MAX_CHANGES or draft.full:
            break
        item = held.pop(place, None)
        if _settle(draft, replica, item):
            touched[replica.model] = None
    else:
        for (key, _), item in sorted(held.items()):
            if len(touched) >= MAX_CHANGES or draft.full:
                break
            unknown = draft.model(key) is None
            if item.ready and not item.busy and not (unknown and room <= 0):
                room -= unknown
                _adopt(draft, server, item)
                touched[key] = None
    more = len(touched) >= MAX_CHANGES or draft.full
    for key in touched:
        reconcile(draft, key, "lost elsewhere")
    if more:
        draft.emit(f.InventoryRequested(server.key, "more to settle than fits in one entry"))
    else:
        draft.emit(f.InventoryTaken(server.key, report.digest, number))


def _settle(draft: Draft, replica: Replica, item: InventoryModel | None) -> bool:
    """Bring one replica in line with the inventory; return whether anything changed."""
    model = draft.model(replica.model)
    version = model.versions.get(replica.generation) if model else None
    pinned = version.digest if version else ""
    there = item is not None and item.ready and not (item.digest and pinned and item.digest != pinned)
    busy = item is not None and item.busy
    due = draft.at + draft.policy.load_timeout_ms
    state = replica.state
    copy = model.replicas[replica.generation, replica.server] if model else replica
    if busy and state is not R.LOST:
        return False
    if state in (R.LOADED, R.AVAILABLE):
        if there:
            return False
        _dropped(draft, copy)
    elif state in ARRIVING:
        if not there:
            return False
        draft.change(copy, R.LOADED, reason="found loaded")
    elif state is R.LOST:
        stays = version is not None and model is not None and model.frozen and not copy.draining
        if busy or (stays and not there):
            reason = "found loading" if busy else "frozen: loaded again where it was"
            draft.change(copy, R.LOAD_REQUESTED, reason=reason, attempt=1, due=due)
        else:
            draft.change(copy, R.LOADED if there else R.UNLOADED, reason="found loaded" if there else "found gone")
    elif state is R.UNROUTE_REQUESTED:
        if item is not None:
            return False
        draft.change(copy, R.LOST, code="DROPPED", reason="its server no longer holds it")
        draft.change(copy, R.UNLOADED, reason="found gone")
    elif state in LEAVING or state is R.UNLOAD_FAILED:
        if item is not None:
            return False
        if state is R.UNLOAD_FAILED:
            draft.change(copy, R.UNLOAD_REQUESTED, reason="found gone")
        draft.change(copy, R.UNLOADED, reason="found gone")
    else:
        return False
    return True


def _dropped(draft: Draft, replica: Replica) -> None:
    """Load again what its server no longer holds; on one that drains it has left for good."""
    draft.change(replica, R.LOST, code="DROPPED", reason="its server no longer holds it")
    if replica.draining:
        draft.change(replica, R.UNLOADED, reason="found gone from a server that drains")
    else:
        due = draft.at + draft.policy.load_timeout_ms
        draft.change(replica, R.LOAD_REQUESTED, reason="its server no longer held it", attempt=1, due=due)


def _adopt(draft: Draft, server: Server, item: InventoryModel) -> None:
    key, generation = item.model, item.generation
    model = draft.model(key)
    version = model.versions.get(generation) if model else None
    memory = version.size if version else 0
    accelerators = [uuid for uuid, device in sorted(server.devices.items()) if device.kind != "cpu"]
    devices = accelerators[: version.spec.devices] if version and version.spec.devices else ["cpu"]
    bookings = tuple(f.Booking(device, memory) for device in devices)
    draft.emit(f.ReplicaAdopted(key, generation, server.key, bookings, "found on its server"))
    adopted = draft.model(key)
    if version is not None and adopted is not None and item.digest and version.digest not in ("", item.digest):
        let_go(draft, adopted.replicas[generation, server.key], "its artifact is not the pinned one")
