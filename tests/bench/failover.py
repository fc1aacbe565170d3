"""A long log: how fast it is folded, and how soon after ``kill -9`` of the leader the next one commands."""

import threading
import time
from collections import deque
from collections.abc import Iterator

from magnetar_common.bus import EARLIEST, Bus
from magnetar_common.log import LogRecord, replay
from magnetar_common.snapshot import Snapshot, Snapshots, beginning
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
        kept = (setting.folder / "snapshots").as_uri()
        rows = _recoveries(on.bus, Snapshots(kept))
        fleet = on.fleet(agents, models=models)
        leader = _started(on, "leading", kept)
        of = f"{models:,} models, {entries:,} entries"
        for storm in (False, True):
            standby = _started(on, "standing by", kept)
            rows.append(_failover(on, fleet, leader, of, agents if storm else 0))
            leader = standby
    return rows


def _recoveries(bus: Bus, snapshots: Snapshots) -> list[Row]:
    """Fold the whole log, keep a snapshot of its end, and start from that."""
    began = time.monotonic()
    reader, count = bus.reader(STATE_CHANGES.name, EARLIEST), 0
    while not reader.at_end():
        count += reader.read(PATIENCE_S) is not None
    reader.close()
    reading, began = time.monotonic() - began, time.monotonic()
    newest: deque[LogRecord] = deque(maxlen=2)
    log: list[str] = []

    def follow(record: LogRecord) -> None:
        newest.append(record)
        if not log:
            log.append(record.entry.id)

    state = replay(bus, on_record=follow)
    folding = time.monotonic() - began
    assert (state.position, state.illegal) == (count - 1, 0)
    before, last = newest
    place = {"message_id": last.message_id, "before": before.message_id}
    snapshots.write(Snapshot.of(state, log=log[0], broker=bus.cluster_id(), **place))
    began = time.monotonic()
    assert beginning(snapshots, bus)[0].position == state.position
    starting = time.monotonic() - began
    what = f"recovery from {count:,} entries, {len(state.models):,} models"
    return [
        Row(
            f"{what}, without a snapshot",
            f"{count / folding:,.0f}/s, {folding:.1f} s",
            f"reading alone {count / reading:,.0f}/s",
            reading / folding,
            "≥ 0.10",
            reading / folding >= 0.1,
        ),
        Row(
            f"{what}, from a snapshot of their end",
            f"{starting:.2f} s",
            f"without {folding:.1f} s",
            starting / folding,
            "< 0.10",
            starting < 0.1 * folding or len(state.models) < MODELS,
        ),
    ]


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


def _started(on: Stand, role: str, snapshots: str) -> Child:
    """Start a scheduler, and wait until it has folded the log and is in this role."""
    scheduler = on.scheduler(MAGNETAR_SNAPSHOTS_URL=snapshots)
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
