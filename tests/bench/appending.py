"""Entries appended per second under a stream of requests, against a bare asynchronous producer of the same payloads."""

import threading
import time

from magnetar_common.bus import EARLIEST, Bus
from magnetar_common.topics import STATE_CHANGES
from tests.bench.measure import Row, Setting
from tests.bench.stand import PATIENCE_S, stand

AGENTS = 100
REQUESTS = 10_000
TURNS = 3


def measure(setting: Setting) -> list[Row]:
    """Ask for new models as fast as it goes, of agents that never answer, and in turns send bare payloads; best counts."""
    agents, requests = (10, 200) if setting.quick else (AGENTS, REQUESTS)
    with stand(setting.pulsar) as on:
        on.scheduler()
        on.fleet(agents, obey=False)
        on.logged("InventoryTaken", agents)
        reader = on.bus.reader(STATE_CHANGES.name, EARLIEST)
        ours: list[float] = []
        bare: list[float] = []
        for turn in range(TURNS):
            while reader.read(0.5) is not None:
                pass
            began = time.monotonic()
            on.deploy([f"turn-{turn}-{n}" for n in range(requests)])
            size, missing = 0, requests
            while missing:
                message = reader.read(PATIENCE_S)
                assert message is not None, f"{missing} entries are missing, and no more come"
                if "ModelWanted" in message.properties["kinds"]:
                    missing -= 1
                    size += len(message.payload)
            ours.append(requests / (time.monotonic() - began))
            bare.append(_bare(on.bus, size // requests, requests))
    ratio = max(ours) / max(bare)
    return [
        Row(
            f"entries appended for a stream of {requests:,} requests",
            f"{max(ours):,.0f}/s",
            f"bare asynchronous producer {max(bare):,.0f}/s",
            ratio,
            "≥ 0.50",
            ratio >= 0.5,
        )
    ]


def _bare(bus: Bus, size: int, count: int) -> float:
    """Return how many payloads per second a producer like the log's gets stored, when that is all it does."""
    producer = bus.producer("persistent://magnetar/control/bench-bare", exclusive=True, batching=True)
    stored = threading.Semaphore(0)
    payload = b"x" * size
    began = time.monotonic()
    for _ in range(count):
        producer.send_async(payload, lambda _: stored.release())
    for _ in range(count):
        stored.acquire()
    rate = count / (time.monotonic() - began)
    producer.close()
    return rate
