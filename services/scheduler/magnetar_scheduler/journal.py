"""From an input and its facts to the entry that records them."""

from dataclasses import replace
from hashlib import sha256
from typing import Any

from magnetar_common.bus import Message
from magnetar_common.state import State
from magnetar_common.topics import AGENT_EVENTS, MODEL_EVENTS, SERVICE_REGISTRY
from magnetar_events import ENTRY, SERVICE_RECORD, ServiceRecord, versions
from magnetar_events import facts as f
from magnetar_events.codec import FINGERPRINT
from magnetar_events.credentials import bytes_hold_credential, redacted
from magnetar_events.entry import FOLD_VERSION_PROPERTY, MAX_ENTRY_BYTES, MAX_INPUT_BYTES, Entry, Input

KIND_OF_TOPIC = {MODEL_EVENTS.name: "request", AGENT_EVENTS.name: "report", SERVICE_REGISTRY.name: "registry"}
"""Input topic → kind of input."""


UNVALIDATED = frozenset(
    {
        "TOO_LARGE", "UNDECODABLE", "UNKNOWN_SCHEMA", "UNKNOWN_KIND", "INVALID",
        "CREDENTIAL_IN_URI", "CREDENTIAL_IN_TEXT", "DEFECT",
    }
)  # fmt: skip
"""Codes of inputs that did not pass the edge."""


class NotFinalized(Exception):
    """A fact is newer than the fold version in force: a defect, for ``decide`` knows it too."""


class EntryTooLarge(Exception):
    """A decision does not fit into one entry: a defect, for large consequences are decided in pieces."""


def short(topic: str) -> str:
    """Return a topic's name without its namespace, as ``handled`` and inputs hold it."""
    return topic.rpartition("/")[2]


def from_message(message: Message) -> Input:
    """Return the input that a message on an input topic is."""
    return Input(
        KIND_OF_TOPIC[message.topic],
        short(message.topic),
        str(message.id),
        redacted(message.key[:256]),
        message.properties.get(FINGERPRINT, "")[:64],
        message.payload,
        len(message.payload),
    )


def from_record(kind: str, instance: str, record: ServiceRecord | None) -> Input:
    """Return the input of kind ``registry`` or ``reading`` that a record, or its absence, is."""
    data = SERVICE_RECORD.encode(record) if record is not None else None
    return Input(kind, "service-registry", "", instance, SERVICE_RECORD.fingerprint, data, len(data or b""))


def kept(source: Input, *, redact: bool) -> Input:
    """Return the input as the log keeps it: without its bytes when they are too large, or must not be kept."""
    if source.data is None or (len(source.data) <= MAX_INPUT_BYTES and not redact):
        return source
    return replace(source, data=None, sha256=sha256(source.data).hexdigest())


def make_entry(
    state: State,
    source: Input,
    facts: list[f.Fact],
    *,
    id: str,  # noqa: A002 - the field's name
    term: int,
    at: int,
    wall: int,
    handled: dict[str, str],
) -> tuple[Entry, bytes]:
    """Return the next entry, as whoever reads its bytes has it, and these.

    Both are of the fold version in force, so that older software can read them. ``UpgradeFinalized`` is the first of its
    own.

    Raises:
        NotFinalized: a fact is of a later version.
        EntryTooLarge: more than 1 MiB, before a position was given away.
    """
    # What was never validated may hold anything, a password too: of such bytes only size and sha256 are kept.
    # What was validated may still hold a credential where the fact has it taken out: in what an agent was told.
    redact = any(isinstance(fact, f.RequestRejected) and fact.code in UNVALIDATED for fact in facts) or (
        source.data is not None and bytes_hold_credential(source.data)
    )
    version = max([state.version, *(fact.fold_version for fact in facts if isinstance(fact, f.UpgradeFinalized))])
    if versions.needed(facts, version) > version:
        kinds = ", ".join(type(fact).__name__ for fact in facts if versions.needed([fact], version) > version)
        raise NotFinalized(f"{kinds} cannot be written to a log of fold version {version}")
    schema = versions.schema_of(version)
    entry = Entry(
        id,
        state.position + 1,
        term,
        at,
        max(wall, state.wall),
        version,
        kept(source, redact=redact),
        handled,
        tuple(facts),
    )
    payload = ENTRY.encode(entry, schema)
    if len(payload) > MAX_ENTRY_BYTES:
        raise EntryTooLarge(f"the entry at position {entry.position} ({source.kind}) would have {len(payload)} bytes")
    return (entry if schema == ENTRY.fingerprint else ENTRY.decode_trusted(payload, schema)), payload


def properties_of(entry: Entry) -> dict[str, str]:
    """Return the message properties by which a dashboard filters without Avro: kinds and subjects of the facts."""
    kinds: dict[str, Any] = {type(fact).__name__: None for fact in entry.facts}
    subjects = {subject: None for fact in entry.facts if (subject := f.subject_of(fact))}
    return {
        FINGERPRINT: versions.schema_of(entry.fold_version),
        FOLD_VERSION_PROPERTY: str(entry.fold_version),
        "position": str(entry.position),
        "term": str(entry.term),
        "kinds": ",".join(kinds),
        "subjects": ",".join(list(subjects)[:20]),
    }
