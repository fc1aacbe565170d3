"""The log as chained files: nothing is lost on the way, nothing can be exchanged, and the files alone give the state."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import fastavro
import pytest

from magnetar_common.archive import Archive, Link, archive, entries_of, verify
from magnetar_common.bus.memory import MemoryBroker, MemoryBus
from magnetar_common.errors import ArchiveBroken, LogHole, LogUnreadable
from magnetar_common.log import replay
from magnetar_common.render import state_digest
from magnetar_common.repair import void
from magnetar_common.topics import STATE_CHANGES
from magnetar_events.codec import FINGERPRINT
from tests.support.logs import barrier, busy_world, entry, upgraded_world, write, write_junk
from tests.support.world import World


@pytest.fixture(scope="module")
def world() -> World:
    return busy_world()


@pytest.fixture
def bus() -> MemoryBus:
    return MemoryBus()


def run(bus: MemoryBus, folder: Path | str, start: int | None = None, entries: int = 10) -> list[Link]:
    return list(archive(bus, Archive(str(folder)), start, entries=entries))


def test_the_files_alone_give_the_state(bus: MemoryBus, tmp_path: Path, world: World) -> None:
    """Barriers, repeats and voided junk are left out; each file names the one before, and says what it holds."""
    for each in world.log:
        write(bus, each, barrier(f"b{each.position}"), each)
    void(bus, write_junk(bus, b"junk"), actor="ops", reason="junk")
    links = run(bus, tmp_path)
    assert [(link.first, link.last) for link in links] == [(0, 9), (10, 19), (20, len(world.log) - 1)]
    assert [link.previous for link in links] == ["", *(link.sha256 for link in links[:-1])]
    assert links[0].broker == bus.cluster_id()
    found = verify(Archive(str(tmp_path)))
    assert (found.files, found.first, found.last, found.sha256) == (3, 0, world.state.position, links[-1].sha256)
    assert found.digest == state_digest(world.state) == state_digest(replay(bus))
    with Path(links[1].path).open("rb") as file:  # any Avro library reads it
        reader = fastavro.reader(file)
        assert [record["position"] for record in reader] == list(range(10, 20))
        assert reader.metadata["magnetar.first.message"] == links[1].first_message


@pytest.mark.parametrize("where", ["{}", "file://{}", "memory://{}"])
def test_a_second_run_goes_on_where_the_first_ended(bus: MemoryBus, tmp_path: Path, world: World, where: str) -> None:
    """However often it runs, and wherever it was cut: every entry once, and nothing written when there is nothing new."""
    folder = where.format(tmp_path / "archive")
    for position, each in enumerate(world.log):
        write(bus, each)
        if position % 7 == 3:
            run(bus, folder, entries=3)
            assert run(bus, folder, entries=3) == []
    run(bus, folder, entries=3)
    assert [each.position for each in entries_of(Archive(folder))] == list(range(len(world.log)))
    assert verify(Archive(folder)).digest == state_digest(world.state)


def test_the_same_log_gives_the_same_bytes(bus: MemoryBus, tmp_path: Path, world: World) -> None:
    write(bus, *world.log)
    assert [link.sha256 for link in run(bus, tmp_path / "a")] == [link.sha256 for link in run(bus, tmp_path / "b")]


def test_a_file_has_one_schema(bus: MemoryBus, tmp_path: Path) -> None:
    """Where an upgrade was finalized another file begins, and old and new software read the part that they know."""
    world = upgraded_world()
    producer = bus.producer(STATE_CHANGES.name)
    for payload, schema in zip(world.payloads, world.schemas, strict=True):
        producer.send(payload, properties={FINGERPRINT: schema})
    links = run(bus, tmp_path, entries=1_000)
    before = [each.position for each in world.log if each.fold_version == 1]
    assert [(link.first, link.last) for link in links] == [(0, before[-1]), (before[-1] + 1, world.log[-1].position)]
    assert verify(Archive(str(tmp_path))).digest == state_digest(world.state)


def test_a_file_is_closed_by_size_too(bus: MemoryBus, tmp_path: Path) -> None:
    write(bus, *(entry(each, name="x" * 300_000 + str(each)) for each in range(9)))
    links = list(archive(bus, Archive(str(tmp_path)), mebibytes=1))
    assert [link.entries for link in links] == [4, 4, 1]


def test_it_can_begin_later_and_then_no_state_follows(bus: MemoryBus, tmp_path: Path, world: World) -> None:
    write(bus, *world.log)
    run(bus, tmp_path, start=12)
    found = verify(Archive(str(tmp_path)))
    assert (found.first, found.last, found.digest) == (12, len(world.log) - 1, "")
    with pytest.raises(ArchiveBroken, match="begins at position 12"):
        list(entries_of(Archive(str(tmp_path))))
    with pytest.raises(ArchiveBroken, match=f"goes on at position {len(world.log)}, not 3"):
        run(bus, tmp_path, start=3)


def test_on_another_cluster_it_goes_on_by_position(bus: MemoryBus, tmp_path: Path, world: World) -> None:
    """The message ids of the last file mean nothing there; the entries are the same."""
    write(bus, *world.log[:15])
    run(bus, tmp_path)
    moved = MemoryBus(MemoryBroker())
    write_junk(moved, b"shifts every id")
    void(moved, replay_places(moved)[0], actor="ops", reason="junk")
    write(moved, *world.log)
    run(moved, tmp_path)
    assert verify(Archive(str(tmp_path))).digest == state_digest(world.state)


def replay_places(bus: MemoryBus):
    return [message.id for message in bus.broker.topic(STATE_CHANGES.name).messages]


def test_a_log_that_cannot_be_followed_is_not_archived_further(bus: MemoryBus, tmp_path: Path) -> None:
    """What came before stays, and the next run goes on once the log is mended."""
    write(bus, entry(0), entry(1), entry(2))
    junk = write_junk(bus, b"junk")
    with pytest.raises(LogUnreadable):
        run(bus, tmp_path, entries=2)
    write(bus, entry(3))
    void(bus, junk, actor="ops", reason="junk")
    run(bus, tmp_path, entries=2)
    assert verify(Archive(str(tmp_path))).last == 3
    write(bus, entry(5))
    with pytest.raises(LogHole):
        run(bus, tmp_path)
    assert verify(Archive(str(tmp_path))).last == 3


def _lose(paths: list[Path]) -> None:
    paths[1].unlink()


def _lose_the_first(paths: list[Path]) -> None:
    paths[0].unlink()


def _cut_off(paths: list[Path]) -> None:
    paths[2].write_bytes(paths[2].read_bytes()[:-20])


def _change(paths: list[Path]) -> None:
    """One bit of an entry, in a file that a tamperer wrote well."""
    with paths[1].open("rb") as file:
        reader = fastavro.reader(file, return_record_name=True)
        records, about, schema = list(reader), dict(reader.metadata), reader.writer_schema
    records[3]["wall"] ^= 1
    about = {key: value for key, value in about.items() if key.startswith("magnetar.")}
    with paths[1].open("wb") as file:
        fastavro.writer(file, schema, records, metadata=about)


def _swap(paths: list[Path]) -> None:
    one, two = paths[0].read_bytes(), paths[1].read_bytes()
    paths[0].write_bytes(two)
    paths[1].write_bytes(one)


@pytest.mark.parametrize("spoil", [_lose, _lose_the_first, _cut_off, _change, _swap], ids=lambda fn: fn.__name__)
def test_nothing_in_the_chain_can_be_lost_changed_or_exchanged(
    bus: MemoryBus, tmp_path: Path, world: World, spoil: Callable[[list[Path]], None]
) -> None:
    write(bus, *world.log)
    links = run(bus, tmp_path)
    assert all(before.last + 1 == after.first for before, after in pairwise(links))
    spoil([Path(link.path) for link in links])
    with pytest.raises(ArchiveBroken, match=r"\.avro"):
        verify(Archive(str(tmp_path)))


def test_a_damaged_last_file_is_not_built_upon(bus: MemoryBus, tmp_path: Path, world: World) -> None:
    """Deleted, as the error says, it is written again from the log, the same."""
    write(bus, *world.log)
    last = Path(run(bus, tmp_path)[-1].path)
    whole = last.read_bytes()
    last.write_bytes(whole[:-5])
    with pytest.raises(ArchiveBroken, match="delete it: the log has it"):
        run(bus, tmp_path)
    last.unlink()
    run(bus, tmp_path)
    assert last.read_bytes() == whole
