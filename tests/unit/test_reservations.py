"""Reservations: a wish that needs much is not overtaken for ever by those that need less."""

from collections.abc import Callable, Iterator
from itertools import count
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from magnetar_cli import shown
from magnetar_common.status import ModelState
from magnetar_events import facts as f
from magnetar_events.policy import Policy
from magnetar_scheduler import inputs as i
from magnetar_scheduler.placement.explain import explain_now
from tests.support.world import MIB, World, spec
from tests.unit.test_tenants import placed, told

MINUTE = 60_000
PATIENCE = Policy().reserve_after_ms


def fleet(*memories: int, **rules: Any) -> World:
    world = World()
    world.set_policy(**rules)
    for n, memory in enumerate(memories):
        world.join(f"s{n}", memory=memory * MIB)
    return world


def wish(world: World, name: str, memory: int = 200, **fields: Any) -> list[f.Fact]:
    facts = world.deploy(spec(name, memory=memory * MIB, **fields))
    world.answer()
    return facts


def leave(world: World, name: str) -> None:
    world.undeploy(name)
    world.pass_time(2_000)
    world.answer()


def serves(world: World, name: str) -> bool:
    return told(world, f"default/{name}")[0] is ModelState.AVAILABLE


def reserved(world: World) -> list[tuple[str, str, int]]:
    """Return (model, server, attempt) of what is reserved."""
    versions = [version for model in world.state.models.values() for version in model.versions.values()]
    facts = [version.reservation for version in versions if version.reserved]
    return [(fact.model.removeprefix("default/"), fact.server, fact.attempt) for fact in facts if fact is not None]


def churn(world: World, *, every: int = MINUTE, **fields: Any) -> Callable[[], None]:
    """Keep a world full of models of 100 MiB; each call lets time pass, the oldest leave and another come."""
    names = (f"small-{n}" for n in count())
    there: list[str] = []

    def come() -> None:
        there.append(next(names))
        wish(world, there[-1], 100, **fields)

    def turn() -> None:
        world.pass_time(every)
        for name in [name for name in there if serves(world, name)][:1]:
            leave(world, name)
        there[:] = [name for name in there if f"default/{name}" in world.state.models]
        come()

    while not there or serves(world, there[-1]):
        come()
    return turn


def waits(world: World, turn: Callable[[], None], name: str, limit: int) -> Iterator[int]:
    """Yield turns until a model serves."""
    for n in range(limit):
        if serves(world, name):
            return
        yield n
        turn()


def test_what_needs_much_is_overtaken_until_a_server_is_reserved_for_it() -> None:
    """Two of 100 MiB fill the server, one leaves each minute and the next takes its place: 200 MiB are never free."""
    without = fleet(200, reserve_after_ms=0)
    turn = churn(without)
    wish(without, "large")
    assert len(list(waits(without, turn, "large", 300))) == 300
    world = fleet(200)
    turn = churn(world)
    wish(world, "large")
    turns = len(list(waits(world, turn, "large", 300)))
    assert PATIENCE // MINUTE <= turns <= PATIENCE // MINUTE + 4
    assert world.replayed() == world.state


def test_it_is_said_for_whom_a_server_is_reserved() -> None:
    """In the log with what was free, in both models' reasons, and in the explanation."""
    world = fleet(300)
    turn = churn(world)
    wish(world, "large", 300)
    next(n for n in waits(world, turn, "large", 30) if reserved(world))
    assert reserved(world) == [("large", "local/s0/0", 1)]
    (fact,) = world.of_kind(f.ServerReserved)
    assert (fact.model, fact.server, fact.free, fact.attempt) == ("default/large", "local/s0/0", 0, 1)
    assert fact.due - PATIENCE in {entry.at for entry in world.log}
    assert "what becomes free on local/s0/0 is reserved for it" in told(world, "default/large")[2]
    turn()
    wish(world, "late", 100)
    assert "1 reserved for a model that was overtaken there" in told(world, "default/late")[2]
    assert shown.servers(world.state)[0]["keptFor"] == ["default/large v1"]
    (explanation,) = explain_now(world.state, "default/late")
    assert [(verdict.server, verdict.rule) for verdict in explanation.servers] == [("local/s0/0", "reserved")]


def test_a_server_that_nobody_leaves_is_given_up_for_the_next() -> None:
    """On s0 another came later and stays; half is free, but no more becomes so. On s1 they come and go."""
    world = fleet(200, 200)
    turn = churn(world, server="s1")
    for name in ("one", "two"):
        wish(world, name, 100, server="s0")
    wish(world, "large")
    leave(world, "one")
    wish(world, "stays", 100, server="s0")
    leave(world, "two")
    attempts: list[tuple[str, str, int]] = []
    for _ in waits(world, turn, "large", 60):
        attempts += [each for each in reserved(world) if each not in attempts and each[0] == "large"]
    assert attempts == [("large", "local/s0/0", 1), ("large", "local/s1/0", 2)]
    assert world.states("default/large").keys() == {(1, "local/s1/0")}


def test_it_stays_where_more_becomes_free_however_long_that_takes() -> None:
    """Of four one leaves in each time of patience: at its end there is more than at its begin, and the server is kept."""
    world = fleet(400, 400)
    wish(world, "stays", 400, server="s1")
    turn = churn(world, every=PATIENCE * 9 // 10, server="s0")
    wish(world, "large", 400)
    list(waits(world, turn, "large", 30))
    facts = [fact for fact in world.of_kind(f.ServerReserved) if fact.model == "default/large"]
    assert serves(world, "large")
    assert [(fact.server, fact.attempt) for fact in facts] == [("local/s0/0", 1)] * len(facts)
    assert [fact.free for fact in facts] == sorted({fact.free for fact in facts})
    assert len(facts) > 2


def test_where_nobody_came_later_nothing_is_reserved() -> None:
    """What it waits for was there before it: nobody overtook it, and what is free there is for the others."""
    world = fleet(200)
    wish(world, "stays", 100)
    wish(world, "large")
    for name in ("one", "two", "three"):
        assert placed(wish(world, name, 50)) == [f"default/{name}"]
        world.pass_time(PATIENCE)
        leave(world, name)
    assert world.of_kind(f.ServerReserved) == []


def test_what_never_fits_holds_the_others_up_for_a_while_and_lets_them_go_first_for_as_long() -> None:
    """One that came later stays for ever, and so the large one never fits; small ones come all the time."""
    world = fleet(300)
    for name in ("one", "two", "three"):
        wish(world, name, 100)
    wish(world, "large", 300)
    leave(world, "one")
    wish(world, "stays", 100)
    leave(world, "two")
    leave(world, "three")
    served = kept_off = 0
    for n in range(600):
        wish(world, f"small-{n}", 100)
        if serves(world, f"small-{n}"):
            served += 1
        else:
            kept_off += 1
        world.pass_time(MINUTE)
        leave(world, f"small-{n}")
    assert not serves(world, "large")
    assert kept_off > 200
    assert served > 200
    assert world.of_kind(f.ReservationEnded)


def test_few_servers_are_reserved_and_each_has_its_turn() -> None:
    """Of two servers one is reserved at a time, for the older wish first."""
    world = fleet(200, 200)
    turn = churn(world)
    wish(world, "one")
    world.pass_time(1)
    wish(world, "two")
    most = 0
    for name in ("one", "two"):
        for _ in waits(world, turn, name, 60):
            most = max(most, len(reserved(world)))
        leave(world, name)
    assert most == 1
    large = [fact.model for fact in world.of_kind(f.ServerReserved) if "small" not in fact.model]
    assert list(dict.fromkeys(large)) == ["default/one", "default/two"]


def test_one_server_in_twenty_is_reserved() -> None:
    world = fleet(*[100] * 60)
    for n in range(120):
        wish(world, f"before-{n}", 50)
    for n in range(10):
        wish(world, f"large-{n}", 100)
    for n in range(120):
        leave(world, f"before-{n}")
        wish(world, f"after-{n}", 50)
    world.pass_time(PATIENCE + MINUTE)
    leave(world, "after-7")
    assert len(reserved(world)) == 3


@pytest.mark.parametrize("case", ["a higher priority", "what was lost", "a floor"])
def test_who_goes_before(case: str) -> None:
    """A higher priority, what replaces a lost replica, and who is below its floor take the place all the same."""
    world = fleet(300, 100)
    world.set_tenant("team", floor_replicas=2)
    turn = churn(world, server="s0")
    wish(world, "lost", 100, server="" if case == "what was lost" else "s1")
    wish(world, "large", 300, server="s0")
    next(n for n in waits(world, turn, "large", 30) if reserved(world))
    turn()
    assert world.state.fleet.rooms(world.state)["local/s0/0"][0] >= 100 * MIB
    if case == "what was lost":
        facts = world.lapse("s1")
        world.answer()
        assert world.states("default/lost").keys() >= {(1, "local/s0/0")}, facts
    else:
        who = {"priority": 1} if case == "a higher priority" else {"tenant": "team"}
        assert placed(wish(world, "first", 100, **who)) == [f"{who.get('tenant', 'default')}/first"]


def test_who_has_got_a_replica_waits_behind_the_others_again() -> None:
    world = fleet(200, 200)
    turn = churn(world)
    wish(world, "two", replicas=2)
    world.pass_time(MINUTE)
    wish(world, "one")
    list(waits(world, turn, "two", 100))
    order = [fact.model for fact in world.of_kind(f.ServerReserved)]
    assert order[:3] == ["default/two", "default/one", "default/two"]
    assert serves(world, "two")


def test_a_server_that_goes_away_is_reserved_no_longer() -> None:
    world = fleet(200, 200)
    turn = churn(world)
    wish(world, "large")
    next(n for n in waits(world, turn, "large", 30) if reserved(world))
    ((_, server, _),) = reserved(world)
    world.lapse(server.split("/")[1])
    turn()
    ((_, other, _),) = reserved(world)
    assert other != server


def test_for_a_version_that_another_replaces_nothing_is_reserved_any_more() -> None:
    """One of two serves, and a server is reserved for the other; then the next version needs less, and its load lasts."""
    world = fleet(200, 200, 100)
    turn = churn(world, server="s1")
    wish(world, "large", replicas=2)
    next(n for n in waits(world, turn, "large", 30) if reserved(world))
    world.deploy(spec("large", memory=50 * MIB, server="s2"))
    world.answer(limit=1)  # it serves, and the old one is not unloaded yet
    world.pass_time(3 * PATIENCE)
    assert 1 in world.state.models["default/large"].versions
    assert [fact.model for fact in world.of_kind(f.ServerReserved)].count("default/large") == 1


def test_where_replicas_live_for_days_it_is_reserved_for_longer_each_time() -> None:
    """Four of 100 MiB on the server live for two days each, and others wait for each place: never two are free at once."""
    world = fleet(400)
    ends: dict[str, int] = {}
    names = (f"small-{n}" for n in count())
    for hour in range(30 * 24):
        while len(ends) < 6:
            name = next(names)
            wish(world, name, 100)
            ends[name] = world.at + 48 * 60 * MINUTE - (12 * 60 * MINUTE * len(ends) if not hour else 0)
        if hour == 1:
            wish(world, "large")
        if hour > 1 and serves(world, "large"):
            return
        world.pass_time(60 * MINUTE)
        for name in [name for name, end in ends.items() if end <= world.at and serves(world, name)]:
            leave(world, name)
            del ends[name]
    raise AssertionError("it was overtaken for a month")


def test_a_server_is_reserved_for_nobody_for_as_long_as_it_was_in_vain() -> None:
    """Two of them never fit, for one that came later stays: in between small ones are placed."""
    world = fleet(400)
    for n in range(4):
        wish(world, f"before-{n}", 100)
    for name in ("one", "two"):
        wish(world, name, 400)
    leave(world, "before-0")
    wish(world, "stays", 100)
    for n in range(1, 4):
        leave(world, f"before-{n}")
    held = [0, 0]
    for _ in range(24 * 60):
        world.pass_time(MINUTE)
        wish(world, "knocks", 50)
        held[bool(reserved(world))] += 1
        leave(world, "knocks")
    assert held[False] > 24 * 60 / 3  # the last one may be in its middle


def test_a_server_that_is_kept_for_a_floor_is_no_reservation() -> None:
    """What a tenant waits for below its floor never leaves s1: on s0 the large one has its turn all the same."""
    world = fleet(200, 400)
    world.set_tenant("team", floor_replicas=1)
    wish(world, "stays", 300, server="s1")
    turn = churn(world, server="s0")
    wish(world, "floor", 400, tenant="team", server="s1")
    wish(world, "large", server="s0")
    assert len(list(waits(world, turn, "large", 60))) <= PATIENCE // MINUTE + 4


@pytest.mark.parametrize("limit", ["loads_in_cluster", "loads_per_server"])
def test_a_limit_of_loads_hides_nobody_that_was_overtaken(limit: str) -> None:
    """Whenever there is something to look at a load is in progress: of the one that has just been placed."""
    world = fleet(200, 200, **{limit: 1})
    turn = churn(world)
    wish(world, "large")
    assert len(list(waits(world, turn, "large", 120))) < 60


def test_of_many_that_can_each_be_on_one_server_only_a_few_have_one_reserved() -> None:
    world = fleet(*[200] * 20)
    for n in range(20):
        wish(world, f"one-{n}", 100, server=f"s{n}")
        wish(world, f"two-{n}", 100, server=f"s{n}")
        wish(world, f"large-{n}", server=f"s{n}")
        for name in (f"one-{n}", f"two-{n}"):
            leave(world, name)
            wish(world, name, 100, server=f"s{n}")
    world.pass_time(PATIENCE)
    leave(world, "one-0")
    wish(world, "any", 100)
    assert len(reserved(world)) == 1


def test_what_a_lying_agent_makes_of_its_server_is_in_bounds() -> None:
    """What it says that it holds is booked, far beyond what any number in the log can be."""
    huge = 2**53 - 1
    world = World()
    rec = world.join("s0", memory=huge)
    world.deploy(spec("first", memory=huge))
    world.answer()
    world.deploy(spec("large", memory=huge))
    names = [f"m{n}" for n in range(1_100)]
    for name in names:
        world.deploy(spec(name, memory=huge))
    world.inventory(rec, tuple((f"default/{name}", 1) for name in ("first", *names)))
    world.pass_time(PATIENCE)
    leave(world, "first")
    assert world.replayed() == world.state


def test_the_policy_ends_it() -> None:
    world = fleet(200)
    turn = churn(world)
    wish(world, "large")
    next(n for n in waits(world, turn, "large", 30) if reserved(world))
    world.set_policy(reserve_after_ms=0)
    world.pass_time(PATIENCE)
    assert reserved(world) == []


@pytest.mark.parametrize("milliseconds", [1, 9_999])
def test_a_time_that_would_fill_the_log_is_refused(milliseconds: int) -> None:
    with pytest.raises(ValidationError, match=f"{milliseconds} is neither 0, for never, nor at least 10000"):
        Policy(reserve_after_ms=milliseconds)


def test_an_older_log_has_no_reservations_until_it_is_upgraded() -> None:
    """And then who waited before has waited since it was wanted."""
    world = World(fold_version=2)
    world.join("s0", memory=200 * MIB)
    turn = churn(world)
    wish(world, "large")
    assert len(list(waits(world, turn, "large", 60))) == 60
    world.finalize()
    assert len(list(waits(world, turn, "large", 60))) <= 4


TROUBLES = ("rescaled", "stale", "shared hosts", "lost", "loads fail", "louder", "drained", "steps")


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_no_model_starves(seed: int) -> None:
    """Small ones come for each place and leave again, some never do, and larger ones wait; and troubles of several kinds.

    There is always a server that all leave again. In the end each of the larger ones has had its place, and no small one
    has waited longer than half a day.
    """
    rng = Random(seed)
    troubles = {each for each in TROUBLES if rng.random() < 0.3}
    world = World()
    world.set_policy(load_attempts=1, load_servers=100, rollout_unavailable=1 if "steps" in troubles else 0)
    servers = [f"s{n}" for n in range(rng.randint(1, 4))]
    for n, name in enumerate(servers):
        world.join(name, memory=400 * MIB, host=f"h{n // 2 if 'shared hosts' in troubles else n}")
    for name in servers[:-1]:
        if rng.random() < 0.5 and troubles.isdisjoint({"lost", "drained", "shared hosts"}):
            wish(world, f"stays-{name}", rng.choice((100, 200)), server=name)
    large = {f"large-{n}" for n in range(rng.randint(1, 3))}
    assert _crowd(world, rng, troubles, servers, large) == large


def _crowd(world: World, rng: Random, troubles: set[str], servers: list[str], large: set[str]) -> set[str]:
    """Fill the servers, want what is large, and let two days pass, or less if all of that has served; return what has."""
    ends: dict[str, int] = {}
    names, done = (f"small-{n}" for n in count()), set[str]()
    for minute in range(2 * 24 * 60):
        for name in sorted(large) if minute == 15 else ():
            world.deploy(spec(name, memory=rng.choice((300, 400)) * MIB))
        while sum("/small" in key for key in world.state.waiting) < 4:
            tenant, priority = ("loud", 1) if "louder" in troubles and rng.random() < 0.5 else ("default", 0)
            world.deploy(spec(next(names), tenant=tenant, memory=rng.choice((100, 200)) * MIB, priority=priority))
        _obey(world, rng, 0.2 if "loads fail" in troubles else 0.0)
        for key, model in world.state.models.items():
            if key not in ends and "/stays" not in key and told(world, key)[0] is ModelState.AVAILABLE:
                ends[key] = world.at + rng.randint(1, 15) * MINUTE
                done |= {key.removeprefix("default/")} & large
            elif "/small" in key and key not in ends and not model.deleted:
                assert world.at - model.target.at < 12 * 60 * MINUTE, f"{key} waits: {told(world, key)}"
        if done == large:
            break
        _trouble(world, rng, troubles, servers, large - done if minute > 15 else set())
        world.pass_time(MINUTE)
        for key in [key for key, end in ends.items() if end <= world.at and key in world.state.models]:
            tenant, name = key.split("/")
            world.undeploy(name, tenant)
            world.pass_time(2_000)
            _obey(world, rng, 0.0)
    return done


def _obey(world: World, rng: Random, failing: float) -> None:
    for _ in range(50):
        if not world.state.outstanding:
            return
        key = next(iter(world.state.outstanding))
        loads = world.state.command_of(world.state.outstanding[key]) == "LoadModel"
        if loads and "small" in key.model and rng.random() < failing:
            world.fail_load(key)
        else:
            world.answer_one(key)


def _trouble(world: World, rng: Random, troubles: set[str], servers: list[str], waiting: set[str]) -> None:
    name = rng.choice(servers)
    server = world.state.servers[f"local/{name}/0"]
    if "rescaled" in troubles and waiting:
        world.scale(rng.randint(1, 2), rng.choice(sorted(waiting)))
    if "stale" in troubles and rng.random() < 0.2 and server.schedulable:
        world.feed(i.ReadingStale(server.key))
    elif server.stale and not server.lost:
        world.feed(i.ReadingChanged(server.record))
    if "lost" in troubles and rng.random() < 0.01 and not server.lost:
        world.lapse(name)
        world.join(name, incarnation=f"after-{world.at}", memory=400 * MIB, host=server.info.host)
    if "drained" in troubles and rng.random() < 0.01 and len(servers) > 1:
        world.drain(name)
    elif server.key in world.state.cordons and rng.random() < 0.1:
        world.resume(name)
