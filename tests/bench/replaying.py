"""Replay of a log, against reading and decoding the same log alone."""

import time

from magnetar_common.brokers import embedded
from magnetar_common.bus import EARLIEST, Bus, connect
from magnetar_common.evolve import fold
from magnetar_common.settings import BusSettings
from magnetar_common.state import State
from magnetar_common.topics import STATE_CHANGES
from magnetar_events import ENTRY
from magnetar_events.codec import FINGERPRINT
from tests.bench.measure import Row, Setting, quiet
from tests.support.world import MIB, World, spec

MODELS = 6_000
SERVERS = 100
TURNS = 3


def measure(setting: Setting) -> list[Row]:
    """Write a log of a fleet's life on the embedded broker, and read it both ways, in turns; the best of each counts."""
    world = World()
    for n in range(SERVERS):
        world.join(f"s{n}", memory=10**6 * MIB)
    for n in range(100 if setting.quick else MODELS):
        world.deploy(spec(f"m{n}", memory=MIB))
        world.answer()
    with embedded.start(setting.folder / "embedded") as broker:
        bus = connect(BusSettings(url=broker.service_url, data_dir=str(setting.folder)))
        producer = bus.producer(STATE_CHANGES.name, exclusive=True, batching=True)
        for payload in world.payloads:
            producer.send_async(payload, lambda _: None, properties=ENTRY.properties)
        producer.send(world.payloads[-1], properties=ENTRY.properties)
        with quiet():
            turns = [(_read(bus, len(world.payloads)), _replay(bus, len(world.payloads))) for _ in range(TURNS)]
        bus.close()
    reading, replaying = min(turn[0] for turn in turns), min(turn[1] for turn in turns)
    count = len(world.payloads)
    ratio = reading / replaying
    return [
        Row(
            f"replay of {count:,} entries",
            f"{count / replaying:,.0f}/s",
            f"reading and decoding {count / reading:,.0f}/s",
            ratio,
            "≥ 0.60",
            ratio >= 0.6,
        )
    ]


def _read(bus: Bus, count: int) -> float:
    reader = bus.reader(STATE_CHANGES.name, EARLIEST)
    began = time.process_time()
    for _ in range(count):
        message = reader.read(10)
        assert message is not None
        ENTRY.decode_trusted(message.payload, message.properties.get(FINGERPRINT, ""))
    spent = time.process_time() - began
    reader.close()
    return spent


def _replay(bus: Bus, count: int) -> float:
    reader, state = bus.reader(STATE_CHANGES.name, EARLIEST), State()
    began = time.process_time()
    for _ in range(count):
        message = reader.read(10)
        assert message is not None
        entry = ENTRY.decode_trusted(message.payload, message.properties.get(FINGERPRINT, ""))
        fold(state, entry)
    spent = time.process_time() - began
    reader.close()
    assert state.position == count - 1
    assert state.illegal == 0
    return spent
