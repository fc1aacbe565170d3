"""The store of snapshots, and the way from it to a state: whatever is wrong with one changes nothing but the time."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from magnetar_common.bus import EARLIEST, MessageId
from magnetar_common.bus.memory import MemoryBroker, MemoryBus
from magnetar_common.errors import LogReplaced, NoSnapshotStore
from magnetar_common.evolve import fold
from magnetar_common.log import LogReader, replay
from magnetar_common.metrics import SNAPSHOTS_IGNORED
from magnetar_common.snapshot import Header, Snapshots, Unusable, beginning
from magnetar_common.state import State
from tests.support.logs import barrier, busy_world, entry, write
from tests.support.snapshots import DAMAGE, files, taken
from tests.support.world import World

BROKER = MemoryBus(MemoryBroker()).cluster_id()


@pytest.fixture(scope="module")
def world() -> World:
    return busy_world()


@pytest.fixture
def bus(world: World) -> MemoryBus:
    return MemoryBus(MemoryBroker())


@pytest.fixture
def ids(world: World, bus: MemoryBus) -> list[MessageId]:
    return write(bus, *world.log)


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "file":
        yield f"file://{tmp_path}/a folder"
        return
    root = f"/{uuid.uuid4().hex}"
    yield f"memory:/{root}"
    if MemoryFileSystem().exists(root):
        MemoryFileSystem().rm(root, recursive=True)


def every(header: Header) -> None:
    """A check that lets all pass."""


def ignored() -> float:
    return SNAPSHOTS_IGNORED._value.get()


# --- the store --------------------------------------------------------------------------------------------------------


def test_what_is_written_is_found_and_the_newest_are_kept(url: str, world: World, ids: list[MessageId]) -> None:
    """On any file system: the newest three of a log stay, other logs' are left alone, and the newest is what is used."""
    store = Snapshots(url)
    assert store.newest(world.log[0].id, every) is None
    for position in (3, 5, 7, 9, 4):
        store.write(taken(world.log, ids, world.replayed(position), BROKER))
    assert store.positions(world.log[0].id) == [9, 7, 5]
    other = [entry(n, name=f"other{n}") for n in range(3)]
    state = State()
    for each in other:
        fold(state, each)
    store.write(taken(other, ids, state, BROKER))
    assert store.positions(world.log[0].id) == [9, 7, 5]
    assert store.newest(world.log[0].id, every) == world.replayed(9)
    assert store.newest(world.log[0].id, every, at_most=8) == world.replayed(7)
    assert store.newest(world.log[0].id, every, at_most=4) is None
    assert store.newest("other0", every) == state
    assert store.newest("nobody", every) is None


def test_what_a_dead_writer_left_is_no_snapshot_and_goes(
    tmp_path: Path, world: World, ids: list[MessageId], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that ends half-way shows nothing, and loses nothing; its rest is removed in time."""
    store = Snapshots(f"file://{tmp_path}", keep=1)
    store.write(taken(world.log, ids, world.replayed(3), BROKER))

    def dies(*_: object) -> None:
        raise OSError("the disk is gone")

    with monkeypatch.context() as broken:
        broken.setattr(store._fs, "mv", dies)
        with pytest.raises(OSError, match="the disk is gone"):
            store.write(taken(world.log, ids, world.replayed(5), BROKER))
    assert len(files(tmp_path)) == 2
    assert store.positions(world.log[0].id) == [3]
    assert store.newest(world.log[0].id, every) == world.replayed(3)
    store.write(taken(world.log, ids, world.replayed(6), BROKER))
    assert [path.name for path in files(tmp_path)] == ["snapshot-00000000000000000006"]


def test_a_place_that_cannot_be_used_is_told() -> None:
    """An unknown protocol is an error at once, with what is wrong, and without what may be secret in a URL."""
    with pytest.raises(NoSnapshotStore, match="nonsense") as raised:
        Snapshots("nonsense://user:password@host/folder")
    assert "password" not in str(raised.value)


def test_a_store_that_cannot_be_read_is_counted(url: str, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the driver raises, the start goes on without."""
    store, before = Snapshots(url), ignored()

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no credentials")

    with monkeypatch.context() as broken:
        broken.setattr(store._fs, "ls", fails)
        assert store.newest(world.log[0].id, every) is None
    assert ignored() == before + 1


# --- the way to a state -----------------------------------------------------------------------------------------------


def resumed(store: Snapshots | None, bus: MemoryBus) -> tuple[State, int]:
    """The state at the end of the log by way of a snapshot, and how many entries were folded for it."""
    state, after = beginning(store, bus)
    reader, folded = LogReader(bus, after), 0
    for record in reader.stored():
        folded += fold(state, record.entry, str(record.message_id))
    reader.close()
    return state, folded


@pytest.mark.parametrize("position", [0, 1, 17, -1])
def test_the_newest_is_where_a_start_begins(
    url: str, world: World, bus: MemoryBus, ids: list[MessageId], position: int
) -> None:
    """Only what came after it is folded, and the state is that of the whole log."""
    store, last = Snapshots(url), len(world.log) - 1
    state = world.replayed(position % len(world.log))
    store.write(taken(world.log, ids, state, bus.cluster_id()))
    assert resumed(store, bus) == (world.state, last - state.position)
    assert resumed(None, bus) == (world.state, last + 1)
    assert replay(bus) == world.state


def test_barriers_and_repeats_around_it_change_nothing(url: str, world: World) -> None:
    """An entry stored twice, and markers before and behind it, are no reason to doubt a snapshot."""
    bus = MemoryBus(MemoryBroker())
    ids = [
        write(bus, barrier("b"), each, barrier("c"), each, *([world.log[n - 1]] if n else []))[1]
        for n, each in enumerate(world.log)
    ]
    store, before = Snapshots(url), ignored()
    store.write(taken(world.log, ids, world.replayed(8), bus.cluster_id()))
    assert resumed(store, bus) == (world.state, len(world.log) - 9)
    assert ignored() == before


@pytest.mark.parametrize("case", DAMAGE)
def test_one_that_is_not_right_is_passed_over(
    tmp_path: Path, world: World, bus: MemoryBus, ids: list[MessageId], case: str
) -> None:
    """It is noticed and counted; the one before it is taken, or the whole log; the state is the same."""
    store, last = Snapshots(f"file://{tmp_path}"), len(world.log) - 1
    for position in (6, 12):
        store.write(taken(world.log, ids, world.replayed(position), bus.cluster_id()))
    newest, older = files(tmp_path)
    newest.write_bytes(DAMAGE[case](newest.read_bytes()))
    before = ignored()
    assert resumed(store, bus) == (world.state, last - 6)
    assert ignored() == before + 1
    older.write_bytes(DAMAGE[case](older.read_bytes()))
    assert resumed(store, bus) == (world.state, last + 1)
    assert ignored() == before + 3


def test_every_byte_counts(tmp_path: Path, world: World, ids: list[MessageId]) -> None:
    """Whichever byte is another, header or image, it is noticed."""
    store = Snapshots(f"file://{tmp_path}")
    store.write(taken(world.log, ids, world.replayed(12), BROKER))
    (path,) = files(tmp_path)
    whole = path.read_bytes()
    for n in range(0, len(whole), 7):
        path.write_bytes(whole[:n] + bytes([whole[n] ^ 0x01]) + whole[n + 1 :])
        assert store.newest(world.log[0].id, every) is None
    path.write_bytes(whole)
    assert store.newest(world.log[0].id, every) == world.replayed(12)


def _elsewhere(world: World) -> list[Any]:
    return [entry(n, name=f"elsewhere{n}") for n in range(len(world.log))]


@pytest.mark.parametrize(
    ("rest", "used"),
    [
        (lambda world: [*world.log[:8], entry(8, name="rewritten")], False),
        (lambda world: [*world.log[:8], *(entry(n, name=f"rewritten{n}") for n in range(8, 20))], False),
        (_elsewhere, False),
        (lambda world: world.log[:9], True),
    ],
    ids=["its entry rewritten", "rewritten and longer", "another log", "ends with it"],
)
def test_only_a_snapshot_of_this_very_log_is_used(
    url: str, world: World, rest: Callable[[World], list[Any]], used: bool
) -> None:
    """Its last entry must be in the log, in the same message; a log that was written anew has another."""
    store, log, bus = Snapshots(url), rest(world), MemoryBus(MemoryBroker())
    ids = write(MemoryBus(MemoryBroker()), *world.log)
    store.write(taken(world.log, ids, world.replayed(8), bus.cluster_id()))
    write(bus, *log)
    state, folded = resumed(store, bus)
    assert state == replay(bus)
    assert folded == (0 if used else len(log))


@pytest.mark.parametrize("left", [0, 5, 8])
def test_a_log_that_ends_before_its_snapshot_is_not_led(url: str, world: World, left: int) -> None:
    """It was deleted or set back: to go on would be to forget what the snapshot proves that it held."""
    store, bus = Snapshots(url), MemoryBus(MemoryBroker())
    ids = write(MemoryBus(MemoryBroker()), *world.log)
    store.write(taken(world.log, ids, world.replayed(8), bus.cluster_id()))
    write(bus, *world.log[:left], barrier())
    with pytest.raises(LogReplaced, match=r"no longer holds position 8 .*set back"):
        beginning(store, bus)


def test_an_empty_log_beside_snapshots_of_another_broker_is_a_new_one(url: str, world: World) -> None:
    """Their message ids mean nothing here."""
    store, bus = Snapshots(url), MemoryBus(MemoryBroker())
    ids = write(MemoryBus(MemoryBroker()), *world.log)
    store.write(taken(world.log, ids, world.replayed(8), "another"))
    assert beginning(store, bus) == (State(), EARLIEST)


def test_a_broker_that_is_away_is_no_reason_to_ignore_one(url: str, world: World, ids: list[MessageId]) -> None:
    """What the check raises ends the search: it is not taken for a fault of the snapshot."""
    store, before = Snapshots(url), ignored()
    store.write(taken(world.log, ids, world.replayed(8), BROKER))

    def away(header: Header) -> None:
        raise ConnectionError(header.broker)

    def no(header: Header) -> None:
        raise Unusable("not this one")

    with pytest.raises(ConnectionError):
        store.newest(world.log[0].id, away)
    assert ignored() == before
    assert store.newest(world.log[0].id, no) is None
    assert ignored() == before + 1
