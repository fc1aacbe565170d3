"""The read model: what every store of it must do, in a file and in memory; and what a file can be found to be."""

import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from magnetar_common.bus import MessageId
from magnetar_common.errors import LogFork, LogHole
from magnetar_common.evolve import fold
from magnetar_common.log import LogRecord
from magnetar_common.render import plain, server_to_dict, state_digest
from magnetar_common.state import State
from magnetar_common.status import model_status
from magnetar_events import facts as f
from magnetar_projector import read_model as module
from magnetar_projector.read_model import MEMORY, ReadModel, ReadModelBroken
from tests.support.logs import barrier, busy_world, drained_world, entry, logged
from tests.support.world import World
from tests.support.world import record as service_record

TABLES = ("checkpoint", "entries", "facts", "mentions", "models", "replicas", "servers")


@pytest.fixture(scope="module")
def world() -> World:
    return busy_world()


def records(world: World) -> list[LogRecord]:
    return [logged(each, MessageId(0, each.position)) for each in world.log]


def contents(model: ReadModel) -> dict[str, list[tuple[object, ...]]]:
    return {table: sorted(model.query(f"SELECT * FROM {table}")) for table in TABLES}


def project(model: ReadModel, log: list[LogRecord], *, batch: int) -> State:
    state = State()
    for record in log:
        assert model.project(state, record)
        if model.pending >= batch:
            model.commit(state)
    model.commit(state)
    return state


class Crashing(ReadModel):
    """Fails at the last step of a transaction when told to."""

    crash = False

    def _write_checkpoint(self, state: State, message_id: MessageId) -> None:
        super()._write_checkpoint(state, message_id)
        if self.crash:
            raise ConnectionAbortedError("crash")


class ReadModelContract:
    """What holds wherever the tables are."""

    @pytest.fixture
    def model(self, path: str) -> Iterator[Crashing]:
        with Crashing(path) as model:
            yield model

    def test_nothing_shows_before_the_commit(self, model: ReadModel, world: World) -> None:
        """Entries, what they changed and the checkpoint appear together."""
        state = State()
        for record in records(world)[:3]:
            model.project(state, record)
        assert (model.pending, model.checkpoint(), model.query("SELECT * FROM entries")) == (3, None, [])
        model.commit(state)
        checkpoint = model.checkpoint()
        assert checkpoint is not None
        assert (checkpoint.position, checkpoint.message_id, checkpoint.term) == (2, MessageId(0, 2), 1)
        assert (model.pending, len(model.query("SELECT * FROM entries"))) == (0, 3)
        assert [key for (key,) in model.query("SELECT key FROM servers")] == ["local/a/0"]

    def test_a_failed_commit_leaves_everything_as_it_was(self, model: Crashing, world: World) -> None:
        """An exception in the middle of a transaction undoes all of it, and the same commit can be made again."""
        state = State()
        log = records(world)
        model.project(state, log[0])
        model.commit(state)
        before = contents(model)
        for record in log[1:]:
            model.project(state, record)
        model.crash = True
        with pytest.raises(ConnectionAbortedError):
            model.commit(state)
        assert contents(model) == before
        model.crash = False
        model.commit(state)
        assert model.refold() == world.state

    @pytest.mark.parametrize("batch", [1, 7, 1000])
    @pytest.mark.parametrize("story", [busy_world, drained_world])
    def test_tables_say_what_the_state_says(self, model: ReadModel, story: Callable[[], World], batch: int) -> None:
        """Whatever the size of the batches, no model, replica or server is left out, left over or stale."""
        world = story()
        state = State()
        for record in records(world):
            model.project(state, record)
            if model.pending < batch and record.entry is not world.log[-1]:
                continue
            model.commit(state)
            shown = {key: json.loads(text) for key, text in model.query("SELECT key, json FROM models")}
            assert {key: {**value, "status": None} for key, value in shown.items()} == {
                key: {**plain(each), "status": None} for key, each in state.models.items()
            }
            assert {key: value["status"]["state"] for key, value in shown.items()} == {
                key: model_status(each).state for key, each in state.models.items()
            }
            assert [json.loads(text) for (text,) in model.query("SELECT json FROM replicas")] == [
                plain(each.replicas[key]) for _, each in sorted(state.models.items()) for key in sorted(each.replicas)
            ]
            assert {key: json.loads(text) for key, text in model.query("SELECT key, json FROM servers")} == {
                key: {**server_to_dict(each), "schedulable": each.schedulable} for key, each in state.servers.items()
            }

    def test_a_draining_server_shows_at_its_replicas(self, model: ReadModel) -> None:
        """A fact about a whole server changes the rows of what is on it, though it names none of it."""
        world = World()
        world.join("a")
        world.deploy()
        world.answer()
        project(model, records(world), batch=10)
        world.registry(service_record("a", status="DRAINING", digest=world.state.servers["local/a/0"].digest))
        state = model.refold()
        assert model.project(state, records(world)[state.position + 1])
        model.commit(state)
        assert state.models["default/iris"].replicas[1, "local/a/0"].draining
        ((text,),) = model.query("SELECT json FROM replicas")
        assert json.loads(text) == plain(state.models["default/iris"].replicas[1, "local/a/0"])

    def test_tables_do_not_depend_on_batches(self, model: ReadModel, world: World) -> None:
        """One transaction for everything and one for each entry end in the same tables."""
        project(model, records(world), batch=1000)
        with ReadModel(MEMORY) as other:
            project(other, records(world), batch=1)
            assert contents(model) == contents(other)

    def test_entries_are_kept_as_the_bytes_of_the_log(self, model: ReadModel, world: World) -> None:
        """What is stored is what was appended, byte for byte."""
        project(model, records(world), batch=10)
        assert [payload for (payload,) in model.query("SELECT bytes FROM entries ORDER BY position")] == world.payloads

    def test_refolding_gives_the_state_at_every_position(
        self, model: ReadModel, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The stored entries alone lead to what a replay of the log leads to, page by page."""
        monkeypatch.setattr(module, "_PAGE", 4)
        project(model, records(world), batch=10)
        for position in range(len(world.log)):
            assert model.refold(position) == world.replayed(position)
        assert model.refold() == world.state
        assert state_digest(model.refold()) == state_digest(world.state)

    def test_barriers_and_repeats_change_nothing(self, model: ReadModel, world: World) -> None:
        """A marker is no part of history, and the same entry twice is one."""
        log = records(world)
        state = project(model, log, batch=10)
        before, was = contents(model), state_digest(state)
        assert not model.project(state, log[-1])
        assert not model.project(state, logged(barrier(), MessageId(1, 0)))
        model.commit(state)
        assert (contents(model), state_digest(state)) == (before, was)

    def test_what_does_not_follow_is_not_noted(self, model: ReadModel, world: World) -> None:
        """A hole or a fork leaves the state and the tables as they were."""
        state = project(model, records(world)[:5], batch=10)
        before = contents(model)
        for bad, error in ((entry(6), LogHole), (entry(4, name="other"), LogFork)):
            with pytest.raises(error):
                model.project(state, logged(bad, MessageId(0, 9)))
        assert model.pending == 0
        model.commit(state)
        assert (contents(model), state) == (before, world.replayed(4))

    def test_missing_entries_are_noticed(self, model: ReadModel, world: World) -> None:
        """Entries that are not what the checkpoint promises are not folded into a wrong state."""
        project(model, records(world), batch=10)
        model.query("DELETE FROM entries WHERE position = 5")
        with pytest.raises(ReadModelBroken, match="5"):
            model.refold()

    def test_recreating_empties_it(self, model: ReadModel, world: World) -> None:
        """Started over, it takes the log from the beginning."""
        project(model, records(world), batch=10)
        before = contents(model)
        model.recreate("test")
        assert model.checkpoint() is None
        project(model, records(world), batch=10)
        assert contents(model) == before


class TestInMemory(ReadModelContract):
    @pytest.fixture
    def path(self) -> str:
        return MEMORY


class TestInAFile(ReadModelContract):
    @pytest.fixture
    def path(self, tmp_path: Path) -> str:
        return str(tmp_path / "new" / "projector.sqlite")

    def test_it_is_kept(self, path: str, world: World) -> None:
        """A closed and opened file goes on where it was; what was not committed is not in it."""
        with ReadModel(path) as model:
            state = project(model, records(world)[:4], batch=10)
            model.project(state, records(world)[4])
        with ReadModel(path) as model:
            assert model.refold() == world.replayed(3)

    def test_a_second_writer_is_stopped(self, path: str, world: World) -> None:
        """Two processes on one file cannot write a position twice."""
        with ReadModel(path) as one, ReadModel(path) as other:
            project(one, records(world), batch=10)
            before = contents(one)
            with pytest.raises(sqlite3.IntegrityError):
                project(other, records(world), batch=10)
            assert contents(one) == before

    @pytest.mark.parametrize(
        "spoil",
        [
            "PRAGMA user_version = 999",
            "UPDATE checkpoint SET fold_version = 0",
            "DROP TABLE checkpoint",
        ],
    )
    def test_a_file_of_another_version_is_replaced(self, path: str, world: World, spoil: str) -> None:
        """Tables that this software did not write are never read as if it had."""
        with ReadModel(path) as model:
            project(model, records(world), batch=10)
            model.query(spoil)
        with ReadModel(path) as model:
            assert model.checkpoint() is None
            assert project(model, records(world), batch=10) == world.state

    def test_a_file_that_is_no_database_is_replaced(self, path: str, world: World) -> None:
        """Garbage on the disk costs a replay, not the service."""
        Path(path).parent.mkdir()
        Path(path).write_bytes(b"not a database" * 1000)
        with ReadModel(path) as model:
            assert project(model, records(world), batch=10) == world.state

    def test_a_file_that_is_locked_is_left_alone(self, path: str, world: World) -> None:
        """Being unable to reach a file is no reason to throw it away."""
        with ReadModel(path) as model:
            project(model, records(world), batch=10)
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("PRAGMA locking_mode = EXCLUSIVE")
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            ReadModel(path, busy_timeout_s=0)
        holder.close()
        with ReadModel(path) as model:
            assert model.refold() == world.state


def test_plain_fold_and_projection_agree(world: World) -> None:
    """The projector folds with the one ``evolve``: no state of its own."""
    state = State()
    for each in world.log:
        fold(state, each)
    with ReadModel(MEMORY) as model:
        assert project(model, records(world), batch=3) == state == world.state


def test_the_story_of_a_model_includes_the_loss_of_its_server() -> None:
    """A fact about a whole server is also mentioned with every model that it holds."""
    world = busy_world()
    with ReadModel(MEMORY) as model:
        project(model, records(world), batch=10)
        lost = next(e.position for e in world.log if any(isinstance(fact, f.ServerLost) for fact in e.facts))
        rows = model.query("SELECT subject FROM mentions WHERE position = ? AND idx = 0 ORDER BY subject", (lost,))
        assert [subject for (subject,) in rows] == ["default/iris", "local/b/0"]
