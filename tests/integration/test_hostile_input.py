"""Hostile input through whole services: it is refused with code and field, recorded, and nothing else is disturbed.

Every test deploys an honest model before and after, sees both Available, and the log read by a projector.
"""

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from magnetar_common.bus import Bus
from magnetar_common.bus.memory import MemoryBroker, MemoryBus
from magnetar_common.log import replay
from magnetar_common.render import state_digest
from magnetar_common.state import State
from magnetar_common.topics import AGENT_EVENTS, MODEL_EVENTS, SERVICE_REGISTRY
from magnetar_events import AGENT_EVENT, MODEL_EVENT, SERVICE_RECORD, ModelEvent, ServiceRecord
from magnetar_events import facts as f
from magnetar_events import reports as r
from magnetar_events.entry import Input
from magnetar_events.policy import Policy
from magnetar_events.records import Address, Device
from magnetar_events.requests import DeployModel, ScaleModel
from magnetar_events.schemas import schema_json
from magnetar_projector.projector import Projector
from magnetar_projector.read_model import MEMORY, ReadModel
from magnetar_registry.service import RegistryService
from magnetar_scheduler import leader as leader_module
from magnetar_scheduler import pending
from magnetar_scheduler.inputs import RegistryChanged
from tests.support.agents import SimulatedAgent
from tests.support.brokers import prepared
from tests.support.hostile import SAMPLES, encoded, raw_of, replaced
from tests.support.leading import Led, eventually, leading
from tests.support.requests import servers_routed
from tests.support.world import record, spec

Connect = Callable[[], Bus]
REQUESTS, REPORTS, REGISTRY = MODEL_EVENTS.name, AGENT_EVENTS.name, SERVICE_REGISTRY.name
BROKERS_LIMIT = 5 * 2**20
OVERHEAD = 16 * 2**10


def _place(source: Input) -> str:
    return f"{source.topic} {source.message_id}"


class Stand:
    """A leader, an agent and a registry service on one bus."""

    def __init__(self, connect: Connect, led: Led, agent: SimulatedAgent) -> None:
        self.connect, self.led, self.agent = connect, led, agent
        self.bus = connect()

    def put(self, topic: str, payload: bytes, *, key: str = "x", **properties: str) -> str:
        """Write a message as it is; return its place."""
        producer = self.bus.producer(topic, schema=schema_json(topic.rpartition("/")[2]))
        place = producer.send(payload, key=key, properties={k.replace("_", "-"): v for k, v in properties.items()})
        producer.close()
        return f"{topic.rpartition('/')[2]} {place}"

    def log(self) -> list[tuple[Input, tuple[f.Fact, ...]]]:
        found: list[tuple[Input, tuple[f.Fact, ...]]] = []
        replay(self.bus, on_record=lambda rec: found.append((rec.entry.input, rec.entry.facts)))
        return found

    def deploy(self, name: str = "") -> None:
        """An honest model becomes Available."""
        name = name or f"honest-{uuid.uuid4().hex[:8]}"
        wish = ModelEvent(event=DeployModel(model=spec(name, memory=1)))
        self.put(REQUESTS, MODEL_EVENT.encode(wish), key=f"default/{name}", avro_fingerprint=MODEL_EVENT.fingerprint)
        eventually(lambda: servers_routed(self.bus, f"default/{name}"), within=60, what=name)

    def answers(self, *messages: str) -> dict[str, str]:
        """(place → code) of messages, each of which is to leave one entry of one fact."""
        codes: dict[str, list[str]] = {}
        for source, facts in self.log():
            codes.setdefault(_place(source), []).extend(
                fact.code if isinstance(fact, (f.RequestRejected, f.ReportIgnored)) else type(fact).__name__
                for fact in facts
            )
        assert all(len(codes.get(message, [])) == 1 for message in messages), codes
        return {message: codes[message][0] for message in messages}


@contextlib.contextmanager
def standing(connect: Connect) -> Iterator[Stand]:
    """Everything runs; at the end it still does, and a projector reads the same state from the log."""
    stopping = threading.Event()
    registry_bus, agent_bus = connect(), connect()
    service = RegistryService(registry_bus, "registry-1", Policy(heartbeat_ms=1_000, lease_ms=3_000))
    thread = threading.Thread(target=service.run, args=(stopping,))
    thread.start()
    with leading(connect) as led:
        agent = SimulatedAgent(agent_bus, "a")
        stand = Stand(connect, led, agent)
        try:
            stand.deploy("first")
            yield stand
            stand.deploy()
            assert servers_routed(stand.bus, "default/first")
            assert led.error is None
            assert led.state.illegal == 0
            assert thread.is_alive()
            assert service.check_loop()[0]
        finally:
            stopping.set()
            thread.join(20)
            agent.die()
    projector = Projector(stand.bus, ReadModel(MEMORY))
    end = led.state.position
    eventually(lambda: (projector.step(0.1), projector.state.position == end)[1], within=60)
    assert state_digest(projector.state) == state_digest(led.state)
    projector.close()
    service.close()
    for bus in (stand.bus, agent_bus, registry_bus):
        bus.close()


@pytest.fixture
def stand() -> Iterator[Stand]:
    broker = MemoryBroker()
    with standing(lambda: MemoryBus(broker)) as stand:
        yield stand


def request(path: tuple[Any, ...], value: Any, kind: type = DeployModel) -> bytes:
    """A request with something else in one field."""
    message = next(m for _, m in SAMPLES if isinstance(getattr(m, "event", None), kind))
    payload = encoded("model-events", replaced(raw_of(message), path, value))
    assert payload is not None
    return payload


def test_hostile_requests(stand: Stand) -> None:
    """Each leaves one entry with its code; of bytes that may hold anything the log keeps size and sha256 only."""
    model = ("event", 1, "model")
    good = MODEL_EVENT.encode(ModelEvent(event=ScaleModel(name="nobody", replicas=1)))
    sent = {
        stand.put(REQUESTS, payload, **properties): code
        for payload, properties, code in (
            (b"", {}, "UNDECODABLE"),
            (b"\xff" * 1_000, {}, "UNDECODABLE"),
            (b"\x00" * 60_000, {}, "UNDECODABLE"),
            (good[:-3], {}, "UNDECODABLE"),
            (good + b"!", {}, "UNDECODABLE"),
            (bytes(BROKERS_LIMIT - OVERHEAD), {}, "TOO_LARGE"),
            (good, {"avro_fingerprint": "0123456789abcdef"}, "UNKNOWN_SCHEMA"),
            (good, {"avro_fingerprint": SERVICE_RECORD.fingerprint}, "UNKNOWN_SCHEMA"),
            (good, {"avro_fingerprint": "../../etc/passwd"}, "UNKNOWN_SCHEMA"),
            (good, {"avro_fingerprint": "f" * 1_000_000}, "UNKNOWN_SCHEMA"),
            (good, {"magnetar_signature": "x" * 1_000_000}, "SIGNATURE_INVALID"),
            (good, {"junk": "\u202e" * 500_000, "ce_id": "another"}, "NOT_FOUND"),
            (request((*model, "replicas"), 1_000_000), {}, "INVALID"),
            (request((*model, "memory"), 2**63 - 1), {}, "INVALID"),
            (request((*model, "name"), "x" * 10_000), {}, "INVALID"),
            (request((*model, "name"), "../../etc"), {}, "INVALID"),
            (request((*model, "name"), "a\u202eb"), {}, "INVALID"),
            (request((*model, "labels"), {"a\x1b[31m": "red"}), {}, "INVALID"),
            (request((*model, "labels"), {f"k{n}": "v" * 1_024 for n in range(64)}), {}, "TOO_LARGE"),
            (request(("reason",), "a\x00b"), {}, "INVALID"),
            (request(("cluster",), "../other"), {}, "INVALID"),
        )
    }
    elsewhere = stand.put(REQUESTS, request(("cluster",), "elsewhere"))
    stand.deploy()
    assert stand.answers(*sent) == sent
    entries = {_place(source): (source, facts[0]) for source, facts in stand.log()}
    assert elsewhere not in entries
    for place, code in sent.items():
        source, fact = entries[place]
        assert isinstance(fact, f.RequestRejected)
        if code in ("INVALID", "TOO_LARGE", "UNDECODABLE", "UNKNOWN_SCHEMA"):
            assert (source.data, len(source.sha256)) == (None, 64)
        if code == "INVALID":
            assert fact.field


def test_hostile_reports(stand: Stand) -> None:
    """From nobody, of nothing, too large, and an inventory of lies, which ends with what is really there."""

    def event(report: r.ReportKind, **envelope: Any) -> bytes:
        fields = {"cluster": "local", "server": "a", "incarnation": "one", "number": 10**15, "time": 0, **envelope}
        return AGENT_EVENT.encode(r.AgentEvent(**fields, report=report))

    of = {"model": "default/first", "generation": 1, "position": 2**53 - 1}
    sent = {
        stand.put(REPORTS, payload, **properties): code
        for payload, properties, code in (
            (b"\xff" * 100, {}, "UNDECODABLE"),
            (bytes(BROKERS_LIMIT - OVERHEAD), {}, "TOO_LARGE"),
            (event(r.ModelUnloaded(**of)), {}, "OLD_POSITION"),
            (event(r.ModelUnloaded(**of)), {"avro_fingerprint": "0" * 16}, "UNKNOWN_SCHEMA"),
            (event(r.ModelUnloaded(**{**of, "model": "../.."})), {}, "OLD_POSITION"),
            (event(r.ModelLoaded(**of), incarnation="forged"), {}, "UNKNOWN_AGENT"),
            (event(r.InventoryReported(), server="nobody"), {}, "UNKNOWN_AGENT"),
            (event(r.ModelLoadFailed(**of, code="\u00fc" * 1_024, message="m" * 1_024)), {}, "OLD_POSITION"),
        )
    }
    elsewhere = stand.put(REPORTS, event(r.ModelUnloaded(**of), cluster="elsewhere"))
    lies = tuple(r.InventoryModel(model=f"nobody/m{n}", generation=2**53 - 1, ready=True) for n in range(500))
    stand.put(REPORTS, event(r.InventoryReported(models=lies, strangers=("s" * 1_024,) * 100, digest="d" * 1_024)))
    stand.deploy()
    eventually(lambda: set(stand.led.state.models) <= {"default/first", *_honest(stand.led.state)}, within=60)
    eventually(lambda: servers_routed(stand.bus, "default/first"), within=60)
    assert stand.answers(*sent) == sent
    assert elsewhere not in {_place(source) for source, _ in stand.log()}


def _honest(state: State) -> set[str]:
    return {key for key in state.models if key.startswith("default/honest")}


def test_hostile_records(stand: Stand) -> None:
    """Too large, too many, not theirs: none of it joins, and none ends the leader or the registry service."""

    def put(rec: ServiceRecord, key: str = "") -> str:
        return stand.put(REGISTRY, SERVICE_RECORD.encode(rec), key=key or rec.instance_id)

    def raw(path: tuple[Any, ...], value: Any) -> bytes:
        payload = encoded("service-registry", replaced(raw_of(record("evil")), path, value))
        assert payload is not None
        return payload

    device = raw_of(record("evil"))["server"]["devices"][0]
    unreadable = [
        stand.put(REGISTRY, payload, key=f"evil/{n}")
        for n, payload in enumerate(
            (
                b"\x00 no record",
                bytes(BROKERS_LIMIT - OVERHEAD),
                raw(("server", "devices"), [{**device, "uuid": f"{n}"} for n in range(10_000)]),
                raw(("server", "devices", 0, "total"), -1),
                raw(("server", "devices", 0, "free"), 2**63 - 1),
                raw(("server", "devices", 0, "utilisation"), float("nan")),
                raw(("labels",), {"a": "x" * 2**20}),
                raw(("instanceId",), "a/0/one"),
                raw(("server", "host"), "h" * 10_000),
            )
        )
    ]
    leader = next(k for k in stand.led.leader._watch.view if k.startswith("probe/test"))  # type: ignore[union-attr]
    probe = ServiceRecord(
        service_name="probe", instance_id=leader, address=Address(host="", port=0), status="UP", timestamp=2**53 - 1
    )
    put(probe)
    put(probe.model_copy(update={"metadata": {"number": "9" * 1_000}}))
    put(probe.model_copy(update={"instance_id": "probe/registry-1", "metadata": {"number": "x"}}))
    immortal = {"server": None, "instance_id": "immortal", "metadata": {"heartbeatMs": "9" * 999}}
    put(record("immortal").model_copy(update=immortal))
    put(record("evil"), key="somebody/else")
    put(record("evil", cluster="elsewhere"))
    put(stand.agent.record.model_copy(update={"status": "DOWN", "declared_by": "forger"}))
    stand.put(REGISTRY, b"", key=stand.agent.record.instance_id)
    big = tuple(Device(uuid=f"{n}" + "\U0001f600" * 50, kind="gpu", total=2**53 - 1) for n in range(200))
    put(record("huge", devices=big, max_models=2**53 - 1, memory_bytes=2**53 - 1, over_commit_percent=1_000))
    stand.deploy()
    eventually(lambda: "local/huge/0" in stand.led.state.servers, within=60)
    assert not [key for key in stand.led.state.servers if "evil" in key]
    codes = stand.answers(*unreadable)
    assert set(codes.values()) == {"UNDECODABLE", "TOO_LARGE", "INVALID"}
    assert not stand.led.state.servers["local/a/0"].lost


def test_a_forged_goodbye_costs_a_heartbeat(stand: Stand) -> None:
    """Nobody can be told from the instance itself on this topic; its next heartbeat says otherwise, and it is back."""
    bye = stand.agent.record.model_copy(update={"status": "DOWN"})
    stand.put(REGISTRY, SERVICE_RECORD.encode(bye), key=bye.instance_id)
    eventually(lambda: any(isinstance(fact, f.ServerLost) for _, facts in stand.log() for fact in facts), within=60)
    eventually(lambda: stand.led.state.servers["local/a/0"].schedulable, within=60)
    eventually(lambda: servers_routed(stand.bus, "default/first"), within=60)


def test_a_record_that_decide_fails_on_ends_nobody(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry has no position: what is there is met by the next leader too, so it must not be what ends this one."""
    honest = leader_module.decide

    def broken(state: State, source: object, at: int) -> list[f.Fact]:
        if isinstance(source, RegistryChanged) and source.instance.startswith("poison/"):
            raise ZeroDivisionError("a defect")
        return honest(state, source, at)  # type: ignore[arg-type]

    monkeypatch.setattr(leader_module, "decide", broken)
    poison = record("poison")
    stand.put(REGISTRY, SERVICE_RECORD.encode(poison), key=poison.instance_id)
    stand.deploy()
    codes = [fact.code for _, facts in stand.log() for fact in facts if isinstance(fact, f.RequestRejected)]
    assert codes == ["DEFECT"]


def test_kinds_of_models_that_fit_nowhere_keep_no_other_from_its_place(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One entry tries few of them; the leader goes on to the next, to the last, and inputs are handled in between."""
    monkeypatch.setattr(pending, "COMPARISONS", 1)
    for n in range(6):
        wish = ModelEvent(event=DeployModel(model=spec(f"m{n}", memory=1, server=f"nowhere-{n}")))
        stand.put(REQUESTS, MODEL_EVENT.encode(wish))
    eventually(lambda: len(stand.led.state.waiting) == 6)
    agent = SimulatedAgent(stand.bus, "nowhere-5")
    eventually(lambda: servers_routed(stand.bus, "default/m5"), within=60)
    agent.die()


@pytest.fixture(params=["embedded", pytest.param("pulsar", marks=pytest.mark.pulsar)])
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Connect:
    return prepared(request.getfixturevalue(f"{request.param}_broker"), str(tmp_path))


def test_l15_poison_is_handled_once_whoever_leads(connect: Connect) -> None:
    """L15: on a broker, up to its limit: each is recorded once, the next leader does not meet it again, others flow."""
    good = MODEL_EVENT.encode(ModelEvent(event=ScaleModel(name="nobody", replicas=1)))
    bus = connect()
    agent = SimulatedAgent(bus, "a")
    with leading(connect) as led:
        stand = Stand(connect, led, agent)
        stand.deploy()
        poison = [
            stand.put(REQUESTS, bytes(BROKERS_LIMIT - OVERHEAD)),
            stand.put(REQUESTS, b"\xff\x00 junk"),
            stand.put(REQUESTS, good, avro_fingerprint="f" * 100_000),
            stand.put(REPORTS, bytes(BROKERS_LIMIT - OVERHEAD)),
            stand.put(REPORTS, b"\xff\x00 junk"),
        ]
        stand.put(REGISTRY, bytes(BROKERS_LIMIT - OVERHEAD), key="evil/0")
        stand.deploy()
    with leading(connect, identity="next") as led:
        stand.deploy()
        assert led.error is None
        assert list(stand.answers(*poison).values()) == [
            "TOO_LARGE",
            "UNDECODABLE",
            "UNKNOWN_SCHEMA",
            "TOO_LARGE",
            "UNDECODABLE",
        ]
        assert any(source.topic == "service-registry" and source.message_id for source, _ in stand.log())
        agent.die()
    stand.bus.close()
    bus.close()
