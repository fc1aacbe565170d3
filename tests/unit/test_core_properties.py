"""The core by property: any sequence of inputs, sensible or not."""

from dataclasses import fields as fields_of
from typing import Any, get_args

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from magnetar_common.evolve import evolve, fold
from magnetar_common.fleet import Fleet
from magnetar_common.state import ReplicaKey, State
from magnetar_common.transitions import ON_ITS_WAY, R
from magnetar_events import ENTRY
from magnetar_events import facts as f
from magnetar_events import reports as r
from magnetar_events.avro import fields_of as wire_fields
from magnetar_events.entry import Input
from magnetar_events.models import served_name
from magnetar_events.tenants import Tenant
from magnetar_scheduler import inputs as i
from magnetar_scheduler.decide import decide
from tests.support.world import MIB, World, record, spec

SERVERS = "abc"
MODELS = ("m1", "m2", "m3")
SIZES = (0, 60, 120)

step = st.one_of(
    st.tuples(st.just("join"), st.sampled_from(SERVERS), st.integers(0, 2)),
    st.tuples(st.just("return"), st.sampled_from(SERVERS), st.integers(0, 1)),
    st.tuples(st.just("lapse"), st.sampled_from(SERVERS), st.just(0)),
    st.tuples(st.just("down"), st.sampled_from(SERVERS), st.just(0)),
    st.tuples(st.just("drain"), st.sampled_from(SERVERS), st.integers(0, 1)),
    st.tuples(st.just("order"), st.sampled_from(SERVERS), st.integers(0, 3)),
    st.tuples(st.just("deploy"), st.sampled_from(MODELS), st.integers(0, 8)),
    st.tuples(st.just("scale"), st.sampled_from(MODELS), st.integers(0, 3)),
    st.tuples(st.just("undeploy"), st.sampled_from(MODELS), st.just(0)),
    st.tuples(st.just("rollback"), st.sampled_from(MODELS), st.integers(1, 4)),
    st.tuples(st.just("freeze"), st.sampled_from(MODELS), st.integers(0, 2)),
    st.tuples(st.just("steps"), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("answer"), st.integers(0, 5), st.sampled_from((0, 0, 50, 90, 400))),
    st.tuples(st.just("fail"), st.integers(0, 5), st.booleans()),
    st.tuples(st.just("inventory"), st.sampled_from(SERVERS), st.integers(0, 3)),
    st.tuples(st.just("stale"), st.sampled_from(SERVERS), st.just(0)),
    st.tuples(st.just("reading"), st.sampled_from(SERVERS), st.integers(0, 300)),
    st.tuples(st.just("wrong"), st.sampled_from(MODELS), st.integers(0, 40)),
    st.tuples(st.just("time"), st.sampled_from((10, 1_500, 70_000, 2_000_000)), st.just(0)),
)


class Watched(World):
    """Each entry is compared with what is promised of devices, where nothing may be placed, and who serves."""

    def feed(self, source: i.Decidable, raw: Input | None = None, *, settle: bool = True) -> list[f.Fact]:
        entries, before = len(self.log), self.snapshot()
        facts = super().feed(source, raw, settle=False)
        for fact in facts if len(self.log) > entries else ():
            if isinstance(fact, f.ReplicaPlaced):
                self._within_the_promise(fact)
                assert not before.servers[fact.server].closed, (
                    "nothing is placed on a server that is cordoned or drains"
                )
            if isinstance(fact, f.ReplicaChanged) and fact.reason == "its server is draining":
                self._serving_still(fact, before)
        if settle and not isinstance(source, i.Continue):
            while self.feed(i.Continue(), Input("continue")):
                pass
        return facts

    def _within_the_promise(self, fact: f.ReplicaPlaced) -> None:
        host = self.state.servers[fact.server].info.host
        for booking in fact.bookings:
            promised = max(
                server.devices[booking.device].total * (100 + server.info.over_commit_percent) // 100
                for server in self.state.servers.values()
                if server.info.host == host and booking.device in server.devices
            )
            assert self.state.booked.get((host, booking.device), 0) <= promised, f"{host}/{booking.device}"

    def _serving_still(self, fact: f.ReplicaChanged, before: State) -> None:
        if fact.before == "Available":
            model = self.state.models.get(fact.model) or before.models[fact.model]
            serving = sum(r.state is R.AVAILABLE for r in model.of(fact.generation))
            wanted = model.versions[fact.generation].wanted
            assert serving >= wanted, "what is on a draining server serves until enough others do"


def apply(world: World, action: str, one: Any, two: Any) -> None:
    key = f"local/{one}/0"
    server = world.state.servers.get(key)
    match action:
        case "join":
            world.join(one, incarnation=f"life{two}", memory=300 * MIB, host="shared" if one in "ab" else "")
        case "return" if server:
            world.registry(record(one, incarnation=server.incarnation, memory=300 * MIB, host=server.info.host))
            if two:
                world.inventory(server.record, tuple(sorted(server.replicas)))
        case "lapse" if server:
            world.lapse(one)
        case "down" if server:
            world.registry(server.record.model_copy(update={"status": "DOWN"}))
        case "drain" if server:
            world.registry(server.record.model_copy(update={"status": "DRAINING" if two else "UP"}))
        case "order":
            (world.resume, world.cordon, world.drain, world.drain)[two](one)
        case "deploy":
            world.deploy(spec(one, memory=SIZES[two % 3] * MIB, replicas=two // 3, storage_uri=f"file:///{two}"))
        case "scale":
            world.scale(two, one)
        case "undeploy":
            world.undeploy(one)
        case "rollback":
            world.rollback(two, one, model=spec(one, storage_uri=f"file:///old/{two}") if two % 2 else None)
        case "freeze":
            world.unfreeze(one) if two else world.freeze(one)
        case "steps":
            world.set_policy(rollout_unavailable=one, reserve_after_ms=30_000)
        case "answer" | "fail" if world.state.outstanding:
            keys = sorted(world.state.outstanding)
            chosen = keys[one % len(keys)]
            loading = world.state.command_of(world.state.outstanding[chosen]) == "LoadModel"
            if action == "fail" and loading:
                world.fail_load(chosen, retriable=two)
            else:
                world.answer_one(chosen, measured=int(two) * MIB)
        case "inventory" if server:
            held = sorted(server.replicas) if two % 2 else []
            extra = [(f"default/{MODELS[two % 3]}", 1 + two // 2)] if two > 1 else []
            world.inventory(server.record, tuple(dict.fromkeys(held + extra)))
        case "stale":
            world.feed(i.ReadingStale(key), Input("stale", subject=key))
        case "reading" if server:
            device = server.record.server.devices[0].model_copy(update={"free": two * MIB, "largest_free": two * MIB})
            info = server.record.server.model_copy(update={"devices": (device,), "digest": str(two % 2)})
            world.feed(i.ReadingChanged(server.record.model_copy(update={"server": info})), Input("reading"))
        case "wrong":
            for other in list(world.state.servers.values()):
                report = r.ModelLoaded(model=f"default/{one}", generation=1, position=two)
                world.report(other.record, report)
        case "time":
            world.pass_time(one)
        case _:
            pass


def check(world: World) -> None:
    """What must hold after every step."""
    state = world.state
    assert state.illegal == 0
    check_fleet(state)
    booked: dict[tuple[str, str], int] = {}
    for model in state.models.values():
        for replica in model.replicas.values():
            assert state.servers[replica.server].replicas[replica.model, replica.generation] is replica
            for booking in replica.bookings:
                device = (state.servers[replica.server].info.host, booking.device)
                booked[device] = booked.get(device, 0) + booking.bytes
        assert not model.pending()[0], "nothing that could be done at once is left undone"
        assert {t.generation for t in model.traffic} <= set(model.versions)
    for server in state.servers.values():
        order = state.cordons.get(server.key)
        assert (server.cordon == "DRAINING") == (order is not None and order.drain)
        assert bool(server.cordon) == (order is not None)
        assert {replica.draining for replica in server.replicas.values()} <= {server.draining}
        assert server.draining or not (server.drains or server.drain_due)
        on_its_way = [r for r in server.replicas.values() if r.state in ON_ITS_WAY and not state.models[r.model].frozen]
        assert not (server.draining and on_its_way)
        there = {r.state for r in server.replicas.values()} & {R.LOADED, R.AVAILABLE}
        assert not (server.lost and there), "what a lost server holds is lost"
        for held in (*server.awaited.values(), *server.leaked.values()):
            for booking in held.bookings:
                device = (server.info.host, booking.device)
                booked[device] = booked.get(device, 0) + booking.bytes
        mine = [*server.replicas.values(), *server.awaited.values(), *server.leaked.values()]
        assert server.booked == sum(booking.bytes for each in mine for booking in each.bookings)
    assert {d: b for d, b in booked.items() if b} == state.booked


def indexed(fleet: Fleet, state: State) -> tuple[Any, ...]:
    """All that a fleet's index says."""
    pools = {pool: list(ranks) for pool, ranks in fleet.pools(state)}
    return pools, fleet.rooms(state), [fleet.named(state, name) for name in SERVERS]


def check_fleet(state: State) -> None:
    """What was sorted in bit by bit is what would be sorted in at once: no room that there is is overlooked."""
    anew = Fleet()
    for server in state.servers.values():
        anew.touch(server)
    assert indexed(state.fleet, state) == indexed(anew, state)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(step, max_size=40))
def test_any_history(steps: list[tuple[str, Any, Any]]) -> None:
    """No sequence breaks the books, leaves an illegal fact, or makes replay differ from the live state."""
    world = Watched()
    positions: dict[int, State] = {}
    for n, (action, one, two) in enumerate(steps):
        apply(world, action, one, two)
        check(world)
        if n % 10 == 0:
            positions[world.state.position] = world.snapshot()
    assert world.replayed() == world.state
    for position, state in positions.items():
        assert world.replayed(position) == state
    if world.log:
        again = world.snapshot()
        assert not fold(world.state, world.log[-1])
        assert world.state == again


KINDS: list[type] = list(get_args(f.Fact))
TEXTS = st.sampled_from(["", "default/m1", "local/a/0", "Loading", "Available", "Lost", "x"])


@st.composite
def any_fact(draw: Any) -> f.Fact:
    kind = draw(st.sampled_from(KINDS))
    values: dict[str, Any] = {}
    for field in wire_fields(kind):
        annotation = field.annotation
        if annotation is str:
            values[field.name] = draw(TEXTS)
        elif annotation is int:
            values[field.name] = draw(st.integers(0, 5))
        elif annotation is bool:
            values[field.name] = draw(st.booleans())
        elif field.name == "spec":
            values[field.name] = spec("m1")
        elif field.name == "record":
            values[field.name] = record(draw(st.sampled_from(SERVERS)))
        elif field.name == "policy":
            values[field.name] = World().state.policy
        elif field.name == "tenant":
            values[field.name] = Tenant(name="default", floor_replicas=draw(st.integers(0, 3)))
        elif field.name in ("bookings", "measured", "expected", "free", "returned"):
            values[field.name] = (f.Booking("cpu", draw(st.integers(0, 9))),)
        else:
            values[field.name] = ()
    assert {x.name for x in fields_of(kind)} == set(values)
    return kind(**values)


@settings(max_examples=200, deadline=None)
@given(st.lists(any_fact(), max_size=30))
def test_evolve_never_raises(facts: list[f.Fact]) -> None:
    """Even facts that no decider would write are folded or counted, never fatal, and survive the wire."""
    state = State()
    for fact in facts:
        evolve(state, fact)
        assert ENTRY.decode_trusted(ENTRY.encode(_entry(fact)), "").facts == (fact,)


def _entry(fact: f.Fact) -> Any:
    from magnetar_events.entry import Entry

    return Entry("x", 0, 1, 0, 0, 1, Input("timer"), {}, (fact,))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(step, max_size=25))
def test_decide_is_pure(steps: list[tuple[str, Any, Any]]) -> None:
    """Deciding leaves the state as it was, and decides the same again; the log re-decides to itself."""
    world = World()
    for action, one, two in steps:
        apply(world, action, one, two)
    before = world.snapshot()
    for source in (i.TimerDue(), i.Continue(), i.LeaseLapsed("local/a/0", "life0")):
        assert decide(world.state, source, world.at + 10**7) == decide(world.state, source, world.at + 10**7)
    assert world.state == before
    state = State()
    for entry in world.log:
        if entry.input.data is not None:
            assert tuple(decide(state, i.understand(entry.input), entry.at)) == entry.facts
        fold(state, entry)


def test_replica_of_nothing() -> None:
    """A key that names nothing is None, not an error."""
    assert State().replica(ReplicaKey("default/x", 1, "local/a/0")) is None
    assert served_name("default/x", 1) == "default_x_1"
    assert R.LOST == "Lost"
