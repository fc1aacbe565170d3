"""Every scorer by example, and what they come to together."""

import pytest

from magnetar_common.evolve import HELD
from magnetar_common.state import Model
from magnetar_events import facts as f
from magnetar_scheduler.placement.scorers import artifact, spread
from tests.support.world import MIB, World, spec
from tests.unit.test_placement_filters import IRIS, A, B, placed

DIGEST = "d" * 64


def chosen(facts: list[f.Fact]) -> f.ReplicaPlaced:
    (fact,) = (fact for fact in facts if isinstance(fact, f.ReplicaPlaced))
    return fact


def test_the_least_loaded_comes_first() -> None:
    """Fewer replicas, whatever their size."""
    world = World()
    world.join("a")
    world.join("b")
    world.deploy(spec("large", server="b", memory=900 * MIB))
    for n in range(2):
        world.deploy(spec(f"small{n}", server="a", memory=MIB))
    assert chosen(world.deploy()).server == B


def test_the_tightest_fit_comes_first_among_equals() -> None:
    """Large blocks stay whole for large models."""
    world = World()
    world.join("a", memory=1000 * MIB)
    world.join("b", memory=200 * MIB)
    world.join("c", memory=400 * MIB)
    best = chosen(world.deploy()).best
    assert [each.server for each in best] == [B, "local/c/0", A]
    assert [each.score for each in best] == [0.5, 0.75, 0.9]


def test_the_artifact_draws_a_model_back_to_where_it_was() -> None:
    """Who held the same digest is preferred, though it holds a little more; not though it holds much more."""
    for others, expected in ((1, A), (3, B)):
        world = World()
        world.join("a", memory=2000 * MIB)
        world.join("b")
        world.deploy(spec(server="a"))
        world.answer(digest=DIGEST)
        world.scale(0)
        world.pass_time(5_000)
        world.answer()
        assert world.state.models[IRIS].held == {A: DIGEST}
        for n in range(others):
            world.deploy(spec(f"m{n}", server="a", memory=MIB))
        facts = world.deploy(spec(artifact_digest=DIGEST))
        assert chosen(facts).server == expected
        assert min(each.score for each in chosen(facts).best if each.server == A) < others + artifact.CACHED + 1


def test_a_server_with_the_same_artifact_under_another_version_has_it() -> None:
    """A rollout that changes only parameters goes where nothing is to be fetched."""
    world = World()
    world.join("a")
    world.join("b")
    world.deploy(spec(artifact_digest=DIGEST))
    world.answer(digest=DIGEST)
    facts = world.deploy(spec(artifact_digest=DIGEST, labels={"two": "2"}))
    assert chosen(facts).server == A
    assert chosen(world.deploy(spec(artifact_digest="e" * 64))).server == B


def test_few_holders_are_remembered() -> None:
    """The latest; and the memory goes with the model."""
    world = World()
    for n in range(HELD + 2):
        world.join(f"s{n:02d}")
    world.deploy(spec(replicas=HELD + 2))
    world.answer(digest=DIGEST)
    world.scale(0)
    world.pass_time(5_000)
    world.answer()
    assert len(world.state.models[IRIS].held) == HELD
    assert Model("x").held == {}


def test_replicas_spread_over_zones() -> None:
    """One more in the same zone weighs as much as ten replicas on a server."""
    world = World()
    for server, zone in (("a", "z1"), ("b", "z1"), ("c", "z2")):
        world.join(server, zone=zone)
    for n in range(5):
        world.deploy(spec(f"m{n}", server="c", memory=MIB))
    facts = world.deploy(spec(replicas=2))
    servers = [fact.server for fact in facts if isinstance(fact, f.ReplicaPlaced)]
    assert servers == [A, "local/c/0"]
    world.scale(3)
    assert placed(world) == [A, B, "local/c/0"]


def test_zones_of_two_regions_are_two_zones() -> None:
    """A zone's name means something within its region only."""
    world = World()
    world.join("a", region="r1", zone="z")
    world.join("b", region="r1", zone="z")
    world.join("c", region="r2", zone="z")
    world.deploy(spec(replicas=2))
    assert placed(world) == [A, "local/c/0"]


def test_where_hosts_may_be_shared_they_are_shared_evenly() -> None:
    """Of hosts that have one the one with fewer comes first."""
    world = World()
    world.set_policy(anti_affinity="server")
    for server, host in (("a", "one"), ("b", "one"), ("c", "one"), ("d", "two"), ("e", "two")):
        world.join(server, host=host, memory=3000 * MIB)
    world.deploy(spec("m", server="d"))
    world.deploy(spec("n", server="e"))
    world.deploy(spec(replicas=4))
    hosts = [world.state.servers[server].info.host for server in placed(world)]
    assert sorted(hosts) == ["one", "one", "two", "two"]
    assert spread.HOST > 1


@pytest.mark.parametrize("order", ["abc", "cba", "bca"])
def test_ties_break_by_name(order: str) -> None:
    """In whichever order servers came."""
    world = World()
    for server in order:
        world.join(server)
    assert [each.server for each in chosen(world.deploy()).best] == [A, B, "local/c/0"]


def test_a_log_of_version_1_is_decided_without_the_spread() -> None:
    """What older software decided, and decides while the upgrade is not finalized."""
    world = World(fold_version=1)
    for server, zone in (("a", "z1"), ("b", "z1"), ("c", "z2")):
        world.join(server, zone=zone)
    world.deploy(spec(replicas=2))
    assert placed(world) == [A, B]
    world.answer(digest=DIGEST)
    world.scale(0)
    world.pass_time(5_000)
    world.answer()
    assert world.state.models[IRIS].held == {}
