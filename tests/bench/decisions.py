"""Decisions of the core, ``decide`` and ``evolve``: one placement, a burst, a lost server. CPU time, no broker.

Where a fleet is large it is a ``Bare`` one, which writes no log: to build it takes long enough without.
"""

from collections.abc import Callable
from itertools import count

from magnetar_common.evolve import evolve, fold
from magnetar_events import ModelEvent
from magnetar_events import facts as f
from magnetar_events.entry import MAX_ENTRY_BYTES, Entry, Input
from magnetar_events.requests import DeployModel
from magnetar_scheduler import inputs as i
from magnetar_scheduler.decide import decide
from magnetar_scheduler.journal import make_entry
from tests.bench.measure import Row, Setting, cpu_times, mean, percentile
from tests.support.world import MIB, World, spec

SERVERS = 1_000
ROUNDS = 2_000
BURST = 10_000
TENANTS = 50
HELD = 1_000
"""Replicas of the server that is lost."""

SELDON_MS = (4.0, 9.0)
"""Seldon Core 2's scheduler, one decision at 1,000 servers and 10,000 models, on this kind of machine (DESIGN, 8)."""

SELDON_PER_S = 154.0
"""Models that it places in a second, at its best with so many servers (issue 5: 37 to 154)."""


class Bare(World):
    """A world without a log."""

    def feed(self, source: i.Decidable, raw: Input | None = None, *, settle: bool = True) -> list[f.Fact]:
        state = self.state
        facts = decide(state, source, self.at)
        if facts:
            position, raw = state.position + 1, raw or Input("bench")
            fold(state, Entry(str(position), position, 1, self.at, self.at, state.version, raw, {}, tuple(facts)))
        while settle and (state.unsettled or state.waiting) and self.feed(i.Continue(), settle=False):
            pass
        return facts


def fleet(servers: int, models: int, tenants: int = 0) -> World:
    """So many servers that hold so many models; with tenants, each below its cap, and one that waits below its floor."""
    world = Bare()
    world.set_policy(max_servers=100_000, max_models=1_000_000)
    for n in range(tenants):
        world.set_tenant(f"t{n}", cap_replicas=1_000_000, floor_replicas=1)
    for n in range(servers):
        world.join(f"s{n:05d}", memory=1_000_000 * MIB)
    for n in range(models):
        world.deploy(spec(f"m{n}", memory=10 * MIB, tenant=_tenant(n, tenants)))
    if tenants:
        world.deploy(spec("waits", memory=10**7 * MIB, tenant=f"t{tenants - 1}"))
    world.answer(limit=10**9)
    return world


def _tenant(n: int, tenants: int) -> str:
    """Whose model it is: never the last tenant's, which waits."""
    return f"t{n % (tenants - 1)}" if tenants else "default"


def placements(world: World, rounds: int, tenants: int = 0) -> list[float]:
    """CPU seconds of each of many further placements, sorted."""

    def place(n: int) -> Callable[[], object]:
        wish = DeployModel(model=spec(f"b{n}", memory=10 * MIB, tenant=_tenant(n, tenants)))
        event = i.Request(ModelEvent(id=f"bench-b{n}", event=wish))

        def once() -> None:
            facts = decide(world.state, event, world.at)
            world.state.position += 1
            for fact in facts:
                evolve(world.state, fact)

        return once

    return cpu_times([place(n) for n in range(rounds)])


def loss(servers: int, models: int, held: int) -> tuple[float, int, int]:
    """Lose one of so many servers; return CPU seconds until all is decided, replicas placed anew, bytes of the largest entry."""
    world = Bare()
    world.join("lost", memory=1_000_000 * MIB)
    for n in range(held):
        world.deploy(spec(f"l{n}", memory=10 * MIB))
    for n in range(servers - 1):
        world.join(f"s{n:04d}", memory=1_000_000 * MIB)
    for n in range(models - held):
        world.deploy(spec(f"m{n}", memory=10 * MIB))
    world.answer(limit=10**9)
    state, key = world.state, "local/lost/0"
    sources: list[i.Decidable] = [i.LeaseLapsed(key, state.servers[key].incarnation)]
    seconds, placed, largest, ids = 0.0, 0, 0, count(1)
    while sources:
        source, decided = sources.pop(), [list[f.Fact]()]

        def once(source: i.Decidable = source, decided: list[list[f.Fact]] = decided) -> None:
            decided[0] = decide(state, source, world.at)

        seconds += cpu_times([once])[0]
        facts = decided[0]
        if facts:
            entry, payload = make_entry(
                state, Input("bench"), facts, id=f"b{next(ids)}", term=1, at=world.at, wall=world.at, handled={}
            )
            seconds += cpu_times([lambda entry=entry: fold(state, entry)])[0]
            placed += sum(isinstance(fact, f.ReplicaPlaced) for fact in facts)
            largest = max(largest, len(payload))
            sources.append(i.Continue())
    return seconds, placed, largest


def measure(setting: Setting) -> list[Row]:
    """Compare 10,000 models with 1,000, and both with Seldon's figures; then ten times as many, a burst, and a loss."""
    servers, rounds, burst, held = (10, 20, 100, 20) if setting.quick else (SERVERS, ROUNDS, BURST, HELD)
    few, many = (placements(fleet(servers, load * servers), rounds) for load in (1, 10))
    average, worst = mean(many) * 1000, percentile(many, 0.99) * 1000
    growth = mean(many) / mean(few)
    rate = burst / sum(placements(fleet(servers, 0), burst))
    seconds, placed, largest = loss(servers, 10 * servers, held)
    return [
        Row(
            "one placement, 1,000 servers, 10,000 replicas: mean",
            f"{average:.3f} ms",
            f"Seldon {SELDON_MS[0]:g} ms",
            average / SELDON_MS[0],
            "< 0.1 ms",
            average < 0.1,
        ),
        Row(
            "the same: p99", f"{worst:.3f} ms", f"Seldon {SELDON_MS[1]:g} ms", worst / SELDON_MS[1], "< 1 ms", worst < 1
        ),
        Row(
            "the same with 10 times the models",
            f"{average:.3f} ms",
            f"{mean(few) * 1000:.3f} ms",
            growth,
            "not growing (< 1.5)",
            growth < 1.5,
        ),
        _with_tenants(servers, rounds, average),
        *_ten_times(servers, rounds, worst),
        Row(
            "a burst of 10,000 models on 1,000 servers, decided",
            f"{rate:,.0f}/s",
            f"Seldon {SELDON_PER_S:g}/s",
            rate / SELDON_PER_S,
            "> 2,000/s",
            rate > 2_000 or setting.quick,
        ),
        Row(
            "loss of a server with 1,000 replicas: decided",
            f"{seconds:.2f} s",
            f"{placed:,} of {held:,} placed",
            placed / held,
            "all, < 1 s",
            placed == held and seconds < 1,
        ),
        Row(
            "the same: largest entry",
            f"{largest / 2**10:,.0f} KiB",
            f"{MAX_ENTRY_BYTES / 2**10:,.0f} KiB",
            largest / MAX_ENTRY_BYTES,
            "<= 1 MiB",
            largest <= MAX_ENTRY_BYTES,
        ),
    ]


def _with_tenants(servers: int, rounds: int, without: float) -> Row:
    """One placement where there are tenants, one of which waits below its floor: what books and floors cost."""
    average = mean(placements(fleet(servers, 10 * servers, TENANTS), rounds, TENANTS)) * 1000
    return Row(
        f"the same with {TENANTS} tenants, one of them waiting below its floor: mean",
        f"{average:.3f} ms",
        f"{without:.3f} ms",
        average / without,
        "reported",
        True,
    )


def _ten_times(servers: int, rounds: int, worst: float) -> list[Row]:
    """One placement with ten times the servers and the models: reported, not a goal."""
    times = placements(fleet(10 * servers, 100 * servers), rounds)
    p99 = percentile(times, 0.99) * 1000
    return [
        Row(
            "one placement, 10,000 servers, 100,000 replicas: p99",
            f"{p99:.3f} ms (mean {mean(times) * 1000:.3f})",
            f"{worst:.3f} ms",
            p99 / worst,
            "reported",
            True,
        )
    ]
