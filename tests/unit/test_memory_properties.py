"""Memory by property: any fleet of accelerators, shared or not, whose servers give back late, in part, or never."""

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from magnetar_common.state import ReplicaKey
from magnetar_common.transitions import R
from magnetar_events import facts as f
from magnetar_events import reports as r
from magnetar_events.records import Device
from magnetar_scheduler import inputs as i
from magnetar_scheduler.journal import from_record
from magnetar_scheduler.servers import news
from tests.support.world import MIB, record, spec
from tests.unit.test_core_properties import Watched, check
from tests.unit.test_state_image import check as check_image

TOTAL = 1000 * MIB
SERVERS = "abc"
MODELS = ("m1", "m2", "m3", "m4")

fleet = st.tuples(*(st.tuples(st.sampled_from((0, 0, 50)), st.integers(1, 2)) for _ in SERVERS))
"""For each server: its over-commit, and how many GPUs it has. The first two share a host."""

step = st.one_of(
    st.tuples(st.just("deploy"), st.sampled_from(MODELS), st.sampled_from((0, 40, 300, 700)), st.integers(1, 2)),
    st.tuples(st.just("undeploy"), st.sampled_from(MODELS), st.just(0), st.just(0)),
    st.tuples(st.just("scale"), st.sampled_from(MODELS), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("answer"), st.integers(0, 5), st.sampled_from((0, 40, 300, 800)), st.sampled_from((0, 50, 100))),
    st.tuples(st.just("no memory"), st.integers(0, 5), st.just(0), st.just(0)),
    st.tuples(st.just("look"), st.sampled_from(SERVERS), st.sampled_from((10, 200, 900, 5000)), st.just(0)),
    st.tuples(st.just("give back"), st.sampled_from(SERVERS), st.just(0), st.just(0)),
    st.tuples(st.just("join"), st.sampled_from(SERVERS), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("lapse"), st.sampled_from(SERVERS), st.just(0), st.just(0)),
    st.tuples(st.just("back"), st.sampled_from(SERVERS), st.just(0), st.just(0)),
    st.tuples(st.just("move"), st.sampled_from(SERVERS), st.just(0), st.just(0)),
    st.tuples(st.just("beats"), st.integers(1, 15), st.just(0), st.just(0)),
)


class Fleet(Watched):
    """Servers whose devices really have what ``used`` leaves."""

    def __init__(self, fleet: Any) -> None:
        super().__init__()
        self.fleet = dict(zip(SERVERS, fleet, strict=True))
        self.hosts = dict(zip(SERVERS, ("shared", "shared", "alone"), strict=True))
        self.used: dict[tuple[str, str], int] = {}
        self.holds: dict[ReplicaKey, dict[tuple[str, str], int]] = {}
        self.kept: dict[str, dict[tuple[str, str], int]] = {name: {} for name in SERVERS}
        for name in SERVERS:
            self.enter(name, 0)

    def record(self, name: str, life: str, digest: str = "") -> Any:
        percent, count = self.fleet[name]
        host = self.hosts[name]
        devices = tuple(
            Device(uuid=f"GPU-{n}", kind="gpu", total=TOTAL, free=free, largest_free=free, utilisation=0.1)
            for n in range(count)
            for free in (max(0, TOTAL - self.used.get((host, f"GPU-{n}"), 0)),)
        )
        return record(name, host=host, incarnation=life, devices=devices, over_commit_percent=percent, digest=digest)

    def enter(self, name: str, life: int) -> None:
        """Another life, empty; what the last one kept is free."""
        known = self.state.servers.get(f"local/{name}/0")
        if known is not None and f"life{life}" in {known.incarnation, *known.superseded}:
            return
        for key in [key for key in self.holds if key.server == f"local/{name}/0"]:
            self.kept[name] = _sum(self.kept[name], self.holds.pop(key))
        self.give_back(name)
        rec = self.record(name, f"life{life}")
        self.registry(rec)
        self.inventory(rec)

    def give_back(self, name: str) -> None:
        for place, amount in self.kept[name].items():
            self.used[place] -= amount
        self.kept[name] = {}

    def beat(self, name: str) -> None:
        known = self.state.servers.get(f"local/{name}/0")
        if known is None or known.lost:
            return
        rec = self.record(name, known.incarnation, known.digest)
        if news(self.state, rec) == "reading":
            self.feed(i.ReadingChanged(rec), from_record("reading", rec.instance_id, rec))

    def load(self, key: ReplicaKey, takes: int) -> None:
        replica = self.state.outstanding[key]
        host = self.hosts[key.server.split("/")[1]]
        self.holds[key] = {(host, booking.device): takes for booking in replica.bookings}
        self.used = _sum(self.used, self.holds[key])
        self.answer_one(key, measured=takes)

    def unload(self, key: ReplicaKey, percent: int) -> None:
        replica, name = self.state.outstanding[key], key.server.split("/")[1]
        host = self.hosts[name]
        known = self.state.servers[key.server]
        free = tuple(
            r.DeviceFree(device=uuid, free=max(0, TOTAL - self.used.get((host, uuid), 0))) for uuid in known.devices
        )
        for place, amount in self.holds.pop(key, {}).items():
            back = amount * percent // 100
            self.used[place] -= back
            self.kept[name] = _sum(self.kept[name], {place: amount - back})
        self.report(
            known.record,
            r.ModelUnloaded(model=key.model, generation=key.generation, position=replica.position, free=free),
        )


def _sum(one: dict[tuple[str, str], int], other: dict[tuple[str, str], int]) -> dict[tuple[str, str], int]:
    return {place: one.get(place, 0) + other.get(place, 0) for place in {*one, *other}}


def apply(world: Fleet, action: str, one: Any, two: int, three: int) -> None:
    server = world.state.servers.get(f"local/{one}/0")
    match action:
        case "deploy":
            world.deploy(spec(one, memory=two * MIB, devices=three))
        case "undeploy":
            world.undeploy(one)
            world.pass_time(1_100)
        case "scale":
            world.scale(two, one)
            world.pass_time(1_100)
        case "answer" | "no memory" if world.state.outstanding:
            keys = sorted(world.state.outstanding)
            chosen = keys[one % len(keys)]
            loading = world.state.command_of(world.state.outstanding[chosen]) == "LoadModel"
            if not loading:
                world.unload(chosen, three)
            elif action == "answer":
                world.load(chosen, two * MIB)
            else:
                world.fail_load(chosen, "LOAD_FAIL_MEMORY")
        case "look" if server:
            for (model, generation), replica in sorted(server.replicas.items()):
                seen = [
                    r.ModelMemory(model=model, generation=generation, device=b.device, observed=two * MIB)
                    for b in replica.bookings
                ]
                world.report(server.record, r.LoadObserved(memory=tuple(seen)))
        case "give back":
            world.give_back(one)
        case "join":
            world.enter(one, two)
        case "lapse" if server:
            world.lapse(one)
        case "back" if server and server.lost:
            rec = world.record(one, server.incarnation)
            world.registry(rec)
            world.inventory(rec, tuple(sorted(server.replicas)))
        case "move" if server and not server.lost:
            world.hosts[one] = "elsewhere"
            world.registry(world.record(one, server.incarnation, server.digest))
        case "beats":
            for _ in range(one):
                world.pass_time(3_000)
                world.feed(i.Alive(1))
                for name in SERVERS:
                    world.beat(name)
        case _:
            pass


def check_returns(world: Fleet) -> None:
    """What is awaited has a level on each of its devices, what is not has none, and the books hold it."""
    check(world)
    counts: dict[tuple[str, str], list[int]] = {}
    for server in world.state.servers.values():
        for which, held in enumerate((server.awaited, server.leaked)):
            for each in held.values():
                for booking in each.bookings:
                    place = (server.info.host, booking.device)
                    counts.setdefault(place, [0, 0])[which] += 1
    levels = world.state.levels
    assert {place: [level.awaited, level.leaked] for place, level in levels.items()} == counts
    for model in world.state.models.values():
        for version in model.versions.values():
            assert version.size >= version.spec.memory
            assert version.size <= max(TOTAL, version.spec.memory)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(fleet, st.lists(step, max_size=40))
def test_memory_is_never_placed_beyond_the_promise(servers: Any, steps: list[tuple[str, Any, int, int]]) -> None:
    """Whatever models take and servers keep: nothing is placed beyond what is promised of a device, and the books are right."""
    world = Fleet(servers)
    for each in steps:
        apply(world, *each)
        check_returns(world)
    assert world.replayed() == world.state
    check_image(world.state)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(fleet, st.lists(step, max_size=30))
def test_nothing_is_awaited_for_ever(servers: Any, steps: list[tuple[str, Any, int, int]]) -> None:
    """Once all is unloaded, time passes and heartbeats come, everything awaited has come back or has leaked."""
    world = Fleet(servers)
    for each in steps:
        apply(world, *each)
    for model in MODELS:
        world.undeploy(model)
    world.pass_time(1_100)
    for _ in range(50):
        for key in sorted(world.state.outstanding):
            world.unload(key, 100) if world.state.command_of(world.state.outstanding[key]) != "LoadModel" else None
    apply(world, "beats", 60, 0, 0)
    check_returns(world)
    for server in world.state.servers.values():
        assert server.lost or not server.awaited, "nothing is neither back nor leaked"
    for name in SERVERS:
        world.give_back(name)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from((60, 100, 200, 300)), st.booleans()), min_size=1, max_size=6))
def test_what_leaks_is_what_is_kept(models: list[tuple[int, bool]]) -> None:
    """On a device of one server: those that keep their memory leak, by number of bytes; when they give it back, all is free."""
    world = Fleet(((0, 1),) * 3)
    fits, left = [], 1000
    for n, (size, keeps) in enumerate(models):
        if size <= left:
            fits.append((f"m{n}", size, keeps))
            left -= size
    for name, size, _ in fits:
        world.deploy(spec(name, memory=size * MIB, devices=1, server="c"))
        (key,) = world.state.outstanding
        world.load(key, size * MIB)
        world.beat("c")
    for name, _, keeps in fits:
        world.undeploy(name)
        world.pass_time(1_100)
        (key,) = world.state.outstanding
        world.unload(key, 0 if keeps else 100)
    apply(world, "beats", 30, 0, 0)
    kept = sum(size for _, size, keeps in fits if keeps) * MIB
    server = world.state.servers["local/c/0"]
    sizes = [booking.bytes for each in server.leaked.values() for booking in each.bookings]
    assert kept - sum(sizes) <= TOTAL // 20, "what cannot be seen is less than a twentieth, on the whole device"
    assert not sizes or sum(sizes) - kept < min(sizes), "not one model more than what is kept amounts to"
    world.give_back("c")
    apply(world, "beats", 5, 0, 0)
    assert (server.leaked, world.state.booked, world.state.levels) == ({}, {}, {})
    assert world.of("c").status == "UP"
    assert R.LOST not in {replica.state for m in world.state.models.values() for replica in m.replicas.values()}
    assert f.MemoryAwaited in {type(fact) for entry in world.log for fact in entry.facts}
