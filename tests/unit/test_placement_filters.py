"""Every filter by example: whom it turns down, whom not, and with which sentence."""

from collections.abc import Callable

import pytest

from magnetar_common.status import ModelState, model_status
from magnetar_common.transitions import R
from magnetar_events import facts as f
from magnetar_events.entry import Input
from magnetar_events.records import Device
from magnetar_scheduler import inputs as i
from magnetar_scheduler.draft import Draft
from magnetar_scheduler.placement import Placed, Refused, place
from magnetar_scheduler.placement.filters import FILTERS, RULES
from tests.support.world import MIB, World, spec
from tests.unit.test_core_properties import check_fleet

IRIS = "default/iris"
A, B = "local/a/0", "local/b/0"


def gpu(uuid: str = "GPU-1", *, free: int = 1000, largest: int = 0, **fields: object) -> Device:
    """A GPU of 1,000 MiB."""
    values = {"kind": "gpu", "gpu_type": "A100", "total": 1000 * MIB, "free": free * MIB, "utilisation": 0.1}
    return Device(uuid=uuid, largest_free=(largest or free) * MIB, **{**values, **fields})  # type: ignore[arg-type]


def placed(world: World, model: str = IRIS) -> list[str]:
    return sorted(replica.server for replica in world.state.models[model].replicas.values())


def refusal(world: World, model: str = IRIS) -> f.PlacementRefused | None:
    return world.state.models[model].target.refused


def rules(world: World, model: str = IRIS) -> dict[str, int]:
    """Rule → servers that it turned down."""
    refused = refusal(world, model)
    return {count.rule: count.servers for count in refused.refusals} if refused else {}


def _lost(world: World) -> None:
    world.join("a")
    world.lapse("a")
    world.deploy()


def _draining(world: World) -> None:
    world.registry(world.join("a").model_copy(update={"status": "DRAINING"}))
    world.deploy()


def _starting(world: World) -> None:
    world.registry(world.join("a").model_copy(update={"status": "STARTING"}))
    world.deploy()


def _stale(world: World) -> None:
    world.join("a")
    world.feed(i.ReadingStale(A), Input("stale", subject=A))
    world.deploy()


def _in_cluster(world: World) -> None:
    world.set_policy(loads_in_cluster=1)
    world.join("a")
    world.deploy(spec("other"))
    world.deploy()


def _on_server(world: World) -> None:
    world.set_policy(loads_per_server=1)
    world.join("a")
    world.deploy(spec("other"))
    world.deploy()


def _runtime(world: World) -> None:
    world.join("a")
    world.deploy(spec(runtime={"kind": "triton"}))


def _requirements(world: World) -> None:
    world.join("a")
    world.deploy(spec(requirements=("onnx",)))


def _gpu_type(world: World) -> None:
    world.join("a", devices=(gpu(),))
    world.deploy(spec(devices=1, gpu_types=("H100",)))


def _pinned(world: World) -> None:
    world.join("a")
    world.deploy(spec(server="b"))


def _beside(world: World) -> None:
    world.join("a")
    world.deploy(spec(replicas=2))


def _same_host(world: World) -> None:
    world.set_policy(anti_affinity="host")
    world.join("a", host="one")
    world.join("b", host="one")
    world.deploy(spec(replicas=2))


def _max_models(world: World) -> None:
    world.join("a", max_models=1)
    world.deploy(spec("other"))
    world.deploy()


def _memory_limit(world: World) -> None:
    world.join("a", memory_bytes=150 * MIB)
    world.deploy(spec("other"))
    world.deploy()


def _devices(world: World) -> None:
    world.join("a", devices=(gpu("GPU-1"), gpu("GPU-2", error="fell off the bus")))
    world.deploy(spec(devices=2))


def _busy(world: World) -> None:
    world.join("a", devices=(gpu("GPU-1"), gpu("GPU-2", utilisation=0.8)))
    world.deploy(spec(devices=2))


def _memory(world: World) -> None:
    world.join("a", devices=(gpu(free=99),))
    world.deploy(spec(devices=1))


def _largest_block(world: World) -> None:
    world.join("a", devices=(gpu(free=500, largest=99),))
    world.deploy(spec(devices=1))


@pytest.mark.parametrize(
    ("rule", "make"),
    [
        ("lost", _lost),
        ("draining", _draining),
        ("starting", _starting),
        ("stale", _stale),
        ("loads-in-cluster", _in_cluster),
        ("loads-on-server", _on_server),
        ("runtime", _runtime),
        ("requirements", _requirements),
        ("gpu-type", _gpu_type),
        ("server", _pinned),
        ("beside", _beside),
        ("same-host", _same_host),
        ("max-models", _max_models),
        ("memory-limit", _memory_limit),
        ("devices", _devices),
        ("busy", _busy),
        ("memory", _memory),
        ("largest-block", _largest_block),
    ],
)
def test_a_rule_says_no_in_its_own_words(rule: str, make: Callable[[World], None]) -> None:
    """The rule is counted, and its sentence is in the message that the user reads."""
    world = World()
    make(world)
    assert rule in rules(world)
    refused = refusal(world)
    assert refused is not None
    assert RULES[rule] in refused.message
    assert RULES[rule] in model_status(world.state.models[IRIS]).reason


def test_where_it_failed_it_is_not_tried_again() -> None:
    """The next server is another one; and what has no other has failed."""
    world = World()
    world.join("a")
    world.join("b")
    world.deploy()
    world.fail_load(next(iter(world.state.outstanding)), "LOAD_FAIL_MEMORY")
    world.answer(limit=1)
    assert B in placed(world)
    world.fail_load(next(k for k, x in world.state.outstanding.items() if k.server == B), "LOAD_FAIL_MEMORY")
    assert model_status(world.state.models[IRIS]).state is ModelState.FAILED


def test_who_failed_somewhere_and_waits_for_a_load_to_end_has_not_failed() -> None:
    """A limit of loads goes away by itself: it is placed elsewhere once one has ended."""
    world = World()
    world.set_policy(loads_in_cluster=2)
    world.join("a")
    world.join("b")
    world.deploy(spec(server="a"))
    world.undeploy()
    world.answer()
    world.pass_time(10_000)
    world.deploy()
    world.deploy(spec("other", server="b"))
    world.set_policy(loads_in_cluster=1)
    world.fail_load(next(key for key in world.state.outstanding if key.model == IRIS), "LOAD_FAIL_MEMORY")
    assert rules(world) == {"loads-in-cluster": 2}
    assert model_status(world.state.models[IRIS]).state is not ModelState.FAILED
    world.answer()
    assert placed(world) == [B]


@pytest.mark.parametrize("limit", [{"loads_per_server": 2}, {"loads_in_cluster": 4}])
def test_no_more_loads_than_the_limit_and_none_is_forgotten(limit: dict[str, int]) -> None:
    """Whatever is wanted at once; each load that ends lets the next begin, until all is done."""
    world = World()
    world.set_policy(**limit)
    world.join("a")
    world.join("b")
    for n in range(9):
        world.deploy(spec(f"m{n}", memory=MIB))
    seen = 0
    while world.state.outstanding:
        loading = world.state.loading
        assert loading.total() <= 4
        assert max(loading.values()) <= limit.get("loads_per_server", 4)
        seen = max(seen, loading.total())
        world.answer_one(next(iter(world.state.outstanding)))
    assert seen == 4
    assert all(model_status(model).state is ModelState.AVAILABLE for model in world.state.models.values())
    assert not world.state.loading


@pytest.mark.parametrize(("rules", "moved"), [({}, 0), ({"loads_per_server": 1}, 1), ({"loads_in_cluster": 1}, 1)])
def test_the_end_of_a_load_makes_the_leader_try_what_waits(rules: dict[str, int], moved: int) -> None:
    """It counts as room that was found, if there is a limit; whichever way the load ends."""
    world = World()
    world.set_policy(**rules)
    world.join("a")
    world.deploy()
    before = world.state.room
    world.answer()
    assert world.state.room == before + moved
    world.inventory(world.of("a"))  # it dropped the model, which is loaded again
    assert world.state.loading == {A: 1}
    before = world.state.room
    world.lapse("a")
    assert world.state.room == before + moved
    assert not world.state.loading


def test_where_a_load_ends_the_next_may_begin_in_the_same_entry() -> None:
    """The fleet's index holds the server for full until the entry is folded; the draft knows better."""
    world = World()
    world.set_policy(loads_per_server=1)
    world.join("a")
    world.deploy(spec("other"))
    draft = Draft(world.state, world.at)
    draft.emit(f.ModelWanted(IRIS, 1, spec()))
    wanted = draft.model(IRIS)
    assert wanted is not None
    assert isinstance(place(draft, wanted, wanted.target), Refused)
    draft.change(world.state.models["default/other"].replicas[1, A], R.LOADED)
    answer = place(draft, wanted, wanted.target)
    assert isinstance(answer, Placed)
    assert answer.server == A


def test_the_limit_on_a_server_may_come_and_go() -> None:
    """Whoever is full by it is passed over, and no longer once it is gone."""
    world = World()
    world.join("a")
    world.deploy(spec("one"))
    world.set_policy(loads_per_server=1)
    world.deploy(spec("two"))
    check_fleet(world.state)
    assert rules(world, "default/two") == {"loads-on-server": 1}
    world.set_policy()
    check_fleet(world.state)
    assert placed(world, "default/two") == [A]


def test_a_failed_load_and_a_lost_server_end_loads_too() -> None:
    """Who waits is tried whenever a load ends, however it ends."""
    world = World()
    world.set_policy(loads_in_cluster=1)
    world.join("a")
    world.join("b")
    world.deploy(spec("one"))
    world.deploy(spec("two"))
    assert rules(world, "default/two") == {"loads-in-cluster": 2}
    world.lapse("a")
    assert placed(world, "default/two") or placed(world, "default/one") == [A, B]
    assert world.state.loading.total() == 1


def test_fragmented_memory_is_enough_for_what_fits_into_a_block() -> None:
    """The largest block decides, and the promise of over-commit is added to it."""
    world = World()
    world.join("a", devices=(gpu(free=500, largest=120),))
    world.deploy(spec(devices=1))
    assert placed(world) == [A]
    world.deploy(spec("more", devices=1))
    assert rules(world, "default/more") == {"largest-block": 1}
    world.join("b", devices=(gpu(free=500, largest=50),), over_commit_percent=10)
    assert placed(world, "default/more") == [B]


def test_a_version_loads_beside_the_one_before() -> None:
    """Else nothing could be rolled out on a full fleet; ``host`` keeps only the same version apart."""
    world = World()
    world.set_policy(anti_affinity="host")
    world.join("a")
    world.deploy()
    world.answer()
    world.deploy(spec(storage_uri="file:///v2"))
    assert placed(world) == [A, A]


def test_soft_anti_affinity_gives_way_where_hosts_are_too_few() -> None:
    """Another host first, however loaded; the same host only when no other takes it, and never the same server."""
    world = World()
    assert world.state.policy.anti_affinity == "soft"
    for server, host in (("a", "one"), ("b", "one"), ("c", "two")):
        world.join(server, host=host)
    for n in range(30):
        world.deploy(spec(f"m{n}", server="c", memory=MIB))
    world.deploy(spec(replicas=2))
    assert placed(world) == [A, "local/c/0"]
    world.scale(3)
    assert placed(world) == [A, B, "local/c/0"]
    world.scale(4)
    assert rules(world) == {"beside": 3}


def test_hard_anti_affinity_waits_for_another_host() -> None:
    """And takes it when it comes."""
    world = World()
    _same_host(world)
    assert placed(world) == [A]
    assert rules(world) == {"beside": 1, "same-host": 1}
    world.join("c", host="two")
    assert placed(world) == [A, "local/c/0"]


def test_one_server_for_two_replicas_serves_one_and_says_so() -> None:
    """Partial placement: what fits serves, and the status says what is missing and why."""
    world = World()
    world.join("a")
    world.deploy(spec(replicas=2))
    world.answer()
    status = model_status(world.state.models[IRIS])
    assert (status.state, status.available, status.wanted, status.code) == (ModelState.DEGRADED, 1, 2, "NO_ROOM")
    assert status.reason == "1 of 2 replicas is missing: fits on none of 1 server: 1 already holding this version"
    world.join("b")
    world.answer()
    assert model_status(world.state.models[IRIS]).state is ModelState.AVAILABLE


def test_every_rule_has_a_name_of_its_own() -> None:
    """Two filters never speak in one name, and there is a sentence for each."""
    names = [rule for each in FILTERS for rule in each.rules]
    assert len(names) == len(set(names))
    assert all(RULES.values())
