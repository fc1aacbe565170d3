"""Fold versions: what newer software writes before an upgrade is finalized, older software reads; and not a fact of it later."""

import io
import json
import threading
from pathlib import Path
from typing import Any

import fastavro
import pytest

from magnetar_common.bus.memory import MemoryBroker, MemoryBus
from magnetar_common.errors import LogTooNew
from magnetar_common.evolve import fold
from magnetar_common.log import replay
from magnetar_common.render import state_digest
from magnetar_common.state import State
from magnetar_common.topics import ROUTES, STATE_CHANGES, commands_topic
from magnetar_events import ENTRY, schemas, versions
from magnetar_events import facts as f
from magnetar_events.codec import FINGERPRINT
from magnetar_events.entry import FOLD_VERSION, FOLD_VERSION_PROPERTY, Input
from magnetar_scheduler.dispatch import Dispatch
from magnetar_scheduler.journal import NotFinalized, make_entry, properties_of
from magnetar_scheduler.leadership import Challenger
from magnetar_scheduler.outbox import Outbox
from magnetar_scheduler.routes import Routes
from tests import golden
from tests.support.leading import eventually
from tests.support.logs import busy_world, crowded_world, entry, write, write_junk
from tests.support.world import World, record

OLDER = range(1, FOLD_VERSION)


def released(version: int) -> Any:
    """The schema that a version was released with: what its software can read, and nothing else."""
    return json.loads(schemas.schema_json("state-changes", versions.SCHEMAS[version]))


V1 = released(1)


def read_strictly(payload: bytes, version: int = 1) -> dict[str, Any]:
    """Read an entry as software of an older version does, knowing only its own schema."""
    source, schema = io.BytesIO(payload), fastavro.parse_schema(released(version))
    raw: Any = fastavro.schemaless_reader(
        source, schema, None, return_record_name=True, return_record_name_override=True
    )
    assert source.tell() == len(payload), "bytes are left over: this was written with another schema"
    return raw


def kinds_of(schema: Any) -> set[str]:
    """The kinds of fact that a schema of the log has."""
    (facts,) = (field for field in schema["fields"] if field["name"] == "facts")
    branches = facts["type"]["items"]
    return {(branch if isinstance(branch, str) else branch["name"]).rpartition(".")[2] for branch in branches}


# --- before it is finalized -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", OLDER)
def test_everything_written_before_finalize_is_read_by_the_older_version(version: int) -> None:
    """With the schema that it was released with and nothing else; what it reads is what the newer software folded."""
    world = crowded_world(busy_world(World(fold_version=version)))
    world.set_policy(load_servers=9)
    assert world.state.fold_version == version
    for each, payload, schema in zip(world.log, world.payloads, world.schemas, strict=True):
        assert properties_of(each)[FINGERPRINT] == schema == versions.SCHEMAS[version]
        raw = read_strictly(payload, version)
        assert raw["foldVersion"] == each.fold_version == version
        assert [name.rpartition(".")[2] for name, _ in raw["facts"]] == [type(fact).__name__ for fact in each.facts]
    assert world.replayed() == world.state


def test_a_log_of_version_1_goes_on_as_one(tmp_path: Path) -> None:
    """A golden log, led further by this software, stays at its version, and its state renders as version 1 rendered it."""
    entries, digest = golden.read(golden.FOLDER / "busy.fold-1.jsonl")
    state = State()
    for payload, schema in entries:
        fold(state, ENTRY.decode_trusted(payload, schema))
    assert (state.version, state_digest(state)) == (1, digest)
    _, payload = make_entry(state, Input("leader"), [f.LeaderAlive(1)], id="x", term=1, at=state.at, wall=0, handled={})
    assert read_strictly(payload)["foldVersion"] == 1


def test_a_newer_fact_is_never_written_to_an_older_log() -> None:
    world = World(fold_version=1)
    with pytest.raises(NotFinalized, match="LogRebased cannot be written to a log of fold version 1"):
        make_entry(world.state, Input("leader"), [f.LogRebased("b", "a")], id="x", term=1, at=0, wall=0, handled={})


def test_a_wish_that_the_older_version_would_lose_a_part_of_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A field that version 1 has no place for, given a value: the policy would be another one after a restart."""
    world = World(fold_version=1)
    older = json.loads(json.dumps(V1))
    policy = _record(older, "Policy")
    policy["fields"] = [field for field in policy["fields"] if field["name"] != "loadServers"]
    there = schemas.by_fingerprint
    monkeypatch.setattr(
        schemas,
        "by_fingerprint",
        lambda contract, value: (
            fastavro.parse_schema(older)
            if (contract, value) == ("state-changes", versions.SCHEMAS[1])
            else there(contract, value)
        ),
    )
    (rejected,) = world.set_policy(load_servers=9)
    assert isinstance(rejected, f.RequestRejected)
    assert rejected.code == "UPGRADE_NOT_FINALIZED"
    assert "run magnetar upgrade finalize" in rejected.message
    assert [type(fact) for fact in world.set_policy(lease_ms=9_000)] == [f.RequestAccepted, f.PolicySet]
    world.finalize()
    world.set_policy(load_servers=9)
    assert world.state.policy.load_servers == 9
    assert world.replayed() == world.state


def _record(schema: Any, name: str) -> Any:
    if isinstance(schema, dict):
        if schema.get("name") == name and schema.get("type") == "record":
            return schema
        schema = list(schema.values())
    if isinstance(schema, list):
        return next((found for each in schema if (found := _record(each, name))), None)
    return None


# --- finalize ---------------------------------------------------------------------------------------------------------


def test_finalize_is_the_first_entry_of_the_new_version() -> None:
    world = World(fold_version=1)
    facts = world.finalize()
    assert [type(fact) for fact in facts] == [f.RequestAccepted, f.UpgradeFinalized]
    assert [each.fold_version for each in world.log] == [1, FOLD_VERSION]
    assert world.state.fold_version == FOLD_VERSION
    assert properties_of(world.log[-1])[FOLD_VERSION_PROPERTY] == str(FOLD_VERSION)
    assert world.replayed() == world.state
    assert [type(fact) for fact in world.finalize()] == [f.RequestAccepted]  # so already


def test_a_new_log_begins_at_the_version_of_the_software() -> None:
    world = World()
    assert {each.fold_version for each in world.log} == {FOLD_VERSION}
    (rejected,) = world.finalize(1)
    assert isinstance(rejected, f.RequestRejected)
    assert (rejected.code, "no way back" in rejected.message) == ("OUT_OF_RANGE", True)


def test_finalize_waits_for_the_leader_and_for_agents() -> None:
    """Who leads must know the version, and every agent that is there every kind of command."""
    world = World(fold_version=1)
    (rejected,) = world.finalize(FOLD_VERSION + 1)
    assert isinstance(rejected, f.RequestRejected)
    assert rejected.code == "SOFTWARE_TOO_OLD"
    world.registry(record("old", commands=("LoadModel",)))
    (rejected,) = world.finalize()
    assert isinstance(rejected, f.RequestRejected)
    assert (rejected.code, "local/old/0" in rejected.message) == ("AGENTS_TOO_OLD", True)
    world.lapse("old")
    assert world.finalize()
    assert world.state.fold_version == FOLD_VERSION


# --- older software ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("position", [0, 3])
def test_an_older_scheduler_neither_folds_nor_challenges(position: int) -> None:
    """It ends with the version that it would need, and never asks for the log's producer."""
    broker = MemoryBroker()
    before = [entry(each) for each in range(position)]
    write(MemoryBus(broker), *before, entry(position, fold_version=FOLD_VERSION + 1))
    held: list[str] = []

    class Watched(MemoryBus):
        def producer(self, topic: str, **options: Any) -> Any:
            held.append(topic)
            return super().producer(topic, **options)

    challenger = Challenger(lambda: Watched(broker), lambda: False, lambda _: None)
    with pytest.raises(LogTooNew, match=f"needs fold version {FOLD_VERSION + 1}, this software has {FOLD_VERSION}"):
        challenger.run()
    assert challenger.state.position == position - 1
    assert STATE_CHANGES.name not in held


def test_an_unknown_fact_halts_and_names_the_version_needed() -> None:
    """The bytes cannot be read by older software; the message's property says what it takes."""
    broker = MemoryBroker()
    write_junk(MemoryBus(broker), b"not for us", **{FINGERPRINT: "0123456789abcdef", FOLD_VERSION_PROPERTY: "7"})
    with pytest.raises(LogTooNew, match=f"needs fold version 7, this software has {FOLD_VERSION}: upgrade it"):
        replay(MemoryBus(broker))


# --- the one table ----------------------------------------------------------------------------------------------------


def test_the_table_says_of_every_kind_which_version_introduced_it() -> None:
    """A kind that is not in a released schema is said to be newer than that version, and no other is."""
    current = kinds_of(schemas.generated("state-changes"))
    for version, fingerprint in versions.SCHEMAS.items():
        path = schemas.folder() / "history" / f"state-changes.{fingerprint}.avsc"
        newer = {kind.__name__ for kind, since in versions.SINCE.items() if since > version}
        assert current - kinds_of(json.loads(path.read_text())) == newer


def test_a_released_version_has_one_schema_for_ever() -> None:
    """Even a field with a default makes entries that software of the same version cannot read: raise FOLD_VERSION."""
    assert max(versions.SCHEMAS) in (FOLD_VERSION, FOLD_VERSION - 1)
    if FOLD_VERSION in versions.SCHEMAS:
        assert versions.SCHEMAS[FOLD_VERSION] == schemas.fingerprint("state-changes")


@pytest.mark.parametrize("version", [1, FOLD_VERSION])
def test_a_leader_asks_for_reports_that_whoever_may_lead_the_log_reads(version: int) -> None:
    """Before an upgrade is finalized that is the released software: it may lead again."""
    world, broker = World(fold_version=version), MemoryBroker()
    world.join("a")
    world.deploy()
    outbox = Outbox(MemoryBus(broker), ROUTES.name, lambda: None)
    dispatch = Dispatch(world.state, 1, outbox, Routes(world.state, outbox, threading.Event()))
    dispatch.note(world.state.position, world.log[-1].facts)
    dispatch.act(world.state.position)
    sent = broker.topic(commands_topic("a", 0)).messages
    eventually(lambda: sent)
    outbox.close()
    asked = sent[0].properties[versions.REPORTS_PROPERTY]
    assert asked == ("c18346f12316b406" if version == 1 else schemas.fingerprint("agent-events"))
