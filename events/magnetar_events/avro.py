"""From a record class (pydantic model or dataclass) to its Avro schema, and to compiled converters to and from Avro's dicts.

The class is the source; the schema and both converters follow from its annotations. On the wire fields are camelCase,
enums are strings, ``X | None`` is a union with null, and a union of records may only stand inside a record.
"""

import dataclasses
import types
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticUndefined

NAMESPACE = "magnetar"

_PRIMITIVES: dict[type, str] = {str: "string", int: "long", float: "double", bool: "boolean", bytes: "bytes"}

Schema = dict[str, Any] | list[Any] | str
Wired = Mapping[str, Any]


class UnknownKind(ValueError):
    """A union holds a record that this version does not know."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"unknown kind {kind!r}")
        self.kind = kind


@dataclasses.dataclass(slots=True, frozen=True)
class _Field:
    name: str
    wire: str
    annotation: Any
    default: Any  # PydanticUndefined = required


@cache
def fields_of(cls: type[Any]) -> tuple[_Field, ...]:
    """Return the fields of a record class in order."""
    if issubclass(cls, BaseModel):
        described: dict[str, Any] = cast("Any", cls).model_fields
        return tuple(
            _Field(name, info.alias or to_camel(name), info.annotation, _default(info.default, info.default_factory))
            for name, info in described.items()
        )
    hints = get_type_hints(cls)
    return tuple(
        _Field(f.name, to_camel(f.name), hints[f.name], _default(f.default, f.default_factory))
        for f in dataclasses.fields(cast("Any", cls))
    )


def _default(value: Any, factory: Any) -> Any:
    if factory not in (None, dataclasses.MISSING):
        # A class makes the same each time. What a function makes (an id, a time) is no default that a schema could
        # hold: each process would have another schema, and every writer that trusts it the same id.
        return factory() if isinstance(get_origin(factory) or factory, type) else PydanticUndefined
    return PydanticUndefined if value is dataclasses.MISSING else value


def members_of(annotation: Any) -> tuple[Any, ...] | None:
    """Return the members of a union, or None for anything else."""
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else None


def plain(annotation: Any) -> Any:
    """Strip ``Annotated``."""
    return plain(get_args(annotation)[0]) if get_origin(annotation) is Annotated else annotation


def is_enum(annotation: Any) -> bool:
    """Whether it is an enumeration of strings."""
    return isinstance(annotation, type) and issubclass(annotation, StrEnum)


def is_record(annotation: Any) -> bool:
    """Whether it is a record class."""
    return isinstance(annotation, type) and (
        issubclass(cast("type[Any]", annotation), BaseModel) or dataclasses.is_dataclass(cast("Any", annotation))
    )


# --- schema -----------------------------------------------------------------------------------------------------------


def schema_of(cls: type) -> dict[str, Any]:
    """Return the Avro schema of a record class."""
    return cast("dict[str, Any]", _schema(cls, set()))


def _schema(annotation: Any, seen: set[str]) -> Schema:
    annotation = plain(annotation)
    if annotation in _PRIMITIVES:
        return _PRIMITIVES[annotation]
    origin = get_origin(annotation)
    if origin is Literal or is_enum(annotation):
        return "string"
    if origin in (tuple, list):
        return {"type": "array", "items": _schema(get_args(annotation)[0], seen)}
    if origin is dict:
        return {"type": "map", "values": _schema(get_args(annotation)[1], seen)}
    members = members_of(annotation)
    if members is not None:
        ordered = sorted(members, key=lambda member: member is not types.NoneType)  # null first: it is the default
        return ["null" if member is types.NoneType else _schema(member, seen) for member in ordered]
    if not is_record(annotation):
        raise TypeError(f"{annotation!r} has no Avro schema")
    name = annotation.__name__
    if name in seen:
        return f"{NAMESPACE}.{name}"
    seen.add(name)
    doc = (annotation.__doc__ or "").strip().partition("\n")[0]
    fields: list[dict[str, Any]] = []
    for field in fields_of(annotation):
        entry: dict[str, Any] = {"name": field.wire, "type": _schema(field.annotation, seen)}
        if field.default is not PydanticUndefined and not callable(field.default):
            entry["default"] = _wire_default(field.annotation, field.default)
        fields.append(entry)
    return {"type": "record", "name": name, "namespace": NAMESPACE, "doc": doc, "fields": fields}


def _wire_default(annotation: Any, value: Any) -> Any:
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if value in ((), []):
        return []
    if value == {}:
        return {}
    cls = cast("type[Any]", type(value))
    if is_record(cls):
        return {f.wire: _wire_default(f.annotation, getattr(value, f.name)) for f in fields_of(cls)}
    raise TypeError(f"{value!r} of {annotation!r} has no Avro default")


# --- converters -------------------------------------------------------------------------------------------------------
#
# Each is one generated expression per class: a replay converts hundreds of thousands of entries, and a loop over fields
# costs several times as much. ``exec`` sees only names that come from our own annotations.


@cache
def to_wire(cls: type) -> Callable[[Any], dict[str, Any]]:
    """Return a function from an instance to what fastavro writes."""
    scope: dict[str, Any] = {}
    items = ", ".join(f"{f.wire!r}: {_out(f.annotation, f'o.{f.name}', scope)}" for f in fields_of(cls))
    return _compile(f"lambda o: {{{items}}}", scope)


@cache
def from_wire(cls: type) -> Callable[[Wired], Any]:
    """Return a function from what fastavro read (with the writer's schema) to an instance, without validation.

    Fields that the writer did not have take their defaults; fields that we do not have are dropped.

    Raises:
        UnknownKind: when called, for a union holding a record we do not know.
    """
    scope: dict[str, Any] = {"C": cls}
    arguments: list[str] = []
    for f in fields_of(cls):
        if f.default is PydanticUndefined:
            value = _in(f.annotation, f"d[{f.wire!r}]", scope)
        else:
            default = _bind(scope, f.default)
            value = _in(f.annotation, f"d[{f.wire!r}]", scope)
            value = f"({value} if {f.wire!r} in d else {default})"
        arguments.append(f"{f.name}={value}" if issubclass(cls, BaseModel) else value)
    make = "C.model_construct" if issubclass(cls, BaseModel) else "C"
    return _compile(f"lambda d: {make}({', '.join(arguments)})", scope)


def _compile(source: str, scope: dict[str, Any]) -> Callable[[Any], Any]:
    return eval(source, scope)  # noqa: S307 - generated above from our own annotations


def _bind(scope: dict[str, Any], value: Any) -> str:
    name = f"v{len(scope)}"
    scope[name] = value
    return name


def _out(annotation: Any, value: str, scope: dict[str, Any]) -> str:
    annotation = plain(annotation)
    if annotation in _PRIMITIVES or get_origin(annotation) is Literal or is_enum(annotation):
        return value
    origin = get_origin(annotation)
    if origin in (tuple, list):
        inner = _out(get_args(annotation)[0], "x", scope)
        return value if inner == "x" else f"[{inner} for x in {value}]"
    if origin is dict:
        inner = _out(get_args(annotation)[1], "x", scope)
        return value if inner == "x" else f"{{k: {inner} for k, x in {value}.items()}}"
    members = members_of(annotation)
    if members is None:
        return f"{_bind(scope, to_wire(annotation))}({value})"
    records = [member for member in members if is_record(member)]
    if not records:
        return value
    if len(records) == 1:
        return f"(None if {value} is None else {_bind(scope, to_wire(records[0]))}({value}))"
    table = {record: (f"{NAMESPACE}.{record.__name__}", to_wire(record)) for record in records}
    return f"{_bind(scope, _union_out(table))}({value})"


def _union_out(table: dict[type, tuple[str, Callable[[Any], dict[str, Any]]]]) -> Callable[[Any], Any]:
    def out(value: Any) -> Any:
        if value is None:
            return None
        name, convert = table[type(value)]
        return (name, convert(value))

    return out


def _in(annotation: Any, value: str, scope: dict[str, Any]) -> str:
    annotation = plain(annotation)
    if annotation in _PRIMITIVES or get_origin(annotation) is Literal:
        return value
    if is_enum(annotation):
        return f"{_bind(scope, annotation)}({value})"
    origin = get_origin(annotation)
    if origin is tuple:
        inner = _in(get_args(annotation)[0], "x", scope)
        return f"tuple({value})" if inner == "x" else f"tuple([{inner} for x in {value}])"
    if origin is list:
        inner = _in(get_args(annotation)[0], "x", scope)
        return value if inner == "x" else f"[{inner} for x in {value}]"
    if origin is dict:
        inner = _in(get_args(annotation)[1], "x", scope)
        return value if inner == "x" else f"{{k: {inner} for k, x in {value}.items()}}"
    members = members_of(annotation)
    if members is None:
        return f"{_bind(scope, from_wire(annotation))}({value})"
    records = [member for member in members if is_record(member)]
    if not records:
        return value
    if len(records) == 1:
        return f"(None if {value} is None else {_bind(scope, from_wire(records[0]))}({value}))"
    table = {f"{NAMESPACE}.{record.__name__}": from_wire(record) for record in records}
    return f"{_bind(scope, _union_in(table))}({value})"


def _union_in(table: dict[str, Callable[[Wired], Any]]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if value is None:
            return None
        name, fields = value
        convert = table.get(name)
        if convert is None:
            raise UnknownKind(name.rpartition(".")[2])
        return convert(fields)

    return read


# --- validation at the edge -------------------------------------------------------------------------------------------


@cache
def union_field(cls: type) -> tuple[str, dict[str, type]] | None:
    """Return (wire name, kinds by name) of the field of ``cls`` that holds a union of several records, if it has one."""
    for f in fields_of(cls):
        members = members_of(plain(f.annotation)) or ()
        records = [member for member in members if is_record(member)]
        if len(records) > 1:
            return f.wire, {record.__name__: record for record in records}
    return None
