"""Leases: silence counts only in proven time, evictions are limited, and no suspicion lasts for ever."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar_common.bus.base import MessageId
from magnetar_common.leases import Leases
from magnetar_events.policy import Policy

POLICY = Policy(heartbeat_ms=3_000, lease_ms=9_000, hold_ms=60_000, evictions_per_minute=1, eviction_share=0.1)
GENEROUS = POLICY.model_copy(update={"evictions_per_minute": 1_000})
STEP = 0.25


class World:
    """A clock, a registry topic and a loop that turns four times a second; faults are switched on and off."""

    def __init__(self, policy: Policy = POLICY, instances: int = 1) -> None:
        self.now = 1_000.0
        self.leases = Leases(policy, self.now)
        self.alive = {f"i{n}" for n in range(instances)}
        self.path = True
        self.lost: dict[str, float] = {}
        self.heard: dict[str, float] = {}
        self._entry = 0
        self._turn = 0
        for instance in sorted(self.alive):
            self.beat(instance)

    def _beats_now(self, instance: str) -> bool:
        return self._turn % 12 == int(instance[1:]) % 12

    def beat(self, instance: str) -> bool:
        self._entry += 1
        self.heard[instance] = self.now
        return self.leases.observe(instance, MessageId(0, self._entry), self.now)

    def turn(self) -> None:
        self.now += STEP
        self._turn += 1
        for instance in sorted(self.alive):
            if self.path and self._beats_now(instance):
                self.beat(instance)
        self.leases.tick(self.now)
        if self.path and self._turn % 4 == 0:
            self.leases.probe_seen(self.now - 0.01, self.now)
        for instance in self.leases.lapsed(self.now):
            assert self.now - self.heard[instance] > 9.0, "lapsed before a lease of silence"
            self.lost[instance] = self.now

    def run(self, seconds: float) -> None:
        for _ in range(int(seconds / STEP)):
            self.turn()

    def until(self, condition: Callable[[], bool], limit: float) -> float:
        start = self.now
        while not condition():
            assert self.now - start < limit, f"not within {limit} s"
            self.turn()
        return self.now - start


def test_a_silent_instance_lapses_one_lease_after_its_last_heartbeat() -> None:
    world = World()
    world.alive.clear()
    took = world.until(lambda: "i0" in world.lost, 20)
    assert 9 <= took <= 9 + 1 + STEP


def test_heartbeats_keep_a_lease() -> None:
    world = World(instances=3)
    world.run(300)
    assert world.lost == {}
    assert world.leases.suspected(world.now) == {}


def test_a_re_read_revives_nobody() -> None:
    world = World(GENEROUS)
    world.alive.clear()
    newest = MessageId(0, 1)
    world.run(5)
    assert not world.leases.observe("i0", newest, world.now)
    world.run(5.25)
    assert "i0" in world.lost
    assert not world.leases.observe("i0", newest, world.now)
    world.run(30)
    assert world.leases.ages(world.now) == {}


def test_an_evicted_instance_comes_back_with_a_newer_heartbeat_and_may_lapse_again() -> None:
    world = World(GENEROUS)
    world.alive.clear()
    world.run(11)
    assert world.beat("i0")
    first = world.lost.pop("i0")
    world.until(lambda: "i0" in world.lost, 12)
    assert world.lost["i0"] > first


def test_a_buried_instance_needs_a_newer_heartbeat() -> None:
    leases = Leases(POLICY, 0.0)
    leases.bury("i0", MessageId(5, 5), 0.0)
    assert not leases.observe("i0", MessageId(5, 5), 1.0)
    assert len(leases) == 0
    assert leases.observe("i0", MessageId(5, 6), 2.0)
    assert len(leases) == 1


def test_a_forgotten_instance_is_neither_suspected_nor_lost() -> None:
    world = World()
    world.alive.clear()
    world.leases.forget("i0")
    world.run(30)
    assert world.lost == {}
    assert world.leases.suspected(world.now) == {}


def test_l18_while_the_probe_is_missing_nobody_expires() -> None:
    world = World(GENEROUS, instances=10)
    world.run(10)
    world.path = False
    world.run(600)
    assert world.lost == {}
    assert len(world.leases.suspected(world.now)) == 10
    assert "probe has been missing" in world.leases.holding(world.now)


def test_l18_when_the_probe_is_back_all_leases_restart_plus_the_hold() -> None:
    world = World(GENEROUS, instances=2)
    world.path = False
    world.run(30)
    world.path = True
    world.alive = {"i1"}
    world.turn()
    took = world.until(lambda: "i0" in world.lost, 80)
    assert 69 <= took <= 71 + STEP
    assert "i1" not in world.lost


def test_l18_a_mass_loss_is_evicted_at_the_limit_and_every_suspicion_ages_out() -> None:
    world = World(instances=40)
    world.alive.clear()
    world.run(11)
    assert len(world.lost) == 4
    assert "4 evicted in the last minute, which is the limit: 36 wait" in world.leases.holding(world.now)
    assert len(world.leases.suspected(world.now)) == 36
    world.until(lambda: len(world.lost) == 40, 60 * 40)
    assert world.leases.holding(world.now) == ""


def test_l18_the_limit_is_a_share_of_the_fleet_as_it_was_before_the_loss() -> None:
    world = World(POLICY.model_copy(update={"eviction_share": 0.5}), instances=40)
    world.alive -= {f"i{n}" for n in range(10)}
    world.run(13)
    assert len(world.lost) == 10
    world.alive -= {f"i{n}" for n in range(10, 20)}
    world.run(13)
    assert len(world.lost) == 20


def test_l18_the_longest_silent_goes_first() -> None:
    world = World(instances=4)
    for instance in ("i3", "i2", "i0", "i1"):
        world.alive.discard(instance)
        world.run(12 if instance == "i3" else 4)
    assert set(world.lost) == {"i3"}
    world.run(240)
    assert sorted(world.lost, key=world.lost.__getitem__) == ["i3", "i2", "i0", "i1"]


def test_l18_an_eviction_in_progress_stops_while_the_probe_is_missing() -> None:
    world = World(instances=40)
    world.alive.clear()
    world.run(11)
    world.path = False
    world.run(300)
    assert len(world.lost) == 4


def test_l18_a_path_that_flaps_for_ever_does_not_keep_the_dead() -> None:
    world = World(GENEROUS, instances=2)
    world.alive = {"i1"}

    def flap() -> bool:
        world.path = not world.path
        world.run(20 if world.path else 5)
        return "i0" in world.lost

    world.until(flap, 300)
    assert "i1" not in world.lost


def test_l19_freshness_is_the_last_beat_by_our_clock_not_the_last_status() -> None:
    world = World()
    world.run(3)
    world.alive.clear()
    world.run(5)
    assert world.leases.ages(world.now)["i0"] == pytest.approx(5, abs=3)
    world.until(lambda: "i0" in world.lost, 10)


def test_s18_only_arrival_counts_so_no_clock_of_a_sender_can_matter() -> None:
    """`observe` takes a place and our own clock: there is no argument for anybody else's time."""
    world = World(instances=2)
    world.run(3_600)
    assert world.lost == {}


@pytest.mark.parametrize("pause", [1.5, 8.0, 3_600.0])
def test_a_pause_of_our_own_restarts_every_lease(pause: float) -> None:
    world = World(GENEROUS)
    world.alive.clear()
    world.run(8)
    world.now += pause
    before = world.now
    world.until(lambda: "i0" in world.lost, 12)
    assert world.now - before >= 9


def test_a_reopened_reader_restarts_every_lease() -> None:
    world = World(GENEROUS)
    world.alive.clear()
    world.run(8)
    world.leases.restart_all(world.now)
    assert world.until(lambda: "i0" in world.lost, 12) >= 9


def test_nothing_is_lost_before_the_first_probe_returned() -> None:
    world = World(GENEROUS)
    world.path = False
    world.alive.clear()
    world.run(100)
    assert world.lost == {}


def test_a_probe_that_took_too_long_proves_nothing() -> None:
    world = World(GENEROUS)
    world.path = False
    for _ in range(200):
        world.turn()
        world.leases.probe_seen(world.now - 5.0, world.now)
        assert world.leases.suspected(world.now) == {} or "has been missing" in world.leases.holding(world.now)
    assert world.lost == {}


def test_each_instance_may_have_a_lease_of_its_own() -> None:
    world = World(GENEROUS)
    world.leases.observe("slow", MessageId(0, 99), world.now, lease_s=45.0)
    world.alive.clear()
    world.run(30)
    assert set(world.lost) == {"i0"}
    assert world.leases.silent("i0")
    assert not world.leases.silent("slow")


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("path"), st.booleans()),
        st.tuples(st.just("kill"), st.integers(0, 14)),
        st.tuples(st.just("revive"), st.integers(0, 14)),
        st.tuples(st.just("run"), st.floats(0.25, 40)),
        st.tuples(st.just("pause"), st.floats(0.1, 100)),
        st.tuples(st.just("reopen"), st.none()),
    ),
    max_size=40,
)


def _apply(world: World, event: tuple[str, object]) -> None:
    match event:
        case ("path", bool(state)):
            world.path = state
        case ("kill", int(n)):
            world.alive.discard(f"i{n}")
        case ("revive", int(n)):
            world.alive.add(f"i{n}")
        case ("run", float(seconds)):
            world.run(seconds)
        case ("pause", float(seconds)):
            world.now += seconds
        case _:
            world.leases.restart_all(world.now)


unhurried = settings(deadline=None)  # a loaded machine is not what these are about


@unhurried
@given(EVENTS)
def test_safety_no_fault_of_ours_ever_evicts_an_instance_that_beats(events: list[tuple[str, object]]) -> None:
    world = World(GENEROUS, instances=15)
    for event in events:
        if event[0] != "kill":
            _apply(world, event)
    assert world.lost == {}


@unhurried
@given(EVENTS, st.integers(1, 5), st.floats(0, 1))
def test_safety_no_minute_sees_more_evictions_than_the_limit(
    events: list[tuple[str, object]], floor: int, share: float
) -> None:
    policy = POLICY.model_copy(update={"evictions_per_minute": floor, "eviction_share": share})
    world = World(policy, instances=15)
    times: list[float] = []
    turn = world.turn

    def counted() -> None:
        world.lost.clear()
        turn()
        times.extend(world.lost.values())

    world.turn = counted  # type: ignore[method-assign]
    for event in events:
        _apply(world, event)
    for t in times:
        assert sum(t - 60 < other <= t for other in times) <= max(floor, int(share * 15))


@unhurried
@given(EVENTS)
def test_liveness_whatever_happened_the_dead_are_gone_in_bounded_proven_time(
    events: list[tuple[str, object]],
) -> None:
    world = World(GENEROUS, instances=15)
    for event in events:
        _apply(world, event)
    dead = {i for i in world.leases.ages(world.now) if i not in world.alive}
    world.path = True
    world.run(9 + 60 + 2)
    assert dead <= set(world.lost)
    assert not world.leases.suspected(world.now)


def test_the_longest_silence_is_the_greatest_age() -> None:
    """It is found without looking at everybody, whoever was heard again, evicted or forgotten meanwhile."""
    fleet = Leases(Policy(), 0.0)
    chance = random.Random(2)
    for step in range(500):
        now, instance = float(step), str(chance.randrange(20))
        chance.choice((fleet.observe, fleet.observe, fleet.bury))(instance, MessageId(0, step), now)
        if step % 7 == 0:
            fleet.forget(str(chance.randrange(20)))
        assert fleet.silence(now) == max(fleet.ages(now).values(), default=0.0)
