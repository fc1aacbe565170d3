"""What the simulation found, each as the smallest example: a seed is no place to remember a rule."""

import threading

from magnetar_common.bus.memory import MemoryBroker, MemoryBus
from magnetar_common.status import ModelState, model_status
from magnetar_common.topics import ROUTES
from magnetar_events.models import ModelSpec
from magnetar_scheduler import inputs as i
from magnetar_scheduler.outbox import Outbox
from magnetar_scheduler.routes import Routes
from tests.support.leading import eventually
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
    """Two of three new replicas take over from the only old one, and the third fits nowhere: the status says so."""

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
    assert (status.state, status.code) == (ModelState.DEGRADED, "NO_ROOM")
    assert (status.active[0].generation, status.available) == (2, 2)


def test_a_server_is_asked_what_it_still_holds_of_a_model_that_is_forgotten() -> None:
    """Its index does not change any more, so nothing else would tell that the model is still there."""
    world = World()
    joined = world.join("a")
    world.deploy()
    world.answer()
    world.undeploy()
    world.pass_time(2 * world.state.policy.delete_deadline_ms)
    assert world.state.models == {}
    assert set(world.state.asked) == {"local/a/0"}
    world.inventory(joined, holds=(("default/iris", 1),))
    world.answer()
    assert world.states() == {}


class Publishing:
    """What a leader publishes routes with, and the topic as it is stored."""

    def __init__(self, world: World, broker: MemoryBroker) -> None:
        self.topic = broker.topic(ROUTES.name)
        self.outbox = Outbox(MemoryBus(broker), ROUTES.name, lambda: None)
        self.routes = Routes(world.state, self.outbox, threading.Event())
        self.routes.start(MemoryBus(broker))
        eventually(lambda: self.routes.due(0.0))

    def close(self) -> None:
        self.routes.close()
        self.outbox.close()


def test_the_route_that_an_earlier_leader_left_is_taken_away() -> None:
    """It was killed between the decision and the tombstone; its successor never published that route itself."""
    world, broker = World(), MemoryBroker()
    world.join("a")
    world.deploy()
    world.answer()
    first = Publishing(world, broker)
    first.routes.publish("default/iris")
    eventually(lambda: first.topic.messages)
    first.close()
    world.undeploy()

    second = Publishing(world, broker)
    second.routes.publish("default/iris")
    eventually(lambda: first.topic.messages[-1].payload == b"")
    second.routes.publish("default/never-there")
    second.close()
    assert len(first.topic.messages) == 2


def test_nothing_is_unloaded_while_its_route_is_on_the_topic() -> None:
    """A decided route is not a stored one: the unload waits until the topic, read back, sends nobody there."""
    world, broker = World(), MemoryBroker()
    world.join("a")
    world.deploy()
    world.answer()
    leader = Publishing(world, broker)
    (replica,) = world.state.models["default/iris"].replicas.values()
    assert leader.routes.left(replica)  # nobody was ever sent there
    leader.routes.publish("default/iris")
    eventually(lambda: not leader.routes.left(replica))
    world.undeploy()
    assert not leader.routes.left(replica)
    leader.routes.publish("default/iris")
    eventually(lambda: leader.routes.left(replica))
    leader.close()
