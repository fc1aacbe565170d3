"""What it costs the scheduler that nothing happens: CPU time under the heartbeats of many agents."""

import threading
import time

from tests.bench.fleet import HEARTBEAT_S
from tests.bench.measure import Row, Setting
from tests.bench.stand import stand

AGENTS = 1_000
ROUNDS = 5


def measure(setting: Setting) -> list[Row]:
    """Let the agents beat for a few rounds, once all have said what they hold."""
    agents = AGENTS // 50 if setting.quick else AGENTS
    with stand(setting.pulsar) as on:
        scheduler = on.scheduler()
        on.fleet(agents)
        on.logged("InventoryTaken", agents)
        threading.Event().wait(0.5 if setting.quick else HEARTBEAT_S)  # the work of joining ends
        spent, began = scheduler.cpu_s, time.monotonic()
        threading.Event().wait(0.5 if setting.quick else ROUNDS * HEARTBEAT_S)
        share = (scheduler.cpu_s - spent) / (time.monotonic() - began)
    return [
        Row(
            f"idle under the heartbeats of {agents:,} agents, 2 KB every {HEARTBEAT_S:g} s",
            f"{share:.3f} of a core",
            "one core",
            share,
            "< 0.20",
            share < 0.2,
        )
    ]
