"""Compiled Avro says what fastavro says, byte for byte, and takes no harm from bytes that are none."""

import io
import random
from typing import Any

import fastavro
import pytest
from fastavro.utils import generate_many

from magnetar_events import AGENT_EVENT, COMMAND, ENTRY, MODEL_EVENT, ROUTE, SERVICE_RECORD, compiled, schemas
from magnetar_events.codec import Codec, Undecodable
from magnetar_events.commands import Command, LoadModel

CODECS: list[Codec[Any]] = [AGENT_EVENT, COMMAND, ENTRY, MODEL_EVENT, ROUTE, SERVICE_RECORD]


def by_fastavro(codec: Codec[Any], payload: bytes) -> Any:
    schema = schemas.parsed(codec._contract)
    source = io.BytesIO(payload)
    return fastavro.schemaless_reader(source, schema, None, return_record_name=True, return_record_name_override=True)


def samples(codec: Codec[Any]) -> list[bytes]:
    """Records that the schema allows, of every kind, written by fastavro."""
    found: list[bytes] = []
    schema = schemas.parsed(codec._contract)
    for record in generate_many(schema, 60):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, record)
        found.append(out.getvalue())
    return found


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec._contract)
def test_says_what_fastavro_says(codec: Codec[Any]) -> None:
    """What one writes the other reads, and both write the same bytes."""
    for payload in samples(codec):
        raw, end = compiled.reader(codec._cls, raw=True)(payload, 0)
        assert end == len(payload)
        assert raw == by_fastavro(codec, payload)
        assert codec.encode(codec.decode_trusted(payload, "")) == payload


def test_makes_what_pydantic_makes() -> None:
    """A record read from the log equals one made by its class, and can be copied with changes."""
    model = SERVICE_RECORD.decode_trusted(samples(SERVICE_RECORD)[1], "")
    made = type(model).model_construct(**dict(model))
    assert model == made
    assert model.model_dump() == made.model_dump()
    assert model.model_copy(update={"status": "UP"}) == made.model_copy(update={"status": "UP"})
    assert hash(model.address) == hash(made.address)


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec._contract)
def test_bytes_that_are_no_record_are_refused(codec: Codec[Any]) -> None:
    """Cut off, made longer, or with bytes changed: read as fastavro reads it, or Undecodable; never anything else."""
    chance = random.Random(1)
    payloads = samples(codec)[:20]
    refused = 0
    for payload in payloads:
        assert_refused(codec, payload + b"\x00")
        for _ in range(20):
            damaged = bytearray(payload)
            for _ in range(chance.randint(1, 3)):
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            damaged = damaged[: chance.choice([len(damaged), chance.randrange(len(damaged))])]
            try:
                raw = codec.raw(bytes(damaged), "")
            except Undecodable as error:
                refused += 1
                assert error.code == "UNDECODABLE"
            else:
                assert repr(raw) == repr(by_fastavro(codec, bytes(damaged)))  # repr: a damaged double may be NaN
    assert refused > len(payloads)


def assert_refused(codec: Codec[Any], payload: bytes) -> None:
    for read in (codec.decode_trusted, codec.decode):
        with pytest.raises(Undecodable, match="UNDECODABLE"):
            read(payload, "")


@pytest.mark.parametrize(
    "junk",
    [b"\x01", b"\xff" * 20, b"\xfe\xff\xff\xff\x0f", b"\x02\xc3", b""],
    ids=["negative", "endless", "too-long", "not-utf8", "empty"],
)
def test_a_length_that_cannot_be_is_refused(junk: bytes) -> None:
    """Nothing reads backwards, for ever, or what is not there."""
    for codec in CODECS:
        assert_refused(codec, junk)


def test_a_number_of_more_than_64_bits_is_not_written() -> None:
    """Nobody could read it."""
    entry = ENTRY.decode_trusted(samples(ENTRY)[0], "")
    entry.at = 2**63
    with pytest.raises(OverflowError):
        ENTRY.encode(entry)


def test_a_trusted_record_is_equal_to_the_validated_one() -> None:
    """Defaults too, and the bytes are the same."""
    fields: dict[str, Any] = {"model": "default/iris", "generation": 1, "storage_uri": "file:///models/iris"}
    load = compiled.trusted(LoadModel)(**fields)
    assert load == LoadModel(**fields)
    of: dict[str, Any] = {
        "cluster": "c",
        "server": "s",
        "replica": 0,
        "incarnation": "one",
        "term": 1,
        "position": 9000,
    }
    command = compiled.trusted(Command)(**of, command=load)
    assert COMMAND.encode(command) == COMMAND.encode(Command(**of, command=LoadModel(**fields)))
    with pytest.raises(TypeError):
        compiled.trusted(Command)(command=load)  # type: ignore[call-arg]
