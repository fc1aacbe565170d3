"""Tenants by property: whatever happens, at every single fact."""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest

from magnetar_common.evolve import evolve
from magnetar_common.fleet import room_for
from magnetar_common.quotas import NOTHING, Amount, Quotas, at_cap, below_floor, cost, held, plus, tenant_of, times
from magnetar_common.state import Model, Server, State, Version
from magnetar_common.state_image import image_of, state_of
from magnetar_common.transitions import R
from magnetar_events import facts as f
from magnetar_events.entry import Input
from magnetar_scheduler import inputs as i
from magnetar_scheduler.decide import decide
from magnetar_scheduler.draft import Draft
from magnetar_scheduler.placement import Placed, place
from tests.support.world import MIB, World, spec
from tests.unit import test_core_properties as core

TENANTS = ("red", "green", "blue")
NAMES = ("m1", "m2")

SEEDS = 60
"""Histories. They are long, and short of room from the first wish on: what is drawn for a test by example seldom is."""


def history(seed: int) -> list[tuple[str, Any, Any]]:
    """Servers, limits, a policy and wishes, and then whatever may happen."""
    random = Random(seed)
    tenant, server = partial(random.choice, TENANTS), partial(random.choice, core.SERVERS)
    kinds: dict[str, tuple[int, Callable[[], tuple[Any, Any]]]] = {
        "want": (8, lambda: (tenant(), random.randrange(384))),
        "number": (4, lambda: (tenant(), random.randrange(8))),
        "drop": (2, lambda: (tenant(), random.randrange(2))),
        "limits": (5, lambda: (tenant(), random.randrange(360))),
        "no limits": (1, lambda: (tenant(), 0)),
        "policy": (1, lambda: (random.random() < 0.7, random.choice((0, 10_000, 30_000)))),
        "all": (6, lambda: (0, 0)),
        "answer": (6, lambda: (random.randrange(6), 0)),
        "fail": (1, lambda: (random.randrange(6), random.random() < 0.7)),
        "time": (4, lambda: (random.choice((10, 1_500, 1_500, 70_000, 2_000_000)), 0)),
        "join": (1, lambda: (server(), random.randrange(3))),
        "return": (1, lambda: (server(), random.randrange(2))),
        "lapse": (1, lambda: (server(), 0)),
        "down": (0.3, lambda: (server(), 0)),
        "drain": (0.6, lambda: (server(), random.randrange(2))),
        "inventory": (0.6, lambda: (server(), random.randrange(4))),
        "stale": (0.3, lambda: (server(), 0)),
        "reading": (0.5, lambda: (server(), 300)),
    }
    names, weights = list(kinds), [weight for weight, _ in kinds.values()]
    begin = [("join", name, 0) for name in random.choice(("ac", "abc"))]
    begin += [("policy", random.random() < 0.6, 30_000), *(("limits", name, random.randrange(360)) for name in TENANTS)]
    begin += [("want", *kinds["want"][1]()) for _ in range(6)]
    return [*begin, *((name, *kinds[name][1]()) for name in random.choices(names, weights, k=60))]


def limits(number: int) -> dict[str, Any]:
    """Floors and caps of all kinds."""
    floor = number % 3
    cap = (0, 0, 1, 2, 3)[number // 3 % 5]
    return {
        "floor_replicas": floor if not cap else min(floor, cap),
        "cap_replicas": cap,
        "cap_bytes": (0, 130 * MIB, 250 * MIB)[number // 15 % 3],
        "floor_bytes": (0, 0, 120 * MIB)[number // 45 % 3],
        "over_cap": ("wait", "wait", "refuse")[number % 7 % 3],
    }


def apply(world: World, action: str, one: Any, two: Any) -> None:
    match action:
        case "want":
            size = (30, 60, 120, 200)[two % 4] * MIB
            number, priority = (1, 1, 2, 3)[two // 4 % 4], two // 16 % 3
            least = min(number, two // 48 % 2)
            name = NAMES[two % 2]
            model = spec(
                name, tenant=one, memory=size, replicas=number, priority=priority, min_replicas=least,
                storage_uri=f"file:///{two}",
            )  # fmt: skip
            world.deploy(model)
        case "number":
            world.scale(two // 2, NAMES[two % 2], one)
        case "drop":
            world.undeploy(NAMES[two], one)
        case "limits":
            world.set_tenant(one, **limits(two))
        case "no limits":
            world.delete_tenant(one)
        case "all":
            world.answer(limit=20)
        case "policy":
            world.set_policy(preemption="lower-priority" if one else "never", reserve_after_ms=two)
        case _:
            core.apply(world, action, one, two)


class Watched(World):
    """A world in which every fact is looked at, between the state before it and the one after."""

    def __init__(self) -> None:
        self.shadow = State()
        super().__init__()

    def feed(self, source: i.Decidable, raw: Input | None = None, *, settle: bool = True) -> list[f.Fact]:
        length = len(self.log)
        facts = super().feed(source, raw, settle=False)
        for entry in self.log[length:]:
            shadow = self.shadow
            promised = kept(shadow)
            shadow.position, shadow.at, shadow.fold_version = entry.position, entry.at, entry.fold_version
            for fact in entry.facts:
                before(shadow, fact, promised)
                evolve(shadow, fact)
                after(shadow, fact)
        if settle and not isinstance(source, i.Continue):
            while self.feed(i.Continue(), Input("continue")):
                pass
        return facts


def could_be(server: Server, model: Model, version: Version) -> bool:
    """Whether a server could have a replica of a version, were it empty."""
    held_here = (version.generation, server.key) in model.replicas or server.key in version.places
    return not held_here and any(device.total >= version.size for device in server.devices.values())


def kept(state: State) -> dict[str, set[str]]:
    """What is kept for each tenant that waits below its floor: for each replica that it lacks the server with most room."""
    taken: set[str] = set()
    found: dict[str, set[str]] = {}
    rooms = state.fleet.rooms(state)
    for name in sorted(state.tenants):
        floor, use = state.tenants[name], state.quotas.use(name)
        waiting = [
            (-version.spec.priority, version.position, key, n, model, version)
            for key, model in state.models.items()
            if tenant_of(key) == name and not model.frozen
            for n, version in enumerate(model.versions[generation] for generation in model.kept())
            if not at_cap(version)
        ]
        for *_, model, version in sorted(waiting, key=lambda each: each[:4]):
            for _ in range(model.missing(version.generation)):
                free = [key for key in rooms if key not in taken and could_be(state.servers[key], model, version)]
                if below_floor(floor, use) and free:
                    best = min(free, key=lambda key: (-room_for(rooms[key], 0), key))
                    taken.add(best)
                    found.setdefault(name, set()).add(best)
                    use = plus(use, cost(version.spec, version.size))
    return found


def before(state: State, fact: f.Fact, promised: dict[str, set[str]]) -> None:
    """What must hold for a fact to be decided; what is kept is that of before the entry."""
    if isinstance(fact, f.ReplicaPlaced):
        mine, server = tenant_of(fact.model), state.servers[fact.server]
        if below_floor(state.tenants.get(mine), state.quotas.use(mine)):
            return
        model = state.models[fact.model]
        if any(replica.state is R.LOST or replica.draining for replica in model.of(fact.generation)):
            return  # nothing more than the tenant had
        asks = model.versions[fact.generation].spec
        for other in state.models.values():
            for version in [other.versions[generation] for generation in other.kept()]:
                has, own = version.spec, (other.key, version.generation) == (fact.model, fact.generation)
                in_force = version.reserved and version.refused and state.at < version.claimed_until and not own
                higher = asks.priority > has.priority
                passes = higher and (asks.tenant == has.tenant or state.policy.preemption != "never")
                if in_force and state.policy.reserve_after_ms and not passes:
                    assert version.claim != fact.server, f"{fact.model} takes what is reserved for {other.key}"
        for name, servers in promised.items():
            eaten = below_floor(state.tenants.get(name), state.quotas.use(name)) and server.key in servers
            assert not eaten, f"{fact.model} takes on {fact.server} what {name} waits for, below its floor"
    elif isinstance(fact, f.ReplicasPreempted):
        assert state.policy.preemption == "lower-priority"
        use = {name: staying(state).get(name, NOTHING) for name in TENANTS}  # what is on its way out holds no floor
        for victim in fact.victims:
            replica = state.models[victim.model].replicas[victim.generation, fact.server]
            version = state.models[victim.model].versions[victim.generation]
            assert replica.live
            assert victim.model != fact.model
            assert version.spec.priority == victim.priority < fact.priority
            name = tenant_of(victim.model)
            use[name] = plus(use[name], times(held(replica), -1))
            assert not below_floor(state.tenants.get(name), use[name])
        assert not state.models[fact.model].versions[fact.generation].preempted


def after(state: State, fact: f.Fact) -> None:
    """What must hold once a fact is so."""
    assert state.illegal == 0
    assert books(state) == (state.quotas.used, state.quotas.wanted), f"after {fact}"
    assert staying(state) == state.quotas.staying, f"after {fact}"
    if isinstance(fact, f.ReplicaPlaced) and (tenant := state.tenants.get(tenant_of(fact.model))):
        use = state.quotas.use(tenant.name)
        assert not 0 < tenant.cap_replicas < use.replicas, f"{use} after {fact}"
        assert not 0 < tenant.cap_bytes < use.bytes, f"{use} after {fact}"


def books(state: State) -> tuple[dict[str, Amount], dict[str, Amount]]:
    """What each tenant has and wants, counted anew."""
    used: dict[str, Amount] = {}
    wanted: dict[str, Amount] = {}
    for key, model in state.models.items():
        name = tenant_of(key)
        for replica in model.replicas.values():
            if replica.state is not R.LOST:
                size = sum(booking.bytes for booking in replica.bookings)
                used[name] = plus(used.get(name, NOTHING), Amount(1, size))
        if not model.deleted:
            wanted[name] = plus(
                wanted.get(name, NOTHING), times(cost(model.target.spec, model.target.size), model.wanted)
            )
    return used, {name: amount for name, amount in wanted.items() if amount != NOTHING}


def staying(state: State) -> dict[str, Amount]:
    """What of each tenant is to stay, counted anew."""
    found: dict[str, Amount] = {}
    for key, model in state.models.items():
        for replica in model.replicas.values():
            if replica.live:
                found[tenant_of(key)] = plus(found.get(tenant_of(key), NOTHING), held(replica))
    return found


def nothing_more_fits(world: World) -> None:
    """What waits has no place: everything that could be done is done."""
    for key in world.state.waiting:
        draft = Draft(world.state, world.at)
        model = draft.model(key)
        assert model is not None
        for generation in model.kept():
            if model.missing(generation):
                found = place(draft, model, model.versions[generation])
                assert not isinstance(found, Placed), f"{key} waits, and fits on {found}"


def turned(state: State) -> State:
    """The same state with every dictionary the other way round, but for those that are orders of arrival."""
    other = state_of(image_of(state))
    for holder, names in (
        (other, ("models", "servers", "tenants", "waiting", "booked", "arriving")),
        (other.quotas, tuple(Quotas.__dataclass_fields__)),
    ):
        for name in names:
            setattr(holder, name, dict(reversed(getattr(holder, name).items())))
    for model in other.models.values():
        model.versions = dict(reversed(model.versions.items()))
    return other


@pytest.mark.parametrize("seed", range(SEEDS))
def test_any_history_with_tenants(seed: int) -> None:
    """No placement passes a cap, no floor that is waited for is eaten, the books are exact, and what fits is placed."""
    world = Watched()
    for step in history(seed):
        apply(world, *step)
        core.check(world)
        nothing_more_fits(world)
    assert (
        world.shadow.quotas == world.state.quotas == world.replayed().quotas == state_of(image_of(world.state)).quotas
    )
    for source in (i.TimerDue(), i.LeaseLapsed("local/a/0", "life0"), i.Continue()):
        for at in (world.at, world.at + 10**7):
            assert decide(turned(world.state), source, at) == decide(world.state, source, at)


@pytest.mark.parametrize("seed", range(SEEDS, 2 * SEEDS))
def test_nobody_waits_for_ever(seed: int) -> None:
    """Once there are servers enough and commands are answered, everything comes but what a cap forbids."""
    world = Watched()
    for step in history(seed):
        apply(world, *step)
    for n in range(4):
        world.join(f"new{n}", memory=10_000 * MIB)
    for _ in range(400):
        world.answer()
        if not world.state.next_due() or world.at > 10**9:
            break
        world.pass_time(max(0, world.state.next_due() - world.at))
    for model in world.state.models.values():
        for generation in model.kept():
            version = model.versions[generation]
            if model.missing(generation):
                assert at_cap(version), f"{model.key} v{generation}: {version.refused}"
