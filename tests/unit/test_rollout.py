"""Rollout: how one version takes the place of another, where there is room and where there is none."""

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from magnetar_common.state import Model, ReplicaKey
from magnetar_common.status import ModelState, ModelStatus, model_status
from magnetar_common.transitions import R
from magnetar_events import facts as f
from magnetar_events.entry import Input
from magnetar_events.models import ModelSpec
from magnetar_scheduler import inputs as i
from magnetar_scheduler.rollout import _weights
from tests.support.world import MIB, World, spec

IRIS = "default/iris"


def version(number: int, *, replicas: int = 2, memory: int = 100 * MIB, **fields: object) -> ModelSpec:
    return spec(replicas=replicas, memory=memory, storage_uri=f"file:///models/v{number}", **fields)


def cramped(servers: int, *, memory: int = 150 * MIB, **rules: object) -> World:
    """So many servers, each with room for one replica of 100 MiB and not for two."""
    world = World()
    world.set_policy(**rules)
    for name in "abcdef"[:servers]:
        world.join(name, memory=memory)
    return world


def model(world: World) -> Model:
    return world.state.models[IRIS]


def status(world: World) -> ModelStatus:
    return model_status(model(world))


def available(world: World) -> dict[int, int]:
    """Version → replicas in the route table."""
    found: dict[int, int] = {}
    for (generation, _), state in world.states().items():
        if state is R.AVAILABLE:
            found[generation] = found.get(generation, 0) + 1
    return found


def traffic(world: World) -> dict[int, int]:
    return {target.generation: target.weight for target in model(world).traffic}


def served(servers: int, replicas: int, **rules: object) -> World:
    """Version 1 is Available, with one replica on each of so many cramped servers."""
    world = cramped(servers, **rules)
    world.deploy(version(1, replicas=replicas))
    world.answer(digest="1" * 64)
    assert available(world) == {1: replicas}
    return world


def step(world: World, digest: str = "") -> bool:
    """Obey one command, or let the next time that something waits for come; return whether there was anything to do."""
    if world.state.outstanding:
        world.answer_one(next(iter(world.state.outstanding)), digest=digest)
    elif world.state.next_due():
        world.pass_time(world.state.next_due() - world.at)
    else:
        return False
    return True


def finish(world: World, digest: str = "") -> list[dict[int, int]]:
    """Do all that there is to do; return what was available after each step."""
    seen: list[dict[int, int]] = []
    for _ in range(100):
        if not step(world, digest):
            return seen
        seen.append(available(world))
    raise AssertionError("it never ends")


def half_way(world: World) -> None:
    """Let a rollout of three replicas in steps go on until one of each version serves, and the third is changing."""
    for _ in range(50):
        if available(world) == {1: 1, 2: 1}:
            return
        if world.state.outstanding:
            world.answer_one(next(iter(world.state.outstanding)))
        else:
            world.pass_time(world.state.next_due() - world.at)
    raise AssertionError(f"it never comes to that: {available(world)}")


def last(world: World, kind: type) -> Any:
    return [fact for entry in world.log for fact in entry.facts if isinstance(fact, kind)][-1]


# --- where there is room ----------------------------------------------------------------------------------------------


def test_with_room_all_new_replicas_come_up_beside_the_old() -> None:
    """The old version keeps all of its replicas and all traffic until every new one is loaded; then it changes at once."""
    world = served(4, 2)
    world.deploy(version(2))
    assert traffic(world) == {1: 100}
    first, second = world.state.outstanding
    world.answer_one(first)
    assert (traffic(world), available(world)) == ({1: 100}, {1: 2})
    world.answer_one(second)
    assert (traffic(world), available(world)) == ({2: 100}, {2: 2})
    finish(world)
    assert set(model(world).versions) == {2}


def test_s22_load_ready_route_then_unroute_grace_unload_whatever_changes() -> None:
    """S22: scale-up, version change and scale-down give traffic to what serves alone, and an undeploy too ends in order."""
    world = served(6, 2)
    for change in (lambda: world.scale(3), lambda: world.deploy(version(2, replicas=3)), lambda: world.scale(1)):
        before = sum(available(world).values())
        change()
        for _ in range(100):
            serving = available(world)
            assert traffic(world).keys() <= serving.keys()
            assert sum(serving.values()) >= min(before, model(world).wanted)
            if not step(world):
                break
        wanted = model(world).target
        assert (traffic(world), serving) == ({wanted.generation: 100}, {wanted.generation: wanted.wanted})
    world.undeploy()
    finish(world)
    began: dict[tuple[int, str], int] = {}
    graces: list[int] = []
    for entry in world.log:
        for fact in entry.facts:
            if isinstance(fact, f.ReplicaChanged) and fact.after == R.UNROUTE_REQUESTED:
                began[fact.generation, fact.server] = entry.at
            elif isinstance(fact, f.ReplicaChanged) and fact.before == R.UNROUTE_REQUESTED:
                graces.append(entry.at - began.pop((fact.generation, fact.server)))
    assert (len(graces), began) == (3 + 2 + 1, {})
    assert min(graces) > world.state.policy.unload_grace_ms


# --- where room is short ----------------------------------------------------------------------------------------------


def test_without_leave_it_waits_and_says_why() -> None:
    """rolloutUnavailable 0 and no room: the old version goes on whole, and the reason names what would help."""
    world = served(2, 2)
    world.deploy(version(2))
    finish(world)
    assert (available(world), traffic(world)) == ({1: 2}, {1: 100})
    told = status(world)
    assert (told.state, told.code) == (ModelState.SCHEDULE_FAILED, "NO_ROOM")
    assert "version 1 goes on serving, and none of it leaves first: rolloutUnavailable is 0" in told.reason
    assert [(each.generation, each.available) for each in told.active] == [(1, 2)]
    assert told.generation == 2


def test_a_new_policy_lets_a_waiting_rollout_go_on() -> None:
    """The wish need not be repeated: the policy is all that it waited for."""
    world = served(2, 2)
    world.deploy(version(2))
    world.set_policy(rollout_unavailable=1)
    assert min(sum(each.values()) for each in finish(world)) == 1
    assert (available(world), traffic(world)) == ({2: 2}, {2: 100})


def test_with_leave_it_goes_in_steps() -> None:
    """One at a time: at every step at most one of three is missing, and both versions share the traffic by replicas."""
    world = served(3, 3, rollout_unavailable=1)
    world.deploy(version(2, replicas=3))
    seen = finish(world)
    assert min(sum(each.values()) for each in seen) == 2
    assert {1: 1, 2: 1} in seen
    shares = [fact.targets for entry in world.log for fact in entry.facts if isinstance(fact, f.TrafficChanged)]
    assert (f.TrafficTarget(1, 66), f.TrafficTarget(2, 34)) in shares
    assert (available(world), traffic(world)) == ({2: 3}, {2: 100})
    assert set(model(world).versions) == {2}


def test_room_for_one_is_enough_to_never_have_fewer() -> None:
    """Without leave, and with one server more than replicas: each new one loads first, and then an old one leaves."""
    world = served(4, 3)
    world.deploy(version(2, replicas=3))
    totals = [sum(each.values()) for each in finish(world)]
    assert min(totals) >= 3
    assert available(world) == {2: 3}


def test_no_old_replica_leaves_for_nothing() -> None:
    """A version that would not fit in the old one's places either takes none of them."""
    world = served(2, 2, rollout_unavailable=2)
    world.deploy(version(2, memory=500 * MIB))
    finish(world)
    assert available(world) == {1: 2}
    world.deploy(version(3, requirements=("torch",)))
    finish(world)
    assert available(world) == {1: 2}


def test_an_old_log_knows_no_steps() -> None:
    """Before the upgrade is finalized a version waits for room as it did, and the log holds no fact of version 2."""
    world = World(fold_version=1)
    for name in "ab":
        world.join(name, memory=150 * MIB)
    world.deploy(version(1))
    world.answer()
    (rejected,) = world.set_policy(rollout_unavailable=1)
    assert isinstance(rejected, f.RequestRejected)
    assert rejected.code == "UPGRADE_NOT_FINALIZED"
    world.deploy(version(2))
    finish(world)
    assert available(world) == {1: 2}
    assert "rolloutUnavailable" not in status(world).reason


# --- a version that fails ---------------------------------------------------------------------------------------------


def fail_everything(world: World, generation: int, *, retriable: bool = True) -> None:
    """Refuse every load of a version, and obey everything else, until nothing is left to do."""
    for _ in range(200):
        if world.state.outstanding:
            key = next(iter(world.state.outstanding))
            loading = world.state.command_of(world.state.outstanding[key]) == "LoadModel"
            if loading and key.generation == generation:
                world.fail_load(key, retriable=retriable)
            else:
                world.answer_one(key)
        elif world.state.next_due():
            world.pass_time(world.state.next_due() - world.at)
        else:
            return
    raise AssertionError("it never ends")


def test_a_failed_version_stops_at_its_threshold_and_the_old_one_goes_on() -> None:
    """Target and active stand side by side: version 2 Failed with every place, version 1 with all traffic."""
    world = served(4, 2)
    world.deploy(version(2))
    fail_everything(world, 2)
    told = status(world)
    assert (told.state, told.code, told.generation, told.available) == (ModelState.FAILED, "LOAD_FAILED", 2, 0)
    assert [(each.generation, each.weight, each.available) for each in told.active] == [(1, 100, 2)]
    assert not [replica for replica in told.replicas if replica.generation == 2]


def test_a_version_that_fails_in_steps_gives_the_places_back() -> None:
    """What the old version gave up it gets back, and the fact says why."""
    world = served(3, 3, rollout_unavailable=1)
    world.deploy(version(2, replicas=3))
    kept = last(world, f.VersionKept)
    assert (kept.generation, kept.replicas, kept.full) == (1, 2, 3)
    fail_everything(world, 2, retriable=False)
    assert available(world) == {1: 3}
    kept = last(world, f.VersionKept)
    assert (kept.generation, kept.replicas, kept.full, kept.reason) == (1, 3, 0, "version 2 failed")
    assert traffic(world) == {1: 100}
    assert status(world).state is ModelState.FAILED


def test_a_version_that_fails_half_way_shares_the_traffic_with_the_old_one() -> None:
    """Nothing that serves is taken down for a failure: two of the new and one of the old go on together."""
    world = served(3, 3, rollout_unavailable=1)
    world.deploy(version(2, replicas=3))
    half_way(world)
    fail_everything(world, 2, retriable=False)
    assert available(world) == {1: 2, 2: 1}
    assert traffic(world) == {1: 66, 2: 34}
    assert status(world).state is ModelState.DEGRADED


def test_superseded_half_way_everybody_serves_until_the_third_version_can() -> None:
    """A rollout on top of a rollout: neither loses what it serves with."""
    world = served(3, 3, rollout_unavailable=1)
    world.deploy(version(2, replicas=3))
    half_way(world)
    world.deploy(version(3, replicas=3))
    assert min(sum(each.values()) for each in finish(world)) >= 2
    assert (available(world), traffic(world)) == ({3: 3}, {3: 100})
    assert set(model(world).versions) == {3}


def test_superseded_half_way_a_version_gets_no_more_replicas() -> None:
    """Its number is what it has: the room that is left is not filled with what nobody wants any more."""
    world = served(3, 3, rollout_unavailable=1)
    world.deploy(version(2, replicas=3))
    half_way(world)
    world.deploy(version(3, replicas=3, memory=500 * MIB))
    position = world.state.position
    finish(world)
    assert available(world) == {1: 1, 2: 1}
    placed = [fact for entry in world.log[position:] for fact in entry.facts if isinstance(fact, f.ReplicaPlaced)]
    assert not placed
    assert last(world, f.VersionKept).reason == "superseded in the middle of its rollout"


def test_s43_a_failing_rollout_is_tried_elsewhere_then_fails_and_a_new_server_tries_again() -> None:
    """S43 in a rollout: every place is listed, the old version serves throughout, and a server that comes is tried."""
    world = served(5, 2)
    world.deploy(version(2, replicas=1))
    fail_everything(world, 2)
    failed = model(world).target.failed
    assert failed is not None
    assert (len(failed.places), failed.retriable) == (3, True)
    assert available(world) == {1: 2}
    world.join("f", memory=150 * MIB)
    world.answer()
    finish(world)
    assert (available(world), traffic(world)) == ({2: 1}, {2: 100})


def test_s26_s43_a_failing_version_is_tried_on_so_many_servers_and_no_more_and_gets_no_traffic() -> None:
    """S26, S43: it stops at loadServers though there are more, the old one has all traffic at every step, and it is whole."""
    world = served(6, 2)
    world.deploy(version(2, replicas=1))
    for _ in range(200):
        assert (traffic(world), available(world)) == ({1: 100}, {1: 2})
        key = next((key for key in world.state.outstanding if key.generation == 2), None)
        if key is not None and world.state.command_of(world.state.outstanding[key]) == "LoadModel":
            world.fail_load(key)
        elif not step(world):
            break
    told = status(world)
    failed = model(world).target.failed
    assert failed is not None
    assert (told.state, failed.retriable, failed.message) == (ModelState.FAILED, True, "failed on 3 servers")
    assert len(failed.places) == world.state.policy.load_servers == 3 < 6 - 2
    world.rollback(1)
    finish(world)
    assert (status(world).state, traffic(world)) == (ModelState.AVAILABLE, {1: 100})


def test_s37_a_new_version_that_needs_more_than_it_says_takes_nothing_from_the_old_one() -> None:
    """S37 in a rollout: a load that fails for memory goes elsewhere at once, and the old version serves throughout."""
    world = served(4, 2)
    world.deploy(version(2))
    first = next(iter(world.state.outstanding))
    world.fail_load(first, "LOAD_FAIL_MEMORY")
    assert world.states()[2, first.server] is R.UNLOAD_REQUESTED
    assert available(world) == {1: 2}
    finish(world)
    assert (available(world), traffic(world)) == ({1: 2}, {1: 100})
    assert first.server in model(world).target.places


def test_s42_a_rollout_books_before_it_moves() -> None:
    """S42: where two rollouts want the same place, the books are never overdrawn, not even between two facts."""
    world = cramped(3, rollout_unavailable=1)
    for name in ("iris", "rose"):
        world.deploy(spec(name, replicas=1))
    world.answer()
    for name in ("iris", "rose"):
        world.deploy(spec(name, replicas=1, storage_uri="file:///v2"))
        assert all(booked <= 150 * MIB for booked in world.state.booked.values())
    for _ in range(40):
        if world.state.outstanding:
            world.answer_one(next(iter(world.state.outstanding)))
        elif world.state.next_due():
            world.pass_time(world.state.next_due() - world.at)
        assert all(booked <= 150 * MIB for booked in world.state.booked.values())
    for key in ("default/iris", "default/rose"):
        assert {target.generation for target in world.state.models[key].traffic} == {2}


def test_s38_s39_a_step_waits_until_the_device_shows_the_memory() -> None:
    """S38, S39 in a rollout: an old replica's place is taken when the reading shows it free, and never booked twice."""
    world = served(2, 2, rollout_unavailable=1)
    read(world, 50 * MIB)
    world.deploy(version(2))
    finish(world)
    assert available(world) == {1: 1}, "one left, and its memory is not seen to be free"
    assert not any(generation == 2 for generation, _ in world.states())
    read(world, 150 * MIB)
    finish(world)
    assert available(world) == {2: 2}


def read(world: World, free: int) -> None:
    """Every device says that so much of it is free."""
    for server in list(world.state.servers.values()):
        device = server.info.devices[0].model_copy(update={"free": free, "largest_free": free})
        info = server.info.model_copy(update={"devices": (device,)})
        world.feed(i.ReadingChanged(server.record.model_copy(update={"server": info})), Input("reading"))


# --- by property ------------------------------------------------------------------------------------------------------


def test_a_version_that_comes_during_a_drain_leaves_the_old_one_until_it_can_serve() -> None:
    """What is on its way to take over from a draining server is not let go for the new version's sake."""
    world = served(2, 1)
    (home,) = (server for _, server in world.states())
    world.drain(home.split("/")[1])
    world.deploy(version(2, replicas=1))
    assert available(world) == {1: 1}
    world.answer()
    world.pass_time(5_000)
    world.answer()
    assert available(world) == {1: 1}
    assert home not in {server for _, server in world.states()}


def test_a_version_that_failed_takes_no_traffic_from_the_one_that_serves() -> None:
    """Not when fewer are wanted, and not while the old version's server is lost."""
    world = served(3, 2)
    world.join("d", memory=400 * MIB)
    world.deploy(version(2, replicas=2))
    one, other = sorted(world.state.outstanding)
    world.answer_one(one)
    world.fail_load(other, "ARTIFACT_MISSING", retriable=False)
    world.scale(1)
    assert (traffic(world), available(world)) == ({1: 100}, {1: 1})
    (home,) = (server for (generation, server), state in world.states().items() if state is R.AVAILABLE)
    world.lapse(home.split("/")[1])
    assert traffic(world) == {1: 100}
    world.answer()
    assert available(world) == {1: 1}


def test_scaling_reaches_what_serves() -> None:
    """While the wanted version fits nowhere the old one is scaled with it, in and out, and at once if so asked."""
    world = served(3, 3)
    world.deploy(version(2, replicas=3, memory=1_000 * MIB))
    world.scale(1, now=True)
    assert available(world) == {1: 1}
    assert R.UNROUTE_REQUESTED not in world.states().values()
    world.answer()
    world.pass_time(5_000)
    world.scale(2)
    world.answer()
    assert available(world) == {1: 2}


def test_a_version_takes_over_with_as_many_as_there_were_where_no_more_fit() -> None:
    """One server, two wanted: the old version has one replica, and so has the new one."""
    world = cramped(1, memory=400 * MIB)
    world.deploy(version(1))
    world.answer()
    world.deploy(version(2))
    world.answer()
    world.pass_time(5_000)
    world.answer()
    assert (traffic(world), available(world), len(world.states())) == ({2: 100}, {2: 1}, 1)
    assert status(world).state is ModelState.DEGRADED


class Watched(World):
    """A world that looks after every entry."""

    least = 0

    def feed(self, source: i.Decidable, raw: Any = None, *, settle: bool = True) -> list[f.Fact]:
        facts = super().feed(source, raw, settle=False)
        if facts:
            self.look()
        if settle and not isinstance(source, i.Continue):
            while self.feed(i.Continue(), settle=False):
                pass
        return facts

    def look(self) -> None:
        found = self.state.models.get(IRIS)
        if found is None:
            return
        serving = [replica for replica in found.replicas.values() if replica.state is R.AVAILABLE]
        assert len(serving) >= self.least, f"{len(serving)} serve, and {self.least} must"
        routed = found.routed()
        assert all(replica.generation in routed for replica in serving)
        assert sum(target.weight for target in found.traffic) in (0, 100)
        if any(r.state in (R.LOADED, R.AVAILABLE) for r in found.replicas.values() if r.generation in found.kept()):
            assert serving or any(r.state is R.LOADED for r in found.replicas.values())
        assert self.state.illegal == 0


act = st.one_of(
    st.tuples(st.just("deploy"), st.integers(1, 3), st.sampled_from((60, 100, 140))),
    st.tuples(st.just("rollback"), st.integers(1, 6), st.just(0)),
    st.tuples(st.just("answer"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("answer"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("fail"), st.integers(0, 9), st.booleans()),
    st.tuples(st.just("time"), st.sampled_from((10, 1_500, 70_000)), st.just(0)),
    st.tuples(st.just("freeze"), st.booleans(), st.just(0)),
    st.tuples(st.just("drain"), st.integers(0, 9), st.booleans()),
    st.tuples(st.just("drain"), st.integers(0, 9), st.booleans()),
    st.tuples(st.just("scale"), st.integers(1, 4), st.booleans()),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.integers(1, 4),
    st.integers(0, 2),
    st.integers(0, 3),
    st.sampled_from((150, 210, 400)),
    st.lists(act, max_size=30),
)
def test_never_fewer_than_allowed(
    replicas: int, unavailable: int, extra: int, memory: int, acts: list[tuple[str, Any, Any]]
) -> None:
    """Whatever is deployed, rolled back, scaled, drained, failed or frozen, after every entry enough replicas serve, and those
    are routed."""
    world = Watched()
    world.set_policy(rollout_unavailable=unavailable, load_attempts=1)
    for name in "abcdefg"[: replicas + extra]:
        world.join(name, memory=memory * MIB)
    world.deploy(version(0, replicas=replicas))
    world.answer()
    world.least = max(0, replicas - unavailable)
    for action, one, two in acts:
        if action == "deploy":
            world.deploy(version(one, replicas=replicas, memory=two * MIB))
        elif action == "rollback":
            world.rollback(one)
        elif action in ("answer", "fail") and world.state.outstanding:
            keys: list[ReplicaKey] = sorted(world.state.outstanding)
            key = keys[one % len(keys)]
            if action == "fail" and world.state.command_of(world.state.outstanding[key]) == "LoadModel":
                world.fail_load(key, retriable=two)
            else:
                world.answer_one(key)
        elif action == "time":
            world.pass_time(one)
        elif action == "freeze":
            world.freeze() if one else world.unfreeze()
        elif action == "drain":
            server = sorted(world.state.servers)[one % len(world.state.servers)].split("/")[1]
            world.drain(server) if two else world.resume(server)
        elif action == "scale":
            world.least = min(world.least, max(0, one - unavailable))
            world.scale(one, now=two)
    assert world.replayed() == world.state


@given(st.dictionaries(st.integers(1, 9), st.integers(0, 50), min_size=1))
def test_weights_are_a_hundred_together(counts: dict[int, int]) -> None:
    """Whatever the numbers of replicas; and who has none gets nothing."""
    weights = dict(_weights(counts.items()))
    assert sum(weights.values()) == (100 if any(counts.values()) else 0)
    assert set(weights) == {generation for generation, count in counts.items() if count}
