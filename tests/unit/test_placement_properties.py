"""Placement by property: over any fleet and any sequence of wishes, answers and losses."""

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from magnetar_common.evolve import fold
from magnetar_common.fleet import Fleet
from magnetar_common.state import State
from magnetar_common.transitions import ARRIVING
from magnetar_events import ENTRY, ModelEvent
from magnetar_events import facts as f
from magnetar_events.records import Device
from magnetar_events.requests import DeployModel
from magnetar_scheduler import inputs as i
from magnetar_scheduler.decide import decide
from magnetar_scheduler.placement.explain import explain_entry
from magnetar_scheduler.plan import Leaver, plan
from tests.support.world import MIB, World, spec
from tests.unit import test_core_properties as core

NAMES = tuple("abcdef")
MODELS = ("m1", "m2", "m3", "m4")


@st.composite
def gpu(draw: Any, number: int) -> Device:
    total = draw(st.sampled_from((100, 300)))
    free = draw(st.sampled_from((total, total, total // 2, 0)))
    return Device(
        uuid=f"GPU-{number}",
        kind="gpu",
        gpu_type=draw(st.sampled_from(("A100", "T4"))),
        total=total * MIB,
        free=free * MIB,
        largest_free=draw(st.sampled_from((free, free, free // 2))) * MIB,
        utilisation=draw(st.sampled_from((0.0, 0.0, 0.9))),
        error=draw(st.sampled_from(("", "", "", "gone"))),
    )


@st.composite
def server(draw: Any, name: str) -> dict[str, Any]:
    """What a server says of itself. Each has its own devices: a host's GPUs are numbered by server."""
    number = NAMES.index(name)
    devices = [draw(gpu(10 * number + n)) for n in range(draw(st.integers(0, 2)))]
    memory = draw(st.sampled_from((150, 400))) * MIB
    host = Device(uuid="cpu", total=memory, free=memory, largest_free=memory)
    return {
        "server": name,
        "devices": (host, *devices),
        "host": draw(st.sampled_from(("h1", "h1", "h2", ""))),
        "zone": draw(st.sampled_from(("", "z1", "z2"))),
        "over_commit_percent": draw(st.sampled_from((0, 0, 50))),
        "max_models": draw(st.sampled_from((0, 0, 0, 2))),
        "memory_bytes": draw(st.sampled_from((0, 0, 0, 200 * MIB))),
        "capabilities": draw(st.sampled_from((("sklearn",), ("sklearn", "onnx")))),
    }


FLEET = st.lists(st.sampled_from(NAMES), min_size=2, max_size=6, unique=True).flatmap(
    lambda names: st.tuples(*(server(name) for name in names))
)

WISH = st.builds(
    dict,
    name=st.sampled_from(MODELS),
    memory=st.sampled_from((0, 40 * MIB, 90 * MIB)),
    devices=st.sampled_from((0, 0, 0, 1, 2)),
    replicas=st.integers(1, 4),
    requirements=st.sampled_from((("sklearn",), ("sklearn",), ("onnx",))),
    gpu_types=st.sampled_from(((), (), ("T4",))),
    artifact_digest=st.sampled_from(("", "a" * 64)),
    priority=st.sampled_from((0, 0, 1, 2)),
)

POLICY = st.builds(
    dict,
    anti_affinity=st.sampled_from(("server", "soft", "host")),
    loads_per_server=st.integers(0, 2),
    loads_in_cluster=st.sampled_from((0, 0, 3)),
    preemption=st.sampled_from(("never", "lower-priority")),
    rollout_unavailable=st.sampled_from((0, 1)),
)

STEP = st.one_of(
    st.tuples(st.just("deploy"), WISH),
    st.tuples(st.just("deploy"), WISH),
    st.tuples(st.just("scale"), st.tuples(st.sampled_from(MODELS), st.integers(0, 4))),
    st.tuples(st.just("undeploy"), st.sampled_from(MODELS)),
    st.tuples(st.just("answer"), st.integers(0, 9)),
    st.tuples(st.just("answer"), st.integers(0, 9)),
    st.tuples(st.just("fail"), st.integers(0, 9)),
    st.tuples(st.just("lapse"), st.sampled_from(NAMES)),
    st.tuples(st.just("time"), st.sampled_from((1_500, 70_000))),
    st.tuples(st.just("policy"), POLICY),
)
STEPS = st.lists(STEP, min_size=8, max_size=30)

slow = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def apply(world: World, action: str, what: Any) -> None:
    match action:
        case "deploy":
            world.deploy(spec(**what))
        case "scale":
            world.scale(what[1], what[0])
        case "undeploy":
            world.undeploy(what)
        case "answer" | "fail" if world.state.outstanding:
            keys = sorted(world.state.outstanding)
            key = keys[what % len(keys)]
            if action == "fail" and world.state.command_of(world.state.outstanding[key]) == "LoadModel":
                world.fail_load(key, "LOAD_FAIL_MEMORY")
            else:
                world.answer_one(key, digest="a" * 64)
        case "lapse" if f"local/{what}/0" in world.state.servers:
            world.lapse(what)
        case "policy":
            world.set_policy(**what)
        case "time":
            world.pass_time(what)
        case _:
            pass


def history(fleet: Any, policy: Any, steps: Any) -> World:
    """A world in which all this has happened; what must hold after each step is checked."""
    world = World()
    world.set_policy(**policy)
    for fields in fleet:
        world.join(**fields)
    for action, what in steps:
        apply(world, action, what)
        check_books(world.state)
    return world


def check_books(state: State) -> None:
    """No device is booked beyond what its server promises, and loads are counted as they are."""
    assert state.illegal == 0
    core.check_fleet(state)
    arriving: dict[str, int] = {}
    for each in state.servers.values():
        loads = sum(replica.state in ARRIVING for replica in each.replicas.values())
        if loads:
            arriving[each.key] = loads
        booked = sum(booking.bytes for replica in each.replicas.values() for booking in replica.bookings)
        assert booked == each.booked
        if each.info.memory_bytes:
            assert booked <= each.info.memory_bytes * (100 + each.info.over_commit_percent) // 100
        if each.info.max_models:
            assert len(each.replicas) <= each.info.max_models
    assert state.loading == arriving
    for (host, uuid), amount in state.booked.items():
        promised = [
            each.devices[uuid].total * (100 + each.info.over_commit_percent) // 100
            for each in state.servers.values()
            if each.info.host == host and uuid in each.devices
        ]
        assert amount <= max(promised), f"{uuid} of {host} is booked beyond its promise"


def entries(world: World) -> Any:
    """Yield (state before, entry) for every entry of the log."""
    state = State()
    for payload, schema in zip(world.payloads, world.schemas, strict=True):
        entry = ENTRY.decode_trusted(payload, schema)
        yield state, entry
        fold(state, entry)


@slow
@given(FLEET, POLICY, STEPS)
def test_no_placement_breaks_a_rule(fleet: Any, policy: Any, steps: Any) -> None:
    """Memory, limits of loads, anti-affinity: at every fact of every history."""
    for state, entry in entries(history(fleet, policy, steps)):
        loads = state.loading.copy()
        gone = {
            (fact.model, fact.generation, fact.server)
            for fact in entry.facts
            if isinstance(fact, f.ReplicaChanged)
            and fact.after not in ("LoadRequested", "Loading", "Loaded", "Available")
        }
        held: dict[tuple[str, int], list[str]] = {}
        for model in state.models.values():
            for replica in model.replicas.values():
                if replica.live and replica.key not in gone:
                    held.setdefault((replica.model, replica.generation), []).append(replica.server)
        for fact in entry.facts:
            if isinstance(fact, f.ReplicaChanged):
                loads[fact.server] += (fact.after in ARRIVING) - (fact.before in ARRIVING)
            if not isinstance(fact, f.ReplicaPlaced):
                continue
            rules = state.policy
            loads[fact.server] += 1
            assert not rules.loads_per_server or loads[fact.server] <= rules.loads_per_server
            assert not rules.loads_in_cluster or loads.total() <= rules.loads_in_cluster
            others = held.setdefault((fact.model, fact.generation), [])
            assert fact.server not in others
            if rules.anti_affinity == "host":
                hosts = {state.servers[other].info.host for other in others}
                assert state.servers[fact.server].info.host not in hosts
            others.append(fact.server)


@slow
@given(FLEET, POLICY, STEPS)
def test_explain_agrees_with_what_was_decided(fleet: Any, policy: Any, steps: Any) -> None:
    """The server that was placed on is the one that is explained, and where nothing fitted a rule stands at each server."""
    for state, entry in entries(history(fleet, policy, steps)):
        placing = [fact for fact in entry.facts if isinstance(fact, (f.ReplicaPlaced, f.PlacementRefused))]
        for model in {fact.model for fact in placing}:
            mine = [fact for fact in placing if fact.model == model]
            found = explain_entry(state, entry.at, entry.facts, model)
            assert len(found) == len(mine)
            for fact, told in zip(mine, found, strict=True):
                assert told.agrees
                verdicts = {each.server: each for each in told.servers}
                assert verdicts.keys() == state.servers.keys()
                if isinstance(fact, f.PlacementRefused):
                    assert all(each.rule for each in told.servers)
                    continue
                assert told.server == fact.server
                assert [each.server for each in told.servers if each.chosen] == [fact.server]
                assert verdicts[fact.server].total == fact.best[0].score
                compared = [each.total for each in told.servers if each.compared]
                assert verdicts[fact.server].total == min(compared)
                assert {each.server for each in fact.best} <= {each.server for each in told.servers if each.compared}
                level = verdicts[fact.server].total
                better = [each for each in told.servers if not each.rule and each.total < level]
                assert all(int(each.total) == int(level) for each in better), "only an equal may be overlooked"


def reordered(state: State) -> State:
    """The same state, with every dictionary that is asked for a key in another order."""
    other = State()
    for name in State.__slots__:
        setattr(other, name, getattr(state, name))
    for name in ("servers", "models", "booked", "arriving"):
        setattr(other, name, dict(reversed(getattr(state, name).items())))
    other.fleet = Fleet()
    for each in other.servers.values():
        each.devices = dict(reversed(each.devices.items()))
        each.replicas = dict(reversed(each.replicas.items()))
        other.fleet.touch(each)
    for model in other.models.values():
        model.replicas = dict(reversed(model.replicas.items()))
        model.held = dict(reversed(model.held.items()))
    return other


def outcomes(facts: list[f.Fact]) -> list[f.Fact]:
    return [fact for fact in facts if isinstance(fact, (f.ReplicaPlaced, f.PlacementRefused, f.RequestAccepted))]


@slow
@given(FLEET, POLICY, STEPS, WISH)
def test_the_order_of_dictionaries_decides_nothing(fleet: Any, policy: Any, steps: Any, wish: Any) -> None:
    """Two leaders that hold the same in another order come to the same."""
    world = history(fleet, policy, steps)
    source = i.Request(ModelEvent(id="x", source="test", event=DeployModel(model=spec(**wish))))
    expected = outcomes(decide(world.snapshot(), source, world.at))
    assert outcomes(decide(reordered(world.snapshot()), source, world.at)) == expected


@slow
@given(FLEET, POLICY, STEPS, WISH)
def test_a_plan_is_what_then_happens(fleet: Any, policy: Any, steps: Any, wish: Any) -> None:
    """Planned, and then wanted: the same servers in the same order, and the same replicas leave; the world is as it was."""
    world = history(fleet, policy, steps)
    before = world.snapshot()
    planned = plan(world.snapshot(), DeployModel(model=spec(**wish)))
    assert world.state == before
    facts = world.deploy(spec(**wish))
    placed = [fact.server for fact in facts if isinstance(fact, f.ReplicaPlaced) and fact.model == planned.model]
    assert [each.server for each in planned.placements if each.server] == placed
    assert [(each.model, each.generation, each.server, each.reason) for each in planned.leavers] == [
        (fact.model, fact.generation, fact.server, fact.reason)
        for fact in facts
        if isinstance(fact, f.ReplicaChanged) and fact.after in ("UnrouteRequested", "UnloadRequested")
    ]
    assert planned.generation == world.state.models[planned.model].generation


def test_a_plan_tells_who_would_leave() -> None:
    """Others of lower priority, and of its own old version the replica whose place the new one takes."""
    world = World()
    world.set_policy(preemption="lower-priority", rollout_unavailable=1)
    world.join("a", memory=200 * MIB)
    world.deploy(spec("low", memory=150 * MIB))
    world.answer()
    for wish, reason in (
        (spec("high", memory=150 * MIB, priority=5), "makes room for default/high v1 of priority 5"),
        (spec("low", memory=150 * MIB, storage_uri="file:///2"), "makes room for version 2"),
    ):
        planned = plan(world.snapshot(), DeployModel(model=wish))
        assert [each.server for each in planned.placements] == [""]
        assert planned.leavers == (Leaver("default/low", 1, "local/a/0", reason),)
