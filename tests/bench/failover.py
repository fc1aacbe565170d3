"""A long log: how fast it is folded, and how soon after ``kill -9`` of the leader the next one commands."""

import threading
import time
from collections.abc import Iterator

from magnetar_common.bus import EARLIEST, Bus
from magnetar_common.log import replay
from magnetar_common.topics import STATE_CHANGES
from magnetar_events import ENTRY, MODEL_EVENT, ModelEvent
from magnetar_events import facts as f
from magnetar_events.entry import FOLD_VERSION, Entry, Input
from magnetar_events.requests import ScaleModel
from magnetar_events.schemas import schema_json
from tests.bench.fleet import held_by, record_of
from tests.bench.measure import Row, Setting
from tests.bench.stand import PATIENCE_S, Child, Stand, stand
from tests.support.world import MIB, World, spec

AGENTS = 1_000
MODELS = 10_000
ENTRIES = 1_000_000


def measure(setting: Setting) -> list[Row]:
    """Write a long log once; replay it, then lead from it, and kill the leader twice."""
    agents, models, entries = (20, 100, 5_000) if setting.quick else (AGENTS, MODELS, ENTRIES)
    with stand(setting.pulsar) as on:
        _write(on.bus, agents, models, entries)
        rows = [_recovery(on.bus)]
        fleet = on.fleet(agents, models=models)
        leader = _started(on, "leading")
        of = f"{models:,} models, {entries:,} entries"
        for storm in (False, True):
            standby = _started(on, "standing by")
            rows.append(_failover(on, fleet, leader, of, agents if storm else 0))
            leader = standby
    return rows


def _recovery(bus: Bus) -> Row:
    began = time.monotonic()
    reader, count = bus.reader(STATE_CHANGES.name, EARLIEST), 0
    while not reader.at_end():
        count += reader.read(PATIENCE_S) is not None
    reader.close()
    reading, began = time.monotonic() - began, time.monotonic()
    state = replay(bus)
    folding = time.monotonic() - began
    assert (state.position, state.illegal) == (count - 1, 0)
    return Row(
        f"recovery from {count:,} entries without a snapshot",
        f"{count / folding:,.0f}/s, {folding:.1f} s",
        f"reading alone {count / reading:,.0f}/s",
        reading / folding,
        "≥ 0.10",
        reading / folding >= 0.1,
    )


def _failover(on: Stand, fleet: Child, leader: Child, of: str, storm: int) -> Row:
    """Kill the leader while a request comes in; until the next one's command arrives."""
    killed = leader.kill()
    on.deploy([f"after-{killed:.6f}".replace(".", "-")])
    if storm:
        fleet.reconnect()
    seconds = float(fleet.hear("term ")[2]) - killed
    return Row(
        f"kill -9 of the leader → first new command{f', {storm:,} agents reconnecting' if storm else ''}, {of}",
        f"{seconds:.2f} s",
        "goal 2 s",
        seconds / 2,
        "< 2 s",
        seconds < 2,
    )


def _started(on: Stand, role: str) -> Child:
    """Start a scheduler that says so once it has folded the log and is in this role."""
    scheduler = on.scheduler()
    scheduler.hear(role)
    if role == "standing by":
        threading.Event().wait(1.0)  # it follows
    return scheduler


def _write(bus: Bus, agents: int, models: int, entries: int) -> None:
    """Write the log of a fleet that holds these models, and of scalings of them for days, which change little."""
    world = World(broker=bus.cluster_id())
    for n in range(agents):
        rec = record_of(n)
        world.registry(rec)
        world.inventory(rec)
    for n in range(models):
        world.deploy(spec(f"m{n}", memory=MIB))
        world.answer(digest="a" * 64)
    assert all(f"default/m{n}" in {key for key, _ in held_by(n % agents, agents, models)} for n in range(agents))
    producer = bus.producer(STATE_CHANGES.name, schema=schema_json(STATE_CHANGES.schema), exclusive=True, batching=True)
    stored = threading.Semaphore(0)
    count = 0
    for payload in (*world.payloads, *_scalings(world, models, entries - len(world.payloads))):
        producer.send_async(payload, lambda _: stored.release(), properties=ENTRY.properties)
        count += 1
    for _ in range(count):
        stored.acquire()
    producer.close()


def _scalings(world: World, models: int, count: int) -> Iterator[bytes]:
    position, at = world.state.position, world.at
    for n in range(count):
        name = f"m{n % models}"
        request = ModelEvent(id=f"r{n}", source="bench", event=ScaleModel(name=name, replicas=1))
        data = MODEL_EVENT.encode(request)
        key = f"default/{name}"
        source = Input("request", "model-events", "", key, MODEL_EVENT.fingerprint, data, len(data))
        accepted = f.RequestAccepted(f"r{n}", "bench", "ScaleModel", key, 1, "", "", "none", "")
        at += 1_000
        yield ENTRY.encode(
            Entry(
                f"s{n}",
                position + 1 + n,
                1,
                at,
                at,
                FOLD_VERSION,
                source,
                {},
                (accepted, f.ModelScaled(key, 1, "user")),
            )
        )
