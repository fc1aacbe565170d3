"""The wire: what is written is read back, and what is not valid says which field, and why."""

import io
import json
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar_events import AGENT_EVENT, COMMAND, MODEL_EVENT, ROUTE, SERVICE_RECORD, ModelEvent, schemas
from magnetar_events.avro import to_wire
from magnetar_events.base import parse_memory
from magnetar_events.codec import Undecodable
from magnetar_events.models import ModelSpec, parse_served_name, served_name
from magnetar_events.requests import DeployModel
from tests.support.world import record, spec


def wire(**changes: Any) -> dict[str, Any]:
    """A valid request as fastavro writes it, with some fields of its model (or, with a dot, of its envelope) changed."""
    raw = to_wire(ModelEvent)(ModelEvent(event=DeployModel(model=spec())))
    name, body = raw["event"]
    for path, value in changes.items():
        if path.startswith("envelope_"):
            raw[path.removeprefix("envelope_")] = value
        else:
            body["model"][path] = value
    return {**raw, "event": (name, body)}


def encoded(raw: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schemas.parsed("model-events"), raw)
    return out.getvalue()


@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"name": ""}, "INVALID", "event.model.name"),
        ({"name": "UPPER"}, "INVALID", "event.model.name"),
        ({"name": "a\x00b"}, "INVALID", "event.model.name"),
        ({"name": "../../etc"}, "INVALID", "event.model.name"),
        ({"name": "a..b"}, "INVALID", "event.model.name"),
        ({"name": "a_b"}, "INVALID", "event.model.name"),
        ({"name": "x" * 10_000}, "INVALID", "event.model.name"),
        ({"tenant": "a/b"}, "INVALID", "event.model.tenant"),
        ({"storageUri": ""}, "INVALID", "event.model.storageUri"),
        ({"storageUri": "file:///a b\n"}, "INVALID", "event.model.storageUri"),
        ({"storageUri": "s3://key:secret@bucket/x"}, "CREDENTIAL_IN_URI", "event.model.storageUri"),
        ({"storageUri": "simplecache::https://user:pw@h/x"}, "CREDENTIAL_IN_URI", "event.model.storageUri"),
        ({"storageUri": "s3:/user:pw@b"}, "CREDENTIAL_IN_URI", "event.model.storageUri"),
        ({"storageUri": "https://h/x?sig=abc"}, "CREDENTIAL_IN_URI", "event.model.storageUri"),
        ({"storageUri": "https://h/x?a=b&X-Amz-Signature=abc"}, "CREDENTIAL_IN_URI", "event.model.storageUri"),
        ({"memory": -1}, "INVALID", "event.model.memory"),
        ({"replicas": 1, "minReplicas": 2}, "INVALID", "event.model"),
        ({"memory": 2**62}, "INVALID", "event.model.memory"),
        ({"replicas": 1_000_000}, "INVALID", "event.model.replicas"),
        ({"replicas": -1}, "INVALID", "event.model.replicas"),
        ({"devices": 65}, "INVALID", "event.model.devices"),
        ({"artifactDigest": "abc"}, "INVALID", "event.model.artifactDigest"),
        ({"latencyClass": "whenever"}, "INVALID", "event.model.latencyClass"),
        ({"labels": {f"k{n}": "v" for n in range(65)}}, "INVALID", "event.model.labels"),
        ({"minReplicas": 3, "maxReplicas": 2}, "INVALID", "event.model"),
        ({"envelope_id": ""}, "INVALID", "id"),
        ({"envelope_source": "\x1b[31m"}, "INVALID", "source"),
        ({"envelope_time": -5}, "INVALID", "time"),
        ({"envelope_fieldOwner": "me"}, "INVALID", "fieldOwner"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_invalid_request_names_its_field(changes: dict[str, Any], code: str, field: str) -> None:
    """A value that is not allowed is refused with a code and the field, in the words of the wire."""
    with pytest.raises(Undecodable) as refused:
        MODEL_EVENT.decode(encoded(wire(**changes)), MODEL_EVENT.fingerprint)
    assert (refused.value.code, refused.value.field.partition("[")[0]) == (code, field)


def test_refused_request_still_tells_whose_it_is() -> None:
    """The sender hears of a refusal by the id that it gave."""
    with pytest.raises(Undecodable) as refused:
        MODEL_EVENT.decode(encoded(wire(memory=-1, envelope_id="x-1", envelope_source="ci")), "")
    assert (refused.value.envelope["id"], refused.value.envelope["source"], refused.value.kind) == (
        "x-1",
        "ci",
        "DeployModel",
    )


@pytest.mark.parametrize("codec", [MODEL_EVENT, AGENT_EVENT, SERVICE_RECORD, COMMAND, ROUTE], ids=lambda c: c._contract)
@given(junk=st.binary(max_size=400))
def test_random_bytes_are_refused_or_valid(codec: Any, junk: bytes) -> None:
    """No bytes raise anything but ``Undecodable``."""
    try:
        codec.decode(junk, "")
    except Undecodable as refused:
        assert refused.code in ("UNDECODABLE", "INVALID", "CREDENTIAL_IN_URI")


@given(cut=st.integers(0, 200), flip=st.integers(0, 199))
def test_damaged_request_is_refused_or_valid(cut: int, flip: int) -> None:
    """Truncated, or with a byte flipped: the same."""
    whole = bytearray(MODEL_EVENT.encode(ModelEvent(id="x", event=DeployModel(model=spec()))))
    whole[flip % len(whole)] ^= 0x55
    for damaged in (bytes(whole), bytes(whole[:cut])):
        try:
            MODEL_EVENT.decode(damaged, MODEL_EVENT.fingerprint)
        except Undecodable as refused:
            assert refused.code


def test_message_of_another_topic_is_refused() -> None:
    """Valid bytes with their own fingerprint, on a topic where they do not belong."""
    for codec, other in ((MODEL_EVENT, SERVICE_RECORD), (AGENT_EVENT, MODEL_EVENT), (SERVICE_RECORD, ROUTE)):
        with pytest.raises(Undecodable) as refused:
            codec.decode(b"", other.fingerprint)
        assert refused.value.code == "UNKNOWN_SCHEMA"


def test_unknown_schema_and_unknown_kind_are_told_apart() -> None:
    """A fingerprint that no shipped schema has, and a kind of event that this version does not know."""
    payload = MODEL_EVENT.encode(ModelEvent(event=DeployModel(model=spec())))
    with pytest.raises(Undecodable) as refused:
        MODEL_EVENT.decode(payload, "0123456789abcdef")
    assert refused.value.code == "UNKNOWN_SCHEMA"
    newer = json.loads(json.dumps(schemas.generated("model-events")).replace('"UndeployModel"', '"PolishModel"'))
    out = io.BytesIO()
    raw = {**wire(), "event": ("magnetar.PolishModel", {"tenant": "default", "name": "iris"})}
    fastavro.schemaless_writer(out, fastavro.parse_schema(newer), raw)
    known = schemas.by_fingerprint
    try:
        schemas.by_fingerprint = lambda *_: fastavro.parse_schema(newer)  # type: ignore[assignment]
        with pytest.raises(Undecodable) as refused:
            MODEL_EVENT.decode(out.getvalue(), "ffffffffffffffff")
    finally:
        schemas.by_fingerprint = known
    assert (refused.value.code, refused.value.kind) == ("UNKNOWN_KIND", "PolishModel")


def test_committed_schemas_are_the_generated_ones() -> None:
    """Neither drift nor a change that old data would not survive."""
    schemas.check()


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (lambda s: s["fields"].append({"name": "fresh", "type": "string"}), "fresh: new, and without a default"),
        (lambda s: s["fields"].append({"name": "fresh", "type": "string", "default": ""}), ""),
        (lambda s: s["fields"].pop(0), ""),
        (lambda s: s["fields"][0].update(type="long"), "serviceName: string became long"),
    ],
    ids=["no default", "default", "dropped", "retyped"],
)
def test_change_that_old_data_would_not_survive_is_found(change: Any, finding: str) -> None:
    """Avro's resolution rules, as BACKWARD_TRANSITIVE applies them."""
    old = schemas.generated("service-registry")
    new = json.loads(json.dumps(old))
    change(new)
    assert schemas.unreadable(new, old) == ([finding] if finding else [])


def test_every_record_survives_the_wire() -> None:
    """What is written is what is read."""
    rec = record("a", region="eu", zone="1", max_models=3)
    assert SERVICE_RECORD.decode(SERVICE_RECORD.encode(rec), "") == rec
    event = ModelEvent(event=DeployModel(model=spec(labels={"a": "ü"}, gpu_types=("A100",), memory="1.5Gi")))
    assert MODEL_EVENT.decode(MODEL_EVENT.encode(event), "") == event


@given(st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,10}[a-z0-9])?", fullmatch=True), st.integers(1, 10**6))
def test_served_names_are_one_to_one(name: str, generation: int) -> None:
    """A server's index tells exactly which version is loaded."""
    assert parse_served_name(served_name(f"default/{name}", generation)) == (f"default/{name}", generation)


@pytest.mark.parametrize(
    ("text", "amount"), [("100Mi", 100 * 2**20), ("2G", 2 * 10**9), ("1.5Ki", 1536), ("7", 7), (5, 5)]
)
def test_memory_is_written_as_in_kubernetes(text: object, amount: int) -> None:
    """Quantities become bytes; numbers stay."""
    assert parse_memory(text) == amount
    assert ModelSpec(name="x", storage_uri="file:///x", memory=text).memory == amount  # type: ignore[arg-type]
