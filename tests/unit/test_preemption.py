"""Preemption by example: who has to leave, in which order, who never has to, and that nobody is pushed to and fro."""

from itertools import count
from typing import Any

import pytest

from magnetar_common.state import Model
from magnetar_common.status import ModelState, model_status
from magnetar_common.transitions import R
from magnetar_events import ModelEvent
from magnetar_events import facts as f
from magnetar_events.requests import DeployModel
from magnetar_scheduler.decide import decide
from magnetar_scheduler.inputs import ReadingChanged, ReadingStale, Request
from magnetar_scheduler.placement.filters import Sieve
from tests.support.world import MIB, World
from tests.unit.test_tenants import of, placed, told


def world_of(*memories: int, preemption: str = "lower-priority") -> World:
    world = World()
    world.set_policy(preemption=preemption)
    for n, memory in enumerate(memories):
        world.join(f"s{n}", memory=memory * MIB)
    return world


def deploy(world: World, name: str, *, answer: bool = True, tenant: str = "low", **fields: Any) -> list[f.Fact]:
    facts = world.deploy(of(tenant, name, **fields))
    if answer:
        world.answer()
    return facts


def preempted(facts: list[f.Fact]) -> list[f.ReplicasPreempted]:
    return [fact for fact in facts if isinstance(fact, f.ReplicasPreempted)]


def victims(facts: list[f.Fact]) -> list[str]:
    return [victim.model for fact in preempted(facts) for victim in fact.victims]


def settle(world: World) -> None:
    for _ in range(6):
        world.pass_time(2_000)
        world.answer()


def model(world: World, key: str) -> Model:
    return world.state.models[key]


def test_the_policy_says_never_unless_it_says_otherwise() -> None:
    world = world_of(200, preemption="never")
    deploy(world, "low", memory=200 * MIB)
    assert preempted(deploy(world, "high", priority=5)) == []
    assert told(world, "low/low")[0] is ModelState.AVAILABLE


def test_a_lower_one_leaves_in_order_and_the_higher_one_waits_for_the_room_with_a_reason() -> None:
    """Out of the routes, a grace, out of memory; then the other is placed, and the one that left waits."""
    world = world_of(200)
    deploy(world, "low", memory=200 * MIB)
    facts = deploy(world, "high", priority=5, answer=False)
    kinds = [(type(fact).__name__, getattr(fact, "after", "")) for fact in facts]
    assert kinds == [
        ("RequestAccepted", ""), ("ModelWanted", ""), ("PlacementRefused", ""), ("ReplicasPreempted", ""),
        ("ReplicaChanged", "UnrouteRequested"),
    ]  # fmt: skip
    (change,) = (fact for fact in facts if isinstance(fact, f.ReplicaChanged))
    assert (change.code, change.reason) == ("PREEMPTED", "makes room for low/high v1 of priority 5")
    assert world.states("low/low") == {(1, "local/s0/0"): R.UNROUTE_REQUESTED}
    assert "replicas of lower priority leave local/s0/0 for it" in told(world, "low/high")[2]
    assert not world.state.outstanding  # the grace runs
    world.pass_time(world.state.policy.unload_grace_ms + 1)
    assert [world.state.command_of(each) for each in world.state.outstanding.values()] == ["UnloadModel"]
    world.answer()
    assert told(world, "low/high")[0] is ModelState.AVAILABLE
    assert told(world, "low/low")[:2] == (ModelState.SCHEDULE_FAILED, "NO_ROOM")
    assert world.replayed() == world.state


def test_equal_priority_takes_nothing_away() -> None:
    world = world_of(200)
    deploy(world, "low", memory=200 * MIB, priority=5)
    assert preempted(deploy(world, "high", priority=5)) == []


def test_the_least_important_leaves_then_the_newest_and_no_more_than_need_to() -> None:
    """On the server where the least important have to go; among equals the newest."""
    world = world_of(200, 200, 200)
    for name, priority, memory in (("a", 3, 200), ("b", 1, 200), ("c", 1, 200)):
        deploy(world, name, priority=priority, memory=memory * MIB)
    assert victims(deploy(world, "high", priority=5, memory=150 * MIB)) == ["low/c"]
    world = world_of(300)
    for name, priority in (("a", 1), ("b", 1), ("c", 2)):
        deploy(world, name, priority=priority)
    assert victims(deploy(world, "high", priority=5)) == ["low/b"]
    world = world_of(300)
    for name, priority, memory in (("a", 0, 100), ("b", 1, 200)):
        deploy(world, name, priority=priority, memory=memory * MIB)
    assert victims(deploy(world, "high", priority=5, memory=200 * MIB)) == ["low/b"]  # without a, which does not help


def test_nobody_is_taken_below_a_floor_and_no_model_below_its_least() -> None:
    world = world_of(100, 100)
    world.set_tenant("low", floor_replicas=1)
    deploy(world, "a")
    deploy(world, "b")
    assert victims(deploy(world, "high", tenant="vip", priority=5)) == ["low/b"]
    settle(world)
    assert preempted(deploy(world, "higher", tenant="vip", priority=4)) == []
    world = world_of(100, 100)
    deploy(world, "m", replicas=2, min_replicas=1)
    assert victims(deploy(world, "high", tenant="vip", priority=5)) == ["low/m"]
    settle(world)
    assert preempted(deploy(world, "higher", tenant="vip", priority=4)) == []
    assert model_status(model(world, "low/m")).available == 1


def test_who_is_over_its_cap_has_nobody_leave() -> None:
    world = world_of(200)
    world.set_tenant("vip", cap_replicas=1)
    deploy(world, "one", tenant="vip", priority=9)
    deploy(world, "low")
    assert preempted(deploy(world, "two", tenant="vip", priority=9)) == []
    assert told(world, "vip/two")[1] == "TENANT_QUOTA"


def test_the_room_is_kept_for_whom_it_was_made() -> None:
    """Neither the one that had to leave nor anybody else takes it, even if their turn is first; only a floor goes before."""
    for tenant, taken in (("other", False), ("short", True)):
        world = world_of(200)
        deploy(world, "low", memory=200 * MIB)
        world.set_tenant("other", cap_replicas=9)
        world.set_tenant("short", floor_replicas=1)
        deploy(world, "high", priority=5, memory=200 * MIB, answer=False)
        assert placed(deploy(world, "small", tenant=tenant, memory=10 * MIB, answer=False)) == []
        settle(world)
        there = told(world, "low/high")[0], told(world, f"{tenant}/small")[0]
        waits, serves = ModelState.SCHEDULE_FAILED, ModelState.AVAILABLE
        assert there == ((waits, serves) if taken else (serves, waits))


def test_what_had_to_leave_comes_back_without_having_others_leave() -> None:
    """No ping-pong, and no chain: it waits, though there is something of still lower priority."""
    world = world_of(100, 100)
    deploy(world, "least", priority=0)
    deploy(world, "middle", priority=1)
    assert victims(deploy(world, "high", priority=5, answer=False)) == ["low/least"]
    settle(world)
    assert victims(deploy(world, "higher", priority=6, answer=False)) == ["low/middle"]
    begin = len(world.log)
    settle(world)
    assert not any(preempted(list(entry.facts)) for entry in world.log[begin:])
    assert [told(world, f"low/{name}")[0] for name in ("least", "middle")] == [ModelState.SCHEDULE_FAILED] * 2
    world.join("new", memory=100 * MIB)
    world.answer()
    assert told(world, "low/middle")[0] is ModelState.AVAILABLE
    assert not model(world, "low/middle").target.preempted


def test_one_that_had_to_leave_sets_off_no_chain() -> None:
    """The least important would be in its way where it could go: it stays, until the other wants to be there by itself."""
    world = world_of(100)
    deploy(world, "least", priority=0)
    world.join("large", memory=200 * MIB)
    deploy(world, "middle", priority=1)
    assert victims(deploy(world, "high", priority=5, memory=200 * MIB, answer=False)) == ["low/middle"]
    begin = len(world.log)
    settle(world)
    assert not any(preempted(list(entry.facts)) for entry in world.log[begin:])
    assert told(world, "low/least")[0] is ModelState.AVAILABLE
    assert told(world, "low/middle")[0] is ModelState.SCHEDULE_FAILED


def test_what_leaves_anyway_is_waited_for() -> None:
    """Nobody has to leave where room is on its way."""
    world = world_of(200)
    deploy(world, "low")
    deploy(world, "gone")
    world.undeploy("gone", "low")
    assert preempted(deploy(world, "high", priority=5, answer=False)) == []
    settle(world)
    assert told(world, "low/high")[0] is ModelState.AVAILABLE
    assert told(world, "low/low")[0] is ModelState.AVAILABLE


def test_one_that_waits_for_leavers_takes_room_elsewhere_if_it_comes_first() -> None:
    world = world_of(200)
    deploy(world, "low", memory=200 * MIB)
    deploy(world, "high", priority=5, answer=False)
    world.join("new", memory=200 * MIB)
    world.answer()
    assert told(world, "low/high")[0] is ModelState.AVAILABLE
    settle(world)
    assert told(world, "low/low")[0] is ModelState.AVAILABLE


def test_a_leaver_whose_server_is_lost_is_not_waited_for() -> None:
    world = world_of(200, 200)
    deploy(world, "a", memory=200 * MIB)
    deploy(world, "b", memory=200 * MIB)
    (claim,) = preempted(deploy(world, "high", priority=5, memory=200 * MIB, answer=False))
    world.lapse(claim.server.split("/")[1])
    settle(world)
    assert told(world, "low/high")[0] is ModelState.AVAILABLE


def test_a_floor_is_held_by_what_stays_not_by_what_is_on_its_way_out() -> None:
    """Three wishes within one grace: the second finds the tenant at its floor, though what leaves is still there."""
    world = world_of(100, 100, 100)
    world.set_tenant("low", floor_replicas=2)
    for name in "abc":
        deploy(world, name)
    left = [victims(deploy(world, f"x{n}", tenant="vip", priority=5, answer=False)) for n in range(3)]
    assert left == [["low/c"], [], []]
    assert world.state.quotas.stays("low").replicas == 2


def test_what_moves_off_a_draining_server_holds_no_floor_twice() -> None:
    """While a replica serves there and its replacement is there already, only one of them is to stay."""
    world = world_of(100, 100, 100)
    world.set_tenant("low", floor_replicas=2)
    deploy(world, "a")
    deploy(world, "b")
    world.drain("s0")
    assert [str(state) for state in world.states("low/a").values()] == ["Available", "LoadRequested"]
    assert victims(deploy(world, "high", tenant="vip", priority=5, answer=False)) == []


def test_a_version_that_is_about_to_be_replaced_holds_no_floor_beside_the_new_one() -> None:
    world = world_of(100, 100, 100)
    world.set_tenant("low", floor_replicas=2)
    deploy(world, "a")
    deploy(world, "b")
    deploy(world, "a", storage_uri="file:///2", answer=False)
    assert victims(deploy(world, "high", tenant="vip", priority=5, answer=False)) == []


def test_no_version_has_one_of_its_own_model_leave() -> None:
    """The old version serves until the new one can; what of lower priority is another model's may leave."""
    world = world_of(200)
    deploy(world, "m", memory=150 * MIB)
    assert preempted(deploy(world, "m", memory=150 * MIB, priority=5, storage_uri="file:///2")) == []
    assert world.states("low/m") == {(1, "local/s0/0"): R.AVAILABLE}
    world = world_of(300)
    deploy(world, "m", memory=150 * MIB, priority=1)
    deploy(world, "batch", memory=150 * MIB, priority=2)
    assert victims(deploy(world, "m", memory=150 * MIB, priority=5, storage_uri="file:///2")) == ["low/batch"]


def test_a_search_compares_in_proportion_to_who_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each replica on a server costs a comparison or two; a server that is too small even when empty costs one."""
    compared = count()
    against = Sieve.against_site
    monkeypatch.setattr(Sieve, "against_site", lambda sieve, site: (next(compared), against(sieve, site))[1])
    world = world_of(200, preemption="never")
    for n in range(200):
        deploy(world, f"m{n}", memory=MIB)
    world.set_policy(preemption="lower-priority")
    for memory, leave, most in ((150, 150, 210), (300, 0, 5)):
        wish = DeployModel(model=of("vip", "high", priority=5, memory=memory * MIB))
        begin = next(compared)
        assert len(victims(decide(world.state, Request(ModelEvent(event=wish)), world.at))) == leave
        assert next(compared) - begin < most


def test_what_one_decision_looks_at_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left waits for the next piece, and has its turn there."""
    monkeypatch.setattr("magnetar_scheduler.draft.LOOKED", 10)
    world = world_of(*[100] * 6, preemption="never")
    for n in range(6):
        deploy(world, f"low{n}")
    for n in range(3):
        deploy(world, f"high{n}", priority=5 + n)
    begin = len(world.log)
    world.set_policy(preemption="lower-priority")
    settle(world)
    assert [told(world, f"low/high{n}")[0] for n in range(3)] == [ModelState.AVAILABLE] * 3
    assert max(len(preempted(list(entry.facts))) for entry in world.log[begin:]) == 1


def test_nobody_leaves_while_a_reading_is_too_old_to_say_where_there_is_room() -> None:
    """As after a time without a leader: what is not heard again yet may be empty."""
    world = world_of(100, 100)
    deploy(world, "low", memory=100 * MIB)
    (home,) = (server for _, server in world.states("low/low"))
    other = next(key for key in world.state.servers if key != home)
    world.feed(ReadingStale(other))
    assert victims(deploy(world, "high", priority=5, memory=100 * MIB)) == []
    world.feed(ReadingChanged(world.of(other.split("/")[1])))
    settle(world)
    assert told(world, "low/high")[0] is told(world, "low/low")[0] is ModelState.AVAILABLE
