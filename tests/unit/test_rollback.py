"""Rollback and freezing by example: an earlier version is wanted again, and nothing at all may change."""

import pytest

from magnetar_common.past import Recalled
from magnetar_common.status import ModelState, model_status
from magnetar_common.transitions import R
from magnetar_events import ModelEvent
from magnetar_events import facts as f
from magnetar_events.models import ModelSpec
from magnetar_events.requests import Actor, FreezeModel, RollbackModel
from tests.support.world import MIB, World, spec
from tests.unit.test_rollout import IRIS, available, cramped, finish, half_way, last, model, served, traffic, version


def refusal(facts: list[f.Fact]) -> f.RequestRejected:
    (rejected,) = facts
    assert isinstance(rejected, f.RequestRejected)
    return rejected


def from_the_log(world: World, generation: int) -> ModelSpec | None:
    """What the client finds of a version."""
    recalled = Recalled(IRIS, generation)
    for entry in world.log:
        recalled.hear(entry.facts)
    return recalled.pinned()


# --- rollback ---------------------------------------------------------------------------------------------------------


def test_rollback_of_a_failed_rollout_changes_nothing_that_serves() -> None:
    """Version 1 never stopped: it is wanted again at once, with its pinned artifact, and nothing is loaded."""
    world = served(4, 2)
    world.deploy(version(2))
    while world.state.outstanding:
        world.fail_load(next(iter(world.state.outstanding)), retriable=False)
        finish(world)
    assert model_status(model(world)).state is ModelState.FAILED
    facts = world.rollback(1)
    wanted = next(fact for fact in facts if isinstance(fact, f.ModelWanted))
    assert (wanted.generation, wanted.again, wanted.rollback_of) == (1, True, 0)
    assert not world.state.outstanding  # what there was of version 2 left when it failed
    assert (model(world).generation, available(world), traffic(world)) == (1, {1: 2}, {1: 100})
    assert model(world).target.digest == "1" * 64
    assert model_status(model(world)).state is ModelState.AVAILABLE
    finish(world)
    assert set(model(world).versions) == {1}


def test_rollback_in_the_middle_of_a_rollout() -> None:
    """Half of the new version is loaded: it leaves again, and the old one never stopped serving."""
    world = served(4, 2)
    world.deploy(version(2))
    world.answer_one(next(iter(world.state.outstanding)))
    world.rollback(1)
    assert min(sum(each.values()) for each in finish(world)) == 2
    assert (available(world), traffic(world), set(model(world).versions)) == ({1: 2}, {1: 100}, {1})


def test_rollback_in_the_middle_of_steps() -> None:
    """Both versions serve; the way back goes in steps too, with as many missing at most."""
    world = served(3, 3, rollout_unavailable=1)
    world.deploy(version(2, replicas=3))
    half_way(world)
    world.rollback(1)
    assert min(sum(each.values()) for each in finish(world)) >= 2
    assert (available(world), traffic(world)) == ({1: 3}, {1: 100})


def test_the_next_version_after_a_rollback_has_a_new_number() -> None:
    """Numbers are never given twice: after 1, 2 and back to 1 comes 3."""
    world = served(4, 1)
    world.deploy(version(2, replicas=1))
    world.rollback(1)
    world.deploy(version(3, replicas=1))
    assert model(world).generation == 3


def test_rollback_to_one_long_gone_is_a_new_version_with_its_pinned_artifact() -> None:
    """Nothing of version 1 is left: what it was comes along from the log, and the digest must be the same."""
    world = served(4, 2)
    world.deploy(version(2))
    finish(world, digest="2" * 64)
    assert set(model(world).versions) == {2}
    rejected = refusal(world.rollback(1))
    assert (rejected.code, rejected.field) == ("VERSION_RETIRED", "event.model")
    old = from_the_log(world, 1)
    assert old is not None
    assert old.artifact_digest == "1" * 64
    facts = world.rollback(1, model=old)
    wanted = next(fact for fact in facts if isinstance(fact, f.ModelWanted))
    assert (wanted.generation, wanted.again, wanted.rollback_of) == (3, False, 1)
    finish(world, digest="1" * 64)
    assert (available(world), traffic(world)) == ({3: 2}, {3: 100})


def test_rollback_to_one_whose_artifact_is_another_now_fails_and_the_rest_serves() -> None:
    """ARTIFACT_MISMATCH: the storage holds something else under the same name, and it is never routed."""
    world = served(4, 2)
    world.deploy(version(2))
    finish(world, digest="2" * 64)
    world.rollback(1, model=from_the_log(world, 1))
    finish(world, digest="9" * 64)
    told = model_status(model(world))
    assert (told.state, told.code, told.retriable) == (ModelState.FAILED, "ARTIFACT_MISMATCH", False)
    assert (available(world), traffic(world)) == ({2: 2}, {2: 100})


def test_rollback_to_what_never_was_is_refused() -> None:
    """A number that was not given yet, and a model that never was."""
    world = served(2, 1)
    rejected = refusal(world.rollback(7))
    assert (rejected.code, rejected.field) == ("NOT_FOUND", "event.to")
    assert "there was no version 7 of default/iris: its last is 1" in rejected.message
    assert refusal(world.rollback(1, "nobody", model=spec("nobody"))).code == "NOT_FOUND"


def test_rollback_to_the_wanted_version_tries_again_what_failed() -> None:
    """It is wanted already; if it had failed, it is tried again."""
    world = served(4, 1)
    assert [type(fact).__name__ for fact in world.rollback(1)] == ["RequestAccepted"]
    world.deploy(version(2, replicas=1))
    world.fail_load(next(iter(world.state.outstanding)), retriable=False)
    assert "VersionRevived" in [type(fact).__name__ for fact in world.rollback(2)]


def test_rollback_keeps_the_number_of_replicas() -> None:
    """How many are wanted is no part of a version: 1 was scaled up since, and stays so, within its own limits."""
    world = World()
    for name in "abcdef":
        world.join(name)
    world.deploy(version(1, replicas=1, max_replicas=3))
    world.answer()
    world.deploy(version(2, replicas=1))
    world.scale(4)
    world.rollback(1)
    assert model(world).wanted == 3


def test_an_undeployed_model_comes_back_as_a_new_version() -> None:
    """The log still has it: with its specification it can be had again."""
    world = served(2, 1)
    world.undeploy()
    finish(world)
    assert refusal(world.rollback(1)).code == "VERSION_RETIRED"
    world.rollback(1, model=from_the_log(world, 1))
    finish(world, digest="1" * 64)
    assert available(world) == {2: 1}


def test_a_specification_of_another_model_does_not_come_along() -> None:
    """What is sent must be of the model that the request is about."""
    with pytest.raises(ValueError, match="model is default/rose, and the request is about default/iris"):
        RollbackModel(name="iris", to=1, model=spec("rose"))


def test_before_the_upgrade_is_finalized_neither_is_to_be_had() -> None:
    """An older log could not hold that: refused, and nothing is changed."""
    world = World(fold_version=1)
    world.join("a")
    world.deploy()
    world.answer()
    world.deploy(version(2, replicas=1))
    for facts in (world.rollback(1), world.freeze()):
        assert refusal(facts).code == "UPGRADE_NOT_FINALIZED"
    assert (model(world).generation, model(world).frozen) == (2, False)


# --- freeze -----------------------------------------------------------------------------------------------------------


def frozen(servers: int = 4, replicas: int = 2) -> World:
    world = served(servers, replicas)
    world.request(ModelEvent(event=FreezeModel(name="iris"), reason="audit until Friday", actor=Actor(authid="uid-7")))
    return world


def test_requests_about_a_frozen_model_are_refused_with_the_reason() -> None:
    """Whatever is asked: FROZEN, who did it, and why."""
    world = frozen()
    before = world.snapshot().models
    for facts in (world.deploy(version(2)), world.scale(1), world.undeploy(), world.rollback(1)):
        rejected = refusal(facts)
        assert rejected.code == "FROZEN"
        assert rejected.message == "default/iris is frozen by unverified uid-7: audit until Friday"
    assert world.state.models == before
    fact = last(world, f.ModelFrozen)
    assert (fact.actor, fact.reason) == ("unverified uid-7", "audit until Friday")


def test_a_frozen_model_is_not_placed_elsewhere_and_the_loss_is_told() -> None:
    """A server is lost: the status says so and says FROZEN; unfrozen, the replica is placed elsewhere."""
    world = frozen()
    world.lapse("a")
    assert world.states() == {(1, "local/a/0"): R.LOST, (1, "local/b/0"): R.AVAILABLE}
    told = model_status(model(world))
    assert (told.state, told.code, told.available) == (ModelState.DEGRADED, "FROZEN", 1)
    assert told.reason == told.frozen == "frozen by unverified uid-7: audit until Friday"
    assert IRIS not in world.state.unsettled
    world.unfreeze()
    finish(world)
    assert available(world) == {1: 2}


def test_a_frozen_model_comes_back_where_it_was() -> None:
    """Its server returns without it: it is loaded there again, and routed; nowhere else."""
    world = frozen()
    record = world.of("a")
    world.lapse("a")
    info = record.server.model_copy(update={"incarnation": "two"})  # type: ignore[union-attr]
    again = record.model_copy(update={"server": info, "instance_id": "a/0/two"})
    world.registry(again)
    world.inventory(again)
    assert world.states()[1, "local/a/0"] is R.LOAD_REQUESTED
    world.answer()
    assert world.states() == {(1, "local/a/0"): R.AVAILABLE, (1, "local/b/0"): R.AVAILABLE}


def test_a_rollout_stops_where_it_is_while_frozen() -> None:
    """What was begun ends, and nothing follows from it until the model is unfrozen."""
    world = served(4, 2)
    world.deploy(version(2))
    world.freeze()
    world.answer()
    assert (available(world), traffic(world)) == ({1: 2}, {1: 100})
    assert world.states()[2, "local/c/0"] is R.LOADED
    world.unfreeze()
    finish(world)
    assert (available(world), traffic(world)) == ({2: 2}, {2: 100})


def test_freezing_twice_and_unfreezing_twice() -> None:
    """The same again, or without a reason, is accepted and is no news; another reason takes the place of the first."""
    world = frozen()
    same = ModelEvent(event=FreezeModel(name="iris"), reason="audit until Friday", actor=Actor(authid="uid-7"))
    assert [type(fact).__name__ for fact in world.request(same)] == ["RequestAccepted"]
    assert [type(fact).__name__ for fact in world.freeze()] == ["RequestAccepted"]
    assert model(world).frozen_reason == "audit until Friday"
    world.freeze(reason="and Monday")
    assert model(world).frozen_reason == "and Monday"
    world.unfreeze()
    assert [type(fact).__name__ for fact in world.unfreeze()] == ["RequestAccepted"]
    assert refusal(world.freeze("nobody")).code == "NOT_FOUND"


def test_a_draining_server_does_not_move_a_frozen_model() -> None:
    """It serves where it is, until it is unfrozen or its server is gone."""
    world = frozen()
    world.registry(world.of("a").model_copy(update={"status": "DRAINING"}))
    finish(world)
    assert available(world) == {1: 2}
    assert {server for _, server in world.states()} == {"local/a/0", "local/b/0"}
    world.unfreeze()
    finish(world)
    assert {server for _, server in world.states()} == {"local/b/0", "local/c/0"}


# --- scale in now -----------------------------------------------------------------------------------------------------


def test_scale_in_now_leaves_out_the_grace() -> None:
    """What is too many is out of the routes and told to unload in the same entry."""
    world = served(3, 3)
    world.scale(1, now=True)
    assert [world.state.command_of(replica) for replica in world.state.outstanding.values()] == ["UnloadModel"] * 2
    assert available(world) == {1: 1}


def test_scale_in_now_hurries_what_is_leaving_already() -> None:
    """The number is the one wanted; what still waits for its grace to end is unloaded now."""
    world = served(3, 3)
    world.scale(1)
    assert not world.state.outstanding
    world.scale(1, now=True)
    assert len(world.state.outstanding) == 2


def test_scale_in_now_keeps_to_the_limits() -> None:
    """It is a hurry, not another right: fewer than minReplicas is refused."""
    world = cramped(2)
    world.deploy(version(1, min_replicas=2, memory=10 * MIB))
    world.answer()
    rejected = refusal(world.scale(1, now=True))
    assert rejected.code == "OUT_OF_RANGE"
    assert available(world) == {1: 2}
