"""One placement: ``decide`` and ``evolve`` of a DeployModel, in a fleet of 1,000 servers. CPU time, no broker."""

from collections.abc import Callable

from magnetar_common.evolve import evolve
from magnetar_events import ModelEvent
from magnetar_events.requests import DeployModel
from magnetar_scheduler import inputs as i
from magnetar_scheduler.decide import decide
from tests.bench.measure import Row, Setting, cpu_times, mean, percentile
from tests.support.world import MIB, World, spec

SERVERS = 1_000
ROUNDS = 2_000
SELDON_MS = (4.0, 9.0)
"""Seldon Core 2's scheduler, one decision at 1,000 servers and 10,000 models, on this kind of machine (DESIGN, 8)."""


def fleet(servers: int, models: int) -> World:
    """So many servers that hold so many models."""
    world = World()
    for n in range(servers):
        world.join(f"s{n:04d}", memory=1_000_000 * MIB)
    for n in range(models):
        world.deploy(spec(f"m{n}", memory=10 * MIB))
    world.answer(limit=10**9)
    return world


def placements(world: World, rounds: int) -> list[float]:
    """CPU seconds of each of many further placements, sorted."""

    def place(n: int) -> Callable[[], object]:
        event = i.Request(ModelEvent(id=f"bench-{n}", event=DeployModel(model=spec(f"b{n}", memory=10 * MIB))))

        def once() -> None:
            facts = decide(world.state, event, world.at)
            world.state.position += 1
            for fact in facts:
                evolve(world.state, fact)

        return once

    return cpu_times([place(n) for n in range(rounds)])


def measure(setting: Setting) -> list[Row]:
    """Compare 10,000 models with 1,000, and both with Seldon's figures."""
    servers, rounds = (10, 20) if setting.quick else (SERVERS, ROUNDS)
    few, many = (placements(fleet(servers, load * servers), rounds) for load in (1, 10))
    average, worst = mean(many) * 1000, percentile(many, 0.99) * 1000
    growth = mean(many) / mean(few)
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
    ]
