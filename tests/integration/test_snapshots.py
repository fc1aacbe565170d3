"""Projector and scheduler with snapshots: what one writes the other starts from, and the log decides in every doubt."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx
import pytest

from magnetar_common.bus import Bus, MessageId
from magnetar_common.bus.memory import MemoryBroker, MemoryBus
from magnetar_common.evolve import fold
from magnetar_common.lifecycle import Lifecycle
from magnetar_common.log import first, replay
from magnetar_common.metrics import SNAPSHOT_FAILURES, SNAPSHOT_POSITION, SNAPSHOTS_IGNORED
from magnetar_common.render import state_digest
from magnetar_common.settings import SnapshotSettings
from magnetar_common.snapshot import Snapshot, Snapshots
from magnetar_common.state import State
from magnetar_common.topics import STATE_CHANGES
from magnetar_events import ENTRY, Entry
from magnetar_events import facts as f
from magnetar_events.schemas import schema_json
from magnetar_projector import read_model as read_models
from magnetar_projector.main import ProjectorSettings, start
from magnetar_projector.projector import Projector
from magnetar_projector.queries import Queries
from magnetar_projector.read_model import MEMORY, ReadModel
from magnetar_projector.snapshots import SnapshotWriter
from magnetar_scheduler.leadership import Challenger
from tests.support.agents import SimulatedAgent
from tests.support.leading import eventually, leading
from tests.support.logs import busy_world, entry, write
from tests.support.requests import deploy, servers_routed
from tests.support.snapshots import DAMAGE, files, taken
from tests.support.world import World

Connect = Callable[[], Bus]


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture(scope="module")
def world() -> World:
    return busy_world()


@pytest.fixture
def store(tmp_path: Path) -> Snapshots:
    return Snapshots(f"file://{tmp_path}/snapshots")


def projected(bus: Bus, read_model: ReadModel, store: Snapshots, every: int = 10, wait: float = 0) -> Projector:
    """A projector that has read what there is, and written its snapshots."""
    writer = SnapshotWriter(store, read_model, every_entries=every, pause_s=0)
    projector = Projector(bus, read_model, batch_entries=1, snapshots=writer)
    while projector.step(wait):
        writer._wait()
    return projector


# --- from the projector to the next leader ----------------------------------------------------------------------------


def test_the_next_leader_starts_from_what_the_projector_wrote(
    connect: Connect, tmp_path: Path, store: Snapshots
) -> None:
    """It folds a handful of entries, leads, keeps every route, and its state is that of the whole log."""
    bus = connect()
    with leading(connect) as led:
        agent = SimulatedAgent(bus, "a")
        for n in range(8):
            deploy(bus, f"m{n}")
        eventually(lambda: all(servers_routed(bus, f"default/m{n}") for n in range(8)))
    with ReadModel(tmp_path / "projector.sqlite", snapshots=store) as read_model:
        projector = projected(bus, read_model, store, every=5, wait=0.5)
        projector.close()
        assert projector.state == led.state
    with ReadModel(tmp_path / "projector.sqlite", snapshots=store) as read_model:
        again = Projector(bus, read_model)
        again.step(0.5)
        assert again.state == led.state
        assert read_model.checkpoint() is not None  # what is stored was found in the log, and is not built anew
        again.close()
    folded: list[int] = []
    with leading(connect, identity="next", snapshots=store, folded=lambda state: folded.append(state.position)) as led:
        assert folded == []  # at the end of the projector everything is in a snapshot
        assert led.state.term == 2
        deploy(bus, "another")
        eventually(lambda: servers_routed(bus, "default/another"))
        eventually(lambda: servers_routed(bus, "default/m0") == {"local/a/0"})
        assert not [c for c in agent.commands if getattr(c.command, "model", "") == "default/m0"][1:]
        agent.die()
        position = led.state.position
        eventually(lambda: led.leader._appender.acknowledged >= position)
    assert led.error is None
    for path in files(tmp_path):
        path.unlink()
    with leading(connect, identity="without", snapshots=store, folded=lambda s: folded.append(s.position)) as led:
        assert led.state.models.keys() >= {f"default/m{n}" for n in range(8)}
    eventually(lambda: replay(bus).term == 3)
    terms: list[int] = []
    replay(bus, on_record=lambda record: terms.append(record.entry.term))
    assert folded == list(range(terms.index(3)))  # all but what it has just appended
    assert state_digest(replay(bus)) == state_digest(led.state)


def test_the_last_of_a_batch_is_found(connect: Connect) -> None:
    """A look-up that begins inside the log's last batch finds what comes after, whatever the broker says of the end."""
    bus = connect()
    schema = schema_json(STATE_CHANGES.schema)
    producer = bus.producer(STATE_CHANGES.name, schema=schema, exclusive=True, batching=True)
    ids: list[MessageId] = []
    for n in range(3):
        producer.send_async(ENTRY.encode(entry(n)), ids.append, properties=ENTRY.properties)  # type: ignore[arg-type]
    producer.flush()
    eventually(lambda: len(ids) == 3)
    for n, place in enumerate(ids[:-1]):
        found = first(bus, lambda record: record.message_id > place, place)  # noqa: B023 - is called at once
        assert found is not None
        assert (found.entry.id, found.message_id) == (f"e{n + 1}", ids[n + 1])
    assert first(bus, lambda _: True, ids[-1]) is None
    producer.close()


class CountingBus(MemoryBus):
    """Counts the messages that are read from the log."""

    messages = 0

    def reader(self, topic: str, *args: object, **options: object) -> object:  # type: ignore[override]
        reader = super().reader(topic, *args, **options)  # type: ignore[arg-type]
        if topic != STATE_CHANGES.name:
            return reader
        read = reader.read

        def counted(timeout: float) -> object:
            message = read(timeout)
            self.messages += message is not None
            return message

        reader.read = counted  # type: ignore[method-assign, assignment]
        return reader


def stand_by(broker: MemoryBroker, store: Snapshots | None) -> tuple[State, int, int]:
    """The state of a challenger that reached the end, the entries that it folded, and the messages that it read."""
    bus, folded = CountingBus(broker), 0

    def count(_: State) -> None:
        nonlocal folded
        folded += 1

    challenger = Challenger(lambda: bus, lambda: False, count, store)
    mandate = challenger.run()
    assert mandate is not None
    messages = bus.messages
    mandate.producer.close()
    return mandate.state, folded, messages


def test_a_start_does_not_grow_with_the_log(tmp_path: Path) -> None:
    """Scheduler and projector: the entries folded at a start are those since the last snapshot, in any log."""
    costs: dict[int, tuple[int, int, int]] = {}
    for length in (47, 407, 1_007):
        broker = MemoryBroker()
        bus, store = MemoryBus(broker), Snapshots(f"file://{tmp_path}/{length}")
        write(bus, *(entry(n, f.LeaderAlive(1), name=f"{length}-{n}") for n in range(length)))
        path = tmp_path / f"{length}.sqlite"
        with ReadModel(path, snapshots=store) as read_model:
            projected(bus, read_model, store, every=10)  # and killed: nothing is written at its end
        state, folded, messages = stand_by(broker, store)
        assert state == stand_by(broker, None)[0]
        again = refolds(path, store)
        costs[length] = (folded, messages, again)
    # Read besides: the log's first entry, the snapshot's last, the barrier, and once more the first and the last.
    assert set(costs.values()) == {(7, 7 + 5, 7)}


def refolds(path: Path, store: Snapshots | None) -> int:
    """How many entries a projector folds that starts with this file."""
    folds = 0

    def counted(*args: object) -> bool:
        nonlocal folds
        folds += 1
        return honest(*args)  # type: ignore[arg-type]

    honest = read_models.fold
    with pytest.MonkeyPatch.context() as patch, ReadModel(path, snapshots=store) as read_model:
        patch.setattr(read_models, "fold", counted)
        read_model.refold()
    return folds


@pytest.mark.parametrize("case", ["cut in the image", "another broker's", "a newer fold version", "deleted"])
def test_a_damaged_snapshot_changes_nothing_for_anybody(
    broker: MemoryBroker, tmp_path: Path, store: Snapshots, world: World, case: str
) -> None:
    """Scheduler and projector notice it, count it, take the one before, or the whole log: the same state."""
    bus, path = MemoryBus(broker), tmp_path / "projector.sqlite"
    write(bus, *world.log)
    with ReadModel(path, snapshots=store) as read_model:
        projected(bus, read_model, store).close()
    written = files(tmp_path)
    assert len(written) == 3
    for n, broken in enumerate(written):
        if case == "deleted":
            broken.unlink()
        else:
            broken.write_bytes(DAMAGE[case](broken.read_bytes()))
        before = SNAPSHOTS_IGNORED._value.get()
        assert stand_by(broker, store)[0] == world.state
        assert SNAPSHOTS_IGNORED._value.get() == before + (0 if case == "deleted" else n + 1)
        with ReadModel(path, snapshots=store) as read_model:
            assert Projector(bus, read_model)._open() is not None
            assert read_model.refold() == world.state
    assert stand_by(broker, store)[1] == len(world.log)


# --- the projector ----------------------------------------------------------------------------------------------------


def test_the_state_at_any_position_is_the_same_with_snapshots(
    broker: MemoryBroker, store: Snapshots, world: World
) -> None:
    """Queries for the past start at the nearest earlier snapshot, and answer what they answer without."""
    bus = MemoryBus(broker)
    write(bus, *world.log)
    with ReadModel(MEMORY, snapshots=store) as read_model:
        projected(bus, read_model, store, every=7)
        assert len(store.positions(world.log[0].id)) == 3
        for position in range(len(world.log)):
            assert Queries(read_model).state_at(position) == world.replayed(position)


def test_a_projector_uses_only_what_its_own_entries_confirm(
    broker: MemoryBroker, store: Snapshots, world: World
) -> None:
    """A snapshot of a log that was another from some entry on is passed over, for now and for the past."""
    rewritten, state = [*world.log[:8], entry(8, f.ModelScaled("default/iris", 7, "user"), name="rewritten")], State()
    for each in rewritten:
        fold(state, each)
    ids = write(MemoryBus(broker), *world.log)
    store.write(taken(rewritten, ids, state, MemoryBus(broker).cluster_id()))
    with ReadModel(MEMORY, snapshots=store) as read_model:
        projector = Projector(MemoryBus(broker), read_model)
        while projector.step(0):
            pass
        assert read_model.refold() == world.state
        assert read_model.refold(9) == world.replayed(9)


def test_a_projector_restarted_goes_on_with_the_same_tables(
    broker: MemoryBroker, tmp_path: Path, store: Snapshots, world: World
) -> None:
    """Killed and restarted again and again on its way, with snapshots: state and tables of one that never was."""
    bus, path = MemoryBus(broker), tmp_path / "projector.sqlite"
    for each in world.log:
        write(bus, each)
        with ReadModel(path, snapshots=store) as read_model:
            projector = projected(bus, read_model, store, every=4)
            assert projector.state == world.replayed(each.position)
    with ReadModel(MEMORY) as undisturbed, ReadModel(path) as read_model:
        Projector(bus, undisturbed).close()
        projected(bus, undisturbed, store)
        for table in ("entries", "facts", "mentions", "models", "replicas", "servers", "checkpoint"):
            sql = f"SELECT * FROM {table}"
            assert sorted(read_model.query(sql)) == sorted(undisturbed.query(sql))


def test_one_is_written_after_so_many_entries_and_at_the_end(
    broker: MemoryBroker, store: Snapshots, world: World
) -> None:
    """Not more often, nor after less than the pause; a restart without news writes none."""
    bus, log = MemoryBus(broker), world.log[0].id
    write(bus, *world.log[:25])
    with ReadModel(MEMORY) as read_model:
        projector = projected(bus, read_model, store, every=10)
        assert store.positions(log) == [19, 9]
        projector.close()
        assert store.positions(log) == [24, 19, 9]
        assert SNAPSHOT_POSITION._value.get() == 24
        for _, path in store._listed(log):
            store._fs.rm_file(path)
        projector.close()
        assert store.positions(log) == []
    store.write(_snapshot_of(bus, world, 24))
    with ReadModel(MEMORY) as read_model:  # built anew: it says nothing that a snapshot does not say already
        projected(bus, read_model, store, every=1).close()
        assert store.positions(log) == [24]
    store._fs.rm_file(store._listed(log)[0][1])
    with ReadModel(MEMORY) as read_model:
        writer = SnapshotWriter(store, read_model, every_entries=2, pause_s=3_600)
        projector = Projector(bus, read_model, batch_entries=1, snapshots=writer)
        while projector.step(0):
            writer._wait()
        assert store.positions(log) == [1]


def _snapshot_of(bus: Bus, world: World, position: int) -> Snapshot:
    ids: list[MessageId] = []
    replay(bus, on_record=lambda record: ids.append(record.message_id))
    return taken(world.log, ids, world.replayed(position), bus.cluster_id())


class SlowStore(Snapshots):
    """Takes its time to write, and counts how often it was asked to."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.go_on = threading.Event()
        self.asked: list[int] = []

    def write(self, snapshot: Snapshot) -> None:
        self.asked.append(snapshot.header.position)
        assert self.go_on.wait(60)
        super().write(snapshot)


def test_a_slow_store_holds_nobody_up(broker: MemoryBroker, tmp_path: Path, world: World) -> None:
    """The projector goes on while a snapshot is stored; no second one is taken meanwhile; the end waits for the last."""
    bus, store = MemoryBus(broker), SlowStore(f"file://{tmp_path}")
    write(bus, *world.log)
    with ReadModel(MEMORY) as read_model:
        writer = SnapshotWriter(store, read_model, every_entries=5, pause_s=0)
        projector = Projector(bus, read_model, batch_entries=1, snapshots=writer)
        while projector.step(0):
            pass
        assert projector.state == world.state
        assert store.asked == [4]
        store.go_on.set()
        projector.close()
    assert store.positions(world.log[0].id) == [len(world.log) - 1, 4]
    assert store.newest(world.log[0].id, lambda _: None) == world.state


def test_a_store_that_fails_costs_snapshots_and_nothing_else(
    broker: MemoryBroker, tmp_path: Path, world: World
) -> None:
    """Each failure is counted; the read model is whole."""
    (tmp_path / "file").write_text("not a folder")
    bus, store = MemoryBus(broker), Snapshots(f"file://{tmp_path}/file")
    before = SNAPSHOT_FAILURES._value.get()
    write(bus, *world.log[:20])
    with ReadModel(MEMORY, snapshots=store) as read_model:
        projector = projected(bus, read_model, store)
        projector.close()
        assert projector.state == read_model.refold() == world.replayed(19)
    assert SNAPSHOT_FAILURES._value.get() == before + 2


def test_a_log_begun_anew_has_snapshots_of_its_own(
    broker: MemoryBroker, tmp_path: Path, store: Snapshots, world: World
) -> None:
    """Those of the log before, whose positions are higher, are neither used nor in the way."""
    with ReadModel(MEMORY) as read_model:
        bus = MemoryBus(broker)
        write(bus, *world.log)
        projected(bus, read_model, store).close()
    anew = MemoryBroker()
    log: Sequence[Entry] = [entry(n, f.LeaderAlive(1), name=f"anew{n}") for n in range(12)]
    write(MemoryBus(anew), *log)
    with ReadModel(MEMORY) as read_model:
        projected(MemoryBus(anew), read_model, store, every=5).close()
    assert store.positions("anew0") == [11, 9, 4]
    before = SNAPSHOTS_IGNORED._value.get()
    state, folded, _ = stand_by(anew, store)
    assert (state.entry, folded) == ("anew11", 0)
    assert SNAPSHOTS_IGNORED._value.get() == before


def test_the_service_writes_them(broker: MemoryBroker, tmp_path: Path, world: World) -> None:
    """With the settings alone: one at its end is enough to start from."""
    write(MemoryBus(broker), *world.log)
    url = f"file://{tmp_path}/snapshots"
    with Lifecycle() as life:
        settings = ProjectorSettings(data=str(tmp_path / "p.sqlite"), port=0)
        server = start(settings, MemoryBus(broker), life, SnapshotSettings(url=url))
        eventually(lambda: httpx.get(f"{server.url}/readyz").status_code == 200)
    assert life.exit_code == 0
    assert stand_by(broker, Snapshots(url))[:2] == (world.state, 0)
