"""The projector against a log on a bus: it follows, survives its own death, and halts where it cannot trust the log."""

import json
import threading
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import fastavro
import httpx
import pytest

from magnetar_common.bus import MessageId
from magnetar_common.bus.memory import MemoryBroker, MemoryBus, MemoryProducer
from magnetar_common.errors import BusUnavailable
from magnetar_common.lifecycle import Lifecycle
from magnetar_common.log import replay, until_position
from magnetar_common.render import state_digest, state_to_dict
from magnetar_common.state import State
from magnetar_common.topics import STATE_CHANGES
from magnetar_events import ENTRY, Entry, schemas
from magnetar_events import facts as f
from magnetar_events.avro import to_wire
from magnetar_events.entry import FOLD_VERSION
from magnetar_projector.main import ProjectorSettings, start
from magnetar_projector.places import until
from magnetar_projector.projector import MAX_LAG_S, Projector
from magnetar_projector.queries import Queries
from magnetar_projector.read_model import MEMORY, ReadModel
from tests.support.leading import eventually
from tests.support.logs import barrier, busy_world, entry, write, write_junk
from tests.support.world import World


class ReadingBus(MemoryBus):
    """A bus on which nobody may write."""

    def producer(self, topic: str, **_: object) -> MemoryProducer:  # type: ignore[override]
        raise AssertionError(f"a producer was opened on {topic}")

    def anchor(self, topic: str, name: str) -> None:  # type: ignore[override]
        raise AssertionError(f"subscription {name} was opened on {topic}")


class Crash(BaseException):
    """What ends the process, as far as the test goes."""


class CrashingReadModel(ReadModel):
    """Dies in the middle of its ``nth`` commit."""

    def __init__(self, path: str, nth: int) -> None:
        super().__init__(path)
        self.left = nth

    def _write_checkpoint(self, state: State, message_id: MessageId) -> None:
        super()._write_checkpoint(state, message_id)
        self.left -= 1
        if self.left == 0:
            raise Crash


@pytest.fixture(scope="module")
def world() -> World:
    return busy_world()


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture
def leader(broker: MemoryBroker) -> MemoryBus:
    """The bus that logs are written through."""
    return MemoryBus(broker)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "projector.sqlite")


def follow(broker: MemoryBroker, read_model: ReadModel, **options: int) -> Projector:
    """A projector that has read what there is."""
    projector = Projector(ReadingBus(broker), read_model, **options)
    catch_up(projector)
    return projector


def catch_up(projector: Projector) -> None:
    while projector.step(0):
        pass


def tables(read_model: ReadModel) -> list[list[tuple[object, ...]]]:
    names = ("checkpoint", "entries", "facts", "mentions", "models", "replicas", "servers")
    return [sorted(read_model.query(f"SELECT * FROM {name}")) for name in names]


# --- following --------------------------------------------------------------------------------------------------------


def test_projected_state_is_the_replayed_one_at_every_position(
    broker: MemoryBroker, leader: MemoryBus, world: World
) -> None:
    """After each entry the state, what is stored of it, and a replay up to there are the same."""
    with ReadModel(MEMORY) as read_model:
        projector = follow(broker, read_model)
        for position, each in enumerate(world.log):
            write(leader, each)
            catch_up(projector)
            replayed = replay(ReadingBus(broker), until_position(position))
            assert projector.state == replayed == read_model.refold() == world.replayed(position)
            assert state_digest(projector.state) == state_digest(replayed)
        assert projector.healthy() == (True, f"at position {len(world.log) - 1}")


def test_replay_by_message_and_by_time_agree_with_the_index(
    broker: MemoryBroker, leader: MemoryBus, world: World
) -> None:
    """The read model's answer for any place is what a replay of the log gives."""
    ids = write(leader, *world.log)
    with ReadModel(MEMORY) as read_model:
        follow(broker, read_model)
        queries = Queries(read_model)
        for place in (*ids, *range(len(world.log))):
            assert queries.state_at(place) == replay(ReadingBus(broker), until(place))


def test_barriers_are_no_history(broker: MemoryBroker, leader: MemoryBus, world: World) -> None:
    """Markers of new leaders anywhere in the log change nothing, also across a restart right behind one."""
    log: list[Entry] = [barrier("b0")]
    for each in world.log:
        log += [each, barrier(f"b{each.position}1"), barrier(f"b{each.position}2")]
    write(leader, *log[:20])
    with ReadModel(MEMORY) as read_model:
        follow(broker, read_model)
        write(leader, *log[20:])
        projector = follow(broker, read_model)
        assert projector.state == world.state
        assert [e["position"] for e in Queries(read_model).log(limit=1000)] == list(range(len(world.log)))


def test_a_repeat_changes_nothing(broker: MemoryBroker, leader: MemoryBus, world: World) -> None:
    """The same entry stored twice by the broker is projected once."""
    for each in world.log:
        write(leader, each, each)
    with ReadModel(MEMORY) as read_model, ReadModel(MEMORY) as plain:
        projector = follow(broker, read_model)
        once = MemoryBroker()
        write(MemoryBus(once), *world.log)
        follow(once, plain)
        assert not projector.halted
        assert projector.state == world.state
        assert [row[0] for row in tables(read_model)[1]] == [row[0] for row in tables(plain)[1]]
        assert tables(read_model)[2:] == tables(plain)[2:]


def test_batches_are_bounded_while_catching_up_and_single_afterwards(
    broker: MemoryBroker, leader: MemoryBus, world: World
) -> None:
    """Many entries share a transaction while there is a backlog; a caught-up projector keeps nobody waiting."""
    write(leader, *world.log[:-1])
    with ReadModel(MEMORY) as read_model:
        projector = Projector(ReadingBus(broker), read_model, batch_entries=10, batch_ms=3_600_000)
        commits: list[int] = []
        while projector.step(0):
            checkpoint = read_model.checkpoint()
            commits.append(checkpoint.position if checkpoint else -1)
            assert read_model.pending < 10
        assert sorted(set(commits)) == [-1, *range(9, len(world.log) - 1, 10)]
        write(leader, world.log[-1])
        assert projector.step(0)
        assert not projector.step(0)
        assert Queries(read_model).position == len(world.log) - 1


# --- its own death ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 3])
def test_a_crash_between_any_two_entries_loses_and_doubles_nothing(
    leader: MemoryBus, broker: MemoryBroker, tmp_path: Path, world: World, batch: int
) -> None:
    """Killed in the middle of any commit, a restarted projector ends with the tables of one that never died."""
    write(leader, *world.log)
    with ReadModel(MEMORY) as undisturbed:
        follow(broker, undisturbed)
        expected = tables(undisturbed)
    for nth in range(1, len(world.log) // batch + 1):
        path = str(tmp_path / f"{batch}-{nth}.sqlite")
        with CrashingReadModel(path, nth) as dying, pytest.raises(Crash):
            follow(broker, dying, batch_entries=batch, batch_ms=3_600_000)
        with ReadModel(path) as read_model:
            assert Queries(read_model).position == (nth - 1) * batch - 1
            projector = follow(broker, read_model)
            assert tables(read_model) == expected
            assert projector.state == world.state


def test_a_restart_goes_on_from_the_checkpoint(
    broker: MemoryBroker, leader: MemoryBus, path: str, world: World
) -> None:
    """What is stored is not read from the log again, but for the two entries that prove that it is the same log."""
    write(leader, *world.log[:-1])
    with ReadModel(path) as read_model:
        follow(broker, read_model).close()
    write(leader, world.log[-1])
    read: list[Entry] = []

    class Watched(ReadModel):
        def project(self, state: State, record: object) -> bool:  # type: ignore[override]
            read.append(record.entry)  # type: ignore[attr-defined]
            return super().project(state, record)  # type: ignore[arg-type]

    with Watched(path) as read_model:
        assert follow(broker, read_model).state == world.state
    assert read == [world.log[-1]]


@pytest.mark.parametrize("case", ["another log", "shorter", "empty", "rewritten"])
def test_a_read_model_of_another_log_is_built_anew(
    broker: MemoryBroker, leader: MemoryBus, path: str, world: World, case: str
) -> None:
    """Entries that are not those of the log are thrown away, whether the log is another, older, or gone."""
    write(leader, *world.log[:10])
    with ReadModel(path) as read_model:
        follow(broker, read_model).close()
    other = MemoryBroker()
    log = {
        "another log": [entry(n, f.LeaderAlive(1), name=f"other{n}") for n in range(12)],
        "shorter": world.log[:5],
        "empty": [],
        "rewritten": [*world.log[:9], entry(9, f.LeaderAlive(1), name="other9")],
    }[case]
    write(MemoryBus(other), *log)
    with ReadModel(path) as read_model:
        projector = follow(other, read_model)
        assert not projector.halted
        assert projector.state == replay(ReadingBus(other)) == read_model.refold()
        assert len(read_model.query("SELECT * FROM entries")) == len(log)


# --- halting ----------------------------------------------------------------------------------------------------------


def _hole(bus: MemoryBus) -> MessageId:
    return write(bus, entry(6))[0]


def _fork(bus: MemoryBus) -> MessageId:
    return write(bus, entry(4, name="usurper"))[0]


def _junk(bus: MemoryBus) -> MessageId:
    return write_junk(bus, b"\x07junk", **ENTRY.properties)


def _empty(bus: MemoryBus) -> MessageId:
    return write_junk(bus, b"", **ENTRY.properties)


def _unknown_schema(bus: MemoryBus) -> MessageId:
    return write_junk(bus, ENTRY.encode(entry(5)), **{"avro-fingerprint": "0123456789abcdef"})


def _unknown_meaning(bus: MemoryBus) -> MessageId:
    return write(bus, entry(5, fold_version=FOLD_VERSION + 1))[0]


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (_hole, "position 5 should come next"),
        (_fork, "usurper"),
        (_junk, "not an entry"),
        (_empty, "not an entry"),
        (_unknown_schema, "not an entry"),
        (_unknown_meaning, "fold version"),
    ],
)
def test_it_halts_where_the_log_cannot_be_trusted(
    broker: MemoryBroker,
    leader: MemoryBus,
    path: str,
    world: World,
    spoil: Callable[[MemoryBus], MessageId],
    named: str,
) -> None:
    """It names what is wrong and the last good entry, keeps what came before, and never skips; nor after a restart."""
    ids = write(leader, *world.log[:5])
    bad = spoil(leader)
    write(leader, *world.log[5:])
    for _ in range(2):
        with ReadModel(path) as read_model:
            projector = follow(broker, read_model)
            assert named in projector.halted
            assert str(bad) in projector.halted or spoil is _unknown_meaning
            assert f"last good entry is {world.log[4].id}, position 4, message {ids[4]}" in projector.halted
            assert projector.healthy() == (False, f"halted: {projector.halted}")
            assert Queries(read_model).position == 4
            assert not projector.step(0)  # it looks again, and comes to the same
            assert named in projector.halted
            projector.close()
            assert read_model.refold() == world.replayed(4)


def test_an_unknown_kind_of_fact_halts(
    broker: MemoryBroker, leader: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fact of a newer version is named, not skipped."""
    schema = json.loads(schemas.schema_json("state-changes").replace("LeaderAlive", "LeaderDreaming"))
    newer = fastavro.parse_schema(schema)
    wire = to_wire(Entry)(entry(1, f.LeaderAlive(1)))
    wire["facts"] = [("magnetar.LeaderDreaming", wire["facts"][0][1])]
    out = BytesIO()
    fastavro.schemaless_writer(out, newer, wire)
    known = schemas.by_fingerprint
    monkeypatch.setattr(
        schemas, "by_fingerprint", lambda contract, mark: newer if mark == "newer" else known(contract, mark)
    )
    write(leader, entry(0))
    bad = write_junk(leader, out.getvalue(), **{"avro-fingerprint": "newer"})
    with ReadModel(MEMORY) as read_model:
        projector = follow(broker, read_model)
        assert "LeaderDreaming" in projector.halted
        assert str(bad) in projector.halted
        assert projector.state.position == 0


# --- a broker that is away --------------------------------------------------------------------------------------------


def test_a_broker_that_is_away_makes_it_wait(broker: MemoryBroker, leader: MemoryBus, world: World) -> None:
    """Cut off it is not ready and loses nothing; back again it goes on."""
    write(leader, *world.log[:5])
    bus = ReadingBus(broker)
    broker.disconnect(bus)
    with ReadModel(MEMORY) as read_model:
        projector = Projector(bus, read_model, wall=lambda: 10**9)
        with pytest.raises(BusUnavailable):
            projector.step(0)
        broker.reconnect(bus)
        catch_up(projector)
        assert projector.lag == 0
        assert projector.healthy()[0]
        broker.disconnect(bus)
        write(leader, *world.log[5:])
        catch_up(projector)
        assert projector.lag > MAX_LAG_S
        assert not projector.healthy()[0]
        broker.reconnect(bus)
        catch_up(projector)
        assert projector.healthy()[0]
        assert projector.state == world.state


def test_run_survives_a_broker_that_is_away(broker: MemoryBroker, leader: MemoryBus, world: World) -> None:
    """The loop says that the log cannot be reached, tries again, and ends when told to."""
    bus = ReadingBus(broker)
    broker.disconnect(bus)
    write(leader, *world.log)
    with ReadModel(MEMORY) as read_model:
        projector, stopping = Projector(bus, read_model), threading.Event()
        thread = threading.Thread(target=projector.run, args=(stopping,))
        thread.start()
        eventually(lambda: "cannot be reached" in projector.healthy()[1])
        broker.reconnect(bus)
        eventually(lambda: projector.healthy()[0])
        stopping.set()
        thread.join(10)
        assert not thread.is_alive()
        assert read_model.refold() == world.state


# --- the service ------------------------------------------------------------------------------------------------------


@pytest.fixture
def service(broker: MemoryBroker, leader: MemoryBus, path: str, world: World) -> Iterator[httpx.Client]:
    write(leader, *world.log[:-1])
    with Lifecycle() as life:
        server = start(ProjectorSettings(data=path, port=0), ReadingBus(broker), life)
        with httpx.Client(base_url=server.url) as client:
            eventually(lambda: client.get("/readyz").status_code == 200)
            yield client
    assert life.exit_code == 0


def test_it_serves_what_is(service: httpx.Client, world: World) -> None:
    """Models with target and active side by side, servers, and as of which position."""
    last = len(world.log) - 2
    body = service.get("/v1/models").json()
    assert body["position"] == last
    assert [model["key"] for model in body["models"]] == ["default/huge", "default/iris"]
    assert body["models"][0]["status"]["state"] == "ScheduleFailed"
    assert service.get("/v1/models/default/iris").json() == {"position": last, "model": body["models"][1]}
    assert [server["key"] for server in service.get("/v1/servers").json()["servers"]] == ["local/a/0"]
    answer = service.get("/v1/models/default/nobody")
    assert (answer.status_code, answer.json()) == (
        404,
        {"error": f"there is no model default/nobody at position {last}"},
    )
    assert "magnetar_projector_lag 0.0" in service.get("/metrics").text


def test_it_follows_while_it_serves(service: httpx.Client, leader: MemoryBus, world: World) -> None:
    """An entry that is appended shows."""
    write(leader, world.log[-1])
    eventually(lambda: service.get("/v1/models").json()["position"] == len(world.log) - 1)


def test_it_serves_what_was(service: httpx.Client, world: World) -> None:
    """The whole state at a position, a message id and a time, with its digest."""
    for at, position in (
        ("7", 7),
        ("0:7:-1", 7),
        ("1970-01-01T00:00:00Z", 7),
        ("", len(world.log) - 2),
    ):
        body = service.get("/v1/state", params={"at": at}).json()
        state = world.replayed(position)
        assert body == {"position": position, "digest": state_digest(state), "state": state_to_dict(state)}


def test_it_tells_what_happened(service: httpx.Client) -> None:
    """The log, filtered; the history of a model; the stories of a model and of a server."""
    log = service.get("/v1/log", params={"after": 5, "subject": "default/iris", "kind": "ArtifactPinned"}).json()[
        "entries"
    ]
    assert [entry["position"] for entry in log] == [6, 11]
    assert log[0]["facts"][0]["text"].startswith("default/iris v1 is pinned")
    assert log[0]["messageId"] == "0:6:-1"
    assert len(service.get("/v1/log", params={"limit": 3}).json()["entries"]) == 3
    history = service.get("/v1/models/default/iris/history").json()["history"]
    assert [(change["kind"], change["generation"], change["reason"]) for change in history][:2] == [
        ("deployed", 1, "first release"),
        ("deployed", 2, "second release"),
    ]
    assert {each["field"] for each in history[1]["differences"]} == {"storageUri", "labels.team"}
    versions = service.get("/v1/models/default/iris/versions").json()["versions"]
    assert [(each["generation"], each["outcome"]) for each in versions] == [(1, "Served"), (2, "Serving")]
    differences = service.get("/v1/models/default/iris/diff", params={"a": 1, "b": 2}).json()["differences"]
    assert {each["field"] for each in differences} == {"storageUri", "labels.team", "artifact"}
    story = service.get("/v1/models/default/iris/story", params={"from": 6, "to": 6}).json()["story"]
    assert story[-1]["text"] == "default/iris v1 on local/a/0: Loaded → Available"
    assert service.get("/v1/servers/local/b/0/story").json()["story"][-1]["kind"] == "ServerForgotten"


@pytest.mark.parametrize(
    ("path_asked", "status", "named"),
    [
        ("/v1/state?at=yesterday", 400, "yesterday"),
        ("/v1/state?at=999", 404, "position 999"),
        ("/v1/state?at=1960-01-01", 404, "1960"),
        ("/v1/log?limit=many", 400, "limit"),
        ("/v1/log?after=-2", 400, "after"),
        ("/v1/models/default/iris/story?from=x", 400, "'x'"),
        ("/v1/models/default/nobody/history", 404, "default/nobody"),
        ("/v1/models/default/nobody/versions", 404, "default/nobody"),
        ("/v1/models/default/iris/diff?a=1&b=9", 404, "no version 9"),
        ("/v1/models/default/iris/diff?a=1", 400, "b is missing"),
    ],
)
def test_it_refuses_by_name(service: httpx.Client, path_asked: str, status: int, named: str) -> None:
    """What cannot be answered is told, with what was wrong."""
    answer = service.get(path_asked)
    assert answer.status_code == status
    assert named in answer.json()["error"]


def test_halted_it_is_alive_not_ready_and_answers_for_the_past(
    broker: MemoryBroker, leader: MemoryBus, world: World
) -> None:
    """A restart would not mend the log: so it stays, says why, and serves what it knows."""
    write(leader, *world.log[:5])
    _hole(leader)
    with Lifecycle() as life:
        server = start(ProjectorSettings(data=MEMORY, port=0), ReadingBus(broker), life)
        with httpx.Client(base_url=server.url) as client:
            eventually(lambda: "halted" in client.get("/readyz").text)
            assert "position 5 should come next" in client.get("/readyz").json()["checks"]["log"]["detail"]
            assert client.get("/readyz").status_code == 503
            assert client.get("/livez").status_code == 200
            assert client.get("/v1/state", params={"at": "4"}).json()["digest"] == state_digest(world.replayed(4))


def test_nobody_writes_to_the_log_of_a_projector(broker: MemoryBroker, leader: MemoryBus, path: str) -> None:
    """Projector or reactor, never both: it works on a bus on which a producer cannot be had, and leaves none behind."""
    write(leader, entry(0, f.LeaderAlive(1)))
    bus = ReadingBus(broker)
    with pytest.raises(AssertionError):
        bus.producer(STATE_CHANGES.name)
    with Lifecycle() as life:
        start(ProjectorSettings(data=path, port=0), bus, life)
        eventually(lambda: Path(path).exists())
    assert life.exit_code == 0
    assert bus.producers() == []
    assert broker.topic(STATE_CHANGES.name).holder is None
