"""Any bytes at all through the leader's path: understood, decided, recorded in an entry that fits, and folded.

Whoever leads runs exactly this on an input; what raises here would end one leader after the other.
"""

import copy
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from magnetar_common.bus.memory import MemoryBroker, MemoryBus
from magnetar_common.evolve import fold
from magnetar_common.leases import Leases
from magnetar_common.probe import Probe
from magnetar_common.registrar import LEASE_INTERVALS, lease_seconds
from magnetar_common.render import canonical, state_to_dict
from magnetar_common.state import State
from magnetar_events import AGENT_EVENT, ENTRY, MODEL_EVENT, SERVICE_RECORD, Entry, ModelEvent, ServiceRecord
from magnetar_events import facts as f
from magnetar_events import reports as r
from magnetar_events.codec import Undecodable
from magnetar_events.entry import FOLD_VERSION, MAX_ENTRY_BYTES, MAX_INPUT_BYTES, Input
from magnetar_events.models import ModelSpec
from magnetar_events.policy import Policy
from magnetar_events.records import Device
from magnetar_events.requests import DeployModel, SetPolicy
from magnetar_projector.narrative import narrate
from magnetar_scheduler import inputs as i
from magnetar_scheduler import pending
from magnetar_scheduler.inputs import understand
from magnetar_scheduler.servers import news
from tests.support.hostile import CONTRACTS, HOSTILE, KINDS, SAMPLES, encoded, places, raw_of, replaced
from tests.support.world import MIB, World, record, spec

fuzzing = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))


def _deploy(model: ModelSpec) -> ModelEvent:
    return ModelEvent(event=DeployModel(model=model))


def _policy(**fields: Any) -> ModelEvent:
    return ModelEvent(event=SetPolicy(policy=Policy(**fields)))


def _busy() -> World:
    world = World()
    world.join("a")
    world.join("b")
    world.deploy(spec(replicas=2))
    world.answer(digest="a" * 64)
    world.deploy(spec("m1"))
    world.deploy(spec("waiting", memory=10**12))
    return world


_WORLD = _busy()


@pytest.fixture
def world() -> World:
    return copy.deepcopy(_WORLD)


def handle(world: World, contract: str, payload: bytes, fingerprint: str = "", key: str = "k") -> list[f.Fact]:
    """What a leader does with a message."""
    source = Input(KINDS[contract], contract, "1:2:3", key, fingerprint, payload, len(payload))
    understood = understand(source)
    if isinstance(understood, i.RegistryChanged) and not news(world.state, understood.record):  # type: ignore[arg-type]
        return []
    facts = world.feed(understood, source)
    for fact in facts:
        assert narrate(fact).isprintable()
    return facts


def still_well(world: World) -> None:
    """A model of somebody else is placed, and can be read and replayed."""
    assert world.state.illegal == 0
    world.set_policy()  # for a policy was perhaps among what was sent, and a valid one may allow a single model
    assert any(isinstance(fact, f.RequestAccepted) for fact in world.deploy(spec("honest")))
    world.pass_time(1)
    canonical(state_to_dict(world.state))
    assert max(map(len, world.payloads)) <= MAX_ENTRY_BYTES


@fuzzing
@given(data=st.data())
def test_any_field_may_hold_anything(data: st.DataObject) -> None:
    """A valid message of any kind with something else in one or two of its fields."""
    contract, message = data.draw(st.sampled_from(SAMPLES))
    raw = raw_of(message)
    for _ in range(data.draw(st.integers(1, 2))):
        path = data.draw(st.sampled_from(list(places(raw))))
        raw = replaced(raw, path, data.draw(st.sampled_from(HOSTILE)))
    payload = encoded(contract, raw)
    if payload is not None:
        world = copy.deepcopy(_WORLD)
        handle(world, contract, payload)
        still_well(world)


@fuzzing
@given(data=st.data())
def test_any_bit_may_flip(data: st.DataObject) -> None:
    """A valid message of any kind with bits flipped, cut off, or bytes added."""
    contract, message = data.draw(st.sampled_from(SAMPLES))
    payload = bytearray(CONTRACTS[contract].encode(message))
    for bit in data.draw(st.lists(st.integers(0, 8 * len(payload) - 1), min_size=0, max_size=4)):
        payload[bit // 8] ^= 1 << bit % 8
    end = data.draw(st.one_of(st.none(), st.integers(0, len(payload))))
    world = copy.deepcopy(_WORLD)
    handle(world, contract, bytes(payload[:end]) + data.draw(st.binary(max_size=4)))
    still_well(world)


@pytest.mark.parametrize("contract", CONTRACTS)
def test_every_field_takes_every_value(contract: str) -> None:
    """The same, one field at a time and without chance; what the edge refuses, it refuses with code and field."""
    world = copy.deepcopy(_WORLD)
    refused = 0
    for message in (message for name, message in SAMPLES if name == contract):
        raw = raw_of(message)
        for path in places(raw):
            for value in HOSTILE[:: 1 if len(path) < 3 else 5]:
                payload = encoded(contract, replaced(raw, path, value))
                if payload is None:
                    continue
                try:
                    CONTRACTS[contract].decode(payload, "")
                except Undecodable as error:
                    assert error.code in ("INVALID", "UNDECODABLE", "CREDENTIAL_IN_URI", "TOO_LARGE")
                    named = error.field or any(name in error.message for name in raw)  # or the message names it
                    assert named or error.code in ("UNDECODABLE", "TOO_LARGE"), (path, value)
                    refused += 1
    assert refused > 100
    still_well(world)


# --- too much of something ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("contract", CONTRACTS)
def test_a_large_message_is_refused_unread(contract: str, world: World) -> None:
    """Just under the broker's 5 MiB: the entry keeps its size and sha256, and nothing else of it."""
    limit = CONTRACTS[contract]._largest
    assert limit
    (fact,) = handle(world, contract, bytes(5 * 2**20 - 1))
    assert isinstance(fact, f.RequestRejected)
    assert (fact.code, fact.subject) == ("TOO_LARGE", contract)
    kept = world.log[-1].input
    assert (kept.data, kept.size, len(kept.sha256)) == (None, 5 * 2**20 - 1, 64)
    still_well(world)


def test_what_is_read_is_read_in_time() -> None:
    """The largest report that is read at all, made of nothing but empty items, does not hold a leader up."""
    one = r.InventoryReported(models=(r.InventoryModel.model_construct(model="", generation=0, ready=True),))
    event = next(m for name, m in SAMPLES if name == "agent-events").model_copy(update={"report": one})
    item, many = b"\x00\x00\x01\x00\x00", b"\x80\xea\x30"  # 400,000, as Avro writes it
    payload = AGENT_EVENT.encode(event).replace(b"\x02" + item, many + 400_000 * item)
    assert 1_900_000 < len(payload) <= AGENT_EVENT._largest
    began = time.process_time()
    with pytest.raises(Undecodable) as refused:
        AGENT_EVENT.decode(payload, "")
    assert refused.value.field.startswith("report.models")
    assert time.process_time() - began < 15.0  # it takes 1.5; without FailFast, and whole, it took 40


def test_the_largest_request_and_record_leave_entries_that_fit(world: World) -> None:
    """Every field as long as may be, in the characters that take most room."""
    long = "\U0001f600" * 1_000
    big = spec("big", labels={f"k{n}": long for n in range(15)})
    facts = handle(world, "model-events", MODEL_EVENT.encode(_deploy(big)))
    assert isinstance(facts[0], f.RequestAccepted)
    devices = tuple(Device(uuid=f"{n}" + "\U0001f600" * 50, kind="gpu", total=2**40) for n in range(250))
    rec = record("big", devices=devices[:200])
    assert 40_000 < len(SERVICE_RECORD.encode(rec)) <= MAX_INPUT_BYTES
    assert isinstance(handle(world, "service-registry", SERVICE_RECORD.encode(rec))[0], f.ServerJoined)
    still_well(world)


def test_replicas_on_many_devices_with_long_names_come_in_entries_that_fit() -> None:
    """64 devices a replica, 250 characters a device: a consequence is cut where the entry is full, and ends well."""
    world = World()
    devices = tuple(
        Device(uuid=f"{n:02d}" + "\U0001f600" * 200, kind="gpu", total=2**40, free=2**40, largest_free=2**40)
        for n in range(64)
    )
    for n in range(40):
        world.join(f"s{n}", devices=devices)
    world.deploy(spec("wide", devices=64, memory=1, replicas=40))
    assert len(world.state.models["default/wide"].replicas) == 40
    assert max(map(len, world.payloads)) <= MAX_ENTRY_BYTES


def test_there_is_a_limit_to_models() -> None:
    """One more is refused with a code; those that are there are changed and replaced as before."""
    world = World()
    world.request(_policy(max_models=3))
    for n in range(3):
        world.deploy(spec(f"m{n}"))
    (fact,) = world.deploy(spec("m3"))
    assert isinstance(fact, f.RequestRejected)
    assert (fact.code, fact.field) == ("TOO_MANY_MODELS", "event.model.name")
    assert isinstance(world.deploy(spec("m0", memory=1))[0], f.RequestAccepted)
    world.undeploy("m0")
    assert isinstance(world.deploy(spec("m3"))[0], f.RequestAccepted)


def test_an_agent_cannot_fill_the_state_with_models_that_nobody_wants() -> None:
    """What it says it holds is taken in up to the limit, and asked to be unloaded; the inventory is settled all the same."""
    world = World()
    world.request(_policy(max_models=50))
    rec = world.join("a")
    for held in (40, 80, 200):
        world.inventory(rec, tuple((f"x/m{n}", 1) for n in range(held)))
    assert len(world.state.models) == 50
    assert world.state.servers["local/a/0"].inventory
    world.answer()
    assert not world.state.models


def test_there_is_a_limit_to_servers_and_the_lost_make_room() -> None:
    """One more is not taken in; once one is lost, it is forgotten for the newcomer."""
    world = World()
    world.request(_policy(max_servers=3))
    for n in range(3):
        world.join(f"s{n}")
    assert not news(world.state, record("s3"))
    assert not world.registry(record("s3"))
    world.lapse("s1")
    assert news(world.state, record("s3")) == "registry"
    assert [type(fact).__name__ for fact in world.registry(record("s3"))] == ["ServerForgotten", "ServerJoined"]
    assert sorted(world.state.servers) == ["local/s0/0", "local/s2/0", "local/s3/0"]


def test_remembered_requests_are_bounded() -> None:
    """The oldest are forgotten first, and the memory that is left says how far back a repeat is known."""
    world = World()
    world.request(_policy(max_requests=1_000))
    assert world.state.memory_ms() == world.state.policy.request_memory_ms
    for n in range(1_500):
        world.at += 1_000
        world.scale(1, f"nobody-{n}")
    assert len(world.state.requests) == 1_000
    assert world.state.memory_ms() == 999_000


def test_generations_of_models_long_gone_are_bounded_and_never_come_again() -> None:
    """A model whose generation was forgotten begins above every forgotten one."""
    world = World()
    world.request(_policy(max_models=10))
    for n in range(60):
        for generation in range(1 + n % 3):
            world.deploy(spec(f"m{n}", memory=generation))
        world.undeploy(f"m{n}")
    assert len(world.state.generations) <= 21
    floor = world.state.floor
    assert floor >= 3
    world.deploy(spec("m0"))
    assert world.state.models["default/m0"].generation == floor + 1
    assert world.replayed() == world.state


def test_lives_of_a_server_are_bounded() -> None:
    """An agent that restarts without end (or one who forges its lives) does not fill the state."""
    state = State()
    fold_all(state, [f.ServerJoined("local/a/0", record("a"), 0)])
    fold_all(state, [f.ServerSuperseded("local/a/0", f"life-{n}") for n in range(1_200)])
    assert len(state.servers["local/a/0"].superseded) == 1_000
    assert "life-1199" in state.servers["local/a/0"].superseded


def fold_all(state: State, facts: list[f.Fact]) -> None:
    entry = Entry("x", state.position + 1, 1, 0, 0, FOLD_VERSION, Input("timer"), {}, tuple(facts))
    assert fold(state, ENTRY.decode_trusted(ENTRY.encode(entry), ""))


def test_many_kinds_of_models_that_fit_nowhere_are_not_all_tried_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would be compared with every server: an entry's worth of tries is bounded, and all are tried in the end."""
    monkeypatch.setattr(pending, "COMPARISONS", 10)
    world = World()
    world.join("a", memory=10 * MIB)
    for n in range(23):
        world.deploy(spec(f"m{n:02d}", memory=MIB, server=f"nowhere-{n}"))
    world.join("nowhere-22")
    assert not world.states("default/m22"), "its turn has not come"
    skip, tried = 0, 0
    while True:
        facts = world.feed(i.Continue(skip), Input("continue", subject=str(skip)))
        tried += 1
        if facts:
            break
        skip += pending.tries(world.state)
        assert pending.more_to_try(world.state, skip)
    assert (skip, tried) == (20, 5)
    assert world.states("default/m22")
    again = understand(world.log[-1].input)
    assert again == i.Continue(20)


def test_like_models_are_tried_once_however_many_wait() -> None:
    """A thousand of one kind are one try: nothing more is to be tried after it."""
    world = World()
    world.join("a", memory=MIB)
    for n in range(300):
        world.deploy(spec(f"m{n}", server="nowhere"))
    assert not pending.more_to_try(world.state, 1)


# --- what ended a process, once ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", ["", "x", "-1", "1.5", "²", "9" * 1_000, "nan"])
def test_a_forged_probe_ends_nobody(number: str) -> None:
    """Its number is text that anybody can write under a leader's key."""
    bus = MemoryBus(MemoryBroker())
    leases = Leases(Policy(), 0.0)
    probe = Probe(bus, "leader", leases)
    forged = record("a").model_copy(
        update={"instance_id": probe.key, "server": None, "metadata": {"number": number} if number else {}}
    )
    probe.seen(ServiceRecord.model_validate(forged.model_dump()), 1.0)
    probe.close()
    bus.close()


@pytest.mark.parametrize("announced", ["9" * 1_000, "9" * 9, "86400001", "-5", "nan", "1e308", "٣", "x", ""])
def test_nobody_lives_for_ever_by_saying_so(announced: str) -> None:
    """A lease that is no sensible number is the default one."""
    claimed = record("a").model_copy(update={"metadata": {"heartbeatMs": announced}})
    assert lease_seconds(claimed) == LEASE_INTERVALS * 15.0


def test_retries_wait_for_a_time_that_can_be_written() -> None:
    """However often a load failed, the next attempt is due at a number that an entry holds."""
    world = World()
    world.request(_policy(load_attempts=100, load_retry_ms=86_400_000))
    world.join("a")
    world.deploy()
    for _ in range(99):
        (key,) = world.state.outstanding
        world.fail_load(key)
        world.at = world.state.next_due()
        world.feed(i.TimerDue(), Input("timer"))
    assert world.at < 2**53


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("leaseMs", 0),
        ("leaseMs", -1),
        ("leaseMs", 2**62),
        ("heartbeatMs", 0),
        ("resendMs", 0),
        ("resendMs", 2**63 - 1),
        ("evictionShare", 10.0),
        ("evictionShare", float("nan")),
        ("evictionsPerMinute", 0),
        ("loadAttempts", 0),
        ("loadTimeoutMs", 0),
        ("piece", 0),
        ("piece", 10**6),
        ("maxModels", 0),
        ("maxServers", -1),
        ("maxRequests", 1),
        ("forgetServerMs", 0),
    ],
)
def test_a_hostile_policy_is_refused_with_its_field(field: str, value: Any, world: World) -> None:
    """And the one in force stays."""
    before = world.state.policy
    raw = replaced(raw_of(_policy()), ("event", 1, "policy", field), value)
    payload = encoded("model-events", raw)
    assert payload is not None
    (fact,) = handle(world, "model-events", payload)
    assert isinstance(fact, f.RequestRejected)
    assert (fact.code, fact.field) == ("INVALID", f"event.policy.{field}")
    assert world.state.policy == before
    still_well(world)
