"""What it costs the scheduler that nothing happens: CPU time under the heartbeats of many agents."""

import tempfile
import threading
import time
from pathlib import Path

from magnetar_common.brokers import select
from tests.bench.fleet import HEARTBEAT_S
from tests.bench.measure import Row
from tests.bench.stand import stand

AGENTS = 1_000
ROUNDS = 5


def measure(*, quick: bool = False) -> list[Row]:
    """Let the agents beat for a few rounds, once all have said what they hold."""
    agents = AGENTS // 50 if quick else AGENTS
    with (
        tempfile.TemporaryDirectory(prefix="magnetar-bench-") as folder,
        select.own_pulsar(Path(folder)) as broker,
        stand(broker) as on,
    ):
        scheduler = on.scheduler()
        on.fleet(agents)
        on.logged("InventoryTaken", agents)
        threading.Event().wait(HEARTBEAT_S)  # the work of joining ends
        spent, began = scheduler.cpu_s, time.monotonic()
        threading.Event().wait(HEARTBEAT_S if quick else ROUNDS * HEARTBEAT_S)
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
