"""Every version that a model has had, and what became of each."""

import pytest

from magnetar_common.bus import MessageId
from magnetar_common.log import LogRecord
from magnetar_projector.history import Change, history_of
from magnetar_projector.versions import MILESTONES, NoSuchVersion, VersionPast, between, shown, versions_of
from tests.support.logs import logged
from tests.support.world import World
from tests.unit.test_rollback import from_the_log
from tests.unit.test_rollout import IRIS, finish, served, version


def records(world: World) -> list[LogRecord]:
    return [logged(entry, MessageId(0, entry.position)) for entry in world.log]


def versions(world: World) -> dict[int, VersionPast]:
    return {each.generation: each for each in versions_of(IRIS, records(world))}


def outcomes(world: World) -> dict[int, str]:
    return {generation: each.outcome for generation, each in versions(world).items()}


def history(world: World) -> list[Change]:
    return history_of(IRIS, records(world))


def test_what_became_of_each() -> None:
    """Served, skipped, failed, coming, and serving: each version in its turn."""
    world = served(6, 2)
    world.deploy(version(2))
    assert outcomes(world) == {1: "Serving", 2: "Coming"}
    world.deploy(version(3))
    assert outcomes(world) == {1: "Serving", 2: "Skipped", 3: "Coming"}
    finish(world, digest="3" * 64)
    assert outcomes(world) == {1: "Served", 2: "Skipped", 3: "Serving"}
    world.deploy(version(4))
    for _ in range(2):
        loading = [key for key in world.state.outstanding if key.generation == 4]
        world.fail_load(loading[0], "LOAD_BROKEN", retriable=False)
    finish(world)
    assert outcomes(world) == {1: "Served", 2: "Skipped", 3: "Serving", 4: "Failed"}
    assert (versions(world)[4].code, versions(world)[4].message) == ("LOAD_BROKEN", "boom")
    world.undeploy()
    finish(world)
    assert outcomes(world) == {1: "Served", 2: "Skipped", 3: "Served", 4: "Failed"}


def test_a_rollback_is_told_in_history_and_versions() -> None:
    """To what is there: the same number once more. To what is gone: a new one that says whose it is."""
    world = served(4, 2)
    world.deploy(version(2), reason="better")
    world.rollback(1)
    assert versions(world)[1].wanted_again == [world.log[-1].position]
    world.deploy(version(3))
    finish(world, digest="3" * 64)
    world.rollback(1, model=from_the_log(world, 1))
    finish(world, digest="1" * 64)
    assert [(change.kind, change.generation) for change in history(world)] == [
        ("deployed", 1),
        ("deployed", 2),
        ("rolled back", 1),
        ("deployed", 3),
        ("rolled back", 4),
    ]
    found = versions(world)
    assert (found[4].rollback_of, found[4].digest, found[4].outcome) == (1, "1" * 64, "Serving")
    assert found[2].reason == "better"
    assert shown(found[2])["time"].startswith("1970-01-01T")


def test_freezing_is_part_of_the_history() -> None:
    """By whom and why, like any other wish; it changes nothing of the specification."""
    world = served(2, 1)
    world.freeze(reason="audit")
    world.unfreeze()
    assert [(change.kind, change.reason, change.differences) for change in history(world)][1:] == [
        ("frozen", "audit", ()),
        ("unfrozen", "", ()),
    ]


def test_in_what_two_versions_differ() -> None:
    """Field by field, and the artifact that was loaded; not the number of replicas; of versions long gone as well."""
    world = served(4, 2)
    world.scale(1)
    world.deploy(version(2, labels={"team": "x"}))
    finish(world, digest="2" * 64)
    found = {each.field: (each.before, each.after) for each in between(versions(world).values(), 1, 2)}
    assert found == {
        "artifact": ("1" * 64, "2" * 64),
        "labels.team": (None, "x"),
        "storageUri": ("file:///models/v1", "file:///models/v2"),
    }
    world.rollback(1, model=from_the_log(world, 1))
    finish(world, digest="1" * 64)
    assert between(versions(world).values(), 1, 3) == ()
    with pytest.raises(NoSuchVersion, match="there was no version 9; the log has 1, 2, 3"):
        between(versions(world).values(), 1, 9)


def test_the_milestones_alone_tell_the_same() -> None:
    """The read model gives only entries that hold one of them: nothing else matters."""
    world = served(3, 3, rollout_unavailable=1)
    world.deploy(version(2, replicas=3))
    finish(world)
    some = [
        record
        for record in records(world)
        if any(type(fact).__name__ in MILESTONES and fact.model == IRIS for fact in record.entry.facts)
    ]
    assert len(some) < len(records(world))
    assert versions_of(IRIS, some) == versions_of(IRIS, records(world))
