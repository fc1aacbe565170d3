"""The state as JSON: for people, for snapshots, and to tell whether two states are the same.

Fields are camelCase as on the wire, in the order of their classes; what has no order of its own is sorted. What only
indexes the rest of the state is left out, exactly as it is when states are compared.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from typing import Any, cast

from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from magnetar_common.state import Server, State
from magnetar_events.avro import to_wire
from magnetar_events.base import Later
from magnetar_events.facts import Fact

Json = dict[str, Any]

_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode


def state_to_dict(state: State) -> Json:
    """Return everything that the state says, as JSON values.

    What a later fold version added is left out until it is in force: so old and new software agree on every digest.
    """
    shown = _record(
        state,
        booked=_books(state.booked),
        arriving=_books(state.arriving),
        requests=[
            {"source": source, "id": request, "position": position, "at": at}  # as `request_name` made them
            for (source, request), (position, at) in sorted(state.requests.items())
        ],
        servers={key: server_to_dict(server) for key, server in sorted(state.servers.items())},
    )
    if state.fold_version <= 1:
        del shown["foldVersion"]
    return shown


def server_to_dict(server: Server) -> Json:
    """Return a server, as JSON values. Its replicas are named only: they are their models'."""
    names = [{"model": model, "generation": generation} for model, generation in sorted(server.replicas)]
    return _record(server, replicas=names)


def state_digest(state: State) -> str:
    """Return the sha256 (hex) of the state as canonical JSON: equal states, and only those, have equal digests."""
    return hashlib.sha256(canonical(state_to_dict(state)).encode()).hexdigest()


def fact_to_dict(fact: Fact) -> Json:
    """Return a fact's fields, as on the wire. Its kind is the name of its class."""
    return to_wire(type(fact))(fact)


def canonical(value: Any) -> str:
    """Return JSON text that is the same for equal values: sorted keys, no spaces."""
    return _encode(value)


def plain(value: Any) -> Any:
    """Return any value of the state or the log as JSON values.

    Records become objects; mappings too where their keys are text, otherwise lists of their values in order of key
    (those name themselves); sets become sorted lists. A whole number is written the same whether float or int.
    """
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in cast("list[Any]", value)]
    if isinstance(value, (set, frozenset)):
        return sorted(cast("set[str]", value))
    if isinstance(value, Mapping):
        return _mapping(cast("Mapping[Any, Any]", value))
    return _record(value)


@cache
def _fields(cls: type[Any]) -> tuple[tuple[str, str], ...]:
    """Return (attribute, name in JSON) of a record's fields, without those that are left out of comparisons."""
    if issubclass(cls, BaseModel):
        return tuple((name, info.alias or to_camel(name)) for name, info in cls.model_fields.items())
    return tuple((field.name, to_camel(field.name)) for field in dataclasses.fields(cls) if field.compare)


@cache
def _later(cls: type[Any]) -> tuple[tuple[str, str, Any], ...]:
    """Return (attribute, name in JSON, default) of the fields that are left out while they hold it: see :class:`Later`."""
    if issubclass(cls, BaseModel):
        described = ((name, info, info.metadata) for name, info in cls.model_fields.items())
        defaults = {
            name: info.get_default(call_default_factory=True) for name, info, said in described if Later in said
        }
    else:
        defaults = {
            field.name: field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
            for field in dataclasses.fields(cls)
            if Later in field.metadata
        }
    return tuple((name, wire, defaults[name]) for name, wire in _fields(cls) if name in defaults)


def _record(value: Any, **given: Any) -> Json:
    """Return a record's fields; those in ``given`` are rendered already."""
    cls = cast("type[Any]", type(value))
    shown = {wire: given[name] if name in given else plain(getattr(value, name)) for name, wire in _fields(cls)}
    for name, wire, default in _later(cls):
        if getattr(value, name) == default:
            del shown[wire]
    return shown


def _mapping(value: Mapping[Any, Any]) -> Any:
    if all(isinstance(key, str) for key in value):
        return {key: plain(value[key]) for key in sorted(value)}
    return [plain(value[key]) for key in sorted(value)]


def _books(books: Mapping[tuple[str, str], int]) -> list[Json]:
    return [{"host": host, "device": device, "bytes": amount} for (host, device), amount in sorted(books.items())]
