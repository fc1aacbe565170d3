"""Failed loads: what is tried elsewhere, what is given up, and what comes back."""

import random

import pytest

from magnetar_common.state import ReplicaKey
from magnetar_common.status import ModelState, ModelStatus, model_status
from magnetar_events import facts as f
from magnetar_scheduler import inputs as i
from magnetar_scheduler import pending
from tests.support.world import MIB, World, spec

IRIS = "default/iris"


def status(world: World, key: str = IRIS) -> ModelStatus:
    return model_status(world.state.models[key])


def of(world: World, key: str = IRIS) -> dict[str, str]:
    """Version and server → state of the replicas."""
    return {f"{v}@{server.split('/')[1]}": str(state) for (v, server), state in world.states(key).items()}


def with_servers(names: str) -> World:
    world = World()
    for name in names:
        world.join(name)
    return world


def loads(world: World) -> list[ReplicaKey]:
    return [key for key, each in world.state.outstanding.items() if world.state.command_of(each) == "LoadModel"]


def go_on(world: World, *good: str, hours: int = 1) -> None:
    """Let every load fail that is not on one of these servers, until nothing more happens but the passing of time."""
    for _ in range(500):
        if not world.state.outstanding and not 0 < world.state.next_due() < world.at + hours * 3_600_000:
            return
        for key in list(world.state.outstanding):
            if key in loads(world) and key.server.split("/")[1] not in good:
                world.fail_load(key)
            elif key in world.state.outstanding:
                world.answer_one(key)
        world.pass_time(10_000)
    raise AssertionError("it never ends")


@pytest.mark.parametrize("why", ["full", "stale", "cordoned"])
def test_what_failed_is_tried_where_it_was_not_as_soon_as_that_takes_it(why: str) -> None:
    """Failed with its reason meanwhile: the other server was full or cordoned. If only its readings were old, it waits."""
    world = with_servers("ab")
    if why == "full":
        world.deploy(spec("other", server="b", memory=950 * MIB))
        world.answer()
    world.deploy()
    if why == "stale":
        world.feed(i.ReadingStale("local/b/0"))
    if why == "cordoned":
        world.cordon("b")
    go_on(world)
    meanwhile = ModelState.SCHEDULE_FAILED if why == "stale" else ModelState.FAILED
    assert (status(world).state, of(world)) == (meanwhile, {})
    assert "local/a/0: LOAD_FAILED: boom" in status(world).reason or why == "stale"
    if why == "full":
        world.undeploy("other")
    if why == "stale":
        world.feed(i.ReadingChanged(world.of("b")))
    if why == "cordoned":
        world.resume("b")
    go_on(world, "b")
    assert (status(world).state, of(world)) == (ModelState.AVAILABLE, {"1@b": "Available"})
    assert world.state.models[IRIS].target.failed is None


def test_what_is_tried_once_there_is_room_ends_at_as_many_servers_as_the_policy_says() -> None:
    """Each server is tried once; then it has failed at all of them, which are all told, however much room there is."""
    world = with_servers("abcde")
    for name in "bcde":
        world.deploy(spec(f"on-{name}", server=name, memory=950 * MIB))
    world.answer()
    world.deploy()
    go_on(world)
    for name in "bcde":
        world.undeploy(f"on-{name}")
        go_on(world)
    assert status(world).state is ModelState.FAILED
    assert status(world).reason.count("boom") == world.state.policy.load_servers
    assert IRIS not in world.state.waiting
    tried = [x.server for entry in world.log for x in entry.facts if isinstance(x, f.ReplicaPlaced) and x.model == IRIS]
    assert len(tried) == len(set(tried)) == world.state.policy.load_servers


def test_what_is_still_tried_where_it_failed_once_has_not_failed() -> None:
    """One replica waits for room while the other waits for its next attempt, and also once that has succeeded."""
    world = with_servers("ab")
    world.deploy(spec("other", server="b", memory=950 * MIB))
    world.answer()
    world.deploy(spec(replicas=2))
    world.fail_load(loads(world)[0])
    world.deploy(spec("small", server="b", memory=10 * MIB))  # whatever changes has what waits tried again
    assert world.state.models[IRIS].target.failed is None
    go_on(world, "a", "b")
    world.undeploy("small")
    go_on(world, "a", "b")
    assert (status(world).state, status(world).code) == (ModelState.DEGRADED, "NO_ROOM")


def test_what_was_tried_elsewhere_and_lost_there_is_tried_again() -> None:
    """It failed on one, and the next server is lost during the load: that takes nothing from the third."""
    world = with_servers("abc")
    for name in "bc":
        world.deploy(spec(f"on-{name}", server=name, memory=950 * MIB))
    world.answer()
    world.deploy()
    go_on(world)
    for name in "bc":
        world.undeploy(f"on-{name}")
    world.pass_time(world.state.policy.unload_grace_ms + 1)
    for key in list(world.state.outstanding):
        world.answer_one(key)
    assert not world.state.models[IRIS].pending()[1]
    tried, rest = ("b", "c") if loads(world)[0].server == "local/b/0" else ("c", "b")
    world.lapse(tried)
    go_on(world, rest)
    assert of(world)[f"1@{rest}"] == "Available"


def failed_at_its_second(names: str) -> World:
    """One of two replicas serves on a, the other one failed wherever it was tried."""
    world = with_servers(names)
    world.deploy()
    go_on(world, "a")
    world.scale(2)
    go_on(world)
    assert (status(world).state, of(world)) == (ModelState.DEGRADED, {"1@a": "Available"})
    return world


@pytest.mark.parametrize("how", ["lost", "drained"])
def test_what_serves_is_replaced_though_its_version_failed_elsewhere(how: str) -> None:
    """A failed scale-up takes nothing from the replica that works."""
    world = failed_at_its_second("abcdefg")
    if how == "lost":
        world.lapse("a")
    else:
        world.drain("a", deadline_ms=60_000)
    go_on(world, "f")
    assert of(world)["1@f"] == "Available"
    assert status(world).state is (ModelState.DEGRADED if how == "lost" else ModelState.AVAILABLE)


def test_what_serves_is_replaced_though_its_version_failed_for_good() -> None:
    """The secret is missing on one host only; the server of the other replica is lost, and is the only one that takes it."""
    world = with_servers("ab")
    world.deploy()
    go_on(world, "a")
    world.scale(2)
    world.fail_load(loads(world)[0], "SECRET_MISSING", retriable=False)
    go_on(world)
    world.lapse("a")
    go_on(world)
    assert of(world) == {"1@a": "Lost"}
    world.join("a", incarnation="two")
    go_on(world, "a")
    assert of(world) == {"1@a": "Available"}
    assert (status(world).state, status(world).code) == (ModelState.DEGRADED, "SECRET_MISSING")


def test_what_serves_is_replaced_on_so_many_servers_and_no_more() -> None:
    """With everything failing it ends, and does not go through the whole fleet."""
    world = failed_at_its_second("abcdefghijklmnopq")
    world.lapse("a")
    go_on(world)
    assert len(world.state.models[IRIS].target.places) == 3 * world.state.policy.load_servers
    assert status(world).reason.count("boom") == 3 * world.state.policy.load_servers
    assert not world.state.models[IRIS].pending()[0]


def test_no_more_is_replaced_than_served() -> None:
    """Of three that were wanted two served; both are lost, and the first that takes the place of one fails."""
    world = with_servers("abcdefghi")
    world.deploy(spec(replicas=2))
    go_on(world, "a", "b")
    world.scale(3)
    go_on(world)
    world.lapse("a")
    world.lapse("b")
    assert len(loads(world)) == 2
    go_on(world, "h", "i")
    assert [state for state in of(world).values() if state != "Lost"] == ["Available", "Available"]


def test_scaled_to_what_serves_it_is_whole_again() -> None:
    """And is replaced as any other, wherever it had failed."""
    world = failed_at_its_second("abcd")
    world.scale(1)
    assert world.state.models[IRIS].target.failed is None
    world.lapse("a")
    go_on(world, "b")
    assert of(world) == {"1@b": "Available"}


@pytest.mark.parametrize("replicas", [1, 2])
def test_scaling_what_failed_tries_it_again(replicas: int) -> None:
    """To whatever number: somebody wants it."""
    world = with_servers("ab")
    world.deploy()
    go_on(world)
    assert status(world).state is ModelState.FAILED
    world.scale(replicas)
    assert len(loads(world)) == replicas
    go_on(world, "a", "b")
    assert status(world).state is ModelState.AVAILABLE


def test_a_new_server_brings_back_an_old_version_that_serves_until_the_new_one_can() -> None:
    """Also when it is not the wanted version that failed; and who does not serve is not said to."""
    world = with_servers("a")
    world.deploy()
    go_on(world, "a")
    world.deploy(spec(memory=100_000 * MIB))
    assert "version 1 goes on serving" in status(world).reason
    world.join("b")
    world.lapse("a")
    go_on(world)
    assert world.state.models[IRIS].versions[1].failed is not None
    assert "goes on serving" not in status(world).reason
    world.join("c")
    go_on(world, "c")
    assert of(world)["1@c"] == "Available"


@pytest.mark.parametrize(("failed", "waiting"), [(0, 1), (1, 0), (1, 1)])
def test_on_a_new_server_what_failed_and_what_waits_have_their_turns(failed: int, waiting: int) -> None:
    """The higher priority is placed; of equal ones the older wish, which is the one that failed."""
    world = with_servers("a")
    world.deploy(spec(memory=800 * MIB, priority=failed))
    go_on(world)
    assert status(world).state is ModelState.FAILED
    world.deploy(spec("fills", memory=800 * MIB, server="a"))
    world.answer()
    world.deploy(spec("waits", memory=800 * MIB, priority=waiting))
    assert status(world, "default/waits").state is ModelState.SCHEDULE_FAILED
    world.join("b")
    world.answer()
    there = {key.removeprefix("default/") for key, _ in world.state.servers["local/b/0"].replicas}
    assert there == {"iris" if failed >= waiting else "waits"}
    assert world.state.models[IRIS].target.failed is None


def test_what_failed_is_among_what_is_still_to_be_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """One entry tries one kind: while another that fits nowhere comes first, there is more to try after it."""
    monkeypatch.setattr(pending, "COMPARISONS", 1)
    world = with_servers("a")
    world.deploy(spec(memory=800 * MIB))
    go_on(world)
    world.deploy(spec("nowhere", memory=5_000 * MIB, priority=9))
    world.cordon("a")
    world.join("b")
    assert world.state.revivable() == [IRIS]
    assert pending.more_to_try(world.state, 1)
    assert not pending.more_to_try(world.state, 2)
    assert any(isinstance(fact, f.VersionRevived) for fact in world.feed(i.Continue(1), settle=False))


def test_an_old_version_is_placed_though_all_that_is_like_the_new_one_fits_nowhere() -> None:
    """Two models wait with a version that fits nowhere; the old version of one is lost, and then there is room for it."""
    world = with_servers("a")
    world.deploy(spec(memory=300 * MIB))
    go_on(world, "a")
    world.deploy(spec(memory=100_000 * MIB))
    world.deploy(spec("another", memory=100_000 * MIB, priority=5))
    world.join("b", memory=200 * MIB)
    world.lapse("a")
    world.pass_time(world.state.policy.forget_server_ms)
    assert (of(world), world.state.models[IRIS].routed()) == ({}, {1})
    world.join("c")
    go_on(world, "c")
    assert of(world) == {"1@c": "Available"}


def test_what_is_left_of_a_version_that_failed_gives_its_memory_back() -> None:
    """As long as the old one serves it is of no use."""
    world = with_servers("abcdef")
    world.deploy(spec(replicas=3))
    go_on(world, *"abcdef")
    world.deploy(spec(replicas=3, storage_uri="file:///2"))
    go_on(world, "d", "e")
    assert of(world) == {"1@a": "Available", "1@b": "Available", "1@c": "Available"}
    assert sum(world.state.booked.values()) == 300 * MIB
    assert status(world).state is ModelState.FAILED


HISTORIES = 60


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_whatever_failed_comes_back(seed: int) -> None:
    """While every load fails it ends; with servers enough, room, and loads that succeed, every wanted model is there."""
    rng = random.Random(seed)
    world, spare = World(), rng.random() < 0.5  # servers that were full until then, or servers that are new
    world.set_policy(
        load_attempts=rng.randint(1, 3),
        load_servers=9 if spare else rng.randint(1, 4),
        rollout_unavailable=rng.choice([0, 0, 1]),
        preemption=rng.choice(["never", "lower-priority"]),
    )
    if rng.random() < 0.3:
        world.set_tenant("default", floor_replicas=rng.randint(0, 2))
    names, servers, others = ("m0", "m1", "m2"), "abcd", [f"other{n}" for n in range(8)]
    if spare:
        for name in others:
            world.join(name, memory=4000 * MIB)
        world.deploy(spec("filler", memory=3990 * MIB, replicas=8, priority=9))
        world.answer()
    for name in servers:
        world.join(name, memory=rng.choice([150, 300, 600]) * MIB)
    for n in range(60):
        name, server = rng.choice(names), rng.choice(servers)
        known = world.state.servers.get(f"local/{server}/0")
        match rng.choice("ddssaaaaffffffttttlljjrxkuz"):
            case "d":
                wish = {"memory": rng.choice([50, 120, 250]) * MIB, "replicas": rng.randint(1, 3)}
                world.deploy(spec(name, priority=rng.randint(0, 1), storage_uri=f"file:///{rng.randint(0, 3)}", **wish))
            case "s":
                world.scale(rng.randint(0, 4), name)
            case "a":
                world.answer(limit=rng.randint(1, 4))
            case "f":
                for key in rng.sample(loads(world), min(2, len(loads(world)))):
                    world.fail_load(key, rng.choice(["LOAD_FAILED", "LOAD_FAIL_MEMORY"]))
            case "t":
                world.pass_time(rng.choice([1_001, 5_000, 70_000]))
            case "l" if known is not None and not known.lost:
                world.lapse(server)
            case "j" if known is None or known.lost:
                world.join(server, incarnation=f"life{n}", memory=rng.choice([150, 600]) * MIB)
            case "r":
                world.rollback(rng.randint(1, 3), name)
            case "x" if known is not None:
                rng.choice([world.drain, world.cordon, world.resume])(server)
            case "k" if known is not None:
                world.feed(i.ReadingStale(f"local/{server}/0"))
            case "u":
                world.feed(i.ReadingChanged(known.record)) if known is not None and not known.lost else None
            case "z" if rng.random() < 0.3:
                world.undeploy(name)
            case _:
                pass
        assert not any(model.pending()[0] for model in world.state.models.values())
    go_on(world)  # every load fails: it comes to an end
    assert world.replayed() == world.state
    if spare:
        world.scale(0, "filler")
    else:
        for name in others:
            world.join(name, memory=4000 * MIB)
    go_on(world, *(key.split("/")[1] for key in world.state.servers))
    for key, model in world.state.models.items():
        told = status(world, key)
        assert told.state is ModelState.AVAILABLE, (key, told)
        assert model.target.failed is None
    assert world.state.illegal == 0
