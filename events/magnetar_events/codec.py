"""Bytes to records and back.

The writer's schema travels with each message as its CRC-64 fingerprint in the property ``avro-fingerprint``; readers
resolve it from the schemas that ship with this package (current and past). So a reader never guesses, with or without
a schema registry. Requests, reports and records are validated here, at the edge; the log's entries are not again.
"""

import io
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import fastavro
from pydantic import BaseModel, ValidationError

from magnetar_events import avro, compiled, schemas
from magnetar_events.avro import UnknownKind

FINGERPRINT = "avro-fingerprint"
"""Name of the message property that holds the writer's schema's fingerprint (16 hex digits)."""

R = TypeVar("R")

_avro: Any = fastavro  # which has no complete types

_MAX_DEPTH_MESSAGE = "nested too deeply"


class Undecodable(ValueError):
    """Bytes that are not a valid message.

    Attributes:
        code: TOO_LARGE, UNDECODABLE, UNKNOWN_SCHEMA, UNKNOWN_KIND, INVALID, CREDENTIAL_IN_URI or CREDENTIAL_IN_TEXT.
        field: which field is wrong, in camelCase with dots; empty if none could be read.
        message: what is wrong with it.
        envelope: the raw fields that could be read, or empty.
        kind: the kind of event, if it could be read.
    """

    def __init__(
        self, code: str, field: str, message: str, *, envelope: Mapping[str, Any] | None = None, kind: str = ""
    ) -> None:
        super().__init__(f"{code}: {field}: {message}" if field else f"{code}: {message}")
        self.code = code
        self.field = field
        self.message = message
        self.envelope = envelope or {}
        self.kind = kind


@dataclass(slots=True, frozen=True)
class Encoded:
    """A payload, and the properties that say how to read it."""

    payload: bytes
    properties: dict[str, str]


class Codec(Generic[R]):
    """Encodes and decodes one record class with the wire contract of one topic.

    Args:
        cls: pydantic model (validated on decode) or dataclass (trusted).
        contract: name of the wire contract, e.g. ``model-events``.
        largest: bytes that ``decode`` takes, at most: a few megabytes of nothing but empty items would keep a reader
            busy for half a minute. 0 = any number.
    """

    def __init__(self, cls: type[R], contract: str, *, largest: int = 0) -> None:
        self._largest = largest
        self._cls = cls
        self._contract = contract
        self._write = compiled.writer(cls)
        self._read = compiled.reader(cls)
        self._read_raw = compiled.reader(cls, raw=True)
        self._from_wire: Callable[[Any], R] = avro.from_wire(cls)
        self.fingerprint = schemas.fingerprint(contract)
        self.properties = {FINGERPRINT: self.fingerprint}

    def encode(self, record: R, fingerprint: str = "") -> bytes:
        """Return the record's Avro bytes, without a header.

        Args:
            record: what to write.
            fingerprint: of an older schema to write it with, for readers who know no newer one; what that has no field
                for is left out.

        Raises:
            ValueError: that schema has no such kind of record, or there is no such schema.
        """
        if fingerprint in ("", self.fingerprint):
            written = bytearray()
            self._write(record, written)
            return bytes(written)
        writer = schemas.by_fingerprint(self._contract, fingerprint)
        if writer is None:
            raise ValueError(f"no schema of {self._contract} with fingerprint {fingerprint!r} is known")
        out = io.BytesIO()
        _avro.schemaless_writer(out, writer, avro.to_wire(self._cls)(record))
        return out.getvalue()

    def decode_trusted(self, payload: bytes, fingerprint: str) -> R:
        """Return the record without validating its values (for the log).

        Raises:
            Undecodable: not our bytes, an unknown schema or an unknown kind.
        """
        if fingerprint in ("", self.fingerprint):
            return self._compiled(self._read, payload)
        return self.from_raw(self.raw(payload, fingerprint))

    def from_raw(self, raw: Mapping[str, Any]) -> R:
        """Return the record that Avro's dicts (see :meth:`raw`) are, without validating its values.

        Raises:
            Undecodable: a kind is unknown.
        """
        try:
            return self._from_wire(raw)
        except UnknownKind as error:
            raise Undecodable("UNKNOWN_KIND", "", str(error), kind=error.kind) from error

    def decode(self, payload: bytes, fingerprint: str) -> R:
        """Return the validated record.

        Raises:
            Undecodable: says which field is wrong, and why.
        """
        if self._largest and len(payload) > self._largest:
            raise Undecodable("TOO_LARGE", "", f"{len(payload)} bytes; at most {self._largest} are read")
        raw = self.raw(payload, fingerprint)
        kind = ""
        union = avro.union_field(self._cls)
        assert issubclass(self._cls, BaseModel)
        try:
            if union is not None:
                field, kinds = union
                name, body = raw[field]
                kind = name.rpartition(".")[2]
                if kind not in kinds:
                    raise Undecodable("UNKNOWN_KIND", field, f"unknown kind {kind!r}", envelope=raw, kind=kind)
                raw = {**raw, field: _validated(kinds[kind], body, f"{field}.", raw, kind)}
            return _validated(self._cls, raw, "", raw, kind)
        except RecursionError as error:
            raise Undecodable("INVALID", "", _MAX_DEPTH_MESSAGE, kind=kind) from error

    def raw(self, payload: bytes, fingerprint: str) -> dict[str, Any]:
        """Return what the bytes hold, as fastavro reads it with the writer's schema: unions as (name, value).

        Raises:
            Undecodable: not our bytes, or an unknown schema.
        """
        if fingerprint in ("", self.fingerprint):
            return self._compiled(self._read_raw, payload)
        writer = schemas.by_fingerprint(self._contract, fingerprint)
        if writer is None:
            raise Undecodable(
                "UNKNOWN_SCHEMA", "", f"no schema of {self._contract} with fingerprint {fingerprint[:64]!r} is known"
            )
        source = io.BytesIO(payload)
        try:
            raw: Any = _avro.schemaless_reader(
                source, writer, None, return_record_name=True, return_record_name_override=True
            )
        except Exception as error:
            raise self._undecodable(error) from error
        self._end(source.tell(), payload)
        return raw

    def _compiled(self, read: compiled.Read, payload: bytes) -> Any:
        try:
            found, end = read(payload, 0)
        except (LookupError, ValueError, struct.error) as error:
            raise self._undecodable(error) from error
        self._end(end, payload)
        return found

    def _end(self, end: int, payload: bytes) -> None:
        if end != len(payload):
            raise Undecodable("UNDECODABLE", "", f"{len(payload) - end} bytes left over after the record")

    def _undecodable(self, error: Exception) -> Undecodable:
        return Undecodable("UNDECODABLE", "", f"not {self._contract} Avro: {type(error).__name__}: {error}"[:300])


def _validated(cls: type, raw: Any, prefix: str, envelope: Mapping[str, Any], kind: str) -> Any:
    try:
        return cls.model_validate(raw)  # type: ignore[attr-defined]
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = prefix + ".".join(str(part) for part in first["loc"])
        code = first["type"].upper() if first["type"].startswith("credential_in_") else "INVALID"
        raise Undecodable(code, field.rstrip("."), first["msg"], envelope=envelope, kind=kind) from error
