"""The decider by example: what follows from one request, one report, one loss."""

from magnetar_common.status import ModelState, model_status
from magnetar_common.transitions import R
from magnetar_events import ModelEvent
from magnetar_events import facts as f
from magnetar_events import reports as r
from magnetar_events.policy import Policy
from magnetar_events.records import Device
from magnetar_events.requests import DeployModel, SetPolicy
from magnetar_scheduler.servers import INVENTORY_LEASES
from tests.support.world import MIB, World, record, spec

IRIS = "default/iris"


def kinds(facts: list[f.Fact]) -> list[str]:
    return [type(fact).__name__ for fact in facts]


def status(world: World, model: str = IRIS) -> ModelState:
    return model_status(world.state.models[model]).state


def test_deploy_places_loads_and_routes() -> None:
    """A wish becomes a placement in its own entry, and an Available replica with the report of its load."""
    world = World()
    world.join("a")
    facts = world.deploy()
    assert kinds(facts) == ["RequestAccepted", "ModelWanted", "ReplicaPlaced"]
    assert status(world) is ModelState.PROGRESSING
    world.answer(digest="a" * 64)
    assert world.states() == {(1, "local/a/0"): R.AVAILABLE}
    assert status(world) is ModelState.AVAILABLE
    assert world.state.models[IRIS].target.digest == "a" * 64


def test_equal_spec_makes_no_new_generation() -> None:
    """Applying the same manifest twice is accepted and changes nothing."""
    world = World()
    world.join("a")
    world.deploy()
    world.answer()
    before = world.snapshot()
    assert kinds(world.deploy()) == ["RequestAccepted"]
    assert world.state.models == before.models


def test_retry_of_a_request_is_recorded_as_repeat() -> None:
    """The same (source, id) twice is one wish."""
    world = World()
    world.join("a")
    event = ModelEvent(id="x", source="ci", event=DeployModel(model=spec()))
    world.request(event)
    position = world.state.requests["ci", "x"][0]
    facts = world.request(event)
    assert facts == [f.RequestRepeated("x", "ci", position)]


def test_expected_generation_guards() -> None:
    """A wish based on an old view of the model is refused and names both generations."""
    world = World()
    world.deploy()
    facts = world.deploy(spec(memory=1), expected_generation=0)
    assert isinstance(facts[0], f.RequestRejected)
    assert (facts[0].code, facts[0].field) == ("GENERATION_CONFLICT", "expectedGeneration")
    assert kinds(world.deploy(spec(memory=1), expected_generation=1))[1] == "ModelWanted"


def test_unknown_model_cannot_be_undeployed_or_scaled() -> None:
    """A wish about a model that does not exist is refused, with the field."""
    world = World()
    for facts in (world.undeploy("nope"), world.scale(2, "nope")):
        assert isinstance(facts[0], f.RequestRejected)
        assert facts[0].code == "NOT_FOUND"


def test_model_that_fits_nowhere_says_why_and_is_placed_when_it_fits() -> None:
    """ScheduleFailed names each rule with a count; a server with room ends it without another request."""
    world = World()
    world.join("small", memory=50 * MIB)
    world.join("other", capabilities=("torch",))
    facts = world.deploy()
    refused = next(fact for fact in facts if isinstance(fact, f.PlacementRefused))
    assert {c.rule: c.servers for c in refused.refusals} == {"memory": 1, "requirements": 1}
    assert "1 without enough free memory" in refused.message
    assert status(world) is ModelState.SCHEDULE_FAILED
    world.join("big")
    world.answer()
    assert status(world) is ModelState.AVAILABLE


def test_scale_up_and_down() -> None:
    """Scaling places more, and lets go of the surplus in the order unroute, grace, unload."""
    world = World()
    for name in "abc":
        world.join(name)
    world.deploy()
    world.answer()
    world.scale(3)
    world.answer()
    assert len(world.states()) == 3
    world.scale(1)
    assert sorted(world.states().values()) == [R.AVAILABLE, R.UNROUTE_REQUESTED, R.UNROUTE_REQUESTED]
    assert not world.state.outstanding  # traffic has left the table, and the grace runs
    world.pass_time(world.state.policy.unload_grace_ms + 1)
    assert [world.state.command_of(x) for x in world.state.outstanding.values()] == ["UnloadModel"] * 2
    world.answer()
    assert list(world.states().values()) == [R.AVAILABLE]


def test_new_version_rolls_out_without_a_gap() -> None:
    """The old version serves until every replica of the new one is in the route table."""
    world = World()
    for name in "abc":
        world.join(name)
    world.deploy(spec(replicas=2))
    world.answer()
    world.deploy(spec(replicas=2, storage_uri="file:///v2"))
    model = world.state.models[IRIS]
    first, second = list(world.state.outstanding)
    world.answer_one(first)
    assert model.traffic == (f.TrafficTarget(1, 100),)
    assert sum(s is R.AVAILABLE for (g, _), s in world.states().items() if g == 1) == 2
    facts = world.answer_one(second)
    names = [(type(x).__name__, getattr(x, "after", "")) for x in facts]
    routed = names.index(("TrafficChanged", ""))
    assert (
        names.index(("ReplicaChanged", "UnrouteRequested"))
        > max(n for n, x in enumerate(names) if x == ("ReplicaChanged", "Available"))
        > routed
    )
    assert model.traffic == (f.TrafficTarget(2, 100),)
    world.pass_time(5_000)
    world.answer()
    assert set(model.versions) == {2}


def test_failed_new_version_leaves_the_old_serving() -> None:
    """A version that cannot be loaded is failed with every place tried; target and active stand side by side."""
    world = World()
    for name in "abcd":
        world.join(name)
    world.deploy()
    world.answer()
    world.deploy(spec(storage_uri="file:///broken"))
    for _ in range(100):
        loads = [k for k, x in world.state.outstanding.items() if world.state.command_of(x) == "LoadModel"]
        if loads:
            world.fail_load(loads[0])
        elif world.state.outstanding:
            world.answer_one(next(iter(world.state.outstanding)))
        elif world.state.next_due():
            world.pass_time(60_000)
        else:
            break
    told = model_status(world.state.models[IRIS])
    assert told.state is ModelState.FAILED
    assert told.code == "LOAD_FAILED"
    assert len(world.state.models[IRIS].target.failed.places) == 3  # type: ignore[union-attr]
    assert [(a.generation, a.available) for a in told.active] == [(1, 1)]


def test_final_reason_is_not_retried() -> None:
    """A load that can never work fails the version at once and says that it is final (scenario 58)."""
    world = World()
    world.join("a")
    world.join("b")
    world.deploy()
    world.fail_load(next(iter(world.state.outstanding)), "ARTIFACT_MISSING", retriable=False)
    told = model_status(world.state.models[IRIS])
    assert (told.state, told.code, told.retriable) == (ModelState.FAILED, "ARTIFACT_MISSING", False)
    world.answer()
    assert not world.state.outstanding
    assert world.state.next_due() == 0


def test_load_that_fails_for_memory_goes_elsewhere() -> None:
    """Another attempt on a server that had no memory is no use."""
    world = World()
    world.join("a")
    world.join("b")
    world.deploy()
    first = next(iter(world.state.outstanding))
    world.fail_load(first, "LOAD_FAIL_MEMORY")
    loads = [k.server for k, x in world.state.outstanding.items() if world.state.command_of(x) == "LoadModel"]
    assert loads
    assert loads != [first.server]


def test_other_artifact_than_the_pinned_one_is_final() -> None:
    """The first digest is pinned to the version; a different one is an ArtifactMismatch."""
    world = World()
    world.join("a")
    world.join("b")
    world.deploy(spec(replicas=2))
    first, second = list(world.state.outstanding)
    world.answer_one(first, digest="a" * 64)
    world.answer_one(second, digest="b" * 64)
    told = model_status(world.state.models[IRIS])
    assert (told.state, told.code) == (ModelState.DEGRADED, "ARTIFACT_MISMATCH")
    assert told.available == 1


def test_lost_server_is_replaced_elsewhere() -> None:
    """A silent server's replicas are Lost and placed on another server."""
    world = World()
    world.join("a")
    world.deploy()
    world.answer()
    world.join("b")
    world.lapse("a")
    assert world.states()[1, "local/a/0"] is R.LOST
    world.answer()
    assert world.states() == {(1, "local/b/0"): R.AVAILABLE}


def test_policy_is_state() -> None:
    """What decide depends on is set by a request and holds from there on."""
    world = World()
    world.join("a")
    world.request(ModelEvent(event=SetPolicy(policy=Policy(unload_grace_ms=77))))
    world.deploy()
    world.answer()
    world.scale(0)
    assert world.state.next_due() == world.at + 78


def test_early_inventory_is_asked_for_again() -> None:
    """An inventory that comes before its registration is ignored, and the join asks for it."""
    world = World()
    rec = record("a")
    assert kinds(world.inventory(rec)) == ["ReportIgnored"]
    world.registry(rec)
    assert "local/a/0" in world.state.asked
    world.inventory(rec)
    assert not world.state.asked
    assert world.state.servers["local/a/0"].schedulable


def test_server_that_never_says_what_it_holds_is_lost() -> None:
    """Registration alone is not enough, and it does not last for ever."""
    world = World()
    world.registry(record("a"))
    world.pass_time(INVENTORY_LEASES * world.state.policy.lease_ms + 1)
    assert world.state.servers["local/a/0"].lost_code == "NO_INVENTORY"


def test_other_clusters_are_left_alone() -> None:
    """Records and requests of another cluster leave no entry."""
    world = World()
    assert world.registry(record("a", cluster="elsewhere")) == []
    assert world.deploy(cluster="elsewhere") == []


def test_draining_server_hands_over_before_it_lets_go() -> None:
    """A replica on a draining server serves until another one does."""
    world = World()
    rec = world.join("a")
    world.deploy()
    world.answer()
    world.join("b")
    world.registry(rec.model_copy(update={"status": "DRAINING"}))
    assert world.states() == {(1, "local/a/0"): R.AVAILABLE, (1, "local/b/0"): R.LOAD_REQUESTED}
    world.answer()
    assert world.states()[1, "local/a/0"] is R.UNROUTE_REQUESTED
    world.pass_time(5_000)
    world.answer()
    assert world.states() == {(1, "local/b/0"): R.AVAILABLE}


def test_report_to_an_older_command_changes_nothing() -> None:
    """Only the answer to a replica's newest command counts; an older one is recorded."""
    world = World()
    rec = world.join("a")
    world.deploy()
    key = next(iter(world.state.outstanding))
    old = world.state.outstanding[key].position
    world.undeploy()
    before = world.snapshot().models
    facts = world.report(rec, r.ModelLoaded(model=IRIS, generation=1, position=old))
    assert kinds(facts) == ["ReportIgnored"]
    assert world.state.models == before


def test_many_loads_spread_evenly_and_never_over_book() -> None:
    """300 models at once where 270 fit: 27 on each of ten servers, 30 refused, and no device promised beyond its memory."""
    world = World()
    for n in range(10):
        world.join(f"s{n}", memory=275 * MIB)
    for n in range(300):
        world.deploy(spec(f"m{n}", memory=10 * MIB))
    assert {len(s.replicas) for s in world.state.servers.values()} == {27}
    assert set(world.state.booked.values()) == {270 * MIB}
    assert len(world.state.waiting) == 30


def test_over_commit_does_not_promise_what_strangers_took() -> None:
    """A promise is a share of the memory on top, not leave to ignore the reading."""
    world = World()
    gpu = Device(uuid="g", kind="gpu", total=1000 * MIB, free=50 * MIB, largest_free=50 * MIB, utilisation=0.1)
    world.join("a", devices=(gpu,), over_commit_percent=10)
    assert "PlacementRefused" in kinds(world.deploy(spec(devices=1, memory=500 * MIB)))
    assert "ReplicaPlaced" in kinds(world.deploy(spec("small", devices=1, memory=140 * MIB)))


def test_adopted_replica_with_another_artifact_is_let_go() -> None:
    """What a server was found to hold is routed only if it is what was pinned."""
    world = World()
    world.join("a")
    rec = world.join("b")
    world.deploy()
    world.answer(digest="a" * 64)
    world.scale(2)
    key = next(k for k in world.state.outstanding)
    rec = world.of(key.server.split("/")[1])
    world.lapse(key.server.split("/")[1])
    world.scale(1)
    world.registry(rec)
    item = r.InventoryModel(model=IRIS, generation=1, ready=True, digest="b" * 64)
    world.report(rec, r.InventoryReported(models=(item,)))
    assert world.states()[1, key.server] is not R.AVAILABLE


def test_large_consequence_comes_in_entries_that_fit() -> None:
    """60 servers join a fleet for which 6,000 replicas wait: no entry comes near the limit, and all are placed."""
    world = World()
    for n in range(100):
        world.deploy(spec(f"inference-model-with-a-long-name-{n:04d}", memory=MIB, replicas=60))
    for n in range(60):
        world.registry(record(f"inference-pool-eu-west-{n:03d}"))
    for n in range(60):
        world.inventory(world.of(f"inference-pool-eu-west-{n:03d}"))
    assert sum(len(m.replicas) for m in world.state.models.values()) == 6_000
    assert max(len(payload) for payload in world.payloads) < 700_000


def test_draining_is_known_of_a_server_that_comes_back() -> None:
    """A life that returns UP does not drain, and one that returns DRAINING does."""
    world = World()
    rec = world.join("a")
    world.deploy()
    world.answer()
    world.registry(rec.model_copy(update={"status": "DRAINING"}))
    assert world.state.models[IRIS].replicas[1, "local/a/0"].draining
    world.join("a", incarnation="two", holds=((IRIS, 1),))
    assert not world.state.models[IRIS].replicas[1, "local/a/0"].draining


def test_strangers_memory_is_not_promised() -> None:
    """Placement believes the reading where it shows less than the books."""
    world = World()
    rec = world.join("a", memory=1000 * MIB)
    device = rec.server.devices[0].model_copy(update={"free": 50 * MIB, "largest_free": 50 * MIB})  # type: ignore[union-attr]
    world.registry(record("a", devices=(device,)))
    assert "PlacementRefused" in kinds(world.deploy())
