"""The agent between a bus and a server by hand: what it obeys, and what it says."""

import json
import logging
import threading
from pathlib import Path

import pytest

from magnetar_agent.adapters.base import Code, IndexEntry, IndexState
from magnetar_agent.artifacts import digest
from magnetar_events import AGENT_EVENT, COMMAND, Command, versions
from magnetar_events.codec import FINGERPRINT
from magnetar_events.commands import LoadModel
from magnetar_events.models import index_digest
from magnetar_events.reports import (
    CommandSuperseded,
    InventoryReported,
    ModelLoaded,
    ModelLoadFailed,
    ModelLoading,
    ModelUnloaded,
    ModelUnloadFailed,
)
from tests.support.adapters import FakeAdapter
from tests.support.leading import eventually
from tests.support.stage import IRIS, SERVED, Stage, staged
from tests.support.world import record


def kinds(stage: Stage) -> list[str]:
    return [type(event.report).__name__ for event in stage.listen()]


# --- obeying ------------------------------------------------------------------------------------------------------------


def test_load_and_unload_are_reported_with_their_positions(tmp_path: Path) -> None:
    """The end of each, the artifact's digest, and what the server was asked to load."""
    with staged(tmp_path) as stage:
        stage.load(3, devices=("cpu",), parameters={"k": "v"})
        assert stage.hears(ModelLoaded, 3).digest == digest(stage.artifact)[0]
        (spec,) = stage.adapter.specs
        assert (spec.name, spec.devices, spec.parameters, spec.memory_bytes) == (SERVED, ("cpu",), {"k": "v"}, 100)
        stage.unload(5)
        stage.hears(ModelUnloaded, 5)
        assert kinds(stage)[1:] == ["ModelLoaded", "ModelUnloaded"]
        assert [event.number for event in stage.heard] == [1, 2, 3]
        assert stage.heard[-1].term == 1


def test_s01_older_command_that_comes_late_is_not_obeyed(tmp_path: Path) -> None:
    """UNLOAD(p2), then LOAD(p1): the model stays unloaded, and the scheduler hears that p1 was superseded."""
    with staged(tmp_path) as stage:
        stage.unload(2)
        stage.load(1)
        assert stage.hears(CommandSuperseded, 1).newest == 2
        assert stage.inventory(3).models == ()
        assert stage.adapter.calls == [("unload", SERVED)]


@pytest.mark.parametrize("reads", ["", "of a later release", AGENT_EVENT.fingerprint])
def test_an_agent_reports_in_a_schema_that_its_leader_reads(tmp_path: Path, reads: str) -> None:
    """Until it is told, and where it does not know what it is told, that is the first release's: every leader reads it."""
    with staged(tmp_path) as stage:
        eventually(stage.listen)  # what it says of itself, before anybody asks
        stage.reads = reads
        stage.ask(1)
        stage.hears(InventoryReported, 1)
        stage.load(2)
        stage.hears(ModelLoaded, 2)
        first = versions.reports_schema(1)
        assert stage.schemas[0] == first
        assert stage.schemas[-1] == (reads if reads == AGENT_EVENT.fingerprint else first)


def test_s02_unload_during_a_load_ends_unloaded(tmp_path: Path) -> None:
    """It waits for the load, and leaves nothing in the server."""
    with staged(tmp_path) as stage:
        stage.begin_load(1)
        stage.unload(2)
        stage.adapter.gate.set()
        stage.hears(ModelUnloaded, 2)
        assert stage.adapter.models == {}
        assert stage.inventory(3).models == ()


def test_command_that_is_superseded_while_it_waits_is_skipped(tmp_path: Path) -> None:
    """Only the newest of those that wait is done."""
    with staged(tmp_path) as stage:
        stage.begin_load(1)
        for position in range(2, 10):
            stage.unload(position) if position % 2 else stage.load(position)
        stage.adapter.gate.set()
        stage.hears(ModelUnloaded, 9)
        assert stage.adapter.calls == [("load", SERVED), ("unload", SERVED)]


def test_repeat_is_answered_and_not_acted_on(tmp_path: Path) -> None:
    """By a later leader too; while it is in progress it is not even answered."""
    with staged(tmp_path) as stage:
        stage.begin_load(3)
        stage.load(3)
        stage.load(3, term=2)
        stage.adapter.gate.set()
        stage.hears(ModelLoaded, 3)
        eventually(stage.agent._ledger.loaded)
        stage.load(3, term=2)
        stage.hears(ModelLoaded, 3, times=2)
        stage.inventory(4)
        assert stage.adapter.loads(SERVED) == 1
        assert len(stage.said(ModelLoading)) == 1
        assert len({report.model_dump_json() for report in stage.said(ModelLoaded)}) == 1


def test_old_leader_is_refused(tmp_path: Path) -> None:
    """A command of an older term than the newest seen does nothing, though its position is new."""
    with staged(tmp_path) as stage:
        stage.load(3, term=2)
        stage.hears(ModelLoaded, 3)
        stage.unload(9, term=1)
        stage.load(10, "default/stale", term=1)
        stage.load(4, "default/other", term=2)
        stage.hears(ModelLoaded, 4)
        stage.inventory(11)
        assert stage.adapter.calls == [("load", SERVED), ("load", "default_other_1")]
        assert stage.said(ModelLoading, "default/stale") == []


def test_command_for_another_life_is_ignored(tmp_path: Path) -> None:
    """It was meant for whoever stood here before."""
    from magnetar_events.commands import UnloadModel

    with staged(tmp_path, FakeAdapter([SERVED])) as stage:
        stage.command(UnloadModel(model=IRIS, generation=1), 99, incarnation="zero")
        stage.load(1, "default/other")
        stage.hears(ModelLoaded, 1)
        assert SERVED in stage.adapter.models


def test_backlog_of_an_earlier_life_is_not_read(tmp_path: Path) -> None:
    """Commands are read from the end that the topic had when the agent was made, and nothing after it is missed."""
    first = Stage(tmp_path, FakeAdapter())
    first.agent.close()
    first.load(1)
    (tmp_path / "second").mkdir()
    second = Stage(tmp_path / "second", FakeAdapter(), broker=first.broker)
    second.load(2, "default/next")  # before it listens
    second.agent.start()
    try:
        second.hears(ModelLoaded, 2)
        assert second.adapter.calls == [("load", "default_next_1")]
    finally:
        second.agent.close()


def stage_command(position: int) -> Command:
    wanted = LoadModel(model=IRIS, generation=1, storage_uri="file:///m")
    return Command(cluster="local", server="a", replica=0, incarnation="one", term=1, position=position, command=wanted)


def test_junk_on_the_command_topic_disturbs_nothing(tmp_path: Path) -> None:
    """It is logged, and the next command is obeyed."""
    load = COMMAND.encode(stage_command(1))
    with staged(tmp_path) as stage:
        for payload, fingerprint in (
            (b"", ""),
            (b"\xff junk", ""),
            (bytes(5 * 2**20), ""),
            (load, "0" * 16),
            (load[:-2], COMMAND.fingerprint),
            (load.replace(b"default/iris", b"default/IRIS"), COMMAND.fingerprint),
        ):
            stage._commands.send(payload, properties={FINGERPRINT: fingerprint})
        stage.load(1)
        stage.hears(ModelLoaded, 1)


def test_commands_go_on_after_a_broken_reader(tmp_path: Path) -> None:
    """Reopened after the last command that was read: none is lost, none comes twice."""
    with staged(tmp_path) as stage:
        stage.load(1)
        stage.hears(ModelLoaded, 1)
        stage.agent._commands._reader.close()
        stage.load(2, "default/next")
        stage.hears(ModelLoaded, 2)
        assert stage.adapter.calls == [("load", SERVED), ("load", "default_next_1")]


# --- failing ------------------------------------------------------------------------------------------------------------


def test_failed_load_says_code_and_whether_to_try_again(tmp_path: Path) -> None:
    """One line of what the server said, whatever it said."""
    with staged(tmp_path) as stage:
        stage.adapter.fails = {SERVED: (Code.LOAD_FAIL_MEMORY, "CUDA out\nof \x00memory" + "!" * 5000)}
        stage.load(1)
        told = stage.hears(ModelLoadFailed, 1)
        assert (told.code, told.retriable) == ("LOAD_FAIL_MEMORY", True)
        assert told.message.startswith("CUDA out of  memory!!!")
        assert len(told.message) == 1000


def test_missing_artifact_is_final(tmp_path: Path) -> None:
    """S58: nobody tries what can never work; the server is not even asked."""
    with staged(tmp_path) as stage:
        stage.load(1, storage_uri=(tmp_path / "nothing").as_uri())
        told = stage.hears(ModelLoadFailed, 1)
        assert (told.code, told.retriable, stage.adapter.calls) == ("ARTIFACT_MISSING", False, [])


def test_other_artifact_than_the_pinned_one_is_final(tmp_path: Path) -> None:
    """The digest that the scheduler pinned to this version is the artifact; the URI is only its place."""
    with staged(tmp_path) as stage:
        stage.load(1, artifact_digest=digest(stage.artifact)[0])
        stage.hears(ModelLoaded, 1)
        (stage.artifact / "model.joblib").write_text("another model")
        stage.load(2, generation=2, artifact_digest="b" * 64)
        told = stage.hears(ModelLoadFailed, 2)
        assert (told.code, told.retriable) == ("ARTIFACT_MISMATCH", False)
        assert stage.adapter.loads("default_iris_2") == 0


def test_defect_in_an_adapter_is_a_failed_load_and_quotes_nothing(tmp_path: Path) -> None:
    """Whatever is raised, the scheduler hears where; not what, for it may quote a secret."""

    def explode(_: object) -> None:
        raise RuntimeError("password=hunter2")

    with staged(tmp_path) as stage:
        stage.adapter.on_load = explode
        stage.load(1)
        told = stage.hears(ModelLoadFailed, 1)
        assert (told.code, told.retriable) == ("LOAD_FAILED", True)
        assert told.message.startswith("RuntimeError at test_agent.py:")


def test_secret_enters_neither_report_nor_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its name is in the command; its values stay in the driver's options, even when the driver quotes them."""
    import fsspec
    from fsspec.implementations.memory import MemoryFileSystem

    class Leaky(MemoryFileSystem):
        protocol = "leaky"
        cachable = False

        def __init__(self, key: str = "", **rest: object) -> None:
            super().__init__()
            raise PermissionError(f"bad credentials {key}")

    fsspec.register_implementation("leaky", Leaky, clobber=True)
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "store.json").write_text(json.dumps({"key": "hunter2-very-secret"}))
    with caplog.at_level(logging.DEBUG), staged(tmp_path, secrets=secrets) as stage:
        stage.load(1, storage_uri="leaky://bucket/iris", secret_name="store")
        told = stage.hears(ModelLoadFailed, 1)
    assert told.code == "ARTIFACT_FORBIDDEN"
    everything = caplog.text + "".join(event.model_dump_json() for event in stage.heard)
    assert "hunter2" not in everything


def test_failed_unload_leaves_the_model_in_the_books(tmp_path: Path) -> None:
    """It may still be there, and the next try succeeds."""
    with staged(tmp_path) as stage:
        stage.load(1)
        stage.hears(ModelLoaded, 1)
        original, stage.adapter.unload = stage.adapter.unload, lambda _: 1 / 0  # type: ignore[assignment,method-assign]
        stage.unload(2)
        assert stage.hears(ModelUnloadFailed, 2).code == "UNLOAD_FAILED"
        assert stage.agent.holds() == 1
        stage.adapter.unload = original  # type: ignore[method-assign]
        stage.unload(3)
        stage.hears(ModelUnloaded, 3)
        assert stage.agent.holds() == 0


# --- what the server holds ------------------------------------------------------------------------------------------------


def test_on_start_it_says_what_is_loaded_and_loads_nothing_twice(tmp_path: Path) -> None:
    """Its own models, whether they answer, and names of others', which are nobody's business."""
    adapter = FakeAdapter([SERVED, "somebody_elses", "My_Model_1", "default_iris_01"])
    adapter.models["default_slow_2"] = IndexEntry(IndexState.UNKNOWN)
    adapter.models["default_gone_3"] = IndexEntry(IndexState.UNAVAILABLE)
    with staged(tmp_path, adapter) as stage:
        told = stage.hears(InventoryReported)
        assert [(m.model, m.generation, m.ready, m.busy) for m in told.models] == [
            (IRIS, 1, True, False),
            ("default/slow", 2, False, False),
        ]
        assert told.strangers == ("My_Model_1", "default_iris_01", "somebody_elses")
        assert told.digest == index_digest([SERVED])
        stage.load(1)
        assert stage.hears(ModelLoaded, 1).memory[0].measured == 0


def test_s07_agent_starts_with_1500_models_in_its_server_and_as_many_commands(tmp_path: Path) -> None:
    """No queue on the way is bounded: it reports them all, and answers every command."""
    names = [f"default_m{n}_1" for n in range(1500)]
    with staged(tmp_path, FakeAdapter(names)) as stage:
        assert len(stage.hears(InventoryReported).models) == 1500
        stage.load(1, "default/m0")
        pinned = stage.hears(ModelLoaded, 1).digest
        for n in range(1, 1500):
            stage.load(n + 1, f"default/m{n}", artifact_digest=pinned)
        eventually(lambda: len(stage.said(ModelLoaded)) == 1500, within=60)
        assert stage.agent.holds() == 1500


def test_s44_model_that_its_server_drops_is_reported(tmp_path: Path) -> None:
    """Unasked, within about a second, by name."""
    with staged(tmp_path) as stage:
        stage.load(1)
        stage.hears(ModelLoaded, 1)
        stage.adapter.drop(SERVED)
        stage.agent.server_changed()
        told = stage.hears(InventoryReported, times=2)
        assert (told.models, told.cause) == ((), f"changed without a command: {SERVED}")
        stage.load(2)
        stage.hears(ModelLoaded, 2)
        assert stage.adapter.loads(SERVED) == 2


def test_index_that_lies_is_believed_over_the_answer(tmp_path: Path) -> None:
    """A load that was answered with yes, of a model that never comes into the index, is reported as gone."""
    with staged(tmp_path) as stage:
        stage.adapter.lies = {SERVED}
        stage.load(1)
        stage.hears(ModelLoaded, 1)
        assert stage.hears(InventoryReported, times=2).models == ()


def test_inventory_during_a_load_says_busy(tmp_path: Path) -> None:
    """What is on its way is neither there nor gone, and not in the digest."""
    with staged(tmp_path) as stage:
        stage.begin_load(1)
        told = stage.inventory(2)
        assert [(m.model, m.ready, m.busy) for m in told.models] == [(IRIS, False, True)]
        assert told.digest == index_digest([])
        stage.adapter.gate.set()
        stage.hears(ModelLoaded, 1)
        told = stage.inventory(3)
        assert [(m.ready, m.busy, m.digest) for m in told.models] == [(True, False, digest(stage.artifact)[0])]


def test_load_that_ends_during_a_look_is_not_taken_for_a_drop(tmp_path: Path) -> None:
    """The index was read before the load, and used after it: the model is said to be busy, never gone."""
    looked, go_on = threading.Event(), threading.Event()

    class Slow(FakeAdapter):
        def index(self) -> dict[str, IndexEntry]:
            seen = super().index()
            if not looked.is_set():
                looked.set()
                go_on.wait(10)
            return seen

    with staged(tmp_path, Slow()) as stage:
        assert looked.wait(10)
        stage.load(1)
        stage.hears(ModelLoaded, 1)
        go_on.set()
        assert [(m.model, m.busy) for m in stage.hears(InventoryReported).models] == [(IRIS, True)]
        told = stage.inventory(2)
        assert [(m.ready, m.busy) for m in told.models] == [(True, False)]
        assert len(stage.said(InventoryReported)) == 2


def test_s19_unreachable_server_is_said_to_hold_nothing_and_recovers_without_a_human(tmp_path: Path) -> None:
    """What it still holds when it is back is found, and a load of it loads nothing twice."""
    with staged(tmp_path) as stage:
        stage.load(1)
        stage.hears(ModelLoaded, 1)
        stage.adapter.up = False
        stage.agent.server_changed()
        assert stage.hears(InventoryReported, times=2).models == ()
        assert (stage.agent.serving, stage.agent.check_server()[0], stage.agent.holds()) == (False, False, 0)
        stage.load(2)
        assert stage.hears(ModelLoadFailed, 2).retriable
        stage.adapter.up = True
        told = stage.hears(InventoryReported, times=3)
        assert [(m.model, m.ready) for m in told.models] == [(IRIS, True)]
        assert stage.agent.serving
        assert stage.adapter.calls == [("load", SERVED)]


def test_busy_server_still_holds_what_it_held(tmp_path: Path) -> None:
    """MLServer is silent for seconds while it imports a runtime: that is no reason to take its models out of the routes."""
    with staged(tmp_path) as stage:
        stage.load(1)
        stage.hears(ModelLoaded, 1)
        stage.adapter.busy, before = True, stage.adapter.asked
        stage.agent.server_changed()
        stage.ask(2)
        eventually(lambda: stage.adapter.asked >= before + 2)
        assert (stage.agent.serving, stage.agent.holds()) == (True, 1)
        stage.adapter.busy = False
        assert [m.ready for m in stage.hears(InventoryReported, 2).models] == [True]
        assert not [r for r in stage.said(InventoryReported) if r.cause.startswith("changed")]


def test_operation_waits_for_a_server_that_is_on_its_way_back(tmp_path: Path) -> None:
    """A failed attempt would help nobody."""
    with staged(tmp_path, server_wait_s=20) as stage:
        stage.adapter.up = False
        stage.load(1)
        stage.hears(ModelLoading, 1)
        stage.adapter.up = True
        stage.hears(ModelLoaded, 1)
        assert stage.said(ModelLoadFailed) == []


def test_reports_of_an_outage_come_in_order(tmp_path: Path) -> None:
    """The agent goes on with what it was told, and the scheduler hears it all when the broker is back."""
    with staged(tmp_path) as stage:
        stage.load(1)
        stage.hears(ModelLoaded, 1)
        stage.broker.disconnect(stage.bus)
        stage.adapter.drop(SERVED)
        stage.agent.server_changed()
        eventually(lambda: not stage.agent.check_reports()[0])
        stage.unload(2)
        stage.broker.reconnect(stage.bus)
        stage.hears(ModelUnloaded, 2)
        numbers = [event.number for event in stage.listen()]
        assert numbers == sorted(numbers) == list(range(1, len(numbers) + 1))
        eventually(lambda: stage.agent.check_reports()[0])


# --- the record, and the end ------------------------------------------------------------------------------------------------


def test_heartbeat_says_what_is_in_the_server_now(tmp_path: Path) -> None:
    """Devices, loads in progress, the digest that an inventory would have, and the number of the last report."""
    with staged(tmp_path) as stage:
        stage.load(1)
        stage.hears(ModelLoaded, 1)
        eventually(lambda: stage.agent._ledger.loaded())
        stage.begin_load(2, "default/slow")
        info = stage.agent.refresh(record("a")).server
        assert info is not None
        assert (info.loads, info.digest, info.report) == (1, index_digest([SERVED]), 3)
        assert [device.uuid for device in info.devices] == ["cpu"]
        assert info.devices[0].total > info.devices[0].free > 0
        assert info.disk_bytes > 0


def test_close_during_a_load_ends_in_time_and_reports_no_failure(tmp_path: Path) -> None:
    """A load that does not end is abandoned: it ends with its server. What was waiting is dropped."""
    with staged(tmp_path, close_s=0.05, load_concurrency=1) as stage:
        stage.adapter.gate.clear()
        stage.load(1)
        stage.load(2, "default/waiting")
        stage.hears(ModelLoading, 1)
        stage.agent.close()
        assert stage.said(ModelLoadFailed) == []
        assert stage.adapter.calls == [("load", SERVED)]
        stage.adapter.gate.set()
        eventually(lambda: stage.agent._work.running == 0)


def test_close_does_not_wait_for_a_server_that_is_down(tmp_path: Path) -> None:
    """Nor does it try what it could not do."""
    with staged(tmp_path, server_wait_s=600) as stage:
        stage.adapter.up = False
        stage.load(1)
        stage.hears(ModelLoading, 1)
        stage.agent.close()
        assert stage.said(ModelLoadFailed) == []


def test_thread_that_dies_is_heard_of(tmp_path: Path) -> None:
    """An index that raises what it must not is a defect that ends the process, not a silent agent."""

    class Broken(FakeAdapter):
        def index(self) -> dict[str, IndexEntry]:
            raise KeyError("name")

    stage = Stage(tmp_path, Broken())
    stage.agent.start()
    eventually(lambda: stage.failures)
    stage.agent.close()
    assert isinstance(stage.failures[0], KeyError)
