"""DeployModel published → LoadModel at the agent, against the same two hops by bare producers and readers."""

import statistics
import time
from collections.abc import Callable

from magnetar_common.brokers import embedded
from magnetar_common.bus import LATEST, Bus
from magnetar_common.topics import MODEL_EVENTS
from magnetar_events import COMMAND, MODEL_EVENT, ModelEvent
from magnetar_events.codec import FINGERPRINT
from magnetar_events.commands import LoadModel
from magnetar_events.requests import DeployModel
from magnetar_events.schemas import schema_json
from tests.bench.measure import Row, Setting
from tests.support.agents import SimulatedAgent
from tests.support.brokers import prepared
from tests.support.leading import eventually, leading
from tests.support.world import spec

ROUNDS = 200
WARM = 50


def measure(setting: Setting) -> list[Row]:
    """Measure on each broker that this machine can run."""
    rounds = 5 if setting.quick else ROUNDS
    with embedded.start(setting.folder / "embedded") as broker:
        rows = [_row("embedded", prepared(broker, str(setting.folder)), rounds)]
    return [*rows, _row("Pulsar", prepared(setting.pulsar), rounds)]


def _row(name: str, connecting: Callable[[], Bus], rounds: int) -> Row:
    with leading(connecting) as led:
        bus = connecting()
        agent = SimulatedAgent(bus, "bench", memory=10**15)
        eventually(lambda: "local/bench/0" in led.state.servers and led.state.servers["local/bench/0"].schedulable)
        # In turns, so that both see the same machine.
        bare, ours = _bare(bus), _ours(bus, agent)
        floor: list[float] = []
        real: list[float] = []
        for n in range(WARM + rounds):
            one, two = bare(), ours()
            if n >= WARM:
                floor.append(one)
                real.append(two)
        agent.die()
        bus.close()
    low, high = statistics.median(floor) * 1000, statistics.median(real) * 1000
    return Row(
        f"DeployModel → LoadModel, {name}: median",
        f"{high:.2f} ms",
        f"two bare hops {low:.2f} ms",
        high / low,
        "≤ 3",
        high / low <= 3,
    )


def _bare(bus: Bus) -> Callable[[], float]:
    """Two hops: a message to one reader, whose answer goes to another."""
    first, second = "persistent://magnetar/events/bench-one", "persistent://magnetar/events/bench-two"
    to_one, to_two = bus.producer(first), bus.producer(second)
    at_one, at_two = bus.reader(first, LATEST), bus.reader(second, LATEST)
    payload = b"x" * 150

    def once() -> float:
        began = time.perf_counter()
        to_one.send_async(payload, lambda _: None)
        while at_one.read(1.0) is None:
            pass
        to_two.send_async(payload, lambda _: None)
        while at_two.read(1.0) is None:
            pass
        return time.perf_counter() - began

    return once


def _ours(bus: Bus, agent: SimulatedAgent) -> Callable[[], float]:
    """A request for a model of a new name, until its command has arrived."""
    producer = bus.producer(MODEL_EVENTS.name, schema=schema_json(MODEL_EVENTS.schema))
    commands = bus.reader(agent._reader.topic, LATEST)
    names = iter(range(10**9))

    def once() -> float:
        name = f"bench-{next(names)}"
        event = ModelEvent(event=DeployModel(model=spec(name, memory=0)))
        payload = MODEL_EVENT.encode(event)
        began = time.perf_counter()
        producer.send_async(payload, lambda _: None, key=event.event.subject, properties=MODEL_EVENT.properties)
        while True:
            message = commands.read(1.0)
            if message is None:
                continue
            command = COMMAND.decode(message.payload, message.properties.get(FINGERPRINT, "")).command
            if isinstance(command, LoadModel) and command.model.endswith(f"/{name}"):
                return time.perf_counter() - began

    return once
