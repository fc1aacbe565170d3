"""Placement: which server takes one more replica of a version, or why none does.

Rules turn servers down, each with a sentence that reaches the user. Among those left the least loaded comes first, then
the tightest memory fit, then the name: the same state always gives the same answer. Servers are asked in order of
load, so that a decision looks at a few of them and does not slow down with the number of models.
"""

from collections.abc import Iterable
from heapq import merge
from math import inf
from typing import NamedTuple

from magnetar_common.fleet import HOST_MEMORY, Rank, ServerClass, room_on
from magnetar_common.state import Model, Server, Version
from magnetar_events.facts import Booking, Candidate, Count
from magnetar_events.models import ModelSpec
from magnetar_events.records import Device
from magnetar_scheduler.draft import Draft

BEST = 5
"""Candidates that a decision keeps as evidence."""

EXAMPLES = 10
"""Servers that a refusal keeps as evidence."""

RULES = {
    "lost": "not answering",
    "draining": "draining",
    "starting": "not yet heard from in full",
    "stale": "readings too old to trust",
    "server": "not the server that was asked for",
    "runtime": "another kind of runtime",
    "requirements": "without a capability that is required",
    "gpu-type": "without the right accelerators",
    "beside": "already holding this version",
    "failed-here": "where loading it failed before",
    "max-models": "at its limit of models",
    "memory-limit": "at its limit of memory",
    "devices": "with too few devices",
    "busy": "with devices too busy",
    "memory": "without enough free memory",
}
"""Rule → what it says of a server that it turns down."""


class Placed(NamedTuple):
    """A server for the replica, what to reserve on it, and the best candidates."""

    server: str
    bookings: tuple[Booking, ...]
    best: tuple[Candidate, ...]


class Refused(NamedTuple):
    """No server takes it: how many each rule turned down, and examples."""

    refusals: tuple[Count, ...]
    examples: tuple[Candidate, ...]
    message: str


def place(draft: Draft, model: Model, version: Version) -> Placed | Refused:
    """Find a server for one more replica of a version, as things stand after the draft's facts."""
    if version.refused is not None and _outgrown(draft, version):
        return Refused(version.refused.refusals, version.refused.examples, version.refused.message)
    spec = version.spec
    found: list[tuple[int, float, str, tuple[Booking, ...]]] = []
    for key in draft.placed:
        _try(draft, model, version, key, found, check_class=True)
    rooms, accelerated = draft.state.fleet.rooms(draft.state), spec.devices > 0
    # What a draft takes away may make room on any server of that host, of which the fleet does not know.
    least = -inf if any(taken < 0 for taken in draft.reserved.values()) else version.size
    level = -1
    for load, key in _by_load(draft, spec):
        if level >= 0 and (load > level or len(found) >= BEST):
            break
        if rooms[key][accelerated] < least:
            continue
        if key not in draft.placed and _try(draft, model, version, key, found):
            level = load
    if not found:
        return _refuse(draft, model, version)
    found.sort()
    _, _, server, bookings = found[0]
    best = tuple(Candidate(key, load + slack, "") for load, slack, key, _ in found[:BEST])
    return Placed(server, bookings, best)


def _outgrown(draft: Draft, version: Version) -> bool:
    """Whether what waited needs more than any server has left: one look at the fleet serves a whole piece of them."""
    accelerated = version.spec.devices > 0
    if accelerated not in draft.largest_room:
        draft.largest_room[accelerated] = max(
            (
                room_after(draft, server, device)
                for server in draft.state.servers.values()
                if server.schedulable
                for device in server.devices.values()
                if (device.kind != "cpu") == accelerated
            ),
            default=-1,
        )
    return version.size > draft.largest_room[accelerated] and not any(n < 0 for n in draft.reserved.values())


def _by_load(draft: Draft, spec: ModelSpec) -> Iterable[Rank]:
    """Return the servers of which the class and the name are right."""
    fleet, servers = draft.state.fleet, draft.state.servers
    if spec.server:
        named = fleet.named(draft.state, spec.server)
        return [rank for rank in named if not _class_rule(fleet.class_of(servers[rank[1]]), spec)]
    eligible = [ranks for kind, ranks in fleet.classes(draft.state) if not _class_rule(kind, spec)]
    return eligible[0] if len(eligible) == 1 else merge(*eligible)


def _try(
    draft: Draft,
    model: Model,
    version: Version,
    key: str,
    found: list[tuple[int, float, str, tuple[Booking, ...]]],
    *,
    check_class: bool = False,
) -> bool:
    server = draft.state.servers[key]
    if check_class and (not server.schedulable or _class_rule(draft.state.fleet.class_of(server), version.spec)):
        return False
    answer = _server_rule(draft, model, version, server)
    if isinstance(answer, str):
        return False
    slack, bookings = answer
    found.append((len(server.replicas) + draft.placed.get(key, 0), slack, key, bookings))
    return True


def _class_rule(kind: ServerClass, spec: ModelSpec) -> str:
    """Return the rule by which a whole class is turned down, or an empty string."""
    if spec.runtime.kind and kind.runtime != spec.runtime.kind:
        return "runtime"
    if not kind.capabilities.issuperset(spec.requirements):
        return "requirements"
    if spec.devices and spec.gpu_types and kind.gpu_types.isdisjoint(spec.gpu_types):
        return "gpu-type"
    return ""


def _server_rule(
    draft: Draft, model: Model, version: Version, server: Server
) -> str | tuple[float, tuple[Booking, ...]]:
    """Return the rule by which a schedulable server is turned down, or (slack from 0 to 1, what to reserve)."""
    spec, size, info = version.spec, version.size, server.info
    if spec.server and info.server != spec.server:
        return "server"
    if (version.generation, server.key) in model.replicas:
        return "beside"
    if server.key in version.places:
        return "failed-here"
    if info.max_models and len(server.replicas) + draft.placed.get(server.key, 0) >= info.max_models:
        return "max-models"
    if info.memory_bytes:
        promised = info.memory_bytes * (100 + info.over_commit_percent) // 100
        if server.booked + draft.bytes.get(server.key, 0) + max(1, spec.devices) * size > promised:
            return "memory-limit"
    if spec.devices:
        return _accelerators(draft, server, spec, size)
    host = server.devices.get(HOST_MEMORY)
    if host is None or host.error:
        return "devices"
    room = room_after(draft, server, host)
    if room < size:
        return "memory"
    return (room - size) / (host.total or 1), (Booking(HOST_MEMORY, size),)


def _accelerators(draft: Draft, server: Server, spec: ModelSpec, size: int) -> str | tuple[float, tuple[Booking, ...]]:
    """Choose the devices on which a replica fits most tightly: all that it spans, or none."""
    devices = _devices(server, spec)
    if len(devices) < spec.devices:
        return "devices"
    idle = [device for device in devices if device.utilisation < draft.policy.utilisation_limit]
    if len(idle) < spec.devices:
        return "busy"
    rooms = sorted((room, d.uuid, d.total) for d in idle if (room := room_after(draft, server, d)) >= size)
    if len(rooms) < spec.devices:
        return "memory"
    chosen = rooms[: spec.devices]
    slack = max((room - size) / (total or 1) for room, _, total in chosen)
    return slack, tuple(Booking(uuid, size) for _, uuid, _ in chosen)


def _devices(server: Server, spec: ModelSpec) -> list[Device]:
    """Return the accelerators that a replica may be placed on; a GPU split into MIG instances is none."""
    parents = {device.parent for device in server.devices.values() if device.parent}
    return [
        device
        for device in server.devices.values()
        if device.kind != "cpu"
        and not device.error
        and device.uuid not in parents
        and (not spec.gpu_types or device.gpu_type in spec.gpu_types)
    ]


def room_after(draft: Draft, server: Server, device: Device) -> int:
    """Return the bytes that one more replica may take on a device after the draft's facts."""
    return room_on(draft.state, server, device) - draft.reserved.get((server.info.host, device.uuid), 0)


def rule_against(draft: Draft, model: Model, version: Version, server: Server) -> str:
    """Return the first rule that turns this server down for one more replica, or an empty string."""
    if server.lost:
        return "lost"
    if server.record.status != "UP":
        return "draining" if server.record.status == "DRAINING" else "starting"
    if not server.inventory:
        return "starting"
    if server.stale:
        return "stale"
    rule = _class_rule(draft.state.fleet.class_of(server), version.spec)
    if rule:
        return rule
    answer = _server_rule(draft, model, version, server)
    return answer if isinstance(answer, str) else ""


def _refuse(draft: Draft, model: Model, version: Version) -> Refused:
    """Say why no server takes it. The answer to one is the answer to all that ask for the same of the same fleet."""
    spec, nothing_of_its_own = version.spec, not (draft.placed or version.places or any(model.of(version.generation)))
    known = draft.state.fleet.refusals(draft.state)
    asked = (spec.server, spec.runtime.kind, spec.requirements, spec.devices, spec.gpu_types, version.size)
    asked = (*asked, draft.policy.utilisation_limit)
    if nothing_of_its_own and asked in known:
        return known[asked]
    refused = _refused(draft, model, version)
    if nothing_of_its_own:
        known[asked] = refused
    return refused


def _refused(draft: Draft, model: Model, version: Version) -> Refused:
    counts: dict[str, int] = {}
    examples: list[Candidate] = []
    for key in sorted(draft.state.servers):
        rule = rule_against(draft, model, version, draft.state.servers[key])
        counts[rule] = counts.get(rule, 0) + 1
        if len(examples) < EXAMPLES:
            examples.append(Candidate(key, 0.0, rule))
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    if ordered:
        told = "; ".join(f"{n} {RULES[rule]}" for rule, n in ordered)
        message = f"fits on none of {len(draft.state.servers)} servers: {told}"
    else:
        message = "there is no server yet"
    return Refused(tuple(Count(rule, n) for rule, n in ordered), tuple(examples), message)
