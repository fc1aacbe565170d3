"""Signed requests through a leader: who is believed, and what a thief can do with a signed message."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from magnetar_common.bus import EARLIEST, Bus, Message
from magnetar_common.bus.memory import MemoryBroker, MemoryBus
from magnetar_common.client import Magnetar
from magnetar_common.errors import RequestRefused
from magnetar_common.log import replay
from magnetar_common.signing import SIGNATURE, Signer, new_key
from magnetar_common.topics import MODEL_EVENTS
from magnetar_events import MODEL_EVENT, ModelEvent, cloudevents
from magnetar_events import facts as f
from magnetar_events.entry import Input
from magnetar_events.policy import Policy, Publisher
from magnetar_events.requests import Actor, DeployModel
from magnetar_scheduler.authentic import AHEAD_MS
from tests.support.brokers import prepared
from tests.support.leading import Led, eventually, leading
from tests.support.requests import deploy
from tests.support.world import spec

WAIT = 30.0


class Stand:
    """A leader, three publishers known to it, and signatures required."""

    def __init__(self, bus: Bus, led: Led, folder: Path) -> None:
        self.bus, self.led = bus, led
        names = ("ops", "portal", "thief")
        self.signers = {name: Signer(name, new_key(folder / f"{name}.pem")) for name in names}
        self.publishers = {
            "ops": Publisher(key=self.signers["ops"].public_key, policy=True),
            "portal": Publisher(key=self.signers["portal"].public_key, gateway=True),
        }
        with Magnetar(bus, source="setup", signer=self.signers["ops"]) as ops:
            with pytest.raises(RequestRefused, match="UNKNOWN_PUBLISHER"):
                ops.set_policy(Policy()).accepted(WAIT)
            with Magnetar(bus, source="setup") as anybody:
                anybody.set_policy(Policy(publishers=self.publishers)).accepted(WAIT)
            ops.set_policy(Policy(publishers=self.publishers, require_signature=True)).accepted(WAIT)

    def event(self, name: str, **envelope: Any) -> ModelEvent:
        fields: dict[str, Any] = {"id": name, "source": "ci", "cluster": "local", "actor": Actor(authid="ops")}
        return ModelEvent(**{**fields, **envelope}, event=DeployModel(model=spec(name)))

    def send(self, event: ModelEvent, signer: str = "ops", **properties: str) -> f.Fact:
        """Publish a signed request as it is, and return its answer."""
        payload = MODEL_EVENT.encode(event)
        signed = self.signers[signer].sign(payload, cloudevents.of_request(event))
        return self.put(payload, {**signed, **properties}, event.event.subject)

    def put(self, payload: bytes, properties: dict[str, str], key: str) -> f.Fact:
        before = self.led.state.position
        producer = self.bus.producer(MODEL_EVENTS.name)
        place = producer.send(payload, key=key, properties=properties)
        producer.close()

        def answer() -> f.Fact | None:
            return next((fact for source, fact in self.log() if source.message_id == str(place)), None)

        eventually(lambda: self.led.state.position > before)
        return eventually(answer)

    def log(self) -> list[tuple[Input, f.Fact]]:
        """(input, first fact) of every entry."""
        found: list[tuple[Input, f.Fact]] = []
        replay(self.bus, on_record=lambda record: found.append((record.entry.input, record.entry.facts[0])))
        return found

    def stored(self, identifier: str) -> Message:
        reader = self.bus.reader(MODEL_EVENTS.name, EARLIEST)
        while (message := reader.read(1)) is not None:
            if message.properties.get("ce_id") == identifier:
                reader.close()
                return message
        raise AssertionError(identifier)


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    broker = MemoryBroker()
    with leading(lambda: MemoryBus(broker)) as led:
        yield Stand(MemoryBus(broker), led, tmp_path)
        assert led.error is None


def code(fact: f.Fact) -> str:
    return fact.code if isinstance(fact, f.RequestRejected) else type(fact).__name__


def test_history_has_what_the_leader_verified(stand: Stand) -> None:
    """A publisher, an actor that a gateway vouches for; an impostor and an unsigned request are refused, and recorded."""
    alice = Actor(authtype="user", authid="alice", authverified="signature")
    with (
        Magnetar(stand.bus, source="ci", signer=stand.signers["ops"]) as ops,
        Magnetar(stand.bus, source="web", actor=alice, signer=stand.signers["portal"]) as portal,
        Magnetar(stand.bus, source="ci", actor=alice, signer=stand.signers["ops"]) as impostor,
        Magnetar(stand.bus, source="ci", actor=alice) as unsigned,
    ):
        ops.deploy(spec("a")).accepted(WAIT)
        portal.deploy(spec("b")).accepted(WAIT)
        for refused, expected in ((impostor, "ACTOR_MISMATCH"), (unsigned, "SIGNATURE_REQUIRED")):
            with pytest.raises(RequestRefused, match=expected):
                refused.deploy(spec("c")).accepted(WAIT)
    facts = [fact for _, fact in stand.log()]
    accepted = {fact.subject: fact for fact in facts if isinstance(fact, f.RequestAccepted)}
    told = {subject: (fact.actor, fact.authverified, fact.publisher) for subject, fact in accepted.items()}
    assert told["default/a"] == ("ops", "signature", "ops")
    assert told["default/b"] == ("alice", "gateway", "portal")
    assert "default/c" not in stand.led.state.models


def test_a_thief_can_use_a_signed_message_for_nothing(stand: Stand) -> None:
    """Sent again it is a repeat; changed, or with another's signature or key, it is refused; and the log says so."""
    assert code(stand.send(stand.event("a"))) == "RequestAccepted"
    message = stand.stored("a")
    own, signed = dict(message.properties), message.payload
    other = MODEL_EVENT.encode(stand.event("b"))
    assert code(stand.put(signed, own, "x")) == "RequestRepeated"
    assert code(stand.put(other, own, "x")) == "SIGNATURE_INVALID"
    assert code(stand.put(signed, {**own, SIGNATURE: own[SIGNATURE].replace("ops:", "portal:")}, "x")) == (
        "SIGNATURE_INVALID"
    )
    assert code(stand.put(signed, {**own, SIGNATURE: "ops:" + "é" * 80}, "x")) == "SIGNATURE_INVALID"
    assert code(stand.send(stand.event("b"), "thief")) == "UNKNOWN_PUBLISHER"
    assert list(stand.led.state.models) == ["default/a"]


def test_an_old_request_is_no_request(stand: Stand) -> None:
    """Nor one from the future: its (source, id) would be forgotten before its time."""
    now, half = time.time_ns() // 10**6, Policy().request_memory_ms // 2
    assert code(stand.send(stand.event("old", time=now - half - 60_000))) == "SIGNATURE_EXPIRED"
    assert code(stand.send(stand.event("new", time=now + AHEAD_MS + 60_000))) == "SIGNATURE_EXPIRED"
    assert code(stand.send(stand.event("late", time=now - half + 60_000))) == "RequestAccepted"
    assert code(stand.send(stand.event("early", time=now + AHEAD_MS - 60_000))) == "RequestAccepted"


def test_the_embedded_broker_carries_signatures(embedded_broker: Any, tmp_path: Path) -> None:
    """The property survives a broker as it was sent, and a later leader knows the keys from the log alone."""
    connect_to = prepared(embedded_broker, str(tmp_path))
    bus = connect_to()
    with leading(connect_to) as led:
        stand = Stand(bus, led, tmp_path)
    with leading(connect_to, identity="other") as led, Magnetar(bus, source="ci", signer=stand.signers["ops"]) as ops:
        ops.deploy(spec("a")).accepted(WAIT)
        deploy(bus, "unsigned")
        eventually(lambda: any(code(fact) == "SIGNATURE_REQUIRED" for _, fact in stand.log()))
        assert list(led.state.models) == ["default/a"]
    bus.close()
