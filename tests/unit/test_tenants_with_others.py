"""Tenants together with steps, drains, freezes, learnt sizes, awaited memory, and what explains a placement."""

from magnetar_common.drains import stuck_on
from magnetar_common.quotas import Amount
from magnetar_common.status import ModelState, model_status
from magnetar_common.transitions import R
from magnetar_events import facts as f
from magnetar_events.requests import DeployModel
from magnetar_scheduler.placement.explain import explain_now
from magnetar_scheduler.plan import plan
from tests.support.world import MIB
from tests.unit import test_memory as memory
from tests.unit.test_memory import GIB
from tests.unit.test_placement_explain import table
from tests.unit.test_preemption import deploy, preempted, settle, victims, world_of
from tests.unit.test_tenants import fleet, of, placed, rejected, told


def test_a_version_change_at_the_cap_goes_in_steps() -> None:
    """One old replica leaves for each new one; at no entry are there more than the cap, and one at most is missing."""
    world = fleet()
    world.set_policy(rollout_unavailable=1)
    world.set_tenant("team", cap_replicas=2)
    world.deploy(of("team", "m", replicas=2))
    world.answer()
    world.deploy(of("team", "m", replicas=2, storage_uri="file:///v2"))
    for _ in range(12):
        assert world.state.quotas.use("team").replicas <= 2
        serving = [each for each in world.states("team/m").values() if each is R.AVAILABLE]
        assert len(serving) >= 1
        world.pass_time(2_000)
        world.answer()
    assert world.states("team/m").keys() == {(2, server) for _, server in world.states("team/m")}
    assert told(world, "team/m")[0] is ModelState.AVAILABLE
    assert world.replayed() == world.state


def test_a_larger_version_at_the_cap_goes_in_steps_to_larger_servers() -> None:
    """It could not have the old one's places, and need not: what leaves makes room under the cap."""
    for cap, unavailable in ((2, 1), (3, 0)):
        world = fleet(2, 100 * MIB)
        world.set_policy(rollout_unavailable=unavailable)
        world.set_tenant("team", cap_replicas=cap)
        world.deploy(of("team", "m", replicas=2, memory=100 * MIB))
        world.answer()
        for name in ("large-1", "large-2"):
            world.join(name, memory=1_000 * MIB)
        world.deploy(of("team", "m", replicas=2, memory=200 * MIB, storage_uri="file:///v2"))
        for _ in range(12):
            assert world.state.quotas.use("team").replicas <= cap
            serving = [each for each in world.states("team/m").values() if each is R.AVAILABLE]
            assert len(serving) >= 2 - unavailable
            world.pass_time(2_000)
            world.answer()
        assert world.states("team/m") == {(2, f"local/large-{n}/0"): R.AVAILABLE for n in (1, 2)}
        assert told(world, "team/m")[0] is ModelState.AVAILABLE


def test_at_the_cap_no_more_leave_than_there_are_places_elsewhere() -> None:
    """Two might be missing, and there is one place: one leaves for it, and the others go on serving."""
    world = fleet(4, 100 * MIB)
    world.set_policy(rollout_unavailable=2)
    world.set_tenant("team", cap_replicas=4)
    world.deploy(of("team", "m", replicas=4, memory=100 * MIB))
    world.answer()
    world.join("large", memory=1_000 * MIB)
    world.deploy(of("team", "m", replicas=4, memory=200 * MIB, storage_uri="file:///v2"))
    least = 4
    for _ in range(12):
        least = min(least, sum(each is R.AVAILABLE for each in world.states("team/m").values()))
        world.pass_time(2_000)
        world.answer()
    assert world.states("team/m")[2, "local/large/0"] is R.AVAILABLE
    assert least == 3


def test_a_turn_of_one_replica_is_no_reason_for_a_step() -> None:
    """What may still be placed beside the old version is, before anything of it leaves."""
    world = fleet(2, 200 * MIB)
    world.set_policy(rollout_unavailable=1, piece=1)
    world.set_tenant("other", cap_replicas=9)
    world.deploy(of("team", "m", replicas=2))
    world.deploy(of("team", "full", replicas=2))
    world.answer()
    world.deploy(of("team", "m", replicas=2, storage_uri="file:///v2"))
    world.undeploy("full", "team")
    begin = len(world.log)
    for _ in range(12):
        world.pass_time(2_000)
        world.answer()
    facts = [fact for entry in world.log[begin:] for fact in entry.facts]
    assert told(world, "team/m")[0] is ModelState.AVAILABLE
    assert placed(facts) == ["team/m"] * 2
    assert world.replayed() == world.state


def test_a_drain_at_the_cap_says_that_it_is_the_cap() -> None:
    """The replacement would pass it: what is there goes on serving, and leaves once the cap is raised."""
    world = fleet()
    world.set_tenant("team", cap_replicas=1)
    world.deploy(of("team", "m"))
    world.answer()
    (key,) = (server for _, server in world.states("team/m"))
    world.drain(key.split("/")[1], deadline_ms=5_000)
    world.answer()
    (left,) = stuck_on(world.state, world.state.servers[key])
    assert left.reason.startswith("TENANT_QUOTA: tenant team is at its cap: 1 of capReplicas 1")
    status = model_status(world.state.models["team/m"])
    assert (status.state, status.code) == (ModelState.AVAILABLE, "TENANT_QUOTA")
    world.set_tenant("team", cap_replicas=2)
    settle(world)
    assert [server for _, server in world.states("team/m")] != [key]
    assert not world.state.servers[key].replicas


def test_a_rollback_is_a_wish_like_any_other() -> None:
    """Back to a version that needs more than the cap: refused where the tenant says so."""
    world = fleet()
    world.deploy(of("team", "m", memory=400 * MIB))
    world.answer()
    world.deploy(of("team", "m", storage_uri="file:///v2"))
    world.answer()
    world.set_tenant("team", cap_bytes=300 * MIB, over_cap="refuse")
    large, small = of("team", "m", memory=400 * MIB), of("team", "m", memory=100 * MIB)
    for _ in range(2):  # while the version is there, and when nothing of it is left
        refused = rejected(world.rollback(1, "m", model=large, tenant="team"))
        assert refused.code == "TENANT_QUOTA"
        settle(world)
    assert list(world.state.models["team/m"].versions) == [2]
    facts = world.rollback(1, "m", model=small, tenant="team")
    assert any(isinstance(fact, f.RequestAccepted) for fact in facts)


def test_nothing_of_a_frozen_model_has_to_leave_and_nobody_leaves_for_one() -> None:
    """A freeze ends what is cleared for it, too."""
    world = world_of(200)
    deploy(world, "low", memory=200 * MIB)
    world.freeze("low", tenant="low")
    assert preempted(deploy(world, "high", priority=5)) == []
    begin = len(world.log)
    world.unfreeze("low", tenant="low")
    assert victims([fact for entry in world.log[begin:] for fact in entry.facts]) == ["low/low"]
    assert world.state.quotas.claims
    world.freeze("high", tenant="low")
    assert world.state.quotas.claims == {}
    deploy(world, "other", priority=1, memory=200 * MIB, answer=False)
    settle(world)
    assert told(world, "low/other")[0] is ModelState.AVAILABLE
    assert not world.states("low/high")
    assert world.replayed() == world.state


def test_what_a_load_is_found_to_take_counts_for_its_tenant() -> None:
    """Declared 2 GiB, took 6: the cap of 7 has no room for another of the known size, and has for one of 1 GiB."""
    world = memory.Stand("a", "b")
    world.set_tenant("default", cap_bytes=7 * GIB)
    world.loaded("iris", 6 * GIB, memory=2 * GIB)
    assert world.state.quotas.use("default") == Amount(1, 6 * GIB)
    assert world.state.quotas.wants("default") == Amount(1, 6 * GIB)
    world.scale(2)
    assert model_status(world.state.models["default/iris"]).code == "TENANT_QUOTA"
    assert (
        "6 GiB of capBytes 7 GiB are used, and 6 GiB more wanted"
        in model_status(world.state.models["default/iris"]).reason
    )
    world.loaded("small", GIB)
    assert world.state.quotas.use("default") == Amount(2, 7 * GIB)
    world.checked()


def test_memory_that_is_on_its_way_back_is_waited_for() -> None:
    """Nobody has to leave for what a server is about to have again; and who left counts for its tenant no more."""
    world = memory.Stand()
    world.set_policy(preemption="lower-priority")
    low = world.loaded("low", 8 * GIB)
    other = world.loaded("other", 8 * GIB)
    world.gone(other, 0)
    assert len(world.state.servers[low.server].awaited) == 1
    assert world.state.quotas.use("default") == Amount(1, 8 * GIB)
    assert preempted(world.deploy(of("default", "high", devices=1, memory=8 * GIB, priority=5))) == []
    assert preempted(world.deploy(of("default", "huge", devices=1, memory=16 * GIB, priority=6))) != []
    world.checked()


def test_tenants_show_in_explain_and_plan() -> None:
    """The cap with its numbers, and the server that is kept for who waits below its floor, by its rule."""
    world = fleet(2, 200 * MIB)
    world.set_tenant("capped", cap_replicas=1)
    world.deploy(of("capped", "m", replicas=2))
    (refused,) = explain_now(world.state, "capped/m")
    assert refused.message.startswith("tenant capped is at its cap: 1 of capReplicas 1 are used, and 1 more wanted")
    assert set(table(refused).values()) == {"tenant-quota"}
    planned = plan(world.snapshot(), DeployModel(model=of("capped", "n")))
    assert [(each.server, each.message) for each in planned.placements] == [("", refused.message)]

    world = fleet(1, 200 * MIB)
    world.deploy(of("other", "m", memory=150 * MIB))
    world.set_tenant("short", floor_replicas=1)
    world.deploy(of("short", "m", memory=150 * MIB))
    planned = plan(world.snapshot(), DeployModel(model=of("other", "n", memory=10 * MIB)))
    assert table(planned.placements[0]) == {"local/s0/0": "tenant-floor"}

    world = world_of(200)
    deploy(world, "low", memory=200 * MIB)
    deploy(world, "high", priority=5, answer=False)
    world.pass_time(world.state.policy.unload_grace_ms + 1)
    planned = plan(world.snapshot(), DeployModel(model=of("low", "n", memory=10 * MIB)))
    assert table(planned.placements[0])["local/s0/0"] in ("memory", "claimed")
