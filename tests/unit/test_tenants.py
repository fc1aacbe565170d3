"""Tenants by example: the cap, the floor, whose turn it is, and who may set all that."""

from itertools import count
from typing import Any

import pytest
from pydantic import ValidationError

from magnetar_common.quotas import Amount
from magnetar_common.render import state_to_dict
from magnetar_common.state import State
from magnetar_common.status import ModelState, model_status
from magnetar_common.tenancy import tenant_status
from magnetar_common.transitions import R
from magnetar_events import ModelEvent
from magnetar_events import facts as f
from magnetar_events.policy import Policy
from magnetar_events.records import Device
from magnetar_events.requests import DeleteTenant, SetTenant
from magnetar_events.tenants import Tenant
from magnetar_scheduler import floors
from tests.support.world import MIB, World, spec
from tests.unit.test_authorship import CI, OPS


def fleet(count: int = 3, memory: int = 1000 * MIB) -> World:
    world = World()
    for n in range(count):
        world.join(f"s{n}", memory=memory)
    return world


def of(tenant: str, name: str, **fields: Any) -> Any:
    return spec(name, tenant=tenant, **fields)


def placed(facts: list[f.Fact]) -> list[str]:
    return [fact.model for fact in facts if isinstance(fact, f.ReplicaPlaced)]


def told(world: World, model: str) -> tuple[ModelState, str, str]:
    status = model_status(world.state.models[model])
    return status.state, status.code, status.reason


def rejected(facts: list[f.Fact]) -> f.RequestRejected:
    (fact,) = (fact for fact in facts if isinstance(fact, f.RequestRejected))
    return fact


# --- requests ---------------------------------------------------------------------------------------------------------


def test_a_tenant_is_set_changed_and_deleted_by_facts() -> None:
    """State has it, equal limits change nothing, and without it its models go on."""
    world = fleet()
    world.deploy(of("team", "m"))
    (set_,) = [fact for fact in world.set_tenant("team", cap_replicas=3) if isinstance(fact, f.TenantSet)]
    assert (set_.tenant.cap_replicas, set_.replicas, set_.bytes) == (3, 1, 100 * MIB)
    assert world.state.tenants == {"team": Tenant(name="team", cap_replicas=3)}
    assert [type(fact) for fact in world.set_tenant("team", cap_replicas=3)] == [f.RequestAccepted]
    assert [type(fact) for fact in world.delete_tenant("team")] == [f.RequestAccepted, f.TenantRemoved]
    assert world.state.tenants == {}
    assert rejected(world.delete_tenant("team")).code == "NOT_FOUND"
    assert "team/m" in world.state.models
    assert world.replayed() == world.state


def test_a_floor_above_its_cap_is_refused_by_name() -> None:
    with pytest.raises(ValidationError, match="floorReplicas 3 is above capReplicas 2"):
        Tenant(name="team", floor_replicas=3, cap_replicas=2)
    with pytest.raises(ValidationError, match="floorBytes 3 is above capBytes 2"):
        Tenant(name="team", floor_bytes=3, cap_bytes=2)
    assert Tenant(name="team", floor_replicas=3, cap_bytes=2).cap_replicas == 0


def test_a_log_of_an_older_version_takes_no_tenants() -> None:
    """Older software could not read them; the digest of a state without them is the old one."""
    world = World(fold_version=1)
    assert rejected(world.set_tenant("team", cap_replicas=1)).code == "UPGRADE_NOT_FINALIZED"
    assert rejected(world.set_policy(preemption="lower-priority")).code == "UPGRADE_NOT_FINALIZED"
    assert "tenants" not in state_to_dict(State())


def test_who_may_not_set_the_policy_may_not_set_tenants() -> None:
    """Where signatures are required, tenants are set and deleted by those who may set the policy."""
    world = World()
    world.state.policy = Policy(publishers={"ops": OPS, "ci": CI}, require_signature=True)
    for wish in (SetTenant(tenant=Tenant(name="team", cap_replicas=1)), DeleteTenant(name="team")):
        refused = rejected(world.request(ModelEvent(cluster="local", event=wish), "signature", "ci"))
        assert (refused.code, "ci may not" in refused.message) == ("NOT_PERMITTED", True)
        assert not rejected_any(world.request(ModelEvent(cluster="local", event=wish), "signature", "ops"))


def rejected_any(facts: list[f.Fact]) -> bool:
    return any(isinstance(fact, f.RequestRejected) for fact in facts)


# --- the cap ----------------------------------------------------------------------------------------------------------


def test_over_the_cap_a_wish_waits_and_says_which_cap_used_and_wanted() -> None:
    """What fits under the cap is placed; the rest waits with the reason, and comes when the cap is raised."""
    world = fleet()
    world.set_tenant("team", cap_replicas=2)
    facts = world.deploy(of("team", "m", replicas=3))
    assert placed(facts) == ["team/m"] * 2
    (refused,) = (fact for fact in facts if isinstance(fact, f.PlacementRefused))
    assert [count.rule for count in refused.refusals] == ["tenant-quota"]
    assert refused.message == "tenant team is at its cap: 2 of capReplicas 2 are used, and 1 more wanted"
    world.answer()
    assert told(world, "team/m")[:2] == (ModelState.DEGRADED, "TENANT_QUOTA")
    assert refused.message in told(world, "team/m")[2]
    (waiting,) = tenant_status(world.state, "team").waiting
    assert (waiting.model, waiting.code) == ("team/m", "TENANT_QUOTA")
    world.set_tenant("team", cap_replicas=3)
    world.answer()
    assert told(world, "team/m")[0] is ModelState.AVAILABLE
    assert world.state.quotas.use("team") == Amount(3, 300 * MIB)


def test_the_cap_in_bytes_counts_every_device() -> None:
    world = fleet()
    world.set_tenant("team", cap_bytes=250 * MIB)
    facts = world.deploy(of("team", "m", replicas=3))
    assert len(placed(facts)) == 2
    message = "tenant team is at its cap: 200 MiB of capBytes 250 MiB are used, and 100 MiB more wanted"
    assert any(isinstance(fact, f.PlacementRefused) and fact.message == message for fact in facts)


def test_59_quota_refuses_per_tenant_and_per_model_and_blocks_nobody_else() -> None:
    """Scenario 59: what is exhausted refuses its own and stops no other tenant and no other model."""
    world = fleet()
    world.set_tenant("team", cap_replicas=3, over_cap="refuse")
    world.deploy(of("team", "m", replicas=2))
    refused = rejected(world.deploy(of("team", "n", replicas=2)))
    assert refused.code == "TENANT_QUOTA"
    assert refused.message == (
        "tenant team would be over its cap: its other models want 2 of capReplicas 3, and 2 is wanted of team/n"
    )
    assert "team/n" not in world.state.models
    assert rejected(world.scale(4, "m", "team")).code == "TENANT_QUOTA"
    assert placed(world.deploy(of("team", "n"))) == ["team/n"]
    assert placed(world.deploy(of("other", "m", replicas=3))) == ["other/m"] * 3
    world.deploy(of("other", "limited", max_replicas=1))
    assert rejected(world.scale(2, "limited", "other")).code == "OUT_OF_RANGE"
    assert placed(world.scale(0, "m", "team")) == []
    assert world.state.models["team/m"].wanted == 0  # less is always taken


def test_42_two_wishes_that_fit_singly_are_not_both_taken() -> None:
    """Scenario 42: what waits for room counts as wanted, so the second admission sees the first."""
    world = World()  # no server: nothing is used
    world.set_tenant("team", cap_replicas=3, over_cap="refuse")
    assert not rejected_any(world.deploy(of("team", "m", replicas=2)))
    assert rejected(world.deploy(of("team", "n", replicas=2))).code == "TENANT_QUOTA"


def test_42_a_version_change_at_the_cap_never_passes_it() -> None:
    """Scenario 42: the surge counts. The new version waits with the reason, the old one serves; with room it goes through."""
    world = fleet()
    world.set_tenant("team", cap_replicas=2)
    world.deploy(of("team", "m", replicas=2))
    world.answer()
    world.deploy(of("team", "m", replicas=2, storage_uri="file:///v2"))
    state, code, reason = told(world, "team/m")
    assert (state, code) == (ModelState.SCHEDULE_FAILED, "TENANT_QUOTA")
    assert "replicas of its other versions count until they have left" in reason
    assert [s for (g, _), s in world.states("team/m").items() if g == 1] == [R.AVAILABLE] * 2
    world.set_tenant("team", cap_replicas=4)
    world.answer()
    world.pass_time(5_000)
    world.answer()
    assert told(world, "team/m")[0] is ModelState.AVAILABLE
    assert world.state.quotas.use("team").replicas == 2


def test_42_one_up_and_one_down_at_the_cap_is_release_first() -> None:
    """Scenario 42: what grows waits until what shrinks has left; at no entry are there more than the cap."""
    world = fleet()
    world.set_tenant("team", cap_replicas=3)
    world.deploy(of("team", "up"))
    world.deploy(of("team", "down", replicas=2))
    world.answer()
    world.scale(2, "up", "team")
    world.scale(1, "down", "team")
    begin = world.state.position
    world.pass_time(5_000)
    world.answer()
    assert [told(world, f"team/{name}")[0] for name in ("up", "down")] == [ModelState.AVAILABLE] * 2
    for position in range(begin, world.state.position + 1):
        assert world.replayed(position).quotas.use("team").replicas <= 3


def test_a_cap_that_is_lowered_takes_nothing_away_and_is_told() -> None:
    """What was there stays, nothing is added, and the status says how much is over."""
    world = fleet()
    world.deploy(of("team", "m", replicas=3))
    world.answer()
    facts = world.set_tenant("team", cap_replicas=1, cap_bytes=250 * MIB)
    assert any(isinstance(fact, f.TenantSet) and fact.replicas == 3 for fact in facts)
    assert tenant_status(world.state, "team").over == Amount(2, 50 * MIB)
    assert told(world, "team/m")[0] is ModelState.AVAILABLE
    assert placed(world.deploy(of("team", "n"))) == []
    world.scale(1, "m", "team")
    world.pass_time(5_000)
    world.answer()
    assert placed(world.log[-1].facts) == []
    assert told(world, "team/n")[1] == "TENANT_QUOTA"  # the one that is left uses the cap
    world.undeploy("m", "team")
    world.pass_time(5_000)
    world.answer()
    assert told(world, "team/n")[0] is ModelState.AVAILABLE


def test_what_is_lost_can_be_replaced_at_the_cap_and_counts_again_when_it_comes_back() -> None:
    """A lost replica counts for nothing; one that is found again does, and the surplus leaves."""
    world = fleet(2)
    world.set_tenant("team", cap_replicas=1)
    world.deploy(of("team", "m"))
    world.answer()
    ((_, server),) = world.states("team/m")
    name = server.split("/")[1]
    there = world.of(name)
    world.lapse(name)
    assert world.state.quotas.use("team") == Amount(1, 100 * MIB)  # the one that replaces it
    world.answer()
    world.registry(there)
    world.inventory(there, (("team/m", 1),))
    assert tenant_status(world.state, "team").over.replicas == 1  # what came back leaves, and counts until it has
    world.pass_time(5_000)
    world.answer()
    assert world.state.quotas.use("team") == Amount(1, 100 * MIB)


def test_adopted_replicas_count() -> None:
    """What is found on a server counts like what was placed there, even above the cap: and then nothing is added."""
    world = World()
    world.set_tenant("team", cap_replicas=1)
    world.join("a", holds=(("team/x", 4), ("team/y", 1)))
    assert world.state.quotas.use("team").replicas == 2
    assert placed(world.deploy(of("team", "m"))) == []
    world.pass_time(5_000)
    world.answer()
    assert [*world.state.models] == ["team/m"]
    world.answer()
    assert told(world, "team/m")[0] is ModelState.AVAILABLE


# --- the floor --------------------------------------------------------------------------------------------------------


def test_nobody_above_theirs_takes_what_a_tenant_below_its_floor_waits_for() -> None:
    """A small model of others would fit, and waits: the room that comes is for who has the floor."""
    world = fleet(1, memory=1000 * MIB)
    world.deploy(of("hog", "h", memory=700 * MIB))
    world.answer()
    world.set_tenant("team", floor_replicas=1)
    world.deploy(of("team", "m", memory=400 * MIB))
    assert told(world, "team/m")[1] == "NO_ROOM"
    assert placed(world.deploy(of("other", "small"))) == []
    state, code, reason = told(world, "other/small")
    assert (state, code) == (ModelState.SCHEDULE_FAILED, "TENANT_FLOOR")
    assert "1 kept for a tenant that waits below its floor" in reason
    world.undeploy("h", "hog")
    world.pass_time(5_000)
    world.answer()
    assert told(world, "team/m")[0] is ModelState.AVAILABLE
    world.answer()
    assert told(world, "other/small")[0] is ModelState.AVAILABLE


def test_only_what_it_needs_is_kept_and_only_where_it_could_ever_be() -> None:
    """Servers of another kind, or too small even when empty, are nobody's; nor does a hopeless wish block the others."""
    world = World()
    world.join("big", capabilities=("torch",), memory=1000 * MIB)
    world.join("other", memory=1000 * MIB)
    world.set_tenant("team", floor_replicas=3)
    world.deploy(of("hog", "h", requirements=("torch",), memory=900 * MIB))
    world.deploy(of("team", "m", requirements=("torch",), memory=500 * MIB))
    assert placed(world.deploy(of("x", "on-other"))) == ["x/on-other"]
    assert placed(world.deploy(of("x", "on-big", requirements=("torch",), memory=50 * MIB))) == []
    world.undeploy("m", "team")
    world.answer()
    assert told(world, "x/on-big")[0] is ModelState.AVAILABLE
    world.deploy(of("team", "m", requirements=("torch",), memory=5000 * MIB))
    assert placed(world.deploy(of("x", "on-big-too", requirements=("torch",), memory=10 * MIB))) == ["x/on-big-too"]


def test_a_tenant_that_waits_because_of_its_own_cap_holds_nobody_back() -> None:
    world = fleet(1)
    world.set_tenant("team", floor_replicas=2, cap_bytes=100 * MIB)
    world.deploy(of("team", "m"))
    world.deploy(of("team", "n"))
    assert told(world, "team/n")[1] == "TENANT_QUOTA"
    assert placed(world.deploy(of("other", "o"))) == ["other/o"]


def test_between_two_that_are_below_their_floor_both_may_go_on() -> None:
    world = fleet(1, memory=500 * MIB)
    world.set_tenant("a", floor_replicas=1)
    world.set_tenant("b", floor_replicas=1)
    world.deploy(of("a", "m", memory=600 * MIB, requirements=()))
    world.join("large", memory=700 * MIB)
    assert placed(world.deploy(of("b", "n", memory=450 * MIB))) == ["b/n"]


def test_one_server_is_kept_for_each_replica_that_a_tenant_lacks_and_the_rest_of_the_fleet_goes_on() -> None:
    """A wish that fits nowhere keeps the server that has most room for it: new wishes, losses and drains find the others."""
    world = fleet(20)
    world.set_tenant("short", floor_replicas=1)
    for n in range(20):
        world.deploy(of("t", f"m{n:02}", memory=(400 if n else 300) * MIB))
    world.answer()
    for name in ("giant", "second"):  # it lacks one replica, and has one server kept
        world.deploy(of("short", name, memory=900 * MIB))
    assert placed(world.deploy(of("u", "tiny", memory=MIB))) == ["u/tiny"]
    pinned = world.deploy(of("u", "pinned", memory=MIB, server="s0"))
    assert "1 kept for a tenant that waits below its floor" in str(pinned)
    world.lapse("s3")
    world.drain("s5", deadline_ms=60_000)
    world.answer()
    settled = [f"t/m{n:02}" for n in range(20)]
    assert [key for key in settled if told(world, key)[0] is not ModelState.AVAILABLE] == []
    world.pass_time(5_000)
    world.answer()
    assert not world.state.servers["local/s5/0"].replicas
    world.undeploy("m00", "t")
    world.pass_time(5_000)
    world.answer()
    assert [told(world, key)[0] for key in ("short/giant", "u/pinned")] == [ModelState.AVAILABLE] * 2


def test_what_replaces_a_lost_replica_may_take_what_is_kept_if_nothing_else_will_do() -> None:
    """It is no more than its tenant had."""
    world = fleet(2)
    for name, server in (("m", ""), ("n", "s1")):
        world.deploy(of("t", name, server=server))
    world.answer()
    world.set_tenant("short", floor_replicas=2)
    world.deploy(of("short", "giant", replicas=2, memory=950 * MIB))
    assert placed(world.deploy(of("t", "more"))) == []
    assert [*world.states("t/m")] == [(1, "local/s0/0")]
    world.lapse("s0")
    world.answer()
    assert (told(world, "t/m")[0], told(world, "t/more")[1]) == (ModelState.AVAILABLE, "TENANT_FLOOR")


def test_what_is_kept_is_seldom_chosen_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most decisions concern servers that are not kept, and none that comes before them: then nothing is compared."""
    compared = count()
    capacity = floors._capacity  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(floors, "_capacity", lambda *args: (next(compared), capacity(*args))[1])
    world = fleet(50)
    for n in range(50):
        world.deploy(of("t", f"m{n}"))
    world.answer()
    world.set_tenant("short", floor_replicas=10)
    for n in range(5):
        world.deploy(of("short", f"m{n}", memory=(950 + n) * MIB))
    begin = next(compared)
    for n in range(20):
        assert placed(world.deploy(of("t", f"b{n}"))) == [f"t/b{n}"]
    assert next(compared) - begin < 5 * 50


# --- whose turn it is -------------------------------------------------------------------------------------------------


def full_world() -> World:
    """One server, all of it taken by one model."""
    world = fleet(1, memory=400 * MIB)
    world.deploy(of("hog", "h", memory=400 * MIB))
    world.answer()
    return world


def freed(world: World) -> list[str]:
    """The order in which models are placed once there is room."""
    world.undeploy("h", "hog")
    world.pass_time(5_000)
    begin = len(world.log)
    world.answer()
    return [model for entry in world.log[begin:] for model in placed(list(entry.facts))]


def test_who_is_below_its_floor_goes_first_then_who_has_the_most_quota_left() -> None:
    """Whatever the priorities and the order of the wishes."""
    world = full_world()
    world.set_tenant("small", cap_replicas=4)
    world.set_tenant("large", cap_replicas=10)
    world.set_tenant("floor", cap_replicas=1, floor_replicas=1)
    for name in ("uncapped", "small", "large", "floor"):
        world.deploy(of(name, "m", memory=50 * MIB, priority=7 if name == "uncapped" else 0))
        world.deploy(of(name, "n", memory=50 * MIB))
    # All of both caps is left at first, and the older wish goes on; then 3/4 of one and all of the other; then 9/10.
    assert freed(world) == [
        "floor/m", "small/m", "large/m", "large/n", "small/n", "uncapped/m", "uncapped/n",
    ]  # fmt: skip
    assert told(world, "floor/n")[1] == "TENANT_QUOTA"


def test_two_that_wait_for_more_than_there_is_share_it() -> None:
    """A turn is one replica: neither takes all because it asked first."""
    world = World()
    for n in range(4):
        world.join(f"s{n}", memory=100 * MIB)
    world.deploy(of("hog", "h", replicas=4))
    world.answer()
    for name in ("a", "b"):
        world.set_tenant(name, cap_replicas=10)
        world.deploy(of(name, "m", replicas=4))
    assert sorted(freed(world)) == ["a/m", "a/m", "b/m", "b/m"]


def test_within_a_tenant_the_higher_priority_goes_first_then_the_older_wish() -> None:
    world = full_world()
    world.set_tenant("team", cap_replicas=10)
    world.deploy(of("team", "old", memory=50 * MIB))
    world.deploy(of("team", "young", memory=50 * MIB))
    world.deploy(of("team", "urgent", memory=50 * MIB, priority=5))
    assert freed(world) == ["team/urgent", "team/old", "team/young"]


def test_the_highest_load_goes_first_and_is_looked_at_after_each_turn() -> None:
    """Who has no replica at all, then who has the fewest of those that it wants; the older wish only where these are equal."""
    world = fleet(8, memory=100 * MIB)
    world.set_tenant("team", cap_replicas=30)
    world.deploy(of("team", "most", replicas=3, memory=100 * MIB))
    world.deploy(of("team", "few", replicas=1, memory=100 * MIB))
    world.deploy(of("hog", "h", replicas=4, memory=100 * MIB))
    world.answer()
    world.scale(4, "most", "team")
    world.scale(4, "few", "team")
    world.deploy(of("team", "none", memory=100 * MIB))
    # 1 for none, then 4 for 1 and 4 for 2; after that both stand at 4 for 3, and the older goes on.
    assert freed(world) == ["team/none", "team/few", "team/few", "team/most"]


@pytest.mark.parametrize("how", ["lost", "drains"])
def test_what_is_gone_is_replaced_once_also_where_more_are_wanted_than_there_were(how: str) -> None:
    """Of three two had room; the servers that came later are kept for a tenant below its floor. One of the two is gone."""
    world = World()
    world.set_tenant("team", floor_replicas=4)
    for name in ("s0", "s1"):
        world.join(name, memory=100 * MIB)
    world.deploy(of("default", "m", replicas=3))
    world.answer()
    world.deploy(of("team", "waits", memory=200 * MIB, replicas=4))
    for name in ("t0", "t1", "t2"):  # strangers have half of it
        free = Device(uuid="cpu", kind="cpu", total=300 * MIB, free=150 * MIB, largest_free=150 * MIB)
        world.join(name, devices=(free,))
    world.at += 1_000
    if how == "lost":
        world.lapse("s0")
    else:
        world.drain("s0")
    world.at += 1_000
    world.answer()
    there = [replica.server for replica in world.state.models["default/m"].replicas.values() if replica.live]
    assert len(there) == 2
    assert "local/s1/0" in there
