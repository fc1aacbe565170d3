"""What the simulation found, each as the smallest example: a seed is no place to remember a rule."""

from magnetar_common.status import ModelState, model_status
from magnetar_events.models import ModelSpec
from magnetar_scheduler import inputs as i
from tests.support.world import MIB, World, spec


def test_what_a_decision_has_removed_does_not_come_back_in_it() -> None:
    """A model's deadline and its replica's time-out fall due together: the replica is not decided on again."""
    world = World()
    world.join("a")
    world.deploy()
    world.answer()
    world.undeploy()
    world.pass_time(world.state.policy.delete_deadline_ms - 10_000)
    assert world.state.outstanding  # the second unload, which times out soon after the deadline
    world.at += 60_000
    world.feed(i.TimerDue())
    assert world.state.models == {}
    assert world.state.illegal == 0


def test_a_roll_out_that_does_not_fit_is_not_said_to_progress() -> None:
    """Two of three new replicas are loaded and wait for a third that fits nowhere: the status says so."""

    def version(number: int, **fields: object) -> ModelSpec:
        return spec(memory=400 * MIB, storage_uri=f"file:///models/{number}", **fields)

    world = World()
    world.join("a")
    world.join("b")
    world.deploy(version(1))
    world.answer()
    world.deploy(version(2, replicas=3))
    world.answer()
    status = model_status(world.state.models["default/iris"])
    assert (status.state, status.code) == (ModelState.SCHEDULE_FAILED, "NO_ROOM")
    assert status.active[0].generation == 1
