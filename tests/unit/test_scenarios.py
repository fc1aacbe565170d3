"""What users of such systems reported, and what becomes of it here: the numbers are those of the scenario list.

Here the core decides and the test obeys, or not. What is the agent's alone (1, 7, 54) is in ``tests/unit/agent``, what
needs clocks and a broker in ``tests/integration``, and what needs a real server in ``tests/e2e``, each by its number.
"""

import copy
import io
from collections.abc import Callable

import fastavro
import pytest

from magnetar_common.routing import route_of
from magnetar_common.state import ReplicaKey
from magnetar_common.status import ModelState, ModelStatus, model_status
from magnetar_common.transitions import R
from magnetar_events import MODEL_EVENT, ModelEvent, schemas
from magnetar_events import facts as f
from magnetar_events import reports as r
from magnetar_events.commands import UnloadModel
from magnetar_events.models import index_digest
from magnetar_events.requests import DeployModel
from magnetar_scheduler import inputs as i
from magnetar_scheduler.effects import replica_command
from tests.support.world import World, record, spec

IRIS = "default/iris"
A, B = "local/a/0", "local/b/0"


def told(world: World, model: str = IRIS) -> ModelStatus:
    return model_status(world.state.models[model])


def commands(world: World) -> dict[tuple[int, str], str]:
    """(generation, server) → kind of the outstanding command."""
    return {(k.generation, k.server): world.state.command_of(x) for k, x in world.state.outstanding.items()}


def routed(world: World, model: str = IRIS) -> set[str]:
    route = route_of(world.state, world.state.models[model])
    return {endpoint.server for target in route.targets for endpoint in target.endpoints}


def kinds(facts: list[f.Fact]) -> list[str]:
    return [type(fact).__name__ for fact in facts]


def serving(*servers: str, **fields: object) -> World:
    """A world in which iris is Available on as many servers as it asks for."""
    world = World()
    for server in servers:
        world.join(server)
    world.deploy(spec(**fields))
    world.answer(digest="a" * 64)
    assert told(world).state is ModelState.AVAILABLE
    return world


# --- commands and events out of order -----------------------------------------------------------------------------------


def test_s01_newest_command_alone_is_outstanding_and_alone_is_answered() -> None:
    """An unload decided after a load has the higher position, and what the agent says of the older load is past."""
    world = World()
    rec = world.join("a")
    world.deploy()
    replica = next(iter(world.state.outstanding.values()))
    load = replica_command(world.state, 1, replica)
    world.undeploy()
    unload = replica_command(world.state, 1, world.state.models[IRIS].replicas[1, A])
    assert load is not None
    assert unload is not None
    assert isinstance(unload.command, UnloadModel)
    assert unload.position > load.position
    who = {"model": IRIS, "generation": 1, "position": load.position}
    world.report(rec, r.CommandSuperseded(**who, newest=unload.position))
    world.report(rec, r.ModelLoadFailed(**who, code="X"))
    world.report(rec, r.ModelLoaded(**who))
    assert world.states() == {(1, A): R.UNLOAD_REQUESTED}
    world.answer()
    assert IRIS not in world.state.models


def test_s01_late_repeat_of_a_failure_does_not_fail_the_next_attempt() -> None:
    """The replica is loading again, and what is said of the attempt before changes nothing."""
    world = World()
    rec = world.join("a")
    world.deploy()
    first = next(iter(world.state.outstanding.values())).position
    world.fail_load(ReplicaKey(IRIS, 1, A))
    world.pass_time(world.state.policy.load_retry_ms)
    assert world.states() == {(1, A): R.LOAD_REQUESTED}
    late = r.ModelLoadFailed(model=IRIS, generation=1, position=first, code="LOAD_FAILED")
    assert kinds(world.report(rec, late)) == ["ReportIgnored"]
    assert (world.states()[1, A], world.state.models[IRIS].replicas[1, A].attempt) == (R.LOAD_REQUESTED, 2)


def test_s02_delete_during_a_load_unloads_and_leaves_no_orphan() -> None:
    """The server is known from the placement on; and if it turns out to hold the model after all, it lets it go."""
    world = World()
    rec = world.join("a")
    world.deploy()
    key = next(iter(world.state.outstanding))
    loading = world.state.outstanding[key].position
    world.report(rec, r.ModelLoading(model=IRIS, generation=1, position=loading))
    world.undeploy()
    assert commands(world) == {(1, A): "UnloadModel"}
    world.answer()
    assert IRIS not in world.state.models
    assert world.state.servers[A].replicas == {}
    world.inventory(rec, ((IRIS, 1),))
    assert commands(world) == {(1, A): "UnloadModel"}
    world.answer()
    assert IRIS not in world.state.models


def test_s04_goodbye_of_an_older_life_is_ignored() -> None:
    """On a rolling upgrade the old agent's end arrives after the new one has joined, in whatever form it comes."""
    world = World()
    old = world.join("a", incarnation="one")
    world.join("a", incarnation="two")
    world.deploy()
    world.answer()
    before = world.snapshot()
    assert world.registry(old.model_copy(update={"status": "DOWN"})) == []
    assert world.registry(old) == []
    assert world.registry(None, old.instance_id) == []
    assert kinds(world.inventory(old)) == ["ReportIgnored"]
    assert (world.state.models, world.state.servers) == (before.models, before.servers)
    assert routed(world) == {A}


def test_s05_delete_unloads_every_version_that_lives_and_only_those() -> None:
    """Versions of the past are not unloaded again; the one that serves and the one on its way are, each once."""
    world = serving("a", "b", "c")
    world.deploy(spec(storage_uri="file:///v2"))
    world.answer()
    world.pass_time(5_000)
    world.answer()  # version 1 is gone for good
    world.deploy(spec(storage_uri="file:///v3"))
    assert {g for g, _ in world.states()} == {2, 3}
    world.undeploy()
    world.pass_time(world.state.policy.unload_grace_ms + 1)
    unloads = commands(world)
    assert sorted(g for g, _ in unloads) == [2, 3]
    assert set(unloads.values()) == {"UnloadModel"}
    world.answer()
    assert IRIS not in world.state.models


# --- restart, recovery --------------------------------------------------------------------------------------------------


def test_s09_agent_lost_during_a_load_is_replaced_or_the_model_says_why() -> None:
    """Nothing stays Loading for ever: another server takes it, or the status names the rule that turned each down."""
    world = World()
    rec = world.join("a")
    world.deploy()
    position = next(iter(world.state.outstanding.values())).position
    world.report(rec, r.ModelLoading(model=IRIS, generation=1, position=position))
    world.lapse("a")
    assert world.states() == {(1, A): R.LOST}
    status = told(world)
    assert (status.state, status.code) == (ModelState.SCHEDULE_FAILED, "NO_ROOM")
    assert "1 not answering" in status.reason
    assert world.state.arriving == {}
    world.join("b")
    assert commands(world) == {(1, B): "LoadModel"}
    world.answer()
    assert told(world).state is ModelState.AVAILABLE


def test_s17_agent_that_comes_back_keeps_its_replica_and_the_replacement_is_cancelled() -> None:
    """A netsplit is no restart: the same life returns with what it held, and the load elsewhere is called off."""
    world = serving("a")
    rec = world.of("a")
    world.join("b")
    world.lapse("a")
    assert commands(world) == {(1, B): "LoadModel"}
    assert kinds(world.registry(rec)) == ["ServerReturned"]
    world.inventory(rec, ((IRIS, 1),))
    assert world.states() == {(1, A): R.AVAILABLE, (1, B): R.UNLOAD_REQUESTED}
    world.answer()
    assert world.states() == {(1, A): R.AVAILABLE}


def test_s17_agent_that_restarted_is_another_life() -> None:
    """What it held is gone with its server: the replacement stays."""
    world = serving("a")
    world.join("b")
    world.lapse("a")
    world.join("a", incarnation="two")
    world.answer()
    assert world.states() == {(1, B): R.AVAILABLE}
    assert world.registry(record("a", incarnation="one")) == []


@pytest.mark.parametrize("hours", [-1, 1])
def test_s18_clock_of_an_agent_decides_nothing(hours: int) -> None:
    """A record an hour off is the same record; only what arrives, and when, counts."""
    world = serving("a")
    rec = world.of("a")
    skewed = rec.model_copy(update={"timestamp": 10_000_000_000 + hours * 3_600_000})
    assert world.registry(skewed) == []
    assert routed(world) == {A}


# --- routing and rollout --------------------------------------------------------------------------------------------------


def test_s21_more_replicas_than_servers_leaves_those_there_are_serving() -> None:
    """Desired 2, available 1, and the route never emptied."""
    world = serving("a")
    world.scale(2)
    status = told(world)
    assert (status.state, status.wanted, status.available) == (ModelState.DEGRADED, 2, 1)
    assert "1 of 2 replicas" in status.reason
    assert routed(world) == {A}
    world.join("b")
    world.answer()
    assert routed(world) == {A, B}


def test_old_version_is_placed_anew_while_the_new_one_is_stuck() -> None:
    """It keeps the number of replicas it had, whatever the wanted version asks for."""
    world = serving("a", "b")
    world.deploy(spec(storage_uri="file:///v2", requirements=("gpu",), replicas=5))
    assert told(world).state is ModelState.SCHEDULE_FAILED
    (server,) = routed(world)
    world.lapse(server.split("/")[1])
    world.answer()
    (other,) = routed(world)
    assert other != server
    assert {g for g, _ in world.states()} == {1}
    assert world.state.models[IRIS].traffic == (f.TrafficTarget(1, 100),)


# --- telling the truth about health ---------------------------------------------------------------------------------------


def test_s44_model_dropped_by_its_server_is_noticed_by_the_heartbeat_and_reloaded() -> None:
    """Another digest than expected makes the leader ask; what is missing leaves the routes and is loaded again."""
    world = serving("a")
    beat = record("a", digest=index_digest([]))
    assert "InventoryRequested" in kinds(world.feed(i.ReadingChanged(beat)))
    assert A in world.state.asked
    world.inventory(beat)
    assert routed(world) == set()
    assert commands(world) == {(1, A): "LoadModel"}
    assert told(world).state is ModelState.PROGRESSING
    world.answer()
    assert routed(world) == {A}


def test_s52_model_that_never_loads_is_never_ready_and_ends_failed() -> None:
    """Every attempt, on every server that is tried, shows in the status; Ready shows in none."""
    world = World()
    for server in "abcd":
        world.join(server)
    world.deploy()
    seen: set[ModelState] = set()
    for _ in range(100):
        seen.add(told(world).state)
        loads = [key for key, x in world.state.outstanding.items() if world.state.command_of(x) == "LoadModel"]
        if loads:
            world.fail_load(loads[0])
        elif world.state.outstanding:
            world.answer()
        elif world.state.next_due():
            world.pass_time(60_000)
        else:
            break
        assert routed(world) == set()
    assert seen == {ModelState.PROGRESSING, ModelState.FAILED}
    status = told(world)
    assert status.state is ModelState.FAILED
    assert status.reason.count("LOAD_FAILED: boom") == world.state.policy.load_servers


def test_s53_broken_revision_is_never_promoted() -> None:
    """That its server is ready says nothing of it: only its own load report, with the position answered, does."""
    world = serving("a")
    rec = world.of("a")
    world.deploy(spec(storage_uri="file:///v2"))
    replica = world.state.models[IRIS].replicas[2, A]
    world.registry(rec.model_copy(update={"timestamp": 5}))
    unready = (
        r.InventoryModel(model=IRIS, generation=1, ready=True),
        r.InventoryModel(model=IRIS, generation=2, ready=False),
    )
    world.report(rec, r.InventoryReported(models=unready, digest=index_digest(["default_iris_1"])))
    assert world.state.models[IRIS].traffic == (f.TrafficTarget(1, 100),)
    world.fail_load(replica.key, "ARTIFACT_INVALID", retriable=False)
    status = told(world)
    assert (status.state, [a.generation for a in status.active]) == (ModelState.FAILED, [1])
    assert routed(world) == {A}


def test_s54_model_that_hangs_leaves_the_routes_though_it_is_in_the_index() -> None:
    """Its agent says that it is there and does not answer: it is unrouted and loaded anew."""
    world = serving("a")
    hung = r.InventoryModel(model=IRIS, generation=1, ready=False)
    world.report(world.of("a"), r.InventoryReported(models=(hung,), digest=index_digest([])))
    assert routed(world) == set()
    assert commands(world) == {(1, A): "LoadModel"}


def _unscheduled(world: World) -> None:
    world.deploy()


def _loading(world: World) -> None:
    world.join("a")
    world.deploy()


def _failed(world: World) -> None:
    _loading(world)
    world.fail_load(next(iter(world.state.outstanding)), "ARTIFACT_MISSING", retriable=False)


def _failing(world: World) -> None:
    _loading(world)
    world.fail_load(next(iter(world.state.outstanding)))


def _available(world: World) -> None:
    _loading(world)
    world.answer()


def _rolling_out(world: World) -> None:
    _available(world)
    world.deploy(spec(storage_uri="file:///v2"))


def _scaling_down(world: World) -> None:
    _available(world)
    world.scale(0)


@pytest.mark.parametrize("dies", ["before", "after", "never answers"])
@pytest.mark.parametrize(
    "reach",
    [_unscheduled, _loading, _failed, _failing, _available, _rolling_out, _scaling_down],
    ids=lambda x: x.__name__,
)
def test_s57_delete_works_from_every_state_without_a_live_server(reach: Callable[[World], None], dies: str) -> None:
    """Within its deadline, whether the server died before or after, or is there and never answers."""
    world = World()
    reach(world)
    if dies == "before" and A in world.state.servers:
        world.lapse("a")
    world.undeploy()
    if dies == "after" and A in world.state.servers:
        world.lapse("a")
    world.pass_time(world.state.policy.delete_deadline_ms + 1)
    assert world.state.models == {}
    assert world.state.booked == {}
    assert world.state.illegal == 0


@pytest.mark.parametrize(
    ("code", "retriable", "state"),
    [
        ("ARTIFACT_MISSING", False, ModelState.FAILED),
        ("ARTIFACT_MISMATCH", False, ModelState.FAILED),
        ("LOAD_FAIL_MEMORY", True, ModelState.FAILED),
        ("SERVER_UNREACHABLE", True, ModelState.PROGRESSING),
    ],
)
def test_s58_status_tells_cannot_ever_from_not_now(code: str, retriable: bool, state: ModelState) -> None:
    """The code, and whether it may still come right by itself."""
    world = World()
    world.join("a")
    world.deploy()
    world.fail_load(next(iter(world.state.outstanding)), code, retriable=retriable)
    status = told(world)
    assert (status.state, status.retriable) == (state, retriable)
    assert code in f"{status.code} {status.reason}"


def test_retriable_failure_is_revived_when_its_server_is_up_again() -> None:
    """STARTING and UP again is as good as new: what failed there is tried once more; what is final is not."""
    world = World()
    rec = world.join("a")
    world.deploy()
    world.deploy(spec("final"))
    world.fail_load(ReplicaKey("default/final", 1, A), "ARTIFACT_MISSING", retriable=False)
    for _ in range(20):
        loads = [k for k, x in world.state.outstanding.items() if world.state.command_of(x) == "LoadModel"]
        if loads:
            world.fail_load(loads[0], "SERVER_UNREACHABLE")
        elif world.state.outstanding:
            world.answer()
        else:
            world.pass_time(60_000)
    assert told(world).state is ModelState.FAILED
    world.registry(rec.model_copy(update={"status": "STARTING"}))
    assert told(world).state is ModelState.FAILED
    world.registry(rec)
    assert commands(world) == {(1, A): "LoadModel"}
    world.answer()
    assert told(world).state is ModelState.AVAILABLE
    assert told(world, "default/final").state is ModelState.FAILED


# --- the log and its inputs -----------------------------------------------------------------------------------------------


def test_same_input_twice_changes_nothing() -> None:
    """Whatever a broker redelivers: requests, reports, records, leases."""
    world = World()
    rec = record("a")
    event = ModelEvent(id="one", source="ci", event=DeployModel(model=spec()))

    def repeated(feed: Callable[[], list[f.Fact]]) -> None:
        feed()
        before = world.snapshot()
        again = feed()
        assert set(kinds(again)) <= {"RequestRepeated", "ReportIgnored"}
        assert (world.state.models, world.state.servers) == (before.models, before.servers)
        assert world.state.booked == before.booked

    repeated(lambda: world.registry(rec))
    world.inventory(rec)
    repeated(lambda: world.request(event))
    position = next(iter(world.state.outstanding.values())).position
    who = {"model": IRIS, "generation": 1, "position": position}
    repeated(lambda: world.report(rec, r.ModelLoading(**who)))
    repeated(lambda: world.report(rec, r.ModelLoaded(**who, digest="a" * 64, http_port=7)))
    assert world.state.models[IRIS].replicas[1, A].http_port == 7
    repeated(lambda: world.report(rec, r.ModelLoadFailed(**who, code="LATE")))
    repeated(lambda: world.lapse("a"))


def test_l08_schema_may_gain_a_field_with_a_default_and_no_other() -> None:
    """Data of before is read with the default; a field without one is refused, by name, before it is released."""
    new = copy.deepcopy(schemas.generated("model-events"))
    old = copy.deepcopy(new)
    last = old["fields"].pop(next(n for n, x in enumerate(old["fields"]) if x["name"] == "reason"))
    assert "default" in last
    assert schemas.unreadable(new, old) == []
    written = io.BytesIO()
    event = ModelEvent(id="x", source="ci", reason="unknown to the writer", event=DeployModel(model=spec()))
    current = io.BytesIO(MODEL_EVENT.encode(event))
    data = fastavro.schemaless_reader(current, schemas.parsed("model-events"), return_record_name=True)
    fastavro.schemaless_writer(written, fastavro.parse_schema(old), data)
    read = fastavro.schemaless_reader(io.BytesIO(written.getvalue()), fastavro.parse_schema(old), new)
    assert read["reason"] == last["default"]
    new["fields"].append({"name": "urgency", "type": "string"})
    assert schemas.unreadable(new, old) == ["urgency: new, and without a default"]


def test_l23_model_that_breaks_after_its_load_is_known_to_be_broken() -> None:
    """Its agent says so at any time, unasked; the others' routes stay as they are."""
    world = serving("a", "b", replicas=2)
    world.inventory(world.of("a"))
    assert routed(world) == {B}
    assert told(world).available == 1
    facts = [fact for entry in world.log for fact in entry.facts if isinstance(fact, f.ReplicaChanged)]
    assert ("DROPPED", "its server no longer holds it") in {(fact.code, fact.reason) for fact in facts}
    world.answer()
    assert routed(world) == {A, B}


# --- placement --------------------------------------------------------------------------------------------------------


def test_s08_dependant_that_fails_for_a_retriable_reason_is_tried_again_and_comes_right() -> None:
    """An explainer and its model, both rescheduled: the explainer's load fails while the model is not there yet."""
    world = World()
    world.join("a")
    world.join("b")
    world.deploy(spec("model"))
    world.deploy(spec("explainer", base="model"))
    world.answer()
    world.lapse("a")
    world.lapse("b")
    world.join("a", incarnation="two")
    explainer = next(key for key in world.state.outstanding if key.model == "default/explainer")
    world.fail_load(explainer, "DEPENDENCY_MISSING")
    world.answer()
    world.pass_time(world.state.policy.load_retry_ms + 1)
    world.answer()
    assert {told(world, f"default/{name}").state for name in ("model", "explainer")} == {ModelState.AVAILABLE}


def failed_dependant() -> World:
    """An explainer that failed on every server while its model loads."""
    world = World()
    world.join("a")
    world.join("b")
    world.deploy(spec("model"))
    world.deploy(spec("explainer", base="model"))
    for _ in range(50):
        for key in [key for key in world.state.outstanding if key.model == "default/explainer"]:
            if world.state.command_of(world.state.outstanding[key]) == "LoadModel":
                world.fail_load(key, "DEPENDENCY_MISSING")
            else:
                world.answer_one(key)
        world.pass_time(10_000)
    assert told(world, "default/explainer").state is ModelState.FAILED
    assert told(world, "default/model").state is ModelState.PROGRESSING
    return world


def test_s08_dependant_that_failed_everywhere_while_its_base_was_loading_comes_right_when_it_serves() -> None:
    """However long that took; and a failure that has nothing to do with the base is one as ever."""
    world = failed_dependant()
    world.deploy(spec("other"))
    world.answer()
    assert {told(world, f"default/{name}").state for name in ("model", "explainer")} == {ModelState.AVAILABLE}
    world.deploy(spec("explainer", base="model", storage_uri="file:///v2"))
    (key,) = world.state.outstanding
    world.fail_load(key, "BROKEN", retriable=False)
    world.scale(2, "model")
    world.answer()
    assert told(world, "default/explainer").state is not ModelState.AVAILABLE


def test_s08_dependant_whose_last_load_began_before_its_base_served_is_tried_again_once() -> None:
    """Its failure is told after the base is there: what it found is not so any more. The next one counts."""
    world = World()
    world.set_policy(load_attempts=1, load_servers=1)
    world.join("a")
    world.deploy(spec("model"))
    world.deploy(spec("explainer", base="model"))
    base, explainer = sorted(world.state.outstanding, key=lambda key: key.model, reverse=True)
    world.pass_time(5_000)
    world.answer_one(base)
    world.pass_time(1_000)
    world.fail_load(explainer, "DEPENDENCY_MISSING")
    unload = next(iter(world.state.outstanding))
    world.answer_one(unload)
    (again,) = world.state.outstanding
    assert (again.model, world.state.command_of(world.state.outstanding[again])) == ("default/explainer", "LoadModel")
    world.pass_time(1_000)
    world.fail_load(again, "DEPENDENCY_MISSING")
    world.answer()
    assert told(world, "default/explainer").state is ModelState.FAILED


def test_s26_version_that_fits_nowhere_leaves_the_old_one_serving_and_says_why() -> None:
    """Target and active stand side by side; the new version is placed as soon as something fits."""
    world = serving("a")
    world.deploy(spec(storage_uri="file:///v2", memory=5000 * 2**20))
    status = told(world)
    assert (status.state, status.code) == (ModelState.SCHEDULE_FAILED, "NO_ROOM")
    assert [(active.generation, active.available) for active in status.active] == [(1, 1)]
    assert routed(world) == {A}
    world.join("b", memory=9000 * 2**20)
    world.answer(digest="b" * 64)
    assert routed(world) == {B}


def test_s34_what_fits_nowhere_else_is_named_with_the_reason_while_its_server_drains() -> None:
    """It goes on serving where it is, and the status says why there is no other place."""
    world = serving("a")
    world.registry(world.of("a").model_copy(update={"status": "DRAINING"}))
    status = told(world)
    assert (status.state, status.code) == (ModelState.AVAILABLE, "NO_ROOM")
    assert "1 draining" in status.reason
    assert routed(world) == {A}
