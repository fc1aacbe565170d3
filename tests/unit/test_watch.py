"""The leader's eye on the registry: a reading is trusted for as long as the policy says, whoever is at fault."""

from collections.abc import Iterator
from itertools import count

import pytest

from magnetar_common.bus import MessageId
from magnetar_common.bus.memory import MemoryBroker, MemoryBus
from magnetar_common.probe import Probe
from magnetar_events.entry import Input
from magnetar_events.models import index_digest
from magnetar_events.records import Device
from magnetar_scheduler import inputs as i
from magnetar_scheduler.inputs import understand
from magnetar_scheduler.watch import Watch
from tests.support.world import MIB, World, record, spec

BEGAN = 1_000.0
TICK_S = 0.25
PLACES = count(1)
"""Of messages on the registry."""


@pytest.fixture
def world() -> World:
    world = World()
    for name in ("a", "b", "c"):
        world.join(name)
    return world


def nothing(*_: object) -> None:
    """Do nothing."""


@pytest.fixture
def watch(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """One whose own probes do not come back."""
    monkeypatch.setattr(Probe, "tick", nothing)
    watch = Watch(MemoryBus(MemoryBroker()), "me", world.state, BEGAN, nothing, nothing)
    yield watch
    watch.close()


def until_stale(world: World, watch: Watch, within: float) -> float:
    """Let ticks pass until somebody's reading is too old, and record it; return after how many seconds."""
    for tick in range(1, int(within / TICK_S) + 1):
        if found := watch.tick(BEGAN + tick * TICK_S):
            assert {each.kind for each in found} == {"stale"}
            for each in found:
                world.feed(understand(each), each)
            return tick * TICK_S
    raise AssertionError("no reading became stale")


def test_during_a_hold_a_reading_ages_like_any_other(world: World, watch: Watch) -> None:
    """Nobody is declared lost for a path that is cut, and nothing is placed by what was read before it was."""
    after = until_stale(world, watch, 10)
    limit = world.state.policy.reading_stale_ms / 1000
    assert limit < after <= limit + TICK_S
    assert watch.leases.holding(BEGAN + after)
    world.deploy()
    assert not world.states()
    assert not any(server.lost for server in world.state.servers.values())


def test_who_is_heard_during_a_hold_is_placed_on(world: World, watch: Watch) -> None:
    """One heartbeat is a reading; it does not need the hold to end."""
    until_stale(world, watch, 10)
    source = watch.hear("b/0/one", record("b"), MessageId(1, 1), BEGAN + 6)
    assert source is not None
    world.feed(understand(source), source)
    world.deploy()
    assert [server for _, server in world.states()] == ["local/b/0"]


def test_after_a_time_without_a_leader_every_reading_is_too_old_in_entries_of_bounded_size() -> None:
    """Nobody knows how old what is in the log was when its last leader ended: each server is heard again first."""
    world = World()
    for n in range(1_000):
        world.join(f"s{n}")
    entries = 0
    while facts := world.feed(i.ReadingStale(), Input("stale")):
        entries += 1
        assert len(facts) < 1_000
    assert entries == 2
    assert all(server.stale for server in world.state.servers.values())
    assert understand(Input("stale")) == i.ReadingStale()
    world.deploy()
    assert not world.states()
    world.feed(i.ReadingChanged(record("s7")), Input("reading"))
    assert [server for _, server in world.states()] == ["local/s7/0"]


def test_a_version_that_failed_elsewhere_does_not_fail_for_readings_that_are_too_old() -> None:
    """That passes by itself: it waits for the next heartbeat."""
    world = World()
    world.join("a")
    world.join("b")
    world.deploy()
    (key,) = world.state.outstanding
    world.feed(i.ReadingStale(), Input("stale"))
    world.fail_load(key, "LOAD_FAIL_MEMORY")
    target = world.state.models["default/iris"].target
    assert target.failed is None
    assert target.refused is not None
    (other,) = {"a", "b"} - {key.server.split("/")[1]}
    world.feed(i.ReadingChanged(record(other)), Input("reading"))
    assert (1, f"local/{other}/0") in world.states()


def index_of(*names: str) -> str:
    return index_digest(names)


def beats(world: World, watch: Watch, *digests: str, free: int = 1000 * MIB) -> list[str]:
    """Hear heartbeats of a server with these digests, and record them; return what each was, as a kind of input."""
    found: list[str] = []
    for digest in digests:
        cpu = Device(uuid="cpu", kind="cpu", total=1000 * MIB, free=free, largest_free=free)
        source = watch.hear("a/0/one", record("a", digest=digest, devices=(cpu,)), MessageId(1, next(PLACES)), BEGAN)
        found.append(source.kind if source is not None else "")
        if source is not None:
            world.feed(understand(source), source)
    return found


def test_an_index_that_is_as_the_state_says_is_no_news(watch: Watch, world: World) -> None:
    """Else every load would leave two entries; one that is not is asked about, also if it is again as it was at first."""
    iris = index_of("default_iris_1")
    world.deploy(spec("iris", server="a"))
    assert beats(world, watch, index_of(), index_of("default_other_1")) == ["", ""], "a load is in flight"
    world.answer()
    assert beats(world, watch, iris, iris) == ["", ""]
    assert not world.state.asked
    assert beats(world, watch, index_of(), index_of()) == ["reading", ""]
    assert "local/a/0" in world.state.asked


def test_after_a_load_less_memory_is_news(watch: Watch, world: World) -> None:
    """What a model took counts in placement before it is a twentieth of the device."""
    iris = index_of("default_iris_1")
    world.deploy(spec("iris", server="a"))
    world.answer()
    assert beats(world, watch, iris, free=999 * MIB) == [""]
    assert beats(world, watch, iris, iris, free=990 * MIB) == ["reading", ""]
    assert beats(world, watch, iris, free=980 * MIB) == [""]


def test_an_index_is_looked_at_again_once_the_state_says_something_else(watch: Watch, world: World) -> None:
    """Loaded and dropped between two heartbeats: both say the same, and what was right before is not now."""
    assert beats(world, watch, index_of()) == [""]
    world.deploy(spec("iris", server="a"))
    world.at += 1_000
    world.answer()
    assert beats(world, watch, index_of(), index_of()) == ["reading", ""]
    assert "local/a/0" in world.state.asked
