"""Compiled Avro: one generated function per record class to its bytes, and one from them.

For what has this version's schema. fastavro, which reads any writer's schema, is the reference (a test compares them)
and reads everything else; it looks into the schema at each field, and takes three to five times as long. ``exec`` sees
only names that come from our own annotations.
"""

import dataclasses
import struct
import types
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, ParamSpec, TypeVar, cast, get_args, get_origin

from pydantic_core import PydanticUndefined

from magnetar_events.avro import NAMESPACE, fields_of, is_enum, is_record, members_of, plain

P = ParamSpec("P")
R = TypeVar("R")

Write = Callable[[Any, bytearray], None]
Read = Callable[[bytes, int], tuple[Any, int]]
"""From bytes and a place in them to a record and the place after it."""

_DOUBLE = struct.Struct("<d")


def _varint(number: int) -> bytes:
    """Return a number's zigzag encoding.

    Raises:
        OverflowError: it has more than 64 bits.
    """
    rest = number << 1 if number >= 0 else ~(number << 1)
    if rest >> 64:
        raise OverflowError(f"{number} is no 64-bit number")
    out = bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    out.append(rest)
    return bytes(out)


_SMALL = [_varint(number) for number in range(8192)]
"""Number → its one or two bytes."""


def _long(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at a place, and the place after it."""
    rest = shift = 0
    while (byte := data[at]) > 127:
        rest |= (byte & 127) << shift
        shift += 7
        at += 1
        if shift > 63:
            break
    rest |= byte << shift
    if rest >> 64:
        raise ValueError("a number of more than 64 bits")
    return rest >> 1 ^ -(rest & 1), at + 1


def _length(data: bytes, at: int) -> tuple[int, int]:
    """Return the length at a place, and the place after it. What is longer than the data is no length."""
    length, at = _long(data, at)
    if not 0 <= length <= len(data):
        raise ValueError(f"a length of {length}")
    return length, at


def _count(data: bytes, at: int) -> tuple[int, int]:
    """Return the number of items in the next block of an array or a map, and where they begin."""
    byte = data[at]
    if not byte & 129:
        return byte >> 1, at + 1
    count, at = _long(data, at)
    if count < 0:
        count, (_, at) = -count, _long(data, at)
    if count > len(data):
        raise ValueError(f"{count} items")
    return count, at


_WRITES: dict[str, Any] = {"small": _SMALL, "varint": _varint, "double": _DOUBLE.pack}
_READS: dict[str, Any] = {"long": _long, "length": _length, "count": _count, "double": _DOUBLE.unpack_from}
"""What the generated functions use."""


# --- to bytes ---------------------------------------------------------------------------------------------------------


@cache
def writer(cls: type) -> Write:
    """Return what appends a record's bytes."""
    source = _Source()
    for field in fields_of(cls):
        _write(source, field.annotation, f"o.{field.name}", 1)
    return source.compile("def f(o, w):", _WRITES)


def _write(source: "_Source", annotation: Any, value: str, depth: int) -> None:
    annotation = plain(annotation)
    origin, line = get_origin(annotation), source.line
    if annotation is str or origin is Literal or is_enum(annotation):
        line(depth, f"s = {value}.encode(); n = len(s); w += (small[n] if n < 8192 else varint(n)) + s")
    elif annotation is bytes:
        line(depth, f"s = {value}; n = len(s); w += (small[n] if n < 8192 else varint(n)) + s")
    elif annotation is bool:
        line(depth, f"w.append(1 if {value} else 0)")
    elif annotation is int:
        line(depth, f"n = {value}; w += small[n] if 0 <= n < 8192 else varint(n)")
    elif annotation is float:
        line(depth, f"w += double({value})")
    elif origin in (tuple, list, dict):
        each, items = f"x{depth}", f"c{depth}"
        line(depth, f"{items} = {value}")
        line(depth, f"if {items}:")
        line(depth + 1, f"n = len({items}); w += small[n] if n < 8192 else varint(n)")
        if origin is dict:
            line(depth + 1, f"for k{depth}, {each} in {items}.items():")
            _write(source, str, f"k{depth}", depth + 2)
            _write(source, get_args(annotation)[1], each, depth + 2)
        else:
            line(depth + 1, f"for {each} in {items}:")
            _write(source, get_args(annotation)[0], each, depth + 2)
        line(depth, "w.append(0)")
    elif members_of(annotation) is None:
        line(depth, f"{source.bind(writer(annotation))}({value}, w)")
    else:
        table = {member: (_varint(index), _write_one(member)) for index, member in enumerate(_ordered(annotation))}
        line(depth, f"n, s = {source.bind(table)}[type({value})]; w += n; s({value}, w)")


@cache
def _write_one(annotation: Any) -> Write:
    """Return what appends the bytes of one member of a union."""
    if annotation is types.NoneType:
        return lambda _, __: None
    if is_record(annotation):
        return writer(annotation)
    source = _Source()
    _write(source, annotation, "o", 1)
    return source.compile("def f(o, w):", _WRITES)


# --- from bytes -------------------------------------------------------------------------------------------------------


@cache
def reader(cls: type, *, raw: bool = False) -> Read:
    """Return what makes a record of its bytes, without validation.

    Args:
        cls: the record's class.
        raw: leave it as fastavro does, for validation: a dict, and (name, dict) where it is one of several kinds.

    Raises:
        LookupError, ValueError, struct.error: these are not the bytes of such a record.
    """
    source = _Source()
    names: list[str] = []
    for number, field in enumerate(fields_of(cls)):
        names.append(f"v{number}")
        _read(source, field.annotation, names[-1], 1, raw)
    source.line(1, f"return {source.bind(_maker(cls, raw))}({', '.join(names)}), p")
    return source.compile("def f(b, p):", _READS)


def _read(source: "_Source", annotation: Any, name: str, depth: int, raw: bool) -> None:
    annotation = plain(annotation)
    origin, line = get_origin(annotation), source.line
    if annotation in (str, bytes) or origin is Literal or is_enum(annotation):
        line(depth, "n = b[p]")
        line(depth, "if n & 129: n, p = length(b, p)")  # more than one byte, or negative
        line(depth, "else: n >>= 1; p += 1")
        line(depth, f"{name} = b[p : p + n]{'' if annotation is bytes else '.decode()'}; p += n")
        if is_enum(annotation) and not raw:
            line(depth, f"{name} = {source.bind(annotation)}({name})")
    elif annotation is bool:
        line(depth, f"{name} = b[p] != 0; p += 1")
    elif annotation is int:
        line(depth, f"{name} = b[p]")
        line(depth, f"if {name} & 129: {name}, p = long(b, p)")
        line(depth, f"else: {name} >>= 1; p += 1")
    elif annotation is float:
        line(depth, f"({name},) = double(b, p); p += 8")
    elif origin in (tuple, list, dict):
        is_tuple = origin is tuple and not raw
        line(depth, "if b[p] == 0:")
        line(depth + 1, f"{name} = {'{}' if origin is dict else '()' if is_tuple else '[]'}; p += 1")
        line(depth, "else:")
        line(depth + 1, f"{name} = {'{}' if origin is dict else '[]'}; m{depth}, p = count(b, p)")
        line(depth + 1, f"while m{depth}:")
        line(depth + 2, f"for _ in range(m{depth}):")
        item = f"x{depth}"
        if origin is dict:
            _read(source, str, f"k{depth}", depth + 3, raw)
            _read(source, get_args(annotation)[1], item, depth + 3, raw)
            line(depth + 3, f"{name}[k{depth}] = {item}")
        else:
            _read(source, get_args(annotation)[0], item, depth + 3, raw)
            line(depth + 3, f"{name}.append({item})")
        line(depth + 2, f"m{depth}, p = count(b, p)")
        if is_tuple:
            line(depth + 1, f"{name} = tuple({name})")
    elif members_of(annotation) is None:
        line(depth, f"{name}, p = {source.bind(reader(annotation, raw=raw))}(b, p)")
    else:
        members = _ordered(annotation)
        named = raw and sum(map(is_record, members)) > 1
        table = {index: _read_one(member, raw, named) for index, member in enumerate(members)}
        line(depth, "n = b[p]")
        line(depth, "if n & 129: n, p = long(b, p)")
        line(depth, "else: n >>= 1; p += 1")
        line(depth, f"{name}, p = {source.bind(table)}[n](b, p)")


@cache
def _read_one(annotation: Any, raw: bool, named: bool) -> Read:
    """Return what reads one member of a union."""
    if annotation is types.NoneType:
        return lambda _, at: (None, at)
    source = _Source()
    _read(source, annotation, "v", 1, raw)
    name = f"'{NAMESPACE}.{annotation.__name__}', v" if named else "v"
    source.line(1, f"return ({name}), p")
    return source.compile("def f(b, p):", _READS)


def _maker(cls: type, raw: bool) -> Callable[..., Any]:
    """Return what makes an instance of its fields, in order."""
    fields = fields_of(cls)
    names = ", ".join(field.name for field in fields)
    source = _Source()
    if raw:
        source.line(1, f"return {{{', '.join(f'{field.wire!r}: {field.name}' for field in fields)}}}")
        return source.compile(f"def f({names}):", {})
    if dataclasses.is_dataclass(cls):
        return cast("Callable[..., Any]", cls)
    # What BaseModel.model_construct does, which takes ten times as long, and gives every instance a set of its own of
    # all its fields' names: two kilobytes for a model's specification.
    source.line(1, "o = new(cls)")
    source.line(1, f"put(o, '__dict__', {{{', '.join(f'{field.name!r}: {field.name}' for field in fields)}}})")
    source.line(1, "put(o, '__pydantic_fields_set__', names)")
    source.line(1, "put(o, '__pydantic_extra__', None)")
    source.line(1, "put(o, '__pydantic_private__', None)")
    source.line(1, "return o")
    scope: dict[str, Any] = {
        "new": object.__new__,
        "put": object.__setattr__,
        "cls": cls,
        "names": {f.name for f in fields},
    }
    return source.compile(f"def f({names}):", scope)


def trusted(cls: Callable[P, R]) -> Callable[P, R]:
    """Return what makes a pydantic record of its fields without validation, in a tenth of the time: for our own values."""
    fields = fields_of(cast("type[Any]", cls))
    required = [field.name for field in fields if field.default is PydanticUndefined]
    source = _Source()
    optional = [
        f"{field.name}={source.bind(field.default)}" for field in fields if field.default is not PydanticUndefined
    ]
    make = source.bind(_maker(cast("type[Any]", cls), raw=False))
    source.line(1, f"return {make}({', '.join(field.name for field in fields)})")
    return source.compile(f"def f(*, {', '.join(required + optional)}):", {})


# --- source -----------------------------------------------------------------------------------------------------------


def _ordered(annotation: Any) -> list[Any]:
    """Return the members of a union in the order of the schema: null first."""
    return sorted(map(plain, members_of(annotation) or ()), key=lambda member: member is not types.NoneType)


class _Source:
    """The body of a function, line by line, and what it refers to."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._scope: dict[str, Any] = {}

    def line(self, depth: int, text: str) -> None:
        self._lines.append("    " * depth + text)

    def bind(self, value: Any) -> str:
        name = f"g{len(self._scope)}"
        self._scope[name] = value
        return name

    def compile(self, head: str, scope: dict[str, Any]) -> Any:
        scope = {**self._scope, **scope}
        exec("\n".join([head, *(self._lines or ["    pass"])]), scope)  # noqa: S102 - see the module's docstring
        return scope["f"]
