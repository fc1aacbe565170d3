"""The wire contracts: one Avro schema per topic, generated from the classes, shipped, and checked for compatibility.

``python -m magnetar_events write`` writes ``events/schemas/*.avsc``; ``release`` freezes them in
``events/schemas/history``; ``check`` refuses drift, and any change that data written with a past schema would not
survive (BACKWARD_TRANSITIVE: readers are upgraded before writers).
"""

import json
from functools import cache
from pathlib import Path
from typing import Any, cast

import fastavro
from fastavro.schema import fingerprint as _fingerprint
from fastavro.schema import to_parsing_canonical_form

from magnetar_events import avro
from magnetar_events.commands import Command
from magnetar_events.entry import Entry
from magnetar_events.records import ServiceRecord
from magnetar_events.reports import AgentEvent
from magnetar_events.requests import ModelEvent
from magnetar_events.routes import Route
from magnetar_events.voided import Voided

CONTRACTS: dict[str, type] = {
    "model-events": ModelEvent,
    "agent-events": AgentEvent,
    "service-registry": ServiceRecord,
    "state-changes": Entry,
    "commands": Command,
    "routes": Route,
    "voided": Voided,
}
"""Name of the contract → the class it is generated from."""


class SchemaDrift(Exception):
    """The committed schemas are not the generated ones, or would not read old data."""


def folder() -> Path:
    """Return where the schemas are: in the wheel beside this module, in a checkout in ``events/schemas``."""
    shipped = Path(__file__).parent / "schemas"
    return shipped if shipped.is_dir() else Path(__file__).parent.parent / "schemas"


@cache
def generated(contract: str) -> dict[str, Any]:
    """Return the schema of a contract as its class says."""
    return avro.schema_of(CONTRACTS[contract])


@cache
def parsed(contract: str) -> Any:
    """Return the schema of a contract, parsed by fastavro."""
    return fastavro.parse_schema(generated(contract))


@cache
def schema_json(contract: str, value: str = "") -> str:
    """Return the schema of a contract as one line of JSON, for a schema registry.

    Args:
        contract: its name.
        value: fingerprint of a released schema of it; by default, the current one is meant.

    Raises:
        FileNotFoundError: none that was released has this fingerprint.
    """
    if value in ("", fingerprint(contract)):
        schema = generated(contract)
    else:
        schema = json.loads((folder() / "history" / f"{contract}.{value}.avsc").read_text())
    return json.dumps(schema, separators=(",", ":"))


def fingerprint_of(schema: Any) -> str:
    """Return the CRC-64-AVRO fingerprint of a schema's parsing canonical form, 16 hex digits."""
    return _fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO")


@cache
def fingerprint(contract: str) -> str:
    """Return the fingerprint of a contract's current schema."""
    return fingerprint_of(generated(contract))


@cache
def by_fingerprint(contract: str, value: str) -> Any | None:
    """Return the contract's parsed schema, current or past, that has this fingerprint, or None."""
    if fingerprint(contract) == value:
        return parsed(contract)
    for path in (folder() / "history").glob(f"{contract}.*.avsc"):
        if path.stem == f"{contract}.{value}":
            return fastavro.parse_schema(json.loads(path.read_text()))
    return None


def released(contract: str) -> list[str]:
    """Return the fingerprints of every schema of a contract that was released, oldest first.

    A later one reads whatever an earlier one wrote, and not the other way round.
    """
    found = {
        path.suffixes[0].lstrip("."): json.loads(path.read_text())
        for path in sorted((folder() / "history").glob(f"{contract}.*.avsc"))
    }
    return sorted(found, key=lambda one: sum(not unreadable(found[one], other) for other in found.values()))


def write() -> None:
    """Write the generated schemas."""
    for contract in CONTRACTS:
        path = folder() / f"{contract}.avsc"
        path.write_text(json.dumps(generated(contract), indent=2) + "\n")


def release() -> None:
    """Freeze the current schemas: from now on data written with them must stay readable."""
    (folder() / "history").mkdir(exist_ok=True)
    for contract in CONTRACTS:
        path = folder() / "history" / f"{contract}.{fingerprint(contract)}.avsc"
        path.write_text(json.dumps(generated(contract), indent=2) + "\n")


def check() -> None:
    """Refuse drift and incompatible change.

    Raises:
        SchemaDrift: with every finding, and the command that mends it.
    """
    findings: list[str] = []
    for contract in CONTRACTS:
        path = folder() / f"{contract}.avsc"
        if not path.exists() or json.loads(path.read_text()) != generated(contract):
            findings.append(f"{path.name} is not what the classes say: run make schemas, and commit")
        for old in sorted((folder() / "history").glob(f"{contract}.*.avsc")):
            findings += [
                f"{old.name}: {finding}" for finding in unreadable(generated(contract), json.loads(old.read_text()))
            ]
    if findings:
        raise SchemaDrift("\n".join(findings))


_PROMOTIONS = {("int", "long"), ("int", "double"), ("long", "double"), ("float", "double"), ("string", "bytes")}


def unreadable(reader: Any, writer: Any) -> list[str]:
    """Return why data written with ``writer`` could not be read with ``reader`` (Avro's resolution rules); empty = it can."""
    return _unreadable(reader, writer, _names(reader), _names(writer), "", set())


def _names(schema: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def walk(node: Any) -> None:
        if isinstance(node, list):
            for member in cast("list[Any]", node):
                walk(member)
        elif isinstance(node, dict):
            record = cast("dict[str, Any]", node)
            if record["type"] == "record":
                found[f"{record.get('namespace', avro.NAMESPACE)}.{record['name']}"] = record
                for field in record["fields"]:
                    walk(field["type"])
            else:
                walk(record.get("items", record.get("values", record["type"])))

    walk(schema)
    return found


def _unreadable(
    reader: Any, writer: Any, names: dict[str, Any], old: dict[str, Any], path: str, seen: set[str]
) -> list[str]:
    reader = names.get(reader, reader) if isinstance(reader, str) else reader
    writer = old.get(writer, writer) if isinstance(writer, str) else writer
    if isinstance(writer, list):
        branches = cast("list[Any]", writer)
        return [f for branch in branches for f in _unreadable(reader, branch, names, old, path, seen)]
    if isinstance(reader, list):
        tries = [_unreadable(branch, writer, names, old, path, set(seen)) for branch in cast("list[Any]", reader)]
        if any(not findings for findings in tries):
            return []
        same = [
            t for t, b in zip(tries, cast("list[Any]", reader), strict=True) if _title(b, names) == _title(writer, old)
        ]
        return same[0] if same else [f"{path or 'top'}: nothing reads what was a {_title(writer, old)}"]
    r, w = _title(reader, names), _title(writer, old)
    if isinstance(reader, str) or isinstance(writer, str):
        return [] if r == w or (w, r) in _PROMOTIONS else [f"{path or 'top'}: {w} became {r}"]
    if r != w:
        return [f"{path or 'top'}: {w} became {r}"]
    if reader["type"] != "record":
        inner = "items" if reader["type"] == "array" else "values"
        return _unreadable(reader[inner], writer[inner], names, old, f"{path}[]", seen)
    if r in seen:
        return []
    seen.add(r)
    findings: list[str] = []
    before = {field["name"]: field for field in writer["fields"]}
    for field in reader["fields"]:
        where = f"{path}.{field['name']}".lstrip(".")
        if field["name"] in before:
            findings += _unreadable(field["type"], before[field["name"]]["type"], names, old, where, seen)
        elif "default" not in field:
            findings.append(f"{where}: new, and without a default")
    return findings


def _title(schema: Any, names: dict[str, Any]) -> str:
    schema = names.get(schema, schema) if isinstance(schema, str) else schema
    if isinstance(schema, str):
        return schema
    if isinstance(schema, list):
        return "union"
    return schema["name"] if schema["type"] == "record" else str(schema["type"])
