"""Many DeployModel at once, through the broker, until a client can call every model; and what the scheduler takes."""

import time

from tests.bench.measure import Row, Setting
from tests.bench.stand import Child, Stand, stand

AGENTS = 1_000
BURST = 1_000
LARGE = 10_000

SELDON_PER_S = 144.0
"""Seldon Core 2's scheduler with 1,000 models (measured on this kind of machine); 1,000 concurrent loads stall it."""

SELDON_MIB = 737.0
"""Its memory with 10,000 models."""


def measure(setting: Setting) -> list[Row]:
    """Deploy models at once, then ten times as many more."""
    agents, burst, large = (20, 20, 200) if setting.quick else (AGENTS, BURST, LARGE)
    with stand(setting.pulsar) as on:
        scheduler = on.scheduler()
        on.fleet(agents)
        on.logged("InventoryTaken", agents)
        few, few_cpu = _deploy(on, scheduler, "few", burst)
        many, many_cpu = _deploy(on, scheduler, "many", large)
        memory = scheduler.memory / 2**20
    return [
        Row(
            f"{burst:,} DeployModel at once, {agents:,} agents, until all are Available",
            f"{few:,.0f}/s, {few_cpu * 1e6:.0f} µs of CPU each",
            f"Seldon {SELDON_PER_S:g}/s",
            few / SELDON_PER_S,
            "≥ 1,000/s",
            few >= 1_000,
        ),
        Row(
            f"{large:,} more at once",
            f"{many:,.0f}/s, {many_cpu * 1e6:.0f} µs of CPU each",
            f"{burst:,}: {few:,.0f}/s",
            many / few,
            "no stall (≥ 0.5)",
            many >= 0.5 * few,
        ),
        Row(
            f"memory of the scheduler with {burst + large:,} models",
            f"{memory:.0f} MiB",
            f"Seldon, 10,000: {SELDON_MIB:g} MiB",
            memory / SELDON_MIB,
            "< 300 MiB",
            memory < 300,
        ),
    ]


def _deploy(on: Stand, scheduler: Child, prefix: str, count: int) -> tuple[float, float]:
    """Return models per second, and the scheduler's CPU seconds per model."""
    routed = on.routes()
    spent, began = scheduler.cpu_s, time.monotonic()
    on.deploy([f"{prefix}-{n}" for n in range(count)])
    ended = routed.wait(count)
    return count / (ended - began), (scheduler.cpu_s - spent) / count
