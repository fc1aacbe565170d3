"""A state as bytes, and back: data, never code.

Stored is what the log says. What only indexes it is built anew by the code that maintains it, and of those indexes the
orders are stored that decisions depend on. Nothing is validated here: it was before it came into the log, and whoever
reads an image has checked that it is whole.
"""

import gc
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from typing import Any, cast

import pydantic_core

from magnetar_common.indexes import reindex
from magnetar_common.memory import Awaited, AwaitedKey, Level
from magnetar_common.state import Cordon, Model, Replica, ReplicaKey, Server, State, Version
from magnetar_events.avro import from_wire, to_wire
from magnetar_events.facts import TrafficTarget
from magnetar_events.policy import Policy
from magnetar_events.records import Device, ServiceRecord
from magnetar_events.tenants import Tenant

FORMAT = 1
"""Change it with anything here, and with the fields of any class in :mod:`magnetar_common.state` that are not ``Later``."""

_AS_IT_IS = (int, str, bool, dict[str, str], dict[str, int], dict[str, None])
"""Types of the fields that JSON holds as they are, in order."""


def image_of(state: State) -> bytes:
    """Return a state as JSON; nobody may change it meanwhile."""
    with _uncollected():
        return pydantic_core.to_json(
            {
                **_plain(state),
                "policy": to_wire(Policy)(state.policy),
                "tenants": [to_wire(Tenant)(tenant) for tenant in state.tenants.values()],
                "models": [_model_out(model) for model in state.models.values()],
                "servers": [_server_out(server) for server in state.servers.values()],
                "levels": [to_wire(Level)(level) for level in state.levels.values()],
                "requests": [[*key, *value] for key, value in state.requests.items()],
                "recent": list(state.recent.values()),
                "outstanding": list(state.outstanding),
                "cordons": [to_wire(Cordon)(order) for order in state.cordons.values()],
            }
        )


def state_of(image: bytes) -> State:
    """Return the state of an image.

    Raises:
        ValueError, LookupError, TypeError: it is no image of this format.
    """
    with _uncollected():
        return _state_in(pydantic_core.from_json(image))


def _state_in(read: dict[str, Any]) -> State:
    models, servers = map(_model_in, read["models"]), map(_server_in, read["servers"])
    orders = map(from_wire(Cordon), read["cordons"])
    tenants = map(from_wire(Tenant), read["tenants"])
    recent: list[str] = read["recent"]
    read.update(
        policy=from_wire(Policy)(read["policy"]),
        tenants={tenant.name: tenant for tenant in tenants},
        models={model.key: model for model in models},
        servers={server.key: server for server in servers},
        levels={(level.host, level.device): level for level in map(from_wire(Level), read["levels"])},
        requests={(source, name): (position, at) for source, name, position, at in read["requests"]},
        cordons={order.server: order for order in orders},
        recent=dict(enumerate(recent, read["position"] + 1 - len(recent))),
        outstanding=dict.fromkeys(ReplicaKey(*key) for key in read["outstanding"]),  # in this order; see reindex
    )
    state = State(**read)
    reindex(state)
    return state


def _model_out(model: Model) -> dict[str, Any]:
    version, replica, target = to_wire(Version), to_wire(Replica), to_wire(TrafficTarget)
    return {
        **_plain(model),
        "versions": [version(each) for each in model.versions.values()],
        "replicas": [replica(each) for each in model.replicas.values()],
        "traffic": [target(each) for each in model.traffic],
    }


def _model_in(read: dict[str, Any]) -> Model:
    versions, replicas = map(from_wire(Version), read["versions"]), map(from_wire(Replica), read["replicas"])
    read.update(
        versions={version.generation: version for version in versions},
        replicas={(replica.generation, replica.server): replica for replica in replicas},
        traffic=tuple(map(from_wire(TrafficTarget), read["traffic"])),
    )
    return Model(**read)


def _server_out(server: Server) -> dict[str, Any]:
    device, held = to_wire(Device), to_wire(Awaited)
    return {
        **_plain(server),
        "record": to_wire(ServiceRecord)(server.record),
        "devices": [device(each) for each in server.devices.values()],
        "superseded": sorted(server.superseded),
        "replicas": list(server.replicas),
        "awaited": [held(each) for each in server.awaited.values()],
        "leaked": [held(each) for each in server.leaked.values()],
    }


def _server_in(read: dict[str, Any]) -> Server:
    record, devices = from_wire(ServiceRecord)(read["record"]), map(from_wire(Device), read["devices"])
    read.update(
        record=record,
        info=record.server,
        devices={device.uuid: device for device in devices},
        superseded=frozenset(read["superseded"]),
        replicas=dict.fromkeys((model, generation) for model, generation in read["replicas"]),  # as above
        awaited=_held_in(read["awaited"]),
        leaked=_held_in(read["leaked"]),
        booked=0,
    )
    return Server(**read)


def _held_in(read: list[Any]) -> dict[AwaitedKey, Awaited]:
    return {each.key: each for each in map(from_wire(Awaited), read)}


def _plain(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in _plain_fields(cast("type[Any]", type(value)))}


@cache
def _plain_fields(cls: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(cls) if field.type in _AS_IT_IS)


@contextmanager
def _uncollected() -> Generator[None]:
    """Let the garbage collector rest.

    All that is made here stays. To look through it again and again takes longer than to make it (10,000 models on a
    busy machine: 2.5 s instead of 0.9 s).
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
