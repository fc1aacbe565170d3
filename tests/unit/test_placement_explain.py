"""Plan and explain by example."""

from magnetar_common.state import State
from magnetar_events import facts as f
from magnetar_events.requests import DeployModel
from magnetar_scheduler.placement.explain import WHOLE, Explanation, explain_entry, explain_now
from magnetar_scheduler.plan import plan
from tests.support.world import MIB, World, spec
from tests.unit.test_placement_filters import IRIS, A, B
from tests.unit.test_placement_properties import entries


def explained(world: World, model: str = IRIS) -> list[Explanation]:
    """Of the last entry that placed or refused it."""
    found: list[Explanation] = []
    for state, entry in entries(world):
        if any(isinstance(x, (f.ReplicaPlaced, f.PlacementRefused)) and x.model == model for x in entry.facts):
            found = explain_entry(state, entry.at, entry.facts, model)
    return found


def table(explanation: Explanation) -> dict[str, str]:
    """Server → rule, ``chosen`` or ``fits``."""
    return {x.server: x.rule or ("chosen" if x.chosen else "fits") for x in explanation.servers}


def fleet() -> World:
    world = World()
    world.join("a")
    world.join("b")
    world.join("small", memory=50 * MIB)
    world.join("triton", runtime="triton", capabilities=("onnx",))
    world.join("gone")
    world.lapse("gone")
    return world


def test_each_server_of_a_placement_is_told_of() -> None:
    """Who was chosen, who would have done, and the rule of everybody else; a score for each scorer that mattered."""
    world = fleet()
    world.deploy(spec(replicas=2))
    first, second = explained(world)
    others = {"local/small/0": "memory", "local/triton/0": "requirements", "local/gone/0": "lost"}
    assert table(first) == {A: "chosen", B: "fits", **others}
    assert table(second) == {B: "chosen", A: "beside", **others}
    (chosen,) = (x for x in first.servers if x.chosen)
    assert chosen.scores == {"load": 0, "fit": 0.9}
    assert chosen.total == 0.9
    assert [x.said for x in first.servers if x.rule == "memory"] == ["without enough free memory"]


def test_a_refusal_is_explained_where_it_was_made_and_as_things_stand() -> None:
    """Later the reasons may be others: what waits is judged by the newest state."""
    world = fleet()
    world.deploy(spec(memory=2000 * MIB, requirements=("onnx",)))
    (refused,) = explained(world)
    assert refused.server == ""
    assert refused.message.startswith("fits on none of 5 servers")
    assert table(refused)["local/triton/0"] == "memory"
    world.lapse("triton")
    (now,) = explain_now(world.state, IRIS)
    assert table(now)["local/triton/0"] == "lost"
    assert explain_now(world.state, "default/nobody") == []


def test_what_other_software_decided_is_told_apart() -> None:
    """If the rules of today come to another answer than the log, that is said."""
    world = World()
    world.join("a")
    world.join("b")
    world.deploy()
    state = State()
    for before, entry in entries(world):
        placed = [fact for fact in entry.facts if isinstance(fact, f.ReplicaPlaced)]
        if placed:
            placed[0].server = B
            (told,) = explain_entry(before, entry.at, entry.facts, IRIS)
            assert (told.server, told.agrees) == (A, False)
            state = before
    assert state.position >= 0


def test_many_placements_are_not_all_told_whole() -> None:
    """A thousand replicas on a thousand servers would be a million lines."""
    world = World()
    for n in range(WHOLE + 2):
        world.join(f"s{n:02d}")
    world.deploy(spec(replicas=WHOLE + 3))
    found = explained(world)
    assert [bool(x.servers) for x in found] == [True] * WHOLE + [False, False, True]
    assert all(x.server for x in found[:-1])
    assert found[-1].message


def test_a_plan_tells_where_each_replica_would_go_and_why_not_elsewhere() -> None:
    """And the next is planned as if the first had been granted."""
    world = fleet()
    state = world.snapshot()
    first = plan(state, DeployModel(model=spec(replicas=3)))
    assert [x.server for x in first.placements] == [A, B, ""]
    assert table(first.placements[2])["local/small/0"] == "memory"
    second = plan(state, DeployModel(model=spec("other", memory=950 * MIB)))
    assert [x.server for x in second.placements] == [""]
    assert table(second.placements[0])[A] == "memory"
    assert plan(state, DeployModel(model=spec(replicas=3))).placements == ()
    assert IRIS not in world.state.models


def test_a_plan_says_that_a_wish_would_be_rejected() -> None:
    """With the code and the message that the leader would give."""
    world = fleet()
    world.deploy()
    world.set_policy(max_models=1)
    planned = plan(world.snapshot(), DeployModel(model=spec("more")))
    assert (planned.generation, planned.code) == (0, "TOO_MANY_MODELS")
    assert "maxModels is 1" in planned.message


def test_a_plan_goes_on_where_one_entry_is_too_small() -> None:
    """A wish of many replicas is several entries; all of them are planned."""
    world = World()
    for n in range(450):
        world.join(f"{'s' * 55}-{n:03d}")
    planned = plan(world.snapshot(), DeployModel(model=spec(replicas=450, memory=MIB)))
    assert len({x.server for x in planned.placements}) == 450
